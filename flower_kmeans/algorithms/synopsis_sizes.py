"""Bounds on cluster sizes: power cells of points that stand for the records.

See docs/guarantees, Theorem 24, "After the sum". The same points are drawn from the
last mixture in every round. Noisy counts correct their masses, and weights give their
cells the wanted sizes. The last rounds release sizes alone.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.layout import COUNTS, Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import transport
from flower_kmeans.algorithms.numerics.assignment import largest_weight
from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.algorithms.numerics.initialization import round_words
from flower_kmeans.algorithms.numerics.postprocess import scaled, to_grid
from flower_kmeans.algorithms.numerics.projection import Projection
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.algorithms.synopsis_absence import held
from flower_kmeans.algorithms.synopsis_constants import (
    LEAST_NOISE,
    MASS_BITS,
    MODEL_BITS,
)
from flower_kmeans.algorithms.synopsis_mixture import Parts
from flower_kmeans.algorithms.synopsis_state import (
    NamedIntegers,
    NoisySum,
    Setting,
    one_real,
    stored,
)
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.threads import single_threaded_blas


class Sizes(NamedTuple):
    """The points' masses, and the weights that bring sizes within their bounds.

    Attributes
    ----------
    masses : array of int64, (n,)
        Masses of the points. At first the planned records have 2^40 together.
    weights : array of int64, (k,)
        Weights of the power diagram, in squared grid units.
    variance : float
        Variance of the cells' sizes, in squared standard deviations of a size's noise.
        A state calls it ``size_variance``.
    """

    masses: IntArray
    weights: IntArray
    variance: float

    @classmethod
    def read(cls, arrays: StateArrays) -> Self:
        """Return the sizes of a state's arrays."""
        return cls(
            masses=arrays["masses"],
            weights=arrays["weights"],
            variance=one_real(arrays["size_variance"]),
        )

    def to_arrays(self) -> NamedIntegers:
        """Return the arrays of a state."""
        return {
            "masses": self.masses,
            "weights": self.weights,
            "size_variance": stored(self.variance),
        }


class PointCells(NamedTuple):
    """The power cells of the points."""

    labels: IntArray
    """Cell of each point, (n,)."""
    sizes: FloatArray
    """Number of records that the points of each cell stand for, (k,)."""


@dataclass(frozen=True, eq=False)
class PowerCells:
    """The points of a run, and the power cells that they lie in."""

    setting: Setting
    bounds: tuple[int, int]
    """Least and largest size, in records."""
    size_noise: float
    """Planned standard deviation of a size in the last round, in records."""
    last_round: int

    # ------------------------------------------------------------------ points

    def points(self, parts: Parts) -> IntArray:
        """Return the points of a mixture, (n, p), on the grid of the model.

        They use the public words of the last round, which draws no others.
        """
        source = round_words(self.setting.seed, self.last_round)
        return parts.points(self.setting.n_clusters, source)

    def costs(
        self, parts: Parts, centroids: IntArray, projection: IntArray
    ) -> FloatArray:
        """Return squared distances of the points to centroids, (n, k), in squared grid units."""
        points = scaled(self.points(parts), MODEL_BITS)
        on_grid = to_grid(points / self.setting.step)
        return distances(on_grid, centroids, self.setting.projection, projection)

    def cells(self, costs: FloatArray, sizes: Sizes) -> PointCells:
        """Return the cells of the points, and the records that they stand for."""
        labels = transport.power_cells(costs, sizes.weights)
        masses = transport.cell_sizes(sizes.masses, labels, self.setting.n_clusters)
        return PointCells(labels, masses / self._mass_of_record)

    # ------------------------------------------------------------------ raking

    def raked(
        self, sizes: Sizes, labels: IntArray, counts: FloatArray, gain: float
    ) -> IntArray:
        """Return masses, (n,), whose cells come nearer to noisy counts, (k,) ("Raking").

        ``gain`` in [0, 1] is the fraction of the way.
        """
        wanted = counts * self._mass_of_record
        return transport.rake(sizes.masses, labels, wanted, gain)

    @property
    def _mass_of_record(self) -> float:
        return 2.0**MASS_BITS / self.setting.n_records

    # ------------------------------------------------------------------ weights

    @cached_property
    def aim(self) -> tuple[float, float]:
        """The bounds to aim at, as fractions of all masses ("Aim")."""
        low, high = self.bounds
        k = self.setting.n_clusters
        n_records = int(self.setting.n_records)
        return transport.aim(low, high, self.size_noise, n_records, k)

    def weights(
        self, costs: FloatArray, masses: IntArray, before: IntArray
    ) -> IntArray:
        """Return weights, (k,), that bring the cells' sizes within the bounds ("Weights").

        The search starts from the weights ``before``, (k,).
        """
        low, high = self.aim
        found = transport.power_weights(costs, masses, low, high, before)
        return self.in_range(found)

    def in_range(self, weights: NDArray[Any]) -> IntArray:
        """Return weights as integers within the range of a query."""
        most = largest_weight(self.setting.n_features, self.setting.fraction_bits)
        on_grid = to_grid(weights.astype(np.float64))
        return np.clip(on_grid, -most, most)


def records_reached(
    cells: PointCells, counts: FloatArray, missing: BoolArray, answered: float
) -> FloatArray:
    """Return the records of all clients by cell, (k,), from the noisy counts of a round.

    Counts cover only the clients that answered. Absent cells have the records that the
    points predict.
    """
    return np.where(missing, cells.sizes, counts / answered)


def least_noise(found: NoisySum) -> float:
    """Return the noise of a count, scaled to all clients, above 0."""
    return max(found.noise(COUNTS) / found.answered, LEAST_NOISE)


# ------------------------------------------------------------------ rounds for sizes


@dataclass(frozen=True, eq=False)
class SizingStage:
    """A round that releases sizes alone."""

    setting: Setting
    power_cells: PowerCells | None
    """The power cells. ``None`` in the last round, which measures the released weights."""

    def layout(self) -> Layout:
        """Return the block: counts by power cell."""
        shape = (self.setting.n_clusters,)
        return Layout((Block(COUNTS, shape, self.setting.fraction_bits),))

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity: one record, which changes one count."""
        return {COUNTS: float(2**self.setting.fraction_bits)}

    def ranges(self) -> dict[str, Range]:
        """Return the ranges of centroids and weights."""
        return power_diagram_ranges(self.setting, has_weights=True)

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return counts of the records by power cell."""
        q = self.setting.fraction_bits
        # No count depends on a radius.
        radii = np.full(self.setting.n_clusters, 1)
        weights = query["weights"]
        _, counts, _ = cell_sums(records, query["centroids"], radii, q, weights=weights)
        return Statistic({COUNTS: counts << q})

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits on counts of records."""
        return Meaning()

    def after(
        self,
        before: StateArrays,
        found: NoisySum,
        flags: IntArray,
    ) -> NamedIntegers:
        """Return counts, and new masses and weights (as `Stage.after`).

        The last round changes only the counts.
        """
        measured = found.blocks[COUNTS]
        power = self.power_cells
        if power is None:
            return {"counts": measured.copy()}

        counts_before = before["counts"]
        expected = scaled(counts_before, self.setting.fraction_bits)
        missing = held(found, flags, expected, comparable=True)
        sizes = Sizes.read(before)
        parts = Parts.read(before)
        costs = power.costs(parts, before["centroids"], before["projection"])
        cells = power.cells(costs, sizes)

        reached = records_reached(cells, found.values(COUNTS), missing, found.answered)
        noise = least_noise(found)
        variance = sizes.variance * noise * noise
        gain, left = transport.sizing_gain(reached, cells.sizes, noise, variance)
        masses = power.raked(sizes, cells.labels, reached, gain)
        weights = power.weights(costs, masses, sizes.weights)
        raked = Sizes(masses, weights, left / (noise * noise))
        counts = np.where(missing, counts_before, measured)
        return {"counts": counts, **raked.to_arrays()}


def power_diagram_ranges(setting: Setting, has_weights: bool) -> dict[str, Range]:
    """Return the ranges of centroids, and of weights if the run has them."""
    k = setting.n_clusters
    d = setting.n_features
    widths = setting.domain.grid_half_widths(setting.fraction_bits)
    ranges: dict[str, Range] = {"centroids": Range((k, d), -widths, widths)}
    if has_weights:
        most = largest_weight(d, setting.fraction_bits)
        ranges["weights"] = Range((k,), -most, most)
    return ranges


# ------------------------------------------------------------------------- distances


def distances(
    points: IntArray, centroids: IntArray, projection: Projection, matrix: IntArray
) -> FloatArray:
    """Return squared distances of projected points, (n, p), to centroids, (k, d), (n, k).

    Points are on the projection's grid, and centroids on the records' grid. Distances
    are integers of at most 2^53, in squared steps of the records' grid. Only a centroid
    c has a component orthogonal to the directions, so the squared distance of a point y
    is ``|y - V'c|^2 + |c|^2 - |V'c|^2``.
    """
    factor = 4.0 ** (projection.fraction_bits - projection.exponent)
    with single_threaded_blas():
        whole = centroids.astype(np.float64)
        along = projection.project(whole, matrix.astype(np.float64))
        beside = np.einsum("ij,ij->i", whole, whole)
        beside -= np.einsum("ij,ij->i", along, along) * factor
    found = transport.squared_distances(points, along.astype(np.int64)) * factor
    found += np.maximum(beside, 0.0)  # rounding of V may make it negative
    return np.minimum(found, 2.0**53)
