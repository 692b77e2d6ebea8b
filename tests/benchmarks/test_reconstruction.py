"""The script that reads records off exact sums: it finds them there, and not behind noise."""

import numpy as np
import pytest
from scripts import load_script

from flower_kmeans.algorithms.state import Query

pytestmark = pytest.mark.claim("audit", "exact-sums-give-records")


@pytest.fixture
def script(monkeypatch):
    return load_script(monkeypatch, "reconstruction")


@pytest.fixture
def data(script):
    rng = np.random.default_rng(5)
    centres = np.array([[-0.5, -0.5], [0.5, 0.5], [-0.5, 0.6]])
    records = centres[rng.integers(3, size=60)] + rng.normal(0, 0.3, (60, 2))
    return script.Data("made", np.clip(records, -1, 1), 3)


def seen(script, sums, counts):
    return script.Seen(Query(1, {}), np.array(sums), np.array(counts))


def test_a_record_that_moves_alone_is_read(script):
    before = seen(script, [[10, 4], [7, 7], [3, 3]], [5, 5, 5])
    after = seen(script, [[8, 5], [9, 6], [3, 3]], [4, 6, 5])
    (move,) = script.claimed_moves(before, after)
    assert move[:2] == (0, 1)
    assert move.record.tolist() == [2, -1]


def test_nothing_is_claimed_where_sums_do_not_cancel(script):
    before = seen(script, [[10, 4], [7, 7], [3, 3]], [5, 5, 5])
    after = seen(script, [[8, 5], [9, 7], [3, 3]], [4, 6, 5])
    assert not script.claimed_moves(before, after)


def test_a_cluster_of_one_record_is_read(script):
    alone = seen(script, [[10, 4], [7, 7]], [5, 1])
    assert script.claimed_records([alone]) == {np.array([7, 7]).tobytes()}


@pytest.mark.parametrize("view", ["plain", "coalition"])
def test_those_who_see_exact_sums_find_the_records_that_moved(script, data, view):
    epsilon = None if view == "plain" else 4.0
    n_moves = 0
    for run in range(8):
        recorded = script.run_seen(data, view, epsilon, run)
        claimed = script.claimed_records(recorded.rounds)
        for moves in script.moves_of(recorded):
            n_moves += len(moves)
            for move in moves:
                assert move.record.tobytes() in claimed
    assert n_moves > 0


def test_a_client_finds_none_behind_the_noise(script, data):
    n_moves = 0
    for run in range(8):
        recorded = script.run_seen(data, "client", 4.0, run)
        known = {record.tobytes() for record in recorded.records}
        assert not known & script.claimed_records(recorded.rounds)
        true_moves = script.moves_of(recorded)
        errors, guesses = script.told_errors(recorded, true_moves)
        n_moves += len(errors)
        if errors:
            assert np.median(errors) > np.median(guesses)
    assert n_moves > 0


def test_it_writes_a_table_and_a_picture(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "SHOWN_RUNS", 1)
    options = script.Options(1, data=("sklearn-iris",))
    rows = [
        {**vars(task), **script.measure(task, options)}
        for task in script.tasks_of(options)
    ]
    table = script.tables_of(rows, options)
    assert [line.split("|")[2].strip() for line in table.splitlines()[2:]] == [
        "plain",
        "coalition",
        "client",
        "coalition",
        "client",
    ]
    pytest.importorskip("matplotlib")
    assert len(script.plot(rows, options).axes) == 3
