"""A client's session in one run (docs/protocol.md, sections 5 and 9).

A session is the client's memory of the run, and the source of its secrets with other
clients. It is kept under the hash of the run document: in the ledger if the client's
policy names a ``state_dir``, otherwise in the context's state. The run's last answer and
last vote outlive it.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_kmeans.data.sources import Source, as_source, joined
from flower_kmeans.errors import LedgerError, MessageError
from flower_kmeans.privacy.filter import Price
from flower_kmeans.privacy.ledger import Ledger, LedgerAnswer, LifetimeLimit, Vote
from flower_kmeans.privacy.randomness import token
from flower_kmeans.protocol import checks
from flower_kmeans.protocol.committee import Committee
from flower_kmeans.protocol.messages import Peer, Wrap, read_claims, read_rows
from flower_kmeans.protocol.roster import Identity
from flower_kmeans.protocol.shared import NO_SHARED_WORK, SharedWork
from flower_kmeans.protocol.transcript import first_hash
from flower_kmeans.protocol.wire import decode, encode
from flower_kmeans.secagg import primitives

DELIVERED, FORGOTTEN, SPENT = 1, 2, 3
"""Ends of a run: with its result, unfinished and erased, or after too many sessions."""
_PREFIX = "kmeans."
_SECRET_BYTES = 32
_HELD_NUMBERS = 2**22  # numbers of a block of held records: 32 MB

RecordArray = NDArray[Any]  # (m, n_features), float32 or float64


class LastAnswer(NamedTuple):
    """The last answer of a client in a run, in any session."""

    t: int
    attempt: int
    context: bytes
    digest: bytes
    query: bytes = b""  # hash of history and query; empty if a round has one attempt


class LastVote(NamedTuple):
    """The last sum for which a client gave its sum-share, in any session."""

    t: int
    variant: bytes


# Decoders are kept, because making one takes longer than decoding an answer with it.
_decode_answer = msgspec.msgpack.Decoder(LastAnswer).decode
_decode_vote = msgspec.msgpack.Decoder(LastVote).decode
# Records in a context: their type, width and values.
_decode_copy = msgspec.msgpack.Decoder(tuple[str, int, bytes]).decode


class ClientSession(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """One session of a client in one run."""

    secret: bytes = b""  # z: 32 random bytes that never leave the client
    ephemeral: bytes = b""  # secret half of the session's ephemeral key
    # public commitment to secret, software and records; zeros if there is none
    commitment: bytes = b""
    digest: bytes = b""  # digest of the committed records
    n_records: int = 0  # number of committed records
    software: str = ""  # committed software
    document: bytes = b""  # the accepted run document
    slot: int = -1  # in the cohort; -1 until known
    n_sessions: int = 1  # number of the client's sessions in this run, with this one
    group_secret: bytes = b""  # source of the next two keys; empty until known
    group_key: bytes = b""
    query_key: bytes = b""
    drawn_secret: bytes = b""  # the group secret that it offers as a key distributor
    head: int = 0  # number of followed entries
    n_answers: int = 0  # number of answers in the sum at the head
    h: bytes = b""  # the transcript's hash at the head
    # the algorithm's arrays at the head, encoded; empty at the start
    state: bytes = b""
    # context and vector of the last answer, for requests that repeat it
    answered: bytes = b""
    # Further memory of other kinds of runs, and after the end the last reply. Memories of
    # nodes hold it under the name of the first such kind.
    party: bytes = msgspec.field(name="vertical", default=b"")
    over: int = 0  # DELIVERED, FORGOTTEN or SPENT after the end, without secrets

    @classmethod
    def begin(
        cls, doc_hash: bytes, document: bytes, n_sessions: int
    ) -> "ClientSession":
        """Return a session with new secrets."""
        z, e, h = token(_SECRET_BYTES), token(_SECRET_BYTES), first_hash(doc_hash)
        return cls(secret=z, ephemeral=e, document=document, n_sessions=n_sessions, h=h)

    def __repr__(self) -> str:
        return f"ClientSession(slot={self.slot}, head={self.head}, over={self.over})"

    def end(self, how: int) -> None:
        """Keep only the fact that the run is over; erase everything else."""
        # The object itself changes, so that no holder of it writes the secrets back.
        for name, value in msgspec.structs.asdict(ClientSession(over=how)).items():
            setattr(self, name, value)


def unpack_session(data: bytes) -> ClientSession:
    """Return the session that bytes of a memory encode.

    Raises
    ------
    LedgerError
        If they encode none.
    """
    if not data:  # erased
        return ClientSession(over=FORGOTTEN)
    try:
        session: ClientSession = decode(data, ClientSession)
    except MessageError:
        raise LedgerError(
            "The memory of a run holds a session that cannot be read."
        ) from None
    return session


# ------------------------------------------------------------------ secrets with others


class Pairs:
    """Secrets that a client's session has in common with other clients.

    Methods raise a `MessageError` if another client's key, claim or envelope is wrong.

    Parameters
    ----------
    doc_hash : bytes
        SHA-256 of the run document.
    session : ClientSession
        The client's own session.
    identity : Identity, optional
        The client's lasting key, for keys of a roster.
    shared : SharedWork
        Cache of secrets and verified claims for the clients of a simulation, because
        X25519 and signatures are slow.
    """

    def __init__(
        self,
        doc_hash: bytes,
        session: ClientSession,
        identity: Identity | None,
        shared: SharedWork = NO_SHARED_WORK,
    ) -> None:
        self._doc_hash = doc_hash
        self._identity = identity
        self._shared = shared
        static = checks.static_secret(identity)
        self._secret = session.ephemeral
        self._static = primitives.load(static) if static else b""
        self.static = b"" if identity is None else identity.public
        self._name = hashlib.sha256(doc_hash + session.ephemeral + static).digest()
        self.public_key = shared.secret(
            (self._name, "public key"),
            lambda: primitives.public_key(session.ephemeral),
        )

    @cached_property
    def _ephemeral(self) -> X25519PrivateKey:
        """The session's secret key, which most messages do not need."""
        return primitives.load(self._secret)

    # ------------------------------------------------------------------ claims

    def claim(self, node_id: int) -> bytes:
        """Return the claim of the client's slot for a node and this key; empty if relayed."""
        if self._identity is None:
            return b""
        return primitives.claim(
            self._identity.seed,
            self._doc_hash,
            self._identity.slot,
            node_id,
            self.public_key,
        )

    def peers(self, rows: bytes) -> tuple[Peer, ...]:
        """Return the clients of encoded rows. Their claims are not checked."""
        return read_rows(rows, self._identity is not None)

    def require_claims(self, committee: Committee, claims: bytes) -> None:
        """Require that the owners of all present positions made the committee's keys."""
        if self._identity is None:
            if claims:
                raise MessageError("Expected no claims under relayed keys.")
            return
        digest = self._identity.roster.digest

        def verified() -> bytes:
            made = read_claims(claims, len(committee.present))
            for position, (node_id, claim) in zip(committee.present, made, strict=True):
                slot = committee.slots[position]
                public_key = committee.public_keys[position]
                self.require_claim(Peer(slot, public_key, node_id, claim))
            return b"verified"

        # The check is shared, because all clients of a round get the same list.
        keys = committee.slots, committee.public_keys
        self._shared.secret((self._doc_hash, digest, "claims", *keys, claims), verified)

    def require_claim(self, peer: Peer) -> None:
        """Require that the owner of a slot made its key. Relayed keys have no owners to check."""
        if self._identity is None:
            return
        roster = self._identity.roster

        def verified() -> bytes:
            if not checks.is_claimed(roster, self._doc_hash, peer):
                raise MessageError(
                    "The claim of another client's key is not its owner's."
                )
            return b"verified"

        self._shared.secret((self._doc_hash, roster.digest, "claim", *peer), verified)

    # ------------------------------------------------------------------ secrets

    def secret(self, slot: int, public_key: bytes) -> bytes:
        """Return the secret in common with the client of a slot and an ephemeral key, 32 bytes."""
        other = b""
        if self._identity is not None:
            keys = self._identity.roster.keys
            if slot >= len(keys):
                raise MessageError(
                    f"Expected a slot below {len(keys)}. Got {slot} instead."
                )
            other = primitives.exchange_key(keys[slot]) if self._static else b""
        # The cache may give the secret to both ends: only a holder of one of the secret keys
        # asks with its public key.
        own = primitives.exchange_key(self.static) if other else b""
        own_end = self.public_key + own
        other_end = public_key + other
        ends = (own_end, other_end) if own_end < other_end else (other_end, own_end)

        def agreed() -> bytes:
            return primitives.pair_secret(
                self._ephemeral, public_key, self._static, other
            )

        return self._shared.secret(ends, agreed)

    def wrap(self, secret: bytes, peers: tuple[Peer, ...]) -> bytes:
        """Return the concatenated envelopes of a group secret, one for each peer."""
        envelopes = []
        for peer in peers:
            self.require_claim(peer)
            shared = self.secret(peer.slot, peer.public_key)
            key = primitives.wrap_key(
                shared, self._doc_hash, self.public_key, peer.public_key
            )
            envelopes.append(primitives.seal(key, secret, self._doc_hash))
        return b"".join(envelopes)

    def unwrap(self, wrap: Wrap) -> bytes:
        """Return the group secret that a key distributor sealed for this session."""
        peers = self.peers(wrap.distributor)
        if len(peers) != 1:
            raise MessageError("Expected one key distributor.")
        (by,) = peers
        self.require_claim(by)
        shared = self.secret(by.slot, by.public_key)
        key = primitives.wrap_key(
            shared, self._doc_hash, by.public_key, self.public_key
        )
        return primitives.unseal(key, wrap.envelope, self._doc_hash)


# ------------------------------------------------------------------------------ memories


def forget_unfinished(ledger: Ledger) -> int:
    """End all unfinished runs of a ledger, erase their secrets, and return their number.

    The function is for runs that failed or were stopped. Answers stay charged, and
    reservations for further rounds come back. If such a run goes on after all, the client
    refuses it with the code STALE.
    """

    def forgotten(memory: bytes) -> bytes | None:
        with suppress(
            LedgerError
        ):  # an unreadable session may hold secrets, so it is erased too
            if unpack_session(memory).over:
                return None
        return encode(ClientSession(over=FORGOTTEN))

    return ledger.end_all(forgotten)


class ContextMemory:
    """Memory of sessions in a context's state. It is lost with the state, and charges nothing."""

    def __init__(self, state: RecordDict) -> None:
        self._state = state
        # run and session of the last answer or vote
        self._written: tuple[bytes, bytes] | None = None

    def _get(self, run: bytes, name: str) -> bytes:
        record = self._state.get(_PREFIX + run.hex())
        value = record.get(name) if isinstance(record, ConfigRecord) else None
        return value if isinstance(value, bytes) else b""

    def _set(self, run: bytes, **values: bytes) -> None:
        record = self._state.get(_PREFIX + run.hex())
        if not isinstance(record, ConfigRecord):
            record = self._state[_PREFIX + run.hex()] = ConfigRecord()
        for name, value in values.items():
            record[name] = value

    def _write(self, run: bytes, session: ClientSession, **values: bytes) -> None:
        self._written = run, encode(session)
        self._set(run, session=self._written[1], **values)

    def load(self, run: bytes) -> ClientSession | None:
        """Return the session in a run, or ``None``."""
        data = self._get(run, "session")
        return unpack_session(data) if data else None

    def save(self, run: bytes, session: ClientSession) -> None:
        """Write a session in place of the former one, and drop the records of a former session."""
        data = encode(session)
        if (run, data) == self._written:
            return
        copy = self._get(run, "copy")
        # A copy begins with the commitment of its session.
        kept = copy if copy[:_SECRET_BYTES] == session.commitment else b""
        if (data, kept) != (self._get(run, "session"), copy):
            self._set(run, session=data, copy=kept)

    def last_answer(self, run: bytes) -> LastAnswer | None:
        """Return the last answer in a run, or ``None``."""
        data = self._get(run, "answer")
        return _decode_answer(data) if data else None

    def last_vote(self, run: bytes) -> LastVote | None:
        """Return the last vote in a run, or ``None``."""
        data = self._get(run, "vote")
        return _decode_vote(data) if data else None

    def answer(
        self, run: bytes, answer: LastAnswer, _: Price | None, own: ClientSession
    ) -> None:
        """Write an answer with its session. Nothing is charged."""
        self._write(run, own, answer=encode(answer))

    def vote(
        self, run: bytes, vote: LastVote, _: Price | None, own: ClientSession
    ) -> None:
        """Write a vote with its session. Nothing is reserved."""
        self._write(run, own, vote=encode(vote))

    def require_room(self, run: bytes, price: Price | None) -> None:
        """Accept every run, because there is no account."""

    def can_copy(self, source: Source) -> bool:
        """Return whether records can be copied: only if they are in memory already."""
        return source.in_memory

    def held(self, blocks: Iterable[RecordArray], n_features: int) -> Source:
        """Return a copy of the records of a live source, in memory."""
        return as_source(joined(blocks, n_features), n_features)

    def load_records(self, run: bytes, session: ClientSession) -> Source | None:
        """Return the copy of a session's records, or ``None``."""
        data = self._get(run, "copy")
        if data[:_SECRET_BYTES] != session.commitment:
            return None
        # Reading NumPy's own format would take longer than summing a few records.
        dtype, width, values = _decode_copy(data[_SECRET_BYTES:])
        records = np.frombuffer(values, dtype).reshape(-1, width)
        whole = partial(iter, (records,))
        return Source(
            width, records.dtype, whole, len(records), in_memory=True, is_finite=True
        )

    def save_records(
        self,
        run: bytes,
        session: ClientSession,
        blocks: Iterable[RecordArray],
        shape: tuple[int, int],
    ) -> None:
        """Keep a copy of a session's records until the run is over."""
        records = joined(blocks, shape[1])
        copy = encode((records.dtype.str, shape[1], records.tobytes()))
        self._set(run, copy=session.commitment + copy)


class LedgerMemory:
    """Memory of sessions in a ledger, which charges an answer in the same transaction.

    Methods raise the errors of the ledger. After a `MemoryChangedError` the message must be
    handled again from the new content of the file. Copies of records are files beside the
    ledger.
    """

    def __init__(
        self, ledger: Ledger, limit: LifetimeLimit, directory: str | os.PathLike[str]
    ) -> None:
        self._ledger, self._limit, self._directory = ledger, limit, Path(directory)
        # by run: version and session, as read
        self._read: dict[bytes, tuple[int, bytes]] = {}
        remove_copies(self._directory, ledger)  # copies of forgotten runs

    def load(self, run: bytes) -> ClientSession | None:
        """Return the session in a run, or ``None``."""
        found = self._ledger.load(run)
        self._read[run] = found or (0, b"")
        return unpack_session(found[1]) if found else None

    def save(self, run: bytes, session: ClientSession) -> None:
        """Write a session in place of the one that was read. If it is over, the run ends."""
        data, (version, before) = encode(session), self._read[run]
        if data != before:
            write = self._ledger.end if session.over else self._ledger.save
            self._read[run] = write(run, version, data), data
            remove_copies(self._directory, self._ledger, run)

    def last_answer(self, run: bytes) -> LastAnswer | None:
        """Return the last answer in a run, or ``None``."""
        found = self._ledger.last_answer(run)
        return LastAnswer(*found) if found else None

    def last_vote(self, run: bytes) -> LastVote | None:
        """Return the last vote in a run, or ``None``."""
        found = self._ledger.last_vote(run)
        return LastVote(*found) if found else None

    def answer(
        self, run: bytes, answer: LastAnswer, price: Price | None, own: ClientSession
    ) -> None:
        """Write an answer with its session and its cost, in one transaction."""
        data, (version, _) = encode(own), self._read[run]
        version = self._ledger.charge(
            LedgerAnswer(run, *answer), price, self._limit, version, data
        )
        self._read[run] = version, data

    def vote(
        self, run: bytes, vote: LastVote, price: Price | None, own: ClientSession
    ) -> None:
        """Write a vote with its session and its reservation, in one transaction."""
        data, (version, _) = encode(own), self._read[run]
        version = self._ledger.vote(Vote(run, *vote), price, self._limit, version, data)
        self._read[run] = version, data

    def require_room(self, run: bytes, price: Price | None) -> None:
        """Require that a run fits into the limit."""
        self._ledger.require_room(run, price, self._limit)

    def can_copy(self, source: Source) -> bool:
        """Return true: the disk has room for copies of records."""
        return True

    def held(self, blocks: Iterable[RecordArray], n_features: int) -> Source:
        """Return a copy of the records of a live source, in a file without a name.

        The file takes disk space until the source is no longer used.
        """
        try:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                for block in blocks:
                    values = np.ascontiguousarray(block, np.float64)
                    file.write(values.reshape(-1).view(np.uint8).data)
                file.flush()
                n_rows = file.tell() // (n_features * np.dtype(np.float64).itemsize)
                # The map outlives the open file. An empty file cannot be mapped.
                shape = n_rows, n_features
                records = (
                    np.memmap(file, np.float64, "r", 0, shape)
                    if n_rows
                    else np.empty(shape)
                )
        except OSError as error:
            raise LedgerError(
                f"Records cannot be copied to {self._directory}: {error.strerror}."
            ) from None
        step = max(1, _HELD_NUMBERS // n_features)

        def parts() -> Iterator[RecordArray]:
            for start in range(0, n_rows, step):
                yield records[start : start + step]

        return Source(n_features, records.dtype, parts, n_rows, is_finite=True)

    def load_records(self, run: bytes, session: ClientSession) -> Source | None:
        """Return the copy of a session's records, or ``None``."""
        path = self._copy_file(run, session)
        return _read_array(lambda: np.load(path, mmap_mode="r", allow_pickle=False))

    def save_records(
        self,
        run: bytes,
        session: ClientSession,
        blocks: Iterable[RecordArray],
        shape: tuple[int, int],
    ) -> None:
        """Keep a copy of a session's records in a private file."""
        path = self._copy_file(run, session)
        try:
            # The file has mode 0600 from the start, and a name that no other process uses.
            number, part = tempfile.mkstemp(".part", f"{path.stem}.", self._directory)
            try:
                with os.fdopen(number, "wb") as file:
                    _write_array(file, blocks, shape)
                os.replace(part, path)
            except BaseException:
                os.unlink(part)
                raise
        except OSError as error:
            raise LedgerError(
                f"Records cannot be copied to {path}: {error.strerror}."
            ) from None

    def _copy_file(self, run: bytes, session: ClientSession) -> Path:
        return self._directory / f"records-{run.hex()}-{session.commitment.hex()}.npy"


Memory = ContextMemory | LedgerMemory


def remove_copies(directory: Path, ledger: Ledger, run: bytes | None = None) -> None:
    """Remove copies of records, of one run or all, that no session in a ledger needs."""
    name = "?" * 64 if run is None else run.hex()
    for path in directory.glob(f"records-{name}-{'?' * 64}.*"):
        # Another process may have removed the file, or it may be no copy of records.
        with suppress(OSError, ValueError):
            _, data = ledger.load(bytes.fromhex(path.name.split("-")[1])) or (0, b"")
            try:
                commitment = unpack_session(data).commitment
            except LedgerError:
                commitment = b""
            if not commitment or commitment.hex() not in path.name:
                path.unlink()


def _write_array(
    file: BinaryIO, blocks: Iterable[RecordArray], shape: tuple[int, int]
) -> None:
    """Write blocks of one type as one array in NumPy's format."""
    rest = iter(blocks)
    first = next(rest, np.empty(0))
    descr = np.lib.format.dtype_to_descr(first.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for block in chain([first], rest):
        file.write(block.reshape(-1).view(np.uint8).data)


def _read_array(read: Callable[[], Any]) -> Source | None:
    # A damaged copy counts as none. The records are then loaded again, and compared with the
    # commitment.
    with suppress(ValueError, EOFError, OSError):
        records = read()
        if (
            isinstance(records, np.ndarray)
            and records.dtype.kind == "f"
            and records.ndim == 2
        ):
            return as_source(records, records.shape[1])
    return None
