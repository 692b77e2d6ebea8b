import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.numerics.initialization import (
    ATTEMPTS,
    public_generator,
    server_kmeans_plus_plus,
    server_lloyd,
    sphere_packing,
)
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.metrics import matched_centroid_error


def separation2(points):
    """Smallest squared distance between two points, as an exact integer."""
    best = None
    for i, point in enumerate(points):
        for other in points[:i]:
            d2 = sum((int(a) - int(b)) ** 2 for a, b in zip(point, other, strict=True))
            best = d2 if best is None else min(best, d2)
    return best


def packed_slowly(k, half_widths, a, seed):
    """One radius by the paper's words, in Python's integers and one point at a time."""
    words = iter(
        np.random.Philox(key=seed).random_raw(100 * k * len(half_widths)).tolist()
    )
    points = []
    while len(points) < k:
        for _ in range(100):
            point = []
            for half_width in half_widths:
                limit = max(half_width - a, 0)
                point.append(((next(words) >> 32) * (2 * limit + 1) >> 32) - limit)
            if all(
                separation2([point, other]) >= max(4 * a * a, 1) for other in points
            ):
                points.append(point)
                break
        else:
            return None
    return points


@settings(max_examples=30, deadline=None)
@example(8, [40, 40], 0)
@example(8, [300, 200], 1)
@example(12, [1000, 1000, 1000], 2)
@given(
    st.integers(1, 8),
    st.lists(st.integers(3, 40), min_size=1, max_size=3),
    st.integers(0, 2**64 - 1),
)
def test_packing_follows_the_paper(k, half_widths, seed):
    low, high, expected = (
        0,
        max(half_widths) + 1,
        packed_slowly(k, half_widths, 0, seed),
    )
    if expected is None:
        return  # seven of seven points: refused, see below
    while high - low > 1:
        middle = (low + high) // 2
        points = packed_slowly(k, half_widths, middle, seed)
        low, high = (low, middle) if points is None else (middle, high)
        expected = expected if points is None else points
    found = sphere_packing(k, np.array(half_widths), seed)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)
    assert k == 1 or separation2(found.tolist()) >= max(4 * low * low, 1)
    margins = np.array(half_widths) - np.abs(found)
    assert (margins >= np.minimum(low, half_widths)).all()


def test_the_radius_is_a_good_part_of_the_best_possible_one():
    # Four points in a square: at most a = 1/2, by a grid.
    points = sphere_packing(4, np.full(2, 2**16), 0)
    margin = 2**16 - np.abs(points).max()
    assert min(margin, np.sqrt(separation2(points)) / 2) > 0.35 * 2**16
    # In many dimensions almost any points are far from each other.
    far = sphere_packing(128, np.full(1024, 2**16), 0)
    assert np.sqrt(separation2(far[:20])) / 2 > 0.8 * 2**16


def test_points_are_the_same_everywhere():
    # Computed once: these integers must never change, or clients of two versions would
    # disagree.
    expected = [[28762, -15819], [-32248, 15200], [36346, 37416]]
    np.testing.assert_array_equal(sphere_packing(3, np.full(2, 2**16), 7), expected)
    assert (sphere_packing(3, np.full(2, 2**16), 8) != expected).any()


def test_all_points_of_a_tiny_grid_can_be_used():
    # 3 values, 3 clusters: a point fails with probability (2/3)^100 < 3e-18.
    points = sphere_packing(3, np.array([1]), 0)
    assert sorted(points[:, 0].tolist()) == [-1, 0, 1]
    assert ATTEMPTS == 100


@pytest.mark.parametrize(
    ("k", "half_widths", "message"),
    [
        (4, [1], "at most the 3 points"),
        (2, [0, 0], "at most the 1 points"),
        # 961 of 961 points: the last ones are found with probability about 0.1 each.
        (961, [15, 15], "n_clusters=961"),
    ],
)
def test_impossible_packings_are_refused(k, half_widths, message):
    with pytest.raises(ConfigurationError, match=message):
        sphere_packing(k, np.array(half_widths), 0)


# ----------------------------------------------------------------- in the user's units

RNG = np.random.default_rng
MEANS = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
POINTS = np.concatenate(
    [RNG(i).normal(mean, 0.1, (15, 2)) for i, mean in enumerate(MEANS)]
)
OF_THE_SERVER = [server_kmeans_plus_plus, server_lloyd]


def test_kmeans_plus_plus_takes_points_of_the_servers_far_from_each_other():
    for seed in range(10):
        found = server_kmeans_plus_plus(POINTS, 4, RNG(seed))
        assert found.shape == (4, 2)
        assert all((row == POINTS).all(axis=1).any() for row in found)
        assert matched_centroid_error(found, MEANS) < 0.3


def test_server_lloyd_finds_the_best_centroids():
    expected = np.array([part.mean(axis=0) for part in np.split(POINTS, 4)])
    for seed in range(3):
        found = server_lloyd(POINTS, 4, RNG(seed))
        assert matched_centroid_error(found, expected) < 1e-20


def test_all_randomness_is_that_of_the_generator():
    points = RNG(1).normal(size=(50, 3))
    for start in OF_THE_SERVER:
        first, second, *others = (
            start(points, 6, RNG(seed)) for seed in (4, 4, *range(5, 10))
        )
        np.testing.assert_array_equal(first, second)
        assert any(
            (np.sort(first, axis=0) != np.sort(other, axis=0)).any() for other in others
        )
    draws = {
        (s, t): public_generator(s, t).integers(2**63) for s in (0, 1) for t in (1, 2)
    }
    assert len(set(draws.values())) == 4


@pytest.mark.parametrize("start", OF_THE_SERVER)
@pytest.mark.parametrize(
    ("points", "k", "error", "message"),
    [
        (
            POINTS[:3],
            4,
            ConfigurationError,
            "server_data with at least n_clusters=4.*Got 3",
        ),
        (np.ones((9, 2)), 2, ConfigurationError, "different points. Got 1"),
        (np.empty((0, 2)), 1, ConfigurationError, "different points. Got 0"),
        ([[0.0, np.inf]], 1, ConfigurationError, "Expected server_data to be finite"),
        ([1.0, 2.0], 1, ConfigurationError, "server_data"),
        ([["a"]], 1, ConfigurationTypeError, "server_data"),
        (POINTS, 0, ConfigurationError, "n_clusters in"),
        (POINTS, 2.0, ConfigurationTypeError, "Expected n_clusters as an integer"),
    ],
)
def test_unusable_server_data_are_refused(start, points, k, error, message):
    with pytest.raises(error, match=message):
        start(points, k, RNG(0))
