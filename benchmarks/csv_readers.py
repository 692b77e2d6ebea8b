"""Readers of csv files, and whether one record changes how they read the others.

    python benchmarks/csv_readers.py [--lines 200000]

A small file of text is read, then again with one record replaced by each of `KINDS`, at
each of three places and with both line ends. A reader `changes` others if any other
record has other cells than before, `refuses` if it raises, and `loses` if no row is
left of the record itself. Two further columns tell whether a comma within a quoted cell
is read as text, and whether a file whose lines end in CR alone has the same cells.
Readers of packages that are not installed are left out (``pip install polars duckdb``).
CPU times are of a file of 10 columns of numbers without anything strange, the least of
five, over that of Python's csv module on the whole file.
"""

import argparse
import csv
import math
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[list[Any]]
Reader = Callable[[Path, Sequence[str]], Rows]

COLUMNS = ("id", "number", "text", "more")
OTHERS = [["a", "1.50", "", " x "], ["b", "007", "NA", "y"], ["c", "-2", "   ", "z"]]
OTHERS += [["d", "0x1F", "null", "w"], ["e", "1e3", "True", "v"]]
PLACES = {"first": 0, "middle": 2, "last": 5}
LINE_ENDS = {"LF": b"\n", "CRLF": b"\r\n"}
KINDS = {
    "no quote closes": b'v,"1,x,y',
    "text after a quote": b'v,"1"2,x,y',
    "quote in a cell": b'v,1"2,x,y',
    "quote at a cell's end": b'v,12",x,y',
    "too many cells": b"v,1,x,y,z",
    "too few cells": b"v,1",
    "invalid UTF-8": b"v,\xff\xfe,x,y",
    "NUL": b"v,\0,x,y",
    "a cell of 2 million characters": b"v,1," + b"x" * 2_000_000 + b",y",
    "CR in a cell": b"v,1\r2,x,y",
    "quoted line end": b'v,"1\n2",x,y',
    "another line end": b"v,1,x,y\r",
    "blank line": b"",
    "backslash before a quote": b'v,"1\\",x,y',
    "spaces around quotes": b'v, "1" ,x,y',
    "byte order mark": b"\xef\xbb\xbfv,1,x,y",
    "number sign first": b"#v,1,x,y",
    "hexadecimal": b"v,0x1F,x,y",
    "only spaces": b"v,   ,x,y",
    "NA and null": b"v,NA,null,None",
}
"""The records that replace one record."""


# -------------------------------------------------------------------------- the readers


def csv_module(strict: bool = False) -> Reader:
    """Return Python's csv module on the whole file."""

    def read(path: Path, names: Sequence[str]) -> Rows:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return list(csv.reader(file, strict=strict))[1:]

    return read


def csv_by_line(path: Path, names: Sequence[str]) -> Rows:
    """Read line by line: a line end always ends a record, and a line that fails has no cells."""
    rows: Rows = []
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file)
        for line in file:
            try:
                rows.extend(csv.reader([line.rstrip("\n")], strict=True))
            except csv.Error:
                rows.append([])
    return rows


def pyarrow(skip: bool = False, **options: Any) -> Reader:
    """Return pyarrow.csv, every column as bytes."""

    def read(path: Path, names: Sequence[str]) -> Rows:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        handler = (lambda row: "skip") if skip else None
        table = arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(
                invalid_row_handler=handler, **options
            ),
            convert_options=arrow_csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(names, pa.binary()),
                strings_can_be_null=False,
            ),
        )
        return _by_row(column.to_pylist() for column in table.columns)

    return read


def polars(**options: Any) -> Reader:
    """Return polars.read_csv, every column as text."""

    def read(path: Path, names: Sequence[str]) -> Rows:
        import polars as pl

        table = pl.read_csv(path, infer_schema=False, **options)
        return [list(row) for row in table.rows()]

    return read


def duckdb(**options: Any) -> Reader:
    """Return DuckDB's read_csv, every column as text and nothing guessed."""

    def read(path: Path, names: Sequence[str]) -> Rows:
        import duckdb as db

        columns = ", ".join(f"'{name}': 'VARCHAR'" for name in names)
        given = {
            "auto_detect": False,
            "header": True,
            "delim": "','",
            "parallel": False,
        }
        text = ", ".join(
            f"{name} = {value}" for name, value in (given | options).items()
        )
        query = f"SELECT * FROM read_csv('{path}', columns = {{{columns}}}, {text})"  # noqa: S608
        with db.connect() as connection:
            return [list(row) for row in connection.execute(query).fetchall()]

    return read


def pandas(**options: Any) -> Reader:
    """Return pandas.read_csv, every column as text."""

    def read(path: Path, names: Sequence[str]) -> Rows:
        import pandas as pd

        table = pd.read_csv(
            path,
            dtype=str,
            keep_default_na=False,
            encoding_errors="replace",
            index_col=False,
            **options,
        )
        return _by_row(table[name] for name in table.columns)

    return read


def _by_row(columns: Any) -> Rows:
    return [list(row) for row in zip(*columns, strict=True)]


LOSSY = {"ignore_errors": True, "truncate_ragged_lines": True, "encoding": "utf8-lossy"}
READERS: dict[str, tuple[str, Reader]] = {
    "csv module, line by line, strict": ("csv", csv_by_line),
    "csv module": ("csv", csv_module()),
    "csv module, strict": ("csv", csv_module(strict=True)),
    "pyarrow": ("pyarrow", pyarrow()),
    "pyarrow, newlines_in_values": ("pyarrow", pyarrow(newlines_in_values=True)),
    "pyarrow, invalid rows skipped": ("pyarrow", pyarrow(skip=True)),
    "pyarrow, no quotes, invalid rows skipped": (
        "pyarrow",
        pyarrow(skip=True, quote_char=False),
    ),
    "polars": ("polars", polars()),
    "polars, errors ignored, lossy": ("polars", polars(**LOSSY)),
    "polars, no quotes, errors ignored, lossy": (
        "polars",
        polars(quote_char=None, **LOSSY),
    ),
    "duckdb": ("duckdb", duckdb(quote="'\"'")),
    "duckdb, errors ignored": ("duckdb", duckdb(quote="'\"'", ignore_errors=True)),
    "duckdb, not strict, padded": (
        "duckdb",
        duckdb(quote="'\"'", strict_mode=False, null_padding=True, ignore_errors=True),
    ),
    "duckdb, no quotes, errors ignored": (
        "duckdb",
        duckdb(quote="''", strict_mode=False, null_padding=True, ignore_errors=True),
    ),
    "pandas": ("pandas", pandas()),
    "pandas, bad lines skipped": ("pandas", pandas(on_bad_lines="skip")),
    "pandas, no quotes, bad lines skipped": (
        "pandas",
        pandas(on_bad_lines="skip", quoting=3),
    ),
    "pandas, Python's engine, bad lines skipped": (
        "pandas",
        pandas(engine="python", on_bad_lines="skip"),
    ),
}


# ---------------------------------------------------------------------------- measuring


def file_of(record: bytes, place: int, line_end: bytes) -> bytes:
    """Return a file in which one record is given, and the others are `OTHERS`."""
    lines = [",".join(row).encode() for row in OTHERS]
    lines.insert(place, record)
    return b"".join(line + line_end for line in [",".join(COLUMNS).encode(), *lines])


def judged(reader: Reader, kind: bytes, place: int, line_end: bytes, path: Path) -> str:
    """Return the effect of a record: "refuses", "changes" others, "loses" itself, or "keeps"."""
    path.write_bytes(file_of(b"v,1,x,y", place, line_end))
    before = reader(path, COLUMNS)
    others = before[:place] + before[place + 1 :]
    assert len(before) == len(OTHERS) + 1, (
        "the reader fails on a file without anything strange"
    )
    path.write_bytes(file_of(kind, place, line_end))
    try:
        after = reader(path, COLUMNS)
    except Exception:  # whatever the package raises
        return "refuses"
    behind = len(others) - place
    rest = after[len(after) - behind :] if behind else []
    if len(after) < len(others) or after[:place] + rest != others:
        return "changes"
    return "loses" if len(after) == len(others) else "keeps"


def outcomes(reader: Reader, folder: Path) -> dict[str, set[str]]:
    """Return the kinds of records by their effect, at any place and with any line end."""
    found: dict[str, set[str]] = {"changes": set(), "refuses": set(), "loses": set()}
    for name, kind in KINDS.items():
        for place in PLACES.values():
            for line_end in LINE_ENDS.values():
                outcome = judged(reader, kind, place, line_end, folder / "small.csv")
                if outcome in found:
                    found[outcome].add(name)
    return found


def reads_quotes(reader: Reader, folder: Path) -> bool:
    """Return whether a comma within a quoted cell is text."""
    path = folder / "quotes.csv"
    path.write_bytes(file_of(b'v,"1,5",x,y', 2, b"\n"))
    try:
        cell = reader(path, COLUMNS)[2][1]
    except Exception:  # whatever the package raises
        return False
    return cell in ("1,5", b"1,5")


def reads_cr(reader: Reader, folder: Path) -> bool:
    """Return whether a file whose lines end in CR alone has the same cells."""
    cells = []
    for line_end in (b"\n", b"\r"):
        path = folder / "ends.csv"
        path.write_bytes(file_of(b"v,1,x,y", 2, line_end))
        try:
            cells.append(reader(path, COLUMNS))
        except Exception:  # whatever the package raises
            return False
    return cells[0] == cells[1]


def seconds(readers: Sequence[Reader], path: Path, names: Sequence[str]) -> list[float]:
    """Return the least of five CPU times of each reader, which take turns."""
    least = [math.inf] * len(readers)
    for _ in range(5):
        for index, reader in enumerate(readers):
            start = time.process_time()
            reader(path, names)
            least[index] = min(least[index], time.process_time() - start)
    return least


def write_large(path: Path, lines: int) -> list[str]:
    """Write the file for the time measurements, and return its columns' names."""
    names = [f"x{column}" for column in range(10)]
    values = np.random.default_rng(0).normal(size=(lines, len(names)))
    np.savetxt(path, values, "%.6f", ",", header=",".join(names), comments="")
    return names


def table(lines: int) -> str:
    """Return the table of all readers that are installed."""
    titles = ["reader", "changes others", "refuses the file", "loses the record"]
    rows = [
        f"| {' | '.join([*titles, 'quoted commas', 'CR', 'time'])} |",
        "|---|---|---|---|---|---|--:|",
    ]
    readers = {
        title: reader
        for title, (package, reader) in READERS.items()
        if find_spec(package)
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names = write_large(folder / "large.csv", lines)
        base, *times = seconds(
            [csv_module(), *readers.values()], folder / "large.csv", names
        )
        for (title, reader), taken in zip(readers.items(), times, strict=True):
            found = outcomes(reader, folder)
            cells = [
                _listed(found[outcome]) for outcome in ("changes", "refuses", "loses")
            ]
            for is_read in (reads_quotes, reads_cr):
                cells.append("yes" if is_read(reader, folder) else "no")
            rows.append(f"| {title} | {' | '.join(cells)} | {taken / base:.1f} |")
    return "\n".join(rows)


def _listed(kinds: set[str]) -> str:
    if len(kinds) > len(KINDS) // 2:
        return "all but " + ", ".join(name for name in KINDS if name not in kinds)
    return ", ".join(name for name in KINDS if name in kinds) or "–"


def versions() -> str:
    """Return the versions of all that is installed."""
    packages = ("duckdb", "pandas", "polars", "pyarrow")
    found = [f"{name} {version(name)}" for name in packages if find_spec(name)]
    return f"Python {platform.python_version()}, {', '.join(found)}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="Readers of csv files, and single records."
    )
    parser.add_argument(
        "--lines", type=int, default=200_000, help="of the file for the times"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of single records
    print(table(arguments.lines))
    print(f"\n{versions()}; {arguments.lines} lines for the times.")


if __name__ == "__main__":
    main()
