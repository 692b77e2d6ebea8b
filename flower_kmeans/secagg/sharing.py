"""A secret that more than half of a cohort open together (docs/protocol.md, section 7).

Whoever has the group key derives, for one announced sum, the same polynomial over the integers
modulo 2^255 - 19. Its constant coefficient is the secret, its value at ``index + 1`` the share of
a member. Any `quorum` of shares give the secret; one share less is consistent with every secret.
"""

import math
import struct
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.secagg.hashing import kdf, words

PRIME = 2**255 - 19
SHARE_BYTES = 32
_COEFFICIENT_BYTES = 48  # so much more than the prime has that no value is likelier than another
_WORD_BYTES = 8


def quorum(m: int) -> int:
    """Return the least number of members that are more than half of ``m``."""
    return m // 2 + 1


def polynomial(group_key: bytes, head: bytes, m: int) -> tuple[int, ...]:
    """Return the coefficients of one announced sum's polynomial, the constant one first.

    Parameters
    ----------
    group_key : bytes
        Kg, 32 bytes.
    head : bytes
        Transcript hash h_t, which names the context, the survivors and the sum.
    m : int
        Number of members of the cohort that was asked.

    Returns
    -------
    tuple of int
        `quorum` of ``m`` integers in [0, 2^384). They stand for what they are modulo 2^255 - 19,
        and are reduced where they are used: a member takes one value of the polynomial.
    """
    n_words = quorum(m) * _COEFFICIENT_BYTES // _WORD_BYTES
    stream = words(kdf(group_key, head, b"open polynomial"), 0, n_words).astype("<u8").tobytes()
    pieces = struct.iter_unpack(f"{_COEFFICIENT_BYTES}s", stream)
    return tuple(int.from_bytes(piece, "little") for (piece,) in pieces)


def secret_of(coefficients: tuple[int, ...]) -> bytes:
    """Return the secret of a polynomial, 32 bytes."""
    return (coefficients[0] % PRIME).to_bytes(SHARE_BYTES, "little")


def share_of(coefficients: tuple[int, ...], index: int) -> bytes:
    """Return the share of the member at a place, 32 bytes."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * (index + 1) + coefficient) % PRIME
    return value.to_bytes(SHARE_BYTES, "little")


def open_stream(secret: bytes, head: bytes, length: int, number: int = 0) -> NDArray[np.uint64]:
    """Return the words that seal what members give toward opening one announced sum.

    Parameters
    ----------
    secret : bytes
        `secret_of` the sum's polynomial.
    head : bytes
        Transcript hash h_t.
    length : int
        Number of words.
    number : int, default: 0
        0 seals the correction, a member's place plus 1 the key of the parts of its noise.

    Returns
    -------
    ndarray of shape (length,), uint64
    """
    return words(kdf(secret, head, b"open stream"), number, length)


@lru_cache(maxsize=1 << 16)
def _inverse(difference: int) -> int:
    """Return the inverse of a difference of two places, of which there are few."""
    return pow(difference, -1, PRIME)


class Interpolation:
    """The polynomial of least degree through some shares.

    It is the members' own if they are a quorum and every share is right; nothing here can tell.

    Parameters
    ----------
    shares : mapping of int to bytes
        Shares of 32 bytes by the members' places.
    """

    def __init__(self, shares: Mapping[int, bytes]) -> None:
        points = {
            index + 1: int.from_bytes(share, "little") % PRIME for index, share in shares.items()
        }
        self._points = points
        # Places are small integers: their products stay short enough to reduce only once.
        self._terms = [
            (x, y * pow(math.prod(x - z for z in points if z != x), -1, PRIME) % PRIME)
            for x, y in points.items()
        ]

    @property
    def secret(self) -> bytes:
        """The value at zero, 32 bytes."""
        return self._at(0)

    def share(self, index: int) -> bytes:
        """Return the share that fits the others at a place, 32 bytes."""
        return self._at(index + 1)

    def _at(self, x: int) -> bytes:
        value = self._points.get(x)
        if value is None:
            # Lagrange: the product over all points, and one inverse for each.
            total = sum(term * _inverse(x - z) for z, term in self._terms)
            value = total * math.prod(x - z for z in self._points) % PRIME
        return value.to_bytes(SHARE_BYTES, "little")
