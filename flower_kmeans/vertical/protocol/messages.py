"""Messages that only runs over columns have (docs/protocol.md, sections 8 and 13)."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

import msgspec

from flower_kmeans.protocol.messages import (
    ENVELOPE_BYTES,
    Claim,
    Head,
    Long,
    Public,
    Reply,
    Request,
    Rows,
    Software,
    split,
)
from flower_kmeans.protocol.wire import B32, B48, U32, Count, Struct
from flower_kmeans.secagg.primitives import u32

MAX_PARCELS = 256  # most parcels or deliveries in one message
_SLOT_BYTES = 4
_MOST_RECEIVERS = 64
_MOST_HOLDERS = 64

VerticalStep = Literal[
    "ids", "keys", "join", "encrypt", "load", "step", "open", "close", "finish"
]
Receivers = Annotated[bytes, msgspec.Meta(max_length=_SLOT_BYTES * _MOST_RECEIVERS)]
ParcelKeys = Annotated[bytes, msgspec.Meta(max_length=ENVELOPE_BYTES * _MOST_RECEIVERS)]


def write_receivers(slots: Iterable[int]) -> bytes:
    """Return the encoded slots of a parcel's receivers."""
    return b"".join(map(u32, slots))


def read_receivers(data: bytes) -> tuple[int, ...]:
    """Return the slots of encoded receivers.

    Raises
    ------
    MessageError
        If the last slot is incomplete.
    """
    return tuple(int.from_bytes(each, "little") for each in split(data, _SLOT_BYTES))


class Parcel(Struct, frozen=True, kw_only=True):
    """Sealed data of one party of a vertical run for others, as the server gets it."""

    step: VerticalStep
    t: U32 = 0
    number: U32 = 0
    receivers: Receivers
    keys: ParcelKeys  # the parcel's secret, sealed for each receiver
    data: Long


class Delivery(Struct, frozen=True, kw_only=True):
    """A parcel as one of its receivers gets it."""

    sender: U32
    step: VerticalStep
    t: U32 = 0
    number: U32 = 0
    key: B48
    data: Long


Parcels = Annotated[tuple[Parcel, ...], msgspec.Meta(max_length=MAX_PARCELS)]
Deliveries = Annotated[tuple[Delivery, ...], msgspec.Meta(max_length=MAX_PARCELS)]
Commitments = Annotated[tuple[B32, ...], msgspec.Meta(max_length=_MOST_HOLDERS)]


class TurnHead(Head, frozen=True, kw_only=True):
    """The first fields of a long `Turn`."""

    step: VerticalStep = "finish"
    part: U32 = 1


class Turn(Request, tag="turn", frozen=True, kw_only=True):
    """Asks a party of a vertical run for its next step, and delivers the others' parcels."""

    HEAD: ClassVar[type[Head]] = TurnHead

    doc_hash: B32
    step: VerticalStep
    t: U32 = 0
    part: Count = 1
    peers: Rows = b""
    commitments: Commitments = ()
    deliveries: Deliveries = ()


class Joined(Reply, tag="joined", frozen=True, kw_only=True):
    """The party takes part in a vertical run: its slot and its session's public values."""

    doc_hash: B32
    slot: U32
    static: Public = b""
    public_key: B32
    claim: Claim = b""
    commitment: Public = b""
    has_ids: bool = False
    ledger: bool = False
    software: Software = ""


class Sent(Reply, tag="sent", frozen=True, kw_only=True):
    """A party has done its step: message ``part`` of ``parts`` with sealed data for others."""

    doc_hash: B32
    parts: Count = 1
    parcels: Parcels = ()
