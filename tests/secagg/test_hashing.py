"""Hashes and key derivation."""

import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.secagg.hashing import H, kdf, words

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
