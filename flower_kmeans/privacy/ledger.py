"""A node's record of its answers and their joint cost, in one SQLite file.

A node starts a process per message, and a process may die at any moment. So an answer
and its cost are written in one exclusive transaction, which is on the disk before
anything is sent. A crash in between loses an answer, never a charge.

The first answer or vote in a run reserves the cost of its plan. Answers turn
reservations into charges, and unused reservations are given back when the run ends.
Only one sum of a round can be reconstructed, so a round is charged once. The last
answer and the last vote of each run stay in the file for good. So a client never gives
another answer to a round, even after the run. The file holds the sums of a filter
(`privacy.filter`), so a charge reads nothing of other runs (docs/threat-model.md, "The
ledger").

In a run that protects clients, a person moves the answer of one client by at most 2, in
units of the sensitivity. A node does not know at how many other clients the person has
records, so the sum for a person assumes the policy's `max_clients_per_person`: 2 at
each. The file holds that number. The sum grows when the policy's number does, and never
shrinks with it.

The file also holds an opaque memory for each run: the client's session.
"""

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from flower_kmeans.errors import BudgetError, KMeansError, LedgerError
from flower_kmeans.privacy.filter import COVERED_UNITS, Charge, Price
from flower_kmeans.privacy.ledger_file import (
    DAMAGED,
    FULL,
    LOCKED,
    READ_ONLY,
    find_private_file,
    make_private_file,
    os_sentence,
)

MAX_UNANSWERED = 16
"""Most runs without an answer or a vote whose memories are kept."""
FORGET_AFTER = 30 * 24 * 3600
"""Seconds without a write after which an unfinished run is ended."""

LEDGER_UNITS = COVERED_UNITS["client"]
"""Units of privacy that a ledger has sums for, the largest first."""

_VERSION = 5
_BUSY_SECONDS = 60.0
_SETTINGS = (
    # when a commit returns, it is on the disk with its directory entry
    "synchronous = EXTRA",
    # on macOS a drive may keep synced data in its cache without these
    "fullfsync = ON",
    "checkpoint_fullfsync = ON",
    "secure_delete = ON",  # erased secrets are overwritten in the file
)
_CAUSES = {
    sqlite3.SQLITE_FULL: FULL,
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_READONLY: READ_ONLY,
    sqlite3.SQLITE_PERM: READ_ONLY,
    sqlite3.SQLITE_NOTADB: DAMAGED,
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_IOERR: "The ledger's disk fails, or has no room for this user",
    sqlite3.SQLITE_CANTOPEN: "The ledger cannot be opened",
}
# States of a run: it has given nothing; it has given an answer or a vote; it is over.
_NOTHING = 0
_SOMETHING = 1
_ENDED = 2
# The sum for a unit exists as long as all runs cover that unit (`COVERED_UNITS`): after
# a run that protects records nothing bounds what all runs cost one person or client.
# "writes" counts all writes, so no version of a memory occurs twice, even if a run's row
# was deleted and made again.
_SCHEMA = """
CREATE TABLE sums (unit TEXT PRIMARY KEY, charge TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO sums VALUES
    ('client', '[0, 0, 0]'), ('person', '[0, 0, 0]'), ('record', '[0, 0, 0]');
CREATE TABLE writes (number INTEGER NOT NULL);
INSERT INTO writes VALUES (0);
CREATE TABLE runs (
    run BLOB PRIMARY KEY, given INTEGER NOT NULL DEFAULT 0, touched INTEGER NOT NULL,
    version INTEGER NOT NULL, round INTEGER, attempt INTEGER, context BLOB, digest BLOB,
    query BLOB, vote_round INTEGER, variant BLOB, reserved TEXT, memory BLOB NOT NULL
);
CREATE INDEX by_age ON runs (given, touched, version);
"""


class AnotherAnswerError(KMeansError):
    """A different answer to this query, or a different vote in this round, was given."""


class StaleAnswerError(KMeansError):
    """The client has already answered a later query, or voted in a later round."""


class MemoryChangedError(KMeansError):
    """Another process replaced the memory after it was read: read it and decide again."""


@dataclass(frozen=True)
class LifetimeLimit:
    """The (epsilon, delta) that all charged releases must meet together.

    The limit is for clients if all runs protect clients, for persons if all runs
    protect persons or clients, and else for single records. It holds even if runs were
    chosen after earlier results.

    Attributes
    ----------
    epsilon, delta : float
    max_clients_per_person : int
        Most clients at which one person has records. It is an assumption, and runs that
        protect persons assume at least as many.
    """

    epsilon: float
    delta: float
    max_clients_per_person: int = 1


@dataclass(frozen=True)
class _LedgerSums:
    """The sums of charges and reservations.

    Attributes
    ----------
    charges : dict of str to Charge
        By unit, for the units that all runs cover.
    clients : int
        Most clients of one person for which the sum for a person holds.
    """

    charges: dict[str, Charge] = field(default_factory=dict)
    clients: int = 1

    def for_persons_at(self, clients: int) -> "_LedgerSums":
        """Return sums for persons at up to ``clients`` clients, or at more if they are so."""
        if clients <= self.clients:
            return self
        charges = dict(self.charges)
        if "person" in charges:
            # So many groups of clients together have all clients of a person.
            group = math.ceil(Fraction(clients, self.clients))
            charges["person"] = charges["person"].of_group(group)
        return _LedgerSums(charges, clients)

    def plus(self, price: Price) -> "_LedgerSums":
        """Return sums with the price of a run, for the units that this run covers, too."""
        added = {}
        for unit, charge in price.whole.items():
            if unit in self.charges:
                added[unit] = self.charges[unit] + charge
        return _LedgerSums(added, self.clients)

    def minus(self, price: Price) -> "_LedgerSums":
        """Return sums without the price of a run, which they contain."""
        rest = dict(self.charges)
        for unit, charge in price.whole.items():
            if unit in rest:
                rest[unit] -= charge
        return _LedgerSums(rest, self.clients)


@dataclass(frozen=True)
class LedgerAnswer:
    """A ledger's entry for one answer.

    Attributes
    ----------
    run : bytes
        Hash of the run document.
    round, attempt : int
        Numbers of the round and of the attempt.
    context : bytes
        Hash of everything that the answer depends on, except records and secret.
    digest : bytes
        SHA-256 of the bytes to send.
    query : bytes
        Hash of the round's query, which is the same for all attempts.
    """

    run: bytes
    round: int
    attempt: int
    context: bytes
    digest: bytes
    query: bytes


@dataclass(frozen=True)
class Vote:
    """One vote: the sum of a round for which a committee member adds shares.

    Attributes
    ----------
    run : bytes
        Hash of the run document.
    round : int
        Number of the round.
    variant : bytes
        Hash of the sum: its context, its parts and their clients.
    """

    run: bytes
    round: int
    variant: bytes


class Ledger:
    """An open ledger. Use it as a context manager, in one thread.

    Parameters
    ----------
    state_dir : path
        The node's own directory, mode 0700. It is made if it is missing, but its parent
        must exist. Each node and data set needs one directory: two directories are two
        accounts.
    clock : callable, optional
        Returns the time in seconds since the epoch, for ending unfinished runs.

    Raises
    ------
    LedgerError
        If the directory or the file cannot be used, belongs to another user or can be
        used by others, or if the file is a symbolic link or has another version.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        path = make_private_file(Path(state_dir))
        self._clock = clock
        with _ledger_errors():
            # No isolation level: `_exclusive` begins every transaction itself, with a
            # write lock.
            self._db = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None
            )
            try:
                for setting in _SETTINGS:
                    self._db.execute(f"PRAGMA {setting}")
                self._prepare()
                self._forget_old()
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _prepare(self) -> None:
        if _version(self._db) == _VERSION:
            return
        with self._exclusive():
            if _version(self._db) == 0:  # unless another process was first
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _forget_old(self) -> None:
        """End the runs that nothing was written of for `FORGET_AFTER` seconds."""
        old = (_ENDED, int(self._clock()) - FORGET_AFTER)
        query = "SELECT run FROM runs WHERE given < ? AND touched < ?"
        # Every message opens the ledger, so the usual case takes no lock.
        if self._db.execute(query, old).fetchone() is None:
            return
        with self._exclusive():
            ended = self._db.execute(query, old).fetchall()
            for (run,) in ended:
                self._write_run(run, memory=b"", version=self._next_version())
                self._give_back(run)
            # Runs that gave something keep their row: a different answer or vote must
            # still be noticed.
            self._db.execute(
                "DELETE FROM runs WHERE given = ? AND touched < ?", (_NOTHING, old[1])
            )

    # ------------------------------------------------------------------ memories

    def load(self, run: bytes) -> tuple[int, bytes] | None:
        """Return the version and the content of a run's memory, or ``None``.

        The content is empty if the ledger itself has ended the run (`FORGET_AFTER`).
        """
        row = self._run(run, "version, memory")
        if row is None:
            return None
        return int(row[0]), bytes(row[1])

    def save(self, run: bytes, version: int, memory: bytes) -> int:
        """Replace a run's memory and return its new version.

        ``version`` is the version that was read, or 0 if there was none.

        Raises
        ------
        MemoryChangedError
            If the file now has another version. Nothing is written then.
        """
        with self._exclusive():
            return self._replace(run, version, memory)

    def _replace(self, run: bytes, version: int, memory: bytes) -> int:
        row = self._run(run, "version")
        if (0 if row is None else row[0]) != version:
            # The caller decided from a memory that is no longer there.
            raise MemoryChangedError("Another process changed the memory of this run.")
        new = self._next_version()
        if row is None:
            # The oldest memories of runs that have given nothing make room for the new
            # one.
            self._db.execute(
                # SQLite takes OFFSET only after LIMIT; -1 means no limit.
                "DELETE FROM runs WHERE rowid IN (SELECT rowid FROM runs WHERE given = ? "
                "ORDER BY touched DESC, version DESC LIMIT -1 OFFSET ?)",
                (_NOTHING, MAX_UNANSWERED - 1),
            )
            self._db.execute(
                "INSERT INTO runs (run, touched, version, memory) VALUES (?, ?, ?, ?)",
                (run, int(self._clock()), new, memory),
            )
        else:
            now = int(self._clock())
            self._write_run(run, version=new, memory=memory, touched=now)
        return new

    def _next_version(self) -> int:
        self._db.execute("UPDATE writes SET number = number + 1")
        return int(self._db.execute("SELECT number FROM writes").fetchone()[0])

    def _run(self, run: bytes, columns: str) -> Any:
        with _ledger_errors():
            query = f"SELECT {columns} FROM runs WHERE run = ?"  # noqa: S608 (our own names)
            return self._db.execute(query, (run,)).fetchone()

    def _write_run(self, run: bytes, **values: Any) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        statement = f"UPDATE runs SET {columns} WHERE run = ?"  # noqa: S608 (our own names)
        self._db.execute(statement, (*values.values(), run))

    def end(self, run: bytes, version: int, memory: bytes) -> int:
        """End a run: replace its memory, and take its unused reservations out of the sums.

        Parameters and errors are those of `save`. A run that has ended before has no
        reservations left.
        """
        with self._exclusive():
            replaced = self._replace(run, version, memory)
            self._give_back(run)
            return replaced

    def end_all(self, change: Callable[[bytes], bytes | None]) -> int:
        """End runs in one transaction, each as `end` does, and return their number.

        ``change`` takes the memory of a run that has not ended. It returns the new
        memory if the run ends now, or ``None`` if the run goes on.
        """
        n_ended = 0
        with self._exclusive():
            query = "SELECT run, version, memory FROM runs WHERE given < ?"
            rows = self._db.execute(query, (_ENDED,)).fetchall()
            for run, version, memory in rows:
                replacement = change(bytes(memory))
                if replacement:
                    self._replace(bytes(run), int(version), replacement)
                    self._give_back(bytes(run))
                    n_ended += 1
        return n_ended

    def _give_back(self, run: bytes) -> None:
        """End a run that has given something, and take its reservations out of the sums."""
        given, reserved = self._run(run, "given, reserved")
        if given != _SOMETHING:
            return
        if reserved is not None:
            # Where the sum for a person has grown since, too little comes back. That is
            # on the safe side.
            self._write_sums(_sums(self._db).minus(_price_from(reserved)))
        self._write_run(run, given=_ENDED, reserved=None)
        self._write_anew(run)

    def _write_anew(self, run: bytes) -> None:
        """Delete a row and insert it anew, because a row that was large keeps its pages."""
        row = tuple(self._run(run, "*"))
        self._db.execute("DELETE FROM runs WHERE run = ?", (run,))
        places = ", ".join("?" for _ in row)
        self._db.execute(f"INSERT INTO runs VALUES ({places})", row)  # noqa: S608 (only marks)

    # ---------------------------------------------------------------- answers and votes

    def last_answer(self, run: bytes) -> tuple[int, int, bytes, bytes, bytes] | None:
        """Return a run's last answer, or ``None``.

        The answer is a tuple (round, attempt, context, digest, query).
        """
        last: tuple[int, int, bytes, bytes, bytes] | None
        last = self._last(run, "round, attempt, context, digest, query")
        return last

    def last_vote(self, run: bytes) -> tuple[int, bytes] | None:
        """Return the round and the variant of a run's last vote, or ``None``."""
        last: tuple[int, bytes] | None = self._last(run, "vote_round, variant")
        return last

    def _last(self, run: bytes, columns: str) -> Any:
        row = self._run(run, columns)
        if row is None or row[0] is None:
            return None
        return tuple(row)

    def charge(
        self,
        answer: LedgerAnswer,
        price: Price | None,
        limit: LifetimeLimit,
        version: int,
        memory: bytes,
    ) -> int:
        """Write an answer, its cost and the run's memory, all or nothing.

        Everything is on the disk when this returns. The answer must not be sent before.

        Parameters
        ----------
        answer : LedgerAnswer
        price : Price or None
            The price of the run's verified plan, or ``None`` for a run without privacy.
        limit : LifetimeLimit
            The limit of all runs. It is checked only if the sums grow: a repeated
            answer, or a round that is reserved, is not refused.
        version : int
        memory : bytes
            As in `save`.

        Returns
        -------
        int
            The new version of the memory.

        Raises
        ------
        BudgetError
            If all runs together would exceed the limit.
        StaleAnswerError
            If a later (round, attempt) was answered.
        AnotherAnswerError
            If this (round, attempt) was answered in another way, or this round for
            another query.
        MemoryChangedError
            If the file now has another version of the memory.
        """
        with self._exclusive():
            # The memory comes first, because the answer was made from this version. An
            # error undoes both.
            replaced = self._replace(answer.run, version, memory)
            last = self.last_answer(answer.run)
            place = answer.round, answer.attempt
            _require_order(last, place, answer.context, answer.digest, answer.query)
            _require_one_query(last, answer)
            # A further attempt at a round costs nothing (docs/protocol.md, "Ledger,
            # restart and resuming").
            if price is not None and (last is None or answer.round > last[0]):
                self._charge_round(answer, price, limit)
            written = asdict(answer)
            self._give(written.pop("run"), **written)
            return replaced

    def vote(
        self,
        vote: Vote,
        price: Price | None,
        limit: LifetimeLimit,
        version: int,
        memory: bytes,
    ) -> int:
        """Write a vote and the run's memory, all or nothing.

        The first vote in a run reserves the cost of its plan, as the first answer does.
        So the limit also bounds the runs in which a client votes without an answer.
        Parameters, result and errors are those of `charge`.
        """
        with self._exclusive():
            replaced = self._replace(vote.run, version, memory)
            _require_order(self.last_vote(vote.run), (vote.round,), vote.variant)
            if price is not None:
                self._reserve(vote.run, price, limit)
            self._give(vote.run, vote_round=vote.round, variant=vote.variant)
            return replaced

    def _give(self, run: bytes, **values: Any) -> None:
        """Write values of a run that gives something. A run that is over stays over."""
        self._write_run(run, **values)
        statement = "UPDATE runs SET given = ? WHERE run = ? AND given = ?"
        self._db.execute(statement, (_SOMETHING, run, _NOTHING))

    def _charge_round(
        self, answer: LedgerAnswer, price: Price, limit: LifetimeLimit
    ) -> None:
        """Charge a new round, from the run's reservation if there is one."""
        (given,) = self._run(answer.run, "given")
        # An ended run has given its reservations back, so each round is charged alone.
        if given == _ENDED:
            self._add(price.only(answer.round), limit)
            return
        rest = self._reserve(answer.run, price, limit).without(answer.round)
        self._write_run(answer.run, reserved=_price_text(rest))

    def _reserve(self, run: bytes, price: Price, limit: LifetimeLimit) -> Price:
        """Return a run's reservation, and reserve its whole plan if it has none yet.

        With smaller reservations, runs that began together could all get stuck half
        way. A run that is over reserves nothing.
        """
        given, reserved = self._run(run, "given, reserved")
        if reserved is not None:
            return _price_from(reserved)
        if given == _ENDED:
            return price
        added = self._add(price, limit)
        self._write_run(run, reserved=_price_text(added))
        return added

    def _add(self, price: Price, limit: LifetimeLimit) -> Price:
        """Add a price to the sums, or raise a `BudgetError` if they exceed the limit.

        Return the price that was added: for all clients of a person.
        """
        sums = _sums(self._db).for_persons_at(limit.max_clients_per_person)
        added = price.for_persons_at(sums.clients, limit.max_clients_per_person)
        sums = sums.plus(added)
        _require(sums, limit)
        self._write_sums(sums)
        return added

    def _write_sums(self, sums: _LedgerSums) -> None:
        self._db.execute("DELETE FROM sums")
        rows = []
        for unit, charge in sums.charges.items():
            values = [*astuple(charge)]
            if unit == "person" and sums.clients > 1:
                values.append(sums.clients)
            rows.append((unit, json.dumps(values)))
        self._db.executemany("INSERT INTO sums VALUES (?, ?)", rows)

    def require_room(
        self, run: bytes, price: Price | None, limit: LifetimeLimit
    ) -> None:
        """Require that the limit has room for a run's plan, if it is not reserved yet.

        A run that is reserved or charged costs nothing further. It is still checked,
        because the limit may have been tightened since. The result is not binding:
        another process may take the room before `charge`.

        Raises
        ------
        BudgetError
            If all runs together exceed the limit.
        """
        if price is None:
            return
        with _ledger_errors():
            sums = _sums(self._db).for_persons_at(limit.max_clients_per_person)
            if not self._is_counted(run):
                added = price.for_persons_at(sums.clients, limit.max_clients_per_person)
                sums = sums.plus(added)
            _require(sums, limit)

    def _is_counted(self, run: bytes) -> bool:
        """Return whether the sums contain a run already, by an answer or a reservation."""
        row = self._run(run, "round, reserved")
        return row is not None and tuple(row) != (None, None)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon of all charges and reservations together at a delta."""
        with _ledger_errors():
            return _total(_sums(self._db)).epsilon(delta)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Run a transaction with the write lock: all of it happens, or nothing."""
        with _ledger_errors():
            # IMMEDIATE takes the write lock before anything is read, so no two
            # processes decide from the same sums. A deferred transaction would fail at
            # its first write instead of waiting.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # SQLite rolls back by itself after some errors, such as a full disk.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def spent_epsilon(
    state_dir: str | os.PathLike[str], delta: float, max_clients_per_person: int = 1
) -> float | None:
    """Return the joint epsilon of all charges and reservations at a delta.

    It is for the unit of `LifetimeLimit`. A person is one with records at up to
    ``max_clients_per_person`` clients, or at as many as the ledger assumed if that is
    more. Nothing on the disk changes. The result is ``None`` if there is no ledger yet,
    and one can be made.

    Raises
    ------
    LedgerError
        If `Ledger` would raise it, or the charges cannot be read.
    """
    sums = _stored_sums(state_dir)
    if sums is None:
        return None
    return _total(sums.for_persons_at(max_clients_per_person)).epsilon(delta)


def spent_by_unit(
    state_dir: str | os.PathLike[str], delta: float, max_clients_per_person: int = 1
) -> dict[str, float | None] | None:
    """Return the joint epsilon of all charges and reservations by unit of privacy.

    A unit that some run did not cover has ``None``: no number bounds what all runs cost
    it. Parameters, result and errors are otherwise those of `spent_epsilon`.
    """
    sums = _stored_sums(state_dir)
    if sums is None:
        return None
    found: dict[str, float | None] = dict.fromkeys(LEDGER_UNITS)
    charges = sums.for_persons_at(max_clients_per_person).charges
    for unit, charge in charges.items():
        found[unit] = charge.epsilon(delta)
    return found


def _stored_sums(state_dir: str | os.PathLike[str]) -> _LedgerSums | None:
    """Return the sums of a ledger, or ``None`` if there is none yet, and change nothing."""
    path = find_private_file(Path(state_dir))
    if path is None:
        return None
    # Read-only, because a reader that may write would roll back a dead process's
    # transaction.
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with (
        _ledger_errors(),
        closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as db,
    ):
        try:
            if _version(db):
                sums = _sums(db)
            else:
                sums = _LedgerSums({unit: Charge() for unit in LEDGER_UNITS})
        except sqlite3.OperationalError as error:
            # A dead process left a journal, which only a writer may roll back.
            if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
                raise
            raise LedgerError(
                "A process died while it wrote the ledger. The node's next message undoes what it "
                "left half done; until then the ledger cannot be read without changing it."
            ) from None
    return sums


def _version(db: sqlite3.Connection) -> int:
    """Return the version of a file's tables, or 0 if it has none yet."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, _VERSION):
        raise LedgerError(
            f"Expected a ledger of version {_VERSION}. Got version {version} instead, and its "
            "charges cannot be read: use the flower-kmeans that wrote it. Another state_dir is "
            "another account, which knows nothing of what was spent here."
        )
    return version


def _sums(db: sqlite3.Connection) -> _LedgerSums:
    """Return the sums in a file."""
    charges = {}
    clients = 1
    for unit, text in db.execute("SELECT unit, charge FROM sums"):
        values = json.loads(text)
        # A fourth number is that of a person's clients, if they are more than one. A
        # library that does not know it refuses the file.
        if unit == "person" and len(values) > 3:
            clients = values.pop()
        charges[unit] = _charge_from(values)
    if type(clients) is not int or clients < 1:
        raise TypeError
    return _LedgerSums(charges, clients)


def _total(sums: _LedgerSums) -> Charge:
    """Return the decisive sum: for the largest unit that all runs cover.

    A run that protects clients or persons protects smaller units, too. Its price
    therefore contains charges for them.
    """
    # The sum for a unit is removed by the first run that does not cover it
    # (`_LedgerSums.plus`).
    for unit in LEDGER_UNITS:
        if unit in sums.charges:
            return sums.charges[unit]
    raise LookupError


def _require(sums: _LedgerSums, limit: LifetimeLimit) -> None:
    charge = _total(sums)
    if not charge.fits(limit.epsilon, limit.delta):
        raise BudgetError(
            f"The ledger does not allow it. Expected all runs together to cost epsilon <= "
            f"{limit.epsilon:g} at delta {limit.delta:g}. Got "
            f"{charge.epsilon(limit.delta):.6g} with this release instead."
        )


def _require_order(
    last: tuple[Any, ...] | None, now: tuple[int, ...], *content: bytes
) -> None:
    """Require an answer or vote to come after the last one, or to repeat it."""
    if last is None:
        return
    place = last[: len(now)]
    before = last[len(now) :]
    if now < place:
        raise StaleAnswerError(
            "A later query was answered, or a later round voted for, before."
        )
    # A repeated answer is welcome: a server that lost a reply asks once more, at no
    # cost.
    if now == place and content != before:
        raise AnotherAnswerError("Something else was answered, or voted for, before.")


def _require_one_query(
    last: tuple[int, int, bytes, bytes, bytes] | None, answer: LedgerAnswer
) -> None:
    """Require that all attempts at a round have the same query."""
    if last is None:
        return
    round_number, _, _, _, query = last
    if round_number == answer.round and query != answer.query:
        raise AnotherAnswerError("Another query of this round was answered before.")


def _price_text(price: Price) -> str:
    rounds = []
    for charges in price.rounds:
        rounds.append({unit: astuple(charge) for unit, charge in charges.items()})
    return json.dumps({"unit": price.unit, "rounds": rounds})


def _price_from(text: str) -> Price:
    price = json.loads(text)
    rounds = []
    for charges in price["rounds"]:
        covered = COVERED_UNITS[price["unit"]]
        rounds.append({unit: _charge_from(charges[unit]) for unit in covered})
    return Price(price["unit"], tuple(rounds))


def _charge_from(values: Any) -> Charge:
    # isinstance would accept booleans.
    is_listed = isinstance(values, list)
    if not is_listed or not all(type(value) is int for value in values):
        raise TypeError
    return Charge(*values)


def _sentence_of(error: sqlite3.Error) -> str:
    """Return the sentence on an error of SQLite. Such an error never means a limit."""
    # The last byte is the kind of error. The other bytes are details.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    cause = _CAUSES.get(code, "The ledger cannot be used")
    return f"{cause}: {error}."


@contextmanager
def _ledger_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(_sentence_of(error)) from None
    except OSError as error:
        raise LedgerError(os_sentence("ledger", error)) from None
    except (json.JSONDecodeError, LookupError, TypeError):
        raise LedgerError("The ledger holds something that no ledger writes.") from None
