"""Nearest centroids and cluster sums, exactly.

Sums and products of integers below 2**53 are exact in float64, in any order. So BLAS
gives exact squared distances, and a record's cluster cannot depend on the other records
of its block (docs/guarantees, Theorem 8).

Spare bits below 2**53 make the search fast. The score ``s_j = |c_j|**2 - 2 x . c_j``
orders the centroids of a record x as the distance does. The matrix product yields
``K s_j + j``, where K is a power of two and j < K. One minimum over j then finds the
nearest centroid, its index and its distance, and ties go to the lowest index. Every
partial sum of that product is an integer of at most ``K d 4**(q + 1)``. With q = 16 up
to 64 centroids fit at once if d <= 8,192.
"""

from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.arrays import FloatArray, IntArray, LabelArray
from flower_kmeans.data.domain import GridRecords, check_fraction_bits, squared_norms
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.threads import blas_threads, in_parts, sum_in_parts

_Scored = tuple[slice, LabelArray, FloatArray]

_TRANSPOSED = 16  # columns up to which records are transposed for BLAS
_GROUP = 64  # most centroids that are compared at once
# A thread's block must fit a cache, and be so large that threads rarely meet.
_BLOCK_BYTES = 2**22
_SCORES = 2**17  # scores of one product: 1 MB
_MAX_ROWS = 2**15
_ROW_WORK = 256  # products that take as long as reading a record
_ROWS_PER_VOTER = 1_000  # fewer rows are not worth a second thread
_FUSED_WORK = 2**33  # products that take NumPy about a second
# A block of the kernel has a fixed number of rows, and must stay small.
_FUSED_COLUMNS = 2**12

_work_so_far = 0.0


def largest_weight(n_features: int, fraction_bits: int) -> int:
    """Return the largest weight of a power cell: the largest squared distance."""
    return int(n_features * 4 ** (fraction_bits + 1))


def check_exactness(
    n_features: int, fraction_bits: int, weighted: bool = False
) -> None:
    """Require that squared distances are exact in float64.

    Squared distances between points of ``[-2**q, 2**q]**d`` are at most
    ``d 4**(q + 1)``. With weights subtracted (``weighted``) they are at most twice
    that.

    Raises
    ------
    ConfigurationError
        If there are too many columns for ``fraction_bits``, q.
    """
    check_fraction_bits(fraction_bits)
    if largest_weight(n_features, fraction_bits) << weighted > 2**53:
        most = 2 ** (51 - 2 * fraction_bits) >> weighted
        raise ConfigurationError(
            f"fraction_bits={fraction_bits} is too fine for {n_features} columns: squared "
            f"distances are exact for at most {most} columns; take fewer bits."
        )


class Centers:
    """Centroids prepared for comparisons, once for all clients of a process.

    Parameters
    ----------
    centroids : ndarray of shape (k, d), int64
        Within the bounds of `check_exactness`, as all points.
    weights : ndarray of shape (k,), int64, optional
        Weights of a power diagram, at most `largest_weight`. A point then belongs to
        the centroid with the least ``|x - c_j|^2 - w_j``.
    """

    def __init__(self, centroids: IntArray, weights: IntArray | None = None) -> None:
        self.points = centroids.astype(np.float64)
        self._weights = weights
        self._norms = squared_norms(self.points)
        if weights is not None:
            self._norms -= weights
        self._doubled = np.ascontiguousarray(-2 * self.points.T)

    def nearest(self, points: FloatArray) -> LabelArray:
        """Return the nearest centroid, (n,), of points, (n, d). Ties go to the first."""
        labels = np.empty(len(points), dtype=np.int32)
        for rows, scores in self._scores(points):
            labels[rows] = scores.argmin(axis=1)
        return labels

    def assign(self, points: FloatArray) -> tuple[LabelArray, FloatArray]:
        """Return each point's nearest centroid, (n,), and squared distance, (n,)."""
        labels = np.empty(len(points), dtype=np.int32)
        d2 = np.empty(len(points))
        for rows, scores in self._scores(points):
            labels[rows] = chosen = scores.argmin(axis=1)
            best = scores[np.arange(len(scores)), chosen]
            if self._weights is not None:
                best += self._weights[chosen]
            block = points[rows]
            d2[rows] = best + squared_norms(block)
        return labels, d2

    def _scores(self, points: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        """Yield blocks of rows with ``|c_j|^2 - 2 x . c_j - w_j``, (m, k)."""
        row_bytes = 8 * sum(self.points.shape)
        step = max(1, _BLOCK_BYTES // row_bytes)
        for start in range(0, len(points), step):
            scores = points[start : start + step] @ self._doubled
            scores += self._norms
            yield slice(start, start + step), scores


def assign(
    points: FloatArray, centroids: IntArray, weights: IntArray | None = None
) -> tuple[LabelArray, FloatArray]:
    """Return each point's nearest centroid, (n,), and squared distance, (n,).

    Ties go to the first centroid. Points, (n, d), are integers in float64. Distances
    are exact (`Centers`).
    """
    return Centers(centroids, weights).assign(points)


def cluster_sums(
    records: GridRecords, centroids: IntArray, radius2: int | None = None
) -> tuple[IntArray, IntArray]:
    """Return the sums, (k, d), and numbers, (k,), of records by cluster, int64.

    The records are read in blocks on as many threads as BLAS would use, with a few
    megabytes each. The result depends neither on blocks nor on threads.

    Parameters
    ----------
    records : GridRecords
    centroids : ndarray of shape (k, d), int64
        Points on the records' grid.
    radius2 : int, optional
        A record counts only if its squared distance to its centroid is at most this.
        With weights, each record counts as often as its weight says.
    """
    n, d = records.shape
    check_exactness(d, records.fraction_bits)
    if radius2 is not None and radius2 >= d * 4 ** (records.fraction_bits + 1):
        radius2 = None  # no two points of the grid are farther apart
    work = n * (len(centroids) * d + _ROW_WORK)
    fused = fused_kernel(work, d)
    part: Any
    if fused is not None:
        part = fused.cluster_sums(records, centroids, radius2)
    else:
        query = _Query(centroids, records.fraction_bits, radius2)
        part = partial(_sum_rows, records, query)
    sums, counts = sum_in_parts(n, work, part)
    return sums, counts


def fused_kernel(work: float, n_features: int) -> Any:
    """Return the compiled kernel `fused`, or ``None`` if NumPy should compute.

    Importing Numba and loading the compiled code takes most of a second in each
    process. So the kernel is loaded after the ``work`` of all calls, in products, would
    have taken NumPy about as long. It needs the extra ``fast`` and a writable folder
    for compiled code.
    """
    global _work_so_far
    # There is no lock: a lost addition only delays the loading.
    _work_so_far += work
    is_worth_it = _work_so_far >= _FUSED_WORK and n_features <= _FUSED_COLUMNS
    return _load_fused() if is_worth_it else None


@cache
def _load_fused() -> Any:
    try:
        from flower_kmeans.algorithms.numerics import fused
    except Exception:
        # Numba is missing or too old for this NumPy, or has no folder for its code.
        return None
    return fused


def vote_counts(
    records: GridRecords, candidates: Iterable[FloatArray], n_candidates: int
) -> IntArray:
    """Return the number of records nearest to each candidate, (n_candidates,), int64.

    With weights, each record counts as often as its weight says. Ties go to the first
    candidate. Candidates come in blocks, (m, d), of integers in float64 on the records'
    grid. Missing candidates have no votes. The memory holds one
    block of candidates, a few blocks of records, and 16 bytes for every record and
    every candidate. A client calls this for one block of its records after the other.
    """
    n, d = records.shape
    check_exactness(d, records.fraction_bits)
    best = np.empty(n)
    labels = np.zeros(n, dtype=np.int64)
    workers = min(blas_threads(), n // _ROWS_PER_VOTER)
    work = n * (n_candidates * d + _ROW_WORK)
    first = 0
    fused = fused_kernel(work, d)

    def scored(block: FloatArray, start: int, stop: int) -> Iterator[_Scored]:
        if fused is not None:
            yield from fused.nearest(records, block, start, stop)
            return
        query = _Query(block, records.fraction_bits, None)
        for rows, worker in _labelled(records, query, start, stop):
            yield rows, worker.labels, worker.scores()

    def compare(block: FloatArray, start: int, stop: int) -> None:
        for rows, nearest, scores in scored(block, start, stop):
            # A tie keeps the candidate of an earlier block.
            closer = scores < best[rows] if first else True
            np.copyto(best[rows], scores, where=closer)
            np.copyto(labels[rows], nearest + first, where=closer)

    for block in candidates:
        # A single block needs no comparison with other blocks.
        if fused is not None and len(block) == n_candidates:
            (counts,) = sum_in_parts(n, work, fused.vote_counts(records, block))
            return counts
        in_parts(n, workers, partial(compare, block))
        first += len(block)
    found = np.bincount(labels, records.weights, minlength=n_candidates)
    return found.astype(np.int64, copy=False)


# --------------------------------------------------------------------------- one block


class _Query:
    """Centroids and radius of one call, prepared once and shared by its threads."""

    def __init__(
        self, centroids: IntArray | FloatArray, fraction_bits: int, radius2: int | None
    ) -> None:
        k, d = centroids.shape
        self.k = k
        self.d = d
        self.radius2 = radius2
        room = 2**53 // (d * 4 ** (fraction_bits + 1))
        largest_index = min(k, _GROUP) - 1
        bits = min(room.bit_length() - 1, largest_index.bit_length())
        # With too few spare bits the scores hold no indices, and argmin finds them.
        self.packed = 2**bits >= min(k, 8)
        self.factor = 2**bits if self.packed else 1
        self.group = min(k, self.factor if self.packed else _GROUP)
        matrix = np.empty((k, d + 1))
        matrix[:, :d] = centroids * (-2 * self.factor)
        norms = squared_norms(centroids)
        matrix[:, d] = norms * self.factor
        if self.packed:
            matrix[:, d] += np.arange(k) % self.group
        starts = range(0, k, self.group)
        self.groups = [matrix[start : start + self.group] for start in starts]


class _Worker:
    """Buffers for blocks of a fixed number of rows, and the steps on one block."""

    def __init__(self, query: _Query, rows: int) -> None:
        self.query = query
        d = query.d
        # The product needs columns by records, and a row of ones for the centroids'
        # norms. The sums need records by columns. With many columns one array serves
        # both. With few columns BLAS is faster on an array that is transposed in
        # memory, so there are two.
        if d > _TRANSPOSED:
            self._table = np.empty((rows, d + 1))
            self._features = self._table.T
            self.points = self._table[:, :d]
            self.scratch = np.empty((rows, d))
        else:
            self._table = np.empty((rows, d))
            self._features = np.empty((d + 1, rows))
            self.points = self._table[:, :d]
            self.scratch = self.points
        self._features[d] = 1
        self._slice = max(1, min(rows, _SCORES // query.group))
        self._scores = np.empty(query.group * self._slice)
        self._packed = np.empty(rows, dtype=np.int64)
        self._lowest = np.empty(rows)
        self._best = np.empty(rows)
        self._index = np.empty(rows, dtype=np.int32)
        self.labels: LabelArray = np.zeros(rows, dtype=np.int32)
        # The last group is for records out of reach.
        self._groups = Groups(self.labels, query.k + 1)

    def label(self) -> None:
        """Write the cluster of each of ``points`` to ``labels``, or k if out of reach."""
        query = self.query
        if self.query.d <= _TRANSPOSED:
            np.copyto(self._features[:-1], self.points.T)
        self._nearest(query.groups[0], self.labels, self._best)
        for number, group in enumerate(query.groups[1:], start=1):
            self._nearest(group, self._index, self._lowest)
            self._index += number * query.group
            closer = self._lowest < self._best  # a tie keeps the lower index
            np.copyto(self.labels, self._index, where=closer)
            np.copyto(self._best, self._lowest, where=closer)
        if query.radius2 is not None:
            # The features have a 1 beside x, and the lowest score may include an index
            # below K. So d2 <= radius2 means
            # K (s + |x|**2 + 1) + index < K (radius2 + 2).
            features = self._features
            norms = np.einsum("ij,ij->j", features, features, out=self._lowest)
            norms *= query.factor
            norms += self._best
            far = norms >= query.factor * (query.radius2 + 2)
            np.copyto(self.labels, query.k, where=far)

    def scores(self) -> FloatArray:
        """Return |c|^2 - 2 x . c for each point's nearest centroid. Call ``label`` first."""
        if self.query.packed and len(self.query.groups) == 1:
            self._best -= self.labels
        self._best *= 1 / self.query.factor
        return self._best

    def _nearest(
        self, group: FloatArray, index: LabelArray, lowest: FloatArray
    ) -> None:
        """Write each row's nearest centroid, as its index in a group, and its score."""
        for start in range(0, len(self.points), self._slice):
            part = slice(start, start + self._slice)
            features = self._features[:, part]
            m = len(group)
            n = features.shape[1]
            scores = self._scores[: m * n].reshape(m, n)
            np.dot(group, features, out=scores)
            if self.query.packed:
                np.minimum.reduce(scores, axis=0, out=lowest[part])
            else:
                index[part] = scores.argmin(axis=0)
                lowest[part] = scores[index[part], np.arange(n)]
        if self.query.packed:
            np.copyto(self._packed, lowest, casting="unsafe")  # the values are integers
            mask = self.query.factor - 1
            np.bitwise_and(self._packed, mask, out=index, casting="same_kind")
            if len(self.query.groups) > 1:
                lowest -= index

    def add(
        self, sums: IntArray, counts: IntArray, weights: FloatArray | None = None
    ) -> None:
        """Add the points to the sums and counts of their clusters, times weights, (rows,).

        With weights the points become their products.
        """
        k = self.query.k
        d = self.query.d
        if weights is not None:
            # Sums of 2**15 numbers up to 2**(12 + 25) stay below 2**53.
            self.points *= weights[:, None]
        of_groups = self._groups.sums(self._table)[:k, :d]
        sums += of_groups.astype(np.int64)
        found = np.bincount(self.labels, weights, minlength=k + 1)[:k]
        counts += found.astype(np.int64)


def _labelled(
    records: GridRecords, query: _Query, start: int, stop: int
) -> Iterator[tuple[slice, _Worker]]:
    """Yield the rows of each block with the worker that labelled them.

    Blocks of equal length have the same worker.
    """
    worker: _Worker | None = None
    row_bytes = 8 * (2 * query.d + 8)
    step = max(1, min(_MAX_ROWS, _BLOCK_BYTES // row_bytes))
    for low in range(start, stop, step):
        rows = slice(low, min(low + step, stop))
        n_rows = rows.stop - rows.start
        if worker is None or len(worker.points) != n_rows:
            worker = _Worker(query, n_rows)
        records.read(low, worker.points, worker.scratch)
        worker.label()
        yield rows, worker


def _sum_rows(
    records: GridRecords, query: _Query, start: int, stop: int
) -> tuple[IntArray, IntArray]:
    """Return the sums and counts of the rows from ``start`` to ``stop``."""
    sums = np.zeros((query.k, query.d), dtype=np.int64)
    counts = np.zeros(query.k, dtype=np.int64)
    for rows, worker in _labelled(records, query, start, stop):
        weights = None
        if records.weights is not None:
            weights = records.weights[rows]
        worker.add(sums, counts, weights)
    return sums, counts
