"""Vectors modulo 2^64: exact views of signed integers.

Additions of uint64 arrays wrap around by definition in NumPy, which is the ring's addition.
"""

import numpy as np
from numpy.typing import NDArray


def to_ring(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return signed integers as ring elements: the same bits, without a copy."""
    return values.view(np.uint64)


def from_ring(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the signed integers nearest to zero that ring elements stand for, without a copy."""
    return words.view(np.int64)
