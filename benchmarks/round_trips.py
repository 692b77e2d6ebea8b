"""How long one round trip takes in a deployment: ``python benchmarks/round_trips.py --deployed 5``.

A SuperLink and one SuperNode are set up on this machine, and N round trips of a small
message are timed in turn by Flower's ``send_and_receive`` and by the strategies' own
polling. The installed Flower decides which protocol the node uses. ``load.py`` counts
the round trips of a run. A node starts a process for each message. The processor time
of that process is measured as well (on Linux), and the time of its imports alone.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np

from bench import tables

HERE = Path(__file__).resolve().parent
TIMEOUT = 600.0
IMPORTS = {
    "Python": "pass",
    "Flower's process of a client": "from flwr.supernode.cli import flwr_clientapp",
    "the same and flower_kmeans.client": (
        "from flwr.supernode.cli import flwr_clientapp; import flower_kmeans.client"
    ),
}


def client_processes(ended: threading.Event) -> list[float]:
    """Return the processor's seconds of each client process that was seen until an event."""
    seen: dict[str, float] = {}
    while not ended.wait(0.02):  # a process is missed, or its last moments are
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if b"flwr-clientapp" in (path / "cmdline").read_bytes():
                    user, system = (
                        (path / "stat").read_text().rpartition(")")[2].split()[11:13]
                    )
                    seen[path.name] = (int(user) + int(system)) / os.sysconf(
                        "SC_CLK_TCK"
                    )
    return list(seen.values())


def deployed(n: int) -> tuple[dict[str, list[float]], list[float]]:
    """Return the seconds of a node's round trips by method, and of its processes."""
    sys.path.insert(0, str(HERE.parent / "tests" / "deployment"))
    from loopback import deployment

    with tempfile.TemporaryDirectory() as name:
        app, ended = HERE / "round_trip_app", threading.Event()
        with (
            deployment(Path(name), [np.zeros((3, 2))], app=app) as running,
            ThreadPoolExecutor(1) as watcher,
        ):
            processes = watcher.submit(client_processes, ended)
            try:
                running.run({"round-trips": n}, TIMEOUT)
            finally:
                ended.set()
        found: dict[str, list[float]] = json.loads(running.report.read_text("utf-8"))
    return found, processes.result()


def importing(turns: int = 10) -> dict[str, float]:
    """Return the least processor seconds of imports by module."""
    least = dict.fromkeys(IMPORTS, float("inf"))
    for _ in range(turns):
        for what, code in IMPORTS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = (
                after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            )
            least[what] = min(least[what], seconds)
    return least


def show(of: str, found: Mapping[str, Sequence[float]]) -> str:
    """Return the seconds as a table."""
    lines = [
        [
            way,
            f"{statistics.median(times):.2f}",
            f"{min(times):.2f}",
            f"{max(times):.2f}",
        ]
        for way, times in found.items()
    ]
    return tables.markdown([of, "median s", "least", "most"], lines, 1)


def main() -> None:
    """Time imports, and round trips of a deployment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployed", type=int, default=5, help="round trips to time")
    n = parser.parse_args().deployed
    rows = [[what, f"{seconds:.2f}"] for what, seconds in importing().items()]
    print(f"flwr {version('flwr')}, a process that imports:")
    print(tables.markdown(["imports", "CPU s"], rows, 1))
    print(f"flwr {version('flwr')}, one node, {n} round trips each way of waiting:")
    times, processes = deployed(n)
    print(show("waiting by", times))
    print(f"Seconds of the processor of {len(processes)} processes of the client:")
    print(show("processes", {"all": processes}))


if __name__ == "__main__":
    main()
