"""A private algorithm over records that lie in one place: its queries and noise, no messages.

The result is that of ``trust="trusted-server"`` with everyone answering, without the time that
clients, masks and messages take. For tables of utility, which need hundreds of runs.
"""

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import Algorithm, Query, State, Statistic
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise


def final_state(
    algorithm: Algorithm,
    partitions: list[NDArray[np.float64]],
    seed: int = 0,
    stream: Stream | None = None,
) -> State:
    """Return the state after all rounds.

    Parameters
    ----------
    algorithm : Algorithm
    partitions : list of ndarrays of shape (n_i, d)
        Records of each client; one for all unless the budget protects clients.
    seed : int
        Public randomness of the server's part.
    stream : Stream, optional
        Of the noise; from the operating system if left out.
    """
    plan, stream = algorithm.plan(), stream or Stream.fresh()
    grids = [GridRecords(part, algorithm.domain, algorithm.fraction_bits) for part in partitions]
    state = algorithm.initial_state(public_generator(seed, 0))
    for number in range(1, algorithm.n_rounds + 1):
        query: Query = algorithm.query(state)
        total = server_noise(algorithm, plan, query.round, stream)
        for records in grids:
            total += algorithm.flatten(algorithm.answer(query, records), number)
        answer: Statistic = algorithm.unflatten(total, number)
        state = algorithm.update(state, answer, public_generator(seed, number))
    return state
