"""Results in the user's units."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans import Ball, Box, Clustering, PrivacyBudget, simulate
from flower_kmeans.errors import ConfigurationTypeError, DataError
from flower_kmeans.strategies import FastLloyd, Lloyd

WIDE = Box([0.0, -100.0], [1.0, 100.0])


def clustering(centroids, domain):
    return Clustering(np.asarray(centroids, float), np.ones(len(centroids)), domain, report=None)


def nearest(records, centroids, scale):
    differences = (records[:, None, :] - centroids[None]) / scale
    return (differences**2).sum(axis=2)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4))
def test_predict_is_the_nearest_centroid_after_scaling(seed, k, d):
    rng = np.random.default_rng(seed)
    lower = rng.uniform(-1e3, 1e3, d)
    upper = lower + 10.0 ** rng.uniform(-2, 3, d)
    for domain in (Box(lower, upper), Box(lower, upper, scale="common"), Ball(3.0, lower)):
        centroids = rng.uniform(lower, upper, (k, d))
        records = rng.uniform(2 * lower - upper, 2 * upper - lower, (40, d))  # also outside
        scale = domain.from_unit(np.ones((1, d))) - domain.from_unit(np.zeros((1, d)))
        distances = nearest(records, centroids, scale)
        labels = clustering(centroids, domain).predict(records)
        assert labels.dtype == np.int64
        chosen = distances[np.arange(40), labels]
        np.testing.assert_allclose(chosen, distances.min(axis=1), rtol=1e-6, atol=1e-9)


def test_predict_compares_in_the_runs_scale_and_not_in_the_users():
    result = clustering([[0.0, 0.0], [1.0, 10.0]], WIDE)
    assert result.predict([[0.9, 0.0]]).tolist() == [1]
    assert clustering([[0.0, 0.0], [1.0, 10.0]], Ball(1.0, [0, 0])).predict([[0.9, 0.0]]) == [0]


def test_inertia_is_in_the_users_units():
    result = clustering([[0.0, 0.0], [1.0, 10.0]], WIDE)
    records = np.array([[0.9, 0.0], [0.0, 3.0]])
    assert result.inertia(records) == pytest.approx(0.01 + 100 + 9)


def test_predict_agrees_with_the_run():
    rng = np.random.default_rng(0)
    records = rng.normal(size=(300, 3)) * [1, 10, 100]
    result = simulate(Lloyd(4, Box([-5, -50, -500], [5, 50, 500]), n_rounds=30), [records])
    labels = result.predict(records)
    np.testing.assert_array_equal(np.bincount(labels, minlength=4), result.counts)


def test_many_records_are_predicted_in_blocks():
    rng = np.random.default_rng(1)
    records = rng.random((140_000, 2))
    result = clustering(rng.random((5, 2)), Box([0, 0], [1, 1]))
    labels = result.predict(records)
    parts = np.concatenate([result.predict(part) for part in np.array_split(records, 7)])
    np.testing.assert_array_equal(labels, parts)


def test_no_records():
    result = clustering([[0.0, 0.0]], WIDE)
    assert result.predict(np.empty((0, 2))).shape == (0,)
    assert result.inertia(np.empty((0, 2))) == 0.0


@pytest.mark.parametrize(
    "records", [[[np.nan, 1.0]], [[np.inf, 1.0]], [1.0, 2.0], [[1.0]], [[1, 2, 3]]]
)
@pytest.mark.parametrize("method", ["predict", "inertia"])
def test_bad_records_are_one_sentence(records, method):
    with pytest.raises(DataError, match="X") as caught:
        getattr(clustering([[0.0, 0.0]], WIDE), method)(records)
    assert "\n" not in str(caught.value)


def test_records_that_are_no_numbers_are_a_type_error():
    with pytest.raises(ConfigurationTypeError, match="X"):
        clustering([[0.0, 0.0]], WIDE).predict([["a", "b"]])


def test_a_clustering_has_what_the_design_names():
    rng = np.random.default_rng(0)
    strategy = FastLloyd(3, WIDE, PrivacyBudget(1.0), n_records=90)
    result = simulate(strategy, [rng.random((30, 2)) for _ in range(3)])
    assert result.centroids.shape == (3, 2)
    assert result.centroids.dtype == np.float64
    assert result.counts.shape == (3,)
    report = result.report
    assert report.epsilon == pytest.approx(1.0)
    assert report.delta == 1e-6
    assert report.mu > 0
    assert (report.unit, report.trust) == ("record", "oblivious-server")
    assert (report.n_rounds, report.n_clients, report.dropped) == (strategy.n_rounds, 3, [])
    assert isinstance(report.to_dict(), dict)
