"""Costs beside their yardsticks: floors by epsilon, areas, and the text of a cell."""

import numpy as np
import pytest

from bench import scales, tables
from bench.yardsticks import Yardsticks, fewest_records, floor
from flower_kmeans.privacy.calibration import mu_of_budget

SCALE = scales.Scale(Yardsticks(2.0, 6.0), {1.0: 2.0, 3.0: 4.0})


def test_floors_are_those_of_the_budget():
    rng = np.random.default_rng(0)
    far = np.concatenate([rng.normal(size=(90, 2)), 9 + rng.normal(size=(8, 2))])
    found = scales.scale_of(far, 2, 1e-3, (0.25, 8.0))
    for epsilon, cost in found.floors.items():
        fewest = fewest_records(2, mu_of_budget(epsilon, 1e-3))
        assert cost == floor(far, 2, fewest)
    assert found.floors[0.25] > 2 * found.floors[8.0]
    assert found.floors[8.0] == found.yardsticks.kmeans


def test_cells_have_the_ratio_the_floor_where_it_is_higher_and_the_lost_gain():
    assert scales.shown(3.0, SCALE, 2.0) == "1.500; 0.250"
    assert scales.shown(3.0, SCALE, 4.0) == "1.500 (0.750); 0.250"
    assert scales.shown(30.0, SCALE, 4.0, ".2f") == "15.0 (7.50); 7.000"
    assert scales.shown(1.9999, SCALE, 2.0) == "1.000; 0.000"


def test_areas_are_mean_costs_over_their_range():
    assert scales.mean_over([1.0, 3.0], (1.0, 3.0)) == 2.0
    assert scales.mean_over([5.0], (1.0,)) == 5.0
    assert SCALE.floor_over((1.0, 3.0)) == 3.0
    rows = [
        {"data": name, "method": "m", "epsilon": epsilon, "run": 0, "cost": 3 * epsilon}
        for name in ("a", "unknown")
        for epsilon in (1.0, 3.0)
    ]
    curves = tables.curves_of(rows, "cost")
    given = (curves, {"a": SCALE}, (1.0, 3.0))
    assert scales.relative_areas(*given).splitlines()[2:] == [
        "| a | 3.000 (2.000); 1.000 |"
    ]
    assert scales.relative_costs(*given).splitlines()[2:] == [
        "| a | m | 1.500; 0.250 | 4.500 (2.250); 1.750 |"
    ]
    assert scales.yardstick_table({"a": SCALE}, (1.0, 3.0)).splitlines()[2:] == [
        "| a | 2 | 6 | 1.0000 | 2.0000 |"
    ]
    assert scales.relative_tables(curves, {}, (1.0, 3.0), (1.0,)) == []


@pytest.mark.parametrize("empty", [{}, {1.0: {}}])
def test_points_without_runs_are_empty_cells(empty):
    curves = {("a", "m"): empty}
    assert "| a | m |  |" in scales.relative_costs(curves, {"a": SCALE}, (1.0,))
