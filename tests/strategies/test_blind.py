"""Runs under a server that sees no sums: clients compute every query from the sums they open."""

import logging
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from harness import (
    SIMULATED,
    noise_of_run,
    run_recorded,
    stock_start,
    without_noise,
    write_roster,
)

from flower_kmeans import Ball, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.pe_means import HALVED, NOTES
from flower_kmeans.errors import ConfigurationError, ObliviousServerError, TooFewClientsError
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol.messages import Ask, Finish, decode_request
from flower_kmeans.protocol.wire import from_content
from flower_kmeans.strategies import HDPEMeans, PEMeans, SynopsisKMeans

RNG = np.random.default_rng
CENTERS = np.array([[6.0, 6.0, 0.0], [-6.0, 6.0, 1.0], [0.0, -6.0, -1.0]])

# Name: the strategy, its columns, its options.
STRATEGIES = {
    "PEMeans": (PEMeans, 3, {"n_rounds": 4}),
    "HDPEMeans": (HDPEMeans, 20, {"n_rounds": 3}),
    "SynopsisKMeans": (SynopsisKMeans, 3, {}),
}
NAMES = pytest.mark.parametrize("name", STRATEGIES)
BLIND = pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])


@cache
def parts_of(name):
    """1,200 records around three centres, which lie in the first columns, by six clients."""
    d = STRATEGIES[name][1]
    centers = np.zeros((3, d))
    centers[:, :3] = CENTERS
    records = np.repeat(centers, 400, axis=0) + RNG(1).normal(0, 0.3, (1200, d))
    return np.array_split(RNG(2).permutation(records), 6)


def make(name, trust="oblivious-server", *, epsilon=8.0, **options):
    cls, d, usual = STRATEGIES[name]
    options = {"n_clients": 6, "min_clients": 4, **usual, **options}
    budget = PrivacyBudget(epsilon, unit=options.pop("unit", "record"))
    return cls(3, Ball(14.0, [0.0] * d), budget, 1200, trust=trust, **options)


def run(name, strategy=None, **options):
    return run_recorded(strategy or make(name), parts_of(name), timeout=60, **options)


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("start", [None, stock_start])
@BLIND
@NAMES
def test_clients_compute_queries_and_result_and_the_server_sees_neither(name, trust, start, unit):
    outcome = run(name, make(name, trust, unit=unit), start=start)
    strategy, result = outcome.strategy, outcome.one
    assert len(outcome.results) == 6
    assert result.centroids.shape == (3, STRATEGIES[name][1])
    assert np.isfinite(result.counts).all()
    messages = [item.message for item in outcome.grid.sent]
    assert {m.query for m in messages if isinstance(m, Ask)} == {None}
    assert {m.result for m in messages if isinstance(m, Finish)} == {None}
    assert not outcome.result.arrays
    with pytest.raises(ObliviousServerError):
        _ = strategy.centroids
    assert strategy._running.n_opened == 0
    report = strategy.report
    assert (report.warnings, report.cost) == ((), None)
    assert report.answers == [6] * strategy.n_rounds
    assert not report.incidents
    assert not report.lost_rounds


@NAMES
def test_every_trust_model_gives_the_same_integers(name):
    """Queries that clients compute are those that a server sends."""
    found = []
    for trust in ("oblivious-server", "clients-only", "distributed-noise", "trusted-server"):
        with without_noise():
            found.append(run(name, make(name, trust)))
    for other in found[1:]:
        np.testing.assert_array_equal(other.one.centroids, found[0].one.centroids)
        np.testing.assert_array_equal(other.one.counts, found[0].one.counts)
    means = np.zeros((3, STRATEGIES[name][1]))
    means[:, :3] = CENTERS
    assert matched_centroid_error(found[0].one.centroids, means) < 0.5


@pytest.mark.parametrize("unit", ["record", "client"])
@BLIND
@NAMES
def test_sums_carry_the_planned_noise(name, trust, unit):
    found = []
    while sum(map(len, found)) < 650:  # enough to tell wrong scales apart
        strategy = make(name, trust, unit=unit, epsilon=2.0)
        opened = noise_of_run(strategy, parts_of(name), timeout=60)
        for t, noise in enumerate(opened.noise, start=1):
            units = strategy.algorithm.units(t)
            for release in strategy.plan.rounds[t - 1]:
                words = np.concatenate([strategy.algorithm.places(t)[b] for b in release.blocks])
                std = units[words] * release.noise_multiplier * strategy.noise_factor
                found.append(noise[words] / std)
    squares = np.concatenate(found) ** 2
    # The mean square of n normal numbers has the standard deviation sqrt(2 / n).
    deviations = (np.mean(squares) - 1) / math.sqrt(2 / len(squares))
    assert abs(deviations) < 5
    for wrong in (2 / 3, 3 / 2):
        assert abs(wrong**2 - 1) / math.sqrt(2 / len(squares)) > 10


@BLIND
@NAMES
def test_a_simulation_returns_the_result_of_the_clients(name, trust):
    found = simulate(make(name, trust), parts_of(name))
    assert found.centroids.shape == (3, STRATEGIES[name][1])
    assert found.report.trust == trust
    assert found.inertia(np.concatenate(parts_of(name))) >= 0


@pytest.mark.ray
@BLIND
def test_ray_gives_the_same_result(trust):
    """Node ids differ, and with them the noise, so there is next to none."""
    options = {"epsilon": 1e6, "fraction_bits": 20}
    found = [
        simulate(make("PEMeans", trust, **options), parts_of("PEMeans"), engine=engine, timeout=120)
        for engine in ("in-process", "ray")
    ]
    first, second = (np.argsort(result.centroids[:, 0]) for result in found)
    np.testing.assert_allclose(
        found[0].centroids[first], found[1].centroids[second], rtol=0, atol=0.1
    )
    np.testing.assert_allclose(found[0].counts[first], found[1].counts[second], rtol=0, atol=1)
    assert found[1].report.answers == [6] * 4


@BLIND
def test_what_the_algorithm_notes_is_in_the_clients_logs_alone(caplog, trust):
    strategy = make("PEMeans", trust, epsilon=0.05, n_variations=300)
    with caplog.at_level(logging.WARNING, "flower_kmeans.client"):
        run("PEMeans", strategy)
    told = [record.getMessage() for record in caplog.records]
    assert [NOTES[HALVED] in text for text in told].count(True) == 1  # of six in one process
    assert strategy.report.warnings == ()


# --------------------------------------------------------------------------- faults


@BLIND
@NAMES
def test_late_clients_replay_the_transcript(name, trust, tmp_path):
    roster, policies = write_roster(tmp_path, 6)
    strategy = make(name, trust, keys="roster", roster_file=roster, min_clients=3)
    late = [Fault(i, 0, "late") for i in ((1, 4) if trust == "oblivious-server" else (4,))]
    outcome = run(name, strategy, policy=policies, faults=late)
    # One round passes until a client that has the group key has sealed it for them.
    assert strategy.report.answers == [6 - len(late)] * 2 + [6] * (strategy.n_rounds - 2)
    assert len(outcome.results) == 6
    assert outcome.one.centroids.shape[0] == 3


@pytest.mark.parametrize("kind", ["drop", "crash", "late", "twice", "shape", "round"])
@BLIND
@NAMES
def test_a_client_that_misses_a_round_goes_on_with_the_next(name, trust, kind):
    strategy = make(name, trust)
    faults = [Fault(i % 6, i + 1, kind) for i in range(strategy.n_rounds)]
    outcome = run(name, strategy, faults=faults)
    missing = 0 if kind == "twice" else 1
    assert strategy.report.answers == [6 - missing] * strategy.n_rounds
    assert len(outcome.results) == 6
    assert outcome.one.centroids.shape[0] == 3


def test_too_few_answers_end_the_run():
    with pytest.raises(TooFewClientsError, match="in round 2"):
        run("PEMeans", faults=[Fault(i, 2, "drop") for i in range(4)])


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


@BLIND
@NAMES
def test_clients_with_a_ledger_resume_where_they_were(name, trust, tmp_path):
    """States are written down between all messages, as bytes, and read again."""
    policies = [replace(SIMULATED, in_memory=False, state_dir=tmp_path / str(i)) for i in range(6)]
    strategy = make(name, trust)

    def restart(grid, messages):
        for state in grid.states.values():
            state.clear()

    outcome = run(name, strategy, policy=policies, on_push=restart)
    assert strategy.report.answers == [6] * strategy.n_rounds
    assert strategy.report.ledger
    assert len(outcome.results) == 6
    assert outcome.one.centroids.shape[0] == 3
    with Ledger(policies[0].state_dir) as ledger:
        delta = strategy.plan.budget.delta
        assert ledger.epsilon(delta) == pytest.approx(strategy.plan.epsilon(), rel=1e-9)


# --------------------------------------------------------------------------- one update for all


@NAMES
def test_clients_of_one_process_share_their_updates_and_need_not(name, monkeypatch):
    algorithm = type(make(name).algorithm)
    calls, update = [], algorithm.update

    def counted(self, state, answer, rng=None):
        calls.append(state.round)
        return update(self, state, answer, rng)

    monkeypatch.setattr(algorithm, "update", counted)
    with without_noise():
        shared = run(name)
    rounds = shared.strategy.n_rounds
    assert sorted(set(calls)) == list(range(rounds))
    # One call of a subclass may be two, but never one for each client.
    assert len(calls) <= 2 * rounds

    def alone(session, key, entry, follow):
        return follow()

    monkeypatch.setattr("flower_kmeans.protocol.client.followed", alone)
    with without_noise():
        apart = run(name)
    assert len(calls) >= 6 * rounds
    np.testing.assert_array_equal(shared.one.centroids, apart.one.centroids)
    np.testing.assert_array_equal(shared.one.counts, apart.one.counts)


# --------------------------------------------------------------------------- parameters


@BLIND
@NAMES
def test_a_server_that_sees_no_sums_is_an_option_and_not_the_default(name, trust):
    assert make(name, None).trust == "distributed-noise"
    assert make(name, trust).keys == "relayed"
    with pytest.raises(ConfigurationError, match="trust of"):
        make(name, trust, epsilon=None)
