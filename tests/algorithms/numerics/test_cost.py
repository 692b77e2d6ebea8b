"""The cost as a release: exact without noise, unbiased and with the right error with it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.numerics.cost import last_cost, squared_distances
from flower_kmeans.data.domain import GridRecords

RNG = np.random.default_rng


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32), st.booleans())
def test_squared_distances_are_cut_one_by_one(q, seed, within):
    rng = RNG(seed)
    points = rng.integers(-(2**q), 2**q + 1, size=(40, 3))
    centroids = rng.integers(-(2**q), 2**q + 1, size=(2, 3))
    radius2 = 4**q // 2 if within else None
    largest = 4**q
    expected = 0
    for point in points:
        d2 = min(int(((point - c) ** 2).sum()) for c in centroids)
        if radius2 is None or d2 <= radius2:
            expected += min(d2, largest) >> q
    records = GridRecords.from_grid(points, q)
    assert squared_distances(records, centroids, largest, radius2) == expected


def last_round(
    points, before, relative, noise=(0.0, 0.0, 0.0), rng=None, directions=False
):
    """One Lloyd round with noise, and the true cost at the centroids that follow."""
    labels = ((points[:, None] - before) ** 2).sum(axis=2).argmin(axis=1)
    k, d = before.shape
    counts = np.bincount(labels, minlength=k).astype(float)
    sums = np.zeros((k, d))
    references = before if relative else np.zeros_like(before)
    np.add.at(sums, labels, points - references[labels])
    q = float(((points - references[labels]) ** 2).sum())
    if rng is not None:
        q += noise[0] * rng.normal()
        sums = sums + noise[1] * rng.normal(size=sums.shape)
        counts = counts + noise[2] * rng.normal(size=k)
    quotients = sums / counts[:, None]
    after = references + quotients
    if directions:
        after = after / np.linalg.norm(after, axis=1, keepdims=True)
    found = {
        "q": q,
        "sums": sums,
        "counts": counts,
        "references": references,
        "after": after,
    }
    found |= {
        "quotients": quotients,
        "usable": np.ones(k, bool),
        "noise": noise,
        "step": 2.0**-16,
        "are_directions": directions,
    }
    return found, float(((points - after[labels]) ** 2).sum())


def mixture():
    rng = RNG(5)
    means = np.array([[0.5, 0.5, 0.0], [-0.6, 0.1, 0.3]])
    points = np.concatenate([rng.normal(mean, 0.1, size=(500, 3)) for mean in means])
    return points, means + 0.05


@pytest.mark.parametrize("relative", [True, False])
def test_without_noise_the_cost_is_exact(relative):
    last, truth = last_round(*mixture(), relative)
    assert last_cost(**last) == (pytest.approx(truth, rel=1e-9), 0, 0)
    assert truth < last["q"]


@pytest.mark.claim("guarantees", "16")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize(
    "noise", [(3.0, 0.0, 0.0), (0.0, 4.0, 0.0), (0.0, 0.0, 8.0), (2.0, 3.0, 6.0)]
)
def test_the_bias_is_removed_and_the_error_is_right(relative, noise):
    # 4,000 draws: a mean deviates by 6 standard errors with a probability of 2e-9, a
    # variance of what is nearly normal by 16 % with 1e-11.
    points, before = mixture()
    rng, draws = RNG(11), 4_000
    runs = [last_round(points, before, relative, noise, rng) for _ in range(draws)]
    values, biases, stated = np.array([last_cost(**last) for last, _ in runs]).T
    errors = values + biases - [truth for _, truth in runs]
    predicted, bias = math.sqrt(np.mean(stated**2)), biases.mean()
    tolerance = 6 * errors.std() / math.sqrt(draws)
    assert abs(errors.mean()) < tolerance + 0.02 * bias  # of second order
    # The error is that at given moves; what the noise of the moves adds is of the
    # bias's size.
    assert 0.9 * predicted < errors.std() < 1.1 * predicted + 2 * bias
    if relative and noise == (0.0, 4.0, 0.0):  # without it the cost would be too low
        assert errors.mean() - bias < -20 * errors.std() / math.sqrt(draws)


@pytest.mark.claim("guarantees", "16")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("noise", [(0.0, 4.0, 0.0), (0.0, 0.0, 20.0), (1.0, 3.0, 6.0)])
def test_the_bias_of_directions_is_removed(relative, noise):
    """Records lie wide around two directions, so that means are shorter than 1."""
    rng, draws = RNG(12), 4_000
    means = np.array([[1.0, 0.2, 0.0], [-0.6, 0.1, 0.8]])
    points = np.concatenate([rng.normal(mean, 0.5, size=(500, 3)) for mean in means])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    before = means / np.linalg.norm(means, axis=1, keepdims=True)
    exact, truth = last_round(points, before, relative, directions=True)
    assert last_cost(**exact) == (pytest.approx(truth, rel=1e-9), 0, 0)
    runs = [
        last_round(points, before, relative, noise, rng, directions=True)
        for _ in range(draws)
    ]
    values, biases, _ = np.array([last_cost(**last) for last, _ in runs]).T
    errors = values + biases - [truth for _, truth in runs]
    bias = biases.mean()
    tolerance = 6 * errors.std() / math.sqrt(draws)
    assert abs(errors.mean()) < tolerance + 0.05 * bias  # of second order
    if relative and noise == (0.0, 4.0, 0.0):  # without it it would be too low
        assert bias > 1.5 * tolerance


def test_clusters_that_kept_their_centroid_have_no_bias():
    points, before = mixture()
    last, _ = last_round(points, before, False, (1.0, 1.0, 1.0), RNG(1))
    kept = {
        "after": np.stack([before[0], last["after"][1]]),
        "usable": np.array([False, True]),
    }
    expected = 2 * (3 + (last["quotients"][1] ** 2).sum()) / last["counts"][1]
    assert last_cost(**{**last, **kept})[1] == pytest.approx(expected)
    assert last_cost(**{**last, "after": last["after"] + 1.0})[1] == 0
