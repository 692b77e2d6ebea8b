"""The journal of a run on the server's disk (docs/protocol.md, section 9).

A run whose server was killed goes on from its journal: one SQLite file, which one process
holds. A write returns when it is on the disk: the server makes it before it sends the
message that depends on it. Bare answers and noise are never written. The journal does not
help to unmask or reconstruct a sum that the server must not see.
"""

import io
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from flower_kmeans.algorithms.plausibility import Finding
from flower_kmeans.algorithms.state import State
from flower_kmeans.errors import ConfigurationError, MessageError, RunError
from flower_kmeans.privacy.ledger_file import PrivateFile, make_private_file
from flower_kmeans.protocol.kinds import USUAL, kind_names
from flower_kmeans.protocol.messages import Enrolled, Entry, Wrap
from flower_kmeans.protocol.run import RunDocument, read_document
from flower_kmeans.protocol.wire import NOT_A_MESSAGE, decode, encode
from flower_kmeans.report.report import Dropped, Proceedings

_FILE = PrivateFile("run.sqlite3", "the kept run", "resume", ConfigurationError)
_SETTINGS = (
    "locking_mode = EXCLUSIVE",  # another process that resumes the same run is refused
    # Without truncation the rollback journal of a held file would keep erased contents.
    "journal_mode = TRUNCATE",
    # a commit is on the disk, with its directory entry, when it returns
    "synchronous = EXTRA",
    # also on macOS, where a drive may keep synced data in its cache
    "fullfsync = ON",
    "secure_delete = ON",  # erased contents are overwritten in the file
)
_held: set[str] = set()  # real paths of the directories that this process holds
_VERSION = 1
_HELD = "Got one that another run of this process holds."
_SCHEMA = """
CREATE TABLE run (place INTEGER PRIMARY KEY CHECK (place = 1), content BLOB NOT NULL);
CREATE TABLE entries (round INTEGER PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE parts (number INTEGER PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE finished (document_hash BLOB PRIMARY KEY);
"""


class Journaled(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the structs in a journal."""


class KeptClient(Journaled, frozen=True, kw_only=True):
    """A client that claimed a slot, as the server knows it."""

    slot: int
    node_id: int
    public: Enrolled
    new: Enrolled | None
    has_key: bool
    wraps: tuple[Wrap, ...]
    refused: tuple[int, ...]
    was_asked: bool
    head: int
    is_banned: bool


class KeptOffer(Journaled, frozen=True, kw_only=True):
    """An offer of a group key: its distributor, and its envelopes by slot and node."""

    leader: tuple[int, int]
    key_id: bytes
    wraps: tuple[tuple[int, int, Wrap], ...]


class KeptCohort(Journaled, frozen=True, kw_only=True):
    """The clients of a run, and the holders of the group key."""

    clients: tuple[KeptClient, ...]  # by slot, and in the order of their turns
    # slots, and each ephemeral key that they ever had
    owners: tuple[tuple[int, bytes], ...]
    committee: tuple[int, ...] | None
    offers: tuple[KeptOffer, ...]
    is_settled: bool


class KeptAttempt(Journaled, frozen=True, kw_only=True):
    """The open attempt."""

    t: int
    number: int
    frame: tuple[tuple[int, int], ...]  # slots, and their active nodes
    query: bytes | None
    # slots of the clients that are asked for a group key
    distributors: tuple[int, ...]
    tag: bytes = b""  # tag of the answers that are added up; empty until S is chosen
    dealers: tuple[int, ...] = ()  # S, by slot; empty until it is chosen


class KeptRun(Journaled, tag=USUAL, frozen=True, kw_only=True):
    """An unfinished run over records, without its entries and shares."""

    document: bytes
    nodes: tuple[int, ...] | None
    # the first state, if it follows from data of the server
    start: bytes = b""
    head: int = 0
    last_sum: int = 0
    noise_factor: float = 1.0
    h: bytes = b""  # the transcript's hash at the head
    # the state after the last sum that the server saw; empty before the first one
    state: bytes = b""
    findings: tuple[Finding, ...] = ()
    proceedings: Proceedings = msgspec.field(default_factory=Proceedings)
    incidents: tuple[Dropped, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    served: tuple[tuple[int, bytes], ...] = ()
    caused: tuple[tuple[int, int], ...] = ()
    cohort: KeptCohort | None = None  # none during the set-up
    attempt: KeptAttempt | None = None


class _KeptHead(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of a kept run of any kind."""

    tag: str = msgspec.field(name="type")
    document: bytes
    is_set_up: bool = True


_read_head = msgspec.msgpack.Decoder(_KeptHead).decode
_Run = TypeVar("_Run", bound=Journaled)


class Journal:
    """The directory of one run that can be resumed. Only this process holds it.

    Parameters
    ----------
    directory : path
        The server's own directory, in a parent that exists. It is created with mode 0700
        if it is missing.

    Raises
    ------
    ConfigurationError
        If the directory or its file cannot be used, belongs to another user or is open
        to others; if another process holds it; or if the run in it is over.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._place = os.path.realpath(self.directory)
        # The check must come first: closing a second descriptor of the file would release
        # its lock.
        if self._place in _held:
            raise ConfigurationError(
                f"Expected resume {self.directory} to be usable. {_HELD}"
            )
        path = make_private_file(self.directory, _FILE)
        self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
        _held.add(self._place)
        try:
            self._open()
        except sqlite3.Error as error:
            self.close()
            raise ConfigurationError(self._sentence(error)) from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        for setting in _SETTINGS:
            self._db.execute(f"PRAGMA {setting}")
        # The lock of the first transaction is kept until the file is closed.
        self._db.execute("BEGIN EXCLUSIVE")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {_VERSION}")
        self._db.execute("COMMIT")
        if version not in (0, _VERSION):
            raise ConfigurationError(
                f"Expected resume {self.directory} with a run of version {_VERSION}. "
                f"Got version {version} instead."
            )
        if self._db.execute("SELECT 1 FROM finished").fetchone() is not None:
            raise ConfigurationError(
                f"Expected resume {self.directory} to hold a run that is not over. Got one that "
                "has finished: name another directory."
            )

    def close(self) -> None:
        """Release the directory. The run in it can be resumed."""
        self._db.close()
        _held.discard(self._place)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sentence(self, error: sqlite3.Error) -> str:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            got = "Got one that another process holds, which runs it."
        else:
            got = f"Got this from its file: {error}."
        return f"Expected resume {self.directory} to be usable. {got}"

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Write everything in the context to the disk, or nothing."""
        try:
            self._db.execute("BEGIN")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite undoes some failures by itself
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise RunError(
                f"The run cannot be kept in resume {self.directory}: {error}. Nothing was sent "
                "that depends on it. Mend that, and start again with the same directory."
            ) from None

    # ------------------------------------------------------------------ reading

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Raise errors that name the directory if its contents cannot be read."""
        try:
            yield
        except (sqlite3.Error, MessageError) as error:
            raise ConfigurationError(
                f"Expected resume {self.directory} with a run that this version wrote. Got one "
                f"that cannot be read: {error} Name another directory."
            ) from None

    def load(self, kind: type[_Run]) -> _Run | None:
        """Return the kept run, or ``None`` if there is none.

        Raises
        ------
        ConfigurationError
            If it is a run of another kind, or cannot be read.
        """
        content = self._content()
        if content is None:
            return None
        if self._head(content).tag != kind.__struct_config__.tag:
            raise ConfigurationError(
                f"Expected resume {self.directory} to hold a run of this strategy. Got one of "
                "another: name another directory."
            )
        with self._read():
            kept: _Run = decode(content, kind)
        return kept

    def _content(self) -> bytes | None:
        with self._read():
            found = self._db.execute("SELECT content FROM run").fetchone()
        return None if found is None else found[0]

    def _head(self, content: bytes) -> _KeptHead:
        """Return the first fields of a kept run."""
        with self._read():
            try:
                head = _read_head(content)
            except (msgspec.MsgspecError, RecursionError, UnicodeError):
                raise MessageError(NOT_A_MESSAGE) from None
            if head.tag not in kind_names():
                raise MessageError(NOT_A_MESSAGE)
        return head

    def document(self) -> bytes | None:
        """Return the document of the kept run; ``None`` if a new run begins.

        A run that ended in its set-up begins anew, with another name.
        """
        content = self._content()
        if content is None:
            return None
        head = self._head(content)
        return head.document if head.is_set_up else None

    def entries(self) -> list[Entry]:
        """Return the announced sums, in the order of their rounds."""
        with self._read():
            rows = self._db.execute("SELECT content FROM entries ORDER BY round")
            return [decode(content, Entry) for (content,) in rows]

    def parts(self) -> Iterator[tuple[int, bytes]]:
        """Yield the sealed shares of clients of S by slot, or the mail of parties."""
        yield from self._db.execute("SELECT number, content FROM parts ORDER BY number")

    # ------------------------------------------------------------------ writing

    def write(self, kept: Journaled) -> None:
        """Keep the present state of a run, in place of the former one."""
        with self._written():
            self._put(kept)

    def write_parts(self, kept: Journaled, parts: Iterable[tuple[int, bytes]]) -> None:
        """Keep a run and the sealed parts that it needs next, in place of the former ones."""
        with self._written():
            self._put(kept)
            self._db.execute("DELETE FROM parts")
            self._db.executemany("INSERT INTO parts VALUES (?, ?)", parts)

    def write_closed(self, kept: KeptRun, entry: Entry | None) -> None:
        """Keep a closed round with its announced entry, and erase its shares."""
        with self._written():
            self._put(kept)
            self._db.execute("DELETE FROM parts")
            if entry is not None:
                values = entry.t, encode(entry)
                self._db.execute("INSERT INTO entries VALUES (?, ?)", values)

    def finish(self, doc_hash: bytes) -> None:
        """Erase everything but the fact that this run is over."""
        with self._written():
            for table in ("run", "entries", "parts"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608 (our own names)
            self._db.execute("INSERT INTO finished VALUES (?)", (doc_hash,))

    def _put(self, kept: Journaled) -> None:
        self._db.execute("INSERT OR REPLACE INTO run VALUES (1, ?)", (encode(kept),))


def write_state(state: State) -> bytes:
    """Return the encoding of a state."""
    file = io.BytesIO()
    arrays: dict[str, Any] = dict(state.arrays)
    np.savez(file, **arrays)
    return encode((state.round, file.getvalue()))


def read_state(data: bytes) -> State:
    """Return the state that `write_state` wrote."""
    round_number, archive = decode(data, tuple[int, bytes])
    with np.load(io.BytesIO(archive)) as arrays:  # NumPy loads no pickles by default
        return State(round_number, {name: arrays[name] for name in arrays.files})


def is_same_state(data: bytes, state: State) -> bool:
    """Return whether a state equals the written one, except for rounding."""
    before = read_state(data)
    if before.arrays.keys() != state.arrays.keys():
        return False
    for name, array in before.arrays.items():
        other = state.arrays[name]
        if array.shape != other.shape:
            return False
        if not np.allclose(array, other, rtol=1e-9, atol=1e-12):
            return False
    return True


def continued(document: RunDocument, kept: bytes) -> RunDocument:
    """Return the document of a kept run, with the options of a new document.

    Only the run's name and its epoch are not options.

    Raises
    ------
    ConfigurationError
        If the options differ.
    """
    before = read_document(kept)
    now = msgspec.structs.replace(document, run=before.run, epoch=before.epoch)
    names = [each.name for each in msgspec.structs.fields(RunDocument)]
    others = [name for name in names if getattr(now, name) != getattr(before, name)]
    if others:
        raise ConfigurationError(
            "Expected the options with which the run in resume began. Got a run document that "
            f"differs in {', '.join(others)}: use those options, or name another directory."
        )
    return now
