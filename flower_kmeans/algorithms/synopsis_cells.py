"""Rounds of the synopsis: cells, and the model that noisy sums of them give.

See docs/guarantees, Theorem 22, "Cells" and "Model". A round counts records by
nearest cell. Noisy counts, residuals and slacks of cells give a mixture, and the
mixture gives the next cells; the last one gives centroids (`synopsis_start`).
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
    """Noisy sums (m, p) and slacks (m,) in radii of their cells, counts (m,) in records."""

    sums: FloatArray
    counts: FloatArray
    slacks: FloatArray


@dataclass(frozen=True, eq=False)
class CellsStage:
    """A round of the synopsis."""

    setting: Setting
    round_number: int
    n_cells: int
    """M, of this round."""
    fractions: Mapping[str, float]
    """Of the round's mu^2, by block."""
    n_next: int | None
    """Number of cells of the next round of the synopsis; ``None`` in the last one."""
    start: Start
    """Of the refinement, after the last one."""

    def layout(self) -> Layout:
        """Return sums of residuals in radii, counts, and slacks, by cell."""
        m = self.n_cells
        p = self.setting.n_directions
        q = self.setting.fraction_bits
        sums = Block(SUMS, (m, p), q)
        counts = Block(COUNTS, (m,), q)
        slacks = Block(SLACKS, (m,), q)
        return Layout((sums, counts, slacks))

    def sensitivities(self) -> dict[str, float]:
        """Return 1 over the root of each block's fraction of the round's mu^2.

        In these units a record changes all blocks together by 1 at most
        ("Sensitivity").
        """
        one = float(2**self.setting.fraction_bits)
        # Root and quotient are rounded, and the unit is made larger by more than they
        # can lack.
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
        """Return the limits of residuals no longer than 1, and of their squares."""
        one = 2.0**self.setting.fraction_bits
        return Meaning(sums=SUMS, length=one, shares=(SLACKS,), are_clusters=False)

    def after(
        self,
        before: StateArrays,
        found: NoisySum,
        flags: IntArray,
    ) -> NamedIntegers:
        """Return the next cells; after the last round, centroids (as `Stage.after`)."""
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

        Noted is that cells were held, or that none stood out of the noise.
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
        # The public figure for N may be too small.
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
        """Return the first model, for records of clients that did not answer the first round.

        They may lie where no others do ("Where clients did not answer").
        """
        if answered == 1 or self._follows_counts:
            return None
        n_records = (1 - answered) * math.fsum(mixture.weights)
        first_model = prior(Directions.read(before).variances)
        return first_model._replace(weights=n_records * first_model.weights)

    @property
    def _follows_counts(self) -> bool:
        """Whether a round before has counted records."""
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
    """Return cells for the records of a mixture: k-means of a sample of it ("Cells").

    Parameters
    ----------
    mixture : Mixture
        The model of the records that were counted.
    n_cells : int
        M, the number of cells.
    factor : float
        Radii are as many root mean squares of the model's residuals.
    step : float
        Of the grid of cells and radii, in units of D.
    source : Philox
        Words to draw from.
    unseen : Mixture, optional
        The model of records that were not counted. Cells are also made for them, but
        none are expected there.
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
    """Return the records (m,) of a mixture in each cell, by the cells (n,) of its points."""
    n_points = np.bincount(labels, minlength=n_cells).astype(np.float64)
    records_of_point = math.fsum(mixture.weights) / len(labels)
    return np.asarray(n_points * records_of_point)


def _variances_within(
    points: IntArray, centers: IntArray, labels: IntArray
) -> tuple[FloatArray, float]:
    """Return the variances (m, p) of points in each cell, and their sum over all cells alike.

    Cells have few points. Some that are spread as all are keep the variances apart from
    0.
    """
    m = len(centers)
    residuals = points - centers[labels]
    squares = residuals * residuals
    sums = Groups(labels, m).sums(squares)  # of integers
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

    A mean of residuals is drawn towards the cell's centre by as much as its noise has
    of the model's variance in that coordinate; a variance towards that of all cells
    ("Model").

    Parameters
    ----------
    cells : Cells
        The cells, with the model of them before.
    released : Released
        Noisy sums, counts and slacks of the m cells.
    noise : Noise
        Their standard deviations.
    step : float
        Of the cells' grid, in units of D.
    n_records : float
        Records to be found in all cells; infinite if nothing is known of them.
    missing : array of bool, (m,), optional
        Cells whose records are missing: they stay as the model had them.
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
    # An error that is left is the posterior variance, of the model's and the noise's
    # together.
    left = shape * errors / (shape + errors)
    weights = np.where(kept, sizes, 0.0)
    centers = cells.centers.astype(np.float64) * step
    counted = Mixture(weights, centers + means, scales, left)
    before = Mixture(cells.expected, centers, np.sqrt(shape), shape)
    return _in_place(stays, before, counted), stood_out


def _in_place(stays: BoolArray, before: Mixture, counted: Mixture) -> Mixture:
    """Return the counted parts, and for those that stay (m,) the parts before."""
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
    """Return the mask (m,) of cells whose count is worth its noise, and whether any stood out.

    PE-means' zeroing rule, then a count above its noise. If there is none, and none
    ``stays``, the largest is kept.
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
    """Return the standard deviations (m, p) of the records within cells.

    Radii (m,) and means (m, p) are in units of D, sizes (m,) in records. A cell's
    variance is that of its slack, drawn towards the one of all kept cells by its noise;
    coordinates divide it as the model's variances do.
    """
    spread = max(cells.spread, SMALLEST)
    squared_radii = np.square(radii)
    # What a record's slack lacks of 1 is its square: the noise of both is in it.
    squares = squared_radii * (sizes - released.slacks)
    lengths = row_sums(means * means)

    # of none where all that is there stays
    total_size = math.fsum(np.where(kept, sizes, 0.0))
    total_size = max(total_size, MIN_COUNT)
    within = np.where(kept, squares - sizes * lengths, 0.0)
    pooled = math.fsum(within) / total_size
    pooled = max(pooled, LEAST_POOLED * spread)
    pooled = min(pooled, MOST_POOLED * spread)

    both = noise.slacks * noise.slacks + noise.counts * noise.counts
    doubt = np.square(squared_radii / sizes) * both
    own = squares / sizes - lengths
    # As if the variances of cells differed among themselves by as much as they are
    # large.
    square = pooled * pooled
    variances = pooled + square / (square + doubt) * (own - pooled)
    before = row_sums(cells.variances.copy())
    variances = np.clip(variances, LEAST_OWN * pooled, MOST_OWN * before)
    factors = variances / before
    return np.sqrt(cells.variances * factors[:, None])
