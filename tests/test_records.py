"""Records inside a run: whatever one of them is, the client answers with the others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationTypeError, DataError
from flower_kmeans.records import check_records, usable_records

_good = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2)
_bad = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.integers(),
    st.just([np.nan, 0.0]),
    st.just([0.0, -np.inf]),
    st.just([None, 1.0]),
    st.just(["1", 1.0]),
    st.just([10**400, 1.0]),
    st.just([1j, 1.0]),
    st.lists(st.floats(0, 1), max_size=4).filter(lambda row: len(row) != 2),
    st.just([[1.0, 2.0]]),
    st.just({"a": 1}),
    st.just(object()),
)


@given(st.lists(st.tuples(st.booleans(), _good, _bad), max_size=8))
def test_any_mixture_of_rows_leaves_exactly_the_good_ones(rows):
    mixed = [good if is_good else bad for is_good, good, bad in rows]
    good = [row for is_good, row, _ in rows if is_good]
    usable, n_null = usable_records(mixed, 2)
    assert usable.shape == (len(good), 2)
    assert usable.dtype == np.float64
    assert n_null == len(rows) - len(good)
    np.testing.assert_array_equal(usable, np.array(good, dtype=np.float64).reshape(-1, 2))


@pytest.mark.parametrize(
    "records",
    [[], (), np.array([]), np.empty((0, 2)), np.empty((0, 2), dtype=object), np.array([], int)],
)
def test_no_records_are_a_table_without_rows(records):
    usable, n_null = usable_records(records, 2)
    assert usable.shape == (0, 2)
    assert n_null == 0


def test_an_object_array_is_read_row_by_row():
    table = np.array([[1, 2.5], [None, 3.0], ["x", 1.0], [True, 2]], dtype=object)
    usable, n_null = usable_records(table, 2)
    np.testing.assert_array_equal(usable, [[1, 2.5], [1, 2]])
    assert n_null == 2


def test_a_finite_table_is_not_copied():
    table = np.random.default_rng(0).random((10, 2))
    assert usable_records(table, 2)[0] is table
    assert check_records(table, 2) is table


@pytest.mark.parametrize(
    "records",
    [
        np.ones((2, 3)),
        np.empty((0, 3)),
        np.ones(4),
        np.ones((2, 2, 2)),
        np.array([["a", "b"]]),
        np.ma.masked_array(np.ones((2, 2)), mask=[[0, 1], [0, 0]]),
        None,
        "text",
        {"a": [1, 2]},
        7.0,
    ],
)
def test_what_is_no_table_of_that_width_is_an_error(records):
    with pytest.raises((DataError, ConfigurationTypeError)) as caught:
        usable_records(records, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("nothing", [np.empty((0, 0)), np.empty(0), [], ()])
def test_no_records_are_a_table_without_rows_however_they_come(nothing):
    usable, n_null = usable_records(nothing, 2)
    assert usable.shape == (0, 2)
    assert n_null == 0


def test_outside_of_a_run_every_bad_row_is_an_error():
    for row in (None, [np.nan, 1.0], [1.0], ["x", 1.0]):
        with pytest.raises((DataError, ConfigurationTypeError)):
            check_records([[0.5, 0.5], row], 2)
