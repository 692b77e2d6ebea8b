"""The end of the synopsis: centroids of the last mixture, from which refinement starts.

See docs/guarantees, Theorem 22, "Selection", and "Bounds on cluster sizes". A run
selects in one of three ways: a planned number of clusters, the number that costs
suggest, or a planned number with bounds on sizes.
"""

import math
from dataclasses import dataclass

import numpy as np

from flower_kmeans.algorithms import synopsis_choice as choice
from flower_kmeans.algorithms.numerics.postprocess import into_domain, to_grid
from flower_kmeans.algorithms.state import StateArrays
from flower_kmeans.algorithms.synopsis_constants import DRIFT, MODEL_BITS, RADIUS_FACTOR
from flower_kmeans.algorithms.synopsis_mixture import (
    CellNoise,
    Mixture,
    Parts,
    equal_masses,
)
from flower_kmeans.algorithms.synopsis_selection import (
    Selection,
    select_best,
    select_within,
)
from flower_kmeans.algorithms.synopsis_sizes import PowerCells, Sizes
from flower_kmeans.algorithms.synopsis_state import (
    Clusters,
    Directions,
    NamedIntegers,
    Note,
    Setting,
    Spread,
)
from flower_kmeans.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Start:
    """The start of the refinement."""

    setting: Setting
    fewest_clusters: int | None
    """Fewest clusters of a run that chooses their number, else ``None``."""
    power_cells: PowerCells | None
    """The power cells, in runs with bounds on sizes."""

    def after(
        self,
        mixture: Mixture,
        before: StateArrays,
        noise: CellNoise,
        flags: IntArray,
        source: np.random.Philox,
    ) -> NamedIntegers:
        """Return the arrays of the first clusters.

        Parameters
        ----------
        mixture : Mixture
            The model after the last synopsis round.
        before : mapping of str to array
            The state before that round.
        noise : CellNoise
            Standard deviations of the noise in its cells.
        flags : array of int64, (6,)
            `Note.FEW` is set if the mixture has too few parts.
        source : Philox
            Public words of that round.
        """
        directions = Directions.read(before)
        parts = Parts.of(mixture)
        if self.power_cells is not None:
            found, sized = self._within_bounds(
                self.power_cells, mixture, parts, directions, source
            )
        elif self.fewest_clusters is not None:
            radii = before["radii"] * self.setting.step
            found, sized = self._chosen(
                self.fewest_clusters, mixture, radii, noise, directions
            )
        else:
            found = select_best(mixture, self.setting.n_clusters, source)
            sized = {}
        flags[Note.FEW] = found.few
        return {**parts.to_arrays(), **sized, **self._clusters(found, directions)}

    # -------------------------------------------------- one of three ways to select

    def _chosen(
        self,
        fewest_clusters: int,
        mixture: Mixture,
        radii: FloatArray,
        noise: CellNoise,
        directions: Directions,
    ) -> tuple[Selection, NamedIntegers]:
        """Return the centres for the number of clusters that costs suggest, and the number.

        The centres are the first rows. The other rows are 0. ``radii``, (m,), are the
        radii of the cells, in D.
        """
        numbers = range(fewest_clusters, self.setting.n_clusters + 1)
        found = choice.selections(mixture, numbers, self.setting.seed)
        costs = choice.costs_of(
            mixture, found, radii, noise, directions.beside, directions.n_beside
        )
        most = choice.most_suggested(mixture.weights, noise.counts)
        chosen = choice.suggested(numbers, costs, most)
        padded = choice.padded(found, chosen - fewest_clusters)
        kept = np.array([chosen], dtype=np.int64)
        return padded, {"chosen": kept}

    def _within_bounds(
        self,
        power: PowerCells,
        mixture: Mixture,
        parts: Parts,
        directions: Directions,
        source: np.random.Philox,
    ) -> tuple[Selection, NamedIntegers]:
        """Return the centres of k-means with bounds on sizes, with masses and weights."""
        k = self.setting.n_clusters
        points = power.points(parts)
        found, weights = select_within(mixture, points, k, power.aim, source)
        # The search for weights of centroids on the grid starts from the selection's
        # weights.
        step = self.setting.longest * 2.0**-MODEL_BITS
        start = power.in_range(weights * (step * step))
        centroids = self._centroids(found, directions)
        costs = power.costs(parts, centroids, directions.projection)
        masses = equal_masses(k)
        weights = power.weights(costs, masses, start)
        sizes = Sizes(masses, weights, variance=1.0)
        return found, sizes.to_arrays()

    # ---------------------------------------------------------------- the clusters

    def _centroids(self, found: Selection, directions: Directions) -> IntArray:
        """Return the centroids, (k, d), on the grid of the records, within the domain."""
        setting = self.setting
        on_grid = to_grid(found.centers / setting.step)
        lifted = setting.projection.lift(on_grid, directions.projection)
        return into_domain(to_grid(lifted), setting.domain, setting.fraction_bits)

    def _clusters(self, found: Selection, directions: Directions) -> NamedIntegers:
        """Return the arrays of the first clusters, and of the spread around them."""
        centroids = self._centroids(found, directions)
        first = math.fsum(found.within) + directions.rest
        beside = directions.beside
        # The last entry stands for every direction orthogonal to the live ones.
        within = np.append(found.within, beside)
        of_others = np.full((len(centroids), 1), beside)
        doubts = np.hstack([found.doubts, of_others])
        clusters = Clusters(
            centroids=centroids,
            counts=found.counts,
            moves=np.zeros(centroids.shape),
            doubts=doubts + DRIFT * within,
            mean_square=RADIUS_FACTOR * RADIUS_FACTOR * first,
            radius=self.setting.radius(first),
        )
        spread = Spread(within=within, first=first)
        q = self.setting.fraction_bits
        return {**clusters.to_arrays(q), **spread.to_arrays()}
