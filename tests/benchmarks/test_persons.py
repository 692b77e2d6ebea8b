"""The script on persons: its visits, what is kept of them, and its smallest run."""

import numpy as np
import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "persons")


def test_visits_are_within_the_ball_and_belong_to_persons(script):
    visits = script.generate(300, 4, 4, seed=3)
    assert np.linalg.norm(visits.records, axis=1).max() <= 1 + 1e-12
    assert np.bincount(visits.persons).tolist() == visits.n_visits.tolist()
    assert visits.n_visits.min() == 1
    assert visits.n_visits.max() <= 60


@pytest.mark.parametrize("most", [1, 4, 100])
def test_so_many_records_of_each_person_are_kept(script, most):
    visits = script.generate(200, 4, 4, seed=3)
    records = script.kept(visits, most, seed=5)
    owner = {each.tobytes(): p for each, p in zip(*visits[:2], strict=True)}
    counts = np.bincount([owner[each.tobytes()] for each in records])
    assert counts.tolist() == np.minimum(visits.n_visits, most).tolist()


def test_each_person_counts_as_one_in_the_cost(script):
    visits = script.Visits(
        np.array([[0.0], [0.5], [1.0]]), np.array([0, 0, 1]), np.array([2, 1])
    )
    assert script.cost(visits, np.array([[0.0]])) == pytest.approx((0.125 + 1.0) / 2)


def test_it_prints_a_row_for_each_size_and_method(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "SIZES", ((60, 2, 2),))
    script.main(["--runs", "2"])
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 11
    assert [row.split("|")[2].strip() for row in rows] == list(script.METHODS)
    for row in rows:
        cells = [cell.strip() for cell in row.split("|")[3:-1]]
        ratios = [float(cell.split("±")[0]) for cell in cells[:3]]
        one = float(cells[6])
        assert min(ratios) >= 0.9
        # Ratios are rounded to three decimals.
        for ratio, lost in zip(ratios, map(float, cells[3:6]), strict=True):
            assert lost == pytest.approx((ratio - 1) / (one - 1), abs=0.005)


def test_sizes_of_clusters_are_in_persons(script):
    visits = script.generate(300, 4, 4, seed=3)
    costs, smallest = script.reference(visits, 4)
    assert 0 < smallest <= 300 / 4
    assert costs.kmeans < costs.one_cluster
    # One cluster around the mean costs less than one around any other place.
    assert costs.one_cluster < script.cost(visits, np.zeros((1, 4)) + 0.1)
