"""A node's memory of what it released, in one SQLite file: what runs cost together.

A node starts a process per message, two of them may run at once, and any of them may die at any
moment. So an answer is written down, with what it costs, in one exclusive transaction that is on
the disk before anything is sent: a crash in between loses an answer, never a charge.

What is charged (docs/threat-model.md, "The ledger"): the first answer in a run charges all rounds
of its plan: its own round, and a reservation for the others. Answers to those turn reservations
into charges, and when the run has ended, the reservations that are left come back. A client that
answers a round again as a new member (with other records, or where each attempt may end in a sum of
its own) gives a further release, so that round is charged once more. The same answer again costs
nothing, and another answer to the same (run, round, attempt) is refused. A run without privacy has
no price and is not counted.

Runs are chosen after the results of others, so charges and reservations are summed up as a filter
does (`privacy.filter`): for clients if all runs protect clients, else for single records. The sums
lie in the file, so a charge reads nothing of other runs.

Beside them lies an opaque memory for each run, which its owner replaces by comparing versions.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from flower_kmeans.errors import BudgetError, KMeansError, LedgerError
from flower_kmeans.privacy.filter import Charge, Price
from flower_kmeans.privacy.ledger_file import find_private_file, make_private_file

_VERSION = 2
_BUSY_SECONDS = 60.0
_SETTINGS = (
    "synchronous = EXTRA",
    "fullfsync = ON",
    "checkpoint_fullfsync = ON",
    "secure_delete = ON",
)
# Of the sums, "client" is there as long as all runs protect clients.
_SCHEMA = """
CREATE TABLE runs (run BLOB PRIMARY KEY, price TEXT NOT NULL, ended INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE sums (unit TEXT PRIMARY KEY, charge TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO sums VALUES ('client', '[0, 0, 0]'), ('record', '[0, 0, 0]');
CREATE TABLE answers (
    run BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    member BLOB NOT NULL, context BLOB NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (run, round, attempt)
) WITHOUT ROWID;
CREATE TABLE memories (run BLOB PRIMARY KEY, version INTEGER NOT NULL, memory BLOB NOT NULL);
"""


class AnotherAnswerError(KMeansError):
    """What was asked for was answered before, with something else."""


class MemoryChangedError(KMeansError):
    """Another process replaced the memory since it was read: read it, and decide, again."""


@dataclass(frozen=True)
class Limit:
    """What all runs together may cost.

    Attributes
    ----------
    epsilon, delta : float
        All releases ever charged must meet this epsilon at this delta together, also where runs
        were chosen after earlier results: for clients if all of their runs protect clients, else
        for single records.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Answer:
    """One answer, by what a ledger must know of it.

    Attributes
    ----------
    run : bytes
        Hash of the run document.
    round, attempt : int
        Which question was answered.
    member : bytes
        Public name of who answers, and of what it may become part of: one secret and one data set,
        and one attempt where each may end in a sum of its own.
    context : bytes
        Hash of all that the answer depends on beside records and secret.
    digest : bytes
        SHA-256 of the bytes to send.
    """

    run: bytes
    round: int
    attempt: int
    member: bytes
    context: bytes
    digest: bytes


class Ledger:
    """An open ledger. Use it as a context manager, in one thread.

    Parameters
    ----------
    state_dir : path
        The node's own directory, mode 0700, in a parent that exists; it is made if it is missing.
        One per node and data set: two directories are two accounts.

    Raises
    ------
    LedgerError
        If the directory or the file cannot be used, is another user's, or is open to others than
        its owner, or if the file is a symbolic link.
    """

    def __init__(self, state_dir: str | os.PathLike[str]) -> None:
        path = make_private_file(Path(state_dir))
        with _ledger_errors():
            self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                # EXTRA: a commit is on the disk, with its directory entry, when it returns.
                # fullfsync: on macOS too, where a drive may keep in its cache what was synced;
                # elsewhere it changes nothing. secure_delete: erased secrets are overwritten in the
                # file.
                for setting in _SETTINGS:
                    self._db.execute(f"PRAGMA {setting}")
                self._prepare()
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

    # ------------------------------------------------------------------ memories

    def load(self, run: bytes) -> tuple[int, bytes] | None:
        """Return version and content of a run's memory, or ``None``."""
        with _ledger_errors():
            row = self._db.execute(
                "SELECT version, memory FROM memories WHERE run = ?", (run,)
            ).fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def save(self, run: bytes, version: int, memory: bytes) -> int:
        """Replace a run's memory and return its new version.

        Parameters
        ----------
        version : int
            The version that was read; 0 if there was none.

        Raises
        ------
        MemoryChangedError
            If the file holds another version by now. Nothing is written.
        """
        with self._exclusive():
            return self._replace(run, version, memory)

    def _replace(self, run: bytes, version: int, memory: bytes) -> int:
        row = self._db.execute("SELECT version FROM memories WHERE run = ?", (run,)).fetchone()
        if (0 if row is None else row[0]) != version:
            raise MemoryChangedError("Another process changed the memory of this run.")
        self._db.execute(
            "INSERT OR REPLACE INTO memories VALUES (?, ?, ?)", (run, version + 1, memory)
        )
        return version + 1

    def end(self, run: bytes, version: int, memory: bytes) -> int:
        """Replace the memory of a run that has ended, and give back what it did not use.

        Parameters and errors are those of `save`. A run that ended before gives back nothing more.
        """
        with self._exclusive():
            replaced = self._replace(run, version, memory)
            self._give_back(run)
            return replaced

    def end_all(self, change: Callable[[bytes], bytes | None]) -> int:
        """End runs in one transaction: replace their memories, and give back what they left.

        Parameters
        ----------
        change : callable
            Returns what replaces the memory of a run that ends now, or ``None`` for any other run,
            which is left as it is.

        Returns
        -------
        int
            How many were replaced.
        """
        with self._exclusive():
            rows = self._db.execute("SELECT run, version, memory FROM memories").fetchall()
            changed = [
                (bytes(run), version, change(bytes(memory))) for run, version, memory in rows
            ]
            replaced = [(run, version, memory) for run, version, memory in changed if memory]
            for run, version, memory in replaced:
                self._replace(run, int(version), memory)
                self._give_back(run)
            return len(replaced)

    def _give_back(self, run: bytes) -> None:
        """Take the reservations of a run out of the sums: the rounds that were never answered."""
        found = self._price(run)
        if found is None or found[1]:
            return
        answered = {
            t for (t,) in self._db.execute("SELECT round FROM answers WHERE run = ?", (run,))
        }
        sums = _sums(self._db)
        for t, charges in enumerate(found[0].rounds, 1):
            if t not in answered:
                for unit, charge in zip(("client", "record"), charges, strict=True):
                    if unit in sums:
                        sums[unit] -= charge
        self._write(sums)
        self._db.execute("UPDATE runs SET ended = 1 WHERE run = ?", (run,))

    # ------------------------------------------------------------------ charges

    def charge(
        self, answer: Answer, price: Price | None, limit: Limit, version: int, memory: bytes
    ) -> int:
        """Write down an answer, what it costs and the memory that goes with it; all or nothing.

        It is on the disk when this returns: send the answer then, and not before.

        Parameters
        ----------
        answer : Answer
        price : Price or None
            The run's price, of its verified plan; ``None`` for a run without privacy.
        limit : Limit
            Checked only if the answer is charged; what was charged before is not refused.
        version, memory : int, bytes
            As in `save`.

        Returns
        -------
        int
            The memory's new version.

        Raises
        ------
        BudgetError
            If all runs together would exceed the limit.
        AnotherAnswerError
            If another answer was given to this (run, round, attempt).
        MemoryChangedError
            If the file holds another version of the memory by now.
        """
        with self._exclusive():
            replaced = self._replace(answer.run, version, memory)
            place = (answer.run, answer.round, answer.attempt)
            given = (answer.member, answer.context, answer.digest)
            row = self._db.execute(
                "SELECT member, context, digest FROM answers "
                "WHERE run = ? AND round = ? AND attempt = ?",
                place,
            ).fetchone()
            if row is not None:
                if tuple(row) != given:
                    raise AnotherAnswerError("This question was answered with something else.")
                return replaced
            if price is not None:
                self._add(self._due(answer, price), price.unit, limit)
                values = (answer.run, _price_text(price))
                self._db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, 0)", values)
            self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", (*place, *given))
            return replaced

    def _due(self, answer: Answer, price: Price) -> tuple[Charge, Charge] | None:
        """Return what an answer adds to the sums; ``None`` if it is paid for."""
        members = {
            bytes(member)
            for (member,) in self._db.execute(
                "SELECT member FROM answers WHERE run = ? AND round = ?",
                (answer.run, answer.round),
            )
        }
        if answer.member in members:
            return None
        known = self._price(answer.run)
        if known is None:
            return price.whole
        if members or known[1]:  # a further release, or one whose reservation came back
            return known[0].rounds[answer.round - 1]
        return None

    def _add(self, due: tuple[Charge, Charge] | None, unit: str, limit: Limit) -> None:
        """Add to the sums and require that they keep the limit."""
        if due is None:
            return
        sums = _with(_sums(self._db), due, unit)
        _require(sums, limit)
        self._write(sums)

    def _write(self, sums: dict[str, Charge]) -> None:
        self._db.execute("DELETE FROM sums")
        self._db.executemany(
            "INSERT INTO sums VALUES (?, ?)",
            [(unit, json.dumps(astuple(charge))) for unit, charge in sums.items()],
        )

    def _price(self, run: bytes) -> tuple[Price, bool] | None:
        """Return what a run charges, and whether it has ended; ``None`` if it was not charged."""
        row = self._db.execute("SELECT price, ended FROM runs WHERE run = ?", (run,)).fetchone()
        return None if row is None else (_price_from(row[0]), bool(row[1]))

    def require_room(self, run: bytes, price: Price | None, limit: Limit) -> None:
        """Require that a run fits: with its first answer, or, if that was charged, as it is.

        A run that was charged costs nothing further, but the limit may have been tightened since.
        Only `charge` decides: another process may take the room in between.

        Raises
        ------
        BudgetError
            If all runs together would exceed the limit, or do.
        """
        if price is None:
            return
        with _ledger_errors():
            sums = _sums(self._db)
            if self._price(run) is None:
                sums = _with(sums, price.whole, price.unit)
            _require(sums, limit)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon that everything charged or reserved so far meets at a delta."""
        with _ledger_errors():
            return _together(_sums(self._db)).epsilon(delta)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the file against all other writers; everything inside happens, or nothing."""
        with _ledger_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


def spent_epsilon(state_dir: str | os.PathLike[str], delta: float) -> float | None:
    """Return what all that is charged or reserved costs at a delta; change nothing on the disk.

    Parameters
    ----------
    state_dir : path
    delta : float

    Returns
    -------
    float or None
        ``None`` if there is no ledger yet, and one can be made.

    Raises
    ------
    LedgerError
        If a `Ledger` in this directory could not be opened, or its charges cannot be read.
    """
    path = find_private_file(Path(state_dir))
    if path is None:
        return None
    with _ledger_errors():
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        try:
            charge = _together(_sums(db)) if _version(db) else Charge()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
                raise
            raise LedgerError(
                "A process died while it wrote the ledger. The node's next message undoes what it "
                "left half done; until then the ledger cannot be read without changing it."
            ) from None
        finally:
            db.close()
    return charge.epsilon(delta)


def _version(db: sqlite3.Connection) -> int:
    """Return the version of a file's tables; 0 if it has none yet."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, _VERSION):
        raise LedgerError(
            f"Expected a ledger of version {_VERSION}. Got version {version} instead."
        )
    return version


def _sums(db: sqlite3.Connection) -> dict[str, Charge]:
    """Return the sums of all that is charged or reserved, by what they protect."""
    return {
        unit: _charge_from(json.loads(text))
        for unit, text in db.execute("SELECT unit, charge FROM sums")
    }


def _with(sums: dict[str, Charge], due: tuple[Charge, Charge], unit: str) -> dict[str, Charge]:
    """Return sums with what a run of a unit adds to them."""
    added = {"record": sums["record"] + due[1]}
    if unit == "client" and "client" in sums:
        added["client"] = sums["client"] + due[0]
    return added


def _together(sums: dict[str, Charge]) -> Charge:
    """Return the sum that counts: for clients if all runs protect clients, else for records.

    A run that protects clients protects a single record too; what one record of a client that stays
    may move is part of the run's price.
    """
    return sums.get("client", sums["record"])


def _require(sums: dict[str, Charge], limit: Limit) -> None:
    charge = _together(sums)
    if not charge.fits(limit.epsilon, limit.delta):
        raise BudgetError(
            f"Expected all runs together to cost epsilon <= {limit.epsilon:g} at delta "
            f"{limit.delta:g}. Got {charge.epsilon(limit.delta):.6g} with this release instead."
        )


def _price_text(price: Price) -> str:
    rounds = [[astuple(charge) for charge in charges] for charges in price.rounds]
    return json.dumps({"unit": price.unit, "rounds": rounds})


def _price_from(text: str) -> Price:
    price = json.loads(text)
    rounds = tuple((_charge_from(pair[0]), _charge_from(pair[1])) for pair in price["rounds"])
    return Price(price["unit"], rounds)


def _charge_from(values: Any) -> Charge:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise TypeError
    return Charge(*values)


@contextmanager
def _ledger_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"The ledger cannot be used: {error}.") from None
    except (json.JSONDecodeError, LookupError, TypeError):
        raise LedgerError("The ledger holds something that no ledger writes.") from None
