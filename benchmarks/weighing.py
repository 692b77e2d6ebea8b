"""What a run weighs: the bytes of its messages by round trip, and the memory of this process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.serde import message_to_proto

from flower_kmeans.protocol.messages import Answer, decode_reply
from flower_kmeans.protocol.wire import RECORD, from_content
from flower_kmeans.simulation.in_process import InProcessGrid


@dataclass
class Trip:
    """What was weighed of one round trip, messages out and answers back.

    Attributes
    ----------
    asked, answered : list of int
        Bytes of whole messages as Flower serialises them, without the identifier that the link
        gives a message on its way.
    words : list of int
        Bytes of the protected words alone, in the answers that have any.
    """

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)


class WeighingGrid(InProcessGrid):
    """An in-process grid that weighs messages and counts round trips.

    Parameters
    ----------
    client_app : callable
    n_nodes : int
    weighs : callable, optional
        From the name of a round trip and the number of a client to whether its messages are
        weighed, for runs whose time or memory is measured; by default all are.

    Attributes
    ----------
    trips : dict of str to Trip
        By kind and round, such as "enrol" and "ask 3", in their order.
    asked, answered : dict of str to dict of int to int
        Bytes of the encoded messages, without what Flower adds, of every client.
    pushes : list of int
        Numbers of messages of each round trip.
    """

    def __init__(
        self,
        client_app: Callable[[Message, Context], Message],
        n_nodes: int,
        weighs: Callable[[str, int], bool] = lambda trip, client: True,
    ) -> None:
        def weighed(message: Message, context: Context) -> Message:
            reply = client_app(message, context)
            name, client = self._whose(message)
            self.answered.setdefault(name, {})[client] = payload_of(reply)
            if weighs(name, client):
                trip = self.trips.setdefault(name, Trip())
                trip.answered.append(_bytes_of(reply))
                answer = decode_reply(from_content(reply.content))
                if isinstance(answer, Answer):
                    trip.words.append(len(answer.words) + sum(map(len, answer.sealed)))
            return reply

        super().__init__(weighed, n_nodes)
        self.trips: dict[str, Trip] = {}
        self.asked: dict[str, dict[int, int]] = {}
        self.answered: dict[str, dict[int, int]] = {}
        self._weighs = weighs
        self._clients = {node: client for client, node in enumerate(sorted(self.get_node_ids()))}

    @property
    def pushes(self) -> list[int]:
        """Numbers of messages of each round trip."""
        return [len(sizes) for sizes in self.asked.values()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Weigh what the server sends."""
        listed = list(messages)
        for message in listed:
            name, client = self._whose(message)
            self.asked.setdefault(name, {})[client] = payload_of(message)
            if self._weighs(name, client):
                self.trips.setdefault(name, Trip()).asked.append(_bytes_of(message))
        return super().push_messages(listed)

    def _whose(self, message: Message) -> tuple[str, int]:
        return message.metadata.group_id, self._clients[message.metadata.dst_node_id]


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
