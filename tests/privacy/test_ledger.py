"""A node's account: nothing is sent that was not charged, whoever else writes, whatever dies."""

import errno
import math
import multiprocessing
import os
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace

import pytest
from ledger_workers import (
    CRASHED,
    DELTA,
    answer_of,
    charge,
    crash_with_a_hot_journal,
    die,
    gaussian_plan,
    laplace_plan,
    price,
    race_for_answers,
    race_for_budget,
    row_sizes,
    unfinished,
)

from flower_kmeans.errors import BudgetError, LedgerError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.filter import charge_of, price_of
from flower_kmeans.privacy.ledger import (
    FORGET_AFTER,
    MAX_UNANSWERED,
    AnotherAnswerError,
    Ledger,
    LedgerAnswer,
    LifetimeLimit,
    MemoryChangedError,
    StaleAnswerError,
    Vote,
    spent_by_unit,
    spent_epsilon,
)
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.privacy.release import Release

LOOSE = LifetimeLimit(100.0, DELTA)
PLAN = gaussian_plan()
RUN = answer_of().run
SPAWN = multiprocessing.get_context("spawn")
USES = [Ledger, lambda state_dir: spent_epsilon(state_dir, DELTA)]


@pytest.fixture
def state_dir(tmp_path):
    return tmp_path / "state"


def connection(ledger):
    """Return the ledger's own connection, of which a test counts the work or limits the room."""
    return ledger._db


def tamper(state_dir, statement, *values):
    """Change a ledger's file from outside."""
    with closing(sqlite3.connect(state_dir / FILE_NAME, isolation_level=None)) as other:
        other.execute(statement, values)


@pytest.fixture
def ledger(state_dir):
    with Ledger(state_dir) as opened:
        yield opened


def cost(times):
    """Return what that many runs of the plan cost together."""
    if not times:
        return 0.0
    return pytest.approx(epsilon_of_mu(PLAN.mu * times**0.5, DELTA), rel=1e-9)


def limit(times):
    """Return a limit that so many runs of the plan just keep."""
    return LifetimeLimit(epsilon_of_mu(PLAN.mu * times**0.5, DELTA) * 1.0001, DELTA)


def end(ledger, run=RUN):
    return ledger.end(run, ledger.load(run)[0], b"over")


def vote(ledger, run=RUN, t=1, plan=PLAN, given=LOOSE, memory=b"voted"):
    """Vote for a sum of a round, from the memory that the ledger has of the run."""
    version, _ = ledger.load(run) or (0, b"")
    return ledger.vote(Vote(run, t, b"v" * 32), price(plan), given, version, memory)


def number(i):
    return i.to_bytes(32, "big")


def content_of(state_dir):
    """Return all rows of all tables."""
    with closing(sqlite3.connect(state_dir / FILE_NAME)) as db:
        return [
            sorted(db.execute(f"SELECT * FROM {name}"))  # noqa: S608
            for name in ("runs", "sums")
        ]


def processes(worker, *arguments):
    """Run one process for each tuple of arguments, all at once; return their exit codes."""
    started = [SPAWN.Process(target=worker, args=given) for given in arguments]
    for process in started:
        process.start()
    for process in started:
        process.join(600)
    return [process.exitcode for process in started]


def side_by_side(worker, *arguments):
    """Let a worker run in two processes at once; return both results."""
    barrier, results = SPAWN.Barrier(2), SPAWN.Queue()
    assert processes(worker, *((barrier, results, *rest) for rest in arguments)) == [
        0,
        0,
    ]
    return [results.get(timeout=600) for _ in range(2)]


# ---------------------------------------------------------------------- what is charged


def test_a_round_is_charged_once_whatever_the_sessions_and_the_attempts(ledger):
    """Changed records and new sessions give other answers, of which one sum opens."""
    assert ledger.epsilon(DELTA) == 0
    for t in (1, 2, 3):
        for attempt in (1, 2, 3):
            answer = answer_of(t=t, attempt=attempt, context=10 * t + attempt)
            version, _ = ledger.load(RUN) or (0, b"")
            # A new session lies where the old one was; what the ledger knows stays.
            version = ledger.save(RUN, version, bytes([attempt]))
            version = ledger.charge(answer, price(PLAN), LOOSE, version, b"answered")
            # The same again costs nothing, also beyond a limit that was tightened.
            ledger.charge(
                answer, price(PLAN), LifetimeLimit(1e-3, DELTA), version, b"answered"
            )
            assert ledger.epsilon(DELTA) == cost(1)
            assert ledger.last_answer(RUN) == (
                t,
                attempt,
                answer.context,
                answer.digest,
                answer.query,
            )
    end(ledger)
    assert ledger.epsilon(DELTA) == cost(1)  # all was answered


@pytest.mark.parametrize("unit", ["record", "client"])
def test_runs_compose_and_not_by_adding_epsilons(ledger, unit):
    plan = gaussian_plan(unit=unit)
    for run in range(1, 5):
        charge(ledger, answer_of(run), plan, LOOSE)
    assert ledger.epsilon(DELTA) == cost(4)
    assert ledger.epsilon(DELTA) < 4 * plan.epsilon()


def test_laplace_releases_count_as_the_gaussian_ones_that_cover_them(ledger):
    pure = laplace_plan()
    charge(ledger, answer_of(1), pure, LOOSE)
    for delta in (DELTA, 0.0):
        # the sum of pure epsilons
        assert ledger.epsilon(delta) == pytest.approx(1.0, rel=1e-12)
    charge(ledger, answer_of(2, t=2), PLAN, LOOSE)
    assert ledger.epsilon(0.0) == math.inf
    square = charge_of(pure.releases[:1]).mu ** 2
    for parts, laplace in ((1, 2), (1 / 3, 1)):
        total = (parts * PLAN.mu**2 + laplace * square) ** 0.5
        assert ledger.epsilon(DELTA) == pytest.approx(
            epsilon_of_mu(total, DELTA), rel=1e-9
        )
        for run in (1, 2):  # gives back what was not answered
            end(ledger, answer_of(run).run)


@pytest.mark.parametrize("first", ["record", "client"])
@pytest.mark.parametrize("move", [None, 0.25])
def test_beside_runs_for_records_a_run_for_clients_counts_what_one_record_moves(
    ledger, state_dir, first, move
):
    plans = {"record": PLAN, "client": gaussian_plan(unit="client")}
    moves = [[move] * len(releases) for releases in PLAN.rounds] if move else None
    prices = {unit: price_of(unit, plan.rounds, moves) for unit, plan in plans.items()}
    ledger.charge(answer_of(1), prices[first], LOOSE, 0, b"")
    assert ledger.epsilon(DELTA) == cost(1)
    other = prices["client" if first == "record" else "record"]
    both = epsilon_of_mu(PLAN.mu * (1 + (move or 2.0) ** 2) ** 0.5, DELTA)
    few, enough = (LifetimeLimit(both * factor, DELTA) for factor in (0.999, 1.001))
    with pytest.raises(BudgetError):
        ledger.require_room(answer_of(2).run, other, few)
    with pytest.raises(BudgetError):
        ledger.charge(answer_of(2), other, few, 0, b"")
    ledger.require_room(answer_of(2).run, other, enough)
    ledger.charge(answer_of(2), other, enough, 0, b"")
    assert ledger.epsilon(DELTA) == pytest.approx(both, rel=1e-9)
    assert spent_epsilon(state_dir, DELTA) == ledger.epsilon(DELTA)


def person_price(unit):
    """Return the price of a run without the plan's unit, which no plan needs here."""
    return price_of(unit, PLAN.rounds)


@pytest.mark.claim("threat-model", "ledger-units")
def test_each_unit_has_a_sum_until_a_run_does_not_cover_it(ledger, state_dir):
    assert spent_by_unit(state_dir, DELTA) == {"client": 0, "person": 0, "record": 0}
    ledger.charge(answer_of(1), person_price("client"), LOOSE, 0, b"")
    assert spent_by_unit(state_dir, DELTA) == {
        "client": cost(1),
        "person": cost(4),
        "record": cost(4),
    }
    assert ledger.epsilon(DELTA) == cost(1)
    ledger.charge(answer_of(2), person_price("person"), LOOSE, 0, b"")
    assert spent_by_unit(state_dir, DELTA) == {
        "client": None,
        "person": cost(5),
        "record": cost(5),
    }
    assert ledger.epsilon(DELTA) == cost(5)
    ledger.charge(answer_of(3), person_price("record"), LOOSE, 0, b"")
    for run in (4, 5):
        assert spent_by_unit(state_dir, DELTA) == {
            "client": None,
            "person": None,
            "record": cost(run + 2),
        }
        # Neither a later run for persons nor one for clients brings a number back.
        unit = {4: "person", 5: "record"}[run]
        ledger.charge(answer_of(run), person_price(unit), LOOSE, 0, b"")
    assert spent_epsilon(state_dir, DELTA) == ledger.epsilon(DELTA) == cost(8)


@pytest.mark.claim("threat-model", "ledger-units")
def test_the_limit_is_for_persons_if_all_runs_cover_them(ledger):
    ledger.charge(answer_of(1), person_price("person"), LOOSE, 0, b"")
    of_client = person_price("client")
    with pytest.raises(BudgetError):
        ledger.charge(answer_of(2), of_client, limit(4), 0, b"")
    ledger.charge(answer_of(2), of_client, limit(5), 0, b"")
    assert ledger.epsilon(DELTA) == cost(5)


def for_persons_at(clients, times=1000):
    """Return a limit for persons at up to so many clients."""
    return replace(limit(times), max_clients_per_person=clients)


def test_a_person_at_several_clients_is_charged_at_each(ledger, state_dir):
    """With g clients, a run for clients costs a person (2 g)^2 times mu^2."""
    ledger.charge(answer_of(1), person_price("client"), for_persons_at(5), 0, b"")
    expected = {"client": cost(1), "person": cost(100), "record": cost(4)}
    assert spent_by_unit(state_dir, DELTA) == expected
    of_persons = person_price("person")
    few, enough = for_persons_at(5, 100), for_persons_at(5, 101)
    with pytest.raises(BudgetError):
        ledger.require_room(answer_of(2).run, of_persons, few)
    with pytest.raises(BudgetError):
        ledger.charge(answer_of(2), of_persons, few, 0, b"")
    ledger.require_room(answer_of(2).run, of_persons, enough)
    ledger.charge(answer_of(2), of_persons, enough, 0, b"")
    assert spent_epsilon(state_dir, DELTA) == cost(101)
    # A further run for clients would cost 100 times as much.
    of_clients = person_price("client")
    with pytest.raises(BudgetError):
        ledger.require_room(answer_of(3).run, of_clients, for_persons_at(5, 200))
    ledger.require_room(answer_of(3).run, of_clients, for_persons_at(5, 201))


def test_the_sum_for_a_person_grows_with_the_policys_clients_and_never_shrinks(
    ledger, state_dir
):
    ledger.charge(answer_of(1), person_price("client"), for_persons_at(1), 0, b"")
    ledger.charge(answer_of(2), person_price("person"), for_persons_at(1), 0, b"")
    assert spent_by_unit(state_dir, DELTA)["person"] == cost(5)
    # What is read for a policy with more clients is what the next run is added to.
    assert spent_by_unit(state_dir, DELTA, 3)["person"] == cost(45)
    assert spent_epsilon(state_dir, DELTA, 3) == cost(45)
    with pytest.raises(BudgetError):
        ledger.require_room(
            answer_of(2).run, person_price("person"), for_persons_at(3, 44)
        )
    ledger.require_room(answer_of(2).run, person_price("person"), for_persons_at(3, 45))
    ledger.charge(answer_of(3), person_price("client"), for_persons_at(3, 81), 0, b"")
    assert spent_by_unit(state_dir, DELTA)["person"] == cost(81)
    # The runs of a policy with fewer clients again are charged for three.
    ledger.charge(answer_of(4), person_price("client"), for_persons_at(1), 0, b"")
    assert spent_by_unit(state_dir, DELTA)["person"] == cost(117)
    ledger.charge(answer_of(5), person_price("person"), for_persons_at(1), 0, b"")
    assert spent_by_unit(state_dir, DELTA)["person"] == cost(126)
    assert spent_by_unit(state_dir, DELTA)["record"] == cost(14)


def test_what_a_person_at_several_clients_did_not_use_comes_back(ledger, state_dir):
    price = person_price("client")
    ledger.charge(answer_of(t=2), price, for_persons_at(3), 0, b"")
    end(ledger)
    assert spent_by_unit(state_dir, DELTA)["person"] == cost(36 / 3)


def test_too_little_comes_back_where_the_sum_for_a_person_has_grown_since(
    ledger, state_dir
):
    price = person_price("client")
    ledger.charge(answer_of(t=2), price, for_persons_at(1), 0, b"")
    ledger.charge(answer_of(2), price, for_persons_at(3), 0, b"")
    end(ledger)
    spent = spent_by_unit(state_dir, DELTA)
    assert spent["person"] == cost(36 + 36 - 4 * 2 / 3)
    assert spent["client"] == cost(1 + 1 / 3)


@pytest.mark.parametrize("clients", ["0", "-1", "true", "1.5", "null", "[2]", "2, 2"])
def test_a_number_of_clients_that_no_ledger_writes_is_refused(
    ledger, state_dir, clients
):
    text = f"[0, 0, 0, {clients}]"
    tamper(state_dir, "UPDATE sums SET charge = ? WHERE unit = 'person'", text)
    with pytest.raises(LedgerError, match="no ledger writes"):
        ledger.charge(answer_of(), person_price("client"), LOOSE, 0, b"")


def test_what_a_run_for_persons_did_not_use_comes_back_to_both_sums(ledger, state_dir):
    ledger.charge(answer_of(t=2), person_price("person"), LOOSE, 0, b"")
    end(ledger)
    spent = spent_by_unit(state_dir, DELTA)
    assert spent == {"client": None, "person": cost(1 / 3), "record": cost(1 / 3)}


@pytest.mark.claim("threat-model", "run-ends-result-was")
def test_what_an_ended_run_did_not_use_comes_back(ledger, state_dir):
    charge(ledger, answer_of(t=2), PLAN, LOOSE)
    assert ledger.epsilon(DELTA) == cost(1)
    version, _ = ledger.load(RUN)
    with pytest.raises(MemoryChangedError):
        ledger.end(RUN, version + 1, b"over")
    for _ in range(2):  # once
        end(ledger)
        assert ledger.epsilon(DELTA) == cost(1 / 3)
    assert "[[" not in str(content_of(state_dir)[0])  # nothing of the plan is kept
    # A round whose reservation came back is charged if it is answered all the same,
    # once.
    for t, attempt, times in ((2, 2, 1 / 3), (3, 1, 2 / 3), (3, 2, 2 / 3)):
        charge(ledger, answer_of(t=t, attempt=attempt), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == cost(times)
    end(ledger)
    ledger.end(bytes(32), 0, b"never charged")
    assert ledger.epsilon(DELTA) == cost(2 / 3)


def test_runs_that_are_ended_together_give_back_what_they_left(ledger, state_dir):
    for run in (1, 2, 3):
        charge(ledger, answer_of(run), PLAN, LOOSE)
    kept = answer_of(3).run
    assert ledger.end_all(lambda memory: None) == 0
    ledger.save(kept, ledger.load(kept)[0], b"goes on")
    assert ledger.end_all(lambda memory: None if memory == b"goes on" else b"over") == 2
    assert ledger.load(kept)[1] == b"goes on"
    assert ledger.epsilon(DELTA) == cost(5 / 3)
    assert spent_epsilon(state_dir, DELTA) == ledger.epsilon(DELTA)


@pytest.mark.claim("threat-model", "run-ends-result-was")
def test_a_thousand_runs_do_not_slow_the_next_one(ledger):
    """What a charge reads and computes does not grow with what was charged before."""

    def steps(run):
        """Return statements, and steps of SQLite's machine, of one charge."""
        statements, ticks = [], []
        connection(ledger).set_trace_callback(statements.append)
        connection(ledger).set_progress_handler(lambda: ticks.append(1), 1)
        kind = (("gaussian", "l2"), ("laplace", "l1"))[run % 2]
        # none has the scale of another
        release = Release("all", *kind, 10.0 + run / 7, "a")
        answer = LedgerAnswer(number(run), 1, 1, bytes(32), bytes(32), bytes(32))
        ledger.charge(answer, price_of("record", [[release]]), LOOSE, 0, b"")
        return len(statements), len(ticks)

    connection(ledger).execute(
        "PRAGMA synchronous = OFF"
    )  # a thousand writes to the disk take long
    found = [steps(run) for run in range(1, 1003)]
    assert {statements for statements, _ in found[1:]} == {found[1][0]}
    # A deeper tree takes a few steps more.
    assert max(ticks for _, ticks in found[-10:]) <= 1.2 * found[1][1]


# ----------------------------------------------------------------- one answer, one vote


@pytest.mark.parametrize("plan", [PLAN, None])
@pytest.mark.parametrize("earlier", [(1, 1), (1, 3), (2, 1)])
def test_other_answers_and_those_before_the_last_are_refused(
    ledger, state_dir, earlier, plan
):
    t, attempt = earlier
    charge(ledger, answer_of(t=t, attempt=attempt), plan, LOOSE)
    charge(ledger, answer_of(t=2, attempt=2), plan, LOOSE)
    before = content_of(state_dir)
    with pytest.raises(StaleAnswerError):
        charge(ledger, answer_of(t=t, attempt=attempt), plan, LOOSE)
    for change in ({"context": 2}, {"digest": 2}, {"context": 2, "digest": 1}):
        with pytest.raises(AnotherAnswerError):
            charge(ledger, answer_of(t=2, attempt=2, **change), plan, LOOSE)
    assert content_of(state_dir) == before
    charge(ledger, answer_of(2, t=t, attempt=attempt), plan, LOOSE)  # another run


@pytest.mark.claim("threat-model", "59")
@pytest.mark.parametrize("plan", [gaussian_plan(), None], ids=["private", "plain"])
def test_all_attempts_at_a_round_are_for_one_query(ledger, plan):
    """Two answers to two queries of a round would be two releases for one charge."""
    charge(ledger, answer_of(t=2, query=7), plan, LOOSE)
    charge(ledger, answer_of(t=2, attempt=2, context=2, query=7), plan, LOOSE)
    with pytest.raises(
        AnotherAnswerError, match="Another query of this round was answered"
    ):
        charge(ledger, answer_of(t=2, attempt=3, context=3, query=8), plan, LOOSE)
    charge(ledger, answer_of(t=3, context=3, query=8), plan, LOOSE)


def test_one_sum_of_a_round_is_voted_for(ledger, state_dir):
    ledger.save(RUN, 0, b"enrolled")
    for run in (RUN, b"s" * 32):
        assert ledger.last_answer(run) is ledger.last_vote(run) is None
    version = ledger.vote(
        Vote(RUN, 2, b"v" * 32), price(PLAN), LOOSE, ledger.load(RUN)[0], b"1"
    )
    assert (ledger.last_vote(RUN), ledger.load(RUN)) == (
        (2, b"v" * 32),
        (version, b"1"),
    )
    version = ledger.vote(
        Vote(RUN, 2, b"v" * 32), price(PLAN), LOOSE, version, b"2"
    )  # the same again
    before = content_of(state_dir)
    for error, t, variant, read in (
        (AnotherAnswerError, 2, b"w" * 32, version),
        (StaleAnswerError, 1, b"v" * 32, version),
        (MemoryChangedError, 3, b"v" * 32, version - 1),
    ):
        with pytest.raises(error):
            ledger.vote(Vote(RUN, t, variant), price(PLAN), LOOSE, read, b"3")
        assert content_of(state_dir) == before
    version = ledger.vote(Vote(RUN, 3, b"w" * 32), price(PLAN), LOOSE, version, b"3")
    assert ledger.last_vote(RUN) == (3, b"w" * 32)
    assert ledger.last_answer(RUN) is None
    # Answers and votes do not hold each other up: an answer to an earlier round costs.
    ledger.charge(answer_of(t=1), price(PLAN), LOOSE, version, b"4")
    assert ledger.epsilon(DELTA) == cost(1)


@pytest.mark.claim("threat-model", "vote-reserves-like-answer")
def test_a_first_vote_reserves_the_plan_and_answers_charge_it_round_by_round(
    ledger, state_dir
):
    for t in (1, 2):
        vote(ledger, t=t)
        assert ledger.epsilon(DELTA) == cost(1)  # once
    ledger.require_room(RUN, price(PLAN), limit(1))  # it is counted already
    for t, attempt in ((1, 1), (1, 2), (3, 1)):
        charge(ledger, answer_of(t=t, attempt=attempt), PLAN, limit(1))
        assert ledger.epsilon(DELTA) == spent_epsilon(state_dir, DELTA) == cost(1)
    end(ledger)
    assert ledger.epsilon(DELTA) == cost(2 / 3)  # the round without an answer came back
    vote(ledger, t=3, given=limit(2 / 3))
    assert ledger.epsilon(DELTA) == cost(2 / 3)  # a run that is over reserves nothing


def test_a_vote_after_an_answer_reserves_nothing_further(ledger):
    charge(ledger, answer_of(), PLAN, limit(1))
    vote(ledger, given=limit(1))
    assert ledger.epsilon(DELTA) == cost(1)
    end(ledger)
    assert ledger.epsilon(DELTA) == cost(1 / 3)


@pytest.mark.claim("threat-model", "vote-reserves-like-answer")
def test_votes_without_answers_are_bounded_by_the_budget(ledger, state_dir):
    """The end gives back what a vote reserved, and a run without privacy reserves nothing."""
    for run in (1, 2, 3):
        vote(ledger, answer_of(run).run, given=limit(3))
    before = content_of(state_dir)
    for refused in (
        lambda: vote(ledger, answer_of(4).run, given=limit(3)),
        lambda: ledger.require_room(answer_of(4).run, price(PLAN), limit(3)),
        lambda: charge(ledger, answer_of(4), PLAN, limit(3)),
    ):
        with pytest.raises(BudgetError, match="epsilon"):
            refused()
        assert content_of(state_dir) == before
    vote(ledger, answer_of(5).run, plan=None, given=limit(3))
    end(ledger, answer_of(2).run)
    assert ledger.epsilon(DELTA) == cost(2)
    vote(ledger, answer_of(4).run, given=limit(3))
    assert ledger.epsilon(DELTA) == cost(3)


def test_a_vote_that_an_earlier_release_wrote_without_a_reservation_is_caught_up_with(
    ledger,
):
    vote(ledger, plan=None)
    assert ledger.epsilon(DELTA) == 0
    charge(ledger, answer_of(t=2), PLAN, LOOSE)
    assert ledger.epsilon(DELTA) == cost(1)
    end(ledger)
    assert ledger.epsilon(DELTA) == cost(1 / 3)


def test_the_row_of_a_run_that_is_over_is_small(ledger, state_dir):
    """Of each run that is over: its hash, its last answer and its last vote."""
    plan = gaussian_plan(rounds=100)
    connection(ledger).execute("PRAGMA synchronous = OFF")
    sizes = []
    for i in range(120):
        version = ledger.save(number(i), 0, bytes(20_000))
        version = ledger.vote(
            Vote(number(i), 99, bytes(32)), price(plan), LOOSE, version, b""
        )
        answer = LedgerAnswer(number(i), 100, 3, bytes(32), bytes(32), bytes(32))
        version = ledger.charge(answer, price(plan), LOOSE, version, bytes(20_000))
        ledger.end(number(i), version, b"over")
        sizes.append((state_dir / FILE_NAME).stat().st_size)
    assert ledger.last_vote(number(0)) == (99, bytes(32))
    assert ledger.last_answer(number(0)) == (100, 3, bytes(32), bytes(32), bytes(32))
    assert max(row_sizes(state_dir)) <= 200
    # With SQLite's own bytes, indices and pages that are not full.
    assert sizes[-1] - sizes[-101] <= 100 * 400


def test_what_was_answered_and_voted_stays_when_the_run_is_over(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(t=2, attempt=2), PLAN, LOOSE)
        ledger.vote(
            Vote(RUN, 2, b"v" * 32), price(PLAN), LOOSE, ledger.load(RUN)[0], b"voted"
        )
        version = end(ledger)
    with Ledger(state_dir) as ledger:
        assert ledger.last_answer(RUN) == (2, 2, *[bytes([1]) * 32] * 3)
        assert ledger.last_vote(RUN) == (2, b"v" * 32)
        with pytest.raises(StaleAnswerError):
            charge(ledger, answer_of(), PLAN, LOOSE)
        with pytest.raises(AnotherAnswerError):
            ledger.vote(Vote(RUN, 2, b"w" * 32), price(PLAN), LOOSE, version, b"again")


# --------------------------------------------------------------------------- the limit


@pytest.mark.parametrize("times", [1, 3])
def test_what_exceeds_the_limit_is_refused_and_leaves_nothing(state_dir, times):
    def require_refused(ledger, given):
        before = content_of(state_dir)
        with pytest.raises(BudgetError, match="epsilon"):
            ledger.require_room(answer_of(9).run, price(PLAN), given)
        with pytest.raises(BudgetError, match="epsilon"):
            charge(ledger, answer_of(9), PLAN, given)
        assert content_of(state_dir) == before

    with Ledger(state_dir) as ledger:
        for run in range(1, times + 1):
            ledger.require_room(answer_of(run).run, price(PLAN), limit(times))
            charge(ledger, answer_of(run), PLAN, limit(times))
        require_refused(ledger, limit(times))
        # What was charged goes on, unless the limit was tightened.
        with pytest.raises(BudgetError, match="epsilon"):
            ledger.require_room(RUN, price(PLAN), limit(0.99 * times))
        ledger.require_room(RUN, price(PLAN), limit(times))
        charge(ledger, answer_of(t=2), PLAN, limit(times))
    with Ledger(state_dir) as ledger:
        require_refused(ledger, limit(times))


def test_gaussian_noise_never_meets_a_total_delta_of_zero(ledger):
    with pytest.raises(BudgetError):
        charge(ledger, answer_of(1), PLAN, LifetimeLimit(100.0, 0.0))
    charge(ledger, answer_of(2), laplace_plan(), LifetimeLimit(1.001, 0.0))
    assert ledger.epsilon(0.0) == pytest.approx(1.0)


# --------------------------------------------------------------------------- memories


@pytest.mark.claim("threat-model", "ledger-keeps-at-most")
def test_enrolments_without_an_answer_cost_a_bounded_file(ledger, state_dir):
    """Thousands of documents, each padded: the file stays that of the few that are kept."""
    document = bytes(20_000)
    connection(ledger).execute("PRAGMA synchronous = OFF")
    charge(ledger, answer_of(1), PLAN, LOOSE)
    for run in (2, 3):
        vote(ledger, answer_of(run).run)
    end(ledger, answer_of(3).run)
    for i in range(2000):
        version = ledger.save(number(i), 0, document)
        if i % 2:
            ledger.end(number(i), version, document)  # ended without an answer
    kept = {number(i) for i in range(2000 - MAX_UNANSWERED, 2000)}
    assert unfinished(state_dir) == {*kept, answer_of(1).run, answer_of(2).run}
    assert ledger.load(number(0)) is None
    assert ledger.load(answer_of(3).run) is not None
    assert ledger.epsilon(DELTA) == cost(2)
    assert (state_dir / FILE_NAME).stat().st_size < 2 * MAX_UNANSWERED * len(document)


def test_the_sessions_that_were_used_last_are_kept(ledger, state_dir):
    used, first = (
        ledger.save(RUN, 0, b"enrolled"),
        ledger.save(b"s" * 32, 0, b"SECRET" * 20),
    )
    for i in range(2 * MAX_UNANSWERED):
        used = ledger.save(RUN, used, b"used")
        ledger.save(number(i), 0, b"other")
    assert ledger.load(RUN) == (used, b"used")
    assert len(unfinished(state_dir)) == MAX_UNANSWERED
    assert ledger.load(b"s" * 32) is None
    assert b"SECRET" not in (state_dir / FILE_NAME).read_bytes()
    # One that was dropped is not taken for the next one.
    second = ledger.save(b"s" * 32, 0, b"second")
    with pytest.raises(MemoryChangedError):
        ledger.charge(answer_of(ord("s")), price(PLAN), LOOSE, first, b"first")
    assert ledger.load(b"s" * 32) == (second, b"second")


@pytest.mark.claim("threat-model", "last-answer-last-vote")
def test_runs_that_nothing_was_written_of_for_long_are_ended_by_the_next_opening(
    state_dir,
):
    answered, voted, enrolled, used, ended = (bytes([i]) * 32 for i in (1, 2, 3, 4, 5))
    with Ledger(state_dir, clock=lambda: 1e9) as ledger:
        charge(ledger, answer_of(1, t=2), PLAN, LOOSE)
        ledger.save(answered, ledger.load(answered)[0], b"SECRET-1" * 9)
        vote(ledger, voted, memory=b"SECRET-2" * 9)
        ledger.save(enrolled, 0, b"SECRET-3" * 9)
        charge(ledger, answer_of(4), PLAN, LOOSE)
        vote(ledger, ended, memory=b"")
        end(ledger, ended)
    with Ledger(state_dir, clock=lambda: 1e9 + 1) as ledger:
        ledger.save(used, ledger.load(used)[0], b"still used")
    before = content_of(state_dir)
    with Ledger(state_dir, clock=lambda: 1e9 + FORGET_AFTER) as ledger:
        assert content_of(state_dir) == before
        read, _ = ledger.load(answered)
    with Ledger(state_dir, clock=lambda: 1e9 + FORGET_AFTER + 1) as ledger:
        assert ledger.load(answered)[1] == ledger.load(voted)[1] == b""
        assert ledger.load(answered)[0] > read
        assert ledger.load(enrolled) is None
        assert ledger.load(used)[1] == b"still used"
        assert ledger.load(ended)[1] == b"over"  # is not ended again
        assert unfinished(state_dir) == {used}
        assert ledger.epsilon(DELTA) == cost(1 + 1 / 3)
        assert ledger.last_answer(answered) == (
            2,
            1,
            answered,
            answered,
            bytes([1]) * 32,
        )
        assert ledger.last_vote(voted) == (1, b"v" * 32)
        with pytest.raises(MemoryChangedError):  # a process that had read it before
            ledger.save(answered, read, b"SECRET-1" * 9)
        with pytest.raises(StaleAnswerError):
            charge(ledger, answer_of(1, t=1), PLAN, LOOSE)
        charge(ledger, answer_of(1, t=3), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == cost(1 + 2 / 3)
    assert b"SECRET" not in (state_dir / FILE_NAME).read_bytes()


def test_a_memory_is_replaced_by_whoever_read_it_last(ledger, state_dir):
    with Ledger(state_dir) as second:
        assert ledger.load(RUN) is None
        version = ledger.save(RUN, 0, b"SECRET" * 20)
        assert b"SECRET" in (state_dir / FILE_NAME).read_bytes()
        assert "SECRET" not in repr(ledger) + repr(vars(ledger))
        assert second.load(RUN) == (version, b"SECRET" * 20)
        second.save(RUN, version, b"two")
        assert b"SECRET" not in (state_dir / FILE_NAME).read_bytes()
        before = content_of(state_dir)
        for stale in (0, version, version + 2):
            with pytest.raises(MemoryChangedError):
                ledger.save(RUN, stale, b"three")
        with pytest.raises(MemoryChangedError):
            ledger.charge(answer_of(), price(PLAN), LOOSE, version, b"three")
        assert content_of(state_dir) == before
    assert [file.name for file in state_dir.iterdir()] == [FILE_NAME]


# ---------------------------------------------------------------------- other processes


@pytest.mark.claim("what-epsilon-means", "clients-ledger-adds-up")
def test_two_processes_together_never_exceed_the_limit(state_dir):
    runs = (range(1, 13), range(101, 113))
    found = side_by_side(
        race_for_budget, *((state_dir, each, limit(5)) for each in runs)
    )
    assert sum(map(len, found)) == 5
    assert spent_epsilon(state_dir, DELTA) == cost(5)


def test_of_two_processes_one_answers_each_query(state_dir):
    found = side_by_side(race_for_answers, (state_dir, 1, 25), (state_dir, 2, 25))
    assert not set(found[0]) & set(found[1])
    assert {*found[0], *found[1]} >= {1, 25}
    with Ledger(state_dir) as ledger:
        # No accepted answer's memory was lost under the other's.
        assert len(ledger.load(RUN)[1]) == len(found[0] + found[1])
        assert ledger.last_answer(RUN)[0] == 25
        assert ledger.epsilon(DELTA) == cost(1)


@pytest.mark.parametrize(("when", "charged"), [("inside", False), ("after", True)])
def test_a_crash_leaves_all_of_a_charge_or_nothing(state_dir, when, charged):
    assert processes(die, (state_dir, when)) == [CRASHED]
    with Ledger(state_dir) as ledger:
        assert (ledger.epsilon(DELTA) > 0) is charged
        assert (ledger.load(RUN) is not None) is charged
        charge(ledger, answer_of(), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == cost(1)


def test_what_a_crash_left_half_written_is_undone(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), PLAN, LOOSE)
    before = content_of(state_dir)
    assert processes(crash_with_a_hot_journal, (state_dir / FILE_NAME,)) == [CRASHED]
    with pytest.raises(LedgerError, match="died while it wrote"):
        spent_epsilon(state_dir, DELTA)
    with Ledger(state_dir) as ledger:
        assert ledger.epsilon(DELTA) == cost(1)
    assert content_of(state_dir) == before
    assert spent_epsilon(state_dir, DELTA) == cost(1)


def test_a_ledger_that_stays_locked_allows_nothing(ledger, state_dir, monkeypatch):
    monkeypatch.setattr(ledgers, "_BUSY_SECONDS", 0.05)
    locked = pytest.raises(LedgerError, match="locked")
    other = sqlite3.connect(state_dir / FILE_NAME, isolation_level=None)
    with Ledger(state_dir) as second, closing(other), locked:
        other.execute("BEGIN IMMEDIATE")
        charge(second, answer_of(), PLAN, LOOSE)
    assert content_of(state_dir)[0] == []


def test_a_disk_that_is_full_allows_nothing(ledger, state_dir):
    charge(ledger, answer_of(1), PLAN, LOOSE)
    before = content_of(state_dir)
    disk = connection(ledger)
    (pages,) = disk.execute("PRAGMA page_count").fetchone()
    disk.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerError, match="full"):
        ledger.charge(answer_of(2), price(PLAN), LOOSE, 0, bytes(100_000))
    assert content_of(state_dir) == before
    disk.execute("PRAGMA max_page_count = 10000")
    ledger.charge(answer_of(2), price(PLAN), LOOSE, 0, bytes(100_000))
    assert ledger.epsilon(DELTA) == cost(2)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "The ledger's disk is full"),
        (errno.EDQUOT, "The ledger's disk is full"),
        (errno.EROFS, "The ledger is read-only"),
        (errno.EACCES, "The ledger is read-only"),
        (errno.EIO, "The state_dir .* cannot be used: Input/output error"),
    ],
)
def test_why_the_file_cannot_be_made_is_one_sentence(
    state_dir, number, sentence, monkeypatch
):
    def fail(*_, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(LedgerError, match=sentence) as caught:
        Ledger(state_dir)
    assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------- files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_are_their_owners_alone(state_dir, umask):
    before = os.umask(umask)
    try:
        with Ledger(state_dir) as ledger, ledger._exclusive():
            ledger._replace(b"r" * 32, 0, b"")
            modes = {
                p.name: stat.S_IMODE(p.stat().st_mode) for p in state_dir.iterdir()
            }
    finally:
        os.umask(before)
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    assert modes[FILE_NAME] == 0o600
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o750, 0o701, 0o777])
@pytest.mark.parametrize(
    ("name", "expected"), [("state_dir", "0700"), ("ledger", "0600")]
)
@pytest.mark.parametrize("use", USES)
def test_what_is_open_to_others_is_refused(state_dir, use, name, expected, mode):
    Ledger(state_dir).close()
    (state_dir if name == "state_dir" else state_dir / FILE_NAME).chmod(mode)
    with pytest.raises(LedgerError, match=f"{expected}.*{mode:04o}"):
        use(state_dir)


def belongs_to(monkeypatch, path, user):
    """Pretend that a path has another owner: only the superuser could give it one."""
    stated, fstated, inode = os.stat, os.fstat, path.stat().st_ino

    def changed(facts):
        values = list(facts)
        values[4] = user
        return os.stat_result(values) if facts.st_ino == inode else facts

    monkeypatch.setattr(
        os, "stat", lambda *args, **options: changed(stated(*args, **options))
    )
    monkeypatch.setattr(os, "fstat", lambda descriptor: changed(fstated(descriptor)))


@pytest.mark.parametrize("name", ["state_dir", "ledger"])
@pytest.mark.parametrize("use", USES)
def test_what_belongs_to_another_user_is_refused(state_dir, name, use, monkeypatch):
    Ledger(state_dir).close()
    path = state_dir if name == "state_dir" else state_dir / FILE_NAME
    other = os.geteuid() + 12345
    with monkeypatch.context() as pretended:
        belongs_to(pretended, path, other)
        with pytest.raises(
            LedgerError, match=f"{name} {path} .*user or to root.*id {other} "
        ):
            use(state_dir)
    with monkeypatch.context() as pretended:
        belongs_to(pretended, path, 0)
        use(state_dir)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("has_flag", [True, False])
def test_a_ledger_behind_a_link_is_refused(
    state_dir, exists, use, has_flag, tmp_path, monkeypatch
):
    if not has_flag:
        monkeypatch.delattr(os, "O_NOFOLLOW")
    target = tmp_path / "elsewhere"
    if exists:
        target.touch(mode=0o600)
    state_dir.mkdir(mode=0o700)
    (state_dir / FILE_NAME).symlink_to(target)
    with pytest.raises(
        LedgerError, match=f"{FILE_NAME} as a file. Got a symbolic link"
    ):
        use(state_dir)
    assert target.exists() == exists
    assert not exists or target.stat().st_size == 0


def test_what_is_no_directory_and_no_ledger_is_one_sentence(tmp_path, state_dir):
    (tmp_path / "file").touch(mode=0o600)
    Ledger(state_dir).close()
    (state_dir / FILE_NAME).write_bytes(b"no database" * 100)
    for path in (tmp_path / "missing" / "state", tmp_path / "file", state_dir):
        with pytest.raises(LedgerError, match=r"cannot be used|state_dir") as caught:
            Ledger(path)
        assert "\n" not in str(caught.value)


@pytest.mark.claim("threat-model", "run-ends-result-was")
def test_a_commit_is_on_the_disk_and_what_is_erased_is_overwritten(ledger):
    """`fullfsync` matters on macOS alone, where `fsync` leaves data in the drive's cache."""
    settings = ("synchronous", "fullfsync", "checkpoint_fullfsync", "secure_delete")
    found = [
        connection(ledger).execute(f"PRAGMA {setting}").fetchone()
        for setting in settings
    ]
    assert found == [(3,), (1,), (1,), (1,)]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("use", USES)
def test_ledgers_of_other_versions_are_refused_and_left_as_they_are(
    state_dir, version, use
):
    Ledger(state_dir).close()
    tamper(state_dir, f"PRAGMA user_version = {version}")
    before = (state_dir / FILE_NAME).read_bytes()
    with pytest.raises(
        LedgerError, match=rf"version 5\. Got version {version} instead"
    ) as caught:
        use(state_dir)
    assert "\n" not in str(caught.value)
    assert (state_dir / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    "text", ["", "{}", '{"rounds": [[{}]]}', '{"rounds": 5}', "[1.5, 0, 0]"]
)
def test_charges_that_cannot_be_read_allow_nothing(ledger, state_dir, text):
    charge(ledger, answer_of(), PLAN, LOOSE)
    tamper(state_dir, "UPDATE runs SET reserved = ?", text)
    with pytest.raises(LedgerError):
        end(ledger)
    tamper(state_dir, "UPDATE sums SET charge = ?", text)
    with pytest.raises(LedgerError):
        charge(ledger, answer_of(2), PLAN, LOOSE)
