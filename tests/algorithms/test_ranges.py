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


# ------------------------------------------------------- the rule on hand-made words

DEVIATION = 30.0
BULK = range(507, 518)  # fine bins of records around the middle, a boundary of all bins


def words_of(fine):
    """Return the words, without noise, of numbers of records in fine bins, (c, 1024)."""
    fine = np.asarray(fine, dtype=np.int64) * ONE
    parts = {
        name: fine.reshape(len(fine), n, -1).sum(axis=2) for name, n in BINS.items()
    }
    return list(parts.values())


def ranges_of(words):
    return found_ranges(*words, DEVIATION * ONE)


def around(number, bins=BULK, each=400):
    """Return ``number`` columns with ``each`` records in every one of ``bins``."""
    fine = np.zeros((number, BINS[ranges.FINE]), dtype=np.int64)
    fine[:, list(bins)] = each
    return fine


def test_an_empty_cell_with_much_noise_does_not_keep_the_range_wide():
    """Three deviations in any word of the two clear coarse bins in which no record is."""
    (expected,) = ranges_of(words_of(around(1)))
    assert expected[1] - expected[0] <= 1.4 * len(BULK) * ranges.SUBBINS
    noise = round(3 * DEVIATION * ONE)
    middle = [*range(56, 63), *range(65, 72)]
    fine = [*range(448, 507), *range(518, 576)]
    for block, bins in ((1, middle), (2, fine)):
        words = words_of(around(len(bins)))
        words[block][np.arange(len(bins)), bins] += noise
        np.testing.assert_array_equal(ranges_of(words), [expected] * len(bins))


def test_noise_in_all_parts_of_a_coarse_bin_gives_way_to_its_own_word():
    (expected,) = ranges_of(words_of(around(1)))
    words = words_of(around(1))
    words[1][:, 56:72] += round(DEVIATION * ONE)
    np.testing.assert_array_equal(ranges_of(words), [expected])


def deviations_before():
    """Return the deviation of the records before each fine bin of a coarse one, (64,).

    It is that of the linear estimate, from the unit words 1, 8 and 64.
    """
    coarse, middle, fine = np.split(np.eye(73), [1, 9])
    own = fine.reshape(8, 8, 73).sum(axis=1)
    middle = (own + 8 * middle) / 9
    whole = (middle.sum(axis=0) + 7 * coarse[0]) / 8
    middle = middle + (whole - middle.sum(axis=0)) / 8
    fine = fine + np.repeat((middle - own) / 8, 8, axis=0)
    before = np.cumsum(fine, axis=0) - fine
    return np.sqrt((before**2).sum(axis=1))


@pytest.mark.parametrize("first", range(8, 64, 11))
def test_a_range_begins_where_noise_explains_all_records_before(first):
    """Some in the first fine bin of a coarse one, and 6 full bins from ``first`` on."""
    sizes = np.arange(1, 130)
    fine = around(len(sizes), range(512 + first, 512 + first + 6), each=500)
    fine[:, 512] = sizes
    low = ranges_of(words_of(fine))[:, 0] / ranges.SUBBINS - 512
    limits = 1.75 * DEVIATION * deviations_before()[: first + 1]
    is_explained = sizes[:, None] <= limits
    is_explained[:, 0] = True
    empty = is_explained[:, ::-1].argmax(axis=1)
    assert {0, first} <= set(empty.tolist())
    assert (low <= first - empty).all()
    # The way to 3 % of the mass is the empty bins and a part of the first full one. Longer
    # ranges have longer cells.
    are_few = empty <= 8
    assert (low >= first - 3 * empty - 1)[are_few].all()


def with_noise(words, rng):
    """Return words with the noise of the plan's deviation."""
    found = []
    for each in words:
        drawn = np.rint(rng.normal(0, DEVIATION * ONE, each.shape))
        found.append(each + drawn.astype(np.int64))
    return found


def test_noisy_histograms_in_reverse_give_the_range_in_reverse():
    words = words_of(np.repeat(around(1, range(300, 340), 90), 300, axis=0))
    words = with_noise(words, RNG(8))
    there = ranges_of(words)
    back = ranges_of([each[:, ::-1] for each in words])
    np.testing.assert_array_equal(back, END - there[:, ::-1])


@pytest.mark.parametrize("start", [0.495, 0.5, 0.317])
@pytest.mark.parametrize(("width", "most"), [(0.01, 0.06), (0.1, 0.02)])
def test_few_ranges_are_far_wider_than_their_records(start, width, most):
    """5,000 uniform records, around a boundary of coarse bins, behind one, and elsewhere."""
    values = RNG(9).uniform(start, start + width, 5000)
    fine, _ = np.histogram(values, BINS[ranges.FINE], (0, 1))
    words = with_noise(words_of(np.tile(fine, (1000, 1))), RNG(10))
    ends = ranges_of(words) / END
    ratios = (ends[:, 1] - ends[:, 0]) / width
    assert_within("the median ratio is", np.median(ratios), most=1.55)
    assert_within("more than 2 are", np.mean(ratios > 2), most=most)
    outside = (ends[:, 0] > start + 0.02 * width) | (ends[:, 1] < start + 0.98 * width)
    assert_within("ranges without a fiftieth are", np.mean(outside), most=0.01)


@pytest.mark.parametrize("place", [530, 600, 750])
def test_groups_of_13_deviations_are_hardly_ever_cut_off(place):
    """400 of 8,000 records, near the others, in the next coarse bin or far away."""
    fine = around(1000, [*range(507, 515)], each=950)
    fine[:, place] = 400
    ends = ranges_of(with_noise(words_of(fine), RNG(11)))
    is_cut = ends[:, 1] < (place + 1) * ranges.SUBBINS
    assert_within("they are cut off in", np.mean(is_cut), most=0.01)


@pytest.mark.parametrize("place", [2, 10, 31, 53])
def test_a_range_of_few_records_holds_them_where_its_ends_pass_each_other(place):
    """100 records are clear in their coarse bin; within it noise explains them."""
    fine = around(1, [512 + place], each=100)
    ((low, high),) = ranges_of(words_of(fine))
    assert low <= (512 + place) * ranges.SUBBINS
    assert high >= (513 + place) * ranges.SUBBINS
    assert high - low <= 3 * END / BINS[ranges.COARSE]


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
