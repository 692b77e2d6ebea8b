"""A run whose last round measures the silhouette of its result, after an algorithm's rounds.

The algorithm was planned for the rest of the budget. The last round asks for the numbers
and the silhouettes of the records by nearest centroid (docs/guarantees, Theorem 48).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from flower_kmeans.algorithms import inner_results
from flower_kmeans.algorithms.base import Algorithm, with_delta
from flower_kmeans.algorithms.budget_parts import (
    errors_with_epsilon,
    multiplier_beside,
    releases_of,
    rest_of,
    take_facts,
)
from flower_kmeans.algorithms.capabilities import (
    CostCapability,
    MixtureCapability,
    SizesCapability,
)
from flower_kmeans.algorithms.clips import Clipping, quarter_clip
from flower_kmeans.algorithms.inner_results import Inner
from flower_kmeans.algorithms.layout import COUNTS, Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.postprocess import centroids_in, scaled
from flower_kmeans.algorithms.numerics.silhouettes import silhouette_sums
from flower_kmeans.algorithms.released import (
    SilhouetteSums,
)
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.algorithms.weights import planned_total, total_name
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release

QUALITY = "quality"
"""Name of the release, and of its field in run documents."""
SILHOUETTES = "silhouettes"
"""Block of the last round, and array of the state after it."""
FRACTION = 0.05
"""Fraction of mu^2 of the whole run for the last round."""
MOST_DEVIATION = 0.05
"""Largest standard deviation of a silhouette by noise whose interval means anything."""

# arrays of a query
_CENTROIDS = "centroids"
_CHOSEN = "chosen"
# further arrays of a state
_NUMBERS = "quality_counts"
_FACTOR = "noise_factor"
_OWN = (_NUMBERS, SILHOUETTES, _FACTOR)

_OPTION = f"quality=True, which has {FRACTION:g} of mu^2"
_ONE_CLUSTER = "The run chose one cluster, which has no silhouette."
_LOST = "The sum of the last round was lost, so the result has no silhouette."

Making = Callable[[Domain, PrivacyBudget], Algorithm]
"""Makes an algorithm for a domain and a budget."""


def judging(
    kind: type[Algorithm], make: Making, options: Mapping[str, Any], left: float = 1.0
) -> Making:
    """Return the making of an algorithm with a last round that judges its result.

    ``left`` is the fraction of mu^2 of the whole run that the making's budget has.

    Raises
    ------
    ConfigurationError
        If the algorithm cannot end with a silhouette.
    """
    if kind.kind != Algorithm.kind:
        raise _refusal(kind, "no party of it can compute a distance in all columns")
    if options.get("postprocess") == "none":
        raise _refusal(kind, "with postprocess='none' centroids leave the domain")
    # The algorithm's own rounds must keep some of the budget.
    if left <= 2 * FRACTION:
        raise ConfigurationError(
            f"Expected tighten below {1 - 2 * FRACTION:g} with quality=True, which has "
            f"{FRACTION:g} of mu^2. Got tighten={1 - left:g}."
        )
    fraction = FRACTION / left

    def made(domain: Domain, budget: PrivacyBudget) -> Algorithm:
        whole = with_delta(budget, options)
        with errors_with_epsilon(whole, fraction, _OPTION):
            inner = make(domain, rest_of(whole, fraction))
        return _behind(kind, inner, replace(whole, delta=inner.budget.delta), fraction)

    return made


def is_wanted(config: Mapping[str, Any]) -> bool:
    """Return whether a run document wants the last round.

    Raises
    ------
    ConfigurationError
        If it says so in another way than by True.
    """
    wanted = config.get(QUALITY)
    if QUALITY in config and wanted is not True:
        raise ConfigurationError(
            f"Expected {QUALITY}=True in a run document, or no such field. Got {wanted!r}."
        )
    return wanted is True


def _behind(
    kind: type[Algorithm], inner: Algorithm, budget: PrivacyBudget, fraction: float
) -> "Judged":
    """Return an algorithm with a last round behind those of another."""
    if inner.n_clusters < 2:
        raise ConfigurationError(
            "Expected n_clusters of at least 2 with quality=True: a silhouette compares the "
            f"distances to two centroids. Got n_clusters={inner.n_clusters}."
        )
    if len({release.mechanism for release in releases_of(inner)}) > 1:
        raise _refusal(
            kind, "its releases have Gaussian and Laplace noise: take one kind"
        )
    return Judged(
        inner.n_clusters,
        inner.domain,
        budget,
        n_records=inner.n_records,
        n_clients=inner.n_clients,
        n_persons=inner.n_persons,
        max_clients_per_person=inner.max_clients_per_person,
        weighted=inner.weighted,
        full_weight=inner.full_weight,
        clip=inner.clip,
        seed=inner.seed,
        fraction_bits=inner.fraction_bits,
        inner=inner,
        fraction=fraction,
    )


def _refusal(kind: type[Algorithm], why: str) -> ConfigurationError:
    name = kind.__name__.removesuffix("Algorithm")
    return ConfigurationError(
        f"Expected quality=False for {name}: {why}. Got quality=True."
    )


@dataclass(frozen=True, kw_only=True)
class Judged(Algorithm):
    """An algorithm before a round that measures the silhouette of its result.

    `judging` makes it. ``inner`` is the algorithm of the earlier rounds, and ``fraction``
    the fraction of mu^2 of the last one. A state has the arrays of ``inner`` and, after
    the last round, those of the silhouette.

    A record counts in the cluster of its nearest centroid, also where an algorithm bounds
    sizes, with a silhouette in [0, 1].

    Formal guarantee: one record adds 1 to the count and at most 1 to the silhouettes of
    one cluster. So both change by at most sqrt(2) together in l2, and by 2 in l1, for any
    query (docs/guarantees, Theorem 48).
    """

    judges: ClassVar[bool] = True

    inner: Algorithm
    fraction: float

    def __post_init__(self) -> None:
        """Take the facts of the inner algorithm, and check the common parameters."""
        take_facts(self, self.inner)
        possible = (*self.inner.possible_warnings, _ONE_CLUSTER, _LOST)
        vars(self).update(possible_warnings=possible)
        super().__post_init__()

    def require_feasible(self) -> None:
        """Require that the inner algorithm and the whole run are feasible."""
        with errors_with_epsilon(self.budget, self.fraction, _OPTION):
            self.inner.require_feasible()
        super().require_feasible()

    def require_packages(self) -> None:
        """Require the optional packages that a client's answer needs."""
        self.inner.require_packages()

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return self.inner.n_rounds + 1

    @property
    def fewest_clusters(self) -> int:
        """Fewest clusters of a result."""
        return self.inner.fewest_clusters

    # ------------------------------------------------------------------ the plan

    @property
    def _is_laplace(self) -> bool:
        """Whether all noise of the run is Laplace noise."""
        mechanisms = {release.mechanism for release in releases_of(self.inner)}
        return mechanisms == {"laplace"}

    def layout(self, round_number: int) -> Layout:
        """Return the layout: those of the inner algorithm, then counts and silhouettes, (k,)."""
        if round_number < self.n_rounds:
            return self.inner.layout(round_number)
        shape = (self.n_clusters,)
        q = self.fraction_bits
        return Layout((Block(COUNTS, shape, q), Block(SILHOUETTES, shape, q)))

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases. The last round has ``fraction`` of mu^2."""
        if round_number < self.n_rounds:
            return self.inner.releases(round_number)
        multiplier = multiplier_beside(self.inner, self.fraction)
        if multiplier is None:
            return ()
        blocks = COUNTS, SILHOUETTES
        if self._is_laplace:
            return (Release(QUALITY, "laplace", "l1", multiplier, blocks),)
        return (Release(QUALITY, "gaussian", "l2", multiplier, blocks),)

    def block_sensitivities(self, round_number: int) -> Mapping[str, float]:
        """Return the sensitivity of each block of a round for one record, in grid units."""
        if round_number < self.n_rounds:
            return self.inner.block_sensitivities(round_number)
        # The float64 of sqrt(2) is above the real number.
        both = 2.0 if self._is_laplace else math.sqrt(2.0)
        unit = both * 2.0**self.fraction_bits
        return {COUNTS: unit, SILHOUETTES: unit}

    @property
    def clipping(self) -> Clipping:
        """The clips of the inner algorithm, and that of the last round."""
        inner = self.inner.clipping
        if self.clip is None:
            return inner
        own = (*inner.own, (QUALITY, self._own_clip))
        last_means = None if inner.first_means is None else self.inner.n_rounds
        return replace(inner, own=own, last_means=last_means)

    @property
    def _own_clip(self) -> float:
        """Clip of the last round, in records; 1 if clients are not protected."""
        if self.clip is None:
            return 1.0
        # One factor shortens counts and silhouettes, so the silhouette of a client stays.
        return quarter_clip(self.n_records, self.n_clients)

    # ------------------------------------------------------------------ the rounds

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the initial state of the inner algorithm."""
        return self.inner.initial_state(rng)

    @property
    def _chooses(self) -> bool:
        """Whether the run chooses the number of clusters."""
        return self.fewest_clusters < self.n_clusters

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the ranges of a round's query.

        In the last round they are ``centroids``, (k, d), in grid units, and where the run
        chooses the number of clusters, how many of them were ``chosen``, (1,).
        """
        if round_number < self.n_rounds:
            return self.inner.query_ranges(round_number)
        limit = self.domain.grid_half_widths(self.fraction_bits)
        shape = self.n_clusters, self.domain.n_features
        ranges = {_CENTROIDS: Range(shape, -limit, limit)}
        if self._chooses:
            ranges[_CHOSEN] = Range((1,), self.fewest_clusters, self.n_clusters)
        return ranges

    def query(self, state: State) -> Query:
        """Return the query of the round after a state; the last one is about its centroids."""
        if state.round < self.inner.n_rounds:
            return self.inner.query(_of_inner(self, state))
        # PE-means has no other centroids than its selected centres.
        name = _CENTROIDS if _CENTROIDS in state.arrays else "centers"
        points = centroids_in(state.arrays[name], self.domain, self.fraction_bits)
        arrays = {_CENTROIDS: points.astype(np.int64)}
        if self._chooses:
            arrays[_CHOSEN] = state.arrays[_CHOSEN]
        limits = self.query_ranges(self.n_rounds)
        clipped = {
            name: np.asarray(np.clip(array, limits[name].low, limits[name].high))
            for name, array in arrays.items()
        }
        return Query(self.n_rounds, clipped)

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the numbers and the silhouettes of the records by nearest centroid."""
        if query.round < self.n_rounds:
            return self.inner.statistic(query, records)
        are_there = np.ones(self.n_clusters, dtype=bool)
        if self._chooses:
            are_there = np.arange(self.n_clusters) < query.arrays[_CHOSEN][0]
        counts, sums = silhouette_sums(records, query.arrays[_CENTROIDS], are_there)
        return Statistic({COUNTS: counts << self.fraction_bits, SILHOUETTES: sums})

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits that exact sums of the round keep for any records."""
        if state.round < self.inner.n_rounds:
            return self.inner.meaning(_of_inner(self, state), answer)
        # Sizes of the result are those of the rounds before.
        return Meaning(counts=COUNTS, shares=(SILHOUETTES,), are_clusters=False)

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round: that of the inner algorithm, or its silhouette too."""
        number = state.round + 1
        if number == self.n_rounds:
            own = {
                _NUMBERS: answer.blocks[COUNTS].copy(),
                SILHOUETTES: answer.blocks[SILHOUETTES].copy(),
            }
            return State(number, {**state.arrays, **own})
        changed = self.inner.update(_of_inner(self, state), answer, rng)
        if number < self.inner.n_rounds:
            return changed
        # Estimates of the inner algorithm need the noise of its own last sum. The bits of
        # the number stand in an array of integers, as all arrays of replayable states.
        factor = np.array([answer.noise_factor]).view(np.int64)
        return State(number, {**changed.arrays, _FACTOR: factor})

    # ------------------------------------------------------------------ results

    def warnings(self, state: State) -> tuple[str, ...]:
        """Return the inner algorithm's warnings, and one if there is no silhouette."""
        found = self.inner.warnings(_of_inner(self, state))
        if _n_found(self, state) == 1:
            return (*found, _ONE_CLUSTER)
        if state.round == self.n_rounds and SILHOUETTES not in state.arrays:
            return (*found, _LOST)
        return found

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d)."""
        return self.inner.centroids(_of_inner(self, state))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes of the inner algorithm, (k,); ``None`` before any."""
        return self.inner.counts(_of_inner(self, state))

    def size_noise(self, all_answered: bool) -> float | None:
        """Return the planned noise of a size, in records: that of the inner algorithm."""
        return self.inner.size_noise(all_answered)

    @property
    def last_cost(self) -> CostCapability | None:
        """The cost at the result; ``None`` unless it is released."""
        return inner_results.cost_of(self.inner, self._view)

    @property
    def sizes(self) -> SizesCapability | None:
        """Cluster sizes with public bounds; ``None`` without bounds."""
        return inner_results.sizes_of(self.inner, self._view)

    @property
    def mixture(self) -> MixtureCapability | None:
        """The mixture that the run learns; ``None`` if it learns none."""
        return inner_results.mixture_of(self.inner, self._view)

    def _view(self, state: State, noise_factor: float) -> Inner:
        """Return the inner algorithm, with the noise factor of its own last sum."""
        factor = _factor_before(state, noise_factor)
        return Inner(self.inner, _of_inner(self, state), factor)


def _of_inner(algorithm: Judged, state: State) -> State:
    """Return the state of the inner algorithm."""
    arrays = {name: each for name, each in state.arrays.items() if name not in _OWN}
    return State(min(state.round, algorithm.inner.n_rounds), arrays)


def _factor_before(state: State, noise_factor: float) -> float:
    """Return the noise factor of the inner algorithm's last sum, if there was one."""
    if _FACTOR not in state.arrays:
        return noise_factor
    return float(state.arrays[_FACTOR].view(np.float64)[0])


def _n_found(algorithm: Judged, state: State) -> int:
    """Return the number of clusters of the result."""
    if not algorithm._chooses or _CHOSEN not in state.arrays:
        return algorithm.n_clusters
    return int(state.arrays[_CHOSEN][0])


# ------------------------------------------- of algorithms with and without the last round


def without_quality(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm of the rounds before the last one."""
    return algorithm.inner if isinstance(algorithm, Judged) else algorithm


def over(algorithm: Algorithm, domain: Domain) -> Algorithm:
    """Return the same algorithm over another domain."""
    if not isinstance(algorithm, Judged):
        return replace(algorithm, domain=domain)
    return replace(
        algorithm, domain=domain, inner=replace(algorithm.inner, domain=domain)
    )


def result_round(algorithm: Algorithm) -> int:
    """Return the round after which a run has its result."""
    return algorithm.n_rounds - int(algorithm.judges)


def sums_of(
    algorithm: Algorithm, state: State, noise_factor: float = 1.0
) -> SilhouetteSums | None:
    """Return the released counts and silhouettes of a result.

    ``None`` before the last round, without it, and with one cluster alone.
    """
    if not algorithm.judges or SILHOUETTES not in state.arrays:
        return None
    counts = algorithm.counts(state)
    k = 0 if counts is None else len(counts)
    if k < 2:
        return None
    q = algorithm.fraction_bits
    numbers = cast(IntArray, state.arrays[_NUMBERS])[:k]
    sums = cast(IntArray, state.arrays[SILHOUETTES])[:k]
    return SilhouetteSums(
        counts=tuple(scaled(numbers, q).tolist()),
        sums=tuple(scaled(sums, q).tolist()),
        noise=noise_of(algorithm) * noise_factor,
        is_gaussian=is_gaussian(algorithm),
    )


def noise_of(algorithm: Algorithm) -> float:
    """Return the planned standard deviation of the last round's counts, in records."""
    noise = algorithm.noise_of(algorithm.n_rounds)
    return noise[COUNTS] * 2.0**-algorithm.fraction_bits


def is_gaussian(algorithm: Algorithm) -> bool:
    """Return whether the last round's noise is Gaussian, or there is none."""
    releases = algorithm.releases(algorithm.n_rounds)
    return all(release.mechanism == "gaussian" for release in releases)


def planned_deviation(algorithm: Algorithm, noise_factor: float = 1.0) -> float:
    """Return the largest standard deviation of the silhouette's noise that is planned.

    It is for the silhouette 1, and with protected clients for clients of equal size.
    """
    noise = noise_of(algorithm) * noise_factor
    total = float(planned_total(algorithm) or 1)
    # A person at one of g clients counts as 1 / g.
    total /= algorithm.max_clients_per_person
    if algorithm.clip is not None:
        # A client whose records are all in one cluster counts as a fourth of them.
        total *= min(1.0, _clipped_part(algorithm))
    # of the difference of two sums over k clusters
    return math.sqrt(2.0 * algorithm.n_clusters) * noise / total


def _clipped_part(algorithm: Algorithm) -> float:
    """Return the part of an average client's records that counts at least."""
    (release,) = algorithm.releases(algorithm.n_rounds)
    each = cast(int, algorithm.n_records) / cast(int, algorithm.n_clients)
    return algorithm.clipping.of(release) / each


def notes(algorithm: Algorithm, noise_factor: float = 1.0) -> tuple[str, ...]:
    """Return a sentence of the plan on how well the silhouette will be known, if at all."""
    if not algorithm.judges or not algorithm.budget.is_private:
        return ()
    deviation = planned_deviation(algorithm, noise_factor)
    if deviation > MOST_DEVIATION:
        return ()
    return (
        f"Quality: noise will give the silhouette a standard deviation of at most "
        f"{deviation:.2g}, so it will be known to within about {2 * deviation:.2g}.",
    )


def cautions(algorithm: Algorithm, noise_factor: float = 1.0) -> tuple[str, ...]:
    """Return a warning of the plan if the silhouette's interval will mean nothing."""
    if not algorithm.judges or not algorithm.budget.is_private:
        return ()
    deviation = planned_deviation(algorithm, noise_factor)
    if deviation <= MOST_DEVIATION:
        return ()
    more = "more clients"
    if algorithm.clip is None:
        more = f"more {total_name(algorithm.budget).removeprefix('n_')}"
    return (
        f"WARNING: quality=True promises nothing here: noise may give the silhouette a standard "
        f"deviation of {deviation:.2g}, more than {MOST_DEVIATION:g}, so its interval may be too "
        f"wide to mean anything. Take {more}, a larger epsilon or fewer clusters, or leave "
        "quality out.",
    )
