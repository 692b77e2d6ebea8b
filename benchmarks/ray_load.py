"""Whole runs with many clients on Ray, against FedAvg with and without its evaluation.

    python benchmarks/ray_load.py [--clients 1000] [--trusts clients-only] [--runs 3]

Each task is one simulation: FastLloyd under a trust model and Flower's FedAvg, without
and with its evaluation (``FedAvg+``), in turn on the same nodes and workers. A whole run
has set-up, rounds and delivery of FastLloyd, and the rounds alone of FedAvg. *computed*
are the seconds that the server's process computed in it, which other work on the
machine disturbs less.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from ray_round import client_app as round_app
from ray_round import on_ray
from weighing import Size

from bench import script, tables
from bench.harness import Options, Row, grid, process_suite

PRIVATE, FEDAVG, FEDAVG_PLUS = NAMES = ("FastLloyd", "FedAvg", "FedAvg+")
N_ROUNDS = 7
PARTS = ("whole", "computed")


@dataclass(frozen=True)
class Task:
    """One simulation."""

    shape: str
    clients: int
    trust: str
    run: int


def client_app(size: Size) -> ClientApp:
    """Return an app that takes part in all strategies."""
    app = round_app(size)
    app.evaluate()(partial(_evaluate, size))
    return app


def _evaluate(size: Size, message: Message, context: Context) -> Message:
    """Answer FedAvg's evaluation."""
    metrics = MetricRecord({"num-examples": len(size.load(context)), "loss": 0.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def run_fedavg(size: Size, grid: Grid, n_rounds: int, *, evaluation: bool) -> None:
    """Run FedAvg on an array that is as long as a reply of FastLloyd."""
    strategy = FedAvg(
        fraction_evaluate=float(evaluation),
        min_train_nodes=size.clients,
        min_evaluate_nodes=size.clients if evaluation else 0,
        min_available_nodes=size.clients,
    )
    arrays = ArrayRecord([np.zeros(size.reply // 8)])
    strategy.start(grid, arrays, num_rounds=n_rounds)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the seconds of all strategies; every second run has them in the other order."""
    size = Size.of(task.shape, task.clients, rounds=N_ROUNDS)
    # Made before Ray forks its processes: a fork while another thread is inside BLAS
    # can hang.
    private = size.fastlloyd(lambda _: None, task.trust)
    found: dict[str, float] = {}

    def run_all(grid: Grid) -> None:
        # Does not count: workers start, and import everything.
        run_fedavg(size, grid, 1, evaluation=False)
        for name in NAMES if task.run % 2 == 0 else NAMES[::-1]:
            computed = time.process_time()
            started = time.perf_counter()
            if name == PRIVATE:
                private.start(grid)
            else:
                run_fedavg(size, grid, N_ROUNDS, evaluation=name == FEDAVG_PLUS)
            found[f"{name} whole"] = time.perf_counter() - started
            found[f"{name} computed"] = time.process_time() - computed

    on_ray(client_app(size), task.clients, run_all, __name__)
    return found


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return medians of the runs, FastLloyd's over FedAvg's."""

    def ratio(of: list[Row], part: str, other: str) -> str:
        ratios = [row[f"{PRIVATE} {part}"] / row[f"{other} {part}"] for row in of]
        return f"{np.median(ratios):.2f}"

    return tables.by_key(
        rows,
        {"k x d": "shape", "clients": "clients", "trust": "trust"},
        {"run s": lambda of: f"{np.median([row['FastLloyd whole'] for row in of]):.1f}"}
        | {
            f"{part} / {other}'s": partial(ratio, part=part, other=other)
            for other in (FEDAVG, FEDAVG_PLUS)
            for part in PARTS
        },
        (0, 2),
    )


SUITE = process_suite(
    "ray-load",
    "Runs of FastLloyd with many clients on Ray over FedAvg's, without and with its evaluation "
    f"(FedAvg+), on the same nodes and workers, {N_ROUNDS} rounds: medians over the runs. Computed "
    "is the time of the server's process in the whole run.",
    Task,
    {f"{name} {part}": float for name in NAMES for part in PARTS},
    lambda options: grid(
        Task,
        options,
        *("shape", "trust"),
        shape=("15x2",),
        clients=(1_000,),
        trust=("oblivious-server", "clients-only"),
    ),
    measure,
    tables_of,
    runs=3,
)


if __name__ == "__main__":
    script.main(SUITE)
