"""Counts, residuals and slacks by nearest cell, exactly."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.cells import cell_sums, squared_norms
from flower_kmeans.assignment import assign
from flower_kmeans.domain import GridRecords

RNG = np.random.default_rng


def grid(points, bits):
    return GridRecords.from_grid(np.asarray(points, dtype=np.int64), bits)


def test_small_numbers_by_hand():
    centers = np.array([[0, 0], [100, 0]])
    radii = np.array([10, 4])
    points = [[3, -4], [0, 20], [99, 0], [100, 8], [0, 0]]
    found = cell_sums(grid(points, 8), centers, radii, 4)
    # (0.3, -0.4) and (0, 1) of the first cell, (-0.25, 0) and (0, 1) of the second, in 16ths.
    np.testing.assert_array_equal(found.sums, [[4, -6 + 16], [-4, 16]])
    np.testing.assert_array_equal(found.counts, [3, 2])
    np.testing.assert_array_equal(found.slacks, [12 + 0 + 16, 15 + 0])  # of 1/4, 1, 0; 1/16, 1


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 2**20),
    st.integers(0, 2**32 - 1),
)
def test_no_residual_is_longer_than_its_radius(p, q, radius, seed):
    """In integers, and whatever the radius, with its slack: nothing is rounded up."""
    rng, bits = RNG(seed), 20
    scale = 2.0 ** rng.uniform(0, 20, size=(30, 1))
    points = np.trunc(np.clip(rng.normal(size=(30, p)) * scale, -(2**bits), 2**bits))
    centers = np.zeros((1, p), dtype=np.int64)
    for point in points:
        found = cell_sums(grid([point], bits), centers, np.array([radius]), q)
        squared = sum(int(x) ** 2 for x in found.sums[0])
        assert squared + int(found.slacks[0]) ** 2 <= 4**q
        exact = [Fraction(int(x)) * 2**q / radius for x in point]
        length2 = sum(Fraction(int(x)) ** 2 for x in point)
        share = min(length2 / radius**2, Fraction(1))
        assert 0 <= found.slacks[0] < (1 - share) * 2**q + Fraction(1, 2**20)
        assert found.slacks[0] > (1 - share) * 2**q - 1
        if length2 <= radius**2:  # truncated toward zero, and not shortened
            np.testing.assert_array_equal(found.sums[0], [int(x) for x in exact])
        else:  # as long as it may be, but for truncation and a step
            assert squared >= (2**q - p - 1) ** 2 or 2**q <= p + 1
        weighted = cell_sums(grid([point], bits), centers, np.array([radius]), q, weighted=True)
        np.testing.assert_array_equal(weighted.slacks, found.slacks)
        words = [int(x) for x in (*weighted.sums[0], *weighted.slacks)]
        joint = sum(word**2 for word in words)
        assert joint <= 4**q
        # Filled, but for a step of each word, and one that sqrt(2) times the residual may lack.
        assert joint >= (2**q - p - 3) ** 2 or 2**q <= p + 3


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("radius", "q"), [(1, 25), (2, 1), (7, 3), (24, 25), (25, 16)])
def test_residual_and_slack_together_have_length_1_at_most(radius, q, weighted):
    """Every point of the plane within and around a small cell; the length is attained."""
    axis = np.arange(-radius - 1, radius + 2)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    largest = 0
    for point in points:
        found = cell_sums(
            grid([point], 25), np.zeros((1, 2), np.int64), np.array([radius]), q, weighted
        )
        joint = sum(int(x) ** 2 for x in (*found.sums[0], *found.slacks))
        assert joint <= 4**q, point
        largest = max(largest, joint)
    assert largest == 4**q


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("point", [[1, 0], [1, 1], [2**25 - 2, 0], [2**24, 2**24]])
def test_a_slack_is_not_rounded_up_beyond_the_joint_length(point, weighted):
    """The longest radius and the finest grid, where a quotient's rounding is largest."""
    radius, q = 2**25 - 1, 25
    found = cell_sums(
        grid([point], 25), np.zeros((1, 2), np.int64), np.array([radius]), q, weighted
    )
    assert sum(int(x) ** 2 for x in (*found.sums[0], *found.slacks)) <= 4**q


@pytest.mark.parametrize("q", [3, 16])
def test_answers_add_up_however_records_are_divided(q):
    rng, bits = RNG(0), 18
    points = rng.integers(-(2**bits), 2**bits + 1, size=(500, 7))
    centers = rng.integers(-(2**bits), 2**bits + 1, size=(11, 7))
    radii = rng.integers(1, 2**bits, size=11)
    whole = cell_sums(grid(points, bits), centers, radii, q)
    for size in (1, 7, 250):
        parts = [
            cell_sums(grid(points[start : start + size], bits), centers, radii, q)
            for start in range(0, 500, size)
        ]
        for name in ("sums", "counts", "slacks"):
            np.testing.assert_array_equal(
                sum(getattr(part, name) for part in parts), getattr(whole, name)
            )


def test_they_are_those_of_floating_point_numbers():
    """The formulas, without a grid: every record of a cell deviates by a step at most."""
    rng, bits, q = RNG(1), 20, 16
    points = rng.integers(-(2**bits), 2**bits + 1, size=(400, 5))
    centers = rng.integers(-(2**bits), 2**bits + 1, size=(9, 5))
    radii = rng.integers(2**18, 2**20, size=9)
    found = cell_sums(grid(points, bits), centers, radii, q)
    labels, _ = assign(points.astype(float), centers)
    for j in range(9):
        u = (points[labels == j] - centers[j]) / radii[j]
        lengths = np.linalg.norm(u, axis=1)
        u = u / np.maximum(lengths, 1)[:, None]
        assert found.counts[j] == len(u)
        assert np.abs(found.sums[j] / 2**q - u.sum(axis=0)).max() <= len(u) * 2.0**-q
        slacks = 1 - np.minimum(lengths, 1) ** 2
        assert -1e-9 <= slacks.sum() - found.slacks[j] / 2**q <= len(u) * 2.0**-q


def test_no_records_add_zeros():
    centers, radii = np.zeros((3, 2), np.int64), np.ones(3, np.int64)
    for array in cell_sums(grid(np.empty((0, 2)), 8), centers, radii, 8):
        assert array.dtype == np.int64
        assert not array.any()
    assert squared_norms(grid(np.empty((0, 2)), 8)) == 0


def test_squared_norms_lose_their_last_bits_record_by_record():
    points = np.array([[3, 5], [-16, 0], [0, 3]])
    # 34, 256 and 9 over 16.
    assert squared_norms(grid(points, 4)) == 2 + 16 + 0
    many = RNG(0).integers(-(2**16), 2**16 + 1, size=(1000, 9))
    exact = sum(int((row.astype(object) ** 2).sum()) >> 16 for row in many)
    assert squared_norms(grid(many, 16)) == exact
