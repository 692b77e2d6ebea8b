"""Suites of benchmarks/ on the papers' figures: tasks, one run of each, what they show."""

import numpy as np
import pytest

from flower_kmeans.bench.harness import Options, plan_of


def rows_of(module, options, keep=lambda task: True):
    plan = plan_of(module.SUITE, options)
    tasks = [task for task in plan.tasks if keep(task)]
    rows = [{**vars(task), **module.measure(task, plan.options)} for task in tasks]
    for row in rows:
        assert row.keys() == module.SUITE.columns.keys()
    return rows, plan.options


def test_synthetic_sets_are_those_of_the_papers_table(script):
    module = script("fastlloyd_synthetic")
    plan = plan_of(module.SUITE, Options(1))
    assert not plan.skipped
    grid = {name for name in plan.options.data if name.startswith("synth_")}
    cells = {tuple(map(int, name.split("_")[1:3])) for name in grid}
    assert {(k, d) for k in (2, 4, 8, 16, 32) for d in (2**i for i in range(1, 10))} <= cells
    assert {(64, 2), (128, 2)} <= cells
    assert sum(name.startswith("g2_") for name in plan.options.data) == 10
    assert {task.epsilon for task in plan.tasks} == {None, 0.1, 0.25, 0.5, 0.75, 1.0}


def test_ratios_on_synthetic_sets_are_those_of_areas(script):
    module = script("fastlloyd_synthetic")
    rows = [
        {"data": name, "method": method, "epsilon": epsilon, "run": 0, "nicv": value, "rounds": 2}
        for name, value_of in (("g2_4_30", {"SuLloyd": 4.0, "FastLloyd": 1.0}),
                               ("synth_4_2_0", {"SuLloyd": 2.0, "FastLloyd": 1.0}),
                               ("synth_4_2_1", {"SuLloyd": 2.0, "FastLloyd": 0.5}),
                               ("synth_4_64_0", {"SuLloyd": 1.0, "FastLloyd": 0.25}))
        for method, value in value_of.items()
        for epsilon in module.EPSILONS
    ]  # fmt: skip
    text = module.tables_of(rows, Options(1))
    assert "| 4 |  | 1.000 |  | 0.250 |  |" in text  # G2 with four columns
    assert "| 4 |  | 1.000 |  | 0.375 |  |" in text  # the mean of 1/2 and 1/4
    assert "| 4 | 0.38 |  |  |  |  | 0.25 |" in text  # the grid
    assert module.ratios_of(rows)["synth_4_64_0"] == {"SuLloyd": 1.0, "FastLloyd": 0.25}
    for draw in module.SUITE.plots.values():
        assert draw(rows, Options(1)).axes


def test_separation_is_measured_on_the_clusters_of_the_centroids(script):
    module = script("fastlloyd_metrics")
    records = np.array([[0.0], [0.1], [1.0], [1.1]])
    found = module.separation_of(records, np.array([0, 0, 1, 1]))
    # Of each record: (b - a) / max(a, b) with a = 0.1, and b = 1.05 or 0.95.
    assert found["silhouette"] == pytest.approx(((0.95 / 1.05) + (0.85 / 0.95)) / 2)
    assert found["davies_bouldin"] == pytest.approx((0.05 + 0.05) / 1.0)
    one = module.separation_of(records, np.zeros(4, dtype=int))
    assert one == {"silhouette": -1.0, "davies_bouldin": None}


def test_measures_of_a_whole_run_are_shown_and_drawn(script):
    module = script("fastlloyd_metrics")
    only = (("method", ("FastLloyd",)), ("epsilon", ("1",)))
    rows, options = rows_of(module, Options(1, data=("sklearn-iris",), only=only))
    assert len(rows) == 1
    assert module.tables_of(rows, options).count("| sklearn-iris | FastLloyd |") == 3
    for draw in module.SUITE.plots.values():
        assert draw(rows, options).axes


def test_bytes_of_an_iteration_are_those_of_its_words_and_messages(script):
    module = script("fastlloyd_overhead")
    rows, options = rows_of(module, Options(1, data=("timesynth_10000_2_5",)))
    words = 2 * 5 + 2 + 1  # sums, counts and the checksum word
    # Under masks one vector of each of two clients; of shares one for each of two, with its seal.
    sizes = {"oblivious-server": 8 * words, "distributed-noise": 2 * (8 * words + 16)}
    for row in rows:
        assert row["words"] == 2 * 2 * sizes[row["trust"]]
        assert row["total"] > row["words"]
        assert row["seconds"] > 0
    assert {row["trust"] for row in rows} == set(module.TRUSTS)
    assert "| timesynth_10000_2_5 | oblivious-server |" in module.tables_of(rows, options)
