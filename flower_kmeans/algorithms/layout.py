"""The words of a round: a statistic as named blocks, and as one vector.

Algorithms compute with blocks. Noise, clips and secure sums work on the vector.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import IntArray
from flower_kmeans.privacy.release import Release

SUMS = "sums"
COUNTS = "counts"

_INT64 = np.dtype(np.int64)


class Block(NamedTuple):
    """A named array of a round's statistic. An integer ``i`` stands for ``i * 2**-exponent``."""

    name: str
    shape: tuple[int, ...]
    exponent: int
    are_moments: bool = False
    """Whether the words are second moments of scaled records, whose sensitivities differ."""

    @property
    def size(self) -> int:
        """Number of words."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Statistic:
    """An answer of one client, or the noisy sum of all answers: int64 arrays by block."""

    blocks: Mapping[str, IntArray]
    answered: float = 1.0
    """Fraction of the clients that are in a sum, in (0, 1]. It is public."""
    n_answers: int | None = None
    """Number of answers in a sum, if it is known. It is public."""
    noise_factor: float = 1.0
    """Standard deviation of the noise over the planned one. It is public."""


@dataclass(frozen=True)
class Layout:
    """The blocks of a round's statistic, in the order of their words in its vector."""

    blocks: tuple[Block, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks."""
        return tuple(block.name for block in self.blocks)

    @property
    def n_words(self) -> int:
        """Number of words of the vector."""
        return sum(block.size for block in self.blocks)

    @cached_property
    def places(self) -> dict[str, NDArray[np.intp]]:
        """Indices of the words of each block in the vector, (words of the block,)."""
        places = {}
        start = 0
        for block in self.blocks:
            places[block.name] = np.arange(start, start + block.size)
            start += block.size
        return places

    def words_of(self, release: Release) -> NDArray[np.intp]:
        """Return the indices of the words of a release in the vector, (words of the release,)."""
        return np.concatenate([self.places[name] for name in release.blocks])

    def flatten(self, statistic: Statistic) -> IntArray:
        """Return a statistic as one vector, (words,) int64.

        Raises
        ------
        ValueError
            If a block has another shape or dtype.
        """
        parts = []
        for block in self.blocks:
            array = statistic.blocks[block.name]
            if array.shape != block.shape or array.dtype != _INT64:
                raise ValueError(
                    f"Expected block {block.name!r} as int64 of shape {block.shape}. "
                    f"Got {array.dtype} of shape {array.shape} instead."
                )
            parts.append(array.reshape(-1))
        return np.concatenate(parts)

    def unflatten(
        self, vector: IntArray, answered: float = 1.0, n_answers: int | None = None
    ) -> Statistic:
        """Return the statistic of a vector (words,) int64, with further fields of `Statistic`.

        Raises
        ------
        ValueError
            If the vector has another shape or dtype.
        """
        if vector.shape != (self.n_words,) or vector.dtype != np.int64:
            raise ValueError(
                f"Expected {self.n_words} words of int64. "
                f"Got {vector.dtype} of shape {vector.shape} instead."
            )
        ends = np.cumsum([block.size for block in self.blocks])
        parts = np.split(vector, ends[:-1])
        blocks = {
            block.name: part.reshape(block.shape)
            for block, part in zip(self.blocks, parts, strict=True)
        }
        return Statistic(blocks, answered, n_answers)
