"""The questions of a round's attempts (docs/protocol.md, section 6, round trip A)."""

from flower_kmeans.algorithms import queries
from flower_kmeans.errors import MessageError, RunError
from flower_kmeans.protocol import noise, transcript
from flower_kmeans.protocol.messages import Ask
from flower_kmeans.protocol.participants import Frame, Participant
from flower_kmeans.protocol.phases.announced import Announced
from flower_kmeans.protocol.phases.attempt import Attempt, ShareStore
from flower_kmeans.protocol.phases.course import Course
from flower_kmeans.protocol.phases.frames import Frames
from flower_kmeans.protocol.phases.group_key import GroupKey
from flower_kmeans.protocol.phases.keeping import Keeping
from flower_kmeans.protocol.phases.talk import Talk
from flower_kmeans.protocol.resume import KeptAttempt
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import encode_arrays
from flower_kmeans.secagg.primitives import SEAL_BYTES


class Questions:
    """Phase that opens attempts and makes their requests `ask`. It does not send them."""

    def __init__(
        self,
        talk: Talk,
        frames: Frames,
        course: Course,
        announced: Announced,
        group_key: GroupKey,
        keeping: Keeping,
    ) -> None:
        self._talk = talk
        self._run = talk.run
        self._cohort = talk.cohort
        self._frames = frames
        self._course = course
        self._announced = announced
        self._group_key = group_key
        self._keeping = keeping

    # ------------------------------------------------------------------ attempts

    def query(self) -> bytes | None:
        """Return the next query, encoded and checked; ``None`` if clients compute it."""
        if self._run.trust.is_blind:
            return None
        algorithm = self._run.algorithm
        query = algorithm.query(self._course.state)
        try:
            data = encode_arrays(dict(query.arrays))
            queries.check_query(algorithm, query)
        except MessageError as error:
            raise RunError(
                f"Round {query.round} cannot be asked for. {error}"
            ) from None
        return data

    def open(self, number: int, query: bytes | None) -> Attempt:
        """Open an attempt at the next round, in the next frame, and keep it."""
        t = self._course.head + 1
        attempt = self._new(t, number, self._frames.next(), query)
        self._talk.proceedings.attempts += 1
        attempt.distributors = tuple(
            client.slot for client in self._distributors(attempt.frame)
        )
        self.make_requests(attempt)
        self._keeping.write(attempt)
        return attempt

    def reopen(self, kept: KeptAttempt) -> Attempt:
        """Return the attempt that the former process had open, in its frame and with its query."""
        frame = self._frames.of(kept.frame)
        attempt = self._new(kept.t, kept.number, frame, kept.query)
        attempt.distributors = kept.distributors
        if kept.dealers:
            self._keeping.restore_sum(attempt, kept.tag, kept.dealers)
        return attempt

    def _new(self, t: int, number: int, frame: Frame, query: bytes | None) -> Attempt:
        """Return an attempt without requests and answers."""
        tag = b"" if query is None else transcript.query_tag(ZERO, ZERO, query)
        n_words = self._run.document.words[t - 1]
        size = noise.part_bytes(self._run, n_words, frame.sharing)
        positions = dict[int, Participant]()
        if frame.sharing is not None:
            size += SEAL_BYTES
            positions = frame.present
        store = ShareStore(positions, size)
        return Attempt(t, number, frame, query, tag, size, store, dict(frame.present))

    def _distributors(self, frame: Frame) -> list[Participant]:
        """Return the clients that are asked for a group key with the attempt's requests."""
        offers = self._cohort.offers
        if offers and self._group_key.keyless(frame):
            return offers.sealers(frame)
        if self._run.trust.is_blind and not offers:
            return offers.distributors(frame)
        return []

    # ------------------------------------------------------------------ requests

    def make_requests(self, attempt: Attempt) -> None:
        """Make the requests of an attempt, by node."""
        offers = self._cohort.offers
        least = self._run.document.min_clients
        needs_offer = self._run.trust.is_blind
        keyless = self._group_key.keyless(attempt.frame)
        rows = b"".join(peer.peer.row for peer in keyless)
        for client in attempt.frame.slots.values():
            peers = rows if client.slot in attempt.distributors else b""
            attempt.requests[client.node_id] = self.request(attempt, client, peers)
        self._talk.has_enough = lambda: (
            attempt.is_crowd(least) and (not needs_offer or bool(offers))
        )

    def request(self, attempt: Attempt, client: Participant, peers: bytes = b"") -> Ask:
        """Return the request of an attempt for a client. Its bytes change only with its needs."""
        has_shares = self._run.trust.has_committee
        located = attempt.located(self._run, client)
        if has_shares and attempt.t == 1:
            located["wraps"] = ()  # the query is public: only `add` needs the key
        claims = b""
        if has_shares and self._run.document.keys == "roster":
            claims = attempt.frame.claims
        return Ask(
            **located,
            claims=claims,
            query=attempt.query,
            entries=self._announced.lacking(client, self._cohort.n_slots),
            peers=peers,
        )
