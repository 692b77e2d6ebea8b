"""The mixture of Gaussians by which SynopsisKMeans models the records.

This module post-processes released values, in units of the domain's largest norm, and
accepts any values (docs/guarantees, Theorem 11). All clients of an oblivious server
must agree on the result bit for bit. So it uses raw Philox words, operations that IEEE
754 rounds correctly, and sums of integers, by ``math.fsum`` or by ``row_sums``. The
time depends on the schedule alone: a cell that is left out stays in the mixture with a
weight of 0.
"""

import math
from typing import NamedTuple, Self

import numpy as np

from flower_kmeans.algorithms.numerics.assignment import Centers
from flower_kmeans.algorithms.numerics.initialization import random_words
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.numerics.postprocess import clip_rows, scaled, to_grid
from flower_kmeans.algorithms.state import StateArrays
from flower_kmeans.algorithms.synopsis_constants import (
    FEWEST_POINTS,
    HEAVY_PART,
    HEAVY_SCALE,
    MASS_BITS,
    MODEL_BITS,
    MOST_POINTS,
    POINTS_PER_CLUSTER,
    REAL_BITS,
    TOTAL_BITS,
    WEIGHT_BITS,
)
from flower_kmeans.algorithms.synopsis_state import NamedIntegers
from flower_kmeans.arrays import FloatArray, IntArray


class Mixture(NamedTuple):
    """A mixture of m Gaussians with independent coordinates, p of them.

    Attributes
    ----------
    weights : array of float64, (m,)
        Number of records of each part, or its fraction before records are counted. The
        weight of a left-out part is 0. At least one weight is positive.
    means, scales : array of float64, (m, p)
        Means and standard deviations, in units of the largest norm.
    errors : array of float64, (m, p)
        Variances of the means from noise, in squares of this unit.
    """

    weights: FloatArray
    means: FloatArray
    scales: FloatArray
    errors: FloatArray


class CellNoise(NamedTuple):
    """Standard deviations of the noise in a cell: sums and slacks in radii, counts in records."""

    sums: float
    counts: float
    slacks: float


class Parts(NamedTuple):
    """A mixture in integers, as a state keeps it.

    Points with masses are drawn from it, and a result contains it.

    Attributes
    ----------
    weights : array of int64, (m,)
        In proportion to the mixture's weights (`integer_weights`).
    total : array of int64, (1,)
        The sum of the mixture's weights, with `TOTAL_BITS` fractional bits.
    means, scales : array of int64, (m, p)
        Means and standard deviations, with `REAL_BITS` fractional bits.
    """

    weights: IntArray
    total: IntArray
    means: IntArray
    scales: IntArray

    @classmethod
    def of(cls, mixture: Mixture) -> Self:
        """Return the parts of a mixture, without the errors of its means."""
        total = np.array([math.fsum(mixture.weights)])
        return cls(
            weights=integer_weights(mixture.weights),
            total=to_grid(total * 2.0**TOTAL_BITS),
            means=to_grid(mixture.means * 2.0**REAL_BITS),
            scales=to_grid(mixture.scales * 2.0**REAL_BITS),
        )

    @classmethod
    def read(cls, arrays: StateArrays) -> Self:
        """Return the parts of a state's arrays."""
        return cls(
            weights=arrays["parts"],
            total=arrays["part_total"],
            means=arrays["part_means"],
            scales=arrays["part_scales"],
        )

    def to_arrays(self) -> NamedIntegers:
        """Return the arrays of a state."""
        return {
            "parts": self.weights,
            "part_total": self.total,
            "part_means": self.means,
            "part_scales": self.scales,
        }

    def mixture(self) -> Mixture:
        """Return the mixture, with numbers of records as weights."""
        weights = self.weights.astype(np.float64)
        shares = weights / math.fsum(weights)
        return self._with_weights(shares * scaled(self.total, TOTAL_BITS))

    def points(self, n_clusters: int, source: np.random.Philox) -> IntArray:
        """Return points that stand for the records, (n, p), on the grid of the model.

        The same words give the same points ("Bounds on cluster sizes", "Points").
        """
        weights = self.weights.astype(np.float64)
        mixture = self._with_weights(weights)
        return sample(mixture, n_points(n_clusters), source)

    def _with_weights(self, weights: FloatArray) -> Mixture:
        means = scaled(self.means, REAL_BITS)
        scales = scaled(self.scales, REAL_BITS)
        return Mixture(weights, means, scales, errors=np.zeros_like(means))


def prior(variances: FloatArray) -> Mixture:
    """Return the first model: Gaussians with given variances, (p,), one of them wider."""
    weights = np.array([1 - HEAVY_PART, HEAVY_PART])
    scales = np.sqrt(variances)
    zeros = np.zeros((2, len(variances)))
    both = np.stack([scales, HEAVY_SCALE * scales])
    return Mixture(weights, means=zeros, scales=both, errors=zeros)


def joined(first: Mixture, second: Mixture) -> Mixture:
    """Return the mixture with the parts of both mixtures."""
    pairs = zip(first, second, strict=True)
    return Mixture(*map(np.concatenate, pairs))


# ------------------------------------------------------------------------- points


def sample(mixture: Mixture, size: int, source: np.random.Philox) -> IntArray:
    """Return points of a mixture, (size, p), moved into the unit ball and on the grid.

    The number of points of each part is proportional to its weight, rounded up or down.
    """
    reached = np.cumsum(integer_weights(mixture.weights))
    middles = 2 * np.arange(size, dtype=np.int64) + 1
    places = middles * reached[-1] // (2 * size)
    chosen = np.searchsorted(reached, places, side="right")
    p = mixture.means.shape[1]
    noise = drawn_normals((size, p), source)
    points = mixture.means[chosen] + mixture.scales[chosen] * noise
    return on_grid(clip_rows(points, 1.0))


def integer_weights(weights: FloatArray) -> IntArray:
    """Return integers in proportion to weights, (m,), with a sum of about 2^26.

    They are positive for positive weights.
    """
    per_weight = 2.0**WEIGHT_BITS / math.fsum(weights)
    whole = np.floor(weights * per_weight).astype(np.int64)
    return whole + (weights > 0)


def on_grid(points: FloatArray) -> IntArray:
    """Return points on the model's grid, with coordinates clipped to [-2, 2]."""
    inside = np.clip(points, -2.0, 2.0)
    return to_grid(inside * 2.0**MODEL_BITS)


def nearest(points: IntArray, centers: IntArray) -> IntArray:
    """Return the nearest centre of each grid point, (n,). Ties go to the first centre."""
    found = Centers(centers).nearest(points.astype(np.float64))
    return found.astype(np.int64)


def drawn_normals(shape: tuple[int, int], source: np.random.Philox) -> FloatArray:
    """Return normal numbers of a shape, from the next words of a source."""
    words = random_words(source, shape[0] * shape[1])
    return normals(words).reshape(shape)


# ------------------------------------------------------------- points with masses


def n_points(n_clusters: int) -> int:
    """Return the number of points that stand for the records."""
    wanted = max(POINTS_PER_CLUSTER * n_clusters, FEWEST_POINTS)
    return min(wanted, MOST_POINTS)


def equal_masses(n_clusters: int) -> IntArray:
    """Return equal masses of the points, (n,)."""
    n = n_points(n_clusters)
    return np.full(n, 2**MASS_BITS // n, dtype=np.int64)
