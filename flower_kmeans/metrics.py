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

LabelArray = NDArray[np.int64]

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


def majority_accuracy(truth: ArrayLike, clusters: ArrayLike) -> float:
    """Return the share of records whose class is the most frequent one of their cluster.

    Parameters
    ----------
    truth : array-like of shape (n,)
        Class of each record, n >= 1; any values that can be compared.
    clusters : array-like of shape (n,)
        Cluster of each record.

    Returns
    -------
    float
        In (0, 1]; 1 if no cluster mixes classes, so it grows with the number of clusters.

    Raises
    ------
    DataError
        If there is no record, or not one class and one cluster for each.
    """
    known, found = _labels(truth, clusters)
    table = np.zeros((int(found.max()) + 1, int(known.max()) + 1), dtype=np.int64)
    np.add.at(table, (found, known), 1)
    return int(table.max(axis=1).sum()) / len(known)


def adjusted_rand_index(truth: ArrayLike, clusters: ArrayLike) -> float:
    """Return the Rand index corrected for chance: 1 for equal partitions, about 0 for random ones.

    Parameters and errors are those of `majority_accuracy` (Hubert & Arabie 1985).
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_labels(truth, clusters)))


def fowlkes_mallows_index(truth: ArrayLike, clusters: ArrayLike) -> float:
    """Return the geometric mean of precision and recall over pairs of records, in [0, 1].

    Parameters and errors are those of `majority_accuracy` (Fowlkes & Mallows 1983).
    """
    from sklearn.metrics import fowlkes_mallows_score

    return float(fowlkes_mallows_score(*_labels(truth, clusters)))


def normalized_mutual_information(truth: ArrayLike, clusters: ArrayLike) -> float:
    """Return the mutual information over the arithmetic mean of both entropies, in [0, 1].

    Parameters and errors are those of `majority_accuracy`.
    """
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_labels(truth, clusters)))


def _labels(truth: ArrayLike, clusters: ArrayLike) -> tuple[LabelArray, LabelArray]:
    """Return classes and clusters as numbers from 0."""
    known, found = np.asarray(truth), np.asarray(clusters)
    if known.ndim != 1 or known.shape != found.shape or not known.size:
        raise DataError(
            "truth and clusters must hold one label for each of one or more records, got shapes "
            f"{known.shape} and {found.shape}."
        )
    return np.unique(known, return_inverse=True)[1], np.unique(found, return_inverse=True)[1]


def _pair(
    records: ArrayLike, centroids: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    centers = check_records(centroids, name="centroids")
    if not len(centers):
        raise DataError("centroids must hold at least one centroid, got none.")
    return check_records(records, centers.shape[1]), centers
