import numpy as np
import pytest

from flower_kmeans.baselines import KFed, local_centers, merged_centers
from flower_kmeans.errors import ConfigurationError, DataError

MEANS = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


def blobs(rng, which, n=30):
    return np.concatenate([MEANS[j] + rng.normal(scale=0.1, size=(n, 2)) for j in which])


def in_order(points):
    return points[np.lexsort(points.T.round())]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("n_local", [2, None])
def test_clients_that_hold_few_clusters_each_find_all_together(seed, n_local):
    rng = np.random.default_rng(seed)
    parts = [blobs(rng, pair) for pair in ((0, 1), (1, 2), (2, 3), (3, 0))]
    parts.append(np.empty((0, 2)))
    found = KFed(4, n_local).fit(parts, rng)
    assert found.shape == (4, 2)
    if n_local == 2:  # as many as each holds: the method's own case
        np.testing.assert_allclose(in_order(found), in_order(MEANS), atol=0.2)


def test_it_is_one_kmeans_where_one_client_has_everything():
    rng = np.random.default_rng(0)
    (records,) = parts = [blobs(rng, range(4))]
    found = KFed(4).fit(parts, np.random.default_rng(1))
    means = records.reshape(4, 30, 2).mean(axis=1)
    np.testing.assert_allclose(in_order(found), in_order(means), atol=1e-9)


def test_groups_are_means_of_local_centres():
    found = [np.array([[0.0], [10.0]]), np.array([[1.0], [12.0]]), np.array([[30.0]])]
    for seed in range(20):
        centers = merged_centers(found, 3, np.random.default_rng(seed))
        assert sorted(centers.ravel()) == pytest.approx([0.5, 11.0, 30.0])


def test_a_client_with_few_records_hands_out_each_once():
    records = np.array([[1.0], [1.0], [3.0]])
    centers = local_centers(records, 5, np.random.default_rng(0))
    assert centers.tolist() == [[1.0], [3.0]]


def test_equal_local_centres_leave_no_group_without_a_centre():
    found = [np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2))]
    assert merged_centers(found, 2, np.random.default_rng(0)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("options", [(0,), (True,), (2.0,), (3, 0), (3, 4), (3, "2")])
def test_bad_numbers_are_refused(options):
    with pytest.raises(ConfigurationError, match=r"n_(clusters|local)"):
        KFed(*options)


def test_too_few_centres_are_an_error():
    with pytest.raises(DataError, match="Got 2 from 2 clients"):
        KFed(3).fit([[[1.0]], [[2.0]], np.empty((0, 1))], np.random.default_rng(0))


def test_clients_of_other_width_are_refused():
    with pytest.raises(DataError):
        KFed(1).fit([[[1.0]], [[2.0, 3.0]]], np.random.default_rng(0))
