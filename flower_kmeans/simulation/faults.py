"""Faults for simulations: clients that drop, crash, answer late, twice, or wrongly.

Faults arise where they would in a deployment: the client's side raises or changes its
reply, and faults of the network (loss, delay, repetition) affect real messages between
client and strategy. The strategy and the honest clients run their ordinary code.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.protocol.messages import (
    Abort,
    Add,
    Added,
    Answer,
    Hold,
    Keys,
    Reply,
    decode_reply,
    decode_request,
)
from flower_kmeans.protocol.wire import (
    RECORD,
    VERSION,
    encode,
    from_content,
    to_content,
)
from flower_kmeans.simulation.in_process import App, PolledGrid, Run

FaultKind = Literal["drop", "crash", "late", "twice", "shape", "type", "round", "run"]
FaultTrip = Literal["ask", "add"]
_NETWORK = ("drop", "late", "twice")
_LAST = "evaluate.kmeans"  # the type of messages after which a client has nothing to do
_TAG = "fault"


@dataclass(frozen=True)
class Fault:
    """One client's misbehaviour in one round.

    Parameters
    ----------
    client : int
        Partition id of the client.
    round : int
        1 to T for the rounds, 0 for the enrolment, -1 for the final delivery.
    kind : str
        ``"drop"``: the message never reaches the client. ``"crash"``: the client raises.
        ``"late"``: its answer comes after the round trip is over. ``"twice"``: its answer
        comes twice. ``"shape"``, ``"type"``, ``"round"`` or ``"run"``: the answer has the
        wrong length or type, or belongs to another round or run.
    trip : {"ask", "add"}, default: "ask"
        The message of the round: the query, or the request for a committee member's
        sum-share.
    """

    client: int
    round: int
    kind: FaultKind
    trip: FaultTrip = "ask"

    def __post_init__(self) -> None:
        _require_known("kind", self.kind, get_args(FaultKind))
        _require_known("trip", self.trip, get_args(FaultTrip))
        if self.client < 0 or self.round < -1:
            raise ConfigurationError(
                "Expected client >= 0 and round >= -1. "
                f"Got client={self.client} and round={self.round} instead."
            )
        if self.trip == "add" and self.round < 1:
            raise ConfigurationError(
                f"Expected round >= 1 with trip='add'. Got round={self.round} instead."
            )


def _require_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(
            f"Expected {name} from {known}. Got {value!r} instead."
        )


class InjectedCrashError(RuntimeError):
    """Error of a simulated client that crashes."""


def _moment_of(message: Message) -> tuple[int, FaultTrip] | None:
    """Return the round and the trip of a message, as in a `Fault`; ``None`` if it has none."""
    try:
        request = decode_request(from_content(message.content))
    except MessageError:
        return None
    if isinstance(request, Keys | Hold | Abort):
        return None
    if message.metadata.message_type == _LAST:
        return -1, "ask"
    trip: FaultTrip = "add" if isinstance(request, Add) else "ask"
    # Requests of a set-up have no round.
    return getattr(request, "t", 0), trip


class FaultyClientApp:
    """An app whose clients have faults."""

    def __init__(self, app: App, faults: Sequence[Fault]) -> None:
        self._app = app
        self._faults = dict[tuple[int, int, FaultTrip], FaultKind]()
        for fault in faults:
            self._faults[fault.client, fault.round, fault.trip] = fault.kind
        self._clients = {fault.client for fault in faults}

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the client's reply, or its reply with the fault."""
        kind = self._kind_of(message, context)
        if kind == "crash":
            raise InjectedCrashError("The client crashes by its fault.")
        if kind == "drop":
            # The grid drops the reply: neither client nor strategy sees the exchange.
            reply = Message(RecordDict(), reply_to=message)
        else:
            reply = self._app(message, context)
        if kind in _NETWORK:
            reply.content[_TAG] = ConfigRecord({"kind": str(kind)})
        elif kind is not None:
            reply.content = _spoilt(reply.content, kind)
        return reply

    def _kind_of(self, message: Message, context: Context) -> FaultKind | None:
        """Return the kind of a client's fault at a message, or ``None``."""
        client = int(context.node_config["partition-id"])
        if client not in self._clients:
            return None
        moment = _moment_of(message)
        if moment is None:
            return None
        return self._faults.get((client, *moment))


def _spoilt(content: RecordDict, kind: str) -> RecordDict:
    if kind == "type":
        return RecordDict({RECORD: ConfigRecord({"v": VERSION, "m": "words"})})
    reply = decode_reply(from_content(content))
    if kind == "run":
        changed: Reply = msgspec.structs.replace(reply, doc_hash=bytes(32))
    elif isinstance(reply, Answer) and kind == "round":
        # Only the tag of an answer identifies its round.
        other_tag = bytes(byte ^ 1 for byte in reply.tag)
        changed = msgspec.structs.replace(reply, tag=other_tag)
    elif isinstance(reply, Answer):
        changed = msgspec.structs.replace(
            reply, words=reply.words[:-8], sealed=reply.sealed[:-1]
        )
    elif isinstance(reply, Added):
        share = reply.share[:-8]
        if kind == "round":
            share = bytes(len(reply.share))
        changed = msgspec.structs.replace(reply, share=share)
    elif kind == "shape":
        return to_content(encode(reply)[:-1])
    else:  # the reply belongs to no round
        return content
    return to_content(encode(changed))


class FaultyGrid(PolledGrid):
    """A grid that loses, delays and repeats the tagged replies of a FaultyClientApp."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid.run)
        self._grid = grid
        self.answers_all = getattr(grid, "answers_all", False)
        self._lost: set[str] = set()
        self._held: list[Message] = []
        self._late: list[Message] = []

    def set_run(self, run: Run) -> None:
        """Set the run of both grids."""
        super().set_run(run)
        self._grid.set_run(run)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages to the wrapped grid. Late replies arrive from then on."""
        self._late += self._held
        self._held = []
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield replies: first the late ones of earlier round trips."""
        ids = list(message_ids)
        late = self._late
        self._late = []
        yield from late
        for reply in self._grid.pull_messages(ids):
            kind = self._untag(reply)
            reply_to = reply.metadata.reply_to_message_id
            if kind == "drop":
                self._lost.add(reply_to)
            elif kind == "late":
                self._lost.add(reply_to)
                self._held.append(reply)
            else:
                yield reply
                if kind == "twice":
                    yield reply

    def known_lost(self, message_ids: Iterable[str]) -> set[str]:
        """Return the messages whose replies are lost or held back, also by the wrapped grid."""
        ids = set(message_ids)
        inner = getattr(self._grid, "known_lost", None)
        lost = self._lost & ids
        if inner is not None:
            lost |= inner(ids)
        return lost

    @staticmethod
    def _untag(reply: Message) -> str | None:
        if not reply.has_content():
            return None
        tag = reply.content.pop(_TAG, None)
        if not isinstance(tag, ConfigRecord):
            return None
        return str(tag["kind"])
