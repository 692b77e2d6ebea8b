"""Persons: the text of an id."""

from typing import Any

import numpy as np

from flower_kmeans.errors import DataError

PERSON_WEIGHT = 2**12
_EXACT = 2.0**53


def id_text(cell: Any) -> str | None:
    """Return an id as text, or ``None`` if it is missing."""
    if cell is None or cell is np.ma.masked:
        return None
    if isinstance(cell, np.datetime64) and np.isnat(cell):
        return None
    if isinstance(cell, float | np.floating):
        number = float(cell)
        if number != number:
            return None
        if abs(number) >= _EXACT:
            raise DataError(
                "Expected ids as text or integers. Got floats of 2^53 or more."
            )
        if number.is_integer():
            return str(int(number))
    return str(cell).strip() or None
