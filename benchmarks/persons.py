"""Persons with several records, beside one record of each, and beside groups of records.

    python benchmarks/persons.py --runs 5

Visits are generated: each person has a home cluster, which has 0.7 of their visits, and a
lognormal number of visits, at most 60. All methods protect one person at epsilon 1:

- weights: ``unit="person"``, so that each person counts as one with all visits;
- one record: ``unit="record"`` with one random visit of each person;
- four records: ``unit="record"`` with at most four random visits of each person, and noise
  for a group of four.

Printed is the cost, in which each person counts as one, over that of k-means without
privacy with the same weights: mean and standard error of the runs, and the cost of one
cluster. Beside it stands the lost gain, (cost - k-means) / (one cluster - k-means). The
last column has the persons of k-means' smallest cluster, and the sqrt(d) / mu persons
that a cluster needs (`bench.yardsticks`). Where it has enough, k-means is the floor.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from direct import final_state
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from bench import lost_gain
from bench.yardsticks import Yardsticks, fewest_records
from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms import (
    Algorithm,
    FastLloydAlgorithm,
    GLloydAlgorithm,
    SynopsisAlgorithm,
)
from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget

ALGORITHMS: dict[str, type[Algorithm]] = {
    "SynopsisKMeans": SynopsisAlgorithm,
    "FastLloyd": FastLloydAlgorithm,
    "GLloyd": GLloydAlgorithm,
}
SIZES = ((400, 4, 4), (400, 8, 10), (2_000, 8, 8), (20_000, 8, 8))
"""Numbers of persons, columns and clusters. The second has too few persons."""
METHODS = {"weights": None, "one record": 1, "four records": 4}
"""Records that are kept of each person; ``None`` keeps all, with weights."""
EPSILON = 1.0
_MOST_VISITS = 60
_AT_HOME = 0.7  # of a person's visits
_ROWS = 20_000  # records whose distances are computed at once


class Visits(NamedTuple):
    """Generated records within the unit ball, and the number of each record's person."""

    records: NDArray[np.float64]
    persons: NDArray[np.int64]
    n_visits: NDArray[np.int64]


def generate(n_persons: int, n_features: int, n_clusters: int, seed: int) -> Visits:
    """Return visits of persons."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(n_clusters, n_features)) * 0.7 / np.sqrt(n_features)
    drawn = 1 + np.floor(rng.lognormal(1.2, 1.2, n_persons)).astype(np.int64)
    n_visits = np.minimum(drawn, _MOST_VISITS)
    persons = np.repeat(np.arange(n_persons), n_visits)
    n = len(persons)
    home = rng.integers(0, n_clusters, n_persons)
    own = rng.normal(size=(n_persons, n_features)) * 0.05
    is_home = rng.random(n) < _AT_HOME
    labels = np.where(is_home, home[persons], rng.integers(0, n_clusters, n))
    records = centers[labels] + own[persons]
    records += rng.normal(size=(n, n_features)) * 0.09
    lengths = np.linalg.norm(records, axis=1, keepdims=True)
    return Visits(records / np.maximum(1.0, lengths), persons, n_visits)


def kept(visits: Visits, most: int, seed: int) -> NDArray[np.float64]:
    """Return at most so many random records of each person."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(visits.records))
    by_person = order[np.argsort(visits.persons[order], kind="stable")]
    starts = np.cumsum(visits.n_visits) - visits.n_visits
    ranks = np.arange(len(order)) - np.repeat(starts, visits.n_visits)
    return visits.records[by_person[ranks < most]]


def delta_of(n_persons: int) -> float:
    """Return the delta of all methods."""
    return min(1e-6, 1 / (100 * n_persons))


def centroids_of(
    kind: type[Algorithm], visits: Visits, n_clusters: int, method: str, seed: int
) -> NDArray[np.float64]:
    """Return the centroids of one private run."""
    n_persons = len(visits.n_visits)
    domain = Ball(1.0, [0.0] * visits.records.shape[1])
    delta = delta_of(n_persons)
    most = METHODS[method]
    if most is None:
        budget = PrivacyBudget(EPSILON, delta, "person")
        algorithm = kind.planned(
            n_clusters, domain, budget, n_persons=n_persons, seed=seed
        )
        state = final_state(
            algorithm, visits.records, seed, persons=visits.persons.tolist()
        )
    else:
        records = kept(visits, most, seed)
        # A group of so many records then has the budget.
        epsilon = epsilon_of_mu(mu_of_budget(EPSILON, delta) / most, delta)
        algorithm = kind.planned(
            n_clusters,
            domain,
            PrivacyBudget(epsilon, delta),
            n_records=len(records),
            seed=seed,
        )
        state = final_state(algorithm, records, seed)
    centroids = algorithm.centroids(state)
    assert centroids is not None
    return centroids


def cost(visits: Visits, centroids: NDArray[np.float64]) -> float:
    """Return the mean cost of a person, in which all their records weigh one together."""
    total = 0.0
    for start in range(0, len(visits.records), _ROWS):
        rows = slice(start, start + _ROWS)
        offsets = visits.records[rows, None, :] - centroids
        squares = np.square(offsets).sum(axis=2).min(axis=1)
        total += float((squares / visits.n_visits[visits.persons[rows]]).sum())
    return total / len(visits.n_visits)


def measure(
    kind: type[Algorithm], visits: Visits, n_clusters: int, method: str, runs: int
) -> tuple[float, float]:
    """Return mean and standard error of the cost of private runs."""
    costs = [
        cost(visits, centroids_of(kind, visits, n_clusters, method, seed))
        for seed in range(runs)
    ]
    return float(np.mean(costs)), float(np.std(costs) / np.sqrt(runs))


class Reference(NamedTuple):
    """Costs without privacy, and the persons of k-means' smallest cluster."""

    costs: Yardsticks
    fewest: float


def reference(visits: Visits, n_clusters: int) -> Reference:
    """Return costs of k-means and of one cluster, with the weights of persons."""
    weights = 1 / visits.n_visits[visits.persons]
    exact = KMeans(n_clusters, n_init=3, random_state=0)
    exact.fit(visits.records, sample_weight=weights)
    middle = np.average(visits.records, axis=0, weights=weights)
    sizes = np.bincount(exact.labels_, weights=weights, minlength=n_clusters)
    costs = Yardsticks(cost(visits, exact.cluster_centers_), cost(visits, middle[None]))
    return Reference(costs, float(sizes.min()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each size and method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    names = " | ".join([*ALGORITHMS, *map(lost_gain.head, ALGORITHMS)])
    print(f"| persons, d, k | method | {names} | one cluster | smallest, needed |")
    print("|---|---|" + "--:|" * (2 * len(ALGORITHMS) + 2))
    for n_persons, n_features, n_clusters in SIZES:
        visits = generate(n_persons, n_features, n_clusters, seed=1)
        costs, smallest = reference(visits, n_clusters)
        mu = mu_of_budget(EPSILON, delta_of(n_persons))
        needed = fewest_records(n_features, mu)
        for method in METHODS:
            cells = []
            lost = []
            for kind in ALGORITHMS.values():
                mean, error = measure(kind, visits, n_clusters, method, options.runs)
                cells.append(f"{costs.ratio(mean):.3f} ± {error / costs.kmeans:.3f}")
                lost.append(lost_gain.text(costs.ratio(mean), costs.lost_gain(mean)))
            size = f"{n_persons:,}, {n_features}, {n_clusters}"
            single = f"{costs.ratio(costs.one_cluster):.3f}"
            persons = f"{smallest:,.0f}, {needed:.1f}"
            row = " | ".join([size, method, *cells, *lost, single, persons])
            print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
