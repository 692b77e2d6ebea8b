"""Hashes, keys and seals: one for each purpose, and nothing opens with another."""

import hashlib
import hmac
import itertools
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg import primitives as keys
from flower_kmeans.secagg.primitives import H, kdf, words

A, B = bytes([1]) * 32, bytes([2]) * 32
# X25519 points of low order: the result of an exchange with them is zero for every
# secret.
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
part_lists = st.lists(st.binary(max_size=9), max_size=4)


@given(part_lists, part_lists)
@settings(deadline=None)
def test_different_parts_give_different_digests(one, other):
    assert (H(b"x", *one) == H(b"x", *other)) == (one == other)


def test_digest_is_the_documented_one():
    content = (
        b"flower-kmeans/3 leaf\0" + struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", 0)
    )
    assert H(b"leaf", b"ab", b"") == hashlib.sha256(content).digest()
    assert H(b"leaf", memoryview(b"ab"), b"") == H(b"leaf", b"ab", b"")


def test_kdf_is_hkdf_written_out():
    extracted = hmac.digest(b"salt", b"key", "sha256")
    first = hmac.digest(extracted, b"flower-kmeans/3 label\x01", "sha256")
    second = hmac.digest(extracted, first + b"flower-kmeans/3 label\x02", "sha256")
    assert kdf(b"key", b"salt", b"label") == first
    assert kdf(b"key", b"salt", b"label", 40) == (first + second)[:40]


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 40), st.binary(min_size=32, max_size=32)
)
@settings(deadline=None)
def test_words_are_aes_of_the_counter_blocks(stream, length, key):
    blocks = b"".join(
        stream.to_bytes(8, "big") + block.to_bytes(8, "big")
        for block in range(length // 2 + 1)
    )
    ecb = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305 (a second way to the same bytes)
    expected = ecb.encryptor().update(blocks)[: 8 * length]
    assert words(key, stream, length).astype("<u8").tobytes() == expected


@given(secrets, secrets, secrets, secrets)
@settings(max_examples=20, deadline=None)
def test_both_clients_of_a_pair_have_one_secret(e1, e2, s1, s2):
    one = keys.pair_secret(e1, keys.public_key(e2), s1, keys.public_key(s2))
    assert one == keys.pair_secret(e2, keys.public_key(e1), s2, keys.public_key(s1))
    assert one == keys.agree(e1, keys.public_key(e2)) + keys.agree(
        s2, keys.public_key(s1)
    )
    assert keys.pair_secret(e1, keys.public_key(e2)) == one[:32]


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_points_of_low_order_are_refused(point):
    for call in (
        lambda: keys.agree(A, point),
        lambda: keys.pair_secret(A, point),
        lambda: keys.pair_secret(A, keys.public_key(B), A, point),
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


P = 2**255 - 19


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_ephemeral_keys_that_give_no_secret_are_not_acceptable(point):
    assert not keys.is_acceptable(point)
    assert keys.is_acceptable(keys.public_key(A))


@given(st.integers(0, 2**256 - 1))
@settings(deadline=None)
def test_an_ephemeral_key_has_one_spelling(number):
    key = number.to_bytes(32, "little")
    assert keys.is_acceptable(key) == (number < P and key not in LOW_ORDER)
    if number >= P:
        with pytest.raises(MessageError):
            keys.agree(A, key)


def test_two_spellings_of_a_key_would_give_one_secret():
    """X25519 itself takes both, so each client has to look."""
    number = 9  # the base point
    for other in (number + 2**255, number + P):
        loaded = X25519PublicKey.from_public_bytes(other.to_bytes(32, "little"))
        assert keys.load(A).exchange(loaded) == keys.public_key(A)
        assert not keys.is_acceptable(other.to_bytes(32, "little"))


@given(secrets)
@settings(max_examples=20, deadline=None)
def test_the_two_halves_of_a_lasting_key_are_converted_alike(seed):
    """X25519 clears the scalar's bits, as Ed25519 does: the same multiple of the base point."""
    lasting = keys.lasting_key(seed)
    assert keys.public_key(keys.exchange_secret(seed)) == keys.exchange_key(lasting)
    assert keys.exchange_secret(seed) == hashlib.sha512(seed).digest()[:32]
    assert keys.is_on_curve(lasting)
    other_sign = lasting[:31] + bytes([lasting[31] ^ 128])
    assert keys.exchange_key(other_sign) == keys.exchange_key(lasting)


@pytest.mark.claim("threat-model", "10")
def test_a_claim_is_for_one_slot_node_key_and_run():
    right = {
        "doc_hash": bytes(32),
        "slot": 3,
        "node_id": 4,
        "ephemeral": keys.public_key(A),
    }
    claim, lasting = keys.claim(A, **right), keys.lasting_key(A)
    assert len(claim) == keys.CLAIM_BYTES
    assert keys.is_claim(claim, lasting, **right)
    for other in (
        {"doc_hash": b"\1" * 32},
        {"slot": 4},
        {"node_id": 3},
        {"node_id": 2**64 - 1},
        {"ephemeral": keys.public_key(B)},
    ):
        assert not keys.is_claim(claim, lasting, **right | other)
        assert keys.is_claim(keys.claim(A, **right | other), lasting, **right | other)
    for wrong in (bytes(64), b"", claim[:-1], claim + b"\0", claim[32:] + claim[:32]):
        assert not keys.is_claim(wrong, lasting, **right)
    assert not keys.is_claim(claim, keys.lasting_key(B), **right)


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


@given(
    st.binary(min_size=64, max_size=64), st.binary(min_size=1, max_size=60), st.binary()
)
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


@pytest.mark.claim("SECURITY", "ghsa-537c-gmf6-5ccf")
@pytest.mark.parametrize("tag", [bytes(16), None])
def test_no_seal_of_empty_data_opens(tag):
    """OpenSSL before 3.5.7 took some for authentic (CVE-2026-45446)."""
    key = bytes(range(64))
    made = keys.seal(key, b"data", b"context")[: keys.SEAL_BYTES]
    with pytest.raises(MessageError):
        keys.unseal(key, made if tag is None else tag, b"context")
