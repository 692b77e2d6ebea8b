"""Tables and columns of other libraries, told apart by their types alone.

Tables at the end of this module name the reader of each type. No library is imported
to recognise its objects: an object exists only after its library was imported. A wrong
type is an error, because the loader's code chooses types. A wrong cell is a missing
cell and never an error, because a single record would decide it.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import CellArray
from flower_kmeans.errors import ConfigurationTypeError, DataError

_ALONE = "return the records alone, without labels or weights"
_FAR = 4  # a list of more cells than so many records have is not a record


@dataclass(frozen=True, eq=False)
class FrameColumn:
    """A column of a table.

    Attributes
    ----------
    kind : str
        The library's name of the type, for errors.
    cells : callable
        Returns the cells, (n,). No cell depends on other cells.
    plain : callable, optional
        Returns the cells as real numbers, (n,), faster than ``cells``.
    may_be_numbers : bool, default: True
        Whether cells of this type can be numbers, or text that spells numbers.
    may_be_dates : bool, default: True
        Whether cells of this type can be dates, or text that spells dates. It is true
        for numbers: libraries make a column of NaN if all its dates are missing.
    """

    kind: str
    cells: Callable[[], CellArray]
    plain: Callable[[], CellArray] | None = None
    may_be_numbers: bool = True
    may_be_dates: bool = True


@dataclass(frozen=True, eq=False)
class ForeignFrame:
    """A table in memory.

    Attributes
    ----------
    names : tuple of str
        Names of the m columns. A name that is not text may be a record's value, so its
        type takes its place.
    n_rows : int
        Number of records, n.
    column : callable
        Returns the column with a given index, from 0.
    whole : callable, optional
        Returns all columns as one array of numbers, (n, m). Only tables whose columns
        have one numeric type have it.
    """

    names: tuple[str, ...]
    n_rows: int
    column: Callable[[int], FrameColumn]
    whole: Callable[[], CellArray] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows and no columns, as libraries show an empty table."""
        return not self.names and self.n_rows == 0


# --------------------------------------------------------------------------- dispatch


def frame_of(table: Any) -> ForeignFrame | None:
    """Return the frame of a table of a known type, or ``None`` for any other object.

    Raises
    ------
    ConfigurationTypeError, DataError
        If the object's type is never a table, or the table cannot be read.
    """
    require_table_type(table)
    reader = _reader_in(_FRAMES, table)
    if reader is not None:
        frame: ForeignFrame = reader(table)
        return frame
    if isinstance(table, np.ndarray) and table.dtype.names is not None:
        return _structured(table)
    # One of SciPy's sparse matrices is a dict.
    if isinstance(table, Mapping) and not is_sparse(table):
        return _mapping(table)
    if hasattr(table, "__arrow_c_stream__"):
        return _by_protocol(table)
    return None


def column_of(cells: Any) -> FrameColumn | None:
    """Return a column of any type, or ``None`` if the object is not a column."""
    if is_masked(cells):
        return None  # the array without its mask would show hidden cells
    if is_list(cells) and not _reader_in(_COLUMNS, cells):

        def listed() -> CellArray:
            return np.fromiter(cells, dtype=object, count=len(cells))

        return FrameColumn("list", listed)
    reader = _reader_in(_COLUMNS, cells)
    if reader is not None:
        column: FrameColumn = reader(cells)
        return column
    try:
        array = np.asarray(cells)
    except Exception:  # an object of the loader may raise anything
        return None
    if array.ndim == 1:
        return _numpy_column(array)
    return None


def require_table_type(records: Any) -> None:
    """Refuse an object whose type is never a table."""
    for module, name, advice in _NO_TABLES:
        if _is_a(records, module, name):
            raise _refusal(type(records).__name__, advice)
    if isinstance(records, str | bytes | bytearray | os.PathLike):
        # NumPy would make one cell of a text.
        raise _refusal(type(records).__name__, "read a file by load_table(path)")


def require_array_type(records: Any) -> None:
    """Refuse an object that NumPy would store as one cell instead of reading it."""
    has_protocol = any(hasattr(records, name) for name in _ARRAY_PROTOCOLS)
    if not (has_protocol or np.isscalar(records) or _is_buffer(records)):
        raise _refusal(
            type(records).__name__, "return an array, a DataFrame or a list of records"
        )


def require_rows(
    rows: Sequence[Any], n_features: int, columns: Sequence[str] | None
) -> None:
    """Refuse a list of objects that are not records, by their types.

    A table within a list, or a class that names its cells, comes from the loader's code
    and never from a malformed record. The same holds for a list of columns, which all
    have the same wrong length, and for pairs of a record and its label.

    Raises
    ------
    ConfigurationTypeError, DataError
        If the rows are not records, or their class lacks a column.
    """
    examples = {type(row): row for row in rows}
    for kind, row in examples.items():
        names = _fields_of(row)
        if names is not None:
            _require_fields(kind.__name__, names, n_features, columns)
        is_wide = isinstance(row, np.ndarray) and any(map(_is_wide, rows))
        if is_wide or _is_table(row):
            raise ConfigurationTypeError(
                "Expected a list of records, each with its cells. Got one that holds a table, a "
                f"{kind.__name__}: {_ALONE}."
            )
    if len(rows) > 1 and all(map(_holds_arrays, rows)):
        raise ConfigurationTypeError(
            "Expected a list of records, each with its cells. Got records with an array in a cell, "
            f"as a pair of a record and its label has: {_ALONE}."
        )
    if _are_columns(rows, n_features):
        raise ConfigurationTypeError(
            f"Expected a list of records of {n_features} cells each. Got sequences of another "
            "length, which is the same for all. Give columns as a dict, or by np.column_stack, and "
            f"{_ALONE}."
        )


def row_cells(row: Any, columns: Sequence[str] | None) -> Any:
    """Return the cells of a record that names them, in the order of ``columns``.

    Without ``columns`` they keep the record's own order. A missing cell is None. A
    record without names is returned unchanged.
    """
    named = _named_cells(row)
    if named is None:
        return row
    if columns is None:
        return list(named.values())
    return [named.get(name) for name in columns]


def is_masked(value: Any) -> bool:
    """Return whether a value is a masked array of NumPy."""
    return _is_a(value, "numpy.ma", "MaskedArray")


def is_sparse(value: Any) -> bool:
    """Return whether a value is a sparse matrix or sparse array of SciPy."""
    return any(_is_a(value, *each) for each in _SPARSE)


_FrameReader = Callable[[Any], Any]


def _reader_in(
    readers: Iterable[tuple[str, str, _FrameReader]], value: Any
) -> _FrameReader | None:
    for module, name, reader in readers:
        if _is_a(value, module, name):
            return reader
    return None


def _is_a(value: Any, module: str, name: str) -> bool:
    """Return whether a value is an instance of a class, without importing its module."""
    # Another thread may be importing the module, which then may lack the class.
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _refusal(got: str, advice: str) -> ConfigurationTypeError:
    return ConfigurationTypeError(
        f"Expected records as a two-dimensional table of real numbers. Got {got} instead: {advice}."
    )


def _text(names: Iterable[Any]) -> tuple[str, ...]:
    return tuple(n if isinstance(n, str) else f"<{type(n).__name__}>" for n in names)


def is_list(records: Any) -> bool:
    """Return whether records are a sequence of rows, and neither an array nor a text."""
    if isinstance(records, list | tuple):
        return True
    is_array = hasattr(records, "__array__") or _is_buffer(records)
    is_other = is_array or isinstance(records, range | str)
    return isinstance(records, Sequence) and not is_other


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


# --------------------------------------------------------------------------- rows


def _is_wide(row: Any) -> bool:
    return isinstance(row, np.ndarray) and row.ndim > 1


def _is_table(row: Any) -> bool:
    return _reader_in(_FRAMES, row) is not None or is_sparse(row)


def _holds_arrays(row: Any) -> bool:
    """Return whether a record has an array, or a tensor, in place of a cell."""
    if not isinstance(row, list | tuple):
        return False
    arrays = [cell for cell in row if hasattr(cell, "__array__")]
    return any(getattr(array, "ndim", 0) > 0 for array in arrays)


def _are_columns(rows: Sequence[Any], n_features: int) -> bool:
    """Return whether rows are columns, or a pair of records and labels.

    Columns all have the same length, which differs from a record's. Lists must be much
    longer than a record, because text may be split into too many cells. A single list
    may be a malformed record.
    """
    are_arrays = all(_is_array(row) for row in rows)
    are_lists = all(isinstance(row, list | tuple) for row in rows)
    if not are_arrays and not are_lists:
        return False
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        return False
    (length,) = lengths
    if are_arrays:
        return length != n_features and (len(rows) > 1 or n_features == 1)
    return length > _FAR * n_features and len(rows) > 1


def _is_array(row: Any) -> bool:
    if isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype.names is None:
        return True
    return _reader_in(_COLUMNS, row) is not None


def _fields_of(row: Any) -> tuple[str, ...] | None:
    """Return the names of a record's cells, or ``None`` if its type declares none."""
    if isinstance(row, np.void):
        return row.dtype.names
    if _is_a(row, "sqlite3", "Row"):
        return tuple(row.keys())
    if isinstance(row, Sequence) and not isinstance(row, str | bytes):
        # `_fields` of named tuples and SQLAlchemy's rows, `__fields__` of PySpark's rows
        for attribute in ("_fields", "__fields__"):
            names: Any = getattr(row, attribute, None)
            is_listed = isinstance(names, tuple | list)
            if is_listed and all(isinstance(name, str) for name in names):
                return tuple(names)
        return None
    if dataclasses.is_dataclass(row):
        return tuple(field.name for field in dataclasses.fields(row))
    return None


def _require_fields(
    kind: str, names: Sequence[str], n_features: int, columns: Sequence[str] | None
) -> None:
    if columns is None and len(names) != n_features:
        raise DataError(
            f"Expected records with {n_features} columns. Got {len(names)} in {kind} instead."
        )
    for name in columns or ():
        if name not in names:
            raise DataError(
                f"Expected the column {name!r} in {kind}. Got {list(names)}."
            )


def _named_cells(row: Any) -> Mapping[Any, Any] | None:
    if isinstance(row, Mapping):
        return row
    if _is_a(row, "pandas", "Series"):
        # A row of a DataFrame is labelled by column names, other series by numbers.
        labels = row.index.tolist()
        has_names = all(isinstance(label, str) for label in labels)
        if has_names:
            return dict(zip(labels, row.tolist(), strict=True))
        return None
    names = _fields_of(row)
    if names is None:
        return None
    if isinstance(row, np.void):
        return {name: row[name] for name in names}
    if isinstance(row, Sequence):
        return dict(zip(names, row, strict=False))
    return {name: getattr(row, name, None) for name in names}


# ------------------------------------------------------------------------- NumPy, dicts


def _numpy_column(array: NDArray[Any]) -> FrameColumn:
    kind = array.dtype.kind
    return FrameColumn(
        str(array.dtype),
        lambda: array,
        may_be_numbers=kind not in "mMV",
        may_be_dates=kind not in "mV",
    )


def _structured(array: NDArray[Any]) -> ForeignFrame:
    if is_masked(array):
        raise ConfigurationTypeError(
            "Expected records without a mask. Got a masked array instead: remove masked rows."
        )
    if array.ndim != 1:
        raise DataError(
            "Expected records as a two-dimensional array, or one-dimensional with named fields. "
            f"Got shape {array.shape} with named fields instead."
        )
    return _frame(array, array.dtype.names or (), len(array))


def _mapping(table: Mapping[Any, Any]) -> ForeignFrame:
    names = list(table)
    first = table[names[0]] if names else ()
    n_rows = len(first) if hasattr(first, "__len__") else 1
    return _frame(table, names, n_rows)


def _frame(table: Any, names: Sequence[Any], n_rows: int) -> ForeignFrame:
    """Return the frame of a table whose columns are read by name."""
    shown = _text(names)

    def column(i: int) -> FrameColumn:
        cells = table[names[i]]
        found = column_of(cells)
        if found is None:
            raise DataError(
                f"Expected the column {shown[i]!r} as one cell for each record, and no mask: real "
                f"numbers, text or dates. Got {type(cells).__name__}."
            )
        return found

    return ForeignFrame(shown, n_rows, column)


# --------------------------------------------------------------------------- pandas


def _pandas_frame(table: Any) -> ForeignFrame:
    types = list(set(table.dtypes))
    is_one = len(types) == 1 and isinstance(types[0], np.dtype)
    is_numeric = is_one and types[0].kind in "biuf"

    def column(i: int) -> FrameColumn:
        # by index, because a name may occur twice
        return _pandas_column(table.iloc[:, i])

    as_array = table.to_numpy if is_numeric else None
    return ForeignFrame(_text(table.columns), len(table), column, as_array)


def _pandas_column(series: Any) -> FrameColumn:
    import pandas

    dtype = series.dtype
    if isinstance(dtype, np.dtype):
        return _numpy_column(series.to_numpy())
    if isinstance(dtype, pandas.ArrowDtype):
        return _arrow_column(series.array.__arrow_array__())
    if isinstance(dtype, pandas.CategoricalDtype):
        return _pandas_categories(series)
    kind = str(dtype)
    if isinstance(dtype, pandas.DatetimeTZDtype):
        return FrameColumn(kind, lambda: _local_times(series), may_be_numbers=False)
    if isinstance(dtype, pandas.PeriodDtype):
        return FrameColumn(
            kind, lambda: _first_days(series.array), may_be_numbers=False
        )
    if isinstance(dtype, pandas.SparseDtype):
        return _numpy_column(np.asarray(series))

    def cells() -> CellArray:
        return np.asarray(series.to_numpy(dtype=object, na_value=None))

    def plain() -> CellArray:
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))

    is_number = getattr(dtype, "kind", "O") in "biuf"
    is_interval = isinstance(dtype, pandas.IntervalDtype)
    return FrameColumn(
        kind,
        cells,
        plain if is_number else None,
        may_be_numbers=not is_interval,
        may_be_dates=not is_interval,
    )


def _pandas_categories(series: Any) -> FrameColumn:
    """Return a pandas column of categories.

    pandas' own array would turn integers beside a missing cell into floats.
    """
    listed = _pandas_column(series.cat.categories.to_series())

    def cells() -> CellArray:
        values = listed.cells()
        found = np.empty(len(values) + 1, dtype=object)
        if values.dtype.kind in "biufUS":
            found[:-1] = values.tolist()
        else:
            found[:-1] = list(values)
        found[-1] = None  # where the code is -1
        return np.asarray(found[series.cat.codes.to_numpy()])

    return replace(listed, kind=f"category of {listed.kind}", cells=cells, plain=None)


def _local_times(series: Any) -> CellArray:
    """Return times with a zone as local times of that zone, NaT where impossible."""
    try:
        return np.asarray(series.dt.tz_localize(None))
    except Exception:  # a time is near the ends of pandas' range
        times = [_local_time(series, i) for i in range(len(series))]
        return np.array(times, "datetime64[ns]")


def _local_time(series: Any, i: int) -> Any:
    try:
        one = series.iloc[i : i + 1]
        return one.dt.tz_localize(None).to_numpy()[0]
    except Exception:  # as above
        return np.datetime64("NaT")


def _first_days(periods: Any) -> CellArray:
    # Day numbers, because pandas cannot convert every period to a time.
    days = periods.asfreq("D", how="start").asi8.astype("datetime64[D]")
    days[np.asarray(periods.isna())] = np.datetime64("NaT")
    return np.asarray(days)


# --------------------------------------------------------------------------- polars


def _polars_frame(table: Any) -> ForeignFrame:
    def column(i: int) -> FrameColumn:
        return _polars_column(table.to_series(i))

    return ForeignFrame(tuple(table.columns), table.height, column)


def _polars_column(series: Any) -> FrameColumn:
    import polars

    dtype = series.dtype

    def listed() -> CellArray:
        return np.fromiter(series.to_list(), dtype=object, count=len(series))

    def times() -> CellArray:
        has_zone = getattr(dtype, "time_zone", None) is not None
        if not has_zone:
            return np.asarray(series.to_numpy())
        local = _known_times(series).dt.replace_time_zone(None)
        return np.asarray(local.to_numpy())

    def floats() -> CellArray:
        return np.asarray(series.cast(polars.Float64).to_numpy())

    if dtype.is_float():
        return FrameColumn(str(dtype), lambda: np.asarray(series.to_numpy()))
    if dtype.is_integer() or dtype == polars.Boolean:
        return FrameColumn(str(dtype), listed, floats)
    if dtype.is_temporal():
        is_date = dtype in (polars.Date, polars.Datetime)
        return FrameColumn(
            str(dtype), times, may_be_numbers=False, may_be_dates=is_date
        )
    is_single = not dtype.is_nested()
    return FrameColumn(
        str(dtype), listed, may_be_numbers=is_single, may_be_dates=is_single
    )


def _known_times(series: Any) -> Any:
    """Return times of polars, null where their conversion would end the process."""
    import polars

    unit = series.dtype.time_unit
    first, last = _polars_days(unit)
    lower = int(np.datetime64(first, unit).astype(np.int64))
    upper = int(np.datetime64(last, unit).astype(np.int64))
    numbers = series.to_physical()
    is_known = (numbers >= lower) & (numbers <= upper)
    none = polars.Series([None] * len(series), dtype=series.dtype)
    return series.zip_with(is_known.fill_null(False), none)


def _polars_days(unit: str) -> tuple[str, str]:
    # The range of nanoseconds in 64 bits, or else of Python's calendar.
    if unit == "ns":
        return "1678-01-01", "2262-01-01"
    return "0001-01-02", "9999-12-30"


# --------------------------------------------------------------------------- pyarrow


def _arrow_frame(table: Any) -> ForeignFrame:
    def column(i: int) -> FrameColumn:
        return _arrow_column(table.column(i))

    return ForeignFrame(tuple(table.schema.names), table.num_rows, column)


def _arrow_column(column: Any) -> FrameColumn:
    import pyarrow
    from pyarrow import compute, types

    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        column = column.cast(kind.storage_type)
    column = text_as_bytes(column)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    found = column.type

    def array() -> CellArray:
        return np.asarray(column.to_numpy(**any_copy(column)))

    def integers() -> CellArray:
        # pyarrow's array would turn integers beside a missing cell into floats.
        return np.fromiter(column.to_pylist(), dtype=object, count=len(column))

    def times() -> CellArray:
        local = compute.local_timestamp(column)  # times of the column's own zone
        found = np.array(local.to_numpy(**any_copy(local)))
        # The conversion adds hours to NaT, which then looks like a time.
        stored = column.to_numpy(**any_copy(column))
        found[np.isnat(stored)] = np.datetime64("NaT")
        return np.asarray(found)

    if types.is_integer(found):
        return FrameColumn(str(kind), integers, array)
    is_date = types.is_date(found) or types.is_timestamp(found)
    is_other = types.is_nested(found) or types.is_temporal(found)
    has_zone = types.is_timestamp(found) and found.tz is not None
    return FrameColumn(
        str(kind),
        times if has_zone else array,
        may_be_numbers=not is_other,
        may_be_dates=is_date or not is_other,
    )


def text_as_bytes(column: Any) -> Any:
    """Return a column of pyarrow, with text as bytes.

    A single cell that is not UTF-8 would otherwise be an error about the whole column.
    `as_number` reads bytes.
    """
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        kind = column.type.value_type
    else:
        kind = column.type
    is_text = str(kind) in ("string", "large_string", "string_view")
    if is_text:
        return column.cast(pyarrow.large_binary())
    return column


def any_copy(column: Any) -> dict[str, bool]:
    """Return the options with which a column's ``to_numpy`` may copy."""
    # Chunked columns always copy if they must, and do not take this option.
    if hasattr(column, "chunks"):
        return {}
    return {"zero_copy_only": False}


def _by_protocol(table: Any) -> ForeignFrame:
    """Return the frame of a table of any library with ``__arrow_c_stream__``."""
    if isinstance(table, Iterator):  # a second pass would find no rows
        raise _refusal(type(table).__name__, "it can be read only once")
    try:
        import pyarrow

        found = pyarrow.table(table)
    except Exception as error:
        raise _refusal(
            type(table).__name__, f"pyarrow cannot read it ({type(error).__name__})"
        ) from None
    return _arrow_frame(found)


# --------------------------------------------------------------------------- datasets


def require_no_transform(dataset: Any) -> None:
    """Refuse a data set whose rows are made by a user's function when they are read."""
    if dataset.format["type"] == "custom":
        raise ConfigurationTypeError(
            "Expected a datasets.Dataset without a transform: make its columns by map(). "
            "Got one with a transform."
        )


def _hub_frame(dataset: Any) -> ForeignFrame:
    require_no_transform(dataset)
    names = tuple(dataset.column_names)

    def column(i: int) -> FrameColumn:
        chosen = dataset.select_columns([names[i]]).with_format("arrow")
        return _arrow_column(chosen[:].column(0))

    return ForeignFrame(names, len(dataset), column)


# --------------------------------------------------------------------------- by type

_ARRAY_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__")
_SPARSE = (("scipy.sparse", "sparray"), ("scipy.sparse", "spmatrix"))
_FRAMES: tuple[tuple[str, str, _FrameReader], ...] = (
    ("pandas", "DataFrame", _pandas_frame),
    ("polars", "DataFrame", _polars_frame),
    ("pyarrow", "Table", _arrow_frame),
    ("pyarrow", "RecordBatch", _arrow_frame),
    ("datasets", "Dataset", _hub_frame),
)
_COLUMNS: tuple[tuple[str, str, _FrameReader], ...] = (
    ("pandas", "Series", _pandas_column),
    ("pandas", "Index", lambda index: _pandas_column(index.to_series())),
    (
        "pandas.api.extensions",
        "ExtensionArray",
        lambda a: _pandas_column(_series_of(a)),
    ),
    ("polars", "Series", _polars_column),
    ("pyarrow", "ChunkedArray", _arrow_column),
    ("pyarrow", "Array", _arrow_column),
)
_ONE_COLUMN = "a column is no table; give one by to_frame(), or as a dict"
_NO_TABLES = (
    ("pandas", "Series", _ONE_COLUMN),
    ("pandas", "Index", _ONE_COLUMN),
    ("pandas.api.extensions", "ExtensionArray", _ONE_COLUMN),
    ("polars", "Series", _ONE_COLUMN),
    ("pyarrow", "ChunkedArray", _ONE_COLUMN),
    ("pyarrow", "Array", _ONE_COLUMN),
    # A lazy query runs when it is read, and a single record may make it fail.
    ("polars", "LazyFrame", "call collect() first"),
    ("datasets", "DatasetDict", 'choose a split, such as data["train"]'),
    (
        "datasets",
        "IterableDatasetDict",
        "choose a split, and read it into a datasets.Dataset",
    ),
    # Its types may be unknown before its records are read.
    ("datasets", "IterableDataset", "read it into a datasets.Dataset first"),
    ("torch.utils.data", "DataLoader", "return the tensor of the records alone"),
    ("torch.utils.data", "Dataset", "return the tensor of the records alone"),
)


def _series_of(array: Any) -> Any:
    import pandas

    return pandas.Series(array)
