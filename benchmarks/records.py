"""A client's pass over records of any size, and over arrays: ``python benchmarks/records.py``.

Time and memory of one round's statistic, by where the records come from. Each task runs
in a new process. Memory is the largest part of the process that is not shared with a
file, less what it was before the pass: what a client needs beyond its records. Parquet
files are made row group by row group in a temporary directory, 32 bytes per record, and
removed afterwards.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import script, tables
from bench.harness import Options, Row, process_suite
from flower_kmeans.algorithms.answers import words_of_rows
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.lloyd import LloydAlgorithm
from flower_kmeans.algorithms.pe_means import PEMeansAlgorithm
from flower_kmeans.data.domain import Box
from flower_kmeans.data.sources import RecordsLike, as_source
from flower_kmeans.privacy.budget import PrivacyBudget

COLUMNS, CLUSTERS = 8, 16
GROUP = 2**20
FULL = 100_000_000
# Where records come from, how many there are, and what is computed from them.
TASKS = (
    ("float64 array", 5_000_000, "lloyd"),
    ("float32 array", 5_000_000, "lloyd"),
    ("float32 map", 5_000_000, "lloyd"),
    ("chunks", 5_000_000, "lloyd"),
    ("ParquetFile", 5_000_000, "lloyd"),
    ("data set", 5_000_000, "lloyd"),
    ("data set", 5_000_000, "pe-means"),
    ("data set", FULL, "lloyd"),
)


@dataclass(frozen=True)
class Task:
    """One pass."""

    source: str
    records: int
    algorithm: str
    run: int


def groups(n: int) -> Any:
    """Yield n records around 16 centres, float32, a group of rows at a time."""
    rng = np.random.default_rng(0)
    centers = rng.uniform(-0.8, 0.8, (CLUSTERS, COLUMNS)).astype(np.float32)
    for start in range(0, n, GROUP):
        size = min(GROUP, n - start)
        noise = rng.standard_normal((size, COLUMNS), dtype=np.float32) * np.float32(0.1)
        yield centers[rng.integers(0, CLUSTERS, size)] + noise


def made(source: str, n: int, folder: Path) -> RecordsLike:
    """Return n records of a source."""
    if source == "chunks":
        return lambda: groups(n)
    if source.endswith("array"):
        return np.concatenate(list(groups(n))).astype(source.split()[0])
    if source.endswith("map"):
        shape = n, COLUMNS
        table = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, shape)
        for i, rows in enumerate(groups(n)):
            table[i * GROUP : i * GROUP + len(rows)] = rows
        return table
    import pyarrow
    from pyarrow import dataset, parquet

    names = [f"x{i}" for i in range(COLUMNS)]
    schema = pyarrow.schema([(name, pyarrow.float32()) for name in names])
    path = folder / "x.parquet"
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for rows in groups(n):
            table = pyarrow.table(
                dict(zip(names, np.ascontiguousarray(rows.T), strict=True))
            )
            writer.write_table(table, row_group_size=GROUP)
    return (
        parquet.ParquetFile(path) if source == "ParquetFile" else dataset.dataset(path)
    )


def algorithm_of(name: str) -> Algorithm:
    """Return an algorithm without noise, on the cube of side 2."""
    cube, budget = Box([-1.0] * COLUMNS, [1.0] * COLUMNS), PrivacyBudget(None)
    if name == "lloyd":
        return LloydAlgorithm.planned(CLUSTERS, cube, budget)
    return PEMeansAlgorithm.planned(CLUSTERS, cube, budget, n_variations=15)


def own_memory() -> int:
    """Return the bytes of this process that belong to no file (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


class Watch:
    """The peak memory of this process within ``with``, minus its memory before."""

    def __enter__(self) -> "Watch":
        self.most, self._ended, self._before = 0, threading.Event(), own_memory()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._ended.wait(0.005):
            self.most = max(self.most, own_memory() - self._before)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the seconds and bytes of a pass.

    For arrays also return the seconds with a checked float64 copy of all records. The
    times of arrays are the best of three turns.
    """
    algorithm = algorithm_of(task.algorithm)
    query = algorithm.query(algorithm.initial_state())
    words_of_rows(
        algorithm, query, np.zeros((1000, COLUMNS))
    )  # imports, first candidates
    with tempfile.TemporaryDirectory() as folder:
        records = made(task.source, task.records, Path(folder))
        source = as_source(records, COLUMNS)

        def stream() -> NDArray[np.int64]:
            words = np.zeros(algorithm.layout(query.round).n_words, dtype=np.int64)
            for block in source.blocks():
                words += words_of_rows(algorithm, query, block)
            return words

        def copy() -> NDArray[np.int64]:
            whole = np.asarray(records, dtype=np.float64)
            return words_of_rows(
                algorithm, query, whole[np.isfinite(whole).all(axis=1)]
            )

        found: dict[str, Any] = {"copied": 0.0}
        with Watch() as watch:
            found["seconds"] = timed(stream)
        found["memory"] = watch.most
        if source.in_memory:
            assert (stream() == copy()).all()
            turns = [(timed(stream), timed(copy)) for _ in range(3)]
            found["seconds"], found["copied"] = map(min, zip(*turns, strict=True))
    return found


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best times and the most memory of each task."""

    def least(of: list[Row], name: str) -> float:
        return min(row[name] for row in of)

    return tables.by_key(
        rows,
        {"records": "records", "source": "source", "algorithm": "algorithm"},
        {
            "s": lambda of: f"{least(of, 'seconds'):.2f}",
            "over a copy": lambda of: (
                f"{least(of, 'seconds') / least(of, 'copied'):.2f}"
                if of[0]["copied"]
                else "-"
            ),
            "memory MB": lambda of: f"{max(row['memory'] for row in of) / 2**20:.0f}",
        },
        0,
    )


SUITE = process_suite(
    "records",
    f"A round's statistic of one client with {COLUMNS} columns and {CLUSTERS} clusters (pe-means: "
    "256 candidates), by where its records come from: the time of a pass, of an array also over "
    "the time with a checked float64 copy of the whole; and the memory beyond the records.",
    Task,
    {"seconds": float, "copied": float, "memory": int},
    lambda options: (Task(*task, run) for task in TASKS for run in range(options.runs)),
    measure,
    tables_of,
)


if __name__ == "__main__":
    script.main(SUITE)
