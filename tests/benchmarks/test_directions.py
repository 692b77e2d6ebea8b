"""The script on directions: its records, and its smallest run."""

import numpy as np
import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "directions")


def test_records_lie_around_directions_and_lengths_differ(script):
    close, wide = (
        script.generate(16, spread, seed=1) for spread in script.SPREADS.values()
    )
    lengths = np.linalg.norm(close.records, axis=1)
    assert np.quantile(lengths, 0.9) > 5 * np.quantile(lengths, 0.1)
    rng = np.random.default_rng(0)
    found = [
        script.similarity(table.records, script.spherical_kmeans(table.records, rng))
        for table in (close, wide)
    ]
    assert 0.85 < found[0] < 0.95
    assert 0.5 < found[1] < 0.7
    np.testing.assert_allclose(np.linalg.norm(close.server, axis=1), 1)


def test_it_prints_a_row_for_each_spread(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "N_RECORDS", 600)
    monkeypatch.setattr(script, "_STARTS", 1)
    script.main(
        ["--seeds", "1", "--columns", "3", "--algorithms", "GLloyd", "HDPEMeans"]
    )
    head, line, *rows, blank, last = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 13
    assert [row.split("|")[3].strip() for row in rows] == list(script.SPREADS)
    for row in rows:
        cells = row.split("|")
        sphere, by_hand = map(float, cells[4:6])
        as_it_is, kmeans, one = map(float, cells[7:10])
        assert 0 < one < kmeans <= 1
        for found, lost in zip(
            (sphere, by_hand, as_it_is), map(float, cells[10:13]), strict=True
        ):
            assert lost == pytest.approx((kmeans - found) / (kmeans - one), abs=0.01)
    assert blank == ""
    assert last.startswith("Smallest cluster of k-means: ")


def test_spherical_kmeans_is_better_than_one_direction(script):
    known = script.reference(16, 1.5, 1)
    assert known.one_direction < known.kmeans
    assert 0 < known.smallest <= script.N_RECORDS / script.N_CLUSTERS
