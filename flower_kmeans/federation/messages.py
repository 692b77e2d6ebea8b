"""Every message between server and clients (docs/protocol.md, section 8).

A message is one ``ConfigRecord`` under the key "kmeans". A field that has its default is not sent.
Decoding is strict: exact types and sizes and no unknown field, so no message has two encodings.
Whatever is wrong ends in one ``MessageError`` whose text holds nothing of what was received.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar, get_args

from flwr.app import ConfigRecord, RecordDict

from flower_kmeans.errors import MessageError
from flower_kmeans.federation.codes import Code as Code
from flower_kmeans.federation.cohort import MAX_MEMBERS, depth
from flower_kmeans.federation.encoding import (
    MALFORMED,
    Check,
    Encoded,
    integer,
    is_arrays,
    is_bool,
    is_bytes,
    is_document,
    is_true,
    is_words,
    list_of,
    require_version,
    sized,
)
from flower_kmeans.federation.encoding import MESSAGE_VERSION as MESSAGE_VERSION
from flower_kmeans.secagg.sharing import SHARE_BYTES

RECORD_KEY = "kmeans"


class OtherRunError(MessageError):
    """A reply names another run than the one that asked."""


_digest = sized(32)
_u32 = integer(1, 2**32 - 1)
_attempt = integer(1, 3)


@dataclass(frozen=True, kw_only=True)
class Enrol(Encoded):
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
        "doc": is_document,
        "lead": is_bool,
    }

    doc_hash: bytes
    doc: bytes
    lead: bool


@dataclass(frozen=True, kw_only=True)
class Lead(Encoded):
    """Relayed keys: asks a client to make a group key for these members.

    Parameters
    ----------
    pubs : tuple of bytes
        All members' public keys, 32 bytes each, ordered by index.
    """

    KIND = "lead"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "pubs": list_of(_digest, MAX_MEMBERS),
    }

    doc_hash: bytes
    pubs: tuple[bytes, ...]


_PLACE_CHECKS: dict[str, Check] = {
    "doc_hash": _digest,
    "t": _u32,
    "m": integer(1, MAX_MEMBERS),
    "index": integer(0, MAX_MEMBERS - 1),
    "root": _digest,
    "path": is_bytes,
    "entries": list_of(is_bytes),
    "doc": is_document,
    "leader": sized(64),
    "envelope": sized(48),
    "want_correction": is_true,
}


@dataclass(frozen=True, kw_only=True)
class _Placed(Encoded):
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
        Whether the client is asked for the sum of the survivors' masks, which opens entry ``t``
        (of a round's request: ``t - 1``).
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
        What the server asks (`questions.ask`); empty for algorithms that clients
        replay.
    """

    KIND = "round"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        **_PLACE_CHECKS,
        "attempt": _attempt,
        "question": is_arrays,
    }

    attempt: int
    question: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Open(_Placed):
    """Asks members to open the sum of round ``t``."""

    KIND = "open"


@dataclass(frozen=True, kw_only=True)
class Finish(_Placed):
    """Tells the last round's sum and ends the run.

    Parameters
    ----------
    result : bytes
        Centroids and counts (`questions.tell`) where the server asked the questions; empty where
        clients compute them.
    """

    KIND = "finish"
    CHECKS: ClassVar[Mapping[str, Check]] = {**_PLACE_CHECKS, "result": is_arrays}

    result: bytes = b""


class _Reply(Encoded):
    # A reply says OK; everything else is a Refusal.
    CONSTANTS: ClassVar[Mapping[str, int]] = {"code": int(Code.OK)}
    doc_hash: bytes


@dataclass(frozen=True, kw_only=True)
class EnrolReply(_Reply):
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
    ledger : bool
        Whether the client says that it keeps a ledger of what it releases.
    """

    KIND = "enrol"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "commitment": _digest,
        "versions": list_of(integer(0, 2**31 - 1)),
        "public_key": _digest,
        "key_id": sized(8),
        "leader": sized(64),
        "envelopes": list_of(sized(80), MAX_MEMBERS),
        "ledger": is_true,
    }

    doc_hash: bytes
    commitment: bytes
    versions: tuple[int, ...] = (MESSAGE_VERSION,)
    public_key: bytes = b""
    key_id: bytes | None = None
    leader: bytes | None = None
    envelopes: tuple[bytes, ...] = ()
    ledger: bool = False

    def _is_consistent(self) -> bool:
        return (self.leader is None) == (not self.envelopes)


@dataclass(frozen=True, kw_only=True)
class LeadReply(_Reply):
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
        "leader": sized(64),
        "envelopes": list_of(sized(80), MAX_MEMBERS),
    }

    doc_hash: bytes
    leader: bytes
    envelopes: tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True)
class _GivingReply(_Reply):
    """What a reply may give toward the opening of the last announced sum.

    Parameters
    ----------
    share_t : int, optional
        The round that is opened.
    share : bytes, optional
        The client's share of the sum's secret, 32 bytes; absent under simple opening.
    correction : bytes, optional
        Sum of the survivors' masks, 8 bytes per word; sealed unless opening is simple.
    """

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "doc_hash": _digest,
        "share_t": _u32,
        "share": sized(SHARE_BYTES),
        "correction": is_words,
    }

    doc_hash: bytes
    share_t: int | None = None
    share: bytes | None = None
    correction: bytes | None = None

    def _is_consistent(self) -> bool:
        return (self.share_t is None) == (self.share is None and self.correction is None)


@dataclass(frozen=True, kw_only=True)
class RoundReply(_GivingReply):
    """One client's vector for one round.

    Parameters
    ----------
    ctx : bytes
        Context of the round and attempt, 32 bytes.
    words : bytes
        The vector, masked where the trust model masks: 8 bytes per word, little-endian.
    """

    KIND = "round"
    CHECKS: ClassVar[Mapping[str, Check]] = {
        **_GivingReply.CHECKS,
        "ctx": _digest,
        "words": is_words,
    }

    ctx: bytes
    words: bytes


@dataclass(frozen=True, kw_only=True)
class OpenReply(_GivingReply):
    """Answer to open and finish: the client follows, and gives what it may toward opening."""

    KIND = "open"


@dataclass(frozen=True, kw_only=True)
class Refusal(Encoded):
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
        "code": integer(1, max(Code)),
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
R = TypeVar("R", bound=_Reply)

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
    require_version(record.get("v"))
    kind = record.get("kind")
    cls = _REQUESTS.get(kind) if type(kind) is str else None
    if cls is None:
        raise MessageError(MALFORMED)
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
    OtherRunError
        If it is of another run.
    MessageError
        If it is malformed, or of another kind.
    """
    record = _only_record(content)
    if record.get("kind") == Refusal.KIND:
        refusal = Refusal.from_record(record)
        _require_run(refusal.doc_hash or doc_hash, doc_hash)
        return refusal
    reply = expected.from_record(record)
    _require_run(reply.doc_hash, doc_hash)
    return reply


def _require_run(doc_hash: bytes, expected: bytes) -> None:
    if doc_hash != expected:
        raise OtherRunError("A message belongs to another run.")


def _only_record(content: RecordDict) -> ConfigRecord:
    record = content.get(RECORD_KEY)
    if len(content) != 1 or not isinstance(record, ConfigRecord):
        raise MessageError(MALFORMED)
    return record
