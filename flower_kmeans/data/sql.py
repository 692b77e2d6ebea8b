"""Records of a database: the result of one query, read in blocks of bounded size.

SQLite is read by Python's own module, which returns each cell as it is stored. ADBC's
driver for SQLite takes the type of a column from its first rows and fails at a later
cell of another type (tried with 2,000 integers, then a text). There one record could
stop the whole query.

PostgreSQL is read through ADBC (Apache-2.0). Its columns have the types that the server
declares. psycopg (LGPL-3.0) was tried too, with a cursor at the server. It makes an
object for each cell, and fails at a date that Python does not have, such as 'infinity'.
There, too, one record could stop the query.

Errors never quote a server's text about rows, because it may quote a cell. They quote
texts about connections, and about a query that is prepared but not yet executed: until
then no record was read.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.data.spelling import USUAL, Spelling
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.errors import ConfigurationError, DataError, KMeansError
from flower_kmeans.extras import require
from flower_kmeans.parameters import require_type

SqlBlock = dict[str, NDArray[Any]]  # columns of one length, by name

_POSTGRESQL = ("postgresql://", "postgres://")
_SQLITE = "sqlite:///"
_BLOCK_ROWS = 2**16
_BLOCK_CELLS = 2**20  # most cells of a block from SQLite, which are Python's objects
_FEWEST_ROWS = 64
# A database without an encoding returns its bytes unchanged. They may not be UTF-8.
_SET_ENCODING = """
    SELECT set_config('client_encoding', CASE current_setting('server_encoding')
        WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END, false)
"""
_BATCH_BYTES = 2**22  # size of a batch from PostgreSQL
_SECRETS = ("password", "sslpassword")  # parameters of a URI
_VIEW = "flower_kmeans_query"
_READ_VIEW = "SELECT * FROM temp.flower_kmeans_query"
# SQLite renames a second column of the same name to NAME:1.
_REPEATED = re.compile(r"(.+):\d+", re.DOTALL)
_NAMELESS = ("", "?column?")
_PLAIN = (
    "bool",
    "int2",
    "int4",
    "int8",
    "float4",
    "float8",
    "date",
    "timestamp",
    "timestamptz",
)
# PostgreSQL's dates begin in 4713 BC. Values that do not fit the type of ADBC, such as
# 'infinity', become earlier dates.
_FIRST_DATE = np.datetime64("-5000-01-01")
# classes of SQLSTATE that the query causes: it writes; or syntax, names, permissions
_OF_QUERY = ("25", "42")
_KINDS = {
    "08": "a lost connection",
    "22": "a value that an expression of the query cannot take",
    "25": "a query that does more than read",
    "42": "syntax, a name, a type or a missing permission",
    "53": "too few resources of the server",
    "57": "an administrator, or a time-out of the server",
}


def is_uri(text: str) -> bool:
    """Return whether a text is the address of a database.

    Addresses begin with ``postgresql://``, ``postgres://`` or ``sqlite:///``.
    """
    return text.lower().startswith((*_POSTGRESQL, _SQLITE))


@dataclass(frozen=True)
class SqlQuery:
    """The records of a database: each row of a query's result is a record.

    A client's ``load_data`` may return it, and it may be a partition of `simulate`. A
    run executes the query once, when the client first needs its records, and then uses
    a private copy of them (``copy_records`` of the `ClientPolicy`). Before, there is no
    connection and nothing is read.

    Parameters
    ----------
    uri : str
        ``sqlite:///FILE`` (``sqlite:////srv/clinic.db`` for an absolute path), or
        ``postgresql://USER@HOST:PORT/DATABASE`` as PostgreSQL's own programs take it. A
        password comes from the environment variable PGPASSWORD or a password file
        (PGPASSFILE).
    query : str
        One SELECT (or WITH). The database is opened for reading only.
    domain : TableDomain, optional
        Declares the columns to read, as a ``domain.toml`` does. Without it, the columns
        that the run names are read as numbers, or all columns of the query if the run
        names none.
    spelling : Spelling
        The spelling of numbers and dates in text.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If the URI is not one of a database, contains a password, or a parameter has
        another type.

    Notes
    -----
    A row that makes the database fail, for example by a division by zero, makes the whole query
    fail. The client then refuses because of one record. Write queries that cannot fail on a row.
    """

    uri: str
    query: str
    domain: TableDomain | None = None
    spelling: Spelling = USUAL

    def __post_init__(self) -> None:
        require_type("uri", self.uri, str, "a text")
        require_type("query", self.query, str, "a text")
        require_type("domain", self.domain, TableDomain | None, "a TableDomain")
        if not is_uri(self.uri):
            raise ConfigurationError(
                "Expected uri as postgresql://USER@HOST/DATABASE or sqlite:///FILE. Got another."
            )
        _require_no_password(self.uri)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the result's columns, in order. The database is asked at first use.

        No record is read for them.
        """
        with self._opened() as result:
            return result.names

    def blocks(self) -> Iterator[SqlBlock]:
        """Execute the query, and yield its rows in blocks of at most 65,536.

        Yields
        ------
        dict from str to ndarray of shape (m,)
            Columns by name: numbers, booleans or dates (datetime64), or Python's
            objects with ``None`` for NULL. The value of a cell never depends on other
            cells.

        Raises
        ------
        ConfigurationError, DataError
            If the database cannot be reached, or the query fails.
        """
        with self._opened() as result:
            yield from result.blocks()

    def _opened(self) -> "AbstractContextManager[_Result]":
        if self.uri.lower().startswith(_SQLITE):
            return _sqlite(self.uri, self.query)
        return _postgresql(self.uri, self.query)


def open_query(uri: str, query: str) -> SqlQuery:
    """Return a `SqlQuery` that its database has accepted, with known ``names``.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, DataError
        If the URI or the query cannot be used, or the database cannot be reached.
    """
    opened = SqlQuery(uri, query)
    _ = opened.names  # asks the database
    return opened


class _Result(NamedTuple):
    """A query that a database has accepted but not yet executed."""

    names: tuple[str, ...]
    blocks: Callable[[], Iterator[SqlBlock]]


def _require_no_password(uri: str) -> None:
    if uri.lower().startswith(_SQLITE):
        return
    # PostgreSQL's client does not treat # as special, and takes any sign in a password.
    # So everything before the last @ is searched.
    _, _, query = uri.partition("://")[2].partition("?")
    quoted = [part.partition("=")[0] for part in query.split("&")]
    keys = {unquote(key).strip() for key in quoted}
    before, is_user, _ = uri.partition("://")[2].rpartition("@")
    if (is_user and ":" in before) or keys.intersection(_SECRETS):
        # The URI is not quoted.
        raise ConfigurationError(
            "Expected a database's URI without a password, which files and logs would keep. Set "
            "the environment variable PGPASSWORD, or PGPASSFILE to a password file, instead."
        )


def _refuse_names(got: str) -> NoReturn:
    raise ConfigurationError(
        "Expected one SELECT (or WITH), whose columns all have different names: call each of them "
        f"with AS in the query. Got {got}."
    )


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a result's columns, or raise unless all differ."""
    if not names:
        _refuse_names("no columns")
    for place, name in enumerate(names):
        if name in _NAMELESS:
            _refuse_names(f"column {place + 1} without a name")
        if name in names[:place]:
            _refuse_names(f"{name!r} twice")
    return tuple(names)


# --------------------------------------------------------------------------- SQLite


@contextmanager
def _sqlite(uri: str, query: str) -> Iterator[_Result]:
    path = Path(uri[len(_SQLITE) :])
    if not path.is_file():
        raise DataError(f"The database file {path} does not exist.")
    with _errors_of_sqlite(path, is_prepared=False):
        # Nothing is written into the file, and no file is made beside it.
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    with closing(connection):
        # By default one text that is not UTF-8 would stop the whole query.
        connection.text_factory = _text
        with _errors_of_sqlite(path, is_prepared=True):
            # By SQL's grammar a view is one SELECT. Its names are known before anything
            # is computed.
            connection.execute(f"CREATE TEMP VIEW {_VIEW} AS\n{query}")
            columns = connection.execute(f"PRAGMA temp.table_info({_VIEW})").fetchall()
        found = [name for _, name, *_ in columns]
        known = {name.lower() for name in found}
        for name in found:
            renamed = _REPEATED.fullmatch(name)
            if renamed is not None and renamed[1].lower() in known:
                _refuse_names(f"{renamed[1]!r} twice")
        names = _checked_names(found)
        size = min(_BLOCK_ROWS, max(_FEWEST_ROWS, _BLOCK_CELLS // len(names)))

        def blocks() -> Iterator[SqlBlock]:
            with _errors_of_sqlite(path, is_prepared=False):
                cursor = connection.execute(_READ_VIEW)
            while True:
                with _errors_of_sqlite(path, is_prepared=False):
                    rows = cursor.fetchmany(size)
                if not rows:
                    return
                columns = zip(*rows, strict=True)
                arrays = (np.array(column, dtype=object) for column in columns)
                yield dict(zip(names, arrays, strict=True))

        yield _Result(names, blocks)


def _text(data: bytes) -> str:
    """Return the text of a cell, with U+FFFD for bytes that are not UTF-8."""
    return data.decode("utf-8", "replace")


@contextmanager
def _errors_of_sqlite(path: Path, *, is_prepared: bool) -> Iterator[None]:
    """Turn SQLite's errors into ours.

    SQLite's text is quoted only while the query ``is_prepared``, before it is executed.
    """
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
        if is_prepared and name == "SQLITE_ERROR":
            raise ConfigurationError(
                f"Expected a query that SQLite can make: one SELECT (or WITH). Got: {error}."
            ) from None
        raise DataError(
            f"The query of the database file {path} failed ({name}): the file, or a value that an "
            "expression of the query cannot take."
        ) from None


# --------------------------------------------------------------------------- PostgreSQL


@contextmanager
def _postgresql(uri: str, query: str) -> Iterator[_Result]:
    driver: Any = require(
        "adbc_driver_postgresql.dbapi", "A PostgreSQL database", "sql"
    )
    # The driver appends text to the query, which a semicolon or a comment at the end
    # would break.
    query = query.strip().removesuffix(";") + "\n"
    try:
        connection = driver.connect(f"postgresql://{uri.partition('://')[2]}")
    except Exception as error:
        # The client's text names host, user and database, and never a password.
        cause = str(error).partition("Failed to connect:")[2]
        lines = cause.strip().splitlines()
        if lines:
            said = lines[0].rstrip(".")
        else:
            said = "no connection"
        raise DataError(
            f"Expected a PostgreSQL server that can be reached. Got: {said}."
        ) from None
    with closing(connection), closing(connection.cursor()) as cursor:
        with _errors_of_postgresql(is_prepared=True):
            # There is only one transaction, and no function that the query calls can
            # make it writable again.
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(_SET_ENCODING)
            cursor.fetchall()
            schema = cursor.adbc_execute_schema(query)
        names = _checked_names(schema.names)
        for field in schema:
            _require_plain(field)

        def blocks() -> Iterator[SqlBlock]:
            with _errors_of_postgresql(is_prepared=False):
                size = {"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)}
                cursor.adbc_statement.set_options(**size)
                cursor.execute(query)
                reader = cursor.fetch_record_batch()
            with closing(reader):
                while True:
                    with _errors_of_postgresql(is_prepared=False):
                        batch = next(reader, None)
                    if batch is None:
                        return
                    for start in range(0, batch.num_rows, _BLOCK_ROWS):
                        piece = batch.slice(start, _BLOCK_ROWS)
                        arrays = map(_cells, piece.columns)
                        yield dict(zip(names, arrays, strict=True))

        yield _Result(names, blocks)


def _require_plain(field: Any) -> None:
    """Require a column declared as numbers, text, booleans or dates."""
    import pyarrow

    metadata = field.metadata or {}
    declared = metadata.get(b"POSTGRESQL:type", b"?").decode()
    is_text = pyarrow.types.is_string(field.type)  # also of an enumeration
    if not (is_text or declared in _PLAIN or declared == "numeric"):
        raise ConfigurationError(
            f"Expected the column {field.name!r} as a number, text, boolean or date. Got "
            f"{declared}: turn it into one of them in the query, such as CAST(... AS text)."
        )


def _cells(column: Any) -> NDArray[Any]:
    """Return a column of pyarrow as `SqlQuery.blocks` yields it, (m,)."""
    import pyarrow

    kind = column.type
    if isinstance(kind, pyarrow.BaseExtensionType):  # numeric, as decimal text
        digits = column.storage.to_pylist()
        values = [np.nan if cell is None else float(cell) for cell in digits]
        return np.array(values)
    if pyarrow.types.is_string(kind):
        texts = column.cast(pyarrow.binary()).to_pylist()
        cells = [None if cell is None else _text(cell) for cell in texts]
        return np.array(cells, dtype=object)
    if pyarrow.types.is_temporal(kind):
        dates = column.to_numpy(zero_copy_only=False).copy()
        dates[dates < _FIRST_DATE] = np.datetime64("NaT")
        return np.asarray(dates)
    if column.null_count and not pyarrow.types.is_floating(kind):
        # As floats with NaN, large integers beside a NULL would be rounded.
        return np.array(column.to_pylist(), dtype=object)
    return np.asarray(column.to_numpy(zero_copy_only=False))


@contextmanager
def _errors_of_postgresql(*, is_prepared: bool) -> Iterator[None]:
    """Turn PostgreSQL's errors into ours.

    The server's text is quoted only while the query ``is_prepared``, before it is
    executed.
    """
    try:
        yield
    except KMeansError:
        raise
    except Exception as error:
        # The driver gives no SQLSTATE after the first rows.
        state = getattr(error, "sqlstate", None) or ""
        if is_prepared:
            said = re.search(r"ERROR:\s*(.*)", str(error))
        else:
            said = None
        if said is not None:
            raise ConfigurationError(
                f"Expected a query that PostgreSQL can make: one SELECT (or WITH). Got: {said[1]}."
            ) from None
        kind = _KINDS.get(state[:2], f"{_KINDS['22']}, or {_KINDS['08']}")
        number = f"SQLSTATE {state}" if state else "while its rows were read"
        error_type = ConfigurationError if state[:2] in _OF_QUERY else DataError
        raise error_type(
            f"The query of the database failed ({number}): {kind}."
        ) from None
