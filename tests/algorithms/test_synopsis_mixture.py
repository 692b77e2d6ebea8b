"""The mixture of SynopsisKMeans: its points, and the parts of it that a state keeps."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms.numerics.initialization import public_words
from flower_kmeans.algorithms.synopsis_mixture import (
    Parts,
    integer_weights,
    on_grid,
    sample,
)
from tests.algorithms.mixtures import STEP, mixture_of, random_mixture

pytestmark = pytest.mark.claim("guarantees", "22")

WORDS = public_words


def test_samples_have_the_mixtures_moments_and_lie_in_the_ball():
    mixture = mixture_of(
        [3, 1], np.array([[0.1, 0.0], [-0.3, 0.2]]), [[0.01, 0.02]] * 2
    )
    points = sample(mixture, 40_000, WORDS(0)) * STEP
    first = points[:, 0] > -0.1
    # Parts are not drawn: each has its share, to a point.
    assert abs(first.sum() - 30_000) <= 1
    error = 10 * np.array([0.01, 0.02]) / math.sqrt(9000)  # ten standard errors
    assert (np.abs(points[first].mean(axis=0) - [0.1, 0.0]) < error).all()
    assert (np.abs(points[~first].mean(axis=0) - [-0.3, 0.2]) < error).all()
    deviations = points[first].std(axis=0) / [0.01, 0.02]
    np.testing.assert_allclose(deviations, 1, atol=10 / math.sqrt(2 * 30_000))
    far = mixture_of([1], np.full((1, 2), 3.0), np.ones((1, 2)))
    assert (
        np.linalg.norm(sample(far, 1000, WORDS(0)) * STEP, axis=1).max() <= 1 + 2 * STEP
    )


def test_integers_for_weights_and_points_are_of_the_right_size():
    found = integer_weights(np.array([1e-9, 1.0, 3.0, 2.0**46]))
    assert found.dtype == np.int64
    assert found.min() >= 1
    np.testing.assert_allclose(
        integer_weights(np.array([1.0, 3.0])) / 2**26, [0.25, 0.75], atol=1e-7
    )
    found = on_grid(np.array([[1e300, -1e300], [0.5, 0.25]]))
    np.testing.assert_array_equal(found, [[2**17, -(2**17)], [2**15, 2**14]])


def test_points_are_drawn_again_from_what_a_state_keeps():
    made = random_mixture(8, 3)
    arrays = Parts.of(made).to_arrays()
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}
    kept = Parts.read(arrays)
    points = kept.points(4, WORDS(9))
    np.testing.assert_array_equal(points, Parts.of(made).points(4, WORDS(9)))
    assert (points != kept.points(4, WORDS(8))).any()
    assert points.shape == (4000, 3)
    center = (made.weights[:, None] * made.means).sum(axis=0) / made.weights.sum()
    np.testing.assert_allclose(points.mean(axis=0) * STEP, center, atol=0.005)
