"""One text for one object: the canonical JSON of run documents (protocol section 3).

Keys are sorted and ASCII, there are no spaces, no null and no floats. Reals travel as C99 hex
strings and arrays as base64 of little-endian float64, so what one side hashed is bit for bit what
the other side computes with.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_kmeans.errors import MessageError

MAX_BYTES = 2**20
_MAX_INTEGER = 2**53
_MAX_DEPTH = 32  # far more than any document has, far less than the interpreter's stack


def canonical_bytes(value: Mapping[str, Any]) -> bytes:
    """Return the canonical UTF-8 JSON of a document.

    Raises
    ------
    MessageError
        If the document holds a value that has no canonical form, is nested too deeply, or is
        longer than 1 MiB.
    """
    _require_canonical(value, _MAX_DEPTH)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    data = text.encode("utf-8")
    if len(data) > MAX_BYTES:
        raise MessageError(
            f"A run document holds at most {MAX_BYTES} bytes, this one has {len(data)}."
        )
    return data


def parse_canonical(data: bytes) -> dict[str, Any]:
    """Parse a document and require that it is written canonically.

    Raises
    ------
    MessageError
        If the bytes are not the canonical form of a JSON object.
    """
    if len(data) > MAX_BYTES:
        raise MessageError(f"A run document holds at most {MAX_BYTES} bytes.")
    try:
        value = json.loads(data.decode("utf-8"))
        if isinstance(value, dict) and canonical_bytes(value) == data:
            return value
    except (ValueError, RecursionError):
        pass
    raise MessageError("The run document is not canonical JSON.")


def _require_canonical(value: Any, depth: int) -> None:
    if not depth:
        raise MessageError(f"A run document has at most {_MAX_DEPTH} levels.")
    if isinstance(value, str | bool):
        return
    if isinstance(value, int):
        if abs(value) < _MAX_INTEGER:
            return
    elif isinstance(value, list):
        for item in value:
            _require_canonical(item, depth - 1)
        return
    elif isinstance(value, Mapping) and all(isinstance(k, str) and k.isascii() for k in value):
        for item in value.values():
            _require_canonical(item, depth - 1)
        return
    raise MessageError(f"A value of type {type(value).__name__} has no canonical form.")


def real_to_text(value: float) -> str:
    """Return the C99 hexadecimal text of a finite real."""
    if not math.isfinite(value):
        raise MessageError("A real in a run document must be finite.")
    return float(value).hex()


def real_from_text(text: Any) -> float:
    """Return the real that a C99 hexadecimal text stands for."""
    if not isinstance(text, str):
        raise MessageError("A real in a run document must be a hexadecimal string.")
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or value.hex() != text:
        raise MessageError("A real in a run document must be a canonical hexadecimal string.")
    return value


def array_to_text(array: ArrayLike) -> str:
    """Return base64 of the array as little-endian float64, in C order; the shape is not kept."""
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f8").tobytes()).decode("ascii")


def array_from_text(text: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the float64 array of the given shape that a base64 text holds."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        data = b""
    if not isinstance(text, str) or len(data) != 8 * math.prod(shape):
        raise MessageError(f"An array of shape {shape} was expected as base64 of float64.")
    return np.frombuffer(data, dtype="<f8").astype(np.float64).reshape(shape)
