"""Runs under a server that sees no sums: clients compute every query from the sums they open."""

import logging

import numpy as np
import pytest
import rows
from harness import without_noise
from rows import make, run

from flower_kmeans.algorithms.pe_means import HALVED, WARNINGS
from flower_kmeans.protocol.messages import Ask, decode_request
from flower_kmeans.protocol.wire import from_content

BLIND = pytest.mark.parametrize("trust", rows.BLIND)
NAMES = pytest.mark.parametrize("name", ["PEMeans", "HDPEMeans", "SynopsisKMeans"])


@BLIND
def test_what_the_algorithm_notes_is_in_the_clients_logs_alone(caplog, trust):
    strategy = make("PEMeans", trust, epsilon=0.05, n_variations=300)
    with caplog.at_level(logging.WARNING, "flower_kmeans.client"):
        run("PEMeans", strategy)
    texts = [record.getMessage() for record in caplog.records]
    assert [WARNINGS[HALVED] in text for text in texts].count(True) == 1  # of six in one process
    assert strategy.report.warnings == ()


@BLIND
@NAMES
def test_clients_that_lose_their_memory_replay_the_transcript(name, trust):
    """A client forgets everything before round 3, renews there, and has the result in the end."""
    cleared = []

    def restart(grid, messages):
        requests = [decode_request(from_content(message.content)) for message in messages]
        if not cleared and any(isinstance(each, Ask) and each.t == 3 for each in requests):
            cleared.append(True)
            list(grid.states.values())[2].clear()

    strategy = make(name, trust)
    outcome = run(name, strategy, on_push=restart)
    # It lacks the run document, begins a new session, and is given the group key: each takes a
    # message, and two of them come in one round where a committee adds.
    missed = 2 if trust == "clients-only" else 3
    answers = [6, 6] + [5] * missed + [6] * strategy.n_rounds
    assert strategy.report.answers == answers[: strategy.n_rounds]
    assert [each.round for each in strategy.report.incidents_of("renewed")] == [1 + missed]
    assert len(outcome.results) == (6 if strategy.n_rounds >= 2 + missed else 5)
    assert outcome.one.centroids.shape[0] == 3


@NAMES
def test_clients_of_one_process_share_their_updates_and_need_not(name, monkeypatch):
    algorithm = type(make(name, "oblivious-server").algorithm)
    calls, update = [], algorithm.update

    def counted(self, state, answer, rng=None):
        calls.append(state.round)
        return update(self, state, answer, rng)

    monkeypatch.setattr(algorithm, "update", counted)
    with without_noise():
        shared = run(name, make(name, "oblivious-server"))
    rounds = shared.strategy.n_rounds
    assert sorted(set(calls)) == list(range(rounds))
    # One call of a subclass may be two, but never one for each client.
    assert len(calls) <= 2 * rounds

    def alone(session, key, entry, follow):
        return follow()

    monkeypatch.setattr("flower_kmeans.protocol.client.followed", alone)
    with without_noise():
        apart = run(name, make(name, "oblivious-server"))
    assert len(calls) >= 6 * rounds
    np.testing.assert_array_equal(shared.one.centroids, apart.one.centroids)
    np.testing.assert_array_equal(shared.one.counts, apart.one.counts)
