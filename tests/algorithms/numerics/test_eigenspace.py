"""Leading eigenvectors of wide matrices: against LAPACK, exact products, and equal bits."""

import hashlib
import math

import numpy as np
import pytest

from flower_kmeans.algorithms.numerics import eigenspace
from flower_kmeans.algorithms.numerics.eigenspace import (
    leading,
    leading_eigenvectors,
    leading_of_products,
)
from flower_kmeans.algorithms.numerics.initialization import public_words, random_words
from flower_kmeans.algorithms.numerics.portable import normals
from tests.support.processors import environments, outputs, printed

RNG = np.random.default_rng
DIGEST = "4c340b7b608cef78d6c01533efa7813d"
OF_PRODUCTS = "7f2b753d12f159abfa242821ca1166ab"


def noisy(d, n_clear, noise):
    """Return a matrix with eigenvalues 1/2, 1/3, ... and noise, and the noise's edge."""
    rng = RNG(d)
    directions = np.linalg.qr(rng.normal(size=(d, n_clear)))[0]
    values = 1 / (2 + np.arange(n_clear))
    above = np.triu(rng.normal(size=(d, d)), 1) / math.sqrt(2)
    beside = above + above.T + np.diag(rng.normal(size=d))
    matrix = (directions * values) @ directions.T + noise * beside
    return (matrix + matrix.T) / 2, math.sqrt(2 * d) * noise


@pytest.mark.claim("guarantees", "11")
@pytest.mark.parametrize(("d", "n_clear"), [(130, 1), (130, 20), (300, 40)])
def test_clear_eigenvectors_are_those_of_linear_algebra(d, n_clear):
    matrix, edge = noisy(d, n_clear, 1e-4)
    before = matrix.copy()
    vectors, values = leading(matrix, 64, edge)
    np.testing.assert_array_equal(matrix, before)
    assert vectors.shape == (d, 64)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(64), atol=1e-11)
    assert (np.diff(values) <= 0).all()
    expected, exact = np.linalg.eigh(matrix)
    held = np.square(vectors.T @ exact[:, ::-1][:, :n_clear]).sum(axis=0)
    assert held.min() > 1 - 1e-8
    np.testing.assert_allclose(
        values[:n_clear], expected[::-1][:n_clear], atol=1e-3 * edge
    )


@pytest.mark.parametrize("d", [6, 128, 129])
def test_few_columns_and_many_have_one_function(d):
    """From few columns all eigenvalues are known, and from many only those that are asked."""
    matrix, edge = noisy(d, 3, 1e-4)
    vectors, values = leading_eigenvectors(matrix, 3, edge)
    assert vectors.shape == (d, 3)
    assert values.shape == (d,)
    expected, exact = np.linalg.eigh(matrix)
    np.testing.assert_allclose(values[:3], expected[::-1][:3], atol=1e-3 * edge)
    held = np.abs((vectors * exact[:, :-4:-1]).sum(axis=0))
    np.testing.assert_allclose(held, 1, atol=1e-8)
    if d > eigenspace.MOST_ROTATED:
        np.testing.assert_array_equal(values[3:], 0)
    else:
        np.testing.assert_allclose(values[3:], expected[-4::-1], atol=1e-12)


def test_the_most_vectors_are_orthonormal_and_keep_products_exact():
    d = 200
    matrix, edge = noisy(d, 150, 1e-6)
    n_vectors = eigenspace.MOST_VECTORS
    vectors, _ = leading(matrix, n_vectors, edge)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(n_vectors), atol=1e-11)
    captured = np.einsum("ij,ij->", vectors, matrix @ vectors)
    assert captured > (1 - 1e-4) * np.linalg.eigvalsh(matrix)[-n_vectors:].sum()
    # So many rows of the largest products lengthen no vector.
    short = eigenspace._SHORT
    products = np.full((n_vectors, n_vectors), eigenspace._OVERLAP)
    np.fill_diagonal(products, 1.0)
    assert np.linalg.eigvalsh(short * short * products)[-1] <= 1


def test_fewer_vectors_are_the_first_of_many():
    matrix, edge = noisy(200, 10, 1e-4)
    vectors, values = leading(matrix, 64, edge)
    few, first = leading(matrix, 3, edge)
    np.testing.assert_array_equal(few, vectors[:, :3])
    np.testing.assert_array_equal(first, values[:3])


def test_a_strong_signal_of_more_directions_than_vectors_is_captured():
    d = 200
    values = 0.9 ** np.arange(d)
    axes = np.linalg.qr(RNG(1).normal(size=(d, d)))[0]
    matrix = (axes * values) @ axes.T
    vectors, _ = leading((matrix + matrix.T) / 2, 64, 1e-6)
    captured = np.einsum("ij,ij->", vectors, matrix @ vectors)
    assert captured > (1 - 1e-6) * values[:64].sum()


HARD = {
    "zero": np.zeros((150, 150)),
    "equal": np.eye(150),
    "tiny": 1e-300 * np.eye(150),
    "huge": np.full((150, 150), 1e150),
    "negative": -np.eye(150),
    "of rank one": np.ones((150, 150)),
    "of rank one, negative": -np.ones((150, 150)),
    "falling, negative": -np.diag(2.0 ** -np.arange(150.0)),
    "of blocks, negative": -np.kron(np.eye(15), np.ones((10, 10))),
    "of rank three": np.diag((np.arange(150) < 3) * np.arange(1.0, 151.0)),
}


@pytest.mark.default_cases(
    "edge", "0.01-zero", "0.0-of rank three", "0.0-of blocks, negative"
)
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("edge", [0.0, 1e-9, 0.01, 1e9])
def test_any_matrix_gives_finite_vectors_without_warnings(name, edge):
    with np.errstate(all="raise", under="ignore"):
        vectors, values = leading(HARD[name], 64, edge)
    assert np.isfinite(vectors).all()
    assert np.isfinite(values).all()
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(64), atol=1e-9)


def test_rows_that_are_not_orthogonal_to_earlier_ones_become_zeros():
    """So columns of a basis are no longer than 1, however equal rows are."""
    rows = np.eye(4)[[0, 1, 1, 2, 0]]
    rows[3, 3] = 2.0**-28
    found = eigenspace._independent(rows)
    rows[[2, 4]] = 0.0
    np.testing.assert_array_equal(found, rows)


@pytest.mark.claim("guarantees", "11")
@pytest.mark.parametrize("shape", [(300, 128), (150, 40), (17, 17), (200, 1)])
def test_leading_singular_vectors_are_those_of_linear_algebra(shape):
    d, m = shape
    axes = np.linalg.qr(RNG(d).normal(size=(d, m)))[0]
    turn = np.linalg.qr(RNG(m).normal(size=(m, m)))[0]
    expected = 3.0 * 0.9 ** np.arange(m)
    matrix = (axes * expected) @ turn.T
    before = matrix.copy()
    p = max(1, m // 4)
    vectors, values = leading_of_products(matrix, p)
    np.testing.assert_array_equal(matrix, before)
    np.testing.assert_allclose(values, expected[:p], rtol=1e-9)
    np.testing.assert_allclose(
        np.abs((vectors * axes[:, :p]).sum(axis=0)), 1, atol=1e-9
    )
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(p), atol=1e-11)


@pytest.mark.parametrize("name", HARD)
def test_any_matrix_of_products_gives_finite_vectors_without_warnings(name):
    with np.errstate(all="raise", under="ignore"):
        vectors, values = leading_of_products(HARD[name][:, :30], 20)
    assert np.isfinite(vectors).all()
    assert np.isfinite(values).all()
    products = vectors.T @ vectors
    # Those without an image are zeros.
    np.testing.assert_allclose(products, np.diag(np.diagonal(products)), atol=1e-9)
    assert (np.diagonal(products) < 1 + 1e-9).all()


# ----------------------------------------------------------------- exact products


def longest_rows(d):
    """Return rows (2, d), no longer than 1, whose lower parts are as large as they get."""
    one = 2.0**-26
    rows = np.full((2, d), (math.floor(1 / one / math.sqrt(d)) - 2) * one)
    return rows + one * (1 - 2.0**-20)


@pytest.mark.parametrize("d", [150, eigenspace.MOST_COLUMNS])
def test_no_partial_sum_of_the_longest_rows_is_rounded(d):
    """Sums of absolute values, which exceed every partial sum, are below 2^53."""
    rows = longest_rows(d)
    assert np.square(rows).sum(axis=1).max() <= 1
    high, low = eigenspace._halves(rows)
    longest = math.floor(2.0**26 / math.sqrt(d))
    columns = np.full((d, 2), float(longest))
    for part in (high, low):
        sums = [sum(abs(int(x)) * longest for x in row) for row in part]
        assert max(sums) < 2**53
        np.testing.assert_array_equal(part @ columns, np.array([sums, sums]).T)
    np.testing.assert_allclose(
        eigenspace._times(rows, columns),
        (rows @ columns) * 2.0**-26,
        rtol=1e-12,
    )


def test_products_have_more_than_forty_bits():
    rng = RNG(3)
    rows = np.linalg.qr(rng.normal(size=(300, 20)))[0].T
    columns = np.linalg.qr(rng.normal(size=(300, 7)))[0]
    np.testing.assert_allclose(
        eigenspace._product(rows, columns), rows @ columns, atol=2.0**-43
    )


def digest() -> str:
    """Return a digest of eigenvectors and eigenvalues of a matrix that is the same everywhere."""
    d = 257
    words = random_words(public_words(5), d * d)
    noise = np.floor(normals(words).reshape(d, d) * 2.0**20)
    matrix = noise + noise.T
    matrix[np.arange(9), np.arange(9)] += 2.0**26 / np.arange(1, 10)
    vectors, values = leading(matrix, 64, 2.0**21 * math.sqrt(d))
    found = hashlib.sha256(np.ascontiguousarray(vectors, "<f8").tobytes())
    found.update(values.astype("<f8").tobytes())
    return found.hexdigest()[:32]


def digest_of_products() -> str:
    """Return a digest of singular vectors and values of products, the same everywhere."""
    words = random_words(public_words(6), 257 * 100)
    matrix = np.floor(normals(words).reshape(257, 100) * 2.0**20)
    matrix[np.arange(9), np.arange(9)] += 2.0**26 / np.arange(1, 10)
    vectors, values = leading_of_products(matrix, 64)
    found = hashlib.sha256(np.ascontiguousarray(vectors, "<f8").tobytes())
    found.update(values.astype("<f8").tobytes())
    return found.hexdigest()[:32]


CODE = (
    "from tests.algorithms.numerics.test_eigenspace import digest, digest_of_products; "
    "print(digest() + digest_of_products())"
)


@pytest.mark.claim("guarantees", "11")
def test_eigenvectors_have_the_same_bits_on_an_older_processor():
    assert digest() == DIGEST
    assert digest_of_products() == OF_PRODUCTS
    assert printed(CODE, environments()[-1]) == DIGEST + OF_PRODUCTS


@pytest.mark.claim("guarantees", "11")
@pytest.mark.thorough
def test_eigenvectors_have_the_same_bits_on_every_processor():
    assert set(outputs(CODE)) == {DIGEST + OF_PRODUCTS}
