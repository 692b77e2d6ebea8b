"""The first round of FedDP-KMeans: second moments, whose leading directions are the projection."""

from dataclasses import dataclass

import numpy as np

from flower_kmeans.algorithms.feddp_stage import (
    NO_SIGNAL,
    Deviations,
    FedDPSetting,
    NamedArrays,
)
from flower_kmeans.algorithms.layout import Block, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import projection as projections
from flower_kmeans.algorithms.numerics.eigenspace import (
    ROUNDING,
    leading_eigenvectors,
)
from flower_kmeans.algorithms.numerics.projection import MOMENTS
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.arrays import BoolArray
from flower_kmeans.data.domain import GridRecords


@dataclass(frozen=True, eq=False)
class ProjectionStage:
    """The round of second moments."""

    setting: FedDPSetting

    def released(self) -> dict[str, Block]:
        """Return the block of second moments, (d (d + 1) / 2,)."""
        d = self.setting.n_features
        exponent = 2 * projections.moment_bits(self.setting.fraction_bits)
        n_entries = d * (d + 1) // 2
        block = Block(MOMENTS, (n_entries,), exponent, are_moments=True)
        return {"projection": block}

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity of the diagonal for one record, in grid units."""
        q = self.setting.fraction_bits
        coarser = q - projections.moment_bits(q)
        bound = projections.squared_bound(self.setting.domain, q, coarser)
        return {MOMENTS: float(bound)}

    def ranges(self) -> dict[str, Range]:
        """Return no ranges, because the round's query has no arrays."""
        return {}

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return the second moments of the records."""
        return Statistic({MOMENTS: projections.second_moments(records)})

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits of second moments."""
        trace = self.sensitivities()[MOMENTS]
        return Meaning(counts=None, moments=MOMENTS, trace=trace, are_clusters=False)

    def after(
        self,
        before: StateArrays,
        answer: Statistic,
        noise: Deviations,
        flags: BoolArray,
        rng: np.random.Generator,
    ) -> NamedArrays:
        """Return the projection (d, r), and the server's projected points (m, r)."""
        projection = self.setting.projection
        d = self.setting.n_features
        moments = projections.symmetric(answer.blocks[MOMENTS], d)
        # The factor is that of noise shares which nobody could remove.
        edge = projections.noise_edge(d, noise[MOMENTS]) * answer.noise_factor
        # All directions are used, those within the noise too, so noise is not damped.
        p = projection.n_directions
        directions, values = leading_eigenvectors(moments, p, edge=0.0)
        # Without noise the edge is 0, but eigenvalues of the size of roundings are no signal.
        least = max(edge, d * ROUNDING * values[0])
        flags[NO_SIGNAL] = not (values[:p] > least).all()
        matrix = projection.matrix(directions)
        points = projection.project(
            before["server"].astype(np.float64), matrix.astype(np.float64)
        )
        return {"projection": matrix, "points": points.astype(np.int64)}
