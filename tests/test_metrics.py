import itertools
import tracemalloc

import numpy as np
import pytest

from flower_kmeans.errors import DataError
from flower_kmeans.metrics import (
    adjusted_rand_index,
    fowlkes_mallows_index,
    inertia,
    majority_accuracy,
    matched_centroid_error,
    nicv,
    normalized_mutual_information,
)


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_inertia_and_nicv_equal_their_definition(offset):
    rng = np.random.default_rng(5)
    records, centroids = rng.normal(size=(300, 4)), rng.normal(size=(7, 4))
    differences = records[:, None] - centroids
    expected = (differences**2).sum(axis=2).min(axis=1).sum()
    # Far from the origin the input itself has lost digits, so little more may be lost.
    tolerance = 1e-12 if offset == 0 else 1e-7
    assert inertia(records + offset, centroids + offset) == pytest.approx(expected, rel=tolerance)
    assert nicv(records + offset, centroids + offset) == pytest.approx(
        expected / 300, rel=tolerance
    )


def test_inertia_equals_scikit_learn():
    from sklearn.cluster import KMeans

    records = np.random.default_rng(6).normal(size=(500, 3))
    model = KMeans(5, n_init=1, random_state=0, tol=0, max_iter=300).fit(records)
    assert inertia(records, model.cluster_centers_) == pytest.approx(model.inertia_, rel=1e-10)


def test_inertia_is_zero_on_the_centroids_and_for_no_records():
    centroids = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert inertia(centroids, centroids) == 0
    assert inertia(np.empty((0, 2)), centroids) == 0


def test_inertia_takes_little_memory():
    records = np.ones((1_000_000, 2))
    centroids = np.random.default_rng(0).normal(size=(64, 2))
    tracemalloc.start()
    try:
        inertia(records, centroids)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


def test_matching_is_the_cheapest_of_all():
    rng = np.random.default_rng(7)
    found, truth = rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    costs = [
        np.mean([((found[i] - truth[j]) ** 2).sum() for i, j in enumerate(order)])
        for order in itertools.permutations(range(5))
    ]
    assert matched_centroid_error(found, truth) == pytest.approx(min(costs))
    assert matched_centroid_error(found[::-1], found) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nicv(np.empty((0, 2)), [[0, 0]]), "at least one record"),
        (lambda: inertia([[1, 2]], np.empty((0, 2))), "at least one centroid"),
        (lambda: inertia([[1, 2]], [[1, 2, 3]]), "records must have 3 columns, got 2"),
        (lambda: inertia([[1, np.nan]], [[1, 2]]), "records must be finite"),
        (lambda: inertia([[1, 2]], [[1, np.inf]]), "centroids must be finite"),
        (lambda: matched_centroid_error([[1, 2]], [[1, 2], [3, 4]]), "got 1 and 2"),
        (lambda: matched_centroid_error([[1, 2]], [[1, 2, 3]]), "truth must have 2 columns"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


TRUTH = ["a", "a", "a", "b", "b", "c", "c", "c"]
CLUSTERS = [7, 7, 2, 2, 2, 2, -1, -1]
AGREEMENTS = [
    majority_accuracy,
    adjusted_rand_index,
    fowlkes_mallows_index,
    normalized_mutual_information,
]


def pairs():
    """Numbers of pairs: together in both, in the truth, in the clusters, and all."""
    both = [itertools.combinations(labels, 2) for labels in (TRUTH, CLUSTERS)]
    same = [[a == b for a, b in pair] for pair in both]
    return sum(map(min, *same)), sum(same[0]), sum(same[1]), len(same[0])


def test_accuracy_takes_each_clusters_majority():
    assert majority_accuracy(TRUTH, CLUSTERS) == (2 + 2 + 2) / 8


def test_indices_of_pairs_equal_their_definitions():
    together, known, found, total = pairs()
    assert fowlkes_mallows_index(TRUTH, CLUSTERS) == pytest.approx(
        together / np.sqrt(known * found)
    )
    expected = known * found / total
    assert adjusted_rand_index(TRUTH, CLUSTERS) == pytest.approx(
        (together - expected) / ((known + found) / 2 - expected)
    )


def test_mutual_information_equals_its_definition():
    def entropy(labels):
        shares = np.unique(labels, return_counts=True, axis=0)[1] / len(labels)
        return -(shares * np.log(shares)).sum()

    known, found = np.unique(TRUTH, return_inverse=True)[1], np.array(CLUSTERS)
    joint = entropy(np.stack([known, found], axis=1))
    mutual = entropy(known) + entropy(found) - joint
    expected = mutual / ((entropy(known) + entropy(found)) / 2)
    assert normalized_mutual_information(TRUTH, CLUSTERS) == pytest.approx(expected)


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_agreement_is_1_whatever_clusters_are_called(agreement):
    names = {"a": 3, "b": -1, "c": 0}
    assert agreement(TRUTH, [names[label] for label in TRUTH]) == pytest.approx(1)
    assert agreement(TRUTH, [0] * 8) < 0.7


@pytest.mark.parametrize("agreement", AGREEMENTS)
@pytest.mark.parametrize(
    ("truth", "clusters"), [([], []), ([1, 2], [1]), ([[1], [2]], [[1], [2]]), (1, 1)]
)
def test_labels_that_do_not_fit_are_refused(agreement, truth, clusters):
    with pytest.raises(DataError, match="one label for each"):
        agreement(truth, clusters)
