"""Clients with a few uniform records, the bytes of their messages, and memory of this process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.common.serde import message_to_proto
from numpy.typing import NDArray

from flower_kmeans import Box, ClientPolicy, PrivacyBudget, kmeans_client_app
from flower_kmeans.protocol.messages import Answer, decode_reply
from flower_kmeans.protocol.wire import RECORD, from_content
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
        source = np.random.default_rng(int(context.node_config["partition-id"]))
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

    def over(self, strategy: KMeansStrategy, **options: Any) -> "WeighingGrid":
        """Run a strategy over the clients in this process, and return the grid."""
        app = kmeans_client_app(self.load, ClientPolicy.for_simulation(), lambda *_: None)
        return weighed(strategy, app, self.clients, **options)


@dataclass
class Trip:
    """Bytes of a round trip's messages, as Flower serialises them but for the link's number."""

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)  # of the protected words in answers alone


class WeighingGrid(InProcessGrid):
    """An in-process grid that weighs messages and counts round trips.

    ``weighs`` says of the name of a round trip whether its messages are weighed, for runs whose
    time or memory is measured. ``trips`` has these by kind and round, such as "enrol" and "ask 3";
    ``asked`` and ``answered`` have the bytes of all encoded messages, without what Flower adds.
    """

    def __init__(
        self,
        client_app: Callable[[Message, Context], Message],
        n_nodes: int,
        weighs: Callable[[str], bool] = lambda trip: True,
    ) -> None:
        def answer(message: Message, context: Context) -> Message:
            reply = client_app(message, context)
            name = message.metadata.group_id
            self.answered.setdefault(name, []).append(payload_of(reply))
            if weighs(name):
                trip = self.trips.setdefault(name, Trip())
                trip.answered.append(_bytes_of(reply))
                decoded = decode_reply(from_content(reply.content))
                if isinstance(decoded, Answer):
                    trip.words.append(len(decoded.words) + sum(map(len, decoded.sealed)))
            return reply

        super().__init__(answer, n_nodes)
        self.trips: dict[str, Trip] = {}
        self.asked: dict[str, list[int]] = {}
        self.answered: dict[str, list[int]] = {}
        self._weighs = weighs

    @property
    def pushes(self) -> list[int]:
        """Numbers of messages of each round trip."""
        return [len(sizes) for sizes in self.asked.values()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Weigh what the server sends."""
        listed = list(messages)
        for message in listed:
            name = message.metadata.group_id
            self.asked.setdefault(name, []).append(payload_of(message))
            if self._weighs(name):
                self.trips.setdefault(name, Trip()).asked.append(_bytes_of(message))
        return super().push_messages(listed)


def weighed(
    strategy: KMeansStrategy,
    client_app: Callable[[Message, Context], Message],
    n_nodes: int,
    **options: Any,
) -> WeighingGrid:
    """Run a strategy once in this process, and return the grid with its messages' weights."""
    grid = WeighingGrid(client_app, n_nodes, **options)
    with task_identity():
        strategy.start(grid)
    return grid


def payload_of(message: Message) -> int:
    """Return the bytes of a message as it was encoded, without what Flower adds."""
    header = message.content[RECORD]
    return int(header["n"]) if "n" in header else len(header["m"])


def _bytes_of(message: Message) -> int:
    return len(message_to_proto(message).SerializeToString())


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return _from_linux("VmRSS")


def peak() -> int:
    """Return the most resident memory that this process had since it began, in bytes."""
    # Not ru_maxrss, which a new process takes over from the one that started it.
    return _from_linux("VmHWM")


def _from_linux(name: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 2**10 * int(lines[name].split()[0])
