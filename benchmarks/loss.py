"""The k-means loss of private clusterings against epsilon, as in PE-means' paper (section IV).

    python benchmarks/loss.py --data-dir DIR --runs 20 --output build/loss

The protocol is the paper's, and stands in ``SUITE``. Every private clustering is a
whole run of a strategy through ``simulate``: a server adds all of the noise, as in the
paper. Beside the strategies stand scikit-learn's KMeans on the pooled records (the best
of ten starts by k-means++), IBM's diffprivlib where it is installed (pure epsilon,
bounds as FastLloyd), and the paper's printed figures (50 runs on its own copies of the
data).
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from protocols import (
    KMEANS,
    PROJECTED,
    ball_of,
    best_of_ten,
    box_of,
    in_ball,
    over_parts,
    pe_means_delta,
    strategy_of,
)
from scipy.integrate import trapezoid
from scipy.stats import gmean

from bench import scales, script, tables
from bench.data import Data, family_of
from bench.harness import Options, Row, Suite, Task
from bench.runner import load_suite
from bench.tables import Curves, areas_of, markdown, shown_half
from flower_kmeans import Ball, PrivacyBudget, strategies
from flower_kmeans.arrays import FloatArray
from flower_kmeans.metrics import nicv
from flower_kmeans.report.curves import Curve, draw_lines, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AT_EPSILON = 1.0
RELATIVE_AT = (0.25, 1.0, 4.0)
"""Epsilons at which costs stand beside their yardsticks."""
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
DIFFPRIVLIB = "diffprivlib"
BALL_METHODS = ("SynopsisKMeans", "SynopsisKMeans:oblivious", "PEMeans", "HDPEMeans")
METHODS = (
    KMEANS,
    *BALL_METHODS,
    "FastLloyd",
    "FastLloyd:paper",
    "SuLloyd",
    DIFFPRIVLIB,
)
"""``SynopsisKMeans:oblivious`` runs under ``oblivious-server``; the paper's FastLloyd does not
relocate."""
COLORS = {method: f"C{i}" for i, method in enumerate(METHODS)} | {KMEANS: "0.6"}
BLOBS = sorted(((k, d) for k in (4, 16, 64) for d in (4, 16, 64, 128)), key=math.prod)
DATASETS = (
    *("iris", "birch2", *(f"g2mg_{d}_30" for d in (2, 4, 16, 128))),
    *(f"blobs_{k}_{d}" for k, d in BLOBS),
)
"""Those of few columns first: they take the least time."""


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
    "adult": Printed(0.0015, 0.0056, None, 0.0155, 0.0213),
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


# --------------------------------------------------------------------------- runs


def applies(method: str, n_features: int, every: bool) -> bool:
    """Return whether a method runs on data with ``n_features`` columns."""
    if method == "HDPEMeans":
        return n_features > PROJECTED
    if method == "PEMeans":
        return every or n_features <= PROJECTED
    return method != DIFFPRIVLIB or find_spec(DIFFPRIVLIB) is not None


def tasks_of(options: Options, every: bool = False) -> Iterator[Task]:
    """Yield every run, all first runs before any second: a table is whole as early as it can be.

    ``every`` has PEMeans beyond 16 columns, too, which takes hours.
    """
    n_features = {name: options.load(name).records.shape[1] for name in options.data}
    for run, name, method in product(range(options.runs), options.data, METHODS):
        if applies(method, n_features[name], every):
            for epsilon in (None,) if method == KMEANS else EPSILONS:
                yield Task(name, method, epsilon, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run one method, and return its loss and whether its population was capped."""
    data = in_ball(task.data, options)
    started = time.perf_counter()
    centroids, capped = cluster(data, task)
    seconds = round(time.perf_counter() - started, 2)
    return {"loss": nicv(data.records, centroids), "seconds": seconds, "capped": capped}


def cluster(data: Data, task: Task) -> tuple[FloatArray, bool]:
    """Return the centroids of one run, and whether PE-means' population was capped."""
    largest = float(np.abs(data.records).max())
    if task.method == KMEANS:
        return best_of_ten(data, task.run).cluster_centers_, False
    if task.method == DIFFPRIVLIB:
        from diffprivlib.models import KMeans as PrivateKMeans

        given = {
            "epsilon": task.epsilon,
            "bounds": (-largest, largest),
            "random_state": task.run,
        }
        model = PrivateKMeans(data.n_clusters, **given).fit(data.records)
        return np.asarray(model.cluster_centers_), False
    oblivious = task.method.endswith(":oblivious")
    strategy = strategy_of(
        task.method,
        data,
        ball_of(data) if task.method in BALL_METHODS else box_of(data, largest),
        PrivacyBudget(task.epsilon, pe_means_delta(len(data.records))),
        task.run,
        **{} if oblivious else {"trust": "trusted-server"},
    )
    result = over_parts(strategy, data, task.run)
    return result.centroids, any(
        "max_candidates" in note for note in result.report.warnings
    )


# --------------------------------------------------------------------------- figures


def digits(value: float) -> str:
    """Return a number with four decimals, as in the paper, or a smaller one with two digits."""
    return f"{value:.4f}" if value >= 0.01 else f"{value:.2g}"


def auc_table(curves: Curves, names: Sequence[str]) -> str:
    """Return areas with their intervals and the printed figures, as a markdown table."""
    methods = [
        method for method in METHODS if any(method == found for _, found in curves)
    ]
    head = [
        "data",
        *methods,
        "printed: PE",
        "HDPE",
        "FastLloyd",
        "DP-Lib",
        "non-private",
    ]
    lines = []
    for name in names:
        cells = [name]
        for method in methods:
            areas = areas_of(curves.get((name, method), {}), EPSILONS)
            mean, half = interval(areas) if areas else (math.nan, math.nan)
            spread = "" if len(areas) < 2 else f" {shown_half(half, mean)}"
            cells.append(f"{digits(mean)}{spread} ({len(areas)})" if areas else "")
        row = PRINTED.get(name)
        if row is None:
            cells += [""] * 5
        else:
            figures = (*row[1:], row.non_private_loss * (EPSILONS[-1] - EPSILONS[0]))
            cells += ["" if figure is None else f"{figure:.4f}" for figure in figures]
        lines.append(cells)
    return markdown(head, lines)


def comparison(curves: Curves, names: Sequence[str]) -> str:
    """Return each private-evolution AUC and SynopsisKMeans' over the printed ones, as a table."""
    head = [
        "data",
        "ours, PE or HDPE",
        "same printed",
        "ratio",
        "SynopsisKMeans over best printed",
    ]
    lines, ratios = [], []
    for name in names:
        row = PRINTED.get(name)
        if row is None:
            continue
        best = min(figure for figure in (row.pe, row.hdpe) if figure is not None)
        ours = areas_of(curves.get((name, "SynopsisKMeans"), {}), EPSILONS)
        share = float(np.mean(ours)) / best if ours and best >= 0.001 else None
        ratios += [] if share is None else [share]
        for method, figure in (("PEMeans", row.pe), ("HDPEMeans", row.hdpe)):
            areas = areas_of(curves.get((name, method), {}), EPSILONS)
            if figure is None or not areas:
                continue
            mean = float(np.mean(areas))
            cells = [
                name,
                f"{method} {digits(mean)}",
                f"{figure:.4f}",
                f"{mean / figure:.2f}",
            ]
            cells.append("" if share is None else f"{share:.2f}")
            lines.append(cells)
    table = markdown(head, lines)
    if ratios:
        mean = gmean(ratios)
        table += f"\n\nSynopsisKMeans: {mean:.3f} as a geometric mean over {len(ratios)} rows."
    return table


def lift_noise(name: str, epsilon: float) -> float:
    """Return the loss by noise alone in the paper's last round, for equal clusters.

    A centroid is a noisy sum, with noise sigma in d columns, divided by N / k.
    """
    n, (k, d) = 20_000, map(int, name.split("_")[1:])
    budget = PrivacyBudget(epsilon, pe_means_delta(n))
    made = strategies.HDPEMeans(
        k, Ball(1.0, np.zeros(d)), budget, n, n_clients=2, equal_noise=True
    )
    (sums,) = (
        release for release in made.plan.rounds[-1] if release.name == "lift-sums"
    )
    return d * (sums.noise_multiplier * k / n) ** 2


def lift_table() -> str:
    """Return areas from epsilon 0.5 on of k-means' loss and the lift's noise, beside the printed.

    Where these come near the printed area from 0.25 on, no votes could have reached it.
    """
    head = [
        "data",
        "k-means and the lift's noise, epsilon 0.5 to 4",
        "printed HDPE, 0.25 to 4",
    ]
    lines = []
    for name, row in PRINTED.items():
        if row.hdpe is None:
            continue
        losses = [
            row.non_private_loss + lift_noise(name, epsilon) for epsilon in EPSILONS
        ]
        without_first = trapezoid(losses[1:], EPSILONS[1:])
        lines.append([name, f"{without_first:.4f}", f"{row.hdpe:.4f}"])
    return markdown(head, lines)


def ratios(rows: Sequence[Row]) -> list[Row]:
    """Return rows with losses over the mean loss of `KMEANS`, of data sets that have it."""
    without = tables.grouped(
        [r for r in rows if r["method"] == KMEANS], ["data"], "loss"
    )
    return [
        {**row, "loss": row["loss"] / float(np.mean(without[row["data"],]))}
        for row in rows
        if row["method"] != KMEANS and (row["data"],) in without
    ]


def scale_of(name: str, options: Options) -> scales.Scale:
    """Return the yardsticks of a data set in this protocol. NOT PRIVATE."""
    data = in_ball(name, options)
    delta = pe_means_delta(len(data.records))
    return scales.scale_of(data.records, data.n_clusters, delta, EPSILONS)


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows by data set, in the order of `DATASETS` and then of the rows, and by method."""
    names = tables.unique([*DATASETS, *(row["data"] for row in rows)])
    return sorted(
        rows, key=lambda row: (names.index(row["data"]), METHODS.index(row["method"]))
    )


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return all tables."""
    rows = ordered(rows)
    curves = tables.curves_of(rows, "loss")
    names = tables.unique(row["data"] for row in rows)
    capped = sorted({row["data"] for row in rows if row["capped"]})
    measured = {name: scale_of(name, options) for name in names if name in options.data}
    parts = [
        auc_table(curves, names),
        "In brackets: whole runs. The population was capped on: "
        + ", ".join(capped or ["none"]),
        comparison(curves, names),
        lift_table(),
        tables.over_grid(rows, "loss", EPSILONS, form=".3g", count=False),
        "Losses over that of KMeans:",
        tables.over_grid(ratios(rows), "loss", EPSILONS, count=False),
        *scales.relative_tables(curves, measured, EPSILONS, RELATIVE_AT),
    ]
    return "\n\n".join(parts)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Return the loss over epsilon with its confidence band, one panel per data set."""
    panels = tables.panels(tables.curves_of(ordered(rows), "loss"))
    return draw_lines(
        panels, EPSILONS, colors=COLORS, dashed=(KMEANS,), ylabel="loss", columns=4
    )


def cluster_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Return the loss at one epsilon over clusters, a panel for each width (the paper's fig. 4)."""
    at = [row for row in rows if row["epsilon"] in (None, AT_EPSILON)]
    panels: dict[str, dict[str, Curve]] = {}
    for (name, method), losses in tables.grouped(
        at, ("data", "method"), "loss"
    ).items():
        family, numbers = family_of(name) or ("", ())
        if family == "blobs":
            k, d = numbers
            curves = panels.setdefault(f"d = {d}, epsilon {AT_EPSILON:g}", {})
            curves.setdefault(method, {})[k] = dict(enumerate(losses))
    return draw_lines(
        panels,
        sorted(
            {
                k
                for curves in panels.values()
                for curve in curves.values()
                for k in curve
            }
        ),
        colors=COLORS,
        dashed=(KMEANS,),
        xlabel="clusters",
        ylabel="loss",
        columns=4,
    )


SUITE = Suite(
    "loss",
    "The protocol of PE-means' paper (section IV): records centred and scaled to a largest norm of "
    "1, delta = N^-1.1, and the area (AUC) under the mean squared distance to the nearest centroid "
    "over epsilon = 0.25, 0.5, 1, 2, 4; less is better. Whole runs for single records over two "
    "clients under trusted-server, or oblivious-server where the name says so. Centre, norm and N "
    "are read off the records, which an application must not do.",
    Task,
    {"loss": float, "seconds": float, "capped": bool},
    tasks_of,
    measure,
    tables_of,
    {"loss": plot, "loss-clusters": cluster_plot},
    DATASETS,
    choices={"method": METHODS},
    runs=20,
)


def main() -> None:
    """Run everything that was asked for, and write it down."""
    parser = script.parser_of(SUITE)
    parser.add_argument(
        "--every", action="store_true", help="PEMeans beyond 16 columns: hours"
    )
    parsed = parser.parse_args()
    # The suite of this file as a module: in place of that of a script the runner would
    # load it anew, and lose these tasks.
    suite = load_suite(__file__)
    script.run(replace(suite, tasks=partial(tasks_of, every=parsed.every)), parsed)


if __name__ == "__main__":
    main()
