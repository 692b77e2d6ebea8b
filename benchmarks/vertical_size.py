"""Vertical runs of many records: time, memory and disk: ``python benchmarks/vertical_size.py``.

Two parties with one column each, two clusters, one round. Party 0, the key holder and
the server are one process, so its peak bounds that of each. A round takes about two
seconds of one core for every 16,384 records.
"""

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from weighing import peak, resident

from bench import script, tables
from bench.harness import Options, Row, grid, process_suite
from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.strategies import VerticalKMeans

CLUSTERS = 2


@dataclass(frozen=True)
class Task:
    """One run."""

    n: int
    run: int


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run once; return seconds, and the most memory and disk."""
    records = np.random.default_rng(task.run).uniform(-1, 1, (task.n, 2))
    strategy = VerticalKMeans(
        CLUSTERS,
        Box([-1, -1], [1, 1]),
        PrivacyBudget(1.0),
        task.n,
        parties=[1, 1],
        n_rounds=1,
    )
    most, ended, before = [0], threading.Event(), resident()

    def watch(folder: Path) -> None:
        while not ended.wait(0.2):
            found = 0
            for path in folder.rglob("*"):
                try:
                    found += path.stat().st_size
                except OSError:  # removed meanwhile
                    continue
            most[0] = max(most[0], found)

    with tempfile.TemporaryDirectory() as name:
        tempfile.tempdir = name  # where the run makes its private directories
        watcher = threading.Thread(target=watch, args=(Path(name),))
        watcher.start()
        start, clock = time.process_time(), time.perf_counter()
        try:
            simulate(strategy, [records[:, :1], records[:, 1:]], timeout=24 * 3600)
            seconds, clock = time.process_time() - start, time.perf_counter() - clock
        finally:
            ended.set()
            watcher.join()
            tempfile.tempdir = None
    return {
        "cpu": seconds,
        "clock": clock,
        "memory": peak() - before,
        "disk": most[0],
        "planned": strategy.costs.disk,
        "sent": strategy.costs.total_bytes,
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return a line for each number of records."""
    megabytes = {
        "memory": "peak beyond imports and records",
        "disk": "disk",
        "planned": "planned",
    }
    cells = {
        "CPU s": lambda of: f"{of[0]['cpu']:.0f}",
        "s": lambda of: f"{of[0]['clock']:.0f}",
        **{
            f"{head}, MB": lambda of, name=name: f"{of[0][name] / 1e6:,.0f}"
            for name, head in megabytes.items()
        },
        "sent, MB": lambda of: f"{of[0]['sent'] / 1e6:,.0f}",
    }
    return tables.by_key(
        sorted(rows, key=lambda row: row["n"]), {"records": "n"}, cells, (0, 1)
    )


SUITE = process_suite(
    "vertical-size",
    "One round of vertical k-means of two parties with one column each, k = 2, all in one process.",
    Task,
    {
        "cpu": float,
        "clock": float,
        **dict.fromkeys(("memory", "disk", "planned", "sent"), int),
    },
    lambda options: grid(Task, options, n=(16_384, 131_072, 1_000_000)),
    measure,
    tables_of,
)


if __name__ == "__main__":
    script.main(SUITE)
