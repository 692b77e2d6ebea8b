"""Reals and arrays as text in run documents (docs/protocol.md, section 8).

Reals are C99 hexadecimal strings, and arrays are base64 of little-endian float64. So
the value that one side hashes is bit for bit the value that the other side uses.
"""

import base64
import binascii
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.errors import MessageError


def real_to_text(value: float) -> str:
    """Return the C99 hexadecimal text of a finite real. Zero has no sign.

    Raises
    ------
    MessageError
        If the real is not finite.
    """
    if not math.isfinite(value):
        raise MessageError("A real in a run document must be finite.")
    return (float(value) + 0.0).hex()


def real_from_text(text: Any) -> float:
    """Return the real of a C99 hexadecimal text.

    Raises
    ------
    MessageError
        If this is not the text that `real_to_text` writes.
    """
    if not isinstance(text, str):
        raise MessageError("A real in a run document must be a hexadecimal string.")
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError):
        value = math.nan
    # Each real has one text: another spelling would give the same run another hash.
    if not math.isfinite(value) or real_to_text(value) != text:
        raise MessageError(
            "A real in a run document must be a canonical hexadecimal string."
        )
    return value


def array_to_text(array: ArrayLike) -> str:
    """Return base64 of an array as little-endian float64 in C order, without its shape.

    Zeros have no sign.
    """
    values = np.ascontiguousarray(array, dtype="<f8") + 0.0
    return base64.b64encode(values.tobytes()).decode("ascii")


def array_from_text(text: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the float64 array of the given shape from a base64 text.

    Raises
    ------
    MessageError
        If this is not the text that `array_to_text` writes for this shape.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        data = b""
    # Each array has one text: the decoder ignores bits after the last byte, which would
    # be another spelling.
    whole = len(data) == 8 * math.prod(shape)
    array = np.frombuffer(data if whole else b"", dtype="<f8").astype(np.float64)
    if not whole or array_to_text(array) != text:
        raise MessageError(
            f"An array of shape {shape} was expected as base64 of float64."
        )
    return array.reshape(shape)
