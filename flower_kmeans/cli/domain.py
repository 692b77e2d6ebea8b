"""``flower-kmeans domain init``: a domain.toml from public knowledge, or from records.

By default the command asks, and reads no records. If it reads records, the file states
that it is not public.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray

from flower_kmeans.cli.options import listed
from flower_kmeans.data.domain import check_names
from flower_kmeans.data.findings import Findings
from flower_kmeans.data.guesses import MOST_CATEGORIES
from flower_kmeans.data.reading import USUAL_READING, Reading
from flower_kmeans.data.spelling import MISSING_TEXTS, Spelling, is_missing
from flower_kmeans.data.table_domain import (
    Category,
    Date,
    Number,
    TableDomain,
    category_of,
    day_of,
    shortened,
)
from flower_kmeans.data.tables import OpenTable, is_nameless, open_table
from flower_kmeans.errors import ConfigurationError, KMeansError
from flower_kmeans.files import reason_and_cure

ColumnDeclaration = Number | Category | Date
T = TypeVar("T")

_RULE = "A missing cell drops its record, unless the domain states what it counts as (missing)."


# The kinds of cells decide how a column is declared. Reasons quote some of these words.
_NUMBER = "numbers"
_DATE = "dates"
_TEXT = "other texts"
_MISSING = "missing"
_NESTED = "nested"
_NO_NUMBER = "no number"
_CONSTANT = "constant: one value in all cells that have one"
_NO_NUMBERS = MISSING_TEXTS | {"inf", "-inf"}
_FOREIGN_DATE = re.compile(
    r"(?:\d{1,2}[./-] ?\d{1,2}[./-] ?\d{2}(?:\d{2})?"  # 29.2.2024, 2/29/24
    r"|\d{4}[./-]\d{1,2}[./-]\d{1,2}"  # 2024/2/29
    r"|\d{1,2}[. -]+[A-Za-z]{3,9}[. -]+\d{2}(?:\d{2})?"  # 29 Feb 2024
    r"|[A-Za-z]{3,9}[. ]+\d{1,2},? +\d{4})"  # Feb 29, 2024
    r"(?:[ T]+\d{1,2}:\d{2}.*)?"
)


def write(
    domain: TableDomain, path: Path, comments: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write a domain to a new file. An existing file is an error: runs may depend on it.

    A domain that was read off records gets a file that only its owner may read.
    """
    mode = 0o600 if domain.from_records else 0o666
    is_begun = False
    try:
        # The mode "x" never replaces a file, even if it was made just now.
        with open(path, "xb", opener=lambda at, how: os.open(at, how, mode)) as file:
            is_begun = True
            file.write(domain.to_toml(comments).encode())
    except OSError as error:
        if is_begun:
            # Half of a file would declare half of the columns.
            path.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{path} cannot be written: {reason_and_cure(error)}."
        ) from None


def ask() -> TableDomain:
    """Return the domain from a user's answers, column by column."""
    typer.echo(
        "Answer from public knowledge, such as a form or a rule; no records are read."
    )
    typer.echo(_RULE)
    names = typer.prompt("Columns to cluster by, as NAME,NAME", value_proc=_names)
    return TableDomain([_until_right(_column, name) for name in names])


def _column(name: str) -> ColumnDeclaration:
    kind = typer.prompt(
        f"{name}: number, category or date",
        default="number",
        value_proc=_one_of("number", "category", "date"),
    )
    if kind == "category":
        values = typer.prompt(
            f'{name}: its categories, as VALUE,VALUE ("a, b" in quotes)',
            value_proc=_names,
        )
        missing = _optional(
            f"{name}: the category for a missing or unlisted cell", str.strip
        )
        return Category(name, values, missing)
    if kind == "date":
        lower, upper = (
            typer.prompt(f"{name}: {end} date", value_proc=_day) for end in _ENDS
        )
        return Date(
            name, lower, upper, _optional(f"{name}: the date for a missing cell", _day)
        )
    low, high = (
        typer.prompt(f"{name}: {end} bound", value_proc=_number) for end in _ENDS
    )
    scale = typer.prompt(
        f"{name}: linear scale, or log",
        default="linear",
        value_proc=_one_of("linear", "log"),
    )
    number = _optional(f"{name}: the number for a missing cell", _number)
    return Number(name, low, high, scale, number)  # type: ignore[arg-type]


_ENDS = ("lower", "upper")


def _until_right(
    make: Callable[[str], ColumnDeclaration], name: str
) -> ColumnDeclaration:
    while True:
        column = make(name)
        try:
            return TableDomain([column]).declared[0]
        except KMeansError as error:
            typer.echo(f"Error: {error} Once more:", err=True)


def _optional(question: str, read: Callable[[str], T]) -> T | None:
    answer: T | None = typer.prompt(
        f"{question} (Enter: a missing cell drops its record)",
        default="",
        show_default=False,
        value_proc=lambda text: read(text) if text.strip() else None,
    )
    return answer


def _answer(read: Callable[[str], T], expected: str) -> Callable[[str], T]:
    def answer(text: str) -> T:
        try:
            return read(text.strip())
        except (ValueError, LookupError, KMeansError):
            raise typer.BadParameter(f"Expected {expected}.") from None

    return answer


_names = _answer(
    lambda text: check_names(listed(text)) or (),
    "one or more different, printable names, as NAME,NAME",
)
_day = _answer(date.fromisoformat, "a date as 2024-02-29")
_number = _answer(float, "a number")


def _one_of(*choices: str) -> Callable[[str], str]:
    return _answer(
        {each: each for each in choices}.__getitem__, f"one of {', '.join(choices)}"
    )


# -------------------------------------------------------------------------- not private


@dataclass(frozen=True)
class ReadOff:
    """A domain that was read off a file's records, with facts for their holder.

    Attributes
    ----------
    domain : TableDomain
        The domain of the declared columns.
    n_records : int
        Number of records of the file.
    gaps : dict from str to int
        Number of missing or unreadable cells by declared column, if there are any.
    left_out : list of (str, str)
        Names of all other columns, each with the reason.
    """

    domain: TableDomain
    n_records: int
    gaps: dict[str, int]
    left_out: list[tuple[str, str]]

    def comments(self) -> dict[str, list[str]]:
        """Return comments for columns with gaps, without the number of gaps.

        Others may get the file, even without the line that states its origin.
        """
        columns = {column.name: column for column in self.domain.declared}
        return {
            name: [
                "NOT PUBLIC: some cells of this column are missing or unreadable.",
                f"{_RULE} Such as:",
                f"missing = {_example(columns[name])}",
            ]
            for name in self.gaps
        }

    def lines(self) -> list[str]:
        """Return lines for the terminal on gaps and on columns that were left out."""
        lines = []
        for column in self.domain.declared:
            if column.name in self.gaps:
                lines.append(
                    f"{column.name}: {self.gaps[column.name]:,} of {self.n_records:,} cells are "
                    f"missing or unreadable. To keep their records, write into the file what such "
                    f"a cell counts as, such as missing = {_example(column)}."
                )
        if lines:
            lines.append(_RULE)
        return lines + [f"Left out {name}: {reason}." for name, reason in self.left_out]


class _LeftOutError(Exception):
    """A column cannot be declared. The text is the reason."""


def read_off(data: str, reading: Reading = USUAL_READING) -> ReadOff:
    """Return a domain that is read off a file's records, and the columns left out.

    Numbers, booleans and dates get the bounds that occur, and text the categories that
    occur. Cells are read as in all commands.
    """
    opened = open_table(data, reading)
    counts = Counter(opened.names)
    usable = [name for name, n in counts.items() if n == 1]
    cells = _cells_of(opened, usable)
    found: list[ColumnDeclaration] = []
    gaps: dict[str, int] = {}
    left_out: list[tuple[str, str]] = []
    for i, name in enumerate(opened.names, 1):
        is_name = bool(name) and name.isprintable()
        shown = name if is_name else f"column {i}"
        try:
            _require_one_name(name, counts[name])
            column = _declared(name, cells[name], opened.spelling)
        except _LeftOutError as error:
            if (shown, str(error)) not in left_out:  # once for each name
                left_out.append((shown, str(error)))
            continue
        found.append(column)
        n_gaps = int(np.isnan(column.read(cells[name], opened.spelling)).sum())
        if n_gaps:
            gaps[name] = n_gaps
    if not found:
        reasons = shortened([f"{name}: {reason}" for name, reason in left_out], "; ")
        raise ConfigurationError(
            f"{opened.path} has no column of numbers, dates or few categories. {reasons}."
        )
    n_records = len(next(iter(cells.values())))
    return ReadOff(TableDomain(found, from_records=True), n_records, gaps, left_out)


def _require_one_name(name: str, n_columns: int) -> None:
    """Require a name of exactly one column, which must not be a name of row numbers."""
    if n_columns > 1 and name:
        raise _LeftOutError(f"{n_columns} columns have this name")
    if n_columns > 1:
        raise _LeftOutError("no name")
    if name and is_nameless(name):
        raise _LeftOutError("no name, and it looks like the row numbers of pandas")


def _cells_of(opened: OpenTable, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the cells of columns by name, or raise an error if a line is malformed."""
    if not opened.has_names:
        raise ConfigurationError(
            f"Expected the names of columns in the first line of {opened.path}. "
            "Got numbers instead: name the columns with --header."
        )
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    findings = Findings(())
    for block in opened.blocks(names):
        for name, found in parts.items():
            found.append(block.columns[name])
        findings.n_records += block.n_records - block.n_malformed
        findings.add_malformed(block.n_malformed, block.first_malformed)
    findings.require_readable(opened.path)
    return {
        name: np.concatenate(found or [np.empty(0)]) for name, found in parts.items()
    }


def _declared(name: str, cells: NDArray[Any], spelling: Spelling) -> ColumnDeclaration:
    """Return a valid declaration of a column's cells, or raise a `_LeftOutError`."""
    if not name or not name.isprintable():
        raise _LeftOutError("no printable name")
    column = _found(name, cells, spelling)
    try:
        return TableDomain([column]).declared[0]
    except KMeansError as error:
        raise _LeftOutError(
            f"what occurs cannot be declared: {error}".rstrip(".")
        ) from None


def _found(name: str, cells: NDArray[Any], spelling: Spelling) -> ColumnDeclaration:
    if cells.ndim != 1:
        raise _LeftOutError("nested: a cell holds several values")
    if cells.dtype.kind in "biuf":
        return _number_of(name, cells[np.isfinite(cells)])
    if cells.dtype.kind == "M":
        days = cells[~np.isnat(cells)].astype("datetime64[D]")
        if not len(days):
            raise _LeftOutError("no value at all")
        return _date_of(name, days.min().item(), days.max().item())
    listed_cells = cells.tolist()
    kinds = [_kind(cell, spelling) for cell in listed_cells]
    counts = Counter(kind for kind in kinds if kind != _MISSING)
    readable = {kind for kind in counts if kind != _NO_NUMBER}
    if not counts:
        raise _LeftOutError("no value at all")
    if _NESTED in counts:
        raise _LeftOutError(f"nested: {counts[_NESTED]:,} cells hold several values")
    if readable == {_NUMBER}:
        values = [
            spelling.number(cell)
            for cell, kind in zip(listed_cells, kinds, strict=True)
            if kind == _NUMBER
        ]
        return _number_of(name, np.array(values))
    if readable == {_DATE}:
        days_found = [
            int(day_of(cell, spelling))
            for cell, kind in zip(listed_cells, kinds, strict=True)
            if kind == _DATE
        ]
        first = date.fromordinal(min(days_found))
        last = date.fromordinal(max(days_found))
        return _date_of(name, first, last)
    return _category_in(name, listed_cells, counts)


def _number_of(name: str, values: NDArray[Any]) -> Number:
    if not len(values):
        raise _LeftOutError("no value at all")
    lower = float(values.min())
    upper = float(values.max())
    if lower == upper:
        raise _LeftOutError(_CONSTANT)
    return Number(name, lower, upper)


def _date_of(name: str, first: Any, last: Any) -> Date:
    if first == last:
        raise _LeftOutError(_CONSTANT)
    return Date(name, first, last)


def _category_in(name: str, cells: list[Any], counts: Counter[str]) -> Category:
    texts = {category_of(cell) for cell in cells if not is_missing(cell)}
    values = sorted(text for text in texts if text)
    words = [value for value in values if value.casefold() not in _NO_NUMBERS]
    if not words:
        raise _LeftOutError("no value at all")
    if all(map(_FOREIGN_DATE.fullmatch, words)):
        raise _LeftOutError("dates in an unknown format (they are read as 2024-02-29)")
    if len(values) == 1:
        raise _LeftOutError(_CONSTANT)
    if len(values) <= MOST_CATEGORIES:
        return Category(name, tuple(values))
    found = {kind: counts[kind] for kind in (_NUMBER, _DATE, _TEXT) if counts[kind]}
    if len(found) > 1:
        parts = [f"{n:,} {kind if n != 1 else kind[:-1]}" for kind, n in found.items()]
        raise _LeftOutError(f"mixed kinds: {', '.join(parts)}")
    raise _LeftOutError(
        f"more than {MOST_CATEGORIES} categories ({len(values):,} found)"
    )


def _kind(cell: Any, spelling: Spelling) -> str:
    """Return the kind of one cell, in a column whose type does not decide it."""
    if isinstance(cell, list | tuple | dict | np.ndarray):
        return _NESTED
    text = category_of(cell)
    if is_missing(cell):
        return _MISSING
    if math.isfinite(spelling.number(cell)):
        return _NUMBER
    if math.isfinite(day_of(cell, spelling)):
        return _DATE
    if text is None or text.casefold() in _NO_NUMBERS:
        return _NO_NUMBER
    return _TEXT


def _example(column: ColumnDeclaration) -> str:
    """Return a possible value of ``missing`` for a column, as TOML writes it."""
    if isinstance(column, Category):
        return json.dumps(column.values[0], ensure_ascii=False)
    if isinstance(column, Date):
        return str(column.lower + (column.upper - column.lower) / 2)
    return repr(column.lower / 2 + column.upper / 2)
