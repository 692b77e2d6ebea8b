"""The script that makes the tables of losses: its protocol, figures, and its files."""

import math
import sys

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans import strategies
from flower_kmeans.bench import tables
from flower_kmeans.bench.harness import Options, plan_of


@pytest.fixture
def loss(monkeypatch):
    return load_script(monkeypatch, "loss")


def records():
    rng = np.random.default_rng(0)
    return np.repeat([[4.0, 1.0], [-5.0, 9.0]], 60, axis=0) + rng.normal(size=(120, 2))


def options_of(tmp_path, data=("iris",), runs=1):
    np.savez(tmp_path / "iris.npz", X=records() * 7 + 3)
    return Options(runs, data=data, data_dir=tmp_path)


def test_blobs_are_those_of_the_paper(loss):
    task = loss.Task("blobs_4_4", "KMeans", None, 0)
    found = loss.measure(task, Options(1))
    printed = loss.PRINTED["blobs_4_4"].non_private_loss
    assert found["loss"] == pytest.approx(printed, abs=5e-5)


def test_tasks_are_those_that_apply(loss, tmp_path, monkeypatch):
    monkeypatch.setattr(loss, "find_spec", lambda name: None)
    plan = plan_of(loss.SUITE, options_of(tmp_path, ("iris", "blobs_4_64"), runs=2))
    assert [task.run for task in plan.tasks] == sorted(task.run for task in plan.tasks)
    methods = {
        name: {task.method for task in plan.tasks if task.data == name}
        for name in plan.options.data
    }
    usual = {"KMeans", "SynopsisKMeans", "SynopsisKMeans:oblivious"}
    usual |= {"FastLloyd", "FastLloyd:paper", "SuLloyd"}
    assert methods == {"iris": usual | {"PEMeans"}, "blobs_4_64": usual | {"HDPEMeans"}}
    assert len(plan.tasks) == 2 * 2 * (1 + 5 * 6)
    every = set(loss.tasks_of(plan.options, every=True))
    more = every - set(plan.tasks)
    assert {(task.data, task.method) for task in more} == {("blobs_4_64", "PEMeans")}
    monkeypatch.undo()
    monkeypatch.setattr(loss, "find_spec", lambda name: name == "diffprivlib")
    assert "diffprivlib" in {task.method for task in loss.tasks_of(plan.options)}


def test_what_a_finished_file_holds_is_shown(loss, tmp_path, monkeypatch, capsys):
    """A file of before: its columns, and numbers as they were written."""
    head = "data,method,epsilon,run,loss,seconds,capped\n"
    lines = [f"iris,PEMeans,{e},{run},{0.1 + run},0.13,1" for run in (0, 1) for e in loss.EPSILONS]
    (tmp_path / "runs.csv").write_text(head + "\n".join([*lines, "iris,KMeans,,0,0.05,0.20,0\n"]))
    command = ["loss.py", "--redraw", "--output", str(tmp_path), "--data", "iris"]
    monkeypatch.setattr(sys, "argv", command)
    loss.main()
    printed = capsys.readouterr().out
    assert "| iris | 0.1875 (1) | 2.2500 ± 24 (2) | 0.2894 |" in printed
    assert "The population was capped on: iris" in printed
    assert "| iris | PEMeans | 0.6 ± 6.4 | " in printed
    assert "| iris | PEMeans | 12.000 ± 1.3e+02 | " in printed  # over the loss of KMeans
    assert (tmp_path / "tables.md").exists()
    assert (tmp_path / "loss.png").stat().st_size > 1000


def curves(loss):
    """Two runs of PE-means on iris, of which the second lacks an epsilon, and one of k-means."""
    rows = [
        {"data": "iris", "method": "PEMeans", "epsilon": epsilon, "run": run, "loss": 1.0 + run}
        for run in range(3)
        for epsilon in loss.EPSILONS
        if (run, epsilon) != (2, 4.0)
    ]
    rows.append({"data": "iris", "method": "KMeans", "epsilon": None, "run": 0, "loss": 0.5})
    return tables.curves_of(rows, "loss")


def test_tables_hold_whole_runs_beside_the_printed_figures(loss):
    found = curves(loss)
    assert loss.areas_of(found["iris", "PEMeans"], loss.EPSILONS) == pytest.approx([3.75, 7.5])
    table = loss.auc_table(found, ["iris"])
    cells = [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
    assert cells[0] == "iris"
    assert cells[1] == "1.8750 (1)"
    assert cells[2].startswith("5.6250 ± ")
    assert cells[2].endswith(" (2)")
    assert cells[3:] == ["0.2894", "", "0.3979", "1.3048", "0.1361"]
    assert "| PEMeans 5.6250 | 0.2894 | 19.44 |" in loss.comparison(found, ["iris"])


@pytest.mark.parametrize("method", ["PEMeans", "FastLloyd", "FastLloyd:paper"])
def test_methods_run_under_the_protocol(loss, method, monkeypatch, tmp_path):
    made = []

    def make(*arguments, **options):
        made.append(cls(*arguments, **{**options, "n_rounds": 2}))
        return made[-1]

    name, _, paper = method.partition(":")
    cls = getattr(strategies, name)
    monkeypatch.setattr(strategies, name, make)
    found = loss.measure(loss.Task("iris", method, 4.0, 7), options_of(tmp_path))
    (strategy,) = made
    assert getattr(strategy.algorithm, "relocation", not paper) == (not paper)
    assert strategy.plan.budget.delta == pytest.approx(120**-1.1)
    assert (strategy.trust, strategy.seed, strategy.n_records) == ("trusted-server", 7, 120)
    assert found.keys() == loss.SUITE.measures.keys()
    assert 0 < found["loss"] < 1
    assert strategy.domain.l2_bound(16) <= 2**16 * math.sqrt(2)


def test_the_noise_of_the_lift_is_that_of_sums_over_the_records_of_a_cluster(loss):
    """Summed noise of one multiplier in d columns, over N / k records each."""
    n, k, d = 20_000, 64, 64
    strategy = strategies.HDPEMeans(
        k, loss.Ball(1.0, np.zeros(d)), loss.PrivacyBudget(1.0, n**-1.1), n, n_clients=2
    )
    sigma = math.sqrt(len(strategy.plan.releases)) / strategy.plan.mu
    assert loss.lift_noise("blobs_64_64", 1.0) == pytest.approx(d * (sigma * k / n) ** 2)
    rows = [line.split("|") for line in loss.lift_table().splitlines()[2:]]
    assert [row[1].strip() for row in rows] == [
        name for name, row in loss.PRINTED.items() if row.hdpe is not None
    ]
    # From epsilon 0.5 on alone: more than the figure from 0.25 on.
    assert float(rows[-1][2]) > float(rows[-1][3]) == 0.719
