"""The cohort as the server knows it: its clients, the frame of an attempt, and the group key.

With a roster every pinned key has a slot, whether its client is there or not. Without one, slots
follow the order in which clients came. A cohort changes between two attempts and never within one,
because the root of its tree stands in every context (docs/protocol.md, sections 4 to 6).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile

import msgspec
import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS, Committee, corrupt_positions, drawn
from flower_kmeans.protocol.messages import Enrolled, Peer, Refusal, Wrap
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import EPOCHS, MAX_SLOTS, Run
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree, leaf
from flower_kmeans.secagg.base import Sharing
from flower_kmeans.secagg.key_agreement import TAG_BYTES

TWICE = "The client answered twice; only the first answer counted."
LATE = "The client came late, and keys are relayed to the first clients only."
MALFORMED = "The answer was malformed."
STRANGER = "The client's key is not on the roster."
TAKEN = "Another client holds this slot."
FULL = "The cohort has no slot left."
DISTRIBUTORS = 3  # of the group key, in one round trip
ENVELOPE_BYTES = 48
_IN_MEMORY = 2**24  # bytes of shares; more go to a temporary file


@dataclass(eq=False)
class Client:
    """A client that enrolled, and all that the server knows of it."""

    node_id: int
    slot: int
    public: Enrolled  # what it sent when its session began
    new: Enrolled | None  # what it has from the next frame on, where it has a slot then
    has_document: bool = False
    has_key: bool = False  # the group key
    wraps: list[Wrap] = field(default_factory=list)  # envelopes of it; the first is in use
    head: int = 0  # rounds whose entries it has
    sent: int = 0  # last round of the entries that it was sent
    differs: bool = False  # from most clients, in the last attempt
    is_banned: bool = False  # from all sums to come

    @property
    def wrap(self) -> Wrap | None:
        """The envelope for it, where it may lack the group key."""
        return self.wraps[0] if self.wraps and not self.has_key else None


@dataclass(frozen=True)
class Frame:
    """The cohort of one attempt. It has a committee where vectors leave their clients protected."""

    slots: dict[int, Client]  # those that are taken, in their order
    tree: Tree
    n_slots: int
    committee: Committee | None = None
    present: dict[int, Client] = field(default_factory=dict)  # of the committee, by position
    digest: bytes = ZERO  # of the committee's keys
    encoded: bytes = b""  # the committee as it travels
    sharing: Sharing | None = None  # where the committee adds, and enough of it are present

    def bits(self, clients: Iterable[Client]) -> NDArray[np.bool_]:
        """Return which slots are those of some clients, (n_slots,) bool."""
        bits = np.zeros(self.n_slots, dtype=np.bool_)
        bits[[client.slot for client in clients]] = True
        return bits

    def tag(self, sender: Client, receiver: Client) -> bytes:
        """Return the tag of a sender's ephemeral key for a receiver; empty if it sent none."""
        tags, index = sender.public.tags, None
        if self.committee and len(tags) == TAG_BYTES * self.n_slots:
            index = receiver.slot
        elif self.committee and len(tags) == TAG_BYTES * len(self.committee.slots):
            index = self.committee.position_of(receiver.slot)
        return b"" if index is None else tags[TAG_BYTES * index : TAG_BYTES * (index + 1)]

    def peer(self, sender: Client, receiver: Client) -> Peer:
        """Return a client as it is passed on to another one."""
        tag = self.tag(sender, receiver)
        return Peer(slot=sender.slot, public_key=sender.public.public_key, tag=tag)

    def tags_for(self, receiver: Client) -> bytes:
        """Return the committee's tags for a receiver, in the order of positions."""
        members = map(self.present.get, range(len(self.committee.slots) if self.committee else 0))
        tags = (self.tag(member, receiver) if member else b"" for member in members)
        return b"".join(tag or bytes(TAG_BYTES) for tag in tags)


class Cohort:
    """The clients of a run, and who has the group key (docs/protocol.md, section 5).

    Envelopes of two key distributors are two group keys, so the server uses those of one, and the
    next one's if too few clients could open them. The roster is that of ``keys="roster"``.
    """

    def __init__(self, run: Run, roster: Roster | None) -> None:
        self._run, self._roster = run, roster
        self._slot_of = {} if roster is None else {key: i for i, key in enumerate(roster.keys)}
        self.clients: dict[int, Client] = {}  # those with a slot, by node, in the order of slots
        self.claims: dict[int, deque[Client]] = {}  # by slot: who has it, or will, and who waits
        self.known: set[int] = set()  # nodes whose enrolment was accepted or declined
        self.is_closed = False  # to new clients
        self.offers: list[dict[Client, Wrap]] = []  # envelopes of group keys that are not in use
        # Zeros stand for absent positions, so no client may have them as its key.
        self._owners: dict[bytes, int] = {ZERO: -1}  # slots by the ephemeral keys of their clients
        self._committee = None if roster is None else committee_of(roster, run.document.epoch)
        self._frame: Frame | None = None

    @property
    def n_slots(self) -> int:
        """Number of slots, taken or not."""
        return len(self.clients) if self._roster is None else len(self._roster)

    # ------------------------------------------------------------------ slots

    def take(self, node_id: int, reply: Enrolled) -> str | None:
        """Give a client a slot from the next frame on, or return why it has none."""
        if node_id in self.known:
            return TWICE
        self.known.add(node_id)
        slot = len(self.claims) if self._roster is None else self._slot_of.get(reply.static, -1)
        if self.is_closed:
            return LATE
        if slot < 0:
            return STRANGER
        if slot == MAX_SLOTS:
            return FULL
        if not self._accepts(reply, slot):
            return MALFORMED
        claims = self.claims.setdefault(slot, deque())
        claims.append(Client(node_id, slot, reply, reply))
        return TAKEN if len(claims) > 1 else None

    def renew(self, client: Client, refusal: Refusal) -> bool:
        """Take a client's new session, from the next frame on; return whether it is acceptable."""
        if refusal.commitment is None or refusal.static != client.public.static:
            return False
        public = msgspec.structs.replace(
            client.public,
            commitment=refusal.commitment,
            public_key=refusal.public_key,
            tags=refusal.tags,
        )
        is_acceptable = self._accepts(public, client.slot)
        if is_acceptable:
            client.new = public
        return is_acceptable

    def give_up(self, client: Client) -> None:
        """Give a slot that others cannot share with to the next client of its lasting key."""
        claims = self.claims[client.slot]
        if len(claims) > 1 and claims[0].new is None:
            claims.rotate(-1)
            claims[0].new = claims[0].new or claims[0].public

    def _accepts(self, public: Enrolled, slot: int) -> bool:
        """Return whether a client's keys can stand in a committee's list, where each is once."""
        # A key that another slot ever had would make the list of a later attempt malformed.
        key = public.public_key
        return not self._run.trust.is_protected or (
            len(key) == len(ZERO) and self._owners.setdefault(key, slot) == slot
        )

    # ------------------------------------------------------------------ the group key

    @property
    def uses_key(self) -> bool:
        """Whether envelopes of a group key are in use."""
        return any(client.wraps for client in self.clients.values())

    def distributors(self, frame: Frame) -> list[Client]:
        """Return the committee members that seal the group secret."""
        members, is_new = frame.present.values(), not self.uses_key
        return [c for c in members if not c.differs and (c.has_key or is_new)][:DISTRIBUTORS]

    def offer(
        self, frame: Frame, sender: Client, peers: Sequence[Peer], envelopes: Sequence[bytes]
    ) -> None:
        """Keep a distributor's envelopes for peers."""
        if len(envelopes) != len(peers) or not any(envelopes):
            return
        made = dict[Client, Wrap]()
        for peer, envelope in zip(peers, envelopes, strict=True):
            client = frame.slots[peer.slot]
            if len(envelope) == ENVELOPE_BYTES:
                made[client] = Wrap(distributor=frame.peer(sender, client), envelope=envelope)
            else:  # the peer's tag for the distributor, or its key, is wrong
                self.give_up(client)
        if not self.uses_key:
            self.offers.append(made)
        else:  # the distributor has the key: its envelopes hold the same secret
            for client, wrap in made.items():
                client.wraps.append(wrap)

    def accept_offer(self) -> None:
        """Use the envelopes of the distributor that made most, unless some are in use."""
        if self.offers and not self.uses_key:
            self.offers.sort(key=len, reverse=True)
            self.change_key()

    def change_key(self) -> None:
        """Use the next distributor's envelopes for all clients but those that have the key."""
        made = self.offers.pop(0)
        for client in self.clients.values():
            if not (client.has_key and client.wraps):
                client.wraps = [made[client]] if client in made else []

    def forget_key(self, client: Client) -> None:
        """Record that a client lacks the group key, and that its envelopes do not open."""
        client.has_key, client.wraps = False, []
        for made in self.offers:
            made.pop(client, None)

    # ------------------------------------------------------------------ committee and frame

    def can_add(self, epoch: int | None = None) -> bool:
        """Return whether a committee of some epoch is whole, or could miss one member more."""
        document, trust = self._run.document, self._run.trust
        if self._roster is None or not trust.has_committee:
            return True
        slots = committee_of(self._roster, document.epoch if epoch is None else epoch)
        n_present = len(self.claims.keys() & set(slots))
        f = corrupt_positions(self.n_slots, document.max_colluders)
        try:
            return n_present == len(slots) or bool(trust.sum.set_up(len(slots), f, n_present - 1))
        except ConfigurationError:
            return False

    def better_epoch(self) -> int | None:
        """Return an epoch whose committee can add, if that of the run document cannot."""
        return None if self.can_add() else next(filter(self.can_add, range(EPOCHS)), None)

    def frame(self) -> Frame:
        """Take all changes and return the cohort as it is now."""
        slots = {slot: claims[0] for slot, claims in sorted(self.claims.items())}
        for client in slots.values():
            if client.new is not None:
                client.public, client.new, client.head = client.new, None, 0
                self.forget_key(client)
                self._frame = None
        if self._frame is None:
            self.clients = {client.node_id: client for client in slots.values()}
            self._frame = self._framed(slots)
        return self._frame

    def _framed(self, slots: dict[int, Client]) -> Frame:
        n_slots, trust = self.n_slots, self._run.trust
        public = {slot: client.public for slot, client in slots.items()}
        tree = Tree(
            leaf(i, one.commitment, one.static, one.public_key) if (one := public.get(i)) else EMPTY
            for i in range(n_slots)
        )
        if not trust.is_protected:
            return Frame(slots, tree, n_slots)
        if self._committee is None:
            # At random: clients that pool what they know could be the first to come.
            order = sorted(range(n_slots), key=lambda slot: token(16))
            self._committee = tuple(sorted(order[:MAX_POSITIONS]))
        keys = tuple(public[i].public_key if i in public else b"" for i in self._committee)
        committee = Committee(self._committee, keys, n_slots, self._run.document.max_colluders)
        try:
            sharing = committee.sharing(trust.sum)
        except ConfigurationError:
            sharing = None  # too few of it are present
        present = {j: slots[i] for j, i in enumerate(self._committee) if i in slots}
        digest, encoded = committee.digest, committee.encode()
        return Frame(slots, tree, n_slots, committee, present, digest, encoded, sharing)


def committee_of(roster: Roster, epoch: int) -> tuple[int, ...]:
    """Return the slots of a roster's committee: all of them, or those that are drawn."""
    if len(roster) <= MAX_POSITIONS:
        return tuple(range(len(roster)))
    return drawn(roster.keys, roster.beacon, epoch)


class ShareStore:
    """The sealed shares of one attempt, by receiver, in files; one of another length is none."""

    def __init__(self, sharing: Sharing | None, part_bytes: int) -> None:
        self._n_parts, self._part_bytes = sharing.n_positions if sharing else 0, part_bytes
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (see `close`)
        self._starts: dict[tuple[int, int], int] = {}  # by dealer and position
        self.close = self._file.close

    def put(self, slot: int, sealed: Sequence[bytes]) -> None:
        """Keep a dealer's shares."""
        if len(sealed) == self._n_parts:
            start = self._file.seek(0, 2)  # to the end: reading a part moves the position
            kept = [j for j, part in enumerate(sealed) if len(part) == self._part_bytes]
            self._file.write(b"".join(sealed[j] for j in kept))
            for n, position in enumerate(kept):
                self._starts[slot, position] = start + n * self._part_bytes

    def missing(self, slot: int) -> set[int]:
        """Return the positions for which a dealer gave no share."""
        return {j for j in range(self._n_parts) if (slot, j) not in self._starts}

    def parts(self, position: int, slots: Iterable[int]) -> Iterator[bytes]:
        """Yield the shares of dealers for a position."""
        for slot in slots:
            self._file.seek(self._starts[slot, position])
            yield self._file.read(self._part_bytes)
