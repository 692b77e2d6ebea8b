"""How the cost of a run grows with records, columns, clusters and clients, in one process.

    python benchmarks/scaling.py [--runs 3] [--grows clients]

One process works for all clients in turn, so the last column, a round divided by the
number of clients, is an upper bound of what one client does. Within a section a single
number changes; the ratio compares a round with that of the section's first row.
"set-up" is all that is not a round: enrolment, keys and delivery. The records are
uniform.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.strategies import FastLloyd

N_ROUNDS = 7
BASE = {"records": 100_000, "columns": 8, "clusters": 16, "clients": 10}
SECTIONS = {
    "records": [BASE | {"records": n} for n in (10_000, 100_000, 1_000_000)],
    "columns": [BASE | {"columns": d} for d in (2, 8, 32, 128)],
    "clusters": [BASE | {"clusters": k} for k in (4, 16, 64, 128)],
    "clients": [BASE | {"clients": m} for m in (2, 10, 100, 1_000)],
    "small clients": [
        {"records": 20 * m, "columns": 2, "clusters": 15, "clients": m}
        for m in (1_000, 10_000)
    ],
}
SIZES = tuple(BASE)


@dataclass(frozen=True)
class Task:
    """One run, and the numbers that its cost depends on."""

    grows: str
    records: int
    columns: int
    clusters: int
    clients: int
    run: int


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run FastLloyd once; return the seconds of the run, and of a round (median)."""
    source = np.random.default_rng(0)
    records = source.uniform(-1, 1, (task.records, task.columns))
    strategy = FastLloyd(
        task.clusters,
        Box(np.full(task.columns, -1.0), np.full(task.columns, 1.0)),
        PrivacyBudget(1.0),
        n_records=task.records,
        n_clients=task.clients,
        n_rounds=N_ROUNDS,
    )
    ends: list[float] = []
    started = time.perf_counter()
    simulate(
        strategy,
        np.array_split(records, task.clients),
        on_round=lambda _: ends.append(time.perf_counter()),
    )
    total = time.perf_counter() - started
    return {"total": total, "round": float(np.median(np.diff(ends)))}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best run of each size."""
    keys = tables.grouped(rows, ("grows", *SIZES), "round")
    ordered = [
        next(
            row for row in rows if (row["grows"], row["round"]) == (key[0], min(rounds))
        )
        for key, rounds in sorted(
            keys.items(), key=lambda pair: list(SECTIONS).index(pair[0][0])
        )
    ]
    first = {row["grows"]: row["round"] for row in reversed(ordered)}
    lines = [
        [
            row["grows"],
            *(f"{row[name]:,}" for name in SIZES),
            f"{row['total']:.2f}",
            f"{row['total'] - N_ROUNDS * row['round']:.2f}",
            f"{1e3 * row['round']:.1f}",
            f"{row['round'] / first[row['grows']]:.2f}",
            f"{1e3 * row['round'] / row['clients']:.2f}",
        ]
        for row in ordered
    ]
    head = [
        "grows",
        "N",
        "d",
        "k",
        "M",
        "run s",
        "set-up s",
        "round ms",
        "ratio",
        "round ms / M",
    ]
    return tables.markdown(head, lines)


SUITE = Suite(
    "scaling",
    "Whole runs of FastLloyd in one process, seven rounds: a round's time is the work of the "
    "server and all clients together, the best of the runs. N records, d columns, k clusters, M "
    "clients.",
    Task,
    {"total": float, "round": float},
    # Section by section: rows that are compared are measured together.
    lambda options: (
        Task(grows, **size, run=run)
        for grows, sizes in SECTIONS.items()
        for run in range(options.runs)
        for size in sizes
    ),
    measure,
    tables_of,
    runs=3,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
