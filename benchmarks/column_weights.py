"""Weights after a run, beside runs with these weights, on generated tables of people's columns.

    python benchmarks/column_weights.py --tables 25

A table has 1 to 5 numbers, 1 to 5 categories of 2 to 30 levels, and 2 to 5 groups,
carried by the numbers, the categories or both. Half of the columns that carry groups are
noise. Printed is the mean adjusted Rand index with the groups: of a run with a weight f
of all categories, of the default run whose synopsis is clustered again with f, and of
k-means without privacy with f.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from direct import final_state
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from flower_kmeans import PrivacyBudget, TableDomain
from flower_kmeans.algorithms import SynopsisAlgorithm
from flower_kmeans.data.table_domain import Category, Number
from flower_kmeans.report.clustering import assigned
from flower_kmeans.report.synopsis import Synopsis

CARRIERS = ("numbers", "categories", "both")
WEIGHTS = (0.05, 0.1, 0.2, 0.35, 1.0)
EPSILON = 1.0
_CLEAR = 0.8  # of the records of a group have its own level of a category


class Table(NamedTuple):
    """Generated records of declared columns, and the group of each."""

    domain: TableDomain
    records: NDArray[np.float64]
    groups: NDArray[np.int64]
    n_groups: int


def generate(carrier: str, seed: int) -> Table:
    """Return a table whose groups are carried by some of its columns."""
    rng = np.random.default_rng((CARRIERS.index(carrier), seed))
    n = int(rng.integers(3_000, 20_001))
    k = int(rng.integers(2, 6))
    groups = rng.integers(0, k, n)
    declared: list[Number | Category] = []
    cells: dict[str, list[str]] = {}
    for i in range(rng.integers(1, 6)):
        name = f"number {i}"
        is_noise = carrier == "categories" or i % 2 == 1
        places = rng.uniform(20, 100, k)
        centers = np.full(n, 60.0) if is_noise else places[groups]
        values = centers + rng.normal(0, 15 if is_noise else 5, n)
        declared.append(Number(name, 0, 120))
        cells[name] = values.astype(str).tolist()
    for i in range(rng.integers(1, 6)):
        name = f"category {i}"
        is_noise = carrier == "numbers" or i % 2 == 1
        m = int(rng.integers(2, 31))
        chosen = rng.choice(m, n, p=rng.dirichlet(np.full(m, 2.0)))
        if not is_noise:
            own = rng.permutation(max(m, k))[:k] % m
            chosen = np.where(rng.random(n) < _CLEAR, own[groups], chosen)
        declared.append(Category(name, tuple(map(str, range(m)))))
        cells[name] = chosen.astype(str).tolist()
    domain = TableDomain(declared)
    return Table(domain, domain.encode(cells), groups, k)


def with_weight(domain: TableDomain, weight: float) -> TableDomain:
    """Return the domain with one weight of all categories."""
    names = [each.name for each in domain.declared if isinstance(each, Category)]
    return domain.weighted(dict.fromkeys(names, weight))


def released(table: Table, domain: TableDomain, seed: int) -> tuple[float, Synopsis]:
    """Return a run's index with the groups, and its synopsis."""
    algorithm = SynopsisAlgorithm.planned(
        table.n_groups,
        domain,
        PrivacyBudget(EPSILON),
        n_records=len(table.records),
        seed=seed,
    )
    state = final_state(algorithm, table.records)
    centroids = algorithm.centroids(state)
    mixture = algorithm.mixture.learned(state)
    assert centroids is not None
    assert mixture is not None
    labels = assigned(table.records, centroids, domain)
    return adjusted_rand_score(table.groups, labels), Synopsis(mixture, domain)


def measure(carrier: str, seed: int) -> dict[str, list[float]]:
    """Return three indices for each weight: of a run, after the default run, and of k-means."""
    table = generate(carrier, seed)
    _, synopsis = released(table, table.domain, seed)
    categories = [each for each in table.domain.declared if isinstance(each, Category)]
    found: dict[str, list[float]] = {"run": [], "after": [], "k-means": []}
    for weight in WEIGHTS:
        domain = with_weight(table.domain, weight)
        own, _ = released(table, domain, seed)
        chosen = {each.name: weight for each in categories}
        again = synopsis.kmeans(table.n_groups, seed, weights=chosen)
        scaled = domain.to_unit(table.records)
        exact = KMeans(table.n_groups, n_init=5, random_state=seed).fit(scaled)
        found["run"].append(own)
        index = adjusted_rand_score(table.groups, again.predict(table.records))
        found["after"].append(index)
        found["k-means"].append(adjusted_rand_score(table.groups, exact.labels_))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each weight and carrier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=25, help="of each kind")
    options = parser.parse_args(arguments)
    print("| groups are in | f | a run with f | after a run with 0.5 | k-means |")
    print("|---|--:|--:|--:|--:|")
    for carrier in CARRIERS:
        rows = [measure(carrier, seed) for seed in range(options.tables)]
        for place, weight in enumerate(WEIGHTS):
            means = [np.mean([row[name][place] for row in rows]) for name in rows[0]]
            cells = " | ".join(f"{mean:.2f}" for mean in means)
            print(f"| {carrier} | {weight:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
