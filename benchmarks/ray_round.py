"""A private round on Ray against a FedAvg round that carries the same arrays.

    python benchmarks/ray_round.py [--clients 10 40] [--rounds 7] [--repeats 3]

One Flower simulation on Ray runs both strategies in turn, on the same workers: FastLloyd with an
oblivious server (masks, noise, transcript, a client's step), and Flower's FedAvg whose clients load
the same records and send back, unchanged, an array of as many 8-byte numbers. A round's time runs
from the end of the round before to its own end at the server, so set-up and delivery are not in it;
the first round is left out. Times are means over all repeats, because Flower's simulation looks for
messages every 0.1 s and single rounds jump by that much; below 1 the private round is the faster
one. FedAvg's clients compute nothing; a private client's records are few, but masks, the noisy sum
of the round before and its new centroids are as large as the array: the ratio shows that work where
arrays are large. For the step over many records see ``client_step.py``.
"""

import argparse
import logging
import os
import time
import warnings
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, register_kmeans
from flower_kmeans.strategies import FastLloyd, RoundInfo

SHAPES = ("15x2", "64x32", "100x784")


def load_records(n_records: int, n_features: int, context: Context) -> NDArray[np.float64]:
    """Return a client's records."""
    source = np.random.default_rng(int(context.node_config["partition-id"]))
    return source.uniform(-1, 1, (n_records, n_features))


def send_back(n_records: int, n_features: int, message: Message, context: Context) -> Message:
    """Answer a FedAvg round as it was asked."""
    records = load_records(n_records, n_features, context)
    metrics = MetricRecord({"num-examples": len(records)})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    return Message(content, reply_to=message)


def client_app(n_records: int, n_features: int) -> ClientApp:
    """Return an app that takes part in both."""
    app = ClientApp()
    app.train()(partial(send_back, n_records, n_features))
    register_kmeans(
        app, partial(load_records, n_records, n_features), ClientPolicy.for_simulation()
    )
    return app


class Clock:
    """The times at which rounds ended."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[float]] = {"FastLloyd": [], "FedAvg": []}
        self._ends: list[float] = []

    def tick(self) -> None:
        """Note that a round has ended."""
        self._ends.append(time.perf_counter())

    def close(self, name: str) -> None:
        """Keep the rounds of one run."""
        self.rounds[name].extend(np.diff(self._ends))
        self._ends.clear()


def fastlloyd(k: int, d: int, clients: int, records: int, rounds: int, clock: Clock) -> FastLloyd:
    """Return the private strategy."""

    def tell(_: RoundInfo) -> None:
        clock.tick()

    return FastLloyd(
        k,
        Box(np.full(d, -1.0), np.full(d, 1.0)),
        PrivacyBudget(1.0),
        n_records=clients * records,
        n_clients=clients,
        n_rounds=rounds,
        on_round=tell,
    )


def run_fedavg(grid: Grid, clock: Clock, k: int, d: int, clients: int, rounds: int) -> None:
    """Run FedAvg once, with arrays of as many bytes as a masked reply."""

    def tell(server_round: int, _: ArrayRecord) -> None:
        if server_round:  # 0 is before the first round
            clock.tick()

    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_evaluate_nodes=0,
        min_available_nodes=clients,
    )
    arrays = ArrayRecord([np.zeros(k * (d + 1) + 1)])
    strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=tell)
    clock.close("FedAvg")


def measure(
    k: int, d: int, clients: int, records: int, rounds: int, repeats: int
) -> dict[str, list[float]]:
    """Run one simulation and return the rounds' seconds by strategy."""
    from flwr.simulation import run_simulation

    clock = Clock()
    # Made before Ray forks its processes: a fork while another thread is inside BLAS can hang.
    strategy = fastlloyd(k, d, clients, records, rounds, clock)
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        for _ in range(repeats):
            strategy.start(grid)
            clock.close("FastLloyd")
            run_fedavg(grid, clock, k, d, clients, rounds)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run_simulation(
            server_app,
            client_app(records, d),
            num_supernodes=clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    return clock.rounds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="clusters x columns")
    parser.add_argument("--records", type=int, default=100, help="of each client")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each strategy")
    parser.add_argument("--verbose", action="store_true", help="show what Flower logs")
    options = parser.parse_args()
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.INFO if options.verbose else logging.ERROR)
    lines = [
        "| k | d | clients | payload bytes | FedAvg ms | FastLloyd ms | ratio |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for shape in options.shapes:
        k, d = (int(number) for number in shape.split("x"))
        for clients in options.clients:
            seconds = measure(k, d, clients, options.records, options.rounds, options.repeats)
            own, other = (1e3 * float(np.mean(seconds[s])) for s in ("FastLloyd", "FedAvg"))
            cells = (k, d, clients, 8 * (k * (d + 1) + 1), f"{other:.0f}", f"{own:.0f}")
            lines.append("| " + " | ".join(map(str, cells)) + f" | {own / other:.2f} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
