"""FedDP-KMeans against other starts, on populations that clients and a server share.

    python simulations/feddp/experiments.py record --runs 3
    python simulations/feddp/experiments.py client --clients 1000 --runs 2
    python simulations/feddp/experiments.py missing --epsilons 1 --runs 3
    python simulations/feddp/experiments.py data
    python simulations/feddp/experiments.py data --data FILE --client-column NAME --bounds 0 1 \
        --clusters 10 --label NAME

record: 10 Gaussians in 100 columns, variance 0.5, means uniform in [0, 1]^100, 100 clients of 1,000
records each, drawn independently. client: the same with 50 records each, and whole clients
protected. missing: as record, but the server has no points of some components. data: records whose
clients differ by themselves, scikit-learn's digits or a file with a column of clients.

The server owns 20 points of each component and 100 that are uniform in [0, 1]^100. Methods:
FedDP-KMeans; DP-Lloyd (GLloyd) from sphere packing, from k-means++ on the server's points, and from
k-means on them; k-FED and the best clustering (k-means on all records from the true means), which
are NOT PRIVATE. Every private clustering is a whole run of a strategy through ``simulate``.

The figures describe the records exactly, as only whoever holds all of them can: they are for
simulations. "server k-means++" starts from points of the server's as they are.

Written to ``--output``: runs.csv, one row a run, from which an interrupted or extended experiment
goes on; the table as record.md and so on, also printed; and feddp.png, a panel for each experiment
in runs.csv.
"""

import argparse
import csv
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from populations import Mixture, Population, digits, from_file
from scipy.stats import t as student
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
from flower_kmeans.strategies import FedDPKMeans, GLloyd

FloatArray = NDArray[np.float64]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 5.0)
CONFIDENCE = 0.95
TRUSTS = ("trusted-server", "distributed-noise")
FEDDP, PACKING, PLUS_PLUS, LLOYD, K_FED, OPTIMUM = METHODS = (
    "FedDP-KMeans",
    "sphere packing + DP-Lloyd",
    "server k-means++ + DP-Lloyd",
    "server Lloyd + DP-Lloyd",
    "k-FED (not private)",
    "optimum (not private)",
)
NOT_PRIVATE = (K_FED, OPTIMUM)
FIGURES = ("ratio", "cost", "accuracy", "ari", "fmi", "nmi")
HEADINGS = ("cost / optimum", "cost per record", "accuracy", "ARI", "FMI", "NMI")


@dataclass(frozen=True)
class Setting:
    """What is the same for all runs of a table.

    Attributes
    ----------
    table : str
    unit : {"record", "client"}
    trust : str
    clip : float or None
        With ``unit="client"``; the library's default otherwise.
    contribution : {"sums", "means"}
        Of FedDP-KMeans, with ``unit="client"``.
    methods : tuple of str
    """

    table: str
    unit: str = "record"
    trust: str = TRUSTS[0]
    clip: float | None = None
    contribution: str = "sums"
    methods: tuple[str, ...] = METHODS

    @property
    def variant(self) -> str:
        """Return what tells this setting's runs from others in a file."""
        clip = "default" if self.clip is None else f"{self.clip:g}"
        return f"{self.trust}, clip {clip}, {self.contribution}" if self.clips else self.trust

    @property
    def clips(self) -> bool:
        """Whether clients are clipped."""
        return self.unit == "client"


@dataclass(frozen=True)
class Outcome:
    """One run of one method; figures of accuracy are nan where there are no classes."""

    table: str
    population: str
    variant: str
    method: str
    epsilon: float
    run: int
    ratio: float
    cost: float
    accuracy: float
    ari: float
    fmi: float
    nmi: float
    trust: str
    unit: str
    n_clients: int
    min_clients: int
    noise_factor: float
    clip: str
    n_rounds: int
    epsilon_told: float
    delta: float
    seconds: float
    notes: str

    @property
    def key(self) -> tuple[str, str, str, str, float, int]:
        """Return what this run is, whatever came out."""
        return key_of(
            self.table, self.population, self.variant, self.method, self.epsilon, self.run
        )


def key_of(
    table: str, population: str, variant: str, method: str, epsilon: float, run: int
) -> tuple[str, str, str, str, float, int]:
    """Return a run's key; what is not private does not depend on the variant and epsilon."""
    if method in NOT_PRIVATE:
        return table, population, "", method, 0.0, run
    return table, population, variant, method, epsilon, run


# --------------------------------------------------------------------------- methods


def options_of(population: Population, setting: Setting, run: int) -> dict[str, Any]:
    """Return what all strategies of a run share: public figures only."""
    options: dict[str, Any] = {
        "n_records": population.n_records,
        "n_clients": len(population.partitions),
        "trust": setting.trust,
        "seed": run,
    }
    return options | ({"clip": setting.clip} if setting.clips else {})


def strategy_of(
    method: str, population: Population, setting: Setting, epsilon: float, run: int
) -> FedDPKMeans | GLloyd:
    """Return the strategy of a private method."""
    k, server_data = population.n_clusters, population.server_data
    common = (k, population.domain, PrivacyBudget(epsilon, unit=setting.unit))
    options = options_of(population, setting, run)
    if method == FEDDP:
        return FedDPKMeans(
            *common, server_data=server_data, contribution=setting.contribution, **options
        )
    start = {PLUS_PLUS: server_kmeans_plus_plus, LLOYD: server_lloyd}.get(method)
    if start is not None:
        options["initial"] = start(server_data, k, public_generator(run, 0))
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
    return np.argmin(norms - 2 * (records @ centroids.T), axis=1)


def agreement(classes: NDArray[Any] | None, found: NDArray[np.int64]) -> tuple[float, ...]:
    """Return accuracy, ARI, FMI and NMI; nan without classes."""
    if classes is None:
        return (math.nan,) * 4
    measures = (
        majority_accuracy,
        adjusted_rand_index,
        fowlkes_mallows_index,
        normalized_mutual_information,
    )
    return tuple(measure(classes, found) for measure in measures)


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
            *agreement(population.classes, nearest(pooled, centroids)),
            trust="none" if report is None else report.trust,
            unit="none" if report is None else report.unit,
            n_clients=n_clients if report is None else report.n_clients,
            min_clients=n_clients if report is None else report.min_clients,
            noise_factor=1.0 if report is None else report.noise_factor,
            clip="" if report is None or report.clip is None else f"{report.clip:g}",
            n_rounds=0 if report is None else report.n_rounds,
            epsilon_told=math.nan if report is None else float(report.epsilon or math.nan),
            delta=math.nan if report is None else float(report.delta or math.nan),
            seconds=round(seconds, 2),
            notes="" if report is None else " ".join(report.notes),
        )


def read_runs(path: Path) -> list[Outcome]:
    """Read a file of runs; none if there is no file."""
    if not path.exists():
        return []
    kinds = {each.name: each.type for each in fields(Outcome)}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [Outcome(**{name: kinds[name](text) for name, text in row.items()}) for row in rows]


def append_run(path: Path, outcome: Outcome) -> None:
    """Add a run to the file, so that what was done survives an interruption."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        row = asdict(outcome)
        if is_new:
            writer.writerow(row)
        writer.writerow(row.values())


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


# --------------------------------------------------------------------------- tables


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half of its 95% confidence interval (Student's t); nan for one run."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread


def shown(values: Sequence[float]) -> str:
    """Return mean and interval as text."""
    mean, half = interval(values)
    if math.isnan(mean):
        return ""
    return f"{mean:.4g}" if math.isnan(half) else f"{mean:.4g} ± {half:.1g}"


def grouped(outcomes: Sequence[Outcome]) -> dict[tuple[str, float, str], list[Outcome]]:
    """Return the runs of every population, epsilon and method, in the order of the tables."""
    groups: dict[tuple[str, float, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.population, outcome.epsilon, outcome.method].append(outcome)
    return dict(sorted(groups.items(), key=lambda item: (item[0][:2], METHODS.index(item[0][2]))))


def stated(outcomes: Sequence[Outcome]) -> str:
    """Say under which guarantee the private runs stand, from their reports."""
    sentences = []
    private = [outcome for outcome in outcomes if outcome.method not in NOT_PRIVATE]
    for name in dict.fromkeys(outcome.population for outcome in private):
        of_name = [outcome for outcome in private if outcome.population == name]
        facts = Counter(
            f"trust={each.trust!r}, unit={each.unit!r}, n_clients={each.n_clients}, "
            f"min_clients={each.min_clients}, noise factor {each.noise_factor:.4g}, "
            f"delta={each.delta:.3g}" + (f", clip {each.clip}" if each.clip else "")
            for each in of_name
        )
        sentences += [f"{name}: {fact}." for fact in facts]
    return "\n".join(f"- {sentence}" for sentence in sentences)


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Return means and intervals as a markdown table, the guarantee above it, notes below."""
    lines = [
        stated(outcomes),
        "",
        "| population | epsilon | method | runs | " + " | ".join(HEADINGS) + " |",
        "|---|--:|---|--:|" + "--:|" * len(FIGURES),
    ]
    for (population, epsilon, method), runs in grouped(outcomes).items():
        cells = [population, f"{epsilon:g}" if epsilon else "", method, str(len(runs))]
        cells += [shown([getattr(run, figure) for run in runs]) for figure in FIGURES]
        lines.append("| " + " | ".join(cells) + " |")
    notes = Counter(
        f"{each.population}, epsilon {each.epsilon:g}: {each.notes}"
        for each in outcomes
        if each.notes
    )
    if notes:
        lines += ["", "Notes of FedDP-KMeans's reports (and in how many runs):", ""]
        lines += [f"- {note} ({count})" for note, count in notes.items()]
    return "\n".join(lines)


# --------------------------------------------------------------------------- plot


def panels_of(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the runs of each panel: a population over epsilon, or what the server misses."""
    panels: dict[str, list[Outcome]] = defaultdict(list)
    flat = [each for each in outcomes if each.method in NOT_PRIVATE]
    for each in outcomes:
        if each.method not in NOT_PRIVATE:
            missing = each.table == "missing"
            what = f"epsilon {each.epsilon:g}" if missing else each.population
            panels[f"{each.table}: {what}, {each.variant}"].append(each)
    for runs in panels.values():
        populations = {(each.table, each.population) for each in runs}
        runs += [each for each in flat if (each.table, each.population) in populations]
    return panels


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw cost over the optimum's, one panel per population and setting."""
    from matplotlib.figure import Figure

    panels = panels_of(outcomes)
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False).ravel()
    for (title, runs), panel in zip(panels.items(), axes, strict=True):
        missing = title.startswith("missing")
        epsilons = sorted({each.epsilon for each in runs if each.epsilon})
        for number, method in enumerate(METHODS):
            points: dict[float, list[float]] = defaultdict(list)
            for each in runs:
                if each.method != method:
                    continue
                if missing:
                    points[float(each.population.partition(" ")[0])].append(each.ratio)
                elif each.epsilon:
                    points[each.epsilon].append(each.ratio)
                else:  # the same whatever epsilon is
                    for epsilon in epsilons:
                        points[epsilon].append(each.ratio)
            if not points:
                continue
            places = sorted(points)
            mean, half = np.array([interval(points[place]) for place in places]).T
            half = np.nan_to_num(half)
            line = "--" if method in NOT_PRIVATE else "-"
            color = f"C{number}" if method != OPTIMUM else "0.3"
            panel.plot(places, mean, line, color=color, marker="o", markersize=3, label=method)
            panel.fill_between(places, mean - half, mean + half, color=color, alpha=0.2, lw=0)
        if not missing:
            panel.set_xscale("log")
            panel.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
            panel.minorticks_off()
        panel.set_xlabel("components missing at the server" if missing else "epsilon")
        panel.set_ylabel("cost / optimum")
        panel.set_title(title, fontsize=8)
        panel.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)


# --------------------------------------------------------------------------- command line


def populations_of(options: argparse.Namespace) -> Callable[[int], Iterator[Population]]:
    """Return what draws the populations of a run."""
    full = Mixture(100, 1000)
    if options.quick:
        full = Mixture(8, 250, d=10, variance=0.005, n_uniform=20)

    def draw(run: int) -> Iterator[Population]:
        if options.table == "record":
            yield full.draw("mixture", run)
        elif options.table == "client":
            for n_clients in options.clients:
                mixture = replace(full, n_clients=n_clients, records_each=50)
                yield mixture.draw(f"{n_clients} clients", run)
        elif options.table == "missing":
            for n_missing in options.missing:
                yield replace(full, n_missing=n_missing).draw(f"{n_missing} missing", run)
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


def parser_of() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("record", "client", "missing", "data"))
    parser.add_argument("--runs", type=int, default=3, help="each with its own records and noise")
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="NAME")
    parser.add_argument("--trust", choices=TRUSTS, default=TRUSTS[0])
    parser.add_argument("--output", type=Path, default=Path("build/feddp"))
    parser.add_argument("--quick", action="store_true", help="small populations, for tests")
    client = parser.add_argument_group("client")
    client.add_argument("--clients", type=int, nargs="+", default=[1000, 2000, 5000])
    client.add_argument("--clip", type=float, help="records' worth of a client (50)")
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
    setting = Setting(options.table, trust=options.trust, methods=tuple(options.methods))
    if options.table == "client":
        setting = replace(
            setting, unit="client", clip=options.clip, contribution=options.contribution
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
