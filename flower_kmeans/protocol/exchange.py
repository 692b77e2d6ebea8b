"""Round trips over a Flower grid (docs/protocol.md, section 6, rule 8).

Messages are pushed in waves, and replies are polled for (`pulls`), so a reply is handed
on as soon as it is there. If enough nodes have replied, a silent node costs at most the
grace time, twice; after that it is asked, but no trip waits for it. If too few have, a
round trip stays open for missing nodes as long as the patience lasts: a node that comes
back gets the same request again.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.protocol.incidents import MALFORMED
from flower_kmeans.protocol.limits import SHORT, short
from flower_kmeans.protocol.messages import Located, Reply, Request, decode_reply
from flower_kmeans.protocol.pulls import LEAST_GRACE, LONGEST_PAUSE, Pulls
from flower_kmeans.protocol.wire import encode, from_content, to_content

# Flower's own loop sends these requests with these types. All others are queries.
_TYPES = {
    **dict.fromkeys(("ask", "step"), "train.kmeans"),
    **dict.fromkeys(("finish", "close"), "evaluate.kmeans"),
}

CRASHED = "The client or its node failed."
# Class name of the grid of Flower's simulation, because only simulations need its module.
_SIMULATION = "InMemoryGrid"
_LOST_WORKER = "ActorDiedError"  # in the error that Flower makes of Ray's

GRACE_FACTOR = 3.0  # of the grace time, over the median time of the replies
# Flower's simulation searches all messages under way for each node, ten times a second;
# with 10,000 nodes, waves of 100 to 200 doubled its rate.
WAVE = 100
WAVE_BYTES = 128 * 2**20
"""Bytes of a wave at most. The next wave is pushed when at most as many are under way."""
_MOST_SILENCES = 2
PATIENCE = 600.0
"""Seconds for which a round trip with too few replies waits for missing nodes."""
CLAIMS_WAIT = 180.0
"""Seconds for which the set-up waits for further clients once a run has enough."""
_NODE_LOOK = 5.0  # seconds between looks at the connected nodes
_NODE_POLL = 0.5  # the same, in seconds, while new nodes may connect
_RESEND = 15.0  # seconds between two requests to one node
_SHORTEST_PAUSE = 0.02  # seconds
# seconds; after Flower's default of 12 hours a restarted node could still answer messages
# of runs that are long over
_TTL_MARGIN = 10.0

Answered = tuple[int, Reply | str]
"""A node and its reply, or the reason for none."""


@dataclass
class _Node:
    """A node's silences in the trips so far."""

    silences: int = 0  # trips that waited for it in vain
    is_missing: bool = False  # whether it did not reply in the last trip
    is_given_up: bool = False  # a trip with too few replies waited for it in vain

    @property
    def is_awaited(self) -> bool:
        """Whether trips wait for the node: not after one that it missed, nor after two silences."""
        return not self.is_missing and self.silences < _MOST_SILENCES


class _Encoded(NamedTuple):
    """An encoded request, for all nodes that get it."""

    request: Request
    content: RecordDict
    size: int  # bytes
    limit: int  # bytes of a reply
    group: str


class _Outgoing(NamedTuple):
    message: Message
    size: int  # bytes


class _Sent(NamedTuple):
    node_id: int
    size: int  # bytes
    at: float


@dataclass
class _Open:
    """A node that owes a trip its reply."""

    sent_at: float = -math.inf  # time of the last request to it
    # requests that it may still reply to
    under_way: set[str] = field(default_factory=set)
    missing_since: float | None = None  # time of the first sign that it is gone
    is_away: bool = False  # whether it was not connected at the last look
    is_due: bool = False  # whether it must get the request again
    has_failed: bool = False  # whether an error came in place of a reply

    def miss(self, since: float) -> None:
        """Record that a request was lost or not answered in time."""
        if self.missing_since is None:
            self.missing_since = since
        self.is_due = True

    def may_come_back(self, now: float, patience: float) -> bool:
        """Return whether a missing node still has time to come back."""
        return self.missing_since is None or now < self.missing_since + patience

    def may_reply(self, now: float, patience: float) -> bool:
        """Return whether a reply can still come."""
        if self.under_way and not self.is_away:
            return True
        return self.may_come_back(now, patience)

    def may_be_sent(self, now: float, patience: float) -> bool:
        """Return whether the node gets the request again now."""
        if not self.is_due or self.is_away:
            return False
        has_paused = now >= self.sent_at + _RESEND
        return has_paused and self.may_come_back(now, patience)


@dataclass(frozen=True)
class Newcomers:
    """Nodes that connect while the clients of a run enrol."""

    # returns the requests to new nodes
    invite: Callable[[Iterable[int]], Mapping[int, Request]]
    are_all_there: Callable[[], bool]  # whether all expected clients have enrolled


@dataclass
class _Trip:
    """One round trip, while it lasts."""

    kind: str
    requests: Mapping[int, Request]
    newcomers: Newcomers | None
    started: float
    queue: deque[int]  # nodes whose request waits for a wave
    lacking: dict[int, _Open]  # nodes that owe a reply
    pushed: float  # time of the last wave
    next_look: float  # time of the next look at replies
    next_node_look: float  # time of the next look at the connected nodes
    # messages that can still get a reply
    under_way: dict[str, _Sent] = field(default_factory=dict)
    # nodes of messages that were lost or not answered in time
    unanswered: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)  # times of the replies
    enough_since: float | None = None  # time since which enough have replied

    @classmethod
    def begun(
        cls,
        kind: str,
        requests: Mapping[int, Request],
        newcomers: Newcomers | None,
        now: float,
    ) -> "_Trip":
        """Return a trip before its first request."""
        if newcomers is not None:
            requests = dict(requests)
        return cls(
            kind,
            requests,
            newcomers,
            started=now,
            queue=deque(requests),
            lacking={node_id: _Open() for node_id in requests},
            pushed=now,
            next_look=now,
            next_node_look=now,
        )

    @property
    def has_enough(self) -> bool:
        """Whether enough have replied."""
        return self.enough_since is not None

    @property
    def grace(self) -> float:
        """Seconds for which a trip with enough replies waits for a silent node."""
        return _grace(self.seconds)

    def has_room(self, now: float) -> bool:
        """Return whether another wave can be pushed. Overdue messages do not count."""
        since = now - self.grace
        recent = [sent for sent in self.under_way.values() if sent.at > since]
        n_bytes = sum(sent.size for sent in recent)
        return len(recent) <= WAVE and n_bytes <= WAVE_BYTES

    @property
    def nodes_by_message(self) -> dict[str, int]:
        """The node of each message that can still get a reply."""
        return {message_id: sent.node_id for message_id, sent in self.under_way.items()}

    def push(
        self, wave: Iterable[_Outgoing], accepted: Mapping[str, _Sent], now: float
    ) -> None:
        """Record a wave: the messages that the grid accepted, and the others as lost."""
        for message, _ in wave:
            message_id = message.metadata.message_id
            lacking = self.lacking[message.metadata.dst_node_id]
            lacking.sent_at = now
            if message_id in accepted:
                lacking.under_way.add(message_id)
            else:
                lacking.miss(now)
        self.under_way |= accepted
        self.pushed = now
        self.next_look = now

    def look(self, now: float) -> None:
        """Plan the next look at replies.

        Pauses grow with the wait: a slow reply costs few looks, a quick one no delay.
        """
        pause = max(_SHORTEST_PAUSE, (now - self.pushed) / 2)
        self.next_look = now + min(pause, LONGEST_PAUSE)

    def answer(self, node_id: int) -> None:
        """Record a node's reply, to whichever of its messages."""
        for message_id in self.lacking.pop(node_id).under_way:
            self.under_way.pop(message_id, None)

    def fail(self, node_id: int, message_id: str, now: float) -> bool:
        """Record an error in place of a reply; return whether it is the node's first."""
        lacking = self.lacking[node_id]
        is_first = not lacking.has_failed
        lacking.has_failed = True
        lacking.under_way.discard(message_id)
        lacking.miss(now)
        return is_first

    def add(self, requests: Mapping[int, Request]) -> None:
        """Queue requests to new nodes."""
        self.lacking |= {node_id: _Open() for node_id in requests}
        self.queue.extend(requests)
        self.requests = {**self.requests, **requests}

    def drop(self, message_id: str) -> None:
        """Record that a message was lost or not answered in time."""
        sent = self.under_way.pop(message_id)
        self.unanswered[message_id] = sent.node_id
        lacking = self.lacking[sent.node_id]
        lacking.under_way.discard(message_id)
        lacking.miss(sent.at)


class Exchange:
    """The round trips of one run over a grid.

    A node has ``timeout`` seconds to reply to a request. A round trip with too few
    replies stays open for ``patience`` seconds from the first sign that a node is
    missing: an error in its place, its absence, or no reply within the timeout. A node
    that comes back, or whose request was lost, gets the same bytes again. The default
    patience is `PATIENCE`, and 0 in a simulation, where no node comes back.

    With ``awaits_all`` the exchange forgets silences, for runs in which no party can be
    missing.

    A grid whose ``pull_messages`` never waits, such as those of `simulate`, offers
    ``known_lost(ids)``: it returns the messages that will not be answered. This thread
    polls such a grid, and that of Flower's simulation, so that a run can be repeated
    exactly. For any other grid, threads fetch the replies: Flower waits until a reply is
    complete, and one slow upload must not hold up the others. A grid with
    ``answers_all`` answers every message that is not lost, however long it takes: there
    is no grace time.

    A reply to a request that is longer than ``limit_of`` returns is not decoded. Replies
    that only some kinds of runs have are read if they are of ``kinds``; by default all.
    """

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        *,
        limit_of: Callable[[Request], int] = short,
        kinds: Collection[str] | None = None,
        patience: float | None = None,
        awaits_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid = grid
        self.timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._awaits_all = awaits_all
        self._is_simulation = type(grid).__name__ == _SIMULATION
        self._limit_of = limit_of
        self._kinds = kinds
        # most bytes of a node's reply to the last request to it
        self._limits: dict[int, int] = {}
        if patience is None:
            patience = 0.0 if self.is_simulation else PATIENCE
        self.patience = patience
        self._nodes: dict[int, _Node] = {}
        # nodes whose enrolment can still be taken, by message
        self._invited: dict[str, int] = {}
        # Both times hold for the whole run: enrolment waits for new nodes until the former
        # while too few have enrolled, and until the latter once enough have.
        self._newcomers_until = math.inf
        self._claims_until = math.inf
        self._has_grace = not getattr(grid, "answers_all", False)
        known_lost = getattr(grid, "known_lost", None)
        if known_lost is None and self._is_simulation:
            known_lost = _none_lost
        self._pulls = Pulls(grid, known_lost, clock)

    @property
    def is_simulation(self) -> bool:
        """Whether all nodes are simulated, so that no stranger can be among them."""
        return self._is_simulation or getattr(self.grid, "known_lost", None) is not None

    @property
    def has_newcomers(self) -> bool:
        """Whether nodes may connect, or connect again, during a run."""
        return not self.is_simulation or self.patience > 0

    def wait_for_nodes(
        self, n_nodes: int, named: Collection[int] | None = None
    ) -> list[int]:
        """Return the ids of the nodes, as soon as ``n_nodes`` are there or the wait is over.

        If nodes are named, no other node counts.
        """
        deadline = self._clock() + max(self.timeout, self.patience)
        while True:
            found = set(self.grid.get_node_ids())
            if named is not None:
                found &= set(named)
            nodes = sorted(found)
            if len(nodes) >= n_nodes or self._clock() >= deadline:
                return nodes
            self._sleep(min(_NODE_POLL, self.timeout))

    # ------------------------------------------------------------------ messages

    def messages(self, kind: str, requests: Mapping[int, Request]) -> list[Message]:
        """Return requests as Flower messages, which Flower's own loop sends."""
        outgoing = self._messages(kind, requests, requests)
        return [each.message for each in outgoing]

    def replies(
        self, messages: Iterable[Message], sent: Iterable[Message]
    ) -> Iterator[Answered]:
        """Yield each node's first reply to messages that Flower's own loop sent."""
        nodes = {each.metadata.message_id: each.metadata.dst_node_id for each in sent}
        for message in messages:
            node_id = nodes.pop(message.metadata.reply_to_message_id, None)
            if node_id is not None:
                yield node_id, self._read(message)

    def _messages(
        self, kind: str, nodes: Iterable[int], requests: Mapping[int, Request]
    ) -> Iterator[_Outgoing]:
        """Yield the messages to some nodes; a request of many nodes is encoded once."""
        encoded: _Encoded | None = None
        for node_id in nodes:
            request = requests[node_id]
            if encoded is None or request is not encoded.request:
                encoded = self._encoded(kind, request)
            self._limits[node_id] = encoded.limit
            message = Message(
                encoded.content,
                node_id,
                _TYPES.get(kind, "query.kmeans"),
                ttl=self.timeout + _TTL_MARGIN,
                group_id=encoded.group,
            )
            yield _Outgoing(message, encoded.size)

    def _encoded(self, kind: str, request: Request) -> _Encoded:
        data = encode(request)
        group = kind
        if isinstance(request, Located):
            group = f"{kind} {request.t}"
        limit = self._limit_of(request)
        return _Encoded(request, to_content(data), len(data), limit, group)

    def _push(self, outgoing: Iterable[_Outgoing]) -> dict[str, _Sent]:
        """Push messages and return the accepted ones by their ids."""
        listed = list(outgoing)
        if not listed:
            return {}
        pushed = self.grid.push_messages([each.message for each in listed])
        accepted = {str(each) for each in pushed}
        now = self._clock()
        sent = {}
        for message, size in listed:
            message_id = message.metadata.message_id
            if message_id in accepted:
                sent[message_id] = _Sent(message.metadata.dst_node_id, size, now)
        return sent

    # ------------------------------------------------------------------ round trips

    def invite(self, requests: Mapping[int, Request]) -> None:
        """Send enrolments without waiting. Later trips yield the replies."""
        pushed = self._push(self._messages("enrol", requests, requests))
        for message_id, sent in pushed.items():
            self._invited[message_id] = sent.node_id

    @property
    def invited(self) -> Collection[int]:
        """Nodes whose reply to an enrolment may still come."""
        return self._invited.values()

    def trip(
        self,
        kind: str,
        requests: Mapping[int, Request],
        has_enough: Callable[[], bool],
        newcomers: Newcomers | None = None,
    ) -> Iterator[Answered]:
        """Send requests and yield the replies as they arrive.

        The trip ends when all awaited nodes have answered, or at the end of the grace time
        after enough have. While too few have, it stays open for the patience. An error
        from Flower is no answer: the first error of each node is yielded, and an answer
        may follow. Replies to earlier trips are ignored, except enrolments. The method is
        a `trips.Trip`. A request is encoded each time that it is sent.
        """
        trip = _Trip.begun(kind, requests, newcomers, self._clock())
        while True:
            self._push_wave(trip)
            look_time = self._look_at_replies(trip)
            has_arrived = False
            for message in self._pulls.arrived():
                has_arrived = True
                answered = self._take(trip, message, look_time)
                if answered is not None:
                    yield answered

            now = self._clock()
            for message_id in self._come_to_nothing(trip, now):
                trip.drop(message_id)
            if not trip.has_enough and has_enough():
                trip.enough_since = now
            is_complete = self._is_complete(trip)
            waits = self._waits(trip, is_complete)
            if waits and now >= trip.next_node_look:
                self._look_at_nodes(trip, now)

            is_over = not trip.queue and self._is_over(trip, is_complete, now)
            is_timed_out = not waits and now >= trip.started + self.timeout
            if is_over or is_timed_out:
                break
            has_more_to_push = trip.queue and not trip.under_way
            if not has_arrived and not has_more_to_push:
                self._sleep(_SHORTEST_PAUSE)
        self._close(trip)

    # ------------------------------------------------------- steps of a trip: requests

    def _push_wave(self, trip: _Trip) -> None:
        """Push the next wave if there is room for one."""
        if not trip.queue or not trip.has_room(self._clock()):
            return
        wave = list(self._next_wave(trip))
        accepted = self._push(wave)
        for message, _ in wave:
            self._nodes.setdefault(message.metadata.dst_node_id, _Node())
        trip.push(wave, accepted, self._clock())

    def _next_wave(self, trip: _Trip) -> Iterator[_Outgoing]:
        """Yield messages to the first nodes of the queue, and remove these nodes."""
        size = 0
        outgoing = self._messages(trip.kind, tuple(trip.queue), trip.requests)
        for n, each in enumerate(outgoing, 1):
            trip.queue.popleft()
            yield each
            size += each.size
            if n == WAVE or size >= WAVE_BYTES:
                return

    # -------------------------------------------------------- steps of a trip: replies

    def _look_at_replies(self, trip: _Trip) -> float:
        """Begin to fetch replies if it is time, and return the time."""
        now = self._clock()
        if now >= trip.next_look:
            self._pulls.start(trip.nodes_by_message | self._invited, trip.grace)
            trip.look(now)
        return now

    def _take(self, trip: _Trip, message: Message, look_time: float) -> Answered | None:
        """Return a node and its reply, or ``None`` if no trip waits for the message.

        Only the first error of a node is returned. An answer may follow.
        """
        reply_to = message.metadata.reply_to_message_id
        sent = trip.under_way.pop(reply_to, None)
        if sent is None:
            return self._take_enrolment(message)
        reply = self._read(message)
        if not message.has_content():
            is_first = trip.fail(sent.node_id, reply_to, self._clock())
            return (sent.node_id, reply) if is_first else None

        trip.next_look = look_time  # more may be there
        looked_since = max(sent.at, self._pulls.first_look(reply_to))
        trip.seconds.append(self._clock() - looked_since)
        trip.answer(sent.node_id)  # also to a repeated request
        silences = self._nodes[sent.node_id].silences
        self._nodes[sent.node_id] = _Node(silences)
        return sent.node_id, reply

    def _take_enrolment(self, message: Message) -> Answered | None:
        """Return a late reply to an enrolment; ``None`` for any other message."""
        node_id = self._invited.pop(message.metadata.reply_to_message_id, None)
        if node_id is None:
            return None
        return node_id, self._read(message)

    def _come_to_nothing(self, trip: _Trip, now: float) -> list[str]:
        """Return the requests that were lost or not answered in time."""
        lost = self._pulls.lost(trip.under_way)
        return [
            message_id
            for message_id, sent in trip.under_way.items()
            if message_id in lost or now >= sent.at + self.timeout
        ]

    def _read(self, message: Message) -> Reply | str:
        may_be_lost = self._is_simulation and message.has_error()
        if may_be_lost and _LOST_WORKER in str(message.error.reason):
            # Flower would give the lost worker one message after the other, and each fails.
            raise RunError(
                "A worker or a node of the Ray cluster was lost. Flower's simulation cannot go on "
                "without it: start the run again."
            )
        # The limit is the right one: the SuperLink takes a reply only from the node that
        # got the request.
        limit = self._limits.get(message.metadata.src_node_id, SHORT)
        return read(message, limit, self._kinds)

    # ---------------------------------------------------------------- end of a trip

    def _is_complete(self, trip: _Trip) -> bool:
        """Return whether the trip does not wait for nodes to connect."""
        if trip.newcomers is None:
            return True
        if trip.enough_since is None:
            until = min(self._newcomers_until, trip.started + self.patience)
            self._newcomers_until = until
            return self._clock() >= until
        until = min(self._claims_until, trip.enough_since + CLAIMS_WAIT)
        self._claims_until = until
        return trip.newcomers.are_all_there() or self._clock() >= until

    def _waits(self, trip: _Trip, is_complete: bool) -> bool:
        """Return whether the trip waits for nodes that are missing or may connect."""
        if trip.has_enough:
            return not is_complete
        return self.patience > 0

    def _look_at_nodes(self, trip: _Trip, now: float) -> None:
        """Queue requests to nodes that came back, and to new nodes."""
        pause = _NODE_LOOK if trip.newcomers is None else _NODE_POLL
        trip.next_node_look = now + pause
        present = set(self.grid.get_node_ids())
        for node_id, lacking in trip.lacking.items():
            lacking.is_away = node_id not in present
            if lacking.is_away:
                # A request that reached the node before it left may be lost.
                lacking.miss(now)
            goes_out = lacking.may_be_sent(now, self.patience)
            if goes_out and node_id not in trip.queue:
                lacking.is_due = False
                trip.queue.append(node_id)
        if trip.newcomers is None:
            return
        new_nodes = present - self._nodes.keys() - trip.lacking.keys()
        trip.add(trip.newcomers.invite(new_nodes))

    def _is_over(self, trip: _Trip, is_complete: bool, now: float) -> bool:
        """Return whether a trip with an empty queue ends before its timeout."""
        if not is_complete:
            return False
        # The last wave has a grace time too, even if enough had answered before it.
        grace_from = max(trip.pushed, trip.enough_since or trip.pushed)
        is_late = self._has_grace and now >= grace_from + trip.grace
        nodes = [
            self._nodes[node_id]
            for node_id, lacking in trip.lacking.items()
            if lacking.under_way
        ]
        is_any_awaited = any(node.is_awaited for node in nodes)
        if trip.has_enough:
            return is_late or not is_any_awaited
        if self.patience:
            return not self._may_reply(trip) and (is_late or not nodes)
        if is_any_awaited:
            return False
        # Too few nodes remain without those that missed a trip, so each has two chances.
        return is_late or all(node.silences >= _MOST_SILENCES for node in nodes)

    def _may_reply(self, trip: _Trip) -> bool:
        """Return whether any node can still reply, without nodes that a trip gave up."""
        now = self._clock()
        return any(
            not self._nodes[node_id].is_given_up
            and lacking.may_reply(now, self.patience)
            for node_id, lacking in trip.lacking.items()
        )

    def _close(self, trip: _Trip) -> None:
        """Remember silent nodes, and enrolments whose reply may still come."""
        for message_id in self._pulls.lost(self._invited):
            del self._invited[message_id]
        for node_id, lacking in trip.lacking.items():
            was_sent = math.isfinite(lacking.sent_at)
            if not was_sent:
                continue
            node = self._nodes[node_id]
            node.is_given_up |= not trip.has_enough
            if not self._awaits_all:
                # A trip with enough replies did not wait for nodes that were missing before.
                node.silences += node.is_awaited or not trip.has_enough
                node.is_missing = True
        if trip.kind == "enrol":
            open_messages = trip.unanswered | trip.nodes_by_message
            for message_id, node_id in open_messages.items():
                if node_id in trip.lacking:
                    self._invited[message_id] = node_id


def read(
    message: Message, limit: int, kinds: Collection[str] | None = None
) -> Reply | str:
    """Return a message's reply of at most ``limit`` bytes, or the reason for none."""
    if not message.has_content():
        return CRASHED
    try:
        return decode_reply(from_content(message.content, limit), kinds)
    except MessageError:
        return MALFORMED


def _grace(seconds: list[float]) -> float:
    if not seconds:
        return LEAST_GRACE
    return max(LEAST_GRACE, GRACE_FACTOR * median(seconds))


def _none_lost(ids: Iterable[str]) -> Iterable[str]:
    return ()
