"""The server's side of the protocol: whom it asks what, and which sum it announces.

A coordinator knows nothing of Flower's messages or clocks: it makes requests per node, takes
replies as they arrive, and closes rounds. Under an oblivious server it holds masked words and its
own noise, nothing else. Where clients do not compute the questions themselves, it sends them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Query, State
from flower_kmeans.errors import RunError, TooFewClientsError
from flower_kmeans.federation.cohort import Tree
from flower_kmeans.federation.document import NONE
from flower_kmeans.federation.enrolment import MALFORMED, TWICE, Enrolment
from flower_kmeans.federation.messages import Finish, Open, OpenReply, Round, RoundReply
from flower_kmeans.federation.opening import N_OPENERS, Opening
from flower_kmeans.federation.questions import Asked, ask, tell
from flower_kmeans.federation.release import server_noise
from flower_kmeans.federation.removal import reached, remove
from flower_kmeans.federation.transcript import (
    Entry,
    first_hash,
    next_hash,
    question_hash,
    unpack_words,
)
from flower_kmeans.initialization import public_generator
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg.ring import from_ring, to_ring

CRASHED = "The client or its node failed."
STRAY = "The answer belonged to another round, attempt or run."
FALSE = "What the client sent to open a sum was false."

Words = NDArray[np.uint64]


@dataclass
class _OpenRound:
    """The round that is being asked for."""

    asked: Asked
    t: int
    attempt: int
    context: bytes
    root: bytes
    sum: Words
    survivors: NDArray[np.bool_]
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class _ClosedRound:
    """An announced sum, and what it opened to where the server may know."""

    entry: Entry
    opened: Words | None = None


@dataclass
class Coordinator(Enrolment):
    """The server's memory of one run: its members, its rounds, and what it may know of the sums.

    Parameters
    ----------
    run : Run
        Its algorithm is the server's own. What that holds beside the parameters in the document
        never travels.
    seed : int, default: 0
        Public randomness of an algorithm whose questions the server computes.

    Attributes
    ----------
    seats, incidents, dropped
        As in `Enrolment`.
    closed : list
        The announced sums.
    noise_factors : list of float
        Where clients add the noise: its standard deviation in the sum of each round that is open
        over the planned one, after what is beyond the plan was removed.
    """

    seed: int = 0
    closed: list[_ClosedRound] = field(default_factory=list)
    noise_factors: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chain, self._context = first_hash(self._doc_hash), b""
        self._open: _OpenRound | None = None
        self._asked_last: Asked | None = None
        self._state: State = self.run.algorithm.initial_state(self._generator(0))
        self._opening: Opening | None = None
        self._openers: set[int] = set()
        self._n_opened = 0
        self._entries: list[bytes] = []
        self.delivered: set[int] = set()

    # ------------------------------------------------------------------ rounds

    @property
    def head(self) -> int:
        """Number of closed rounds."""
        return len(self.closed)

    def round_requests(self, attempt: int) -> dict[int, Round]:
        """Open an attempt at the next round and return what asks every member for its answer.

        Raises
        ------
        RunError
            If the server computes the question and cannot: the sum before is not open, or clients
            would refuse it.
        """
        self._amend()
        tree, t = self._cohort(), self.head + 1
        length, m = self._document.words_of(t), len(self.seats)
        asked = self._ask(t)
        draft = Entry(
            t,
            attempt,
            m,
            tree.root,
            question_hash(asked.data),
            np.zeros(m, dtype=np.bool_),
            np.zeros(length, dtype=np.uint64),
        )
        context = draft.context(self._doc_hash, self._chain)
        self._open = _OpenRound(asked, t, attempt, context, tree.root, draft.words, draft.survivors)
        # Where sums are opened one hop late, the answers carry what opens the one before.
        rides = self._document.opening != "immediate"
        self._openers = self._choose_openers(N_OPENERS) if rides else set()
        return self.repeat_requests(list(self._index))

    def repeat_requests(self, node_ids: Iterable[int]) -> dict[int, Round]:
        """Return what asks these members for their answers in the open attempt."""
        tree, now = self._cohort(), self._open
        if now is None:
            return {}
        indices = self._index
        return {
            node_id: Round(
                **self._place(indices[node_id], now.t, tree),
                attempt=now.attempt,
                question=now.asked.data,  # one object, however many members are asked
                want_correction=indices[node_id] in self._openers,
            )
            for node_id in node_ids
            if node_id in indices
        }

    def accept_round(self, node_id: int, reply: RoundReply) -> None:
        """Add one answer to the open attempt's sum."""
        now, index = self._open, self._index.get(node_id)
        if now is None or index is None or reply.ctx != now.context:
            self.note(node_id, self.head + 1, STRAY)
            return
        if now.survivors[index]:
            self.note(node_id, now.t, TWICE)
            return
        if len(reply.words) != 8 * len(now.sum):
            self.note(node_id, now.t, MALFORMED)
            return
        if (reply.parts is None) == bool(self._document.levels):
            self.note(node_id, now.t, MALFORMED)
            return
        words = unpack_words(reply.words)
        if not self._document.is_masked and int(words[-1]) != 1:
            self.note(node_id, now.t, MALFORMED)  # no client could open a sum with these in it
            return
        now.sum += words  # modulo 2^64
        now.survivors[index] = True
        if reply.parts is not None:
            now.parts[index] = reply.parts
        self.seats[index].followed = now.t - 1
        self._take_given(index, reply)

    @property
    def has_enough(self) -> bool:
        """Whether enough members answered the open attempt."""
        now = self._open
        return now is not None and int(now.survivors.sum()) >= self._needed(len(now.survivors))

    def close_round(self) -> bool:
        """Announce the open attempt's sum if enough members answered; return whether it was."""
        now = self._open
        if now is None or not self.has_enough:
            return False
        total = now.sum
        if self._document.trust in ("oblivious-server", "trusted-server"):
            total = total + self._noise(now.asked.question)
        entry = Entry(
            now.t,
            now.attempt,
            len(now.survivors),
            now.root,
            question_hash(now.asked.data),
            now.survivors,
            total,
        )
        self._chain, self._context = next_hash(self._chain, now.context, entry), now.context
        self.closed.append(_ClosedRound(entry))
        if self._document.opening != NONE:
            by_quorum = self._document.opens_by_quorum
            self._opening = Opening(entry, self._chain, by_quorum, now.parts)
        self.note_dropped(now.t, self.missing())
        self._open = None
        if not self._document.is_masked:
            self._record_opened(self.head, total)
        return True

    def missing(self) -> list[int]:
        """Return the nodes that have not answered the open attempt."""
        if self._open is None:
            return []
        present = self._open.survivors
        return [
            seat.node_id for i, seat in enumerate(self.seats) if seat.is_taken and not present[i]
        ]

    def _noise(self, question: Query) -> Words:
        noise = server_noise(self.run.algorithm, self.run.plan, question, Stream.fresh())
        return to_ring(np.append(noise, np.int64(0)))

    # ------------------------------------------------------------------ questions of the server's

    def _generator(self, number: int) -> np.random.Generator | None:
        """Return the randomness of one step; none where clients could take the same step."""
        return None if self.run.algorithm.replayable else public_generator(self.seed, number)

    def _ask(self, t: int) -> Asked:
        """Return the question of a round: the same in all of its attempts."""
        if not self.run.server_asks:
            return Asked(Query(t))  # noise needs no more: units depend on the round alone
        if self._state.round != t - 1:
            raise self.not_opened()
        if self._asked_last is None or self._asked_last.question.round != t:
            self._asked_last = ask(self.run, self._state)
        return self._asked_last

    def _told(self) -> bytes:
        """Return the result for clients; empty where they compute it."""
        if not self.run.server_asks:
            return b""
        if self._state.round != self._document.rounds:
            raise self.not_opened()
        return tell(self.run, self._state)

    # ------------------------------------------------------------------ opening and delivery

    @property
    def unopened(self) -> int:
        """The first round whose sum the server should know but does not; 0 if there is none."""
        if self._document.trust == "oblivious-server" or self._n_opened == self.head:
            return 0
        return self._n_opened + 1

    def open_requests(self, everyone: bool = False) -> dict[int, Open]:
        """Return what asks members to open the last round, in a hop of its own.

        Parameters
        ----------
        everyone : bool, default: False
            Ask all members for all that they may give: also one whose answer came too late can
            open a sum. Otherwise all survivors are asked, and some of them for the correction.
        """
        if not self.unopened:
            return {}
        if self._open is None:  # an open attempt keeps its cohort
            self._amend()
        tree, survivors = self._cohort(), self.closed[-1].entry.survivors
        asked = sorted(self._index.values())
        wanted = set(asked)
        if not everyone:
            asked = np.flatnonzero(survivors).tolist()
            # Without shares any one correction opens the sum.
            wanted = self._choose_openers(N_OPENERS if self._document.opens_by_quorum else None)
        return {
            self.seats[i].node_id: Open(
                **self._place(i, self.head, tree), want_correction=i in wanted
            )
            for i in asked
        }

    def finish_requests(self) -> dict[int, Finish]:
        """Return the last entries for every member; survivors are asked to open the last sum.

        All of them are asked for the correction: nobody can be asked again, since a member that
        has the result erases its keys. Where the server asked the questions, that sum is open and
        the message holds the result.

        Raises
        ------
        RunError
            If the result is the server's to tell, and it has none.
        """
        self._amend()
        result = self._told()
        tree, openers = self._cohort(), self._choose_openers(None)
        return {
            seat.node_id: Finish(
                **self._place(i, self.head, tree), result=result, want_correction=i in openers
            )
            for i, seat in enumerate(self.seats)
            if seat.is_taken
        }

    def accept_open(self, node_id: int, reply: OpenReply) -> None:
        """Take a member's word that it follows, and what it gives toward opening the last sum."""
        index = self._index.get(node_id)
        if index is not None:
            self.seats[index].followed = self.head
            self._take_given(index, reply)

    def accept_finish(self, node_id: int, reply: OpenReply) -> None:
        """Take a member's word that it has the result, and what it gives toward opening."""
        self.accept_open(node_id, reply)
        if node_id in self._index:
            self.delivered.add(node_id)

    def _choose_openers(self, n: int | None) -> set[int]:
        """Choose members to ask for the correction of the last sum; ``None`` for all survivors."""
        if self._opening is None or not self.unopened:
            return set()
        present = () if self._open is None else np.flatnonzero(self._open.survivors).tolist()
        return self._opening.ask(len(self.seats) if n is None else n, present)

    def _take_given(self, index: int, reply: RoundReply | OpenReply) -> None:
        if self._opening is not None and reply.share_t == self.head == self.unopened:
            self._opening.take(index, reply.share, reply.correction, reply.part_key)

    def try_open(self) -> None:
        """Open the last sum if what members gave suffices; call it at the end of a hop.

        Raises
        ------
        RunError
            If the sum opens in two ways.
        """
        opening = self._opening
        if opening is None or self.unopened != self.head:
            return
        opened = opening.open()
        if opened is not None:
            opened = opened - self._beyond_the_plan(opening)
            for index in sorted(opening.false):
                self.note(self.seats[index].node_id, self.head, FALSE)
            self._opening = None
            self._record_opened(self.head, opened)

    def _beyond_the_plan(self, opening: Opening) -> Words:
        """Return the words of the noise to remove from the sum that is open now."""
        entry, document = opening.entry, self._document
        n_survivors, asked = entry.n_survivors, self._asked_last
        if asked is None or not document.levels:  # clients ask, and go on from the sum as it is
            self.noise_factors.append(math.sqrt(n_survivors / document.shares))
            return np.zeros_like(entry.words)
        keys = opening.keys_of(reached(document, n_survivors))
        noise, factor = remove(self.run, asked.question, self._context, n_survivors, keys)
        self.noise_factors.append(factor)
        return to_ring(np.append(noise, np.int64(0)))

    def not_opened(self) -> RunError:
        """Return the error that ends a run whose last sum the server could not open."""
        return RunError(
            f"The sum of round {self.head} could not be opened for the server. "
            f"Members sent {self._opening}."
        )

    def _record_opened(self, t: int, opened: Words) -> None:
        self.closed[t - 1].opened = opened
        self._n_opened = t
        entry = self.closed[t - 1].entry
        answer = self.run.algorithm.unflatten(from_ring(opened[:-1]), t, entry.answered)
        self._state = self.run.algorithm.update(self._state, answer, self._generator(t))

    @property
    def state(self) -> State:
        """The algorithm's state after all rounds that the server has opened."""
        return self._state

    @property
    def n_opened(self) -> int:
        """Number of rounds that the server has opened."""
        return self._n_opened

    # ------------------------------------------------------------------ the cohort

    def too_few(self) -> TooFewClientsError:
        """Return the error that ends a run whose round failed in every attempt."""
        t, have = self.head + 1, 0 if self._open is None else int(self._open.survivors.sum())
        needed, least = self._needed(len(self.seats)), self._document.min_clients
        crowd = f"{needed} (more than half of {len(self.seats)} places)"
        least_of = crowd if needed > least else f"min_clients={least}"
        return TooFewClientsError(
            f"Expected at least {least_of} answers in round {t} "
            f"of {self._document.rounds}. Got {have} of {self.n_members} in the last of "
            f"{self._document.max_attempts} attempts.{self._reasons(t)}"
        )

    def _place(self, index: int, t: int, tree: Tree) -> dict[str, Any]:
        """Return what round, open and finish have in common for one member."""
        seat = self.seats[index]
        place: dict[str, Any] = {
            "doc_hash": self._doc_hash,
            "t": t,
            "m": len(self.seats),
            "index": index,
            "root": tree.root,
            "path": tree.path(index),
            "entries": self._packed(max(seat.followed, 0)),
        }
        if seat.followed < 0:
            place["doc"] = self._document.data
            if self._leader is not None and seat.public_key in self._leader.envelopes:
                place["leader"] = self._leader.leader
                place["envelope"] = self._leader.envelopes[seat.public_key]
        return place

    def _packed(self, first: int) -> tuple[bytes, ...]:
        """Return the entries from a place on as they travel; each is packed once."""
        for closed in self.closed[len(self._entries) :]:
            self._entries.append(closed.entry.pack())
        return tuple(self._entries[first:])
