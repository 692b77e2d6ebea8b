"""Results that live as long as the object that they belong to."""

import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from unittest import mock

import pytest
from cohorts import make_run

from flower_kmeans.kept import Kept, Results


def test_a_function_is_called_once_for_its_inputs():
    kept = Kept()
    make = mock.Mock(side_effect=lambda *inputs: inputs)
    for _ in range(2):
        assert kept.once(make, 1, b"a") == (1, b"a")
        assert kept.once(make, 2) == (2,)
    assert make.call_count == 2


def test_none_is_a_result():
    kept, make = Kept(), mock.Mock(return_value=None)
    assert kept.once(make) is kept.once(make) is None
    assert make.call_count == 1


def test_functions_with_equal_inputs_have_their_own_results():
    kept = Kept()
    assert kept.once(int, "7") == 7
    assert kept.once(str, "7") == "7"


def test_an_error_is_not_kept():
    kept = Kept()
    make = mock.Mock(side_effect=[ValueError("no"), "yes"])
    with pytest.raises(ValueError, match="no"):
        kept.once(make)
    assert kept.once(make) == "yes"


def test_the_oldest_result_of_a_function_is_dropped_first():
    kept = Kept(most=2)
    make = mock.Mock(side_effect=lambda number: number)
    kept.once(abs, -1)
    for number in (1, 2, 1, 3):
        kept.once(make, number)
    assert [call.args for call in make.call_args_list] == [(1,), (2,), (3,)]
    kept.once(make, 2)  # still there
    assert make.call_count == 3
    kept.once(make, 1)
    assert make.call_count == 4
    assert list(kept._results[abs]._found) == [(-1,)]
    assert list(kept._results[make]._found) == [(3,), (1,)]


def test_a_function_may_ask_for_the_result_of_another_one():
    kept = Kept()
    assert kept.once(lambda: kept.once(abs, -2) + 1) == 3


def test_threads_that_need_one_result_wait_for_it():
    kept, barrier, made = Kept(), Barrier(4), []

    def make():
        made.append(1)
        return object()

    def ask(_):
        barrier.wait()
        return kept.once(make)

    with ThreadPoolExecutor(4) as pool:
        results = set(pool.map(ask, range(4)))
    assert len(results) == len(made) == 1


def test_a_bound_of_nothing_keeps_nothing():
    results, make = Results(0), mock.Mock(side_effect=[1, 2])
    assert [results.first("name", make) for _ in range(2)] == [1, 2]
    assert results._found == {}


def test_results_go_with_their_object():
    kept = Kept()
    result = weakref.ref(kept.once(set))
    assert result() is not None
    del kept
    gc.collect()
    assert result() is None


def test_a_pickled_copy_starts_empty_and_has_the_same_bound():
    kept = Kept(most=1)
    kept.once(str, "a result of this process")
    data = pickle.dumps(kept)
    assert b"a result" not in data
    copy = pickle.loads(data)  # noqa: S301
    assert copy._results == {}
    for number in (1, 2):
        copy.once(abs, number)
    assert list(copy._results[abs]._found) == [(2,)]


def test_a_changed_run_has_no_results_of_the_former_one():
    run = make_run("plain", "none")
    kept = run.kept.once(object)
    assert run.kept.once(object) is kept
    assert replace(run, plan=run.plan).kept.once(object) is not kept
