"""Reals and arrays as text in run documents (docs/protocol.md, section 8).

Reals travel as C99 hex strings and arrays as base64 of little-endian float64, so what
one side hashed is bit for bit what the other side computes with.
"""

import base64
import binascii
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.errors import MessageError


def real_to_text(value: float) -> str:
    """Return the C99 hexadecimal text of a finite real; zero has no sign."""
    if not math.isfinite(value):
        raise MessageError("A real in a run document must be finite.")
    return (float(value) + 0.0).hex()


def real_from_text(text: Any) -> float:
    """Return the real that a C99 hexadecimal text stands for."""
    if not isinstance(text, str):
        raise MessageError("A real in a run document must be a hexadecimal string.")
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError):
        value = math.nan
    # One text for each real: another spelling would be another hash of the same run.
    if not math.isfinite(value) or real_to_text(value) != text:
        raise MessageError(
            "A real in a run document must be a canonical hexadecimal string."
        )
    return value


def array_to_text(array: ArrayLike) -> str:
    """Return base64 of the array as little-endian float64, in C order; the shape is not kept.

    As of reals, zeros have no sign.
    """
    values = np.ascontiguousarray(array, dtype="<f8") + 0.0
    return base64.b64encode(values.tobytes()).decode("ascii")


def array_from_text(text: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the float64 array of the given shape that a base64 text holds."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        data = b""
    # As for reals: bits after the last byte, which the decoder ignores, would be
    # another spelling.
    whole = len(data) == 8 * math.prod(shape)
    array = np.frombuffer(data if whole else b"", dtype="<f8").astype(np.float64)
    if not whole or array_to_text(array) != text:
        raise MessageError(
            f"An array of shape {shape} was expected as base64 of float64."
        )
    return array.reshape(shape)
