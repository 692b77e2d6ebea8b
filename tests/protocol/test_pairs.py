"""The secrets that client sessions share, and what a process keeps of them."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import pytest
from cohorts import kept_pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import Peer, Wrap, split, write_claims
from flower_kmeans.protocol.roster import Identity, Roster
from flower_kmeans.protocol.session import ClientSession, Pairs
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork
from flower_kmeans.secagg import primitives

DOC = b"d" * 32
STATICS = [bytes([i + 1]) * 32 for i in range(4)]
ROSTER = Roster(tuple("abcd"), tuple(map(primitives.lasting_key, STATICS)))
SESSIONS = [ClientSession.begin(DOC, b"document", 1) for _ in STATICS]
SMALL_ORDER = bytes(32)


def identity(slot):
    return Identity(ROSTER, STATICS[slot], ROSTER.keys[slot], slot)


def of(slot, *, relayed=False, doc_hash=DOC, shared=NO_SHARED_WORK):
    own = None if relayed else identity(slot)
    return Pairs(doc_hash, SESSIONS[slot], own, shared)


def peer(owner, relayed=False, **changes):
    pair, node_id = of(owner, relayed=relayed), 100 + owner
    made = {} if relayed else {"node_id": node_id, "claim": pair.claim(node_id)}
    return Peer(**{"slot": owner, "public_key": pair.public_key, **made, **changes})


each_keys = pytest.mark.parametrize("relayed", [False, True])


def test_a_secret_needs_both_lasting_and_both_ephemeral_keys():
    first, second = of(0), of(1)
    others = {
        first.secret(2, second.public_key),
        first.secret(1, of(2).public_key),
        Pairs(DOC, SESSIONS[0], identity(2)).secret(1, second.public_key),
        Pairs(DOC, SESSIONS[2], identity(0)).secret(1, second.public_key),
    }
    assert first.secret(1, second.public_key) not in others


def test_a_slot_beyond_the_roster_has_no_secret():
    own = of(0)
    key = of(3).public_key
    assert own.secret(3, key)
    for slot in (4, 5, 2**32 - 1):
        with pytest.raises(MessageError, match=f"below 4. Got {slot}"):
            own.secret(slot, key)


def wrong_claims():
    """Return a client with everything that is not its owner's claim for this node and key."""
    right = peer(0)
    yield from (
        right._replace(claim=false) for false in (peer(1).claim, b"", bytes(64))
    )
    yield from (right._replace(slot=slot) for slot in (2, 4, 2**32 - 1))
    yield right._replace(public_key=of(2).public_key)
    yield right._replace(node_id=right.node_id + 1)
    yield right._replace(claim=of(0, doc_hash=b"e" * 32).claim(right.node_id))


def test_owners_claims_are_accepted_and_no_others():
    reader = of(1, shared=SharedWork())
    for _ in range(2):  # the second time from shared work
        reader.require_claim(peer(0))
        for wrong in wrong_claims():
            with pytest.raises(MessageError):
                reader.require_claim(wrong)
    other = of(1, doc_hash=b"e" * 32)  # of another run
    with pytest.raises(MessageError):
        other.require_claim(peer(0))
    other.require_claim(peer(0, claim=of(0, doc_hash=b"e" * 32).claim(100)))
    other_roster = Roster(
        tuple("abcd"), (ROSTER.keys[1], ROSTER.keys[0], *ROSTER.keys[2:])
    )
    misled = Pairs(
        DOC, SESSIONS[2], Identity(other_roster, STATICS[2], ROSTER.keys[2], 2)
    )
    with pytest.raises(MessageError):
        misled.require_claim(peer(0))


def test_the_claims_of_a_committee_are_those_of_its_present_positions():
    keys = tuple(of(i).public_key if i != 2 else b"" for i in range(4))
    committee = Committee((0, 1, 2, 3), keys, 4, 1)
    made = [(peer(i).node_id, peer(i).claim) for i in (0, 1, 3)]
    right = write_claims(made)
    reader = of(1, shared=SharedWork())
    for _ in range(2):
        reader.require_claims(committee, right)
        others = (made[::-1], made[:2], [*made, made[2]], [made[0], made[0], made[2]])
        for wrong in map(write_claims, others):
            with pytest.raises(MessageError):
                reader.require_claims(committee, wrong)
        swapped = replace(committee, public_keys=(*keys[:3], of(2).public_key))
        with pytest.raises(MessageError):
            reader.require_claims(swapped, right)


@each_keys
def test_both_ends_of_a_pair_have_one_secret_and_no_other_pair_has_it(relayed):
    found = {}
    # Both ends share their work, and each computes alone.
    for shared in (SharedWork(), NO_SHARED_WORK):
        for i, j in product(range(4), repeat=2):
            own = of(i, relayed=relayed, shared=shared)
            secret = own.secret(j, of(j, relayed=relayed).public_key)
            assert len(secret) == (32 if relayed else 64)
            assert found.setdefault(frozenset((i, j)), secret) == secret
    assert len(set(found.values())) == len(found) == 10
    assert of(0).secret(1, of(1).public_key) != of(0, relayed=True).secret(
        1, of(1).public_key
    )


def test_relayed_keys_have_no_claims():
    assert of(0, relayed=True).claim(100) == b""
    of(1, relayed=True).secret(77, of(0).public_key)
    of(1, relayed=True).require_claim(peer(0, claim=b"anything"))
    committee = Committee((0, 1), (of(0).public_key, of(1).public_key), 2, 1)
    of(1, relayed=True).require_claims(committee, b"")
    with pytest.raises(MessageError, match="no claims"):
        of(1, relayed=True).require_claims(committee, bytes(144))


@each_keys
def test_group_secrets_reach_their_peers_and_nobody_else(relayed):
    secret, readers = b"g" * 32, [of(i, relayed=relayed) for i in range(4)]
    envelopes = readers[0].wrap(secret, tuple(peer(i, relayed) for i in range(4)))
    leader = peer(0, relayed).row
    for i, j in product(range(4), repeat=2):
        with nullcontext() if i == j else pytest.raises(MessageError):
            wrap = Wrap(
                distributor=leader, key_id=bytes(16), envelope=split(envelopes, 48)[i]
            )
            assert readers[j].unwrap(wrap) == secret
    with pytest.raises(MessageError):
        of(3, relayed=relayed, doc_hash=b"e" * 32).unwrap(wrap)


def test_one_peer_with_a_wrong_key_or_claim_and_nothing_is_sealed():
    for wrong in wrong_claims():
        with pytest.raises(MessageError):
            of(3).wrap(b"g" * 32, (peer(1), wrong, peer(2)))
    assert len(of(3).wrap(b"g" * 32, (peer(1), peer(0), peer(2)))) == 3 * 48
    for key in (SMALL_ORDER, other_spelling(of(1).public_key)):
        with pytest.raises(MessageError):
            of(0, relayed=True).wrap(b"g" * 32, (Peer(slot=1, public_key=key),))


def other_spelling(key):
    """Return another one that X25519 takes for the same key."""
    return key[:31] + bytes([key[31] | 128])


def test_an_envelope_comes_from_one_distributor():
    reader = of(1, relayed=True)
    for row in (peer(0, True).row * 2, peer(0, True).row * 3, peer(0).row[:-1]):
        with pytest.raises(MessageError):
            reader.unwrap(Wrap(distributor=row, key_id=bytes(16), envelope=bytes(48)))


def test_an_envelope_of_a_distributor_without_its_claim_is_an_error():
    """Also if it opens: of this session's key, for another node or by another's claim."""
    envelope, right = of(0).wrap(b"g" * 32, (peer(1),)), peer(0)
    assert of(1).unwrap(
        Wrap(distributor=right.row, key_id=bytes(16), envelope=envelope)
    )
    for false in (right._replace(claim=peer(2).claim), right._replace(node_id=9)):
        with pytest.raises(MessageError):
            of(1).unwrap(
                Wrap(distributor=false.row, key_id=bytes(16), envelope=envelope)
            )


@settings(deadline=None)
@given(st.binary(min_size=48, max_size=48))
def test_any_other_envelope_is_an_error(envelope):
    with pytest.raises(MessageError):
        of(1).unwrap(Wrap(distributor=peer(0).row, key_id=bytes(16), envelope=envelope))


def test_what_is_kept_is_bounded_and_named_by_no_secret():
    shared = SharedWork(most_secrets=10)
    for i, j in product(range(4), repeat=2):
        of(i, shared=shared).secret(j, of(j).public_key)
        assert 0 < len(kept_pairs(shared)) <= 10
    names = kept_pairs(shared)
    parts = [part for name in names for part in name if isinstance(part, bytes)]
    assert any(part.startswith(of(3).public_key) for part in parts)
    assert not any(
        secret in part for part in parts for secret in (SESSIONS[3].ephemeral, *STATICS)
    )


def test_what_failed_is_not_kept():
    shared = SharedWork()
    own = of(0, shared=shared)
    kept = kept_pairs(shared)
    assert kept
    for _ in range(2):
        with pytest.raises(MessageError):
            own.secret(1, SMALL_ORDER)
    assert kept_pairs(shared) == kept


def test_a_client_that_shares_with_nobody_keeps_nothing():
    own = of(0)
    for _ in range(2):
        own.secret(1, of(1).public_key)
    assert kept_pairs(NO_SHARED_WORK) == {}
