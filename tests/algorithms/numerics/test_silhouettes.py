"""Simplified silhouettes as integers: against the definition, whatever the blocks and weights."""

from fractions import Fraction
from itertools import product
from unittest import mock

import numpy as np
import pytest

from flower_kmeans.algorithms.numerics import silhouettes as module
from flower_kmeans.algorithms.numerics.silhouettes import silhouette_sums
from flower_kmeans.data.domain import GridRecords

RNG = np.random.default_rng
Q = 3


def by_definition(point, centroids):
    """Return the nearest centroid and (b - a) / max(a, b), from a search over all."""
    lengths = [np.sqrt(float(((point - c) ** 2).sum())) for c in centroids]
    label = int(np.argmin(lengths))
    a = lengths[label]
    b = min(length for j, length in enumerate(lengths) if j != label)
    return label, (b - a) / max(a, b) if max(a, b) else 0.0


@pytest.mark.claim("guarantees", "48")
def test_every_record_of_a_grid_has_its_silhouette_in_the_nearest_cluster():
    records = np.array(list(product(range(-8, 9), repeat=2)))
    for seed in range(5):
        centroids = RNG(seed).integers(-8, 9, (4, 2))
        centroids[3] = centroids[seed % 4]  # two may be equal
        for point in records:
            grid = GridRecords.from_grid(point[None], Q)
            counts, sums = silhouette_sums(grid, centroids, np.ones(4, dtype=bool))
            label, expected = by_definition(point, centroids)
            assert counts.sum() == 1
            assert counts[label] == 1
            assert sums.sum() == sums[label]
            assert abs(sums[label] - expected * 2**Q) <= 0.5 + 1e-9
            assert 0 <= sums[label] <= 2**Q


def test_on_a_centroid_it_is_1_and_halfway_0_exactly():
    centroids = np.array([[-8, 0], [8, 0]])
    points = np.array([[-8, 0], [0, 5], [8, 0]])
    both = np.ones(2, dtype=bool)
    found = [
        silhouette_sums(GridRecords.from_grid(point[None], Q), centroids, both)
        for point in points
    ]
    assert [sums.tolist() for _, sums in found] == [[8, 0], [0, 0], [0, 8]]
    assert [counts.tolist() for counts, _ in found] == [[1, 0], [1, 0], [0, 1]]


@pytest.mark.claim("guarantees", "48")
def test_blocks_threads_and_weights_do_not_change_a_record(monkeypatch):
    rng = RNG(1)
    points = rng.integers(-(2**16), 2**16, (3000, 5))
    centroids = rng.integers(-(2**16), 2**16, (7, 5))
    there = np.ones(7, dtype=bool)
    whole = silhouette_sums(GridRecords.from_grid(points, 16), centroids, there)
    parts = [
        silhouette_sums(GridRecords.from_grid(part, 16), centroids, there)
        for part in np.array_split(points, 11)
    ]
    np.testing.assert_array_equal(whole, np.sum(parts, axis=0))
    weighted = GridRecords.from_grid(points, 16)
    weighted.weights = rng.integers(0, 4, 3000).astype(np.float64)
    repeated = np.repeat(points, weighted.weights.astype(int), axis=0)
    np.testing.assert_array_equal(
        silhouette_sums(weighted, centroids, there),
        silhouette_sums(GridRecords.from_grid(repeated, 16), centroids, there),
    )
    with mock.patch.object(module, "_MAX_ROWS", 13):
        again = silhouette_sums(GridRecords.from_grid(points, 16), centroids, there)
    np.testing.assert_array_equal(whole, again)


def test_absent_centroids_count_nothing_and_one_alone_has_no_silhouette():
    points = RNG(2).integers(-8, 9, (50, 2))
    grid = GridRecords.from_grid(points, Q)
    centroids = RNG(3).integers(-8, 9, (4, 2))
    counts, sums = silhouette_sums(grid, centroids, np.arange(4) < 2)
    two = silhouette_sums(grid, centroids[:2], np.ones(2, dtype=bool))
    np.testing.assert_array_equal([counts[:2], sums[:2]], two)
    assert not counts[2:].any()
    assert not sums[2:].any()
    counts, sums = silhouette_sums(grid, centroids, np.arange(4) < 1)
    assert counts.tolist() == [50, 0, 0, 0]
    assert not sums.any()


@pytest.mark.claim("guarantees", "48")
def test_squares_of_both_blocks_of_one_record_stay_below_two():
    """In exact arithmetic: the count is one step of 2^q, and the silhouette at most one."""
    one = 2**Q
    for seed in range(20):
        point = RNG(seed).integers(-8, 9, (1, 3))
        centroids = RNG(100 + seed).integers(-8, 9, (3, 3))
        grid = GridRecords.from_grid(point, Q)
        counts, sums = silhouette_sums(grid, centroids, np.ones(3, dtype=bool))
        parts = [Fraction(int(n) * one, one) for n in counts]
        parts += [Fraction(int(s), one) for s in sums]
        assert sum(part * part for part in parts) <= 2
        assert sum(abs(part) for part in parts) <= 2
