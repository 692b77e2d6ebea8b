"""What a server does with its own points: centres and elbows from noisy weights.

Everything here is post-processing of released values, and total: noise makes every weight possible.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.grid_kmeans import GridCenters, grid_kmeans
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.initialization import STARTS, public_words

_STEPS = 300  # of Lloyd's algorithm, for each start: a server's points are few

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Centers(NamedTuple):
    """Centres of the server's points, and how they had to be found.

    Attributes
    ----------
    points : ndarray of shape (k, r), int64
    all_light : bool
        No point had the minimal weight, so all points counted alike.
    few : bool
        Fewer points than centres had it, so the heaviest points became the centres.
    equal : bool
        Fewer points than centres were different, so some centres are equal.
    """

    points: IntArray
    all_light: bool = False
    few: bool = False
    equal: bool = False


def weighted_centers(
    points: IntArray,
    weights: IntArray,
    n_clusters: int,
    min_weight: int,
    rng: np.random.Generator,
) -> Centers:
    """Return the centres of weighted k-means on the points of enough weight.

    Parameters
    ----------
    points : ndarray of shape (m, r), int64
        Projected server points, m >= k, as `grid_kmeans.grid_kmeans` takes them.
    weights : ndarray of shape (m,), int64
        Noisy numbers of records that are nearest to each, in any units.
    n_clusters : int
        k.
    min_weight : int
        In the same units, positive; lighter points are dropped.
    rng : Generator
    """
    kept = weights >= min_weight
    if not kept.any():
        centers = _kmeans(points, np.ones_like(weights), n_clusters, rng).points
        return Centers(centers, all_light=True, equal=_has_equal(centers))
    if kept.sum() < n_clusters:
        heaviest = np.argsort(~weights, kind="stable")[:n_clusters]  # -w - 1: every integer has it
        return Centers(points[heaviest], few=True, equal=_has_equal(points[heaviest]))
    centers = _kmeans(points[kept], weights[kept], n_clusters, rng).points
    return Centers(centers, equal=_has_equal(centers))


def elbow(
    points: IntArray,
    weights: IntArray,
    k_max: int,
    min_weight: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Return the cost of weighted k-means on the weighted points for every k up to ``k_max``.

    The weighted points stand for the records, so where the costs stop falling quickly, more
    clusters find no more structure. Released values are all it takes: it costs no privacy.

    Parameters
    ----------
    points : ndarray of shape (m, r), int64
        Projected server points.
    weights : ndarray of shape (m,), int64
        Noisy numbers of records; lighter points than ``min_weight`` are dropped.
    k_max : int
        At least 1.
    min_weight : int
        Positive.
    rng : Generator

    Returns
    -------
    ndarray of shape (k_max,), float64
        Sums of weighted squared distances for k = 1, 2, ..., in the units of points and weights; 0
        from where there are no more points than centres.

    Raises
    ------
    ConfigurationError
        If no point is heavy enough.
    """
    kept = weights >= min_weight
    if not kept.any():
        raise ConfigurationError(
            "Expected a server point with a noisy weight of at least min_weight. Got none."
        )
    costs = np.zeros(k_max)
    for k in range(1, min(k_max, int(kept.sum())) + 1):
        costs[k - 1] = _kmeans(points[kept], weights[kept], k, rng).cost
    return costs


def _kmeans(
    points: IntArray, weights: IntArray, n_clusters: int, rng: np.random.Generator
) -> GridCenters:
    source = public_words(int.from_bytes(rng.bytes(16), "little"))
    return grid_kmeans(points, weights, n_clusters, source, STARTS, _STEPS)


def _has_equal(centers: IntArray) -> bool:
    return len(np.unique(centers, axis=0)) < len(centers)
