"""Every fault under every trust model: the run goes on, and the report says who, when and why."""

import itertools
import time

import numpy as np
import pytest
from harness import run_recorded

from flower_kmeans import Box, Fault, PrivacyBudget, simulate
from flower_kmeans.errors import ConfigurationError, RunError, TooFewClientsError
from flower_kmeans.faults import FaultKind
from flower_kmeans.federation.codes import Code
from flower_kmeans.federation.coordinator import CRASHED, STRAY
from flower_kmeans.federation.enrolment import MALFORMED, NO_ANSWER, TWICE
from flower_kmeans.strategies import FastLloyd, GLloyd, Lloyd, SuLloyd

KINDS = FaultKind.__args__
# Trust models, and how sums are opened where that makes a difference.
TRUSTS = (
    "oblivious-server",
    "distributed-noise deferred",
    "distributed-noise immediate",
    "distributed-noise simple",
    "trusted-server",
    "plain",
)
BOX = Box([0.0, 0.0], [1.0, 1.0])
PARTS = [np.random.default_rng(i).random((20 + i, 2)) for i in range(5)]

WHY = {
    "drop": NO_ANSWER,
    "late": NO_ANSWER,
    "crash": CRASHED,
    "shape": MALFORMED,
    "type": MALFORMED,
    "round": STRAY,
    "run": STRAY,
}


def make(trust, rounds=3, **options):
    options.setdefault("min_clients", 3)
    if trust == "plain":
        return Lloyd(2, BOX, n_rounds=rounds, **options)
    trust, _, opening = trust.partition(" ")
    if opening:
        options["opening"] = opening
    return FastLloyd(
        2, BOX, PrivacyBudget(1.0), n_records=110, trust=trust, n_rounds=rounds, **options
    )


def told(strategy):
    return [(entry.client, entry.round, entry.reason) for entry in strategy.report.dropped]


@pytest.mark.parametrize(("trust", "kind"), list(itertools.product(TRUSTS, KINDS)))
def test_a_run_goes_on_without_a_faulty_client(trust, kind):
    strategy = make(trust)
    started = time.monotonic()
    outcome = run_recorded(strategy, PARTS, faults=[Fault(2, 2, kind)], timeout=60)
    assert time.monotonic() - started < 30  # nobody waits for what is lost
    if kind == "twice":
        assert told(strategy) == []
        assert strategy.report.answers == [5, 5, 5]
        assert (2, 2, TWICE) in [
            (entry.client, entry.round, entry.reason) for entry in strategy.report.incidents
        ]
    else:
        assert told(strategy) == [(2, 2, WHY[kind])]
        assert strategy.report.answers == [5, 4, 5]
    assert len(outcome.results) == 5
    assert outcome.one.centroids.shape == (2, 2)
    assert np.isfinite(outcome.one.centroids).all()
    report = strategy.report
    (node,) = {entry.node_id for entry in (*report.dropped, *report.incidents)}
    assert node == sorted(outcome.grid.states)[2]


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
    assert (0, 2, STRAY) in [(e.client, e.round, e.reason) for e in late.report.incidents]


@pytest.mark.parametrize(("trust", "kind"), list(itertools.product(TRUSTS, KINDS)))
def test_faults_in_the_enrolment_leave_the_others(trust, kind):
    strategy = make(trust)
    outcome = run_recorded(strategy, PARTS, faults=[Fault(4, 0, kind)], timeout=60)
    expected = 5 if kind == "twice" else 4
    assert strategy.report.answers[-1] >= 4
    assert strategy.report.answers[0] == expected
    if kind != "twice":
        who, when, why = told(strategy)[0]
        assert (who, when) == (-1, 0)
        assert why in (WHY[kind], MALFORMED)
    assert len(outcome.results) >= expected


@pytest.mark.parametrize(("trust", "kind"), list(itertools.product(TRUSTS, KINDS)))
def test_faults_in_the_delivery_are_reported(trust, kind):
    strategy = make(trust)
    outcome = run_recorded(strategy, PARTS, faults=[Fault(1, -1, kind)], timeout=60)
    assert strategy.report.answers == [5, 5, 5]
    assert {0, 2, 3, 4} <= set(outcome.results)
    if kind in ("drop", "crash", "late", "run"):
        ((who, when, why),) = told(strategy)
        assert (who, when) == (1, 4)
        assert why == WHY[kind]


@pytest.mark.parametrize(
    ("opening", "failing"), [("deferred", (0, 1)), ("immediate", (0, 1)), ("simple", (0, 1, 2))]
)
@pytest.mark.parametrize("kind", ["drop", "crash", "late", "type"])
def test_sums_are_opened_although_some_who_could_open_them_fail(opening, failing, kind):
    """As many as can be spared fail in the next round and at the delivery."""
    strategy = make(f"distributed-noise {opening}", rounds=3, min_clients=2)
    faults = [Fault(i, t, kind) for i in failing for t in (2, -1)]
    outcome = run_recorded(strategy, PARTS, faults=faults, timeout=60)
    assert strategy.report.answers == [5, 5 - len(failing), 5]
    assert set(outcome.results) >= {3, 4}
    np.testing.assert_array_equal(strategy.centroids, outcome.one.centroids)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("kind", ["drop", "crash", "late", "shape", "round"])
@pytest.mark.parametrize("when", [1, 2, 3])
def test_too_few_answers_end_the_run_quickly_and_clearly(trust, kind, when):
    strategy = make(trust)
    started = time.monotonic()
    faults = [Fault(i, when, kind) for i in (0, 1, 2)]
    with pytest.raises(TooFewClientsError) as caught:
        simulate(strategy, PARTS, faults=faults, timeout=60)
    assert time.monotonic() - started < 30
    text = str(caught.value)
    assert f"at least min_clients=3 answers in round {when} of 3. Got 2 of 5" in text
    assert WHY[kind] in text or kind in ("drop", "late")
    assert "\n" not in text
    assert strategy.report.n_rounds == when - 1


@pytest.mark.parametrize("trust", TRUSTS)
def test_too_few_enrolments_end_the_run_clearly(trust):
    with pytest.raises(TooFewClientsError, match=r"min_clients=3 clients to take part. Got 2"):
        simulate(make(trust), PARTS, faults=[Fault(i, 0, "crash") for i in (0, 1, 2)], timeout=60)


@pytest.mark.parametrize("trust", TRUSTS)
def test_nobody_at_the_delivery_is_an_error(trust):
    faults = [Fault(i, -1, "drop") for i in range(5)]
    with pytest.raises(RunError, match=r"delivery|opened"):
        simulate(make(trust), PARTS, faults=faults, timeout=60)


@pytest.mark.parametrize("trust", TRUSTS)
def test_a_second_attempt_saves_the_round(trust):
    """Two of five answer the first attempt, all of them the second."""
    from flower_kmeans.faults import FaultyClientApp

    class Once(FaultyClientApp):
        def __call__(self, message, context):
            record = message.content.config_records["kmeans"]
            try:
                return super().__call__(message, context)
            finally:
                if record["kind"] == "round":
                    place = (int(context.node_config["partition-id"]), int(record["t"]), "answer")
                    self._faults.pop(place, None)

    import harness

    original = harness.FaultyClientApp
    harness.FaultyClientApp = Once
    try:
        strategy = make(trust, max_attempts=2)
        faults = [Fault(i, 2, "crash") for i in (1, 3, 4)]
        outcome = run_recorded(strategy, PARTS, faults=faults, timeout=60)
    finally:
        harness.FaultyClientApp = original
    assert strategy.report.answers == [5, 5, 5]
    assert outcome.one is not None
    entry = strategy._run_state.closed[1].entry
    assert entry.attempt == 2
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
    assert {(who, when) for who, when, _ in told(strategy)} == missing
    algorithm, run = strategy.algorithm, strategy._run_state.run
    from harness import exact_statistic

    state = algorithm.initial_state(None)
    for t in (1, 2, 3):
        question = algorithm.query(state)
        present = [PARTS[i] for i in range(5) if (i, t) not in missing]
        total = np.sum([exact_statistic(run, question, part) for part in present], axis=0)
        state = algorithm.update(state, algorithm.unflatten(total, t))
    np.testing.assert_array_equal(outcome.one.centroids, algorithm.centroids(state))


def test_the_masked_sum_of_survivors_is_exact_under_faults(monkeypatch):
    """Without noise, a masked run with faults equals the unmasked one bit for bit."""
    monkeypatch.setattr(
        "flower_kmeans.federation.coordinator.server_noise",
        lambda algorithm, plan, question, stream: np.zeros(
            algorithm.words(question.round), dtype=np.int64
        ),
    )
    faults = [Fault(0, 1, "drop"), Fault(3, 2, "crash"), Fault(1, 2, "late"), Fault(4, 3, "shape")]
    results = [
        simulate(make(trust), PARTS, faults=faults, timeout=60)
        for trust in ("oblivious-server", "trusted-server")
    ]
    np.testing.assert_array_equal(results[0].centroids, results[1].centroids)
    np.testing.assert_array_equal(results[0].counts, results[1].counts)
    assert results[0].counts.sum() == round(results[0].counts.sum())


@pytest.mark.parametrize(
    ("client", "when", "kind"),
    [(-1, 1, "drop"), (0, -2, "drop"), (0, 1, "explode"), (0, 1, "DROP")],
)
def test_faults_that_do_not_exist_are_refused(client, when, kind):
    with pytest.raises(ConfigurationError):
        Fault(client, when, kind)


@pytest.mark.parametrize(
    ("when", "hop", "match"),
    [(1, "finish", "hop"), (1, "Open", "hop"), (1, None, "hop"), (0, "open", "round >= 1")],
)
def test_hops_that_do_not_exist_are_refused(when, hop, match):
    with pytest.raises(ConfigurationError, match=match):
        Fault(0, when, "drop", hop=hop)


@pytest.mark.parametrize("trust", TRUSTS)
def test_faults_in_a_hop_that_a_run_never_has_are_refused(trust):
    faults = [Fault(0, 1, "crash", hop="open")]
    if trust.startswith("distributed-noise"):
        assert simulate(make(trust), PARTS, faults=faults).report.answers == [5, 5, 5]
    else:
        with pytest.raises(ConfigurationError, match="open"):
            simulate(make(trust), PARTS, faults=faults)


def test_reasons_are_fixed_sentences():
    sentences = {code.sentence for code in Code} | {*WHY.values(), TWICE}
    strategy = make("oblivious-server")
    faults = [Fault(i, t, kind) for i, (t, kind) in enumerate([(1, "crash"), (2, "type")])]
    simulate(strategy, PARTS, faults=faults, timeout=60)
    assert {entry.reason for entry in strategy.report.incidents} <= sentences
