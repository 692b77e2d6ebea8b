"""The client's side of the protocol: what it checks, answers and refuses (docs/protocol.md).

A member answers one message at a time from what its life remembers. Whatever is wrong becomes a
code and nothing else; no refusal depends on records or, apart from the checksum word, on what an
announced sum opens to.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import RecordDict
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.algorithms.base import State
from flower_kmeans.domain import GridRecords, usable_records
from flower_kmeans.errors import BudgetError, ConfigurationError, LedgerError, MessageError
from flower_kmeans.federation.cohort import commitment, data_digest, leaf, root_from
from flower_kmeans.federation.document import VersionError
from flower_kmeans.federation.life import ContextMemory, LedgerMemory, Life, Memory
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
from flower_kmeans.federation.policy import ClientPolicy
from flower_kmeans.federation.release import noise_share
from flower_kmeans.federation.run import Run, UnacceptableRunError, open_run, verify_plan
from flower_kmeans.federation.transcript import (
    Entry,
    next_hash,
    pack_survivors,
    pack_words,
    question_hash,
    round_context,
    unpack_survivors,
)
from flower_kmeans.privacy.ledger import (
    AnotherAnswerError,
    Answer,
    Ledger,
    Limit,
    MemoryChangedError,
)
from flower_kmeans.privacy.randomness import Stream, token
from flower_kmeans.secagg import keys, masks
from flower_kmeans.secagg.ring import from_ring, to_ring
from flower_kmeans.version import __version__

SOFTWARE = f"flower-kmeans/{__version__}".encode()
# Each time, another process of this node answered another message of the run in the meantime.
_TRIES = 8
log = logging.getLogger("flower_kmeans.client")

Words = NDArray[np.uint64]
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
    """Ends the handling of a message with a code."""

    def __init__(self, code: Code, life: Life | None = None) -> None:
        super().__init__(code.sentence)
        self.code = code
        self.life = life


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
        Called once per run with a `ClientResult`.
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

    def handle(self, content: RecordDict) -> RecordDict:
        """Answer one message. Never raises: an error leaves as a code, its text stays here."""
        request: Request | None = None
        try:
            request = decode_request(content)
            return to_content(self._remembering(request))
        except VersionError:
            refusal = Refusal(code=Code.VERSION)
        except MessageError:
            refusal = Refusal(code=Code.BAD_MESSAGE)
        except RefuseError as error:
            log.info("Refused a message: %s", error.code.sentence)
            refusal = Refusal(code=error.code, doc_hash=request.doc_hash if request else None)
            if error.code == Code.RENEW and error.life is not None and request is not None:
                refusal = Refusal(
                    code=error.code,
                    doc_hash=request.doc_hash,
                    commitment=error.life.commitment,
                    public_key=_public_key(error.life),
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
            log.warning("The ledger allows no answer: %s", error)
            raise RefuseError(Code.LEDGER) from None

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
        self._memory.save(request.doc_hash, life)
        file_key = self._file_key() if run.document.keys == "file" else None
        return EnrolReply(
            doc_hash=request.doc_hash,
            commitment=life.commitment,
            versions=(MESSAGE_VERSION,),
            public_key=_public_key(life),
            key_id=None if file_key is None else keys.key_id(file_key, request.doc_hash),
        )

    def _lead(self, request: Lead) -> LeadReply:
        life = self._memory.load(request.doc_hash)
        if life is None or not life.document or life.finished:
            raise RefuseError(Code.STALE)
        run = open_run(life.document)
        self._require_accepted(run)
        document, members = run.document, request.pubs
        if (
            document.keys != "relayed"
            or len(set(members)) != len(members)
            or len(members) < max(document.min_clients, self._policy.min_clients)
            or _public_key(life) not in members
        ):
            raise RefuseError(Code.POLICY)
        if not life.lead_secret:
            life.lead_secret = token(keys.KEY_BYTES)
            self._memory.save(request.doc_hash, life)
        leader, envelopes = keys.make_envelopes(
            life.lead_secret, members, request.doc_hash, token(keys.KEY_BYTES)
        )
        return LeadReply(
            doc_hash=request.doc_hash,
            leader=leader,
            envelopes=tuple(key + envelope for key, envelope in envelopes.items()),
        )

    def _accept_document(self, data: bytes, doc_hash: bytes) -> Run:
        if hashlib.sha256(data).digest() != doc_hash:
            raise RefuseError(Code.BAD_MESSAGE)
        try:
            run = open_run(data)
            verify_plan(data)
        except UnacceptableRunError as error:
            log.warning("Refused a run: %s", error)
            raise RefuseError(Code.POLICY) from None
        self._require_accepted(run)
        if run.plan.is_private:
            self._memory.require_room(doc_hash, run.plan)
        return run

    def _require_accepted(self, run: Run) -> None:
        """Compare a run with the policy of this moment: its operator may have tightened it."""
        plan = run.plan
        epsilon, delta = (plan.epsilon(), plan.budget.delta) if plan.is_private else (None, None)
        if not self._policy.accepts(run.document) or not self._policy.accepts_guarantee(
            epsilon, delta
        ):
            log.warning("Refused a run: it is outside of what the policy accepts.")
            raise RefuseError(Code.POLICY)
        if plan.is_private and not self._policy.allows_private_work:
            log.warning("Refused a private run: the policy names no ledger.")
            raise RefuseError(Code.LEDGER)

    def _file_key(self) -> bytes:
        try:
            key = self._policy.read_group_key()
        except ConfigurationError as error:
            log.warning("%s", error)
            key = None
        if key is None:
            raise RefuseError(Code.KEY)
        return key

    def _group_key(self, life: Life, run: Run, request: Placed) -> bytes:
        if not run.document.is_masked:
            return b""
        if not life.group_key:
            if run.document.keys == "file":
                secret = self._file_key()
            elif request.envelope is None or request.leader is None:
                raise RefuseError(Code.NEED if request.doc is None else Code.KEY)
            else:
                try:
                    secret = keys.open_envelope(
                        request.envelope, request.leader, life.exchange_secret, request.doc_hash
                    )
                except MessageError:
                    raise RefuseError(Code.KEY) from None
            life.group_key = keys.group_key(secret, request.doc_hash)
        return life.group_key

    # ------------------------------------------------------------------ records and lives

    def _records(self, run: Run) -> NDArray[np.float64]:
        """Return the checked records, which are loaded once per message."""
        if self._loaded is not None:
            return self._loaded
        try:
            records, n_null = usable_records(self._load_records(), run.algorithm.domain.n_features)
        except (Exception, SystemExit):
            log.exception("The records could not be loaded or checked.")
            raise RefuseError(Code.DATA) from None
        if n_null:
            log.warning("%d records are malformed or not finite; each counts as none.", n_null)
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
        place = leaf(request.index, self._node_id, life.commitment, _public_key(life))
        if root_from(place, request.index, request.m, request.path) != request.root:
            raise RefuseError(Code.RENEW, life)
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
        if entry.n_survivors < max(document.min_clients, self._policy.min_clients):
            raise RefuseError(Code.POLICY)
        context = entry.context(document.doc_hash, life.chain)
        opened = entry.words
        if document.is_masked:
            opened = opened - _correction(group_key, context, entry.survivors, len(opened))
        if int(opened[-1]) != entry.n_survivors:
            raise RefuseError(Code.GARBAGE)  # the one refusal that depends on an opened word
        answer = run.algorithm.unflatten(from_ring(opened[:-1]), entry.t)
        state = run.algorithm.update(_state(life, run), answer)
        life.chain = next_hash(life.chain, context, entry)
        life.state, life.head = state, entry.t
        life.last_context, life.last_m = context, entry.m
        life.last_survivors = pack_survivors(entry.survivors)
        life.forget_before(entry.t)

    def _round(self, request: Round) -> RoundReply:
        life, run = self._find_life(request)
        records = self._records(run)
        digest = data_digest(records)
        if life.commitment != self._commit(life, request.doc_hash, digest):
            life = self._renew(run, digest)
        try:
            group_key = self._prepare(life, run, request)
            context = self._admit(life, run, request)
            vector = self._vector(life, run, records, context)
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
        correction = self._give_correction(life, run, request)
        return RoundReply(
            doc_hash=request.doc_hash,
            ctx=context,
            words=sent,
            correction_t=None if correction is None else life.head,
            correction=correction,
        )

    def _commit_answer(
        self, life: Life, run: Run, request: Round, context: bytes, digest: bytes
    ) -> None:
        """Write down, and charge, what is about to be sent."""
        answer = Answer(
            request.doc_hash, request.t, request.attempt, life.commitment, context, digest
        )
        answered = replace(
            life, answered={**life.answered, (answer.round, answer.attempt): (context, digest)}
        )
        try:
            self._memory.answer(answer, run.plan, answered)
        except AnotherAnswerError:
            self._memory.save(request.doc_hash, life)
            raise RefuseError(Code.CONFLICT) from None
        except BudgetError:
            self._memory.save(request.doc_hash, life)
            raise
        life.answered = answered.answered

    def _admit(self, life: Life, run: Run, request: Round) -> bytes:
        """Return the context of the attempt that is asked for, if it may be answered."""
        document, t, attempt = run.document, request.t, request.attempt
        if t <= life.head:
            raise RefuseError(Code.STALE)
        if t > life.head + 1:
            raise RefuseError(Code.NEED)
        if t > document.rounds or attempt > document.max_attempts:
            raise RefuseError(Code.POLICY)
        if request.m < max(document.min_clients, self._policy.min_clients):
            raise RefuseError(Code.POLICY)
        if request.question and run.algorithm.replayable:
            raise RefuseError(Code.BAD_MESSAGE)  # the question follows from the transcript
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
        life: Life, run: Run, records: NDArray[np.float64], context: bytes
    ) -> NDArray[np.int64]:
        """Return one client's integers for a round: statistic, noise share, checksum word."""
        algorithm, document = run.algorithm, run.document
        question = algorithm.question(_state(life, run))
        grid = GridRecords(records, algorithm.domain, algorithm.fraction_bits)
        statistic = algorithm.flatten(algorithm.statistic(question, grid), question.round)
        if document.trust == "distributed-noise":
            stream = Stream.from_key(masks.noise_key(life.secret, context))
            statistic = statistic + noise_share(
                algorithm, run.plan, question, document.shares, stream
            )
        return np.append(statistic, np.int64(1))

    # ------------------------------------------------------------------ opening and delivery

    def _open(self, request: Open | Finish) -> OpenReply:
        over = self._memory.load(request.doc_hash)
        if over is not None and over.finished and isinstance(request, Finish):
            return OpenReply(doc_hash=request.doc_hash)  # a repeated finish
        life, run = self._find_life(request)
        try:
            self._prepare(life, run, request)
        finally:
            self._memory.save(request.doc_hash, life)
        if life.head != request.t:
            raise RefuseError(Code.NEED if life.head < request.t else Code.STALE)
        correction = self._give_correction(life, run, request)
        reply = OpenReply(
            doc_hash=request.doc_hash,
            correction_t=None if correction is None else life.head,
            correction=correction,
        )
        if isinstance(request, Finish) and life.head == run.document.rounds:
            state = _state(life, run)
            life.finish()
            self._memory.save(request.doc_hash, life)
            self._deliver(run, state)
        return reply

    def _deliver(self, run: Run, state: State) -> None:
        centroids, counts = run.algorithm.centroids(state), run.algorithm.counts(state)
        if self._on_result is None or centroids is None or counts is None:
            return
        try:
            self._on_result(ClientResult(centroids, counts, run.document.run))
        except (Exception, SystemExit):  # the reply must not tell anything about the result
            log.exception("on_result failed; the run's result was not kept by it.")

    @staticmethod
    def _give_correction(life: Life, run: Run, request: Placed) -> bytes | None:
        """Return the sum of the survivors' masks, only for a context that this life answered."""
        if not request.want_correction or run.document.opening != "simple" or not life.head:
            return None
        if not life.answered_context(life.head, life.last_context):
            return None
        survivors = unpack_survivors(life.last_survivors, life.last_m)
        length = run.document.words_of(life.head)
        return pack_words(_correction(life.group_key, life.last_context, survivors, length))


def _state(life: Life, run: Run) -> State:
    return run.algorithm.initial_state(None) if life.state is None else life.state


def _correction(
    group_key: bytes, context: bytes, survivors: NDArray[np.bool_], length: int
) -> Words:
    return masks.correction(masks.mask_key(group_key, context), survivors, length)


def _public_key(life: Life) -> bytes:
    return keys.public_key(life.exchange_secret) if life.exchange_secret else b""
