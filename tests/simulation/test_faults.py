"""Every fault at every point, in every mode: one result that is right, or an error.

Without noise a run's result follows from which clients were in each sum, so it is
computed here again from the records and compared bit for bit.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from flwr.supercore.run import Run
from harness import (
    SIMULATED,
    exact_statistic,
    run_recorded,
    without_noise,
    write_roster,
)

from flower_kmeans import Box, Fault, PrivacyBudget, simulate
from flower_kmeans.errors import ConfigurationError, RunError, TooFewClientsError
from flower_kmeans.protocol.exchange import CRASHED, MALFORMED
from flower_kmeans.protocol.incidents import DIFFERS, FALSE_SHARE, NO_ANSWER, STRAY
from flower_kmeans.protocol.messages import Code, decode_request
from flower_kmeans.protocol.wire import from_content
from flower_kmeans.simulation.faults import (
    FaultKind,
    FaultyClientApp,
    FaultyGrid,
    _moment_of,
)
from flower_kmeans.simulation.in_process import InProcessGrid
from flower_kmeans.strategies import GLloyd, Lloyd

KINDS = FaultKind.__args__
BOX = Box([0.0, 0.0], [1.0, 1.0])
N = 9  # the committee of all of them opens a sum with 7 sum-shares
PARTS = [np.random.default_rng(i).random((20 + i, 2)) for i in range(N)]
N_RECORDS = sum(map(len, PARTS))
PROTECTED = ("oblivious-server", "distributed-noise", "clients-only")
SHARED = ("distributed-noise", "clients-only")
BLIND = ("oblivious-server", "clients-only")
MODES = [*itertools.product(PROTECTED, ("roster", "relayed"))]
MODES += [("trusted-server", "none"), ("plain", "none")]
FAULTY = 3


def make(trust, kind=GLloyd, rounds=3, **options):
    given = {"n_rounds": rounds, "min_clients": 4, "n_clients": N, **options}
    if trust == "plain":
        return Lloyd(2, BOX, **given)
    return kind(2, BOX, PrivacyBudget(1.0), n_records=N_RECORDS, trust=trust, **given)


@pytest.fixture
def play(tmp_path):
    """Return a function that runs a strategy without noise over all parts."""

    def run(
        trust,
        keys="relayed",
        faults=(),
        *,
        on_push=None,
        wrap=None,
        timeout=60,
        **options,
    ):
        policies = None
        if keys == "roster":
            options["roster_file"], policies = write_roster(tmp_path, N)
            options["keys"] = "roster"
        strategy = make(trust, **options)
        with without_noise():
            return run_recorded(
                strategy,
                PARTS,
                policy=policies,
                faults=faults,
                on_push=on_push,
                timeout=timeout,
            )

    return run


def participants(report, t):
    """Return who was in the sum of round t."""
    dropped = {entry.client for entry in report.dropped if entry.round == t}
    present = set(range(N)) - dropped
    # who has no slot is not there to be dropped
    if len(present) > report.answers[t - 1]:
        present.discard(FAULTY)
    assert len(present) == report.answers[t - 1]
    return present


def expected(outcome):
    """Return the result that follows from the records of those in each sum."""
    report, algorithm = outcome.strategy.report, outcome.strategy.algorithm
    state = algorithm.initial_state(None)
    for t, n in enumerate(report.answers, start=1):
        if n == 0:
            state = state.without_sum()
            continue
        query, who = algorithm.query(state), participants(report, t)
        total = sum(exact_statistic(algorithm, query, PARTS[i]) for i in who)
        state = algorithm.update(
            state, algorithm.layout(t).unflatten(total, len(who) / report.n_slots)
        )
    return algorithm.centroids(state), algorithm.counts(state)


def is_right(outcome, at_least=N):
    """Require one result at all clients that have one: that of the records."""
    assert len(outcome.results) >= at_least
    centroids, counts = expected(outcome)
    np.testing.assert_array_equal(outcome.one.centroids, centroids)
    np.testing.assert_array_equal(outcome.one.counts, counts)


def reasons(strategy, client=FAULTY):
    report = strategy.report
    return {
        e.reason
        for e in (*report.dropped, *report.incidents)
        if e.client in (client, -1)
    }


def base_trips(trust, rounds=3):
    more = {"oblivious-server": 3, "trusted-server": 2, "plain": 2}
    return rounds + more[trust] if trust in more else 2 * rounds + 2


# --------------------------------------------------------------------------- the matrix


WHY = {
    "drop": NO_ANSWER, "late": NO_ANSWER, "crash": CRASHED, "type": MALFORMED, "run": STRAY,
}  # fmt: skip


@pytest.mark.claim("how-a-run-works", "computes-another-query-other")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(
    ("t", "kind"), [(None, None), *itertools.product([1, 3], KINDS)]
)
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_fault_in_an_answer_costs_that_answer(trust, keys, t, kind, play):
    outcome = play(trust, keys, [Fault(FAULTY, t, kind)] if kind else ())
    report = outcome.strategy.report
    is_right(outcome)
    lost = set() if kind == "twice" else {t}
    assert report.answers == [N - (each in lost) for each in (1, 2, 3)]
    assert report.round_trips == base_trips(trust)  # nobody is asked again
    if kind in (None, "twice"):
        assert report.dropped == []
        assert kind or report.incidents == []
    elif kind in WHY:
        assert WHY[kind] in reasons(outcome.strategy)
    else:
        assert reasons(outcome.strategy) & {MALFORMED, DIFFERS}


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [1, 3])
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", SHARED)
def test_a_fault_in_a_sum_share_costs_nothing(trust, keys, t, kind, play):
    """Also a false one: a server that opens finds it, and clients cannot unseal it."""
    outcome = play(trust, keys, [Fault(FAULTY, t, kind, "add")])
    report = outcome.strategy.report
    is_right(outcome)
    assert report.answers == [N] * 3
    assert report.round_trips == base_trips(trust)
    found = {entry.client for entry in report.incidents if entry.reason == FALSE_SHARE}
    assert found <= {FAULTY}
    assert found or (trust, kind) != ("distributed-noise", "round")


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", [0, -1])
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_fault_in_the_enrolment_or_the_delivery_leaves_the_others(
    trust, keys, t, kind, play
):
    outcome = play(trust, keys, [Fault(FAULTY, t, kind)])
    report = outcome.strategy.report
    is_right(outcome, at_least=N - 1)
    assert min(report.answers) >= N - 1
    if t == -1:
        assert report.answers == [N] * 3
        undelivered = {entry.client for entry in report.dropped if entry.round == 4}
        assert undelivered == (set() if kind in ("twice", "round") else {FAULTY})


# ------------------------------------------------------------------ between ask and add


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("keys", ["roster", "relayed"])
@pytest.mark.parametrize("trust", SHARED)
@pytest.mark.parametrize(("gone", "more"), [(1, 0), (2, 0), (3, 2), (4, 2)])
def test_members_that_answer_and_then_go(trust, keys, gone, more, play):
    """Their vectors are in the sum: 7 of 9 open it, and fewer are asked twice more."""
    faults = [Fault(i, 2, "drop", "add") for i in range(gone)]
    if gone > 2 and trust == "clients-only":
        with pytest.raises(RunError, match=r"Expected 7 sum-shares.*round 2"):
            play(trust, keys, faults)
        return
    outcome = play(trust, keys, faults)
    report = outcome.strategy.report
    is_right(outcome)
    # a server that asks goes on without it
    assert report.lost_rounds == ([2] if gone > 2 else [])
    assert gone > 2 or report.answers == [N] * 3
    assert report.round_trips == base_trips(trust) + more


@pytest.mark.parametrize("trust", SHARED)
def test_members_that_are_lost_once_are_asked_again(trust, play, monkeypatch):
    """The same sum, without new noise and without a charge."""
    once(monkeypatch)
    faults = [Fault(i, 2, "crash", "add") for i in range(4)]
    outcome = play(trust, "roster", faults)
    is_right(outcome)
    report = outcome.strategy.report
    assert (report.answers, report.repeats, report.attempts) == ([N] * 3, 1, 3)
    assert report.round_trips == base_trips(trust) + 1


def once(monkeypatch):
    """Let each fault happen the first time only."""
    call = FaultyClientApp.__call__

    def and_then_never(self, message, context):
        moment = (
            int(context.node_config["partition-id"]),
            *(_moment_of(message) or ()),
        )
        try:
            return call(self, message, context)
        finally:
            self._faults.pop(moment, None)

    monkeypatch.setattr(FaultyClientApp, "__call__", and_then_never)


@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_asking_again_saves_a_round_without_another_attempt(
    trust, keys, play, monkeypatch
):
    once(monkeypatch)
    faults = [Fault(i, 2, "crash") for i in range(6)]
    outcome = play(trust, keys, faults)
    is_right(outcome)
    report = outcome.strategy.report
    assert report.answers == [N] * 3
    assert (report.attempts, report.repeats) == (3, 1)
    assert report.round_trips == base_trips(trust) + 1


# ----------------------------------------------------------------------------- restarts


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("when", ["enrol", "ask", "add", "finish"])
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_a_client_that_restarts(trust, keys, when, ledger, tmp_path):
    """With a ledger nothing is lost; without one the client comes back in a new session.

    It is out of an attempt or two, and it has a result if it can follow the run again.
    """
    options, policies, done = {}, [SIMULATED] * N, []
    if keys == "roster":
        options["roster_file"], policies = write_roster(tmp_path, N)
        options["keys"] = "roster"
    if ledger:
        policies = [
            replace(p, state_dir=str(tmp_path / f"l{i}"))
            for i, p in enumerate(policies)
        ]
    strategy = make(trust, rounds=5, **options)
    first = {
        "enrol": ("ask", 1),
        "ask": ("ask", 2),
        "add": ("add", 2),
        "finish": ("finish", None),
    }

    def restart(grid, messages):
        request = decode_request(from_content(messages[0].content))
        found = type(request).__name__.lower(), getattr(request, "t", None)
        if not done and found == first[when]:
            done.append(True)
            grid.states[sorted(grid.states)[FAULTY]].clear()

    with without_noise():
        outcome = run_recorded(
            strategy, PARTS, policy=policies, on_push=restart, timeout=60
        )
    report = strategy.report
    # others have no such round trip
    assert bool(done) == (when != "add" or trust in SHARED)
    lost = not ledger and bool(done)
    # no session is left for a result
    is_right(outcome, at_least=N - (lost and when == "finish"))
    # It lacks the document, then it has a new session, then it lacks the group key.
    assert sum(N - n for n in report.answers) <= (3 if lost else 0)
    more = report.round_trips - base_trips(trust, 5) - (lost and when == "finish")
    # Of a blind server it asks for the group key: two trips, or one if an envelope is
    # there.
    assert 0 <= more <= (2 if lost and trust in BLIND else 0)


# ----------------------------------------------------------------------------- too many


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("trust", "keys"), MODES)
@pytest.mark.parametrize(
    ("t", "kind"), [(0, "crash"), (1, "drop"), (2, "crash"), (3, "shape"), (-1, "drop")]
)
def test_too_few_replies_end_the_run_clearly(trust, keys, t, kind, play):
    faulty = range(N) if t < 0 else range(6)
    found = {
        0: r"min_clients=4 clients to take part\. Got 3 of 9",
        -1: "No client confirmed the delivery",
    }.get(
        t, f"at least min_clients=4 answers to one query in round {t} of 3. Got 3 of 9"
    )
    with pytest.raises((TooFewClientsError, RunError), match=found) as caught:
        play(trust, keys, [Fault(i, t, kind) for i in faulty])
    assert "\n" not in str(caught.value)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("trust", "keys"), MODES)
def test_random_faults_never_give_a_silently_wrong_result(trust, keys, seed, play):
    """Every run ends with the exact result of those in its sums, or with an error."""
    rng = np.random.default_rng([seed, MODES.index((trust, keys))])
    chosen = {}
    for _ in range(6):
        trip = "add" if trust in SHARED and rng.random() < 0.5 else "ask"
        t = int(rng.integers(1, 4))
        chosen[(int(rng.integers(N)), t, trip)] = KINDS[int(rng.integers(len(KINDS)))]
    faults = [
        Fault(client, t, kind, trip) for (client, t, trip), kind in chosen.items()
    ]
    try:
        outcome = play(trust, keys, faults)
    except (RunError, TooFewClientsError):
        return
    is_right(outcome, at_least=N - 3)


# ---------------------------------------------------------------------- what faults are


@pytest.mark.parametrize(
    ("client", "when", "kind", "trip", "match"),
    [
        (-1, 1, "drop", "ask", "client >= 0"),
        (0, -2, "drop", "ask", "round >= -1"),
        (0, 1, "explode", "ask", "kind"),
        (0, 1, "DROP", "ask", "kind"),
        (0, 1, "drop", "finish", "trip"),
        (0, 1, "drop", None, "trip"),
        (0, 0, "drop", "add", "round >= 1"),
    ],
)
def test_faults_that_do_not_exist_are_refused(client, when, kind, trip, match):
    with pytest.raises(ConfigurationError, match=match):
        Fault(client, when, kind, trip)


@pytest.mark.parametrize("trust", ["oblivious-server", "trusted-server", "plain"])
def test_faults_in_a_round_trip_that_a_run_never_has_are_refused(trust):
    with pytest.raises(ConfigurationError, match="add"):
        simulate(make(trust), PARTS, faults=[Fault(0, 1, "crash", trip="add")])


def test_reasons_are_fixed_sentences(play):
    known = {code.sentence for code in Code} | {*WHY.values()}
    outcome = play(
        "oblivious-server", faults=[Fault(0, 1, "crash"), Fault(1, 2, "type")]
    )
    assert {entry.reason for entry in outcome.strategy.report.incidents} <= known


def test_a_faulty_grid_sets_the_run_of_the_grid_in_it():
    inner = InProcessGrid(lambda message, context: message, 1)
    grid = FaultyGrid(inner)
    run = Run.create_empty(run_id=7)
    grid.set_run(run)
    assert grid.run is inner.run is run
