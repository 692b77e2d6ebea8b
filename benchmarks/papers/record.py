"""The rows of a paper: recorded from an item's command, or taken over from docs/tables."""

from pathlib import Path

from benchmarks.papers import rows
from benchmarks.papers.items import ROOT, Item, Paper
from benchmarks.papers.rows import COMMAND, MISSING, Row

TABLES = ROOT / "docs/tables"


def output_of(paper: Paper, item: Item, quick: bool = False) -> Path:
    """Return the directory in which the command of an item leaves its results.

    Raises
    ------
    ValueError
        If the item's results cannot be rows.
    """
    if quick or not item.tables:
        raise ValueError(
            f"Expected a whole run of an item with tables for --record. "
            f"Got {item.name}{' with --quick' * quick}."
        )
    words = item.command.split()
    # Items of one command share its runs.
    script = Path(words[0]).stem
    return ROOT / "build" / "papers" / f"{paper.name}-{script}"


def record(paper: Paper, item: Item) -> int:
    """Replace an item's rows by what its command wrote, and return their number."""
    found = rows.rows_of_output(item.name, item.tables, output_of(paper, item))
    recorded = {row.quantity for row in found}
    others = [
        row
        for row in rows.read(rows.path_of(paper.name))
        if row.item != item.name or row.quantity not in recorded
    ]
    rows.write(rows.path_of(paper.name), _in_order(paper, [*others, *found]))
    return len(found)


def take_over(paper: Paper) -> None:
    """Write the rows of a paper again, those of committed tables from their cells."""
    rows.write(rows.path_of(paper.name), rows_of(paper))


def rows_of(paper: Paper) -> list[Row]:
    """Return the rows of a paper: recorded ones, and others from committed tables.

    Raises
    ------
    ValueError
        If a table that items.toml names is not there.
    """
    before = rows.read(rows.path_of(paper.name))
    recorded = [row for row in before if row.source == COMMAND]
    known = {(row.item, row.quantity) for row in recorded}
    found = list(recorded)
    for item in paper.items:
        for selection in item.tables:
            if not selection.page:
                continue
            taken = rows.rows_of_page(item.name, selection, TABLES)
            found += [row for row in taken if (row.item, row.quantity) not in known]
        found += [Row(item.name, name, ours=MISSING) for name in item.missing]
    rows.check_distinct(found)
    return _in_order(paper, found)


def _in_order(paper: Paper, found: list[Row]) -> list[Row]:
    """Return rows in the order of the paper's items; those of one item as they are."""
    places = {item.name: place for place, item in enumerate(paper.items)}
    return sorted(found, key=lambda row: places[row.item])
