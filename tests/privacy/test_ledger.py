"""A node's account: nothing is sent that was not charged, whoever else writes, whatever dies."""

import multiprocessing
import os
import sqlite3
import stat

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from ledger_workers import (
    CRASHED,
    DELTA,
    answer_of,
    charge,
    crash_with_a_hot_journal,
    die,
    gaussian_plan,
    laplace_plan,
    race_for_answers,
    race_for_budget,
)

from flower_kmeans.errors import BudgetError, LedgerError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.ledger import (
    AnotherAnswerError,
    Ledger,
    Limit,
    MemoryChangedError,
    spent_epsilon,
)
from flower_kmeans.privacy.ledger_file import FILE_NAME

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
            for table in ("runs", "answers", "memories")
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


def test_mixed_runs_cost_what_another_accountant_says(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(1), PLAN, LOOSE)
        charge(ledger, answer_of(2), laplace_plan(), LOOSE)
        found = ledger.epsilon(DELTA)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.ComposedDpEvent([PLAN.event(), laplace_plan().event()]))
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-2)


@pytest.mark.parametrize("first", ["record", "client"])
def test_beside_runs_for_records_a_run_for_clients_counts_twice(state_dir, first):
    """One record of a client that stays moves a release by up to two of its units."""
    plans = {"record": PLAN, "client": gaussian_plan(unit="client")}
    pure = laplace_plan(epsilon=0.25, unit="client")
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(1), plans[first], LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(PLAN.epsilon(), rel=1e-9)
        other = plans["client" if first == "record" else "record"]
        both = epsilon_of_mu(PLAN.mu * 5**0.5, DELTA)  # 1 + 2^2
        enough, less = Limit(both * 1.001, DELTA), Limit(both * 0.999, DELTA)
        with pytest.raises(BudgetError):
            ledger.require_room(bytes([2]) * 32, other, less)
        with pytest.raises(BudgetError):
            charge(ledger, answer_of(2), other, less)
        ledger.require_room(bytes([2]) * 32, other, enough)
        charge(ledger, answer_of(2), other, enough)
        assert ledger.epsilon(DELTA) == pytest.approx(both, rel=1e-9)
        assert spent_epsilon(state_dir, DELTA) == pytest.approx(both, rel=1e-9)
        charge(ledger, answer_of(3), pure, LOOSE)
        found = ledger.epsilon(DELTA)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    events = [dp_accounting.GaussianDpEvent(1 / (PLAN.mu * 5**0.5))]
    events += [dp_accounting.LaplaceDpEvent(r.noise_multiplier / 2) for r in pure.releases]
    accountant.compose(dp_accounting.ComposedDpEvent(events))
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-2)


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
    assert len(content_of(state_dir)[1]) == 1


def test_a_new_member_that_answers_a_round_again_is_charged_for_that_round(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(t=1), PLAN, LOOSE)
        charge(ledger, answer_of(t=1, attempt=2, member=2, context=2), PLAN, LOOSE)
        again = epsilon_of_mu(PLAN.mu * (4 / 3) ** 0.5, DELTA)  # four rounds of three
        assert ledger.epsilon(DELTA) == pytest.approx(again, rel=1e-9)
        for t in (2, 3):  # which nobody had answered
            charge(ledger, answer_of(t=t, member=2, context=2), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) == pytest.approx(again, rel=1e-9)
        charge(ledger, answer_of(t=3, attempt=2, member=3, context=3), PLAN, LOOSE)
        assert ledger.epsilon(DELTA) > again


@pytest.mark.parametrize("change", [{"context": 2}, {"digest": 2}, {"member": 2}])
def test_another_answer_to_the_same_question_is_refused(state_dir, change):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), PLAN, LOOSE)
        before = content_of(state_dir)
        with pytest.raises(AnotherAnswerError):
            charge(ledger, answer_of(**change), PLAN, LOOSE)
    assert content_of(state_dir) == before


# --------------------------------------------------------------------------- the limit


@pytest.mark.parametrize("times", [1, 3])
def test_what_exceeds_the_limit_is_refused_and_leaves_nothing(state_dir, times):
    limit = Limit(cost(times) * 1.0001, DELTA)
    with Ledger(state_dir) as ledger:
        for run in range(1, times + 1):
            ledger.require_room(answer_of(run).run, PLAN, limit)
            charge(ledger, answer_of(run), PLAN, limit)
        before = content_of(state_dir)
        with pytest.raises(BudgetError, match="epsilon"):
            ledger.require_room(answer_of(9).run, PLAN, limit)
        with pytest.raises(BudgetError, match="epsilon"):
            charge(ledger, answer_of(9), PLAN, limit)
        with pytest.raises(BudgetError):  # a round that is given again is a release too
            charge(ledger, answer_of(1, attempt=2, member=2, context=2), PLAN, limit)
        assert content_of(state_dir) == before
        # What was charged goes on, unless the limit was tightened.
        with pytest.raises(BudgetError, match="epsilon"):
            ledger.require_room(answer_of(1).run, PLAN, Limit(cost(times) * 0.999, DELTA))
        ledger.require_room(answer_of(1).run, PLAN, limit)
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
            first.charge(answer_of(ord("r")), PLAN, LOOSE, version, b"three")
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


def test_of_two_processes_one_answers_each_question(state_dir):
    found = side_by_side(race_for_answers, (state_dir, 1, 25), (state_dir, 2, 25))
    assert sorted(found[0] + found[1]) == list(range(1, 26))
    _, answers, memories = content_of(state_dir)
    assert len(answers) == 25
    # No accepted answer's memory was lost under the other's.
    assert len(memories[0][2]) == memories[0][1] == 25


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
    assert content_of(state_dir) == [[], [], []]


def test_a_disk_that_is_full_allows_nothing(state_dir):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(1), PLAN, LOOSE)
        before = content_of(state_dir)
        (pages,) = ledger._db.execute("PRAGMA page_count").fetchone()
        ledger._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="full"):
            ledger.charge(answer_of(2), PLAN, LOOSE, 0, bytes(100_000))
        assert content_of(state_dir) == before
        ledger._db.execute("PRAGMA max_page_count = 10000")
        ledger.charge(answer_of(2), PLAN, LOOSE, 0, bytes(100_000))
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


def test_what_is_no_ledger_is_refused(state_dir):
    Ledger(state_dir).close()
    (state_dir / FILE_NAME).write_bytes(b"no database" * 100)
    with pytest.raises(LedgerError, match="cannot be used"):
        Ledger(state_dir)


def test_ledgers_of_later_versions_are_refused(state_dir):
    Ledger(state_dir).close()
    db = sqlite3.connect(state_dir / FILE_NAME)
    db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(LedgerError, match=r"version 1\. Got version 2"):
        Ledger(state_dir)


@pytest.mark.parametrize("plan", ["", "{}", '{"rounds": [[{}]]}', '{"rounds": 5}', "[1]"])
def test_charges_that_cannot_be_read_allow_nothing(state_dir, plan):
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), PLAN, LOOSE)
        ledger._db.execute("UPDATE runs SET plan = ?", (plan,))
        with pytest.raises(LedgerError):
            charge(ledger, answer_of(2), PLAN, LOOSE)
