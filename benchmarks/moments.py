"""What the messages of FedDP-KMeans weigh with many columns: ``python benchmarks/moments.py``.

One whole run with few clients and few records, neither of which a message's size depends on. Bytes
are those of whole messages, the largest of a hop.
"""

import argparse
import logging
from collections.abc import Iterable, Iterator

import numpy as np
from flwr.app import Message
from flwr.common.serde import message_to_proto

from flower_kmeans import Ball, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.federation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import FedDPKMeans

N_CLIENTS = 5


class WeighingGrid(InProcessGrid):
    """A grid that keeps how many bytes went each way, by hop."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.hops: dict[str, dict[str, list[int]]] = {}
        self._hop: dict[str, str] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Weigh what the server sends."""
        listed = list(messages)
        names = [_name(message) for message in listed]
        for name, message in zip(names, listed, strict=True):
            self._weigh(name, "to a client", message)
        ids = list(super().push_messages(listed))
        self._hop |= dict(zip(ids, names, strict=True))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Weigh what clients answer."""
        for reply in super().pull_messages(message_ids):
            self._weigh(self._hop[reply.metadata.reply_to_message_id], "from a client", reply)
            yield reply

    def _weigh(self, name: str, way: str, message: Message) -> None:
        size = len(message_to_proto(message).SerializeToString())
        self.hops.setdefault(name, {}).setdefault(way, []).append(size)


def _name(message: Message) -> str:
    fields = message.content["kmeans"]
    return " ".join(str(fields[key]) for key in ("kind", "t") if key in fields)


def weigh(d: int, k: int, m: int, trust: str) -> None:
    """Run it once and print a line for every hop."""
    rng = np.random.default_rng(0)
    points = 0.1 * rng.normal(size=(m + N_CLIENTS, d))
    strategy = FedDPKMeans(
        k,
        Ball(4.0, np.zeros(d)),
        PrivacyBudget(1.0),
        10_000,
        server_data=points[:m],
        n_clients=N_CLIENTS,
        trust=trust,
    )
    app = kmeans_client_app(
        lambda context: points[m:][int(context.node_config["partition-id"])][None],
        ClientPolicy.for_simulation(),
        lambda result, context: None,
    )
    grid = WeighingGrid(app, N_CLIENTS)
    with task_identity():
        strategy.start(grid)
    print(f"{trust}: {d} columns, k = {k}, {m} server points, {N_CLIENTS} clients")
    print(f"{'hop':>8} {'to a client':>12} {'from a client':>14}   answers as large")
    for name, ways in grid.hops.items():
        answers = ways["from a client"]
        most = max(answers)
        large = sum(size > 0.9 * most for size in answers)
        print(f"{name:>8} {max(ways['to a client']):>12,} {most:>14,}   {large}")
    print(f"d x d words: {8 * d * d:,} bytes; d (d + 1) / 2 words: {4 * d * (d + 1):,}\n")


def main() -> None:
    """Weigh both trust models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=784)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--server-points", type=int, default=100)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for trust in ("distributed-noise", "trusted-server"):
        weigh(options.columns, options.clusters, options.server_points, trust)


if __name__ == "__main__":
    main()
