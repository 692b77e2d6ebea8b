"""Every message between server and clients, and its one encoding (docs/protocol.md, section 8).

A message is one ``ConfigRecord`` under the key "kmeans". A field that has its default is not sent.
Decoding is strict: exact types and sizes and no unknown field, so no message has two encodings.
Whatever is wrong ends in one ``MessageError`` whose text holds nothing of what was received.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_args

from flwr.app import ConfigRecord, RecordDict

from flower_kmeans.canonical import MAX_BYTES
from flower_kmeans.errors import MessageError
from flower_kmeans.federation.cohort import depth
from flower_kmeans.federation.document import VersionError

RECORD_KEY = "kmeans"
MESSAGE_VERSION = 1

_MALFORMED = "A message is malformed."


class Code(IntEnum):
    """Why a client refuses; each code has one fixed sentence."""

    OK = 0
    BAD_MESSAGE = 1
    VERSION = 2
    POLICY = 3
    STALE = 4
    NEED = 5
    RENEW = 6
    CONFLICT = 7
    GARBAGE = 8
    KEY = 9
    LEDGER = 10
    DATA = 11
    INTERNAL = 12

    @property
    def sentence(self) -> str:
        """The sentence that stands for the code in reports and logs."""
        return _SENTENCES[self]


_SENTENCES = {
    Code.OK: "The client answered.",
    Code.BAD_MESSAGE: "The message was malformed.",
    Code.VERSION: "The client does not speak this version of the protocol.",
    Code.POLICY: "The run is outside of what the client's policy accepts.",
    Code.STALE: "The message belongs to a round that is over.",
    Code.NEED: "The client lacks an earlier part of the run.",
    Code.RENEW: "The client has no part in the cohort yet, or its records changed.",
    Code.CONFLICT: "The message contradicts what the client already answered.",
    Code.GARBAGE: "The announced sum does not open.",
    Code.KEY: "The client has no group key, or cannot accept the one that was sent.",
    Code.LEDGER: "The client's privacy ledger does not allow another release.",
    Code.DATA: "The client's records could not be loaded or checked.",
    Code.INTERNAL: "The client failed; its own log says why.",
}


# ---------------------------------------------------------------------------------------- checks
Check = Callable[[Any], bool]


def _sized(size: int) -> Check:
    return lambda value: type(value) is bytes and len(value) == size


def _integer(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _list_of(check: Check) -> Check:
    return lambda value: type(value) is list and bool(value) and all(map(check, value))


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes and bool(value)


def _is_document(value: Any) -> bool:
    return _is_bytes(value) and len(value) <= MAX_BYTES


def _is_words(value: Any) -> bool:
    return _is_bytes(value) and len(value) % 8 == 0


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_true(value: Any) -> bool:
    return value is True


_digest = _sized(32)
_u32 = _integer(1, 2**32 - 1)
_attempt = _integer(1, 3)


# -------------------------------------------------------------------------------------- messages
class _Field(NamedTuple):
    name: str
    default: Any
    check: Check
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any] | None


class _Base:
    """Conversion to and from a record, driven by the fields and checks of the subclass."""

    KIND: ClassVar[str]
    CHECKS: ClassVar[Mapping[str, Check]]
    CONSTANTS: ClassVar[Mapping[str, int]] = {}
    _cached: ClassVar[tuple[_Field, ...]]

    def to_record(self) -> ConfigRecord:
        """Return the message as a record. Nothing is checked: the sender made it."""
        values: dict[str, Any] = {"v": MESSAGE_VERSION, "kind": self.KIND, **self.CONSTANTS}
        for name, default, _, encode, _ in self._table():
            value = getattr(self, name)
            if value != default:
                values[name] = value if encode is None else encode(value)
        return ConfigRecord(values)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Read a message of this class from a record.

        Raises
        ------
        VersionError
            If the record is of another version.
        MessageError
            If the record is of another kind, or anything in it is not as the protocol says.
        """
        values = dict(record)
        _require_version(values.pop("v", None))
        kind = values.pop("kind", None)
        if type(kind) is not str or kind != cls.KIND:
            raise MessageError(_MALFORMED)
        for name, constant in cls.CONSTANTS.items():
            value = values.pop(name, None)
            if type(value) is not int or value != constant:
                raise MessageError(_MALFORMED)
        found = {}
        for name, default, check, _, decode in cls._table():
            value = values.pop(name, MISSING)
            if value is MISSING:
                if default is MISSING:
                    raise MessageError(_MALFORMED)
            elif not check(value):
                raise MessageError(_MALFORMED)
            else:
                found[name] = value if decode is None else decode(value)
        if values:
            raise MessageError(_MALFORMED)
        message = cls(**found)
        if not message._is_consistent():
            raise MessageError(_MALFORMED)
        return message

    def _is_consistent(self) -> bool:
        """Return whether fields fit each other; called on what was received."""
        return True

    @classmethod
    def _table(cls) -> tuple[_Field, ...]:
        """Return the fields with their checks and conversions, worked out once per class."""
        if "_cached" not in cls.__dict__:
            cls._cached = tuple(
                _Field(
                    field.name,
                    MISSING if field.name in _ALWAYS_SENT else field.default,
                    cls.CHECKS[field.name],
                    *_CONVERSIONS.get(field.name, (None, None)),
                )
                for field in fields(cls)  # type: ignore[arg-type]
            )
        return cls._cached


class _ReplyBase(_Base):
    CONSTANTS: ClassVar[Mapping[str, int]] = {"code": int(Code.OK)}


# What a server must hear from every client, although there is an obvious value.
_ALWAYS_SENT = frozenset({"versions"})

# Flower's records know lists and plain integers; messages are frozen and know codes by name.
_CONVERSIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "code": (int, Code),
    "entries": (list, tuple),
    "envelopes": (list, tuple),
    "pubs": (list, tuple),
    "versions": (list, tuple),
}


@dataclass(frozen=True, kw_only=True)
class Enrol(_Base):
    """First contact: the run document, and whether the client is asked to lead.

    Parameters
    ----------
    doc_hash : bytes
        Hash of the run document, 32 bytes.
    doc : bytes
        The run document's canonical bytes.
    lead : bool
        Rosters only: whether the client shall make envelopes with a group key.
    """

    KIND = "enrol"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "doc": _is_document,
        "lead": _is_bool,
    }

    doc_hash: bytes
    doc: bytes
    lead: bool


@dataclass(frozen=True, kw_only=True)
class Lead(_Base):
    """Relayed keys: asks a client to make a group key for these members.

    Parameters
    ----------
    pubs : tuple of bytes
        All members' public keys, 32 bytes each, ordered by index.
    """

    KIND = "lead"
    CHECKS: ClassVar[Mapping[str, Check]] = {"doc_hash": _digest, "pubs": _list_of(_digest)}

    doc_hash: bytes
    pubs: tuple[bytes, ...]


_PLACE_CHECKS: dict[str, Check] = {
    "doc_hash": _digest,
    "t": _u32,
    "m": _u32,
    "index": _integer(0, 2**32 - 1),
    "root": _digest,
    "path": _is_bytes,
    "entries": _list_of(_is_bytes),
    "doc": _is_document,
    "leader": _sized(64),
    "envelope": _sized(48),
    "want_correction": _is_true,
}


@dataclass(frozen=True, kw_only=True)
class _Placed(_Base):
    """What round, open and finish have in common.

    Parameters
    ----------
    doc_hash : bytes
        Hash of the run document, 32 bytes.
    t : int
        Round, from 1: the one that is asked for, or the last one of the entries.
    m, index : int
        Size of the cohort and the client's place in it.
    root : bytes
        Root of the cohort, 32 bytes.
    path : bytes
        The client's path to the root, 32 ceil(log2 m) bytes.
    entries : tuple of bytes
        Transcript entries that the client may lack.
    doc : bytes, optional
        The run document, for a client that may lack it.
    leader : bytes, optional
        Ephemeral and lasting public key of the leader, 64 bytes.
    envelope : bytes, optional
        The group key, sealed for this client, 48 bytes.
    want_correction : bool
        Whether the client is asked for the sum of the survivors' masks.
    """

    CHECKS: ClassVar[Mapping[str, Check]] = _PLACE_CHECKS

    doc_hash: bytes
    t: int
    m: int
    index: int
    root: bytes
    path: bytes = b""
    entries: tuple[bytes, ...] = ()
    doc: bytes | None = None
    leader: bytes | None = None
    envelope: bytes | None = None
    want_correction: bool = False

    def _is_consistent(self) -> bool:
        return (
            self.index < self.m
            and len(self.path) == 32 * depth(self.m)
            and (self.leader is None) == (self.envelope is None)
        )


@dataclass(frozen=True, kw_only=True)
class Round(_Placed):
    """Asks for the answer of one round.

    Parameters
    ----------
    attempt : int
        From 1 to 3.
    question : bytes
        Public state of the server; empty for algorithms that clients replay.
    """

    KIND = "round"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        **_PLACE_CHECKS,
        "attempt": _attempt,
        "question": _is_bytes,
    }

    attempt: int
    question: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Open(_Placed):
    """Asks some survivors of round ``t`` to open its sum."""

    KIND = "open"


@dataclass(frozen=True, kw_only=True)
class Finish(_Placed):
    """Tells the last round's sum and ends the run."""

    KIND = "finish"


@dataclass(frozen=True, kw_only=True)
class EnrolReply(_ReplyBase):
    """The client takes part.

    Parameters
    ----------
    doc_hash : bytes
        Hash of the run document, 32 bytes.
    commitment : bytes
        Commitment of the client's life, 32 bytes.
    versions : tuple of int
        Versions of the messages that the client speaks; sent always.
    public_key : bytes
        X25519 public key, 32 bytes; empty where keys come from a file or nothing is masked.
    key_id : bytes, optional
        Identity of the group key file, 8 bytes.
    leader : bytes, optional
        Rosters: the leader's ephemeral and lasting public key, 64 bytes.
    envelopes : tuple of bytes
        Rosters: public key and envelope of each member, 80 bytes each.
    """

    KIND = "enrol"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "commitment": _digest,
        "versions": _list_of(_integer(0, 2**31 - 1)),
        "public_key": _digest,
        "key_id": _sized(8),
        "leader": _sized(64),
        "envelopes": _list_of(_sized(80)),
    }

    doc_hash: bytes
    commitment: bytes
    versions: tuple[int, ...] = (MESSAGE_VERSION,)
    public_key: bytes = b""
    key_id: bytes | None = None
    leader: bytes | None = None
    envelopes: tuple[bytes, ...] = ()

    def _is_consistent(self) -> bool:
        return (self.leader is None) == (not self.envelopes)


@dataclass(frozen=True, kw_only=True)
class LeadReply(_ReplyBase):
    """A group key, sealed for every member.

    Parameters
    ----------
    leader : bytes
        The leader's ephemeral and lasting public key, 64 bytes.
    envelopes : tuple of bytes
        Public key and envelope of each member, 80 bytes each.
    """

    KIND = "lead"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "leader": _sized(64),
        "envelopes": _list_of(_sized(80)),
    }

    doc_hash: bytes
    leader: bytes
    envelopes: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class RoundReply(_ReplyBase):
    """One client's vector for one round.

    Parameters
    ----------
    ctx : bytes
        Context of the round and attempt, 32 bytes.
    words : bytes
        The vector, masked where the trust model masks: 8 bytes per word, little-endian.
    correction_t : int, optional
        The round that ``correction`` opens.
    correction : bytes, optional
        Sum of the survivors' masks, 8 bytes per word.
    """

    KIND = "round"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "ctx": _digest,
        "words": _is_words,
        "correction_t": _u32,
        "correction": _is_words,
    }

    doc_hash: bytes
    ctx: bytes
    words: bytes
    correction_t: int | None = None
    correction: bytes | None = None

    def _is_consistent(self) -> bool:
        return (self.correction_t is None) == (self.correction is None)


@dataclass(frozen=True, kw_only=True)
class OpenReply(_ReplyBase):
    """Answer to open and finish; with the correction if it was asked for and may be given."""

    KIND = "open"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "correction_t": _u32,
        "correction": _is_words,
    }

    doc_hash: bytes
    correction_t: int | None = None
    correction: bytes | None = None

    def _is_consistent(self) -> bool:
        return (self.correction_t is None) == (self.correction is None)


@dataclass(frozen=True, kw_only=True)
class Refusal(_Base):
    """The client does not answer; nothing but the code says why.

    Parameters
    ----------
    code : Code
        Never OK.
    doc_hash : bytes, optional
        Absent if the message could not be read.
    commitment : bytes, optional
        RENEW only: commitment of the client's present life, 32 bytes.
    public_key : bytes
        RENEW only: the life's public key, where it has one.
    """

    KIND = "refusal"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "code": _integer(1, max(Code)),
        "doc_hash": _digest,
        "commitment": _digest,
        "public_key": _digest,
    }

    code: Code
    doc_hash: bytes | None = None
    commitment: bytes | None = None
    public_key: bytes = b""

    def _is_consistent(self) -> bool:
        if self.code == Code.RENEW:
            return self.commitment is not None and self.doc_hash is not None
        return self.commitment is None and not self.public_key


Request = Enrol | Lead | Round | Open | Finish
Reply = EnrolReply | LeadReply | RoundReply | OpenReply
R = TypeVar("R", bound=EnrolReply | LeadReply | RoundReply | OpenReply)

_REQUESTS: dict[str, type[Request]] = {cls.KIND: cls for cls in get_args(Request)}


def to_content(message: Request | Reply | Refusal) -> RecordDict:
    """Return the content of a Flower message that carries this one and nothing else."""
    return RecordDict({RECORD_KEY: message.to_record()})


def decode_request(content: RecordDict) -> Request:
    """Read what a server sent.

    Raises
    ------
    VersionError
        If the message is of another version.
    MessageError
        If it is malformed.
    """
    record = _only_record(content)
    _require_version(record.get("v"))
    kind = record.get("kind")
    cls = _REQUESTS.get(kind) if type(kind) is str else None
    if cls is None:
        raise MessageError(_MALFORMED)
    return cls.from_record(record)


def decode_reply(content: RecordDict, expected: type[R], doc_hash: bytes) -> R | Refusal:
    """Read what a client sent back.

    Parameters
    ----------
    content : RecordDict
        Content of the reply.
    expected : type
        Class of the reply to what was asked.
    doc_hash : bytes
        Hash of the run document, which the reply must name.

    Raises
    ------
    VersionError
        If the message is of another version.
    MessageError
        If it is malformed, of another kind, or of another run.
    """
    record = _only_record(content)
    reply: R | Refusal
    if record.get("kind") == Refusal.KIND:
        reply = Refusal.from_record(record)
        if reply.doc_hash is None:
            return reply
    else:
        reply = expected.from_record(record)
    if reply.doc_hash != doc_hash:
        raise MessageError("A message belongs to another run.")
    return reply


def _only_record(content: RecordDict) -> ConfigRecord:
    record = content.get(RECORD_KEY)
    if len(content) != 1 or not isinstance(record, ConfigRecord):
        raise MessageError(_MALFORMED)
    return record


def _require_version(version: Any) -> None:
    if type(version) is not int:
        raise MessageError(_MALFORMED)
    if version != MESSAGE_VERSION:
        raise VersionError("A message is of another version of the protocol.")
