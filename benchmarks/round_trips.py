"""How long one round trip takes in a deployment: ``python benchmarks/round_trips.py --deployed 5``.

A SuperLink and one SuperNode are set up on this machine, and N round trips of a small message are
timed in turn by Flower's ``send_and_receive`` and by the strategies' own polling. The installed
Flower decides which protocol the node speaks. How many round trips a run has: ``load.py``.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from flower_kmeans.bench import tables

HERE = Path(__file__).resolve().parent
TIMEOUT = 600.0


def deployed(n: int) -> dict[str, list[float]]:
    """Return the seconds of round trips of one node in a deployment, by the way of waiting."""
    sys.path.insert(0, str(HERE.parent / "tests" / "deployment"))
    from loopback import deployment

    with tempfile.TemporaryDirectory() as name:
        app = HERE / "round_trip_app"
        with deployment(Path(name), [np.zeros((3, 2))], app=app) as running:
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
    """Time round trips of a deployment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployed", type=int, default=5, help="round trips to time")
    n = parser.parse_args().deployed
    print(f"flwr {version('flwr')}, one node, {n} round trips each way of waiting:")
    print(show(deployed(n)))


if __name__ == "__main__":
    main()
