"""Removing the noise beyond the plan (docs/protocol.md, section 7).

A client's share of the noise is a sum of parts. One is for the most clients that may answer, the
others are removed once so many clients stand behind a sum that the plan needs them no more. Every
part has a separate key, and the key of a part gives the keys of the parts that are removed before
it: one key of 32 bytes removes any number of parts. A member gives it with its share of the sum's
secret; what it sent with its answer shows that the key is right.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm, Query
from flower_kmeans.federation.cohort import MAX_MEMBERS
from flower_kmeans.federation.document import MAX_LEVELS, RunDocument
from flower_kmeans.federation.release import noise_part, noise_share
from flower_kmeans.federation.run import Run
from flower_kmeans.privacy.noise import MIN_SHARE_STD, part_variance, share_variance
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.secagg import masks
from flower_kmeans.secagg.hashing import H, kdf

KEY_BYTES = 32

Integers = NDArray[np.int64]


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
    ratio = max(min(most, MAX_MEMBERS), shares) / shares
    steps = (round(shares * ratio ** (i / MAX_LEVELS)) for i in range(1, MAX_LEVELS + 1))
    return tuple(sorted({step for step in steps if step > shares}))


def reached(document: RunDocument, n_survivors: int) -> int:
    """Return how many parts of each share are beyond the plan in a sum of so many answers."""
    return sum(level <= n_survivors - document.colluders for level in document.levels)


def usable(
    algorithm: Algorithm, plan: PrivacyPlan, question: Query, document: RunDocument
) -> tuple[int, ...]:
    """Return the numbers of shares between which a round's noise is divided into parts.

    Returns
    -------
    tuple of int
        M', and the document's levels without those that would make a part, or what is left of a
        share, narrower than two grid units: a sum of such parts is not the planned noise.
    """
    chosen = [document.shares]
    if not document.levels:
        return tuple(chosen)
    units = algorithm.units(question.round)
    places = algorithm.places(question.round)
    least = []
    for release in plan.rounds[question.round - 1]:
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


# --------------------------------------------------------------------------- the client's side


def client_noise(run: Run, question: Query, secret: bytes, context: bytes) -> Integers:
    """Return a client's whole share of a round's noise.

    Parameters
    ----------
    run : Run
    question : Query
    secret : bytes
        z, the secret of its life.
    context : bytes
        Context of the round and attempt.

    Returns
    -------
    ndarray of shape (words,), int64
        In grid units.
    """
    document = run.document
    numbers = usable(run.algorithm, run.plan, question, document)
    stream = Stream.from_key(masks.noise_key(secret, context))
    noise = noise_share(run.algorithm, run.plan, question, numbers[-1], stream)
    if document.levels:
        n_parts = len(document.levels)
        key = part_key(secret, context, n_parts, n_parts)
        noise += removable_noise(run, question, context, numbers, key, n_parts)
    return noise


def part_key(secret: bytes, context: bytes, n_levels: int, n_parts: int) -> bytes:
    """Return the key of the first ``n_parts`` parts of ``n_levels``.

    The key of no part is the commitment to the keys of all.
    """
    return _below(kdf(secret, context, b"noise parts"), n_levels - n_parts)


def _below(key: bytes, n_steps: int) -> bytes:
    for _ in range(n_steps):
        key = H(b"noise part", key)
    return key


def removable_noise(
    run: Run,
    question: Query,
    context: bytes,
    numbers: tuple[int, ...],
    key: bytes,
    n_parts: int,
) -> Integers:
    """Return the sum of the first parts of a client's noise.

    Parameters
    ----------
    run : Run
    question : Query
    context : bytes
        Context of the round and attempt.
    numbers : tuple of int
        `usable` of the round.
    key : bytes
        `part_key` of ``n_parts``.
    n_parts : int
        How many of the document's levels were reached.

    Returns
    -------
    ndarray of shape (words,), int64
        In grid units.
    """
    noise = np.zeros(run.algorithm.words(question.round), dtype=np.int64)
    for level in reversed(run.document.levels[:n_parts]):
        if level in numbers:
            fewer = numbers[numbers.index(level) - 1]
            stream = Stream.from_key(masks.noise_key(key, context))
            noise += noise_part(run.algorithm, run.plan, question, fewer, level, stream)
        key = _below(key, 1)
    return noise


# --------------------------------------------------------------------------- the server's side


def is_committed(key: bytes, n_parts: int, commitment: bytes) -> bool:
    """Return whether a key of so many parts is that of the commitment."""
    return _below(key, n_parts) == commitment


def remove(
    run: Run, question: Query, context: bytes, n_survivors: int, keys: Mapping[int, bytes]
) -> tuple[Integers, float]:
    """Return the noise beyond the plan that keys give, and how much noise is left.

    Parameters
    ----------
    run : Run
    question : Query
        Of the round.
    context : bytes
        Context of the round and attempt.
    n_survivors : int
        Number of answers in the sum.
    keys : mapping of int to bytes
        The keys of the parts beyond the plan, by the members' places; checked ones.

    Returns
    -------
    noise : ndarray of shape (words,), int64
        What to subtract from the sum.
    factor : float
        Standard deviation of the noise that is left, over the planned one.
    """
    document = run.document
    n_parts = reached(document, n_survivors)
    numbers = usable(run.algorithm, run.plan, question, document)
    noise = np.zeros(run.algorithm.words(question.round), dtype=np.int64)
    for key in keys.values():
        noise += removable_noise(run, question, context, numbers, key, n_parts)
    most = (document.shares, *document.levels)[n_parts]
    left = max(number for number in numbers if number <= most)
    return noise, math.sqrt(len(keys) / left + (n_survivors - len(keys)) / document.shares)
