"""Rounds of the synopsis: cells, and the mixture that their noisy sums describe.

See docs/guarantees, Theorem 22, "Cells" and "Model". A round assigns records to their
nearest cells. The noisy counts, residuals and slacks of the cells give a mixture. The
mixture gives the next cells, and after the last round the centroids (`synopsis_start`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.algorithms.numerics.grid_kmeans import grid_kmeans
from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.algorithms.numerics.initialization import round_words
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    clip_rows,
    expected_total,
    scaled,
    surely_counted,
    to_grid,
    zero_small,
)
from flower_kmeans.algorithms.numerics.projection import ProjectedRecords
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.algorithms.synopsis_absence import held
from flower_kmeans.algorithms.synopsis_constants import (
    FIRST,
    LEAST_OWN,
    LEAST_POOLED,
    LEAST_SAMPLE,
    LEAST_SPREAD,
    MODEL_BITS,
    MOST_OWN,
    MOST_POINTS_PER_CELL,
    MOST_POOLED,
    PARTITION_STEPS,
    POINTS_PER_CELL,
    PSEUDO_POINTS,
    SMALLEST,
)
from flower_kmeans.algorithms.synopsis_mixture import (
    CellNoise,
    Mixture,
    joined,
    nearest,
    prior,
    sample,
)
from flower_kmeans.algorithms.synopsis_start import Start
from flower_kmeans.algorithms.synopsis_state import (
    SLACKS,
    CountedCells,
    Directions,
    NamedIntegers,
    NoisySum,
    Note,
    Setting,
)
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.domain import GridRecords, row_sums


class Released(NamedTuple):
    """Noisy sums, (m, p), and slacks, (m,), in radii of the cells; counts, (m,), in records."""

    sums: FloatArray
    counts: FloatArray
    slacks: FloatArray


@dataclass(frozen=True, eq=False)
class CellsStage:
    """A round of the synopsis."""

    setting: Setting
    round_number: int
    n_cells: int
    """M, the number of cells of this round."""
    fractions: Mapping[str, float]
    """Fraction of the round's mu^2 for each block."""
    n_next: int | None
    """Number of cells of the next synopsis round, or ``None`` in the last one."""
    start: Start
    """The start of the refinement, which follows the last synopsis round."""

    def layout(self) -> Layout:
        """Return the blocks by cell: sums of residuals in radii, counts, and slacks."""
        m = self.n_cells
        p = self.setting.n_directions
        q = self.setting.fraction_bits
        sums = Block(SUMS, (m, p), q)
        counts = Block(COUNTS, (m,), q)
        slacks = Block(SLACKS, (m,), q)
        return Layout((sums, counts, slacks))

    def sensitivities(self) -> dict[str, float]:
        """Return each block's sensitivity: 1 over the root of its fraction of mu^2.

        Relative to these a record changes all blocks together by at most 1
        ("Sensitivity").
        """
        one = float(2**self.setting.fraction_bits)
        # The factor covers the rounding of root and quotient.
        return {
            name: one / math.sqrt(fraction) * (1 + 2.0**-50)
            for name, fraction in self.fractions.items()
        }

    def ranges(self) -> dict[str, Range]:
        """Return the ranges of directions, cells and radii."""
        d = self.setting.n_features
        p = self.setting.n_directions
        m = self.n_cells
        one = 2**self.setting.fraction_bits
        limit = self.setting.projection.limit
        return {
            "projection": Range((d, p), -one, one),
            "cells": Range((m, p), -limit, limit),
            "radii": Range((m,), 1, limit),
        }

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return residuals, counts and slacks of the records by nearest cell."""
        q = self.setting.fraction_bits
        matrix = query["projection"]
        projected = ProjectedRecords(records, self.setting.projection, matrix)
        sums, counts, slacks = cell_sums(projected, query["cells"], query["radii"], q)
        return Statistic({SUMS: sums, COUNTS: counts << q, SLACKS: slacks})

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits on residuals, no longer than 1, and on their squares."""
        one = 2.0**self.setting.fraction_bits
        return Meaning(sums=SUMS, length=one, shares=(SLACKS,), are_clusters=False)

    def after(
        self,
        before: StateArrays,
        found: NoisySum,
        flags: IntArray,
    ) -> NamedIntegers:
        """Return the next cells, or after the last round the centroids (`Stage.after`)."""
        setting = self.setting
        source = round_words(setting.seed, self.round_number)
        noise = CellNoise(
            sums=found.noise(SUMS),
            counts=found.noise(COUNTS),
            slacks=found.noise(SLACKS),
        )
        mixture = self._learned(before, found, noise, flags)
        if self.n_next is None:
            return self.start.after(mixture, before, noise, flags, source)

        unseen = self._unseen(mixture, before, found.answered)
        cells = partition(
            mixture, self.n_next, setting.factor, setting.step, source, unseen
        )
        return cells.to_arrays(setting.fraction_bits)

    def _learned(
        self, before: StateArrays, found: NoisySum, noise: CellNoise, flags: IntArray
    ) -> Mixture:
        """Return the mixture that the noisy sums describe ("Model").

        ``flags`` note whether cells were held, and whether no cell exceeded its noise.
        """
        cells = CountedCells.read(before, self.setting.fraction_bits)
        released = Released(
            sums=found.values(SUMS),
            counts=found.values(COUNTS),
            slacks=found.values(SLACKS),
        )
        counts = released.counts
        total = expected_total(
            counts, noise.counts, self.setting.n_records, found.answered
        )
        # The public number N may be too small.
        least = surely_counted(counts, noise.counts)
        missing = held(
            found,
            flags,
            cells.expected,
            comparable=self._follows_counts,
        )
        mixture, stood_out = learned(
            cells, released, noise, self.setting.step, max(total, least), missing
        )
        flags[Note.NO_CELL] |= not stood_out
        return mixture

    def _unseen(
        self, mixture: Mixture, before: StateArrays, answered: float
    ) -> Mixture | None:
        """Return the first model, for records of clients that missed the first round.

        These may lie where no other records do ("Where clients did not answer").
        """
        if answered == 1 or self._follows_counts:
            return None
        n_records = (1 - answered) * math.fsum(mixture.weights)
        first_model = prior(Directions.read(before).variances)
        return first_model._replace(weights=n_records * first_model.weights)

    @property
    def _follows_counts(self) -> bool:
        """Whether an earlier round has counted records."""
        return self.round_number > FIRST + 1


# --------------------------------------------------------------------------- cells


def partition(
    mixture: Mixture,
    n_cells: int,
    factor: float,
    step: float,
    source: np.random.Philox,
    unseen: Mixture | None = None,
) -> CountedCells:
    """Return cells for the records of a mixture, by k-means on a sample ("Cells").

    Parameters
    ----------
    mixture : Mixture
        The model of the counted records.
    n_cells : int
        M, the number of cells.
    factor : float
        Radii over the root mean square of the model's residuals.
    step : float
        Step of the grid of cells and radii, in units of D.
    source : Philox
        Public words to draw from.
    unseen : Mixture, optional
        The model of records that were not counted. They get cells, too, but do not
        count in ``expected``.
    """
    size = max(LEAST_SAMPLE, POINTS_PER_CELL * n_cells)
    size = min(size, MOST_POINTS_PER_CELL * n_cells)
    everything = mixture
    if unseen is not None:
        everything = joined(mixture, unseen)
    points = sample(everything, size, source)
    ones = np.ones(size, dtype=np.int64)
    found = grid_kmeans(
        points, ones, n_cells, source, n_starts=1, n_steps=PARTITION_STEPS
    )
    labels = nearest(points, found.points)
    variances, spread = _variances_within(points, found.points, labels)

    most = math.floor(1 / step)
    centers = to_grid(scaled(found.points, MODEL_BITS) / step)
    squares = row_sums(variances.copy())
    squares = np.maximum(squares, LEAST_SPREAD * spread)
    lengths = np.minimum(1.0, factor * np.sqrt(squares))
    radii = np.clip(np.floor(lengths / step), 1, most)

    if unseen is not None:
        counted = sample(mixture, size, source)
        labels = nearest(counted, found.points)
    return CountedCells(
        centers=np.clip(centers, -most, most),
        radii=radii.astype(np.int64),
        variances=variances,
        spread=spread,
        expected=_expected(mixture, labels, n_cells),
    )


def _expected(mixture: Mixture, labels: IntArray, n_cells: int) -> FloatArray:
    """Return the records of a mixture in each cell, (m,), from the cells of its points, (n,)."""
    n_points = np.bincount(labels, minlength=n_cells).astype(np.float64)
    records_of_point = math.fsum(mixture.weights) / len(labels)
    return np.asarray(n_points * records_of_point)


def _variances_within(
    points: IntArray, centers: IntArray, labels: IntArray
) -> tuple[FloatArray, float]:
    """Return the variances in each cell, (m, p), and the common sum over directions.

    A cell has few points. `PSEUDO_POINTS` with the variance of all cells are added to
    each cell, so no variance is near 0.
    """
    m = len(centers)
    residuals = points - centers[labels]
    squares = residuals * residuals
    sums = Groups(labels, m).sums(squares)  # exact, because squares are integers
    total = scaled(sums.sum(axis=0), 2 * MODEL_BITS)
    pooled = np.maximum(total / len(points), SMALLEST)
    counts = np.bincount(labels, minlength=m) + PSEUDO_POINTS
    variances = scaled(sums, 2 * MODEL_BITS) + PSEUDO_POINTS * pooled
    variances /= counts[:, None]
    return variances, math.fsum(pooled)


# --------------------------------------------------------------------------- model


def learned(
    cells: CountedCells,
    released: Released,
    noise: CellNoise,
    step: float,
    n_records: float,
    missing: BoolArray | None = None,
) -> tuple[Mixture, bool]:
    """Return the mixture that noisy sums of cells describe, and whether any cell stood out.

    A mean of residuals is shrunk towards the cell's centre, by its noise relative to
    the model's variance in that coordinate. A cell's variance is shrunk towards the
    variance of all cells ("Model").

    Parameters
    ----------
    cells : CountedCells
        The cells, with the model before this round.
    released : Released
        Noisy sums, counts and slacks of the m cells.
    noise : CellNoise
        Standard deviations of the noise of these.
    step : float
        Step of the cells' grid, in units of D.
    n_records : float
        Expected number of records in all cells, or infinity if it is unknown.
    missing : array of bool, (m,), optional
        Whether each cell is held. It then keeps its part of the model.
    """
    counts = released.counts
    stays = np.zeros(len(counts), dtype=bool)
    if missing is not None:
        stays = missing
    kept, stood_out = _kept_cells(counts, noise.counts, n_records, stays)
    least = max(noise.counts, MIN_COUNT)
    sizes = np.maximum(counts, least)
    radii = cells.radii.astype(np.float64) * step
    shape = cells.variances

    deviations = radii * noise.sums / sizes
    errors = np.square(deviations)[:, None]
    means = radii[:, None] * released.sums / sizes[:, None]
    means = clip_rows(means * shape / (shape + errors), radii)
    scales = _scales(cells, released, noise, radii, sizes, means, kept)
    # The remaining error is the posterior variance from the model's and the noise's
    # variances.
    left = shape * errors / (shape + errors)
    weights = np.where(kept, sizes, 0.0)
    centers = cells.centers.astype(np.float64) * step
    counted = Mixture(weights, centers + means, scales, left)
    before = Mixture(cells.expected, centers, np.sqrt(shape), shape)
    return _in_place(stays, before, counted), stood_out


def _in_place(stays: BoolArray, before: Mixture, counted: Mixture) -> Mixture:
    """Return the counted parts, with the parts before where ``stays``, (m,), is true."""
    aside = stays[:, None]
    return Mixture(
        weights=np.where(stays, before.weights, counted.weights),
        means=np.where(aside, before.means, counted.means),
        scales=np.where(aside, before.scales, counted.scales),
        errors=np.where(aside, before.errors, counted.errors),
    )


def _kept_cells(
    counts: FloatArray, noise: float, n_records: float, stays: BoolArray
) -> tuple[BoolArray, bool]:
    """Return whether each cell is kept, (m,), and whether any cell stood out.

    A cell is kept if PE-means' zeroing rule keeps it and its count exceeds its noise.
    If there is no such cell, and none ``stays``, the largest is kept.
    """
    kept = (zero_small(counts, n_records) > 0) & (counts > noise)
    kept &= ~stays
    stood_out = bool(kept.any() or stays.any())
    kept[np.argmax(counts)] |= not stood_out
    return kept, stood_out


def _scales(
    cells: CountedCells,
    released: Released,
    noise: CellNoise,
    radii: FloatArray,
    sizes: FloatArray,
    means: FloatArray,
    kept: BoolArray,
) -> FloatArray:
    """Return the standard deviations of the records within cells, (m, p).

    Radii, (m,), and means, (m, p), are in units of D, and sizes, (m,), in records. The
    slack of a cell gives its variance, which is shrunk towards the variance of all kept
    cells by its noise. The coordinates divide it in proportion to the model's
    variances.
    """
    spread = max(cells.spread, SMALLEST)
    squared_radii = np.square(radii)
    # 1 minus a record's slack is its square, so this has the noise of counts and
    # slacks.
    squares = squared_radii * (sizes - released.slacks)
    lengths = row_sums(means * means)

    # The total is 0 if all cells are held.
    total_size = math.fsum(np.where(kept, sizes, 0.0))
    total_size = max(total_size, MIN_COUNT)
    within = np.where(kept, squares - sizes * lengths, 0.0)
    pooled = math.fsum(within) / total_size
    pooled = max(pooled, LEAST_POOLED * spread)
    pooled = min(pooled, MOST_POOLED * spread)

    both = noise.slacks * noise.slacks + noise.counts * noise.counts
    doubt = np.square(squared_radii / sizes) * both
    own = squares / sizes - lengths
    # The prior assumes that the variances of cells differ by about their own size.
    square = pooled * pooled
    variances = pooled + square / (square + doubt) * (own - pooled)
    before = row_sums(cells.variances.copy())
    variances = np.clip(variances, LEAST_OWN * pooled, MOST_OWN * before)
    factors = variances / before
    return np.sqrt(cells.variances * factors[:, None])
