"""FastLloyd's table 3: time and bytes of one iteration with two clients.

    python benchmarks/fastlloyd_overhead.py --data-dir DIR --runs 20 --output build/overhead

Both clients and the server run in this process, one after the other, so the time is the work of all
three and no network's. It is that of a round after the first: the server's query, two answers
and their sum, at rest in Flower's messages, with every check, mask and noise of a real run. Bytes
are those of the whole messages of a round as Flower serialises them (``weighing.py``), from and to
both clients, and beside them those of the masked words alone, which is what the paper counts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from protocols import N_CLIENTS, box_of, in_box, strategy_of
from weighing import weighed

from flower_kmeans import PrivacyBudget
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite, grid
from flower_kmeans.client import ClientPolicy, kmeans_client_app

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


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the median time of a round after the first, and the bytes of one."""
    data, ends = in_box(task.data, options), list[float]()
    order = np.random.default_rng(task.run).permutation(len(data.records))
    halves = np.array_split(data.records[order], N_CLIENTS)
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
    )
    run = weighed(strategy, app, N_CLIENTS, weighs=lambda trip: trip == WEIGHED)
    trip = run.trips[WEIGHED]
    return {
        "seconds": float(np.median(np.diff(ends))),
        "total": sum(trip.asked) + sum(trip.answered),
        "words": 2 * sum(trip.words),  # those that clients send, and as many that they are sent
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return our figures beside the printed ones."""

    def printed(place: int, form: str) -> Callable[[list[Row]], str]:
        def show(of: list[Row]) -> str:
            value = PRINTED.get(of[0]["data"], (None,) * 4)[place]
            return "" if value is None else format(value, form)

        return show

    def ms(of: list[Row]) -> str:
        return tables.cell([1e3 * row["seconds"] for row in of], ".2f", count=False)

    return tables.by_key(
        rows,
        {"data": "data", "trust": "trust"},
        {
            "ms": ms,
            "FastLloyd printed, ms": printed(0, "g"),
            "MohLloyd printed, ms": printed(2, ",.0f"),
            "words, bytes": lambda of: f"{np.mean([row['words'] for row in of]):,.0f}",
            "messages, bytes": lambda of: f"{np.mean([row['total'] for row in of]):,.0f}",
            "FastLloyd printed": printed(1, ",.0f"),
            "MohLloyd printed": printed(3, ".3g"),
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
