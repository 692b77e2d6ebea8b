"""The script on ranges of columns: its bounds, and its smallest run."""

import numpy as np
import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "ranges")


@pytest.mark.parametrize(("wide", "n_wide"), [("no", 0), ("one", 1), ("all", 4)])
def test_bounds_hold_the_true_ones_and_some_are_too_wide(script, wide, n_wide):
    lower, upper = script.bounds(wide, 4, seed=3)
    assert (lower <= -1 + 1e-9).all()
    assert (upper >= 1 - 1e-9).all()
    assert np.count_nonzero(upper - lower > 2.1) == n_wide


def test_generated_sets_fill_their_bounds(script):
    for name in script.GENERATED:
        case = script.generated(name, 500)
        np.testing.assert_allclose(case.records.min(axis=0), -1)
        np.testing.assert_allclose(case.records.max(axis=0), 1)


def test_it_prints_a_row_for_each_set(script, monkeypatch, capsys, tmp_path):
    small = script.generated
    monkeypatch.setattr(script, "generated", lambda name: small(name, 600))
    monkeypatch.setattr(script, "GENERATED", {"8 groups": script.GENERATED["8 groups"]})
    np.savez(tmp_path / "own.npz", X=np.random.default_rng(0).normal(size=(500, 2)))
    script.main(["--runs", "1", "--data", f"{tmp_path / 'own.npz'}:3"])
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head.count("|") == line.count("|") == 8
    assert [row.split("|")[1].split(" (")[0].strip() for row in rows] == [
        "8 groups",
        "own",
    ]
    for row in rows:
        assert all(float(cell.split()[0]) > 0.9 for cell in row.split("|")[2:-1])
