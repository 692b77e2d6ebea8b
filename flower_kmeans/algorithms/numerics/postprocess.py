"""From noisy sums to centroids: public arithmetic that is the same on every processor.

It uses only operations that IEEE 754 rounds correctly, in a fixed order: no BLAS and no
transcendental functions. Any integers give centroids, without errors or warnings.
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Box, Domain, Sphere, row_sums

MIN_COUNT = 1.0
"""Fewest noisy records of a cluster whose sum is divided by them; public."""

_FAR = 2.0**62  # integers saturate here, so a sum of two cannot overflow int64


def quotients(
    sums: IntArray, counts: IntArray, fraction_bits: int, min_count: float
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return sums divided by counts, (k, d), and whether each count is usable, (k,).

    Counts are in steps of ``2**-fraction_bits`` records, and ``min_count`` > 0 is in
    records. A smaller count is not usable, and its quotients are 0.
    """
    records = counts.astype(np.float64) * 2.0**-fraction_bits
    usable = records >= min_count
    divisors = np.where(usable, records, 1.0)
    means = sums.astype(np.float64) / divisors[:, None]
    means[~usable] = 0.0
    return means, usable


def clip_rows(vectors: FloatArray, radius: FloatArray | float) -> FloatArray:
    """Return vectors, (k, d), shortened to an l2 norm of at most ``radius``.

    The radius may be one number or one for each vector, (k,). The norm may exceed it by
    a few roundings, so no guarantee may depend on it.
    """
    squares = row_sums(vectors * vectors)
    longer = squares > radius * radius
    lengths = np.sqrt(np.where(longer, squares, 1.0))
    factors = np.where(longer, radius / lengths, 1.0)
    return vectors * factors[:, None]


def to_grid(values: FloatArray) -> IntArray:
    """Return the nearest integers, ``floor(x + 1/2)``. They saturate at 2**62."""
    nearest = np.floor(values + 0.5)
    return np.clip(nearest, -_FAR, _FAR).astype(np.int64)


def scaled(integers: IntArray, exponent: int) -> FloatArray:
    """Return integers in steps of ``2**-exponent`` as float64."""
    return integers.astype(np.float64) * 2.0**-exponent


def fold(points: IntArray, half_widths: IntArray) -> IntArray:
    """Return coordinates, (k, d), reflected at the walls of the box until they are inside.

    Coordinates must be at most 2**62 + 2**26 in absolute value (docs/guarantees,
    Theorem 12). The formula in the FastLloyd paper does not reflect: it sends 1.2 B to
    -0.8 B.
    """
    period = np.maximum(4 * half_widths, 1)
    r = (points + half_widths) % period
    r = np.where(r > 2 * half_widths, 4 * half_widths - r, r)
    return np.asarray(r - half_widths)


def truncate(points: IntArray, half_widths: IntArray) -> IntArray:
    """Return coordinates, with those outside the box moved to its walls."""
    return np.clip(points, -half_widths, half_widths)


def into_domain(points: IntArray, domain: Domain, fraction_bits: int) -> IntArray:
    """Return points, (k, d), with those outside the domain moved to its boundary.

    For a ball, coordinates are first moved into its enclosing box. Means of directions
    lie in the unit ball, so for a sphere that is the domain.
    """
    low, high = domain.grid_bounds(fraction_bits)
    inside = np.clip(points, low, high)
    if isinstance(domain, Box):
        return inside
    on_grid = domain.quantise(scaled(inside, fraction_bits), fraction_bits)
    return on_grid.astype(np.int64)


def centroids_in(points: IntArray, domain: Domain, fraction_bits: int) -> IntArray:
    """Return means, (k, d), as the centroids to which records are compared.

    On a sphere they are directions, of length 1 without at most ``sqrt(d)`` grid steps,
    so the nearest is that with the largest cosine. A mean of length zero becomes the
    direction of the first column. In other domains they are moved `into_domain`.
    """
    if not isinstance(domain, Sphere):
        return into_domain(points, domain, fraction_bits)
    directions = domain.place(points.astype(np.float64))
    return domain.quantise(directions, fraction_bits).astype(np.int64)


# --------------------------------------------------------------------------- histograms


def zero_small(histogram: FloatArray, total: float) -> FloatArray:
    """Return a noisy histogram, (m,), with zeros for its smallest bins.

    The largest bins are kept until their sum exceeds the total (PE-means, Algorithm 2,
    lines 7 to 9). Ties go to the first bin. Noise puts many records' worth into the
    empty bins together, but little into each.
    """
    order = np.argsort(-histogram, kind="stable")
    # Negative bins come last, so the sums rise before they fall, and the first excess
    # counts.
    beyond = np.cumsum(histogram[order]) > total
    if beyond.any():
        largest = order[: int(beyond.argmax()) + 1]
    else:
        largest = order
    kept = np.zeros_like(histogram)
    kept[largest] = np.maximum(histogram[largest], 0.0)
    return kept


def surely_counted(histogram: FloatArray, noise: float) -> float:
    """Return the sum of bins, (m,), minus three standard deviations of its noise.

    ``noise`` is the standard deviation of the noise in a bin.
    """
    total = math.fsum(histogram.tolist())
    return total - 3 * noise * math.sqrt(len(histogram))


def expected_total(
    histogram: FloatArray, noise: float, planned: float, answered: float
) -> float:
    """Return an estimate of the number of records in the answers, in [0, planned].

    The estimate weighs two numbers by their variances. The first is the noisy total of
    the bins. The second is ``answered * planned``, which holds if all clients have
    equally many records; missing clients may have none, or twice as many.

    Parameters
    ----------
    histogram : ndarray of shape (m,)
        Noisy numbers of records.
    noise : float
        Standard deviation of the noise in a bin.
    planned : float
        Public number of records, or infinity.
    answered : float
        Fraction of the clients that answered.
    """
    likely = answered * planned
    spread = (1 - answered) * planned / 2
    if math.isinf(planned) or spread == 0:
        return planned
    variance = spread * spread
    weight = variance / (variance + noise * noise * len(histogram))
    found = math.fsum(histogram.tolist())
    expected = likely + weight * (found - likely)
    return min(max(expected, 0.0), planned)
