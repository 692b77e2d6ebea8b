"""The messages of the protocol (docs/protocol.md, section 8).

Fields keep the protocol's names on the wire where these differ from the words of the code. The
order of the fields is part of the encoding: vectors fix it.
"""

import hashlib
from enum import IntEnum
from typing import Annotated, Literal

import msgspec

from flower_kmeans.protocol.wire import B32, B48, U32, Count, Struct, decode

# \Z, as $ would let a line break pass at the end, and this text stands in logs.
Software = Annotated[str, msgspec.Meta(max_length=64, pattern="^[A-Za-z0-9 ._+-]*\\Z")]
Public = Annotated[bytes, msgspec.Meta(max_length=32)]
Step = Literal["keys", "join", "encrypt", "load", "step", "open", "close", "finish"]
Envelope = Annotated[bytes, msgspec.Meta(max_length=48)]  # empty: that peer's tag is wrong


class Code(IntEnum):
    """Why a client refuses; each code has one fixed sentence, for reports and logs alone."""

    sentence: str

    def __new__(cls, value: int, sentence: str = "") -> "Code":
        """Make a code, or find it by its number alone."""
        code = int.__new__(cls, value)
        code._value_, code.sentence = value, sentence
        return code

    BAD_MESSAGE = 1, "The message was malformed."
    VERSION = 2, "The client does not speak this version of the protocol."
    POLICY = 3, "The run is outside of what the client's policy accepts."
    STALE = 4, "The message belongs to a round or a run that is over."
    NEED = 5, "The client lacks an earlier part of the run."
    RENEW = 6, "The client has begun a new session: it lost its memory, or its records changed."
    CONFLICT = 7, "The message contradicts what the client already answered."
    GARBAGE = 8, "The announced sum does not open."
    KEY = 9, "A key, an envelope or a share does not open."
    LEDGER = 10, "The client's privacy ledger does not allow another release, or cannot be used."
    DATA = 11, "The client's records could not be loaded or checked."
    INTERNAL = 12, "The client failed; its own log says why."


class Peer(Struct, frozen=True, kw_only=True):
    """Another client, as the server passes it on: its ephemeral key, and the tag for who reads."""

    slot: U32 = msgspec.field(name="place")
    public_key: B32 = msgspec.field(name="eph")
    tag: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class Wrap(Struct, frozen=True, kw_only=True):
    """A group secret, sealed by a key distributor for the client that is sent it."""

    distributor: Peer = msgspec.field(name="leader")
    envelope: B48


class Entry(Struct, frozen=True, kw_only=True):
    """The sum that was announced for one round of a blind run."""

    t: Count
    attempt: Count
    n_slots: Count = msgspec.field(name="m")
    root: B32
    committee: B32
    tag: B32
    survivors: bytes
    packing: U32 = msgspec.field(name="k", default=0)
    words: bytes = b""
    shares: tuple[tuple[U32, bytes], ...] = ()


class Parcel(Struct, frozen=True, kw_only=True):
    """Sealed data from one party of a vertical run for others, as it reaches the server."""

    step: Step
    t: U32 = 0
    number: U32 = 0
    receivers: tuple[U32, ...]
    keys: tuple[B48, ...]  # the parcel's own secret, sealed for each of the receivers
    data: bytes


class Delivery(Struct, frozen=True, kw_only=True):
    """A parcel as it reaches one of its receivers."""

    sender: U32
    step: Step
    t: U32 = 0
    number: U32 = 0
    key: B48
    data: bytes


class Enrol(Struct, tag="enrol", frozen=True, kw_only=True):
    """Asks a client to take part."""

    doc: bytes

    @property
    def doc_hash(self) -> bytes:
        """SHA-256 of the run document."""
        return hashlib.sha256(self.doc).digest()


class Keys(Struct, tag="keys", frozen=True, kw_only=True):
    """Asks a key distributor to seal a group secret for these peers (oblivious-server)."""

    doc_hash: B32
    peers: tuple[Peer, ...] = msgspec.field(name="wrap")


class Located(Struct, frozen=True, kw_only=True):
    """What `Ask` and `Add` have in common: the attempt, its cohort, and the reader's slot."""

    doc_hash: B32
    t: Count
    attempt: Count
    n_slots: Count = msgspec.field(name="m")
    root: B32
    slot: U32 = msgspec.field(name="place")
    path: bytes = b""
    committee: bytes = b""
    tags: bytes = b""
    doc: bytes = b""
    wrap_for: Wrap | None = None


class Ask(Located, tag="ask", frozen=True, kw_only=True):
    """Asks for the answer to one attempt at a round."""

    query: bytes | None = None
    entries: tuple[Entry, ...] = ()
    peers: tuple[Peer, ...] = msgspec.field(name="wrap", default=())


class Add(Located, tag="add", frozen=True, kw_only=True):
    """Asks a committee member for its sum-share: the sum of the survivors' shares for it."""

    h: B32
    tag: B32
    survivors: bytes
    public_keys: bytes = msgspec.field(name="ephs")
    sealed: tuple[bytes, ...]


class Finish(Struct, tag="finish", frozen=True, kw_only=True):
    """Delivers the last entries, or the result."""

    doc_hash: B32
    entries: tuple[Entry, ...] = ()
    wrap_for: Wrap | None = None
    result: bytes | None = None


class Turn(Struct, tag="turn", frozen=True, kw_only=True):
    """Asks a party of a vertical run for its next step, and brings what others sealed for it."""

    doc_hash: B32
    step: Step
    t: U32 = 0
    part: Count = 1
    peers: tuple[Peer, ...] = ()
    commitments: tuple[B32, ...] = ()
    deliveries: tuple[Delivery, ...] = ()


class Abort(Struct, tag="abort", frozen=True, kw_only=True):
    """Ends a vertical run without a result: parties erase what is secret, charges stay."""

    doc_hash: B32


class Enrolled(Struct, tag="enrolled", frozen=True, kw_only=True):
    """Takes part: a client session's public values."""

    doc_hash: B32
    commitment: B32
    static: Public
    public_key: Public = msgspec.field(name="eph")
    tags: bytes = b""
    ledger: bool = False
    software: Software = ""


class Joined(Struct, tag="joined", frozen=True, kw_only=True):
    """Takes part in a vertical run: a party's slot and its session's public values."""

    doc_hash: B32
    slot: U32
    static: Public = b""
    public_key: B32
    tags: bytes = b""
    commitment: Public = b""
    has_ids: bool = False
    ledger: bool = False
    software: Software = ""


class Sent(Struct, tag="sent", frozen=True, kw_only=True):
    """A party's step is done; ``part`` of ``parts`` messages of sealed data for others."""

    doc_hash: B32
    parts: Count = 1
    parcels: tuple[Parcel, ...] = ()


class Wrapped(Struct, tag="wrapped", frozen=True, kw_only=True):
    """A key distributor's envelopes, in the order of the peers; empty for wrong tags."""

    doc_hash: B32
    envelopes: tuple[Envelope, ...]


class Answer(Struct, tag="answer", frozen=True, kw_only=True):
    """A client's protected vector."""

    doc_hash: B32
    tag: B32
    words: bytes = b""
    sealed: tuple[bytes, ...] = ()
    envelopes: tuple[Envelope, ...] = ()


class Added(Struct, tag="added", frozen=True, kw_only=True):
    """A committee member's sum-share."""

    doc_hash: B32
    share: bytes
    key_id: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class Finished(Struct, tag="finished", frozen=True, kw_only=True):
    """The client has the result and has erased its secrets."""

    doc_hash: B32


class Refusal(Struct, tag="refusal", frozen=True, kw_only=True):
    """The client does not do what it was asked."""

    code: Annotated[int, msgspec.Meta(ge=1, le=12)]
    doc_hash: B32 | None = None
    commitment: B32 | None = None
    static: Public = b""
    public_key: Public = msgspec.field(name="eph", default=b"")
    tags: bytes = b""
    slot: U32 | None = msgspec.field(name="place", default=None)


Request = Enrol | Keys | Ask | Add | Finish | Turn | Abort
Reply = Enrolled | Wrapped | Answer | Added | Finished | Refusal | Joined | Sent


def decode_request(data: bytes) -> Request:
    """Return the request that bytes encode; a `MessageError` if they encode none."""
    request: Request = decode(data, Request)
    return request


def decode_reply(data: bytes) -> Reply:
    """Return the reply that bytes encode; a `MessageError` if they encode none."""
    reply: Reply = decode(data, Reply)
    return reply
