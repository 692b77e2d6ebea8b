"""Centroids of a mixture, with bounds on sizes and without, by the formulas of the guarantees."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms import synopsis_selection
from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.algorithms.numerics.grid_kmeans import GridCenters
from flower_kmeans.algorithms.numerics.initialization import public_words
from flower_kmeans.algorithms.synopsis_constants import MODEL_BITS
from flower_kmeans.algorithms.synopsis_mixture import Mixture, Parts
from flower_kmeans.algorithms.synopsis_selection import (
    Selection,
    select,
    select_best,
    select_within,
)
from tests.algorithms.mixtures import STEP, mixture_of, random_mixture

pytestmark = pytest.mark.claim("guarantees", "22")

RNG = np.random.default_rng
WORDS = public_words


def test_centroids_are_those_of_the_parts_by_their_weight():
    mixture = Mixture(
        np.array([3.0, 1.0, 5.0]),
        np.array([[0.0, 0.0], [0.04, 0.0], [0.5, 0.5]]),
        np.array([[0.1, 0.0], [0.0, 0.02], [0.1, 0.1]]),
        np.array([[0.01, 0.02], [0.03, 0.0], [0.04, 0.04]]),
    )
    found = select(mixture, 2, WORDS(0))
    order = np.argsort(found.centers[:, 0])
    np.testing.assert_allclose(
        found.centers[order], [[0.01, 0.0], [0.5, 0.5]], atol=2 * STEP
    )
    np.testing.assert_array_equal(found.counts[order], [4.0, 5.0])
    within = [3 * (0.0001 + 0.01) + 0.0009 + 5 * 0.01, 0.0004 + 5 * 0.01]
    np.testing.assert_allclose(found.within, np.array(within) / 9, rtol=1e-3)
    doubts = [[(9 * 0.01 + 0.03) / 16, 9 * 0.02 / 16], [0.04, 0.04]]
    np.testing.assert_allclose(found.doubts[order], doubts)
    assert not found.few


def test_centroids_go_on_from_the_means_to_points_of_the_mixture():
    """One of three parts is so wide that half of it belongs to the others' sides."""
    wide = mixture_of(
        [1.0, 1.0, 1.0],
        np.array([[-0.3], [0.0], [0.35]]),
        np.array([[0.01], [0.2], [0.01]]),
    )
    found = np.sort(select(wide, 2, WORDS(0)).centers[:, 0])
    # By the means alone they would be -0.15 and 0.35.
    rng = RNG(0)
    parts = ((-0.3, 0.01), (0.0, 0.2), (0.35, 0.01))
    points = np.concatenate([rng.normal(mean, scale, 100_000) for mean, scale in parts])
    left = points < found.mean()
    # Forty points of the wide part, of which half count: 0.06 is three standard errors
    # of these.
    np.testing.assert_allclose(
        found, [points[left].mean(), points[~left].mean()], atol=0.06
    )
    assert found[1] < 0.34


@pytest.mark.parametrize(
    ("m", "k", "n_starts"), [(3, 2, 25), (700, 500, 11), (1500, 500, 5)]
)
def test_starts_are_fewer_where_each_takes_long(m, k, n_starts, monkeypatch):
    starts = []

    def first(points, weights, n_clusters, source, n_starts, n_steps):
        starts.append(n_starts)
        return GridCenters(points[:n_clusters], 0.0)

    monkeypatch.setattr(synopsis_selection, "grid_kmeans", first)
    select(
        mixture_of(np.ones(m), RNG(0).normal(size=(m, 1)), np.full((m, 1), 0.1)),
        k,
        WORDS(0),
    )
    assert starts == [n_starts]


def test_the_selection_with_the_least_cost_on_points_of_the_mixture_counts(
    monkeypatch,
):
    made = random_mixture(12, 2, seed=3)
    found = []

    def drawn(mixture, n_clusters, source):
        # A single start on the means is often not the best.
        found.append(select(mixture, n_clusters, source, n_starts=1))
        return found[-1]

    monkeypatch.setattr(synopsis_selection, "select", drawn)
    best = select_best(made, 4, WORDS(0))
    assert len(found) == 8
    rng = RNG(0)
    parts = rng.choice(12, 100_000, p=made.weights / made.weights.sum())
    noise = made.scales[parts] * rng.standard_normal((100_000, 2))
    points = made.means[parts] + noise
    costs = [
        np.square(points[:, None] - each.centers).sum(axis=2).min(axis=1).mean()
        for each in found
    ]
    assert max(costs) > 1.05 * min(costs)
    chosen = [each is best for each in found]
    assert costs[chosen.index(True)] == pytest.approx(min(costs), rel=0.01)


@pytest.mark.parametrize(
    ("k", "p", "expected"),
    [(3, 2, 8), (80, 16, 8), (81, 16, 7), (64, 64, 4), (500, 4, 2), (1000, 16, 1)],
)
def test_selections_are_fewer_where_each_takes_long(k, p, expected, monkeypatch):
    empty = np.zeros((k, p))
    calls = []

    def quick(mixture, n_clusters, source):
        calls.append(n_clusters)
        return Selection(empty, np.ones(k), np.ones(p), empty, few=False)

    monkeypatch.setattr(synopsis_selection, "select", quick)
    select_best(mixture_of([1.0], np.zeros((1, p)), np.ones((1, p))), k, WORDS(0))
    assert calls == [k] * expected


def test_too_few_parts_are_filled_up_from_the_mixture():
    mixture = mixture_of([2.0], np.array([[0.3, -0.1]]), np.array([[0.01, 0.02]]))
    found = select(mixture, 5, WORDS(0))
    assert found.few
    np.testing.assert_allclose(found.centers[0], [0.3, -0.1], atol=STEP)
    others = (found.centers[1:] - [0.3, -0.1]) / [0.01, 0.02]
    assert len(np.unique(others)) == 8
    assert np.abs(others).max() < 10
    assert found.counts.sum() == 2.0


def test_starts_with_bounds_have_cells_within_them():
    made = random_mixture(12, 2, seed=3)
    points = Parts.of(made).points(4, WORDS(1))
    found, weights = select_within(made, points, 4, (0.22, 0.28), WORDS(2))
    centers = np.rint(found.centers * 2.0**MODEL_BITS).astype(np.int64)
    labels, d2 = assign(points.astype(np.float64), centers, weights)
    shares = np.bincount(labels, minlength=4) / len(points)
    assert (shares > 0.21).all()
    assert (shares < 0.29).all()
    np.testing.assert_allclose(found.counts, shares * math.fsum(made.weights))
    cost = d2.mean() * 4.0**-MODEL_BITS
    assert math.fsum(found.within) == pytest.approx(cost)
    assert not found.few
    free, none = select_within(made, points, 4, (0.0, 1.0), WORDS(2))
    assert not none.any()
    assert math.fsum(free.within) < math.fsum(found.within)
    # Equal parts lose doubt by their number: of three equal ones a third is left.
    assert (found.doubts > 1e-4 / 12).all()
    assert (found.doubts <= 1e-4).all()


def test_too_few_parts_are_filled_with_points():
    made = random_mixture(2, 2)
    points = Parts.of(made).points(5, WORDS(1))
    found, _ = select_within(made, points, 5, (0.1, 0.3), WORDS(2))
    assert found.few
    assert len(np.unique(found.centers, axis=0)) == 5
    again, _ = select_within(made, points, 5, (0.1, 0.3), WORDS(2))
    np.testing.assert_array_equal(found.centers, again.centers)
