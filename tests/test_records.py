"""Records inside a run: whatever one of them is, the client answers with the others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans import records as reading
from flower_kmeans.errors import ConfigurationTypeError, DataError
from flower_kmeans.records import as_number, check_records, usable_records
from flower_kmeans.tables import Table

_good = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2)
_bad = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.integers(),
    st.just([np.nan, 0.0]),
    st.just([0.0, -np.inf]),
    st.just([None, 1.0]),
    st.just(["n/a", 1.0]),
    st.just(["1_0", 1.0]),
    st.just([b"\xff", 1.0]),
    st.just([np.timedelta64(1, "ns"), 1.0]),
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


def test_a_finite_table_is_copied_in_a_run_only():
    table = np.random.default_rng(0).random((10, 2))
    usable, n_null = usable_records(table, 2)
    assert not np.shares_memory(usable, table)
    np.testing.assert_array_equal(usable, table)
    assert n_null == 0
    assert check_records(table, 2) is table


@pytest.mark.parametrize("bad", [["n/a", 1.0], [1.0], None, "ab", [np.nan, 1.0]])
def test_rows_of_a_list_take_one_path_whatever_they_hold(bad, monkeypatch):
    """One malformed row among good ones: every other cell is read as it is without it."""
    good = [[0.25, 1], (0.5, "2"), np.array([0.75, 3.0])]
    calls = []
    monkeypatch.setattr(reading, "as_number", lambda cell: calls.append(cell) or as_number(cell))
    usable_records(good, 2)
    without = list(calls)
    calls.clear()
    usable, n_null = usable_records([*good, bad], 2)
    assert calls[: len(without)] == without
    np.testing.assert_array_equal(usable, [[0.25, 1], [0.5, 2], [0.75, 3]])
    assert n_null == 1


class Shows:
    """An array-like that hands out somebody else's memory, as data frames do."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values


VIEWS = {
    "map": lambda mapped: mapped,
    "view": lambda mapped: np.asarray(mapped)[1:][::1],
    "row": lambda mapped: mapped.reshape(-1)[2:].reshape(-1, 2),
    "table": lambda mapped: Table(np.asarray(mapped), ("a", "b")),
    "array-like": lambda mapped: Shows(mapped.view(np.ndarray)),
    "buffer": lambda mapped: np.frombuffer(mapped._mmap).reshape(-1, 2),
    "memory": lambda mapped: np.frombuffer(memoryview(mapped._mmap)[16:]).reshape(-1, 2),
    "transposed": lambda mapped: mapped.T.T,
    "bytes": lambda mapped: mapped.view(np.uint8).view(np.float64),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_records_in_a_memory_map_are_copied(view, tmp_path):
    """Another process that writes to the file changes nothing between commitment and answer."""
    mapped = np.memmap(tmp_path / "records", dtype=np.float64, mode="w+", shape=(4, 2))
    mapped[:] = 0.25
    usable, _ = usable_records(view(mapped), 2)
    before = usable.copy()
    mapped[:] = 0.75
    np.testing.assert_array_equal(usable, before)
    assert (usable == 0.25).all()
    assert len(usable) > 2


@pytest.mark.parametrize(
    "records",
    [
        np.ones((2, 3)),
        np.empty((0, 3)),
        np.ones(4),
        np.ones((2, 2, 2)),
        np.array([["1", "2", "3"]]),
        np.array([["2020-01-01", "2020-01-02"]], dtype="datetime64[D]"),
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


# --------------------------------------------------------------------------- names of columns


class Frame:
    """What a data frame is to us: an array that names its columns."""

    def __init__(self, values, columns):
        self.values, self.columns = np.asarray(values), columns

    def __array__(self, dtype=None, copy=None):
        return self.values


def arrow(columns):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({name: [1.0, 2.0] for name in columns})


TABLES = [
    lambda columns: Frame([[1.0, 1.0], [2.0, 2.0]], columns),
    lambda columns: Table(np.array([[1.0, 1.0], [2.0, 2.0]]), tuple(columns)),
    arrow,
]


@pytest.mark.parametrize("make", TABLES, ids=["frame", "table", "arrow"])
def test_named_columns_are_those_of_the_run(make):
    table = make(["age", "income"])
    for columns in (None, ["age", "income"], ("age", "income")):
        usable, n_null = usable_records(table, 2, columns)
        np.testing.assert_array_equal(usable, [[1, 1], [2, 2]])
        assert n_null == 0
    for columns in (["income", "age"], ["age", "incomes"], ["age"], ["age", "income", "x"]):
        with pytest.raises(DataError, match="columns"):
            usable_records(table, 2, columns)


def test_names_that_are_no_text_are_not_those_of_the_run():
    values = [np.array([0.123456]), np.array([7.891])]  # "columns" that are not names
    for names in (range(2), [0, 1], [("a", "age"), ("a", "income")], [None, None], values):
        with pytest.raises(DataError, match="columns") as caught:
            usable_records(Frame(np.ones((3, 2)), names), 2, ["age", "income"])
        assert "7.891" not in str(caught.value)


@pytest.mark.parametrize("records", [np.ones((2, 2)), [[1, 1], [1, 1]], ((1, 1), (1, 1))])
def test_records_without_names_are_taken_by_place(records):
    np.testing.assert_array_equal(usable_records(records, 2, ["age", "income"])[0], np.ones((2, 2)))


def test_no_value_is_in_the_text_about_columns():
    table = Frame([[0.123456, 7.891], [1, 2]], ["age", "income"])
    with pytest.raises(DataError) as caught:
        usable_records(table, 2, ["a", "b"])
    assert "0.12" not in str(caught.value)
    assert "7.8" not in str(caught.value)


@pytest.mark.parametrize("labels_first", [False, True])
def test_records_with_labels_beside_them_are_no_records(labels_first):
    """Not told apart from malformed rows: a run has no rule that looks at the first rows."""
    loaded = [np.ones((4, 2)), np.zeros(4)]
    usable, n_null = usable_records(loaded[::-1] if labels_first else loaded, 2)
    assert usable.shape == (0, 2)
    assert n_null == 2


GOOD = np.array([[0.1, 1 / 3], [1e-7, -2.5e10], [True, 7]], dtype=object)


@pytest.mark.parametrize("bad", ["n/a", "", "1_0", "nan", 1j, None, 10**400, object()])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_record_that_changes_the_type_of_an_array_decides_nothing_else(bad, place):
    rows = GOOD.tolist()
    expected = np.array(rows, dtype=np.float64)
    rows.insert(place, [0.5, bad])
    arrays = [rows, np.array(rows, dtype=object)]
    if not isinstance(bad, int) and type(bad) is not object and bad is not None:
        arrays.append(np.array(rows))  # of text, or of complex numbers
    if isinstance(bad, str):
        arrays.append(np.array(rows).astype(bytes))
        arrays.append(Frame(np.array(rows).astype(object), ["a", "b"]))  # as pandas keeps text
    for records in arrays:
        usable, n_null = usable_records(records, 2)
        np.testing.assert_array_equal(usable, expected)
        assert n_null == 1


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_text_is_the_number_that_it_spells(values):
    column = np.array(values)
    text = np.array([str(value) for value in values])
    np.testing.assert_array_equal(
        usable_records(text[:, None], 1)[0], usable_records(column[:, None], 1)[0]
    )


@pytest.mark.parametrize("cell", ["true", " True ", b"true", True, np.True_, "1", 1 + 0j])
def test_cells_that_are_one(cell):
    assert as_number(cell) == 1
