"""Arrays as bytes, for what a server asks and tells (docs/protocol.md, section 8).

The hash of a question stands in the context of its round, so arrays have one encoding, and bytes
that are none of some arrays are refused.
"""

import math
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import MessageError

MAX_BYTES = 2**26
"""Longest encoding: twice the words of the widest round."""
MAX_ARRAYS = 16
MAX_DIMENSIONS = 4

_MALFORMED = "The arrays of a message are malformed."
_NAME = re.compile(rb"[a-z][a-z0-9_]{0,31}")
_TYPES: tuple[tuple[type[np.generic], str], ...] = ((np.int64, "<i8"), (np.float64, "<f8"))
_COUNT = struct.Struct("<I")


def encode_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as they travel, in the order of their names.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of int64 or finite float64, at most 16 of them with at most 4 dimensions each; a name has
        at most 32 lower-case letters, digits and underscores and begins with a letter.

    Returns
    -------
    bytes
        u32 number of arrays; then for each u8 length of the name, name, u8 type (0: int64, 1:
        float64), u8 number of dimensions, u32 for each dimension, and the values in C order, eight
        bytes each. All integers are little-endian.

    Raises
    ------
    MessageError
        If they have no encoding.
    """
    if len(arrays) > MAX_ARRAYS:
        raise MessageError(f"Expected at most {MAX_ARRAYS} arrays. Got {len(arrays)} instead.")
    parts = [_COUNT.pack(len(arrays))]
    for name in sorted(arrays):
        array, label = arrays[name], name.encode("utf-8", "replace")
        code = next((i for i, (kind, _) in enumerate(_TYPES) if array.dtype == kind), None)
        if not _NAME.fullmatch(label):
            raise MessageError("Expected an array's name of at most 32 letters, digits and '_'.")
        if code is None or not _is_shape(array.shape) or not _is_finite(array):
            raise MessageError(
                f"Expected array {name!r} of int64 or finite float64 with at most {MAX_DIMENSIONS} "
                f"dimensions. Got {array.dtype} of shape {array.shape}."
            )
        parts += (
            struct.pack("B", len(label)) + label,
            struct.pack(f"<BB{array.ndim}I", code, array.ndim, *array.shape),
            array.astype(_TYPES[code][1], copy=False).tobytes(),
        )
    size = sum(map(len, parts))
    if size > MAX_BYTES:
        raise MessageError(f"Expected arrays of at most {MAX_BYTES} bytes. Got {size} instead.")
    return b"".join(parts)


def decode_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Read arrays.

    Parameters
    ----------
    data : bytes
        At most 64 MiB.

    Returns
    -------
    dict of str to ndarray
        Read-only arrays of int64 or float64, as many bytes as ``data`` together.

    Raises
    ------
    MessageError
        If the bytes are not exactly what `encode_arrays` writes for some arrays.
    """
    if len(data) > MAX_BYTES:
        raise MessageError(_MALFORMED)
    at, before, arrays = 0, b"", {}

    def take(size: int) -> bytes:
        nonlocal at
        if size > len(data) - at:
            raise MessageError(_MALFORMED)
        at += size
        return data[at - size : at]

    (number,) = _COUNT.unpack(take(_COUNT.size))
    if number > MAX_ARRAYS:
        raise MessageError(_MALFORMED)
    for _ in range(number):
        name = take(take(1)[0])
        code, n_dimensions = take(2)
        if not _NAME.fullmatch(name) or name <= before:
            raise MessageError(_MALFORMED)
        if code >= len(_TYPES) or n_dimensions > MAX_DIMENSIONS:
            raise MessageError(_MALFORMED)
        shape = struct.unpack(f"<{n_dimensions}I", take(4 * n_dimensions))
        if not _is_shape(shape):
            raise MessageError(_MALFORMED)
        kind, stored = _TYPES[code]
        values = np.frombuffer(take(8 * math.prod(shape)), dtype=stored).astype(kind, copy=False)
        if not _is_finite(values):
            raise MessageError(_MALFORMED)
        arrays[name.decode("ascii")] = values.reshape(shape)
        before = name
    if at != len(data):
        raise MessageError(_MALFORMED)
    return arrays


def _is_shape(shape: tuple[int, ...]) -> bool:
    """Return whether an array may have a shape, also where one of its sides is 0."""
    most = MAX_BYTES // 8
    return len(shape) <= MAX_DIMENSIONS and math.prod(max(side, 1) for side in shape) <= most


def _is_finite(array: NDArray[Any]) -> bool:
    return array.dtype == np.int64 or bool(np.isfinite(array).all())
