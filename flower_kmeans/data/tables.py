"""Tables of records from files (csv, npy, npz, parquet, Excel) or from a database.

All commands and all nodes read a table by `open_table`, block by block and cell by
cell. At a node a malformed cell makes a null record; in a command it is an error.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import BoolArray
from flower_kmeans.data import excel
from flower_kmeans.data.csv_files import default_names, names_columns, open_csv
from flower_kmeans.data.declared import DeclaredDomain, columns_read
from flower_kmeans.data.findings import ColumnFindings, Findings
from flower_kmeans.data.frames import column_of
from flower_kmeans.data.person_findings import PersonFindings
from flower_kmeans.data.persons import text_of
from flower_kmeans.data.reading import USUAL_READING, Header, Reading, resolved
from flower_kmeans.data.spelling import USUAL, Spelling, are_missing
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    KMeansError,
)
from flower_kmeans.extras import require

if TYPE_CHECKING:
    from flower_kmeans.data.sql import SqlQuery

Columns = dict[str, NDArray[Any]]
T = TypeVar("T")

BLOCK_ROWS = 65_536
_NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names of columns without a name. pandas and pyarrow give them to row numbers."""
_CSV = (".csv", ".tsv", ".txt")
_SUFFIXES = (*_CSV, ".npy", ".npz", ".parquet", *excel.SUFFIXES)

log = logging.getLogger("flower_kmeans.data")


@dataclass(frozen=True)
class TableBlock:
    """A block of m records of a table, with cells as the file has them.

    Attributes
    ----------
    columns : dict from str to ndarray of shape (m,)
        Cells by the name of their column: text, or numbers, dates and objects if the
        format has types.
    n_records : int
        Number of records, m.
    malformed : ndarray of shape (m,), bool
        Whether no cell of the record is known.
    first_malformed : int
        Line number in the file, from 1, of the first malformed record. 0 if there is
        none or the format has no lines.
    stored : pyarrow.RecordBatch, optional
        The same columns with the types of a parquet file.
    """

    columns: Columns
    n_records: int
    malformed: BoolArray
    first_malformed: int = 0
    stored: Any = None

    def whole(self, names: Sequence[str]) -> Columns:
        """Return columns by name, without the malformed records."""
        is_whole = ~self.malformed
        return {name: self.columns[name][is_whole] for name in names}

    @property
    def n_malformed(self) -> int:
        """Number of malformed records."""
        return int(np.count_nonzero(self.malformed))


@dataclass(frozen=True)
class OpenTable:
    """A table whose columns are known. No record was read yet.

    Attributes
    ----------
    path : str
        The file or database, for messages.
    names : tuple of str
        Names of the columns, in order. They may be empty or occur twice.
    has_names : bool
        Whether the table or its reader names the columns. Otherwise they are called
        x0, x1, ...
    beside : tuple of str
        Names of an npz file's one-dimensional arrays beside its table.
    spelling : Spelling
        The spelling of numbers and dates in text.
    person : str, optional
        The column with the id of each record's person.
    """

    path: str
    names: tuple[str, ...]
    has_names: bool
    _read: Callable[[Sequence[str]], Iterator[TableBlock]] = field(repr=False)
    beside: tuple[str, ...] = ()
    spelling: Spelling = USUAL
    person: str | None = None

    def blocks(self, wanted: Sequence[str]) -> Iterator[TableBlock]:
        """Yield blocks of records with the wanted columns.

        Raises
        ------
        ConfigurationError, DataError
            If a wanted column is missing or occurs twice, or the file cannot be read.
        """
        self.require(wanted)
        return self._read(tuple(dict.fromkeys(wanted)))

    def require(self, wanted: Collection[str]) -> None:
        """Require that the table has each wanted column exactly once."""
        available = (*self.names, *self.beside)
        twice = [name for name in wanted if available.count(name) > 1]
        if twice:
            raise DataError(
                f"Expected the columns of {self.path} with different names. Got two columns with "
                f"the same name {twice[0]!r}: give one of them another name."
            )
        shown = ", ".join(available[:20])
        if len(available) > 20:
            shown += ", ..."
        # Options of the command take names divided by commas.
        hint = ""
        if any("," in name for name in available):
            hint = " In a list, a name with a comma stands in double quotes."
        for name in wanted:
            if name not in available:
                raise ConfigurationError(
                    f"Expected one of the columns {shown}. Got {name!r} instead.{hint}"
                )

    def features(self, excluded: Collection[str | None]) -> tuple[str, ...]:
        """Return the names of all columns except the excluded ones.

        Raises
        ------
        DataError
            If a column has no name, two have the same name, or no column is left.
        """
        nameless = [i for i, name in enumerate(self.names, 1) if is_nameless(name)]
        if nameless:
            first = nameless[0]
            name = self.names[first - 1]
            is_index = nameless == [1] or bool(name)
            index = " It looks like the row numbers of pandas." if is_index else ""
            first_is = f"column {first}" if not name else f"column {first}, {name!r}"
            raise DataError(
                f"Expected a name for each column of {self.path}. Got none for {first_is}."
                f"{index} Name the columns to cluster by (--columns, features= or a domain), or "
                "give it a name."
            )
        self.require(self.names)
        found = tuple(name for name in self.names if name not in excluded)
        if not found:
            raise DataError(f"The data file {self.path} has no column to cluster by.")
        return found


@dataclass(frozen=True)
class Table:
    """Records read from a file: an array-like that names its columns.

    Attributes
    ----------
    records : ndarray of shape (n, d), float64
        The features. They are finite, unless malformed cells were read as NaN.
    columns : tuple of str
        Names of the d features.
    labels : ndarray of shape (n,), optional
        The label column, of any type. It is never a feature. Labels of a csv file are
        text.
    others : mapping from str to ndarray of shape (n,)
        Further columns by name, which `load_table` was told to keep.
    persons : ndarray of shape (n,), optional
        The id of each record's person, as the table has it, if the reading names their
        column.
    findings : Findings
        Numbers of missing and unreadable cells, for the holder of the records alone.
    """

    records: NDArray[np.float64]
    columns: tuple[str, ...]
    labels: NDArray[Any] | None = None
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    persons: NDArray[Any] | None = field(default=None, repr=False)
    findings: Findings = field(
        default_factory=lambda: Findings(()), repr=False, compare=False
    )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the features, for NumPy."""
        # NumPy 1 has no `copy` argument that may be None.
        if copy is None:
            return np.asarray(self.records, dtype)
        return np.array(self.records, dtype, copy=copy)

    def column(self, name: str) -> NDArray[Any]:
        """Return the values, (n,), of a feature or of a kept column."""
        features = zip(self.columns, self.records.T, strict=True)
        columns: Columns = {**dict(features), **self.others}
        if name not in columns:
            raise ConfigurationError(
                f"Expected one of the columns {', '.join(columns)}. Got {name!r} instead."
            )
        return columns[name]


def load_table(
    path: str | Path,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    keep: Collection[str] = (),
    malformed: Literal["error", "nan"] = "error",
    header: Header | None = None,
    domain: DeclaredDomain | None = None,
    reading: Reading = USUAL_READING,
) -> Table:
    """Read records from a csv, npy, npz, parquet or Excel file, or from a database.

    Columns without a name are called ``x0``, ``x1``, ... An npz file holds one of two
    contents. The first is one two-dimensional array of records, optionally
    ``columns`` with its names, and further one-dimensional arrays with a value for each
    record, to use as label or to split by. The second is one-dimensional arrays only,
    which are the columns.

    A record with a missing cell is left out, unless the domain states a value for
    missing cells. The numbers of missing, unreadable and moved cells are logged, and
    are in the table's ``findings``.

    Parameters
    ----------
    path : path
        A file, whose suffix names the format; a ``source.toml``, which names the data
        and how to read it (`read_source_file`); or the address of a database, such as
        ``sqlite:///PATH``.
    label : str, optional
        Column with labels. It is not a feature.
    features : sequence of str, optional
        Columns to cluster by. By default all columns except the label and the columns
        in ``keep`` that hold no numbers. With ``malformed="nan"``, all columns except
        the label and all columns in ``keep``.
    keep : collection of str
        Further columns to return, of any type.
    malformed : {"error", "nan"}
        How to treat a feature's unreadable cell, or a csv line with more or fewer cells
        than columns. ``"error"`` raises an error that names all columns with such
        cells. ``"nan"`` is for ``load_data`` in a run, where no single record may
        decide whether a client answers (docs/guarantees, Theorem 7): the cell, or the
        whole line, becomes NaN, which makes a null record. All rows are then kept, and
        a missing cell is NaN as well.
    header : True or sequence of str, optional
        ``True`` if the first line names the columns. If the first line is a record, the
        names of the columns; a csv file is then separated by commas, unless ``reading``
        has another delimiter. By default the first line names the columns if none of
        its cells looks like a number, and is a record if all do. A line with both kinds
        is an error. With ``malformed="nan"`` it is required, because nothing may be
        guessed from a record.
    domain : TableDomain, Ball or Sphere, optional
        Declares the columns, in place of ``features``. The records then have the
        columns of its box, as `TableDomain.encode` makes them, or the named columns of
        a ball or a sphere.
    reading : Reading
        The file's spelling: delimiter, decimal comma, encoding and the like. If it names
        the column of ``person``, its cells are the table's ``persons``.

    Returns
    -------
    Table

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, DataError
        If an option does not fit the file, a package to read it is missing, or the file
        cannot be read. With ``malformed="nan"`` and without a domain, also if a
        column's type cannot hold numbers.
    """
    reading = reading.with_options(header=header)
    table = read_table(path, reading, label, features, keep, malformed, domain)
    for line in table.findings.lines():
        log.warning("%s: %s", Path(path).name, line)
    return table


def load_records(
    data: str | Path,
    *,
    domain: DeclaredDomain | None = None,
    header: Header | None = None,
    reading: Reading = USUAL_READING,
) -> "Table | SqlQuery":
    """Return a client's records, for ``load_data`` in a run.

    The records of a file are read now, as by `load_table` with ``malformed="nan"``.
    A database becomes a `SqlQuery`, which a run executes once.

    Parameters
    ----------
    data : path or str
        A file, a ``source.toml``, or the address of a database.
    domain : TableDomain, Ball or Sphere, optional
        Declares the columns, as `domain_from_file` returns it. Without it all columns
        are numbers. All columns of a file are read, and of a database the columns that
        the run names.
    header : True or sequence of str, optional
        As of `load_table`. By default the ``source.toml`` decides. If it has no header,
        or for other files, the first line names the columns.
    reading : Reading
        As of `load_table`. Its options take precedence over those of a ``source.toml``.

    Returns
    -------
    Table or SqlQuery

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, DataError
        As of `load_table`.
    """
    named, own = resolved(data, reading.with_options(header=header))
    if "://" not in str(named):
        if own.header is None:
            own = own.with_options(header=True)
        return load_table(named, malformed="nan", domain=domain, reading=own)
    from flower_kmeans.data.sql import SqlQuery

    declared = domain if isinstance(domain, TableDomain) else None
    return SqlQuery(str(named), _required_query(own), declared, own.spelling)


def load_persons(
    data: str | Path,
    *,
    header: Header | None = None,
    reading: Reading = USUAL_READING,
) -> NDArray[Any]:
    """Return the id of each record's person, for ``load_ids`` in a run.

    There are as many ids as `load_records` returns records, in the same order. A line
    of a csv file of which no cell is known has an empty id.

    Parameters
    ----------
    data : path or str
        A file, or a ``source.toml`` that names one.
    header : True or sequence of str, optional
        As of `load_records`.
    reading : Reading
        As of `load_records`. It, or the ``source.toml``, names the column ``person``.

    Returns
    -------
    ndarray of shape (n,)
        The cells as the table has them, of any type.

    Raises
    ------
    ConfigurationError, DataError
        If no column of persons is named, the table lacks it or cannot be read, or the
        data is a database: its rows may come in another order each time.
    """
    named, own = resolved(data, reading.with_options(header=header))
    person = own.person
    if person is None:
        raise ConfigurationError(
            "Expected the column with the persons' ids: person in the source.toml, or person= of "
            "the reading. Got none."
        )
    if "://" in str(named):
        raise ConfigurationError(
            "Expected persons of a file. Got those of a database, whose rows may come in another "
            "order than the records: write the query's result to a file, such as parquet."
        )
    if own.header is None:
        own = own.with_options(header=True)
    opened = open_table(named, own, recognises=False)
    found = [block.columns[person] for block in opened.blocks([person])]
    return np.concatenate(found or [np.empty(0, dtype=object)])


def column_names(data: str | Path, header: Header | None = None) -> tuple[str, ...]:
    """Return the names of a client's columns, as `load_records` names them.

    No record is read. ``header`` is that of `load_records`.
    """
    if header is None and Path(data).suffix.lower() != ".toml":
        header = True
    reading = USUAL_READING.with_options(header=header)
    return open_table(data, reading, recognises=False).names


def read_table(
    path: str | Path,
    reading: Reading = USUAL_READING,
    label: str | None = None,
    features: Sequence[str] | None = None,
    keep: Collection[str] = (),
    malformed: str = "error",
    domain: DeclaredDomain | None = None,
) -> Table:
    """Return the table as `load_table` does, without logging its findings."""
    if malformed not in ("error", "nan"):
        raise ConfigurationError(
            f"Expected malformed as 'error' or 'nan'. Got {malformed!r} instead."
        )
    if domain is not None and features is not None:
        raise ConfigurationError(
            "Expected features or domain, which has them. Got both."
        )
    declared = domain if isinstance(domain, TableDomain) else None
    if domain is not None and declared is None:
        # A ball or a sphere names columns of numbers, which are read as they are.
        features = columns_read(domain)
    if features is not None and label in features:
        raise ConfigurationError(
            f"The label column {label!r} cannot be a feature as well."
        )
    if features is not None and len(set(features)) < len(features):
        raise ConfigurationError("Expected every feature once. Got one of them twice.")
    is_node = malformed == "nan"
    opened = open_table(path, reading, recognises=not is_node)
    person = opened.person
    if person is not None:
        require_apart(person, label, features, declared)
    beside = [name for name in (label, person, *keep) if name is not None]
    opened.require(beside)
    if declared is not None:
        chosen = _declared(opened, declared)
    elif features is not None:
        chosen = tuple(features)
    else:
        excluded = {label, person, *keep} if is_node else {label, person}
        chosen = opened.features(excluded)
    refuses_types = is_node and declared is None
    loaded = _load(opened, chosen, declared, beside, refuses_types)
    if not is_node:
        if features is None and declared is None:
            loaded = _without_text(loaded, keep)
        loaded.findings.require_readable(opened.path)
    is_whole = np.isfinite(loaded.records).all(axis=1)
    is_void = np.asarray(~is_whole)
    loaded.findings.n_void = int(np.count_nonzero(is_void))
    if not is_node and is_void.any():
        loaded = _with_rows(loaded, ~is_void)
    labels = None if label is None else loaded.others[label]
    persons = None
    if person is not None:
        persons = loaded.others[person]
        loaded.findings.persons = _found_persons(person, persons, is_node)
    names = [name for name in keep if name not in loaded.columns]
    others = {name: loaded.others[name] for name in names}
    return replace(loaded, labels=labels, others=others, persons=persons)


def _found_persons(
    name: str, ids: NDArray[Any], is_node: bool
) -> PersonFindings | None:
    """Return the findings on persons; at a node ``None`` if something is no id.

    One record must not decide whether a node answers a run that needs no ids. A run
    that needs them reads them by `load_persons`.
    """
    findings = PersonFindings(name)
    try:
        findings.add(map(text_of, ids.tolist()))
    except KMeansError:
        if not is_node:
            raise
        return None
    return findings


def require_apart(
    person: str,
    label: str | None = None,
    features: Sequence[str] | None = None,
    domain: TableDomain | None = None,
) -> None:
    """Require that the column of persons is neither the label nor a column to cluster by."""
    declared = () if domain is None else domain.declared
    used = [label, *(features or ()), *(column.name for column in declared)]
    if person in used:
        raise ConfigurationError(
            f"The column of persons, {person!r}, cannot be the label or a column to cluster by: "
            "leave it out of --columns, features= or the domain."
        )


def _load(
    opened: OpenTable,
    chosen: Sequence[str],
    domain: TableDomain | None,
    beside: Sequence[str],
    refuses_types: bool,
) -> Table:
    """Return a table of all records, NaN for unusable cells, and the ``beside`` columns."""
    if domain is None:
        names = tuple(chosen)
        findings = Findings(tuple(map(ColumnFindings, chosen)))
    else:
        names = domain.columns or ()
        findings = domain.findings()
    parts = [np.empty((0, len(names)))]
    kept: dict[str, list[NDArray[Any]]] = {}
    for name in beside:
        kept[name] = []
    for block in opened.blocks([*chosen, *beside]):
        if refuses_types:
            _require_types(block, chosen)
        parts.append(records_of(block, chosen, domain, findings, opened.spelling))
        for name, found in kept.items():
            found.append(block.columns[name])
    others = {}
    for name, found in kept.items():
        others[name] = np.concatenate(found or [np.empty(0)])
    return Table(np.concatenate(parts), names, None, others, findings=findings)


def _require_types(block: TableBlock, chosen: Sequence[str]) -> None:
    """Refuse a column whose type cannot hold numbers: all its records would be null."""
    for name in chosen:
        if block.stored is None:
            cells = block.columns[name]
        else:
            cells = block.stored.column(name)
        column = column_of(cells)
        if column is not None and not column.may_be_numbers:
            raise ConfigurationTypeError(
                f"Expected the column {name!r} as numbers. Got {column.kind}: declare it in a "
                "domain.toml, or leave it out (features=)."
            )


def records_of(
    block: TableBlock,
    chosen: Sequence[str],
    domain: TableDomain | None,
    findings: Findings,
    spelling: Spelling,
) -> NDArray[np.float64]:
    """Return the records of a block, (m, d), and add its cells to ``findings``.

    Unusable cells are NaN, and all cells of a malformed record.
    """
    cells = block.whole(chosen)
    if domain is None:
        found = _numbers(cells, findings, spelling)
    else:
        found = domain.examine(cells, findings, spelling)
    records = np.full((block.n_records, found.shape[1]), np.nan)
    records[~block.malformed] = found
    findings.add_malformed(block.n_malformed, block.first_malformed)
    return records


def _declared(opened: OpenTable, domain: TableDomain) -> tuple[str, ...]:
    """Return the names of the declared columns, which the table must each have once."""
    names = tuple(column.name for column in domain.declared)
    available = (*opened.names, *opened.beside)
    for name in names:
        n_found = available.count(name)
        if n_found != 1:
            # Other names are not listed: in a file without a header they are a record.
            raise DataError(
                f"Expected the column {name!r} once in the table {opened.path}. "
                f"Got it {n_found} times."
            )
    return names


def _numbers(
    cells: Columns, findings: Findings, spelling: Spelling
) -> NDArray[np.float64]:
    """Return undeclared columns as records, (m, d), NaN for cells without a number."""
    parts = []
    for own, found in zip(cells.values(), findings.columns, strict=True):
        if own.ndim != 1:
            raise DataError(
                f"Expected the column {found.name!r} as one cell for each record."
            )
        values = spelling.numbers(own)
        values = np.where(np.isfinite(values), values, np.nan)
        found.add(own, values, are_missing(own))
        parts.append(values)
    findings.n_records += len(parts[0])
    return np.stack(parts, axis=1)


def _without_text(table: Table, keep: Collection[str]) -> Table:
    """Return a table whose features exclude kept columns with text or without values."""
    is_feature = []
    columns_found = zip(table.columns, table.findings.columns, strict=True)
    for name, found in columns_found:
        are_numbers = found.n_read > 0 and not found.n_unreadable
        is_feature.append(name not in keep or are_numbers)
    if not any(is_feature):
        raise DataError(
            "Expected a column to cluster by beside those that are kept. Got none."
        )
    columns = tuple(compress(table.columns, is_feature))
    table.findings.columns = tuple(compress(table.findings.columns, is_feature))
    return replace(table, records=table.records[:, is_feature], columns=columns)


def _with_rows(table: Table, chosen: BoolArray) -> Table:
    others = {name: values[chosen] for name, values in table.others.items()}
    return replace(table, records=table.records[chosen], others=others)


# --------------------------------------------------------------------------- formats


def open_table(
    data: str | Path, reading: Reading = USUAL_READING, *, recognises: bool = True
) -> OpenTable:
    """Return a table with its columns. No record is read yet.

    Parameters
    ----------
    data : path or str
        A file, the address of a database, or a ``source.toml`` that names either.
    reading : Reading
        The options for reading. Options that it does not give come from the
        ``source.toml``.
    recognises : bool
        Whether to recognise the first line as names or as a record. A node must not.

    Raises
    ------
    ConfigurationError, DataError
        If the file does not exist, its format or its columns are unclear, or a package
        to read it is missing.
    """
    named, reading = resolved(data, reading)
    opened = _opened(named, reading, recognises)
    return replace(opened, spelling=reading.spelling, person=reading.person)


def _opened(data: str | Path, reading: Reading, recognises: bool) -> OpenTable:
    if "://" in str(data):
        return _open_database(str(data), reading)
    path = Path(data)
    suffix = _suffix(path)
    if not path.is_file():
        raise DataError(f"The data file {path} does not exist.")
    if suffix in (".npy", ".npz"):
        return _open_numpy(path)
    if suffix == ".parquet":
        return _open_parquet(path)
    if reading.header is None and not recognises:
        raise ConfigurationError(
            "Expected header with malformed='nan': True if the first line of a file names its "
            "columns, else their names. Got None: it is not guessed from a record."
        )
    if suffix in excel.SUFFIXES:
        return _open_excel(path, reading)
    return _open_csv(path, reading)


def data_name(data: str) -> str:
    """Return a short name of the data: the file's name, or the database's address."""
    if "://" in data:
        return data
    return Path(data).name


def _suffix(path: Path) -> str:
    """Return a file's format as its suffix in lower case, without .gz of a csv file."""
    suffix = path.suffix.lower()
    if suffix == ".gz" and Path(path.stem).suffix.lower() in _CSV:
        return Path(path.stem).suffix.lower()
    if suffix not in _SUFFIXES:
        raise ConfigurationError(
            f"Expected data in a file that ends in {', '.join(_SUFFIXES)} or .csv.gz. "
            f"Got {'another text' if 'password' in str(path).lower() else path} instead."
        )
    return suffix


def _open_csv(path: Path, reading: Reading) -> OpenTable:
    file = open_csv(path, reading)

    def read(wanted: Sequence[str]) -> Iterator[TableBlock]:
        places = [file.names.index(name) for name in wanted]
        for rows in batched(file.records()):
            yield _block_of_rows(rows, wanted, places)

    has_names = file.has_names or reading.given_names is not None
    return OpenTable(str(path), file.names, has_names, read)


def _block_of_rows(
    rows: Sequence[tuple[int, Sequence[Any] | None]],
    wanted: Sequence[str],
    places: Sequence[int],
) -> TableBlock:
    """Return the block of pairs of a line number and a row, which is None if malformed.

    ``places`` are the indices of the wanted columns in a row. A malformed record has
    empty cells.
    """
    malformed = np.array([row is None for _, row in rows], dtype=bool)
    columns = {}
    for name, place in zip(wanted, places, strict=True):
        cells = ["" if row is None else row[place] for _, row in rows]
        columns[name] = as_objects(cells)
    first = next((number for number, row in rows if row is None), 0)
    return TableBlock(columns, len(rows), malformed, first)


def is_nameless(name: str) -> bool:
    """Return whether a column's name is empty, or one that libraries give row numbers."""
    return _NAMELESS.fullmatch(name) is not None


def batched(rows: Iterator[T]) -> Iterator[list[T]]:
    """Yield rows in lists of at most `BLOCK_ROWS`."""
    while batch := list(islice(rows, BLOCK_ROWS)):
        yield batch


def as_objects(cells: Sequence[Any]) -> NDArray[Any]:
    """Return cells as an array (m,) of objects, even if each cell is a list."""
    return np.fromiter(cells, dtype=object, count=len(cells))


def _whole(columns: Columns) -> TableBlock:
    """Return a block of columns without malformed records."""
    n_records = len(next(iter(columns.values()), ()))
    if any(len(cells) != n_records for cells in columns.values()):
        raise DataError("Expected columns of one length.")
    return TableBlock(columns, n_records, np.zeros(n_records, dtype=bool))


def _open_parquet(path: Path) -> OpenTable:
    require("pyarrow", "A parquet file")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    error = DataError(f"The data file {path} is not a parquet table.")
    try:
        with ParquetFile(path) as file:
            stored = tuple(map(str, file.schema_arrow.names))
    except (ArrowException, OSError):
        raise error from None
    names = tuple(name.strip() for name in stored)

    def read(wanted: Sequence[str]) -> Iterator[TableBlock]:
        # From each wanted name, in order, to the name in the file, which may have
        # spaces around it.
        columns = {name: stored[names.index(name)] for name in wanted}
        in_file = list(columns.values())
        try:
            with ParquetFile(path) as file:
                for batch in file.iter_batches(BLOCK_ROWS, columns=in_file):
                    cells = {}
                    for name, own in columns.items():
                        cells[name] = _stored_cells(batch.column(own))
                    renamed = batch.select(in_file).rename_columns(list(columns))
                    yield replace(_whole(cells), stored=renamed)
        except (ArrowException, OSError):
            # pyarrow's text quotes the cell at which it failed.
            raise error from None

    return OpenTable(str(path), names, True, read)


def _stored_cells(column: Any) -> NDArray[Any]:
    """Return the cells of a parquet column, (m,), each independent of the others."""
    found = column_of(column)
    if found is None:
        raise DataError("Expected columns of one cell for each record.")
    cells = found.cells()
    if cells.dtype != object:
        return cells
    return as_objects([_decoded(cell) for cell in cells.tolist()])


def _decoded(cell: Any) -> Any:
    """Return bytes as text, with bytes that are not UTF-8 as surrogates."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "surrogateescape")
    return cell


def _open_excel(path: Path, reading: Reading) -> OpenTable:
    sheet = excel.open_sheet(path, reading.sheet)
    names = reading.given_names
    has_names = names is None
    if names is None:
        first = next(sheet.rows(), [])
        has_names = reading.header is True or names_columns(first, path)
        names = default_names(len(first))
        if has_names:
            names = tuple(map(_name_of, first))
    columns = names
    width = len(columns)

    def read(wanted: Sequence[str]) -> Iterator[TableBlock]:
        places = [columns.index(name) for name in wanted]
        rows = enumerate(sheet.rows(), 1)
        if has_names:
            next(rows, None)
        for batch in batched(rows):
            sized = [(n, row if len(row) == width else None) for n, row in batch]
            yield _block_of_rows(sized, wanted, places)

    are_named = has_names or reading.given_names is not None
    return OpenTable(str(path), columns, are_named, read)


def _name_of(cell: Any) -> str:
    if cell is None:
        return ""
    return str(cell).strip()


def _open_database(uri: str, reading: Reading) -> OpenTable:
    from flower_kmeans.data.sql import open_query  # files do not need it

    query = open_query(uri, _required_query(reading))

    def read(wanted: Sequence[str]) -> Iterator[TableBlock]:
        for columns in query.blocks():
            yield _whole({name: columns[name] for name in wanted})

    return OpenTable(uri, query.names, True, read)


def _required_query(reading: Reading) -> str:
    if reading.query is None:
        raise ConfigurationError(
            "Expected a query with a database: --query, or query in the source.toml. Got none."
        )
    return reading.query


def _open_numpy(path: Path) -> OpenTable:
    columns, side = _read_numpy(path)
    cells = {**columns, **side}

    def read(wanted: Sequence[str]) -> Iterator[TableBlock]:
        yield _whole({name: cells[name] for name in wanted})

    return OpenTable(str(path), tuple(columns), True, read, tuple(side))


def _read_numpy(path: Path) -> tuple[Columns, Columns]:
    """Return the columns of a NumPy file, and the one-dimensional arrays beside them."""
    try:
        # A pickle may run code when it is loaded.
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            with loaded:
                arrays = {name: np.asarray(loaded[name]) for name in loaded.files}
    except Exception:  # for a damaged archive zipfile, zlib and numpy raise many types
        raise DataError(
            f"The data file {path} is not a NumPy file, or it holds objects."
        ) from None
    if isinstance(loaded, np.ndarray):
        return _columns_of_array(loaded, None), {}
    names = arrays.pop("columns", None)
    flat = {name: array for name, array in arrays.items() if array.ndim == 1}
    tables = [array for array in arrays.values() if array.ndim == 2]
    lengths = {len(array) for array in flat.values()}
    if not tables and len(lengths) == 1:
        return flat, {}
    if len(tables) != 1:
        raise DataError(
            f"Expected the data file {path} with one two-dimensional array, or "
            f"one-dimensional arrays of one length. Got {len(tables)} two-dimensional instead."
        )
    (table,) = tables
    given = None if names is None else [str(name) for name in names.flat]
    columns = _columns_of_array(table, given)
    side = {}
    for name, array in flat.items():
        if len(array) == len(table) and name not in columns:
            side[name] = array
    return columns, side


def _columns_of_array(array: NDArray[Any], names: Sequence[str] | None) -> Columns:
    fields = array.dtype.names
    if fields is not None and array.ndim == 1:
        return {name: array[name] for name in fields}
    if array.ndim != 2:
        raise DataError(
            f"Expected a two-dimensional array of records. Got {array.ndim}-d instead."
        )
    if names is None:
        names = default_names(array.shape[1])
    n_different = len(set(names))
    if n_different != array.shape[1] or len(names) > n_different:
        raise DataError(
            f"Expected {array.shape[1]} different names in columns. Got {len(names)} names instead."
        )
    return dict(zip(names, array.T, strict=True))
