"""Keys between clients and of the group: one for each purpose, and nothing opens with another."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg import key_agreement as keys

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
    one = keys.pair_secret(e1, keys.public_key(e2), s1, keys.public_key(s2))
    assert one == keys.pair_secret(e2, keys.public_key(e1), s2, keys.public_key(s1))
    assert one == keys.agree(e1, keys.public_key(e2)) + keys.agree(s2, keys.public_key(s1))
    assert keys.pair_secret(e1, keys.public_key(e2)) == one[:32]


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_points_of_low_order_are_refused(point):
    for call in (
        lambda: keys.agree(A, point),
        lambda: keys.pair_secret(A, point),
        lambda: keys.pair_secret(A, keys.public_key(B), A, point),
        lambda: keys.ownership_tag(A, point, bytes(32), 0, 1, keys.public_key(B)),
    ):
        with pytest.raises(MessageError):
            call()


@given(st.binary(max_size=40).filter(lambda data: len(data) != 32))
def test_keys_of_other_lengths_are_refused(data):
    public = keys.public_key(B)
    for call in (
        lambda: keys.agree(A, data),
        lambda: keys.pair_secret(A, public, B, data),
        lambda: keys.pair_secret(A, public, b"", data or b"x"),
    ):
        with pytest.raises(MessageError):
            call()


def test_a_tag_is_for_one_owner_one_reader_one_key_and_one_run():
    given = (bytes(32), 3, 4, keys.public_key(A))
    tag = keys.ownership_tag(A, keys.public_key(B), *given)
    assert keys.ownership_tag(B, keys.public_key(A), *given) == tag
    assert len(tag) == keys.TAG_BYTES
    others = [
        keys.ownership_tag(A, keys.public_key(B), b"\1" * 32, *given[1:]),
        keys.ownership_tag(A, keys.public_key(B), bytes(32), 4, 3, given[3]),
        keys.ownership_tag(A, keys.public_key(B), bytes(32), 3, 5, given[3]),
        keys.ownership_tag(A, keys.public_key(B), *given[:3], keys.public_key(B)),
        keys.ownership_tag(A, keys.public_key(bytes([3]) * 32), *given),
    ]
    assert len({tag, *others}) == 6


def derivations():
    """Yield functions with every key that they derive, each argument in two versions."""
    two = bytes(32), bytes([1]) * 32
    choices = {
        keys.share_key: (two, two, (0, 1), (0, 1), two, two),
        keys.wrap_key: (two, two, two, two),
        keys.group_key: (two, two),
        keys.query_key: (two,),
        keys.key_id: (two, two),
        keys.sum_share_key: (two, two, (0, 1), two),
        keys.noise_key: (two, two),
    }
    for function, options in choices.items():
        for arguments in itertools.product(*options):
            yield function, function(*arguments)


def test_every_purpose_and_every_argument_has_a_separate_key():
    """No key starts like another, also not across purposes whose keys have other lengths."""
    found = list(derivations())
    starts = {key[: keys.KEY_ID_BYTES] for _, key in found}
    assert len(starts) == len(found) == 64 + 16 + 12 + 2 + 16
    lengths = {function: len(key) for function, key in found}
    assert list(lengths.values()) == [64, 64, 32, 32, 16, 64, 32]


@given(st.binary(min_size=64, max_size=64), st.binary(min_size=1, max_size=60), st.binary())
@settings(deadline=None)
def test_what_is_sealed_opens_and_nothing_else_does(key, data, associated):
    sealed = keys.seal(key, data, associated)
    assert len(sealed) == len(data) + keys.SEAL_BYTES
    assert keys.unseal(key, sealed, associated) == data
    for wrong in (
        (bytes(x ^ 1 for x in key), sealed, associated),
        (key, bytes([sealed[0] ^ 1]) + sealed[1:], associated),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 128]), associated),
        (key, sealed[:-1], associated),
        (key, sealed, associated + b"\0"),
    ):
        with pytest.raises(MessageError):
            keys.unseal(*wrong)


@pytest.mark.parametrize("tag", [bytes(16), None])
def test_no_seal_of_empty_data_opens(tag):
    """OpenSSL before 3.5.7 took some for authentic (CVE-2026-45446)."""
    key = bytes(range(64))
    made = keys.seal(key, b"data", b"context")[: keys.SEAL_BYTES]
    with pytest.raises(MessageError):
        keys.unseal(key, made if tag is None else tag, b"context")
