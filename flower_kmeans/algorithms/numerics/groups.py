"""Sums of rows by their labels."""

from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", np.int64, np.float64)

# So few columns are added one by one. A sparse matrix would be no faster, and SciPy takes
# 0.1 s to load.
_FEW_COLUMNS = 3
_SOME_COLUMNS = 8  # the same limit for at most `_SOME_NUMBERS`
_SOME_NUMBERS = 2**13
_FEW_NUMBERS = 2**11  # adding so few numbers is faster than making a matrix


class Groups:
    """Rows with labels, (n,), in [0, n_groups). The labels may change in place."""

    def __init__(self, labels: NDArray[np.integer[Any]], n_groups: int) -> None:
        self._labels = labels
        self._n_groups = n_groups

    def sums(self, values: NDArray[T]) -> NDArray[T]:
        """Return the sums by label of numbers, (n,), or rows, (n, d).

        The shape is (n_groups,) or (n_groups, d). Sums are exact for int64, and for
        integers in float64 if sums stay below 2**53.
        """
        is_narrow = values.ndim == 1 or _is_narrow(values)
        are_many = values.size >= _FEW_NUMBERS and self._n_groups <= len(values)
        if are_many and not is_narrow:
            return np.asarray(self._choice @ values)
        sums = np.zeros((self._n_groups, *values.shape[1:]), values.dtype)
        # NumPy is ten times as fast with indices of its own type.
        labels = self._labels.astype(np.intp, copy=False)
        if values.ndim == 2 and is_narrow:
            for column, numbers in zip(sums.T, values.T, strict=True):
                np.add.at(column, labels, numbers)
        else:
            np.add.at(sums, labels, values)
        return sums

    @cached_property
    def _choice(self) -> Any:
        """The sparse matrix whose product with rows is their sums by label."""
        # A node starts a process for each message, and most do not need this import.
        from scipy.sparse import csc_array

        # There is one entry per column. Its row indices are the labels, not a copy, so
        # the matrix changes with them.
        n = len(self._labels)
        # Small integers do not turn int64 into floats.
        ones = np.ones(n, np.int8)
        ends = np.arange(n + 1, dtype=self._labels.dtype)
        entries = (ones, self._labels, ends)
        return csc_array(entries, shape=(self._n_groups, n), copy=False)


def _is_narrow(values: NDArray[Any]) -> bool:
    """Return whether it is fastest to add the columns of rows, (n, d), one by one."""
    n_columns = values.shape[1]
    is_small = values.size <= _SOME_NUMBERS
    return n_columns <= _FEW_COLUMNS or (is_small and n_columns <= _SOME_COLUMNS)
