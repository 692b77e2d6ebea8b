"""FastLloyd's table 3: time and bytes of one iteration with two clients.

    python benchmarks/fastlloyd_overhead.py --data-dir DIR --output build/fastlloyd-overhead

Both clients and the server run in this process, one after the other, so the time is the
work of all three, without a network. It is that of a round after the first: the
server's query, two answers and their sum, in messages, with every check, mask and noise
of a run. Messages are the encoded ones of a round, from and to both clients, without
what Flower adds. Words are the protected words alone, both ways, which the paper
counts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from protocols import N_CLIENTS, box_of, in_box, strategy_of
from weighing import WeighingGrid

from bench import script, tables
from bench.harness import Options, Row, Suite, grid
from flower_kmeans import ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.simulation.in_process import task_identity

ROUNDS = 7
WEIGHED = "ask 3"  # two rounds lie behind it
WORD = 8  # bytes


class Printed(NamedTuple):
    """A row of the paper's table 3."""

    milliseconds: float
    n_bytes: int
    other_milliseconds: float | None = None
    other_bytes: float | None = None


PRINTED = {
    "timesynth_10000_2_2": Printed(3.03, 192, 10_500, 2.557e8),
    "timesynth_10000_2_5": Printed(3.24, 384),
    "timesynth_10000_5_2": Printed(4.32, 480, 34_050, 9.746e8),
    "timesynth_10000_5_5": Printed(4.95, 960),
    "timesynth_100000_2_2": Printed(12.57, 192, 105_120, 2.467e9),
    "timesynth_100000_2_5": Printed(13.17, 384),
    "timesynth_100000_5_2": Printed(22.05, 480, 347_250, 9.535e9),
    "timesynth_100000_5_5": Printed(22.56, 960),
    "lsun": Printed(2.6, 288, 1481),
    "s1": Printed(5.81, 1440, 49_087),
}
"""Milliseconds and bytes of FastLloyd, and then of MohLloyd."""
TRUSTS = ("oblivious-server", "distributed-noise")


@dataclass(frozen=True)
class Task:
    """One run."""

    data: str
    trust: str
    run: int


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the median time of a round after the first, and the bytes of one."""
    data = in_box(task.data, options)
    n, d = data.records.shape
    order = np.random.default_rng(task.run).permutation(n)
    halves = np.array_split(data.records[order], N_CLIENTS)
    ends: list[float] = []
    strategy = strategy_of(
        "FastLloyd:paper",
        data,
        box_of(data),
        PrivacyBudget(1.0),
        task.run,
        n_rounds=ROUNDS,
        trust=task.trust,
        on_round=lambda _: ends.append(time.perf_counter()),
    )
    app = kmeans_client_app(
        lambda context: halves[int(context.node_config["partition-id"])],
        ClientPolicy.for_simulation(),
        lambda *_: None,
    )
    run = WeighingGrid(app, N_CLIENTS)
    with task_identity():
        strategy.start(run)
    words = data.n_clusters * (d + 1) + 1  # sums, counts and the checksum
    return {
        "seconds": float(np.median(np.diff(ends))),
        "total": sum(run.asked[WEIGHED]) + sum(run.answered[WEIGHED]),
        "words": 2 * N_CLIENTS * WORD * words,
    }


def printed(field: str, form: str) -> Callable[[list[Row]], str]:
    """Return a column of a table: a printed number of the row's data set."""

    def show(rows: list[Row]) -> str:
        found = PRINTED.get(rows[0]["data"])
        value = None if found is None else getattr(found, field)
        return "" if value is None else format(value, form)

    return show


def milliseconds(rows: list[Row]) -> str:
    """Return the mean time of an iteration with its interval."""
    return tables.cell([1e3 * row["seconds"] for row in rows], ".2f", count=False)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return our numbers beside the printed ones."""
    return tables.by_key(
        rows,
        {"data": "data", "trust": "trust"},
        {
            "ms": milliseconds,
            "FastLloyd printed, ms": printed("milliseconds", "g"),
            "MohLloyd printed, ms": printed("other_milliseconds", ",.0f"),
            "words, bytes": lambda of: f"{of[0]['words']:,}",
            "messages, bytes": lambda of: (
                f"{np.mean([row['total'] for row in of]):,.0f}"
            ),
            "FastLloyd printed": printed("n_bytes", ",.0f"),
            "MohLloyd printed": printed("other_bytes", ".3g"),
        },
        2,
    )


SUITE = Suite(
    "fastlloyd-overhead",
    "FastLloyd's table 3: milliseconds of one iteration with two clients and the server in one "
    "process (median over the rounds of a run, then mean over runs and 95% interval), and bytes "
    "from and to both clients. Printed times are of other machines.",
    Task,
    {"seconds": float, "total": int, "words": int},
    lambda options: grid(Task, options, data=options.data, trust=TRUSTS),
    measure,
    tables_of,
    datasets=tuple(PRINTED),
    runs=20,
    alone=True,
)

if __name__ == "__main__":
    script.main(SUITE)
