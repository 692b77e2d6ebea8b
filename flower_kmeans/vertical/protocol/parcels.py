"""The parcels that parties of a vertical run send each other, and their seals.

A parcel's data is sealed under a secret that is derived from the sender's session secret
and the plaintext. That secret is sealed for each receiver (docs/protocol.md, section 13).
So equal plaintexts give equal parcels, different ones have different keys, and a server
stores one copy for all receivers.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.plausibility import padded
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.messages import Peer
from flower_kmeans.protocol.run import Run
from flower_kmeans.protocol.session import Pairs
from flower_kmeans.protocol.wire import encode_arrays
from flower_kmeans.secagg.primitives import DIGEST_BYTES, kdf, seal, u32, unseal
from flower_kmeans.vertical.moduli import Moduli, moduli
from flower_kmeans.vertical.protocol.body import body_of
from flower_kmeans.vertical.protocol.messages import (
    MAX_PARCELS,
    Delivery,
    Parcel,
    VerticalStep,
    write_receivers,
)
from flower_kmeans.vertical.ring import SLOTS, packed_bytes

PUBLIC, RELIN, HALF, DIGESTS, IDS, COLUMNS = range(6)
"""Numbers of the parcels of a set-up. Columns count on from `COLUMNS`; IDS has its own turn."""
NONCE_BYTES = 32
WORD_BYTES = 8
_SEAL_KEY_BYTES = 64
_MAX_PART = 240 * 10**6  # most bytes of data in one message of at most 256 MiB


class Planned(NamedTuple):
    """A parcel of a run, which follows from the run document."""

    sender: int
    step: VerticalStep
    t: int
    number: int
    receivers: tuple[int, ...]
    n_bytes: int  # bytes of plaintext


class Shape(NamedTuple):
    """The roles of the parties of a vertical run, and its sizes."""

    n_parties: int
    holders: tuple[int, ...]
    others: tuple[int, ...]  # slots that only encrypt
    moduli: Moduli
    # encrypted columns of each slot in a chunk, squares included
    widths: tuple[int, ...]
    n_chunks: int
    check_ids: bool
    n_values: int  # values of a round
    n_rounds: int
    result_bytes: int

    @property
    def is_joint(self) -> bool:
        """Whether several parties hold the key together."""
        return len(self.holders) > 1

    def set_up(self, slot: int) -> VerticalStep:
        """Return the step in which a slot sends its columns."""
        if slot not in self.holders:
            return "encrypt"
        return "join" if self.is_joint else "keys"


def shape_of(run: Run) -> Shape:
    """Return the shape of a vertical run."""
    return run.kept.once(_shape_of, run)


def _shape_of(run: Run) -> Shape:
    body = body_of(run)
    algorithm = run.algorithm
    k = algorithm.n_clusters
    d = algorithm.domain.n_features
    radius = body.algorithm["radius"]
    result = {
        "centroids": np.zeros((k, d)),
        "counts": np.zeros(k),
        "findings": padded(np.zeros((0, 6)), algorithm.n_rounds),
    }
    n = len(body.widths)
    return Shape(
        n_parties=n,
        holders=tuple(range(1, body.n_noisy)),
        others=tuple(range(body.n_noisy, n)),
        moduli=moduli(k, radius),
        widths=tuple(width + radius for width in body.widths),
        n_chunks=-(-int(body.algorithm["n_records"]) // SLOTS),
        check_ids=body.check_ids,
        n_values=run.document.words[0],
        n_rounds=run.document.rounds,
        result_bytes=len(encode_arrays(result)),
    )


def planned(run: Run, slot: int, step: VerticalStep, t: int = 0) -> tuple[Planned, ...]:
    """Return the parcels of a slot's answer to a turn, in order of their numbers."""
    shape = shape_of(run)
    is_holder = slot in shape.holders
    contents = list[_Content]()
    if step == "ids" and slot > 0:
        contents = [_Content(IDS, (0,), DIGEST_BYTES)]
    elif step == "keys" and is_holder and shape.is_joint:
        contents = _first_message(shape, slot)
    elif slot > 0 and step == shape.set_up(slot):
        contents = _keys_and_columns(shape, slot)
    elif step == "step" and slot == 0:
        n_bytes = shape.n_values * packed_bytes((shape.moduli.q0,))
        contents = [_Content(0, shape.holders, n_bytes)]
    elif step == "open" and is_holder:
        contents = [_Content(0, (0,), WORD_BYTES * shape.n_values)]
    elif step == "close" and slot == 0:
        others = tuple(range(1, shape.n_parties))
        contents = [_Content(0, others, shape.result_bytes)]
    return tuple(Planned(slot, step, t, *content) for content in contents)


class _Content(NamedTuple):
    """The last three values of a `Planned`."""

    number: int
    receivers: tuple[int, ...]
    n_bytes: int


def _first_message(shape: Shape, slot: int) -> list[_Content]:
    """Return a joint holder's parcels of "keys"."""
    others = tuple(holder for holder in shape.holders if holder != slot)
    polynomial = packed_bytes(shape.moduli.key)
    n_digits = len(shape.moduli.data)
    return [
        _Content(PUBLIC, others, polynomial),
        _Content(RELIN, others, 2 * n_digits * polynomial),
    ]


def _keys_and_columns(shape: Shape, slot: int) -> list[_Content]:
    """Return a slot's parcels of the step in which it sends its columns."""
    is_holder = slot in shape.holders
    without_key = (0, *shape.others)
    polynomial = packed_bytes(shape.moduli.key)
    digits = len(shape.moduli.data) * polynomial
    contents = list[_Content]()
    if slot == 1:
        contents.append(_Content(PUBLIC, without_key, polynomial))
    if is_holder:
        contents.append(_Content(RELIN, (0,), digits))
    if slot == 1 and shape.is_joint:
        contents.append(_Content(HALF, (0,), digits))
    if is_holder and shape.is_joint:
        contents.append(_Content(DIGESTS, without_key, 2 * DIGEST_BYTES))

    data = packed_bytes(shape.moduli.data)
    column = 2 * data
    if is_holder and not shape.is_joint:
        column = NONCE_BYTES + data
    for i in range(shape.n_chunks * shape.widths[slot]):
        contents.append(_Content(COLUMNS + i, (0,), column))
    return contents


def due(
    run: Run, slot: int, step: VerticalStep, t: int = 0, part: int = 1
) -> tuple[Planned, ...]:
    """Return the parcels that a slot's turn brings, in order of (sender, number).

    "load" and "step" 1 share their parcels: all are returned for both.
    """
    shape = shape_of(run)
    sources = list[tuple[int, VerticalStep, int]]()
    if step == "ids":
        sources = [(other, "ids", 0) for other in range(1, shape.n_parties)]
    elif step == "join":
        sources = [(holder, "keys", 0) for holder in shape.holders]
    elif step == "encrypt":
        sources = [(holder, shape.set_up(holder), 0) for holder in shape.holders]
    elif step == "load" or (step, t) == ("step", 1):
        sources = [
            (other, shape.set_up(other), 0) for other in range(1, shape.n_parties)
        ]
    elif step in ("step", "close"):
        opened = shape.n_rounds if step == "close" else t - 1
        sources = [(holder, "open", opened) for holder in shape.holders]
    elif step in ("open", "finish"):
        former: VerticalStep = "step" if step == "open" else "close"
        sources = [(0, former, t)]
    found = list[Planned]()
    for source in sources:
        for plan in planned(run, *source):
            is_repeated = part == 1 or plan.number in (PUBLIC, DIGESTS)
            if slot in plan.receivers and is_repeated:
                found.append(plan)
    return tuple(found)


def in_parts(parcels: tuple[Planned, ...]) -> list[list[Planned]]:
    """Return parcels by message: at least one message, which may have no parcels."""
    parts = [list[Planned]()]
    size = 0
    for plan in parcels:
        size += plan.n_bytes
        is_full = size > _MAX_PART or len(parts[-1]) == MAX_PARCELS
        if parts[-1] and is_full:
            parts.append([])
            size = plan.n_bytes
        parts[-1].append(plan)
    return parts


# ------------------------------------------------------------------------------ seals


class Seals:
    """Sealing and unsealing of the parcels of one party. Its peers are by slot."""

    def __init__(
        self,
        doc_hash: bytes,
        secret: bytes,
        slot: int,
        pairs: Pairs,
        peers: Mapping[int, Peer],
    ) -> None:
        self._doc_hash = doc_hash
        self._secret = secret
        self._slot = slot
        self._pairs = pairs
        self._peers = peers

    def seal(self, planned: Planned, data: bytes) -> Parcel:
        """Return a parcel of this party."""
        label = _label(planned)
        hidden = hashlib.sha256(data).digest()
        own = kdf(self._secret, self._doc_hash, b"parcel " + label + hidden)
        sealed_keys = []
        for receiver in planned.receivers:
            key = self._key(label, self._slot, receiver, receiver)
            sealed_keys.append(seal(key, own, self._doc_hash))
        return Parcel(
            step=planned.step,
            t=planned.t,
            number=planned.number,
            receivers=write_receivers(planned.receivers),
            keys=b"".join(sealed_keys),
            data=seal(self._data_key(own, label), data, self._doc_hash),
        )

    def open(self, planned: Planned, delivery: Delivery) -> bytes:
        """Return a delivery's plaintext.

        Raises
        ------
        MessageError
            If it cannot be unsealed, or does not have the planned length.
        """
        label = _label(planned)
        sender = planned.sender
        key = self._key(label, sender, self._slot, sender)
        own = unseal(key, delivery.key, self._doc_hash)
        data = unseal(self._data_key(own, label), delivery.data, self._doc_hash)
        if len(data) != planned.n_bytes:
            raise MessageError(f"Expected a parcel of {planned.n_bytes} bytes.")
        return data

    def _key(self, label: bytes, sender: int, receiver: int, other: int) -> bytes:
        """Return the key of a parcel's secret, between this party and another."""
        peer = self._peers[other]
        ikm = self._pairs.secret(other, peer.public_key)
        # The sender's key comes first at both ends.
        ends = self._pairs.public_key + peer.public_key
        if sender != self._slot:
            ends = peer.public_key + self._pairs.public_key
        label += u32(sender) + u32(receiver) + ends
        return kdf(ikm, self._doc_hash, label, _SEAL_KEY_BYTES)

    def _data_key(self, own: bytes, label: bytes) -> bytes:
        return kdf(own, self._doc_hash, label, _SEAL_KEY_BYTES)


def _label(planned: Planned) -> bytes:
    return b"vertical " + planned.step.encode() + u32(planned.t) + u32(planned.number)
