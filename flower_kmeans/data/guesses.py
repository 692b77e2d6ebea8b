"""Guesses about undeclared columns, for their holder alone.

A guess uses the first records of a table. It decides nothing in a run.
"""

import re
from collections import Counter
from dataclasses import dataclass
from datetime import date
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import CellArray
from flower_kmeans.data.findings import cause_of, shape_of
from flower_kmeans.data.spelling import Spelling, are_missing
from flower_kmeans.data.table_domain import Date, category_of

Guessed = Literal["number", "category", "date", "id", "free text", "empty"]

MOST_CATEGORIES = 20  # a column with more texts has names or codes of records
_FEWEST_PER_CATEGORY = 2  # cells on average
_MOST_SAMPLED = 1_000
_ENOUGH = 0.5  # fraction of a column's cells that decides its kind
_FEWEST_FOR_ID = 50
_DAYS = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%m-%d-%Y",
    "%Y.%m.%d",
)
_FORMATS = tuple(
    f"{day}{time}" for time in ("", " %H:%M", " %H:%M:%S") for day in _DAYS
)
"""Formats of dates to try beside the format of the reading."""
_LIKE_DATES = re.compile(r"9{1,4}[./-]9{1,2}[./-]9{1,4}( .*)?")
_LIKE_NUMBERS = re.compile(
    r"(?:[<>]=? ?)?[+-]?[9.,'\u2019\s]*9[9.,'\u2019\s]*(?:[$%?]| \S{1,4})?"
)
"""Shapes of numbers, also with < or > before them, or a currency or unit after them."""


@dataclass(frozen=True)
class Guess:
    """A guess about a column.

    Attributes
    ----------
    kind : str
        One of "number", "category", "date", "id", "free text" and "empty".
    formats : tuple of str
        Formats of dates, if the reading does not read them. There are several if the
        cells do not decide, for example whether the day or the month comes first.
    """

    kind: Guessed
    formats: tuple[str, ...] = ()


def guess(cells: CellArray, spelling: Spelling) -> Guess:
    """Return a guess about a column from its first cells, (n,)."""
    kind = cells.dtype.kind
    present = cells[~are_missing(cells)]
    if not len(present):
        return Guess("empty")
    if kind in "biufc":
        return Guess("number")
    if kind == "M":
        return Guess("date")
    if _share(np.isfinite(spelling.numbers(present))) >= _ENOUGH:
        return Guess("number")
    sample = present[:_MOST_SAMPLED]
    formats = _formats_of(sample, spelling)
    if formats is not None:
        return Guess("date", formats)
    if _spells_numbers(sample):
        return Guess("number")
    texts = Counter(map(category_of, present.tolist()))
    fewest = _FEWEST_PER_CATEGORY * len(texts)
    if len(texts) <= MOST_CATEGORIES and len(present) >= fewest:
        return Guess("category")
    if len(texts) == len(present) >= _FEWEST_FOR_ID:
        return Guess("id")
    return Guess("free text")


def _formats_of(sample: CellArray, spelling: Spelling) -> tuple[str, ...] | None:
    """Return the formats in which cells are dates, or ``None`` if they are not dates.

    The formats are empty if the spelling reads the dates already.
    """
    if _share(_are_dates(sample, spelling)) >= _ENOUGH:
        return ()
    # Trying formats takes long, and most columns are not dates.
    shapes = [shape_of(cell) for cell in sample.tolist()]
    look_so = [_LIKE_DATES.fullmatch(shape) is not None for shape in shapes]
    if _share(np.array(look_so)) < _ENOUGH:
        return None
    shares = {}
    for name in _FORMATS:
        are_dates = _are_dates(sample, Spelling(date_format=name))
        shares[name] = _share(are_dates)
    most = max(shares.values())
    if most < _ENOUGH:
        return None
    return tuple(name for name, share in shares.items() if share == most)


def _are_dates(cells: CellArray, spelling: Spelling) -> NDArray[np.bool_]:
    return ~np.isnan(read_dates(cells, spelling))


def read_dates(cells: CellArray, spelling: Spelling) -> NDArray[np.float64]:
    """Return the days of a column since the year 1, (n,), NaN for other cells."""
    return Date("", date.min, date.max).read(cells, spelling)


def _spells_numbers(sample: CellArray) -> bool:
    """Return whether cells are numbers in another spelling, such as 1.234,50."""
    fitting = []
    for shape in map(shape_of, sample.tolist()):
        looks_so = _LIKE_NUMBERS.fullmatch(shape) is not None
        fitting.append(looks_so and cause_of(shape) is not None)
    return _share(np.array(fitting, dtype=bool)) >= _ENOUGH


def _share(which: NDArray[np.bool_]) -> float:
    if len(which):
        return float(np.mean(which))
    return 0.0
