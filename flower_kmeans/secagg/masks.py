"""Masks that telescope over a cohort (docs/protocol.md, section 3).

Without the group key the masks of a cohort are uniform on all tuples of vectors, so not
even the sum is visible (docs/guarantees, Theorem 37). With the group key, the masks of
any survivors cancel except at the ends of their cyclic runs. The cost does not depend
on the size of the cohort: a mask takes 2 or 3 vectors, and removing the masks takes 2
vectors for each run and one more.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import IntArray, WordArray
from flower_kmeans.secagg import base
from flower_kmeans.secagg.primitives import kdf, word_drawer

# No slot has this number, because cohorts have at most 2^17 slots.
_G_STREAM = 2**64 - 1


@base.register_secure_sum
class MaskedSum(base.PlainSum):
    """Masked words. The server adds them, and the group key unmasks the sum."""

    name = "masks"
    is_protected = True

    def protect(
        self, vector: IntArray, context: base.SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return the masked vector as one part.

        The mask follows from the context and the slot. The secret is not needed.
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
        """Return the sum after removing the survivors' masks."""
        masked = super().reconstruct(combined, survivors, context).vector
        removed = correction(mask_key(context), survivors, context.n_words)
        return base.ReconstructedSum(masked - removed.view(np.int64))


def mask_key(context: base.SumContext) -> bytes:
    """Return the key, 32 bytes, of the masks of one context.

    The context determines round, attempt, cohort and transcript.
    """
    return kdf(context.group_key, context.digest, b"mask")


def mask(key: bytes, slot: int, n_slots: int, n_words: int) -> WordArray:
    """Return the mask of a slot, (n_words,), uint64, under a `mask_key`."""
    draw = word_drawer(key, n_words)
    result = draw(slot).copy()
    result -= draw((slot + 1) % n_slots)
    # Without this stream the masks of a full cohort would cancel, and the server would
    # see the sum.
    if slot == 0:
        result += draw(_G_STREAM)
    return result


def correction(key: bytes, survivors: NDArray[np.bool_], n_words: int) -> WordArray:
    """Return the sum of the survivors' masks, (n_words,), uint64."""
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
