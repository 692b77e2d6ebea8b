"""Group keys and envelopes."""

import os

import pytest

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg.keys import (
    ENVELOPE_BYTES,
    LEADER_BYTES,
    group_key,
    key_id,
    make_envelopes,
    open_envelope,
    public_key,
)

DOC = bytes(32)
# X25519 points of low order: the result of an exchange with them is zero for every secret.
LOW_ORDER = [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")]


@pytest.fixture
def members():
    return [os.urandom(32) for _ in range(3)]


@pytest.mark.parametrize("pinned", [False, True])
def test_every_member_opens_its_own_envelope(members, pinned):
    secret, static = os.urandom(32), os.urandom(32) if pinned else None
    pubs = [public_key(member) for member in members]
    leader, envelopes = make_envelopes(secret, pubs, DOC, os.urandom(32), static)
    assert len(leader) == LEADER_BYTES
    assert list(envelopes) == pubs
    assert len(set(envelopes.values())) == len(members)
    for member, pub in zip(members, pubs, strict=True):
        assert len(envelopes[pub]) == ENVELOPE_BYTES
        assert open_envelope(envelopes[pub], leader, member, DOC, pinned=pinned) == secret


@pytest.mark.parametrize("pinned", [False, True])
def test_nothing_else_opens_it(members, pinned):
    secret, static = os.urandom(32), os.urandom(32) if pinned else None
    pubs = [public_key(member) for member in members]
    leader, envelopes = make_envelopes(secret, pubs, DOC, os.urandom(32), static)
    envelope = envelopes[pubs[0]]
    other = public_key(os.urandom(32))
    flipped = bytes([envelope[0] ^ 1]) + envelope[1:]
    wrong = [
        (envelope, leader, members[1], DOC, pinned),
        (envelope, leader, members[0], b"\1" * 32, pinned),
        (envelope, leader, members[0], DOC, not pinned),
        (envelope, other + other, members[0], DOC, pinned),
        (envelope, leader[:32] + other, members[0], DOC, pinned),
        (envelope, leader[:32], members[0], DOC, pinned),
        (envelopes[pubs[1]], leader, members[0], DOC, pinned),
        (flipped, leader, members[0], DOC, pinned),
        (envelope[:15], leader, members[0], DOC, pinned),
        (b"", leader, members[0], DOC, pinned),
    ]
    for content, sender, member, doc_hash, is_pinned in wrong:
        with pytest.raises(MessageError):
            open_envelope(content, sender, member, doc_hash, pinned=is_pinned)


def test_a_stranger_cannot_write_in_a_pinned_leaders_name(members):
    """With the ephemeral key alone, whoever it pretends to be, no pinned envelope opens."""
    pub, leader_pub = public_key(members[0]), public_key(os.urandom(32))
    leader, envelopes = make_envelopes(os.urandom(32), [pub], DOC, os.urandom(32), os.urandom(32))
    with pytest.raises(MessageError):
        open_envelope(envelopes[pub], leader[:32] + leader_pub, members[0], DOC, pinned=True)


@pytest.mark.parametrize("point", LOW_ORDER)
def test_points_of_low_order_are_refused(members, point):
    with pytest.raises(MessageError):
        make_envelopes(os.urandom(32), [point], DOC, os.urandom(32))
    with pytest.raises(MessageError):
        open_envelope(bytes(ENVELOPE_BYTES), point + point, members[0], DOC)


def test_keys_belong_to_one_run():
    secret = os.urandom(32)
    assert group_key(secret, DOC) == group_key(secret, DOC)
    assert len({group_key(secret, DOC), group_key(secret, b"\1" * 32), group_key(DOC, DOC)}) == 3
    assert len(key_id(secret, DOC)) == 8
    assert key_id(secret, DOC) != group_key(secret, DOC)[:8]
