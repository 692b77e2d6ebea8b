"""The client's side of the protocol: one message of one run (docs/protocol.md, section 6).

A client answers one message at a time from the memory of its session. An error is sent as
a code and nothing else. No refusal depends on records or, apart from the checksum word,
on an unmasked or reconstructed sum. `Conversation` loads the run, takes the slot and
follows the entries. Messages with further steps have a file each: `ask`, `add` and
`finish`. The kind of a run (`kinds.RunKind`) names the function that answers each message.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_kmeans import errors
from flower_kmeans.algorithms.state import Query, State
from flower_kmeans.arrays import IntArray
from flower_kmeans.data.sources import RecordsLike
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import (
    checks,
    leftovers,
    limits,
    messages,
    states,
    transcript,
    wire,
)
from flower_kmeans.protocol import session as sessions
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.kinds import (
    USUAL,
    KindError,
    RunKind,
    kind_of_message,
    kind_shown,
    run_kind,
)
from flower_kmeans.protocol.messages import Code, Entry, Head, Request
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.records import ChangedError, Loaders, Records
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.run import Run, UnacceptableRunError, open_run, verify_plan
from flower_kmeans.protocol.session import ClientSession, Memory, Pairs
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import MAX_SLOTS, encode, tag_of
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import Sharing, SumContext, SumError
from flower_kmeans.secagg.primitives import KEY_BYTES, H
from flower_kmeans.version import stated_software

# Tries to answer a message, each after another process of this node changed the memory of
# the run in the meantime.
_TRIES = 8
log = logging.getLogger("flower_kmeans.client")

refuse_unless = RefuseError.unless


@dataclass(frozen=True, eq=False, repr=False)
class Client:
    """One client, for any number of messages.

    ``on_result`` is called once per run. A repeated ``finish`` calls it again if it failed,
    or if the client was interrupted before it had recorded the end of the run.
    ``load_ids`` returns the ids of the records, in their order, for runs that protect
    persons and for kinds of runs that compare rows. ``load_weights`` returns the weights
    of the records, for runs that weigh them.
    """

    policy: ClientPolicy
    state: RecordDict  # of Flower's context: the memory if the policy names no ledger
    # returns records of shape (n, n_features), in the user's units
    load_records: Callable[[], RecordsLike]
    on_result: Callable[[ClientResult], None] | None = None
    load_ids: Callable[[], Iterable[object]] | None = None
    # of Flower's context; a client with a roster claims its slot for it
    node_id: int = 0
    # work done once for all clients of a simulation
    shared: SharedWork = NO_SHARED_WORK
    load_weights: Callable[[], Any] | None = None
    # Whether on_result gets the client's own sizes of clusters. The clients of a
    # simulation have one result for all of them.
    with_own_sizes: bool = False

    def handle(self, content: RecordDict) -> RecordDict:
        """Return the reply to one message.

        It never raises: an error is sent as a code, and its text stays in the log.
        """
        try:
            reply = self.answer_bytes(wire.from_content(content))
        except Exception as error:
            reply = encode(_refusal(None, error))
        return wire.to_content(reply)

    def answer_bytes(self, data: bytes) -> bytes:
        """Return the encoded reply to one encoded message. It never raises."""
        request: Request | Head | None = None
        try:
            is_long = len(data) > limits.FIRST
            read = messages.read_head if is_long else messages.decode_request
            request = read(data, self.policy.accepted_kinds)
            return encode(self._remembering(request, data))
        except Exception as error:
            return encode(_refusal(request, error))

    def _remembering(self, request: Request | Head, data: bytes) -> messages.Reply:
        """Return the reply, after writing the memory that the policy names."""
        policy = self.policy
        if policy.state_dir is None:
            context = sessions.ContextMemory(self.state)
            whole = self._whole(request, data, context)
            return Conversation(self, context, whole).reply()
        with ledgers.Ledger(policy.state_dir) as ledger:
            limit = ledgers.LifetimeLimit(
                policy.max_total_epsilon,
                policy.max_total_delta,
                policy.max_clients_per_person,
            )
            memory = sessions.LedgerMemory(ledger, limit, policy.state_dir)
            leftovers.erase_ended(policy, ledger)  # files of forgotten runs
            whole = self._whole(request, data, memory)
            for _ in range(_TRIES):
                with suppress(ledgers.MemoryChangedError):
                    return Conversation(self, memory, whole).reply()
        raise RefuseError(Code.INTERNAL, "The memory of the run kept changing.")

    def _whole(self, request: Request | Head, data: bytes, memory: Memory) -> Request:
        """Return a request as a whole; require that a long one is not too long for its run."""
        if not isinstance(request, Head):
            return request
        head = request
        session = memory.load(head.doc_hash)
        is_delivered = session is not None and session.over == sessions.DELIVERED
        if is_delivered and head.kind == "finish":
            # The reply needs nothing but the hash.
            return messages.Finish(doc_hash=head.doc_hash)
        checks.require_not_over(session)
        document = session.document if session else head.doc
        refuse_unless(bool(document), _code_without_document(head.kind == "keys"))
        checks.require_hash(document, head.doc_hash)
        run = self.opened(document)
        checks.require_policy(self.policy, run)
        reason = "Expected a request within the length limit of its run."
        refuse_unless(
            len(data) <= limits.request_limit(run, head), Code.BAD_MESSAGE, reason
        )
        return messages.decode_request(data, self.policy.accepted_kinds)

    def opened(self, document: bytes) -> Run:
        """Return the run of a document, if it is of a kind that the policy accepts."""
        return self.shared.once(open_run, document, self.policy.accepted_kinds)


def _code_without_document(is_keys: bool) -> Code:
    """Return the code that refuses a request of an unknown run."""
    # STALE lets the server ask the next key distributor: this one has lost its memory.
    return Code.STALE if is_keys else Code.NEED


_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (wire.VersionError, Code.VERSION),
    (MessageError, Code.BAD_MESSAGE),
    (KindError, Code.POLICY),
    (UnacceptableRunError, Code.POLICY),
    (ledgers.StaleAnswerError, Code.STALE),
    (ledgers.AnotherAnswerError, Code.CONFLICT),
    (SumError, Code.GARBAGE),
    (errors.BudgetError, Code.LEDGER),
    (errors.LedgerError, Code.LEDGER),
)


def _refusal(request: Request | Head | None, error: Exception) -> messages.Refusal:
    """Return the refusal for an error, and log its reason. Both hold public values only."""
    if isinstance(error, RefuseError):
        refusal = error
    else:
        codes = (code for kind, code in _CODES if isinstance(error, kind))
        refusal = RefuseError(next(codes, Code.INTERNAL), str(error))
    code = refusal.code
    what = "a message"
    doc_hash = None
    if request is not None:
        doc_hash = request.doc_hash
        kind = request.kind if isinstance(request, Head) else tag_of(type(request))
        what = f"'{kind}' of run {doc_hash.hex()[:8]}"
    if code is Code.INTERNAL:
        log.error("A message could not be answered.", exc_info=error)
    else:
        log.warning(
            "Refused %s (%s): %s", what, code.name, refusal, exc_info=refusal.__cause__
        )
    return messages.Refusal(code=code, doc_hash=doc_hash, **refusal.fields)


class Conversation:
    """The handling of one message of one run by a client.

    Parameters
    ----------
    client : Client
        The client that answers.
    memory : Memory
        Memory of the client's sessions, answers and votes.
    request : Request
        The message.

    Attributes
    ----------
    run, session, records
        The run, the client's session in it, and its records. They are set once the run
        document is accepted.
    identity : Identity, optional
        The client's lasting key, where keys come from a roster.
    committee, sharing : optional
        The attempt's committee and its sharing of vectors, once the slot is taken.
    """

    run: Run
    session: ClientSession
    records: Records

    def __init__(self, client: Client, memory: Memory, request: Request) -> None:
        self.client = client
        self._request = request
        self.memory = memory
        self.policy = client.policy
        self.on_result = client.on_result
        self.doc_hash = request.doc_hash
        self.identity: Identity | None = None
        self.committee: Committee | None = None
        self.sharing: Sharing | None = None

    def reply(self) -> messages.Reply:
        """Return the reply, and save the session, also if the request is refused."""
        request = self._request
        session = self.memory.load(self.doc_hash)
        try:
            if session is not None and session.over == sessions.DELIVERED:
                # The reply to the last request was lost.
                reply = _kind_of(request).repeated(request, session)
                if reply is not None:
                    return reply
            if isinstance(request, messages.Abort):
                return self._abort(session)
            self._open(session)
            handler = self.run.kind.handlers[type(request)]
            return handler(self, request)
        except RefuseError as refusal:
            if refusal.code is Code.RENEW:
                refusal.fields = self._public_values()
            raise
        finally:
            if hasattr(self, "session"):
                self.memory.save(self.doc_hash, self.session)

    # ---------------------------------------------------------- the run and its session

    def _open(self, session: ClientSession | None) -> None:
        """Load the session of a run, or begin one if the request has the run document."""
        request = self._request
        checks.require_not_over(session)
        document = session.document if session else getattr(request, "doc", b"")
        is_keys = isinstance(request, messages.Keys)
        refuse_unless(bool(document), _code_without_document(is_keys))
        self._accept(document, is_new=session is None)
        # These messages need no records, which may be gone by then.
        reads_none = isinstance(request, messages.Finish | messages.Hold)
        if session is None or not reads_none:
            are_read = isinstance(request, messages.Ask)
            session = self.records.session(session, are_read=are_read)
        self.session = session

    def _accept(self, data: bytes, *, is_new: bool) -> None:
        """Load a run, and compare it with the present policy, which may be tighter than before."""
        checks.require_hash(data, self.doc_hash)
        self.run = self.client.opened(data)
        is_of_kind = type(self._request) in self.run.kind.handlers
        refuse_unless(is_of_kind, Code.BAD_MESSAGE)
        checks.require_policy(self.policy, self.run)
        if is_new:  # once per session, because a calibration takes long
            self.run.kept.once(verify_plan, self.run)
            self.run.algorithm.require_packages()
        if self.run.document.keys == "roster":
            try:
                self.identity = self.policy.read_identity()
            except errors.ConfigurationError as error:
                raise RefuseError(Code.KEY, str(error)) from None
        checks.require_roster(self.identity, self.run.document)
        self.memory.require_room(self.run.doc_hash, self.run.price)
        client = self.client
        loaders = Loaders(client.load_records, client.load_ids, client.load_weights)
        self.records = Records(self.run, self.policy, self.memory, loaders)

    @cached_property
    def pairs(self) -> Pairs:
        """The secrets that the session shares with other clients."""
        return Pairs(self.doc_hash, self.session, self.identity, self.client.shared)

    def total(self, query: Query) -> IntArray:
        """Return the statistic of all records, (words,); refuse with RENEW if they changed."""
        try:
            return self.records.total(query, self.session)
        except ChangedError:
            self.session = self.records.committed(self.session)
            vars(self).pop("pairs", None)  # they hold keys of the former session
            raise RefuseError(Code.RENEW) from None

    # ------------------------------------------------------------------ enrolment, keys

    def enrol(self, _: messages.Enrol) -> messages.Enrolled:
        """Return the reply to an enrolment: the session's public values."""
        return messages.Enrolled(
            doc_hash=self.doc_hash,
            **self._public_values(),
            ledger=self.policy.state_dir is not None,
            software=stated_software(),
        )

    def _public_values(self) -> dict[str, Any]:
        """Return the session's public values, as an enrolment and a renewal hold them."""
        return {
            "commitment": self.session.commitment,
            "static": self.pairs.static,
            "public_key": self.pairs.public_key,
            "claim": self.pairs.claim(self.client.node_id),
        }

    def keys(self, request: messages.Keys) -> messages.Wrapped:
        """Return the group key that this client offers, as a key distributor, sealed for peers."""
        peers = self.pairs.peers(request.peers)
        checks.require_blind(self.run)
        # Sealing a key that the run already uses needs no minimum of peers.
        if not self.session.group_secret:
            own_key = self.pairs.public_key
            checks.require_peers(self.policy, self.run, peers, own_key)
        key_id, envelopes = self.wrap(peers)
        return messages.Wrapped(
            doc_hash=self.doc_hash, key_id=key_id, envelopes=envelopes
        )

    def hold(self, request: messages.Hold) -> messages.Held:
        """Take the group key of an envelope, and return the reply with its id."""
        checks.require_blind(self.run)
        reason = "Expected envelopes to unseal."
        refuse_unless(bool(request.wraps), Code.BAD_MESSAGE, reason)
        self.take_group_key(request.wraps)
        key_id = primitives.key_id(self.session.group_key, self.doc_hash)
        return messages.Held(doc_hash=self.doc_hash, key_id=key_id)

    def wrap(self, peers: tuple[messages.Peer, ...]) -> tuple[bytes, bytes]:
        """Return the id of the group key that this client has or offers, and its envelopes."""
        session = self.session
        checks.require_distinct(peers)
        # The secret is drawn once per session: clients with another group key would be left
        # out of the sum.
        if not session.group_secret and not session.drawn_secret:
            session.drawn_secret = token(KEY_BYTES)
        secret = session.group_secret or session.drawn_secret
        group_key = primitives.group_key(secret, self.doc_hash)
        with RefuseError.of_key():
            envelopes = self.pairs.wrap(secret, peers)
        return primitives.key_id(group_key, self.doc_hash), envelopes

    def take_group_key(self, wraps: tuple[messages.Wrap, ...]) -> None:
        """Take the group key that envelopes name; another key only before the first entry."""
        session = self.session
        if not wraps:
            refuse_unless(bool(session.group_key), Code.NEED)
            return
        wanted = {wrap.key_id for wrap in wraps}
        distributors = {wrap.distributor for wrap in wraps}
        is_one = len(wanted) == 1 and len(distributors) == len(wraps)
        reason = "Expected one key, of different distributors."
        refuse_unless(is_one, Code.BAD_MESSAGE, reason)
        key = session.group_key
        if key and primitives.key_id(key, self.doc_hash) in wanted:
            return
        is_first = not key or session.head == 0
        reason = "Expected the group key that the session has."
        refuse_unless(is_first, Code.KEY, reason)
        for wrap in wraps:
            # If a distributor lied, the envelope of another one may fit.
            with suppress(MessageError):
                secret = self.pairs.unwrap(wrap)
                key = primitives.group_key(secret, self.doc_hash)
                if primitives.key_id(key, self.doc_hash) in wanted:
                    session.group_secret = secret
                    session.group_key = key
                    session.query_key = primitives.query_key(key)
                    return
        raise RefuseError(Code.KEY, "No envelope holds the group key that it names.")

    # ------------------------------------------------------------------ slot, context

    def take_slot(self, request: messages.Located) -> None:
        """Check the attempt, and the client's slot in its cohort and committee."""
        run = self.run
        session = self.session
        slot = request.slot
        n_slots = request.n_slots
        checks.require_attempt(run, request.t, request.attempt)
        checks.require_crowd(self.policy, run.document, n_slots, "slots in the cohort")
        # The length of paths and bitmaps follows from the announced number of slots.
        reason = f"Expected at most {MAX_SLOTS} slots. Got {n_slots} instead."
        refuse_unless(n_slots <= MAX_SLOTS, Code.BAD_MESSAGE, reason)
        if not run.trust.is_protected:
            return
        checks.require_own_slot(self.identity, slot, n_slots)
        static, public_key = self.pairs.static, self.pairs.public_key
        leaf = transcript.leaf(slot, session.commitment, static, public_key)
        checks.require_leaf(leaf, slot, n_slots, request.path, request.root)
        checks.require_one_slot(session, slot)
        session.slot = slot
        roster = None if self.identity is None else self.identity.roster
        committee, sharing = run.kept.once(
            checks.accepted_committee, run, roster, request.committee, n_slots
        )
        position = committee.positions.get(slot)
        # The committee may list the key of a former session, whose seals this session cannot
        # unseal.
        is_own = position is None or committee.public_keys[position] == public_key
        refuse_unless(is_own, Code.RENEW)
        self.committee = committee
        self.sharing = sharing

    def context_of_sum(
        self, request: messages.Located, h: bytes, tag: bytes
    ) -> SumContext:
        """Return the context of an attempt's sum, with its size, group key and sharing."""
        t = request.t
        n_slots = request.n_slots
        committee = ZERO if self.committee is None else self.committee.digest
        context = transcript.round_context(
            self.doc_hash, t, request.attempt, n_slots, request.root, committee, h, tag
        )
        n_words = self.run.document.words[t - 1]
        group_key = self.session.group_key
        return SumContext(context, n_words, n_slots, group_key, self.sharing)

    # ------------------------------------------------------------------ entries

    def state(self) -> State:
        """Return the algorithm's state after the entries that the session has followed."""
        run, session = self.run, self.session
        return run.kept.once(states.state_after, run, session.head, session.state)

    def next_query(self) -> tuple[Query, bytes]:
        """Return the query that follows from the state, and its encoding."""
        run, session = self.run, self.session
        return run.kept.once(states.query_after, run, session.head, session.state)

    def query_tag(self, t: int, h: bytes, query: bytes) -> bytes:
        """Return the tag of a query, with a key wherever the server does not know the query."""
        trust = self.run.trust
        is_public = not trust.is_blind or (trust.has_committee and t == 1)
        key = ZERO if is_public else self.session.query_key
        return transcript.query_tag(key, h, query)

    def follow(self, entries: tuple[Entry, ...]) -> None:
        """Follow the entries that the session lacks."""
        for entry in entries:
            if not checks.is_followed(self.session, entry):
                self._follow(entry)

    def _follow(self, entry: Entry) -> None:
        """Unmask or reconstruct the sum of the next round, and take the state after it."""
        run = self.run
        session = self.session
        has_key = bool(session.group_key)
        refuse_unless(entry.t <= session.head + 1 and has_key, Code.NEED)
        is_of_run = entry.t <= run.algorithm.n_rounds
        is_one = is_of_run and entry.attempt <= run.document.max_attempts
        # The transcript's hash covers words or shares. The others could differ among clients.
        of_shares = entry.positions or entry.shares
        other = entry.words if run.trust.has_committee else of_shares
        reason = (
            "Expected an entry of a round of the run, with a sum of its trust model."
        )
        refuse_unless(is_one and not other, Code.BAD_MESSAGE, reason)
        n_slots = min(entry.n_slots, MAX_SLOTS)
        survivors = transcript.unpack_survivors(entry.survivors, n_slots)
        n_survivors = int(np.count_nonzero(survivors))
        checks.require_crowd(
            self.policy, run.document, n_survivors, "survivors of a sum"
        )
        _, query = self.next_query()
        checks.require_same_query(entry, self.query_tag(entry.t, session.h, query))
        context = transcript.entry_context(self.doc_hash, session.h, entry)
        session.state = self._state_after(entry, survivors, context)
        session.h = transcript.next_hash(session.h, context, entry)
        session.head = entry.t
        session.n_answers = n_survivors

    def _state_after(
        self, entry: Entry, survivors: NDArray[np.bool_], context: bytes
    ) -> bytes:
        """Return the encoded state after an entry, computed once for all simulated clients."""
        session = self.session
        # `session.h` identifies the run and all earlier entries.
        name = H(
            b"followed", session.h, session.group_key, encode(entry), session.state
        )
        follow = partial(
            states.after_entry,
            self.run,
            session.state,
            entry,
            survivors,
            context,
            session.group_key,
        )
        return self.client.shared.state(name, follow)

    # ------------------------------------------------------------------ abort

    def _abort(self, session: ClientSession | None) -> messages.Reply:
        """Erase all secrets of a run that ended without a result, and return the reply.

        Nothing can refuse it, because no run is opened.
        """
        document = session.document if session else b""  # none of one that is over
        kept = session.party if session else b""
        if session is not None and not session.over:
            # First, and saved whatever fails afterwards.
            session.end(sessions.FORGOTTEN)
            self.session = session
        reply = _kind_kept(document, kept).ended(doc_hash=self.doc_hash)
        if document and not isinstance(reply, messages.Finished):
            # a repeated request has the same reply
            self.session.party = encode(reply)
        leftovers.erase(self.policy, self.doc_hash)
        leftovers.forget_records(self.client.state, self.doc_hash)
        return reply


def _kind_kept(document: bytes, last_reply: bytes) -> RunKind:
    """Return the kind of a session's run, or the usual kind if nothing shows it."""
    with suppress(MessageError, KindError):
        if document:
            return kind_shown(document)
        if last_reply:
            return _kind_of(messages.decode_reply(last_reply))
    return run_kind(USUAL)


def _kind_of(message: messages.Request | messages.Reply) -> RunKind:
    """Return the only kind with a message, or the usual kind if several have it."""
    return kind_of_message(tag_of(type(message))) or run_kind(USUAL)
