"""Running: every task once, on from where it stopped, in one process or several."""

import io
import os
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from flower_kmeans.bench.harness import Options
from flower_kmeans.bench.runner import execute, read_runs
from flower_kmeans.errors import ConfigurationError, RunError


@pytest.fixture
def start(suite, tmp_path):
    """Return a function that runs the suite without its plots, which take the longest."""

    def execute_it(runs=1, chosen=suite, jobs=1, output="out", **arguments):
        options = Options(runs, **arguments.pop("options", {}))
        return execute(
            replace(chosen, plots={}),
            options,
            tmp_path / output,
            arguments=["bench"],
            jobs=jobs,
            console=Console(file=io.StringIO()),
            **arguments,
        )

    return execute_it


def test_nothing_is_done_twice(start, done):
    first = start()
    assert (first.n_done, first.n_left) == (6, 0)
    again = start()
    assert (again.n_done, again.rows) == (0, first.rows)
    assert start(2).n_done == 6
    assert len(done()) == len(set(done())) == 12


def test_time_that_is_up_leaves_the_rest_for_the_next_command(start, done):
    stopped = start(minutes=0)
    assert (stopped.n_done, stopped.n_left, stopped.rows) == (0, 6, [])
    assert done() == []
    assert start().n_done == 6


def test_two_processes_do_the_same_as_one(start, done):
    alone, both = start(2), start(2, jobs=2, output="both")
    assert both == alone
    assert len(done()) == 24


def test_what_fails_is_reported_and_tried_again(start, suite, tmp_path, toy, done):
    own = {"data": ("mine",)}
    toy.with_name("broken").touch()
    with pytest.raises(RunError, match=r"2 runs failed; the first, .*ValueError: no luck"):
        start(options=own)
    kept = read_runs(suite, tmp_path / "out" / "runs.csv")
    assert [task.method for task in kept] == ["none"]
    toy.with_name("broken").unlink()
    assert start(options=own).n_done == 2
    assert len(done()) == 5


def test_rows_come_in_the_order_of_the_tasks_and_then_the_others(start):
    start(2, options={"only": (("run", ("1",)),)})
    start(2, options={"data": ("mine",)})
    found = start().rows
    assert [(row["data"], row["run"]) for row in found] == (
        [("g2_2_30", 0)] * 3 + [("mine", 0)] * 3 + [("g2_2_30", 1)] * 3 + [("mine", 1)] * 3
    )
    some = start(options={"only": (("epsilon", ("0.1",)),)})
    assert {row["epsilon"] for row in some.rows} == {0.1}
    assert len(some.rows) == 4


def test_each_task_may_have_a_process_for_itself(start, suite, toy, done):
    source = toy.read_text().replace('f"{task}\\n"', 'f"{os.getpid()} {task}\\n"')
    toy.write_text("import os\n" + source)
    options = {"data": ("mine",), "only": (("epsilon", ("0.1",)),)}
    for jobs in (1, 2):
        before = len(done())
        chosen = replace(suite, fresh=True)
        assert start(3, chosen, jobs, f"{jobs}", options=options).n_done == 3
        processes = {line.split()[0] for line in done()[before:]}
        assert len(processes) == 3
        assert all(each.isdigit() and int(each) != os.getpid() for each in processes)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_process_that_is_killed_ends_the_command(start, suite, toy, fresh):
    end = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    source = toy.read_text().replace('raise ValueError("no luck")', end)
    toy.write_text("import os\n" + source)
    toy.with_name("broken").touch()
    with pytest.raises(RunError, match=r"process.* ended by itself"):
        start(chosen=replace(suite, fresh=fresh), jobs=2)


def test_a_suite_that_measures_time_runs_alone(start, suite, toy, done, monkeypatch):
    source = toy.read_text().replace('f"{task}\\n"', 'f"{os.getpid()} {task}\\n"')
    toy.write_text("import os\n" + source)
    monkeypatch.setattr("flower_kmeans.bench.runner.available_cores", lambda: 2)
    start(jobs=None)
    assert str(os.getpid()) not in {line.split()[0] for line in done()}
    before = len(done())
    start(chosen=replace(suite, alone=True), jobs=None, output="alone")
    assert len(done()) == before + 6


def test_the_number_of_processes_is_positive(start):
    with pytest.raises(ConfigurationError, match=r"Expected jobs >= 1. Got 0 instead"):
        start(jobs=0)
