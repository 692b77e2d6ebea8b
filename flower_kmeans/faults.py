"""Faults for simulations: clients that drop, crash, answer late, twice, or wrongly.

A fault is produced where it would arise: the client's side raises or spoils its reply, and what
the network would do (lose, delay, repeat) is done to real messages between client and strategy.
The strategy and the honest clients run their ordinary code.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.federation.exchange import receive
from flower_kmeans.protocol.in_process import FlowerRun
from flower_kmeans.federation.messages import RECORD_KEY

FaultKind = Literal["drop", "crash", "late", "twice", "shape", "type", "round", "run"]
FaultHop = Literal["answer", "open"]
_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
_HOPS: tuple[FaultHop, ...] = get_args(FaultHop)
_NETWORK = ("drop", "late", "twice")
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
        ``"drop"`` the message never reaches the client; ``"crash"`` the client raises;
        ``"late"`` its answer comes after the round is over; ``"twice"`` it comes again;
        ``"shape"``, ``"type"``, ``"round"`` and ``"run"`` the answer has the wrong number of
        words, the wrong type, or belongs to another round or another run.
    hop : {"answer", "open"}, default: "answer"
        Which of the round's messages: the question, or the one that asks to open the round's sum
        in a hop of its own, where and whenever there is one (``opening``).
    """

    client: int
    round: int
    kind: FaultKind
    hop: FaultHop = "answer"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigurationError(f"Expected kind from {_KINDS}. Got {self.kind!r} instead.")
        if self.client < 0 or self.round < -1:
            raise ConfigurationError(
                "Expected client >= 0 and round >= -1. "
                f"Got client={self.client} and round={self.round} instead."
            )
        if self.hop not in _HOPS:
            raise ConfigurationError(f"Expected hop from {_HOPS}. Got {self.hop!r} instead.")
        if self.hop == "open" and self.round < 1:
            raise ConfigurationError(
                f"Expected round >= 1 with hop='open'. Got round={self.round} instead."
            )


class InjectedCrashError(RuntimeError):
    """Raised by a simulated client that crashes."""


def _moment_of(message: Message) -> tuple[int, FaultHop] | None:
    """Return the round and the hop that a message belongs to, as faults name them."""
    record = message.content.config_records.get(RECORD_KEY)
    if record is None:
        return None
    kind = str(record.get("kind"))
    if kind in ("round", "open"):
        return int(record["t"]), "open" if kind == "open" else "answer"  # type: ignore[arg-type]
    t = {"enrol": 0, "finish": -1}.get(kind)
    return None if t is None else (t, "answer")


class FaultyClientApp(ClientApp):
    """A ClientApp whose clients misbehave as told."""

    def __init__(self, app: ClientApp, faults: Sequence[Fault]) -> None:
        super().__init__()
        self._app = app
        self._faults = {(fault.client, fault.round, fault.hop): fault.kind for fault in faults}

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the client would, or as its fault wants it."""
        client, moment = int(context.node_config["partition-id"]), _moment_of(message)
        kind = None if moment is None else self._faults.get((client, *moment))
        if kind == "crash":
            raise InjectedCrashError("The client was told to crash.")
        if kind == "drop":
            reply = Message(RecordDict(), reply_to=message)
        else:
            reply = self._app(message, context)
        if kind in _NETWORK:
            reply.content[_TAG] = ConfigRecord({"kind": str(kind)})
        elif kind is not None:
            _spoil(reply.content.config_records[RECORD_KEY], kind)
        return reply


def _spoil(record: ConfigRecord, kind: str) -> None:
    # Of a reply to open: its words are the correction, and its round that of the share.
    words = "correction" if "correction" in record and "words" not in record else "words"
    values = record.get(words, b"")
    context, share_t = record.get("ctx", b""), record.get("share_t")
    if kind == "shape" and isinstance(values, bytes):
        record[words] = values[:-8]
    elif kind == "type":
        record[words] = "words"
    elif kind == "round" and isinstance(share_t, int) and "ctx" not in record:
        record["share_t"] = share_t + 1
    elif kind == "round" and isinstance(context, bytes):
        record["ctx"] = bytes(b ^ 1 for b in context)
    elif kind == "run":
        record["doc_hash"] = bytes(32)


class FaultyGrid(Grid):
    """A grid that loses, delays and repeats the replies that a FaultyClientApp has tagged."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._lost: set[str] = set()
        self._held: list[Message] = []
        self._late: list[Message] = []

    def set_run(self, run: FlowerRun) -> None:
        """Set the run of the wrapped grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> FlowerRun:
        """Run information."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message; kept for Flower's interface."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages to the wrapped grid; what was held back until then will arrive."""
        self._late += self._held
        self._held = []
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield replies, with those of earlier rounds that came late first."""
        ids = list(message_ids)
        late, self._late = self._late, []
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
        """Return the messages whose replies this grid holds back or has lost."""
        ids = set(message_ids)
        inner = getattr(self._grid, "known_lost", None)
        return (self._lost & ids) | (inner(ids) if inner is not None else set())

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and return their replies."""
        pushed = {str(i): -1 for i in self.push_messages(messages)}
        seconds = math.inf if timeout is None else timeout
        return [reply for _, reply in receive(self, pushed, seconds)]

    @staticmethod
    def _untag(reply: Message) -> str | None:
        if not reply.has_content():
            return None
        tag = reply.content.pop(_TAG, None)
        return str(tag["kind"]) if isinstance(tag, ConfigRecord) else None
