"""The cost of removing noise beyond the plan: ``python benchmarks/removal.py``.

The first round of a strategy whose server reconstructs the sums, under distributed
noise, with the default `min_clients` and all clients in the sum. A client draws its
noise in parts, and whole. The server reconstructs the sum without removal, and with the
keys of all clients, whose parts it draws again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from bench import script, tables
from bench.harness import Options, Row, Suite, grid
from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.protocol.committee import MAX_POSITIONS, corrupt_positions
from flower_kmeans.protocol.noise import (
    client_noise,
    combine,
    part_bytes,
    protect,
    reached,
    reconstruct_sum,
)
from flower_kmeans.protocol.run import Run
from flower_kmeans.secagg.base import SumContext
from flower_kmeans.strategies import KMeansStrategy, PEMeans, SynopsisKMeans

STRATEGIES: dict[str, tuple[type[KMeansStrategy], int, int]] = {
    "SynopsisKMeans": (SynopsisKMeans, 64, 32),
    "PEMeans": (PEMeans, 16, 2),
}
"""Strategies with their numbers of clusters and columns."""
SECRET = CONTEXT = bytes(32)


@dataclass(frozen=True)
class Task:
    """One strategy and number of clients."""

    strategy: str
    clients: int
    run: int


def strategy_of(task: Task) -> KMeansStrategy:
    """Return the strategy of a task."""
    kind, k, d = STRATEGIES[task.strategy]
    return kind(
        k,
        Box([0.0] * d, [1.0] * d),
        PrivacyBudget(1.0),
        n_records=100 * task.clients,
        n_clients=task.clients,
        trust="distributed-noise",
    )


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the words of the round, and the seconds of a client and of the server."""
    strategy = strategy_of(task)
    run = strategy._run(None)
    whole = replace(run, document=msgspec.structs.replace(run.document, levels=()))
    n_words = run.document.words[0]
    n_positions = min(task.clients, MAX_POSITIONS)
    corrupt = corrupt_positions(task.clients, run.document.max_colluders)
    sharing = run.trust.sum.set_up(n_positions, corrupt, n_positions)
    context = SumContext(CONTEXT, n_words, task.clients, sharing=sharing)
    sizes = [part_bytes(each, n_words, sharing) for each in (run, whole)]
    return {
        "words": n_words,
        "parts": reached(run.document, task.clients),
        "whole": seconds(lambda: client_noise(whole, 1, SECRET, CONTEXT)),
        "in_parts": seconds(lambda: client_noise(run, 1, SECRET, CONTEXT)),
        "server_whole": seconds_of_server(whole, context),
        "server": seconds_of_server(run, context),
        "bytes": sizes[0] / sizes[1],
        "factor": strategy.noise_factor,
        "added_factor": strategy.added_noise_factor,
    }


def seconds_of_server(run: Run, context: SumContext) -> float:
    """Return the server's time for reconstructing a sum of equal clients."""
    n_clients = context.n_slots
    vector = np.append(client_noise(run, 1, SECRET, CONTEXT), 1)
    parts = protect(run, vector, context, 0, SECRET)
    sums = {
        position: combine(run, [part] * n_clients, context, n_clients)
        for position, part in enumerate(parts)
    }
    everyone = np.ones(n_clients, dtype=bool)
    return seconds(lambda: reconstruct_sum(run, 1, sums, everyone, context), 3)


def seconds(call: Callable[[], object], times: int = 50) -> float:
    """Return the least of ``times`` processor times of a call."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return medians by strategy and number of clients."""

    def median(of: list[Row], name: str) -> float:
        return float(np.median([row[name] for row in of]))

    def times_of_clients(of: list[Row]) -> float:
        return median(of, "server") / (of[0]["clients"] * median(of, "whole"))

    return tables.by_key(
        rows,
        {"strategy": "strategy", "clients": "clients", "words": "words"},
        {
            "parts": lambda of: str(of[0]["parts"]),
            "noise before": lambda of: f"{of[0]['added_factor']:.3f}",
            "noise after": lambda of: f"{of[0]['factor']:.3f}",
            "client ms": lambda of: f"{1e3 * median(of, 'in_parts'):.1f}",
            "times whole": lambda of: (
                f"{median(of, 'in_parts') / median(of, 'whole'):.1f}"
            ),
            "bytes": lambda of: f"{of[0]['bytes']:.3f}",
            "open ms": lambda of: f"{1e3 * median(of, 'server_whole'):.1f}",
            "open and remove s": lambda of: f"{median(of, 'server'):.2f}",
            "times all clients' noise": lambda of: f"{times_of_clients(of):.1f}",
        },
    )


SUITE = Suite(
    "removal",
    "Removing the noise beyond the plan: time of a client's noise, of the server's, and bytes of a "
    "client's replies over those without, with all clients in the sum; medians.",
    Task,
    {
        "words": int,
        "parts": int,
        "whole": float,
        "in_parts": float,
        "server_whole": float,
        "server": float,
        "bytes": float,
        "factor": float,
        "added_factor": float,
    },
    lambda options: grid(
        Task, options, "strategy", strategy=tuple(STRATEGIES), clients=(100, 1_000)
    ),
    measure,
    tables_of,
    runs=5,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
