"""Second moments and projections: exact integers, alike alone and in any block."""

import itertools
import math
from operator import mul

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.numerics import projection as module
from flower_kmeans.algorithms.numerics.assignment import check_exactness
from flower_kmeans.algorithms.numerics.projection import (
    MOMENT_BITS,
    ProjectedRecords,
    Projection,
    lifted_sums,
    moment_bits,
    moment_units,
    second_moments,
    squared_bound,
    symmetric,
)
from flower_kmeans.data.domain import Ball, Box, GridRecords
from tests.algorithms.rows import box

Q = 16
ONE = 2**Q


def grid(points, q=Q):
    return GridRecords.from_grid(np.asarray(points), q)


def random_points(n, d, seed=0, q=Q):
    return np.random.default_rng(seed).integers(-(2**q), 2**q + 1, size=(n, d))


# ----------------------------------------------------------------- second moments


def moments_slowly(points, q):
    """The matrix, in Python's integers."""
    cut = max(0, q - MOMENT_BITS)
    rows = [
        [int(x) >> cut if x >= 0 else -(-int(x) >> cut) for x in row] for row in points
    ]
    columns = list(zip(*rows, strict=True))
    return [[sum(map(mul, one, other)) for other in columns] for one in columns]


@pytest.mark.parametrize("q", [3, MOMENT_BITS, 16, 25])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_second_moments_are_sums_of_products(q, d):
    d = min(d, 2 ** (51 - 2 * q)) if 2 * q <= 51 else 1
    points = random_points(40, d, seed=d, q=q)
    points[0] = 2**q
    words = second_moments(grid(points, q))
    assert words.dtype == np.int64
    np.testing.assert_array_equal(symmetric(words, d), moments_slowly(points, q))


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_second_moments_do_not_depend_on_blocks(monkeypatch, rows):
    points = random_points(150, 30)
    expected = second_moments(grid(points))
    monkeypatch.setattr(module, "_rows", lambda width: rows)
    np.testing.assert_array_equal(second_moments(grid(points)), expected)
    alone = sum(second_moments(grid(point[None])) for point in points)
    np.testing.assert_array_equal(alone, expected)


DOMAINS = {
    "box": box(3),
    "narrow": Box([0, 0, 0], [4, 3, 0.5], scale="common"),
    "ball": Ball(2.0, [0, 0, 0]),
    "product": Box([0, 0, 0], [1, 1, 1], weights=[1, 0.6, 0.6], categories=[(1, 3)]),
}


@pytest.mark.claim("guarantees", "19")
@pytest.mark.claim("guarantees", "44")
@pytest.mark.parametrize("q", [2, 11, 12])
@pytest.mark.parametrize("name", DOMAINS)
def test_units_of_moments_hold_and_are_attained(name, q):
    domain = DOMAINS[name]
    widths = domain.grid_half_widths(q)
    points = np.array(
        list(itertools.product(*[{-w, -(w // 3), 0, w // 2, w} for w in widths]))
    )
    if name == "ball":
        points = points[(points**2).sum(axis=1) <= 4**q]
    if name == "product":
        low, high = (int(ends[1]) for ends in domain.grid_bounds(q))
        first = points[:, :1]
        ones = np.ones_like(first)
        levels = [
            np.hstack([first, a * ones, b * ones])
            for a, b in [(low, high), (high, low)]
        ]
        points = np.vstack(levels)
    units = moment_units(domain, q)
    norms = [
        np.linalg.norm(second_moments(grid(point[None], q)) / units) for point in points
    ]
    assert 1 - 1e-12 <= max(norms) <= 1 + 1e-12
    np.testing.assert_array_equal(
        units[:3], squared_bound(domain, q, q - moment_bits(q))
    )
    np.testing.assert_allclose(units[:3], units[3:] * math.sqrt(2))
    assert (units[3:] * math.sqrt(2) >= units[:3]).all()
    assert squared_bound(domain, q) == round(domain.l2_bound(q) ** 2)


# ----------------------------------------------------------------- projections


def zero_sums(n, d, seed=0):
    """Points that lie exactly between two centres along the diagonal."""
    points = random_points(n, d, seed) // 4
    points[:, -1] = 0
    points[:, -1] = -points.sum(axis=1) % 7  # most are not zero sums, these are:
    points[::2, -1] -= points[::2].sum(axis=1)
    return np.clip(points, -ONE, ONE)


def oblique(d, r, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, r)))[0]


def statistics(points, projection, matrix, centers, margin):
    records = grid(points)
    projected = ProjectedRecords(records, projection, matrix)
    rows = np.empty(projected.shape)
    projected.read(0, rows)
    np.testing.assert_array_equal(np.vstack(list(projected.blocks(7))), rows)
    return (rows, *lifted_sums(records, projection, matrix, centers, margin))


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize("margin", [1.0, 1 / 3])
@pytest.mark.parametrize("rows", [1, 5, 10_000])
def test_a_record_counts_alike_alone_and_in_any_block(monkeypatch, rows, margin):
    d, r = 40, 3
    monkeypatch.setattr(module, "_rows", lambda width: rows)
    points = zero_sums(300, d)
    projection = Projection(box(d), Q, r)
    diagonal = np.full((d, 1), 1 / math.sqrt(d))
    matrix = projection.matrix(np.hstack([diagonal, oblique(d, r - 1)]))
    centers = np.array([[-5000, 0, 0], [5000, 0, 0], [0, 9000, 1], [0, -9000, 1]])
    projected, sums, counts = statistics(points, projection, matrix, centers, margin)
    alone = [statistics(p[None], projection, matrix, centers, margin) for p in points]
    np.testing.assert_array_equal(projected, np.vstack([a[0] for a in alone]))
    np.testing.assert_array_equal(sums, sum(a[1] for a in alone))
    np.testing.assert_array_equal(counts, sum(a[2] for a in alone))
    assert sums.dtype == counts.dtype == np.int64
    assert (counts[:2] > 0).all()


def project_slowly(point, matrix, projection):
    found = []
    for column in matrix.T.tolist():
        product = sum(int(x) * v for x, v in zip(point, column, strict=True))
        size = abs(product) >> projection.shift
        found.append(
            max(
                -projection.limit,
                min(projection.limit, int(math.copysign(size, product))),
            )
        )
    return found


@pytest.mark.parametrize("domain", [box(2), box(300), Ball(3.0, [1.0] * 7)])
def test_projections_are_cut_toward_zero(domain):
    d = domain.n_features
    projection = Projection(domain, Q, 2)
    matrix = projection.matrix(oblique(d, 2))
    points = random_points(20, d)
    rows = projection.project(points.astype(float), matrix.astype(float))
    np.testing.assert_array_equal(
        rows, [project_slowly(p, matrix, projection) for p in points]
    )
    # Whatever a matrix holds, distances of projected points are exact.
    rows = projection.project(np.full((1, d), float(ONE)), np.full((d, 2), float(ONE)))
    assert (rows <= projection.limit).all()
    check_exactness(2, projection.bits)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("q", [1, 8, 16, 25])
@pytest.mark.parametrize("d", [1, 2, 100, 784, 10**5])
@pytest.mark.parametrize("r", [1, 2, 10, 100, 10**4])
def test_grids_of_projections_have_room_and_resolution(q, d, r):
    if d * 4 ** (q + 1) > 2**53 or r > d:
        return
    projection = Projection(box(d), q, r)
    check_exactness(r, projection.bits)  # or raises
    longest = math.sqrt(d) * 2**q * 2**q / 2**projection.shift
    assert longest <= projection.limit
    assert projection.exponent <= q
    # As fine as the records, unless that leaves no room: then at least half of it is
    # used.
    assert projection.exponent == q or 2 * longest >= projection.limit / 2


def test_a_point_of_the_subspace_is_lifted_to_where_it_was():
    d, r = 12, 3
    projection = Projection(box(d), Q, r)
    directions = oblique(d, r)
    matrix = projection.matrix(directions)
    points = np.rint(
        0.4 * ONE * np.random.default_rng(1).uniform(-1, 1, (5, r)) @ directions.T
    )
    projected = projection.project(points, matrix.astype(float)).astype(np.int64)
    np.testing.assert_allclose(projection.lift(projected, matrix), points, atol=8)


# ----------------------------------------------------------------- the lift


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 5), st.sampled_from([1.0, 0.5, 1 / 3, 0.01]), st.integers(0, 2**32)
)
def test_the_lift_sums_records_by_their_nearest_projected_centre(k, margin, seed):
    rng = np.random.default_rng(seed)
    d, q = 4, 3
    projection = Projection(box(d), q, 2)
    matrix = projection.matrix(oblique(d, 2, seed % 1000))
    points = rng.integers(-(2**q), 2**q + 1, size=(30, d))
    centers = rng.integers(-6, 7, size=(k, 2))
    sums, counts = np.zeros((k, d), int), np.zeros(k, int)
    for point in points:
        y = project_slowly(point, matrix, projection)
        d2 = [
            sum((a - int(b)) ** 2 for a, b in zip(y, c, strict=True)) for c in centers
        ]
        label, ordered = d2.index(min(d2)), sorted(d2)
        if k == 1 or ordered[0] <= margin * margin * ordered[1]:
            sums[label] += point
            counts[label] += 1
    found = lifted_sums(grid(points, q), projection, matrix, centers, margin)
    np.testing.assert_array_equal(found[0], sums)
    np.testing.assert_array_equal(found[1], counts)
