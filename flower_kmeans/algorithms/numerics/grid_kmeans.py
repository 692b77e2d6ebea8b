"""Weighted k-means on integer points, with the same result on every processor.

All numbers are integers that float64 or int64 holds exactly, so sums do not depend on
the order of additions (docs/guarantees, Theorem 11). Weights and products that are too
large lose last bits, element by element, before anything is added. Let coordinates be
at most B and weights sum to W. As many bits are dropped as are needed for W < 2^53,
W B < 2^60, and a sum of weighted squared distances below 2^62.

The time depends on sizes alone: all steps are made even if nothing moves any more, and
points without weight are computed like others.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.algorithms.numerics.initialization import random_words
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import squared_norms
from flower_kmeans.threads import single_threaded_blas

_EXACT_BITS = 53  # float64 holds integers of so many bits
_SUM_BITS = 60  # bits of an int64, less those for a sign, a doubling and a rounding


class GridCenters(NamedTuple):
    """Centres of a weighted k-means.

    Attributes
    ----------
    points : ndarray of shape (k, p), int64
        Within the bounds of the points and of given centres.
    cost : float
        Sum of weighted squared distances to the nearest centres.
    """

    points: IntArray
    cost: float


def grid_kmeans(
    points: IntArray | FloatArray,
    weights: IntArray,
    n_clusters: int,
    source: np.random.Philox,
    n_starts: int = 5,
    n_steps: int = 20,
) -> GridCenters:
    """Return the best of several starts of weighted k-means by greedy k-means++.

    The first centre is drawn by weight. Each further centre is the best of
    ``2 + floor(bits(k) / 2)`` candidates, which are drawn by weight times squared
    distance to the nearest centre before. Lloyd's steps follow. If there are fewer
    different points than clusters, some centres are equal.

    Parameters
    ----------
    points : ndarray of shape (n, p)
        Integers of at most B in absolute value, with ``4 p B**2 <= 2**53``.
    weights : ndarray of shape (n,), int64
        At least 0. If all are 0, all points count alike.
    n_clusters : int
        Number of centres, k.
    source : Philox
        Public words. The number taken depends on ``n_clusters`` and ``n_starts`` alone.
    n_starts : int
        Number of starts, of which the cheapest counts.
    n_steps : int
        Number of Lloyd's steps after each start.

    Raises
    ------
    ValueError
        If points or weights are out of range.
    """
    data = _Data(points, weights)
    n_candidates = 2 + n_clusters.bit_length() // 2
    found = []
    with single_threaded_blas():
        for _ in range(n_starts):
            words = random_words(source, 1 + (n_clusters - 1) * n_candidates)
            others = words[1:].reshape(n_clusters - 1, n_candidates)
            chosen = _spread(data, words[:1], others)
            starts = data.points[chosen].astype(np.int64)
            found.append(_steps(data, starts, n_steps))
    cost, centers = min(found, key=lambda one: one[0])  # of equal costs the first
    return GridCenters(centers, math.ldexp(cost, data.cut_bits))


def lloyd_steps(
    points: IntArray | FloatArray, weights: IntArray, centers: IntArray, n_steps: int
) -> GridCenters:
    """Return centres, (k, p), after Lloyd's steps on weighted points.

    Points, weights and errors are those of `grid_kmeans`. A step moves each centre to
    the mean of its points, rounded half up. A centre without points does not move. Ties
    go to the first centre.
    """
    data = _Data(points, weights, centers)
    with single_threaded_blas():
        cost, centers = _steps(data, centers, n_steps)
    return GridCenters(centers, math.ldexp(cost, data.cut_bits))


def grid_means(
    points: IntArray | FloatArray,
    weights: IntArray,
    labels: IntArray,
    centers: IntArray,
) -> IntArray:
    """Return the means, (k, p), of points by label, as in a step of `lloyd_steps`."""
    return _means(_Data(points, weights, centers), labels, centers)


# --------------------------------------------------------------------------- details


class _Data:
    """Points with their weights, without the last bits that exact sums have no room for."""

    def __init__(
        self,
        points: IntArray | FloatArray,
        weights: IntArray,
        centers: IntArray | None = None,
    ) -> None:
        n, p = points.shape
        is_vector = weights.shape == (n,) and weights.dtype == np.int64
        if not is_vector or not n or int(weights.min()) < 0:
            raise ValueError(
                "Expected weights (n,) of int64, at least 0, for n >= 1 points."
            )
        largest = _largest(points)
        if centers is not None:
            largest = max(largest, _largest(centers))
        if 4 * p * largest**2 > 2**_EXACT_BITS:
            raise ValueError(
                f"Expected coordinates B with 4 p B^2 <= 2^53. Got {largest} in {p} columns."
            )
        if not weights.any():
            weights = np.ones(n, dtype=np.int64)
        total = _sum(weights)
        # Sums of weights must be exact in float64, and sums of weighted coordinates in
        # int64.
        room = min(_EXACT_BITS, _SUM_BITS - largest.bit_length())
        shift = max(0, total.bit_length() - room)
        self.points = np.ascontiguousarray(points, dtype=np.float64)
        self.weights = weights >> shift
        self.weighted = self.points.astype(np.int64) * self.weights[:, None]
        self._norms = squared_norms(self.points)
        # The bound of squared distances is the same for every start.
        longest = 4 * p * largest**2
        mass_bits = (total >> shift).bit_length() + longest.bit_length()
        self._shorter = max(0, mass_bits - 62)
        self._factors = np.ldexp(self.weights.astype(np.float64), -self._shorter)
        self.cut_bits = shift + self._shorter  # bits that sums of masses have lost

    def masses(self, d2: FloatArray) -> IntArray:
        """Return weights times squared distances, (..., n). Their sum is below 2^62."""
        found: IntArray = np.floor(self._factors * d2).astype(np.int64)
        return found

    def distances(self, chosen: NDArray[np.intp]) -> FloatArray:
        """Return the exact squared distances, (m, n), of all points to chosen points."""
        doubled = -2 * self.points[chosen]
        found: FloatArray = doubled @ self.points.T
        found += self._norms
        found += self._norms[chosen, None]
        return found


def _spread(
    data: _Data, first: NDArray[np.uint64], others: NDArray[np.uint64]
) -> NDArray[np.intp]:
    """Return the indices, (k,), of the points that greedy k-means++ draws.

    ``first``, (1,), and ``others``, (k - 1, m), are random words.
    """
    chosen = _draw(data.weights, first)
    nearest = data.distances(chosen)[0]
    for words in others:
        masses = data.masses(nearest)
        candidates = _draw(masses if masses.any() else data.weights, words)
        closer = np.minimum(data.distances(candidates), nearest)
        best = int(data.masses(closer).sum(axis=1).argmin())
        nearest = closer[best]
        chosen = np.append(chosen, candidates[best])
    return chosen


def _draw(masses: IntArray, words: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return an index for every word, with probabilities proportional to the masses."""
    reached = np.cumsum(masses)
    total = int(reached[-1])
    # A product may have 126 bits, so these are Python's integers.
    drawn = np.array([int(word) * total >> 64 for word in words], dtype=np.int64)
    return np.asarray(np.searchsorted(reached, drawn, side="right"))


def _steps(data: _Data, centers: IntArray, n_steps: int) -> tuple[int, IntArray]:
    """Return the cost without its last ``cut_bits``, and the centres after the steps."""
    labels, d2 = assign(data.points, centers)
    for _ in range(n_steps):
        centers = _means(data, labels, centers)
        labels, d2 = assign(data.points, centers)
    return int(data.masses(d2).sum()), centers


def _means(
    data: _Data, labels: NDArray[np.integer[Any]], centers: IntArray
) -> IntArray:
    """Return the means of points by label. A label without weight keeps its centre."""
    k = len(centers)
    sums = Groups(labels, k).sums(data.weighted)
    sizes = np.bincount(labels, data.weights, k).astype(np.int64)[:, None]
    means = (2 * sums + sizes) // np.maximum(2 * sizes, 1)
    return np.where(sizes > 0, means, centers)


def _largest(points: IntArray | FloatArray) -> int:
    return max(int(points.max()), -int(points.min()))


def _sum(weights: IntArray) -> int:
    """Return the sum of weights of at least 0, even if it exceeds int64."""
    high = int((weights >> 32).sum())
    low = int((weights & (2**32 - 1)).sum())
    return (high << 32) + low
