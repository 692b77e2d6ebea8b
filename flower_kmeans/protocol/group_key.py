"""Who has the group key, as the server knows it (docs/protocol.md, section 5).

Key distributors seal a group secret for every other client. Envelopes of two distributors are two
group keys, so the server uses those of one, and the next one's if hardly anybody could open them.
"""

from collections.abc import Iterable, Sequence

from flower_kmeans.protocol.cohort import Frame, Participant
from flower_kmeans.protocol.messages import Wrap

N_DISTRIBUTORS = 3
ENVELOPE_BYTES = 48

Envelopes = dict[int, Wrap]


class GroupKey:
    """The envelopes of a run's group key."""

    def __init__(self) -> None:
        self.holders: set[int] = set()  # nodes that have the group key
        self.envelopes: Envelopes = {}  # what opens to it, by node
        self._offers: list[Envelopes] = []  # of other group keys
        self._spare: dict[int, list[Wrap]] = {}  # of this group key

    @property
    def has_offers(self) -> bool:
        """Whether there are envelopes of another distributor."""
        return bool(self._offers)

    @property
    def exists(self) -> bool:
        """Whether some client can have the group key."""
        return bool(self.envelopes or self._offers)

    def lacking(self, frame: Frame) -> list[Participant]:
        """Return the clients without an envelope, in the order of their slots."""
        return [c for c in frame.slots.values() if c.node_id not in self.envelopes]

    def distributors(self, frame: Frame, but: set[int]) -> list[Participant]:
        """Return the committee members that seal the group secret, ``but`` for these nodes."""
        members = [c for c in frame.present.values() if c.node_id not in but]
        if self.envelopes:
            members = [c for c in members if c.node_id in self.holders]
        return members[:N_DISTRIBUTORS]

    def wrap_for(self, node_id: int) -> Wrap | None:
        """Return the envelope for a client that may lack the group key."""
        return None if node_id in self.holders else self.envelopes.get(node_id)

    def offer(
        self,
        frame: Frame,
        distributor: Participant,
        envelopes: Sequence[bytes],
        wanted: Sequence[Participant],
    ) -> list[Participant]:
        """Keep a distributor's envelopes; return the clients for which it sealed none.

        Their tag for it, or their key, is wrong.
        """
        if len(envelopes) != len(wanted) or not any(envelopes):
            return []
        made = {
            client.node_id: Wrap(distributor=frame.peer(distributor, client), envelope=envelope)
            for client, envelope in zip(wanted, envelopes, strict=True)
            if len(envelope) == ENVELOPE_BYTES
        }
        if self.envelopes:  # the distributor is a holder: its envelopes hold the same secret
            for node_id, wrap in made.items():
                self._spare.setdefault(node_id, []).append(wrap)
            self._fill(made)
        else:
            self._offers.append(made)
        return [client for client in wanted if client.node_id not in made]

    def accept_offer(self) -> None:
        """Use the envelopes of the distributor that made most, unless some are in use."""
        if not self.envelopes and self._offers:
            self._offers.sort(key=len, reverse=True)
            self.envelopes = self._offers.pop(0)

    def _fill(self, node_ids: Iterable[int]) -> None:
        for node_id in node_ids:
            if node_id not in self.envelopes and self._spare.get(node_id):
                self.envelopes[node_id] = self._spare[node_id].pop(0)

    def refused(self, node_ids: Iterable[int], least: int) -> None:
        """Record that envelopes did not open.

        Clients that are left without one get one from a holder. If there are fewer holders than
        ``least``, all others get the next distributor's instead.
        """
        refused = list(node_ids)
        for node_id in refused:
            self.envelopes.pop(node_id, None)
        if refused and len(self.holders) < least and self._offers:
            held = {n: wrap for n, wrap in self.envelopes.items() if n in self.holders}
            self.envelopes = self._offers.pop(0) | held
        self._fill(refused)

    def start_over(self) -> None:
        """Use the next distributor's envelopes for everybody."""
        self.holders.clear()
        self.envelopes = self._offers.pop(0)

    def forget(self, node_id: int) -> None:
        """Record that a client lacks the group key, and that its envelopes do not open."""
        self.holders.discard(node_id)
        self._spare.pop(node_id, None)
        for made in (self.envelopes, *self._offers):
            made.pop(node_id, None)
