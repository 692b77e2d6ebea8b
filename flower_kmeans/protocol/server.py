"""The server's side of a run: whom it asks what, and what it makes of the replies.

A server knows nothing of Flower's messages or clocks (docs/protocol.md, sections 5 and 6). It makes
requests per node and hands them to a `Trip`, which carries them and yields the replies. No client
checks what a server does about faults, and none of it costs privacy: one sum of a round opens.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Query, State
from flower_kmeans.errors import (
    ConfigurationError,
    MessageError,
    RunError,
    TooFewClientsError,
)
from flower_kmeans.initialization import public_generator
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.privacy.report import CommitteeReport, Dropped
from flower_kmeans.privacy.report import Kind as IncidentKind
from flower_kmeans.protocol import removal
from flower_kmeans.protocol.client import read_result
from flower_kmeans.protocol.cohort import (
    MALFORMED,
    SEAL_BYTES,
    Cohort,
    Frame,
    Participant,
    ShareStore,
    committee_of,
)
from flower_kmeans.protocol.committee import MAX_POSITIONS, corrupt_positions
from flower_kmeans.protocol.group_key import GroupKey
from flower_kmeans.protocol.messages import (
    Add,
    Added,
    Answer,
    Ask,
    Code,
    Enrol,
    Enrolled,
    Entry,
    Finish,
    Finished,
    Keys,
    Refusal,
    Reply,
    Request,
    Wrapped,
)
from flower_kmeans.protocol.noise import server_noise
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import EPOCHS, Run
from flower_kmeans.protocol.transcript import (
    ZERO,
    entry_context,
    first_hash,
    next_hash,
    pack_survivors,
    query_tag,
    round_context,
)
from flower_kmeans.protocol.wire import MAX_MESSAGE, encode, encode_arrays
from flower_kmeans.secagg.base import Sharing, SumContext, SumError
from flower_kmeans.secagg.hashing import u64

Kind = Literal["enrol", "keys", "ask", "add", "finish"]
Replies = Iterable[tuple[int, Reply | str]]
"""Node and reply; a string states why there is no orderly reply."""

MAX_RELAY = 2**31
"""Most bytes of shares that a server passes on in one round."""
N_REPEATS = 2
"""How often an `Add` is repeated for those who did not answer it."""
_ADD_BYTES = 256 * 2**20  # of all that are under way at once
_OVERHEAD = 2**20  # of a message, beside what grows with words and clients
_PEER_BYTES = 80
_PART_OVERHEAD = 32

NO_ANSWER = "No answer in time."
TWICE = "The client answered twice; only the first answer counted."
STRAY = "The answer belonged to another run."
DIFFERS = "The client's query or history differs from that of most clients."
FALSE_SHARE = "The client's sum-share is false."
SKIPPED = "Other clients could not share with the client."
NAMED = "The client's shares did not open for others."
LATE = "The client came late, and keys are relayed to the first clients only."


class Trip(Protocol):
    """Carries one round trip: sends a request to each node and yields the replies as they come.

    ``has_enough()`` returns whether the server could go on without those that have not answered. A
    trip may also yield replies to the enrolments that `Server.join` returned.
    """

    def __call__(
        self, kind: Kind, requests: Mapping[int, Request], has_enough: Callable[[], bool]
    ) -> Iterator[tuple[int, Reply | str]]:
        """Send requests by node, and yield each node with its reply or why there is none."""


@dataclass
class Proceedings:
    """How a run went, beside `Server.incidents`; nothing here follows from records.

    Attributes
    ----------
    n_slots : int
        M, in the last round.
    committee : CommitteeReport, optional
        Where a committee adds: that of the last round.
    answers : list of int
        |S| of each round that is closed; 0 for a lost one.
    noise_factors : list of float
        Where noise beyond the plan is removed, for each of these rounds: standard deviation of the
        noise in the sum over the planned one; 0 for a lost round.
    lost_rounds : list of int
        Rounds whose sum could not be opened, which the run went on without.
    attempts, repeats, round_trips : int
        Attempts at all rounds, repeats of an `Add`, and all round trips.
    """

    n_slots: int = 0
    committee: CommitteeReport | None = None
    answers: list[int] = field(default_factory=list)
    noise_factors: list[float] = field(default_factory=list)
    lost_rounds: list[int] = field(default_factory=list)
    attempts: int = 0
    repeats: int = 0
    round_trips: int = 0


@dataclass
class _Group:
    """The answers with one tag: who sent them and, without a committee, their sum."""

    nodes: list[int] = field(default_factory=list)
    total: bytes = b""


@dataclass
class _Attempt:
    """An attempt at a round."""

    t: int
    number: int
    frame: Frame
    store: ShareStore | None  # where a committee adds
    wanted: list[Participant] = field(default_factory=list)  # whose envelopes are asked for
    requests: dict[int, Ask] = field(default_factory=dict)
    groups: dict[bytes, _Group] = field(default_factory=dict)  # by tag
    have: int = 0  # how many answers can be added up


@dataclass
class _Adding:
    """What committee members are asked to add, and what they gave, by position."""

    store: ShareStore
    sharing: Sharing
    nodes: list[int]  # S, by slot
    tag: bytes
    skipped: set[int]  # positions that are not asked
    shares: dict[int, bytes] = field(default_factory=dict)
    key_ids: dict[int, bytes] = field(default_factory=dict)
    named: dict[int, int] = field(default_factory=dict)  # the slot that a position named
    unopened: set[int] = field(default_factory=set)  # positions whose envelope did not open


class Server:
    """The server of one run.

    Parameters
    ----------
    run : Run
        Its algorithm is the server's own. What that holds beside the parameters in the document
        never travels.
    seed : int, default: 0
        Public randomness of an algorithm whose queries only the server can compute.
    roster : Roster, optional
        The clients' public keys; needed exactly under ``keys="roster"``.

    Attributes
    ----------
    run : Run
        With a roster beyond 64 slots its epoch may be another one after `set_up`.
    proceedings : Proceedings
    incidents : list of Dropped
        Everything that was not an orderly reply.
    dropped : list of Dropped
        Clients that a round went on without, and the last incident that explains it. Round 0 is
        the enrolment, ``n_rounds + 1`` the delivery.
    delivered : set of int
        Nodes that have the result.
    head : int
        Rounds that are closed.
    n_opened : int
        The last round whose sum the server has opened; 0 where it is blind.
    state : State
        The algorithm's state after all rounds that are closed; that before round 1 where the server
        is blind.

    Raises
    ------
    ConfigurationError
        If there is a roster where keys are relayed, or none where they are not, or another one than
        the run document names.
    """

    def __init__(self, run: Run, *, seed: int = 0, roster: Roster | None = None) -> None:
        if (None if roster is None else roster.digest) != run.document.roster:
            raise ConfigurationError(
                "Expected the roster that the run document names. Got another, or none."
            )
        self.run, self._seed, self._roster = run, seed, roster
        self.proceedings = Proceedings()
        self.incidents: list[Dropped] = []
        self.dropped: list[Dropped] = []
        self.delivered: set[int] = set()
        self.head = self.n_opened = 0
        self.state: State = run.algorithm.initial_state(self._generator(0))
        self._begin(run)

    def _begin(self, run: Run) -> None:
        """Forget all clients: no session of theirs is for this document."""
        self.run = run
        self._cohort = Cohort(run, self._roster)
        self._keys = GroupKey()
        self._documented: set[int] = set()  # who has the document
        self._heads: dict[int, int] = {}  # rounds whose entries a client has
        self._sent: dict[int, int] = {}  # last round of the entries that it was sent
        self._declined: set[int] = set()
        self._banned: set[int] = set()
        self._differing: set[int] = set()
        self._is_set_up = False
        self._entries: list[Entry] = []
        self._sizes: list[int] = []
        self._h = first_hash(run.doc_hash) if run.trust.is_blind else ZERO
        self._query: tuple[Query, bytes] | None = None
        self._attempt: _Attempt | None = None
        self._enough: Callable[[], bool] = lambda: False

    @property
    def n_clients(self) -> int:
        """Number of clients that have a slot."""
        return len(self._cohort.clients)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every client stated that it keeps a ledger, which only they can know."""
        return bool(self._cohort.clients) and all(c.ledger for c in self._cohort.clients.values())

    def has_enough(self) -> bool:
        """Return whether the round trip that is under way could end with what has come."""
        return self._enough()

    # ------------------------------------------------------------------ set-up

    def set_up(self, node_ids: Iterable[int], trip: Trip) -> None:
        """Enrol the clients, give them slots, and choose the committee and the group key.

        Parameters
        ----------
        node_ids : iterable of int
        trip : Trip

        Raises
        ------
        TooFewClientsError
            If too few clients enrolled for a sum.
        ConfigurationError
            If so many enrolled that messages would be too long.
        RunError
            If no client made the group key.
        """
        nodes = sorted(node_ids)
        self._enrol(nodes, trip)
        epoch = self._better_epoch()
        if epoch is not None:
            document = msgspec.structs.replace(self.run.document, epoch=epoch)
            self._begin(replace(self.run, document=document))
            self._enrol(nodes, trip)
        n_taken, least = len(self._cohort.taken), self.run.document.min_clients
        if n_taken < least:
            raise TooFewClientsError(
                f"Expected at least min_clients={least} clients to take part. "
                f"Got {n_taken} instead.{self._reasons(0)}"
            )
        frame = self._next_frame()
        self._note_dropped(0, (node for node in nodes if node not in self._cohort.clients))
        if self.run.trust.has_committee and frame.sharing is None:
            raise TooFewClientsError(
                f"Expected more of the {len(frame.committee_slots)} committee members to take "
                f"part. Got {len(frame.present)} instead.{self._reasons(0)}"
            )
        require_sizes(self.run, frame.n_slots)
        self._is_set_up = True
        if self._has_early_key:
            self._make_group_key(frame, trip)

    def _enrol(self, nodes: Iterable[int], trip: Trip) -> None:
        cohort, least = self._cohort, self.run.document.min_clients
        self._enough = lambda: (
            len(cohort.taken) >= least and self._is_enough(cohort.taken, self.run.document.epoch)
        )
        requests = dict.fromkeys(nodes, Enrol(doc=self.run.data))
        for _ in self._take(0, self._send(trip, "enrol", requests), Enrolled):
            pass

    def _is_enough(self, taken: set[int], epoch: int) -> bool:
        """Return whether a committee can add although one more of it is missing, or it is whole."""
        if self._roster is None or not self.run.trust.has_committee:
            return True
        n_slots, colluders = len(self._roster.keys), self.run.document.max_colluders
        slots = committee_of(self._roster, epoch)
        present = len(taken.intersection(slots))
        if present == len(slots):
            return True
        try:
            f = corrupt_positions(n_slots, colluders)
            return self.run.trust.sum.set_up(len(slots), f, present - 1) is not None
        except ConfigurationError:
            return False

    def _better_epoch(self) -> int | None:
        """Return an epoch whose committee has enough members, if that of the document has not."""
        taken = self._cohort.taken
        if self._is_enough(taken, self.run.document.epoch):
            return None
        return next((epoch for epoch in range(EPOCHS) if self._is_enough(taken, epoch)), None)

    def _make_group_key(self, frame: Frame, trip: Trip) -> None:
        """Let key distributors make the group key in a round trip; ask others if none replies."""
        everyone, tried = list(frame.slots.values()), set[int]()
        self._enough = lambda: self._keys.has_offers
        while not self._keys.has_offers:
            distributors = self._keys.distributors(frame, tried)
            if not distributors:
                raise RunError(
                    "Expected a client that makes the group key. Got none." + self._reasons(0)
                )
            tried |= {distributor.node_id for distributor in distributors}
            requests = {
                one.node_id: Keys(
                    doc_hash=self.run.doc_hash,
                    peers=tuple(frame.peer(client, one) for client in everyone),
                )
                for one in distributors
            }
            for node_id, reply in self._take(0, self._send(trip, "keys", requests), Wrapped):
                if isinstance(reply, Wrapped) and node_id in requests:
                    self._offer(frame, node_id, reply.envelopes, everyone)
        self._keys.accept_offer()

    def _offer(
        self, frame: Frame, node_id: int, envelopes: Sequence[bytes], wanted: Sequence[Participant]
    ) -> None:
        distributor = self._cohort.clients[node_id]
        for client in self._keys.offer(frame, distributor, envelopes, wanted):
            self._cohort.give_up(client.slot)

    def join(self, node_ids: Iterable[int]) -> dict[int, Enrol]:
        """Return enrolments for nodes that came late, or whose enrolment was lost.

        Their replies may come in any later trip. Relayed keys serve the first clients only, so
        such a run takes no late ones.
        """
        if not self._takes_late:
            return {}
        new = [n for n in node_ids if not self._cohort.knows(n) and n not in self._declined]
        return dict.fromkeys(new, Enrol(doc=self.run.data))

    @property
    def _has_early_key(self) -> bool:
        """Whether clients need the group key for round 1, so it takes a round trip."""
        return self.run.trust.is_blind and not self.run.trust.has_committee

    @property
    def _takes_late(self) -> bool:
        return not self._is_set_up or self.run.document.keys != "relayed"

    # ------------------------------------------------------------------ replies

    def _send(self, trip: Trip, kind: Kind, requests: Mapping[int, Request]) -> Replies:
        self.proceedings.round_trips += 1
        return trip(kind, requests, self.has_enough)

    def _take(self, t: int, replies: Replies, kind: type[Reply]) -> Iterator[tuple[int, Reply]]:
        """Yield the orderly replies of clients and their refusals, and note all others.

        A node without a slot is not heard, unless it enrols.
        """
        seen: set[int] = set()
        for node_id, reply in replies:
            if isinstance(reply, str):
                self._note(node_id, t, reply, "failed")
            elif reply.doc_hash not in (self.run.doc_hash, None):
                self._note(node_id, t, STRAY, "failed")
            elif isinstance(reply, Enrolled):
                self._give_slot(node_id, t, reply)
            elif node_id not in self._cohort.clients:
                if isinstance(reply, Refusal):
                    self._note(node_id, t, Code(reply.code).sentence)
                    self._declined.add(node_id)
            elif node_id in seen:
                self._note(node_id, t, TWICE, "failed")
            elif isinstance(reply, Refusal):
                seen.add(node_id)
                self._refused(node_id, t, reply)
                yield node_id, reply
            elif isinstance(reply, kind):
                seen.add(node_id)
                self._documented.add(node_id)
                yield node_id, reply
            else:
                self._note(node_id, t, MALFORMED, "failed")

    def _give_slot(self, node_id: int, t: int, reply: Enrolled) -> None:
        objection: str | None = TWICE
        if not self._cohort.knows(node_id):
            objection = self._cohort.take(node_id, reply) if self._takes_late else LATE
        if objection is not None:
            self._note(node_id, t, objection, "failed")
            self._declined.add(node_id)

    def _refused(self, node_id: int, t: int, refusal: Refusal) -> None:
        """Note a refusal; renew the client, or remember what it lacks. It never ends the run."""
        code = Code(refusal.code)
        renewed = code == Code.RENEW and self._cohort.renew(node_id, refusal)
        self._note(node_id, t, code.sentence, "renewed" if renewed else "refused")
        if code == Code.NEED:
            self._documented.discard(node_id)
            self._keys.holders.discard(node_id)
            # It followed what it was sent, if that was not all; otherwise it may have nothing.
            sent = self._sent.pop(node_id, 0)
            self._heads[node_id] = sent if sent < len(self._entries) else 0

    def _note(self, node_id: int, t: int, reason: str, kind: IncidentKind = "refused") -> None:
        client = self._cohort.clients.get(node_id)
        if client is None:
            self.incidents.append(Dropped(-1, node_id, t, reason, kind))
        else:
            self.incidents.append(
                Dropped(client.slot, node_id, t, reason, kind, client.software, client.ledger)
            )

    def _note_dropped(self, t: int, node_ids: Iterable[int]) -> None:
        """Record that a round went on without these nodes, each with the last incident."""
        last = {incident.node_id: incident for incident in self.incidents if incident.round == t}
        for node_id in node_ids:
            slot = self._cohort.slot_of(node_id)
            silent = Dropped(slot, node_id, t, NO_ANSWER, "silent")
            self.dropped.append(last.get(node_id, silent))

    def _reasons(self, t: int) -> str:
        reasons = sorted({incident.reason for incident in self.incidents if incident.round == t})
        return f" Reasons: {' '.join(reasons)}" if reasons else ""

    # ------------------------------------------------------------------ requests

    def _next_frame(self) -> Frame:
        frame, new = self._cohort.frame()
        for node_id in new:
            self._keys.forget(node_id)
            self._heads.pop(node_id, None)
        self.proceedings.n_slots = frame.n_slots
        sharing, document = frame.sharing, self.run.document
        if sharing is not None:
            drawn = self._roster is not None and len(self._roster.keys) > len(frame.committee_slots)
            self.proceedings.committee = CommitteeReport(
                slots=frame.committee_slots,
                n_present=len(frame.present),
                n_corrupt=sharing.n_corrupt,
                privacy=sharing.privacy,
                packing=sharing.packing,
                epoch=document.epoch if drawn else None,
                beacon=self._roster.beacon.hex() if drawn and self._roster else "",
            )
        return frame

    def _located(self, frame: Frame, t: int, attempt: int, client: Participant) -> dict[str, Any]:
        """Return what `Ask` and `Add` have in common for one client."""
        known = client.node_id in self._documented
        return {
            "doc_hash": self.run.doc_hash,
            "t": t,
            "attempt": attempt,
            "n_slots": frame.n_slots,
            "root": frame.tree.root,
            "slot": client.slot,
            "path": frame.tree.path(client.slot),
            "committee": frame.committee_list,
            "tags": b"" if self._roster is None else frame.tags_for(client),
            "doc": b"" if known else self.run.data,
            "wrap_for": self._keys.wrap_for(client.node_id),
        }

    def _lacking(self, node_id: int) -> tuple[Entry, ...]:
        """Return the entries that a client lacks, as many as fit into a message."""
        first = last = self._heads.get(node_id, 0)
        room = MAX_MESSAGE - _OVERHEAD - _PEER_BYTES * self._cohort.n_slots
        while last < len(self._entries):
            room -= self._sizes[last]
            if room < 0 and last > first:
                break
            last += 1
        self._sent[node_id] = last
        return tuple(self._entries[first:last])

    # ------------------------------------------------------------------ asking

    def ask(self) -> dict[int, Ask]:
        """Begin the next round and return the requests of its first attempt.

        Raises
        ------
        RunError
            If the query has no encoding, or clients would refuse it.
        """
        self._attempt = self._open_attempt(1)
        self.proceedings.round_trips += 1
        return self._attempt.requests

    def _open_attempt(self, number: int) -> _Attempt:
        t, trust, frame = self.head + 1, self.run.trust, self._next_frame()
        store = None
        if trust.has_committee:
            store = ShareStore(len(frame.committee_slots), self._part_bytes(t, frame.sharing))
        attempt = _Attempt(t, number, frame, store)
        self.proceedings.attempts += 1
        query = None if trust.is_blind else self._query_of(t)[1]
        distributors: set[int] = set()
        if trust.is_blind:
            attempt.wanted = self._keys.lacking(frame)
            chosen = self._keys.distributors(frame, self._differing) if attempt.wanted else []
            distributors = {client.node_id for client in chosen}
        for client in frame.slots.values():
            node_id = client.node_id
            wanted = attempt.wanted if node_id in distributors else []
            attempt.requests[node_id] = Ask(
                **self._located(frame, t, number, client),
                query=query,
                entries=self._lacking(node_id),
                peers=tuple(frame.peer(peer, client) for peer in wanted),
            )
        least = self.run.document.min_clients
        self._enough = lambda: (
            any(len(group.nodes) >= least for group in attempt.groups.values())
            and (not trust.is_blind or self._keys.exists)
        )
        return attempt

    def _query_of(self, t: int) -> tuple[Query, bytes]:
        """Return the query of a round, the same in all of its attempts, and its encoding."""
        if self._query is None or self._query[0].round != t:
            query = self.run.algorithm.query(self.state)
            try:
                data = encode_arrays(dict(query.arrays))
                self.run.algorithm.check_query(query)
            except MessageError as error:
                raise RunError(f"Round {t} cannot be asked for. {error}") from None
            self._query = query, data
        return self._query

    def _generator(self, number: int) -> np.random.Generator | None:
        """Return the randomness of one step; none where clients could take the same step."""
        return None if self.run.algorithm.replayable else public_generator(self._seed, number)

    def take_answers(self, replies: Replies, trip: Trip) -> None:
        """Take the replies to `ask` and close the round, with further round trips as needed.

        Raises
        ------
        TooFewClientsError
            If too few clients answered in all attempts.
        RunError
            If the round is lost and the run cannot go on without its sum.
        """
        attempt = self._attempt
        if attempt is None:
            raise RunError("Expected `ask` before the answers to it.")
        while True:
            with closing(attempt.store) if attempt.store is not None else nullcontext():
                self._collect(attempt, replies)
                closed = self._close(attempt, trip)
            if closed:
                break
            if attempt.number == self.run.document.max_attempts:
                raise self._too_few(attempt)
            attempt = self._open_attempt(attempt.number + 1)
            replies = self._send(trip, "ask", attempt.requests)
        self._attempt = None

    def _too_few(self, attempt: _Attempt) -> TooFewClientsError:
        document, t = self.run.document, attempt.t
        return TooFewClientsError(
            f"Expected at least min_clients={document.min_clients} answers to one query in round "
            f"{t} of {document.rounds}. Got {attempt.have} of {self.n_clients} in the last of "
            f"{document.max_attempts} attempts.{self._reasons(t)}"
        )

    def _collect(self, attempt: _Attempt, replies: Replies) -> None:
        unopened = []
        for node_id, reply in self._take(attempt.t, replies, Answer):
            if isinstance(reply, Answer) and node_id in attempt.requests:
                self._take_answer(attempt, node_id, reply)
            elif isinstance(reply, Refusal) and reply.code == Code.KEY:
                unopened.append(node_id)
        if self.run.trust.is_blind:
            self._keys.accept_offer()
            self._keys.refused(unopened, self.run.document.min_clients)

    def _take_answer(self, attempt: _Attempt, node_id: int, reply: Answer) -> None:
        """Keep one answer, where it may count."""
        request, trust, t = attempt.requests[node_id], self.run.trust, attempt.t
        self._heads[node_id] = t - 1
        if request.wrap_for is not None:
            self._keys.holders.add(node_id)
        if request.peers:
            self._offer(attempt.frame, node_id, reply.envelopes, attempt.wanted)
        if node_id in self._banned:
            return
        group = attempt.groups.setdefault(reply.tag, _Group())
        if trust.is_blind or reply.tag == self._tag(t):
            if attempt.store is not None:
                attempt.store.put(node_id, reply.sealed)
            elif not self._add_up(attempt, reply):
                self._note(node_id, t, MALFORMED, "failed")
                return
        group.nodes.append(node_id)

    def _add_up(self, attempt: _Attempt, reply: Answer) -> bool:
        """Add words to the sum of their group as they arrive; return whether they are well-formed.

        A checksum word in the clear must be 1: no client could detect it in the sum.
        """
        secure_sum, context = self.run.trust.sum, self._sum_context(attempt, reply.tag)
        if len(reply.words) != self._part_bytes(attempt.t, None):
            return False
        if not secure_sum.is_protected and reply.words[-8:] != u64(1):
            return False
        group = attempt.groups[reply.tag]
        parts = [group.total, reply.words] if group.total else [reply.words]
        group.total = secure_sum.combine(parts, context)
        return True

    def _part_bytes(self, t: int, sharing: Sharing | None) -> int:
        """Return the length of one part of an answer, sealed where it is a share."""
        length = removal.part_bytes(self.run, self.run.document.words[t - 1], sharing)
        return length if sharing is None else length + SEAL_BYTES

    def _sum_context(self, attempt: _Attempt, tag: bytes) -> SumContext:
        frame, t = attempt.frame, attempt.t
        root, com = frame.tree.root, frame.digest
        digest = round_context(
            self.run.doc_hash, t, attempt.number, frame.n_slots, root, com, self._h, tag
        )
        n_words = self.run.document.words[t - 1]
        return SumContext(digest, n_words, frame.n_slots, sharing=frame.sharing)

    def _tag(self, t: int) -> bytes:
        """Return the tag of the query that the server asks."""
        return query_tag(ZERO, ZERO, self._query_of(t)[1])

    # ------------------------------------------------------------------ closing a round

    def _close(self, attempt: _Attempt, trip: Trip) -> bool:
        """Close the round if enough clients answered one query; return whether it is closed."""
        tag = self._chosen_tag(attempt)
        nodes = sorted(attempt.groups[tag].nodes, key=self._cohort.slot_of) if tag else []
        store, sharing, skipped = attempt.store, attempt.frame.sharing, set[int]()
        if store is not None and sharing is not None:
            skipped = self._leave_out(attempt, store, sharing, nodes)
        attempt.have = len(nodes)
        if len(nodes) < self.run.document.min_clients:
            return False
        if store is not None and sharing is not None:
            adding = _Adding(store, sharing, nodes, tag, skipped)
            is_closed = self._add(attempt, adding, trip)
        else:
            total = self._with_noise(attempt, tag)
            is_closed = self._settle(attempt, nodes, tag, {0: total})
        if not is_closed:
            self._lose(attempt)
        return True

    def _chosen_tag(self, attempt: _Attempt) -> bytes:
        """Return the tag whose answers are added up; note the clients with another one."""
        groups = attempt.groups
        if not groups:
            return b""
        if self.run.trust.is_blind:
            tag = max(groups, key=lambda each: (len(groups[each].nodes), each))
        else:
            tag = self._tag(attempt.t)
            groups.setdefault(tag, _Group())
        self._differing = {n for each in groups if each != tag for n in groups[each].nodes}
        for node_id in sorted(self._differing):
            self._note(node_id, attempt.t, DIFFERS, "differs")
            if self._has_early_key and attempt.t == 1:
                self._keys.forget(node_id)  # the tag is keyed, perhaps with another group key
        return tag

    def _leave_out(
        self, attempt: _Attempt, store: ShareStore, sharing: Sharing, nodes: list[int]
    ) -> set[int]:
        """Remove dealers from ``nodes`` and return positions, until no share of these is missing.

        A dealer leaves the share of a position out if tag or key are wrong, so one of the two is
        not honest: whichever more of the others disagree with goes first.
        """
        frame, skipped = attempt.frame, set[int]()
        present = set(frame.present)
        missing = {node_id: store.missing(node_id) & present for node_id in nodes}
        while any(missing.values()):
            counts = Counter(j for positions in missing.values() for j in positions)
            position, times = max(counts.items(), key=lambda item: (item[1], item[0]))
            dealer = max(missing, key=lambda node_id: (len(missing[node_id]), node_id))
            spare = len(present) - len(skipped) > sharing.threshold
            if times >= len(missing[dealer]) and spare:
                skipped.add(position)
                client = frame.present[position]
                self._note(client.node_id, attempt.t, SKIPPED, "skipped")
                self._cohort.give_up(client.slot)
                for positions in missing.values():
                    positions.discard(position)
            else:
                del missing[dealer]
                nodes.remove(dealer)
                self._note(dealer, attempt.t, SKIPPED, "skipped")
        return skipped

    def _survivors(self, attempt: _Attempt, nodes: Iterable[int]) -> NDArray[np.bool_]:
        survivors = np.zeros(attempt.frame.n_slots, dtype=np.bool_)
        survivors[[self._cohort.slot_of(node_id) for node_id in nodes]] = True
        return survivors

    def _with_noise(self, attempt: _Attempt, tag: bytes) -> bytes:
        """Return a sum with the server's noise. It is drawn once: an entry is never replaced."""
        run, total = self.run, attempt.groups[tag].total
        if run.trust.noise_by != "server":
            return total
        noise = server_noise(run.algorithm, run.plan, attempt.t, Stream.fresh())
        part = run.trust.sum.encode(np.append(noise, np.int64(0)))
        return run.trust.sum.combine([total, part], self._sum_context(attempt, tag))

    def _settle(
        self, attempt: _Attempt, nodes: Sequence[int], tag: bytes, combined: Mapping[int, bytes]
    ) -> bool:
        """Close a round with its sum: in an entry for clients, or in the state where it is seen.

        Returns
        -------
        bool
            Whether the sum opens, as far as the server sees it.
        """
        t, frame, run = attempt.t, attempt.frame, self.run
        survivors = self._survivors(attempt, nodes)
        if run.trust.is_blind:
            by_committee = frame.sharing is not None
            entry = Entry(
                t=t,
                attempt=attempt.number,
                n_slots=frame.n_slots,
                root=frame.tree.root,
                committee=frame.digest,
                tag=tag,
                survivors=pack_survivors(survivors),
                packing=frame.sharing.packing if frame.sharing else 0,
                words=b"" if by_committee else combined[0],
                shares=tuple(sorted(combined.items())) if by_committee else (),
            )
            self._entries.append(entry)
            self._sizes.append(len(encode(entry)))
            self._h = next_hash(self._h, entry_context(run.doc_hash, self._h, entry), entry)
        else:
            context = self._sum_context(attempt, tag)
            try:
                opened = removal.open_sum(run, t, combined, survivors, context)
            except SumError:
                return False
            if int(opened.vector[-1]) != len(nodes):
                return False
            for position in opened.liars:
                self._note(frame.present[position].node_id, t, FALSE_SHARE, "liar")
            if run.document.levels:
                self.proceedings.noise_factors.append(opened.factor)
            answer = run.algorithm.unflatten(opened.vector[:-1], t, len(nodes) / frame.n_slots)
            self.state = run.algorithm.update(self.state, answer, self._generator(t))
            self.n_opened = t
        self.head = t
        self.proceedings.answers.append(len(nodes))
        self._note_dropped(t, sorted(self._cohort.clients.keys() - set(nodes)))
        return True

    def _lose(self, attempt: _Attempt) -> None:
        """Close a round without a sum, where the algorithm can go on without it."""
        t, algorithm = attempt.t, self.run.algorithm
        state = None if self.run.trust.is_blind else algorithm.without_sum(self.state)
        if state is None:
            needed = attempt.frame.sharing.threshold if attempt.frame.sharing else 0
            raise RunError(
                f"Expected {needed} sum-shares that open the sum of round {t}. Got fewer, and the "
                f"run cannot go on without this sum.{self._reasons(t)}"
            )
        self.state, self.head = state, t
        self.proceedings.lost_rounds.append(t)
        self.proceedings.answers.append(0)
        if self.run.document.levels:
            self.proceedings.noise_factors.append(0.0)

    # ------------------------------------------------------------------ adding shares

    def _add(self, attempt: _Attempt, adding: _Adding, trip: Trip) -> bool:
        """Let the committee add the shares of the survivors; return whether the round has its sum.

        Who did not answer is asked again with the same request, which costs no privacy. Members
        that reported shares that do not open have added nothing: if these are enough, they are
        asked again without the dealers that were named.
        """
        for number in range(1 + N_REPEATS):
            asked = [
                j for j in attempt.frame.present if j not in adding.skipped | adding.shares.keys()
            ]
            if not asked:
                break
            self.proceedings.repeats += number > 0
            self._ask_to_add(attempt, adding, asked, trip)
            if self.run.trust.is_blind and not self._agree_on_key(attempt, adding):
                continue
            out = self._leave_out_named(attempt, adding)
            threshold = adding.sharing.threshold
            enough = len(adding.shares) >= threshold
            if enough and self._settle(attempt, adding.nodes, adding.tag, adding.shares):
                return True
            left = [node_id for node_id in adding.nodes if node_id not in out]
            is_crowd = len(left) >= self.run.document.min_clients
            if out and len(adding.named) >= threshold and is_crowd:
                adding = _Adding(adding.store, adding.sharing, left, adding.tag, adding.skipped)
        return False

    def _ask_to_add(
        self, attempt: _Attempt, adding: _Adding, asked: Sequence[int], trip: Trip
    ) -> None:
        """Send an `Add` to these positions, in parts if it is too much to send at once."""
        frame, present = attempt.frame, attempt.frame.present
        position_of = {client.node_id: j for j, client in present.items()}
        size = len(adding.nodes) * (self._part_bytes(attempt.t, adding.sharing) + len(ZERO))
        at_once = max(1, _ADD_BYTES // size)
        survivors = self._survivors(attempt, adding.nodes)
        slots = np.flatnonzero(survivors).tolist()
        common: dict[str, Any] = {
            "h": self._h,
            "tag": adding.tag,
            "survivors": pack_survivors(survivors),
            "public_keys": b"".join(frame.slots[slot].public_key for slot in slots),
        }
        # One more than a sum needs shows a false share, but one client may always be silent.
        possible = len(adding.shares) + len(asked) - 1
        enough = max(adding.sharing.threshold, min(adding.sharing.threshold + 1, possible))
        for first in range(0, len(asked), at_once):
            needed = enough - max(0, len(asked) - first - at_once)
            self._enough = lambda n=needed: len(adding.shares) >= n  # type: ignore[misc]
            requests = {
                present[j].node_id: Add(
                    **self._located(frame, attempt.t, attempt.number, present[j]),
                    **common,
                    sealed=tuple(adding.store.parts(j, adding.nodes)),
                )
                for j in asked[first : first + at_once]
            }
            for node_id, reply in self._take(attempt.t, self._send(trip, "add", requests), Added):
                if node_id in requests:
                    if isinstance(reply, Added) and requests[node_id].wrap_for is not None:
                        self._keys.holders.add(node_id)
                    self._take_share(attempt, adding, position_of[node_id], reply)

    def _take_share(self, attempt: _Attempt, adding: _Adding, position: int, reply: Reply) -> None:
        length = self._part_bytes(attempt.t, adding.sharing)
        if isinstance(reply, Refusal) and reply.code == Code.KEY:
            if reply.slot is None:
                adding.unopened.add(position)
            else:
                adding.named[position] = reply.slot
        elif isinstance(reply, Added):
            adding.unopened.discard(position)
            # What is false where the server opens is found then.
            if self.run.trust.is_blind and len(reply.share) != length:
                node_id = attempt.frame.present[position].node_id
                self._note(node_id, attempt.t, MALFORMED, "failed")
            else:
                adding.shares[position], adding.key_ids[position] = reply.share, reply.key_id

    def _agree_on_key(self, attempt: _Attempt, adding: _Adding) -> bool:
        """Keep the sum-shares under the group key that most members have.

        Returns
        -------
        bool
            ``False`` if too few have one: then all are asked again with another one, which only
            the first round allows.
        """
        present = attempt.frame.present
        key_id, _ = max(
            Counter(adding.key_ids.values()).items(),
            key=lambda item: (item[1], item[0]),
            default=(b"", 0),
        )
        others = {j for j, other in adding.key_ids.items() if other != key_id}
        without = others | adding.unopened
        possible = len(present) - len(adding.skipped) - len(without)
        if (
            possible < adding.sharing.threshold
            and attempt.t == 1
            and self._keys.has_offers
            and not adding.named
        ):
            self._keys.start_over()
            for found in (adding.shares, adding.key_ids, adding.unopened):
                found.clear()
            return False
        for position in others:
            del adding.shares[position], adding.key_ids[position]
            self._keys.forget(present[position].node_id)
        self._keys.holders -= {present[j].node_id for j in adding.unopened}
        self._keys.refused((present[j].node_id for j in adding.unopened), 0)
        return True

    def _leave_out_named(self, attempt: _Attempt, adding: _Adding) -> set[int]:
        """Return the dealers that more members named than may be corrupt: in no sum any more."""
        frame, out = attempt.frame, set[int]()
        for slot, times in Counter(adding.named.values()).items():
            if times <= adding.sharing.n_corrupt or slot not in frame.slots:
                continue
            client = frame.slots[slot]
            if client.node_id in adding.nodes:
                out.add(client.node_id)
                if client.node_id not in self._banned:
                    self._note(client.node_id, attempt.t, NAMED, "named")
                    self._cohort.give_up(slot)
        self._banned |= out
        return out

    # ------------------------------------------------------------------ delivery

    def finish_requests(self) -> dict[int, Finish]:
        """Return the last entries, or the result, for every client.

        Raises
        ------
        RunError
            If the server should have a result and has none that clients would accept.
        """
        self._enough = lambda: len(self.delivered) >= self.run.document.min_clients
        self.proceedings.round_trips += 1
        self._next_frame()
        return self._finish(self._cohort.clients)

    def _finish(self, node_ids: Iterable[int]) -> dict[int, Finish]:
        if not self.run.trust.is_blind:
            result = encode_result(self.run, self.state)
            return dict.fromkeys(node_ids, Finish(doc_hash=self.run.doc_hash, result=result))
        return {
            node_id: Finish(
                doc_hash=self.run.doc_hash,
                entries=self._lacking(node_id),
                wrap_for=self._keys.wrap_for(node_id),
            )
            for node_id in node_ids
        }

    def take_finished(self, replies: Replies, trip: Trip) -> None:
        """Take the acknowledgements of the delivery; who lacks entries is sent the rest."""
        after = self.run.document.rounds + 1
        for _ in range(1 + len(self._entries)):
            lacking, before = [], dict(self._heads)
            for node_id, reply in self._take(after, replies, Finished):
                if isinstance(reply, Finished):
                    self.delivered.add(node_id)
                elif self._heads.get(node_id, 0) != before.get(node_id, 0):
                    lacking.append(node_id)
            if not lacking:
                break
            replies = self._send(trip, "finish", self._finish(lacking))
        self._note_dropped(after, sorted(self._cohort.clients.keys() - self.delivered))


def encode_result(run: Run, state: State) -> bytes:
    """Return the result of a run as it travels.

    Raises
    ------
    RunError
        If there is none, or clients would refuse it.
    """
    centroids, counts = run.algorithm.centroids(state), run.algorithm.counts(state)
    if centroids is None or counts is None:
        raise RunError("Expected centroids and counts after the last round. Got none.")
    try:
        data = encode_arrays({"centroids": centroids, "counts": counts})
        read_result(run.algorithm, data)
    except MessageError as error:
        raise RunError(f"The result cannot be sent to the clients. {error}") from None
    return data


# ------------------------------------------------------------------------------ planned sizes


def planned_sizes(run: Run, n_clients: int) -> dict[str, int]:
    """Return the largest messages of a run in bytes, by their kind, and the ``relay`` of a round.

    Parameters
    ----------
    run : Run
    n_clients : int
        Number of slots.
    """
    document, trust = run.document, run.trust
    n_slots, n_words = max(n_clients, document.min_clients), max(document.words)
    n_positions = min(n_slots, MAX_POSITIONS)
    sharing = None
    if trust.has_committee:
        f = corrupt_positions(n_slots, document.max_colluders)
        sharing = trust.sum.set_up(n_positions, f, n_positions)
    part = removal.part_bytes(run, n_words, sharing) + _PART_OVERHEAD
    clients = _OVERHEAD + _PEER_BYTES * n_slots
    sizes = {"ask": clients, "answer": clients + part}
    if sharing is not None:
        sizes |= {"answer": clients + n_positions * part, "add": clients + n_slots * part}
        sizes["relay"] = n_slots * n_positions * part
    if trust.is_blind:
        sizes["ask"] = clients + (n_positions if sharing is not None else 1) * part
    else:
        algorithm, rounds = run.algorithm, range(1, document.rounds + 1)
        sizes["ask"] += max(
            sum(8 * math.prod(shape) for shape, _, _ in algorithm.query_ranges(t).values())
            for t in rounds
        )
    return sizes


def require_sizes(run: Run, n_clients: int) -> None:
    """Require that a run's messages can be sent.

    Raises
    ------
    ConfigurationError
        If a message would be longer than `wire.MAX_MESSAGE`, or a round's relay than `MAX_RELAY`.
    """
    ways = "fewer words or fewer clients"
    if run.trust.has_committee:
        ways += ", or trust='oblivious-server', which sends 8 bytes for each word"
    for name, size in planned_sizes(run, n_clients).items():
        limit = MAX_RELAY if name == "relay" else MAX_MESSAGE
        what = "shares to relay in a round" if name == "relay" else f"data in one {name!r} message"
        if size > limit:
            raise ConfigurationError(
                f"Expected at most {limit / 2**20:.0f} MiB of {what}. Got {size / 2**20:.0f} MiB "
                f"with {n_clients} clients and {max(run.document.words)} words: take {ways}."
            )
