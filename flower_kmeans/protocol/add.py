"""A committee member's sum-share (docs/protocol.md, section 6), from request to reply.

A member adds the shares that the survivors of a round dealt to its position. It votes
for one sum of a round, whatever the attempt, so one sum can be reconstructed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol import checks, messages, noise, transcript
from flower_kmeans.protocol.checks import RefuseError
from flower_kmeans.protocol.messages import Add, Added, Code
from flower_kmeans.protocol.session import LastVote
from flower_kmeans.protocol.transcript import ZERO
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import PartError, SumContext
from flower_kmeans.secagg.primitives import KEY_BYTES, SEAL_BYTES

if TYPE_CHECKING:
    from flower_kmeans.protocol.client import Conversation


def add(conversation: "Conversation", request: Add) -> Added:
    """Add the survivors' shares for this member's position, and vote for their sum."""
    run = conversation.run
    _require_fields(conversation, request)
    conversation.take_slot(request)
    position = _own_position(conversation, request.slot)
    dealers = _dealers(conversation, request)
    _require_history(conversation, request)
    sums = conversation.context_of_sum(request, request.h, request.tag)
    vote = _new_vote(conversation, request, sums.digest)

    shares = _shares(conversation, request, dealers, position, sums.digest)
    try:
        share = noise.combine(run, shares, sums, len(dealers))
    except PartError as error:  # a client that names a dealer has not voted
        slot = dealers[error.index]
        raise RefuseError(
            Code.KEY, f"The share of slot {slot} is false.", slot=slot
        ) from None
    conversation.memory.vote(
        conversation.doc_hash, vote, run.price, conversation.session
    )

    if not run.trust.is_blind:
        return Added(doc_hash=conversation.doc_hash, share=share)
    sealed = _sealed(share, sums, position, request.survivors)
    key_id = primitives.key_id(sums.group_key, conversation.doc_hash)
    return Added(doc_hash=conversation.doc_hash, share=sealed, key_id=key_id)


def _require_fields(conversation: "Conversation", request: Add) -> None:
    """Require a run with a committee, and no claims."""
    has_committee = conversation.run.trust.has_committee
    reason = "Expected a trust model with a committee for `add`."
    RefuseError.unless(has_committee, Code.POLICY, reason)
    reason = "Expected no claims with `add`."
    RefuseError.unless(not request.claims, Code.BAD_MESSAGE, reason)


def _own_position(conversation: "Conversation", slot: int) -> int:
    """Return the position of this client in the committee."""
    position = None
    if conversation.committee is not None:
        position = conversation.committee.positions.get(slot)
    if position is None:
        raise RefuseError(Code.POLICY, "Expected to add as a member of the committee.")
    return position


def _dealers(conversation: "Conversation", request: Add) -> list[int]:
    """Return the slots of the survivors; require a key and a share of each."""
    survivors = transcript.unpack_survivors(request.survivors, request.n_slots)
    dealers: list[int] = np.flatnonzero(survivors).tolist()
    n_dealers = len(dealers)
    size = _sealed_bytes(conversation, request.t)
    has_keys = len(request.public_keys) == KEY_BYTES * n_dealers
    has_shares = len(request.sealed) == size * n_dealers
    reason = "Expected a key and share per survivor."
    RefuseError.unless(has_keys and has_shares, Code.BAD_MESSAGE, reason)
    checks.require_crowd(
        conversation.policy, conversation.run.document, n_dealers, "survivors to add"
    )
    return dealers


def _require_history(conversation: "Conversation", request: Add) -> None:
    """Require the client's history where clients compute the queries, and none elsewhere."""
    if conversation.run.trust.is_blind:
        conversation.take_group_key(request.wraps)
        checks.require_add_history(conversation.session, request.t, request.h)
    else:
        reason = "Expected no history."
        RefuseError.unless(request.h == ZERO, Code.BAD_MESSAGE, reason)


def _new_vote(conversation: "Conversation", request: Add, context: bytes) -> LastVote:
    """Return the vote for a sum; require that no other sum of the round has one."""
    # The votes of a round count together, whatever the attempt: one sum can be reconstructed.
    variant = transcript.variant_hash(
        context, request.survivors, request.public_keys, request.sealed
    )
    vote = LastVote(request.t, variant)
    last = conversation.memory.last_vote(conversation.doc_hash)
    checks.require_one_vote(last, vote)
    checks.require_no_later_vote(last, request.t)
    return vote


def _sealed_bytes(conversation: "Conversation", t: int) -> int:
    """Return the length of one sealed share of a round."""
    run = conversation.run
    n_words = run.document.words[t - 1]
    return noise.part_bytes(run, n_words, conversation.sharing) + SEAL_BYTES


def _shares(
    conversation: "Conversation",
    request: Add,
    dealers: list[int],
    position: int,
    context: bytes,
) -> Iterator[bytes]:
    """Yield the dealers' shares for a position, unsealed.

    Raises
    ------
    PartError
        If a share cannot be unsealed.
    """
    own_key = conversation.pairs.public_key
    keys = messages.split(request.public_keys, KEY_BYTES)
    seals = messages.split(request.sealed, _sealed_bytes(conversation, request.t))
    dealt = zip(dealers, keys, seals, strict=True)
    for index, (dealer, dealer_key, sealed) in enumerate(dealt):
        try:
            shared = conversation.pairs.secret(dealer, dealer_key)
            key = primitives.share_key(
                shared, context, dealer, position, dealer_key, own_key
            )
            share = primitives.unseal(key, sealed, context)
        except MessageError:
            raise PartError(index) from None
        yield share


def _sealed(share: bytes, sums: SumContext, position: int, survivors: bytes) -> bytes:
    """Return a sum-share sealed for the clients: a blind server only passes it on."""
    key = primitives.sum_share_key(sums.group_key, sums.digest, position, survivors)
    return primitives.seal(key, share, sums.digest)
