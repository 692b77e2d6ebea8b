"""The k-means loss of private clusterings against epsilon, as in PE-means' paper (section IV).

    python benchmarks/loss.py --data-dir DIR --runs 20 --output build/loss

The protocol is the paper's: records are centred and scaled to a largest l2 norm of 1, delta is
``N^-1.1``, the loss is the mean squared distance to the nearest centroid, and the area under its
curve (AUC) is taken by the trapezoidal rule over epsilon = 0.25, 0.5, 1, 2, 4. Every private
clustering is a whole run of a strategy through ``simulate`` in this process, over two clients under
``trusted-server``: the noise is that of a server that adds all of it, as in the paper. Beside the
strategies stand scikit-learn's KMeans on the pooled records (the best of ten starts by k-means++),
IBM's diffprivlib where it is installed (pure epsilon, bounds as FastLloyd), and the paper's printed
figures (50 runs on its own copies of the data).

``DIR`` holds ``NAME.npz`` files with an array ``X`` of shape (N, d); missing ones are skipped.
``blobs_K_D`` is ``make_blobs(20000, n_features=D, centers=K, random_state=1)``, the paper's
``sklearn_K_D``. ``--data FILE.npz:K`` adds a file of one's own.

Written to ``--output``: runs.csv (one row per run, as soon as it is done: the same command goes on
where it was stopped), tables.md (also printed) and loss.png.

The centre, the largest norm and N itself are read off the private records, and such a delta lets
one record leak outright with a probability near N^-0.1. The paper does so, to compare; an
application must not: take public bounds, a public ``n_records`` and the default delta.
"""

import argparse
import csv
import logging
import math
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from utility import KMEANS, interval, shown

from flower_kmeans import Ball, Box, PrivacyBudget, simulate, strategies

FloatArray = NDArray[np.float64]

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
N_CLIENTS = 2
DIFFPRIVLIB = "diffprivlib"
BALL_METHODS = ("SynopsisKMeans", "PEMeans", "HDPEMeans")
BOX_METHODS = ("FastLloyd", "SuLloyd")
METHODS = (KMEANS, *BALL_METHODS, *BOX_METHODS, DIFFPRIVLIB)
PROJECTED = 16
"""Columns beyond which the paper recommends HDPE-means."""
BLOBS = tuple((k, d) for k in (4, 16, 64) for d in (4, 16, 64, 128))
FILES = {"iris": 3, "birch2": 100, "g2mg_2_30": 2, "g2mg_4_30": 2, "g2mg_16_30": 2}
FILES |= {"g2mg_128_30": 2}
SUBSETS = {"birch2": 25_000}


class Printed(NamedTuple):
    """A row of the paper's Table I: AUCs, and a loss for the method without privacy."""

    non_private_loss: float
    pe: float
    hdpe: float | None
    fastlloyd: float
    diffprivlib: float


PRINTED = {
    "birch2": Printed(0.0000, 0.0003, None, 0.0031, 0.0124),
    "iris": Printed(0.0363, 0.2894, None, 0.3979, 1.3048),
    "blobs_4_4": Printed(0.0207, 0.0778, None, 0.1777, 0.2355),
    "blobs_16_4": Printed(0.0122, 0.0445, None, 0.0990, 0.1409),
    "blobs_64_4": Printed(0.0091, 0.0379, None, 0.0818, 0.1191),
    "blobs_4_16": Printed(0.0253, 0.0955, None, 0.7110, 0.5049),
    "blobs_16_16": Printed(0.0162, 0.0668, None, 0.7160, 0.5809),
    "blobs_64_16": Printed(0.0171, 0.1183, None, 0.7631, 0.8720),
    "blobs_4_64": Printed(0.0254, 0.0993, 0.0974, 1.4623, 0.8614),
    "blobs_16_64": Printed(0.0226, 0.1192, 0.1189, 1.7475, 1.3716),
    "blobs_64_64": Printed(0.0220, 0.3070, 0.4678, 2.2002, 2.2456),
    "blobs_4_128": Printed(0.0281, 0.1333, 0.1097, 1.7604, 1.1632),
    "blobs_16_128": Printed(0.0245, 0.1942, 0.1562, 2.3038, 1.9742),
    "blobs_64_128": Printed(0.0249, 0.5740, 0.7190, 2.7204, 2.9608),
}
"""Table I of *PE-means: Improved Differentially Private k-means Clustering through Private
Evolution* (Humphries, Lin & Yekhanin). Its G2 sets are others than the g2mg ones."""


@dataclass(frozen=True)
class Data:
    """Records of a largest norm of 1 around their centre, and the number of clusters to find."""

    name: str
    records: FloatArray
    n_clusters: int


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
    loss: float
    seconds: float
    capped: bool = False


# --------------------------------------------------------------------------- data


def names_of() -> tuple[str, ...]:
    """Return all data sets, those of few columns first: they take the least time."""
    blobs = sorted(BLOBS, key=lambda pair: pair[0] * pair[1])
    return (*FILES, *(f"blobs_{k}_{d}" for k, d in blobs))


def load(name: str, directory: Path | None) -> Data | None:
    """Return a data set, or ``None`` if its file is not there."""
    if name.startswith("blobs_"):
        k, d = map(int, name.split("_")[1:])
        records, _ = make_blobs(20_000, n_features=d, centers=k, random_state=1)
        return Data(name, to_unit_ball(records), k)
    path, _, clusters = name.rpartition(":")
    file = Path(path) if path else None if directory is None else directory / f"{name}.npz"
    if file is None or not file.exists():
        return None
    with np.load(file, allow_pickle=False) as stored:
        records = np.asarray(stored["X"], dtype=float)
    size = SUBSETS.get(name)
    if size is not None and size < len(records):
        keep = np.random.default_rng(0).choice(len(records), size, replace=False)
        records = records[np.sort(keep)]
    shown_name = file.stem if path else name
    return Data(shown_name, to_unit_ball(records), int(clusters) if path else FILES[name])


def to_unit_ball(records: FloatArray) -> FloatArray:
    """Centre records and scale them to a largest norm of 1."""
    centred = records - records.mean(axis=0)
    return np.asarray(centred / np.linalg.norm(centred, axis=1).max())


def loss_of(records: FloatArray, centroids: FloatArray) -> float:
    """Return the mean squared distance of records to their nearest centroid."""
    squares = (centroids**2).sum(axis=1) - 2 * records @ centroids.T
    nearest = squares.min(axis=1) + (records**2).sum(axis=1)
    return float(np.maximum(nearest, 0).mean())


# --------------------------------------------------------------------------- runs


def applies(method: str, n_features: int, every: bool) -> bool:
    """Return whether a method runs on data of so many columns."""
    if method == "HDPEMeans":
        return n_features > PROJECTED
    if method == "PEMeans":
        return every or n_features <= PROJECTED
    if method == DIFFPRIVLIB:
        return _importable(DIFFPRIVLIB)
    return method == KMEANS or hasattr(strategies, method)


def cluster(data: Data, task: Task) -> Outcome:
    """Run one method and return the loss of what it found."""
    started = time.perf_counter()
    n, d = data.records.shape
    largest = float(np.abs(data.records).max())
    capped = False
    if task.method == KMEANS:
        model = KMeans(data.n_clusters, n_init=10, random_state=task.run).fit(data.records)
        centroids = model.cluster_centers_
    elif task.method == DIFFPRIVLIB:
        centroids = _diffprivlib(data, task, largest)
    else:
        budget = PrivacyBudget(task.epsilon, n**-1.1)
        box = Box(np.full(d, -largest), np.full(d, largest))
        strategy = getattr(strategies, task.method)(
            data.n_clusters,
            Ball(1.0, np.zeros(d)) if task.method in BALL_METHODS else box,
            budget,
            n,
            n_clients=N_CLIENTS,
            trust="trusted-server",
            seed=task.run,
        )
        order = np.random.default_rng(task.run).permutation(n)
        result = simulate(strategy, np.array_split(data.records[order], N_CLIENTS))
        centroids = result.centroids
        capped = any("max_candidates" in note for note in result.report.notes)
    seconds = time.perf_counter() - started
    return Outcome(task, loss_of(data.records, centroids), seconds, capped)


def _diffprivlib(data: Data, task: Task, largest: float) -> FloatArray:
    from diffprivlib.models import KMeans as PrivateKMeans

    bounds = (-largest, largest)
    model = PrivateKMeans(
        data.n_clusters, epsilon=task.epsilon, bounds=bounds, random_state=task.run
    )
    return np.asarray(model.fit(data.records).cluster_centers_)


def _importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def tasks_of(
    data: Sequence[Data], methods: Sequence[str], runs: int, every: bool = False
) -> Iterator[Task]:
    """Yield every run, all first runs before any second: a table is whole as early as it can be."""
    for run in range(runs):
        for each in data:
            for method in methods:
                if applies(method, each.records.shape[1], every):
                    for epsilon in (None,) if method == KMEANS else EPSILONS:
                        yield Task(each.name, method, epsilon, run)


_WORKER: dict[str, Data] = {}


def _prepare_worker(data: dict[str, Data]) -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    _WORKER.update(data)


def _run_task(task: Task) -> Outcome:
    return cluster(_WORKER[task.data], task)


def run_all(
    data: Sequence[Data], tasks: Iterable[Task], jobs: int, path: Path, until: float = math.inf
) -> list[Outcome]:
    """Run what is not in a csv yet, add each run to it, and return all of its runs."""
    outcomes = read_csv(path) if path.exists() else []
    done = {outcome.task for outcome in outcomes}
    left = [task for task in tasks if task not in done]
    named = {each.name: each for each in data}
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not outcomes:
            writer.writerow(("data", "method", "epsilon", "run", "loss", "seconds", "capped"))

        def collect(results: Iterable[Outcome]) -> None:
            for outcome in results:
                outcomes.append(outcome)
                task = outcome.task
                epsilon = "" if task.epsilon is None else task.epsilon
                row = (task.data, task.method, epsilon, task.run, repr(outcome.loss))
                writer.writerow((*row, f"{outcome.seconds:.2f}", int(outcome.capped)))
                file.flush()
                if time.monotonic() > until:
                    return

        if jobs == 1:
            _prepare_worker(named)
            collect(map(_run_task, left))
        elif left:
            context = multiprocessing.get_context("spawn")  # Flower's threads survive no fork
            with context.Pool(jobs, _prepare_worker, (named,)) as pool:
                collect(pool.imap(_run_task, left))
    return outcomes


def read_csv(path: Path) -> list[Outcome]:
    """Read what ``run_all`` wrote."""
    outcomes = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            epsilon = float(row["epsilon"]) if row["epsilon"] else None
            task = Task(row["data"], row["method"], epsilon, int(row["run"]))
            capped = row["capped"] == "1"
            outcomes.append(Outcome(task, float(row["loss"]), float(row["seconds"]), capped))
    return outcomes


# --------------------------------------------------------------------------- figures


Curves = dict[tuple[str, str], dict[float | None, dict[int, float]]]


def curves_of(outcomes: Sequence[Outcome]) -> Curves:
    """Return the loss by (data, method), epsilon and run."""
    curves: Curves = defaultdict(lambda: defaultdict(dict))
    for outcome in outcomes:
        task = outcome.task
        curves[task.data, task.method][task.epsilon][task.run] = outcome.loss
    return curves


def area(losses: Sequence[float]) -> float:
    """Return the area under the losses over the five epsilons (the paper's equation 7)."""
    steps = zip(losses, losses[1:], EPSILONS, EPSILONS[1:], strict=False)
    return sum((left + right) / 2 * (high - low) for left, right, low, high in steps)


def areas_of(curve: dict[float | None, dict[int, float]]) -> list[float]:
    """Return the area of every run that is whole; the mean of areas is the area of the mean."""
    if None in curve:
        return [area([loss] * len(EPSILONS)) for loss in curve[None].values()]
    if any(epsilon not in curve for epsilon in EPSILONS):
        return []
    whole = set.intersection(*(set(curve[epsilon]) for epsilon in EPSILONS))
    return [area([curve[epsilon][run] for epsilon in EPSILONS]) for run in sorted(whole)]


def digits(value: float) -> str:
    """Return four decimals, as the paper prints, or two digits of what is smaller than these."""
    return f"{value:.4f}" if value >= 0.01 else f"{value:.2g}"


def auc_table(curves: Curves, names: Sequence[str]) -> str:
    """Return areas with their intervals and the printed figures, as a markdown table."""
    methods = [method for method in METHODS if any(method == found for _, found in curves)]
    head = ["data", *methods, "printed: PE", "HDPE", "FastLloyd", "DP-Lib", "non-private"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    for name in names:
        cells = [name]
        for method in methods:
            areas = areas_of(curves[name, method]) if (name, method) in curves else []
            mean, half = interval(areas) if areas else (math.nan, math.nan)
            spread = "" if len(areas) < 2 else f" {shown(half, mean)}"
            cells.append(f"{digits(mean)}{spread} ({len(areas)})" if areas else "")
        row = PRINTED.get(name)
        if row is None:
            cells += [""] * 5
        else:
            figures = (*row[1:], row.non_private_loss * area([1.0] * len(EPSILONS)))
            cells += ["" if figure is None else f"{figure:.4f}" for figure in figures]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def comparison(curves: Curves, names: Sequence[str]) -> str:
    """Return each private-evolution AUC and SynopsisKMeans' over the printed ones, as a table."""
    lines = [
        "| data | ours, PE or HDPE | same printed | ratio | SynopsisKMeans over best printed |",
        "|---|--:|--:|--:|--:|",
    ]
    ratios = []
    for name in names:
        row = PRINTED.get(name)
        if row is None:
            continue
        best = min(figure for figure in (row.pe, row.hdpe) if figure is not None)
        ours = areas_of(curves.get((name, "SynopsisKMeans"), {}))
        share = float(np.mean(ours)) / best if ours and best >= 0.001 else None
        ratios += [] if share is None else [share]
        for method, figure in (("PEMeans", row.pe), ("HDPEMeans", row.hdpe)):
            areas = areas_of(curves.get((name, method), {}))
            if figure is None or not areas:
                continue
            mean = float(np.mean(areas))
            cells = [name, f"{method} {digits(mean)}", f"{figure:.4f}", f"{mean / figure:.2f}"]
            cells.append("" if share is None else f"{share:.2f}")
            lines.append("| " + " | ".join(cells) + " |")
    if ratios:
        mean = math.exp(float(np.mean(np.log(ratios))))
        lines.append(f"\nSynopsisKMeans: {mean:.3f} as a geometric mean over {len(ratios)} rows.")
    return "\n".join(lines)


def lift_noise(name: str, epsilon: float) -> float:
    """Return what noise alone adds to the loss in HDPE-means' last round, for equal clusters.

    A centroid is there the quotient of a noisy sum, with noise of sigma in d columns, and N / k.
    """
    n, (k, d) = 20_000, map(int, name.split("_")[1:])
    budget = PrivacyBudget(epsilon, n**-1.1)
    made = strategies.HDPEMeans(k, Ball(1.0, np.zeros(d)), budget, n, n_clients=2)
    (sums,) = (release for release in made.plan.rounds[-1] if release.name == "lift-sums")
    return d * (sums.noise_multiplier * k / n) ** 2


def lift_table() -> str:
    """Return areas from epsilon 0.5 on of k-means' loss and the lift's noise, beside the printed.

    Where these come near the printed area from 0.25 on, no votes could have reached it.
    """
    lines = [
        "| data | k-means and the lift's noise, epsilon 0.5 to 4 | printed HDPE, 0.25 to 4 |",
        "|---|--:|--:|",
    ]
    for name, row in PRINTED.items():
        if row.hdpe is None:
            continue
        losses = [row.non_private_loss + lift_noise(name, epsilon) for epsilon in EPSILONS]
        without_first = area(losses) - (losses[0] + losses[1]) / 2 * (EPSILONS[1] - EPSILONS[0])
        lines.append(f"| {name} | {without_first:.4f} | {row.hdpe:.4f} |")
    return "\n".join(lines)


def loss_table(curves: Curves, names: Sequence[str]) -> str:
    """Return losses by epsilon, as a markdown table."""
    head = " | ".join(f"eps {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| data | method | {head} |", "|---|---|" + "--:|" * len(EPSILONS)]
    for name in names:
        for method in METHODS:
            curve = curves.get((name, method), {})
            cells = [name, method]
            for epsilon in EPSILONS:
                losses = list(curve.get(None if None in curve else epsilon, {}).values())
                mean, half = interval(losses) if losses else (math.nan, math.nan)
                spread = "" if len(losses) < 2 else f" {shown(half, mean)}"
                cells.append(f"{mean:.3g}{spread}" if losses else "")
            if any(cells[2:]):
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(curves: Curves, names: Sequence[str], path: Path) -> None:
    """Draw the loss over epsilon with its confidence band, one panel per data set."""
    from matplotlib.figure import Figure

    columns = min(4, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    colors = {method: f"C{i}" for i, method in enumerate(METHODS)} | {KMEANS: "0.6"}
    drawn: dict[str, Any] = {}
    for panel in axes[len(names) :]:
        panel.set_visible(False)
    for name, panel in zip(names, axes, strict=False):
        for method in METHODS:
            curve = curves.get((name, method), {})
            found = [curve.get(None if None in curve else epsilon, {}) for epsilon in EPSILONS]
            if not all(found):
                continue
            points = [interval(list(losses.values())) for losses in found]
            mean = np.array([point[0] for point in points])
            half = np.nan_to_num([point[1] for point in points])
            line = ":" if method == KMEANS else "-"
            (drawn[method],) = panel.plot(
                EPSILONS, mean, line, color=colors[method], marker="o", markersize=3
            )
            low = np.maximum(mean - half, mean / 10)
            panel.fill_between(EPSILONS, low, mean + half, color=colors[method], alpha=0.2, lw=0)
        panel.set_title(name, fontsize=10)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        panel.set_xlabel("epsilon")
        panel.grid(alpha=0.3)
    figure.legend(drawn.values(), drawn.keys(), loc="outside upper center", ncols=7, frameon=False)
    figure.savefig(path, dpi=80)


def main() -> None:
    """Run everything that was asked for, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="directory of NAME.npz files")
    parser.add_argument("--data", nargs="+", help="data sets, or FILE.npz:K (default: all)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--every", action="store_true", help="PEMeans beyond 16 columns: hours")
    parser.add_argument("--runs", type=int, default=20, help="runs per epsilon (paper: 50)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so many")
    parser.add_argument("--output", type=Path, default=Path("build/loss"))
    options = parser.parse_args()

    until = time.monotonic() + 60 * options.minutes
    loaded = {name: load(name, options.data_dir) for name in options.data or names_of()}
    data = [each for each in loaded.values() if each is not None]
    missing = [name for name, each in loaded.items() if each is None]
    if missing:
        print(f"Skipped, because their files are missing: {', '.join(missing)}\n")
    if not data:
        parser.error("no data set is left.")
    options.output.mkdir(parents=True, exist_ok=True)
    tasks = tasks_of(data, options.methods, options.runs, options.every)
    outcomes = run_all(data, tasks, options.jobs, options.output / "runs.csv", until)
    curves = curves_of(outcomes)
    names = [each.name for each in data if any(each.name == name for name, _ in curves)]
    capped = sorted({o.task.data for o in outcomes if o.capped})
    parts = [auc_table(curves, names), comparison(curves, names), lift_table()]
    parts.append(loss_table(curves, names))
    parts.insert(1, "In brackets: whole runs. The population was capped on: " + ", ".join(capped))
    text = "\n\n".join(parts)
    (options.output / "tables.md").write_text(text + "\n")
    plot(curves, names, options.output / "loss.png")
    print("\n" + text)


if __name__ == "__main__":
    main()
