"""The cohort: its members' commitments under one root (docs/protocol.md, section 4).

The root stands in every mask key. So a member whose secret or data changed changes all masks, and
two messages under the same mask are the same bytes. A client is sent its own path only, never the
list of members.
"""

import hmac
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.secagg.hashing import DIGEST_BYTES, H, kdf, u32, u64

EMPTY = H(b"empty")

MAX_MEMBERS = 2**17
"""Largest cohort: a client works and stores in proportion to the number that it is told."""


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
    """Return the public commitment of a life to its secret, its software and its data.

    Parameters
    ----------
    secret : bytes
        The life's 32 random bytes. They never leave the client; without them the commitment says
        nothing about the data.
    doc_hash : bytes
        Hash of the run document.
    software : bytes
        Version of the client's software.
    digest : bytes
        `data_digest` of the client's records.
    """
    return hmac.digest(kdf(secret, doc_hash, b"commit"), software + digest, "sha256")


def leaf(index: int, node_id: int, commitment: bytes, public_key: bytes = b"") -> bytes:
    """Return the leaf of one member.

    Parameters
    ----------
    index : int
        The member's place, 0..M-1.
    node_id : int
        Flower's node id, in [0, 2^64).
    commitment : bytes
        32 bytes.
    public_key : bytes
        32 bytes, or empty where group keys come from a file or are not used.
    """
    return H(b"leaf", u32(index), u64(node_id), commitment, public_key)


def depth(n_members: int) -> int:
    """Return the number of hashes on a path in a tree of ``n_members`` leaves."""
    return (n_members - 1).bit_length()


def root_from(leaf: bytes, index: int, n_members: int, path: bytes) -> bytes | None:
    """Return the root that a leaf and its path lead to, or ``None`` if they cannot fit.

    Parameters
    ----------
    leaf : bytes
        32 bytes.
    index : int
        Place of the leaf.
    n_members : int
        Number of members, padding not counted.
    path : bytes
        ``32 * ceil(log2 n_members)`` bytes: the siblings from the leaf up.
    """
    levels = depth(n_members)
    if not 0 <= index < n_members or len(path) != DIGEST_BYTES * levels:
        return None
    node = leaf
    for level in range(levels):
        sibling = path[DIGEST_BYTES * level : DIGEST_BYTES * (level + 1)]
        pair = (sibling, node) if index >> level & 1 else (node, sibling)
        node = H(b"node", *pair)
    return node


class Tree:
    """A hash tree over the members' leaves, padded with empty leaves to a power of two.

    All levels are kept: a renewed or appended member costs one path of hashes.

    Parameters
    ----------
    leaves : iterable of bytes
        At least one leaf of 32 bytes, ordered by index.
    """

    def __init__(self, leaves: Iterable[bytes]) -> None:
        level = list(leaves)
        if not level:
            raise ConfigurationError("Expected a cohort of at least one member. Got 0 instead.")
        self._build(level)

    def _build(self, leaves: list[bytes]) -> None:
        self._n_members = len(leaves)
        level = leaves + [EMPTY] * ((1 << depth(len(leaves))) - len(leaves))
        self._levels = [level]
        while len(level) > 1:
            level = [H(b"node", level[i], level[i + 1]) for i in range(0, len(level), 2)]
            self._levels.append(level)

    def __len__(self) -> int:
        """Return the number of members, padding not counted."""
        return self._n_members

    @property
    def root(self) -> bytes:
        """The root, 32 bytes."""
        return self._levels[-1][0]

    def path(self, index: int) -> bytes:
        """Return the siblings of a member's leaf from the leaf up; empty in a cohort of one."""
        self._check(index)
        siblings = []
        for level in self._levels[:-1]:
            siblings.append(level[index ^ 1])
            index >>= 1
        return b"".join(siblings)

    def update(self, index: int, leaf: bytes) -> None:
        """Put a renewed member's leaf in place of its former one."""
        self._check(index)
        self._set(index, leaf)

    def append(self, leaf: bytes) -> int:
        """Add a member at the end and return its index."""
        index = self._n_members
        if index == len(self._levels[0]):  # full: one level more
            self._build([*self._levels[0], leaf])
        else:
            self._n_members += 1
            self._set(index, leaf)
        return index

    def _set(self, index: int, leaf: bytes) -> None:
        self._levels[0][index] = leaf
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            index >>= 1
            above[index] = H(b"node", below[2 * index], below[2 * index + 1])

    def _check(self, index: int) -> None:
        if not 0 <= index < self._n_members:
            raise IndexError(f"Expected index in [0, {self._n_members}). Got {index} instead.")
