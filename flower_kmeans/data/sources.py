"""Sources of a client's records, read in blocks of bounded size, repeatedly.

An array, a table, a sparse matrix, a memory map, a factory of chunks, a file or data
set of pyarrow, a data set of Hugging Face or Ray, and a query of a database all become
a `Source`. Blocks are copies, so a loader that changes its memory cannot change a block
in use. The division into blocks changes no result, because sums of integers are exact.
"""

import hashlib
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from inspect import GEN_CREATED, getgeneratorstate
from types import GeneratorType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.frames import any_copy, require_no_transform, text_as_bytes
from flower_kmeans.data.persons import (
    KnownPersons,
    PersonCounts,
    PersonKeys,
    Tally,
    above,
    counts_of,
    keys_of,
    merged,
)
from flower_kmeans.data.records import (
    all_records,
    check_columns,
    check_records,
    first_bad_row,
    numbers,
    table_of_rows,
)
from flower_kmeans.data.spelling import Spelling
from flower_kmeans.data.weights import (
    NO_PERSONS,
    Weighing,
    WeightCounts,
    checked_weights,
    require_one_each,
)
from flower_kmeans.errors import ConfigurationTypeError, DataError, KMeansError

# An alias: an inner function evaluates its annotations whenever it is defined.
Tables = Iterator[NDArray[Any]]
# takes a block of records and returns integers that are added over blocks
RowPart = Callable[[NDArray[Any]], IntArray]
RecordsLike = Any
"""Types of records that are read.

They are: an array-like; a table of pandas, polars or pyarrow, or a dict of columns; a
list of records; a sparse matrix of SciPy; a function that returns a new iterable of
these at each call; a ``datasets.Dataset``, ``pyarrow.dataset.Dataset``,
``pyarrow.parquet.ParquetFile`` or ``ray.data.Dataset``; a
`flower_kmeans.data.sql.SqlQuery`. An object of any other type is an error.
"""

_BLOCK_NUMBERS = 2**22  # most numbers of a block: 32 MB in float64
_FEWEST_ROWS = 64
# numbers that are checked and copied at once, few enough to stay in a cache
_CHECKED_NUMBERS = 2**16
_DENSE_NUMBERS = 2**27  # most cells of a sparse matrix in a simulation: 1 GB in float64
_TASKS = 256  # most tasks on a cluster at once
_READ_BYTES = 2**18  # buffer for a column of a parquet file
_WHOLE = "data"  # the column of Ray's data sets that were arrays
_TYPED = ("parquet", "arrow", "orc")  # formats whose columns have declared types


@dataclass(eq=False)
class Source:
    """Records of ``n_features`` columns that can be read any number of times.

    Attributes
    ----------
    n_features : int
        Number of columns, d.
    dtype : dtype
        Type of the blocks, float32 or float64.
    parts : callable
        Returns an iterable of the rows in order, as arrays (m, d) of real numbers with
        any m. Malformed cells are NaN.
    n_rows : int
        An upper bound of the number of rows.
    in_memory : bool
        Whether the records are in this process's memory.
    is_finite : bool
        Whether all records are finite, in memory that nobody changes during the run.
    is_live : bool
        Whether two passes may find different records. A run then reads them once.
    sum_in_place : callable, optional
        Takes a function of a block, and returns its sum over all blocks and the number
        of null records. Blocks are read on the machines where they are.
    weigh_in_place : callable, optional
        Takes a `Weighing`, the name of the column of ids, that of weights (each empty
        if it is not needed) and a secret. Returns the source with weights, and the
        counts of what they changed. Blocks are read on the machines where they are.
    n_null : int
        Number of rows that the last pass left out. It is private, for the client's own
        log only.
    """

    n_features: int
    dtype: np.dtype[Any]
    parts: Callable[[], Iterable[NDArray[Any]]]
    n_rows: int = sys.maxsize
    in_memory: bool = False
    is_finite: bool = False
    is_live: bool = False
    sum_in_place: Callable[[RowPart], tuple[IntArray, int]] | None = None
    weigh_in_place: "Callable[[Weighing, str, str, bytes], Weighed] | None" = None
    n_null: int = 0

    def blocks(self, keep_null: bool = False) -> Iterator[NDArray[Any]]:
        """Yield the finite records in blocks, (m, n_features), which share one memory.

        A record that is malformed or not finite is a null record. It is left out, or
        kept as it is with ``keep_null``. All records take the same path, so the time
        shows no more about a record than the result.
        """
        if self.is_finite:
            yield from self.parts()
            return
        rows = min(self.n_rows, max(_FEWEST_ROWS, _BLOCK_NUMBERS // self.n_features))
        step = max(1, min(rows, _CHECKED_NUMBERS // self.n_features))
        buffer = np.empty((rows + step, self.n_features), self.dtype)
        weights = _weights(self.n_features, self.dtype)
        filled = 0
        self.n_null = 0
        for part in self.parts():
            for start in range(0, len(part), step):
                # The copy is checked, because others may change the part.
                with np.errstate(over="ignore", invalid="ignore"):
                    piece = np.array(part[start : start + step], dtype=self.dtype)
                    are_kept = _are_finite(piece, weights)
                if keep_null:
                    are_kept[:] = True
                (kept,) = are_kept.nonzero()
                self.n_null += len(piece) - len(kept)
                room = buffer[filled : filled + len(kept)]
                # This mode needs no second copy, which the default mode makes.
                piece.take(kept, axis=0, out=room, mode="clip")
                filled += len(kept)
                if filled >= rows:
                    yield buffer[:rows]
                    filled -= rows
                    buffer[:filled] = buffer[rows : rows + filled]
        if filled:
            yield buffer[:filled]

    def usable_rows(
        self, are_null: Callable[[NDArray[Any]], BoolArray] | None = None
    ) -> BoolArray:
        """Return which rows are no null records, (n,) bool.

        ``are_null`` returns which finite rows, (m, d), are null records of the domain.
        """
        weights = _weights(self.n_features, self.dtype)
        parts = []
        for block in self.blocks(keep_null=True):
            with np.errstate(invalid="ignore"):
                usable = _are_finite(block, weights)
            if are_null is not None:
                usable &= ~are_null(block)
            parts.append(usable)
        if not parts:
            return np.zeros(0, dtype=bool)
        return np.concatenate(parts)

    def loaded(self, keep_null: bool = False) -> NDArray[Any]:
        """Return a copy of all finite records, (n, n_features), in memory.

        With ``keep_null`` null records are kept.
        """
        return joined(self.blocks(keep_null), self.n_features)


def _are_finite(rows: NDArray[Any], weights: NDArray[Any]) -> BoolArray:
    """Return which rows, (m, d), have finite numbers only."""
    # One product is much faster than `isfinite` of every number.
    found: BoolArray = np.isfinite(rows @ weights)
    return found


def _weights(n_features: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return weights, (d,), so small that a weighted sum of finite numbers is finite.

    The sum is at most half of the largest number. One of other numbers is not finite.
    """
    return np.full(n_features, 0.5 ** (n_features.bit_length() + 1), dtype)


def joined(blocks: Iterable[NDArray[Any]], n_features: int) -> NDArray[Any]:
    """Return the records of blocks in one new array (n, n_features)."""
    kept = [block.copy() for block in blocks]
    if kept:
        return np.concatenate(kept)
    return np.empty((0, n_features))


def as_source(
    records: RecordsLike, n_features: int, columns: Sequence[str] | None = None
) -> Source:
    """Return the source of a user's records. Files and streams are not read yet.

    Parameters
    ----------
    records : RecordsLike
        Of a file or data set the ``columns`` are read, or all if that is ``None``.
        Integers, booleans, decimals and text are read as numbers.
    n_features : int
        The expected width, d.
    columns : sequence of str, optional
        Names of the columns, in order. Records in memory that name their columns must
        have the same names.

    Returns
    -------
    Source

    Raises
    ------
    DataError, ConfigurationTypeError
        If the type is not one of records, or the columns are others. No single record
        decides this.
    """
    if isinstance(records, Source):
        return records
    make = _reader_of(records)
    if make is not None:
        return make(records, n_features, columns)
    table = all_records(records, n_features, columns)
    mapped = _map_behind(table)

    parts = _slices(table)

    def mapped_parts() -> Tables:
        with _unchanged(lambda: mapped is not None and _state_of_file(mapped)) as check:
            for part in parts():
                check()  # reading beyond a file's end would end the process
                yield part

    in_memory = mapped is None
    read = parts if in_memory else mapped_parts
    return Source(n_features, _float_type(table.dtype), read, len(table), in_memory)


def finite_source(table: NDArray[Any]) -> Source:
    """Return a source of finite records, (n, d), which are neither checked nor copied again.

    Parameters
    ----------
    table : ndarray of shape (n, d), float32 or float64
        Finite records, which nobody changes while the source is in use.
    """
    width = table.shape[1]
    # Blocks are not copied, so they may be larger.
    parts = _slices(table, 2 * _BLOCK_NUMBERS)
    return Source(width, table.dtype, parts, len(table), in_memory=True, is_finite=True)


# --------------------------------------------------------------------------- weights


class Weighed(NamedTuple):
    """A source with weights, and the counts of records that they changed."""

    source: Source
    counts: WeightCounts


def weighed(
    source: Source,
    weighing: Weighing,
    ids: Any,
    weights: Any,
    secret: bytes,
    are_null: Callable[[NDArray[Any]], BoolArray] | None = None,
) -> Weighed:
    """Return the source whose last column holds the integer weight of each record.

    Parameters
    ----------
    source : Source
        Records without weights.
    weighing : Weighing
        The public rule of the run.
    ids : iterable of hashable or str
        One id for each record, null records included, if persons count. For a data set
        of Ray it may be the name of its column of ids.
    weights : array-like of shape (n,) or str
        The weights by a public rule, if records have them. For a data set of Ray it may
        be the name of a column.
    secret : bytes
        Secret key of the hash that compares ids, 32 bytes.
    are_null : callable, optional
        Returns which finite rows, (m, d), are null records of the domain.

    Raises
    ------
    DataError, ConfigurationTypeError
        If ids or weights are not what the rule needs, or records come in an order that
        may change.
    """
    if source.is_live:
        raise DataError(
            "Expected records in a fixed order, to which ids or weights belong: write the "
            "query's result to a file, such as parquet. Got records from a database."
        )
    names = []
    if weighing.counts_persons:
        names.append(ids)
    if weighing.has_weights:
        names.append(weights)
    are_columns = all(isinstance(name, str) for name in names)
    if source.weigh_in_place is not None and are_columns:
        id_column = ids if weighing.counts_persons else ""
        weight_column = weights if weighing.has_weights else ""
        return source.weigh_in_place(weighing, id_column, weight_column, secret)
    if source.weigh_in_place is not None:
        raise DataError(
            "Expected the names of columns of the data set as ids and weights of a data set of "
            "Ray, whose blocks may come in another order. Got values."
        )
    if isinstance(ids, KnownPersons) and source.in_memory:

        def make() -> Weighed:
            return _held(
                _weighed_here(source, weighing, ids, weights, secret, are_null)
            )

        found: Weighed = ids.results.first(weighing, make)
        return found
    return _weighed_here(source, weighing, ids, weights, secret, are_null)


def _held(found: Weighed) -> Weighed:
    """Return a source with weights whose records are in memory."""
    table = found.source.loaded()
    parts = _slices(table)
    n_null = found.source.n_null
    source = replace(found.source, parts=parts, is_finite=True, n_null=n_null)
    return Weighed(source, found.counts)


def _slices(
    table: NDArray[Any], most_numbers: int = _BLOCK_NUMBERS
) -> Callable[[], Tables]:
    """Return a function that yields the rows of a table in blocks."""
    rows = max(1, most_numbers // table.shape[1])

    def parts() -> Tables:
        for start in range(0, len(table), rows):
            yield table[start : start + rows]

    return parts


def _weighed_here(
    source: Source,
    weighing: Weighing,
    ids: Any,
    weights: Any,
    secret: bytes,
    are_null: Callable[[NDArray[Any]], BoolArray] | None,
) -> Weighed:
    """Return the source with weights whose blocks this process reads."""
    if not source.in_memory:
        source = _in_one_order(source)
    usable = source.usable_rows(are_null)
    persons = None
    totals = NO_PERSONS
    n_missing = 0
    if weighing.counts_persons:
        persons = keys_of(ids, secret)
        require_one_each("an id", len(persons.keys), len(usable))
        totals = counts_of(persons, usable)
        n_missing = int(np.count_nonzero(persons.is_missing & usable))
    own = None
    if weighing.has_weights:
        own = checked_weights(weights)
        require_one_each("a weight", len(own), len(usable))
    found = weighing.of_block(usable, persons, totals, NO_PERSONS, own)
    counts = weighing.counts(n_missing, totals)
    if own is not None:
        n_vanished = int(np.count_nonzero(usable & (own > 0) & (found == 0)))
        counts = counts._replace(n_vanished=n_vanished)
    return Weighed(weighted(source, found), counts)


def _in_one_order(source: Source) -> Source:
    """Return a source that raises at the end of a pass unless it is equal to the first one.

    The ids and weights of records belong to their places.
    """
    first: list[bytes] = []

    def parts() -> Tables:
        digest = hashlib.blake2b()
        for part in source.parts():
            with np.errstate(over="ignore", invalid="ignore"):
                rows = np.ascontiguousarray(part, source.dtype)
            digest.update(rows.data)
            yield rows
        found = digest.digest()
        if not first:
            first.append(found)
        if found != first[0]:
            raise DataError(
                "Expected the same records in the same order in all passes. Got others."
            )

    return replace(source, parts=parts)


def weighted(source: Source, weights: IntArray) -> Source:
    """Return the records with their weights, (n,), as one more column."""
    width = source.n_features + 1

    def parts() -> Tables:
        start = 0
        for part in source.parts():
            own = weights[start : start + len(part)]
            start += len(part)
            if start > len(weights):
                break
            block = np.empty((len(part), width), source.dtype)
            with np.errstate(over="ignore"):
                block[:, :-1] = part
            # float32 holds every weight, too.
            block[:, -1] = own
            yield block
        if start != len(weights):
            raise DataError(
                "Expected the same number of records in all passes. Got another one."
            )

    return replace(
        source,
        n_features=width,
        parts=parts,
        sum_in_place=None,
        weigh_in_place=None,
        n_null=0,
    )


def checked_source(
    records: RecordsLike, n_features: int, columns: Sequence[str] | None, name: str
) -> RecordsLike:
    """Return checked records: as an array, or unchanged if they are a stream.

    Only simulations use it, because its errors tell which record is malformed. The
    rows of a query are read once, into memory.

    Parameters
    ----------
    records : RecordsLike
    n_features : int
        The expected width, d.
    columns : sequence of str or None
        Names of the columns, as for `as_source`.
    name : str
        The name of the records in error messages.

    Raises
    ------
    DataError, ConfigurationTypeError
        If these are not records of these columns, or a cell is not a finite number.
    """
    with _called(name):
        if _reader_of(records) is _of_query:
            records = as_source(records, n_features, columns).loaded(keep_null=True)
            columns = None
        if _reader_of(records) is _of_sparse:
            return _dense(records, n_features, columns)
        if not is_stream(records):
            return _checked_table(records, n_features, columns)
        if _reader_of(records) is _of_ray:
            _check_in_ray(records, columns)
        start = 0
        source = as_source(records, n_features, columns)
        for block in source.blocks(keep_null=True):
            _require_finite(block, start)
            start += len(block)
        if callable(records):
            # A second pass is an error if the chunks can be read only once.
            next(iter(source.parts()), None)
    return records


@contextmanager
def _called(name: str) -> Iterator[None]:
    """Put the name of the records into errors about them."""
    try:
        yield
    except (DataError, ConfigurationTypeError) as error:
        text = str(error)
        rest = text.removeprefix("Expected records ")
        named = f"{name}: {text}" if rest == text else f"Expected {name} {rest}"
        raise type(error)(named) from None


def _checked_table(
    records: Any, n_features: int, columns: Sequence[str] | None
) -> NDArray[Any]:
    """Return finite records, (n, d). An array of floats is not copied."""
    kept = np.float64, np.float32
    try:
        table = all_records(records, n_features, columns)
        if not isinstance(records, np.ndarray) or records.dtype.kind not in "biuf":
            _require_finite(table, 0)
    except DataError:
        if isinstance(records, np.ndarray) and records.dtype.names is None:
            check_records(records, n_features)  # its errors name the type or shape
        raise
    return check_records(table, n_features, dtypes=kept)


def _require_finite(table: NDArray[Any], start: int) -> None:
    bad = first_bad_row(table)
    if bad is not None:
        raise DataError(
            "Expected records to be finite. Got NaN, infinity or a cell that is no number in row "
            f"{start + bad} instead."
        )


def has_a_record(
    records: RecordsLike,
    n_features: int,
    columns: Sequence[str] | None,
    counted: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> bool:
    """Return whether a record counts in a run, or there are no records at all.

    It is false only if all records are null. Only simulations use it. Reading stops at
    the first block with a record that counts. ``counted`` returns the records of a
    block that count, as `Sphere.counted`; by default all.
    """
    source = as_source(records, n_features, columns)
    n_read = 0
    for block in source.blocks():
        n_read += len(block)
        if counted is None or len(counted(block)):
            return True
    return n_read + source.n_null == 0


def is_stream(records: RecordsLike) -> bool:
    """Return whether records are a stream: not an array-like in memory."""
    return _reader_of(records) is not None or _map_behind(records) is not None


def _reader_of(records: RecordsLike) -> "_BatchReader | None":
    """Return the reader of records that are a stream, or ``None`` for an array-like."""
    for module, name, make in _READERS:
        # An object exists only after its class's module was imported.
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(records, kind):
            return make
    if callable(records) or isinstance(records, Iterator):
        return _of_chunks
    return None


def _float_type(dtype: DTypeLike) -> np.dtype[Any]:
    is_short = np.dtype(dtype) == np.dtype(np.float32)
    return np.dtype(np.float32 if is_short else np.float64)


# -------------------------------------------------------------------------- memory maps


def _map_behind(table: object) -> np.memmap[Any, Any] | None:
    while table is not None:
        if isinstance(table, np.memmap) and table.filename is not None:
            return table
        table = getattr(table, "base", None)
    return None


def _state_of_file(mapped: np.memmap[Any, Any]) -> object:
    behind: Any = mapped
    while not isinstance(behind, mmap.mmap):
        behind = behind.base
    start = mapped.offset - mapped.offset % mmap.ALLOCATIONGRANULARITY
    if behind.size() < start + len(behind):
        raise DataError(
            "Expected the file of a memory map as long as when it was mapped."
        )
    stat = os.stat(str(mapped.filename))
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextmanager
def _unchanged(state: Callable[[], object]) -> Iterator[Callable[[], None]]:
    """Yield a check that files did not change, and check once more at the end."""
    with _readable():
        before = state()

    def check() -> None:
        with _readable():
            if state() != before:
                raise DataError(
                    "Expected files of records that do not change while they are read."
                )

    yield check
    check()


@contextmanager
def _readable() -> Iterator[None]:
    """Turn a reader's errors into a `DataError` without their text.

    The text may quote records. Errors of the operating system keep theirs.
    """
    try:
        yield
    except KMeansError:
        raise
    except Exception as error:
        is_of_system = isinstance(error, OSError) and error.errno is not None
        if is_of_system:
            what = str(error)
        else:
            what = type(error).__name__
        raise DataError(f"Expected records that can be read. Got {what}.") from None


# --------------------------------------------------------------------------- chunks


def _of_chunks(make: Any, n_features: int, columns: Sequence[str] | None) -> Source:
    last: list[object] = [None]

    def refuse(got: str) -> NoReturn:
        raise ConfigurationTypeError(
            f"Expected a function that returns an iterable of chunks, anew at each call. Got {got}."
        )

    if not callable(make):
        refuse(f"the iterable itself, a {type(make).__name__}")
    if isinstance(make, type):
        refuse(f"the class {make.__name__}")

    def parts() -> Tables:
        chunks = make()
        # A generator that an earlier message has used up would yield no records.
        is_used = False
        if isinstance(chunks, GeneratorType):
            is_used = getgeneratorstate(chunks) != GEN_CREATED
        is_same = is_used or chunks is last[0] is not None
        if not isinstance(chunks, Iterable) or is_same:
            refuse("the same iterator twice" if is_same else type(chunks).__name__)
        if isinstance(chunks, Iterator):  # one pass uses it up
            last[0] = chunks
        for chunk in chunks:
            if n_features > 1 and _is_record(chunk):
                refuse(
                    "one of records: put them into a list, or return them without a function"
                )
            yield all_records(chunk, n_features, columns)

    return Source(n_features, np.dtype(np.float64), parts)


def _is_record(chunk: Any) -> bool:
    """Return whether a chunk is in fact one record: a list of two or more numbers."""
    if not isinstance(chunk, list | tuple) or len(chunk) < 2:
        return False
    return all(isinstance(cell, int | float | np.number) for cell in chunk)


# ---------------------------------------------------------------------- sparse matrices


def _of_sparse(matrix: Any, n_features: int, columns: Sequence[str] | None) -> Source:
    """Return the source of a sparse matrix, which yields dense blocks.

    The whole matrix may not fit into memory if it is dense.
    """
    if matrix.ndim != 2 or matrix.shape[1] != n_features:
        raise DataError(
            f"Expected records as a two-dimensional array of shape (n, {n_features}). "
            f"Got shape {matrix.shape} of {type(matrix).__name__} instead."
        )
    if matrix.dtype.kind not in "biufc":
        raise ConfigurationTypeError(
            "Expected records as a sparse matrix of real numbers. "
            f"Got dtype {matrix.dtype} instead."
        )
    rows = matrix.tocsr()

    def parts() -> Tables:
        step = _rows(n_features)
        for start in range(0, rows.shape[0], step):
            block = rows[start : start + step]
            yield all_records(block.toarray(), n_features)

    return Source(n_features, _float_type(matrix.dtype), parts, rows.shape[0])


def _dense(matrix: Any, n_features: int, columns: Sequence[str] | None) -> NDArray[Any]:
    """Return a simulation's sparse matrix as an array, with all cells finite."""
    source = _of_sparse(matrix, n_features, columns)
    if matrix.shape[0] * n_features > _DENSE_NUMBERS:
        raise DataError(
            f"Expected records as a sparse matrix of at most {_DENSE_NUMBERS} cells, because a "
            f"simulation holds all of them. Got shape {matrix.shape} instead: give a function that "
            "returns chunks."
        )
    table = source.loaded(keep_null=True)
    _require_finite(table, 0)
    return table


# --------------------------------------------------------------------------- datasets


def _of_hub(dataset: Any, n_features: int, columns: Sequence[str] | None) -> Source:
    """Return the source of a ``datasets.Dataset``, such as those of flwr-datasets."""
    require_no_transform(dataset)
    if not dataset.column_names and len(dataset) == 0:  # an empty one has no columns
        return Source(n_features, np.dtype(np.float64), tuple)
    # By default the format has all columns. A user may have chosen some by
    # `set_format`.
    if columns is None:
        wanted = dataset.format["columns"]
    else:
        wanted = columns
    names, dtype = _chosen(dataset.features.arrow_schema, n_features, columns, wanted)
    chosen = dataset.select_columns(names).with_format("arrow")

    def parts() -> Tables:
        with _readable():
            batches = chosen.iter(_rows(n_features))
        yield from _tables(batches, names, dtype)

    return Source(n_features, dtype, parts, len(dataset))


# --------------------------------------------------------------------------- pyarrow


def _of_dataset(dataset: Any, n_features: int, columns: Sequence[str] | None) -> Source:
    names, dtype = _chosen(dataset.schema, n_features, columns)

    def parts() -> Tables:
        with _unchanged(lambda: _state_of_files(dataset)):
            with _readable():
                try:
                    fragments = list(dataset.get_fragments())
                except ValueError:  # a filtered data set has no fragments
                    fragments = [dataset]
                for fragment in fragments:
                    _check_fragment(fragment, dataset.schema, names)
            for fragment in fragments:
                with _readable():
                    batches = _batches(fragment, dataset.schema, names)
                yield from _tables(batches, names, dtype)

    return Source(n_features, dtype, parts)


def _check_fragment(fragment: Any, schema: Any, names: Sequence[str]) -> None:
    """Require that one file of a data set has all columns with the declared types.

    A format without types, such as csv, is an error: pyarrow would read types off the
    records.
    """
    kind = _format_of(fragment)
    if kind not in _TYPED:
        raise DataError(
            f"Expected a data set of files whose columns have types: one of {', '.join(_TYPED)}. "
            f"Got {kind}, where single records decide them."
        )
    if not hasattr(fragment, "physical_schema"):
        return
    found = fragment.physical_schema
    for name in set(names) - _of_path(fragment):
        if name not in found.names:
            raise DataError(
                f"Expected the column {name!r} in every file of a data set."
            )
        if found.field(name).type != schema.field(name).type:
            raise DataError(
                f"Expected the column {name!r} as {schema.field(name).type} in every file of a "
                f"data set. Got {found.field(name).type}."
            )


def _format_of(fragment: Any) -> str:
    return str(getattr(getattr(fragment, "format", None), "default_extname", "arrow"))


def _of_path(fragment: Any) -> set[str]:
    """Return the names of the columns that a file's path gives."""
    from pyarrow.dataset import get_partition_keys

    return set(get_partition_keys(fragment.partition_expression))


def _batches(fragment: Any, schema: Any, names: list[str]) -> Iterator[Any]:
    """Return the batches of a fragment, or of a whole data set."""
    if hasattr(fragment, "row_groups") and not _of_path(fragment) & set(names):
        from pyarrow.parquet import ParquetFile

        # The scanner would decode several row groups ahead, and a single row group may
        # be a whole file.
        file = ParquetFile(fragment.open(), pre_buffer=False, buffer_size=_READ_BYTES)
        return _groups(file, names, [group.id for group in fragment.row_groups])
    # Without reading ahead, one batch at a time is in memory.
    options: dict[str, Any] = {"batch_readahead": 0, "fragment_readahead": 0}
    if hasattr(fragment, "physical_schema"):
        # The file's own schema lacks the columns that its path gives.
        options["schema"] = schema
    if _format_of(fragment) == "parquet":
        from pyarrow.dataset import ParquetFragmentScanOptions

        options["fragment_scan_options"] = ParquetFragmentScanOptions(pre_buffer=False)
    options["columns"] = names
    options["batch_size"] = _rows(len(names))
    batches: Iterator[Any] = fragment.to_batches(**options)
    return batches


def _groups(file: Any, names: list[str], groups: Iterable[int]) -> Iterator[Any]:
    size = _rows(len(names))
    # With several row groups in one call, pyarrow would read all of them ahead.
    for group in groups:
        yield from file.iter_batches(size, row_groups=[group], columns=names)


def _state_of_files(dataset: Any) -> object:
    children = getattr(dataset, "children", None)
    if children is not None:
        return [_state_of_files(child) for child in children]
    if not getattr(dataset, "files", None):
        return None
    infos = dataset.filesystem.get_file_info(dataset.files)
    return [(info.path, info.type, info.size, info.mtime_ns) for info in infos]


def _of_parquet_file(
    file: Any, n_features: int, columns: Sequence[str] | None
) -> Source:
    names, dtype = _chosen(file.schema_arrow, n_features, columns)

    def parts() -> Tables:
        batches = _groups(file, names, range(file.num_row_groups))
        yield from _tables(batches, names, dtype)

    return Source(n_features, dtype, parts)


def _rows(n_features: int) -> int:
    return max(_FEWEST_ROWS, _CHECKED_NUMBERS // n_features)


def _chosen(
    schema: Any,
    n_features: int,
    columns: Sequence[str] | None,
    wanted: Sequence[str] | None = None,
) -> tuple[list[str], np.dtype[Any]]:
    """Return the names of the columns to read, and the type of the blocks.

    The names are ``wanted``, else ``columns``, else all. The type is float32 if all
    columns have it, else float64.
    """
    import pyarrow

    names = list(wanted or columns or schema.names)
    if columns is None and len(names) != n_features:
        raise DataError(
            f"Expected records with {n_features} columns. Got {len(names)} instead: name those to "
            "read in columns= of the domain."
        )
    for name in names:
        n_found = schema.names.count(name)
        if n_found != 1:
            raise DataError(
                f"Expected the column {name!r} once. Got it {n_found} times."
            )
        kind = schema.field(name).type
        if pyarrow.types.is_temporal(kind) or pyarrow.types.is_nested(kind):
            raise ConfigurationTypeError(
                f"Expected the column {name!r} as numbers. Got {kind}."
            )
    types = [schema.field(name).type for name in names]
    short = all(kind == pyarrow.float32() for kind in types)
    return names, np.dtype(np.float32 if short else np.float64)


def _tables(
    batches: Iterable[Any], names: Sequence[str], dtype: np.dtype[Any]
) -> Iterator[NDArray[Any]]:
    """Yield batches of pyarrow as arrays, (m, d), NaN for cells without a number."""
    for batch in _each(batches):
        with _readable():
            table = np.empty((batch.num_rows, len(names)), dtype)
            for i, name in enumerate(names):  # the file may have another order
                column = text_as_bytes(batch.column(name))
                values = column.to_numpy(**any_copy(column))
                cells = values if values.dtype.kind in "biuf" else numbers(values)
                table[:, i] = np.nan if cells is None else cells
        yield table


def _each(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield a reader's batches, and turn its errors into a `DataError`."""
    found = iter(batches)
    while True:
        with _readable():
            batch = next(found, None)
        if batch is None:
            return
        yield batch


# --------------------------------------------------------------------------- databases


def _of_query(query: Any, n_features: int, columns: Sequence[str] | None) -> Source:
    """Return the source of a query, of numbers or of encoded declared columns."""
    domain = query.domain
    if domain is None:
        names = list(query.names if columns is None else columns)
        encoded = names
    else:
        names = [column.name for column in domain.declared]
        encoded = list(domain.columns)
        check_columns(encoded, columns)
    if len(encoded) != n_features:
        raise DataError(
            f"Expected records with {n_features} columns. Got {len(encoded)} instead."
        )
    for name in names:
        if name not in query.names:
            raise DataError(
                f"Expected the column {name!r} in the query. Got {', '.join(query.names)}."
            )

    def parts() -> Tables:
        for block in query.blocks():
            if domain is not None:
                yield domain.encode(block, "nan", query.spelling)
            else:
                cells = []
                for name in names:
                    cells.append(_number_cells(block[name], name, query.spelling))
                yield np.column_stack(cells)

    return Source(n_features, np.dtype(np.float64), parts, is_live=True)


def _number_cells(
    cells: NDArray[Any], name: str, spelling: Spelling
) -> NDArray[np.float64]:
    """Return the cells of a column as numbers, (m,), NaN for other cells."""
    if cells.dtype.kind in "mM":  # the database declares it, so no record decides it
        raise ConfigurationTypeError(
            f"Expected the column {name!r} as numbers. Got dates."
        )
    return spelling.numbers(cells)


# --------------------------------------------------------------------------- Ray


class _BlockReader(NamedTuple):
    """How tasks read blocks of a data set of Ray."""

    names: Sequence[str]
    n_features: int
    weigher: "_BlockWeigher | None" = None

    def source(self, block: Any, before: PersonCounts) -> Source:
        """Return the source of a block; ``before`` counts persons in earlier blocks."""
        from ray.data.block import BlockAccessor

        tables = partial(_tables_of_block, block, self.names, self.n_features)
        n_rows = BlockAccessor.for_block(block).num_rows()
        source = Source(self.n_features, np.dtype(np.float64), tables, n_rows)
        if self.weigher is None:
            return source
        weights = self.weigher.weights(block, source.usable_rows(), before)
        return weighted(source, weights)


class _BlockWeigher(NamedTuple):
    """How tasks weigh the records of a block of Ray."""

    weighing: Weighing
    id_column: str
    weight_column: str
    secret: bytes
    totals: PersonCounts = NO_PERSONS

    def persons(self, block: Any) -> PersonKeys | None:
        """Return the keys of a block's ids; ``None`` if persons do not count."""
        if not self.weighing.counts_persons:
            return None
        return keys_of(_column_of_block(block, self.id_column), self.secret)

    def own(self, block: Any) -> FloatArray | None:
        """Return the weights of a block by the public rule, or ``None``."""
        if not self.weighing.has_weights:
            return None
        return checked_weights(np.asarray(_column_of_block(block, self.weight_column)))

    def weights(self, block: Any, usable: BoolArray, before: PersonCounts) -> IntArray:
        """Return the weights of the records of a block, (n,) int64."""
        persons = self.persons(block)
        own = self.own(block)
        return self.weighing.of_block(usable, persons, self.totals, before, own)


def _column_of_block(block: Any, name: str) -> Any:
    """Return a column of a block of Ray, a table of pyarrow or pandas."""
    from ray.data.block import BlockAccessor

    names = list(getattr(BlockAccessor.for_block(block).schema(), "names", ()))
    if names.count(name) != 1:
        raise DataError(
            f"Expected the column {name!r} once in every block of a data set of Ray."
        )
    return block[name]


def _of_ray(dataset: Any, n_features: int, columns: Sequence[str] | None) -> Source:
    reader = _BlockReader(_names_in_ray(columns), n_features)

    def blocks() -> Iterator[tuple[Any, PersonCounts]]:
        # Blocks are read one by one: Ray cannot join them after one record has turned a
        # column into text.
        with _readable():
            bundles = dataset.iter_internal_ref_bundles()
        for bundle in _each(bundles):
            for block, _ in bundle.blocks:
                yield block, NO_PERSONS

    def weigh(weighing: Weighing, ids: str, weights: str, secret: bytes) -> Weighed:
        weigher = _BlockWeigher(weighing, ids, weights, secret)
        # Weights belong to the order of the blocks, which another execution of the data
        # set might change.
        kept = [block for block, _ in blocks()]
        return _weighed_in_ray(kept, reader._replace(weigher=weigher))

    return _source_in_ray(blocks, reader, weigh)


def _source_in_ray(
    blocks: Callable[[], Iterable[tuple[Any, PersonCounts]]],
    reader: _BlockReader,
    weigh: Callable[[Weighing, str, str, bytes], Weighed] | None,
) -> Source:
    """Return the source of references to blocks, with the counts of persons before them."""
    width = reader.n_features
    if reader.weigher is not None:
        width += 1

    def parts() -> Tables:
        import ray

        for reference, before in blocks():
            with _readable():
                block = ray.get(reference)
            yield from reader.source(block, before).parts()

    def summed(part: RowPart) -> tuple[IntArray, int]:
        """Return the sum over all blocks and the number of null records.

        Tasks compute both on the machines that hold the blocks.
        """
        import ray

        # After a worker is lost, Ray repeats its tasks. The same block gives the same
        # integers.
        task = ray.remote(_sum_of_block)
        # One zero can be added to an array of any length.
        shared = ray.put((part, reader))
        total = np.zeros(1, np.int64)
        n_null = 0
        waiting: list[Any] = []

        def collect(most: int) -> None:
            nonlocal total, n_null
            while len(waiting) > most:
                ready, waiting[:] = ray.wait(waiting)
                for words, n in ray.get(ready):
                    total = total + words
                    n_null = n_null + n

        with _readable():
            for block, before in blocks():
                waiting.append(task.remote(block, before, shared))
                collect(_TASKS)
            collect(0)
        return total, n_null

    return Source(
        width,
        np.dtype(np.float64),
        parts,
        sum_in_place=summed,
        weigh_in_place=weigh,
    )


class _CountsOfBlock(NamedTuple):
    """A task's counts of the persons of a block of Ray, or its error."""

    counts: PersonCounts
    n_missing: int = 0
    error: KMeansError | None = None


def _weighed_in_ray(blocks: Sequence[Any], reader: _BlockReader) -> Weighed:
    """Return the source with weights of references to blocks.

    A first pass counts each person's records by block. The second, which sums or reads
    the blocks, weighs them by the totals.
    """
    import ray

    weigher = reader.weigher
    if weigher is None:
        raise ValueError("Expected a reader with a weigher.")
    task = ray.remote(_count_in_block)
    shared = ray.put(reader)
    with _readable():
        # The counts stay on the cluster, because those of all blocks may take much
        # more memory than their sum.
        counted = [task.remote(block, shared) for block in blocks]
        tally = Tally()
        n_missing = 0
        for reference in counted:
            found = ray.get(reference)
            if found.error is not None:
                raise found.error
            tally.add(found.counts)
            n_missing += found.n_missing
        totals = tally.total()
        heavy = above(totals, weigher.weighing.room)
        before = _counts_before(counted, heavy)
        totals_there = reader._replace(weigher=weigher._replace(totals=totals))
    placed = list(zip(blocks, before, strict=True))
    source = _source_in_ray(lambda: placed, totals_there, None)
    return Weighed(source, weigher.weighing.counts(n_missing, totals))


def _counts_before(counted: Sequence[Any], heavy: PersonCounts) -> list[PersonCounts]:
    """Return, for each block, the counts in earlier blocks of the persons in ``heavy``."""
    import ray

    if not len(heavy.keys):
        return [NO_PERSONS] * len(counted)
    found = []
    so_far = NO_PERSONS
    for reference in counted:
        found.append(so_far)
        counts = ray.get(reference).counts
        is_heavy = np.isin(counts.keys, heavy.keys)
        own = PersonCounts(counts.keys[is_heavy], counts.counts[is_heavy])
        so_far = merged([so_far, own])
    return found


def _count_in_block(block: Any, reader: _BlockReader) -> _CountsOfBlock:
    """Return the counts of the persons of a block of Ray. It also checks weights."""
    weigher = reader.weigher
    if weigher is None:
        raise ValueError("Expected a reader with a weigher.")
    try:
        weigher.own(block)
        persons = weigher.persons(block)
    except KMeansError as error:
        # Ray would show the text of the task's own error in a long one.
        return _CountsOfBlock(NO_PERSONS, error=error)
    if persons is None:
        return _CountsOfBlock(NO_PERSONS)
    usable = reader._replace(weigher=None).source(block, NO_PERSONS).usable_rows()
    n_missing = int(np.count_nonzero(persons.is_missing & usable))
    return _CountsOfBlock(counts_of(persons, usable), n_missing)


def _names_in_ray(columns: Sequence[str] | None) -> Sequence[str]:
    """Return the names of the columns to read.

    Without ``columns`` it is the one column in which Ray puts the rows of an array.
    """
    # A block's own names do not count: a single record may add columns to its block, or
    # change their order.
    return [_WHOLE] if columns is None else columns


def _check_in_ray(dataset: Any, columns: Sequence[str] | None) -> None:
    """Require a data set's columns and their types, as far as Ray knows its schema.

    Only simulations may use it: the schema of a computed data set may depend on single
    records.
    """
    import pyarrow

    try:
        schema = dataset.schema()
    except Exception:  # types of blocks differ
        schema = None
    # A data set without records has no schema either.
    if schema is None or not schema.names:
        return
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for name in _names_in_ray(columns):
        if name not in kinds:
            hint = ""
            if columns is None:
                hint = ": name those to read in columns= of the domain"
            raise DataError(
                f"Expected the column {name!r} in a data set of Ray. Got {list(kinds)}{hint}."
            )
        kind = kinds[name]
        if isinstance(kind, pyarrow.DataType):
            is_time = pyarrow.types.is_temporal(kind)
        else:
            is_time = getattr(kind, "kind", "") in "mM"
        if is_time:
            raise ConfigurationTypeError(
                f"Expected the column {name!r} as numbers. Got {kind}."
            )


def _sum_of_block(
    block: Any, before: PersonCounts, shared: tuple[RowPart, _BlockReader]
) -> tuple[IntArray, int]:
    """Return the sum of a function over a block of Ray, and the number of null records."""
    part, reader = shared
    source = reader.source(block, before)
    words = np.zeros(1, np.int64)
    for each in source.blocks():
        words = words + part(each)
    return words, source.n_null


def _tables_of_block(
    block: Any, names: Sequence[str], n_features: int
) -> Iterator[NDArray[Any]]:
    """Yield a block of Ray as tables, (m, n_features).

    A column may hold whole records. Wrong types and missing columns of a block are NaN
    and no error, because a single record may decide them.
    """
    from ray.data.block import BlockAccessor

    with _readable():
        whole = BlockAccessor.for_block(block)
        found = list(getattr(whole.schema(), "names", ()))
    rows = _rows(n_features)
    for start in range(0, whole.num_rows(), rows):
        with _readable():
            stop = min(start + rows, whole.num_rows())
            piece = whole.slice(start, stop, copy=False)
            if hasattr(piece, "schema"):  # it is a table of pyarrow
                cells = [text_as_bytes(column) for column in piece.columns]
                piece = piece.from_arrays(cells, names=found)
            accessor = BlockAccessor.for_block(piece)
            arrays = {}
            for i, name in enumerate(names):
                if name in found:
                    arrays[i] = np.asarray(accessor.to_numpy(name))
            table = np.full((accessor.num_rows(), n_features), np.nan)
            if len(names) == 1 and arrays:
                table[:] = _whole_records(arrays[0], n_features)
            else:
                for i, array in arrays.items():
                    column = numbers(array)
                    if column is not None and column.ndim == 1:
                        table[:, i] = column
        yield table


def _whole_records(cells: NDArray[Any], n_features: int) -> NDArray[Any]:
    """Return one column of whole records, or of numbers, as a table (m, n_features)."""
    if cells.dtype.kind in "biuf" and cells.shape[1:] == (n_features,):
        return cells
    if cells.dtype.kind in "biuf" and cells.ndim == 1 == n_features:
        return cells[:, None]
    kinds = list, tuple, np.ndarray
    rows = [cell if isinstance(cell, kinds) else [cell] for cell in cells]
    return table_of_rows(rows, n_features)


_BatchReader = Callable[[Any, int, Sequence[str] | None], Source]
_READERS: tuple[tuple[str, str, _BatchReader], ...] = (
    ("datasets", "Dataset", _of_hub),
    ("scipy.sparse", "spmatrix", _of_sparse),
    ("scipy.sparse", "sparray", _of_sparse),
    ("pyarrow.dataset", "Dataset", _of_dataset),
    ("pyarrow.parquet", "ParquetFile", _of_parquet_file),
    ("ray.data", "Dataset", _of_ray),
    ("flower_kmeans.data.sql", "SqlQuery", _of_query),
)
