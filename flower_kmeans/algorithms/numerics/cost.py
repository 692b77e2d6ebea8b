"""The cost of a clustering as a release: from squared distances to public points.

With a round's sums and counts, the sum Q of squared distances to the centroids before,
or to the origin where sums are of records, gives the cost at the centroids that follow
(docs/guarantees, Theorem 16).
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords, squared_norms
from flower_kmeans.threads import single_threaded_blas

COST = "cost"  # the block, and the release, of squared distances
COST_SHARE = 0.02  # of mu^2, where the rest of a plan has 1

_BLOCK_NUMBERS = 2**18


def squared_distances(
    records: GridRecords, centroids: IntArray, largest: int, radius2: int | None = None
) -> int:
    """Return the sum of squared distances of records to their nearest centroids (k, d).

    Of exponent q, as the records: every squared distance, cut to ``largest`` squared
    grid units, loses its q last bits. A record counts only if its squared distance is
    at most ``radius2``.
    """
    total = 0
    n_rows = max(1, _BLOCK_NUMBERS // records.shape[1])
    with single_threaded_blas():
        for block in records.blocks(n_rows):
            _, d2 = assign(block, centroids)
            if radius2 is not None:
                d2 = d2[d2 <= radius2]
            cut = np.minimum(d2, float(largest))
            whole = np.floor(cut * 2.0**-records.fraction_bits)
            total += int(whole.astype(np.int64).sum())
    return total


def last_cost(
    *,
    q: float,
    sums: FloatArray,
    counts: FloatArray,
    references: FloatArray,
    after: FloatArray,
    quotients: FloatArray,
    usable: NDArray[np.bool_],
    noise: tuple[float, float, float],
    step: float,
) -> tuple[float, float, float]:
    """Return the noisy cost after a Lloyd round, its bias and its standard error.

    By the bias it is too low. All are in scaled units: the sum ``q`` of squared
    distances, and sums (k, d) of offsets from references (k, d), which are the
    centroids before, or the origin. ``quotients`` (k, d) are sums over counts (k,),
    where these are usable (k,), and ``after`` (k, d) the centroids on a grid of a step.
    ``noise`` has the standard deviations of q, of a sum's coordinate, and of a count.
    """
    std_q, std_sum, std_count = noise
    moves = after - references
    squares = squared_norms(moves)
    # Q - 2 sum <R_j, delta_j> + sum C_j |delta_j|^2, delta from reference to centroid.
    gained = float(np.einsum("ij,ij->", sums, moves))
    value = q - 2 * gained + float(counts @ squares)
    # A centroid moves towards its own noise: with delta = (R + n_R) / (C + n_C) the
    # term -2 <n_R, delta> has the mean -2 d s_R^2 / C to first order, and likewise for
    # the counts. Centroids that were kept, or moved into the domain, are left out.
    wanted = references + quotients
    is_near = np.abs(wanted - after) <= step
    whole = usable & is_near.all(axis=1)
    sizes = after.shape[1] * std_sum**2 + std_count**2 * squared_norms(quotients)
    bias = 2 * float((sizes[whole] / counts[whole]).sum())
    of_sums = 4 * std_sum**2 * float(squares.sum())
    of_counts = std_count**2 * float(squares @ squares)
    error = math.sqrt(std_q**2 + of_sums + of_counts)
    return value, bias, error


def user_scale(domain: Domain) -> tuple[float, bool]:
    """Return the user's units in one scaled unit, and whether all columns share them.

    Otherwise it is 1: a cost is then in squared units of the scaled domain.
    """
    unit = domain.common_unit
    if unit is None:
        return 1.0, False
    return unit, True
