"""Words on the wire: each in as few whole bytes as its prime needs (docs/protocol.md, section 13).

Whatever a peer sends comes through `unpack`, so only words below their prime go any further, into
SEAL in particular.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from flower_kmeans.errors import MessageError
from flower_kmeans.vertical.ring import N, Words

_WORD_BYTES = 8


def packed_bytes(primes: Sequence[int]) -> int:
    """Return the bytes of one packed polynomial over these primes."""
    return sum(N * _width(p) for p in primes)


def pack(words: Words, primes: Sequence[int]) -> bytes:
    """Return words (..., primes, N) as bytes; those of prime i are below it.

    Polynomial after polynomial, prime after prime; each word little-endian, in the bytes of its
    prime.
    """
    rows = np.ascontiguousarray(words, dtype="<u8").reshape(-1, len(primes), N)
    out = np.empty((len(rows), packed_bytes(primes)), dtype=np.uint8)
    end = 0
    for i, p in enumerate(primes):
        start, end = end, end + N * _width(p)
        parts = rows[:, i].view(np.uint8).reshape(len(rows), N, _WORD_BYTES)
        out[:, start:end] = parts[..., : _width(p)].reshape(len(rows), -1)
    return out.tobytes()


def unpack(data: bytes, primes: Sequence[int], shape: tuple[int, ...] = ()) -> Words:
    """Return the words (*shape, primes, N) of so many packed polynomials, from bytes of any origin.

    Raises
    ------
    MessageError
        If there are more or fewer bytes, or a word is not below its prime.
    """
    count = prod(shape)
    if len(data) != count * packed_bytes(primes):
        raise MessageError(
            f"Packed words must have {count * packed_bytes(primes)} bytes. Got {len(data)} instead."
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(count, -1)
    words = np.zeros((count, len(primes), N), dtype="<u8")
    end = 0
    for i, p in enumerate(primes):
        start, end = end, end + N * _width(p)
        parts = words[:, i].view(np.uint8).reshape(count, N, _WORD_BYTES)
        parts[..., : _width(p)] = rows[:, start:end].reshape(count, N, -1)
        if (words[:, i] >= p).any():
            raise MessageError("A packed word is not below its prime.")
    return words.astype(np.uint64, copy=False).reshape(*shape, len(primes), N)


def _width(p: int) -> int:
    return (p.bit_length() + 7) // 8
