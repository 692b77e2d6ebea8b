"""The script that makes the tables of utility: its protocol, its tables, and what it refuses."""

import math

import pytest
from scripts import load_script

from flower_kmeans.bench.harness import Options, plan_of


@pytest.fixture
def utility(monkeypatch):
    return load_script(monkeypatch, "utility")


def test_tasks_are_the_methods_that_apply(utility):
    data = ("sklearn-iris", "sklearn-breast")
    plan = plan_of(utility.SUITE, Options(2, data=data))
    methods = {name: {t.method for t in plan.tasks if t.data == name} for name in data}
    assert methods["sklearn-breast"] == set(utility.METHODS)
    assert methods["sklearn-iris"] == set(utility.METHODS) - {"HDPEMeans"}
    assert {t.epsilon for t in plan.tasks if t.method in ("KMeans", "Lloyd")} == {None}


@pytest.mark.parametrize("method", ["FastLloyd", "FastLloyd:paper", "SynopsisKMeans"])
def test_methods_run_under_the_protocol(utility, method, monkeypatch):
    seen, shared = [], utility.as_fastlloyd.__globals__
    real = shared["simulate"]

    def record(strategy, halves):
        seen.append((strategy, halves))
        return real(strategy, halves)

    monkeypatch.setitem(shared, "simulate", record)
    task = utility.Task("sklearn-iris", method, 1.0, 3)
    found = utility.measure(task, Options(1, data=("sklearn-iris",)))
    ((strategy, halves),) = seen
    assert [len(half) for half in halves] == [75, 75]
    assert getattr(strategy.algorithm, "relocation", None) == {
        "FastLloyd": True,
        "FastLloyd:paper": False,
    }.get(method)
    assert strategy.plan.budget.delta == pytest.approx(1 / (150 * math.log(150)))
    of_the_server = method == "SynopsisKMeans"
    assert strategy.trust == ("trusted-server" if of_the_server else "oblivious-server")
    assert (strategy.seed, found["noise_factor"]) == (3, 1.0)
    assert found["n_rounds"] == strategy.n_rounds
    assert 0.18 < found["nicv"] < 4


METHOD = "FastLloyd:paper"


def rows_of(utility, value):
    rows = [
        {"data": "iris", "method": METHOD, "epsilon": epsilon, "run": run, "nicv": value + run}
        for run in (0, 1)
        for epsilon in utility.EPSILONS
    ]
    rows.append({"data": "s1", "method": "KMeans", "epsilon": None, "run": 0, "nicv": 0.00823})
    return [{**row, "n_rounds": 7, "noise_factor": 1.0} for row in rows]


def test_tables_stand_beside_the_reference(utility):
    rows = rows_of(utility, 0.4)
    table = utility.tables_of(rows, Options(2, data=("sklearn-iris",)))
    assert "runs per point; noise over the planned noise: 1" in table
    assert "1 to 2 runs per point;" in table
    assert "| s1 | KMeans | 0.00741 |  | 0.0074 | 1.00 |" in table
    assert (
        "| iris | FastLloyd:paper | 0.81 | ± 5.7 | 0.419 | 1.93 | equal within the interval |"
        in table
    )
    assert "| data | KMeans | FastLloyd:paper |" in table
    assert "| s1 | 0.00741 (1) |  |" in table
    assert "| iris |  | 0.81 ± 5.7 (2) |" in table
    assert table.index("| s1 | KMeans") < table.index("| iris | FastLloyd:paper")
    labels = [text.get_text() for text in utility.plot(rows, Options(1)).legends[0].get_texts()]
    assert labels == ["KMeans (not private)", METHOD]


@pytest.mark.parametrize(
    ("mean", "half", "reference", "words"),
    [
        (0.42, 0.01, "0.419", "equal within the interval"),
        (0.4194, 0.0, "0.419", "equal within the interval"),
        (0.40, 0.01, "0.419", "better"),
        (0.44, 0.01, "0.419", "WORSE"),
    ],
)
def test_verdicts_take_figures_as_good_as_their_last_digit(utility, mean, half, reference, words):
    assert utility.verdict(mean, half, reference) == words
