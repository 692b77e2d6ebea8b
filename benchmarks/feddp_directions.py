"""FedDP-KMeans: directions of the library's eigenspace code beside those of LAPACK.

    python benchmarks/feddp_directions.py --data made_16000_384 made_24000_768
    python benchmarks/feddp_directions.py --utility --data digits blobs made_16000_384 --runs 3

Without ``--utility``: second moments of generated vectors (`embeddings.made`) with the
plan's noise at epsilon 1. Printed are the share of all variance that the leading
directions of each capture, without the noise, and processor time and memory. Memory is
that of arrays, without LAPACK's own.

With ``--utility``: whole runs with the directions of each, with the same seeds and the
same noise. Printed are lost gains, (cost - k-means) / (one cluster - k-means), and their
mean difference with its standard error. The server has 100 records with noise.

digits       scikit-learn's digits about their mean, within the unit ball, k = 10.
blobs        20 round clusters in 16 columns, k = 20.
made_N_D     `embeddings.made`, k = 20.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from direct import final_state
from embeddings import RADIUS, cost, load, with_error
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from bench.yardsticks import yardsticks
from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms import FedDPAlgorithm, feddp_projection
from flower_kmeans.algorithms.numerics.eigenspace import leading_eigenvectors
from flower_kmeans.algorithms.numerics.projection import MOMENTS
from flower_kmeans.arrays import FloatArray
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise

Eigenvectors = Callable[[FloatArray, int, float], tuple[FloatArray, FloatArray]]

N_SERVER_POINTS = 100
_SERVER_NOISE = 0.3  # length of the noise of a server's point
_FIRST_SEED = 1000
_MEGABYTE = 10**6


class Table(NamedTuple):
    """Records within the unit ball, (n, d), and a number of clusters."""

    records: FloatArray
    n_clusters: int


def of_lapack(
    matrix: FloatArray, n_vectors: int, edge: float
) -> tuple[FloatArray, FloatArray]:
    """Return leading eigenvectors, (d, p), and all eigenvalues, (d,), from LAPACK."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors[:, ::-1][:, :n_vectors], values[::-1]


CODES: dict[str, Eigenvectors] = {
    "LAPACK": of_lapack,
    "eigenspace": leading_eigenvectors,
}


def table_of(name: str) -> Table:
    """Return the records of a name."""
    if name == "digits":
        digits = load_digits().data
        digits = digits - digits.mean(axis=0)
        return Table(digits / np.linalg.norm(digits, axis=1).max(), 10)
    if name == "blobs":
        rng = np.random.default_rng(5)
        centers = rng.normal(size=(20, 16))
        records = centers[rng.integers(20, size=10_000)]
        records += 0.25 * rng.normal(size=records.shape)
        return Table(records / np.linalg.norm(records, axis=1).max(), 20)
    vectors = load(name, Path())
    return Table(vectors.records, vectors.n_clusters)


def algorithm_of(table: Table, epsilon: float, seed: int) -> FedDPAlgorithm:
    """Return the algorithm of a run, whose server has some records with noise."""
    n, d = table.records.shape
    rng = np.random.default_rng(1)
    server = table.records[rng.choice(n, N_SERVER_POINTS)]
    server = server + rng.normal(size=server.shape) * _SERVER_NOISE / np.sqrt(d)
    server /= np.maximum(1.0, np.linalg.norm(server, axis=1))[:, None]
    return FedDPAlgorithm.planned(
        table.n_clusters,
        Ball(RADIUS, np.zeros(d)),
        PrivacyBudget(epsilon, n**-1.1),
        n_records=n,
        seed=seed,
        server_data=server,
    )


def cost_of(table: Table, epsilon: float, seed: int, code: Eigenvectors) -> float:
    """Return the cost of a run with the directions of a code. Noise follows from the seed."""
    algorithm = algorithm_of(table, epsilon, seed)
    plan = algorithm.plan()

    def noise(number: int) -> NDArray[np.int64]:
        key = seed.to_bytes(16, "big") + number.to_bytes(16, "big")
        return server_noise(algorithm, plan, number, Stream.from_key(key))

    with mock.patch.object(feddp_projection, "leading_eigenvectors", code):
        state = final_state(algorithm, table.records, seed, noise)
    centroids = algorithm.centroids(state)
    assert centroids is not None
    return cost(table.records, centroids)


def print_utility(names: Sequence[str], epsilons: Sequence[float], runs: int) -> None:
    """Print a row for each set and epsilon."""
    print("| data | d | epsilon | LAPACK | eigenspace | difference | n |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name in names:
        table = table_of(name)
        best = yardsticks(table.records, table.n_clusters, 3)
        gain = best.one_cluster - best.kmeans
        for epsilon in epsilons:
            lost: dict[str, NDArray[np.float64]] = {}
            for title, code in CODES.items():
                seeds = range(_FIRST_SEED, _FIRST_SEED + runs)
                costs = [cost_of(table, epsilon, seed, code) for seed in seeds]
                lost[title] = (np.array(costs) - best.kmeans) / gain
            texts = [with_error(each.tolist()) for each in lost.values()]
            difference = lost["eigenspace"] - lost["LAPACK"]
            print(
                f"| {name} | {table.records.shape[1]} | {epsilon:g} | {texts[0]} | "
                f"{texts[1]} | {with_error(difference.tolist())} | {runs} |",
                flush=True,
            )


def noisy_moments(table: Table) -> tuple[FloatArray, FloatArray]:
    """Return second moments, (d, d), without and with noise as that of a plan."""
    d = table.records.shape[1]
    algorithm = algorithm_of(table, 1.0, _FIRST_SEED)
    noise = (
        algorithm.noise_of(1)[MOMENTS] * 2.0 ** -algorithm.layout(1).blocks[0].exponent
    )
    rng = np.random.default_rng(2)
    above = np.triu(rng.normal(size=(d, d)), 1) / np.sqrt(2)
    beside = above + above.T + np.diag(rng.normal(size=d))
    exact = table.records.T @ table.records
    exact = (exact + exact.T) / 2
    return exact, exact + noise * beside


def print_captured(names: Sequence[str], numbers: Sequence[int]) -> None:
    """Print a row for each set and number of directions."""
    print("| data | directions | code | variance captured | time | memory |")
    print("|---|--:|---|--:|--:|--:|")
    for name in names:
        exact, noisy = noisy_moments(table_of(name))
        for n_vectors in numbers:
            for title, code in CODES.items():
                started = time.process_time()
                vectors, _ = code(noisy, n_vectors, 0.0)
                seconds = time.process_time() - started
                tracemalloc.start()
                code(noisy, n_vectors, 0.0)
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                captured = np.sum(vectors * (exact @ vectors)) / np.trace(exact)
                print(
                    f"| {name} | {n_vectors} | {title} | {captured:.5f} | "
                    f"{seconds:.2f} s | {peak / _MEGABYTE:.0f} MB |",
                    flush=True,
                )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--utility", action="store_true", help="lost gain of whole runs"
    )
    parser.add_argument("--data", nargs="+", default=["made_16000_384"])
    parser.add_argument("--directions", type=int, nargs="+", default=[20, 64, 128])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 4.0])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.utility:
        print_utility(options.data, options.epsilons, options.runs)
    else:
        print_captured(options.data, options.directions)


if __name__ == "__main__":
    main()
