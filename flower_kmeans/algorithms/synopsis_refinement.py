"""Refinement rounds of SynopsisKMeans: Lloyd steps that are weighted by their noise.

See docs/guarantees, Theorem 22, "Refinement". The steps are in all columns. With bounds
on sizes, clusters are power cells.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import transport
from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    clip_rows,
    into_domain,
    to_grid,
)
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.algorithms.synopsis_absence import held
from flower_kmeans.algorithms.synopsis_constants import (
    CLEAR_DRIFT_DECAY,
    DRIFT,
    DRIFT_DECAY,
    LEAST_BESIDE,
    LEAST_RADIUS2,
    MOVE_BITS,
    SMALLEST,
)
from flower_kmeans.algorithms.synopsis_mixture import Parts
from flower_kmeans.algorithms.synopsis_sizes import (
    PowerCells,
    Sizes,
    least_noise,
    power_diagram_ranges,
    records_reached,
)
from flower_kmeans.algorithms.synopsis_state import (
    Clusters,
    Directions,
    NamedIntegers,
    NoisySum,
    Note,
    Setting,
    Spread,
)
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.domain import GridRecords, row_sums
from flower_kmeans.threads import single_threaded_blas


class Residuals(NamedTuple):
    """The mean residuals of a round's clusters.

    Attributes
    ----------
    means : array of float64, (k, d)
        Noisy mean residuals, in D. They may be longer than the radius.
    errors : array of float64, (k,)
        Variance of the noise of each mean in every column, in D^2.
    """

    means: FloatArray
    errors: FloatArray


@dataclass(frozen=True, eq=False)
class RefinementStage:
    """A refinement round."""

    setting: Setting
    place: int
    """Number of the round among the refinement rounds, from 1."""
    follows_counts: bool
    """Whether the round before has counts with the same clip."""
    learns_beside: bool
    """Whether moves teach the doubts beside the live directions, which are then clear ones."""
    power_cells: PowerCells | None
    """The power cells, in runs with bounds on sizes."""

    def layout(self) -> Layout:
        """Return the blocks by cluster: sums of residuals in radii, and counts."""
        k = self.setting.n_clusters
        d = self.setting.n_features
        q = self.setting.fraction_bits
        return Layout((Block(SUMS, (k, d), q), Block(COUNTS, (k,), q)))

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity of each block: 1, because residuals are no longer than 1."""
        one = float(2**self.setting.fraction_bits)
        return {SUMS: one, COUNTS: one}

    def ranges(self) -> dict[str, Range]:
        """Return the ranges of centroids, weights and the radius."""
        has_weights = self.power_cells is not None
        ranges = power_diagram_ranges(self.setting, has_weights)
        ranges["radius"] = Range((1,), 1, self.setting.largest_radius)
        return ranges

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return residuals and counts of the records by cluster."""
        q = self.setting.fraction_bits
        radii = np.full(self.setting.n_clusters, query["radius"][0])
        weights = query.get("weights")
        sums, counts, _ = cell_sums(
            records, query["centroids"], radii, q, weights=weights
        )
        return Statistic({SUMS: sums, COUNTS: counts << q})

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits on residuals, which are no longer than the radius."""
        one = 2.0**self.setting.fraction_bits
        unit = float(before["radius"][0]) / one
        return Meaning(sums=SUMS, length=one, unit=unit, offsets=True)

    def after(
        self,
        before: StateArrays,
        found: NoisySum,
        flags: IntArray,
    ) -> NamedIntegers:
        """Return the moved clusters, and with bounds their weights (as `Stage.after`).

        ``flags`` note whether counts are within their noise, and whether clusters were
        held.
        """
        q = self.setting.fraction_bits
        clusters = Clusters.read(before, q)
        spread = Spread.read(before)
        counts = found.values(COUNTS)
        noise = found.noise(COUNTS)
        flags[Note.LIGHT] |= (counts < noise).any()
        missing = held(found, flags, clusters.counts, comparable=self.follows_counts)

        least = max(noise, MIN_COUNT)
        sizes = np.maximum(counts, least)
        residuals = self._residuals(clusters, found, sizes)
        directions = Directions.read(before)
        scale = self._scale_beside(clusters, residuals, directions, ~missing)
        clusters = clusters.with_doubts_beside(scale)
        spread = spread.with_variance_beside(scale)
        moves, doubts = self._moves(clusters, residuals, directions.projection)
        moves[missing] = 0.0
        doubts[missing] = clusters.doubts[missing]
        counts = np.where(missing, clusters.counts, counts)
        sizes = np.where(missing, clusters.counts, sizes)
        mean_square = self._mean_square(clusters, spread, sizes, moves)
        moved = Clusters(
            centroids=self._moved(clusters.centroids, moves),
            counts=counts,
            moves=moves,
            doubts=doubts + self._drifts(sizes)[:, None] * spread.within,
            mean_square=mean_square,
            radius=self.setting.radius(mean_square),
        )
        sized = self._sized(before, found, moved, missing)
        return {**sized, **spread.to_arrays(), **moved.to_arrays(q)}

    def _residuals(
        self, clusters: Clusters, found: NoisySum, sizes: FloatArray
    ) -> Residuals:
        """Return the mean residual of each cluster, with its noise."""
        radius = clusters.radius / self.setting.longest
        deviations = radius * found.noise(SUMS) / sizes
        return Residuals(
            means=radius * found.values(SUMS) / sizes[:, None],
            errors=deviations * deviations,
        )

    def _scale_beside(
        self,
        clusters: Clusters,
        residuals: Residuals,
        directions: Directions,
        counted: BoolArray,
    ) -> float:
        """Return the scale of all doubts beside the live directions, by this round's moves.

        ``counted``, (k,), says which moves count.
        """
        if not self.learns_beside:
            return 1.0
        q = self.setting.fraction_bits
        squares = squares_beside(residuals.means, directions.projection, q)
        # If d directions are live, there are no columns to learn from, and it is 1.
        return learned_scale(
            squares,
            clusters.doubts[:, -1],
            residuals.errors,
            directions.n_beside,
            counted,
        )

    def _moves(
        self, clusters: Clusters, residuals: Residuals, projection: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the moves of centroids, (k, d), in D, and the remaining doubts, (k, p + 1).

        A move is the mean residual, no longer than the radius, weighted by its noise.
        The move of the round before is added as far as it has the same direction.
        """
        q = self.setting.fraction_bits
        radius = clusters.radius / self.setting.longest
        means = clip_rows(residuals.means, radius)
        moves, doubts = weighed(means, clusters.doubts, residuals.errors, projection, q)
        return continued(moves, clusters.moves), doubts

    def _mean_square(
        self,
        clusters: Clusters,
        spread: Spread,
        sizes: FloatArray,
        moves: FloatArray,
    ) -> float:
        """Return the mean squared distance of the records after the moves, in D^2.

        If a centroid moves by s, the mean squared distance of its records falls by
        ``|s|^2``. The mean is over the planned records, or over the counted records if
        these are more.
        """
        squares = row_sums(moves * moves)
        saved = math.fsum(sizes * squares)
        n_records = math.fsum(sizes)
        if self.setting.n_records < math.inf:
            n_records = max(n_records, self.setting.n_records)
        left = clusters.mean_square - saved / n_records
        return max(LEAST_RADIUS2 * spread.first, left)

    def _moved(self, centroids: IntArray, moves: FloatArray) -> IntArray:
        """Return the centroids after their moves, (k, d), within the domain."""
        setting = self.setting
        wanted = clip_rows(centroids / setting.longest + moves, 1.0)
        on_grid = to_grid(wanted * setting.longest)
        return into_domain(on_grid, setting.domain, setting.fraction_bits)

    def _drifts(self, sizes: FloatArray) -> FloatArray:
        """Return the variances, (k,), that centroids gain for other reasons than noise.

        They are over the variance of the records, and depend on the numbers of records.
        """
        usual = DRIFT * math.prod([DRIFT_DECAY] * self.place)
        of_clear = DRIFT * math.prod([CLEAR_DRIFT_DECAY] * self.place)
        is_clear = sizes >= self.setting.clear_size
        return np.where(is_clear, of_clear, usual)

    def _sized(
        self,
        before: StateArrays,
        found: NoisySum,
        moved: Clusters,
        missing: BoolArray,
    ) -> NamedIntegers:
        """Return masses after noisy counts, and weights for the moved centroids.

        Without bounds on sizes nothing is returned ("Bounds on cluster sizes").
        """
        power = self.power_cells
        if power is None:
            return {}
        parts = Parts.read(before)
        sizes = Sizes.read(before)
        projection = before["projection"]
        costs = power.costs(parts, before["centroids"], projection)
        cells = power.cells(costs, sizes)
        reached = records_reached(cells, moved.counts, missing, found.answered)
        gain = transport.refinement_gain(reached, cells.sizes, least_noise(found))

        masses = power.raked(sizes, cells.labels, reached, gain)
        costs = power.costs(parts, moved.centroids, projection)
        weights = power.weights(costs, masses, sizes.weights)
        return {"masses": masses, "weights": weights}


def continued(moves: FloatArray, before: FloatArray) -> FloatArray:
    """Return ``moves + max(0, cos) before``, (k, d), which continues common directions."""
    # Clipping and weighting keep moves short, so a centroid far from its records needs
    # many rounds in one direction. Moves by noise have no common direction.
    products = np.maximum(row_sums(moves * before), 0.0)
    lengths = np.sqrt(row_sums(moves * moves))
    lengths_before = np.sqrt(row_sums(before * before))
    both = lengths * lengths_before
    cosines = products / np.maximum(both, SMALLEST * SMALLEST)
    return np.asarray(moves + cosines[:, None] * before)


def squares_beside(moves: FloatArray, directions: IntArray, bits: int) -> FloatArray:
    """Return the squared lengths of moves, (k,), orthogonal to directions.

    Moves, (k, d), may be longer than 1. ``directions`` and ``bits`` are those of
    `weighed`.
    """
    short = clip_rows(moves, 1.0)
    along = _product(short, directions, bits)
    beside = np.maximum(row_sums(short * short) - row_sums(along * along), 0.0)
    # A move that was shortened has the length 1.
    squares = np.maximum(row_sums(moves * moves), 1.0)
    return np.asarray(beside * squares)


def learned_scale(
    squares: FloatArray,
    doubts: FloatArray,
    errors: FloatArray,
    n_beside: int,
    counted: BoolArray,
) -> float:
    """Return the scale s with which s P + R is the mean square of moves in a direction.

    It is weighted least squares, with weights 1 / (P + R)^2, and with the expectation
    that s is 1 within 1. Where nothing can be learned, it is 1.

    Parameters
    ----------
    squares : array of float64, (k,)
        Squared lengths of the moves in ``n_beside`` orthogonal directions, in D^2.
    doubts : array of float64, (k,)
        P, the expected square of a true move in each of these directions.
    errors : array of float64, (k,)
        R, the variance of its noise.
    n_beside : int
        Number of the directions.
    counted : array of bool, (k,)
        Whether a move counts.
    """
    both = doubts + errors + SMALLEST * SMALLEST
    weights = np.where(counted, 1 / (both * both), 0.0)
    information = n_beside / 2 * math.fsum(weights * doubts * doubts)
    excess = squares - n_beside * errors
    if n_beside == 0:
        # Then squares are roundings.
        excess = np.zeros_like(squares)
    seen = math.fsum(weights * doubts * excess) / 2
    return max((1 + seen) / (1 + information), LEAST_BESIDE)


def weighed(
    moves: FloatArray,
    doubts: FloatArray,
    errors: FloatArray,
    directions: IntArray,
    bits: int,
) -> tuple[FloatArray, FloatArray]:
    """Return noisy moves shrunk by their noise, (k, d), and the remaining doubts, (k, p + 1).

    This is a step of Kalman's filter in each direction. A move of variance P with noise
    of variance R is multiplied by P / (P + R), and the variance P R / (P + R) remains.

    Parameters
    ----------
    moves : array of float64, (k, d)
        Moves in D, no longer than 1.
    doubts : array of float64, (k, p + 1)
        P, the expected squares of the true moves: along each direction, and in every
        direction orthogonal to the live ones.
    errors : array of float64, (k,)
        R, the variance of the noise in every direction.
    directions : array of int64, (d, p)
        Orthonormal columns, with ``bits`` fractional bits, or zeros.
    bits : int
        Fractional bits of the directions.
    """
    gains = doubts / (doubts + errors[:, None] + SMALLEST * SMALLEST)
    of_others = gains[:, -1:]
    along = _product(moves, directions, bits)
    beyond = (gains[:, :-1] - of_others) * along
    kept = of_others * moves + _product(beyond, directions.T, bits)
    left = (1 - gains) * doubts
    return np.asarray(kept), np.asarray(left)


def _product(vectors: FloatArray, matrix: IntArray, bits: int) -> FloatArray:
    """Return the product of vectors, of length at most 1, with orthonormal columns or rows."""
    # By Cauchy and Schwarz no partial sum exceeds 2**(MOVE_BITS + bits) by more than a
    # rounding of the columns, so the product of integers is exact in any order.
    integers = to_grid(vectors * 2.0**MOVE_BITS).astype(np.float64)
    with single_threaded_blas():
        found: FloatArray = integers @ matrix.astype(np.float64)
    return found * 2.0 ** -(MOVE_BITS + bits)
