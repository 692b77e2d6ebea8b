"""What other processes do to a ledger; here, where a spawned process can import it."""

import os
import sqlite3
from contextlib import closing

from flower_kmeans.errors import BudgetError
from flower_kmeans.privacy import ledger as ledgers
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.filter import price_of
from flower_kmeans.privacy.ledger import (
    AnotherAnswerError,
    Ledger,
    LedgerAnswer,
    LifetimeLimit,
    MemoryChangedError,
    StaleAnswerError,
)
from flower_kmeans.privacy.ledger_file import FILE_NAME
from flower_kmeans.privacy.plan import calibrate
from flower_kmeans.privacy.release import Release

DELTA = 1e-6
CRASHED = 9


def gaussian_plan(rounds=3, epsilon=1.0, unit="record"):
    release = Release("sums", "gaussian", "l2", 1.0, ("sums",))
    return calibrate(PrivacyBudget(epsilon, DELTA, unit), [[release]] * rounds, None)


def laplace_plan(rounds=2, epsilon=1.0, unit="record"):
    release = Release("all", "laplace", "l1", 1.0, ("sums",))
    return calibrate(PrivacyBudget(epsilon, 0.0, unit), [[release]] * rounds, None)


def answer_of(run=1, t=1, attempt=1, context=1, digest=None, query=1):
    return LedgerAnswer(
        bytes([run]) * 32,
        t,
        attempt,
        bytes([context]) * 32,
        bytes([context if digest is None else digest]) * 32,
        bytes([query]) * 32,
    )


def price(plan):
    """Return what a run of a plan costs in a ledger; a run without one costs nothing."""
    return None if plan is None else price_of(plan.budget.unit, plan.rounds)


def charge(ledger, answer, plan, limit):
    """Read the run's memory and charge an answer with it, as often as others come between."""
    while True:
        version, memory = ledger.load(answer.run) or (0, b"")
        try:
            kept = memory + bytes([answer.attempt])
            return ledger.charge(answer, price(plan), limit, version, kept)
        except MemoryChangedError:
            continue


def unfinished(state_dir):
    """Return the runs that a ledger has a memory of and that have not ended."""
    db = sqlite3.connect(state_dir / FILE_NAME)
    try:
        return {run for (run,) in db.execute("SELECT run FROM runs WHERE given < 2")}
    finally:
        db.close()


def row_sizes(state_dir):
    """Return how many bytes the values of each run have, in the fewest that SQLite stores."""

    def size(value):
        if value is None:
            return 0
        if isinstance(value, int):
            return (value.bit_length() + 8) // 8
        return len(value.encode() if isinstance(value, str) else value)

    with closing(sqlite3.connect(state_dir / FILE_NAME)) as db:
        return [sum(map(size, row)) for row in db.execute("SELECT * FROM runs")]


def race_for_budget(barrier, results, state_dir, runs, limit):
    """Charge many runs; report those that were accepted."""
    plan = gaussian_plan()
    barrier.wait()
    accepted = []
    with Ledger(state_dir) as ledger:
        for run in runs:
            try:
                charge(ledger, answer_of(run), plan, limit)
            except BudgetError:
                continue
            accepted.append(run)
    results.put(accepted)


def race_for_answers(barrier, results, state_dir, context, n):
    """Answer the same queries as another process, differently; report what was accepted."""
    plan = gaussian_plan(rounds=n)
    barrier.wait()
    accepted = []
    with Ledger(state_dir) as ledger:
        for t in range(1, n + 1):
            try:
                charge(
                    ledger,
                    answer_of(t=t, context=context),
                    plan,
                    LifetimeLimit(100.0, DELTA),
                )
            except (AnotherAnswerError, StaleAnswerError):
                continue
            accepted.append(t)
    results.put(accepted)


def die(state_dir, when):
    """End without a word, inside of the transaction or just after it."""
    if when == "inside":
        ledgers._require = lambda *_: os._exit(CRASHED)
    with Ledger(state_dir) as ledger:
        charge(ledger, answer_of(), gaussian_plan(), LifetimeLimit(10.0, DELTA))
        os._exit(CRASHED)


def crash_with_a_hot_journal(path):
    """End within a transaction that has begun to overwrite the file."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA cache_size = 1")
    db.execute("BEGIN IMMEDIATE")
    for number in range(200):
        row = (number.to_bytes(32, "big"), number, number, bytes(5000))
        db.execute(
            "INSERT INTO runs (run, touched, version, memory) VALUES (?, ?, ?, ?)", row
        )
    os._exit(CRASHED)
