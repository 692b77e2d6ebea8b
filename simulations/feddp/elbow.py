"""The elbow of the weighted projected points (FedDP-KMeans' rebuttal, figure 10).

    python simulations/feddp/elbow.py --runs 3

The population is the mixture of `experiments.py record`: ten Gaussians in 100 columns,
100 clients of 1,000 records each. `FedDPKMeans` runs with more clusters than there are
(20), its noise and epsilon 1. Its noisy weights of the projected server points are
public, so k-means on them for k = 1, 2, ... costs no privacy. The elbow is the k after
which the cost falls least, beside its fall before: the largest quotient of both falls.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# `bench`, which runs suites, is not installed.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from direct import final_state
from populations import Mixture

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans import PrivacyBudget
from flower_kmeans.algorithms.feddp import FedDPAlgorithm
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.arrays import FloatArray

LARGEST = 20
"""Clusters of the run, and the largest k of the curve."""
EPSILON = 1.0
FULL = Mixture(100, 1000)
SMALL = Mixture(8, 250, d=10, variance=0.005, n_uniform=20)
POPULATIONS = {"mixture": FULL, "mixture (quick)": SMALL}


@dataclass(frozen=True)
class Task:
    """One run."""

    population: str
    epsilon: float
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run: of the mixture, unless the command names the quick one."""
    names = options.chosen("population", ("mixture",), str)
    for run in range(options.runs):
        for name in names:
            for epsilon in options.chosen("epsilon", (EPSILON,), float):
                yield Task(name, epsilon, run)


def curve(task: Task) -> FloatArray:
    """Return the cost of k-means on the weighted points, (LARGEST,), for k from 1 on."""
    population = POPULATIONS[task.population].draw(task.population, task.run)
    records = np.concatenate(population.partitions)
    algorithm = FedDPAlgorithm.planned(
        LARGEST,
        population.domain,
        PrivacyBudget(task.epsilon),
        n_records=len(records),
        seed=task.run,
        server_data=population.server_data,
    )
    state = final_state(algorithm, records, task.run)
    rng = public_generator(task.run, 0)
    return algorithm.seeding.elbow(state, LARGEST, rng)


def elbow_of(costs: FloatArray) -> int:
    """Return the k with the largest fall before it, beside the fall after it."""
    falls = -np.diff(costs)
    # Starts are random, so a later cost may be a little larger.
    least = 1e-3 * costs[0]
    quotients = falls[:-1] / np.maximum(falls[1:], least)
    return int(quotients.argmax()) + 2


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the curve of a run over its first cost, and its elbow."""
    costs = curve(task)
    found: dict[str, Any] = {
        f"cost_{k}": float(cost / costs[0]) for k, cost in enumerate(costs, 1)
    }
    return found | {"elbow": elbow_of(costs)}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return elbows, and costs by k."""
    keys = {"population": "population", "eps": "epsilon"}

    def elbows(of: list[Row]) -> str:
        return " ".join(str(row["elbow"]) for row in of)

    def least(of: list[Row]) -> str:
        return f"{np.median([row['elbow'] for row in of]):g}"

    lines = [
        {**row, "k": k, "cost": row[f"cost_{k}"]}
        for k in range(1, LARGEST + 1)
        for row in rows
    ]
    cells = {"cost over that of k = 1": lambda of: tables.cell(_costs(of), ".3f")}
    return "\n\n".join(
        [
            tables.by_key(rows, keys, {"elbow, median": least, "of runs": elbows}, 1),
            tables.by_key(lines, {**keys, "k": "k"}, cells, 1),
        ]
    )


def _costs(rows: Sequence[Row]) -> list[float]:
    return [row["cost"] for row in rows]


SUITE = Suite(
    "feddp-elbow",
    "The cost of k-means on FedDP-KMeans' weighted projected server points by the number of "
    "clusters, over that of one cluster; means and 95% intervals. The run has 20 clusters.",
    Task,
    {**{f"cost_{k}": float for k in range(1, LARGEST + 1)}, "elbow": int},
    tasks_of,
    measure,
    tables_of,
    choices={"population": tuple(POPULATIONS)},
    runs=3,
)


if __name__ == "__main__":
    script.main(SUITE)
