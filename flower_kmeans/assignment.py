"""Nearest centroids and cluster sums, exactly.

Records and centroids are integers, and an integer-valued float64 below 2**53 is added and
multiplied without rounding, in any order. So BLAS gives the exact squared distances, and a record's
cluster cannot depend on which records share its block (docs/guarantees.md, "Fixed point, rounding,
sampling").
"""

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.domain import GridRecords, check_fraction_bits
from flower_kmeans.errors import ConfigurationError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_BLOCK_BYTES = 4 * 2**20


def check_exactness(n_features: int, fraction_bits: int) -> None:
    """Require that every squared distance is exact in float64.

    Two points of ``[-2**q, 2**q]**d`` are at most ``d * 2**(2q + 2)`` apart, squared, and every
    intermediate value of its computation is smaller.

    Raises
    ------
    ConfigurationError
        If ``d * 2**(2q + 2) > 2**53``.
    """
    check_fraction_bits(fraction_bits)
    if n_features * 4 ** (fraction_bits + 1) > 2**53:
        raise ConfigurationError(
            f"fraction_bits={fraction_bits} is too fine for {n_features} columns: squared distances "
            f"are exact for at most {2 ** (51 - 2 * fraction_bits)} columns; take fewer bits."
        )


def assign(points: FloatArray, centroids: IntArray) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the nearest centroid of each point, and the squared distance to it.

    Parameters
    ----------
    points : ndarray of shape (n, d), float64
        Integers, within ``[-2**q, 2**q]`` for a ``q`` that passes ``check_exactness``.
    centroids : ndarray of shape (k, d), int64
        Within the same bounds; k >= 1.

    Returns
    -------
    labels : ndarray of shape (n,), int32
        The lowest index among the nearest.
    d2 : ndarray of shape (n,), float64
        Exact integers, in squared grid units.
    """
    centers = centroids.astype(np.float64)
    norms = np.einsum("ij,ij->i", centers, centers)
    labels = np.empty(len(points), dtype=np.int32)
    d2 = np.empty(len(points))
    step = max(1, _BLOCK_BYTES // (8 * sum(centers.shape)))
    for start in range(0, len(points), step):
        block = points[start : start + step]
        scores = block @ (-2 * centers.T)
        scores += norms
        nearest = scores.argmin(axis=1)
        labels[start : start + step] = nearest
        best = scores[np.arange(len(block)), nearest]
        d2[start : start + step] = best + np.einsum("ij,ij->i", block, block)
    return labels, d2


def cluster_sums(
    records: GridRecords, centroids: IntArray, radius2: int | None = None
) -> tuple[IntArray, IntArray]:
    """Return the sum and the number of the records of each cluster.

    Parameters
    ----------
    records : GridRecords
        n records of d columns.
    centroids : ndarray of shape (k, d), int64
        Within ``[-2**q, 2**q]``, q the records' fractional bits; k >= 1.
    radius2 : int, optional
        A record counts only if its squared distance to its centroid is at most this.

    Returns
    -------
    sums : ndarray of shape (k, d), int64
        Absolute, in grid units; relative sums are ``sums - counts * centroids``.
    counts : ndarray of shape (k,), int64

    Raises
    ------
    ConfigurationError
        If squared distances of these records would not be exact.
    """
    n, d = records.shape
    check_exactness(d, records.fraction_bits)
    k = len(centroids)
    sums = np.zeros((k, d), dtype=np.int64)
    counts = np.zeros(k, dtype=np.int64)
    for block in records.blocks(max(1, _BLOCK_BYTES // (8 * d))):
        labels, d2 = assign(block, centroids)
        if radius2 is not None:
            kept = d2 <= radius2
            block, labels = block[kept], labels[kept]
        np.add.at(sums, labels, block.astype(np.int64))
        counts += np.bincount(labels, minlength=k)
    return sums, counts
