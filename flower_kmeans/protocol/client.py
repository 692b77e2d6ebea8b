"""The client's side of the protocol: what it checks, answers and refuses (docs/protocol.md).

A client answers one message at a time from what its session remembers. An error leaves
as a code and nothing else. No refusal depends on records or, apart from the checksum
word, on an opened sum. Each part of this file is a step of section 6: open the run,
take the slot, follow the entries, answer or add, hand over the result.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from flower_kmeans import errors
from flower_kmeans.algorithms import plausibility
from flower_kmeans.algorithms.base import Query, State
from flower_kmeans.algorithms.plausibility import Finding
from flower_kmeans.data.domain import Ball, Domain
from flower_kmeans.data.findings import moved_text
from flower_kmeans.data.sources import Part, RecordsLike, Source, as_source, joined
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import (
    checks,
    leftovers,
    limits,
    messages,
    pairs,
    removal,
    transcript,
    wire,
)
from flower_kmeans.protocol import session as sessions
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.committee import Committee, announced_sharing
from flower_kmeans.protocol.messages import Code, Entry, Head, Request
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.results import ClientResult, read_result, result_of
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.run import (
    MAX_SLOTS,
    Run,
    UnacceptableRunError,
    open_run,
    verify_plan,
)
from flower_kmeans.protocol.session import ClientSession, Memory
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import decode_arrays, encode, encode_arrays
from flower_kmeans.secagg import key_agreement
from flower_kmeans.secagg.base import Integers, PartError, Sharing, SumContext, SumError
from flower_kmeans.secagg.hashing import H
from flower_kmeans.secagg.key_agreement import KEY_BYTES
from flower_kmeans.version import __version__, stated_software

if TYPE_CHECKING:
    from flower_kmeans.protocol.vertical import VerticalParty

SOFTWARE = f"flower-kmeans {__version__}"
# Each time, another process of this node answered another message of the run in the
# meantime.
_FINDINGS = "findings"  # beside the arrays of a session's state
_TRIES = 8
_CHECKSUM = np.ones(1, dtype=np.int64)  # of one vector
_NO_COPIES = (
    "The records come from a database, where each message could find others. Expected "
    "copy_records = true in the policy, for a private copy of this run, or records in a file."
)
# clients of one process are rarely in more rounds of more runs at once
_MOST_STATES = 4
_states: dict[bytes, bytes] = {}
_lock = Lock()
log = logging.getLogger("flower_kmeans.client")
log_of_data = logging.getLogger("flower_kmeans.data")

refuse_unless = RefuseError.unless
Blocks = Iterator[NDArray[Any]]  # of records, which share one memory


@dataclass(frozen=True, eq=False, repr=False)
class Client:
    """One client, for any number of messages.

    ``on_result`` is called once per run; again on a repeated ``finish`` if it failed,
    or if the client was interrupted before it had written down that the run is over.
    ``load_ids`` returns the ids of the records, in their order; for vertical runs that
    compare rows.
    """

    policy: ClientPolicy
    state: RecordDict  # the context's: the memory where the policy names no ledger
    # of shape (n, n_features), in the user's units
    load_records: Callable[[], RecordsLike]
    on_result: Callable[[ClientResult], None] | None = None
    load_ids: Callable[[], Iterable[object]] | None = None
    node_id: int = 0  # the context's, for which a client with a roster claims its slot

    def handle(self, content: RecordDict) -> RecordDict:
        """Answer one message. Never raises: an error leaves as a code, its text stays here."""
        try:
            reply = self.answer_bytes(wire.from_content(content))
        except Exception as error:
            reply = encode(_refusal(None, error))
        return wire.to_content(reply)

    def answer_bytes(self, data: bytes) -> bytes:
        """Answer one encoded message with an encoded reply. Never raises."""
        request: Request | Head | None = None
        try:
            is_long = len(data) > limits.FIRST
            request = (
                messages.read_head(data) if is_long else messages.decode_request(data)
            )
            return encode(self._remembering(request, data))
        except Exception as error:
            return encode(_refusal(request, error))

    def _remembering(self, request: Request | Head, data: bytes) -> messages.Reply:
        """Answer from the memory that the policy names, which no answer leaves behind."""
        policy = self.policy
        if policy.state_dir is None:
            context = sessions.ContextMemory(self.state)
            return _Conversation(
                self, context, self._whole(request, data, context)
            ).reply()
        with ledgers.Ledger(policy.state_dir) as ledger:
            limit = ledgers.Limit(policy.max_total_epsilon, policy.max_total_delta)
            memory = sessions.LedgerMemory(ledger, limit, policy.state_dir)
            leftovers.erase_ended(policy, ledger)  # what runs that were forgotten left
            whole = self._whole(request, data, memory)
            for _ in range(_TRIES):
                with suppress(ledgers.MemoryChangedError):
                    return _Conversation(self, memory, whole).reply()
        raise RefuseError(Code.INTERNAL, "The memory of the run kept changing.")

    def _whole(self, request: Request | Head, data: bytes, memory: Memory) -> Request:
        """Decode a long request, if it is no longer than those of its run are."""
        if not isinstance(request, Head):
            return request
        head, session = request, memory.load(request.doc_hash)
        if (
            session is not None
            and session.over == sessions.DELIVERED
            and head.kind == "finish"
        ):
            # the reply needs nothing else
            return messages.Finish(doc_hash=head.doc_hash)
        checks.require_not_over(session)
        document = session.document if session else head.doc
        refuse_unless(bool(document), _code_without_document(head.kind == "keys"))
        checks.require_hash(document, head.doc_hash)
        run = open_run(document)
        checks.require_policy(self.policy, run)
        reason = "Expected no longer request of this run."
        refuse_unless(
            len(data) <= limits.request_limit(run, head), Code.BAD_MESSAGE, reason
        )
        return messages.decode_request(data)


def _code_without_document(is_keys: bool) -> Code:
    """Return with which code a request of an unknown run is refused."""
    # A key distributor that lost its memory is of no use: the server asks the next one.
    return Code.STALE if is_keys else Code.NEED


_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (wire.VersionError, Code.VERSION),
    (MessageError, Code.BAD_MESSAGE),
    (UnacceptableRunError, Code.POLICY),
    (ledgers.StaleAnswerError, Code.STALE),
    (ledgers.AnotherAnswerError, Code.CONFLICT),
    (SumError, Code.GARBAGE),
    (errors.BudgetError, Code.LEDGER),
    (errors.LedgerError, Code.LEDGER),
)


def _refusal(request: Request | Head | None, error: Exception) -> messages.Refusal:
    """Return what is sent for an error, and log why; the log holds public values only."""
    if isinstance(error, RefuseError):
        refusal = error
    else:
        codes = (code for kind, code in _CODES if isinstance(error, kind))
        refusal = RefuseError(next(codes, Code.INTERNAL), str(error))
    code, what, doc_hash = refusal.code, "a message", None
    if request is not None:
        doc_hash = request.doc_hash
        kind = (
            request.kind if isinstance(request, Head) else request.__struct_config__.tag
        )
        what = f"'{kind}' of run {doc_hash.hex()[:8]}"
    if code is Code.INTERNAL:
        log.error("A message could not be answered.", exc_info=error)
    else:
        log.warning(
            "Refused %s (%s): %s", what, code.name, refusal, exc_info=refusal.__cause__
        )
    return messages.Refusal(code=code, doc_hash=doc_hash, **refusal.fields)


class _Conversation:
    """A client and one message of one run."""

    _run: Run  # these two once there are any
    _session: ClientSession

    def __init__(self, client: Client, memory: Memory, request: Request) -> None:
        self._client, self._policy = client, client.policy
        self._memory, self._request, self._doc_hash = memory, request, request.doc_hash
        self._copy: Source | None = None
        self._identity: Identity | None = None
        self._committee: Committee | None = None
        self._sharing: Sharing | None = None

    def reply(self) -> messages.Reply:
        """Answer the request, and keep what the session learned from it, also if it is refused."""
        request, session = self._request, self._memory.load(self._doc_hash)
        try:
            if session is not None and session.over == sessions.DELIVERED:
                # The reply to the last request was lost: there is nothing left to
                # compute it from.
                if isinstance(request, messages.Finish):
                    return messages.Finished(doc_hash=self._doc_hash)
                if isinstance(request, messages.Turn):
                    return leftovers.repeated(request, session)
            if isinstance(request, messages.Abort):
                return self._abort(session)
            self._open(session)
            # The tag is one of the union that was decoded, so no message can name
            # another method.
            answer = getattr(self, f"_{request.__struct_config__.tag}")
            reply: messages.Reply = answer(request)
            return reply
        except RefuseError as refusal:
            if refusal.code is Code.RENEW:
                refusal.fields = self._public_values()
            raise
        finally:
            if hasattr(self, "_session"):
                self._memory.save(self._doc_hash, self._session)

    # ---------------------------------------------------------- the run and its session

    def _open(self, session: ClientSession | None) -> None:
        """Take up the session of a run, or begin one if the document is there."""
        request = self._request
        checks.require_not_over(session)
        document = session.document if session else getattr(request, "doc", b"")
        refuse_unless(
            bool(document), _code_without_document(isinstance(request, messages.Keys))
        )
        self._accept(document, is_new=session is None)
        # The last message reads no records: they may be gone, and nothing is answered
        # from them.
        if session is None or not isinstance(request, messages.Finish | messages.Hold):
            session = self._current(session)
        self._session = session

    def _accept(self, data: bytes, *, is_new: bool) -> None:
        """Compare a run with the policy of this moment: its operator may have tightened it."""
        checks.require_hash(data, self._doc_hash)
        self._run = open_run(data)
        is_of_kind = (
            isinstance(self._request, messages.Turn) == self._run.trust.is_vertical
        )
        is_of_all = isinstance(self._request, messages.Enrol | messages.Abort)
        refuse_unless(is_of_all or is_of_kind, Code.BAD_MESSAGE)
        checks.require_policy(self._policy, self._run)
        if is_new:  # a calibration takes long, and the session keeps the document
            verify_plan(data)
            self._run.algorithm.require_packages()
        if self._run.document.keys == "roster":
            try:
                self._identity = self._policy.read_identity()
            except errors.ConfigurationError as error:
                raise RefuseError(Code.KEY, str(error)) from None
        checks.require_roster(self._identity, self._run.document)
        self._memory.require_room(self._run.doc_hash, self._run.price)

    @cached_property
    def _pairs(self) -> pairs.Pairs:
        return pairs.Pairs(self._doc_hash, self._session, self._identity)

    def _current(self, session: ClientSession | None) -> ClientSession:
        """Return the session, or a new one if it is not of these records and this software."""
        # One mask must not cover two vectors. Shares of another vector have other
        # polynomials.
        if not self._run.trust.commits_to_records:
            return session or self._begun(None, b"")
        if session is not None and session.software == SOFTWARE:
            if self._policy.copy_records:
                # A copy has the session's commitment in its name, so it is not hashed
                # again.
                self._copy = self._memory.load_records(self._doc_hash, session)
            if self._copy is not None:
                return session
            if isinstance(self._request, messages.Ask) and not self._may_copy:
                return session  # the pass that answers compares the records
        return self._committed(session)

    def _committed(self, former: ClientSession | None) -> ClientSession:
        """Return the session of the records as they are now, and copy them if that may be."""
        session, width = former, self._run.algorithm.domain.n_features
        own = joined(self._blocks(), width) if self._source.in_memory else None

        def read() -> Blocks:
            # What fits into memory is copied once: nobody changes the copy between two
            # uses.
            return self._blocks() if own is None else iter([own])

        n_records = sum(map(len, read()))
        data = transcript.DataHash(n_records, width)
        deque(data.of(read()), maxlen=0)
        if session is None or not self._is_of(session, data.digest()):
            session = self._begun(session, data.digest(), n_records)
        if self._may_copy:
            blocks = self._compared(session, read()) if own is None else read()
            self._memory.save_records(
                self._doc_hash, session, blocks, (n_records, width)
            )
            self._copy = self._memory.load_records(self._doc_hash, session)
        return session

    def _compared(self, session: ClientSession, blocks: Blocks) -> Blocks:
        """Yield the records to which a session is committed, or raise at their end."""
        data = transcript.DataHash(
            session.n_records, self._run.algorithm.domain.n_features
        )
        yield from data.of(blocks)
        if not self._is_of(session, data.digest()):
            expected = (
                "Expected the same records in the same order whenever they are read."
            )
            raise _ChangedError(Code.DATA, expected)

    def _is_of(self, session: ClientSession, digest: bytes) -> bool:
        return checks.is_committed(session, self._commitment(session, digest))

    def _commitment(self, session: ClientSession, digest: bytes) -> bytes:
        return transcript.commitment(
            session.secret, self._doc_hash, SOFTWARE.encode(), digest
        )

    def _begun(
        self, former: ClientSession | None, digest: bytes, n_records: int = 0
    ) -> ClientSession:
        """Return a session for a client that lost its memory, or whose records changed."""
        n_sessions = 1 if former is None else former.n_sessions + 1
        if n_sessions > 1:
            pairs.forget()  # secrets of a session do not outlive it
        try:
            checks.require_few_sessions(n_sessions)
        except RefuseError:  # each session shows the server that a record changed
            self._memory.save(self._doc_hash, ClientSession(over=sessions.SPENT))
            raise
        session = ClientSession.begin(self._doc_hash, self._run.data, n_sessions)
        session.digest, session.n_records, session.software = (
            digest,
            n_records,
            SOFTWARE,
        )
        session.commitment = self._commitment(session, digest) if digest else ZERO
        self._memory.save(self._doc_hash, session)
        return session

    @property
    def _may_copy(self) -> bool:
        return self._policy.copy_records and self._memory.can_copy(self._source)

    @cached_property
    def _source(self) -> Source:
        """The user's records, which are asked for once per message at most; live ones are held."""
        domain = self._run.algorithm.domain
        with RefuseError.of_user():
            source = as_source(
                self._client.load_records(), domain.n_features, domain.columns
            )
        if not source.is_live:
            return source
        refuse_unless(self._policy.copy_records, Code.POLICY, _NO_COPIES)
        held = self._memory.held(self._usable(source), domain.n_features)
        return replace(held, is_live=True)

    def _copy_of_live(self) -> Source | None:
        """Return a run's copy of records that may be others at each pass; ``None`` for others."""
        if not self._policy.copy_records:
            _ = self._source  # a live one is refused
            return None
        copy = self._memory.load_records(self._doc_hash, self._session)
        if copy is None and self._source.is_live:
            # Also if the copy was lost: each round protects the records that it reads.
            shape = self._source.n_rows, self._source.n_features
            self._memory.save_records(
                self._doc_hash, self._session, self._source.blocks(), shape
            )
            return self._source
        return copy

    def _blocks(self) -> Blocks:
        return self._usable(self._source)

    def _usable(self, source: Source) -> Blocks:
        """Yield the usable records of a source."""
        n_records, blocks = 0, source.blocks()
        while True:
            with RefuseError.of_user():
                block = next(blocks, None)
            if block is None:
                break
            n_records += len(block)
            yield block
        _warn_of_null(source.n_null, n_records)

    def _total(self, query: Query) -> Integers:
        """Return the statistic of all records, (words,), in one pass.

        In the first round, values outside the bounds are counted as well, for this
        node's log.
        """
        domain = self._run.algorithm.domain
        # without the checksum word
        n_words = self._run.document.words[query.round - 1] - 1
        part: Part = partial(self._run.algorithm.words_of, query)
        if query.round > 1:
            return self._summed(part, n_words)
        part = partial(_counted, part, domain)
        found = self._summed(part, n_words + len(_nobody_outside(domain)))
        self._log_outside(found[n_words:])
        return found[:n_words]

    def _summed(self, part: Part, n_words: int) -> Integers:
        """Return the sum of a function over all records, (words,), in one pass."""
        algorithm, session = self._run.algorithm, self._session
        total = np.zeros(n_words, dtype=np.int64)
        commits, whole = self._run.trust.commits_to_records, algorithm.needs_all_records
        copy = self._copy if commits else self._copy_of_live()
        if (
            copy is None
            and not (commits or whole)
            and self._source.sum_in_place is not None
        ):
            with RefuseError.of_user():
                words, n_null = self._source.sum_in_place(part)
            _warn_of_null(n_null)
            return total + words
        blocks = self._blocks() if copy is None else _of_copy(copy)
        if commits and copy is None:
            blocks = self._compared(session, blocks)
        if whole:
            blocks = iter([joined(blocks, algorithm.domain.n_features)])
        try:
            for block in blocks:
                total += part(block)
        except _ChangedError:
            self._session = self._committed(session)
            vars(self).pop("_pairs", None)  # keys of the former session
            raise RefuseError(Code.RENEW) from None
        return total

    def _log_outside(self, counts: Integers) -> None:
        """Log how many values the bounds moved, which only this node may know."""
        domain = self._run.algorithm.domain
        n_records, *outside = counts.tolist()
        names = domain.columns or [f"column {i}" for i in range(domain.n_features)]
        if isinstance(domain, Ball):
            names = ["the records"]
        moved = moved_text(n_records, list(zip(names, outside, strict=True)))
        if moved:
            _log_once(self._doc_hash, self._session.slot, moved)

    # ------------------------------------------------------------------ enrolment, keys

    def _enrol(self, _: messages.Enrol) -> messages.Enrolled | messages.Joined:
        if self._run.trust.is_vertical:
            return self._party().join()
        ledger, software = self._policy.state_dir is not None, stated_software()
        own = self._public_values()
        return messages.Enrolled(
            doc_hash=self._doc_hash, **own, ledger=ledger, software=software
        )

    def _public_values(self) -> dict[str, Any]:
        """Return the session's public values, as an enrolment and a renewal hold them."""
        return {
            "commitment": self._session.commitment,
            "static": self._pairs.static,
            "public_key": self._pairs.public_key,
            "claim": self._pairs.claim(self._client.node_id),
        }

    def _keys(self, request: messages.Keys) -> messages.Wrapped:
        peers = self._pairs.peers(request.peers)
        checks.require_blind(self._run)
        # a key that exists goes to any number of owners
        if not self._session.group_secret:
            checks.require_peers(self._policy, self._run, peers, self._pairs.public_key)
        key_id, envelopes = self._wrap(peers)
        return messages.Wrapped(
            doc_hash=self._doc_hash, key_id=key_id, envelopes=envelopes
        )

    def _hold(self, request: messages.Hold) -> messages.Held:
        checks.require_blind(self._run)
        refuse_unless(
            bool(request.wraps), Code.BAD_MESSAGE, "Expected envelopes to open."
        )
        self._take_group_key(request.wraps)
        key_id = key_agreement.key_id(self._session.group_key, self._doc_hash)
        return messages.Held(doc_hash=self._doc_hash, key_id=key_id)

    def _wrap(self, peers: tuple[messages.Peer, ...]) -> tuple[bytes, bytes]:
        """Return the id of the group key that this client has or offers, sealed for each peer."""
        session = self._session
        checks.require_distinct(peers)
        # Drawn once per session: clients with another one would be left out of the sum.
        if not session.group_secret and not session.drawn_secret:
            session.drawn_secret = token(KEY_BYTES)
        secret = session.group_secret or session.drawn_secret
        group_key = key_agreement.group_key(secret, self._doc_hash)
        with RefuseError.of_key():
            envelopes = self._pairs.wrap(secret, peers)
        return key_agreement.key_id(group_key, self._doc_hash), envelopes

    def _take_group_key(self, wraps: tuple[messages.Wrap, ...]) -> None:
        """Take the group key that envelopes name; another one only before the first entry."""
        session, doc_hash = self._session, self._doc_hash
        if not wraps:
            refuse_unless(bool(session.group_key), Code.NEED)
            return
        wanted, leaders = (
            {wrap.key_id for wrap in wraps},
            {wrap.distributor for wrap in wraps},
        )
        is_one = len(wanted) == 1 and len(leaders) == len(wraps)
        refuse_unless(
            is_one, Code.BAD_MESSAGE, "Expected one key, of different distributors."
        )
        key = session.group_key
        if key and key_agreement.key_id(key, doc_hash) in wanted:
            return
        is_first = not key or session.head == 0
        refuse_unless(
            is_first, Code.KEY, "Expected the group key that the session has."
        )
        for wrap in wraps:
            # A distributor that lies costs itself: another one's envelope may fit.
            with suppress(MessageError):
                secret = self._pairs.unwrap(wrap)
                key = key_agreement.group_key(secret, doc_hash)
                if key_agreement.key_id(key, doc_hash) in wanted:
                    session.group_secret, session.group_key = secret, key
                    session.query_key = key_agreement.query_key(key)
                    return
        raise RefuseError(Code.KEY, "No envelope opens to the group key that it names.")

    # ------------------------------------------------------------------ slot, context

    def _take_slot(self, request: messages.Located) -> None:
        """Check the attempt, and the client's slot in its cohort and committee."""
        run, session, slot, own = self._run, self._session, request.slot, self._pairs
        checks.require_attempt(run.document, request.t, request.attempt)
        checks.require_crowd(
            self._policy, run.document, request.n_slots, "slots in the cohort"
        )
        # Paths and bitmaps are as long as the number that is announced.
        refuse_unless(
            request.n_slots <= MAX_SLOTS, Code.BAD_MESSAGE, "Expected fewer slots."
        )
        if not run.trust.is_protected:
            return
        checks.require_own_slot(self._identity, slot, request.n_slots)
        leaf = transcript.leaf(slot, session.commitment, own.static, own.public_key)
        checks.require_leaf(leaf, slot, request.n_slots, request.path, request.root)
        checks.require_one_slot(session, slot)
        session.slot = slot
        committee = Committee.decode(
            request.committee, request.n_slots, run.document.max_colluders
        )
        checks.require_committee(committee, self._identity, run.document)
        position = committee.position_of(slot)
        # Of a session before this one: what others seal for it, this one cannot open.
        is_own = position is None or committee.public_keys[position] == own.public_key
        refuse_unless(is_own, Code.RENEW)
        self._committee, self._sharing = (
            committee,
            checks.require_sharing(committee, run),
        )

    def _require_claims(self, claims: bytes) -> None:
        """Require that each share is sealed for a key that a slot's owner made."""
        if self._committee is None or not self._run.trust.has_committee:
            refuse_unless(
                not claims, Code.BAD_MESSAGE, "Expected no claims without shares."
            )
            return
        with RefuseError.of_key():
            self._pairs.require_claims(self._committee, claims)

    def _sums(self, request: messages.Located, h: bytes, tag: bytes) -> SumContext:
        """Return what the sum of an attempt depends on, its context first."""
        com = ZERO if self._committee is None else self._committee.digest
        t, n_slots, n_words = (
            request.t,
            request.n_slots,
            self._run.document.words[request.t - 1],
        )
        cohort = n_slots, request.root, com
        context = transcript.round_context(
            self._doc_hash, t, request.attempt, *cohort, h, tag
        )
        return SumContext(
            context, n_words, n_slots, self._session.group_key, self._sharing
        )

    # ------------------------------------------------------------------ entries

    def _state(self) -> State:
        return _state_after(self._run, self._session.head, self._session.state)

    def _query_tag(self, t: int, h: bytes, query: bytes) -> bytes:
        """Return the tag of a query, keyed wherever the server does not know the query."""
        trust = self._run.trust
        is_public = not trust.is_blind or (trust.has_committee and t == 1)
        key = ZERO if is_public else self._session.query_key
        return transcript.query_tag(key, h, query)

    def _follow(self, entries: tuple[Entry, ...]) -> None:
        """Follow the entries that the session lacks."""
        session, document = self._session, self._run.document
        for entry in entries:
            if checks.is_followed(session, entry):
                continue
            refuse_unless(
                entry.t <= session.head + 1 and bool(session.group_key), Code.NEED
            )
            is_one = (
                entry.t <= document.rounds and entry.attempt <= document.max_attempts
            )
            # The transcript's hash covers one of them: the other would differ among
            # clients.
            of_shares = entry.positions or entry.shares
            other = entry.words if self._run.trust.has_committee else of_shares
            reason = "An entry is of no round of the run, or holds the sum of another trust model."
            refuse_unless(is_one and not other, Code.BAD_MESSAGE, reason)
            survivors = transcript.unpack_survivors(
                entry.survivors, min(entry.n_slots, MAX_SLOTS)
            )
            n_survivors = int(np.count_nonzero(survivors))
            checks.require_crowd(
                self._policy, document, n_survivors, "survivors of a sum"
            )
            _, asked = _query_after(self._run, session.head, session.state)
            checks.require_same_query(entry, self._query_tag(entry.t, session.h, asked))
            context = transcript.entry_context(self._doc_hash, session.h, entry)
            opened = partial(self._opened, entry, survivors, context)
            session.state = followed(session, encode(entry), opened)
            session.h = transcript.next_hash(session.h, context, entry)
            session.head, session.n_answers = entry.t, n_survivors

    def _opened(
        self, entry: Entry, survivors: NDArray[np.bool_], context: bytes
    ) -> bytes:
        """Return the state after an entry, from what its sum opens to."""
        run, key, n_slots = self._run, self._session.group_key, entry.n_slots
        colluders, n_words = run.document.max_colluders, run.document.words[entry.t - 1]
        sharing = announced_sharing(run.trust.sum, n_slots, colluders, entry.packing)
        combined = {} if sharing else {0: entry.words}
        sealed_shares = messages.read_sum_shares(entry) if sharing else {}
        if sharing and max(sealed_shares) >= sharing.n_positions:
            raise MessageError("Expected sum-shares of the committee's positions.")
        for position, sealed in sealed_shares.items():
            share_key = key_agreement.sum_share_key(
                key, context, position, entry.survivors
            )
            # A share that does not open costs its member: enough others may be left.
            with suppress(MessageError):
                combined[position] = key_agreement.unseal(share_key, sealed, context)
        # From here on nothing that is refused may depend on the sum, but for its
        # checksum word.
        sums = SumContext(context, n_words, n_slots, key, sharing)
        opened = run.trust.sum.open(combined, survivors, sums).vector
        n_survivors = int(survivors.sum())
        checks.require_checksum(opened, n_survivors)
        answer = run.algorithm.unflatten(
            opened[:-1], entry.t, n_survivors / n_slots, n_survivors
        )
        before = self._state()
        factor = removal.noise_factor(run, n_survivors)
        findings = plausibility.findings_of(run.algorithm, before, answer, factor)
        after = run.algorithm.update(before, answer).arrays
        return _state_with(after, self._session.state, findings)

    # ------------------------------------------------------------------ answers

    def _ask(self, request: messages.Ask) -> messages.Answer:
        run, session, t = self._run, self._session, request.t
        self._take_slot(request)
        self._require_claims(request.claims)
        is_blind, extras = (
            run.trust.is_blind,
            request.entries or request.peers or request.wraps,
        )
        reason = "Expected a query, and nothing else, exactly from a server that sees the sums."
        key_id = envelopes = b""
        is_expected = is_blind if request.query is None else not (is_blind or extras)
        refuse_unless(is_expected, Code.BAD_MESSAGE, reason)
        if request.query is None:
            # With a committee the query of round 1 is public, and keys are on their
            # way.
            if not run.trust.has_committee or t > 1 or request.wraps:
                self._take_group_key(request.wraps)
            if request.peers:
                key_id, envelopes = self._wrap(self._pairs.peers(request.peers))
            self._follow(request.entries)
            checks.require_next_round(session, t)
            query, asked = _query_after(run, session.head, session.state)
            h = session.h
        else:
            h, asked = ZERO, request.query
            query = _query_of(run, t, asked)
        tag = self._query_tag(t, h, asked)
        sums = self._sums(request, h, tag)
        # Before anything is computed from records: these refusals do not depend on
        # them.
        last = self._memory.last_answer(self._doc_hash)
        checks.require_not_stale(last, t)
        checks.require_attempt_order(last, t, request.attempt)
        query_hash = transcript.query_hash(h, asked)
        checks.require_one_query(last, t, query_hash)
        vector = self._vector(query, sums.digest)
        protected = self._protected(request, sums, vector)
        digest = hashlib.sha256(protected).digest()
        answer = sessions.LastAnswer(
            t, request.attempt, sums.digest, digest, query_hash
        )
        checks.require_one_answer(last, answer)
        # Not before the check: a refused query would replace what was answered.
        session.answered = sums.digest + vector.astype("<i8", copy=False).tobytes()
        # charged before it is sent
        self._memory.answer(self._doc_hash, answer, run.price, session)
        words, sealed = (
            (b"", protected) if run.trust.has_committee else (protected, b"")
        )
        return messages.Answer(
            doc_hash=self._doc_hash,
            tag=tag,
            words=words,
            sealed=sealed,
            key_id=key_id,
            envelopes=envelopes,
        )

    def _vector(self, query: Query, context: bytes) -> Integers:
        """Return one client's integers for a round: statistic, noise share, checksum word."""
        run, algorithm, session = self._run, self._run.algorithm, self._session
        # A repeated request cannot show whether records changed in the meantime.
        if session.answered[: len(context)] == context:
            return np.frombuffer(session.answered[len(context) :], dtype="<i8").astype(
                np.int64
            )
        vector = self._total(query)
        if algorithm.budget.unit == "client":  # what a record adds is limited by itself
            limited = algorithm.limited(
                algorithm.unflatten(vector, query.round), query.round
            )
            vector = algorithm.flatten(limited, query.round)
        if run.trust.shares_noise:
            vector = vector + removal.client_noise(
                run, query.round, session.secret, context
            )
        return np.concatenate([vector, _CHECKSUM])

    def _protected(
        self, request: messages.Ask, sums: SumContext, vector: Integers
    ) -> bytes:
        """Return a vector as it leaves the client: one part, or one for each present position."""
        parts = removal.protect(
            self._run, vector, sums, request.slot, self._session.secret
        )
        committee, context = self._committee, sums.digest
        if committee is None or not self._run.trust.has_committee:
            return b"".join(parts)
        sealed, own_key = [], self._pairs.public_key
        members = zip(committee.slots, committee.public_keys, parts, strict=True)
        for position, (slot, other, part) in enumerate(members):
            if not other:
                continue
            with RefuseError.of_key():
                shared = self._pairs.secret(slot, other)
            keys = request.slot, position, own_key, other
            key = key_agreement.share_key(shared, context, *keys)
            sealed.append(key_agreement.seal(key, part, context))
        return b"".join(sealed)

    # ------------------------------------------------------------------ sum-shares

    def _add(self, request: messages.Add) -> messages.Added:
        run, session = self._run, self._session
        refuse_unless(
            run.trust.has_committee, Code.POLICY, "Expected to add in a committee."
        )
        refuse_unless(
            not request.claims, Code.BAD_MESSAGE, "Expected claims with `ask` alone."
        )
        self._take_slot(request)
        position = (
            self._committee.position_of(request.slot) if self._committee else None
        )
        if position is None:
            raise RefuseError(
                Code.POLICY, "Expected to add as a member of the committee."
            )
        survivors = transcript.unpack_survivors(request.survivors, request.n_slots)
        dealers = np.flatnonzero(survivors).tolist()
        n_dealers, size = len(dealers), self._sealed_bytes(request.t)
        lengths = len(request.public_keys), len(request.sealed)
        is_whole = lengths == (KEY_BYTES * n_dealers, size * n_dealers)
        refuse_unless(
            is_whole, Code.BAD_MESSAGE, "Expected a key and share per survivor."
        )
        checks.require_crowd(self._policy, run.document, n_dealers, "survivors to add")
        if run.trust.is_blind:
            self._take_group_key(request.wraps)
            checks.require_add_history(session, request.t, request.h)
        else:
            refuse_unless(request.h == ZERO, Code.BAD_MESSAGE, "Expected no history.")
        sums = self._sums(request, request.h, request.tag)
        parts = request.survivors, request.public_keys, request.sealed
        # The votes of a round count together, whatever the attempt: one sum opens.
        vote = sessions.LastVote(
            request.t, transcript.variant_hash(sums.digest, *parts)
        )
        last = self._memory.last_vote(self._doc_hash)
        checks.require_one_vote(last, vote)
        checks.require_no_later_vote(last, request.t)
        shares = self._shares(request, dealers, position, sums.digest)
        try:
            share = removal.combine(run, shares, sums, n_dealers)
        except PartError as error:  # a client that names a dealer has not voted
            slot = dealers[error.index]
            raise RefuseError(
                Code.KEY, f"The share of slot {slot} is false.", slot=slot
            ) from None
        self._memory.vote(self._doc_hash, vote, run.price, session)
        key_id = b""
        if run.trust.is_blind:
            group, bitmap = sums.group_key, request.survivors
            key = key_agreement.sum_share_key(group, sums.digest, position, bitmap)
            share = key_agreement.seal(key, share, sums.digest)
            key_id = key_agreement.key_id(group, self._doc_hash)
        return messages.Added(doc_hash=self._doc_hash, share=share, key_id=key_id)

    def _sealed_bytes(self, t: int) -> int:
        """Return the length of one sealed share of a round."""
        n_words = self._run.document.words[t - 1]
        return (
            removal.part_bytes(self._run, n_words, self._sharing)
            + key_agreement.SEAL_BYTES
        )

    def _shares(
        self, request: messages.Add, dealers: list[int], position: int, context: bytes
    ) -> Iterator[bytes]:
        """Yield the dealers' shares for this member's position; a `PartError` for a bad seal."""
        own_key = self._pairs.public_key
        keys = messages.split(request.public_keys, KEY_BYTES)
        seals = messages.split(request.sealed, self._sealed_bytes(request.t))
        for n, (dealer, other, sealed) in enumerate(
            zip(dealers, keys, seals, strict=True)
        ):
            try:
                shared = self._pairs.secret(dealer, other)
                key = key_agreement.share_key(
                    shared, context, dealer, position, other, own_key
                )
                share = key_agreement.unseal(key, sealed, context)
            except MessageError:
                raise PartError(n) from None
            yield share

    # ------------------------------------------------------------------ results

    def _finish(self, request: messages.Finish) -> messages.Finished:
        if self._deliver(self._result(request)):
            pairs.forget()
            self._session.end(sessions.DELIVERED)
        return messages.Finished(doc_hash=self._doc_hash)

    def _result(self, request: messages.Finish) -> ClientResult | None:
        """Return the result that follows from the entries, or that the server sends."""
        run, result = self._run, request.result
        is_expected = (result is None) == run.trust.is_blind
        refuse_unless(
            is_expected, Code.BAD_MESSAGE, "Expected a result where a server sees sums."
        )
        if result is not None:
            return read_result(run, result)
        self._take_group_key(request.wraps)
        self._follow(request.entries)
        refuse_unless(self._session.head == run.document.rounds, Code.NEED)
        state, rounds = self._state(), run.document.rounds
        rows = _findings_at(self._session.state)
        findings = plausibility.from_array(rows, rounds, max(run.document.words))
        factor = removal.noise_factor(run, self._session.n_answers)
        return result_of(run, state, factor, findings)

    def _deliver(self, result: ClientResult | None) -> bool:
        """Hand the result to its keeper; return whether that is done and secrets may be erased."""
        run, on_result = self._run.document.run.hex(), self._client.on_result
        if result is None:
            return True
        for warning in result.warnings:
            _warn(run, warning)
        if on_result is None:
            log.warning("Run %s has a result, but no on_result keeps it.", run)
            return True
        try:
            on_result(result)
        except BaseException:  # the reply must not show anything about the result
            log.exception(
                "on_result failed; it is called again if the last request is repeated."
            )
            return False
        return True

    # ------------------------------------------------------------------ vertical runs

    def _party(self) -> "VerticalParty":
        # Here, because most runs have no such party, and each answer is a new process.
        from flower_kmeans.protocol.vertical import VerticalParty

        return VerticalParty(
            self._run,
            self._memory,
            self._session,
            self._pairs,
            self._policy,
            self._identity,
            self._client.load_records,
            self._client.load_ids,
            lambda data: self._deliver(read_result(self._run, data)),
            self._client.node_id,
            self._client.state,
        )

    def _turn(self, request: messages.Turn) -> messages.Sent:
        return self._party().take(request)

    def _abort(
        self, session: ClientSession | None
    ) -> messages.Sent | messages.Finished:
        is_vertical = session is not None and bool(session.vertical)
        if session is not None and not session.over:
            is_vertical = open_run(session.document).trust.is_vertical
            with suppress(RefuseError):  # of a policy that was tightened
                self._accept(session.document, is_new=False)
            pairs.forget()
            session.end(sessions.FORGOTTEN)
            if is_vertical:  # a repeated request has the same reply
                session.vertical = encode(messages.Sent(doc_hash=self._doc_hash))
            self._session = session
        leftovers.erase(self._policy, self._doc_hash)
        leftovers.forget_witness(self._client.state, self._doc_hash)
        return (messages.Sent if is_vertical else messages.Finished)(
            doc_hash=self._doc_hash
        )


class _ChangedError(RefuseError):
    """Records are not those of the session's commitment."""


def _of_copy(copy: Source) -> Blocks:
    """Yield the records of a session's copy, which another process may end or make again."""
    try:
        yield from copy.blocks()
    except errors.DataError as error:
        raise ledgers.MemoryChangedError(
            "Another process changed a copy of records."
        ) from error


def _warn_of_null(n_null: int, n_records: int = 1) -> None:
    if n_null:
        log.warning(
            "%d records are malformed or not finite; each counts as none.", n_null
        )
        if not n_records:
            log.warning(
                "No record is left. Expected one table of numbers, without labels."
            )


def _counted(part: Part, domain: Domain, block: NDArray[Any]) -> Integers:
    """Return a function of a block, and behind it its numbers of records and values outside."""
    outside = domain.outside(block)
    return np.concatenate(
        [part(block), np.array([len(block)], dtype=np.int64), outside]
    )


def _nobody_outside(domain: Domain) -> Integers:
    """Return what `_counted` has behind the words of no record: zeros."""
    return np.concatenate(
        [np.zeros(1, np.int64), domain.outside(np.empty((0, domain.n_features)))]
    )


@lru_cache(maxsize=256)
def _log_once(doc_hash: bytes, slot: int, text: str) -> None:
    """Log what a client found in its records, once for all attempts of a round."""
    log_of_data.warning("Run %s: %s.", doc_hash.hex()[:8], text)


@lru_cache(maxsize=8)  # clients of one process are in one round
def _state_after(run: Run, head: int, data: bytes) -> State:
    """Return the state of which a session keeps the encoded arrays; empty before the first sum."""
    if data:
        arrays = decode_arrays(data)
        arrays.pop(_FINDINGS, None)
        state = State(head, arrays)
    else:
        state = run.algorithm.initial_state(None)
    for array in state.arrays.values():
        array.setflags(write=False)  # others read it, too
    return state


def _state_with(
    arrays: Mapping[str, NDArray[Any]], before: bytes, findings: Iterable[Finding]
) -> bytes:
    """Return a session's encoded state, which keeps findings beside the algorithm's arrays."""
    found = np.concatenate([_findings_at(before), plausibility.to_array(findings)])
    # As many rows after every sum: a server that sees none may measure the time.
    return encode_arrays({**arrays, _FINDINGS: plausibility.condensed(found)})


def _findings_at(data: bytes) -> NDArray[np.float64]:
    """Return the findings of all rounds so far, which a session keeps beside the state's arrays."""
    if not data:
        return np.zeros((0, 6))
    rows = decode_arrays(data)[_FINDINGS]
    return rows[rows.any(axis=1)]


@lru_cache(maxsize=8)
def _query_after(run: Run, head: int, data: bytes) -> tuple[Query, bytes]:
    """Return the query of the round after a state, and its encoding."""
    query = run.algorithm.query(_state_after(run, head, data))
    return query, encode_arrays(dict(query.arrays))


@lru_cache(maxsize=8)
def _query_of(run: Run, t: int, data: bytes) -> Query:
    """Return the query that a server sends; the noise covers queries in range only."""
    query = Query(t, decode_arrays(data))
    run.algorithm.check_query(query)
    for array in query.arrays.values():
        array.setflags(write=False)  # others read it, too
    return query


@lru_cache(maxsize=64)
def _warn(run: str, warning: str) -> None:
    """Log what a reader of the result should know, once for all clients of a process."""
    log.warning("Run %s: %s", run, warning)


def followed(
    session: ClientSession, entry: bytes, follow: Callable[[], bytes]
) -> bytes:
    """Return the state after an entry; one client of a process computes it for all of them."""
    # Opening a sum may take a second. The hash names the run and all entries before.
    key = H(b"followed", session.h, session.group_key, entry, session.state)
    with _lock:  # clients in other threads wait for the first one's
        if key not in _states:
            _states[key] = follow()
            if len(_states) > _MOST_STATES:
                del _states[next(iter(_states))]
        return _states[key]
