"""The script on verdicts: its smallest run."""

import numpy as np
import pytest
from scripts import load_script


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "verdicts")


def test_it_prints_a_row_for_each_set_and_each_verdict(
    script, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(script, "BLOBS", {"few": (400, 2, 3)})
    monkeypatch.setattr(script, "EPSILONS", (0.01, 20.0))
    monkeypatch.setattr(script, "bundled", list)
    # It must not stay for other tests.
    monkeypatch.setattr(script.logging, "disable", lambda level: None)
    np.savez(tmp_path / "own.npz", X=np.random.default_rng(0).normal(size=(300, 2)))
    script.main(["--runs", "1", "--data", f"{tmp_path / 'own.npz'}:3"])
    first, costs, second = capsys.readouterr().out.rstrip().split("\n\n")
    head, line, few, own = first.splitlines()
    assert head.count("|") == line.count("|") == few.count("|") == own.count("|") == 6
    assert few.startswith("| few (400; d 2; k 3)")
    one_cluster, unseen, little, much = map(float, few.split("|")[2:-1])
    assert one_cluster > 1
    assert unseen > 0.25
    assert much <= 0.05 < little
    ratio, beside = costs.splitlines()[2].split("|")[2].split()
    # With so much noise a cluster needs many records, so the floor is above k-means.
    assert float(beside.strip("()")) < float(ratio)
    assert float(costs.splitlines()[2].split("|")[3]) < 1.1
    counted = [int(row.split("|")[2]) for row in second.splitlines()[2:]]
    assert sum(counted) == 4
