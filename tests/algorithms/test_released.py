"""Noisy sizes of clusters beside their bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flower_kmeans.algorithms.released import CONFIDENCE, SizeReport, note_on_noise
from tests.support.saying import assert_within

COUNTS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)
NOISE = st.floats(1e-3, 1e5)
BOUNDS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(sorted)


def report(counts, noise=10.0, low=90, high=110):
    return SizeReport(tuple(counts), noise, low, high)


@pytest.mark.claim("equal-groups", "missed-lies-outside")
@pytest.mark.claim("guarantees", "25")
@settings(max_examples=200, deadline=None)
@given(COUNTS, NOISE, BOUNDS)
def test_a_cluster_has_kept_its_bounds_or_missed_them_only_if_its_interval_shows_it(
    counts, noise, bounds
):
    low, high = bounds
    sizes = report(counts, noise, low, high)
    assert sizes.interval.shape == (len(counts), 2)
    for count, (least, most), word in zip(
        counts, sizes.interval, sizes.bounds_kept, strict=True
    ):
        assert 0 <= least <= most
        assert least == max(count - sizes.margin, 0)
        assert most == max(count + sizes.margin, 0)
        sampled = np.linspace(least, most, 101)
        inside = (sampled >= low) & (sampled <= high)
        if word == "kept":
            assert inside.all()
        elif word == "missed":
            assert not inside.any()
        else:
            # A value beyond a bound is possible, and one that is not beyond the same.
            assert (least < low <= most) or (least <= high < most)


def test_one_cluster_has_the_usual_interval():
    sizes = report([100.0], 10.0)
    assert sizes.margin == pytest.approx(10 * 1.959963984540054)
    np.testing.assert_allclose(
        sizes.interval, [[100 - sizes.margin, 100 + sizes.margin]]
    )
    assert sizes.bounds_kept == ("open",)
    assert report([100.0], 5.0).bounds_kept == ("kept",)
    assert report([200.0], 5.0).bounds_kept == ("missed",)
    assert report([-50.0], 5.0, low=1).bounds_kept == ("missed",)
    assert report([-50.0], 5.0, low=0).bounds_kept == ("kept",)


@pytest.mark.claim("equal-groups", "95-probability-over-noise")
@pytest.mark.claim("guarantees", "25")
@pytest.mark.parametrize("k", [1, 3, 16, 100])
def test_all_intervals_hold_at_once_as_often_as_they_say(k):
    """Accepted at the true noise, and rejected at 2/3 of it."""
    rng, n = np.random.default_rng(k), 4000
    sizes = rng.integers(50, 1000, k)

    def covered(stated):
        margin = report([0.0] * k, stated).margin
        noise = rng.normal(0, 10.0, (n, k))
        return int((np.abs(noise) <= margin).all(axis=1).sum())

    least = stats.binom.ppf(1e-9, n, CONFIDENCE)
    what = f"of {n} times all intervals held"
    assert_within(what, covered(10.0), least=least)
    assert_within(
        f"{what}, with 2/3 of the noise,",
        covered(10.0 * 2 / 3),
        most=least,
        strict=True,
    )
    # A union bound is not far from exact: independent intervals hold at most this
    # often.
    exact = (1 - (1 - CONFIDENCE) / k) ** k
    assert covered(10.0) <= stats.binom.isf(1e-9, n, exact)
    noisy = sizes + rng.normal(0, 1e-6, k)
    assert report(noisy.tolist(), 1e-3).interval.shape == (k, 2)


def test_without_noise_an_interval_is_the_size():
    sizes = report([90.0, 110.0, 89.0, 111.0], 0.0)
    np.testing.assert_array_equal(
        sizes.interval, np.repeat([[90.0], [110], [89], [111]], 2, axis=1)
    )
    assert sizes.bounds_kept == ("kept", "kept", "missed", "missed")
    assert "have no noise" in " ".join(sizes.statements)


def test_a_cluster_keeps_a_bound_on_one_side_whatever_its_size_on_the_other():
    sizes = report([1e9, 95.0, 40.0], 10.0, 90, None)
    assert sizes.bounds_kept == ("kept", "open", "missed")
    assert "at least 90 records. By" in sizes.statements[0]
    assert sizes.to_dict()["max_size"] is None


def test_the_statements_have_every_number():
    sizes = report([100.0, 86.0, 300.0, 101.0], 2.0, 90, 1500)
    assert sizes.bounds_kept == ("kept", "open", "kept", "kept")
    first, second, last = sizes.statements
    for part in (
        "90 to 1,500 records",
        "3 of 4 clusters kept",
        "0 missed",
        "1 is open",
    ):
        assert part in first
    for part in (
        "standard deviation 2 records",
        "within 5",
        "Exact sizes cannot be promised.",
    ):
        assert part in second
    assert (
        "whether bounds were kept, are those of the clients that answered the last"
        in last
    )


@pytest.mark.claim("equal-groups", "plan-log-have-warning")
@pytest.mark.claim("guarantees", "26")
def test_too_much_noise_is_named_with_its_numbers():
    assert note_on_noise(312.5, 20_000, 16) is None
    note = note_on_noise(313.0, 20_000, 16)
    for part in ("313 records", "N/(4k) = 312", "larger epsilon"):
        assert part in note
