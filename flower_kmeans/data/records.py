"""Tables of records as they come from users: checked, or with NaN for what is malformed."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from flower_kmeans.errors import ConfigurationTypeError, DataError, KMeansError

FloatArray = NDArray[np.float64]

_CHECK_ROWS = 8_192
_TRUTH = {"true": "1", "false": "0"}
_NOT_NUMBERS = (np.ndarray, np.datetime64, np.timedelta64)  # though float() takes some of them


def check_records(
    records: ArrayLike,
    n_features: int | None = None,
    *,
    name: str = "records",
    dtypes: Sequence[DTypeLike] = (np.float64,),
) -> NDArray[Any]:
    """Return records as a finite, C-contiguous array of floats, uncopied if they are one.

    Parameters
    ----------
    records : array-like of shape (n, d)
        Numbers; n may be 0.
    n_features : int or None
        The width that is expected, if one is.
    name : str
        How the message calls the records.
    dtypes : sequence of dtype
        Types that are kept. All others become the first of them.

    Raises
    ------
    DataError, ConfigurationTypeError
        If the shape is wrong, a value is NaN or infinite, or values are not numbers.
    """
    table = _as_table(records, n_features, name)
    with np.errstate(over="ignore"):
        checked = np.ascontiguousarray(table, table.dtype if table.dtype in dtypes else dtypes[0])
    bad = first_bad_row(checked)
    if bad is not None:
        raise DataError(f"{name} must be finite, got NaN or infinity in row {bad}.")
    return checked


def all_records(
    records: ArrayLike, n_features: int, columns: Sequence[str] | None = None
) -> NDArray[Any]:
    """Return all rows of a table of numbers, (n, d), not finite where one is malformed.

    Inside a run nothing visible may depend on a single record (docs/guarantees.md, "Neighbours,
    budget, delta"). One row that turns a whole array into text, complex numbers or objects decides
    nothing about the others: their cells are read one by one, by `as_number`.

    Parameters
    ----------
    records : array-like of shape (n, d)
        May name its columns, as the tables of pandas, pyarrow and this library do.
    n_features : int
        The width that is expected, d.
    columns : sequence of str, optional
        Names that the columns must have, in this order, where the records name them.

    Returns
    -------
    ndarray of shape (n, d)
        Of real numbers, of any type. Often the loader's own memory, which may still change.

    Raises
    ------
    DataError, ConfigurationTypeError
        If this is not a table at all, an array of another width, of dates or with a mask, or one
        with other columns: nothing that a single record decides.
    """
    check_columns(named_columns(records), columns)
    # Nobody has a table of it without that module, or before another thread has imported all of it.
    pyarrow = sys.modules.get("pyarrow")
    kinds = tuple(getattr(pyarrow, name, ()) for name in ("Table", "RecordBatch"))
    if isinstance(records, kinds):
        cells = [text_as_bytes(column) for column in records.columns]
        records = records.from_arrays(cells, names=records.schema.names)
    if isinstance(records, list | tuple):
        return _table_of_rows(records, n_features)
    try:
        return _as_table(records, n_features, "records")
    except (KMeansError, TypeError, ValueError, OverflowError):
        # Whether an object has rows follows from its type and shape, which no record decides.
        # Without its mask, what an array hides would count as a number.
        if not isinstance(records, np.ma.MaskedArray):
            array = np.asarray(records)
            if array.shape in ((0,), (0, 0)):
                return np.empty((0, n_features))
            if array.ndim == 1 and array.dtype.kind == "O":
                return _table_of_rows(array.tolist(), n_features)
            if array.ndim == 2 and array.shape[1] == n_features:
                table = numbers(array)
                if table is not None:
                    return table
        raise


def named_columns(records: Any) -> tuple[str, ...] | None:
    """Return the names that a table gives its columns, or ``None`` if it has no such names."""
    # A name that is no text may be a record's value, so its type appears instead.
    # In this order: the `columns` of a pyarrow table are not names.
    for attribute in ("column_names", "columns"):
        names = getattr(records, attribute, None)
        if names is not None and not callable(names):
            return tuple(n if isinstance(n, str) else f"<{type(n).__name__}>" for n in names)
    return None


def check_columns(
    found: Sequence[str] | None, expected: Sequence[str] | None, name: str = "records"
) -> None:
    """Require the columns of records to be the expected ones, in order, where both are named."""
    if found is not None and expected is not None and tuple(found) != tuple(expected):
        raise DataError(
            f"{name} must have the columns {list(expected)} in this order, got {list(found)}."
        )


def as_numbers(values: ArrayLike, name: str) -> NDArray[Any]:
    """Return an array of real numbers, of any shape, or raise ``ConfigurationTypeError``."""
    if isinstance(values, np.ma.MaskedArray):
        raise ConfigurationTypeError(f"{name} must not be a masked array: remove masked rows.")
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name} must be rectangular: rows differ in length.") from None
    if array.dtype.kind not in "biuf":
        raise ConfigurationTypeError(
            f"{name} must be an array of real numbers, got dtype {array.dtype}."
        )
    return array


def _as_table(records: ArrayLike, n_features: int | None, name: str) -> NDArray[Any]:
    array = as_numbers(records, name)
    if array.ndim != 2 or array.shape[1] < 1:
        width = "d" if n_features is None else n_features
        hint = " Use reshape(-1, 1) for a single column." if array.ndim == 1 else ""
        raise DataError(
            f"{name} must be two-dimensional, of shape (n, {width}), got shape {array.shape}.{hint}"
        )
    if n_features is not None and array.shape[1] != n_features:
        raise DataError(f"{name} must have {n_features} columns, got {array.shape[1]}.")
    return array


def as_number(cell: Any) -> float:
    """Return the number that one cell of a table is or spells, or NaN."""
    # With "true" as 1: a record is the same whether or not another made its column one of text.
    if type(cell) is float:
        return cell
    try:
        if isinstance(cell, str | bytes):
            text = (cell.decode() if isinstance(cell, bytes) else cell).strip().lower()
            if "_" in text:  # Python's own way to write numbers, and nobody else's
                return np.nan
            return float(_TRUTH.get(text, text))
        if isinstance(cell, complex | np.complexfloating):
            return float(cell.real) if cell.imag == 0 else np.nan
        return np.nan if isinstance(cell, _NOT_NUMBERS) else float(cell)
    except Exception:  # whatever an object of the loader raises when it is converted
        return np.nan


def text_as_bytes(column: Any) -> Any:
    """Return a column of pyarrow, with the bytes of its cells if it is one of text.

    One cell that is not UTF-8 would be an error about the whole column; `as_number` reads bytes.
    """
    import pyarrow

    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    is_text = str(kind) in ("string", "large_string", "string_view")
    return column.cast(pyarrow.large_binary()) if is_text else column


def _table_of_rows(rows: Sequence[Any], n_features: int) -> FloatArray:
    """Return rows of any kind as a table, with NaN where one is malformed."""
    table = np.full((len(rows), n_features), np.nan)
    for i, row in enumerate(rows):
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


def numbers(array: NDArray[Any]) -> FloatArray | None:
    """Return an array cell by cell as numbers or NaN; ``None`` for what never holds numbers."""
    kind = array.dtype.kind
    if kind in "biuf":
        with np.errstate(over="ignore"):
            return np.asarray(array, dtype=np.float64)
    # One complex cell turns the whole array complex; real cells are then still what they were.
    if kind == "c":
        return np.where(array.imag == 0, array.real, np.nan).astype(np.float64)
    if kind in "OSTU":
        cells = [as_number(cell) for cell in array.ravel().tolist()]
        return np.array(cells, dtype=np.float64).reshape(array.shape)
    return None


def first_bad_row(records: NDArray[Any]) -> int | None:
    """Return the first row that holds NaN or infinity, or ``None``."""
    # A block at a time allocates little.
    for start in range(0, len(records), _CHECK_ROWS):
        finite = np.isfinite(records[start : start + _CHECK_ROWS])
        if not finite.all():
            return start + int(np.argmin(finite.all(axis=1)))
    return None
