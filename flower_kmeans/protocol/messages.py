"""The messages of the protocol (docs/protocol.md, section 8).

Fields keep the protocol's names on the wire where these differ from the words of the
code. The order of the fields is part of the encoding: vectors fix it.
"""

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, TypeVar

import msgspec

from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.committee import MAX_POSITIONS
from flower_kmeans.protocol.kinds import KindError, kind_of_message
from flower_kmeans.protocol.run import MAX_ROUNDS
from flower_kmeans.protocol.wire import (
    B16,
    B32,
    B48,
    MAX_DOCUMENT,
    MAX_MESSAGE,
    MAX_SLOTS,
    U32,
    Count,
    Family,
    Struct,
    tag_of,
)
from flower_kmeans.secagg.primitives import (
    CLAIM_BYTES,
    DIGEST_BYTES,
    KEY_BYTES,
    KEY_ID_BYTES,
    SEAL_BYTES,
)

ENVELOPE_BYTES = KEY_BYTES + SEAL_BYTES
_ROW = struct.Struct(f"<I{KEY_BYTES}s")  # under relayed keys: slot and ephemeral key
# with a roster: node and claim too
_CLAIMED_ROW = struct.Struct(f"<I{KEY_BYTES}sQ{CLAIM_BYTES}s")
_MADE = struct.Struct(f"<Q{CLAIM_BYTES}s")  # the node and claim of a committee member
MAX_WRAPS = 4  # envelopes in one message, of different key distributors
_MOST_LEVELS = 17  # levels of the tree over the largest cohort
# a bitmap of positions, the first in the lowest bit of the first byte
_BITMAP_BYTES = MAX_POSITIONS // 8

# The pattern ends in \Z, because $ admits a final line break, and logs show this text.
Software = Annotated[str, msgspec.Meta(max_length=64, pattern="^[A-Za-z0-9 ._+-]*\\Z")]
Public = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)]
Long = Annotated[bytes, msgspec.Meta(max_length=MAX_MESSAGE)]
Document = Annotated[bytes, msgspec.Meta(max_length=MAX_DOCUMENT)]
# empty under relayed keys
Claim = Annotated[bytes, msgspec.Meta(max_length=CLAIM_BYTES)]
PeerRow = Annotated[
    bytes, msgspec.Meta(min_length=_ROW.size, max_length=_CLAIMED_ROW.size)
]
Rows = Annotated[bytes, msgspec.Meta(max_length=_CLAIMED_ROW.size * MAX_SLOTS)]
Claims = Annotated[bytes, msgspec.Meta(max_length=_MADE.size * MAX_POSITIONS)]
Envelopes = Annotated[bytes, msgspec.Meta(max_length=ENVELOPE_BYTES * MAX_SLOTS)]
Survivors = Annotated[bytes, msgspec.Meta(max_length=MAX_SLOTS // 8)]
PublicKeys = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES * MAX_SLOTS)]
Path = Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES * _MOST_LEVELS)]
Members = Annotated[bytes, msgspec.Meta(max_length=_ROW.size * MAX_POSITIONS)]
Positions = Annotated[bytes, msgspec.Meta(max_length=_BITMAP_BYTES)]


class Code(IntEnum):
    """Reason for a refusal. Each code has one fixed sentence, which only reports and logs show."""

    sentence: str

    def __new__(cls, value: int, sentence: str = "") -> "Code":
        """Make a code, or find it by its number."""
        code = int.__new__(cls, value)
        code._value_, code.sentence = value, sentence
        return code

    BAD_MESSAGE = 1, "The message was malformed."
    VERSION = 2, "The client does not speak this version of the protocol."
    POLICY = 3, "The run is outside of what the client's policy accepts."
    STALE = 4, "The message belongs to a round or a run that is over."
    NEED = 5, "The client lacks an earlier part of the run."
    RENEW = (
        6,
        "The client has begun a new session: it lost its memory, or its records changed.",
    )
    CONFLICT = 7, "The message contradicts an earlier answer of the client."
    GARBAGE = 8, "The announced sum cannot be unmasked or reconstructed."
    KEY = 9, "A key is wrong, or an envelope or a share cannot be unsealed."
    LEDGER = (
        10,
        "The client's privacy ledger does not allow another release, or cannot be used.",
    )
    DATA = 11, "The client's records could not be loaded or checked."
    INTERNAL = 12, "The client failed; its own log says why."


class Peer(NamedTuple):
    """Public values of another client that the server passes on."""

    slot: int
    public_key: bytes  # ephemeral
    node_id: int = 0
    claim: bytes = b""  # of the slot for this node and key; empty under relayed keys

    @property
    def row(self) -> bytes:
        """The encoded client, without node and claim if it made no claim."""
        return _CLAIMED_ROW.pack(*self) if self.claim else _ROW.pack(*self[:2])


def row_bytes(has_claims: bool) -> int:
    """Return the length of a row, in bytes."""
    return (_CLAIMED_ROW if has_claims else _ROW).size


def read_rows(data: bytes, has_claims: bool) -> tuple[Peer, ...]:
    """Return the clients of encoded rows.

    Raises
    ------
    MessageError
        If the last row is incomplete.
    """
    row = _CLAIMED_ROW if has_claims else _ROW
    if len(data) % row.size:
        raise MessageError("Expected whole rows of peers.")
    return tuple(Peer(*each) for each in row.iter_unpack(data))


def write_claims(made: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the encoded nodes and claims of the present committee members."""
    return b"".join(_MADE.pack(*each) for each in made)


def read_claims(data: bytes, n: int) -> tuple[tuple[int, bytes], ...]:
    """Return the nodes and claims of ``n`` committee members.

    Raises
    ------
    MessageError
        If there are more or fewer.
    """
    if len(data) != _MADE.size * n:
        raise MessageError("Expected a claim for each present position.")
    return tuple(_MADE.iter_unpack(data))


def split(data: bytes, size: int) -> tuple[bytes, ...]:
    """Return the pieces of ``size`` bytes in concatenated data.

    Raises
    ------
    MessageError
        If the last piece is incomplete.
    """
    if len(data) % size:
        raise MessageError(f"Expected whole pieces of {size} bytes.")
    return tuple(data[start : start + size] for start in range(0, len(data), size))


def write_sum_shares(shares: Mapping[int, bytes]) -> tuple[bytes, bytes]:
    """Return the encoded bitmap of positions, and their concatenated sum-shares."""
    bitmap = sum(1 << position for position in shares)
    return bitmap.to_bytes(_BITMAP_BYTES, "little"), b"".join(
        shares[j] for j in sorted(shares)
    )


def read_sum_shares(entry: "Entry") -> dict[int, bytes]:
    """Return an entry's sealed sum-shares by position.

    Raises
    ------
    MessageError
        If the bitmap is malformed or empty, or the shares differ in length.
    """
    bitmap = int.from_bytes(entry.positions, "little")
    if len(entry.positions) != _BITMAP_BYTES or not bitmap or not entry.shares:
        raise MessageError("Expected a bitmap of positions, and their sum-shares.")
    positions = [
        position for position in range(MAX_POSITIONS) if bitmap >> position & 1
    ]
    size, rest = divmod(len(entry.shares), len(positions))
    if rest:
        raise MessageError("Expected a sum-share of the same length for each position.")
    return dict(zip(positions, split(entry.shares, size), strict=True))


class Wrap(Struct, frozen=True, kw_only=True):
    """A group secret that a key distributor sealed for one client."""

    distributor: PeerRow = msgspec.field(name="leader")
    key_id: B16  # id of the group key that the envelope must hold
    envelope: B48


Wraps = Annotated[tuple[Wrap, ...], msgspec.Meta(max_length=MAX_WRAPS)]
KeyId = Annotated[bytes, msgspec.Meta(max_length=KEY_ID_BYTES)]


class Entry(Struct, frozen=True, kw_only=True):
    """The sum that was announced for one round of a blind run."""

    t: Count
    attempt: Count
    n_slots: Count = msgspec.field(name="m")
    root: B32
    committee: B32
    tag: B32
    survivors: Survivors
    packing: U32 = msgspec.field(name="k", default=0)
    words: Long = b""
    positions: Positions = b""
    shares: Long = b""  # sealed sum-shares of equal length, in order of position


Entries = Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MAX_ROUNDS)]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first fields of a long request, which a client decodes before the others."""

    kind: str = msgspec.field(name="type")
    doc_hash: B32
    doc: Document = b""
    t: U32 = 0
    n_slots: U32 = msgspec.field(name="m", default=0)


class Request(Struct, frozen=True, kw_only=True):
    """Base of the messages to a client. `RunKind` has the messages of single kinds of runs."""

    HEAD: ClassVar[type[Head]] = Head

    if TYPE_CHECKING:

        @property
        def doc_hash(self) -> bytes:
            """SHA-256 of the run document."""


class Reply(Struct, frozen=True, kw_only=True):
    """Base of a client's replies."""

    if TYPE_CHECKING:

        @property
        def doc_hash(self) -> bytes | None:
            """SHA-256 of the run document, where the request named one."""


class Enrol(Request, tag="enrol", frozen=True, kw_only=True):
    """Asks a client to take part."""

    doc: Document

    @property
    def doc_hash(self) -> bytes:
        """SHA-256 of the run document."""
        return hashlib.sha256(self.doc).digest()


class Keys(Request, tag="keys", frozen=True, kw_only=True):
    """Asks a key distributor to seal a group secret for these peers (oblivious-server)."""

    doc_hash: B32
    peers: Rows


class Hold(Request, tag="hold", frozen=True, kw_only=True):
    """Asks a client to take a group key, and nothing else."""

    doc_hash: B32
    doc: Document = b""
    wraps: Wraps


class Located(Request, frozen=True, kw_only=True):
    """Common fields of `Ask` and `Add`: the attempt, its cohort, and the reader's slot."""

    doc_hash: B32
    t: Count
    attempt: Count
    n_slots: Count = msgspec.field(name="m")
    root: B32
    slot: U32 = msgspec.field(name="place")
    path: Path = b""
    committee: Members = b""
    claims: Claims = b""
    doc: Document = b""
    wraps: Wraps = ()


class Ask(Located, tag="ask", frozen=True, kw_only=True):
    """Asks a client for its answer to one attempt at a round."""

    query: Long | None = None
    entries: Entries = ()
    peers: Rows = b""


class Add(Located, tag="add", frozen=True, kw_only=True):
    """Asks a committee member for its sum-share: the sum of the survivors' shares for it."""

    h: B32
    tag: B32
    survivors: Survivors
    public_keys: PublicKeys = msgspec.field(name="ephs")
    sealed: Long  # the survivors' shares, of equal length


class Finish(Request, tag="finish", frozen=True, kw_only=True):
    """Delivers the last entries or the result to a client."""

    doc_hash: B32
    entries: Entries = ()
    wraps: Wraps = ()
    result: Long | None = None


class Abort(Request, tag="abort", frozen=True, kw_only=True):
    """Ends a run without a result: clients erase their secrets, and their answers stay charged."""

    doc_hash: B32


class Enrolled(Reply, tag="enrolled", frozen=True, kw_only=True):
    """The client takes part: the public values of its session."""

    doc_hash: B32
    commitment: B32
    static: Public
    public_key: Public = msgspec.field(name="eph")
    claim: Claim = b""
    ledger: bool = False
    software: Software = ""


class Wrapped(Reply, tag="wrapped", frozen=True, kw_only=True):
    """A key distributor's envelopes, in the order of the peers, and the id of its group key."""

    doc_hash: B32
    key_id: B16
    envelopes: Envelopes


class Held(Reply, tag="held", frozen=True, kw_only=True):
    """The client has the group key."""

    doc_hash: B32
    key_id: B16


class Answer(Reply, tag="answer", frozen=True, kw_only=True):
    """A client's protected vector: words, or a share for each present position in order."""

    doc_hash: B32
    tag: B32
    words: Long = b""
    sealed: Long = b""  # shares of equal length
    key_id: KeyId = b""
    envelopes: Envelopes = b""


class Added(Reply, tag="added", frozen=True, kw_only=True):
    """A committee member's sum-share."""

    doc_hash: B32
    share: Long
    key_id: KeyId = b""


class Finished(Reply, tag="finished", frozen=True, kw_only=True):
    """The client has the result, or was told that there is none, and has erased its secrets."""

    doc_hash: B32


class Refusal(Reply, tag="refusal", frozen=True, kw_only=True):
    """The client refuses the request."""

    code: Annotated[int, msgspec.Meta(ge=1, le=12)]
    doc_hash: B32 | None = None
    commitment: B32 | None = None
    static: Public = b""
    public_key: Public = msgspec.field(name="eph", default=b"")
    claim: Claim = b""
    slot: U32 | None = msgspec.field(name="place", default=None)


class OtherKindError(MessageError):
    """A message is of a kind of run that its reader does not take part in."""


_Message = TypeVar("_Message", Request, Reply)


def _of_kind(
    base: type[_Message], tag: str, accepted: Collection[str] | None
) -> type[_Message] | None:
    """Return the struct of a tag that only one kind of run has; ``None`` if there is none."""
    try:
        kind = kind_of_message(tag, accepted)
    except KindError as error:
        raise OtherKindError(str(error)) from None
    if kind is None:
        return None
    for found in kind.messages:
        if tag_of(found) == tag and issubclass(found, base):
            return found
    return None


REQUESTS = Family[Request](
    (Enrol, Keys, Hold, Ask, Add, Finish, Abort), partial(_of_kind, Request)
)
REPLIES = Family[Reply](
    (Enrolled, Wrapped, Held, Answer, Added, Finished, Refusal),
    partial(_of_kind, Reply),
)
decode_request = REQUESTS.decode
decode_reply = REPLIES.decode


@cache
def _head_reader(head: type[Head]) -> Callable[[bytes], Head]:
    return msgspec.msgpack.Decoder(head).decode


def read_head(data: bytes, accepted: Collection[str] | None = None) -> Head:
    """Return the head of an encoded request.

    Raises
    ------
    MessageError
        If the request is malformed, or of none of the ``accepted`` kinds, which by
        default are all.
    """
    try:
        head = _head_reader(Head)(data)
        of_kind = REQUESTS.of_tag(head.kind, accepted).HEAD
        # A long message takes long to walk: twice only for fields of its own kind.
        return head if of_kind is Head else _head_reader(of_kind)(data)
    except OtherKindError:
        return head  # which the run that it names refuses
    except (MessageError, msgspec.MsgspecError, RecursionError, UnicodeError):
        raise MessageError("Expected a well-formed head of a long message.") from None
