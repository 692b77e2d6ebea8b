"""Products of columns with signed groups of columns: exact integers, and their sensitivity."""

import itertools
import math

import numpy as np
import pytest

from flower_kmeans.algorithms.numerics.column_groups import ColumnGroups
from flower_kmeans.algorithms.numerics.projection import moment_bits, squared_bound
from flower_kmeans.data.domain import Ball, Box, GridRecords, Sphere

RNG = np.random.default_rng


def ball(d):
    return Ball(1.0, [0.0] * d)


def groups_of(domain, m, q=12, seed=3):
    return ColumnGroups(domain, q, m, seed)


def members(groups):
    """Return the signs of the columns in each group, from single columns, (m, d)."""
    d = groups.n_features
    # 512 over the root of a group's size, cut to an integer
    return np.sign(groups.numbers(512.0 * np.eye(d))).T


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(("d", "m"), [(7, 3), (20, 20), (300, 16), (150, 128)])
def test_every_column_is_in_one_group_of_about_equal_sizes(d, m):
    signs = members(groups_of(ball(d), m))
    assert signs.shape == (m, d)
    np.testing.assert_array_equal(np.abs(signs).sum(axis=0), 1)
    sizes = np.abs(signs).sum(axis=1)
    assert sizes.max() - sizes.min() <= 1
    if d > 100:
        assert 0.3 < (signs.sum(axis=0) > 0).mean() < 0.7


def test_groups_follow_from_the_seed():
    first, same, other = (members(groups_of(ball(150), 20, seed=s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).mean() > 0.05


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("m", [2, 3, 5])
def test_numbers_are_exact_and_never_longer_than_their_bound(m):
    """By integers: y^2 b <= s^2 < (y + 1)^2 b, where nothing is cut."""
    d = 5
    groups = groups_of(ball(d), m)
    grid = np.array(
        list(itertools.product([-700, -3, 0, 1, 724], repeat=d)), dtype=float
    )
    found = groups.numbers(grid)
    signs = members(groups)
    sums = np.rint(grid @ signs.T).astype(int)
    sizes = np.abs(signs).sum(axis=1).astype(int)
    exact = np.array(
        [
            [
                int(math.copysign(math.isqrt(s * s // b), s))
                for s, b in zip(row, sizes, strict=True)
            ]
            for row in sums
        ]
    )
    squares = np.square(exact).sum(axis=1)
    short = squares <= groups.longest**2
    assert short.any()
    assert m == d or not short.all()
    np.testing.assert_array_equal(found[short], exact[short])
    lengths = np.square(found).sum(axis=1)
    assert lengths.max() <= groups.longest**2
    # What is cut keeps its direction, and almost the whole bound.
    assert (lengths[~short] > (groups.longest - math.sqrt(m)) ** 2).all()
    assert np.square(found).sum(axis=1).max() <= squared_bound(ball(d), 10)


DOMAINS = {
    "ball": ball(6),
    "box": Box([0] * 6, [1, 1, 1, 2, 2, 3], scale="common"),
    "sphere": Sphere(6),
}


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("q", [4, 12])
@pytest.mark.parametrize("m", [2, 4, 6])
@pytest.mark.parametrize("name", DOMAINS)
def test_one_record_changes_the_products_by_the_sensitivity_at_most(name, m, q):
    domain = DOMAINS[name]
    groups = ColumnGroups(domain, q, m, 3)
    widths = domain.grid_half_widths(q)
    points = np.array(list(itertools.product(*[{-w, w // 3, w} for w in widths])))
    longest = math.isqrt(squared_bound(domain, q))
    # The longest records of a single group, where widths allow them.
    signs = members(groups)
    along = signs * (longest / np.sqrt(np.abs(signs).sum(axis=1)))[:, None]
    points = np.vstack([points, np.fix(along).astype(int)])
    points = np.clip(points, -widths, widths)
    points = points[(points**2).sum(axis=1) <= longest**2]
    norms = [
        np.linalg.norm(groups.moments(GridRecords.from_grid(point[None], q)))
        for point in points
    ]
    assert max(norms) <= groups.sensitivity
    if q > 4 and name != "box":
        # Cutting loses little on a grid that is not coarse.
        assert max(norms) > 0.99 * groups.sensitivity


def test_products_add_up_and_weights_count():
    d = 9
    groups = groups_of(ball(d), 4)
    points = RNG(1).integers(-900, 900, (3000, d))
    records = GridRecords.from_grid(points, 12)
    whole = groups.moments(records)
    parts = [
        groups.moments(GridRecords.from_grid(part, 12))
        for part in (points[:1], points[1:1700], points[1700:])
    ]
    np.testing.assert_array_equal(whole, sum(parts))
    numbers = groups.numbers(np.trunc(points / 4))
    np.testing.assert_array_equal(whole, np.trunc(points / 4).T @ numbers)
    assert not groups.moments(GridRecords.from_grid(np.zeros((0, d)), 12)).any()
    assert not groups.moments(GridRecords.from_grid(np.zeros((2, d)), 12)).any()
    times = RNG(2).integers(0, 4, 3000)
    records.weights = times.astype(np.float64)
    repeated = GridRecords.from_grid(np.repeat(points, times, axis=0), 12)
    np.testing.assert_array_equal(groups.moments(records), groups.moments(repeated))


def test_the_trace_is_an_estimate_of_squared_norms():
    d = 200
    vectors = RNG(4).normal(size=(50, d))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    points = np.trunc(vectors * 2**10)
    records = GridRecords.from_grid(points, 10)
    expected = np.square(points).sum()
    found = []
    for seed in range(20):
        groups = ColumnGroups(ball(d), 10, 50, seed)
        assert moment_bits(10) == 10
        found.append(groups.trace(groups.moments(records).astype(float)) / expected)
    # Groups of 4 lose about half a step of 36 by cutting.
    assert np.mean(found) == pytest.approx(0.98, abs=0.03)
    assert np.std(found) < 0.1
