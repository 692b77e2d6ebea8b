"""Accuracies of one model for all clients and of one per cluster, as a table: python table.py.

Each row is the mean of some runs of the app in this process; the least and the largest
are in brackets. Runs differ in the digits of each client, in public randomness, and in
the noise.
"""

import argparse
import json
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict

from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

HERE = Path(__file__).resolve().parent
NO_PRIVACY = 0.0


def run(**changes: Any) -> dict[str, Any]:
    """Run the app with changes of its configuration, and return what it wrote."""
    from clustered_app import client_app, server_app

    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))
    config = project["tool"]["flwr"]["app"]["config"] | changes

    def client(message: Message, context: Context) -> Message:
        context.run_config = config
        return client_app.app(message, context)

    with tempfile.TemporaryDirectory() as output, task_identity():
        config["output"] = output
        grid = InProcessGrid(client, config["n-clients"])
        server_app.app(grid, Context(1, 1, {}, RecordDict(), config))
        found: dict[str, Any] = json.loads((Path(output) / "accuracy.json").read_text())
    return found


def rows(epsilons: list[float], seeds: int, **changes: Any) -> list[str]:
    """Return the rows of the table in markdown."""
    found: dict[str, list[float]] = {}
    for epsilon in (*epsilons, NO_PRIVACY):
        name = (
            f"one per private cluster, ε = {epsilon:g}"
            if epsilon
            else "one per cluster, no noise"
        )
        for seed in range(seeds):
            made = run(epsilon=epsilon, seed=seed, **changes)
            found.setdefault(name, []).append(made["one model per cluster"])
            if not epsilon:  # the same in all runs with this seed
                found.setdefault("one for all", []).append(made["one model for all"])
    lines = ["| model | accuracy |", "|---|---|"]
    return lines + [
        f"| {name} | {sum(each) / len(each):.3f} ({min(each):.3f} to {max(each):.3f}) |"
        for name, each in found.items()
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=3)
    parsed = parser.parse_args()
    sys.path.insert(0, str(HERE))
    sys.stdout.write("\n".join(rows(parsed.epsilons, parsed.seeds)) + "\n")
