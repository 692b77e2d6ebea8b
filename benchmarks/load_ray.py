"""What many clients cost on Ray, against FedAvg.

    python benchmarks/load_ray.py [--clients 1000] [--trust clients-only] [--runs 3]

Each run is one simulation: FastLloyd under a trust model and Flower's FedAvg, without and
with its evaluation (``FedAvg+``), in turn on the same nodes and workers (``ray_runs.py``). Three
things are compared: a round (the median of a run's rounds after the first); the whole run, which is
set-up, rounds and delivery here and the rounds alone there; and the seconds that the
server's process computed in the whole run, which other work on the machine disturbs less.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_runs import FEDAVG, FEDAVG_PLUS, NAMES, PRIVATE, on_ray
from uniform_clients import Size, numbers

from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite

N_ROUNDS = 7
TRUSTS = ("oblivious-server", "clients-only")
PARTS = ("round", "whole", "computed")


@dataclass(frozen=True)
class Task:
    """One simulation."""

    shape: str
    clients: int
    trust: str
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for shape in options.chosen("shape", ("15x2",), str):
            for clients in options.chosen("clients", (1_000,), int):
                trusts = options.chosen("trust", TRUSTS, str)
                yield from (Task(shape, clients, trust, run) for trust in trusts)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the seconds of all strategies; every second run has them in the other order."""
    size = Size(task.clients, *numbers(task.shape), rounds=N_ROUNDS)
    costs = on_ray(size, task.trust, NAMES if task.run % 2 == 0 else NAMES[::-1])
    found: dict[str, float] = {}
    for name in NAMES:
        cost = costs[name]
        values = (statistics.median(cost.rounds), cost.whole, cost.computed)
        found |= {f"{name} {part}": value for part, value in zip(PARTS, values, strict=True)}
    return found


def ratio(own: Sequence[float], other: Sequence[float]) -> str:
    """Return the median of the ratios of the runs, and their range."""
    ratios = [a / b for a, b in zip(own, other, strict=True)]
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return medians of the runs, FastLloyd's beside FedAvg's, and their ratios."""
    by = ("shape", "clients", "trust")
    found = {name: tables.grouped(rows, by, name) for name in SUITE.measures}
    lines = []
    for key in found[f"{PRIVATE} round"]:
        shape, clients, trust = key
        for name in (FEDAVG, FEDAVG_PLUS):
            line = [*map(str, numbers(shape)), f"{clients:,}", trust, name]
            for part in PARTS:
                own, other = (found[f"{each} {part}"][key] for each in (PRIVATE, name))
                middles = f"{statistics.median(own):.2f} : {statistics.median(other):.2f}"
                line += [middles, ratio(own, other)]
            lines.append(line)
    head = ["k", "d", "clients", "trust", "against", "round s", "round, ratio"]
    head += ["run s", "whole run, ratio", "computed s", "computed, ratio"]
    return tables.markdown(head, lines, (3, 4))


SUITE = Suite(
    "load-ray",
    "Runs of FastLloyd with many clients on Ray against FedAvg's, without and with its evaluation "
    f"(FedAvg+), on the same nodes and workers, {N_ROUNDS} rounds: medians over the runs, and of "
    "their ratios with the range. A round is the median of those after the first; computed is the "
    "time of the server's process in the whole run.",
    Task,
    {f"{name} {part}": float for name in NAMES for part in PARTS},
    tasks_of,
    measure,
    tables_of,
    runs=3,
    alone=True,
    fresh=True,
)


if __name__ == "__main__":
    script.main(SUITE, __doc__)
