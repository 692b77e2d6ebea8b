"""The expected loss of a plan: its strategy on generated records, before any run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from flower_kmeans.arrays import FloatArray
from flower_kmeans.cli.plot import require_file
from flower_kmeans.data.generators import separated_clusters, sizes_of
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private
from flower_kmeans.metrics import inertia
from flower_kmeans.report.curves import Curve, draw_lines

if TYPE_CHECKING:
    from flower_kmeans.strategies import KMeansStrategy

Make = Callable[[float, FloatArray], "KMeansStrategy"]
"""Takes an epsilon and the server's points, and returns the strategy."""

RUNS = 3
KINDS = {"easy": 0.3, "overlapping": -0.1}
"""Kinds of generated records, and their degree of separation (`data.generators`).

Without privacy, k-means assigns nearly all easy records to their cluster, and about
five of six overlapping records.
"""
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the user's epsilon
_MOST_NUMBERS = 5 * 10**7


class PreviewSizes(NamedTuple):
    """The numbers of a plan."""

    n_records: int
    n_features: int
    n_clusters: int
    n_points: int = 0  # number of the server's points


class Case(NamedTuple):
    """Generated records in [-1, 1], and costs to compare with."""

    records: FloatArray  # (n, d)
    points: FloatArray  # (m, d), the server's own
    centers: FloatArray  # (k, d), of the generated clusters
    least: float  # cost of k-means without privacy
    single: float  # cost of one cluster


class Loss(NamedTuple):
    """The losses of one private run."""

    kind: str
    epsilon: float
    seed: int
    ratio: float  # its cost over the cost of k-means without privacy
    single: float  # cost of one cluster over the cost of k-means without privacy
    found: int  # number of generated clusters with different nearest centroids


def case_of(kind: str, seed: int, sizes: PreviewSizes) -> Case:
    """Return generated records of Gaussian clusters of equal sizes.

    They and the server's points are scaled by their own range, so the bounds are as
    tight as possible.
    """
    require("sklearn.cluster", "A preview", "sklearn")
    from sklearn.cluster import KMeans

    n_records, n_features, n_clusters, n_points = sizes
    each = sizes_of(n_records + n_points, np.ones(n_clusters))
    made = separated_clusters(each, n_features, KINDS[kind], seed)
    low = made.records.min(axis=0)
    width = made.records.max(axis=0) - low
    every = 2 * (made.records - low) / width - 1
    centers = 2 * (made.centers - low) / width - 1
    records = every[:n_records]
    points = every[n_records:]
    # The generated centres are a start, too: they are near the optimum, which random
    # starts may miss.
    starts = (centers, 1), ("k-means++", 3)
    models = (
        KMeans(n_clusters, init=init, n_init=n, random_state=seed).fit(records)
        for init, n in starts
    )
    least = min(float(model.inertia_) for model in models)
    mean = records.mean(axis=0, keepdims=True)
    return Case(records, points, centers, least, inertia(records, mean))


def losses(
    make: Make, epsilon: float, sizes: PreviewSizes, seed: int = 0
) -> Iterator[Loss]:
    """Yield the results of `RUNS` runs for each kind of records, and several epsilons.

    Parameters
    ----------
    make : callable
        ``make(epsilon, points)`` returns the strategy for records in [-1, 1].
    epsilon : float
        The middle one of the epsilons.
    sizes : PreviewSizes
    seed : int
        Seed of the first records. The noise has no seed.
    """
    from flower_kmeans.simulation import simulate

    n_records, n_features, n_clusters, _ = sizes
    if n_records <= n_clusters:
        raise ConfigurationError(
            "Expected --n-records above --clusters with --simulate, or k-means costs nothing. "
            f"Got {n_records} and {n_clusters} instead."
        )
    if n_records * n_features > _MOST_NUMBERS:
        raise ConfigurationError(
            f"Expected --n-records x --features of at most {_MOST_NUMBERS:,} with --simulate, "
            f"which generates them. Got {n_records:,} x {n_features:,} instead: take fewer "
            "records, with which the loss is larger."
        )
    for kind in KINDS:
        for each in range(seed, seed + RUNS):
            case = case_of(kind, each, sizes)
            for factor in _FACTORS:
                strategy = make(factor * epsilon, case.points)
                # The records are in random order.
                parts = np.array_split(case.records, strategy.n_clients or 1)
                clustering = simulate(strategy, parts)
                yield Loss(
                    kind,
                    factor * epsilon,
                    each,
                    clustering.inertia(case.records) / case.least,
                    case.single / case.least,
                    len({*clustering.predict(case.centers, nearest=True).tolist()}),
                )


def show_losses(
    console: Console,
    make: Make,
    epsilon: float,
    sizes: PreviewSizes,
    seed: int = 0,
    chart: Path | None = None,
) -> None:
    """Print a table of losses by epsilon, and draw it if a file is named.

    Parameters
    ----------
    console : Console
    make, epsilon, sizes, seed
        As for `losses`.
    chart : Path, optional
        A new file for a chart. It needs matplotlib.
    """
    if chart is not None:
        require_file("--chart", chart)  # before the runs, which may take long
    runs: Iterable[Loss] = losses(make, epsilon, sizes, seed)
    # A progress bar can only move in a terminal.
    if console.is_interactive:
        total = len(KINDS) * RUNS * len(_FACTORS)
        runs = track(runs, "simulating", total, console=console, transient=True)
    rows = list(runs)

    head = (
        "Expected loss: the cost over that of k-means without privacy, and how many of "
        f"{sizes.n_clusters} clusters get a separate centroid. Medians of {RUNS} runs, in brackets "
        "the least and the largest."
    )
    seeds = f"Seeds of the records: {seed} to {seed + RUNS - 1}. The noise has none."
    if chart is not None:
        seeds += " The chart has means of the runs."
    console.print(Text(head), soft_wrap=True)
    console.print(_table(rows, epsilon, sizes.n_clusters))
    console.print(Text(f"{_generated(sizes)}\n{seeds}"), soft_wrap=True)
    if chart is not None:
        _draw(chart, rows)


def _table(rows: Sequence[Loss], epsilon: float, n_clusters: int) -> Table:
    """Return a table with a row of losses for each epsilon and for a single cluster."""
    table = Table("epsilon", box=box.SIMPLE_HEAD, pad_edge=False)
    for kind in KINDS:
        table.add_column(f"{kind}: loss", justify="right")
        table.add_column("clusters", justify="right")
    for factor in _FACTORS:
        cells = [f"{factor * epsilon:.4g}"]
        for kind in KINDS:
            key = kind, factor * epsilon
            found = [row for row in rows if (row.kind, row.epsilon) == key]
            cells.append(_spread([row.ratio for row in found]))
            cells.append(f"{median(row.found for row in found)} of {n_clusters}")
        table.add_row(*cells)
    cells = ["(one cluster)"]
    for kind in KINDS:
        single = median(row.single for row in rows if row.kind == kind)
        cells += [f"{single:.2f}", f"1 of {n_clusters}"]
    table.add_row(*cells)
    return table


def _generated(sizes: PreviewSizes) -> str:
    """Return a description of the generated records."""
    easy, hard = KINDS.values()
    own = f", and {sizes.n_points:,} for the server," if sizes.n_points else ""
    return (
        f"{sizes.n_records:,} records{own} are generated from {sizes.n_clusters} Gaussian clusters "
        f"of equal sizes in {sizes.n_features} columns of numbers (no categories) and dealt to the "
        f"clients at random. Easy clusters are well separated (degree {easy}), overlapping ones "
        f"are not ({hard}). The bounds are the generated range: wider bounds or non-Gaussian "
        "clusters lose more."
    )


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _draw(path: Path, rows: Sequence[Loss]) -> None:
    """Write a chart of the losses, a panel for each kind of records."""
    panels: dict[str, dict[str, Curve]] = {}
    for row in rows:
        curves = panels.setdefault(
            f"{row.kind} clusters", {"private": {}, "one cluster": {}}
        )
        curves["private"].setdefault(row.epsilon, {})[row.seed] = row.ratio
        # a level line
        curves["one cluster"].setdefault(None, {})[row.seed] = row.single
    figure = draw_lines(
        panels,
        sorted({row.epsilon for row in rows}),
        dashed=("one cluster",),
        ylabel="mean cost / that of k-means",
        bands=False,
    )
    with open_private(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())
