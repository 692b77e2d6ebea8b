"""runs.csv: one row for each run, in the file as soon as the run is done."""

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from flower_kmeans.bench.harness import Row, Suite, parse, shown
from flower_kmeans.errors import ConfigurationError, DataError

NAME = "runs.csv"


def read(suite: Suite, path: Path) -> dict[Any, Row]:
    """Return the rows of a file by their tasks, in its order; none if there is no file.

    A row that was cut off, as by a full disk or a lost process, can only be the last; it is taken
    out of the file, and its task is done again. Of rows of one task the first counts, so files may
    be put together.

    Raises
    ------
    DataError
        If the file is no text, has other columns than the suite, or a row that is none of the
        suite's.
    """
    if not path.exists():
        return {}
    held = path.read_bytes()
    columns = suite.columns
    if ",".join(columns).encode().startswith(held):  # cut off within its first line
        path.unlink()
        return {}
    text = _decoded(held, path)
    head, *lines = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    if head != list(columns):
        raise DataError(
            f"Expected {path} with the columns {','.join(columns)} of suite {suite.name}. "
            f"Got {','.join(head)} instead: choose another --output."
        )
    rows: dict[Any, Row] = {}
    for number, cells in enumerate(lines, start=1):
        is_last = number == len(lines)
        row = None
        if not (is_last and not text.endswith("\n")):
            row = _row_of(columns, cells)
        if row is not None:
            rows.setdefault(suite.task(**{name: row[name] for name in suite.task_columns}), row)
        elif is_last:
            _rewrite(path, [head, *lines[:-1]])
        else:
            raise DataError(
                f"Expected {path} with values of suite {suite.name} in all rows. "
                f"Got others in row {number}."
            )
    return rows


def append(suite: Suite, path: Path, task: Any, measured: Mapping[str, Any]) -> Row:
    """Add a run to a file, with its header if it is the first, and return its row as read back.

    Raises
    ------
    DataError
        If the suite measured other things than it says.
    """
    if measured.keys() != suite.measures.keys():
        raise DataError(
            f"Expected a run of suite {suite.name} to give {', '.join(suite.measures)}. "
            f"Got {', '.join(measured)} instead."
        )
    values = [*astuple(task), *(measured[name] for name in suite.measures)]
    cells = [shown(kind, value) for kind, value in zip(suite.columns.values(), values, strict=True)]
    is_new = not path.exists() or not path.stat().st_size
    lines = [*([list(suite.columns)] if is_new else []), cells]
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(_text_of(lines))
        file.flush()
    row = _row_of(suite.columns, cells)
    if row is None:
        raise DataError(f"Expected values of the columns of suite {suite.name}. Got others.")
    return row


def _row_of(columns: Mapping[str, Any], cells: list[str]) -> Row | None:
    """Return a row with its types, or ``None`` for what is no row."""
    if len(cells) != len(columns):
        return None
    try:
        return {
            name: parse(kind, text, name)
            for (name, kind), text in zip(columns.items(), cells, strict=True)
        }
    except ConfigurationError:
        return None


def _decoded(held: bytes, path: Path) -> str:
    """Return the text of a file; a character that was cut off at its end is replaced."""
    try:
        return held.decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\n" in held[error.start :]:
            raise DataError(f"Expected {path} in UTF-8. Got bytes that are no text.") from None
        return held.decode("utf-8", "replace")


def _rewrite(path: Path, lines: list[list[str]]) -> None:
    """Replace a file at once, so that no moment leaves it without what it held."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(_text_of(lines), "utf-8", newline="")
    os.replace(partial, path)


def _text_of(lines: list[list[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
