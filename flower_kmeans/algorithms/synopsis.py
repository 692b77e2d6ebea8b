"""SynopsisKMeans: a private synopsis of the records is clustered, and the result refined.

Round 1 releases second moments, rounds of the synopsis counts, residuals and slacks by
cell; each makes a mixture of Gaussians, and that the next cells. Weighted k-means on
the last mixture gives centroids, which Lloyd rounds refine. With bounds on sizes, noisy
counts correct the masses of its points (docs/guarantees,
Theorems 22 and 24).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np

from flower_kmeans import parameters
from flower_kmeans.algorithms import base
from flower_kmeans.algorithms.clips import Clipping, Clips, require_clips
from flower_kmeans.algorithms.feasibility import MAX_WORDS, with_capacity
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.assignment import check_exactness
from flower_kmeans.algorithms.numerics.eigenspace import MOST_ROTATED
from flower_kmeans.algorithms.numerics.projection import MOMENTS, Projection
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.algorithms.synopsis_cells import CellsStage
from flower_kmeans.algorithms.synopsis_constants import (
    ANY_CLUSTERS,
    BLIND_DIRECTIONS,
    CELL_COUNT,
    CLEAR_MOMENTS,
    COUNT_DIRECTIONS,
    COUNT_POWER,
    FEW_COLUMNS,
    FEWEST_CELLS,
    FEWEST_GROUPS,
    FIRST,
    GROWTH,
    LEAST_SYNOPSIS,
    LEAST_WIDE_FRACTION,
    MOMENT_FRACTION,
    MORE_REFINEMENTS,
    MORE_SIGNAL,
    MOST_BOUNDED,
    MOST_CELLS,
    MOST_CHOSEN,
    MOST_COLUMNS,
    MOST_DIRECTIONS,
    MOST_GROUPS,
    MOST_SYNOPSIS,
    MOST_WIDE_FRACTION,
    REFINEMENT_COUNTS,
    REFINEMENTS,
    SECOND_ROUND,
    SIZING,
    SIZING_ROUNDS,
    THIRD_ROUND,
    WIDE_EDGE,
)
from flower_kmeans.algorithms.synopsis_moments import MomentsStage, note_on_groups
from flower_kmeans.algorithms.synopsis_refinement import RefinementStage
from flower_kmeans.algorithms.synopsis_results import SynopsisMixture, SynopsisSizes
from flower_kmeans.algorithms.synopsis_sizes import PowerCells, SizingStage
from flower_kmeans.algorithms.synopsis_start import Start
from flower_kmeans.algorithms.synopsis_state import (
    NORMS,
    SLACKS,
    WARNINGS,
    NoisySum,
    Setting,
    Stage,
    are_all_live,
)
from flower_kmeans.algorithms.weights import given_total, planned_total, weighs_records
from flower_kmeans.arrays import FloatArray
from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.parameters import (
    FLAG,
    LARGEST,
    ParameterKind,
    is_auto,
    left_out,
    whole,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import Release

_MOST_SYNOPSES, _MOST_REFINEMENTS, _MOST_SIZINGS = 8, 32, 32  # in a run document
_SIGNAL_TOLERANCE = 1e-6  # calibration differs between processors by far less


# ------------------------------------------------------------------------- the schedule


def _numbers_of_cells(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigurationTypeError(
            f"Expected {name} as a list. Got {type(value).__name__} instead."
        )
    if not 1 <= len(value) <= _MOST_SYNOPSES:
        raise ConfigurationError(
            f"Expected between 1 and {_MOST_SYNOPSES} numbers of cells. Got {len(value)}."
        )
    return tuple(parameters.integer(name, m, 1, MAX_WORDS) for m in value)


def _read_cells(config: Any) -> Any:
    return tuple(config) if isinstance(config, list) else config


# A signal is compared with the plan's. An infinite one stands in no document.
_SIGNAL = ParameterKind(lambda _, value: value, real_to_text, real_from_text)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The queries of a run, from public figures, within limits that a client may follow.

    It stands in the run document, so that nothing of it is computed twice: clients read
    the same numbers, and calibration may give others on another processor.
    """

    name: ClassVar[str] = "synopsis, schedule"

    signal: Annotated[float, left_out(_SIGNAL)] = math.inf  # mu N / C
    moments: Annotated[bool, FLAG]  # or round 1 releases the sum of squared norms alone
    n_directions: Annotated[int, whole(1, MOST_DIRECTIONS)]  # p, of the synopsis
    # M, of each synopsis round
    cells: Annotated[
        tuple[int, ...], ParameterKind(_numbers_of_cells, list, _read_cells)
    ]
    n_refinements: Annotated[int, whole(0, _MOST_REFINEMENTS)]  # 0: the synopsis is all
    # Of a synopsis round's mu^2; residuals and slacks each have the rest.
    count_share: Annotated[float, parameters.POSITIVE]
    n_sizings: Annotated[int, left_out(whole(0, _MOST_SIZINGS))] = 0
    # m, of groups of columns, whose products with columns are released; 0: all moments
    n_groups: Annotated[int, left_out(whole(0, MOST_GROUPS))] = 0

    def __post_init__(self) -> None:
        """Check every field, those of a document too."""
        parameters.require_parameters(self)
        if self.count_share >= 1:
            raise ConfigurationError(
                f"Expected count_share in (0, 1). Got {self.count_share!r} instead."
            )

    @classmethod
    def of(
        cls,
        signal: float,
        n_clusters: int,
        n_features: int,
        n_sizings: int = 0,
        n_refinements: int | None = None,
        most_words: int | None = None,
    ) -> Self:
        """Return the schedule for a signal ``mu N / C``, C the clip; infinite without noise.

        The number of refinements follows from the signal unless it is given. Second
        moments have at most ``most_words`` words, if that is given. See
        docs/guarantees, Theorem 22, "The schedule is public" and "Groups of columns".
        """
        d = n_features
        strength = signal * math.sqrt(_fraction_without_sizes(n_sizings))
        of_moments = _moment_fraction(strength, d)
        moments = d <= MOST_COLUMNS and _has_clear_moments(strength, of_moments, d)
        n_groups = 0
        if moments and most_words is not None and d * (d + 1) // 2 > most_words:
            n_groups = min(MOST_GROUPS, most_words // d)
            if n_groups < FEWEST_GROUPS:
                moments = False
                n_groups = 0
        most_directions = BLIND_DIRECTIONS
        if moments:
            most_directions = MOST_DIRECTIONS
            strength *= math.sqrt(_left_by_moments(of_moments))
        n_directions = min(d, most_directions)
        count_share = 1 / (1 + (n_directions / COUNT_DIRECTIONS) ** COUNT_POWER)
        if n_refinements is None:
            n_refinements = _refinement_rounds(strength, n_clusters, d)
        n_synopses = _synopsis_rounds(strength, n_clusters, d)
        fractions = _synopsis_fractions(n_synopses, d, n_refinements)
        return cls(
            signal=signal,
            moments=moments,
            n_directions=n_directions,
            cells=tuple(
                _cells_of_round(strength, fraction * count_share, n_clusters)
                for fraction in fractions
            ),
            n_refinements=n_refinements,
            count_share=count_share,
            n_sizings=n_sizings,
            n_groups=n_groups,
        )

    @property
    def n_rounds(self) -> int:
        """Number of all rounds."""
        return self.last_synopsis + self.n_refinements + self.n_sizings

    @property
    def last_synopsis(self) -> int:
        """The last round of the synopsis."""
        return FIRST + len(self.cells)

    def strength(self, n_features: int) -> float:
        """Return the signal of the rounds after the first, without those for sizes.

        It is relative to a first round with a fraction of `MOMENT_FRACTION`.
        """
        of_others = _fraction_without_sizes(self.n_sizings)
        later = _left_by_moments(self._first_fraction(n_features))
        return self.signal * math.sqrt(of_others) * math.sqrt(later)

    def _first_fraction(self, n_features: int) -> float:
        """Return the fraction of round 1, of all rounds but those for sizes."""
        if not self.moments:
            return MOMENT_FRACTION
        of_others = _fraction_without_sizes(self.n_sizings)
        return _moment_fraction(self.signal * math.sqrt(of_others), n_features)

    def has_clear_moments(self, n_features: int) -> bool:
        """Return whether second moments would be clear of noise, taken or not."""
        strength = self.signal * math.sqrt(_fraction_without_sizes(self.n_sizings))
        of_moments = _moment_fraction(strength, n_features)
        return _has_clear_moments(strength, of_moments, n_features)

    def is_synopsis(self, round_number: int) -> bool:
        """Return whether a round (from 1) asks about cells."""
        return FIRST < round_number <= self.last_synopsis

    def is_sizing(self, round_number: int) -> bool:
        """Return whether a round asks for counts alone."""
        return round_number > self.n_rounds - self.n_sizings

    def n_cells(self, round_number: int) -> int:
        """Return M of a synopsis round."""
        return self.cells[round_number - FIRST - 1]

    def fraction(self, round_number: int, n_features: int) -> float:
        """Return a round's fraction of mu^2. Those of all rounds sum to 1."""
        left = _fraction_without_sizes(self.n_sizings)
        first = self._first_fraction(n_features)
        if round_number == FIRST:
            return left * first
        if self.is_sizing(round_number):
            return (1 - left) / self.n_sizings
        left *= _left_by_moments(first)
        if self.is_synopsis(round_number):
            fractions = _synopsis_fractions(
                len(self.cells), n_features, self.n_refinements
            )
            return left * fractions[round_number - FIRST - 1]
        synopsis = _synopsis_fraction(n_features, self.n_refinements)
        return left * (1 - MOMENT_FRACTION - synopsis) / self.n_refinements

    def block_fractions(self, round_number: int, n_features: int) -> dict[str, float]:
        """Return the fraction of the round's mu^2 of every block.

        Sums and slacks have the same one: a record changes both together by no more
        than one alone (docs/guarantees, Theorem 22).
        """
        if round_number == FIRST:
            return {MOMENTS if self.moments else NORMS: 1.0}
        if self.is_synopsis(round_number):
            residuals = 1 - self.count_share
            return {SUMS: residuals, COUNTS: self.count_share, SLACKS: residuals}
        if self.is_sizing(round_number):
            return {COUNTS: 1.0}
        counts = REFINEMENT_COUNTS / (1 + math.sqrt(4 * n_features))
        return {SUMS: 1 - counts, COUNTS: counts}

    def releases(self, round_number: int, n_features: int) -> tuple[Release, ...]:
        """Return a round's releases, with the noise that they have at mu = 1."""
        fraction = self.fraction(round_number, n_features)
        of_blocks = self.block_fractions(round_number, n_features)
        if self.is_synopsis(round_number):
            return (_release("synopsis", tuple(of_blocks), fraction),)
        if self.is_sizing(round_number):
            return (_release("sizes", tuple(of_blocks), fraction),)
        prefix = "" if round_number == FIRST else "refinement-"
        return tuple(
            _release(prefix + name, (name,), fraction * of_block)
            for name, of_block in of_blocks.items()
        )

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Return the schedule of a run document."""
        if not isinstance(config, Mapping) or "name" in config:
            raise ConfigurationError("The fields of a schedule are not as expected.")
        return cls(**parameters.read_parameters(cls, config))


def _fraction_without_sizes(n_sizings: int) -> float:
    """Return the fraction of mu^2 of all rounds but those for sizes."""
    return 1 - SIZING if n_sizings else 1.0


def _moment_fraction(strength: float, n_features: int) -> float:
    """Return the fraction of mu^2 of second moments, at the signal S of all rounds.

    In many columns it brings the largest eigenvalue of the noise down to `WIDE_EDGE`.
    """
    if n_features <= MOST_ROTATED:
        return MOMENT_FRACTION
    edge = math.sqrt(2 * n_features) / max(strength, 1.0)
    wanted = (edge / WIDE_EDGE) * (edge / WIDE_EDGE)
    return min(max(wanted, LEAST_WIDE_FRACTION), MOST_WIDE_FRACTION)


def _left_by_moments(fraction: float) -> float:
    """Return what moments with a fraction leave, over what `MOMENT_FRACTION` leaves."""
    return (1 - fraction) / (1 - MOMENT_FRACTION)


def _has_clear_moments(strength: float, fraction: float, n_features: int) -> bool:
    """Return whether moments with a fraction of mu^2 are clear of noise, at the signal S."""
    noise = math.sqrt(2 * n_features)
    return noise < CLEAR_MOMENTS * math.sqrt(fraction) * strength


def _synopsis_rounds(strength: float, n_clusters: int, n_features: int) -> int:
    """Return the number of synopsis rounds, by c = S / (k d^1/4)."""
    fourth_root = math.sqrt(math.sqrt(n_features))
    c = strength / (n_clusters * fourth_root)
    return 1 + (c > SECOND_ROUND) + (c > THIRD_ROUND)


def _refinement_rounds(strength: float, n_clusters: int, n_features: int) -> int:
    """Return the number of refinement rounds, by s = S / (k sqrt(d))."""
    s = strength / (n_clusters * math.sqrt(n_features))
    if s < MORE_SIGNAL and are_all_live(n_clusters, n_features):
        return MORE_REFINEMENTS
    return REFINEMENTS


def _cells_of_round(strength: float, of_counts: float, n_clusters: int) -> int:
    """Return M of a synopsis round whose counts have a fraction of mu^2."""
    wanted = strength * math.sqrt(of_counts) / CELL_COUNT
    fewest = FEWEST_CELLS * n_clusters
    most = MOST_CELLS * n_clusters
    return int(min(max(wanted, fewest), most))


def _synopsis_fraction(n_features: int, n_refinements: int) -> float:
    """Return the fraction of mu^2 of all synopsis rounds: less in many columns, or all there is."""
    if not n_refinements:
        return 1 - MOMENT_FRACTION
    wanted = MOST_SYNOPSIS * math.sqrt(math.sqrt(FEW_COLUMNS / n_features))
    return max(LEAST_SYNOPSIS, min(MOST_SYNOPSIS, wanted))


def _synopsis_fractions(
    n_rounds: int, n_features: int, n_refinements: int
) -> tuple[float, ...]:
    """Return the fraction of mu^2 of each synopsis round."""
    weights = [GROWTH**t for t in range(n_rounds)]
    total = sum(weights)
    fraction = _synopsis_fraction(n_features, n_refinements)
    return tuple(fraction * weight / total for weight in weights)


def _release(name: str, blocks: tuple[str, ...], fraction: float) -> Release:
    """Return a Gaussian release with a fraction of mu^2, with its noise at mu = 1."""
    return Release(name, "gaussian", "l2", 1 / math.sqrt(fraction), blocks)


# ------------------------------------------------------------------------ the algorithm


def _clusters(name: str, value: Any) -> Any:
    """Return a number of clusters, or the fewest and the most."""
    if value is None:
        return value
    if not isinstance(value, list | tuple):
        return parameters.integer(name, value, 1, base.MAX_CLUSTERS)
    if len(value) != 2:
        raise ConfigurationError(
            f"Expected {name} as an integer, a pair of them, or None. Got {len(value)} values."
        )
    least, most = (parameters.integer(name, number, 1, MOST_CHOSEN) for number in value)
    if least > most:
        raise ConfigurationError(
            f"Expected {name} as (low, high). Got {least, most} instead."
        )
    return least, most


def _any_clusters(numbers: tuple[int, int] | None, total: Any) -> tuple[int, int]:
    """Return the fewest and the most clusters of a run that chooses."""
    if numbers is not None:
        return numbers
    least, most = ANY_CLUSTERS
    if isinstance(total, int):
        most = max(least, min(most, total))
    return least, most


def _has_bounds(fields: Mapping[str, Any]) -> bool:
    """Return whether there are bounds on cluster sizes."""
    return fields.get("min_size") is not None or fields.get("max_size") is not None


def _planned_signal(
    budget: PrivacyBudget, total: int | None, clip: float | None
) -> float:
    """Return the plan's ``mu N / C``; infinite without noise, or without a figure for N."""
    if budget.epsilon is None or budget.delta is None or total is None:
        return math.inf
    mu = mu_of_budget(budget.epsilon, budget.delta)
    return mu * total / (clip or 1.0)


def _parse_clusters(text: str) -> int | tuple[int, ...] | None:
    if text == "any":
        return None
    numbers = tuple(map(int, text.split("-")))
    return numbers if len(numbers) > 1 else numbers[0]


CLUSTERS = ParameterKind(
    _clusters,
    values=f"{whole(1, base.MAX_CLUSTERS).values}|LOW-HIGH|any",
    parse=_parse_clusters,
)
_SCHEDULE = ParameterKind(
    lambda _, schedule: schedule,
    parameters.write_parameters,
    Schedule.from_config,
)
_CLIPPED = MOMENTS, NORMS, "synopsis", "refinement-sums", "refinement-counts"


@register
@dataclass(frozen=True, kw_only=True)
class SynopsisAlgorithm(base.Algorithm):
    """k-means from a private synopsis.

    Formal guarantee: one record changes the second moments by D^2 at most (with
    off-diagonal entries counted sqrt 2 times), in rounds of the synopsis one cell by
    (u, 1, 1 - |u|^2), u no longer than 1, whose norm is 1 in units of a joint release,
    and later one centroid by (u, 1); the plan composes all releases
    (docs/guarantees, Theorem 22). D is the largest norm of a record around the
    domain's centre.

    `strategies.SynopsisKMeans` documents what a user gives. ``n_clusters`` is the most
    and ``min_clusters`` the fewest of a run that chooses, ``None`` of others.
    ``schedule`` has its rounds, for the plan's signal.
    """

    name: ClassVar[str] = "synopsis"
    replayable: ClassVar[bool] = True
    weighs_in_one_pass: ClassVar[bool] = True
    possible_warnings: ClassVar[tuple[str, ...]] = WARNINGS

    min_clusters: Annotated[int | None, whole(1, MOST_CHOSEN)] = None
    clips: Annotated[Clips | None, parameters.reals(*_CLIPPED)] = None
    min_size: Annotated[int | None, whole(0, LARGEST)] = None
    max_size: Annotated[int | None, whole(0, LARGEST)] = None
    schedule: Annotated[Schedule, _SCHEDULE]

    @classmethod
    def planned(
        cls,
        n_clusters: int | tuple[int, int] | None,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        clips: Mapping[str, float] | None = None,
        n_rounds: int | Literal["auto"] = "auto",
        most_words: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the algorithm of a user's options, with its clips and its schedule.

        ``most_words`` is how many words of a round the run's messages can carry. Where
        second moments have more, groups of columns stand for the columns.
        """
        numbers = CLUSTERS.check("n_clusters", n_clusters)
        if not isinstance(numbers, int):
            if options.get("min_clusters") is not None:
                raise ConfigurationError(
                    "Expected n_clusters as an integer with min_clusters. "
                    f"Got {numbers} and min_clusters={options['min_clusters']}."
                )
            least, numbers = _any_clusters(numbers, given_total(budget, options))
            options["min_clusters"] = least
        options["clips"] = clips
        fields = base.resolved(cls, numbers, domain, budget, options)
        clip = fields.get("clip")
        if clip is None:
            # Given ones are refused there.
            fields["clips"] = fields["clips"] or None
        else:
            fields["clips"] = fields["clips"] or ()
            if options.get("clip") is None:
                # m records in m cells have the norm sqrt(m)
                clip = fields["clip"] = max(1.0, math.sqrt(clip))
        schedule = Schedule.of(
            _planned_signal(fields["budget"], given_total(budget, fields), clip),
            numbers,
            domain.n_features,
            SIZING_ROUNDS if _has_bounds(fields) else 0,
            None if fields.get("min_clusters") is None else 0,
            most_words,
        )
        algorithm = cls(**fields, schedule=schedule)
        if not is_auto(n_rounds):
            raise ConfigurationError(
                "Expected n_rounds='auto' for SynopsisKMeans, whose rounds have different tasks "
                f"and follow from the privacy plan. Got {n_rounds!r} instead."
            )
        algorithm = with_capacity(algorithm)
        algorithm.require_feasible()
        return algorithm

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        require_clips(self.clips, self.clip, self.budget)
        self._check_numbers()
        if self.bounded:
            self._check_bounds()
        d = self.domain.n_features
        check_exactness(d, self.fraction_bits, weighted=self.bounded)
        self._check_schedule()

    def _check_schedule(self) -> None:
        """Require the schedule of a run with these parameters."""
        schedule = self.schedule
        signal = _planned_signal(self.budget, planned_total(self), self.clip)
        if not math.isclose(schedule.signal, signal, rel_tol=_SIGNAL_TOLERANCE):
            raise ConfigurationError(
                f"Expected a schedule for a signal of {signal:.6g}, that of the plan. "
                f"Got one for {schedule.signal:.6g}."
            )
        if bool(schedule.n_sizings) != self.bounded:
            raise ConfigurationError(
                "Expected a schedule with rounds for sizes if min_size or max_size is given, and "
                f"without them otherwise. Got {schedule.n_sizings} such rounds with "
                f"min_size={self.min_size} and max_size={self.max_size}."
            )
        if (schedule.n_refinements == 0) != (self.min_clusters is not None):
            raise ConfigurationError(
                "Expected a schedule without rounds of refinement exactly if min_clusters is "
                f"given. Got {schedule.n_refinements} such rounds with "
                f"min_clusters={self.min_clusters}."
            )
        d = self.domain.n_features
        parameters.integer("n_directions", schedule.n_directions, 1, d)
        if schedule.moments and d > MOST_COLUMNS:
            raise ConfigurationError(
                f"Expected moments=false for more than {MOST_COLUMNS} columns. Got true for {d}."
            )
        n_groups = schedule.n_groups
        if n_groups and not (schedule.moments and FEWEST_GROUPS <= n_groups < d):
            raise ConfigurationError(
                f"Expected n_groups of 0, or with moments=true at least {FEWEST_GROUPS} and "
                f"fewer than the {d} columns. Got {n_groups} with "
                f"moments={schedule.moments}."
            )

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return self.schedule.n_rounds

    def _check_numbers(self) -> None:
        """Require that a run that chooses its number of clusters can do so."""
        if self.min_clusters is None:
            return
        parameters.integer(
            "n_clusters", self.n_clusters, self.min_clusters, MOST_CHOSEN
        )
        if self.bounded:
            raise ConfigurationError(
                "Expected n_clusters as an integer with min_size or max_size, which the sizes of "
                f"a planned number of clusters keep. Got {self.min_clusters, self.n_clusters}."
            )

    def _check_bounds(self) -> None:
        """Require bounds on cluster sizes that public figures do not contradict."""
        k, n_records = self.n_clusters, self.n_records
        given = f"Got min_size={self.min_size}, max_size={self.max_size}"
        if self.budget.protects_clients:
            raise ConfigurationError(
                "Expected min_size=None and max_size=None with unit='client': counts of clients "
                f"that are clipped are no sizes. {given}."
            )
        if weighs_records(self):
            raise ConfigurationError(
                "Expected min_size=None and max_size=None with unit='person' or weighted=True: "
                f"sizes would be fractions of persons or of records. {given}."
            )
        if n_records is None:
            raise ConfigurationError(
                "n_records is required with min_size or max_size: a public figure for the total "
                "number of records, to which bounds are compared. Got None."
            )
        least, most = (
            self.min_size or 0,
            n_records if self.max_size is None else self.max_size,
        )
        if not (least <= most and k * least <= n_records <= k * most):
            raise ConfigurationError(
                "Expected min_size <= max_size, and n_records of at least n_clusters * min_size "
                f"and at most n_clusters * max_size. {given}, {n_records=} and n_clusters={k}."
            )
        if k > MOST_BOUNDED:
            raise ConfigurationError(
                f"Expected n_clusters of at most {MOST_BOUNDED} with min_size or max_size. "
                f"Got {k} instead."
            )

    @property
    def fewest_clusters(self) -> int:
        """The fewest clusters of a result."""
        return self.n_clusters if self.min_clusters is None else self.min_clusters

    @property
    def bounded(self) -> bool:
        """Whether there are bounds on cluster sizes."""
        return self.min_size is not None or self.max_size is not None

    @property
    def _size_noise(self) -> float:
        """Planned standard deviation of a released size, in records."""
        return self.noise_of(self.n_rounds)[COUNTS] * 2.0**-self.fraction_bits

    # ------------------------------------------------------------------ the stages

    def _stage(self, round_number: int) -> Stage:
        """Return the stage of a round, in the order of docs/guarantees, Theorem 22."""
        schedule = self.schedule
        last = schedule.last_synopsis
        if round_number == FIRST:
            return self.moments_stage
        if schedule.is_synopsis(round_number):
            is_last = round_number == last
            return CellsStage(
                self._setting,
                round_number=round_number,
                n_cells=schedule.n_cells(round_number),
                fractions=schedule.block_fractions(
                    round_number, self.domain.n_features
                ),
                n_next=None if is_last else schedule.n_cells(round_number + 1),
                start=Start(self._setting, self.min_clusters, self._power_cells),
            )
        if schedule.is_sizing(round_number):
            is_last = round_number == self.n_rounds
            power_cells = None if is_last else self._power_cells
            return SizingStage(self._setting, power_cells)
        return RefinementStage(
            self._setting,
            place=round_number - last,
            # With own clips, counts of the first round are of another size than those
            # of the synopsis.
            follows_counts=round_number > last + 1 or not self.clips,
            learns_beside=self.learns_beside,
            power_cells=self._power_cells,
        )

    @property
    def moments_stage(self) -> MomentsStage:
        """The first round."""
        schedule = self.schedule
        n_cells = schedule.n_cells(FIRST + 1)
        return MomentsStage(self._setting, schedule.moments, n_cells, schedule.n_groups)

    @property
    def learns_beside(self) -> bool:
        """Whether only clear directions are live, so that moves beside them are small."""
        setting = self._setting
        return self.schedule.moments and setting.fewest_live < setting.n_directions

    @cached_property
    def _setting(self) -> Setting:
        """The public figures that all stages share."""
        planned = planned_total(self)
        total = math.inf if planned is None else float(planned)
        return Setting(
            domain=self.domain,
            fraction_bits=self.fraction_bits,
            n_clusters=self.n_clusters,
            n_directions=self.schedule.n_directions,
            strength=self.schedule.strength(self.domain.n_features),
            n_records=total,
            seed=self.seed,
        )

    @cached_property
    def _power_cells(self) -> PowerCells | None:
        """The power cells of the points, with bounds on sizes."""
        if not self.bounded:
            return None
        least = self.min_size or 0
        most = self.max_size
        if most is None:
            # They require it.
            most = cast(int, self.n_records)
        return PowerCells(
            self._setting,
            bounds=(least, most),
            size_noise=self._size_noise,
            last_round=self.n_rounds,
        )

    @property
    def projection(self) -> Projection:
        """The grids of the synopsis."""
        return self._setting.projection

    # ------------------------------------------------------------------ the plan

    def layout(self, round_number: int) -> Layout:
        """Return the blocks of a round, as its stage has them."""
        return self._stage(round_number).layout()

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases with noise multipliers relative to those of other rounds."""
        return self.schedule.releases(round_number, self.domain.n_features)

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the sensitivity of each block. For second moments it is the diagonal's."""
        return self._stage(round_number).sensitivities()

    @property
    def clipping(self) -> Clipping:
        """How the part of one client is limited."""
        return replace(super().clipping, own=self.clips or (), is_joint=True)

    def noise_of(self, round_number: int) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units.

        From the schedule, not the calibrated plan: it is the same on every processor.
        """
        sensitivities = self.block_sensitivities(round_number)
        if not self.budget.is_private:
            return dict.fromkeys(sensitivities, 0.0)
        # `_planned_signal`, solved for mu.
        total = cast(int, planned_total(self))
        mu = self.schedule.signal * (self.clip or 1.0) / total
        found = {}
        for release in self.releases(round_number):
            scale = release.noise_multiplier / mu * self.clipping.of(release)
            for name in release.blocks:
                found[name] = scale * sensitivities[name]
        return found

    # ------------------------------------------------------------------ the rounds

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the empty initial state. ``rng`` is not used."""
        flags = np.zeros(len(WARNINGS), dtype=np.int64)
        return State(0, {"flags": flags})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the ranges of a round's query; round 1 asks about nothing."""
        return self._stage(round_number).ranges()

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the client's answer to the round's query."""
        return self._stage(query.round).statistic(query.arrays, records)

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits that exact sums of the round keep to."""
        return self._stage(state.round + 1).meaning(state.arrays)

    def update(
        self,
        state: State,
        answer: Statistic,
        rng: np.random.Generator | None = None,
    ) -> State:
        """Return the state after a round's noisy sum. ``rng`` is not used."""
        number = state.round + 1
        before = state.arrays
        flags = before["flags"].copy()
        found = NoisySum(
            blocks=answer.blocks,
            deviations=self.noise_of(number),
            exponent=self.fraction_bits,
            answered=answer.answered,
        )
        changed = self._stage(number).after(before, found, flags)
        return State(number, {**before, **changed, "flags": flags})

    # ------------------------------------------------------------------ results

    def warnings(self, state: State) -> tuple[str, ...]:
        """Return warnings about how the run went, and one about groups of columns."""
        found = super().warnings(state)
        n_groups = self.schedule.n_groups
        if not n_groups or state.round < FIRST:
            return found
        note = note_on_groups(self.domain.n_features, n_groups)
        return (note[0].upper() + note[1:], *found)

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d); ``None`` before there are any."""
        return self._found(state, super().centroids(state))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes, (k,); ``None`` before there are any."""
        return self._found(state, super().counts(state))

    def size_noise(self, all_answered: bool) -> float | None:
        """Return the planned noise of a size, in records.

        ``None`` with a clip, without a round that counts clusters, or if clients were
        missing in a refinement round: it may keep the counts of the round before.
        """
        schedule = self.schedule
        if schedule.is_sizing(self.n_rounds):
            return base.noise_of_counts(self)
        is_refinement = self.n_rounds > schedule.last_synopsis
        if is_refinement and all_answered:
            return base.noise_of_counts(self)
        return None

    def _found(self, state: State, rows: FloatArray | None) -> FloatArray | None:
        """Return the rows of clusters that were chosen: a state has the most, for equal steps."""
        if rows is None or "chosen" not in state.arrays:
            return rows
        return rows[: int(state.arrays["chosen"][0])]

    @property
    def sizes(self) -> SynopsisSizes | None:
        """Cluster sizes with public bounds; ``None`` without bounds."""
        if not self.bounded:
            return None
        bounds = self.min_size or 0, self.max_size
        return SynopsisSizes(self._setting, bounds, self._size_noise, self.n_rounds)

    @property
    def mixture(self) -> SynopsisMixture:
        """The mixture of the last synopsis round."""
        last = self.schedule.last_synopsis
        unit = 2.0**-self.fraction_bits
        noise = self.noise_of(last)
        of_cell = noise[COUNTS] * unit, noise[SUMS] * unit, noise[SLACKS] * unit
        return SynopsisMixture(self._setting, self.schedule.n_cells(last), of_cell)
