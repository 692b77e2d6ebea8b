"""Who takes part in a run, as the server knows it (docs/protocol.md, sections 4 and 5).

An enrolment seats the members, lets one of them make the group key, and puts renewed and late
members into the tree between two attempts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flower_kmeans.errors import MessageError, RunError, TooFewClientsError
from flower_kmeans.federation.cohort import Tree
from flower_kmeans.federation.messages import (
    Code,
    Enrol,
    EnrolReply,
    Lead,
    LeadReply,
    Refusal,
)
from flower_kmeans.federation.run import Run
from flower_kmeans.federation.seating import STRANGER, TAKEN, Offer, Seat, seats_by_roster
from flower_kmeans.privacy.report import Dropped
from flower_kmeans.secagg.keys import KEY_BYTES, require_public_key
from flower_kmeans.secagg.sharing import quorum

N_LEADERS = 3

NO_ANSWER = "No answer in time."
MALFORMED = "The answer was malformed."
TWICE = "The client answered twice; only the first answer counted."


@dataclass
class Enrolment:
    """The server's memory of a run's members.

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

    def __post_init__(self) -> None:
        self._document = self.run.document
        self._doc_hash = self._document.doc_hash
        self._index: dict[int, int] = {}
        self._tree: Tree | None = None
        self._leader: Offer | None = None
        self._offers: list[Offer] = []
        self._key_ids: set[bytes] = set()
        self._asked: list[int] = []
        self._declined: set[int] = set()
        self._renewed: dict[int, tuple[bytes, bytes]] = {}
        self._joined: dict[int, Seat] = {}

    @property
    def head(self) -> int:
        """Number of closed rounds: none while members enrol."""
        return 0

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
        # A node that names no key file holds none, and its place could only be in the way.
        is_member = self._is_key(reply.public_key) and self._names_key_file(reply)
        if known or not is_member:
            self.note(node_id, 0, TWICE if known else MALFORMED)
            return
        if reply.key_id is not None:
            self._key_ids.add(reply.key_id)
        self.seats.append(Seat(node_id, reply.commitment, reply.public_key, ledger=reply.ledger))
        if self._document.keys == "roster":
            self._offer(reply)

    def _names_key_file(self, reply: EnrolReply) -> bool:
        """Return whether a node names the file of its group key exactly where members hold one."""
        return (reply.key_id is not None) == (self._document.keys == "file")

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
        fits = self._names_key_file(reply)
        fits = fits and (reply.key_id is None or reply.key_id in self._key_ids)
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
        """Take a leader, and seat the members by its roster.

        It is the one whom most leaders know, and of these the one whose roster has most of the
        members on it and fewest others.

        Does nothing if none has answered, or keys do not come from a roster.

        Raises
        ------
        TooFewClientsError
            If fewer than ``min_clients`` members are on that roster, or too few of those on it have
            come for a quorum.
        """
        if self._document.keys != "roster" or self._leader is not None or not self._offers:
            return
        # Who is on other leaders' rosters comes first: a stranger is on its own alone.
        best = max(  # ties: the first
            self._offers,
            key=lambda offer: (
                sum(offer.is_known_to(other) for other in self._offers),
                offer.covers(self.seats),
                -len(offer.envelopes),
            ),
        )
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

    # ------------------------------------------------------------------ who is missing

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

    def _reasons(self, t: int) -> str:
        reasons = sorted({entry.reason for entry in self.incidents if entry.round == t})
        return f" Reasons: {' '.join(reasons)}" if reasons else ""

    def _cohort(self) -> Tree:
        if self._tree is None:
            raise RunError("The enrolment is not closed.")
        return self._tree

    def _needed(self, m: int) -> int:
        """Return how many answers make a round: a quorum too, where that has to open the sum."""
        least = self._document.min_clients
        return max(least, quorum(m)) if self._document.opens_by_quorum else least
