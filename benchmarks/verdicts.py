"""Verdicts on runs of SynopsisKMeans, and the agreement of their clusters with k-means'.

    python benchmarks/verdicts.py --runs 5 --data s1.npz:15 adult.npz:3

Records are scaled so that their true bounds are -1 and 1. For each set and epsilon the
first table has the median of the larger lost gain (`Comparison.largest_lost_gain`), and
the second one the median cost over that of k-means, in brackets over the floor
(`bench.yardsticks`) where that is above k-means. The third one has, for all runs with
one verdict, their number and the adjusted Rand index of their clusters with those of
scikit-learn's k-means. A file of ``--data`` is an npz with records ``X``, and its
number of clusters.
"""

import argparse
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from ranges import Case, given, name_of, scaled
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_wine, make_blobs
from sklearn.metrics import adjusted_rand_score

from bench import lost_gain
from flower_kmeans import Box, Clustering, PrivacyBudget, simulate
from flower_kmeans.algorithms.numerics.initialization import sphere_packing
from flower_kmeans.report.comparison import Comparison, Verdict
from flower_kmeans.strategies import SynopsisKMeans

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
FIRST_SEED = 5_000
_VERDICTS: tuple[Verdict, ...] = (
    "as good as without privacy",
    "usable",
    "mostly noise",
    "worse than one cluster",
)
# name: records, columns, clusters
BLOBS = {
    "blobs, 10 in 2": (20_000, 2, 10),
    "blobs, 5 in 5": (2_000, 5, 5),
    "blobs, 10 in 20": (20_000, 20, 10),
    "few blobs, 8 in 8": (800, 8, 8),
    "many blobs, 50 in 2": (20_000, 2, 50),
}


def generated(name: str) -> Case:
    """Return blobs by their name."""
    n_records, d, k = BLOBS[name]
    records, _ = make_blobs(n_records, n_features=d, centers=k, random_state=1)
    return Case(name, scaled(records), k)


def bundled() -> list[Case]:
    """Return sets that come with scikit-learn."""
    return [
        Case("wine", scaled(load_wine().data), 3),
        Case("breast cancer", scaled(load_breast_cancer().data), 2),
    ]


def box_of(case: Case) -> Box:
    """Return the true bounds of a set."""
    d = case.records.shape[1]
    return Box([-1.0] * d, [1.0] * d)


def run_of(case: Case, epsilon: float, seed: int) -> Clustering:
    """Return the result of a run over three clients."""
    strategy = SynopsisKMeans(
        case.n_clusters,
        box_of(case),
        PrivacyBudget(epsilon),
        n_records=len(case.records),
        n_clients=3,
        trust="trusted-server",
        seed=seed,
    )
    return simulate(strategy, np.array_split(case.records, 3))


def unseen(case: Case) -> Comparison:
    """Return the comparison of centroids that saw no record."""
    d = case.records.shape[1]
    widths = np.full(d, 2**16)
    packed = sphere_packing(case.n_clusters, widths, FIRST_SEED) / 2.0**16
    # Nothing of its report is used.
    found = Clustering(packed, np.ones(len(packed)), box_of(case), None)  # type: ignore[arg-type]
    return found.compare(case.records)


def rows(cases: Sequence[Case], runs: int) -> Iterator[str]:
    """Yield the lines of all tables."""
    agreement = defaultdict(list)
    names = " | ".join(f"ε {epsilon:g}" for epsilon in EPSILONS)
    yield f"| set | one cluster | no record seen | {names} |"
    yield "|---|--:|--:|" + "--:|" * len(EPSILONS)
    second = [f"| set | {names} |", "|---|" + "--:|" * len(EPSILONS)]
    for case in cases:
        model = KMeans(case.n_clusters, n_init=10, random_state=0).fit(case.records)
        nothing = unseen(case)
        best = model.inertia_ / len(case.records)
        cells = []
        costs = []
        for epsilon in EPSILONS:
            lost = []
            ratios = []
            for run in range(runs):
                clustering = run_of(case, epsilon, FIRST_SEED + run)
                comparison = clustering.compare(case.records)
                labels = clustering.predict(case.records)
                agreement[comparison.verdict].append(
                    adjusted_rand_score(model.labels_, labels)
                )
                lost.append(comparison.largest_lost_gain)
                ratios.append(comparison.ratio)
            cells.append(f"{np.median(lost):.3f}")
            floor = lost_gain.floor_over(best, case.records, case.n_clusters, epsilon)
            ratio = float(np.median(ratios))
            costs.append(f"{ratio:.3f}{lost_gain.over_floor(ratio, floor)}")
        name = name_of(case)
        one = nothing.one_cluster_ratio
        yield (
            f"| {name} | {one:.2f} | {nothing.largest_lost_gain:.2f} | "
            f"{' | '.join(cells)} |"
        )
        second.append(f"| {name} | {' | '.join(costs)} |")
    yield ""
    yield from second
    yield ""
    yield "| verdict | runs | median ARI | 10 % of runs are below |"
    yield "|---|--:|--:|--:|"
    for verdict in _VERDICTS:
        found = agreement[verdict]
        if found:
            low, middle = np.quantile(found, [0.1, 0.5])
            yield f"| {verdict} | {len(found)} | {middle:.2f} | {low:.2f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--data", nargs="*", default=[], metavar="FILE:CLUSTERS")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    cases = [*map(generated, BLOBS), *bundled(), *map(given, options.data)]
    for line in rows(cases, options.runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
