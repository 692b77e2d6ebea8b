"""The end of a run: its result at the clients (docs/protocol.md, section 9)."""

from collections.abc import Iterable

from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.protocol.messages import Finish, Finished
from flower_kmeans.protocol.participants import Participant
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.course import Course
from flower_kmeans.protocol.phases.frames import Frames
from flower_kmeans.protocol.phases.keeping import Keeping
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.results import encode_result, read_result, result_of
from flower_kmeans.protocol.trips import Replies, Trip


class Finishing:
    """Phase that delivers the result, or the entries from which clients compute it.

    It makes the first requests `finish`, and sends the further ones.

    Attributes
    ----------
    delivered : set of int
        Nodes that have the result.
    """

    def __init__(
        self,
        talk: Talk,
        frames: Frames,
        course: Course,
        announced: Announced,
        keeping: Keeping,
    ) -> None:
        self._talk = talk
        self._run = talk.run
        self._cohort = talk.cohort
        self._frames = frames
        self._course = course
        self._announced = announced
        self._keeping = keeping
        self.delivered = set[int]()

    def requests(self) -> dict[int, Finish]:
        """Return the requests with the last entries or the result, by node."""
        least = self._run.document.min_clients
        self._talk.has_enough = lambda: len(self.delivered) >= least
        self._talk.proceedings.round_trips += 1
        self._frames.next()
        return self._requests(self._cohort.clients.values())

    def _requests(self, clients: Iterable[Participant]) -> dict[int, Finish]:
        doc_hash = self._run.doc_hash
        if not self._run.trust.is_blind:
            finish = Finish(doc_hash=doc_hash, result=self._result())
            return dict.fromkeys((client.node_id for client in clients), finish)
        n_slots = self._cohort.n_slots
        return {
            client.node_id: Finish(
                doc_hash=doc_hash,
                entries=self._announced.lacking(client, n_slots),
                wraps=client.carried,
            )
            for client in clients
        }

    def _result(self) -> bytes:
        course = self._course
        result = result_of(
            self._run, course.state, course.noise_factor, course.findings
        )
        if result is None:
            raise RunError(
                "Expected centroids and counts after the last round. Got none."
            )
        try:
            data = encode_result(result)
            # The server reads the result as clients do: one error here is better than a
            # refusal of each client.
            read_result(self._run, data)
        except MessageError as error:
            raise RunError(
                f"The result cannot be sent to the clients. {error}"
            ) from None
        return data

    def take(self, replies: Replies, trip: Trip) -> None:
        """Take the confirmations of the delivery, and send missing entries to their clients."""
        after = self._run.document.rounds + 1
        for _ in range(1 + len(self._announced.entries)):
            lacking = []
            heads = {client: client.head for client in self._cohort.clients.values()}
            for client, reply in self._talk.take(after, (), replies, Finished):
                if isinstance(reply, Finished):
                    self.delivered.add(client.node_id)
                elif client.head != heads[client]:
                    lacking.append(client)
            if not lacking:
                break
            replies = self._talk.send(trip, "finish", self._requests(lacking))
        self._talk.drop(after, self._cohort.clients.keys() - self.delivered)
        if self.delivered:
            self._keeping.finish()
