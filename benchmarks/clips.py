"""The k-means loss against the clips of SynopsisKMeans and PE-means, where clients are protected.

    python benchmarks/clips.py --runs 2 --output build/clips

1,000 clients, epsilon 1. Records: ``mixture``, which is the population of 1,000 clients of
``simulations/feddp`` (10 Gaussians in 100 columns, 50 records a client), and data sets as for
``loss.py``. Clients hold random records (``clients``) or those of one cluster (``one-each``), as in
``skew.py``; of ``mixture``, a cluster is a component.

What is varied, by factors of the library's default, the rest as by default:

SynopsisKMeans    the clip of all releases
PE-means votes    the clip of the votes; HDPE-means beyond 16 columns
PE-means lift     the clip of the last round's sums and counts, of HDPE-means alone

The loss is shown over that of k-means on the pooled records: the best of ten starts, or from the
true means. Runs are those of ``direct.py``, whose results are as under ``trusted-server`` with
everyone answering. Written to ``--output``: runs.csv, from which the same command goes on, and
tables.md, also printed.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from direct import final_state
from loss import PROJECTED, FloatArray, load, loss_of
from numpy.typing import NDArray
from skew import N_SMALL, OF_CLIENTS, best_labels, cell, complete, parts_of, read_csv
from skew import Data as Records
from sklearn.cluster import KMeans

from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms.pe_means import HDPEMeansAlgorithm, PEMeansAlgorithm
from flower_kmeans.algorithms.pe_means_parameters import LIFT_COUNTS, LIFT_SUMS, VOTES
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm

SYNOPSIS, PE_VOTES, PE_LIFT = METHODS = ("SynopsisKMeans", "PE-means votes", "PE-means lift")
MIXTURE = "mixture"
NAMES = (MIXTURE, "blobs_16_16", "blobs_4_16")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
RECORDS_EACH = 50


class Task(NamedTuple):
    """One run; its factor is of the default clip."""

    data: str
    shape: str
    method: str
    epsilon: float
    factor: float
    run: int


@dataclass(frozen=True)
class Case:
    """Records, the cluster of each, what is public about them, and the least loss."""

    records: Records
    labels: NDArray[np.int64]
    domain: Ball
    optimum: float


def mixture(run: int) -> Case:
    """Return the population of 1,000 clients of the FedDP-KMeans experiments."""
    folder = str(Path(__file__).parents[1] / "simulations" / "feddp")
    if folder not in sys.path:
        sys.path.append(folder)
    from populations import Mixture

    drawn = Mixture(N_SMALL, RECORDS_EACH).draw(MIXTURE, run)
    pooled = np.concatenate(drawn.partitions)
    best = KMeans(drawn.n_clusters, init=drawn.means, n_init=1).fit(pooled)
    return Case(
        Records(MIXTURE, pooled, drawn.n_clusters),
        drawn.classes,
        drawn.domain,
        loss_of(pooled, best.cluster_centers_),
    )


@cache
def case_of(name: str, directory: Path | None, run: int) -> Case | None:
    """Return the records of a run: others in each of ``mixture``, the same of a data set."""
    if name == MIXTURE:
        return mixture(run)
    if run:
        return case_of(name, directory, 0)
    data = load(name, directory)
    if data is None:
        return None
    labels, optimum = best_labels(data)
    return Case(data, labels, Ball(1.0, np.zeros(data.records.shape[1])), optimum)


def algorithm_of(case: Case, task: Task) -> SynopsisAlgorithm | PEMeansAlgorithm:
    """Return the algorithm of a run: all of it public but for the task."""
    n, d = case.records.records.shape
    made = SynopsisAlgorithm
    if task.method != SYNOPSIS:
        made = HDPEMeansAlgorithm if d > PROJECTED else PEMeansAlgorithm
    common = (case.records.n_clusters, case.domain, PrivacyBudget(task.epsilon, unit="client"))
    options = {"n_records": n, "n_clients": N_SMALL, "seed": task.run}
    default = made(*common, **options)
    if task.method == SYNOPSIS:
        return made(*common, **options, clip=task.factor * default.clip)
    varied = (VOTES,) if task.method == PE_VOTES else (LIFT_SUMS, LIFT_COUNTS)
    clips = {name: task.factor * dict(default.clips)[name] for name in varied}
    return made(*common, **options, clips=clips)


def ratio_of(case: Case, task: Task) -> float:
    """Return the loss of one run over the least one."""
    rng = np.random.default_rng([task.run, OF_CLIENTS.index(task.shape)])
    parts: list[FloatArray] = parts_of(case.records, case.labels, task.shape, rng)
    algorithm = algorithm_of(case, task)
    centroids = algorithm.centroids(final_state(algorithm, parts, task.run))
    return loss_of(case.records.records, centroids) / case.optimum


def tasks_of(options: argparse.Namespace) -> Iterator[tuple[Task, Case]]:
    """Yield every run with its records, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            case = case_of(name, options.data_dir, run)
            if case is None:
                continue
            known = case.records.name
            for shape in options.shapes:
                for method in options.methods:
                    if method == PE_LIFT and case.records.records.shape[1] <= PROJECTED:
                        continue
                    for epsilon in options.epsilons:
                        for factor in options.factors:
                            yield Task(known, shape, method, epsilon, factor, run), case


def table_of(found: dict[Task, float], factors: Sequence[float]) -> str:
    """Return mean ratios with their intervals, as a markdown table."""
    rows: dict[tuple[str, str, str, float], dict[float, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for task, ratio in found.items():
        rows[task.data, task.shape, task.method, task.epsilon][task.factor].append(ratio)
    head = " | ".join(f"{factor:g} x" for factor in factors)
    lines = [f"| data | clients hold | clip of | eps | {head} |"]
    lines.append("|---|---|---|--:|" + "--:|" * len(factors))
    for (data, shape, method, epsilon), by_factor in rows.items():
        cells = [data, shape, method, f"{epsilon:g}", *(cell(by_factor[f]) for f in factors)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run everything that was asked for, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="directory of NAME.npz files")
    parser.add_argument("--data", nargs="+", default=NAMES, help=f"{MIXTURE}, or as for loss.py")
    parser.add_argument("--shapes", nargs="+", choices=OF_CLIENTS, default=OF_CLIENTS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, metavar="NAME")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--factors", type=float, nargs="+", default=list(FACTORS))
    parser.add_argument("--runs", type=int, default=2, help="runs per cell")
    parser.add_argument("--output", type=Path, default=Path("build/clips"))
    options = parser.parse_args()

    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "runs.csv"
    found = read_csv(path, Task)
    complete(path, found, tasks_of(options), ratio_of)
    table = table_of(found, options.factors)
    (options.output / "tables.md").write_text(table + "\n")
    print("\n" + table)


if __name__ == "__main__":
    main()
