"""The quick suite: its tasks, and that every method runs as its protocol says."""

from dataclasses import replace

import numpy as np
import pytest
import quick

from bench.harness import Options, plan_of
from flower_kmeans import simulation
from flower_kmeans.strategies import KMeansStrategy


@pytest.fixture
def small(tmp_path):
    """Two tiny data sets, of which one is wide."""
    for name, d in (("flat", 2), ("wide", 17)):
        rng = np.random.default_rng(d)
        records = np.repeat([[-5.0] * d, [5.0] * d], 200, axis=0) + rng.normal(
            size=(400, d)
        )
        np.savez(tmp_path / f"{name}.npz", X=records, y=np.repeat([0, 1], 200))
    return plan_of(
        quick.SUITE,
        Options(1, data=tuple(f"{tmp_path / name}.npz:2" for name in ("flat", "wide"))),
    )


def test_its_tasks_are_those_of_the_table():
    plan = plan_of(quick.SUITE, Options(3))
    assert not plan.skipped
    wide = 1 + 7 * 3  # k-means once, seven strategies at three budgets
    assert len(plan.tasks) == 3 * (2 * (1 + 6 * 3) + wide)
    projected = {task.data for task in plan.tasks if task.method == "HDPEMeans"}
    assert projected == {"g2_32_50"}


@pytest.mark.claim("benchmarks", "runs-all-strategies-on")
def test_every_method_runs_as_the_protocol_says(small, monkeypatch):
    seen = []
    real = simulation.simulate

    def record(strategy, partitions):
        seen.append((strategy, partitions))
        return real(strategy, partitions)

    monkeypatch.setattr(simulation, "simulate", record)
    rows = []
    for task in small.tasks:
        if task.epsilon in (None, 0.5) and task.data == "wide":
            rows.append({**vars(task), **quick.measure(task, small.options)})
    assert {row["method"] for row in rows} == set(quick.METHODS)
    assert [row["ratio"] for row in rows if row["method"] == "KMeans"] == [
        pytest.approx(1)
    ]
    case = quick.case_of("wide", small.options)
    assert len(case.records) == 400 - 2 * 20
    assert len(case.server_data) == 2 * 20 + 100
    for strategy, partitions in seen:
        assert isinstance(strategy, KMeansStrategy)
        oblivious = type(strategy).__name__ in ("FastLloyd", "GLloyd", "SuLloyd")
        assert strategy.trust == ("oblivious-server" if oblivious else "trusted-server")
        assert (len(partitions), strategy.n_records) == (10, 360)
        together = np.concatenate(partitions)
        np.testing.assert_array_equal(
            together[np.lexsort(together.T)], case.records[np.lexsort(case.records.T)]
        )
        held = {row.tobytes() for row in together}
        assert not held & {row.tobytes() for row in case.server_data}
    ratios, _, yardsticks, _, relative = quick.tables_of(rows, small.options).split(
        "\n\n"
    )
    for table in (ratios, relative):
        assert table.splitlines()[0] == "| data | method | eps 0.5 |"
        assert len(table.splitlines()) == 2 + len(rows)
    assert "| wide | KMeans | 1.000; 0.000 |" in relative
    assert yardsticks.splitlines()[-1].startswith("| wide | ")
    assert quick.plot(rows, small.options).axes[0].get_title() == "wide"


def test_clients_of_different_runs_hold_others(small, monkeypatch):
    halves = []
    monkeypatch.setattr(
        simulation, "simulate", lambda strategy, parts: halves.append(parts[0]) or 1 / 0
    )
    task = next(task for task in small.tasks if task.method == "FastLloyd")
    for each in (task, task, replace(task, run=1)):
        with pytest.raises(ZeroDivisionError):
            quick.measure(each, small.options)
    np.testing.assert_array_equal(halves[0], halves[1])
    assert not np.array_equal(halves[0], halves[2])
