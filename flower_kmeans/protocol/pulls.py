"""Fetching of replies from a Flower grid, such that one slow upload holds up no other."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

LEAST_GRACE = 10.0  # seconds
LONGEST_PAUSE = 0.25  # seconds between two looks at replies
_LONGEST_TURN = LEAST_GRACE / 2  # seconds between two looks at one message
_PULLS = 8  # pulls that a look begins; more if turns would take longer than the longest
_PROMPT_PLACES = 56  # most pulls at a time from nodes that are not late
_LATE_PLACES = 8  # most pulls at a time from late nodes
_MOST_ABANDONED = 128  # pulls that gave their place back, and go on
# abandoned pulls of one node: a reply that never ends must not keep its node out for good
_MOST_OF_A_NODE = 2


@dataclass
class _Pull:
    """One reply that is being fetched."""

    node_id: int
    at: float
    is_late: bool  # whether it has a place of a late node
    is_abandoned: bool = False  # whether it gave its place back


class _Fetched(NamedTuple):
    """The end of a pull."""

    message_id: str
    at: float
    messages: list[Message] | Exception


class Pulls:
    """Pulls of replies from a grid, for all trips of a run.

    Flower returns from a pull when the reply is complete, however slow its upload is,
    and nobody can end a pull. So a slow pull gives its place to another, and goes on. Its
    node is late until it has sent one reply in time: it gets places for late nodes, after
    prompt nodes.

    A grid with ``known_lost`` never waits, and is polled without threads.
    """

    def __init__(
        self,
        grid: Grid,
        known_lost: Callable[[Iterable[str]], Iterable[str]] | None,
        clock: Callable[[], float],
    ) -> None:
        self._grid = grid
        self._known_lost = known_lost
        self._clock = clock
        self._ids: list[str] = []
        self._looked: dict[str, int] = {}  # the number of the last look at an id
        self._first_looks: dict[str, float] = {}
        self._n_looks = 0
        self._grace = LEAST_GRACE
        # nodes by their last replies; all others are new
        self._late = set[int]()
        self._prompt = set[int]()
        self._pulls: dict[str, _Pull] = {}
        self._fetched = SimpleQueue[_Fetched]()

    def start(self, ids: Mapping[str, int], grace: float) -> None:
        """Begin to look for replies to messages. ``ids`` has their nodes, by message id."""
        if self._known_lost is not None:
            self._ids = list(ids)
            return
        self._grace = grace
        self._give_places_back()
        self._forget_all_but(ids)
        busy = self._busy_nodes()
        waiting = self._waiting(ids, busy)
        left = max(_PULLS, math.ceil(len(waiting) * LONGEST_PAUSE / _LONGEST_TURN))
        places = self._free_places()
        for message_id in waiting:
            node_id = ids[message_id]
            is_late = node_id in self._late
            # The last places are for nodes that have replied in time before.
            is_full = len(self._pulls) >= _MOST_ABANDONED
            is_barred = is_full and node_id not in self._prompt
            if node_id in busy or is_barred or places[is_late] <= 0:
                continue
            busy.add(node_id)
            places[is_late] -= 1
            self._begin(message_id, _Pull(node_id, self._clock(), is_late))
            left -= 1
            if left == 0:
                break

    def _begin(self, message_id: str, pull: _Pull) -> None:
        self._n_looks += 1
        self._looked[message_id] = self._n_looks
        self._first_looks.setdefault(message_id, pull.at)
        self._pulls[message_id] = pull
        # The thread is a daemon: the process can end while a node is still uploading.
        thread = threading.Thread(target=self._fetch, args=(message_id,), daemon=True)
        thread.start()

    def _forget_all_but(self, ids: Iterable[str]) -> None:
        """Keep the looks at these messages only, with 0 for new messages."""
        self._looked = {each: self._looked.get(each, 0) for each in ids}
        self._first_looks = {
            each: at for each, at in self._first_looks.items() if each in self._looked
        }

    def _waiting(self, ids: Mapping[str, int], busy: set[int]) -> list[str]:
        """Return the messages whose pulls can begin, in the order of their turns."""
        waiting = [
            message_id
            for message_id, node_id in ids.items()
            if node_id not in busy and message_id not in self._pulls
        ]
        waiting.sort(key=lambda each: (self._rank(ids[each]), self._looked[each]))
        return waiting

    def _rank(self, node_id: int) -> int:
        """Return a node's rank: 0 for a prompt node, 1 for a new one, 2 for a late one."""
        if node_id in self._late:
            return 2
        if node_id in self._prompt:
            return 0
        return 1

    def _busy_nodes(self) -> set[int]:
        """Return the nodes for which no further pull can begin."""
        busy = set[int]()
        abandoned = Counter[int]()
        for pull in self._pulls.values():
            if pull.is_abandoned:
                abandoned[pull.node_id] += 1
            else:
                busy.add(pull.node_id)
        return busy | {node for node, n in abandoned.items() if n >= _MOST_OF_A_NODE}

    def _free_places(self) -> dict[bool, int]:
        """Return the numbers of free places, by whether they are for late nodes."""
        pulls = [pull for pull in self._pulls.values() if not pull.is_abandoned]
        n_late = sum(pull.is_late for pull in pulls)
        n_prompt = len(pulls) - n_late
        return {False: _PROMPT_PLACES - n_prompt, True: _LATE_PLACES - n_late}

    def _give_places_back(self) -> None:
        """Free the places of slow pulls, which go on, and record their nodes as late."""
        now = self._clock()
        pulls = self._pulls.values()
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
        self._fetched.put(_Fetched(message_id, self._clock(), found))

    def arrived(self) -> Iterator[Message]:
        """Yield the replies that have arrived."""
        ids = self._ids
        self._ids = []
        if ids:
            yield from self._grid.pull_messages(ids)
        while not self._fetched.empty():
            message_id, at, messages = self._fetched.get()
            pull = self._pulls.pop(message_id)
            if isinstance(messages, Exception):
                if message_id in self._looked:  # otherwise no trip waits for it
                    raise messages
                continue
            is_reply = any(message.has_content() for message in messages)
            if is_reply and at - pull.at <= self._grace:
                self._late.discard(pull.node_id)
                self._prompt.add(pull.node_id)
            yield from messages

    def first_look(self, message_id: str) -> float:
        """Return the time of the first look at a message: a wait for a place is not slowness."""
        return self._first_looks.get(message_id, -math.inf)

    def lost(self, ids: Iterable[str]) -> set[str]:
        """Return the messages that will not be answered, as far as the grid knows."""
        if self._known_lost is None:
            return set()
        return set(self._known_lost(list(ids)))
