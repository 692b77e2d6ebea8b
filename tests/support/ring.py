"""Elements of the ring of shares as they travel."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import MessageError
from flower_kmeans.secagg import shares


def pack(residues: NDArray[Any]) -> bytes:
    """Return elements of the ring, residues of shape (3, n), as words of eight bytes."""
    return shares._joined(residues).astype("<u8").tobytes()


def unpack(data: bytes, length: int) -> NDArray[np.uint64]:
    """Return the words of so many elements; a `MessageError` if they are none."""
    elements, proper = shares._elements([data], length)
    if not proper.all():
        raise MessageError("A share has the wrong length, or words that are no elements.")
    return elements.reshape(length)
