"""A client as the server knows it, and the clients of one attempt (docs/protocol.md, section 6)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import Enrolled, Peer, Wrap, write_claims
from flower_kmeans.protocol.resume import KeptClient
from flower_kmeans.protocol.transcript import ZERO, Tree
from flower_kmeans.secagg.base import Sharing


@dataclass(eq=False)
class Participant:
    """A client that enrolled, as the server knows it."""

    node_id: int
    slot: int
    public: Enrolled  # public values of its session
    new: Enrolled | None  # replaces `public` from the next frame on
    has_document: bool = False
    has_key: bool = False  # whether it has the group key
    # envelopes of the group key, by different distributors
    wraps: list[Wrap] = field(default_factory=list)
    # slots of distributors whose envelopes failed
    refused: set[int] = field(default_factory=set)
    was_asked: bool = False  # whether it was asked to distribute a group key
    head: int = 0  # number of rounds whose entries it has
    sent: int = 0  # last round of the entries that were sent to it
    # whether its query differed from that of most in the last attempt
    differs: bool = False
    is_banned: bool = False  # whether it is excluded from all later sums
    silences: int = 0  # trips in a row without an orderly reply

    @property
    def peer(self) -> Peer:
        """The public values of the client for other clients."""
        return Peer(self.slot, self.public.public_key, self.node_id, self.public.claim)

    @property
    def carried(self) -> tuple[Wrap, ...]:
        """The envelopes for the client, if it may lack the group key."""
        if self.has_key:
            return ()
        return tuple(self.wraps)

    def lacking_document(self, document: bytes) -> bytes:
        """Return the run document for a request; nothing for a client that has it."""
        if self.has_document:
            return b""
        return document

    def inherit(self, gone: "Participant") -> None:
        """Take the group key, the envelopes and the ban of a lost node."""
        self.new = None
        self.wraps = gone.wraps
        self.refused = gone.refused
        self.has_key = gone.has_key
        self.was_asked = gone.was_asked
        self.is_banned = gone.is_banned

    def has_session_of(self, other: "Participant") -> bool:
        """Return whether this node and another one have the same session."""
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
        """Return the client that a journal kept."""
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


@dataclass(frozen=True)
class Frame:
    """The cohort of one attempt, with a committee if vectors are protected."""

    slots: dict[int, Participant]  # clients of the taken slots, in order
    tree: Tree
    n_slots: int
    committee: Committee | None = None
    # present clients of the committee, by position
    present: dict[int, Participant] = field(default_factory=dict)
    digest: bytes = ZERO  # digest of the committee's keys
    encoded: bytes = b""  # the encoded committee
    # set where the committee adds, and enough members are present
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
        """The encoded claims of the present committee members."""
        members = self.present.values()
        return write_claims((each.node_id, each.public.claim) for each in members)
