"""Centroids that have no records, or that share a cluster, go where another one has too many.

Post-processing of released numbers, and replayable. The number of steps follows from k
alone; constants were chosen by experiment (docs/tables/differences.md, "FastLloyd").
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.initialization import random_words, round_words
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.numerics.postprocess import to_grid
from flower_kmeans.data.domain import IntArray, row_sums
from flower_kmeans.data.records import FloatArray
from flower_kmeans.threads import single_threaded_blas

BoolArray = NDArray[np.bool_]

DEAD_NOISE, DEAD_SHARE = 2.0, 0.05
"""A size is that of a dead centroid up to so many deviations, or up to this part of N / k."""
FULL = 4.0
"""A cluster is divided if it has so many times the records of the dead one, or its deviation."""
CLEAR = 3.0
"""A scatter counts if it is so many times its deviation."""
STEP = 0.1
"""How far beside another centroid one is put, over the distance to that one's neighbour."""

MOST_STEPS = 256
"""Most centroids of either kind that are looked at in a round."""

_TINY = 2.0**-100
_BLOCK_NUMBERS = 2**20


def relocated(
    centroids: IntArray,
    sizes: FloatArray,
    scatter: FloatArray,
    noise: tuple[float, float],
    directions: FloatArray,
    inside: Callable[[IntArray], IntArray],
) -> IntArray:
    """Return the centroids of the next round.

    First dead centroids, the smallest first, go beside the centroid with the most
    records. Then one of two centroids that share a cluster goes beside the centroid
    whose cluster has the most scatter: where this scatter exceeds that of a cluster of
    the same size and of median variance by more than merging the two would add (Ward's
    criterion), and than its noise. No centroid has a part in two moves.

    Centroids (k, d), after the round's moves, are in grid units. Noisy are sizes (k,)
    in records, and scatter (k,), sums of squared distances; ``noise`` has the standard
    deviations of the two. ``directions`` are public unit vectors (2 n, d), n of
    `n_steps`; ``inside`` moves grid points (m, d) into the domain.
    """
    # A server that sees no sum may measure how long an update takes: every step is
    # taken, and ``wanted`` decides whether it has an effect.
    points, (size_noise, scatter_noise) = centroids.astype(np.float64), noise
    sizes, moved = sizes.copy(), np.zeros(len(points), dtype=bool)

    def put(j: int, point: FloatArray, wanted: bool) -> None:
        points[j] = np.where(wanted, inside(to_grid(point[None]))[0], points[j])

    def put_beside(j: int, b: int, direction: FloatArray, wanted: bool) -> None:
        squares = row_sums((points - points[b]) ** 2)
        squares[[j, b]] = np.inf
        nearest = float(squares.min())  # infinite where there are two centroids
        finite = nearest < math.inf
        length = STEP * math.sqrt(nearest if finite else 0.0)
        put(j, points[b] + direction * length, wanted and finite)

    n = n_steps(len(points))
    dead = max(
        DEAD_NOISE * size_noise, DEAD_SHARE * max(math.fsum(sizes), 1.0) / len(sizes)
    )
    going = True
    for j, direction in zip(
        np.argsort(sizes, kind="stable")[:n], directions[:n], strict=True
    ):
        b = int(sizes.argmax())
        full = sizes[b] >= FULL * max(sizes[j], size_noise)
        going = bool(going and sizes[j] <= dead and full and b != j)
        put_beside(j, b, direction, going)
        half = sizes[b] / 2
        sizes[[j, b]] = np.where(going, half, sizes[[j, b]])
        moved[[j, b]] |= going

    sizes = np.maximum(sizes, 0.0)
    gains = _gains(sizes, scatter, noise, moved)
    costs, partners = _merging_costs(points, sizes, moved)
    going = True
    for i, direction in zip(
        np.argsort(costs, kind="stable")[:n], directions[n:], strict=True
    ):
        b, g = int(gains.argmax()), int(partners[i])
        going = bool(going and gains[b] > costs[i] + scatter_noise)
        j, g = (i, g) if sizes[i] <= sizes[g] else (g, i)
        free = going and b not in (j, g) and not (moved[j] or moved[g])
        # The merged centroid lies at the mean of both, by sizes.
        share = float(sizes[j] / max(sizes[j] + sizes[g], _TINY))
        put(g, points[g] + (points[j] - points[g]) * share, free)
        put_beside(j, b, direction, free)
        moved[[j, g, b]] |= free
        gains[[j, g, b]] = np.where(free, -np.inf, gains[[j, g, b]])
    return points.astype(np.int64)


def n_steps(n_clusters: int) -> int:
    """Return how many centroids of either kind are looked at in a round."""
    return min(n_clusters, MOST_STEPS)


def public_directions(
    seed: int, round_number: int, shape: tuple[int, int]
) -> FloatArray:
    """Return random unit vectors of a seed and a round, as rows."""
    vectors = normals(random_words(round_words(seed, round_number), math.prod(shape)))
    vectors = vectors.reshape(shape)
    lengths = np.sqrt(row_sums(vectors * vectors))
    return vectors / np.maximum(lengths, _TINY)[:, None]


def _gains(
    sizes: FloatArray, scatter: FloatArray, noise: tuple[float, float], moved: BoolArray
) -> FloatArray:
    """Return by how much scatter exceeds the usual one, (k,); -inf where that is not clear."""
    gains, (size_noise, scatter_noise) = np.full(len(sizes), -np.inf), noise
    known = ~moved & (sizes > DEAD_NOISE * size_noise)
    if known.any():
        scatter = np.maximum(scatter, 0.0)
        variances = scatter[known] / sizes[known]
        excess = scatter - sizes * float(np.median(variances))
        clear = known & (scatter >= CLEAR * scatter_noise)
        clear &= sizes >= FULL * size_noise
        gains[clear] = excess[clear]
    return gains


def _merging_costs(
    points: FloatArray, sizes: FloatArray, moved: BoolArray
) -> tuple[FloatArray, IntArray]:
    """Return what merging each cluster with its cheapest partner costs (Ward), and which it is."""
    # Squared distances are exact integers in float64, whatever BLAS does.
    k = len(points)
    costs, partners = np.full(k, np.inf), np.zeros(k, dtype=np.int64)
    squares = np.einsum("ij,ij->i", points, points)
    step = max(1, _BLOCK_NUMBERS // k)
    with single_threaded_blas():
        for start in range(0, k, step):
            rows = slice(start, min(start + step, k))
            d2 = squares[rows, None] + squares - 2 * (points[rows] @ points.T)
            weights = sizes[rows, None] + sizes
            cost = d2 * (sizes[rows, None] * sizes / np.maximum(weights, _TINY))
            cost[:, moved] = np.inf
            cost[np.arange(len(cost)), np.arange(rows.start, rows.stop)] = np.inf
            partners[rows] = cost.argmin(axis=1)
            costs[rows] = cost.min(axis=1)
    costs[moved] = np.inf
    return costs, partners
