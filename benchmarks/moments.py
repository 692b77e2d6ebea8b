"""What the messages of FedDP-KMeans weigh with many columns: ``python benchmarks/moments.py``.

One whole run for each trust model, with few clients and few records, neither of which a message's
size depends on but for a bit per client and a place in the cohort. Bytes are those of whole
messages, the largest of a round trip.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from weighing import Trip, WeighingGrid

from flower_kmeans import Ball, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import FedDPKMeans

N_CLIENTS = 5
N_LLOYD_ROUNDS = 1
ROUNDS = range(1, 3 + N_LLOYD_ROUNDS + 1)  # three before them
TRIPS = {
    "distributed-noise": (
        "enrol",
        *(f"{kind} {t}" for t in ROUNDS for kind in ("ask", "add")),
        "finish",
    ),
    "trusted-server": ("enrol", *(f"ask {t}" for t in ROUNDS), "finish"),
}
"""Round trips of a run, in their order."""
SIZES = ("trust", "columns", "clusters", "server_points")


@dataclass(frozen=True)
class Task:
    """One round trip of a run."""

    trust: str
    columns: int
    clusters: int
    server_points: int
    trip: str


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every round trip of a run, run by run."""
    for d in options.chosen("columns", (784,), int):
        for k in options.chosen("clusters", (10,), int):
            for m in options.chosen("server_points", (100,), int):
                yield from (
                    Task(trust, d, k, m, trip) for trust, trips in TRIPS.items() for trip in trips
                )


@lru_cache(maxsize=1)
def trips_of(trust: str, d: int, k: int, m: int) -> dict[str, Trip]:
    """Run it once, and return what its round trips weigh.

    Raises
    ------
    ValueError
        If the run has other round trips than it should, so that none is missing in a table.
    """
    rng = np.random.default_rng(0)
    points = 0.1 * rng.normal(size=(m + N_CLIENTS, d))
    strategy = FedDPKMeans(
        k,
        Ball(4.0, np.zeros(d)),
        PrivacyBudget(1.0),
        10_000,
        server_data=points[:m],
        n_clients=N_CLIENTS,
        n_rounds=N_LLOYD_ROUNDS,
        trust=trust,
    )
    app = kmeans_client_app(
        lambda context: points[m:][int(context.node_config["partition-id"])][None],
        ClientPolicy.for_simulation(),
        lambda result, context: None,
    )
    grid = WeighingGrid(app, N_CLIENTS)
    with task_identity():
        strategy.start(grid)
    if tuple(grid.trips) != TRIPS[trust]:
        raise ValueError(
            f"Expected the round trips {TRIPS[trust]}. Got {tuple(grid.trips)} instead."
        )
    return grid.trips


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the largest messages of a round trip, and how many answers are about as large."""
    trip = trips_of(task.trust, task.columns, task.clusters, task.server_points)[task.trip]
    largest = max(trip.answered)
    return {
        "asked": max(trip.asked),
        "answered": largest,
        "as_large": sum(size > 0.9 * largest for size in trip.answered),
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a table for each run."""
    parts = []
    for sizes in tables.unique(tuple(row[name] for name in SIZES) for row in rows):
        trust, d, k, m = sizes
        parts.append(f"`{trust}`, {d} columns, k = {k}, {m} server points, {N_CLIENTS} clients:")
        lines = [
            [row["trip"], *(f"{row[name]:,}" for name in SUITE.measures)]
            for row in rows
            if tuple(row[name] for name in SIZES) == sizes
        ]
        head = ["round trip", "to a client, bytes", "from a client, bytes", "answers as large"]
        parts.append(tables.markdown(head, lines))
        parts.append(f"d² words: {8 * d * d:,} bytes; d(d+1)/2 words: {4 * d * (d + 1):,}.")
    return "\n\n".join(parts)


SUITE = Suite(
    "moments",
    "What the messages of FedDP-KMeans weigh with many columns: whole messages, the largest of a "
    "round trip, and how many answers are within a tenth of it.",
    Task,
    {"asked": int, "answered": int, "as_large": int},
    tasks_of,
    measure,
    tables_of,
    runs=1,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
