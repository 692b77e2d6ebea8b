"""The k-means loss when clients differ, drop out, or are what is protected.

    python benchmarks/skew.py --runs 5 --output build/skew

Records, norm and delta are those of ``loss.py``; the loss is shown over that of scikit-learn's
KMeans on the pooled records. Settings, each a whole run of a strategy through ``simulate``:

even        20 clients with random parts of the records
clusters    as many clients as clusters; each has the records of one cluster of the best clustering
drops       as ``even``, and in every round 20% of the clients, others each time, do not answer
both        as ``clusters``, with such drops: whole clusters are missing from a round
shares      as ``even`` under ``distributed-noise``: the clients add the noise
clients     1,000 clients with random parts, and a client is what is protected
one-each    1,000 clients, each with records of one cluster only, and a client is protected

All but ``shares`` are under ``trusted-server``, where the noise is that of one party: it does not
depend on who answers. Written to ``--output``: runs.csv, from which the same command goes on, and
tables.md, also printed.
"""

import argparse
import csv
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from loss import BALL_METHODS, Data, FloatArray, load, loss_of
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from utility import interval, shown

from flower_kmeans import Ball, Box, PrivacyBudget, simulate, strategies
from flower_kmeans.faults import Fault
from flower_kmeans.strategies import KMeansStrategy

METHODS = ("SynopsisKMeans", "PEMeans", "FastLloyd")
SETTINGS = ("even", "clusters", "drops", "both", "shares", "clients", "one-each")
EPSILONS = (0.5, 1.0, 4.0)
N_EVEN, N_SMALL = 20, 1_000
DROPPED = 0.2
OF_CLIENTS = ("clients", "one-each")
BY_CLUSTER = ("clusters", "both", "one-each")


class Task(NamedTuple):
    """One run."""

    data: str
    setting: str
    method: str
    epsilon: float
    run: int


Key = TypeVar("Key", bound=Any)
"""A named tuple of what a run is."""
Case = TypeVar("Case")
"""What a run is made on."""


def best_labels(data: Data) -> tuple[NDArray[np.int64], float]:
    """Return the cluster of each record in the best of ten starts of k-means, and its loss."""
    model = KMeans(data.n_clusters, n_init=10, random_state=0).fit(data.records)
    return model.labels_.astype(np.int64), loss_of(data.records, model.cluster_centers_)


def parts_of(
    data: Data, labels: NDArray[np.int64], setting: str, rng: np.random.Generator
) -> list[FloatArray]:
    """Return the clients' records: every record is some client's."""
    order = rng.permutation(len(labels))
    if setting in BY_CLUSTER:  # random within a cluster, clusters one after the other
        order = order[np.argsort(labels[order], kind="stable")]
    if setting in ("clusters", "both"):
        edges = np.cumsum(np.bincount(labels, minlength=data.n_clusters))[:-1]
        return [data.records[places] for places in np.split(order, edges)]
    n_clients = N_SMALL if setting in OF_CLIENTS else N_EVEN
    if setting != "one-each":
        return [data.records[places] for places in np.array_split(order, n_clients)]
    # Clients in proportion to the sizes of clusters, so that none has records of two.
    sizes = np.bincount(labels, minlength=data.n_clusters)
    clients = np.maximum(1, np.floor(sizes * n_clients / sizes.sum())).astype(int)
    parts: list[FloatArray] = []
    for places, n in zip(np.split(order, np.cumsum(sizes)[:-1]), clients, strict=True):
        parts += [data.records[some] for some in np.array_split(places, n)]
    return parts + [data.records[:0]] * (n_clients - len(parts))


def strategy_of(data: Data, task: Task, n_clients: int) -> KMeansStrategy:
    """Return the strategy of a run."""
    n, d = data.records.shape
    largest = float(np.abs(data.records).max())
    protected = task.setting in OF_CLIENTS
    delta = None if protected else n**-1.1
    made: KMeansStrategy = getattr(strategies, task.method)(
        data.n_clusters,
        Ball(1.0, np.zeros(d))
        if task.method in BALL_METHODS
        else Box(np.full(d, -largest), np.full(d, largest)),
        PrivacyBudget(task.epsilon, delta, "client" if protected else "record"),
        n,
        n_clients=n_clients,
        trust="distributed-noise" if task.setting == "shares" else "trusted-server",
        seed=task.run,
    )
    return made


def drops(n_clients: int, n_rounds: int, rng: np.random.Generator) -> list[Fault]:
    """Return faults: in each round a fifth of the clients gets no question."""
    n_dropped = round(DROPPED * n_clients)
    return [
        Fault(int(client), number, "drop")
        for number in range(1, n_rounds + 1)
        for client in rng.choice(n_clients, n_dropped, replace=False)
    ]


def loss_in(data: Data, labels: NDArray[np.int64], task: Task) -> float:
    """Return the loss of one run."""
    rng = np.random.default_rng([task.run, SETTINGS.index(task.setting)])
    parts = parts_of(data, labels, task.setting, rng)
    strategy = strategy_of(data, task, len(parts))
    lossy = task.setting in ("drops", "both")
    faults = drops(len(parts), strategy.n_rounds, rng) if lossy else ()
    return loss_of(data.records, simulate(strategy, parts, faults=faults).centroids)


def tasks_of(
    names: Sequence[str], settings: Sequence[str], methods: Sequence[str], runs: int
) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(runs):
        for name in names:
            for setting in settings:
                for method in methods:
                    for epsilon in EPSILONS:
                        yield Task(name, setting, method, epsilon, run)


def read_csv(path: Path, kind: type[Key]) -> dict[Key, float]:
    """Read losses over those of k-means, by tasks of a kind; nothing if there is no file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {
            kind(*(convert(row[name]) for name, convert in kind.__annotations__.items())): float(
                row["ratio"]
            )
            for row in csv.DictReader(file)
        }


def complete(
    path: Path,
    found: dict[Key, float],
    work: Iterable[tuple[Key, Case]],
    ratio_of: Callable[[Case, Key], float],
) -> None:
    """Do what has not been found, and add every loss to the file as soon as it is known."""
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for task, case in work:
            if task in found:
                continue
            if not found:
                writer.writerow((*task._fields, "ratio"))
            found[task] = ratio_of(case, task)
            writer.writerow((*task, repr(found[task])))
            file.flush()


def cell(ratios: Sequence[float]) -> str:
    """Return a mean ratio with its interval and number of runs; nothing for none."""
    if not ratios:
        return ""
    mean, half = interval(ratios)
    spread = "" if len(ratios) < 2 else f" {shown(half, mean)}"
    return f"{mean:.3f}{spread} ({len(ratios)})"


def table_of(found: dict[Task, float]) -> str:
    """Return mean ratios with their intervals, as a markdown table."""
    cells: dict[tuple[str, str, str], dict[float, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for task, ratio in found.items():
        cells[task.data, task.setting, task.method][task.epsilon].append(ratio)
    head = " | ".join(f"eps {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| data | setting | method | {head} |", "|---|---|---|" + "--:|" * len(EPSILONS)]
    for (data, setting, method), by_epsilon in cells.items():
        row = [data, setting, method, *(cell(by_epsilon[epsilon]) for epsilon in EPSILONS)]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run everything that was asked for, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, help="directory of NAME.npz files")
    parser.add_argument("--data", nargs="+", default=["blobs_16_16"], help="as for loss.py")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--runs", type=int, default=5, help="runs per cell")
    parser.add_argument("--output", type=Path, default=Path("build/skew"))
    options = parser.parse_args()

    logging.getLogger("flwr").setLevel(logging.WARNING)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "runs.csv"
    found = read_csv(path, Task)
    loaded = [load(name, options.data_dir) for name in options.data]
    data = {each.name: each for each in loaded if each is not None}
    if not data:
        parser.error("no data set is left: their files are missing.")
    best = {name: best_labels(each) for name, each in data.items()}
    tasks = tasks_of(list(data), options.settings, options.methods, options.runs)

    def ratio_of(each: Data, task: Task) -> float:
        labels, optimum = best[task.data]
        return loss_in(each, labels, task) / optimum

    complete(path, found, ((task, data[task.data]) for task in tasks), ratio_of)
    table = table_of(found)
    (options.output / "tables.md").write_text(table + "\n")
    print("\n" + table)


if __name__ == "__main__":
    main()
