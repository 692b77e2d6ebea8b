"""Histograms of columns, and the rule that finds ranges in them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms import ranges
from flower_kmeans.algorithms.ranges import BINS, END, found_ranges, histograms
from flower_kmeans.data.domain import Box, GridRecords
from tests.support.saying import assert_within

RNG = np.random.default_rng
ONE = 2**16


def read(records, columns=None, bits=ranges.READING_BITS):
    """Return the histograms of records between -1 and 1."""
    rows = np.asarray(records, dtype=float)
    box = Box([-1.0] * rows.shape[1], [1.0] * rows.shape[1])
    grid = GridRecords(rows, box, bits)
    return histograms(grid, range(rows.shape[1]) if columns is None else columns)


def found(values, deviation=0.0, noise=None):
    """Return the range of a column of numbers between -1 and 1, in steps."""
    words = read(np.reshape(values, (-1, 1)))
    words = {name: each * ONE for name, each in words.items()}
    if noise is not None:
        for name, each in words.items():
            drawn = noise.normal(size=each.shape) * deviation * ONE
            words[name] = each + np.rint(drawn).astype(np.int64)
    ends = found_ranges(*(each[None] for each in words.values()), deviation * ONE)
    return None if ranges.stays_outer(ends)[0] else tuple(ends[0].tolist())


def step_of(value):
    return (value + 1) / 2 * END


# -------------------------------------------------------------------------- histograms


def test_bins_are_equal_and_records_on_the_upper_bound_count_in_the_last_one():
    records = RNG(0).uniform(-1, 1, (5000, 2))
    records[:3] = [[-1, 1], [1, -1], [1, 1]]
    counted = read(records)
    on_grid = np.rint(records * ONE) / ONE
    for name, n_bins in BINS.items():
        for i, own in enumerate(counted[name].reshape(2, n_bins)):
            expected, _ = np.histogram(on_grid[:, i], n_bins, (-1, 1))
            np.testing.assert_array_equal(own, expected)


def test_only_the_named_columns_count_and_parts_add_up():
    records = RNG(1).uniform(-1, 1, (900, 4))
    counted = read(records, [1, 3])
    assert {name: each.shape for name, each in counted.items()} == {
        name: (2 * n_bins,) for name, n_bins in BINS.items()
    }
    parts = [read(part, [1, 3]) for part in np.array_split(records, 7)]
    for name, each in counted.items():
        np.testing.assert_array_equal(each, sum(part[name] for part in parts))
        np.testing.assert_array_equal(each.reshape(2, -1)[0], read(records, [1])[name])
        assert not read(records[:0])[name].any()


@pytest.mark.claim("guarantees", "45")
@pytest.mark.parametrize("d", [1, 2, 3])
def test_every_record_moves_the_histograms_by_exactly_its_unit(d):
    """All records of a grid, in a table of any others: 1 in three words of each column."""
    points = np.array(list(itertools.product([-1, -0.75, -0.1, 0, 0.5, 1], repeat=d)))
    others = RNG(2).uniform(-1, 1, (40, d))
    before = np.concatenate([*read(others, bits=3).values()])
    for point in points:
        after = np.concatenate([*read([*others, point], bits=3).values()])
        change = after - before
        assert set(change.tolist()) == {0, 1}
        length = math.sqrt(3 * d)
        what = "a record moves the histograms by"
        assert_within(what, np.linalg.norm(change), least=length, most=length)


# -------------------------------------------------------------------------- the rule


def test_a_range_holds_its_records_and_little_more():
    low, high = found(RNG(3).uniform(0.31, 0.33, 4000), deviation=20.0)
    assert low <= step_of(0.31)
    assert high >= step_of(0.33)
    assert_within("the range over the records' is", high - low, most=1.6 * 0.01 * END)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "nobody is there"),
        ([0.5] * 60, "too few records are clear in the noise"),
        (np.linspace(-1, 1, 4000), "they fill the bounds"),
        (np.linspace(-0.2, 0.21, 4000), "they fill more than a fifth of the bounds"),
        ([*np.linspace(0.1, 0.12, 4000), *[1.0] * 400], "many are clamped to a bound"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_outer_bounds_stay_where(values, why):
    assert found(values, deviation=30.0) is None, why


def test_a_group_of_many_noises_keeps_the_range_and_a_small_one_does_not():
    bulk = RNG(4).normal(0.5, 0.003, 6000)
    kept = found([*bulk, *[0.62] * 200], deviation=30.0)
    assert kept[1] >= step_of(0.62)
    lost = found([*bulk, *[0.62] * 3], deviation=30.0)
    assert lost[1] < step_of(0.62)


def test_a_tail_gets_a_wider_margin_than_an_edge():
    values = np.sort(RNG(5).exponential(0.01, 8000)) + 0.2
    low, high = found(values[values < 0.4], deviation=20.0)
    assert step_of(0.2) - low < high - step_of(np.quantile(values, 0.97))
    assert low <= step_of(0.2)


def test_a_range_at_a_bound_ends_there():
    assert found(RNG(6).uniform(-1, -0.98, 5000), deviation=10.0)[0] == 0
    assert found(RNG(6).uniform(0.98, 1, 5000), deviation=10.0)[1] == END


def test_without_noise_one_record_is_a_range():
    low, high = found([0.25])
    assert low <= step_of(0.25) <= high
    assert high - low <= 4 * ranges.SUBBINS


@pytest.mark.thorough
def test_noise_moves_ends_by_little():
    """One run in some is wider, because noise kept a cell that no record is in."""
    values = RNG(7).uniform(0.317, 0.337, 5000)
    lengths = []
    for seed in range(200):
        ends = found(values, 32.6, RNG(seed))
        lengths.append(END if ends is None else ends[1] - ends[0])
    ratios = np.array(lengths) / (0.01 * END)
    assert_within(
        "half of all ranges over the records' are", np.median(ratios), most=1.5
    )
    assert_within("a range is thrice the records' in", np.mean(ratios > 3), most=0.15)


INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-(2**63), 2**63 - 1, 0, 2**16, 2**40]
)


@pytest.mark.claim("guarantees", "45")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_words_give_a_range_within_the_bounds(data):
    """Noise can lead to any words, and a client must accept the next query."""
    some = data.draw(st.lists(INT64, min_size=1, max_size=40))
    deviation = data.draw(st.sampled_from([0.0, 1.0, 2.0**20, 2.0**50]))
    own = np.array(some, dtype=np.int64)
    words = [np.resize(np.roll(own, n), (3, n)) for n in BINS.values()]
    for low, high in found_ranges(*words, deviation).tolist():
        assert 0 <= low < high <= END
        is_outer = (low, high) == (0, END)
        assert is_outer or ranges.LEAST_STEPS <= high - low <= END // 5


# -------------------------------------------------------------------------- the bounds


def test_outer_bounds_come_out_exactly_and_ends_are_in_order():
    box = Box([0.1, -1e200], [0.3, 1e200])
    lower, upper = ranges.bounds_within(box, ranges.outer_box(2))
    assert (tuple(lower), tuple(upper)) == (box.lower, box.upper)
    near = Box([1e9], [1e9 + 2], tighten=0.1)
    for low in range(0, END - 16, 997):
        (first,), (last,) = ranges.bounds_within(near, [[low, low + 16]])
        assert near.lower[0] <= first < last <= near.upper[0]
        Box([first], [last])
    assert ranges.stays_outer(np.array([[0, END], [0, 16], [16, END]])) == [
        True,
        False,
        False,
    ]
