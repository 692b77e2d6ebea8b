"""Secure sums: private integer vectors in, their sum out (docs/protocol.md, section 3).

Each kind of sum is one class, registered under its name.
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
    """The parts give no sum. The text of the error reveals nothing about the sum."""


class PartError(MessageError):
    """The part at ``index``, in the order of the parts, is malformed."""

    def __init__(self, index: int) -> None:
        super().__init__("A part of a sum is malformed.")
        self.index = index


@dataclass(frozen=True)
class Sharing:
    """The parameters of secret sharing among the positions of a committee.

    Attributes
    ----------
    n_positions : int
        m, the number of positions, with absent ones.
    n_corrupt : int
        f, the number of positions that may be corrupt.
    privacy : int
        tau: any tau shares reveal nothing about a vector.
    packing : int
        k, the number of a vector's words in one element of a share.
    """

    n_positions: int
    n_corrupt: int
    privacy: int
    packing: int

    @property
    def threshold(self) -> int:
        """R = tau + k, the number of sum-shares that reconstruct a sum."""
        return self.privacy + self.packing


@dataclass(frozen=True)
class SumContext:
    """The inputs of one sum beside the vectors.

    Attributes
    ----------
    digest : bytes
        Context of the round and the attempt, 32 bytes.
    n_words : int
        L, the length of a vector, with the checksum word.
    n_slots : int
        M, the number of slots of the cohort.
    group_key : bytes
        Kg, if the server is blind. Otherwise it is empty.
    sharing : Sharing, optional
        The parameters of the sharing, if a committee adds.
    """

    digest: bytes
    n_words: int
    n_slots: int
    group_key: bytes = field(default=b"", repr=False)
    sharing: Sharing | None = None


@dataclass(frozen=True)
class ReconstructedSum:
    """A reconstructed sum.

    Attributes
    ----------
    vector : ndarray of shape (n_words,), int64
        The sum of the survivors' vectors.
    liars : tuple of int
        Positions whose parts were false, in ascending order.
    """

    vector: IntArray = field(repr=False)
    liars: tuple[int, ...] = ()


class SecureSum(ABC):
    """One way to make a sum that only the right parties can reconstruct. It has no state.

    Attributes
    ----------
    name : str
        The name in run documents.
    is_protected : bool
        Whether a protected vector reveals nothing about the vector.
    by_committee : bool
        Whether a protected vector has one part for each position of a committee, whose
        members combine the parts for their position. Otherwise it is one part, and the
        server combines.
    limit : int
        Words of a sum lie strictly between -limit and limit.
    """

    name: ClassVar[str]
    is_protected: ClassVar[bool] = True
    by_committee: ClassVar[bool] = False
    limit: ClassVar[int] = 2**63

    def set_up(
        self, n_positions: int, n_corrupt: int, n_present: int
    ) -> Sharing | None:
        """Return the sharing of vectors among a committee, or ``None`` without one.

        Raises
        ------
        ConfigurationError
            If too few positions are present to reconstruct a sum.
        """
        return None

    @abstractmethod
    def protect(
        self, vector: IntArray, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return the protected parts of a client's vector, (n_words,), int64.

        ``secret`` is the secret of the client's session, 32 bytes.
        """

    def combine(self, parts: Iterable[bytes], context: SumContext) -> bytes:
        """Return the sum of parts, one from each client, as one part.

        By default parts are words that are added modulo 2^64.

        Raises
        ------
        PartError
            If a part is malformed.
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

        Parameters
        ----------
        combined : mapping from int to bytes
            Results of `combine` by position. Without a committee the position is 0.
        survivors : ndarray of shape (n_slots,), bool
            Whether the vector of each slot was combined.
        context : SumContext

        Raises
        ------
        SumError
            If the parts give no sum.
        """

    def part_bytes(self, n_words: int, sharing: Sharing | None) -> int:
        """Return the length of one part of a vector, in bytes."""
        return 8 * n_words

    def encode(self, vector: IntArray) -> bytes:
        """Return an unprotected vector as a part, for example a server's noise."""
        return vector.astype("<i8", copy=False).tobytes()


def add_words(parts: Iterable[bytes], n_words: int) -> WordArray:
    """Return the sum of parts modulo 2^64, (n_words,), uint64.

    Raises
    ------
    PartError
        If a part has another length.
    """
    total = np.zeros(n_words, dtype=np.uint64)
    for index, part in enumerate(parts):
        if len(part) != 8 * n_words:
            raise PartError(index)
        total += np.frombuffer(part, _WORDS)
    return total


SECURE_SUMS: dict[str, SecureSum] = {}


def register_secure_sum(kind: type[SecureSum]) -> type[SecureSum]:
    """Register a kind of secure sum under its name. This is a class decorator."""
    SECURE_SUMS[kind.name] = kind()
    return kind


def secure_sum(name: str) -> SecureSum:
    """Return the secure sum of a name.

    Raises
    ------
    ConfigurationError
        If there is none of this name.
    """
    if name not in SECURE_SUMS:
        known = sorted(SECURE_SUMS)
        raise ConfigurationError(
            f"Expected secure_sum in {known}. Got {name!r} instead."
        )
    return SECURE_SUMS[name]


@register_secure_sum
class PlainSum(SecureSum):
    """No protection: words are sent in clear, and the trusted server sees them."""

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
