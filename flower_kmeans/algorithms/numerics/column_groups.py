"""Second moments of columns with groups of columns, in exact integers.

Second moments of d columns have about d^2 / 2 words. Where so many cannot be sent, the
products of d columns with m signed groups of columns stand for them, with d m words
(docs/guarantees, Theorem 22, "Groups of columns").
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flower_kmeans.algorithms.numerics.initialization import random_words, round_words
from flower_kmeans.algorithms.numerics.projection import moment_bits, squared_bound
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords, squared_norms
from flower_kmeans.threads import sum_in_parts

_ROUND = 0
"""Number of the public words. Rounds count from 1, so no round has the same words."""

_MARGIN = 1.25
"""Largest length of a record's groups, over its expected value for the longest record."""

_ROWS = 1024
_ROW_WORK = 64  # products that take as long as reading a coordinate


@dataclass(frozen=True)
class ColumnGroups:
    """A public random partition of the columns into groups, with a sign for each column.

    The number of a group is the signed sum of its columns over the square root of its
    size. By the inequality of Cauchy and Schwarz its square is at most the sum of its
    columns' squares, and about m / d of a record's squared norm is left. All records are
    on the grid of second moments, whose coordinates have at most 2^10 steps.

    Attributes
    ----------
    domain : Box, Ball or Sphere
        The domain of the records.
    fraction_bits : int
        q, the fractional bits of the records.
    n_groups : int
        m, at most d. Sizes of groups differ by at most 1.
    seed : int
        The run's seed.
    """

    domain: Domain
    fraction_bits: int
    n_groups: int
    seed: int

    @property
    def n_features(self) -> int:
        """d, the number of columns."""
        return self.domain.n_features

    @cached_property
    def _orders(self) -> tuple[IntArray, FloatArray]:
        """Columns in the order of their groups, (d,), and the sign of each column, (d,)."""
        source = round_words(self.seed, _ROUND)
        keys = random_words(source, self.n_features)
        bits = random_words(source, self.n_features) & np.uint64(1)
        signs = 1.0 - 2.0 * bits.astype(np.float64)
        return np.argsort(keys, kind="stable"), signs

    @cached_property
    def _starts(self) -> IntArray:
        """Place of each group's first column in the order of groups, (m,)."""
        return np.arange(self.n_groups) * self.n_features // self.n_groups

    @cached_property
    def _sizes(self) -> IntArray:
        """Number of columns of each group, (m,)."""
        return np.diff(self._starts, append=self.n_features)

    @cached_property
    def _squared_bound(self) -> int:
        """Largest squared norm of a record on the grid of second moments."""
        dropped = self.fraction_bits - moment_bits(self.fraction_bits)
        return squared_bound(self.domain, self.fraction_bits, dropped)

    @cached_property
    def longest(self) -> int:
        """Largest length of the numbers of a record's groups, in steps. Longer ones are cut."""
        share = self.n_groups / self.n_features
        length = min(1.0, _MARGIN * math.sqrt(share)) * math.sqrt(self._squared_bound)
        return max(1, math.floor(length))

    @property
    def sensitivity(self) -> float:
        """Largest l2 norm that a record adds to `moments`, in squared steps."""
        # Two roundings to the nearest are smaller than two steps up.
        norm = math.nextafter(math.sqrt(self._squared_bound), math.inf)
        return math.nextafter(norm * self.longest, math.inf)

    def numbers(self, block: FloatArray) -> FloatArray:
        """Return the numbers of the groups, (n, m), of rows of the grid, (n, d).

        They are cut toward zero, and then to the length `longest`. All are integers in
        float64.
        """
        order, signs = self._orders
        signed = (block * signs)[:, order]
        # Sums of integers are exact in any order.
        numbers: FloatArray = np.add.reduceat(signed, self._starts, axis=1)
        numbers /= np.sqrt(self._sizes)
        np.trunc(numbers, out=numbers)
        squares = squared_norms(numbers)
        # Shortened ones are integers again, and their squared length is below
        # longest^2 + 1 after all roundings, so it is at most longest^2.
        factors = self.longest / np.sqrt(np.maximum(squares, self.longest**2))
        numbers *= factors[:, None]
        return np.trunc(numbers, out=numbers)

    def moments(self, records: GridRecords) -> IntArray:
        """Return the sum of products of columns with groups, (d, m), int64.

        They are in steps of ``2**(-2 q')``, and coordinates are truncated toward zero,
        as in `projection.second_moments`.
        """
        d = self.n_features
        m = self.n_groups
        bits = moment_bits(self.fraction_bits)
        factor = 2.0 ** (bits - self.fraction_bits)
        of_product = bits + self.longest.bit_length()
        exact_rows = records.rows_at_once(2 ** (53 - of_product), of_product)
        rows = min(_ROWS, exact_rows)

        def part(start: int, stop: int) -> tuple[IntArray]:
            total = np.zeros((d, m), dtype=np.int64)
            for block, times in records.weighted_blocks(rows, start, stop):
                block *= factor
                np.trunc(block, out=block)
                numbers = self.numbers(block)
                if times is not None:
                    numbers *= times[:, None]
                total += (block.T @ numbers).astype(np.int64)
            return (total,)

        n = records.shape[0]
        (total,) = sum_in_parts(n, n * d * (m + _ROW_WORK), part)
        return total

    def trace(self, moments: FloatArray) -> float:
        """Return an estimate of the sum of squared norms from `moments`, in their unit.

        Its noise is that of a word times ``d / sqrt(m)``.
        """
        order, signs = self._orders
        group_of = np.repeat(np.arange(self.n_groups), self._sizes)
        own = moments[order, group_of] * signs[order] / np.sqrt(self._sizes)[group_of]
        return math.fsum(own) * (self.n_features / self.n_groups)
