"""What a holder must know of the cells of its own table: how many are missing, or not as expected.

All of it are facts about records. They are for the holder's terminal and log alone, and no message
of a run has them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.data.csv_files import is_decoded
from flower_kmeans.errors import DataError

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
Kind = Literal["number", "category", "date"]

_MOST_DISTINCT = 100_000
_FEWEST_FOR_ID = 50
_SHAPE_LENGTH = 24
_MOST_SHAPES = 10_000  # cells of a block that are looked at
_DIGITS = "[+-]?9{1,3}"
_CAUSES: tuple[tuple[str, str], ...] = (
    (rf"{_DIGITS},9{{3}}", "a decimal comma, or one between thousands: --decimal or --thousands ,"),
    (rf"{_DIGITS}(,9{{3}})+(\.9+)?", "commas between thousands: --thousands ,"),
    (rf"([+-]?9+|{_DIGITS}(\.9{{3}})+)?,9+", "a decimal comma: --decimal ,"),
    (rf"{_DIGITS}(\.9{{3}})+", "points between thousands: --thousands . with --decimal ,"),
    (rf"{_DIGITS}([ \u00a0\u202f\u2009]9{{3}})+([.,]9+)?",
     "spaces between thousands: --thousands ' '"),
    (rf"{_DIGITS}(['\u2019]9{{3}})+([.,]9+)?", "apostrophes between thousands: --thousands \"'\""),
    (r"[+-]?9+\.9+", "a decimal point, but decimal is a comma"),
    (r"[+-]?0x.*", "hexadecimal numbers, which are not read"),
    (r"[+-]?[9.,]+ ?%", "percentages: leave the sign out"),
    (r"9{1,2}[./-]9{1,2}[./-]9{2,4}( .*)?", "dates as days and months: --date-format %d.%m.%Y"),
    (r"9{4}[./-]9{1,2}[./-]9{1,2}([ T].*)?", "dates: declare a date in a domain.toml"),
    (r"[+-]?[9.,]+ ?[^9\s]{1,4}", "numbers with a unit or a currency: leave it out"),
    (r"[^9]{1,4} ?[9.,]+", "numbers with a unit or a currency: leave it out"),
    (r"[9.,]+([; \t|][9.,]+)+", "cells with another delimiter: --delimiter"),
    (r"inf", "infinite numbers"),
    (r"<date(time)?>|<Timestamp>", "dates: declare a date in a domain.toml"),
)  # fmt: skip
"""Looks of unreadable cells (`shape_of`), and what they mean; the first that fits counts."""


@dataclass
class ColumnFindings:
    """Facts about the cells of one column, added up block by block.

    Attributes
    ----------
    name : str
    kind : {"number", "category", "date"}
        What its cells are read as.
    has_rule : bool
        Whether a public value is stated that missing cells count as.
    n_records : int
    n_missing : int
        Cells that are empty, or spell that there is no value.
    n_unreadable : int
        Cells that hold something else than the column has.
    n_below, n_above : int
        Numbers and dates outside the bounds, which are moved to them.
    shapes : Counter of str
        How unreadable cells look, with each digit as 9 and each letter as a.
    """

    name: str
    kind: Kind = "number"
    has_rule: bool = False
    n_records: int = 0
    n_missing: int = 0
    n_unreadable: int = 0
    n_below: int = 0
    n_above: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    _distinct: set[Any] = field(default_factory=set)
    _n_counted: int = 0  # cells of which the different values are known
    _last: float | None = None
    _steps_by_one: bool = True
    _are_whole: bool = True
    _lowest: float = np.inf
    _highest: float = -np.inf

    def add(
        self,
        cells: NDArray[Any],
        values: FloatArray | NDArray[np.intp],
        missing: BoolArray,
        bounds: tuple[float, float] | None = None,
    ) -> None:
        """Count the cells of a block.

        Parameters
        ----------
        cells : ndarray of shape (m,)
            As the table has them.
        values : ndarray of shape (m,)
            What they are read as, not clipped; NaN where there is none.
        missing : ndarray of shape (m,)
        bounds : pair of float, optional
            Of ``values``.
        """
        is_read = ~missing & ~np.isnan(values)
        unreadable = ~missing & ~is_read
        self.n_records += len(cells)
        self.n_missing += int(np.count_nonzero(missing))
        self.n_unreadable += int(np.count_nonzero(unreadable))
        if cells.dtype.kind in "mM":
            self.shapes["<date>"] += int(np.count_nonzero(unreadable))
        else:
            self.shapes.update(map(shape_of, cells[unreadable][:_MOST_SHAPES].tolist()))
        read = values[is_read]
        if bounds is not None:
            self.n_below += int(np.count_nonzero(read < bounds[0]))
            self.n_above += int(np.count_nonzero(read > bounds[1]))
        self._look_at(read)

    def _look_at(self, read: NDArray[Any]) -> None:
        """Look whether numbers are constant, or count the records."""
        if not len(read):
            return
        self._lowest = min(self._lowest, float(read.min()))
        self._highest = max(self._highest, float(read.max()))
        self._are_whole = self._are_whole and bool(np.all(read == np.rint(read)))
        start = read if self._last is None else np.concatenate(([self._last], read))
        self._steps_by_one = self._steps_by_one and bool(np.all(np.diff(start) == 1))
        self._last = float(read[-1])
        if len(self._distinct) < _MOST_DISTINCT:
            self._distinct.update(read.tolist())
            self._n_counted += len(read)

    @property
    def n_outside(self) -> int:
        """Number of cells outside the bounds."""
        return self.n_below + self.n_above

    @property
    def n_read(self) -> int:
        """Number of cells with a value."""
        return self.n_records - self.n_missing - self.n_unreadable

    @property
    def n_distinct(self) -> int:
        """Number of different values, as far as they were counted."""
        return len(self._distinct)

    @property
    def is_empty(self) -> bool:
        """Whether no cell has a value, of one or more records."""
        return self.n_records > 0 and self.n_read == 0

    @property
    def is_constant(self) -> bool:
        """Whether all of two or more values are equal."""
        return self.n_read > 1 and self._lowest == self._highest

    @property
    def looks_like_row_numbers(self) -> bool:
        """Whether values count the records, one after the other."""
        is_long = self.n_read >= _FEWEST_FOR_ID
        return self.kind == "number" and is_long and self._are_whole and self._steps_by_one

    @property
    def looks_like_id(self) -> bool:
        """Whether values are whole numbers of which no two are equal."""
        is_long = self.n_read >= _FEWEST_FOR_ID
        differ = self._n_counted == len(self._distinct)
        return self.kind == "number" and is_long and self._are_whole and differ

    @property
    def cause(self) -> str | None:
        """What unreadable cells look like and what helps, if that is known."""
        if not self.shapes:
            return None
        shape, _ = self.shapes.most_common(1)[0]
        if "\ufffd" in shape:
            return "another encoding: --encoding, such as cp1252"
        if self.kind == "category":
            return None
        for pattern, cause in _CAUSES:
            if re.fullmatch(pattern, shape, re.IGNORECASE) is not None:
                return cause
        return None

    @property
    def is_malformed(self) -> bool:
        """Whether there are unreadable cells, and no category that stands for them.

        Where that category would stand for all cells, the column's categories have other names.
        """
        has_category = self.kind == "category" and self.has_rule and self.n_read > 0
        return self.n_unreadable > 0 and not has_category

    def unreadable_text(self) -> str:
        """Return what is unreadable, in words without a cell's value."""
        noun = {"number": "no number", "date": "no date", "category": "none of its categories"}
        share = f"{self.n_unreadable:,} of {self.n_records:,} cells"
        text = f"{share} of {self.name!r} hold {noun[self.kind]}"
        if self.example is not None:
            text += f", such as {self.example!r} (9 for any digit, a for any letter)"
        if self.cause is not None:
            text += f": it looks like {self.cause}"
        return text

    @property
    def example(self) -> str | None:
        """The most frequent look of unreadable cells, without any of their characters."""
        return self.shapes.most_common(1)[0][0] if self.shapes else None


@dataclass
class Findings:
    """Facts about a table's cells, for its holder.

    Attributes
    ----------
    columns : tuple of ColumnFindings
    n_records : int
    n_malformed : int
        Lines of a csv file with more or fewer cells than columns, or a quote that does not end.
    first_malformed : int
        Number of the first of them, where 1 is that of the file's first line.
    n_void : int
        Records that count as none.
    """

    columns: tuple[ColumnFindings, ...]
    n_records: int = 0
    n_malformed: int = 0
    first_malformed: int = 0
    n_void: int = 0

    def add_malformed(self, n: int, first: int) -> None:
        """Count lines of which no cell is known, and keep the number of the first."""
        self.n_records += n
        self.n_malformed += n
        if not self.first_malformed:
            self.first_malformed = first

    def lines(self) -> list[str]:
        """Return what a holder must know, in at most two lines without a cell's value."""
        lines = []
        dropped = self._dropped()
        if dropped:
            lines.append(dropped)
        suspicious = self._suspicious()
        if suspicious:
            lines.append(suspicious)
        return lines

    def _dropped(self) -> str:
        """Return how many records and cells are not what the table has."""
        parts = []
        if self.n_void:
            parts.append(f"{self.n_void:,} of {self.n_records:,} records count as none")
        if self.n_malformed:
            parts.append(f"{self.n_malformed:,} lines are malformed")
        for column in self.columns:
            if column.n_missing:
                parts.append(f"{column.n_missing:,} cells of {column.name!r} are missing")
            if column.n_unreadable:
                parts.append(column.unreadable_text())
            if column.n_outside:
                parts.append(
                    f"{column.n_outside:,} of {column.n_records:,} cells of {column.name!r} are "
                    "outside its bounds and moved to them"
                )
        return f"{'; '.join(parts)}." if parts else ""

    def _suspicious(self) -> str:
        """Return which columns look as if nobody wanted to cluster by them."""
        parts = []
        for column in self.columns:
            if column.looks_like_row_numbers:
                parts.append(f"{column.name!r} looks like numbers of rows")
            elif column.looks_like_id:
                parts.append(f"{column.name!r} looks like an id")
            elif column.is_constant:
                parts.append(f"{column.name!r} has one value only")
            elif column.is_empty:
                parts.append(f"{column.name!r} has no value")
        return f"Look at the columns: {'; '.join(parts)}." if parts else ""

    def require_readable(self, what: str) -> None:
        """Raise a `DataError` if cells or lines of ``what`` are malformed, of all columns."""
        parts = [column.unreadable_text() for column in self.columns if column.is_malformed]
        if self.n_malformed:
            parts.append(
                f"{self.n_malformed:,} of {self.n_records:,} lines have more or fewer cells than "
                f"there are columns, or a quote that does not end (the first is line "
                f"{self.first_malformed:,})"
            )
        if parts:
            raise DataError(
                f"Expected cells of {what} as their columns have them. Got: {'; '.join(parts)}."
            )

    def require_present(self, what: str) -> None:
        """Raise a `DataError` if cells of ``what`` are missing without a rule, of all columns."""
        without = [column for column in self.columns if column.n_missing and not column.has_rule]
        parts = [f"{c.n_missing:,} of {c.n_records:,} cells of {c.name!r}" for c in without]
        if parts:
            raise DataError(
                f"Expected no missing cell in {what}. Missing: {'; '.join(parts)}. State in the "
                "domain what they count as (missing), or leave these records out."
            )
        if self.n_void:
            raise DataError(
                f"Expected a usable cell in every record of {what}. "
                f"{self.n_void:,} of {self.n_records:,} have none."
            )

    @property
    def with_unreadable(self) -> Sequence[ColumnFindings]:
        """Columns with cells that are not what the column has."""
        return [column for column in self.columns if column.n_unreadable]

    @property
    def with_missing(self) -> Sequence[ColumnFindings]:
        """Columns with missing cells."""
        return [column for column in self.columns if column.n_missing]

    @property
    def with_outside(self) -> Sequence[ColumnFindings]:
        """Columns with values outside the bounds."""
        return [column for column in self.columns if column.n_outside]


def shape_of(cell: Any) -> str:
    """Return how a cell looks: digits as 9, letters as a, what is no character as a sign."""
    if isinstance(cell, bytes):
        cell = cell.decode(errors="surrogateescape")
    if not isinstance(cell, str):
        return f"<{type(cell).__name__}>"
    if not is_decoded(cell):
        return "\ufffd"
    text = cell.strip()[:_SHAPE_LENGTH]
    if text.lower() in ("inf", "infinity", "-inf", "+inf", "-infinity", "+infinity"):
        return "inf"
    if text[:2].lower() == "0x":
        return "0x" + "9" * (len(text) - 2)
    return "".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in text)
