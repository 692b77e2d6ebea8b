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
) -> Markup:
    """Return a table that scrolls by itself where it is wider than the page.

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
    """

    def cells(row: Sequence[object]) -> Markup:
        kinds = ["num" if i in right else None for i in range(len(row))]
        first = tag("th", row[0], scope="row", class_=kinds[0])
        rest = zip(row[1:], kinds[1:], strict=True)
        return tag("tr", first, *(tag("td", cell, class_=kind) for cell, kind in rest))

    titles = [
        tag("th", title, scope="col", class_="num" if i in right else None)
        for i, title in enumerate(head)
    ]
    parts = [tag("caption", caption), tag("thead", tag("tr", *titles))]
    parts.append(tag("tbody", *(cells(row) for row in rows)))
    if foot is not None:
        parts.append(tag("tfoot", cells(foot)))
    return tag(
        "div", tag("table", *parts, class_="wide" if wide else None), class_="scroll", tabindex="0"
    )


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
