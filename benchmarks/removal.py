"""What removing the noise beyond the plan costs: ``python benchmarks/removal.py``.

The first round of a strategy whose queries the server asks, under distributed noise, with the
default `min_clients` and all clients in the sum. A client's noise is drawn in parts and whole; the
server draws all parts of all clients again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.federation.removal import KEY_BYTES, client_noise, part_key, reached, remove
from flower_kmeans.federation.run import Run
from flower_kmeans.strategies import KMeansStrategy, PEMeans, SynopsisKMeans

STRATEGIES: dict[str, tuple[type[KMeansStrategy], int, int]] = {
    "SynopsisKMeans": (SynopsisKMeans, 64, 32),
    "PEMeans": (PEMeans, 16, 2),
}
CLIENTS = (100, 1_000)
CONTEXT = bytes(32)


@dataclass(frozen=True)
class Task:
    """One strategy and number of clients."""

    strategy: str
    clients: int
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.chosen("strategy", tuple(STRATEGIES), str):
            for clients in options.chosen("clients", CLIENTS, int):
                yield Task(name, clients, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the words of the round, and the seconds of a client and of the server."""
    kind, k, d = STRATEGIES[task.strategy]
    strategy = kind(
        k, Box([0.0] * d, [1.0] * d), PrivacyBudget(1.0), 100 * task.clients,
        n_clients=task.clients, trust="distributed-noise",
    )  # fmt: skip
    document, algorithm = strategy._document(), strategy.algorithm
    run = Run(document, algorithm, strategy.plan)
    whole = replace(run, document=replace(document, levels=()))
    query = algorithm.query(algorithm.initial_state(np.random.default_rng(0)))
    n_levels, n_parts = len(document.levels), reached(document, task.clients)
    keys = {
        i: part_key(i.to_bytes(32, "big"), CONTEXT, n_levels, n_parts) for i in range(task.clients)
    }
    return {
        "words": algorithm.words(query.round),
        "parts": n_parts,
        "whole": _seconds(lambda: client_noise(whole, query, bytes(32), CONTEXT)),
        "in_parts": _seconds(lambda: client_noise(run, query, bytes(32), CONTEXT)),
        "server": _seconds(lambda: remove(run, query, CONTEXT, task.clients, keys), 1),
        "factor": strategy.noise_factor,
        "added_factor": strategy.added_noise_factor,
    }


def _seconds(call: Callable[[], object], times: int = 50) -> float:
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return medians by strategy and number of clients."""
    by = ("strategy", "clients", "words", "parts", "factor", "added_factor")
    times = {name: tables.grouped(rows, by, name) for name in ("whole", "in_parts", "server")}
    lines = []
    for key in times["whole"]:
        strategy, clients, words, parts, factor, added = key
        whole, in_parts, server = (float(np.median(times[name][key])) for name in times)
        cells = [f"{added:.3f}", f"{factor:.3f}", f"{1e3 * in_parts:.1f}"]
        cells.append(f"{in_parts / whole:.1f}")
        cells += [f"{1 + 2 * KEY_BYTES / (8 * (words + 1)):.3f}", f"{server:.2f}"]
        cells.append(f"{server / (clients * whole):.1f}")
        lines.append([strategy, *map(str, (clients, words, parts)), *cells])
    head = ["strategy", "clients", "words", "parts", "noise before", "noise after"]
    head += ["client ms", "times whole", "bytes", "server s", "times all clients' noise"]
    return tables.markdown(head, lines, 1)


SUITE = Suite(
    "removal",
    "Removing the noise beyond the plan: time of a client's noise, of the server's, and bytes of a "
    "client's replies beside the words, with all clients in the sum; medians.",
    Task,
    {
        "words": int,
        "parts": int,
        "whole": float,
        "in_parts": float,
        "server": float,
        "factor": float,
        "added_factor": float,
    },
    tasks_of,
    measure,
    tables_of,
    runs=5,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
