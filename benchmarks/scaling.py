"""How the cost of a run grows with records, columns, clusters and clients, in one process.

    python benchmarks/scaling.py [--repeats 3] [--quick]

Every row is a whole FastLloyd run through ``simulate``: enrolment, keys, seven rounds with masks
and noise, delivery. One process works for all clients in turn, so a row's time is the work of the
server and *all* clients together; the last column is a round divided by the number of clients,
which is an upper bound of what one client does. Within a section a single number changes; the ratio
compares a round with that of the section's first row. "set-up" is all that is not a round:
enrolment, keys and delivery. The records are uniform.

The last section has 1,000 clients, as a sweep over cohort sizes would.
"""

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.strategies import FastLloyd, RoundInfo

N_ROUNDS = 7


@dataclass(frozen=True)
class Size:
    """The numbers that a run's cost depends on."""

    records: int = 100_000
    columns: int = 8
    clusters: int = 16
    clients: int = 10


BASE = Size()
SECTIONS = {
    "records N": [replace(BASE, records=n) for n in (10_000, 100_000, 1_000_000)],
    "columns d": [replace(BASE, columns=d) for d in (2, 8, 32, 128)],
    "clusters k": [replace(BASE, clusters=k) for k in (4, 16, 64, 128)],
    "clients M": [replace(BASE, clients=m) for m in (2, 10, 100, 1_000)],
    "1,000 small clients": [Size(records=20_000, columns=2, clusters=15, clients=1_000)],
}


@dataclass(frozen=True)
class Cost:
    """Seconds of one run."""

    total: float
    round: float  # median
    outside: float  # enrolment, keys and delivery


def measure(size: Size) -> Cost:
    """Run FastLloyd once."""
    source = np.random.default_rng(0)
    records = source.uniform(-1, 1, (size.records, size.columns))
    partitions = np.array_split(records, size.clients)
    box = Box(np.full(size.columns, -1.0), np.full(size.columns, 1.0))
    strategy = FastLloyd(
        size.clusters,
        box,
        PrivacyBudget(1.0),
        n_records=size.records,
        n_clients=size.clients,
        n_rounds=N_ROUNDS,
    )
    ends: list[float] = []

    def tell(_: RoundInfo) -> None:
        ends.append(time.perf_counter())

    started = time.perf_counter()
    simulate(strategy, partitions, on_round=tell)
    total = time.perf_counter() - started
    middle = float(np.median(np.diff(ends)))
    return Cost(total, middle, total - N_ROUNDS * middle)


def best(size: Size, repeats: int) -> Cost:
    """Return the run with the shortest round: the others were disturbed."""
    return min((measure(size) for _ in range(repeats)), key=lambda cost: cost.round)


def rows(quick: bool, repeats: int) -> Iterator[str]:
    """Yield the table's lines as they are measured."""
    yield "| grows | N | d | k | M | run s | set-up s | round ms | ratio | round ms / M |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, sizes in SECTIONS.items():
        first = None
        for size in sizes:
            if quick and size.records * size.columns * size.clusters > 2**25:
                continue
            cost = best(size, repeats)
            first = first or cost.round
            cells = (
                name,
                f"{size.records:,}",
                size.columns,
                size.clusters,
                f"{size.clients:,}",
                f"{cost.total:.2f}",
                f"{cost.outside:.2f}",
                f"{1e3 * cost.round:.1f}",
                f"{cost.round / first:.2f}",
                f"{1e3 * cost.round / size.clients:.2f}",
            )
            yield "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="the best of so many runs")
    parser.add_argument("--quick", action="store_true", help="without the largest arrays")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    for line in rows(options.quick, options.repeats):
        print(line, flush=True)


if __name__ == "__main__":
    main()
