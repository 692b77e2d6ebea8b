"""Removing the noise beyond the plan (docs/guarantees, Theorem 43).

A client's share of the noise is a sum of parts. One is for the most clients that may
answer; each other part is removed once so many clients stand behind a sum that the plan
does not need it. The key of a part gives the keys of the parts that are removed before
it. With its vector a client shares the key of every level among the committee. Beside
its sum-share a member returns its shares of the keys of one level: that of the sum for
which it votes. So the server gets no others.

The functions take the places of a secure sum's own. Without levels they add no byte.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.privacy.noise import (
    MIN_SHARE_STD,
    discrete_gaussians,
    part_variance,
    share_variance,
)
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import noise_share, releases_of
from flower_kmeans.protocol.run import MAX_LEVELS, MAX_SLOTS, Run, RunDocument
from flower_kmeans.secagg.base import (
    Integers,
    Opened,
    PartError,
    Sharing,
    SumContext,
    SumError,
)
from flower_kmeans.secagg.hashing import DIGEST_BYTES, H, kdf
from flower_kmeans.secagg.key_agreement import noise_key

Slots = NDArray[np.bool_]
# bytes of a key in each word, so that words are positive and far below any limit
_PIECE = 7
KEY_WORDS = -(-DIGEST_BYTES // _PIECE)
_BATCH_WORDS = 2**16  # of noise that is drawn at a time


@dataclass(frozen=True)
class CleanSum(Opened):
    """An opened sum without the noise beyond the plan."""

    factor: float = 1.0  # deviation of the noise in it over the planned one


def levels_up_to(shares: int, most: int) -> tuple[int, ...]:
    """Return for how many honest answers parts of the noise are removed.

    At most `MAX_LEVELS` numbers above ``shares`` = M', ascending, in steps of about one
    ratio, up to ``most``: how many there are if every client answers. So the noise of
    honest clients exceeds the plan by about the root of that ratio at most, and by
    nothing if all answer.
    """
    ratio = max(min(most, MAX_SLOTS), shares) / shares
    steps = (
        round(shares * ratio ** (i / MAX_LEVELS)) for i in range(1, MAX_LEVELS + 1)
    )
    return tuple(sorted({step for step in steps if step > shares}))


def reached(document: RunDocument, n_survivors: int) -> int:
    """Return how many parts of each share are beyond the plan in a sum of so many answers."""
    return sum(
        level <= n_survivors - document.max_colluders for level in document.levels
    )


@lru_cache(maxsize=2)  # clients of one process are in one round
def usable(run: Run, round_number: int) -> tuple[int, ...]:
    """Return the numbers of shares between which a round's noise is divided into parts.

    They are M', and the document's levels without those that would make a part, or what
    is left of a share, narrower than two grid units: a sum of such parts is not the
    planned noise.
    """
    document, chosen = run.document, [run.document.noise_shares]
    releases = (
        releases_of(run.algorithm, run.plan, round_number) if document.levels else ()
    )
    # The narrowest word of a release decides for all.
    least = [
        (r, units[units > 0].min(keepdims=True))
        for r, _, units in releases
        if units.any()
    ]
    for level in document.levels:
        variances = [share_variance(r, unit, level)[0] for r, unit in least]
        variances += [part_variance(r, unit, chosen[-1], level)[0] for r, unit in least]
        if min(variances, default=0.0) >= MIN_SHARE_STD**2:
            chosen.append(level)
    return tuple(chosen)


def client_noise(
    run: Run, round_number: int, secret: bytes, context: bytes
) -> Integers:
    """Return a client's whole noise of a context, shape (words,), int64, in grid units."""
    # The part that stays is as narrow as if all answered; the others are added to it.
    n_levels, last = len(run.document.levels), usable(run, round_number)[-1]
    stream = Stream.from_key(noise_key(secret, context))
    noise = noise_share(run.algorithm, run.plan, round_number, last, stream)
    if n_levels:
        key = part_key(secret, context, n_levels, n_levels)
        noise += _removable_noise(run, round_number, context, [key], n_levels)
    return noise


def protect(
    run: Run, vector: Integers, context: SumContext, slot: int, secret: bytes
) -> tuple[bytes, ...]:
    """Return a vector's parts with those of the keys behind it, each key in a new block."""
    sharing, n_levels = context.sharing, len(run.document.levels)
    if sharing is not None and n_levels:
        keys = (
            part_key(secret, context.digest, n_levels, n + 1) for n in range(n_levels)
        )
        pieces = [vector, *map(_to_words, keys)]
        vector = np.concatenate(
            [sharing.blocks(piece) for piece in pieces], axis=1
        ).reshape(-1)
        context = replace(context, n_words=len(vector))
    return run.trust.sum.protect(vector, context, slot, secret)


def part_bytes(run: Run, n_words: int, sharing: Sharing | None) -> int:
    """Return the length of a part of a vector, keys included, in bytes."""
    size = run.trust.sum.part_bytes
    return size(n_words, sharing) + len(run.document.levels) * size(KEY_WORDS, sharing)


def combined_bytes(
    run: Run, n_words: int, sharing: Sharing | None, n_survivors: int
) -> int:
    """Return the length of what `combine` returns."""
    size, n_parts = run.trust.sum.part_bytes, reached(run.document, n_survivors)
    return size(n_words, sharing) + (
        n_survivors * size(KEY_WORDS, sharing) if n_parts else 0
    )


def combine(
    run: Run, parts: Iterable[bytes], context: SumContext, n_survivors: int
) -> bytes:
    """Return the sum of the survivors' parts, and each one's part of the key that it reaches."""
    secure_sum, n_parts = run.trust.sum, reached(run.document, n_survivors)
    length, size = _lengths(run, context)
    whole, keys = length + size * len(run.document.levels), list[bytes]()

    def vectors() -> Iterable[bytes]:
        for index, part in enumerate(parts):
            if len(part) != whole:
                raise PartError(index)
            if n_parts:  # the server finds out which of them are false
                keys.append(
                    part[length + size * (n_parts - 1) : length + size * n_parts]
                )
            yield part[:length]

    return secure_sum.combine(vectors(), context) + b"".join(keys)


def open_sum(
    run: Run,
    t: int,
    combined: Mapping[int, bytes],
    survivors: Slots,
    context: SumContext,
) -> CleanSum:
    """Open a sum and subtract the noise beyond the plan, as far as its keys open.

    ``combined`` holds results of `combine` by position. A key that does not open leaves
    its client's noise in the sum. A `SumError` if the sum does not open.
    """
    n_survivors, length = int(np.count_nonzero(survivors)), _lengths(run, context)[0]
    n_parts = reached(run.document, n_survivors)
    if not n_parts:
        opened = run.trust.sum.open(combined, survivors, context)
        return CleanSum(opened.vector, opened.liars, noise_factor(run, n_survivors))
    sums = {position: part[:length] for position, part in combined.items()}
    opened = run.trust.sum.open(sums, survivors, context)
    shares = {j: part[length:] for j, part in combined.items() if j not in opened.liars}
    keys = _opened_keys(run, shares, n_survivors, survivors, context)
    vector = opened.vector.copy()
    vector[:-1] -= _removable_noise(run, t, context.digest, keys, n_parts)
    most = run.document.levels[n_parts - 1]
    left = max(number for number in usable(run, t) if number <= most)
    factor = noise_factor(run, n_survivors - len(keys), len(keys) / left)
    return CleanSum(vector, opened.liars, factor)


def _opened_keys(
    run: Run,
    shares: Mapping[int, bytes],
    n_keys: int,
    survivors: Slots,
    context: SumContext,
) -> list[bytes]:
    """Return the keys that open. Halves are tried if not all do, so a false key costs no other."""
    size, packing = (
        _lengths(run, context)[1],
        context.sharing.packing if context.sharing else 1,
    )
    n_words = packing * (size // 8) * n_keys
    try:
        opened = run.trust.sum.open(
            shares, survivors, replace(context, n_words=n_words)
        )
    except SumError:  # a dealer, or members, sent something else
        half, keys = n_keys // 2, list[bytes]()
        for part, n in (
            (slice(half * size), half),
            (slice(half * size, None), n_keys - half),
        ):
            if n_keys > 1:
                given = {j: share[part] for j, share in shares.items()}
                keys += _opened_keys(run, given, n, survivors, context)
        return keys
    keys = []
    for blocks in opened.vector.reshape(packing, n_keys, -1).swapaxes(0, 1):
        with suppress(OverflowError):
            keys.append(_from_words(blocks.reshape(-1)[:KEY_WORDS]))
    return keys


def noise_factor(run: Run, n_whole: int, variance: float = 0.0) -> float:
    """Return the noise factor of a sum of so many whole shares and a variance beside them."""
    if not run.trust.shares_noise:
        return 1.0
    return math.sqrt(variance + n_whole / run.document.noise_shares)


def part_key(secret: bytes, context: bytes, n_levels: int, n_parts: int) -> bytes:
    """Return the key of the first ``n_parts`` parts of ``n_levels``, 32 bytes."""
    key = kdf(secret, context, b"noise parts")
    for _ in range(n_levels - n_parts):
        key = H(b"noise part", key)
    return key


def _removable_noise(
    run: Run, round_number: int, context: bytes, keys: Sequence[bytes], n_parts: int
) -> Integers:
    """Return the sum of the first parts of clients' noise, given each client's key of them."""
    noise = np.zeros(run.algorithm.words(round_number), dtype=np.int64)
    numbers, levels = usable(run, round_number), run.document.levels[:n_parts]
    n_drawn = sum(level in numbers for level in levels)
    # Many streams at once are faster, but each holds its words of all parts in memory.
    batch = max(1, _BATCH_WORDS // (n_drawn * len(noise) or 1))
    for start in range(0, len(keys), batch):
        streams = []
        for key in keys[start : start + batch]:
            for level in reversed(levels):  # a key gives those of the levels below
                if level in numbers:
                    streams.append(Stream.from_key(noise_key(key, context)))
                key = H(b"noise part", key)
        for coordinates, variances in _part_variances(run, round_number):
            each = np.tile(
                variances[:n_drawn][::-1], (len(keys[start : start + batch]), 1)
            )
            noise[coordinates] += discrete_gaussians(each, streams).sum(axis=0)
    return noise


@lru_cache(maxsize=2)  # clients of one process are in one round
def _part_variances(
    run: Run, round_number: int
) -> list[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """Return each release's words, and their variances (n_parts, n_words) in each usable part."""
    found = []
    for release, words, sensitivities in releases_of(
        run.algorithm, run.plan, round_number
    ):
        steps = pairwise(usable(run, round_number))
        rows = [
            part_variance(release, sensitivities, fewer, more) for fewer, more in steps
        ]
        found.append((words, np.array(rows).reshape(-1, len(words))))
    return found


def _lengths(run: Run, context: SumContext) -> tuple[int, int]:
    """Return the bytes of a vector's part, and of one key's behind it."""
    size = run.trust.sum.part_bytes
    return size(context.n_words, context.sharing), size(KEY_WORDS, context.sharing)


def _to_words(key: bytes) -> Integers:
    pieces = [key[start : start + _PIECE] for start in range(0, len(key), _PIECE)]
    return np.array(
        [int.from_bytes(piece, "little") for piece in pieces], dtype=np.int64
    )


def _from_words(words: Integers) -> bytes:
    """Return the key of `_to_words`; an `OverflowError` if no key has such words."""
    *whole, last = words.tolist()
    rest: bytes = last.to_bytes(DIGEST_BYTES % _PIECE, "little")
    return b"".join(word.to_bytes(_PIECE, "little") for word in whole) + rest
