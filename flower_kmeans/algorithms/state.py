"""The state of an algorithm after a round, and its query for the next round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.kept import Kept

StateArrays = Mapping[str, NDArray[Any]]
"""Arrays of a state or of a query, by name."""

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class State:
    """The knowledge of an algorithm after ``round`` rounds.

    Arrays are of dtype int64 if the algorithm is replayable, because clients keep them
    between messages.
    """

    round: int
    arrays: StateArrays

    def without_sum(self) -> Self:
        """Return the state after a round whose sum was lost: only the round is another."""
        return type(self)(self.round + 1, self.arrays)


@dataclass(frozen=True, eq=False)
class Query:
    """The information that a client needs to answer a round. Rounds count from 1.

    Queries are equal only if they are the same object. The clients of a simulation
    share a query, and ``kept`` has the results that follow from it.
    """

    round: int
    arrays: StateArrays = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept, init=False, repr=False)


class Range(NamedTuple):
    """The range of an array of a query: its shape, and inclusive limits of its values."""

    shape: tuple[int, ...]
    low: NDArray[Any] | float
    high: NDArray[Any] | float
    longest: int | None = None
    """Largest l2 norm of a row; ``None`` without a limit."""
    dtype: np.dtype[Any] = _INT64
    apart: int | None = None
    """Least difference of the two numbers of a row; ``None`` without a limit."""
