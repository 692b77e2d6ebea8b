"""FedDP-KMeans against other starts, on populations that clients and a server share.

    python simulations/feddp/experiments.py record --runs 3
    python simulations/feddp/experiments.py client --runs 2
    python simulations/feddp/experiments.py missing --epsilons 1 --runs 3
    python simulations/feddp/experiments.py data
    python simulations/feddp/experiments.py data --data FILE --client-column NAME --bounds 0 1 \
        --clusters 10 --label NAME

record: 10 Gaussians in 100 columns, variance 0.5, means uniform in [0, 1]^100, 100 clients of 1,000
records each, drawn independently. client: the same with 50 records each, and whole clients
protected. missing: as record, but the server has no points of some components. data: records whose
clients differ by themselves, scikit-learn's digits or a file with a column of clients.

The server owns 20 points of each component and 100 that are uniform in [0, 1]^100. Methods:
FedDP-KMeans; SynopsisKMeans and PE-means (HDPE-means beyond 16 columns), which do not need the
server's points; DP-Lloyd (GLloyd) from sphere packing, from k-means++ on the server's points, and
from k-means on them; k-FED and the best clustering (k-means on all records from the true means),
which are NOT PRIVATE. Every private clustering is a whole run of a strategy through ``simulate``,
and all have the same public domain. Where whole clients are protected, FedDP-KMeans takes its clips
from the server's points, as by default, SynopsisKMeans and PE-means have the library's defaults,
and DP-Lloyd the one that was best of a few.

The figures describe the records exactly, as only whoever holds all of them can: they are for
simulations. "server k-means++" starts from points of the server's as they are.

Written to ``--output``: runs.csv, one row a run, from which an interrupted or extended experiment
goes on; the table as record.md and so on, also printed; and feddp.png, a panel for each experiment
in runs.csv.
"""

import argparse
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from outcomes import (
    FEDDP,
    K_FED,
    LLOYD,
    METHODS,
    NOT_PRIVATE,
    OPTIMUM,
    PE,
    PLUS_PLUS,
    SYNOPSIS,
    Outcome,
    append_run,
    key_of,
    plot,
    read_runs,
    table_of,
)
from populations import Mixture, Population, digits, from_file
from sklearn.cluster import KMeans

from flower_kmeans import PrivacyBudget, simulate
from flower_kmeans.baselines import KFed
from flower_kmeans.initialization import public_generator, server_kmeans_plus_plus, server_lloyd
from flower_kmeans.metrics import (
    adjusted_rand_index,
    fowlkes_mallows_index,
    inertia,
    majority_accuracy,
    normalized_mutual_information,
)
from flower_kmeans.privacy.report import Report
from flower_kmeans.strategies import (
    FedDPKMeans,
    GLloyd,
    HDPEMeans,
    KMeansStrategy,
    PEMeans,
    SynopsisKMeans,
)

FloatArray = NDArray[np.float64]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 5.0)
TRUSTS = ("trusted-server", "distributed-noise")
PROJECTED = 16
"""Columns beyond which PE-means' paper recommends HDPE-means."""
LLOYD_CLIP = 20.0
"""Of 5, 7, 10, 14, 20, 30 the best for DP-Lloyd with 50 records a client (docs/benchmarks.md)."""


@dataclass(frozen=True)
class Setting:
    """What is the same for all runs of a table.

    Attributes
    ----------
    table : str
    unit : {"record", "client"}
    trust : str
    clip : float or None
        Of FedDP-KMeans, with ``unit="client"``; by default clips come from the server's points.
    lloyd_clip : float or None
        Of DP-Lloyd, with ``unit="client"``.
    contribution : {"sums", "means"}
        Of FedDP-KMeans, with ``unit="client"``.
    clips : tuple of (str, float)
        Clips of single releases of FedDP-KMeans, with ``unit="client"``.
    sums : {"auto", "absolute", "relative"}
        Of FedDP-KMeans.
    lloyd_rounds : int or None
        Rounds of DP-Lloyd; the library's rule otherwise.
    methods : tuple of str
    """

    table: str
    unit: Literal["record", "client"] = "record"
    trust: str = TRUSTS[0]
    clip: float | None = None
    lloyd_clip: float | None = None
    contribution: Literal["sums", "means"] = "sums"
    clips: tuple[tuple[str, float], ...] = ()
    sums: Literal["auto", "absolute", "relative"] = "auto"
    lloyd_rounds: int | None = None
    methods: tuple[str, ...] = METHODS

    @property
    def variant(self) -> str:
        """Return what tells this setting's runs from others in a file."""
        words = [self.trust]
        if self.unit == "client":
            words.append("clips default" if self.clip is None else f"clip {self.clip:g}")
            words.append(self.contribution)
            words += [f"{name} {value:g}" for name, value in self.clips]
        if self.sums != "auto":
            words.append(self.sums)
        if self.lloyd_clip is not None:
            words.append(f"DP-Lloyd's clip {self.lloyd_clip:g}")
        if self.lloyd_rounds is not None:
            words.append(f"DP-Lloyd of {self.lloyd_rounds} rounds")
        return ", ".join(words)


# --------------------------------------------------------------------------- methods


def options_of(population: Population, setting: Setting, run: int) -> dict[str, Any]:
    """Return what all strategies of a run share: public figures only."""
    return {
        "n_records": population.n_records,
        "n_clients": len(population.partitions),
        "trust": setting.trust,
        "seed": run,
    }


def strategy_of(
    method: str, population: Population, setting: Setting, epsilon: float, run: int
) -> KMeansStrategy:
    """Return the strategy of a private method."""
    k, server_data = population.n_clusters, population.server_data
    common = (k, population.domain, PrivacyBudget(epsilon, unit=setting.unit))
    options = options_of(population, setting, run)
    if method == FEDDP:
        return FedDPKMeans(
            *common,
            server_data=server_data,
            clip=setting.clip,
            contribution=setting.contribution,
            sums=setting.sums,
            clips=dict(setting.clips) or None,
            **options,
        )
    if method == SYNOPSIS:
        return SynopsisKMeans(*common, **options)
    if method == PE:
        made = HDPEMeans if population.domain.n_features > PROJECTED else PEMeans
        return made(*common, **options)
    start = {PLUS_PLUS: server_kmeans_plus_plus, LLOYD: server_lloyd}.get(method)
    if start is not None:
        options["initial"] = start(server_data, k, public_generator(run, 0))
    if setting.lloyd_rounds is not None:
        options["n_rounds"] = setting.lloyd_rounds
    if setting.lloyd_clip is not None:
        options["clip"] = setting.lloyd_clip
    return GLloyd(*common, **options)


def optimum(population: Population, run: int) -> FloatArray:
    """Return k-means on all records, from the true means or the best of ten starts."""
    pooled = np.concatenate(population.partitions)
    means = population.means
    model = KMeans(
        population.n_clusters,
        init="k-means++" if means is None else means,
        n_init=10 if means is None else 1,
        random_state=run,
    )
    return np.asarray(model.fit(pooled).cluster_centers_)


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


def nearest(records: FloatArray, centroids: FloatArray) -> NDArray[np.int64]:
    """Return each record's nearest centroid, (n,)."""
    norms = np.einsum("ij,ij->i", centroids, centroids)
    return np.asarray(np.argmin(norms - 2 * (records @ centroids.T), axis=1))


def agreement(classes: NDArray[Any] | None, found: NDArray[np.int64]) -> dict[str, float]:
    """Return accuracy, ARI, FMI and NMI; nan without classes."""
    measures = {
        "accuracy": majority_accuracy,
        "ari": adjusted_rand_index,
        "fmi": fowlkes_mallows_index,
        "nmi": normalized_mutual_information,
    }
    if classes is None:
        return dict.fromkeys(measures, math.nan)
    return {name: measure(classes, found) for name, measure in measures.items()}


# --------------------------------------------------------------------------- runs


def outcomes_of(
    population: Population,
    setting: Setting,
    epsilons: Sequence[float],
    run: int,
    done: set[tuple[Any, ...]],
) -> Iterator[Outcome]:
    """Yield the runs of one population that are not done yet."""
    tasks = [(method, 0.0) for method in setting.methods if method in NOT_PRIVATE]
    private = [method for method in setting.methods if method not in NOT_PRIVATE]
    tasks += [(method, epsilon) for epsilon in epsilons for method in private]
    todo = [
        (method, epsilon)
        for method, epsilon in tasks
        if key_of(setting.table, population.name, setting.variant, method, epsilon, run) not in done
    ]
    if not todo:
        return
    pooled = np.concatenate(population.partitions)
    n_clients = len(population.partitions)
    best = inertia(pooled, optimum(population, run)) / len(pooled)
    for method, epsilon in todo:
        started = time.perf_counter()
        centroids, report = clustered(method, population, setting, epsilon, run)
        seconds = time.perf_counter() - started
        cost = inertia(pooled, centroids) / len(pooled)
        yield Outcome(
            setting.table,
            population.name,
            setting.variant,
            method,
            epsilon,
            run,
            cost / best,
            cost,
            **agreement(population.classes, nearest(pooled, centroids)),
            trust="none" if report is None else report.trust,
            unit="none" if report is None else report.unit,
            n_clients=n_clients if report is None else report.n_clients,
            min_clients=n_clients if report is None else report.min_clients,
            noise_factor=1.0 if report is None else report.noise_factor,
            clip=clip_told(report, method, setting),
            n_rounds=0 if report is None else report.n_rounds,
            epsilon_told=math.nan if report is None else float(report.epsilon or math.nan),
            delta=math.nan if report is None else float(report.delta or math.nan),
            seconds=round(seconds, 2),
            notes="" if report is None else " ".join(report.notes),
        )


def clip_told(report: Report | None, method: str, setting: Setting) -> str:
    """Return the clip of a run as a table tells it; those of the server's points differ by run."""
    if report is None or report.clip is None:
        return ""
    if method == FEDDP and setting.clip is None:
        return "by release from the server's points"
    return f"{report.clip:g}" if set(report.clips.values()) <= {report.clip} else report.clip_text


def run_all(
    populations: Callable[[int], Iterator[Population]],
    setting: Setting,
    epsilons: Sequence[float],
    runs: int,
    path: Path,
) -> list[Outcome]:
    """Run what the file does not hold yet, and return all that belongs to this table.

    Parameters
    ----------
    populations : callable
        The populations of a run, by its number.
    """
    before = read_runs(path)
    done = {outcome.key for outcome in before}
    wanted: set[tuple[Any, ...]] = set()
    for run in range(runs):
        for population in populations(run):
            for method in setting.methods:
                for epsilon in epsilons:
                    key = (setting.table, population.name, setting.variant, method, epsilon, run)
                    wanted.add(key_of(*key))
            for outcome in outcomes_of(population, setting, epsilons, run, done):
                append_run(path, outcome)
                print(
                    f"{outcome.population}, run {run}, epsilon {outcome.epsilon:g}, "
                    f"{outcome.method}: {outcome.ratio:.4f} ({outcome.seconds:.1f} s)",
                    flush=True,
                )
    return [outcome for outcome in read_runs(path) if outcome.key in wanted]


# --------------------------------------------------------------------------- command line


def populations_of(options: argparse.Namespace) -> Callable[[int], Iterator[Population]]:
    """Return what draws the populations of a run."""
    full = Mixture(100, 1000)
    if options.quick:
        full = Mixture(8, 250, d=10, variance=0.005, n_uniform=20)
    suffix = " (quick)" if options.quick else ""

    def draw(run: int) -> Iterator[Population]:
        if options.table == "record":
            yield full.draw(f"mixture{suffix}", run)
        elif options.table == "client":
            for n_clients in options.clients:
                mixture = replace(full, n_clients=n_clients, records_each=50)
                yield mixture.draw(f"{n_clients} clients{suffix}", run)
        elif options.table == "missing":
            for n_missing in options.missing:
                yield replace(full, n_missing=n_missing).draw(f"{n_missing} missing{suffix}", run)
        elif options.data is None:
            yield digits()
        else:
            yield from_file(
                options.data,
                options.client_column,
                bounds=options.bounds,
                n_clusters=options.clusters,
                n_server_clients=options.server_clients,
                label=options.label,
            )

    return draw


def clip_of(text: str) -> tuple[str, float]:
    """Return a release and its clip from ``release=clip``."""
    name, _, value = text.partition("=")
    return name, float(value)


def parser_of() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("record", "client", "missing", "data"))
    parser.add_argument("--runs", type=int, default=3, help="each with its own records and noise")
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        metavar="NAME",
        help="default: all; in the table missing, those that take the server's points",
    )
    parser.add_argument("--lloyd-rounds", type=int, help="rounds of DP-Lloyd (the papers' rule)")
    parser.add_argument(
        "--sums", choices=("auto", "absolute", "relative"), default="auto", help="of FedDP-KMeans"
    )
    parser.add_argument("--trust", choices=TRUSTS, default=TRUSTS[0])
    parser.add_argument("--output", type=Path, default=Path("build/feddp"))
    parser.add_argument("--quick", action="store_true", help="small populations, for tests")
    parser.add_argument(
        "--unit", choices=("record", "client"), help="whom to protect (default: as the table says)"
    )
    client = parser.add_argument_group("whole clients")
    client.add_argument("--clients", type=int, nargs="+", default=[1000, 2000, 5000])
    client.add_argument(
        "--clip",
        type=float,
        help="FedDP-KMeans: records' worth of a client (default: from the server's points)",
    )
    client.add_argument(
        "--clips", nargs="+", type=clip_of, default=[], metavar="RELEASE=CLIP", help="FedDP-KMeans"
    )
    client.add_argument(
        "--lloyd-clip",
        type=float,
        help=f"DP-Lloyd (default: {LLOYD_CLIP:g} in the table client, else the library's)",
    )
    client.add_argument("--contribution", choices=("sums", "means"), default="sums")
    missing = parser.add_argument_group("missing")
    missing.add_argument("--missing", type=int, nargs="+", default=list(range(6)))
    data = parser.add_argument_group("data")
    data.add_argument("--data", type=Path, help="csv, npy, npz or parquet (default: digits)")
    data.add_argument("--client-column", help="column that names a record's client")
    data.add_argument("--label", help="column with classes")
    data.add_argument("--bounds", type=float, nargs=2, help="public bounds of all features")
    data.add_argument("--clusters", type=int, default=10)
    data.add_argument("--server-clients", type=int, default=1, help="clients that the server owns")
    return parser


def main(arguments: Sequence[str] | None = None) -> list[Outcome]:
    """Run an experiment, print its table and draw the plot; return its runs."""
    parser = parser_of()
    options = parser.parse_args(arguments)
    if options.data is not None and (options.client_column is None or options.bounds is None):
        parser.error("--data needs --client-column and --bounds.")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    needless = (SYNOPSIS, PE) if options.table == "missing" else ()
    setting = Setting(
        options.table,
        trust=options.trust,
        sums=options.sums,
        lloyd_rounds=options.lloyd_rounds,
        methods=tuple(options.methods or (each for each in METHODS if each not in needless)),
    )
    if options.unit == "client" or (options.unit is None and options.table == "client"):
        lloyd_clip = options.lloyd_clip
        if lloyd_clip is None and options.table == "client":
            lloyd_clip = LLOYD_CLIP
        setting = replace(
            setting,
            unit="client",
            clip=options.clip,
            lloyd_clip=lloyd_clip,
            contribution=options.contribution,
            clips=tuple(options.clips),
        )
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "runs.csv"
    draw = populations_of(options)
    outcomes = run_all(draw, setting, options.epsilons, options.runs, path)
    table = table_of(outcomes)
    (options.output / f"{options.table}.md").write_text(table + "\n", "utf-8")
    print(f"\n{table}")
    plot(read_runs(path), options.output / "feddp.png")
    return outcomes


if __name__ == "__main__":
    main()
