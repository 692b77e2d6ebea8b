"""Keys between clients and of the group: one for each purpose, and nothing opens with another."""

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg.key_agreement import (
    KEY_ID_BYTES,
    SEAL_BYTES,
    TAG_BYTES,
    agree,
    group_key,
    key_id,
    noise_key,
    ownership_tag,
    pair_secret,
    public_key,
    query_key,
    seal,
    share_key,
    sum_share_key,
    unseal,
    wrap_key,
)

A, B = bytes([1]) * 32, bytes([2]) * 32
# X25519 points of low order: the result of an exchange with them is zero for every secret.
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]
secrets = st.binary(min_size=32, max_size=32)


@given(secrets, secrets, secrets, secrets)
@settings(max_examples=20, deadline=None)
def test_both_clients_of_a_pair_have_one_secret(e1, e2, s1, s2):
    one = pair_secret(e1, public_key(e2), s1, public_key(s2))
    assert one == pair_secret(e2, public_key(e1), s2, public_key(s1))
    assert one == agree(e1, public_key(e2)) + agree(s2, public_key(s1))
    assert pair_secret(e1, public_key(e2)) == one[:32]


def test_who_has_not_the_lasting_key_has_not_the_secret():
    ephemeral, static = os.urandom(32), os.urandom(32)
    right = pair_secret(A, public_key(ephemeral), B, public_key(static))
    assert pair_secret(ephemeral, public_key(A), os.urandom(32), public_key(B)) != right
    assert pair_secret(ephemeral, public_key(A), static, public_key(B)) == right


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_points_of_low_order_are_refused(point):
    for call in (
        lambda: agree(A, point),
        lambda: pair_secret(A, point),
        lambda: pair_secret(A, public_key(B), A, point),
        lambda: ownership_tag(A, point, bytes(32), 0, 1, public_key(B)),
    ):
        with pytest.raises(MessageError):
            call()


@given(st.binary(max_size=40).filter(lambda data: len(data) != 32))
def test_keys_of_other_lengths_are_refused(data):
    with pytest.raises(MessageError):
        agree(A, data)
    with pytest.raises(MessageError):
        pair_secret(A, public_key(B), B, data)
    if data:
        with pytest.raises(MessageError):
            pair_secret(A, public_key(B), b"", data)


def test_a_tag_is_for_one_owner_one_reader_one_key_and_one_run():
    given = (bytes(32), 3, 4, public_key(A))
    tag = ownership_tag(A, public_key(B), *given)
    assert ownership_tag(B, public_key(A), *given) == tag
    assert len(tag) == TAG_BYTES
    others = [
        ownership_tag(A, public_key(B), b"\1" * 32, *given[1:]),
        ownership_tag(A, public_key(B), bytes(32), 4, 3, given[3]),
        ownership_tag(A, public_key(B), bytes(32), 3, 5, given[3]),
        ownership_tag(A, public_key(B), *given[:3], public_key(B)),
        ownership_tag(A, public_key(bytes([3]) * 32), *given),
    ]
    assert len({tag, *others}) == 6


def derivations():
    """Yield every derived key, each argument in two versions."""
    zero, one = bytes(32), bytes([1]) * 32
    two = (zero, one)
    choices = {
        share_key: (two, two, (0, 1), (0, 1), two, two),
        wrap_key: (two, two, two, two),
        group_key: (two, two),
        query_key: (two,),
        key_id: (two, two),
        sum_share_key: (two, two, (0, 1), two),
        noise_key: (two, two),
    }
    for function, options in choices.items():
        for arguments in itertools.product(*options):
            yield function, arguments, function(*arguments)


def test_every_purpose_and_every_argument_has_a_separate_key():
    """No key starts like another, also not across purposes whose keys have other lengths."""
    found = list(derivations())
    assert len({key[:KEY_ID_BYTES] for _, _, key in found}) == len(found) == 64 + 16 + 12 + 2 + 16
    lengths = {(function, len(key)) for function, _, key in found}
    assert lengths == {
        (share_key, 64),
        (wrap_key, 64),
        (group_key, 32),
        (query_key, 32),
        (key_id, 16),
        (sum_share_key, 64),
        (noise_key, 32),
    }


@given(st.binary(min_size=64, max_size=64), st.binary(min_size=1, max_size=60), st.binary())
@settings(deadline=None)
def test_what_is_sealed_opens_and_nothing_else_does(key, data, associated):
    sealed = seal(key, data, associated)
    assert len(sealed) == len(data) + SEAL_BYTES
    assert unseal(key, sealed, associated) == data
    for wrong in (
        (bytes(x ^ 1 for x in key), sealed, associated),
        (key, bytes([sealed[0] ^ 1]) + sealed[1:], associated),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 128]), associated),
        (key, sealed[:-1], associated),
        (key, sealed, associated + b"\0"),
    ):
        with pytest.raises(MessageError):
            unseal(*wrong)


@given(st.binary(max_size=80))
@settings(deadline=None)
def test_any_bytes_are_no_seal(data):
    with pytest.raises(MessageError):
        unseal(bytes(64), data, b"")
