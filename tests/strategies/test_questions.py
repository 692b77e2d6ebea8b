"""Whole runs whose questions only the server can compute: hops, faults, keys, and the report."""

import json
import struct
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from asking import CELLS, FEW, Split, SplitAlgorithm
from flwr.app import ArrayRecord
from harness import (
    P_VALUE,
    SIMULATED,
    exact_statistic,
    key_file,
    roster_policies,
    run_recorded,
    stock_start,
)
from harness import without_noise
from rich.console import Console
from scipy import stats

from flower_kmeans import Box, ClientPolicy, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.base import Query
from flower_kmeans.errors import ConfigurationError, RunError, TooFewClientsError
from flower_kmeans.federation.arrays import decode_arrays
from flower_kmeans.output import print_cost
from flower_kmeans.privacy.ledger import Ledger
from flower_kmeans.secagg.ring import from_ring
from flower_kmeans.strategies import FastLloyd, KMeansStrategy, Lloyd, SuLloyd

BOX = Box([0.0, 0.0], [10.0, 10.0])
PARTS = [np.random.default_rng(i).uniform(0, 10, (60, 2)) for i in range(6)]
TRUSTS = ("distributed-noise", "trusted-server", "plain")
KEYS = ("relayed", "file", "roster")


def make(trust="distributed-noise", cls=Split, **options):
    budget = PrivacyBudget(None if trust == "plain" else 1.0)
    options = {"min_clients": 3, "n_clients": 6, **options}
    return cls(3, BOX, budget, 360, trust=trust, **options)


def policies_of(keys, tmp_path):
    if keys == "roster":
        return roster_policies(tmp_path, len(PARTS))
    return [replace(SIMULATED, group_key_file=key_file(tmp_path) if keys == "file" else None)]


def run(strategy, tmp_path=None, **options):
    """Run a strategy with the keys it needs; return what happened, and the hops by kind."""
    hops = []

    def push(grid, messages):
        if messages:
            hops.append(messages[0].content["kmeans"]["kind"])

    options.setdefault("policy", policies_of(strategy.keys, tmp_path))
    options.setdefault("timeout", 60)
    return run_recorded(strategy, PARTS, on_push=push, **options), hops


def questions(outcome):
    """Return the questions that clients were asked, by round and attempt."""
    asked = {}
    for item in outcome.grid.sent:
        if item.kind == "round":
            place = item.fields["t"], item.fields["attempt"]
            assert asked.setdefault(place, item.fields["question"]) == item.fields["question"]
    return asked


def same(outcome):
    """Require that the server and all clients have one result; return it."""
    result = outcome.one
    np.testing.assert_array_equal(outcome.strategy.centroids, result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["counts"].numpy(), result.counts)
    return result


# --------------------------------------------------------------------------- runs and hops


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("opening", ["immediate", "simple"])
def test_each_sum_is_opened_before_the_next_message(keys, start, opening, tmp_path):
    outcome, hops = run(make(keys=keys, opening=opening), tmp_path, start=start)
    setup = ["enrol", "lead"] if keys == "relayed" else ["enrol"]
    assert hops == [*setup, "round", "open", "round", "open", "finish"]
    same(outcome)
    assert len(outcome.results) == 6
    assert outcome.strategy.report.answers == [6, 6]
    assert not outcome.strategy.report.incidents


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("trust", ["trusted-server", "plain"])
def test_a_trusted_server_takes_no_hop_more(trust, start):
    outcome, hops = run(make(trust), start=start)
    assert hops == ["enrol", "round", "round", "finish"]
    same(outcome)


@pytest.mark.parametrize("trust", TRUSTS)
def test_flowers_own_start_gives_the_same_run(trust):
    with without_noise():
        own, _ = run(make(trust))
        stock, _ = run(make(trust), start=stock_start)
    assert questions(own) == questions(stock)
    np.testing.assert_array_equal(same(own).centroids, same(stock).centroids)
    np.testing.assert_array_equal(own.one.counts, stock.one.counts)


def test_the_seed_decides_about_the_questions():
    """Nothing else is drawn in a run without noise."""
    first, again, other = (questions(run(make("plain", seed=seed))[0]) for seed in (1, 1, 2))
    assert first == again
    assert first[1, 1] == other[1, 1] == bytes(4)
    assert first[2, 1] != other[2, 1]


def test_a_run_is_simulated_as_any_other():
    clustering = simulate(make("plain"), PARTS)
    assert clustering.counts.sum() > 0
    assert clustering.centroids.shape == (3, 2)
    assert clustering.report.server_asks


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
    """Without noise, the result is that of a run of the survivors, round by round."""
    faults = [Fault(1, 1, kind), Fault(4, 2, kind)]
    with without_noise():
        outcome, _ = run(make(trust), faults=faults)
    server, report = outcome.strategy._run_state, outcome.strategy.report
    missing = 0 if kind == "twice" else 1
    assert report.answers == [6 - missing] * 2
    assert len(report.dropped) == 2 * missing
    same(outcome)
    asked = {t: Query(t, decode_arrays(data)) for (t, _), data in questions(outcome).items()}
    for closed, away in zip(server.closed, (1, 4), strict=True):
        t = closed.entry.t
        present = [i for i in range(6) if not missing or i != away]
        expected = sum(exact_statistic(server.run, asked[t], PARTS[i]) for i in present)
        np.testing.assert_array_equal(from_ring(closed.opened)[:-1], expected)


def test_a_further_attempt_asks_the_same_question(tmp_path):
    def spoil(grid, messages):
        """Send four members to a cohort that is none, in the first attempt at round 2."""
        for message in messages[:4]:
            record = message.content["kmeans"]
            if (record["kind"], record.get("t"), record.get("attempt")) == ("round", 2, 1):
                record["root"] = bytes(32)

    strategy = make(keys="file")
    outcome = run_recorded(
        strategy, PARTS, on_push=spoil, policy=policies_of("file", tmp_path), timeout=60
    )
    asked = questions(outcome)
    assert set(asked) == {(1, 1), (2, 1), (2, 2)}
    assert asked[2, 1] == asked[2, 2]
    assert [closed.entry.attempt for closed in strategy._run_state.closed] == [1, 2]
    same(outcome)


def test_a_round_without_a_quorum_ends_the_run():
    with pytest.raises(TooFewClientsError, match=r"at least 4 .* answers in round 2"):
        run(make(), faults=[Fault(i, 2, "drop") for i in range(3)])


@pytest.mark.parametrize("keys", ["file", "roster"])
def test_late_members_take_part_and_learn_the_result(keys, tmp_path):
    outcome, _ = run(make(keys=keys), tmp_path, faults=[Fault(i, 0, "late") for i in (1, 4)])
    assert outcome.strategy.report.answers == [4, 6]
    assert len(outcome.results) == 6
    same(outcome)


def test_restarts_with_a_ledger_lose_nothing_and_are_charged_once(tmp_path):
    policies = [
        replace(policy, in_memory=False, state_dir=tmp_path / str(i))
        for i, policy in enumerate(policies_of("file", tmp_path) * 6)
    ]
    strategy = make(keys="file")

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


def test_restarts_without_a_ledger_cost_a_round(tmp_path):
    """With a key file a member that lost its memory renews, and then answers and is told."""
    cleared = []

    def restart(grid, messages):
        kinds = [message.content["kmeans"]["kind"] for message in messages]
        if "open" in kinds and not cleared:
            cleared.append(True)
            list(grid.states.values())[2].clear()

    strategy = make(keys="file")
    outcome = run_recorded(
        strategy, PARTS, policy=policies_of("file", tmp_path), on_push=restart, timeout=60
    )
    assert strategy.report.answers == [6, 5]
    assert len(outcome.results) == 6
    same(outcome)


def test_a_delivery_that_went_astray_is_repeated(tmp_path):
    def restart(grid, messages):
        if [m for m in messages if m.content["kmeans"]["kind"] == "finish"] == messages:
            restart.times += 1
            if restart.times == 1:
                list(grid.states.values())[2].clear()

    restart.times = 0
    strategy = make(keys="file")
    outcome = run_recorded(
        strategy, PARTS, policy=policies_of("file", tmp_path), on_push=restart, timeout=60
    )
    assert restart.times == 3  # it lacks the document first, then its place
    assert len(outcome.results) == 6
    same(outcome)


@pytest.mark.parametrize("opening", ["immediate", "simple"])
def test_a_sum_that_nobody_opens_ends_the_run(opening, monkeypatch):
    import harness

    class Silent(harness.FaultyClientApp):
        def __call__(self, message, context):
            reply = super().__call__(message, context)
            record = reply.content.config_records["kmeans"]
            for name in ("share_t", "share", "correction"):
                record.pop(name, None)
            return reply

    monkeypatch.setattr("harness.FaultyClientApp", Silent)
    with pytest.raises(RunError, match="sum of round 1 could not be opened"):
        run(make(opening=opening), faults=[Fault(0, 2, "twice")])


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
    (radius,) = {
        float(decode_arrays(data)["radius"]) for (t, _), data in questions(outcome).items() if t > 1
    }
    farthest = np.linalg.norm(np.array(points) / 5 - 1, axis=1).max()
    assert radius == pytest.approx(farthest * 2**16)
    document = json.loads(strategy._run_state.run.document.data)
    assert set(document["algorithm"]) == {
        "name", "n_clusters", "n_records", "seed", "fraction_bits",
    }  # fmt: skip


def test_replies_hold_nothing_but_masked_words_and_shares():
    outcome, _ = run(make())
    fields = Counter()
    for item in outcome.grid.received:
        fields.update((item.kind, name) for name in item.fields)
    assert {name for kind, name in fields if kind == "round"} == {
        "v", "kind", "code", "doc_hash", "ctx", "words", "parts",
    }  # fmt: skip
    assert {name for kind, name in fields if kind == "open"} == {
        "v", "kind", "code", "doc_hash", "share_t", "share", "correction", "part_key",
    }  # fmt: skip


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
def test_finished_runs_carry_the_noise_of_their_questions(trust):
    """Units of round 2 follow from its question; its sums and its counts have their own."""
    ratios = {"cells": [], "sums": [], "counts": []}
    for seed in range(10):
        # A small radius, so that no other unit could be taken for it.
        strategy = make(trust, seed=seed, min_clients=6, server_points=((5.0, 5.25),))
        outcome, _ = run(strategy)
        server = strategy._run_state
        algorithm = server.run.algorithm
        factor = 6 / 5 if trust == "distributed-noise" else 1  # six shares, made for five
        for (t, _), data in questions(outcome).items():
            question = Query(t, decode_arrays(data))
            exact = sum(exact_statistic(server.run, question, part) for part in PARTS)
            noise = from_ring(server.closed[t - 1].opened)[:-1] - exact
            units = algorithm.units(question.round)
            for release in strategy.plan.rounds[t - 1]:
                (name,) = release.blocks
                place = {"cells": slice(CELLS), "sums": slice(6), "counts": slice(6, 9)}[name]
                std = release.noise_multiplier * units[place] * factor**0.5
                ratios[name].append(noise[place] / std)
    for name, found in ratios.items():
        squares = np.concatenate(found) ** 2
        sizes = squares.sum(), squares.size
        assert 2 * min(stats.chi2.cdf(*sizes), stats.chi2.sf(*sizes)) > P_VALUE, name


# --------------------------------------------------------------------------- the report


def test_notes_of_the_algorithm_are_in_the_report(capsys):
    """All records are in one cell, so one of the two thresholds is not."""
    strategy = make()
    with without_noise():
        run_recorded(strategy, [np.full((5, 2), 5.0)] * 6, timeout=60)
    report = strategy.report
    assert report.notes == (FEW,)
    assert report.to_dict()["notes"] == [FEW]
    assert json.loads(json.dumps(report.to_dict()))["server_asks"] is True
    console = Console(width=200)
    print_cost(console, report, report.statements, facts=())
    assert FEW in capsys.readouterr().out
    word = "The result that clients were told is the server's word, like its questions."
    assert word in report.statements


def test_runs_that_clients_replay_have_no_such_notes():
    strategy = FastLloyd(2, BOX, PrivacyBudget(1.0), 360, n_rounds=2)
    run_recorded(strategy, PARTS)
    assert strategy.report.notes == ()
    assert strategy.report.server_asks is False
    assert not [text for text in strategy.report.statements if "server's word, like" in text]


# --------------------------------------------------------------------------- parameters


def test_trust_and_opening_have_their_defaults():
    strategy = Split(2, BOX, PrivacyBudget(1.0), 100, n_clients=5)
    assert (strategy.trust, strategy.opening) == ("distributed-noise", "immediate")
    assert make("trusted-server", opening="deferred").opening == "none"
    assert make(opening="simple").opening == "simple"
    assert isinstance(strategy, KMeansStrategy)


def test_an_oblivious_server_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError, match="trust of Split") as caught:
        make("oblivious-server")
    reason = "The server computes the next question, so it cannot be oblivious."
    assert str(caught.value).endswith(reason)
    with pytest.raises(ConfigurationError) as caught:
        make("somebody")
    assert reason not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        SuLloyd(2, BOX, PrivacyBudget(1.0), 100, trust="distributed-noise")
    assert reason not in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        Lloyd(2, BOX, trust="oblivious-server")
    assert reason not in str(caught.value)


def test_deferred_opening_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError, match="needs the sum of each round") as caught:
        make(opening="deferred")
    assert "\n" not in str(caught.value)


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
    options = {"fraction_bits": 1, "n_clients": 200, "min_clients": 200}
    with pytest.raises(ConfigurationError, match="grid units"):
        make(**options)


def test_clients_accept_simple_opening_only_if_their_policy_does():
    # Relayed keys: each of two attempts at a round can end in a separate sum.
    policy = ClientPolicy(in_memory=True, min_clients=2, max_epsilon=1.5)
    run(make(), policy=policy)
    with pytest.raises(TooFewClientsError, match="policy"):
        run(make(opening="simple"), policy=policy)


def test_the_algorithm_is_not_changed_by_a_run():
    algorithm = make("plain").algorithm
    assert isinstance(algorithm, SplitAlgorithm)
    strategy = make("plain")
    run(strategy)
    assert strategy.algorithm == algorithm
    run(strategy)  # and a strategy can be started again
