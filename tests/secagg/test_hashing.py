"""Hashes and key derivation."""

import hashlib
import hmac
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.secagg.hashing import H, kdf, u32, u64

part_lists = st.lists(st.binary(max_size=9), max_size=4)


@given(part_lists, part_lists)
@settings(deadline=None)
def test_different_parts_give_different_digests(one, other):
    assert (H(b"x", *one) == H(b"x", *other)) == (one == other)


@given(part_lists)
@settings(deadline=None)
def test_labels_separate(parts):
    assert H(b"x", *parts) != H(b"y", *parts)


def test_digest_is_the_documented_one():
    content = b"flower-kmeans/1 leaf\0" + struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", 0)
    assert H(b"leaf", b"ab", b"") == hashlib.sha256(content).digest()
    assert H(b"leaf", memoryview(b"ab"), b"") == H(b"leaf", b"ab", b"")


def test_kdf_is_hkdf_written_out():
    extracted = hmac.digest(b"salt", b"key", "sha256")
    first = hmac.digest(extracted, b"flower-kmeans/1 label\x01", "sha256")
    second = hmac.digest(extracted, first + b"flower-kmeans/1 label\x02", "sha256")
    assert kdf(b"key", b"salt", b"label") == first
    assert kdf(b"key", b"salt", b"label", 40) == (first + second)[:40]


def test_integers():
    assert u32(2**32 - 1) == b"\xff" * 4
    assert u32(1) == b"\x01\0\0\0"
    assert u64(2**64 - 2) == b"\xfe" + b"\xff" * 7
