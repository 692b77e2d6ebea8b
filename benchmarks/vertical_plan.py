"""Planned costs of vertical k-means, as in its paper's tables 1, 3 and 4 and figure 4.

    python benchmarks/vertical_plan.py

Nothing is run: bytes and round trips are those of the plan, and CPU seconds its
estimates for one core (`flower_kmeans.vertical.costs`). A run has ten rounds, one key
holder and no radius, as in the paper. "On the wire" is the time that the bytes need at
the network's bandwidth, and two delays for each round trip. It is no measurement: jitter,
loss, TCP's window and the seconds between Flower's own messages come on top, and the way
from the server to the other party, if the server stands elsewhere.

parties   the paper's four real sets, by their public sizes: records, clusters, columns.
          Columns are divided among the parties as evenly as possible
columns   100,000 records, five clusters, one column at party 0 and the others at party 1
network   two parties with one column each, in the paper's ten networks
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans.vertical.costs import costs

ROUNDS = 10
KEY_HOLDERS = 1
SETS = {
    "har": (10_299, 6, 10),
    "taxi": (100_000, 5, 8),
    "bank": (30_090, 7, 7),
    "loan": (60_000, 5, 16),
}
"""Records, clusters and columns of the paper's table 2."""
PARTIES = {
    "har": (2, 5, 10),
    "taxi": (2, 4, 8),
    "bank": (2, 4, 7),
    "loan": (2, 4, 8, 16),
}
"""Numbers of parties of its table 4."""
COLUMNS = range(2, 11)
COLUMN_SIZES = (100_000, 5)
"""Records and clusters of its figure 4."""
SIZES = ((10_000, 5), (100_000, 2), (100_000, 5), (100_000, 8), (1_000_000, 5))
"""Records and clusters of some columns of its table 3."""


class Network(NamedTuple):
    """A row of the paper's table 1."""

    megabits: float  # in a second
    milliseconds: float  # delay of one direction


NETWORKS = {
    "LAN10000": Network(10_000, 0.1),
    "LAN1000": Network(1_000, 0.3),
    "LAN500": Network(500, 1),
    "regWAN500": Network(500, 10),
    "regWAN250": Network(250, 15),
    "regWAN100": Network(100, 20),
    "crpWAN500": Network(500, 50),
    "ccWAN200": Network(200, 100),
    "ccWAN100": Network(100, 120),
    "ccWAN50": Network(50, 150),
}


@dataclass(frozen=True)
class Task:
    """One plan."""

    part: str
    data: str
    n: int
    clusters: int
    columns: int
    parties: int
    network: str


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every plan."""
    for name, (n, clusters, columns) in SETS.items():
        for parties in PARTIES[name]:
            yield Task("parties", name, n, clusters, columns, parties, "")
    n, clusters = COLUMN_SIZES
    for columns in COLUMNS:
        yield Task("columns", "made", n, clusters, columns, 2, "")
    for n, clusters in SIZES:
        for network in NETWORKS:
            yield Task("network", "made", n, clusters, 2, 2, network)


def widths_of(task: Task) -> tuple[int, ...]:
    """Return the parties' numbers of columns."""
    if task.part == "columns":
        return (1, task.columns - 1)
    parts = np.array_split(np.arange(task.columns), task.parties)
    return tuple(len(part) for part in parts)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the costs of a plan."""
    plan = costs(task.clusters, widths_of(task), task.n, ROUNDS, KEY_HOLDERS)
    wire = None
    if task.network:
        network = NETWORKS[task.network]
        transfer = plan.total_bytes * 8 / (network.megabits * 1e6)
        wire = transfer + 2 * plan.round_trips * network.milliseconds / 1e3
    return {
        "n_bytes": plan.total_bytes,
        "key_bytes": plan.key_bytes,
        "round_trips": plan.round_trips,
        "cpu": plan.n_rounds * plan.step_seconds,
        "wire": wire,
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a table for each part."""
    costs_of = {
        "sent, MB": _shown("n_bytes", ".1f", 1e-6),
        "of it keys, MB": _shown("key_bytes", ".1f", 1e-6),
        "round trips": _shown("round_trips", "d"),
        "planned CPU s of one core": _shown("cpu", ",.0f"),
    }
    sizes = {"n": "n", "k": "clusters"}
    columns = {**sizes, "columns": "columns"}
    parts = {
        "parties": ({"data": "data", **columns, "parties": "parties"}, costs_of),
        "columns": (columns, costs_of),
        "network": (
            {"network": "network", **sizes},
            {
                "on the wire, s": _shown("wire", ",.1f"),
                "sent in all, MB": _shown("n_bytes", ".1f", 1e-6),
            },
        ),
    }
    found = []
    for part, (keys, cells) in parts.items():
        mine = [row for row in rows if row["part"] == part]
        if mine:
            found += [f"By {part}:", tables.by_key(mine, keys, cells, len(keys))]
    return "\n\n".join(found)


def _shown(column: str, form: str, factor: float = 1) -> Callable[[list[Row]], str]:
    def show(of: list[Row]) -> str:
        value = of[0][column]
        if factor != 1:
            value = value * factor
        return format(value, form)

    return show


SUITE = Suite(
    "vertical-plan",
    "Planned bytes, round trips and CPU seconds of ten rounds of vertical k-means with one key "
    "holder and without a radius, and the time of the bytes and round trips in the networks of "
    "the paper. Nothing is run.",
    Task,
    {
        "n_bytes": int,
        "key_bytes": int,
        "round_trips": int,
        "cpu": float,
        "wire": float | None,
    },
    tasks_of,
    measure,
    tables_of,
    runs=1,
)

if __name__ == "__main__":
    script.main(SUITE)
