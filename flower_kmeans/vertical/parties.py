"""The computation of party 0 in a vertical run, with its files and worker processes.

SEAL holds Python's lock while it computes, so a step runs on several processes: first
every comparison of a chunk is a task, then every cluster. Results are words and sums modulo
q0, so they do not depend on the number or the order of workers (docs/protocol.md,
section 13).
"""

import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial, reduce
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from flower_kmeans.arrays import FloatArray, IntArray, WordArray
from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg.primitives import u32
from flower_kmeans.vertical.engine import (
    Chunk,
    SealEngine,
    column_file,
    comparisons,
    relin_file,
)
from flower_kmeans.vertical.keys import (
    SmudgingNoise,
    opened,
    pk_digest,
    randomise,
    secret_key,
)
from flower_kmeans.vertical.moduli import Moduli, moduli
from flower_kmeans.vertical.ring import SLOTS, N, addmod, lift
from flower_kmeans.vertical.store import Store

RELIN_KEY = "relin"
_PUBLIC_KEY = "public"
_PUBLIC_DIGEST = "public-digest"


def column_name(slot: int, chunk: int, number: int) -> str:
    """Return the name of the file with one chunk of a party's column.

    The party's squares have the number after its last column.
    """
    return f"column-{slot}-{chunk}-{number}"


# ----------------------------------------------------------------------------- one step


@dataclass(frozen=True)
class StepPlan:
    """Public numbers of a step, and party 0's columns. All lengths are scaled."""

    own: FloatArray  # (n, a): party 0's columns in clear
    centroids: FloatArray  # (k, d)
    half_widths: FloatArray  # (d,)
    widths: tuple[int, ...]  # how many columns each party has, party 0 first
    radius: float | None = None

    @property
    def n_chunks(self) -> int:
        """Number of ciphertexts of a column."""
        return -(-len(self.own) // SLOTS)

    @property
    def comparisons(self) -> list[tuple[int, int]]:
        """Pairs of centroids to compare for each chunk."""
        return comparisons(len(self.centroids), self.radius)

    @property
    def moduli(self) -> Moduli:
        """The run's moduli."""
        return moduli(len(self.centroids), self.radius is not None)

    def engine(self, store: Store) -> SealEngine:
        """Return an engine with the relinearisation key of the store."""
        return SealEngine(self.moduli, store.path(RELIN_KEY))

    def chunk(self, engine: SealEngine, store: Store, number: int) -> Chunk:
        """Return a chunk with its ciphertexts."""
        columns = []
        squares = []
        norms = []
        start = self.widths[0]
        for slot, width in enumerate(self.widths[1:], start=1):
            files = [store.path(column_name(slot, number, i)) for i in range(width)]
            columns += [engine.column(file) for file in files]
            if self.radius is not None:
                file = store.path(column_name(slot, number, width))
                squares.append(engine.column(file))
                half_widths = self.half_widths[start : start + width]
                norms.append(float((half_widths**2).sum()))
            start += width
        first = number * SLOTS
        return Chunk(
            own=self.own[first : first + SLOTS],
            columns=columns,
            centroids=self.centroids,
            half_widths=self.half_widths,
            radius=self.radius,
            squares=squares,
            norms=norms,
        )


def evaluate(store: Store, step: StepPlan, n_workers: int) -> WordArray:
    """Return the encrypted counts and sums of all records, (k, 1 + d, 2, N), modulo q0.

    The store must have the relinearisation key and all foreign columns. With one worker,
    this process computes.

    Raises
    ------
    RunError
        If a file was changed, or a worker dies.
    """
    if n_workers == 1:
        chunks = _here(store, step)
    else:
        chunks = _on_workers(store, step, n_workers)
    add = partial(addmod, p=step.moduli.q0)
    return reduce(add, chunks)


def _here(store: Store, step: StepPlan) -> Iterator[WordArray]:
    engine = step.engine(store)
    for number in range(step.n_chunks):
        yield engine.chunk(step.chunk(engine, store, number))


def _on_workers(store: Store, step: StepPlan, n_workers: int) -> Iterator[WordArray]:
    store.path(RELIN_KEY)  # raises here: a worker could not report the reason
    with tempfile.TemporaryDirectory(dir=store.directory) as folder:
        state = (store, step, Path(folder))
        # A fork would copy SEAL's state and the locks of threads.
        context = get_context("spawn")
        try:
            with ProcessPoolExecutor(n_workers, context, _start, state) as pool:
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


def _in_order(pool: Executor, step: StepPlan, folder: Path) -> Iterator[WordArray]:
    """Yield the chunks' words in order, with two chunks at a time, so that no worker waits."""
    k = len(step.centroids)
    tasks = step.comparisons
    compared: list[Future[None]] = []
    summed: list[Future[WordArray]] = []
    for number in range(step.n_chunks + 2):
        ahead = []
        if number < step.n_chunks:
            ahead = [pool.submit(_compare, number, *task) for task in tasks]
        for future in compared:  # of the chunk before
            future.result()
        following = []
        if compared:
            following = [pool.submit(_sum_up, number - 1, j) for j in range(k)]
        if summed:  # of the one before that
            yield np.stack([future.result() for future in summed])
            for task in tasks:
                _win_path(folder, number - 2, *task).unlink()
        compared = ahead
        summed = following


def _win_path(folder: Path, number: int, j: int, other: int) -> Path:
    return folder / f"{number}-{j}-{other}"


class _PartyWorker:
    """The state of a worker process: the engine, and the ciphertexts of one chunk."""

    def __init__(self, store: Store, step: StepPlan, folder: Path) -> None:
        self._store = store
        self.step = step
        self.folder = folder
        self.engine = step.engine(store)
        self._chunk: tuple[int, Chunk] | None = None

    def chunk(self, number: int) -> Chunk:
        if self._chunk is None or self._chunk[0] != number:
            self._chunk = None  # before the next one is loaded
            self._chunk = number, self.step.chunk(self.engine, self._store, number)
        return self._chunk[1]


_worker: _PartyWorker


def _start(store: Store, step: StepPlan, folder: Path) -> None:
    global _worker
    _worker = _PartyWorker(store, step, folder)


def _compare(number: int, j: int, other: int) -> None:
    win = _worker.engine.win(_worker.chunk(number), j, other)
    win.save(str(_win_path(_worker.folder, number, j, other)))


def _sum_up(number: int, j: int) -> WordArray:
    engine = _worker.engine
    wins = {}
    for task in _worker.step.comparisons:
        if j in task:
            path = _win_path(_worker.folder, number, *task)
            wins[task] = engine.column(path)
    return engine.cluster(_worker.chunk(number), j, wins)


# ---------------------------------------------------------------------------- the party


@dataclass(frozen=True, repr=False)
class ComputingParty:
    """Party 0, with its own columns in clear, encrypted columns of others, and no secret key.

    The store keeps keys and columns as they arrive. A step evaluates all records, adds an
    encryption of zero to each value and returns c1. The constants stay here, so key
    holders help to open values that they never see (docs/vertical.md, "How it works"). The
    same secret and the same input give the same words.
    """

    moduli: Moduli
    store: Store
    secret: bytes  # secret of the client session, for the encryptions of zero
    doc_hash: bytes
    half_widths: FloatArray  # (d,), of the scaled box, party 0's columns first
    widths: tuple[int, ...]  # how many columns each party has, party 0 first
    radius: float | None = None  # scaled: records farther from a centroid do not count
    n_workers: int = 1

    def take_keys(self, public: WordArray, relin: WordArray) -> None:
        """Keep the public and the relinearisation key.

        Their shapes are (2, primes, N) and (digits, 2, primes, N).
        """
        self.store.write(RELIN_KEY, relin_file(self.moduli, relin))
        # Party 0 encrypts zero at the last level only.
        self.store.write(_PUBLIC_KEY, [public[:, 0].astype("<u8").tobytes()])
        self.store.write(_PUBLIC_DIGEST, [pk_digest(self.moduli, public[0])])

    def take_column(self, slot: int, chunk: int, number: int, words: WordArray) -> None:
        """Keep 16,384 records of another party's encrypted column, (2, data primes, N).

        ``number`` is the index of one of the party's `signs.scaled_columns`. With a radius,
        the index after the last column is the party's `signs.scaled_squares`.
        """
        name = column_name(slot, chunk, number)
        self.store.write(name, column_file(self.moduli, words))

    def step(self, t: int, own: FloatArray, centroids: FloatArray) -> WordArray:
        """Return c1 of step t's values for the key holders, (k (1 + d), N) modulo q0.

        For each cluster the count comes first, then the sums. A repeated step gives the
        same words from the store. ``own`` (n, a) and ``centroids`` (k, d) are scaled.
        """
        name = _step_name(t)
        if name not in self.store:
            half_widths = self.half_widths[: own.shape[1]]
            # Outside of the box the sign diverges, and a failure would depend on records.
            finite = np.where(np.isfinite(own), own, 0.0)
            own = np.clip(finite, -half_widths, half_widths)
            step = StepPlan(own, centroids, self.half_widths, self.widths, self.radius)
            words = evaluate(self.store, step, self.n_workers).reshape(-1, 2, N)
            constants, c1 = self._hide(t, words)
            pieces = [part.astype("<u8").tobytes() for part in (constants, c1)]
            self.store.write(name, pieces)
            # The values of step t - 1 stay, because a repeated request opens them again.
            self.store.remove(_step_name(t - 2))
        return self._stored(t)[1]

    def _hide(self, t: int, words: WordArray) -> tuple[WordArray, WordArray]:
        """Add encryptions of zero, because c1 would otherwise reveal the used records."""
        public = self._array(_PUBLIC_KEY).reshape(2, 1, N)
        digest = self.store.path(_PUBLIC_DIGEST).read_bytes()
        constants = []
        others = []
        for i, value in enumerate(words):
            c0, c1 = randomise(
                self.moduli,
                public,
                digest,
                value,
                self.secret,
                self.doc_hash,
                label=u32(t) + u32(i),
            )
            constants.append(c0)
            others.append(c1)
        return np.array(constants, np.uint64), np.stack(others)

    def open(self, t: int, shares: WordArray, noise: SmudgingNoise) -> IntArray:
        """Return a step's values (k, 1 + d) under the noise of all parties.

        The values are multiples of 1 / ``moduli.unit``. ``shares`` (H, k (1 + d)) have one
        word of each key holder for every value. ``noise`` draws this party's noise.

        Raises
        ------
        MessageError
            If a word is not below q0.
        """
        constants, c1 = self._stored(t)
        # `addmod` is right for words below the prime only.
        if (shares >= self.moduli.q0).any():
            raise MessageError("Expected words below q0 of each key holder.")
        key = secret_key(self.secret, self.doc_hash, b"noise " + u32(t), c1)
        own = lift(noise(Stream(key)), self.moduli.q0)
        values = opened(self.moduli, constants, [*shares, own])
        return values.reshape(self.moduli.n_clusters, -1)

    def _stored(self, t: int) -> tuple[WordArray, WordArray]:
        both = self._array(_step_name(t))
        n_values = len(both) // (1 + N)
        return both[:n_values], both[n_values:].reshape(n_values, N)

    def _array(self, name: str) -> WordArray:
        return np.fromfile(self.store.path(name), "<u8").astype(np.uint64)


def _step_name(t: int) -> str:
    return f"step-{t}"
