"""The parties of a vertical run at its server: their slots, nodes and keys.

A node joins at the slot that it states. Another node with the same roster key waits, and
can take over the slot (docs/protocol.md, section 13).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.incidents import MALFORMED, UNCLAIMED
from flower_kmeans.protocol.messages import Peer
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.secagg.primitives import is_acceptable
from flower_kmeans.vertical.protocol.kept import KeptParty
from flower_kmeans.vertical.protocol.messages import Joined
from flower_kmeans.vertical.protocol.parcels import shape_of

_MOST_NODES = 4  # most nodes with one party's key that the server remembers
_TAKEN = "Another node has the party's slot."
_OTHER_SLOT = "The node is named for another slot."
_NO_IDS = "The party has no row ids, which the run compares."


@dataclass(frozen=True)
class Party:
    """A party that takes part: its node, and its statement when it joined."""

    node_id: int
    public: Joined

    @property
    def peer(self) -> Peer:
        """The public values of the party for the others."""
        public = self.public
        return Peer(public.slot, public.public_key, self.node_id, public.claim)


class Parties:
    """The parties of one run, as in `relay.Relay`."""

    def __init__(
        self, run: Run, roster: Roster | None, nodes: Sequence[int] | None
    ) -> None:
        self._run = run
        self._roster = roster
        self._shape = shape_of(run)
        _require_parties(run, roster, nodes, self._shape.n_parties)
        self._nodes: tuple[int, ...] | None = None
        if nodes is not None:
            self._nodes = tuple(nodes)
        self.by_slot: dict[int, Party] = {}  # parties that joined
        self.others: dict[int, list[Party]] = {}  # by slot, further nodes with its key
        self._sent_once: set[int] = set()  # slots whose node answered a turn
        # whether a turn was answered after which the parties' keys cannot change
        self._is_begun = False

    # ------------------------------------------------------------------ nodes

    def named(self, nodes: Iterable[int]) -> set[int]:
        """Return the nodes that can take part."""
        if self._nodes is None:
            return set(nodes)
        return set(nodes) & set(self._nodes)

    @property
    def all_nodes(self) -> list[Party]:
        """All nodes that joined, also those that wait for a slot."""
        others = chain.from_iterable(self.others.values())
        return [*self.by_slot.values(), *others]

    @property
    def slots(self) -> dict[int, int]:
        """Slots by node."""
        return {party.node_id: slot for slot, party in self.by_slot.items()}

    @property
    def missing(self) -> list[int]:
        """Slots whose party has not joined."""
        every = range(self._shape.n_parties)
        return [slot for slot in every if slot not in self.by_slot]

    @property
    def is_complete(self) -> bool:
        """Whether all parties joined."""
        return not self.missing

    # ------------------------------------------------------------------ joining

    def take(self, node_id: int, reply: Joined) -> str | None:
        """Let a node join, or return the reason why it cannot."""
        objection = self._objection(node_id, reply)
        if objection is not None:
            return objection
        party = Party(node_id, reply)
        if reply.slot in self.by_slot:
            # The owner of a roster key can have two nodes.
            self.others.setdefault(reply.slot, []).append(party)
        else:
            self.by_slot[reply.slot] = party
        return None

    def _objection(self, node_id: int, reply: Joined) -> str | None:
        """Return the reason why a party cannot join, or ``None``."""
        if not self._is_well_formed(reply):
            return MALFORMED
        if self._roster is not None:
            claimed = (reply.slot, node_id, reply.public_key, reply.claim)
            if not self._roster.has_claimed(self._run.doc_hash, *claimed):
                return UNCLAIMED
        elif self._nodes is not None and self._nodes[reply.slot] != node_id:
            return _OTHER_SLOT
        if self._shape.check_ids and not reply.has_ids:
            return _NO_IDS
        if reply.slot not in self.by_slot:
            return None
        n_nodes = len(self.others.get(reply.slot, ())) + 1
        is_full = n_nodes == _MOST_NODES
        return _TAKEN if self._roster is None or is_full else None

    def _is_well_formed(self, reply: Joined) -> bool:
        """Return whether a party's slot, keys, claim and commitment fit the run."""
        is_slot = reply.slot in range(self._shape.n_parties)
        if not is_slot or not is_acceptable(reply.public_key):
            return False
        static = b""
        if self._roster is not None:
            static = self._roster.keys[reply.slot]
        elif reply.claim:
            return False
        is_joint_holder = self._shape.is_joint and reply.slot in self._shape.holders
        has_commitment = bool(reply.commitment)
        return reply.static == static and has_commitment == is_joint_holder

    # ------------------------------------------------------------------ taking over

    def bind(self, slots: Iterable[int], *, has_given: bool) -> None:
        """Record that the nodes of some slots answered a turn.

        With ``has_given``, they gave more than a hash of their rows.
        """
        answered = set(slots)
        self._sent_once |= answered
        self._is_begun |= bool(answered) and has_given

    def take_over(self, slots: Sequence[int]) -> bool:
        """Replace parties by other nodes with their keys; return whether that is possible.

        It is possible before a party's node answered a turn, and before another party gave
        more than a hash of its rows: the second node cannot unseal parcels for the first.
        """
        can_be = True
        for slot in slots:
            has_other = bool(self.others.get(slot))
            can_be &= has_other and slot not in self._sent_once
        if self._is_begun or not can_be:
            return False
        for slot in slots:
            self.by_slot[slot] = self.others[slot].pop(0)
        return True

    def restore(self, kept: Sequence[KeptParty]) -> None:
        """Restore the parties of a run that was set up."""
        nodes = tuple(one.node_id for one in kept)
        if self._roster is None and self._nodes not in (None, nodes):
            raise ConfigurationError(
                f"Expected nodes={nodes}, in whose order the run in resume gave the slots. "
                f"Got {self._nodes} instead."
            )
        for one in kept:
            self.by_slot[one.public.slot] = Party(one.node_id, one.public)
        self.bind(self.by_slot, has_given=True)


def _require_parties(
    run: Run, roster: Roster | None, nodes: Sequence[int] | None, n_parties: int
) -> None:
    """Require the roster of the run document, and a line or a node for each party."""
    digest = None
    if roster is not None:
        digest = roster.digest
    if digest != run.document.roster:
        raise ConfigurationError(
            "Expected the roster that the run document names. Got another, or none."
        )
    if roster is not None and len(roster) != n_parties:
        raise ConfigurationError(
            f"Expected a roster of {n_parties} parties, one line for each. "
            f"Got {len(roster)} lines instead."
        )
    if roster is None and nodes is not None and len(nodes) != n_parties:
        raise ConfigurationError(
            f"Expected nodes of {n_parties} parties, one for each slot. "
            f"Got {len(nodes)} instead."
        )
