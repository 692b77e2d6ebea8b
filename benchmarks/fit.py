"""Time of whole private fits in this process, and memory of PE-means with its full population.

    python benchmarks/fit.py

Times are those of ``simulate`` from the call to its return, over two clients of
``make_blobs(20000, n_features=16, centers=16, random_state=1)`` scaled to a largest norm of 1, at
epsilon 1; the least of ``--repeats``, and over that of one start of scikit-learn's KMeans on the
pooled records, measured in turn. Compare within one table only: seconds are this machine's.

Memory is what one client allocates at most for the answer of a round of votes (tracemalloc), for
more and more candidates up to the paper's k L = k N / 5, beside what its records take as float64.
"""

import argparse
import logging
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from loss import load
from sklearn.cluster import KMeans

from flower_kmeans import Ball, Box, PrivacyBudget, simulate
from flower_kmeans.algorithms import State
from flower_kmeans.algorithms.pe_means import PEMeansAlgorithm
from flower_kmeans.bench.data import Data
from flower_kmeans.bench.harness import Options
from flower_kmeans.domain import GridRecords
from flower_kmeans.strategies import FastLloyd, KMeansStrategy, PEMeans, SynopsisKMeans

N_CLIENTS = 2
DATA = "blobs_16_16"


def strategies_of(data: Data) -> dict[str, Callable[[], KMeansStrategy]]:
    """Return what makes each strategy anew, with fresh keys and noise."""
    n, d = data.records.shape
    ball, budget = Ball(1.0, np.zeros(d)), PrivacyBudget(1.0)
    box = Box(np.full(d, -1.0), np.full(d, 1.0))
    k = data.n_clusters

    def synopsis(trust: str) -> KMeansStrategy:
        return SynopsisKMeans(k, ball, budget, n, n_clients=N_CLIENTS, trust=trust)

    return {
        "SynopsisKMeans, trusted-server": lambda: synopsis("trusted-server"),
        "SynopsisKMeans, distributed-noise": lambda: synopsis("distributed-noise"),
        "PEMeans, trusted-server": lambda: PEMeans(
            k, ball, budget, n, n_clients=N_CLIENTS, trust="trusted-server"
        ),
        "FastLloyd, oblivious-server": lambda: FastLloyd(k, box, budget, n, n_clients=N_CLIENTS),
    }


def times(data: Data, repeats: int) -> str:
    """Return seconds of whole fits, and their ratios, as a markdown table."""
    halves = np.array_split(data.records, N_CLIENTS)
    made = strategies_of(data)

    def fit(name: str) -> int:
        return simulate(made[name](), halves).report.n_rounds

    least: dict[str, float] = {}
    rounds: dict[str, int] = {}
    for repeat in range(repeats):
        started = time.perf_counter()
        KMeans(data.n_clusters, n_init=1, random_state=repeat).fit(data.records)
        least["KMeans"] = min(least.get("KMeans", np.inf), time.perf_counter() - started)
        for name in made:
            started = time.perf_counter()
            rounds[name] = fit(name)
            least[name] = min(least.get(name, np.inf), time.perf_counter() - started)
    lines = ["| fit | rounds | s | over KMeans |", "|---|--:|--:|--:|"]
    for name, seconds in least.items():
        ratio = seconds / least["KMeans"]
        lines.append(f"| {name} | {rounds.get(name, '')} | {seconds:.2f} | {ratio:.1f} |")
    return "\n".join(lines)


def memory(data: Data) -> str:
    """Return the most memory that a client's answer takes, as a markdown table."""
    n, d = data.records.shape
    domain, k = Ball(1.0, np.zeros(d)), data.n_clusters
    own = data.records[: n // N_CLIENTS]
    lines = ["| candidates | MB | of it the answer | records MB |", "|--:|--:|--:|--:|"]
    for n_variations in (512, n // 20, n // 5):
        algorithm = PEMeansAlgorithm(
            k,
            domain,
            PrivacyBudget(1.0),
            n_records=n,
            n_variations=n_variations,
            max_candidates=2**22,
        )
        centers = np.rint(own[:k] * 2.0**algorithm.fraction_bits).astype(np.int64)
        asked = {
            "centers": centers,
            "variations": np.array([n_variations]),
            "seed": np.zeros(2, int),
        }
        state = State(1, {**algorithm.initial_state().arrays, **asked})
        question, records = algorithm.question(state), GridRecords(own, domain, 16)
        tracemalloc.start()
        answer = algorithm.statistic(question, records)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        size = sum(block.nbytes for block in answer.blocks.values())
        cells = (algorithm.words(2), peak / 1e6, size / 1e6, own.nbytes / 1e6)
        lines.append("| {:,} | {:.1f} | {:.1f} | {:.1f} |".format(*cells))
    return "\n".join(lines)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    data = load(DATA, Options(options.repeats))
    print(times(data, options.repeats))
    print()
    print(memory(data))


if __name__ == "__main__":
    main()
