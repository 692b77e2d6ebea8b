"""Directions: runs on a sphere, beside a unit ball with records divided by hand.

    python benchmarks/directions.py --seeds 5

Records are generated around k random directions, at two spreads, with lengths that differ
by a factor of about ten. Printed is the mean cosine similarity of a record to its most
similar centroid: of a run on ``Sphere(d)``; of a run in ``Ball(1, 0)`` on records divided
by their lengths by hand, whose centroids are divided by theirs; of a run in a ball on
records as they are; of spherical k-means without privacy; and of one direction for all
records, that of their mean. The lost gain is

    (k-means - similarity) / (k-means - one direction).

The squared distance of two unit vectors is 2 - 2 times their similarity, so this is the
lost gain of the squared distance, too. A last line has the records of the smallest
cluster of all spherical k-means, and the largest number sqrt(d) / mu that a cluster
needs (`bench.yardsticks`). Where it has enough, k-means is the floor.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from direct import final_state
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from bench import lost_gain
from bench.yardsticks import fewest_records
from flower_kmeans import Ball, PrivacyBudget, Sphere
from flower_kmeans.algorithms import (
    Algorithm,
    FastLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    HDPEMeansAlgorithm,
    PEMeansAlgorithm,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
)
from flower_kmeans.algorithms.numerics.postprocess import centroids_in
from flower_kmeans.arrays import IntArray
from flower_kmeans.data.domain import Domain
from flower_kmeans.privacy.calibration import mu_of_budget

Records = NDArray[np.float64]

N_RECORDS = 10_000
N_CLUSTERS = 8
EPSILON = 1.0
SPREADS = {"close": 0.5, "wide": 1.5}  # length of the noise beside a direction
LENGTHS = 0.8  # standard deviation of the logarithm of a record's length
_STARTS = 10
_STEPS = 50
_POINTS = 100  # of the server of FedDP-KMeans


class Mixture(NamedTuple):
    """Generated records, (n, d), with lengths that differ, and points of a server."""

    records: Records
    server: Records


class DirectionsEachRound(FastLloydAlgorithm):
    """FastLloyd whose centroids become directions after each round, to compare with."""

    def _into_domain(self, points: IntArray) -> IntArray:
        return centroids_in(points, self.domain, self.fraction_bits)


ALGORITHMS: dict[str, type[Algorithm]] = {
    "SynopsisKMeans": SynopsisAlgorithm,
    "FastLloyd": FastLloydAlgorithm,
    "FastLloyd, directions each round": DirectionsEachRound,
    "GLloyd": GLloydAlgorithm,
    "SuLloyd": SuLloydAlgorithm,
    "FedDPKMeans": FedDPAlgorithm,
    "PEMeans": PEMeansAlgorithm,
    "HDPEMeans": HDPEMeansAlgorithm,
}
FEWEST_COLUMNS = {"HDPEMeans": 17}


def generate(n_features: int, spread: float, seed: int) -> Mixture:
    """Return records around random directions, whose clusters differ in size."""
    rng = np.random.default_rng((n_features, seed))
    centers = unit(rng.normal(size=(N_CLUSTERS, n_features)))
    shares = rng.dirichlet(np.full(N_CLUSTERS, 4.0))
    groups = rng.choice(N_CLUSTERS, N_RECORDS, p=shares)
    noise = rng.normal(size=(N_RECORDS, n_features)) * spread / np.sqrt(n_features)
    lengths = np.exp(rng.normal(0.0, LENGTHS, (N_RECORDS, 1)))
    records = unit(centers[groups] + noise) * lengths
    public = rng.integers(N_CLUSTERS, size=_POINTS)
    near = rng.normal(size=(_POINTS, n_features)) * 2 * spread / np.sqrt(n_features)
    return Mixture(records, unit(centers[public] + near))


def unit(points: Records) -> Records:
    """Return points, (n, d), divided by their lengths."""
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    return np.asarray(points / np.where(lengths > 0, lengths, 1.0))


def similarity(records: Records, centroids: Records) -> float:
    """Return the mean cosine similarity of records to their most similar centroids."""
    cosines = unit(records) @ unit(centroids).T
    return float(cosines.max(axis=1).mean())


def spherical_kmeans(records: Records, rng: np.random.Generator) -> Records:
    """Return centroids, (k, d), from the best of some starts by k-means++. NOT PRIVATE."""
    directions = unit(records)
    start = KMeans(N_CLUSTERS, n_init=_STARTS, random_state=int(rng.integers(2**31)))
    centroids = unit(start.fit(directions).cluster_centers_)
    for _ in range(_STEPS):
        sums = np.zeros_like(centroids)
        np.add.at(sums, nearest(directions, centroids), directions)
        centroids = unit(sums)
    return centroids


def nearest(directions: Records, centroids: Records) -> IntArray:
    """Return the most similar centroid, (n,), of each direction."""
    return np.asarray((directions @ centroids.T).argmax(axis=1))


class Reference(NamedTuple):
    """Similarities without privacy, and the records of the smallest cluster of k-means."""

    kmeans: float
    one_direction: float
    smallest: int


@lru_cache(maxsize=64)
def reference(n_features: int, spread: float, seed: int) -> Reference:
    """Return the similarities of one table without privacy."""
    records = generate(n_features, spread, seed).records
    directions = unit(records)
    found = spherical_kmeans(records, np.random.default_rng(seed))
    sizes = np.bincount(nearest(directions, found), minlength=N_CLUSTERS)
    one = unit(directions.sum(axis=0, keepdims=True))
    return Reference(
        similarity(records, found), similarity(records, one), int(sizes.min())
    )


def run(
    kind: type[Algorithm], domain: Domain, records: Records, server: Records, seed: int
) -> Records:
    """Return the centroids, (k, d), of a private run."""
    more: dict[str, Any] = {}
    if kind is FedDPAlgorithm:
        more["server_data"] = server
    algorithm = kind.planned(
        N_CLUSTERS,
        domain,
        PrivacyBudget(EPSILON),
        n_records=N_RECORDS,
        seed=seed,
        **more,
    )
    counted = domain.counted(records)
    centroids = algorithm.centroids(final_state(algorithm, counted, seed))
    assert centroids is not None
    return centroids


def measure(name: str, n_features: int, spread: float, seed: int) -> list[float]:
    """Return similarities of one table: on the sphere, by hand, and as it is."""
    kind = ALGORITHMS[name]
    table = generate(n_features, spread, seed)
    records = table.records
    zero = np.zeros(n_features)
    longest = float(np.linalg.norm(records, axis=1).max())
    ways: tuple[Callable[[], Records], ...] = (
        lambda: run(kind, Sphere(n_features), records, table.server, seed),
        lambda: run(kind, Ball(1.0, zero), unit(records), table.server, seed),
        lambda: run(kind, Ball(longest, zero), records, table.server, seed),
    )
    return [similarity(records, way()) for way in ways]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each algorithm, number of columns and spread."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="tables of each kind")
    parser.add_argument("--columns", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--algorithms", nargs="+", default=[*ALGORITHMS])
    options = parser.parse_args(arguments)
    names = ["strategy", "d", "spread", "sphere", "by hand", "difference", "as it is"]
    names += ["k-means", "one direction"]
    names += map(lost_gain.head, ("sphere", "by hand", "as it is"))
    print(f"| {' | '.join(names)} |")
    print("|---|--:|---|" + "--:|" * (len(names) - 3))
    seeds = range(options.seeds)
    for name in options.algorithms:
        for d in options.columns:
            if d < FEWEST_COLUMNS.get(name, 1):
                continue
            for spread_name, spread in SPREADS.items():
                found = np.array([measure(name, d, spread, seed) for seed in seeds])
                known = [reference(d, spread, seed) for seed in seeds]
                print(row(f"{name} | {d} | {spread_name}", found, known), flush=True)
    mu = mu_of_budget(EPSILON, min(1e-6, 1 / (100 * N_RECORDS)))
    smallest = min(
        reference(d, spread, seed).smallest
        for d in options.columns
        for spread in SPREADS.values()
        for seed in seeds
    )
    needed = fewest_records(max(options.columns), mu)
    print(f"\nSmallest cluster of k-means: {smallest}. Needed: {needed:.0f} records.")


def row(name: str, found: Records, known: Sequence[Reference]) -> str:
    """Return a line of the table, from similarities, (tables, 3)."""
    exact = np.array([each.kmeans for each in known])
    one = np.array([each.one_direction for each in known])
    sphere, by_hand, as_is = found.mean(axis=0)
    pairs = found[:, 0] - found[:, 1]
    error = pairs.std() / np.sqrt(max(1, len(pairs) - 1))
    lost = ((exact - found.T) / (exact - one)).mean(axis=1)
    cells = [name, f"{sphere:.3f}", f"{by_hand:.3f}"]
    cells += [f"{pairs.mean():+.3f} ± {error:.3f}", f"{as_is:.3f}"]
    cells += [f"{exact.mean():.3f}", f"{one.mean():.3f}"]
    cells += [f"{each:.3f}" for each in lost]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
