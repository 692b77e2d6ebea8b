"""The script on the directions of FedDP-KMeans: its two tables."""

import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "feddp_directions")


def test_both_codes_capture_the_same_variance(script, capsys):
    script.main(["--data", "made_600_8", "--directions", "3"])
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[3].strip() for row in rows] == [*script.CODES]
    lapack, own = (float(row.split("|")[4]) for row in rows)
    assert lapack == pytest.approx(own, abs=1e-5)
    assert 0 < own < 1


def test_runs_with_the_same_noise_differ_by_the_code_alone(script, capsys):
    """In few columns both codes find the same directions, up to roundings and signs."""
    script.main(
        ["--utility", "--data", "made_2000_6", "--epsilons", "8", "--runs", "2"]
    )
    _, _, row = capsys.readouterr().out.splitlines()
    lapack, own, difference = (
        float(cell.split("±")[0]) for cell in row.split("|")[4:7]
    )
    assert 0 < lapack < 1
    assert own == pytest.approx(lapack, abs=0.02)
    assert abs(difference) < 0.02


@pytest.mark.parametrize("name", ["digits", "blobs"])
def test_records_lie_in_the_unit_ball(script, name):
    table = script.table_of(name)
    lengths = (table.records**2).sum(axis=1)
    assert lengths.max() <= 1 + 1e-12
