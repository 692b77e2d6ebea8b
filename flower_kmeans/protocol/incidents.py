"""Incidents of a run for its report: disorderly replies, and missing clients."""

from collections.abc import Iterable, Mapping

from flower_kmeans.protocol.participants import Participant
from flower_kmeans.report.report import Dropped, IncidentKind

NO_ANSWER = "No answer in time."
STRAY = "The answer belonged to another run."
MALFORMED = "The answer was malformed."
TWICE = "The client answered twice; only the first answer counted."
DIFFERS = "The client's query or history differs from that of most clients."
FALSE_SHARE = "The client's sum-share is false."
NAMED = "Other clients could not unseal the client's shares."
LATE = "The client came late, and keys are relayed to the first clients only."
STRANGER = "The client's key is not on the roster."
TAKEN = "Another node holds this slot, with the same key."
SECOND_SLOT = "The node has claimed another slot before."
UNCLAIMED = (
    "The claim of the slot is not its owner's, or is for another run, node or key."
)
TOO_MANY = "The client began too many sessions."
FULL = "The cohort has no slot left."


class Incidents:
    """The incidents of a run: for each node and round, the last one of each kind.

    Attributes
    ----------
    dropped : list of Dropped
        Clients that were missing in a round, each with its last incident.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int, IncidentKind], Dropped] = {}
        self.dropped: list[Dropped] = []

    @property
    def all(self) -> list[Dropped]:
        """All incidents, in the order of their last occurrence."""
        return list(self._last.values())

    def note(
        self,
        node_id: int,
        t: int,
        reason: str,
        kind: IncidentKind = "refused",
        client: Participant | None = None,
    ) -> None:
        """Record an incident at a node, with the slot and the statements of its client, if any."""
        slot = -1
        stated: tuple[str, bool] | tuple[()] = ()
        if client is not None:
            slot = client.slot
            stated = (client.public.software, client.public.ledger)
        # Only the last of each kind is kept, so that a node cannot fill the server's memory.
        self._last.pop((node_id, t, kind), None)
        self._last[node_id, t, kind] = Dropped(slot, node_id, t, reason, kind, *stated)

    def drop(
        self, t: int, node_ids: Iterable[int], clients: Mapping[int, Participant]
    ) -> None:
        """Record that a round went on without these nodes; ``clients`` are by node."""
        last = {each.node_id: each for each in self.all if each.round == t}
        for node_id in sorted(node_ids):
            slot = clients[node_id].slot if node_id in clients else -1
            silent = Dropped(slot, node_id, t, NO_ANSWER, "silent")
            self.dropped.append(last.get(node_id, silent))

    def reasons(self, t: int) -> str:
        """Return the reasons of a round's incidents, as the end of a sentence."""
        missing = (*self.all, *self.dropped)
        reasons = sorted({one.reason for one in missing if one.round == t})
        if not reasons:
            return ""
        return f" Reasons: {' '.join(reasons)}"

    def restore(self, incidents: Iterable[Dropped], dropped: Iterable[Dropped]) -> None:
        """Restore the incidents of a journal."""
        self._last = {(one.node_id, one.round, one.kind): one for one in incidents}
        self.dropped = list(dropped)
