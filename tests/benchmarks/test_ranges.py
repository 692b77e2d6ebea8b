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
    first, second = capsys.readouterr().out.rstrip().split("\n\n")
    for table, n_bars in ((first, 8), (second, 10)):
        head, line, *rows = table.splitlines()
        assert head.count("|") == line.count("|") == n_bars
        names = [row.split("|")[1].split(" (")[0].strip() for row in rows]
        assert names == ["8 groups", "own"]
    for row, beside in zip(
        first.splitlines()[2:], second.splitlines()[2:], strict=True
    ):
        ratios = [float(cell.split()[0]) for cell in row.split("|")[2:-1]]
        assert min(ratios) > 0.9
        one, floor, *lost = [float(cell.split()[0]) for cell in beside.split("|")[2:-1]]
        assert one > 1
        assert floor >= 1 - 1e-9
        for ratio, gain in zip(ratios, lost, strict=True):
            assert gain == pytest.approx((ratio - 1) / (one - 1), abs=0.02)
