"""The loss of SynopsisKMeans and PE-means against their clips, where clients are protected.

    python benchmarks/clips.py --runs 2 --output build/clips

1,000 clients, epsilon 1. Records: ``mixture``, the population of 1,000 clients of
``simulations/feddp`` (10 Gaussians in 100 columns, 50 records a client), and data sets
as for ``loss.py``. Clients hold random records (``clients``) or those of one cluster
(``one-each``), as in ``skew.py``; of ``mixture``, a cluster is a component. Clips are
factors of the library's default:

SynopsisKMeans    the clip of all releases
PE-means votes    the clip of the votes; HDPE-means beyond 16 columns
PE-means lift     the clips of the last round's sums and counts, of HDPE-means alone

The loss is shown over that of k-means on the pooled records: the best of ten starts, or
from the true means. Beside it stands the lost gain, (loss - k-means) / (one cluster -
k-means). There is no floor, as in ``skew.py``. Runs are under ``trusted-server``.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from protocols import PROJECTED, ball_of, in_ball, least
from skew import N_SMALL, OF_CLIENTS, parts_of
from sklearn.cluster import KMeans

from bench import lost_gain, script, tables
from bench.data import Data
from bench.harness import Options, Row, Suite
from bench.yardsticks import Yardsticks
from flower_kmeans import Ball, PrivacyBudget, simulate
from flower_kmeans.metrics import nicv
from flower_kmeans.strategies import HDPEMeans, KMeansStrategy, PEMeans, SynopsisKMeans

SYNOPSIS, PE_VOTES, PE_LIFT = METHODS = (
    "SynopsisKMeans",
    "PE-means votes",
    "PE-means lift",
)
VARIED = {PE_VOTES: ("votes",), PE_LIFT: ("lift-sums", "lift-counts")}
"""Releases of PE-means whose clips are varied."""
MIXTURE = "mixture"
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
RECORDS_EACH = 50


@dataclass(frozen=True)
class Task:
    """One run; its factor is of the default clip."""

    data: str
    setting: str
    method: str
    epsilon: float
    factor: float
    run: int


@dataclass(frozen=True)
class Case:
    """Records, the cluster of each, their domain, and the least loss."""

    data: Data
    labels: NDArray[np.int64]
    domain: Ball
    optimum: float


def mixture(run: int, n_clients: int = N_SMALL) -> Case:
    """Return the population of the FedDP-KMeans experiments."""
    folder = str(Path(__file__).parents[1] / "simulations" / "feddp")
    if folder not in sys.path:
        sys.path.append(folder)
    from populations import Mixture

    drawn = Mixture(n_clients, RECORDS_EACH).draw(MIXTURE, run)
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
    data = in_ball(name, options)
    labels, optimum = least(name, options)
    return Case(data, labels, ball_of(data), optimum)


def strategy_of(case: Case, task: Task) -> KMeansStrategy:
    """Return the strategy of a run."""
    n, d = case.data.records.shape
    if task.method == SYNOPSIS:
        kind: type[KMeansStrategy] = SynopsisKMeans
    elif d > PROJECTED:
        kind = HDPEMeans
    else:
        kind = PEMeans

    def made(**clips: Any) -> KMeansStrategy:
        return kind(
            case.data.n_clusters,
            case.domain,
            PrivacyBudget(task.epsilon, unit="client"),
            n_records=n,
            n_clients=N_SMALL,
            trust="trusted-server",
            seed=task.run,
            **clips,
        )

    default = made()
    if task.method == SYNOPSIS:
        return made(clip=task.factor * default.clip)
    clips = dict(default.clips)
    return made(clips={name: task.factor * clips[name] for name in VARIED[task.method]})


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the loss of one run over the least one, and its lost gain."""
    case = case_of(task.data, options, task.run)
    rng = np.random.default_rng([task.run, OF_CLIENTS.index(task.setting)])
    parts = parts_of(case.data, case.labels, task.setting, rng)
    found = simulate(strategy_of(case, task), parts)
    records = case.data.records
    one = nicv(records, records.mean(axis=0, keepdims=True))
    losses = Yardsticks(case.optimum, one)
    loss = nicv(records, found.centroids)
    return {"ratio": losses.ratio(loss), "lost": losses.lost_gain(loss)}


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    epsilons = options.chosen("epsilon", (1.0,), float)
    factors = options.chosen("factor", FACTORS, float)
    for run in range(options.runs):
        for name in options.data:
            is_wide = name == MIXTURE or options.load(name).records.shape[1] > PROJECTED
            for setting in OF_CLIENTS:
                for method in METHODS:
                    if method == PE_LIFT and not is_wide:
                        continue
                    for epsilon in epsilons:
                        for factor in factors:
                            yield Task(name, setting, method, epsilon, factor, run)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return mean ratios with their intervals, and lost gains, as a markdown table."""
    factors = sorted(tables.unique(row["factor"] for row in rows))
    by = ("data", "setting", "method", "epsilon")
    ratios = tables.grouped(rows, (*by, "factor"), "ratio")
    lost = tables.grouped(rows, (*by, "factor"), "lost")
    lines = []
    for key in tables.unique(key[:-1] for key in ratios):
        cells = [tables.cell(ratios.get((*key, factor), [])) for factor in factors]
        for factor in factors:
            gains = lost.get((*key, factor), [])
            cells.append(f"{np.mean(gains):.3f}" if gains else "")
        *words, epsilon = key
        lines.append([*words, f"{epsilon:g}", *cells])
    head = ["data", "clients hold", "clip of", "eps"]
    names = [f"{factor:g} x" for factor in factors]
    head += [*names, *map(lost_gain.head, names)]
    return tables.markdown(head, lines, 3)


SUITE = Suite(
    "clips",
    "The loss of SynopsisKMeans and PE-means (HDPE-means beyond 16 columns) against their clips, "
    "over that of k-means on the pooled records, where each of 1,000 clients is protected as a "
    "whole; means, 95% intervals and, in brackets, numbers of runs. Clips are factors of the "
    "library's default. Clients hold random records (clients) or those of one cluster (one-each). "
    "Runs are under trusted-server.",
    Task,
    {"ratio": float, "lost": float},
    tasks_of,
    measure,
    tables_of,
    datasets=(MIXTURE, "blobs_16_16", "blobs_4_16"),
    sources={MIXTURE: {}},
    choices={"method": METHODS},
    runs=2,
)


if __name__ == "__main__":
    script.main(SUITE)
