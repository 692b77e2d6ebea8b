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


def integers(values):
    return np.array(values, dtype=np.int64)


def test_light_points_are_dropped_and_heavy_ones_count_by_their_weight():
    points = integers([[0, 0], [400, 0], [4000, 0], [2000, 20_000]])
    found = weighted_centers(points, integers([30, 10, 5, 4]), 2, 5, RNG(0))
    np.testing.assert_array_equal(sorted_rows(found.points), [[100, 0], [4000, 0]])
    assert found.points.dtype == np.int64
    assert found[1:] == (False, False, False)


def test_without_heavy_points_all_count_alike():
    points = integers([[0], [2], [10]])
    found = weighted_centers(points, integers([4, -9, 0]), 2, 5, RNG(0))
    np.testing.assert_array_equal(sorted_rows(found.points), [[1], [10]])
    assert found[1:] == (True, False, False)


def test_too_few_heavy_points_are_filled_up_by_weight():
    points = integers([[0], [2], [10], [11]])
    found = weighted_centers(points, integers([1, 600, 3, -(2**63)]), 3, 5, RNG(0))
    np.testing.assert_array_equal(found.points, [[2], [10], [0]])
    assert found[1:] == (False, True, False)


def test_just_enough_heavy_points_are_the_centres():
    points = integers([[0], [2], [10]])
    found = weighted_centers(points, integers([5, 600, 4]), 2, 5, RNG(0))
    np.testing.assert_array_equal(sorted_rows(found.points), [[0], [2]])
    assert found[1:] == (False, False, False)


@pytest.mark.parametrize("weight", [0, 9])
def test_equal_points_are_told(weight):
    found = weighted_centers(integers(np.ones((5, 2))), np.full(5, weight), 3, 5, RNG(0))
    np.testing.assert_array_equal(found.points, np.ones((3, 2)))
    assert found.equal


WEIGHTS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63), 5, 0])


@settings(max_examples=60, deadline=None)
@given(arrays(np.int64, 6, elements=WEIGHTS), st.integers(1, 4), st.booleans())
def test_any_weights_give_centres(weights, k, equal):
    points = integers(np.zeros((6, 2)) if equal else RNG(1).integers(-(2**25), 2**25, (6, 2)))
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        found = weighted_centers(points, weights, k, 5, RNG(0))
    assert found.points.shape == (k, 2)
    assert np.abs(found.points).max() <= np.abs(points).max()


def test_the_same_generator_gives_the_same_centres():
    points, weights = RNG(2).integers(-999, 999, (60, 3)), np.full(60, 9)
    first, second = (weighted_centers(points, weights, 5, 5, RNG(7)) for _ in range(2))
    np.testing.assert_array_equal(first.points, second.points)


def test_the_elbow_bends_at_the_number_of_clusters():
    means = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]])
    points = np.concatenate(
        [RNG(i).normal(mean, 0.1, size=(20, 2)) for i, mean in enumerate(means)]
    )
    points = np.rint(np.concatenate([points, [[500.0, 500.0]]]) * 1000)  # the last is too light
    points, weights = integers(points), integers([50] * 80 + [4])
    costs = elbow(points, weights, 7, 5, RNG(0))
    center = points[:80].mean(axis=0)
    assert costs.shape == (7,)
    assert costs[0] == pytest.approx(50 * ((points[:80] - center) ** 2).sum(), rel=1e-5)
    assert (np.diff(costs) < 0).all()
    assert costs[3] < 0.01 * costs[2]
    assert costs[4] > 0.5 * costs[3]


def test_more_clusters_than_points_cost_nothing():
    costs = elbow(integers([[0], [2]]), integers([9, 9]), 4, 5, RNG(0))
    np.testing.assert_array_equal(costs, [18, 0, 0, 0])


def test_an_elbow_needs_weights():
    with pytest.raises(ConfigurationError, match="at least min_weight"):
        elbow(integers(np.zeros((3, 1))), integers([4, 0, -8]), 2, 5, RNG(0))
