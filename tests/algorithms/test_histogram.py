"""Post-processing of noisy histograms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.algorithms.histogram import expected_total, zero_small

bins = st.lists(st.integers(-50, 100), max_size=8).map(lambda values: np.array(values, float))


def test_the_largest_bins_are_kept_until_they_exceed_the_total() -> None:
    histogram = np.array([3.0, -4.0, 10.0, 5.0, 1.0, 6.0])
    np.testing.assert_array_equal(zero_small(histogram, 15.5), [0, 0, 10, 0, 0, 6])
    # 10 + 6 = 16 is not more than 16, so a third bin is needed.
    np.testing.assert_array_equal(zero_small(histogram, 16.0), [0, 0, 10, 5, 0, 6])
    np.testing.assert_array_equal(zero_small(histogram, 0.0), [0, 0, 10, 0, 0, 0])
    np.testing.assert_array_equal(zero_small(histogram, 1e6), [3, 0, 10, 5, 1, 6])


def test_of_equal_bins_the_first_are_kept() -> None:
    np.testing.assert_array_equal(zero_small(np.full(4, 2.0), 3.0), [2, 2, 0, 0])


def test_of_very_many_equal_bins_the_first_are_kept_too() -> None:
    """More than a sort moves by insertion, which would keep their order whatever it is told."""
    kept = zero_small(np.tile([2.0, 1.0], 500), 500.0)
    np.testing.assert_array_equal(np.flatnonzero(kept), np.arange(0, 502, 2))


def test_the_argument_stays_as_it_is() -> None:
    histogram = np.array([-1.0, 2.0])
    zero_small(histogram, 0.0)
    np.testing.assert_array_equal(histogram, [-1.0, 2.0])


def test_a_histogram_without_positive_bins_becomes_zero() -> None:
    np.testing.assert_array_equal(zero_small(np.array([-3.0, -1.0, 0.0]), 5.0), np.zeros(3))
    assert zero_small(np.zeros(0), 5.0).shape == (0,)


@given(bins, st.integers(0, 300))
def test_every_bin_is_kept_or_zero_and_as_few_are_kept_as_the_total_needs(
    histogram: np.ndarray, total: int
) -> None:
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


@pytest.mark.parametrize(
    ("found", "noise", "answered", "expected"),
    [
        (5000.0, 3.0, 1.0, 1000.0),  # all answered: the public figure, whatever the noise says
        (700.0, 0.0, 0.8, 700.0),
        (700.0, 100.0, 0.8, 750.0),  # 800 +- 100 and 700 +- 100
        (700.0, 1e9, 0.8, 800.0),
        (700.0, 1e300, 0.8, 800.0),
        (-9e9, 0.0, 0.8, 0.0),
        (9e9, 0.0, 0.8, 1000.0),
    ],
)
def test_the_records_of_those_who_answered(
    found: float, noise: float, answered: float, expected: float
) -> None:
    assert expected_total(np.array([found]), noise, 1000.0, answered) == pytest.approx(expected)


def test_without_a_public_figure_nothing_is_expected() -> None:
    assert expected_total(np.ones(3), 1.0, math.inf, 0.5) == math.inf
    assert expected_total(np.ones(3), 1.0, math.inf, 1.0) == math.inf


def test_the_noise_of_a_total_is_that_of_all_bins() -> None:
    whole = expected_total(np.array([700.0]), 60.0, 1000.0, 0.8)
    assert expected_total(np.full(4, 175.0), 30.0, 1000.0, 0.8) == pytest.approx(whole)
