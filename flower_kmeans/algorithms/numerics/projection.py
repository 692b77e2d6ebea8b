"""Second moments of records, and projections to a few directions, in exact integers."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.assignment import fused_kernel
from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords, squared_norms
from flower_kmeans.threads import single_threaded_blas, sum_in_parts

MOMENTS = "moments"
# most fractional bits of records in second moments: steps of a thousandth of the domain
MOMENT_BITS = 10

_MAX_BITS = 25
_BLOCK_BYTES = 2**22
_FEWEST_ROWS = 64
_MAX_ROWS = 2**15
_ROW_WORK = 64  # products that take as long as reading a coordinate
_FUSED_COLUMNS = 64  # for more columns BLAS is faster than the kernel


# ----------------------------------------------------------------------- second moments


def moment_bits(fraction_bits: int) -> int:
    """Return q', the fractional bits of the coarser grid of second moments."""
    return min(fraction_bits, MOMENT_BITS)


def squared_bound(domain: Domain, fraction_bits: int, coarser: int = 0) -> int:
    """Return the largest squared norm of a record, exactly.

    Coordinates are without their ``coarser`` last bits.
    """
    return domain.squared_bound(fraction_bits, coarser)


def second_moments(records: GridRecords) -> IntArray:
    """Return X'^T X' of the records on the coarser grid, (d (d + 1) / 2,), int64.

    The diagonal, (d,), comes first, and then the entries above it, row by row. They are
    in steps of ``2**(-2 q')``. Coordinates are truncated towards zero, which cannot
    lengthen a record.
    """
    d = records.shape[1]
    bits = moment_bits(records.fraction_bits)
    factor = 2.0 ** (bits - records.fraction_bits)
    # With few rows, adding the product to the total would take longer than the product.
    # A record adds at most 4**bits to an entry, and entries below 2**53 are exact.
    exact_rows = records.rows_at_once(2 ** (53 - 2 * bits), 2 * bits)
    rows = min(max(_rows(d), min(d, _MAX_ROWS)), exact_rows)

    def part(start: int, stop: int) -> tuple[IntArray]:
        total = np.zeros((d, d), dtype=np.int64)
        for block, times in records.weighted_blocks(rows, start, stop):
            block *= factor
            np.trunc(block, out=block)
            other = block
            if times is not None:
                other = block * times[:, None]
            total += (block.T @ other).astype(np.int64)
        return (total,)

    work = records.shape[0] * d * (d + _ROW_WORK)
    fused = fused_kernel(work, d) if d <= _FUSED_COLUMNS else None
    if fused is None or records.weights is not None:
        in_range = part
    else:
        in_range = fused.second_moments(records, bits)
    (total,) = sum_in_parts(records.shape[0], work, in_range)
    above = total[np.triu_indices(d, 1)]
    return np.concatenate([np.diagonal(total), above])


def moment_units(domain: Domain, fraction_bits: int) -> FloatArray:
    """Return the sensitivities of second moments, (d (d + 1) / 2,), in grid units.

    They are D'^2 on the diagonal and D'^2 / sqrt 2 above it. D' is the largest norm of
    a record on the coarser grid (docs/guarantees, Theorem 19).
    """
    d = domain.n_features
    coarser = fraction_bits - moment_bits(fraction_bits)
    bound = float(squared_bound(domain, fraction_bits, coarser))
    above = math.nextafter(bound / math.sqrt(2.0), math.inf)
    n_above = d * (d - 1) // 2
    return np.concatenate([np.full(d, bound), np.full(n_above, above)])


def symmetric(words: NDArray[np.generic], n_features: int) -> FloatArray:
    """Return the symmetric matrix, (d, d), from words of `second_moments`."""
    d = n_features
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d, 1)] = words[d:]
    matrix += matrix.T
    matrix[np.diag_indices(d)] = words[:d]
    return matrix


def noise_edge(n_features: int, deviation: float) -> float:
    """Return about the largest eigenvalue of the noise in second moments.

    It has the unit of ``deviation``, the standard deviation of the noise on the diagonal.
    Off-diagonal entries have 1 / sqrt 2 of it (Wigner's semicircle law).
    """
    return math.sqrt(2 * n_features) * deviation


# -------------------------------------------------------------------------- projections


@dataclass(frozen=True)
class Projection:
    """The grids of a projection from d columns to a few directions.

    A projected record is ``trunc(x V / 2**shift)``, which is the same in any block. It
    is cut to ``[-limit, limit]``, where squared distances are exact. An orthonormal V
    never reaches the limit.

    Attributes
    ----------
    domain : Box or Ball
        The domain of the records.
    fraction_bits : int
        q, the fractional bits of the records and of V.
    n_directions : int
        p, the number of directions.
    most_bits : int
        Most bits of a projected coordinate. Fewer bits make comparisons faster.
    """

    domain: Domain
    fraction_bits: int
    n_directions: int
    most_bits: int = _MAX_BITS

    @cached_property
    def bits(self) -> int:
        """Bits of a projected coordinate, so few that squared distances are exact."""
        exact_bits = (51 - (self.n_directions - 1).bit_length()) // 2
        return min(self.most_bits, exact_bits)

    @cached_property
    def shift(self) -> int:
        """Last bits of ``x V`` to drop: those of V, and more if records are too long."""
        longest = math.isqrt(squared_bound(self.domain, self.fraction_bits)) + 1
        too_long = max(0, longest.bit_length() - self.bits)
        return self.fraction_bits + too_long

    @property
    def exponent(self) -> int:
        """Fractional bits of projected coordinates: i means ``i * 2**-exponent``."""
        return 2 * self.fraction_bits - self.shift

    @property
    def limit(self) -> int:
        """Largest absolute projected coordinate."""
        return int(2**self.bits)

    def matrix(self, directions: FloatArray) -> IntArray:
        """Return directions, (d, n_directions), on the grid, int64."""
        one = 2**self.fraction_bits
        grid: FloatArray = np.clip(np.rint(directions * one), -one, one)
        return grid.astype(np.int64)

    def project(self, points: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return the projections of points, (n, n_directions).

        Points, (n, d), matrix and result are integers in float64.
        """
        projected: FloatArray = points @ matrix
        projected *= 2.0**-self.shift
        np.trunc(projected, out=projected)
        return np.clip(projected, -self.limit, self.limit, out=projected)

    def lift(self, projected: IntArray, matrix: IntArray) -> FloatArray:
        """Return points, (k, d), with the given projections, in grid units of records."""
        coordinates = projected.astype(np.float64)
        directions = matrix.astype(np.float64)
        with single_threaded_blas():
            points: FloatArray = coordinates @ directions.T
        return points * 2.0**-self.exponent


class ProjectedRecords(GridRecords):
    """Records after a projection, which is computed block by block."""

    def __init__(
        self, records: GridRecords, projection: Projection, matrix: IntArray
    ) -> None:
        self._inner = records
        self.weights = records.weights
        self._projection = projection
        self._matrix = matrix.astype(np.float64)
        self.fraction_bits = projection.bits

    @property
    def shape(self) -> tuple[int, int]:
        """Number of records and number of directions."""
        return self._inner.shape[0], self._projection.n_directions

    def read(
        self, start: int, out: FloatArray, scratch: FloatArray | None = None
    ) -> None:
        """Write projected rows ``start`` to ``start + len(out)`` into ``out``."""
        step = _rows(self._inner.shape[1])
        for first in range(0, len(out), step):
            part = out[first : first + step]
            block = np.empty((len(part), self._inner.shape[1]))
            self._inner.read(start + first, block)
            part[...] = self._projection.project(block, self._matrix)


def lifted_sums(
    records: GridRecords,
    projection: Projection,
    matrix: IntArray,
    centers: IntArray,
    margin: float = 1.0,
) -> tuple[IntArray, IntArray]:
    """Return the sums, (k, d), and numbers, (k,), of records by nearest projected centre.

    ``centers`` has the shape (k, p). A record counts only if its nearest centre is at
    most ``margin`` times as far as the second nearest.
    """
    k = len(centers)
    d = records.shape[1]
    points = centers.astype(np.float64)
    directions = matrix.astype(np.float64)
    n_rows = records.rows_at_once(_rows(d + k), records.fraction_bits)

    def part(start: int, stop: int) -> tuple[IntArray, IntArray]:
        sums = np.zeros((k, d), dtype=np.int64)
        counts = np.zeros(k, dtype=np.int64)
        for block, times in records.weighted_blocks(n_rows, start, stop):
            projected = projection.project(block, directions)
            labels = _nearest(projected, points, margin)
            if times is not None:
                block *= times[:, None]
            # Sums are exact, because all integers are below 2**53. Records of the last
            # group do not count.
            of_groups = Groups(labels, k + 1).sums(block)
            sums += of_groups[:k].astype(np.int64)
            found = np.bincount(labels, times, minlength=k + 1)[:k]
            counts += found.astype(np.int64)
        return sums, counts

    n = records.shape[0]
    work = n * d * (projection.n_directions + k + _ROW_WORK)
    sums, counts = sum_in_parts(n, work, part)
    return sums, counts


def _nearest(
    points: FloatArray, centers: FloatArray, margin: float
) -> NDArray[np.intp]:
    """Return the nearest centre of each point, or k if the second is about as near.

    Ties go to the first centre.
    """
    scores = points @ (-2 * centers.T)
    scores += squared_norms(centers)
    labels: NDArray[np.intp] = scores.argmin(axis=1)
    if margin < 1 and len(centers) > 1:
        # Squared distances are integers below 2**53. Only the product with the margin
        # rounds, alike in every block.
        scores += squared_norms(points)[:, None]
        ordered = np.partition(scores, 1, axis=1)
        nearest = ordered[:, 0]
        second = ordered[:, 1]
        labels[nearest > margin * margin * second] = len(centers)
    return labels


def _rows(width: int) -> int:
    """Return the number of rows to read at a time, for rows of ``width`` numbers."""
    return max(_FEWEST_ROWS, min(_MAX_ROWS, _BLOCK_BYTES // (8 * width)))
