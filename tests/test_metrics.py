import itertools
import tracemalloc

import numpy as np
import pytest
from saying import assert_within

from flower_kmeans.errors import DataError
from flower_kmeans.metrics import inertia, matched_centroid_error, nicv


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_inertia_and_nicv_equal_their_definition(offset):
    rng = np.random.default_rng(5)
    records, centroids = rng.normal(size=(300, 4)), rng.normal(size=(7, 4))
    expected = ((records[:, None] - centroids) ** 2).sum(axis=2).min(axis=1).sum()
    # Far from the origin the input itself has lost digits, so little more may be lost.
    tolerance = 1e-12 if offset == 0 else 1e-7
    found = inertia(records + offset, centroids + offset)
    assert found == pytest.approx(expected, rel=tolerance)
    assert nicv(records + offset, centroids + offset) == found / 300
    assert inertia(centroids, centroids) == inertia(np.empty((0, 4)), centroids) == 0


def test_inertia_takes_little_memory():
    records = np.ones((1_000_000, 2))
    centroids = np.random.default_rng(0).normal(size=(64, 2))
    tracemalloc.start()
    try:
        inertia(records, centroids)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert_within(
        "the inertia of 1,000,000 records takes",
        peak / 2**20,
        most=16,
        unit="MiB",
        strict=True,
    )


def test_matching_is_the_cheapest_of_all():
    found, truth = np.random.default_rng(7).normal(size=(2, 5, 2))
    costs = [
        np.mean(((found - truth[list(order)]) ** 2).sum(axis=1))
        for order in itertools.permutations(range(5))
    ]
    assert matched_centroid_error(found, truth) == pytest.approx(min(costs))
    assert matched_centroid_error(found[::-1], found) == 0


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (nicv, (np.empty((0, 2)), [[0, 0]]), "at least one record"),
        (inertia, ([[1, 2]], np.empty((0, 2))), "at least one centroid"),
        (inertia, ([[1, 2]], [[1, 2, 3]]), "Expected records with 3 columns. Got 2"),
        (inertia, ([[1, np.nan]], [[1, 2]]), "Expected records to be finite"),
        (inertia, ([[1, 2]], [[1, np.inf]]), "Expected centroids to be finite"),
        (matched_centroid_error, ([[1, 2]], [[1, 2], [3, 4]]), "Got 1 and 2"),
        (
            matched_centroid_error,
            ([[1, 2]], [[1, 2, 3]]),
            "Expected truth with 2 columns",
        ),
    ],
)
def test_wrong_input_is_named(function, arguments, message):
    with pytest.raises(DataError, match=message):
        function(*arguments)
