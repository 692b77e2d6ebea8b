"""Ratios to k-means and to the floor, and lost gains, of published tables.

    python benchmarks/yardstick_columns.py
    python benchmarks/yardstick_columns.py --data-dir DIR

Tables of utility have means of costs, of areas under them, or of their ratios to
k-means. Ratio to the floor and lost gain follow from these and from the yardsticks of
the data (`bench.yardsticks`). So this script writes them from the tables of a page into
the pages, each behind a comment ``<!-- yardsticks: NAME -->``. With ``--data-dir`` it
computes the yardsticks anew, which takes minutes. Without it takes those of the pages,
so after a change of a published table the first command is enough.

Published means are rounded, and so are figures that follow from them.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import loss
import numpy as np
import utility
from counterexamples import directions, sizes_of
from protocols import best_of_ten, fastlloyd_delta, in_ball, in_box, pe_means_delta

from bench import scales
from bench.data import Data
from bench.harness import Options
from bench.scales import Scale
from bench.tables import markdown, unique
from bench.yardsticks import Yardsticks
from flower_kmeans.metrics import nicv

DOCS = Path(__file__).parents[1] / "docs"
LOSSES, UTILITY, SUMMARY = "tables/losses.md", "tables/utility.md", "benchmarks.md"
PAGES = (LOSSES, UTILITY, SUMMARY)
KMEANS = "KMeans"

# A table of this script: its name, and its lines.
_MADE = re.compile(r"^<!-- yardsticks: (.+) -->\n((?:\|.*\n)*)", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e-?\d+)?")
_EPSILON = re.compile(r"eps ([\d.]+)")
_RUNS_OF_RATIOS = 2


# --------------------------------------------------------------------------- yardsticks


class Base(NamedTuple):
    """The scale of a data set, and what ratios of tables were divided by.

    ``of_ratios`` is the mean cost of the first two runs of `KMeans`, each the best of
    ten starts, over that of the yardstick.
    """

    scale: Scale
    of_ratios: float


class Group(NamedTuple):
    """Data sets that share a protocol, in one table of yardsticks."""

    page: str
    epsilons: tuple[float, ...]
    names: tuple[str, ...]
    load: Callable[[str, Options], Data]
    delta: Callable[[int], float]


def vectors_or_ball(name: str, options: Options) -> Data:
    """Return a data set in the unit ball, or unit vectors of `counterexamples`."""
    sizes = sizes_of(name)
    if sizes is None:
        return in_ball(name, options)
    vectors, centres = directions(*sizes)
    return Data(name, vectors, len(centres))


GROUPS = {
    "unit ball": Group(
        LOSSES,
        loss.EPSILONS,
        (
            *loss.DATASETS,
            *("adult", "s1", "lsun", "wine", "breast", "unbalance"),
            *("directions_16000_256", "directions_16000_768"),
        ),
        vectors_or_ball,
        pe_means_delta,
    ),
    "[-1, 1]": Group(
        LOSSES,
        (0.1, *loss.EPSILONS),
        (
            *("unbalance", "s1", "lsun", "wine", "breast", "birch2"),
            *("blobs_64_4", "blobs_16_64", "blobs_64_16"),
            *("uneven_16_16", "uneven_64_4"),
        ),
        in_box,
        pe_means_delta,
    ),
    "FastLloyd's protocol": Group(
        UTILITY,
        utility.EPSILONS,
        (*utility.DATASETS, "unbalance"),
        in_box,
        fastlloyd_delta,
    ),
}


def computed(group: Group, options: Options) -> str:
    """Return the table of yardsticks of a group, as markdown."""
    found = {}
    ratios = []
    for name in group.names:
        data = group.load(name, options)
        delta = group.delta(len(data.records))
        scale = scales.scale_of(data.records, data.n_clusters, delta, group.epsilons)
        runs = [best_of_ten(data, run) for run in range(_RUNS_OF_RATIOS)]
        costs = [nicv(data.records, run.cluster_centers_) for run in runs]
        ratios.append(float(np.mean(costs)) / scale.yardsticks.kmeans)
        found[name] = scale
    head, marks, *lines = scales.yardstick_table(found, group.epsilons).splitlines()
    return "\n".join(
        [
            f"{head} `{KMEANS}` / k-means |",
            f"{marks}--:|",
            *(
                f"{line} {ratio:.4f} |"
                for line, ratio in zip(lines, ratios, strict=True)
            ),
        ]
    )


def bases_of(table: "Table") -> dict[str, Base]:
    """Return the bases of a published table of yardsticks."""
    places = [at for at, head in enumerate(table.head) if _EPSILON.search(head)]
    found = {}
    for row in table.rows:
        kmeans, one = float(row[1]), float(row[2])
        floors = {epsilon_of(table.head[at]): float(row[at]) * kmeans for at in places}
        found[row[0]] = Base(Scale(Yardsticks(kmeans, one), floors), float(row[-1]))
    return found


# --------------------------------------------------------------------------- pages


class Table(NamedTuple):
    """A table of a page: heads and cells as text."""

    head: list[str]
    rows: list[list[str]]


def table_of(text: str) -> Table:
    """Return a table in markdown as its cells, without marks of emphasis and code."""
    head, _, *rows = [
        [cell.strip(" *`") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
    ]
    return Table(head, rows)


def tables_under(page: str, heading: str) -> list[Table]:
    """Return the tables of a section of a page, but for those of this script."""
    text = _MADE.sub("", _CODE.sub("", page))
    section = re.search(
        rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise ValueError(f"Expected a section {heading!r}. Got none.")
    return [table_of(found) for found in _TABLE.findall(section[1])]


def epsilon_of(head: str) -> float:
    """Return the epsilon in a heading."""
    match = _EPSILON.search(head)
    if match is None:
        raise ValueError(f"Expected a heading with an epsilon. Got {head!r} instead.")
    return float(match[1])


def number_of(cell: str) -> float | None:
    """Return the mean in a cell, or ``None`` without one."""
    match = _NUMBER.match(cell)
    return None if match is None else float(match[0])


# --------------------------------------------------------------------------- entries


class Entry(NamedTuple):
    """A published mean, and its place in a table of this script.

    The mean is that of a cost or of a ratio at one epsilon, or of an area, or of its
    ratio, over several.
    """

    data: str
    labels: tuple[str, ...]
    column: str
    epsilons: tuple[float, ...]
    text: str


Reader = Callable[[Table], list[Entry]]


def by_method(table: Table, epsilons: tuple[float, ...]) -> list[Entry]:
    """Return entries of areas with a row for each data set, up to figures of others."""
    found = []
    for row in table.rows:
        for column, text in list(zip(table.head, row, strict=True))[1:]:
            if column.startswith(("printed", "ratio")):
                break
            found.append(Entry(row[0], (row[0],), column, epsilons, text))
    return found


def by_data(table: Table, epsilons: tuple[float, ...]) -> list[Entry]:
    """Return entries of areas with a column for each data set."""
    return [
        Entry(column, (row[0],), column, epsilons, text)
        for row in table.rows
        if not row[0].startswith("figure")
        for column, text in list(zip(table.head, row, strict=True))[1:]
    ]


def by_line(
    table: Table, epsilons: tuple[float, ...], column: int, data: str | None = None
) -> list[Entry]:
    """Return entries of areas in one column, with a row for each data set and method.

    With ``data`` the rows are methods on that data set.
    """
    found = []
    for row in table.rows:
        name, method = (row[0], row[1]) if data is None else (data, row[0])
        found.append(Entry(name, (name,), method, epsilons, row[column]))
    return found


def by_epsilon(
    table: Table, at: tuple[float, ...], data: str | None = None
) -> list[Entry]:
    """Return entries at some epsilons, which have columns; rows are as in `by_line`.

    Without ``data`` all methods stand in one row. Methods that are not private are left
    out.
    """
    found = []
    for row in table.rows:
        if row[1] in utility.NOT_PRIVATE:
            continue
        for head, text in zip(table.head, row, strict=True):
            if not _EPSILON.search(head) or epsilon_of(head) not in at:
                continue
            epsilons = (epsilon_of(head),)
            if data is None:
                column = f"{row[1]}, {head}"
                found.append(Entry(row[0], (row[0],), column, epsilons, text))
            else:
                found.append(Entry(data, (row[0],), head, epsilons, text))
    return found


def by_version(table: Table, columns: tuple[str, ...]) -> list[Entry]:
    """Return entries of some columns, with a row for each data set, setting and epsilon."""
    place = table.head.index("eps")
    found = []
    for row in table.rows:
        for column in columns:
            text = row[table.head.index(column)]
            labels = tuple(row[: place + 1])
            found.append(Entry(row[0], labels, column, (float(row[place]),), text))
    return found


def of_the_lift(table: Table) -> list[Entry]:
    """Return entries of areas over two ranges of epsilon."""
    ranges = (loss.EPSILONS[1:], loss.EPSILONS)
    return [
        Entry(row[0], (row[0],), column, epsilons, text)
        for row in table.rows
        for column, text, epsilons in zip(table.head[1:], row[1:], ranges, strict=True)
    ]


# --------------------------------------------------------------------------- columns


class Source(NamedTuple):
    """A published table: its page, section, place there, and how it is read."""

    page: str
    heading: str
    place: int
    read: Reader


class Made(NamedTuple):
    """A table of this script: its page, its sources, and what their numbers mean.

    ``kind`` is "cost", "area" or "ratio" to k-means. Where ``of_runs`` is true, ratios
    are to the first two runs of `KMeans` and not to the best known. ``only`` are data
    sets, by default all, and ``without`` columns that are left out.
    """

    page: str
    sources: tuple[Source, ...]
    group: str
    kind: str
    labels: tuple[str, ...] = ("data",)
    of_runs: bool = False
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = (KMEANS,)


MAIN = "Losses beside the printed figures of PE-means"
RELOCATION = "FastLloyd's relocation"
UNEQUAL = "Clusters of unequal sizes"
WEIGHTS = "FastLloyd's weights"
BALL_AREAS = partial(by_method, epsilons=loss.EPSILONS)
BOX_AREAS = partial(by_method, epsilons=utility.EPSILONS)
AT_THREE = partial(by_epsilon, at=(0.25, 1.0, 4.0))
REBUILT = "Rows that are not as good as the reference"
SUMMARISED = ("iris", "birch2", "blobs_16_16", "blobs_16_64", "blobs_64_16")
SUMMARISED += ("blobs_64_64", "blobs_64_128")

MADE: Mapping[str, Made] = {
    "areas": Made(LOSSES, (Source(LOSSES, MAIN, 0, BALL_AREAS),), "unit ball", "area"),
    "lift": Made(LOSSES, (Source(LOSSES, MAIN, 2, of_the_lift),), "unit ball", "area"),
    "HDPEMeans": Made(
        LOSSES,
        (Source(LOSSES, "The lift of HDPEMeans", 1, BALL_AREAS),),
        "unit ball",
        "area",
    ),
    "adult": Made(
        LOSSES,
        (
            Source(
                LOSSES,
                "Adult, and unit vectors",
                0,
                partial(by_line, epsilons=loss.EPSILONS, column=2, data="adult"),
            ),
        ),
        "unit ball",
        "ratio",
    ),
    "relocation": Made(
        LOSSES,
        (
            Source(LOSSES, RELOCATION, 0, AT_THREE),
            Source(LOSSES, RELOCATION, 1, AT_THREE),
        ),
        "unit ball",
        "ratio",
        of_runs=True,
    ),
    "unequal": Made(
        LOSSES,
        (Source(LOSSES, UNEQUAL, 0, partial(by_version, columns=("before", "now"))),),
        "unit ball",
        "ratio",
        ("data", "eps"),
    ),
    "bounds": Made(
        LOSSES,
        (
            Source(
                LOSSES,
                UNEQUAL,
                1,
                partial(
                    by_version,
                    columns=("before", "now", "at least 0.7 always", "paper"),
                ),
            ),
        ),
        "[-1, 1]",
        "ratio",
        ("data", "bounds", "eps"),
    ),
    "weights": Made(
        LOSSES,
        (
            Source(
                LOSSES,
                WEIGHTS,
                0,
                partial(by_version, columns=("before", "with weights")),
            ),
        ),
        "unit ball",
        "ratio",
        ("data", "eps"),
        of_runs=True,
    ),
    "weights of other seeds": Made(
        LOSSES,
        (
            Source(
                LOSSES,
                WEIGHTS,
                1,
                partial(by_version, columns=("without", "with weights")),
            ),
        ),
        "[-1, 1]",
        "ratio",
        ("data", "eps"),
    ),
    "squares": Made(
        LOSSES,
        (
            Source(
                LOSSES,
                "SynopsisKMeans with squares at no cost, and under an oblivious server",
                1,
                BALL_AREAS,
            ),
        ),
        "unit ball",
        "ratio",
    ),
    "utility": Made(
        UTILITY,
        (
            Source(
                UTILITY,
                "Utility",
                0,
                partial(by_line, epsilons=utility.EPSILONS, column=2),
            ),
            Source(UTILITY, "Strategies whose server sees the result", 0, BOX_AREAS),
        ),
        "FastLloyd's protocol",
        "area",
    ),
    "utility by epsilon": Made(
        UTILITY,
        (Source(UTILITY, "Utility", 1, partial(by_epsilon, at=(0.1, 1.0))),),
        "FastLloyd's protocol",
        "cost",
    ),
    "unbalance": Made(
        UTILITY,
        (
            Source(
                UTILITY,
                "Clusters of very different sizes",
                0,
                partial(by_epsilon, at=utility.EPSILONS, data="unbalance"),
            ),
        ),
        "FastLloyd's protocol",
        "ratio",
        ("method",),
    ),
    "rebuilt": Made(
        UTILITY,
        (Source(UTILITY, REBUILT, 0, BOX_AREAS),),
        "FastLloyd's protocol",
        "area",
    ),
    "one change": Made(
        UTILITY,
        (Source(UTILITY, REBUILT, 1, partial(by_data, epsilons=utility.EPSILONS)),),
        "FastLloyd's protocol",
        "area",
        ("method",),
    ),
    "summary": Made(
        SUMMARY,
        (Source(LOSSES, MAIN, 0, BALL_AREAS),),
        "unit ball",
        "area",
        only=SUMMARISED,
        without=(KMEANS, "oblivious-server"),
    ),
}
"""The tables of this script by the names in their comments."""


def cell_of(entry: Entry, base: Base, made: Made) -> str:
    """Return an entry beside its yardsticks, as a table's cell."""
    value = number_of(entry.text)
    if value is None:
        return ""
    if made.kind == "area":
        value /= entry.epsilons[-1] - entry.epsilons[0]
    form = ".2f"
    if made.kind == "ratio":
        # As many decimals as the published ratio has.
        _, _, decimals = entry.text.partition(" ")[0].partition(".")
        form = f".{len(decimals)}f"
        value *= base.scale.yardsticks.kmeans
        if made.of_runs:
            value *= base.of_ratios
    return scales.shown(value, base.scale, base.scale.floor_over(entry.epsilons), form)


def columns_of(made: Made, pages: Mapping[str, str], bases: Mapping[str, Base]) -> str:
    """Return a table of this script, as markdown."""
    entries = [
        entry
        for source in made.sources
        for entry in source.read(
            tables_under(pages[source.page], source.heading)[source.place]
        )
        if entry.data in bases
        and entry.column not in made.without
        and (not made.only or entry.data in made.only)
    ]
    columns = unique(entry.column for entry in entries)
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for entry in entries:
        row = cells.setdefault(entry.labels, {})
        # Of two tables with the same column the first counts.
        row.setdefault(entry.column, cell_of(entry, bases[entry.data], made))
    lines = [
        [*labels, *(row.get(column, "") for column in columns)]
        for labels, row in cells.items()
    ]
    words = [at for at, label in enumerate(made.labels) if label != "eps"]
    return markdown([*made.labels, *columns], lines, words)


def written(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with some tables in place of those behind their comments."""

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in tables:
            return match[0]
        return f"<!-- yardsticks: {match[1]} -->\n{tables[match[1]]}\n"

    return _MADE.sub(replaced, page)


def refreshed(pages: Mapping[str, str]) -> dict[str, str]:
    """Return pages whose tables follow from their yardsticks and published means."""
    bases = {}
    for name, group in GROUPS.items():
        published = dict(_MADE.findall(pages[group.page]))
        bases[name] = bases_of(table_of(published[name]))
    tables = {
        name: columns_of(made, pages, bases[made.group]) for name, made in MADE.items()
    }
    return {name: written(page, tables) for name, page in pages.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables into the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, help="compute yardsticks from NAME.npz"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    parsed = parser.parse_args(arguments)
    pages = {name: (parsed.docs / name).read_text("utf-8") for name in PAGES}
    if parsed.data_dir is not None:
        options = Options(1, data_dir=parsed.data_dir)
        for name, group in GROUPS.items():
            print(f"yardsticks: {name}", flush=True)
            tables = {name: computed(group, options)}
            pages[group.page] = written(pages[group.page], tables)
    for name, page in refreshed(pages).items():
        (parsed.docs / name).write_text(page, "utf-8")


if __name__ == "__main__":
    main()
