"""The scripts that measure losses: their tasks, their protocols, and what they show."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scripts import load_script

from bench.harness import Options, plan_of
from flower_kmeans import strategies

pytestmark = pytest.mark.claim("benchmarks", "area-under-loss-mean")


@pytest.fixture
def script(monkeypatch):
    return lambda name: load_script(monkeypatch, name)


@pytest.fixture
def options(tmp_path):
    """Options of a set of two clusters far from each other, under the name of iris."""
    rng = np.random.default_rng(0)
    records = np.repeat([[4.0, 1.0], [-5.0, 9.0]], 60, axis=0) + rng.normal(
        size=(120, 2)
    )
    np.savez(tmp_path / "iris.npz", X=records * 7 + 3)
    return Options(1, data=("iris",), data_dir=tmp_path)


OBLIVIOUS, TRUSTED = "oblivious-server", "trusted-server"
PROTOCOLS = [
    ("loss", "SynopsisKMeans", TRUSTED),
    pytest.param(
        "loss", "SynopsisKMeans:oblivious", OBLIVIOUS, marks=pytest.mark.thorough
    ),
    ("loss", "FastLloyd", TRUSTED),
    ("loss", "FastLloyd:paper", TRUSTED),
    ("utility", "SynopsisKMeans", TRUSTED),
    ("utility", "FastLloyd", OBLIVIOUS),
    pytest.param("utility", "FastLloyd:paper", OBLIVIOUS, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("name", "method", "trust"), PROTOCOLS)
def test_methods_run_under_the_protocol(
    script, name, method, trust, options, monkeypatch
):
    module, seen = script(name), []
    shared = module.best_of_ten.__globals__
    real = shared["simulate"]
    monkeypatch.setitem(
        shared, "simulate", lambda *given: seen.append(given) or real(*given)
    )
    found = module.measure(module.Task("iris", method, 4.0, 7), options)
    ((strategy, halves),) = seen
    assert [len(half) for half in halves] == [60, 60]
    assert (strategy.trust, strategy.seed, strategy.n_records) == (trust, 7, 120)
    if method.startswith("FastLloyd"):
        assert strategy.algorithm.relocation == (method == "FastLloyd")
    delta = 120**-1.1 if name == "loss" else 1 / (120 * math.log(120))
    assert strategy.plan.budget.delta == pytest.approx(delta)
    assert strategy.domain.l2_bound(16) <= 2**16 * math.sqrt(2)
    assert found.keys() == module.SUITE.measures.keys()
    assert 0 < found["loss" if name == "loss" else "nicv"] < 1
    if name == "utility":
        assert (found["n_rounds"], found["noise_factor"]) == (strategy.n_rounds, 1.0)


USUAL = {"KMeans", "SynopsisKMeans", "FastLloyd", "FastLloyd:paper", "SuLloyd"}
LOSS = USUAL | {"SynopsisKMeans:oblivious"}
UTILITY = USUAL | {"Lloyd", "GLloyd", "PEMeans"}


@pytest.mark.parametrize(
    ("name", "narrow", "wide", "n_tasks"),
    [
        ("loss", LOSS | {"PEMeans"}, LOSS | {"HDPEMeans"}, 2 * (1 + 5 * 6)),
        ("utility", UTILITY, UTILITY | {"HDPEMeans"}, 2 * (2 + 5 * 6) + 5),
    ],
)
def test_tasks_are_those_that_apply(script, monkeypatch, name, narrow, wide, n_tasks):
    module = script(name)
    monkeypatch.setattr(module, "find_spec", lambda name: None, raising=False)
    plan = plan_of(module.SUITE, Options(2, data=("sklearn-iris", "sklearn-breast")))
    assert [task.run for task in plan.tasks] == sorted(task.run for task in plan.tasks)
    assert len(plan.tasks) == 2 * n_tasks
    for data, methods in zip(plan.options.data, (narrow, wide), strict=True):
        assert {task.method for task in plan.tasks if task.data == data} == methods
    assert {t.epsilon for t in plan.tasks if t.method in ("KMeans", "Lloyd")} == {None}
    if name == "loss":
        more = set(module.tasks_of(plan.options, every=True)) - set(plan.tasks)
        assert {(task.data, task.method) for task in more} == {
            ("sklearn-breast", "PEMeans")
        }
        monkeypatch.setattr(module, "find_spec", lambda name: name == "diffprivlib")
        assert "diffprivlib" in {task.method for task in module.tasks_of(plan.options)}


@pytest.mark.thorough
def test_the_command_has_the_tasks_of_every(script, tmp_path):
    """Run as a script: nothing is measured in no time, and the tasks that are left are counted."""
    command = [
        sys.executable,
        script("loss").__file__,
        "--data",
        "sklearn-breast",
        "--runs",
        "1",
    ]
    command += [
        "--methods",
        "PEMeans",
        "--every",
        "--minutes",
        "0",
        "--output",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "5 runs are left" in done.stdout + done.stderr


def test_blobs_are_those_of_the_paper(script):
    loss = script("loss")
    found = loss.measure(loss.Task("blobs_4_4", "KMeans", None, 0), Options(1))
    assert found["loss"] == pytest.approx(
        loss.PRINTED["blobs_4_4"].non_private_loss, abs=5e-5
    )


def test_losses_of_a_finished_file_stand_beside_the_printed_ones(
    script, tmp_path, monkeypatch, capsys
):
    """A file of before: its columns, and numbers as they were written. One run is not whole."""
    loss = script("loss")
    lines = ["data,method,epsilon,run,loss,seconds,capped", "iris,KMeans,,0,0.5,0.20,0"]
    points = [
        (run, e) for run in range(3) for e in loss.EPSILONS if (run, e) != (2, 4.0)
    ]
    lines += [
        f"iris,PEMeans,{epsilon},{run},{1.0 + run},0.13,1" for run, epsilon in points
    ]
    (tmp_path / "runs.csv").write_text("\n".join([*lines, ""]))
    command = ["loss.py", "--redraw", "--output", str(tmp_path), "--data", "iris"]
    monkeypatch.setattr(sys, "argv", command)
    loss.main()
    printed = capsys.readouterr().out
    assert (
        "| iris | 1.8750 (1) | 5.6250 ± 24 (2) | 0.2894 |  | 0.3979 | 1.3048 | 0.1361 |"
        in printed
    )
    assert "| PEMeans 5.6250 | 0.2894 | 19.44 |" in printed
    assert "The population was capped on: iris" in printed
    assert "| iris | PEMeans | 2 ± 2.5 | " in printed
    assert "| iris | PEMeans | 4.000 ± 5 | " in printed  # over the loss of KMeans
    assert "Yardsticks" not in printed  # the records are not there
    assert {"tables.md", "loss.png"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(("name", "cost"), [("loss", "loss"), ("utility", "nicv")])
def test_costs_stand_beside_their_yardsticks(script, options, name, cost):
    """A method without privacy, and one whose centroids are one cluster's."""
    suite = script(name)
    fixed = {"n_rounds": 7, "noise_factor": 1.0, "seconds": 0.1, "capped": False}
    scale = suite.scale_of("iris", options)
    costs = {
        "KMeans": scale.yardsticks.kmeans,
        "FastLloyd": scale.yardsticks.one_cluster,
    }
    rows = [
        {"data": "iris", "method": method, "epsilon": epsilon, "run": 0, cost: found}
        | fixed
        for method, found in costs.items()
        for epsilon in ((None,) if method == "KMeans" else suite.EPSILONS)
    ]
    ratio = scale.yardsticks.ratio(scale.yardsticks.one_cluster)
    shown = f"{ratio:.3f}" if ratio < 9.995 else f"{ratio:.1f}"
    text = suite.tables_of(rows, options)
    assert f"| iris | 1.000; 0.000 | {shown}; 1.000 |" in text
    assert f"| iris | FastLloyd | {shown}; 1.000 | {shown}; 1.000 |" in text


def test_the_noise_of_the_lift_is_that_of_sums_over_the_records_of_a_cluster(script):
    """Summed noise of one multiplier in d columns, over N / k records each."""
    loss, n, k, d = script("loss"), 20_000, 64, 64
    budget = loss.PrivacyBudget(1.0, n**-1.1)
    plan = strategies.HDPEMeans(
        k, loss.Ball(1.0, np.zeros(d)), budget, n, n_clients=2
    ).plan
    sigma = math.sqrt(len(plan.releases)) / plan.mu
    assert loss.lift_noise("blobs_64_64", 1.0) == pytest.approx(
        d * (sigma * k / n) ** 2
    )
    rows = [line.split("|") for line in loss.lift_table().splitlines()[2:]]
    wanted = [name for name, row in loss.PRINTED.items() if row.hdpe is not None]
    assert [row[1].strip() for row in rows] == wanted
    # From epsilon 0.5 on alone: more than the figure from 0.25 on.
    assert float(rows[-1][2]) > float(rows[-1][3]) == 0.719


def test_utilities_stand_beside_the_reference(script):
    utility, method, fixed = script("utility"), "FastLloyd:paper", {"n_rounds": 7}
    fixed["noise_factor"] = 1.0
    rows = [
        {
            "data": "iris",
            "method": method,
            "epsilon": e,
            "run": run,
            "nicv": 0.4 + run,
            **fixed,
        }
        for run in (0, 1)
        for e in utility.EPSILONS
    ]
    flat = {
        "data": "s1",
        "method": "KMeans",
        "epsilon": None,
        "run": 0,
        "nicv": 0.00823,
    }
    rows.append({**flat, **fixed})
    table = utility.tables_of(rows, Options(2, data=("sklearn-iris",)))
    for line in (
        "1 to 2 runs per point; noise over the planned noise: 1",
        "| s1 | KMeans | 0.00741 |  | 0.0074 | 1.00 |",
        f"| iris | {method} | 0.81 | ± 5.7 | 0.419 | 1.93 | equal within the interval |",
        f"| data | KMeans | {method} |",
        "| s1 | 0.00741 (1) |  |",
        "| iris |  | 0.81 ± 5.7 (2) |",
    ):
        assert line in table
    assert table.index("| s1 | KMeans") < table.index(f"| iris | {method}")
    labels = [
        text.get_text()
        for text in utility.plot(rows, Options(1)).legends[0].get_texts()
    ]
    assert labels == ["KMeans (not private)", method]


@pytest.mark.parametrize(
    ("mean", "half", "words"),
    [
        (0.42, 0.01, "equal within the interval"),
        (0.4194, 0.0, "equal within the interval"),
        (0.40, 0.01, "better"),
        (0.44, 0.01, "WORSE"),
    ],
)
def test_verdicts_take_figures_as_good_as_their_last_digit(script, mean, half, words):
    assert script("utility").verdict(mean, half, "0.419") == words


# ------------------------------------------------------------------ clients that differ

CLIENTS = dict.fromkeys(("even", "drops", "shares"), 20) | dict.fromkeys(
    ("clusters", "both"), 3
)
CLIENTS |= dict.fromkeys(("clients", "one-each"), 1000)


def clusters_of(skew):
    """Clusters far from each other, which differ in their first column."""
    labels = np.repeat(np.arange(3), (900, 450, 150))
    records = np.column_stack([labels / 3, np.arange(len(labels)) / 1e6])
    return skew.Data("given", records, 3), labels


@pytest.mark.parametrize("setting", CLIENTS)
def test_every_record_is_one_clients(script, setting):
    skew = script("skew")
    data, labels = clusters_of(skew)
    parts = skew.parts_of(data, labels, setting, np.random.default_rng(0))
    assert len(parts) == CLIENTS[setting]
    together = np.concatenate(parts)
    np.testing.assert_array_equal(np.sort(together[:, 1]), data.records[:, 1])
    held = {len(np.unique(part[:, 0])) for part in parts if len(part)}
    if setting != "clients":  # of 75 random records each, or one cluster
        assert held == ({1} if setting in skew.BY_CLUSTER else {3})


def test_a_fifth_drops_in_every_round(script):
    faults = script("skew").drops(20, 5, np.random.default_rng(0))
    by_round = [
        [fault.client for fault in faults if fault.round == t] for t in range(7)
    ]
    assert [len(set(clients)) for clients in by_round] == [0, 4, 4, 4, 4, 4, 0]
    assert len({tuple(sorted(clients)) for clients in by_round[1:6]}) > 1
    assert {(fault.kind, fault.trip) for fault in faults} == {("drop", "ask")}


def test_settings_are_what_they_say(script):
    skew = script("skew")
    data, _ = clusters_of(skew)
    for setting in skew.SETTINGS:
        strategy = skew.strategy_of(
            data, skew.Task("given", setting, "FastLloyd", 1.0, 3), 20
        )
        unit = "client" if setting in ("clients", "one-each") else "record"
        trust = "distributed-noise" if setting == "shares" else TRUSTED
        assert (strategy.privacy.unit, strategy.trust) == (unit, trust)


def test_losses_of_clients_that_drop_out_are_measured_and_shown(script, options):
    skew = script("skew")
    tasks = [
        skew.Task("iris", setting, "FastLloyd", 4.0, 0) for setting in ("even", "drops")
    ]
    assert {*tasks} < {*plan_of(skew.SUITE, options).tasks}
    rows = [{**vars(task), **skew.measure(task, options)} for task in tasks]
    assert all(0.9 < row["ratio"] < 40 for row in rows)
    table = skew.tables_of(rows, options)
    assert "| iris | even | FastLloyd |" in table
    assert "| iris | drops | FastLloyd |" in table
    for row in rows:
        optimum, one = skew.known("iris", options)
        assert row["lost"] == pytest.approx(
            (row["ratio"] - 1) / (one / optimum - 1), rel=1e-9
        )
        assert row["floor"] == pytest.approx(1)
