"""Findings for the holder of a table: its missing and unexpected cells.

Findings are facts about records. They are for the holder's terminal and log alone. No
message of a run contains them.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import BoolArray, FloatArray
from flower_kmeans.data.csv_files import is_decoded
from flower_kmeans.data.person_findings import PersonFindings
from flower_kmeans.errors import DataError

ColumnKind = Literal["number", "category", "date", "text"]

_MOST_DISTINCT = 100_000
_FEWEST_FOR_ID = 50
_SHAPE_LENGTH = 24
_MOST_LOOKED_AT = 1_000  # different shapes of a column's cells
_MOST_CAUSES = 2  # named for one column
_SHARE_OF_CAUSE = 0.02  # least fraction of unreadable cells for a cause to be named
_MOST_SHAPES = 10_000  # unreadable cells examined in a block
_MOST_OF_A_CODE = 10  # values of a column of codes
_MOST_NAMED = 8  # columns in one line
_FEWEST_PERSONS = 11  # values of a column whose name says that they are persons
# If chance makes so many pairs of equal values likely, their absence is significant, and
# so are ten times fewer pairs.
_EXPECTED_PAIRS = 5.0
_FEWER = 10
_SHARE_OF_ID = 0.95  # least fraction of values that are new, or one above the last
# the words of a name such as patient_id or patientId
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAMES_OF_IDS = frozenset(("id", "ids", "uuid", "guid"))
_NAMES_OF_PERSONS = frozenset(
    (
        *("account", "card", "citizen", "client", "customer", "employee", "household"),
        *("insured", "member", "mrn", "patient", "person", "pupil", "respondent"),
        *("student", "subject", "user"),
    )
)
_NAMES_OF_NUMBERS = frozenset(("index", "idx", "key", "nr", "no"))
_PUNCTUATION = frozenset(f"{string.punctuation} \t\u00a0\u202f\u2009\u2019")
# 1.234: a fraction, or 1234
_LIKE_GROUPS = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")
_FEWEST_GROUPS = 20
_DIGITS = "[+-]?9{1,3}"
_ENCODING = "another encoding: --encoding, such as cp1252"
_SIGNS = "signs for a missing cell: leave the cell empty"
_COMMA = "a decimal comma: --decimal ,"
_ANY_COMMA = "a decimal comma, or one between thousands: --decimal or --thousands ,"
_POINTS = "points between thousands: --thousands . with --decimal ,"
_POINTS_AND_COMMA = (
    "points between thousands and a decimal comma: --thousands . with --decimal ,"
)
_CAUSES: tuple[tuple[str, str], ...] = (
    (rf"{_DIGITS},9{{3}}", _ANY_COMMA),
    (rf"{_DIGITS}(,9{{3}})+(\.9+)?", "commas between thousands: --thousands ,"),
    (rf"{_DIGITS}(\.9{{3}})+,9+", _POINTS_AND_COMMA),
    (r"([+-]?9+)?,9+", _COMMA),
    (rf"{_DIGITS}(\.9{{3}})+", _POINTS),
    (rf"{_DIGITS}([ \u00a0\u202f\u2009]9{{3}})+([.,]9+)?",
     "spaces between thousands: --thousands ' '"),
    (rf"{_DIGITS}(['\u2019]9{{3}})+([.,]9+)?", "apostrophes between thousands: --thousands \"'\""),
    (r"[+-]?9+\.9+", "a decimal point, but decimal is a comma"),
    (r"[+-]?0x.*", "hexadecimal numbers, which are not read"),
    (r"[+-]?[9.,]+ ?%", "percentages: leave the sign out"),
    (r"[<>]=? ?[9.,]+", "numbers below or above a limit: write one number in place of them"),
    (r"a{1,3}\. ?a{1,3}\.|[.?*/\u2013\u2014-]{1,3}|\\a|#aaaa!", _SIGNS),
    (r"9{1,2}[./-]9{1,2}[./-]9{2,4}( .*)?", "dates as days and months: --date-format %d.%m.%Y"),
    (r"9{4}[./-]9{1,2}[./-]9{1,2}([ T].*)?", "dates: declare a date in a domain.toml"),
    (r"[+-]?[9.,]+ ?[^9\s]{1,4}", "numbers with a unit or a currency: write the number alone"),
    (r"[^9]{1,4} ?[.,]?9[9.,]*", "numbers with a unit or a currency: write the number alone"),
    (r"[9.,]+([; \t|][9.,]+)+", "cells with another delimiter: --delimiter"),
    (r"inf", "infinite numbers"),
    (r"#a+(/[9a])?[!?]", "an error of a spreadsheet"),
    (r"<date(time)?>|<Timestamp>", "dates: declare a date in a domain.toml"),
)  # fmt: skip
"""Patterns of shapes of unreadable cells (`shape_of`), and causes: the first match counts."""
_COVERS = ((_POINTS_AND_COMMA, (_COMMA, _ANY_COMMA, _POINTS)), (_COMMA, (_ANY_COMMA,)))
"""Pairs of a cause and of other causes that have the same cure."""


NOT_READ: dict[ColumnKind, str] = {
    "number": "no number",
    "date": "no date",
    "category": "none of its categories",
    "text": "no text",
}
"""The words for the content of unreadable cells, by the kind of their column."""


@dataclass
class ColumnFindings:
    """Facts about the cells of one column, added up block by block.

    Attributes
    ----------
    name : str
        The column's name.
    kind : {"number", "category", "date", "text"}
        How its cells are read. No domain has text. The ``values`` of text are any
        numbers that are equal for equal cells.
    has_rule : bool
        Whether the domain states a public value for missing cells.
    n_records : int
        Number of cells.
    n_missing : int
        Number of cells that are empty, or say that there is no value.
    n_unreadable : int
        Number of other cells that do not fit the column's declaration.
    n_below, n_above : int
        Numbers of values below and above the bounds, which are moved to them.
    shapes : Counter of str
        Shapes of unreadable cells (`shape_of`), and how often they occur.
    """

    name: str
    kind: ColumnKind = "number"
    has_rule: bool = False
    n_records: int = 0
    n_missing: int = 0
    n_unreadable: int = 0
    n_below: int = 0
    n_above: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    # values of records, which must not be shown
    _distinct: set[Any] = field(default_factory=set, repr=False)
    # number of cells whose values are all in `_distinct`
    _n_counted: int = field(default=0, repr=False)
    _last: float | None = field(default=None, repr=False)
    _n_fractions: int = field(default=0, repr=False)
    _n_like_groups: int = field(default=0, repr=False)
    _n_steps: int = field(default=0, repr=False)
    _n_steps_by_one: int = field(default=0, repr=False)
    _are_whole: bool = field(default=True, repr=False)
    _lowest: float = field(default=np.inf, repr=False)
    _highest: float = field(default=-np.inf, repr=False)

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
            The cells as the table has them, of any type.
        values : ndarray of shape (m,)
            The numbers that they are read as, not clipped. NaN for other cells.
        missing : ndarray of shape (m,), bool
            Whether each cell is missing.
        bounds : pair of float, optional
            Lower and upper bound of ``values``.
        """
        is_read = ~missing & ~np.isnan(values)
        unreadable = ~missing & ~is_read
        self.n_records += len(cells)
        self.n_missing += int(np.count_nonzero(missing))
        self.n_unreadable += int(np.count_nonzero(unreadable))
        if cells.dtype.kind in "mM":
            self.shapes["<date>"] += int(np.count_nonzero(unreadable))
        else:
            sample = cells[unreadable][:_MOST_SHAPES].tolist()
            self.shapes.update(map(shape_of, sample))
        if self.kind == "number" and cells.dtype == object:
            self._look_for_groups(cells[is_read].tolist())
        read = values[is_read]
        if bounds is not None:
            self.n_below += int(np.count_nonzero(read < bounds[0]))
            self.n_above += int(np.count_nonzero(read > bounds[1]))
        self._look_at(read)

    def _look_for_groups(self, cells: Sequence[Any]) -> None:
        """Count fractions, and those of them that could be groups of three digits."""
        for cell in cells:
            if isinstance(cell, str) and ("." in cell or "," in cell):
                self._n_fractions += 1
                self._n_like_groups += _LIKE_GROUPS.fullmatch(cell.strip()) is not None

    def _look_at(self, read: NDArray[Any]) -> None:
        """Update the facts that tell constants, ids and row numbers from other numbers."""
        if not len(read):
            return
        self._lowest = min(self._lowest, float(read.min()))
        self._highest = max(self._highest, float(read.max()))
        if not np.all(read == np.rint(read)):
            self._are_whole = False
        following = read
        if self._last is not None:
            following = np.concatenate(([self._last], read))
        steps = np.diff(following)
        self._n_steps += len(steps)
        self._n_steps_by_one += int(np.count_nonzero(steps == 1))
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
        """Number of distinct values, which is not counted far beyond 100,000."""
        return len(self._distinct)

    @property
    def is_empty(self) -> bool:
        """Whether there are records, and all their cells are missing."""
        return self.n_missing == self.n_records > 0

    @property
    def is_constant(self) -> bool:
        """Whether there are two or more values, all equal, and fewer unreadable cells."""
        are_many = self.n_read > max(1, self.n_unreadable)
        return are_many and self._lowest == self._highest

    @property
    def looks_like_row_numbers(self) -> bool:
        """Whether nearly every value is one above the value before, as row numbers are."""
        is_long = self.n_read >= _FEWEST_FOR_ID
        counts = self._n_steps_by_one >= _SHARE_OF_ID * self._n_steps
        return self.kind == "number" and is_long and self._are_whole and counts

    @property
    def looks_like_id(self) -> bool:
        """Whether values seem to name the records.

        They do if the column's name says so, or if far fewer values are equal than by
        chance. A few equal values are allowed, because some exports repeat lines.
        """
        if self.kind not in ("number", "text") or self.n_read < _FEWEST_FOR_ID:
            return False
        words = {word.lower() for word in _WORDS.findall(self.name)}
        if self.kind == "number" and (not self._are_whole or self.is_constant):
            return False
        if words & _NAMES_OF_IDS:
            return True
        n_repeats = self._n_counted - len(self._distinct)
        if n_repeats > (1.0 - _SHARE_OF_ID) * self._n_counted:
            return False
        if self.kind == "text" or words & _NAMES_OF_NUMBERS:
            return True
        # Amounts of money are whole numbers, too, and few of them are equal. Only the
        # comparison with chance separates them from ids.
        width = self._highest - self._lowest + 1.0
        n_expected = self._n_counted**2 / (2.0 * width)
        return n_expected >= max(_EXPECTED_PAIRS, _FEWER * n_repeats)

    @property
    def may_name_persons(self) -> bool:
        """Whether values repeat, and the column's name says that they name persons or things."""
        if self.kind not in ("number", "text") or self.n_read < _FEWEST_FOR_ID:
            return False
        words = {word.lower() for word in _WORDS.findall(self.name)}
        is_named = bool(words & (_NAMES_OF_IDS | _NAMES_OF_PERSONS))
        repeats = self.n_distinct <= _SHARE_OF_ID * self._n_counted
        return (
            is_named
            and self._are_whole
            and repeats
            and self.n_distinct >= _FEWEST_PERSONS
        )

    @property
    def looks_like_a_code(self) -> bool:
        """Whether there are few distinct values, all whole numbers, as for categories."""
        is_long = self.n_read >= _FEWEST_FOR_ID
        is_few = 1 < self.n_distinct <= _MOST_OF_A_CODE
        return self.kind == "number" and is_long and self._are_whole and is_few

    @property
    def doubt(self) -> str | None:
        """A doubt about the numbers in words, if their fractions may be groups of digits."""
        all_alike = self._n_like_groups == self._n_fractions
        if self.kind == "number" and all_alike and self._n_fractions >= _FEWEST_GROUPS:
            return (
                "has three digits behind each point or comma: "
                "name --thousands if it divides them"
            )
        return None

    @property
    def suspicion(self) -> str | None:
        """The reason in words not to cluster by the column, or ``None``."""
        if self.looks_like_row_numbers:
            return "looks like a number of rows"
        if self.looks_like_id:
            return "looks like an id"
        if self.is_constant:
            return "has one value only"
        if self.is_empty:
            return "has no value"
        return None

    @property
    def cause(self) -> str | None:
        """The likely cause of unreadable cells and its cure in words, or ``None``."""
        counts = _counted_causes(self.shapes)
        fewest = _SHARE_OF_CAUSE * counts.total()
        named = []
        for cause, n in counts.items():
            is_named = self.kind != "category" or cause in (_ENCODING, _SIGNS)
            if cause is not None and is_named and n >= fewest:
                named.append(cause)
            elif not named:
                return None  # the most frequent cause is unknown
        if not named:
            return None
        others = [f" (some like {each})" for each in named[1:_MOST_CAUSES]]
        return named[0] + "".join(others)

    @property
    def is_malformed(self) -> bool:
        """Whether there are unreadable cells, and no category that stands for them.

        A category that would stand for all cells does not count: the file then spells
        its categories in another way.
        """
        has_category = self.kind == "category" and self.has_rule and self.n_read > 0
        return self.n_unreadable > 0 and not has_category

    def unreadable_text(self) -> str:
        """Return the unreadable cells in words, without the value of a cell."""
        share = f"{self.n_unreadable:,} of {self.n_records:,} cells"
        text = f"{share} of {self.name!r} hold {NOT_READ[self.kind]}"
        if self.example is not None:
            text += f", such as {self.example!r} (9 for any digit, a for any letter)"
        if self.cause is not None:
            text += f": it looks like {self.cause}"
        return text

    @property
    def example(self) -> str | None:
        """The most frequent shape of unreadable cells, without their characters."""
        if self.shapes:
            return self.shapes.most_common(1)[0][0]
        return None


@dataclass
class Findings:
    """Facts about a table's cells, for its holder.

    Attributes
    ----------
    columns : tuple of ColumnFindings
        The findings of each column, in order.
    n_records : int
        Number of records, with the malformed ones.
    n_malformed : int
        Number of records of which no cell is known: lines of a csv file with more or
        fewer cells than columns, or with a quote that does not end.
    first_malformed : int
        Line number, from 1, of the first malformed line. 0 if there is none.
    n_void : int
        Number of records that do not count, because a cell is unusable.
    persons : PersonFindings, optional
        The findings on persons, if their column is read.
    """

    columns: tuple[ColumnFindings, ...]
    n_records: int = 0
    n_malformed: int = 0
    first_malformed: int = 0
    n_void: int = 0
    persons: PersonFindings | None = None

    def add_malformed(self, n: int, first: int) -> None:
        """Count ``n`` malformed lines, and keep the line number of the first."""
        self.n_records += n
        self.n_malformed += n
        self.n_void += n
        if not self.first_malformed:
            self.first_malformed = first

    def lines(self) -> list[str]:
        """Return the findings in at most three lines, without the value of a cell."""
        found = (self._counted(), self._suspicious(), self._about_persons())
        return [line for line in found if line]

    def _about_persons(self) -> str:
        """Return a sentence on persons, and doubts on their ids."""
        if self.persons is None:
            return ""
        return " ".join([self.persons.summary(), *self.persons.doubts()])

    def _counted(self) -> str:
        """Return a sentence on lost records, and on missing, unreadable and moved cells."""
        parts = []
        if self.n_void:
            parts.append(f"{self.n_void:,} of {self.n_records:,} records count as none")
        if self.n_malformed:
            first = ""
            if self.first_malformed:
                first = f", the first is line {self.first_malformed:,}"
            parts.append(f"malformed lines: {self.n_malformed:,}{first}")
        missing = [(column.name, column.n_missing) for column in self.columns]
        if any(n for _, n in missing):
            parts.append(f"missing cells: {named_counts(missing)}")
        unreadable = [(column.name, column.n_unreadable) for column in self.columns]
        if any(n for _, n in unreadable):
            counts = named_counts(unreadable)
            parts.append(f"unreadable cells: {counts}{self._causes()}")
        outside = [(column.name, column.n_outside) for column in self.columns]
        moved = moved_text(self.n_records, outside)
        if moved:
            parts.append(moved)
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}." if text else ""

    def _causes(self) -> str:
        """Return the known causes of unreadable cells in words."""
        columns = [column for column in self.columns if column.n_unreadable]
        causes = dict.fromkeys(c.cause for c in columns if c.cause)
        return f" (they look like {', or like '.join(causes)})" if causes else ""

    def _suspicious(self) -> str:
        """Return a sentence on columns that look wrong to cluster by."""
        strange = [each for each in self.columns if each.suspicion]
        doubtful = [each for each in self.columns if each.doubt]
        parts = [f"{each.name!r} {each.suspicion}" for each in strange]
        parts += [f"{each.name!r} {each.doubt}" for each in doubtful]
        return f"Look at the columns: {'; '.join(parts)}." if parts else ""

    def require_readable(self, what: str) -> None:
        """Raise a `DataError` on unreadable cells, by column, and on malformed lines."""
        malformed = [column for column in self.columns if column.is_malformed]
        parts = [column.unreadable_text() for column in malformed]
        if self.n_malformed:
            parts.append(
                f"{self.n_malformed:,} of {self.n_records:,} lines have more or fewer cells than "
                f"there are columns, or a quote that does not end (the first is line "
                f"{self.first_malformed:,})"
            )
        if parts:
            advice = []
            if len(parts) > bool(self.n_malformed):
                advice.append(
                    "Correct these cells, say how they are written, or leave these columns out "
                    "(--columns, features= or the domain)."
                )
            if self.n_malformed:
                advice.append(
                    "Correct or remove these lines; an end of a line ends a record."
                )
            raise DataError(
                f"Expected cells of {what} as their columns have them. "
                f"Got: {'; '.join(parts)}. {' '.join(advice)}"
            )

    def require_present(self, what: str) -> None:
        """Raise a `DataError` on missing cells that have no rule, and on null records."""
        parts = []
        for column in self.columns:
            if column.n_missing and not column.has_rule:
                share = f"{column.n_missing:,} of {column.n_records:,} cells"
                parts.append(f"{share} of {column.name!r}")
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


def shape_of(cell: Any) -> str:
    """Return the shape of a cell: digits as 9, letters as a, punctuation as it is.

    Other characters become a question mark. A cell with bytes that do not fit the
    file's encoding has the shape U+FFFD.
    """
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
    return "".join(map(_shape_of_one, text))


def _shape_of_one(c: str) -> str:
    if c.isdigit():
        return "9"
    if c.isalpha():
        return "a"
    return c if c in _PUNCTUATION else "?"


def _counted_causes(shapes: "Counter[str]") -> "Counter[str | None]":
    """Return causes of unreadable cells by their shapes, the most frequent first.

    Causes with the same cure count together (`_COVERS`): in a column of amounts with
    points, those below 1,000 have none.
    """
    counts: Counter[str | None] = Counter()
    for shape, n in shapes.most_common(_MOST_LOOKED_AT):
        counts[cause_of(shape)] += n
    for cause, covered in _COVERS:
        if counts[cause]:
            counts[cause] += sum(counts.pop(each, 0) for each in covered)
    return Counter(dict(counts.most_common()))


def cause_of(shape: str) -> str | None:
    """Return the cause that makes cells of this shape unreadable, or ``None``."""
    if "\ufffd" in shape:
        return _ENCODING
    for pattern, cause in _CAUSES:
        if re.fullmatch(pattern, shape, re.IGNORECASE) is not None:
            return cause
    return None


def named_counts(counts: Sequence[tuple[str, int]]) -> str:
    """Return columns' counts above 0 in words, the largest first.

    An example is ``12 of 'age', 3 of 'b'``.
    """
    found = [(name, n) for name, n in counts if n]
    found.sort(key=lambda each: -each[1])
    texts = [f"{n:,} of {name!r}" for name, n in found[:_MOST_NAMED]]
    n_further = len(found) - len(texts)
    if n_further:
        texts.append(f"and some of {n_further:,} further columns")
    return ", ".join(texts)


def moved_text(n_records: int, counts: Sequence[tuple[str, int]]) -> str:
    """Return columns' numbers of values that are moved to the bounds, in words.

    The text is empty if there are none.
    """
    if not any(n for _, n in counts):
        return ""
    return (
        f"values moved to the bounds, of {n_records:,} records: {named_counts(counts)}"
    )
