"""The statistics of `assignment` and `cells` in one compiled pass, for clients with many records.

Needs the extra ``fast`` (Numba). Answers are those of the NumPy path, bit for bit. A block of
records is read, put on the grid, and ranked: scores ``(|c|^2 - w) / 2 - x . c`` in float32 order
the centroids of a record x, and `_slack` bounds what rounding can change. A record whose two lowest
scores are closer than that, or which lies near the edge of the radius, is decided by squared
distances in float64, which are exact integers (docs/guarantees.md, "Fixed point, rounding,
sampling"). So rounding decides nothing, and the time depends, slightly, on how many records are
near ties (docs/threat-model.md).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.assignment import LabelArray
from flower_kmeans.data.domain import GridRecords, IntArray
from flower_kmeans.data.records import FloatArray

_ROWS = 128  # of a block; known when compiling, so that inner loops become vector instructions
_NARROW = 8  # columns up to which a block is kept by columns only
_FLOAT32_BITS = 24  # of an integer that float32 holds exactly
_ROUND = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest integer, ties to even
_READ_ROWS = 4_096
_MAX_ROWS = 2**24  # whose sums, of integers of at most 2**25, are exact in float64
_LABEL_ROWS = 2**16
_FEW = 2  # near ties of a block that are settled one by one
# Threads share the rows, so without the GIL. NumPy's division has no branch, which would stop
# vectorisation.
_OPTIONS: Any = {"nogil": True, "cache": True, "error_model": "numpy"}
_compiled = njit(**_OPTIONS)

Float32Array = NDArray[np.float32]


class _Centers(NamedTuple):
    """Centroids as the ranking needs them, in float32 and in float64; filled up to fours."""

    matrix: Float32Array  # -c in scaled units
    offsets: Float32Array  # (|c|^2 - w) / 2
    exact_matrix: FloatArray  # -2 c on the grid
    exact_offsets: FloatArray  # |c|^2 - w
    points: FloatArray  # (k, d), c on the grid
    weights: FloatArray  # (k,), w
    slack: Float32Array  # (2,), of two scores, and of a score and the radius


class _Bounds(NamedTuple):
    """How user's units become grid points; the identity for what is on the grid already."""

    center: FloatArray
    factor: FloatArray
    limit: FloatArray


class _Block(NamedTuple):
    """Buffers for a block of records."""

    columns: Float32Array  # grid points by columns
    points: NDArray[Any]  # by rows, exact; empty where the columns serve
    labels: LabelArray
    best: Float32Array
    second: Float32Array
    scores: Float32Array
    exact_columns: FloatArray
    exact_best: FloatArray
    exact_second: FloatArray
    exact_scores: FloatArray


# --------------------------------------------------------------------------- compiled


@njit(inline="always")
def _quantised(value, center, factor, limit):
    value = (value - center) * factor
    value = -limit if value < -limit else value  # NaN stays NaN
    value = limit if value > limit else value
    # No caller may allow reassociation, which would cancel `_ROUND`.
    return (value + _ROUND) - _ROUND


@njit(inline="always", **_OPTIONS)
def _read(records, first, m, bounds, block):
    """Write rows as grid points: by columns, and if there is room also by rows, for the sums."""
    d, points, columns = records.shape[1], block.points, block.columns
    if not len(points):
        for f in range(d):
            center, factor, limit = bounds.center[f], bounds.factor[f], bounds.limit[f]
            column = columns[f * _ROWS : (f + 1) * _ROWS]
            for i in range(m):
                column[i] = _quantised(np.float64(records[first + i, f]), center, factor, limit)
        return
    for i in range(m):
        for f in range(d):
            value = np.float64(records[first + i, f])
            points[i, f] = _quantised(value, bounds.center[f], bounds.factor[f], bounds.limit[f])
    whole = d - d % 8
    for start in range(0, whole, 8):  # by tiles, which stay in the cache
        tile = columns[start * _ROWS : (start + 8) * _ROWS]
        for i in range(_ROWS):
            for f in range(8):
                tile[f * _ROWS + i] = points[i, start + f]
    for f in range(whole, d):
        for i in range(_ROWS):
            columns[f * _ROWS + i] = points[i, f]


# Fused multiplications are fine here: `_slack` covers how they round.
@njit(fastmath={"contract"}, **_OPTIONS)
def _score(columns, w, offsets, j, out):
    """Write ``offsets + w @ columns`` of four centroids from the j-th on, (4, _ROWS)."""
    o0, o1, o2, o3 = offsets[j], offsets[j + 1], offsets[j + 2], offsets[j + 3]
    for i in range(_ROWS):
        out[i], out[_ROWS + i], out[2 * _ROWS + i], out[3 * _ROWS + i] = o0, o1, o2, o3
    for f in range(0, w.shape[1], 4):
        a0, a1, a2, a3 = w[j, f], w[j, f + 1], w[j, f + 2], w[j, f + 3]
        b0, b1, b2, b3 = w[j + 1, f], w[j + 1, f + 1], w[j + 1, f + 2], w[j + 1, f + 3]
        c0, c1, c2, c3 = w[j + 2, f], w[j + 2, f + 1], w[j + 2, f + 2], w[j + 2, f + 3]
        e0, e1, e2, e3 = w[j + 3, f], w[j + 3, f + 1], w[j + 3, f + 2], w[j + 3, f + 3]
        x = columns[f * _ROWS : (f + 4) * _ROWS]
        for i in range(_ROWS):
            x0, x1, x2, x3 = x[i], x[_ROWS + i], x[2 * _ROWS + i], x[3 * _ROWS + i]
            p, q, r, s = out[i], out[_ROWS + i], out[2 * _ROWS + i], out[3 * _ROWS + i]
            out[i] = p + a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
            out[_ROWS + i] = q + b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
            out[2 * _ROWS + i] = r + c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
            out[3 * _ROWS + i] = s + e0 * x0 + e1 * x1 + e2 * x2 + e3 * x3


@_compiled
def _rank(scores, j, best, second, labels):
    """Update the lowest score of each record, the second lowest, and the label of the lowest."""
    for i in range(_ROWS):
        b, s, a = best[i], second[i], labels[i]
        for r in range(4):
            value = scores[r * _ROWS + i]
            higher = value if value > b else b
            s = higher if higher < s else s
            a = np.int32(j + r) if value < b else a
            b = value if value < b else b
        best[i], second[i], labels[i] = b, s, a


@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _distance2(block, i, center):
    total = 0.0  # of integers below 2**53: exact in any order
    for f in range(len(center)):
        value = block.points[i, f] if len(block.points) else block.columns[f * _ROWS + i]
        difference = np.float64(value) - center[f]
        total += difference * difference
    return total


@njit(inline="always", **_OPTIONS)
def _label(m, block, centers):
    """Write the label of each record of a block: of its least ``|x - c|^2 - w``, the first one."""
    k, best, second, labels = len(centers.points), block.best, block.second, block.labels
    slack = centers.slack[0]
    for i in range(_ROWS):
        best[i], second[i], labels[i] = np.inf, np.inf, 0
    for j in range(0, len(centers.offsets), 4):
        _score(block.columns, centers.matrix, centers.offsets, j, block.scores)
        _rank(block.scores, j, best, second, labels)
    unsure = 0
    for i in range(m):
        unsure += not second[i] - best[i] > slack
    if unsure > _FEW:  # so that ties cost no more than a second pass, in float64
        for i in range(m):
            for f in range(centers.points.shape[1]):
                exact = block.points[i, f] if len(block.points) else block.columns[f * _ROWS + i]
                block.exact_columns[f * _ROWS + i] = exact
        for i in range(_ROWS):
            block.exact_best[i], block.exact_second[i], labels[i] = np.inf, np.inf, 0
        for j in range(0, len(centers.offsets), 4):
            _score(
                block.exact_columns, centers.exact_matrix, centers.exact_offsets, j,
                block.exact_scores,
            )  # fmt: skip
            _rank(block.exact_scores, j, block.exact_best, block.exact_second, labels)
    elif unsure:
        for i in range(m):
            if not second[i] - best[i] > slack:
                lowest = np.inf
                for j in range(k):
                    distance = _distance2(block, i, centers.points[j]) - centers.weights[j]
                    if distance < lowest:
                        lowest, labels[i] = distance, j


@_compiled
def _add(m, d, points, columns, labels, sums, counts):
    is_wide = d > _NARROW or len(points) > 0
    for i in range(m):
        a = labels[i]
        counts[a] += 1
        for f in range(d):
            sums[a, f] += points[i, f] if is_wide else columns[f * _ROWS + i]


@_compiled
def _sum_rows(records, start, stop, bounds, block, centers, radius2, unit2, sums, counts):
    """Add the rows from start to stop to sums and counts; those out of reach to the row k."""
    d, k, labels = records.shape[1], np.int32(len(centers.points)), block.labels
    edge, half = np.float32(0.5 * radius2 * unit2), np.float32(0.5 * unit2)
    norms, over = np.empty(_ROWS, np.float32), np.empty(_ROWS, np.float32)
    for first in range(start, stop, _ROWS):
        m = min(_ROWS, stop - first)
        _read(records, first, m, bounds, block)
        _label(m, block, centers)
        if radius2 >= 0:
            for i in range(_ROWS):
                norms[i] = 0
            for f in range(d):
                column = block.columns[f * _ROWS : (f + 1) * _ROWS]
                for i in range(_ROWS):
                    norms[i] += half * column[i] * column[i]
            unsure = 0
            for i in range(m):
                over[i] = norms[i] + block.best[i] - edge
                unsure += not abs(over[i]) > centers.slack[1]
            for i in range(m if unsure else 0):
                if not abs(over[i]) > centers.slack[1]:
                    over[i] = _distance2(block, i, centers.points[labels[i]]) > radius2
            for i in range(m):
                labels[i] = k if over[i] > 0 else labels[i]
        _add(m, d, block.points, block.columns, labels, sums, counts)


@njit(inline="always")
def _truncated(value):
    """Return a number below 2**51 toward zero, by operations that become vector instructions."""
    size = abs(value)
    whole = (size + _ROUND) - _ROUND
    whole = whole - 1.0 if whole > size else whole
    return -whole if value < 0 else whole


@njit(fastmath={"contract", "reassoc"}, **_OPTIONS)
def _norm2(row):
    total = 0.0  # of integers below 2**53: exact in any order
    for f in range(len(row)):
        total += row[f] * row[f]
    return total


@_compiled
def _cell_rows(
    records, start, stop, bounds, block, centers, radii, one, weighted, sums, counts, slacks
):
    """Add the rows' residuals over the radii of their cells, counts and slacks, as `cells` does.

    Every operation on a record is one that IEEE 754 rounds correctly, in the order of `cells`.
    Offsets are kept by rows where the records are, and by columns otherwise.
    """
    d, labels, points = records.shape[1], block.labels, centers.points
    is_wide = len(block.points) > 0
    by_rows = np.zeros((_ROWS if is_wide else 0, d))
    by_columns = np.zeros((0 if is_wide else d, _ROWS))
    d2, slack, norms = np.zeros(_ROWS), np.zeros(_ROWS), np.zeros(_ROWS)
    lengths, factors = np.ones(_ROWS), np.ones(_ROWS)
    for first in range(start, stop, _ROWS):
        m = min(_ROWS, stop - first)
        _read(records, first, m, bounds, block)
        _label(m, block, centers)
        for i in range(_ROWS):
            d2[i], norms[i] = 0, 0
        if is_wide:
            for i in range(m):
                row, center = by_rows[i], points[labels[i]]
                for f in range(d):
                    row[f] = np.float64(block.points[i, f]) - center[f]
                d2[i] = _norm2(row)
        else:
            for f in range(d):
                column, offsets = block.columns[f * _ROWS : (f + 1) * _ROWS], by_columns[f]
                for i in range(_ROWS):
                    offsets[i] = np.float64(column[i]) - points[labels[i], f]
                    d2[i] += offsets[i] * offsets[i]
        for i in range(_ROWS):
            radius = radii[labels[i]]
            lengths[i] = max(radius, np.sqrt(d2[i]))
            radius2 = radius * radius
            slack[i] = np.floor(max(radius2 - d2[i], 0.0) / radius2 * one)
        if weighted:
            for i in range(_ROWS):
                factors[i] = np.sqrt(1 + slack[i] / one)
        if is_wide:
            for i in range(m):
                row, length, factor = by_rows[i], lengths[i], factors[i]
                for f in range(d):
                    row[f] = _truncated(row[f] / length * factor * one)
                norms[i] = _norm2(row)
        else:
            for f in range(d):
                offsets = by_columns[f]
                for i in range(_ROWS):
                    offsets[i] = _truncated(offsets[i] / lengths[i] * factors[i] * one)
                    norms[i] += offsets[i] * offsets[i]
        for i in range(m):
            a = labels[i]
            counts[a] += 1
            slacks[a] += np.int64(slack[i])
            if norms[i] > one * one:
                shorter = (1 - 2.0**-40) * one / np.sqrt(norms[i])
                for f in range(d):
                    value = by_rows[i, f] if is_wide else by_columns[f, i]
                    sums[a, f] += _truncated(value * shorter)
            else:
                for f in range(d):
                    sums[a, f] += by_rows[i, f] if is_wide else by_columns[f, i]


@_compiled
def _label_rows(records, start, stop, bounds, block, centers, labels, d2):
    """Write the label of each row, and the squared distance to its centroid."""
    for first in range(start, stop, _ROWS):
        m = min(_ROWS, stop - first)
        _read(records, first, m, bounds, block)
        _label(m, block, centers)
        for i in range(m):
            labels[first - start + i] = block.labels[i]
            d2[first - start + i] = _distance2(block, i, centers.points[block.labels[i]])


# --------------------------------------------------------------------------- called by NumPy code


def cluster_sums(
    records: GridRecords, centroids: IntArray, radius2: int | None, start: int, stop: int
) -> tuple[IntArray, IntArray]:
    """Return what `assignment` does for a range of rows: sums (k, d) and counts (k,), int64."""
    k, d = centroids.shape
    centers, reach = _centers(centroids, None, records.fraction_bits), -1.0
    if radius2 is not None:
        reach = float(radius2)
    unit2 = 4.0**-records.fraction_bits
    sums, counts = np.zeros((k + 1, d), np.int64), np.zeros(k + 1, np.int64)
    block = _block(records, d)
    for table, first, last, bounds in _tables(records, start, stop):
        found = np.zeros((k + 1, d))
        _sum_rows(table, first, last, bounds, block, centers, reach, unit2, found, counts)
        sums += found.astype(np.int64)
    return sums[:k], counts[:k]


def cell_sums(
    records: GridRecords,
    points: IntArray,
    radii: IntArray,
    fraction_bits: int,
    weighted: bool,
    weights: IntArray | None,
    start: int,
    stop: int,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return what `cells` does for a range of rows: sums (m, p), counts and slacks (m,), int64."""
    centers, lengths = _centers(points, weights, records.fraction_bits), radii.astype(np.float64)
    sums = np.zeros(points.shape, np.int64)
    counts, slacks = np.zeros(len(points), np.int64), np.zeros(len(points), np.int64)
    rest = lengths, 2.0**fraction_bits, weighted
    block = _block(records, points.shape[1])
    for table, first, last, bounds in _tables(records, start, stop):
        found = np.zeros(points.shape)
        _cell_rows(table, first, last, bounds, block, centers, *rest, found, counts, slacks)
        sums += found.astype(np.int64)
    return sums, counts, slacks


def nearest(
    records: GridRecords, points: FloatArray, start: int, stop: int
) -> Iterator[tuple[slice, LabelArray, FloatArray]]:
    """Yield ranges of rows with the nearest point of each, the first of several, and how near.

    Squared distances are exact integers, in squared grid units.
    """
    centers, block = _centers(points, None, records.fraction_bits), _block(records, points.shape[1])
    labels, d2 = np.empty(_LABEL_ROWS, np.int32), np.empty(_LABEL_ROWS)
    for low in range(start, stop, _LABEL_ROWS):
        done, high = 0, min(low + _LABEL_ROWS, stop)
        for table, first, last, bounds in _tables(records, low, high):
            rows = slice(done, done + last - first)
            _label_rows(table, first, last, bounds, block, centers, labels[rows], d2[rows])
            done = rows.stop
        yield slice(low, high), labels[:done], d2[:done]


def _tables(
    records: GridRecords, start: int, stop: int
) -> Iterator[tuple[NDArray[Any], int, int, _Bounds]]:
    """Yield tables with ranges of their rows, and how these become grid points."""
    d, box = records.shape[1], records.box
    if box is not None and (d <= _NARROW or records.table.flags.c_contiguous):
        limit = box.grid_half_widths(records.fraction_bits).astype(np.float64)
        # The factor of `Box.to_unit`: dividing would round otherwise.
        unit = np.broadcast_to(1 / box._unit * 2**records.fraction_bits, d)
        bounds = _Bounds(box._center, np.ascontiguousarray(unit), limit)
        for first in range(start, stop, _MAX_ROWS):
            yield records.table, first, min(first + _MAX_ROWS, stop), bounds
        return
    same = _Bounds(np.zeros(d), np.ones(d), np.full(d, 2.0**records.fraction_bits))
    step = max(_ROWS, min(_READ_ROWS, 2**17 // d // _ROWS * _ROWS))
    for first in range(start, stop, step):
        rows = np.empty((min(step, stop - first), d))
        records.read(first, rows)
        yield rows, 0, len(rows), same


def _block(records: GridRecords, d: int) -> _Block:
    wide = d > _NARROW or records.fraction_bits > _FLOAT32_BITS
    exact = np.float64 if records.fraction_bits > _FLOAT32_BITS else np.float32
    size = (d + -d % 4) * _ROWS
    return _Block(
        columns=np.zeros(size, np.float32),
        points=np.zeros((_ROWS if wide else 0, d), exact),
        labels=np.zeros(_ROWS, np.int32),
        best=np.empty(_ROWS, np.float32),
        second=np.empty(_ROWS, np.float32),
        scores=np.empty(4 * _ROWS, np.float32),
        exact_columns=np.zeros(size),
        exact_best=np.empty(_ROWS),
        exact_second=np.empty(_ROWS),
        exact_scores=np.empty(4 * _ROWS),
    )


def _centers(
    centroids: IntArray | FloatArray, weights: IntArray | None, fraction_bits: int
) -> _Centers:
    k, d = centroids.shape
    points, unit = centroids.astype(np.float64), 2.0**-fraction_bits
    shifts = np.zeros(k) if weights is None else weights.astype(np.float64)
    exact = np.einsum("ij,ij->i", points, points) - shifts  # integers up to 2**53
    # What fills up to a multiple of four never wins.
    shape = (k + -k % 4, d + -d % 4)
    matrix, offsets = np.zeros(shape, np.float32), np.full(shape[0], np.inf, np.float32)
    matrix[:k, :d], offsets[:k] = points * -(unit * unit), exact * (unit * unit / 2)
    exact_matrix, exact_offsets = np.zeros(shape), np.full(shape[0], np.inf)
    exact_matrix[:k, :d], exact_offsets[:k] = points * -2, exact
    size = np.abs(exact).max() * (unit * unit / 2) + np.abs(points).sum(axis=1).max() * unit
    slack = _slack(size, d)
    return _Centers(matrix, offsets, exact_matrix, exact_offsets, points, shifts, slack)


def _slack(size: float, d: int) -> Float32Array:
    """Return what the two lowest scores, and a score and the radius, must differ by, float32.

    With u = 2**-24 and coordinates at most 1, a score of at most d + 2 roundings is off by at most
    ``g (|o| + sum |c_f|)``, o its offset and g = (d + 2) u / (1 - (d + 2) u), in whatever order it
    is added and with or without fused multiplications; half a squared norm by at most ``g d / 2``.
    Eight roundings more, of which one is that of a coordinate with 25 bits, and a factor of 1.01
    cover the comparisons themselves. ``size`` is the largest ``|o| + sum |c_f|``.
    """
    g = (d + 8) * 2.0**-24
    g = 1.01 * g / (1 - g)
    differences = np.array([2 * g * size, g * (size + d)], np.float32)
    return np.nextafter(differences, np.float32(np.inf))
