"""A benchmark from a command: its files, and how they were made, its errors."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from typer.testing import CliRunner

from flower_kmeans.bench import quick, runner, script
from flower_kmeans.bench.runner import BUILT_IN, load_suite, read_runs
from flower_kmeans.cli.app import app
from flower_kmeans.errors import ConfigurationError, DataError, RunError
from flower_kmeans.version import __version__


def test_a_run_leaves_rows_tables_plots_and_how_they_were_made(start, suite, tmp_path):
    start(chosen=suite)
    printed = start.printed
    out = tmp_path / "out"
    names = {"runs.csv", "meta.json", "tables.md", "toy.png", "toy.svg"}
    assert {path.name for path in out.iterdir()} - {runner.LOCK} == names
    for name in names:
        assert name in printed
    assert "Skipped, because their files are missing: iris." in printed
    table = "| mine | noise | 0.433 (1) |"
    assert table in printed
    text = (out / "tables.md").read_text()
    assert text.startswith("# toy\n\nWhat is measured.\n\n- `flower-kmeans bench --suite 'a b.py'`")
    assert table in text
    assert "Skipped" in text
    meta = json.loads((out / "meta.json").read_text())
    (command,) = meta["commands"]
    assert command["command"] == "flower-kmeans bench --suite 'a b.py'"
    assert (command["rows"], command["jobs"]) == (6, 1)
    assert command["versions"]["flower-kmeans"] == __version__
    assert {"python", "flwr", "numpy"} <= command["versions"].keys()
    assert command["started"] <= command["ended"] <= runner._now()
    assert command["commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", command["commit"])


def test_each_command_that_added_rows_is_kept(start, tmp_path, done):
    start()
    start(2)
    start(2)  # nothing is left
    assert len(done()) == 12
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert [command["rows"] for command in meta["commands"]] == [6, 6, 0]
    assert (tmp_path / "out" / "tables.md").read_text().count(": 6 runs; ") == 2


def test_tables_name_the_commit_of_a_command(start, tmp_path, monkeypatch):
    for number, found in enumerate(("0123456789" * 4 + "+", "ab" * 20, None)):
        monkeypatch.setattr(runner, "_commit", lambda found=found: found)
        start(number + 1)
    text = (tmp_path / "out" / "tables.md").read_text()
    assert ", commit 0123456789+`\n" in text
    assert ", commit ababababab`\n" in text
    assert text.count(", commit ") == 2


def test_a_command_that_is_stopped_leaves_its_rows_and_how_they_were_made(start, bare, tmp_path):
    def measure(task, options):
        if task.data == "mine":
            raise KeyboardInterrupt
        return bare.measure(task, options)

    with pytest.raises(KeyboardInterrupt):
        start(chosen=replace(bare, measure=measure))
    assert not (tmp_path / "out" / "tables.md").exists()
    start()
    commands = json.loads((tmp_path / "out" / "meta.json").read_text())["commands"]
    assert [command["rows"] for command in commands] == [3, 3]
    assert (tmp_path / "out" / "tables.md").read_text().count(": 3 runs; ") == 2


def test_a_command_that_is_killed_is_shown(start, tmp_path, monkeypatch):
    def kill(*_, **__):
        assert json.loads((tmp_path / "out" / "meta.json").read_text())["commands"]
        monkeypatch.setattr(
            runner, "_write_meta", lambda *_: None
        )  # this process writes nothing more
        raise SystemExit

    monkeypatch.setattr("flower_kmeans.bench.runner._results", kill)
    with pytest.raises(SystemExit):
        start()
    monkeypatch.undo()
    start()
    assert ": and was killed; " in (tmp_path / "out" / "tables.md").read_text()


def test_one_command_at_a_time_writes_to_a_directory(start, bare, tmp_path, monkeypatch):
    def measure(task, options):
        with pytest.raises(ConfigurationError, match=r"Got another command that is writing to it"):
            start()
        with pytest.raises(ConfigurationError, match="choose another --output"):
            start(redraw=True)
        return bare.measure(task, options)

    one = {"data": ("mine",), "only": (("method", ("none",)),)}
    start(chosen=replace(bare, measure=measure), **one)
    start(**one)  # the lock is free, also where its file is left


def test_redrawing_runs_nothing(start, tmp_path, done):
    start()
    (tmp_path / "out" / "tables.md").unlink()
    before = (tmp_path / "out" / "meta.json").read_bytes()
    start(9, redraw=True)
    assert "| mine | noise | 0.433 (1) |" in start.printed
    assert (tmp_path / "out" / "tables.md").exists()
    assert (tmp_path / "out" / "meta.json").read_bytes() == before
    assert len(done()) == 6


def test_a_finished_file_is_shown_without_its_data(start, tmp_path):
    own = tmp_path / "own.npz"
    np.savez(own, X=np.zeros((3, 1)))
    start(data=("mine", f"{own}:2"))
    own.unlink()
    start(data=(f"{own}:2",), redraw=True)
    assert "| own | noise |" in start.printed
    assert "| mine | noise |" not in start.printed


def test_rows_of_another_file_of_that_name_are_refused(start, tmp_path, done):
    own = tmp_path / "own.npz"
    np.savez(own, X=np.zeros((3, 1)))
    start(data=(f"{own}:2",))
    start(2, data=(f"{own}:2",))
    before = len(done())
    for redraw in (False, True):
        with pytest.raises(
            ConfigurationError,
            match=r"own to be what .* by that name. Got clusters 3, not 2: ",
        ):
            start(data=(f"{own}:3",), redraw=redraw)
    np.savez(own, X=np.ones((3, 1)))
    with pytest.raises(ConfigurationError, match="Got other contents: choose another --output"):
        start(3, data=(f"{own}:2",))
    assert len(done()) == before == 6


def test_rows_of_another_directory_of_data_are_refused(start, bare, tmp_path, done):
    first, second = tmp_path / "first", tmp_path / "second"
    for number, folder in enumerate((first, second)):
        folder.mkdir()
        np.savez(folder / "iris.npz", X=np.full((3, 1), number))
    start(data_dir=first)
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["files"].keys() == {"iris", "g2_2_30"}
    for other in ({"data_dir": second}, {"data": (f"{second / 'iris.npz'}:3",)}):
        with pytest.raises(ConfigurationError, match=r"Expected iris to be .* Got other contents"):
            start(2, **other)
    start(data=("mine",), data_dir=second)  # without that data set
    start(data=(f"{first / 'iris.npz'}:3",))  # the very same
    assert len(done()) == 9
    here = replace(bare, sources={"mine": {"bounds": "0 1"}})
    start(chosen=here)
    with pytest.raises(ConfigurationError, match=r"mine to be .* Got bounds 0 2, not 0 1: choose"):
        start(2, replace(bare, sources={"mine": {"bounds": "0 2"}}))


def test_rows_of_other_settings_are_refused(start, suite, tmp_path, done):
    start()
    before = (tmp_path / "out" / "runs.csv").read_bytes()
    other = replace(suite, settings={"trust": "plain"})
    with pytest.raises(
        ConfigurationError, match=r"suite toy with trust=plain. Got .* suite toy ins"
    ):
        start(chosen=other)
    with pytest.raises(ConfigurationError, match=r"runs of suite other. Got those of suite toy"):
        start(chosen=replace(suite, name="other"))
    (tmp_path / "out" / "meta.json").write_text("[]")
    with pytest.raises(DataError, match=r"meta.json to be a benchmark's"):
        start()
    assert (tmp_path / "out" / "runs.csv").read_bytes() == before
    assert len(done()) == 6


def test_failures_are_reported_after_the_tables(start, toy):
    toy.with_name("broken").touch()
    with pytest.raises(RunError, match=r"4 runs failed; the first, Task\(.*ValueError: no luck"):
        start()
    assert (toy.parents[1] / "out" / "tables.md").exists()


def test_plots_need_matplotlib_and_nothing_else_does(start, suite, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    start(chosen=suite)
    assert "A plot needs the package matplotlib" in start.printed
    assert (tmp_path / "out" / "tables.md").exists()


# --------------------------------------------------------------------------- tasks


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
    toy.with_name("broken").touch()
    with pytest.raises(RunError, match=r"2 runs failed; the first, .*ValueError: no luck"):
        start(data=("mine",))
    kept = read_runs(suite, tmp_path / "out" / "runs.csv")
    assert [task.method for task in kept] == ["none"]
    toy.with_name("broken").unlink()
    assert start(data=("mine",)).n_done == 2
    assert len(done()) == 5


def test_rows_come_in_the_order_of_the_tasks_and_then_the_others(start):
    start(2, only=(("run", ("1",)),))
    start(2, data=("mine",))
    found = start().rows
    assert [(row["data"], row["run"]) for row in found] == (
        [("g2_2_30", 0)] * 3 + [("mine", 0)] * 3 + [("g2_2_30", 1)] * 3 + [("mine", 1)] * 3
    )
    some = start(only=(("epsilon", ("0.1",)),))
    assert {row["epsilon"] for row in some.rows} == {0.1}
    assert len(some.rows) == 4


def test_each_task_may_have_a_process_for_itself(start, bare, toy, done):
    source = toy.read_text().replace('f"{task}\\n"', 'f"{os.getpid()} {task}\\n"')
    toy.write_text("import os\n" + source)
    options = {"data": ("mine",), "only": (("epsilon", ("0.1",)),)}
    for jobs in (1, 2):
        before = len(done())
        chosen = replace(bare, fresh=True)
        assert start(3, chosen, jobs, f"{jobs}", **options).n_done == 3
        processes = {line.split()[0] for line in done()[before:]}
        assert len(processes) == 3
        assert all(each.isdigit() and int(each) != os.getpid() for each in processes)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_process_that_is_killed_ends_the_command(start, bare, toy, fresh):
    end = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    source = toy.read_text().replace('raise ValueError("no luck")', end)
    toy.write_text("import os\n" + source)
    toy.with_name("broken").touch()
    with pytest.raises(RunError, match=r"process.* ended by itself"):
        start(chosen=replace(bare, fresh=fresh), jobs=2)


def test_a_suite_that_measures_time_runs_alone(start, bare, toy, done, monkeypatch):
    source = toy.read_text().replace('f"{task}\\n"', 'f"{os.getpid()} {task}\\n"')
    toy.write_text("import os\n" + source)
    monkeypatch.setattr("flower_kmeans.bench.runner.available_cores", lambda: 2)
    start(jobs=None)
    assert str(os.getpid()) not in {line.split()[0] for line in done()}
    before = len(done())
    start(chosen=replace(bare, alone=True), jobs=None, output="alone")
    assert len(done()) == before + 6


def test_the_number_of_processes_is_positive(start):
    with pytest.raises(ConfigurationError, match=r"Expected jobs >= 1. Got 0 instead"):
        start(jobs=0)


# --------------------------------------------------------------------------- commands


class TestSuitesByName:
    def test_built_in(self):
        assert load_suite("quick") is quick.SUITE
        assert [load_suite(name).name for name in BUILT_IN] == list(BUILT_IN)

    def test_what_is_none(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", list(sys.path))
        for name in ("quicker", str(tmp_path / "none.py"), str(tmp_path)):
            with pytest.raises(ConfigurationError, match="one of quick, or a Python file NAME"):
                load_suite(name)
        (tmp_path / "json.py").write_text("SUITE = 1")
        with pytest.raises(
            ConfigurationError, match=r"a name that no other module has. Got 'json'"
        ):
            load_suite(str(tmp_path / "json.py"))
        (tmp_path / "two.parts.py").write_text("SUITE = 1")
        with pytest.raises(ConfigurationError, match=r"a Python file NAME.py"):
            load_suite(str(tmp_path / "two.parts.py"))
        (tmp_path / "without_a_suite.py").write_text("SUITE = 1")
        with pytest.raises(ConfigurationError, match="to define SUITE"):
            load_suite(str(tmp_path / "without_a_suite.py"))
        sys.modules.pop("without_a_suite")


class TestCommand:
    @pytest.fixture
    def bench(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        return lambda *arguments: CliRunner().invoke(app, ["bench", *map(str, arguments)])

    def test_without_a_suite_it_lists_them(self, bench):
        result = bench()
        assert result.exit_code == 0
        assert "quick: The cost of private clusterings" in result.stdout

    def test_a_suite_in_a_file(self, bench, toy, tmp_path, done):
        arguments = ("--suite", toy, "--jobs", 1, "--runs", 3, "--data", "mine")
        result = bench(*arguments, "--only", "method=none", "--only", "run=0,2")
        assert result.exit_code == 0, result.output
        assert "| mine | none | 1.333 ± 13 (2) |" in result.stdout
        assert (tmp_path / "build" / "toy" / "runs.csv").exists()
        assert len(done()) == 2

    def test_errors_are_one_sentence(self, bench, toy):
        for arguments, words in (
            (("--suite", "nothing"), "Expected --suite as one of quick"),
            (("--suite", toy, "--only", "method"), "Expected --only COLUMN=VALUE[,VALUE]."),
            (("--suite", toy, "--data", "s3"), "Expected a data set: one of s1, "),
            (("--suite", toy, "--jobs", 0), "Expected jobs >= 1"),
        ):
            result = bench(*arguments)
            assert result.exit_code == 1
            assert result.stderr.startswith("Error: ")
            assert result.stderr.count("\n") == 1
            assert words in result.stderr


def test_a_script_has_an_option_for_each_column(suite, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["toy_suite.py"])
    script.main(suite, ["--epsilons", "7", "--data", "mine", "--runs", "1", "--jobs", "1"])
    assert "| mine | noise |" in capsys.readouterr().out
    assert "mine,noise,7.0,0,7.33" in (tmp_path / "build" / "toy" / "runs.csv").read_text()
    with pytest.raises(SystemExit, match="Error: Expected method among"):
        script.main(suite, ["--methods", "none at all", "--data", "mine"])


AS_SCRIPT = """
if __name__ == "__main__":
    from flower_kmeans.bench import script

    script.main(SUITE)
"""


def test_a_script_runs_in_two_processes(toy, tmp_path, done):
    """Also where it has functions that are wrapped, which can be found by name only."""
    source = toy.read_text().replace("1.0 / 3", "third()")
    third = "import functools\n\n\n@functools.lru_cache\ndef third():\n    return 1.0 / 3\n"
    toy.write_text(third + source + AS_SCRIPT)
    command = [sys.executable, str(toy), "--data", "mine", "--runs", "2", "--jobs", "2"]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=120, capture_output=True)
    assert len(done()) == 6


def test_options_are_the_plurals_of_columns():
    @dataclass(frozen=True)
    class Several:
        strategy: str
        settings: str
        method: str

    made = replace(quick.SUITE, task=Several, measures={"loss": float})
    parsed = script.parser_of(made).parse_args(
        ["--strategies", "a", "b", "--settings", "c", "--methods", "d"]
    )
    assert script.options_of(made, parsed).only == (
        ("strategy", ("a", "b")),
        ("settings", ("c",)),
        ("method", ("d",)),
    )


def test_commands_are_shown_as_they_are_typed_without_folders_of_a_machine(tmp_path):
    sets = f"{tmp_path / 'sets' / 'own.npz'}:3"
    command = [str(tmp_path / "loss.py"), "--data", "a b", sets, f"--output={tmp_path / 'out'}"]
    shown = runner._command_of([*command, "--data-dir", "../sets"])
    assert shown == "python loss.py --data 'a b' own.npz:3 --output=out --data-dir sets"
    assert runner._command_of(["benchmarks/loss.py"]) == "python benchmarks/loss.py"
    assert runner._command_of(["/opt/bin/flower-kmeans", "bench"]) == "flower-kmeans bench"
