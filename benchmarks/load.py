"""What many clients cost in one process: time, memory and everybody's bytes.

    python benchmarks/load.py [--clients 100 1000] [--rounds 7] [--trusts clients-only]

Each run is in a separate process, in seconds of one processor, which other work on the
machine disturbs less than those of a clock. A committee member is sent what it adds;
the server passes on shares. Set-up is what comes before the first round. On Ray:
``ray_round.py``.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from weighing import Size, peak, resident

from bench import script, tables
from bench.harness import Options, Row, grid, process_suite

MASKS = "oblivious-server"
TRUSTS = (MASKS, "distributed-noise", "clients-only", "trusted-server")
BYTES = ("client", "member", "server")


@dataclass(frozen=True)
class Task:
    """One run."""

    trust: str
    clients: int
    rounds: int
    run: int


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run FastLloyd once; return seconds of the processor and bytes."""
    size = Size(task.clients, rounds=task.rounds)
    before, ends = resident(), list[float]()
    started = time.process_time()
    strategy = size.fastlloyd(lambda _: ends.append(time.process_time()), task.trust)
    run = size.over(strategy)
    whole, seconds = time.process_time() - started, float(np.median(np.diff(ends)))
    ask, add = (f"{kind} {size.rounds}" for kind in ("ask", "add"))
    return {
        "trips": len(run.asked),
        "whole": whole,
        "set_up": ends[0] - started - seconds,
        "round": seconds,
        "peak": peak() - before,
        "client": int(np.median(run.answered[ask])),
        "member": max(run.asked.get(add, [0])),
        "server": sum(sum(run.asked.get(name, [])) for name in (ask, add)),
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best run of each size, and how much longer its rounds are than with masks."""
    by = ("rounds", "clients", "trust")
    best = {key: min(found) for key, found in tables.grouped(rows, by, "round").items()}
    rows = [
        row for row in rows if row["round"] == best[tuple(row[name] for name in by)]
    ]

    def over_masks(row: Row) -> str:
        masks = best.get((row["rounds"], row["clients"], MASKS))
        return "" if masks is None else f"{row['round'] / masks:.2f}"

    cells = {
        "round trips": lambda row: str(row["trips"]),
        "run CPU s": lambda row: f"{row['whole']:.1f}",
        "set-up CPU s": lambda row: f"{row['set_up']:.1f}",
        "round CPU ms / client": lambda row: (
            f"{1e3 * row['round'] / row['clients']:.2f}"
        ),
        "times that of masks": over_masks,
        "peak MB beyond imports": lambda row: f"{row['peak'] / 2**20:.0f}",
        "a client sends": lambda row: f"{row['client']:,}",
        "a committee member is sent": lambda row: f"{row['member']:,}",
        "the server sends": lambda row: f"{row['server']:,}",
    }
    return tables.by_key(
        sorted(rows, key=lambda row: [row[name] for name in by]),
        {"clients": "clients", "trust": "trust", "rounds": "rounds"},
        {head: lambda found, cell=cell: cell(found[0]) for head, cell in cells.items()},
        (0, 1),
    )


SUITE = process_suite(
    "load",
    "Whole runs of FastLloyd with many clients in one process, in seconds of one processor; the "
    "run with the shortest round. Bytes are those of encoded messages in the last round.",
    Task,
    {
        "trips": int,
        **dict.fromkeys(("whole", "set_up", "round"), float),
        **dict.fromkeys(("peak", *BYTES), int),
    },
    lambda options: grid(
        Task, options, rounds=(7,), clients=(100, 1_000), trust=TRUSTS
    ),
    measure,
    tables_of,
)


if __name__ == "__main__":
    script.main(SUITE)
