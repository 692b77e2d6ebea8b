"""Secure sums: many private integer vectors in, their sum out (docs/protocol.md, section 3).

A secure sum knows nothing of clustering, keys of other clients or Flower. The rules around it, on
the client and on the server, are the same for every kind. A new kind is one class in one file,
registered under a name that a trust model gives.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError, KMeansError, MessageError

Integers = NDArray[np.int64]


class SumError(KMeansError):
    """The parts of a sum do not open. The text holds nothing of the sum."""


class PartError(MessageError):
    """A part of a sum is malformed.

    Attributes
    ----------
    index : int
        Which of the parts, in their order: so its client can be named.
    """

    def __init__(self, index: int) -> None:
        super().__init__("A part of a sum is malformed.")
        self.index = index


@dataclass(frozen=True)
class Sharing:
    """How vectors are shared among the positions of a committee.

    Attributes
    ----------
    n_positions : int
        m: positions of the committee, absent ones included.
    n_corrupt : int
        f: positions that may be corrupt.
    privacy : int
        tau: any tau shares say nothing about a vector.
    packing : int
        k: words of a vector in one element of a share.
    """

    n_positions: int
    n_corrupt: int
    privacy: int
    packing: int

    @property
    def threshold(self) -> int:
        """R = tau + k: sum-shares that open a sum."""
        return self.privacy + self.packing

    def blocks(self, vector: Integers) -> Integers:
        """Return the blocks of a vector as columns, shape (k, n_blocks), filled up with zeros."""
        filled = np.zeros(self.packing * -(-len(vector) // self.packing), dtype=np.int64)
        filled[: len(vector)] = vector
        return filled.reshape(self.packing, -1)


@dataclass(frozen=True)
class SumContext:
    """What one sum depends on beside the vectors.

    Attributes
    ----------
    digest : bytes
        Context of the round and attempt, 32 bytes.
    n_words : int
        L: length of a vector, checksum word included.
    n_slots : int
        M: slots of the cohort.
    group_key : bytes
        The clients' common key, where the server is blind; else empty.
    sharing : Sharing, optional
        Where a committee adds.
    """

    digest: bytes
    n_words: int
    n_slots: int
    group_key: bytes = field(default=b"", repr=False)
    sharing: Sharing | None = None


@dataclass(frozen=True)
class Opened:
    """An opened sum.

    Attributes
    ----------
    vector : ndarray of shape (n_words,), int64
    liars : tuple of int
        Positions whose parts were false and were left out.
    """

    vector: Integers = field(repr=False)
    liars: tuple[int, ...] = ()


class SecureSum(ABC):
    """One way to make a sum that only the right parties can open. It has no state.

    Attributes
    ----------
    name : str
        As trust models name it.
    is_protected : bool
        Whether a protected vector says nothing about the vector.
    by_committee : bool
        Whether `protect` returns one part for each position of a committee, whose members combine
        the parts for their position in a second round trip. Otherwise it returns one part, and the
        server combines.
    limit : int
        Words of a sum must lie strictly between ``-limit`` and ``limit``.
    """

    name: ClassVar[str]
    is_protected: ClassVar[bool] = True
    by_committee: ClassVar[bool] = False
    limit: ClassVar[int] = 2**63

    def set_up(self, n_positions: int, n_corrupt: int, n_present: int) -> Sharing | None:
        """Return how vectors are shared among a committee; ``None`` without one.

        Raises
        ------
        ConfigurationError
            If too few positions are present to open a sum.
        """
        return None

    @abstractmethod
    def protect(
        self, vector: Integers, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return a vector as it may leave its client: one part, or one for each position.

        Parameters
        ----------
        vector : ndarray of shape (n_words,), int64
        context : SumContext
        slot : int
            The client's slot in the cohort.
        secret : bytes
            The client session's secret, 32 bytes.
        """

    def combine(self, parts: Iterable[bytes], context: SumContext) -> bytes:
        """Return the sum of parts, one of each client, as one part: here of words modulo 2^64.

        Raises
        ------
        PartError
            If a part is malformed; it says which.
        """
        return add_words(parts, context.n_words).astype("<u8").tobytes()

    @abstractmethod
    def open(
        self, combined: Mapping[int, bytes], survivors: NDArray[np.bool_], context: SumContext
    ) -> Opened:
        """Return the sum of the survivors' vectors.

        Parameters
        ----------
        combined : mapping of int to bytes
            Results of `combine` by position; without a committee one of them, at position 0.
        survivors : ndarray of shape (n_slots,), bool
            Slots whose vectors were combined.
        context : SumContext

        Raises
        ------
        SumError
            If the parts do not open.
        """

    def part_bytes(self, n_words: int, sharing: Sharing | None) -> int:
        """Return the length of one part of a vector, in bytes."""
        return 8 * n_words

    def encode(self, vector: Integers) -> bytes:
        """Return a vector that needs no protection as a part: the noise that a server adds."""
        return vector.astype("<i8").tobytes()


def add_words(parts: Iterable[bytes], n_words: int) -> NDArray[np.uint64]:
    """Return the sum, modulo 2^64, of vectors that travel as words of eight bytes.

    Raises
    ------
    PartError
        If a vector has the wrong length.
    """
    total = np.zeros(n_words, dtype=np.uint64)
    for index, part in enumerate(parts):
        if len(part) != 8 * n_words:
            raise PartError(index)
        total += np.frombuffer(part, dtype="<u8")
    return total


def opened_words(combined: Mapping[int, bytes], context: SumContext) -> NDArray[np.uint64]:
    """Return the words of a sum that was combined without a committee.

    Raises
    ------
    SumError
        If they are not there.
    """
    try:
        return add_words([combined[0]], context.n_words)
    except (KeyError, PartError):
        raise SumError("The words of a sum are malformed.") from None


SECURE_SUMS: dict[str, SecureSum] = {}
SecureSumType = TypeVar("SecureSumType", bound=type[SecureSum])


def register_secure_sum(kind: SecureSumType) -> SecureSumType:
    """Make a kind of secure sum known under its name (a class decorator)."""
    SECURE_SUMS[kind.name] = kind()
    return kind


def secure_sum(name: str) -> SecureSum:
    """Return the secure sum of a name.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if name not in SECURE_SUMS:
        raise ConfigurationError(
            f"Expected secure_sum in {sorted(SECURE_SUMS)}. Got {name!r} instead."
        )
    return SECURE_SUMS[name]
