"""A suite that takes no time, as a file that any process can load."""

import io
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from bench.harness import Options
from bench.runner import execute, load_suite

TOY = """
import dataclasses
from pathlib import Path

from bench import tables
from bench.harness import Suite

from flower_kmeans.report.curves import draw_lines, points_of


@dataclasses.dataclass(frozen=True)
class Task:
    data: str
    method: str
    epsilon: float | None
    run: int


def tasks_of(options):
    for run in range(options.runs):
        for name in options.data:
            yield Task(name, "none", None, run)
            for epsilon in options.chosen("epsilon", (0.1, 1.0), float):
                yield Task(name, "noise", epsilon, run)


def measure(task, options):
    log = Path(__file__).with_name("log.txt")
    with log.open("a") as file:
        file.write(f"{task}\\n")
    if task.method == "noise" and Path(__file__).with_name("broken").exists():
        raise ValueError("no luck")
    return {"loss": 1.0 / 3 + task.run + (task.epsilon or 0), "capped": task.run == 1}


def table(rows, options):
    curves = tables.curves_of(rows, "loss")
    lines = [[*key, tables.cell(points_of(each, [0.1])[0])] for key, each in curves.items()]
    return tables.markdown(["data", "method", "loss"], lines, 2)


def plot(rows, options):
    curves = {" ".join(key): curve for key, curve in tables.curves_of(rows, "loss").items()}
    return draw_lines({"all": curves}, [0.1, 1.0])


SUITE = Suite(
    "toy", "What is measured.", Task, {"loss": float, "capped": bool}, tasks_of, measure, table,
    {"toy": plot}, ("g2_2_30", "iris", "mine"), runs=2, sources={"mine": {}},
)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Return the path of the toy suite; its folder and module are forgotten after the test."""
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "toy_suite.py").write_text(TOY)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder / "toy_suite.py"
    sys.modules.pop("toy_suite", None)


@pytest.fixture
def suite(toy):
    return load_suite(str(toy))


@pytest.fixture
def bare(suite):
    """Return the suite without its plots, which take the longest."""
    return replace(suite, plots={})


@pytest.fixture
def start(bare, tmp_path):
    """Return a function that runs a suite; its attribute is what the last run printed."""

    def execute_it(runs=1, chosen=bare, jobs=1, output="out", **given):
        text = io.StringIO()
        own = {
            name: given.pop(name)
            for name in ("data", "data_dir", "only")
            if name in given
        }
        outcome = execute(
            chosen,
            Options(runs, **own),
            tmp_path / output,
            arguments=["/usr/suites/a b.py", "--runs", str(runs)],
            jobs=jobs,
            console=Console(file=text, width=200),
            **given,
        )
        execute_it.printed = text.getvalue()
        return outcome

    return execute_it


@pytest.fixture
def done(toy):
    """Return a function that lists the tasks measured so far."""
    log = toy.with_name("log.txt")
    return lambda: log.read_text().splitlines() if log.exists() else []
