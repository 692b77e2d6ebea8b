"""CPU time, memory and bytes of vertical k-means: ``python benchmarks/vertical.py``.

Each task is a step on chunks of 16,384 made-up records, with the computing party in one
process and the key holder in another. A step on several workers is also measured on the
clock, which is what they are for. A calibration loop of NumPy's transforms is measured
in the same process, because processors differ: ratios to it are what to compare.
``--clusters 2`` takes a minute, 8 clusters with a radius a few minutes.
"""

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from weighing import peak

from bench import script, tables
from bench.harness import Options, Row, process_suite
from flower_kmeans.vertical.costs import costs
from flower_kmeans.vertical.keys import (
    KeyHolder,
    expand,
    pk_digest,
    public_key,
    randomise,
    relin_common,
    values_of,
)
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.parties import ComputingParty
from flower_kmeans.vertical.ring import SLOTS, N, pack
from flower_kmeans.vertical.signs import scaled_squares
from flower_kmeans.vertical.store import Store

SECRET, DOC_HASH = bytes(range(32)), bytes(32)  # of nobody: all records are made up
HALF_WIDTHS = np.array([1.0, 1.0])
WIDTHS = (1, 1)
RADIUS = 0.7
WORKED = (3, 5)
"""Clusters of the steps of two chunks, on one worker and on two."""
PAPER_ROUNDS = 10
PAPER = {
    (10_000, 2): ("55.81 s", "57.64 s", 17.9),
    (10_000, 5): ("1.70 min", "1.73 min", 19.4),
    (10_000, 8): ("2.08 min", "2.11 min", 20.0),
    (100_000, 2): ("1.41 min", "1.54 min", 61.9),
    (100_000, 5): ("2.51 min", "2.70 min", 72.9),
    (100_000, 8): ("5.84 min", "6.00 min", 76.6),
}
"""Of the paper, for ten rounds on 8 machines of 28 cores each: time in a LAN of 10 Gbit/s, in a
regional WAN of 100 Mbit/s, and megabytes. Quoted: none of it was run here."""


@dataclass(frozen=True)
class Task:
    """One step."""

    clusters: int
    radius: bool
    chunks: int
    workers: int
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every step: a chunk on one worker, then two chunks on one worker and on two."""
    for run in range(options.runs):
        for k in options.chosen("clusters", (2, 3, 5, 8), int):
            yield from (Task(k, radius, 1, 1, run) for radius in (False, True))
        for k in WORKED:
            yield from (Task(k, False, 2, workers, run) for workers in (1, 2))


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the measurements of a step, and of the steps before it."""
    q = moduli(task.clusters, task.radius)
    rng = np.random.default_rng(1)
    table = rng.uniform(-1, 1, (task.chunks * SLOTS, 2))
    centroids = rng.uniform(-0.8, 0.8, (task.clusters, 2))
    with (
        TemporaryDirectory() as name,
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        folder = Path(name)
        made = pool.submit(make, task, table[:, 1:], folder).result()
        before = calibration()
        store = Store(folder / "store")
        radius = RADIUS if task.radius else None
        party = ComputingParty(
            q, store, SECRET, DOC_HASH, HALF_WIDTHS, WIDTHS, radius, task.workers
        )
        public = public_key(q, DOC_HASH, np.load(folder / "public.npy"))
        b = np.load(folder / "relin.npy")
        party.take_keys(public, np.stack([b, relin_common(q, DOC_HASH)], 1))
        del b
        for chunk in range(task.chunks):
            for number in range(1 + task.radius):
                party.take_column(
                    1, chunk, number, np.load(folder / f"{chunk}-{number}.npy")
                )
        start, others = time.perf_counter(), workers_time()
        c1, step = cpu(lambda: party.step(1, table[:, :1], centroids))
        clock, step = time.perf_counter() - start, step + workers_time() - others
        most = peak()  # what follows belongs to the measurement
        zero = np.zeros((2, N), dtype=np.uint64)
        last, digest = public[:, :1], pk_digest(q, public[0])
        own = digest, zero, SECRET, DOC_HASH, b"benchmark"
        _, hidden = cpu(lambda: randomise(q, last, *own))
        shares, share = pool.submit(open_words, task, c1).result()
        _, opened = cpu(
            lambda: party.open(1, shares[None], lambda stream: no_noise(len(c1)))
        )
        loop = (before + calibration()) / 2
    return {
        **made,
        "step": step,
        "clock": clock,
        "randomise": hidden,
        "share": share / len(c1),
        "open": opened,
        "peak": most,
        "c1_bytes": len(pack(c1[:, None], (q.q0,))),
        "share_bytes": 8 * len(shares),
        "loop": loop,
    }


def make(task: Task, columns: NDArray[np.float64], folder: Path) -> dict[str, Any]:
    """Make keys and encrypt columns, as the key holder does; leave them as files."""
    q = moduli(task.clusters, task.radius)
    holder = KeyHolder(q, SECRET, DOC_HASH)
    (public, relin), seconds = cpu(
        lambda: (holder.public_share(), holder.relin_alone())
    )
    np.save(folder / "public.npy", public)
    np.save(folder / "relin.npy", relin)
    if task.radius:
        columns = np.column_stack([columns, scaled_squares(columns, HALF_WIDTHS[1:])])
    values = [
        values_of(columns, i)
        for i in range(-(-len(columns) // SLOTS) * columns.shape[1])
    ]
    made, encrypted = cpu(
        lambda: [holder.encrypt_alone(x, i) for i, x in enumerate(values)]
    )
    for i, (nonce, half) in enumerate(made):
        chunk, number = divmod(i, columns.shape[1])
        np.save(folder / f"{chunk}-{number}.npy", expand(q, nonce, half))
    nonce, half = made[0]
    return {
        "keys": seconds,
        "column": encrypted / len(made),
        "public_bytes": len(pack(public, q.key)),
        "relin_bytes": len(pack(relin, q.key)),
        "column_bytes": len(nonce) + len(pack(half, q.data)),
    }


def open_words(task: Task, c1: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], float]:
    """Return a key holder's words, and the time that they took."""
    holder = KeyHolder(moduli(task.clusters, task.radius), SECRET, DOC_HASH)
    return cpu(lambda: holder.decryption_share(1, c1, lambda stream: no_noise(len(c1))))


def no_noise(n: int) -> NDArray[np.int64]:
    """Return zeros: noise takes microseconds, and these records are nobody's."""
    return np.zeros(n, dtype=np.int64)


def cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return a function's result, and its CPU seconds in this process."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def workers_time() -> float:
    """Return the CPU seconds of processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def calibration() -> float:
    """Return the CPU seconds of 1,000 transforms of 2^15 numbers."""
    words = np.random.default_rng(0).uniform(size=N)
    return cpu(lambda: [np.fft.rfft(words) for _ in range(1_000)])[1]


# ------------------------------------------------------------------------------ tables


BYTES = ("public_bytes", "relin_bytes", "column_bytes", "c1_bytes", "share_bytes")
SECONDS = ("keys", "column", "step", "clock", "randomise", "share", "open", "loop")
BY = {"k": "clusters", "radius": "held"}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return times, bytes, workers, and figures beside the paper's; the best of several runs."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=lambda row: row["clock"]):
        key = (row["clusters"], row["radius"], row["chunks"], row["workers"])
        best.setdefault(key, {**row, "held": "yes" if row["radius"] else "no"})
    ordered = [best[key] for key in sorted(best)]
    steps = [row for row in ordered if row["chunks"] == row["workers"] == 1]
    several = [row for row in ordered if row["chunks"] > 1]
    sent = dict(
        zip(("public key", "relinearisation key", "column chunk"), BYTES, strict=False)
    )
    sent |= {"c1": "c1_bytes", "shares": "share_bytes"}
    times = {
        "keys, s": shown("keys", ".2f"),
        "column chunk, s": shown("column", ".2f"),
        "step, s": shown("step", ".1f"),
        "step / loop": lambda of: f"{of[0]['step'] / of[0]['loop']:.0f}",
        "randomise a value, ms": shown("randomise", ".1f", 1e3),
        "share of a value, ms": shown("share", ".1f", 1e3),
        "open all, ms": shown("open", ".1f", 1e3),
        "peak, GB": shown("peak", ".2f", 1e-9),
        "loop, s": shown("loop", ".3f"),
    }
    parts = [
        tables.by_key(steps, BY, times) if steps else "",
        tables.by_key(
            steps, BY, {head: shown(name, ",") for head, name in sent.items()}
        ),
        _workers(several) if several else "",
        _beside_the_paper(steps),
    ]
    return "\n\n".join(part for part in parts if part)


def shown(name: str, form: str, factor: float = 1) -> Callable[[list[Row]], str]:
    """Return a function that shows a column of a line."""
    return lambda of: format(factor * of[0][name], form)


def _workers(rows: Sequence[Row]) -> str:
    alone = {row["clusters"]: row for row in rows if row["workers"] == 1}

    def times(name: str) -> Callable[[list[Row]], str]:
        def show(of: list[Row]) -> str:
            one, factor = (
                alone.get(of[0]["clusters"]),
                of[0]["workers"] if name == "step" else 1,
            )
            return "" if one is None else f"{factor * one[name] / of[0][name]:.2f}"

        return show

    cells = {
        "step, CPU s": shown("step", ".1f"),
        "on the clock, s": shown("clock", ".1f"),
        "times as fast as one": times("clock"),
        "by CPU, on free cores": times("step"),
    }
    return tables.by_key(rows, BY | {"chunks": "chunks", "workers": "workers"}, cells)


def _beside_the_paper(rows: Sequence[Row]) -> str:
    step = {row["clusters"]: row["step"] for row in rows if not row["radius"]}
    lines = []
    for (n, k), (lan, wan, megabytes) in PAPER.items():
        if k in step:
            seconds = PAPER_ROUNDS * -(-n // SLOTS) * step[k]
            sent = costs(k, WIDTHS, n, PAPER_ROUNDS, 1)
            rest = (sent.total_bytes - sent.key_bytes) / 1e6
            lines.append([f"{n:,}", str(k), f"{seconds:,.0f}", f"{rest:.1f}"])
            lines[-1] += [f"{sent.key_bytes / 1e6:.1f}", lan, wan, str(megabytes)]
    head = ["n", "k", "CPU s of one core", "columns and rounds, MB", "keys, MB"]
    head += ["paper, LAN", "paper, WAN", "paper, MB"]
    return tables.markdown(head, lines, 2) if lines else ""


SUITE = process_suite(
    "vertical",
    "Vertical k-means of two parties with one column each: CPU seconds, the peak of the computing "
    "party's memory, and bytes before they are sealed (16 bytes more for each); a step of 16,384 "
    "records unless chunks of them are named. The paper's figures are quoted; ours beside them "
    "follow from the step.",
    Task,
    {**dict.fromkeys(SECONDS, float), "peak": int, **dict.fromkeys(BYTES, int)},
    tasks_of,
    measure,
    tables_of,
)

if __name__ == "__main__":
    script.main(SUITE)
