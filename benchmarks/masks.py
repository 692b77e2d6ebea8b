"""What masking costs a client, and how many bytes a reply has: ``python benchmarks/masks.py``.

Times are the best of several repetitions in this run, in milliseconds. Beside them stands the cost
of drawing one vector per member, which is what masks without the telescope would cost a client.
Corrections are for a cohort in which a tenth of the members is missing: at one place, as when a
site is down, and scattered at random.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flower_kmeans.federation.messages import Finish, Round, RoundReply, to_content
from flower_kmeans.federation.transcript import EMPTY_QUESTION_HASH, Entry, pack_words
from flower_kmeans.secagg.masks import correction, mask, words

KEY = bytes(range(32))
COHORTS = (10, 1_000, 10_000)
SHAPES = ((15, 2), (64, 32), (100, 784))
MISSING = 0.1


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


def print_times(cohorts: tuple[int, ...], shapes: tuple[tuple[int, int], ...]) -> None:
    """Print the time table."""
    print("Client's time in ms; tenth missing: at one place / scattered")
    head = (
        "k",
        "d",
        "words",
        "clients",
        "mask",
        "unmask (place)",
        "unmask (scattered)",
        "m vectors",
    )
    print(("{:>4} {:>4} {:>7} {:>8} {:>9} {:>15} {:>19} {:>11}").format(*head))
    for k, d in shapes:
        length = k * (d + 1) + 1
        for m in cohorts:
            place, scattered = survivor_sets(m)
            row = (
                best(lambda m=m, n=length: mask(KEY, 0, m, n)),
                best(lambda s=place, n=length: correction(KEY, s, n)),
                best(lambda s=scattered, n=length: correction(KEY, s, n)),
            )
            # One vector's cost times m stands for the largest naive rows.
            part = min(m, 1_000)
            slow = best(lambda m=part, n=length: one_vector_per_member(m, n), 0) * m / part
            cells = f"{k:>4} {d:>4} {length:>7} {m:>8} {row[0]:>9.3f} {row[1]:>15.3f}"
            print(f"{cells} {row[2]:>19.3f} {slow:>11.2f}")


def print_sizes(cohorts: tuple[int, ...], shapes: tuple[tuple[int, int], ...]) -> None:
    """Print the size tables."""
    print(
        "\nBytes of a reply: the words, Flower's serialised content, and what it would be with an"
    )
    print("array record beside the fields")
    print("{:>4} {:>4} {:>9} {:>11} {:>9} {:>13}".format("k", "d", "payload", "serialised", "extra",
                                                         "array record"))  # fmt: skip
    for k, d in shapes:
        vector = words(KEY, 0, k * (d + 1) + 1)
        reply = RoundReply(doc_hash=KEY, ctx=KEY, words=pack_words(vector))
        total = serialised(to_content(reply))
        fields = {name: value for name, value in reply.to_record().items() if name != "words"}
        arrays = ArrayRecord({"words": Array(vector)})
        other = serialised(RecordDict({"kmeans": ConfigRecord(fields), "arrays": arrays}))
        cells = f"{k:>4} {d:>4} {vector.nbytes:>9} {total:>11} {total - vector.nbytes:>9}"
        print(f"{cells} {other:>13}")
    print("\nBytes of a request in the steady state, one transcript entry (serialised)")
    print("{:>4} {:>4} {:>8} {:>9} {:>8}".format("k", "d", "clients", "round", "finish"))
    for k, d in shapes:
        vector = words(KEY, 0, k * (d + 1) + 1)
        for m in cohorts:
            everyone = np.ones(m, dtype=bool)
            entry = Entry(1, 1, m, KEY, EMPTY_QUESTION_HASH, everyone, vector).pack()
            path = bytes(32 * (m - 1).bit_length())
            place = {"doc_hash": KEY, "t": 2, "m": m, "index": 1, "root": KEY, "path": path}
            asked = serialised(to_content(Round(**place, attempt=1, entries=(entry,))))
            ended = serialised(to_content(Finish(**place, entries=(entry,))))
            print(f"{k:>4} {d:>4} {m:>8} {asked:>9} {ended:>8}")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the largest shape")
    shapes = SHAPES[:2] if parser.parse_args().quick else SHAPES
    print_times(COHORTS, shapes)
    print_sizes(COHORTS, shapes)


if __name__ == "__main__":
    main()
