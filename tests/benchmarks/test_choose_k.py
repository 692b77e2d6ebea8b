"""The suite of the suggested number of clusters: one run, and the table beside k-means."""

import pytest
from scripts import load_script
from suites import cells

from bench.harness import Options

DATA = "separated_3_2_30"
OPTIONS = Options(1, data=(DATA,))


@pytest.fixture
def choose(monkeypatch):
    return load_script(monkeypatch, "choose_k")


def test_a_run_with_little_noise_is_as_good_as_kmeans(choose):
    row = choose.measure(choose.Task(DATA, choose.GIVEN, 50.0, 0), OPTIONS)
    assert row.keys() == choose.SUITE.measures.keys()
    assert row["clusters"] == 3
    assert row["ratio"] == pytest.approx(1, abs=0.05)
    kmeans, one = choose.known(DATA, OPTIONS)
    assert row["lost"] == pytest.approx((row["loss"] - kmeans) / (one - kmeans))
    assert row["floor"] == pytest.approx(1)


def test_losses_stand_beside_kmeans_with_the_true_number(choose):
    def row(method, clusters, ratio, lost):
        task = {"data": DATA, "method": method, "epsilon": 1.0, "run": 0}
        found = {"loss": ratio, "cost": 1.0, "width": 0.1, "floor": 1.25}
        return task | found | {"clusters": clusters, "ratio": ratio, "lost": lost}

    rows = [
        row(choose.GIVEN, 3, 1.25, 0.01),
        row(choose.CHOSEN, 3, 1.5, 0.02),
        row(choose.CHOSEN, 2, 5.0, 0.12),
    ]
    *_, table = choose.tables_of(rows, OPTIONS).split("\n\n")
    (line,) = cells(table)
    assert line[:2] == ["separated", "1"]
    shown = ["1.250 (1.000); 0.010", "1.500 (1.200); 0.020", "3.250 (2.600); 0.070"]
    assert line[2:] == shown
