"""The server's side of a run, in the order of docs/protocol.md, sections 5 and 6.

A server knows nothing of Flower's messages or clocks. It makes requests per node and
hands them to a `Trip`, which carries them and yields the replies. The numbered rules
about faults are those of section 6. No client checks them, and none costs privacy: one
sum of a round can be reconstructed.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec
import numpy as np

from flower_kmeans.algorithms.base import State
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.plausibility import Finding, findings_of
from flower_kmeans.errors import (
    ConfigurationError,
    KMeansError,
    MessageError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import messages, noise, transcript
from flower_kmeans.protocol.cohort import (
    MALFORMED,
    TWICE,
    Cohort,
    Frame,
    Participant,
    ShareStore,
)
from flower_kmeans.protocol.committee import MAX_POSITIONS, corrupt_positions
from flower_kmeans.protocol.messages import (
    Added,
    Answer,
    Ask,
    Code,
    Enrolled,
    Refusal,
    Reply,
)
from flower_kmeans.protocol.results import encode_result, read_result, result_of
from flower_kmeans.protocol.resume import (
    Journal,
    KeptAttempt,
    KeptRun,
    is_same_state,
    read_state,
    write_state,
)
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import MAX_MESSAGE, encode, encode_arrays
from flower_kmeans.report.report import (
    CommitteeReport,
    Dropped,
    IncidentKind,
    Proceedings,
)
from flower_kmeans.secagg.base import SumContext, SumError
from flower_kmeans.secagg.hashing import u64
from flower_kmeans.secagg.key_agreement import SEAL_BYTES

RequestKind = str  # "enrol", "hold", "ask", "add", "abort", or a kind of run's own
R = TypeVar("R", bound=Reply)
Replies = Iterable[tuple[int, Reply | str]]
"""Node and reply; a string states why there is no orderly reply."""
HasEnough = Callable[[], bool]
"""Whether the server could go on without further replies to the round trip that is under way."""
Trip = Callable[[RequestKind, Mapping[int, messages.Request], HasEnough], Replies]
"""Sends requests by node, and yields each node with its reply or why there is none, as they come.
Replies to the enrolments that `Server.join` returned may come too."""

MAX_RELAY = 2**31  # bytes of shares that a server passes on in one round
N_REPEATS = 2  # of an `Ask` or `Add`, for those who did not answer it
_MOST_HOLDERS = 4  # that seal the group key for one complaint
_ADD_BYTES = 256 * 2**20  # of all that are under way at once
_OVERHEAD = 2**20  # of a message, beside what grows with words and clients
_PEER_BYTES = 108  # a row, which is longer than an envelope
_PART_OVERHEAD = 32

NO_ANSWER = "No answer in time."
STRAY = "The answer belonged to another run."
DIFFERS = "The client's query or history differs from that of most clients."
FALSE_SHARE = "The client's sum-share is false."
NAMED = "The client's shares did not open for others."


@dataclass
class _Attempt:
    """An attempt at a round."""

    t: int
    number: int
    frame: Frame
    query: bytes | None  # where the server sees the sums
    tag: bytes  # of the answers that are added up; empty until they are all there
    part_bytes: int  # of one part of an answer, sealed where it is a share
    store: ShareStore
    members: dict[int, Participant]  # who adds the answers up, by position
    requests: dict[int, Ask] = field(default_factory=dict)
    # who gave them, by tag
    answers: dict[bytes, list[Participant]] = field(default_factory=dict)
    # by tag, without a committee
    sums: dict[bytes, bytes] = field(default_factory=dict)
    contexts: dict[bytes, SumContext] = field(default_factory=dict)  # by tag
    # S: those whose answers are added up
    dealers: list[Participant] = field(default_factory=list)
    chosen: bytes = b""  # the tag of most complete answers so far
    tried: int = 0  # offers of group keys that failed in `add`
    # S is on the disk: a restarted server must add the same answers
    is_chosen: bool = False
    distributors: tuple[int, ...] = ()  # slots of those that are asked for a group key
    heard: set[Participant] = field(
        default_factory=set
    )  # those whose answers are complete
    complained: set[Participant] = field(
        default_factory=set
    )  # those without the group key
    # of members; a refusal names
    replies: dict[int, Added | Refusal] = field(default_factory=dict)

    @property
    def threshold(self) -> int:
        """Sum-shares that reconstruct the sum; 0 without a committee."""
        return self.frame.sharing.threshold if self.frame.sharing else 0

    @property
    def shares(self) -> dict[int, bytes]:
        """Sum-shares by position."""
        return {
            j: reply.share
            for j, reply in self.replies.items()
            if isinstance(reply, Added)
        }

    @property
    def named(self) -> dict[int, int | None]:
        """By position, the slot whose share did not open."""
        return {
            j: reply.slot
            for j, reply in self.replies.items()
            if isinstance(reply, Refusal)
        }


class Server:
    """The server of one run.

    Parameters
    ----------
    run : Run
        What its algorithm holds beside the parameters in the document never travels.
    seed : int, default: 0
        Public randomness of an algorithm whose queries only the server can compute.
    roster : Roster, optional
        The clients' public keys; needed exactly under ``keys="roster"``.
    nodes : sequence of int, optional
        The only nodes that may take part; without a roster in the order of their slots.
    journal : Journal, optional
        Where the run is kept, so that it goes on if this process ends. The run then is
        that of the journal, if one is kept there.

    Raises
    ------
    ConfigurationError
        If the roster is not that of the document, or the journal holds a run of other
        nodes.
    """

    def __init__(
        self,
        run: Run,
        *,
        seed: int = 0,
        roster: Roster | None = None,
        nodes: Sequence[int] | None = None,
        journal: Journal | None = None,
    ) -> None:
        if (None if roster is None else roster.digest) != run.document.roster:
            raise ConfigurationError(
                "Expected the roster that the run document names. Got another, or none."
            )
        self.run, self._seed, self._roster = run, seed, roster
        # nodes with an orderly reply in the trip that is under way
        self._orderly = set[int]()
        self._nodes = None if nodes is None else tuple(nodes)
        self.proceedings = Proceedings()
        self._incidents: dict[tuple[int, int, IncidentKind], Dropped] = {}
        # who was missing in a round, with the last incident
        self.dropped: list[Dropped] = []
        self.delivered: set[int] = set()  # nodes that have the result
        # rounds that are closed; the last whose sum the server saw
        self.head = self.n_opened = 0
        # of the last sum: deviation of its noise over the planned one
        self.noise_factor = 1.0
        # of sums that it saw, what no records explain
        self.findings: list[Finding] = []
        self.state: State = run.algorithm.initial_state(self._generator(0))
        self._begin(run)
        self._journal = journal
        follows_from_document = journal is None or run.algorithm.replayable
        self._start = b"" if follows_from_document else write_state(self.state)
        # that was open when the former process ended
        self._resumed: KeptAttempt | None = None
        # slots that took a resumed round for one that is over
        self._stale: set[int] | None = None
        kept = None if journal is None else journal.load(KeptRun)
        if kept is not None:
            self._restore(kept)

    def _begin(self, run: Run) -> None:
        """Forget all clients: no session of theirs is for this document."""
        self.run = run  # beyond 64 slots perhaps with another epoch after `set_up`
        self._cohort = Cohort(run, self._roster, self._nodes)
        self._entries: dict[messages.Entry, int] = {}  # with their lengths
        self._h = transcript.first_hash(run.doc_hash) if run.trust.is_blind else ZERO
        self._attempt: _Attempt | None = None
        # rounds and client keys, after complaints
        self._served: set[tuple[int, bytes]] = set()
        # rounds and slots that caused an attempt
        self._caused: set[tuple[int, int]] = set()
        self.has_enough: HasEnough = lambda: False  # for the round trip under way

    def _generator(self, number: int) -> np.random.Generator | None:
        """Return the randomness of one step; none where clients could take the same step."""
        return (
            None
            if self.run.algorithm.replayable
            else public_generator(self._seed, number)
        )

    @property
    def incidents(self) -> list[Dropped]:
        """All that was not an orderly reply: of each node and round the last of a kind."""
        return list(self._incidents.values())

    @property
    def n_clients(self) -> int:
        """Number of clients that have a slot."""
        return len(self._cohort.clients)

    @property
    def n_claims(self) -> int:
        """Number of slots that a client has claimed."""
        return len(self._cohort.claims)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every client stated that it keeps a ledger, which only they can know."""
        clients = self._cohort.clients.values()
        return bool(clients) and all(client.public.ledger for client in clients)

    # --------------------------------------------------------------- set-up (section 5)

    def set_up(self, node_ids: Iterable[int], trip: Trip) -> None:
        """Enrol the clients, give them slots, and choose the committee and the group key.

        A `TooFewClientsError` if too few enrolled, a `ConfigurationError` if messages
        to so many would be too long, a `RunError` if no client made the group key.
        """
        with self._aborting(trip):
            if self._stale is None:
                self._set_up(sorted(self._named(node_ids)), trip)
            else:
                self._come_back(self._named(node_ids), trip)

    @contextmanager
    def _aborting(self, trip: Trip) -> Iterator[None]:
        """Tell all clients if the run ends here by an error: they erase their secrets.

        A run that is kept may be resumed, so its clients wait.
        """
        try:
            yield
        except KMeansError:
            if self._journal is None:
                self.abort(trip)
            raise

    def abort(self, trip: Trip) -> None:
        """Let all clients erase their secrets, without waiting for any."""
        request = messages.Abort(doc_hash=self.run.doc_hash)
        claims = chain.from_iterable(self._cohort.claims.values())
        nodes = {client.node_id for client in claims} - self.delivered
        if nodes:
            deque(
                trip("abort", dict.fromkeys(sorted(nodes), request), lambda: True),
                maxlen=0,
            )

    def _set_up(self, nodes: list[int], trip: Trip) -> None:
        self._keep()
        self._enrol(nodes, trip)
        nodes = sorted({*nodes, *self._cohort.known})  # some connected meanwhile
        epoch = self._cohort.better_epoch()
        if epoch is not None:  # another document, so clients begin other sessions
            document = msgspec.structs.replace(self.run.document, epoch=epoch)
            self._begin(replace(self.run, document=document))
            self._keep()
            self._enrol(nodes, trip)
        n_taken, least = len(self._cohort.claims), self.run.document.min_clients
        if n_taken < least:
            taken = {
                one.node_id for claims in self._cohort.claims.values() for one in claims
            }
            self._note_dropped(0, set(nodes) - taken)
            raise TooFewClientsError(
                f"Expected at least min_clients={least} clients to take part. "
                f"Got {n_taken} of {len(nodes)} connected nodes instead.{self._reasons(0)}"
            )
        frame = self._next_frame()
        self._note_dropped(0, set(nodes) - self._cohort.clients.keys())
        if self.run.trust.has_committee and frame.committee and frame.sharing is None:
            raise TooFewClientsError(
                f"Expected more of the {len(frame.committee.slots)} committee members to take "
                f"part. Got {len(frame.present)} instead.{self._reasons(0)}"
            )
        require_sizes(self.run, frame.n_slots)
        self._cohort.is_closed = self._is_closed
        if self._has_early_key:
            self._make_group_key(frame, trip)

    def _enrol(self, nodes: Iterable[int], trip: Trip) -> None:
        cohort, least = self._cohort, self.run.document.min_clients
        self.has_enough = lambda: (
            len(cohort.claims) >= least and cohort.can_add(spare=0)
        )
        requests = dict.fromkeys(nodes, messages.Enrol(doc=self.run.data))
        list(self._take(0, (), self._send(trip, "enrol", requests), Enrolled))

    @property
    def _is_closed(self) -> bool:
        """Whether nobody can take part who was not there in the set-up."""
        return self.run.document.keys == "relayed" and self._nodes is None

    def _named(self, node_ids: Iterable[int]) -> set[int]:
        """Return those nodes that may take part."""
        return (
            set(node_ids) if self._nodes is None else set(node_ids) & set(self._nodes)
        )

    def join(self, node_ids: Iterable[int]) -> dict[int, messages.Enrol]:
        """Return enrolments for nodes that came late, where they can have a slot."""
        new = (
            set()
            if self._cohort.is_closed
            else self._named(node_ids) - self._cohort.known
        )
        return dict.fromkeys(sorted(new), messages.Enrol(doc=self.run.data))

    @property
    def _has_early_key(self) -> bool:
        """Whether clients need the group key for round 1, so it takes a round trip."""
        return self.run.trust.is_blind and not self.run.trust.has_committee

    def _make_group_key(self, frame: Frame, trip: Trip) -> None:
        """Let key distributors offer group keys in a round trip; ask others if none does."""
        while not self._cohort.offers:
            if not self._ask_distributors(0, frame, trip):
                raise RunError(
                    "Expected a client that makes the group key. Got none."
                    + self._reasons(0)
                )

    def _ask_distributors(self, t: int, frame: Frame, trip: Trip) -> bool:
        """Ask the next distributors for group keys; return whether any was left."""
        cohort = self._cohort
        chosen, n_offers = cohort.distributors(frame), len(cohort.offers)
        if chosen:
            self.has_enough = lambda: len(cohort.offers) > n_offers
            self._let_wrap(t, frame, chosen, list(frame.slots.values()), trip)
        return bool(chosen)

    def _let_wrap(
        self,
        t: int,
        frame: Frame,
        chosen: Iterable[Participant],
        peers: Iterable[Participant],
        trip: Trip,
    ) -> None:
        """Let clients seal a group key for peers."""
        rows = b"".join(peer.peer.row for peer in peers)
        request = messages.Keys(doc_hash=self.run.doc_hash, peers=rows)
        requests = {client.node_id: request for client in chosen}
        replies = self._send(trip, "keys", requests)
        for client, reply in self._take(t, requests, replies, messages.Wrapped):
            if isinstance(reply, messages.Wrapped):
                self._cohort.offer(frame, client, rows, reply.key_id, reply.envelopes)

    # ----------------------------------------------------------------- replies (rule 1)

    def _send(
        self, trip: Trip, kind: RequestKind, requests: Mapping[int, messages.Request]
    ) -> Replies:
        self.proceedings.round_trips += 1
        return trip(kind, requests, self.has_enough)

    def _take(
        self, t: int, asked: Iterable[int], replies: Replies, kind: type[R]
    ) -> Iterator[tuple[Participant, R | Refusal]]:
        """Yield orderly replies and refusals of clients, and note all others; let nodes enrol."""
        seen, orderly = set[int](), set[int]()
        self._orderly = orderly  # an answer that is not complete is taken out again
        for node_id, reply in replies:
            client = self._cohort.clients.get(node_id)
            if self._nodes is not None and node_id not in self._nodes:
                continue
            if isinstance(reply, str):
                self._note(node_id, t, reply, "failed")
            elif reply.doc_hash not in (self.run.doc_hash, None):
                self._note(node_id, t, STRAY, "failed")
            elif isinstance(reply, Enrolled):
                objection = self._cohort.take(node_id, reply)
                if objection is not None:
                    self._note(node_id, t, objection, "failed")
            elif client is None:
                if isinstance(reply, Refusal):
                    self._note(node_id, t, Code(reply.code).sentence)
                    self._cohort.known.add(node_id)
            elif node_id in seen:
                self._note(node_id, t, TWICE, "failed")
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
                self._note(node_id, t, MALFORMED, "failed")
        self._cohort.hear(asked, orderly)

    def _refused(self, client: Participant, t: int, refusal: Refusal) -> None:
        """Note a refusal; renew the client, or remember the parts that it lacks."""
        code = Code(refusal.code)
        if code == Code.STALE and self._stale is not None:
            self._stale.add(client.slot)
            self._require_recent(t)
        renewed = code == Code.RENEW and self._cohort.renew(client, refusal)
        self._note(
            client.node_id, t, code.sentence, "renewed" if renewed else "refused"
        )
        if code == Code.NEED:
            client.has_document = client.has_key = False
            # It followed what it was sent, if that was not all; otherwise it may have
            # nothing.
            client.head = client.sent if client.sent < len(self._entries) else 0
            client.sent = 0

    def _note(
        self, node_id: int, t: int, reason: str, kind: IncidentKind = "refused"
    ) -> None:
        client = self._cohort.clients.get(node_id)
        stated = (client.public.software, client.public.ledger) if client else ()
        slot = client.slot if client else -1
        # The last of each kind: what a node sends must not fill the server's memory.
        self._incidents.pop((node_id, t, kind), None)
        self._incidents[node_id, t, kind] = Dropped(
            slot, node_id, t, reason, kind, *stated
        )

    def _note_dropped(self, t: int, node_ids: Iterable[int]) -> None:
        """Record that a round went on without these nodes, each with the last incident."""
        last = {
            incident.node_id: incident
            for incident in self.incidents
            if incident.round == t
        }
        for node_id in sorted(node_ids):
            client = self._cohort.clients.get(node_id)
            silent = Dropped(
                client.slot if client else -1, node_id, t, NO_ANSWER, "silent"
            )
            self.dropped.append(last.get(node_id, silent))

    def _reasons(self, t: int) -> str:
        missing = (*self.incidents, *self.dropped)
        reasons = sorted({one.reason for one in missing if one.round == t})
        return f" Reasons: {' '.join(reasons)}" if reasons else ""

    # ------------------------------------------------------------------ `ask`

    def ask(self) -> dict[int, Ask]:
        """Begin the next round and return its first requests, whose query clients must accept."""
        if self._resumed is not None:
            return self._ask_resumed(self._resumed)
        data, algorithm = None, self.run.algorithm
        if not self.run.trust.is_blind:
            query = algorithm.query(self.state)
            try:
                data = encode_arrays(dict(query.arrays))
                algorithm.check_query(query)
            except MessageError as error:
                raise RunError(
                    f"Round {query.round} cannot be asked for. {error}"
                ) from None
        self._attempt = self._open_attempt(1, data)
        self.proceedings.round_trips += 1
        return self._attempt.requests

    def _open_attempt(self, number: int, query: bytes | None) -> _Attempt:
        cohort, is_blind = self._cohort, self.run.trust.is_blind
        attempt = self._new_attempt(self.head + 1, number, self._next_frame(), query)
        self.proceedings.attempts += 1
        chosen = list[Participant]()
        if cohort.offers and self._keyless(attempt.frame):
            chosen = cohort.sealers(attempt.frame)
        elif is_blind and not cohort.offers:
            chosen = cohort.distributors(attempt.frame)
        attempt.distributors = tuple(client.slot for client in chosen)
        self._make_requests(attempt)
        self._keep(attempt)
        return attempt

    def _new_attempt(
        self, t: int, number: int, frame: Frame, query: bytes | None
    ) -> _Attempt:
        """Return an attempt without requests and answers."""
        tag = b"" if query is None else transcript.query_tag(ZERO, ZERO, query)
        size = noise.part_bytes(self.run, self.run.document.words[t - 1], frame.sharing)
        size += SEAL_BYTES if frame.sharing else 0
        store = ShareStore(frame.present if frame.sharing else (), size)
        return _Attempt(t, number, frame, query, tag, size, store, dict(frame.present))

    def _keyless(self, frame: Frame) -> list[Participant]:
        """Return the clients for which there is no group key yet, where clients have one."""
        if not self.run.trust.is_blind:
            return []
        return [one for one in frame.slots.values() if not (one.wraps or one.has_key)]

    def _make_requests(self, attempt: _Attempt) -> None:
        cohort, is_blind = self._cohort, self.run.trust.is_blind
        rows = b"".join(peer.peer.row for peer in self._keyless(attempt.frame))
        for client in attempt.frame.slots.values():
            peers = rows if client.slot in attempt.distributors else b""
            attempt.requests[client.node_id] = self._ask_of(attempt, client, peers)
        self.has_enough = lambda: (
            self._is_crowd(attempt) and (not is_blind or bool(cohort.offers))
        )

    def _is_crowd(self, attempt: _Attempt) -> bool:
        """Return whether enough clients gave complete answers under one tag."""
        least = self.run.document.min_clients
        return any(len(clients) >= least for clients in attempt.answers.values())

    def _ask_of(
        self, attempt: _Attempt, client: Participant, peers: bytes = b""
    ) -> Ask:
        """Return the request of an attempt for a client; the same bytes, if it has no news."""
        frame, has_shares = attempt.frame, self.run.trust.has_committee
        located = self._located(attempt, client)
        if has_shares and attempt.t == 1:
            located["wraps"] = ()  # the query is public, and the key is needed to add
        return Ask(
            **located,
            claims=frame.claims if self._roster is not None and has_shares else b"",
            query=attempt.query,
            entries=self._lacking(client),
            peers=peers,
        )

    def _next_frame(self) -> Frame:
        frame = self._cohort.frame()
        self._report_frame(frame)
        return frame

    def _report_frame(self, frame: Frame) -> None:
        roster = self._roster
        self.proceedings.n_slots = frame.n_slots
        if frame.committee and frame.sharing:
            sharing = frame.sharing
            drawn = (
                roster
                if roster is not None and len(roster) > sharing.n_positions
                else None
            )
            self.proceedings.committee = CommitteeReport(
                frame.committee.slots,
                len(frame.present),
                sharing.n_corrupt,
                sharing.privacy,
                sharing.packing,
                epoch=self.run.document.epoch if drawn else None,
                beacon=drawn.beacon.hex() if drawn else "",
            )

    def _located(self, attempt: _Attempt, client: Participant) -> dict[str, Any]:
        """Return the common fields of `Ask` and `Add` for one client."""
        frame = attempt.frame
        return {
            "doc_hash": self.run.doc_hash,
            "t": attempt.t,
            "attempt": attempt.number,
            "n_slots": frame.n_slots,
            "root": frame.tree.root,
            "slot": client.slot,
            "path": frame.tree.path(client.slot),
            "committee": frame.encoded,
            "doc": self._doc_for(client),
            "wraps": client.carried,
        }

    def _doc_for(self, client: Participant) -> bytes:
        return b"" if client.has_document else self.run.data

    def _lacking(self, client: Participant) -> tuple[messages.Entry, ...]:
        """Return the entries that a client lacks, as many as fit into a message."""
        entries = list[messages.Entry]()
        room = MAX_MESSAGE - _OVERHEAD - _PEER_BYTES * self._cohort.n_slots
        for entry, size in islice(self._entries.items(), client.head, None):
            room -= size
            if room < 0 and entries:
                break
            entries.append(entry)
        client.sent = client.head + len(entries)
        return tuple(entries)

    # ------------------------------------------------------------------ `answer`

    def take_answers(self, replies: Replies, trip: Trip) -> None:
        """Take the replies to `ask` and close the round, with further round trips as needed.

        A `TooFewClientsError` if too few clients answered in all attempts, a `RunError`
        if the round is lost and the run cannot go on without its sum.
        """
        attempt = self._attempt
        if attempt is None:
            raise RunError("Expected `ask` before the answers to it.")
        before = (
            self.state,
            self.head,
            self.n_opened,
            self.noise_factor,
            list(self.findings),
        )
        with self._aborting(trip):
            try:
                self._close_round(attempt, replies, trip)
                self._keep_closed()
            except BaseException:
                # A sum that was not kept gets other noise when the run goes on: nobody
                # may see it.
                (
                    self.state,
                    self.head,
                    self.n_opened,
                    self.noise_factor,
                    self.findings,
                ) = before
                raise
        self._attempt = self._resumed = self._stale = None

    def _close_round(self, attempt: _Attempt, replies: Replies, trip: Trip) -> None:
        document = self.run.document
        while True:
            with closing(attempt.store):
                if not attempt.is_chosen:
                    self._gather(attempt, replies, trip)
                is_crowd = len(attempt.dealers) >= document.min_clients
                is_last = attempt.number == document.max_attempts
                is_final = is_last or attempt.is_chosen
                if is_crowd and (is_final or not self._waits_for_frame(attempt)):
                    if not self._make_sum(attempt, trip):
                        self._lose(attempt)
                    return
            if is_last or not (is_crowd or self._may_change(attempt, trip)):
                answered = {one.node_id for one in attempt.dealers}
                self._note_dropped(attempt.t, self._cohort.clients.keys() - answered)
                raise TooFewClientsError(
                    f"Expected at least min_clients={document.min_clients} answers to one query "
                    f"in round {attempt.t} of {document.rounds}. Got {len(attempt.dealers)} of "
                    f"{self.n_clients} in the last of {attempt.number} attempts."
                    f"{self._reasons(attempt.t)}"
                )
            attempt = self._open_attempt(attempt.number + 1, attempt.query)
            replies = self._send(trip, "ask", attempt.requests)

    def _gather(self, attempt: _Attempt, replies: Replies, trip: Trip) -> None:
        """Take the answers, and ask again, without another attempt, those who gave none.

        A complaint about the group key is served first, once per client session and
        round.
        """
        self._collect(attempt, attempt.requests, replies)
        self._choose(attempt)
        served = self._serve(attempt, trip)
        if served:
            self.has_enough = lambda: attempt.heard >= set(served)
            self._ask_again(attempt, served, trip)
        for _ in range(N_REPEATS):
            missing = [
                c for c in attempt.frame.slots.values() if self._is_missing(attempt, c)
            ]
            if self._is_crowd(attempt) or self._lacks_key(attempt) or not missing:
                break
            self.proceedings.repeats += 1
            self.has_enough = lambda: self._is_crowd(attempt)
            self._ask_again(attempt, missing, trip)
        attempt.tag = attempt.chosen
        for client in attempt.frame.slots.values():
            if client.differs:
                self._note(client.node_id, attempt.t, DIFFERS, "differs")

    def _ask_again(
        self, attempt: _Attempt, clients: Iterable[Participant], trip: Trip
    ) -> None:
        asked = {client.node_id: self._ask_of(attempt, client) for client in clients}
        self._collect(attempt, asked, self._send(trip, "ask", asked))
        self._choose(attempt)

    def _is_missing(self, attempt: _Attempt, client: Participant) -> bool:
        """Return whether the same request may still bring an answer of a client's."""
        is_heard = client in attempt.heard or client in attempt.complained
        is_active = self._cohort.claims[client.slot][0] is client
        return is_active and not (is_heard or client.new or client.is_banned)

    def _waits_for_frame(self, attempt: _Attempt) -> bool:
        """Return whether a vote must wait for clients that the next frame has, and this one not.

        Votes are for good: none is asked for where c members could make it fail without
        them. Each slot causes that once per round.
        """
        if not attempt.frame.sharing:
            return False
        new = {
            slot
            for slot, claims in self._cohort.claims.items()
            if claims[0].new is not None
        }
        waiting = {slot for slot in new if (attempt.t, slot) not in self._caused}
        self._caused |= {(attempt.t, slot) for slot in waiting}
        members = [c for c in attempt.members.values() if c.slot not in new]
        is_weak = len(members) - self.run.document.max_colluders < attempt.threshold
        return bool(waiting) and is_weak

    def _may_change(self, attempt: _Attempt, trip: Trip) -> bool:
        """Return whether another attempt has another group key, or another frame."""
        if self._lacks_key(attempt):
            return self._find_key(attempt, trip)
        return any(claims[0].new is not None for claims in self._cohort.claims.values())

    # ------------------------------------------------------------------ the group key

    def _lacks_key(self, attempt: _Attempt) -> bool:
        """Return whether too few clients have the group key that their answers need."""
        has_doubt = bool(attempt.complained) or len(attempt.answers) > 1
        return (
            self._has_early_key
            and attempt.t == 1
            and not self._is_crowd(attempt)
            and has_doubt
        )

    def _find_key(self, attempt: _Attempt, trip: Trip) -> bool:
        """Try the offers, then further distributors, until enough clients hold one group key."""
        cohort, least, tried = self._cohort, self.run.document.min_clients, 0
        frame = attempt.frame
        while True:
            tried += 1
            if tried >= len(cohort.offers) and not self._ask_distributors(
                attempt.t, frame, trip
            ):
                return False
            cohort.next_offer()
            held = set[Participant]()
            self.has_enough = lambda held=held: len(held) >= least  # type: ignore[misc]
            requests = {
                client.node_id: messages.Hold(
                    doc_hash=self.run.doc_hash,
                    doc=self._doc_for(client),
                    wraps=client.carried,
                )
                for client in frame.slots.values()
                if client.wraps
            }
            replies = self._send(trip, "hold", requests)
            for client, reply in self._take(
                attempt.t, requests, replies, messages.Held
            ):
                if isinstance(reply, messages.Held) and reply.key_id == cohort.key_id:
                    held.add(client)
                elif isinstance(reply, Refusal) and reply.code == Code.KEY:
                    cohort.complain(client)
            for client in held:
                client.has_key = True
            if len(held) >= least:
                return True

    def _serve(self, attempt: _Attempt, trip: Trip) -> list[Participant]:
        """Let holders seal the group key for clients that complained, and return these."""
        cohort, colluders = self._cohort, self.run.document.max_colluders
        wanted = [
            client
            for client in sorted(attempt.complained, key=lambda client: client.slot)
            if (attempt.t, client.public.public_key) not in self._served
            and len(client.refused) <= colluders
        ]
        if not wanted:
            return []
        lacking = [client for client in wanted if not client.wraps]
        refused = set[int]().union(*(client.refused for client in lacking))
        holders = [c for c in cohort.holders(attempt.frame) if c.slot not in refused]
        chosen = holders[: min(colluders + 1, _MOST_HOLDERS)]
        if lacking and chosen:
            self.has_enough = lambda: all(client.wraps for client in lacking)
            self._let_wrap(attempt.t, attempt.frame, chosen, lacking, trip)
        served = [client for client in wanted if client.wraps]
        self._served |= {(attempt.t, client.public.public_key) for client in served}
        attempt.complained -= set(served)
        return served

    def _collect(
        self, attempt: _Attempt, asked: Mapping[int, Ask], replies: Replies
    ) -> None:
        """Take the answers, and the envelopes that came with them."""
        for client, reply in self._take(attempt.t, asked, replies, Answer):
            request = asked.get(client.node_id)
            if request is None:
                continue
            if isinstance(reply, Answer):
                self._take_answer(attempt, client, request, reply)
            else:
                self._take_complaint(attempt, client, request, reply)

    def _take_complaint(
        self,
        attempt: _Attempt,
        client: Participant,
        request: Ask | messages.Add,
        refusal: Refusal,
    ) -> bool:
        """Remember a client that lacks the group key: its envelopes failed, or it was sent none."""
        has_failed = refusal.code == Code.KEY and refusal.slot is None
        if not self.run.trust.is_blind or not (has_failed or refusal.code == Code.NEED):
            return False
        if has_failed or request.wraps:
            self._cohort.complain(client)
        attempt.complained.add(client)
        return True

    def _take_answer(
        self, attempt: _Attempt, client: Participant, request: Ask, reply: Answer
    ) -> None:
        """Keep one answer, if it is complete: right lengths, one part for each present position."""
        if request.peers:
            cohort = self._cohort
            cohort.offer(
                attempt.frame, client, request.peers, reply.key_id, reply.envelopes
            )
        if client.is_banned or client in attempt.heard:
            return
        if attempt.frame.sharing:
            is_complete = not reply.words and attempt.store.is_complete(reply.sealed)
        else:
            is_complete = not reply.sealed and self._is_vector(attempt, reply)
        if not is_complete:
            self._orderly.discard(client.node_id)
            self._note(client.node_id, attempt.t, MALFORMED, "failed")
            return
        client.head = attempt.t - 1
        if attempt.tag in (b"", reply.tag):
            if attempt.frame.sharing:
                attempt.store.put(client.slot, reply.sealed)
            else:
                self._add_up(attempt, reply)
        attempt.heard.add(client)
        attempt.answers.setdefault(reply.tag, []).append(client)

    def _is_vector(self, attempt: _Attempt, reply: Answer) -> bool:
        """Return whether words are as long as planned, and count one client where that is seen."""
        if len(reply.words) != attempt.part_bytes:
            return False
        # A checksum word in the clear must be 1: no client could detect it in the sum.
        return self.run.trust.sum.is_protected or reply.words[-8:] == u64(1)

    def _add_up(self, attempt: _Attempt, reply: Answer) -> None:
        """Add words to the sum of their tag as they arrive."""
        secure_sum, sums = self.run.trust.sum, attempt.sums
        parts = [sums[reply.tag], reply.words] if reply.tag in sums else [reply.words]
        sums[reply.tag] = secure_sum.combine(
            parts, self._sum_context(attempt, reply.tag)
        )

    def _sum_context(self, attempt: _Attempt, tag: bytes) -> SumContext:
        if tag not in attempt.contexts:
            frame, t, n_words = (
                attempt.frame,
                attempt.t,
                self.run.document.words[attempt.t - 1],
            )
            cohort = frame.n_slots, frame.tree.root, frame.digest
            digest = transcript.round_context(
                self.run.doc_hash, t, attempt.number, *cohort, self._h, tag
            )
            found = SumContext(digest, n_words, frame.n_slots, b"", frame.sharing)
            attempt.contexts[tag] = found
        return attempt.contexts[tag]

    # ------------------------------------------------------------------ S

    def _choose(self, attempt: _Attempt) -> None:
        """Choose the answers that are added up, by their tag, and note all other clients."""
        answers = attempt.answers
        tag = attempt.tag
        if not tag and answers:
            # The tag itself breaks ties, so that a repeated run chooses alike.
            tag = max(answers, key=lambda tag: (len(answers[tag]), tag))
        attempt.chosen = tag
        # Others may have followed another history: their words would not add up.
        attempt.dealers = sorted(answers.get(tag, ()), key=lambda client: client.slot)
        needs_key = self.run.trust.is_blind and (self._has_early_key or attempt.t > 1)
        for client in attempt.frame.slots.values():
            client.differs = client in attempt.heard and client not in attempt.dealers
        if needs_key:
            self._cohort.is_settled |= self._is_crowd(attempt)
            for client in attempt.dealers:
                client.has_key = True

    # ------------------------------------------------------------ `add` (rules 4 and 5)

    def _make_sum(self, attempt: _Attempt, trip: Trip) -> bool:
        """Return whether the sum was made, and can be reconstructed as far as the server sees."""
        run = self.run
        if attempt.frame.sharing:
            return self._add(attempt, trip)
        total = attempt.sums[attempt.tag]
        # it is drawn once: an entry is never replaced
        if run.trust.noise_by == "server":
            of_round = run.algorithm, run.plan, attempt.t
            drawn = noise.server_noise(*of_round, Stream.fresh())
            # The checksum word counts clients, so noise leaves it alone.
            part = run.trust.sum.encode(np.append(drawn, np.int64(0)))
            context = self._sum_context(attempt, attempt.tag)
            total = run.trust.sum.combine([total, part], context)
        return self._settle(attempt, {0: total})

    def _add(self, attempt: _Attempt, trip: Trip) -> bool:
        """Let the committee add the survivors' shares; asking again costs no privacy."""
        is_blind, again = self.run.trust.is_blind, N_REPEATS
        while is_blind and not self._cohort.offers:
            if not self._ask_distributors(attempt.t, attempt.frame, trip):
                return False
        self._keep_sum(attempt)
        while True:
            asked = [
                position
                for position in attempt.members
                if position not in attempt.shares
            ]
            if not asked:
                return False
            self._ask_committee(attempt, asked, trip)
            out = self._leave_out_named(attempt)
            shares = attempt.shares
            if len(shares) >= attempt.threshold and self._settle(attempt, shares):
                self._share_key(attempt, trip)
                return True
            if self._change_key(attempt, trip):
                continue
            left = [dealer for dealer in attempt.dealers if dealer.slot not in out]
            is_crowd = len(left) >= self.run.document.min_clients
            # Who named a dealer has not voted: if these are enough, they are asked for
            # a new sum.
            if out and len(attempt.named) >= attempt.threshold and is_crowd:
                attempt.dealers = left
                attempt.replies.clear()
                self._keep_sum(attempt)
            if not again:
                return False
            again -= 1
            self.proceedings.repeats += 1

    def _change_key(self, attempt: _Attempt, trip: Trip) -> bool:
        """Use the next offer if too few members have the key of this one: it is the same vote."""
        cohort = self._cohort
        if cohort.is_settled or not attempt.complained or not self.run.trust.is_blind:
            return False
        if len(attempt.replies) >= attempt.threshold:
            return False
        attempt.tried += 1
        has_next = attempt.tried < len(cohort.offers)
        if not has_next and not self._ask_distributors(attempt.t, attempt.frame, trip):
            return False
        cohort.next_offer()
        attempt.replies.clear()
        attempt.complained.clear()
        return True

    def _share_key(self, attempt: _Attempt, trip: Trip) -> None:
        """Let holders seal the group key of round 1 for members that complained."""
        cohort = self._cohort
        if self.run.trust.is_blind and not cohort.is_settled:
            cohort.is_settled = True
            self._serve(attempt, trip)

    def _ask_committee(
        self, attempt: _Attempt, asked: Sequence[int], trip: Trip
    ) -> None:
        """Send an `Add` to these positions, in parts if it is too much to send at once."""
        dealers = attempt.dealers
        at_once = max(
            1, _ADD_BYTES // (len(dealers) * (attempt.part_bytes + len(ZERO)))
        )
        survivors = transcript.pack_survivors(attempt.frame.bits(dealers))
        public_keys = b"".join(dealer.public.public_key for dealer in dealers)
        # One more than a sum needs shows a false share, but one client may always be
        # silent.
        possible = len(attempt.shares) + len(asked) - 1
        enough = max(attempt.threshold, min(attempt.threshold + 1, possible))
        for first in range(0, len(asked), at_once):
            needed = enough - max(0, len(asked) - first - at_once)
            self.has_enough = lambda n=needed: len(attempt.shares) >= n  # type: ignore[misc]
            part = {
                attempt.members[j].node_id: j for j in asked[first : first + at_once]
            }
            requests = {
                node_id: messages.Add(
                    **self._located(attempt, attempt.members[j]),
                    h=self._h,
                    tag=attempt.tag,
                    survivors=survivors,
                    public_keys=public_keys,
                    sealed=b"".join(
                        attempt.store.parts(j, (one.slot for one in dealers))
                    ),
                )
                for node_id, j in part.items()
            }
            replies = self._send(trip, "add", requests)
            for client, reply in self._take(attempt.t, requests, replies, Added):
                if client.node_id in requests:
                    request = requests[client.node_id]
                    self._take_share(
                        attempt, part[client.node_id], client, request, reply
                    )

    def _take_share(
        self,
        attempt: _Attempt,
        position: int,
        client: Participant,
        request: messages.Add,
        reply: Added | Refusal,
    ) -> None:
        is_blind = self.run.trust.is_blind
        if isinstance(reply, Refusal):
            if self._take_complaint(attempt, client, request, reply):
                attempt.replies.pop(position, None)
            elif reply.code == Code.KEY:
                attempt.replies[position] = reply
        # What is false where the server reconstructs is found then.
        elif is_blind and len(reply.share) != attempt.part_bytes:
            attempt.replies.pop(position, None)
            self._note(client.node_id, attempt.t, MALFORMED, "failed")
        elif is_blind and reply.key_id != self._cohort.key_id:
            attempt.replies.pop(position, None)
            client.has_key = False
            attempt.complained.add(client)
        else:
            attempt.replies[position] = reply
            client.has_key |= is_blind

    def _leave_out_named(self, attempt: _Attempt) -> set[int]:
        """Ban dealers that more members named than may be corrupt, and return their slots."""
        sharing, out = attempt.frame.sharing, set[int]()
        dealers: dict[int | None, Participant] = {
            dealer.slot: dealer for dealer in attempt.dealers
        }
        for slot, times in Counter(attempt.named.values()).items():
            client = dealers.get(slot)
            if client and sharing and times > sharing.n_corrupt:
                out.add(client.slot)
                if not client.is_banned:
                    client.is_banned = True
                    self._note(client.node_id, attempt.t, NAMED, "named")
                    self._cohort.give_up(client)
        return out

    # ----------------------------------------------------------------- the sum (rule 6)

    def _settle(self, attempt: _Attempt, combined: Mapping[int, bytes]) -> bool:
        """Close a round with its sum, unless the server sees that it cannot be reconstructed."""
        run, t, frame, dealers = self.run, attempt.t, attempt.frame, attempt.dealers
        if run.trust.is_blind:
            self._announce(attempt, combined)
        else:
            context = self._sum_context(attempt, attempt.tag)
            try:
                reconstructed = noise.reconstruct_sum(
                    run, t, combined, frame.bits(dealers), context
                )
            except SumError:
                return False
            # Somebody shared something else than a vector, which no member can see.
            if int(reconstructed.vector[-1]) != len(dealers):
                return False
            for position in reconstructed.liars:
                self._note(frame.present[position].node_id, t, FALSE_SHARE, "liar")
            self.noise_factor = reconstructed.factor
            if run.document.levels:
                self.proceedings.noise_factors.append(reconstructed.factor)
            fraction = len(dealers) / frame.n_slots
            answer = run.algorithm.unflatten(
                reconstructed.vector[:-1], t, fraction, len(dealers)
            )
            self.findings += findings_of(
                run.algorithm, self.state, answer, reconstructed.factor
            )
            self.state = run.algorithm.update(self.state, answer, self._generator(t))
            self.n_opened = t
        self.head = t
        self.proceedings.answers.append(len(dealers))
        self._note_dropped(
            t, self._cohort.clients.keys() - {one.node_id for one in dealers}
        )
        return True

    def _announce(self, attempt: _Attempt, combined: Mapping[int, bytes]) -> None:
        frame, sharing = attempt.frame, attempt.frame.sharing
        positions, shares = (
            messages.write_sum_shares(combined) if sharing else (b"", b"")
        )
        entry = messages.Entry(
            t=attempt.t,
            attempt=attempt.number,
            n_slots=frame.n_slots,
            root=frame.tree.root,
            committee=frame.digest,
            tag=attempt.tag,
            survivors=transcript.pack_survivors(frame.bits(attempt.dealers)),
            packing=sharing.packing if sharing else 0,
            words=b"" if sharing else combined[0],
            positions=positions,
            shares=shares,
        )
        self._entries[entry] = len(encode(entry))
        context_digest = transcript.entry_context(self.run.doc_hash, self._h, entry)
        self._h = transcript.next_hash(self._h, context_digest, entry)

    def _lose(self, attempt: _Attempt) -> None:
        """Close a round without a sum, where the algorithm can go on without it."""
        t, algorithm = attempt.t, self.run.algorithm
        # Clients of a blind server do not learn that a sum is lost, and would wait for
        # its entry.
        state = None if self.run.trust.is_blind else algorithm.without_sum(self.state)
        if state is None:
            raise RunError(
                f"Expected {attempt.threshold} sum-shares for the sum of round {t}. Got "
                f"fewer, and the run cannot go on without this sum.{self._reasons(t)}"
            )
        self.state, self.head = state, t
        self.proceedings.lost_rounds.append(t)
        self.proceedings.answers.append(0)
        if self.run.document.levels:
            self.proceedings.noise_factors.append(0.0)

    # ------------------------------------------------------------------ `finish`

    def finish_requests(self) -> dict[int, messages.Finish]:
        """Return the last entries, or a result that clients accept, for every client."""
        self.has_enough = lambda: len(self.delivered) >= self.run.document.min_clients
        self.proceedings.round_trips += 1
        self._next_frame()
        return self._finish(self._cohort.clients.values())

    def _finish(self, clients: Iterable[Participant]) -> dict[int, messages.Finish]:
        doc_hash = self.run.doc_hash
        if not self.run.trust.is_blind:
            finish = messages.Finish(doc_hash=doc_hash, result=self._result())
            return dict.fromkeys((client.node_id for client in clients), finish)
        return {
            client.node_id: messages.Finish(
                doc_hash=doc_hash, entries=self._lacking(client), wraps=client.carried
            )
            for client in clients
        }

    def _result(self) -> bytes:
        result = result_of(self.run, self.state, self.noise_factor, self.findings)
        if result is None:
            raise RunError(
                "Expected centroids and counts after the last round. Got none."
            )
        try:
            data = encode_result(result)
            # As a client reads it: better an error here than one refusal from each of
            # them.
            read_result(self.run, data)
        except MessageError as error:
            raise RunError(
                f"The result cannot be sent to the clients. {error}"
            ) from None
        return data

    def take_finished(self, replies: Replies, trip: Trip) -> None:
        """Take the acknowledgements of the delivery; who lacks entries is sent the rest."""
        after = self.run.document.rounds + 1
        for _ in range(1 + len(self._entries)):
            lacking = []
            heads = {client: client.head for client in self._cohort.clients.values()}
            for client, reply in self._take(after, (), replies, messages.Finished):
                if isinstance(reply, messages.Finished):
                    self.delivered.add(client.node_id)
                elif client.head != heads[client]:
                    lacking.append(client)
            if not lacking:
                break
            replies = self._send(trip, "finish", self._finish(lacking))
        self._note_dropped(after, self._cohort.clients.keys() - self.delivered)
        if self._journal is not None and self.delivered:
            self._journal.finish(self.run.doc_hash)

    # ------------------------------------------------------------- resuming (section 9)

    def _kept(self, attempt: _Attempt | None = None) -> KeptRun:
        """Return the state from which another server can go on."""
        has_state = self.head > 0 and not self.run.trust.is_blind
        has_frame = bool(self._cohort.clients)
        return KeptRun(
            document=self.run.data,
            nodes=self._nodes,
            start=self._start,
            head=self.head,
            n_opened=self.n_opened,
            noise_factor=self.noise_factor,
            h=self._h,
            state=write_state(self.state) if has_state else b"",
            findings=tuple(self.findings),
            proceedings=self.proceedings,
            incidents=tuple(self.incidents),
            dropped=tuple(self.dropped),
            served=tuple(sorted(self._served)),
            caused=tuple(sorted(self._caused)),
            cohort=self._cohort.kept() if has_frame else None,
            attempt=None if attempt is None else _kept_attempt(attempt),
        )

    def _keep(self, attempt: _Attempt | None = None) -> None:
        """Keep the run on the disk, before the messages that depend on it are sent."""
        if self._journal is not None:
            self._journal.write(self._kept(attempt))

    def _keep_sum(self, attempt: _Attempt) -> None:
        """Keep which answers are added up, and their sealed shares: votes for them are for good."""
        if self._journal is not None:
            shares = ((one.slot, attempt.store.of(one.slot)) for one in attempt.dealers)
            self._journal.write_parts(self._kept(attempt), shares)

    def _keep_closed(self) -> None:
        """Keep a round that is closed: its entry with the noise, or the state after it."""
        if self._journal is not None:
            entry = next(reversed(self._entries)) if self._entries else None
            self._journal.write_closed(self._kept(), entry)

    def _restore(self, kept: KeptRun) -> None:
        """Take up a run where the process before this one left it."""
        # With a roster, nodes may have got other ids since.
        if self._roster is None and kept.nodes != self._nodes:
            raise ConfigurationError(
                f"Expected nodes={kept.nodes}, in whose order the run in resume gave the slots. "
                f"Got {self._nodes} instead."
            )
        if kept.start and not is_same_state(kept.start, self.state):
            raise ConfigurationError(
                "Expected the server's data with which the run in resume began. Got others: use "
                "those data, or name another directory."
            )
        self.proceedings = kept.proceedings
        self.proceedings.resumptions += 1
        self._incidents = {
            (one.node_id, one.round, one.kind): one for one in kept.incidents
        }
        self.dropped = list(kept.dropped)
        if kept.cohort is None:
            return
        self._cohort.restore(kept.cohort)
        self._cohort.is_closed = self._is_closed
        self.head, self.n_opened, self._h = kept.head, kept.n_opened, kept.h
        self.noise_factor, self.findings = kept.noise_factor, list(kept.findings)
        self._served, self._caused = set(kept.served), set(kept.caused)
        if kept.state:
            self.state = read_state(kept.state)
        if self._journal is not None:
            self._entries = {
                entry: len(encode(entry)) for entry in self._journal.entries()
            }
        self._resumed, self._stale = kept.attempt, set()

    def _reopened(self, kept: KeptAttempt) -> _Attempt:
        """Return the attempt that was open, in its frame and with the same query."""
        frame = self._cohort.framed_as(kept.frame)
        self._report_frame(frame)
        attempt = self._new_attempt(kept.t, kept.number, frame, kept.query)
        attempt.distributors = kept.distributors
        if kept.dealers and self._journal is not None:
            attempt.is_chosen = True
            attempt.tag = kept.tag
            attempt.dealers = [frame.slots[slot] for slot in kept.dealers]
            for slot, shares in self._journal.parts():
                attempt.store.put(slot, shares)
        return attempt

    def _come_back(self, connected: Collection[int], trip: Trip) -> None:
        """Find clients whose nodes have got other ids since the run was kept, with a roster.

        Such a node makes a new claim. If its session is that of the node that is gone,
        it takes its place: neither node nor claim stands in a context, so the open
        attempt stays the same.
        """
        cohort, least = self._cohort, self.run.document.min_clients
        frame = () if self._resumed is None else self._resumed.frame
        active = dict(frame) or {
            slot: claims[0].node_id for slot, claims in cohort.claims.items()
        }
        present, known, requests = (
            set(connected),
            set(cohort.known),
            self.join(connected),
        )

        def has_enough() -> bool:
            present.update(cohort.known - known)
            claims = (cohort.claims[slot] for slot in active)
            n_back = sum(any(one.node_id in present for one in each) for each in claims)
            has_all_replies = requests.keys() <= cohort.known
            return n_back == len(active) or (n_back >= least and has_all_replies)

        if requests:
            self.has_enough = has_enough
            list(self._take(0, (), self._send(trip, "enrol", requests), Enrolled))
            present |= cohort.known - known  # some connected meanwhile
        for slot, node_id in active.items():
            if node_id not in present:
                active[slot] = cohort.stand_in(slot, node_id, present)
        if self._resumed is None:
            self._next_frame()
        else:
            kept = msgspec.structs.replace(self._resumed, frame=tuple(active.items()))
            self._resumed = kept

    def _ask_resumed(self, kept: KeptAttempt) -> dict[int, Ask]:
        """Return the requests of an attempt that was open before; none if S is chosen already."""
        self._attempt = attempt = self._reopened(kept)
        if attempt.is_chosen:
            return {}
        self._make_requests(attempt)
        self.proceedings.round_trips += 1
        return attempt.requests

    def _require_recent(self, t: int) -> None:
        """Require that the kept run is not older than its clients' memory of it."""
        n_stale = len(self._stale or ())
        if n_stale > self.run.document.max_colluders:
            raise RunError(
                f"Expected resume to hold the run as its server left it. Got round {t}, which is "
                f"over for {n_stale} clients: the directory is an older copy, or they called "
                "flower-kmeans forget. Begin a new run in another directory."
            )


def _kept_attempt(attempt: _Attempt) -> KeptAttempt:
    has_sum = bool(attempt.frame.sharing and attempt.dealers)
    return KeptAttempt(
        t=attempt.t,
        number=attempt.number,
        frame=tuple(
            (slot, client.node_id) for slot, client in attempt.frame.slots.items()
        ),
        query=attempt.query,
        distributors=attempt.distributors,
        tag=attempt.tag if has_sum else b"",
        dealers=tuple(client.slot for client in attempt.dealers) if has_sum else (),
    )


# ------------------------------------------------------------------------ planned sizes


def _planned_part(run: Run, n_clients: int) -> tuple[int, int]:
    """Return the parts that the answer of one of so many clients has, and their longest bytes."""
    document, trust, sharing, n_parts = run.document, run.trust, None, 1
    if trust.has_committee:
        n_parts = min(n_clients, MAX_POSITIONS)
        n_corrupt = corrupt_positions(n_clients, document.max_colluders)
        sharing = trust.sum.set_up(n_parts, n_corrupt, n_parts)
    return n_parts, noise.part_bytes(run, max(document.words), sharing) + _PART_OVERHEAD


def answers_bytes(run: Run, n_clients: int) -> int:
    """Return how many bytes the answers of so many clients have together, at most, in a round."""
    n_slots = max(n_clients, run.document.min_clients)
    n_parts, part = _planned_part(run, n_slots)
    return n_slots * n_parts * part


def planned_sizes(run: Run, n_clients: int) -> dict[str, int]:
    """Return the largest messages in bytes, by their kind, and the ``relay`` of a round."""
    document, trust = run.document, run.trust
    n_slots = max(n_clients, document.min_clients)
    n_parts, part = _planned_part(run, n_slots)
    clients = _OVERHEAD + _PEER_BYTES * n_slots
    queries = (run.algorithm.query_ranges(t + 1) for t in range(document.rounds))
    query = max(
        sum(8 * math.prod(shape) for shape, _, _ in each.values()) for each in queries
    )
    entry = n_parts * part
    sizes = {
        "ask": clients + (entry if trust.is_blind else query),
        "answer": clients + entry,
    }
    if trust.has_committee:
        sizes |= {"add": clients + n_slots * part, "relay": answers_bytes(run, n_slots)}
    return sizes


def require_sizes(run: Run, n_clients: int) -> None:
    """Require messages within `wire.MAX_MESSAGE`, and a round's relay within `MAX_RELAY`."""
    ways = "fewer words or fewer clients"
    if run.trust.has_committee:
        ways += ", or trust='oblivious-server', which sends 8 bytes for each word"
    for name, size in planned_sizes(run, n_clients).items():
        limit = MAX_RELAY if name == "relay" else MAX_MESSAGE
        what = (
            "shares to relay in a round"
            if name == "relay"
            else f"data in one {name!r} message"
        )
        if size > limit:
            raise ConfigurationError(
                f"Expected at most {limit / 2**20:.0f} MiB of {what}. Got {size / 2**20:.0f} MiB "
                f"with {n_clients} clients and {max(run.document.words)} words: take {ways}."
            )
