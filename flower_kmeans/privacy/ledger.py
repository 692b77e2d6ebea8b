"""A node's memory of what it released, in one SQLite file: what runs cost together.

A node starts a process per message, two of them may run at once, and any of them may die at any
moment. So an answer is written down, with what it costs, in one exclusive transaction that is on
the disk before anything is sent: a crash in between loses an answer, never a charge.

What is charged (docs/threat-model.md, "The ledger"): the first answer in a run charges all rounds
of its plan. A client that answers a round again as a new member (with other records, or where each
attempt may end in a sum of its own) gives a further release, so that round is charged once more.
The same answer again costs nothing, and another answer to the same (run, round, attempt) is
refused. A run without privacy has no price and is not counted. The charges are composed adaptively,
all at once (docs/guarantees.md, "Neighbours, budget, delta"): for clients if all runs protect
clients, else for single records.

Beside them lies an opaque memory for each run, which its owner replaces by comparing versions.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flower_kmeans.errors import BudgetError, KMeansError, LedgerError, MessageError
from flower_kmeans.privacy.ledger_file import find_private_file, make_private_file
from flower_kmeans.privacy.plan import PrivacyPlan, composed_epsilon
from flower_kmeans.privacy.release import Release, release_from_config

_VERSION = 1
# A client's part of a release has norm 1 at most, whatever it holds: so one of its records moves it
# by no more than this, however tightly it was clipped.
_ACROSS = 2.0
_BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE runs (run BLOB PRIMARY KEY, plan TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE answers (
    run BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    member BLOB NOT NULL, context BLOB NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (run, round, attempt)
) WITHOUT ROWID;
CREATE TABLE memories (run BLOB PRIMARY KEY, version INTEGER NOT NULL, memory BLOB NOT NULL);
"""


Charge = tuple[str, Release]
"""A release that was charged, after the unit of its run: "record" or "client"."""


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
        All releases ever charged must meet this epsilon at this delta, as one composition: for
        clients if all of their runs protect clients, else for single records.
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
                # secure_delete: erased secrets are overwritten in the file.
                self._db.execute("PRAGMA synchronous = EXTRA")
                self._db.execute("PRAGMA secure_delete = ON")
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

    def rewrite(self, change: Callable[[bytes], bytes | None]) -> int:
        """Replace the memories of all runs in one transaction, and leave every charge as it is.

        Parameters
        ----------
        change : callable
            Returns what replaces a memory, or ``None`` to keep it.

        Returns
        -------
        int
            How many were replaced.
        """
        with self._exclusive():
            rows = self._db.execute("SELECT run, version, memory FROM memories").fetchall()
            changed = [(run, version, change(bytes(memory))) for run, version, memory in rows]
            replaced = [(run, version, memory) for run, version, memory in changed if memory]
            for run, version, memory in replaced:
                self._replace(bytes(run), int(version), memory)
            return len(replaced)

    # ------------------------------------------------------------------ charges

    def charge(
        self, answer: Answer, plan: PrivacyPlan, limit: Limit, version: int, memory: bytes
    ) -> int:
        """Write down an answer, what it costs and the memory that goes with it; all or nothing.

        It is on the disk when this returns: send the answer then, and not before.

        Parameters
        ----------
        answer : Answer
        plan : PrivacyPlan
            The run's plan, verified.
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
            before = _charges(self._db)
            if plan.is_private:
                config = json.dumps(plan.to_config(), sort_keys=True)
                self._db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?)", (answer.run, config))
            self._db.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?)", (*place, *given))
            after = _charges(self._db)
            if len(after) > len(before):
                _require(after, limit)
            return replaced

    def require_room(self, run: bytes, plan: PrivacyPlan, limit: Limit) -> None:
        """Require that a run fits: with its first answer, or, if that was charged, as it is.

        A run that was charged costs nothing further, but the limit may have been tightened since.
        Only `charge` decides: another process may take the room in between.

        Raises
        ------
        BudgetError
            If all runs together would exceed the limit, or do.
        """
        if not plan.is_private:
            return
        with _ledger_errors():
            known = self._db.execute("SELECT 1 FROM runs WHERE run = ?", (run,)).fetchone()
            more = [] if known else [(plan.budget.unit, release) for release in plan.releases]
            _require([*_charges(self._db), *more], limit)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon that everything charged so far meets at a delta."""
        with _ledger_errors():
            charges = _charges(self._db)
        return _together(charges, delta)

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
    """Return what everything charged so far costs at a delta, and change nothing on the disk.

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
            charges = _charges(db) if _version(db) else []
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
                raise
            raise LedgerError(
                "A process died while it wrote the ledger. The node's next message undoes what it "
                "left half done; until then the ledger cannot be read without changing it."
            ) from None
        finally:
            db.close()
    return _together(charges, delta)


def _version(db: sqlite3.Connection) -> int:
    """Return the version of a file's tables; 0 if it has none yet."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, _VERSION):
        raise LedgerError(
            f"Expected a ledger of version {_VERSION}. Got version {version} instead."
        )
    return version


def _charges(db: sqlite3.Connection) -> list[Charge]:
    """Return every release that was charged, as often as it was, with the unit of its run."""
    members = {
        (bytes(run), t): count
        for run, t, count in db.execute(
            "SELECT run, round, COUNT(DISTINCT member) FROM answers GROUP BY run, round"
        )
    }
    charges: list[Charge] = []
    for run, config in db.execute("SELECT run, plan FROM runs"):
        unit, rounds = _unit_and_rounds(config)
        for t, releases in enumerate(rounds, 1):
            times = max(1, members.get((bytes(run), t), 1))
            charges.extend((unit, release) for release in releases * times)
    return charges


def _together(charges: list[Charge], delta: float) -> float:
    """Return the least epsilon that charges meet together, for the unit that all of them have.

    A run that protects clients protects a single record too, but one record of a client that stays
    may move its answer from one end of the clip to the other: beside runs for single records, such
    a run counts as for a group of two.
    """
    units = {unit for unit, _ in charges}
    alike = len(units) < 2
    releases = [
        release
        if alike or unit == "record"
        else replace(release, noise_multiplier=release.noise_multiplier / _ACROSS)
        for unit, release in charges
    ]
    return composed_epsilon(releases, delta) if releases else 0.0


def _require(charges: list[Charge], limit: Limit) -> None:
    epsilon = _together(charges, limit.delta)
    if not epsilon <= limit.epsilon:
        raise BudgetError(
            f"Expected all runs together to cost epsilon <= {limit.epsilon:g} at delta "
            f"{limit.delta:g}. Got {epsilon:.6g} with this release instead."
        )


def _unit_and_rounds(config: str) -> tuple[str, list[list[Release]]]:
    # Not the whole plan: its promise was verified when it was written, and takes long to verify.
    plan: dict[str, Any] = json.loads(config)
    rounds: list[list[dict[str, Any]]] = plan["rounds"]
    unit = str(plan["budget"]["unit"])
    return unit, [[release_from_config(item) for item in releases] for releases in rounds]


@contextmanager
def _ledger_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"The ledger cannot be used: {error}.") from None
    except (json.JSONDecodeError, LookupError, MessageError, TypeError):
        raise LedgerError("The ledger holds something that no ledger writes.") from None
