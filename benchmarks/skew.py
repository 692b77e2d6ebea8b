"""The k-means loss if clients differ, drop out, or are the unit of privacy.

    python benchmarks/skew.py --runs 5 --output build/skew

Beside the ratio to k-means stand the lost gain and the ratio to the floor
(`bench.lost_gain`). Where whole clients are protected, there is no floor: the clip
bounds a client's part, however many records a cluster has. ``SUITE`` names the
settings, each a whole run of a strategy through ``simulate``. All but one are under
``trusted-server``, whose noise does not depend on who answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from protocols import OF_THE_SERVER, ball_of, box_of, in_ball, least
from protocols import strategy_of as named

from bench import lost_gain, script
from bench.data import Data
from bench.harness import Options, Row, Suite, grid
from bench.yardsticks import Yardsticks
from flower_kmeans import PrivacyBudget, simulate
from flower_kmeans.arrays import FloatArray
from flower_kmeans.metrics import nicv
from flower_kmeans.simulation.faults import Fault
from flower_kmeans.strategies import KMeansStrategy

METHODS = ("SynopsisKMeans", "PEMeans", "FastLloyd")
SETTINGS = ("even", "clusters", "drops", "both", "shares", "clients", "one-each")
EPSILONS = (0.5, 1.0, 4.0)
N_EVEN, N_SMALL = 20, 1_000
DROPPED = 0.2
OF_CLIENTS = ("clients", "one-each")
BY_CLUSTER = ("clusters", "both", "one-each")


@dataclass(frozen=True)
class Task:
    """One run."""

    data: str
    setting: str
    method: str
    epsilon: float
    run: int


def parts_of(
    data: Data, labels: NDArray[np.int64], setting: str, rng: np.random.Generator
) -> list[FloatArray]:
    """Return the clients' records: every record is some client's."""
    order, sizes = (
        rng.permutation(len(labels)),
        np.bincount(labels, minlength=data.n_clusters),
    )
    if setting not in BY_CLUSTER:
        n_clients = N_SMALL if setting in OF_CLIENTS else N_EVEN
        return [data.records[places] for places in np.array_split(order, n_clients)]
    # Random within a cluster, clusters one after the other.
    order = order[np.argsort(labels[order], kind="stable")]
    clusters = np.split(data.records[order], np.cumsum(sizes)[:-1])
    if setting != "one-each":
        return clusters
    # Clients in proportion to the sizes of clusters, so that none has records of two.
    clients = np.maximum(1, np.floor(sizes * N_SMALL / sizes.sum())).astype(int)
    parts = [
        part
        for c, n in zip(clusters, clients, strict=True)
        for part in np.array_split(c, n)
    ]
    return parts + [data.records[:0]] * (N_SMALL - len(parts))


def strategy_of(data: Data, task: Task, n_clients: int) -> KMeansStrategy:
    """Return the strategy of a run."""
    protected = task.setting in OF_CLIENTS
    delta = None if protected else delta_of(data)
    largest = float(np.abs(data.records).max())
    return named(
        task.method,
        data,
        ball_of(data) if task.method in OF_THE_SERVER else box_of(data, largest),
        PrivacyBudget(task.epsilon, delta, "client" if protected else "record"),
        task.run,
        n_clients,
        trust="distributed-noise" if task.setting == "shares" else "trusted-server",
    )


def drops(n_clients: int, n_rounds: int, rng: np.random.Generator) -> list[Fault]:
    """Return faults: in each round a fifth of the clients gets no query."""
    n_dropped = round(DROPPED * n_clients)
    return [
        Fault(int(client), number, "drop")
        for number in range(1, n_rounds + 1)
        for client in rng.choice(n_clients, n_dropped, replace=False)
    ]


@lru_cache(maxsize=4)
def known(name: str, options: Options) -> Yardsticks:
    """Return the losses of k-means and of one cluster, both on the pooled records."""
    records = in_ball(name, options).records
    _, optimum = least(name, options)
    return Yardsticks(optimum, nicv(records, records.mean(axis=0, keepdims=True)))


@lru_cache(maxsize=16)
def floor_over(name: str, epsilon: float, options: Options) -> float:
    """Return the floor of runs that protect records, over the loss of k-means."""
    data = in_ball(name, options)
    optimum = known(name, options).kmeans
    delta = delta_of(data)
    return lost_gain.floor_over(optimum, data.records, data.n_clusters, epsilon, delta)


def delta_of(data: Data) -> float:
    """Return the delta of runs that protect records."""
    return float(len(data.records) ** -1.1)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the loss of one run over that of k-means, its lost gain, and the floor."""
    data = in_ball(task.data, options)
    labels, _ = least(task.data, options)
    rng = np.random.default_rng([task.run, SETTINGS.index(task.setting)])
    parts = parts_of(data, labels, task.setting, rng)
    strategy = strategy_of(data, task, len(parts))
    lossy = task.setting in ("drops", "both")
    faults = drops(len(parts), strategy.n_rounds, rng) if lossy else ()
    found = simulate(strategy, parts, faults=faults)
    loss = nicv(data.records, found.centroids)
    losses = known(task.data, options)
    floor = None
    if task.setting not in OF_CLIENTS:
        floor = floor_over(task.data, task.epsilon, options)
    return {"ratio": losses.ratio(loss), "lost": losses.lost_gain(loss), "floor": floor}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return mean ratios with their intervals, and lost gains, as a markdown table."""
    return lost_gain.over_grid(rows, EPSILONS, ("data", "setting", "method"))


SUITE = Suite(
    "skew",
    "The loss of private clusterings where clients differ, drop out, or are protected, over "
    "the loss of scikit-learn's KMeans on the pooled records; means, 95% intervals and, in "
    "brackets, numbers of runs. Records, norm and delta are those of the suite loss. Settings: "
    "even, 20 clients with random parts; clusters, as many clients as clusters, each with one of "
    "them; drops and both, as these, and 20% of the clients do not answer in each round; shares, "
    "as even, under distributed-noise; clients and one-each, 1,000 clients with random parts or of "
    "one cluster, and a client is protected. All but shares are under trusted-server.",
    Task,
    {"ratio": float, "lost": float, "floor": float | None},
    lambda options: grid(
        Task,
        options,
        data=options.data,
        setting=SETTINGS,
        method=METHODS,
        epsilon=EPSILONS,
    ),
    measure,
    tables_of,
    datasets=("blobs_16_16",),
    runs=5,
)


if __name__ == "__main__":
    script.main(SUITE)
