"""Every habit of a table: its records, or an error by its type. No record decides about others."""

import sqlite3
import subprocess
import sys
import types
from collections.abc import Sequence

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from habits import (
    EMPTY,
    NAMES,
    NULL,
    READ,
    REFUSED,
    Row,
    X,
    arrow_of,
    hub,
    pandas_of,
    polars_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from flower_kmeans.data import sources
from flower_kmeans.data.sources import as_source, checked_source, has_a_record
from flower_kmeans.errors import ConfigurationTypeError, DataError, KMeansError

pytestmark = pytest.mark.claim("own-data", "refused-type-one-sentence")

refusals = pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
with_and_without_names = pytest.mark.parametrize("columns", [None, NAMES])
NEED_NAMES = {"other namedtuples", "no names", "names in two lines", "another column"}
"""Of which the domain's names alone decide."""


def read(records, columns=NAMES):
    """Return the records as a node reads them, null records included."""
    return as_source(records, 2, columns).loaded(keep_null=True)


@with_and_without_names
@pytest.mark.parametrize("habit", READ)
def test_tables_of_all_kinds_are_read(habit, columns):
    records = READ[habit]()
    source = as_source(records, 2, columns)
    for _ in range(2):  # as in two rounds
        np.testing.assert_array_equal(source.loaded(), X)
        assert source.n_null == 0
    assert has_a_record(records, 2, columns)
    checked = checked_source(records, 2, columns, "partitions[0]")
    np.testing.assert_array_equal(as_source(checked, 2, columns).loaded(), X)


@pytest.mark.parametrize("habit", NULL)
def test_a_cell_that_is_no_number_makes_one_null_record(habit):
    make, expected = NULL[habit]
    np.testing.assert_array_equal(read(make()), expected)
    said = r"to be finite\. Got .* in row [01] |as an array of real numbers\. Got"
    with pytest.raises(
        (DataError, ConfigurationTypeError),
        match=rf"^Expected partitions\[0\] ({said})",
    ):
        checked_source(make(), 2, NAMES, "partitions[0]")


@with_and_without_names
@pytest.mark.parametrize("habit", EMPTY)
def test_a_client_may_have_no_records_in_any_kind_of_table(habit, columns):
    records = EMPTY[habit]()
    assert read(records, columns).shape == (0, 2)
    assert has_a_record(records, 2, columns)
    checked = checked_source(records, 2, columns, "partitions[0]")
    assert read(checked, columns).shape == (0, 2)


@refusals
def test_other_types_are_refused_in_one_sentence_without_a_value(make, message):
    with pytest.raises((DataError, ConfigurationTypeError), match=message) as caught:
        read(make())
    text = str(caught.value)
    assert len(text) < 300
    assert not [hint for hint in ("\n", "7.891", "1.0", "0x") if hint in text]
    with pytest.raises(
        (DataError, ConfigurationTypeError),
        match=r"^(partitions\[3\]: |Expected partitions\[3\] )",
    ):
        checked_source(make(), 2, NAMES, "partitions[3]")


@pytest.mark.parametrize("habit", sorted(REFUSED.keys() - NEED_NAMES))
def test_types_are_refused_without_names_of_columns_too(habit):
    with pytest.raises(KMeansError):
        read(REFUSED[habit][0](), None)


# ------------------------------------------------------------------- rows by themselves

_cells = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.dates(),
)
_rows = st.one_of(
    _cells,
    st.lists(_cells, max_size=4),
    st.tuples(_cells, _cells),
    st.dictionaries(st.sampled_from("abc"), _cells),
    st.builds(Row, _cells, _cells),
    st.lists(st.floats(), min_size=1, max_size=3).map(np.array),
    st.just(object()),
)


@pytest.mark.claim("reference/domains", "run-no-cell-error")
@given(st.lists(_rows, min_size=1, max_size=6), _rows, st.data())
@settings(max_examples=200, deadline=None)
def test_another_record_changes_no_other_record_and_no_error(rows, other, data):
    """The good rows say that these are rows: without one, all could be columns."""
    rows = [*rows, [0.5, 0.25], np.array([0.5, 0.25])]
    place = data.draw(st.integers(0, len(rows) - 3))
    changed = [*rows[:place], other, *rows[place + 1 :]]
    for columns in (None, NAMES):
        before, after = read(rows, columns), read(changed, columns)
        keep = np.arange(len(rows)) != place
        np.testing.assert_array_equal(before[keep], after[keep])
        alone = read([other, [0.5, 0.25]], columns)[0]
        np.testing.assert_array_equal(after[place], alone)


@pytest.mark.claim("reference/domains", "run-no-cell-error")
@given(st.lists(_cells, min_size=1, max_size=6), _cells, st.data())
@settings(max_examples=200, deadline=None)
def test_another_cell_of_an_object_column_changes_no_other_record(cells, other, data):
    place = data.draw(st.integers(0, len(cells) - 1))
    changed = [*cells[:place], other, *cells[place + 1 :]]
    keep = np.arange(len(cells)) != place

    def tables(column):
        numbers = [1.0] * len(column)
        yield {"a": column, "b": numbers}
        yield pd.DataFrame({"a": pd.Series(column, dtype=object), "b": numbers})
        yield [{"a": cell, "b": 1.0} for cell in column]
        yield np.array([None, *zip(column, numbers, strict=True)], dtype=object)[1:]

    for before, after in zip(tables(cells), tables(changed), strict=True):
        np.testing.assert_array_equal(read(before)[keep], read(after)[keep])


@given(
    st.lists(st.one_of(st.none(), st.integers(-(2**62), 2**62)), min_size=1, max_size=6)
)
@settings(max_examples=100, deadline=None)
def test_integers_with_missing_cells_are_the_same_numbers_in_every_library(cells):
    expected = [np.nan if cell is None else float(cell) for cell in cells]
    ones = [1.0] * len(cells)
    tables = [
        pd.DataFrame({"a": pd.array(cells, dtype="Int64"), "b": ones}),
        pd.DataFrame(
            {"a": pd.array(cells, dtype=pd.ArrowDtype(pa.int64())), "b": ones}
        ),
        pl.DataFrame({"a": pl.Series(cells, dtype=pl.Int64), "b": ones}),
        pa.table({"a": pa.array(cells, pa.int64()), "b": ones}),
        {"a": cells, "b": ones},
        [{"a": cell, "b": 1.0} for cell in cells],
    ]
    for table in tables:
        np.testing.assert_array_equal(read(table)[:, 0], expected)


# --------------------------------------------------------------------------- choices


def test_a_data_set_has_more_columns_than_the_domain_and_a_table_in_memory_has_not():
    """Those of flwr-datasets' partitioners have labels; a file's are chosen by name as well."""
    labelled = hub(b=X[:, 1], label=list("wxyz"), a=X[:, 0])
    np.testing.assert_array_equal(read(labelled), X)
    np.testing.assert_array_equal(
        read(labelled.shuffle(seed=3)).sum(axis=0), X.sum(axis=0)
    )
    with pytest.raises(
        DataError, match=r"with 2 columns\. Got 3 instead: name those to read"
    ):
        read(labelled, None)
    for table in (labelled.to_pandas(), labelled.to_polars(), labelled.data.table):
        with pytest.raises(
            DataError, match=r"with the columns \['a', 'b'\] in this order"
        ):
            read(table)


def test_one_column_may_be_a_list_of_numbers():
    for cells in ([1.0, 2.5], ["1", " 2.5 "], [[1], (2.5,)], [{"a": 1}, {"a": 2.5}]):
        found = as_source(cells, 1, ["a"]).loaded()
        np.testing.assert_array_equal(found, [[1.0], [2.5]])
    with pytest.raises(ConfigurationTypeError, match="records of 1 cells each"):
        as_source([np.arange(9.0)], 1)
    assert as_source([[1.0] * 9, [2.0]], 1).loaded().tolist() == [[2.0]]


def test_a_sparse_matrix_is_read_in_dense_blocks_and_a_simulation_holds_all_of_it(
    monkeypatch,
):
    """Blocks have a public size; a simulation needs room for the whole."""
    table = np.where(np.random.default_rng(0).random((1000, 2)) < 0.9, 0, 1.5)
    monkeypatch.setattr(sources, "_CHECKED_NUMBERS", 64)
    source = as_source(sparse.csr_array(table), 2)
    assert max(map(len, source.parts())) == 64
    np.testing.assert_array_equal(source.loaded(), table)
    monkeypatch.setattr(sources, "_DENSE_NUMBERS", 1999)
    with pytest.raises(
        DataError, match=r"Expected partitions\[0\] as a sparse matrix of at most 1999"
    ):
        checked_source(sparse.csr_array(table), 2, None, "partitions[0]")
    table[7, 1] = np.nan
    np.testing.assert_array_equal(
        as_source(sparse.coo_array(table), 2).loaded(), np.delete(table, 7, 0)
    )


@pytest.mark.parametrize("name", ["DataLoader", "Dataset"])
def test_types_of_torch_are_known_by_their_names(name, monkeypatch):
    """As where torch has been imported; a subclass such as TensorDataset is one of them."""
    module = types.ModuleType("torch.utils.data")
    kind = type(
        name, (), {"__getitem__": lambda self, i: X[i], "__len__": lambda self: len(X)}
    )
    setattr(module, name, kind)
    monkeypatch.setitem(sys.modules, "torch.utils.data", module)
    with pytest.raises(
        ConfigurationTypeError, match=r"Got Own instead: return the tensor"
    ):
        read(type("Own", (kind,), {})())


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None  # as where it is not installed
import numpy as np, pandas as pd, polars as pl
from flower_kmeans import TableDomain
from flower_kmeans.data.sources import as_source
from flower_kmeans.data.table_domain import Category, Date, Number

cells = [2**53 + 1, None, 7]
tables = [
    pd.DataFrame({"a": pd.array(cells, dtype="Int64"), "b": ["1", "2", None]}),
    pl.DataFrame({"a": cells, "b": ["1", "2", None]}),
    {"a": cells, "b": ["1", "2", None]},
    [{"a": a, "b": b} for a, b in zip(cells, ["1", "2", None])],
]
for table in tables:
    found = as_source(table, 2, ["a", "b"]).loaded(keep_null=True)
    np.testing.assert_array_equal(found, [[2.0**53, 1], [np.nan, 2], [7, np.nan]])
domain = TableDomain([Category("a", (str(2**53 + 1), "7"))])
for table in tables[:3]:
    found = domain.encode(table, "nan")
    np.testing.assert_array_equal(found, [[1, 0], [np.nan] * 2, [0, 1]])

class Relation:
    def __arrow_c_stream__(self, requested_schema=None): ...

try:
    as_source(Relation(), 2)
except TypeError as error:
    print(error)
"""


def test_tables_of_pandas_and_polars_need_no_pyarrow():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "Got Relation instead: pyarrow cannot read it (ModuleNotFoundError)"
        in done.stdout
    )


def test_short_floats_stay_short_in_every_library():
    short = X.astype(np.float32)
    columns = dict(zip(NAMES, short.T, strict=True))
    tables = (
        pd.DataFrame(columns),
        pl.DataFrame(columns),
        pa.table(columns),
        hub(**columns),
    )
    for table in (*tables, columns, sparse.csr_array(short)):
        assert as_source(table, 2, NAMES).dtype == np.float32


def test_a_column_of_one_type_says_so_whichever_cells_it_has():
    """Without a record, and with missing cells alone, dates are refused as they are with dates."""
    none = pd.DatetimeIndex([None] * 4)
    for table in (
        pandas_of(none),
        pandas_of(none)[:0],
        polars_of(none),
        polars_of(none).clear(),
    ):
        with pytest.raises(
            ConfigurationTypeError, match=r"column 'a' as numbers\. Got "
        ):
            read(table)
    table = arrow_of(pa.array([None] * 4, pa.timestamp("ns")))
    for each in (table, table[:0]):
        with pytest.raises(
            ConfigurationTypeError, match=r"column 'a' as numbers\. Got timestamp"
        ):
            read(each)


class RowOfQuery(Sequence):
    """A row as SQLAlchemy has it: a sequence that is no tuple, with the names of its cells."""

    _fields = ("b", "a")

    def __init__(self, *cells):
        self._cells = cells

    def __len__(self):
        return len(self._cells)

    def __getitem__(self, i):
        return self._cells[i]


def rows_of_sqlite():
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    return connection.execute(
        "SELECT 2.0 AS b, 1.0 AS a UNION ALL SELECT 4.0, 3.0"
    ).fetchall()


@pytest.mark.parametrize(
    "make",
    [
        lambda: [
            row for _, row in pd.DataFrame({"b": [2.0, 4], "a": [1.0, 3]}).iterrows()
        ],
        rows_of_sqlite,
        lambda: [RowOfQuery(2.0, 1.0), RowOfQuery(4.0, 3.0)],
    ],
    ids=["pandas", "sqlite3", "SQLAlchemy"],
)
def test_rows_that_name_their_cells_are_read_by_these_names(make):
    assert NAMES == ("a", "b")
    np.testing.assert_array_equal(read(make()), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(read(make(), None), [[2, 1], [4, 3]])


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (lambda: [[1.0, 2.0], [3.0, 4.0]], "Got one of records"),
        ([(np.array([1.0, 2.0]), 0), (np.array([3.0, 4.0]), 1)], "array in a cell"),
    ],
    ids=["a function that returns records", "pairs of a record and its label"],
)
def test_what_would_be_null_records_alone_is_refused_by_its_type(records, message):
    for columns in (None, NAMES):
        with pytest.raises(ConfigurationTypeError, match=message):
            read(records, columns)


def test_one_record_that_is_a_number_or_holds_an_array_is_a_null_record():
    for bad in (1.0, (np.array([1.0, 2.0]), 0)):
        assert np.isnan(read([bad, [1.0, 2.0]])[0]).any()
        assert np.isnan(read([bad])).any()
