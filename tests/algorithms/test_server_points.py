import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flower_kmeans.algorithms.server_points import elbow, weighted_centers
from flower_kmeans.errors import ConfigurationError

RNG = np.random.default_rng


def sorted_rows(points):
    return np.array(sorted(np.asarray(points).tolist()))


def test_light_points_are_dropped_and_heavy_ones_count_by_their_weight():
    points = np.array([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [5.0, 50.0]])
    found = weighted_centers(points, np.array([30.0, 10.0, 5.0, 4.9]), 2, 5.0, RNG(0))
    np.testing.assert_allclose(sorted_rows(found.points), [[0.25, 0], [10, 0]])
    assert found[1:] == (False, False, False)


def test_without_heavy_points_all_count_alike():
    points = np.array([[0.0], [2.0], [10.0]])
    found = weighted_centers(points, np.array([4.0, -9.0, 0.0]), 2, 5.0, RNG(0))
    np.testing.assert_allclose(sorted_rows(found.points), [[1], [10]])
    assert found[1:] == (True, False, False)


def test_too_few_heavy_points_are_filled_up_by_weight():
    points = np.array([[0.0], [2.0], [10.0], [11.0]])
    found = weighted_centers(points, np.array([1.0, 600.0, 3.0, -2.0]), 3, 5.0, RNG(0))
    np.testing.assert_array_equal(found.points, [[2.0], [10.0], [0.0]])
    assert found[1:] == (False, True, False)


def test_just_enough_heavy_points_are_the_centres():
    points = np.array([[0.0], [2.0], [10.0]])
    found = weighted_centers(points, np.array([5.0, 600.0, 4.9]), 2, 5.0, RNG(0))
    np.testing.assert_array_equal(sorted_rows(found.points), [[0.0], [2.0]])
    assert found[1:] == (False, False, False)


@pytest.mark.parametrize("weight", [0.0, 9.0])
def test_equal_points_are_told(weight):
    found = weighted_centers(np.ones((5, 2)), np.full(5, weight), 3, 5.0, RNG(0))
    np.testing.assert_array_equal(found.points, np.ones((3, 2)))
    assert found.equal


WEIGHTS = st.floats(-(2.0**47), 2.0**47) | st.sampled_from([2.0**47, -(2.0**47), 5.0, 0.0])


@settings(max_examples=60, deadline=None)
@given(arrays(float, 6, elements=WEIGHTS), st.integers(1, 4), st.booleans())
def test_any_weights_give_centres(weights, k, equal):
    points = np.zeros((6, 2)) if equal else RNG(1).normal(size=(6, 2))
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        found = weighted_centers(points, weights, k, 5.0, RNG(0))
    assert found.points.shape == (k, 2)
    assert np.isfinite(found.points).all()
    assert np.abs(found.points).max() <= np.abs(points).max() * (1 + 1e-9)


def test_the_same_generator_gives_the_same_centres():
    points, weights = RNG(2).normal(size=(60, 3)), np.full(60, 9.0)
    first, second = (weighted_centers(points, weights, 5, 5.0, RNG(7)) for _ in range(2))
    np.testing.assert_array_equal(first.points, second.points)


def test_the_elbow_bends_at_the_number_of_clusters():
    means = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]])
    points = np.concatenate(
        [RNG(i).normal(mean, 0.1, size=(20, 2)) for i, mean in enumerate(means)]
    )
    points = np.concatenate([points, [[500.0, 500.0]]])  # too light to count
    weights = np.concatenate([np.full(80, 50.0), [4.0]])
    costs = elbow(points, weights, 7, 5.0, RNG(0))
    center = points[:80].mean(axis=0)
    assert costs.shape == (7,)
    assert costs[0] == pytest.approx(50 * ((points[:80] - center) ** 2).sum())
    assert (np.diff(costs) < 0).all()
    assert costs[3] < 0.01 * costs[2]
    assert costs[4] > 0.5 * costs[3]


def test_more_clusters_than_points_cost_nothing():
    costs = elbow(np.array([[0.0], [1.0]]), np.array([9.0, 9.0]), 4, 5.0, RNG(0))
    np.testing.assert_allclose(costs, [4.5, 0, 0, 0], atol=1e-12)


def test_an_elbow_needs_weights():
    with pytest.raises(ConfigurationError, match="min_weight=5"):
        elbow(np.zeros((3, 1)), np.array([4.0, 0.0, -8.0]), 2, 5.0, RNG(0))
