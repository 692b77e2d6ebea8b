"""FedDP-KMeans against other starts, on populations that clients and a server share.

    python simulations/feddp/experiments.py record --runs 3 python
    simulations/feddp/experiments.py client --runs 2 python
    simulations/feddp/experiments.py missing --epsilons 1 --runs 3 python
    simulations/feddp/experiments.py data python simulations/feddp/experiments.py data
    --data FILE --client-column NAME --bounds 0 1 \
        --clusters 10 --label NAME

record: 10 Gaussians in 100 columns, variance 0.5, means uniform in [0, 1]^100, 100
clients of 1,000 records each, drawn independently. client: the same with 50 records
each, and whole clients protected. missing: as record, but the server has no points of
some components. data: records whose clients differ by themselves, scikit-learn's digits
or a file with a column of clients. folktables, stackoverflow: populations of these
shapes (`federated`), from a file or made up.

The server owns 20 points of each component and 100 that are uniform in [0, 1]^100.
Methods: FedDP-KMeans; SynopsisKMeans and PE-means (HDPE-means beyond 16 columns), which
do not need the server's points; DP-Lloyd (GLloyd) from sphere packing, from k-means++
on the server's points, and from k-means on them; k-FED and the best clustering (k-means
on all records from the true means), which are NOT PRIVATE. Every private clustering is
a whole run of a strategy through ``simulate``, and all have the same public domain.
Where whole clients are protected, FedDP-KMeans takes its clips from the server's
points, as by default, SynopsisKMeans and PE-means have the library's defaults, and
DP-Lloyd the one that was best of a few.

Written to ``--output``: runs.csv, one row a run of any table, from which an experiment
goes on (rows of a file of the same name with other contents, bounds or clusters are
refused); the table as record.md and so on; feddp.png, a panel for each experiment; and
what `bench` writes.
"""

import argparse
import hashlib
import logging
import math
import sys
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# `bench`, which runs suites, is not installed.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from federated import READERS, STACKOVERFLOW, name_of, population_of
from outcomes import (
    FEDDP,
    K_FED,
    LLOYD,
    MEASURES,
    METHODS,
    NOT_PRIVATE,
    OPTIMUM,
    PE,
    PLUS_PLUS,
    SYNOPSIS,
    Task,
    plot,
    table_of,
)
from populations import Mixture, Population, digits, from_file
from sklearn.cluster import KMeans
from sklearn.metrics import (
    adjusted_rand_score,
    fowlkes_mallows_score,
    normalized_mutual_info_score,
    pairwise_distances_argmin,
)
from sklearn.metrics.cluster import contingency_matrix

from bench.harness import Options, Row, Suite
from bench.runner import execute
from bench.yardsticks import Yardsticks
from flower_kmeans import PrivacyBudget, simulate
from flower_kmeans.algorithms.numerics.initialization import (
    public_generator,
    server_kmeans_plus_plus,
    server_lloyd,
)
from flower_kmeans.arrays import FloatArray
from flower_kmeans.errors import KMeansError
from flower_kmeans.metrics import inertia
from flower_kmeans.report.report import Report
from flower_kmeans.strategies import (
    FedDPKMeans,
    GLloyd,
    HDPEMeans,
    KFed,
    KMeansStrategy,
    PEMeans,
    SynopsisKMeans,
)

EPSILONS = (0.25, 0.5, 1.0, 2.0, 5.0)
TRUSTS = ("trusted-server", "distributed-noise")
SUMS = ("auto", "absolute", "relative", "narrowing")
PROJECTED = 16
"""Columns beyond which PE-means' paper recommends HDPE-means."""
MIN_WEIGHT = 5.0
"""Of FedDP-KMeans: the same for all noise, as in all tables of these experiments."""
LLOYD_CLIP = 20.0
"""Of 5, 7, 10, 14, 20, 30 the best for DP-Lloyd with 50 records a client (docs/tables/feddp.md)."""


@dataclass(frozen=True)
class Setting:
    """What is the same for all runs of a table."""

    table: str
    unit: Literal["record", "client"] = "record"
    trust: str = TRUSTS[0]
    # Of FedDP-KMeans where whole clients are protected; None takes clips from the
    # server's points.
    clip: float | None = None
    clips: tuple[tuple[str, float], ...] = ()  # of single releases
    contribution: Literal["sums", "means"] = "sums"
    sums: Literal["auto", "absolute", "relative", "narrowing"] = "auto"
    # Of DP-Lloyd; None takes the library's rules.
    lloyd_clip: float | None = None
    lloyd_rounds: int | None = None
    methods: tuple[str, ...] = METHODS

    @property
    def variant(self) -> str:
        """Return what distinguishes the runs of this setting in a file."""
        words = [self.trust]
        if self.unit == "client":
            words.append(
                "clips default" if self.clip is None else f"clip {exact(self.clip)}"
            )
            words.append(self.contribution)
            words += [f"{name} {exact(value)}" for name, value in self.clips]
        if self.sums != "auto":
            words.append(self.sums)
        if self.lloyd_clip is not None:
            words.append(f"DP-Lloyd's clip {exact(self.lloyd_clip)}")
        if self.lloyd_rounds is not None:
            words.append(f"DP-Lloyd of {self.lloyd_rounds} rounds")
        return ", ".join(words)


def exact(value: float) -> str:
    """Return a short text of a number, that of no other."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


# --------------------------------------------------------------------------- methods


def strategy_of(
    method: str, population: Population, setting: Setting, epsilon: float, run: int
) -> KMeansStrategy:
    """Return the strategy of a private method."""
    options: dict[str, Any] = {
        "n_clusters": population.n_clusters,
        "domain": population.domain,
        "privacy": PrivacyBudget(epsilon, unit=setting.unit),
        "n_records": population.n_records,
        "n_clients": len(population.partitions),
        "trust": setting.trust,
        "seed": run,
    }
    if method == SYNOPSIS:
        return SynopsisKMeans(**options)
    if method == PE:
        made = HDPEMeans if population.domain.n_features > PROJECTED else PEMeans
        return made(**options)
    if method == FEDDP:
        of_clients = {"clip": setting.clip, "clips": dict(setting.clips) or None}
        options |= {"contribution": setting.contribution, "sums": setting.sums}
        options |= {"min_weight": MIN_WEIGHT}
        return FedDPKMeans(server_data=population.server_data, **of_clients, **options)
    start = {PLUS_PLUS: server_kmeans_plus_plus, LLOYD: server_lloyd}.get(method)
    if start is not None:
        rng = public_generator(run, 0)
        options["initial"] = start(population.server_data, population.n_clusters, rng)
    given = {"n_rounds": setting.lloyd_rounds, "clip": setting.lloyd_clip}
    return GLloyd(**options, **{name: x for name, x in given.items() if x is not None})


def optimum(population: Population, run: int) -> FloatArray:
    """Return k-means on all records, from the true means or the best of ten starts."""
    start = (
        {"n_init": 10}
        if population.means is None
        else {"init": population.means, "n_init": 1}
    )
    model = KMeans(population.n_clusters, **start, random_state=run)
    return np.asarray(model.fit(np.concatenate(population.partitions)).cluster_centers_)


def clustered(
    method: str, population: Population, setting: Setting, epsilon: float, run: int
) -> tuple[FloatArray, Report | None]:
    """Return a method's centroids, and its report where it has one."""
    if method == OPTIMUM:
        return optimum(population, run), None
    if method == K_FED:
        model = KFed(population.n_clusters)
        return model.fit(population.partitions, np.random.default_rng(run)), None
    strategy = strategy_of(method, population, setting, epsilon, run)
    clustering = simulate(strategy, population.partitions)
    return clustering.centroids, clustering.report


def majority_accuracy(classes: NDArray[Any], found: NDArray[np.int64]) -> float:
    """Return the fraction of records whose class is the most frequent one of their cluster."""
    return int(contingency_matrix(classes, found).max(axis=0).sum()) / len(classes)


def agreement(
    classes: NDArray[Any] | None, found: NDArray[np.int64]
) -> dict[str, float]:
    """Return accuracy, ARI, FMI and NMI; nan without classes."""
    measures = {
        "accuracy": majority_accuracy,
        "ari": adjusted_rand_score,
        "fmi": fowlkes_mallows_score,
        "nmi": normalized_mutual_info_score,
    }
    if classes is None:
        return dict.fromkeys(measures, math.nan)
    return {name: float(measure(classes, found)) for name, measure in measures.items()}


# --------------------------------------------------------------------------- runs


def tasks_of(
    options: Options, source: "Source", setting: Setting, epsilons: Sequence[float]
) -> Iterator[Task]:
    """Yield every run: what is not private does not depend on the variant and epsilon."""
    known = [method for method in setting.methods if method in NOT_PRIVATE]
    private = [method for method in setting.methods if method not in NOT_PRIVATE]
    for run in range(options.runs):
        for name in source.names:
            for method in known:
                yield Task(setting.table, name, "", method, 0.0, run)
            for epsilon in epsilons:
                for method in private:
                    yield Task(
                        setting.table, name, setting.variant, method, epsilon, run
                    )


@lru_cache(maxsize=1)
def drawn(
    source: "Source", name: str, run: int
) -> tuple[Population, FloatArray, Yardsticks]:
    """Return a population, its records together, and the costs per record without privacy."""
    population = source.draw(name, run)
    pooled = np.concatenate(population.partitions)
    best = inertia(pooled, optimum(population, run)) / len(pooled)
    one = inertia(pooled, pooled.mean(axis=0, keepdims=True)) / len(pooled)
    return population, pooled, Yardsticks(best, one)


def measure(
    task: Task, options: Options, source: "Source", setting: Setting
) -> dict[str, Any]:
    """Return what one run gave."""
    population, pooled, costs = drawn(source, task.population, task.run)
    started = time.perf_counter()
    centroids, report = clustered(
        task.method, population, setting, task.epsilon, task.run
    )
    seconds, cost = (
        time.perf_counter() - started,
        inertia(pooled, centroids) / len(pooled),
    )
    found: dict[str, Any] = {
        "ratio": costs.ratio(cost),
        "lost": costs.lost_gain(cost),
        "cost": cost,
        "seconds": round(seconds, 2),
    }
    found |= agreement(population.classes, pairwise_distances_argmin(pooled, centroids))
    if report is None:
        n_clients = len(population.partitions)
        found |= {
            "trust": "none",
            "unit": "none",
            "clip": "",
            "notes": "",
            "noise_factor": 1.0,
        }
        found |= {"n_clients": n_clients, "min_clients": n_clients, "n_rounds": 0}
        return found | {"epsilon_told": math.nan, "delta": math.nan}
    copied = ("trust", "unit", "n_clients", "min_clients", "noise_factor", "n_rounds")
    return found | {
        **{name: getattr(report, name) for name in copied},
        "clip": clip_told(report, task.method, setting),
        "epsilon_told": float(report.epsilon or math.nan),
        "delta": float(report.delta or math.nan),
        "notes": " ".join(report.warnings),
    }


def clip_told(report: Report, method: str, setting: Setting) -> str:
    """Return the clip of a run as a table shows it; those of the server's points differ by run."""
    if report.clip is None:
        return ""
    if method == FEDDP and setting.clip is None:
        return "by release from the server's points"
    return (
        f"{report.clip:g}"
        if set(report.clips.values()) <= {report.clip}
        else report.clip_text
    )


# --------------------------------------------------------------------------- suite


@dataclass(frozen=True)
class Source:
    """The populations of a table, from the options of a command."""

    table: str
    quick: bool = False
    clients: tuple[int, ...] = (1000, 2000, 5000)
    missing: tuple[int, ...] = tuple(range(6))
    data: Path | None = None
    client_column: str = ""
    label: str | None = None
    bounds: tuple[float, ...] = ()
    clusters: int = 10
    server_clients: int = 1

    @property
    def names(self) -> list[str]:
        """Return the names of the populations of each run."""
        if self.table in READERS:
            return [name_of(self.table, self.data)]
        if self.table == "data":
            return ["digits" if self.data is None else self.data.stem]
        names = {
            "record": ["mixture"],
            "client": [f"{n} clients" for n in self.clients],
            "missing": [f"{n} missing" for n in self.missing],
        }[self.table]
        return [f"{name} (quick)" for name in names] if self.quick else names

    @property
    def known(self) -> dict[str, dict[str, str]]:
        """Return what distinguishes populations of one name."""
        if self.data is not None and not self.data.is_file():
            return {}
        if self.table in READERS and self.data is not None:
            with self.data.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {self.data.stem: {"sha256": digest}}
        if self.table != "data":
            return {}
        if self.data is None:
            return {"digits": {"file": "scikit-learn's digits"}}
        with self.data.open("rb") as file:
            facts = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        facts |= {"client-column": self.client_column, "label": self.label or ""}
        facts |= {
            "bounds": " ".join(map(exact, self.bounds)),
            "clusters": str(self.clusters),
        }
        return {self.data.stem: facts | {"server-clients": str(self.server_clients)}}

    def draw(self, name: str, run: int) -> Population:
        """Return a population of a run."""
        if self.table in READERS:
            return population_of(self.table, self.data, run)
        if self.table == "data":
            if self.data is None:
                return digits()
            sizes = {
                "n_clusters": self.clusters,
                "n_server_clients": self.server_clients,
            }
            columns = {"label": self.label, "bounds": self.bounds}
            return from_file(self.data, self.client_column, **columns, **sizes)
        full = Mixture(100, 1000)
        if self.quick:
            full = Mixture(8, 250, d=10, variance=0.005, n_uniform=20)
        number = name.partition(" ")[0]
        if self.table == "client":
            full = replace(full, n_clients=int(number), records_each=50)
        elif self.table == "missing":
            full = replace(full, n_missing=int(number))
        return full.draw(name, run)


def asked(rows: Sequence[Row], tasks: Container[Task]) -> list[Row]:
    """Return the rows of some tasks."""
    names = [each.name for each in fields(Task)]
    return [row for row in rows if Task(**{name: row[name] for name in names}) in tasks]


def suite_of(source: Source, setting: Setting, epsilons: Sequence[float]) -> Suite:
    """Return the suite of a table. A file of rows may hold several; each command shows its own."""
    tasks = partial(tasks_of, source=source, setting=setting, epsilons=epsilons)
    return Suite(
        "feddp",
        "FedDP-KMeans against other starts, on populations that clients and a server share: cost "
        "over the least one and agreement with the classes, exact figures for whoever holds all "
        "records; means and 95% intervals.",
        Task,
        MEASURES,
        tasks,
        partial(measure, source=source, setting=setting),
        lambda rows, options: table_of(asked(rows, set(tasks(options)))),
        {"feddp": lambda rows, options: plot(rows)},
        runs=3,
        sources=source.known,
    )


# --------------------------------------------------------------------------- command


def clip_of(text: str) -> tuple[str, float]:
    """Return a release and its clip from ``release=clip``."""
    name, _, value = text.partition("=")
    return name, float(value)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; an option that the table does not depend on is an error."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("table", choices=("record", "client", "missing", "data", *READERS))
    add("--runs", type=int, default=3, help="each with its own records and noise")
    add("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    every = "default: all; in the table missing, those that take the server's points"
    add("--methods", nargs="+", choices=METHODS, metavar="NAME", help=every)
    add("--lloyd-rounds", type=int, help="rounds of DP-Lloyd (the papers' rule)")
    add("--sums", choices=SUMS, default="auto", help="of FedDP-KMeans")
    add("--trust", choices=TRUSTS, default=TRUSTS[0])
    add("--output", type=Path, default=Path("build/feddp"))
    add("--jobs", type=int, help="processes (default: one per core)")
    add("--redraw", action="store_true", help="show the runs of --output")
    add("--quick", action="store_true", help="small populations, for tests")
    add(
        "--unit",
        choices=("record", "client"),
        help="whom to protect (default: the table's)",
    )
    add = parser.add_argument_group("whole clients").add_argument
    add("--clients", type=int, nargs="+", help="default: 1000 2000 5000")
    add(
        "--clip",
        type=float,
        help="FedDP-KMeans: records' worth of a client (default: its own)",
    )
    add("--clips", nargs="+", type=clip_of, metavar="RELEASE=CLIP", help="FedDP-KMeans")
    lloyd = (
        f"DP-Lloyd (default: {LLOYD_CLIP:g} in the table client, else the library's)"
    )
    add("--lloyd-clip", type=float, help=lloyd)
    add("--contribution", choices=("sums", "means"), help="default: sums")
    parser.add_argument_group("missing").add_argument("--missing", type=int, nargs="+")
    add = parser.add_argument_group("data").add_argument
    add("--data", type=Path, help="csv, npy, npz or parquet (default: digits)")
    add("--client-column", help="column that names a record's client")
    add("--label", help="column with classes")
    add("--bounds", type=float, nargs=2, help="public bounds of all features")
    add("--clusters", type=int, help="default: 10")
    add("--server-clients", type=int, help="that the server owns (default: 1)")
    options = parser.parse_args(arguments)
    of_whole_clients = options.table in ("client", STACKOVERFLOW)
    options.unit = options.unit or ("client" if of_whole_clients else "record")
    is_plain_file = options.table == "data" and options.data is not None
    if is_plain_file and (options.client_column is None or options.bounds is None):
        parser.error("--data needs --client-column and --bounds.")
    of_files = ("client_column", "label", "bounds", "clusters", "server_clients")
    of_clients = ("clip", "clips", "lloyd_clip", "contribution")
    for names, is_used, where in (
        (of_clients, options.unit == "client", "--unit client"),
        (("clients",), options.table == "client", "the table client"),
        (("missing",), options.table == "missing", "the table missing"),
        (("data",), options.table in ("data", *READERS), "the table data"),
        (of_files, is_plain_file, "--data"),
    ):
        for name in names:
            if not is_used and getattr(options, name) is not None:
                parser.error(f"--{name.replace('_', '-')} is for {where} alone.")
    return options


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Run an experiment, print its table and draw the plot; return its runs."""
    options = options_of(arguments)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    if options.methods is None:
        needless = (SYNOPSIS, PE) if options.table == "missing" else ()
        options.methods = [each for each in METHODS if each not in needless]
    if options.lloyd_clip is None and (options.table, options.unit) == (
        "client",
        "client",
    ):
        options.lloyd_clip = LLOYD_CLIP
    given = {name: value for name, value in vars(options).items() if value is not None}
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
    setting, source = (
        kind(
            **{
                each.name: given[each.name]
                for each in fields(kind)
                if each.name in given
            }
        )
        for kind in (Setting, Source)
    )
    suite, wanted = suite_of(source, setting, options.epsilons), Options(options.runs)
    how = {"arguments": sys.argv, "jobs": options.jobs, "redraw": options.redraw}
    try:
        outcome = execute(suite, wanted, options.output, **how)
    except KMeansError as error:
        sys.exit(f"Error: {error}")
    found = asked(outcome.rows, set(suite.tasks(wanted)))
    (options.output / f"{options.table}.md").write_text(table_of(found) + "\n", "utf-8")
    return found


if __name__ == "__main__":
    # other processes find functions by a module's name
    from experiments import main as of_module

    of_module()
