"""A benchmark from a command: its files, and how they were made, its errors."""

import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flower_kmeans.bench import quick, runner, script
from flower_kmeans.bench.harness import Options
from flower_kmeans.bench.runner import BUILT_IN, execute, load_suite
from flower_kmeans.cli.app import app
from flower_kmeans.errors import ConfigurationError, DataError, RunError
from flower_kmeans.version import __version__

ONCE = Options(1)
COMMAND = ["/usr/bin/flower-kmeans", "bench", "--suite", "a b.py"]


@pytest.fixture
def start(suite, tmp_path):
    """Return a function that runs the suite and returns what it printed."""

    def execute_it(chosen=suite, options=ONCE, **arguments):
        text = io.StringIO()
        console = Console(file=text, width=200)
        execute(
            chosen,
            options,
            tmp_path / "out",
            arguments=COMMAND,
            jobs=1,
            console=console,
            **arguments,
        )
        return text.getvalue()

    return execute_it


@pytest.fixture
def bare(suite):
    """Return the suite without its plots, which take the longest."""
    return replace(suite, plots={})


def test_a_run_leaves_rows_tables_plots_and_how_they_were_made(start, tmp_path):
    printed = start()
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
    start(options=Options(2))
    start(options=Options(2))  # nothing is left
    assert len(done()) == 12
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert [command["rows"] for command in meta["commands"]] == [6, 6, 0]
    assert (tmp_path / "out" / "tables.md").read_text().count(": 6 runs; ") == 2


def test_tables_name_the_commit_of_a_command(start, bare, tmp_path, monkeypatch):
    for number, found in enumerate(("0123456789" * 4 + "+", "ab" * 20, None)):
        monkeypatch.setattr(runner, "_commit", lambda found=found: found)
        start(bare, Options(number + 1))
    text = (tmp_path / "out" / "tables.md").read_text()
    assert ", commit 0123456789+`\n" in text
    assert ", commit ababababab`\n" in text
    assert text.count(", commit ") == 2


def test_a_command_that_is_stopped_leaves_its_rows_and_how_they_were_made(start, suite, tmp_path):
    def measure(task, options):
        if task.data == "mine":
            raise KeyboardInterrupt
        return suite.measure(task, options)

    with pytest.raises(KeyboardInterrupt):
        start(replace(suite, measure=measure))
    assert not (tmp_path / "out" / "tables.md").exists()
    start()
    commands = json.loads((tmp_path / "out" / "meta.json").read_text())["commands"]
    assert [command["rows"] for command in commands] == [3, 3]
    assert (tmp_path / "out" / "tables.md").read_text().count(": 3 runs; ") == 2


def test_a_command_that_is_killed_is_shown(start, suite, tmp_path, monkeypatch):
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
            start(bare)
        with pytest.raises(ConfigurationError, match="choose another --output"):
            start(bare, redraw=True)
        return bare.measure(task, options)

    one = Options(1, data=("mine",), only=(("method", ("none",)),))
    start(replace(bare, measure=measure), one)
    start(bare, one)  # the lock is free, also where its file is left


def test_redrawing_runs_nothing(start, tmp_path, done):
    start()
    (tmp_path / "out" / "tables.md").unlink()
    before = (tmp_path / "out" / "meta.json").read_bytes()
    assert "| mine | noise | 0.433 (1) |" in start(options=Options(9), redraw=True)
    assert (tmp_path / "out" / "tables.md").exists()
    assert (tmp_path / "out" / "meta.json").read_bytes() == before
    assert len(done()) == 6


def test_a_finished_file_is_shown_without_its_data(start, tmp_path, suite):
    own = tmp_path / "own.npz"
    np.savez(own, X=np.zeros((3, 1)))
    start(options=Options(1, data=("mine", f"{own}:2")))
    own.unlink()
    printed = start(options=Options(1, data=(f"{own}:2",)), redraw=True)
    assert "| own | noise |" in printed
    assert "| mine | noise |" not in printed


def test_rows_of_another_file_of_that_name_are_refused(start, bare, tmp_path, done):
    own = tmp_path / "own.npz"
    np.savez(own, X=np.zeros((3, 1)))
    start(bare, Options(1, data=(f"{own}:2",)))
    start(bare, Options(2, data=(f"{own}:2",)))
    before = len(done())
    for redraw in (False, True):
        with pytest.raises(
            ConfigurationError,
            match=r"own to be what .* by that name. Got clusters 3, not 2: ",
        ):
            start(bare, Options(1, data=(f"{own}:3",)), redraw=redraw)
    np.savez(own, X=np.ones((3, 1)))
    with pytest.raises(ConfigurationError, match="Got other contents: choose another --output"):
        start(bare, Options(3, data=(f"{own}:2",)))
    assert len(done()) == before == 6


def test_rows_of_another_directory_of_data_are_refused(start, bare, tmp_path, done):
    first, second = tmp_path / "first", tmp_path / "second"
    for number, folder in enumerate((first, second)):
        folder.mkdir()
        np.savez(folder / "iris.npz", X=np.full((3, 1), number))
    start(bare, Options(1, data_dir=first))
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["files"].keys() == {"iris", "g2_2_30"}
    for options in (Options(2, data_dir=second), Options(2, data=(f"{second / 'iris.npz'}:3",))):
        with pytest.raises(ConfigurationError, match=r"Expected iris to be .* Got other contents"):
            start(bare, options)
    start(bare, Options(1, data=("mine",), data_dir=second))  # without that data set
    start(bare, Options(1, data=(f"{first / 'iris.npz'}:3",)))  # the very same
    assert len(done()) == 9
    here = replace(bare, sources={"mine": {"bounds": "0 1"}})
    start(here)
    with pytest.raises(ConfigurationError, match=r"mine to be .* Got bounds 0 2, not 0 1: choose"):
        start(replace(bare, sources={"mine": {"bounds": "0 2"}}), Options(2))


def test_rows_of_other_settings_are_refused(start, suite, tmp_path, done):
    start()
    before = (tmp_path / "out" / "runs.csv").read_bytes()
    other = replace(suite, settings={"trust": "plain"})
    with pytest.raises(
        ConfigurationError, match=r"suite toy with trust=plain. Got .* suite toy ins"
    ):
        start(other)
    with pytest.raises(ConfigurationError, match=r"runs of suite other. Got those of suite toy"):
        start(replace(suite, name="other"))
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


def test_plots_need_matplotlib_and_nothing_else_does(start, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "A plot needs the package matplotlib" in start()
    assert (tmp_path / "out" / "tables.md").exists()


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
