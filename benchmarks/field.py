"""The field's benchmark: private clusterings of single records at equal (epsilon, delta).

    python -m benchmarks.field --data-dir DIR --rows benchmarks/field_rows.csv
    python -m benchmarks.field --method FILE.py:NAME --data blobs_16_16 --epsilons 1
    python -m benchmarks.field --reference CHECKOUT --methods DP-LSH
    python -m benchmarks.field --page docs/tables/field.md

Every run is checked by the project's accountant first: the releases of a method must
together be (epsilon, delta)-differentially private, with delta = N^-1.1. Records are in
the unit ball: centred and scaled by their largest length, which is not private, as in
PE-means' protocol; or divided by their lengths (``made_N_D``, see ``embeddings.py``).

Rows of the file ``--rows`` are not measured again. ``--page`` writes their tables
between the two marks of a page. Without ``--rows`` the tables are printed.
"""

import argparse
import csv
import math
import subprocess
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np
from embeddings import cost, load
from scipy.stats import gmean

from baselines import METHODS, Method, Problem, checked_plan, loaded
from baselines.lsh_reference import reference_method
from bench import data as sets
from bench.tables import markdown
from bench.yardsticks import Yardsticks, fewest_records, floor, yardsticks
from flower_kmeans.arrays import FloatArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.calibration import mu_of_budget

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks" / "field_rows.csv"
EPSILONS = (0.25, 1.0, 4.0)
RUNS = 3

TUNING = (
    *("iris", "birch2", *(f"g2mg_{d}_30" for d in (2, 4, 16, 128))),
    *(f"blobs_{k}_{d}" for d in (4, 16, 64, 128) for k in (4, 16, 64)),
    "made_8000_256",
)
"""Sets on which constants of a method may be chosen."""
HELD_OUT = ("s1", "breast", "adult", "made_16000_384", "made_24000_768")
"""Sets on which no constant is chosen."""

# Rows without privacy.
KMEANS = "k-means"
ONE_CLUSTER = "one cluster"
FLOOR = "floor"
_YARDSTICKS = (KMEANS, ONE_CLUSTER, FLOOR)
_STARTS = 10

_BEGIN = "<!-- Tables: python -m benchmarks.field --page docs/tables/field.md -->"
_END = "<!-- End of tables -->"


@dataclass(frozen=True)
class Row:
    """One measured run. ``cost`` is a mean squared distance, ``seconds`` of one processor."""

    data: str
    method: str
    epsilon: float | None
    run: int
    cost: float
    seconds: float
    date: str
    commit: str

    @property
    def key(self) -> tuple[str, str, float | None, int]:
        """What the row is of."""
        return self.data, self.method, self.epsilon, self.run


# ------------------------------------------------------------------------- measuring


@lru_cache(maxsize=1)
def records_of(name: str, folder: Path | None) -> tuple[FloatArray, int]:
    """Return the records of a set, (n, d), in the unit ball, and the number of clusters."""
    if name.startswith("made_"):
        vectors = load(name, Path())
        return vectors.records, vectors.n_clusters
    data = sets.load(name, folder)
    return sets.to_unit_ball(data.records), data.n_clusters


def problem_of(records: FloatArray, n_clusters: int, epsilon: float) -> Problem:
    """Return the public numbers of a run, with delta = N^-1.1."""
    n, d = records.shape
    return Problem(n, d, n_clusters, epsilon, n**-1.1)


def measured(
    method: Method, name: str, records: FloatArray, problem: Problem, run: int
) -> Row:
    """Return the row of one private run, after the check of its guarantee."""
    checked_plan(method, problem)
    seed = [run, zlib.crc32(f"{name} {problem.epsilon}".encode())]
    rng = np.random.default_rng(seed)
    given = (problem.n_clusters, problem.epsilon, problem.delta)
    started = time.process_time()
    centroids = method.fit(records, *given, rng)
    seconds = time.process_time() - started
    if not np.isfinite(centroids).all() or len(centroids) > problem.n_clusters:
        raise ConfigurationError(
            f"Expected at most {problem.n_clusters} finite centroids of {method.name!r}. "
            f"Got {centroids.shape} instead."
        )
    found = cost(records, centroids)
    return new_row(name, method.name, problem.epsilon, run, found, seconds)


def new_row(
    name: str,
    method: str,
    epsilon: float | None,
    run: int,
    found: float,
    seconds: float,
) -> Row:
    """Return a row with the date and the commit of today."""
    today = date.today().isoformat()
    return Row(name, method, epsilon, run, found, round(seconds, 3), today, commit())


@lru_cache(maxsize=1)
def commit() -> str:
    """Return the short name of the checkout's commit, or nothing outside of one."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def yardstick_rows(
    name: str,
    records: FloatArray,
    n_clusters: int,
    epsilons: Sequence[float],
    known: set[tuple[str, str, float | None, int]],
) -> Iterator[Row]:
    """Yield the rows without privacy that are not known. NOT PRIVATE."""
    if (name, KMEANS, None, 0) not in known:
        started = time.process_time()
        best = yardsticks(records, n_clusters, _STARTS)
        seconds = time.process_time() - started
        yield new_row(name, KMEANS, None, 0, best.kmeans, seconds / _STARTS)
        yield new_row(name, ONE_CLUSTER, None, 0, best.one_cluster, 0.0)
    for epsilon in epsilons:
        if (name, FLOOR, epsilon, 0) not in known:
            problem = problem_of(records, n_clusters, epsilon)
            mu = mu_of_budget(problem.epsilon, problem.delta)
            fewest = fewest_records(problem.n_features, mu)
            started = time.process_time()
            found = floor(records, n_clusters, fewest, _STARTS)
            seconds = time.process_time() - started
            yield new_row(name, FLOOR, epsilon, 0, found, seconds)


def measure(
    names: Sequence[str],
    methods: Sequence[Method],
    epsilons: Sequence[float],
    runs: int,
    folder: Path | None,
    known: set[tuple[str, str, float | None, int]],
) -> Iterator[Row]:
    """Yield every row that is not known, one data set after the other."""
    for name in names:
        records, n_clusters = records_of(name, folder)
        yield from yardstick_rows(name, records, n_clusters, epsilons, known)
        for method in methods:
            if not method.applies(records.shape[1]):
                continue
            for epsilon in epsilons:
                problem = problem_of(records, n_clusters, epsilon)
                for run in range(runs):
                    if (name, method.name, epsilon, run) not in known:
                        yield measured(method, name, records, problem, run)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; none if there is no file."""
    if not path.is_file():
        return []
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            epsilon = float(cells["epsilon"]) if cells["epsilon"] else None
            row = Row(
                cells["data"],
                cells["method"],
                epsilon,
                int(cells["run"]),
                float(cells["cost"]),
                float(cells["seconds"]),
                cells["date"],
                cells["commit"],
            )
            rows.append(row)
    return rows


def append_row(path: Path, row: Row) -> None:
    """Write a row at the end of a file."""
    is_new = not path.is_file()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [field.name for field in fields(Row)]
        if is_new:
            writer.writerow(names)
        values = {name: getattr(row, name) for name in names}
        values["epsilon"] = "" if row.epsilon is None else f"{row.epsilon:g}"
        values["cost"] = f"{row.cost:.8g}"
        writer.writerow(values.values())


# ---------------------------------------------------------------------------- tables


class Results:
    """Rows by data set, method and epsilon."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._costs: dict[tuple[str, str, float | None], list[float]] = defaultdict(
            list
        )
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.n_runs: dict[str, int] = defaultdict(int)
        self.names: list[str] = []
        self.methods: list[str] = []
        for row in rows:
            self._costs[row.data, row.method, row.epsilon].append(row.cost)
            if row.data not in self.names:
                self.names.append(row.data)
            if row.method not in _YARDSTICKS:
                self.seconds[row.data, row.method].append(row.seconds)
                self.n_runs[row.method] = max(self.n_runs[row.method], row.run + 1)
                if row.method not in self.methods:
                    self.methods.append(row.method)

    def costs(self, name: str, method: str, epsilon: float | None) -> list[float]:
        """Return the costs of all runs."""
        return self._costs.get((name, method, epsilon), [])

    def one(self, name: str, method: str, epsilon: float | None = None) -> float:
        """Return the cost of a yardstick."""
        (found,) = self.costs(name, method, epsilon)
        return found

    def yardsticks(self, name: str) -> Yardsticks:
        """Return the yardsticks of a data set."""
        return Yardsticks(self.one(name, KMEANS), self.one(name, ONE_CLUSTER))

    def mean(self, name: str, method: str, epsilon: float) -> float:
        """Return the mean cost, or NaN without runs."""
        found = self.costs(name, method, epsilon)
        return float(np.mean(found)) if found else math.nan

    def best(self, name: str, epsilon: float) -> float:
        """Return the least mean cost of all methods."""
        means = [self.mean(name, method, epsilon) for method in self.methods]
        return float(np.nanmin(means))

    def of(self, names: Sequence[str]) -> list[str]:
        """Return those data sets that have rows, in the given order."""
        return [name for name in names if name in self.names]


def leaderboard(
    results: Results,
    names: Sequence[str],
    epsilons: Sequence[float],
    sees: Mapping[str, str],
) -> str:
    """Return a table with a row for each method, over data sets."""
    at = "at ε = " + ", ".join(f"{epsilon:g}" for epsilon in epsilons)
    head = ["method", "sets", "runs", f"ratio to k-means {at}", "ratio to the floor"]
    head += ["lost gain", "best in", "seconds", "who sees what"]
    lines = []
    for method in results.methods:
        own = [n for n in names if results.costs(n, method, epsilons[0])]
        if not own:
            continue
        ratios = []
        floors = []
        gains = []
        n_best = 0
        for epsilon in epsilons:
            means = {name: results.mean(name, method, epsilon) for name in own}
            by_kmeans = [results.yardsticks(n).ratio(means[n]) for n in own]
            by_floor = [means[n] / results.one(n, FLOOR, epsilon) for n in own]
            lost = [results.yardsticks(n).lost_gain(means[n]) for n in own]
            ratios.append(shown(float(gmean(by_kmeans))))
            floors.append(shown(float(gmean(by_floor))))
            gains.append(shown(float(np.mean(lost))))
            n_best += sum(means[n] <= results.best(n, epsilon) for n in own)
        taken = [s for name in own for s in results.seconds[name, method]]
        seconds = f"{np.median(taken):.2g}"
        cells = [method, str(len(own)), str(results.n_runs[method])]
        cells += [", ".join(scores) for scores in (ratios, floors, gains)]
        cells += [f"{n_best} of {len(own) * len(epsilons)}", seconds]
        lines.append([*cells, sees.get(method, "")])
    return markdown(head, lines)


def shown(value: float) -> str:
    """Return a number with three decimals, or fewer where it is large."""
    if math.isnan(value):
        return ""
    if value < 10:
        return f"{value:.3f}"
    return f"{value:.3g}"


def by_set(results: Results, names: Sequence[str], epsilon: float, value: str) -> str:
    """Return a table with a row for each data set, and a column for each method.

    ``value`` is "ratio" or "lost gain". The least is bold.
    """
    methods = [
        m for m in results.methods if any(results.costs(n, m, epsilon) for n in names)
    ]
    lines = []
    for name in names:
        known = results.yardsticks(name)
        score = known.ratio if value == "ratio" else known.lost_gain
        cells = [name]
        if value == "ratio":
            cells.append(shown(score(results.one(name, FLOOR, epsilon))))
        for method in methods:
            scores = [score(each) for each in results.costs(name, method, epsilon)]
            cell = shown(float(np.mean(scores))) if scores else ""
            if len(scores) > 1 and value == "lost gain":
                cell += f" ± {np.std(scores, ddof=1) / math.sqrt(len(scores)):.3f}"
            if scores and results.mean(name, method, epsilon) <= results.best(
                name, epsilon
            ):
                cell = f"**{cell}**"
            cells.append(cell)
        lines.append(cells)
    floors = ["the floor"] if value == "ratio" else []
    return markdown(["data", *floors, *methods], lines)


def tables_of(rows: Sequence[Row], sees: Mapping[str, str]) -> str:
    """Return all tables of rows."""
    results = Results(rows)
    epsilons = sorted({row.epsilon for row in rows if row.epsilon is not None})
    others = [n for n in results.names if n not in (*TUNING, *HELD_OUT)]
    groups = {"Held out": HELD_OUT, "Tuning": TUNING, "Other sets": others}
    parts = []
    for title, given in groups.items():
        names = results.of(given)
        if names:
            parts.append(f"**{title}** ({len(names)} sets):")
            parts.append(leaderboard(results, names, epsilons, sees))
    wide = [name for name in results.names if name.startswith("made_")]
    for epsilon in epsilons:
        if wide:
            parts.append(
                f"Lost gain on embeddings at ε = {epsilon:g}, with standard errors:"
            )
            parts.append(by_set(results, wide, epsilon, "lost gain"))
    for epsilon in epsilons:
        parts.append(f"Ratio to k-means at ε = {epsilon:g}:")
        parts.append(by_set(results, results.names, epsilon, "ratio"))
    dates = sorted({row.date for row in rows})
    commits = sorted({row.commit for row in rows})
    parts.append(
        f"Measured from {dates[0]} to {dates[-1]}, with the library of the commits "
        f"{', '.join(commits)}."
    )
    return "\n\n".join(parts)


def written(page: str, tables: str) -> str:
    """Return a page with new tables between its two marks."""
    before, _, rest = page.partition(_BEGIN)
    _, mark, after = rest.partition(_END)
    if not mark:
        raise ConfigurationError(
            f"Expected a page with the marks {_BEGIN!r} and {_END!r}. Got one without."
        )
    return f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{after}"


def chosen_methods(options: argparse.Namespace) -> list[Method]:
    """Return the methods of the command line."""
    methods = []
    for name in options.methods:
        if name not in METHODS:
            raise ConfigurationError(
                f"Expected methods of {', '.join(METHODS)}. Got {name!r} instead."
            )
        methods.append(METHODS[name])
    methods += [loaded(given) for given in options.method]
    if options.reference is not None:
        methods.append(reference_method(options.reference))
    return methods


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="folder of data files")
    parser.add_argument("--data", nargs="+", default=[*TUNING, *HELD_OUT])
    parser.add_argument("--methods", nargs="*", default=[*METHODS])
    parser.add_argument("--method", action="append", default=[], help="FILE.py:NAME")
    parser.add_argument("--reference", type=Path, help="checkout of DP-LSH's code")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[*EPSILONS])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rows", type=Path, help="csv file to read and to extend")
    parser.add_argument("--page", type=Path, help="write tables of rows into this page")
    options = parser.parse_args(arguments)
    methods = chosen_methods(options)
    sees = {method.name: method.sees for method in (*METHODS.values(), *methods)}
    if options.page is not None:
        rows = read_rows(options.rows or ROWS)
        page = options.page.read_text("utf-8")
        options.page.write_text(written(page, tables_of(rows, sees)), "utf-8")
        return
    rows = [] if options.rows is None else read_rows(options.rows)
    known = {row.key for row in rows}
    given = (options.epsilons, options.runs, options.data_dir, known)
    for row in measure(options.data, methods, *given):
        rows.append(row)
        if options.rows is not None:
            append_row(options.rows, row)
    if options.rows is None:
        print(tables_of(rows, sees))


if __name__ == "__main__":
    main()
