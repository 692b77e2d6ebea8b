"""The population of PE-means: made alike everywhere, inside the space, spread as the paper says."""

import hashlib
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial import distance

from flower_kmeans.algorithms.numerics.portable import levy_table
from flower_kmeans.algorithms.pe_means_population import (
    GAMMA,
    Space,
    gather,
    packed,
    variations,
)

pytestmark = pytest.mark.claim("guarantees", "28")

ONE = 2**16


def ball(p, radius=ONE):
    return Space(radius, (radius,) * p)


def whole(blocks):
    return np.concatenate(list(blocks))


def norms2(points):
    exact = points.astype(np.int64)
    return (exact * exact).sum(axis=1)


# ----------------------------------------------------------------- variations


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 700),
    st.integers(1, 2**20),
    st.integers(0, 2**128 - 1),
)
def test_candidates_lie_inside_and_do_not_depend_on_blocks(
    p, k, n_variations, radius, key
):
    box = tuple(max(1, radius // (column + 1)) for column in range(p))
    space = Space(radius, box)
    centers = packed(k, space, 1).astype(np.int64)
    blocks = list(variations(centers, n_variations, key, space))
    population = np.concatenate(blocks)
    assert population.shape == (k * (n_variations + 1), p)
    np.testing.assert_array_equal(population[:k], centers)
    np.testing.assert_array_equal(population, np.rint(population))
    assert (norms2(population) <= radius**2).all()
    assert (np.abs(population) <= box).all()
    assert max(map(len, blocks)) <= 4096
    again = whole(variations(centers, n_variations, key, space))
    np.testing.assert_array_equal(population, again)
    # A smaller population is the beginning of a larger one: blocks have no say.
    fewer = whole(variations(centers, n_variations // 2, key, space))
    np.testing.assert_array_equal(population[: len(fewer)], fewer)


def test_a_population_is_the_same_integers_everywhere():
    space = ball(5)
    centers = packed(7, space, 3).astype(np.int64)
    population = whole(variations(centers, 300, 12345678901234567890123, space))
    words = np.concatenate([centers, population]).astype("<i8").tobytes()
    assert hashlib.sha256(words).hexdigest()[:16] == "2941904ceb12948e"


def test_steps_have_the_scale_of_the_paper():
    """Variations of the middle are gamma R times the law, in every column by itself."""
    space, n = ball(3, 2**20), 60_000
    found = whole(variations(np.zeros((2, 3), np.int64), n // 2, 99, space))[2:]
    inside = found[(np.abs(found) < 2**19).all(axis=1)]
    assert len(inside) > 0.99 * n
    bound = math.sqrt(math.log(2e10) / (2 * len(inside)))
    law = levy_table()
    # A step of a grid or so is lost: compare at points between the grid's.
    for column in inside.T:
        steps = np.sort(column / (GAMMA * space.radius))
        places = np.searchsorted(steps, law) / len(steps)
        expected = np.searchsorted(np.sort(law), law) / len(law)
        assert np.abs(places - expected).max() < bound + 0.006
    # Columns are independent: signs agree by half.
    agree = np.mean(np.sign(inside[:, 0]) == np.sign(inside[:, 1]))
    assert abs(agree - 0.5) < 6 * 0.5 / math.sqrt(len(inside))


def test_steps_that_leave_the_ball_end_on_its_boundary_in_their_direction():
    space = ball(2)
    center = np.array([[ONE - 1, 0]])
    found = whole(variations(center, 40_000, 5, space))[1:]
    lengths = np.sqrt(norms2(found)) / ONE
    assert lengths.max() <= 1
    outside = lengths > 1 - 1e-4
    assert 0.4 < outside.mean() < 0.6
    # Far steps keep their direction: the cut ones do not gather at one point.
    assert found[outside][:, 0].min() < 0.9 * ONE


def test_no_more_than_some_blocks_are_in_memory():
    space = ball(16)
    centers = packed(4, space, 0).astype(np.int64)
    levy_table()
    tracemalloc.start()
    size = sum(len(block) for block in variations(centers, 2**18, 8, space))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 4 * (2**18 + 1)
    assert peak < 16 * 2**20 < 8 * 16 * size / 4


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_chosen_candidates_are_found_in_any_block(data):
    space = ball(2)
    centers = packed(3, space, 0).astype(np.int64)
    population = whole(variations(centers, 3000, 8, space))
    wanted = data.draw(st.sets(st.integers(0, len(population) - 1), max_size=40))
    indices = np.array(sorted(wanted), dtype=np.intp)
    found = gather(variations(centers, 3000, 8, space), indices)
    np.testing.assert_array_equal(found, population[indices])


# ----------------------------------------------------------------- the first population


@pytest.mark.parametrize(
    ("n", "p", "one"),
    [
        (1, 1, ONE),
        (2, 1, ONE),
        (300, 1, ONE),
        (200, 2, ONE),
        (500, 3, ONE),
        (100, 40, ONE),
        (40, 2, 2),
    ],
)
def test_packed_points_keep_away_from_each_other_and_the_boundary(n, p, one):
    points = packed(n, ball(p, one), 4)
    assert points.shape == (n, p)
    assert (norms2(points) <= one**2).all()
    # They were packed at margins of a half, a quarter, ...: at least the last one holds
    # for all, and a ball of that many discs of it is not much larger than the space.
    nearest, margin = math.inf if n == 1 else distance.pdist(points).min(), one // 2
    while 2 * margin > nearest + 2:
        margin //= 2
    assert (np.sqrt(norms2(points)) <= one - margin + 1).all()
    assert n * (2 * margin) ** p > 1e-3 * one**p or p == 40 or one == 2


def test_packed_points_fill_the_ball():
    """Far enough down, they are uniform: the volume within a radius r grows as r^p."""
    points = packed(3000, ball(2), 1)
    shares = np.sqrt(norms2(points)) / ONE
    assert stats.kstest(shares**2, "uniform").statistic < 0.12
    angles = np.arctan2(points[:, 1], points[:, 0]) / (2 * math.pi) + 0.5
    assert stats.kstest(angles, "uniform").statistic < 0.1
    with pytest.raises(ValueError, match="read-only"):
        points[0, 0] = 1.0
