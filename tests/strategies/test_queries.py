"""Whole runs whose queries only the server can compute: round trips, faults, keys, the report."""

import json
import struct
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from asking import CELLS, FEW, Split, SplitAlgorithm
from flwr.app import ArrayRecord
from harness import (
    P_VALUE,
    SIMULATED,
    exact_statistic,
    run_recorded,
    stock_start,
    watched_sums,
    without_noise,
    write_roster,
)
from rich.console import Console
from scipy import stats

from flower_kmeans import Box, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.base import Query
from flower_kmeans.errors import ConfigurationError, RunError, TooFewClientsError
from flower_kmeans.output import print_cost
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.protocol.messages import Added, Answer, Ask, decode_request
from flower_kmeans.protocol.wire import decode_arrays, encode, from_content, to_content
from flower_kmeans.strategies import FastLloyd, KMeansStrategy, Lloyd, SuLloyd

BOX = Box([0.0, 0.0], [10.0, 10.0])
PARTS = [np.random.default_rng(i).uniform(0, 10, (60, 2)) for i in range(6)]
TRUSTS = ("distributed-noise", "trusted-server", "plain")


def make(trust="distributed-noise", cls=Split, **options):
    budget = PrivacyBudget(None if trust == "plain" else 1.0)
    options = {"min_clients": 3, "n_clients": 6, **options}
    return cls(3, BOX, budget, 360, trust=trust, **options)


def run(strategy, **options):
    """Run a strategy; return what happened, and the round trips by kind."""
    trips = []

    def push(grid, messages):
        if messages:
            request = decode_request(from_content(messages[0].content))
            trips.append(type(request).__name__.lower())

    return run_recorded(strategy, PARTS, on_push=push, timeout=60, **options), trips


def queries(outcome):
    """Return the queries that clients were sent, encoded, by round and attempt."""
    asked = {}
    for item in outcome.grid.sent:
        if isinstance(item.message, Ask):
            place = item.message.t, item.message.attempt
            assert asked.setdefault(place, item.message.query) == item.message.query
    return asked


def query_of(outcome, t):
    return Query(t, decode_arrays(queries(outcome)[t, 1]))


def same(outcome):
    """Require that the server and all clients have one result; return it."""
    result = outcome.one
    np.testing.assert_array_equal(outcome.strategy.centroids, result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["counts"].numpy(), result.counts)
    return result


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize("keys", ["relayed", "roster"])
@pytest.mark.parametrize("start", [None, stock_start])
def test_each_sum_is_opened_before_the_next_query(keys, start, tmp_path):
    options = {}
    if keys == "roster":
        options["roster_file"], policies = write_roster(tmp_path, len(PARTS))
    outcome, trips = run(
        make(keys=keys, **options),
        start=start,
        policy=policies if keys == "roster" else None,
    )
    assert trips == ["enrol", "ask", "add", "ask", "add", "finish"]
    same(outcome)
    assert len(outcome.results) == 6
    assert outcome.strategy.report.answers == [6, 6]
    assert not outcome.strategy.report.incidents


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("trust", ["trusted-server", "plain"])
def test_a_trusted_server_takes_no_round_trip_more(trust, start):
    outcome, trips = run(make(trust), start=start)
    assert trips == ["enrol", "ask", "ask", "finish"]
    same(outcome)


@pytest.mark.parametrize("trust", TRUSTS)
def test_flowers_own_start_gives_the_same_run(trust):
    with without_noise():
        own, _ = run(make(trust))
        stock, _ = run(make(trust), start=stock_start)
    assert queries(own) == queries(stock)
    np.testing.assert_array_equal(same(own).centroids, same(stock).centroids)
    np.testing.assert_array_equal(own.one.counts, stock.one.counts)


def test_the_seed_decides_about_the_queries():
    """Nothing else is drawn in a run without noise."""
    first, again, other = (queries(run(make("plain", seed=seed))[0]) for seed in (1, 1, 2))
    assert first == again
    assert first[1, 1] == other[1, 1] == encode({})
    assert first[2, 1] != other[2, 1]


def test_a_run_is_simulated_as_any_other():
    clustering = simulate(make("plain"), PARTS)
    assert clustering.counts.sum() > 0
    assert clustering.centroids.shape == (3, 2)


@pytest.mark.parametrize("trust", TRUSTS)
def test_evaluate_fn_is_called_where_there_are_centroids(trust):
    seen = []
    options = {"evaluate_fn": lambda number, arrays: seen.append((number, set(arrays)))}
    run(make(trust), **options)
    assert seen == [(2, {"centroids", "counts"})]


# --------------------------------------------------------------------------- faults


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("kind", ["drop", "crash", "late", "twice", "shape", "round"])
def test_faults_leave_the_sum_of_the_others(trust, kind):
    """Without noise, the sum of a round is that of its survivors."""
    faults = [Fault(1, 1, kind), Fault(4, 2, kind)]
    with without_noise(), watched_sums() as sums:
        outcome, _ = run(make(trust), faults=faults)
    report = outcome.strategy.report
    missing = 0 if kind == "twice" else 1
    assert report.answers == [6 - missing] * 2
    assert len(report.dropped) == 2 * missing
    same(outcome)
    for t, away in ((1, 1), (2, 4)):
        present = [i for i in range(6) if not missing or i != away]
        query, algorithm = query_of(outcome, t), outcome.strategy.algorithm
        expected = sum(exact_statistic(algorithm, query, PARTS[i]) for i in present)
        np.testing.assert_array_equal(sums[t], expected)


def test_a_further_attempt_asks_the_same_query():
    def spoil(grid, messages):
        """Send four clients to a cohort that is none, in the first attempt at round 2."""
        for message in messages[:4]:
            request = decode_request(from_content(message.content))
            if isinstance(request, Ask) and (request.t, request.attempt) == (2, 1):
                spoilt = msgspec.structs.replace(request, root=bytes(32))
                message.content = to_content(encode(spoilt))

    strategy = make()
    outcome = run_recorded(strategy, PARTS, on_push=spoil, timeout=60)
    asked = queries(outcome)
    assert set(asked) == {(1, 1), (2, 1), (2, 2)}
    assert asked[2, 1] == asked[2, 2]
    assert strategy.report.attempts == 3
    assert strategy.report.answers[0] == 6
    same(outcome)


def test_a_round_with_too_few_answers_ends_the_run():
    with pytest.raises(TooFewClientsError, match=r"at least min_clients=4 .* in round 2"):
        run(make(min_clients=4), faults=[Fault(i, 2, "drop") for i in range(3)])


def test_a_round_without_enough_sum_shares_ends_a_run_that_needs_its_sum():
    faults = [Fault(i, 2, "drop", trip="add") for i in range(3)]
    with pytest.raises(RunError, match=r"sum-shares that open the sum of round 2"):
        run(make(), faults=faults)


def test_late_clients_take_part_and_have_the_result(tmp_path):
    roster, policies = write_roster(tmp_path, len(PARTS))
    strategy = make(keys="roster", roster_file=roster)
    outcome, _ = run(strategy, policy=policies, faults=[Fault(4, 0, "late")])
    assert outcome.strategy.report.answers == [5, 6]
    assert len(outcome.results) == 6
    same(outcome)


def test_restarts_with_a_ledger_lose_nothing_and_are_charged_once(tmp_path):
    policies = [replace(SIMULATED, in_memory=False, state_dir=tmp_path / str(i)) for i in range(6)]
    strategy = make()

    def restart(grid, messages):
        for state in grid.states.values():
            state.clear()

    outcome = run_recorded(strategy, PARTS, policy=policies, on_push=restart, timeout=60)
    assert strategy.report.answers == [6, 6]
    assert strategy.report.ledger
    same(outcome)
    delta = strategy.plan.budget.delta
    for policy in policies:
        with Ledger(policy.state_dir) as ledger:
            assert ledger.epsilon(delta) == pytest.approx(strategy.plan.epsilon(), rel=1e-9)


def test_restarts_without_a_ledger_cost_a_round():
    """A client that lost its memory renews, and then answers and has the result."""
    cleared = []

    def restart(grid, messages):
        kinds = {type(decode_request(from_content(m.content))).__name__ for m in messages}
        if "Add" in kinds and not cleared:
            cleared.append(True)
            list(grid.states.values())[2].clear()

    strategy = make()
    outcome = run_recorded(strategy, PARTS, on_push=restart, timeout=60)
    assert strategy.report.answers == [6, 5]
    assert len(outcome.results) == 6
    same(outcome)
    assert strategy.report.renewed == {2: 1}


# --------------------------------------------------------------------------- what travels


@pytest.mark.parametrize("trust", TRUSTS)
def test_what_the_server_holds_never_travels(trust):
    points = ((5.25, 6.5), (7.125, 5.75))
    strategy = make(trust, server_points=points)
    outcome, _ = run(strategy)
    assert strategy.algorithm.server_points == points
    sent = b"".join(item.data for item in outcome.grid.sent)
    for value in np.ravel(points):
        assert struct.pack("<d", value) not in sent
        assert float(value).hex().encode() not in sent
    # They were used: the radius is that of the farthest of them.
    radius = float(query_of(outcome, 2).arrays["radius"])
    farthest = np.linalg.norm(np.array(points) / 5 - 1, axis=1).max()
    assert radius == pytest.approx(farthest * 2**16)
    assert set(strategy._running.run.document.body.algorithm) == {
        "name", "n_clusters", "n_records", "seed", "fraction_bits",
    }  # fmt: skip


def test_answers_hold_nothing_but_sealed_shares():
    outcome, _ = run(make())
    answers = [item.message for item in outcome.grid.received]
    for answer in answers:
        if isinstance(answer, Answer):
            assert answer.words == b""
            assert answer.envelopes == ()
            assert len(answer.sealed) == 6
        elif isinstance(answer, Added):
            assert answer.key_id == b""
    assert sum(isinstance(answer, Answer) for answer in answers) == 12
    assert sum(isinstance(answer, Added) for answer in answers) == 12


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
def test_finished_runs_carry_the_planned_noise(trust):
    ratios = {"cells": [], "sums": [], "counts": []}
    for seed in range(10):
        strategy = make(trust, seed=seed, min_clients=6, server_points=((5.0, 5.25),))
        with watched_sums() as sums:
            outcome, _ = run(strategy)
        algorithm = strategy.algorithm
        assert strategy.noise_factor == ((6 / 5) ** 0.5 if trust == "distributed-noise" else 1)
        for t in (1, 2):
            query = query_of(outcome, t)
            noise = sums[t] - sum(exact_statistic(algorithm, query, part) for part in PARTS)
            units = algorithm.units(t)
            for release in strategy.plan.rounds[t - 1]:
                (name,) = release.blocks
                place = {"cells": slice(CELLS), "sums": slice(6), "counts": slice(6, 9)}[name]
                std = release.noise_multiplier * units[place] * strategy.noise_factor
                ratios[name].append(noise[place] / std)
    for name, found in ratios.items():
        squares = np.concatenate(found) ** 2
        sizes = squares.sum(), squares.size
        assert 2 * min(stats.chi2.cdf(*sizes), stats.chi2.sf(*sizes)) > P_VALUE, name


# --------------------------------------------------------------------------- the report


def test_warnings_of_the_algorithm_are_in_the_report(capsys):
    """All records are in one cell, so one of the two thresholds is not."""
    strategy = make()
    with without_noise():
        run_recorded(strategy, [np.full((5, 2), 5.0)] * 6, timeout=60)
    report = strategy.report
    assert report.warnings == (FEW,)
    assert json.loads(json.dumps(report.to_dict()))["warnings"] == [FEW]
    console = Console(width=200)
    print_cost(console, report, report.statements, facts=())
    assert FEW in capsys.readouterr().out


def test_runs_that_clients_replay_have_no_such_warnings():
    strategy = FastLloyd(2, BOX, PrivacyBudget(1.0), 360, n_rounds=2)
    run_recorded(strategy, PARTS)
    assert strategy.report.warnings == ()


# --------------------------------------------------------------------------- parameters


def test_a_strategy_names_its_default_trust_model():
    strategy = Split(2, BOX, PrivacyBudget(1.0), 100, n_clients=5)
    assert strategy.trust == "distributed-noise"
    assert isinstance(strategy, KMeansStrategy)


def test_a_server_that_sees_no_sums_is_refused_with_the_reason():
    reason = "The server computes the next query, so it must see the sums."
    for trust in ("oblivious-server", "clients-only"):
        with pytest.raises(ConfigurationError, match="trust of Split") as caught:
            make(trust)
        assert str(caught.value).endswith(reason)
    with pytest.raises(ConfigurationError) as caught:
        make("somebody")
    assert reason not in str(caught.value)
    with pytest.raises(ConfigurationError, match="Laplace noise has no shares") as caught:
        SuLloyd(2, BOX, PrivacyBudget(1.0), 100, trust="distributed-noise", n_clients=5)
    assert reason not in str(caught.value)
    with pytest.raises(ConfigurationError, match="It adds noise") as caught:
        Lloyd(2, BOX, trust="oblivious-server")
    assert reason not in str(caught.value)


def test_initial_centroids_are_refused_before_anything_is_sent():
    given = ArrayRecord([np.ones((3, 2))])
    strategy = make("trusted-server")
    with pytest.raises(ConfigurationError, match="initial_arrays: Split makes its own"):
        run(strategy, initial_arrays=given)
    with pytest.raises(ConfigurationError, match="no initial_arrays"):
        run(strategy, start=stock_start, initial_arrays=given)
    with pytest.raises(ConfigurationError, match="no initial: Split makes its own"):
        make(initial=np.ones((3, 2)))


def test_shares_are_checked_when_the_strategy_is_made():
    options = {"fraction_bits": 1, "n_clients": 200, "min_clients": 200, "max_colluders": 1}
    with pytest.raises(ConfigurationError, match="grid units"):
        make(**options)


def test_the_algorithm_is_not_changed_by_a_run():
    algorithm = make("plain").algorithm
    assert isinstance(algorithm, SplitAlgorithm)
    strategy = make("plain")
    run(strategy)
    assert strategy.algorithm == algorithm
    run(strategy)  # and a strategy can be started again
