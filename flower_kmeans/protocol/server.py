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

from flower_kmeans.algorithms.base import State
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
from flower_kmeans.protocol.run import Run
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
from flower_kmeans.secagg.base import SumContext, SumError
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
    """How a run went, beside `Server.incidents`; nothing here follows from records."""

    n_slots: int = 0
    """M, in the last round."""
    committee: CommitteeReport | None = None
    """That of the last round, where a committee adds."""
    answers: list[int] = field(default_factory=list)
    """|S| of each round that is closed; 0 for a lost one."""
    noise_factors: list[float] = field(default_factory=list)
    """Where noise beyond the plan is removed: for each of these rounds, the standard deviation of
    the noise in the sum over the planned one; 0 for a lost round."""
    lost_rounds: list[int] = field(default_factory=list)
    """Rounds whose sum could not be opened, which the run went on without."""
    attempts: int = 0
    """At all rounds together."""
    repeats: int = 0
    """Of an `Add`."""
    round_trips: int = 0


@dataclass
class _Group:
    """The answers with one tag: whose they are and, without a committee, their sum."""

    slots: list[int] = field(default_factory=list)
    total: bytes = b""


@dataclass
class _Attempt:
    """An attempt at a round."""

    t: int
    number: int
    frame: Frame
    query: bytes | None  # where the server sees the sums, with its tag
    tag: bytes | None
    part_bytes: int  # of one part of an answer, sealed where it is a share
    store: ShareStore | None  # where a committee adds
    wanted: list[Participant]  # whose envelopes are asked for
    requests: dict[int, Ask] = field(default_factory=dict)
    groups: dict[bytes, _Group] = field(default_factory=dict)  # by tag
    have: int = 0  # how many answers can be added up


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
    incidents, dropped : list of Dropped
        Everything that was not an orderly reply; and clients that a round went on without, with the
        last incident that explains it. Round 0 is the enrolment, ``n_rounds + 1`` the delivery.
    delivered : set of int
        Nodes that have the result.
    head, n_opened : int
        Rounds that are closed; the last one whose sum the server has opened, 0 where it is blind.
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
        self._attempt: _Attempt | None = None
        self._enough: Callable[[], bool] = lambda: False

    @property
    def n_clients(self) -> int:
        """Number of clients that have a slot."""
        return len(self._cohort.clients)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every client stated that it keeps a ledger, which only they can know."""
        return bool(self._cohort.clients) and all(
            client.public.ledger for client in self._cohort.clients.values()
        )

    def has_enough(self) -> bool:
        """Return whether the round trip that is under way could end with what has come."""
        return self._enough()

    # ------------------------------------------------------------------ set-up

    def set_up(self, node_ids: Iterable[int], trip: Trip) -> None:
        """Enrol the clients, give them slots, and choose the committee and the group key.

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
        epoch = self._cohort.better_epoch()
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
        self._enough = lambda: len(cohort.taken) >= least and cohort.can_add()
        requests = dict.fromkeys(nodes, Enrol(doc=self.run.data))
        for _ in self._take(0, self._send(trip, "enrol", requests), Enrolled):
            pass

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
                    self._offer(frame, node_id, reply, everyone)
        self._keys.accept_offer()

    def _offer(
        self, frame: Frame, node_id: int, reply: Wrapped | Answer, wanted: Sequence[Participant]
    ) -> None:
        distributor = self._cohort.clients[node_id]
        for client in self._keys.offer(frame, distributor, reply.envelopes, wanted):
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
        slot, software, ledger = -1, "", False
        client = self._cohort.clients.get(node_id)
        if client is not None:
            slot, software, ledger = client.slot, client.public.software, client.public.ledger
        self.incidents.append(Dropped(slot, node_id, t, reason, kind, software, ledger))

    def _note_dropped(self, t: int, node_ids: Iterable[int]) -> None:
        """Record that a round went on without these nodes, each with the last incident."""
        last = {incident.node_id: incident for incident in self.incidents if incident.round == t}
        for node_id in node_ids:
            client = self._cohort.clients.get(node_id)
            slot = -1 if client is None else client.slot
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
        sharing, roster = frame.sharing, self._roster
        if sharing is not None:
            is_drawn = roster is not None and frame.n_slots > sharing.n_positions
            self.proceedings.committee = CommitteeReport(
                slots=frame.committee_slots,
                n_present=len(frame.present),
                n_corrupt=sharing.n_corrupt,
                privacy=sharing.privacy,
                packing=sharing.packing,
                epoch=self.run.document.epoch if is_drawn else None,
                beacon=roster.beacon.hex() if roster is not None and is_drawn else "",
            )
        return frame

    def _located(self, attempt: _Attempt, client: Participant) -> dict[str, Any]:
        """Return what `Ask` and `Add` have in common for one client."""
        frame = attempt.frame
        return {
            "doc_hash": self.run.doc_hash,
            "t": attempt.t,
            "attempt": attempt.number,
            "n_slots": frame.n_slots,
            "root": frame.tree.root,
            "slot": client.slot,
            "path": frame.tree.path(client.slot),
            "committee": frame.committee_list,
            "tags": b"" if self._roster is None else frame.tags_for(client),
            "doc": b"" if client.node_id in self._documented else self.run.data,
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
        query = None if self.run.trust.is_blind else self._encoded_query()
        self._attempt = self._open_attempt(1, query)
        self.proceedings.round_trips += 1
        return self._attempt.requests

    def _encoded_query(self) -> bytes:
        """Return the next round's query, the same in all attempts, as it travels."""
        query = self.run.algorithm.query(self.state)
        try:
            data = encode_arrays(dict(query.arrays))
            self.run.algorithm.check_query(query)
        except MessageError as error:
            raise RunError(f"Round {query.round} cannot be asked for. {error}") from None
        return data

    def _open_attempt(self, number: int, query: bytes | None) -> _Attempt:
        run, frame, t = self.run, self._next_frame(), self.head + 1
        tag = None if query is None else query_tag(ZERO, ZERO, query)
        size, store = removal.part_bytes(run, run.document.words[t - 1], frame.sharing), None
        if frame.sharing is not None:
            size += SEAL_BYTES
            store = ShareStore(frame.sharing, size)
        wanted = self._keys.lacking(frame) if run.trust.is_blind else []
        chosen = self._keys.distributors(frame, self._differing) if wanted else []
        attempt = _Attempt(t, number, frame, query, tag, size, store, wanted)
        self.proceedings.attempts += 1
        for client in frame.slots.values():
            peers = wanted if client in chosen else []
            attempt.requests[client.node_id] = Ask(
                **self._located(attempt, client),
                query=query,
                entries=self._lacking(client.node_id),
                peers=tuple(frame.peer(peer, client) for peer in peers),
            )
        least = run.document.min_clients
        self._enough = lambda: (
            any(len(group.slots) >= least for group in attempt.groups.values())
            and (not run.trust.is_blind or self._keys.exists)
        )
        return attempt

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
            attempt = self._open_attempt(attempt.number + 1, attempt.query)
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
            if isinstance(reply, Answer):
                self._take_answer(attempt, node_id, reply)
            elif isinstance(reply, Refusal) and reply.code == Code.KEY:
                unopened.append(node_id)
        if self.run.trust.is_blind:
            self._keys.accept_offer()
            self._keys.refused(unopened, self.run.document.min_clients)

    def _take_answer(self, attempt: _Attempt, node_id: int, reply: Answer) -> None:
        """Keep one answer, where it may count."""
        request, slot = attempt.requests[node_id], self._cohort.clients[node_id].slot
        self._heads[node_id] = attempt.t - 1
        if request.wrap_for is not None:
            self._keys.holders.add(node_id)
        if request.peers:
            self._offer(attempt.frame, node_id, reply, attempt.wanted)
        if node_id in self._banned:
            return
        group = attempt.groups.setdefault(reply.tag, _Group())
        if attempt.tag in (None, reply.tag):
            if attempt.store is not None:
                attempt.store.put(slot, reply.sealed)
            elif not self._add_up(attempt, group, reply):
                self._note(node_id, attempt.t, MALFORMED, "failed")
                return
        group.slots.append(slot)

    def _add_up(self, attempt: _Attempt, group: _Group, reply: Answer) -> bool:
        """Add words to the sum of their group as they arrive; return whether they are well-formed.

        A checksum word in the clear must be 1: no client could detect it in the sum.
        """
        secure_sum = self.run.trust.sum
        if len(reply.words) != attempt.part_bytes:
            return False
        if not secure_sum.is_protected and reply.words[-8:] != u64(1):
            return False
        parts = [group.total, reply.words] if group.total else [reply.words]
        group.total = secure_sum.combine(parts, self._sum_context(attempt, reply.tag))
        return True

    def _sum_context(self, attempt: _Attempt, tag: bytes) -> SumContext:
        frame, t = attempt.frame, attempt.t
        root, com = frame.tree.root, frame.digest
        digest = round_context(
            self.run.doc_hash, t, attempt.number, frame.n_slots, root, com, self._h, tag
        )
        n_words = self.run.document.words[t - 1]
        return SumContext(digest, n_words, frame.n_slots, sharing=frame.sharing)

    # ------------------------------------------------------------------ closing a round

    def _close(self, attempt: _Attempt, trip: Trip) -> bool:
        """Close the round if enough clients answered one query; return whether it is closed."""
        tag, slots = self._choose(attempt)
        adding = None
        if attempt.store is not None:
            adding = _Adding(self, attempt, attempt.store, tag, slots)
            adding.leave_out()
        attempt.have = len(slots)
        if len(slots) < self.run.document.min_clients:
            return False
        if adding is not None:
            has_sum = adding.run(trip)
        else:
            has_sum = self._settle(attempt, tag, slots, {0: self._with_noise(attempt, tag)})
        if not has_sum:
            self._lose(attempt)
        return True

    def _choose(self, attempt: _Attempt) -> tuple[bytes, list[int]]:
        """Return the tag whose answers are added up, and their slots; note all other clients."""
        groups, slots = attempt.groups, attempt.frame.slots
        if not groups:
            return b"", []
        tag = attempt.tag or max(groups, key=lambda each: (len(groups[each].slots), each))
        self._differing = {
            slots[slot].node_id for each in groups if each != tag for slot in groups[each].slots
        }
        for node_id in sorted(self._differing):
            self._note(node_id, attempt.t, DIFFERS, "differs")
            if self._has_early_key and attempt.t == 1:
                self._keys.forget(node_id)  # the tag is keyed, perhaps with another group key
        return tag, sorted(groups[tag].slots) if tag in groups else []

    def _with_noise(self, attempt: _Attempt, tag: bytes) -> bytes:
        """Return a sum with the server's noise. It is drawn once: an entry is never replaced."""
        run, total = self.run, attempt.groups[tag].total
        if run.trust.noise_by != "server":
            return total
        noise = server_noise(run.algorithm, run.plan, attempt.t, Stream.fresh())
        part = run.trust.sum.encode(np.append(noise, np.int64(0)))
        return run.trust.sum.combine([total, part], self._sum_context(attempt, tag))

    def _settle(
        self, attempt: _Attempt, tag: bytes, slots: Sequence[int], combined: Mapping[int, bytes]
    ) -> bool:
        """Close a round with its sum: in an entry for clients, or in the state where it is seen.

        It returns whether the sum opens, as far as the server sees it.
        """
        t, frame, run = attempt.t, attempt.frame, self.run
        survivors = frame.bits(slots)
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
            if int(opened.vector[-1]) != len(slots):
                return False
            for position in opened.liars:
                self._note(frame.present[position].node_id, t, FALSE_SHARE, "liar")
            if run.document.levels:
                self.proceedings.noise_factors.append(opened.factor)
            answer = run.algorithm.unflatten(opened.vector[:-1], t, len(slots) / frame.n_slots)
            self.state = run.algorithm.update(self.state, answer, self._generator(t))
            self.n_opened = t
        self.head = t
        self.proceedings.answers.append(len(slots))
        left_out = (client for slot, client in frame.slots.items() if slot not in slots)
        self._note_dropped(t, sorted(client.node_id for client in left_out))
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


class _Adding:
    """How the committee adds the shares of one attempt, and what its members gave, by position."""

    def __init__(
        self, server: Server, attempt: _Attempt, store: ShareStore, tag: bytes, slots: list[int]
    ) -> None:
        self._server, self._attempt, self._store, self._tag = server, attempt, store, tag
        self._slots = slots  # S
        self._frame, self._keys = attempt.frame, server._keys
        self._is_blind = server.run.trust.is_blind
        self._threshold = store.sharing.threshold
        self._skipped: set[int] = set()  # positions that are not asked
        self._start_over()

    def _start_over(self) -> None:
        self._shares: dict[int, bytes] = {}
        self._key_ids: dict[int, bytes] = {}
        self._named: dict[int, int] = {}  # the slot that a position named
        self._unopened: set[int] = set()  # positions whose envelope did not open

    def _note(self, client: Participant, reason: str, kind: IncidentKind) -> None:
        self._server._note(client.node_id, self._attempt.t, reason, kind)

    def leave_out(self) -> None:
        """Remove dealers from the slots and skip positions, until no share of these is missing.

        A dealer leaves the share of a position out if tag or key are wrong, so one of the two is
        not honest: whichever more of the others disagree with goes first.
        """
        frame = self._frame
        missing = {slot: self._store.missing(slot) & frame.present.keys() for slot in self._slots}
        while any(missing.values()):
            counts = Counter(j for positions in missing.values() for j in positions)
            position, times = max(counts.items(), key=lambda item: (item[1], item[0]))
            dealer = max(missing, key=lambda slot: (len(missing[slot]), frame.slots[slot].node_id))
            is_spare = len(frame.present) - len(self._skipped) > self._threshold
            if times >= len(missing[dealer]) and is_spare:
                self._skipped.add(position)
                self._note(frame.present[position], SKIPPED, "skipped")
                self._server._cohort.give_up(frame.present[position].slot)
                for positions in missing.values():
                    positions.discard(position)
            else:
                del missing[dealer]
                self._slots.remove(dealer)
                self._note(frame.slots[dealer], SKIPPED, "skipped")

    def run(self, trip: Trip) -> bool:
        """Let the committee add the shares of the survivors; return whether the round has its sum.

        Who did not answer is asked again with the same request, which costs no privacy. Members
        that reported shares that do not open have added nothing: if these are enough, they are
        asked again without the dealers that were named.
        """
        server = self._server
        for number in range(1 + N_REPEATS):
            done = self._skipped | self._shares.keys()
            asked = [position for position in self._frame.present if position not in done]
            if not asked:
                break
            server.proceedings.repeats += number > 0
            self._ask(asked, trip)
            if self._is_blind and not self._agree_on_key():
                continue
            out = self._leave_out_named()
            if len(self._shares) >= self._threshold and server._settle(
                self._attempt, self._tag, self._slots, self._shares
            ):
                return True
            left = [slot for slot in self._slots if slot not in out]
            is_crowd = len(left) >= server.run.document.min_clients
            if out and len(self._named) >= self._threshold and is_crowd:
                self._slots = left
                self._start_over()
        return False

    def _ask(self, asked: Sequence[int], trip: Trip) -> None:
        """Send an `Add` to these positions, in parts if it is too much to send at once."""
        server, attempt, frame = self._server, self._attempt, self._frame
        at_once = max(1, _ADD_BYTES // (len(self._slots) * (attempt.part_bytes + len(ZERO))))
        survivors = pack_survivors(frame.bits(self._slots))
        public_keys = b"".join(frame.slots[slot].public.public_key for slot in self._slots)
        # One more than a sum needs shows a false share, but one client may always be silent.
        possible = len(self._shares) + len(asked) - 1
        enough = max(self._threshold, min(self._threshold + 1, possible))
        for first in range(0, len(asked), at_once):
            needed = enough - max(0, len(asked) - first - at_once)
            server._enough = lambda n=needed: len(self._shares) >= n  # type: ignore[misc]
            part = {frame.present[j].node_id: j for j in asked[first : first + at_once]}
            requests = {
                node_id: Add(
                    **server._located(attempt, frame.present[j]),
                    h=server._h,
                    tag=self._tag,
                    survivors=survivors,
                    public_keys=public_keys,
                    sealed=tuple(self._store.parts(j, self._slots)),
                )
                for node_id, j in part.items()
            }
            for node_id, reply in server._take(
                attempt.t, server._send(trip, "add", requests), Added
            ):
                if node_id in requests:
                    if isinstance(reply, Added) and requests[node_id].wrap_for is not None:
                        self._keys.holders.add(node_id)
                    self._take_share(part[node_id], reply)

    def _take_share(self, position: int, reply: Reply) -> None:
        if isinstance(reply, Refusal) and reply.code == Code.KEY:
            if reply.slot is None:
                self._unopened.add(position)
            else:
                self._named[position] = reply.slot
        elif isinstance(reply, Added):
            self._unopened.discard(position)
            # What is false where the server opens is found then.
            if self._is_blind and len(reply.share) != self._attempt.part_bytes:
                self._note(self._frame.present[position], MALFORMED, "failed")
            else:
                self._shares[position], self._key_ids[position] = reply.share, reply.key_id

    def _agree_on_key(self) -> bool:
        """Keep the sum-shares under the group key that most members have.

        It returns ``False`` if too few have one: then all are asked again with another one, which
        only the first round allows.
        """
        times = Counter(self._key_ids.values())
        key_id = max(times, key=lambda each: (times[each], each), default=b"")
        others = {j for j, other in self._key_ids.items() if other != key_id}
        n_without = len(self._skipped) + len(others | self._unopened)
        too_few = len(self._frame.present) - n_without < self._threshold
        if too_few and self._attempt.t == 1 and self._keys.has_offers and not self._named:
            self._keys.start_over()
            self._start_over()
            return False
        for position in others:
            del self._shares[position], self._key_ids[position]
            self._keys.forget(self._frame.present[position].node_id)
        unopened = {self._frame.present[position].node_id for position in self._unopened}
        self._keys.holders -= unopened
        self._keys.refused(unopened, 0)
        return True

    def _leave_out_named(self) -> set[int]:
        """Return the dealers that more members named than may be corrupt: in no sum any more."""
        out = set[int]()
        for slot, times in Counter(self._named.values()).items():
            if times > self._store.sharing.n_corrupt and slot in self._slots:
                out.add(slot)
                client = self._frame.slots[slot]
                if client.node_id not in self._server._banned:
                    self._server._banned.add(client.node_id)
                    self._note(client, NAMED, "named")
                    self._server._cohort.give_up(slot)
        return out


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
    """Return the largest messages in bytes, by their kind, and the ``relay`` of a round."""
    document, trust, sharing, n_parts = run.document, run.trust, None, 1
    n_slots = max(n_clients, document.min_clients)
    if trust.has_committee:
        n_parts = min(n_slots, MAX_POSITIONS)
        f = corrupt_positions(n_slots, document.max_colluders)
        sharing = trust.sum.set_up(n_parts, f, n_parts)
    part = removal.part_bytes(run, max(document.words), sharing) + _PART_OVERHEAD
    clients = _OVERHEAD + _PEER_BYTES * n_slots
    sizes = {"ask": clients, "answer": clients + n_parts * part}
    if trust.is_blind:
        sizes["ask"] += n_parts * part
    else:
        queries = (run.algorithm.query_ranges(t + 1) for t in range(document.rounds))
        sizes["ask"] += max(
            sum(8 * math.prod(shape) for shape, _, _ in query.values()) for query in queries
        )
    if trust.has_committee:
        sizes |= {"add": clients + n_slots * part, "relay": n_slots * n_parts * part}
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
