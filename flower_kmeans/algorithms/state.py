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
    """All that an algorithm knows after ``round`` rounds.

    Arrays are of dtype int64 if the algorithm is replayable: clients keep them between
    messages.
    """

    round: int
    arrays: StateArrays

    def without_sum(self) -> Self:
        """Return the state after a round whose sum was lost: nothing was learned."""
        return type(self)(self.round + 1, self.arrays)


@dataclass(frozen=True, eq=False)
class Query:
    """All that a client must know to answer a round; rounds count from 1.

    The clients of a simulation share a query, and ``kept`` has the results that follow
    from it.
    """

    round: int
    arrays: StateArrays = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept, init=False, repr=False)


class Range(NamedTuple):
    """The values that an array of a query may have: any of the shape between the limits."""

    shape: tuple[int, ...]
    low: NDArray[Any] | float
    high: NDArray[Any] | float
    longest: int | None = None
    """Largest norm of a row, where rows have a limit."""
    dtype: np.dtype[Any] = _INT64
