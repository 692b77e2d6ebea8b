"""What parties of a vertical run seal for each other, how long it is, and how it is sealed.

A parcel's data is sealed under a secret that follows from the sender's session secret
and from what it hides; that secret is sealed for each receiver (docs/protocol.md,
section 13). So equal plaintexts give equal parcels, others share no key, and a server
stores one copy for all receivers.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.plausibility import padded
from flower_kmeans.errors import MessageError
from flower_kmeans.protocol.messages import (
    MAX_PARCELS,
    Delivery,
    Parcel,
    Peer,
    Step,
    write_receivers,
)
from flower_kmeans.protocol.pairs import Pairs
from flower_kmeans.protocol.run import Run, Vertical
from flower_kmeans.protocol.wire import encode_arrays
from flower_kmeans.secagg.hashing import DIGEST_BYTES, kdf, u32
from flower_kmeans.secagg.key_agreement import seal, unseal
from flower_kmeans.vertical.moduli import Moduli, moduli
from flower_kmeans.vertical.ring import SLOTS, packed_bytes

PUBLIC, RELIN, HALF, DIGESTS, IDS, COLUMNS = range(6)
"""Numbers of the parcels of a set-up; columns count on from the last one. IDS has its own turn."""
NONCE_BYTES = 32
WORD_BYTES = 8
_SEAL_KEY_BYTES = 64
_MAX_PART = 240 * 10**6  # of the data in one message, which may have 256 MiB


class Planned(NamedTuple):
    """A parcel of a run, as it follows from the run document; ``n_bytes`` of plaintext."""

    sender: int
    step: Step
    t: int
    number: int
    receivers: tuple[int, ...]
    n_bytes: int


class Shape(NamedTuple):
    """Who does what in a vertical run, and its sizes."""

    n_parties: int
    holders: tuple[int, ...]
    others: tuple[int, ...]  # that only encrypt
    moduli: Moduli
    # encrypted columns of each slot in a chunk, squares included
    widths: tuple[int, ...]
    n_chunks: int
    check_ids: bool
    n_values: int  # of a round
    n_rounds: int
    result_bytes: int

    @property
    def is_joint(self) -> bool:
        """Whether several parties hold the key together."""
        return len(self.holders) > 1

    def set_up(self, slot: int) -> Step:
        """Return the step in which a slot sends its columns."""
        if slot not in self.holders:
            return "encrypt"
        return "join" if self.is_joint else "keys"


@lru_cache(maxsize=8)
def shape_of(run: Run) -> Shape:
    """Return the shape of a vertical run."""
    body, algorithm = run.document.body, run.algorithm
    if not isinstance(body, Vertical):
        raise MessageError("Expected the document of a vertical run.")
    k, d, radius = (
        algorithm.n_clusters,
        algorithm.domain.n_features,
        body.algorithm["radius"],
    )
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


def planned(run: Run, slot: int, step: Step, t: int = 0) -> tuple[Planned, ...]:
    """Return the parcels with which a slot answers a turn, in order of their numbers."""
    shape, sent = shape_of(run), list[tuple[int, tuple[int, ...], int]]()
    key, is_holder = packed_bytes(shape.moduli.key), slot in shape.holders
    digits = len(shape.moduli.data) * key
    if (slot, step) == (0, "step"):
        sent = [(0, shape.holders, shape.n_values * packed_bytes((shape.moduli.q0,)))]
    elif (is_holder, step) == (True, "open"):
        sent = [(0, (0,), WORD_BYTES * shape.n_values)]
    elif (slot, step) == (0, "close"):
        sent = [(0, tuple(range(1, shape.n_parties)), shape.result_bytes)]
    elif slot > 0 and step == "ids":
        sent = [(IDS, (0,), DIGEST_BYTES)]
    elif (is_holder, shape.is_joint, step) == (True, True, "keys"):
        others = tuple(holder for holder in shape.holders if holder != slot)
        sent = [(PUBLIC, others, key), (RELIN, others, 2 * digits)]
    elif slot > 0 and step == shape.set_up(slot):
        if slot == 1:
            sent.append((PUBLIC, (0, *shape.others), key))
        if is_holder:
            sent.append((RELIN, (0,), digits))
        if is_holder and shape.is_joint:
            if slot == 1:
                sent.append((HALF, (0,), digits))
            sent.append((DIGESTS, (0, *shape.others), 2 * DIGEST_BYTES))
        is_alone = is_holder and not shape.is_joint
        data = packed_bytes(shape.moduli.data)
        column = NONCE_BYTES + data if is_alone else 2 * data
        n_columns = shape.n_chunks * shape.widths[slot]
        sent += [(COLUMNS + i, (0,), column) for i in range(n_columns)]
    return tuple(Planned(slot, step, t, *each) for each in sent)


def due(
    run: Run, slot: int, step: Step, t: int = 0, part: int = 1
) -> tuple[Planned, ...]:
    """Return the parcels that a slot's turn brings, in order of (sender, number).

    Those of "load" and of "step" 1 are returned for both.
    """
    shape, sources = shape_of(run), list[tuple[int, Step, int]]()
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
        sources = [(0, "step" if step == "open" else "close", t)]
    found = [each for source in sources for each in planned(run, *source)]
    return tuple(
        each
        for each in found
        if slot in each.receivers and (part == 1 or each.number in (PUBLIC, DIGESTS))
    )


def in_parts(parcels: tuple[Planned, ...]) -> list[list[Planned]]:
    """Return parcels by the message that holds them; one without parcels if there are none."""
    parts, size = [list[Planned]()], 0
    for each in parcels:
        size += each.n_bytes
        if parts[-1] and (size > _MAX_PART or len(parts[-1]) == MAX_PARCELS):
            parts.append([])
            size = each.n_bytes
        parts[-1].append(each)
    return parts


# ------------------------------------------------------------------------------ seals


class Seals:
    """What one party seals for the others, and opens of what they sealed: its peers, by slot."""

    def __init__(
        self,
        doc_hash: bytes,
        secret: bytes,
        slot: int,
        pairs: Pairs,
        peers: Mapping[int, Peer],
    ) -> None:
        self._doc_hash, self._secret, self._slot = doc_hash, secret, slot
        self._pairs, self._peers = pairs, peers

    def seal(self, planned: Planned, data: bytes) -> Parcel:
        """Return a parcel of this party."""
        label, receivers = _label(planned), planned.receivers
        hidden = hashlib.sha256(data).digest()
        own = kdf(self._secret, self._doc_hash, b"parcel " + label + hidden)
        keys = (self._key(label, self._slot, to, to) for to in receivers)
        return Parcel(
            step=planned.step,
            t=planned.t,
            number=planned.number,
            receivers=write_receivers(receivers),
            keys=b"".join(seal(key, own, self._doc_hash) for key in keys),
            data=seal(self._data_key(own, label), data, self._doc_hash),
        )

    def open(self, planned: Planned, delivery: Delivery) -> bytes:
        """Return what another party sealed for this party, run and step, of the planned length."""
        label, sender = _label(planned), planned.sender
        key = self._key(label, sender, self._slot, sender)
        own = unseal(key, delivery.key, self._doc_hash)
        data = unseal(self._data_key(own, label), delivery.data, self._doc_hash)
        if len(data) != planned.n_bytes:
            raise MessageError(f"Expected a parcel of {planned.n_bytes} bytes.")
        return data

    def _key(self, label: bytes, sender: int, receiver: int, other: int) -> bytes:
        """Return the key under which a parcel's secret travels from one slot to another."""
        peer = self._peers[other]
        ikm = self._pairs.secret(other, peer.public_key)
        # The sender's first, at both ends alike.
        ends = (self._pairs.public_key, peer.public_key)
        first, second = ends if sender == self._slot else ends[::-1]
        label += u32(sender) + u32(receiver) + first + second
        return kdf(ikm, self._doc_hash, label, _SEAL_KEY_BYTES)

    def _data_key(self, own: bytes, label: bytes) -> bytes:
        return kdf(own, self._doc_hash, label, _SEAL_KEY_BYTES)


def _label(planned: Planned) -> bytes:
    return b"vertical " + planned.step.encode() + u32(planned.t) + u32(planned.number)
