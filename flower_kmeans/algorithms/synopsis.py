"""SynopsisKMeans: a private synopsis of the records is clustered, and the result refined.

Round 1 releases second moments, rounds of the synopsis counts, residuals and slacks by
cell; each makes a mixture of Gaussians, and that the next cells. Weighted k-means on
the last mixture gives centroids, which Lloyd rounds refine. With bounds on sizes, noisy
counts correct the masses of its points (docs/guarantees.md, "SynopsisKMeans" and
"Bounds on cluster sizes").
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from flower_kmeans import parameters
from flower_kmeans.algorithms import base
from flower_kmeans.algorithms import synopsis_choice as choice
from flower_kmeans.algorithms import synopsis_mixture as model
from flower_kmeans.algorithms.base import (
    COUNTS,
    SUMS,
    Block,
    FloatArray,
    IntArray,
    Query,
    State,
)
from flower_kmeans.algorithms.numerics import postprocess, transport
from flower_kmeans.algorithms.numerics import projection as projections
from flower_kmeans.algorithms.numerics.assignment import check_exactness, largest_weight
from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.algorithms.numerics.cost import squared_distances
from flower_kmeans.algorithms.numerics.initialization import random_words, round_words
from flower_kmeans.algorithms.numerics.jacobi import eigenvectors, orthonormal
from flower_kmeans.algorithms.numerics.portable import logarithm, normals
from flower_kmeans.algorithms.numerics.postprocess import (
    clip_rows,
    into_domain,
    scaled,
    to_grid,
)
from flower_kmeans.algorithms.numerics.projection import (
    MOMENTS,
    ProjectedRecords,
    Projection,
)
from flower_kmeans.algorithms.plausibility import Meaning
from flower_kmeans.algorithms.released import ReleasedMixture, SizeReport
from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.data.domain import GridRecords, row_sums
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.parameters import AUTO, DERIVED, FLAG, LARGEST, Kind, is_auto, whole
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.threads import single_threaded_blas

Arrays = dict[str, IntArray]

NORMS, SLACKS = "norms", "slacks"
FIRST = 1  # the round of the second moments

# Shares of mu^2. Shares of sizing rounds come first; the others keep their proportions.
MOMENT_SHARE = 0.08
# the most in at most so many columns
MOST_SYNOPSIS, LEAST_SYNOPSIS, FEW_COLUMNS = 0.55, 0.30, 8
GROWTH = 1.5  # share of a synopsis round over that of the round before
# of a round's counts, over the share that is best for a single mean
REFINEMENT_COUNTS = 0.4
SIZING_ROUNDS, SIZING = 4, 0.10

REFINEMENTS = 4  # moves are weighed by their noise, so more rounds lose little
FEWEST_CELLS, MOST_CELLS = 2, 5  # of a synopsis round, in clusters
# records that a cell should have, in standard deviations of its count's noise
CELL_COUNT = 1.0
# noise of the largest eigenvalue, in radii squared, that moments may have
CLEAR_MOMENTS = 0.35
# for second moments: eigenvectors of more take seconds at every client
MOST_COLUMNS = 128
# of the synopsis, with second moments and without
MOST_DIRECTIONS, BLIND_DIRECTIONS = 64, 16
ANY_CLUSTERS = 1, 20  # from which a run chooses that is not told a number
# clusters where the run chooses: an update that compares more takes minutes
MOST_CHOSEN = 100
# clusters with bounds on sizes: an update that finds weights takes minutes then
MOST_BOUNDED = 256

# of the synopsis' radius, and of the first mean square
RADIUS_FACTOR, LEAST_RADIUS2 = 0.9, 0.15
# of `absent`: deviations expected, and what is left
ABSENT_NOISE, ABSENT_SHARE = 10.0, 0.25
# of centroids for other reasons than noise, in variances; per round
DRIFT, DRIFT_DECAY = 0.3, 0.7
LEAST_NOISE = 1e-3  # of a size, in records, where noise of 0 would be divided by
# fractional bits of reals in a state: lengths and variances in units of D
REAL_BITS = 52

_MOST_SYNOPSES, _MOST_REFINEMENTS, _MOST_SIZINGS = 8, 32, 32  # in a run document
_SIGNAL_TOLERANCE = 1e-6  # calibration differs between processors by far less
_MOVE_BITS = 24  # of a move, where it is projected

WARNINGS = (
    "The noise is too large for second moments of so many columns: the synopsis took random "
    "directions.",
    "The noisy second moments do not exceed their noise in any direction: the synopsis took "
    "arbitrary ones.",
    "In a round of the synopsis no cell had more noisy records than its noise: only the largest "
    "was kept.",
    "Fewer cells than clusters had more noisy records than their noise: some centroids started "
    "from points of the model.",
    "Some clusters had a noisy count within its noise in a refinement round: their centroids moved "
    "less than their records would have moved them.",
    "Clients did not answer in a round, and with them most records of a cell or cluster were "
    "missing: it was kept as the round before had left it.",
)
BLIND, NO_SIGNAL, NO_CELL, FEW, LIGHT, HELD = range(len(WARNINGS))


# ------------------------------------------------------------------------- the schedule


def _numbers_of_cells(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigurationTypeError(
            f"{name} must be a list, got {type(value).__name__}."
        )
    if not 1 <= len(value) <= _MOST_SYNOPSES:
        raise ConfigurationError(
            f"Expected between 1 and {_MOST_SYNOPSES} numbers of cells. Got {len(value)}."
        )
    return tuple(parameters.integer(name, m, 1, base.MAX_WORDS) for m in value)


# A signal is compared with the plan's. An infinite one stands in no document.
_SIGNAL = Kind(lambda _, value: value, real_to_text, real_from_text)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The queries of a run, from public figures, within limits that a client may follow.

    It stands in the run document, so that nothing of it is computed twice: clients read
    the same numbers, and calibration may give others on another processor.
    """

    name: ClassVar[str] = "synopsis, schedule"

    signal: Annotated[float, _SIGNAL, "given"] = math.inf  # mu N / C
    moments: Annotated[bool, FLAG]  # or round 1 releases the sum of squared norms alone
    n_directions: Annotated[int, whole(1, MOST_DIRECTIONS)]  # p, of the synopsis
    # M, of each synopsis round
    cells: Annotated[tuple[int, ...], Kind(_numbers_of_cells, list)]
    n_refinements: Annotated[int, whole(0, _MOST_REFINEMENTS)]  # 0: the synopsis is all
    # Of a synopsis round's mu^2; residuals and slacks each have the rest.
    count_share: Annotated[float, parameters.POSITIVE]
    n_sizings: Annotated[int, whole(0, _MOST_SIZINGS), "given"] = 0

    def __post_init__(self) -> None:
        """Check every field, those of a document too."""
        parameters.check_parameters(self)
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
        n_refinements: int = REFINEMENTS,
    ) -> Self:
        """Return the schedule for a signal ``mu N / C``, C the clip; infinite without noise."""
        k, d = n_clusters, n_features
        root = math.sqrt(d)
        strength = signal * math.sqrt(_left(n_sizings))
        # c of docs/guarantees.md, "SynopsisKMeans".
        counts = strength / (k * math.sqrt(root))
        clear = math.sqrt(2 * d) < CLEAR_MOMENTS * math.sqrt(MOMENT_SHARE) * strength
        moments = clear and d <= MOST_COLUMNS
        n_directions = min(d, MOST_DIRECTIONS if moments else BLIND_DIRECTIONS)
        count_share = 1 / (1 + (n_directions / 4) ** 0.2)
        wanted = (
            strength * math.sqrt(part * count_share) / CELL_COUNT
            for part in _synopsis_shares(
                1 + (counts > 6) + (counts > 14), d, n_refinements
            )
        )
        cells = tuple(
            int(min(max(m, FEWEST_CELLS * k), MOST_CELLS * k)) for m in wanted
        )
        return cls(
            signal=signal,
            moments=moments,
            n_directions=n_directions,
            cells=cells,
            n_refinements=n_refinements,
            count_share=count_share,
            n_sizings=n_sizings,
        )

    @property
    def n_rounds(self) -> int:
        """Number of all rounds."""
        return self.last_synopsis + self.n_refinements + self.n_sizings

    @property
    def last_synopsis(self) -> int:
        """The last round of the synopsis."""
        return FIRST + len(self.cells)

    @property
    def strength(self) -> float:
        """The signal of all rounds but those for sizes."""
        return self.signal * math.sqrt(_left(self.n_sizings))

    def is_synopsis(self, round_number: int) -> bool:
        """Return whether a round (from 1) asks about cells."""
        return FIRST < round_number <= self.last_synopsis

    def is_sizing(self, round_number: int) -> bool:
        """Return whether a round asks for counts alone."""
        return round_number > self.n_rounds - self.n_sizings

    def n_cells(self, round_number: int) -> int:
        """Return M of a synopsis round."""
        return self.cells[round_number - FIRST - 1]

    def share(self, round_number: int, n_features: int) -> float:
        """Return a round's share of mu^2. The shares of all rounds sum to 1."""
        left = _left(self.n_sizings)
        if round_number == FIRST:
            return left * MOMENT_SHARE
        if self.is_sizing(round_number):
            return (1 - left) / self.n_sizings
        if self.is_synopsis(round_number):
            shares = _synopsis_shares(len(self.cells), n_features, self.n_refinements)
            return left * shares[round_number - FIRST - 1]
        share = _synopsis_share(n_features, self.n_refinements)
        return left * (1 - MOMENT_SHARE - share) / self.n_refinements

    def parts(self, round_number: int, n_features: int) -> dict[str, float]:
        """Return the part of its round's mu^2 that every block has.

        Sums and slacks have the same part: a record changes both together by no more
        than one alone (docs/guarantees.md, "SynopsisKMeans").
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

        def release(name: str, blocks: tuple[str, ...], share: float) -> Release:
            return Release(name, "gaussian", "l2", 1 / math.sqrt(share), blocks)

        share, parts = (
            self.share(round_number, n_features),
            self.parts(round_number, n_features),
        )
        if self.is_synopsis(round_number):
            return (release("synopsis", tuple(parts), share),)
        if self.is_sizing(round_number):
            return (release("sizes", tuple(parts), share),)
        prefix = "" if round_number == FIRST else "refinement-"
        return tuple(
            release(prefix + name, (name,), share * parts[name]) for name in parts
        )

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """Return the schedule of a run document."""
        if not isinstance(config, Mapping) or "name" in config:
            raise ConfigurationError("The fields of a schedule are not as expected.")
        return cls(**parameters.read_parameters(cls, config, False))


def _left(n_sizings: int) -> float:
    """Return the share of mu^2 of all rounds but those for sizes."""
    return 1 - SIZING if n_sizings else 1.0


def _synopsis_share(n_features: int, n_refinements: int) -> float:
    """Return the share of mu^2 of all synopsis rounds: less in many columns, or all there is."""
    if not n_refinements:
        return 1 - MOMENT_SHARE
    wanted = MOST_SYNOPSIS * math.sqrt(math.sqrt(FEW_COLUMNS / n_features))
    return max(LEAST_SYNOPSIS, min(MOST_SYNOPSIS, wanted))


def _synopsis_shares(
    n_rounds: int, n_features: int, n_refinements: int
) -> tuple[float, ...]:
    """Return the share of mu^2 of each synopsis round."""
    weights = [GROWTH**t for t in range(n_rounds)]
    share = _synopsis_share(n_features, n_refinements)
    return tuple(share * weight / sum(weights) for weight in weights)


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


def _read_clusters(config: Any) -> int:
    return parameters.integer("n_clusters", config, 1, base.MAX_CLUSTERS)


def _parse_clusters(text: str) -> int | tuple[int, ...] | None:
    if text == "any":
        return None
    numbers = tuple(map(int, text.split("-")))
    return numbers if len(numbers) > 1 else numbers[0]


_CLUSTERS = Kind(
    _clusters,
    read=_read_clusters,
    values=f"{whole(1, base.MAX_CLUSTERS).values}|LOW-HIGH|any",
    parse=_parse_clusters,
)
_SCHEDULE = Kind(
    lambda _, schedule: schedule,
    lambda schedule: parameters.write_parameters(schedule, False),
    Schedule.from_config,
)
_CLIPPED = MOMENTS, NORMS, "synopsis", "refinement-sums", "refinement-counts"


@base.register
@dataclass(frozen=True, kw_only=True)
class SynopsisAlgorithm(base.Algorithm):
    """k-means from a private synopsis.

    Formal guarantee: one record changes the second moments by D^2 at most (with
    off-diagonal entries counted sqrt 2 times), in rounds of the synopsis one cell by
    (u, 1, 1 - |u|^2), u no longer than 1, whose norm is 1 in units of a joint release,
    and later one centroid by (u, 1); the plan composes all releases
    (docs/guarantees.md, "SynopsisKMeans"). D is the largest norm of a record around the
    domain's centre.

    Parameters
    ----------
    n_clusters : int, (int, int) or None
        A pair is the fewest and the most: all of the budget is spent on the synopsis,
        without Lloyd rounds, and the result is its k-means with the number that
        `Elbow.suggested` names. ``None`` is (1, 20). Not with bounds on sizes.
    min_clusters : int, optional
        What a run document states of such a pair, beside the most as ``n_clusters``.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each
        release. Default: the root of ``n_records / n_clients``, at least 1.
    clips : mapping of str to float, optional
        Clips of single releases, in all rounds of a name, in place of ``clip``.
    min_size, max_size : int, optional
        Bounds on the records of each cluster. Clusters are then power cells with public
        weights, and what the run reaches stands in ``sizes`` (docs/guarantees.md,
        "Bounds on cluster sizes"). Not with ``unit="client"``. They need ``n_records``,
        also without privacy.
    n_rounds : "auto"
        Follows from the public figures.
    schedule : Schedule, optional
        What a run document states, for the plan's signal; otherwise made from the
        public figures.
    domain, budget, n_records, n_clients, seed, fraction_bits
        As for all algorithms. D is the largest norm around the domain's centre: a ball
        that fits the data has a smaller one than their box.
    """

    name: ClassVar[str] = "synopsis"
    replayable: ClassVar[bool] = True
    has_joint_clipping: ClassVar[bool] = True
    possible_warnings: ClassVar[tuple[str, ...]] = WARNINGS

    n_clusters: Annotated[int, _CLUSTERS] = field(kw_only=False)
    min_clusters: Annotated[int | None, whole(1, MOST_CHOSEN), "given"] = None
    clips: Annotated[
        tuple[tuple[str, float], ...], parameters.reals(*_CLIPPED), "clients"
    ] = ()
    min_size: Annotated[int | None, whole(0, LARGEST), "given"] = None
    max_size: Annotated[int | None, whole(0, LARGEST), "given"] = None
    n_rounds: int = AUTO
    schedule: Annotated[Schedule, _SCHEDULE] = DERIVED

    def __post_init__(self) -> None:
        """Check every parameter, and derive the schedule if it is not given."""
        chooses = self.clip is None
        self._take_numbers(_clusters("n_clusters", self.n_clusters))
        super().__post_init__()
        if chooses and self.clip is not None:
            # m records in m cells have the norm sqrt(m)
            self._put(clip=max(1.0, math.sqrt(self.clip)))
        self._require_clipping(self.clips)
        self._check_numbers()
        if self.bounded:
            self._check_bounds()
        if not is_auto(self.n_rounds):
            raise ConfigurationError(
                "Expected n_rounds='auto' for SynopsisKMeans, whose rounds have different tasks "
                f"and follow from the privacy plan. Got {self.n_rounds!r} instead."
            )
        d, n_sizings = self.domain.n_features, SIZING_ROUNDS if self.bounded else 0
        check_exactness(d, self.fraction_bits, weighted=self.bounded)
        signal, schedule = self._planned_signal(), cast(Schedule | None, self.schedule)
        if schedule is None:
            n_refinements = REFINEMENTS if self.min_clusters is None else 0
            schedule = Schedule.of(signal, self.n_clusters, d, n_sizings, n_refinements)
        elif not math.isclose(schedule.signal, signal, rel_tol=_SIGNAL_TOLERANCE):
            raise ConfigurationError(
                f"Expected a schedule for a signal of {signal:.6g}, that of the plan. "
                f"Got one for {schedule.signal:.6g}."
            )
        elif bool(schedule.n_sizings) != self.bounded:
            raise ConfigurationError(
                "Expected a schedule with rounds for sizes if min_size or max_size is given, and "
                f"without them otherwise. Got {schedule.n_sizings} such rounds with "
                f"min_size={self.min_size} and max_size={self.max_size}."
            )
        elif (schedule.n_refinements == 0) != (self.min_clusters is not None):
            raise ConfigurationError(
                "Expected a schedule without rounds of refinement exactly if min_clusters is "
                f"given. Got {schedule.n_refinements} such rounds with "
                f"min_clusters={self.min_clusters}."
            )
        parameters.integer("n_directions", schedule.n_directions, 1, d)
        if schedule.moments and d > MOST_COLUMNS:
            raise ConfigurationError(
                f"Expected moments=false for more than {MOST_COLUMNS} columns. Got true for {d}."
            )
        self._put(schedule=schedule, n_rounds=schedule.n_rounds)
        self._require_feasible()

    def _take_numbers(self, numbers: Any) -> None:
        """Keep the fewest and the most clusters of a pair, or of ``None``, which it becomes."""
        if isinstance(numbers, int):
            return
        if self.min_clusters is not None:
            raise ConfigurationError(
                "Expected n_clusters as an integer with min_clusters. "
                f"Got {numbers} and min_clusters={self.min_clusters}."
            )
        least, most = numbers or ANY_CLUSTERS
        if numbers is None and isinstance(self.n_records, int):
            most = max(least, min(most, self.n_records))
        self._put(n_clusters=most, min_clusters=least)

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

    def _planned_signal(self) -> float:
        """Return the plan's ``mu N / C``; infinite without noise, or without a figure for N."""
        budget = self.budget
        if budget.epsilon is None or budget.delta is None or self.n_records is None:
            return math.inf
        return (
            mu_of_budget(budget.epsilon, budget.delta)
            * self.n_records
            / (self.clip or 1.0)
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
    def size_bounds(self) -> tuple[int, int | None] | None:
        """The bounds, 0 and ``None`` where one is missing; ``None`` without bounds."""
        return (self.min_size or 0, self.max_size) if self.bounded else None

    @property
    def size_noise(self) -> float:
        """Planned standard deviation of a released size, in records."""
        return self.noise_of(self.n_rounds)[COUNTS] * 2.0**-self.fraction_bits

    # ------------------------------------------------------------------ the plan

    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return the blocks of a round; sums and slacks of the synopsis are in radii of the cell.

        Of second moments: the diagonal, then the entries above it.
        """
        d, q = self.domain.n_features, self.fraction_bits
        if round_number == FIRST:
            if self.schedule.moments:
                return (
                    Block(MOMENTS, (d * (d + 1) // 2,), 2 * projections.moment_bits(q)),
                )
            return (Block(NORMS, (1,), q),)
        if self.schedule.is_synopsis(round_number):
            m, p = self.schedule.n_cells(round_number), self.schedule.n_directions
            return (
                Block(SUMS, (m, p), q),
                Block(COUNTS, (m,), q),
                Block(SLACKS, (m,), q),
            )
        counts = Block(COUNTS, (self.n_clusters,), q)
        if self.schedule.is_sizing(round_number):
            return (counts,)
        return (Block(SUMS, (self.n_clusters, d), q), counts)

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases with noise multipliers relative to those of other rounds."""
        return self.schedule.releases(round_number, self.domain.n_features)

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the unit of every block; of second moments, that of the diagonal.

        In a synopsis round a block's unit is 1 over the root of its part of the round's
        mu^2, so that a record changes all blocks together by 1 at most.
        """
        q, one = self.fraction_bits, float(2**self.fraction_bits)
        if round_number == FIRST:
            if self.schedule.moments:
                return {
                    MOMENTS: float(
                        projections.squared_bound(
                            self.domain, q, q - projections.moment_bits(q)
                        )
                    )
                }
            return {NORMS: float(projections.squared_bound(self.domain, q) >> q)}
        parts = self.schedule.parts(round_number, self.domain.n_features)
        if not self.schedule.is_synopsis(round_number):
            return dict.fromkeys(parts, one)
        # Root and quotient are rounded, and the unit is made larger by more than they
        # can lack.
        return {
            name: one / math.sqrt(part) * (1 + 2.0**-50) for name, part in parts.items()
        }

    def record_sensitivities(self, round_number: int) -> FloatArray:
        """Return the sensitivities to one record: those of second moments differ by word."""
        if round_number == FIRST and self.schedule.moments:
            return projections.moment_units(self.domain, self.fraction_bits)
        return super().record_sensitivities(round_number)

    def clip_of(self, release: Release) -> float:
        """Return the release's own clip, or that of all."""
        return dict(self.clips).get(release.name, super().clip_of(release))

    def noise_of(self, round_number: int) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units.

        From the schedule, not the calibrated plan: it is the same on every processor.
        """
        sensitivities = self.block_sensitivities(round_number)
        if not self.budget.is_private:
            return dict.fromkeys(sensitivities, 0.0)
        # `_planned_signal`, solved for mu.
        mu = self.schedule.signal * (self.clip or 1.0) / cast(int, self.n_records)
        return {
            name: release.noise_multiplier
            / mu
            * self.clip_of(release)
            * sensitivities[name]
            for release in self.releases(round_number)
            for name in release.blocks
        }

    # ------------------------------------------------------------------ queries

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the empty initial state. ``rng`` is not used."""
        return State(0, {"flags": np.zeros(len(WARNINGS), dtype=np.int64)})

    def query_ranges(self, round_number: int) -> Mapping[str, base.Range]:
        """Return the ranges of a round's query; round 1 asks about nothing."""
        d, p, q = self.domain.n_features, self.schedule.n_directions, self.fraction_bits
        if round_number == FIRST:
            return {}
        if self.schedule.is_synopsis(round_number):
            m, limit = self.schedule.n_cells(round_number), self.projection.limit
            return {
                "projection": ((d, p), -(2**q), 2**q),
                "cells": ((m, p), -limit, limit),
                "radii": ((m,), 1, limit),
            }
        widths = self.domain.grid_half_widths(q)
        ranges: dict[str, base.Range] = {
            "centroids": ((self.n_clusters, d), -widths, widths)
        }
        if self.bounded:
            most = largest_weight(d, q)
            ranges["weights"] = ((self.n_clusters,), -most, most)
        if not self.schedule.is_sizing(round_number):
            ranges["radius"] = (
                (1,),
                1,
                math.isqrt(projections.squared_bound(self.domain, q)),
            )
        return ranges

    def statistic(self, query: Query, records: GridRecords) -> base.Statistic:
        """Return the client's answer to the round's query."""
        arrays, number, q = query.arrays, query.round, self.fraction_bits
        if number == FIRST:
            if self.schedule.moments:
                return base.Statistic({MOMENTS: projections.second_moments(records)})
            origin = np.zeros((1, self.domain.n_features), dtype=np.int64)
            norms = squared_distances(
                records, origin, projections.squared_bound(self.domain, q)
            )
            return base.Statistic({NORMS: np.array([norms], dtype=np.int64)})
        if self.schedule.is_synopsis(number):
            projected = ProjectedRecords(records, self.projection, arrays["projection"])
            sums, counts, slacks = cell_sums(
                projected, arrays["cells"], arrays["radii"], q
            )
            return base.Statistic({SUMS: sums, COUNTS: counts << q, SLACKS: slacks})
        weights, sizing = arrays.get("weights"), self.schedule.is_sizing(number)
        # No count depends on a radius.
        radii = np.full(self.n_clusters, 1 if sizing else arrays["radius"][0])
        sums, counts, _ = cell_sums(
            records, arrays["centroids"], radii, q, weights=weights
        )
        return base.Statistic(
            {COUNTS: counts << q} if sizing else {SUMS: sums, COUNTS: counts << q}
        )

    def meaning(self, state: State, answer: base.Statistic) -> Meaning:
        """Return what moments, and sums, counts and slacks of cells or clusters keep to."""
        number, one = state.round + 1, 2.0**self.fraction_bits
        if number == FIRST:
            most = self.block_sensitivities(number)
            if self.schedule.moments:
                return Meaning(
                    counts=None,
                    moments=MOMENTS,
                    trace=most[MOMENTS],
                    are_clusters=False,
                )
            return Meaning(counts=None, totals=most, are_clusters=False)
        if self.schedule.is_synopsis(number):
            return Meaning(sums=SUMS, length=one, shares=(SLACKS,), are_clusters=False)
        if self.schedule.is_sizing(number):
            return Meaning()
        unit = float(state.arrays["radius"][0]) / one
        return Meaning(sums=SUMS, length=one, unit=unit, offsets=True)

    # ------------------------------------------------------------------ updates

    def update(
        self,
        state: State,
        answer: base.Statistic,
        rng: np.random.Generator | None = None,
    ) -> State:
        """Return the state after a round's noisy sum. ``rng`` is not used."""
        number, flags = state.round + 1, state.arrays["flags"].copy()
        if number == FIRST:
            after = self._after_moments
        elif self.schedule.is_synopsis(number):
            after = self._after_synopsis
        elif self.schedule.is_sizing(number):
            after = self._after_sizing
        else:
            after = self._after_refinement
        arrays = after(state, answer, flags)
        return State(number, {**state.arrays, **arrays, "flags": flags})

    def _after_moments(
        self, state: State, answer: base.Statistic, flags: IntArray
    ) -> Arrays:
        d, p, noise = (
            self.domain.n_features,
            self.schedule.n_directions,
            self.noise_of(FIRST),
        )
        source = round_words(self.seed, FIRST)
        side = self._longest * 2.0**-self.fraction_bits
        norm2, n_records = side * side, self._planned * answer.answered
        directions = np.eye(d)
        if self.schedule.moments:
            scale = 4.0 ** -projections.moment_bits(self.fraction_bits) / norm2
            moments = projections.symmetric(answer.blocks[MOMENTS], d) * scale
            total, std = math.fsum(np.diagonal(moments)), noise[MOMENTS] * scale
        else:
            scale = 2.0**-self.fraction_bits / norm2
            total, std = float(answer.blocks[NORMS][0]) * scale, noise[NORMS] * scale
        # Without a public figure, all that is known is how the directions compare.
        n = n_records if n_records < math.inf else max(total / 0.25, 1.0)
        if self.schedule.moments:
            norm = model.mean_norm(total / n, std * math.sqrt(d) / n)
            directions, values = eigenvectors(moments / n)
            variances, n_clear = model.spectrum(
                values, math.sqrt(2 * d) * std / n, norm
            )
            # With p = d any directions will do: they span all columns.
            flags[NO_SIGNAL] = n_clear == 0 and p < d
        else:
            variances = np.full(d, model.mean_norm(total / n, std / n) / d)
            flags[BLIND] = p < d
            if p < d:
                directions = orthonormal(
                    normals(random_words(source, d * p)).reshape(d, p)
                )
        return {
            "projection": self.projection.matrix(directions[:, :p]),
            "prior": _stored(variances[:p]),
            "rest": _stored(math.fsum(variances[p:])),
            **self._cells(FIRST + 1, model.prior(variances[:p]), source),
        }

    def _cells(
        self,
        number: int,
        mixture: model.Mixture,
        source: np.random.Philox,
        unseen: model.Mixture | None = None,
    ) -> Arrays:
        """Return the cells of a round."""
        n_cells, step = self.schedule.n_cells(number), self._projected_step
        cells = model.partition(mixture, n_cells, self._factor, step, source, unseen)
        return {
            "cells": cells.centers,
            "radii": cells.radii,
            "variances": _stored(cells.variances),
            "spread": _stored(cells.spread),
            "expected": to_grid(cells.expected * 2.0**self.fraction_bits),
        }

    def _after_synopsis(
        self, state: State, answer: base.Statistic, flags: IntArray
    ) -> Arrays:
        number, before = state.round + 1, state.arrays
        q, names, noises = (
            self.fraction_bits,
            (SUMS, COUNTS, SLACKS),
            self.noise_of(number),
        )
        source = round_words(self.seed, number)
        variances, spread = (
            _real(before["variances"]),
            float(_real(before["spread"])[0]),
        )
        expected = scaled(before["expected"], q)
        cells = model.Partition(
            before["cells"], before["radii"], variances, spread, expected
        )
        released = model.Released(*(scaled(answer.blocks[name], q) for name in names))
        noise = model.Noise(*(noises[name] * 2.0**-q for name in names))
        counts = released.counts, noise.counts
        total = postprocess.expected_total(*counts, self._planned, answer.answered)
        # The public figure for N may be too small.
        total = max(total, postprocess.surely_counted(*counts))
        comparable = number > FIRST + 1  # before, nothing was counted
        missing = _held(answer, flags, expected, *counts, comparable)
        step = self._projected_step
        mixture, stood_out = model.learned(cells, released, noise, step, total, missing)
        flags[NO_CELL] |= not stood_out
        if number < self.schedule.last_synopsis:
            # Records of clients that did not answer may lie where no others do.
            unseen = None
            if answer.answered < 1 and not comparable:
                share = (1 - answer.answered) * math.fsum(mixture.weights)
                unseen = model.prior(_real(before["prior"]))
                unseen = unseen._replace(weights=share * unseen.weights)
            return self._cells(number + 1, mixture, source, unseen)
        k, sized = self.n_clusters, model.in_state(mixture)
        if self.bounded:
            sized["masses"] = model.equal_masses(k)
            points = model.drawn_points(sized, k, self._words_of_points)
            found, weights = model.select_within(mixture, points, k, self._aim, source)
        elif self.min_clusters is not None:
            radii = before["radii"] * step
            chosen, found = self._chosen(
                mixture, radii, noise, float(_real(before["rest"])[0])
            )
            sized["chosen"] = np.array([chosen], dtype=np.int64)
        else:
            found = model.select(mixture, k, source)
        flags[FEW] = found.few
        lifted = self.projection.lift(
            to_grid(found.centers / step), before["projection"]
        )
        centroids = into_domain(to_grid(lifted), self.domain, q)
        if self.bounded:
            # Weights of the selection are where `_weights` starts.
            unit = self._longest * 2.0**-model.MODEL_BITS
            sized["weights"] = self._in_range(weights * (unit * unit))
            sized["size_variance"] = _stored(1.0)
            sized["weights"] = self._weights(
                {**before, **sized, "centroids": centroids}
            )
        d, p = self.domain.n_features, self.schedule.n_directions
        rest = float(_real(before["rest"])[0])
        first, beside = math.fsum(found.within) + rest, rest / max(d - p, 1)
        # The last entry stands for every direction that the projection leaves out.
        within = np.append(found.within, beside)
        doubts = np.hstack([found.doubts, np.full((len(centroids), 1), beside)])
        return {
            **sized,
            "centroids": centroids,
            "counts": to_grid(found.counts * 2.0**q),
            "moves": np.zeros_like(centroids),
            "within": _stored(within),
            "doubts": _stored(doubts + DRIFT * within),
            "first": _stored(first),
            "mean_square": _stored(RADIUS_FACTOR * RADIUS_FACTOR * first),
            "radius": self._radius(first),
        }

    def _chosen(
        self, mixture: model.Mixture, radii: FloatArray, noise: model.Noise, rest: float
    ) -> tuple[int, model.Selection]:
        """Return the number of clusters that costs suggest, and its centres: the first rows."""
        numbers = range(self.fewest_clusters, self.n_clusters + 1)
        n_beside = self.domain.n_features - self.schedule.n_directions
        beside = rest / max(n_beside, 1)
        found = choice.selections(mixture, numbers, self.seed)
        costs = choice.costs_of(mixture, found, radii, noise, beside, n_beside)
        most = choice.most_suggested(mixture.weights, noise.counts)
        chosen = choice.suggested(numbers, costs, most)
        return chosen, choice.padded(found, chosen - self.fewest_clusters)

    def _after_refinement(
        self, state: State, answer: base.Statistic, flags: IntArray
    ) -> Arrays:
        number, before = state.round + 1, state.arrays
        q, noises, last = (
            self.fraction_bits,
            self.noise_of(number),
            self.schedule.last_synopsis,
        )
        sums, counts = scaled(answer.blocks[SUMS], q), scaled(answer.blocks[COUNTS], q)
        sizes_before, doubts_before = (
            scaled(before["counts"], q),
            _real(before["doubts"]),
        )
        count_noise = noises[COUNTS] * 2.0**-q
        flags[LIGHT] |= (counts < count_noise).any()
        radius = float(before["radius"][0]) / self._longest
        sizes = np.maximum(counts, max(count_noise, base.MIN_COUNT))
        moves = clip_rows(radius * sums / sizes[:, None], radius)
        errors = radius * noises[SUMS] * 2.0**-q / sizes
        moves, doubts = weighed(
            moves, doubts_before, errors * errors, before["projection"], q
        )
        moves = continued(moves, _real(before["moves"]))
        # With own clips, counts of the first round are of another size than those of
        # the synopsis.
        comparable = number > last + 1 or not self.clips
        missing = _held(answer, flags, sizes_before, counts, count_noise, comparable)
        moves[missing], doubts[missing] = 0.0, doubts_before[missing]
        counts = np.where(missing, sizes_before, counts)
        sizes = np.where(missing, sizes_before, sizes)
        # A centroid that moves by s comes nearer to each of its records by |s|^2 on
        # average.
        saved = math.fsum(sizes * row_sums(moves * moves))
        planned = self._planned if self.n_records else 0.0
        mean_square = float(_real(before["mean_square"])[0])
        mean_square -= saved / max(math.fsum(sizes), planned)
        mean_square = max(LEAST_RADIUS2 * float(_real(before["first"])[0]), mean_square)
        drift = DRIFT * math.prod([DRIFT_DECAY] * (number - last))
        wanted = clip_rows(before["centroids"] / self._longest + moves, 1.0)
        centroids = into_domain(to_grid(wanted * self._longest), self.domain, q)
        sized = {}
        if self.bounded:
            noise = max(count_noise / answer.answered, LEAST_NOISE)
            have, labels = self._sizes_of_points(before)
            reached = np.where(missing, have, counts / answer.answered)
            gain = transport.refinement_gain(reached, have, noise)
            sized = self._raked(
                {**before, "centroids": centroids}, labels, reached, gain
            )
        return {
            **sized,
            "centroids": centroids,
            "counts": to_grid(counts * 2.0**q),
            "moves": _stored(moves),
            "doubts": _stored(doubts + drift * _real(before["within"])),
            "mean_square": _stored(mean_square),
            "radius": self._radius(mean_square),
        }

    def _after_sizing(
        self, state: State, answer: base.Statistic, flags: IntArray
    ) -> Arrays:
        """Return what counts alone change: masses and weights, but not after the last round."""
        number, before = state.round + 1, state.arrays
        q, measured = self.fraction_bits, answer.blocks[COUNTS]
        if number == self.n_rounds:
            return {"counts": measured.copy()}
        counts = scaled(measured, q)
        missing = _held(
            answer, flags, scaled(before["counts"], q), counts, self.size_noise
        )
        noise = max(self.size_noise / answer.answered, LEAST_NOISE)
        have, labels = self._sizes_of_points(before)
        reached = np.where(missing, have, counts / answer.answered)
        variance = float(_real(before["size_variance"])[0]) * noise * noise
        gain, variance = transport.sizing_gain(reached, have, noise, variance)
        return {
            "counts": np.where(missing, before["counts"], measured),
            **self._raked(before, labels, reached, gain),
            "size_variance": _stored(variance / (noise * noise)),
        }

    # ------------------------------------------------------------- sizes of power cells

    def _weights(self, arrays: Mapping[str, IntArray]) -> IntArray:
        """Return weights with which the points' cells lie within the bounds."""
        costs, before = self._distances(arrays), arrays["weights"]
        return self._in_range(
            transport.power_weights(costs, arrays["masses"], *self._aim, before)
        )

    def _sizes_of_points(
        self, arrays: Mapping[str, IntArray]
    ) -> tuple[FloatArray, IntArray]:
        """Return how many records the points of each cell stand for, and the points' cells."""
        labels = transport.power_cells(self._distances(arrays), arrays["weights"])
        sizes = transport.cell_sizes(arrays["masses"], labels, self.n_clusters)
        return sizes / self._per_record, labels

    def _raked(
        self,
        arrays: Mapping[str, IntArray],
        labels: IntArray,
        counts: FloatArray,
        gain: float,
    ) -> Arrays:
        """Return masses after noisy counts, and weights for them."""
        masses = transport.rake(
            arrays["masses"], labels, counts * self._per_record, gain
        )
        return {
            "masses": masses,
            "weights": self._weights({**arrays, "masses": masses}),
        }

    def _distances(self, arrays: Mapping[str, IntArray]) -> FloatArray:
        """Return squared distances of all points to the centroids, in squared grid units."""
        points = model.drawn_points(arrays, self.n_clusters, self._words_of_points)
        on_grid = to_grid(scaled(points, model.MODEL_BITS) / self._projected_step)
        return distances(
            on_grid, arrays["centroids"], self.projection, arrays["projection"]
        )

    def _in_range(self, weights: NDArray[Any]) -> IntArray:
        """Return weights as integers that a query may hold."""
        most = largest_weight(self.domain.n_features, self.fraction_bits)
        return np.clip(to_grid(weights.astype(np.float64)), -most, most)

    @property
    def _per_record(self) -> float:
        """The mass of a record."""
        return 2.0**model.MASS_BITS / self._planned

    @property
    def _aim(self) -> tuple[float, float]:
        n_records = int(self._planned)
        high = n_records if self.max_size is None else self.max_size
        return transport.aim(
            self.min_size or 0, high, self.size_noise, n_records, self.n_clusters
        )

    @property
    def _words_of_points(self) -> np.random.Philox:
        """The words of the last round, which needs no others."""
        return round_words(self.seed, self.n_rounds)

    # ------------------------------------------------------------------ results

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d); ``None`` before there are any."""
        return self._found(state, super().centroids(state))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes, (k,); ``None`` before there are any."""
        return self._found(state, super().counts(state))

    def _found(self, state: State, rows: FloatArray | None) -> FloatArray | None:
        """Return the rows of clusters that were chosen: a state has the most, for equal steps."""
        if rows is None or "chosen" not in state.arrays:
            return rows
        return rows[: int(state.arrays["chosen"][0])]

    def weights(self, state: State) -> FloatArray | None:
        """Return the weights of the power diagram, (k,); ``None`` before there are any."""
        if "weights" not in state.arrays:
            return None
        unit = self.domain.common_unit or 1.0
        return scaled(state.arrays["weights"], 2 * self.fraction_bits) * (unit * unit)

    def sizes(self, state: State, noise_factor: float = 1.0) -> SizeReport | None:
        """Return the last round's noisy sizes beside the bounds; ``None`` before, or without."""
        counts, bounds = self.counts(state), self.size_bounds
        if bounds is None or state.round < self.n_rounds or counts is None:
            return None
        return SizeReport(
            tuple(counts.tolist()), self.size_noise * noise_factor, *bounds
        )

    @property
    def mixture_shape(self) -> tuple[int, int, tuple[float, float, float]]:
        """Most parts, directions, and the planned noise of a cell: count, sum and slack."""
        last, unit = self.schedule.last_synopsis, 2.0**-self.fraction_bits
        noises = self.noise_of(last)
        noise = noises[COUNTS] * unit, noises[SUMS] * unit, noises[SLACKS] * unit
        return self.schedule.n_cells(last), self.schedule.n_directions, noise

    def mixture(
        self, state: State, noise_factor: float = 1.0
    ) -> ReleasedMixture | None:
        """Return the mixture of the last synopsis round; ``None`` before it."""
        if "parts" not in state.arrays:
            return None
        arrays, q = state.arrays, self.fraction_bits
        found, longest = model.from_state(arrays), self._longest * 2.0**-q
        there, (d, p) = found.weights > 0, arrays["projection"].shape
        rest = float(_real(arrays["rest"])[0]) / max(d - p, 1)
        count, total, slack = (noise * noise_factor for noise in self.mixture_shape[-1])
        # The nearest orthonormal columns: those of the state are on a grid.
        left, _, right = np.linalg.svd(
            scaled(arrays["projection"], q), full_matrices=False
        )
        return ReleasedMixture(
            weights=found.weights[there],
            means=found.means[there] * longest,
            scales=np.maximum(found.scales[there], math.sqrt(model.SMALLEST)) * longest,
            directions=left @ right,
            rest=max(rest, model.SMALLEST) * longest * longest,
            radii=arrays["radii"][there] * (self._projected_step * longest),
            noise=(count, total, slack),
        )

    # ------------------------------------------------------------------ details

    @cached_property
    def projection(self) -> Projection:
        """The grids of the synopsis."""
        return Projection(self.domain, self.fraction_bits, self.schedule.n_directions)

    @property
    def _factor(self) -> float:
        """A radius over the root mean square of what it is to cut: larger with less noise."""
        k, d = self.n_clusters, self.domain.n_features
        # Finite without noise too, where the strength is not.
        signal = min(max(self.schedule.strength / (k * math.sqrt(d)), 0.1), 1e6)
        return min(2.6, max(1.0, 0.7 + 0.3 * float(logarithm(np.array(signal)))))

    @property
    def _planned(self) -> float:
        return math.inf if self.n_records is None else float(self.n_records)

    @property
    def _longest(self) -> float:
        """D, the largest norm of a record, in grid units."""
        return self.domain.l2_bound(self.fraction_bits)

    @property
    def _projected_step(self) -> float:
        """A step of the projection's grid over D."""
        return 2.0 ** (self.fraction_bits - self.projection.exponent) / self._longest

    def _radius(self, mean_square: float) -> IntArray:
        """Return a refinement round's radius, (1,), for a mean squared residual, on the grid."""
        radius = (
            min(1.0, RADIUS_FACTOR * self._factor * math.sqrt(mean_square))
            * self._longest
        )
        longest = math.isqrt(projections.squared_bound(self.domain, self.fraction_bits))
        return np.array([min(max(math.floor(radius), 1), longest)], dtype=np.int64)


def absent(expected: FloatArray, counts: FloatArray, noise: float) -> NDArray[np.bool_]:
    """Return which cells (m,) lack more records than noise of a standard deviation explains."""
    clear = expected > ABSENT_NOISE * max(noise, base.MIN_COUNT)
    return np.asarray(clear & (counts < ABSENT_SHARE * expected))


def _held(
    answer: base.Statistic,
    flags: IntArray,
    expected: FloatArray,
    counts: FloatArray,
    noise: float,
    comparable: bool = True,
) -> NDArray[np.bool_]:
    """Return which cells stay as they were, as clients did not answer, and flag that some do."""
    if answer.answered == 1 or not comparable:
        return np.zeros(len(counts), dtype=bool)
    missing = absent(expected, counts, noise)
    flags[HELD] |= missing.any()
    return missing


def continued(moves: FloatArray, before: FloatArray) -> FloatArray:
    """Return ``moves + max(0, cos) before``, (k, d): what both moves have in common goes on."""
    # Clipping and noise keep moves short: a centroid far from its records needs many
    # rounds, all in one direction. Noise has none.
    products = row_sums(moves * before)
    lengths = np.sqrt(row_sums(moves * moves)) * np.sqrt(row_sums(before * before))
    alike = np.maximum(products, 0.0) / np.maximum(
        lengths, model.SMALLEST * model.SMALLEST
    )
    return np.asarray(moves + alike[:, None] * before)


def weighed(
    moves: FloatArray,
    doubts: FloatArray,
    errors: FloatArray,
    directions: IntArray,
    bits: int,
) -> tuple[FloatArray, FloatArray]:
    """Return noisy moves (k, d), less where noise explains them, and the doubt (k, p + 1) left.

    A step of Kalman's filter, by direction: a move of variance P with noise of variance
    R is multiplied by P / (P + R), and leaves P R / (P + R). Doubts are expected
    squares of the true moves, of length 1 at most, by direction; the last for every
    direction beside them. Errors (k,) are variances of the noise, and directions (d, p)
    orthonormal integers of exponent ``bits``.
    """
    gains = doubts / (doubts + errors[:, None] + model.SMALLEST * model.SMALLEST)
    others = gains[:, -1:]
    along = _product(moves, directions, bits)
    kept = others * moves + _product(
        (gains[:, :-1] - others) * along, directions.T, bits
    )
    return np.asarray(kept), np.asarray((1 - gains) * doubts)


def _product(vectors: FloatArray, matrix: IntArray, bits: int) -> FloatArray:
    """Return vectors of length 1 at most, on a grid, times orthonormal columns or rows."""
    # By Cauchy and Schwarz no partial sum exceeds 2**(_MOVE_BITS + bits) by more than a
    # rounding of the columns, so the product of integers is exact in any order.
    integers = to_grid(vectors * 2.0**_MOVE_BITS).astype(np.float64)
    with single_threaded_blas():
        found: FloatArray = integers @ matrix.astype(np.float64)
    return found * 2.0 ** -(_MOVE_BITS + bits)


def distances(
    points: IntArray, centroids: IntArray, projection: Projection, matrix: IntArray
) -> FloatArray:
    """Return squared distances (n, k) of projected points (n, p) to centroids (k, d).

    Points are on the projection's grid and centroids on that of the records; distances
    are integers of at most 2^53, in squared units of the latter. A point has no part
    beside the directions, and a centroid c may have: ``|y - V'c|^2 + |c|^2 - |V'c|^2``.
    """
    factor = 4.0 ** (projection.fraction_bits - projection.exponent)
    with single_threaded_blas():
        whole = centroids.astype(np.float64)
        along = projection.project(whole, matrix.astype(np.float64))
        beside = np.einsum("ij,ij->i", whole, whole)
        beside -= np.einsum("ij,ij->i", along, along) * factor
    found = transport.squared_distances(points, along.astype(np.int64)) * factor
    found += np.maximum(beside, 0.0)  # the projection is rounded
    return np.minimum(found, 2.0**53)


def _stored(values: FloatArray | float) -> IntArray:
    """Return reals as integers of a state; a single one as (1,)."""
    return to_grid(np.atleast_1d(values) * 2.0**REAL_BITS)


def _real(integers: IntArray) -> FloatArray:
    return scaled(integers, REAL_BITS)
