"""Masks that telescope over a cohort (docs/protocol.md, section 3).

The client at slot ``i`` of ``M`` adds ``r_i = F(i) - F((i + 1) mod M) + [i = 0] G``, where F(0),
..., F(M - 1) and G are pseudo-random vectors modulo 2^64. Without the group key the masks are
uniform on all M-tuples of vectors, so not even the sum shows. With the key the masks of any set of
survivors cancel up to the ends of its cyclic runs: removing them costs 2 vectors per run and one
more, making one costs 2 or 3, whatever M is.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.secagg.base import (
    Integers,
    Opened,
    SecureSum,
    SumContext,
    opened_words,
    register_secure_sum,
)
from flower_kmeans.secagg.hashing import kdf, word_drawer

_G_STREAM = 2**64 - 1


@register_secure_sum
class MaskedSum(SecureSum):
    """Masked words: the server adds them up; the group key removes the masks from the sum."""

    name: ClassVar[str] = "masks"

    def protect(
        self, vector: Integers, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return the masked words. The mask depends on the context: the secret is not needed."""
        words = mask(mask_key(context), slot, context.n_slots, context.n_words)
        words += vector.view(np.uint64)
        return (words.astype("<u8").tobytes(),)

    def open(
        self, combined: Mapping[int, bytes], survivors: NDArray[np.bool_], context: SumContext
    ) -> Opened:
        """Return the sum without the survivors' masks."""
        words = opened_words(combined, context)
        words -= correction(mask_key(context), survivors, context.n_words)
        return Opened(words.view(np.int64))


def mask_key(context: SumContext) -> bytes:
    """Return the key of all masks of one context (round, attempt, cohort, transcript)."""
    return kdf(context.group_key, context.digest, b"mask")


def mask(key: bytes, slot: int, n_slots: int, n_words: int) -> NDArray[np.uint64]:
    """Return the mask of the client at a slot, shape (n_words,), uint64, under `mask_key`."""
    draw = word_drawer(key, n_words)
    result = draw(slot).copy()
    result -= draw((slot + 1) % n_slots)
    if slot == 0:
        result += draw(_G_STREAM)
    return result


def correction(key: bytes, survivors: NDArray[np.bool_], n_words: int) -> NDArray[np.uint64]:
    """Return the sum of the survivors' masks, shape (n_words,), uint64.

    It is made of two vectors for each cyclic run of survivors, and G if slot 0 is among them.
    """
    draw = word_drawer(key, n_words)
    result = np.zeros(n_words, dtype=np.uint64)
    before = np.roll(survivors, 1)  # before[i] says whether slot i - 1 survived
    for start in np.flatnonzero(survivors & ~before).tolist():
        result += draw(start)
    for end in np.flatnonzero(before & ~survivors).tolist():
        result -= draw(end)
    if survivors.size and survivors[0]:
        result += draw(_G_STREAM)
    return result
