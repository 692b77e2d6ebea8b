"""Tables of records from csv, npy, npz and parquet files."""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.data.records import MissingValuesError, as_number, text_as_bytes
from flower_kmeans.data.table_domain import TableDomain, category_of
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require

Header = Literal[True] | Sequence[str]
_Columns = dict[str, NDArray[Any]]
_SUFFIXES = (".csv", ".npy", ".npz", ".parquet")


@dataclass(frozen=True)
class Table:
    """Records read from a file: an array-like that names its columns.

    Attributes
    ----------
    records : ndarray of shape (n, d), float64
        The features; finite, unless malformed cells were read as NaN.
    columns : tuple of str
        Names of the d features.
    labels : ndarray of shape (n,), optional
        The label column, of any type; never a feature.
    others : mapping from str to ndarray of shape (n,)
        Columns that were kept beside the features, to split by.
    """

    records: NDArray[np.float64]
    columns: tuple[str, ...]
    labels: NDArray[Any] | None = None
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the features, for NumPy."""
        # NumPy 1 neither passes this argument nor takes None for it.
        if copy is None:
            return np.asarray(self.records, dtype)
        return np.array(self.records, dtype, copy=copy)

    def column(self, name: str) -> NDArray[Any]:
        """Return the values of a feature or of a column that was kept."""
        features = zip(self.columns, self.records.T, strict=True)
        columns: _Columns = {**dict(features), **self.others}
        _require_columns([name], columns)
        return columns[name]


def load_table(
    path: str | Path,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    keep: Collection[str] = (),
    malformed: Literal["error", "nan"] = "error",
    header: Header | None = None,
    domain: TableDomain | None = None,
) -> Table:
    """Read records from a csv, npy, npz or parquet file.

    Columns without a name are called ``x0``, ``x1``, ... An npz file holds either one
    two-dimensional array (with, optionally, ``columns``: its names) and any number of
    one-dimensional ones as long as it has rows, which may serve as label or to split by; or
    one-dimensional arrays only, which are the columns.

    Parameters
    ----------
    path : path
        The suffix names the format.
    label : str, optional
        Column with labels. It is not a feature.
    features : sequence of str, optional
        Columns to cluster by; by default all but the label and columns in ``keep`` that hold no
        numbers. With ``malformed="nan"``: all but the label and columns in ``keep``.
    keep : collection of str
        Further columns to return, whatever they hold.
    malformed : {"error", "nan"}
        What to do with a cell of a feature that is no finite number, and with a line of a csv file
        that has more or fewer cells than there are columns. ``"error"`` stops. ``"nan"`` is for
        `load_data` in a run, where no single record may decide whether a client answers
        (docs/guarantees.md, "Neighbours, budget, delta"): such a cell, or all of such a line, is
        NaN, and so a null record. Each line of a csv file is a record then, also within quotes.
    header : True or sequence of str, optional
        ``True`` if the first line of a csv file names its columns, or the names if it does not: the
        file is then separated by commas. By default the first line is no header if it holds numbers
        only; with ``malformed="nan"`` this is not guessed from a record, and has to be said. With a
        domain the default is ``True``.
    domain : TableDomain, optional
        In place of ``features``: the records are in the columns of its box, as its ``encode`` makes
        them of the declared columns. Cells of a csv file are then read as they are written. With
        ``malformed="error"`` each declared column that is not empty must have a usable cell.

    Raises
    ------
    ConfigurationError, DataError
        If an option does not fit the file, a package to read it is missing, or it cannot be read.
    """
    if malformed not in ("error", "nan"):
        raise ConfigurationError(
            f"Expected malformed as 'error' or 'nan'. Got {malformed!r} instead."
        )
    lenient = malformed == "nan"
    if domain is not None and features is not None:
        raise ConfigurationError("Expected features or domain, which has them. Got both.")
    beside = [*(() if label is None else (label,)), *keep]
    if domain is not None and not lenient and header is None:
        header = True
    columns, side = read_columns(path, header, lenient or domain is not None, beside)
    available = {**columns, **side}
    _require_columns([*beside, *(features or ())], available)
    labels = None if label is None else available[label]
    if domain is not None:
        others = {name: available[name] for name in keep}
        declared = [column.name for column in domain.declared]
        unread = [] if lenient else domain.unread(available, declared)
        # A column may be empty where its cells have a rule, but not full of what nothing reads.
        unread = [name for name in unread if any(map(category_of, available[name].tolist()))]
        if unread:
            raise DataError(f"Expected cells in {path} as the domain declares {unread}. Got none.")
        return Table(domain.encode(available, malformed), domain.columns or (), labels, others)
    if features is None:
        features = [
            name
            for name, values in columns.items()
            if name != label and (name not in keep or (not lenient and _is_number(values)))
        ]
    elif label in features:
        raise ConfigurationError(f"The label column {label!r} cannot be a feature as well.")
    elif len(set(features)) < len(features):
        raise ConfigurationError("Expected every feature once. Got one of them twice.")
    if not features:
        raise DataError(f"The data file {path} has no column to cluster by.")
    return Table(
        records=_stack({name: available[name] for name in features}, lenient),
        columns=tuple(features),
        labels=labels,
        others={name: available[name] for name in keep if name not in features},
    )


def read_columns(
    path: str | Path,
    header: Header | None = None,
    by_cell: bool = False,
    beside: Collection[str] = (),
) -> tuple[_Columns, _Columns]:
    """Return a file's columns by name, of any type, and what it holds beside them.

    With ``by_cell``, no cell changes how others are read, but for the columns ``beside``.
    """
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigurationError(
            f"Expected data in a file that ends in {', '.join(_SUFFIXES)}. Got {path} instead."
        )
    if not path.is_file():
        raise DataError(f"The data file {path} does not exist.")
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return _read_numpy(path)
    if suffix == ".csv" and by_cell:
        return _read_lines(path, header), {}
    require("pyarrow", f"A {suffix[1:]} file")
    from pyarrow import ArrowException, parquet

    try:
        table = _read_csv(path, header) if suffix == ".csv" else parquet.read_table(path)
        names = [str(name).strip() for name in table.column_names]
        columns = [
            text_as_bytes(column) if by_cell and name not in beside else column
            for name, column in zip(names, table.columns, strict=True)
        ]
        # Nulls become NaN in columns of numbers, which is what the check of features looks for.
        arrays = [np.asarray(column.to_numpy()) for column in columns]
    except (ArrowException, OSError, UnicodeError):
        # The reader's own text quotes the lines it failed on.
        kind = "csv table in UTF-8" if suffix == ".csv" else "parquet table"
        raise DataError(f"The data file {path} is not a {kind}.") from None
    if len(set(names)) < len(names):
        raise DataError(f"The data file {path} has two columns with the same name.")
    return dict(zip(names, arrays, strict=True)), {}


def _read_csv(path: Path, header: Header | None) -> Any:
    from pyarrow import csv as arrow_csv

    first, delimiter = first_line(path)
    names: list[str] | None = None
    if header is None:
        cells = [cell.strip().strip('"') for cell in first.split(delimiter)]
        if first and all(_is_number_text(cell) for cell in cells):
            names = _default_names(len(cells))
    elif header is not True:
        names, delimiter = list(header), ","
    return arrow_csv.read_csv(
        path,
        read_options=arrow_csv.ReadOptions(column_names=names),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
    )


def _read_lines(path: Path, header: Header | None) -> _Columns:
    """Return the columns of a csv file as text, line by line: no line changes another's cells."""
    if header is None:
        raise ConfigurationError(
            "Expected header with malformed='nan': True if a csv file's first line names its "
            "columns, else their names. Got None: it is not guessed from a record."
        )
    try:
        # Only "\n" ends a line, and no byte fails to decode: a stray one stays within its record.
        with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
            first = file.readline() if header is True else ""
            delimiter = _delimiter(first)
            cells = _cells_of_line(first, delimiter) if header is True else header
            names = [name.strip() for name in cells]
            nothing = [""] * len(names)
            rows = [_cells_of_line(line, delimiter) for line in file if line.strip()]
    except OSError:
        raise DataError(f"The data file {path} is not a csv table.") from None
    if not names or len(set(names)) < len(names):
        raise DataError(f"Expected the data file {path} with columns of different names.")
    # A malformed line is an empty record, not a missing one: rows keep their numbers.
    table = np.array(
        [row if len(row) == len(names) else nothing for row in rows], dtype=object
    ).reshape(len(rows), len(names))
    return dict(zip(names, table.T, strict=True))


def _cells_of_line(line: str, delimiter: str) -> list[str]:
    """Return the cells of one line, which ends where its text does, whatever it quotes."""
    line = line.rstrip("\r\n")
    if '"' not in line:  # much faster
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def first_line(path: Path) -> tuple[str, str]:
    """Return the first line of a csv file, and what separates its cells."""
    # Spreadsheets begin a file with a byte order mark, which would become part of the first name.
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = file.readline().rstrip("\r\n")
    return first, _delimiter(first)


def _delimiter(line: str) -> str:
    # Of a tie the first counts, so a line without any has commas.
    return max(",;\t", key=line.count)


def _read_numpy(path: Path) -> tuple[_Columns, _Columns]:
    try:
        # Loading a pickle may run code that it brings.
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            with loaded:
                arrays = {name: np.asarray(loaded[name]) for name in loaded.files}
    except Exception:  # a damaged archive raises what zipfile, zlib and numpy have
        raise DataError(f"The data file {path} is not a NumPy file, or it holds objects.") from None
    if isinstance(loaded, np.ndarray):
        return _columns_of_array(loaded, None), {}
    names = arrays.pop("columns", None)
    flat = {name: array for name, array in arrays.items() if array.ndim == 1}
    tables = [array for array in arrays.values() if array.ndim == 2]
    if not tables and flat and len({len(array) for array in flat.values()}) == 1:
        return flat, {}
    if len(tables) != 1:
        raise DataError(
            f"Expected the data file {path} with one two-dimensional array, or "
            f"one-dimensional arrays of one length. Got {len(tables)} two-dimensional instead."
        )
    (table,) = tables
    columns = _columns_of_array(table, None if names is None else [str(n) for n in names.flat])
    side = {name: flat[name] for name in flat if len(flat[name]) == len(table)}
    return columns, {name: array for name, array in side.items() if name not in columns}


def _columns_of_array(array: NDArray[Any], names: Sequence[str] | None) -> _Columns:
    fields = array.dtype.names
    if fields is not None and array.ndim == 1:
        return {name: array[name] for name in fields}
    if array.ndim != 2:
        raise DataError(f"Expected a two-dimensional array of records. Got {array.ndim}-d instead.")
    if names is None:
        names = _default_names(array.shape[1])
    if len(names) != array.shape[1] or len(set(names)) < len(names):
        raise DataError(
            f"Expected {array.shape[1]} different names in columns. Got {len(names)} names instead."
        )
    return dict(zip(names, array.T, strict=True))


def _stack(features: Mapping[str, NDArray[Any]], lenient: bool) -> NDArray[np.float64]:
    if len({len(values) for values in features.values()}) > 1:
        raise DataError("Expected columns of one length.")
    records = np.empty((len(next(iter(features.values()))), len(features)))
    for i, (name, values) in enumerate(features.items()):
        numbers = values
        if lenient and not _is_number(values) and values.dtype.kind in "OSTUc":
            numbers = np.array([as_number(cell) for cell in values.tolist()], dtype=np.float64)
        if values.ndim != 1 or (len(values) and not _is_number(numbers)):
            raise DataError(
                f"The column {name!r} does not hold numbers (dates and text do not count): "
                "name the columns to cluster by with --columns, or turn it into numbers."
            )
        records[:, i] = numbers
        bad = 0 if lenient else int(np.count_nonzero(~np.isfinite(records[:, i])))
        if bad:
            raise MissingValuesError(name, bad, len(records))
    return records


def _default_names(n: int) -> list[str]:
    return [f"x{i}" for i in range(n)]


def _is_number(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "biuf"


def _is_number_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _require_columns(names: Collection[str], available: Collection[str]) -> None:
    columns = list(available)
    shown = ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")
    for name in names:
        if name not in columns:
            raise ConfigurationError(f"Expected one of the columns {shown}. Got {name!r} instead.")
