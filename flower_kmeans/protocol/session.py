"""A client's memory of one run: its client session (docs/protocol.md, sections 5 and 9).

A session is one secret and one ephemeral key; where clients commit to their records, also one data
set. It is kept under the hash of the run document, so several runs may share a memory. It lies in
the ledger if the client's policy names a ``state_dir``, else in the context's state. Beside it lie
the run's last answer and last vote, which outlive it.
"""

import io
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_kmeans.errors import LedgerError, MessageError
from flower_kmeans.privacy.filter import Price
from flower_kmeans.privacy.ledger import Answer, Ledger, Limit
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol.transcript import first_hash
from flower_kmeans.protocol.wire import decode, encode

DELIVERED, FORGOTTEN, SPENT = 1, 2, 3
"""How a run is over: with its result, unfinished and erased, or after too many sessions."""
_PREFIX = "kmeans."
_SECRET_BYTES = 32

Records = NDArray[np.float64]


class LastAnswer(NamedTuple):
    """The last answer of a client in a run, of whatever session."""

    t: int
    attempt: int
    context: bytes
    digest: bytes


class LastVote(NamedTuple):
    """The last sum for which a client gave its sum-share, of whatever session."""

    t: int
    variant: bytes


class ClientSession(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One session of a client in one run."""

    secret: bytes = b""  # z: 32 random bytes that never leave the client
    ephemeral: bytes = b""  # secret half of the session's ephemeral key
    commitment: bytes = b""  # to secret, software and records, public; zeros where there is none
    digest: bytes = b""  # of the records that it committed to
    document: bytes = b""  # the accepted run document
    slot: int = -1  # in the cohort; -1 until known
    n_sessions: int = 1  # that the client began in this run, this one included
    group_secret: bytes = b""  # from which the group key is derived; empty until known
    drawn_secret: bytes = b""  # the group secret that it offers as a key distributor
    head: int = 0  # number of entries that were followed
    h: bytes = b""  # the transcript's hash at the head
    state: bytes = b""  # the algorithm's arrays at the head, encoded; empty at the start
    answered: bytes = b""  # context and vector of the last answer, for requests that repeat it
    over: int = 0  # DELIVERED, FORGOTTEN or SPENT: nothing secret is left then

    @classmethod
    def begin(cls, doc_hash: bytes, document: bytes, n_sessions: int) -> "ClientSession":
        """Return a session with new secrets."""
        return cls(
            secret=token(_SECRET_BYTES),
            ephemeral=token(_SECRET_BYTES),
            document=document,
            n_sessions=n_sessions,
            h=first_hash(doc_hash),
        )

    def __repr__(self) -> str:
        return f"ClientSession(slot={self.slot}, head={self.head}, over={self.over})"

    def end(self, how: int) -> None:
        """Keep only the fact that the run is over; erase everything else."""
        over = ClientSession(over=how)
        for name in self.__struct_fields__:
            setattr(self, name, getattr(over, name))


def unpack_session(data: bytes) -> ClientSession:
    """Return the session that bytes of a memory hold.

    Raises
    ------
    LedgerError
        If they hold none.
    """
    if not data:  # erased
        return ClientSession(over=FORGOTTEN)
    try:
        session: ClientSession = decode(data, ClientSession)
    except MessageError:
        raise LedgerError("The memory of a run holds a session that cannot be read.") from None
    return session


def forget_unfinished(ledger: Ledger) -> int:
    """Erase all that is secret of runs that did not end here, end them, and return their number.

    For runs that failed or were stopped: nobody sends their clients ``finish``. What was answered
    stays charged, and what was reserved for further rounds comes back. A run that goes on after all
    is refused as over (STALE), as is every session that cannot be read. Copies of records are
    removed when the client handles its next message, or by `remove_copies`.
    """
    return ledger.end_all(_forgotten)


def _forgotten(memory: bytes) -> bytes | None:
    with suppress(LedgerError):  # what cannot be read may hold secrets all the same
        if unpack_session(memory).over:
            return None
    return encode(ClientSession(over=FORGOTTEN))


# ------------------------------------------------------------------------------ memories


class ContextMemory:
    """Sessions in a context's state, by the hash of the run document: lost with it, no account."""

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def _values(self, run: bytes) -> dict[str, Any]:
        record = self._state.get(_PREFIX + run.hex())
        return dict(record) if isinstance(record, ConfigRecord) else {}

    def _get(self, run: bytes, name: str) -> bytes:
        value = self._values(run).get(name)
        return value if isinstance(value, bytes) else b""

    def _set(self, run: bytes, **values: bytes) -> None:
        self._state[_PREFIX + run.hex()] = ConfigRecord({**self._values(run), **values})

    def load(self, run: bytes) -> ClientSession | None:
        """Return the session in a run, or ``None``."""
        data = self._get(run, "session")
        return unpack_session(data) if data else None

    def save(self, run: bytes, session: ClientSession) -> None:
        """Write a session in place of what was there."""
        self._set(run, session=encode(session))
        if self._get(run, "copy")[:_SECRET_BYTES] != session.commitment:
            self._set(run, copy=b"")

    def last_answer(self, run: bytes) -> LastAnswer | None:
        """Return the last answer in a run, or ``None``."""
        data = self._get(run, "answer")
        return msgspec.msgpack.decode(data, type=LastAnswer) if data else None

    def last_vote(self, run: bytes) -> LastVote | None:
        """Return the last vote in a run, or ``None``."""
        data = self._get(run, "vote")
        return msgspec.msgpack.decode(data, type=LastVote) if data else None

    def answer(
        self, run: bytes, answer: LastAnswer, price: Price | None, session: ClientSession
    ) -> None:
        """Write an answer with its session; nothing is charged."""
        self._set(run, session=encode(session), answer=encode(answer))

    def vote(self, run: bytes, vote: LastVote, session: ClientSession) -> None:
        """Write a vote with its session."""
        self._set(run, session=encode(session), vote=encode(vote))

    def require_room(self, run: bytes, price: Price) -> None:
        """Accept: there is no account."""

    def load_records(self, run: bytes, session: ClientSession) -> Records | None:
        """Return the copy of the records that a session committed to, or ``None``."""
        data = self._get(run, "copy")
        is_its_own = data[:_SECRET_BYTES] == session.commitment
        return _unpack_records(data[_SECRET_BYTES:]) if is_its_own else None

    def save_records(self, run: bytes, session: ClientSession, records: Records) -> None:
        """Keep a copy of the records that a session committed to, until the run is over."""
        self._set(run, copy=session.commitment + _pack_records(records))


class LedgerMemory:
    """Sessions in a ledger, where an answer is charged as it is written down.

    Raises what the ledger raises: above all `MemoryChangedError`, after which the message must be
    handled again from what the file then holds. Copies of records are files beside the ledger.
    """

    def __init__(self, ledger: Ledger, limit: Limit, directory: str | os.PathLike[str]) -> None:
        self._ledger = ledger
        self._limit = limit
        self._directory = Path(directory)
        self._read: dict[bytes, tuple[int, bytes]] = {}
        remove_copies(self._directory, ledger)  # of runs that were forgotten

    def load(self, run: bytes) -> ClientSession | None:
        """Return the session in a run, or ``None``."""
        found = self._ledger.load(run)
        self._read[run] = (0, b"") if found is None else found
        return None if found is None else unpack_session(found[1])

    def save(self, run: bytes, session: ClientSession) -> None:
        """Write a session in place of the one that was read; one that is over ends the run."""
        version, before = self._read[run]
        data = encode(session)
        if data != before:
            write = self._ledger.end if session.over else self._ledger.save
            self._read[run] = write(run, version, data), data
            remove_copies(self._directory, self._ledger, run)

    def last_answer(self, run: bytes) -> LastAnswer | None:
        """Return the last answer in a run, or ``None``."""
        found = self._ledger.last_answer(run)
        return None if found is None else LastAnswer(*found)

    def last_vote(self, run: bytes) -> LastVote | None:
        """Return the last vote in a run, or ``None``."""
        found = self._ledger.last_vote(run)
        return None if found is None else LastVote(*found)

    def answer(
        self, run: bytes, answer: LastAnswer, price: Price | None, session: ClientSession
    ) -> None:
        """Write an answer with its session, and what it costs, in one transaction."""
        data = encode(session)
        version, _ = self._read[run]
        version = self._ledger.charge(Answer(run, *answer), price, self._limit, version, data)
        self._read[run] = version, data

    def vote(self, run: bytes, vote: LastVote, session: ClientSession) -> None:
        """Write a vote with its session, in one transaction."""
        data = encode(session)
        version = self._ledger.vote(run, vote.t, vote.variant, self._read[run][0], data)
        self._read[run] = version, data

    def require_room(self, run: bytes, price: Price) -> None:
        """Require that a run fits into the limit."""
        self._ledger.require_room(run, price, self._limit)

    def load_records(self, run: bytes, session: ClientSession) -> Records | None:
        """Return the copy of the records that a session committed to, or ``None``."""
        try:
            return _unpack_records(_copy_file(self._directory, run, session).read_bytes())
        except OSError:
            return None

    def save_records(self, run: bytes, session: ClientSession, records: Records) -> None:
        """Keep a copy of the records that a session committed to, in a private file."""
        path = _copy_file(self._directory, run, session)
        try:
            # Mode 0600 from the start, and a name that no other process of the node writes to.
            number, part = tempfile.mkstemp(".part", f"{path.stem}.", self._directory)
            with os.fdopen(number, "wb") as file:
                file.write(_pack_records(records))
            os.replace(part, path)
        except OSError as error:
            raise LedgerError(f"Records cannot be copied to {path}: {error.strerror}.") from None


Memory = ContextMemory | LedgerMemory
"""Where the sessions of a client lie."""


# ------------------------------------------------------------------------------ copies of records


def remove_copies(directory: Path, ledger: Ledger, run: bytes | None = None) -> None:
    """Remove the copies of records, of one run or all, that no session in a ledger needs."""
    name = "?" * 64 if run is None else run.hex()
    for path in directory.glob(f"records-{name}-{'?' * 64}.*"):
        with suppress(OSError, ValueError):
            _, data = ledger.load(bytes.fromhex(path.name.split("-")[1])) or (0, b"")
            try:
                commitment = unpack_session(data).commitment
            except LedgerError:
                commitment = b""
            if not commitment or commitment.hex() not in path.name:
                path.unlink()


def _copy_file(directory: Path, run: bytes, session: ClientSession) -> Path:
    return directory / f"records-{run.hex()}-{session.commitment.hex()}.npy"


def _pack_records(records: Records) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, records, allow_pickle=False)
    return buffer.getvalue()


def _unpack_records(data: bytes) -> Records | None:
    try:
        records = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    fits = isinstance(records, np.ndarray) and records.dtype == np.float64 and records.ndim == 2
    return records if fits else None
