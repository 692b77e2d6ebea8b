"""How good private clusterings are: NICV against epsilon, as in FastLloyd's paper (section 6).

    python benchmarks/utility.py --data-dir DIR --runs 20 --output build/utility

NICV is the k-means cost of the final centroids over all records, divided by their number. Columns
are scaled to [-1, 1] by their smallest and largest value, delta is 1 / (N ln N), two clients hold
random halves, and each run has its own initial centroids. The area under the curve (AUC) is taken
by the trapezoidal rule over epsilon = 0.1, 0.25, 0.5, 0.75, 1. Every clustering is a whole run of
a strategy through ``simulate`` in this process, masks and noise included; without ``--trust``
under ``oblivious-server``, or ``trusted-server`` where the server computes the questions, so that
the noise is that of one party. Beside the strategies stands scikit-learn's KMeans on the pooled
records (the best of ten starts by k-means++, run to convergence): what neither privacy, nor a
start without data, nor seven rounds have cost.

``DIR`` holds ``NAME.npz`` files with an array ``X`` of shape (N, d); missing ones are skipped, and
scikit-learn's own sets need no file. ``--variants`` also runs strategies with parts of the papers'
reference code, to explain differences: see ``reference.py``.

Written to ``--output``: runs.csv (one row per run), tables.md (also printed) and utility.png.

Scaling by the smallest and largest value, and N itself, read the private records, and such a delta
lets one record leak outright with a probability near 1 / ln N. The papers do so; an application
must not: take public bounds, a public ``n_records`` and the default delta.
"""

import argparse
import csv
import logging
import math
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from reference import VARIANTS
from scipy.stats import t as student
from sklearn.cluster import KMeans

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.strategies import (
    FastLloyd,
    GLloyd,
    HDPEMeans,
    Lloyd,
    PEMeans,
    SuLloyd,
    SynopsisKMeans,
)

FloatArray = NDArray[np.float64]

KMEANS = "KMeans"
NOT_PRIVATE = (KMEANS, "Lloyd")
EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)
N_CLIENTS = 2
CONFIDENCE = 0.95
STRATEGIES: dict[str, Callable[..., Any]] = {
    "Lloyd": Lloyd,
    "SuLloyd": SuLloyd,
    "GLloyd": GLloyd,
    "FastLloyd": FastLloyd,
    "SynopsisKMeans": SynopsisKMeans,
    "PEMeans": PEMeans,
    "HDPEMeans": HDPEMeans,
}
OF_THE_SERVER = ("SynopsisKMeans", "PEMeans", "HDPEMeans")
"""Strategies whose server computes the questions: without ``--trust`` it adds all of the noise."""
PROJECTED = 16
"""Columns beyond which HDPEMeans projects."""

REFERENCE = {
    "FastLloyd": {
        "s1": "0.0220",
        "lsun": "0.205",
        "iris": "0.419",
        "wine": "2.31",
        "breast": "1.45",
        "birch2": "0.00358",
        "g2mg_4_30": "0.194",
        "g2mg_16_30": "1.02",
        "g2mg_128_30": "10.5",
    },
    "GLloyd": {"s1": "0.0271", "birch2": "0.0059"},
    "SuLloyd": {"s1": "0.0288", "birch2": "0.0064"},
    "Lloyd": {"s1": "0.0074", "lsun": "0.137", "iris": "0.168"},
    "KMeans": {"s1": "0.0074", "lsun": "0.137", "iris": "0.168"},
}
"""AUC of the papers' reference code, measured once under this protocol; not part of these runs."""


class Source(NamedTuple):
    """Where a data set comes from, and what is asked of it."""

    n_clusters: int
    n_records: int | None = None  # a random subset of that size
    bundled: str = ""  # a loader of scikit-learn
    note: str = ""


SOURCES = {
    "s1": Source(15),
    "lsun": Source(3),
    "iris": Source(3),
    "wine": Source(3),
    "breast": Source(2),
    "birch2": Source(100, n_records=25_000, note="25,000 of 100,000 records, drawn once"),
    "g2mg_4_30": Source(2),
    "g2mg_16_30": Source(2),
    "g2mg_128_30": Source(2),
    "sklearn-iris": Source(3, bundled="load_iris", note="two records differ from Fisher's"),
    "sklearn-wine": Source(3, bundled="load_wine", note="the same wines"),
    "sklearn-breast": Source(
        2,
        bundled="load_breast_cancer",
        note="the diagnostic set, 569 records of 30 columns; not the original of the papers",
    ),
}


@dataclass(frozen=True)
class Data:
    """Records scaled to [-1, 1], and the number of clusters to find."""

    name: str
    records: FloatArray
    n_clusters: int
    note: str


@dataclass(frozen=True)
class Task:
    """One run of one method."""

    data: str
    method: str
    epsilon: float | None
    run: int


@dataclass(frozen=True)
class Outcome:
    """What one run gave."""

    task: Task
    nicv: float
    n_rounds: int
    noise_factor: float


# --------------------------------------------------------------------------- data


def load(name: str, directory: Path | None) -> Data | None:
    """Return a data set, or ``None`` if its file is not there."""
    source = SOURCES[name]
    if source.bundled:
        from sklearn import datasets

        records = getattr(datasets, source.bundled)().data
    elif directory is not None and (path := directory / f"{name}.npz").exists():
        with np.load(path, allow_pickle=False) as stored:
            records = stored["X"]
    else:
        return None
    if source.n_records is not None and source.n_records < len(records):
        keep = np.random.default_rng(0).choice(len(records), source.n_records, replace=False)
        records = records[np.sort(keep)]
    return Data(name, to_unit_box(np.asarray(records, float)), source.n_clusters, source.note)


def to_unit_box(records: FloatArray) -> FloatArray:
    """Scale every column to [-1, 1]; a constant column becomes 0."""
    low, high = records.min(axis=0), records.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    return np.where(high > low, 2 * (records - low) / width - 1, 0.0)


# --------------------------------------------------------------------------- runs


def cluster(data: Data, task: Task, trust: str | None = None) -> Outcome:
    """Run one strategy over two clients and return the cost of what it found."""
    n, d = data.records.shape
    if task.method == KMEANS:
        fitted = KMeans(data.n_clusters, n_init=10, random_state=task.run).fit(data.records)
        return Outcome(task, float(fitted.inertia_) / n, int(fitted.n_iter_), 1.0)
    private = task.epsilon is not None
    budget = PrivacyBudget(task.epsilon, 1 / (n * math.log(n)) if private else None)
    box = Box(np.full(d, -1.0), np.full(d, 1.0))
    options = {"n_records": n, "n_clients": N_CLIENTS, "seed": task.run}
    if private and (trust is not None or task.method in OF_THE_SERVER):
        options["trust"] = "trusted-server" if trust is None else trust
    halves = np.array_split(data.records[np.random.default_rng(task.run).permutation(n)], N_CLIENTS)
    if task.method in VARIANTS:
        variant = VARIANTS[task.method]
        strategy = variant.make(data.n_clusters, box, budget, **options)
        with variant.varied(strategy, task.run):
            clustering = simulate(strategy, halves)
    else:
        strategy = STRATEGIES[task.method](data.n_clusters, box, budget, **options)
        clustering = simulate(strategy, halves)
    report = clustering.report
    return Outcome(task, clustering.inertia(data.records) / n, report.n_rounds, report.noise_factor)


def tasks_of(data: Sequence[Data], methods: Sequence[str], runs: int) -> Iterator[Task]:
    """Yield every run: what has no epsilon has one run where others have five."""
    for each in data:
        for method in methods:
            if method == "HDPEMeans" and each.records.shape[1] <= PROJECTED:
                continue
            for epsilon in (None,) if method in NOT_PRIVATE else EPSILONS:
                for run in range(runs):
                    yield Task(each.name, method, epsilon, run)


_WORKER: dict[str, Any] = {}


def _prepare_worker(data: dict[str, Data], trust: str | None) -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    _WORKER.update(data=data, trust=trust)


def _run_task(task: Task) -> Outcome:
    return cluster(_WORKER["data"][task.data], task, _WORKER["trust"])


def run_all(
    data: Sequence[Data], tasks: Sequence[Task], jobs: int, trust: str | None
) -> list[Outcome]:
    """Run all tasks, in this process or in several."""
    named = {each.name: each for each in data}
    outcomes: list[Outcome] = []

    def collect(results: Iterable[Outcome]) -> None:
        for outcome in results:
            outcomes.append(outcome)
            if len(outcomes) % 100 == 0 or len(outcomes) == len(tasks):
                print(f"{len(outcomes)} of {len(tasks)} runs", flush=True)

    if jobs == 1:
        _prepare_worker(named, trust)
        collect(map(_run_task, tasks))
        return outcomes
    context = multiprocessing.get_context("spawn")  # Flower's threads do not survive a fork
    with context.Pool(jobs, _prepare_worker, (named, trust)) as pool:
        collect(pool.imap(_run_task, tasks, chunksize=5))
    return outcomes


# --------------------------------------------------------------------------- figures


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half of its 95% confidence interval (Student's t)."""
    count = len(values)
    if count < 2:
        return float(np.mean(values)), math.nan
    spread = float(np.std(values, ddof=1)) / math.sqrt(count)
    return float(np.mean(values)), float(student.ppf((1 + CONFIDENCE) / 2, count - 1)) * spread


def shown(half: float, mean: float) -> str:
    """Return half an interval as text; differences between roundings are 0."""
    return f"± {half:.2g}" if not half < 1e-6 * mean else "± 0"


def area(nicv: Sequence[float]) -> float:
    """Return the area under NICV over the five epsilons (the paper's section 6.3)."""
    steps = zip(nicv, nicv[1:], EPSILONS, EPSILONS[1:], strict=False)
    return sum((left + right) / 2 * (high - low) for left, right, low, high in steps)


Curves = dict[tuple[str, str], dict[float | None, list[float]]]


def curves_of(outcomes: Sequence[Outcome]) -> Curves:
    """Return NICV by (data, method), epsilon and run."""
    curves: Curves = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        task = outcome.task
        curves[task.data, task.method][task.epsilon].append(outcome.nicv)
    return curves


def areas_of(curve: dict[float | None, list[float]]) -> list[float]:
    """Return the area of every run; a curve without epsilon is a constant."""
    if None in curve:
        return [area([nicv] * len(EPSILONS)) for nicv in curve[None]]
    return [area(values) for values in zip(*(curve[e] for e in EPSILONS), strict=True)]


def verdict(mean: float, half: float, reference: str) -> str:
    """Say how a mean compares with a reference figure, which is as good as its last digit.

    The reference's own interval is not known, so "WORSE" can be chance; "better" too.
    """
    rounding = 0.5 * 10.0 ** -len(reference.partition(".")[2])
    if abs(mean - float(reference)) <= half + rounding:
        return "equal within the interval"
    return "better" if mean < float(reference) else "WORSE"


def auc_table(curves: Curves) -> str:
    """Return areas beside the reference figures, as a markdown table."""
    lines = [
        "| data | method | AUC | 95% interval | reference | ratio | against the reference |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for (data, method), curve in curves.items():
        mean, half = interval(areas_of(curve))
        base = VARIANTS[method].base if method in VARIANTS else method
        reference = REFERENCE.get(base, {}).get(data)
        cells = [data, method, f"{mean:.3g}", shown(half, mean)]
        if reference is None:
            cells += ["", "", ""]
        else:
            ratio = mean / float(reference)
            cells += [reference, f"{ratio:.2f}", verdict(mean, half, reference)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def wide_table(curves: Curves) -> str:
    """Return areas with intervals and numbers of runs, a row for each data set, as markdown."""
    methods = list(dict.fromkeys(method for _, method in curves))
    lines = ["| data | " + " | ".join(methods) + " |", "|---|" + "--:|" * len(methods)]
    for data in dict.fromkeys(data for data, _ in curves):
        cells = [data]
        for method in methods:
            areas = areas_of(curves[data, method]) if (data, method) in curves else []
            mean, half = interval(areas) if areas else (math.nan, math.nan)
            cells.append(f"{mean:.3g} {shown(half, mean)} ({len(areas)})" if areas else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def nicv_table(curves: Curves) -> str:
    """Return NICV by epsilon, as a markdown table."""
    head = " | ".join(f"eps {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| data | method | {head} |", "|---|---|" + "--:|" * len(EPSILONS)]
    for (data, method), curve in curves.items():
        cells = []
        for epsilon in EPSILONS:
            mean, half = interval(curve[None] if None in curve else curve[epsilon])
            cells.append(f"{mean:.3g} {shown(half, mean)}")
        lines.append(f"| {data} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def data_table(data: Sequence[Data]) -> str:
    """Return what the data sets are, as a markdown table."""
    lines = ["| data | records | columns | clusters | note |", "|---|--:|--:|--:|---|"]
    for each in data:
        n, d = each.records.shape
        lines.append(f"| {each.name} | {n} | {d} | {each.n_clusters} | {each.note} |")
    return "\n".join(lines)


def plot(curves: Curves, path: Path) -> None:
    """Draw NICV over epsilon with its confidence band, one panel per data set."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(data for data, _ in curves))
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    styles = {
        KMEANS: ("0.6", ":"),
        "Lloyd": ("0.4", "--"),
        "SuLloyd": ("C1", "-"),
        "GLloyd": ("C2", "-"),
    }
    for name, panel in zip(names, axes, strict=False):
        for (data, method), curve in curves.items():
            if data != name or method in VARIANTS:
                continue
            points = [
                interval(curve[None] if None in curve else curve[epsilon]) for epsilon in EPSILONS
            ]
            mean = np.array([point[0] for point in points])
            half = np.nan_to_num([point[1] for point in points])
            color, line = styles.get(method, ("C0", "-"))
            label = f"{method} (not private)" if None in curve else method
            panel.plot(EPSILONS, mean, line, color=color, label=label, marker="o", markersize=3)
            panel.fill_between(EPSILONS, mean - half, mean + half, color=color, alpha=0.2, lw=0)
        panel.set_title(name, fontsize=10)
        panel.set_yscale("log")
        panel.set_xticks(EPSILONS)
        panel.set_xlabel("epsilon")
        panel.set_ylabel("NICV")
        panel.grid(alpha=0.3, which="both")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(path, dpi=80)


def write_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write one row per run."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("data", "method", "epsilon", "run", "nicv", "n_rounds", "noise_factor"))
        for outcome in outcomes:
            task = outcome.task
            epsilon = "" if task.epsilon is None else task.epsilon
            row = (task.data, task.method, epsilon, task.run)
            writer.writerow((*row, repr(outcome.nicv), outcome.n_rounds, outcome.noise_factor))


def read_csv(path: Path) -> list[Outcome]:
    """Read what ``write_csv`` wrote."""
    outcomes = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            epsilon = float(row["epsilon"]) if row["epsilon"] else None
            task = Task(row["data"], row["method"], epsilon, int(row["run"]))
            factor = float(row["noise_factor"])
            outcomes.append(Outcome(task, float(row["nicv"]), int(row["n_rounds"]), factor))
    return outcomes


def main() -> None:
    """Run everything that was asked for, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="directory of NAME.npz files")
    parser.add_argument("--data", nargs="+", choices=SOURCES, help="data sets (default: all)")
    methods = [KMEANS, *STRATEGIES]
    parser.add_argument("--methods", nargs="*", choices=methods, default=methods)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=[])
    parser.add_argument("--runs", type=int, default=20, help="runs per epsilon (paper: 100)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trust", choices=("oblivious-server", "distributed-noise"))
    parser.add_argument("--output", type=Path, default=Path("build/utility"))
    parser.add_argument("--redraw", action="store_true", help="use the runs.csv of --output")
    options = parser.parse_args()
    if options.trust == "distributed-noise" and (options.variants or "SuLloyd" in options.methods):
        parser.error("distributed-noise has neither Laplace noise nor the variants.")

    loaded = {name: load(name, options.data_dir) for name in options.data or SOURCES}
    data = [each for each in loaded.values() if each is not None]
    missing = [name for name, each in loaded.items() if each is None]
    if missing:
        print(f"Skipped, because their files are missing: {', '.join(missing)}\n")
    if not data:
        parser.error("no data set is left.")
    if options.redraw:
        outcomes = read_csv(options.output / "runs.csv")
        data = [each for each in data if any(o.task.data == each.name for o in outcomes)]
    else:
        tasks = list(tasks_of(data, [*options.methods, *options.variants], options.runs))
        outcomes = run_all(data, tasks, options.jobs, options.trust)

    curves = curves_of(outcomes)
    runs = 1 + max(outcome.task.run for outcome in outcomes)
    factors = sorted({round(outcome.noise_factor, 4) for outcome in outcomes})
    text = "\n\n".join(
        (
            data_table(data),
            f"{runs} runs per point; noise over the planned noise: "
            + ", ".join(f"{factor:g}" for factor in factors),
            auc_table(curves),
            wide_table(curves),
            nicv_table(curves),
        )
    )
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.redraw:
        write_csv(outcomes, options.output / "runs.csv")
    (options.output / "tables.md").write_text(text + "\n")
    plot(curves, options.output / "utility.png")
    print("\n" + text)


if __name__ == "__main__":
    main()
