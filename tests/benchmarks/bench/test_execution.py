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
from scripts import ROOT

from bench import runner, script
from bench.runner import load_suite, read_runs
from flower_kmeans.errors import ConfigurationError, DataError, RunError
from flower_kmeans.version import __version__

MINE = {"data": ("mine",)}


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def commands(out):
    """Return a function that reads what is kept of commands."""
    return lambda: json.loads((out / "meta.json").read_text())["commands"]


@pytest.fixture
def own(tmp_path):
    """Return a data set in a file."""
    np.savez(tmp_path / "own.npz", X=np.zeros((3, 1)))
    return tmp_path / "own.npz"


def test_a_run_leaves_rows_tables_plots_and_how_they_were_made(
    start, suite, out, commands
):
    start(chosen=suite)
    names = {"runs.csv", "meta.json", "tables.md", "toy.png", "toy.svg"}
    assert {path.name for path in out.iterdir()} - {runner.LOCK} == names
    table, skipped = (
        "| mine | noise | 0.433 (1) |",
        "because their files are missing: iris.",
    )
    assert all(each in start.printed for each in (table, skipped, *names))
    text = (out / "tables.md").read_text()
    assert text.startswith("# toy\n\nWhat is measured.\n\n- `python 'a b.py' --runs 1`")
    assert table in text
    assert skipped in text
    (command,) = commands()
    assert command["command"] == "python 'a b.py' --runs 1"
    assert (command["rows"], command["jobs"]) == (6, 1)
    assert command["versions"]["flower-kmeans"] == __version__
    assert {"python", "flwr", "numpy"} <= command["versions"].keys()
    assert command["started"] <= command["ended"] <= runner._now()
    assert command["commit"] is None or re.fullmatch(
        r"[0-9a-f]{40}\+?", command["commit"]
    )


@pytest.mark.claim("benchmarks", "meta-json-each-command")
def test_each_command_that_added_rows_is_kept(start, out, commands, done, monkeypatch):
    for runs, found in (
        (1, "0123456789" * 4 + "+"),
        (2, "ab" * 20),
        (2, None),
        (3, None),
    ):
        monkeypatch.setattr(runner, "_commit", lambda found=found: found)
        start(runs)  # nothing is left for the third
    assert [command["rows"] for command in commands()] == [6, 6, 0, 6]
    assert len(done()) == 18
    text = (out / "tables.md").read_text()
    assert text.count(": 6 runs; ") == 3
    assert ", commit 0123456789+`\n" in text
    assert ", commit ababababab`\n" in text
    assert text.count(", commit ") == 2


def test_a_command_that_is_stopped_leaves_its_rows_and_how_they_were_made(
    start, bare, out, commands
):
    def measure(task, options):
        if task.data == "mine":
            raise KeyboardInterrupt
        return bare.measure(task, options)

    with pytest.raises(KeyboardInterrupt):
        start(chosen=replace(bare, measure=measure))
    assert not (out / "tables.md").exists()
    start()
    assert [command["rows"] for command in commands()] == [3, 3]
    assert (out / "tables.md").read_text().count(": 3 runs; ") == 2


def test_a_command_that_is_killed_is_shown(start, out, commands, monkeypatch):
    def kill(*_, **__):
        assert commands()
        # nothing more is written
        monkeypatch.setattr(runner.Meta, "write", lambda *_: None)
        raise SystemExit

    monkeypatch.setattr(runner, "_results", kill)
    with pytest.raises(SystemExit):
        start()
    monkeypatch.undo()
    start()
    assert ": and was killed; " in (out / "tables.md").read_text()


@pytest.mark.claim("benchmarks", "one-command-at-time")
def test_one_command_at_a_time_writes_to_a_directory(start, bare):
    def measure(task, options):
        with pytest.raises(
            ConfigurationError, match=r"Got another command that is writing to it"
        ):
            start()
        with pytest.raises(ConfigurationError, match="choose another --output"):
            start(redraw=True)
        return bare.measure(task, options)

    one = {**MINE, "only": (("method", ("none",)),)}
    start(chosen=replace(bare, measure=measure), **one)
    start(**one)  # the lock is free, also where its file is left


def test_redrawing_runs_nothing(start, out, done):
    start()
    (out / "tables.md").unlink()
    before = (out / "meta.json").read_bytes()
    start(9, redraw=True)
    assert "| mine | noise | 0.433 (1) |" in start.printed
    assert (out / "tables.md").exists()
    assert (out / "meta.json").read_bytes() == before
    assert len(done()) == 6


def test_a_finished_file_is_shown_without_its_data(start, own):
    start(data=("mine", f"{own}:2"))
    own.unlink()
    start(data=(f"{own}:2",), redraw=True)
    assert "| own | noise |" in start.printed
    assert "| mine | noise |" not in start.printed


@pytest.mark.claim("benchmarks", "rows-another-suite-settings")
def test_rows_of_another_file_of_that_name_are_refused(start, own, done):
    start(data=(f"{own}:2",))
    start(2, data=(f"{own}:2",))
    for redraw in (False, True):
        words = r"own to be what .* by that name. Got clusters 3, not 2: "
        with pytest.raises(ConfigurationError, match=words):
            start(data=(f"{own}:3",), redraw=redraw)
    np.savez(own, X=np.ones((3, 1)))
    with pytest.raises(
        ConfigurationError, match="Got other contents: choose another --output"
    ):
        start(3, data=(f"{own}:2",))
    assert len(done()) == 6


@pytest.mark.claim("benchmarks", "rows-another-suite-settings")
def test_rows_of_another_directory_of_data_are_refused(
    start, bare, out, tmp_path, done
):
    first, second = tmp_path / "first", tmp_path / "second"
    for number, folder in enumerate((first, second)):
        folder.mkdir()
        np.savez(folder / "iris.npz", X=np.full((3, 1), number))
    start(data_dir=first)
    files = json.loads((out / "meta.json").read_text())["files"]
    assert files.keys() == {"iris", "g2_2_30"}
    for other in ({"data_dir": second}, {"data": (f"{second / 'iris.npz'}:3",)}):
        with pytest.raises(
            ConfigurationError, match=r"Expected iris to be .* Got other contents"
        ):
            start(2, **other)
    start(**MINE, data_dir=second)  # without that data set
    start(data=(f"{first / 'iris.npz'}:3",))  # the very same
    assert len(done()) == 9
    start(chosen=replace(bare, sources={"mine": {"bounds": "0 1"}}))
    with pytest.raises(
        ConfigurationError, match=r"mine to be .* Got bounds 0 2, not 0 1: choose"
    ):
        start(2, replace(bare, sources={"mine": {"bounds": "0 2"}}))


@pytest.mark.claim("benchmarks", "rows-another-suite-settings")
def test_rows_of_other_settings_are_refused(start, suite, out, done):
    start()
    before = (out / "runs.csv").read_bytes()
    for change, words in (
        (
            {"settings": {"trust": "plain"}},
            r"suite toy with trust=plain. Got .* suite toy ins",
        ),
        ({"name": "other"}, r"runs of suite other. Got those of suite toy"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            start(chosen=replace(suite, **change))
    for text in (b"[]", b"{", b"\xff"):
        (out / "meta.json").write_bytes(text)
        with pytest.raises(DataError, match=r"meta.json to be a benchmark's"):
            start()
    assert (out / "runs.csv").read_bytes() == before
    assert len(done()) == 6


def test_plots_need_matplotlib_and_nothing_else_does(start, suite, monkeypatch, out):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    start(chosen=suite)
    assert "A plot needs the package matplotlib" in start.printed
    assert (out / "tables.md").exists()


# --------------------------------------------------------------------------- tasks


@pytest.mark.claim("benchmarks", "same-command-continues-where")
def test_nothing_is_done_twice(start, done):
    first = start()
    assert (first.n_done, first.n_left) == (6, 0)
    again = start()
    assert (again.n_done, again.rows) == (0, first.rows)
    assert start(2).n_done == 6
    assert len(done()) == len(set(done())) == 12


def test_time_that_is_up_leaves_the_rest_for_the_next_command(start, done):
    stopped = start(minutes=0)
    assert (stopped.n_done, stopped.n_left, stopped.rows, done()) == (0, 6, [], [])
    assert start().n_done == 6


@pytest.mark.claim("benchmarks", "jobs-processes-work-at")
def test_two_processes_do_the_same_as_one(start, done):
    assert start(2, jobs=2, output="both") == start(2)
    assert len(done()) == 24


def test_what_fails_is_reported_after_the_tables_and_tried_again(
    start, suite, out, toy, done
):
    toy.with_name("broken").touch()
    words = r"2 runs failed; the first, Task\(.*ValueError: no luck"
    with pytest.raises(RunError, match=words):
        start(**MINE)
    assert (out / "tables.md").exists()
    assert [task.method for task in read_runs(suite, out / "runs.csv")] == ["none"]
    toy.with_name("broken").unlink()
    assert start(**MINE).n_done == 2
    assert len(done()) == 5


def test_rows_come_in_the_order_of_the_tasks_and_then_the_others(start):
    start(2, only=(("run", ("1",)),))
    start(2, **MINE)
    rows = start().rows
    wanted = [
        (name, run) for run in (0, 1) for name in ("g2_2_30", "mine") for _ in range(3)
    ]
    assert [(row["data"], row["run"]) for row in rows] == wanted
    some = start(only=(("epsilon", ("0.1",)),)).rows
    assert [row["epsilon"] for row in some] == [0.1] * 4


@pytest.fixture
def processes(toy, done):
    """Return a function that lists the processes of the tasks measured so far."""
    source = toy.read_text().replace('f"{task}\\n"', 'f"{os.getpid()} {task}\\n"')
    toy.write_text("import os\n" + source)
    return lambda: [int(line.split()[0]) for line in done()]


@pytest.mark.claim("benchmarks", "plots-adds-figures-alone")
@pytest.mark.thorough
def test_each_task_may_have_a_process_for_itself(processes, start, suite):
    options, chosen = (
        {**MINE, "only": (("epsilon", ("0.1",)),)},
        replace(suite, plots={}),
    )
    for jobs in (1, 2):
        before = len(processes())
        assert (
            start(3, replace(chosen, fresh=True), jobs, f"{jobs}", **options).n_done
            == 3
        )
        assert len({*processes()[before:]} - {os.getpid()}) == 3


@pytest.mark.claim("benchmarks", "jobs-processes-work-at")
@pytest.mark.thorough
def test_a_suite_that_measures_time_runs_alone(processes, start, suite, monkeypatch):
    monkeypatch.setattr(runner, "available_cores", lambda: 2)
    start(jobs=None)
    assert os.getpid() not in processes()
    start(chosen=replace(suite, plots={}, alone=True), jobs=None, output="alone")
    assert processes()[6:] == 6 * [os.getpid()]


@pytest.mark.default_cases("False")
@pytest.mark.parametrize("fresh", [False, True])
def test_a_process_that_is_killed_ends_the_command(start, bare, toy, fresh):
    end = f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    toy.write_text(
        "import os\n" + toy.read_text().replace('raise ValueError("no luck")', end)
    )
    toy.with_name("broken").touch()
    with pytest.raises(RunError, match=r"process.* ended by itself"):
        start(chosen=replace(bare, fresh=fresh), jobs=2)


def test_threads_that_a_task_left_behind_do_not_hold_up_the_command(
    start, bare, toy, tmp_path
):
    """As that of a server in Flower's simulation, where the clients could not be started."""
    left = "import threading, time\nTHREAD = threading.Thread(target=lambda: (time.sleep(20), "
    left += f"Path({str(tmp_path / 'outlived')!r}).touch()))\n"
    source = toy.read_text().replace("\n\n@dataclasses", f"\n\n{left}@dataclasses", 1)
    toy.write_text(
        source.replace("    log = Path", "    THREAD.start()\n    log = Path")
    )
    chosen = {**MINE, "only": (("method", ("none",)),)}
    assert start(chosen=replace(bare, fresh=True), **chosen).n_done == 1
    assert not (tmp_path / "outlived").exists()


# --------------------------------------------------------------------------- commands


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quick", "a suite as a Python file NAME.py that defines SUITE"),
        ("none.py", "a suite as a Python file NAME.py that defines SUITE"),
        ("two.parts.py", "a suite as a Python file NAME.py that defines SUITE"),
        ("json.py", "a name that no other module has. Got 'json'"),
        ("without_a_suite.py", "to define SUITE"),
    ],
)
def test_what_is_no_suite(tmp_path, monkeypatch, name, words):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / name
    if name != "none.py":
        path.write_text("SUITE = 1")
    with pytest.raises(ConfigurationError, match=words):
        load_suite(path)
    sys.modules.pop("without_a_suite", None)


@pytest.fixture
def typed(suite, tmp_path, monkeypatch):
    """Return a function that runs the suite as its script does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["toy_suite.py"])
    return lambda *arguments: script.main(suite, [*map(str, arguments)])


def test_options_choose_runs(typed, tmp_path, done, capsys):
    typed("--jobs", 1, "--runs", 3, "--data", "mine", "--methods", "none")
    assert "| mine | none | 1.333 ± 2.5 (3) |" in capsys.readouterr().out
    assert (tmp_path / "build" / "toy" / "runs.csv").exists()
    assert len(done()) == 3


def test_errors_are_one_sentence(typed):
    for arguments, words in (
        (("--methods", "other"), "Expected method among"),
        (("--data", "s3"), "Expected a data set: one of s1, "),
        (("--jobs", 0), "Expected jobs >= 1. Got 0 instead"),
    ):
        with pytest.raises(SystemExit) as ended:
            typed(*arguments)
        assert ended.value.code.startswith(f"Error: {words}")
        assert "\n" not in ended.value.code


def test_a_script_has_an_option_for_each_column(typed, tmp_path, capsys):
    typed("--epsilons", 7, "--data", "mine", "--runs", 1, "--jobs", 1)
    assert "| mine | noise |" in capsys.readouterr().out
    rows = (tmp_path / "build" / "toy" / "runs.csv").read_text()
    assert "mine,noise,7.0,0,7.33" in rows


@pytest.mark.thorough
def test_a_script_runs_in_two_processes(toy, tmp_path, done):
    """Also where it has functions that are wrapped, which can be found by name only."""
    source = toy.read_text().replace("1.0 / 3", "third()")
    third = (
        "import functools\n\n\n@functools.lru_cache\ndef third():\n    return 1.0 / 3\n"
    )
    main = 'if __name__ == "__main__":\n    from bench import script\n\n'
    toy.write_text(f"{third}{source}{main}    script.main(SUITE)\n")
    command = [sys.executable, str(toy), "--data", "mine", "--runs", "2", "--jobs", "2"]
    # A suite beside the package `bench` is found without these.
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "benchmarks")))}
    options = {"cwd": tmp_path, "env": os.environ | paths, "capture_output": True}
    subprocess.run(command, check=True, timeout=600, **options)
    assert len(done()) == 6


def test_options_are_the_plurals_of_columns(suite):
    @dataclass(frozen=True)
    class Several:
        strategy: str
        settings: str
        method: str

    made = replace(suite, task=Several, measures={"loss": float})
    given = ["--strategies", "a", "b", "--settings", "c", "--methods", "d"]
    options = script.options_of(made, script.parser_of(made).parse_args(given))
    assert dict(options.only) == {
        "strategy": ("a", "b"),
        "settings": ("c",),
        "method": ("d",),
    }


@pytest.mark.claim("benchmarks", "meta-json-each-command")
def test_commands_are_shown_as_they_are_typed_without_folders_of_a_machine(tmp_path):
    sets = f"{tmp_path / 'sets' / 'own.npz'}:3"
    command = [
        str(tmp_path / "loss.py"),
        "--data",
        "a b",
        sets,
        f"--output={tmp_path / 'out'}",
    ]
    shown = runner._command_of([*command, "--data-dir", "../sets"])
    assert shown == "python loss.py --data 'a b' own.npz:3 --output=out --data-dir sets"
    assert runner._command_of(["benchmarks/loss.py"]) == "python benchmarks/loss.py"
