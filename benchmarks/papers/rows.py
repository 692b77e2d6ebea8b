"""Results as rows, rows/PAPER.csv: item, quantity, printed, ours, runs, date and commit.

A row is recorded by the command of its item (``--record``), from the tables that its
script writes, or is taken over from a committed table of docs/tables (``--write``). In
both cases a `Selection` of items.toml names keys and columns of the table.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import count
from pathlib import Path

FOLDER = Path(__file__).with_name("rows")
COMMAND = "command"
"""The source of a row that the item's command recorded."""
MISSING = "data not at hand"
"""Instead of our number, for a data set that only a loader reads."""
_CELL = re.compile(
    r"(?P<ours>[-\d.,e+]+)(?: ± (?P<interval>[-\d.,e+]+))?(?: \((?P<rest>[^()]*)\))?"
)


@dataclass(frozen=True)
class Row:
    """One number of an item.

    Attributes
    ----------
    item : str
        The item's name, such as "figure 3".
    quantity : str
        The table's column, a colon, and the keys of the table's line.
    printed : str
        The number in the paper; empty if it prints none.
    ours : str
        The number here, or `MISSING`.
    interval : str
        Half the 95% interval of a mean.
    runs : str
        The number of runs.
    date, commit : str
        Of the measurement. The commit is empty if the table's page does not name one.
    source : str
        `COMMAND`, or page and heading of the committed table.
    """

    item: str
    quantity: str
    printed: str = ""
    ours: str = ""
    interval: str = ""
    runs: str = ""
    date: str = ""
    commit: str = ""
    source: str = ""

    @property
    def ratio(self) -> float | None:
        """Our number over the printed one, if both are numbers and the latter is not 0."""
        try:
            printed = float(self.printed.replace(",", ""))
            ours = float(self.ours.replace(",", ""))
        except ValueError:
            return None
        if printed == 0:
            return None
        return ours / printed


@dataclass(frozen=True)
class Selection:
    """The part of a table that becomes rows.

    Attributes
    ----------
    keys : tuple of str
        Headings of the columns that name a line.
    columns : tuple of str
        Headings of the numbers. The second column of one heading has "#2" behind it.
    page : str
        A file of docs/tables and a heading, as "utility.md#utility"; empty for what
        only the command records.
    table : int
        Which one of the tables under the heading that have these columns, from 1 on.
    output : int
        The same for the tables that the script writes; 0 if it writes none like this.
    where : mapping of str to tuple of str
        The allowed texts of some key columns; all texts of others are.
    name : str
        Words in front of the keys.
    interval : str
        Heading of the column with intervals, where cells do not have them.
    brackets : tuple of str
        Quantities in the brackets of a cell. "runs" is the number of runs; each other
        quantity becomes a further row.
    runs : str
        The number of runs, or the heading of its column, where cells do not have it.
        What a script writes has it in runs.csv.
    printed : mapping of str to str
        Printed numbers by quantity.
    printed_columns : mapping of str to str
        The heading of the printed number, by that of ours.
    date, commit : str
        Of the page's table.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    page: str = ""
    table: int = 1
    output: int = 1
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    name: str = ""
    interval: str = ""
    brackets: tuple[str, ...] = ("runs",)
    runs: str = ""
    printed: Mapping[str, str] = field(default_factory=dict)
    printed_columns: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    commit: str = ""


Lines = list[dict[str, str]]
"""The lines of a table: texts by heading."""


def section_of(text: str, anchor: str) -> str:
    """Return the text under a heading, up to the next heading.

    Raises
    ------
    ValueError
        If there is no such heading.
    """
    parts = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if anchor_of(title) == anchor:
            return body
    raise ValueError(f"Expected a heading with the anchor {anchor!r}. Got none.")


def anchor_of(title: str) -> str:
    """Return the anchor of a heading."""
    words = re.sub(r"[^\w\s-]", "", title.lower()).strip()
    return re.sub(r"\s", "-", words)


def tables_of(text: str) -> list[Lines]:
    """Return the tables of a markdown text."""
    tables: list[Lines] = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        head, _, *lines = [_cells(line) for line in block.splitlines()]
        names = _distinct(head)
        tables.append([dict(zip(names, line, strict=True)) for line in lines])
    return tables


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [each.strip().replace(r"\|", "|") for each in re.split(r"(?<!\\)\|", inner)]


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        numbered = (f"{name}#{number}" for number in count(2))
        new = name
        while new in found:
            new = next(numbered)
        found.append(new)
    return found


def lines_of(tables: Sequence[Lines], selection: Selection, number: int) -> Lines:
    """Return the lines of the table that a selection means.

    Raises
    ------
    ValueError
        If there is no such table.
    """
    found = fitting(tables, selection)
    if len(found) < number:
        wanted = ", ".join((*selection.keys, *selection.columns))
        raise ValueError(
            f"Expected {number} tables with the columns {wanted}. Got {len(found)} instead."
        )
    return found[number - 1]


def fitting(tables: Sequence[Lines], selection: Selection) -> list[Lines]:
    """Return the tables that have a selection's columns."""
    wanted = {*selection.keys, *selection.columns}
    return [table for table in tables if table and wanted <= table[0].keys()]


def rows_of(item: str, lines: Lines, selection: Selection) -> Iterator[Row]:
    """Yield the rows of a table's lines. Empty cells and those of a dash have none.

    Raises
    ------
    ValueError
        If a cell is not a number with an interval and brackets.
    """
    for line in lines:
        allowed = (line[key] in texts for key, texts in selection.where.items())
        if not all(allowed):
            continue
        keys = [selection.name, *(line[key] for key in selection.keys)]
        place = ", ".join(key for key in keys if key)
        for column in selection.columns:
            if line[column] not in ("", "-"):
                yield from _rows_of_cell(item, line, column, place, selection)


def _rows_of_cell(
    item: str, line: Mapping[str, str], column: str, place: str, selection: Selection
) -> Iterator[Row]:
    match = _CELL.fullmatch(line[column])
    if match is None:
        raise ValueError(
            f"Expected a number in {column} of {place}. Got {line[column]!r} instead."
        )
    interval = match["interval"] or ""
    if selection.interval:
        interval = line[selection.interval].removeprefix("±").strip()
    quantity = f"{column}: {place}"
    printed = selection.printed.get(quantity, "")
    if column in selection.printed_columns:
        printed = line[selection.printed_columns[column]].split(" (")[0]
    rest = []
    if match["rest"]:
        rest = match["rest"].split(", ")
    further = dict(zip(selection.brackets, rest, strict=False))
    runs = line.get(selection.runs, selection.runs)
    runs = further.pop("runs", runs)
    first = Row(item, quantity, printed, match["ours"], interval, runs)
    yield first
    for name, value in further.items():
        quantity = f"{name}, {first.quantity}"
        printed = selection.printed.get(quantity, "")
        yield Row(item, quantity, printed, value, "", runs)


def rows_of_page(item: str, selection: Selection, folder: Path) -> list[Row]:
    """Return the rows that a committed table has.

    Raises
    ------
    ValueError
        If the page has no such table or lines, or does not state date and commit.
    """
    name, _, anchor = selection.page.partition("#")
    text = (folder / name).read_text("utf-8")
    for word in (selection.date, selection.commit):
        if word not in text:
            raise ValueError(f"Expected {word} of {item} in {name}. Got none.")
    tables = tables_of(section_of(text, anchor))
    lines = lines_of(tables, selection, selection.table)
    made = {"date": selection.date, "commit": selection.commit}
    found = rows_of(item, lines, selection)
    taken = [replace(row, source=selection.page, **made) for row in found]
    if not taken:
        raise ValueError(f"Expected lines of {item} with {selection.where}. Got none.")
    return taken


def rows_of_output(
    item: str, selections: Iterable[Selection], output: Path
) -> list[Row]:
    """Return the rows of what a script wrote: tables.md and meta.json.

    Options may leave data sets out, so some tables and lines may be missing.

    Raises
    ------
    ValueError
        If there is no row, or two rows have one quantity.
    """
    tables = tables_of((output / "tables.md").read_text("utf-8"))
    commands = json.loads((output / "meta.json").read_text("utf-8"))["commands"]
    last = [entry for entry in commands if entry["rows"] != 0][-1]
    made = {
        "date": last["started"][:10],
        "commit": _short(last["commit"] or ""),
        "source": COMMAND,
    }
    n_runs = _runs_in(output / "runs.csv")
    found = []
    for selection in selections:
        if not 0 < selection.output <= len(fitting(tables, selection)):
            continue
        lines = lines_of(tables, selection, selection.output)
        counted = selection
        if selection.runs not in lines[0]:
            counted = replace(selection, runs=n_runs)
        found += [replace(row, **made) for row in rows_of(item, lines, counted)]
    if not found:
        raise ValueError(f"Expected lines of {item} in {output.name}. Got none.")
    check_distinct(found)
    return found


def _runs_in(path: Path) -> str:
    """Return the number of repetitions in a file of runs."""
    with path.open(encoding="utf-8", newline="") as file:
        return str(len({line.get("run", "") for line in csv.DictReader(file)}))


def _short(commit: str) -> str:
    """Return the first digits of a commit, and "+" if files differed from it."""
    mark = "+" if commit.endswith("+") else ""
    return commit[:8] + mark


def check_distinct(rows: Iterable[Row]) -> None:
    """Refuse two rows of one item and quantity.

    Raises
    ------
    ValueError
        If there are two.
    """
    seen = set()
    for row in rows:
        key = (row.item, row.quantity)
        if key in seen:
            raise ValueError(f"Expected one row of {row.item}, {row.quantity}.")
        seen.add(key)


def path_of(paper: str, folder: Path = FOLDER) -> Path:
    """Return the file of a paper's rows."""
    return folder / f"{paper}.csv"


def read(path: Path) -> list[Row]:
    """Return the rows of a file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(**line) for line in csv.DictReader(file)]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write the rows of a file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        names = [each.name for each in fields(Row)]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
