"""A client's memory of one run: its life (docs/protocol.md, sections 1, 4 and 9).

A life is one secret and one data set. It is kept under the run's document hash, so several runs
may share a memory, and holds what the protocol's rules need: who the client is in the cohort, how
far it followed the transcript, and what it answered to which question. It lies in the ledger file
if the client's policy names a ``state_dir``, else in the context's state.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from flower_kmeans.algorithms.base import State
from flower_kmeans.errors import LedgerError
from flower_kmeans.federation.transcript import first_hash
from flower_kmeans.privacy.filter import Price
from flower_kmeans.privacy.ledger import Answer, Ledger, Limit
from flower_kmeans.privacy.randomness import token

DELIVERED, FORGOTTEN = 1, 2
_SECRET_BYTES = 32
_ANSWER = struct.Struct("<II32s32s")
_PREFIX = "kmeans."
_BYTES_FIELDS = (
    "secret",
    "commitment",
    "exchange_secret",
    "lead_secret",
    "document",
    "group_key",
    "chain",
    "last_context",
    "last_survivors",
)
_INT_FIELDS = ("index", "head", "last_m", "may_open", "largest_m", "finished")
_UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)


@dataclass
class Life:
    """One life of a client in one run.

    Attributes
    ----------
    secret : bytes
        ``z``: 32 random bytes that never leave the client.
    commitment : bytes
        Public commitment to the secret and the data.
    exchange_secret : bytes
        Private X25519 key where keys are relayed, else empty.
    lead_secret : bytes
        The group secret that this client drew when it was asked to lead, else empty.
    document : bytes
        The accepted run document; empty until there is one.
    index : int
        Place in the cohort; -1 until known.
    group_key : bytes
        ``Kg``; empty until known.
    head : int
        Number of transcript entries that were accepted.
    chain : bytes
        ``h_t`` at the head.
    last_context, last_survivors, last_m : bytes, bytes, int
        Context, survivors' bitmap and cohort size of the entry at the head.
    may_open : int
        1 if this life may help to open the entry at the head.
    largest_m : int
        Size of the largest cohort in which it answered.
    answered : dict
        ``(t, attempt) -> (context, SHA-256 of the words sent)`` for the rounds from the head on.
    state : State, optional
        The algorithm's state at the head.
    finished : int
        1 (`DELIVERED`) when the result was delivered, 2 (`FORGOTTEN`) when the operator had an
        unfinished run erased; nothing secret is left in either case.
    """

    secret: bytes
    chain: bytes
    commitment: bytes = b""
    exchange_secret: bytes = b""
    lead_secret: bytes = b""
    document: bytes = b""
    group_key: bytes = b""
    last_context: bytes = b""
    last_survivors: bytes = b""
    index: int = -1
    head: int = 0
    last_m: int = 0
    may_open: int = 0
    largest_m: int = 0
    finished: int = 0
    answered: dict[tuple[int, int], tuple[bytes, bytes]] = field(default_factory=dict)
    state: State | None = None

    @classmethod
    def begin(cls, doc_hash: bytes) -> "Life":
        """Return a new life with a secret of its own."""
        return cls(secret=token(_SECRET_BYTES), chain=first_hash(doc_hash))

    def answered_context(self, t: int, context: bytes) -> bool:
        """Return whether this life answered that very context in round ``t``."""
        return any(key[0] == t and value[0] == context for key, value in self.answered.items())

    def forget_before(self, t: int) -> None:
        """Drop answers to rounds before ``t``: no rule asks for them again."""
        self.answered = {key: value for key, value in self.answered.items() if key[0] >= t}

    def finish(self, how: int = DELIVERED) -> None:
        """Keep only the fact that the run is over; erase every secret (section 8, End)."""
        over = Life(secret=b"", chain=b"", finished=how, head=self.head)
        self.__dict__.update(over.__dict__)


def load_life(state: RecordDict, doc_hash: bytes) -> Life | None:
    """Return the life that a context holds for a run, or ``None``."""
    record = state.get(_PREFIX + doc_hash.hex())
    if not isinstance(record, ConfigRecord):
        return None
    return _life_from(record)


def save_life(state: RecordDict, doc_hash: bytes, life: Life) -> None:
    """Write a life into a context's state, in place of what was there for that run."""
    state[_PREFIX + doc_hash.hex()] = ConfigRecord(_values(life))


def pack_life(life: Life) -> bytes:
    """Return a life as bytes, for a ledger."""
    return json.dumps(_values(life), default=lambda data: {"hex": data.hex()}).encode()


def unpack_life(data: bytes) -> Life:
    """Return the life that `pack_life` wrote.

    Raises
    ------
    LedgerError
        If it is none.
    """
    try:
        values = json.loads(
            data, object_hook=lambda v: bytes.fromhex(v["hex"]) if v.keys() == {"hex"} else v
        )
        kinds = {**dict.fromkeys(_BYTES_FIELDS, bytes), **dict.fromkeys(_INT_FIELDS, int)}
        if all(type(values[name]) is kind for name, kind in kinds.items()):
            return _life_from(values)
    except _UNREADABLE:
        pass
    raise LedgerError("The ledger holds a life that cannot be read.")


def forget_unfinished(ledger: Ledger) -> int:
    """Erase all that is secret of runs that did not end here, and end them.

    For runs that failed or were stopped: nobody sends their members ``finish``. What was answered
    stays charged, and what was reserved for further rounds comes back. A run that goes on after all
    is refused as over (STALE), as is every life that cannot be read.

    Returns
    -------
    int
        Number of runs that were forgotten.
    """
    return ledger.end_all(_forgotten)


def _forgotten(memory: bytes) -> bytes | None:
    try:
        life = unpack_life(memory)
    except LedgerError:  # which may hold secrets all the same
        life = Life(secret=b"", chain=b"")
    if life.finished:
        return None
    life.finish(FORGOTTEN)
    return pack_life(life)


class Memory(Protocol):
    """Where the lives of a client lie."""

    def load(self, doc_hash: bytes) -> Life | None:
        """Return the life in a run, or ``None``."""

    def save(self, doc_hash: bytes, life: Life) -> None:
        """Write a life in place of what was there."""

    def answer(self, answer: Answer, price: Price | None, life: Life) -> None:
        """Write a life with an answer that it is about to give, and charge it where one can."""

    def require_room(self, doc_hash: bytes, price: Price | None) -> None:
        """Require that a run fits into what all runs may cost, where that is known."""


class ContextMemory:
    """Lives in a context's state: lost with it, and no account of runs."""

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def load(self, doc_hash: bytes) -> Life | None:
        """Return the life in a run, or ``None``."""
        return load_life(self._state, doc_hash)

    def save(self, doc_hash: bytes, life: Life) -> None:
        """Write a life in place of what was there."""
        save_life(self._state, doc_hash, life)

    def answer(self, answer: Answer, price: Price | None, life: Life) -> None:
        """Write a life; nothing is charged."""
        self.save(answer.run, life)

    def require_room(self, doc_hash: bytes, price: Price | None) -> None:
        """Accept: there is no account."""


class LedgerMemory:
    """Lives in a ledger, where an answer is charged as it is written down.

    Raises from `save` and `answer` what the ledger raises: above all `MemoryChangedError`, after
    which the message must be handled again from what the file then holds.
    """

    def __init__(self, ledger: Ledger, limit: Limit) -> None:
        self._ledger = ledger
        self._limit = limit
        self._versions: dict[bytes, int] = {}

    def load(self, doc_hash: bytes) -> Life | None:
        """Return the life in a run, or ``None``."""
        found = self._ledger.load(doc_hash)
        self._versions[doc_hash] = 0 if found is None else found[0]
        return None if found is None else unpack_life(found[1])

    def save(self, doc_hash: bytes, life: Life) -> None:
        """Write a life in place of the one that was read; one that has finished ends the run."""
        version = self._versions[doc_hash]
        write = self._ledger.end if life.finished else self._ledger.save
        self._versions[doc_hash] = write(doc_hash, version, pack_life(life))

    def answer(self, answer: Answer, price: Price | None, life: Life) -> None:
        """Write a life with its answer, and what that costs, in one transaction."""
        self._versions[answer.run] = self._ledger.charge(
            answer, price, self._limit, self._versions[answer.run], pack_life(life)
        )

    def require_room(self, doc_hash: bytes, price: Price | None) -> None:
        """Require that a run fits into the limit."""
        self._ledger.require_room(doc_hash, price, self._limit)


def _life_from(values: Mapping[str, Any]) -> Life:
    life = Life(
        **{name: values[name] for name in _BYTES_FIELDS},
        **{name: values[name] for name in _INT_FIELDS},
    )
    for item in values.get("answered", ()):
        t, attempt, context, digest = _ANSWER.unpack(item)
        life.answered[t, attempt] = (context, digest)
    if "state.round" in values:
        life.state = _unpack_state(values)
    return life


def _values(life: Life) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(life, name) for name in (*_BYTES_FIELDS, *_INT_FIELDS)}
    if life.answered:
        values["answered"] = [
            _ANSWER.pack(*key, *value) for key, value in sorted(life.answered.items())
        ]
    if life.state is not None:
        values.update(_pack_state(life.state))
    return values


def _pack_state(state: State) -> dict[str, Any]:
    values: dict[str, Any] = {"state.round": state.round}
    for name, array in state.arrays.items():
        if array.dtype != np.int64:
            raise TypeError(f"Expected {name!r} of a state as int64. Got {array.dtype} instead.")
        values[f"state.shape.{name}"] = list(array.shape)
        values[f"state.array.{name}"] = array.astype("<i8").tobytes()
    return values


def _unpack_state(values: Mapping[str, Any]) -> State:
    arrays = {}
    for key, data in values.items():
        if key.startswith("state.array."):
            name = key.removeprefix("state.array.")
            shape = tuple(values[f"state.shape.{name}"])
            arrays[name] = np.frombuffer(data, dtype="<i8").astype(np.int64).reshape(shape)
    return State(round=values["state.round"], arrays=arrays)
