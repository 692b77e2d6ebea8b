"""Checks of queries from servers: noise covers records only if queries are within ranges."""

from typing import Any

import numpy as np

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.state import Query, Range
from flower_kmeans.errors import MessageError

UNUSABLE = "The query of a round is not one of its algorithm."


def check_query(algorithm: Algorithm, query: Query) -> None:
    """Require a planned round's arrays, all within their `Algorithm.query_ranges`.

    Raises
    ------
    MessageError
        If the query is not such. The message shows no values.
    """
    number = query.round
    # The type is compared, because isinstance would accept True as a round.
    if type(number) is not int or not 1 <= number <= algorithm.n_rounds:
        raise MessageError(UNUSABLE)
    ranges = algorithm.query_ranges(number)
    if set(query.arrays) != set(ranges):
        raise MessageError(UNUSABLE)
    for name, limits in ranges.items():
        require_within(query.arrays[name], limits)


def require_within(array: Any, limits: Range) -> None:
    """Require an array with the shape, dtype, values and norms of a range."""
    if not isinstance(array, np.ndarray) or array.dtype != limits.dtype:
        raise MessageError(UNUSABLE)
    if array.shape != limits.shape:
        raise MessageError(UNUSABLE)
    if (array < limits.low).any() or (array > limits.high).any():
        raise MessageError(UNUSABLE)
    apart = limits.apart
    if apart is not None and (array[:, 1] - array[:, 0] < apart).any():
        raise MessageError(UNUSABLE)
    if limits.longest is not None:
        # Squares of integers below 2**53 are exact.
        rows = array.astype(np.float64)
        squares = np.einsum("ij,ij->i", rows, rows)
        if (squares > float(limits.longest**2)).any():
            raise MessageError(UNUSABLE)
