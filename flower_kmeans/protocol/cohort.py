"""The server's cohort: its clients, the frame of an attempt, and the group key.

With a roster every pinned key has a slot, whether its client is there or not. So has
every named node under relayed keys; without names slots follow the order in which
clients came. A cohort changes between two attempts and never within one, because the
root of its tree stands in every context (docs/protocol.md, sections 4 to 6).
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from tempfile import SpooledTemporaryFile

import msgspec
import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS, Committee, corrupt_positions
from flower_kmeans.protocol.messages import (
    ENVELOPE_BYTES,
    MAX_WRAPS,
    Enrolled,
    Peer,
    Refusal,
    Wrap,
    read_rows,
    split,
    write_claims,
)
from flower_kmeans.protocol.resume import KeptClient, KeptCohort, KeptOffer
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import EPOCHS, Run
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree, leaf
from flower_kmeans.protocol.wire import MAX_SLOTS
from flower_kmeans.secagg.base import Sharing
from flower_kmeans.secagg.key_agreement import KEY_ID_BYTES, is_acceptable

TWICE = "The client answered twice; only the first answer counted."
LATE = "The client came late, and keys are relayed to the first clients only."
MALFORMED = "The answer was malformed."
STRANGER = "The client's key is not on the roster."
TAKEN = "Another node holds this slot, with the same key."
SECOND_SLOT = "The node has claimed another slot before."
UNCLAIMED = (
    "The claim of the slot is not its owner's, or is for another run, node or key."
)
TOO_MANY = "The client began too many sessions."
FULL = "The cohort has no slot left."
DISTRIBUTORS = 3  # of the group key, that are asked in one round trip
MAX_NODES = 4  # with the key of one slot
MAX_KEYS = 16  # ephemeral ones of a slot in a run: each belongs to one slot for good
MAX_SILENCES = 2  # trips in a row after which a slot goes to another node with its key
_IN_MEMORY = 2**24  # bytes of shares; more go to a temporary file


@dataclass(eq=False)
class Participant:
    """A client that enrolled, as the server knows it."""

    node_id: int
    slot: int
    public: Enrolled  # of its session
    new: Enrolled | None  # replaces `public` from the next frame on
    has_document: bool = False
    has_key: bool = False  # the group key
    # envelopes of it, of different distributors
    wraps: list[Wrap] = field(default_factory=list)
    # slots of distributors whose envelopes failed
    refused: set[int] = field(default_factory=set)
    was_asked: bool = False  # for the group key
    head: int = 0  # rounds whose entries it has
    sent: int = 0  # last round of the entries that it was sent
    differs: bool = False  # from most clients, in the last attempt
    is_banned: bool = False  # from all sums to come
    silences: int = 0  # trips in a row without an orderly reply

    @property
    def peer(self) -> Peer:
        """The client as it is passed on to others."""
        return Peer(self.slot, self.public.public_key, self.node_id, self.public.claim)

    @property
    def carried(self) -> tuple[Wrap, ...]:
        """The envelopes for it, where it may lack the group key."""
        if self.has_key:
            return ()
        return tuple(self.wraps)

    def inherit(self, gone: "Participant") -> None:
        """Take the group key, the envelopes and the ban of another node."""
        self.new = None
        self.wraps = gone.wraps
        self.refused = gone.refused
        self.has_key = gone.has_key
        self.was_asked = gone.was_asked
        self.is_banned = gone.is_banned

    def has_session_of(self, other: "Participant") -> bool:
        """Return whether this and another node have one session."""
        own = self.public
        its = other.public
        return own.public_key == its.public_key and own.commitment == its.commitment

    def kept(self) -> KeptClient:
        """Return the client for a journal."""
        return KeptClient(
            slot=self.slot,
            node_id=self.node_id,
            public=self.public,
            new=self.new,
            has_key=self.has_key,
            wraps=tuple(self.wraps),
            refused=tuple(sorted(self.refused)),
            was_asked=self.was_asked,
            head=self.head,
            is_banned=self.is_banned,
        )

    @classmethod
    def restored(cls, kept: KeptClient) -> "Participant":
        """Return a client of a journal."""
        return cls(
            kept.node_id,
            kept.slot,
            kept.public,
            kept.new,
            has_key=kept.has_key,
            wraps=list(kept.wraps),
            refused=set(kept.refused),
            was_asked=kept.was_asked,
            head=kept.head,
            is_banned=kept.is_banned,
        )


@dataclass(frozen=True, eq=False)
class Offer:
    """The group key that one distributor made, sealed for clients."""

    leader: Participant
    key_id: bytes
    wraps: dict[Participant, Wrap]

    def kept(self) -> KeptOffer:
        """Return the offer for a journal."""
        leader = (self.leader.slot, self.leader.node_id)
        wraps = tuple(
            (client.slot, client.node_id, wrap) for client, wrap in self.wraps.items()
        )
        return KeptOffer(leader=leader, key_id=self.key_id, wraps=wraps)


@dataclass(frozen=True)
class Frame:
    """The cohort of one attempt, with a committee if vectors are protected."""

    slots: dict[int, Participant]  # those that are taken, in their order
    tree: Tree
    n_slots: int
    committee: Committee | None = None
    # of the committee, by position
    present: dict[int, Participant] = field(default_factory=dict)
    digest: bytes = ZERO  # of the committee's keys
    encoded: bytes = b""  # the committee as it travels
    # where the committee adds, and enough of it are present
    sharing: Sharing | None = None

    def bits(self, clients: Iterable[Participant]) -> NDArray[np.bool_]:
        """Return a mask of the slots of some clients, (n_slots,) bool."""
        bits = np.zeros(self.n_slots, dtype=np.bool_)
        slots = [client.slot for client in clients]
        bits[slots] = True
        return bits

    @property
    def members_first(self) -> list[Participant]:
        """All clients, those in the committee first."""
        members = list(self.present.values())
        others = [client for client in self.slots.values() if client not in members]
        return members + others

    @cached_property
    def claims(self) -> bytes:
        """The claims of the present committee members, as they travel."""
        members = self.present.values()
        return write_claims((each.node_id, each.public.claim) for each in members)


class Cohort:
    """The clients of a run, and their group key (docs/protocol.md, section 5).

    Each key distributor offers a group key of its own. The server uses one, and the
    next one if too few clients could open it: offers have no rank, and rotate. The
    roster is that of ``keys="roster"``, the nodes are the only ones that may take part.

    The class is long because slots, group key and committee change together, between
    two attempts.
    """

    def __init__(
        self, run: Run, roster: Roster | None, nodes: tuple[int, ...] | None = None
    ) -> None:
        self._run = run
        self._roster = roster
        self.nodes = nodes
        self._slot_of: dict[bytes, int] = {}
        self._committee: tuple[int, ...] | None = None
        if roster is not None:
            self._slot_of = {key: slot for slot, key in enumerate(roster.keys)}
            self._committee = committee_of(roster, run.document.epoch)
        # those with a slot, by node, in the order of slots
        self.clients: dict[int, Participant] = {}
        # by slot: who has it, or will, and who waits
        self.claims: dict[int, deque[Participant]] = {}
        self._slot_by_node: dict[int, int] = {}  # of those that claimed one
        self.known: set[int] = set()  # nodes whose enrolment was accepted or declined
        self.is_closed = False  # to new clients
        self.offers: deque[Offer] = deque()  # of group keys; the first is in use
        self.is_settled = False  # the first offer's key is that of the run
        # slots by the ephemeral keys of their clients
        self._owners: dict[bytes, int] = {}
        self._n_keys = Counter[int]()  # ephemeral keys that a slot had
        self._frame: Frame | None = None

    @property
    def n_slots(self) -> int:
        """Number of slots, taken or not."""
        if self._roster is not None:
            return len(self._roster)
        if self.nodes is not None:
            return len(self.nodes)
        return len(self.clients)

    # ------------------------------------------------------------------ slots

    def take(self, node_id: int, reply: Enrolled) -> str | None:
        """Give a client a slot from the next frame on, or return why it has none.

        A later claim of a node replaces its own. Of nodes with one key the first has
        the slot.
        """
        self.known.add(node_id)
        slot = self._slot_for(node_id, reply)
        if slot is None:
            return LATE if self._roster is None else STRANGER
        if slot == MAX_SLOTS:
            return FULL
        claims = self.claims.get(slot, deque())
        own = next((client for client in claims if client.node_id == node_id), None)
        if own is not None and reply in (own.public, own.new):
            return TWICE
        if own is None and len(claims) == MAX_NODES:
            return TAKEN
        if self._slot_by_node.get(node_id, slot) != slot:
            return SECOND_SLOT
        objection = self._objection(reply, slot, node_id)
        if objection is not None:
            return objection
        if own is None:
            claims.append(Participant(node_id, slot, reply, reply))
            self.claims[slot] = claims
            self._slot_by_node[node_id] = slot
        else:
            own.new = reply
        has_slot = claims[0].node_id == node_id
        return None if has_slot else TAKEN

    def _slot_for(self, node_id: int, reply: Enrolled) -> int | None:
        """Return the slot that a client can have."""
        if self._roster is not None:
            return self._slot_of.get(reply.static)
        if self.nodes is not None:
            return self.nodes.index(node_id)
        if node_id in self._slot_by_node:
            return self._slot_by_node[node_id]
        if self.is_closed:
            return None
        return len(self.claims)

    def renew(self, client: Participant, refusal: Refusal) -> bool:
        """Take a new session for the next frame; return whether it is acceptable."""
        if refusal.commitment is None or refusal.static != client.public.static:
            return False
        public = msgspec.structs.replace(
            client.public,
            commitment=refusal.commitment,
            public_key=refusal.public_key,
            claim=refusal.claim,
        )
        is_acceptable = self._objection(public, client.slot, client.node_id) is None
        if is_acceptable:
            client.new = public
        return is_acceptable

    def hear(self, asked: Iterable[int], orderly: Collection[int]) -> None:
        """Count the silences of clients that were asked in a finished round trip."""
        for node_id in asked:
            client = self.clients.get(node_id)
            if client is None:
                continue
            if node_id in orderly:
                client.silences = 0
            else:
                client.silences += 1
            if client.silences >= MAX_SILENCES:
                self.give_up(client)

    def give_up(self, client: Participant) -> None:
        """Give a slot from the next frame on to the next node that has claimed it."""
        claims = self.claims[client.slot]
        if len(claims) > 1 and claims[0] is client:
            claims.rotate(-1)
            heir = claims[0]
            heir.new = heir.new or heir.public
            heir.silences = 0

    def _objection(self, public: Enrolled, slot: int, node_id: int) -> str | None:
        """Return the objection to keys in a committee's list, or ``None``."""
        if not self._run.trust.is_protected:
            return None
        key = public.public_key
        doc_hash = self._run.doc_hash
        if self._roster is None:
            if public.claim:
                return MALFORMED
        elif not self._roster.has_claimed(doc_hash, slot, node_id, key, public.claim):
            return UNCLAIMED
        # A key that another slot ever had would make the list of a later attempt
        # malformed.
        if not is_acceptable(key) or self._owners.get(key, slot) != slot:
            return MALFORMED
        if key not in self._owners:
            if self._n_keys[slot] == MAX_KEYS:
                return TOO_MANY
            self._n_keys[slot] += 1
            self._owners[key] = slot
        return None

    # ------------------------------------------------------------------ the group key

    @property
    def key_id(self) -> bytes:
        """The id of the group key that is in use; empty if there is none."""
        if not self.offers:
            return b""
        return self.offers[0].key_id

    def distributors(self, frame: Frame) -> list[Participant]:
        """Return clients that were not asked for a group key yet, members first."""
        fresh = [client for client in frame.members_first if not client.was_asked]
        chosen = fresh[:DISTRIBUTORS]
        for client in chosen:
            client.was_asked = True
        return chosen

    def holders(self, frame: Frame) -> list[Participant]:
        """Return clients that have the group key, committee members first."""
        return [
            client
            for client in frame.members_first
            if client.has_key and not client.differs
        ]

    def sealers(self, frame: Frame) -> list[Participant]:
        """Return clients that can seal the group key for those that lack it.

        Before anybody was sent it, these are the distributors. Each seals the key that
        it made.
        """
        holders = self.holders(frame)
        if holders:
            return holders[:DISTRIBUTORS]
        clients = list(frame.slots.values())
        leaders = [offer.leader for offer in self.offers if offer.leader in clients]
        # One that lost its memory lost its group key, too.
        able = [leader for leader in leaders if leader.wraps or leader.has_key]
        return able[:DISTRIBUTORS]

    def offer(
        self,
        frame: Frame,
        sender: Participant,
        rows: bytes,
        key_id: bytes,
        envelopes: bytes,
    ) -> None:
        """Keep a distributor's envelopes for peers, unless their number is another.

        Those of the key that is in use go to the clients that they are for; another key
        is an offer, until one is settled.
        """
        peers = read_rows(rows, self._roster is not None)
        if len(envelopes) != ENVELOPE_BYTES * len(peers) or len(key_id) != KEY_ID_BYTES:
            return
        made = dict[Participant, Wrap]()
        for peer, envelope in zip(peers, split(envelopes, ENVELOPE_BYTES), strict=True):
            client = frame.slots[peer.slot]
            made[client] = Wrap(
                distributor=sender.peer.row, key_id=key_id, envelope=envelope
            )

        is_known = False
        for offer in self.offers:
            if offer.leader == sender and offer.key_id == key_id:
                offer.wraps.update(made)
                is_known = True
        if key_id == self.key_id:
            self._hand_out(sender, made)
        elif not is_known and not self.is_settled:
            self.offers.append(Offer(sender, key_id, made))
            if len(self.offers) == 1:
                self.use_offer()

    def _hand_out(self, sender: Participant, wraps: dict[Participant, Wrap]) -> None:
        """Give clients their envelopes of the key that is in use."""
        for client, wrap in wraps.items():
            has_room = len(client.wraps) < MAX_WRAPS
            if sender.slot not in client.refused and has_room:
                client.wraps.append(wrap)

    def use_offer(self) -> None:
        """Use the first offer, at all clients: none has an entry yet."""
        made = self.offers[0]
        for client in self.clients.values():
            client.has_key = False
            client.refused = set()
            client.wraps = []
            if client in made.wraps:
                client.wraps.append(made.wraps[client])

    def next_offer(self) -> None:
        """Use the next offer; the one that was in use is the last one now."""
        self.offers.rotate(-1)
        self.use_offer()

    def complain(self, client: Participant) -> None:
        """Record that a client could not open the envelopes that it was sent."""
        has_roster = self._roster is not None
        for wrap in client.wraps:
            (distributor,) = read_rows(wrap.distributor, has_roster)
            client.refused.add(distributor.slot)
        client.has_key = False
        client.wraps = []

    def forget_key(self, client: Participant) -> None:
        """Record that a client's session has neither the group key nor an envelope."""
        client.has_key = False
        client.wraps = []
        client.refused = set()
        for made in self.offers:
            made.wraps.pop(client, None)

    # -------------------------------------------------------------- committee and frame

    def can_add(self, epoch: int | None = None, spare: int = 1) -> bool:
        """Return whether a committee can add if it misses ``spare`` more members.

        A whole committee always can. The epoch is by default the run document's.
        """
        document = self._run.document
        if not self._run.trust.has_committee:
            return True
        if self._roster is not None:
            if epoch is None:
                epoch = document.epoch
            slots = committee_of(self._roster, epoch)
            n_positions = len(slots)
            n_present = len(self.claims.keys() & set(slots))
        elif self.nodes is not None:  # those that are there are drawn first
            n_positions = min(len(self.nodes), MAX_POSITIONS)
            n_present = min(len(self.claims), n_positions)
        else:
            return True
        n_corrupt = self._run.kept.once(
            corrupt_positions, self.n_slots, document.max_colluders
        )
        if n_present == n_positions:
            return True
        secure_sum = self._run.trust.sum
        try:
            sharing = secure_sum.set_up(n_positions, n_corrupt, n_present - spare)
        except ConfigurationError:
            return False
        return bool(sharing)

    def better_epoch(self) -> int | None:
        """Return an epoch whose committee can add if the run document's cannot."""
        if self._roster is None or self.can_add():
            return None
        return next(filter(self.can_add, range(EPOCHS)), None)

    def frame(self) -> Frame:
        """Take all changes and return the cohort as it is now."""
        slots = {slot: claims[0] for slot, claims in sorted(self.claims.items())}
        for client in slots.values():
            if client.new is not None:  # a session begins
                client.public = client.new
                client.new = None
                client.head = 0
                self.forget_key(client)
                self._frame = None
        if self._frame is None:
            self.clients = {client.node_id: client for client in slots.values()}
            self._frame = self._framed(slots)
        return self._frame

    def _framed(self, slots: dict[int, Participant]) -> Frame:
        tree = _tree_of(slots, self.n_slots)
        if not self._run.trust.is_protected:
            return Frame(slots, tree, self.n_slots)
        if self._committee is None:
            self._committee = _chosen_committee(slots, self.n_slots)
        keys = []
        present = {}
        for position, slot in enumerate(self._committee):
            key = b""
            if slot in slots:
                present[position] = slots[slot]
                key = slots[slot].public.public_key
            keys.append(key)
        committee = Committee(
            self._committee,
            tuple(keys),
            self.n_slots,
            self._run.document.max_colluders,
        )
        try:
            sharing = committee.sharing(self._run.trust.sum)
        except ConfigurationError:
            sharing = None  # too few of it are present
        return Frame(
            slots,
            tree,
            self.n_slots,
            committee,
            present,
            committee.digest,
            committee.encode(),
            sharing,
        )

    # ---------------------------------------------------------------- after a restart

    def kept(self) -> KeptCohort:
        """Return the cohort as a server needs it that goes on after a restart."""
        clients = []
        for _, claims in sorted(self.claims.items()):
            clients += [client.kept() for client in claims]
        return KeptCohort(
            clients=tuple(clients),
            owners=tuple((slot, key) for key, slot in self._owners.items()),
            committee=self._committee,
            offers=tuple(offer.kept() for offer in self.offers),
            is_settled=self.is_settled,
        )

    def restore(self, kept: KeptCohort) -> None:
        """Take up a cohort that `kept` returned."""
        by_node = dict[tuple[int, int], Participant]()
        for one in kept.clients:
            client = Participant.restored(one)
            by_node[one.slot, one.node_id] = client
            self.claims.setdefault(one.slot, deque()).append(client)
            self._slot_by_node[one.node_id] = one.slot
            self.known.add(one.node_id)
        self._owners = {key: slot for slot, key in kept.owners}
        self._n_keys = Counter(slot for slot, _ in kept.owners)
        self._committee = kept.committee
        for offer in kept.offers:
            wraps = {by_node[slot, node]: wrap for slot, node, wrap in offer.wraps}
            self.offers.append(Offer(by_node[offer.leader], offer.key_id, wraps))
        self.is_settled = kept.is_settled

    def stand_in(self, slot: int, node_id: int, connected: Collection[int]) -> int:
        """Give the place of a node that is gone to a connected one of the same session.

        Return the node that is active then.
        """
        claims = self.claims[slot]
        gone = self._claim(slot, node_id)
        for client in claims:
            is_connected = client.node_id in connected
            if is_connected and client.has_session_of(gone):
                client.inherit(gone)
                self._pass_on(gone, client)
                claims.remove(gone)
                claims.remove(client)
                self._forget_nodes(slot, connected)
                claims.appendleft(client)
                claims.append(gone)
                return client.node_id
        return node_id

    def _pass_on(self, gone: Participant, client: Participant) -> None:
        """Give a client the envelopes in offers that are for another."""
        for offer in self.offers:
            if gone in offer.wraps:
                offer.wraps[client] = offer.wraps.pop(gone)

    def _claim(self, slot: int, node_id: int) -> Participant:
        """Return the claim of a slot that a node made."""
        return next(client for client in self.claims[slot] if client.node_id == node_id)

    def _forget_nodes(self, slot: int, connected: Collection[int]) -> None:
        """Make room for further nodes with a slot's key. Nodes may claim it again."""
        named = set[Participant]()
        for offer in self.offers:
            named.add(offer.leader)
            named.update(offer.wraps)
        for client in tuple(self.claims[slot]):
            if client.node_id not in connected and client not in named:
                self.claims[slot].remove(client)
                self.known.discard(client.node_id)

    def framed_as(self, active: Iterable[tuple[int, int]]) -> Frame:
        """Return the frame of these active nodes, by slot, without any later change."""
        slots = {slot: self._claim(slot, node_id) for slot, node_id in active}
        self.clients = {client.node_id: client for client in slots.values()}
        self._frame = self._framed(slots)
        return self._frame


def committee_of(roster: Roster, epoch: int) -> tuple[int, ...]:
    """Return the slots of a roster's committee: all of them, or the drawn ones."""
    if len(roster) <= MAX_POSITIONS:
        return tuple(range(len(roster)))
    return roster.drawn(epoch)


def _tree_of(slots: dict[int, Participant], n_slots: int) -> Tree:
    """Return the tree of all slots, with an empty leaf for each free one."""
    leaves = []
    for slot in range(n_slots):
        node = EMPTY
        if slot in slots:
            public = slots[slot].public
            node = leaf(slot, public.commitment, public.static, public.public_key)
        leaves.append(node)
    return Tree(leaves)


def _chosen_committee(slots: dict[int, Participant], n_slots: int) -> tuple[int, ...]:
    """Return slots at random, those that are taken before others.

    Clients that pool what they know could be the first to come.
    """
    order = list(range(n_slots))
    order.sort(key=lambda slot: (slot not in slots, token(16)))
    return tuple(sorted(order[:MAX_POSITIONS]))


class ShareStore:
    """The sealed shares of one attempt, in files. A dealer has all of them or none."""

    def __init__(self, positions: Iterable[int], part_bytes: int) -> None:
        # those present
        self._order = {position: n for n, position in enumerate(positions)}
        self._part_bytes = part_bytes
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (see `close`)
        self._starts: dict[int, int] = {}  # by dealer
        self.close = self._file.close

    def is_complete(self, sealed: bytes) -> bool:
        """Return whether a dealer has one share for each present position."""
        return len(sealed) == self._part_bytes * len(self._order)

    def put(self, slot: int, sealed: bytes) -> None:
        """Keep a dealer's shares, which are complete."""
        # To the end: reading a part moves the position.
        self._starts[slot] = self._file.seek(0, 2)
        self._file.write(sealed)

    def of(self, slot: int) -> bytes:
        """Return all shares of a dealer, one after the other."""
        self._file.seek(self._starts[slot])
        return self._file.read(self._part_bytes * len(self._order))

    def parts(self, position: int, slots: Iterable[int]) -> Iterator[bytes]:
        """Yield the shares of dealers for a position."""
        offset = self._order[position] * self._part_bytes
        for slot in slots:
            self._file.seek(self._starts[slot] + offset)
            yield self._file.read(self._part_bytes)
