"""Bytes of messages by round trip: of FedDP-KMeans, and of vertical k-means.

    python benchmarks/message_sizes.py

`feddp` has 784 columns, and few clients and records: neither changes a message's size
but for a bit for each client. `vertical` has 16,384 records and one column for each
party. Bytes are those of whole messages, the largest of a round trip. They do not
depend on the records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Context, Message
from weighing import WeighingGrid

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans import Ball, Box, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import FedDPKMeans, VerticalKMeans
from flower_kmeans.vertical.ring import SLOTS

N_CLIENTS = 5
TRUSTS = ("distributed-noise", "trusted-server")
VERTICAL = ("2 2 1", "2 3 1", "2 3 2", "5 2 1")
"""Clusters, parties and key holders."""


@dataclass(frozen=True)
class Task:
    """One run."""

    kind: str
    case: str  # a trust model, or the numbers of a vertical run
    columns: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run."""
    for columns in options.chosen("columns", (784,), int):
        for trust in TRUSTS:
            yield Task("feddp", trust, columns)
    for case in VERTICAL:
        yield Task("vertical", case, 1)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the largest messages of each round trip, and all bytes that parties sent."""
    if task.kind == "feddp":
        grid = feddp(task.case, task.columns)
        planned = sent = 0
    else:
        grid, strategy = vertical(task.case)
        planned = strategy.costs.total_bytes
        report = strategy.report.part
        sent = 0 if report is None else report.sent_bytes
    trips = [f"{name}:{max(sizes)}" for name, sizes in grid.asked.items()]
    answers = [f"{name}:{max(sizes)}" for name, sizes in grid.answered.items()]
    return {
        "asked": " ".join(trip.replace(" ", "-") for trip in trips),
        "answered": " ".join(trip.replace(" ", "-") for trip in answers),
        "planned": planned,
        "sent": sent,
    }


@lru_cache(maxsize=1)
def feddp(trust: str, d: int) -> WeighingGrid:
    """Run FedDP-KMeans with one Lloyd round, and return its messages."""
    n_points = 100
    rng = np.random.default_rng(0)
    points = 0.1 * rng.normal(size=(n_points + N_CLIENTS, d))
    strategy = FedDPKMeans(
        10,
        Ball(4.0, np.zeros(d)),
        PrivacyBudget(1.0),
        n_records=10_000,
        server_data=points[:n_points],
        n_clients=N_CLIENTS,
        n_rounds=1,
        trust=trust,
    )

    def load(context: Context) -> Any:
        number = int(context.node_config["partition-id"])
        return points[n_points + number][None]

    app = kmeans_client_app(load, ClientPolicy.for_simulation(), lambda *_: None)
    grid = WeighingGrid(app, N_CLIENTS)
    with task_identity():
        strategy.start(grid)
    return grid


@lru_cache(maxsize=1)
def vertical(case: str) -> tuple[WeighingGrid, VerticalKMeans]:
    """Run two rounds of vertical k-means, and return its messages and the strategy."""
    k, n_parties, n_holders = map(int, case.split())
    table = np.random.default_rng(0).uniform(size=(SLOTS, n_parties))
    strategy = VerticalKMeans(
        k,
        Box([0.0] * n_parties, [1.0] * n_parties),
        PrivacyBudget(1.0),
        n_records=SLOTS,
        parties=[1] * n_parties,
        n_rounds=2,
        key_holders=n_holders,
        radius=False,
    )
    with TemporaryDirectory() as directory:

        def client(message: Message, context: Context) -> Message:
            slot = int(context.node_config["partition-id"])
            policy = replace(
                ClientPolicy.for_simulation(), party=slot, work_dir=directory
            )
            app = kmeans_client_app(lambda _: table[:, [slot]], policy, lambda *_: None)
            return app(message, context)

        grid = WeighingGrid(client, n_parties)
        with task_identity():
            strategy.start(grid)
    return grid, strategy


def trips_of(text: str) -> dict[str, int]:
    """Return bytes by round trip, as `measure` writes them."""
    pairs = (each.split(":") for each in text.split())
    return {name.replace("-", " "): int(size) for name, size in pairs}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a table for each run."""
    parts = []
    for row in rows:
        if row["kind"] == "feddp":
            parts.append(
                f"FedDPKMeans, `{row['case']}`, {row['columns']} columns, {N_CLIENTS} clients:"
            )
        else:
            k, n_parties, n_holders = row["case"].split()
            parts.append(
                f"vertical, k = {k}, {n_parties} parties, {n_holders} with the key; parties "
                f"send {row['sent']:,} bytes sealed, {row['planned']:,} planned:"
            )
        answered = trips_of(row["answered"])
        lines = [
            [name, f"{size:,}", f"{answered[name]:,}"]
            for name, size in trips_of(row["asked"]).items()
        ]
        head = ["round trip", "to one, bytes", "from one, bytes"]
        parts.append(tables.markdown(head, lines))
    return "\n\n".join(parts)


SUITE = Suite(
    "message-sizes",
    "Bytes of whole messages, the largest of a round trip: FedDP-KMeans with many columns, and two "
    "rounds of vertical k-means with 16,384 records and one column for each party.",
    Task,
    {"asked": str, "answered": str, "planned": int, "sent": int},
    tasks_of,
    measure,
    tables_of,
    choices={"case": (*TRUSTS, *VERTICAL)},
    runs=1,
)


if __name__ == "__main__":
    script.main(SUITE)
