"""Checks of the queries that servers send: noise covers records for queries in range only."""

from typing import Any

import numpy as np

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.state import Query, Range
from flower_kmeans.errors import MessageError

UNUSABLE = "The query of a round is not one of its algorithm."


def check_query(algorithm: Algorithm, query: Query) -> None:
    """Require the arrays of a planned round, all within their `Algorithm.query_ranges`.

    Raises
    ------
    MessageError
        Otherwise, without a word about values.
    """
    number = query.round
    # Not isinstance: True is an int too, and would name a round that nobody planned.
    if type(number) is not int or not 1 <= number <= algorithm.n_rounds:
        raise MessageError(UNUSABLE)
    ranges = algorithm.query_ranges(number)
    if set(query.arrays) != set(ranges):
        raise MessageError(UNUSABLE)
    for name, limits in ranges.items():
        _require_within(query.arrays[name], limits)


def _require_within(array: Any, limits: Range) -> None:
    """Require an array of the shape and type of a range, with its values and its norms."""
    if not isinstance(array, np.ndarray) or array.dtype != limits.dtype:
        raise MessageError(UNUSABLE)
    if array.shape != limits.shape:
        raise MessageError(UNUSABLE)
    if (array < limits.low).any() or (array > limits.high).any():
        raise MessageError(UNUSABLE)
    if limits.longest is not None:
        # Squares of integers below 2**53 are exact.
        rows = array.astype(np.float64)
        squares = np.einsum("ij,ij->i", rows, rows)
        if (squares > float(limits.longest**2)).any():
            raise MessageError(UNUSABLE)
