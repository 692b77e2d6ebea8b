"""Users' tables of records as arrays: checked, or with NaN for malformed cells."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.frames import (
    ForeignFrame,
    FrameColumn,
    frame_of,
    is_list,
    is_masked,
    is_sparse,
    require_array_type,
    require_rows,
    row_cells,
)
from flower_kmeans.errors import ConfigurationTypeError, DataError

_CHECK_ROWS = 8_192
_TRUTH = {"true": "1", "false": "0"}
_PLAIN_ROWS = (list, tuple, np.ndarray)
_SINGLE_CELLS = (str, bytes, int, float, complex, np.generic)
# no numbers, although float() accepts some of them
_NOT_NUMBERS = (np.ndarray, np.datetime64, np.timedelta64)


def check_records(
    records: ArrayLike,
    n_features: int | None = None,
    *,
    name: str = "records",
    dtypes: Sequence[DTypeLike] = (np.float64,),
) -> NDArray[Any]:
    """Return records as a finite, C-contiguous array of floats.

    An array that is one already is not copied.

    Parameters
    ----------
    records : array-like of shape (n, d)
        Numbers. n may be 0.
    n_features : int, optional
        The expected width, d.
    name : str
        The name of the records in error messages.
    dtypes : sequence of dtype
        The types to keep. All others are converted to the first of these.

    Returns
    -------
    ndarray of shape (n, d)

    Raises
    ------
    DataError, ConfigurationTypeError
        If the shape is wrong, a value is NaN or infinite, or values are not numbers.
    """
    table = _as_table(records, n_features, name)
    with np.errstate(over="ignore"):
        dtype = table.dtype if table.dtype in dtypes else dtypes[0]
        checked = np.ascontiguousarray(table, dtype)
    bad = first_bad_row(checked)
    if bad is not None:
        raise DataError(
            f"Expected {name} to be finite. Got NaN or infinity in row {bad} instead."
        )
    return checked


def all_records(
    records: Any, n_features: int, columns: Sequence[str] | None = None
) -> NDArray[Any]:
    """Return all rows of a table of numbers, (n, d). Malformed cells are not finite.

    Inside a run nothing visible may depend on a single record (docs/guarantees,
    Theorem 7). One row can turn a whole array into text, complex numbers or objects.
    The cells of such an array are read one by one, by `as_number`, so that row changes
    no other row.

    Parameters
    ----------
    records : array-like of shape (n, d)
        It may name its columns, as the tables of pandas, pyarrow and this library do.
    n_features : int
        The expected width, d.
    columns : sequence of str, optional
        The names that the columns must have, in order, if the records name them.

    Returns
    -------
    ndarray of shape (n, d)
        Real numbers of any type. Often this is the loader's own memory, which may
        still change.

    Raises
    ------
    DataError, ConfigurationTypeError
        If this is not a table, has another width or other columns, holds dates or has a
        mask. No single record decides any of these.
    """
    if hasattr(records, "toarray") and is_sparse(records):
        records = records.toarray()
    frame = frame_of(records)
    if frame is not None:
        return _table_of_frame(frame, n_features, columns)
    check_columns(named_columns(records), columns)
    if is_list(records):
        return _checked_rows(records, n_features, columns)
    array = _as_array(records)
    if array.shape in ((0,), (0, 0)):
        return np.empty((0, n_features))
    if array.ndim == 1 and array.dtype.kind == "O":
        return _checked_rows(array.tolist(), n_features, columns)
    if array.ndim == 2 and array.shape[1] == n_features:
        if array.dtype.kind in "biuf":
            return array
        table = numbers(array)
        if table is not None:
            return table
    return _as_table(array, n_features, "records")


def _as_array(records: Any) -> NDArray[Any]:
    """Return an object other than a list as a NumPy array, or raise an error."""
    if is_masked(records):
        return as_numbers(records, "records")  # its mask is an error
    require_array_type(records)
    try:
        return np.asarray(records)
    except Exception as error:  # for example a tensor on another device
        raise ConfigurationTypeError(
            f"Expected records as a table of real numbers. Got {type(records).__name__} instead, "
            f"which NumPy cannot read ({type(error).__name__})."
        ) from None


def _table_of_frame(
    frame: ForeignFrame, n_features: int, columns: Sequence[str] | None
) -> NDArray[Any]:
    """Return the columns of a table as real numbers, (n, d), NaN for other cells."""
    if frame.is_empty:
        return np.empty((0, n_features))
    check_columns(frame.names, columns)
    if len(frame.names) != n_features:
        raise DataError(
            f"Expected records with {n_features} columns: a table of real numbers, without "
            f"labels. Got {len(frame.names)} instead."
        )
    found = [frame.column(i) for i in range(n_features)]
    for name, column in zip(frame.names, found, strict=True):
        if not column.may_be_numbers:
            raise ConfigurationTypeError(
                f"Expected the column {name!r} as numbers. Got {column.kind}."
            )
    if frame.whole is not None:
        return frame.whole()
    parts = [_floats(column) for column in found]
    if {len(part) for part in parts} != {frame.n_rows}:
        raise DataError("Expected columns of one length.")
    is_short = all(part.dtype == np.float32 for part in parts)
    dtype = np.float32 if is_short else np.float64
    table = np.empty((frame.n_rows, n_features), dtype)
    for i, part in enumerate(parts):
        table[:, i] = part
    return table


def _floats(column: FrameColumn) -> NDArray[Any]:
    cells = (column.plain or column.cells)()
    if cells.dtype == np.float32:
        return cells
    found = numbers(cells)
    if found is None:
        return np.full(len(cells), np.nan)
    return found


def named_columns(records: Any) -> tuple[str, ...] | None:
    """Return the names of a table's columns, or ``None`` if they have none."""
    # A name that is not text may be a record's value, so its type is shown instead.
    # `column_names` comes first: the `columns` of a pyarrow table are not names.
    for attribute in ("column_names", "columns"):
        names = getattr(records, attribute, None)
        if names is not None and not callable(names):
            return tuple(map(_shown_name, names))
    return None


def _shown_name(name: Any) -> str:
    return name if isinstance(name, str) else f"<{type(name).__name__}>"


def check_columns(
    found: Sequence[str] | None, expected: Sequence[str] | None, name: str = "records"
) -> None:
    """Require the expected names of columns, in order, if both names are known."""
    if found is None or expected is None:
        return
    if tuple(found) != tuple(expected):
        raise DataError(
            f"Expected {name} with the columns {list(expected)} in this order. "
            f"Got {list(found)} instead.{encode_hint(found, expected)}"
        )


def encode_hint(found: Sequence[object], expected: Sequence[str]) -> str:
    """Return a sentence, after a space, if a declared table was not encoded; else "".

    A category NAME has the columns NAME=VALUE of a box, and a number on a log scale the
    column log10(NAME).
    """
    for name in set(found) - set(expected):
        for column in expected:
            if column == f"log10({name})" or column.startswith(f"{name}="):
                return " Encode the table first: TableDomain.encode(table)."
    return ""


def as_numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return an array of real numbers of any shape, or raise an error."""
    if is_masked(values):
        raise ConfigurationTypeError(
            f"Expected {name} without a mask. Got a masked array instead: remove masked rows."
        )
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(
            f"Expected {name} as a rectangular array. Got rows of different lengths instead."
        ) from None
    if array.dtype.kind not in "biuf":
        raise ConfigurationTypeError(
            f"Expected {name} as an array of real numbers. Got dtype {array.dtype} instead."
        )
    return array


def _as_table(records: ArrayLike, n_features: int | None, name: str) -> NDArray[Any]:
    array = as_numbers(records, name)
    if array.ndim != 2 or array.shape[1] < 1:
        width = "d" if n_features is None else n_features
        hint = " Use reshape(-1, 1) for a single column." if array.ndim == 1 else ""
        raise DataError(
            f"Expected {name} as a two-dimensional array of shape (n, {width}). "
            f"Got shape {array.shape} instead.{hint}"
        )
    if n_features is not None and array.shape[1] != n_features:
        raise DataError(
            f"Expected {name} with {n_features} columns. Got {array.shape[1]} instead."
        )
    return array


def as_number(cell: Any) -> float:
    """Return the number that a cell of a table is or spells, or NaN."""
    # The text "true" is 1, as True is: another record may have turned the column into
    # text, and must not change this one.
    if type(cell) is float:
        return cell
    try:
        if isinstance(cell, str | bytes):
            text = cell.decode() if isinstance(cell, bytes) else cell
            text = text.strip().lower()
            if "_" in text:  # float() takes 1_000; no other program writes numbers so
                return np.nan
            return float(_TRUTH.get(text, text))
        if isinstance(cell, complex | np.complexfloating):
            if cell.imag == 0:
                return float(cell.real)
            return np.nan
        if isinstance(cell, _NOT_NUMBERS):
            return np.nan
        return float(cell)
    except Exception:  # an object of the loader may raise anything when converted
        return np.nan


def _checked_rows(
    rows: Sequence[Any], n_features: int, columns: Sequence[str] | None
) -> FloatArray:
    require_rows(rows, n_features, columns)
    return table_of_rows(rows, n_features, columns)


def table_of_rows(
    rows: Sequence[Any], n_features: int, columns: Sequence[str] | None = None
) -> FloatArray:
    """Return rows of any type as a table, (n, n_features), NaN where one is malformed.

    Of a row that names its cells, such as a dict, the cells of ``columns`` are read.
    Without ``columns`` all its cells are read in its own order.
    """
    table = np.full((len(rows), n_features), np.nan)
    for i, row in enumerate(rows):
        if type(row) not in _PLAIN_ROWS:
            row = _cells_of_row(row, n_features, columns)
        if isinstance(row, list | tuple):
            if len(row) == n_features:
                table[i] = [as_number(cell) for cell in row]
            continue
        try:
            array = np.asarray(row)
        except Exception:  # as in `as_number`
            array = np.empty(0)
        found = numbers(array) if array.shape == (n_features,) else None
        if found is not None:
            table[i] = found
    return table


def _cells_of_row(row: Any, n_features: int, columns: Sequence[str] | None) -> Any:
    if n_features == 1 and isinstance(row, _SINGLE_CELLS):
        return [row]  # a list of numbers is a table of one column
    try:
        return row_cells(row, columns)
    except Exception:  # as in `as_number`
        return None


def numbers(array: NDArray[Any]) -> FloatArray | None:
    """Return an array of the same shape with each cell as a number or NaN, float64.

    Return ``None`` for a type that never holds numbers, such as dates.
    """
    kind = array.dtype.kind
    if kind in "biuf":
        with np.errstate(over="ignore"):
            return np.asarray(array, dtype=np.float64)
    # One complex cell turns the whole array complex. The real cells keep their values.
    if kind == "c":
        real = np.where(array.imag == 0, array.real, np.nan)
        return real.astype(np.float64)
    if kind in "OSTU":
        cells = [as_number(cell) for cell in array.ravel().tolist()]
        return np.array(cells, dtype=np.float64).reshape(array.shape)
    return None


def first_bad_row(records: NDArray[Any]) -> int | None:
    """Return the index of the first row with NaN or infinity, or ``None``."""
    # Blocks keep the temporary arrays small.
    for start in range(0, len(records), _CHECK_ROWS):
        finite = np.isfinite(records[start : start + _CHECK_ROWS])
        if not finite.all():
            return start + int(np.argmin(finite.all(axis=1)))
    return None
