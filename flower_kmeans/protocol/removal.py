"""Removing the noise beyond the plan (docs/guarantees.md, Removing noise beyond the plan).

A client's share of the noise is a sum of parts. One is for the most clients that may answer; each
other part is removed once so many clients stand behind a sum that the plan does not need it. Each
part has a key, and the key of a part gives the keys of the parts that are removed before it. With
its vector a client shares the key of every level among the committee. A member returns its shares
of the keys of one level beside its sum-share: of the level that the sum reaches for which it votes.
So the server gets the keys of that sum and of no other.

Callers use three functions in place of the secure sum's own. Without levels they add no byte.

- Client, in an answer: the noise share is ``client_noise(run, t, session secret, digest)``, the
  parts to seal are ``protect(run, vector, context, slot, session secret)``.
- Committee member, in an add: ``combine(run, parts, context, n_survivors)`` is what it returns. A
  `PartError` says which dealer's part is malformed.
- Server: ``open_sum(run, t, combined, survivors, context)`` opens, and subtracts the parts.

``part_bytes(run, n_words, sharing)`` is the length of a part, ``context`` a `SumContext`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.privacy.noise import MIN_SHARE_STD, part_variance, share_variance
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import noise_part, noise_share
from flower_kmeans.protocol.run import MAX_LEVELS, MAX_SLOTS, Run, RunDocument
from flower_kmeans.secagg.base import Integers, PartError, Sharing, SumContext, SumError
from flower_kmeans.secagg.hashing import H, kdf, u32
from flower_kmeans.secagg.key_agreement import noise_key

KEY_WORDS = 5
_KEY_WORD_BYTES = 7
_KEY_BYTES = 32


@dataclass(frozen=True)
class CleanSum:
    """An opened sum without the noise beyond the plan.

    Attributes
    ----------
    vector : ndarray of shape (n_words,), int64
    liars : tuple of int
        Positions whose sum-shares were false.
    factor : float
        Standard deviation of the noise in it, over the planned one; 1 if clients add no noise.
    """

    vector: Integers = field(repr=False)
    liars: tuple[int, ...]
    factor: float


def levels_up_to(shares: int, most: int) -> tuple[int, ...]:
    """Return for how many honest answers parts of the noise are removed.

    Parameters
    ----------
    shares : int
        M': the fewest honest answers.
    most : int
        How many there are if every client answers.

    Returns
    -------
    tuple of int
        At most `MAX_LEVELS` numbers above ``shares``, ascending, the last of them ``most``, in
        steps of about one ratio: the noise that honest clients leave exceeds the plan by about the
        root of that ratio at most, and by nothing if all of them answer.
    """
    ratio = max(min(most, MAX_SLOTS), shares) / shares
    steps = (round(shares * ratio ** (i / MAX_LEVELS)) for i in range(1, MAX_LEVELS + 1))
    return tuple(sorted({step for step in steps if step > shares}))


def reached(document: RunDocument, n_survivors: int) -> int:
    """Return how many parts of each share are beyond the plan in a sum of so many answers."""
    return sum(level <= n_survivors - document.max_colluders for level in document.levels)


@lru_cache(maxsize=64)  # clients of one process share a run
def usable(run: Run, round_number: int) -> tuple[int, ...]:
    """Return the numbers of shares between which a round's noise is divided into parts.

    Returns
    -------
    tuple of int
        M', and the document's levels without those that would make a part, or what is left of a
        share, narrower than two grid units: a sum of such parts is not the planned noise.
    """
    document = run.document
    chosen = [document.noise_shares]
    if not document.levels:
        return tuple(chosen)
    units, places = run.algorithm.units(round_number), run.algorithm.places(round_number)
    least = []
    for release in run.plan.rounds[round_number - 1]:
        touched = np.concatenate([units[places[name]] for name in release.blocks])
        least.append((release, np.array([touched[touched > 0].min(initial=math.inf)])))
    for level in document.levels:
        parts = [
            variance
            for release, unit in least
            if math.isfinite(unit[0])
            for variance in (
                share_variance(release, unit, level)[0],
                part_variance(release, unit, chosen[-1], level)[0],
            )
        ]
        if min(parts, default=0.0) >= MIN_SHARE_STD**2:
            chosen.append(level)
    return tuple(chosen)


# ------------------------------------------------------------------------------ the client's side


def client_noise(run: Run, round_number: int, secret: bytes, context: bytes) -> Integers:
    """Return a client's whole share of a round's noise.

    Parameters
    ----------
    run : Run
    round_number : int
    secret : bytes
        z, the secret of its session.
    context : bytes
        Context of the round and attempt, 32 bytes.

    Returns
    -------
    ndarray of shape (words,), int64
        In grid units.
    """
    n_levels = len(run.document.levels)
    numbers = usable(run, round_number)
    stream = Stream.from_key(noise_key(secret, context))
    noise = noise_share(run.algorithm, run.plan, round_number, numbers[-1], stream)
    if n_levels:
        key = part_key(secret, context, n_levels, n_levels)
        noise += _removable_noise(run, round_number, context, numbers, key, n_levels)
    return noise


def protect(
    run: Run, vector: Integers, context: SumContext, slot: int, secret: bytes
) -> tuple[bytes, ...]:
    """Return a vector's parts as the secure sum makes them, each followed by those of the keys.

    Parameters
    ----------
    run : Run
    vector : ndarray of shape (n_words,), int64
    context : SumContext
    slot : int
    secret : bytes
        As for `SecureSum.protect`.
    """
    dealings = [run.trust.sum.protect(vector, context, slot, secret)]
    n_levels = len(run.document.levels)
    for n_parts in range(1, n_levels + 1):
        words = _to_words(part_key(secret, context.digest, n_levels, n_parts))
        dealings.append(run.trust.sum.protect(words, _key_context(context, n_parts), slot, secret))
    return tuple(map(b"".join, zip(*dealings, strict=True)))


def part_bytes(run: Run, n_words: int, sharing: Sharing | None) -> int:
    """Return the length of a part of a vector, keys included, in bytes."""
    length = run.trust.sum.part_bytes(n_words, sharing)
    for _ in run.document.levels:
        length += run.trust.sum.part_bytes(KEY_WORDS, sharing)
    return length


def combine(run: Run, parts: Iterable[bytes], context: SumContext, n_survivors: int) -> bytes:
    """Return the sum of parts, followed by each client's part of the key that the sum reaches.

    Parameters
    ----------
    run : Run
    parts : iterable of bytes
        The survivors' parts for one position, in order of slot.
    context : SumContext
    n_survivors : int
        How many clients the announced sum holds.

    Raises
    ------
    PartError
        If a part is malformed; it says which.
    """
    secure_sum, n_parts = run.trust.sum, reached(run.document, n_survivors)
    if not run.document.levels:
        return secure_sum.combine(parts, context)
    length, whole, size = _lengths(run, context)
    vectors, keys = [], []
    for index, part in enumerate(parts):
        if len(part) != whole:
            raise PartError(index)
        vectors.append(part[:length])
        if n_parts:  # the server finds out which of them are false
            keys.append(part[length + size * (n_parts - 1) : length + size * n_parts])
    return secure_sum.combine(vectors, context) + b"".join(keys)


# ------------------------------------------------------------------------------ the server's side


def open_sum(
    run: Run,
    round_number: int,
    combined: Mapping[int, bytes],
    survivors: NDArray[np.bool_],
    context: SumContext,
) -> CleanSum:
    """Open a sum and subtract the noise beyond the plan, as far as its keys open.

    Parameters
    ----------
    run : Run
    round_number : int
        Of the round.
    combined : mapping of int to bytes
        Results of `combine` by position.
    survivors : ndarray of shape (n_slots,), bool
    context : SumContext

    Raises
    ------
    SumError
        If the sum does not open. A key that does not open leaves its client's noise in the sum.
    """
    n_survivors = int(np.count_nonzero(survivors))
    n_parts = reached(run.document, n_survivors)
    if not n_parts:
        opened = run.trust.sum.open(combined, survivors, context)
        return CleanSum(opened.vector, opened.liars, _factor(run, n_survivors))
    length, _, size = _lengths(run, context)
    sums = {position: part[:length] for position, part in combined.items()}
    opened = run.trust.sum.open(sums, survivors, context)
    numbers = usable(run, round_number)
    vector, n_keys = opened.vector.copy(), 0
    for client in range(n_survivors):
        place = slice(length + size * client, length + size * (client + 1))
        shares = {j: part[place] for j, part in combined.items() if j not in opened.liars}
        try:
            words = run.trust.sum.open(shares, survivors, _key_context(context, n_parts)).vector
            key = _from_words(words)
        except (SumError, OverflowError):  # its dealer, or members, sent something else
            continue
        vector[:-1] -= _removable_noise(run, round_number, context.digest, numbers, key, n_parts)
        n_keys += 1
    most = (run.document.noise_shares, *run.document.levels)[n_parts]
    left = max(number for number in numbers if number <= most)
    return CleanSum(vector, opened.liars, _factor(run, n_survivors - n_keys, n_keys / left))


def _factor(run: Run, n_whole: int, variance: float = 0.0) -> float:
    """Return the noise factor of so many whole shares and a variance beside them."""
    if not run.trust.shares_noise:
        return 1.0
    return math.sqrt(variance + n_whole / run.document.noise_shares)


# ------------------------------------------------------------------------------ parts and keys


def part_key(secret: bytes, context: bytes, n_levels: int, n_parts: int) -> bytes:
    """Return the key of the first ``n_parts`` parts of ``n_levels``, 32 bytes."""
    key = kdf(secret, context, b"noise parts")
    for _ in range(n_levels - n_parts):
        key = _key_below(key)
    return key


def _key_below(key: bytes) -> bytes:
    return H(b"noise part", key)


def _removable_noise(
    run: Run, round_number: int, context: bytes, numbers: tuple[int, ...], key: bytes, n_parts: int
) -> Integers:
    """Return the sum of the first parts of a client's noise, given their key."""
    noise = np.zeros(run.algorithm.words(round_number), dtype=np.int64)
    for level in reversed(run.document.levels[:n_parts]):
        if level in numbers:
            fewer = numbers[numbers.index(level) - 1]
            stream = Stream.from_key(noise_key(key, context))
            noise += noise_part(run.algorithm, run.plan, round_number, fewer, level, stream)
        key = _key_below(key)
    return noise


def _key_context(context: SumContext, n_parts: int) -> SumContext:
    digest = H(b"noise part key", context.digest, u32(n_parts))
    return replace(context, digest=digest, n_words=KEY_WORDS)


def _lengths(run: Run, context: SumContext) -> tuple[int, int, int]:
    """Return the bytes of a vector's part, of it with the keys' parts, and of one key's part."""
    sharing, secure_sum = context.sharing, run.trust.sum
    length = secure_sum.part_bytes(context.n_words, sharing)
    size = secure_sum.part_bytes(KEY_WORDS, sharing)
    return length, length + size * len(run.document.levels), size


def _to_words(key: bytes) -> Integers:
    pieces = (key[start : start + _KEY_WORD_BYTES] for start in range(0, len(key), _KEY_WORD_BYTES))
    return np.array([int.from_bytes(piece, "little") for piece in pieces], dtype=np.int64)


def _from_words(words: Integers) -> bytes:
    """Return the key of `_to_words`; an `OverflowError` if no key has such words."""
    sizes = [_KEY_WORD_BYTES] * (KEY_WORDS - 1) + [_KEY_BYTES - _KEY_WORD_BYTES * (KEY_WORDS - 1)]
    pieces = zip(words.tolist(), sizes, strict=True)
    return b"".join(word.to_bytes(size, "little") for word, size in pieces)
