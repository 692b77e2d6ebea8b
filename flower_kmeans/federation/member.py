"""The client's side of the protocol: what it checks, answers and refuses (docs/protocol.md).

A member answers one message at a time from what its life remembers. Whatever is wrong becomes a
code and nothing else; no refusal depends on records or, apart from the checksum word, on what an
announced sum opens to.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from flwr.app import RecordDict
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.base import Query, State
from flower_kmeans.domain import GridRecords, usable_records
from flower_kmeans.errors import (
    BudgetError,
    ConfigurationError,
    KMeansError,
    LedgerError,
    MessageError,
)
from flower_kmeans.federation.cohort import commitment, data_digest, leaf, root_from
from flower_kmeans.federation.document import RunDocument, VersionError
from flower_kmeans.federation.keyring import Keyring
from flower_kmeans.federation.life import DELIVERED, ContextMemory, LedgerMemory, Life, Memory
from flower_kmeans.federation.messages import (
    MESSAGE_VERSION,
    Code,
    Enrol,
    EnrolReply,
    Finish,
    Lead,
    LeadReply,
    Open,
    OpenReply,
    Refusal,
    Reply,
    Request,
    Round,
    RoundReply,
    decode_request,
    to_content,
)
from flower_kmeans.federation.opening import give, may_open
from flower_kmeans.federation.policy import ClientPolicy
from flower_kmeans.federation.questions import (
    Result,
    read_question,
    read_result,
    require_answerable,
)
from flower_kmeans.federation.removal import client_noise, part_key
from flower_kmeans.federation.replay import updated
from flower_kmeans.federation.run import Run, UnacceptableRunError, open_run, verify_plan
from flower_kmeans.federation.transcript import (
    Entry,
    next_hash,
    pack_survivors,
    pack_words,
    question_hash,
    round_context,
)
from flower_kmeans.privacy.ledger import (
    AnotherAnswerError,
    Answer,
    Ledger,
    Limit,
    MemoryChangedError,
)
from flower_kmeans.privacy.randomness import token
from flower_kmeans.secagg import keys, masks
from flower_kmeans.secagg.ring import from_ring, to_ring
from flower_kmeans.version import __version__

SOFTWARE = f"flower-kmeans/{__version__}".encode()
# Each time, another process of this node answered another message of the run in the meantime.
_TRIES = 8
log = logging.getLogger("flower_kmeans.client")

Placed = Round | Open | Finish


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


class RefuseError(Exception):
    """Ends the handling of a message with a code, and a reason that stays in the client's log."""

    def __init__(
        self,
        code: Code,
        commitment: bytes | None = None,
        public_key: bytes = b"",
        *,
        reason: str = "",
    ) -> None:
        super().__init__(reason or code.sentence)
        self.code = code
        self.commitment = commitment  # RENEW only, with the public key: the new leaf
        self.public_key = public_key


class Member:
    """One client, for as long as it handles one message.

    Parameters
    ----------
    policy : ClientPolicy
        What its operator accepts.
    state : RecordDict
        The context's state: the memory that outlives the message where the policy names no ledger.
    node_id : int
        The client's own node id.
    load_records : callable
        Returns the client's records, an array-like of shape (n, n_features) in the user's units;
        the same records in the same order throughout a run.
    on_result : callable, optional
        Called once per run with a `ClientResult`; again on a repeated ``finish`` if it failed, or
        if the client was interrupted before it had written down that the run is over.
    """

    def __init__(
        self,
        policy: ClientPolicy,
        state: RecordDict,
        node_id: int,
        load_records: Callable[[], ArrayLike],
        on_result: Callable[[ClientResult], None] | None = None,
    ) -> None:
        self._policy = policy
        self._memory: Memory = ContextMemory(state)
        self._node_id = node_id
        self._load_records = load_records
        self._on_result = on_result
        self._loaded: NDArray[np.float64] | None = None
        self._keyring: Keyring | None = None

    def handle(self, content: RecordDict) -> RecordDict:
        """Answer one message. Never raises: an error leaves as a code, its text stays here."""
        request: Request | None = None
        try:
            request = decode_request(content)
            return to_content(self._remembering(request))
        except VersionError as error:
            log.warning("Refused a message (VERSION): %s", error)
            refusal = Refusal(code=Code.VERSION)
        except MessageError as error:
            log.warning("Refused a message (BAD_MESSAGE): %s", error)
            refusal = Refusal(code=Code.BAD_MESSAGE)
        except RefuseError as error:
            log.warning(*_refused(request, error), exc_info=error.__cause__)
            refusal = Refusal(
                code=error.code,
                doc_hash=request.doc_hash if request else None,
                commitment=error.commitment,
                public_key=error.public_key,
            )
        except Exception:
            log.exception("A message could not be answered.")
            refusal = Refusal(code=Code.INTERNAL)
        return to_content(refusal)

    def _remembering(self, request: Request) -> Reply:
        """Answer from the memory that the policy names, which no answer leaves behind."""
        policy = self._policy
        if policy.state_dir is None:
            return self._answer(request)
        try:
            with Ledger(policy.state_dir) as ledger:
                limit = Limit(policy.max_total_epsilon, policy.max_total_delta)
                self._memory = LedgerMemory(ledger, limit)
                for _ in range(_TRIES):
                    try:
                        return self._answer(request)
                    except MemoryChangedError:
                        continue
                raise RefuseError(Code.INTERNAL)
        except (BudgetError, LedgerError) as error:
            raise RefuseError(Code.LEDGER, reason=str(error)) from None

    def _answer(self, request: Request) -> Reply:
        if isinstance(request, Enrol):
            return self._enrol(request)
        if isinstance(request, Lead):
            return self._lead(request)
        if isinstance(request, Round):
            return self._round(request)
        return self._open(request)

    # ------------------------------------------------------------------ enrolment and keys

    def _enrol(self, request: Enrol) -> EnrolReply:
        run = self._accept_document(request.doc, request.doc_hash)
        life = self._memory.load(request.doc_hash)
        if life is not None and life.finished:
            raise RefuseError(Code.STALE)
        digest = data_digest(self._records(run))
        if life is None or life.commitment != self._commit(life, request.doc_hash, digest):
            life = self._begin(run, digest)
        life.document = request.doc
        keyring = self._keys(run)
        # Only rosters lead at enrolment: a leader needs to know for whom.
        leads = request.lead and keyring.identity is not None
        leader, envelopes = keyring.lead(life, request.doc_hash) if leads else (None, {})
        self._memory.save(request.doc_hash, life)
        return EnrolReply(
            doc_hash=request.doc_hash,
            commitment=life.commitment,
            versions=(MESSAGE_VERSION,),
            public_key=keyring.public_key(life),
            key_id=keyring.key_id(request.doc_hash),
            leader=leader,
            envelopes=_listed(envelopes),
            ledger=self._policy.state_dir is not None,
        )

    def _lead(self, request: Lead) -> LeadReply:
        life = self._memory.load(request.doc_hash)
        if life is None or not life.document or life.finished:
            raise RefuseError(Code.STALE)
        run = open_run(life.document)
        self._require_accepted(run)
        document, members, keyring = run.document, request.pubs, self._keys(run)
        if (
            document.keys != "relayed"
            or len(set(members)) != len(members)
            or keyring.public_key(life) not in members
        ):
            reason = "Expected relayed keys, each member's once and this client's among them."
            raise RefuseError(Code.POLICY, reason=reason)
        self._require_crowd("keys of members", len(members), document)
        leader, envelopes = keyring.lead(life, request.doc_hash, members)
        self._memory.save(request.doc_hash, life)
        return LeadReply(doc_hash=request.doc_hash, leader=leader, envelopes=_listed(envelopes))

    def _accept_document(self, data: bytes, doc_hash: bytes) -> Run:
        if hashlib.sha256(data).digest() != doc_hash:
            raise RefuseError(Code.BAD_MESSAGE)
        # What the policy objects to costs nothing but the reading of a small text.
        self._require_acceptable(self._policy.objection(RunDocument.parse(data)))
        try:
            run = open_run(data)
            verify_plan(data)
        except UnacceptableRunError as error:
            raise RefuseError(Code.POLICY, reason=str(error)) from None
        self._require_accepted(run)
        return run

    @staticmethod
    def _require_acceptable(objection: str | None) -> None:
        if objection is not None:
            raise RefuseError(Code.POLICY, reason=objection)

    def _require_accepted(self, run: Run) -> None:
        """Compare a run with the policy of this moment: its operator may have tightened it."""
        plan = run.plan
        self._require_acceptable(self._policy.objection(run.document))
        n_sums = run.document.sums_of_a_round
        self._require_acceptable(self._policy.objection_to_guarantee(*run.worst_case, n_sums))
        if plan.is_private and not self._policy.allows_private_work:
            raise RefuseError(
                Code.LEDGER, reason="Expected a policy with state_dir for a private run. Got none."
            )
        self._keys(run)  # a client without its key answers nothing and reads no record
        if plan.is_private:
            self._memory.require_room(run.document.doc_hash, run.price)

    def _require_crowd(self, what: str, n: int, document: RunDocument) -> None:
        least = max(document.min_clients, self._policy.min_clients)
        if n < least:
            reason = f"Expected at least min_clients={least} {what}. Got {n} instead."
            raise RefuseError(Code.POLICY, reason=reason)

    def _keys(self, run: Run) -> Keyring:
        """Return the keys that a run needs; their files are read once per message."""
        if self._keyring is None:
            try:
                self._keyring = Keyring(self._policy, run.document.keys)
            except ConfigurationError as error:
                raise RefuseError(Code.KEY, reason=str(error)) from None
        return self._keyring

    def _group_key(self, life: Life, run: Run, request: Placed) -> bytes:
        if not run.document.is_masked:
            return b""
        if not life.group_key:
            if run.document.keys != "file" and request.envelope is None and request.doc is None:
                raise RefuseError(Code.NEED)  # it is told everything again, the envelope too
            try:
                life.group_key = self._keys(run).open(
                    life, request.doc_hash, request.leader, request.envelope
                )
            except MessageError as error:
                raise RefuseError(Code.KEY, reason=str(error)) from None
        return life.group_key

    # ------------------------------------------------------------------ records and lives

    def _records(self, run: Run) -> NDArray[np.float64]:
        """Return the checked records, which are loaded once per message."""
        if self._loaded is not None:
            return self._loaded
        domain = run.algorithm.domain
        try:
            loaded = self._load_records()
            records, n_null = usable_records(loaded, domain.n_features, domain.columns)
        except KMeansError as error:  # which tells no record's value
            raise RefuseError(Code.DATA, reason=str(error)) from None
        except (Exception, SystemExit) as error:
            raise RefuseError(Code.DATA) from error
        if n_null:
            log.warning("%d records are malformed or not finite; each counts as none.", n_null)
            if not len(records):
                log.warning("No record is left. Expected one table of numbers, without labels.")
        self._loaded = records
        return records

    @staticmethod
    def _commit(life: Life, doc_hash: bytes, digest: bytes) -> bytes:
        return commitment(life.secret, doc_hash, SOFTWARE, digest)

    def _begin(self, run: Run, digest: bytes) -> Life:
        doc_hash = run.document.doc_hash
        life = Life.begin(doc_hash)
        life.commitment = self._commit(life, doc_hash, digest)
        life.document = run.document.data
        if run.document.keys == "relayed":
            life.exchange_secret = token(keys.KEY_BYTES)
        return life

    def _find_life(self, request: Placed) -> tuple[Life, Run]:
        """Return the life that may answer, and its run."""
        life = self._memory.load(request.doc_hash)
        if life is not None and life.finished:
            raise RefuseError(Code.STALE)
        if life is not None and life.document:
            run = open_run(life.document)
            self._require_accepted(run)
            return life, run
        if request.doc is None:
            raise RefuseError(Code.NEED)
        run = self._accept_document(request.doc, request.doc_hash)
        return self._renew(run), run

    def _renew(self, run: Run, digest: bytes | None = None) -> Life:
        """Begin a new life for a client that lost its memory, or whose records changed."""
        if run.document.keys == "relayed":
            raise RefuseError(Code.KEY)  # the sealed key belonged to the former life
        return self._begin(run, data_digest(self._records(run)) if digest is None else digest)

    # ------------------------------------------------------------------ rounds

    def _prepare(self, life: Life, run: Run, request: Placed) -> bytes:
        """Check the client's place, take the key, follow the transcript; return the key."""
        keyring = self._keys(run)
        if not keyring.is_own_place(request.index, request.m):
            reason = (
                "Expected the place that this client has on its own roster. "
                f"Got index={request.index} of m={request.m} instead."
            )
            raise RefuseError(Code.POLICY, reason=reason)
        public_key = keyring.public_key(life)
        place = leaf(request.index, self._node_id, life.commitment, public_key)
        if root_from(place, request.index, request.m, request.path) != request.root:
            raise RefuseError(Code.RENEW, life.commitment, public_key)
        if life.index not in (-1, request.index):
            raise RefuseError(Code.CONFLICT)
        life.index = request.index
        group_key = self._group_key(life, run, request)
        for data in request.entries:
            entry = Entry.unpack(data)
            if entry.t > life.head:
                self._accept_entry(life, run, group_key, entry)
        return group_key

    def _accept_entry(self, life: Life, run: Run, group_key: bytes, entry: Entry) -> None:
        document = run.document
        if entry.t != life.head + 1 or entry.t > document.rounds:
            raise RefuseError(Code.NEED)
        if entry.attempt > document.max_attempts or len(entry.words) != document.words_of(entry.t):
            raise RefuseError(Code.BAD_MESSAGE)
        self._require_crowd("survivors", entry.n_survivors, document)
        context = entry.context(document.doc_hash, life.chain)
        opened = entry.words
        if document.is_masked:
            key = masks.mask_key(group_key, context)
            opened = opened - masks.correction(key, entry.survivors, len(opened))
        if int(opened[-1]) != entry.n_survivors:
            raise RefuseError(Code.GARBAGE)  # the one refusal that depends on an opened word
        state = None  # the server's, where it asks the questions
        if not run.server_asks:
            answer = run.algorithm.unflatten(from_ring(opened[:-1]), entry.t, entry.answered)
            state = updated(run.algorithm, _state(life, run), answer)
        life.may_open = int(may_open(life, context, entry))
        life.chain = next_hash(life.chain, context, entry)
        life.state, life.head = state, entry.t
        life.last_context, life.last_m = context, entry.m
        life.last_survivors = pack_survivors(entry.survivors)
        life.forget_before(entry.t)

    def _round(self, request: Round) -> RoundReply:
        life, run = self._find_life(request)
        question = read_question(run, request.t, request.question)
        records = self._records(run)
        digest = data_digest(records)
        if life.commitment != self._commit(life, request.doc_hash, digest):
            life = self._renew(run, digest)
        try:
            group_key = self._prepare(life, run, request)
            context = self._admit(life, run, request, question)
            vector = self._vector(life, run, question, records, context)
            words = to_ring(vector)
            if run.document.is_masked:
                words = words + masks.mask(
                    masks.mask_key(group_key, context), life.index, request.m, len(words)
                )
            sent = pack_words(words)
            digest = hashlib.sha256(sent).digest()
            place = (request.t, request.attempt)
            if life.answered.get(place, (context, digest))[1] != digest:
                raise RefuseError(Code.CONFLICT)
        except BaseException:
            self._memory.save(request.doc_hash, life)  # what it learned from the transcript stays
            raise
        self._commit_answer(life, run, request, context, digest)  # before anything is sent
        n_levels = len(run.document.levels)
        parts = part_key(life.secret, context, n_levels, 0) if n_levels else None
        given = give(run.document, life, request)._asdict()
        return RoundReply(doc_hash=request.doc_hash, ctx=context, words=sent, parts=parts, **given)

    def _commit_answer(
        self, life: Life, run: Run, request: Round, context: bytes, digest: bytes
    ) -> None:
        """Write down, and charge, what is about to be sent."""
        answer = Answer(
            request.doc_hash,
            request.t,
            request.attempt,
            context,
            digest,
        )
        answered = replace(
            life,
            answered={**life.answered, (answer.round, answer.attempt): (context, digest)},
            largest_m=request.m,
        )
        try:
            self._memory.answer(answer, run.price, answered)
        except AnotherAnswerError:
            self._memory.save(request.doc_hash, life)
            raise RefuseError(Code.CONFLICT) from None
        except BudgetError:
            self._memory.save(request.doc_hash, life)
            raise
        life.answered, life.largest_m = answered.answered, answered.largest_m

    def _admit(self, life: Life, run: Run, request: Round, question: Query | None) -> bytes:
        """Return the context of the attempt that is asked for, if it may be answered."""
        document, t, attempt = run.document, request.t, request.attempt
        if t <= life.head:
            raise RefuseError(Code.STALE)
        if t > life.head + 1:
            raise RefuseError(Code.NEED)
        if t > document.rounds or attempt > document.max_attempts:
            reason = (
                f"Expected a round up to {document.rounds} and an attempt up to "
                f"{document.max_attempts}. Got round {t}, attempt {attempt} instead."
            )
            raise RefuseError(Code.POLICY, reason=reason)
        self._require_crowd("members of the cohort", request.m, document)
        if request.m < life.largest_m:  # a smaller cohort would have a quorum of its own
            reason = f"Expected a cohort of at least {life.largest_m}, as before. Got {request.m}."
            raise RefuseError(Code.POLICY, reason=reason)
        if question is not None:
            require_answerable(run, question)
        context = round_context(
            request.doc_hash,
            t,
            attempt,
            request.m,
            request.root,
            life.chain,
            question_hash(request.question),
        )
        earlier = life.answered.get((t, attempt))
        if earlier is not None and earlier[0] != context:
            raise RefuseError(Code.CONFLICT)
        if earlier is None and any(key[0] == t and key[1] > attempt for key in life.answered):
            raise RefuseError(Code.STALE)
        return context

    @staticmethod
    def _vector(
        life: Life,
        run: Run,
        question: Query | None,
        records: NDArray[np.float64],
        context: bytes,
    ) -> NDArray[np.int64]:
        """Return one client's integers for a round: statistic, noise share, checksum word."""
        algorithm, document = run.algorithm, run.document
        if question is None:
            question = algorithm.query(_state(life, run))
        grid = GridRecords(records, algorithm.domain, algorithm.fraction_bits)
        statistic = algorithm.flatten(algorithm.answer(question, grid), question.round)
        if document.trust == "distributed-noise":
            statistic = statistic + client_noise(run, question, life.secret, context)
        return np.append(statistic, np.int64(1))

    # ------------------------------------------------------------------ opening and delivery

    def _open(self, request: Open | Finish) -> OpenReply:
        over = self._memory.load(request.doc_hash)
        if over is not None and over.finished == DELIVERED and isinstance(request, Finish):
            return OpenReply(doc_hash=request.doc_hash)  # a repeated finish
        life, run = self._find_life(request)
        told = read_result(run, request.result) if isinstance(request, Finish) else None
        try:
            self._prepare(life, run, request)
        finally:
            self._memory.save(request.doc_hash, life)
        if life.head != request.t:
            raise RefuseError(Code.NEED if life.head < request.t else Code.STALE)
        given = give(run.document, life, request)
        reply = OpenReply(doc_hash=request.doc_hash, **given._asdict())
        if isinstance(request, Finish) and life.head == run.document.rounds:
            result = _computed(life, run) if told is None else told
            if result is None or self._deliver(run, result):
                life.finish()
                self._memory.save(request.doc_hash, life)
        return reply

    def _deliver(self, run: Run, result: Result) -> bool:
        """Hand the result to its keeper; return whether that is done and secrets may be erased."""
        if self._on_result is None:
            log.warning("Run %s has a result, but no on_result keeps it.", run.document.run)
            return True
        try:
            self._on_result(ClientResult(*result, run.document.run))
        except (Exception, SystemExit):  # the reply must not tell anything about the result
            log.exception("on_result failed; it is called again if the server repeats 'finish'.")
            return False
        return True


def _refused(request: Request | None, error: RefuseError) -> tuple[str, ...]:
    """Return format and arguments of the log's line on a refusal: public values only."""
    if request is None:
        return "Refused a message (%s): %s", error.code.name, str(error)
    run = request.doc_hash.hex()[:8]
    return "Refused '%s' of run %s (%s): %s", request.KIND, run, error.code.name, str(error)


def _charged_as(life: Life, run: Run, attempt: int) -> bytes:
    """Return under which name the ledger charges an answer: each new one costs the round again."""
    if run.document.sums_of_a_round > 1:
        return hashlib.sha256(life.commitment + attempt.to_bytes(4, "little")).digest()
    return life.commitment


def _computed(life: Life, run: Run) -> Result | None:
    """Return the result that follows from the transcript; ``None`` if there is none."""
    state = _state(life, run)
    for note in run.algorithm.notes(state):
        _warn(run.document.run, note)
    centroids, counts = run.algorithm.centroids(state), run.algorithm.counts(state)
    return None if centroids is None or counts is None else (centroids, counts)


@lru_cache(maxsize=64)
def _warn(run: str, note: str) -> None:
    """Log what an oblivious server cannot report, once for all clients of a process."""
    log.warning("Run %s: %s", run, note)


def _state(life: Life, run: Run) -> State:
    return run.algorithm.initial_state(None) if life.state is None else life.state


def _listed(envelopes: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """Return public keys and envelopes as they travel, in their order."""
    return tuple(public + envelope for public, envelope in envelopes.items())
