"""The cohort as the server knows it: its clients, the frame of an attempt, and the group key.

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
from flower_kmeans.protocol.committee import (
    MAX_POSITIONS,
    Committee,
    corrupt_positions,
    drawn,
)
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
from flower_kmeans.protocol.run import EPOCHS, MAX_SLOTS, Run
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree, leaf
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
class Client:
    """A client that enrolled, and all that the server knows of it."""

    node_id: int
    slot: int
    public: Enrolled  # what it sent when its session began
    new: Enrolled | None  # what it has from the next frame on, where it has a slot then
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
        return () if self.has_key else tuple(self.wraps)


@dataclass(frozen=True, eq=False)
class Offer:
    """The group key that one distributor made, sealed for clients."""

    leader: Client
    key_id: bytes
    wraps: dict[Client, Wrap]


@dataclass(frozen=True)
class Frame:
    """The cohort of one attempt. It has a committee where vectors leave their clients protected."""

    slots: dict[int, Client]  # those that are taken, in their order
    tree: Tree
    n_slots: int
    committee: Committee | None = None
    # of the committee, by position
    present: dict[int, Client] = field(default_factory=dict)
    digest: bytes = ZERO  # of the committee's keys
    encoded: bytes = b""  # the committee as it travels
    # where the committee adds, and enough of it are present
    sharing: Sharing | None = None

    def bits(self, clients: Iterable[Client]) -> NDArray[np.bool_]:
        """Return which slots are those of some clients, (n_slots,) bool."""
        bits = np.zeros(self.n_slots, dtype=np.bool_)
        bits[[client.slot for client in clients]] = True
        return bits

    @cached_property
    def claims(self) -> bytes:
        """The claims of the present committee members, as they travel."""
        members = self.present.values()
        return write_claims((each.node_id, each.public.claim) for each in members)


class Cohort:
    """The clients of a run, and who has the group key (docs/protocol.md, section 5).

    Each key distributor offers a group key of its own. The server uses one, and the
    next one if too few clients could open it: offers have no rank, and rotate. The
    roster is that of ``keys="roster"``, the nodes are the only ones that may take part.
    """

    def __init__(
        self, run: Run, roster: Roster | None, nodes: tuple[int, ...] | None = None
    ) -> None:
        self._run, self._roster, self.nodes = run, roster, nodes
        self._slot_of = (
            {} if roster is None else {key: i for i, key in enumerate(roster.keys)}
        )
        # those with a slot, by node, in the order of slots
        self.clients: dict[int, Client] = {}
        # by slot: who has it, or will, and who waits
        self.claims: dict[int, deque[Client]] = {}
        self._slot_by_node: dict[int, int] = {}  # of those that claimed one
        self.known: set[int] = set()  # nodes whose enrolment was accepted or declined
        self.is_closed = False  # to new clients
        self.offers: deque[Offer] = deque()  # of group keys; the first is in use
        self.is_settled = False  # the first offer's key is that of the run
        # slots by the ephemeral keys of their clients
        self._owners: dict[bytes, int] = {}
        self._n_keys = Counter[int]()  # ephemeral keys that a slot had
        self._committee = (
            None if roster is None else committee_of(roster, run.document.epoch)
        )
        self._frame: Frame | None = None

    @property
    def n_slots(self) -> int:
        """Number of slots, taken or not."""
        if self._roster is not None:
            return len(self._roster)
        return len(self.clients) if self.nodes is None else len(self.nodes)

    # ------------------------------------------------------------------ slots

    def take(self, node_id: int, reply: Enrolled) -> str | None:
        """Give a client a slot from the next frame on, or return why it has none.

        A later claim of a node replaces its own. Of nodes with one key the first has
        the slot.
        """
        self.known.add(node_id)
        slot = self._slot_for(node_id, reply)
        if slot is None:
            return STRANGER if self._roster is not None else LATE
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
            self.claims.setdefault(slot, claims).append(
                Client(node_id, slot, reply, reply)
            )
            self._slot_by_node[node_id] = slot
        else:
            own.new = reply
        return TAKEN if self.claims[slot][0].node_id != node_id else None

    def _slot_for(self, node_id: int, reply: Enrolled) -> int | None:
        """Return the slot that a client can have."""
        if self._roster is not None:
            return self._slot_of.get(reply.static)
        if self.nodes is not None:
            return self.nodes.index(node_id)
        if node_id in self._slot_by_node:
            return self._slot_by_node[node_id]
        return None if self.is_closed else len(self.claims)

    def renew(self, client: Client, refusal: Refusal) -> bool:
        """Take a client's new session, from the next frame on; return whether it is acceptable."""
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
        """Count the silences of clients that were asked in a round trip which is over."""
        for node_id in asked:
            client = self.clients.get(node_id)
            if client is None:
                continue
            client.silences = 0 if node_id in orderly else client.silences + 1
            if client.silences >= MAX_SILENCES:
                self.give_up(client)

    def give_up(self, client: Client) -> None:
        """Give a slot from the next frame on to the next node that has claimed it."""
        claims = self.claims[client.slot]
        if len(claims) > 1 and claims[0] is client:
            claims.rotate(-1)
            claims[0].new = claims[0].new or claims[0].public
            claims[0].silences = 0

    def _objection(self, public: Enrolled, slot: int, node_id: int) -> str | None:
        """Return why a client's keys cannot stand in a committee's list, or ``None``."""
        key, doc_hash = public.public_key, self._run.doc_hash
        if not self._run.trust.is_protected:
            return None
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
        return self.offers[0].key_id if self.offers else b""

    def distributors(self, frame: Frame) -> list[Client]:
        """Return clients that were not asked for a group key yet, committee members first."""
        members = list(frame.present.values())
        others = [client for client in frame.slots.values() if client not in members]
        fresh = [client for client in (*members, *others) if not client.was_asked][
            :DISTRIBUTORS
        ]
        for client in fresh:
            client.was_asked = True
        return fresh

    def holders(self, frame: Frame) -> list[Client]:
        """Return clients that have the group key, committee members first."""
        members = list(frame.present.values())
        others = [client for client in frame.slots.values() if client not in members]
        return [
            client
            for client in (*members, *others)
            if client.has_key and not client.differs
        ]

    def sealers(self, frame: Frame) -> list[Client]:
        """Return clients that can seal the group key for those that lack it.

        Before anybody was sent it, these are the distributors. Each seals the key that
        it made.
        """
        clients = list(frame.slots.values())
        leaders = [each.leader for each in self.offers if each.leader in clients]
        # One that lost its memory lost its group key, too.
        able = [leader for leader in leaders if leader.wraps or leader.has_key]
        return (self.holders(frame) or able)[:DISTRIBUTORS]

    def offer(
        self, frame: Frame, sender: Client, rows: bytes, key_id: bytes, envelopes: bytes
    ) -> None:
        """Keep a distributor's envelopes for peers, unless their number is another.

        Those of the key that is in use go to the clients that they are for; another key
        is an offer, until one is settled.
        """
        peers = read_rows(rows, self._roster is not None)
        if len(envelopes) != ENVELOPE_BYTES * len(peers) or len(key_id) != KEY_ID_BYTES:
            return
        leader, made = sender.peer.row, dict[Client, Wrap]()
        for peer, envelope in zip(peers, split(envelopes, ENVELOPE_BYTES), strict=True):
            wrap = Wrap(distributor=leader, key_id=key_id, envelope=envelope)
            made[frame.slots[peer.slot]] = wrap
        known = [
            each
            for each in self.offers
            if (each.leader, each.key_id) == (sender, key_id)
        ]
        for each in known:
            each.wraps.update(made)
        if key_id == self.key_id:
            for client, wrap in made.items():
                if sender.slot not in client.refused and len(client.wraps) < MAX_WRAPS:
                    client.wraps.append(wrap)
        elif not known and not self.is_settled:
            self.offers.append(Offer(sender, key_id, made))
            if len(self.offers) == 1:
                self.use_offer()

    def use_offer(self) -> None:
        """Use the first offer, at all clients: none has an entry yet."""
        made = self.offers[0]
        for client in self.clients.values():
            client.has_key, client.refused = False, set()
            client.wraps = [made.wraps[client]] if client in made.wraps else []

    def next_offer(self) -> None:
        """Use the next offer; the one that was in use is the last one now."""
        self.offers.rotate(-1)
        self.use_offer()

    def complain(self, client: Client) -> None:
        """Record that a client could not open the envelopes that it was sent."""
        rows = (wrap.distributor for wrap in client.wraps)
        slots = {read_rows(row, self._roster is not None)[0].slot for row in rows}
        client.refused |= slots
        client.has_key, client.wraps = False, []

    def forget_key(self, client: Client) -> None:
        """Record that a client's session lacks the group key, and that no envelope is for it."""
        client.has_key, client.wraps, client.refused = False, [], set()
        for made in self.offers:
            made.wraps.pop(client, None)

    # -------------------------------------------------------------- committee and frame

    def can_add(self, epoch: int | None = None, spare: int = 1) -> bool:
        """Return whether a committee of some epoch is whole, or can miss ``spare`` more members."""
        document, trust = self._run.document, self._run.trust
        if not trust.has_committee:
            return True
        if self._roster is not None:
            slots = committee_of(
                self._roster, document.epoch if epoch is None else epoch
            )
            n_positions, n_present = len(slots), len(self.claims.keys() & set(slots))
        elif self.nodes is not None:  # those that are there are drawn first
            n_positions = min(len(self.nodes), MAX_POSITIONS)
            n_present = min(len(self.claims), n_positions)
        else:
            return True
        f = corrupt_positions(self.n_slots, document.max_colluders)
        if n_present == n_positions:
            return True
        try:
            return bool(trust.sum.set_up(n_positions, f, n_present - spare))
        except ConfigurationError:
            return False

    def better_epoch(self) -> int | None:
        """Return an epoch whose committee can add, if that of the run document cannot."""
        if self._roster is None or self.can_add():
            return None
        return next(filter(self.can_add, range(EPOCHS)), None)

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
            leaf(i, one.commitment, one.static, one.public_key)
            if (one := public.get(i))
            else EMPTY
            for i in range(n_slots)
        )
        if not trust.is_protected:
            return Frame(slots, tree, n_slots)
        if self._committee is None:
            # At random: clients that pool what they know could be the first to come.
            order = sorted(
                range(n_slots), key=lambda slot: (slot not in slots, token(16))
            )
            self._committee = tuple(sorted(order[:MAX_POSITIONS]))
        keys = tuple(
            public[i].public_key if i in public else b"" for i in self._committee
        )
        committee = Committee(
            self._committee, keys, n_slots, self._run.document.max_colluders
        )
        try:
            sharing = committee.sharing(trust.sum)
        except ConfigurationError:
            sharing = None  # too few of it are present
        present = {j: slots[i] for j, i in enumerate(self._committee) if i in slots}
        digest, encoded = committee.digest, committee.encode()
        return Frame(slots, tree, n_slots, committee, present, digest, encoded, sharing)

    # -------------------------------------------------------- what outlives the process

    def kept(self) -> KeptCohort:
        """Return what a server that goes on after a restart must know."""
        clients = []
        for slot, claims in sorted(self.claims.items()):
            for client in claims:
                one = KeptClient(
                    slot=slot,
                    node_id=client.node_id,
                    public=client.public,
                    new=client.new,
                    has_key=client.has_key,
                    wraps=tuple(client.wraps),
                    refused=tuple(sorted(client.refused)),
                    was_asked=client.was_asked,
                    head=client.head,
                    is_banned=client.is_banned,
                )
                clients.append(one)
        offers = []
        for offer in self.offers:
            wraps = tuple(
                (one.slot, one.node_id, wrap) for one, wrap in offer.wraps.items()
            )
            leader = offer.leader.slot, offer.leader.node_id
            offers.append(KeptOffer(leader=leader, key_id=offer.key_id, wraps=wraps))
        return KeptCohort(
            clients=tuple(clients),
            owners=tuple((slot, key) for key, slot in self._owners.items()),
            committee=self._committee,
            offers=tuple(offers),
            is_settled=self.is_settled,
        )

    def restore(self, kept: KeptCohort) -> None:
        """Take up what `kept` returned, in place of what is here."""
        by_node = dict[tuple[int, int], Client]()
        for one in kept.clients:
            client = Client(
                one.node_id,
                one.slot,
                one.public,
                one.new,
                has_key=one.has_key,
                wraps=list(one.wraps),
                refused=set(one.refused),
                was_asked=one.was_asked,
                head=one.head,
                is_banned=one.is_banned,
            )
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
        """Let a connected node take the place of one that is gone, where their session is one.

        Return the node that is active then.
        """
        claims = self.claims[slot]
        gone = self._claim(slot, node_id)
        session = gone.public.public_key, gone.public.commitment
        for client in claims:
            its_session = client.public.public_key, client.public.commitment
            if client.node_id not in connected or its_session != session:
                continue
            client.new = None
            client.wraps, client.refused = gone.wraps, gone.refused
            client.has_key, client.was_asked = gone.has_key, gone.was_asked
            client.is_banned = gone.is_banned
            for offer in self.offers:
                if gone in offer.wraps:
                    offer.wraps[client] = offer.wraps.pop(gone)
            claims.remove(gone)
            claims.remove(client)
            self._forget_nodes(slot, connected)
            claims.appendleft(client)
            claims.append(gone)
            return client.node_id
        return node_id

    def _claim(self, slot: int, node_id: int) -> Client:
        """Return what a node claimed a slot as."""
        return next(client for client in self.claims[slot] if client.node_id == node_id)

    def _forget_nodes(self, slot: int, connected: Collection[int]) -> None:
        """Make room for further nodes with a slot's key; those that connect again may claim it."""
        named = {made.leader for made in self.offers}.union(
            *(made.wraps for made in self.offers)
        )
        for client in tuple(self.claims[slot]):
            if client.node_id not in connected and client not in named:
                self.claims[slot].remove(client)
                self.known.discard(client.node_id)

    def framed_as(self, active: Iterable[tuple[int, int]]) -> Frame:
        """Return the frame in which these nodes are active, by slot, without any later change."""
        slots = {slot: self._claim(slot, node_id) for slot, node_id in active}
        self.clients = {client.node_id: client for client in slots.values()}
        self._frame = self._framed(slots)
        return self._frame


def committee_of(roster: Roster, epoch: int) -> tuple[int, ...]:
    """Return the slots of a roster's committee: all of them, or those that are drawn."""
    if len(roster) <= MAX_POSITIONS:
        return tuple(range(len(roster)))
    return drawn(roster.keys, roster.beacon, epoch)


class ShareStore:
    """The sealed shares of one attempt, by receiver, in files; a dealer has all or none."""

    def __init__(self, positions: Iterable[int], part_bytes: int) -> None:
        # those present
        self._order = {position: n for n, position in enumerate(positions)}
        self._part_bytes = part_bytes
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (see `close`)
        self._starts: dict[int, int] = {}  # by dealer
        self.close = self._file.close

    def is_complete(self, sealed: bytes) -> bool:
        """Return whether a dealer's shares are as planned: one for each present position."""
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
