"""Hashes, key derivation and pseudo-random words (docs/protocol.md, section 2).

Every digest and every key of the protocol comes from here, under a separate label, so a value made
for one purpose never equals one made for another.
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

u32 = struct.Struct("<I").pack
"""An integer in [0, 2^32) as four bytes, little-endian."""
u64 = struct.Struct("<Q").pack
"""An integer in [0, 2^64) as eight bytes, little-endian."""

_COUNTER = struct.Struct(">QQ")
_WORD_BYTES = 8
_BLOCK_BYTES = 16


def H(label: bytes, *parts: bytes | memoryview) -> bytes:  # noqa: N802 (the protocol's name)
    """Return the SHA-256 digest of labelled parts.

    Each part is preceded by its length, so no two lists of parts give the same input.

    Parameters
    ----------
    label : bytes
        The purpose. Holds no zero byte.
    *parts : bytes or memoryview
        What is hashed. A memoryview must be contiguous with one-byte items; it is not copied.

    Returns
    -------
    bytes
        32 bytes.
    """
    digest = hashlib.sha256(VERSION + label + b"\0")
    for part in parts:
        digest.update(u64(len(part)))
        digest.update(part)
    return digest.digest()


def kdf(key: bytes, salt: bytes, label: bytes, length: int = DIGEST_BYTES) -> bytes:
    """Return a key derived by HKDF-SHA256 (RFC 5869) for one purpose.

    Parameters
    ----------
    key : bytes
        Input key material.
    salt : bytes
        What the derived key is bound to: a document's or a context's hash.
    label : bytes
        The purpose; the info string of HKDF is the protocol's version and this label.
    length : int, default: 32
        Length of the derived key in bytes.
    """
    info = VERSION + label
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(key)


def words(key: bytes, stream: int, length: int) -> NDArray[np.uint64]:
    """Return a pseudo-random vector.

    Parameters
    ----------
    key : bytes
        32 bytes.
    stream : int
        Which vector of this key, in [0, 2^64).
    length : int
        Number of words.

    Returns
    -------
    ndarray of shape (length,), uint64
        The first words of AES-256-CTR from counter block ``u64be(stream) u64be(0)``, each read
        little-endian.
    """
    return word_drawer(key, length)(stream)


def word_drawer(key: bytes, length: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return a function that draws `words` of one stream after the other into the same memory.

    Setting up a cipher and its buffers costs more than a short vector, so that is done once.
    """
    n_bytes = _WORD_BYTES * length
    # Counter mode turns zeros into the stream itself; within 2^64 blocks no stream reaches another.
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()
    zeros = bytes(n_bytes)
    buffer = np.empty(n_bytes + _BLOCK_BYTES - 1, dtype=np.uint8)  # the cipher wants that much room
    memory = memoryview(buffer.data)
    vector = buffer[:n_bytes].view("<u8")

    def draw(stream: int) -> NDArray[np.uint64]:
        cipher.reset_nonce(_COUNTER.pack(stream, 0))
        cipher.update_into(zeros, memory)
        return vector.astype(np.uint64, copy=False)  # a copy on big-endian processors only

    return draw
