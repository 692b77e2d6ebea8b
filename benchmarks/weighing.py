"""What a run weighs: the bytes of its messages, hop by hop, and the memory of this process."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.serde import message_to_proto

from flower_kmeans.protocol.in_process import InProcessGrid


@dataclass
class Hop:
    """What was weighed of one hop, messages out and answers back.

    Attributes
    ----------
    asked, answered : list of int
        Bytes of whole messages as Flower serialises them, without the identifier that the link
        gives a message on its way.
    words : list of int
        Bytes of the masked words alone, in the answers that have any.
    """

    asked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)


class WeighingGrid(InProcessGrid):
    """An in-process grid that weighs messages and counts hops.

    Parameters
    ----------
    client_app : callable
    n_nodes : int
    weighs : callable, optional
        From the name of a hop and the number of a client to whether its messages are weighed, for
        runs whose time or memory is measured; by default all are.

    Attributes
    ----------
    hops : dict of str to Hop
        By kind and round, such as "enrol" and "round 3", in their order.
    pushes : list of int
        Numbers of messages that were sent together; none is 0.
    """

    def __init__(
        self,
        client_app: Callable[[Message, Context], Message],
        n_nodes: int,
        weighs: Callable[[str, int], bool] = lambda hop, client: True,
    ) -> None:
        def weighed(message: Message, context: Context) -> Message:
            reply = client_app(message, context)
            if hop := self._hop_of(message):
                hop.answered.append(_bytes_of(reply))
                if "words" in (fields := reply.content["kmeans"]):
                    hop.words.append(len(fields["words"]))
            return reply

        super().__init__(weighed, n_nodes)
        self.hops: dict[str, Hop] = {}
        self.pushes: list[int] = []
        self._weighs = weighs
        self._clients = {node: client for client, node in enumerate(sorted(self.get_node_ids()))}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count a hop, and weigh what the server sends."""
        listed = list(messages)
        if listed:
            self.pushes.append(len(listed))
        for message in listed:
            if hop := self._hop_of(message):
                hop.asked.append(_bytes_of(message))
        return super().push_messages(listed)

    def _hop_of(self, message: Message) -> Hop | None:
        fields = message.content["kmeans"]
        name = " ".join(str(fields[key]) for key in ("kind", "t") if key in fields)
        if not self._weighs(name, self._clients[message.metadata.dst_node_id]):
            return None
        return self.hops.setdefault(name, Hop())


def _bytes_of(message: Message) -> int:
    return len(message_to_proto(message).SerializeToString())


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return _told_by_linux("VmRSS")


def peak() -> int:
    """Return the most resident memory that this process had since it began, in bytes."""
    # Not ru_maxrss, which a new process takes over from the one that started it.
    return _told_by_linux("VmHWM")


def _told_by_linux(name: str) -> int:
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 2**10 * int(told[name].split()[0])
