"""Hashes, key derivation and pseudo-random words (docs/protocol.md, section 2).

Every digest and key has a separate label, so that no value for one purpose equals another's.
"""

import hashlib
import struct
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

VERSION = b"flower-kmeans/2 "
DIGEST_BYTES = 32

u32 = struct.Struct("<I").pack  # an integer in [0, 2^32) as four bytes, little-endian
u64 = struct.Struct("<Q").pack  # an integer in [0, 2^64) as eight bytes, little-endian
_HASH_BLOCK = 64
_HALF_BLOCK = bytes(32)
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))  # of HMAC
_COUNTER = struct.Struct(">QQ")


def H(label: bytes, *parts: bytes | memoryview) -> bytes:  # noqa: N802 (the protocol's name)
    """Return the SHA-256 digest of parts, each after its length, for a purpose.

    The label holds no zero byte. A memoryview must be contiguous with one-byte items.
    """
    digest = hashlib.sha256(VERSION + label + b"\0")
    for part in parts:
        digest.update(u64(len(part)))
        digest.update(part)
    return digest.digest()


def kdf(key: bytes, salt: bytes, label: bytes, length: int = DIGEST_BYTES) -> bytes:
    """Return a key derived by HKDF-SHA256 (RFC 5869) for one purpose, bound to the salt."""
    info = VERSION + label
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(key)


def key_drawer(salt: bytes) -> Callable[[bytes, bytes], bytes]:
    """Return a function of a key and a label: `kdf` of 64 bytes, for many keys under one salt.

    HKDF written out: the hashes of the salt's blocks are made once, which saves a third of the
    time. The salt has at most 64 bytes.
    """
    sha256, block = hashlib.sha256, salt.ljust(_HASH_BLOCK, b"\0")
    salted_inner, salted_outer = sha256(block.translate(_INNER)), sha256(block.translate(_OUTER))

    def draw(key: bytes, label: bytes) -> bytes:
        inner, outer = salted_inner.copy(), salted_outer.copy()
        inner.update(key)
        outer.update(inner.digest())
        block = outer.digest() + _HALF_BLOCK
        inside, outside, info = block.translate(_INNER), block.translate(_OUTER), VERSION + label
        first = sha256(outside + sha256(inside + info + b"\1").digest()).digest()
        return first + sha256(outside + sha256(inside + first + info + b"\2").digest()).digest()

    return draw


def words(key: bytes, stream: int, length: int) -> NDArray[np.uint64]:
    """Return pseudo-random words, shape (length,), uint64: stream number ``stream`` of a key.

    They are AES-256-CTR from counter block ``u64be(stream) u64be(0)``, read little-endian.
    """
    return word_drawer(key, length)(stream)


def word_drawer(key: bytes, length: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return a function that draws `words` of one stream after the other into the same memory.

    Setting up a cipher and its buffers costs more than a short vector, so that is done once.
    """
    # Counter mode turns zeros into the stream itself; within 2^64 blocks no stream reaches another.
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros = bytes(8 * length)
    buffer = np.empty(8 * length + 15, dtype=np.uint8)  # the cipher needs that much room
    memory, vector = memoryview(buffer.data), buffer[: 8 * length].view("<u8")

    def draw(stream: int) -> NDArray[np.uint64]:
        cipher.reset_nonce(_COUNTER.pack(stream, 0))
        cipher.update_into(zeros, memory)
        return vector.astype(np.uint64, copy=False)  # a copy on big-endian processors only

    return draw
