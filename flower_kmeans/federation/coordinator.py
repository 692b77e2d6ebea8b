"""The server's side of the protocol: whom it asks what, and which sum it announces.

A coordinator knows nothing of Flower's messages or clocks: it makes requests per node, takes
replies as they arrive, and closes rounds. Under an oblivious server it holds masked words and its
own noise, nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Question, State
from flower_kmeans.errors import RunError, TooFewClientsError
from flower_kmeans.federation.cohort import Tree, leaf
from flower_kmeans.federation.messages import (
    Code,
    Enrol,
    EnrolReply,
    Finish,
    Lead,
    LeadReply,
    Open,
    OpenReply,
    Refusal,
    Round,
    RoundReply,
)
from flower_kmeans.federation.release import server_noise
from flower_kmeans.federation.run import Run
from flower_kmeans.federation.transcript import (
    Entry,
    first_hash,
    next_hash,
    question_hash,
    unpack_words,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.privacy.report import Dropped
from flower_kmeans.secagg.keys import KEY_BYTES
from flower_kmeans.secagg.ring import from_ring, to_ring

N_OPENERS = 3
N_LEADERS = 3

NO_ANSWER = "No answer in time."
CRASHED = "The client or its node failed."
MALFORMED = "The answer was malformed."
STRAY = "The answer belonged to another round, attempt or run."
TWICE = "The client answered twice; only the first answer counted."

Words = NDArray[np.uint64]


@dataclass
class Seat:
    """One member of the cohort as the server knows it."""

    node_id: int
    commitment: bytes
    public_key: bytes
    followed: int = -1  # rounds whose entries the member has; -1 until its first answer


@dataclass
class _OpenRound:
    """The round that is being asked for."""

    t: int
    attempt: int
    context: bytes
    root: bytes
    sum: Words
    survivors: NDArray[np.bool_]


@dataclass
class _ClosedRound:
    """An announced sum, and what it opened to where the server may know."""

    entry: Entry
    opened: Words | None = None


@dataclass
class Coordinator:
    """The server's memory of one run.

    Parameters
    ----------
    run : Run

    Attributes
    ----------
    seats : list of Seat
        The cohort; a member's place in the list is its index.
    incidents : list of Dropped
        Everything that was not an orderly answer.
    dropped : list of Dropped
        Whom a round went on without, and the last incident that explains it.
    """

    run: Run
    seats: list[Seat] = field(default_factory=list)
    incidents: list[Dropped] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    closed: list[_ClosedRound] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._document = self.run.document
        self._doc_hash = self._document.doc_hash
        self._chain = first_hash(self._doc_hash)
        self._index: dict[int, int] = {}
        self._tree: Tree | None = None
        self._open: _OpenRound | None = None
        self._leader = b""
        self._envelopes: dict[bytes, bytes] = {}
        self._key_ids: set[bytes] = set()
        self._state: State = self.run.algorithm.initial_state(None)
        self._n_opened = 0
        self._asked: list[int] = []
        self._declined: set[int] = set()
        self._renewed: dict[int, tuple[bytes, bytes]] = {}
        self._joined: dict[int, Seat] = {}
        self._entries: list[bytes] = []
        self.delivered: set[int] = set()

    # ------------------------------------------------------------------ enrolment

    def enrol_requests(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return the first message to every node."""
        self._asked = sorted(node_ids)
        enrol = Enrol(doc_hash=self._doc_hash, doc=self._document.data, lead=False)
        return dict.fromkeys(self._asked, enrol)

    def accept_enrol(self, node_id: int, reply: EnrolReply) -> None:
        """Give a node a seat; seats are numbered when the enrolment is closed."""
        needs_key = self._document.keys == "relayed"
        known = any(seat.node_id == node_id for seat in self.seats)
        if known or bool(reply.public_key) != needs_key:
            self.note(node_id, 0, TWICE if known else MALFORMED)
            return
        if reply.key_id is not None:
            self._key_ids.add(reply.key_id)
        self.seats.append(Seat(node_id, reply.commitment, reply.public_key))

    def join_requests(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return the first message to nodes that came late, or whose enrolment was lost.

        Relayed keys are sealed for the first members only, so such a run takes no late ones.
        """
        if self._document.keys == "relayed":
            return {}
        known = self._index.keys() | self._joined.keys() | self._declined
        late = [node_id for node_id in node_ids if node_id not in known]
        enrol = Enrol(doc_hash=self._doc_hash, doc=self._document.data, lead=False)
        return dict.fromkeys(late, enrol)

    def accept_join(self, node_id: int, reply: EnrolReply) -> None:
        """Append a late member to the cohort; it is asked from the next attempt or round on."""
        fits = reply.key_id is None or reply.key_id in self._key_ids
        if node_id in self._index or reply.public_key or not fits:
            self.note(node_id, self.head + 1, TWICE if node_id in self._index else MALFORMED)
            return
        self._joined[node_id] = Seat(node_id, reply.commitment, b"")

    def _amend(self) -> None:
        """Put renewed and late members into the tree, between two attempts and never within one.

        The root is part of the open attempt's context: all its answers must be to the same one.
        """
        tree = self._cohort()
        for index, (commitment, public_key) in self._renewed.items():
            self.seats[index].commitment = commitment
            self.seats[index].public_key = public_key
            tree.update(index, self._leaf(index))
        for node_id, seat in self._joined.items():
            self._index[node_id] = len(self.seats)
            self.seats.append(seat)
            tree.append(self._leaf(self._index[node_id]))
        self._renewed.clear()
        self._joined.clear()

    def close_enrolment(self) -> None:
        """Give members their index by ascending node id, and build the tree.

        Raises
        ------
        TooFewClientsError
            If fewer than ``min_clients`` nodes enrolled.
        RunError
            If clients hold different group key files.
        """
        need, have = self._document.min_clients, len(self.seats)
        if have < need:
            raise TooFewClientsError(
                f"Expected at least min_clients={need} clients to take part. Got {have} instead."
                + self._reasons(0)
            )
        if len(self._key_ids) > 1:
            raise RunError(
                "Expected all clients to hold the same group key file. "
                f"Got {len(self._key_ids)} different ones instead."
            )
        self.seats.sort(key=lambda seat: seat.node_id)
        self._index = {seat.node_id: i for i, seat in enumerate(self.seats)}
        self._tree = Tree(self._leaf(i) for i in range(have))
        self.note_dropped(0, (node for node in self._asked if node not in self._index))

    def lead_requests(self, candidates: Sequence[int]) -> dict[int, Lead]:
        """Return what asks the candidates (by seat) for a group key, where keys are relayed."""
        lead = Lead(doc_hash=self._doc_hash, pubs=tuple(seat.public_key for seat in self.seats))
        return {self.seats[i].node_id: lead for i in candidates}

    def accept_lead(self, node_id: int, reply: LeadReply) -> None:
        """Keep the first complete set of envelopes; two are never mixed."""
        envelopes = {item[:KEY_BYTES]: item[KEY_BYTES:] for item in reply.envelopes}
        if not self._leader and all(seat.public_key in envelopes for seat in self.seats):
            self._leader, self._envelopes = reply.leader, envelopes

    @property
    def needs_leader(self) -> bool:
        """Whether a group key must still be relayed."""
        return self._document.keys == "relayed" and not self._leader

    # ------------------------------------------------------------------ rounds

    @property
    def head(self) -> int:
        """Number of closed rounds."""
        return len(self.closed)

    def round_requests(self, attempt: int) -> dict[int, Round]:
        """Open an attempt at the next round and return what asks every member for its answer."""
        self._amend()
        tree, t = self._cohort(), self.head + 1
        length, m = self._document.words_of(t), len(self.seats)
        draft = Entry(
            t,
            attempt,
            m,
            tree.root,
            question_hash(),
            np.zeros(m, dtype=np.bool_),
            np.zeros(length, dtype=np.uint64),
        )
        context = draft.context(self._doc_hash, self._chain)
        self._open = _OpenRound(t, attempt, context, tree.root, draft.words, draft.survivors)
        return self.repeat_requests(seat.node_id for seat in self.seats)

    def repeat_requests(self, node_ids: Iterable[int]) -> dict[int, Round]:
        """Return what asks these members for their answers in the open attempt."""
        tree, now = self._cohort(), self._open
        if now is None:
            return {}
        wanted, indices = set(self._openers(N_OPENERS)), self._index
        return {
            node_id: Round(
                **self._place(indices[node_id], now.t, tree),
                attempt=now.attempt,
                want_correction=indices[node_id] in wanted,
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
        now.sum += unpack_words(reply.words)  # modulo 2^64
        now.survivors[index] = True
        self.seats[index].followed = now.t - 1
        self._take_correction(reply.correction_t, reply.correction)

    @property
    def has_enough(self) -> bool:
        """Whether enough members answered the open attempt."""
        now = self._open
        return now is not None and int(now.survivors.sum()) >= self._document.min_clients

    def close_round(self) -> bool:
        """Announce the open attempt's sum if enough members answered; return whether it was."""
        now = self._open
        if now is None or not self.has_enough:
            return False
        total = now.sum
        if self._document.trust in ("oblivious-server", "trusted-server"):
            total = total + self._noise(now.t)
        entry = Entry(
            now.t,
            now.attempt,
            len(now.survivors),
            now.root,
            question_hash(),
            now.survivors,
            total,
        )
        self._chain = next_hash(self._chain, now.context, entry)
        self.closed.append(_ClosedRound(entry))
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
        return [seat.node_id for i, seat in enumerate(self.seats) if not present[i]]

    def _noise(self, t: int) -> Words:
        question = Question(round=t, arrays={})
        noise = server_noise(self.run.algorithm, self.run.plan, question, Stream.fresh())
        return to_ring(np.append(noise, np.int64(0)))

    # ------------------------------------------------------------------ opening and delivery

    @property
    def unopened(self) -> int:
        """The first round whose sum the server should know but does not; 0 if there is none."""
        if self._document.trust == "oblivious-server" or self._n_opened == self.head:
            return 0
        return self._n_opened + 1

    def open_requests(self) -> dict[int, Open]:
        """Return what asks all survivors of the last round to open it."""
        if self._open is None:  # an open attempt keeps its cohort
            self._amend()
        tree = self._cohort()
        return {
            self.seats[i].node_id: Open(**self._place(i, self.head, tree), want_correction=True)
            for i in self._openers(len(self.seats))
        }

    def finish_requests(self) -> dict[int, Finish]:
        """Return the last entries for every member; survivors are asked to open the last sum."""
        self._amend()
        tree, openers = self._cohort(), set(self._openers(len(self.seats)))
        return {
            seat.node_id: Finish(**self._place(i, self.head, tree), want_correction=i in openers)
            for i, seat in enumerate(self.seats)
        }

    def accept_open(self, node_id: int, reply: OpenReply) -> None:
        """Take a member's word that it follows, and its correction if it gave one."""
        index = self._index.get(node_id)
        if index is not None:
            self.seats[index].followed = self.head
            self.delivered.add(node_id)
        self.accept_correction(node_id, reply)

    def accept_correction(self, node_id: int, reply: OpenReply) -> None:
        """Take the correction that a survivor gave between two rounds."""
        self._take_correction(reply.correction_t, reply.correction)

    def _openers(self, n: int) -> list[int]:
        if self._document.opening != "simple" or not self.unopened:
            return []
        return [int(i) for i in np.flatnonzero(self.closed[-1].entry.survivors)[:n]]

    def _take_correction(self, t: int | None, correction: bytes | None) -> None:
        if t is None or correction is None or t != self.unopened:
            return
        entry = self.closed[t - 1].entry
        if len(correction) != 8 * len(entry.words):
            return
        opened = entry.words - unpack_words(correction)
        if int(opened[-1]) == entry.n_survivors:
            self._record_opened(t, opened)

    def _record_opened(self, t: int, opened: Words) -> None:
        self.closed[t - 1].opened = opened
        self._n_opened = t
        answer = self.run.algorithm.unflatten(from_ring(opened[:-1]), t)
        self._state = self.run.algorithm.update(self._state, answer)

    @property
    def state(self) -> State:
        """The algorithm's state after all rounds that the server has opened."""
        return self._state

    @property
    def n_opened(self) -> int:
        """Number of rounds that the server has opened."""
        return self._n_opened

    # ------------------------------------------------------------------ the cohort

    def refuse(self, node_id: int, refusal: Refusal, t: int) -> None:
        """Take a refusal: renew the member, remember what it lacks, or end the run.

        Raises
        ------
        RunError
            If a client could not open an announced sum.
        """
        index, code = self._index.get(node_id), Code(refusal.code)
        self.note(node_id, t, code.sentence)
        if index is None:
            self._declined.add(node_id)
        else:
            seat = self.seats[index]
            seat.followed = -1
            if code == Code.RENEW and refusal.commitment is not None:
                self._renewed[index] = (refusal.commitment, refusal.public_key)
        if code == Code.GARBAGE:
            raise RunError(
                "A client could not open an announced sum: keys differ or messages were altered."
            )

    def note(self, node_id: int, t: int, reason: str) -> None:
        """Remember something that was not an orderly answer."""
        self.incidents.append(Dropped(self._index.get(node_id, -1), node_id, t, reason))

    def note_dropped(self, t: int, nodes: Iterable[int]) -> None:
        """Record that round ``t`` went on without these nodes, each with what explains it."""
        reasons = {entry.node_id: entry.reason for entry in self.incidents if entry.round == t}
        for node_id in nodes:
            reason = reasons.get(node_id, NO_ANSWER)
            self.dropped.append(Dropped(self._index.get(node_id, -1), node_id, t, reason))

    def too_few(self) -> TooFewClientsError:
        """Return the error that ends a run whose round failed in every attempt."""
        t, have = self.head + 1, 0 if self._open is None else int(self._open.survivors.sum())
        return TooFewClientsError(
            f"Expected at least min_clients={self._document.min_clients} answers in round {t} "
            f"of {self._document.rounds}. Got {have} of {len(self.seats)} in the last of "
            f"{self._document.max_attempts} attempts.{self._reasons(t)}"
        )

    def _reasons(self, t: int) -> str:
        reasons = sorted({entry.reason for entry in self.incidents if entry.round == t})
        return f" Reasons: {' '.join(reasons)}" if reasons else ""

    def _cohort(self) -> Tree:
        if self._tree is None:
            raise RunError("The enrolment is not closed.")
        return self._tree

    def _leaf(self, index: int) -> bytes:
        seat = self.seats[index]
        return leaf(index, seat.node_id, seat.commitment, seat.public_key)

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
            if seat.public_key in self._envelopes:
                place["leader"] = self._leader
                place["envelope"] = self._envelopes[seat.public_key]
        return place

    def _packed(self, first: int) -> tuple[bytes, ...]:
        """Return the entries from a place on as they travel; each is packed once."""
        for closed in self.closed[len(self._entries) :]:
            self._entries.append(closed.entry.pack())
        return tuple(self._entries[first:])
