"""The script that measures losses under skew and drops: who holds what, who drops, going on."""

from functools import partial

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans.bench import script


@pytest.fixture
def skew(monkeypatch):
    return load_script(monkeypatch, "skew")


def data_of(skew, sizes):
    """Clusters far from each other, which differ in their first column."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    records = np.column_stack([labels / len(sizes), np.arange(len(labels)) / 1e6])
    return skew.Data("given", records, len(sizes)), labels


CLIENTS = {"even": 20, "drops": 20, "shares": 20, "clusters": 3, "both": 3}
CLIENTS |= {"clients": 1000, "one-each": 1000}


@pytest.mark.parametrize("setting", CLIENTS)
def test_every_record_is_one_clients(skew, setting):
    data, labels = data_of(skew, (900, 450, 150))
    parts = skew.parts_of(data, labels, setting, np.random.default_rng(0))
    assert len(parts) == CLIENTS[setting]
    together = np.concatenate(parts)
    np.testing.assert_array_equal(np.sort(together[:, 1]), data.records[:, 1])
    held = [len(np.unique(part[:, 0])) for part in parts if len(part)]
    if setting in skew.BY_CLUSTER:
        assert set(held) == {1}
    if setting in ("even", "drops", "shares"):
        assert set(held) == {3}  # of 75 random records each


def test_a_fifth_drops_in_every_round(skew):
    faults = skew.drops(20, 5, np.random.default_rng(0))
    by_round = [[fault.client for fault in faults if fault.round == t] for t in range(7)]
    assert [len(set(clients)) for clients in by_round] == [0, 4, 4, 4, 4, 4, 0]
    assert len({tuple(sorted(clients)) for clients in by_round[1:6]}) > 1
    assert {(fault.kind, fault.trip) for fault in faults} == {("drop", "ask")}


def test_settings_are_what_they_say(skew):
    data, _ = data_of(skew, (900, 450, 150))
    units = {}
    for setting in skew.SETTINGS:
        strategy = skew.strategy_of(data, skew.Task("given", setting, "FastLloyd", 1.0, 3), 20)
        units[setting] = (strategy.privacy.unit, strategy.trust)
    trusted = ("record", "trusted-server")
    assert units == {
        **dict.fromkeys(("even", "clusters", "drops", "both"), trusted),
        "shares": ("record", "distributed-noise"),
        **dict.fromkeys(("clients", "one-each"), ("client", "trusted-server")),
    }


def test_it_goes_on_where_it_was_stopped(skew, monkeypatch, tmp_path, capsys):
    rng = np.random.default_rng(0)
    records = np.repeat([[4.0, 1.0], [-5.0, 9.0]], 60, axis=0) + rng.normal(size=(120, 2))
    np.savez(tmp_path / "own.npz", X=records)
    command = ["skew.py", "--data", f"{tmp_path / 'own.npz'}:2", "--settings", "even", "drops"]
    command += ["--runs", "1", "--jobs", "1", "--methods", "FastLloyd"]
    command += ["--output", str(tmp_path / "out")]
    main = partial(script.main, skew.SUITE, command[1:])
    main()
    first = (tmp_path / "out" / "runs.csv").read_text()
    assert first.splitlines()[0] == "data,setting,method,epsilon,run,ratio"
    assert len(first.splitlines()) == 1 + 2 * 3
    assert all(float(line.split(",")[-1]) >= 0.999 for line in first.splitlines()[1:])
    monkeypatch.setattr(skew, "loss_in", None)  # nothing is left to do
    main()
    assert (tmp_path / "out" / "runs.csv").read_text() == first
    assert "| own | drops | FastLloyd |" in capsys.readouterr().out
