"""Secure sums: private integer vectors in, their sum out (docs/protocol.md, section 3).

A new kind is one class in one file, registered under its name; the rules around it are
the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import IntArray, WordArray
from flower_kmeans.errors import ConfigurationError, KMeansError, MessageError

_WORDS = np.dtype("<u8")


class SumError(KMeansError):
    """The parts give no sum. The text holds nothing of the sum."""


class PartError(MessageError):
    """A part of a sum is malformed: the one at ``index``, in the order of the parts."""

    def __init__(self, index: int) -> None:
        super().__init__("A part of a sum is malformed.")
        self.index = index


@dataclass(frozen=True)
class Sharing:
    """The sharing of vectors among the positions of a committee."""

    n_positions: int  # m: absent ones included
    n_corrupt: int  # f: how many of them may be corrupt
    privacy: int  # tau: any tau shares say nothing about a vector
    packing: int  # k: words of a vector in one element of a share

    @property
    def threshold(self) -> int:
        """R = tau + k: sum-shares that reconstruct a sum."""
        return self.privacy + self.packing


@dataclass(frozen=True)
class SumContext:
    """The inputs of one sum beside the vectors."""

    digest: bytes  # context of the round and attempt, 32 bytes
    n_words: int  # L: length of a vector, checksum word included
    n_slots: int  # M: slots of the cohort
    group_key: bytes = field(default=b"", repr=False)  # Kg, where the server is blind
    sharing: Sharing | None = None  # where a committee adds


@dataclass(frozen=True)
class ReconstructedSum:
    """A reconstructed sum, shape (n_words,), int64, and the positions of false parts."""

    vector: IntArray = field(repr=False)
    liars: tuple[int, ...] = ()


class SecureSum(ABC):
    """One way to make a sum that only the right parties can reconstruct. It has no state."""

    name: ClassVar[str]
    # whether a protected vector says nothing about the vector
    is_protected: ClassVar[bool] = True
    # Whether there is one part for each position of a committee, whose members combine
    # the parts for their position. Otherwise there is one part, and the server
    # combines.
    by_committee: ClassVar[bool] = False
    limit: ClassVar[int] = 2**63  # words of a sum lie strictly between -limit and limit

    def set_up(
        self, n_positions: int, n_corrupt: int, n_present: int
    ) -> Sharing | None:
        """Return the sharing of vectors among a committee; ``None`` without one.

        A `ConfigurationError` if too few positions are present to reconstruct a sum.
        """
        return None

    @abstractmethod
    def protect(
        self, vector: IntArray, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return the protected parts of a client's vector (n_words,), int64.

        The secret is that of the client's session, 32 bytes.
        """

    def combine(self, parts: Iterable[bytes], context: SumContext) -> bytes:
        """Return the sum of parts, one of each client, as one part.

        Here they are words modulo 2^64. A `PartError` if a part is malformed.
        """
        return add_words(parts, context.n_words).astype(_WORDS, copy=False).tobytes()

    @abstractmethod
    def reconstruct(
        self,
        combined: Mapping[int, bytes],
        survivors: NDArray[np.bool_],
        context: SumContext,
    ) -> ReconstructedSum:
        """Return the sum of the survivors' vectors.

        A `SumError` if the parts give no sum. ``combined`` has results of `combine` by
        position, without a committee at position 0; ``survivors``, shape (n_slots,),
        states whose vectors were combined.
        """

    def part_bytes(self, n_words: int, sharing: Sharing | None) -> int:
        """Return the length of one part of a vector, in bytes."""
        return 8 * n_words

    def encode(self, vector: IntArray) -> bytes:
        """Return an unprotected vector as a part, such as the noise of a server."""
        return vector.astype("<i8", copy=False).tobytes()


def add_words(parts: Iterable[bytes], n_words: int) -> WordArray:
    """Return the sum of words modulo 2^64, or raise `PartError` for a wrong length."""
    total = np.zeros(n_words, dtype=np.uint64)
    for index, part in enumerate(parts):
        if len(part) != 8 * n_words:
            raise PartError(index)
        total += np.frombuffer(part, _WORDS)
    return total


SECURE_SUMS: dict[str, SecureSum] = {}


def register_secure_sum(kind: type[SecureSum]) -> type[SecureSum]:
    """Make a kind of secure sum known under its name (a class decorator)."""
    SECURE_SUMS[kind.name] = kind()
    return kind


def secure_sum(name: str) -> SecureSum:
    """Return the secure sum of a name; a `ConfigurationError` if there is none."""
    if name not in SECURE_SUMS:
        known = sorted(SECURE_SUMS)
        raise ConfigurationError(
            f"Expected secure_sum in {known}. Got {name!r} instead."
        )
    return SECURE_SUMS[name]


@register_secure_sum
class PlainSum(SecureSum):
    """No protection: words travel in clear, and the trusted server sees them."""

    name = "plain"
    is_protected = False

    def protect(
        self, vector: IntArray, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return the vector's bytes."""
        return (self.encode(vector),)

    def reconstruct(
        self,
        combined: Mapping[int, bytes],
        survivors: NDArray[np.bool_],
        context: SumContext,
    ) -> ReconstructedSum:
        """Return the words of the sum."""
        try:
            words = add_words([combined[0]], context.n_words)
        except (KeyError, PartError):
            raise SumError("The words of a sum are malformed.") from None
        return ReconstructedSum(words.view(np.int64))
