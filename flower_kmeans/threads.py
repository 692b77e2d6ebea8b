"""Sums over ranges of rows on several threads, in each of which BLAS uses one thread."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import (  # type: ignore[import-untyped]
    OpenBLASController,
    ThreadpoolController,
)

IntArrays = tuple[NDArray[np.int64], ...]
_Found = TypeVar("_Found")

_MAX_WORKERS = 8
# products that BLAS does not divide among threads (OpenBLAS: below 2^18)
_WORK_OF_NO_THREAD = 2**17
# About a millisecond. Less work is not worth a second thread.
_WORK_PER_THREAD = 2**25

# Callers may be threads themselves, so calls may overlap (tests/test_threads.py).
_lock = threading.Lock()
_calls = 0
_limit: Any = None
# From threadpoolctl 3.8 on, OpenBLAS accepts limits only from the first thread that
# sets one.
_let_any_thread_set: Any = getattr(
    OpenBLASController, "clear_controlling_thread", lambda force: 0
)


def sum_in_parts(
    n_rows: int, work: int, part: Callable[[int, int], IntArrays]
) -> IntArrays:
    """Return the sums of arrays over all rows, computed on several threads.

    There are at most as many threads as BLAS uses. Sums are integers, so the result
    does not depend on the number of ranges.

    Parameters
    ----------
    n_rows : int
    work : int
        Number of products for all rows. Little work is done on one thread.
    part : callable
        Returns the sums over the rows from a start to a stop, in new arrays.
    """
    # For few records, limiting BLAS would take longer than the sums.
    if work < _WORK_OF_NO_THREAD:
        return part(0, n_rows)
    n_threads = min(blas_threads(), 1 + work // _WORK_PER_THREAD)
    totals, *others = in_parts(n_rows, n_threads, part)
    for arrays in others:
        for total, more in zip(totals, arrays, strict=True):
            total += more
    return totals


def in_parts(
    n_rows: int, parts: int, part: Callable[[int, int], _Found]
) -> list[_Found]:
    """Return a function's results for at most ``parts`` ranges of rows, in order.

    Each range has at least one row. The ranges run on threads, the first of them on the
    caller's thread. NumPy, BLAS and the compiled kernel release the GIL.
    """
    parts = max(1, min(parts, n_rows))
    edges = [n_rows * i // parts for i in range(parts + 1)]
    with single_threaded_blas():
        if parts == 1:
            return [part(0, n_rows)]
        with ThreadPoolExecutor(parts - 1) as pool:
            others = pool.map(part, edges[1:-1], edges[2:])
            return [part(0, edges[1]), *others]


def blas_threads() -> int:
    """Return the number of threads that BLAS may use now, at most 8. We use as many."""
    libraries = _controller().lib_controllers
    found = [int(library.num_threads) for library in libraries]
    if not found:
        found = [os.cpu_count() or 1]
    return min(_MAX_WORKERS, max(found))


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit BLAS to one thread per caller while our own threads share the blocks.

    The limit is the process's. If calls overlap, the first sets it, and the last
    restores the limit before.
    """
    global _calls, _limit
    with _lock:
        if _calls == 0:
            _limit = _controller().limit(limits=1)
        _calls += 1
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if _calls == 0:
                _let_any_thread_set(force=True)
                _limit.restore_original_limits()
                _let_any_thread_set(force=True)


def find_blas_again() -> None:
    """Look for BLAS libraries again, to limit those that were loaded meanwhile."""
    _controller.cache_clear()


@cache
def _controller() -> Any:
    return ThreadpoolController().select(user_api="blas")
