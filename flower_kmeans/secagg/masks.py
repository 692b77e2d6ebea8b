"""Masks that telescope over a cohort (docs/protocol.md, section 3).

Without the group key the masks of a cohort are uniform on all tuples of vectors, so not
even the sum shows (docs/guarantees, Theorem 37). With it
the masks of any survivors cancel up to the ends of their
cyclic runs: removing them costs 2 vectors per run and one more, making one costs 2 or
3, whatever the cohort's size is.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import IntArray, WordArray
from flower_kmeans.secagg import base
from flower_kmeans.secagg.primitives import kdf, word_drawer

# No slot has this number: cohorts have 2^17 slots at most.
_G_STREAM = 2**64 - 1


@base.register_secure_sum
class MaskedSum(base.PlainSum):
    """Masked words: the server adds them up, and the group key unmasks the sum."""

    name = "masks"
    is_protected = True

    def protect(
        self, vector: IntArray, context: base.SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return the masked words.

        The mask follows from the context. The secret is not needed.
        """
        own = mask(mask_key(context), slot, context.n_slots, context.n_words)
        masked = vector + own.view(np.int64)
        return (masked.astype("<i8", copy=False).tobytes(),)

    def reconstruct(
        self,
        combined: Mapping[int, bytes],
        survivors: NDArray[np.bool_],
        context: base.SumContext,
    ) -> base.ReconstructedSum:
        """Return the sum without the survivors' masks."""
        masked = super().reconstruct(combined, survivors, context).vector
        removed = correction(mask_key(context), survivors, context.n_words)
        return base.ReconstructedSum(masked - removed.view(np.int64))


def mask_key(context: base.SumContext) -> bytes:
    """Return the key of a context's masks (round, attempt, cohort, transcript)."""
    return kdf(context.group_key, context.digest, b"mask")


def mask(key: bytes, slot: int, n_slots: int, n_words: int) -> WordArray:
    """Return the mask of the client at a slot, shape (n_words,), under `mask_key`."""
    draw = word_drawer(key, n_words)
    result = draw(slot).copy()
    result -= draw((slot + 1) % n_slots)
    # Without this one the masks of a full cohort would cancel, and the sum would show.
    if slot == 0:
        result += draw(_G_STREAM)
    return result


def correction(key: bytes, survivors: NDArray[np.bool_], n_words: int) -> WordArray:
    """Return the sum of the survivors' masks, shape (n_words,)."""
    draw = word_drawer(key, n_words)
    result = np.zeros(n_words, dtype=np.uint64)
    before = np.roll(survivors, 1)  # before[i]: whether slot i - 1 survived
    for start in np.flatnonzero(survivors & ~before).tolist():
        result += draw(start)
    for end in np.flatnonzero(before & ~survivors).tolist():
        result -= draw(end)
    if survivors.size and survivors[0]:
        result += draw(_G_STREAM)
    return result
