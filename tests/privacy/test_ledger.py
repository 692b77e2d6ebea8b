"""A node's account: nothing is sent that was not charged, whoever else writes, whatever dies."""

import math
import multiprocessing
import os
import sqlite3
import stat

import pytest
from ledger_workers import (
    CRASHED,
    DELTA,
    answer_of,
    charge,
    crash_with_a_hot_journal,
    die,
    enrol_many,
    gaussian_plan,
    laplace_plan,
    price,
    race_for_answers,
    race_for_budget,
    race_for_votes,
    unfinished,
)

from flower_kmeans.errors import BudgetError, LedgerError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.filter import laplace_mu, price_of
from flower_kmeans.privacy.ledger import (
    FORGET_AFTER,
    MAX_UNANSWERED,
    AnotherAnswerError,
    Answer,
    Ledger,
    Limit,
    MemoryChangedError,
    StaleAnswerError,
    spent_epsilon,
)
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.privacy.release import Release

LOOSE = Limit(100.0, DELTA)
PLAN = gaussian_plan()
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def state_dir(tmp_path):
    return tmp_path / "state"


def cost(times):
    """Return what that many runs of the plan cost together."""
    return epsilon_of_mu(PLAN.mu * times**0.5, DELTA)


def content_of(state_dir):
    """Return all rows of all tables."""
    db = sqlite3.connect(state_dir / FILE_NAME)
    try:
        return [
            sorted(db.execute(f"SELECT * FROM {table}"))  # noqa: S608
            for table in ("runs", "sums")
        ]
    finally:
        db.close()


def side_by_side(worker, *arguments):
    """Run one process for each tuple of arguments, all at once; return their results."""
    barrier, results = SPAWN.Barrier(len(arguments)), SPAWN.Queue()
    processes = [
        SPAWN.Process(target=worker, args=(state_dir, barrier, results, *rest))
        for state_dir, *rest in arguments
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return found


# --------------------------------------------------------------------------- what is charged


def test_a_run_is_charged_whole_by_its_first_answer_and_once(state_dir):
    with Ledger(state_dir) as ledger:
        assert ledger.epsilon(DELTA) == 0
        for t in (1, 2, 3):
            for attempt in (1, 2):
                charge(ledger, answer_of(t=t, attempt=attempt, context=attempt), PLAN, LOOSE)
                assert ledger.epsilon(DELTA) == pytest.approx(PLAN.epsilon(), rel=1e-9)


def test_runs_compose_and_not_by_adding_epsilons(state_dir):
    with Ledger(state_dir) as ledger:
        for run in range(1, 5):
            charge(ledger, answer_of(run), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(cost(4), rel=1e-9)
        assert ledger.epsilon(DELTA) < 4 * PLAN.epsilon()


def test_laplace_releases_count_as_the_gaussian_ones_that_cover_them(state_dir):
    pure = laplace_plan()
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(1), pure, LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(1.0, rel=1e-12)  # the sum of pure epsilons
        assert ledger.epsilon(0.0) == pytest.approx(1.0, rel=1e-12)
        charge(ledger, answer_of(2), PLAN, LOOSE)
        squares = PLAN.mu**2 + sum(laplace_mu(r.cost) ** 2 for r in pure.releases)
        assert ledger.epsilon(DELTA) == pytest.approx(epsilon_of_mu(squares**0.5, DELTA), rel=1e-9)
        assert ledger.epsilon(0.0) == math.inf


@pytest.mark.parametrize("first", ["record", "client"])
@pytest.mark.parametrize("move", [None, 0.25])
def test_beside_runs_for_records_a_run_for_clients_counts_what_one_record_moves(
    state_dir, first, move
):
    plans = {"record": PLAN, "client": gaussian_plan(unit="client")}
    moves = [[move] * len(releases) for releases in PLAN.rounds] if move else None
    prices = {unit: price_of(unit, plan.rounds, moves) for unit, plan in plans.items()}
    with Ledger(state_dir) as ledger:
        ledger.charge(answer_of(1), prices[first], LOOSE, 0, b"")
        assert ledger.epsilon(DELTA) == pytest.approx(PLAN.epsilon(), rel=1e-9)
        other = prices["client" if first == "record" else "record"]
        both = epsilon_of_mu(PLAN.mu * (1 + (move or 2.0) ** 2) ** 0.5, DELTA)
        enough, less = Limit(both * 1.001, DELTA), Limit(both * 0.999, DELTA)
        with pytest.raises(BudgetError):
            ledger.require_room(bytes([2]) * 32, other, less)
        with pytest.raises(BudgetError):
            ledger.charge(answer_of(2), other, less, 0, b"")
        ledger.require_room(bytes([2]) * 32, other, enough)
        ledger.charge(answer_of(2), other, enough, 0, b"")
        assert ledger.epsilon(DELTA) == pytest.approx(both, rel=1e-9)
        assert spent_epsilon(state_dir, DELTA) == pytest.approx(both, rel=1e-9)


def test_runs_for_clients_alone_count_once(state_dir):
    with Ledger(state_dir) as ledger:
        for run in (1, 2):
            charge(ledger, answer_of(run), gaussian_plan(unit="client"), LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(cost(2), rel=1e-9)


def test_the_same_answer_again_costs_nothing(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), PLAN, Limit(cost(1) * 1.001, DELTA))
        charge(ledger, answer_of(), PLAN, Limit(cost(1) * 1e-3, DELTA))  # was charged already
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)


def test_a_round_is_charged_once_whatever_the_sessions_and_the_attempts(state_dir):
    """Changed records and new sessions give other answers, of which one sum opens."""
    with Ledger(state_dir) as ledger:
        for t in (1, 2, 3):
            for attempt in (1, 2, 3):
                answer = answer_of(t=t, attempt=attempt, context=10 * t + attempt)
                version, _ = ledger.load(answer.run) or (0, b"")
                # A new session lies where the old one was; what the ledger knows stays.
                version = ledger.save(answer.run, version, bytes([attempt]))
                ledger.charge(answer, price(PLAN), LOOSE, version, b"answered")
                assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)
                assert ledger.last_answer(answer.run) == (
                    t,
                    attempt,
                    answer.context,
                    answer.digest,
                )
        ledger.end(answer.run, ledger.load(answer.run)[0], b"over")
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)  # all was answered


def test_what_an_ended_run_did_not_use_comes_back(state_dir):
    third = epsilon_of_mu(PLAN.mu * (1 / 3) ** 0.5, DELTA)
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(t=2), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)
        version, _ = ledger.load(answer_of().run)
        with pytest.raises(MemoryChangedError):
            ledger.end(answer_of().run, version + 1, b"over")
        version = ledger.end(answer_of().run, version, b"over")
        assert ledger.epsilon(DELTA) == pytest.approx(third, rel=1e-9)
        assert "[[" not in str(content_of(state_dir)[0])  # nothing of the plan is kept
        ledger.end(answer_of().run, version, b"over")  # once
        assert ledger.epsilon(DELTA) == pytest.approx(third, rel=1e-9)
        # A round whose reservation came back is charged if it is answered all the same, once.
        charge(ledger, answer_of(t=2, attempt=2), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(third, rel=1e-9)
        for attempt in (1, 2):
            charge(ledger, answer_of(t=3, attempt=attempt), PLAN, LOOSE)
            assert ledger.epsilon(DELTA) == pytest.approx(cost(2 / 3), rel=1e-9)
        ledger.end(answer_of().run, ledger.load(answer_of().run)[0], b"over")
        ledger.end(bytes(32), 0, b"never charged")
        assert ledger.epsilon(DELTA) == pytest.approx(cost(2 / 3), rel=1e-9)


def test_runs_that_are_ended_together_give_back_what_they_left(state_dir):
    with Ledger(state_dir) as ledger:
        for run in (1, 2, 3):
            charge(ledger, answer_of(run), PLAN, LOOSE)
        kept = answer_of(3).run
        first, *_ = (ledger.load(kept),)
        assert ledger.end_all(lambda memory: None) == 0
        ledger.save(kept, first[0], b"goes on")
        assert ledger.end_all(lambda memory: None if memory == b"goes on" else b"over") == 2
        assert ledger.load(kept)[1] == b"goes on"
        assert ledger.epsilon(DELTA) == pytest.approx(cost(5 / 3), rel=1e-9)
        assert spent_epsilon(state_dir, DELTA) == ledger.epsilon(DELTA)


def test_reservations_of_laplace_rounds_come_back_too(state_dir):
    pure = laplace_plan()
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(1), pure, LOOSE)
        charge(ledger, answer_of(2, t=2), PLAN, LOOSE)
        assert ledger.epsilon(0.0) == math.inf
        for run in (1, 2):
            ledger.end(answer_of(run).run, ledger.load(answer_of(run).run)[0], b"over")
        square = PLAN.mu**2 / 3 + laplace_mu(pure.releases[0].cost) ** 2
        assert ledger.epsilon(DELTA) == pytest.approx(epsilon_of_mu(square**0.5, DELTA), rel=1e-9)


def test_a_thousand_runs_do_not_slow_the_next_one(state_dir):
    """What a charge reads and computes does not grow with what was charged before."""

    def steps(ledger, run):
        """Return statements, and steps of SQLite's machine, of one charge."""
        statements, ticks = [], []
        ledger._db.set_trace_callback(statements.append)
        ledger._db.set_progress_handler(lambda: ticks.append(1), 1)
        scale = 10.0 + run / 7  # none has the scale of another
        release = Release(
            "all", ("gaussian", "laplace")[run % 2], ("l2", "l1")[run % 2], scale, "a"
        )
        answer = Answer(run.to_bytes(32, "big"), 1, 1, bytes(32), bytes(32))
        ledger.charge(answer, price_of("record", [[release]]), LOOSE, 0, b"")
        ledger._db.set_progress_handler(None, 1)
        ledger._db.set_trace_callback(None)
        return len(statements), len(ticks)

    with Ledger(state_dir) as ledger:
        ledger._db.execute("PRAGMA synchronous = OFF")  # a thousand writes to the disk take long
        found = [steps(ledger, run) for run in range(1, 1003)]
    assert {statements for statements, _ in found[1:]} == {found[1][0]}
    # A deeper tree takes a few steps more.
    assert max(ticks for _, ticks in found[-10:]) <= 1.2 * found[1][1]


@pytest.mark.parametrize("change", [{"context": 2}, {"digest": 2}, {"context": 2, "digest": 1}])
def test_another_answer_to_the_same_query_is_refused(state_dir, change):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), PLAN, LOOSE)
        before = content_of(state_dir)
        with pytest.raises(AnotherAnswerError):
            charge(ledger, answer_of(**change), PLAN, LOOSE)
    assert content_of(state_dir) == before


@pytest.mark.parametrize("plan", [PLAN, None])
@pytest.mark.parametrize("earlier", [(1, 1), (1, 3), (2, 1)])
def test_what_comes_before_the_last_answer_is_refused_also_if_it_was_given(
    state_dir, earlier, plan
):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(t=earlier[0], attempt=earlier[1]), plan, LOOSE)
        charge(ledger, answer_of(t=2, attempt=2), plan, LOOSE)
        before = content_of(state_dir)
        with pytest.raises(StaleAnswerError):
            charge(ledger, answer_of(t=earlier[0], attempt=earlier[1]), plan, LOOSE)
        assert content_of(state_dir) == before
        charge(ledger, answer_of(2, t=earlier[0], attempt=earlier[1]), plan, LOOSE)  # another run


def test_what_was_answered_and_voted_stays_when_the_run_is_over(state_dir):
    run, variant = answer_of().run, b"v" * 32
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(t=2, attempt=2), PLAN, LOOSE)
        version = ledger.vote(run, 2, variant, ledger.load(run)[0], b"voted")
        ledger.end(run, version, b"over")
    with Ledger(state_dir) as ledger:
        assert ledger.last_answer(run) == (2, 2, bytes([1]) * 32, bytes([1]) * 32)
        assert ledger.last_vote(run) == (2, variant)
        with pytest.raises(StaleAnswerError):
            charge(ledger, answer_of(), PLAN, LOOSE)
        with pytest.raises(AnotherAnswerError):
            ledger.vote(run, 2, b"w" * 32, version + 1, b"again")


# --------------------------------------------------------------------------- votes


def test_a_run_that_is_not_known_has_neither_answer_nor_vote(state_dir):
    with Ledger(state_dir) as ledger:
        ledger.save(b"r" * 32, 0, b"enrolled")
        for run in (b"r" * 32, b"s" * 32):
            assert ledger.last_answer(run) is None
            assert ledger.last_vote(run) is None


def test_one_sum_of_a_round_is_voted_for(state_dir):
    run = b"r" * 32
    with Ledger(state_dir) as ledger:
        version = ledger.vote(run, 2, b"v" * 32, 0, b"1")
        assert (ledger.last_vote(run), ledger.load(run)) == ((2, b"v" * 32), (version, b"1"))
        version = ledger.vote(run, 2, b"v" * 32, version, b"2")  # the same again
        before = content_of(state_dir)
        for error, t, variant, read in (
            (AnotherAnswerError, 2, b"w" * 32, version),
            (StaleAnswerError, 1, b"v" * 32, version),
            (MemoryChangedError, 3, b"v" * 32, version - 1),
        ):
            with pytest.raises(error):
                ledger.vote(run, t, variant, read, b"3")
            assert content_of(state_dir) == before
        version = ledger.vote(run, 3, b"w" * 32, version, b"3")
        assert ledger.last_vote(run) == (3, b"w" * 32)
        assert ledger.last_answer(run) is None
        # Answers and votes do not hold each other up: an answer to an earlier round costs.
        ledger.charge(answer_of(ord("r"), t=1), price(PLAN), LOOSE, version, b"4")
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)


# --------------------------------------------------------------------------- sessions


def test_enrolments_without_an_answer_cost_a_bounded_file(state_dir):
    """Thousands of documents, each padded: the file stays that of the few that are kept."""
    document = bytes(20_000)
    with Ledger(state_dir) as ledger:
        ledger._db.execute("PRAGMA synchronous = OFF")
        charge(ledger, answer_of(1), PLAN, LOOSE)
        ledger.vote(answer_of(2).run, 1, b"v" * 32, 0, b"voted")
        ended = ledger.vote(answer_of(3).run, 1, b"v" * 32, 0, b"voted")
        ledger.end(answer_of(3).run, ended, b"over")
        for number in range(2000):
            run = number.to_bytes(32, "big")
            version = ledger.save(run, 0, document)
            if number % 2:
                ledger.end(run, version, document)  # ended without an answer
        kept = {number.to_bytes(32, "big") for number in range(2000 - MAX_UNANSWERED, 2000)}
        assert unfinished(state_dir) == {*kept, answer_of(1).run, answer_of(2).run}
        assert ledger.load((0).to_bytes(32, "big")) is None
        for run in (answer_of(1).run, answer_of(2).run, answer_of(3).run):
            assert ledger.load(run) is not None
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)
    assert (state_dir / FILE_NAME).stat().st_size < 2 * MAX_UNANSWERED * len(document)


def test_the_session_that_was_used_last_is_kept(state_dir):
    with Ledger(state_dir) as ledger:
        version = ledger.save(b"r" * 32, 0, b"enrolled")
        for number in range(2 * MAX_UNANSWERED):
            version = ledger.save(b"r" * 32, version, b"used")
            ledger.save(number.to_bytes(32, "big"), 0, b"other")
        assert ledger.load(b"r" * 32) == (version, b"used")
        assert len(unfinished(state_dir)) == MAX_UNANSWERED


def test_a_session_that_was_dropped_is_not_taken_for_the_next_one(state_dir):
    with Ledger(state_dir) as ledger:
        first = ledger.save(b"r" * 32, 0, b"first")
        for number in range(MAX_UNANSWERED):
            ledger.save(number.to_bytes(32, "big"), 0, b"other")
        assert ledger.load(b"r" * 32) is None
        second = ledger.save(b"r" * 32, 0, b"second")
        assert second != first
        with pytest.raises(MemoryChangedError):
            ledger.charge(answer_of(ord("r")), price(PLAN), LOOSE, first, b"first")
        assert ledger.load(b"r" * 32) == (second, b"second")


def test_dropped_sessions_are_overwritten_in_the_file(state_dir):
    with Ledger(state_dir) as ledger:
        ledger.save(b"r" * 32, 0, b"SECRET" * 20)
        for number in range(MAX_UNANSWERED):
            ledger.save(number.to_bytes(32, "big"), 0, b"other")
    assert b"SECRET" not in (state_dir / FILE_NAME).read_bytes()


def test_runs_that_nothing_was_written_of_for_long_are_ended_by_the_next_opening(state_dir):
    answered, voted, enrolled, used = (bytes([i]) * 32 for i in (1, 2, 3, 4))
    with Ledger(state_dir, clock=lambda: 1e9) as ledger:
        charge(ledger, answer_of(1, t=2), PLAN, LOOSE)
        ledger.save(answered, ledger.load(answered)[0], b"SECRET-1" * 9)
        ledger.vote(voted, 1, b"v" * 32, 0, b"SECRET-2" * 9)
        ledger.save(enrolled, 0, b"SECRET-3" * 9)
        charge(ledger, answer_of(4), PLAN, LOOSE)
    with Ledger(state_dir, clock=lambda: 1e9 + 1) as ledger:
        version, _ = ledger.load(used)
        ledger.save(used, version, b"still used")
    before = content_of(state_dir)
    with Ledger(state_dir, clock=lambda: 1e9 + FORGET_AFTER) as ledger:
        assert content_of(state_dir) == before
        read, _ = ledger.load(answered)
    with Ledger(state_dir, clock=lambda: 1e9 + FORGET_AFTER + 1) as ledger:
        assert ledger.load(answered)[1] == ledger.load(voted)[1] == b""
        assert ledger.load(answered)[0] > read
        assert ledger.load(enrolled) is None
        assert ledger.load(used)[1] == b"still used"
        assert unfinished(state_dir) == {used}
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1 + 1 / 3), rel=1e-9)
        assert ledger.last_answer(answered) == (2, 1, answered, answered)
        assert ledger.last_vote(voted) == (1, b"v" * 32)
        with pytest.raises(MemoryChangedError):  # a process that had read it before
            ledger.save(answered, read, b"SECRET-1" * 9)
        with pytest.raises(StaleAnswerError):
            charge(ledger, answer_of(1, t=1), PLAN, LOOSE)
        charge(ledger, answer_of(1, t=3), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1 + 2 / 3), rel=1e-9)
    assert b"SECRET" not in (state_dir / FILE_NAME).read_bytes()


def test_runs_that_ended_are_not_ended_again(state_dir):
    with Ledger(state_dir, clock=lambda: 0) as ledger:
        charge(ledger, answer_of(t=1), PLAN, LOOSE)
        ledger.end(answer_of().run, ledger.load(answer_of().run)[0], b"over")
    before = content_of(state_dir)
    with Ledger(state_dir, clock=lambda: 10 * FORGET_AFTER) as ledger:
        assert ledger.load(answer_of().run)[1] == b"over"
    assert content_of(state_dir) == before


# --------------------------------------------------------------------------- the limit


@pytest.mark.parametrize("times", [1, 3])
def test_what_exceeds_the_limit_is_refused_and_leaves_nothing(state_dir, times):
    limit = Limit(cost(times) * 1.0001, DELTA)
    with Ledger(state_dir) as ledger:
        for run in range(1, times + 1):
            ledger.require_room(answer_of(run).run, price(PLAN), limit)
            charge(ledger, answer_of(run), PLAN, limit)
        before = content_of(state_dir)
        with pytest.raises(BudgetError, match="epsilon"):
            ledger.require_room(answer_of(9).run, price(PLAN), limit)
        with pytest.raises(BudgetError, match="epsilon"):
            charge(ledger, answer_of(9), PLAN, limit)
        assert content_of(state_dir) == before
        # What was charged goes on, unless the limit was tightened.
        with pytest.raises(BudgetError, match="epsilon"):
            ledger.require_room(answer_of(1).run, price(PLAN), Limit(cost(times) * 0.999, DELTA))
        ledger.require_room(answer_of(1).run, price(PLAN), limit)
        charge(ledger, answer_of(1, t=2), PLAN, limit)
    with Ledger(state_dir) as ledger, pytest.raises(BudgetError):
        charge(ledger, answer_of(9), PLAN, limit)


def test_gaussian_noise_never_meets_a_total_delta_of_zero(state_dir):
    with Ledger(state_dir) as ledger:
        with pytest.raises(BudgetError):
            charge(ledger, answer_of(1), PLAN, Limit(100.0, 0.0))
        charge(ledger, answer_of(2), laplace_plan(), Limit(1.001, 0.0))
        assert ledger.epsilon(0.0) == pytest.approx(1.0)


# --------------------------------------------------------------------------- memories


def test_a_memory_is_replaced_by_whoever_read_it_last(state_dir):
    with Ledger(state_dir) as first, Ledger(state_dir) as second:
        assert first.load(b"r" * 32) is None
        version = first.save(b"r" * 32, 0, b"one")
        assert second.load(b"r" * 32) == (version, b"one")
        second.save(b"r" * 32, version, b"two")
        for stale in (0, version, version + 2):
            with pytest.raises(MemoryChangedError):
                first.save(b"r" * 32, stale, b"three")
        before = content_of(state_dir)
        with pytest.raises(MemoryChangedError):
            first.charge(answer_of(ord("r")), price(PLAN), LOOSE, version, b"three")
        assert content_of(state_dir) == before


def test_replaced_memories_are_overwritten_in_the_file(state_dir):
    with Ledger(state_dir) as ledger:
        ledger.save(b"r" * 32, 0, b"SECRET" * 20)
        assert b"SECRET" in (state_dir / FILE_NAME).read_bytes()
        ledger.save(b"r" * 32, 1, b"over")
    assert [file.name for file in state_dir.iterdir()] == [FILE_NAME]
    assert b"SECRET" not in (state_dir / FILE_NAME).read_bytes()


# --------------------------------------------------------------------------- other processes


def test_two_processes_together_never_exceed_the_limit(state_dir):
    limit = Limit(cost(5) * 1.0001, DELTA)
    found = side_by_side(
        race_for_budget,
        (state_dir, range(1, 13), limit),
        (state_dir, range(101, 113), limit),
    )
    assert sum(map(len, found)) == 5
    with Ledger(state_dir) as ledger:
        assert ledger.epsilon(DELTA) == pytest.approx(cost(5), rel=1e-9)


def test_of_two_processes_one_answers_each_query(state_dir):
    found = side_by_side(race_for_answers, (state_dir, 1, 25), (state_dir, 2, 25))
    assert not set(found[0]) & set(found[1])
    assert {*found[0], *found[1]} >= {1, 25}
    with Ledger(state_dir) as ledger:
        # No accepted answer's memory was lost under the other's.
        assert len(ledger.load(answer_of().run)[1]) == len(found[0] + found[1])
        assert ledger.last_answer(answer_of().run)[0] == 25
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)


def test_of_two_processes_one_votes_in_each_round(state_dir):
    found = side_by_side(race_for_votes, (state_dir, 1, 25), (state_dir, 2, 25))
    assert not set(found[0]) & set(found[1])
    with Ledger(state_dir) as ledger:
        kept = ledger.load(answer_of().run)[1]
        assert sorted(kept.count(bytes([v])) for v in (1, 2)) == sorted(map(len, found))
        assert ledger.last_vote(answer_of().run)[0] == 25


def test_two_processes_together_keep_few_sessions(state_dir):
    side_by_side(enrol_many, (state_dir, range(200), 1000), (state_dir, range(200, 400), 1000))
    assert len(unfinished(state_dir)) == MAX_UNANSWERED


@pytest.mark.parametrize(("when", "charged"), [("inside", False), ("after", True)])
def test_a_crash_leaves_all_of_a_charge_or_nothing(state_dir, when, charged):
    process = SPAWN.Process(target=die, args=(state_dir, when))
    process.start()
    process.join(60)
    assert process.exitcode == CRASHED
    with Ledger(state_dir) as ledger:
        assert (ledger.epsilon(DELTA) > 0) is charged
        assert (ledger.load(answer_of().run) is not None) is charged
        charge(ledger, answer_of(), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)


def test_a_ledger_that_stays_locked_allows_nothing(state_dir, monkeypatch):
    monkeypatch.setattr(ledgers, "_BUSY_SECONDS", 0.05)
    with (
        Ledger(state_dir) as first,
        Ledger(state_dir) as second,
        first._exclusive(),
        pytest.raises(LedgerError, match="locked"),
    ):
        charge(second, answer_of(), PLAN, LOOSE)
    assert content_of(state_dir)[0] == []


def test_a_disk_that_is_full_allows_nothing(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(1), PLAN, LOOSE)
        before = content_of(state_dir)
        (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="full"):
            ledger.charge(answer_of(2), price(PLAN), LOOSE, 0, bytes(100_000))
        assert content_of(state_dir) == before
        ledger._db.execute("PRAGMA max_page_count = 10000")
        ledger.charge(answer_of(2), price(PLAN), LOOSE, 0, bytes(100_000))
        assert ledger.epsilon(DELTA) == pytest.approx(cost(2), rel=1e-9)


def test_what_a_crash_left_half_written_is_undone(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), PLAN, LOOSE)
    before = content_of(state_dir)
    process = SPAWN.Process(target=crash_with_a_hot_journal, args=(state_dir / FILE_NAME,))
    process.start()
    process.join(60)
    assert process.exitcode == CRASHED
    with pytest.raises(LedgerError, match="died while it wrote"):
        spent_epsilon(state_dir, DELTA)
    with Ledger(state_dir) as ledger:
        assert ledger.epsilon(DELTA) == pytest.approx(cost(1), rel=1e-9)
    assert content_of(state_dir) == before
    assert spent_epsilon(state_dir, DELTA) == pytest.approx(cost(1), rel=1e-9)


# --------------------------------------------------------------------------- files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_are_their_owners_alone(state_dir, umask):
    before = os.umask(umask)
    try:
        with Ledger(state_dir) as ledger, ledger._exclusive():
            ledger._replace(b"r" * 32, 0, b"")
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in state_dir.iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE(state_dir.stat().st_mode) == 0o700
    assert modes[FILE_NAME] == 0o600
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_directory_that_is_open_to_others_is_refused(state_dir, mode):
    state_dir.mkdir()
    state_dir.chmod(mode)
    with pytest.raises(LedgerError, match=f"0700.*{mode:04o}"):
        Ledger(state_dir)
    assert not list(state_dir.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_ledger_that_is_open_to_others_is_refused(state_dir, mode):
    Ledger(state_dir).close()
    (state_dir / FILE_NAME).chmod(mode)
    with pytest.raises(LedgerError, match=f"0600.*{mode:04o}"):
        Ledger(state_dir)


def belongs_to(monkeypatch, path, user):
    """Pretend that a path has another owner: only the superuser could give it one."""
    stated, fstated, inode = os.stat, os.fstat, path.stat().st_ino

    def changed(facts):
        values = list(facts)
        values[4] = user
        return os.stat_result(values) if facts.st_ino == inode else facts

    monkeypatch.setattr(os, "stat", lambda *args, **options: changed(stated(*args, **options)))
    monkeypatch.setattr(os, "fstat", lambda descriptor: changed(fstated(descriptor)))


@pytest.mark.parametrize("name", ["state_dir", "ledger"])
@pytest.mark.parametrize("use", [Ledger, lambda state_dir: spent_epsilon(state_dir, DELTA)])
def test_what_belongs_to_another_user_is_refused(state_dir, name, use, monkeypatch):
    Ledger(state_dir).close()
    path = state_dir if name == "state_dir" else state_dir / FILE_NAME
    other = os.geteuid() + 12345
    with monkeypatch.context() as pretended:
        belongs_to(pretended, path, other)
        with pytest.raises(LedgerError, match=f"{name} {path} .*user or to root.*id {other} "):
            use(state_dir)
    with monkeypatch.context() as pretended:
        belongs_to(pretended, path, 0)
        use(state_dir)


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("use", [Ledger, lambda state_dir: spent_epsilon(state_dir, DELTA)])
@pytest.mark.parametrize("has_flag", [True, False])
def test_a_ledger_behind_a_link_is_refused(state_dir, exists, use, has_flag, tmp_path, monkeypatch):
    if not has_flag:
        monkeypatch.delattr(os, "O_NOFOLLOW")
    target = tmp_path / "elsewhere"
    if exists:
        target.touch(mode=0o600)
    state_dir.mkdir(mode=0o700)
    (state_dir / FILE_NAME).symlink_to(target)
    with pytest.raises(LedgerError, match=f"{FILE_NAME} as a file. Got a symbolic link"):
        use(state_dir)
    assert target.exists() == exists
    assert not exists or target.stat().st_size == 0


def test_directories_that_cannot_be_used_are_one_sentence(tmp_path):
    (tmp_path / "file").touch(mode=0o600)
    for path in (tmp_path / "missing" / "state", tmp_path / "file"):
        with pytest.raises(LedgerError, match="state_dir") as caught:
            Ledger(path)
        assert "\n" not in str(caught.value)


def test_a_commit_is_on_the_disk_and_what_is_erased_is_overwritten(state_dir):
    """`fullfsync` matters on macOS alone, where `fsync` leaves data in the drive's cache."""
    with Ledger(state_dir) as ledger:
        for setting, value in (
            ("synchronous", 3),
            ("fullfsync", 1),
            ("checkpoint_fullfsync", 1),
            ("secure_delete", 1),
        ):
            assert ledger._db.execute(f"PRAGMA {setting}").fetchone() == (value,)


def test_what_is_no_ledger_is_refused(state_dir):
    Ledger(state_dir).close()
    (state_dir / FILE_NAME).write_bytes(b"no database" * 100)
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(state_dir)


@pytest.mark.parametrize("version", [1, 2, 4])
@pytest.mark.parametrize("use", [Ledger, lambda state_dir: spent_epsilon(state_dir, DELTA)])
def test_ledgers_of_other_versions_are_refused_and_left_as_they_are(state_dir, version, use):
    Ledger(state_dir).close()
    db = sqlite3.connect(state_dir / FILE_NAME)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    before = (state_dir / FILE_NAME).read_bytes()
    with pytest.raises(LedgerError, match=rf"version 3\. Got version {version} instead") as caught:
        use(state_dir)
    assert "\n" not in str(caught.value)
    assert (state_dir / FILE_NAME).read_bytes() == before


def test_nothing_of_an_open_ledger_is_shown(state_dir):
    with Ledger(state_dir) as ledger:
        ledger.save(b"r" * 32, 0, b"SECRET")
        assert "SECRET" not in repr(ledger) + repr(vars(ledger))


@pytest.mark.parametrize("text", ["", "{}", '{"rounds": [[{}]]}', '{"rounds": 5}', "[1.5, 0, 0]"])
def test_charges_that_cannot_be_read_allow_nothing(state_dir, text):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), PLAN, LOOSE)
        ledger._db.execute("UPDATE runs SET reserved = ?", (text,))
        with pytest.raises(LedgerError):
            ledger.end(answer_of().run, ledger.load(answer_of().run)[0], b"over")
        ledger._db.execute("UPDATE sums SET charge = ?", (text,))
        with pytest.raises(LedgerError):
            charge(ledger, answer_of(2), PLAN, LOOSE)
