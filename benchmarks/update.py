"""Time of a client's updates under an oblivious server: ``python benchmarks/update.py``.

If the server must not see the sums, every client computes the next query itself. One
line per algorithm and size: the longest update of a run and all of them together, on
one thread, the best of several runs. Records are
``make_blobs(20000, n_features=D, centers=K, random_state=1)``, epsilon 1.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from bench import script, tables
from bench.data import to_unit_ball
from bench.harness import Options, Row, Suite
from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms import (
    FastLloydAlgorithm,
    PEMeansAlgorithm,
    SynopsisAlgorithm,
)
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise

ALGORITHMS = {
    "SynopsisKMeans": SynopsisAlgorithm,
    "PEMeans": PEMeansAlgorithm,
    "FastLloyd": FastLloydAlgorithm,
}
SIZES = ((4, 2), (16, 16), (64, 16), (64, 64), (64, 128))
"""Clusters and columns. The aim of one second is that of 64 clusters in 64 columns."""


@dataclass(frozen=True)
class Task:
    """One run of an algorithm at a size."""

    method: str
    clusters: int
    columns: int
    run: int


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the longest update and all updates of a run, in seconds of the processor."""
    points = to_unit_ball(options.load(f"blobs_{task.clusters}_{task.columns}").records)
    algorithm = ALGORITHMS[task.method].planned(
        task.clusters,
        Ball(1.0, np.zeros(task.columns)),
        PrivacyBudget(1.0),
        n_records=len(points),
        seed=task.run,
    )
    records = GridRecords(points, algorithm.domain, algorithm.fraction_bits)
    plan, stream, seconds = algorithm.plan(), Stream.fresh(), []
    state = algorithm.initial_state()
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        total = algorithm.layout(number).flatten(answer_of(algorithm, query, records))
        total += server_noise(algorithm, plan, query.round, stream)
        with threadpool_limits(1):
            start = time.process_time()
            state = algorithm.update(state, algorithm.layout(number).unflatten(total))
            seconds.append(time.process_time() - start)
    return {"longest": max(seconds), "together": sum(seconds), "rounds": len(seconds)}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best times of each algorithm and size."""
    return tables.by_key(
        rows,
        {"method": "method", "k": "clusters", "d": "columns"},
        {
            "longest update, s": lambda of: f"{min(row['longest'] for row in of):.3f}",
            "all updates, s": lambda of: f"{min(row['together'] for row in of):.3f}",
            "rounds": lambda of: str(of[0]["rounds"]),
        },
    )


SUITE = Suite(
    "update",
    "What every client of an oblivious server computes between rounds: seconds of one thread, the "
    "best of the runs; 20,000 records, epsilon 1.",
    Task,
    {"longest": float, "together": float, "rounds": int},
    lambda options: (
        Task(method, *size, run)
        for run in range(options.runs)
        for method in ALGORITHMS
        for size in SIZES
    ),
    measure,
    tables_of,
    runs=3,
    alone=True,
)

if __name__ == "__main__":
    script.main(SUITE)
