"""The templates of reports, pages and notebooks, which hold their sentences."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from flower_kmeans.files import inert

if TYPE_CHECKING:
    import jinja2

_SHOWN_ROWS, _SHOWN_COLUMNS = 50, 20
_DIGITS = r"[-+]?([\d.,]+(e[-+]?\d+)?|inf|nan)"
_NUMBER = re.compile(f"{_DIGITS}( to {_DIGITS})?%?|-")  # "-" stands for no value


class TextTable(NamedTuple):
    """A table of text: its caption, the headers of its columns, and the cells by row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def lines_of(template: str, **values: Any) -> tuple[str, ...]:
    """Return the lines of a text template, which is named by its path in the package."""
    text = environment().get_template(template).render(values)
    # The last line has a break unless it is also the last of the file.
    return tuple(text.removesuffix("\n").split("\n"))


def html_summary(
    title: str,
    facts: Mapping[str, object],
    tables: Sequence[TextTable] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the HTML of an object for notebooks, with every value escaped.

    Facts that are ``None`` are left out. A large table shows only its first rows and
    columns, and a line below says so.
    """
    known = {name: value for name, value in facts.items() if value is not None}
    values = {"title": title, "facts": known, "tables": tables, "notes": notes}
    sizes = {"most_rows": _SHOWN_ROWS, "most_columns": _SHOWN_COLUMNS}
    return environment().get_template("report/summary.html.j2").render(values | sizes)


def shown(value: object) -> str:
    """Return a value as short text: a float with six digits, text in quotes."""
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def listed(clips: Mapping[str, float]) -> str:
    """Return the names of releases with their clips as one text."""
    return ", ".join(f"{name} {clip:.4g}" for name, clip in clips.items())


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _printable(value: object) -> object:
    """Return a value as text, with U+FFFD for characters that do not print.

    Line breaks do not print, nor do characters that reverse the text.
    """
    if hasattr(value, "__html__"):  # in markup the values were replaced before
        return value
    return "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value)
    )


def _inert(value: object) -> object:
    """Return a cell of a table whose text no spreadsheet takes for a formula.

    People copy tables from pages into spreadsheets. Numbers do not change.
    """
    if (
        hasattr(value, "__html__")
        or not isinstance(value, str)
        or _NUMBER.fullmatch(value)
    ):
        return value
    return inert(value)


@cache
def environment() -> "jinja2.Environment":
    """Return the environment that loads all templates."""
    import jinja2  # takes a tenth of a second, and clients show no pages

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("flower_kmeans", ""),
        # Only templates of plain text are not escaped.
        autoescape=jinja2.select_autoescape(
            disabled_extensions=["txt.j2"], default=True
        ),
        # A misspelt name must not leave a gap in a statement about privacy.
        undefined=jinja2.StrictUndefined,
        # Names of columns, clients and software come from others.
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        clients=_clients,
        clips=listed,
        inert=_inert,
        g=lambda value, digits=4: f"{value:.{digits}g}",
    )
    return made
