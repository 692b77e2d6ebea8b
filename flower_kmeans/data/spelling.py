"""The spelling of numbers, dates and missing cells in one party's file.

Each cell is read by itself, so no record changes another. A cell is *missing* if it is
empty or its text says that there is no value. Any other cell that does not fit its
column's declaration is *unreadable*.
"""

import re
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import BoolArray
from flower_kmeans.data.records import as_number, numbers
from flower_kmeans.errors import ConfigurationError

MISSING_TEXTS = frozenset(
    (
        *("", "na", "n/a", "nan", "-nan", "nat", "null", "none", "<na>", "#n/a", "#na"),
        *("#n/a n/a", "1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind"),
    )
)
"""Texts of missing cells, in lower case, as R, pandas, spreadsheets and C libraries write them."""

_DECIMALS = (".", ",")
# Word processors divide the digits of a number by no-break, narrow and thin spaces, and
# by the typographic apostrophe.
_ALIKE = {" ": " \u00a0\u202f\u2009", "'": "'\u2019"}
_THOUSANDS = (".", ",", " ", "'")


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty or says that there is no value."""
    if cell is None:
        return True
    if isinstance(cell, bytes):
        cell = cell.decode(errors="surrogateescape")
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING_TEXTS
    if type(cell).__name__ == "NAType":  # pandas.NA has no truth value when compared
        return True
    try:
        # NaN and NaT differ from themselves.
        return bool(cell != cell)
    except Exception:  # an object of the loader may raise anything
        return False


def are_missing(cells: NDArray[Any]) -> BoolArray:
    """Return whether each cell of a column, (n,), is missing, as an array (n,)."""
    kind = cells.dtype.kind
    if kind in "fc":
        return np.asarray(np.isnan(cells))
    if kind in "mM":
        return np.asarray(np.isnat(cells))
    if kind in "biu":
        return np.zeros(len(cells), dtype=bool)
    return np.fromiter(map(is_missing, cells.tolist()), dtype=bool, count=len(cells))


@dataclass(frozen=True)
class Spelling:
    """The spelling of numbers and dates in a party's file.

    Parameters
    ----------
    decimal : {".", ","}
        The character before the fraction of a number.
    thousands : {".", ",", " ", "'"}, optional
        The character between groups of three digits. A number may also have no groups.
        A space includes no-break, narrow and thin spaces, and the apostrophe includes
        the typographic one. By default numbers have no groups.
    date_format : str, optional
        The format of dates for ``datetime.strptime``, such as ``"%d.%m.%Y"``. By
        default dates are written as ISO 8601, such as 2024-02-29.

    Raises
    ------
    ConfigurationError
        If a value is none of these, or ``decimal`` equals ``thousands``.
    """

    decimal: str = "."
    thousands: str | None = None
    date_format: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in _DECIMALS:
            raise ConfigurationError(
                f"Expected decimal as '.' or ','. Got {self.decimal!r}."
            )
        if self.thousands is not None and self.thousands not in _THOUSANDS:
            raise ConfigurationError(
                f"Expected thousands as one of {list(_THOUSANDS)}. Got {self.thousands!r}."
            )
        if self.thousands == self.decimal:
            raise ConfigurationError(
                f"Expected thousands other than decimal. Got {self.decimal!r} for both: decimal is "
                "'.' unless it is given, such as ','."
            )
        if self.date_format is not None:
            _require_format(self.date_format)

    @cached_property
    def _groups(self) -> str:
        """Return the characters that may stand between groups of digits."""
        if self.thousands is None:
            return ""
        return _ALIKE.get(self.thousands, self.thousands)

    @cached_property
    def _number(self) -> "re.Pattern[str]":
        """Return the pattern of a number."""
        groups = ""
        if self._groups:
            groups = rf"[0-9]{{1,3}}(?:[{re.escape(self._groups)}][0-9]{{3}})+|"
        fraction = rf"(?:{re.escape(self.decimal)}[0-9]*)?"
        leading = rf"{re.escape(self.decimal)}[0-9]+"
        return re.compile(
            rf"[+-]?(?:(?:{groups}[0-9]+){fraction}|{leading})(?:[eE][+-]?[0-9]+)?"
        )

    @property
    def _is_usual(self) -> bool:
        """Whether numbers have a decimal point and no groups, as in Python."""
        return self.decimal == "." and self.thousands is None

    def number(self, cell: Any) -> float:
        """Return the number that a cell is or spells, or NaN."""
        if self._is_usual or not isinstance(cell, str | bytes):
            return as_number(cell)
        if isinstance(cell, bytes):
            text = cell.decode(errors="surrogateescape")
        else:
            text = cell
        text = text.strip()
        if self._number.fullmatch(text) is None:
            # "true" and "false" do not depend on the spelling.
            if text.lower() in ("true", "false"):
                return as_number(text)
            return np.nan
        for group in self._groups:
            text = text.replace(group, "")
        return float(text.replace(self.decimal, "."))

    def numbers(self, cells: NDArray[Any]) -> NDArray[np.float64]:
        """Return the cells of a column, (n,), as numbers, (n,), NaN for other cells."""
        kind = cells.dtype.kind
        if self._is_usual or kind not in "OSTU":
            found = numbers(cells)
            if found is None:
                return np.full(len(cells), np.nan)
            return found
        values = [self.number(cell) for cell in cells.tolist()]
        return np.array(values, dtype=np.float64)

    def date(self, text: str) -> date:
        """Return the date that a text spells.

        Raises
        ------
        ValueError
            If the text is not a date.
        """
        if self.date_format is None:
            return datetime.fromisoformat(text.strip())
        return datetime.strptime(text.strip(), self.date_format)


USUAL = Spelling()
"""The default: numbers with a decimal point and without groups, and dates of ISO 8601."""


def _require_format(text: str) -> None:
    """Require a format with day, month and year: it must read the day that it writes."""
    day = datetime(2023, 11, 27)
    try:
        again = datetime.strptime(day.strftime(text), text)
        is_right = again.date() == day.date()
    except (ValueError, re.error):
        is_right = False
    if not is_right:
        raise ConfigurationError(
            f"Expected format with day, month and year, such as '%d.%m.%Y'. Got {text!r} instead."
        )
