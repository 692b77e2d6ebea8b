"""Eigenvectors with the same bits on every processor, unlike those of LAPACK.

The method is Jacobi's, with rotations in a fixed order (Golub & Van Loan, Matrix
Computations, section 8.5). d/2 disjoint pairs of columns rotate at once, as in a
round-robin tournament. The number of sweeps is fixed.
"""

import math

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import row_sums

# Enough for 128 columns: each sweep about squares the entries beside the diagonal.
_SWEEPS = 9
# An entry this small, relative to its two diagonal entries, needs no rotation.
_SMALL = 1e-14
# The least squared length to divide by. Those of independent columns are longer.
_TINY = 2.0**-1000


def eigenvectors(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the eigenvectors, (d, d), and eigenvalues, (d,), of a symmetric matrix.

    Eigenvalues descend, and eigenvectors are orthonormal columns. The matrix, (d, d),
    must be finite, with entries of at most 1e150 in absolute value.
    """
    d = len(matrix)
    half = (d + 1) // 2
    work = np.zeros((2 * half, 2 * half))
    vectors = np.eye(2 * half)
    # With an odd d, one column is paired with a column of zeros, which never rotates.
    work[:d, :d] = matrix
    turn = _turn(half)
    for _ in range(_SWEEPS):
        _sweep(work, vectors, turn)
    values = np.diagonal(work).copy()
    # After whole sweeps all columns are at their first places again.
    order = np.argsort(-values[:d], kind="stable")
    without_padding = vectors[:d, :d]
    return without_padding[:, order], values[:d][order]


def orthonormal(columns: FloatArray) -> FloatArray:
    """Return an orthonormal basis, (d, p), of independent columns by Gram and Schmidt."""
    rows = columns.T.copy()
    # After one pass rounding leaves parts of earlier vectors. A second pass removes
    # them.
    for _ in range(2):
        for i, row in enumerate(rows):
            square = float(row_sums((row * row)[None])[0])
            # A dependent column, which nothing is left of, becomes 0.
            row /= math.sqrt(max(square, _TINY))
            later = rows[i + 1 :]
            products = row_sums(later * row)
            later -= products[:, None] * row
    return rows.T


def _turn(half: int) -> NDArray[np.intp]:
    """Return the order of the columns in the next round: 0 stays, the others rotate."""
    top = np.arange(half)
    bottom = np.arange(half, 2 * half)
    if half == 1:
        return np.arange(2)
    return np.concatenate([[0], bottom[:1], top[1:-1], bottom[1:], top[-1:]])


def _sweep(work: FloatArray, vectors: FloatArray, turn: NDArray[np.intp]) -> None:
    """Rotate every pair of columns once, in place."""
    half = len(work) // 2
    top = np.arange(half)
    bottom = np.arange(half, 2 * half)
    for _ in range(len(work) - 1):
        first = work[top, top]
        second = work[bottom, bottom]
        product = work[top, bottom]
        size = np.abs(first) + np.abs(second)
        used = np.abs(product) > _SMALL * size
        # theta is the cotangent of twice the angle.
        difference = np.where(used, second - first, 0.0)
        theta = difference / np.where(used, 2 * product, 1.0)
        absolute = 1 / (np.abs(theta) + np.sqrt(theta * theta + 1))
        signed = np.where(theta >= 0, absolute, -absolute)
        tangent = np.where(used, signed, 0.0)
        cosine = 1 / np.sqrt(tangent * tangent + 1)
        sine = tangent * cosine
        _rotate(work, cosine, sine)
        _rotate(vectors, cosine, sine)
        _rotate(work.T, cosine, sine)
        work[...] = work[turn][:, turn]
        vectors[...] = vectors[:, turn]


def _rotate(matrix: FloatArray, cosine: FloatArray, sine: FloatArray) -> None:
    """Rotate the columns of the first half with those of the second, in place."""
    half = matrix.shape[1] // 2
    left = matrix[:, :half].copy()
    right = matrix[:, half:].copy()
    matrix[:, :half] = cosine * left - sine * right
    matrix[:, half:] = sine * left + cosine * right
