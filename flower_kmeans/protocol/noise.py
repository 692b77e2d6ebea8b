"""The noise of one round, as the server or the clients add it, and its removal.

A client's noise share is a sum of parts (docs/guarantees, Theorem 43). One part always
stays: it is sufficient if all clients answer. Each other part is removed once so many
clients are behind a sum that the plan does not need it. The key of a part gives the keys
of the parts that are removed before it. With its vector a client shares the key of every
level among the committee. Beside its sum-share a member returns its shares of the keys of
one level: the level of the sum for which it votes. The server gets no other keys.

`protect`, `combine` and `reconstruct_sum` replace the functions of a secure sum. Without
levels they add no bytes.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.arrays import BoolArray, IntArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.noise import (
    MIN_SHARE_STD,
    discrete_gaussians,
    draw,
    draw_share,
    part_variance,
    sampler_name,
    share_variance,
)
from flower_kmeans.privacy.plan import PrivacyPlan, Release
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.wire import MAX_SLOTS
from flower_kmeans.secagg.base import (
    PartError,
    ReconstructedSum,
    SecureSum,
    Sharing,
    SumContext,
    SumError,
)
from flower_kmeans.secagg.primitives import DIGEST_BYTES, H, kdf, noise_key
from flower_kmeans.secagg.shares import blocks

if TYPE_CHECKING:
    from flower_kmeans.protocol.run import Run, RunDocument

# Largest standard deviation of a noise share, in grid units. Beyond it a draw takes a
# thousand times as long (privacy/noise.py).
_MAX_SHARE_STD = 2.0**40

NONE = "none"
Sampler = Callable[[Release, NDArray[np.float64]], NDArray[np.int64]]
# most numbers of honest answers for which parts of the noise are removed
MAX_LEVELS = 4
# bytes of a key in each word: words are then positive and far below any limit
_PIECE = 7
KEY_WORDS = -(-DIGEST_BYTES // _PIECE)
_BATCH_WORDS = 2**16  # words of noise that are drawn at a time


def server_noise(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int, stream: Stream
) -> NDArray[np.int64]:
    """Return a server's noise of one round's sum, (words,) int64, in grid units."""
    sampler: Sampler = lambda r, s: draw(r, s, stream)  # noqa: E731
    return _round_noise(algorithm, plan, round_number, sampler)


def noise_share(
    algorithm: Algorithm,
    plan: PrivacyPlan,
    round_number: int,
    shares: int,
    stream: Stream,
) -> NDArray[np.int64]:
    """Return one client's share of a round's noise, (words,) int64, in grid units.

    Its variance is the variance of `server_noise` over the number of shares.
    """
    sampler: Sampler = lambda r, s: draw_share(r, s, shares, stream)  # noqa: E731
    return _round_noise(algorithm, plan, round_number, sampler)


def releases_of(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int
) -> Iterator[tuple[Release, NDArray[np.intp], NDArray[np.float64]]]:
    """Yield each release of a round, its words in the layout, and their noise scales."""
    if plan.is_private:
        scales = sensitivities(algorithm, round_number)
        layout = algorithm.layout(round_number)
        for release in plan.rounds[round_number - 1]:
            words = layout.words_of(release)
            yield release, words, scales[words]


def sampler_of(plan: PrivacyPlan, shared: bool) -> str:
    """Return the samplers of a plan's noise, by name, for a run document.

    With ``shared``, clients add the noise in shares.
    """
    if not plan.is_private:
        return NONE
    names = {sampler_name(release, shared) for release in plan.releases}
    return "+".join(sorted(names))


def check_shares(algorithm: Algorithm, plan: PrivacyPlan, shares: int) -> None:
    """Require that every share of a run's noise can be drawn.

    Raises
    ------
    ConfigurationError
        If a release has Laplace noise, which has no shares; if a share's standard
        deviation is below two grid units, where the sum of shares is not the planned
        noise (docs/guarantees, Theorem 42); or if it is above 2^40 grid units, where
        drawing takes too long.
    """
    stream = Stream.from_key(
        bytes(32)
    )  # the draws are only tried, so no secret is needed
    # The least and the largest scale stand for all: a run has too many words to try.
    cases = dict[tuple[Release, float, float], None]()
    for number in range(1, len(plan.rounds) + 1):
        for release, _, scales in releases_of(algorithm, plan, number):
            positive = scales[scales > 0]
            least = float(positive.min(initial=math.inf))
            most = float(scales.max())
            cases[release, least, most] = None
    for release, least, most in cases:
        widest = release.noise_multiplier * most / math.sqrt(shares)
        if widest > _MAX_SHARE_STD:
            raise ConfigurationError(
                "Expected noise shares whose standard deviation is at most 2^40 grid units. "
                f"Got 2^{math.log2(widest):.1f} for the release {release.name!r} in {shares} "
                "shares: take fewer fraction_bits or a larger epsilon."
            )
        # Laplace is refused even if no word has noise.
        units = [least, most] if most else [0.0]
        draw_share(release, np.array(units), shares, stream)


def _round_noise(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int, sampler: Sampler
) -> NDArray[np.int64]:
    noise = np.zeros(algorithm.layout(round_number).n_words, dtype=np.int64)
    for release, words, scales in releases_of(algorithm, plan, round_number):
        noise[words] += sampler(release, scales)
    return noise


# ---------------------------------------------------------------- noise beyond the plan


@dataclass(frozen=True)
class CleanSum(ReconstructedSum):
    """A reconstructed or unmasked sum without the noise beyond the plan."""

    factor: float = 1.0  # ratio of the noise's standard deviation to the planned one


def levels_up_to(shares: int, most: int) -> tuple[int, ...]:
    """Return the levels: numbers of honest answers for which parts of the noise are removed.

    They are at most `MAX_LEVELS` ascending numbers above ``shares`` = M', in steps of
    about one ratio, up to ``most``, the honest answers if every client answers. The noise
    of honest clients then exceeds the plan by about the square root of that ratio at
    most, and by nothing if all answer.
    """
    ratio = max(min(most, MAX_SLOTS), shares) / shares
    steps = (
        round(shares * ratio ** (i / MAX_LEVELS)) for i in range(1, MAX_LEVELS + 1)
    )
    return tuple(sorted({step for step in steps if step > shares}))


def reached(document: "RunDocument", n_survivors: int) -> int:
    """Return the number of noise parts to remove from each noise share of a sum."""
    return sum(
        level <= n_survivors - document.max_colluders for level in document.levels
    )


def usable(run: "Run", round_number: int) -> tuple[int, ...]:
    """Return the numbers of noise shares between which a round's noise is divided into parts.

    They are M', and the usable levels of the document. A level is not usable if it would
    make a part, or the rest of a noise share, narrower than two grid units: a sum of such
    parts is not the planned noise.
    """
    return run.kept.once(_usable, run, round_number)


def _usable(run: "Run", round_number: int) -> tuple[int, ...]:
    chosen = [run.document.noise_shares]
    if not run.document.levels:
        return tuple(chosen)
    narrowest = []
    for release, _, units in releases_of(run.algorithm, run.plan, round_number):
        if units.any():  # its narrowest word decides for all
            narrowest.append((release, units[units > 0].min(keepdims=True)))
    for level in run.document.levels:
        variances = []
        for release, unit in narrowest:
            left = share_variance(release, unit, level)
            part = part_variance(release, unit, chosen[-1], level)
            variances += [left[0], part[0]]
        if min(variances, default=0.0) >= MIN_SHARE_STD**2:
            chosen.append(level)
    return tuple(chosen)


def client_noise(
    run: "Run", round_number: int, secret: bytes, context: bytes
) -> IntArray:
    """Return all noise of a client in a context, (words,) int64, in grid units."""
    # The part that stays is sufficient if all clients answer. The removable parts are added.
    n_levels = len(run.document.levels)
    last = usable(run, round_number)[-1]
    stream = Stream.from_key(noise_key(secret, context))
    noise = noise_share(run.algorithm, run.plan, round_number, last, stream)
    if n_levels:
        key = part_key(secret, context, n_levels, n_levels)
        noise += _removable_noise(run, round_number, context, [key], n_levels)
    return noise


def protect(
    run: "Run", vector: IntArray, context: SumContext, slot: int, secret: bytes
) -> tuple[bytes, ...]:
    """Return the protected parts of a vector, and of its keys behind it, each in a new block."""
    sharing = context.sharing
    n_levels = len(run.document.levels)
    if sharing is not None and n_levels:
        keys = (
            part_key(secret, context.digest, n_levels, n + 1) for n in range(n_levels)
        )
        pieces = [vector, *map(_to_words, keys)]
        columns = [blocks(piece, sharing.packing) for piece in pieces]
        vector = np.concatenate(columns, axis=1).reshape(-1)
        context = replace(context, n_words=len(vector))
    return run.trust.sum.protect(vector, context, slot, secret)


def part_bytes(run: "Run", n_words: int, sharing: Sharing | None) -> int:
    """Return the length of a part of a vector, keys included, in bytes."""
    return bytes_of_part(run.trust.sum, n_words, sharing, len(run.document.levels))


def bytes_of_part(
    secure_sum: SecureSum, n_words: int, sharing: Sharing | None, n_levels: int
) -> int:
    """Return `part_bytes` of runs with a secure sum and a number of levels."""
    size = secure_sum.part_bytes
    return size(n_words, sharing) + n_levels * size(KEY_WORDS, sharing)


def combined_bytes(
    run: "Run", n_words: int, sharing: Sharing | None, n_survivors: int
) -> int:
    """Return the length of a result of `combine`, in bytes."""
    size = run.trust.sum.part_bytes
    length = size(n_words, sharing)
    if reached(run.document, n_survivors):
        length += n_survivors * size(KEY_WORDS, sharing)
    return length


def combine(
    run: "Run", parts: Iterable[bytes], context: SumContext, n_survivors: int
) -> bytes:
    """Return the sum of the survivors' parts, and each survivor's part of its key of one level."""
    n_parts = reached(run.document, n_survivors)
    length, size = _lengths(run, context)
    whole = length + size * len(run.document.levels)
    keys: list[bytes] = []

    def vectors() -> Iterable[bytes]:
        for index, part in enumerate(parts):
            if len(part) != whole:
                raise PartError(index)
            if n_parts:  # the server detects false ones
                end = length + size * n_parts
                keys.append(part[end - size : end])
            yield part[:length]

    combined = run.trust.sum.combine(vectors(), context)
    return combined + b"".join(keys)


def reconstruct_sum(
    run: "Run",
    t: int,
    combined: Mapping[int, bytes],
    survivors: BoolArray,
    context: SumContext,
) -> CleanSum:
    """Reconstruct a sum and subtract the noise beyond the plan, as far as keys allow.

    ``combined`` holds results of `combine` by position. If a key cannot be reconstructed,
    its client's noise stays in the sum.

    Raises
    ------
    SumError
        If the sum cannot be reconstructed.
    """
    n_survivors = int(np.count_nonzero(survivors))
    n_parts = reached(run.document, n_survivors)
    if not n_parts:
        reconstructed = run.trust.sum.reconstruct(combined, survivors, context)
        return CleanSum(
            reconstructed.vector, reconstructed.liars, noise_factor(run, n_survivors)
        )
    length, _ = _lengths(run, context)
    sums = {position: part[:length] for position, part in combined.items()}
    reconstructed = run.trust.sum.reconstruct(sums, survivors, context)
    shares = {
        j: part[length:] for j, part in combined.items() if j not in reconstructed.liars
    }
    keys = _reconstructed_keys(run, shares, n_survivors, survivors, context)
    vector = reconstructed.vector.copy()
    vector[:-1] -= _removable_noise(run, t, context.digest, keys, n_parts)
    most = run.document.levels[n_parts - 1]
    left = max(number for number in usable(run, t) if number <= most)
    factor = noise_factor(run, n_survivors - len(keys), len(keys) / left)
    return CleanSum(vector, reconstructed.liars, factor)


def _reconstructed_keys(
    run: "Run",
    shares: Mapping[int, bytes],
    n_keys: int,
    survivors: BoolArray,
    context: SumContext,
) -> list[bytes]:
    """Return the keys that can be reconstructed; if not all can, each half is tried."""
    _, size = _lengths(run, context)
    packing = context.sharing.packing if context.sharing else 1
    n_words = packing * (size // 8) * n_keys
    try:
        reconstructed = run.trust.sum.reconstruct(
            shares, survivors, replace(context, n_words=n_words)
        )
    except SumError:  # a dealer or members sent wrong shares
        if n_keys <= 1:
            return []
        n_first = n_keys // 2
        middle = n_first * size
        first = {j: share[:middle] for j, share in shares.items()}
        rest = {j: share[middle:] for j, share in shares.items()}
        return [
            *_reconstructed_keys(run, first, n_first, survivors, context),
            *_reconstructed_keys(run, rest, n_keys - n_first, survivors, context),
        ]
    keys = []
    for columns in reconstructed.vector.reshape(packing, n_keys, -1).swapaxes(0, 1):
        with suppress(OverflowError):
            keys.append(_from_words(columns.reshape(-1)[:KEY_WORDS]))
    return keys


def noise_factor(run: "Run", n_whole: int, variance: float = 0.0) -> float:
    """Return the noise factor of a sum with ``n_whole`` whole noise shares and further variance.

    ``variance`` is in planned variances.
    """
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
    run: "Run", round_number: int, context: bytes, keys: Sequence[bytes], n_parts: int
) -> IntArray:
    """Return the sum of the first parts of clients' noise, from each client's key."""
    noise = np.zeros(run.algorithm.layout(round_number).n_words, dtype=np.int64)
    levels = run.document.levels[:n_parts]
    numbers = usable(run, round_number)
    n_drawn = sum(level in numbers for level in levels)
    releases = run.kept.once(_part_variances, run, round_number)
    # Many streams at once are faster, but each holds its words of all parts in memory.
    n_at_once = max(1, _BATCH_WORDS // (n_drawn * len(noise) or 1))
    for start in range(0, len(keys), n_at_once):
        batch = keys[start : start + n_at_once]
        streams = []
        for key in batch:
            for level in reversed(levels):  # a key gives the keys of the levels below
                if level in numbers:
                    streams.append(Stream.from_key(noise_key(key, context)))
                key = H(b"noise part", key)
        for coordinates, variances in releases:
            drawn = variances[:n_drawn][::-1]
            of_batch = np.tile(drawn, (len(batch), 1))
            noise[coordinates] += discrete_gaussians(of_batch, streams).sum(axis=0)
    return noise


def _part_variances(
    run: "Run", round_number: int
) -> list[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """Return each release's words, and their variances in each usable part, (n_parts, n_words)."""
    found = []
    steps = tuple(pairwise(usable(run, round_number)))
    releases = releases_of(run.algorithm, run.plan, round_number)
    for release, words, scales in releases:
        rows = [part_variance(release, scales, fewer, more) for fewer, more in steps]
        found.append((words, np.array(rows).reshape(-1, len(words))))
    return found


def _lengths(run: "Run", context: SumContext) -> tuple[int, int]:
    """Return the lengths, in bytes, of a vector's part and of one key's part behind it."""
    size = run.trust.sum.part_bytes
    return size(context.n_words, context.sharing), size(KEY_WORDS, context.sharing)


def _to_words(key: bytes) -> IntArray:
    pieces = [key[start : start + _PIECE] for start in range(0, len(key), _PIECE)]
    return np.array(
        [int.from_bytes(piece, "little") for piece in pieces], dtype=np.int64
    )


def _from_words(words: IntArray) -> bytes:
    """Return the key whose `_to_words` are given.

    Raises
    ------
    OverflowError
        If no key has such words.
    """
    *whole, last = words.tolist()
    rest: bytes = last.to_bytes(DIGEST_BYTES % _PIECE, "little")
    return b"".join(word.to_bytes(_PIECE, "little") for word in whole) + rest
