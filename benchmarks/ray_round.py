"""A private round on Ray against a FedAvg round that carries the same arrays.

    python benchmarks/ray_round.py [--clients 10 40] [--shapes 15x2 64x32 100x784]
    [--runs 3]

A round's time runs from the end of the round before to its own end at the server, so
set-up and delivery are not in it. Times are means over all runs, because Flower's
simulation looks for messages every 0.1 s and single rounds jump by that much. FedAvg
runs without its evaluation, and its clients compute nothing; for a client's step see
``client_step.py``. The private strategy runs beside it in Flower's simulation, and then
by ``simulate(engine="ray")``.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from weighing import Size, peak

from bench import script, tables
from bench.harness import Options, Row, grid, process_suite
from flower_kmeans import ClientPolicy, register_kmeans, simulate

PRIVATE, FEDAVG = NAMES = ("fastlloyd", "fedavg")
ENGINE = "engine"  # the private strategy without Flower's simulation


@dataclass(frozen=True)
class Task:
    """One simulation, with an array of clusters x columns and as many counts."""

    shape: str
    clients: int
    trust: str
    rounds: int
    run: int


class Runs:
    """Runs on one grid, one after the other. Of FastLloyd there is one.

    Attributes
    ----------
    found : dict of str to float
        Mean seconds of a strategy's rounds after the first; of FastLloyd also the
        seconds of the whole run, those that the server's process computed, and the most
        bytes it ever had.
    """

    def __init__(self, size: Size, trust: str) -> None:
        self.size, self.found, self._trust = size, dict[str, float](), trust
        self._ends: list[float] = []
        self._private = size.fastlloyd(lambda _: self._tick(), trust)

    def run(self, grid: Grid, name: str) -> None:
        """Run a strategy, and keep its times."""
        self._ends.clear()
        computed, started = time.process_time(), time.perf_counter()
        if name == PRIVATE:
            self._private.start(grid)
            self.found["whole"] = time.perf_counter() - started
            self.found["computed"] = time.process_time() - computed
            self.found["peak"] = peak()
        else:
            self.fedavg(grid, self.size.rounds)
        self.found[name] = float(np.mean(np.diff(self._ends)))

    def simulate(self) -> None:
        """Run the private strategy on Ray without Flower's simulation."""
        size, ends = self.size, list[float]()
        strategy = size.fastlloyd(
            lambda _: ends.append(time.perf_counter()), self._trust
        )
        simulate(
            strategy, [size.records_of(i) for i in range(size.clients)], engine="ray"
        )
        self.found[ENGINE] = float(np.mean(np.diff(ends)))

    def fedavg(self, grid: Grid, n_rounds: int) -> None:
        """Run FedAvg. One round, which does not count, lets workers start and import everything."""

        def tick(server_round: int, _: ArrayRecord) -> None:
            if server_round:  # 0 is before the first round
                self._tick()

        clients = self.size.clients
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_evaluate_nodes=0,
            min_available_nodes=clients,
        )
        arrays = ArrayRecord([np.zeros(self.size.reply // 8)])
        strategy.start(grid, arrays, num_rounds=n_rounds, evaluate_fn=tick)

    def _tick(self) -> None:
        self._ends.append(time.perf_counter())


def client_app(size: Size) -> ClientApp:
    """Return an app that takes part in both strategies."""
    app = ClientApp()
    app.train()(partial(_send_back, size))
    register_kmeans(app, size.load, ClientPolicy.for_simulation(), lambda *_: None)
    return app


def _send_back(size: Size, message: Message, context: Context) -> Message:
    """Answer a FedAvg round as it was asked."""
    metrics = MetricRecord({"num-examples": len(size.load(context))})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)


def on_ray(
    app: ClientApp, n_clients: int, run: Callable[[Grid], None], *modules: str
) -> None:
    """Call a function with the grid of Flower's simulation on Ray.

    ``modules`` are scripts beside this one, whose functions the app uses.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    # Flower would join any cluster that this machine happens to have, and wait for one
    # that ended.
    os.environ.setdefault("RAY_ADDRESS", "local")
    from flwr.simulation import run_simulation
    from ray import cloudpickle

    # workers do not find these files by themselves
    for module in (__name__, Size.__module__, *modules):
        cloudpickle.register_pickle_by_value(sys.modules[module])
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(
            server_app,
            app,
            num_supernodes=n_clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False},
            },
        )


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run both in one simulation on Ray; strategies take turns in who is first."""
    # Made before Ray forks its processes: a fork while another thread is inside BLAS
    # can hang.
    runs = Runs(Size.of(task.shape, task.clients, rounds=task.rounds), task.trust)

    def run_all(grid: Grid) -> None:
        runs.fedavg(grid, 1)
        for name in NAMES if task.run % 2 == 0 else NAMES[::-1]:
            runs.run(grid, name)

    on_ray(client_app(runs.size), task.clients, run_all)
    runs.simulate()
    return {**runs.found, "peak": int(runs.found["peak"])}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the mean over the runs of each size."""

    def mean(rows: list[Row], name: str) -> float:
        return float(np.mean([row[name] for row in rows]))

    return tables.by_key(
        rows,
        {"k x d": "shape", "clients": "clients", "trust": "trust", "rounds": "rounds"},
        {
            "payload bytes": lambda of: f"{Size.of(of[0]['shape'], 1).reply:,}",
            "FedAvg ms": lambda of: f"{1e3 * mean(of, FEDAVG):.0f}",
            "FastLloyd ms": lambda of: f"{1e3 * mean(of, PRIVATE):.0f}",
            "ratio": lambda of: f"{mean(of, PRIVATE) / mean(of, FEDAVG):.2f}",
            "by simulate ms": lambda of: f"{1e3 * mean(of, ENGINE):.0f}",
            "by simulate, ratio": lambda of: (
                f"{mean(of, ENGINE) / mean(of, FEDAVG):.2f}"
            ),
            "run s": lambda of: f"{mean(of, 'whole'):.0f}",
            "CPU s of the server's process": lambda of: f"{mean(of, 'computed'):.0f}",
            "peak MB": lambda of: f"{max(row['peak'] for row in of) / 2**20:.0f}",
        },
        (0, 2),
    )


SUITE = process_suite(
    "ray-round",
    "A round of FastLloyd against one of FedAvg whose clients send the same number of 8-byte words "
    "back without computing anything, on the same workers in the same simulation: mean times of "
    "the rounds after the first. Of FastLloyd also the seconds of the whole run, those that the "
    "server's process computed, and the most memory that it had, with Flower's SuperLink and the "
    "memories of all nodes.",
    Task,
    {**dict.fromkeys((*NAMES, ENGINE, "whole", "computed"), float), "peak": int},
    lambda options: grid(
        Task,
        options,
        *("shape", "trust"),
        shape=("15x2", "64x32", "100x784"),
        clients=(10, 40),
        trust=("oblivious-server",),
        rounds=(7,),
    ),
    measure,
    tables_of,
    runs=3,
)


if __name__ == "__main__":
    script.main(SUITE)
