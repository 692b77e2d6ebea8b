"""How often a run sends messages and waits for the answers, and how long one round trip takes.

    python benchmarks/round_trips.py [--rounds 7] [--deployed 5]

Round trips of whole runs with five clients, by trust model, counted: the number of clients changes
none of them. With ``--deployed N`` a SuperLink and one SuperNode are set up on this machine, and N
round trips of a small message are timed in turn by Flower's ``send_and_receive`` and by the
strategies' own polling. The installed Flower decides which protocol the node speaks.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from weighing import Size

from flower_kmeans import PrivacyBudget
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.harness import Options, Row, Suite, grid
from flower_kmeans.strategies import GLloyd, KMeansStrategy, Lloyd

N_CLIENTS = 5
TRUSTS = ("plain", "trusted-server", "oblivious-server", "distributed-noise", "clients-only")
HERE = Path(__file__).resolve().parent
TIMEOUT = 600.0


@dataclass(frozen=True)
class Task:
    """One run."""

    trust: str
    rounds: int


def strategy_of(task: Task, size: Size) -> KMeansStrategy:
    """Return a strategy of a trust model."""
    if task.trust == "plain":
        return Lloyd(size.clusters, size.box(), n_rounds=task.rounds, n_clients=size.clients)
    return GLloyd(
        size.clusters,
        size.box(),
        PrivacyBudget(1.0),
        n_records=1000 * size.clients,
        n_clients=size.clients,
        n_rounds=task.rounds,
        trust=task.trust,
    )


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run it once and count."""
    size = Size(N_CLIENTS, clusters=2)
    grid = size.over(strategy_of(task, size), weighs=lambda trip: False)
    return {"trips": len(grid.pushes), "messages": sum(grid.pushes)}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the round trips of each kind of run."""
    return tables.by_key(
        rows,
        {"trust": "trust", "rounds": "rounds"},
        {
            "round trips": lambda of: str(of[0]["trips"]),
            "messages / client": lambda of: f"{of[0]['messages'] / N_CLIENTS:.1f}",
        },
    )


SUITE = Suite(
    "round-trips",
    "How often a run sends messages and waits for the answers, by trust model; counted, with "
    f"{N_CLIENTS} clients.",
    Task,
    {"trips": int, "messages": int},
    lambda options: grid(Task, options, rounds=(7,), trust=TRUSTS),
    measure,
    tables_of,
    runs=1,
)


# ------------------------------------------------------------------------------ deployed


def deployed(n: int) -> dict[str, list[float]]:
    """Return the seconds of round trips of one node in a deployment, by the way of waiting."""
    sys.path.insert(0, str(HERE.parent / "tests" / "deployment"))
    from loopback import deployment

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        app = HERE / "round_trip_app"
        with deployment(directory, [np.zeros((3, 2))], app=app) as running:
            running.run({"round-trips": n}, TIMEOUT)
        found: dict[str, list[float]] = json.loads(running.report.read_text("utf-8"))
    return found


def show(found: Mapping[str, Sequence[float]]) -> str:
    """Return the seconds as a table."""
    lines = [
        [way, f"{statistics.median(times):.2f}", f"{min(times):.2f}", f"{max(times):.2f}"]
        for way, times in found.items()
    ]
    return tables.markdown(["waiting by", "median s", "least", "most"], lines, 1)


def main() -> None:
    """Time round trips of a deployment, or count those of runs."""
    if "--deployed" not in sys.argv:
        script.main(SUITE)
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployed", type=int, required=True, help="round trips to time")
    n = parser.parse_args().deployed
    print(f"flwr {version('flwr')}, one node, {n} round trips each way of waiting:")
    print(show(deployed(n)))


if __name__ == "__main__":
    main()
