"""The server's side of a run, in the order of docs/protocol.md, sections 5 and 6.

A server knows nothing of Flower's messages or clocks. It makes requests per node and hands them to
a `Trip`, which carries them and yields the replies. The numbered rules about faults are those of
section 6. No client checks them, and none costs privacy: one sum of a round opens.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from flower_kmeans.algorithms.base import State
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.plausibility import Finding, findings_of
from flower_kmeans.errors import ConfigurationError, MessageError, RunError, TooFewClientsError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import messages, removal, transcript
from flower_kmeans.protocol.cohort import (
    DISTRIBUTORS,
    MALFORMED,
    TWICE,
    Client,
    Cohort,
    Frame,
    ShareStore,
)
from flower_kmeans.protocol.committee import MAX_POSITIONS, corrupt_positions
from flower_kmeans.protocol.messages import Added, Answer, Ask, Code, Enrolled, Refusal, Reply
from flower_kmeans.protocol.noise import server_noise
from flower_kmeans.protocol.results import encode_result, read_result, result_of
from flower_kmeans.protocol.roster import Roster
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import MAX_MESSAGE, encode, encode_arrays
from flower_kmeans.report.report import CommitteeReport, Dropped, Proceedings
from flower_kmeans.report.report import Kind as IncidentKind
from flower_kmeans.secagg.base import SumContext, SumError
from flower_kmeans.secagg.hashing import u64
from flower_kmeans.secagg.key_agreement import SEAL_BYTES

Kind = Literal["enrol", "ask", "add", "abort"] | messages.Step
R = TypeVar("R", bound=Reply)
Replies = Iterable[tuple[int, Reply | str]]
"""Node and reply; a string states why there is no orderly reply."""
HasEnough = Callable[[], bool]
"""Whether the server could go on without further replies to the round trip that is under way."""
Trip = Callable[[Kind, Mapping[int, messages.Request], HasEnough], Replies]
"""Sends requests by node, and yields each node with its reply or why there is none, as they come.
Replies to the enrolments that `Server.join` returned may come too."""

MAX_RELAY = 2**31  # bytes of shares that a server passes on in one round
N_REPEATS = 2  # of an `Add`, for those who did not answer it
_ADD_BYTES = 256 * 2**20  # of all that are under way at once
_OVERHEAD = 2**20  # of a message, beside what grows with words and clients
# A peer has a key of 32 bytes and a tag of 16, with the names of its fields.
_PEER_BYTES = 80
_PART_OVERHEAD = 32

NO_ANSWER = "No answer in time."
STRAY = "The answer belonged to another run."
DIFFERS = "The client's query or history differs from that of most clients."
FALSE_SHARE = "The client's sum-share is false."
SKIPPED = "Other clients could not share with the client."
NAMED = "The client's shares did not open for others."


@dataclass
class _Attempt:
    """An attempt at a round."""

    t: int
    number: int
    frame: Frame
    query: bytes | None  # where the server sees the sums
    tag: bytes  # of the answers that are added up; empty until it is known
    part_bytes: int  # of one part of an answer, sealed where it is a share
    store: ShareStore
    members: dict[int, Client]  # who adds the answers up, by position
    requests: dict[int, Ask] = field(default_factory=dict)
    answers: dict[bytes, list[Client]] = field(default_factory=dict)  # who gave them, by tag
    sums: dict[bytes, bytes] = field(default_factory=dict)  # by tag, without a committee
    contexts: dict[bytes, SumContext] = field(default_factory=dict)  # by tag
    dealers: list[Client] = field(default_factory=list)  # S: those whose answers are added up
    replies: dict[int, Added | Refusal] = field(default_factory=dict)  # of members; or `Code.KEY`

    @property
    def threshold(self) -> int:
        """Sum-shares that open the sum; 0 without a committee."""
        return self.frame.sharing.threshold if self.frame.sharing else 0

    @property
    def shares(self) -> dict[int, bytes]:
        """Sum-shares by position."""
        return {j: reply.share for j, reply in self.replies.items() if isinstance(reply, Added)}

    @property
    def named(self) -> dict[int, int | None]:
        """By position, the slot whose share did not open; ``None`` if the envelope did not."""
        return {j: reply.slot for j, reply in self.replies.items() if isinstance(reply, Refusal)}


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
    """

    def __init__(self, run: Run, *, seed: int = 0, roster: Roster | None = None) -> None:
        if (None if roster is None else roster.digest) != run.document.roster:
            raise ConfigurationError(
                "Expected the roster that the run document names. Got another, or none."
            )
        self.run, self._seed, self._roster = run, seed, roster
        self.proceedings = Proceedings()
        self.incidents: list[Dropped] = []  # all that was not an orderly reply
        self.dropped: list[Dropped] = []  # who was missing in a round, with the last incident
        self.delivered: set[int] = set()  # nodes that have the result
        self.head = self.n_opened = 0  # rounds that are closed; the last whose sum the server saw
        self.noise_factor = 1.0  # of the last sum: deviation of its noise over the planned one
        self.findings: list[Finding] = []  # of sums that it saw, what no records explain
        self.state: State = run.algorithm.initial_state(self._generator(0))
        self._begin(run)

    def _begin(self, run: Run) -> None:
        """Forget all clients: no session of theirs is for this document."""
        self.run = run  # beyond 64 slots perhaps with another epoch after `set_up`
        self._cohort = Cohort(run, self._roster)
        self._entries: dict[messages.Entry, int] = {}  # with their lengths
        self._h = transcript.first_hash(run.doc_hash) if run.trust.is_blind else ZERO
        self._attempt: _Attempt | None = None
        self.has_enough: HasEnough = lambda: False  # for the round trip under way

    def _generator(self, number: int) -> np.random.Generator | None:
        """Return the randomness of one step; none where clients could take the same step."""
        return None if self.run.algorithm.replayable else public_generator(self._seed, number)

    @property
    def n_clients(self) -> int:
        """Number of clients that have a slot."""
        return len(self._cohort.clients)

    @property
    def all_keep_ledgers(self) -> bool:
        """Whether every client stated that it keeps a ledger, which only they can know."""
        clients = self._cohort.clients.values()
        return bool(clients) and all(client.public.ledger for client in clients)

    # ------------------------------------------------------------------ set-up (section 5)

    def set_up(self, node_ids: Iterable[int], trip: Trip) -> None:
        """Enrol the clients, give them slots, and choose the committee and the group key.

        A `TooFewClientsError` if too few enrolled, a `ConfigurationError` if messages to so many
        would be too long, a `RunError` if no client made the group key.
        """
        nodes = sorted(node_ids)
        self._enrol(nodes, trip)
        epoch = self._cohort.better_epoch()
        if epoch is not None:  # another document, so clients begin other sessions
            document = msgspec.structs.replace(self.run.document, epoch=epoch)
            self._begin(replace(self.run, document=document))
            self._enrol(nodes, trip)
        n_taken, least = len(self._cohort.claims), self.run.document.min_clients
        if n_taken < least:
            taken = {one.node_id for claims in self._cohort.claims.values() for one in claims}
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
        self._cohort.is_closed = self.run.document.keys == "relayed"
        if self._has_early_key:
            self._make_group_key(frame, trip)

    def _enrol(self, nodes: Iterable[int], trip: Trip) -> None:
        cohort, least = self._cohort, self.run.document.min_clients
        self.has_enough = lambda: len(cohort.claims) >= least and cohort.can_add()
        requests = dict.fromkeys(nodes, messages.Enrol(doc=self.run.data))
        list(self._take(0, self._send(trip, "enrol", requests), Enrolled))

    def join(self, node_ids: Iterable[int]) -> dict[int, messages.Enrol]:
        """Return enrolments for nodes that came late; relayed keys serve the first clients only."""
        new = set() if self._cohort.is_closed else set(node_ids) - self._cohort.known
        return dict.fromkeys(sorted(new), messages.Enrol(doc=self.run.data))

    @property
    def _has_early_key(self) -> bool:
        """Whether clients need the group key for round 1, so it takes a round trip."""
        return self.run.trust.is_blind and not self.run.trust.has_committee

    def _make_group_key(self, frame: Frame, trip: Trip) -> None:
        """Let key distributors make the group key in a round trip; ask others if none replies."""
        cohort, members = self._cohort, list(frame.present.values())
        self.has_enough = lambda: bool(cohort.offers)
        for start in range(0, len(members), DISTRIBUTORS):
            requests = {
                one.node_id: messages.Keys(
                    doc_hash=self.run.doc_hash,
                    peers=tuple(frame.peer(client, one) for client in frame.slots.values()),
                )
                for one in members[start : start + DISTRIBUTORS]
            }
            replies = self._send(trip, "keys", requests)
            for client, reply in self._take(0, replies, messages.Wrapped):
                if isinstance(reply, messages.Wrapped):
                    peers = requests[client.node_id].peers
                    cohort.offer(frame, client, peers, reply.envelopes)
            if cohort.offers:
                return cohort.accept_offer()
        raise RunError("Expected a client that makes the group key. Got none." + self._reasons(0))

    # ------------------------------------------------------------------ replies (rule 1)

    def _send(self, trip: Trip, kind: Kind, requests: Mapping[int, messages.Request]) -> Replies:
        self.proceedings.round_trips += 1
        return trip(kind, requests, self.has_enough)

    def _take(
        self, t: int, replies: Replies, kind: type[R]
    ) -> Iterator[tuple[Client, R | Refusal]]:
        """Yield orderly replies and refusals of clients, and note all others; let nodes enrol."""
        seen: set[int] = set()
        for node_id, reply in replies:
            client = self._cohort.clients.get(node_id)
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
                self._refused(client, t, reply)
                yield client, reply
            elif isinstance(reply, kind):
                seen.add(node_id)
                client.has_document = True
                yield client, reply
            else:
                self._note(node_id, t, MALFORMED, "failed")

    def _refused(self, client: Client, t: int, refusal: Refusal) -> None:
        """Note a refusal; renew the client, or remember what it lacks. It never ends the run."""
        code = Code(refusal.code)
        renewed = code == Code.RENEW and self._cohort.renew(client, refusal)
        self._note(client.node_id, t, code.sentence, "renewed" if renewed else "refused")
        if code == Code.NEED:
            client.has_document = client.has_key = False
            # It followed what it was sent, if that was not all; otherwise it may have nothing.
            client.head = client.sent if client.sent < len(self._entries) else 0
            client.sent = 0

    def _note(self, node_id: int, t: int, reason: str, kind: IncidentKind = "refused") -> None:
        client = self._cohort.clients.get(node_id)
        stated = (client.public.software, client.public.ledger) if client else ()
        slot = client.slot if client else -1
        self.incidents.append(Dropped(slot, node_id, t, reason, kind, *stated))

    def _note_dropped(self, t: int, node_ids: Iterable[int]) -> None:
        """Record that a round went on without these nodes, each with the last incident."""
        last = {incident.node_id: incident for incident in self.incidents if incident.round == t}
        for node_id in sorted(node_ids):
            client = self._cohort.clients.get(node_id)
            silent = Dropped(client.slot if client else -1, node_id, t, NO_ANSWER, "silent")
            self.dropped.append(last.get(node_id, silent))

    def _reasons(self, t: int) -> str:
        missing = (*self.incidents, *self.dropped)
        reasons = sorted({one.reason for one in missing if one.round == t})
        return f" Reasons: {' '.join(reasons)}" if reasons else ""

    # ------------------------------------------------------------------ `ask`

    def ask(self) -> dict[int, Ask]:
        """Begin the next round and return its first requests, whose query clients must accept."""
        data, algorithm = None, self.run.algorithm
        if not self.run.trust.is_blind:
            query = algorithm.query(self.state)
            try:
                data = encode_arrays(dict(query.arrays))
                algorithm.check_query(query)
            except MessageError as error:
                raise RunError(f"Round {query.round} cannot be asked for. {error}") from None
        self._attempt = self._open_attempt(1, data)
        self.proceedings.round_trips += 1
        return self._attempt.requests

    def _open_attempt(self, number: int, query: bytes | None) -> _Attempt:
        run, cohort, frame, t = self.run, self._cohort, self._next_frame(), self.head + 1
        tag = b"" if query is None else transcript.query_tag(ZERO, ZERO, query)
        size = removal.part_bytes(run, run.document.words[t - 1], frame.sharing)
        size += SEAL_BYTES if frame.sharing else 0
        store = ShareStore(frame.sharing, size)
        attempt = _Attempt(t, number, frame, query, tag, size, store, dict(frame.present))
        self.proceedings.attempts += 1
        wanted = [c for c in frame.slots.values() if run.trust.is_blind and not c.wraps]
        chosen = cohort.distributors(frame) if wanted else []
        for client in frame.slots.values():
            peers = wanted if client in chosen else []
            attempt.requests[client.node_id] = Ask(
                **self._located(attempt, client),
                query=query,
                entries=self._lacking(client),
                peers=tuple(frame.peer(peer, client) for peer in peers),
            )
        least = run.document.min_clients
        self.has_enough = lambda: (
            any(len(clients) >= least for clients in attempt.answers.values())
            and (not run.trust.is_blind or bool(cohort.offers) or cohort.uses_key)
        )
        return attempt

    def _next_frame(self) -> Frame:
        frame, roster = self._cohort.frame(), self._roster
        self.proceedings.n_slots = frame.n_slots
        if frame.committee and frame.sharing:
            sharing = frame.sharing
            drawn = roster if roster is not None and len(roster) > sharing.n_positions else None
            self.proceedings.committee = CommitteeReport(
                frame.committee.slots,
                len(frame.present),
                sharing.n_corrupt,
                sharing.privacy,
                sharing.packing,
                epoch=self.run.document.epoch if drawn else None,
                beacon=drawn.beacon.hex() if drawn else "",
            )
        return frame

    def _located(self, attempt: _Attempt, client: Client) -> dict[str, Any]:
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
            "committee": frame.encoded,
            "tags": b"" if self._roster is None else frame.tags_for(client),
            "doc": b"" if client.has_document else self.run.data,
            "wrap_for": client.wrap,
        }

    def _lacking(self, client: Client) -> tuple[messages.Entry, ...]:
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

        A `TooFewClientsError` if too few clients answered in all attempts, a `RunError` if the
        round is lost and the run cannot go on without its sum.
        """
        attempt, document = self._attempt, self.run.document
        if attempt is None:
            raise RunError("Expected `ask` before the answers to it.")
        while True:
            with closing(attempt.store):
                self._collect(attempt, replies)
                self._choose(attempt)
                self._leave_out(attempt)
                if len(attempt.dealers) >= document.min_clients:
                    if not self._make_sum(attempt, trip):
                        self._lose(attempt)
                    break
            if attempt.number == document.max_attempts:
                answered = {one.node_id for one in attempt.dealers}
                self._note_dropped(attempt.t, self._cohort.clients.keys() - answered)
                raise TooFewClientsError(
                    f"Expected at least min_clients={document.min_clients} answers to one query "
                    f"in round {attempt.t} of {document.rounds}. Got {len(attempt.dealers)} of "
                    f"{self.n_clients} in the last of {document.max_attempts} attempts."
                    f"{self._reasons(attempt.t)}"
                )
            attempt = self._open_attempt(attempt.number + 1, attempt.query)
            replies = self._send(trip, "ask", attempt.requests)
        self._attempt = None

    def _collect(self, attempt: _Attempt, replies: Replies) -> None:
        """Take the answers, and the envelopes that came with them."""
        cohort, unopened = self._cohort, list[Client]()
        for client, reply in self._take(attempt.t, replies, Answer):
            if isinstance(reply, Answer):
                self._take_answer(attempt, client, reply)
            elif reply.code == Code.KEY:
                unopened.append(client)
        if self.run.trust.is_blind:
            cohort.accept_offer()
            for client in unopened:
                del client.wraps[:1]  # the next one is of the same key
            n_with_key = sum(client.has_key for client in cohort.clients.values())
            if unopened and cohort.offers and n_with_key < self.run.document.min_clients:
                cohort.change_key()

    def _take_answer(self, attempt: _Attempt, client: Client, reply: Answer) -> None:
        """Keep one answer, where it may count."""
        request = attempt.requests[client.node_id]
        client.head = attempt.t - 1
        client.has_key |= request.wrap_for is not None
        if request.peers:
            self._cohort.offer(attempt.frame, client, request.peers, reply.envelopes)
        if client.is_banned:
            return
        clients = attempt.answers.setdefault(reply.tag, [])
        if attempt.tag in (b"", reply.tag):
            if attempt.frame.sharing:
                attempt.store.put(client.slot, reply.sealed)
            elif not self._add_up(attempt, reply):
                self._note(client.node_id, attempt.t, MALFORMED, "failed")
                return
        clients.append(client)

    def _add_up(self, attempt: _Attempt, reply: Answer) -> bool:
        """Add words to the sum of their tag as they arrive; return whether they are well-formed."""
        secure_sum, sums = self.run.trust.sum, attempt.sums
        if len(reply.words) != attempt.part_bytes:
            return False
        # A checksum word in the clear must be 1: no client could detect it in the sum.
        if not secure_sum.is_protected and reply.words[-8:] != u64(1):
            return False
        parts = [sums[reply.tag], reply.words] if reply.tag in sums else [reply.words]
        sums[reply.tag] = secure_sum.combine(parts, self._sum_context(attempt, reply.tag))
        return True

    def _sum_context(self, attempt: _Attempt, tag: bytes) -> SumContext:
        if tag not in attempt.contexts:
            frame, t, n_words = attempt.frame, attempt.t, self.run.document.words[attempt.t - 1]
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
        answers, early = attempt.answers, self._has_early_key and attempt.t == 1
        if not attempt.tag and answers:
            # The tag itself breaks ties, so that a repeated run chooses alike.
            attempt.tag = max(answers, key=lambda tag: (len(answers[tag]), tag))
        # Others may have followed another history: their words would not add up.
        attempt.dealers = sorted(answers.pop(attempt.tag, []), key=lambda client: client.slot)
        others = set(chain.from_iterable(answers.values()))
        for client in attempt.frame.slots.values():
            client.differs = client in others
            if client.differs:
                self._note(client.node_id, attempt.t, DIFFERS, "differs")
                if early:  # the tag is keyed, perhaps with another group key
                    self._cohort.forget_key(client)

    def _leave_out(self, attempt: _Attempt) -> None:
        """Leave dealers and members out until no share of one for another is missing (rule 3).

        A dealer leaves the share of a position out if tag or key are wrong, so one of the two is
        not honest: whichever more of the others disagree with goes first.
        """
        members = attempt.members
        missing = {d: attempt.store.missing(d.slot) & members.keys() for d in attempt.dealers}
        while any(missing.values()):
            counts = Counter(chain.from_iterable(missing.values()))
            position, times = max(counts.items(), key=lambda item: (item[1], item[0]))
            client = max(missing, key=lambda dealer: (len(missing[dealer]), dealer.node_id))
            # On a tie a position goes: its client is in the sum all the same.
            if times >= len(missing[client]) and len(members) > attempt.threshold:
                client = members.pop(position)
                self._cohort.give_up(client)
                for positions in missing.values():
                    positions.discard(position)
            else:
                del missing[client]
            self._note(client.node_id, attempt.t, SKIPPED, "skipped")
        attempt.dealers = list(missing)

    # ------------------------------------------------------------------ `add` (rules 4 and 5)

    def _make_sum(self, attempt: _Attempt, trip: Trip) -> bool:
        """Return whether the sum of the answers was made, and opens as far as the server sees."""
        run = self.run
        if attempt.frame.sharing:
            return self._add(attempt, trip)
        total = attempt.sums[attempt.tag]
        if run.trust.noise_by == "server":  # it is drawn once: an entry is never replaced
            noise = server_noise(run.algorithm, run.plan, attempt.t, Stream.fresh())
            # The checksum word counts clients, so noise leaves it alone.
            part = run.trust.sum.encode(np.append(noise, np.int64(0)))
            context = self._sum_context(attempt, attempt.tag)
            total = run.trust.sum.combine([total, part], context)
        return self._settle(attempt, {0: total})

    def _add(self, attempt: _Attempt, trip: Trip) -> bool:
        """Let the committee add the survivors' shares; asking again costs no privacy."""
        for number in range(1 + N_REPEATS):
            asked = [position for position in attempt.members if position not in attempt.shares]
            if not asked:
                break
            self.proceedings.repeats += number > 0
            self._ask_committee(attempt, asked, trip)
            if self.run.trust.is_blind and not self._agree_on_key(attempt):
                continue
            out = self._leave_out_named(attempt)
            shares = attempt.shares
            if len(shares) >= attempt.threshold and self._settle(attempt, shares):
                return True
            left = [dealer for dealer in attempt.dealers if dealer.slot not in out]
            n_named = sum(slot is not None for slot in attempt.named.values())
            is_crowd = len(left) >= self.run.document.min_clients
            # Who named a dealer has not voted: if these are enough, they are asked for a new sum.
            if out and n_named >= attempt.threshold and is_crowd:
                attempt.dealers = left
                attempt.replies.clear()
        return False

    def _ask_committee(self, attempt: _Attempt, asked: Sequence[int], trip: Trip) -> None:
        """Send an `Add` to these positions, in parts if it is too much to send at once."""
        dealers = attempt.dealers
        at_once = max(1, _ADD_BYTES // (len(dealers) * (attempt.part_bytes + len(ZERO))))
        survivors = transcript.pack_survivors(attempt.frame.bits(dealers))
        public_keys = b"".join(dealer.public.public_key for dealer in dealers)
        # One more than a sum needs shows a false share, but one client may always be silent.
        possible = len(attempt.shares) + len(asked) - 1
        enough = max(attempt.threshold, min(attempt.threshold + 1, possible))
        for first in range(0, len(asked), at_once):
            needed = enough - max(0, len(asked) - first - at_once)
            self.has_enough = lambda n=needed: len(attempt.shares) >= n  # type: ignore[misc]
            part = {attempt.members[j].node_id: j for j in asked[first : first + at_once]}
            requests = {
                node_id: messages.Add(
                    **self._located(attempt, attempt.members[j]),
                    h=self._h,
                    tag=attempt.tag,
                    survivors=survivors,
                    public_keys=public_keys,
                    sealed=tuple(attempt.store.parts(j, (dealer.slot for dealer in dealers))),
                )
                for node_id, j in part.items()
            }
            for client, reply in self._take(attempt.t, self._send(trip, "add", requests), Added):
                if client.node_id in requests:
                    had_envelope = requests[client.node_id].wrap_for is not None
                    client.has_key |= had_envelope and isinstance(reply, Added)
                    self._take_share(attempt, part[client.node_id], reply)

    def _take_share(self, attempt: _Attempt, position: int, reply: Added | Refusal) -> None:
        if isinstance(reply, Refusal):
            if reply.code == Code.KEY:
                attempt.replies[position] = reply
        # What is false where the server opens is found then.
        elif self.run.trust.is_blind and len(reply.share) != attempt.part_bytes:
            attempt.replies.pop(position, None)
            self._note(attempt.members[position].node_id, attempt.t, MALFORMED, "failed")
        else:
            attempt.replies[position] = reply

    def _agree_on_key(self, attempt: _Attempt) -> bool:
        """Keep the sum-shares under the most common group key; too few have another one made."""
        cohort, members = self._cohort, attempt.members
        added = {j: each for j, each in attempt.replies.items() if isinstance(each, Added)}
        times = Counter(each.key_id for each in added.values())
        key_id = max(times, key=lambda each: (times[each], each), default=b"")
        others = {j for j, each in added.items() if each.key_id != key_id}
        unopened = {j for j, slot in attempt.named.items() if slot is None}
        names_nobody = len(attempt.named) == len(unopened)
        n_left = len(members) - len(others) - len(unopened)
        if n_left < attempt.threshold and attempt.t == 1 and cohort.offers and names_nobody:
            for client in cohort.clients.values():
                client.has_key = False
            cohort.change_key()
            attempt.replies.clear()
            return False
        for position in others:
            del attempt.replies[position]
            cohort.forget_key(members[position])
        for position in unopened:
            members[position].has_key = False
            del members[position].wraps[:1]
        return True

    def _leave_out_named(self, attempt: _Attempt) -> set[int]:
        """Ban dealers that more members named than may be corrupt, and return their slots."""
        sharing, out = attempt.frame.sharing, set[int]()
        dealers: dict[int | None, Client] = {dealer.slot: dealer for dealer in attempt.dealers}
        for slot, times in Counter(attempt.named.values()).items():
            client = dealers.get(slot)
            if client and sharing and times > sharing.n_corrupt:
                out.add(client.slot)
                if not client.is_banned:
                    client.is_banned = True
                    self._note(client.node_id, attempt.t, NAMED, "named")
                    self._cohort.give_up(client)
        return out

    # ------------------------------------------------------------------ the sum (rule 6)

    def _settle(self, attempt: _Attempt, combined: Mapping[int, bytes]) -> bool:
        """Close a round with its sum, unless the server sees that it does not open."""
        run, t, frame, dealers = self.run, attempt.t, attempt.frame, attempt.dealers
        if run.trust.is_blind:
            self._announce(attempt, combined)
        else:
            context = self._sum_context(attempt, attempt.tag)
            try:
                opened = removal.open_sum(run, t, combined, frame.bits(dealers), context)
            except SumError:
                return False
            # Somebody shared something else than a vector, which no member can see.
            if int(opened.vector[-1]) != len(dealers):
                return False
            for position in opened.liars:
                self._note(frame.present[position].node_id, t, FALSE_SHARE, "liar")
            self.noise_factor = opened.factor
            if run.document.levels:
                self.proceedings.noise_factors.append(opened.factor)
            fraction = len(dealers) / frame.n_slots
            answer = run.algorithm.unflatten(opened.vector[:-1], t, fraction, len(dealers))
            self.findings += findings_of(run.algorithm, self.state, answer, opened.factor)
            self.state = run.algorithm.update(self.state, answer, self._generator(t))
            self.n_opened = t
        self.head = t
        self.proceedings.answers.append(len(dealers))
        self._note_dropped(t, self._cohort.clients.keys() - {one.node_id for one in dealers})
        return True

    def _announce(self, attempt: _Attempt, combined: Mapping[int, bytes]) -> None:
        frame, sharing = attempt.frame, attempt.frame.sharing
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
            shares=tuple(sorted(combined.items())) if sharing else (),
        )
        self._entries[entry] = len(encode(entry))
        context_digest = transcript.entry_context(self.run.doc_hash, self._h, entry)
        self._h = transcript.next_hash(self._h, context_digest, entry)

    def _lose(self, attempt: _Attempt) -> None:
        """Close a round without a sum, where the algorithm can go on without it."""
        t, algorithm = attempt.t, self.run.algorithm
        # Clients of a blind server do not learn that a sum is lost, and would wait for its entry.
        state = None if self.run.trust.is_blind else algorithm.without_sum(self.state)
        if state is None:
            raise RunError(
                f"Expected {attempt.threshold} sum-shares that open the sum of round {t}. Got "
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

    def _finish(self, clients: Iterable[Client]) -> dict[int, messages.Finish]:
        doc_hash = self.run.doc_hash
        if not self.run.trust.is_blind:
            finish = messages.Finish(doc_hash=doc_hash, result=self._result())
            return dict.fromkeys((client.node_id for client in clients), finish)
        return {
            client.node_id: messages.Finish(
                doc_hash=doc_hash, entries=self._lacking(client), wrap_for=client.wrap
            )
            for client in clients
        }

    def _result(self) -> bytes:
        result = result_of(self.run, self.state, self.noise_factor, self.findings)
        if result is None:
            raise RunError("Expected centroids and counts after the last round. Got none.")
        try:
            data = encode_result(result)
            # As a client reads it: better an error here than one refusal from each of them.
            read_result(self.run, data)
        except MessageError as error:
            raise RunError(f"The result cannot be sent to the clients. {error}") from None
        return data

    def take_finished(self, replies: Replies, trip: Trip) -> None:
        """Take the acknowledgements of the delivery; who lacks entries is sent the rest."""
        after = self.run.document.rounds + 1
        for _ in range(1 + len(self._entries)):
            lacking = []
            heads = {client: client.head for client in self._cohort.clients.values()}
            for client, reply in self._take(after, replies, messages.Finished):
                if isinstance(reply, messages.Finished):
                    self.delivered.add(client.node_id)
                elif client.head != heads[client]:
                    lacking.append(client)
            if not lacking:
                break
            replies = self._send(trip, "finish", self._finish(lacking))
        self._note_dropped(after, self._cohort.clients.keys() - self.delivered)


# ------------------------------------------------------------------------------ planned sizes


def planned_sizes(run: Run, n_clients: int) -> dict[str, int]:
    """Return the largest messages in bytes, by their kind, and the ``relay`` of a round."""
    document, trust, sharing, n_parts = run.document, run.trust, None, 1
    n_slots = max(n_clients, document.min_clients)
    if trust.has_committee:
        n_parts = min(n_slots, MAX_POSITIONS)
        n_corrupt = corrupt_positions(n_slots, document.max_colluders)
        sharing = trust.sum.set_up(n_parts, n_corrupt, n_parts)
    part = removal.part_bytes(run, max(document.words), sharing) + _PART_OVERHEAD
    clients = _OVERHEAD + _PEER_BYTES * n_slots
    queries = (run.algorithm.query_ranges(t + 1) for t in range(document.rounds))
    query = max(sum(8 * math.prod(shape) for shape, _, _ in each.values()) for each in queries)
    entry = n_parts * part
    sizes = {"ask": clients + (entry if trust.is_blind else query), "answer": clients + entry}
    if trust.has_committee:
        sizes |= {"add": clients + n_slots * part, "relay": n_slots * entry}
    return sizes


def require_sizes(run: Run, n_clients: int) -> None:
    """Require messages within `wire.MAX_MESSAGE`, and a round's relay within `MAX_RELAY`."""
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
