"""Hashes, key derivation and pseudo-random words (docs/protocol.md, section 2).

Every digest and key has the label of its purpose, so no value for one purpose equals a
value for another.
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


def H(label: bytes, *parts: bytes | memoryview) -> bytes:  # noqa: N802 (the protocol's name)
    """Return the SHA-256 digest, 32 bytes, of a label and of parts with their lengths.

    The label must not contain a zero byte. A memoryview must be contiguous with
    one-byte items.
    """
    return begin_hash(label, *parts).digest()


def begin_hash(label: bytes, *parts: bytes | memoryview) -> "hashlib._Hash":
    """Return the hash object of `H`. A caller adds further parts after their lengths."""
    digest = hashlib.sha256(VERSION + label + b"\0")
    for part in parts:
        digest.update(u64(len(part)))
        digest.update(part)
    return digest


def kdf(key: bytes, salt: bytes, label: bytes, length: int = DIGEST_BYTES) -> bytes:
    """Return ``length`` bytes derived by HKDF-SHA256 (RFC 5869) for a label and salt."""
    info = VERSION + label
    derivation = HKDF(algorithm=_SHA256, length=length, salt=salt, info=info)
    return derivation.derive(key)


def words(key: bytes, stream: int, length: int) -> NDArray[np.uint64]:
    """Return the first words, (length,), uint64, of a stream.

    The stream is AES-256-CTR from the counter block ``u64be(stream) u64be(0)``.
    """
    return word_drawer(key, length)(stream)


def word_drawer(key: bytes, length: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return a function from a stream to its first words, (length,), uint64.

    All calls share one cipher and one memory: a call overwrites the last result.
    """
    # Counter mode turns zeros into the stream itself. Streams are 2^64 blocks apart, so
    # none reaches another.
    counter_mode = modes.CTR(bytes(16))
    cipher = Cipher(algorithms.AES(key), counter_mode).encryptor()
    zeros = bytes(8 * length)
    # The cipher requires 15 more bytes than the data.
    buffer = np.empty(8 * length + 15, dtype=np.uint8)
    memory = memoryview(buffer.data)
    vector = buffer[: 8 * length].view("<u8")

    def draw(stream: int) -> WordArray:
        cipher.reset_nonce(_COUNTER.pack(stream, 0))
        cipher.update_into(zeros, memory)
        # This copies on big-endian processors only.
        return vector.astype(np.uint64, copy=False)

    return draw
