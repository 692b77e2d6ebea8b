"""Time of whole private fits in this process.

    python benchmarks/fit.py

Times are those of making a strategy and of ``simulate``, over two clients of
``make_blobs(20000, n_features=16, centers=16, random_state=1)`` scaled to a largest norm of 1, at
epsilon 1; the least of ``--runs``, and over that of one start of scikit-learn's KMeans on the
pooled records, measured in turn. Compare within one table only: seconds are this machine's.
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

from flower_kmeans import PrivacyBudget, simulate
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.data import Data
from flower_kmeans.bench.harness import Options, Row, Suite, grid
from flower_kmeans.strategies import KMeansStrategy

N_CLIENTS = 2
DATA = "blobs_16_16"
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

    fit: str
    run: int


def strategy_of(fit: str, data: Data) -> KMeansStrategy:
    """Return a strategy, with fresh keys and noise."""
    name, _, trust = fit.partition(", ")
    domain = box_of(data) if name == "FastLloyd" else ball_of(data)
    return named(name, data, domain, PrivacyBudget(1.0), 0, N_CLIENTS, trust=trust)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return seconds and rounds of a fit."""
    data, rounds = in_ball(DATA, options), None
    halves = np.array_split(data.records, N_CLIENTS)
    started = time.perf_counter()
    if task.fit == KMEANS:
        KMeans(data.n_clusters, n_init=1, random_state=task.run).fit(data.records)
    else:
        rounds = simulate(strategy_of(task.fit, data), halves).report.n_rounds
    return {"seconds": time.perf_counter() - started, "rounds": rounds}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return seconds of whole fits and their ratios, and the memory of answers."""
    base = min((row["seconds"] for row in rows if row["fit"] == KMEANS), default=math.nan)

    def least(of: list[Row]) -> float:
        return min(row["seconds"] for row in of)

    return tables.by_key(
        rows,
        {"fit": "fit"},
        {
            "rounds": lambda of: str(of[0]["rounds"] or ""),
            "s": lambda of: f"{least(of):.2f}",
            "over KMeans": lambda of: f"{least(of) / base:.1f}",
        },
    )


SUITE = Suite(
    "fit",
    "Seconds of whole private fits in one process, two clients, N = 20,000 records in 16 clusters "
    "and 16 columns, epsilon 1, the least of the runs.",
    Task,
    {"seconds": float, "rounds": int | None},
    lambda options: grid(Task, options, fit=FITS),
    measure,
    tables_of,
    runs=5,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
