"""One step on all chunks, on several processes: Python's lock is held while SEAL computes.

First every comparison of a chunk is a task, then every cluster. Results are words, and sums modulo
q0, so they do not depend on the number of workers or on their order.
"""

import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from flower_kmeans.errors import RunError
from flower_kmeans.vertical.engine import Chunk, Ciphertext, Engine, comparisons
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import SLOTS, Floats, Words, addmod
from flower_kmeans.vertical.store import Store

RELIN_KEY = "relin"


def column_name(slot: int, chunk: int, number: int) -> str:
    """Return the name of the file with one chunk of a party's column; its squares come last."""
    return f"column-{slot}-{chunk}-{number}"


@dataclass(frozen=True)
class Step:
    """What a step needs beside the store; all lengths are scaled."""

    own: Floats  # (n, a): party 0's columns in clear
    centroids: Floats  # (k, d)
    half_widths: Floats  # (d,)
    widths: tuple[int, ...]  # how many columns each party has, party 0 first
    radius: float | None = None

    @property
    def n_chunks(self) -> int:
        """Ciphertexts of a column."""
        return -(-len(self.own) // SLOTS)

    def engine(self, store: Store) -> Engine:
        """Return an engine with the key of the store."""
        parameters = moduli(len(self.centroids), self.radius is not None)
        return Engine(parameters, store.path(RELIN_KEY))

    def chunk(self, engine: Engine, store: Store, number: int) -> Chunk:
        """Return a chunk with its ciphertexts."""
        columns, squares, norms, start = [], [], [], self.widths[0]
        for slot, width in enumerate(self.widths[1:], start=1):
            for i in range(width):
                columns.append(engine.column(store.path(column_name(slot, number, i))))
            if self.radius is not None:
                squares.append(engine.column(store.path(column_name(slot, number, width))))
                norms.append(float((self.half_widths[start : start + width] ** 2).sum()))
            start += width
        return Chunk(
            self.own[number * SLOTS : (number + 1) * SLOTS],
            columns,
            self.centroids,
            self.half_widths,
            self.radius,
            squares,
            norms,
        )


def evaluate(store: Store, step: Step, n_workers: int) -> Words:
    """Return the encrypted counts and sums of all records, (k, 1 + d, 2, N), modulo q0.

    The store has the relinearisation key and all foreign columns. One worker computes in this
    process. Any number of workers gives the same words.

    Raises
    ------
    RunError
        If a file was changed, or a worker died.
    """
    chunks = _here(store, step) if n_workers == 1 else _on_workers(store, step, n_workers)
    q0 = moduli(len(step.centroids), step.radius is not None).q0
    total = next(chunks)
    for words in chunks:
        total = addmod(total, words, q0)
    return total


def _here(store: Store, step: Step) -> Iterator[Words]:
    engine = step.engine(store)
    for number in range(step.n_chunks):
        yield engine.chunk(step.chunk(engine, store, number))


# ---------------------------------------------------------------------- several processes


def _on_workers(store: Store, step: Step, n_workers: int) -> Iterator[Words]:
    store.path(RELIN_KEY)  # a worker that cannot start has no way to say why
    with tempfile.TemporaryDirectory(dir=store.directory) as folder:
        state = (store, step, Path(folder))
        try:
            with ProcessPoolExecutor(n_workers, get_context("spawn"), _start, state) as pool:
                try:
                    yield from _in_order(pool, step, Path(folder))
                finally:  # after a failure nothing more is computed
                    pool.shutdown(cancel_futures=True)
        except BrokenProcessPool:
            raise RunError(
                f"One of {n_workers} workers of party 0 ended early. Each needs about 1 GB of "
                "memory, and a script that starts a run needs 'if __name__ == \"__main__\":'. "
                "With one worker no process is started."
            ) from None


def _in_order(pool: Executor, step: Step, folder: Path) -> Iterator[Words]:
    """Yield the chunks' words; two chunks are under way, so that all workers have something."""
    k = len(step.centroids)
    tasks = comparisons(k, step.radius)
    compared: list[Future[None]] = []
    summed: list[Future[Words]] = []
    for number in range(step.n_chunks + 2):
        ahead = [pool.submit(_compare, number, *task) for task in tasks if number < step.n_chunks]
        for future in compared:  # of the chunk before
            future.result()
        following = [pool.submit(_sum_up, number - 1, j) for j in range(k) if compared]
        if summed:  # of the one before that
            yield np.stack([future.result() for future in summed])
            for task in tasks:
                _win_path(folder, number - 2, *task).unlink()
        compared, summed = ahead, following


def _win_path(folder: Path, number: int, j: int, other: int) -> Path:
    return folder / f"{number}-{j}-{other}"


class _Worker:
    """What a worker process keeps: the engine, and the ciphertexts of one chunk."""

    def __init__(self, store: Store, step: Step, folder: Path) -> None:
        self._store, self.step, self.folder = store, step, folder
        self.engine = step.engine(store)
        self._chunk: tuple[int, Chunk] | None = None

    def chunk(self, number: int) -> Chunk:
        if self._chunk is None or self._chunk[0] != number:
            self._chunk = None  # before the next one is loaded
            self._chunk = number, self.step.chunk(self.engine, self._store, number)
        return self._chunk[1]


_worker: _Worker


def _start(store: Store, step: Step, folder: Path) -> None:
    global _worker
    _worker = _Worker(store, step, folder)


def _compare(number: int, j: int, other: int) -> None:
    win: Ciphertext = _worker.engine.win(_worker.chunk(number), j, other)
    win.save(str(_win_path(_worker.folder, number, j, other)))


def _sum_up(number: int, j: int) -> Words:
    engine, step = _worker.engine, _worker.step
    tasks = comparisons(len(step.centroids), step.radius)
    wins = {
        task: engine.column(_win_path(_worker.folder, number, *task)) for task in tasks if j in task
    }
    return engine.cluster(_worker.chunk(number), j, wins)
