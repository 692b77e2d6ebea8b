"""What a sum depends on: cohort, context, tag and history (docs/protocol.md, section 6).

A context names a round, an attempt, the cohort, its committee, the query and all sums before. Every
key of a round is derived under it, so vectors of different contexts never add up.
"""

import hmac
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.protocol.messages import Entry
from flower_kmeans.secagg.hashing import DIGEST_BYTES, H, kdf, u32, u64

EMPTY = H(b"empty")
ZERO = bytes(DIGEST_BYTES)


# ------------------------------------------------------------------------------ records


def data_digest(records: NDArray[np.float64]) -> bytes:
    """Return the digest of checked records.

    Parameters
    ----------
    records : ndarray of shape (n_records, n_features), float64
        Records in the order in which ``load_data`` returned them; the order counts.
    """
    n_records, n_features = records.shape
    content = np.ascontiguousarray(records, dtype="<f8").reshape(-1).view(np.uint8)
    return H(b"data", u64(n_records), u64(n_features), content.data)


def commitment(secret: bytes, doc_hash: bytes, software: bytes, digest: bytes) -> bytes:
    """Return the public commitment of a client session to its secret, its software and its data.

    The secret never leaves the client; without it the commitment says nothing about the data.
    """
    return hmac.digest(kdf(secret, doc_hash, b"commit"), software + digest, "sha256")


# ------------------------------------------------------------------------------ cohort


def leaf(slot: int, commitment: bytes, static: bytes, public_key: bytes) -> bytes:
    """Return the leaf of one client: its slot, commitment, lasting and ephemeral public keys."""
    return H(b"leaf", u32(slot), commitment, static, public_key)


def root_from(leaf: bytes, slot: int, n_slots: int, path: bytes) -> bytes | None:
    """Return the root that a leaf and its path lead to, or ``None`` if they cannot fit."""
    levels = _depth(n_slots)
    if not 0 <= slot < n_slots or len(path) != DIGEST_BYTES * levels:
        return None
    node = leaf
    for level in range(levels):
        sibling = path[DIGEST_BYTES * level : DIGEST_BYTES * (level + 1)]
        pair = (sibling, node) if slot >> level & 1 else (node, sibling)
        node = H(b"node", *pair)
    return node


def _depth(n_slots: int) -> int:
    return (n_slots - 1).bit_length()


class Tree:
    """A hash tree over a cohort's leaves, padded with empty leaves to a power of two.

    Parameters
    ----------
    leaves : iterable of bytes
        At least one leaf of 32 bytes, ordered by slot; `EMPTY` for an absent client.
    """

    def __init__(self, leaves: Iterable[bytes]) -> None:
        level = list(leaves)
        if not level:
            raise ConfigurationError("Expected a cohort of at least one client. Got 0 instead.")
        level += [EMPTY] * ((1 << _depth(len(level))) - len(level))
        self._levels = [level]
        while len(level) > 1:
            level = [H(b"node", level[i], level[i + 1]) for i in range(0, len(level), 2)]
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        """The root, 32 bytes."""
        return self._levels[-1][0]

    def path(self, slot: int) -> bytes:
        """Return the siblings from a leaf up to the root."""
        siblings = []
        for level in self._levels[:-1]:
            siblings.append(level[slot ^ 1])
            slot >>= 1
        return b"".join(siblings)


def pack_survivors(survivors: NDArray[np.bool_]) -> bytes:
    """Return a bitmap of slots, the first slot in the lowest bit of the first byte."""
    return np.packbits(survivors, bitorder="little").tobytes()


def unpack_survivors(bitmap: bytes, n_slots: int) -> NDArray[np.bool_]:
    """Return which slots a bitmap names, as an array of shape (n_slots,), bool.

    Raises
    ------
    MessageError
        If it has another length, or bits beyond the last slot.
    """
    if len(bitmap) != (n_slots + 7) // 8:
        raise MessageError("A bitmap of slots has the wrong length.")
    bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    if bits[n_slots:].any():
        raise MessageError("A bitmap of slots names one that does not exist.")
    return bits[:n_slots].view(np.bool_)


# ------------------------------------------------------------------------------ rounds


def query_tag(key: bytes, h: bytes, query: bytes) -> bytes:
    """Return the tag of a query's encoded arrays and of the transcript's hash that it follows from.

    The key is `key_agreement.query_key`; key and hash are `ZERO` where the server asks.
    """
    return hmac.digest(key, h + query, "sha256")


def round_context(
    doc_hash: bytes,
    t: int,
    attempt: int,
    n_slots: int,
    root: bytes,
    committee: bytes,
    h: bytes,
    tag: bytes,
) -> bytes:
    """Return the context of an attempt at a round, 32 bytes; ``h`` is `ZERO` if the server asks."""
    return H(b"round", doc_hash, u32(t), u32(attempt), u32(n_slots), root, committee, h, tag)


def variant_hash(
    context: bytes, survivors: bytes, public_keys: bytes, sealed: Sequence[bytes]
) -> bytes:
    """Return what a committee member votes for: one sum, by its context and its parts."""
    return H(b"variant", context, survivors, public_keys, *sealed)


def first_hash(doc_hash: bytes) -> bytes:
    """Return h_0, the transcript's hash before round 1."""
    return H(b"start", doc_hash)


def entry_context(doc_hash: bytes, h: bytes, entry: Entry) -> bytes:
    """Return the context of an announced sum, given the transcript's hash before it."""
    e = entry
    return round_context(doc_hash, e.t, e.attempt, e.n_slots, e.root, e.committee, h, e.tag)


def next_hash(h: bytes, context: bytes, entry: Entry) -> bytes:
    """Return the transcript's hash after an entry: of the words, or of the sealed sum-shares."""
    shares = (u32(position) + share for position, share in entry.shares)
    body = entry.words or H(b"shares", *shares)
    return H(b"entry", h, context, entry.survivors, body)
