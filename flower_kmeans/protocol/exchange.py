"""Round trips over a Flower grid (docs/protocol.md, section 6, rule 8).

Messages are pushed in waves and replies are polled for, so a reply is handed on as soon
as it is there. Where enough have replied, a client that is silent costs at most the
grace time, twice; after that it is asked, but not waited for. Where too few have, a
round trip stays open for those who are missing as long as the patience lasts: a node
that comes back is sent the same request again.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from statistics import median
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.protocol.cohort import MALFORMED
from flower_kmeans.protocol.limits import SHORT, short
from flower_kmeans.protocol.messages import Located, Reply, Request, decode_reply
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

GRACE_FACTOR = 3.0
LEAST_GRACE = 10.0  # seconds
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
_RESEND = 15.0  # seconds between two requests to one node
_PULLS = 8  # per look; more if the look at all would take longer than the longest turn
_PROMPT_PLACES, _LATE_PLACES = 56, 8  # of pulls that are under way
_MOST_ABANDONED = 128  # pulls that gave their place back, and go on
# of these: a reply that never ends must not keep its node out for good
_MOST_OF_A_NODE = 2
_LONGEST_TURN = LEAST_GRACE / 2
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
_NODE_POLL = 0.5
# Flower's default of 12 hours would let a restarted node answer messages of runs long
# over.
_TTL_MARGIN = 10.0


@dataclass
class _Node:
    """What is known of a node's silence."""

    silences: int = 0  # trips that waited for it in vain
    is_missing: bool = False  # from the last trip
    is_given_up: bool = False  # a trip with too few replies waited for it in vain

    @property
    def is_awaited(self) -> bool:
        """Whether a trip waits for it: not after a silence, until it answers again."""
        return not self.is_missing and self.silences < _MOST_SILENCES


class _Sent(NamedTuple):
    node_id: int
    size: int
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
        self.missing_since = since if self.missing_since is None else self.missing_since
        self.is_due = True

    def may_reply(self, now: float, patience: float) -> bool:
        """Return whether a reply can still come."""
        if self.under_way and not self.is_away:
            return True
        return self.missing_since is None or now < self.missing_since + patience

    def may_be_sent(self, now: float, patience: float) -> bool:
        """Return whether the request goes out again now."""
        is_due = self.is_due and not self.is_away and now >= self.sent_at + _RESEND
        return is_due and (
            self.missing_since is None or now < self.missing_since + patience
        )


@dataclass(frozen=True)
class Newcomers:
    """Nodes that connect while the clients of a run enrol."""

    # the requests to new nodes
    invite: Callable[[Iterable[int]], Mapping[int, Request]]
    are_all_there: Callable[[], bool]  # whether all expected clients have enrolled


class Exchange:
    """Carries one run's messages over a grid. A node has ``timeout`` seconds to reply to a request.

    A round trip with too few replies stays open for ``patience`` seconds from the first
    sign that a node is missing: an error in its place, its absence, or no reply within
    the timeout. A node that comes back, or whose request came to nothing, is sent the
    same bytes again. The default is `PATIENCE`, and 0 in a simulation, where no node
    comes back: a trip ends at the timeout then.

    With ``awaits_all`` no silence is remembered, for runs in which no party can be
    missing.

    A grid whose ``pull_messages`` never waits, as those of `simulate`, offers
    ``known_lost(ids)``: it returns the messages that will not be answered. Such a grid,
    and that of Flower's simulation, is polled in this thread, so that a run can be
    repeated exactly. Of any other, replies are fetched in threads: Flower waits for
    each until it is complete, and one slow upload must not hold up the others. A grid
    with ``answers_all`` has an answer to every message that is not lost, however long
    it takes: there is no grace time.

    A longer reply to a request than ``limit_of`` returns is not decoded.
    """

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        *,
        limit_of: Callable[[Request], int] = short,
        patience: float | None = None,
        awaits_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.timeout, self._clock, self._sleep = grid, timeout, clock, sleep
        self._awaits_all = awaits_all
        self._is_simulation = type(grid).__name__ == _SIMULATION
        self._limit_of = limit_of
        # bytes of a node's reply to what it was sent last
        self._limits: dict[int, int] = {}
        self.patience = (
            (0.0 if self.is_simulation else PATIENCE) if patience is None else patience
        )
        self._nodes: dict[int, _Node] = {}
        # nodes whose enrolment is still welcome, by message
        self._invited: dict[str, int] = {}
        self._claims_until = math.inf  # further clients are waited for, once per run
        self._has_grace = not getattr(grid, "answers_all", False)
        known_lost = getattr(
            grid, "known_lost", _none_lost if self._is_simulation else None
        )
        self._pulls = _Pulls(grid, known_lost, clock)

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
        """Return the ids of the nodes, as soon as there are so many or the wait is over.

        Where some are named, no other node counts.
        """
        deadline = self._clock() + max(self.timeout, self.patience)
        while True:
            found = set(self.grid.get_node_ids())
            nodes = sorted(found if named is None else found & set(named))
            if len(nodes) >= n_nodes or self._clock() >= deadline:
                return nodes
            self._sleep(min(_NODE_POLL, self.timeout))

    # ------------------------------------------------------------------ messages

    def messages(self, kind: str, requests: Mapping[int, Request]) -> list[Message]:
        """Return requests as Flower messages, for somebody else to send (Flower's own loop)."""
        return [message for message, _ in self._messages(kind, requests, requests)]

    def replies(
        self, messages: Iterable[Message], sent: Iterable[Message]
    ) -> Iterator[tuple[int, Reply | str]]:
        """Read the replies that somebody else received to `messages`, the first of each node."""
        nodes = {each.metadata.message_id: each.metadata.dst_node_id for each in sent}
        for message in messages:
            node_id = nodes.pop(message.metadata.reply_to_message_id, None)
            if node_id is not None:
                yield node_id, self._read(message)

    def _messages(
        self, kind: str, nodes: Iterable[int], requests: Mapping[int, Request]
    ) -> Iterator[tuple[Message, int]]:
        """Yield the messages to some nodes and their sizes; equal requests are encoded once."""
        before, content, size, limit = None, None, 0, 0
        for node_id in nodes:
            request = requests[node_id]
            if content is None or request is not before:
                data = encode(request)
                before, content, size = request, to_content(data), len(data)
                limit = self._limit_of(request)
            self._limits[node_id] = limit
            ttl = self.timeout + _TTL_MARGIN
            group = f"{kind} {request.t}" if isinstance(request, Located) else kind
            yield (
                Message(
                    content,
                    node_id,
                    _TYPES.get(kind, "query.kmeans"),
                    ttl=ttl,
                    group_id=group,
                ),
                size,
            )

    def _push(self, messages: Iterable[tuple[Message, int]]) -> dict[str, _Sent]:
        """Push messages and return the id of each that was accepted, with its node."""
        listed = list(messages)
        pushed = (
            self.grid.push_messages([message for message, _ in listed])
            if listed
            else ()
        )
        ids, now = {str(each) for each in pushed}, self._clock()
        return {
            message_id: _Sent(message.metadata.dst_node_id, size, now)
            for message, size in listed
            if (message_id := message.metadata.message_id) in ids
        }

    # ------------------------------------------------------------------ round trips

    def invite(self, requests: Mapping[int, Request]) -> None:
        """Send enrolments that nobody waits for: their replies are taken along in later trips."""
        for message_id, sent in self._push(
            self._messages("enrol", requests, requests)
        ).items():
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
    ) -> Iterator[tuple[int, Reply | str]]:
        """Send requests and yield the replies as they arrive.

        The trip ends when all have answered that are waited for, or at the end of the
        grace time after enough have. While too few have, it is open for the patience.
        An error of Flower's is no answer: the first of each node is yielded, and an
        answer may follow. Replies to earlier trips are ignored, but for enrolments. It
        is a `server.Trip`; a request is encoded when it is sent, and again for each
        time that it is sent.
        """
        requests = requests if newcomers is None else dict(requests)
        queue, under_way, unanswered = (
            deque(requests),
            dict[str, _Sent](),
            dict[str, int](),
        )
        lacking = {node_id: _Open() for node_id in requests}
        seconds: list[float] = []
        started = pushed = look = node_look = self._clock()
        enough_since: float | None = None
        while True:
            now = self._clock()
            if queue and _has_room(under_way.values(), now - _grace(seconds)):
                wave = self._next_wave(kind, queue, requests)
                under_way |= self._push_open(wave, lacking)
                pushed = look = now = self._clock()
            if now >= look:
                ids = {
                    key: sent.node_id for key, sent in under_way.items()
                } | self._invited
                self._pulls.start(ids, _grace(seconds))
                # Pauses grow with the wait: a slow reply costs few looks, a quick one
                # no delay.
                look = now + min(
                    max(_SHORTEST_PAUSE, (now - pushed) / 2), _LONGEST_PAUSE
                )
            arrived = False
            for message in self._pulls.arrived():
                arrived, reply_to = True, message.metadata.reply_to_message_id
                sent = under_way.pop(reply_to, None)
                if sent is None:
                    if reply_to in self._invited:
                        yield self._invited.pop(reply_to), self._read(message)
                    continue
                node_id, reply = sent.node_id, self._read(message)
                if not message.has_content():
                    each = lacking[node_id]
                    is_first, each.has_failed = not each.has_failed, True
                    each.under_way.discard(reply_to)
                    each.miss(self._clock())
                    if is_first:
                        yield node_id, reply
                    continue
                look = now  # more may be there
                seconds.append(
                    self._clock() - max(sent.at, self._pulls.first_look(reply_to))
                )
                # it was sent the request again
                for other in lacking.pop(node_id).under_way:
                    under_way.pop(other, None)
                self._nodes[node_id] = _Node(self._nodes[node_id].silences)
                yield node_id, reply
            now = self._clock()
            for message_id in self._come_to_nothing(under_way, now):
                sent = under_way.pop(message_id)
                unanswered[message_id] = sent.node_id
                lacking[sent.node_id].under_way.discard(message_id)
                lacking[sent.node_id].miss(sent.at)
            if enough_since is None and has_enough():
                enough_since = now
            is_complete = self._is_complete(newcomers, started, enough_since)
            waits = self.patience > 0 if enough_since is None else not is_complete
            if waits and now >= node_look:
                node_look = now + (_NODE_LOOK if newcomers is None else _NODE_POLL)
                invited = self._look_at_nodes(lacking, queue, newcomers)
                requests = {**requests, **invited} if invited else requests
            # The last wave has its grace time too, also if enough had answered before
            # it.
            due = max(pushed, enough_since or pushed) + _grace(seconds)
            is_late = self._has_grace and now >= due
            is_over = not queue and self._is_over(
                lacking, enough_since, is_complete, is_late
            )
            if is_over or (not waits and now >= started + self.timeout):
                break
            if not arrived and (under_way or not queue):
                self._sleep(_SHORTEST_PAUSE)
        unanswered |= {
            message_id: sent.node_id for message_id, sent in under_way.items()
        }
        self._close(kind, unanswered, lacking, enough_since is not None)

    def _push_open(
        self, wave: Iterable[tuple[Message, int]], lacking: Mapping[int, _Open]
    ) -> dict[str, _Sent]:
        """Push requests of a trip, and keep of each node what it was sent and when."""
        listed = list(wave)
        pushed, now = self._push(listed), self._clock()
        for message, _ in listed:
            node_id, message_id = (
                message.metadata.dst_node_id,
                message.metadata.message_id,
            )
            self._nodes.setdefault(node_id, _Node())
            each = lacking[node_id]
            each.sent_at = now
            if message_id in pushed:
                each.under_way.add(message_id)
            else:
                each.miss(now)
        return pushed

    def _come_to_nothing(self, under_way: Mapping[str, _Sent], now: float) -> list[str]:
        """Return the requests that were lost, or are not answered in time."""
        lost = self._pulls.lost(under_way)
        return [
            message_id
            for message_id, sent in under_way.items()
            if message_id in lost or now >= sent.at + self.timeout
        ]

    # ---------------------------------------------------------------- who is waited for

    def _is_complete(
        self, newcomers: Newcomers | None, started: float, enough_since: float | None
    ) -> bool:
        """Return whether no nodes are waited for that may connect."""
        if newcomers is None:
            return True
        if enough_since is None:
            return self._clock() >= started + self.patience
        self._claims_until = min(self._claims_until, enough_since + CLAIMS_WAIT)
        return newcomers.are_all_there() or self._clock() >= self._claims_until

    def _look_at_nodes(
        self, lacking: dict[int, _Open], queue: deque[int], newcomers: Newcomers | None
    ) -> Mapping[int, Request]:
        """Look at which nodes are connected: queue requests that go out again, and new ones.

        The requests to new nodes are returned.
        """
        now, present = self._clock(), set(self.grid.get_node_ids())
        for node_id, each in lacking.items():
            each.is_away = node_id not in present
            if each.is_away:  # what it was sent before may have reached it as it went
                each.miss(now)
            if each.may_be_sent(now, self.patience) and node_id not in queue:
                each.is_due = False
                queue.append(node_id)
        if newcomers is None:
            return {}
        invited = newcomers.invite(present - self._nodes.keys() - lacking.keys())
        lacking |= {node_id: _Open() for node_id in invited}
        queue.extend(invited)
        return invited

    def _is_over(
        self,
        lacking: Mapping[int, _Open],
        enough_since: float | None,
        is_complete: bool,
        is_late: bool,
    ) -> bool:
        """Return whether a trip whose messages are all sent is over before its timeout."""
        if not is_complete:
            return False
        nodes = [
            self._nodes[node_id] for node_id, each in lacking.items() if each.under_way
        ]
        if enough_since is not None:
            return is_late or not any(node.is_awaited for node in nodes)
        if self.patience:
            now = self._clock()
            for node_id, each in lacking.items():
                if not self._nodes[node_id].is_given_up and each.may_reply(
                    now, self.patience
                ):
                    return False
            return is_late or not nodes
        if any(node.is_awaited for node in nodes):
            return False
        # Without those that missed a trip there are too few: each is given two chances.
        return is_late or all(node.silences >= _MOST_SILENCES for node in nodes)

    def _close(
        self,
        kind: str,
        unanswered: Mapping[str, int],
        lacking: Mapping[int, _Open],
        had_enough: bool,
    ) -> None:
        """Remember who was silent; late replies to an enrolment are still welcome."""
        for message_id in self._pulls.lost(self._invited):
            del self._invited[message_id]
        for node_id, each in lacking.items():
            if math.isfinite(each.sent_at):
                node = self._nodes[node_id]
                node.is_given_up |= not had_enough
                if not self._awaits_all:
                    # A trip that had enough did not wait for who was missing before.
                    node.silences += node.is_awaited or not had_enough
                    node.is_missing = True
        if kind == "enrol":
            late = {
                key: node_id
                for key, node_id in unanswered.items()
                if node_id in lacking
            }
            self._invited |= late

    def _read(self, message: Message) -> Reply | str:
        if (
            self._is_simulation
            and message.has_error()
            and _LOST_WORKER in str(message.error.reason)
        ):
            # Flower would give the lost worker message after message, and each of them
            # fails.
            raise RunError(
                "A worker or a node of the Ray cluster was lost. Flower's simulation cannot go on "
                "without it: start the run again."
            )
        # The SuperLink requires that a reply comes from the node that its request went
        # to.
        return read(message, self._limits.get(message.metadata.src_node_id, SHORT))

    def _next_wave(
        self, kind: str, queue: deque[int], requests: Mapping[int, Request]
    ) -> Iterator[tuple[Message, int]]:
        size = 0
        for n, (message, length) in enumerate(
            self._messages(kind, tuple(queue), requests), 1
        ):
            queue.popleft()
            yield message, length
            size += length
            if n == WAVE or size >= WAVE_BYTES:
                return


def read(message: Message, limit: int) -> Reply | str:
    """Return the reply that a message holds, or why it holds none of at most so many bytes."""
    if not message.has_content():
        return CRASHED
    try:
        return decode_reply(from_content(message.content, limit))
    except MessageError:
        return MALFORMED


def _grace(seconds: list[float]) -> float:
    return max(LEAST_GRACE, GRACE_FACTOR * median(seconds)) if seconds else LEAST_GRACE


def _has_room(under_way: Iterable[_Sent], since: float) -> bool:
    """Return whether another wave may be pushed; who is overdue takes no room."""
    recent = [sent for sent in under_way if sent.at > since]
    return len(recent) <= WAVE and sum(sent.size for sent in recent) <= WAVE_BYTES


def _none_lost(ids: Iterable[str]) -> Iterable[str]:
    return ()


@dataclass
class _Pull:
    """One reply that is being fetched."""

    node_id: int
    at: float
    is_late: bool  # in one of the places of late nodes
    is_abandoned: bool = False  # it gave its place back


class _Pulls:
    """Fetches replies from a grid, for all trips of a run.

    Flower returns from a pull when the reply is complete, however slow its upload is,
    and a pull cannot be ended. So a pull that is slow gives its place to another, and
    goes on. Its node is late until it has sent one reply in time: it takes other
    places, after those that are prompt.
    """

    def __init__(
        self,
        grid: Grid,
        known_lost: Callable[[Iterable[str]], Iterable[str]] | None,
        clock: Callable[[], float],
    ) -> None:
        self._grid, self._known_lost, self._clock = grid, known_lost, clock
        self._ids: list[str] = []
        self._looked: dict[str, int] = {}  # the number of the last look at an id
        self._first_looks: dict[str, float] = {}
        self._n_looks = 0
        self._grace = LEAST_GRACE
        # by their last replies; others are new
        self._late, self._prompt = set[int](), set[int]()
        self._pulls: dict[str, _Pull] = {}
        self._fetched: SimpleQueue[tuple[str, float, list[Message] | Exception]] = (
            SimpleQueue()
        )

    def start(self, ids: Mapping[str, int], grace: float) -> None:
        """Begin to look for the replies to messages, given with their nodes, each alone."""
        if self._known_lost is not None:
            self._ids = list(ids)
            return
        self._grace = grace
        self._give_places_back()
        self._looked = {each: self._looked.get(each, 0) for each in ids}
        self._first_looks = {
            k: at for k, at in self._first_looks.items() if k in self._looked
        }
        busy = self._busy_nodes()
        free = [
            each
            for each, node_id in ids.items()
            if node_id not in busy and each not in self._pulls
        ]
        free.sort(key=lambda each: (self._rank(ids[each]), self._looked[each]))
        at_once = max(_PULLS, math.ceil(len(free) * _LONGEST_PAUSE / _LONGEST_TURN))
        places = self._free_places()
        for message_id in free:
            node_id, is_late = ids[message_id], ids[message_id] in self._late
            # Nodes that never replied in time leave the last places to those that did.
            is_barred = (
                node_id not in self._prompt and len(self._pulls) >= _MOST_ABANDONED
            )
            if node_id in busy or is_barred or places[is_late] <= 0:
                continue
            busy.add(node_id)
            places[is_late] -= 1
            self._n_looks += 1
            self._looked[message_id] = self._n_looks
            self._first_looks.setdefault(message_id, self._clock())
            self._pulls[message_id] = _Pull(node_id, self._clock(), is_late)
            # A daemon: the process may end while a node is still uploading.
            threading.Thread(
                target=self._fetch, args=(message_id,), daemon=True
            ).start()
            at_once -= 1
            if at_once == 0:
                break

    def _busy_nodes(self) -> set[int]:
        """Return the nodes of which no further pull may begin."""
        abandoned = Counter(
            pull.node_id for pull in self._pulls.values() if pull.is_abandoned
        )
        busy = {pull.node_id for pull in self._pulls.values() if not pull.is_abandoned}
        return busy | {node for node, n in abandoned.items() if n >= _MOST_OF_A_NODE}

    def _rank(self, node_id: int) -> int:
        """Return in which order a node is served: prompt ones first, late ones last."""
        if node_id in self._late:
            return 2
        return 0 if node_id in self._prompt else 1

    def _free_places(self) -> dict[bool, int]:
        """Return how many pulls of prompt and new nodes may begin, and how many of late ones."""
        pulls = [pull for pull in self._pulls.values() if not pull.is_abandoned]
        n_late = sum(pull.is_late for pull in pulls)
        return {
            False: _PROMPT_PLACES - (len(pulls) - n_late),
            True: _LATE_PLACES - n_late,
        }

    def _give_places_back(self) -> None:
        now, pulls = self._clock(), self._pulls.values()
        n_abandoned = sum(pull.is_abandoned for pull in pulls)
        for pull in pulls:
            if pull.is_abandoned or now - pull.at <= self._grace:
                continue
            self._late.add(pull.node_id)
            self._prompt.discard(pull.node_id)
            if n_abandoned < _MOST_ABANDONED:
                pull.is_abandoned = True
                n_abandoned += 1

    def _fetch(self, message_id: str) -> None:
        found: list[Message] | Exception
        try:
            found = list(self._grid.pull_messages([message_id]))
        except Exception as error:
            found = error
        self._fetched.put((message_id, self._clock(), found))

    def arrived(self) -> Iterator[Message]:
        """Yield the replies that are there."""
        ids, self._ids = self._ids, []
        if ids:
            yield from self._grid.pull_messages(ids)
        while not self._fetched.empty():
            message_id, at, messages = self._fetched.get()
            pull = self._pulls.pop(message_id)
            if isinstance(messages, Exception):
                if message_id in self._looked:  # otherwise nobody waits for it any more
                    raise messages
                continue
            is_reply = any(message.has_content() for message in messages)
            if is_reply and at - pull.at <= self._grace:
                self._late.discard(pull.node_id)
                self._prompt.add(pull.node_id)
            yield from messages

    def first_look(self, message_id: str) -> float:
        """Return since when a reply is looked for: one that waits for a place is not a slow one."""
        return self._first_looks.get(message_id, -math.inf)

    def lost(self, ids: Iterable[str]) -> set[str]:
        """Return which of these messages will not be answered, as far as the grid knows."""
        return set() if self._known_lost is None else set(self._known_lost(list(ids)))
