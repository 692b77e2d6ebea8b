"""Cells that lack most of their records because clients did not answer.

See docs/guarantees, Theorem 22, "Where clients did not answer". Such an *absent* cell
keeps the records that the round before expected.
"""

import numpy as np

from flower_kmeans.algorithms.layout import COUNTS
from flower_kmeans.algorithms.numerics.postprocess import MIN_COUNT
from flower_kmeans.algorithms.synopsis_constants import ABSENT_NOISE, ABSENT_PART
from flower_kmeans.algorithms.synopsis_state import NoisySum, Note
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray


def absent(expected: FloatArray, counts: FloatArray, noise: float) -> BoolArray:
    """Return whether each cell lacks more records than noise explains, (m,).

    Parameters
    ----------
    expected : array of shape (m,)
        Records in each cell that the round before expected.
    counts : array of shape (m,)
        Noisy records in each cell in this round.
    noise : float
        Standard deviation of the noise of a count, in records.
    """
    least = ABSENT_NOISE * max(noise, MIN_COUNT)
    can_be_absent = expected > least
    has_few = counts < ABSENT_PART * expected
    return np.asarray(can_be_absent & has_few)


def held(
    found: NoisySum, flags: IntArray, expected: FloatArray, *, comparable: bool
) -> BoolArray:
    """Return whether each cell is held, (m,): kept as it was, because it is absent.

    If any is, `Note.HELD` is set in ``flags``. No cell is held if all clients answered,
    or if counts are not ``comparable`` with the ``expected`` records, (m,).
    """
    if found.answered == 1 or not comparable:
        return np.zeros(len(expected), dtype=bool)
    missing = absent(expected, found.values(COUNTS), found.noise(COUNTS))
    flags[Note.HELD] |= missing.any()
    return missing
