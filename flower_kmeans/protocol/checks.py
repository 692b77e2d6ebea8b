"""Checks of a client before it sends anything, in the order of docs/protocol.md, section 6.

Each function stops an attack of section 10. For each, a test replaces the function and
shows that the attack then succeeds.
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flower_kmeans.arrays import IntArray
from flower_kmeans.errors import ConfigurationError, KMeansError, MessageError
from flower_kmeans.protocol.committee import MAX_POSITIONS, Committee
from flower_kmeans.protocol.messages import Code, Entry, Peer
from flower_kmeans.protocol.policy import ClientPolicy
from flower_kmeans.protocol.roster import Identity, Roster
from flower_kmeans.protocol.run import Run, RunDocument
from flower_kmeans.protocol.transcript import root_from
from flower_kmeans.protocol.wire import MAX_SLOTS
from flower_kmeans.secagg import primitives
from flower_kmeans.secagg.base import Sharing

if TYPE_CHECKING:
    from flower_kmeans.protocol.session import ClientSession, LastAnswer, LastVote

MAX_SESSIONS = 3
"""Most sessions of a client in a run that commits to records: a new one reveals a change."""


class RefuseError(Exception):
    """Error that refuses a request with a code and further fields; the reason stays in the log."""

    def __init__(self, code: Code, reason: str = "", **fields: Any) -> None:
        super().__init__(reason or code.sentence)
        self.code, self.fields = code, fields

    @classmethod
    def unless(cls, condition: bool, code: Code, reason: str = "") -> None:
        """Raise a `RefuseError` unless a condition holds."""
        if not condition:
            raise cls(code, reason)

    @classmethod
    @contextmanager
    def of_user(cls) -> Iterator[None]:
        """Raise a `RefuseError` with DATA for any error of a user's function in the context."""
        try:
            yield
        except KMeansError as error:  # its text holds no record's value
            raise cls(Code.DATA, str(error)) from None
        except (
            BaseException
        ) as error:  # libraries also raise other errors than Exception
            raise cls(Code.DATA) from error

    @classmethod
    @contextmanager
    def of_key(cls) -> Iterator[None]:
        """Raise a `RefuseError` with KEY for another client's wrong key, claim or seal."""
        try:
            yield
        except MessageError as error:
            raise cls(Code.KEY, str(error)) from None


_require = RefuseError.unless


def require_not_over(session: "ClientSession | None") -> None:
    """Require a run that has not ended for this client."""
    _require(session is None or not session.over, Code.STALE)


def require_hash(data: bytes, doc_hash: bytes) -> None:
    """Require that a run document has the hash that a message names."""
    _require(hashlib.sha256(data).digest() == doc_hash, Code.BAD_MESSAGE)


def require_policy(policy: ClientPolicy, run: Run) -> None:
    """Require a run within the operator's present limits."""
    objection = run.kept.once(_objection, policy, run)
    if objection is not None:
        code, reason = objection
        raise RefuseError(code, reason)


def _objection(policy: ClientPolicy, run: Run) -> tuple[Code, str] | None:
    """Return the code and the reason for which a policy refuses a run, or ``None``."""
    reason = policy.objection(run)
    if reason is not None:
        return Code.POLICY, reason
    if run.plan.is_private and not policy.allows_private_work:
        reason = "Expected a policy with state_dir for a private run. Got none."
        return Code.LEDGER, reason
    return None


def require_roster(identity: Identity | None, document: RunDocument) -> None:
    """Require the client's own roster and beacon, and levels that its clients can reach."""
    if identity is None:
        return
    is_own = document.roster == identity.roster.digest
    _require(
        is_own,
        Code.POLICY,
        "Expected the digest of this client's own roster. Got another.",
    )
    most = len(identity.roster) - document.max_colluders
    reason = f"Expected levels up to {most} with this client's own roster. Got more."
    _require(max(document.levels, default=most) <= most, Code.POLICY, reason)


def is_committed(session: "ClientSession", commitment: bytes) -> bool:
    """Return whether a session was begun with these records and this software."""
    # The time of the comparison must not depend on the secret: the server can time replies.
    return hmac.compare_digest(session.commitment, commitment)


def require_few_sessions(n_sessions: int) -> None:
    """Require at most `MAX_SESSIONS` sessions, so that a run sees few changes of records."""
    is_few = n_sessions <= MAX_SESSIONS
    _require(
        is_few,
        Code.STALE,
        f"Expected at most {MAX_SESSIONS} sessions of the client. Got {n_sessions} instead.",
    )


def require_attempt(run: Run, t: int, attempt: int) -> None:
    """Require a round and an attempt of the run."""
    rounds = run.algorithm.n_rounds
    attempts = run.document.max_attempts
    if t > rounds or attempt > attempts:
        most = f"Expected at most {rounds} rounds and {attempts} attempts."
        reason = f"{most} Got round {t}, attempt {attempt} instead."
        raise RefuseError(Code.POLICY, reason)


def require_blind(run: Run) -> None:
    """Require a run whose clients have a group key."""
    _require(
        run.trust.is_blind, Code.POLICY, "Expected group keys in a blind run only."
    )


def require_peers(
    policy: ClientPolicy, run: Run, peers: Sequence[Peer], own: bytes
) -> None:
    """Require that a key distributor serves enough clients, itself among them."""
    is_served = own in {peer.public_key for peer in peers}
    _require(is_served, Code.POLICY, "Expected this client's own key among the peers.")
    require_crowd(policy, run.document, len(peers), "peers")


def require_distinct(peers: Sequence[Peer]) -> None:
    """Require each peer once, and at most a cohort of them, because each costs a key exchange."""
    are_distinct = len(peers) <= MAX_SLOTS and len(
        {peer.slot for peer in peers}
    ) == len(peers)
    _require(
        are_distinct,
        Code.POLICY,
        f"Expected at most {MAX_SLOTS} peers, each once.",
    )


def require_crowd(
    policy: ClientPolicy, document: RunDocument, n: int, what: str
) -> None:
    """Require enough clients in a cohort, behind a sum, or among the peers of a distributor."""
    least = max(document.min_clients, policy.min_clients)
    if n < least:
        reason = f"Expected at least min_clients={least} {what}. Got {n} instead."
        raise RefuseError(Code.POLICY, reason)


def require_own_slot(identity: Identity | None, slot: int, n_slots: int) -> None:
    """Require the client's slot on its own roster, and a cohort of the roster's size."""
    if identity is not None and (slot, n_slots) != (
        identity.slot,
        len(identity.roster),
    ):
        got = f"Got slot {slot} of {n_slots} instead."
        reason = f"Expected this client's slot on its own roster. {got}"
        raise RefuseError(Code.POLICY, reason)


def require_leaf(
    leaf: bytes, slot: int, n_slots: int, path: bytes, root: bytes
) -> None:
    """Require that the leaf of this client's session is in the cohort's tree."""
    _require(root_from(leaf, slot, n_slots, path) == root, Code.RENEW)


def require_one_slot(session: "ClientSession", slot: int) -> None:
    """Require the slot that the session has had since its first message."""
    _require(session.slot in (-1, slot), Code.CONFLICT)


def accepted_committee(
    run: Run, roster: Roster | None, data: bytes, n_slots: int
) -> tuple[Committee, Sharing | None]:
    """Return the committee of an encoded list, and its sharing of vectors."""
    committee = Committee.decode(data, n_slots, run.document.max_colluders)
    require_committee(committee, roster, run.document)
    return committee, require_sharing(committee, run)


def require_committee(
    committee: Committee, roster: Roster | None, document: RunDocument
) -> None:
    """Require the canonical committee: all slots, or those drawn from the client's roster."""
    if committee.n_slots <= MAX_POSITIONS:
        slots = tuple(range(committee.n_slots))
    elif roster is None:
        # The server drew it: relayed keys protect against a passive server only.
        slots = committee.slots
    else:
        slots = roster.drawn(document.epoch)
    is_unchosen = committee.slots == slots and len(slots) == min(
        committee.n_slots, MAX_POSITIONS
    )
    _require(
        is_unchosen, Code.POLICY, "Expected all slots in the committee, or those drawn."
    )


def require_sharing(committee: Committee, run: Run) -> Sharing | None:
    """Return a committee's sharing of vectors; require that enough members are present."""
    try:
        return committee.sharing(run.trust.sum)
    except ConfigurationError:
        reason = "Expected more members of the committee to be present."
        raise RefuseError(Code.POLICY, reason) from None


def is_claimed(roster: Roster, doc_hash: bytes, peer: Peer) -> bool:
    """Return whether a slot's owner claimed it for this run and for the peer's node and key."""
    return roster.has_claimed(
        doc_hash, peer.slot, peer.node_id, peer.public_key, peer.claim
    )


def static_secret(identity: Identity | None) -> bytes:
    """Return the roster key's part of every secret with another client; empty if relayed."""
    return b"" if identity is None else primitives.exchange_secret(identity.seed)


def is_followed(session: "ClientSession", entry: Entry) -> bool:
    """Return whether a session has followed an entry of the round. The first entry counts."""
    return entry.t <= session.head


def require_same_query(entry: Entry, tag: bytes) -> None:
    """Require the sum of this client's own query and history."""
    # The sum of another query would lead to a state that no other client has.
    is_same = hmac.compare_digest(entry.tag, tag)
    _require(
        is_same,
        Code.CONFLICT,
        "Expected the sum of this client's query. Got another's sum.",
    )


def require_checksum(reconstructed: IntArray, n_survivors: int) -> None:
    """Require that the checksum word is the number of survivors.

    It is the only refusal that depends on a sum.
    """
    _require(int(reconstructed[-1]) == n_survivors, Code.GARBAGE)


def require_next_round(session: "ClientSession", t: int) -> None:
    """Require the round after the last entry."""
    _require(t > session.head, Code.STALE)  # its sum exists already
    _require(t == session.head + 1, Code.NEED)


def require_not_stale(last: "LastAnswer | None", t: int) -> None:
    """Require that no later round was answered."""
    _require(last is None or t >= last.t, Code.STALE)


def require_attempt_order(last: "LastAnswer | None", t: int, attempt: int) -> None:
    """Require that no later attempt at the round was answered."""
    _require(last is None or t != last.t or attempt >= last.attempt, Code.STALE)


def require_one_query(last: "LastAnswer | None", t: int, query: bytes) -> None:
    """Require that all attempts at a round have the same query, after the same history."""
    # Two answers to two queries of one round would be two releases for one charge.
    _require(last is None or last.t != t or last.query == query, Code.CONFLICT)


def require_one_answer(last: "LastAnswer | None", answer: "LastAnswer") -> None:
    """Require that an attempt has one answer: the same bytes in the same context."""
    is_other = last is None or (last.t, last.attempt) != (answer.t, answer.attempt)
    _require(is_other or last == answer, Code.CONFLICT)


def require_add_history(session: "ClientSession", t: int, h: bytes) -> None:
    """Require a round after the last entry and, if it is the next one, the client's history."""
    _require(t > session.head, Code.STALE)
    _require(t > session.head + 1 or h == session.h, Code.CONFLICT)


def require_one_vote(last: "LastVote | None", vote: "LastVote") -> None:
    """Require that only one sum of a round gets this client's sum-share, in all attempts."""
    # The difference of two sums of one round could be a single answer.
    _require(last is None or last.t != vote.t or last == vote, Code.CONFLICT)


def require_no_later_vote(last: "LastVote | None", t: int) -> None:
    """Require that no sum of a later round got this client's sum-share."""
    _require(last is None or last.t <= t, Code.STALE)
