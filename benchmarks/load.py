"""What many clients cost in one process: time, memory and everybody's bytes.

    python benchmarks/load.py [--clients 100 1000] [--rounds 7] [--trust clients-only]

Whole runs of FastLloyd with relayed keys, each in a separate process: round trips, seconds of
one processor (which other work on the machine disturbs less than those of a clock), the peak of
resident memory beyond that of the imports, and the bytes of encoded messages in a round
after the first: what a client sends, what a committee member is sent to add, and what the server
passes on. Set-up is what comes before the first round. Of several runs the one with the shortest
round counts. On Ray: ``load_ray.py`` and ``load_memory.py``.
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
from flower_kmeans.simulation.in_process import task_identity

CLIENTS = (100, 1_000)
ROUNDS = (7,)
TRUSTS = ("oblivious-server", "distributed-noise", "clients-only", "trusted-server")
BYTES = ("client", "member", "server")


@dataclass(frozen=True)
class Task:
    """One run."""

    trust: str
    clients: int
    rounds: int
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for rounds in options.chosen("rounds", ROUNDS, int):
            for clients in options.chosen("clients", CLIENTS, int):
                for trust in options.chosen("trust", TRUSTS, str):
                    yield Task(trust, clients, rounds, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run FastLloyd once; return seconds of the processor and bytes."""
    size = Size(task.clients, rounds=task.rounds)
    before, ends = resident(), list[float]()
    started = time.process_time()
    strategy = size.fastlloyd("relayed", lambda _: ends.append(time.process_time()), task.trust)
    app = kmeans_client_app(size.load, ClientPolicy.for_simulation(), forget)
    grid = WeighingGrid(app, size.clients, lambda trip, client: False)
    with task_identity():
        strategy.start(grid)
    whole, seconds = time.process_time() - started, float(np.median(np.diff(ends)))
    most = peak()
    ask, add = (f"{kind} {size.rounds}" for kind in ("ask", "add"))
    return {
        "trips": len(grid.pushes),
        "whole": whole,
        "set_up": ends[0] - started - seconds,
        "round": seconds,
        "peak": most - before,
        "client": int(np.median(list(grid.answered[ask].values()))),
        "member": max(grid.asked.get(add, {0: 0}).values()),
        "server": sum(sum(grid.asked.get(name, {}).values()) for name in (ask, add)),
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best run of each size, and how much longer its rounds are than with masks."""
    best: dict[tuple[int, int, str], Row] = {}
    for row in sorted(rows, key=lambda row: row["round"], reverse=True):
        best[row["rounds"], row["clients"], row["trust"]] = row
    lines = []
    for (rounds, clients, trust), row in sorted(best.items()):
        masks = best.get((rounds, clients, TRUSTS[0]))
        lines.append(
            [
                f"{clients:,}",
                trust,
                str(rounds),
                str(row["trips"]),
                f"{row['whole']:.1f}",
                f"{row['set_up']:.1f}",
                f"{1e3 * row['round'] / clients:.2f}",
                "" if masks is None else f"{row['round'] / masks['round']:.2f}",
                f"{row['peak'] / 2**20:.0f}",
                *(f"{row[name]:,}" for name in BYTES),
            ]
        )
    head = ["clients", "trust", "rounds", "round trips", "run CPU s", "set-up CPU s"]
    head += [
        "round CPU ms / client",
        "times that of masks",
        "peak MB beyond imports",
        "a client sends",
    ]
    return tables.markdown([*head, "a committee member is sent", "the server sends"], lines, (0, 1))


SUITE = Suite(
    "load",
    "Whole runs of FastLloyd with many clients in one process, in seconds of one processor; the "
    "run with the shortest round. Bytes are those of encoded messages in the last round.",
    Task,
    {
        "trips": int,
        **dict.fromkeys(("whole", "set_up", "round"), float),
        **dict.fromkeys(("peak", *BYTES), int),
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
