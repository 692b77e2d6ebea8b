"""A holder's own sizes beside those of all holders: exact, and never shown by accident."""

import numpy as np
import pytest

from flower_kmeans import Box, Sphere
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.report import site_sizes
from flower_kmeans.report.clustering import assigned
from flower_kmeans.report.site_sizes import SiteSizes, cluster_sizes

BOX = Box([0.0, 0.0], [1.0, 10.0])
CENTROIDS = np.array([[0.2, 2.0], [0.8, 8.0], [0.5, 1.0]])
RNG = np.random.default_rng(4)
# also outside of the bounds: they are not moved
RECORDS = RNG.uniform(-0.5, 1.5, (500, 2)) * [1.0, 10.0]


def test_own_sizes_are_those_of_predict(monkeypatch):
    labels = assigned(RECORDS, CENTROIDS, BOX)
    expected = np.bincount(labels, minlength=3)
    for most in (1, 2**22):  # scores at once
        monkeypatch.setattr(site_sizes, "_MOST_SCORES", most)
        np.testing.assert_array_equal(cluster_sizes(RECORDS, CENTROIDS, BOX), expected)
    assert cluster_sizes(RECORDS[:0], CENTROIDS, BOX).tolist() == [0, 0, 0]
    power = np.array([0.0, 1.0, 0.0])  # a cell of a run with bounds on sizes
    moved = np.bincount(assigned(RECORDS, CENTROIDS, BOX, power), minlength=3)
    assert (moved != expected).any()
    found = cluster_sizes(RECORDS, CENTROIDS, BOX, power)
    np.testing.assert_array_equal(found, moved)


def test_weights_of_records_are_added(monkeypatch):
    monkeypatch.setattr(site_sizes, "_MOST_SCORES", 1)
    weights = RNG.integers(0, 4096, 500)
    labels = assigned(RECORDS, CENTROIDS, BOX)
    found = cluster_sizes(RECORDS, CENTROIDS, BOX, record_weights=weights)
    assert found.dtype == np.int64
    assert found.tolist() == [int(weights[labels == j].sum()) for j in range(3)]


def test_a_record_without_a_direction_is_in_no_cluster():
    records = np.array([[1.0, 0.1], [0.0, 0.0], [0.1, 3.0], [0.0, 0.0]])
    found = cluster_sizes(
        records, np.eye(2), Sphere(2), record_weights=np.array([5, 7, 11, 13])
    )
    assert found.tolist() == [5, 11]


def test_shares_and_differences():
    sizes = SiteSizes(np.array([10.0, 30.0, 0.0]), np.array([-4.0, 300.0, 100.0]))
    np.testing.assert_allclose(sizes.own_shares, [0.25, 0.75, 0])
    # A noisy size below 0 counts as 0.
    np.testing.assert_allclose(sizes.noisy_shares, [0, 0.75, 0.25])
    np.testing.assert_allclose(sizes.differences, [0.25, 0, -0.25])
    assert sizes.table(["a", "b", "c"]).rows == [
        ("a", "10", "25.0%", "-4.0", "0.0%", "+25.0 points"),
        ("b", "30", "75.0%", "300.0", "75.0%", "+0.0 points"),
        ("c", "0", "0.0%", "100.0", "25.0%", "-25.0 points"),
    ]
    nothing = SiteSizes(np.zeros(2), np.array([-1.0, 0.0]))
    assert nothing.differences.tolist() == [0, 0]


def test_parts_of_persons_have_a_decimal():
    sizes = SiteSizes(np.array([1.5, 2.5]), np.array([5.0, 6.0]), "persons")
    table = sizes.table(["a", "b"])
    assert [row[1] for row in table.rows] == ["1.5", "2.5"]
    assert table.head[1] == "own persons"


def test_no_repr_shows_a_size():
    shown = repr(SiteSizes(np.array([12345.0]), np.array([6789.0])))
    assert shown == "SiteSizes(n_clusters=1, counted='records')"


def test_sizes_of_other_clusters_are_refused():
    with pytest.raises(ConfigurationError, match=r"Expected own sizes of shape \(3,\)"):
        SiteSizes(np.zeros(2), np.zeros(3))
