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
    counted = algorithm.domain.counted(rows)
    records = GridRecords(counted, algorithm.domain, algorithm.fraction_bits)
    statistic = algorithm.statistic(query, records)
    return algorithm.layout(query.round).flatten(statistic)


def contribution(algorithm: Algorithm, round_number: int, words: IntArray) -> IntArray:
    """Return a client's contribution to a round's sum, (words,), from its statistic's words.

    With ``unit="client"`` it is limited (`client_clipping.limited`).
    """
    if algorithm.budget.unit != "client":
        return words
    layout = algorithm.layout(round_number)
    statistic = layout.unflatten(words)
    limited = client_clipping.limited(algorithm, statistic, round_number)
    return layout.flatten(limited)


def answer_of(algorithm: Algorithm, query: Query, records: GridRecords) -> Statistic:
    """Return the contribution of a client that holds these records alone."""
    layout = algorithm.layout(query.round)
    words = layout.flatten(algorithm.statistic(query, records))
    return layout.unflatten(contribution(algorithm, query.round, words))
