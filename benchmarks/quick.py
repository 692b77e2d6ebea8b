"""Every strategy on a few generated data sets, in minutes: ``python benchmarks/quick.py``."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench import scales, script, tables
from bench.data import to_unit_box
from bench.harness import Options, Row, Suite, Task, seed_of
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box
from flower_kmeans.extras import require
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.report.curves import draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KMEANS = "KMeans"
FEDDP = "FedDPKMeans"
OBLIVIOUS = ("FastLloyd", "GLloyd", "SuLloyd")
OF_THE_SERVER = ("SynopsisKMeans", FEDDP, "PEMeans", "HDPEMeans")
METHODS = (KMEANS, *OF_THE_SERVER, *OBLIVIOUS)
EPSILONS = (0.5, 1.0, 4.0)
DATASETS = ("separated_5_2_21", "separated_8_8_34", "g2_32_50")
N_CLIENTS = 10
PROJECTED = 16
"""Columns beyond which PE-means' paper recommends HDPE-means."""
SERVER_EACH, SERVER_UNIFORM = 20, 100


class Case(NamedTuple):
    """Records in [-1, 1], their clusters' number, the server's own points, and the least cost."""

    records: FloatArray
    n_clusters: int
    server_data: FloatArray
    best: float


@lru_cache(maxsize=4)
def case_of(name: str, options: Options, n_each: int = SERVER_EACH) -> Case:
    """Return the case of a data set. The server owns ``n_each`` records of each cluster."""
    data = options.load(name)
    records, k, labels = to_unit_box(data.records), data.n_clusters, data.labels
    if labels is None:
        labels = kmeans(records, k, 0).labels_
    rng = public_generator(0, 0)
    taken = np.concatenate(
        [
            rng.permutation(np.flatnonzero(labels == label))[:n_each]
            for label in range(labels.max() + 1)
        ]
    )
    uniform = rng.uniform(-1, 1, (SERVER_UNIFORM, records.shape[1]))
    # No client has the server's points, which FedDPKMeans uses without noise.
    left = np.delete(records, taken, axis=0)
    best = nicv(left, kmeans(left, k, 0).cluster_centers_)
    return Case(left, k, np.concatenate([records[taken], uniform]), best)


def kmeans(records: FloatArray, n_clusters: int, seed: int) -> Any:
    """Return scikit-learn's KMeans, the best of ten starts; not private."""
    require("sklearn.cluster", "A benchmark", "test")
    from sklearn.cluster import KMeans

    return KMeans(n_clusters, n_init=10, random_state=seed).fit(records)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            wide = options.load(name).records.shape[1] > PROJECTED
            for method in METHODS:
                if method != KMEANS and (method != "HDPEMeans" or wide):
                    for epsilon in options.chosen("epsilon", EPSILONS, float):
                        yield Task(name, method, epsilon, run)
            yield Task(name, KMEANS, None, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the cost of one run over the least one."""
    case = case_of(task.data, options)
    if task.method == KMEANS:
        model = kmeans(case.records, case.n_clusters, seed_of(task))
        return {
            "ratio": nicv(case.records, model.cluster_centers_) / case.best,
            "rounds": 0,
        }
    from flower_kmeans import strategies
    from flower_kmeans.simulation import simulate

    n, d = case.records.shape
    strategy = getattr(strategies, task.method)(
        case.n_clusters,
        Box([-1.0] * d, [1.0] * d),
        PrivacyBudget(task.epsilon),
        n_records=n,
        n_clients=N_CLIENTS,
        trust="oblivious-server" if task.method in OBLIVIOUS else "trusted-server",
        seed=task.run,
        **({"server_data": case.server_data} if task.method == FEDDP else {}),
    )
    order = public_generator(seed_of(task, "order"), 0).permutation(n)
    clustering = simulate(strategy, np.array_split(case.records[order], N_CLIENTS))
    ratio = nicv(case.records, clustering.centroids) / case.best
    return {"ratio": ratio, "rounds": clustering.report.n_rounds}


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows by data set, as they come, and by method, in the order of `METHODS`."""
    names = tables.unique(row["data"] for row in rows)
    return sorted(
        rows, key=lambda row: (names.index(row["data"]), METHODS.index(row["method"]))
    )


def scale_of(name: str, options: Options, epsilons: Sequence[float]) -> scales.Scale:
    """Return the yardsticks of the records that clients have. NOT PRIVATE."""
    case = case_of(name, options)
    n_records = len(case.records)
    # The delta depends on the number of records alone.
    delta = PrivacyBudget(1.0).resolved(n_records).delta
    return scales.scale_of(case.records, case.n_clusters, delta, epsilons)


def epsilons_of(rows: Sequence[Row]) -> list[float]:
    """Return the epsilons of rows."""
    return sorted({row["epsilon"] for row in rows} - {None})


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return mean ratios with their intervals, and beside all yardsticks."""
    rows = ordered(rows)
    epsilons = epsilons_of(rows)
    names = tables.unique(row["data"] for row in rows)
    parts = [tables.over_grid(rows, "ratio", epsilons)]
    there = [name for name in names if name in options.data]
    if there and epsilons:
        best = {name: case_of(name, options).best for name in there}
        costs = [
            {**row, "cost": row["ratio"] * best[row["data"]]}
            for row in rows
            if row["data"] in best
        ]
        measured = {name: scale_of(name, options, epsilons) for name in there}
        parts += [
            "Yardsticks, not private:",
            scales.yardstick_table(measured, epsilons),
            scales.MEANING,
            scales.relative_costs(tables.curves_of(costs, "cost"), measured, epsilons),
        ]
    return "\n\n".join(parts)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Return the ratios over epsilon, a panel for each data set."""
    runs = tables.grouped(rows, ("data", "method", "epsilon"), "run").values()
    return draw_lines(
        tables.panels(tables.curves_of(ordered(rows), "ratio")),
        epsilons_of(rows),
        colors={KMEANS: "0.6"},
        dashed=(KMEANS,),
        ylabel="cost / least cost",
        bands=max(map(len, runs)) > 4,
    )


SUITE = Suite(
    "quick",
    "The cost of private clusterings over the least one, which is that of scikit-learn's "
    "KMeans on the pooled records (the best of ten starts); 1 is as good as without privacy. "
    "Means, 95% intervals and, in brackets, numbers of runs. Each run is a whole federation "
    "in one process: 10 clients with random parts of the records, single records protected at "
    "the library's default delta. FastLloyd, GLloyd and SuLloyd run under oblivious-server, "
    "the others under trusted-server, so one party adds the noise. The server of FedDPKMeans "
    "owns 20 records of each cluster, which no client has, and 100 uniform points. The row "
    "KMeans is ten other starts, and not private. Records are generated, and scaled to [-1, "
    "1] by their own range, which a real run must not do.",
    Task,
    {"ratio": float, "rounds": int},
    tasks_of,
    measure,
    tables_of,
    {"quick": plot},
    DATASETS,
    choices={"method": METHODS},
    runs=3,
)


if __name__ == "__main__":
    script.main(SUITE)
