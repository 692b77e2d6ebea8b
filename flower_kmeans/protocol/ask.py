"""A client's answer to a round (docs/protocol.md, section 6), from request to reply.

The order is part of the protocol. Checks that need no records come first, so a refusal
reveals nothing about records. Then the records are read, once. The answer is charged to
the ledger before it leaves.
"""

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flower_kmeans.algorithms.answers import contribution
from flower_kmeans.algorithms.state import Query
from flower_kmeans.arrays import IntArray
from flower_kmeans.protocol import checks, noise, states, transcript
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import Answer, Ask, Code
from flower_kmeans.protocol.session import LastAnswer
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import SumContext

if TYPE_CHECKING:
    from flower_kmeans.protocol.client import Conversation

_CHECKSUM = np.ones(1, dtype=np.int64)  # the sum of all counts the vectors in it


class _Question(NamedTuple):
    """A round's query, with the values that the context and the reply take from its source."""

    query: Query
    encoded: bytes
    history: bytes  # the transcript's hash before the round; `ZERO` if the server asks
    key_id: bytes = b""  # of the group key that the client offers to others
    envelopes: bytes = b""  # that key's secret, sealed for them


def ask(conversation: "Conversation", request: Ask) -> Answer:
    """Return the client's answer to a round."""
    conversation.take_slot(request)
    _require_claims(conversation, request.claims)
    _require_fields(conversation, request)
    if request.query is None:
        question = _own_question(conversation, request)
    else:
        question = _servers_question(conversation, request.t, request.query)
    tag = conversation.query_tag(request.t, question.history, question.encoded)
    sums = conversation.context_of_sum(request, question.history, tag)
    query_hash = transcript.query_hash(question.history, question.encoded)
    last = conversation.memory.last_answer(conversation.doc_hash)
    _require_new(last, request, query_hash)

    # From here on, the records are read.
    vector = _vector(conversation, question.query, sums.digest)
    protected = _protected(conversation, request, sums, vector)
    digest = hashlib.sha256(protected).digest()
    answer = LastAnswer(request.t, request.attempt, sums.digest, digest, query_hash)
    checks.require_one_answer(last, answer)
    _charge(conversation, answer, vector)

    by_committee = conversation.run.trust.has_committee
    return Answer(
        doc_hash=conversation.doc_hash,
        tag=tag,
        words=b"" if by_committee else protected,
        sealed=protected if by_committee else b"",
        key_id=question.key_id,
        envelopes=question.envelopes,
    )


# ---------------------------------------------------------------------- without records


def _require_claims(conversation: "Conversation", claims: bytes) -> None:
    """Require that each share is sealed for a key that a slot's owner made."""
    committee = conversation.committee
    if committee is None or not conversation.run.trust.has_committee:
        reason = "Expected no claims without shares."
        RefuseError.unless(not claims, Code.BAD_MESSAGE, reason)
        return
    with RefuseError.of_key():
        conversation.pairs.require_claims(committee, claims)


def _require_fields(conversation: "Conversation", request: Ask) -> None:
    """Require a query from a server that sees the sums, and none from a blind one."""
    is_blind = conversation.run.trust.is_blind
    if request.query is None:
        fits = is_blind
    else:
        has_more = request.entries or request.peers or request.wraps
        fits = not (is_blind or has_more)
    reason = "Only a server that sees sums may send a query, and nothing else."
    RefuseError.unless(fits, Code.BAD_MESSAGE, reason)


def _own_question(conversation: "Conversation", request: Ask) -> _Question:
    """Return the query that the client computes, after following the entries of the request."""
    # With a committee the query of round 1 is public, and the keys are on their way.
    is_without_key = conversation.run.trust.has_committee and request.t == 1
    if request.wraps or not is_without_key:
        conversation.take_group_key(request.wraps)
    key_id, envelopes = b"", b""
    if request.peers:
        peers = conversation.pairs.peers(request.peers)
        key_id, envelopes = conversation.wrap(peers)
    conversation.follow(request.entries)
    checks.require_next_round(conversation.session, request.t)
    query, encoded = conversation.next_query()
    return _Question(query, encoded, conversation.session.h, key_id, envelopes)


def _servers_question(
    conversation: "Conversation", t: int, encoded: bytes
) -> _Question:
    """Return a query that the server sent, after its checks."""
    run = conversation.run
    query = run.kept.once(states.checked_query, run, t, encoded)
    return _Question(query, encoded, ZERO)


def _require_new(last: LastAnswer | None, request: Ask, query_hash: bytes) -> None:
    """Require a round, an attempt and a query that can follow the last answer."""
    checks.require_not_stale(last, request.t)
    checks.require_attempt_order(last, request.t, request.attempt)
    checks.require_one_query(last, request.t, query_hash)


# ------------------------------------------------------------------------- with records


def _vector(conversation: "Conversation", query: Query, context: bytes) -> IntArray:
    """Return a client's vector, int64: statistic with noise share, and the checksum word."""
    answered = conversation.session.answered
    # A repeated request gets the kept vector, so it cannot show whether records changed.
    if answered.startswith(context):
        repeated = np.frombuffer(answered[len(context) :], dtype="<i8")
        return repeated.astype(np.int64)

    run = conversation.run
    words = conversation.total(query)
    vector = contribution(run.algorithm, query.round, words)
    if run.trust.shares_noise:
        secret = conversation.session.secret
        vector = vector + noise.client_noise(run, query.round, secret, context)
    return np.concatenate([vector, _CHECKSUM])


def _protected(
    conversation: "Conversation", request: Ask, sums: SumContext, vector: IntArray
) -> bytes:
    """Return a vector in its protected form: masked, or as sealed shares."""
    run = conversation.run
    secret = conversation.session.secret
    committee = conversation.committee
    if committee is None or not run.trust.has_committee:
        parts = run.trust.sum.protect(vector, sums, request.slot, secret)
        return b"".join(parts)
    parts = noise.protect(run, vector, sums, request.slot, secret)
    return _sealed(conversation, committee, request.slot, sums.digest, parts)


def _sealed(
    conversation: "Conversation",
    committee: Committee,
    slot: int,
    context: bytes,
    parts: tuple[bytes, ...],
) -> bytes:
    """Return the shares of the present committee members, each sealed for its member."""
    own_key = conversation.pairs.public_key
    members = zip(committee.slots, committee.public_keys, parts, strict=True)
    sealed = []
    for position, (member, member_key, part) in enumerate(members):
        if not member_key:  # absent
            continue
        with RefuseError.of_key():
            shared = conversation.pairs.secret(member, member_key)
        key = primitives.share_key(shared, context, slot, position, own_key, member_key)
        sealed.append(primitives.seal(key, part, context))
    return b"".join(sealed)


def _charge(conversation: "Conversation", answer: LastAnswer, vector: IntArray) -> None:
    """Charge the ledger for an accepted answer, and keep it for repeated requests."""
    session = conversation.session
    session.answered = answer.context + vector.astype("<i8", copy=False).tobytes()
    price = conversation.run.price
    conversation.memory.answer(conversation.doc_hash, answer, price, session)
