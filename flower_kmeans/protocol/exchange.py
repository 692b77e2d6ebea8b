"""Round trips over a Flower grid (docs/protocol.md, section 6, rule 8).

Messages are pushed in waves and replies are polled for (`pulls`), so a reply is handed
on as soon as it is there. Where enough have replied, a client that is silent costs at most the
grace time, twice; after that it is asked, but not waited for. Where too few have, a
round trip stays open for those who are missing as long as the patience lasts: a node
that comes back is sent the same request again.
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

# Flower's own loop sends these with these types. All other round trips are queries.
_TYPES = {
    **dict.fromkeys(("ask", "step"), "train.kmeans"),
    **dict.fromkeys(("finish", "close"), "evaluate.kmeans"),
}

CRASHED = "The client or its node failed."
# The class of the grid of Flower's simulation. Only simulations need its module.
_SIMULATION = "InMemoryGrid"
_LOST_WORKER = "ActorDiedError"  # in the error that Flower makes of Ray's

GRACE_FACTOR = 3.0  # over the median of the replies' times
# Flower's simulation searches all messages under way for each node, ten times a second;
# with 10,000 nodes, waves of 100 to 200 doubled its rate.
WAVE = 100
WAVE_BYTES = 128 * 2**20
"""A wave is at most this large; the next is pushed when no more than that is under way."""
_MOST_SILENCES = 2
PATIENCE = 600.0
"""Seconds for which a round trip with too few replies stays open for nodes that are missing."""
CLAIMS_WAIT = 180.0
"""Seconds for which the set-up waits for further clients when there are enough for a run."""
_NODE_LOOK = 5.0  # seconds between looks at which nodes are connected
_NODE_POLL = 0.5  # the same while nodes may connect
_RESEND = 15.0  # seconds between two requests to one node
_SHORTEST_PAUSE = 0.02
# Flower's default of 12 hours would let a restarted node answer messages of runs long
# over.
_TTL_MARGIN = 10.0

Answered = tuple[int, Reply | str]
"""A node and its reply, or why it has none."""


@dataclass
class _Node:
    """A node's silences in the trips so far."""

    silences: int = 0  # trips that waited for it in vain
    is_missing: bool = False  # from the last trip
    is_given_up: bool = False  # a trip with too few replies waited for it in vain

    @property
    def is_awaited(self) -> bool:
        """Whether trips wait for the node. After a silence they do not."""
        return not self.is_missing and self.silences < _MOST_SILENCES


class _Encoded(NamedTuple):
    """A request as it travels, for all nodes that are sent it."""

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

    sent_at: float = -math.inf  # when it was sent the last request
    # requests that it may still reply to
    under_way: set[str] = field(default_factory=set)
    missing_since: float | None = None  # the first sign that it is gone
    is_away: bool = False  # not connected at the last look
    is_due: bool = False  # to be sent the request again
    has_failed: bool = False  # an error came in place of a reply

    def miss(self, since: float) -> None:
        """Take note that a request came to nothing."""
        if self.missing_since is None:
            self.missing_since = since
        self.is_due = True

    def may_come_back(self, now: float, patience: float) -> bool:
        """Return whether the node is waited for if it is missing."""
        return self.missing_since is None or now < self.missing_since + patience

    def may_reply(self, now: float, patience: float) -> bool:
        """Return whether a reply can still come."""
        if self.under_way and not self.is_away:
            return True
        return self.may_come_back(now, patience)

    def may_be_sent(self, now: float, patience: float) -> bool:
        """Return whether the request goes out again now."""
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
    queue: deque[int]  # nodes that will be sent their request
    lacking: dict[int, _Open]  # nodes that owe a reply
    pushed: float  # time of the last wave
    next_look: float  # at replies
    next_node_look: float  # at which nodes are connected
    # messages that may be replied to
    under_way: dict[str, _Sent] = field(default_factory=dict)
    # nodes of messages that came to nothing
    unanswered: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)  # that replies took
    enough_since: float | None = None

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
        """Seconds that a silent node costs if enough have replied."""
        return _grace(self.seconds)

    def has_room(self, now: float) -> bool:
        """Return whether another wave may be pushed. Overdue messages take no room."""
        since = now - self.grace
        recent = [sent for sent in self.under_way.values() if sent.at > since]
        n_bytes = sum(sent.size for sent in recent)
        return len(recent) <= WAVE and n_bytes <= WAVE_BYTES

    @property
    def nodes_by_message(self) -> dict[str, int]:
        """The node of each message that may be replied to."""
        return {message_id: sent.node_id for message_id, sent in self.under_way.items()}

    def push(
        self, wave: Iterable[_Outgoing], accepted: Mapping[str, _Sent], now: float
    ) -> None:
        """Take note of messages that were pushed, and of those that were not accepted."""
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
        """Take note of a node's reply, to whichever of its messages."""
        for message_id in self.lacking.pop(node_id).under_way:
            self.under_way.pop(message_id, None)

    def fail(self, node_id: int, message_id: str, now: float) -> bool:
        """Take note of an error in place of a reply; return whether it is the node's first."""
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
        """Take note that a message comes to nothing."""
        sent = self.under_way.pop(message_id)
        self.unanswered[message_id] = sent.node_id
        lacking = self.lacking[sent.node_id]
        lacking.under_way.discard(message_id)
        lacking.miss(sent.at)


class Exchange:
    """Carries one run's messages over a grid.

    A node has ``timeout`` seconds to reply to a request. A round trip with too few
    replies stays open for ``patience`` seconds from the first sign that a node is
    missing: an error in its place, its absence, or no reply within the timeout. A node
    that comes back, or whose request came to nothing, is sent the same bytes again. The
    default is `PATIENCE`, and 0 in a simulation: no node comes back.

    With ``awaits_all`` no silence is remembered, for runs in which no party can be
    missing.

    A grid whose ``pull_messages`` never waits, as those of `simulate`, offers
    ``known_lost(ids)``: it returns the messages that will not be answered. Such a grid,
    and that of Flower's simulation, is polled in this thread, so that a run can be
    repeated exactly. Of any other, replies are fetched in threads: Flower waits for
    each until it is complete, and one slow upload must not hold up the others. A grid
    with ``answers_all`` has an answer to every message that is not lost, however long
    it takes: there is no grace time.

    A longer reply to a request than ``limit_of`` returns is not decoded. Of the replies
    that single kinds of runs have alone, those of ``kinds`` are read; by default all.
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
        # bytes of a node's reply to the last request that it was sent
        self._limits: dict[int, int] = {}
        if patience is None:
            patience = 0.0 if self.is_simulation else PATIENCE
        self.patience = patience
        self._nodes: dict[int, _Node] = {}
        # nodes whose enrolment is still welcome, by message
        self._invited: dict[str, int] = {}
        # Once per run: nodes that may connect are waited for until the former while too
        # few have enrolled, and until the latter once enough have.
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
        """Return the ids of the nodes, as soon as all are there or the wait is over.

        Where some are named, no other node counts.
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
        """Yield the messages to some nodes; equal requests are encoded once."""
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
        """Send enrolments that no trip waits for. Later trips yield their replies."""
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

        The trip ends when all have answered that are waited for, or at the end of the
        grace time after enough have. While too few have, it is open for the patience.
        An error of Flower's is no answer: the first of each node is yielded, and an
        answer may follow. Replies to earlier trips are ignored, but for enrolments. It
        is a `trips.Trip`; a request is encoded each time that it is sent.
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
        """Yield messages to the first nodes of the queue, and remove these."""
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
        """Return a node and its reply, or ``None`` if nobody waits for the message.

        Of a node's errors only the first one is returned. An answer may follow.
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
        trip.answer(sent.node_id)  # it may have been sent the request again
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
        """Return the requests that were lost, or are not answered in time."""
        lost = self._pulls.lost(trip.under_way)
        return [
            message_id
            for message_id, sent in trip.under_way.items()
            if message_id in lost or now >= sent.at + self.timeout
        ]

    def _read(self, message: Message) -> Reply | str:
        may_be_lost = self._is_simulation and message.has_error()
        if may_be_lost and _LOST_WORKER in str(message.error.reason):
            # Flower would give the lost worker message after message, and each of them
            # fails.
            raise RunError(
                "A worker or a node of the Ray cluster was lost. Flower's simulation cannot go on "
                "without it: start the run again."
            )
        # The SuperLink requires that a reply comes from the node that its request went
        # to.
        limit = self._limits.get(message.metadata.src_node_id, SHORT)
        return read(message, limit, self._kinds)

    # ---------------------------------------------------------------- who is waited for

    def _is_complete(self, trip: _Trip) -> bool:
        """Return whether no nodes are waited for that may connect."""
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
        """Return whether nodes that are missing, or may connect, are waited for."""
        if trip.has_enough:
            return not is_complete
        return self.patience > 0

    def _look_at_nodes(self, trip: _Trip, now: float) -> None:
        """Queue requests of nodes that are connected again, and of new nodes."""
        pause = _NODE_LOOK if trip.newcomers is None else _NODE_POLL
        trip.next_node_look = now + pause
        present = set(self.grid.get_node_ids())
        for node_id, lacking in trip.lacking.items():
            lacking.is_away = node_id not in present
            if lacking.is_away:
                # A former request may have reached it as it went.
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
        """Return whether a trip whose messages are all sent ends before its timeout."""
        if not is_complete:
            return False
        # The last wave has its grace time too, also if enough had answered before it.
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
        # Without those that missed a trip there are too few: each is given two chances.
        return is_late or all(node.silences >= _MOST_SILENCES for node in nodes)

    def _may_reply(self, trip: _Trip) -> bool:
        """Return whether any node can still reply that no trip waited for in vain."""
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
                # A trip that had enough did not wait for who was missing before.
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
