"""What masking costs a client, and how many bytes a reply has: ``python benchmarks/masks.py``.

Times are the best of several repetitions in this run, in milliseconds. Beside them stands the cost
of drawing one vector per member, which is what masks without the telescope would cost a client.
Corrections are for a cohort in which a tenth of the members is missing: at one place, as when a
site is down, and scattered at random.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.federation.messages import Finish, Round, RoundReply, to_content
from flower_kmeans.federation.transcript import EMPTY_QUESTION_HASH, Entry, pack_words
from flower_kmeans.secagg.masks import correction, mask, words

KEY = bytes(range(32))
COHORTS = (10, 1_000, 10_000)
SHAPES = ((15, 2), (64, 32), (100, 784))
MISSING = 0.1
PARTS = ("time", "reply", "request")


@dataclass(frozen=True)
class Task:
    """A client's times, or bytes of a message, for k clusters, d columns and a cohort."""

    part: str
    clusters: int
    columns: int
    clients: int | None
    run: int


def best(action: Callable[[], object], seconds: float = 0.3) -> float:
    """Return the shortest time of one call in milliseconds."""
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def survivor_sets(m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return survivors with a tenth missing at one place, and missing at random."""
    together = np.ones(m, dtype=bool)
    together[: max(1, round(MISSING * m))] = False
    return together, np.random.default_rng(0).permutation(together)


def one_vector_per_member(m: int, length: int) -> np.ndarray:
    """Draw ``m`` vectors: what every second member missing costs."""
    return correction(KEY, np.arange(m) % 2 == 1, length)


def serialised(content: RecordDict) -> int:
    """Return the bytes that Flower makes of a message's content, without its envelope."""
    return len(content.deflate()) + sum(
        len(record.deflate())
        + sum(
            len(child.deflate()) + sum(len(c.deflate()) for c in (child.children or {}).values())
            for child in (record.children or {}).values()
        )
        for record in content.values()
    )


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield times of all shapes and cohorts, then sizes, which do not change."""
    for run in range(options.runs):
        yield from (Task("time", *shape, m, run) for shape in SHAPES for m in COHORTS)
    yield from (Task("reply", *shape, None, 0) for shape in SHAPES)
    yield from (Task("request", *shape, m, 0) for shape in SHAPES for m in COHORTS)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return milliseconds, or bytes."""
    found: dict[str, Any] = dict.fromkeys(SUITE.measures)
    if task.clients is None:
        return found | reply_bytes(task.clusters, task.columns)
    made = times if task.part == "time" else request_bytes
    return found | made(task.clusters, task.columns, task.clients)


def times(k: int, d: int, m: int) -> dict[str, float]:
    """Return a client's milliseconds for masks and corrections."""
    length = k * (d + 1) + 1
    place, scattered = survivor_sets(m)
    part = min(m, 1_000)  # one vector's cost times m stands for the largest naive rows
    return {
        "mask": best(lambda: mask(KEY, 0, m, length)),
        "place": best(lambda: correction(KEY, place, length)),
        "scattered": best(lambda: correction(KEY, scattered, length)),
        "vectors": best(lambda: one_vector_per_member(part, length), 0) * m / part,
    }


def reply_bytes(k: int, d: int) -> dict[str, int]:
    """Return the bytes of a reply's words, of it as sent, and with an array record instead."""
    vector = words(KEY, 0, k * (d + 1) + 1)
    reply = RoundReply(doc_hash=KEY, ctx=KEY, words=pack_words(vector))
    fields = {name: value for name, value in reply.to_record().items() if name != "words"}
    arrays = ArrayRecord({"words": Array(vector)})
    return {
        "payload": vector.nbytes,
        "serialised": serialised(to_content(reply)),
        "array_record": serialised(RecordDict({"kmeans": ConfigRecord(fields), "arrays": arrays})),
    }


def request_bytes(k: int, d: int, m: int) -> dict[str, int]:
    """Return the bytes of a request in the steady state: one transcript entry."""
    vector = words(KEY, 0, k * (d + 1) + 1)
    everyone = np.ones(m, dtype=bool)
    entry = Entry(1, 1, m, KEY, EMPTY_QUESTION_HASH, everyone, vector).pack()
    path = bytes(32 * (m - 1).bit_length())
    place = {"doc_hash": KEY, "t": 2, "m": m, "index": 1, "root": KEY, "path": path}
    return {
        "round": serialised(to_content(Round(**place, attempt=1, entries=(entry,)))),
        "finish": serialised(to_content(Finish(**place, entries=(entry,)))),
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best times, and sizes."""
    parts = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    by = ("clusters", "columns", "clients")
    columns = ("mask", "place", "scattered", "vectors")
    found = {name: tables.grouped(parts["time"], by, name) for name in columns}
    lines = [
        [
            *map(str, (k, d, k * (d + 1) + 1, m)),
            *(f"{min(found[name][k, d, m]):.3f}" for name in columns[:3]),
            f"{min(found['vectors'][k, d, m]):.2f}",
        ]
        for k, d, m in found["mask"]
    ]
    head = ["k", "d", "words", "clients", "mask", "unmask (place)", "unmask (scattered)"]
    told = ["A client's time in ms; a tenth is missing, at one place or scattered:"]
    told.append(tables.markdown([*head, "m vectors"], lines, 0))
    replies = [
        [
            *(str(row[name]) for name in ("clusters", "columns", "payload", "serialised")),
            str(row["serialised"] - row["payload"]),
            str(row["array_record"]),
        ]
        for row in parts["reply"]
    ]
    told.append(
        "Bytes of a reply: the words, Flower's serialised content, and what it would be with an "
        "array record beside the fields:"
    )
    head = ["k", "d", "payload", "serialised", "extra", "array record"]
    told.append(tables.markdown(head, replies, 0))
    requests = [
        [str(row[name]) for name in ("clusters", "columns", "clients", "round", "finish")]
        for row in parts["request"]
    ]
    told.append("Bytes of a request in the steady state, one transcript entry (serialised):")
    told.append(tables.markdown(["k", "d", "clients", "round", "finish"], requests, 0))
    return "\n\n".join(told)


SUITE = Suite(
    "masks",
    "What masking costs a client, beside one vector for each member, which is what masks without "
    "the telescope would cost (m vectors); and the bytes of replies and requests.",
    Task,
    {
        **dict.fromkeys(("mask", "place", "scattered", "vectors"), float | None),
        **dict.fromkeys(("payload", "serialised", "array_record"), int | None),
        **dict.fromkeys(("round", "finish"), int | None),
    },
    tasks_of,
    measure,
    tables_of,
    runs=1,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
