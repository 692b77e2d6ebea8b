"""FastLloyd and Flower's FedAvg in turn on the nodes of one simulation, and what each run took.

FedAvg's clients load the same records and send back, unchanged, an array of as many 8-byte numbers
as a reply of FastLloyd has. ``FedAvg`` has its evaluation switched off; ``FedAvg+`` is Flower's
default, which also sends the arrays to all clients for evaluation after every round.
``load_ray.py``, ``load_memory.py`` and ``ray_round.py`` are the suites on it.
"""

import os
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from uniform_clients import Size, forget
from weighing import peak, resident

from flower_kmeans import ClientPolicy, register_kmeans

PRIVATE, FEDAVG, FEDAVG_PLUS = NAMES = ("FastLloyd", "FedAvg", "FedAvg+")


@dataclass(frozen=True)
class Cost:
    """What one run took.

    Attributes
    ----------
    whole : float
        Seconds: of FastLloyd set-up, rounds and delivery, of FedAvg the rounds alone.
    rounds : tuple of float
        Seconds of the rounds after the first, from the end of one to the end of the next.
    computed : float
        Seconds that the server's process computed in the whole run, which other work on the
        machine disturbs less.
    resident : tuple of int
        Bytes of the server's process after each round.
    peak : int
        Most bytes that it ever had.
    """

    whole: float
    rounds: tuple[float, ...]
    computed: float
    resident: tuple[int, ...]
    peak: int


class Runs:
    """Runs on one grid, one after the other. Of FastLloyd there is one."""

    def __init__(self, size: Size, trust: str) -> None:
        self.size = size
        self._private = size.fastlloyd("relayed", lambda _: self._tick(), trust)
        self._ends: list[float] = []
        self._resident: list[int] = []

    def cost(self, grid: Grid, name: str) -> Cost:
        """Run a strategy, and return what it took."""
        self._ends, self._resident = [], []
        computed, started = time.process_time(), time.perf_counter()
        if name == PRIVATE:
            self._private.start(grid)
        else:
            self._fedavg(grid, self.size.rounds, evaluation=name == FEDAVG_PLUS)
        whole = time.perf_counter() - started
        rounds = tuple(map(float, np.diff(self._ends)))
        computed = time.process_time() - computed
        return Cost(whole, rounds, computed, tuple(self._resident), peak())

    def warm_up(self, grid: Grid) -> None:
        """Let the workers start, and import everything, in a run that does not count."""
        self._fedavg(grid, 1, evaluation=False)

    def _fedavg(self, grid: Grid, n_rounds: int, *, evaluation: bool) -> None:
        def tick(server_round: int, _: ArrayRecord) -> None:
            if server_round:  # 0 is before the first round
                self._tick()

        clients = self.size.clients
        strategy = FedAvg(
            fraction_evaluate=float(evaluation),
            min_train_nodes=clients,
            min_evaluate_nodes=clients if evaluation else 0,
            min_available_nodes=clients,
        )
        arrays = ArrayRecord([np.zeros(self.size.reply // 8)])
        strategy.start(grid, arrays, num_rounds=n_rounds, evaluate_fn=tick)

    def _tick(self) -> None:
        self._ends.append(time.perf_counter())
        self._resident.append(resident())


def client_app(size: Size, policy: ClientPolicy) -> ClientApp:
    """Return an app that takes part in all strategies."""
    app = ClientApp()
    app.train()(partial(_send_back, size))
    app.evaluate()(partial(_evaluate, size))
    register_kmeans(app, size.load, policy, forget)
    return app


def on_ray(size: Size, trust: str, names: Iterable[str]) -> dict[str, Cost]:
    """Run strategies in turn in one simulation on Ray.

    Parameters
    ----------
    size : Size
    trust : str
        Trust model of FastLloyd.
    names : iterable of str
        Of `NAMES`, in the order in which they run.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.simulation import run_simulation
    from ray import cloudpickle

    for module in (__name__, Size.__module__):  # workers do not find these files by themselves
        cloudpickle.register_pickle_by_value(sys.modules[module])
    costs: dict[str, Cost] = {}
    # Made before Ray forks its processes: a fork while another thread is inside BLAS can hang.
    runs = Runs(size, trust)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        runs.warm_up(grid)
        for name in names:
            costs[name] = runs.cost(grid, name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(
            server_app,
            client_app(size, ClientPolicy.for_simulation()),
            num_supernodes=size.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False},
            },
        )
    return costs


def _send_back(size: Size, message: Message, context: Context) -> Message:
    """Answer a FedAvg round as it was asked."""
    metrics = MetricRecord({"num-examples": len(size.load(context))})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)


def _evaluate(size: Size, message: Message, context: Context) -> Message:
    """Answer FedAvg's evaluation."""
    metrics = MetricRecord({"num-examples": len(size.load(context)), "loss": 0.0})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
