"""Hashes, key derivation and pseudo-random words (docs/protocol.md, section 2).

Every digest and key has a separate label, so that no value for one purpose equals
another's.
"""

import hashlib
import struct
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from flower_kmeans.arrays import WordArray

VERSION = b"flower-kmeans/3 "
DIGEST_BYTES = 32

u32 = struct.Struct("<I").pack  # an integer in [0, 2^32) as four bytes, little-endian
u64 = struct.Struct("<Q").pack  # an integer in [0, 2^64) as eight bytes, little-endian
_SHA256 = hashes.SHA256()
_COUNTER = struct.Struct(">QQ")
# named, as a function in a function makes its annotations anew


def H(label: bytes, *parts: bytes | memoryview) -> bytes:  # noqa: N802 (the protocol's name)
    """Return the SHA-256 digest of parts, each after its length, for a purpose.

    The label holds no zero byte. A memoryview must be contiguous with one-byte items.
    """
    return begin_hash(label, *parts).digest()


def begin_hash(label: bytes, *parts: bytes | memoryview) -> "hashlib._Hash":
    """Return the hash object of `H`, for further parts, each after its length."""
    digest = hashlib.sha256(VERSION + label + b"\0")
    for part in parts:
        digest.update(u64(len(part)))
        digest.update(part)
    return digest


def kdf(key: bytes, salt: bytes, label: bytes, length: int = DIGEST_BYTES) -> bytes:
    """Return a key derived by HKDF-SHA256 (RFC 5869) for one purpose and salt."""
    info = VERSION + label
    derivation = HKDF(algorithm=_SHA256, length=length, salt=salt, info=info)
    return derivation.derive(key)


def words(key: bytes, stream: int, length: int) -> NDArray[np.uint64]:
    """Return words (length,), uint64, of a stream.

    They are AES-256-CTR from the counter block ``u64be(stream) u64be(0)``.
    """
    return word_drawer(key, length)(stream)


def word_drawer(key: bytes, length: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return a function that draws streams with one cipher, into one memory."""
    # Counter mode turns zeros into the stream itself; within 2^64 blocks no stream
    # reaches another.
    counter_mode = modes.CTR(bytes(16))
    cipher = Cipher(algorithms.AES(key), counter_mode).encryptor()
    zeros = bytes(8 * length)
    # the cipher needs that much room
    buffer = np.empty(8 * length + 15, dtype=np.uint8)
    memory = memoryview(buffer.data)
    vector = buffer[: 8 * length].view("<u8")

    def draw(stream: int) -> WordArray:
        cipher.reset_nonce(_COUNTER.pack(stream, 0))
        cipher.update_into(zeros, memory)
        # a copy on big-endian processors only
        return vector.astype(np.uint64, copy=False)

    return draw
