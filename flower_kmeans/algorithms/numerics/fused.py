"""The statistics of `assignment`, `cells` and `projection` in one compiled pass.

This module needs the extra ``fast`` (Numba). Its results equal those of the NumPy code,
bit for bit. A block of records is read, put on the grid, and ranked: scores
``(|c|^2 - w) / 2 - x . c`` in float32 order the centroids of a record x. `_slack`
bounds the effect of rounding. If the two lowest scores of a record are closer than
that, or the record lies near the edge of the radius, squared distances in float64
decide, which are exact integers (docs/guarantees, Theorem 8). So rounding decides
nothing. The time depends slightly on the number of near ties (docs/threat-model.md).

Tables with few columns are ranked by columns, with four centroids at once in registers.
Tables with many columns are ranked by BLAS.

The formulas of this file stay dense, because the compiled loops are written for the
vectoriser. Their conditional expressions are selections without a branch, and their
order of operations decides the last bits.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg  # noqa: F401  # its BLAS serves Numba
from numba import njit
from numpy.typing import NDArray

from flower_kmeans.arrays import Float32Array, FloatArray, IntArray, LabelArray
from flower_kmeans.data.domain import (
    LARGEST_SCALED,
    SAFE_EXPONENT,
    Box,
    GridRecords,
    Sphere,
    squared_norms,
)
from flower_kmeans.threads import IntArrays, find_blas_again

find_blas_again()

# Rows of a block. The compiler must know it, to make vector instructions of inner loops.
_ROWS = 512
_NARROW = 8  # columns up to which a block is ranked by columns
_TILE = 512  # numbers of a narrow table that are read in one loop, with repeated bounds
_GROUP = 128  # centroids of one product
# For so few centroids, BLAS multiplies records by centroids faster: it copies less. The
# products must then be copied to columns, which takes as long in tables that are less wide.
_SMALL = 16
_SMALL_IF_WIDE = 64
_WIDE = 128
_FLOAT32_BITS = 24  # float32 holds integers of so many bits exactly
# Adding and subtracting this number rounds to the nearest integer, ties to even.
_ROUND = 1.5 * 2.0**52
# A squared length within this relative distance of the sphere's may lie on either side.
# So may one of the exact order: their difference is at most d 2**-53.
_NEAR = 1e-9
# Squared lengths in grid units between which no operation leaves float64's range.
_SHORTEST2 = 2.0**-900
_LONGEST2 = 2.0**900
_LEAST_FACTOR = 2.0**-1000  # a smaller one may have lost bits
_READ_ROWS = 4_096
_MAX_ROWS = 2**24  # sums of so many integers up to 2**25 are exact in float64
_LABEL_ROWS = 2**16
_FEW = 24  # most near ties of a block that are settled one by one
# Threads share the rows, so the code runs without the GIL. NumPy's rules of division
# need no branch, which would prevent vectorisation. Unsigned indices need none either:
# Numba counts negative ones from the end.
_OPTIONS: Any = {"nogil": True, "cache": True, "error_model": "numpy"}
_compiled = njit(**_OPTIONS)

# takes a start and a stop, and returns the sums of these rows
RowRange = Callable[[int, int], IntArrays]


class _Centers(NamedTuple):
    """Centroids for the ranking. Their number is padded to a multiple of four.

    Those of narrow tables are padded to 4 or 8 columns.
    """

    matrix: Float32Array  # -c in scaled units
    offsets: Float32Array  # (|c|^2 - w) / 2
    exact_matrix: FloatArray  # -2 c on the grid
    exact_offsets: FloatArray  # |c|^2 - w
    points: FloatArray  # (k, d), c on the grid
    # (d, k), c on the grid in the type of the records; empty for wide tables
    columns: NDArray[Any]
    weights: FloatArray  # (k,), w
    # (2,), least sure difference of two scores, and of a score and the radius
    slack: Float32Array
    # least sure difference of two scores of a record of length 0, and what it grows by
    # with the record's length in grid units
    own_slack: tuple[float, float]


class _FusedBounds(NamedTuple):
    """The map from the user's units to grid points, for a record or a tile of records."""

    center: FloatArray
    factor: FloatArray
    limit: FloatArray  # of a box
    radius: float  # of a ball or a sphere, in grid units, a power of two; 0 for a box
    is_sphere: bool


class _Block(NamedTuple):
    """Buffers for a block of records."""

    points: NDArray[Any]  # (_ROWS, d), grid points
    row: FloatArray  # (d,), a record of a ball or a sphere before it is truncated
    flat: NDArray[Any]  # view of `points` as one row of numbers
    columns: NDArray[Any]  # grid points of narrow tables by columns, 4 or 8
    # narrow tables: offsets from the nearest centroids by columns, then slacks
    offsets: FloatArray
    labels: LabelArray
    unsure: LabelArray  # rows whose labels need float64
    best: Float32Array
    second: Float32Array
    # (_GROUP, _ROWS); for few centroids the products by rows lie behind the columns
    scores: Float32Array
    exact_points: FloatArray
    exact_best: FloatArray
    exact_second: FloatArray
    exact_scores: FloatArray


# --------------------------------------------------------------------------- compiled


@njit(inline="always")
def _quantised(value, center, factor, limit):
    value = (value - center) * factor
    value = -limit if value < -limit else value  # NaN stays NaN
    value = limit if value > limit else value
    # Callers must not allow reassociation, which would cancel `_ROUND`.
    return (value + _ROUND) - _ROUND


# The sums of these squares are exact, or decide nothing. With ``inline="always"`` they
# would have the caller's order, which is slow.
@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _square(values):
    total = 0.0
    for f in range(len(values)):
        value = np.float64(values[f])
        total += value * value
    return total


# The sum decides nothing where its order could matter.
@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _offset_square(records, number, center, factor):
    """Return the squared length of a record's offset from the center, times a factor."""
    total = 0.0
    for f in range(records.shape[1]):
        value = (np.float64(records[number, f]) - center[f]) * factor
        total += value * value
    return total


@_compiled
def _truncate(records, number, center, factor, doubt, points, i):
    """Write an offset times a factor, truncated, to row i, and return how many are doubtful.

    Doubtful is a number if an integer lies within the relative distance ``doubt`` of it.
    """
    less = 1 - doubt
    more = 1 + doubt
    n_doubtful = 0
    for f in range(records.shape[1]):
        value = (np.float64(records[number, f]) - center[f]) * factor
        least = np.trunc(value * less)
        n_doubtful += least != np.trunc(value * more)
        points[i, f] = least
    return n_doubtful


@_compiled
def _read_exactly(records, number, bounds, row, points, i):
    """Write a record to row i as a grid point, in the order of operations of `data.domain`."""
    d = len(row)
    one = bounds.radius
    for f in range(d):
        unit = bounds.factor[f] / one  # exact
        row[f] = (np.float64(records[number, f]) - bounds.center[f]) * unit
    if bounds.is_sphere:
        largest = 0.0
        for f in range(d):
            largest = max(largest, abs(row[f]))
        if largest > 2.0**SAFE_EXPONENT or largest < 2.0**-SAFE_EXPONENT:
            _, exponent = math.frexp(largest)
            for f in range(d):
                row[f] = math.ldexp(row[f], -exponent)
    else:
        for f in range(d):
            row[f] = min(max(row[f], -LARGEST_SCALED), LARGEST_SCALED)
    sums = row * row  # as `row_sums`
    width = d
    while width > 1:
        half = (width + 1) // 2
        for f in range(width - half):
            sums[f] += sums[half + f]
        width = half
    if sums[0] > 1 or (bounds.is_sphere and sums[0] > 0):
        length = np.sqrt(sums[0])
        for f in range(d):
            row[f] /= length
    for f in range(d):
        row[f] = np.trunc(row[f] * one)
    square = _square(row)
    if square > one * one:
        shorter = (1 - 2.0**-40) * one / np.sqrt(square)
        for f in range(d):
            row[f] = np.trunc(row[f] * shorter)
    for f in range(d):
        points[i, f] = row[f]


@_compiled
def _read_round(records, first, m, bounds, block):
    """Write rows as grid points of a ball or a sphere.

    Truncation forgets the last bits of a length, so a sum in any order serves. Let u =
    2**-53. The squared length of that sum differs by at most (d + 2) u from the exact
    one, and that of `row_sums` by less. So a coordinate differs by at most (d / 2 + 20)
    u, relatively, and by `_NEAR` / 2 more where it is unknown whether the record is
    outside. Where an integer is nearer than that, `_read_exactly` decides; the doubt
    of (d + 64) u covers `_truncate`'s roundings, too. Elsewhere
    every coordinate but 0 loses more by truncation than a length can gain by rounding,
    so no grid point is outside.
    """
    d = records.shape[1]
    center = bounds.center
    factor = bounds.factor[0]  # that of all columns
    inner2 = -1.0
    outer2 = 0.0
    if not bounds.is_sphere:
        inner2 = (1 - _NEAR) * bounds.radius**2
        outer2 = (1 + _NEAR) * bounds.radius**2
    rounding = (d + 64) * 2.0**-53
    points = block.points
    for i in range(m):
        number = np.uintp(first + i)
        square = _offset_square(records, number, center, factor)
        if square <= inner2:
            for f in range(d):
                value = (np.float64(records[number, f]) - center[f]) * factor
                points[i, f] = np.trunc(value)
            continue
        doubt = rounding if square > outer2 else _NEAR
        is_doubtful = not _SHORTEST2 < square < _LONGEST2
        if not is_doubtful:
            shrunk = factor * (bounds.radius / np.sqrt(square))
            is_doubtful = shrunk < _LEAST_FACTOR
        if not is_doubtful:
            found = _truncate(records, number, center, shrunk, doubt, points, i)
            is_doubtful = found > 0
        if is_doubtful:
            _read_exactly(records, number, bounds, block.row, points, i)


@_compiled
def _read(records, first, m, bounds, block):
    """Write rows as grid points, and for narrow tables also by columns."""
    d = records.shape[1]
    center = bounds.center
    factor = bounds.factor
    limit = bounds.limit
    if bounds.radius > 0:
        _read_round(records, first, m, bounds, block)
        if d <= _NARROW:
            _copy_columns(d, block)
        return
    if d > _NARROW:
        points = block.points
        for i in range(m):
            row = np.uintp(first + i)
            for f in range(d):
                value = np.float64(records[row, f])
                points[i, f] = _quantised(value, center[f], factor[f], limit[f])
        return
    values = records[first : first + m].reshape(m * d)
    flat = block.flat
    step = len(center)
    for start in range(0, m * d, step):
        part = values[start : start + step]
        out = flat[start:]
        for i in range(len(part)):
            out[i] = _quantised(np.float64(part[i]), center[i], factor[i], limit[i])
    _copy_columns(d, block)


@_compiled
def _copy_columns(d, block):
    """Copy the grid points of a narrow table to columns."""
    for f in range(d):
        column = block.columns[f * _ROWS : (f + 1) * _ROWS]
        rest = block.flat[f:]
        for i in range(_ROWS):
            column[i] = rest[np.uintp(i * d)]


# Fused multiplications are allowed here, because `_slack` covers their rounding.
@njit(fastmath={"contract"}, **_OPTIONS)
def _score(columns, w, j, scores):
    """Write the products of a block with four centroids from the j-th on.

    ``columns`` are 4 or 8 columns.
    """
    for f in range(0, w.shape[1], 4):
        a0 = w[j, f]
        a1 = w[j, f + 1]
        a2 = w[j, f + 2]
        a3 = w[j, f + 3]
        b0 = w[j + 1, f]
        b1 = w[j + 1, f + 1]
        b2 = w[j + 1, f + 2]
        b3 = w[j + 1, f + 3]
        c0 = w[j + 2, f]
        c1 = w[j + 2, f + 1]
        c2 = w[j + 2, f + 2]
        c3 = w[j + 2, f + 3]
        e0 = w[j + 3, f]
        e1 = w[j + 3, f + 1]
        e2 = w[j + 3, f + 2]
        e3 = w[j + 3, f + 3]
        x = columns[f * _ROWS : (f + 4) * _ROWS]
        for i in range(_ROWS):
            x0 = x[i]
            x1 = x[_ROWS + i]
            x2 = x[2 * _ROWS + i]
            x3 = x[3 * _ROWS + i]
            p = a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
            q = b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
            r = c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
            s = e0 * x0 + e1 * x1 + e2 * x2 + e3 * x3
            if f:
                p += scores[i]
                q += scores[_ROWS + i]
                r += scores[2 * _ROWS + i]
                s += scores[3 * _ROWS + i]
            scores[i] = p
            scores[_ROWS + i] = q
            scores[2 * _ROWS + i] = r
            scores[3 * _ROWS + i] = s


@_compiled
def _rank(scores, offsets, j, best, second, labels):
    """Update each record's lowest and second lowest score, and the label of the lowest.

    ``scores`` are the products with four centroids from the j-th on, without offsets.
    """
    o0 = offsets[j]
    o1 = offsets[j + 1]
    o2 = offsets[j + 2]
    o3 = offsets[j + 3]
    for i in range(_ROWS):
        b = best[i]
        s = second[i]
        a = labels[i]
        p = scores[i] + o0
        q = scores[_ROWS + i] + o1
        r = scores[2 * _ROWS + i] + o2
        t = scores[3 * _ROWS + i] + o3
        for number, value in enumerate((p, q, r, t)):
            higher = value if value > b else b
            s = higher if higher < s else s
            a = np.int32(j + number) if value < b else a
            b = value if value < b else b
        best[i] = b
        second[i] = s
        labels[i] = a


@_compiled
def _rank_products(points, matrix, offsets, scores, best, second, labels):
    """Rank all centroids by products that BLAS computes.

    Products with few centroids are computed by rows, and copied to columns.
    """
    for i in range(_ROWS):
        best[i] = np.inf
        second[i] = np.inf
        labels[i] = 0
    k, d = matrix.shape
    most = _SMALL_IF_WIDE if d >= _WIDE else _SMALL
    by_rows = k <= most
    flat = scores.reshape(scores.size)
    for start in range(0, k, _GROUP):
        m = min(_GROUP, k - start)
        if by_rows:
            rows = flat[_SMALL_IF_WIDE * _ROWS : (_SMALL_IF_WIDE + k) * _ROWS]
            np.dot(points, matrix.T, rows.reshape(_ROWS, k))
            for j in range(k):
                column = flat[j * _ROWS : (j + 1) * _ROWS]
                rest = rows[j:]
                for i in range(_ROWS):
                    column[i] = rest[np.uintp(i * k)]
        else:
            np.dot(matrix[start : start + m], points.T, scores[:m])
        for j in range(0, m, 4):
            four = flat[j * _ROWS : (j + 4) * _ROWS]
            _rank(four, offsets, start + j, best, second, labels)


# The sum of integers below 2**53 is exact in any order. With ``inline="always"`` it would
# have the caller's order, which is slow.
@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _distance2(points, i, centers, j):
    total = 0.0
    for f in range(points.shape[1]):
        difference = np.float64(points[i, f]) - centers[j, f]
        total += difference * difference
    return total


@_compiled
def _label(m, block, centers):
    """Write the label of each record of a block: the least ``|x - c|^2 - w``.

    Ties go to the first centroid.
    """
    best = block.best
    second = block.second
    labels = block.labels
    slack = centers.slack[0]
    if len(block.columns):
        for i in range(_ROWS):
            best[i] = np.inf
            second[i] = np.inf
            labels[i] = 0
        flat = block.scores.reshape(block.scores.size)
        for j in range(0, len(centers.offsets), 4):
            _score(block.columns, centers.matrix, j, flat)
            _rank(flat, centers.offsets, j, best, second, labels)
    else:
        _rank_products(
            block.points, centers.matrix, centers.offsets, block.scores,
            best, second, labels,
        )  # fmt: skip
    n_near = 0
    for i in range(m):
        n_near += not second[i] - best[i] > slack
    if not n_near:
        return
    n_unsure = _find_unsure(m, block, centers)
    if n_unsure > _FEW:  # a second pass in float64 bounds the cost of many ties
        block.exact_points[...] = block.points
        _rank_products(
            block.exact_points, centers.exact_matrix, centers.exact_offsets, block.exact_scores,
            block.exact_best, block.exact_second, labels,
        )  # fmt: skip
        return
    for place in range(n_unsure):
        row = np.uint32(block.unsure[place])
        lowest = np.inf
        for j in range(len(centers.weights)):
            distance = _distance2(block.points, row, centers.points, j)
            distance -= centers.weights[j]
            if distance < lowest:
                lowest = distance
                labels[row] = j


@_compiled
def _find_unsure(m, block, centers):
    """Write the rows whose label rounding may decide, and return their number.

    A record's own length bounds rounding better than the length of all records.
    """
    unsure = block.unsure
    any_slack = centers.slack[0]
    slack, slack_of_length = centers.own_slack
    n_unsure = 0
    for i in range(m):
        difference = block.second[i] - block.best[i]
        if difference > any_slack:
            continue
        length = np.sqrt(_norm2(block.points, i))
        if not difference > slack + slack_of_length * length:
            unsure[n_unsure] = i
            n_unsure += 1
    return n_unsure


@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _norm2(points, i):
    total = 0.0  # as in `_distance2`
    for f in range(points.shape[1]):
        value = np.float64(points[i, f])
        total += value * value
    return total


@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _distances2(m, block, centers, out):
    """Write the squared distance of each record to the centroid of its label.

    For narrow tables the offsets are kept by columns.
    """
    labels = block.labels
    points = block.points
    if points.shape[1] > _NARROW:
        for i in range(m):
            out[i] = _distance2(points, i, centers.points, np.uint32(labels[i]))
        return
    for f in range(points.shape[1]):
        column = block.columns[f * _ROWS : (f + 1) * _ROWS]
        center = centers.columns[f]
        offsets = block.offsets[f * _ROWS : (f + 1) * _ROWS]
        for i in range(_ROWS):
            offset = np.float64(column[i]) - np.float64(center[np.uint32(labels[i])])
            offsets[i] = offset
            out[i] = offset * offset + (out[i] if f else 0.0)


@_compiled
def _add_columns(m, d, columns, labels, sums, counts):
    """Add the numbers of each record to the row of its label."""
    for i in range(m):
        a = np.uint32(labels[i])
        counts[a] += 1
        # A loop over the few columns would take twice as long.
        sums[a, 0] += columns[i]
        if d > 1:
            sums[a, 1] += columns[_ROWS + i]
        if d > 2:
            sums[a, 2] += columns[2 * _ROWS + i]
        if d > 3:
            sums[a, 3] += columns[3 * _ROWS + i]
        if d > 4:
            sums[a, 4] += columns[4 * _ROWS + i]
        if d > 5:
            sums[a, 5] += columns[5 * _ROWS + i]
        if d > 6:
            sums[a, 6] += columns[6 * _ROWS + i]
        if d > 7:
            sums[a, 7] += columns[7 * _ROWS + i]
        if d > 8:
            sums[a, 8] += columns[8 * _ROWS + i]


@_compiled
def _add_rows(m, points, labels, sums, counts):
    for i in range(m):
        a = np.uint32(labels[i])
        counts[a] += 1
        for f in range(points.shape[1]):
            sums[a, f] += points[i, f]


@_compiled
def _add_columns_times(m, d, columns, times, labels, sums, counts):
    """Add the numbers of each record to the row of its label, as often as ``times`` says."""
    for i in range(m):
        a = np.uint32(labels[i])
        counts[a] += np.int64(times[i])
        for f in range(d):
            sums[a, f] += np.float64(columns[f * _ROWS + i]) * times[i]


@_compiled
def _add_rows_times(m, points, times, labels, sums, counts):
    for i in range(m):
        a = np.uint32(labels[i])
        counts[a] += np.int64(times[i])
        for f in range(points.shape[1]):
            sums[a, f] += np.float64(points[i, f]) * times[i]


@_compiled
def _sum_rows(
    records, times, start, stop, bounds, block, centers, radius2, unit2, sums, counts
):
    """Add the rows from start to stop to sums and counts by label.

    Records beyond the radius are added to row k. Each record is added as often as
    ``times`` says, and once if it is empty.
    """
    d = records.shape[1]
    k = np.int32(len(centers.weights))
    labels = block.labels
    edge = np.float32(0.5 * radius2 * unit2)
    half = np.float32(0.5 * unit2)
    over = np.zeros(_ROWS, np.float32)
    d2 = np.zeros(_ROWS)
    for first in range(start, stop, _ROWS):
        m = min(_ROWS, stop - first)
        _read(records, first, m, bounds, block)
        _label(m, block, centers)
        if radius2 >= 0:
            _squares(m, block, half, over)
            unsure = 0
            for i in range(m):
                over[i] += block.best[i] - edge
                unsure += not abs(over[i]) > centers.slack[1]
            if unsure:
                _distances2(m, block, centers, d2)
                for i in range(m):
                    over[i] = d2[i] > radius2
            for i in range(m):
                labels[i] = k if over[i] > 0 else labels[i]
        if len(times):
            own = times[first : first + m]
            if d <= _NARROW:
                _add_columns_times(m, d, block.columns, own, labels, sums, counts)
            else:
                _add_rows_times(m, block.points, own, labels, sums, counts)
        elif d <= _NARROW:
            _add_columns(m, d, block.columns, labels, sums, counts)
        else:
            _add_rows(m, block.points, labels, sums, counts)


@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _squares(m, block, half, out):
    """Write half of each record's squared norm in scaled units, rounded to float32."""
    points = block.points
    if points.shape[1] <= _NARROW:
        for i in range(_ROWS):
            out[i] = 0
        for start in range(0, len(block.columns), _ROWS):
            column = block.columns[start : start + _ROWS]
            for i in range(_ROWS):
                out[i] += half * column[i] * column[i]
        return
    for i in range(m):
        total = np.float32(0)
        for f in range(points.shape[1]):
            total += half * points[i, f] * points[i, f]
        out[i] = total


@_compiled
def _cell_rows(
    records,
    times,
    start,
    stop,
    bounds,
    block,
    centers,
    radii2,
    one,
    weighted,
    sums,
    counts,
):
    """Add the rows' residuals, slacks and counts by cell, each as often as ``times`` says.

    Operations have the order of `cells`, and IEEE 754 rounds each of them correctly. So
    the results are the same.
    """
    d = records.shape[1]
    labels = block.labels
    squares = np.zeros(_ROWS)
    d2 = np.zeros(_ROWS)
    factors = np.zeros(_ROWS)
    slack = block.offsets[d * _ROWS :] if d <= _NARROW else np.zeros(_ROWS)
    step = 1 / one if weighted else 0.0  # a power of two
    for first in range(start, stop, _ROWS):
        m = min(_ROWS, stop - first)
        _read(records, first, m, bounds, block)
        _label(m, block, centers)
        _distances2(m, block, centers, d2)
        for i in range(_ROWS):
            squares[i] = radii2[np.uint32(labels[i])]
        for i in range(_ROWS):
            radius2 = squares[i]
            distance2 = d2[i]
            longer = distance2 if distance2 > radius2 else radius2
            slack[i] = np.floor((longer - distance2) / radius2 * one)
            factors[i] = np.sqrt((1 + slack[i] * step) / longer) * one
        if d <= _NARROW:
            for f in range(d):
                offsets = block.offsets[f * _ROWS : (f + 1) * _ROWS]
                for i in range(_ROWS):
                    offsets[i] = np.trunc(offsets[i] * factors[i])
            if len(times):
                own = times[first : first + m]
                _add_columns_times(m, d + 1, block.offsets, own, labels, sums, counts)
            else:
                _add_columns(m, d + 1, block.offsets, labels, sums, counts)
        else:
            for i in range(m):
                a = np.uint32(labels[i])
                factor = factors[i]
                often = times[first + i] if len(times) else 1.0
                counts[a] += np.int64(often)
                for f in range(d):
                    offset = np.float64(block.points[i, f]) - centers.points[a, f]
                    sums[a, f] += np.trunc(offset * factor) * often
                sums[a, d] += slack[i] * often


@_compiled
def _moment_rows(records, start, stop, bounds, block, factor, total):
    """Add the products of coordinates, rounded toward zero after the factor."""
    d = records.shape[1]
    flat = block.flat
    short = np.empty(_ROWS * d, np.int16)
    columns = np.empty((d, _ROWS), np.int16)
    for first in range(start, stop, _ROWS):
        m = min(_ROWS, stop - first)
        _read(records, first, m, bounds, block)
        for i in range(_ROWS * d):
            short[i] = np.int16(flat[i] * factor)
        for low in range(0, _ROWS, _ROWS // 4):  # a quarter fits the nearest cache
            for f in range(d):
                column = columns[np.uintp(f), low:]
                rest = short[low * d + f :]
                for i in range(_ROWS // 4):
                    column[i] = rest[np.uintp(i * d)]
        columns[:, m:] = 0
        for a in range(d):
            for b in range(a, d):
                left = columns[np.uintp(a)]
                right = columns[np.uintp(b)]
                products = np.int32(0)
                for i in range(_ROWS):
                    product = np.int32(left[i]) * np.int32(right[i])
                    products = np.int32(products + product)
                total[a, b] += products


@_compiled
def _label_rows(
    records, times, start, stop, bounds, block, centers, labels, d2, counts
):
    """Write each row's label and squared distance, or only count labels.

    Labels are counted if ``counts`` is not empty, each as often as ``times`` says.
    """
    for first in range(start, stop, _ROWS):
        m = min(_ROWS, stop - first)
        _read(records, first, m, bounds, block)
        _label(m, block, centers)
        if len(counts):
            for i in range(m):
                often = times[first + i] if len(times) else 1.0
                counts[np.uint32(block.labels[i])] += np.int64(often)
        else:
            done = first - start
            labels[done : done + m] = block.labels[:m]
            _distances2(m, block, centers, d2[done:])


# ----------------------------------------------------------------- called by NumPy code


def cluster_sums(
    records: GridRecords, centroids: IntArray, radius2: int | None
) -> RowRange:
    """Return a function from a range of rows to sums, (k, d), and counts, (k,), int64.

    The results are those of `assignment.cluster_sums`.
    """
    k, d = centroids.shape
    bits = records.fraction_bits
    centers = _centers(centroids, None, bits)
    bounds = _bounds(records)
    reach = -1.0 if radius2 is None else float(radius2)
    unit2 = 4.0**-bits

    def part(start: int, stop: int) -> IntArrays:
        block = _block(records)
        sums = np.zeros((k, d), np.int64)
        counts = np.zeros(k + 1, np.int64)
        for table, times, first, last in _tables(records, start, stop):
            found = np.zeros((k + 1, d))
            rows = table, times, first, last
            _sum_rows(*rows, bounds, block, centers, reach, unit2, found, counts)
            sums += found[:k].astype(np.int64)
        return sums, counts[:k]

    return part


def cell_sums(
    records: GridRecords,
    points: IntArray,
    radii: IntArray,
    fraction_bits: int,
    weighted: bool,
    weights: IntArray | None,
) -> RowRange:
    """Return a function from a range of rows to the sums of `cells.CellSums`."""
    m, p = points.shape
    centers = _centers(points, weights, records.fraction_bits)
    bounds = _bounds(records)
    rest = radii.astype(np.float64) ** 2, 2.0**fraction_bits, weighted

    def part(start: int, stop: int) -> IntArrays:
        block = _block(records)
        sums = np.zeros((m, p + 1), np.int64)
        counts = np.zeros(m, np.int64)
        for table, times, first, last in _tables(records, start, stop):
            found = np.zeros((m, p + 1))
            rows = table, times, first, last
            _cell_rows(*rows, bounds, block, centers, *rest, found, counts)
            sums += found.astype(np.int64)
        return sums[:, :p].copy(), counts, sums[:, p].copy()

    return part


def second_moments(records: GridRecords, bits: int) -> RowRange:
    """Return a function from a range of rows to second moments, (d, d), int64.

    Only the upper triangle is filled. Coordinates are at most 2**bits, with bits <= 10,
    so int32 holds the sums of a block.
    """
    d = records.shape[1]
    bounds = _bounds(records)
    real = _ranking_type(records.fraction_bits)
    factor = real(2.0 ** (bits - records.fraction_bits))

    def part(start: int, stop: int) -> IntArrays:
        block = _block(records)
        total = np.zeros((d, d), np.int64)
        for table, _, first, last in _tables(records, start, stop):
            _moment_rows(table, first, last, bounds, block, factor, total)
        return (total,)

    return part


def vote_counts(records: GridRecords, points: FloatArray) -> RowRange:
    """Return a function from a range of rows to the number nearest to each point, (k,).

    Ties go to the first point.
    """
    centers = _new_centers(points, np.zeros(len(points)), records.fraction_bits)
    bounds = _bounds(records)

    def part(start: int, stop: int) -> IntArrays:
        block = _block(records)
        counts = np.zeros(len(points), np.int64)
        none = np.empty(0)
        for table, times, first, last in _tables(records, start, stop):
            rows = table, times, first, last
            _label_rows(*rows, bounds, block, centers, block.labels, none, counts)
        return (counts,)

    return part


def nearest(
    records: GridRecords, points: FloatArray, start: int, stop: int
) -> Iterator[tuple[slice, LabelArray, FloatArray]]:
    """Yield a range of rows, the nearest point of each row, and its squared distance.

    Ties go to the first point. Squared distances are exact integers, in squared grid
    units. The arrays are overwritten by the next range.
    """
    centers = _new_centers(points, np.zeros(len(points)), records.fraction_bits)
    bounds = _bounds(records)
    block = _block(records)
    none = np.empty(0, np.int64)
    labels = np.empty(_LABEL_ROWS, np.int32)
    d2 = np.empty(_LABEL_ROWS + _ROWS)
    for low in range(start, stop, _LABEL_ROWS):
        done = 0
        high = min(low + _LABEL_ROWS, stop)
        for table, times, first, last in _tables(records, low, high):
            rows = slice(done, done + last - first)
            out = labels[rows], d2[done:], none
            _label_rows(table, times, first, last, bounds, block, centers, *out)
            done = rows.stop
        yield slice(low, high), labels[:done], d2[:done]


def _tables(
    records: GridRecords, start: int, stop: int
) -> Iterator[tuple[NDArray[Any], FloatArray, int, int]]:
    """Yield tables for `_bounds`, each with weights, and a start and a stop of rows to read.

    Without weights they are empty.
    """
    times = np.empty(0)
    if records.weights is not None:
        times = records.weights
    most = records.rows_at_once(_MAX_ROWS, records.fraction_bits)
    if records.domain is not None:
        for first in range(start, stop, most):
            yield records.table, times, first, min(first + most, stop)
        return
    d = records.shape[1]
    step = max(_ROWS, min(_READ_ROWS, 2**17 // d // _ROWS * _ROWS))
    for first in range(start, stop, step):
        table = np.empty((min(step, stop - first), d))
        records.read(first, table)
        yield table, times[first : first + len(table)], 0, len(table)


def _bounds(records: GridRecords) -> _FusedBounds:
    """Return the map from values of `_tables` to grid points.

    Without a domain the values are grid points already.
    """
    d = records.shape[1]
    domain = records.domain
    bits = records.fraction_bits
    radius = 0.0
    if domain is None:
        parts: tuple[Any, ...] = 0, 1, 2.0**bits
    elif isinstance(domain, Box):
        # `Box.to_unit` multiplies by the reciprocal, too: a quotient rounds differently.
        parts = domain._center, 1 / domain._unit * 2**bits, domain.grid_reach(bits)
    else:
        radius = 2.0**bits
        parts = domain._center, 1 / domain._unit * 2**bits, radius
    rows = _TILE // d if d <= _NARROW else 1
    tiles = [np.full((rows, d), each, np.float64).reshape(rows * d) for each in parts]
    center, factor, limit = tiles
    return _FusedBounds(center, factor, limit, radius, isinstance(domain, Sphere))


def _ranking_type(fraction_bits: int) -> type[np.floating[Any]]:
    """Return a type that holds grid points exactly: float32, or float64 for many bits."""
    return np.float64 if fraction_bits > _FLOAT32_BITS else np.float32


def _block(records: GridRecords) -> _Block:
    d = records.shape[1]
    real = _ranking_type(records.fraction_bits)
    points = np.zeros((_ROWS, d), real)
    return _Block(
        points=points,
        row=np.empty(d),
        flat=points.reshape(points.size),
        columns=np.zeros((d + -d % 4) * _ROWS if d <= _NARROW else 0, real),
        offsets=np.zeros((d + 1) * _ROWS if d <= _NARROW else 0),
        labels=np.zeros(_ROWS, np.int32),
        unsure=np.empty(_ROWS, np.int32),
        best=np.empty(_ROWS, real),
        second=np.empty(_ROWS, real),
        scores=np.empty((_GROUP, _ROWS), real),
        exact_points=np.empty((_ROWS, d)),
        exact_best=np.empty(_ROWS),
        exact_second=np.empty(_ROWS),
        exact_scores=np.empty((_GROUP, _ROWS)),
    )


class _Prepared(NamedTuple):
    """The centroids of the last query, for the other clients of a process."""

    fraction_bits: int
    centers: _Centers


_last: _Prepared | None = None


def _centers(
    centroids: IntArray, weights: IntArray | None, fraction_bits: int
) -> _Centers:
    """Return the last centroids again if these are equal, or new ones."""
    global _last
    shifts = np.zeros(len(centroids))
    if weights is not None:
        shifts = weights.astype(np.float64)
    last = _last
    if last is not None and last.fraction_bits == fraction_bits:
        is_same = np.array_equal(last.centers.points, centroids)
        if is_same and np.array_equal(last.centers.weights, shifts):
            return last.centers
    centers = _new_centers(centroids, shifts, fraction_bits)
    # There is no lock: threads would only prepare the same centroids twice.
    _last = _Prepared(fraction_bits, centers)
    return centers


def _new_centers(
    centroids: IntArray | FloatArray, shifts: FloatArray, fraction_bits: int
) -> _Centers:
    """Return centroids, (k, d), and their weights, (k,), for the ranking."""
    k, d = centroids.shape
    real = _ranking_type(fraction_bits)
    points = centroids.astype(np.float64)
    unit = 2.0**-fraction_bits
    exact = squared_norms(points) - shifts  # integers up to 2**53
    # The padding consists of centroids that are never nearest.
    filled = k + -k % 4
    width = d + -d % 4 if d <= _NARROW else d
    matrix = np.zeros((filled, width), real)
    offsets = np.full(filled, np.inf, real)
    matrix[:k, :d] = points * -(unit * unit)
    offsets[:k] = exact * (unit * unit / 2)
    exact_matrix = np.zeros((filled, d))
    exact_offsets = np.full(filled, np.inf)
    exact_matrix[:k] = points * -2
    exact_offsets[:k] = exact
    largest_offset = np.abs(exact).max() * (unit * unit / 2)
    largest_sum = np.abs(points).sum(axis=1).max() * unit
    size = largest_offset + largest_sum
    longest = math.sqrt(squared_norms(points).max()) * unit
    rounding = 2 * _rounding(d)
    columns = np.empty((0, 0), real)
    if d <= _NARROW:
        columns = np.ascontiguousarray(points.T, real)
    return _Centers(
        matrix=matrix,
        offsets=offsets,
        exact_matrix=exact_matrix,
        exact_offsets=exact_offsets,
        points=points,
        columns=columns,
        weights=shifts,
        slack=_slack(size, d),
        own_slack=(rounding * largest_offset, rounding * longest * unit),
    )


def _slack(size: float, d: int) -> Float32Array:
    """Return the least sure difference of two scores, and of a score and the radius.

    Let u = 2**-24, and coordinates be at most 1. A score has at most d + 2 roundings.
    Its error is at most ``g (|o| + sum |c_f|)``, where o is its offset and
    g = (d + 2) u / (1 - (d + 2) u). This holds for any order of additions, with and
    without fused multiplications. Half a squared norm has an error of at most
    ``g d / 2``. So BLAS may add in any order, but it must not multiply in less than
    float32, nor by Strassen's algorithm. Six further roundings and a factor of 1.01
    cover the comparisons, and the rounding of a coordinate with 25 bits. ``size`` is
    the largest ``|o| + sum |c_f|``.

    A score's error is also at most ``g (|o| + sum |x_f c_f|)``, and by Cauchy and Schwarz
    ``g (|o| + |x| |c|)``. `_find_unsure` uses this bound.
    """
    g = _rounding(d)
    differences = np.array([2 * g * size, g * (size + d)], np.float32)
    return np.nextafter(differences, np.float32(np.inf))


def _rounding(d: int) -> float:
    """Return the relative error of a score, as `_slack` explains."""
    g = (d + 8) * 2.0**-24
    return 1.01 * g / (1 - g)
