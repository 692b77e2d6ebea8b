"""Answers: the integers that a client adds to a round's sum, before noise and masks."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import client_clipping, tightened, weights
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.layout import Statistic
from flower_kmeans.algorithms.state import Query
from flower_kmeans.arrays import IntArray
from flower_kmeans.data.domain import GridRecords


def words_of_rows(algorithm: Algorithm, query: Query, rows: NDArray[Any]) -> IntArray:
    """Return the statistic of finite rows in the user's units, as one vector.

    Rows are (m, record_width). With weights the last column holds the weight of each
    record, an integer, and the vector is the sum of weight times statistic.
    """
    points, of_record = split(algorithm, rows)
    if of_record is None:
        return _words(algorithm, query, _records(algorithm, query, points))
    if algorithm.weighs_in_one_pass:
        records = _records(algorithm, query, points)
        is_counted = ~algorithm.domain.are_null(points)
        records.weights = of_record[is_counted].astype(np.float64)
        return _words(algorithm, query, records)
    total = np.zeros(algorithm.layout(query.round).n_words, dtype=np.int64)
    # Weights of persons have at most 2 sqrt(W) different values.
    for weight in np.unique(of_record):
        chosen = points[of_record == weight]
        records = _records(algorithm, query, chosen)
        total += int(weight) * _words(algorithm, query, records)
    return total


def split(
    algorithm: Algorithm, rows: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the records of rows, (m, d), and their weights, (m,), if records have weights."""
    if not weights.weighs_records(algorithm):
        return rows, None
    return rows[:, :-1], rows[:, -1]


def _records(algorithm: Algorithm, query: Query, points: NDArray[Any]) -> GridRecords:
    return tightened.records_of(algorithm, query, algorithm.domain.counted(points))


def _words(algorithm: Algorithm, query: Query, records: GridRecords) -> IntArray:
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


def reconstructed(
    algorithm: Algorithm,
    round_number: int,
    words: IntArray,
    answered: float = 1.0,
    n_answers: int | None = None,
    noise_factor: float = 1.0,
) -> Statistic:
    """Return the statistic of a round's reconstructed or unmasked words, (words,).

    With weights, each word is divided by the full weight: it is post-processing, so it
    costs no privacy (docs/guarantees, Theorem 46). ``answered``, ``n_answers`` and
    ``noise_factor`` are those of `Statistic`.
    """
    scaled = weights.in_records(words, algorithm.full_weight)
    found = algorithm.layout(round_number).unflatten(scaled, answered, n_answers)
    return replace(found, noise_factor=noise_factor)
