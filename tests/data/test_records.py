"""Records as users hand them over; inside a run, the client answers with the good ones."""

import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.data import records as reading
from flower_kmeans.data.records import as_number, check_records
from flower_kmeans.data.sources import as_source
from flower_kmeans.data.tables import Table
from flower_kmeans.errors import ConfigurationTypeError, DataError

pytestmark = [
    pytest.mark.claim("guarantees", "7"),
    pytest.mark.claim("tables/differences", "code-radius-test-keeps"),
]


def usable_records(records, n_features, columns=None):
    """Return what counts during a run, and how many records do not."""
    source = as_source(records, n_features, columns)
    return source.loaded(), source.n_null


BAD_CELLS = [
    "n/a",
    "",
    "1_0",
    "nan",
    1j,
    None,
    10**400,
    object(),
    b"\xff",
    np.timedelta64(1, "ns"),
]
_good = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2)
_bad = st.one_of(
    st.sampled_from(
        [None, object(), {"a": 1}, [[1.0, 2.0]], [np.nan, 0.0], [0.0, -np.inf]]
    ),
    st.sampled_from(BAD_CELLS).map(lambda cell: [cell, 1.0]),
    st.text(max_size=3),
    st.integers(),
    st.lists(st.floats(0, 1), max_size=4).filter(lambda row: len(row) != 2),
)


@given(st.lists(st.tuples(st.booleans(), _good, _bad), max_size=8))
def test_any_mixture_of_rows_leaves_exactly_the_good_ones(rows):
    mixed = [good if is_good else bad for is_good, good, bad in rows]
    good = [row for is_good, row, _ in rows if is_good]
    usable, n_null = usable_records(mixed, 2)
    assert (usable.shape, usable.dtype) == ((len(good), 2), np.float64)
    assert n_null == len(rows) - len(good)
    np.testing.assert_array_equal(
        usable, np.array(good, dtype=np.float64).reshape(-1, 2)
    )


@pytest.mark.parametrize(
    "records",
    [
        [],
        (),
        np.array([], int),
        np.empty((0, 0)),
        np.empty((0, 2)),
        np.empty((0, 2), dtype=object),
    ],
)
def test_no_records_are_a_table_without_rows(records):
    usable, n_null = usable_records(records, 2)
    assert (usable.shape, n_null) == ((0, 2), 0)


@pytest.mark.parametrize("bad", [["n/a", 1.0], [1.0], None, "ab", [np.nan, 1.0]])
def test_rows_of_a_list_take_one_path_whatever_they_hold(bad, monkeypatch):
    """One malformed row among good ones: every other cell is read as it is without it."""
    good = [[0.25, 1], (0.5, "2"), np.array([0.75, 3.0])]
    calls = []
    monkeypatch.setattr(
        reading, "as_number", lambda cell: calls.append(cell) or as_number(cell)
    )
    usable_records(good, 2)
    without = list(calls)
    calls.clear()
    usable, n_null = usable_records([*good, bad], 2)
    assert calls[: len(without)] == without
    np.testing.assert_array_equal(usable, [[0.25, 1], [0.5, 2], [0.75, 3]])
    assert n_null == 1


class Frame:
    """What a data frame is to us: an array-like, of shared memory, that may name its columns."""

    def __init__(self, values, columns=None):
        self.values, self.columns = np.asarray(values), columns

    def __array__(self, dtype=None, copy=None):
        return self.values


# ---------------------------------------------------------------------- what is refused

# What no record decides is refused also in a run.
NO_TABLES = [
    *(
        (records, "two-dimensional")
        for records in (7.0, np.zeros((2, 2, 2)), np.zeros((3, 0)))
    ),
    (np.zeros(2), r"two-dimensional.*reshape\(-1, 1\)"),
    (np.zeros((3, 5)), "with 2 columns. Got 5"),
    (np.empty((0, 3)), "with 2 columns. Got 3"),
    (np.ma.masked_array(np.zeros((2, 2))), "masked"),
    *(
        (records, "real numbers")
        for records in (None, "text", {"a": [1, 2]}, np.array([["1", "2", "3"]]))
    ),
    (
        np.array([["2020-01-01", "2020-01-02"]], dtype="datetime64[D]"),
        "dtype datetime64",
    ),
    # With labels beside them: rows differ in length, and during a run one of them is a
    # table.
    ([np.ones((4, 2)), np.zeros(4)], "rectangular|holds a table, a ndarray"),
]
BAD_ROWS = [
    ([1.0, 2.0], "two-dimensional", 0),
    ([[1, 2], [3]], "rectangular", 1),
    (np.array([[1, None], [1, 2]], dtype=object), "dtype object", 1),
    ([["secret", "b"]], "dtype <U6", 0),
    (np.array([["secret", "b"]]), "dtype <U6", 0),
    (np.full((2, 2), 1j), "dtype complex128", 0),
    ([[np.nan, 1.0], [1, 2]], "finite", 1),
]


@pytest.mark.parametrize(
    ("records", "message"), [*NO_TABLES, *(row[:2] for row in BAD_ROWS)]
)
def test_what_is_no_table_is_refused(records, message):
    with pytest.raises((DataError, ConfigurationTypeError), match=message) as caught:
        check_records(records, 2)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("records", "message"), NO_TABLES)
def test_what_is_no_table_is_refused_during_a_run(records, message):
    with pytest.raises((DataError, ConfigurationTypeError), match=message) as caught:
        usable_records(records, 2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("records", "_message", "n_good"), BAD_ROWS)
def test_malformed_rows_count_as_none_during_a_run(records, _message, n_good):
    usable, n_null = usable_records(records, 2)
    np.testing.assert_array_equal(usable, [[1, 2]] * n_good or np.empty((0, 2)))
    assert n_null == len(records) - n_good


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_check_refuses_the_rows_that_usable_leaves_out(bad):
    records = np.arange(40_000.0).reshape(20_000, 2)
    assert check_records(records, 2) is records
    records[[9_000, 19_999], 1] = bad
    with pytest.raises(
        DataError, match=r"Expected data to be finite\. Got NaN or infinity in row 9000"
    ):
        check_records(records, 2, name="data")
    usable, n_null = usable_records(records, 2)
    assert n_null == 2
    np.testing.assert_array_equal(usable, np.delete(records, [9_000, 19_999], axis=0))


@pytest.mark.parametrize("dtype", [int, np.uint8, np.float32])
def test_tables_of_numbers_become_float64(dtype):
    for records in (
        np.array([[1, 2], [3, 4]], dtype),
        np.array([[1, 3], [2, 4]], dtype).T,
    ):
        checked = check_records(records, 2)
        assert checked.dtype == np.float64
        assert checked.flags.c_contiguous
        np.testing.assert_array_equal(checked, [[1, 2], [3, 4]])


def test_a_number_too_large_for_float64_is_not_finite():
    if np.finfo(np.longdouble).max == np.finfo(np.float64).max:
        pytest.skip("long double is double here")
    with pytest.raises(DataError, match="finite"):
        check_records(np.array([[np.finfo(np.longdouble).max]]))


# --------------------------------------------------------------------- names of columns


def arrow(values, columns):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table(dict(zip(columns, np.transpose(values), strict=True)))


@pytest.mark.parametrize(
    "make", [Frame, lambda v, c: Table(np.array(v), tuple(c)), arrow]
)
def test_named_columns_are_those_of_the_run(make):
    table = make([[1.0, 7.891], [2.0, 2.0]], ["age", "income"])
    # also without names
    for records in (table, np.asarray(table), np.asarray(table).tolist()):
        for columns in (None, ["age", "income"], ("age", "income")):
            usable, n_null = usable_records(records, 2, columns)
            np.testing.assert_array_equal(usable, [[1, 7.891], [2, 2]])
            assert n_null == 0
    for columns in (
        ["income", "age"],
        ["age", "incomes"],
        ["age"],
        ["age", "income", "x"],
    ):
        with pytest.raises(DataError, match="columns") as caught:
            usable_records(table, 2, columns)
        assert "7.89" not in str(caught.value)


def test_an_array_is_read_while_another_thread_imports_pyarrow(monkeypatch):
    # without its names
    monkeypatch.setitem(sys.modules, "pyarrow", types.ModuleType("pyarrow"))
    found, n_null = usable_records(np.array([[1.0, 2.0], [3.0, 4.0]]), 2)
    np.testing.assert_array_equal(found, [[1, 2], [3, 4]])
    assert n_null == 0


@pytest.mark.parametrize(
    "names",
    [
        range(2),
        [("a", "age"), ("a", "income")],
        [None, None],
        [np.array([0.1]), np.array([7.891])],
    ],
)
def test_names_that_are_no_text_are_not_those_of_the_run(names):
    with pytest.raises(DataError, match="columns") as caught:
        usable_records(Frame(np.ones((3, 2)), names), 2, ["age", "income"])
    assert "7.891" not in str(caught.value)


# --------------------------------------------------------------------------- cells

GOOD = np.array([[0.1, 1 / 3], [1e-7, -2.5e10], [True, 7]], dtype=object)


@pytest.mark.parametrize("bad", BAD_CELLS)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_record_that_changes_the_type_of_an_array_decides_nothing_else(bad, place):
    rows = GOOD.tolist()
    expected = np.array(rows, dtype=np.float64)
    rows.insert(place, [0.5, bad])
    arrays = [rows, np.array(rows, dtype=object)]
    if isinstance(bad, str | complex):
        arrays.append(np.array(rows))  # of text, or of complex numbers
    if isinstance(bad, str):
        arrays.append(np.array(rows).astype(bytes))
        # as pandas keeps text
        arrays.append(Frame(np.array(rows).astype(object), ["a", "b"]))
    for records in arrays:
        usable, n_null = usable_records(records, 2)
        np.testing.assert_array_equal(usable, expected)
        assert n_null == 1


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9)
)
def test_text_is_the_number_that_it_spells(values):
    text = np.array([[str(value)] for value in values])
    np.testing.assert_array_equal(usable_records(text, 1)[0], np.array(values)[:, None])


@pytest.mark.parametrize(
    "cell", ["true", " True ", b"true", True, np.True_, "1", 1 + 0j]
)
def test_cells_that_are_one(cell):
    assert as_number(cell) == 1
