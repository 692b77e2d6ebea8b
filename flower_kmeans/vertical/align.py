"""The same order of rows at every party (docs/vertical.md, "Rows")."""

import hmac
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError, DataError

_KEY_BYTES = 16


def align_rows(
    ids: Iterable[object], key: bytes | str | os.PathLike[str]
) -> NDArray[np.intp]:
    """Return an order of rows, the same at all parties with the same ids and key.

    Rows are sorted by HMAC-SHA256 of their ids, so nobody without the key knows the
    order. Ids that only some parties have must be removed before.

    Parameters
    ----------
    ids : iterable
        One id for each of this party's rows, compared as text: 17 and "17" are the
        same.
    key : bytes or path
        A secret that all parties share, at least 16 bytes, or the file that holds it.

    Returns
    -------
    ndarray of shape (n,), intp
        ``rows[order]`` are the rows in the common order.

    Raises
    ------
    DataError
        If an id occurs more than once.
    ConfigurationError
        If the key cannot be read or is shorter than 16 bytes.
    """
    try:
        secret = key if isinstance(key, bytes) else Path(key).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"Expected key as bytes or a file that can be read. Got {key!r}: {error.strerror}."
        ) from None
    require_long(secret, "key")
    texts = [str(each) for each in ids]
    if len(set(texts)) < len(texts):
        raise DataError(
            "Expected ids that differ in all rows. Got at least one id twice."
        )
    digests = [hmac.digest(secret, text.encode(), "sha256") for text in texts]
    order = sorted(range(len(texts)), key=digests.__getitem__)
    return np.array(order, dtype=np.intp)


def require_long(key: bytes, name: str) -> None:
    """Require a key of rows that is too long to guess.

    Raises
    ------
    ConfigurationError
        If it is shorter than 16 bytes.
    """
    if len(key) < _KEY_BYTES:
        raise ConfigurationError(
            f"Expected {name} with at least {_KEY_BYTES} bytes. Got {len(key)} instead."
        )


def ids_digest(ids: Iterable[object], key: bytes = b"") -> bytes:
    """Return HMAC-SHA256 of ids in their order, 32 bytes, to compare parties' rows.

    ``key`` is the secret with which parties align their rows. Without a secret it is empty,
    and a reader of the digest can test guesses of all ids.
    """
    digest = hmac.new(key, digestmod="sha256")
    for each in ids:
        text = str(each).encode()
        # The length comes first: otherwise "ab", "c" and "a", "bc" would be the same.
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.digest()
