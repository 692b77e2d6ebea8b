"""Lost gain and ratio to the floor beside the ratios of published tables.

    python benchmarks/lost_gain_columns.py clients --data-dir DIR
    python benchmarks/lost_gain_columns.py clients --write

The first command prints the tables of yardsticks of a page of docs/tables, which stand
on the page: the cost of one cluster, and the floor (`bench.yardsticks`), both over the
cost of k-means. The second one fills the columns ``lost gain, NAME`` of the page from
the columns ``NAME`` and from the last table of yardsticks above them. Ratios and lost
gains are linear in the cost, so the means of published runs are enough.

A column ``NAME`` has the mean cost over that of k-means. In tables under yardsticks
with a column ``k-means`` it has the cost itself, and the ratio stands before the lost
gain. Whole clients and Laplace noise have
no floor: a client's part is bounded by its clip, and Laplace noise has no mu.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from protocols import in_ball, in_box

from bench import lost_gain, tables
from bench.harness import Options
from bench.yardsticks import Yardsticks, yardsticks
from flower_kmeans.arrays import FloatArray
from flower_kmeans.metrics import nicv

ROOT = Path(__file__).parents[1]
SIMULATIONS = ROOT / "simulations" / "feddp"
KEYS = ("set", "data", "population")
"""Headings of the columns that name a data set."""
WITHOUT_FLOOR = ("laplace", "sulloyd", "clients", "one-each", "plain")
"""Words of rows that have no floor."""
MANY = "many points"
OF_FEDDP = "lost gain"
"""A heading of the tables of ``simulations/feddp``, which have one column of ratios."""
FILES_OF_RANGES = {"s1": 15, "adult": 10, "birch2": 100, "unbalance": 8, "g2mg_4_30": 2}
"""Files of ranges.md and their numbers of clusters."""
_NUMBER = re.compile(r"[\d,]*\d(?:\.\d+)?")
_IN_BRACKETS = re.compile(r"\((\d+\.\d+)\)")


# ------------------------------------------------------------------------ yardsticks


class Measured(NamedTuple):
    """A data set beside costs of private runs: its records are all that take part.

    ``delta`` is that of the runs, or ``None`` for the default. Without ``epsilons``
    there is no floor.
    """

    name: str
    records: FloatArray
    n_clusters: int
    costs: Yardsticks
    epsilons: Sequence[float] = ()
    delta: float | None = None

    def row(self, epsilons: Sequence[float], *, has_costs: bool) -> list[str]:
        """Return the cells of the set in a table of yardsticks."""
        costs = self.costs
        cells = [self.name, f"{costs.ratio(costs.one_cluster):.4f}"]
        if has_costs:
            cells.append(f"{costs.kmeans * len(self.records):.6g}")
        for epsilon in epsilons:
            cells.append(self.floor(epsilon) if epsilon in self.epsilons else "")
        return cells

    def floor(self, epsilon: float) -> str:
        """Return the floor over k-means as text."""
        found = lost_gain.floor_over(
            self.costs.kmeans, self.records, self.n_clusters, epsilon, self.delta
        )
        return f"{found:.4f}"


def table_of(sets: Sequence[Measured], *, has_costs: bool = False) -> str:
    """Return a table of yardsticks. ``has_costs`` adds the sums of squared distances."""
    epsilons = sorted({epsilon for each in sets for epsilon in each.epsilons})
    head = ["set", "one cluster"] + ["k-means"] * has_costs
    head += [f"floor, eps {epsilon:g}" for epsilon in epsilons]
    lines = [each.row(epsilons, has_costs=has_costs) for each in sets]
    return tables.markdown(head, lines)


def scaled(
    kind: Any, names: Sequence[str], options: Options, *epsilons: float, **delta: float
) -> list[Measured]:
    """Return named data sets in a ball or a box, with ``delta`` N^-``power``."""
    found = []
    for name in names:
        data = kind(name, options)
        costs = yardsticks(data.records, data.n_clusters)
        given = len(data.records) ** -delta["power"] if delta else None
        found.append(
            Measured(name, data.records, data.n_clusters, costs, epsilons, given)
        )
    return found


def of_population(name: str, runs: int, draw: Any, *epsilons: float) -> Measured:
    """Return populations of several runs, with the mean of their yardsticks.

    The floor is that of the first run.
    """
    from experiments import optimum

    kmeans = []
    ones = []
    for run in range(runs):
        population = draw(run)
        pooled = np.concatenate(population.partitions)
        best = nicv(pooled, optimum(population, run))
        kmeans.append(best)
        ones.append(nicv(pooled, pooled.mean(axis=0, keepdims=True)) / best)
        if run == 0:
            records = pooled
    # Ratios are to the optimum of the same run.
    costs = Yardsticks(kmeans[0], kmeans[0] * float(np.mean(ones)))
    return Measured(name, records, population.n_clusters, costs, epsilons)


def clients(options: Options) -> Iterator[str]:
    """Yield the yardsticks of clients.md: of records, and of whole clients."""
    from clips import mixture

    names = ("blobs_16_16", "blobs_64_4", "g2mg_16_30")
    yield table_of(scaled(in_ball, names, options, 0.5, 1.0, 4.0, power=1.1))
    case = mixture(0)
    records = case.data.records
    one = nicv(records, records.mean(axis=0, keepdims=True))
    of_mixture = Measured(
        "mixture", records, case.data.n_clusters, Yardsticks(case.optimum, one)
    )
    names = ("blobs_16_16", "blobs_4_16", "s1")
    yield table_of([*scaled(in_ball, names, options), of_mixture])


def sizes(options: Options) -> Iterator[str]:
    """Yield the yardsticks of the thesis's tables; `sizes.py` prints those of bounds."""
    names = ("s1", "iris", "birch2", "adult")
    yield table_of(scaled(in_box, names, options, 0.25, 1.0, 4.0), has_costs=True)


def feddp(options: Options) -> Iterator[str]:
    """Yield the yardsticks of feddp.md, in the order of its sections."""
    from feddp_weights import OTHERS, SPECIAL
    from populations import Mixture, digits, from_file
    from quick import SERVER_EACH, case_of

    grid = (0.25, 0.5, 1.0, 2.0, 5.0)
    records = Mixture(100, 1000)
    yield table_of(
        [of_population("mixture", 3, lambda run: records.draw("", run), *grid)]
    )
    yield table_of(
        [
            of_population(
                f"{n} clients", 3, lambda run, n=n: Mixture(n, 50).draw("", run)
            )
            for n in (1000, 2000, 5000)
        ]
    )
    yield table_of([of_population("digits", 1, lambda run: digits(), *grid)])
    # Made by a command of the page, in the current folder.
    china = Path("china.csv")
    if china.is_file():
        population = from_file(
            china, "column", bounds=(0, 255), n_clusters=10, n_server_clients=20
        )
        few = (0.25, 1.0, 5.0)
        yield table_of([of_population("china", 1, lambda run: population, *few)])
    found = []
    for name in OTHERS:
        for n_each, epsilons in (
            (SERVER_EACH, (0.25, 0.5, *SPECIAL.get(name, ()), 1.0, 2.0, 4.0)),
            (10 * SERVER_EACH, (0.5, 2.0)),
        ):
            case = case_of(name, options, n_each)
            one = nicv(case.records, case.records.mean(axis=0, keepdims=True))
            costs = Yardsticks(case.best, one)
            label = name if n_each == SERVER_EACH else f"{name}, {MANY}"
            found.append(
                Measured(label, case.records, case.n_clusters, costs, epsilons)
            )
    yield table_of(found)


def ranges(options: Options) -> Iterator[str]:
    """Yield the yardsticks of ranges.md, in the space of the true bounds."""
    from ranges import EPSILON, GENERATED, generated, given, name_of

    folder = options.data_dir or Path()
    files = [str(folder / f"{name}.npz:{k}") for name, k in FILES_OF_RANGES.items()]
    found = []
    for case in [*map(generated, GENERATED), *map(given, files)]:
        costs = yardsticks(case.records, case.n_clusters)
        found.append(
            Measured(name_of(case), case.records, case.n_clusters, costs, (EPSILON,))
        )
    yield table_of(found)


PAGES = {"clients": clients, "sizes": sizes, "feddp": feddp, "ranges": ranges}


# --------------------------------------------------------------------------- columns


class Row(NamedTuple):
    """A line of a table of yardsticks, by its headings."""

    cells: dict[str, str]

    def number(self, heading: str) -> float | None:
        """Return a number, or ``None`` if there is none."""
        text = self.cells.get(heading, "")
        return float(text.replace(",", "")) if text else None


def filled(page: str) -> str:
    """Return a page whose columns of lost gains follow from its other columns."""
    known: dict[str, Row] = {}
    head: list[str] = []
    lines = []
    for line in page.split("\n"):
        if not line.startswith("|"):
            head = []
        elif not head:
            head = cells_of(line)
            if head[:2] == ["set", "one cluster"]:
                known = {}
        elif not set(line) <= set("|-: "):
            cells = cells_of(line)
            if head[:2] == ["set", "one cluster"]:
                known[cells[0]] = Row(dict(zip(head, cells, strict=True)))
            elif any(column_beside(name) for name in head):
                line = "| " + " | ".join(beside(head, cells, known)) + " |"
        lines.append(line)
    return "\n".join(lines)


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def beside(head: list[str], cells: list[str], known: dict[str, Row]) -> list[str]:
    """Return a line whose cells of lost gains are those of its other cells."""
    named = dict(zip(head, cells, strict=True))
    found = []
    for name, cell in named.items():
        column = column_beside(name)
        if column is not None:
            cell = lost_of(column, named, known[key_of(column, named, known)])
        found.append(cell)
    return found


def column_beside(name: str) -> str | None:
    """Return the column from which one of lost gains follows, or ``None`` for another one."""
    if name == OF_FEDDP:
        return "cost / optimum"
    if name.startswith(lost_gain.MARK):
        return name.removeprefix(lost_gain.MARK)
    return None


def key_of(column: str, named: dict[str, str], known: dict[str, Row]) -> str:
    """Return the name of a line's data set."""
    first = next(iter(named))
    # A column or a whole table may be of one set.
    for name in (column, first):
        if name in known:
            return name
    places = [named[heading] for heading in KEYS if heading in named]
    key = places[0].removesuffix(" (tuned on)")
    key = re.sub(r"^\d missing$", "mixture", key)
    if MANY in named.values():
        return f"{key}, {MANY}"
    bounded = f"{key}, {named.get('bounds')}"
    return bounded if bounded in known else key


def lost_of(column: str, named: dict[str, str], row: Row) -> str:
    """Return the lost gain of a cell as text, and the ratio to the floor."""
    cell = named[column]
    found = _IN_BRACKETS.search(cell) if "bounds" in named else _NUMBER.search(cell)
    if found is None:
        return ""
    value = float(found[len(found.groups())].replace(",", ""))
    kmeans = row.number("k-means")
    ratio = value / (kmeans or 1.0)
    one = row.number("one cluster") or math.nan
    floor = None
    words = " ".join(named.values()).lower()
    if not any(word in words for word in WITHOUT_FLOOR):
        epsilon = column.removeprefix("eps ")
        if not column.startswith("eps "):
            epsilon = named.get("epsilon", "1")
        floor = row.number(f"floor, eps {epsilon}")
    lost = (ratio - 1) / (one - 1)
    if kmeans is None:
        return lost_gain.text(ratio, lost, floor)
    return lost_gain.whole(ratio, lost, floor)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the yardsticks of a page, or fill its columns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", choices=[*PAGES])
    parser.add_argument("--data-dir", type=Path, help="directory of NAME.npz files")
    parser.add_argument("--write", action="store_true", help="fill the page's columns")
    options = parser.parse_args(arguments)
    path = ROOT / "docs" / "tables" / f"{options.page}.md"
    if options.write:
        path.write_text(filled(path.read_text("utf-8")), "utf-8")
        return
    sys.path.append(str(SIMULATIONS))
    for table in PAGES[options.page](Options(1, data_dir=options.data_dir)):
        print(table, end="\n\n", flush=True)


if __name__ == "__main__":
    main()
