"""Simplified silhouettes of records, exactly as integers on the grid.

A record's silhouette compares its distances to the nearest and to the second nearest
centroid. Squared distances are exact, and all other operations are rounded correctly by
IEEE 754. So the integer of a record does not depend on the other records of its block.
"""

from functools import partial

import numpy as np

from flower_kmeans.algorithms.numerics.assignment import check_exactness
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray, LabelArray
from flower_kmeans.data.domain import GridRecords, squared_norms
from flower_kmeans.threads import sum_in_parts

_MAX_ROWS = 2**15
_BLOCK_BYTES = 2**22


def silhouette_sums(
    records: GridRecords, centroids: IntArray, are_there: BoolArray
) -> tuple[IntArray, IntArray]:
    """Return the numbers and the sums of silhouettes of records by nearest centroid, (k,).

    The sums are in steps of ``2**-fraction_bits``. With weights, each record counts as
    often as its weight says.

    Parameters
    ----------
    records : GridRecords
    centroids : ndarray of shape (k, d), int64
        Points on the records' grid.
    are_there : ndarray of shape (k,), bool
        Whether each centroid is one of the result. The others count no records.
    """
    n, d = records.shape
    check_exactness(d, records.fraction_bits)
    points = centroids.astype(np.float64)
    part = partial(_sums_of_rows, records, points, are_there)
    counts, sums = sum_in_parts(n, n * len(points) * d, part)
    return counts, sums


def silhouettes(
    block: FloatArray, centroids: FloatArray, are_there: BoolArray
) -> tuple[LabelArray, FloatArray]:
    """Return the nearest centroid, (m,), and the silhouette of each record, (m,), in [0, 1].

    It is 1 - a/b with the distances a and b to the nearest and the second nearest
    centroid, and 0 where b is 0 or there is no second one. Ties go to the first.
    """
    d2 = block @ (-2 * centroids.T)
    d2 += squared_norms(centroids)
    d2 += squared_norms(block)[:, None]
    # Absent centroids are compared as well: a server that sees no sum may measure the time.
    d2[:, ~are_there] = np.inf
    labels = d2.argmin(axis=1)
    rows = np.arange(len(d2))
    nearest = d2[rows, labels]
    d2[rows, labels] = np.inf
    second = d2.min(axis=1, initial=np.inf)
    is_defined = (second > 0) & (second < np.inf)
    ratio = np.divide(nearest, second, out=np.ones_like(second), where=is_defined)
    return labels.astype(np.int32), 1.0 - np.sqrt(ratio)


def _sums_of_rows(
    records: GridRecords,
    centroids: FloatArray,
    are_there: BoolArray,
    start: int,
    stop: int,
) -> tuple[IntArray, IntArray]:
    """Return the numbers and the sums of silhouettes of rows ``start`` to ``stop``."""
    k, d = centroids.shape
    q = records.fraction_bits
    counts = np.zeros(k, dtype=np.int64)
    sums = np.zeros(k, dtype=np.int64)
    most = max(1, min(_MAX_ROWS, _BLOCK_BYTES // (8 * (2 * k + d))))
    n_rows = records.rows_at_once(most, q)
    for block, times in records.weighted_blocks(n_rows, start, stop):
        labels, found = silhouettes(block, centroids, are_there)
        steps = np.floor(found * 2.0**q + 0.5)
        if times is not None:
            steps *= times
        # Sums of integers below 2^53 are exact.
        counts += np.bincount(labels, times, minlength=k).astype(np.int64)
        sums += np.bincount(labels, steps, minlength=k).astype(np.int64)
    return counts, sums
