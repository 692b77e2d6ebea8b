"""``flower-kmeans domain init``: a domain.toml from what is publicly known, or from records.

It asks, and reads no records unless it is told to. Then the file itself says that it is not public.
"""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray

from flower_kmeans.data.table_domain import Category, Date, Number, TableDomain, category_of
from flower_kmeans.data.tables import read_columns
from flower_kmeans.errors import ConfigurationError, KMeansError

Column = Number | Category | Date
T = TypeVar("T")

MAX_CATEGORIES = 20  # of a column of text that is read off: more are names or codes of records


def write(domain: TableDomain, path: Path) -> None:
    """Write a domain to a new file; an older one may be what a run agreed on."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(domain.to_toml())
    except FileExistsError:
        raise ConfigurationError(f"Expected a new file as --output. {path} exists.") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from None


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
        values = typer.prompt(f"{name}: its categories, as VALUE,VALUE", value_proc=_names)
        missing = _optional(f"{name}: the category of a cell that is none of these", str)
        return Category(name, tuple(values), missing)
    if kind == "date":
        lower, upper = (typer.prompt(f"{name}: {end} date", value_proc=_day) for end in _ENDS)
        return Date(name, lower, upper, _optional(f"{name}: the date of a cell without one", _day))
    low, high = (typer.prompt(f"{name}: {end} bound", type=float) for end in _ENDS)
    scale = typer.prompt(
        f"{name}: linear scale, or log", default="linear", value_proc=_one_of("linear", "log")
    )
    number = _optional(f"{name}: the number of a cell without one", float)
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
        f"{question} (Enter: its record counts as none)",
        default="",
        show_default=False,
        value_proc=lambda text: read(text.strip()) if text.strip() else None,
    )
    return answer


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise typer.BadParameter("Expected one or more different names, as NAME,NAME.")
    return names


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter("Expected a date as 2024-02-29.") from None


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip() not in choices:
            raise typer.BadParameter(f"Expected one of {', '.join(choices)}.")
        return text.strip()

    return read


# --------------------------------------------------------------------------- not private


def read_off(path: Path) -> tuple[TableDomain, list[str]]:
    """Return a domain read off a file's records, and the columns that it leaves out.

    Numbers have the bounds that occur, dates too, and text the categories that occur. Text with
    more than `MAX_CATEGORIES` values is left out.
    """
    columns = {name: _found(name, cells) for name, cells in read_columns(path)[0].items()}
    found = [column for column in columns.values() if column is not None]
    if not found:
        raise ConfigurationError(f"{path} has no column of numbers, dates or few categories.")
    return TableDomain(found, from_records=True), [n for n, c in columns.items() if c is None]


def _found(name: str, cells: NDArray[Any]) -> Column | None:
    """Return a declaration with the extent of a column, or ``None`` for one without an extent."""
    if cells.dtype.kind in "iuf":
        finite = cells[np.isfinite(cells)]
        if len(finite) and finite.min() < finite.max():
            return Number(name, float(finite.min()), float(finite.max()))
        return None
    if cells.dtype.kind == "M":
        days = cells[~np.isnat(cells)].astype("datetime64[D]")
        return Date(name, days.min().item(), days.max().item()) if len(set(days)) > 1 else None
    values = sorted({category_of(cell) or "" for cell in cells.tolist()} - {""})
    return Category(name, tuple(values)) if 2 <= len(values) <= MAX_CATEGORIES else None
