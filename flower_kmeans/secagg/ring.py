"""Vectors modulo 2^64: exact views of signed integers, and the check that a sum fits.

Additions of uint64 arrays wrap around by definition in NumPy, which is the ring's addition.
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError

WORD_BITS = 64


def to_ring(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return signed integers as ring elements: the same bits, without a copy."""
    return values.view(np.uint64)


def from_ring(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the signed integers nearest to zero that ring elements stand for, without a copy."""
    return words.view(np.int64)


def require_capacity(bound: float, word_bits: int = WORD_BITS, explanation: str = "") -> None:
    """Require that sums up to a bound are represented exactly.

    Parameters
    ----------
    bound : int or float
        Largest absolute value that a coordinate of a sum can take, noise included.
    word_bits : int, default: 64
        Size of a ring element in bits.
    explanation : str
        Where the bound comes from; it ends the error's message.

    Raises
    ------
    ConfigurationError
        If ``bound`` is not below ``2^(word_bits - 1)``, or is no number.
    """
    # NaN compares as False, so it is refused with the rest.
    if 0 <= bound < 2 ** (word_bits - 1):
        return
    shown = f"2^{math.log2(bound):.1f}" if 0 < bound < math.inf else f"{bound}"
    message = (
        f"Expected sums below 2^{word_bits - 1}, so that they fit into words of {word_bits} bits. "
        f"Got sums up to {shown} instead."
    )
    raise ConfigurationError(f"{message} {explanation}".rstrip())
