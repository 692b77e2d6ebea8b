"""Sizes at which the library works in another way, brought within reach of small data."""

import pytest

from flower_kmeans import threads
from flower_kmeans.data import sources


def small_blocks(
    patch: pytest.MonkeyPatch, numbers: int, fewest_rows: int | None = None
) -> None:
    """Let sources give blocks of so many numbers, and of at least so many rows."""
    patch.setattr(sources, "_BLOCK_NUMBERS", numbers)
    if fewest_rows is not None:
        patch.setattr(sources, "_FEWEST_ROWS", fewest_rows)


def share_out_all_work(patch: pytest.MonkeyPatch, n_threads: int = 3) -> None:
    """Let any work be shared out over so many threads, however little it is."""
    patch.setattr(threads, "_WORK_PER_THREAD", 1)
    patch.setattr(threads, "_WORK_OF_NO_THREAD", 0)
    patch.setattr(threads, "blas_threads", lambda: n_threads)
