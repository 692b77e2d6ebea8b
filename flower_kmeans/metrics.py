"""Exact numbers about a clustering, for the holder of the data.

None of these numbers is private. They are for benchmarks and for a user's own records.
The private cost of a federation is in docs/guarantees, Theorem 16.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from flower_kmeans.data.domain import squared_norms
from flower_kmeans.data.records import check_records
from flower_kmeans.errors import DataError

_BLOCK_NUMBERS = 2**18


def inertia(records: ArrayLike, centroids: ArrayLike) -> float:
    """Return the sum of squared distances of records to their nearest centroids.

    The sum is in squared units of the records. It is computed in blocks of a few
    megabytes.

    Parameters
    ----------
    records : array-like of shape (n, d)
    centroids : array-like of shape (k, d)

    Raises
    ------
    DataError, ConfigurationTypeError
        If there is no centroid, a shape is wrong, or a value is not a finite number.
    """
    centers = check_records(centroids, name="centroids")
    points = check_records(records, centers.shape[1])
    if not len(centers):
        raise DataError(
            "Expected centroids with at least one centroid. Got none instead."
        )
    shift = centers.mean(axis=0)  # far from the origin products would lose digits
    centers = centers - shift
    norms = squared_norms(centers)
    # The block has d columns and its products have k: both stay within the limit.
    step = max(1, _BLOCK_NUMBERS // max(centers.shape))
    parts = []
    for start in range(0, len(points), step):
        block = points[start : start + step] - shift
        # The product only chooses the centroid. The difference gives the exact
        # distance.
        nearest = np.argmin(norms - 2 * (block @ centers.T), axis=1)
        block -= centers[nearest]
        parts.append(float(np.einsum("ij,ij->", block, block)))
    return math.fsum(parts)


def nicv(records: ArrayLike, centroids: ArrayLike) -> float:
    """Return the normalised intra-cluster variance: the `inertia` per record.

    The definition is in FastLloyd, section 6.2.1. Parameters and errors are those of
    `inertia`. There must be at least one record.
    """
    n_records = len(check_records(records))
    if not n_records:
        raise DataError("Expected records with at least one record. Got none instead.")
    return inertia(records, centroids) / n_records


def matched_centroid_error(centroids: ArrayLike, truth: ArrayLike) -> float:
    """Return the mean squared distance between two matched sets of centroids, (k, d).

    The matching is the cheapest of all (Hungarian algorithm).

    Raises
    ------
    DataError, ConfigurationTypeError
        If the shapes differ, there is no centroid, or a value is not a finite number.
    """
    found = check_records(centroids, name="centroids")
    known = check_records(truth, found.shape[1], name="truth")
    if len(found) != len(known) or not len(found):
        raise DataError(
            "Expected centroids and truth with one number of centroids, at least 1. "
            f"Got {len(found)} and {len(known)} instead."
        )
    costs = cdist(found, known, "sqeuclidean")
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].mean())
