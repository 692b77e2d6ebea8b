"""What a server does with its own points: centres and elbows from noisy weights.

Everything here is post-processing of released values, and total: noise makes every weight possible.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.initialization import STARTS, weighted_kmeans

FloatArray = NDArray[np.float64]


class Centers(NamedTuple):
    """Centres of the server's points, and how they had to be found.

    Attributes
    ----------
    points : ndarray of shape (k, r), float64
    all_light : bool
        No point had the minimal weight, so all points counted alike.
    few : bool
        Fewer points than centres had it, so the heaviest points became the centres.
    equal : bool
        Fewer points than centres were different, so some centres are equal.
    """

    points: FloatArray
    all_light: bool = False
    few: bool = False
    equal: bool = False


def weighted_centers(
    points: FloatArray,
    weights: FloatArray,
    n_clusters: int,
    min_weight: float,
    rng: np.random.Generator,
    n_starts: int = STARTS,
) -> Centers:
    """Return the centres of weighted k-means on the points of enough weight.

    Parameters
    ----------
    points : ndarray of shape (m, r), float64
        Projected server points, m >= k.
    weights : ndarray of shape (m,), float64
        Noisy numbers of records that are nearest to each; finite.
    n_clusters : int
        k.
    min_weight : float
        Positive; lighter points are dropped.
    rng : Generator
    n_starts : int, default: 10
        Of k-means.
    """
    kept = weights >= min_weight
    if not kept.any():
        centers, _ = weighted_kmeans(points, np.ones(len(points)), n_clusters, rng, n_starts)
        return Centers(centers, all_light=True, equal=_has_equal(centers))
    if kept.sum() < n_clusters:
        heaviest = np.argsort(-weights, kind="stable")[:n_clusters]
        return Centers(points[heaviest], few=True, equal=_has_equal(points[heaviest]))
    centers, _ = weighted_kmeans(points[kept], weights[kept], n_clusters, rng, n_starts)
    return Centers(centers, equal=_has_equal(centers))


def elbow(
    points: FloatArray,
    weights: FloatArray,
    k_max: int,
    min_weight: float,
    rng: np.random.Generator,
) -> FloatArray:
    """Return the cost of weighted k-means on the weighted points for every k up to ``k_max``.

    The weighted points stand for the records, so where the costs stop falling quickly, more
    clusters find no more structure. Released values are all it takes: it costs no privacy.

    Parameters
    ----------
    points : ndarray of shape (m, r), float64
        Projected server points.
    weights : ndarray of shape (m,), float64
        Noisy numbers of records; lighter points than ``min_weight`` are dropped.
    k_max : int
        At least 1.
    min_weight : float
    rng : Generator

    Returns
    -------
    ndarray of shape (k_max,), float64
        Sums of weighted squared distances for k = 1, 2, ..., 0 from where there are no more points
        than centres.

    Raises
    ------
    ConfigurationError
        If no point is heavy enough.
    """
    kept = weights >= min_weight
    if not kept.any():
        raise ConfigurationError(
            f"Expected a server point with a noisy weight of at least min_weight={min_weight:g}. "
            "Got none."
        )
    costs = np.zeros(k_max)
    for k in range(1, min(k_max, int(kept.sum())) + 1):
        costs[k - 1] = weighted_kmeans(points[kept], weights[kept], k, rng)[1]
    return costs


def _has_equal(centers: FloatArray) -> bool:
    return len(np.unique(centers, axis=0)) < len(centers)
