"""The script on the weight of FedDP-KMeans's server points: its rules, its runs and its tables."""

import numpy as np
import pytest
from scripts import load_script
from suites import cells

from bench.harness import Options, plan_of
from flower_kmeans.algorithms.layout import COUNTS
from flower_kmeans.algorithms.numerics import grid_kmeans


@pytest.fixture
def weights(monkeypatch):
    return load_script(monkeypatch, "feddp_weights")


@pytest.fixture
def options(tmp_path):
    """Two clusters far from each other, under the name of s1."""
    rng = np.random.default_rng(0)
    centers = np.repeat([[4.0, 1.0], [-5.0, 9.0]], 150, axis=0)
    labels = np.repeat([0, 1], 150)
    np.savez(tmp_path / "s1.npz", X=centers + rng.normal(size=(300, 2)), y=labels)
    return Options(1, data=(f"{tmp_path / 's1.npz'}:2",))


def test_rules_of_a_run_differ_in_the_least_weight_alone(weights, options, monkeypatch):
    monkeypatch.setitem(weights.SETTINGS, weights.RECORDS, weights.Setting((2.0,)))
    found = plan_of(weights.SUITE, options).options

    def measure(rule):
        return weights.measure(
            weights.Task("s1", weights.RECORDS, 2.0, 1000, rule), found
        )

    rows = {rule: measure(rule) for rule in weights.RULES}
    voted = weights.voted_of("s1", weights.RECORDS, 2.0, 1000, found)
    noise = voted.algorithm.noise_of(2)[COUNTS] / 2.0**16
    assert rows["5"]["least"] == 5.0
    for rule, number in weights.DEVIATIONS.items():
        assert rows[rule]["least"] == pytest.approx(number * noise)
    assert rows["default"] == pytest.approx(rows["2 deviations"])
    # The heaviest points that together have more than all records, and no further one.
    words = np.sort(voted.answer.blocks[COUNTS] / 2.0**16)[::-1]
    n_heaviest = int(np.argmax(np.cumsum(words) > 260)) + 1
    assert rows["votes"]["kept"] == n_heaviest
    assert all(0.99 < row["ratio"] < 20 for row in rows.values())
    assert all(-0.01 < row["lost"] < 1.5 for row in rows.values())
    for row in rows.values():
        assert row["floor"] == pytest.approx(1)


@pytest.mark.parametrize("n_steps", [0, 1, 2, 30])
def test_steps_that_change_nothing_are_left_out_and_so_change_nothing(weights, n_steps):
    points = np.random.default_rng(1).integers(-1000, 1000, (60, 2))
    data = grid_kmeans._Data(points, np.arange(60))
    cost, centers = weights.steps_until_still(data, points[:4], n_steps)
    expected, where = grid_kmeans._steps(data, points[:4], n_steps)
    assert cost == expected
    np.testing.assert_array_equal(centers, where)


def test_sets_and_seeds_of_the_choice_and_of_the_report_are_others(weights, tmp_path):
    assert not {*weights.TUNED} & {*weights.OTHERS}
    options = Options(6, data=("separated_5_2_21", "separated_8_8_34"))
    tasks = plan_of(weights.SUITE, options).tasks
    tuned = [task for task in tasks if task.data in weights.TUNED]
    others = [task for task in tasks if task.data not in weights.TUNED]
    assert {task.rule for task in tuned} == {*weights.TUNING_RULES}
    assert {task.rule for task in others} == {"5", "default"}
    assert {task.run for task in tuned} == set(range(6))
    assert {task.run for task in others} == set(range(1000, 1006))
    assert {task.setting for task in tasks} == {*weights.SETTINGS}
    few = {task.run for task in tuned if task.setting != weights.RECORDS}
    assert few == set(range(weights.FEW_RUNS))


def test_tables_compare_the_default_with_5_run_by_run(weights):
    rows = [
        {"data": name, "setting": "records", "epsilon": 0.5, "run": run, "rule": rule}
        | {"ratio": ratio, "lost": ratio / 10, "floor": 1.25, "kept": 3, "least": 5.0}
        for name, rule, run, ratio in (
            ("adult", "default", 1001, 1.5),
            ("adult", "5", 1000, 2.0),
            ("adult", "default", 1000, 1.0),
            ("adult", "5", 1001, 3.0),
            ("s1", "5", 1000, 1.0),
            ("s1", "default", 1000, 5.0),
            ("s1", "5", 1001, 9.0),  # of a run that is not done
            ("g2_32_50", "5", 1, 9.0),
            *(
                ("g2_32_50", rule, 0, 1.25 + i)
                for i, rule in enumerate(weights.TUNING_RULES)
            ),
        )
    ]
    text = weights.tables_of(rows, Options(1))
    _, chosen, _, _, _, table, _, means = text.split("\n\n")
    assert cells(chosen) == [["records", "0.5", *(f"{i}.250" for i in range(1, 7))]]
    adult, first = cells(table)
    assert adult[:5] == [
        "records",
        "adult",
        "0.5",
        "2.500 ± 6.4 (2)",
        "1.250 ± 3.2 (2)",
    ]
    assert adult[5:] == ["0.500 ± 0", "0.250 (2.000)", "0.125 (1.000)"]
    assert first[:5] == ["records", "s1", "0.5", "1.000 (1)", "5.000 (1)"]
    assert first[5:] == ["5.000", "0.100 (0.800)", "0.500 (4.000)"]
    assert cells(means) == [["records", "0.5", "1.581", "2.500"]]
