"""A run whose first round finds the ranges of columns, before the rounds of an algorithm.

The algorithm was planned for the rest of the budget. Its rounds read records within the
ranges, with the half widths that were planned, so its sensitivities hold for every range
(docs/guarantees, Theorem 45).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import inner_results, judged, ranges
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
from flower_kmeans.algorithms.judged import Making
from flower_kmeans.algorithms.layout import Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.algorithms.weights import planned_total, total_name
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Box, Domain, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import Release

FIRST = 1  # the round that finds ranges
BOX = "box"
"""Array of a state and of a query: the range of each column, (d, 2), in steps."""
RANGES = "ranges"
"""Name of the release of the histograms."""
_SEEN = 5.0  # deviations of a group that is seldom cut off
# A group of more than one in so many records should not be cut off.
_LARGEST_GROUP = 50
_LARGEST_SHARE = 0.1  # the same as a fraction, for protected clients
_SHOWN = 10  # most columns that a sentence names


def planned(
    kind: type[Algorithm],
    n_clusters: Any,
    domain: Domain,
    budget: PrivacyBudget,
    *,
    quality: bool = False,
    **options: Any,
) -> Algorithm:
    """Return the algorithm of a user's options, with a round for ranges if the domain wants it.

    With ``quality`` a last round judges the result (`judged`). Other parameters and errors
    are those of ``kind.planned``.
    """

    def made_for(own_domain: Domain, own_budget: PrivacyBudget) -> Algorithm:
        return kind.planned(n_clusters, own_domain, own_budget, **options)

    found = made(kind, made_for, domain, budget, options, quality)
    if found.finds_ranges or found.judges:
        found.require_feasible()
    return found


def made(
    kind: type[Algorithm],
    make: Making,
    domain: Domain,
    budget: PrivacyBudget,
    options: Mapping[str, Any],
    quality: bool = False,
) -> Algorithm:
    """Return the algorithm that ``make`` makes, behind a round for ranges if the domain wants it.

    With ``quality`` a last round judges the result.

    Raises
    ------
    ConfigurationError
        If the domain has ``tighten``, and the algorithm cannot begin with ranges; or if it
        cannot end with a silhouette.
    """
    tighten = domain.tighten if isinstance(domain, Box) else None
    if quality:
        make = judged.judging(kind, make, options, 1.0 - (tighten or 0.0))
    if not isinstance(domain, Box) or domain.tighten is None:
        return make(domain, budget)
    if kind.kind != Algorithm.kind:
        raise _refusal(kind, domain, "its parties scale their columns before any round")
    follow = options.get("server_data") is not None and options.get("clip") is None
    if budget.protects_clients and follow:
        why = (
            "its clips follow from server_data within the bounds, before ranges are known: "
            "give clip"
        )
        raise _refusal(kind, domain, why)
    budget = with_delta(budget, options)
    outer = domain.read_within(domain.lower, domain.upper)
    with errors_with_epsilon(budget, domain.tighten, _option(domain.tighten)):
        inner = make(outer, rest_of(budget, domain.tighten))
    releases = releases_of(inner)
    if any(release.mechanism != "gaussian" for release in releases):
        raise _refusal(kind, domain, "histograms of columns need Gaussian noise alone")
    return Tightened(
        inner.n_clusters,
        domain,
        replace(budget, delta=inner.budget.delta),
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
    )


def _option(tighten: float) -> str:
    """Return the option that takes a fraction of the budget, in words."""
    return f"tighten={tighten:g} of mu^2"


def without_ranges(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm of the rounds after the ranges."""
    return algorithm.inner if isinstance(algorithm, Tightened) else algorithm


def innermost(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm whose parameters stand in a run document."""
    return judged.without_quality(without_ranges(algorithm))


def _refusal(kind: type[Algorithm], domain: Box, why: str) -> ConfigurationError:
    name = kind.__name__.removesuffix("Algorithm")
    return ConfigurationError(
        f"Expected a domain without tighten for {name}: {why}. Got tighten={domain.tighten}."
    )


@dataclass(frozen=True, kw_only=True)
class Tightened(Algorithm):
    """An algorithm behind a round that finds the ranges of columns.

    `made` makes it from a domain with ``tighten``. ``inner`` is the algorithm of the later
    rounds, over the outer bounds. A state has the arrays of ``inner`` and the ranges.

    Formal guarantee: one record adds 1 to each of three words of a column's histograms,
    so these change by sqrt(3 d') in l2 for d' columns. Later rounds have the sensitivities of
    ``inner`` for all ranges (docs/guarantees, Theorem 45).
    """

    finds_ranges: ClassVar[bool] = True

    inner: Algorithm

    def __post_init__(self) -> None:
        """Take the facts of the inner algorithm, and check the common parameters."""
        take_facts(self, self.inner)
        vars(self).update(judges=self.inner.judges)
        super().__post_init__()

    def require_feasible(self) -> None:
        """Require that the inner algorithm and the whole run are feasible."""
        with errors_with_epsilon(self.budget, self._share, _option(self._share)):
            self.inner.require_feasible()
        super().require_feasible()

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return FIRST + self.inner.n_rounds

    @property
    def fewest_clusters(self) -> int:
        """Fewest clusters of a result."""
        return self.inner.fewest_clusters

    # ------------------------------------------------------------------ the ranges

    @property
    def _box(self) -> Box:
        """The outer bounds, which no other domain has."""
        return cast(Box, self.domain)

    @property
    def _share(self) -> float:
        """The fraction of mu^2 for the ranges."""
        return cast(float, self._box.tighten)

    @cached_property
    def _columns(self) -> list[int]:
        """Indices of the columns with ranges."""
        found: list[int] = self._box.numbers.tolist()
        return found

    @cached_property
    def _unit(self) -> float:
        """Sensitivity of the histograms for one record, in grid units."""
        n_words = len(ranges.BINS) * len(self._columns)
        return math.sqrt(n_words) * float(2**self.fraction_bits)

    @cached_property
    def _deviation(self) -> float:
        """Planned standard deviation of the noise of a bin, in grid units.

        It has a closed form, so it is the same on every processor.
        """
        budget = self.budget
        if budget.epsilon is None or budget.delta is None:
            return 0.0
        mu = math.sqrt(self._share) * mu_of_budget(budget.epsilon, budget.delta)
        return self._unit * self._own_clip / mu

    @property
    def _own_clip(self) -> float:
        """Clip of the histograms, in records; 1 if clients are not protected."""
        if self.clip is None:
            return 1.0
        # A client's records may fill the outer bounds or one bin.
        return quarter_clip(self.n_records, self.n_clients)

    def _found(self, answer: Statistic) -> IntArray:
        """Return the ranges of a noisy sum of histograms, (d, 2), in steps."""
        box = ranges.outer_box(self.domain.n_features)
        n_columns = len(self._columns)
        words = {
            name: answer.blocks[name].reshape(n_columns, n_bins)
            for name, n_bins in ranges.BINS.items()
        }
        box[self._columns] = ranges.found_ranges(
            words[ranges.COARSE],
            words[ranges.MIDDLE],
            words[ranges.FINE],
            self._deviation * answer.noise_factor,
        )
        return box

    def _within(self, box: IntArray) -> Algorithm:
        """Return the inner algorithm over ranges.

        It is not kept: ranges that are found twice would take less time.
        """
        lower, upper = ranges.bounds_within(self._box, box)
        domain = self._box.read_within(lower, upper)
        return judged.over(self.inner, domain)

    def at(self, state: State) -> Algorithm:
        """Return the inner algorithm over the ranges of a state."""
        return self._within(state.arrays[BOX])

    def released_domain(self, state: State) -> Domain:
        """Return the box of the ranges of a state."""
        return self._box.within(*ranges.bounds_within(self._box, state.arrays[BOX]))

    # ------------------------------------------------------------------ the plan

    def layout(self, round_number: int) -> Layout:
        """Return the layout: histograms, then the layouts of the inner algorithm."""
        if round_number == FIRST:
            return Layout(ranges.blocks_of(len(self._columns), self.fraction_bits))
        return self.inner.layout(round_number - FIRST)

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases. The histograms have ``tighten`` of mu^2."""
        if round_number > FIRST:
            return self.inner.releases(round_number - FIRST)
        multiplier = multiplier_beside(self.inner, self._share)
        if multiplier is None:
            return ()
        blocks = tuple(ranges.BINS)
        return (Release(RANGES, "gaussian", "l2", multiplier, blocks),)

    def block_sensitivities(self, round_number: int) -> Mapping[str, float]:
        """Return the sensitivity of each block of a round for one record, in grid units."""
        if round_number == FIRST:
            return dict.fromkeys(ranges.BINS, self._unit)
        return self.inner.block_sensitivities(round_number - FIRST)

    @property
    def clipping(self) -> Clipping:
        """The clips of the inner algorithm, and that of the histograms."""
        inner = self.inner.clipping
        if self.clip is None:
            return inner
        own = (*inner.own, (RANGES, self._own_clip))
        return replace(
            inner,
            own=own,
            first_means=_later(inner.first_means),
            last_means=_later(inner.last_means),
        )

    def noise_of(self, round_number: int) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units."""
        if round_number == FIRST:
            return dict.fromkeys(ranges.BINS, self._deviation)
        return self.inner.noise_of(round_number - FIRST)

    # ------------------------------------------------------------------ the rounds

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the state before round 1, with the outer bounds as ranges."""
        box = ranges.outer_box(self.domain.n_features)
        return self._begun(0, box, rng)

    def _begun(
        self, round_number: int, box: IntArray, rng: np.random.Generator | None
    ) -> State:
        """Return a state with ranges, and the inner algorithm's first one within them."""
        first = self._within(box).initial_state(rng)
        return State(round_number, {**first.arrays, BOX: box})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the ranges of a round's query: those of the inner algorithm, and ``box``."""
        if round_number == FIRST:
            return {}
        low = ranges.outer_box(self.domain.n_features)
        high = low.copy()
        low[self._columns] = 0
        high[self._columns] = ranges.END
        box = Range(low.shape, low, high, apart=ranges.LEAST_STEPS)
        return {**self.inner.query_ranges(round_number - FIRST), BOX: box}

    def query(self, state: State) -> Query:
        """Return the query of the round after ``state``."""
        number = state.round + 1
        if number == FIRST:
            return Query(number)
        asked = self.at(state).query(_of_inner(state))
        return Query(number, {**asked.arrays, BOX: state.arrays[BOX]})

    def records_of(self, query: Query, rows: NDArray[Any]) -> GridRecords:
        """Return rows (m, d) on the grid of bins, or on that of the inner algorithm."""
        if query.round == FIRST:
            outer = Box(self._box.lower, self._box.upper)
            return GridRecords(rows, outer, ranges.READING_BITS)
        inner, asked = query.kept.once(_asked, self, query)
        return records_of(inner, asked, rows)

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the histograms of records, or the statistic of the inner algorithm.

        The records are those of `records_of`.
        """
        if query.round > FIRST:
            inner, asked = query.kept.once(_asked, self, query)
            return inner.statistic(asked, records)
        counts = ranges.histograms(records, self._columns)
        return Statistic(
            {name: each << self.fraction_bits for name, each in counts.items()}
        )

    def require_packages(self) -> None:
        """Require the optional packages of the inner algorithm."""
        self.inner.require_packages()

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits that exact sums of the round keep for any records."""
        if state.round >= FIRST:
            return self.at(state).meaning(_of_inner(state), answer)
        # A record counts once in the coarse histogram of every column.
        times = float(len(self._columns))
        return Meaning(counts=ranges.COARSE, times=times, are_clusters=False)

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round: ranges, or that of the inner algorithm."""
        if state.round < FIRST:
            return self._begun(FIRST, self._found(answer), rng)
        changed = self.at(state).update(_of_inner(state), answer, rng)
        arrays = {**changed.arrays, BOX: state.arrays[BOX]}
        return State(changed.round + FIRST, arrays)

    # ------------------------------------------------------------------ results

    def warnings(self, state: State) -> tuple[str, ...]:
        """Return the inner algorithm's warnings, and one about columns without a range."""
        if state.round < FIRST:
            return ()
        found = self.at(state).warnings(_of_inner(state))
        outer = ranges.stays_outer(state.arrays[BOX])
        names = [
            repr(factor.name)
            for factor in self._box.factors()
            if not factor.is_category and outer[factor.start]
        ]
        if not names:
            return found
        shown = ", ".join(names[:_SHOWN])
        if len(names) > _SHOWN:
            shown += f" and {len(names) - _SHOWN} more"
        stayed = (
            f"The outer bounds of {shown} stayed: no range of at most a fifth of them was found. "
            "The records may fill more of the bounds, which is good. Noise may hide few records. "
            "Or a sentinel such as 99999, or values clamped to an outer bound, keep the "
            "range wide: have them read as missing, or take narrower outer bounds."
        )
        return (*found, stayed)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences of the plan about the smallest groups that ranges keep."""
        if not self._deviation:
            return ()
        if self.clip is None:
            size = f"fewer than {self._smallest_group:,} {self._counted}"
        else:
            size = f"less than {self._smallest_share:.2g} of the records"
        return (f"Ranges of columns: groups of {size} that lie apart may be cut off.",)

    @property
    def cautions(self) -> tuple[str, ...]:
        """A warning if groups that ranges may cut off are whole clusters."""
        if not self._deviation:
            return ()
        total = cast(int, planned_total(self))
        smallest = self._smallest_group
        if self.clip is not None:
            if self._smallest_share <= _LARGEST_SHARE:
                return ()
            too_much = f"{self._smallest_share:.2g} of the records is more than {_LARGEST_SHARE:g}"
            more = "more clients, a larger epsilon"
        elif smallest * _LARGEST_GROUP > total:
            planned = f"{total_name(self.budget)}={total:,}"
            too_much = (
                f"{smallest:,} {self._counted} are more than a fiftieth of {planned}"
            )
            more = "a larger epsilon"
        else:
            return ()
        return (
            f"WARNING: {too_much}: ranges of columns may cut off whole clusters. Take {more} or a "
            "larger tighten, or bounds from public knowledge without tighten.",
        )

    @property
    def _counted(self) -> str:
        """The units that counts are of: records or persons."""
        return total_name(self.budget).removeprefix("n_")

    @property
    def _smallest_group(self) -> int:
        """Records or persons of a group that is seldom cut off, without clipping."""
        return math.ceil(_SEEN * self._deviation * 2.0**-self.fraction_bits)

    @property
    def _smallest_share(self) -> float:
        """Fraction of the records of a group that is seen, if clipping shortens no answer."""
        noise = self._deviation * 2.0**-self.fraction_bits
        return ranges.CLEAR * noise / cast(int, self.n_records)

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d)."""
        return self.at(state).centroids(_of_inner(state))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes, (k,); ``None`` before there are any."""
        return self.at(state).counts(_of_inner(state))

    def size_noise(self, all_answered: bool) -> float | None:
        """Return the planned noise of a size, in records: that of the inner algorithm."""
        return self.inner.size_noise(all_answered)

    @property
    def last_cost(self) -> CostCapability | None:
        """The cost at the result, within the ranges; ``None`` unless it is released."""
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
        """Return the inner algorithm over the ranges of a state."""
        return Inner(self.at(state), _of_inner(state), noise_factor)


def _asked(algorithm: Tightened, query: Query) -> tuple[Algorithm, Query]:
    """Return the inner algorithm over a query's ranges, and its own query."""
    arrays = dict(query.arrays)
    box = arrays.pop(BOX)
    return algorithm._within(box), Query(query.round - FIRST, arrays)


def _later(round_number: int | None) -> int | None:
    """Return the number of an inner algorithm's round in the whole run."""
    return None if round_number is None else round_number + FIRST


def _of_inner(state: State) -> State:
    """Return the state of the inner algorithm."""
    arrays = {name: array for name, array in state.arrays.items() if name != BOX}
    return State(max(state.round - FIRST, 0), arrays)


# ----------------------------------------------------- of algorithms with and without ranges


def records_of(algorithm: Algorithm, query: Query, rows: NDArray[Any]) -> GridRecords:
    """Return rows (m, d) in the user's units as records of a round."""
    if isinstance(algorithm, Tightened):
        return algorithm.records_of(query, rows)
    return GridRecords(rows, algorithm.domain, algorithm.fraction_bits)


def at(algorithm: Algorithm, state: State) -> Algorithm:
    """Return the algorithm over the ranges that a state has, if it has any."""
    if isinstance(algorithm, Tightened):
        return algorithm.at(state)
    return algorithm


def released_domain(algorithm: Algorithm, state: State) -> Domain:
    """Return the domain of a result: with the ranges of a state in place of outer bounds."""
    if isinstance(algorithm, Tightened):
        return algorithm.released_domain(state)
    return algorithm.domain


def notes(algorithm: Algorithm) -> tuple[str, ...]:
    """Return sentences of the plan about ranges, beside its table."""
    if isinstance(algorithm, Tightened):
        return algorithm.notes
    return ()


def cautions(algorithm: Algorithm) -> tuple[str, ...]:
    """Return warnings of the plan about ranges, which begin with WARNING."""
    if isinstance(algorithm, Tightened):
        return algorithm.cautions
    return ()
