"""Ranges of columns within outer bounds, beside runs over the true bounds and over these.

    python benchmarks/ranges.py --runs 3 --data s1.npz:15 birch2.npz:100

Records are scaled so that their true bounds are -1 and 1. Some columns get bounds that
are 100 times too wide, off the centre. Printed is the cost of SynopsisKMeans in the
space of the true bounds, over that of k-means there: with and without ``tighten``. A
second table has the lost gain, (cost - k-means) / (one cluster - k-means), and in
brackets the ratio to the floor (`bench.yardsticks`) where that is above k-means. Both
are in the space of the true bounds, too.
A file of ``--data`` is an npz with records ``X``, and its number of clusters.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from direct import final_state
from numpy.typing import NDArray

from bench import lost_gain
from bench.yardsticks import Yardsticks, yardsticks
from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.algorithms import SynopsisAlgorithm
from flower_kmeans.algorithms.tightened import planned
from flower_kmeans.arrays import FloatArray

EPSILON = 1.0
TIGHTEN = 0.1
FACTOR = 100.0
MOST_RECORDS = 20_000
# the seeds of reported runs; others were used while constants were chosen
FIRST_SEED = 5_000
WIDE = ("no", "one", "all")


class Case(NamedTuple):
    """Records between -1 and 1, and their number of clusters."""

    name: str
    records: FloatArray
    n_clusters: int


def scaled(records: NDArray[np.float64]) -> FloatArray:
    """Return records whose columns have the least value -1 and the largest 1."""
    low = records.min(axis=0)
    found: FloatArray = 2 * (records - low) / np.ptp(records, axis=0) - 1
    return found


def generated(name: str, n: int | None = None) -> Case:
    """Return a generated set by its name, or its first ``n`` records."""
    rng = np.random.default_rng(list(GENERATED).index(name))
    n_records, d, k = GENERATED[name]
    n_records = n or n_records
    if name == "8 groups":
        centers = rng.uniform(-1, 1, (k, d))
        records = centers[rng.integers(0, k, n_records)]
        records = records + rng.normal(0, 0.1, (n_records, d))
    elif name.endswith("% far away"):
        records = rng.normal(size=(n_records, d))
        far = n_records * int(name.split()[0]) // 100
        records[:far, 0] += 25
        records[far : 2 * far, 1] -= 25
    elif name == "Student t4":
        records = rng.standard_t(4, (n_records, d))
    elif name == "lognormal":
        records = np.exp(rng.normal(size=(n_records, d)))
    elif name == "90 % in one point":
        records = rng.normal(size=(n_records, d))
        records[: int(0.9 * n_records)] = 0
    else:
        records = rng.integers(0, 5, (n_records, d)) + 0.0
    return Case(name, scaled(records), k)


# name: records, columns, clusters
GENERATED = {
    "8 groups": (10_000, 20, 8),
    "2 % far away": (8_000, 2, 5),
    "Student t4": (6_000, 5, 5),
    "lognormal": (6_000, 2, 5),
    "90 % in one point": (6_000, 3, 5),
    "discrete": (6_000, 3, 5),
    "5 % far away": (8_000, 2, 5),
}


def given(text: str) -> Case:
    """Return the set of a file and its number of clusters, ``FILE:CLUSTERS``."""
    path, _, number = text.rpartition(":")
    with np.load(path) as file:
        records = file["X"].astype(np.float64)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(records))[:MOST_RECORDS]
    records = records[chosen]
    records = records[:, np.ptp(records, axis=0) > 0]
    return Case(Path(path).stem, scaled(records), int(number))


def cost(records: FloatArray, centroids: FloatArray) -> float:
    """Return the mean squared distance of records to the nearest centroid."""
    found = 0.0
    for block in np.array_split(records, max(1, len(records) // 500)):
        distances = ((block[:, None] - centroids[None]) ** 2).sum(axis=2)
        found += float(distances.min(axis=1).sum())
    return found / len(records)


def bounds(wide: str, d: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return bounds of columns, of which none, one or all are too wide."""
    rng = np.random.default_rng(seed)
    n_wide = {"no": 0, "one": 1, "all": d}[wide]
    chosen = rng.permutation(d)[:n_wide]
    half = np.ones(d)
    center = np.zeros(d)
    half[chosen] = FACTOR
    center[chosen] = rng.uniform(-1, 1, n_wide) * (FACTOR - 1)
    return center - half, center + half


def costs(case: Case, wide: str, tighten: float | None, runs: int) -> FloatArray:
    """Return the costs of runs in the space of the true bounds, (runs,)."""
    n_records, d = case.records.shape
    found = []
    for run in range(runs):
        seed = FIRST_SEED + run
        lower, upper = bounds(wide, d, seed)
        algorithm = planned(
            SynopsisAlgorithm,
            case.n_clusters,
            Box(lower, upper, tighten=tighten),
            PrivacyBudget(EPSILON),
            n_records=n_records,
            seed=seed,
        )
        centroids = algorithm.centroids(final_state(algorithm, case.records, seed))
        if centroids is None:
            raise RuntimeError("Expected centroids after a run.")
        found.append(cost(case.records, centroids))
    return np.array(found)


def text(values: FloatArray) -> str:
    """Return the mean of costs, with the largest where it is far above."""
    mean = float(values.mean())
    most = float(values.max())
    shown = f"{mean:.3f}" if mean < 2 else f"{mean:.2f}"
    return f"{shown} (most {most:.2f})" if most > 1.05 * mean else shown


def rows(cases: Sequence[Case], runs: int) -> Iterator[str]:
    """Yield the lines of both tables."""
    ways = "true | true + tighten | one 100x | one + tighten | all 100x | all + tighten"
    yield f"| set | {ways} |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    second = [f"| set | one cluster | floor | {ways} |"]
    second.append("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for case in cases:
        best = yardsticks(case.records, case.n_clusters)
        found = [
            costs(case, wide, tighten, runs)
            for wide in WIDE
            for tighten in (None, TIGHTEN)
        ]
        name = name_of(case)
        yield f"| {name} | {' | '.join(text(each / best.kmeans) for each in found)} |"
        second.append(beside(name, case, best, found))
    yield ""
    yield from second


def name_of(case: Case) -> str:
    """Return the name of a set in tables, with its sizes."""
    n_records, d = case.records.shape
    return f"{case.name} ({n_records:,}; d {d}; k {case.n_clusters})"


def beside(name: str, case: Case, best: Yardsticks, found: Sequence[FloatArray]) -> str:
    """Return a line of the table of lost gains."""
    floor = lost_gain.floor_over(best.kmeans, case.records, case.n_clusters, EPSILON)
    cells = [name, f"{best.ratio(best.one_cluster):.3f}", f"{floor:.3f}"]
    for each in found:
        mean = float(each.mean())
        cells.append(lost_gain.text(best.ratio(mean), best.lost_gain(mean), floor))
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=[], metavar="FILE:CLUSTERS")
    options = parser.parse_args(arguments)
    cases = [*map(generated, GENERATED), *map(given, options.data)]
    for line in rows(cases, options.runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
