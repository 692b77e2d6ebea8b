"""Public bounds of the records, and the integer grid on which all private work is done.

A record is clipped to the public bounds, scaled to the unit box or ball, and rounded to
the grid of step ``2**-fraction_bits`` (docs/guarantees, Theorem 7). Each step reads one
record alone. A record therefore has the same grid point in every block, and changes a
sum by its own grid point only.

A box may hold categories: ranges of columns of which one is 1 and the others 0. It is
then a product of numbers and of levels, and its norms are those of the product
(docs/guarantees, Theorem 44).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.canonical import (
    array_from_text,
    array_to_text,
    real_from_text,
    real_to_text,
)
from flower_kmeans.data.records import as_numbers
from flower_kmeans.data.records import check_records as check_records
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError
from flower_kmeans.parameters import integer

# An alias: an inner function evaluates its annotations whenever it is defined.
_Rows = NDArray[Any]
# takes (rows, out, scratch) and writes the rows' grid points into out
_Reader = Callable[[_Rows, FloatArray, FloatArray], None]

# More bits leave no room for a single squared distance (`check_exactness`).
MAX_FRACTION_BITS = 25
# Beyond these two, widths or their reciprocals leave float64's range.
_LARGEST_BOUND = 1e300
_SMALLEST_WIDTH = 1e-280
_INNER_LOOP = 4_096  # numbers in one pass of NumPy's inner loop
_CACHED_NUMBERS = 2**16
_WEIGHT_BITS = 12  # records count at most 2**12 times
NUMBER_WEIGHT = 1.0
# Two levels are as far apart as the middle of a number's range and its end.
CATEGORY_WEIGHT = 0.5
# Squares of larger numbers could leave float64's range.
LARGEST_SCALED = 1e150
# Squares of a million numbers between 2^-400 and 2^400 add up within float64's range.
SAFE_EXPONENT = 400
_MOST_COLUMNS = 2**20  # of a sphere: more have no exact squared distances
_SMALLEST_REACH = 1e-3  # largest scaled coordinate that weights can give
# Relative. It is far above the effect of the order of additions, or of rounding a
# bound.
_SLACK = 1e-9
# Of a width over the largest bound, and of a width: a range within the bounds, of at
# least a 1,024th of their width, then has a lower bound below its upper one.
_LEAST_TIGHTENED = 2.0**-30
_SMALLEST_TIGHTENED = 1e-276


class Factor(NamedTuple):
    """A number or a category of a box, in its columns ``start`` to ``stop``."""

    name: str
    start: int
    stop: int
    is_category: bool


class _Bounds:
    """The common part of `Box`, `Ball` and `Sphere`."""

    columns: tuple[str, ...] | None
    half_widths: FloatArray
    """Largest absolute scaled coordinate of each column, (d,), float64.

    It is 1, or less with ``scale="common"`` or weights. It is public.
    """
    _center: FloatArray  # (d,), in the user's units; scaled, it is 0
    _reach: FloatArray  # (d,), of a record in a cube, where half widths are larger
    _unit: FloatArray  # user's units in one scaled unit: () for all columns, or (d,)

    def _scale_by(
        self, center: FloatArray, unit: FloatArray, half_widths: FloatArray
    ) -> None:
        half_widths.setflags(write=False)
        # The dataclasses are frozen: attributes cannot be set in the ordinary way.
        vars(self).update(_center=center, _unit=unit, half_widths=half_widths)

    @property
    def n_features(self) -> int:
        """Number of columns, d."""
        return len(self._center)

    @property
    def common_unit(self) -> float | None:
        """User's units in one scaled unit, or ``None`` if columns differ."""
        # Widths that are meant to be equal differ by the rounding of their bounds.
        least = float(self._unit.min())
        most = float(self._unit.max())
        return most if most - least <= _SLACK * most else None

    @property
    def unit(self) -> FloatArray:
        """User's units in one scaled unit of each column, (d,)."""
        return np.broadcast_to(self._unit, self.n_features)

    def from_unit(self, points: FloatArray) -> FloatArray:
        """Return scaled points, (m, d), in the user's units, without clipping."""
        return points * self._unit + self._center

    def scaled(self, points: FloatArray) -> FloatArray:
        """Return points in the user's units, (m, d), scaled but not clipped."""
        return (points - self._center) / self._unit

    def as_centroids(self, points: FloatArray) -> FloatArray:
        """Return scaled centroids, (k, d), in the user's units, as a result has them."""
        return self.from_unit(points)

    def compared(self, records: FloatArray) -> FloatArray:
        """Return records, (n, d), in the user's units, as distances compare them."""
        return records

    def are_null(self, records: NDArray[Any]) -> BoolArray:
        """Return which finite records, (n,), are null records of the domain: none here."""
        return np.zeros(len(records), dtype=bool)

    def counted(self, records: NDArray[Any]) -> NDArray[Any]:
        """Return the finite records, (m, d), that are no null records of the domain."""
        return records

    def grid_half_widths(self, fraction_bits: int) -> IntArray:
        """Return the largest absolute grid coordinate of each column, (d,), int64."""
        check_fraction_bits(fraction_bits)
        limits: FloatArray = np.rint(self.half_widths * 2**fraction_bits)
        return limits.astype(np.int64)

    def grid_bounds(self, fraction_bits: int) -> tuple[IntArray, IntArray]:
        """Return the least and the largest integer coordinate of each column, (d,)."""
        limits = self.grid_half_widths(fraction_bits)
        return -limits, limits

    def _config(self, name: str, **bounds: Any) -> dict[str, Any]:
        if self.columns is None:
            names = {}
        else:
            names = {"columns": list(self.columns)}
        return {"name": name, "n_features": self.n_features, **bounds, **names}


@dataclass(frozen=True, init=False)
class Box(_Bounds):
    """Records lie between a lower and an upper bound in every column.

    Parameters
    ----------
    lower, upper : array-like of shape (d,)
        Public bounds in the user's units. A record outside is clipped to them. They
        must not be computed from private records.
    scale : {"column", "common"}
        ``"column"`` scales every column to [-1, 1]. ``"common"`` divides all columns by
        the half width of the widest one, so distances keep their meaning in the user's
        units.
    columns : sequence of str, optional
        Public, printable names of the d columns, in order. With them, a client whose
        records name their columns answers only if it has the same names in the same
        order.
    weights : sequence of float, optional
        Of the d columns, public and positive: a column counts in distances in
        proportion to its weight. It is scaled to ``[-weight, weight]``. Where the
        largest scaled coordinate would exceed 1, or stay below 0.001, all are divided
        by it: only ratios of weights count. By default weights are 1, and 0.5 for
        columns of categories. Not with ``scale="common"``.
    categories : sequence of (int, int), optional
        The first column of each category, and the one behind its last, as
        `TableDomain` declares them. One column of a record is 1 and the others are 0,
        and a record with other values becomes the nearest of these, the first of
        several. All of them have one weight, and two levels are ``2 weight`` apart.
    tighten : float, optional
        A fraction of the run's mu^2, in (0, 1). With it the bounds are *outer* bounds,
        and the first round of a run spends this fraction on the ranges of the numbers
        within them. A range is released, and replaces the outer bounds in all later
        rounds (docs/guarantees, Theorem 45). Categories keep their bounds.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If bounds are not finite or not in order, their numbers differ, or another
        parameter is not as above.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    scale: Literal["column", "common"] = "column"
    columns: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    categories: tuple[tuple[int, int], ...] = ()
    tighten: float | None = None
    is_cube: bool = field(default=False, init=False)
    """Whether half widths are 1 in every column, of which each has its own bounds.

    Only with ``scale="common"`` and ``tighten``: noise is planned before the ranges of
    the columns are known.
    """

    def __init__(
        self,
        lower: ArrayLike,
        upper: ArrayLike,
        scale: Literal["column", "common"] = "column",
        columns: Sequence[str] | None = None,
        weights: ArrayLike | None = None,
        categories: Sequence[tuple[int, int]] = (),
        tighten: float | None = None,
    ) -> None:
        lows = _vector("lower", lower)
        highs = _vector("upper", upper)
        if len(lows) != len(highs):
            raise ConfigurationError(
                "Expected lower and upper with one bound for each column. "
                f"Got {len(lows)} and {len(highs)} instead."
            )
        for column, (low, high) in enumerate(zip(lows, highs, strict=True)):
            if not high - low >= _SMALLEST_WIDTH:
                raise ConfigurationError(
                    f"Expected lower below upper in every column. Got lower={low!r} and "
                    f"upper={high!r} in column {column} instead."
                )
        if scale not in ("column", "common"):
            raise ConfigurationError(
                f"Expected scale as 'column' or 'common'. Got {scale!r} instead."
            )
        names = check_names(columns, n_features=len(lows))
        blocks = _checked_categories(categories, lows, highs)
        vars(self).update(lower=lows, upper=highs, scale=scale, columns=names)
        vars(self).update(weights=None, categories=blocks, is_cube=False)
        vars(self).update(tighten=_checked_tighten(tighten, lows, highs, blocks))
        # Halves first: the sum of two large bounds would overflow.
        a = np.array(lows) / 2
        b = np.array(highs) / 2
        if scale == "column":
            chosen = _default_weights(len(lows), blocks)
            if weights is not None:
                chosen = _checked_weights(weights, len(lows), blocks)
            vars(self).update(weights=chosen)
            self._scale_by_weights(a + b, b - a, np.array(chosen))
            return
        if weights is not None or blocks:
            raise ConfigurationError(
                "Expected scale='column' with weights or categories: with scale='common' all "
                f"columns have one unit. Got scale={scale!r} instead."
            )
        unit = np.full_like(a, (b - a).max())
        self._scale_by(a + b, unit, (b - a) / unit)
        if tighten is not None:
            self._become_cube()

    def _scale_by_weights(
        self, center: FloatArray, widths: FloatArray, weights: FloatArray
    ) -> None:
        """Scale columns with half widths (d,) to their weights, and categories' levels.

        Level i of m becomes ``sqrt(2) weight (e_i - 1/m)``, about the levels' mean.
        """
        reaches = weights.copy()
        for own in self._blocks:
            center[own] = 1 / (own.stop - own.start)
            widths[own] = math.sqrt(0.5)
            reaches[own] *= math.sqrt(2.0) * (1 - center[own])
        # Squared distances are exact for coordinates of at most 1 (docs/guarantees,
        # Theorem 8), and tiny ones would share few points of the grid.
        largest = float(reaches.max())
        if _SMALLEST_REACH <= largest <= 1:
            largest = 1.0
        with np.errstate(over="ignore"):  # it is refused below
            unit = widths * (largest / weights)
        if not (unit <= 1 / _SMALLEST_WIDTH).all():
            raise ConfigurationError(
                "Expected weights that are not too small for their columns' bounds. Got a width "
                f"over its weight of {2 * unit.max():.3g}."
            )
        half_widths = reaches / largest
        for own in self._blocks:
            # as `place` has it for a level, in all digits
            half_widths[own] = (1.0 - center[own]) * (1 / unit[own])
        self._scale_by(center, unit, half_widths)

    def _become_cube(self) -> None:
        """Plan with half widths of 1. Records stay within the bounds of their columns."""
        reach = self.half_widths
        cube = np.ones_like(reach)
        cube.setflags(write=False)
        vars(self).update(half_widths=cube, is_cube=True, _reach=reach)

    @property
    def is_weighted(self) -> bool:
        """Whether some column's weight is not the default one."""
        usual = _default_weights(self.n_features, self.categories)
        return self.weights not in (None, usual)

    def to_unit(self, records: FloatArray) -> FloatArray:
        """Return records, (n, d), clipped, and scaled to ``[-half_widths, half_widths]``.

        Columns of a category become those of the nearest level, the first of several.
        """
        if self.categories:
            records = self._with_levels(records)
        unit = self.place(records)
        if self.is_cube:
            np.clip(unit, -self._reach, self._reach, out=unit)
        return unit

    def place(self, points: FloatArray) -> FloatArray:
        """Return points, (m, d), such as centroids, clipped to the scaled domain and scaled.

        Of a category the shares of its levels stay, unlike in `to_unit`.
        """
        with np.errstate(over="ignore"):
            # Far points become infinite and are then clipped. `_box_reader` uses the
            # same reciprocal: a quotient would round differently.
            unit = (points - self._center) * (1 / self._unit)
        return np.clip(unit, self._lows, self.half_widths, out=unit)

    def outside(self, records: NDArray[Any]) -> IntArray:
        """Return the number of values outside the bounds in each column, (d,), int64.

        In a category these are the values that `to_unit` changes. The numbers are
        private.
        """
        lower = np.array(self.lower)
        upper = np.array(self.upper)
        found = np.zeros(self.n_features, dtype=np.int64)
        for rows in _pieces(records):
            found += _counts_by_column((rows < lower) | (rows > upper))
        for own in self._blocks:
            is_other = records[:, own] != _levels(records[:, own])
            found[own] = np.count_nonzero(is_other, axis=0)
        return found

    def quantise(self, unit_points: FloatArray, fraction_bits: int) -> FloatArray:
        """Return the nearest grid points of scaled points, (n, d), integers in float64.

        Ties go to even integers. Columns of categories are truncated toward zero.
        """
        low, high = self.grid_bounds(fraction_bits)
        points = unit_points * float(2**fraction_bits)
        grid = np.rint(points)
        for own in self._blocks:
            np.trunc(points[:, own], out=grid[:, own])
        return np.clip(grid, low, high, out=grid)

    def grid_half_widths(self, fraction_bits: int) -> IntArray:
        """Return the largest absolute integer coordinate of each column, (d,)."""
        _, high = self.grid_bounds(fraction_bits)
        return high

    def grid_bounds(self, fraction_bits: int) -> tuple[IntArray, IntArray]:
        """Return the least and the largest integer coordinate of each column, (d,).

        Those of a category are the coordinates of its levels.
        """
        check_fraction_bits(fraction_bits)
        one = 2**fraction_bits
        high: FloatArray = np.rint(self.half_widths * one)
        low = -high
        for own in self._blocks:
            high[own] = np.trunc(self.half_widths[own] * one)
            low[own] = np.trunc(self._lows[own] * one)
        return low.astype(np.int64), high.astype(np.int64)

    def grid_reach(self, fraction_bits: int) -> IntArray:
        """Return the largest absolute integer coordinate of a record in each column, (d,).

        In a cube it may be smaller than `grid_half_widths`, for which noise is planned.
        """
        if not self.is_cube:
            return self.grid_half_widths(fraction_bits)
        reach: FloatArray = np.rint(self._reach * 2**fraction_bits)
        return reach.astype(np.int64)

    def squared_bound(self, fraction_bits: int, coarser: int = 0) -> int:
        """Return the largest squared l2 norm of a record in grid units, exact, attained.

        Every coordinate loses its ``coarser`` last bits toward zero.
        """
        sizes = self._largest_record(fraction_bits).tolist()
        return sum((size >> coarser) ** 2 for size in sizes)

    def l2_bound(self, fraction_bits: int) -> float:
        """Return the largest l2 norm of a quantised record, in grid units, rounded up.

        A corner of the numbers, with any levels, attains it.
        """
        return _sqrt_up(self.squared_bound(fraction_bits))

    def l1_bound(self, fraction_bits: int) -> float:
        """Return the largest l1 norm of a quantised record, in grid units.

        A corner of the numbers, with any levels, attains it.
        """
        return float(self._largest_record(fraction_bits).sum())

    def _largest_record(self, fraction_bits: int) -> IntArray:
        """Return absolute coordinates of the largest record, (d,), in every norm.

        All levels of a category have those of the first one, in another order.
        """
        low, high = self.grid_bounds(fraction_bits)
        sizes = high.copy()
        for start, stop in self.categories:
            sizes[start + 1 : stop] = -low[start + 1 : stop]
        return sizes

    @property
    def _blocks(self) -> list[slice]:
        """The columns of each category."""
        return [slice(start, stop) for start, stop in self.categories]

    @cached_property
    def _lows(self) -> FloatArray:
        """Least scaled coordinates, (d,)."""
        lows = -self.half_widths
        for own in self._blocks:
            lows[own] = (0.0 - self._center[own]) * (1 / self._unit[own])
        lows.setflags(write=False)
        return lows

    def _with_levels(self, records: FloatArray) -> FloatArray:
        """Return records (n, d) with the nearest level of each category."""
        found = np.array(records, dtype=np.float64)
        for own in self._blocks:
            found[:, own] = _levels(found[:, own])
        return found

    def factors(self) -> list[Factor]:
        """Return numbers and categories as people name them, in order."""
        return _factors(self)

    def weighted(self, weights: Mapping[str, float]) -> "Box":
        """Return the box with other weights, by the names of `factors`."""
        chosen = list(self.weights or _default_weights(self.n_features, ()))
        known = {factor.name: factor for factor in self.factors()}
        for name, weight in checked_by_name(weights, known).items():
            factor = known[name]
            chosen[factor.start : factor.stop] = [weight] * (factor.stop - factor.start)
        return self._changed(weights=chosen)

    def tightened(self, tighten: float | None) -> "Box":
        """Return the box with another fraction ``tighten``."""
        return self._changed(tighten=tighten)

    def _changed(self, **changes: Any) -> "Box":
        """Return the box with other values of some parameters."""
        values = {
            "lower": self.lower,
            "upper": self.upper,
            "scale": self.scale,
            "columns": self.columns,
            "weights": self.weights,
            "categories": self.categories,
            "tighten": self.tighten,
        }
        return Box(**(values | changes))

    @property
    def numbers(self) -> NDArray[np.intp]:
        """Indices of the columns that are no part of a category, ascending."""
        is_number = np.ones(self.n_features, dtype=bool)
        for own in self._blocks:
            is_number[own] = False
        return np.flatnonzero(is_number)

    def within(self, lower: ArrayLike, upper: ArrayLike) -> "Box":
        """Return the box with released ranges as its bounds, for the results of a run."""
        return self._changed(lower=lower, upper=upper, tighten=None)

    def read_within(self, lower: ArrayLike, upper: ArrayLike) -> "Box":
        """Return the box that reads records within ranges, with the half widths of this one.

        Noise that was planned for this box is therefore the noise for that one, whatever
        the ranges are.
        """
        found = self._changed(lower=lower, upper=upper, tighten=None)
        if self.is_cube:
            found._become_cube()
        return found

    def weights_by_name(self) -> dict[str, float]:
        """Return the weights of numbers and categories, by the names of `factors`."""
        weights = self.weights or _default_weights(self.n_features, ())
        return {factor.name: weights[factor.start] for factor in self.factors()}

    def part(self, own: slice) -> "Box":
        """Return the box of a range of columns, scaled as in the whole if that has no weights.

        Raises
        ------
        ConfigurationError
            If the range divides a category.
        """
        first, behind, _ = own.indices(self.n_features)
        blocks = []
        for start, stop in self.categories:
            if stop <= first or start >= behind:
                continue
            if start < first or stop > behind:
                raise ConfigurationError(
                    "Expected parties with whole categories. Got columns "
                    f"{first} to {behind - 1}, which divide that of columns {start} to {stop - 1}."
                )
            blocks.append((start - first, stop - first))
        names = None if self.columns is None else self.columns[own]
        weights = None if self.weights is None else self.weights[own]
        return Box(
            self.lower[own],
            self.upper[own],
            self.scale,
            names,
            weights,
            blocks,
            self.tighten,
        )

    def to_config(self) -> dict[str, Any]:
        """Return the box for a run document."""
        lower = array_to_text(self.lower)
        upper = array_to_text(self.upper)
        more: dict[str, Any] = {}
        if self.is_weighted:
            more["weights"] = array_to_text(np.array(self.weights))
        if self.categories:
            more["categories"] = [list(block) for block in self.categories]
        if self.tighten is not None:
            more["tighten"] = real_to_text(self.tighten)
        return self._config("box", lower=lower, upper=upper, scale=self.scale, **more)


@dataclass(frozen=True, init=False)
class Ball(_Bounds):
    """Records lie within a radius of a centre; all columns share one scale.

    Parameters
    ----------
    radius : float
        Public l2 bound in the user's units. A record outside is moved straight towards
        the centre until it lies on the sphere.
    center : array-like of shape (d,)
        Public centre in the user's units.
    columns : sequence of str, optional
        Public names of the d columns, as for `Box`.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If the radius is not positive, a number is not finite, or ``columns`` is not as
        above.
    """

    radius: float
    center: tuple[float, ...]
    columns: tuple[str, ...] | None = None

    def __init__(
        self, radius: float, center: ArrayLike, columns: Sequence[str] | None = None
    ) -> None:
        if isinstance(radius, bool) or not isinstance(radius, int | float | np.number):
            raise ConfigurationTypeError(
                f"Expected radius as a number. Got {type(radius).__name__} instead."
            )
        if not _SMALLEST_WIDTH <= float(radius) <= _LARGEST_BOUND:
            raise ConfigurationError(
                f"Expected radius positive and finite. Got {radius!r} instead."
            )
        middle = _vector("center", center)
        names = check_names(columns, n_features=len(middle))
        vars(self).update(radius=float(radius), center=middle, columns=names)
        half_widths = np.ones(len(middle))
        self._scale_by(np.array(middle), np.array(self.radius), half_widths)

    def to_unit(self, records: FloatArray) -> FloatArray:
        """Return records, (n, d), moved into the ball, and scaled to the unit ball."""
        unit = self._before_moving(records)
        # The fast sum finds the records well inside, which are most. Its last bits may
        # depend on the block, so it decides nothing near the sphere.
        fast = squared_norms(unit)
        near = np.flatnonzero(fast > 1 - _SLACK)
        if len(near):
            squared = row_sums(unit[near] ** 2)
            outside = near[squared > 1]
            lengths = np.sqrt(squared[squared > 1])
            unit[outside] /= lengths[:, None]
        return unit

    def _before_moving(self, records: FloatArray) -> FloatArray:
        """Return records, (n, d), scaled, some of them outside of the unit ball."""
        with np.errstate(over="ignore"):
            unit: FloatArray = records - self._center
            unit *= 1 / self.radius  # in place: a second table would leave the cache
        # Squares must stay finite. A record so far out keeps its direction only
        # roughly.
        return np.clip(unit, -LARGEST_SCALED, LARGEST_SCALED, out=unit)

    def place(self, points: FloatArray) -> FloatArray:
        """Move points (m, d), such as centroids, into the ball, as `to_unit`."""
        return self.to_unit(points)

    def outside(self, records: NDArray[Any]) -> IntArray:
        """Return the number of records outside the ball, (1,), int64.

        The number is private.
        """
        n_outside = 0
        for rows in _pieces(records):
            unit = self._before_moving(rows)
            fast = squared_norms(unit)
            near = np.abs(fast - 1) <= _SLACK  # as in `to_unit`
            n_outside += int(np.count_nonzero(fast > 1 + _SLACK))
            n_outside += int(np.count_nonzero(row_sums(unit[near] ** 2) > 1))
        return np.array([n_outside], dtype=np.int64)

    def quantise(self, unit_points: FloatArray, fraction_bits: int) -> FloatArray:
        """Return scaled points, (n, d), truncated towards zero on the grid, float64."""
        # Rounding to the nearest grid point would put half of the points of the sphere
        # outside.
        grid = np.trunc(unit_points * float(2**fraction_bits))
        # Truncation cannot lengthen a vector, but the division in `to_unit` may, by a
        # few roundings. These squared norms are integers below 2**53, so their sums are
        # exact in any order. The factor below 1 covers the roundings of this
        # correction. Afterwards no norm exceeds 2**fraction_bits.
        squared = squared_norms(grid)
        outside = squared > float(4**fraction_bits)
        if np.count_nonzero(outside):  # quicker than any() for a few records
            factor = (1 - 2.0**-40) * 2**fraction_bits / np.sqrt(squared[outside])
            grid[outside] = np.trunc(grid[outside] * factor[:, None])
        return grid

    def squared_bound(self, fraction_bits: int, coarser: int = 0) -> int:
        """Return the largest squared l2 norm of a record in grid units, exact, attained.

        Every coordinate loses its ``coarser`` last bits toward zero.
        """
        return int(4 ** (fraction_bits - coarser))

    def l2_bound(self, fraction_bits: int) -> float:
        """Return the largest l2 norm of a quantised record, in grid units.

        A point on an axis attains it.
        """
        return float(2**fraction_bits)

    def l1_bound(self, fraction_bits: int) -> float:
        """Return an upper bound of the l1 norm of a quantised record, in grid units."""
        # Cauchy-Schwarz gives sqrt(d) 2^fraction_bits. An l1 norm of integers is an
        # integer, so the bound is rounded down.
        return float(math.isqrt(self.n_features * 4**fraction_bits))

    def to_config(self) -> dict[str, Any]:
        """Return the ball for a run document."""
        center = array_to_text(self.center)
        return self._config("ball", radius=real_to_text(self.radius), center=center)


@dataclass(frozen=True, init=False)
class Sphere(_Bounds):
    """Directions: every record is divided by its length, so only its direction counts.

    Squared distances of directions are ``2 (1 - cosine)``, so clusters are those of
    cosine distance. Centroids of a result have length 1. A record of length zero has no
    direction. It is a null record, which counts as none, as one that is not finite.

    Parameters
    ----------
    n_features : int
        Number of columns, d.
    columns : sequence of str, optional
        Public names of the d columns, as for `Box`.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If ``n_features`` is no positive integer, or ``columns`` is not as above.
    """

    n_features: int
    columns: tuple[str, ...] | None = None

    def __init__(self, n_features: int, columns: Sequence[str] | None = None) -> None:
        width = integer("n_features", n_features, 1, _MOST_COLUMNS)
        names = check_names(columns, n_features=width)
        vars(self).update(n_features=width, columns=names)
        self._scale_by(np.zeros(width), np.array(1.0), np.ones(width))

    def to_unit(self, records: FloatArray) -> FloatArray:
        """Return the directions of records, (n, d). One of length zero stays as it is."""
        found = np.array(records, dtype=np.float64)
        largest = np.abs(found).max(axis=1)
        # Squares of other numbers could leave float64's range. A power of two changes
        # no digit.
        is_far = (largest > 2.0**SAFE_EXPONENT) | (largest < 2.0**-SAFE_EXPONENT)
        if is_far.any():
            _, exponents = np.frexp(largest[is_far])
            found[is_far] = np.ldexp(found[is_far], -exponents[:, None])
        lengths = np.sqrt(row_sums(found**2))
        lengths[lengths == 0] = 1.0
        found /= lengths[:, None]
        return found

    def place(self, points: FloatArray) -> FloatArray:
        """Return the directions of points, (m, d), such as centroids.

        A point of length zero becomes the direction of the first column.
        """
        found = self.to_unit(points)
        found[~found.any(axis=1), 0] = 1.0
        return found

    def as_centroids(self, points: FloatArray) -> FloatArray:
        """Return centroids, (k, d), divided by their lengths, as `place` does it."""
        return self.place(points)

    def compared(self, records: FloatArray) -> FloatArray:
        """Return the directions of records, (n, d), as `to_unit` does it."""
        return self.to_unit(records)

    def are_null(self, records: NDArray[Any]) -> BoolArray:
        """Return which finite records, (n,), have no direction."""
        return np.asarray(~records.any(axis=1))

    def counted(self, records: NDArray[Any]) -> NDArray[Any]:
        """Return the finite records, (m, d), that have a direction."""
        return records[~self.are_null(records)]

    def outside(self, records: NDArray[Any]) -> IntArray:
        """Return the number of records without a direction, (1,), int64.

        The number is private.
        """
        n_without = np.count_nonzero(self.are_null(records))
        return np.array([n_without], dtype=np.int64)

    def quantise(self, unit_points: FloatArray, fraction_bits: int) -> FloatArray:
        """Return directions, (n, d), truncated toward zero on the grid, as in a `Ball`."""
        return self._ball.quantise(unit_points, fraction_bits)

    def squared_bound(self, fraction_bits: int, coarser: int = 0) -> int:
        """Return the largest squared l2 norm of a record in grid units, exact, attained.

        Every coordinate loses its ``coarser`` last bits toward zero.
        """
        return self._ball.squared_bound(fraction_bits, coarser)

    def l2_bound(self, fraction_bits: int) -> float:
        """Return the largest l2 norm of a quantised record, in grid units.

        A direction along an axis attains it.
        """
        return self._ball.l2_bound(fraction_bits)

    def l1_bound(self, fraction_bits: int) -> float:
        """Return an upper bound of the l1 norm of a quantised record, in grid units."""
        return self._ball.l1_bound(fraction_bits)

    def to_config(self) -> dict[str, Any]:
        """Return the sphere for a run document."""
        return self._config("sphere")

    @cached_property
    def _ball(self) -> Ball:
        """The unit ball, in which directions lie, and as whose records they round."""
        return Ball(1.0, np.zeros(self.n_features))


Domain = Box | Ball | Sphere


def domain_from_config(config: Mapping[str, Any]) -> Domain:
    """Return the domain that ``to_config`` wrote.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, MessageError
        If the configuration is any other.
    """
    # Exactly these fields: a client must not agree to a field that it does not know.
    fields: dict[str, set[str]] = {
        "box": {"lower", "upper", "scale"},
        "ball": {"radius", "center"},
        "sphere": set(),
    }
    name = config.get("name")
    own = fields.get(name) if isinstance(name, str) else None
    optional = {"columns"}
    if name == "box":
        optional |= {"weights", "categories", "tighten"}
    found = set(config) - optional
    if own is None or found != own | {"name", "n_features"}:
        raise ConfigurationError(
            "Expected domain with exactly the fields of a 'box', a 'ball' or a 'sphere'. "
            "Got others instead."
        )
    width = config["n_features"]
    columns = config.get("columns")
    if type(width) is not int or width < 1:
        raise ConfigurationError(
            "Expected n_features of a domain as a positive integer. Got another value instead."
        )
    if "columns" in config and not isinstance(columns, list):
        raise ConfigurationError(
            "Expected columns of a domain as a list of names. Got another value instead."
        )
    if name == "box":
        lower = array_from_text(config["lower"], (width,))
        upper = array_from_text(config["upper"], (width,))
        weights = None
        if "weights" in config:
            weights = array_from_text(config["weights"], (width,))
        categories = config.get("categories", [])
        if not isinstance(categories, list) or (
            "categories" in config and not categories
        ):
            raise ConfigurationError(
                "Expected categories of a domain as a list of ranges."
            )
        tighten = None
        if "tighten" in config:
            tighten = real_from_text(config["tighten"])
        box = Box(lower, upper, config["scale"], columns, weights, categories, tighten)
        # Otherwise a document would have two encodings.
        if ("weights" in config) != box.is_weighted:
            raise ConfigurationError(
                "Expected weights of a domain only where they differ from the default ones."
            )
        return box
    if name == "sphere":
        return Sphere(width, columns)
    center = array_from_text(config["center"], (width,))
    return Ball(real_from_text(config["radius"]), center, columns)


def keeps_categories(domain: Domain, widths: Sequence[int]) -> bool:
    """Return whether parties with these numbers of columns divide no category."""
    if not isinstance(domain, Box):
        return True
    edges = set(accumulate(widths))
    return not any(
        start < edge < stop for start, stop in domain.categories for edge in edges
    )


def difference(first: Domain, second: Domain) -> tuple[str, Any, Any] | None:
    """Return the first difference of two domains as (name, value, other value).

    Names of columns are not compared. Without a difference, return ``None``.
    """
    # Kind and number of columns come first. If they are equal, so is the number of
    # parts.
    parts = zip(_parts(first), _parts(second), strict=False)
    for (name, value), (_, other) in parts:
        if value != other:
            return name, value, other
    return None


def _parts(domain: Domain) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = []
    parts.append(("kind", domain.to_config()["name"]))
    parts.append(("number of columns", domain.n_features))
    if isinstance(domain, Box):
        bounds = enumerate(zip(domain.lower, domain.upper, strict=True))
        columns = [(f"bounds of column {i}", pair) for i, pair in bounds]
        own = enumerate(domain.weights or ())
        weights = [(f"weight of column {i}", weight) for i, weight in own]
        categories = ("columns of categories", domain.categories)
        tighten = ("tighten", domain.tighten)
        more = [("scale", domain.scale), categories, tighten]
        return [*parts, *more, *columns, *weights]
    if isinstance(domain, Sphere):
        return parts
    center = [(f"center in column {i}", value) for i, value in enumerate(domain.center)]
    return [*parts, ("radius", domain.radius), *center]


def check_names(
    columns: Sequence[str] | None, name: str = "columns", n_features: int | None = None
) -> tuple[str, ...] | None:
    """Return names of columns as a tuple, or raise an error about ``name``."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ConfigurationTypeError(
            f"Expected {name} as a sequence of names. Got {type(columns).__name__} instead."
        )
    for column in columns:
        if not isinstance(column, str):
            raise ConfigurationTypeError(
                f"Expected {name} as a sequence of names. "
                f"Got {type(column).__name__} among them instead."
            )
        if not column or not column.isprintable():
            raise ConfigurationError(
                f"Expected {name} as printable names. Got {column!r} instead."
            )
    if not columns or len(set(columns)) < len(columns):
        raise ConfigurationError(
            f"Expected {name} as one or more different names. Got none, or one name twice, instead."
        )
    if n_features not in (None, len(columns)):
        raise ConfigurationError(
            f"Expected {name} with a name for each of {n_features} columns. "
            f"Got {len(columns)} names instead."
        )
    return tuple(columns)


def check_fraction_bits(fraction_bits: int) -> None:
    """Require an integer in [1, `MAX_FRACTION_BITS`]."""
    integer("fraction_bits", fraction_bits, 1, MAX_FRACTION_BITS)


class GridRecords:
    """Records as exact integers on the grid of step ``2**-fraction_bits``.

    Coordinates equal ``domain.quantise(domain.to_unit(records), fraction_bits)``, bit
    for bit. They are computed block by block when they are read. The checked records,
    (n, d), stay in the user's units, so no array of their size is copied.

    Parameters
    ----------
    records : ndarray of shape (n, d)
        Finite numbers in the user's units. float32 stays float32; all other types
        become float64.
    domain : Box, Ball or Sphere
    fraction_bits : int

    Raises
    ------
    DataError
        If the records have another shape.
    """

    # set if `table` is in the user's units and the domain has no categories
    domain: Domain | None = None
    weights: FloatArray | None = None
    """How often each record counts, (n,), integers up to 2**12; once without weights."""

    def __init__(
        self, records: NDArray[Any], domain: Domain, fraction_bits: int
    ) -> None:
        check_fraction_bits(fraction_bits)
        if records.ndim != 2 or records.shape[1] != domain.n_features:
            raise DataError(
                f"Expected records of shape (n, {domain.n_features}). Got {records.shape} instead."
            )
        # float32 stays: readers convert a block at a time to float64, exactly.
        kept = np.float32 if records.dtype == np.float32 else np.float64
        self.table = np.ascontiguousarray(records, dtype=kept)
        if not isinstance(domain, Box) or not domain.categories:
            self.domain = domain
        self.fraction_bits = int(fraction_bits)
        self._read = _reader_of(domain, self.fraction_bits)

    @classmethod
    def from_grid(cls, grid: ArrayLike, fraction_bits: int) -> "GridRecords":
        """Return records from integer grid coordinates, (n, d).

        Raises
        ------
        DataError
            If they are not integers, or are outside [-2**fraction_bits,
            2**fraction_bits].
        """
        check_fraction_bits(fraction_bits)
        values = np.asarray(grid)
        points = values.astype(np.float64)
        if values.ndim != 2 or not (np.rint(points) == points).all():
            raise DataError(
                "Expected grid as a two-dimensional array of integers. Got another array instead."
            )
        if points.size and np.abs(points).max() > 2**fraction_bits:
            raise DataError(
                f"Expected grid in [-{2**fraction_bits}, {2**fraction_bits}]. "
                "Got a number outside instead."
            )
        self = cls.__new__(cls)
        self.table = np.ascontiguousarray(points)
        self.fraction_bits = int(fraction_bits)
        self._read = lambda rows, out, scratch: np.copyto(out, rows)
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """Number of records and number of columns, (n, d)."""
        return self.table.shape[0], self.table.shape[1]

    def read(
        self, start: int, out: FloatArray, scratch: FloatArray | None = None
    ) -> None:
        """Write the grid points of rows ``start`` to ``start + len(out)`` into ``out``.

        ``scratch`` has the shape of ``out`` and is C-contiguous. It may be left out if
        ``out`` is C-contiguous.
        """
        rows = self.table[start : start + len(out)]
        self._read(rows, out, out if scratch is None else scratch)

    def rows_at_once(self, most: int, bits: int) -> int:
        """Return how many rows can be added at once: ``most``, or with weights so few.

        Sums of so many numbers up to ``2**bits``, each with a weight, stay below 2**53.
        """
        if self.weights is None:
            return most
        return min(most, 1 << (53 - _WEIGHT_BITS - bits))

    def weighted_blocks(
        self, max_rows: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[FloatArray, FloatArray | None]]:
        """Yield `blocks`, each with the weights of its records, (m,), or ``None`` without."""
        first = start
        for block in self.blocks(max_rows, start, stop):
            weights = None
            if self.weights is not None:
                weights = self.weights[first : first + len(block)]
            first += len(block)
            yield block, weights

    def blocks(
        self, max_rows: int, start: int = 0, stop: int | None = None
    ) -> Iterator[FloatArray]:
        """Yield the grid points of rows ``start`` to ``stop`` in new blocks, (m, d).

        Blocks are float64, with m <= max_rows.
        """
        if stop is None:
            stop = self.shape[0]
        for first in range(start, stop, max_rows):
            n_rows = min(max_rows, stop - first)
            block = np.empty((n_rows, self.shape[1]))
            self.read(first, block)
            yield block


@lru_cache(maxsize=8)  # the clients of one process share a domain
def _reader_of(domain: Domain, fraction_bits: int) -> _Reader:
    if isinstance(domain, Box):
        read_numbers = _box_reader(domain, fraction_bits)
        if not domain.categories:
            return read_numbers
        return _product_reader(domain, read_numbers, fraction_bits)

    def read(rows: _Rows, out: FloatArray, _: FloatArray) -> None:
        out[...] = domain.quantise(domain.to_unit(rows), fraction_bits)

    return read


def _box_reader(box: Box, fraction_bits: int) -> _Reader:
    """Return a fast ``quantise(to_unit(rows))`` of a box: a few passes over a block.

    The result is the same bit for bit: a factor 2**q commutes with every rounding, and
    clipping to integers commutes with rounding. Where columns differ, their bounds are
    repeated, because NumPy's inner loop would otherwise be as short as a record.
    """
    d = box.n_features
    group = max(1, _INNER_LOOP // d)

    def spread(row: FloatArray) -> FloatArray:
        if (row == row[0]).all():
            return np.array(row[0])
        return np.tile(row, group)

    def cut(bound: FloatArray, width: int) -> FloatArray:
        return bound[:width] if bound.ndim else bound

    center = spread(box._center)
    factor = spread(1 / box._unit * 2**fraction_bits)
    limit = spread(box.grid_reach(fraction_bits).astype(np.float64))
    centered = not box._center.any()

    def convert(records: NDArray[Any], work: FloatArray) -> None:
        width = work.shape[1]
        if not centered:
            middle = cut(center, width)
            records = np.subtract(records, middle, out=work, dtype=np.float64)
        factors = cut(factor, width)
        np.multiply(records, factors, out=work, dtype=np.float64)
        # Rounding may come before clipping, because the limits are integers.
        np.rint(work, out=work)
        if limit.ndim:
            np.maximum(work, -limit[:width], out=work)
            np.minimum(work, limit[:width], out=work)

    def read(records: NDArray[Any], out: FloatArray, scratch: FloatArray) -> None:
        whole = len(records) // group * group
        with np.errstate(over="ignore"):
            if whole:
                wide = (-1, group * d)
                groups = records[:whole].reshape(wide)
                convert(groups, scratch[:whole].reshape(wide))
            if whole < len(records):
                convert(records[whole:], scratch[whole:])
        if not limit.ndim:
            # The method is faster than np.clip, which matters for a few records.
            scratch.clip(-limit, limit, out=out)
        elif out is not scratch:
            np.copyto(out, scratch)

    return read


def _product_reader(box: Box, read_numbers: _Reader, fraction_bits: int) -> _Reader:
    """Return a reader of a box with categories: that of numbers, and levels over it."""
    low, high = box.grid_bounds(fraction_bits)

    def read(rows: _Rows, out: FloatArray, scratch: FloatArray) -> None:
        read_numbers(rows, out, scratch)
        every = np.arange(len(rows))
        for start, stop in box.categories:
            out[:, start:stop] = low[start]
            found = start + _nearest_levels(rows[:, start:stop])
            out[every, found] = high[start]

    return read


def _nearest_levels(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the place of the 1 in each row's nearest unit vector, of several the first, (n,)."""
    found: NDArray[np.intp] = values.argmax(axis=1)
    return found


def _levels(values: NDArray[Any]) -> FloatArray:
    """Return the nearest unit vector of each row (n, m), of several the first, (n, m)."""
    found = np.zeros(values.shape)
    found[np.arange(len(values)), _nearest_levels(values)] = 1.0
    return found


def _pieces(records: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield records, (n, d), in pieces of which a few fit the cache."""
    step = max(1, _CACHED_NUMBERS // records.shape[1])
    for start in range(0, len(records), step):
        yield records[start : start + step]


def _counts_by_column(found: BoolArray) -> IntArray:
    """Return the number of true values in each column of at most 2**24 rows, (d,), int64."""
    # BLAS adds much faster than `count_nonzero`, and such sums are exact in float32.
    counts = np.ones(len(found), np.float32) @ found.astype(np.float32)
    return counts.astype(np.int64)


def row_sums(values: FloatArray) -> FloatArray:
    """Return the sum of each row, (n,), adding halves in place.

    ``values``, (n, d), is overwritten. All operations are elementwise, so the order of
    additions depends on the width alone. A row's sum is therefore the same in every
    block, which NumPy's own reductions do not promise.
    """
    width = values.shape[1]
    while width > 1:
        half = (width + 1) // 2
        values[:, : width - half] += values[:, half:width]
        width = half
    return values[:, 0]


def squared_norms(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the squared l2 norm of each row of numbers, (n, d), as an array (n,).

    Norms of integers below 2**53 are exact. The last bits of others may depend on the
    block.
    """
    norms: NDArray[Any] = np.einsum("ij,ij->i", rows, rows)
    return norms


def _sqrt_up(square: int) -> float:
    """Return the smallest float64 that is not below the square root of an integer."""
    root = math.sqrt(square)
    numerator, denominator = root.as_integer_ratio()
    below = numerator**2 < square * denominator**2
    # The comparison is exact, in integers: a bound rounded down would understate the
    # sensitivity.
    if below:
        return math.nextafter(root, math.inf)
    return root


def _default_weights(
    n_features: int, categories: Sequence[tuple[int, int]]
) -> tuple[float, ...]:
    weights = [NUMBER_WEIGHT] * n_features
    for start, stop in categories:
        weights[start:stop] = [CATEGORY_WEIGHT] * (stop - start)
    return tuple(weights)


def _checked_weights(
    weights: ArrayLike, n_features: int, categories: Sequence[tuple[int, int]]
) -> tuple[float, ...]:
    """Return positive weights of all columns, equal in each category."""
    found = _vector("weights", weights)
    if len(found) != n_features:
        raise ConfigurationError(
            f"Expected weights with one number for each of {n_features} columns. "
            f"Got {len(found)} instead."
        )
    for column, weight in enumerate(found):
        check_weight(weight, f"column {column}")
    for start, stop in categories:
        if len(set(found[start:stop])) > 1:
            raise ConfigurationError(
                f"Expected equal weights in the columns {start} to {stop - 1} of a category. "
                f"Got {found[start:stop]} instead."
            )
    return found


def _factors(box: Box) -> list[Factor]:
    """Return the numbers and categories of a box (`Box.factors`)."""
    names = box.columns
    ends = dict(box.categories)
    found = []
    start = 0
    while start < box.n_features:
        stop = ends.get(start, start + 1)
        if names is None:
            name = f"column {start + 1}"
        elif start in ends:
            name = _common_name(names[start:stop])
        else:
            name = names[start]
        found.append(Factor(name, start, stop, is_category=start in ends))
        start = stop
    times = Counter(factor.name for factor in found)
    for i, factor in enumerate(found):
        if names is not None and factor.is_category and times[factor.name] > 1:
            whole = f"{names[factor.start]} to {names[factor.stop - 1]}"
            found[i] = factor._replace(name=whole)
    return found


def check_tighten(tighten: object) -> float:
    """Return the fraction of mu^2 for the ranges of columns."""
    is_number = isinstance(tighten, int | float | np.integer | np.floating)
    if isinstance(tighten, bool) or not is_number:
        raise ConfigurationTypeError(
            "Expected tighten as a number between 0 and 1. "
            f"Got {type(tighten).__name__} instead."
        )
    if not 0 < tighten < 1:  # type: ignore[operator]
        raise ConfigurationError(
            "Expected tighten between 0 and 1: the fraction of mu^2 that finds the ranges "
            f"of columns. Got {tighten!r} instead."
        )
    return float(tighten)  # type: ignore[arg-type]


def _checked_tighten(
    tighten: object,
    lows: Sequence[float],
    highs: Sequence[float],
    categories: Sequence[tuple[int, int]],
) -> float | None:
    """Return the fraction ``tighten`` of a box whose bounds can hold ranges, or ``None``."""
    if tighten is None:
        return None
    share = check_tighten(tighten)
    if sum(stop - start for start, stop in categories) == len(lows):
        raise ConfigurationError(
            "Expected a column of numbers or dates with tighten: categories have no ranges. "
            "Got none."
        )
    for column, (low, high) in enumerate(zip(lows, highs, strict=True)):
        least = max(_SMALLEST_TIGHTENED, _LEAST_TIGHTENED * max(abs(low), abs(high)))
        if not high - low >= least:
            raise ConfigurationError(
                "Expected bounds that are so far apart that numbers between them can be told "
                f"apart, with tighten. Got lower={low!r} and upper={high!r} in column {column} "
                "instead."
            )
    return share


def check_weight(weight: object, column: str) -> float:
    """Return the weight of a column; an error names the column."""
    is_number = isinstance(weight, int | float | np.integer | np.floating)
    if isinstance(weight, bool) or not is_number:
        raise ConfigurationTypeError(
            f"Expected the weight of {column} as a number. Got {type(weight).__name__} instead."
        )
    try:
        found = float(weight)  # type: ignore[arg-type]
    except OverflowError:  # of an integer
        found = math.inf
    if not 0 < found <= _LARGEST_BOUND:
        raise ConfigurationError(
            f"Expected the weight of {column} as positive and finite. Got {found!r} instead."
        )
    # Below float64's normal range products round up by much, so a scaled level could
    # leave the unit box.
    if found < _SMALLEST_WIDTH:
        raise ConfigurationError(
            f"Expected the weight of {column} as at least {_SMALLEST_WIDTH:g}. "
            f"Got {found!r}, which is too small."
        )
    return found


def checked_by_name(
    weights: Mapping[str, float], known: Collection[str]
) -> dict[str, float]:
    """Return weights of known columns by name."""
    if not isinstance(weights, Mapping):
        raise ConfigurationTypeError(
            "Expected weights as a mapping from names of columns to numbers. "
            f"Got {type(weights).__name__} instead."
        )
    for name in weights:
        if name not in known:
            raise ConfigurationError(
                f"Expected weights of columns from {list(known)}. Got {name!r} instead."
            )
    return {
        name: check_weight(weight, f"the column {name!r}")
        for name, weight in weights.items()
    }


def _common_name(columns: Sequence[str]) -> str:
    """Return NAME of the columns NAME=VALUE of a category, or else the first and the last."""
    first = columns[0]
    for end, letter in enumerate(first):
        begins = [column.startswith(first[: end + 1]) for column in columns]
        if letter == "=" and all(begins):
            return first[:end]
    return f"{first} to {columns[-1]}"


def _checked_categories(
    categories: Sequence[tuple[int, int]], lows: Sequence[float], highs: Sequence[float]
) -> tuple[tuple[int, int], ...]:
    """Return ranges of at least two columns between 0 and 1, in ascending order."""
    if not isinstance(categories, Sequence):
        raise ConfigurationTypeError(
            "Expected categories as a sequence of pairs of integers. "
            f"Got {type(categories).__name__} instead."
        )
    found: list[tuple[int, int]] = []
    done = 0
    for block in categories:
        is_pair = isinstance(block, list | tuple) and len(block) == 2
        if not is_pair or not all(type(place) is int for place in block):
            raise ConfigurationTypeError(
                f"Expected categories as pairs of integers. Got {block!r} instead."
            )
        start, stop = block
        if start < done or not start + 2 <= stop <= len(lows):
            raise ConfigurationError(
                "Expected categories as ascending ranges of two or more of the "
                f"{len(lows)} columns. Got {block!r} instead."
            )
        own = slice(start, stop)
        if set(lows[own]) != {0.0} or set(highs[own]) != {1.0}:
            raise ConfigurationError(
                "Expected the bounds 0 and 1 in columns of categories. "
                f"Got others in {block!r} instead."
            )
        found.append((start, stop))
        done = stop
    return tuple(found)


def _vector(name: str, values: ArrayLike) -> tuple[float, ...]:
    """Return a non-empty finite vector of public numbers as a tuple, or raise."""
    array = as_numbers(values, name)
    if array.ndim != 1 or not array.size:
        raise ConfigurationError(
            f"Expected {name} with one number for each column, of shape (d,). "
            f"Got shape {array.shape} instead."
        )
    # Adding 0.0 removes negative zeros, so equal domains have equal text.
    vector = array.astype(np.float64) + 0.0
    wrong = np.flatnonzero(~(np.abs(vector) <= _LARGEST_BOUND))
    if wrong.size:
        raise ConfigurationError(
            f"Expected {name} to be finite (at most {_LARGEST_BOUND:g}). "
            f"Got {vector[wrong[0]]!s} in column {wrong[0]} instead."
        )
    return tuple(vector.tolist())
