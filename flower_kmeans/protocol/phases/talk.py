"""Requests to the clients of a run, and their orderly replies (docs/protocol.md, section 6).

No refusal ends a run by itself (rule 1).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from flower_kmeans.protocol.cohort import Cohort
from flower_kmeans.protocol.incidents import MALFORMED, STRAY, TWICE, Incidents
from flower_kmeans.protocol.messages import (
    Code,
    Enrolled,
    Refusal,
    Reply,
    Request,
)
from flower_kmeans.protocol.participants import Participant
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.resumption import Resumption
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.trips import HasEnough, Replies, RequestKind, Trip
from flower_kmeans.report.report import IncidentKind, Proceedings

R = TypeVar("R", bound=Reply)


class Talk:
    """The messages between the server and the clients of a run.

    Parameters
    ----------
    run : Run
        The run. Replies of other runs are incidents.
    cohort : Cohort
        The clients. Nodes may enrol in every round trip.
    announced : Announced
        The entries that clients may lack.
    incidents : Incidents
        Incidents, to which disorderly replies are added.
    proceedings : Proceedings
        Proceedings, which count the round trips.
    resumption : Resumption
        Resumption, which counts clients for which a round is over.

    Attributes
    ----------
    has_enough : callable
        Returns whether the present round trip has enough replies.
    """

    def __init__(
        self,
        run: Run,
        cohort: Cohort,
        announced: Announced,
        incidents: Incidents,
        proceedings: Proceedings,
        resumption: Resumption,
    ) -> None:
        self.run = run
        self.cohort = cohort
        self.incidents = incidents
        self.proceedings = proceedings
        self.has_enough: HasEnough = lambda: False
        self._announced = announced
        self._resumption = resumption
        # nodes with an orderly reply in the present trip
        self._orderly = set[int]()

    def send(
        self, trip: Trip, kind: RequestKind, requests: Mapping[int, Request]
    ) -> Replies:
        """Send requests in a round trip, and return the replies as they come."""
        self.proceedings.round_trips += 1
        return trip(kind, requests, self.has_enough)

    def take(
        self, t: int, asked: Iterable[int], replies: Replies, kind: type[R]
    ) -> Iterator[tuple[Participant, R | Refusal]]:
        """Yield orderly replies and refusals of clients, enrol nodes, and record other replies."""
        cohort = self.cohort
        seen = set[int]()
        orderly = set[int]()
        self._orderly = orderly  # `take_out` removes incomplete answers
        for node_id, reply in replies:
            client = cohort.clients.get(node_id)
            if cohort.nodes is not None and node_id not in cohort.nodes:
                continue
            if isinstance(reply, str):
                self._fail(node_id, t, reply)
            elif reply.doc_hash not in (self.run.doc_hash, None):
                self._fail(node_id, t, STRAY)
            elif isinstance(reply, Enrolled):
                objection = cohort.take(node_id, reply)
                if objection is not None:
                    self._fail(node_id, t, objection)
            elif client is None:
                if isinstance(reply, Refusal):
                    self.incidents.note(node_id, t, Code(reply.code).sentence)
                    cohort.known.add(node_id)
            elif node_id in seen:
                self._fail(node_id, t, TWICE)
            elif isinstance(reply, Refusal):
                seen.add(node_id)
                if reply.code in (Code.RENEW, Code.NEED, Code.KEY):
                    orderly.add(node_id)
                self._refused(client, t, reply)
                yield client, reply
            elif isinstance(reply, kind):
                seen.add(node_id)
                orderly.add(node_id)
                client.has_document = True
                yield client, reply
            else:
                self._fail(node_id, t, MALFORMED)
        cohort.hear(asked, orderly)

    def take_out(self, client: Participant, t: int) -> None:
        """Record that a yielded reply was incomplete: it counts as none."""
        self._orderly.discard(client.node_id)
        self._fail(client.node_id, t, MALFORMED)

    def note(
        self, client: Participant, t: int, reason: str, kind: IncidentKind
    ) -> None:
        """Record an incident at a client."""
        self.incidents.note(client.node_id, t, reason, kind, client)

    def drop(self, t: int, node_ids: Iterable[int]) -> None:
        """Record that a round went on without these nodes, each with the last incident."""
        self.incidents.drop(t, node_ids, self.cohort.clients)

    def _fail(self, node_id: int, t: int, reason: str) -> None:
        client = self.cohort.clients.get(node_id)
        self.incidents.note(node_id, t, reason, "failed", client)

    def _refused(self, client: Participant, t: int, refusal: Refusal) -> None:
        """Record a refusal; renew the client's session, or mark the parts that it lacks."""
        code = Code(refusal.code)
        if code == Code.STALE:
            self._resumption.hear_stale(client.slot, t)
        is_renewed = code == Code.RENEW and self.cohort.renew(client, refusal)
        self.note(client, t, code.sentence, "renewed" if is_renewed else "refused")
        if code == Code.NEED:
            client.has_document = False
            client.has_key = False
            # A client that was sent only some entries followed these. Otherwise it may have
            # none.
            n_entries = len(self._announced.entries)
            client.head = client.sent if client.sent < n_entries else 0
            client.sent = 0
