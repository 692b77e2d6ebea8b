"""Eigenvectors by rotations in a fixed order, against LAPACK."""

import numpy as np
import pytest

from flower_kmeans.algorithms.numerics.jacobi import eigenvectors, orthonormal

pytestmark = pytest.mark.claim("guarantees", "22")

RNG = np.random.default_rng


def spread(d, rng):
    """Second moments of records whose directions vary by very different amounts."""
    points = rng.normal(size=(3 * d + 5, d)) * np.exp(-np.arange(d) / 4)
    return points.T @ points


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 16, 17, 64, 128])
@pytest.mark.parametrize("make", ["spread", "noise", "equal"])
def test_eigenvectors_are_those_of_linear_algebra(d, make):
    rng = RNG(d)
    matrix = np.diag(np.arange(d) // 8 + 1.0)
    if make == "spread":
        matrix = spread(d, rng)
    if make == "noise":
        matrix = rng.normal(size=(d, d))
        matrix += matrix.T
    before = matrix.copy()
    vectors, values = eigenvectors(matrix)
    np.testing.assert_array_equal(matrix, before)
    size = np.abs(matrix).max()
    np.testing.assert_allclose(
        values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-11 * size
    )
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(d), atol=1e-12)
    np.testing.assert_allclose(vectors * values @ vectors.T, matrix, atol=1e-11 * size)
    assert (np.diff(values) <= 0).all()


@pytest.mark.parametrize(
    "matrix", [np.zeros((3, 3)), np.full((4, 4), 1e150), np.eye(5) * 1e-300]
)
def test_extreme_matrices_are_decomposed_without_warnings(matrix):
    with np.errstate(all="raise", under="ignore"):
        vectors, values = eigenvectors(matrix)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(matrix)), atol=1e-12)
    assert np.isfinite(values).all()


@pytest.mark.parametrize(("d", "p"), [(1, 1), (17, 16), (784, 16), (2, 2)])
def test_orthonormal_columns_span_the_same(d, p):
    columns = RNG(d).normal(size=(d, p))
    found = orthonormal(columns)
    np.testing.assert_allclose(found.T @ found, np.eye(p), atol=1e-14)
    np.testing.assert_allclose(found @ (found.T @ columns), columns, atol=1e-12)
