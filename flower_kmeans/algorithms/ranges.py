"""Ranges of columns within outer bounds: three histograms of each, and the rule that reads them.

A column has histograms of 16, 128 and 1,024 equal bins over its outer bounds. The noisy
histograms give a range by integers and comparisons alone, so all processors find the same
one (docs/guarantees, Theorem 45).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans.algorithms.layout import Block
from flower_kmeans.arrays import BoolArray, IntArray
from flower_kmeans.data.domain import Box, GridRecords

COARSE = "coarse"
MIDDLE = "middle"
FINE = "fine"
BINS = {COARSE: 16, MIDDLE: 128, FINE: 1024}
"""Numbers of bins of a column's histograms, by block."""
READING_BITS = 16
"""Fraction bits of the grid on which bins are counted: a bin is a shift of an integer."""
SUBBINS = 16
"""Steps of a range in a fine bin."""
END = BINS[FINE] * SUBBINS
"""Last step of a column: its upper outer bound. The lower one is step 0."""
LEAST_STEPS = SUBBINS
"""Least length of a range, in steps."""

CLEAR = 3.5
"""Deviations of a coarse bin that is clearly inhabited."""
_EDGE = 1.5  # deviations of the cells that are cut off at an end
_FEWEST_CELLS = 8  # cells are halved while a range has fewer
# margin at an end: this many times the way to the outer part of the noisy mass
_TAIL = 2
# that part, 3 %, in 2^-20; it is rounded down
_TAIL_MASS = 31457
_LONGEST = END // 5  # steps; a longer range stays outer
_MIDDLE_LEVEL = 3  # a middle bin has 2^3 fine bins
_COARSE_LEVEL = 6
# Variances of nodes of 2^level fine bins, over that of a word. At the two levels a sum is
# averaged with the own histogram, by inverse variances.
_VARIANCES = (1.0, 2.0, 4.0, 8 / 9, 16 / 9, 32 / 9, (64 / 9 + 49) / 64)
# so that sums of bins, times the steps of a cell, stay exact; real words are smaller
_LARGEST_WORD = 2**46
_WINDOW = 16  # most cells of a range at its level
_ROWS = 4096  # records that are read at once


def blocks_of(n_columns: int, exponent: int) -> tuple[Block, ...]:
    """Return the blocks of the histograms of some columns, one column after another."""
    return tuple(Block(name, (n_columns * n,), exponent) for name, n in BINS.items())


def histograms(records: GridRecords, columns: Sequence[int]) -> dict[str, IntArray]:
    """Return the numbers of records in all bins of some columns, int64, by block.

    ``records`` lie between -1 and 1 in every column. Their grid is that of `READING_BITS`,
    or a coarser one, whose points leave most bins empty.
    """
    n_fine = BINS[FINE]
    one = 2**records.fraction_bits
    own = list(columns)
    starts = np.arange(len(own)) * n_fine
    fine = np.zeros(len(own) * n_fine, dtype=np.int64)
    start = 0
    for block in records.blocks(_ROWS):
        times = None
        if records.weights is not None:
            times = np.repeat(records.weights[start : start + len(block)], len(own))
        start += len(block)
        grid = block[:, own].astype(np.int64) + one
        # The divisor is a power of two, so this is a shift. A record on the upper bound
        # belongs to the last bin.
        bins = np.minimum(grid * n_fine // (2 * one), n_fine - 1)
        counted = np.bincount((bins + starts).reshape(-1), times, minlength=fine.size)
        fine += counted.astype(np.int64)
    found = {}
    for name, n_bins in BINS.items():
        found[name] = fine.reshape(len(own) * n_bins, -1).sum(axis=1)
    return found


def found_ranges(
    coarse: IntArray, middle: IntArray, fine: IntArray, deviation: float
) -> IntArray:
    """Return the ranges of c columns, (c, 2) in steps. Without one, it is the outer bounds.

    Its steps do not depend on the histograms: a server that sees no sum may measure a
    client's time.

    Parameters
    ----------
    coarse, middle, fine : array of int64
        The columns' noisy histograms, (c, 16), (c, 128) and (c, 1024).
    deviation : float
        Planned standard deviation of a word's noise, in the units of the histograms.
    """
    levels = _nodes(coarse, middle, fine)
    deviations = [deviation * math.sqrt(variance) for variance in _VARIANCES]
    limit = math.ceil(CLEAR * deviations[_COARSE_LEVEL])
    ends = _hull(levels[_COARSE_LEVEL] > limit)
    for level in reversed(range(_COARSE_LEVEL)):
        limits = _edge_limits(deviations[level])
        ends = _zoomed(ends, level, levels[level], limits)
    cells = _cells_of(ends, levels)
    low, high = _widened(ends, cells)
    # Noise can make a coarse bin clear whose finer cells are all empty.
    is_found = ends.is_found & cells.any(axis=1) & (high - low <= _LONGEST)
    found = np.stack([low, high], axis=1)
    return np.where(is_found[:, None], found, outer_box(len(found)))


class _Ends(NamedTuple):
    """The first cell of each column's range, and the one behind its last; all of shape (c,)."""

    start: IntArray
    stop: IntArray
    level: IntArray  # a cell has 2^level fine bins
    is_found: BoolArray
    is_narrowing: BoolArray  # whether cells may be halved once more


def _hull(is_clear: BoolArray) -> _Ends:
    """Return the ends of all clear coarse bins, (c, 16)."""
    start = is_clear.argmax(axis=1)
    stop = is_clear.shape[1] - is_clear[:, ::-1].argmax(axis=1)
    is_found: BoolArray = np.asarray(is_clear.any(axis=1))
    level = np.full(len(start), _COARSE_LEVEL)
    return _Ends(start, stop, level, is_found, is_found)


def _zoomed(ends: _Ends, level: int, nodes: IntArray, limits: IntArray) -> _Ends:
    """Return ends after one level more, where a range has few cells.

    ``nodes``, (c, m), are the cells of the level, and ``limits``, (16,), the largest sums
    that cells cut off at an end may have, by their number.
    """
    is_narrowing = ends.is_narrowing & (ends.stop - ends.start < _FEWEST_CELLS)
    start = np.where(is_narrowing, 2 * ends.start, ends.start)
    stop = np.where(is_narrowing, 2 * ends.stop, ends.stop)
    n_cells = stop - start
    n_left = _n_cut(_window(nodes, start, n_cells), n_cells, limits)
    reverse = nodes[:, ::-1]
    last = nodes.shape[1] - stop
    n_right = _n_cut(_window(reverse, last, n_cells), n_cells, limits)
    # Where noise explains all cells, none is cut off, and the zoom ends.
    is_cut = is_narrowing & (n_left + n_right < n_cells)
    return _Ends(
        np.where(is_cut, start + n_left, start),
        np.where(is_cut, stop - n_right, stop),
        np.where(is_narrowing, level, ends.level),
        ends.is_found,
        is_cut,
    )


def _cells_of(ends: _Ends, levels: Sequence[IntArray]) -> IntArray:
    """Return the cells of each column's range, at least 0, and zeros behind, (c, 16)."""
    n_cells = ends.stop - ends.start
    cells = np.zeros((len(n_cells), _WINDOW), dtype=np.int64)
    for level, nodes in enumerate(levels):
        own = _window(nodes, ends.start, n_cells)
        cells = np.where((ends.level == level)[:, None], own, cells)
    return np.maximum(cells, 0)


def _widened(ends: _Ends, cells: IntArray) -> tuple[IntArray, IntArray]:
    """Return the lowest and the highest step of each column's range with its margins, (c,)."""
    n_cells = ends.stop - ends.start
    cell = SUBBINS << ends.level
    # the same cells in reverse, from the first one on
    places = np.maximum(n_cells[:, None] - 1 - np.arange(_WINDOW), 0)
    reverse = np.take_along_axis(cells, places, axis=1)
    reverse = np.where(np.arange(_WINDOW) < n_cells[:, None], reverse, 0)
    low = cell * ends.start - _TAIL * _way_to_mass(cells, cell) - cell // 2
    high = cell * ends.stop + _TAIL * _way_to_mass(reverse, cell) + cell // 2
    return np.maximum(low, 0), np.minimum(high, END)


def outer_box(n_columns: int) -> IntArray:
    """Return the outer bounds of all columns in steps, (d, 2) int64."""
    return np.tile(np.array([0, END], dtype=np.int64), (n_columns, 1))


def bounds_within(domain: Box, box: ArrayLike) -> tuple[list[float], list[float]]:
    """Return the lower and the upper bounds of ranges, (d, 2) in steps, in the user's units."""
    lower = []
    upper = []
    ends = np.asarray(box).tolist()
    outer = zip(domain.lower, domain.upper, strict=True)
    for (first, last), (low, high) in zip(ends, outer, strict=True):
        lower.append(_place_of(first, low, high))
        upper.append(_place_of(last, low, high))
    return lower, upper


def stays_outer(box: IntArray) -> list[bool]:
    """Return of each column whether its range is the whole of its outer bounds."""
    is_whole = (box[:, 0] == 0) & (box[:, 1] == END)
    found: list[bool] = is_whole.tolist()
    return found


def _place_of(step: int, low: float, high: float) -> float:
    # The outer bounds themselves must come out without rounding.
    if step == 0:
        return low
    if step == END:
        return high
    return min(max(low + (high - low) * (step / END), low), high)


def _nodes(coarse: IntArray, middle: IntArray, fine: IntArray) -> list[IntArray]:
    """Return estimates of the sums of 2^level fine bins, (c, 1024 / 2^level), by level."""
    words = [
        np.clip(each, -_LARGEST_WORD, _LARGEST_WORD) for each in (coarse, middle, fine)
    ]
    levels: list[IntArray] = [words[2]]
    for level in range(1, _COARSE_LEVEL + 1):
        node = levels[-1].reshape(len(fine), -1, 2).sum(axis=2)
        if level == _MIDDLE_LEVEL:
            node = (node + 8 * words[1]) // 9
        if level == _COARSE_LEVEL:
            node = (node + 7 * words[0]) // 8
        levels.append(node)
    return levels


def _edge_limits(deviation: float) -> IntArray:
    """Return the largest sums of 1, 2, ... 16 cells that noise explains, (16,) int64."""
    limits = [
        math.ceil(_EDGE * deviation * math.sqrt(n)) for n in range(1, _WINDOW + 1)
    ]
    return np.array(limits, dtype=np.int64)


def _window(nodes: IntArray, start: IntArray, n_cells: IntArray) -> IntArray:
    """Return up to 16 cells of each column from ``start`` on, and zeros behind, (c, 16)."""
    offsets = np.arange(_WINDOW)
    places = np.minimum(start[:, None] + offsets, nodes.shape[1] - 1)
    cells = np.take_along_axis(nodes, places, axis=1)
    return np.where(offsets < n_cells[:, None], cells, 0)


def _n_cut(cells: IntArray, n_cells: IntArray, limits: IntArray) -> IntArray:
    """Return how many first cells hold together no more than their noise explains, (c,)."""
    exceeds = np.cumsum(cells, axis=1) > limits
    exceeds &= np.arange(_WINDOW) < n_cells[:, None]
    return np.where(exceeds.any(axis=1), exceeds.argmax(axis=1), n_cells)


def _way_to_mass(cells: IntArray, cell: IntArray) -> IntArray:
    """Return the way from the first cell to the outer part of the mass, in steps, (c,).

    ``cells``, (c, 16), are at least 0, and ``cell`` is the length of one, (c,).
    """
    passed = np.cumsum(cells, axis=1)
    total = passed[:, -1]
    # floor(total * mass / 2^20), without overflow
    whole = (total >> 20) * _TAIL_MASS
    wanted = whole + ((total & (2**20 - 1)) * _TAIL_MASS >> 20)
    first = (passed > wanted[:, None]).argmax(axis=1)[:, None]
    number = np.take_along_axis(cells, first, axis=1)[:, 0]
    before = np.take_along_axis(passed, first, axis=1)[:, 0] - number
    part = cell * (wanted - before) // np.maximum(number, 1)
    found: IntArray = cell * first[:, 0] + part
    return found
