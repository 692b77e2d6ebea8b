"""A node's memory of its releases and their joint cost, in one SQLite file.

A node starts a process per message, and any of them may die at any moment. So an answer
is written down, with what it costs, in one exclusive transaction that is on the disk
before anything is sent: a crash in between loses an answer, never a charge.

The first answer or vote in a run reserves its plan; answers turn reservations into
charges, and what is left comes back when the run has ended. One sum of a round opens,
so a round is charged once. Of each run the last answer and the last vote stay for good,
with the charge: so a round that was answered is never answered otherwise, also after
the run. Sums are those of a filter (`privacy.filter`); they lie in the file, so a
charge reads nothing of other runs (docs/threat-model.md, "The ledger").

Beside them lies an opaque memory for each run, the client's session.
"""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from flower_kmeans.errors import BudgetError, KMeansError, LedgerError
from flower_kmeans.privacy.filter import Charge, Price
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
"""Most memories that are kept of runs without an answer or a vote."""
FORGET_AFTER = 30 * 24 * 3600
"""Seconds after which an unfinished run that nothing was written of is ended."""

_VERSION = 4
_BUSY_SECONDS = 60.0
_SETTINGS = (
    # a commit is on the disk, with its directory entry, when it returns
    "synchronous = EXTRA",
    # on macOS too, where a drive may keep in its cache what was synced
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
# What a run has given: nothing, an answer or a vote, and nothing further as it is over.
_NOTHING = 0
_SOMETHING = 1
_ENDED = 2
# Of the sums, "client" is there as long as all runs protect clients. "writes" counts
# what was ever written, so no version of a memory comes twice, not even of one that was
# dropped and made again.
_SCHEMA = """
CREATE TABLE sums (unit TEXT PRIMARY KEY, charge TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO sums VALUES ('client', '[0, 0, 0]'), ('record', '[0, 0, 0]');
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
    """Another answer was given to this query, or another vote in this round, before."""


class StaleAnswerError(KMeansError):
    """A later query was answered, or a later round voted for, before."""


class MemoryChangedError(KMeansError):
    """Another process replaced the memory since it was read: read and decide again."""


@dataclass(frozen=True)
class LifetimeLimit:
    """The (epsilon, delta) that all releases ever charged must meet together.

    It counts for clients if all runs protect clients, else for single records, and
    holds also where runs were chosen after earlier results.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True)
class LedgerAnswer:
    """A ledger's entry for one answer."""

    run: bytes  # hash of the run document
    round: int
    attempt: int
    context: bytes  # hash of all that the answer depends on beside records and secret
    digest: bytes  # SHA-256 of the bytes to send
    query: bytes  # hash of what the round asks; one for all attempts at it


@dataclass(frozen=True)
class Vote:
    """One vote: for which sum of a round a client adds its shares."""

    run: bytes  # hash of the run document
    round: int
    variant: bytes  # hash of the sum: of its context, its parts and their clients


class Ledger:
    """An open ledger. Use it as a context manager, in one thread.

    Parameters
    ----------
    state_dir : path
        The node's own directory, mode 0700, in a parent that exists; it is made if it
        is missing. One per node and data set: two directories are two accounts.
    clock : callable, optional
        Returns the time in seconds since the epoch, by which unfinished runs are
        forgotten.

    Raises
    ------
    LedgerError
        If the directory or the file cannot be used, is another user's or open to
        others, or if the file is a symbolic link, or of another version.
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
            # No level: `_exclusive` begins every transaction itself, with the lock that
            # it needs.
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
            if _version(self._db) == 0:  # or another process was first
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _forget_old(self) -> None:
        """End the runs without a write for long; most often there are none."""
        old = (_ENDED, int(self._clock()) - FORGET_AFTER)
        query = "SELECT run FROM runs WHERE given < ? AND touched < ?"
        # A look without a lock first: every message opens the ledger.
        if self._db.execute(query, old).fetchone() is None:
            return
        with self._exclusive():
            ended = self._db.execute(query, old).fetchall()
            for (run,) in ended:
                self._write_run(run, memory=b"", version=self._next_version())
                self._give_back(run)
            # Runs that gave something keep their row: another answer or vote must be
            # noticed.
            self._db.execute(
                "DELETE FROM runs WHERE given = ? AND touched < ?", (_NOTHING, old[1])
            )

    # ------------------------------------------------------------------ memories

    def load(self, run: bytes) -> tuple[int, bytes] | None:
        """Return version and content of a run's memory, or ``None``.

        The content is empty where the ledger itself has ended the run (`FORGET_AFTER`).
        """
        row = self._run(run, "version, memory")
        if row is None:
            return None
        return int(row[0]), bytes(row[1])

    def save(self, run: bytes, version: int, memory: bytes) -> int:
        """Replace a run's memory and return its new version.

        ``version`` is the one that was read, 0 if there was none. If the file holds
        another one by now, nothing is written and ``MemoryChangedError`` is raised.
        """
        with self._exclusive():
            return self._replace(run, version, memory)

    def _replace(self, run: bytes, version: int, memory: bytes) -> int:
        row = self._run(run, "version")
        if (0 if row is None else row[0]) != version:
            # What the caller wants to write was decided from a memory that is no longer
            # there.
            raise MemoryChangedError("Another process changed the memory of this run.")
        new = self._next_version()
        if row is None:
            # Drop the oldest memories of runs that have given nothing, to keep one
            # more.
            self._db.execute(
                # SQLite has an OFFSET only behind a LIMIT; -1 is none.
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
        """Replace the memory of an ended run, and give back its unused reservation.

        Parameters and errors are those of `save`. A run that ended before gives back
        nothing more.
        """
        with self._exclusive():
            replaced = self._replace(run, version, memory)
            self._give_back(run)
            return replaced

    def end_all(self, change: Callable[[bytes], bytes | None]) -> int:
        """End runs in one transaction, each as `end` does, and return how many ended.

        ``change`` returns what replaces the memory of a run that ends now, or ``None``
        for any other run, which is left as it is.
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
        """End a run that has given something: take its reservations out of the sums."""
        given, reserved = self._run(run, "given, reserved")
        if given != _SOMETHING:
            return
        if reserved is not None:
            sums = _sums(self._db)
            for charges in _price_from(reserved).rounds:
                for unit, charge in zip(("client", "record"), charges, strict=True):
                    if unit in sums:
                        sums[unit] -= charge
            self._write_sums(sums)
        self._write_run(run, given=_ENDED, reserved=None)
        self._write_anew(run)

    def _write_anew(self, run: bytes) -> None:
        """Write a row behind the others: a large one keeps a page of the file."""
        row = tuple(self._run(run, "*"))
        self._db.execute("DELETE FROM runs WHERE run = ?", (run,))
        places = ", ".join("?" for _ in row)
        self._db.execute(f"INSERT INTO runs VALUES ({places})", row)  # noqa: S608 (only marks)

    # ---------------------------------------------------------------- answers and votes

    def last_answer(self, run: bytes) -> tuple[int, int, bytes, bytes, bytes] | None:
        """Return a run's last answer, or ``None``.

        It is round, attempt, context, digest and query.
        """
        last: tuple[int, int, bytes, bytes, bytes] | None
        last = self._last(run, "round, attempt, context, digest, query")
        return last

    def last_vote(self, run: bytes) -> tuple[int, bytes] | None:
        """Return round and variant of a run's last vote, or ``None``."""
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
        """Write an answer, its cost and the memory that goes with it, all or nothing.

        It is on the disk when this returns: send the answer then, and not before.

        ``price`` is the run's, of its verified plan; ``None`` for a run without
        privacy. The limit is checked only if the answer is charged; what was charged
        before is not refused. The rest is as in `save`.

        Raises
        ------
        BudgetError
            If all runs together would exceed the limit.
        StaleAnswerError, AnotherAnswerError, MemoryChangedError
            If a later (round, attempt) was answered, or this one otherwise, or this
            round for another query, or if the file holds another version of the memory
            by now.
        """
        with self._exclusive():
            # The memory first: the answer was made from this version of it. An error
            # undoes both.
            replaced = self._replace(answer.run, version, memory)
            last = self.last_answer(answer.run)
            place = answer.round, answer.attempt
            _require_order(last, place, answer.context, answer.digest, answer.query)
            _require_one_query(last, answer)
            # A further attempt at a round costs nothing (docs/protocol.md, "Ledger and
            # restart").
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
        """Write which sum of a round the client adds its shares for, with the memory.

        The first vote in a run reserves its plan, as a first answer does: so the budget
        bounds the runs that a client votes in without an answer. Parameters and errors
        are those of `charge`.
        """
        with self._exclusive():
            replaced = self._replace(vote.run, version, memory)
            _require_order(self.last_vote(vote.run), (vote.round,), vote.variant)
            if price is not None:
                self._reserve(vote.run, price, limit)
            self._give(vote.run, vote_round=vote.round, variant=vote.variant)
            return replaced

    def _give(self, run: bytes, **values: Any) -> None:
        """Write the state of a run; a run that is over stays so."""
        self._write_run(run, **values)
        statement = "UPDATE runs SET given = ? WHERE run = ? AND given = ?"
        self._db.execute(statement, (_SOMETHING, run, _NOTHING))

    def _charge_round(
        self, answer: LedgerAnswer, price: Price, limit: LifetimeLimit
    ) -> None:
        """Charge a new round, from the plan's reservation where it holds."""
        (given,) = self._run(answer.run, "given")
        # its reservations came back, so each round is charged alone
        if given == _ENDED:
            self._add(price.rounds[answer.round - 1], price.unit, limit)
            return
        left = list(self._reserve(answer.run, price, limit).rounds)
        left[answer.round - 1] = (Charge(), Charge())
        rest = Price(price.unit, tuple(left))
        self._write_run(answer.run, reserved=_price_text(rest))

    def _reserve(self, run: bytes, price: Price, limit: LifetimeLimit) -> Price:
        """Return a run's reservation; at first its whole plan, unless the run is over.

        The whole plan, or runs that began together could all get stuck half way.
        """
        given, reserved = self._run(run, "given, reserved")
        if reserved is not None:
            return _price_from(reserved)
        if given != _ENDED:
            self._add(price.whole, price.unit, limit)
            self._write_run(run, reserved=_price_text(price))
        return price

    def _add(self, due: tuple[Charge, Charge], unit: str, limit: LifetimeLimit) -> None:
        """Add a charge to the sums; a `BudgetError` if that would exceed the limit."""
        sums = _with(_sums(self._db), due, unit)
        _require(sums, limit)
        self._write_sums(sums)

    def _write_sums(self, sums: dict[str, Charge]) -> None:
        self._db.execute("DELETE FROM sums")
        rows = []
        for unit, charge in sums.items():
            rows.append((unit, json.dumps(astuple(charge))))
        self._db.executemany("INSERT INTO sums VALUES (?, ?)", rows)

    def require_room(
        self, run: bytes, price: Price | None, limit: LifetimeLimit
    ) -> None:
        """Require that a run fits with its plan, or as it is if that is reserved.

        A run that was charged costs nothing further, but the limit may have been
        tightened since. Only `charge` decides: another process may take the room in
        between.
        """
        if price is None:
            return
        with _ledger_errors():
            sums = _sums(self._db)
            if not self._is_counted(run):
                sums = _with(sums, price.whole, price.unit)
            _require(sums, limit)

    def _is_counted(self, run: bytes) -> bool:
        """Return whether the sums hold a run already: it was answered, or voted in."""
        row = self._run(run, "round, reserved")
        return row is not None and tuple(row) != (None, None)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon of all charges and reservations at a delta."""
        with _ledger_errors():
            return _total(_sums(self._db)).epsilon(delta)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the file against other writers; all inside happens, or nothing."""
        with _ledger_errors():
            # IMMEDIATE takes the write lock before anything is read, so no two
            # processes decide from the same sums. A deferred one would fail at its
            # first write instead of waiting.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # SQLite rolls back by itself after some errors, as when the disk is
                # full.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def spent_epsilon(state_dir: str | os.PathLike[str], delta: float) -> float | None:
    """Return the joint cost of all charges and reservations at a delta.

    Nothing on the disk changes. It is ``None`` if there is no ledger yet, and one can
    be made. ``LedgerError`` is raised where `Ledger` would raise it, and if the charges
    cannot be read.
    """
    path = find_private_file(Path(state_dir))
    if path is None:
        return None
    # Read only: a reader that may write would finish a dead process's rollback.
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with (
        _ledger_errors(),
        closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as db,
    ):
        try:
            if _version(db):
                charge = _total(_sums(db))
            else:
                charge = Charge()
        except sqlite3.OperationalError as error:
            # SQLite's name for a journal that was left behind, which only a writer may
            # play back.
            if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
                raise
            raise LedgerError(
                "A process died while it wrote the ledger. The node's next message undoes what it "
                "left half done; until then the ledger cannot be read without changing it."
            ) from None
    return charge.epsilon(delta)


def _version(db: sqlite3.Connection) -> int:
    """Return the version of a file's tables; 0 if it has none yet."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, _VERSION):
        raise LedgerError(
            f"Expected a ledger of version {_VERSION}. Got version {version} instead, and its "
            "charges cannot be read: use the flower-kmeans that wrote it. Another state_dir is "
            "another account, which knows nothing of what was spent here."
        )
    return version


def _sums(db: sqlite3.Connection) -> dict[str, Charge]:
    """Return the sums of charges and reservations, by the unit that they protect."""
    rows = db.execute("SELECT unit, charge FROM sums")
    return {unit: _charge_from(json.loads(text)) for unit, text in rows}


def _with(
    sums: dict[str, Charge], due: tuple[Charge, Charge], unit: str
) -> dict[str, Charge]:
    """Return sums with the charge of a run of a unit."""
    added = {"record": sums["record"] + due[1]}
    if unit == "client" and "client" in sums:
        added["client"] = sums["client"] + due[0]
    return added


def _total(sums: dict[str, Charge]) -> Charge:
    """Return the decisive sum: for clients if all runs protect clients, else records.

    A run that protects clients protects a single record too; what one record of a
    client that stays may move is part of the run's price.
    """
    # "client" is gone for good after the first run that protects single records
    # (`_with`).
    return sums.get("client", sums["record"])


def _require(sums: dict[str, Charge], limit: LifetimeLimit) -> None:
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
    # The same answer again is wanted: a server that lost a reply asks once more, at no
    # cost.
    if now == place and content != before:
        raise AnotherAnswerError("Something else was answered, or voted for, before.")


def _require_one_query(
    last: tuple[int, int, bytes, bytes, bytes] | None, answer: LedgerAnswer
) -> None:
    """Require that all attempts at a round ask the same."""
    if last is None:
        return
    round_number, _, _, _, query = last
    if round_number == answer.round and query != answer.query:
        raise AnotherAnswerError("Another query of this round was answered before.")


def _price_text(price: Price) -> str:
    rounds = [[astuple(charge) for charge in charges] for charges in price.rounds]
    return json.dumps({"unit": price.unit, "rounds": rounds})


def _price_from(text: str) -> Price:
    price = json.loads(text)
    rounds = []
    for pair in price["rounds"]:
        rounds.append((_charge_from(pair[0]), _charge_from(pair[1])))
    return Price(price["unit"], tuple(rounds))


def _charge_from(values: Any) -> Charge:
    # isinstance would let booleans pass.
    is_listed = isinstance(values, list)
    if not is_listed or not all(type(value) is int for value in values):
        raise TypeError
    return Charge(*values)


def _sentence_of(error: sqlite3.Error) -> str:
    """Return why SQLite could not use the file, which is never the budget's limit."""
    # The last byte is the kind of error; those above it say in which step it came.
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
