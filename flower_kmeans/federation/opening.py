"""Opening an announced sum under distributed-noise (docs/protocol.md, section 7).

A member that answered the sum's context gives its share of the sum's secret and, if it is asked,
the correction: the sum of the survivors' masks, sealed under that secret. The server opens the sum
with the shares of a quorum and one correction; the checksum word tells it whether it has. Under
simple opening corrections are bare and there are no shares. The keys of parts of the noise beyond
the plan (removal.py) travel and are sealed like corrections.
"""

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import RunError
from flower_kmeans.federation.document import NONE, RunDocument
from flower_kmeans.federation.life import Life
from flower_kmeans.federation.messages import Finish, Open, Round
from flower_kmeans.federation.removal import KEY_BYTES, is_committed, part_key, reached
from flower_kmeans.federation.transcript import (
    Entry,
    pack_words,
    unpack_survivors,
    unpack_words,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg import masks, sharing

N_OPENERS = 5
# Sets of shares that are tried where some are false: all of them if they are so few.
_TRIES = 256
# Sets that are tried once the sum is open, to find out who lied.
_NAMING_TRIES = 64

Words = NDArray[np.uint64]


class Given(NamedTuple):
    """What a member gives toward the opening of its last entry: nothing by default."""

    share_t: int | None = None
    share: bytes | None = None
    correction: bytes | None = None
    part_key: bytes | None = None


# --------------------------------------------------------------------------- the client's side


def may_open(life: Life, context: bytes, entry: Entry) -> bool:
    """Return whether a life may help to open an entry that it is about to accept.

    It may if it answered that very context, so it has one vote for one entry of a round. Nor does
    it vote in a smaller cohort than one that it answered: where the cohort's size is the server's
    word, a small cohort within a large one would have a quorum of its own.
    """
    return life.answered_context(entry.t, context) and entry.m >= life.largest_m


def give(document: RunDocument, life: Life, request: Round | Open | Finish) -> Given:
    """Return what a life gives toward the opening of the entry at its head.

    Parameters
    ----------
    document : RunDocument
    life : Life
        After it followed the request's entries.
    request : Round, Open or Finish
        Under immediate opening nothing rides on the answer to a round: sums are opened before the
        next question.

    Returns
    -------
    Given
        Nothing, whatever is asked, where the run's document names no opening: an oblivious server
        opens no sum.
    """
    on_answer = isinstance(request, Round)
    silent = (NONE, "immediate") if on_answer else (NONE,)
    if not life.may_open or document.opening in silent:
        return Given()
    correction: Words | None = None
    if request.want_correction:
        survivors = unpack_survivors(life.last_survivors, life.last_m)
        mask_key = masks.mask_key(life.group_key, life.last_context)
        correction = masks.correction(mask_key, survivors, document.words_of(life.head))
    key = _beyond_the_plan(document, life)
    if not document.opens_by_quorum:
        if correction is None:
            return Given()
        return Given(life.head, None, pack_words(correction), key)
    coefficients = sharing.polynomial(life.group_key, life.chain, life.last_m)
    secret = sharing.secret_of(coefficients)
    sealed: bytes | None = None
    if correction is not None:
        stream = sharing.open_stream(secret, life.chain, len(correction))
        sealed = pack_words(correction + stream)
    if key is not None:
        key = pack_words(unpack_words(key) + _key_seal(secret, life.chain, life.index))
    return Given(life.head, sharing.share_of(coefficients, life.index), sealed, key)


def _beyond_the_plan(document: RunDocument, life: Life) -> bytes | None:
    """Return the key of a life's parts of the noise that the sum at its head needs no more.

    The number of survivors is what the checksum word confirmed when the entry was accepted. A life
    accepts one entry of a round, so it gives one key of a context at most.
    """
    survivors = unpack_survivors(life.last_survivors, life.last_m)
    n_parts = reached(document, int(np.count_nonzero(survivors)))
    if not n_parts or not survivors[life.index]:
        return None
    return part_key(life.secret, life.last_context, len(document.levels), n_parts)


def _key_seal(secret: bytes, head: bytes, index: int) -> Words:
    """Return the words that seal a member's key of the parts of its noise."""
    return sharing.open_stream(secret, head, KEY_BYTES // 8, index + 1)


# --------------------------------------------------------------------------- the server's side


@dataclass
class Opening:
    """What a server was sent to open one announced sum.

    Attributes
    ----------
    entry : Entry
        The sum as it was announced.
    head : bytes
        Transcript hash h_t of the entry.
    by_quorum : bool
        Whether it takes a quorum of shares, and corrections are sealed.
    commitments : dict of int to bytes
        What members sent with their answers in the sum, by their places: commitments to the keys
        of the parts of their noise.
    shares, corrections, part_keys : dict of int to bytes
        By the members' places; the first of each counts.
    false : set of int
        Members that are known to have sent a false share, correction or key.
    """

    entry: Entry
    head: bytes
    by_quorum: bool
    commitments: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    corrections: dict[int, bytes] = field(default_factory=dict)
    part_keys: dict[int, bytes] = field(default_factory=dict)
    false: set[int] = field(default_factory=set)
    _secret: bytes = b""
    _asked: set[int] = field(default_factory=set)

    @property
    def quorum(self) -> int:
        """Number of shares that it takes."""
        return sharing.quorum(self.entry.m) if self.by_quorum else 0

    def ask(self, n: int, present: Collection[int] = ()) -> set[int]:
        """Choose up to ``n`` survivors to ask for the correction.

        Parameters
        ----------
        n : int
        present : collection of int
            Members that answered lately. They come first, then those that were not asked before.
        """
        survivors = np.flatnonzero(self.entry.survivors).tolist()
        chosen = sorted(survivors, key=lambda i: (i not in present, i in self._asked, i))[:n]
        self._asked.update(chosen)
        return set(chosen)

    def take(
        self,
        index: int,
        share: bytes | None,
        correction: bytes | None,
        part_key: bytes | None = None,
    ) -> None:
        """Keep what a member sent; whether it is right shows when the sum is opened."""
        if index >= self.entry.m:
            return  # it came later than this context, which it cannot have answered
        if share is not None and self.by_quorum:
            self.shares.setdefault(index, share)
        if part_key is not None and index in self.commitments:
            self.part_keys.setdefault(index, part_key)
        if correction is None:
            return
        if len(correction) == 8 * len(self.entry.words):
            self.corrections.setdefault(index, correction)
        else:
            self.false.add(index)

    def open(self) -> Words | None:
        """Return the words that the sum opens to, or ``None`` if what came does not open it.

        Raises
        ------
        RunError
            If it opens in two ways: a member sent a correction that is false in other words than
            the checksum word.
        """
        if not self.corrections:
            return None
        if not self.by_quorum:
            return self._unsealed(None)
        opened: Words | None = None
        secret, left = b"", _NAMING_TRIES
        for places in _subsets(sorted(self.shares), self.quorum):
            if opened is not None:
                left -= 1
            if left < 0:
                break
            found = sharing.Interpolation({i: self.shares[i] for i in places})
            if opened is None:
                opened, secret = self._unsealed(found.secret), found.secret
                self._secret = secret
            if opened is None or found.secret != secret:
                continue
            rest = self.shares.keys() - set(places)
            false = {i for i in rest if found.share(i) != self.shares[i]}
            if self._names(len(false)):
                self.false.update(false)
                break
        return opened

    def keys_of(self, n_parts: int) -> dict[int, bytes]:
        """Return the keys of so many parts of the noise that are those of their commitments.

        Call it when the sum is open. Who sent another key is among the `false`.
        """
        keys = {}
        for index, key in self.part_keys.items():
            if self.by_quorum:
                key = pack_words(unpack_words(key) - _key_seal(self._secret, self.head, index))
            if is_committed(key, n_parts, self.commitments[index]):
                keys[index] = key
            else:
                self.false.add(index)
        return keys

    def _names(self, n_false: int) -> bool:
        """Return whether shares that do not fit a polynomial with the right secret are false.

        Liars together can make up another polynomial with this secret that fits some of the others'
        shares. Two of one secret have at most ``quorum - 2`` shares in common: the one that fits
        more than half of ``n_shares + quorum - 2`` is the only one to do so, and the members' own
        unless more than ``(n_shares - quorum + 2) / 2`` lie.
        """
        n_shares = len(self.shares)
        return 2 * (n_shares - n_false) > n_shares + self.quorum - 2

    def _unsealed(self, secret: bytes | None) -> Words | None:
        """Return what the corrections open the sum to, if the checksum word says that they do."""
        words = self.entry.words
        if secret is not None:
            words = words + sharing.open_stream(secret, self.head, len(words))
        opened: dict[bytes, Words] = {}
        for correction in set(self.corrections.values()):
            candidate = words - unpack_words(correction)
            if int(candidate[-1]) == self.entry.n_survivors:
                opened[correction] = candidate
        if not opened:
            return None
        if len(opened) > 1:
            raise RunError(
                f"Members opened the sum of round {self.entry.t} in {len(opened)} ways: at least "
                "one of them sent something false."
            )
        self.false.update(i for i, sent in self.corrections.items() if sent not in opened)
        return next(iter(opened.values()))

    def __str__(self) -> str:
        shares = f"{len(self.shares)} of {self.quorum} shares and " if self.by_quorum else ""
        return f"{shares}{len(self.corrections)} corrections"


def _subsets(places: list[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of places to open a sum with, so many that a few false shares are left out."""
    if math.comb(len(places), size) <= _TRIES:
        yield from itertools.combinations(places, size)
        return
    yield tuple(places[:size])
    stream = Stream.from_key(bytes(32))  # which shares are tried is no secret
    for _ in range(_TRIES - 1):
        order = np.argsort(stream.words(len(places)))
        yield tuple(places[i] for i in order[:size])
