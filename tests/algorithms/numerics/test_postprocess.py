"""Post-processing: centroids of noisy sums, and noisy histograms."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flower_kmeans.algorithms.numerics.postprocess import (
    clip_rows,
    expected_total,
    fold,
    quotients,
    surely_counted,
    to_grid,
    truncate,
    zero_small,
)

EXTREMES = [-(2**63), -(2**63) + 1, -(2**62), -1, 0, 1, 2**62, 2**63 - 1]
ANY_INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREMES)


def reflected(x, half_width):
    """Reflect at the walls one step at a time, in exact fractions."""
    while abs(x) > half_width:
        x = 2 * half_width - x if x > 0 else -2 * half_width - x
    return x


@given(st.integers(-2000, 2000), st.integers(1, 100))
def test_folding_reflects_at_the_walls(x, half_width):
    found = fold(np.array([[x]]), np.array([half_width]))
    assert found[0, 0] == reflected(x, half_width)


@pytest.mark.claim("guarantees", "15")
def test_folding_sends_one_point_two_to_nought_point_eight():
    # The formula printed in the papers sends it to -0.8.
    points = np.array([[12, -12, 30, 31]])
    np.testing.assert_array_equal(fold(points, np.full(4, 10)), [[8, -8, -10, -9]])
    np.testing.assert_array_equal(
        fold(np.array([[5, -7]]), np.array([0, 10])), [[0, -7]]
    )
    np.testing.assert_array_equal(truncate(points, np.full(4, 10)), [[10, -10, 10, 10]])


@given(arrays(np.int64, (2, 3), elements=st.integers(-(2**62), 2**62)))
def test_folding_and_truncating_end_in_the_box(points):
    half_widths = np.array([2**16, 2**25, 0])
    for inside in (fold(points, half_widths), truncate(points, half_widths)):
        assert (np.abs(inside) <= half_widths).all()


def test_quotients_divide_only_by_counts_of_some_size():
    one = 2**4
    sums = np.array([[30, -30], [7, 7], [7, 7], [7, 7], [9, 8]])
    counts = np.array([2 * one, one - 1, 0, -5 * one, one])
    means, usable = quotients(sums, counts, 4, 1.0)
    np.testing.assert_array_equal(usable, [True, False, False, False, True])
    np.testing.assert_array_equal(means, [[15, -15], [0, 0], [0, 0], [0, 0], [9, 8]])


@given(
    arrays(np.int64, (4, 3), elements=ANY_INT64),
    arrays(np.int64, (4,), elements=ANY_INT64),
    st.floats(1e-3, 1e6),
)
def test_nothing_overflows_or_warns(sums, counts, radius):
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        means, usable = quotients(sums, counts, 16, 1.0)
        clipped = clip_rows(means, radius)
        grid = to_grid(clipped)
        fold(to_grid(means) + 2**16, np.full(3, 2**16))
    assert np.isfinite(means).all()
    assert not means[~usable].any()
    assert (np.sqrt((clipped**2).sum(axis=1)) <= radius * (1 + 1e-12)).all()
    assert (np.abs(grid) <= radius + 1).all()


def test_short_vectors_are_not_touched_and_long_ones_keep_their_direction():
    vectors = np.array([[3.0, 4.0], [30.0, 40.0], [0.0, 0.0], [-5.0, 0.0]])
    found = clip_rows(vectors, 5.0)
    np.testing.assert_allclose(found, [[3, 4], [3, 4], [0, 0], [-5, 0]], rtol=1e-15)
    np.testing.assert_array_equal(found[[0, 2, 3]], vectors[[0, 2, 3]])
    each = clip_rows(vectors, np.array([1.0, 100.0, 0.5, 2.0]))
    np.testing.assert_allclose(
        each, [[0.6, 0.8], [30, 40], [0, 0], [-2, 0]], rtol=1e-15
    )


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 784])
def test_norms_hold_for_every_width_and_rows_do_not_depend_on_their_neighbours(width):
    vectors = np.random.default_rng(width).normal(size=(40, width)) * 100
    clipped = clip_rows(vectors, 2.0)
    lengths = np.minimum(2.0, np.linalg.norm(vectors, axis=1))
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), lengths, rtol=1e-12)
    alone = np.vstack([clip_rows(row[None], 2.0) for row in vectors])
    np.testing.assert_array_equal(clipped, alone)


@given(st.integers(-(2**40), 2**40))
def test_rounding_is_half_up(numerator):
    found = to_grid(np.array([[numerator / 1024]]))
    assert found[0, 0] == (numerator + 512) // 1024
    np.testing.assert_array_equal(to_grid(np.array([1e30, -1e30])), [2**62, -(2**62)])


# --------------------------------------------------------------------------- histograms

bins = st.lists(st.integers(-50, 100), max_size=8).map(
    lambda values: np.array(values, float)
)


@given(bins, st.integers(0, 300))
def test_every_bin_is_kept_or_zero_and_as_few_are_kept_as_the_total_needs(
    histogram, total
):
    kept = zero_small(histogram, float(total))
    chosen = kept > 0
    np.testing.assert_array_equal(kept[chosen], histogram[chosen])
    np.testing.assert_array_equal(kept[~chosen], 0.0)
    dropped = histogram[~chosen & (histogram > 0)]
    if dropped.size:
        assert kept.sum() > total
        assert dropped.max() <= kept[chosen].min()
    if chosen.any():
        assert kept.sum() - kept[chosen].min() <= total


def test_of_equal_bins_the_first_are_kept():
    """Also of more than a sort moves by insertion, which would keep their order anyway."""
    histogram = np.tile([2.0, 1.0, -1.0], 500)
    kept = zero_small(histogram, 500.0)
    np.testing.assert_array_equal(np.flatnonzero(kept), np.arange(0, 753, 3))
    np.testing.assert_array_equal(histogram, np.tile([2.0, 1.0, -1.0], 500))


@pytest.mark.claim("guarantees", "28")
@pytest.mark.parametrize(
    ("found", "noise", "answered", "expected"),
    [
        # all answered: the public figure, whatever the noise says
        (5000.0, 3.0, 1.0, 1000.0),
        (700.0, 0.0, 0.8, 700.0),
        (700.0, 100.0, 0.8, 750.0),  # 800 +- 100 and 700 +- 100
        (700.0, 1e9, 0.8, 800.0),
        (700.0, 1e300, 0.8, 800.0),
        (-9e9, 0.0, 0.8, 0.0),
        (9e9, 0.0, 0.8, 1000.0),
    ],
)
def test_the_records_of_those_who_answered(found, noise, answered, expected):
    assert expected_total(np.array([found]), noise, 1000.0, answered) == pytest.approx(
        expected
    )


def test_totals_of_histograms():
    assert expected_total(np.ones(3), 1.0, math.inf, 0.5) == math.inf
    whole = expected_total(np.array([700.0]), 60.0, 1000.0, 0.8)
    assert expected_total(np.full(4, 175.0), 30.0, 1000.0, 0.8) == pytest.approx(whole)
    assert surely_counted(np.array([30.0, -5.0, 25.0, 10.0]), 2.0) == 60.0 - 3 * 4.0
