"""Columns of lost gains: their cells, their floors, and the table over epsilons."""

import numpy as np
import pytest
from suites import cells

from bench import lost_gain
from bench.yardsticks import floor


@pytest.mark.parametrize(
    ("ratio", "lost", "least", "shown"),
    [
        (1.5, 0.25, None, "0.250"),
        (1.5, 0.25, 1.0, "0.250"),
        (1.5, 0.25, 1.0004, "0.250"),
        (1.5, 0.25, 1.2, "0.250 (1.250)"),
        (0.9999, -0.0001, 1.0, "0.000"),
    ],
)
def test_a_cell_has_the_floor_where_it_is_above_kmeans(ratio, lost, least, shown):
    assert lost_gain.text(ratio, lost, least) == shown


def test_a_whole_cell_has_ratio_and_lost_gain():
    assert lost_gain.whole(1.5, 0.25, 1.2) == "1.500 (1.250); 0.250"
    assert lost_gain.whole(1.5, 0.25) == "1.500; 0.250"


def test_floors_are_those_of_the_budget():
    rng = np.random.default_rng(0)
    records = np.concatenate([rng.normal(size=(190, 2)), 9 + rng.normal(size=(10, 2))])
    kmeans = floor(records, 2, 1)
    # With the default delta, sqrt(2) / mu is 17 records at 0.35 and 5 at 1.
    assert lost_gain.floor_over(kmeans, records, 2, 0.35) > 1.5
    assert lost_gain.floor_over(kmeans, records, 2, 1.0) == pytest.approx(1)
    # A larger delta needs less noise.
    assert lost_gain.floor_over(kmeans, records, 2, 0.35, 0.2) == pytest.approx(1)


def test_lost_gains_stand_beside_ratios():
    rows = [
        {"data": "a", "method": "m", "epsilon": epsilon, "run": run}
        | {"ratio": 1 + run, "lost": run / 4, "floor": least}
        for epsilon, least in ((0.5, 1.25), (4.0, None))
        for run in (0, 1)
    ]
    table = lost_gain.over_grid(rows, (0.5, 1.0, 4.0))
    head, *_ = table.splitlines()
    assert head.endswith("| lost gain, eps 0.5 | lost gain, eps 1 | lost gain, eps 4 |")
    ((*_, first, none, last),) = cells(table)
    assert (first, none, last) == ("0.125 (1.200)", "", "0.125")
