"""Assignment in exact integers, against Python's own integers."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switches import share_out_all_work

from flower_kmeans.algorithms.numerics import assignment
from flower_kmeans.algorithms.numerics.assignment import (
    assign,
    check_exactness,
    cluster_sums,
    largest_weight,
    vote_counts,
)
from flower_kmeans.data.domain import Box, GridRecords
from flower_kmeans.errors import ConfigurationError

pytestmark = pytest.mark.claim("guarantees", "8")


def reference(points, centroids, radius2=None, weights=None):
    """Labels, squared distances, sums and counts by Python integers."""
    labels, d2 = [], []
    weights = weights or [0] * len(centroids)
    sums = [[0] * len(centroids[0]) for _ in centroids]
    counts = [0] * len(centroids)
    for x in points:
        distances = [
            sum((a - b) ** 2 for a, b in zip(x, c, strict=True)) for c in centroids
        ]
        powers = [distance - w for distance, w in zip(distances, weights, strict=True)]
        nearest = powers.index(min(powers))
        labels.append(nearest)
        d2.append(distances[nearest])
        if radius2 is None or distances[nearest] <= radius2:
            counts[nearest] += 1
            sums[nearest] = [s + a for s, a in zip(sums[nearest], x, strict=True)]
    return labels, d2, sums, counts


def check(points, centroids, fraction_bits, radius2=None):
    """Compare both functions with the reference."""
    labels, d2, sums, counts = reference(points, centroids, radius2)
    width = len(centroids[0])
    grid = np.array(points, dtype=np.int64).reshape(-1, width)
    centers = np.array(centroids, dtype=np.int64)
    got_labels, got_d2 = assign(grid.astype(np.float64), centers)
    assert got_labels.dtype == np.int32
    assert got_labels.tolist() == labels
    assert [int(v) for v in got_d2] == d2
    records = GridRecords.from_grid(grid, fraction_bits)
    got_sums, got_counts = cluster_sums(records, centers, radius2)
    assert got_sums.dtype == got_counts.dtype == np.int64
    assert got_sums.tolist() == sums
    assert got_counts.tolist() == counts


@st.composite
def problems(draw):
    """Points and centroids made to be close, equal, and as large as they may be."""
    q = draw(st.integers(1, 25))
    d = draw(st.integers(1, min(6, 2 ** (51 - 2 * q))))
    top = 2**q
    special = st.sampled_from([-top, -top + 1, -1, 0, 1, top - 1, top])
    coordinate = special | st.integers(-top, top)
    vector = st.lists(coordinate, min_size=d, max_size=d)
    centroids = draw(st.lists(vector, min_size=1, max_size=12))
    # one step beside another centroid, or equal to it
    for _ in range(draw(st.integers(0, 3))):
        close = list(draw(st.sampled_from(centroids)))
        column = draw(st.integers(0, d - 1))
        close[column] = max(-top, min(top, close[column] + draw(st.integers(-1, 1))))
        centroids.append(close)
    points = draw(st.lists(vector, max_size=12))
    # the middle of two centroids: a tie or nearly one
    for _ in range(draw(st.integers(0, 4))):
        a, b = draw(st.sampled_from(centroids)), draw(st.sampled_from(centroids))
        points.append([(u + v) // 2 for u, v in zip(a, b, strict=True)])
    return q, points, centroids


@given(problems(), st.data())
@settings(max_examples=300, deadline=None)
def test_equals_integer_reference(problem, data):
    q, points, centroids = problem
    check(points, centroids, q)
    if points:  # a radius that lies exactly on a distance, and the ones beside it
        on_the_edge = data.draw(st.sampled_from(reference(points, centroids)[1]))
        for radius2 in (on_the_edge - 1, on_the_edge, on_the_edge + 1):
            check(points, centroids, q, radius2)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 63, 64, 65, 128, 129, 300])
@pytest.mark.parametrize(("q", "d"), [(16, 3), (16, 40), (20, 6), (22, 100), (24, 8)])
def test_every_size_of_group(k, q, d):
    # (22, 100) and (24, 8) leave no room for indices beside the scores, (20, 6) for a
    # few.
    rng = np.random.default_rng(k)
    top = 2**q
    centroids = rng.integers(-top, top, (k, d), endpoint=True)
    centroids[rng.integers(0, k, k // 3)] = centroids[rng.integers(0, k, k // 3)]
    points = rng.integers(-top, top, (60, d), endpoint=True)
    points[::4] = np.clip(
        centroids[rng.integers(0, k, 15)] + rng.integers(-1, 2, (15, d)), -top, top
    )
    points[1] = top
    centroids[0] = -top
    check(points.tolist(), centroids.tolist(), q)
    radius2 = int(np.median(reference(points.tolist(), centroids.tolist())[1]))
    check(points.tolist(), centroids.tolist(), q, radius2)


@pytest.mark.parametrize(("q", "d"), [(16, 524_288), (20, 2_048), (24, 8), (25, 2)])
def test_largest_exact_dimension(q, d):
    check_exactness(d, q)
    with pytest.raises(
        ConfigurationError, match=f"{d + 1} columns.*at most {d} columns"
    ):
        check_exactness(d + 1, q)
    # Opposite corners, and one step less in one column.
    corner = np.full((3, d), 2.0**q)
    corner[1, -1] -= 1
    corner[2, 0] -= 1
    centroids = np.full((2, d), -(2**q), dtype=np.int64)
    centroids[0, 0] += 1
    labels, d2 = assign(corner, centroids)
    side = 2 ** (q + 1)
    expected = [(d - 1) * side**2 + (side - 1) ** 2]
    expected += [
        (d - 2) * side**2 + 2 * (side - 1) ** 2,
        (d - 1) * side**2 + (side - 2) ** 2,
    ]
    assert labels.tolist() == [0, 0, 0]
    assert [int(v) for v in d2] == expected
    records = GridRecords.from_grid(corner, q)
    counts = [cluster_sums(records, centroids, r)[1].tolist() for r in sorted(expected)]
    assert counts == [[1, 0], [2, 0], [3, 0]]


@pytest.mark.default_cases("5-536870912")
@pytest.mark.parametrize(("k", "radius2"), [(5, 2**29), (2_000, 2**24)])
def test_blocks_and_threads_change_nothing(monkeypatch, k, radius2):
    rng = np.random.default_rng(3)
    domain = Box(-np.ones(3), np.ones(3))
    records = GridRecords(rng.normal(0, 0.6, (5_003, 3)), domain, 16)
    centroids = rng.integers(-(2**16), 2**16, (k, 3))
    expected = cluster_sums(records, centroids, radius2)
    assert 0 < expected[1].sum() < 5_003
    share_out_all_work(monkeypatch)
    for block_bytes in (1, 2**15, 2**17):
        monkeypatch.setattr(assignment, "_BLOCK_BYTES", block_bytes)
        got = cluster_sums(records, centroids, radius2)
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])


def peak_of(function, *arguments):
    """Return a function's result, and how many bytes it had at once."""
    tracemalloc.start()
    try:
        return function(*arguments), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_records():
    data = np.zeros((2_600_000, 4))  # 83 MB
    records = GridRecords(data, Box(-np.ones(4), np.ones(4)), 16)
    _, peak = peak_of(cluster_sums, records, np.arange(64).reshape(16, 4), 2**30)
    assert peak < 64 * 2**20


# ----------------------------------------------------------------- power cells


@pytest.mark.claim("guarantees", "24")
@settings(max_examples=200, deadline=None)
@given(problems(), st.data())
def test_power_cells_equal_integer_reference(problem, data):
    """With the largest weights, with those at which a point is on the boundary, and one beside."""
    q, points, centroids = problem
    d = len(centroids[0])
    if d * 2 ** (2 * q + 3) > 2**53:
        return
    most = largest_weight(d, q)
    ties = [
        sum((a - b) ** 2 for a, b in zip(x, c, strict=True))
        for x in points
        for c in centroids
    ]
    weight = st.sampled_from([-most, -1, 0, 1, most, *ties, *(tie + 1 for tie in ties)])
    weight = (weight | st.integers(-most, most)).map(lambda w: min(w, most))
    k = len(centroids)
    weights = data.draw(st.lists(weight, min_size=k, max_size=k))
    grid = np.array(points, dtype=np.float64).reshape(-1, d)
    got = assign(
        grid, np.array(centroids, dtype=np.int64), np.array(weights, dtype=np.int64)
    )
    labels, d2, _, _ = reference(points, centroids, None, weights)
    assert got[0].tolist() == labels
    assert [int(v) for v in got[1]] == d2


@pytest.mark.claim("guarantees", "24")
@pytest.mark.parametrize(("q", "d"), [(25, 1), (16, 2**18), (24, 4)])
def test_weights_take_one_bit_of_exactness(q, d):
    assert largest_weight(d, q) == d * 4 ** (q + 1)
    check_exactness(d, q, weighted=True)
    check_exactness(2 * d, q)
    with pytest.raises(ConfigurationError, match=f"exact for at most {d} columns"):
        check_exactness(2 * d, q, weighted=True)


# ------------------------------------------------------------ votes for many candidates


@settings(max_examples=50, deadline=None)
@given(problems(), st.integers(1, 12))
def test_votes_are_those_of_python_whatever_the_blocks(problem, step):
    q, points, candidates = problem
    labels, _, _, _ = reference(points, candidates)
    width = len(candidates[0])
    records = GridRecords.from_grid(np.array(points, np.int64).reshape(-1, width), q)
    array = np.array(candidates, dtype=np.float64)
    blocks = (array[start : start + step] for start in range(0, len(array), step))
    votes = vote_counts(records, blocks, len(array) + 3)
    assert votes.dtype == np.int64
    assert votes.tolist() == [labels.count(j) for j in range(len(array) + 3)]


@pytest.mark.parametrize("q", [16, 25])
def test_votes_of_many_records_for_many_candidates(q):
    """Blocks of 63 to 300 candidates, with and without room for their index beside a score."""
    rng, top = np.random.default_rng(3), 2**q
    points = rng.integers(-top, top + 1, size=(5000, 2))
    candidates = rng.integers(-top, top + 1, size=(700, 2)).astype(float)
    # a tie between blocks: the first one gets the votes
    candidates[500] = candidates[20]
    labels, _ = assign(points.astype(float), candidates.astype(np.int64))
    records = GridRecords.from_grid(points, q)
    expected = np.bincount(labels, minlength=700)
    assert expected[20] > 0 == expected[500]
    for sizes in ([700], [63, 64, 65, 300, 208], [1] * 8 + [692]):
        ends = np.cumsum([0, *sizes])
        blocks = [candidates[a:b] for a, b in pairwise(ends)]
        np.testing.assert_array_equal(vote_counts(records, blocks, 700), expected)


@pytest.mark.claim("guarantees", "28")
def test_votes_take_memory_for_blocks_only():
    records = GridRecords(np.zeros((2000, 64)), Box([-1.0] * 64, [1.0] * 64), 16)
    block = np.ones((512, 64))
    vote_counts(records, [block], 512)
    votes, peak = peak_of(vote_counts, records, (block for _ in range(64)), 32_768)
    assert votes[0] == 2000
    assert peak < 12 * 2**20 < 8 * 64 * 32_768  # of the candidates alone
