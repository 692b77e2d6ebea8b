"""The second round of FedDP-KMeans: weights of the server's points give projected centres."""

import math
from dataclasses import dataclass

import numpy as np

from flower_kmeans import parameters
from flower_kmeans.algorithms.base import MAX_CLUSTERS
from flower_kmeans.algorithms.feddp_stage import (
    ALL_LIGHT,
    EQUAL,
    FEW,
    WEIGHTS,
    Deviations,
    FedDPSetting,
    NamedArrays,
)
from flower_kmeans.algorithms.layout import COUNTS, Block, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import initialization
from flower_kmeans.algorithms.numerics.assignment import cluster_sums
from flower_kmeans.algorithms.numerics.cost import user_scale
from flower_kmeans.algorithms.numerics.grid_kmeans import GridCenters, grid_kmeans
from flower_kmeans.algorithms.numerics.projection import ProjectedRecords
from flower_kmeans.algorithms.state import Range, State, StateArrays
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.errors import ConfigurationError

ANY_WEIGHT = 1e-6  # below one record, so it keeps every point with a record
MOST_WEIGHT = 2.0**53
_STEPS = 300  # most steps of Lloyd's algorithm for each start


@dataclass(frozen=True, eq=False)
class SeedingStage:
    """The round in which records vote for the nearest of the server's projected points."""

    setting: FedDPSetting
    min_weight: float
    """Least noisy weight of a point that is kept, in records."""

    @property
    def least_weight(self) -> int:
        """``min_weight`` in the units of a released weight."""
        return min(
            math.ceil(self.min_weight * 2.0**self.setting.fraction_bits), 2**63 - 1
        )

    def released(self) -> dict[str, Block]:
        """Return the block of counts by server point, (m,)."""
        shape = (self.setting.n_server_points,)
        return {"weights": Block(COUNTS, shape, self.setting.fraction_bits)}

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity of the counts in grid units: a record has one vote."""
        return {COUNTS: float(2**self.setting.fraction_bits)}

    def ranges(self) -> dict[str, Range]:
        """Return the ranges of the projection and of the projected ``points`` (m, r)."""
        projection = self.setting.projection
        shape = self.setting.n_server_points, projection.n_directions
        return {
            "projection": self.setting.projection_range(),
            "points": Range(shape, -projection.limit, projection.limit),
        }

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return the number of records that are nearest to each point."""
        projected = ProjectedRecords(
            records, self.setting.projection, query["projection"]
        )
        _, counts = cluster_sums(projected, query["points"])
        return Statistic({COUNTS: counts << self.setting.fraction_bits})

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits of counts."""
        return Meaning(are_clusters=False)

    def after(
        self,
        before: StateArrays,
        answer: Statistic,
        noise: Deviations,
        flags: BoolArray,
        rng: np.random.Generator,
    ) -> NamedArrays:
        """Return the weights (m,), and the projected centres (k, r) of weighted k-means."""
        points = before["points"]
        weights = answer.blocks[COUNTS]
        k = self.setting.n_clusters
        kept = weights >= self.least_weight
        flags[ALL_LIGHT] = not kept.any()
        flags[FEW] = 0 < kept.sum() < k
        if flags[FEW]:
            # ~w = -w - 1 sorts like -w, which does not exist for the least int64.
            centers = points[np.argsort(~weights, kind="stable")[:k]]
        elif flags[ALL_LIGHT]:
            centers = _kmeans(points, np.ones_like(weights), k, rng).points
        else:
            centers = _kmeans(points[kept], weights[kept], k, rng).points
        flags[EQUAL] = len(np.unique(centers, axis=0)) < k
        return {"weights": weights.copy(), "centers": centers}

    def elbow(self, state: State, k_max: int, rng: np.random.Generator) -> FloatArray:
        """Return the inertia of k-means on the weighted projected server points, by k.

        The result is (k_max,) float64, in the squared units of `LastCost`. It is 0 for k
        of at least the number of points. It is post-processing of a state after round 2 or
        later. The weighted points stand for the records: where the inertia stops falling
        quickly, more clusters find no more structure. For k above ``n_clusters`` the
        projection may lack directions.

        Raises
        ------
        ConfigurationError
            If the state is too early, no point reaches ``min_weight``, or ``k_max`` is out
            of range.
        """
        k_max = parameters.integer("k_max", k_max, 1, MAX_CLUSTERS)
        if "weights" not in state.arrays:
            raise ConfigurationError(
                f"Expected a state after round {WEIGHTS} or later. Got round {state.round}."
            )
        kept = state.arrays["weights"] >= self.least_weight
        if not kept.any():
            raise ConfigurationError(
                "Expected a server point with a noisy weight of at least min_weight. Got none."
            )
        points = state.arrays["points"][kept]
        weights = state.arrays["weights"][kept]
        costs = np.zeros(k_max)
        for k in range(1, min(k_max, len(points)) + 1):
            costs[k - 1] = _kmeans(points, weights, k, rng).cost
        scale = user_scale(self.setting.domain)[0]
        step = 2.0**-self.setting.projection.exponent * scale
        return costs * (step * step * 2.0**-self.setting.fraction_bits)


def _kmeans(
    points: IntArray, weights: IntArray, n_clusters: int, rng: np.random.Generator
) -> GridCenters:
    source = initialization.public_words(int.from_bytes(rng.bytes(16), "little"))
    return grid_kmeans(
        points, weights, n_clusters, source, initialization.STARTS, _STEPS
    )
