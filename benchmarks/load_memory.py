"""Memory of the server's process on Ray while rounds go by: ``python benchmarks/load_memory.py``.

A short and a long run of FastLloyd under each trust model, each in a separate process, which
also holds Flower's SuperLink and the memories of all nodes. Beside it stand the peak, and what all
vectors of a run would take if they were kept: shares of them are about ten times as large.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_runs import PRIVATE, on_ray
from uniform_clients import Size, numbers

from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite

TRUSTS = ("oblivious-server", "clients-only")
AFTER = (1, 2, 7, 14, 28)
"""Rounds after which memory is shown."""


@dataclass(frozen=True)
class Task:
    """One run."""

    trust: str
    shape: str
    clients: int
    rounds: int
    run: int


def size_of(row: Mapping[str, Any]) -> Size:
    """Return the numbers of a run."""
    return Size(row["clients"], *numbers(row["shape"]), rounds=row["rounds"])


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for shape in options.chosen("shape", ("64x32",), str):
            for clients in options.chosen("clients", (1_000,), int):
                for trust in options.chosen("trust", TRUSTS, str):
                    for rounds in options.chosen("rounds", (7, 28), int):
                        yield Task(trust, shape, clients, rounds, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the bytes of the server's process after some of the rounds."""
    cost = on_ray(size_of(vars(task)), task.trust, (PRIVATE,))[PRIVATE]
    after = {f"after_{t}": cost.resident[t - 1] if t <= task.rounds else None for t in AFTER}
    return {**after, "peak": cost.peak, "whole": cost.whole, "computed": cost.computed}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the memory of each run."""
    lines = [
        [
            *(row["trust"], row["shape"], f"{row['clients']:,}", str(row["rounds"])),
            *(_megabytes(row[f"after_{t}"]) for t in AFTER),
            _megabytes(row["peak"]),
            _megabytes(row["rounds"] * row["clients"] * size_of(row).reply),
            f"{row['whole']:.0f}",
            f"{row['computed']:.0f}",
        ]
        for row in rows
    ]
    head = [
        "trust",
        "k x d",
        "clients",
        "rounds",
        *(f"MB after round {t}" for t in AFTER),
        "peak MB",
        "vectors, MB",
        "run s",
        "of it the server's process computed",
    ]
    return tables.markdown(head, lines, 0)


def _megabytes(n: int | None) -> str:
    return "" if n is None else f"{n / 2**20:.0f}"


SUITE = Suite(
    "load-memory",
    "Resident memory of the server's process on Ray, with Flower's SuperLink and the memories of "
    "all nodes, after rounds of FastLloyd, and the most of it; the bytes of all vectors of all "
    "clients, as numbers of 8 bytes; and seconds of the run.",
    Task,
    {
        **{f"after_{t}": int | None for t in AFTER},
        "peak": int,
        **dict.fromkeys(("whole", "computed"), float),
    },
    tasks_of,
    measure,
    tables_of,
    runs=1,
    alone=True,
    fresh=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
