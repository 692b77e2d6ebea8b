"""Sums of rows by their labels."""

from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", np.int64, np.float64)

# Columns that are added one by one: as fast as a matrix, whose SciPy takes 0.1 s to
# load.
_FEW_COLUMNS = 3
_SOME_COLUMNS = 8  # of at most `_SOME_NUMBERS`
_SOME_NUMBERS = 2**13
_FEW_NUMBERS = 2**11  # added one by one: making a matrix takes as long


class Groups:
    """Rows with labels (n,) in [0, n_groups); the labels may change in place."""

    def __init__(self, labels: NDArray[np.integer[Any]], n_groups: int) -> None:
        self._labels = labels
        self._n_groups = n_groups

    def sums(self, values: NDArray[T]) -> NDArray[T]:
        """Return the sums of numbers (n,) or rows (n, d) by label.

        Their shape is (n_groups,) or (n_groups, d). They are exact for int64, and for
        integers in float64 whose sums stay below 2**53.
        """
        is_narrow = values.ndim == 1 or _is_narrow(values)
        are_many = values.size >= _FEW_NUMBERS and self._n_groups <= len(values)
        if are_many and not is_narrow:
            return np.asarray(self._choice @ values)
        sums = np.zeros((self._n_groups, *values.shape[1:]), values.dtype)
        # NumPy is ten times as fast with these
        labels = self._labels.astype(np.intp, copy=False)
        if values.ndim == 2 and is_narrow:
            for column, numbers in zip(sums.T, values.T, strict=True):
                np.add.at(column, labels, numbers)
        else:
            np.add.at(sums, labels, values)
        return sums

    @cached_property
    def _choice(self) -> Any:
        """The matrix whose product with rows adds them up."""
        # Imported here: a node starts a process for each message, and most do not need
        # it.
        from scipy.sparse import csc_array

        # One entry per column; its rows are the labels themselves, not a copy.
        n = len(self._labels)
        # Small integers, which do not turn others into floats.
        ones = np.ones(n, np.int8)
        ends = np.arange(n + 1, dtype=self._labels.dtype)
        entries = (ones, self._labels, ends)
        return csc_array(entries, shape=(self._n_groups, n), copy=False)


def _is_narrow(values: NDArray[Any]) -> bool:
    """Return whether the columns of rows (n, d) are best added one by one."""
    n_columns = values.shape[1]
    is_small = values.size <= _SOME_NUMBERS
    return n_columns <= _FEW_COLUMNS or (is_small and n_columns <= _SOME_COLUMNS)
