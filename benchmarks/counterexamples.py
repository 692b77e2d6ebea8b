"""Data on which the general rules of the documents fail: adult for bounds, and unit vectors.

    python benchmarks/counterexamples.py --data-dir DIR --output build/counterexamples

adult            the thesis's constrained clustering with the noise that it needs, beside
                 unconstrained clustering, in the thesis's protocol: columns in [-1, 1],
                 two clients with random halves, sizes from N/1.5k to 3N/k, Laplace
                 noise with delta 0. Whole runs under ``oblivious-server``.
                 ``ConstrainedLloyd:laplace`` and ``:gaussian`` are "Constrained
                 Exclusive" with sums and counts ("MNA"), ``:amn-laplace`` and
                 ``:amn-gaussian`` with means ("AMN").
directions_N_D   `FastLloyd` and `SynopsisKMeans` on N unit vectors of D columns in the unit ball,
                 delta N^-1.1, two clients under ``trusted-server``. This script draws
                 the vectors: no file is needed.

``--quick`` has one run on 2,000 vectors of 256 columns, and no file. Two more
counterexamples need no script of their own:

    python benchmarks/loss.py --data-dir DIR --data adult \
        --methods KMeans SynopsisKMeans PEMeans FastLloyd
    python benchmarks/utility.py --data-dir DIR --data unbalance --runs 20 \
        --methods KMeans SynopsisKMeans FastLloyd FastLloyd:paper

Seeds are from 1000 on, and noise is the operating system's. No constant of the library
was chosen on these runs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from protocols import (
    KMEANS,
    ball_of,
    best_of_ten,
    box_of,
    in_box,
    over_parts,
    strategy_of,
)
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from bench import script, tables
from bench.data import Data
from bench.harness import Options, Row, Suite, Task
from flower_kmeans import PrivacyBudget
from flower_kmeans.arrays import FloatArray
from flower_kmeans.strategies import KMeansStrategy

FIRST_SEED = 1000
EPSILONS = (0.25, 1.0, 4.0)
ADULT = "adult"
MADE = ("directions_16000_256", "directions_16000_768")
QUICK = ("directions_2000_256",)
N_DIRECTIONS = 20
SPREAD = 2.0
"""Length of a vector's noise over that of its direction, before it is divided by its length."""

PLAIN = "Lloyd"
LAPLACE, GAUSSIAN = {"mechanism": "laplace"}, {"mechanism": "gaussian"}
MEANS = {"aggregation": "amn"}
CONSTRAINED: Mapping[str, Mapping[str, Any]] = {
    "ConstrainedLloyd:laplace": LAPLACE,
    "ConstrainedLloyd:gaussian": GAUSSIAN,
    "ConstrainedLloyd:amn-laplace": MEANS | LAPLACE,
    "ConstrainedLloyd:amn-gaussian": MEANS | GAUSSIAN,
}
WITHOUT_DELTA = ("SuLloyd", *(name for name in CONSTRAINED if name.endswith("laplace")))
"""Methods with Laplace noise, which the thesis runs with delta 0."""
METHODS_OF_ADULT = (PLAIN, "SuLloyd", "GLloyd", *CONSTRAINED, "SynopsisKMeans")
METHODS_OF_DIRECTIONS = ("SynopsisKMeans", "FastLloyd")


# --------------------------------------------------------------------------- data


def sizes_of(name: str) -> tuple[int, int] | None:
    """Return records and columns of a set of unit vectors, or ``None`` for another name."""
    match = re.fullmatch(r"directions_(\d+)_(\d+)", name)
    return None if match is None else (int(match[1]), int(match[2]))


def directions(n_records: int, n_features: int) -> tuple[FloatArray, FloatArray]:
    """Return unit vectors (n, d), always the same, and the random directions (k, d) around which.

    These are `N_DIRECTIONS` of equal weight.
    """
    rng = np.random.default_rng(n_features)
    centres = unit(rng.normal(size=(N_DIRECTIONS, n_features)))
    labels = rng.integers(0, N_DIRECTIONS, n_records)
    noise = rng.normal(size=(n_records, n_features)) / np.sqrt(n_features)
    return unit(centres[labels] + SPREAD * noise), centres


def unit(vectors: FloatArray) -> FloatArray:
    """Return vectors (n, d) divided by their lengths."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@lru_cache(maxsize=2)
def load(name: str, options: Options) -> Data:
    """Return unit vectors, or a file's records in [-1, 1]."""
    sizes = sizes_of(name)
    if sizes is None:
        return in_box(name, options)
    vectors, _ = directions(*sizes)
    return Data(name, vectors, N_DIRECTIONS)


@lru_cache(maxsize=2)
def bases(name: str, options: Options) -> tuple[float, float]:
    """Return the cost of scikit-learn's KMeans, and that of one cluster.

    KMeans is the best of ten starts, or of unit vectors started at their true
    directions.
    """
    data, sizes = load(name, options), sizes_of(name)
    if sizes is None:
        kmeans = best_of_ten(data).cluster_centers_
    else:
        _, centres = directions(*sizes)
        kmeans = (
            KMeans(N_DIRECTIONS, init=centres, n_init=1)
            .fit(data.records)
            .cluster_centers_
        )
    one = data.records.mean(axis=0, keepdims=True)
    return cost_of(data.records, kmeans), cost_of(data.records, one)


# --------------------------------------------------------------------------- runs


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            methods = (
                METHODS_OF_ADULT if sizes_of(name) is None else METHODS_OF_DIRECTIONS
            )
            for method in methods:
                for epsilon in (None,) if method == PLAIN else EPSILONS:
                    yield Task(name, method, epsilon, run)


def strategy_for(data: Data, task: Task) -> KMeansStrategy:
    """Return the strategy of a task."""
    seed = FIRST_SEED + task.run
    if sizes_of(task.data) is not None:
        budget = PrivacyBudget(task.epsilon, len(data.records) ** -1.1)
        trust = {"trust": "trusted-server"}
        return strategy_of(task.method, data, ball_of(data), budget, seed, **trust)
    delta = 0.0 if task.method in WITHOUT_DELTA else None
    parameters: dict[str, Any] = (
        {} if task.method == PLAIN else {"trust": "oblivious-server"}
    )
    # The bounds of the sizes that the library has by default are the thesis's.
    parameters |= CONSTRAINED.get(task.method, {})
    name = task.method.partition(":")[0]
    budget = PrivacyBudget(task.epsilon, delta)
    return strategy_of(name, data, box_of(data), budget, seed, **parameters)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run one method; return the cost of its centroids, by itself and beside k-means'."""
    data = load(task.data, options)
    result = over_parts(strategy_for(data, task), data, FIRST_SEED + task.run)
    cost = cost_of(data.records, result.centroids)
    kmeans, one = bases(task.data, options)
    return {
        "cost": cost,
        "ratio": cost / kmeans,
        "lost": (cost - kmeans) / (one - kmeans),
    }


def cost_of(records: FloatArray, centroids: FloatArray) -> float:
    """Return the sum of squared distances of records (n, d) to their nearest centroids (k, d)."""
    return float(cdist(records, centroids, "sqeuclidean").min(axis=1).sum())


# --------------------------------------------------------------------------- figures


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return costs, ratios and lost gains by data, method and epsilon."""
    of_adult = [row for row in rows if sizes_of(row["data"]) is None]
    made = [row for row in rows if sizes_of(row["data"]) is not None]
    parts = []
    if of_adult:
        parts += ["Sum of squared distances to the nearest centroid:"]
        parts += [tables.over_grid(of_adult, "cost", EPSILONS, form=",.0f")]
        parts += [f"The same over that of {KMEANS}, the best of ten starts:"]
        parts += [tables.over_grid(of_adult, "ratio", EPSILONS)]
    if made:
        parts += [f"Cost over that of {KMEANS} from the true directions:"]
        parts += [tables.over_grid(made, "ratio", EPSILONS)]
        parts += [f"The part of what {KMEANS} gains over one cluster that is lost:"]
        parts += [tables.over_grid(made, "lost", EPSILONS)]
    return "\n\n".join(parts)


SUITE = Suite(
    "counterexamples",
    "Data on which general rules fail. adult: the thesis's constrained clustering with the noise "
    "that it needs, columns in [-1, 1], two clients with random halves under oblivious-server, "
    "sizes from ceil(N/1.5k) to ceil(3N/k), Laplace noise with delta 0, Gaussian with the default. "
    "directions_N_D: N unit vectors of D columns around 20 random directions in the unit ball, "
    "delta N^-1.1, two clients under trusted-server. Means and 95% intervals over seeds from 1000 "
    "on. N, and the scale of adult, are read off the records, which an application must not do.",
    Task,
    {"cost": float, "ratio": float, "lost": float},
    tasks_of,
    measure,
    tables_of,
    datasets=(ADULT, *MADE),
    sources={name: {} for name in (*MADE, *QUICK)},
    runs=5,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything that was asked for, and write it down."""
    parser = script.parser_of(SUITE)
    parser.add_argument(
        "--quick", action="store_true", help="one run, on few vectors alone"
    )
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.runs, parsed.data = 1, list(QUICK)
    script.run(SUITE, parsed)


if __name__ == "__main__":
    main()
