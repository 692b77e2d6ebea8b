"""What many clients cost in one process: time, memory and a client's bytes.

    python benchmarks/load.py [--clients 1000 10000] [--rounds 7 28]

Whole runs of FastLloyd under an oblivious server with relayed keys, each in a process of its own:
seconds, the peak of resident memory beyond that of the imports, and the bytes that the last client
was sent and sent, whole serialised Flower messages. Set-up is enrolment and keys. Of several runs
the one with the shortest round counts. On Ray: ``load_ray.py`` and ``load_memory.py``.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from uniform_clients import Size, forget
from weighing import WeighingGrid, peak, resident

from flower_kmeans import ClientPolicy, kmeans_client_app
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.protocol.in_process import task_identity

CLIENTS = (1_000, 10_000)
ROUNDS = (7, 28)


@dataclass(frozen=True)
class Task:
    """One run."""

    clients: int
    rounds: int
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for rounds in options.chosen("rounds", ROUNDS, int):
            for clients in options.chosen("clients", CLIENTS, int):
                yield Task(clients, rounds, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run FastLloyd once; return seconds and bytes."""
    size = Size(task.clients, rounds=task.rounds)
    before, ends = resident(), list[float]()
    started = time.perf_counter()
    strategy = size.fastlloyd("relayed", lambda _: ends.append(time.perf_counter()))
    app = kmeans_client_app(size.load, ClientPolicy.for_simulation(), forget)
    # The last client: the leader, who also relays the keys, is the first.
    grid = WeighingGrid(app, size.clients, lambda hop, client: client == size.clients - 1)
    with task_identity():
        strategy.start(grid)
    whole, seconds = time.perf_counter() - started, float(np.median(np.diff(ends)))
    most = peak()
    first, second, last = (grid.hops[f"round {t}"] for t in (1, 2, size.rounds))
    return {
        "whole": whole,
        "set_up": ends[0] - started - seconds,
        "round": seconds,
        "peak": most - before,
        "first_asked": first.asked[0],
        "second_asked": second.asked[0],
        "last_asked": last.asked[0],
        "last_answered": last.answered[0],
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best run of each size."""
    best: dict[tuple[int, int], Row] = {}
    for row in sorted(rows, key=lambda row: row["round"], reverse=True):
        best[row["rounds"], row["clients"]] = row
    lines = [
        [
            f"{row['clients']:,}",
            str(row["rounds"]),
            f"{row['whole']:.1f}",
            f"{row['set_up']:.1f}",
            f"{1e3 * row['round'] / row['clients']:.2f}",
            f"{row['peak'] / 2**20:.0f}",
            *(f"{row[name]:,}" for name in list(SUITE.measures)[4:]),
        ]
        for _, row in sorted(best.items())
    ]
    head = ["clients", "rounds", "run s", "set-up s", "round ms / client"]
    head += ["peak MB beyond imports", "sent in round 1", "in round 2", "in the last"]
    return tables.markdown([*head, "received in a round"], lines, 0)


SUITE = Suite(
    "load",
    "Whole runs of FastLloyd with many clients in one process, with masks and noise; the run with "
    "the shortest round. Bytes are whole messages that one client was sent, and that came from it.",
    Task,
    {
        **dict.fromkeys(("whole", "set_up", "round"), float),
        "peak": int,
        **dict.fromkeys(("first_asked", "second_asked", "last_asked", "last_answered"), int),
    },
    tasks_of,
    measure,
    tables_of,
    runs=1,
    alone=True,
    fresh=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
