"""FedDP-KMeans: an initialisation from a server's own points, then private Lloyd rounds.

Three rounds find initial centroids (FedDP-KMeans, Algorithm 1). The second moments of the records
give a projection to a few directions. Every record votes for the nearest of the server's projected
points, and weighted k-means on these gives projected centres. Sums and counts of the records by
nearest projected centre lift the centres back. Lloyd rounds follow (Algorithm 2).

The server computes every query from the sum before: it sees the sums, and sends the queries.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import (
    UNUSABLE,
    IntArray,
    Query,
    Range,
    State,
    Statistic,
    register,
)
from flower_kmeans.algorithms.cost import COST, squared_distances
from flower_kmeans.algorithms.feddp_plan import FACTOR, FINENESS, MOST_FACTOR
from flower_kmeans.algorithms.feddp_releases import (
    LIFT,
    MOMENTS,
    N_INITIAL,
    PROJECTION,
    SPREAD,
    WEIGHTS,
)
from flower_kmeans.algorithms.feddp_results import (
    ALL_LIGHT,
    EQUAL,
    FEW,
    KEPT,
    NO_EIGEN,
    NO_SIGNAL,
    NOT_LIFTED,
    NOTES,
    FedDPResults,
)
from flower_kmeans.algorithms.lloyd import COUNTS, MIN_COUNT, SUMS
from flower_kmeans.algorithms.postprocess import clip_rows, into_domain, quotients, to_grid
from flower_kmeans.algorithms.projection import (
    ProjectedRecords,
    leading_directions,
    lifted_sums,
    second_moments,
)
from flower_kmeans.algorithms.server_points import weighted_centers
from flower_kmeans.assignment import cluster_sums
from flower_kmeans.domain import Ball, GridRecords
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.initialization import public_generator

NARROW_RADIUS = 2.0
"""Of the radius after the first Lloyd round, in root mean square distances. Measured."""


@register
@dataclass(frozen=True, init=False)
class FedDPAlgorithm(FedDPResults):
    """Private k-means that starts from a server's points.

    Source: *Differentially Private Federated k-Means Clustering with Server-Side Data*, ICML 2025.

    Formal guarantee: one record changes the second moments by D^2 at most (with off-diagonal
    entries counted sqrt 2 times), the weights and all counts by one, absolute sums by D and
    relative ones by the radius; the plan composes all releases (docs/guarantees.md,
    "FedDP-KMeans").

    Parameters
    ----------
    n_clusters : int
        k, at most 10,000.
    domain : Box or Ball
        Public bounds and scaling. D is the largest norm around its centre: a ball that fits the
        data has a smaller one than their box.
    budget : PrivacyBudget
        For the whole run.
    server_data : array-like of shape (m, d)
        Points that the server holds, in the user's units, at least k of them different; clipped to
        the domain. Only the server has them; a client makes the algorithm without. Clients see
        their projections to ``min(n_clusters, d)`` directions: with d directions, the points.
    n_server_points : int, optional
        m, where there is no ``server_data``.
    n_records : int, optional
        Public planning figure for the total number of records. Required with a private budget.
    n_clients : int, optional
        Public planning figure for the number of clients. Required with a private budget of
        ``unit="client"``, and refused otherwise.
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
    seed : int
        Public randomness, in [0, 2**53), of the server's k-means where ``update`` is given none.
    fraction_bits : int
        q; the grid's step is ``2**-q`` of the scaled domain.
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

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, parameters contradict each other, or sums could overflow.
    """

    name: ClassVar[str] = "feddp"
    remarks: ClassVar[tuple[str, ...]] = NOTES

    # ------------------------------------------------------------------ queries

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the server's points on the grid; needs ``server_data``. ``rng`` is not used."""
        if self.server_points is None:
            raise ConfigurationError(
                "server_data is required where the server's part is computed. Got None."
            )
        flags = np.zeros(len(NOTES), dtype=bool)
        return State(0, {"server": self.server_points, "flags": flags})

    def check_query(self, query: Query) -> None:
        """Require the arrays of the round, with their shapes, as int64 and within their ranges.

        Within these ranges every distance is exact and every unit holds, whatever a server sent.
        """
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

    # ------------------------------------------------------------------ answers

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
        centroids, factor = arrays["centroids"], self.factor_of(arrays)
        radius = self._radius_at(factor)
        radius2 = None if radius is None else radius**2
        sums, counts = cluster_sums(records, centroids, radius2)
        references = np.zeros_like(centroids[:1])  # the origin, for records
        if radius is not None:
            references, sums = centroids, factor * (sums - counts[:, None] * centroids)
        more = {}
        if self._has_spread(number) or self._has_cost(number):
            total = squared_distances(records, references, self.largest_cost, radius2)
            if self._has_cost(number):
                more[COST] = np.array([factor**2 * total], dtype=np.int64)
            else:
                more[SPREAD] = np.array([total], dtype=np.int64)
        return self._contribution(sums, counts, more)

    def _radius_at(self, factor: int) -> int | None:
        """Return the radius of a Lloyd round in grid units: no record adds more than a unit."""
        return None if self.radius is None else self.fineness * self.radius // factor

    def _contribution(
        self, sums: IntArray, counts: IntArray, more: Mapping[str, IntArray] | None = None
    ) -> Statistic:
        """Return sums and counts, or a client's means (toward zero) and which clusters it holds."""
        if self.contribution == "means":
            sizes = np.abs(sums) // np.maximum(counts, 1)[:, None]
            sums, counts = np.sign(sums) * sizes, np.minimum(counts, 1)
        return Statistic({SUMS: sums, COUNTS: counts << self.fraction_bits, **(more or {})})

    # ------------------------------------------------------------------ updates

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum; without ``rng``, from the seed."""
        number, before = state.round + 1, state.arrays
        rng = public_generator(self.seed, number) if rng is None else rng
        step = {PROJECTION: self._project, WEIGHTS: self._weigh, LIFT: self._lift}
        flags = before["flags"].copy()
        arrays = step.get(number, self._move)(number, before, answer, flags, rng)
        return State(number, {**before, **arrays, "flags": flags})

    def _project(
        self,
        number: int,
        before: Mapping[str, NDArray[Any]],
        answer: Statistic,
        flags: NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        d, r = self.domain.n_features, self.projection.n_directions
        directions, values = leading_directions(answer.blocks[MOMENTS], d, r)
        # Noise alone has a largest eigenvalue of about sqrt(2 d) standard deviations of its
        # diagonal: entries above it have 1 / sqrt 2 of that (Wigner's semicircle).
        edge = math.sqrt(2 * d) * self.noise_of(number)[MOMENTS]
        flags[NO_EIGEN] = not np.isfinite(values).all()
        flags[NO_SIGNAL] = not (values > max(edge, 1e-9 * values[0])).all()
        matrix = self.projection.matrix(directions)
        points = self.projection.project(
            before["server"].astype(np.float64), matrix.astype(np.float64)
        )
        return {"projection": matrix, "points": points.astype(np.int64)}

    def _weigh(
        self,
        number: int,
        before: Mapping[str, NDArray[Any]],
        answer: Statistic,
        flags: NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        weights = answer.blocks[COUNTS]
        found = weighted_centers(before["points"], weights, self.n_clusters, self.least_weight, rng)
        flags[ALL_LIGHT], flags[FEW], flags[EQUAL] = found.all_light, found.few, found.equal
        return {"weights": weights.copy(), "centers": found.points}

    def _lift(
        self,
        number: int,
        before: Mapping[str, NDArray[Any]],
        answer: Statistic,
        flags: NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        counts = answer.blocks[COUNTS]
        means, usable = quotients(
            answer.blocks[SUMS], counts, self.fraction_bits, self._least_count(number)
        )
        flags[NOT_LIFTED] = not usable.all()
        # Without enough records a centre is what the projection keeps of it.
        projected = self.projection.lift(before["centers"], before["projection"])
        centroids = to_grid(np.where(usable[:, None], means, projected))
        return {"centroids": self._into_domain(centroids), "counts": counts.copy()}

    def _move(
        self,
        number: int,
        before: Mapping[str, NDArray[Any]],
        answer: Statistic,
        flags: NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        counts, old = answer.blocks[COUNTS], before["centroids"]
        factor = self.factor_of(before)
        means, usable = quotients(
            answer.blocks[SUMS], counts, self.fraction_bits, self._least_count(number, factor)
        )
        means = means / factor
        flags[KEPT] |= not usable.all()
        radius = self._radius_at(factor)
        if radius is None:
            wanted = to_grid(means)
        else:
            wanted = old + to_grid(clip_rows(means, float(radius)))
        centroids = np.where(usable[:, None], self._into_domain(wanted), old)
        arrays: dict[str, NDArray[Any]] = {"centroids": centroids, "counts": counts.copy()}
        if self._has_spread(number):
            arrays[FACTOR] = self._narrowed(number, answer)
        if self._has_cost(number):
            arrays["cost"] = self._cost(number, before, centroids, means, usable, answer)
        return arrays

    def _narrowed(self, number: int, answer: Statistic) -> IntArray:
        """Return the factor, (1,), of a radius of twice the records' root mean square distance.

        The noisy sum of squared distances is taken to be larger by its noise: with too wide a
        radius there is more noise, with too narrow a one records are missed.
        """
        total = float(answer.blocks[SPREAD][0]) + self.noise_of(number)[SPREAD]
        n_records = max(MIN_COUNT, float(answer.blocks[COUNTS].sum()) * 2.0**-self.fraction_bits)
        mean_square = max(0.0, total) * 2.0**self.fraction_bits / n_records
        wanted = max(1.0, NARROW_RADIUS * math.sqrt(mean_square))
        whole = self.fineness * float(self._packing_radius)
        return np.array([min(max(FINENESS, math.floor(whole / wanted)), MOST_FACTOR)])

    def _least_count(self, number: int, factor: int = 1) -> float:
        """Return the fewest (noisy) records of a cluster whose sum is divided by them.

        With fewer, the noise of a mean would be longer than the domain's radius, or the count
        nothing but noise. ``factor`` is that of the sums.
        """
        noise = self.noise_of(number)
        root = math.sqrt(self.domain.n_features) / factor
        longest = noise[SUMS] * root / self.domain.l2_bound(self.fraction_bits)
        return max(MIN_COUNT, longest, noise[COUNTS] * 2.0**-self.fraction_bits)

    def _into_domain(self, points: IntArray) -> IntArray:
        """Move centroids that lie outside onto the domain's boundary."""
        return into_domain(points, self.domain, self.fraction_bits)
