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
everyone answering. ``flower-kmeans bench --suite benchmarks/clips.py`` does the same. Written to
``--output``: runs.csv, from which the same command goes on, and tables.md, also printed.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from direct import final_state
from loss import PROJECTED, FloatArray
from numpy.typing import NDArray
from skew import N_SMALL, OF_CLIENTS, parts_of
from skew import case_of as clustered
from sklearn.cluster import KMeans

from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms.pe_means import (
    LIFT_COUNTS,
    LIFT_SUMS,
    VOTES,
    HDPEMeansAlgorithm,
    PEMeansAlgorithm,
)
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.data import Data
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.metrics import nicv

SYNOPSIS, PE_VOTES, PE_LIFT = METHODS = ("SynopsisKMeans", "PE-means votes", "PE-means lift")
MIXTURE = "mixture"
NAMES = (MIXTURE, "blobs_16_16", "blobs_4_16")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
RECORDS_EACH = 50


@dataclass(frozen=True)
class Task:
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

    records: Data
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
        Data(MIXTURE, pooled, drawn.n_clusters),
        drawn.classes,
        drawn.domain,
        nicv(pooled, best.cluster_centers_),
    )


@lru_cache(maxsize=4)
def case_of(name: str, options: Options, run: int) -> Case:
    """Return the records of a run: others in each of ``mixture``, the same of a data set."""
    if name == MIXTURE:
        return mixture(run)
    data, labels, optimum = clustered(name, options)
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
    return nicv(case.records.records, centroids) / case.optimum


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the loss of one run over the least one."""
    return {"ratio": ratio_of(case_of(task.data, options, task.run), task)}


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            wide = name == MIXTURE or options.load(name).records.shape[1] > PROJECTED
            for shape in OF_CLIENTS:
                for method in METHODS:
                    if method == PE_LIFT and not wide:
                        continue
                    for epsilon in options.chosen("epsilon", (1.0,), float):
                        for factor in options.chosen("factor", FACTORS, float):
                            yield Task(name, shape, method, epsilon, factor, run)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return mean ratios with their intervals, as a markdown table."""
    factors = sorted(tables.unique(row["factor"] for row in rows))
    by = ("data", "shape", "method", "epsilon")
    lines = []
    for (*words, epsilon), curve in tables.curves_of(rows, "ratio", by, "factor").items():
        found = tables.points_of(curve, factors)
        lines.append([*words, f"{epsilon:g}", *(tables.cell(ratios) for ratios in found)])
    head = ["data", "clients hold", "clip of", "eps", *(f"{factor:g} x" for factor in factors)]
    return tables.markdown(head, lines, 3)


SUITE = Suite(
    "clips",
    "The loss of SynopsisKMeans and PE-means (HDPE-means beyond 16 columns) against their clips, "
    "over that of k-means on the pooled records, where each of 1,000 clients is protected as a "
    "whole; means, 95% intervals and, in brackets, numbers of runs. Clips are factors of the "
    "library's default. Clients hold random records (clients) or those of one cluster (one-each). "
    "Runs have the result of trusted-server with everyone answering, without messages.",
    Task,
    {"ratio": float},
    tasks_of,
    measure,
    tables_of,
    datasets=NAMES,
    made=(MIXTURE,),
    choices={"method": METHODS},
    runs=2,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
