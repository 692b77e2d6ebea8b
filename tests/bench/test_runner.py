"""Running: every task once, on from where it stopped, in one process or several."""

import io
import os
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import pytest
from rich.console import Console

from flower_kmeans.bench import rows
from flower_kmeans.bench.harness import Options, plan_of
from flower_kmeans.bench.runner import run
from flower_kmeans.errors import ConfigurationError, RunError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.csv"


def test_nothing_is_done_twice(suite, path, done):
    plan = plan_of(suite, Options(1))
    first = run(suite, plan, path, jobs=1)
    assert (first.n_done, first.n_left, first.failures) == (6, 0, ())
    again = run(suite, plan, path, jobs=1)
    assert (again.n_done, again.rows) == (0, first.rows)
    more = run(suite, plan_of(suite, Options(2)), path, jobs=1)
    assert more.n_done == 6
    assert len(done()) == len(set(done())) == 12


def test_time_that_is_up_leaves_the_rest_for_the_next_command(suite, path, done):
    plan = plan_of(suite, Options(1))
    stopped = run(suite, plan, path, jobs=1, minutes=0)
    assert (stopped.n_done, stopped.n_left, stopped.rows) == (0, 6, [])
    assert done() == []


def test_two_processes_do_the_same_as_one(suite, path, done):
    plan = plan_of(suite, Options(2))
    alone = run(suite, plan, path, jobs=1)
    both = run(suite, plan, path.with_name("both.csv"), jobs=2)
    assert both == alone
    assert len(done()) == 24


def test_what_fails_is_told_and_tried_again(suite, path, toy, done):
    plan = plan_of(suite, Options(1, data=("mine",)))
    toy.with_name("broken").touch()
    failed = run(suite, plan, path, jobs=1)
    assert [failure.error for failure in failed.failures] == ["ValueError: no luck"] * 2
    assert [row["method"] for row in failed.rows] == ["none"]
    toy.with_name("broken").unlink()
    assert run(suite, plan, path, jobs=1).n_done == 2
    assert len(done()) == 5


def test_rows_come_in_the_order_of_the_tasks_and_then_the_others(suite, path):
    run(suite, plan_of(suite, Options(2, only=(("run", ("1",)),))), path, jobs=1)
    run(suite, plan_of(suite, Options(2, data=("mine",))), path, jobs=1)
    found = run(suite, plan_of(suite, Options(1)), path, jobs=1).rows
    assert [(row["data"], row["run"]) for row in found] == (
        [("g2_2_30", 0)] * 3 + [("mine", 0)] * 3 + [("g2_2_30", 1)] * 3 + [("mine", 1)] * 3
    )
    some = run(suite, plan_of(suite, Options(1, only=(("epsilon", ("0.1",)),))), path, jobs=1)
    assert {row["epsilon"] for row in some.rows} == {0.1}
    assert len(some.rows) == 4


def test_progress_is_told_by_tenths(suite, path):
    text = io.StringIO()
    run(suite, plan_of(suite, Options(1)), path, jobs=1, console=Console(file=text))
    assert text.getvalue().splitlines() == [f"{n} of 6 runs" for n in range(1, 7)]


def test_each_task_may_have_a_process_of_its_own(suite, path, toy, done):
    source = toy.read_text().replace('f"{task}\\n"', 'f"{os.getpid()} {task}\\n"')
    toy.write_text("import os\n" + source)
    plan = plan_of(suite, Options(3, data=("mine",), only=(("epsilon", ("0.1",)),)))
    for jobs in (1, 2):
        before = len(done())
        outcome = run(replace(suite, fresh=True), plan, path.with_name(f"{jobs}.csv"), jobs=jobs)
        assert outcome.n_done == 3
        processes = {line.split()[0] for line in done()[before:]}
        assert len(processes) == 3
        assert all(each.isdigit() and int(each) != os.getpid() for each in processes)


def test_a_suite_that_measures_time_runs_alone(suite, path, monkeypatch):
    def refuse(*_):
        raise AssertionError("a pool was made")

    monkeypatch.setattr("flower_kmeans.bench.runner.ProcessPoolExecutor", refuse)
    plan = plan_of(suite, Options(1))
    monkeypatch.setattr("flower_kmeans.bench.runner.available_cores", lambda: 4)
    with pytest.raises(AssertionError):
        run(suite, plan, path)
    assert run(replace(suite, alone=True), plan, path).n_done == 6


@pytest.mark.parametrize("when", ["submitted", "done"])
def test_a_process_that_ends_by_itself_is_told(suite, path, monkeypatch, when):
    class Broken:
        def __init__(self, *_):
            pass

        def submit(self, *_):
            if when == "submitted":
                raise BrokenProcessPool
            future = Future()
            future.set_exception(BrokenProcessPool())
            return future

        def shutdown(self, **_):
            pass

    monkeypatch.setattr("flower_kmeans.bench.runner.ProcessPoolExecutor", Broken)
    with pytest.raises(RunError, match=r"ended by itself.*It had Task\("):
        run(suite, plan_of(suite, Options(1)), path, jobs=2)


def test_the_number_of_processes_is_positive(suite, path):
    with pytest.raises(ConfigurationError, match=r"Expected jobs >= 1. Got 0 instead"):
        run(suite, plan_of(suite, Options(1)), path, jobs=0)


def test_a_whole_file_needs_no_task(suite, path):
    run(suite, plan_of(suite, Options(1)), path, jobs=1)
    before = path.read_bytes()
    plan = plan_of(suite, Options(1))
    assert len(run(suite, replace(plan, tasks=()), path).rows) == 6
    assert path.read_bytes() == before
    assert len(rows.read(suite, path)) == 6
