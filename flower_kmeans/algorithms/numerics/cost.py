"""The cost of a clustering as a release, from squared distances to public points.

A round releases Q, the sum of squared distances to the centroids before the round, or
to the origin if its sums are of records. With the sums and counts of the same round, Q
gives the cost of the centroids after the round (docs/guarantees, Theorem 16).
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords, squared_norms
from flower_kmeans.threads import single_threaded_blas

COST = "cost"  # name of the block, and of the release, of squared distances
COST_SHARE = 0.02  # mu^2 of the cost, if all other releases together have mu^2 = 1

_BLOCK_NUMBERS = 2**18


def squared_distances(
    records: GridRecords, centroids: IntArray, largest: int, radius2: int | None = None
) -> int:
    """Return the sum of squared distances of records to their nearest centroids, (k, d).

    Each squared distance is cut to ``largest`` squared grid units, and loses its last q
    bits. So the sum is in steps of 2**-q, as the records. A record counts only if its
    squared distance is at most ``radius2``.
    """
    total = 0
    n_rows = max(1, _BLOCK_NUMBERS // records.shape[1])
    with single_threaded_blas():
        for block, times in records.weighted_blocks(n_rows):
            _, d2 = assign(block, centroids)
            cut = np.minimum(d2, float(largest))
            whole = np.floor(cut * 2.0**-records.fraction_bits).astype(np.int64)
            if radius2 is not None:
                whole[d2 > radius2] = 0
            if times is not None:
                whole *= times.astype(np.int64)
            total += int(whole.sum())
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
    are_directions: bool = False,
) -> tuple[float, float, float]:
    """Return the noisy cost after a Lloyd round, its bias and its standard error.

    The cost is too low by the bias. All numbers are in units of the scaled domain.

    Parameters
    ----------
    q : float
        Noisy sum of squared distances to the references.
    sums : ndarray of shape (k, d)
        Noisy sums of offsets from the references.
    counts : ndarray of shape (k,)
        Noisy numbers of records.
    references : ndarray of shape (k, d)
        The centroids before the round, or the origin.
    after : ndarray of shape (k, d)
        The centroids after the round, on a grid.
    quotients : ndarray of shape (k, d)
        Sums over counts, for usable counts.
    usable : ndarray of shape (k,), bool
        Whether each count is large enough to divide by.
    noise : tuple of three floats
        Standard deviations of ``q``, of a coordinate of a sum, and of a count.
    step : float
        The step of the centroids' grid.
    are_directions : bool
        Whether the centroids after the round are the directions of the means.
    """
    std_q, std_sum, std_count = noise
    moves = after - references
    squares = squared_norms(moves)
    # Q - 2 sum <R_j, delta_j> + sum C_j |delta_j|^2, delta from reference to centroid.
    gained = float(np.einsum("ij,ij->", sums, moves))
    value = q - 2 * gained + float(counts @ squares)
    # A centroid moves towards its own noise. With delta = (R + n_R) / (C + n_C) the
    # term -2 <n_R, delta> has the mean -2 d s_R^2 / C to first order. The counts add a
    # similar term. Centroids that were kept, or moved into the domain, have no bias.
    wanted = references + quotients
    n_free = after.shape[1]
    shifts = quotients
    lengths = np.ones(len(after))
    if are_directions:
        # A direction u of a mean v moves by noise beside u alone, and by 1 / |v| as far.
        lengths = np.sqrt(squared_norms(wanted))
        lengths[lengths == 0] = 1.0
        wanted = wanted / lengths[:, None]
        n_free -= 1
        along = np.einsum("ij,ij->i", shifts, wanted)
        shifts = shifts - along[:, None] * wanted
    is_near = np.abs(wanted - after) <= step
    whole = usable & is_near.all(axis=1)
    sizes = n_free * std_sum**2 + std_count**2 * squared_norms(shifts)
    bias = 2 * float((sizes[whole] / (counts * lengths)[whole]).sum())
    of_sums = 4 * std_sum**2 * float(squares.sum())
    of_counts = std_count**2 * float(squares @ squares)
    error = math.sqrt(std_q**2 + of_sums + of_counts)
    return value, bias, error


def user_scale(domain: Domain) -> tuple[float, bool]:
    """Return the user's units in one scaled unit, and whether all columns share them.

    If columns differ, the number is 1, and a cost is in squared units of the scaled
    domain.
    """
    unit = domain.common_unit
    if unit is None:
        return 1.0, False
    return unit, True
