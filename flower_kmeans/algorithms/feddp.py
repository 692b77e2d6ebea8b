"""FedDP-KMeans: an initialisation from points of the server, then private Lloyd rounds.

Three rounds find centroids (Algorithm 1): second moments give a projection, records
vote for the nearest of the server's projected points, which weighted k-means turns into
projected centres, and sums and counts by nearest centre lift these back. Lloyd rounds
follow (Algorithm 2). The server computes every query from the sum before.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans import parameters
from flower_kmeans.algorithms import base, lloyd
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.clips import Clipping, Clips, require_no_clips
from flower_kmeans.algorithms.fastlloyd import packing_radius
from flower_kmeans.algorithms.feasibility import MAX_WORDS
from flower_kmeans.algorithms.last_cost import LastCost, LastSums
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import initialization
from flower_kmeans.algorithms.numerics import projection as projections
from flower_kmeans.algorithms.numerics.assignment import cluster_sums
from flower_kmeans.algorithms.numerics.cost import COST, COST_SHARE, user_scale
from flower_kmeans.algorithms.numerics.grid_kmeans import GridCenters, grid_kmeans
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    clip_rows,
    into_domain,
    quotients,
    to_grid,
)
from flower_kmeans.algorithms.numerics.projection import MOMENTS
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.sensitivity import record_sensitivities
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.domain import Ball, Domain, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import (
    FLAG,
    ParameterKind,
    choice,
    drafted,
    is_auto,
    real,
    reals,
    whole,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.privacy.release import Mechanism

PROJECTION = 1
WEIGHTS = 2
LIFT = 3
N_INITIAL = 3
SPREAD = "spread"
FACTOR = "factor"

RELEASES = (
    *("projection", "weights", "lift-sums", "lift-counts"),
    *("lloyd-sums", "lloyd-counts", "spread", "cost"),
)
"""Names of all releases; those of the Lloyd rounds stand for all of these rounds together."""

LAPLACE_RELEASES = ("weights", "lift-counts", "lloyd-counts", "spread", "cost")
"""Releases that may carry Laplace noise: of a record, they have the same norm in l1 and l2."""

_SHARES = {"projection": 0.30, "weights": 0.10, "spread": 0.02, "cost": COST_SHARE}
_STAGE_SHARE = 0.30  # of the lift, and of all Lloyd rounds together

# a radius narrows to FINENESS / factor, for whole factors
FINENESS = 4
MOST_FACTOR = 64
# in root mean square distances after the first Lloyd round; measured
# (docs/guarantees, Theorem 20)
NARROW_RADIUS = 2.0
MOST_AUTO_LLOYD_ROUNDS = 2  # measured: one repairs too little, and three add noise
# of a mean over the domain's radius: beyond it a second Lloyd round does harm
AUTO_NOISE = 0.1
# the same for clients, measured with clips from the server's points
AUTO_NOISE_OF_CLIENTS = 0.05
DEFAULT_ALPHA = 0.8
# standard deviations of a weight's noise; measured (docs/tables/feddp.md)
AUTO_WEIGHT = 2.0
# over the domain's: a wider one saves little noise, and misses records
AUTO_RADIUS = 0.6
WIDE_ALPHA = 2.7  # makes the domain's diameter of any radius above `AUTO_RADIUS`

N_PSEUDO_CLIENTS = 40
# with norms below it, the server's points say nothing about records' lengths
LEAST_CLIP = 0.01
# records of a pseudo-client; a larger one is taken to add in proportion
MOST_DRAWN = 1000

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

_ANY_WEIGHT = 1e-6  # without noise every server point with a record has more
_MOST_WEIGHT = 2.0**53
_STEPS = 300  # of Lloyd's algorithm, for each start: a server's points are few

NamedArrays = dict[str, NDArray[Any]]


Sums = Literal["absolute", "relative", "narrowing"]
Contribution = Literal["sums", "means"]


def _check_laplace(name: str, value: Any) -> tuple[str, ...]:
    """Return the releases with Laplace noise, which documents name."""
    are_known = isinstance(value, tuple) and all(
        each in LAPLACE_RELEASES for each in value
    )
    if not are_known:
        raise ConfigurationError("The releases with Laplace noise are not as expected.")
    return tuple(value)


def _read_laplace(config: Any) -> tuple[str, ...]:
    return _check_laplace(
        "laplace", tuple(config) if isinstance(config, list) else None
    )


_LAPLACE = ParameterKind(_check_laplace, list, _read_laplace)


@register
@dataclass(frozen=True, kw_only=True)
class FedDPAlgorithm(base.Algorithm):
    """Private k-means that starts from a server's points.

    Source: *Differentially Private Federated k-Means Clustering with Server-Side Data*,
    ICML 2025. Formal guarantee and the rules of ``"auto"``: docs/guarantees,
    Theorem 19.

    `strategies.FedDPKMeans` documents what a user gives. Only the server has
    ``server_points``, (m, d) on the grid; a client makes the algorithm with their
    number, ``n_server_points``. ``n_lloyd_rounds`` are those after the initialisation,
    and ``laplace`` are the releases with Laplace noise, sorted.
    """

    name: ClassVar[str] = "feddp"
    replayable: ClassVar[bool] = False
    possible_warnings: ClassVar[tuple[str, ...]] = WARNINGS

    clips: Annotated[Clips, reals(*RELEASES)] = ()
    contribution: Annotated[Contribution, choice("sums", "means")] = "sums"
    n_server_points: Annotated[int, whole()]
    n_lloyd_rounds: Annotated[int, whole(0, base.MAX_ROUNDS, auto=True)]
    margin: Annotated[float, real(1e-6, 1.0)] = 1.0
    min_weight: Annotated[float, real(_ANY_WEIGHT, _MOST_WEIGHT, auto=True)]
    sums: Annotated[Sums, choice("absolute", "relative", "narrowing", auto=True)]
    alpha: Annotated[float, real(1e-9, 1e9)]
    cost: Annotated[bool, FLAG] = False
    shares: Annotated[Clips, reals(*RELEASES)] = ()
    laplace: Annotated[tuple[str, ...], _LAPLACE] = ()
    server_points: IntArray | None = field(default=None, compare=False, repr=False)

    @classmethod
    def planned(
        cls,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        clips: Mapping[str, float] | None = None,
        shares: Mapping[str, float] | None = None,
        n_lloyd_rounds: int | Literal["auto"] = "auto",
        min_weight: float | Literal["auto"] = "auto",
        sums: Sums | Literal["auto"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        mechanisms: Mechanism | Mapping[str, Mechanism] = "gaussian",
        server_data: ArrayLike | None = None,
        n_server_points: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the algorithm of a user's options, with the library's choices.

        Steps go from draft to draft, for each needs what the ones before it chose: a
        clip the sums that it is for, the rounds their noise, narrowing the rounds, and
        a weight's noise the whole plan.
        """
        options["clips"] = clips
        options["shares"] = shares
        options["sums"] = drafted(sums, "absolute")
        options["alpha"] = drafted(alpha, DEFAULT_ALPHA)
        options["n_lloyd_rounds"] = drafted(n_lloyd_rounds, MOST_AUTO_LLOYD_ROUNDS)
        options["min_weight"] = drafted(min_weight, _ANY_WEIGHT)
        n_points = n_clusters if n_server_points is None else n_server_points
        options["n_server_points"] = n_points
        draft = cls(**base.resolved(cls, n_clusters, domain, budget, options))
        has_default_clip = options.get("clip") is None and draft.clip is not None
        suggests = has_default_clip and server_data is not None
        clips_offsets = suggests and "lloyd-sums" not in dict(draft.clips)

        draft = draft._with_points(server_data, n_server_points)
        if is_auto(sums):
            draft = draft._with_sums(clips_offsets)
        if is_auto(alpha):
            draft = draft._with_alpha(clips_offsets)
        draft = replace(draft, laplace=laplace_releases(mechanisms))
        if suggests:
            draft = replace(draft, clips=with_suggested_clips(draft))
        if is_auto(n_lloyd_rounds):
            draft = replace(draft, n_lloyd_rounds=draft.suitable_rounds())
        if is_auto(sums) and is_auto(alpha):
            draft = draft._with_narrowing()
        if is_auto(min_weight):
            draft = replace(draft, min_weight=draft.suitable_weight())
        draft.require_feasible()
        return draft

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.contribution == "means":
            self._require_means()
        require_no_clips(self.clips, self.clip)
        parameters.integer(
            "n_server_points", self.n_server_points, self.n_clusters, MAX_WORDS
        )
        if self.sums == "narrowing" and not self._can_narrow:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 2, unit='record' and a radius whose square is at least "
                f"one grid step of 2^-{self.fraction_bits} with sums='narrowing'. "
                f"Got n_lloyd_rounds={self.n_lloyd_rounds}, unit={self.budget.unit!r} and "
                f"alpha={self.alpha!r} instead."
            )
        if self.cost and not self.n_lloyd_rounds:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 1 with cost=True, which belongs to the last of them. "
                "Got n_lloyd_rounds=0."
            )
        if self.radius is not None and self.radius < 1:
            raise ConfigurationError(
                f"Expected alpha so large that the radius is at least one grid step of "
                f"2^-{self.fraction_bits}. Got {self.alpha!r} instead."
            )

    def _require_means(self) -> None:
        """Require options under which clients can add means."""
        if self.budget.unit != "client":
            why = (
                "unit='record': a single record can move a client's "
                "mean as far as the domain allows"
            )
        elif self.cost:
            why = "cost=True, which needs the records of a cluster"
        else:
            return
        raise ConfigurationError(
            f"Expected contribution='sums' with {why}. Got contribution='means'."
        )

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return N_INITIAL + self.n_lloyd_rounds

    def layout(self, round_number: int) -> Layout:
        """Return the blocks of a round.

        Round 1: second moments, (d (d + 1) / 2,). Round 2: counts by server point,
        (m,). Later: sums (k, d) and counts (k,); also the spread, (1,), in the first
        Lloyd round where the radius narrows, and the cost, (1,), in the last one if it
        was asked for.
        """
        return Layout(tuple(self._released(round_number).values()))

    def _released(self, round_number: int) -> dict[str, Block]:
        """Return the block of each of a round's releases."""
        k = self.n_clusters
        d = self.domain.n_features
        q = self.fraction_bits
        if round_number == PROJECTION:
            exponent = 2 * projections.moment_bits(q)
            return {"projection": Block(MOMENTS, (d * (d + 1) // 2,), exponent)}
        if round_number == WEIGHTS:
            return {"weights": Block(COUNTS, (self.n_server_points,), q)}
        stage = "lift" if round_number == LIFT else "lloyd"
        finer = self.fineness.bit_length() - 1 if round_number > LIFT else 0
        found = {
            f"{stage}-sums": Block(SUMS, (k, d), q + finer),
            f"{stage}-counts": Block(COUNTS, (k,), q),
        }
        if self._has_spread(round_number):
            found[SPREAD] = Block(SPREAD, (1,), q)
        if self._has_cost(round_number):
            found[COST] = Block(COST, (1,), q + 2 * finer)
        return found

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases with noise multipliers relative to those of other rounds."""
        shares = default_shares(self.domain.n_features, self.sums != "absolute")
        shares |= dict(self.shares)
        found = []
        for name, block in self._released(round_number).items():
            rounds = self.n_lloyd_rounds if name.startswith("lloyd") else 1
            # Shares are of mu^2, which is the inverse square of a multiplier.
            multiplier = 1 / math.sqrt(shares[name] / rounds)
            if name in self.laplace:
                found.append(Release(name, "laplace", "l1", multiplier, (block.name,)))
            else:
                found.append(Release(name, "gaussian", "l2", multiplier, (block.name,)))
        return tuple(found)

    @property
    def clipping(self) -> Clipping:
        """How the part of one client is limited; its clips are given, or `plain_clip`."""
        first_means = LIFT if self.contribution == "means" else None
        plain = {name: self.plain_clip(name) for name in RELEASES}
        own = plain | dict(self.clips)
        return replace(
            super().clipping,
            own=tuple(own.items()),
            is_joint=True,
            first_means=first_means,
        )

    def plain_clip(self, name: str) -> float:
        """Return a release's clip from the public numbers alone, where none is given for it.

        With means it is how many clusters' worth: sqrt(k) in l2 and k in l1 clip
        nobody.
        """
        if self.adds_means(name):
            k = float(self.n_clusters)
            return k if name in self.laplace else math.sqrt(k)
        return self.clip or 1.0

    def adds_means(self, name: str) -> bool:
        """Return whether clients add means, or which clusters they hold, to a release."""
        return self.contribution == "means" and name.startswith(("lift", "lloyd"))

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the server's points on the grid; needs ``server_data``. ``rng`` is not used."""
        if self.server_points is None:
            raise ConfigurationError(
                "server_data is required where the server's part is computed. Got None."
            )
        flags = np.zeros(len(WARNINGS), dtype=bool)
        return State(0, {"server": self.server_points, "flags": flags})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the arrays of a round's query.

        Round 1: none. Round 2: ``projection`` (d, r) and the server's projected
        ``points`` (m, r), r = min(k, d). Round 3: ``projection`` and projected
        ``centers`` (k, r). Later: ``centroids`` (k, d), and where the radius was
        narrowed ``factor`` (1,). Centroids lie within a ball.
        """
        k = self.n_clusters
        d = self.domain.n_features
        r = self.projection.n_directions
        one = 2**self.fraction_bits
        limit = self.projection.limit
        matrix = {"projection": Range((d, r), -one, one)}
        if round_number == PROJECTION:
            return {}
        if round_number == WEIGHTS:
            return {**matrix, "points": Range((self.n_server_points, r), -limit, limit)}
        if round_number == LIFT:
            return {**matrix, "centers": Range((k, r), -limit, limit)}
        widths = self.domain.grid_half_widths(self.fraction_bits)
        longest = one if isinstance(self.domain, Ball) else None
        centroids = {"centroids": Range((k, d), -widths, widths, longest)}
        if self.sums == "narrowing" and round_number > N_INITIAL + 1:
            return {**centroids, FACTOR: Range((1,), FINENESS, MOST_FACTOR)}
        return centroids

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the records' part of the round's sum, before means are taken of it."""
        arrays = query.arrays
        number = query.round
        if number == PROJECTION:
            return Statistic({MOMENTS: projections.second_moments(records)})
        if number == WEIGHTS:
            projected = projections.ProjectedRecords(
                records, self.projection, arrays["projection"]
            )
            _, counts = cluster_sums(projected, arrays["points"])
            return Statistic({COUNTS: counts << self.fraction_bits})
        if number == LIFT:
            return self._lift_statistic(query, records)
        return self._lloyd_statistic(query, records)

    def _lift_statistic(self, query: Query, records: GridRecords) -> Statistic:
        sums, counts = projections.lifted_sums(
            records,
            self.projection,
            query.arrays["projection"],
            query.arrays["centers"],
            self.margin,
        )
        return Statistic({SUMS: sums, COUNTS: counts << self.fraction_bits})

    def _lloyd_statistic(self, query: Query, records: GridRecords) -> Statistic:
        has_spread = self._has_spread(query.round)
        has_cost = self._has_cost(query.round)
        largest = self.largest_cost if has_spread or has_cost else None
        factor = self.factor_of(query.arrays)
        radius = self._radius_at(factor)
        centroids = query.arrays["centroids"]
        sums, counts, squares = lloyd.summed(records, centroids, radius, largest)
        blocks = {SUMS: factor * sums, COUNTS: counts << self.fraction_bits}
        # The first Lloyd round has the spread where there are two or more.
        if has_spread:
            blocks[SPREAD] = squares
        elif has_cost:
            blocks[COST] = factor**2 * squares
        return Statistic(blocks)

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the bounds of moments, weights, and sums and counts of records or means."""
        number = state.round + 1
        most = self.block_sensitivities(number)
        if number == PROJECTION:
            return Meaning(
                counts=None, moments=MOMENTS, trace=most[MOMENTS], are_clusters=False
            )
        if number == WEIGHTS:
            return Meaning(are_clusters=False)
        widths = self.domain.grid_half_widths(self.fraction_bits)
        of_sums = Meaning(
            sums=SUMS,
            length=most[SUMS],
            widths=widths,
            are_records=self.contribution == "sums",
            all_count=self.margin == 1.0,
        )
        if number == LIFT:
            return replace(of_sums, totals={})
        totals = {}
        if self._has_spread(number):
            totals[SPREAD] = most[SPREAD]
        if self._has_cost(number):
            totals[COST] = most[COST]
        factor = self.factor_of(state.arrays)
        is_relative = self.radius is not None
        return replace(
            of_sums,
            # Sums of a factor are as much longer, and the length of offsets has it.
            widths=None if is_relative else factor * widths,
            unit=1 / factor,
            offsets=is_relative,
            all_count=not is_relative,
            totals=totals,
        )

    def _radius_at(self, factor: int) -> int | None:
        """Return the radius of a Lloyd round in grid units: no record adds more than a unit."""
        if self.radius is None:
            return None
        return self.fineness * self.radius // factor

    def update(
        self,
        state: State,
        answer: Statistic,
        rng: np.random.Generator | None = None,
    ) -> State:
        """Return the state after a round's noisy sum; without ``rng``, from the seed."""
        number = state.round + 1
        before = dict(state.arrays)
        flags = before["flags"].copy()
        if number == PROJECTION:
            arrays = self._project(before, answer, flags)
        elif number == WEIGHTS:
            rng = (
                initialization.public_generator(self.seed, number)
                if rng is None
                else rng
            )
            arrays = self._weigh(before, answer, flags, rng)
        elif number == LIFT:
            arrays = self._lift(before, answer, flags)
        else:
            arrays = self._move(number, before, answer, flags)
        return State(number, {**before, **arrays, "flags": flags})

    def _project(
        self, before: NamedArrays, answer: Statistic, flags: BoolArray
    ) -> NamedArrays:
        d = self.domain.n_features
        r = self.projection.n_directions
        directions, values = projections.leading_directions(
            answer.blocks[MOMENTS], d, r
        )
        # Noise alone has a largest eigenvalue of about sqrt(2 d) standard deviations of
        # its diagonal: entries above it have 1 / sqrt 2 of that (Wigner's semicircle).
        edge = math.sqrt(2 * d) * self.noise_of(PROJECTION)[MOMENTS]
        flags[NO_EIGEN] = not np.isfinite(values).all()
        # Without noise the edge is 0, and eigenvalues of rounding size are no signal.
        flags[NO_SIGNAL] = not (values > max(edge, 1e-9 * values[0])).all()
        matrix = self.projection.matrix(directions)
        points = self.projection.project(
            before["server"].astype(np.float64), matrix.astype(np.float64)
        )
        return {"projection": matrix, "points": points.astype(np.int64)}

    def _weigh(
        self,
        before: NamedArrays,
        answer: Statistic,
        flags: BoolArray,
        rng: np.random.Generator,
    ) -> NamedArrays:
        points = before["points"]
        weights = answer.blocks[COUNTS]
        k = self.n_clusters
        kept = weights >= self.least_weight
        flags[ALL_LIGHT] = not kept.any()
        flags[FEW] = 0 < kept.sum() < k
        if flags[FEW]:
            # Of ~w = -w - 1, not of -w: the least int64 has no negative.
            centers = points[np.argsort(~weights, kind="stable")[:k]]
        elif flags[ALL_LIGHT]:
            centers = _kmeans(points, np.ones_like(weights), k, rng).points
        else:
            centers = _kmeans(points[kept], weights[kept], k, rng).points
        flags[EQUAL] = len(np.unique(centers, axis=0)) < k
        return {"weights": weights.copy(), "centers": centers}

    def _lift(
        self, before: NamedArrays, answer: Statistic, flags: BoolArray
    ) -> NamedArrays:
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
        self, number: int, before: NamedArrays, answer: Statistic, flags: BoolArray
    ) -> NamedArrays:
        old = before["centroids"]
        factor = self.factor_of(before)
        blocks = answer.blocks
        means, usable = self._means(number, answer, factor)
        # what happened in one round is reported at the end
        flags[KEPT] |= not usable.all()
        radius = self._radius_at(factor)
        if radius is None:
            wanted = to_grid(means)
        else:
            wanted = old + to_grid(clip_rows(means, float(radius)))
        moved = into_domain(wanted, self.domain, self.fraction_bits)
        centroids = np.where(usable[:, None], moved, old)
        arrays: NamedArrays = {"centroids": centroids, "counts": blocks[COUNTS].copy()}
        if self._has_spread(number):
            arrays[FACTOR] = self._narrowed(number, answer)
        if self._has_cost(number):
            arrays |= {
                SUMS: blocks[SUMS].copy(),
                COST: blocks[COST].copy(),
                "before": old,
            }
        return arrays

    def _narrowed(self, number: int, answer: Statistic) -> IntArray:
        """Return the factor, (1,), of a radius of twice the records' root mean square distance."""
        # Larger by the noise: too wide a radius costs some noise, too narrow a one
        # misses records.
        total = float(answer.blocks[SPREAD][0]) + self.noise_of(number)[SPREAD]
        step = 2.0**-self.fraction_bits
        n_records = max(MIN_COUNT, float(answer.blocks[COUNTS].sum()) * step)
        wanted = max(1.0, NARROW_RADIUS * math.sqrt(max(0.0, total) / step / n_records))
        factor = math.floor(self.fineness * float(self._packing_radius) / wanted)
        return np.array([min(max(FINENESS, factor), MOST_FACTOR)])

    def _means(
        self, number: int, answer: Statistic, factor: int = 1
    ) -> tuple[FloatArray, BoolArray]:
        """Return sums over counts and over their factor, and where there are records enough."""
        least = self._least_count(number, factor)
        means, usable = quotients(
            answer.blocks[SUMS], answer.blocks[COUNTS], self.fraction_bits, least
        )
        return means / factor, usable

    def _least_count(self, number: int, factor: int) -> float:
        """Return the fewest noisy records of a cluster whose sum is divided by them."""
        # With fewer, the noise of a mean is longer than the domain's radius, or the
        # count is noise.
        noise = self.noise_of(number)
        q = self.fraction_bits
        longest = noise[SUMS] * (math.sqrt(self.domain.n_features) / factor)
        return max(
            MIN_COUNT, longest / self.domain.l2_bound(q), noise[COUNTS] * 2.0**-q
        )

    def elbow(self, state: State, k_max: int, rng: np.random.Generator) -> FloatArray:
        """Return the inertia of k-means on the weighted projected server points, by k.

        (k_max,) float64, in squared units as those of `LastCost`; 0 from where
        there are no more points than centres. Post-processing of a state after round 2
        or later: the weighted points stand for the records, so where the inertia stops
        falling quickly, more clusters find no more structure. For k beyond
        ``n_clusters`` the projection may lack directions.
        """
        k_max = parameters.integer("k_max", k_max, 1, base.MAX_CLUSTERS)
        if "weights" not in state.arrays:
            raise ConfigurationError(
                f"Expected a state after round {WEIGHTS} or later. Got round {state.round}."
            )
        kept = state.arrays["weights"] >= self.least_weight
        if not kept.any():
            raise ConfigurationError(
                "Expected a server point with a noisy weight of at least min_weight. Got none."
            )
        points = state.arrays["points"][kept]
        weights = state.arrays["weights"][kept]
        costs = np.zeros(k_max)
        for k in range(1, min(k_max, len(points)) + 1):
            costs[k - 1] = _kmeans(points, weights, k, rng).cost
        step = 2.0**-self.projection.exponent * user_scale(self.domain)[0]
        return costs * (step * step * 2.0**-self.fraction_bits)

    @property
    def last_cost(self) -> LastCost | None:
        """The cost at the result; ``None`` unless the last round releases it."""
        if not self.cost:
            return None
        noise = self.noise_of(self.n_rounds)
        return LastCost(self.domain, self.fraction_bits, noise, self._last_sums)

    def _last_sums(self, state: State) -> LastSums:
        """Return how to read the sums of the last round."""
        factor = self.factor_of(state.arrays)
        return LastSums(
            is_relative=self.radius is not None,
            least_count=self._least_count(self.n_rounds, factor),
            unit=1 / factor,
            rounding=factor**2,
        )

    @property
    def least_weight(self) -> int:
        """``min_weight`` in the units of a released weight."""
        return min(math.ceil(self.min_weight * 2.0**self.fraction_bits), 2**63 - 1)

    @cached_property
    def projection(self) -> projections.Projection:
        """The grids of the projection."""
        directions = min(self.n_clusters, self.domain.n_features)
        return projections.Projection(self.domain, self.fraction_bits, directions)

    @property
    def radius(self) -> int | None:
        """Radius of a Lloyd round in grid units, or ``None`` where sums are absolute."""
        return None if self.sums == "absolute" else self._packing_radius

    @cached_property
    def _packing_radius(self) -> int:
        return packing_radius(
            self.alpha, self.n_clusters, self.domain, self.fraction_bits
        )

    @property
    def fineness(self) -> int:
        """Factor of the sums of a Lloyd round whose radius is not narrowed."""
        # Where it is, to ``fineness * radius // factor``, the sums have a larger
        # factor: what one record adds is no longer, so that sensitivities do not depend
        # on the query.
        return FINENESS if self.sums == "narrowing" else 1

    def factor_of(self, arrays: Mapping[str, Any]) -> int:
        """Return the factor of a Lloyd round's sums, from the arrays of its query or state."""
        return int(arrays[FACTOR][0]) if FACTOR in arrays else self.fineness

    @property
    def largest_cost(self) -> int:
        """The most that one record adds to the cost, in squared grid units."""
        if self.radius is not None:
            return self.radius**2
        return projections.squared_bound(self.domain, self.fraction_bits)

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the unit of every block; of second moments, that of the diagonal."""
        q = self.fraction_bits
        bound = self.domain.l2_bound(self.fraction_bits)
        if round_number > LIFT and self.radius is not None:
            bound = float(self.fineness * self.radius)
        coarser = q - projections.moment_bits(q)
        return {
            MOMENTS: float(projections.squared_bound(self.domain, q, coarser)),
            SUMS: bound,
            COUNTS: float(2**q),
            SPREAD: float(self.largest_cost >> q),
            COST: float(self.fineness**2 * self.largest_cost >> q),
        }

    def _has_spread(self, round_number: int) -> bool:
        return self.sums == "narrowing" and round_number == N_INITIAL + 1

    def _has_cost(self, round_number: int) -> bool:
        return self.cost and round_number == self.n_rounds

    # ------------------------------------------------- what is left to the library

    def _with_points(self, server_data: ArrayLike | None, given: int | None) -> Self:
        """Return the draft with the server's points on the grid, where there are some."""
        d = self.domain.n_features
        if server_data is None:
            if given is None:
                raise ConfigurationError(
                    f"server_data is required: points that the server holds, (m, {d}), as many as "
                    "there are clusters or more. Got None."
                )
            return self
        points = initialization.check_server_data(server_data, self.n_clusters, d)
        on_grid = self.domain.quantise(self.domain.to_unit(points), self.fraction_bits)
        grid = on_grid.astype(np.int64)
        grid.setflags(write=False)
        m = len(grid)
        if given not in (None, m):
            raise ConfigurationError(
                f"Expected n_server_points={m}, as server_data has. Got {given} instead."
            )
        return replace(self, server_points=grid, n_server_points=m)

    def _with_sums(self, clips_offsets: bool) -> Self:
        """Return the draft with sums of offsets where these are short, or of records."""
        of_records = self.contribution == "sums" and self._has_small_radius
        is_relative = of_records or clips_offsets
        return replace(self, sums="relative" if is_relative else "absolute")

    def _with_alpha(self, clips_offsets: bool) -> Self:
        """Return the draft with the widest radius where a wide one costs nothing."""
        # A clip from the server's points is as long as offsets are, not as the radius
        # allows.
        is_free = clips_offsets and self.sums == "relative"
        if is_free and not self._has_small_radius:
            return replace(self, alpha=WIDE_ALPHA)
        return self

    def _with_narrowing(self) -> Self:
        """Return the draft with a radius that narrows after a Lloyd round, if it helps."""
        is_relative = self.sums == "relative"
        if is_relative and self._can_narrow and self.budget.is_private:
            return replace(self, sums="narrowing")
        return self

    @property
    def _has_small_radius(self) -> bool:
        """Whether the radius of relative sums is well below the domain's."""
        longest = AUTO_RADIUS * self.domain.l2_bound(self.fraction_bits)
        return self._packing_radius <= longest

    @property
    def _can_narrow(self) -> bool:
        """Whether the radius of relative sums can narrow after the first Lloyd round."""
        has_rounds = self.n_lloyd_rounds >= 2
        has_radius = self._packing_radius**2 >= 2**self.fraction_bits
        return has_rounds and has_radius and not self.budget.protects_clients

    def suitable_rounds(self) -> int:
        """Return two rounds, or one where the noise of two would be too long.

        Of a draft that has two.
        """
        most = MOST_AUTO_LLOYD_ROUNDS
        if self.n_records is None:
            return most
        noise = self.noise_of(LIFT + 1)[SUMS] * math.sqrt(self.domain.n_features)
        size = self.n_records / self.n_clusters
        if self.contribution == "means":
            size = float(self.n_clients or size)  # if every client holds every cluster
        noise /= self.domain.l2_bound(self.fraction_bits) * size
        longest = AUTO_NOISE if self.clip is None else AUTO_NOISE_OF_CLIENTS
        return most if noise <= longest else 1

    def suitable_weight(self) -> float:
        """Return two standard deviations of the planned noise of a weight, in records."""
        noise = self.noise_of(WEIGHTS)[COUNTS] * 2.0**-self.fraction_bits
        return min(max(_ANY_WEIGHT, AUTO_WEIGHT * noise), _MOST_WEIGHT)


def default_shares(n_features: int, relative: bool) -> dict[str, float]:
    """Return the fraction of mu^2 of every release, of the Lloyd rounds for all together."""
    # The errors of a centroid from sums and from counts add up to d D^2 / mu_S^2 + r^2
    # / mu_C^2, r the typical norm of what is averaged, which is least for mu_S^2 :
    # mu_C^2 = sqrt(d) D : r. As elsewhere r is 2 rho D (Su et al.), and half of the
    # radius where sums are relative (FastLloyd, section 5.5). For Laplace noise the
    # scale takes the standard deviation's place.
    root = math.sqrt(n_features)
    shares = dict(_SHARES)
    for stage, norm in (
        ("lift", 2 * lloyd.RHO),
        ("lloyd", 0.5 if relative else 2 * lloyd.RHO),
    ):
        of_sums = root / (root + norm)
        shares[f"{stage}-sums"] = _STAGE_SHARE * of_sums
        shares[f"{stage}-counts"] = _STAGE_SHARE * (1 - of_sums)
    return shares


def laplace_releases(value: Any) -> tuple[str, ...]:
    """Return the releases with Laplace noise, sorted, of the option ``mechanisms``."""
    given = value
    if not isinstance(given, Mapping):
        given = dict.fromkeys(LAPLACE_RELEASES, value)
    for release, mechanism in given.items():
        if mechanism not in ("gaussian", "laplace"):
            raise ConfigurationError(
                f"Expected mechanisms 'gaussian' or 'laplace'. Got {mechanism!r} instead."
            )
        known = LAPLACE_RELEASES if mechanism == "laplace" else RELEASES
        if release not in known:
            raise ConfigurationError(
                f"Expected mechanisms of Laplace noise for releases in {list(LAPLACE_RELEASES)}. "
                f"Got {release!r} instead."
            )
    return tuple(sorted(name for name, each in given.items() if each == "laplace"))


def with_suggested_clips(algorithm: FedDPAlgorithm) -> Clips:
    """Return every release's clip: given, or from server points (docs/guarantees, Theorem 21)."""
    # A clip far above what clients add buys noise and nothing else, and one below it
    # shortens them. What they add is private, but the server has points: run without
    # noise on draws from these.
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
    )
    twin.require_feasible()
    records_each = (algorithm.n_records or 1) / (algorithm.n_clients or 1)
    rng = initialization.public_generator(algorithm.seed, 0)
    norms = answer_norms(twin, records_each, rng)
    clips = {}
    for number in range(1, twin.n_rounds + 1):
        sensitivities = record_sensitivities(twin, number)
        for release in twin.releases(number):
            words = twin.layout(number).words_of(release)
            used = sensitivities[words][sensitivities[words] > 0]
            found = float(f"{np.median(norms[release.name]):.2g}")
            most = algorithm.plain_clip(release.name)
            # So much that a client can change every word of the release by a step of
            # the grid.
            least = (1 + 1e-9) / float(used.min(initial=math.inf))
            clips[release.name] = max(min(found, most), LEAST_CLIP, least)
    return tuple(sorted((clips | dict(algorithm.clips)).items()))


def pseudo_clients(
    twin: FedDPAlgorithm, records_each: float, rng: np.random.Generator
) -> list[GridRecords]:
    """Return clients of 1 to `MOST_DRAWN` records, drawn from server points with replacement."""
    points = twin.initial_state().arrays["server"]
    size = min(max(1, math.ceil(records_each)), MOST_DRAWN)
    places = rng.integers(len(points), size=(N_PSEUDO_CLIENTS, size))
    return [
        GridRecords.from_grid(points[place], twin.fraction_bits) for place in places
    ]


def answer_norms(
    twin: FedDPAlgorithm, records_each: float, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return the norms (N_PSEUDO_CLIENTS,) of pseudo-clients' answers, in records, by release."""
    clients = pseudo_clients(twin, records_each, rng)
    growth = max(1.0, records_each / clients[0].shape[0])
    norms = {}
    state = twin.initial_state()
    for number in range(1, twin.n_rounds + 1):
        query = twin.query(state)
        answers = np.stack(
            [
                twin.layout(number).flatten(answer_of(twin, query, each))
                for each in clients
            ]
        )
        sensitivities = record_sensitivities(twin, number)
        for release in twin.releases(number):
            words = twin.layout(number).words_of(release)
            used = words[sensitivities[words] > 0]
            ratios = answers[:, used] / sensitivities[used]
            found = np.linalg.norm(ratios, 2 if release.norm == "l2" else 1, axis=1)
            norms[release.name] = found * (
                1.0 if twin.adds_means(release.name) else growth
            )
        state = twin.update(state, twin.layout(number).unflatten(answers.sum(axis=0)))
    return norms


def _kmeans(
    points: IntArray, weights: IntArray, n_clusters: int, rng: np.random.Generator
) -> GridCenters:
    source = initialization.public_words(int.from_bytes(rng.bytes(16), "little"))
    return grid_kmeans(
        points, weights, n_clusters, source, initialization.STARTS, _STEPS
    )
