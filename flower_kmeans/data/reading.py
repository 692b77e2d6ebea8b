"""Options with which a party reads its own records, or its ``source.toml``."""

import codecs
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from flower_kmeans.data.spelling import Spelling
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.files import read_file, read_toml

Header = Literal[True] | Sequence[str]

DELIMITERS = (",", ";", "\t", "|")
"""Delimiters of cells that are recognised where none is given."""

_ASCII = bytes(range(128))
_STATEFUL = ("iso2022", "hz", "utf_7", "unicode_escape", "raw_unicode_escape")
"""First parts of the names of encodings whose ASCII bytes may belong to other characters."""
_TEXTS = (
    "delimiter",
    "thousands",
    "format",
    "encoding",
    "sheet",
    "query",
    "person",
)
"""Options that are a text or missing."""
UTF_16 = ("utf-16", "utf-16-le", "utf-16-be")
"""Names of encodings whose characters have two or four bytes."""


@dataclass(frozen=True)
class Reading:
    """Options with which one party reads its own file. They never leave that party.

    Parameters
    ----------
    header : True or sequence of str, optional
        ``True`` if the first line names the columns. If the first line is a record, the
        names of the columns. By default a command recognises it; a node never does.
    delimiter : str, optional
        The character between the cells of a csv file. By default it is the most
        frequent of comma, semicolon, tab and bar in the first line, or a comma if
        ``header`` gives names.
    decimal, thousands, format : str, optional
        The spelling of numbers and dates: ``decimal``, ``thousands`` and
        ``date_format`` of `Spelling`.
    encoding : str, optional
        The encoding of a csv file. By default it is UTF-8, or UTF-16 if the file begins
        with its byte order mark.
    sheet : str, optional
        The sheet to read of an Excel file with several sheets.
    query : str, optional
        The ``SELECT`` whose rows are the records of a database.
    person : str, optional
        The column with the id of each record's person. It is never a feature, and its
        name and its cells never leave the party.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If an option has another type, or a value that is not allowed.
    """

    header: Header | None = None
    delimiter: str | None = None
    decimal: str = "."
    thousands: str | None = None
    format: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    query: str | None = None
    person: str | None = None
    spelling: Spelling = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            _require_text(name, getattr(self, name))
        _require_text("decimal", self.decimal or None)
        _require_header(self.header)
        if self.delimiter is not None:
            _require_delimiter(self.delimiter)
        if self.encoding is not None:
            _require_encoding(self.encoding)
        if self.delimiter == self.decimal:
            raise ConfigurationError(
                f"Expected delimiter other than decimal. Got {self.decimal!r} for both."
            )
        spelling = Spelling(self.decimal, self.thousands, self.format)
        object.__setattr__(self, "spelling", spelling)

    def with_options(self, **options: Any) -> Self:
        """Return the reading with the given options, except those that are ``None``."""
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, **given)

    def updated_by(self, other: Self) -> Self:
        """Return the reading, updated by those options of another that are not defaults."""
        given = {}
        for name in _NAMES:
            value = getattr(other, name)
            if value != getattr(USUAL_READING, name):
                given[name] = value
        return self.with_options(**given)

    @property
    def given_names(self) -> tuple[str, ...] | None:
        """Names of the columns that ``header`` gives, or ``None``."""
        if self.header is None or self.header is True:
            return None
        return tuple(name.strip() for name in self.header)


def read_source_file(path: str | os.PathLike[str]) -> tuple[str, Reading]:
    """Return the data that a ``source.toml`` names, and the options for reading it.

    The data is a path or the address of a database. A relative path begins at the
    directory of the ``source.toml``. The file's keys are ``data`` and the parameters of
    `Reading`. Only its owner may read the file (mode 0600).

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If the file cannot be read, others may read it, or it has another key or a value
        that is not allowed.
    """
    content = read_file(path, "source file", is_secret=True)
    values = read_toml(content, f"source file {path}")
    known = ["data", *_NAMES]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ConfigurationError(
            f"Expected keys in the source file {path} among {known}. Got {unknown} instead."
        )
    data = values.pop("data", None)
    if not isinstance(data, str) or not data:
        raise ConfigurationError(
            f"Expected data in the source file {path}: a path, or a database such as "
            f"'postgresql://HOST/NAME'. Got {data!r} instead."
        )
    try:
        reading = Reading(**_frozen(values))
    except (ConfigurationError, ConfigurationTypeError) as error:
        raise type(error)(f"In the source file {path}: {error}") from None
    if "://" in data:
        return data, reading
    return str(Path(path).resolve().parent / data), reading


def resolved(data: str | Path, reading: Reading) -> tuple[str | Path, Reading]:
    """Return the data and the options for reading it, from a ``source.toml`` if given.

    Options of ``reading`` take precedence over those of the file.
    """
    if Path(data).suffix.lower() != ".toml":
        return data, reading
    named, own = read_source_file(data)
    return named, own.updated_by(reading)


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    frozen = dict(values)
    for name, value in values.items():
        if isinstance(value, list):
            frozen[name] = tuple(value)
    return frozen


def _require_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigurationTypeError(
            f"Expected {name} as a text. Got {value!r} instead."
        )


def _require_header(header: object) -> None:
    if header is None or header is True:
        return
    is_listed = isinstance(header, Sequence) and not isinstance(header, str | bytes)
    if isinstance(header, Sequence):
        names: Sequence[Any] = header
    else:
        names = ()
    if not is_listed or not all(isinstance(name, str) for name in names):
        raise ConfigurationTypeError(
            "Expected header as True, if the first line names the columns, or as a list of names. "
            f"Got {header!r} instead."
        )


def _require_delimiter(delimiter: str) -> None:
    if len(delimiter) != 1 or delimiter in '"\r\n\0' or ord(delimiter) > 127:
        raise ConfigurationError(
            "Expected delimiter as one ASCII character that is no quote and no end of a line, "
            f"such as ';'. Got {delimiter!r} instead."
        )


def _require_encoding(encoding: str) -> None:
    """Require an encoding in which the bytes of a record change no other record."""
    try:
        name = codecs.lookup(encoding).name
        # Lines are divided before each is decoded. So a line end must have ASCII's
        # bytes, and these bytes must never be part of another character.
        is_plain = not name.replace("-", "_").startswith(_STATEFUL)
        if name in UTF_16:
            is_right = True
        elif is_plain:
            is_right = _ASCII.decode(encoding) == _ASCII.decode("ascii")
        else:
            is_right = False
    except (LookupError, UnicodeError, ValueError):
        is_right = False
    if not is_right:
        raise ConfigurationError(
            "Expected encoding as one that Python knows and whose first 128 characters are "
            f"ASCII's, such as 'utf-8' or 'cp1252', or as 'utf-16'. Got {encoding!r} instead."
        )


USUAL_READING = Reading()
_NAMES = tuple(each.name for each in fields(Reading) if each.init)
