"""Units and domains of wide records: lost gain for records, persons, clients, ranges, spheres.

    python benchmarks/wide_units.py --columns 384 --runs 3
    python benchmarks/wide_units.py --ways "box" "box, ranges" --algorithms SynopsisKMeans

Records are generated unit vectors (`embeddings.made`). All runs have the plan's noise as
under ``trusted-server``, epsilon 1 and delta n^-1.1, with n the number of units.

record        16,000 records in ``Ball(1, 0)``.
person        16,000 persons with 1 to 8 records each, drawn independently. In the cost
              each person counts as one.
client        4,000 clients with 8 records each, and the default clips.
ball, hand    records divided by their lengths by hand, in ``Ball(1, 0)``.
sphere        records of different lengths as they are, on ``Sphere(d)``. In these two,
              the centroids of runs and of k-means are divided by their lengths.
box           16,000 records in a ``Box`` whose ball is six times as long as a record.
wide box      the same with bounds of -1 and 1 in every column.
..., ranges   the same with a tenth of mu^2 for ranges (``tighten=0.1``).
..., one scale   these ranges with ``scale="common"``: the widest sets the unit of all.

Printed are, with standard errors over the runs, the lost gain,
(cost - k-means) / (one cluster - k-means), and the cost over that of k-means. k-means is
scikit-learn's, the best of ``--starts``.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from direct import final_state
from embeddings import ALGORITHMS, RADIUS, cost, made, unit, with_error
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from flower_kmeans import Ball, Box, PrivacyBudget, Sphere
from flower_kmeans.algorithms import Algorithm, State
from flower_kmeans.algorithms.answers import answer_of, reconstructed
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.tightened import planned
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise

Groups = NDArray[np.int64]

N_UNITS = 16_000
N_CLIENTS = 4_000
MOST_RECORDS = 8
"""Most records of a person. Every client has as many."""
EPSILON = 1.0
TIGHTEN = 0.1
_LENGTHS = 0.8  # standard deviation of the logarithm of a record's length
_LONG_BOX = 6.0  # the radius of the ball around the box, in lengths of records
_FIRST_SEED = 1000


class Case(NamedTuple):
    """Records, (n, d), with their domain and their unit of privacy."""

    records: FloatArray
    domain: Domain
    unit: str = "record"
    groups: Groups | None = None
    """The person or the client of each record, in order, (n,)."""
    are_directions: bool = False
    """Whether the costs are those of directions."""


class Costs(NamedTuple):
    """A measure of centroids, (k, d), and what it is for k-means and for one cluster."""

    of: Callable[[FloatArray], float]
    kmeans: float
    one_cluster: float


def _ball(n_features: int) -> Ball:
    return Ball(RADIUS, np.zeros(n_features))


def of_records(n_features: int) -> Case:
    """Return records in a ball."""
    return Case(made(N_UNITS, n_features), _ball(n_features))


def of_persons(n_features: int) -> Case:
    """Return records of persons."""
    numbers = np.random.default_rng(0).integers(1, MOST_RECORDS + 1, N_UNITS)
    groups = np.repeat(np.arange(N_UNITS), numbers)
    return Case(made(len(groups), n_features), _ball(n_features), "person", groups)


def of_clients(n_features: int) -> Case:
    """Return records of clients."""
    groups = np.repeat(np.arange(N_CLIENTS), MOST_RECORDS)
    return Case(made(len(groups), n_features), _ball(n_features), "client", groups)


def of_directions(n_features: int) -> Case:
    """Return records of different lengths on a sphere."""
    rng = np.random.default_rng(1)
    lengths = np.exp(rng.normal(0.0, _LENGTHS, (N_UNITS, 1)))
    records = made(N_UNITS, n_features) * lengths
    return Case(records, Sphere(n_features), are_directions=True)


def by_hand(n_features: int) -> Case:
    """Return the records of `of_directions`, divided by their lengths, in a ball."""
    return of_records(n_features)._replace(are_directions=True)


def of_box(
    n_features: int,
    half_width: float,
    tighten: float | None = None,
    scale: Literal["column", "common"] = "column",
) -> Case:
    """Return records in a box."""
    ends = np.full(n_features, half_width)
    domain = Box(-ends, ends, scale, tighten=tighten)
    return Case(made(N_UNITS, n_features), domain)


def _half_width(n_features: int) -> float:
    return _LONG_BOX / float(np.sqrt(n_features))


WAYS: dict[str, Callable[[int], Case]] = {
    "record": of_records,
    "person": of_persons,
    "client": of_clients,
    "ball, hand": by_hand,
    "sphere": of_directions,
    "box": lambda d: of_box(d, _half_width(d)),
    "box, ranges": lambda d: of_box(d, _half_width(d), TIGHTEN),
    "wide box": lambda d: of_box(d, 1.0),
    "wide box, ranges": lambda d: of_box(d, 1.0, TIGHTEN),
    "wide box, one scale": lambda d: of_box(d, 1.0, TIGHTEN, "common"),
}


def costs_of(case: Case, n_clusters: int, n_starts: int) -> Costs:
    """Return the costs of a case. NOT PRIVATE."""
    vectors = case.records
    weights = np.ones(len(vectors))
    if case.unit == "person":
        assert case.groups is not None
        weights = 1 / np.bincount(case.groups)[case.groups]
    if case.are_directions:
        vectors = unit(vectors)

    def of(centroids: FloatArray) -> float:
        if case.are_directions:
            centroids = unit(centroids)
        return cost(vectors, centroids, weights)

    best = KMeans(n_clusters, n_init=n_starts, random_state=0)
    best.fit(vectors, sample_weight=weights)
    mean = np.average(vectors, axis=0, weights=weights)
    return Costs(of, of(best.cluster_centers_), of(mean[None]))


def state_of_clients(algorithm: Algorithm, case: Case, seed: int) -> State:
    """Return the state after all rounds, in which every client's answer is clipped."""
    assert case.groups is not None
    starts = np.flatnonzero(np.diff(case.groups)) + 1
    clients = [
        GridRecords(part, case.domain, algorithm.fraction_bits)
        for part in np.split(case.domain.counted(case.records), starts)
    ]
    plan = algorithm.plan()
    stream = Stream.fresh()
    state = algorithm.initial_state(public_generator(seed, 0))
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        layout = algorithm.layout(number)
        total = server_noise(algorithm, plan, number, stream)
        for client in clients:
            total = total + layout.flatten(answer_of(algorithm, query, client))
        answer = reconstructed(algorithm, number, total, 1.0, len(clients))
        state = algorithm.update(state, answer, public_generator(seed, number))
    return state


def run(kind: type[Algorithm], case: Case, n_clusters: int, seed: int) -> FloatArray:
    """Return the centroids, (k, d), of a private run."""
    n = len(case.records)
    n_units = n
    if case.groups is not None:
        n_units = int(case.groups[-1]) + 1
    options: dict[str, Any] = {"n_records": n}
    if case.unit == "client":
        options["n_clients"] = n_units
    if case.unit == "person":
        options = {"n_persons": n_units}
    budget = PrivacyBudget(EPSILON, n_units**-1.1, unit=case.unit)
    algorithm = planned(kind, n_clusters, case.domain, budget, seed=seed, **options)
    if case.unit == "client":
        state = state_of_clients(algorithm, case, seed)
    elif case.unit == "person":
        assert case.groups is not None
        persons = case.groups.tolist()
        state = final_state(algorithm, case.records, seed, persons=persons)
    else:
        state = final_state(algorithm, case.records, seed)
    centroids = algorithm.centroids(state)
    assert centroids is not None
    return centroids


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each way and strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=384)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--starts", type=int, default=3, help="starts of k-means")
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS])
    parser.add_argument("--algorithms", nargs="+", default=[*ALGORITHMS])
    options = parser.parse_args(arguments)
    print("| records | strategy | lost gain | cost over k-means | n |")
    print("|---|---|--:|--:|--:|")
    for way in options.ways:
        case = WAYS[way](options.columns)
        costs = costs_of(case, options.clusters, options.starts)
        gain = costs.one_cluster - costs.kmeans
        for name in options.algorithms:
            found = [
                costs.of(
                    run(ALGORITHMS[name], case, options.clusters, _FIRST_SEED + number)
                )
                for number in range(options.runs)
            ]
            lost = [(each - costs.kmeans) / gain for each in found]
            ratios = [each / costs.kmeans for each in found]
            print(
                f"| {way} | {name} | {with_error(lost)} | {with_error(ratios)} | "
                f"{options.runs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
