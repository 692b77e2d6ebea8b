"""What removing the noise beyond the plan costs: ``python benchmarks/removal.py``.

The first round of a strategy whose server opens the sums, under distributed noise, with the default
`min_clients` and all clients in the sum. A client's noise is drawn in parts and whole. The server
opens the sum without removal, and with the keys of all clients, whose parts it draws again.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.protocol.committee import MAX_POSITIONS, corrupt_positions
from flower_kmeans.protocol.removal import (
    client_noise,
    combine,
    open_sum,
    part_bytes,
    protect,
    reached,
)
from flower_kmeans.protocol.run import Run
from flower_kmeans.secagg.base import SumContext
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
    run = strategy._run(None)
    whole = replace(run, document=msgspec.structs.replace(run.document, levels=()))
    m, n_words = min(task.clients, MAX_POSITIONS), run.document.words[0]
    corrupt = corrupt_positions(task.clients, run.document.max_colluders)
    sharing = run.trust.sum.set_up(m, corrupt, m)
    context = SumContext(CONTEXT, n_words, task.clients, sharing=sharing)
    everyone = np.ones(task.clients, dtype=bool)

    def seconds_of_server(run: Run) -> float:
        vector = np.append(client_noise(run, 1, bytes(32), CONTEXT), 1)
        parts = protect(run, vector, context, 0, bytes(32))
        sums = {
            j: combine(run, [part] * task.clients, context, task.clients)
            for j, part in enumerate(parts)
        }
        return _seconds(lambda: open_sum(run, 1, sums, everyone, context), 3)

    return {
        "words": n_words,
        "parts": reached(run.document, task.clients),
        "whole": _seconds(lambda: client_noise(whole, 1, bytes(32), CONTEXT)),
        "in_parts": _seconds(lambda: client_noise(run, 1, bytes(32), CONTEXT)),
        "server_whole": seconds_of_server(whole),
        "server": seconds_of_server(run),
        "bytes": part_bytes(run, n_words, sharing) / part_bytes(whole, n_words, sharing),
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
    by = ("strategy", "clients", "words", "parts", "bytes", "factor", "added_factor")
    names = ("whole", "in_parts", "server_whole", "server")
    times = {name: tables.grouped(rows, by, name) for name in names}
    lines = []
    for key in times["whole"]:
        strategy, clients, words, parts, size, factor, added = key
        whole, in_parts, opened, server = (float(np.median(times[name][key])) for name in names)
        cells = [f"{added:.3f}", f"{factor:.3f}", f"{1e3 * in_parts:.1f}"]
        cells += [f"{in_parts / whole:.1f}", f"{size:.3f}", f"{1e3 * opened:.1f}", f"{server:.2f}"]
        cells.append(f"{server / (clients * whole):.1f}")
        lines.append([strategy, *map(str, (clients, words, parts)), *cells])
    head = ["strategy", "clients", "words", "parts", "noise before", "noise after"]
    head += ["client ms", "times whole", "bytes", "open ms", "open and remove s"]
    head.append("times all clients' noise")
    return tables.markdown(head, lines, 1)


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
    tasks_of,
    measure,
    tables_of,
    runs=5,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
