"""From noisy sums to centroids: public arithmetic that is the same on every processor.

Only operations that IEEE 754 rounds correctly, in an order that NumPy does not choose:
no BLAS, no transcendental functions. All is total: any integers give centroids, without
errors or warnings.
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Box, Domain, row_sums

MIN_COUNT = 1.0
"""Fewest noisy records of a cluster whose sum is divided by them; public."""

_FAR = 2.0**62  # rounded integers saturate there, so that a sum of two cannot wrap


def quotients(
    sums: IntArray, counts: IntArray, fraction_bits: int, min_count: float
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return sums (k, d) per record, and a mask of the usable counts (k,).

    Counts below ``min_count`` are not usable: their quotients are 0. Counts are in
    units of ``2**-fraction_bits`` records, ``min_count`` in records and positive.
    """
    records = counts.astype(np.float64) * 2.0**-fraction_bits
    usable = records >= min_count
    divisors = np.where(usable, records, 1.0)
    means = sums.astype(np.float64) / divisors[:, None]
    means[~usable] = 0.0
    return means, usable


def clip_rows(vectors: FloatArray, radius: FloatArray | float) -> FloatArray:
    """Shorten vectors (k, d) to an l2 norm of a radius, or of one radius (k,) for each.

    But for a few roundings: no guarantee rests on it.
    """
    squares = row_sums(vectors * vectors)
    longer = squares > radius * radius
    lengths = np.sqrt(np.where(longer, squares, 1.0))
    factors = np.where(longer, radius / lengths, 1.0)
    return vectors * factors[:, None]


def to_grid(values: FloatArray) -> IntArray:
    """Return the nearest integers, ``floor(x + 1/2)``; beyond 2**62 they saturate."""
    nearest = np.floor(values + 0.5)
    return np.clip(nearest, -_FAR, _FAR).astype(np.int64)


def scaled(integers: IntArray, exponent: int) -> FloatArray:
    """Return the values of integers of an exponent."""
    return integers.astype(np.float64) * 2.0**-exponent


def fold(points: IntArray, half_widths: IntArray) -> IntArray:
    """Reflect coordinates (k, d) at the box's walls until they lie inside.

    They are at most 2**62 + 2**26. See docs/guarantees, Theorem 12.
    FastLloyd's formula sends 1.2 B to -0.8 B.
    """
    period = np.maximum(4 * half_widths, 1)
    r = (points + half_widths) % period
    r = np.where(r > 2 * half_widths, 4 * half_widths - r, r)
    return np.asarray(r - half_widths)


def truncate(points: IntArray, half_widths: IntArray) -> IntArray:
    """Move coordinates that lie outside the box to its walls."""
    return np.clip(points, -half_widths, half_widths)


def into_domain(points: IntArray, domain: Domain, fraction_bits: int) -> IntArray:
    """Move points (k, d) outside of the domain onto its boundary, coordinates first."""
    inside = truncate(points, domain.grid_half_widths(fraction_bits))
    if isinstance(domain, Box):
        return inside
    on_grid = domain.quantise(scaled(inside, fraction_bits), fraction_bits)
    return on_grid.astype(np.int64)


# --------------------------------------------------------------------------- histograms


def zero_small(histogram: FloatArray, total: float) -> FloatArray:
    """Return a noisy histogram (m,) with zeros for its smallest bins.

    The largest bins are kept until they sum to more than the total (PE-means, Algorithm
    2, lines 7 to 9), of equal bins the first. Noise moves many records' worth into
    empty bins, but little into each.
    """
    order = np.argsort(-histogram, kind="stable")
    # Negative bins come last, so the sums rise before they fall: the first excess
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
    """Return the sum of bins (m,) less three of its standard deviations.

    ``noise`` is the standard deviation of a bin.
    """
    total = math.fsum(histogram.tolist())
    return total - 3 * noise * math.sqrt(len(histogram))


def expected_total(
    histogram: FloatArray, noise: float, planned: float, answered: float
) -> float:
    """Return the number of records in the answers, in [0, planned].

    ``planned`` is a public figure or infinite. A part ``answered`` of the clients has
    that part of the planned records if all have as many; those who are missing may have
    none, or twice as many. That figure and the noisy total, of bins (m,) of standard
    deviation ``noise``, are weighted by their variances.
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
