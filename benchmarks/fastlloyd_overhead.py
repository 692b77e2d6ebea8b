"""FastLloyd's table 3: time and bytes of one iteration with two clients.

    python benchmarks/fastlloyd_overhead.py --data-dir DIR --runs 20 --output build/overhead

Both clients and the server run in this process, one after the other, so the time is the work of all
three and no network's. It is that of a round after the first: the server's query, two answers
and their sum, at rest in Flower's messages, with every check, mask and noise of a real run. Bytes
are those of the whole messages of a round as Flower serialises them (``weighing.py``), from and to
both clients, and beside them those of the masked words alone, which is what the paper counts.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastlloyd_protocol import N_CLIENTS, FloatArray, records_of
from flwr.app import Context
from weighing import WeighingGrid

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.bench import tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.bench.script import main
from flower_kmeans.client import ClientPolicy, kmeans_client_app
from flower_kmeans.simulation.in_process import task_identity
from flower_kmeans.strategies import FastLloyd, RoundInfo

ROUNDS = 7
WEIGHED = "ask 3"  # the steady state: two rounds lie behind
PRINTED = {
    "timesynth_10000_2_2": (3.03, 192, 10_500, 2.557e8),
    "timesynth_10000_2_5": (3.24, 384, None, None),
    "timesynth_10000_5_2": (4.32, 480, 34_050, 9.746e8),
    "timesynth_10000_5_5": (4.95, 960, None, None),
    "timesynth_100000_2_2": (12.57, 192, 105_120, 2.467e9),
    "timesynth_100000_2_5": (13.17, 384, None, None),
    "timesynth_100000_5_2": (22.05, 480, 347_250, 9.535e9),
    "timesynth_100000_5_5": (22.56, 960, None, None),
    "lsun": (2.6, 288, 1481, None),
    "s1": (5.81, 1440, 49_087, None),
}
"""Table 3: milliseconds and bytes of FastLloyd, then of MohLloyd, as printed."""
TRUSTS = ("oblivious-server", "distributed-noise")


@dataclass(frozen=True)
class Task:
    """One run."""

    data: str
    trust: str
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            yield from (Task(name, trust, run) for trust in TRUSTS)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the median time of a round after the first, and the bytes of one."""
    records, n_clusters = records_of(task.data, options)
    n, d = records.shape
    halves = np.array_split(records[np.random.default_rng(task.run).permutation(n)], N_CLIENTS)
    strategy = FastLloyd(
        n_clusters,
        Box(np.full(d, -1.0), np.full(d, 1.0)),
        PrivacyBudget(1.0),
        n_records=n,
        n_clients=N_CLIENTS,
        n_rounds=ROUNDS,
        relocation=False,  # the paper's
        trust=task.trust,
        seed=task.run,
    )
    ends = []

    def note(info: RoundInfo) -> None:
        ends.append(time.perf_counter())

    def load(context: Context) -> FloatArray:
        return halves[int(context.node_config["partition-id"])]

    strategy.on_round = note
    app = kmeans_client_app(load, ClientPolicy.for_simulation())
    grid = WeighingGrid(app, N_CLIENTS, lambda trip, client: trip == WEIGHED)
    with task_identity():
        strategy.start(grid, timeout=600)
    trip = grid.trips[WEIGHED]
    return {
        "seconds": float(np.median(np.diff(ends))),
        "total": sum(trip.asked) + sum(trip.answered),
        "words": 2 * sum(trip.words),  # those that clients send, and as many that they are sent
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return our figures beside the printed ones."""
    times = tables.grouped(rows, ("data", "trust"), "seconds")
    totals = tables.grouped(rows, ("data", "trust"), "total")
    words = tables.grouped(rows, ("data", "trust"), "words")
    lines = []
    for name in tables.unique(row["data"] for row in rows):
        printed, their_bytes, other, other_bytes = PRINTED.get(name, (None,) * 4)
        for trust in TRUSTS:
            if (name, trust) in times:
                milliseconds = [1e3 * seconds for seconds in times[name, trust]]
                lines.append(
                    [
                        name,
                        trust,
                        tables.cell(milliseconds, ".2f", count=False),
                        _figure(printed, "g"),
                        _figure(other, ",.0f"),
                        f"{np.mean(words[name, trust]):,.0f}",
                        f"{np.mean(totals[name, trust]):,.0f}",
                        _figure(their_bytes, ",.0f"),
                        _figure(other_bytes, ".3g"),
                    ]
                )
    head = ["data", "trust", "ms", "FastLloyd printed, ms", "MohLloyd printed, ms"]
    head += ["words, bytes", "messages, bytes", "FastLloyd printed", "MohLloyd printed"]
    return tables.markdown(head, lines, 2)


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


SUITE = Suite(
    "fastlloyd-overhead",
    "FastLloyd's table 3: milliseconds of one iteration with two clients and the server in one "
    "process (median over the rounds of a run, then mean over runs and 95% interval), and bytes "
    "from and to both clients. Printed times are of other machines.",
    Task,
    {"seconds": float, "total": int, "words": int},
    tasks_of,
    measure,
    tables_of,
    datasets=tuple(PRINTED),
    runs=20,
    alone=True,
)

if __name__ == "__main__":
    main(SUITE, __doc__)
