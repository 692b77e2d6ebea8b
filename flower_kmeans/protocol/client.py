"""The client's side of the protocol: what it checks, answers and refuses (docs/protocol.md).

A client answers one message at a time from what its session remembers. Whatever is wrong becomes a
code and nothing else; no refusal depends on records or, apart from the checksum word, on what an
announced sum opens to.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import ArrayLike, NDArray

from flower_kmeans import errors
from flower_kmeans.algorithms.base import Algorithm, Query, State
from flower_kmeans.domain import Domain, GridRecords, usable_records
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import checks, messages, removal, transcript, wire
from flower_kmeans.protocol import session as sessions
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.committee import Committee, announced_sharing
from flower_kmeans.protocol.messages import Code, Entry, Request
from flower_kmeans.protocol.pairs import Pairs
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.replay import followed
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.run import MAX_SLOTS, Run, UnacceptableRunError, open_run, verify_plan
from flower_kmeans.protocol.session import ClientSession, LedgerMemory, Memory, Records
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.protocol.wire import decode_arrays, encode, encode_arrays
from flower_kmeans.secagg import key_agreement
from flower_kmeans.secagg.base import Integers, PartError, Sharing, SumContext, SumError
from flower_kmeans.secagg.key_agreement import (
    KEY_BYTES,
    TAG_BYTES,
    seal,
    share_key,
    sum_share_key,
    unseal,
)
from flower_kmeans.version import __version__

SOFTWARE = f"flower-kmeans {__version__}"
# Each time, another process of this node answered another message of the run in the meantime.
_TRIES = 8
log = logging.getLogger("flower_kmeans.client")

Result = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Centroids (k, d) in the user's units, and noisy sizes (k,)."""
Parts = tuple[bytes, ...]


@dataclass(frozen=True)
class ClientResult:
    """What a client learns from a finished run.

    Attributes
    ----------
    centroids : ndarray of shape (n_clusters, n_features), float64
        In the user's units.
    counts : ndarray of shape (n_clusters,), float64
        Noisy cluster sizes of the last round.
    run : str
        Identity of the run, 32 hexadecimal digits.
    """

    centroids: NDArray[np.float64]
    counts: NDArray[np.float64]
    run: str


@dataclass(frozen=True, eq=False, repr=False)
class Client:
    """One client, for any number of messages.

    Parameters
    ----------
    policy : ClientPolicy
        What its operator accepts.
    state : RecordDict
        The context's state: the memory that outlives the message where the policy names no ledger.
    load_records : callable
        Returns the client's records, an array-like of shape (n, n_features) in the user's units.
    on_result : callable, optional
        Called once per run with a `ClientResult`; again on a repeated ``finish`` if it failed, or
        if the client was interrupted before it had written down that the run is over.
    """

    policy: ClientPolicy
    state: RecordDict
    load_records: Callable[[], ArrayLike]
    on_result: Callable[[ClientResult], None] | None = None

    def handle(self, content: RecordDict) -> RecordDict:
        """Answer one message. Never raises: an error leaves as a code, its text stays here."""
        try:
            data = wire.from_content(content)
        except Exception as error:
            return wire.to_content(encode(_refusal(None, error)))
        return wire.to_content(self.answer_bytes(data))

    def answer_bytes(self, data: bytes) -> bytes:
        """Answer one encoded message with an encoded reply. Never raises."""
        request: Request | None = None
        try:
            request = messages.decode_request(data)
            return encode(self._remembering(request))
        except Exception as error:
            return encode(_refusal(request, error))

    def _remembering(self, request: Request) -> messages.Reply:
        """Answer from the memory that the policy names, which no answer leaves behind."""
        policy = self.policy
        if policy.state_dir is None:
            return _Conversation(self, sessions.ContextMemory(self.state), request).reply()
        with ledgers.Ledger(policy.state_dir) as ledger:
            limit = ledgers.Limit(policy.max_total_epsilon, policy.max_total_delta)
            memory = LedgerMemory(ledger, limit, policy.state_dir)
            for _ in range(_TRIES):
                with suppress(ledgers.MemoryChangedError):
                    return _Conversation(self, memory, request).reply()
        raise RefuseError(Code.INTERNAL, "The memory of the run kept changing.")


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


def _refusal(request: Request | None, error: Exception) -> messages.Refusal:
    """Return what is sent for an error, and log why; the log holds public values only."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL)
    fields: Mapping[str, Any] = {}
    if isinstance(error, RefuseError):
        code, fields = error.code, error.fields
    if code is Code.INTERNAL:
        log.error("A message could not be answered.", exc_info=error)
    elif request is None:
        log.warning("Refused a message (%s): %s", code.name, error)
    else:
        kind, run = request.__struct_config__.tag, request.doc_hash.hex()[:8]
        cause = error.__cause__ if isinstance(error, RefuseError) else None
        log.warning("Refused '%s' of run %s (%s): %s", kind, run, code.name, error, exc_info=cause)
    doc_hash = None if request is None else request.doc_hash
    return messages.Refusal(code=code, doc_hash=doc_hash, **fields)


class _Conversation:
    """A client and one message of one run."""

    _run: Run  # these three once there are any
    _session: ClientSession
    _pairs: Pairs

    def __init__(self, client: Client, memory: Memory, request: Request) -> None:
        self._client, self._policy, self._memory = client, client.policy, memory
        self._request, self._doc_hash = request, request.doc_hash
        self._loaded: Records | None = None
        self._identity: Identity | None = None
        self._committee: Committee | None = None
        self._sharing: Sharing | None = None

    def reply(self) -> messages.Reply:
        """Answer the request, and keep what the session learned from it, also if it is refused."""
        handlers: Mapping[type[Request], Callable[..., messages.Reply]] = {
            messages.Enrol: self._enrol,
            messages.Keys: self._keys,
            messages.Ask: self._ask,
            messages.Add: self._add,
            messages.Finish: self._finish,
        }
        try:
            return handlers[type(self._request)](self._request)
        finally:
            if hasattr(self, "_session"):
                self._memory.save(self._doc_hash, self._session)

    # ------------------------------------------------------------------ documents, sessions

    def _enrol(self, request: messages.Enrol) -> messages.Enrolled:
        self._resume(request.doc)
        ledger, public = self._policy.state_dir is not None, self._public()
        return messages.Enrolled(
            doc_hash=self._doc_hash, **public, ledger=ledger, software=SOFTWARE
        )

    def _public(self) -> dict[str, bytes]:
        """Return the session's public values, as an enrolment and a renewal hold them."""
        return {
            "commitment": self._session.commitment,
            "static": self._pairs.static,
            "public_key": self._pairs.public_key,
            "tags": self._pairs.tags(self._run.document.epoch),
        }

    def _renewed(self) -> RefuseError:
        return RefuseError(Code.RENEW, fields=self._public())

    def _resume(self, doc: bytes, otherwise: Code = Code.NEED) -> None:
        """Take up the session of a run, or begin one if the document is there."""
        session = self._memory.load(self._doc_hash)
        checks.require_not_over(session)
        if session is None and not doc:
            raise RefuseError(otherwise)
        self._accept(doc if session is None else session.document, is_new=session is None)
        if session is None or not self._is_committed(session):
            session = self._begin(session)
        self._go_on(session)

    def _go_on(self, session: ClientSession) -> None:
        self._session = session
        self._pairs = Pairs(self._doc_hash, session, self._identity)

    def _accept(self, data: bytes, *, is_new: bool) -> None:
        """Compare a run with the policy of this moment: its operator may have tightened it."""
        checks.require_hash(data, self._doc_hash)
        run = open_run(data)
        checks.require_policy(self._policy, run)
        if is_new:
            verify_plan(data)
        if run.document.keys == "roster":
            try:
                self._identity = self._policy.read_identity()
            except errors.ConfigurationError as error:
                raise RefuseError(Code.KEY, str(error)) from None
        checks.require_roster(self._identity, run.document)
        checks.require_room(self._memory, run)
        self._run = run

    def _begin(self, former: ClientSession | None) -> ClientSession:
        """Begin a session for a client that lost its memory, or whose records changed."""
        n_sessions = 1 if former is None else former.n_sessions + 1
        if former is not None:
            Pairs(self._doc_hash, former, self._identity).forget()
        try:
            checks.require_few_sessions(n_sessions)
        except RefuseError:
            self._memory.save(self._doc_hash, ClientSession(over=sessions.SPENT))
            raise
        session = ClientSession.begin(self._doc_hash, self._run.data, n_sessions)
        session.commitment = ZERO
        if self._run.trust.commits_to_records:
            session.digest = transcript.data_digest(self._records())
            session.commitment = self._commitment(session, session.digest)
        self._memory.save(self._doc_hash, session)
        if self._copies_records:
            self._memory.save_records(self._doc_hash, session, self._records())
        return session

    # ------------------------------------------------------------------ records

    @property
    def _copies_records(self) -> bool:
        return self._run.trust.commits_to_records and self._policy.copy_records

    def _is_committed(self, session: ClientSession) -> bool:
        """Return whether records and software are those that the session committed to.

        A copy has the session's commitment in its name, so it is not hashed again.
        """
        if not self._run.trust.commits_to_records:
            return True
        if self._copies_records and checks.is_committed(
            session, self._commitment(session, session.digest)
        ):
            self._loaded = self._memory.load_records(self._doc_hash, session)
            if self._loaded is not None:
                return True
        digest = transcript.data_digest(self._records())
        if not checks.is_committed(session, self._commitment(session, digest)):
            return False
        if self._copies_records:  # the copy was lost
            self._memory.save_records(self._doc_hash, session, self._records())
        return True

    def _commitment(self, session: ClientSession, digest: bytes) -> bytes:
        return transcript.commitment(session.secret, self._doc_hash, SOFTWARE.encode(), digest)

    def _records(self) -> Records:
        """Return the checked records, which are loaded once per message at most."""
        if self._loaded is not None:
            return self._loaded
        domain = self._run.algorithm.domain
        try:
            loaded = self._client.load_records()
            records, n_null = usable_records(loaded, domain.n_features, domain.columns)
        except errors.KMeansError as error:  # whose text holds no record's value
            raise RefuseError(Code.DATA, str(error)) from None
        except BaseException as error:  # some libraries raise what is no Exception
            raise RefuseError(Code.DATA) from error
        if n_null:
            log.warning("%d records are malformed or not finite; each counts as none.", n_null)
            if not len(records):
                log.warning("No record is left. Expected one table of numbers, without labels.")
        self._loaded = records
        return records

    # ------------------------------------------------------------------ group keys

    def _keys(self, request: messages.Keys) -> messages.Wrapped:
        self._resume(b"", otherwise=Code.STALE)
        checks.require_peers(self._policy, self._run, request.peers, self._pairs.public_key)
        envelopes = self._wrap(request.peers)
        if sum(map(bool, envelopes)) < self._run.document.min_clients:
            raise RefuseError(Code.KEY, "Too few peers have the tags of their owners.")
        return messages.Wrapped(doc_hash=self._doc_hash, envelopes=envelopes)

    def _wrap(self, peers: tuple[messages.Peer, ...]) -> Parts:
        session = self._session
        checks.require_distinct(peers)
        if not session.group_secret and not session.drawn_secret:
            session.drawn_secret = token(KEY_BYTES)
        return self._pairs.wrap(session.group_secret or session.drawn_secret, peers)

    def _take_group_key(self, wrap: messages.Wrap | None) -> None:
        """Take the run's group key; another one only before the first entry."""
        session = self._session
        if session.group_secret and (wrap is None or session.head > 0):
            return
        if wrap is None:
            raise RefuseError(Code.NEED)
        try:
            session.group_secret = self._pairs.unwrap(wrap)
        except MessageError as error:
            raise RefuseError(Code.KEY, str(error)) from None

    @property
    def _group_key(self) -> bytes:
        secret = self._session.group_secret
        return key_agreement.group_key(secret, self._doc_hash) if secret else b""

    # ------------------------------------------------------------------ what ask and add share

    def _take_slot(self, request: messages.Located) -> None:
        """Check the attempt, and the client's slot in its cohort and committee."""
        run, session = self._run, self._session
        checks.require_attempt(run.document, request.t, request.attempt)
        checks.require_cohort_size(self._policy, run.document, request.n_slots)
        if request.n_slots > MAX_SLOTS:
            raise MessageError(f"Expected at most {MAX_SLOTS} slots.")
        if not run.trust.is_protected:
            return
        pairs, slot = self._pairs, request.slot
        checks.require_own_slot(self._identity, slot, request.n_slots)
        leaf = transcript.leaf(slot, session.commitment, pairs.static, pairs.public_key)
        if not checks.is_in_cohort(leaf, slot, request.n_slots, request.path, request.root):
            raise self._renewed()
        checks.require_one_slot(session, slot)
        session.slot = slot
        committee = Committee.decode(request.committee, request.n_slots, run.document.max_colluders)
        checks.require_committee(committee, self._identity, run.document)
        own = committee.position_of(slot)
        if own is not None and committee.public_keys[own] != pairs.public_key:
            raise self._renewed()
        self._committee, self._sharing = committee, checks.require_sharing(committee, run)

    def _round_context(self, request: messages.Located, h: bytes, tag: bytes) -> bytes:
        com = ZERO if self._committee is None else self._committee.digest
        t, attempt = request.t, request.attempt
        return transcript.round_context(
            self._doc_hash, t, attempt, request.n_slots, request.root, com, h, tag
        )

    def _sums(
        self, digest: bytes, of: Entry | messages.Located, sharing: Sharing | None
    ) -> SumContext:
        n_words = self._run.document.words[of.t - 1]
        return SumContext(digest, n_words, of.n_slots, self._group_key, sharing)

    # ------------------------------------------------------------------ entries

    def _state(self) -> State:
        session = self._session
        if not session.state:
            return _initial_state(self._run.algorithm)
        return State(session.head, decode_arrays(session.state))

    def _query_tag(self, t: int, h: bytes, query: bytes) -> bytes:
        """Return the tag of a query, keyed wherever the server does not know the query."""
        trust = self._run.trust
        is_public = not trust.is_blind or (trust.has_committee and t == 1)
        key = ZERO if is_public else key_agreement.query_key(self._group_key)
        return transcript.query_tag(key, h, query)

    def _follow(self, entries: tuple[Entry, ...]) -> None:
        """Follow the entries that the session lacks."""
        for entry in entries:
            if not checks.is_followed(self._session, entry):
                self._accept_entry(entry)

    def _accept_entry(self, entry: Entry) -> None:
        session, document = self._session, self._run.document
        if entry.t > session.head + 1 or not session.group_secret:
            raise RefuseError(Code.NEED)
        if entry.t > document.rounds or entry.attempt > document.max_attempts:
            raise MessageError("An entry belongs to no round of the run.")
        # The transcript's hash covers one of them: the other would be different for each client.
        if entry.words if self._run.trust.has_committee else entry.shares:
            raise MessageError("An entry holds the sum of another trust model.")
        survivors = transcript.unpack_survivors(entry.survivors, min(entry.n_slots, MAX_SLOTS))
        checks.require_crowd(self._policy, document, int(survivors.sum()))
        query = encode_arrays(dict(self._run.algorithm.query(self._state()).arrays))
        checks.require_same_query(entry, self._query_tag(entry.t, session.h, query))
        context = transcript.entry_context(self._doc_hash, session.h, entry)
        session.state = followed(
            session, self._group_key, encode(entry), lambda: self._opened(entry, survivors, context)
        )
        session.h = transcript.next_hash(session.h, context, entry)
        session.head = entry.t

    def _opened(self, entry: Entry, survivors: NDArray[np.bool_], context: bytes) -> bytes:
        """Return the state after an entry, from what its sum opens to."""
        algorithm, total = self._run.algorithm, self._run.trust.sum
        colluders = self._run.document.max_colluders
        sharing = announced_sharing(total, entry.n_slots, colluders, entry.packing)
        sums = self._sums(context, entry, sharing)
        combined = {0: entry.words} if sharing is None else self._sum_shares(entry, sums, sharing)
        opened = total.open(combined, survivors, sums).vector
        n_survivors = int(survivors.sum())
        checks.require_checksum(opened, n_survivors)
        answered = n_survivors / entry.n_slots
        state = self._state()
        state = algorithm.update(state, algorithm.unflatten(opened[:-1], entry.t, answered))
        return encode_arrays(dict(state.arrays))

    def _sum_shares(self, entry: Entry, sums: SumContext, sharing: Sharing) -> dict[int, bytes]:
        """Return the sum-shares of an entry that open, by their positions."""
        found = {}
        for position, sealed in entry.shares:
            if position < sharing.n_positions:
                key = sum_share_key(sums.group_key, sums.digest, position, entry.survivors)
                with suppress(MessageError):
                    found[position] = unseal(key, sealed, sums.digest)
        return found

    # ------------------------------------------------------------------ answers

    def _ask(self, request: messages.Ask) -> messages.Answer:
        self._resume(request.doc)
        run, session, t = self._run, self._session, request.t
        self._take_slot(request)
        envelopes: Parts = ()
        if run.trust.is_blind:
            if request.query is not None:
                raise MessageError("Expected no query where clients compute it.")
            if not run.trust.has_committee or t > 1 or request.wrap_for is not None:
                self._take_group_key(request.wrap_for)
            if request.peers:
                envelopes = self._wrap(request.peers)
            self._follow(request.entries)
            checks.require_next_round(session, t)
            query = run.algorithm.query(self._state())
            h, asked = session.h, encode_arrays(dict(query.arrays))
        else:
            if request.query is None or request.entries or request.peers or request.wrap_for:
                raise MessageError("Expected a query, and no entries, from a server that asks.")
            h, asked = ZERO, request.query
            query = Query(t, decode_arrays(asked))
            checks.require_range(run.algorithm, query)
        tag = self._query_tag(t, h, asked)
        context = self._round_context(request, h, tag)
        last = self._memory.last_answer(self._doc_hash)
        checks.require_not_stale(last, t)
        checks.require_attempt_order(last, t, request.attempt)
        vector = self._vector(query, context)
        parts = self._protected(request, context, vector)
        digest = hashlib.sha256(b"".join(parts)).digest()
        answer = sessions.LastAnswer(t, request.attempt, context, digest)
        checks.require_one_answer(last, answer)
        session.answered = context + vector.astype("<i8").tobytes()
        self._memory.answer(self._doc_hash, answer, run.price, session)
        words, sealed = (b"", parts) if run.trust.has_committee else (parts[0], ())
        return messages.Answer(
            doc_hash=self._doc_hash, tag=tag, words=words, sealed=sealed, envelopes=envelopes
        )

    def _vector(self, query: Query, context: bytes) -> Integers:
        """Return one client's integers for a round: statistic, noise share, checksum word.

        A repeated request gets the vector of the first one, so it cannot show whether records
        changed in the meantime.
        """
        run, algorithm, session = self._run, self._run.algorithm, self._session
        if session.answered[: len(context)] == context:
            return np.frombuffer(session.answered[len(context) :], dtype="<i8").astype(np.int64)
        grid = GridRecords(self._records(), algorithm.domain, algorithm.fraction_bits)
        vector = algorithm.flatten(algorithm.answer(query, grid), query.round)
        if run.trust.shares_noise:
            vector = vector + removal.client_noise(run, query.round, session.secret, context)
        return np.append(vector, np.int64(1))

    def _protected(self, request: messages.Ask, context: bytes, vector: Integers) -> Parts:
        """Return a vector as it leaves the client: one part, or one for each position."""
        sums = self._sums(context, request, self._sharing)
        parts = removal.protect(self._run, vector, sums, request.slot, self._session.secret)
        committee = self._committee
        if committee is None or not self._run.trust.has_committee:
            return parts
        n_tags = len(committee.slots) if self._identity is not None else 0
        if len(request.tags) != TAG_BYTES * n_tags:
            raise MessageError("Expected a tag for each position of the committee.")
        pairs, sealed = self._pairs, []
        members = zip(committee.slots, committee.public_keys, parts, strict=True)
        for position, (slot, member, part) in enumerate(members):
            tag = request.tags[TAG_BYTES * position : TAG_BYTES * (position + 1)]
            try:
                shared = pairs.secret(slot, member, tag) if member else b""
            except MessageError:  # it costs that member the share, and not this client the answer
                shared = b""
            if shared:
                key = share_key(shared, context, request.slot, position, pairs.public_key, member)
                part = seal(key, part, context)
            sealed.append(part if shared else b"")
        return tuple(sealed)

    # ------------------------------------------------------------------ sum-shares

    def _add(self, request: messages.Add) -> messages.Added:
        self._resume(request.doc)
        run, session = self._run, self._session
        if not run.trust.has_committee:
            raise RefuseError(Code.POLICY, "Expected to add where a committee does.")
        self._take_slot(request)
        committee = self._committee
        position = None if committee is None else committee.position_of(request.slot)
        if position is None:
            raise RefuseError(Code.POLICY, "Expected to add as a member of the committee.")
        survivors = transcript.unpack_survivors(request.survivors, request.n_slots)
        dealers = np.flatnonzero(survivors).tolist()
        n_keys, rest = divmod(len(request.public_keys), KEY_BYTES)
        if not len(request.sealed) == n_keys == len(dealers) or rest:
            raise MessageError("Expected one key and one share of each survivor.")
        checks.require_add_crowd(self._policy, run.document, len(dealers))
        if run.trust.is_blind:
            self._take_group_key(request.wrap_for)
            checks.require_add_history(session, request.t, request.h)
        elif request.h != ZERO:
            raise MessageError("Expected no history where the server asks.")
        context = self._round_context(request, request.h, request.tag)
        variant = transcript.variant_hash(
            context, request.survivors, request.public_keys, request.sealed
        )
        vote = sessions.LastVote(request.t, variant)
        last = self._memory.last_vote(self._doc_hash)
        checks.require_one_vote(last, vote)
        checks.require_no_later_vote(last, request.t)
        sums = self._sums(context, request, self._sharing)
        shares = self._shares(request, dealers, position, context)
        try:
            share = removal.combine(run, shares, sums, len(dealers))
        except PartError as error:
            raise _named(dealers[error.index]) from None
        self._memory.vote(self._doc_hash, vote, session)
        if not run.trust.is_blind:
            return messages.Added(doc_hash=self._doc_hash, share=share)
        key = sum_share_key(sums.group_key, context, position, request.survivors)
        share = seal(key, share, context)
        key_id = key_agreement.key_id(sums.group_key, self._doc_hash)
        return messages.Added(doc_hash=self._doc_hash, share=share, key_id=key_id)

    def _shares(
        self, request: messages.Add, dealers: list[int], position: int, context: bytes
    ) -> Iterator[bytes]:
        """Yield the dealers' shares for this member's position."""
        pairs = self._pairs
        for n, (dealer, sealed) in enumerate(zip(dealers, request.sealed, strict=True)):
            public_key = request.public_keys[KEY_BYTES * n : KEY_BYTES * (n + 1)]
            try:
                shared = pairs.secret(dealer, public_key)
                key = share_key(shared, context, dealer, position, public_key, pairs.public_key)
                share = unseal(key, sealed, context)
            except MessageError:
                raise _named(dealer) from None
            yield share

    # ------------------------------------------------------------------ results

    def _finish(self, request: messages.Finish) -> messages.Finished:
        former = self._memory.load(self._doc_hash)
        if former is None:
            raise RefuseError(Code.NEED)
        if former.over != sessions.DELIVERED:  # else a repeated request
            checks.require_not_over(former)
            self._accept(former.document, is_new=False)
            self._go_on(former)
            if self._deliver(self._result(request)):
                self._pairs.forget()
                self._session.end(sessions.DELIVERED)
        return messages.Finished(doc_hash=self._doc_hash)

    def _result(self, request: messages.Finish) -> Result | None:
        """Return the result that follows from the entries, or that the server sends."""
        run = self._run
        if not run.trust.is_blind:
            if request.result is None:
                raise MessageError("Expected a result from a server that sees the sums.")
            return read_result(run.algorithm, request.result)
        if request.result is not None:
            raise MessageError("Expected no result from a server that sees no sum.")
        self._take_group_key(request.wrap_for)
        self._follow(request.entries)
        if self._session.head != run.document.rounds:
            raise RefuseError(Code.NEED)
        state = self._state()
        for note in run.algorithm.notes(state):
            _warn(run.document.run.hex(), note)
        centroids, counts = run.algorithm.centroids(state), run.algorithm.counts(state)
        return None if centroids is None or counts is None else (centroids, counts)

    def _deliver(self, result: Result | None) -> bool:
        """Hand the result to its keeper; return whether that is done and secrets may be erased."""
        run = self._run.document.run.hex()
        if result is None:
            return True
        if self._client.on_result is None:
            log.warning("Run %s has a result, but no on_result keeps it.", run)
            return True
        try:
            self._client.on_result(ClientResult(*result, run))
        except BaseException:  # the reply must not show anything about the result
            log.exception("on_result failed; it is called again if the server repeats 'finish'.")
            return False
        return True


def _named(dealer: int) -> RefuseError:
    """Return the refusal that names a dealer. A client that names one has not voted."""
    reason = f"The share of slot {dealer} does not open."
    return RefuseError(Code.KEY, reason, {"slot": dealer})


@lru_cache(maxsize=8)
def _initial_state(algorithm: Algorithm) -> State:
    return algorithm.initial_state(None)


@lru_cache(maxsize=64)
def _warn(run: str, note: str) -> None:
    """Log what a blind server cannot report, once for all clients of a process."""
    log.warning("Run %s: %s", run, note)


def read_result(algorithm: Algorithm, data: bytes) -> Result:
    """Read the result that a server sends.

    Raises
    ------
    MessageError
        If the bytes are no result of the run: wrong names, types or sizes, not finite, or outside
        of the domain by more than one step of its grid.
    """
    arrays = decode_arrays(data)
    k, d = algorithm.n_clusters, algorithm.domain.n_features
    found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    kind = np.dtype(np.float64)
    if found != {"centroids": (kind, (k, d)), "counts": (kind, (k,))}:
        raise MessageError("The result of a run has the wrong names, types or sizes.")
    if not _lie_within(algorithm.domain, arrays["centroids"], 2.0**-algorithm.fraction_bits):
        raise MessageError("The result of a run lies outside of its domain.")
    return arrays["centroids"], arrays["counts"]


def _lie_within(domain: Domain, points: NDArray[np.float64], step: float) -> bool:
    """Return whether points (k, d) are in the domain, up to a step of it and to rounding."""
    origin = np.zeros((1, domain.n_features))
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = domain.from_unit(domain.to_unit(points))
        slack = np.abs(domain.from_unit(origin + step) - domain.from_unit(origin))
        slack = slack + 4 * np.spacing(np.maximum(np.abs(points), np.abs(nearest)))
        return bool((np.abs(points - nearest) <= slack).all())
