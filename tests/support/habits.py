"""What people return from ``load_data``, or give as partitions: types of tables and outcomes."""

import array
import collections
import dataclasses
import datetime
import pathlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from scipy import sparse

NAMES = ("a", "b")
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
NAN = np.nan
_a, _b = X.T
_columns = {"a": _a, "b": _b}
_frame = pd.DataFrame(_columns)
_whole = _frame.astype(int)
_table = pa.table(_columns)
_day = datetime.date(2024, 2, 29)

Make = Callable[[], Any]


class Row(NamedTuple):
    """A record with names."""

    a: float
    b: float


@dataclasses.dataclass
class Point:
    """A record of another kind, with names."""

    a: float
    b: float


class OtherRow(NamedTuple):
    """A record without one of the columns."""

    a: float
    c: float


class Tensor:
    """What a tensor is to NumPy."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the values, if there are any."""
        if self.values is None:
            raise RuntimeError("7.891 is on another device")
        return self.values


class Relation:
    """A table of a library that is not known here, which hands over its columns as Arrow does."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the columns."""
        return _table.__arrow_c_stream__(requested_schema)


def hub(**columns: Any) -> datasets.Dataset:
    """Return a data set as flwr-datasets' partitioners return it."""
    return datasets.Dataset.from_dict(columns)


def pandas_of(cells: Any) -> pd.DataFrame:
    """Return a table of two columns, the first with these cells."""
    return pd.DataFrame({"a": cells, "b": _b})


def polars_of(cells: Any) -> pl.DataFrame:
    """Return a table as `pandas_of`."""
    return pl.DataFrame({"a": cells, "b": _b})


def arrow_of(cells: Any) -> pa.Table:
    """Return a table as `pandas_of`."""
    return pa.table({"a": cells, "b": _b})


READ: dict[str, Make] = {
    "array": lambda: X,
    "float16": lambda: X.astype(np.float16),
    "float32": lambda: X.astype(np.float32),
    "long double": lambda: X.astype(np.longdouble),
    "big-endian": lambda: X.astype(">f8"),
    "columns first": lambda: np.asfortranarray(X),
    "negative strides": lambda: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "read-only": lambda: np.frombuffer(X.tobytes()).reshape(X.shape),
    "matrix": lambda: np.matrix(X),
    "integers": lambda: X.astype(np.uint64),
    "complex": lambda: X.astype(complex),
    "objects": lambda: X.astype(object),
    "text": lambda: X.astype(str),
    "bytes": lambda: X.astype(str).astype(bytes),
    "memoryview": lambda: memoryview(X),
    "tensor": lambda: Tensor(X),
    "array of rows": lambda: np.array([None, *map(tuple, X)], dtype=object)[1:],
    "structured": lambda: _frame.to_records(index=False).view(np.ndarray),
    "record array": lambda: _frame.to_records(index=False),
    "lists": X.tolist,
    "tuples": lambda: tuple(map(tuple, X)),
    "arrays in a list": lambda: list(X),
    "deque": lambda: collections.deque(X.tolist()),
    "namedtuples": lambda: [Row(*row) for row in X],
    "dataclasses": lambda: [Point(*row) for row in X],
    "dicts": lambda: [dict(zip(NAMES, row, strict=True)) for row in X],
    "rows of pandas": lambda: [row for _, row in _frame.iterrows()],
    "itertuples": lambda: list(_frame.itertuples(index=False)),
    "rows of NumPy": lambda: list(_frame.to_records(index=False)),
    "dict of arrays": lambda: dict(_columns),
    "dict of lists": lambda: {name: cells.tolist() for name, cells in _columns.items()},
    "dict of series": lambda: dict(_frame),
    "dict of pyarrow": lambda: {
        name: pa.array(cells) for name, cells in _columns.items()
    },
    "dict of polars": lambda: {
        name: pl.Series(cells) for name, cells in _columns.items()
    },
    "dict of extensions": lambda: {
        name: pd.array(cells) for name, cells in _columns.items()
    },
    "pandas": lambda: _frame,
    "pandas float32": lambda: _frame.astype(np.float32),
    "pandas int64": lambda: _whole,
    "pandas Int64": lambda: _whole.astype("Int64"),
    "pandas Float64": lambda: _frame.astype("Float64"),
    "pandas string": lambda: _frame.astype("string"),
    "pandas str": lambda: _frame.astype(str),
    "pandas object": lambda: _frame.astype(object),
    "pandas category": lambda: _whole.astype("category"),
    "pandas sparse": lambda: _frame.astype(pd.SparseDtype(float)),
    "pandas pyarrow": lambda: _frame.convert_dtypes(dtype_backend="pyarrow"),
    "pandas decimals": lambda: pandas_of([Decimal(x) for x in _a.tolist()]),
    "pandas mixed": lambda: _whole.astype({"a": float}),
    "pandas index": lambda: _frame.set_index(pd.Index([9, 9, 7, 8])),
    "polars": lambda: pl.DataFrame(_columns),
    "polars integers": lambda: pl.DataFrame(_columns).cast(pl.Int64),
    "polars text": lambda: pl.DataFrame(_columns).cast(pl.String),
    "polars decimals": lambda: pl.DataFrame(_columns).cast(pl.Decimal(10, 2)),
    "polars categories": lambda: polars_of(
        pl.Series(["1", "3", "5", "7"], dtype=pl.Categorical)
    ),
    "pyarrow": lambda: _table,
    "pyarrow batch": lambda: pa.RecordBatch.from_pydict(_columns),
    "pyarrow chunks": lambda: pa.concat_tables([_table.slice(0, 1), _table.slice(1)]),
    "pyarrow decimals": lambda: arrow_of(pa.array(_a).cast(pa.decimal128(9, 3))),
    "pyarrow text": lambda: arrow_of(pa.array(["1", "3", "5", "7"])),
    "pyarrow dictionary": lambda: arrow_of(pa.array(_a).dictionary_encode()),
    "Arrow's protocol": Relation,
    "datasets": lambda: hub(**_columns),
    "datasets numpy": lambda: hub(**_columns).with_format("numpy"),
    "datasets pandas": lambda: hub(**_columns).with_format("pandas"),
    "datasets columns": lambda: hub(**_columns, label=list("wxyz")).with_format(
        "numpy", columns=list(NAMES)
    ),
    "datasets sorted": lambda: hub(**{k: v[::-1] for k, v in _columns.items()}).sort(
        "a"
    ),
    "datasets selected": lambda: hub(
        **{k: [0.0, *v] for k, v in _columns.items()}
    ).select(range(1, 5)),
    "csr": lambda: sparse.csr_array(X),
    "csc": lambda: sparse.csc_matrix(X),
    "coo": lambda: sparse.coo_array(X),
    "dok": lambda: sparse.dok_matrix(X),
    "chunks": lambda: lambda: [_frame[:1], pl.DataFrame(_frame[1:].to_dict("list"))],
}
"""Each gives the records `X`, in a simulation and at a node."""

_lacking = np.array([[NAN, 2.0], [3.0, 4.0], [5.0, 6.0], [0.0, 8.0]])
NULL: dict[str, tuple[Make, Any]] = {
    "pandas Int64": (
        lambda: pandas_of(pd.array([None, 3, 5, 0], dtype="Int64")),
        _lacking,
    ),
    "pandas boolean": (
        lambda: pandas_of(pd.array([None, True, True, False], dtype="boolean")),
        [[NAN, 2], [1, 4], [1, 6], [0, 8]],
    ),
    "pandas pyarrow": (
        lambda: pandas_of(
            pd.array([None, 3, 5, 0], dtype=pd.ArrowDtype(pa.decimal128(9, 2)))
        ),
        _lacking,
    ),
    "pandas category": (
        lambda: pandas_of(pd.Categorical([None, "3", "5", "0"])),
        _lacking,
    ),
    "pandas odd cells": (lambda: pandas_of([_day, "3", Decimal(5), 0]), _lacking),
    "polars": (lambda: polars_of([None, 3, 5, 0]), _lacking),
    "polars decimals": (
        lambda: polars_of([None, Decimal(3), Decimal(5), Decimal(0)]),
        _lacking,
    ),
    "pyarrow": (lambda: arrow_of(pa.array([None, 3, 5, 0])), _lacking),
    "pyarrow nulls": (lambda: arrow_of(pa.nulls(4)), [[NAN, b] for b in _b]),
    "datasets": (lambda: hub(a=[None, 3, 5, 0], b=_b), _lacking),
    "dict of lists": (lambda: {"a": [None, "3", 5, False], "b": _b.tolist()}, _lacking),
    "dicts": (
        lambda: [
            {"b": 2},
            {"b": "4", "a": 3, "c": 9},
            {"a": 5.0, "b": 6},
            {"a": 0, "b": 8},
        ],
        _lacking,
    ),
    "odd rows": (
        lambda: [None, {"a": 1}, "ab", [3, 4]],
        [[NAN, NAN], [1, NAN], [NAN] * 2, [3, 4]],
    ),
    "objects": (
        lambda: np.array([[_day, 2], ["3", 4], [5, 6], [0, 8]], dtype=object),
        _lacking,
    ),
}
"""A record is a null record by itself; a simulation says so, and a node counts the others."""

EMPTY: dict[str, Make] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "array": lambda: np.empty((0, 2)),
    "array of nothing": lambda: np.array([]),
    "pandas": lambda: _frame[:0],
    "pandas objects": lambda: pd.DataFrame(columns=list(NAMES)),
    "pandas of nothing": pd.DataFrame,
    "polars": lambda: pl.DataFrame(_columns).clear(),
    "polars of nothing": pl.DataFrame,
    "pyarrow": lambda: _table[:0],
    "pyarrow of nothing": lambda: pa.table({}),
    "datasets": lambda: hub(**_columns).select([]),
    "datasets of nothing": hub,
    "structured": lambda: _frame[:0].to_records(index=False),
    "csr": lambda: sparse.csr_array((0, 2)),
}
"""Clients without records."""

_TABLE = "as a two-dimensional table of real numbers. Got "
_LIST = "Expected a list of records"
_COLUMN = "Expected the column 'a' as numbers. Got "
REFUSED: dict[str, tuple[Make, str]] = {
    "pair": (
        lambda: (X, _a),
        f"{_LIST}, each with its cells. Got one that holds a table",
    ),
    "pair in a list": (
        lambda: [X, _a],
        f"{_LIST}, .* a ndarray: return the records alone",
    ),
    "pair with nothing": (lambda: (X, None), f"{_LIST}, .* a ndarray"),
    "pair of pandas": (lambda: (_frame, _frame.a), f"{_LIST}, .* a DataFrame"),
    "pair of lists": (lambda: ([[1.0, 2.0]] * 9, [0] * 9), f"{_LIST} of 2 cells each"),
    "two tables": (lambda: [X, X], f"{_LIST}, .* a ndarray"),
    "a data set in a list": (lambda: [hub(**_columns)], f"{_LIST}, .* a Dataset"),
    "a sparse matrix in a list": (
        lambda: [sparse.csr_array(X)],
        f"{_LIST}, .* a csr_array",
    ),
    "columns": (
        lambda: [_a, _b],
        f"{_LIST} of 2 cells each. Got sequences of another length",
    ),
    "columns of lists": (lambda: [[1.0] * 9, [2.0] * 9], f"{_LIST} of 2 cells each"),
    "columns of pandas": (lambda: [_frame.a, _frame.b], f"{_LIST} of 2 cells each"),
    "columns of polars": (
        lambda: [pl.Series(_a), pl.Series(_b)],
        f"{_LIST} of 2 cells each",
    ),
    "wide arrays": (lambda: list(np.ones((9, 3))), f"{_LIST} of 2 cells each"),
    "other namedtuples": (
        lambda: [OtherRow(*row) for row in X],
        "column 'b' in OtherRow",
    ),
    "series": (lambda: _frame.a, f"{_TABLE}Series instead: a column is no table"),
    "series of objects": (lambda: pd.Series([[1.0, 2.0]]), f"{_TABLE}Series"),
    "index": (lambda: pd.Index(_a), f"{_TABLE}Index"),
    "extension": (lambda: pd.array([1, 2]), f"{_TABLE}IntegerArray"),
    "groups": (lambda: _frame.groupby("a"), f"{_TABLE}DataFrameGroupBy"),
    "more columns": (lambda: _frame.assign(c=1.0), "with the columns"),
    "no names": (lambda: pd.DataFrame(X), "with the columns .* Got .'<int>'"),
    "names in two lines": (
        lambda: pd.DataFrame(
            X, columns=pd.MultiIndex.from_tuples([("a", "x"), ("b", "x")])
        ),
        "with the columns .* Got .'<tuple>'",
    ),
    "dates": (
        lambda: pandas_of(pd.date_range("2020", periods=4)),
        f"{_COLUMN}datetime64",
    ),
    "times with a zone": (
        lambda: pandas_of(pd.date_range("2020", periods=4, tz="UTC")),
        f"{_COLUMN}datetime64.*UTC",
    ),
    "periods": (
        lambda: pandas_of(pd.period_range("2020", periods=4, freq="M")),
        f"{_COLUMN}period",
    ),
    "durations": (
        lambda: pandas_of(pd.to_timedelta([1, 2, 3, 4])),
        f"{_COLUMN}timedelta64",
    ),
    "intervals": (lambda: pandas_of(pd.interval_range(0, 4)), f"{_COLUMN}interval"),
    "categories of dates": (
        lambda: pandas_of(pd.Categorical(pd.date_range("2020", periods=4))),
        f"{_COLUMN}category of datetime64",
    ),
    "dates of pandas and pyarrow": (
        lambda: pandas_of(pd.array([_day] * 4, dtype=pd.ArrowDtype(pa.date32()))),
        f"{_COLUMN}date32",
    ),
    "dates of polars": (lambda: polars_of([_day] * 4), f"{_COLUMN}Date"),
    "lists of polars": (lambda: polars_of([[1]] * 4), rf"{_COLUMN}List\(Int64\)"),
    "lazy": (
        lambda: pl.LazyFrame(_columns),
        rf"{_TABLE}LazyFrame instead: call collect\(\)",
    ),
    "series of polars": (lambda: pl.Series(_a), f"{_TABLE}Series"),
    "dates of pyarrow": (lambda: arrow_of(pa.array([_day] * 4)), f"{_COLUMN}date32"),
    "lists of pyarrow": (lambda: arrow_of(pa.array([[1]] * 4)), f"{_COLUMN}list"),
    "chunked array": (lambda: pa.chunked_array([_a]), f"{_TABLE}ChunkedArray"),
    "reader": (_table.to_reader, "Got the iterable itself, a RecordBatchReader"),
    "splits": (
        lambda: datasets.DatasetDict(train=hub(**_columns)),
        f"{_TABLE}DatasetDict",
    ),
    "stream": (
        lambda: hub(**_columns).to_iterable_dataset(),
        f"{_TABLE}IterableDataset",
    ),
    "transform": (lambda: hub(**_columns).with_transform(dict), "without a transform"),
    "dates of datasets": (lambda: hub(a=[_day] * 4, b=_b), f"{_COLUMN}date32"),
    "lists of datasets": (lambda: hub(a=[[1.0]] * 4, b=_b), f"{_COLUMN}list"),
    "another column": (
        lambda: hub(a=_a, c=_b),
        "Expected the column 'b' once. Got it 0 times",
    ),
    "wide csr": (
        lambda: sparse.csr_array(np.eye(3)),
        r"Got shape \(3, 3\) of csr_array",
    ),
    "flat coo": (lambda: sparse.coo_array(_a), r"Got shape \(4,\) of coo_array"),
    "dict of cells": (
        lambda: {"a": 1.0, "b": 2.0},
        "column 'a' as one cell for each record",
    ),
    "dict of tables": (
        lambda: {"a": X, "b": X},
        "column 'a' as one cell for each record",
    ),
    "dict of masks": (
        lambda: {"a": np.ma.masked_array(_a, _a > 2), "b": _b},
        "column 'a' as one cell for each record, and no mask",
    ),
    "dict of two lengths": (
        lambda: {"a": [1.0, 2.0], "b": [1.0]},
        "columns of one length",
    ),
    "masked": (lambda: np.ma.masked_array(X, X > 2), "masked array"),
    "masked records": (
        lambda: np.ma.masked_array(_frame.to_records(index=False)),
        "masked array",
    ),
    "one dimension": (lambda: _a, r"two-dimensional .* Got shape \(4,\)"),
    "three dimensions": (lambda: X[None], r"two-dimensional .* Got shape \(1, 4, 2\)"),
    "no dimension": (lambda: np.array(1.0), r"two-dimensional .* Got shape \(\)"),
    "numbers in a buffer": (lambda: array.array("d", [1.0, 2.0]), r"Got shape \(2,\)"),
    "durations of NumPy": (lambda: X.astype("m8[s]"), "Got dtype timedelta64"),
    "a range": (lambda: range(5), f"{_TABLE}range"),
    "a set": (lambda: {1.0, 2.0}, f"{_TABLE}set"),
    "values": (_columns.values, f"{_TABLE}dict_values"),
    "a name of a file": (
        lambda: "records.csv",
        rf"{_TABLE}str instead: read a file by load_table\(path\)",
    ),
    "a path": (lambda: pathlib.Path("records.csv"), f"{_TABLE}PosixPath"),
    "bytes": (lambda: b"1,2", f"{_TABLE}bytes"),
    "nothing": (lambda: None, f"{_TABLE}NoneType"),
    "a number": (lambda: 7, r"Got shape \(\)"),
    "an object": (object, f"{_TABLE}object"),
    "a generator": (lambda: (row for row in X), "Got the iterable itself, a generator"),
    "zip": (lambda: zip(_a, _b, strict=True), "Got the iterable itself, a zip"),
    "a class": (lambda: Point, "Got the class Point"),
    "a tensor elsewhere": (
        lambda: Tensor(None),
        "Got Tensor instead, which NumPy cannot read",
    ),
}
"""Each with its error: no record counts, and none decides it."""
