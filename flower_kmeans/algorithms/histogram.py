"""What is done with a noisy histogram: post-processing, which costs no privacy.

Sums over arrays are sequential or rounded once, and nothing else needs more than single operations
that IEEE 754 rounds correctly: the same result on every processor.
"""

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def zero_small(histogram: FloatArray, total: float) -> FloatArray:
    """Return a noisy histogram without its smallest bins, which the total does not need.

    The largest bins are kept until they sum to more than the total; the others become zero, and so
    does every negative bin (PE-means, Algorithm 2, lines 7 to 9). Of equal bins the first are the
    larger ones. Noise moves many records' worth into empty bins, but little into each.

    Parameters
    ----------
    histogram : ndarray of shape (m,), float64
        Finite; m may be 0.
    total : float
        How many records there are, a public figure: at least 0.

    Returns
    -------
    ndarray of shape (m,), float64
        At least 0. All positive bins, if these do not sum to more than the total.
    """
    order = np.argsort(-histogram, kind="stable")
    reached = np.cumsum(histogram[order])
    # Negative bins come last, so the sums rise before they fall: the first excess is what counts.
    beyond = np.flatnonzero(reached > total)
    n_kept = len(order) if not len(beyond) else int(beyond[0]) + 1
    kept = np.zeros_like(histogram)
    largest = order[:n_kept]
    kept[largest] = np.maximum(histogram[largest], 0.0)
    return kept


def expected_total(histogram: FloatArray, noise: float, planned: float, answered: float) -> float:
    """Return how many records the answers hold, where not all clients answered.

    A part ``answered`` of the clients has that part of the planned records if all have as many;
    those who are missing may have none, or twice as many. The noisy total of the answers says more
    about it the smaller its noise is: both are weighted by their variances.

    Parameters
    ----------
    histogram : ndarray of shape (m,), float64
        Noisy numbers of records.
    noise : float
        Standard deviation of the noise of a bin.
    planned : float
        The records of all clients, a public figure: at least 0, or infinite.
    answered : float
        In (0, 1].

    Returns
    -------
    float
        In [0, planned]; ``planned`` itself if all answered.
    """
    likely, spread = answered * planned, (1 - answered) * planned / 2
    if math.isinf(planned) or spread == 0:
        return planned
    weight = spread * spread / (spread * spread + noise * noise * len(histogram))
    found = math.fsum(histogram.tolist())
    return min(max(likely + weight * (found - likely), 0.0), planned)
