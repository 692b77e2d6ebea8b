"""Counts, residuals and slacks by nearest cell, exactly."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.data.domain import GridRecords

RNG = np.random.default_rng


def grid(points, bits):
    return GridRecords.from_grid(np.asarray(points, dtype=np.int64), bits)


def test_small_numbers_by_hand():
    centers = np.array([[0, 0], [100, 0]])
    radii = np.array([10, 4])
    points = [[3, -4], [0, 20], [99, 0], [100, 8], [0, 0]]
    found = cell_sums(grid(points, 8), centers, radii, 4)
    # (0.3, -0.4) and (0, 1) of the first cell, (-0.25, 0) and (0, 1) of the second, in
    # 16ths.
    np.testing.assert_array_equal(found.sums, [[4, -6 + 16], [-4, 16]])
    np.testing.assert_array_equal(found.counts, [3, 2])
    # of 1/4, 1, 0; 1/16, 1
    np.testing.assert_array_equal(found.slacks, [12 + 0 + 16, 15 + 0])


@pytest.mark.claim("guarantees", "24")
def test_weights_decide_about_cells_and_not_about_residuals():
    centers, radii = np.array([[0, 0], [100, 0]]), np.array([10, 4])
    points = [[3, -4], [99, 0], [60, 0], [50, 0]]
    found = cell_sums(grid(points, 8), centers, radii, 4, weights=np.array([2000, 0]))
    # 60^2 - 2000 and 40^2 are equal, and the lower index has the record, with its whole
    # offset.
    np.testing.assert_array_equal(found.counts, [3, 1])
    np.testing.assert_array_equal(found.sums, [[4 + 16 + 16, -6], [-4, 0]])
    np.testing.assert_array_equal(found.slacks, [12, 15])
    found = cell_sums(grid(points, 8), centers, radii, 4, weights=np.array([1999, 0]))
    np.testing.assert_array_equal(found.counts, [2, 2])


@pytest.mark.claim("guarantees", "22")
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
        # truncated toward zero after three roundings, and not shortened
        if length2 <= radius**2:
            for word, x in zip(found.sums[0].tolist(), exact, strict=True):
                assert word in {
                    int(x * (1 + sign * Fraction(1, 2**51))) for sign in (-1, 0, 1)
                }
        else:  # as long as it may be, but for truncation and a step
            assert squared >= (2**q - p - 1) ** 2 or 2**q <= p + 1
        weighted = cell_sums(
            grid([point], bits), centers, np.array([radius]), q, weighted=True
        )
        np.testing.assert_array_equal(weighted.slacks, found.slacks)
        words = [int(x) for x in (*weighted.sums[0], *weighted.slacks)]
        joint = sum(word**2 for word in words)
        assert joint <= 4**q
        # Filled, but for a step of each word, and one that sqrt(2) times the residual
        # may lack.
        assert joint >= (2**q - p - 3) ** 2 or 2**q <= p + 3


def joint_length(point, radius, q, weighted):
    """The squared length of a record's residual and slack together, for a cell at 0."""
    center = np.zeros((1, 2), np.int64)
    found = cell_sums(grid([point], 25), center, np.array([radius]), q, weighted)
    return sum(int(x) ** 2 for x in (*found.sums[0], *found.slacks))


@pytest.mark.claim("guarantees", "13", "23")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("radius", "q"), [(1, 25), (2, 1), (7, 3), (24, 25), (25, 16)])
def test_residual_and_slack_together_have_length_1_at_most(radius, q, weighted):
    """Every point of the plane within and around a small cell; the length is attained."""
    axis = np.arange(-radius - 1, radius + 2)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    assert max(joint_length(point, radius, q, weighted) for point in points) == 4**q


@pytest.mark.claim("guarantees", "23")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("point", [[1, 0], [1, 1], [2**25 - 2, 0], [2**24, 2**24]])
def test_a_slack_is_not_rounded_up_beyond_the_joint_length(point, weighted):
    """The longest radius and the finest grid, where a quotient's rounding is largest."""
    assert joint_length(point, 2**25 - 1, 25, weighted) <= 4**25
