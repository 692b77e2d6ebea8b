"""The transcript: which sum was announced for which round (docs/protocol.md, section 6).

Each entry is chained to its predecessors and to the context under which its summands were masked.
Clients that were told different sums therefore derive different masks from then on.
"""

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import MessageError
from flower_kmeans.federation.cohort import MAX_MEMBERS
from flower_kmeans.secagg.hashing import H, u32

EMPTY_QUESTION_HASH = hashlib.sha256(b"").digest()

_HEADER = struct.Struct("<III32s32s")
_WORD_BYTES = 8
_MALFORMED = "A transcript entry is malformed."


def first_hash(doc_hash: bytes) -> bytes:
    """Return h_0, the transcript's hash before any round."""
    return H(b"start", doc_hash)


def question_hash(question: bytes = b"") -> bytes:
    """Return the hash under which a question stands in contexts and entries."""
    return hashlib.sha256(question).digest() if question else EMPTY_QUESTION_HASH


def round_context(
    doc_hash: bytes,
    t: int,
    attempt: int,
    m: int,
    root: bytes,
    previous: bytes,
    question_hash: bytes = EMPTY_QUESTION_HASH,
) -> bytes:
    """Return the context of one attempt at one round: everything that its masks depend on.

    Parameters
    ----------
    doc_hash : bytes
        Hash of the run document.
    t, attempt : int
        Round (from 1) and attempt (from 1).
    m : int
        Number of members of the cohort.
    root : bytes
        Root of the cohort.
    previous : bytes
        Transcript hash h_(t-1).
    question_hash : bytes
        SHA-256 of the question's bytes.
    """
    return H(b"round", doc_hash, u32(t), u32(attempt), u32(m), root, previous, question_hash)


def pack_survivors(survivors: NDArray[np.bool_]) -> bytes:
    """Return the bitmap of the survivors, ceil(m / 8) bytes, lowest bit first."""
    return np.packbits(survivors, bitorder="little").tobytes()


def unpack_survivors(bitmap: bytes, m: int) -> NDArray[np.bool_]:
    """Return which of ``m`` members a bitmap names.

    Raises
    ------
    MessageError
        If the bitmap has another length, or bits beyond the last member.
    """
    if len(bitmap) != (m + 7) // 8:
        raise MessageError(_MALFORMED)
    bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    if bits[m:].any():
        raise MessageError(_MALFORMED)
    return bits[:m].view(np.bool_)


def pack_words(words: NDArray[np.uint64]) -> bytes:
    """Return words as little-endian bytes, eight each."""
    return words.astype("<u8", copy=False).tobytes()


def unpack_words(data: bytes, length: int | None = None) -> NDArray[np.uint64]:
    """Return the words that bytes hold, as a read-only array.

    Parameters
    ----------
    data : bytes
        Little-endian words.
    length : int, optional
        Required number of words.

    Raises
    ------
    MessageError
        If the number of bytes does not fit.
    """
    if len(data) % _WORD_BYTES or length not in (None, len(data) // _WORD_BYTES):
        raise MessageError("A vector of words has the wrong length.")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False)


@dataclass(frozen=True, eq=False)
class Entry:
    """The sum that was announced for one round.

    Parameters
    ----------
    t, attempt : int
        The round and the attempt that succeeded, from 1.
    m : int
        Number of members of the cohort in that attempt.
    root : bytes
        Root of the cohort in that attempt.
    question_hash : bytes
        SHA-256 of the question's bytes.
    survivors : ndarray of shape (m,), bool
        Whose answers were added.
    words : ndarray of shape (L,), uint64
        The sum as it was announced: still masked, noise of the server included.
    """

    t: int
    attempt: int
    m: int
    root: bytes
    question_hash: bytes
    survivors: NDArray[np.bool_]
    words: NDArray[np.uint64]

    @property
    def n_survivors(self) -> int:
        """Number of members whose answers were added."""
        return int(np.count_nonzero(self.survivors))

    @property
    def answered(self) -> float:
        """Part of all places whose answers were added."""
        return self.n_survivors / len(self.survivors)

    def context(self, doc_hash: bytes, previous: bytes) -> bytes:
        """Return the context under which the summands were masked, given h_(t-1)."""
        return round_context(
            doc_hash, self.t, self.attempt, self.m, self.root, previous, self.question_hash
        )

    def pack(self) -> bytes:
        """Return the entry as it travels, 76 + ceil(m / 8) + 8 L bytes."""
        header = _HEADER.pack(self.t, self.attempt, self.m, self.root, self.question_hash)
        return header + pack_survivors(self.survivors) + pack_words(self.words)

    @classmethod
    def unpack(cls, data: bytes) -> "Entry":
        """Read an entry.

        Raises
        ------
        MessageError
            If the bytes are not exactly what `pack` writes for some entry with at least one word.
        """
        if len(data) < _HEADER.size:
            raise MessageError(_MALFORMED)
        t, attempt, m, root, digest = _HEADER.unpack_from(data)
        body = _HEADER.size + (m + 7) // 8
        if t < 1 or attempt < 1 or not 1 <= m <= MAX_MEMBERS or len(data) <= body:
            raise MessageError(_MALFORMED)
        survivors = unpack_survivors(data[_HEADER.size : body], m)
        return cls(t, attempt, m, root, digest, survivors, unpack_words(data[body:]))


def next_hash(previous: bytes, context: bytes, entry: Entry) -> bytes:
    """Return h_t, the transcript's hash after an entry.

    Parameters
    ----------
    previous : bytes
        h_(t-1).
    context : bytes
        Context of the entry's round and attempt, 32 bytes.
    entry : Entry
        The entry of round t.
    """
    return H(b"entry", previous, context, pack_survivors(entry.survivors), pack_words(entry.words))
