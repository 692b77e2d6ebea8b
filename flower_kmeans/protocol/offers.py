"""The group keys that clients of a blind run offer (docs/protocol.md, section 5).

Each key distributor offers a group key. The server uses the first offer, and the next one
if too few clients could unseal the key. Offers have no rank: they rotate.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from flower_kmeans.protocol.messages import (
    ENVELOPE_BYTES,
    MAX_WRAPS,
    Wrap,
    read_rows,
    split,
)
from flower_kmeans.protocol.participants import Frame, Participant
from flower_kmeans.protocol.resume import KeptOffer
from flower_kmeans.secagg.primitives import KEY_ID_BYTES

DISTRIBUTORS = 3  # key distributors that are asked in one round trip


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


class Offers:
    """The offers of a run. The first one is in use.

    Parameters
    ----------
    has_roster : bool
        Whether rows of peers have claims.
    """

    def __init__(self, has_roster: bool) -> None:
        self._has_roster = has_roster
        self._queue: deque[Offer] = deque()
        self.is_settled = False  # whether the run keeps the first offer's key

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def key_id(self) -> bytes:
        """The id of the group key that is in use; empty if there is none."""
        if not self._queue:
            return b""
        return self._queue[0].key_id

    # ------------------------------------------------------------------ clients to ask

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
        """Return clients that can seal the group key for clients without it.

        Before any client has the key, these are the distributors. Each seals the key that
        it made.
        """
        holders = self.holders(frame)
        if holders:
            return holders[:DISTRIBUTORS]
        clients = list(frame.slots.values())
        leaders = [offer.leader for offer in self._queue if offer.leader in clients]
        # A distributor that lost its memory lost its group key, too.
        able = [leader for leader in leaders if leader.wraps or leader.has_key]
        return able[:DISTRIBUTORS]

    # ------------------------------------------------------------------ offers

    def take(
        self,
        frame: Frame,
        sender: Participant,
        rows: bytes,
        key_id: bytes,
        envelopes: bytes,
    ) -> None:
        """Keep a distributor's envelopes for peers, unless their number is wrong.

        Envelopes of the key in use go to their clients. Another key is a new offer, until
        an offer is settled.
        """
        peers = read_rows(rows, self._has_roster)
        if len(envelopes) != ENVELOPE_BYTES * len(peers) or len(key_id) != KEY_ID_BYTES:
            return
        made = dict[Participant, Wrap]()
        for peer, envelope in zip(peers, split(envelopes, ENVELOPE_BYTES), strict=True):
            client = frame.slots[peer.slot]
            made[client] = Wrap(
                distributor=sender.peer.row, key_id=key_id, envelope=envelope
            )

        is_known = False
        for offer in self._queue:
            if offer.leader == sender and offer.key_id == key_id:
                offer.wraps.update(made)
                is_known = True
        if key_id == self.key_id:
            _hand_out(sender, made)
        elif not is_known and not self.is_settled:
            self._queue.append(Offer(sender, key_id, made))
            if len(self._queue) == 1:
                self._use_first(frame)

    def next(self, frame: Frame) -> None:
        """Use the next offer. The one in use becomes the last one."""
        self._queue.rotate(-1)
        self._use_first(frame)

    def _use_first(self, frame: Frame) -> None:
        """Use the first offer for all clients, before any client has an entry."""
        made = self._queue[0]
        for client in frame.slots.values():
            client.has_key = False
            client.refused = set()
            client.wraps = []
            if client in made.wraps:
                client.wraps.append(made.wraps[client])

    # ------------------------------------------------------------------ clients

    def complain(self, client: Participant) -> None:
        """Record that a client could not unseal its envelopes."""
        for wrap in client.wraps:
            (distributor,) = read_rows(wrap.distributor, self._has_roster)
            client.refused.add(distributor.slot)
        client.has_key = False
        client.wraps = []

    def forget(self, client: Participant) -> None:
        """Record that a client's session has neither the group key nor an envelope."""
        client.has_key = False
        client.wraps = []
        client.refused = set()
        for offer in self._queue:
            offer.wraps.pop(client, None)

    def pass_on(self, gone: Participant, client: Participant) -> None:
        """Give a client the envelopes of a lost one with the same session."""
        for offer in self._queue:
            if gone in offer.wraps:
                offer.wraps[client] = offer.wraps.pop(gone)

    def named(self) -> set[Participant]:
        """Return all clients that made an offer, or have an envelope in one."""
        named = set[Participant]()
        for offer in self._queue:
            named.add(offer.leader)
            named.update(offer.wraps)
        return named

    # ---------------------------------------------------------------- after a restart

    def kept(self) -> tuple[KeptOffer, ...]:
        """Return the offers for a journal."""
        return tuple(offer.kept() for offer in self._queue)

    def restore(
        self,
        kept: tuple[KeptOffer, ...],
        clients: Mapping[tuple[int, int], Participant],
    ) -> None:
        """Restore offers that `kept` returned. ``clients`` are by slot and node."""
        for offer in kept:
            wraps = {clients[slot, node]: wrap for slot, node, wrap in offer.wraps}
            self._queue.append(Offer(clients[offer.leader], offer.key_id, wraps))


def _hand_out(sender: Participant, wraps: dict[Participant, Wrap]) -> None:
    """Give clients their envelopes of the key in use."""
    for client, wrap in wraps.items():
        has_room = len(client.wraps) < MAX_WRAPS
        if sender.slot not in client.refused and has_room:
            client.wraps.append(wrap)
