import numpy as np
import pytest

from flower_kmeans.baselines import KFed, local_centers, merged_centers
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError

MEANS = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


def blobs(rng, which, n=30):
    return np.concatenate(
        [MEANS[j] + rng.normal(scale=0.1, size=(n, 2)) for j in which]
    )


def in_order(points):
    return points[np.lexsort(points.T.round())]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("owned", "n_local"),
    [([(0, 1), (1, 2), (2, 3), (3, 0), ()], 2), ([range(4)], None)],
)
def test_clients_that_hold_few_clusters_each_find_all_together(seed, owned, n_local):
    """As many as each holds: the method's own case; and one k-means where one has everything."""
    rng = np.random.default_rng(seed)
    parts = [blobs(rng, which) if which else np.empty((0, 2)) for which in owned]
    found = KFed(4, n_local).fit(parts, rng)
    np.testing.assert_allclose(in_order(found), in_order(MEANS), atol=0.2)


def test_groups_are_means_of_local_centres():
    found = [np.array([[0.0], [10.0]]), np.array([[1.0], [12.0]]), np.array([[30.0]])]
    for seed in range(20):
        centers = merged_centers(found, 3, np.random.default_rng(seed))
        assert sorted(centers.ravel()) == pytest.approx([0.5, 11.0, 30.0])


def test_equal_records_and_centres_leave_no_group_without_a_centre():
    rng = np.random.default_rng(0)
    assert local_centers(np.array([[1.0], [1.0], [3.0]]), 5, rng).tolist() == [
        [1.0],
        [3.0],
    ]
    assert merged_centers([np.zeros((1, 2))] * 3, 2, rng).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("options", [(0,), (True,), (2.0,), (3, 0), (3, 4), (3, "2")])
def test_bad_numbers_are_refused(options):
    with pytest.raises(
        (ConfigurationError, ConfigurationTypeError), match=r"n_(clusters|local)"
    ):
        KFed(*options)


@pytest.mark.parametrize(
    ("n_clusters", "parts", "message"),
    [
        (3, [[[1.0]], [[2.0]], np.empty((0, 1))], "Got 2 from 2 clients"),
        (1, [[[1.0]], [[2.0, 3.0]]], "with 1 columns"),
    ],
)
def test_records_that_do_not_fit_are_refused(n_clusters, parts, message):
    with pytest.raises(DataError, match=message):
        KFed(n_clusters).fit(parts, np.random.default_rng(0))
