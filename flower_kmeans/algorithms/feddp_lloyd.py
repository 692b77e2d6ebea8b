"""The Lloyd rounds of FedDP-KMeans: sums of records, or of offsets within a radius."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from flower_kmeans.algorithms import lloyd
from flower_kmeans.algorithms.fastlloyd import packing_radius
from flower_kmeans.algorithms.feddp_stage import (
    KEPT,
    Deviations,
    FedDPSetting,
    NamedArrays,
)
from flower_kmeans.algorithms.last_cost import LastSums
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.cost import COST
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    centroids_in,
    clip_rows,
    to_grid,
)
from flower_kmeans.algorithms.numerics.projection import squared_bound
from flower_kmeans.algorithms.state import Range, State, StateArrays
from flower_kmeans.arrays import BoolArray, IntArray
from flower_kmeans.data.domain import Box, GridRecords

SPREAD = "spread"
FACTOR = "factor"

# a radius is narrowed to FINENESS / factor of its length, for an integer factor
FINENESS = 4
MOST_FACTOR = 64
# radius in root mean square distances, after the first Lloyd round; measured
# (docs/guarantees, Theorem 20)
NARROW_RADIUS = 2.0

Sums = Literal["absolute", "relative", "narrowing"]


@dataclass(frozen=True, eq=False)
class LloydSums:
    """The sums of the Lloyd rounds, and the radius within which records count."""

    setting: FedDPSetting
    kind: Sums
    alpha: float

    @cached_property
    def packing_radius(self) -> int:
        """Radius of relative sums before narrowing, in grid units."""
        domain = self.setting.domain
        q = self.setting.fraction_bits
        return packing_radius(self.alpha, self.setting.n_clusters, domain, q)

    @property
    def radius(self) -> int | None:
        """Radius of relative sums, in grid units; ``None`` if sums are absolute."""
        return None if self.kind == "absolute" else self.packing_radius

    @property
    def fineness(self) -> int:
        """Factor of the sums of a Lloyd round whose radius is not narrowed."""
        # A radius that is narrowed to ``fineness * radius // factor`` has sums with a larger
        # factor, so one record adds no more. Sensitivities thus do not depend on the query.
        return FINENESS if self.kind == "narrowing" else 1

    def factor_of(self, arrays: StateArrays) -> int:
        """Return the factor of a Lloyd round's sums, from the arrays of its query or state."""
        return int(arrays[FACTOR][0]) if FACTOR in arrays else self.fineness

    def radius_at(self, factor: int) -> int | None:
        """Return the radius of a Lloyd round whose sums have a factor, in grid units.

        Times the factor, no offset is longer than `longest`.
        """
        if self.radius is None:
            return None
        return self.fineness * self.radius // factor

    @property
    def longest(self) -> float:
        """Largest l2 norm that one record adds to the sums, in the units of the sums."""
        if self.radius is None:
            return self.setting.domain.l2_bound(self.setting.fraction_bits)
        return float(self.fineness * self.radius)

    @property
    def largest_cost(self) -> int:
        """Largest number that one record adds to the cost, in squared grid units."""
        if self.radius is None:
            return squared_bound(self.setting.domain, self.setting.fraction_bits)
        return self.radius**2

    def last_sums(self, state: State, noise: Deviations) -> LastSums:
        """Return the units of the sums and the cost in the last round."""
        factor = self.factor_of(state.arrays)
        return LastSums(
            is_relative=self.radius is not None,
            least_count=self.setting.least_count(noise, factor),
            unit=1 / factor,
            rounding=factor**2,
        )


@dataclass(frozen=True, eq=False)
class LloydStage:
    """The stage of one Lloyd round."""

    setting: FedDPSetting
    sums: LloydSums
    has_spread: bool
    """Whether the round releases the spread, which determines the next radius."""
    has_cost: bool
    """Whether the round releases the cost."""
    is_narrowed: bool
    """Whether the radius follows from the spread of the first Lloyd round."""

    def released(self) -> dict[str, Block]:
        """Return the blocks of sums (k, d), counts (k,), spread (1,) and cost (1,)."""
        k = self.setting.n_clusters
        d = self.setting.n_features
        q = self.setting.fraction_bits
        finer = self.sums.fineness.bit_length() - 1
        found = {
            "lloyd-sums": Block(SUMS, (k, d), q + finer),
            "lloyd-counts": Block(COUNTS, (k,), q),
        }
        if self.has_spread:
            found[SPREAD] = Block(SPREAD, (1,), q)
        if self.has_cost:
            found[COST] = Block(COST, (1,), q + 2 * finer)
        return found

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units."""
        q = self.setting.fraction_bits
        sums = self.sums
        found = {SUMS: sums.longest, COUNTS: float(2**q)}
        if self.has_spread:
            found[SPREAD] = float(sums.largest_cost >> q)
        if self.has_cost:
            found[COST] = float(sums.fineness**2 * sums.largest_cost >> q)
        return found

    def ranges(self) -> dict[str, Range]:
        """Return the ranges of ``centroids`` (k, d) and of a narrowed radius's ``factor`` (1,).

        Centroids are within the domain.
        """
        setting = self.setting
        one = 2**setting.fraction_bits
        widths = setting.domain.grid_half_widths(setting.fraction_bits)
        longest = None if isinstance(setting.domain, Box) else one
        shape = setting.n_clusters, setting.n_features
        ranges = {"centroids": Range(shape, -widths, widths, longest)}
        if self.is_narrowed:
            ranges[FACTOR] = Range((1,), FINENESS, MOST_FACTOR)
        return ranges

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return sums and counts of records by cluster, with the spread or the cost."""
        has_squares = self.has_spread or self.has_cost
        largest = self.sums.largest_cost if has_squares else None
        factor = self.sums.factor_of(query)
        radius = self.sums.radius_at(factor)
        sums, counts, squares = lloyd.summed(
            records, query["centroids"], radius, largest
        )
        blocks = {SUMS: factor * sums, COUNTS: counts << self.setting.fraction_bits}
        # A round never has both: narrowing needs two rounds, and the last one has the cost.
        if self.has_spread:
            blocks[SPREAD] = squares
        elif self.has_cost:
            blocks[COST] = factor**2 * squares
        return Statistic(blocks)

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits of sums and counts of records, offsets or means."""
        most = self.sensitivities()
        of_sums = self.setting.meaning_of_sums(most[SUMS])
        totals = {name: most[name] for name in (SPREAD, COST) if name in most}
        factor = self.sums.factor_of(before)
        widths = self.setting.domain.grid_half_widths(self.setting.fraction_bits)
        is_relative = self.sums.radius is not None
        return replace(
            of_sums,
            # Sums with a factor are that much longer. For offsets, `length` includes it.
            widths=None if is_relative else factor * widths,
            unit=1 / factor,
            offsets=is_relative,
            all_count=not is_relative,
            totals=totals,
        )

    def after(
        self,
        before: StateArrays,
        answer: Statistic,
        noise: Deviations,
        flags: BoolArray,
        rng: np.random.Generator,
    ) -> NamedArrays:
        """Return the moved centroids (k, d), the counts (k,), and the arrays for later rounds."""
        setting = self.setting
        old = before["centroids"]
        factor = self.sums.factor_of(before)
        blocks = answer.blocks
        means, usable = setting.means(answer, noise, factor)
        # The report at the end covers all rounds.
        flags[KEPT] |= not usable.all()
        radius = self.sums.radius_at(factor)
        if radius is None:
            wanted = to_grid(means)
        else:
            wanted = old + to_grid(clip_rows(means, float(radius)))
        moved = centroids_in(wanted, setting.domain, setting.fraction_bits)
        centroids = np.where(usable[:, None], moved, old)
        arrays: NamedArrays = {"centroids": centroids, "counts": blocks[COUNTS].copy()}
        if self.has_spread:
            arrays[FACTOR] = self._narrowed(answer, noise)
        if self.has_cost:
            arrays |= {
                SUMS: blocks[SUMS].copy(),
                COST: blocks[COST].copy(),
                "before": old,
            }
        return arrays

    def _narrowed(self, answer: Statistic, noise: Deviations) -> IntArray:
        """Return the factor, (1,), of a radius of `NARROW_RADIUS` root mean square distances."""
        # One standard deviation of noise is added: a radius that is too wide costs some noise,
        # and one that is too narrow misses records.
        total = float(answer.blocks[SPREAD][0]) + noise[SPREAD]
        step = 2.0**-self.setting.fraction_bits
        n_records = max(MIN_COUNT, float(answer.blocks[COUNTS].sum()) * step)
        wanted = max(1.0, NARROW_RADIUS * math.sqrt(max(0.0, total) / step / n_records))
        radius = float(self.sums.packing_radius)
        factor = math.floor(self.sums.fineness * radius / wanted)
        return np.array([min(max(FINENESS, factor), MOST_FACTOR)])
