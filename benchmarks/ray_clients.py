"""The cost of a client in each round of a simulation on Ray, and its parts.

    python benchmarks/ray_clients.py [--clients 1000 10000] [--shapes 15x2] [--rounds 2]

FastLloyd under an oblivious server by ``simulate(engine="ray")``: seconds of a clock
for the whole run, and for a client's message in rounds after the first. Then the same
run in one process, where each message is packed and unpacked as it is for a worker, in
milliseconds of the processor, which other work on the machine disturbs less: the client
itself, what packs and unpacks its message with its context on the way there and back,
and the rest, which is the server's part and the grid's.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from weighing import Size, peak

from bench import script, tables
from bench.harness import Options, Row, grid, process_suite
from flower_kmeans import ClientPolicy, kmeans_client_app, simulate
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity

TRUST = "oblivious-server"


@dataclass(frozen=True)
class Task:
    """One run on Ray, and one in this process."""

    shape: str
    clients: int
    rounds: int
    run: int


class Packed:
    """Answers of an app whose messages and contexts travel as those of a Ray task do.

    ``seconds`` has the processor's seconds of packing and of the client.
    """

    def __init__(self, app: ClientApp) -> None:
        from ray import cloudpickle

        self._app, self._pickle = app, cloudpickle
        self.seconds = {"packing": 0.0, "client": 0.0}

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer one message."""
        began = time.process_time()
        there = self._pickle.loads(self._pickle.dumps((message, context)))
        arrived = time.process_time()
        reply = self._app(*there)
        answered = time.process_time()
        reply, after = self._pickle.loads(self._pickle.dumps((reply, there[1])))
        self.seconds["packing"] += arrived - began + time.process_time() - answered
        self.seconds["client"] += answered - arrived
        context.state = after.state
        return reply


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run FastLloyd on Ray, then here."""
    size = Size.of(task.shape, task.clients, rounds=task.rounds)
    ends, started = list[float](), time.perf_counter()
    strategy = size.fastlloyd(lambda _: ends.append(time.perf_counter()), TRUST)
    simulate(strategy, [size.records_of(i) for i in range(size.clients)], engine="ray")
    whole = time.perf_counter() - started
    app = Packed(
        kmeans_client_app(size.load, ClientPolicy.for_simulation(), lambda *_: None)
    )
    here = list[tuple[float, float, float]]()
    strategy = size.fastlloyd(
        lambda _: here.append((time.process_time(), *app.seconds.values())), TRUST
    )
    with task_identity():
        strategy.start(InProcessGrid(app, size.clients))
    each = np.diff(here, axis=0).mean(axis=0) / size.clients
    return {
        "whole": whole,
        "clock": float(np.diff(ends).mean()) / size.clients,
        "packing": float(each[1]),
        "client": float(each[2]),
        "rest": float(each[0] - each[1] - each[2]),
        "peak": peak(),
        "complete": int(strategy.report.answers == [size.clients] * size.rounds),
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the run of each size with the shortest rounds."""

    def shown(name: str, factor: float, digits: int) -> Any:
        return lambda of: (
            f"{factor * min(of, key=lambda row: row['clock'])[name]:.{digits}f}"
        )

    return tables.by_key(
        rows,
        {"k x d": "shape", "clients": "clients", "rounds": "rounds"},
        {
            "run s": shown("whole", 1, 0),
            "a client's round, ms": shown("clock", 1e3, 2),
            "CPU ms: client": shown("client", 1e3, 2),
            "packing": shown("packing", 1e3, 2),
            "rest": shown("rest", 1e3, 2),
            "peak MB": shown("peak", 2**-20, 0),
        },
        (0, 1),
    )


SUITE = process_suite(
    "ray-clients",
    "Whole runs of FastLloyd on Ray: seconds of a clock, and milliseconds for a client in each "
    "round after the first. The processor's milliseconds are of the same run in one process, where "
    "messages and contexts are packed and unpacked as for a worker.",
    Task,
    {
        **dict.fromkeys(("whole", "clock", "packing", "client", "rest"), float),
        **dict.fromkeys(("peak", "complete"), int),
    },
    lambda options: grid(
        Task, options, shape=("15x2", "100x784"), clients=(40, 1_000), rounds=(3,)
    ),
    measure,
    tables_of,
)


if __name__ == "__main__":
    script.main(SUITE)
