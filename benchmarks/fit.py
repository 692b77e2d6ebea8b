"""Time of whole private fits in this process.

    python benchmarks/fit.py

Times are those of making a strategy and of ``simulate``, over two clients of blobs in
16 columns and 16 clusters, scaled to a largest norm of 1, at epsilon 1; the least of
``--runs``, and over that of one converged start of scikit-learn's KMeans on the pooled
records, measured in turn. Compare within one table only: seconds are this machine's.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocols import KMEANS, ball_of, box_of, in_ball
from protocols import strategy_of as named
from sklearn.cluster import KMeans

from bench import script, tables
from bench.data import Data
from bench.harness import Options, Row, Suite, grid
from flower_kmeans import PrivacyBudget, simulate
from flower_kmeans.strategies import KMeansStrategy

N_CLIENTS = 2
SMALL, LARGE = "blobs_16_16", "manyblobs_1000000_16_16"
FITS = (
    KMEANS,
    "SynopsisKMeans, trusted-server",
    "SynopsisKMeans, distributed-noise",
    "PEMeans, trusted-server",
    "FastLloyd, oblivious-server",
)


@dataclass(frozen=True)
class Task:
    """One fit."""

    data: str
    fit: str
    run: int


def strategy_of(fit: str, data: Data) -> KMeansStrategy:
    """Return a strategy, with fresh keys and noise."""
    name, _, trust = fit.partition(", ")
    domain = box_of(data) if name == "FastLloyd" else ball_of(data)
    return named(name, data, domain, PrivacyBudget(1.0), 0, N_CLIENTS, trust=trust)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return seconds and rounds of a fit."""
    data, rounds = in_ball(task.data, options), None
    halves = np.array_split(data.records, N_CLIENTS)
    started = time.perf_counter()
    if task.fit == KMEANS:
        KMeans(data.n_clusters, n_init=1, random_state=task.run).fit(data.records)
    else:
        rounds = simulate(strategy_of(task.fit, data), halves).report.n_rounds
    return {"seconds": time.perf_counter() - started, "rounds": rounds}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return seconds of whole fits and their ratios."""

    def least(of: Sequence[Row]) -> float:
        return min((row["seconds"] for row in of), default=math.nan)

    def base(of: list[Row]) -> float:
        key = of[0]["data"], KMEANS
        return least([row for row in rows if (row["data"], row["fit"]) == key])

    return tables.by_key(
        rows,
        {"data": "data", "fit": "fit"},
        {
            "rounds": lambda of: str(of[0]["rounds"] or ""),
            "s": lambda of: f"{least(of):.2f}",
            "over KMeans": lambda of: f"{least(of) / base(of):.1f}",
        },
    )


SUITE = Suite(
    "fit",
    "Seconds of whole private fits in one process, two clients, 20,000 or 1,000,000 records in 16 "
    "clusters and 16 columns, epsilon 1, the least of the runs.",
    Task,
    {"seconds": float, "rounds": int | None},
    # PE-means compares every record with thousands of candidates.
    lambda options: (
        task
        for task in grid(Task, options, data=(SMALL, LARGE), fit=FITS)
        if task.data == SMALL or not task.fit.startswith("PEMeans")
    ),
    measure,
    tables_of,
    runs=5,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
