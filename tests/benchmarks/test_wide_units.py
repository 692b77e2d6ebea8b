"""The script on units and domains of wide records: its costs, and its smallest run."""

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans import Ball


@pytest.fixture
def script(monkeypatch):
    found = load_script(monkeypatch, "wide_units")
    monkeypatch.setattr(found, "N_UNITS", 600)
    monkeypatch.setattr(found, "N_CLIENTS", 60)
    return found


def test_each_person_counts_as_one(script):
    records = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    groups = np.array([0, 0, 0, 1])
    case = script.Case(records, Ball(1.0, [0, 0]), "person", groups)
    costs = script.costs_of(case, n_clusters=2, n_starts=1)
    assert costs.kmeans == pytest.approx(0)
    # Two persons are each half a unit away from their common mean.
    assert costs.one_cluster == pytest.approx(0.5)
    assert costs.of(np.array([[1.0, 0]])) == pytest.approx(1.0)


def test_directions_are_compared_without_lengths(script):
    case = script.of_directions(6)
    lengths = np.linalg.norm(case.records, axis=1)
    assert lengths.max() > 5 * lengths.min()
    by_hand = script.by_hand(6)
    costs = [script.costs_of(each, 3, 1) for each in (case, by_hand)]
    centroids = np.eye(6)[:3]
    assert costs[0].of(centroids) == pytest.approx(costs[1].of(7 * centroids))
    assert costs[0].one_cluster == pytest.approx(costs[1].one_cluster)


@pytest.mark.parametrize("way", ["person", "client", "sphere", "wide box, ranges"])
def test_it_prints_a_row_for_each_strategy(script, capsys, way):
    chosen = ["--columns", "6", "--clusters", "3", "--runs", "2", "--starts", "1"]
    script.main([*chosen, "--ways", way])
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 6
    assert [row.split("|")[2].strip() for row in rows] == [*script.ALGORITHMS]
    for row in rows:
        lost, error = map(float, row.split("|")[3].split("±"))
        assert -1 < lost < 4
        assert 0 <= error < 3
