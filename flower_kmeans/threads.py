"""Ranges of rows on several threads, with BLAS kept to one thread in each."""

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
# so little BLAS (OpenBLAS: 2^18 products) shares out among no threads
_WORK_OF_NO_THREAD = 2**17
_WORK_PER_THREAD = 2**25  # less, about a millisecond, is not worth a second thread

# Callers may be threads themselves, so calls may overlap (tests/test_threads.py).
_lock = threading.Lock()
_calls = 0
_limit: Any = None
# From threadpoolctl 3.8 on, OpenBLAS ignores all threads but the first one that sets a
# limit.
_let_any_thread_set: Any = getattr(
    OpenBLASController, "clear_controlling_thread", lambda force: 0
)


def sum_in_parts(
    n_rows: int, work: int, part: Callable[[int, int], IntArrays]
) -> IntArrays:
    """Return the sum of a function's results for ranges of rows, on threads.

    There are as many threads as BLAS uses. ``part`` returns sums over the rows from a
    start to a stop, in new arrays. They are of integers, so the result does not depend
    on how many ranges there are. ``work`` is that of all rows, in products: little is
    not worth a second thread.
    """
    # limiting BLAS would take longer than the sums of few records
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
    """Return a function's results for ranges of rows, at most one range for each row.

    NumPy, BLAS and the compiled kernel release the GIL. The first range is the caller's
    thread's.
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
    """Return the number of threads that BLAS may use now: its limit is ours, too."""
    libraries = _controller().lib_controllers
    found = [int(library.num_threads) for library in libraries]
    return min(_MAX_WORKERS, max(found, default=os.cpu_count() or 1))


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep BLAS to one thread per caller while our own threads share the blocks.

    The limit belongs to the process: of calls that overlap, the first sets it, and the
    last restores the one before.
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
    """Find libraries that were loaded since the first call, to limit them, too."""
    _controller.cache_clear()


@cache
def _controller() -> Any:
    return ThreadpoolController().select(user_api="blas")
