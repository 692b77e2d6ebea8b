"""Sums over cells: counts, residuals and slacks, relative to the radius of the cell.

A record's residual u is its offset from the nearest cell's centre, divided by the
cell's radius, moved into the unit ball and put on the grid. Its slack is
``w = 1 - |u|^2``. So for any cells ``|u|^2 + w^2 <= 1`` (docs/guarantees, Theorem 23).
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.numerics.assignment import Centers, fused_kernel
from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.arrays import IntArray
from flower_kmeans.data.domain import GridRecords, squared_norms
from flower_kmeans.threads import IntArrays, sum_in_parts

_BLOCK_NUMBERS = 2**18
_FEWEST_ROWS = 64
_ROW_WORK = 64  # products that take as long as reading a coordinate and its residual


class CellSums(NamedTuple):
    """Sums over the records of each of m cells.

    Attributes
    ----------
    sums : ndarray of shape (m, p), int64
        Sums of residuals, none longer than 1, in steps of 2**-q.
    counts : ndarray of shape (m,), int64
        Numbers of records.
    slacks : ndarray of shape (m,), int64
        Sums of slacks, each in [0, 1], in steps of 2**-q.
    """

    sums: IntArray
    counts: IntArray
    slacks: IntArray


class Cells:
    """Cells prepared for comparisons, once for all clients of a process.

    Parameters
    ----------
    centers : ndarray of shape (m, p), int64
        Points of a grid that passes ``assignment.check_exactness``.
    radii : ndarray of shape (m,), int64
        In grid units, in [1, 2**25].
    weights : ndarray of shape (m,), int64, optional
        Weights of a power diagram (`assignment.Centers`), which decide about the cell
        of a record. Residuals are offsets from the cell's centre all the same.
    """

    def __init__(
        self, centers: IntArray, radii: IntArray, weights: IntArray | None = None
    ) -> None:
        self.centers = centers
        self.radii = radii
        self.weights = weights
        self._centers = Centers(centers, weights)
        self._squares = radii.astype(np.float64)
        self._squares *= self._squares

    def sums(
        self, records: GridRecords, fraction_bits: int, weighted: bool = False
    ) -> CellSums:
        """Return the sums by cell. Residuals are rounded towards zero, slacks downward.

        A record adds the same integers in any block. Records must be on the grid of the
        centres.

        Parameters
        ----------
        records : GridRecords
        fraction_bits : int
            q, the fractional bits of residuals and slacks.
        weighted : bool
            Whether residuals are multiplied by the square root of 1 plus their slack w.
            They then use the whole sensitivity: ``|u|^2 (1 + w) + w^2 = 1``
            (docs/guarantees, Theorem 13).
        """
        n_records, p = records.shape
        m = len(self.centers)
        work = n_records * p * (m + _ROW_WORK)
        part = partial(self._sums, records, fraction_bits, weighted)
        fused = fused_kernel(work, p)
        if fused is not None:
            part = fused.cell_sums(
                records,
                self.centers,
                self.radii,
                fraction_bits,
                weighted,
                self.weights,
            )
        return CellSums(*sum_in_parts(n_records, work, part))

    def _sums(
        self,
        records: GridRecords,
        fraction_bits: int,
        weighted: bool,
        start: int,
        stop: int,
    ) -> IntArrays:
        """Return sums, counts and slacks of the rows from ``start`` to ``stop``."""
        m, p = self.centers.shape
        one = 2.0**fraction_bits
        sums = np.zeros((m, p), dtype=np.int64)
        counts = np.zeros(m, dtype=np.int64)
        slacks = np.zeros(m, dtype=np.int64)
        n_rows = max(_FEWEST_ROWS, _BLOCK_NUMBERS // p)
        n_rows = records.rows_at_once(n_rows, fraction_bits)
        for block, times in records.weighted_blocks(n_rows, start, stop):
            labels = self._centers.nearest(block)
            block -= self._centers.points.take(labels, axis=0)
            # These are exact, because offsets are integers.
            d2 = squared_norms(block)
            # Both are below 2**53, so their differences are exact.
            own = self._squares.take(labels)
            longer = np.maximum(own, d2)
            shares = longer - d2
            shares /= own  # one quotient is rounded
            shares *= one
            np.floor(shares, out=shares)
            factors = 1 + shares / one if weighted else 1.0  # the sum is exact
            factors = np.sqrt(factors / longer)
            factors *= one
            block *= factors[:, None]
            residuals = np.trunc(block, out=block)
            if times is not None:
                residuals *= times[:, None]
                shares *= times
            groups = Groups(labels, m)
            counts += np.bincount(labels, times, minlength=m).astype(np.int64)
            # Sums of integers below 2**53 are exact.
            sums += groups.sums(residuals).astype(np.int64)
            slacks += groups.sums(shares).astype(np.int64)
        return sums, counts, slacks


def cell_sums(
    records: GridRecords,
    centers: IntArray,
    radii: IntArray,
    fraction_bits: int,
    weighted: bool = False,
    weights: IntArray | None = None,
) -> CellSums:
    """Return `Cells.sums` of the records for the given centres, radii and weights."""
    return Cells(centers, radii, weights).sums(records, fraction_bits, weighted)
