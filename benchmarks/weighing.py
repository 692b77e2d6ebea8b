"""Clients with a few uniform records, the bytes of their messages, and memory of this process."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from numpy.typing import NDArray

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.protocol.wire import RECORD
from flower_kmeans.simulation.in_process import InProcessGrid, task_identity
from flower_kmeans.strategies import FastLloyd, KMeansStrategy, RoundInfo


@dataclass(frozen=True)
class Size:
    """The numbers that a run's cost depends on; ``records`` are those of each client."""

    clients: int
    clusters: int = 15
    columns: int = 2
    records: int = 20
    rounds: int = 7

    @classmethod
    def of(cls, shape: str, clients: int, **more: int) -> "Size":
        """Return numbers with clusters and columns of a shape such as "15x2"."""
        return cls(clients, *map(int, shape.split("x")), **more)

    @property
    def reply(self) -> int:
        """Bytes of the numbers in a reply of FastLloyd: sums, counts and the checksum."""
        return 8 * (self.clusters * (self.columns + 1) + 1)

    def box(self) -> Box:
        """Return the domain."""
        return Box(np.full(self.columns, -1.0), np.full(self.columns, 1.0))

    def load(self, context: Context) -> NDArray[np.float64]:
        """Return a client's records (records, columns)."""
        return self.records_of(int(context.node_config["partition-id"]))

    def records_of(self, partition: int) -> NDArray[np.float64]:
        """Return the records of a partition."""
        source = np.random.default_rng(partition)
        return source.uniform(-1, 1, (self.records, self.columns))

    def fastlloyd(self, on_round: Callable[[RoundInfo], None], trust: str) -> FastLloyd:
        """Return the private strategy, with relayed keys."""
        return FastLloyd(
            self.clusters,
            self.box(),
            PrivacyBudget(1.0),
            n_records=self.clients * self.records,
            n_clients=self.clients,
            n_rounds=self.rounds,
            relocation=False,  # whose replies are those of all Lloyd algorithms
            trust=trust,
            keys="relayed",
            on_round=on_round,
        )

    def over(self, strategy: KMeansStrategy) -> "WeighingGrid":
        """Run a strategy over the clients in this process, and return the grid."""
        app = kmeans_client_app(
            self.load, ClientPolicy.for_simulation(), lambda *_: None
        )
        grid = WeighingGrid(app, self.clients)
        with task_identity():
            strategy.start(grid)
        return grid


class WeighingGrid(InProcessGrid):
    """An in-process grid that weighs messages by round trip, such as "enrol" and "ask 3".

    ``asked`` and ``answered`` have the bytes of all encoded messages, without what
    Flower adds.
    """

    def __init__(
        self, client_app: Callable[[Message, Context], Message], n_nodes: int
    ) -> None:
        def answer(message: Message, context: Context) -> Message:
            reply = client_app(message, context)
            self.answered[message.metadata.group_id].append(payload_of(reply))
            return reply

        super().__init__(answer, n_nodes)
        self.asked: dict[str, list[int]] = defaultdict(list)
        self.answered: dict[str, list[int]] = defaultdict(list)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Weigh the messages that the server sends."""
        listed = list(messages)
        for message in listed:
            self.asked[message.metadata.group_id].append(payload_of(message))
        return super().push_messages(listed)


def payload_of(message: Message) -> int:
    """Return the bytes of a message as it was encoded, without what Flower adds."""
    header = message.content[RECORD]
    return int(header["n"]) if "n" in header else len(header["m"])


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return _from_linux("VmRSS")


def peak() -> int:
    """Return the most resident memory that this process had since it began, in bytes."""
    # A new process inherits ru_maxrss from its parent, so it is not used.
    return _from_linux("VmHWM")


def _from_linux(name: str) -> int:
    lines = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
    )
    return 2**10 * int(lines[name].split()[0])
