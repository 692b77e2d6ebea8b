"""What the messages of vertical k-means weigh: ``python benchmarks/vertical_messages.py``.

Whole runs of two rounds with 16,384 made-up records and one column for each party: two parties,
three with one key holder, three with two, and two parties with five clusters. Bytes are those of
whole messages, the largest of a kind; they do not depend on the records. Beside them stands what
all parties send in the run, as it was planned from public figures and as it was counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Context, Message
from weighing import Trip, WeighingGrid

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import VerticalKMeans
from flower_kmeans.vertical.ring import SLOTS

ROUNDS = 2
RUNS = ((2, 2, 1), (2, 3, 1), (2, 3, 2), (5, 2, 1))
"""Clusters, parties and key holders."""
SIZES = ("clusters", "parties", "holders")


@dataclass(frozen=True)
class Task:
    """One kind of round trip of a run."""

    clusters: int
    parties: int
    holders: int
    trip: str


def kinds_of(parties: int, holders: int) -> tuple[str, ...]:
    """Return the kinds of a run's round trips, in their order."""
    join = ("join",) if holders > 1 else ()
    encrypt = ("encrypt",) if parties > holders + 1 else ()
    return ("enrol", "keys", *join, *encrypt, "step", "open", "close", "finish")


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every round trip of a run, run by run."""
    for k, parties, holders in RUNS:
        yield from (Task(k, parties, holders, kind) for kind in kinds_of(parties, holders))


@lru_cache(maxsize=1)
def run_of(k: int, parties: int, holders: int) -> tuple[dict[str, Trip], VerticalKMeans]:
    """Run it once, and return what its round trips weigh.

    Raises
    ------
    ValueError
        If the run has other round trips than it should, so that none is missing in a table.
    """
    table = np.random.default_rng(0).uniform(size=(SLOTS, parties))
    strategy = VerticalKMeans(
        k,
        Box([0.0] * parties, [1.0] * parties),
        PrivacyBudget(1.0),
        SLOTS,
        parties=[1] * parties,
        n_rounds=ROUNDS,
        key_holders=holders,
        radius=False,
    )
    with TemporaryDirectory() as directory:

        def client(message: Message, context: Context) -> Message:
            slot = int(context.node_config["partition-id"])
            policy = replace(ClientPolicy.for_simulation(), party=slot, work_dir=directory)
            app = kmeans_client_app(lambda _: table[:, [slot]], policy, lambda *_: None)
            return app(message, context)

        grid = WeighingGrid(client, parties)
        with task_identity():
            strategy.start(grid)
    if tuple(grid.trips) != kinds_of(parties, holders):
        raise ValueError(
            f"Expected the round trips {kinds_of(parties, holders)}. Got {tuple(grid.trips)}."
        )
    return grid.trips, strategy


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the messages of one kind, and what all parties send in the run."""
    trips, strategy = run_of(task.clusters, task.parties, task.holders)
    trip, vertical = trips[task.trip], strategy.report.vertical
    return {
        "messages": len(trip.asked),
        "asked": max(trip.asked),
        "answered": max(trip.answered),
        "trips": strategy.report.round_trips,
        "planned": strategy.costs.total_bytes,
        "sent": 0 if vertical is None else vertical.sent_bytes,
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a table for each run."""
    parts = []
    for sizes in tables.unique(tuple(row[name] for name in SIZES) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in SIZES) == sizes]
        k, parties, holders = sizes
        parts.append(
            f"k = {k}, {parties} parties, {holders} with the key: {own[0]['trips']} round trips; "
            f"parties send {own[0]['sent']:,} bytes sealed, {own[0]['planned']:,} planned:"
        )
        names = ("messages", "asked", "answered")
        lines = [[row["trip"], *(f"{row[name]:,}" for name in names)] for row in own]
        head = ["turn", "messages", "to a party, bytes", "from a party, bytes"]
        parts.append(tables.markdown(head, lines))
    return "\n\n".join(parts)


SUITE = Suite(
    "vertical-messages",
    "What the messages of vertical k-means weigh: whole messages, the largest of a kind; and what "
    "all parties send in a run of two rounds and 16,384 records, one column each.",
    Task,
    {"messages": int, "asked": int, "answered": int, "trips": int, "planned": int, "sent": int},
    tasks_of,
    measure,
    tables_of,
    runs=1,
)

if __name__ == "__main__":
    script.main(SUITE, __doc__)
