"""Rows of a sheet in an Excel workbook (.xlsx, .xlsm)."""

import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require

SUFFIXES = (".xlsx", ".xlsm")
_PURPOSE = "An Excel workbook"
_COMPOUND_FILE = bytes.fromhex("d0cf11e0a1b11ae1")
"""The first bytes of an .xls file, and of a workbook that a password protects."""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
"""The part of a protected file that holds the encrypted workbook."""


@dataclass(frozen=True)
class Sheet:
    """One sheet of a workbook.

    Attributes
    ----------
    path : Path
        The workbook.
    name : str
        The sheet's name.
    """

    path: Path
    name: str

    def rows(self) -> Iterator[list[Any]]:
        """Yield the rows that have a cell with a value, from the top.

        A row has as many cells as the first row, or more up to its own last value. So
        no row except the first changes another.

        Yields
        ------
        list
            Cells from the first column on. A cell is a str, float, int or bool. By its
            format it may be a ``datetime.datetime`` (also for a date without a time), a
            ``datetime.time`` or a ``datetime.timedelta``. An empty cell is None. A
            formula is the value that was saved with it, or None without one. An error
            is its text, such as ``#N/A``. Of merged cells the first has the value.

        Raises
        ------
        DataError
            If the sheet is broken.
        """
        width = None
        for row in _filled_rows(self.path, self.name):
            if width is None:
                width = len(row)
            yield row + [None] * (width - len(row))


def open_sheet(path: str | Path, sheet: str | None = None) -> Sheet:
    """Return a workbook's sheet: the one with this name, or the only one with values.

    Parameters
    ----------
    path : path
        A file that ends in .xlsx or .xlsm.
    sheet : str, optional
        The sheet's name. It may be left out if only one sheet has values.

    Raises
    ------
    ConfigurationError
        If no sheet has this name, or if several have values and none is named. The
        error lists the sheets. Also if the file has another suffix, or the package
        openpyxl is missing.
    DataError
        If the file does not exist, is protected by a password, is not a workbook, or
        has no values.
    """
    path = Path(path)
    _require_workbook(path)
    with closing(_workbook(path)) as workbook:
        names = [found.title for found in workbook.worksheets]
    if sheet is not None:
        if sheet not in names:
            raise ConfigurationError(
                f"Expected sheet as the name of a sheet of {path}: {_listed(names)}. "
                f"Got {sheet!r} instead."
            )
        return Sheet(path, sheet)
    filled = []
    for name in names:
        first = next(_filled_rows(path, name), None)
        if first is not None:
            filled.append(name)
    if not filled:
        raise DataError(f"The data file {path} has no sheet with values.")
    if len(filled) > 1:
        raise ConfigurationError(
            f"Expected sheet, since {path} has several sheets with values: {_listed(filled)}. "
            "Got None instead."
        )
    return Sheet(path, filled[0])


def _require_workbook(path: Path) -> None:
    """Require a file that may be a workbook, or raise an error that names its format."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigurationError(
            f"Expected a workbook that ends in {', '.join(SUFFIXES)}. Got {path} instead: save it "
            "as .xlsx or .csv."
        )
    if not path.is_file():
        raise DataError(f"The data file {path} does not exist.")
    try:
        with path.open("rb") as file:
            is_compound = file.read(len(_COMPOUND_FILE)) == _COMPOUND_FILE
            is_encrypted = is_compound and _ENCRYPTED in file.read()
    except OSError:
        raise _broken(path) from None
    if is_encrypted:
        raise DataError(
            f"A password protects the data file {path}: save it without one."
        )
    if is_compound:
        raise DataError(
            f"The data file {path} is an .xls workbook: save it as .xlsx or .csv."
        )


def _filled_rows(path: Path, name: str) -> Iterator[list[Any]]:
    """Yield the rows that have values, each up to its last value."""
    with closing(_workbook(path)) as workbook:
        sheet = workbook[name]
        # Some programs write a wrong size, and cells beyond it would be left out.
        sheet.reset_dimensions()
        rows = sheet.iter_rows(values_only=True)
        while True:
            try:
                row = next(rows, None)
            except Exception:
                # openpyxl passes on the errors of zip and XML, of many types.
                raise _broken(path) from None
            if row is None:
                return
            cells = [None if cell == "" else cell for cell in row]
            while cells and cells[-1] is None:
                cells.pop()
            if cells:
                yield cells


def _workbook(path: Path) -> Any:
    """Return a workbook, open for reading row by row, with the values of formulas."""
    openpyxl = require("openpyxl", _PURPOSE, "excel")
    # openpyxl warns of invalid dates, which are error texts here ("#VALUE!"), and of
    # parts that are not read, such as styles. `warnings.catch_warnings` is not safe
    # among threads.
    warnings.filterwarnings("ignore", module=r"openpyxl\.")
    try:
        return openpyxl.load_workbook(
            path, read_only=True, data_only=True, keep_links=False
        )
    except Exception:
        raise _broken(path) from None


def _broken(path: Path) -> DataError:
    return DataError(f"The data file {path} is not an Excel workbook, or it is broken.")


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
