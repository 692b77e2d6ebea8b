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
_EXPLAINED = 1.75  # deviations of the records before an end that noise explains
# margin at an end: this many times the way to the outer part of the noisy mass
_TAIL = 2
# that part, 3 %, in 2^-20; it is rounded down
_TAIL_MASS = 31457
_LONGEST = END // 5  # steps; a longer range stays outer
_MIDDLE_LEVEL = 3  # a middle bin has 2^3 fine bins
_COARSE_LEVEL = 6
# fine bins in a middle one, and middle bins in a coarse one
_IN_MIDDLE = 1 << _MIDDLE_LEVEL
_IN_COARSE = 1 << _COARSE_LEVEL  # fine bins in a coarse one
# Variances of an averaged middle bin and of a coarse one, over that of a word. Each is
# averaged with the sum of its 8 parts, by inverse variances: 1 and 8, nearly 1 and 7.
_MIDDLE_VARIANCE = 8 / 9
_COARSE_VARIANCE = (64 / 9 + 49) / 64
# so that sums of bins, times the steps of a cell, stay exact; real words are smaller
_LARGEST_WORD = 2**46
_WINDOW = 16  # most cells of a range, whose lengths grow with it
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
    for block, times in records.weighted_blocks(_ROWS):
        grid = block[:, own].astype(np.int64) + one
        # The divisor is a power of two, so this is a shift. A record on the upper bound
        # belongs to the last bin.
        bins = np.minimum(grid * n_fine // (2 * one), n_fine - 1)
        of_numbers = None
        if times is not None:
            of_numbers = np.repeat(times, len(own))
        places = (bins + starts).reshape(-1)
        counted = np.bincount(places, of_numbers, minlength=fine.size)
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
    clear = math.ceil(CLEAR * deviation * math.sqrt(_COARSE_VARIANCE))
    is_clear = levels[_COARSE_LEVEL] > clear
    limits = _limits(deviation)
    n_left = _n_empty(levels, is_clear, limits)
    reverse = [each[:, ::-1] for each in levels]
    n_right = _n_empty(reverse, is_clear[:, ::-1], limits)
    cells = _cells_between(n_left, BINS[FINE] - n_right)
    numbers = _numbers_in(cells, levels)
    low, high = _widened(cells, numbers)
    # Noise can make a coarse bin clear whose finer cells are all empty.
    is_found = is_clear.any(axis=1) & numbers.any(axis=1) & (high - low <= _LONGEST)
    found = np.stack([low, high], axis=1)
    return np.where(is_found[:, None], found, outer_box(len(found)))


class _Cells(NamedTuple):
    """The first cell of each column's range, and the one behind its last; all of shape (c,)."""

    start: IntArray
    stop: IntArray
    level: IntArray  # a cell has 2^level fine bins


def _n_empty(
    levels: Sequence[IntArray], is_clear: BoolArray, limits: IntArray
) -> IntArray:
    """Return how many fine bins lie before each column's range, (c,).

    The range begins in the first clear coarse bin, at its last fine bin before which this
    coarse bin has no more records than noise explains. The first bin that exceeds its limit
    decides nothing: noise exceeds it in some empty bins, but a record stays in all sums
    behind it. ``is_clear`` is (c, 16), and ``limits`` (64,).
    """
    first = is_clear.argmax(axis=1)
    n_columns = len(first)
    columns = np.arange(n_columns)
    coarse = levels[_COARSE_LEVEL][columns, first]
    middle = levels[_MIDDLE_LEVEL].reshape(n_columns, -1, _IN_MIDDLE)[columns, first]
    fine = levels[0].reshape(n_columns, -1, _IN_COARSE)[columns, first]
    # From the top, parts are changed alike so that they add up to their whole.
    middle = middle + (coarse - middle.sum(axis=1))[:, None] // _IN_MIDDLE
    parts = fine.reshape(n_columns, _IN_MIDDLE, _IN_MIDDLE)
    parts = parts + (middle - parts.sum(axis=2))[:, :, None] // _IN_MIDDLE
    fine = parts.reshape(n_columns, _IN_COARSE)
    before = np.cumsum(fine, axis=1) - fine
    is_explained = before <= limits
    last = _IN_COARSE - 1 - is_explained[:, ::-1].argmax(axis=1)
    found: IntArray = _IN_COARSE * first + last
    return found


def _limits(deviation: float) -> IntArray:
    """Return the largest sums before each fine bin of a coarse one that noise explains, (64,)."""
    limits = [
        math.ceil(_EXPLAINED * deviation * math.sqrt(_variance_before(n)))
        for n in range(_IN_COARSE)
    ]
    return np.array(limits, dtype=np.int64)


def _variance_before(n: int) -> float:
    """Return the variance of a coarse bin's first ``n`` fine bins, over that of a word.

    With whole = sum of the 8 averaged middle bins m, r fine bins f of the last one, whose
    8 have the sum s, and c the coarse histogram's own word, the estimate is

        sum of full m + r/8 m - g (whole - c) + (sum of r f - r/8 s), g = 7/8 n/64,

    where the last term is not correlated with the others.
    """
    n_full, rest = divmod(n, _IN_MIDDLE)
    part = rest / _IN_MIDDLE
    g = 7 / 8 * n / _IN_COARSE
    full = n_full * (1 - g) * (1 - g)
    last = (part - g) * (part - g)
    others = (_IN_MIDDLE - 1 - n_full) * g * g
    # All terms but the first product are exact in float64.
    return _MIDDLE_VARIANCE * (full + last + others) + g * g + rest * (1 - part)


def _cells_between(first: IntArray, second: IntArray) -> _Cells:
    """Return at most 16 cells over the fine bins between two places of each column, (c,)."""
    # Within one coarse bin of few records, the ends can pass each other.
    start = np.minimum(first, second)
    stop = np.maximum(np.maximum(first, second), start + 1)
    level = np.zeros(len(start), dtype=np.int64)
    for _ in range(_COARSE_LEVEL):
        are_many = stop - start > _WINDOW
        start = np.where(are_many, start // 2, start)
        stop = np.where(are_many, (stop + 1) // 2, stop)
        level = level + are_many
    return _Cells(start, stop, level)


def _numbers_in(cells: _Cells, levels: Sequence[IntArray]) -> IntArray:
    """Return the numbers in each column's cells, at least 0, and zeros behind, (c, 16)."""
    n_cells = cells.stop - cells.start
    numbers = np.zeros((len(n_cells), _WINDOW), dtype=np.int64)
    for level, nodes in enumerate(levels):
        own = _window(nodes, cells.start, n_cells)
        numbers = np.where((cells.level == level)[:, None], own, numbers)
    return np.maximum(numbers, 0)


def _widened(cells: _Cells, numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Return the lowest and the highest step of each column's range with its margins, (c,)."""
    n_cells = cells.stop - cells.start
    length = SUBBINS << cells.level
    # the same numbers in reverse, from the last cell on
    places = np.maximum(n_cells[:, None] - 1 - np.arange(_WINDOW), 0)
    reverse = np.take_along_axis(numbers, places, axis=1)
    reverse = np.where(np.arange(_WINDOW) < n_cells[:, None], reverse, 0)
    low = length * cells.start - _TAIL * _way_to_mass(numbers, length) - length // 2
    high = length * cells.stop + _TAIL * _way_to_mass(reverse, length) + length // 2
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
    """Return whether the range of each column is the whole of its outer bounds."""
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


def _window(nodes: IntArray, start: IntArray, n_cells: IntArray) -> IntArray:
    """Return up to 16 cells of each column from ``start`` on, and zeros behind, (c, 16)."""
    offsets = np.arange(_WINDOW)
    places = np.minimum(start[:, None] + offsets, nodes.shape[1] - 1)
    cells = np.take_along_axis(nodes, places, axis=1)
    return np.where(offsets < n_cells[:, None], cells, 0)


def _way_to_mass(numbers: IntArray, length: IntArray) -> IntArray:
    """Return the way from the first cell to the outer part of the mass, in steps, (c,).

    ``numbers``, (c, 16), are at least 0, and ``length`` is that of a cell, (c,).
    """
    passed = np.cumsum(numbers, axis=1)
    total = passed[:, -1]
    # floor(total * mass / 2^20), without overflow
    whole = (total >> 20) * _TAIL_MASS
    wanted = whole + ((total & (2**20 - 1)) * _TAIL_MASS >> 20)
    first = (passed > wanted[:, None]).argmax(axis=1)[:, None]
    number = np.take_along_axis(numbers, first, axis=1)[:, 0]
    before = np.take_along_axis(passed, first, axis=1)[:, 0] - number
    part = length * (wanted - before) // np.maximum(number, 1)
    found: IntArray = length * first[:, 0] + part
    return found
