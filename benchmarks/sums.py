"""The cost of secure sums, by masks and by shares: ``python benchmarks/sums.py``.

Times are the best of several repetitions in this run, in milliseconds of one thread.
*client* is protecting one vector, by shares with a seal for each committee member.
*member* is opening the seals of all clients' parts and adding them. *server* is adding
all clients' words, or reconstructing the sum from all sum-shares. *liars* is the same
with as many false sum-shares as can be corrected. *reader* is taking the masks off the
sum with a tenth of the clients missing at random. *agree* is one X25519 exchange with
each committee member, whose result can be kept.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import script, tables
from bench.harness import Options, Row, Suite, grid
from flower_kmeans.protocol.committee import MAX_POSITIONS, corrupt_positions
from flower_kmeans.secagg.base import SumContext, secure_sum
from flower_kmeans.secagg.primitives import (
    SEAL_BYTES,
    agree,
    public_key,
    seal,
    share_key,
    unseal,
)

KEY = bytes(range(32))
MASKS, SHARES = KINDS = ("masks", "shares")
MISSING = 0.1
TIMES = ("client", "agree", "member", "server", "liars", "reader")
BYTES = ("sent", "received", "held")


@dataclass(frozen=True)
class Task:
    """One kind of sum, a cohort and a length of vectors."""

    clients: int
    words: int
    kind: str
    run: int


def best(action: Callable[[], object], total: float = 0.3) -> float:
    """Return the shortest time of one call in milliseconds."""
    times: list[float] = []
    while sum(times) < total or len(times) < 3:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return milliseconds and bytes; ``None`` where a kind has no such step."""
    if task.kind == MASKS:
        measured = masks(task.clients, task.words)
    else:
        measured = shares(task.clients, task.words)
    return dict.fromkeys(SUITE.measures) | measured


def vector_of(n_words: int) -> NDArray[np.int64]:
    """Return a vector of words of any size that a round has."""
    return np.random.default_rng(0).integers(-(2**40), 2**40, n_words)


def masks(n_clients: int, n_words: int) -> dict[str, float]:
    """Return the cost of a masked sum."""
    total = secure_sum(MASKS)
    context = SumContext(KEY, n_words, n_clients, group_key=KEY)
    vector = vector_of(n_words)
    (part,) = total.protect(vector, context, 1, KEY)
    scattered = np.random.default_rng(0).random(n_clients) >= MISSING
    return {
        "client": best(lambda: total.protect(vector, context, 1, KEY)),
        "server": best(lambda: total.combine([part] * n_clients, context)),
        "reader": best(lambda: total.reconstruct({0: part}, scattered, context)),
        "sent": len(part),
        "held": len(part),
    }


def shares(n_clients: int, n_words: int) -> dict[str, float]:
    """Return the cost of a shared sum."""
    total = secure_sum(SHARES)
    m = min(n_clients, MAX_POSITIONS)
    corrupt = corrupt_positions(n_clients, max(1, n_clients // 10))
    sharing = total.set_up(m, corrupt, m)
    assert sharing is not None
    context = SumContext(KEY, n_words, n_clients, sharing=sharing)
    vector = vector_of(n_words)
    everyone = np.ones(n_clients, dtype=bool)
    public = public_key(KEY)

    def protected() -> list[bytes]:
        parts = total.protect(vector, context, 0, KEY)
        keys = (share_key(KEY, KEY, 0, j, public, public) for j in range(m))
        return [seal(key, part, KEY) for key, part in zip(keys, parts, strict=True)]

    def added(sealed: bytes) -> bytes:
        keys = (share_key(KEY, KEY, 0, 0, public, public) for _ in range(n_clients))
        return total.combine((unseal(key, sealed, KEY) for key in keys), context)

    def agreed() -> None:
        for _ in range(m):
            agree(KEY, public)

    sealed = protected()
    sums = dict(enumerate(total.protect(vector, context, 0, KEY)))
    n_false = (m - sharing.threshold) // 2
    false = sums | {j: sums[j + 1] for j in range(n_false)}
    part_bytes = total.part_bytes(n_words, sharing) + SEAL_BYTES
    return {
        "client": best(protected),
        "agree": best(agreed),
        "member": best(lambda: added(sealed[0])),
        "server": best(lambda: total.reconstruct(sums, everyone, context)),
        "liars": best(lambda: total.reconstruct(false, everyone, context)),
        "sent": m * part_bytes,
        "received": n_clients * part_bytes,
        "held": m * n_clients * part_bytes,
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best times, bytes, and shares over masks."""
    by = ("clients", "words", "kind")
    found = {name: tables.grouped(rows, by, name) for name in (*TIMES, *BYTES)}

    def least(name: str, key: tuple[Any, ...]) -> float | None:
        values = [value for value in found[name].get(key, ()) if value is not None]
        return min(values, default=None)

    lines = []
    for clients, words, kind in found["client"]:
        key = clients, words, kind
        times = [least(name, key) for name in TIMES]
        sizes = [least(name, key) for name in BYTES]
        line = [str(clients), str(words), kind]
        line += ["" if each is None else f"{each:.2f}" for each in times]
        line += ["" if each is None else f"{each:,}" for each in sizes]
        for name in ("client", "sent"):
            own = least(name, key)
            masked = least(name, (clients, words, MASKS))
            is_shown = kind != MASKS and own and masked
            line.append(f"{own / masked:.1f}" if is_shown else "")
        lines.append(line)
    head = ["clients", "words", "sum", *TIMES]
    head += ["client sends", "member gets", "server holds", "times masks' ms", "bytes"]
    return tables.markdown(head, lines, 3)


SUITE = Suite(
    "sums",
    "Milliseconds and bytes of a masked and of a shared sum for a client, a committee member and "
    "the server; the last columns are a client's by shares over the same by masks.",
    Task,
    dict.fromkeys(TIMES, float | None) | dict.fromkeys(BYTES, int | None),
    lambda options: grid(
        Task,
        options,
        "kind",
        clients=(10, 100),
        words=(64, 2112, 80_000),
        kind=KINDS,
    ),
    measure,
    tables_of,
    runs=1,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
