"""Cohort, context, tag and history of a sum (docs/protocol.md, section 6).

A context identifies a round, an attempt, the cohort, its committee, the query and all
earlier sums. Every key of a round is derived from it, so vectors of different contexts
never add up.
"""

import hmac
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.protocol.messages import Entry
from flower_kmeans.secagg.primitives import DIGEST_BYTES, H, begin_hash, kdf, u32, u64

EMPTY = H(b"empty")
ZERO = bytes(DIGEST_BYTES)
_NODE = begin_hash(b"node")
_LENGTH = u64(DIGEST_BYTES)
_HASHED_ROWS = 4_096  # rows that become float64 for the hash at a time


class DataHash:
    """The hash of a known number of records of a client, in their order."""

    def __init__(self, n_records: int, n_features: int) -> None:
        self._hash = begin_hash(b"data", u64(n_records), u64(n_features))
        self._hash.update(u64(n_records * n_features * 8))

    def of(self, blocks: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Yield blocks of records (m, n_features), float32 or float64, and hash each before."""
        for block in blocks:
            for start in range(0, len(block), _HASHED_ROWS):
                rows = np.ascontiguousarray(
                    block[start : start + _HASHED_ROWS], dtype="<f8"
                )
                self._hash.update(rows.reshape(-1).view(np.uint8).data)
            yield block

    def digest(self) -> bytes:
        """Return the digest of the records so far, 32 bytes."""
        return self._hash.digest()


def data_digest(records: NDArray[np.float64]) -> bytes:
    """Return the digest of checked records (n_records, n_features), 32 bytes."""
    data = DataHash(*records.shape)
    deque(data.of([records]), maxlen=0)
    return data.digest()


def commitment(secret: bytes, doc_hash: bytes, software: bytes, digest: bytes) -> bytes:
    """Return the public commitment of a client session; it hides the data without the secret."""
    return hmac.digest(kdf(secret, doc_hash, b"commit"), software + digest, "sha256")


def leaf(slot: int, commitment: bytes, static: bytes, public_key: bytes) -> bytes:
    """Return the leaf of one client: its slot, commitment, lasting and ephemeral public keys."""
    return H(b"leaf", u32(slot), commitment, static, public_key)


def root_from(leaf: bytes, slot: int, n_slots: int, path: bytes) -> bytes | None:
    """Return the root of a leaf and its path, or ``None`` if slot and path do not fit."""
    if (
        not 0 <= slot < n_slots
        or len(path) != DIGEST_BYTES * (n_slots - 1).bit_length()
    ):
        return None
    node = leaf
    for start in range(0, len(path), DIGEST_BYTES):
        sibling = path[start : start + DIGEST_BYTES]
        node = _node(*((sibling, node) if slot & 1 else (node, sibling)))
        slot >>= 1
    return node


def _node(left: bytes, right: bytes) -> bytes:
    """Return ``H(b"node", left, right)`` of two digests, faster than `H`."""
    digest = _NODE.copy()
    digest.update(_LENGTH + left + _LENGTH + right)
    return digest.digest()


class Tree:
    """A hash tree over the leaves of a cohort by slot, with `EMPTY` for absent clients."""

    def __init__(self, leaves: Iterable[bytes]) -> None:
        level = list(leaves)
        if not level:
            raise ConfigurationError(
                "Expected a cohort of at least one client. Got 0 instead."
            )
        level += [EMPTY] * ((1 << (len(level) - 1).bit_length()) - len(level))
        self._levels = []
        while len(level) > 1:
            self._levels.append(level)
            level = [_node(*pair) for pair in zip(level[::2], level[1::2], strict=True)]
        self.root = level[0]

    def path(self, slot: int) -> bytes:
        """Return the concatenated siblings from a leaf up to the root."""
        siblings = []
        for level in self._levels:
            siblings.append(level[slot ^ 1])
            slot >>= 1
        return b"".join(siblings)


def pack_survivors(survivors: NDArray[np.bool_]) -> bytes:
    """Return a bitmap of slots, the first slot in the lowest bit of the first byte."""
    return np.packbits(survivors, bitorder="little").tobytes()


def unpack_survivors(bitmap: bytes, n_slots: int) -> NDArray[np.bool_]:
    """Return the mask of a bitmap's slots, (n_slots,) bool.

    Raises
    ------
    MessageError
        If the bitmap has another length or other slots.
    """
    if len(bitmap) == (n_slots + 7) // 8:
        bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
        if not bits[n_slots:].any():
            return bits[:n_slots].view(np.bool_)
    raise MessageError("Expected a bitmap of the cohort's slots.")


def query_tag(key: bytes, h: bytes, query: bytes) -> bytes:
    """Return the tag of a query's encoded arrays. Key and hash are `ZERO` if the server asks."""
    # The history is in the tag: otherwise equal tags could show that different sums led to
    # one query.
    return hmac.digest(key, h + query, "sha256")


def round_context(
    doc_hash: bytes,
    t: int,
    attempt: int,
    m: int,
    root: bytes,
    com: bytes,
    h: bytes,
    tag: bytes,
) -> bytes:
    """Return the context of an attempt at a round, 32 bytes; ``h`` is `ZERO` if the server asks."""
    return H(b"round", doc_hash, u32(t), u32(attempt), u32(m), root, com, h, tag)


def query_hash(h: bytes, query: bytes) -> bytes:
    """Return the hash of a round's query and history, the same in all attempts."""
    return H(b"query", h, query)


def variant_hash(
    context: bytes, survivors: bytes, public_keys: bytes, sealed: bytes
) -> bytes:
    """Return the hash of a sum that a committee member votes for, of its context and parts."""
    return H(b"variant", context, survivors, public_keys, sealed)


def first_hash(doc_hash: bytes) -> bytes:
    """Return h_0, the transcript's hash before round 1."""
    return H(b"start", doc_hash)


def entry_context(doc_hash: bytes, h: bytes, entry: Entry) -> bytes:
    """Return the context of an announced sum, given the transcript's hash before it."""
    e = entry
    return round_context(
        doc_hash, e.t, e.attempt, e.n_slots, e.root, e.committee, h, e.tag
    )


def next_hash(h: bytes, context: bytes, entry: Entry) -> bytes:
    """Return the transcript's hash after an entry, over its words or sealed sum-shares."""
    body = entry.words or H(b"shares", entry.positions, entry.shares)
    return H(b"entry", h, context, entry.survivors, body)
