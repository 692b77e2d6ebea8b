"""A client's step against scikit-learn's: ``python benchmarks/client_step.py``.

One line per size: the time of one fused Lloyd iteration of scikit-learn in float64 (its
private kernel, so that nothing but the iteration is timed), and over it those of a
client's statistics, by NumPy and by the compiled kernel (``fast``). These start from
the records in the user's units, so they clip, scale and quantise them each time, and
are exact. All use the same threads on the same array and are run in turn, three times
each; each time is the best of several turns. Memory is what a step with a radius
allocates beyond the records.
"""

import timeit
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_dense
from threadpoolctl import ThreadpoolController

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans.algorithms.numerics import assignment
from flower_kmeans.algorithms.numerics.assignment import cluster_sums, vote_counts
from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.algorithms.numerics.projection import second_moments
from flower_kmeans.data.domain import Box, GridRecords

FRACTION_BITS = 16
# Records, clusters, columns. The first two carry the aims: 1.2 and 2 times
# scikit-learn's time.
SIZES = (
    (1_000_000, 64, 32),
    (1_000_000, 16, 5),
    (1_000_000, 16, 2),
    (1_000_000, 4, 2),
    (273_280, 16, 3),
    (10_000, 16, 3),
    (100_000, 16, 32),
    (100_000, 256, 32),
    (20_000, 100, 784),
    (2_000_000, 16, 5),
)

# threads of a library go on turning for a while, and hinder the call after
_IN_A_ROW = 3

TIMES = (
    "scikit_learn", "sums", "with_radius", "cells", "power_cells", "votes", "moments",
    "fast_sums", "fast_with_radius", "fast_cells", "fast_power_cells", "fast_votes",
    "fast_moments",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One turn of all three at a size."""

    records: int
    clusters: int
    columns: int
    run: int


class Steps(NamedTuple):
    """The calls of a size by name, and the most memory in bytes of one with a radius."""

    calls: dict[str, Callable[[], object]]
    memory: int


def with_kernel(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call on the compiled kernel, however little work it is."""

    def compiled() -> object:
        with mock.patch.object(assignment, "_FUSED_WORK", 0):
            return call()

    return compiled


def sample(n: int, k: int, d: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return records (n, d) around k centres in [-1, 1]^d, and the centres."""
    rng = np.random.default_rng(0)
    centers = rng.uniform(-0.9, 0.9, (k, d))
    records = centers[rng.integers(0, k, n)]
    records += rng.normal(0, 0.2, (n, d))
    return np.clip(records, -1, 1, out=records), centers


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory that a call held at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@lru_cache(maxsize=1)
def steps_of(n: int, k: int, d: int) -> Steps:
    """Return the calls of a size, each run once already, and checked against each other."""
    records, centers = sample(n, k, d)
    weights, labels = np.ones(n), np.full(n, -1, dtype=np.int32)
    new, sizes, moves = np.zeros_like(centers), np.zeros(k), np.zeros(k)
    blas = ThreadpoolController().select(user_api="blas")
    threads = max(pool["num_threads"] for pool in blas.info())

    def scikit_learn() -> None:
        # as KMeans does for a whole fit: its own threads call BLAS
        with blas.limit(limits=1):
            lloyd_iter_chunked_dense(
                records, weights, centers, new, sizes, labels, moves, threads
            )

    grid = GridRecords(records, Box(-np.ones(d), np.ones(d)), FRACTION_BITS)
    points = np.rint(centers * 2**FRACTION_BITS).astype(np.int64)
    radius2 = int(0.16 * d) * 4**FRACTION_BITS or 4**FRACTION_BITS // 8

    radii = np.full(k, 2**FRACTION_BITS // 2)
    weights_of_cells = np.arange(k, dtype=np.int64) << FRACTION_BITS
    own: dict[str, Callable[[], object]] = {
        "sums": lambda: cluster_sums(grid, points),
        "with_radius": lambda: cluster_sums(grid, points, radius2),
        "cells": lambda: cell_sums(grid, points, radii, FRACTION_BITS, weighted=True),
        "power_cells": lambda: cell_sums(
            grid, points, radii, FRACTION_BITS, weights=weights_of_cells
        ),
        "votes": lambda: vote_counts(grid, [points.astype(np.float64)], k),
        "moments": lambda: second_moments(grid),
    }
    calls = {"scikit_learn": scikit_learn, **own}
    calls |= {f"fast_{name}": with_kernel(call) for name, call in own.items()}
    for call in calls.values():
        call()
    counts = own["sums"]()[1]  # type: ignore[index]
    agreeing = np.abs(counts - np.bincount(labels, minlength=k)).sum()
    # only records that the grid moved across a border differ
    assert agreeing <= 2e-4 * n + 2
    return Steps(calls, peak_bytes(own["with_radius"]))


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the times in seconds and the memory in bytes."""
    with mock.patch.object(assignment, "_FUSED_WORK", np.inf):
        steps = steps_of(task.records, task.clusters, task.columns)
        found: dict[str, Any] = {"memory": steps.memory}
        for name, call in steps.calls.items():
            found[name] = min(timeit.repeat(call, repeat=_IN_A_ROW, number=1))
    return found


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best time of each size."""

    def least(of: list[Row], name: str) -> float:
        return min(row[name] for row in of)

    def ratio(name: str) -> Callable[[list[Row]], str]:
        return lambda of: f"{least(of, name) / least(of, 'scikit_learn'):.2f}"

    return tables.by_key(
        rows,
        {"records": "records", "k": "clusters", "d": "columns"},
        {
            "sklearn ms": lambda of: f"{1e3 * least(of, 'scikit_learn'):.2f}",
            **{name.replace("_", " "): ratio(name) for name in TIMES[1:]},
            "memory MB": lambda of: f"{least(of, 'memory') / 2**20:.1f}",
        },
        0,
    )


SUITE = Suite(
    "client-step",
    "One client's statistics (clip, scale, quantise, assign, sum; exact integers) by NumPy and by "
    "the compiled kernel, over one fused iteration of scikit-learn's KMeans in float64 on the same "
    "array with the same threads; the best of the turns, and the memory of a step beyond the data.",
    Task,
    {**dict.fromkeys(TIMES, float), "memory": int},
    # Size by size: turns of one size share its records.
    lambda options: (Task(*size, run) for size in SIZES for run in range(options.runs)),
    measure,
    tables_of,
    runs=9,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
