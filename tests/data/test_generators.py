"""Generated clusters: sizes, degrees of separation, and seeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import norm

from flower_kmeans.data.generators import (
    OUTLIER,
    distance_for,
    separated_centers,
    separated_clusters,
    separation,
    sizes_of,
)
from flower_kmeans.errors import ConfigurationError

pytestmark = pytest.mark.claim("benchmarks", "synth-k-d-seed")


@given(st.integers(1, 128), st.integers(0, 20_000))
def test_sizes_grow_by_the_ratio_and_sum_up(k, more):
    n = k * (k + 1) // 2 + more
    sizes, even = sizes_of(n, range(1, k + 1)), sizes_of(n, np.ones(k))
    assert sizes.sum() == even.sum() == n
    assert np.abs(sizes - np.arange(1, k + 1) * n / (k * (k + 1) / 2)).max() <= 1
    assert even.max() - even.min() <= 1


def covariance(rng, d):
    root = rng.normal(size=(d, d))
    return root @ root.T + 0.1 * np.eye(d)


def index_along(direction, delta, first, second):
    """The index as defined: quantiles of both clusters on a line, the lower cluster first."""
    spread = [np.sqrt(direction @ each @ direction) for each in (first, second)]
    low = [norm.ppf(0.025, 0, spread[0]), norm.ppf(0.025, direction @ delta, spread[1])]
    high = [
        norm.ppf(0.975, 0, spread[0]),
        norm.ppf(0.975, direction @ delta, spread[1]),
    ]
    return (low[1] - high[0]) / (high[1] - low[0])


@pytest.mark.claim("benchmarks", "degree-separation-qiu-joes")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_index_is_the_largest_over_all_directions(d, scale):
    rng = np.random.default_rng(d)
    given = scale * rng.normal(size=d), covariance(rng, d), covariance(rng, d)
    starts = rng.normal(size=(6, d))
    starts *= np.sign(starts @ given[0])[:, None]
    found = [
        minimize(lambda a: -index_along(a, *given), start, tol=1e-12)
        for start in starts
    ]
    assert separation(*given) == pytest.approx(
        max(-each.fun for each in found), abs=1e-6
    )


@pytest.mark.parametrize(
    ("distance", "index"), [(4.0, 0.0102), (6.0, 0.2097), (8.0, 0.3423)]
)
def test_the_index_of_two_lines(distance, index):
    """Standard deviations of 1 and means 4, 6 and 8 apart: close, separate and well separated."""
    found = separation(np.array([distance]), np.eye(1), np.eye(1))
    assert found == pytest.approx(index, abs=1e-4)
    assert distance_for(found) == pytest.approx(distance / 2)


def nearest_of(centers, covariances):
    """The index of each cluster to its nearest."""
    k = len(centers)
    return [
        min(
            separation(centers[i] - centers[j], covariances[i], covariances[j])
            for j in range(k)
            if j != i
        )
        for i in range(k)
    ]


@pytest.mark.claim("benchmarks", "degree-separation-qiu-joes")
@settings(max_examples=20, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(1, 6),
    st.floats(-0.5, 0.8),
    st.integers(0, 2**32 - 1),
)
def test_every_cluster_has_the_asked_index_to_its_nearest(k, d, degree, seed):
    rng = np.random.default_rng(seed)
    covariances = [covariance(rng, d) for _ in range(k)]
    centers = separated_centers(covariances, degree, rng)
    assert nearest_of(centers, covariances) == pytest.approx([degree] * k, abs=1e-6)


def test_records_have_the_clusters_that_were_asked_for():
    made = separated_clusters([400, 20_000, 3_000], 3, 0.3, 7, n_outliers=50)
    assert made.records.shape == (23_450, 3)
    assert made.records.dtype == made.centers.dtype == np.float64
    assert np.bincount(made.labels + 1).tolist() == [50, 400, 20_000, 3_000]
    parts = [made.records[made.labels == label] for label in range(3)]
    for part, center in zip(parts, made.centers, strict=True):
        spread = part.std(axis=0) / np.sqrt(len(part))
        assert (np.abs(part.mean(axis=0) - center) < 7 * spread).all()
        values = np.linalg.eigvalsh(np.cov(part.T))
        assert 0.5 < values[0] <= values[-1] < 14
    means, spreads = (
        [part.mean(axis=0) for part in parts],
        [np.cov(part.T) for part in parts],
    )
    # of the records
    assert nearest_of(means, spreads) == pytest.approx([0.3] * 3, abs=0.06)
    clustered = made.records[made.labels != OUTLIER]
    outliers = made.records[made.labels == OUTLIER]
    from_mean = np.abs(outliers - clustered.mean(axis=0)) / clustered.std(axis=0)
    assert 2 < from_mean.max() <= 4


def test_equal_seeds_give_equal_sets():
    first, again, other = (
        separated_clusters([300, 200], 2, 0.2, rng, n_outliers=5)
        for rng in (11, np.random.default_rng(11), 12)
    )
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first.records[:50], other.records[:50])


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (separated_clusters, ([], 2, 0.1, 0)),
        (separated_clusters, ([3, 0], 2, 0.1, 0)),
        (separated_clusters, ([3], 0, 0.1, 0)),
        (separated_clusters, ([3], 2, 1.0, 0)),
        (separated_clusters, ([3], 2, 0.1, 0, -1)),
        (sizes_of, (5, range(1, 6))),
    ],
)
def test_what_cannot_be_made_is_refused(make, given):
    with pytest.raises(ConfigurationError, match="Expected"):
        make(*given)
