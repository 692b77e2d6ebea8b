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
from flower_kmeans.errors import MessageError, RunError, TooFewClientsError
from flower_kmeans.federation.cohort import Tree
from flower_kmeans.federation.document import NONE
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
from flower_kmeans.federation.opening import N_OPENERS, Opening
from flower_kmeans.federation.release import server_noise
from flower_kmeans.federation.run import Run
from flower_kmeans.federation.seating import STRANGER, TAKEN, Offer, Seat, seats_by_roster
from flower_kmeans.federation.transcript import (
    Entry,
    first_hash,
    next_hash,
    question_hash,
    unpack_words,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.privacy.report import Dropped
from flower_kmeans.secagg.keys import KEY_BYTES, require_public_key
from flower_kmeans.secagg.ring import from_ring, to_ring
from flower_kmeans.secagg.sharing import quorum

N_LEADERS = 3

NO_ANSWER = "No answer in time."
CRASHED = "The client or its node failed."
MALFORMED = "The answer was malformed."
STRAY = "The answer belonged to another round, attempt or run."
TWICE = "The client answered twice; only the first answer counted."
FALSE = "What the client sent to open a sum was false."

Words = NDArray[np.uint64]


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
        The cohort; a member's place in the list is its index. With a roster, every pinned key has
        a seat, taken or not.
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
        self._leader: Offer | None = None
        self._offers: list[Offer] = []
        self._key_ids: set[bytes] = set()
        self._state: State = self.run.algorithm.initial_state(None)
        self._opening: Opening | None = None
        self._openers: set[int] = set()
        self._n_opened = 0
        self._asked: list[int] = []
        self._declined: set[int] = set()
        self._renewed: dict[int, tuple[bytes, bytes]] = {}
        self._joined: dict[int, Seat] = {}
        self._entries: list[bytes] = []
        self.delivered: set[int] = set()

    # ------------------------------------------------------------------ enrolment

    def enrol_requests(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return the first message to every node; with a roster, some are asked to lead."""
        self._asked = sorted(node_ids)
        n_leaders = N_LEADERS if self._document.keys == "roster" else 0
        return dict.fromkeys(self._asked[:n_leaders], self._enrol(lead=True)) | dict.fromkeys(
            self._asked[n_leaders:], self._enrol()
        )

    def _enrol(self, *, lead: bool = False) -> Enrol:
        return Enrol(doc_hash=self._doc_hash, doc=self._document.data, lead=lead)

    def accept_enrol(self, node_id: int, reply: EnrolReply) -> None:
        """Give a node a seat; seats are numbered when the enrolment is closed."""
        known = any(seat.node_id == node_id for seat in self.seats)
        if known or not self._is_key(reply.public_key):
            self.note(node_id, 0, TWICE if known else MALFORMED)
            return
        if reply.key_id is not None:
            self._key_ids.add(reply.key_id)
        self.seats.append(Seat(node_id, reply.commitment, reply.public_key, ledger=reply.ledger))
        if self._document.keys == "roster":
            self._offer(reply)

    def _is_key(self, public_key: bytes) -> bool:
        """Return whether an envelope for every member can be made with this key among theirs."""
        source = self._document.keys
        if source not in ("relayed", "roster"):
            return not public_key
        try:
            require_public_key(public_key)
        except MessageError:
            return False
        # Pinned keys that come twice are told apart when the roster is known.
        return source == "roster" or all(seat.public_key != public_key for seat in self.seats)

    def join_requests(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return the first message to nodes that came late, or whose enrolment was lost.

        Relayed keys are sealed for the first members only, so such a run takes no late ones.
        """
        if self._document.keys == "relayed":
            return {}
        known = self._index.keys() | self._joined.keys() | self._declined
        late = [node_id for node_id in node_ids if node_id not in known]
        return dict.fromkeys(late, self._enrol())

    def accept_join(self, node_id: int, reply: EnrolReply) -> None:
        """Seat a late member; it is asked from the next attempt or round on."""
        fits = reply.key_id is None or reply.key_id in self._key_ids
        pinned = self._document.keys == "roster"
        if node_id in self._index or bool(reply.public_key) != pinned or not fits:
            self.note(node_id, self.head + 1, TWICE if node_id in self._index else MALFORMED)
            return
        seat = Seat(node_id, reply.commitment, reply.public_key, ledger=reply.ledger)
        objection = self._objection_to(seat) if pinned else None
        if objection is not None:
            self.note(node_id, self.head + 1, objection)
            self._declined.add(node_id)
            return
        self._joined[node_id] = seat

    def _objection_to(self, late: Seat) -> str | None:
        """Return why a late member cannot have the place of its pinned key, or ``None``."""
        holder = next((s for s in self.seats if s.public_key == late.public_key), None)
        if holder is None:
            return STRANGER
        promised = any(seat.public_key == late.public_key for seat in self._joined.values())
        return TAKEN if holder.is_taken or promised else None

    def _amend(self) -> None:
        """Put renewed and late members into the tree, between two attempts and never within one.

        The root is part of the open attempt's context: all its answers must be to the same one.
        """
        tree = self._cohort()
        for index, (commitment, public_key) in self._renewed.items():
            self.seats[index].commitment = commitment
            self.seats[index].public_key = public_key
            tree.update(index, self.seats[index].leaf(index))
        for node_id, seat in self._joined.items():
            index = self._place_of(seat)
            self._index[node_id] = index
            if index == len(self.seats):
                self.seats.append(seat)
                tree.append(seat.leaf(index))
            else:
                self.seats[index] = seat
                tree.update(index, seat.leaf(index))
        self._renewed.clear()
        self._joined.clear()

    def _place_of(self, late: Seat) -> int:
        """Return the index of a late member: that of its pinned key, or the next one."""
        if self._document.keys == "roster":
            return next(i for i, s in enumerate(self.seats) if s.public_key == late.public_key)
        return len(self.seats)

    def close_enrolment(self) -> None:
        """Give members their index by ascending node id, or by the roster if a leader sent it.

        With a roster and no leader yet, `close_leading` does so.

        Raises
        ------
        TooFewClientsError
            If fewer than ``min_clients`` nodes enrolled.
        RunError
            If clients hold different group key files.
        """
        self._require_enough()
        if len(self._key_ids) > 1:
            raise RunError(
                "Expected all clients to hold the same group key file. "
                f"Got {len(self._key_ids)} different ones instead."
            )
        self.seats.sort(key=lambda seat: seat.node_id)
        if self._document.keys == "roster":
            self.close_leading()
        else:
            self._seat(self.seats)

    def _require_enough(self) -> None:
        need, have = self._document.min_clients, self.n_members
        if have < need:
            raise TooFewClientsError(
                f"Expected at least min_clients={need} clients to take part. Got {have} instead."
                + self._reasons(0)
            )

    def _seat(self, seats: list[Seat]) -> None:
        """Fix who sits where, and build the tree."""
        self.seats = seats
        self._index = {seat.node_id: i for i, seat in enumerate(seats) if seat.is_taken}
        self._tree = Tree(seat.leaf(i) for i, seat in enumerate(seats))
        self.note_dropped(0, (node for node in self._asked if node not in self._index))

    def lead_requests(self, candidates: Sequence[int]) -> dict[int, Lead | Enrol]:
        """Return what asks the candidates (by seat) for a group key."""
        nodes = [self.seats[i].node_id for i in candidates]
        if self._document.keys == "roster":
            return dict.fromkeys(nodes, self._enrol(lead=True))
        lead = Lead(doc_hash=self._doc_hash, pubs=tuple(seat.public_key for seat in self.seats))
        return dict.fromkeys(nodes, lead)

    def accept_lead(self, node_id: int, reply: LeadReply | EnrolReply) -> None:
        """Keep the envelopes of one leader; those of two are never mixed."""
        self._offer(reply)
        if self._document.keys == "relayed" and self._leader is None:
            complete = (o for o in self._offers if o.covers(self.seats) == len(self.seats))
            self._leader = next(complete, None)

    def close_leading(self) -> None:
        """Take the leader whose roster has most of the members on it, and seat them by it.

        Does nothing if none has answered, or keys do not come from a roster.

        Raises
        ------
        TooFewClientsError
            If fewer than ``min_clients`` members are on that roster, or too few of those on it have
            come for a quorum.
        """
        if self._document.keys != "roster" or self._leader is not None or not self._offers:
            return
        best = max(self._offers, key=lambda offer: offer.covers(self.seats))  # ties: the first
        self._leader = best
        seats, turned_away = seats_by_roster(self.seats, tuple(best.envelopes))
        for node_id, reason in turned_away.items():
            self.note(node_id, 0, reason)
            self._declined.add(node_id)
        self._seat(seats)
        self._require_enough()
        needed = self._needed(len(seats))  # a quorum is of all places, taken or not
        if self.n_members < needed:
            raise TooFewClientsError(
                f"Expected a quorum of {needed} of the {len(seats)} members on the roster to take "
                f"part. Got {self.n_members} instead.{self._reasons(0)}"
            )

    def _offer(self, reply: LeadReply | EnrolReply) -> None:
        if reply.leader is not None:
            envelopes = {item[:KEY_BYTES]: item[KEY_BYTES:] for item in reply.envelopes}
            self._offers.append(Offer(reply.leader, envelopes))

    @property
    def needs_leader(self) -> bool:
        """Whether a group key must still be made by one of the members."""
        return self._document.keys in ("relayed", "roster") and self._leader is None

    @property
    def n_members(self) -> int:
        """Number of members that took their seats."""
        return sum(seat.is_taken for seat in self.seats)

    @property
    def n_places(self) -> int:
        """Number of places: with a roster more than members, if not all have come."""
        return len(self.seats)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every member said that it keeps a ledger, which only they can know."""
        return bool(self._index) and all(seat.ledger for seat in self.seats if seat.is_taken)

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
        words = unpack_words(reply.words)
        if not self._document.is_masked and int(words[-1]) != 1:
            self.note(node_id, now.t, MALFORMED)  # no client could open a sum with these in it
            return
        now.sum += words  # modulo 2^64
        now.survivors[index] = True
        self.seats[index].followed = now.t - 1
        self._take_given(index, reply)

    @property
    def has_enough(self) -> bool:
        """Whether enough members answered the open attempt."""
        now = self._open
        return now is not None and int(now.survivors.sum()) >= self._needed(len(now.survivors))

    def _needed(self, m: int) -> int:
        """Return how many answers make a round: a quorum too, where that has to open the sum."""
        least = self._document.min_clients
        return max(least, quorum(m)) if self._document.opens_by_quorum else least

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
        if self._document.opening != NONE:
            self._opening = Opening(entry, self._chain, self._document.opens_by_quorum)
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

    def open_requests(self, everyone: bool = False) -> dict[int, Open]:
        """Return what asks members to open the last round, in a hop of its own.

        Parameters
        ----------
        everyone : bool (default: False)
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
        has the result erases its keys.
        """
        self._amend()
        tree, openers = self._cohort(), self._choose_openers(None)
        return {
            seat.node_id: Finish(**self._place(i, self.head, tree), want_correction=i in openers)
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
            self._opening.take(index, reply.share, reply.correction)

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
            for index in sorted(opening.false):
                self.note(self.seats[index].node_id, self.head, FALSE)
            self._opening = None
            self._record_opened(self.head, opened)

    def not_opened(self) -> RunError:
        """Return the error that ends a run whose last sum the server could not open."""
        return RunError(
            f"The sum of round {self.head} could not be opened for the server. "
            f"Members sent {self._opening}."
        )

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
            known = self._document.keys != "roster" or refusal.public_key == seat.public_key
            if code == Code.RENEW and refusal.commitment is not None and known:
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
        needed, least = self._needed(len(self.seats)), self._document.min_clients
        crowd = f"{needed} (more than half of {len(self.seats)} places)"
        least_of = crowd if needed > least else f"min_clients={least}"
        return TooFewClientsError(
            f"Expected at least {least_of} answers in round {t} "
            f"of {self._document.rounds}. Got {have} of {self.n_members} in the last of "
            f"{self._document.max_attempts} attempts.{self._reasons(t)}"
        )

    def _reasons(self, t: int) -> str:
        reasons = sorted({entry.reason for entry in self.incidents if entry.round == t})
        return f" Reasons: {' '.join(reasons)}" if reasons else ""

    def _cohort(self) -> Tree:
        if self._tree is None:
            raise RunError("The enrolment is not closed.")
        return self._tree

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
