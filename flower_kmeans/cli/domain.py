"""``flower-kmeans domain init``: a domain.toml from what is publicly known, or from records.

It asks, and reads no records unless it is told to. Then the file itself says that it is not public.
"""

import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray

from flower_kmeans.cli.options import listed
from flower_kmeans.data.domain import check_names
from flower_kmeans.data.records import as_number
from flower_kmeans.data.table_domain import Category, Date, Number, TableDomain, category_of
from flower_kmeans.data.tables import read_columns
from flower_kmeans.errors import ConfigurationError, KMeansError
from flower_kmeans.files import reason_and_cure

Column = Number | Category | Date
T = TypeVar("T")

MAX_CATEGORIES = 20  # of a column of text that is read off: more are names or codes of records


def write(domain: TableDomain, path: Path) -> None:
    """Write a domain to a new file; an older one may be what a run agreed on.

    Its owner alone may read one that was read off records.
    """
    mode = 0o600 if domain.from_records else 0o666
    is_begun = False
    try:
        # New: what is there, also since it was looked for, is not replaced.
        with open(path, "xb", opener=lambda at, how: os.open(at, how, mode)) as file:
            is_begun = True
            file.write(domain.to_toml().encode())
    except OSError as error:
        if is_begun:
            path.unlink(missing_ok=True)  # half of a file would declare half of the columns
        raise ConfigurationError(f"{path} cannot be written: {reason_and_cure(error)}.") from None


def ask() -> TableDomain:
    """Return the domain that somebody answers for, column by column."""
    typer.echo("Answer from public knowledge, such as a form or a rule; no records are read.")
    names = typer.prompt("Columns to cluster by, as NAME,NAME", value_proc=_names)
    return TableDomain([_until_right(_column, name) for name in names])


def _column(name: str) -> Column:
    kind = typer.prompt(
        f"{name}: number, category or date",
        default="number",
        value_proc=_one_of("number", "category", "date"),
    )
    if kind == "category":
        values = typer.prompt(
            f'{name}: its categories, as VALUE,VALUE ("a, b" in quotes)', value_proc=_names
        )
        missing = _optional(f"{name}: the category for all other cells", str.strip)
        return Category(name, values, missing)
    if kind == "date":
        lower, upper = (typer.prompt(f"{name}: {end} date", value_proc=_day) for end in _ENDS)
        return Date(name, lower, upper, _optional(f"{name}: the date for a missing cell", _day))
    low, high = (typer.prompt(f"{name}: {end} bound", value_proc=_number) for end in _ENDS)
    scale = typer.prompt(
        f"{name}: linear scale, or log", default="linear", value_proc=_one_of("linear", "log")
    )
    number = _optional(f"{name}: the number for a missing cell", _number)
    return Number(name, low, high, scale, number)  # type: ignore[arg-type]


_ENDS = ("lower", "upper")


def _until_right(make: Callable[[str], Column], name: str) -> Column:
    while True:
        column = make(name)
        try:
            return TableDomain([column]).declared[0]
        except KMeansError as error:
            typer.echo(f"Error: {error} Once more:", err=True)


def _optional(question: str, read: Callable[[str], T]) -> T | None:
    answer: T | None = typer.prompt(
        f"{question} (Enter: leave such records out)",
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
    return _answer({each: each for each in choices}.__getitem__, f"one of {', '.join(choices)}")


# --------------------------------------------------------------------------- not private


def read_off(path: Path) -> tuple[TableDomain, list[str]]:
    """Return a domain read off a file's records, and the columns that it leaves out.

    Numbers and truths have the bounds that occur, dates too, and text the categories that occur.
    What has no extent, more than `MAX_CATEGORIES` values or no printable name is left out.
    """
    found: list[Column] = []
    left_out = []
    for name, cells in read_columns(path)[0].items():
        try:
            found += TableDomain([_found(name, cells)]).declared
        except (KMeansError, ValueError):  # the latter from NumPy, for a column without a value
            left_out.append(name)
    if not found:
        raise ConfigurationError(f"{path} has no column of numbers, dates or few categories.")
    return TableDomain(found, from_records=True), left_out


def _found(name: str, cells: NDArray[Any]) -> Column:
    """Return a declaration of what occurs in a column, which may have no extent."""
    if {*map(type, cells.tolist())} <= {bool, type(None)}:
        # Which are read however a file spells them: True, TRUE or true.
        cells = np.array([as_number(cell) for cell in cells.tolist()])
    if cells.dtype.kind in "iuf":
        finite = cells[np.isfinite(cells)]
        return Number(name, float(finite.min()), float(finite.max()))
    if cells.dtype.kind == "M":
        days = cells[~np.isnat(cells)].astype("datetime64[D]")
        return Date(name, days.min().item(), days.max().item())
    values = sorted({category_of(cell) or "" for cell in cells.tolist()} - {""})
    return Category(name, tuple(values) if len(values) <= MAX_CATEGORIES else ())
