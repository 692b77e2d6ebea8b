"""A private algorithm over records that lie in one place: its queries and noise, no messages.

The result is that of ``trust="trusted-server"`` with everyone answering, without the time that
clients, masks and messages take. For tables of utility, which need hundreds of runs.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import Algorithm, State
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise


def final_state(
    algorithm: Algorithm,
    partitions: Sequence[NDArray[np.float64]],
    seed: int = 0,
    noise: Callable[[int], NDArray[np.int64]] | None = None,
) -> State:
    """Return the state after all rounds.

    Parameters
    ----------
    algorithm : Algorithm
    partitions : sequence of ndarrays of shape (n_i, d)
        Records of each client; one for all unless the budget or the algorithm is by client.
    seed : int
        Public randomness of the server's part.
    noise : callable, optional
        From a round to its noise, (words,); the plan's own if left out.
    """
    plan, stream = algorithm.plan(), Stream.fresh()
    grids = [GridRecords(part, algorithm.domain, algorithm.fraction_bits) for part in partitions]
    state = algorithm.initial_state(public_generator(seed, 0))
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        own = server_noise(algorithm, plan, number, stream) if noise is None else noise(number)
        total = own + sum(algorithm.flatten(algorithm.answer(query, g), number) for g in grids)
        answer = algorithm.unflatten(total, number, n_answers=len(partitions))
        state = algorithm.update(state, answer, public_generator(seed, number))
    return state
