"""What each round of FedDP-KMeans asks for: blocks, releases, units, and the plan of all rounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from flower_kmeans.algorithms.base import Block, FloatArray, IntArray
from flower_kmeans.algorithms.blocks import BlockAlgorithm
from flower_kmeans.algorithms.cost import COST
from flower_kmeans.algorithms.fastlloyd import packing_radius
from flower_kmeans.algorithms.feddp_releases import (
    LIFT,
    MOMENTS,
    N_INITIAL,
    PROJECTION,
    SPREAD,
    WEIGHTS,
    default_shares,
    releases_of,
)
from flower_kmeans.algorithms.lloyd import COUNTS, SUMS
from flower_kmeans.algorithms.projection import (
    Projection,
    moment_bits,
    moment_units,
    squared_bound,
)
from flower_kmeans.domain import Domain
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.privacy.release import Norm

FACTOR = "factor"
FINENESS = 4
"""A radius narrows to ``FINENESS / factor`` of what it was, for whole factors."""
MOST_FACTOR = 64


@dataclass(frozen=True, init=False)
class FedDPPlan(BlockAlgorithm):
    """The public side of FedDP-KMeans; `FedDPParameters` checks what is in it."""

    n_clusters: int
    domain: Domain
    budget: PrivacyBudget
    n_records: int | None
    n_clients: int | None
    clip: float | None
    clips: tuple[tuple[str, float], ...]
    contribution: Literal["sums", "means"]
    n_server_points: int
    n_lloyd_rounds: int
    n_rounds: int
    seed: int
    fraction_bits: int
    margin: float
    min_weight: float
    sums: Literal["absolute", "relative", "narrowing"]
    alpha: float
    cost: bool
    shares: tuple[tuple[str, float], ...]
    laplace: tuple[str, ...]
    server_points: IntArray | None = field(compare=False, repr=False)

    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return the blocks of a round.

        Round 1: second moments, (d (d + 1) / 2,). Round 2: counts by server point, (m,). Later:
        sums (k, d) and counts (k,); also the spread, (1,), in the first Lloyd round where the
        radius narrows, and the cost, (1,), in the last one if it was asked for.
        """
        k, d, q = self.n_clusters, self.domain.n_features, self.fraction_bits
        if round_number == PROJECTION:
            return (Block(MOMENTS, (d * (d + 1) // 2,), 2 * moment_bits(q)),)
        if round_number == WEIGHTS:
            return (Block(COUNTS, (self.n_server_points,), q),)
        finer = self.fineness.bit_length() - 1 if round_number > LIFT else 0
        blocks = [Block(SUMS, (k, d), q + finer), Block(COUNTS, (k,), q)]
        if self._has_spread(round_number):
            blocks.append(Block(SPREAD, (1,), q))
        if self._has_cost(round_number):
            blocks.append(Block(COST, (1,), q + 2 * finer))
        return tuple(blocks)

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases with noise multipliers relative to those of other rounds."""
        relative = self.sums != "absolute"
        shares = default_shares(self.domain.n_features, relative) | dict(self.shares)
        return releases_of(
            round_number,
            self.n_lloyd_rounds,
            shares,
            self.laplace,
            spread=self.sums == "narrowing",
            cost=self.cost,
        )

    def record_units(self, round_number: int) -> FloatArray:
        """Return the sensitivities to one record, for every word of a round.

        With means, those to what a client adds to one cluster.
        """
        if round_number == PROJECTION:
            return moment_units(self.domain, self.fraction_bits)
        return super().record_units(round_number)

    def clip_of(self, release: Release) -> float:
        """Return how many records' worth of one client count in a release; 1 without clipping."""
        if self.clip is None:
            return 1.0
        given = dict(self.clips)
        if release.name in given:
            return given[release.name]
        return self.plain_clip(release.name, release.norm)

    def plain_clip(self, name: str, norm: Norm) -> float:
        """Return a release's clip from the public figures alone, where none is given for it.

        With means it is how many clusters' worth: sqrt(k) in l2 and k in l1 leave every client as
        it is.
        """
        if self.clip is None:
            return 1.0
        if self.adds_means(name):
            k = float(self.n_clusters)
            return k if norm == "l1" else math.sqrt(k)
        return self.clip

    def adds_means(self, name: str) -> bool:
        """Return whether clients add means, or which clusters they hold, to a release."""
        return self.contribution == "means" and name.startswith(("lift", "lloyd"))

    def moves_of_a_record(self, round_number: int) -> tuple[float, ...]:
        """Return what `Algorithm` says; 2 where clients add means, which count no records."""
        releases = self.releases(round_number)
        if any(self.adds_means(release.name) for release in releases):
            return (2.0,) * len(releases)
        return super().moves_of_a_record(round_number)

    # ------------------------------------------------------------------ details

    @property
    def least_weight(self) -> int:
        """``min_weight`` in the units of a released weight."""
        return min(math.ceil(self.min_weight * 2.0**self.fraction_bits), 2**63 - 1)

    @cached_property
    def projection(self) -> Projection:
        """The grids of the projection."""
        directions = min(self.n_clusters, self.domain.n_features)
        return Projection(self.domain, self.fraction_bits, directions)

    @cached_property
    def radius(self) -> int | None:
        """Radius of a Lloyd round in grid units, or ``None`` where sums are absolute."""
        return None if self.sums == "absolute" else self._packing_radius

    @cached_property
    def _packing_radius(self) -> int:
        return self._radius_of(self.alpha)

    def _radius_of(self, alpha: float) -> int:
        return packing_radius(alpha, self.n_clusters, self.domain, self.fraction_bits)

    @property
    def fineness(self) -> int:
        """Factor of the sums of a Lloyd round whose radius is not narrowed.

        Where it is, to ``fineness * radius // factor``, the sums have a larger factor: what one
        record adds is no longer, so units do not depend on the query.
        """
        return FINENESS if self.sums == "narrowing" else 1

    def factor_of(self, arrays: Mapping[str, Any]) -> int:
        """Return the factor of a Lloyd round's sums, from the arrays of its query or state."""
        return int(arrays[FACTOR][0]) if FACTOR in arrays else self.fineness

    @property
    def largest_cost(self) -> int:
        """What one record can add to the cost, in squared grid units."""
        if self.radius is not None:
            return self.radius**2
        return squared_bound(self.domain, self.fraction_bits)

    def _block_units(self, round_number: int) -> dict[str, float]:
        """Return the unit of every block; of second moments, that of the diagonal."""
        one, q = float(2**self.fraction_bits), self.fraction_bits
        bound: float = self.domain.l2_bound(q)
        if round_number > LIFT and self.radius is not None:
            bound = float(self.fineness * self.radius)
        return {
            MOMENTS: float(squared_bound(self.domain, q, q - moment_bits(q))),
            SUMS: bound,
            COUNTS: one,
            SPREAD: float(self.largest_cost >> q),
            COST: float(self.fineness**2 * self.largest_cost >> q),
        }

    def _has_spread(self, round_number: int) -> bool:
        return self.sums == "narrowing" and round_number == N_INITIAL + 1

    def _has_cost(self, round_number: int) -> bool:
        return self.cost and round_number == self.n_rounds
