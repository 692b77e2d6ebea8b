"""Pages of the papers' items and rows, docs/tables/papers/NAME.md."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers import rows
from benchmarks.papers.items import ROOT, Item, Paper
from benchmarks.papers.rows import COMMAND, MISSING, Row

FOLDER = ROOT / "docs/tables/papers"
WIDTH = 128  # columns of the documents
SHOWN = 40
"""Rows of an item on its page. Further ones are in its file alone."""


def path_of(paper: Paper) -> Path:
    """Return the file of a paper's page."""
    return FOLDER / f"{paper.name}.md"


def command_of(paper: Paper, item: Item) -> str:
    """Return the command line that makes an item."""
    command = f"python -m benchmarks.papers {paper.name} --{item.kind} {item.number}"
    if "DIR" in item.command.split():
        command += " --data-dir DIR"
    return command


def page_of(paper: Paper, found: Sequence[Row]) -> str:
    """Return a paper's page: a line for each item, and its rows below."""
    made = sum(item.is_made for item in paper.items)
    with_rows = {row.item for row in found if row.ours != MISSING}
    text = (
        f"{paper.title}: its {len(paper.items)} tables, figures, theorems and algorithms. "
        f"{made} of them have a command, and {len(with_rows)} have rows. The page is made "
        "by `python -m benchmarks.papers --write` from `benchmarks/papers/items.toml` and "
        f"`benchmarks/papers/rows/{paper.name}.csv`. An item's command with `--record` "
        "writes its rows. Options after `--` go to its script, and `--quick` shows that it "
        "works, on other data."
    )
    if paper.note:
        text += f" {paper.note}"
    lines = [f"# The items of {paper.name}", "", textwrap.fill(text, WIDTH), ""]
    lines += ["| item | command | printed | here | why |", "|---|---|---|---|---|"]
    for item in paper.items:
        command = ""
        if item.is_made:
            command = f"`{command_of(paper, item)}`: `{item.command}`"
        mine = [row for row in found if row.item == item.name]
        cells = [f"{item.name}: {item.title}", command]
        cells += [item.printed, _here(item, mine), item.why]
        lines.append(f"| {' | '.join(cells)} |")
    for item in paper.items:
        mine = [row for row in found if row.item == item.name]
        if mine:
            lines += ["", *_section(paper, item, mine)]
    return "\n".join(lines) + "\n"


def _here(item: Item, mine: Sequence[Row]) -> str:
    """Return the words on an item, and a summary of its rows."""
    parts = [item.ours] if item.ours else []
    measured = [row for row in mine if row.ours != MISSING]
    missing = [row.quantity for row in mine if row.ours == MISSING]
    if measured:
        anchor = rows.anchor_of(_title(item))
        parts.append(f"[{_numbered(len(measured), 'row')}](#{anchor})")
    compared = _over_printed(measured)
    if compared:
        parts.append(f"ours over printed: {compared}")
    if item.beside:
        parts.append(_counted(item, measured))
    if missing:
        parts.append(f"{MISSING}: {', '.join(missing)}")
    return "; ".join(parts)


def _over_printed(measured: Sequence[Row]) -> str:
    """Return the range of our numbers over the printed ones, by columns of tables."""
    by_column: dict[str, list[float]] = {}
    for row in measured:
        if row.ratio is not None:
            column = row.quantity.split(": ")[0]
            by_column.setdefault(column, []).append(row.ratio)
    ranges = []
    for column, ratios in by_column.items():
        text = f"{column} {min(ratios):.2f}"
        if len(ratios) > 1:
            text += f" to {max(ratios):.2f} ({len(ratios)} rows)"
        ranges.append(text)
    return ", ".join(ranges)


def _numbered(number: int, word: str) -> str:
    ending = "" if number == 1 else "s"
    return f"{number} {word}{ending}"


def _counted(item: Item, measured: Sequence[Row]) -> str:
    """Return in how many pairs of rows the first of two names is better."""
    ours, other, direction = item.beside
    values = {row.quantity: float(row.ours.replace(",", "")) for row in measured}
    pairs = [
        (value, values[quantity.replace(ours, other)])
        for quantity, value in values.items()
        if ours in quantity and quantity.replace(ours, other) in values
    ]
    if direction == "less":
        better = sum(first < second for first, second in pairs)
    else:
        better = sum(first > second for first, second in pairs)
    return f"{ours} has {direction} than {other} in {better} of {len(pairs)}"


def _title(item: Item) -> str:
    return f"Rows of {item.name}"


def _section(paper: Paper, item: Item, mine: Sequence[Row]) -> list[str]:
    """Return the lines of an item's rows. Those with a printed number come first."""
    lines = [f"## {_title(item)}", ""]
    ordered = sorted(mine, key=lambda row: not row.printed)
    shown = ordered[:SHOWN]
    head = ["quantity", "printed", "ours", "±", "runs", "date", "commit", "from"]
    lines.append(f"| {' | '.join(head)} |")
    lines.append("|---|--:|--:|--:|--:|---|---|---|")
    for row in shown:
        cells = [row.quantity.replace("|", r"\|"), row.printed, row.ours, row.interval]
        cells += [row.runs, row.date, row.commit, _source(row)]
        lines.append(f"| {' | '.join(cells)} |")
    left = len(ordered) - len(shown)
    if left:
        text = f"{_numbered(left, 'further row')} in `benchmarks/papers/rows/{paper.name}.csv`."
        lines += ["", text]
    return lines


def _source(row: Row) -> str:
    if row.source in ("", COMMAND):
        return row.source
    page = row.source.partition("#")[0].removesuffix(".md")
    return f"[{page}](../{row.source})"


def write(paper: Paper) -> Path:
    """Write a paper's page from its file of rows, and return its path."""
    path = path_of(paper)
    path.parent.mkdir(exist_ok=True)
    found = rows.read(rows.path_of(paper.name))
    path.write_text(page_of(paper, found), "utf-8")
    return path
