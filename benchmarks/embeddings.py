"""Embeddings: lost gain of SynopsisKMeans beside FastLloyd on records of many columns.

    python benchmarks/embeddings.py --data made_16000_384 made_24000_768 --runs 3
    python benchmarks/embeddings.py --data-dir DIR --data vectors.npy --seed 1000
    python benchmarks/embeddings.py --data digits blobs_64_64 --epsilons 0.25 1 4
    python benchmarks/embeddings.py --data made_16000_384 --box 0.3
    python benchmarks/embeddings.py --data made_24000_768 --groups 64 --floor
    python benchmarks/embeddings.py --data made_24000_768 --client
    python benchmarks/embeddings.py --data made_24000_768 --trust distributed-noise

made_N_D     N generated vectors of D columns: 40 centres of unequal weight in a spectrum
             that falls, noise whose spectrum falls, and a part common to all, as models
             of text have. They are the same in every run.
NAME.npy     vectors, (n, d), in a file of the folder ``--data-dir``, such as those of
             embedding_sets.py.
digits       scikit-learn's digits, 1,797 records of 64 columns, 10 clusters
others       names of bench/data.py, such as blobs_64_64 and sklearn-breast

Every vector of the first two is divided by its length; there are 20 clusters unless
``--clusters`` says another number. Records of the others are centred and scaled to a
largest length of 1. The domain is ``Ball(1, 0)``, or with ``--box WIDTH`` the box from
-WIDTH to WIDTH. Records are pooled, with the plan's noise as under ``trusted-server``,
and delta is N^-1.1. With ``--groups M`` second moments are those of M groups of columns.
Printed are, with standard errors over the runs, the lost gain

    (cost - k-means) / (one cluster - k-means),

and the cost over that of k-means, scikit-learn's, the best of ``--starts``, which need
not be the optimum. ``--floor`` adds the cost over the floor (bench/yardsticks.py), whose
search can take minutes. Runs with equal numbers have equal public seeds. Their noise is
drawn anew, or from the seed with ``--seeded-noise``: two versions of the library with the
same rules then print the same row. Such noise protects nobody.

``--client`` prints instead the processor time and the memory of one of twenty clients
of SynopsisKMeans under a blind server: its answers and its updates, without noise,
shares and masks. ``--trust`` prints those of a whole run with twenty clients in one
process.
"""

import argparse
import re
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from direct import final_state
from sklearn.datasets import load_digits

from bench import data as bundled
from bench.yardsticks import fewest_records, floor, yardsticks
from flower_kmeans import Ball, Box, PrivacyBudget, simulate
from flower_kmeans.algorithms import (
    Algorithm,
    FastLloydAlgorithm,
    SynopsisAlgorithm,
)
from flower_kmeans.algorithms.answers import answer_of, reconstructed
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.strategies import SynopsisKMeans

Noise = Callable[[int], IntArray]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "SynopsisKMeans": SynopsisAlgorithm,
    "FastLloyd": FastLloydAlgorithm,
}
# Vectors that are divided by their lengths may be longer than 1 by a rounding.
RADIUS = 1 + 2.0**-40

_CENTRES = 40
_NOISE = 1.9  # length of the noise over that of a centre
_COMMON = 0.9  # length of the common part over that of a centre
_BLOCK_ROWS = 4096
_CLIENTS = 20
_CLUSTERS = 20
_MEGABYTE = 10**6


class Vectors(NamedTuple):
    """Records, (n, d), of at most length 1, and the number of clusters to find."""

    records: FloatArray
    n_clusters: int


def unit(vectors: FloatArray) -> FloatArray:
    """Return vectors, (n, d), divided by their lengths."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def made(n_vectors: int, n_features: int) -> FloatArray:
    """Return generated unit vectors, (n, d), always the same."""
    rng = np.random.default_rng(n_features)
    places = np.arange(n_features)
    axes, _ = np.linalg.qr(rng.normal(size=(n_features, n_features)))
    centres = rng.normal(size=(_CENTRES, n_features)) * (places + 5.0) ** -0.75
    centres /= np.sqrt(np.square(centres).sum(axis=1).mean())
    spectrum = (places + 11.0) ** -0.45
    spectrum /= np.sqrt(np.square(spectrum).sum())
    shares = rng.dirichlet(np.full(_CENTRES, 3.0))
    labels = rng.choice(_CENTRES, n_vectors, p=shares)
    noise = _NOISE * spectrum * rng.normal(size=(n_vectors, n_features))
    vectors = centres[labels] + noise
    vectors[:, 0] += _COMMON
    return unit(vectors @ axes.T)


def load(name: str, folder: Path) -> Vectors:
    """Return the records of a name or of a file in a folder, and their number of clusters."""
    sizes = re.fullmatch(r"made_(\d+)_(\d+)", name)
    if sizes is not None:
        return Vectors(made(int(sizes[1]), int(sizes[2])), _CLUSTERS)
    if name.endswith(".npy"):
        vectors = np.load(folder / name).astype(np.float64)
        return Vectors(unit(vectors), _CLUSTERS)
    if name == "digits":
        records = load_digits().data
        return Vectors(bundled.to_unit_ball(records), 10)
    found = bundled.load(name, folder)
    return Vectors(bundled.to_unit_ball(found.records), found.n_clusters)


def domain_of(n_features: int, half_width: float | None = None) -> Domain:
    """Return the unit ball, or the box with a half width."""
    if half_width is None:
        return Ball(RADIUS, np.zeros(n_features))
    widths = np.full(n_features, half_width)
    return Box(-widths, widths)


def cost(
    vectors: FloatArray, centroids: FloatArray, weights: FloatArray | None = None
) -> float:
    """Return the mean squared distance of vectors to their nearest centroids.

    With ``weights``, (n,), it is the weighted mean.
    """
    if weights is None:
        weights = np.ones(len(vectors))
    squares = np.square(centroids).sum(axis=1)
    total = 0.0
    for start in range(0, len(vectors), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        block = vectors[rows]
        nearest = (squares - 2 * block @ centroids.T).min(axis=1)
        distances = np.square(block).sum(axis=1) + nearest
        total += float((distances * weights[rows]).sum())
    return total / float(weights.sum())


def seeded_noise(algorithm: Algorithm, seed: int) -> Noise:
    """Return a function that draws a round's noise from a seed. NOT PRIVATE."""
    plan = algorithm.plan()

    def noise(number: int) -> IntArray:
        rng = np.random.default_rng((seed, number))
        scales = sensitivities(algorithm, number)
        layout = algorithm.layout(number)
        found = np.zeros(layout.n_words)
        for release in plan.rounds[number - 1]:
            words = layout.words_of(release)
            drawn = rng.standard_normal(len(words)) * release.noise_multiplier
            found[words] = drawn * scales[words]
        return np.rint(found).astype(np.int64)

    return noise


def run(
    kind: type[Algorithm],
    vectors: FloatArray,
    n_clusters: int,
    epsilon: float,
    seed: int,
    half_width: float | None = None,
    is_noise_seeded: bool = False,
    **options: int,
) -> float:
    """Return the cost of a private run. ``options`` are those of `planned`."""
    n, d = vectors.shape
    domain = domain_of(d, half_width)
    algorithm = kind.planned(
        n_clusters,
        domain,
        PrivacyBudget(epsilon, n**-1.1),
        n_records=n,
        seed=seed,
        **options,
    )
    noise = None
    if is_noise_seeded:
        noise = seeded_noise(algorithm, seed)
    state = final_state(algorithm, domain.counted(vectors), seed, noise)
    centroids = algorithm.centroids(state)
    assert centroids is not None
    return cost(vectors, centroids)


def client_part(vectors: FloatArray, n_clusters: int) -> str:
    """Return the time and the memory of one of twenty clients, as text."""
    n, d = vectors.shape
    domain = domain_of(d)
    budget = PrivacyBudget(1.0, n**-1.1)
    algorithm = SynopsisAlgorithm.planned(n_clusters, domain, budget, n_records=n)
    part = domain.counted(vectors[: n // _CLIENTS])
    records = GridRecords(part, domain, algorithm.fraction_bits)

    def work() -> None:
        state = algorithm.initial_state()
        for number in range(1, algorithm.n_rounds + 1):
            query = algorithm.query(state)
            answer = answer_of(algorithm, query, records)
            # As if all clients had these records.
            total = _CLIENTS * algorithm.layout(number).flatten(answer)
            state = algorithm.update(
                state, reconstructed(algorithm, number, total, 1.0, 1)
            )

    started = time.process_time()
    work()
    seconds = time.process_time() - started
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return f"{seconds:.2f} s, {peak / _MEGABYTE:.0f} MB"


def whole_run(vectors: FloatArray, n_clusters: int, trust: str) -> str:
    """Return the time and the memory of a run with twenty clients, as text."""
    n, d = vectors.shape
    strategy = SynopsisKMeans(
        n_clusters,
        domain_of(d),
        PrivacyBudget(1.0, n**-1.1),
        n_records=n,
        n_clients=_CLIENTS,
        trust=trust,
    )
    started = time.process_time()
    simulate(strategy, np.array_split(vectors, _CLIENTS))
    seconds = time.process_time() - started
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{seconds:.1f} s, {kilobytes / 1024:.0f} MB"


def with_error(values: Sequence[float]) -> str:
    """Return the mean of values with its standard error, as text."""
    error = np.std(values) / np.sqrt(max(1, len(values) - 1))
    return f"{np.mean(values):.3f} ± {error:.3f}"


def rows_of(name: str, options: argparse.Namespace) -> Iterator[str]:
    """Yield a row of the table for each epsilon and strategy of a set."""
    records, n_clusters = load(name, options.data_dir)
    n_clusters = options.clusters or n_clusters
    n, d = records.shape
    best = yardsticks(records, n_clusters, options.starts)
    for epsilon in options.epsilons:
        lowest = None
        if options.floor:
            fewest = fewest_records(d, mu_of_budget(epsilon, n**-1.1))
            lowest = floor(records, n_clusters, fewest, options.starts)
        for algorithm in options.algorithms:
            extra = {}
            if options.groups is not None and algorithm == "SynopsisKMeans":
                extra["most_words"] = options.groups * d
            costs = [
                run(
                    ALGORITHMS[algorithm],
                    records,
                    n_clusters,
                    epsilon,
                    options.seed + number,
                    options.box,
                    options.seeded_noise,
                    **extra,
                )
                for number in range(options.runs)
            ]
            lost = [best.lost_gain(found) for found in costs]
            ratios = [best.ratio(found) for found in costs]
            over_floor = "-"
            if lowest is not None:
                over_floor = with_error([found / lowest for found in costs])
            yield (
                f"| {name} | {n:,} | {d} | {epsilon:g} | {algorithm} | "
                f"{with_error(lost)} | {with_error(ratios)} | {over_floor} | {options.runs} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each set, epsilon and strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=Path(), help="folder of files")
    parser.add_argument("--data", nargs="+", default=["made_16000_384"])
    parser.add_argument("--clusters", type=int, help="default: the set's own number")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 4.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1000, help="seed of the first run")
    parser.add_argument("--starts", type=int, default=5, help="starts of k-means")
    parser.add_argument("--algorithms", nargs="+", default=[*ALGORITHMS])
    parser.add_argument("--box", type=float, help="half width of a box")
    parser.add_argument(
        "--groups", type=int, help="groups of columns, of SynopsisKMeans"
    )
    parser.add_argument("--seeded-noise", action="store_true", help="NOT PRIVATE")
    parser.add_argument("--floor", action="store_true", help="cost over the floor")
    parser.add_argument("--client", action="store_true", help="a client's part")
    parser.add_argument("--trust", help="time a run under this trust model")
    options = parser.parse_args(arguments)
    if options.client or options.trust is not None:
        for name in options.data:
            records, n_clusters = load(name, options.data_dir)
            n_clusters = options.clusters or n_clusters
            if options.client:
                print(f"{name}: {client_part(records, n_clusters)}")
            else:
                found = whole_run(records, n_clusters, options.trust)
                print(f"{name}, {options.trust}: {found}")
        return
    print(
        "| vectors | N | d | epsilon | strategy | lost gain | cost over k-means | "
        "cost over the floor | n |"
    )
    print("|---|--:|--:|--:|---|--:|--:|--:|--:|")
    for name in options.data:
        for row in rows_of(name, options):
            print(row, flush=True)


if __name__ == "__main__":
    main()
