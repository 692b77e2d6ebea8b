"""FedDP-KMeans: an initialisation from points of the server, then private Lloyd rounds.

Three rounds find initial centroids (FedDP-KMeans, Algorithm 1). The second moments of the records
give a projection to a few directions. Every record votes for the nearest of the server's projected
points, and weighted k-means on these gives projected centres. Sums and counts of the records by
nearest projected centre lift the centres back. Lloyd rounds follow (Algorithm 2).

The server computes every query from the sum before: it sees the sums, and sends the queries.
"""

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.base import (
    COUNTS,
    MAX_CLUSTERS,
    MAX_ROUNDS,
    MAX_RUN_WORDS,
    MAX_WORDS,
    MIN_COUNT,
    SUMS,
    UNUSABLE,
    Algorithm,
    Block,
    FloatArray,
    IntArray,
    Query,
    Range,
    State,
    Statistic,
    register,
)
from flower_kmeans.algorithms.fastlloyd import packing_radius
from flower_kmeans.algorithms.lloyd import RHO, summed
from flower_kmeans.algorithms.numerics.assignment import cluster_sums
from flower_kmeans.algorithms.numerics.cost import (
    COST,
    COST_SHARE,
    LastRound,
    in_users_units,
    lost_by_rounding,
    user_scale,
)
from flower_kmeans.algorithms.numerics.grid_kmeans import GridCenters, grid_kmeans
from flower_kmeans.algorithms.numerics.initialization import (
    STARTS,
    check_server_data,
    public_generator,
    public_words,
)
from flower_kmeans.algorithms.numerics.postprocess import (
    clip_rows,
    into_domain,
    quotients,
    scaled,
    to_grid,
)
from flower_kmeans.algorithms.numerics.projection import (
    MOMENTS,
    ProjectedRecords,
    Projection,
    leading_directions,
    lifted_sums,
    moment_bits,
    moment_units,
    second_moments,
    squared_bound,
)
from flower_kmeans.algorithms.released import CostEstimate
from flower_kmeans.data.domain import Ball, Domain, GridRecords
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.parameters import (
    AUTO,
    DERIVED,
    FLAG,
    choice,
    integer,
    is_auto,
    read_parameters,
    real,
    reals,
    whole,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.privacy.release import Mechanism, Norm

PROJECTION, WEIGHTS, LIFT, N_INITIAL = 1, 2, 3, 3

SPREAD = "spread"

RELEASES = (
    "projection",
    "weights",
    "lift-sums",
    "lift-counts",
    "lloyd-sums",
    "lloyd-counts",
    "spread",
    "cost",
)
"""Names of all releases; those of the Lloyd rounds stand for all of these rounds together."""

LAPLACE_RELEASES = ("weights", "lift-counts", "lloyd-counts", "spread", "cost")
"""Releases that may carry Laplace noise: of a record, they have the same norm in l1 and l2."""

_STAGES = {
    "projection": 0.30,
    "weights": 0.10,
    "lift": 0.30,
    "lloyd": 0.30,
    "spread": 0.02,
    "cost": COST_SHARE,
}

FACTOR = "factor"
FINENESS = 4
"""A radius narrows to ``FINENESS / factor`` of what it was, for whole factors."""
MOST_FACTOR = 64
MOST_AUTO_LLOYD_ROUNDS = 2
"""Measured: one repairs too little where the server's points miss clusters, three add noise."""
AUTO_NOISE = 0.1
"""Noise of a mean over the domain's radius beyond which a second Lloyd round does harm."""
AUTO_NOISE_OF_CLIENTS = 0.05
"""The same where clients are protected. Measured with clips from the server's points."""
DEFAULT_ALPHA = 0.8
AUTO_RADIUS = 0.6
"""Radius over the domain's up to which relative sums are better. With more, records of a cluster
lie beyond a radius that saves little noise."""
WIDE_ALPHA = 2.7
"""Of a radius that was above `AUTO_RADIUS` at the default, it makes the domain's diameter."""

NARROW_RADIUS = 2.0
"""Of the radius after the first Lloyd round, in root mean square distances. Measured."""

N_PSEUDO_CLIENTS = 40
QUANTILE = 0.5
"""Of the norms. Measured: more buys noise, and less changes little."""
LEAST_CLIP = 0.01
"""With norms below it, the server's points are at the centre of the domain: nothing follows from
them about the length of records."""
MOST_DRAWN = 1000
"""Records of a pseudo-client; what a larger one adds is taken to grow in proportion."""

WARNINGS = (
    "The noisy second moments do not exceed their noise in as many directions as they were "
    "projected to: the projection may be arbitrary.",
    "The noisy second moments could not be decomposed: the projection took the first columns.",
    "No server point had a noisy weight of at least min_weight: k-means took all server points, "
    "and all alike.",
    "Fewer server points than clusters had a noisy weight of at least min_weight: the points of "
    "the largest noisy weights became the projected centres.",
    "Fewer projected server points than clusters were different: some centres coincide.",
    "Some clusters had too small a noisy count in the lift: they start from their projected "
    "centre.",
    "Some clusters had too small a noisy count in a Lloyd round: they kept their centroid.",
)
NO_SIGNAL, NO_EIGEN, ALL_LIGHT, FEW, EQUAL, NOT_LIFTED, KEPT = range(len(WARNINGS))

_ANY_WEIGHT = 1e-6  # no server point is too light without noise
_STEPS = 300  # of Lloyd's algorithm, for each start: a server's points are few

Arrays = Mapping[str, NDArray[Any]]
Flags = NDArray[np.bool_]


@register
@dataclass(frozen=True, kw_only=True)
class FedDPAlgorithm(Algorithm):
    """Private k-means that starts from a server's points.

    Source: *Differentially Private Federated k-Means Clustering with Server-Side Data*, ICML 2025.

    Formal guarantee: one record changes the second moments by D^2 at most (with off-diagonal
    entries counted sqrt 2 times), the weights and all counts by one, absolute sums by D and
    relative ones by the radius; the plan composes all releases (docs/guarantees.md,
    "FedDP-KMeans").

    Only the server has ``server_data``; a client makes the algorithm with their number,
    ``n_server_points``. ``n_lloyd_rounds`` are those after the initialisation. All other parameters
    are documented by `strategies.FedDPKMeans`.

    Parameters
    ----------
    server_data : array-like of shape (m, d)
        Points that the server holds, in the user's units, at least k of them different; clipped to
        the domain. Only the server has them; a client makes the algorithm without. Clients see
        their projections to ``min(n_clusters, d)`` directions: with d directions, the points.
    n_server_points : int, optional
        m, where there is no ``server_data``.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each release.
        By default each release has a clip from ``server_data``: the median norm of what clients
        would add that hold ``n_records / n_clients`` points drawn from it, and no more than that
        number. Clients see the clips, so they learn that much about ``server_data``.
    clips : mapping of str to float, optional
        Clips of single releases, in place of ``clip`` or the default.
    contribution : {"sums", "means"}
        What a client adds in the lift and in Lloyd rounds: sums and counts of its records, or, with
        ``unit="client"`` only, the mean of its records in each cluster and which clusters it holds.
        Where ``clip`` is given, the latter are clipped to ``sqrt(k)`` clusters' worth, which clips
        nobody.
    n_lloyd_rounds : int or "auto"
        T, Lloyd rounds after the initialisation; ``n_rounds`` is ``3 + T``. 0 gives the
        initialisation alone, ``"auto"`` two rounds, or one where the noise of a mean of
        ``n_records / k`` records would be longer than a tenth of the domain's radius (a twentieth
        with ``unit="client"``).
    margin : float
        A record takes part in the lift if its nearest projected centre is at most ``margin`` times
        as far as the second; in (0, 1]. The paper's theory has 1/3.
    min_weight : float
        Server points of a smaller noisy weight are dropped.
    sums : {"auto", "absolute", "relative", "narrowing"}
        What a Lloyd round adds up: records, as in the paper, or their offsets within a radius, as
        in FastLloyd. ``"narrowing"`` also releases the sum of squared distances in the first round,
        and narrows the radius of later ones to twice the root mean square distance; it is for
        records, and two rounds or more. ``"auto"`` takes relative sums where the radius is at most
        0.6 D, so in few columns: a wider one saves little noise, and may lie within the clusters.
        It also takes them where the clip of Lloyd sums comes from ``server_data``. With
        ``alpha="auto"`` and a private budget they are narrowing ones, where these are possible.
    alpha : float or "auto"
        The radius of relative sums, as in FastLloyd. ``"auto"`` is 0.8, or, where the clip of Lloyd
        sums comes from ``server_data`` and that radius is more than 0.6 D, the domain's diameter:
        noise then follows the clip, and not the radius.
    cost : bool
        Whether the last Lloyd round also releases what `cost_estimate` needs.
    shares : mapping of str to float, optional
        Shares of mu^2 by release, in place of the default ones; only their ratios matter.
    mechanisms : {"gaussian", "laplace"} or mapping of str to str
        Noise of counts and cost, for all or by release. Laplace noise needs a server that adds it.
    n_clusters, domain, budget, n_records, n_clients, seed, fraction_bits
        As for all algorithms. D is the largest norm around the domain's centre: a ball that fits
        the data has a smaller one than their box.
    """

    name: ClassVar[str] = "feddp"
    replayable: ClassVar[bool] = False
    has_joint_clipping: ClassVar[bool] = True
    possible_warnings: ClassVar[tuple[str, ...]] = WARNINGS

    clips: Annotated[tuple[tuple[str, float], ...], reals(*RELEASES)] = ()
    contribution: Annotated[Literal["sums", "means"], choice("sums", "means")] = "sums"
    n_server_points: Annotated[int, whole()] = DERIVED
    n_lloyd_rounds: Annotated[int, whole(0, MAX_ROUNDS, auto=True)] = AUTO
    n_rounds: int = field(init=False)
    margin: Annotated[float, real(1e-6, 1.0)] = 1.0
    min_weight: Annotated[float, real(1e-6, 2.0**53)] = 5.0
    sums: Annotated[
        Literal["absolute", "relative", "narrowing"],
        choice("auto", "absolute", "relative", "narrowing"),
    ] = AUTO
    alpha: Annotated[float, real(1e-9, 1e9)] = AUTO
    cost: Annotated[bool, FLAG] = False
    shares: Annotated[tuple[tuple[str, float], ...], reals(*RELEASES)] = ()
    laplace: tuple[str, ...] = field(init=False)
    mechanisms: InitVar[str | Mapping[str, str]] = "gaussian"
    server_data: InitVar[ArrayLike | None] = None
    server_points: IntArray | None = field(init=False, compare=False, repr=False)

    def __post_init__(
        self, mechanisms: str | Mapping[str, str], server_data: ArrayLike | None
    ) -> None:
        """Check every parameter, and choose those that are left to the library."""
        given_clip, sums, alpha = self.clip, self.sums, self.alpha
        super().__post_init__()
        if self.contribution == "means" and self.budget.unit != "client":
            raise ConfigurationError(
                "Expected contribution='sums' with unit='record': a single record can move a "
                "client's mean as far as the domain allows. Got contribution='means'."
            )
        if self.contribution == "means" and self.cost:
            raise ConfigurationError(
                "Expected contribution='sums' with cost=True, which needs the records of a "
                "cluster. Got contribution='means'."
            )
        self._require_clipping(self.clips)
        self._put_server_points(server_data)
        suggests = given_clip is None and self.clip is not None
        self._put_sums(
            suggests and server_data is not None and "lloyd-sums" not in dict(self.clips)
        )
        self._put(laplace=laplace_releases(mechanisms))
        if suggests and server_data is not None:
            self._put(clips=with_suggested_clips(self, server_data))
        # Clips and rounds follow from the sums, and narrowing from the rounds: the order matters.
        if is_auto(self.n_lloyd_rounds):
            self._put(n_lloyd_rounds=self._auto_rounds())
        self._put(n_rounds=N_INITIAL + self.n_lloyd_rounds)
        self._put_narrowing(sums, alpha)
        if self.cost and not self.n_lloyd_rounds:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 1 with cost=True, which belongs to the last of them. "
                "Got n_lloyd_rounds=0."
            )
        self._check_size()
        self._require_visible_clips()
        self.require_capacity()

    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return the blocks of a round.

        Round 1: second moments, (d (d + 1) / 2,). Round 2: counts by server point, (m,). Later:
        sums (k, d) and counts (k,); also the spread, (1,), in the first Lloyd round where the
        radius narrows, and the cost, (1,), in the last one if it was asked for.
        """
        return tuple(block for _, block in self._released(round_number))

    def _released(self, round_number: int) -> list[tuple[str, Block]]:
        """Return the names of a round's releases, each with its block."""
        k, d, q = self.n_clusters, self.domain.n_features, self.fraction_bits
        if round_number == PROJECTION:
            return [("projection", Block(MOMENTS, (d * (d + 1) // 2,), 2 * moment_bits(q)))]
        if round_number == WEIGHTS:
            return [("weights", Block(COUNTS, (self.n_server_points,), q))]
        stage = "lift" if round_number == LIFT else "lloyd"
        finer = self.fineness.bit_length() - 1 if round_number > LIFT else 0
        found = [
            (f"{stage}-sums", Block(SUMS, (k, d), q + finer)),
            (f"{stage}-counts", Block(COUNTS, (k,), q)),
        ]
        if self._has_spread(round_number):
            found.append((SPREAD, Block(SPREAD, (1,), q)))
        if self._has_cost(round_number):
            found.append((COST, Block(COST, (1,), q + 2 * finer)))
        return found

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases with noise multipliers relative to those of other rounds."""
        shares = default_shares(self.domain.n_features, self.sums != "absolute")
        shares |= dict(self.shares)
        found = []
        for name, block in self._released(round_number):
            rounds = self.n_lloyd_rounds if name.startswith("lloyd") else 1
            multiplier = 1 / math.sqrt(shares[name] / rounds)
            mechanism: Mechanism = "laplace" if name in self.laplace else "gaussian"
            norm: Norm = "l1" if mechanism == "laplace" else "l2"
            found.append(Release(name, mechanism, norm, multiplier, (block.name,)))
        return tuple(found)

    def record_sensitivities(self, round_number: int) -> FloatArray:
        """Return the sensitivities to one record; with means, to a client's part of a cluster."""
        if round_number == PROJECTION:
            return moment_units(self.domain, self.fraction_bits)
        return super().record_sensitivities(round_number)

    def clip_of(self, release: Release) -> float:
        """Return how many records' worth of one client count in a release; 1 without clipping."""
        if self.clip is None:
            return 1.0
        return dict(self.clips).get(release.name) or self.plain_clip(release.name, release.norm)

    def plain_clip(self, name: str, norm: Norm) -> float:
        """Return a release's clip from the public numbers alone, where none is given for it.

        With means it is how many clusters' worth: sqrt(k) in l2 and k in l1 clip nobody.
        """
        if self.adds_means(name):
            return float(self.n_clusters) if norm == "l1" else math.sqrt(self.n_clusters)
        return self.clip or 1.0

    def adds_means(self, name: str) -> bool:
        """Return whether clients add means, or which clusters they hold, to a release."""
        return self.contribution == "means" and name.startswith(("lift", "lloyd"))

    def moves_of_a_record(self, round_number: int) -> tuple[float, ...]:
        """Return what `Algorithm` says; 2 where clients add means, which count no records."""
        releases = self.releases(round_number)
        if any(self.adds_means(release.name) for release in releases):
            return (2.0,) * len(releases)
        return super().moves_of_a_record(round_number)

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the server's points on the grid; needs ``server_data``. ``rng`` is not used."""
        if self.server_points is None:
            raise ConfigurationError(
                "server_data is required where the server's part is computed. Got None."
            )
        flags = np.zeros(len(WARNINGS), dtype=bool)
        return State(0, {"server": self.server_points, "flags": flags})

    def check_query(self, query: Query) -> None:
        """Require what `Algorithm` says, and centroids within a ball."""
        super().check_query(query)
        number, arrays = query.round, query.arrays
        if number > LIFT and isinstance(self.domain, Ball):
            centroids = arrays["centroids"].astype(np.float64)  # squares below 2**53: exact
            if (np.einsum("ij,ij->i", centroids, centroids) > 4.0**self.fraction_bits).any():
                raise MessageError(UNUSABLE)

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the arrays of a round's query.

        Round 1: none. Round 2: ``projection`` (d, r) and the server's projected ``points`` (m, r),
        r = min(k, d). Round 3: ``projection`` and projected ``centers`` (k, r). Later:
        ``centroids`` (k, d), and where the radius was narrowed ``factor`` (1,).
        """
        k, d, m = self.n_clusters, self.domain.n_features, self.n_server_points
        r, limit = self.projection.n_directions, self.projection.limit
        one = 2**self.fraction_bits
        matrix = {"projection": ((d, r), -one, one)}
        if round_number == PROJECTION:
            return {}
        if round_number == WEIGHTS:
            return {**matrix, "points": ((m, r), -limit, limit)}
        if round_number == LIFT:
            return {**matrix, "centers": ((k, r), -limit, limit)}
        widths = self.domain.grid_half_widths(self.fraction_bits)
        centroids = {"centroids": ((k, d), -widths, widths)}
        if self.sums == "narrowing" and round_number > N_INITIAL + 1:
            return {**centroids, FACTOR: ((1,), FINENESS, MOST_FACTOR)}
        return centroids

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the client's answer to the round's query; zeros for no records."""
        arrays, number = query.arrays, query.round
        if number == PROJECTION:
            return Statistic({MOMENTS: second_moments(records)})
        if number == WEIGHTS:
            projected = ProjectedRecords(records, self.projection, arrays["projection"])
            _, counts = cluster_sums(projected, arrays["points"])
            return Statistic({COUNTS: counts << self.fraction_bits})
        if number == LIFT:
            sums, counts = lifted_sums(
                records, self.projection, arrays["projection"], arrays["centers"], self.margin
            )
            return self._contribution(sums, counts)
        factor, squared = self.factor_of(arrays), None
        if self._has_spread(number) or self._has_cost(number):
            squared = self.largest_cost
        sums, counts, squares = summed(
            records, arrays["centroids"], self._radius_at(factor), squared
        )
        more = {SPREAD: squares} if self._has_spread(number) else {COST: factor**2 * squares}
        return self._contribution(factor * sums, counts, more if squared is not None else {})

    def _radius_at(self, factor: int) -> int | None:
        """Return the radius of a Lloyd round in grid units: no record adds more than a unit."""
        return None if self.radius is None else self.fineness * self.radius // factor

    def _contribution(
        self, sums: IntArray, counts: IntArray, more: Mapping[str, IntArray] | None = None
    ) -> Statistic:
        """Return sums and counts, or a client's means (toward zero) and which clusters it holds."""
        if self.contribution == "means":
            # Toward zero, so that no mean is longer than the records.
            sizes = np.abs(sums) // np.maximum(counts, 1)[:, None]
            sums, counts = np.sign(sums) * sizes, np.minimum(counts, 1)
        return Statistic({SUMS: sums, COUNTS: counts << self.fraction_bits, **(more or {})})

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum; without ``rng``, from the seed."""
        number, before = state.round + 1, state.arrays
        rng = public_generator(self.seed, number) if rng is None else rng
        flags = before["flags"].copy()
        if number == PROJECTION:
            arrays = self._project(before, answer, flags)
        elif number == WEIGHTS:
            arrays = self._weigh(before, answer, flags, rng)
        elif number == LIFT:
            arrays = self._lift(before, answer, flags)
        else:
            arrays = self._move(number, before, answer, flags)
        return State(number, {**before, **arrays, "flags": flags})

    def _project(self, before: Arrays, answer: Statistic, flags: Flags) -> dict[str, NDArray[Any]]:
        d, r = self.domain.n_features, self.projection.n_directions
        directions, values = leading_directions(answer.blocks[MOMENTS], d, r)
        # Noise alone has a largest eigenvalue of about sqrt(2 d) standard deviations of its
        # diagonal: entries above it have 1 / sqrt 2 of that (Wigner's semicircle).
        edge = math.sqrt(2 * d) * self.noise_of(PROJECTION)[MOMENTS]
        flags[NO_EIGEN] = not np.isfinite(values).all()
        flags[NO_SIGNAL] = not (values > max(edge, 1e-9 * values[0])).all()
        matrix = self.projection.matrix(directions)
        points = self.projection.project(
            before["server"].astype(np.float64), matrix.astype(np.float64)
        )
        return {"projection": matrix, "points": points.astype(np.int64)}

    def _weigh(
        self, before: Arrays, answer: Statistic, flags: Flags, rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        weights = answer.blocks[COUNTS]
        found = weighted_centers(before["points"], weights, self.n_clusters, self.least_weight, rng)
        flags[ALL_LIGHT], flags[FEW], flags[EQUAL] = found.all_light, found.few, found.equal
        return {"weights": weights.copy(), "centers": found.points}

    def _lift(self, before: Arrays, answer: Statistic, flags: Flags) -> dict[str, NDArray[Any]]:
        means, usable = self._means(LIFT, answer)
        flags[NOT_LIFTED] = not usable.all()
        # Without enough records a centre is what the projection keeps of it.
        projected = self.projection.lift(before["centers"], before["projection"])
        centroids = to_grid(np.where(usable[:, None], means, projected))
        return {
            "centroids": into_domain(centroids, self.domain, self.fraction_bits),
            "counts": answer.blocks[COUNTS].copy(),
        }

    def _move(
        self, number: int, before: Arrays, answer: Statistic, flags: Flags
    ) -> dict[str, NDArray[Any]]:
        old, factor = before["centroids"], self.factor_of(before)
        means, usable = self._means(number, answer, factor)
        flags[KEPT] |= not usable.all()  # what happened in one round is reported at the end
        radius = self._radius_at(factor)
        if radius is None:
            wanted = to_grid(means)
        else:
            wanted = old + to_grid(clip_rows(means, float(radius)))
        moved = into_domain(wanted, self.domain, self.fraction_bits)
        centroids = np.where(usable[:, None], moved, old)
        counts = answer.blocks[COUNTS].copy()
        arrays: dict[str, NDArray[Any]] = {"centroids": centroids, "counts": counts}
        if self._has_spread(number):
            arrays[FACTOR] = self._narrowed(number, answer)
        if self._has_cost(number):
            arrays["cost"] = self._cost(number, before, centroids, means, usable, answer)
        return arrays

    def _narrowed(self, number: int, answer: Statistic) -> IntArray:
        """Return the factor, (1,), of a radius of twice the records' root mean square distance."""
        # Larger by the noise: too wide a radius costs some noise, too narrow a one misses records.
        total = float(answer.blocks[SPREAD][0]) + self.noise_of(number)[SPREAD]
        n_records = max(MIN_COUNT, float(answer.blocks[COUNTS].sum()) * 2.0**-self.fraction_bits)
        mean_square = max(0.0, total) * 2.0**self.fraction_bits / n_records
        wanted = max(1.0, NARROW_RADIUS * math.sqrt(mean_square))
        whole = self.fineness * float(self._packing_radius)
        return np.array([min(max(FINENESS, math.floor(whole / wanted)), MOST_FACTOR)])

    def _means(self, number: int, answer: Statistic, factor: int = 1) -> tuple[FloatArray, Flags]:
        """Return sums over counts and over their factor, and where there are records enough."""
        noise, q = self.noise_of(number), self.fraction_bits
        # With fewer, the noise of a mean is longer than the domain's radius, or the count is noise.
        longest = noise[SUMS] * (math.sqrt(self.domain.n_features) / factor)
        least = max(MIN_COUNT, longest / self.domain.l2_bound(q), noise[COUNTS] * 2.0**-q)
        means, usable = quotients(answer.blocks[SUMS], answer.blocks[COUNTS], q, least)
        return means / factor, usable

    def _cost(
        self,
        number: int,
        before: Arrays,
        after: IntArray,
        means: FloatArray,
        usable: Flags,
        answer: Statistic,
    ) -> FloatArray:
        """Return value, bias and error of the cost, in scaled units."""
        noise, q = self.noise_of(number), self.fraction_bits
        step, factor = 2.0**-q, self.factor_of(before)
        counts = scaled(answer.blocks[COUNTS], q)
        references = scaled(before["centroids"], q)
        last = LastRound(
            q=float(scaled(answer.blocks[COST], q)[0]) / factor**2 + lost_by_rounding(counts, step),
            sums=scaled(answer.blocks[SUMS], q) / factor,
            counts=counts,
            references=references if self.radius is not None else np.zeros_like(references),
            after=scaled(after, q),
            quotients=means * step,
            usable=usable,
            noise=(
                noise[COST] * step / factor**2,
                noise[SUMS] * step / factor,
                noise[COUNTS] * step,
            ),
            step=step,
        )
        return np.array([last.value, last.bias, last.error])

    def elbow(self, state: State, k_max: int, rng: np.random.Generator) -> FloatArray:
        """Return the inertia of k-means on the weighted projected server points, by k.

        (k_max,) float64, in squared units as those of `cost_estimate`. Post-processing of a state
        after round 2 or later: the weighted points stand for the records, so where the inertia
        stops falling quickly, more clusters find no more structure. For k beyond ``n_clusters`` the
        projection may lack directions.
        """
        k_max = integer("k_max", k_max, 1, MAX_CLUSTERS)
        if "weights" not in state.arrays:
            raise ConfigurationError(
                f"Expected a state after round {WEIGHTS} or later. Got round {state.round}."
            )
        points, weights = state.arrays["points"], state.arrays["weights"]
        step = 2.0**-self.projection.exponent * user_scale(self.domain)[0]
        costs = elbow_costs(points, weights, k_max, self.least_weight, rng)
        return costs * (step * step * 2.0**-self.fraction_bits)

    def cost_estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return what `Algorithm` says, from value, bias and error of the last round."""
        if "cost" not in state.arrays:
            return None
        value, bias, error = state.arrays["cost"].tolist()
        return in_users_units(value, bias, error, self.domain, noise_factor)

    def to_config(self) -> dict[str, Any]:
        """Return the parameters for a run document, without the server's points."""
        return {**super().to_config(), "laplace": list(self.laplace)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> Self:
        """Return the algorithm that ``to_config`` described; it has no server points."""
        # Documents name the releases with Laplace noise, not how they were chosen.
        fields = {name: value for name, value in config.items() if name != "laplace"}
        values = read_parameters(cls, fields, budget.protects_clients)
        laplace = config.get("laplace")
        if not isinstance(laplace, list) or not all(name in LAPLACE_RELEASES for name in laplace):
            raise ConfigurationError("The releases with Laplace noise are not as expected.")
        mechanisms = dict.fromkeys(laplace, "laplace")
        return cls(domain=domain, budget=budget, mechanisms=mechanisms, **values)

    @property
    def least_weight(self) -> int:
        """``min_weight`` in the units of a released weight."""
        return min(math.ceil(self.min_weight * 2.0**self.fraction_bits), 2**63 - 1)

    @cached_property
    def projection(self) -> Projection:
        """The grids of the projection."""
        directions = min(self.n_clusters, self.domain.n_features)
        return Projection(self.domain, self.fraction_bits, directions)

    @cached_property
    def radius(self) -> int | None:
        """Radius of a Lloyd round in grid units, or ``None`` where sums are absolute."""
        return None if self.sums == "absolute" else self._packing_radius

    @cached_property
    def _packing_radius(self) -> int:
        return self._radius_of(self.alpha)

    def _radius_of(self, alpha: float) -> int:
        return packing_radius(alpha, self.n_clusters, self.domain, self.fraction_bits)

    @property
    def fineness(self) -> int:
        """Factor of the sums of a Lloyd round whose radius is not narrowed."""
        # Where it is, to ``fineness * radius // factor``, the sums have a larger factor: what one
        # record adds is no longer, so that sensitivities do not depend on the query.
        return FINENESS if self.sums == "narrowing" else 1

    def factor_of(self, arrays: Mapping[str, Any]) -> int:
        """Return the factor of a Lloyd round's sums, from the arrays of its query or state."""
        return int(arrays[FACTOR][0]) if FACTOR in arrays else self.fineness

    @property
    def largest_cost(self) -> int:
        """What one record can add to the cost, in squared grid units."""
        if self.radius is not None:
            return self.radius**2
        return squared_bound(self.domain, self.fraction_bits)

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the unit of every block; of second moments, that of the diagonal."""
        one, q = float(2**self.fraction_bits), self.fraction_bits
        bound: float = self.domain.l2_bound(q)
        if round_number > LIFT and self.radius is not None:
            bound = float(self.fineness * self.radius)
        return {
            MOMENTS: float(squared_bound(self.domain, q, q - moment_bits(q))),
            SUMS: bound,
            COUNTS: one,
            SPREAD: float(self.largest_cost >> q),
            COST: float(self.fineness**2 * self.largest_cost >> q),
        }

    def _has_spread(self, round_number: int) -> bool:
        return self.sums == "narrowing" and round_number == N_INITIAL + 1

    def _has_cost(self, round_number: int) -> bool:
        return self.cost and round_number == self.n_rounds

    def _put_sums(self, clips_offsets: bool) -> None:
        """Choose what is added up, and within which radius, where that is left to the library."""
        # A clip from the server's points is as long as offsets are, not as the radius allows, so
        # that a wide radius costs nothing.
        bound = AUTO_RADIUS * self.domain.l2_bound(self.fraction_bits)
        chooses = is_auto(self.alpha)
        if chooses:
            self._put(alpha=DEFAULT_ALPHA)
        is_small = self._radius_of(self.alpha) <= bound
        if is_auto(self.sums):
            of_records = self.contribution == "sums" and is_small
            self._put(sums="relative" if of_records or clips_offsets else "absolute")
        if chooses and clips_offsets and self.sums == "relative" and not is_small:
            self._put(alpha=WIDE_ALPHA)

    def _put_narrowing(self, sums: str, alpha: Any) -> None:
        """Let the radius narrow after the first Lloyd round, if asked for or if it helps."""
        radius = 0 if self.sums == "absolute" else self._packing_radius
        can = self.n_lloyd_rounds >= 2 and not self.budget.protects_clients
        can = can and radius**2 >= 2**self.fraction_bits
        if sums == "narrowing" and not can:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 2, unit='record' and a radius whose square is at least "
                f"one grid step of 2^-{self.fraction_bits} with sums='narrowing'. "
                f"Got n_lloyd_rounds={self.n_lloyd_rounds}, unit={self.budget.unit!r} and "
                f"alpha={self.alpha!r} instead."
            )
        if sums == alpha == "auto" and can and radius and self.budget.is_private:
            self._put(sums="narrowing")

    def _auto_rounds(self) -> int:
        """Return two rounds, or one where the noise of two would be too long."""
        if self.n_records is None:
            return MOST_AUTO_LLOYD_ROUNDS
        most = MOST_AUTO_LLOYD_ROUNDS
        self._put(n_lloyd_rounds=most, n_rounds=N_INITIAL + most)
        noise = self.noise_of(LIFT + 1)[SUMS] * math.sqrt(self.domain.n_features)
        size = self.n_records / self.n_clusters
        if self.contribution == "means":
            size = float(self.n_clients or size)  # if every client holds every cluster
        noise /= self.domain.l2_bound(self.fraction_bits) * size
        longest = AUTO_NOISE if self.clip is None else AUTO_NOISE_OF_CLIENTS
        return most if noise <= longest else 1

    def _put_server_points(self, server_data: ArrayLike | None) -> None:
        """Put the points on the grid, where there are some, and their number."""
        given, d = self.n_server_points, self.domain.n_features
        if server_data is None:
            if given is None:
                raise ConfigurationError(
                    f"server_data is required: points that the server holds, (m, {d}), as many as "
                    "there are clusters or more. Got None."
                )
            m = integer("n_server_points", given, self.n_clusters, MAX_WORDS)
            self._put(server_points=None, n_server_points=m)
            return
        points = check_server_data(server_data, self.n_clusters, d)
        grid = self.domain.quantise(self.domain.to_unit(points), self.fraction_bits)
        grid = grid.astype(np.int64)
        grid.setflags(write=False)
        if given is not None and given != len(grid):
            raise ConfigurationError(
                f"Expected n_server_points={len(grid)}, as server_data has. Got {given} instead."
            )
        self._put(server_points=grid, n_server_points=len(grid))

    def _check_size(self) -> None:
        """Refuse sizes of hours and gigabytes: a client makes what a run document describes."""
        k, d, m = self.n_clusters, self.domain.n_features, self.n_server_points
        queried = (d + m) * self.projection.n_directions
        for what, words in (
            ("columns", d * (d + 1) // 2),
            ("n_clusters and columns", k * (d + 1)),
            ("n_server_points", queried),
        ):
            if words > MAX_WORDS:
                raise ConfigurationError(
                    f"Expected {what} so that a message has at most {MAX_WORDS} words. "
                    f"Got {words} with {d} columns, n_clusters={k} and {m} server points."
                )
        initial = sum(map(self.words, (PROJECTION, WEIGHTS, LIFT)))
        if initial + self.n_lloyd_rounds * self.words(LIFT) > MAX_RUN_WORDS:
            raise ConfigurationError(
                f"Expected n_lloyd_rounds so that each client sends at most {MAX_RUN_WORDS} "
                f"words. Got n_lloyd_rounds={self.n_lloyd_rounds}."
            )
        if self.radius is not None and self.radius < 1:
            raise ConfigurationError(
                f"Expected alpha so large that the radius is at least one grid step of "
                f"2^-{self.fraction_bits}. Got {self.alpha!r} instead."
            )


def default_shares(n_features: int, relative: bool) -> dict[str, float]:
    """Return the fraction of mu^2 of every release, of the Lloyd rounds for all together.

    Only ratios matter. For Laplace noise the scale ``1 / sqrt(fraction)`` takes the place of the
    standard deviation (docs/guarantees.md, "FedDP-KMeans").
    """
    # The errors of a centroid from sums and from counts add up to d D^2 / mu_S^2 + r^2 / mu_C^2, r
    # the typical norm of what is averaged, which is least for mu_S^2 : mu_C^2 = sqrt(d) D : r. As
    # elsewhere r is 2 rho D (Su et al.), and half of the radius where sums are relative
    # (FastLloyd, section 5.5).
    root = math.sqrt(n_features)
    absolute = root / (root + 2 * RHO)
    shares = {name: _STAGES[name] for name in ("projection", "weights", "spread", "cost")}
    for stage, part in (
        ("lift", absolute),
        ("lloyd", root / (root + 0.5) if relative else absolute),
    ):
        shares[f"{stage}-sums"] = _STAGES[stage] * part
        shares[f"{stage}-counts"] = _STAGES[stage] * (1 - part)
    return shares


def laplace_releases(value: Any) -> tuple[str, ...]:
    """Return the releases with Laplace noise, sorted, of what `FedDPAlgorithm` was given."""
    given = value if isinstance(value, Mapping) else dict.fromkeys(LAPLACE_RELEASES, value)
    for release, mechanism in given.items():
        if mechanism not in ("gaussian", "laplace"):
            raise ConfigurationError(
                f"Expected mechanisms 'gaussian' or 'laplace'. Got {mechanism!r} instead."
            )
        if release not in RELEASES or (mechanism == "laplace" and release not in LAPLACE_RELEASES):
            raise ConfigurationError(
                f"Expected mechanisms of Laplace noise for releases in {list(LAPLACE_RELEASES)}. "
                f"Got {release!r} instead."
            )
    return tuple(sorted(release for release, mechanism in given.items() if mechanism == "laplace"))


def with_suggested_clips(
    algorithm: FedDPAlgorithm, server_data: ArrayLike
) -> tuple[tuple[str, float], ...]:
    """Return a clip for every release: a given one, or else one that follows from server points.

    It is the median norm of what pseudo-clients add, to two digits: a clip far above what clients
    add buys noise and nothing else, and one below it shortens them. What they add is private, but
    the server has points: the algorithm runs without noise on pseudo-clients that are drawn from
    these. Nothing here is computed from a client's records (docs/guarantees.md, "FedDP-KMeans").

    At least `LEAST_CLIP`, so much that a client can change every word of the release by a step of
    the grid, and else no more than without server points.
    """
    twin = replace(
        algorithm,
        budget=PrivacyBudget(None, unit="client"),
        n_records=None,
        n_clients=None,
        clip=None,
        clips=(),
        n_lloyd_rounds=1,
        min_weight=_ANY_WEIGHT,
        shares=(),
        mechanisms=dict.fromkeys(algorithm.laplace, "laplace"),
        server_data=server_data,
    )
    records_each = (algorithm.n_records or 1) / (algorithm.n_clients or 1)
    norms = answer_norms(twin, records_each, public_generator(algorithm.seed, 0))
    clips = {}
    for number in range(1, twin.n_rounds + 1):
        sensitivities = twin.record_sensitivities(number)
        for release, words in twin.release_words(number):
            smallest = float(
                sensitivities[words].min(where=sensitivities[words] > 0, initial=math.inf)
            )
            found = float(f"{np.quantile(norms[release.name], QUANTILE):.2g}")
            most = algorithm.plain_clip(release.name, release.norm)
            clips[release.name] = max(min(found, most), LEAST_CLIP, (1 + 1e-9) / smallest)
    return tuple(sorted((clips | dict(algorithm.clips)).items()))


def pseudo_clients(
    twin: FedDPAlgorithm, records_each: float, rng: np.random.Generator
) -> list[GridRecords]:
    """Return clients of 1 to `MOST_DRAWN` records, drawn from server points with replacement."""
    points = twin.initial_state().arrays["server"]
    size = min(max(1, math.ceil(records_each)), MOST_DRAWN)
    places = rng.integers(len(points), size=(N_PSEUDO_CLIENTS, size))
    return [GridRecords.from_grid(points[place], twin.fraction_bits) for place in places]


def answer_norms(
    twin: FedDPAlgorithm, records_each: float, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return the norms of what pseudo-clients add, in records' worth, by release.

    (N_PSEUDO_CLIENTS,) float64, in the norm of the release; ``twin`` is the algorithm without noise
    and clips.
    """
    clients = pseudo_clients(twin, records_each, rng)
    growth = max(1.0, records_each / clients[0].shape[0])
    norms: dict[str, FloatArray] = {}
    state = twin.initial_state()
    for number in range(1, twin.n_rounds + 1):
        query = twin.query(state)
        answers = np.stack([twin.flatten(twin.statistic(query, each), number) for each in clients])
        sensitivities = twin.record_sensitivities(number)
        for release, words in twin.release_words(number):
            used = words[sensitivities[words] > 0]
            ratios = np.abs(answers[:, used].astype(np.float64)) / sensitivities[used]
            squares = release.norm == "l2"
            found = np.sqrt((ratios**2).sum(axis=1)) if squares else ratios.sum(axis=1)
            norms[release.name] = found * (1.0 if twin.adds_means(release.name) else growth)
        state = twin.update(state, twin.unflatten(answers.sum(axis=0), number))
    return norms


class Centers(NamedTuple):
    """Centres of the server's points, and how they had to be found."""

    points: IntArray
    all_light: bool  # no point had the minimal weight, so all points counted alike
    few: bool  # fewer points than centres had it, so the heaviest points became the centres
    equal: bool  # fewer points than centres were different, so some centres are equal


def weighted_centers(
    points: IntArray,
    weights: IntArray,
    n_clusters: int,
    min_weight: int,
    rng: np.random.Generator,
) -> Centers:
    """Return the centres of weighted k-means on the points (m, r) of enough weight, m >= k.

    Weights are noisy numbers of records, in any units, and ``min_weight`` in the same.
    """
    kept = weights >= min_weight
    all_light, few = not kept.any(), 0 < kept.sum() < n_clusters
    if few:
        # Of ~w = -w - 1, not of -w: the least int64 has no negative.
        centers = points[np.argsort(~weights, kind="stable")[:n_clusters]]
    elif all_light:
        centers = _kmeans(points, np.ones_like(weights), n_clusters, rng).points
    else:
        centers = _kmeans(points[kept], weights[kept], n_clusters, rng).points
    equal = len(np.unique(centers, axis=0)) < len(centers)
    return Centers(centers, all_light, bool(few), equal)


def elbow_costs(
    points: IntArray, weights: IntArray, k_max: int, min_weight: int, rng: np.random.Generator
) -> FloatArray:
    """Return the inertia (k_max,) of weighted k-means, for k = 1, 2, ..., on points (m, r).

    0 from where there are no more points than centres; lighter ones than ``min_weight`` are
    dropped.
    """
    kept = weights >= min_weight
    if not kept.any():
        raise ConfigurationError(
            "Expected a server point with a noisy weight of at least min_weight. Got none."
        )
    costs = np.zeros(k_max)
    for k in range(1, min(k_max, int(kept.sum())) + 1):
        costs[k - 1] = _kmeans(points[kept], weights[kept], k, rng).cost
    return costs


def _kmeans(
    points: IntArray, weights: IntArray, n_clusters: int, rng: np.random.Generator
) -> GridCenters:
    source = public_words(int.from_bytes(rng.bytes(16), "little"))
    return grid_kmeans(points, weights, n_clusters, source, STARTS, _STEPS)
