"""Clients that did not answer, and cells that lost most of their records with them.

See docs/guarantees, Theorem 22, "Where clients did not answer". A cell that is
absent keeps the records that the round before expected.
"""

import numpy as np

from flower_kmeans.algorithms.layout import COUNTS
from flower_kmeans.algorithms.numerics.postprocess import MIN_COUNT
from flower_kmeans.algorithms.synopsis_constants import ABSENT_NOISE, ABSENT_PART
from flower_kmeans.algorithms.synopsis_state import NoisySum, Note
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray


def absent(expected: FloatArray, counts: FloatArray, noise: float) -> BoolArray:
    """Return the mask (m,) of cells that lack more records than noise explains.

    Parameters
    ----------
    expected, counts : array of shape (m,)
        Records by the round before, and noisy ones of this round.
    noise : float
        Standard deviation of a count, in records.
    """
    least = ABSENT_NOISE * max(noise, MIN_COUNT)
    can_be_absent = expected > least
    has_few = counts < ABSENT_PART * expected
    return np.asarray(can_be_absent & has_few)


def held(
    found: NoisySum, flags: IntArray, expected: FloatArray, *, comparable: bool
) -> BoolArray:
    """Return the mask (m,) of cells that stay as they were, and note that there are some.

    None stays if all clients answered, or if counts are not ``comparable`` with the
    ``expected`` ones (m,).
    """
    if found.answered == 1 or not comparable:
        return np.zeros(len(expected), dtype=bool)
    missing = absent(expected, found.values(COUNTS), found.noise(COUNTS))
    flags[Note.HELD] |= missing.any()
    return missing
