"""A private algorithm over records in one place: its queries and noise, without messages.

The result is the same as with ``trust="trusted-server"`` if all clients answer, but
without the time for clients, masks and messages. It is for tables of utility, which
need hundreds of runs.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import Algorithm, State
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise


def final_state(
    algorithm: Algorithm,
    records: NDArray[np.float64],
    seed: int = 0,
    noise: Callable[[int], NDArray[np.int64]] | None = None,
) -> State:
    """Return the state after all rounds over records, (n, d).

    ``seed`` is the seed of the server's public randomness. ``noise`` makes the noise of
    a round, (words,). By default it is the plan's noise.
    """
    plan, stream = algorithm.plan(), Stream.fresh()
    state = algorithm.initial_state(public_generator(seed, 0))
    for number in range(1, algorithm.n_rounds + 1):
        own = (
            server_noise(algorithm, plan, number, stream)
            if noise is None
            else noise(number)
        )
        query = algorithm.query(state)
        grid = algorithm.records_of(query, records)
        total = own + algorithm.layout(number).flatten(
            answer_of(algorithm, query, grid)
        )
        answer = algorithm.layout(number).unflatten(total)
        state = algorithm.update(state, answer, public_generator(seed, number))
    return state
