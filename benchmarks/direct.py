"""A private algorithm over records in one place: its queries and noise, without messages.

The result is the same as with ``trust="trusted-server"`` if all clients answer, but
without the time for clients, masks and messages. It is for tables of utility, which
need hundreds of runs.
"""

import secrets
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import Algorithm, State
from flower_kmeans.algorithms.answers import answer_of, reconstructed, words_of_rows
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.state import Query
from flower_kmeans.algorithms.tightened import records_of
from flower_kmeans.data.persons import (
    counts_of,
    keys_of,
    merged,
    person_weights,
    room_of,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise


def final_state(
    algorithm: Algorithm,
    records: NDArray[np.float64],
    seed: int = 0,
    noise: Callable[[int], NDArray[np.int64]] | None = None,
    persons: Sequence[object] | None = None,
) -> State:
    """Return the state after all rounds over records, (n, d).

    ``seed`` is the seed of the server's public randomness. ``noise`` makes the noise of
    a round, (words,). By default it is the plan's noise. ``persons`` are the ids of the
    records' persons, for algorithms with ``unit="person"``.
    """
    plan, stream = algorithm.plan(), Stream.fresh()
    answer_to = _answers(algorithm, records, persons)
    state = algorithm.initial_state(public_generator(seed, 0))
    for number in range(1, algorithm.n_rounds + 1):
        own = (
            server_noise(algorithm, plan, number, stream)
            if noise is None
            else noise(number)
        )
        total = own + answer_to(algorithm.query(state))
        answer = reconstructed(algorithm, number, total, 1.0, 1)
        state = algorithm.update(state, answer, public_generator(seed, number))
    return state


def _answers(
    algorithm: Algorithm,
    records: NDArray[np.float64],
    persons: Sequence[object] | None,
) -> Callable[[Query], NDArray[np.int64]]:
    """Return a function from a query to the exact words of its answer."""
    if persons is None:

        def of_records(query: Query) -> NDArray[np.int64]:
            counted = algorithm.domain.counted(records)
            grid = records_of(algorithm, query, counted)
            answer = answer_of(algorithm, query, grid)
            return algorithm.layout(query.round).flatten(answer)

        return of_records

    keys = keys_of(persons, secrets.token_bytes(32))
    usable = np.ones(len(records), dtype=bool)
    room = room_of(algorithm.full_weight or 1, algorithm.max_clients_per_person)
    weights = person_weights(keys, usable, counts_of(keys, usable), merged([]), room)
    rows = np.column_stack([records, weights])
    return lambda query: words_of_rows(algorithm, query, rows)
