"""Masks that telescope over a cohort (docs/protocol.md, section 6).

Member ``i`` of ``m`` adds ``r_i = F(i) - F((i + 1) mod m) + [i = 0] G``, where F(0), ..., F(m - 1)
and G are pseudo-random vectors modulo 2^64. The masks are uniform on all m-tuples of vectors for
whoever lacks the key, so not even the sum shows. For whoever has it, the masks of any set of
survivors cancel up to the ends of its cyclic runs: removing them costs 2 vectors per run and one
more, making one costs 2 or 3, whatever m is.
"""

import struct
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from flower_kmeans.secagg.hashing import kdf

_G_STREAM = 2**64 - 1
_COUNTER = struct.Struct(">QQ")
_WORD_BYTES = 8
_BLOCK_BYTES = 16


def mask_key(group_key: bytes, context: bytes) -> bytes:
    """Return the key of all masks of one context (round, attempt, cohort, transcript)."""
    return kdf(group_key, context, b"mask")


def noise_key(life_secret: bytes, context: bytes) -> bytes:
    """Return the key of a client's noise share: repeated requests repeat it, others renew it."""
    return kdf(life_secret, context, b"noise")


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
    return _drawer(key, length)(stream)


def mask(key: bytes, index: int, m: int, length: int) -> NDArray[np.uint64]:
    """Return the mask of one member.

    Parameters
    ----------
    key : bytes
        `mask_key` of the context.
    index : int
        The member's place, 0..m-1.
    m : int
        Number of members of the cohort.
    length : int
        Number of words.

    Returns
    -------
    ndarray of shape (length,), uint64
    """
    draw = _drawer(key, length)
    result = draw(index).copy()
    result -= draw((index + 1) % m)
    if index == 0:
        result += draw(_G_STREAM)
    return result


def correction(key: bytes, survivors: NDArray[np.bool_], length: int) -> NDArray[np.uint64]:
    """Return the sum of the masks of all survivors.

    Parameters
    ----------
    key : bytes
        `mask_key` of the context.
    survivors : ndarray of shape (m,), bool
        Whose masks are added.
    length : int
        Number of words.

    Returns
    -------
    ndarray of shape (length,), uint64
        Made of two vectors for each cyclic run of survivors, and G if member 0 is among them.
    """
    draw = _drawer(key, length)
    result = np.zeros(length, dtype=np.uint64)
    before = np.roll(survivors, 1)  # before[i] says whether member i - 1 survived
    for start in np.flatnonzero(survivors & ~before).tolist():
        result += draw(start)
    for end in np.flatnonzero(before & ~survivors).tolist():
        result -= draw(end)
    if survivors.size and survivors[0]:
        result += draw(_G_STREAM)
    return result


def _drawer(key: bytes, length: int) -> Callable[[int], NDArray[np.uint64]]:
    """Return a function that draws one vector after the other, each into the same memory.

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
