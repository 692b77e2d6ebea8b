"""HTML from plain functions: whatever is not markup already is escaped."""

import html
from collections.abc import Iterable, Sequence

_VOID = {"meta", "link", "br"}
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


class Markup(str):
    """Text that is HTML already, made by `tag` and `join` alone."""

    __slots__ = ()


Content = Markup | str | int


def escaped(value: object) -> Markup:
    """Return a value as HTML: markup as it is, anything else as escaped text.

    Characters that do not print, such as those that turn the direction of writing, are replaced:
    names of columns come from files.
    """
    if isinstance(value, Markup):
        return value
    shown = "".join(c if c.isprintable() else _UNPRINTABLE for c in str(value))
    return Markup(html.escape(shown, quote=True))


def join(parts: Iterable[object]) -> Markup:
    """Return all parts, one after the other."""
    return Markup("".join(escaped(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Parameters
    ----------
    name : str
        Of the element.
    *children : object
        Markup, or text to be escaped.
    **attributes : object
        ``class_`` is written ``class``, ``stroke_width`` is written ``stroke-width``; those that
        are ``None`` are left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def paragraph(*children: object, class_: str | None = None) -> Markup:
    """Return a paragraph."""
    return tag("p", *children, class_=class_)


def section(name: str, title: str, *children: object) -> Markup:
    """Return a section of the page with its heading; ``name`` is its anchor."""
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    right: Sequence[int] = (),
    foot: Sequence[object] | None = None,
    wide: bool = False,
    together: int | None = None,
) -> Markup:
    """Return a table that scrolls by itself where it is wider than the page.

    Paper does not scroll: a table of many columns goes on in further ones (``together``).

    Parameters
    ----------
    head : sequence
        Titles of the columns.
    rows : iterable of sequences
        Cells; the first of each row is its header.
    caption : str
        What the table shows.
    right : sequence of int
        Columns of numbers, whose cells are aligned to the right.
    foot : sequence, optional
        The last row, for totals.
    wide : bool, default: False
        Whether to take the whole width, and to keep every cell on one line.
    together : int, optional
        How many columns fit on paper. What has more becomes several tables, each of which begins
        with the headers of the rows: side by side on a screen, one below the other on paper.
    """
    listed, parts = list(rows), _column_parts(len(head), together)
    tables = []
    for number_, columns in enumerate(parts, 1):
        part = f", part {number_} of {len(parts)}" if len(parts) > 1 else ""
        body = tag("tbody", *(_row(row, columns, right) for row in listed))
        titles = [
            tag("th", head[i], scope="col", class_="num" if i in right else None) for i in columns
        ]
        inside = [tag("caption", caption, part), tag("thead", tag("tr", *titles)), body]
        if foot is not None:
            inside.append(tag("tfoot", _row(foot, columns, right)))
        tables.append(tag("table", *inside, class_="wide" if wide else None))
    classes = "scroll" if len(tables) == 1 else "scroll parts"
    return tag("div", *tables, class_=classes, tabindex="0")


def _column_parts(n_columns: int, together: int | None) -> list[list[int]]:
    """Return the columns of each part of a table: the first one is in all of them."""
    if together is None or n_columns <= together:
        return [list(range(n_columns))]
    starts = range(1, n_columns, together - 1)
    return [[0, *range(i, min(i + together - 1, n_columns))] for i in starts]


def _row(row: Sequence[object], columns: Sequence[int], right: Sequence[int]) -> Markup:
    kinds = ["num" if i in right else None for i in columns]
    first = tag("th", row[columns[0]], scope="row", class_=kinds[0])
    rest = zip(columns[1:], kinds[1:], strict=True)
    return tag("tr", first, *(tag("td", row[i], class_=kind) for i, kind in rest))


def facts(pairs: Iterable[tuple[str, object]]) -> Markup:
    """Return names and values as a description list."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs),
        class_="facts",
    )


def number(value: float, digits: int = 4) -> str:
    """Return a number with so many digits, as the report writes them."""
    return f"{value:.{digits}g}"
