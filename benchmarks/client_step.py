"""A client's step against scikit-learn's: ``python benchmarks/client_step.py``.

One line per size: the time of one fused Lloyd iteration of scikit-learn in float64 (its private
kernel, so that nothing but the iteration is timed), of ``cluster_sums`` without and with a radius,
and their ratios. ``cluster_sums`` starts from the records in the user's units, so it clips, scales
and quantises them each time; its answer is exact. Both use the same threads on the same array; all
are run in turn, and each time is the best of several turns. Memory is what one step allocates
beyond the records.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster._k_means_lloyd import lloyd_iter_chunked_dense
from threadpoolctl import threadpool_info, threadpool_limits

from flower_kmeans.assignment import cluster_sums
from flower_kmeans.domain import Box, GridRecords

FRACTION_BITS = 16
# Records, clusters, columns. The first two carry the aims: 1.2 and 2 times scikit-learn's time.
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


def sample(n: int, k: int, d: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return records (n, d) around k centres in [-1, 1]^d, and the centres."""
    rng = np.random.default_rng(0)
    centers = rng.uniform(-0.9, 0.9, (k, d))
    records = centers[rng.integers(0, k, n)]
    records += rng.normal(0, 0.2, (n, d))
    return np.clip(records, -1, 1, out=records), centers


def best_of(calls: list[Callable[[], object]], turns: int) -> list[float]:
    """Return the least time of each call in seconds; the calls take turns."""
    times = [float("inf")] * len(calls)
    for _ in range(turns):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[i] = min(times[i], time.perf_counter() - start)
    return times


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory that a call held at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure(n: int, k: int, d: int, threads: int, turns: int) -> list[float]:
    """Return the three times in seconds and the memory in bytes."""
    records, centers = sample(n, k, d)
    weights, labels = np.ones(n), np.full(n, -1, dtype=np.int32)
    new, sizes, moves = np.zeros_like(centers), np.zeros(k), np.zeros(k)

    def scikit_learn() -> None:
        with threadpool_limits(1, user_api="blas"):  # as KMeans does: its own threads call BLAS
            lloyd_iter_chunked_dense(records, weights, centers, new, sizes, labels, moves, threads)

    grid = GridRecords(records, Box(-np.ones(d), np.ones(d)), FRACTION_BITS)
    points = np.rint(centers * 2**FRACTION_BITS).astype(np.int64)
    radius2 = int(0.16 * d) * 4**FRACTION_BITS or 4**FRACTION_BITS // 8

    def plain() -> object:
        return cluster_sums(grid, points)

    def with_radius() -> object:
        return cluster_sums(grid, points, radius2)

    scikit_learn()
    agreeing = np.abs(plain()[1] - np.bincount(labels, minlength=k)).sum()  # type: ignore[index]
    assert agreeing <= 2e-4 * n + 2  # only records that the grid moved across a border differ
    return [*best_of([scikit_learn, plain, with_radius], turns), peak_bytes(with_radius)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9, help="repetitions of each measurement")
    turns = parser.parse_args().turns
    threads = max(pool["num_threads"] for pool in threadpool_info())
    print(f"{threads} threads, NumPy {np.__version__}; times in ms, best of {turns} turns")
    print(
        f"{'records':>9} {'k':>4} {'d':>4} | {'sklearn':>8} {'sums':>8} {'ratio':>6} "
        f"{'radius':>8} {'ratio':>6} | {'memory MB':>9}"
    )
    for n, k, d in SIZES:
        theirs, plain, radius, memory = measure(n, k, d, threads, turns)
        print(
            f"{n:9,} {k:4} {d:4} | {theirs * 1e3:8.2f} {plain * 1e3:8.2f} {plain / theirs:6.2f} "
            f"{radius * 1e3:8.2f} {radius / theirs:6.2f} | {memory / 2**20:9.1f}"
        )


if __name__ == "__main__":
    main()
