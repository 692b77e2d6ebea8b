"""Round trips over a Flower grid (docs/protocol.md, section 6, rule 2).

Messages are pushed in waves and replies are polled for, so a reply is handed on as soon as it is
there. A client that is silent costs at most the grace time, twice; after that it is asked, but not
waited for.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
# Flower's simulation searches all messages under way for each node, ten times a second; with 10,000
# nodes, waves of 100 to 200 doubled its rate.
WAVE = 100
WAVE_BYTES = 128 * 2**20
"""A wave is at most this large; the next is pushed when no more than that is under way."""
_MOST_SILENCES = 2
_PULLS = 8  # per look; more if the look at all would take longer than the longest turn
_MOST_PULLS = 64  # under way for one trip: fewer slow uploads hold up nobody else
_LONGEST_TURN = LEAST_GRACE / 2
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
_NODE_POLL = 0.5
# Flower's default of 12 hours would let a restarted node answer messages of runs long over.
_TTL_MARGIN = 10.0


@dataclass
class _Node:
    """What is known of a node's silence."""

    silences: int = 0  # trips that waited for it in vain
    is_missing: bool = False  # from the last trip

    @property
    def is_awaited(self) -> bool:
        """Whether a trip waits for it: not after a silence, until it answers again."""
        return not self.is_missing and self.silences < _MOST_SILENCES


class _Sent(NamedTuple):
    node_id: int
    size: int
    at: float


class Exchange:
    """Carries one run's messages over a grid. A round trip ends after ``timeout`` seconds at most.

    A grid whose ``pull_messages`` never waits, as those of `simulate`, offers ``known_lost(ids)``:
    it returns the messages that will not be answered. Such a grid, and that of Flower's simulation,
    is polled in this thread, so that a run can be repeated exactly. Of any other, replies are
    fetched in threads: Flower waits for each until it is complete, and one slow upload must not
    hold up the others. A grid with ``answers_all`` has an answer to every message that is not lost,
    however long it takes: there is no grace time.

    A longer reply to a request than ``limit_of`` returns is not decoded.
    """

    def __init__(
        self,
        grid: Grid,
        timeout: float,
        *,
        limit_of: Callable[[Request], int] = short,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.grid, self.timeout, self._clock, self._sleep = grid, timeout, clock, sleep
        self._is_simulation = type(grid).__name__ == _SIMULATION
        self._limit_of = limit_of
        self._limits: dict[int, int] = {}  # bytes of a node's reply to what it was sent last
        self._nodes: dict[int, _Node] = {}
        self._invited: dict[str, int] = {}  # nodes whose enrolment is still welcome, by message
        self._has_grace = not getattr(grid, "answers_all", False)
        known_lost = getattr(grid, "known_lost", _none_lost if self._is_simulation else None)
        self._pulls = _Pulls(grid, known_lost)

    @property
    def is_simulation(self) -> bool:
        """Whether all nodes are simulated, so that no stranger can be among them."""
        return self._is_simulation or hasattr(self.grid, "known_lost")

    def wait_for_nodes(self, n_nodes: int, named: Collection[int] | None = None) -> list[int]:
        """Return the ids of the nodes, as soon as there are so many or the timeout is over.

        Where some are named, no other node counts.
        """
        deadline = self._clock() + self.timeout
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
                    content, node_id, _TYPES.get(kind, "query.kmeans"), ttl=ttl, group_id=group
                ),
                size,
            )

    def _push(self, messages: Iterable[tuple[Message, int]]) -> dict[str, _Sent]:
        """Push messages and return the id of each that was accepted, with its node."""
        listed = list(messages)
        pushed = self.grid.push_messages([message for message, _ in listed]) if listed else ()
        ids, now = {str(each) for each in pushed}, self._clock()
        return {
            message_id: _Sent(message.metadata.dst_node_id, size, now)
            for message, size in listed
            if (message_id := message.metadata.message_id) in ids
        }

    # ------------------------------------------------------------------ round trips

    def invite(self, requests: Mapping[int, Request]) -> None:
        """Send enrolments that nobody waits for: their replies are taken along in later trips."""
        for message_id, sent in self._push(self._messages("enrol", requests, requests)).items():
            self._invited[message_id] = sent.node_id

    @property
    def invited(self) -> Collection[int]:
        """Nodes whose reply to an enrolment may still come."""
        return self._invited.values()

    def trip(
        self, kind: str, requests: Mapping[int, Request], has_enough: Callable[[], bool]
    ) -> Iterator[tuple[int, Reply | str]]:
        """Send requests and yield the replies as they arrive.

        The trip ends when all have answered that are waited for, at the end of the grace time
        after enough have, or at the timeout. Replies to earlier trips are ignored, but for
        enrolments. It is a `server.Trip`; a request is encoded when it is sent.
        """
        queue, under_way, unanswered = deque(requests), dict[str, _Sent](), dict[str, int]()
        for node_id in requests:
            self._nodes.setdefault(node_id, _Node())
        seconds: list[float] = []
        started = pushed = look = self._clock()
        enough_since: float | None = None
        while queue or under_way:
            now = self._clock()
            if queue and _has_room(under_way.values(), now - _grace(seconds)):
                under_way |= self._push(self._next_wave(kind, queue, requests))
                pushed = look = now = self._clock()
            if now >= look:
                self._pulls.start([*under_way, *self._invited])
                # Pauses grow with the wait: a slow reply costs few looks, a quick one no delay.
                look = now + min(max(_SHORTEST_PAUSE, (now - pushed) / 2), _LONGEST_PAUSE)
            arrived = False
            for message in self._pulls.arrived():
                arrived, reply_to = True, message.metadata.reply_to_message_id
                sent = under_way.pop(reply_to, None)
                if sent is not None:
                    look = now  # more may be there
                    seconds.append(self._clock() - sent.at)
                    self._nodes[sent.node_id].is_missing = False
                    yield sent.node_id, self._read(message)
                elif reply_to in self._invited:
                    yield self._invited.pop(reply_to), self._read(message)
            for message_id in self._pulls.lost(under_way):
                unanswered[message_id] = under_way.pop(message_id).node_id
            now = self._clock()
            if has_enough():
                enough_since = now if enough_since is None else enough_since
            # The last wave has its grace time too, also if enough had answered before it.
            due = max(pushed, enough_since or pushed) + _grace(seconds)
            is_late = self._has_grace and now >= due
            is_over = self._is_over(under_way.values(), enough_since is not None, is_late)
            if (is_over and not queue) or now >= started + self.timeout:
                break
            if not arrived and under_way:
                self._sleep(_SHORTEST_PAUSE)
        unanswered |= {message_id: sent.node_id for message_id, sent in under_way.items()}
        self._close(kind, unanswered, enough_since is not None)

    def _read(self, message: Message) -> Reply | str:
        if (
            self._is_simulation
            and message.has_error()
            and _LOST_WORKER in str(message.error.reason)
        ):
            # Flower would give the lost worker message after message, and each of them fails.
            raise RunError(
                "A worker or a node of the Ray cluster was lost. Flower's simulation cannot go on "
                "without it: start the run again."
            )
        # The SuperLink requires that a reply comes from the node that its request went to.
        return read(message, self._limits.get(message.metadata.src_node_id, SHORT))

    def _next_wave(
        self, kind: str, queue: deque[int], requests: Mapping[int, Request]
    ) -> Iterator[tuple[Message, int]]:
        size = 0
        for n, (message, length) in enumerate(self._messages(kind, tuple(queue), requests), 1):
            queue.popleft()
            yield message, length
            size += length
            if n == WAVE or size >= WAVE_BYTES:
                return

    def _is_over(self, under_way: Iterable[_Sent], had_enough: bool, is_late: bool) -> bool:
        """Return whether a trip whose messages are all sent is over before its timeout."""
        nodes = [self._nodes[sent.node_id] for sent in under_way]
        if any(node.is_awaited for node in nodes):
            return had_enough and is_late
        # Without those that missed a trip there are too few: each is given two chances.
        return had_enough or is_late or all(node.silences >= _MOST_SILENCES for node in nodes)

    def _close(self, kind: str, unanswered: Mapping[str, int], had_enough: bool) -> None:
        """Remember who was silent; late replies to an enrolment are still welcome."""
        for message_id in self._pulls.lost(self._invited):
            del self._invited[message_id]
        for message_id, node_id in unanswered.items():
            node = self._nodes[node_id]
            # A trip that had enough did not wait for who was missing before.
            node.silences += node.is_awaited or not had_enough
            node.is_missing = True
            if kind == "enrol":
                self._invited[message_id] = node_id


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


class _Pulls:
    """Fetches replies from a grid, for all trips of a run."""

    def __init__(
        self, grid: Grid, known_lost: Callable[[Iterable[str]], Iterable[str]] | None
    ) -> None:
        self._grid, self._known_lost = grid, known_lost
        self._ids: list[str] = []
        self._looked: dict[str, int] = {}  # the number of the last look at an id
        self._n_looks = 0
        self._fetching: set[str] = set()
        self._fetched: SimpleQueue[tuple[str, list[Message] | Exception]] = SimpleQueue()

    def start(self, ids: list[str]) -> None:
        """Begin to look for replies, each alone: a pull waits for its slowest upload."""
        if self._known_lost is not None:
            self._ids = ids
            return
        self._looked = {each: self._looked.get(each, 0) for each in ids}
        free = sorted(self._looked.keys() - self._fetching, key=self._looked.__getitem__)
        at_once = max(_PULLS, math.ceil(len(free) * _LONGEST_PAUSE / _LONGEST_TURN))
        room = _MOST_PULLS - len(self._looked.keys() & self._fetching)
        for message_id in free[: min(at_once, room)]:
            self._n_looks += 1
            self._looked[message_id] = self._n_looks
            self._fetching.add(message_id)
            # A daemon: the process may end while a node is still uploading.
            threading.Thread(target=self._fetch, args=(message_id,), daemon=True).start()

    def _fetch(self, message_id: str) -> None:
        try:
            self._fetched.put((message_id, list(self._grid.pull_messages([message_id]))))
        except Exception as error:
            self._fetched.put((message_id, error))

    def arrived(self) -> Iterator[Message]:
        """Yield the replies that are there."""
        ids, self._ids = self._ids, []
        if ids:
            yield from self._grid.pull_messages(ids)
        while not self._fetched.empty():
            message_id, messages = self._fetched.get()
            self._fetching.discard(message_id)
            if not isinstance(messages, Exception):
                yield from messages
            elif message_id in self._looked:  # otherwise nobody waits for it any more
                raise messages

    def lost(self, ids: Iterable[str]) -> set[str]:
        """Return which of these messages will not be answered, as far as the grid knows."""
        return set() if self._known_lost is None else set(self._known_lost(list(ids)))
