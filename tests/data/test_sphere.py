"""Directions: records divided by their length, on the grid, alone and in blocks."""

import itertools
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans import Ball, Box, Sphere
from flower_kmeans.algorithms.numerics.postprocess import centroids_in, into_domain
from flower_kmeans.algorithms.numerics.projection import squared_bound
from flower_kmeans.data.domain import GridRecords, difference, domain_from_config
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.protocol.wire import decode, encode

pytestmark = pytest.mark.claim("guarantees", "7")

RNG = np.random.default_rng


def small_vectors(d: int, reach: int) -> np.ndarray:
    """Return all integer vectors within a cube, the origin among them."""
    axis = range(-reach, reach + 1)
    return np.array(list(itertools.product(axis, repeat=d)), dtype=np.float64)


@pytest.mark.parametrize(("d", "reach"), [(1, 9), (2, 9), (3, 5), (4, 2)])
@pytest.mark.parametrize("q", [1, 3, 6])
def test_no_direction_is_longer_than_one_on_the_grid_and_axes_are_as_long(d, reach, q):
    sphere = Sphere(d)
    vectors = sphere.counted(small_vectors(d, reach))
    grid = sphere.quantise(sphere.to_unit(vectors), q)
    squares = [sum(int(v) ** 2 for v in row) for row in grid]
    assert max(squares) == 4**q == squared_bound(sphere, q)
    assert sphere.l2_bound(q) == 2**q
    assert max(np.abs(row).sum() for row in grid) <= sphere.l1_bound(q)
    for coarser in range(q):
        lost = np.trunc(grid / 2**coarser)
        assert (lost**2).sum(axis=1).max() == squared_bound(sphere, q, coarser)


def test_the_l1_bound_is_attained_where_all_coordinates_are_equal():
    sphere = Sphere(4)
    grid = sphere.quantise(sphere.to_unit(np.ones((1, 4))), 8)
    assert np.abs(grid).sum() == sphere.l1_bound(8) == 2**9


@pytest.mark.parametrize("q", [1, 16, 25])
@pytest.mark.parametrize("d", [2, 17, 1_000])
def test_random_directions_keep_the_bound(d, q):
    sphere = Sphere(d)
    records = RNG(d).normal(size=(300, d)) * 10.0 ** RNG(1).integers(-9, 9, (300, 1))
    grid = sphere.quantise(sphere.to_unit(records), q)
    assert max(sum(int(v) ** 2 for v in row) for row in grid) <= 4**q


wild = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(wild, min_size=3, max_size=3), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_any_finite_record_has_length_one_or_none(rows):
    records = np.array(rows)
    sphere = Sphere(3)
    unit = sphere.to_unit(records)
    assert np.isfinite(unit).all()
    lengths = np.linalg.norm(unit, axis=1)
    is_null = sphere.are_null(records)
    np.testing.assert_array_equal(is_null, (records == 0).all(axis=1))
    np.testing.assert_allclose(lengths, np.where(is_null, 0.0, 1.0), atol=1e-12)
    # A record's own digits decide alone.
    for i, record in enumerate(records):
        np.testing.assert_array_equal(sphere.to_unit(record[None])[0], unit[i])


@pytest.mark.parametrize("factor", [2.0**-1000, 2.0**-20, 2.0**20, 2.0**900])
def test_the_length_does_not_count(factor):
    records = RNG(0).normal(size=(50, 5))
    sphere = Sphere(5)
    np.testing.assert_array_equal(
        sphere.to_unit(records * factor), sphere.to_unit(records)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_block_reads_as_its_rows(dtype):
    sphere = Sphere(3)
    records = RNG(3).normal(size=(3_001, 3)).astype(dtype)
    streamed = GridRecords(records, sphere, 16)
    (block,) = streamed.blocks(10_000)
    np.testing.assert_array_equal(np.vstack(list(streamed.blocks(77))), block)
    exact = sphere.quantise(sphere.to_unit(records.astype(np.float64)), 16)
    np.testing.assert_array_equal(block, exact)


def test_records_are_not_changed():
    records = np.array([[3.0, 4.0], [0.0, 0.0]])
    kept = records.copy()
    sphere = Sphere(2)
    for read in (sphere.to_unit, sphere.place, sphere.counted, sphere.compared):
        read(records)
    np.testing.assert_array_equal(records, kept)


def test_a_record_of_length_zero_is_null():
    sphere = Sphere(2)
    records = np.array([[0.0, -0.0], [3.0, 4.0], [0.0, 0.0], [5e-324, 0.0]])
    np.testing.assert_array_equal(sphere.are_null(records), [True, False, True, False])
    np.testing.assert_array_equal(sphere.counted(records), records[[1, 3]])
    np.testing.assert_array_equal(sphere.outside(records), [2])
    for other in (Box([0, 0], [1, 1]), Ball(1, [0, 0])):
        assert not other.are_null(records).any()
        assert other.counted(records) is records


def test_centroids_become_directions_and_none_becomes_the_first_column():
    sphere = Sphere(3)
    points = np.array([[3, 0, -4], [0, 0, 0], [2**40, 2**40, 0], [-1, 0, 0]])
    found = centroids_in(points, sphere, 16)
    assert found.dtype == np.int64
    one = 2**16
    # 0.6, 0.8 and the root of a half, truncated toward zero
    expected = [
        [39321, 0, -52428], [one, 0, 0], [46340, 46340, 0], [-one, 0, 0]
    ]  # fmt: skip
    np.testing.assert_array_equal(found, expected)
    lengths = np.linalg.norm(sphere.as_centroids(found / one), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-15)
    for domain in (Box([-1] * 3, [1] * 3), Ball(1, [0] * 3)):
        np.testing.assert_array_equal(
            centroids_in(points, domain, 16), into_domain(points, domain, 16)
        )
    # Means of directions stay inside between rounds.
    np.testing.assert_array_equal(into_domain(points[:2], sphere, 16), points[:2])


@pytest.mark.parametrize("names", [None, ("a", "b", "c")])
def test_spheres_compare_hash_and_travel(names):
    sphere = Sphere(3, names)
    config = decode(encode(sphere.to_config()), dict[str, Any])
    again = domain_from_config(config)
    assert (again, hash(again)) == (sphere, hash(sphere))
    assert again.to_config() == config
    assert pickle.loads(pickle.dumps(sphere)) == sphere  # noqa: S301
    assert replace(sphere, columns=("x", "y", "z")).columns == ("x", "y", "z")
    assert sphere.common_unit == 1.0
    assert difference(sphere, Sphere(3)) is None


def test_other_domains_differ_from_a_sphere():
    assert difference(Sphere(2), Sphere(3)) == ("number of columns", 2, 3)
    assert difference(Sphere(2), Ball(1, [0, 0])) == ("kind", "sphere", "ball")
    assert difference(Box([0], [1]), Sphere(1)) == ("kind", "box", "sphere")


@pytest.mark.parametrize(
    "change",
    [{"radius": "AAAA"}, {"n_features": 0}, {"n_features": True}, {"columns": ["a"]}],
)
def test_other_documents_are_refused(change):
    config = Sphere(3).to_config()
    with pytest.raises((ConfigurationError, ConfigurationTypeError)):
        domain_from_config(config | change)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0,), ConfigurationError, "n_features"),
        ((-3,), ConfigurationError, "n_features"),
        ((2**21,), ConfigurationError, "n_features"),
        ((3.0,), ConfigurationTypeError, "n_features"),
        (("3",), ConfigurationTypeError, "n_features"),
        ((math.inf,), ConfigurationTypeError, "n_features"),
        ((2, ["a"]), ConfigurationError, "columns"),
        ((2, "ab"), ConfigurationTypeError, "columns"),
    ],
)
def test_wrong_parameters_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        Sphere(*arguments)
