"""Leading eigenvectors of symmetric matrices of any width, with the same bits everywhere.

Up to `MOST_ROTATED` columns they come from `jacobi`, which takes minutes above a few
hundred columns. Beyond, a block of vectors is multiplied
by polynomials of the matrix, and then rotated within its span (block iteration with
Chebyshev filters and Rayleigh-Ritz steps: Zhou and Saad, SIAM Journal on Matrix
Analysis 29, 2007). The number of steps is fixed.

Every product is of integers in float64. The rows of the one factor and the columns of
the other are no longer than 2^26, so by Cauchy and Schwarz no partial sum exceeds 2^52,
and BLAS is exact in any order. All other operations are rounded correctly by IEEE 754,
element by element, or they are `row_sums`.
"""

import math

import numpy as np

from flower_kmeans.algorithms.numerics.initialization import (
    public_words,
    random_words,
)
from flower_kmeans.algorithms.numerics.jacobi import eigenvectors, orthonormal
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import row_sums
from flower_kmeans.threads import single_threaded_blas

MOST_ROTATED = 128
"""Most columns whose eigenvectors come from rotations, which are too slow for more."""

MOST_COLUMNS = 4096
"""Most columns of a matrix: with more, lower parts of rows could be longer than 2^26."""

BLOCK = 64
"""Vectors that are computed at least. With fewer the last ones converge slowly."""

MOST_VECTORS = 128
"""Most vectors that are computed. Rotations within the span of more take many seconds."""

ROUNDING = 2.0**-26
"""Error of an eigenvalue for each column, at most, over the length of the matrix."""

_ROUNDS = 6
_DEGREE = 6
_FIRST_DEGREE = 2
# The largest eigenvalue over half the width of the damped interval. More would damp the
# eigenvectors of small eigenvalues below the roundings of those of large ones.
_MOST_GROWTH = 2.0**12

_HIGH = 2.0**26
_LOW = 2.0**20
# Rows a little shorter than 1 stay no longer than 1 if their roundings lengthen them.
_SHORT = 1 - 2.0**-20
# Lengths below this one are those of zeros.
_TINY = 2.0**-60
# Largest product of two unit vectors that count as orthogonal. `MOST_VECTORS` of them,
# made `_SHORT`, lengthen no vector: they could be twice as many.
_OVERLAP = 2.0**-27


def leading_eigenvectors(
    matrix: FloatArray, n_vectors: int, edge: float
) -> tuple[FloatArray, FloatArray]:
    """Return p leading eigenvectors, (d, p), and d eigenvalues, (d,), of a symmetric matrix.

    Eigenvalues descend. Above `MOST_ROTATED` columns only p of them are computed, and the
    others are 0. Parameters are those of `leading`.
    """
    d = len(matrix)
    if d <= MOST_ROTATED:
        vectors, values = eigenvectors(matrix)
        return vectors[:, :n_vectors], values
    vectors, values = leading(matrix, n_vectors, edge)
    others = np.zeros(d - n_vectors)
    return vectors, np.concatenate([values, others])


def leading(
    matrix: FloatArray, n_vectors: int, edge: float
) -> tuple[FloatArray, FloatArray]:
    """Return leading eigenvectors, (d, p), and eigenvalues, (p,), of a symmetric matrix.

    Eigenvalues descend, and eigenvectors are orthonormal columns. Eigenvectors beside
    noise converge; those of eigenvalues within the noise are some vectors of its space.

    Parameters
    ----------
    matrix : array of float64, (d, d)
        A symmetric matrix with finite entries of at most 1e150 in absolute value. d is
        at most `MOST_COLUMNS`.
    n_vectors : int
        p, the number of eigenvectors, at most d and at most `MOST_VECTORS`.
    edge : float
        The largest absolute eigenvalue of the noise in the matrix, 0 or more.
    """
    d = len(matrix)
    scale = _shortening(matrix)
    # Its rows, and its products with vectors, are no longer than 1.
    integers = np.trunc(matrix * (scale * _HIGH))
    # No eigenvalue exceeds the length of the matrix, which is below 1.
    damped = min(edge * scale, 1.0)
    n_rows = min(d, max(n_vectors, BLOCK))
    with single_threaded_blas():
        rows = _unit_basis(_start(n_rows, d))
        rows, values = _rotated(rows, integers)
        lower = -damped
        for number in range(_ROUNDS):
            # Below the noise are eigenvalues of false sums alone. If they were not damped,
            # their eigenvectors would fill the block.
            lower = min(lower, float(values[-1]))
            # The first rows are random, so their least value is one of the noise.
            degree = _FIRST_DEGREE
            upper = max(float(values[-1]), 0.0)
            if number > 0:
                degree = _DEGREE
                upper = max(upper, damped)
            rows = _filtered(rows, integers, lower, upper, float(values[0]), degree)
            rows, values = _rotated(rows, integers)
    vectors = rows[:n_vectors].T / _SHORT
    return vectors, values[:n_vectors] / scale


def leading_of_products(
    matrix: FloatArray, n_vectors: int
) -> tuple[FloatArray, FloatArray]:
    """Return the leading left singular vectors, (d, p), and values, (p,), of a matrix.

    Values descend, and vectors are orthonormal columns.

    Parameters
    ----------
    matrix : array of float64, (d, m)
        A matrix with finite entries of at most 1e150 in absolute value. d is at most
        `MOST_COLUMNS`, and m so small that rotations are fast, about 128.
    n_vectors : int
        p, the number of vectors, at most m.
    """
    scale = _shortening(matrix)
    # No row and no column is longer than the whole matrix, which is below 1.
    short = matrix * scale
    with single_threaded_blas():
        within = _product(short.T, short)
        turn, _ = eigenvectors((within + within.T) / 2)
        images = _product(short, turn[:, :n_vectors] * _SHORT) / _SHORT
    values = _lengths(images.T) / scale
    # A matrix of a lower rank has images of roundings, which count as zeros.
    vectors = _independent(orthonormal(images).T).T
    return vectors, values


def _shortening(matrix: FloatArray) -> float:
    """Return the factor that gives a matrix a length just below 1."""
    length = math.sqrt(math.fsum(row_sums(matrix * matrix)))
    return _SHORT / max(length, 2.0**-500)


def _start(n_rows: int, d: int) -> FloatArray:
    """Return public random rows, (n_rows, d)."""
    words = random_words(public_words(0), n_rows * d)
    return normals(words).reshape(n_rows, d)


def _unit_basis(rows: FloatArray) -> FloatArray:
    """Return orthogonal rows of length `_SHORT` that span the same, or zeros."""
    lengths = np.maximum(_lengths(rows), _TINY)
    basis = orthonormal((rows / lengths[:, None]).T)
    return _independent(basis.T) * _SHORT


def _independent(rows: FloatArray) -> FloatArray:
    """Return unit rows, with zeros for those that are not orthogonal to earlier ones.

    Filters can make rows equal but for roundings, if one eigenvalue is far from all
    others. Columns of their basis could be longer than 1.
    """
    found = rows.copy()
    for i, row in enumerate(found):
        later = found[i + 1 :]
        overlaps = np.abs(row_sums(later * row))
        later *= (overlaps <= _OVERLAP)[:, None]
    return found


def _rotated(rows: FloatArray, integers: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rows rotated to the eigenvectors within their span, and eigenvalues."""
    images = _times(rows, integers)
    within = _product(rows, images.T)
    turn, values = eigenvectors((within + within.T) / 2)
    turned = _product(turn.T * _SHORT, rows) / _SHORT
    return turned, values / (_SHORT * _SHORT)


def _filtered(
    rows: FloatArray,
    integers: FloatArray,
    lower: float,
    upper: float,
    largest: float,
    degree: int,
) -> FloatArray:
    """Return a basis of Chebyshev's polynomial of the matrix times the rows.

    The polynomial is small between ``lower`` and ``upper``, and grows fast outside.
    ``largest`` is the largest eigenvalue.
    """
    center = (upper + lower) / 2
    half = max((upper - lower) / 2, largest / _MOST_GROWTH, 2.0**-40)
    before = rows
    now = (_times(rows, integers) - center * rows) / half
    for _ in range(degree - 1):
        # A common factor of both changes no direction, and keeps the rows short.
        lengths = np.maximum(_lengths(now), _TINY)[:, None] / _SHORT
        before = before / lengths
        now = now / lengths
        following = (_times(now, integers) - center * now) * (2 / half) - before
        before = now
        now = following
    return _unit_basis(now)


# ----------------------------------------------------------------- exact products


def _times(rows: FloatArray, integers: FloatArray) -> FloatArray:
    """Return rows, (m, n), times integers, (n, l), over 2^26, to about 2^-45.

    Rows are no longer than 1, and columns of integers no longer than 2^26.
    """
    high, low = _halves(rows)
    return (high @ integers) / (_HIGH * _HIGH) + (low @ integers) / (
        _HIGH * _HIGH * _LOW
    )


def _product(rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Return rows, (m, n), times columns, (n, l), all no longer than 1, to about 2^-45."""
    high, low = _halves(columns)
    return _times(rows, high) + _times(rows, low) / _LOW


def _halves(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return two integers of each value: in steps of 2^-26, and the rest in steps of 2^-46.

    The first are no longer than 2^26 where values are no longer than 1. The second are
    below 2^20 each, so at most 4,096 of them are no longer than 2^26.
    """
    steps = values * _HIGH
    high = np.trunc(steps)
    low = np.trunc((steps - high) * _LOW)
    return high, low


def _lengths(rows: FloatArray) -> FloatArray:
    """Return the lengths of rows, (m,)."""
    return np.sqrt(row_sums(rows * rows))
