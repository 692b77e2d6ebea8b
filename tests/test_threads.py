"""Sums over rows that are shared out over threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from switches import share_out_all_work
from threadpoolctl import threadpool_info, threadpool_limits

from flower_kmeans import threads
from flower_kmeans.algorithms.numerics.assignment import cluster_sums
from flower_kmeans.algorithms.numerics.cells import cell_sums
from flower_kmeans.algorithms.numerics.projection import (
    Projection,
    lifted_sums,
    second_moments,
)
from flower_kmeans.data.domain import Ball, GridRecords
from flower_kmeans.threads import sum_in_parts


@pytest.fixture
def three_threads(monkeypatch):
    """Return a switch: from its call on, any work is shared out over three threads."""
    return partial(share_out_all_work, monkeypatch)


def blas_of_all():
    """Return how many threads BLAS has, of all libraries."""
    return {
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }


@contextmanager
def three_threads_of_blas():
    """Let BLAS have three threads for a while, where tests have one, whoever set that."""
    with threadpool_limits(3, "blas"):
        threads._let_any_thread_set(force=True)
        yield


def record_parts(n_rows, work):
    """Return the ranges and threads of the parts, and how often each row was in one."""
    parts, idents = [], set()

    def part(start, stop):
        parts.append((start, stop))
        idents.add(threading.get_ident())
        return (np.bincount(np.arange(start, stop), minlength=n_rows),)

    (times,) = sum_in_parts(n_rows, work, part)
    return parts, idents, times.tolist()


@pytest.mark.parametrize("n_rows", [0, 1, 2, 3, 10])
def test_every_row_is_in_one_part_and_little_work_takes_no_second_thread(
    three_threads, n_rows
):
    own = {threading.get_ident()}
    assert record_parts(n_rows, 1_000) == ([(0, n_rows)], own, [1] * n_rows)
    three_threads()
    parts, _, times = record_parts(n_rows, 100)
    assert len(parts) == max(1, min(3, n_rows))
    assert times == [1] * n_rows


def test_an_error_of_one_part_is_the_callers(three_threads):
    three_threads()

    def part(start, stop):
        if stop == 9:
            raise ValueError("the last part")
        return (np.zeros(1, dtype=np.int64),)

    with pytest.raises(ValueError, match="the last part"):
        sum_in_parts(9, 9, part)


def test_an_error_waits_for_the_other_parts_and_blas_has_one_thread_until_then(
    three_threads,
):
    """Nothing reads the records of a caller, who may close them, after the call."""
    three_threads()
    failed, found = threading.Event(), []

    def part(start, stop):
        if start == 0:
            found.append(blas_of_all())
            failed.set()
            raise ValueError("the first part")
        failed.wait(60)
        time.sleep(0.05)
        found.append(blas_of_all())

    with three_threads_of_blas(), pytest.raises(ValueError, match="the first part"):
        sum_in_parts(9, 9, part)
    assert found == [{1}, {1}, {1}]


def statistics():
    rng = np.random.default_rng(5)
    bits, d = 12, 4
    centers = rng.integers(-(2**bits), 2**bits, (6, d))
    radii = rng.integers(2**13, 2**14, 6)  # wide: of slacks something is left
    projection = Projection(Ball(1.0, np.zeros(d)), bits, 2)
    matrix = projection.matrix(np.linalg.qr(rng.normal(size=(d, 2)))[0])
    points = rng.integers(-projection.limit // 2, projection.limit // 2, (6, 2))
    return {
        "clusters": lambda records: cluster_sums(records, centers),
        "cells": lambda records: cell_sums(records, centers, radii, bits),
        "moments": lambda records: (second_moments(records),),
        "lifted": lambda records: lifted_sums(records, projection, matrix, points, 0.9),
    }


@pytest.mark.claim("guarantees", "8")
@pytest.mark.parametrize("name", statistics())
@pytest.mark.parametrize("n", [1, 2, 1_003])
def test_threads_change_no_statistic(three_threads, name, n):
    statistic = statistics()[name]
    data = np.random.default_rng(n).normal(0, 0.6, (n, 4))  # some outside the ball
    records = GridRecords(data, Ball(1.0, np.zeros(4)), 12)
    expected = statistic(records)
    assert all(array.any() for array in expected)
    three_threads()
    for found, array in zip(statistic(records), expected, strict=True):
        np.testing.assert_array_equal(found, array)


def test_overlapping_calls_restore_the_threads_of_blas(three_threads):
    three_threads()
    records = GridRecords.from_grid(np.zeros((2_000, 2)), 16)
    start = threading.Barrier(4)

    def call(_):
        start.wait()
        for _ in range(5):
            cluster_sums(records, np.zeros((3, 2), dtype=np.int64))

    with three_threads_of_blas():
        assert blas_of_all() == {3}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(4)))
        assert blas_of_all() == {3}
        with threads.single_threaded_blas():
            assert blas_of_all() == {1}
        assert blas_of_all() == {3}
