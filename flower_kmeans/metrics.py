"""Exact figures about a clustering, for whoever holds the data.

None of these is private: they belong to benchmarks and to a user's own records. What may leave a
federation is in docs/guarantees.md, "Metrics that may leave".
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from flower_kmeans.errors import DataError
from flower_kmeans.records import check_records

_BLOCK_NUMBERS = 2**18


def inertia(records: ArrayLike, centroids: ArrayLike) -> float:
    """Return the sum of squared distances of records to their nearest centroids.

    Parameters
    ----------
    records : array-like of shape (n, d)
    centroids : array-like of shape (k, d)
        In the records' units; k >= 1.

    Returns
    -------
    float
        In squared units of the records, computed in blocks of a few megabytes.

    Raises
    ------
    DataError
        If a shape is wrong or a value is not finite.
    """
    points, centers = _pair(records, centroids)
    shift = centers.mean(axis=0)  # distances far from the origin keep their digits
    centers = centers - shift
    norms = np.einsum("ij,ij->i", centers, centers)
    step = max(1, _BLOCK_NUMBERS // max(centers.shape))
    parts = []
    for start in range(0, len(points), step):
        block = points[start : start + step] - shift
        # The product only chooses the centroid; the distance itself is taken from the difference.
        nearest = np.argmin(norms - 2 * (block @ centers.T), axis=1)
        block -= centers[nearest]
        parts.append(float(np.einsum("ij,ij->", block, block)))
    return math.fsum(parts)


def nicv(records: ArrayLike, centroids: ArrayLike) -> float:
    """Return the normalised intra-cluster variance: the inertia per record.

    Parameters
    ----------
    records : array-like of shape (n, d)
        n >= 1.
    centroids : array-like of shape (k, d)

    Returns
    -------
    float
        In squared units of the records (FastLloyd, section 6.2.1).

    Raises
    ------
    DataError
        If a shape is wrong, a value is not finite, or there is no record.
    """
    points, centers = _pair(records, centroids)
    if not len(points):
        raise DataError("records must hold at least one record, got none.")
    return inertia(points, centers) / len(points)


def matched_centroid_error(centroids: ArrayLike, truth: ArrayLike) -> float:
    """Return the mean squared distance between two sets of centroids, matched one to one.

    Parameters
    ----------
    centroids, truth : array-like of shape (k, d)
        In any order: of all matchings the cheapest counts (Hungarian algorithm).

    Returns
    -------
    float
        Squared distance per pair.

    Raises
    ------
    DataError
        If the shapes differ or a value is not finite.
    """
    found = check_records(centroids, name="centroids")
    known = check_records(truth, found.shape[1], name="truth")
    if len(found) != len(known) or not len(found):
        raise DataError(
            f"centroids and truth must hold equally many, got {len(found)} and {len(known)}."
        )
    costs = cdist(found, known, "sqeuclidean")
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].mean())


def _pair(
    records: ArrayLike, centroids: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    centers = check_records(centroids, name="centroids")
    if not len(centers):
        raise DataError("centroids must hold at least one centroid, got none.")
    return check_records(records, centers.shape[1]), centers
