"""Second moments of records, and projections to a few directions, in exact integers."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.assignment import fused_kernel
from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.data.domain import Ball, Domain, GridRecords, IntArray
from flower_kmeans.data.records import FloatArray
from flower_kmeans.threads import single_threaded_blas, sum_in_parts

MOMENTS = "moments"
# most of the records behind second moments: a thousandth of the domain
MOMENT_BITS = 10

_MAX_BITS = 25
_BLOCK_BYTES = 2**22
_FEWEST_ROWS = 64
_MAX_ROWS = 2**15
_ROW_WORK = 64  # of a coordinate, in products: what reading it costs
_FUSED_COLUMNS = 64  # of more, BLAS is quicker than the kernel


# ----------------------------------------------------------------------- second moments


def moment_bits(fraction_bits: int) -> int:
    """Return the fractional bits q' of the coarser grid on which second moments are taken."""
    return min(fraction_bits, MOMENT_BITS)


def squared_bound(domain: Domain, fraction_bits: int, coarser: int = 0) -> int:
    """Return the largest squared norm of a record, exactly, without its ``coarser`` last bits."""
    if isinstance(domain, Ball):
        return int(4 ** (fraction_bits - coarser))
    return sum((int(g) >> coarser) ** 2 for g in domain.grid_half_widths(fraction_bits))


def second_moments(records: GridRecords) -> IntArray:
    """Return X'^T X' of the records on the coarser grid, as words (d (d + 1) / 2,).

    The diagonal (d,), then the entries above it, row by row, of exponent ``2 q'``.
    Every coordinate loses its last bits toward zero, which cannot lengthen a record.
    """
    d = records.shape[1]
    bits = moment_bits(records.fraction_bits)
    factor = 2.0 ** (bits - records.fraction_bits)
    # A product of few rows would cost less than adding it to the total. Its entries are
    # integers of at most 4**bits a record, and exact below 2**53.
    rows = min(max(_rows(d), min(d, _MAX_ROWS)), 2 ** (53 - 2 * bits))

    def part(start: int, stop: int) -> tuple[IntArray]:
        total = np.zeros((d, d), dtype=np.int64)
        for block in records.blocks(rows, start, stop):
            block *= factor
            np.trunc(block, out=block)
            total += (block.T @ block).astype(np.int64)
        return (total,)

    work = records.shape[0] * d * (d + _ROW_WORK)
    fused = fused_kernel(work, d) if d <= _FUSED_COLUMNS else None
    in_range = part if fused is None else fused.second_moments(records, bits)
    (total,) = sum_in_parts(records.shape[0], work, in_range)
    return np.concatenate([np.diagonal(total), total[np.triu_indices(d, 1)]])


def moment_units(domain: Domain, fraction_bits: int) -> FloatArray:
    """Return the sensitivities of second moments, (d (d + 1) / 2,), in their grid units.

    D'^2 for the diagonal and D'^2 / sqrt 2 above it, D' the largest norm of a record on
    the coarser grid (docs/guarantees.md, "FedDP-KMeans").
    """
    d = domain.n_features
    bound = float(
        squared_bound(domain, fraction_bits, fraction_bits - moment_bits(fraction_bits))
    )
    above = math.nextafter(bound / math.sqrt(2.0), math.inf)
    return np.concatenate([np.full(d, bound), np.full(d * (d - 1) // 2, above)])


def symmetric(words: NDArray[np.generic], n_features: int) -> FloatArray:
    """Return the symmetric matrix (d, d) float64 whose diagonal and upper triangle are given."""
    d = n_features
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d, 1)] = words[d:]
    matrix += matrix.T
    matrix[np.diag_indices(d)] = words[:d]
    return matrix


def leading_directions(
    words: IntArray, n_features: int, n_directions: int
) -> tuple[FloatArray, FloatArray]:
    """Return the leading eigenvectors (d, p) of noisy second moments, and their eigenvalues (p,).

    In descending order; the first columns and NaN if the decomposition failed.
    """
    try:
        with np.errstate(all="ignore"), single_threaded_blas():
            values, vectors = np.linalg.eigh(symmetric(words, n_features))
    except np.linalg.LinAlgError:
        return np.eye(n_features, n_directions), np.full(n_directions, np.nan)
    # `eigh` gives ascending eigenvalues.
    last = slice(None, -n_directions - 1, -1)
    return vectors[:, last], values[last]


# -------------------------------------------------------------------------- projections


@dataclass(frozen=True)
class Projection:
    """The grids of a projection from d columns to a few.

    A projected record is ``trunc(x V / 2**shift)``, the same alone and in any block. It
    is cut to ``[-limit, limit]``, where squared distances are exact; an orthonormal V
    never reaches that.
    """

    domain: Domain
    fraction_bits: int  # q, of the records and of V
    n_directions: int
    most_bits: int = _MAX_BITS  # of a projected coordinate: fewer leave room for speed

    @cached_property
    def bits(self) -> int:
        """Bits of the largest projected coordinate, with which squared distances are exact."""
        return min(self.most_bits, (51 - (self.n_directions - 1).bit_length()) // 2)

    @cached_property
    def shift(self) -> int:
        """Bits that are cut off ``x V``: as many as V has, or more if records are too long."""
        longest = math.isqrt(squared_bound(self.domain, self.fraction_bits)) + 1
        return self.fraction_bits + max(0, longest.bit_length() - self.bits)

    @property
    def exponent(self) -> int:
        """A projected coordinate i stands for ``i * 2**-exponent``."""
        return 2 * self.fraction_bits - self.shift

    @property
    def limit(self) -> int:
        """Largest absolute projected coordinate."""
        return int(2**self.bits)

    def matrix(self, directions: FloatArray) -> IntArray:
        """Return directions (d, n_directions) on the grid, int64."""
        one = 2**self.fraction_bits
        grid: FloatArray = np.clip(np.rint(directions * one), -one, one)
        return grid.astype(np.int64)

    def project(self, points: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return projected points (n, n_directions); all are integers in float64."""
        projected: FloatArray = points @ matrix
        projected *= 2.0**-self.shift
        np.trunc(projected, out=projected)
        return np.clip(projected, -self.limit, self.limit, out=projected)

    def lift(self, projected: IntArray, matrix: IntArray) -> FloatArray:
        """Return the points (k, d) of the record's grid units whose projections are given."""
        with single_threaded_blas():
            points: FloatArray = (
                projected.astype(np.float64) @ matrix.astype(np.float64).T
            )
        return points * 2.0**-self.exponent


class ProjectedRecords(GridRecords):
    """Records seen through a projection, made block by block."""

    def __init__(
        self, records: GridRecords, projection: Projection, matrix: IntArray
    ) -> None:
        self._inner = records
        self._projection = projection
        self._matrix = matrix.astype(np.float64)
        self.fraction_bits = projection.bits

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of records and of directions."""
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
    """Return the sum (k, d) and the number (k,) of the records of each projected centre (k, p).

    A record counts for its nearest centre only if that is at most ``margin`` times as
    far as the second nearest.
    """
    k, d = len(centers), records.shape[1]
    points, work = centers.astype(np.float64), matrix.astype(np.float64)

    def part(start: int, stop: int) -> tuple[IntArray, IntArray]:
        sums, counts = np.zeros((k, d), dtype=np.int64), np.zeros(k, dtype=np.int64)
        for block in records.blocks(_rows(d + k), start, stop):
            labels = _nearest(projection.project(block, work), points, margin)
            # Integers below 2**53, so exact; the last group is of those that count for
            # none.
            sums += Groups(labels, k + 1).sums(block)[:k].astype(np.int64)
            counts += np.bincount(labels, minlength=k + 1)[:k]
        return sums, counts

    n = records.shape[0]
    sums, counts = sum_in_parts(
        n, n * d * (projection.n_directions + k + _ROW_WORK), part
    )
    return sums, counts


def _nearest(
    points: FloatArray, centers: FloatArray, margin: float
) -> NDArray[np.intp]:
    """Return the nearest centre of each point, the lowest of several, or k if it is ambiguous."""
    scores = points @ (-2 * centers.T)
    scores += np.einsum("ij,ij->i", centers, centers)
    labels: NDArray[np.intp] = scores.argmin(axis=1)
    if margin < 1 and len(centers) > 1:
        # Squared distances are integers below 2**53; one product rounds, alike for
        # every record.
        scores += np.einsum("ij,ij->i", points, points)[:, None]
        nearest, second = np.partition(scores, 1, axis=1)[:, :2].T
        labels[nearest > margin * margin * second] = len(centers)
    return labels


def _rows(width: int) -> int:
    return max(_FEWEST_ROWS, min(_MAX_ROWS, _BLOCK_BYTES // (8 * width)))
