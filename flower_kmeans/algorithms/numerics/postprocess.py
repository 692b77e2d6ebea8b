"""From noisy sums to centroids: public arithmetic that is the same on every processor.

Clients of an oblivious server each compute the next centroids, and must agree bit for bit. So only
operations that IEEE 754 rounds correctly are used (+ - * / sqrt floor and comparisons), in an order
that NumPy does not choose: sums over arrays are sequential or rounded once, with no BLAS and no
transcendental functions. Everything is total: any integers give centroids, without errors or
warnings. All of it is post-processing, which costs no privacy.
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.data.domain import Box, Domain, IntArray, row_sums
from flower_kmeans.data.records import FloatArray

_FAR = 2.0**62  # rounded integers saturate there, so that a sum of two cannot wrap


def quotients(
    sums: IntArray, counts: IntArray, fraction_bits: int, min_count: float
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return sums (k, d) per record, and which clusters (k,) have a count that can be divided by.

    Counts are in units of ``2**-fraction_bits`` records, ``min_count`` in records and positive. The
    quotients of other clusters are zeros.
    """
    records = counts.astype(np.float64) * 2.0**-fraction_bits
    usable = records >= min_count
    means = sums.astype(np.float64) / np.where(usable, records, 1.0)[:, None]
    means[~usable] = 0.0
    return means, usable


def clip_rows(vectors: FloatArray, radius: FloatArray | float) -> FloatArray:
    """Shorten vectors (k, d) to an l2 norm of about a radius, or one radius (k,) for each.

    A vector that is longer is scaled by floating-point numbers, so its norm may exceed the radius
    by a few roundings: this is for utility, no guarantee rests on it.
    """
    squares = row_sums(vectors * vectors)
    longer = squares > radius * radius
    factors = np.where(longer, radius / np.sqrt(np.where(longer, squares, 1.0)), 1.0)
    return vectors * factors[:, None]


def to_grid(values: FloatArray) -> IntArray:
    """Return the nearest integers, ``floor(x + 1/2)``; beyond 2**62 they saturate."""
    return np.clip(np.floor(values + 0.5), -_FAR, _FAR).astype(np.int64)


def scaled(integers: IntArray, exponent: int) -> FloatArray:
    """Return the values of integers of an exponent."""
    return integers.astype(np.float64) * 2.0**-exponent


def fold(points: IntArray, half_widths: IntArray) -> IntArray:
    """Reflect coordinates (k, d), at most 2**62 + 2**26, at the box's walls until they lie inside.

    With B the half width: ``r = (x + B) mod 4B``; if ``r > 2B`` then ``r = 4B - r``; ``r - B``
    (docs/guarantees.md, "Lloyd family, one round"; the formula in FastLloyd's section 5.3.5 sends
    1.2 B to -0.8 B).
    """
    period = np.maximum(4 * half_widths, 1)
    r = (points + half_widths) % period
    r = np.where(r > 2 * half_widths, 4 * half_widths - r, r)
    return np.asarray(r - half_widths)


def truncate(points: IntArray, half_widths: IntArray) -> IntArray:
    """Move coordinates that lie outside the box to its walls."""
    return np.clip(points, -half_widths, half_widths)


def into_domain(points: IntArray, domain: Domain, fraction_bits: int) -> IntArray:
    """Move points (k, d) that lie outside of the domain onto its boundary, coordinates first."""
    inside = truncate(points, domain.grid_half_widths(fraction_bits))
    if isinstance(domain, Box):
        return inside
    return domain.quantise(scaled(inside, fraction_bits), fraction_bits).astype(np.int64)


# --------------------------------------------------------------------------- histograms


def zero_small(histogram: FloatArray, total: float) -> FloatArray:
    """Return a noisy histogram (m,) without its smallest bins, which the total does not need.

    The largest bins are kept until they sum to more than the total; the others become zero, and so
    does every negative bin (PE-means, Algorithm 2, lines 7 to 9). Of equal bins the first are the
    larger ones. Noise moves many records' worth into empty bins, but little into each.
    """
    order = np.argsort(-histogram, kind="stable")
    reached = np.cumsum(histogram[order])
    # Negative bins come last, so the sums rise before they fall: the first excess is what counts.
    beyond = np.flatnonzero(reached > total)
    n_kept = len(order) if not len(beyond) else int(beyond[0]) + 1
    kept = np.zeros_like(histogram)
    largest = order[:n_kept]
    kept[largest] = np.maximum(histogram[largest], 0.0)
    return kept


def surely_counted(histogram: FloatArray, noise: float) -> float:
    """Return how many records a noisy histogram (m,) holds at least: its sum less three deviations.

    ``noise`` is the standard deviation of a bin. More than the planned number shows that the plan
    has too few.
    """
    return math.fsum(histogram.tolist()) - 3 * noise * math.sqrt(len(histogram))


def expected_total(histogram: FloatArray, noise: float, planned: float, answered: float) -> float:
    """Return how many records the answers hold, in [0, planned], where not all clients answered.

    A part ``answered`` of the clients has that part of the planned records if all have as many;
    those who are missing may have none, or twice as many. The noisy total of the answers, bins (m,)
    of standard deviation ``noise``, says more about it the smaller its noise is: both are weighted
    by their variances. ``planned`` is a public figure, or infinite.
    """
    likely, spread = answered * planned, (1 - answered) * planned / 2
    if math.isinf(planned) or spread == 0:
        return planned
    weight = spread * spread / (spread * spread + noise * noise * len(histogram))
    found = math.fsum(histogram.tolist())
    return min(max(likely + weight * (found - likely), 0.0), planned)
