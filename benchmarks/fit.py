"""Time of whole private fits in this process, and memory of PE-means with its full population.

    python benchmarks/fit.py

Times are those of making a strategy and of ``simulate``, over two clients of
``make_blobs(20000, n_features=16, centers=16, random_state=1)`` scaled to a largest norm of 1, at
epsilon 1; the least of ``--runs``, and over that of one start of scikit-learn's KMeans on the
pooled records, measured in turn. Compare within one table only: seconds are this machine's.

Memory is what one client allocates at most for the answer of a round of votes (tracemalloc), for
more and more candidates up to the paper's k L = k N / 5, beside what its records take as float64.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from loss import load
from sklearn.cluster import KMeans

from flower_kmeans import Ball, Box, PrivacyBudget, simulate
from flower_kmeans.algorithms import State
from flower_kmeans.algorithms.pe_means import PEMeansAlgorithm
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.data import Data
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.strategies import FastLloyd, KMeansStrategy, PEMeans, SynopsisKMeans

N_CLIENTS = 2
DATA = "blobs_16_16"
KMEANS = "KMeans"
FITS = (
    KMEANS,
    "SynopsisKMeans, trusted-server",
    "SynopsisKMeans, distributed-noise",
    "PEMeans, trusted-server",
    "FastLloyd, oblivious-server",
)
VARIATIONS = (512, 1_000, 4_000)
"""Variations of each candidate: the last are N / 5."""


@dataclass(frozen=True)
class Task:
    """One fit, or the memory of an answer with so many variations of each candidate."""

    fit: str
    variations: int | None
    run: int


def strategy_of(fit: str, data: Data) -> KMeansStrategy:
    """Return a strategy, with fresh keys and noise."""
    n, d = data.records.shape
    name, _, trust = fit.partition(", ")
    made: Callable[..., KMeansStrategy] = {
        "SynopsisKMeans": SynopsisKMeans,
        "PEMeans": PEMeans,
        "FastLloyd": FastLloyd,
    }[name]
    box = Box(np.full(d, -1.0), np.full(d, 1.0))
    domain = box if name == "FastLloyd" else Ball(1.0, np.zeros(d))
    budget = PrivacyBudget(1.0)
    return made(data.n_clusters, domain, budget, n, n_clients=N_CLIENTS, trust=trust)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every fit in turn, and the memory once."""
    for run in range(options.runs):
        yield from (Task(fit, None, run) for fit in FITS)
    yield from (Task("PEMeans, an answer", variations, 0) for variations in VARIATIONS)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return seconds and rounds of a fit, or candidates and bytes of an answer."""
    data = load(DATA, options)
    found: dict[str, Any] = dict.fromkeys(SUITE.measures)
    if task.variations is not None:
        return found | memory(data, task.variations)
    halves = np.array_split(data.records, N_CLIENTS)
    started = time.perf_counter()
    if task.fit == KMEANS:
        KMeans(data.n_clusters, n_init=1, random_state=task.run).fit(data.records)
    else:
        found["rounds"] = simulate(strategy_of(task.fit, data), halves).report.n_rounds
    return found | {"seconds": time.perf_counter() - started}


def memory(data: Data, n_variations: int) -> dict[str, int]:
    """Return the most memory that a client's answer takes, and that of answer and records."""
    n, d = data.records.shape
    domain, k = Ball(1.0, np.zeros(d)), data.n_clusters
    own = data.records[: n // N_CLIENTS]
    algorithm = PEMeansAlgorithm(
        k,
        domain,
        PrivacyBudget(1.0),
        n_records=n,
        n_variations=n_variations,
        max_candidates=2**22,
    )
    asked = {
        "centers": np.rint(own[:k] * 2.0**algorithm.fraction_bits).astype(np.int64),
        "variations": np.array([n_variations]),
        "seed": np.zeros(2, int),
    }
    state = State(1, {**algorithm.initial_state().arrays, **asked})
    query, records = algorithm.query(state), GridRecords(own, domain, 16)
    tracemalloc.start()
    answer = algorithm.statistic(query, records)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = sum(block.nbytes for block in answer.blocks.values())
    return {
        "candidates": algorithm.words(2),
        "peak": peak,
        "answer": size,
        "records": own.nbytes,
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return seconds of whole fits and their ratios, and the memory of answers."""
    fits = [row for row in rows if row["variations"] is None]
    least = {
        fit: min(seconds) for (fit,), seconds in tables.grouped(fits, ["fit"], "seconds").items()
    }
    rounds = {row["fit"]: row["rounds"] for row in fits}
    base = least.get(KMEANS)
    lines = [
        [
            fit,
            "" if rounds[fit] is None else str(rounds[fit]),
            f"{seconds:.2f}",
            "" if base is None else f"{seconds / base:.1f}",
        ]
        for fit, seconds in least.items()
    ]
    times = tables.markdown(["fit", "rounds", "s", "over KMeans"], lines)
    answers = [
        [
            f"{row['candidates']:,}",
            *(f"{row[name] / 1e6:.1f}" for name in ("peak", "answer", "records")),
        ]
        for row in rows
        if row["variations"] is not None
    ]
    head = ["candidates", "MB", "of it the answer", "records MB"]
    return f"{times}\n\n{tables.markdown(head, answers, 0)}"


SUITE = Suite(
    "fit",
    "Seconds of whole private fits in one process, two clients, N = 20,000 records in 16 clusters "
    "and 16 columns, epsilon 1, the least of the runs; and the most memory of a client's answer to "
    "PE-means' candidates, up to the paper's population.",
    Task,
    {
        "seconds": float | None,
        "rounds": int | None,
        "candidates": int | None,
        "peak": int | None,
        "answer": int | None,
        "records": int | None,
    },
    tasks_of,
    measure,
    tables_of,
    runs=5,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
