"""The cells of csv files, read the same way by every command and node.

A line end (LF, CR or CRLF) ends a record, even within quotes. Each line is decoded and
divided into cells by itself, with Python's ``csv`` module. So no byte of a record
changes another record. In other readers a stray quote swallows all lines after it;
``benchmarks/csv_readers.py`` compares them.
"""

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from flower_kmeans.data.reading import DELIMITERS, UTF_16, Reading
from flower_kmeans.errors import ConfigurationError, DataError

LineCells = list[str]

_MARK = "\ufeff"
_UTF_16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_UTF_32_MARKS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_OTHER_FORMATS = {
    b"\x1f\x8b": "gzip: let its name end in .gz",
    b"PK\x03\x04": "a zip archive or an Excel file: let its name end in .xlsx if it is one",
    b"PAR1": "parquet: let its name end in .parquet",
    b"\x93NUMPY": "an array of NumPy: let its name end in .npy",
    b"SQLite format 3\x00": "an SQLite database: name it as sqlite:///PATH, with a query",
}
_TWO_WAYS = (
    "say that it names the columns, with --header true or header=True, or give their names, with "
    "--header NAME,NAME or header=[...], if it is a record"
)
_FEWEST_COUNTED = 3
_LONGEST_COUNT = 9  # digits of a number that counts columns
# the first line of some files, for Excel
_SEPARATOR_LINE = re.compile(r"sep=(.)", re.IGNORECASE)
_NUMBER_LIKE = re.compile(
    r"""
    [+-]? [\d.,'\u2019\s]* \d [\d.,'\u2019\s]* (?:e[+-]?\d+)? \s* %?  # in any country's way
    | [+-]? 0x[0-9a-f]+
    | \d{1,4} [-/.] \d{1,2} [-/.] \d{1,4} (?: [T\s] [\d:.+-]+ )?  # a date
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class CsvFile:
    """A csv file whose columns are known. No record was read yet.

    Attributes
    ----------
    path : Path
    names : tuple of str
        Names of the columns, without spaces around them. They may be empty or occur
        twice.
    delimiter : str
        The character between cells.
    has_names : bool
        Whether the first line names the columns.
    """

    path: Path
    names: tuple[str, ...]
    delimiter: str
    has_names: bool
    _encoding: str
    _skips_separator: bool = False

    def records(self) -> Iterator[tuple[int, LineCells | None]]:
        """Yield each record's line number, from 1, and its cells, one for each name.

        Cells are ``None`` for a malformed record: one with more or fewer cells, or with
        a quote that does not end. Bytes that do not fit the encoding become characters
        that no number and no category has. Blank lines are skipped.
        """
        width = len(self.names)
        with _open(self.path, self._encoding) as lines:
            filled = _filled(lines)
            for _ in range(int(self._skips_separator) + int(self.has_names)):
                next(filled, None)
            for number, line in filled:
                cells = cells_of_line(line, self.delimiter)
                yield number, cells if len(cells) == width else None


def open_csv(path: Path, reading: Reading) -> CsvFile:
    """Return a csv file with its columns. No record is read yet.

    Raises
    ------
    ConfigurationError, DataError
        If the file cannot be read, or its columns are unclear. If ``reading.header`` is
        given, no record can cause such an error.
    """
    given = reading.given_names
    if given is not None:
        # The first line is a record, so nothing is recognised from it.
        encoding = reading.encoding or "utf-8"
        return CsvFile(path, given, reading.delimiter or ",", False, encoding)
    encoding = reading.encoding or _recognised_encoding(path)
    with _open(path, encoding) as lines:
        first, separator = _first_lines(lines)
    if not first:
        raise DataError(
            f"Expected a first line with the names of columns in {path}. Got none."
        )
    delimiter = reading.delimiter or separator or _recognised_delimiter(first, path)
    cells = [cell.strip() for cell in cells_of_line(first, delimiter)]
    if not cells:
        raise DataError(
            f"Expected the first line of {path} with quotes that end. Got one that does not: "
            "a name of a column cannot hold the end of a line."
        )
    if any(not is_decoded(cell) for cell in cells):
        raise DataError(
            f"Expected the first line of {path} in {encoding}. Got other bytes: name its encoding, "
            "such as cp1252 for files of Windows, with --encoding or encoding=."
        )
    has_names = reading.header is True or names_columns(cells, path)
    if has_names:
        names = tuple(cells)
    else:
        names = default_names(len(cells))
    return CsvFile(path, names, delimiter, has_names, encoding, separator is not None)


def default_names(n: int) -> tuple[str, ...]:
    """Return names for ``n`` columns that have none."""
    return tuple(f"x{i}" for i in range(n))


def names_columns(cells: Sequence[Any], path: Path) -> bool:
    """Return whether the cells of a first line name the columns.

    They do if none of them looks like a number. The line is a record if all of them do.

    Raises
    ------
    ConfigurationError
        If the line has both kinds: a record would be lost, or names would be read as
        one. Also if its numbers count the columns, as pandas numbers columns without
        names, or a table has a column for each year.
    """
    numbers = [cell for cell in cells if _looks_like_number(cell)]
    if _counts(cells):
        raise ConfigurationError(
            f"Expected names in all cells of the first line of {path}, or numbers of a record. Got "
            f"numbers that count the columns: {_TWO_WAYS}."
        )
    empty = [cell for cell in cells if cell is None or str(cell).strip() == ""]
    if not numbers:
        return True
    if len(numbers) == len(cells):
        return False
    if len(numbers) + len(empty) == len(cells):
        what = "numbers and empty cells"
    else:
        what = "both"
    raise ConfigurationError(
        f"Expected names in all cells of the first line of {path}, or numbers in all. Got {what}: "
        f"{_TWO_WAYS}."
    )


def cells_of_line(line: str, delimiter: str) -> LineCells:
    """Return the cells of one line, or an empty list if a quote does not end.

    Spaces after a delimiter and around quotes are removed. In a cell that does not
    begin with a quote, a quote is an ordinary character.
    """
    if '"' in line:
        return _quoted_cells(line, delimiter)
    cells = line.split(delimiter)  # much faster than the csv module
    if " " in line:
        cells = [cell.lstrip(" ") for cell in cells]
    return cells


def _quoted_cells(line: str, delimiter: str) -> LineCells:
    try:
        return _parsed(line, delimiter)
    except csv.Error:
        pass
    # The module refuses spaces between a closing quote and the delimiter.
    closer = re.sub(rf'" +(?={re.escape(delimiter)}|$)', '"', line)
    try:
        return _parsed(closer, delimiter)
    except csv.Error:  # a quote that does not end, or a cell beyond the module's limit
        return []


def _parsed(line: str, delimiter: str) -> LineCells:
    reader = csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True)
    return next(reader, [])


def is_decoded(cell: str) -> bool:
    """Return whether all bytes of a cell are characters of its file's encoding."""
    # Other bytes became surrogates, or U+FFFD in UTF-16.
    return not any("\udc80" <= c <= "\udcff" or c == "\ufffd" for c in cell)


@contextmanager
def _open(path: Path, encoding: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a file without their ends, decoded."""
    try:
        with _open_bytes(path) as file:
            yield _decoded(file, encoding)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = "damaged"
    return DataError(f"The data file {path} cannot be read: {reason}.")


def _open_bytes(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def _decoded(file: IO[bytes], encoding: str) -> Iterator[str]:
    lines = _lines(file, encoding)
    first = next(lines, None)
    if first is not None:
        # Spreadsheets begin a file with a byte order mark, and some programs with two.
        yield first.lstrip(_MARK)
    yield from lines


def _lines(file: IO[bytes], encoding: str) -> Iterator[str]:
    name = codecs.lookup(encoding).name
    if name in UTF_16:
        buffered = io.BufferedReader(cast(io.RawIOBase, file))
        if name == "utf-16":
            # Without a byte order mark Python would fail, or take the machine's own
            # byte order.
            name = _UTF_16_MARKS.get(buffered.peek(2)[:2], "utf-16-le")
        for line in io.TextIOWrapper(buffered, name, errors="replace", newline=None):
            yield line.removesuffix("\n")
        return
    # Latin-1 has a character for each byte, so lines can be divided before they are
    # decoded.
    for raw in io.TextIOWrapper(file, "latin-1", newline=None):
        octets = raw.removesuffix("\n").encode("latin-1")
        yield octets.decode(encoding, "surrogateescape")


def _filled(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers in the file, from 1."""
    for number, line in enumerate(lines, 1):
        if line.strip(" "):
            yield number, line


def _first_lines(lines: Iterator[str]) -> tuple[str, str | None]:
    """Return the first line with cells, and the delimiter of a ``sep=`` line before it."""
    filled = (line for _, line in _filled(lines))
    first = next(filled, "")
    separator = _SEPARATOR_LINE.fullmatch(first)
    if separator is None:
        return first, None
    return next(filled, ""), separator[1]


def _recognised_encoding(path: Path) -> str:
    try:
        with _open_bytes(path) as file:
            start = file.read(16)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None
    for mark, format_ in _OTHER_FORMATS.items():
        if start.startswith(mark):
            raise DataError(
                f"Expected {path} as a csv file. Its first bytes are of {format_}."
            )
    if start.startswith(_UTF_32_MARKS):
        raise DataError(
            f"Expected {path} in UTF-8 or UTF-16. Got UTF-32: save it as UTF-8."
        )
    if start.startswith(tuple(_UTF_16_MARKS)):
        return "utf-16"
    return "utf-8"


def _recognised_delimiter(line: str, path: Path) -> str:
    """Return the delimiter of a header line: the most frequent one outside quotes.

    A line without any has one column, and any delimiter fits.
    """
    bare = re.sub(r'"[^"]*"', "", line)
    counts = {delimiter: bare.count(delimiter) for delimiter in DELIMITERS}
    most = max(counts.values())
    found = [delimiter for delimiter, count in counts.items() if count == most]
    if most == 0:
        return ","
    if len(found) > 1:
        raise ConfigurationError(
            f"Expected one delimiter in the first line of {path}. "
            f"Got {' and '.join(map(repr, found))} equally often: "
            "name it with --delimiter or delimiter=."
        )
    return found[0]


def _looks_like_number(cell: Any) -> bool:
    """Return whether a cell is a number or a date, or spells one as some country does."""
    if cell is None or isinstance(cell, bool):
        return False
    if isinstance(cell, str):
        return _NUMBER_LIKE.fullmatch(cell.strip()) is not None
    return True


def _counts(cells: Sequence[Any]) -> bool:
    """Return whether cells are whole numbers that count up by one.

    They must begin at 0, or be three or more. One or two numbers that begin elsewhere,
    such as 1 and 2, are more likely a record.
    """
    texts = [str(cell).strip() for cell in cells]
    if not all(text.isascii() and text.isdigit() for text in texts):
        return False
    first = int(texts[0][:_LONGEST_COUNT])
    if first > 0 and len(texts) < _FEWEST_COUNTED:
        return False
    expected = [str(first + i) for i in range(len(texts))]
    return texts == expected
