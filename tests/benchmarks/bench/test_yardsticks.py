"""Yardsticks of a cost: k-means, the floor and one cluster, against exact enumeration."""

import itertools

import numpy as np
import pytest

from bench import yardsticks as made
from flower_kmeans.errors import ConfigurationError


def partitions(n_records, n_clusters):
    """Yield the labels of all divisions into at most so many clusters."""
    for labels in itertools.product(range(n_clusters), repeat=n_records):
        yield np.array(labels)


def cost_of(records, labels):
    parts = [records[labels == label] for label in np.unique(labels)]
    return sum(np.square(part - part.mean(axis=0)).sum() for part in parts) / len(
        records
    )


def least(records, n_clusters, fewest):
    """Return the true floor, by enumeration."""
    return min(
        cost_of(records, labels)
        for labels in partitions(len(records), n_clusters)
        if np.unique(labels, return_counts=True)[1].min() >= fewest
    )


def test_lost_gain_is_0_for_kmeans_and_1_for_one_cluster():
    records = np.array([[0.0], [0.0], [4.0], [6.0]])
    found = made.yardsticks(records, 2)
    assert found == pytest.approx((0.5, 6.75))
    assert found.lost_gain(found.kmeans) == 0
    assert found.lost_gain(found.one_cluster) == 1
    assert found.lost_gain(13.0) == pytest.approx(2)
    assert found.ratio(1.25) == pytest.approx(2.5)


def test_the_floor_of_large_clusters_is_kmeans():
    records = np.random.default_rng(0).normal(size=(300, 3))
    best = made.yardsticks(records, 3).kmeans
    assert made.floor(records, 3, 1.0) == best
    assert made.fewest_records(16, 0.5) == 8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fewest", [1.5, 3, 4, 9])
def test_the_floor_of_few_records_is_near_that_of_all_divisions(seed, fewest):
    rng = np.random.default_rng(seed)
    records = np.concatenate([rng.normal(size=(7, 2)), 5 + rng.normal(size=(1, 2))])
    # One cluster is allowed however few the records are.
    true = least(records, 3, min(fewest, len(records)))
    assert true <= made.floor(records, 3, fewest) * (1 + 1e-12) <= 1.02 * true
    assert true >= made.yardsticks(records, 3).kmeans - 1e-12


def test_floors_grow_with_the_bound():
    records = np.random.default_rng(5).normal(size=(60, 2)) ** 3
    bounds = [14.0, 0.0, 20.0, 8.0, 60.0]
    found = made.floors(records, 4, bounds)
    assert all(
        cost <= made.floor(records, 4, bound)
        for bound, cost in zip(bounds, found, strict=True)
    )
    in_order = [found[at] for at in np.argsort(bounds)]
    assert in_order == sorted(in_order)
    best = made.yardsticks(records, 4)
    assert found[1] <= best.kmeans < found[2]
    assert found[4] == pytest.approx(best.one_cluster)


@pytest.mark.parametrize("seed", range(10))
def test_records_are_assigned_at_the_least_cost(seed):
    rng = np.random.default_rng(seed)
    n, k = 7, 3
    costs = rng.uniform(size=(n, k)) + np.array([0.0, 0.3, 0.6])
    for fewest in (1, 2):
        found = made.assigned(costs, fewest)
        assert np.bincount(found, minlength=k).min() >= fewest
        allowed = (
            costs[np.arange(n), labels].sum()
            for labels in partitions(n, k)
            if np.bincount(labels, minlength=k).min() >= fewest
        )
        assert costs[np.arange(n), found].sum() == pytest.approx(min(allowed))


def test_too_few_records_cannot_be_assigned():
    with pytest.raises(ConfigurationError, match="at least 6 records"):
        made.assigned(np.zeros((5, 3)), 2)
