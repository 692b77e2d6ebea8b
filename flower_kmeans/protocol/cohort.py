"""The server's cohort: the slots of clients, and the frame of an attempt.

With a roster every pinned key has a slot, whether its client is there or not. Under
relayed keys every named node has a slot; without names slots follow the order of
enrolment. A cohort changes between two attempts and never within one, because the root
of its tree is in every context (docs/protocol.md, sections 4 to 6).
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable

import msgspec

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.committee import MAX_POSITIONS, Committee, corrupt_positions
from flower_kmeans.protocol.incidents import (
    FULL,
    LATE,
    MALFORMED,
    SECOND_SLOT,
    STRANGER,
    TAKEN,
    TOO_MANY,
    TWICE,
    UNCLAIMED,
)
from flower_kmeans.protocol.messages import Enrolled, Refusal
from flower_kmeans.protocol.offers import Offers
from flower_kmeans.protocol.participants import Frame, Participant
from flower_kmeans.protocol.resume import KeptCohort
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import EPOCHS, Run
from flower_kmeans.protocol.transcript import EMPTY, Tree, leaf
from flower_kmeans.protocol.wire import MAX_SLOTS
from flower_kmeans.secagg.primitives import is_acceptable

MAX_NODES = 4  # nodes with the roster key of one slot
MAX_KEYS = 16  # ephemeral keys of a slot in a run: each belongs to one slot for good
MAX_SILENCES = 2  # silent trips in a row after which another node gets the slot


class Cohort:
    """The clients of a run, their slots and their committee (docs/protocol.md, section 5).

    ``roster`` is given with ``keys="roster"``. ``nodes`` are the only nodes that can take
    part, if any are named. Slots and committee change together, between two attempts.
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
        # clients with a slot, by node, in the order of slots
        self.clients: dict[int, Participant] = {}
        # by slot: first the client that has it from the next frame on, then those that wait
        self.claims: dict[int, deque[Participant]] = {}
        self._slot_by_node: dict[int, int] = {}  # slots that nodes have claimed
        self.known: set[int] = set()  # nodes whose enrolment was accepted or declined
        self.is_closed = False  # whether new clients get no slot
        self.offers = Offers(roster is not None)  # of group keys
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
        """Give a client a slot from the next frame on, or return the reason why it has none.

        A later enrolment of a node replaces its earlier one. Among nodes with one key, the
        first has the slot.
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
        """Return the slot for a client, or ``None`` if there is none for it."""
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
        """Take a client's new session for the next frame; return whether it is acceptable."""
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
        """Count the silent trips of clients that were asked in a finished round trip."""
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
        """Give a client's slot from the next frame on to the next node that has claimed it."""
        claims = self.claims[client.slot]
        if len(claims) > 1 and claims[0] is client:
            claims.rotate(-1)
            heir = claims[0]
            heir.new = heir.new or heir.public
            heir.silences = 0

    def _objection(self, public: Enrolled, slot: int, node_id: int) -> str | None:
        """Return the reason why a client's keys cannot be in a committee's list, or ``None``."""
        if not self._run.trust.is_protected:
            return None
        key = public.public_key
        doc_hash = self._run.doc_hash
        if self._roster is None:
            if public.claim:
                return MALFORMED
        elif not self._roster.has_claimed(doc_hash, slot, node_id, key, public.claim):
            return UNCLAIMED
        # If another slot ever had the key, the list of a later attempt could have it twice.
        if not is_acceptable(key) or self._owners.get(key, slot) != slot:
            return MALFORMED
        if key not in self._owners:
            if self._n_keys[slot] == MAX_KEYS:
                return TOO_MANY
            self._n_keys[slot] += 1
            self._owners[key] = slot
        return None

    # -------------------------------------------------------------- committee and frame

    def can_add(self, epoch: int | None = None, spare: int = 1) -> bool:
        """Return whether a committee can add without ``spare`` of its present members.

        A complete committee always can. The default epoch is the run document's.
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
        elif self.nodes is not None:  # connected nodes are drawn first
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
        """Return an epoch whose committee can add, if the committee of the run document cannot."""
        if self._roster is None or self.can_add():
            return None
        return next(filter(self.can_add, range(EPOCHS)), None)

    def frame(self) -> Frame:
        """Apply all changes, and return the frame of the next attempt."""
        slots = {slot: claims[0] for slot, claims in sorted(self.claims.items())}
        for client in slots.values():
            if client.new is not None:  # a session begins
                client.public = client.new
                client.new = None
                client.head = 0
                self.offers.forget(client)
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
            sharing = None  # too few members are present
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
        """Return the cohort for the journal of a server that can restart."""
        clients = []
        for _, claims in sorted(self.claims.items()):
            clients += [client.kept() for client in claims]
        return KeptCohort(
            clients=tuple(clients),
            owners=tuple((slot, key) for key, slot in self._owners.items()),
            committee=self._committee,
            offers=self.offers.kept(),
            is_settled=self.offers.is_settled,
        )

    def restore(self, kept: KeptCohort) -> None:
        """Restore a cohort that `kept` returned."""
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
        self.offers.restore(kept.offers, by_node)
        self.offers.is_settled = kept.is_settled

    def stand_in(self, slot: int, node_id: int, connected: Collection[int]) -> int:
        """Give the slot of a lost node to a connected node with the same session.

        Returns
        -------
        int
            The node that now has the slot.
        """
        claims = self.claims[slot]
        gone = self._claim(slot, node_id)
        for client in claims:
            is_connected = client.node_id in connected
            if is_connected and client.has_session_of(gone):
                client.inherit(gone)
                self.offers.pass_on(gone, client)
                claims.remove(gone)
                claims.remove(client)
                self._forget_nodes(slot, connected)
                claims.appendleft(client)
                claims.append(gone)
                return client.node_id
        return node_id

    def _claim(self, slot: int, node_id: int) -> Participant:
        """Return the client of a node that claimed a slot."""
        return next(client for client in self.claims[slot] if client.node_id == node_id)

    def _forget_nodes(self, slot: int, connected: Collection[int]) -> None:
        """Forget disconnected nodes of a slot, to make room for others. They can claim it again."""
        named = self.offers.named()
        for client in tuple(self.claims[slot]):
            if client.node_id not in connected and client not in named:
                self.claims[slot].remove(client)
                self.known.discard(client.node_id)

    def framed_as(self, active: Iterable[tuple[int, int]]) -> Frame:
        """Return the frame with these active nodes, as (slot, node), without later changes."""
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
    """Return the slots of a random committee, taken slots before free ones.

    The draw is random, because colluding clients could be the first to enrol.
    """
    order = list(range(n_slots))
    order.sort(key=lambda slot: (slot not in slots, token(16)))
    return tuple(sorted(order[:MAX_POSITIONS]))
