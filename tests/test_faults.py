"""Every fault under every trust model: the run goes on, and the report says who, when and why."""

import itertools
import time
from unittest import mock

import numpy as np
import pytest
from harness import exact_statistic, run_recorded, without_noise

from flower_kmeans import Box, Fault, PrivacyBudget, simulate
from flower_kmeans.errors import ConfigurationError, RunError, TooFewClientsError
from flower_kmeans.faults import FaultKind, FaultyClientApp
from flower_kmeans.protocol.exchange import CRASHED, MALFORMED
from flower_kmeans.protocol.messages import Add, Ask, Code, decode_request
from flower_kmeans.protocol.server import DIFFERS, FALSE_SHARE, NO_ANSWER, SKIPPED, STRAY
from flower_kmeans.protocol.wire import from_content
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd, SuLloyd

KINDS = FaultKind.__args__
BLIND = ("oblivious-server", "clients-only")
SHARED = ("distributed-noise", "clients-only")
TRUSTS = (*BLIND, "distributed-noise", "trusted-server", "plain")
BOX = Box([0.0, 0.0], [1.0, 1.0])
PARTS = [np.random.default_rng(i).random((20 + i, 2)) for i in range(5)]

WHY = {
    "drop": NO_ANSWER,
    "late": NO_ANSWER,
    "crash": CRASHED,
    "shape": MALFORMED,
    "type": MALFORMED,
    "round": DIFFERS,
    "run": STRAY,
}


def why(trust, kind):
    """Return the reason that the report gives for a fault in an answer."""
    return SKIPPED if kind == "shape" and trust in SHARED else WHY[kind]


def make(trust, rounds=3, **options):
    options.setdefault("min_clients", 3)
    if trust == "plain":
        return Lloyd(2, BOX, n_rounds=rounds, **options)
    return FastLloyd(
        2, BOX, PrivacyBudget(1.0), n_records=110, trust=trust, n_rounds=rounds, **options
    )


def dropped(strategy):
    return [(entry.client, entry.round, entry.reason) for entry in strategy.report.dropped]


@pytest.mark.parametrize(("trust", "kind"), list(itertools.product(TRUSTS, KINDS)))
def test_a_run_goes_on_without_a_faulty_client(trust, kind):
    strategy = make(trust)
    started = time.monotonic()
    outcome = run_recorded(strategy, PARTS, faults=[Fault(2, 2, kind)], timeout=60)
    assert time.monotonic() - started < 30  # nobody waits for what is lost
    if kind == "twice":
        assert dropped(strategy) == []
        assert strategy.report.answers == [5, 5, 5]
        assert not strategy.report.incidents
    else:
        assert dropped(strategy) == [(2, 2, why(trust, kind))]
        assert strategy.report.answers == [5, 4, 5]
    assert len(outcome.results) == 5
    assert outcome.one.centroids.shape == (2, 2)
    assert np.isfinite(outcome.one.centroids).all()
    report = strategy.report
    nodes = {entry.node_id for entry in (*report.dropped, *report.incidents)}
    assert nodes <= {sorted(outcome.grid.states)[2]}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "twice"])
def test_the_result_is_that_of_the_survivors_alone(kind):
    """Lloyd is exact, so a fault in every round leaves exactly the run without that client."""
    faults = [Fault(1, t, kind) for t in (1, 2, 3)]
    with_fault = simulate(make("plain"), PARTS, faults=faults)
    alone = simulate(make("plain"), [part for i, part in enumerate(PARTS) if i != 1])
    np.testing.assert_array_equal(with_fault.centroids, alone.centroids)
    np.testing.assert_array_equal(with_fault.counts, alone.counts)


def test_an_answer_that_comes_twice_counts_once():
    twice = simulate(
        make("plain"), PARTS, faults=[Fault(i, t, "twice") for i in (0, 3) for t in (1, 2, 3)]
    )
    once = simulate(make("plain"), PARTS)
    np.testing.assert_array_equal(twice.centroids, once.centroids)


def test_a_late_answer_is_not_added_to_a_later_round():
    late = simulate(make("plain", rounds=3), PARTS, faults=[Fault(0, 1, "late")])
    dropped = simulate(make("plain", rounds=3), PARTS, faults=[Fault(0, 1, "drop")])
    np.testing.assert_array_equal(late.centroids, dropped.centroids)


@pytest.mark.parametrize(("trust", "kind"), list(itertools.product(TRUSTS, KINDS)))
def test_faults_in_the_enrolment_leave_the_others(trust, kind):
    strategy = make(trust)
    outcome = run_recorded(strategy, PARTS, faults=[Fault(4, 0, kind)], timeout=60)
    expected = 5 if kind in ("twice", "round") else 4  # an enrolment belongs to no round
    assert strategy.report.answers[-1] >= 4
    assert strategy.report.answers[0] == expected
    if expected == 4:
        who, when, reason = dropped(strategy)[0]
        assert (who, when) == (-1, 0)
        assert reason in (WHY[kind], MALFORMED)
    assert len(outcome.results) >= expected


@pytest.mark.parametrize(("trust", "kind"), list(itertools.product(TRUSTS, KINDS)))
def test_faults_in_the_delivery_are_reported(trust, kind):
    strategy = make(trust)
    outcome = run_recorded(strategy, PARTS, faults=[Fault(1, -1, kind)], timeout=60)
    assert strategy.report.answers == [5, 5, 5]
    assert {0, 2, 3, 4} <= set(outcome.results)
    if kind not in ("twice", "round"):
        assert dropped(strategy) == [(1, 4, WHY[kind])]


MANY = [np.random.default_rng(i).random((20 + i, 2)) for i in range(8)]


@pytest.mark.parametrize(("trust", "kind"), list(itertools.product(SHARED, KINDS)))
def test_sums_are_made_although_a_committee_member_fails(trust, kind):
    """Six sum-shares of eight open a sum, and correct one that is false."""
    strategy = make(trust)
    faults = [Fault(i, t, kind, trip="add") for i, t in ((0, 1), (5, 2), (7, 3))]
    outcome = run_recorded(strategy, MANY, faults=faults, timeout=60)
    assert strategy.report.answers == [8, 8, 8]
    assert strategy.report.round_trips == 2 * 3 + 2
    assert not dropped(strategy)
    assert len(outcome.results) == 8
    assert np.isfinite(outcome.one.centroids).all()
    found = [entry.client for entry in strategy.report.incidents if entry.reason == FALSE_SHARE]
    is_false = trust == "distributed-noise" and kind in ("round", "shape")
    assert found == ([0, 5, 7] if is_false else [])


@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize("kind", ["drop", "crash", "late", "type"])
def test_who_is_missing_in_add_is_asked_again(trust, kind):
    """Three of eight fail, and one more is needed: a round trip more, the same sum."""

    class Once(FaultyClientApp):
        def __call__(self, message, context):
            request = decode_request(from_content(message.content))
            try:
                return super().__call__(message, context)
            finally:
                if isinstance(request, Add):
                    place = (int(context.node_config["partition-id"]), request.t, "add")
                    self._faults.pop(place, None)

    strategy = make(trust)
    faults = [Fault(i, 2, kind, trip="add") for i in (1, 2, 6)]
    with mock.patch("harness.FaultyClientApp", Once):
        outcome = run_recorded(strategy, MANY, faults=faults, timeout=60)
    assert strategy.report.answers == [8, 8, 8]
    assert (strategy.report.repeats, strategy.report.round_trips) == (1, 2 * 3 + 3)
    assert len(outcome.results) == 8


def test_a_sighted_server_goes_on_without_a_sum_that_does_not_open():
    strategy = make("distributed-noise")
    faults = [Fault(i, 2, "drop", trip="add") for i in (1, 2, 6)]
    outcome = run_recorded(strategy, MANY, faults=faults, timeout=60)
    assert strategy.report.answers == [8, 0, 8]
    assert strategy.report.lost_rounds == [2]
    assert strategy.report.repeats == 2
    assert len(outcome.results) == 8
    np.testing.assert_array_equal(strategy.centroids, outcome.one.centroids)


def test_without_a_server_that_sees_sums_a_lost_round_ends_the_run():
    faults = [Fault(i, 2, "drop", trip="add") for i in (1, 2, 6)]
    with pytest.raises(RunError, match="sum-shares that open the sum of round 2"):
        simulate(make("clients-only"), MANY, faults=faults, timeout=60)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("kind", ["drop", "crash", "late", "shape", "round"])
@pytest.mark.parametrize("when", [1, 2, 3])
def test_too_few_answers_end_the_run_quickly_and_clearly(trust, kind, when):
    if kind == "round" and trust in BLIND:
        return  # three of five with one other tag are the larger group
    strategy = make(trust)
    started = time.monotonic()
    faults = [Fault(i, when, kind) for i in (0, 1, 2)]
    with pytest.raises(TooFewClientsError) as caught:
        simulate(strategy, PARTS, faults=faults, timeout=60)
    assert time.monotonic() - started < 30
    text = str(caught.value)
    expected = f"at least min_clients=3 answers to one query in round {when} of 3. Got 2 of 5"
    assert expected in text
    assert why(trust, kind) in text or kind in ("drop", "late")
    assert "\n" not in text
    assert strategy.report.n_rounds == when - 1


@pytest.mark.parametrize("trust", TRUSTS)
def test_too_few_enrolments_end_the_run_clearly(trust):
    with pytest.raises(TooFewClientsError, match=r"min_clients=3 clients to take part. Got 2"):
        simulate(make(trust), PARTS, faults=[Fault(i, 0, "crash") for i in (0, 1, 2)], timeout=60)


@pytest.mark.parametrize("trust", TRUSTS)
def test_nobody_at_the_delivery_is_an_error(trust):
    faults = [Fault(i, -1, "drop") for i in range(5)]
    with pytest.raises(RunError, match="delivery"):
        simulate(make(trust), PARTS, faults=faults, timeout=60)


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_second_attempt_saves_the_round(trust):
    """Two of five answer the first attempt, all of them the second."""

    class Once(FaultyClientApp):
        def __call__(self, message, context):
            request = decode_request(from_content(message.content))
            try:
                return super().__call__(message, context)
            finally:
                if isinstance(request, Ask):
                    place = (int(context.node_config["partition-id"]), request.t, "ask")
                    self._faults.pop(place, None)

    strategy = make(trust, max_attempts=2)
    faults = [Fault(i, 2, "crash") for i in (1, 3, 4)]
    with mock.patch("harness.FaultyClientApp", Once):
        outcome = run_recorded(strategy, PARTS, faults=faults, timeout=60)
    assert strategy.report.answers == [5, 5, 5]
    assert outcome.one is not None
    assert strategy.report.attempts == 4
    if trust == "plain":
        np.testing.assert_array_equal(
            outcome.one.centroids, simulate(make("plain"), PARTS).centroids
        )


@pytest.mark.parametrize("strategy", [GLloyd, SuLloyd])
def test_other_strategies_survive_all_kinds_at_once(strategy):
    run = strategy(
        2, BOX, PrivacyBudget(1.0, 0.0 if strategy is SuLloyd else None), n_records=110, n_rounds=3
    )
    faults = [Fault(i % 2, t, kind) for t, (i, kind) in enumerate(enumerate(KINDS[:3]), start=1)]
    clustering = simulate(run, PARTS, faults=faults, timeout=60)
    assert np.isfinite(clustering.centroids).all()
    assert len(clustering.report.dropped) == 3


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_never_give_a_silently_wrong_result(seed):
    """Every run ends with the survivors' exact result, or with an error that says why."""
    rng = np.random.default_rng(seed)
    faults = {
        (int(rng.integers(5)), int(rng.integers(1, 4))): KINDS[int(rng.integers(len(KINDS)))]
        for _ in range(6)
    }
    strategy = make("plain", min_clients=1)
    listed = [Fault(client, t, kind) for (client, t), kind in faults.items()]
    outcome = run_recorded(strategy, PARTS, faults=listed, timeout=60)
    missing = {(client, t) for (client, t), kind in faults.items() if kind != "twice"}
    assert {(who, when) for who, when, _ in dropped(strategy)} == missing
    algorithm = strategy.algorithm
    state = algorithm.initial_state(None)
    for t in (1, 2, 3):
        query = algorithm.query(state)
        present = [PARTS[i] for i in range(5) if (i, t) not in missing]
        total = np.sum([exact_statistic(algorithm, query, part) for part in present], axis=0)
        state = algorithm.update(state, algorithm.unflatten(total, t))
    np.testing.assert_array_equal(outcome.one.centroids, algorithm.centroids(state))


def test_the_protected_sum_of_survivors_is_exact_under_faults():
    """Without noise, a protected run with faults equals the plain one bit for bit."""
    faults = [Fault(0, 1, "drop"), Fault(3, 2, "crash"), Fault(1, 2, "late"), Fault(4, 3, "shape")]
    with without_noise():
        first, *others = (
            simulate(make(trust), PARTS, faults=faults, timeout=60)
            for trust in ("trusted-server", "oblivious-server", "clients-only", "distributed-noise")
        )
    for other in others:
        np.testing.assert_array_equal(first.centroids, other.centroids)
        np.testing.assert_array_equal(first.counts, other.counts)
    assert first.counts.sum() == round(first.counts.sum())


@pytest.mark.parametrize(
    ("client", "when", "kind"),
    [(-1, 1, "drop"), (0, -2, "drop"), (0, 1, "explode"), (0, 1, "DROP")],
)
def test_faults_that_do_not_exist_are_refused(client, when, kind):
    with pytest.raises(ConfigurationError):
        Fault(client, when, kind)


@pytest.mark.parametrize(
    ("when", "trip", "match"),
    [(1, "finish", "trip"), (1, "Add", "trip"), (1, None, "trip"), (0, "add", "round >= 1")],
)
def test_round_trips_that_do_not_exist_are_refused(when, trip, match):
    with pytest.raises(ConfigurationError, match=match):
        Fault(0, when, "drop", trip=trip)


@pytest.mark.parametrize("trust", TRUSTS)
def test_faults_in_a_round_trip_that_a_run_never_has_are_refused(trust):
    faults = [Fault(0, 1, "crash", trip="add")]
    if trust in SHARED:
        assert simulate(make(trust), PARTS, faults=faults).report.answers == [5, 5, 5]
    else:
        with pytest.raises(ConfigurationError, match="add"):
            simulate(make(trust), PARTS, faults=faults)


def test_reasons_are_fixed_sentences():
    sentences = {code.sentence for code in Code} | {*WHY.values()}
    strategy = make("oblivious-server")
    faults = [Fault(i, t, kind) for i, (t, kind) in enumerate([(1, "crash"), (2, "type")])]
    simulate(strategy, PARTS, faults=faults, timeout=60)
    assert {entry.reason for entry in strategy.report.incidents} <= sentences
