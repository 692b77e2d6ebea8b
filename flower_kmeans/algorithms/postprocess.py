"""From noisy sums to centroids: public arithmetic that is the same on every processor.

Clients of an oblivious server each compute the next centroids, and must agree bit for bit. So only
operations that IEEE 754 rounds correctly are used (+ - * / sqrt floor and comparisons), in an order
that NumPy does not choose: no sums over arrays, no BLAS, no transcendental functions. Everything
is total: any integers give centroids, without errors or warnings.
"""

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.domain import Box, Domain, row_sums

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_FAR = 2.0**62


def quotients(
    sums: IntArray, counts: IntArray, fraction_bits: int, min_count: float
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return sums per record, and which clusters have a count that can be divided by.

    Parameters
    ----------
    sums : ndarray of shape (k, d), int64
        In grid units.
    counts : ndarray of shape (k,), int64
        In units of ``2**-fraction_bits`` records.
    fraction_bits : int
    min_count : float
        Fewest records to divide by, positive.

    Returns
    -------
    means : ndarray of shape (k, d), float64
        In grid units; zeros for the other clusters.
    usable : ndarray of shape (k,), bool
    """
    records = counts.astype(np.float64) * 2.0**-fraction_bits
    usable = records >= min_count
    means = sums.astype(np.float64) / np.where(usable, records, 1.0)[:, None]
    means[~usable] = 0.0
    return means, usable


def clip_rows(vectors: FloatArray, radius: float) -> FloatArray:
    """Shorten vectors (k, d) to an l2 norm of about ``radius``, keeping their direction.

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


def fold(points: IntArray, half_widths: IntArray) -> IntArray:
    """Reflect coordinates at the walls of the box until they lie inside.

    With B the half width: ``r = (x + B) mod 4B``; if ``r > 2B`` then ``r = 4B - r``; ``r - B``
    (docs/guarantees.md, "Lloyd family, one round"; the formula in FastLloyd's section 5.3.5 sends
    1.2 B to -0.8 B).

    Parameters
    ----------
    points : ndarray of shape (k, d), int64
        At most 2**62 + 2**26 in absolute value.
    half_widths : ndarray of shape (d,), int64
    """
    period = np.maximum(4 * half_widths, 1)
    r = (points + half_widths) % period
    r = np.where(r > 2 * half_widths, 4 * half_widths - r, r)
    return np.asarray(r - half_widths)


def truncate(points: IntArray, half_widths: IntArray) -> IntArray:
    """Move coordinates that lie outside the box to its walls."""
    return np.clip(points, -half_widths, half_widths)


def scaled(integers: IntArray, exponent: int) -> FloatArray:
    """Return what integers of a grid stand for."""
    return integers.astype(np.float64) * 2.0**-exponent


def into_domain(points: IntArray, domain: Domain, fraction_bits: int) -> IntArray:
    """Move points (k, d) that lie outside of the domain onto its boundary, coordinates first."""
    inside = truncate(points, domain.grid_half_widths(fraction_bits))
    if isinstance(domain, Box):
        return inside
    return domain.quantise(scaled(inside, fraction_bits), fraction_bits).astype(np.int64)
