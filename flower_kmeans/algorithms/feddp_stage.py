"""Stages of FedDP-KMeans: their order, interface, parameters and warnings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.eigenspace import MOST_VECTORS
from flower_kmeans.algorithms.numerics.postprocess import MIN_COUNT, quotients
from flower_kmeans.algorithms.numerics.projection import Projection
from flower_kmeans.algorithms.state import Range, StateArrays
from flower_kmeans.arrays import BoolArray, FloatArray
from flower_kmeans.data.domain import Domain, GridRecords

PROJECTION = 1
WEIGHTS = 2
LIFT = 3
N_INITIAL = 3

WARNINGS = (
    "The noisy second moments do not exceed their noise in as many directions as they were "
    "projected to: the projection may be arbitrary.",
    "No server point had a noisy weight of at least min_weight: k-means took all server points, "
    "and all alike.",
    "Fewer server points than clusters had a noisy weight of at least min_weight: the points of "
    "the largest noisy weights became the projected centres.",
    "Fewer projected server points than clusters were different: some centres coincide.",
    "Some clusters had too small a noisy count in the lift: they start from their projected "
    "centre.",
    "Some clusters had too small a noisy count in a Lloyd round: they kept their centroid.",
)
NO_SIGNAL, ALL_LIGHT, FEW, EQUAL, NOT_LIFTED, KEPT = range(len(WARNINGS))

NamedArrays = dict[str, NDArray[Any]]
Deviations = Mapping[str, float]
"""Planned standard deviations of the noise of a round's blocks, in grid units."""


class FedDPStage(Protocol):
    """One round: its query, the answer to it, and the state after the noisy sum."""

    def released(self) -> dict[str, Block]:
        """Return the block of each release, by the release's name."""

    def sensitivities(self) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units.

        For second moments it is the sensitivity of the diagonal.
        """

    def ranges(self) -> dict[str, Range]:
        """Return the range of every array of the query."""

    def statistic(self, query: StateArrays, records: GridRecords) -> Statistic:
        """Return the statistic of records, before means are taken."""

    def meaning(self, before: StateArrays) -> Meaning:
        """Return the limits that exact sums of the round keep to."""

    def after(
        self,
        before: StateArrays,
        answer: Statistic,
        noise: Deviations,
        flags: BoolArray,
        rng: np.random.Generator,
    ) -> NamedArrays:
        """Return the arrays that the round changes in the state.

        Parameters
        ----------
        before : mapping of str to array
            The state before the round.
        answer : Statistic
            The noisy sum of the round.
        noise : mapping of str to float
            Planned standard deviations of the noise of its blocks, in grid units.
        flags : array of bool, (6,)
            Flags of `WARNINGS`. The stage sets those that hold.
        rng : Generator
            Public randomness.
        """


@dataclass(frozen=True, eq=False)
class FedDPSetting:
    """The public parameters that all stages have in common."""

    domain: Domain
    fraction_bits: int
    """Bits q of the grid of records, counts and centroids, whose step is 2^-q."""
    n_clusters: int
    n_server_points: int
    margin: float
    adds_means: bool
    """Whether clients add means of their records from the lift on."""

    @property
    def n_features(self) -> int:
        """Number d of columns."""
        return self.domain.n_features

    @cached_property
    def projection(self) -> Projection:
        """The grids of the projection to r directions: k, or d or 128 if that is less."""
        directions = min(self.n_clusters, self.n_features, MOST_VECTORS)
        return Projection(self.domain, self.fraction_bits, directions)

    def projection_range(self) -> Range:
        """Return the range of the projection, (d, r), in a query."""
        one = 2**self.fraction_bits
        return Range((self.n_features, self.projection.n_directions), -one, one)

    def meaning_of_sums(self, length: float) -> Meaning:
        """Return the limits of sums and counts, of records or means of at most ``length``."""
        return Meaning(
            sums=SUMS,
            length=length,
            widths=self.domain.grid_half_widths(self.fraction_bits),
            are_records=not self.adds_means,
            all_count=self.margin == 1.0,
        )

    def means(
        self, answer: Statistic, noise: Deviations, factor: int = 1
    ) -> tuple[FloatArray, BoolArray]:
        """Return the means (k, d) of clusters, and a mask (k,) of those with enough records.

        Sums are divided by counts and by ``factor``.
        """
        least = self.least_count(noise, factor)
        means, usable = quotients(
            answer.blocks[SUMS], answer.blocks[COUNTS], self.fraction_bits, least
        )
        return means / factor, usable

    def least_count(self, noise: Deviations, factor: int = 1) -> float:
        """Return the least noisy count of a cluster whose mean is used, in records."""
        # With a smaller count, the noise of a mean is longer than the domain's radius, or the
        # count itself may be noise.
        q = self.fraction_bits
        longest = noise[SUMS] * (math.sqrt(self.n_features) / factor)
        return max(
            MIN_COUNT, longest / self.domain.l2_bound(q), noise[COUNTS] * 2.0**-q
        )
