"""The cost of a clustering as a release: from squared distances to public points.

With a round's sums and counts, the sum Q of squared distances to the centroids before, or to the
origin where sums are of records, gives the cost at the centroids that follow (docs/guarantees.md,
"Metrics that may leave").
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.data.domain import Domain, GridRecords, IntArray
from flower_kmeans.data.records import FloatArray
from flower_kmeans.threads import single_threaded_blas

COST = "cost"  # the block, and the release, of squared distances
COST_SHARE = 0.02  # of mu^2, where the rest of a plan has 1

_BLOCK_NUMBERS = 2**18


def squared_distances(
    records: GridRecords, centroids: IntArray, largest: int, radius2: int | None = None
) -> int:
    """Return the sum of squared distances of records to their nearest centroids (k, d).

    Of exponent q, as the records: every squared distance, cut to ``largest`` squared grid units,
    loses its q last bits. A record counts only if its squared distance is at most ``radius2``.
    """
    total = 0
    with single_threaded_blas():
        for block in records.blocks(max(1, _BLOCK_NUMBERS // records.shape[1])):
            _, d2 = assign(block, centroids)
            if radius2 is not None:
                d2 = d2[d2 <= radius2]
            whole = np.floor(np.minimum(d2, float(largest)) * 2.0**-records.fraction_bits)
            total += int(whole.astype(np.int64).sum())
    return total


@dataclass(frozen=True)
class LastRound:
    """What is known of a Lloyd round after it, in scaled units."""

    q: float  # noisy sum of squared distances to the references
    sums: FloatArray  # (k, d), noisy, of the records' offsets from the references
    counts: FloatArray  # (k,), noisy
    references: FloatArray  # (k, d), the centroids before, or the origin if sums are of records
    after: FloatArray  # (k, d), the centroids after the round
    quotients: FloatArray  # (k, d), sums over counts
    usable: NDArray[np.bool_]  # (k,), where there is a quotient
    noise: tuple[float, float, float]  # standard deviations: of q, a sum's coordinate, a count
    step: float  # of the centroids' grid

    @property
    def value(self) -> float:
        """Q - 2 sum <R_j, delta_j> + sum C_j |delta_j|^2, delta from reference to centroid."""
        moves = self.after - self.references
        product = float(np.einsum("ij,ij->", self.sums, moves))
        return self.q - 2 * product + float(self.counts @ _squares(moves))

    @property
    def bias(self) -> float:
        """By how much ``value`` comes out too low on average, to first order.

        A centroid moves towards its own noise: with delta = (R + n_R) / (C + n_C) the term
        -2 <n_R, delta> has the mean -2 d s_R^2 / C, and likewise for the counts.
        """
        _, std_sum, std_count = self.noise
        # Centroids that were kept, or moved into the domain, are left out.
        wanted = self.references + self.quotients
        whole = self.usable & (np.abs(wanted - self.after) <= self.step).all(axis=1)
        sizes = wanted.shape[1] * std_sum**2 + std_count**2 * _squares(self.quotients)
        return 2 * float((sizes[whole] / self.counts[whole]).sum())

    @property
    def error(self) -> float:
        """Standard error of ``value`` at the centroids that were found."""
        std_q, std_sum, std_count = self.noise
        squares = _squares(self.after - self.references)
        of_sums = 4 * std_sum**2 * float(squares.sum())
        return math.sqrt(std_q**2 + of_sums + std_count**2 * float(squares @ squares))


def user_scale(domain: Domain) -> tuple[float, bool]:
    """Return the user's units in one scaled unit, and whether all columns have the same.

    1 if they have not: a cost is then in squared units of the scaled domain.
    """
    unit = domain.common_unit
    return (1.0, False) if unit is None else (unit, True)


def _squares(rows: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))
