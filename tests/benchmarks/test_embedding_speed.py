"""The time of float32 embeddings: a row for each size, and for each fit."""

import sys

import embedding_speed
import pytest


def test_a_pass_has_a_row_for_each_size(monkeypatch, capsys):
    monkeypatch.setattr(embedding_speed, "PASSES", ((700, 12, 3), (600, 2, 4)))
    embedding_speed.main(["pass", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| 700", "| 600"]
    assert all(line.count("|") == 10 for line in lines)


def test_a_round_has_a_row_for_each_domain_whose_parts_add_up(monkeypatch, capsys):
    monkeypatch.setattr(embedding_speed, "ROUNDS", ((700, 12, 3),))
    embedding_speed.main(["round", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[3] for line in lines] == ["Box", "Ball"]
    assert all(line.count("|") == 13 for line in lines)


def test_a_long_fit_ends_after_a_round_and_vertical_runs_say_why(monkeypatch, capsys):
    monkeypatch.setattr(embedding_speed, "N_RECORDS", 300)
    monkeypatch.setattr(embedding_speed, "N_FEATURES", 4)
    monkeypatch.setattr(embedding_speed, "N_CLUSTERS", 3)
    monkeypatch.setattr(embedding_speed, "N_CLIENTS", 2)
    records = embedding_speed.directions(300, 4)
    assert embedding_speed.fit_of("FastLloyd", records, 0.0)[0] == 1
    monkeypatch.setattr(embedding_speed, "N_CLUSTERS", 50)
    embedding_speed.print_vertical_plan()
    first, _, last = capsys.readouterr().out.splitlines()
    assert "Got 50 instead." in first
    assert "rounds planned" in last


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from Linux")
def test_a_fit_has_its_rounds_time_and_memory(monkeypatch, capsys):
    monkeypatch.setattr(embedding_speed, "N_RECORDS", 300)
    monkeypatch.setattr(embedding_speed, "N_FEATURES", 4)
    monkeypatch.setattr(embedding_speed, "N_CLUSTERS", 3)
    monkeypatch.setattr(embedding_speed, "N_CLIENTS", 2)
    for name in ("scikit-learn", "Lloyd", "GLloyd"):
        embedding_speed.one_fit(name, 600.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        "| scikit-learn",
        "| Lloyd",
        "| GLloyd",
    ]
