"""The third round of FedDP-KMeans: projected centres become centroids in all columns."""

from dataclasses import dataclass, replace

import numpy as np

from flower_kmeans.algorithms.feddp_stage import (
    NOT_LIFTED,
    Deviations,
    FedDPSetting,
    NamedArrays,
)
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.postprocess import centroids_in, to_grid
from flower_kmeans.algorithms.numerics.projection import lifted_sums
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.arrays import BoolArray
from flower_kmeans.data.domain import GridRecords


@dataclass(frozen=True, eq=False)
class LiftStage:
    """The round of sums and counts by nearest projected centre."""

    setting: FedDPSetting

    def released(self) -> dict[str, Block]:
        """Return the blocks of sums (k, d) and counts (k,)."""
        k = self.setting.n_clusters
        d = self.setting.n_features
        q = self.setting.fraction_bits
        return {
            "lift-sums": Block(SUMS, (k, d), q),
            "lift-counts": Block(COUNTS, (k,), q),
        }

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units."""
        q = self.setting.fraction_bits
        return {SUMS: self.setting.domain.l2_bound(q), COUNTS: float(2**q)}

    def ranges(self) -> dict[str, Range]:
        """Return the ranges of the projection and of the projected ``centers`` (k, r)."""
        projection = self.setting.projection
        shape = self.setting.n_clusters, projection.n_directions
        return {
            "projection": self.setting.projection_range(),
            "centers": Range(shape, -projection.limit, projection.limit),
        }

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return sums and counts of records by nearest centre, of records within the margin."""
        sums, counts = lifted_sums(
            records,
            self.setting.projection,
            query["projection"],
            query["centers"],
            self.setting.margin,
        )
        return Statistic({SUMS: sums, COUNTS: counts << self.setting.fraction_bits})

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits of sums and counts of records or means."""
        length = self.sensitivities()[SUMS]
        return replace(self.setting.meaning_of_sums(length), totals={})

    def after(
        self,
        before: StateArrays,
        answer: Statistic,
        noise: Deviations,
        flags: BoolArray,
        rng: np.random.Generator,
    ) -> NamedArrays:
        """Return the centroids (k, d) and the counts (k,), int64 on the grid."""
        setting = self.setting
        means, usable = setting.means(answer, noise)
        flags[NOT_LIFTED] = not usable.all()
        # A cluster with too few records starts from its projected centre.
        projected = setting.projection.lift(before["centers"], before["projection"])
        centroids = to_grid(np.where(usable[:, None], means, projected))
        return {
            "centroids": centroids_in(centroids, setting.domain, setting.fraction_bits),
            "counts": answer.blocks[COUNTS].copy(),
        }
