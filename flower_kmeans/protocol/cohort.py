"""The cohort as the server knows it: who has which slot, and the frame of an attempt.

With a roster every pinned key has a slot, whether its client is there or not. Without one, slots
follow the order in which clients came. A cohort changes between two attempts and never within one,
because the root of its tree stands in every context (docs/protocol.md, sections 4 to 6).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from flower_kmeans.protocol.messages import Enrolled, Peer, Refusal
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import EPOCHS, MAX_SLOTS, Run
from flower_kmeans.protocol.transcript import EMPTY, ZERO, Tree, leaf
from flower_kmeans.secagg.base import Sharing

TAG_BYTES = 16
SEAL_BYTES = 16
"""What sealing adds to a part."""

MALFORMED = "The answer was malformed."
STRANGER = "The client's key is not on the roster."
TAKEN = "Another client holds this slot."
FULL = "The cohort has no slot left."
_IN_MEMORY = 2**20  # bytes of shares for one receiver; more go to a temporary file


@dataclass(frozen=True)
class Participant:
    """A client with a slot."""

    node_id: int
    slot: int
    public: Enrolled
    """What it sent when its session began."""


@dataclass(frozen=True)
class Frame:
    """The cohort of one attempt."""

    n_slots: int
    slots: dict[int, Participant]
    """Whose slots are taken, in their order."""
    tree: Tree
    committee: Committee | None = None
    """Where vectors leave their clients protected."""
    sharing: Sharing | None = None
    """Where the committee adds; ``None`` there too if too few of it are present."""

    @property
    def digest(self) -> bytes:
        """Digest of the committee's keys; zeros where nothing is protected."""
        return ZERO if self.committee is None else self.committee.digest

    @cached_property
    def committee_list(self) -> bytes:
        """The committee's slots and keys as they travel; empty where nothing is protected."""
        return b"" if self.committee is None else self.committee.encode()

    @property
    def committee_slots(self) -> tuple[int, ...]:
        """Slots of the committee in the order of its positions; of all clients without one."""
        return tuple(sorted(self.slots)) if self.committee is None else self.committee.slots

    @cached_property
    def present(self) -> dict[int, Participant]:
        """Clients of the committee that take part, by position."""
        return {
            position: self.slots[slot]
            for position, slot in enumerate(self.committee_slots)
            if slot in self.slots
        }

    def bits(self, slots: Sequence[int]) -> NDArray[np.bool_]:
        """Return which slots are among these, (n_slots,) bool."""
        bits = np.zeros(self.n_slots, dtype=np.bool_)
        bits[slots] = True
        return bits

    def tag(self, sender: Participant, receiver: Participant) -> bytes:
        """Return the tag of a sender's ephemeral key for a receiver; empty if it sent none.

        Committee members send tags for all slots, the others for the committee's.
        """
        tags, index = sender.public.tags, None
        if self.committee and len(tags) == TAG_BYTES * self.n_slots:
            index = receiver.slot
        elif self.committee and len(tags) == TAG_BYTES * len(self.committee.slots):
            index = self.committee.position_of(receiver.slot)
        return b"" if index is None else tags[TAG_BYTES * index : TAG_BYTES * (index + 1)]

    def peer(self, sender: Participant, receiver: Participant) -> Peer:
        """Return a client as it is passed on to another one."""
        tag = self.tag(sender, receiver)
        return Peer(slot=sender.slot, public_key=sender.public.public_key, tag=tag)

    def tags_for(self, receiver: Participant) -> bytes:
        """Return the committee's tags for a receiver, in the order of positions."""
        present = self.present
        tags = (
            self.tag(present[j], receiver) if j in present else b""
            for j in range(len(self.committee_slots))
        )
        return b"".join(tag or bytes(TAG_BYTES) for tag in tags)


class Cohort:
    """The clients of a run; the roster is that of ``keys="roster"``."""

    def __init__(self, run: Run, roster: Roster | None) -> None:
        self._run, self._roster = run, roster
        self._slot_of = {} if roster is None else {key: i for i, key in enumerate(roster.keys)}
        self.clients: dict[int, Participant] = {}  # by node
        self.taken: set[int] = set()  # slots that have a client, now or from the next frame on
        self._known: set[int] = set()
        self._owners: dict[bytes, int] = {ZERO: -1}  # slots by the ephemeral keys of their clients
        self._waiting: dict[int, list[Participant]] = {}  # by slot, where another has it
        self._changes: dict[int, Participant] = {}  # by slot, for the next frame
        self._committee: tuple[int, ...] | None = None
        self._frame: Frame | None = None
        if roster is not None:
            self._committee = committee_of(roster, run.document.epoch)

    @property
    def n_slots(self) -> int:
        """Number of slots, taken or not."""
        return len(self.clients) if self._roster is None else len(self._roster.keys)

    def knows(self, node_id: int) -> bool:
        """Return whether a node has a slot, will have one, or waits for one."""
        return node_id in self._known

    def take(self, node_id: int, reply: Enrolled) -> str | None:
        """Give a client the slot of its key, or the next one, from the next frame on.

        It returns why the client has none, or ``None``.
        """
        slot = len(self.taken)
        if self._roster is not None:
            slot = self._slot_of.get(reply.static, -1)
            if slot < 0:
                return STRANGER
        elif slot == MAX_SLOTS:
            return FULL
        client = Participant(node_id, slot, reply)
        if not self._accepts(client):
            return MALFORMED
        self._known.add(node_id)
        if slot in self.taken:
            self._waiting.setdefault(slot, []).append(client)
            return TAKEN
        self.taken.add(slot)
        self._changes[slot] = client
        return None

    def renew(self, node_id: int, refusal: Refusal) -> bool:
        """Take a client's new session, from the next frame on; return whether it is acceptable."""
        before = self.clients[node_id]
        if refusal.commitment is None or refusal.static != before.public.static:
            return False
        public = msgspec.structs.replace(
            before.public,
            commitment=refusal.commitment,
            public_key=refusal.public_key,
            tags=refusal.tags,
        )
        client = Participant(node_id, before.slot, public)
        if self._accepts(client):
            self._changes[client.slot] = client
            return True
        return False

    def give_up(self, slot: int) -> None:
        """Give a slot to the next client that has its lasting key too, if there is one.

        Others could not share with the client that has it, so it lacks the secret key.
        """
        waiting = self._waiting.get(slot)
        if waiting and slot not in self._changes:
            waiting += [client for client in self.clients.values() if client.slot == slot]
            self._changes[slot] = waiting.pop(0)

    def _accepts(self, client: Participant) -> bool:
        """Return whether a client's keys can stand in a committee's list, where each is once."""
        if not self._run.trust.is_protected:
            return True
        key = client.public.public_key
        return len(key) == len(ZERO) and self._owners.setdefault(key, client.slot) == client.slot

    def can_add(self, epoch: int | None = None) -> bool:
        """Return whether a committee can add although one more of it is missing, or it is whole.

        It is that of the run document's epoch or of another one.
        """
        document, trust = self._run.document, self._run.trust
        if self._roster is None or not trust.has_committee:
            return True
        slots = committee_of(self._roster, document.epoch if epoch is None else epoch)
        n_present = len(self.taken.intersection(slots))
        if n_present == len(slots):
            return True
        try:
            f = corrupt_positions(self.n_slots, document.max_colluders)
            return trust.sum.set_up(len(slots), f, n_present - 1) is not None
        except ConfigurationError:
            return False

    def better_epoch(self) -> int | None:
        """Return an epoch whose committee can add, if that of the run document cannot."""
        if self.can_add():
            return None
        return next((epoch for epoch in range(EPOCHS) if self.can_add(epoch)), None)

    def frame(self) -> tuple[Frame, set[int]]:
        """Take all changes and return the cohort as it is now, and the nodes that are new in it."""
        new = {client.node_id for client in self._changes.values()}
        if self._frame is None or self._changes:
            slots = {client.slot: client for client in self.clients.values()} | self._changes
            self.clients = {client.node_id: client for _, client in sorted(slots.items())}
            self._changes = {}
            self._frame = self._framed(dict(sorted(slots.items())))
        return self._frame, new

    def _framed(self, slots: dict[int, Participant]) -> Frame:
        n_slots, document, trust = self.n_slots, self._run.document, self._run.trust
        public = {slot: client.public for slot, client in slots.items()}
        tree = Tree(
            leaf(i, each.commitment, each.static, each.public_key)
            if (each := public.get(i))
            else EMPTY
            for i in range(n_slots)
        )
        if not trust.is_protected:
            return Frame(n_slots, slots, tree)
        if self._committee is None:
            # At random: clients that pool what they know could be the first to come.
            order = sorted(range(n_slots), key=lambda slot: token(16))
            self._committee = tuple(sorted(order[:MAX_POSITIONS]))
        keys = tuple(public[i].public_key if i in public else b"" for i in self._committee)
        committee = Committee(self._committee, keys, n_slots, document.max_colluders)
        try:
            sharing = committee.sharing(trust.sum)
        except ConfigurationError:
            sharing = None  # too few of it are present
        return Frame(n_slots, slots, tree, committee, sharing)


def committee_of(roster: Roster, epoch: int) -> tuple[int, ...]:
    """Return the slots of a roster's committee: all of them, or those that are drawn."""
    if len(roster.keys) <= MAX_POSITIONS:
        return tuple(range(len(roster.keys)))
    return drawn(roster.keys, roster.beacon, epoch)


class ShareStore:
    """The sealed shares of one attempt, by receiver: large ones lie in temporary files.

    Parameters
    ----------
    sharing : Sharing
    part_bytes : int
        Length of a sealed share. A share of another length counts as none.
    """

    def __init__(self, sharing: Sharing, part_bytes: int) -> None:
        self.sharing, self._part_bytes = sharing, part_bytes
        self._files = [
            SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 (`close` closes them)
            for _ in range(sharing.n_positions)
        ]
        self._starts: list[dict[int, int]] = [{} for _ in self._files]

    def put(self, slot: int, sealed: Sequence[bytes]) -> None:
        """Keep a dealer's shares."""
        if len(sealed) != len(self._files):
            return
        for part, file, starts in zip(sealed, self._files, self._starts, strict=True):
            if len(part) == self._part_bytes:
                starts[slot] = file.seek(0, 2)
                file.write(part)

    def missing(self, slot: int) -> set[int]:
        """Return the positions for which a dealer gave no share."""
        return {j for j, starts in enumerate(self._starts) if slot not in starts}

    def parts(self, position: int, slots: Iterable[int]) -> Iterator[bytes]:
        """Yield the shares of dealers for a position."""
        for slot in slots:
            self._files[position].seek(self._starts[position][slot])
            yield self._files[position].read(self._part_bytes)

    def close(self) -> None:
        """Throw the shares away."""
        for file in self._files:
            file.close()
