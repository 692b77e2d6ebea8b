"""A private round on Ray against a FedAvg round that carries the same arrays.

    python benchmarks/ray_round.py [--clients 10 40] [--shapes 15x2 64x32 100x784] [--runs 3]

Each run is one Flower simulation on Ray with both strategies in turn, on the same workers:
FastLloyd with an oblivious server (masks, noise, transcript, a client's step), and Flower's FedAvg
whose clients load the same records and send back, unchanged, an array of as many 8-byte numbers
(``ray_runs.py``). A round's time runs from the end of the round before to its own end at the
server, so set-up and delivery are not in it; the first round is left out. Times are means over all
runs, because Flower's simulation looks for messages every 0.1 s and single rounds jump by that
much; below 1 the private round is the faster one. FedAvg's clients compute nothing; a private
client's records are few, but masks, the noisy sum of the round before and its new centroids are as
large as the array: the ratio shows that work where arrays are large. For the step over many records
see ``client_step.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray_runs import FEDAVG, PRIVATE, on_ray
from uniform_clients import Size, numbers

from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite

SHAPES = ("15x2", "64x32", "100x784")
CLIENTS = (10, 40)
N_RECORDS = 100
N_ROUNDS = 7


@dataclass(frozen=True)
class Task:
    """One simulation, with an array of clusters x columns and as many counts."""

    shape: str
    clients: int
    run: int


def size_of(shape: str, clients: int) -> Size:
    """Return the numbers of a simulation."""
    return Size(clients, *numbers(shape), records=N_RECORDS, rounds=N_ROUNDS)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for shape in options.chosen("shape", SHAPES, str):
            for clients in options.chosen("clients", CLIENTS, int):
                yield Task(shape, clients, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the mean seconds of a round; strategies take turns in who is first."""
    names = (PRIVATE, FEDAVG) if task.run % 2 == 0 else (FEDAVG, PRIVATE)
    costs = on_ray(size_of(task.shape, task.clients), "oblivious-server", names)
    return {
        "fastlloyd": float(np.mean(costs[PRIVATE].rounds)),
        "fedavg": float(np.mean(costs[FEDAVG].rounds)),
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the mean over the runs of each size."""
    by = ("shape", "clients")
    own, other = (tables.grouped(rows, by, name) for name in ("fastlloyd", "fedavg"))
    lines = []
    for (shape, clients), values in own.items():
        size = size_of(shape, clients)
        ours, theirs = (float(np.mean(each)) for each in (values, other[shape, clients]))
        lines.append(
            [
                *map(str, (size.clusters, size.columns, clients, size.reply)),
                f"{1e3 * theirs:.0f}",
                f"{1e3 * ours:.0f}",
                f"{ours / theirs:.2f}",
            ]
        )
    head = ["k", "d", "clients", "payload bytes", "FedAvg ms", "FastLloyd ms", "ratio"]
    return tables.markdown(head, lines, 0)


SUITE = Suite(
    "ray-round",
    "A round of FastLloyd under an oblivious server against one of FedAvg whose clients send the "
    "same number of 8-byte words back without computing anything, on the same workers in the same "
    f"simulation. Mean times of rounds 2 to {N_ROUNDS}.",
    Task,
    {"fastlloyd": float, "fedavg": float},
    tasks_of,
    measure,
    tables_of,
    runs=3,
    alone=True,
    fresh=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
