"""Answers: the integers that a client adds to a round's sum, before noise and masks."""

from typing import Any

from numpy.typing import NDArray

from flower_kmeans.algorithms import client_clipping
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.layout import Statistic
from flower_kmeans.algorithms.state import Query
from flower_kmeans.arrays import IntArray
from flower_kmeans.data.domain import GridRecords


def words_of_rows(algorithm: Algorithm, query: Query, rows: NDArray[Any]) -> IntArray:
    """Return the statistic of finite rows (m, d) in the user's units, as one vector."""
    records = GridRecords(rows, algorithm.domain, algorithm.fraction_bits)
    statistic = algorithm.statistic(query, records)
    return algorithm.layout(query.round).flatten(statistic)


def answer_of(algorithm: Algorithm, query: Query, records: GridRecords) -> Statistic:
    """Return a client's contribution to a round's sum, from all of its records."""
    statistic = algorithm.statistic(query, records)
    return client_clipping.limited(algorithm, statistic, query.round)
