"""What a client requires before it sends anything: one function for each check of the protocol.

The client calls them through this module, in the order of docs/protocol.md, section 6. Each stops
an attack of section 10; a test replaces it and shows that the attack then succeeds.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from flower_kmeans.algorithms.base import Algorithm, Query
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.committee import MAX_POSITIONS, Committee, drawn
from flower_kmeans.protocol.messages import Code, Entry, Peer
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.run import MAX_SLOTS, Run, RunDocument
from flower_kmeans.protocol.session import ClientSession, LastAnswer, LastVote, Memory
from flower_kmeans.protocol.transcript import root_from
from flower_kmeans.secagg.base import Integers, Sharing

MAX_SESSIONS = 3
"""Sessions of a client in a run that commits to records: each shows that a record changed."""


class RefuseError(Exception):
    """Ends the handling of a message with a code, and with further fields of the refusal.

    The reason stays in the client's log; it is the code's sentence by default.
    """

    def __init__(
        self, code: Code, reason: str = "", fields: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(reason or code.sentence)
        self.code = code
        self.fields = fields or {}


def _policy(reason: str) -> RefuseError:
    return RefuseError(Code.POLICY, reason)


# ------------------------------------------------------------------------------ document, session


def require_not_over(session: ClientSession | None) -> None:
    """Require a run that has not ended for this client."""
    if session is not None and session.over:
        raise RefuseError(Code.STALE)


def require_hash(data: bytes, doc_hash: bytes) -> None:
    """Require the run document that a message names."""
    if hashlib.sha256(data).digest() != doc_hash:
        raise RefuseError(Code.BAD_MESSAGE)


def require_policy(policy: ClientPolicy, run: Run) -> None:
    """Require a run within the operator's limits of this moment."""
    objection = policy.objection(run)
    if objection is not None:
        raise _policy(objection)
    if run.plan.is_private and not policy.allows_private_work:
        reason = "Expected a policy with state_dir for a private run. Got none."
        raise RefuseError(Code.LEDGER, reason)


def require_roster(identity: Identity | None, document: RunDocument) -> None:
    """Require the client's own roster and beacon where the run names a roster.

    And no level of the noise beyond what its clients reach: a level that no sum has would only
    make the part of a noise share narrow that stays in any case.
    """
    if identity is None:
        return
    if document.roster != identity.roster.digest:
        raise _policy("Expected the digest of this client's own roster. Got another.")
    most = len(identity.roster) - document.max_colluders
    if any(level > most for level in document.levels):
        raise _policy(f"Expected levels up to {most} with this client's own roster. Got more.")


def require_room(memory: Memory, run: Run) -> None:
    """Require that the ledger has room for a run."""
    if run.price is not None:
        memory.require_room(run.doc_hash, run.price)


def is_committed(session: ClientSession, commitment: bytes) -> bool:
    """Return whether a session was begun with these records and this software."""
    return hmac.compare_digest(session.commitment, commitment)


def require_few_sessions(n_sessions: int) -> None:
    """Require that a run sees a change of records a bounded number of times."""
    if n_sessions > MAX_SESSIONS:
        raise RefuseError(Code.STALE, f"The client began {MAX_SESSIONS} sessions in this run.")


# ------------------------------------------------------------------------------ cohort


def require_attempt(document: RunDocument, t: int, attempt: int) -> None:
    """Require a round and an attempt of the run."""
    if t > document.rounds or attempt > document.max_attempts:
        raise _policy(
            f"Expected a round up to {document.rounds} and an attempt up to "
            f"{document.max_attempts}. Got round {t}, attempt {attempt} instead."
        )


def require_cohort_size(policy: ClientPolicy, document: RunDocument, n_slots: int) -> None:
    """Require enough slots in the cohort."""
    _require_least(policy, document, n_slots, "slots in the cohort")


def require_crowd(policy: ClientPolicy, document: RunDocument, n_survivors: int) -> None:
    """Require enough clients behind an announced sum."""
    _require_least(policy, document, n_survivors, "survivors of an announced sum")


def require_add_crowd(policy: ClientPolicy, document: RunDocument, n_survivors: int) -> None:
    """Require enough clients behind a sum of shares."""
    _require_least(policy, document, n_survivors, "survivors to add")


def require_peers(policy: ClientPolicy, run: Run, peers: Sequence[Peer], own: bytes) -> None:
    """Require that a key distributor serves enough clients, itself among them."""
    if not run.trust.is_blind or own not in {peer.public_key for peer in peers}:
        raise _policy("Expected this client's own key among the peers of a blind run.")
    _require_least(policy, run.document, len(peers), "peers")


def require_distinct(peers: Sequence[Peer]) -> None:
    """Require every peer once, and no more of them than a cohort has: each costs an exchange."""
    if len(peers) > MAX_SLOTS or len({peer.slot for peer in peers}) != len(peers):
        raise _policy(f"Expected every peer once, and at most {MAX_SLOTS} of them.")


def _require_least(policy: ClientPolicy, document: RunDocument, n: int, what: str) -> None:
    least = max(document.min_clients, policy.min_clients)
    if n < least:
        raise _policy(f"Expected at least min_clients={least} {what}. Got {n} instead.")


def require_own_slot(identity: Identity | None, slot: int, n_slots: int) -> None:
    """Require the slot that the client has on its own roster, and a cohort of the roster's size."""
    if identity is not None and (slot, n_slots) != (identity.slot, len(identity.roster.keys)):
        raise _policy(
            "Expected the slot that this client has on its own roster. "
            f"Got slot {slot} of {n_slots} instead."
        )


def is_in_cohort(leaf: bytes, slot: int, n_slots: int, path: bytes, root: bytes) -> bool:
    """Return whether a leaf of a client session lies under a cohort's root."""
    return root_from(leaf, slot, n_slots, path) == root


def require_one_slot(session: ClientSession, slot: int) -> None:
    """Require the slot that the session has had since its first message."""
    if session.slot not in (-1, slot):
        raise RefuseError(Code.CONFLICT)


def require_committee(
    committee: Committee, identity: Identity | None, document: RunDocument
) -> None:
    """Require the committee that nobody chose: all slots, or those drawn from the roster."""
    n_slots = committee.n_slots
    slots: tuple[int, ...] | None = tuple(range(n_slots))
    if n_slots > MAX_POSITIONS:
        slots = None  # drawn by the server, which relayed keys trust to be passive
        if identity is not None:
            slots = drawn(identity.roster.keys, identity.roster.beacon, document.epoch)
    if len(committee.slots) != min(n_slots, MAX_POSITIONS) or slots not in (None, committee.slots):
        raise _policy("Expected the committee of all slots, or that drawn from the roster.")


def require_sharing(committee: Committee, run: Run) -> Sharing | None:
    """Return how a committee shares vectors; require that enough of it is present."""
    try:
        return committee.sharing(run.trust.sum)
    except ConfigurationError:
        raise _policy("Expected more of the committee to be present.") from None


# ------------------------------------------------------------------------------ keys


def is_owned(tag: bytes, expected: bytes) -> bool:
    """Return whether the tag of an ephemeral key shows that its owner made it."""
    return hmac.compare_digest(tag, expected)


def static_secret(identity: Identity | None) -> bytes:
    """Return the lasting secret that enters every secret with another client; empty if relayed."""
    return b"" if identity is None else identity.secret


# ------------------------------------------------------------------------------ entries


def is_followed(session: ClientSession, entry: Entry) -> bool:
    """Return whether a session has an entry of that round: the first one counts."""
    return entry.t <= session.head


def require_same_query(entry: Entry, tag: bytes) -> None:
    """Require a sum of the query, and of the history, that this client has."""
    if not hmac.compare_digest(entry.tag, tag):
        reason = "Expected the sum of the query that this client computes. Got another's sum."
        raise RefuseError(Code.CONFLICT, reason)


def require_checksum(opened: Integers, n_survivors: int) -> None:
    """Require that as many vectors are in a sum as it is announced for.

    The one refusal that depends on an opened word.
    """
    if int(opened[-1]) != n_survivors:
        raise RefuseError(Code.GARBAGE)


# ------------------------------------------------------------------------------ answers


def require_next_round(session: ClientSession, t: int) -> None:
    """Require the round after the last entry."""
    if t <= session.head:
        raise RefuseError(Code.STALE)
    if t > session.head + 1:
        raise RefuseError(Code.NEED)


def require_range(algorithm: Algorithm, query: Query) -> None:
    """Require a query that keeps the algorithm's rules, under which its units hold."""
    algorithm.check_query(query)


def require_not_stale(last: LastAnswer | None, t: int) -> None:
    """Require that no later round was answered."""
    if last is not None and t < last.t:
        raise RefuseError(Code.STALE)


def require_attempt_order(last: LastAnswer | None, t: int, attempt: int) -> None:
    """Require that no later attempt at the round was answered."""
    if last is not None and t == last.t and attempt < last.attempt:
        raise RefuseError(Code.STALE)


def require_one_answer(last: LastAnswer | None, answer: LastAnswer) -> None:
    """Require that an attempt has one answer: the same bytes in the same context."""
    if last is None or (last.t, last.attempt) != (answer.t, answer.attempt):
        return
    if (last.context, last.digest) != (answer.context, answer.digest):
        raise RefuseError(Code.CONFLICT)


# ------------------------------------------------------------------------------ sum-shares


def require_add_history(session: ClientSession, t: int, h: bytes) -> None:
    """Require a round after the last entry and, if it is the next one, the client's history."""
    if t <= session.head:
        raise RefuseError(Code.STALE)
    if t == session.head + 1 and h != session.h:
        raise RefuseError(Code.CONFLICT)


def require_one_vote(last: LastVote | None, vote: LastVote) -> None:
    """Require that one sum of a round gets this client's sum-share, in all of its attempts."""
    if last is not None and last.t == vote.t and last.variant != vote.variant:
        raise RefuseError(Code.CONFLICT)


def require_no_later_vote(last: LastVote | None, t: int) -> None:
    """Require that no sum of a later round got this client's sum-share."""
    if last is not None and last.t > t:
        raise RefuseError(Code.STALE)
