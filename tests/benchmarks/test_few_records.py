"""The script on few records: its sets, its figures, and its smallest run."""

import json
import sys

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans.algorithms import synopsis_constants
from flower_kmeans.errors import ConfigurationError

NAME = "few_60_2_3_1"


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "few_records")


def test_generated_sets_have_the_records_of_their_names(script):
    for name, shape, n_clusters in (
        (NAME, (60, 3), 2),
        ("far_80_2_3_2_10_1", (100, 3), 4),
        ("heavy_90_3_4_1", (90, 4), 3),
        ("decay_70_5_6_1", (70, 6), 5),
        ("grid_3_50_1", (50, 2), 9),
    ):
        records, found = script.table_of(name, None)
        assert (records.shape, found) == (shape, n_clusters)
        np.testing.assert_array_equal(records, script.table_of(name, None)[0])
    for name in script.TUNED[len(script.DATASETS) :]:
        assert name.split("_")[0] in script.GENERATED


def test_areas_are_those_under_the_costs_over_that_of_kmeans(script):
    costs = np.array([[2.0] * 5, [4.0, 4.0, 2.0, 2.0, 2.0]])
    found = script.area_ratios(costs, kmeans=2.0)
    # From 0.25 to 0.5 twice the cost, then down to it at 1.
    np.testing.assert_allclose(found, [1.0, 1 + (0.25 + 0.25) / 3.75])


def test_runs_are_saved_and_compared_with_those_of_another_version(
    script, tmp_path, capsys
):
    path = tmp_path / "rows.json"
    arguments = ["--data", NAME, "--seeds", "2", "--save", str(path)]
    script.main(arguments)
    printed = capsys.readouterr().out
    rows = json.loads(path.read_text())
    assert len(rows) == 2 * len(script.EPSILONS)
    assert min(rows.values()) > 0
    # Saved rows are not measured again, so there is no difference.
    script.main([*arguments, "--before", str(path)])
    head, _, row, *_ = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.split("|")]
    place = [cell.strip() for cell in head.split("|")].index("difference")
    assert cells[place] == "+0.0000 ± 0.0000"
    assert printed.splitlines()[-1] == f"Geometric mean of the areas: {cells[3][:6]}"


def test_the_noise_is_of_the_planned_size_and_the_same_for_a_seed(script):
    case = script.case_of(NAME, None)
    first, again, other = (script.cost_of(case, 1.0, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.fixture
def constants(monkeypatch):
    """All constants of SynopsisKMeans, which are as they were after the test."""
    for name, module in list(sys.modules.items()):
        if name.startswith("flower_kmeans.algorithms.synopsis"):
            for constant in vars(module).keys() & vars(synopsis_constants).keys():
                value = vars(module)[constant]
                if isinstance(value, int | float):
                    monkeypatch.setattr(module, constant, value)


@pytest.mark.usefixtures("constants")
def test_constants_are_replaced_for_a_run(script, tmp_path):
    case = script.case_of(NAME, None)
    usual = script.cost_of(case, 1.0, seed=0)
    path = tmp_path / "rows.json"
    changes = ["REFINEMENTS=1", "MORE_REFINEMENTS=1"]
    arguments = ["--data", NAME, "--seeds", "1", "--save", str(path)]
    script.main([*arguments, "--constants", *changes])
    rows = json.loads(path.read_text())
    assert rows[script.key_of(NAME, 1.0, 0)] != usual


def test_only_numbers_among_the_constants_are_replaced(script):
    for name in ("ROUNDS", "ANY_CLUSTERS", "math"):
        with pytest.raises(ConfigurationError, match=name):
            script.main(["--data", NAME, "--constants", f"{name}=1"])
