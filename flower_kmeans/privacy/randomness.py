"""The one module that reads the operating system's randomness.

Keys, run identifiers and privacy noise all start here. No public parameter of this
library is a seed for them, because a party that knows the seed can subtract the noise
(docs/guarantees, Theorem 9).

All secret randomness comes from the private function ``_os_random`` of this module,
which takes a number of bytes and returns that many. Tests replace it to make a run
repeatable.
"""

import os
from collections.abc import Callable, Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import require_positive

_os_random: Callable[[int], bytes] = os.urandom

_KEY_BYTES = 32
_WORD_BYTES = 8
_MAX_BRANCHES = 2**64 - 1  # branch i has the number i + 1, in 8 bytes


def token(n_bytes: int) -> bytes:
    """Return ``n_bytes`` secret random bytes of the operating system."""
    require_positive("n_bytes", n_bytes)
    return _os_random(n_bytes)


class Stream:
    """An endless stream of uniform 64-bit words.

    The words are AES-256 in counter mode (docs/protocol.md, "Noise share"). The main
    stream starts at counter block 0. Each position of the main stream has a branch:
    words with further bits of the word at that position. Branch ``i`` starts at counter
    block u64be(i + 1) || u64be(0), so no two branches have a block in common.

    Parameters
    ----------
    key : bytes of length 32
        Secret. It determines every word.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != _KEY_BYTES:
            raise ConfigurationError(
                f"The 'key' parameter must hold {_KEY_BYTES} bytes. Got {len(key)} instead."
            )
        self._key = bytes(key)
        self._main = _keystream(self._key, 0)
        self._position = 0

    @classmethod
    def fresh(cls) -> "Stream":
        """Return a stream under a new secret key."""
        return cls(token(_KEY_BYTES))

    @classmethod
    def from_key(cls, key: bytes) -> "Stream":
        """Return the stream of a key, at its first word."""
        return cls(key)

    def __repr__(self) -> str:
        # The key must not reach a log.
        return f"Stream(position={self._position})"

    @property
    def position(self) -> int:
        """Number of words taken from the main stream so far."""
        return self._position

    def words(self, n_words: int) -> NDArray[np.uint64]:
        """Return the next words of the main stream, (n_words,), uint64."""
        self._position += n_words
        # Little-endian words on every processor.
        data = self._main(n_words * _WORD_BYTES)
        return np.frombuffer(data, dtype="<u8").astype(np.uint64)

    def branch(self, position: int) -> Iterator[int]:
        """Yield words with further bits of the word at a position of the main stream."""
        if not 0 <= position < _MAX_BRANCHES:
            raise ConfigurationError(
                f"A position must be in [0, {_MAX_BRANCHES}). Got {position!r} instead."
            )
        source = _keystream(self._key, position + 1)
        while True:
            yield int.from_bytes(source(_WORD_BYTES), "little")


def _keystream(key: bytes, number: int) -> Callable[[int], bytes]:
    first_block = number.to_bytes(8, "big") + bytes(8)
    encryptor = Cipher(AES256(key), CTR(first_block)).encryptor()
    # The keystream is the encryption of zeros.
    return lambda n_bytes: encryptor.update(bytes(n_bytes))
