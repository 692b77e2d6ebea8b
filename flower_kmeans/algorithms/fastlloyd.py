"""FastLloyd: Lloyd's algorithm over relative sums within a radius (FastLloyd, section 5).

A record adds its offset from the centroid, which is no longer than the radius (theorem
5.1). In the paper, records farther away do not count. With ``relocation``, the default,
their offsets are clipped, and the sums also include the nearness of records, at no
privacy cost (docs/guarantees, Theorem 13).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, ClassVar, Literal

import mpmath
import numpy as np

from flower_kmeans.algorithms import lloyd
from flower_kmeans.algorithms.last_cost import LastSums
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import postprocess
from flower_kmeans.algorithms.numerics.cells import Cells
from flower_kmeans.algorithms.numerics.cost import COST
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    centroids_in,
    clip_rows,
    into_domain,
    quotients,
    to_grid,
)
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.relocation import (
    FULL,
    n_steps,
    public_directions,
    relocated,
)
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.algorithms.weights import planned_total
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords, Sphere, row_sums
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import FLAG, POSITIVE, choice
from flower_kmeans.privacy.plan import Release

NEARNESS = "nearness"  # the block of 1 - |u|^2, where u is an offset over the radius
MOST_ROUNDS = 8  # largest automatic number of rounds with relocation
# a round's radius over the root mean square of the offsets in the round before
RADIUS_FACTOR = 1.25
# While a cluster has clearly distant records, a radius is at least this times the one
# before. Else it would follow the many records of large clusters, and no centroid could
# reach distant small ones (docs/tables/losses.md, "Clusters of unequal sizes").
LEAST_DECAY = 0.7
# Offsets of a cluster are clear from this many standard deviations of their noise on
CLEAR_OFFSETS = 2.0
# Sums are weighted below this signal, N mu / (k sqrt d). Above it, weights would save
# little noise, and would bias means towards near records.
WEIGHTED_BELOW = 32.0


@register
@dataclass(frozen=True, kw_only=True)
class FastLloydAlgorithm(lloyd.LloydFamily):
    """Radius-constrained Lloyd with Gaussian noise on relative sums and counts.

    Formal guarantee: without relocation, one record changes all sums of round t
    together by at most ``radius_of(t)`` in l2, and all counts together by one. The plan
    uses the radius of each round as sensitivity, and is exactly mu-GDP
    (docs/guarantees, Theorem 14). With relocation, sums are relative to the round's
    radius, and one record changes sums and nearness together by at most 1
    (docs/guarantees, Theorem 13).

    `strategies.FastLloyd` documents the parameters.
    """

    name: ClassVar[str] = "fastlloyd"
    HAS_COST: ClassVar[bool] = True

    alpha: Annotated[float, POSITIVE] = 0.8
    radius: Annotated[Literal["step", "constant"], choice("step", "constant")] = "step"
    postprocess: Annotated[
        Literal["fold", "truncate", "none"], choice("fold", "truncate", "none")
    ] = "fold"
    relocation: Annotated[bool, FLAG] = True

    def radius_of(self, round_number: int) -> int:
        """Return the radius of a round, in whole grid units.

        With relocation it is the largest radius that the round may have.
        """
        return self._first_radius if round_number == 1 else self._radius

    def layout(self, round_number: int) -> Layout:
        """Return the layout of all Lloyd algorithms, and with relocation nearness, (k,)."""
        layout = super().layout(round_number)
        if not self.relocation:
            return layout
        nearness = Block(NEARNESS, (self.n_clusters,), self.fraction_bits)
        sums, *others = layout.blocks
        return Layout((sums, nearness, *others))

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the initial centroids, and with relocation the radius of round 1."""
        state = super().initial_state(rng)
        if not self.relocation:
            return state
        return State(0, {**state.arrays, "radius": np.array([self.radius_of(1)])})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the ranges of ``centroids``, (k, d), and with relocation ``radius``, (1,).

        Both are in grid units.
        """
        ranges = super().query_ranges(round_number)
        if not self.relocation:
            return ranges
        return {**ranges, "radius": Range((1,), 1, self.radius_of(round_number))}

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return sums of offsets from the centroids, and counts.

        Without relocation, only records within the radius count. With relocation, all
        records count. Their offsets are divided by the radius and clipped to length 1,
        and nearness is 1 minus the squared length. In weighted rounds each offset is
        multiplied by the square root of 1 plus its nearness.
        """
        # Distances to centroids outside the box must stay exact.
        if self.postprocess == "none":
            records = _WiderGrid(records)
        if not self.relocation:
            return super().statistic(query, records)
        q = self.fraction_bits
        weighted = self._is_weighted(query.round)
        cells = query.kept.once(_cells, query)
        found = cells.sums(records, q, weighted)
        blocks = {SUMS: found.sums, NEARNESS: found.slacks, COUNTS: found.counts << q}
        if self._has_cost(query.round):
            # count - nearness is 1 - (1 - |u|^2) = |u|^2 for a record
            blocks[COST] = np.array([(blocks[COUNTS] - found.slacks).sum()])
        return Statistic(blocks)

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits on sums of offsets, nearness and counts."""
        found = super().meaning(state, answer)
        if not self.relocation:
            return found
        # Lengths are in radii, on the grid. A weighted offset is at most 1 as well:
        # |u| sqrt(2 - |u|^2) <= 1.
        return replace(
            found,
            length=2.0**self.fraction_bits,
            unit=float(state.arrays["radius"][0]) * 2.0**-self.fraction_bits,
            all_count=True,
            shares=(NEARNESS,),
        )

    def update(
        self,
        state: State,
        answer: Statistic,
        rng: np.random.Generator | None = None,
    ) -> State:
        """Return the state with each centroid moved by its mean offset.

        No centroid moves by more than the round's radius. A cluster whose noisy count
        is too small to divide by keeps its centroid.
        """
        counts = answer.blocks[COUNTS]
        old = state.arrays["centroids"]
        moves, _ = quotients(answer.blocks[SUMS], counts, self.fraction_bits, MIN_COUNT)
        number = state.round + 1
        radius = self.radius_of(number)
        if self.relocation:
            radius = int(state.arrays["radius"][0])
            # Sums are in radii, and centroids in grid units.
            moves *= radius * 2.0**-self.fraction_bits
            if self._is_weighted(number):
                mean = answer.blocks[NEARNESS] / np.maximum(
                    counts, 2**self.fraction_bits
                )
                # Divide by the weight of a record of mean nearness.
                moves /= np.sqrt(1 + np.clip(mean, 0.0, 1.0))[:, None]
        clipped = clip_rows(moves, float(radius))
        centroids = self._into_domain(old + to_grid(clipped))
        if number == self.n_rounds and isinstance(self.domain, Sphere):
            centroids = centroids_in(centroids, self.domain, self.fraction_bits)
        arrays = {"counts": counts.copy(), **self._kept_for_cost(number, old, answer)}
        if self.relocation:
            # After the last round nothing is relocated: sizes and cost belong to the
            # released centroids.
            if number < self.n_rounds:
                centroids, radius = self._relocated(
                    number, centroids, clipped, radius, answer
                )
            arrays["radius"] = np.array([radius])
        return State(number, {"centroids": centroids, **arrays})

    def _relocated(
        self,
        number: int,
        centroids: IntArray,
        moves: FloatArray,
        radius: int,
        answer: Statistic,
    ) -> tuple[IntArray, int]:
        """Return the centroids and the radius of the round after ``number``."""
        step = 2.0**-self.fraction_bits
        square = float(radius * radius)
        sizes = answer.blocks[COUNTS].astype(np.float64) * step
        nearness = answer.blocks[NEARNESS].astype(np.float64) * step
        noise = dict.fromkeys((SUMS, COUNTS), 0.0)
        if self.budget.is_private:
            scale = self.clip or 1.0
            releases = self.plan().rounds[number - 1]
            noise = {
                release.name: release.noise_multiplier * scale for release in releases
            }
        held = np.maximum(sizes, 0.0)
        # If a centroid moves by its mean offset, the mean squared distance falls by
        # |move|^2.
        scatter = square * (held - nearness) - held * row_sums(moves * moves)
        both = square * math.sqrt(
            noise[COUNTS] * noise[COUNTS] + noise[SUMS] * noise[SUMS]
        )
        shape = 2 * n_steps(self.n_clusters), self.domain.n_features
        directions = public_directions(self.seed, number, shape)
        inside = partial(
            into_domain, domain=self.domain, fraction_bits=self.fraction_bits
        )
        errors = noise[COUNTS], both
        following = relocated(centroids, sizes, scatter, errors, directions, inside)
        return following, self._next_radius(radius, nearness, sizes, noise)

    def _next_radius(
        self,
        radius: int,
        nearness: FloatArray,
        sizes: FloatArray,
        noise: Mapping[str, float],
    ) -> int:
        """Return the next radius from the mean square of a round's clipped offsets.

        ``noise`` has the standard deviations of nearness, as ``sums``, and ``counts``.
        """
        # Clipped clients count as fewer records than they have, and only counts show how
        # many. Records missing for other reasons look far away, which makes the radius
        # a little longer.
        planned = planned_total(self)
        if planned is None or self.clip is not None:
            total = math.fsum(sizes)
        else:
            total = float(planned)
        total = max(total, 1.0)
        part = max(
            1 - math.fsum(nearness) / total,
            # the mean square that noise alone could fake
            math.sqrt(self.n_clusters) * noise[SUMS] / total,
            0.0,
        )
        wanted = RADIUS_FACTOR * radius * math.sqrt(min(part, 1.0))
        least = self._least_radius(radius, nearness, sizes, noise)
        following = math.floor(max(wanted, least))
        # The radius is at least 1: offsets are divided by it, and a query requires it.
        return max(min(following, self._radius), 1)

    def _least_radius(
        self,
        radius: int,
        nearness: FloatArray,
        sizes: FloatArray,
        noise: Mapping[str, float],
    ) -> float:
        """Return the least next radius, which follows from the most distant records.

        They are those of the cluster with the largest mean square of clipped offsets,
        among clusters where it is clear of the noise.
        """
        squares = sizes - nearness
        deviation = math.sqrt(noise[SUMS] * noise[SUMS] + noise[COUNTS] * noise[COUNTS])
        is_full = sizes >= FULL * noise[COUNTS]
        is_clear = squares > CLEAR_OFFSETS * deviation
        means = squares / np.maximum(sizes, 2.0**-self.fraction_bits)
        largest = float(np.where(is_full & is_clear, means, 0.0).max())
        own_radius = RADIUS_FACTOR * radius * math.sqrt(min(largest, 1.0))
        return min(own_radius, LEAST_DECAY * radius)

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        d = self.domain.n_features
        if self.cost and self.postprocess == "none":
            raise ConfigurationError(
                "Expected postprocess 'fold' or 'truncate' with cost=True, whose distances are "
                "those between points of the domain. Got postprocess='none' instead."
            )
        if isinstance(self.domain, Sphere) and self.postprocess == "none":
            raise ConfigurationError(
                "Expected postprocess 'fold' or 'truncate' on a Sphere, whose centroids are "
                "directions with either. Got postprocess='none' instead."
            )
        # Centroids that may leave the box need exact distances in a larger box.
        if self.postprocess == "none" and d * 4 ** (self.fraction_bits + 2) > 2**53:
            raise ConfigurationError(
                f"fraction_bits={self.fraction_bits} is too fine for {d} columns and "
                "postprocess='none': take one bit less, or 'fold'."
            )
        if min(self._radius, self._first_radius) < 1:
            raise ConfigurationError(
                f"Expected alpha so large that the radius is at least one grid step of "
                f"2^-{self.fraction_bits}. Got {self.alpha!r} instead."
            )

    def suitable_rounds(self) -> int:
        """Return the paper's number, or with relocation ``clip(mu N / (k sqrt d), 2, 8)``."""
        if self.relocation:
            return int(min(max(self._signal, lloyd.FEWEST_AUTO_ROUNDS), MOST_ROUNDS))
        eta = self._radius * 2.0**-self.fraction_bits
        spread = 1 + math.sqrt(4 * self.domain.n_features)
        work = self.n_clusters**3 * (eta * eta) * (spread * spread)
        return lloyd.auto_rounds(
            self._mu, self._planning_records, work, 4 * lloyd.TARGET_ERROR
        )

    def _is_weighted(self, round_number: int) -> bool:
        """Return whether a round's sums are weighted.

        The round with the cost is not, because the cost needs plain sums.
        """
        wanted = self.relocation and self._signal < WEIGHTED_BELOW
        return wanted and not self._has_cost(round_number)

    @cached_property
    def _signal(self) -> float:
        """N mu / (k sqrt d), divided by the clip if clients are protected.

        It is infinite without privacy.
        """
        if self._planning_records is None or self._mu == math.inf:
            return math.inf
        root = math.sqrt(self.domain.n_features)
        return self._mu * self._planning_records / (self.n_clusters * root)

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        # Sensitivities are the round's radius, so equal multipliers give every round an
        # equal part of mu^2. Multipliers in proportion to 1 / sqrt(radius) minimise the
        # sum of squared errors of the centroids in all rounds. The 2 gives errors of
        # round 1, which later rounds repair, a quarter of the weight.
        share = 1.0
        if round_number == 1 and self.radius == "step" and not self.relocation:
            share = math.sqrt(2 * self._radius / self._first_radius)
        # This is (4 d)^(1/4) of the paper. IEEE 754 fixes the rounding of square roots,
        # but not of powers.
        ratio = math.sqrt(math.sqrt(4 * self.domain.n_features))
        covered = (SUMS, NEARNESS) if self.relocation else (SUMS,)
        return (
            Release(SUMS, "gaussian", "l2", share, covered),
            Release(COUNTS, "gaussian", "l2", share * ratio, (COUNTS,)),
        )

    def _sum_sensitivity(self, round_number: int) -> float:
        one = 2**self.fraction_bits
        return float(one if self.relocation else self.radius_of(round_number))

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units."""
        sensitivities = super().block_sensitivities(round_number)
        if self.relocation:
            sensitivities[NEARNESS] = float(2**self.fraction_bits)
        return sensitivities

    def _last_sums(self, state: State) -> LastSums:
        """Return how to read the sums of the last round."""
        if not self.relocation:
            return super()._last_sums(state)
        # The cost is counts minus slacks. Slacks were rounded downward, so the cost was
        # rounded upward.
        unit = float(state.arrays["radius"][0]) * 2.0**-self.fraction_bits
        return LastSums(is_relative=True, unit=unit, rounding=-1)

    def _reach(self, round_number: int) -> int | None:
        return self.radius_of(round_number)

    def _into_domain(self, points: IntArray) -> IntArray:
        # On a sphere means stay in the unit ball between rounds: records are nearer to
        # them than to their directions, so fewer offsets are clipped
        # (docs/tables/directions.md).
        if self.postprocess == "fold":
            return self._reflected(points)
        if self.postprocess == "truncate":
            return into_domain(points, self.domain, self.fraction_bits)
        return postprocess.truncate(points, self._free_boxes * self._half_widths)

    @property
    def largest_cost(self) -> int:
        """Largest contribution of one record: the squared radius, in squared grid units.

        With relocation lengths are in radii, so it is 1 on the squared grid.
        """
        if self.relocation:
            return int(4**self.fraction_bits)
        return self.radius_of(self.n_rounds) ** 2

    @property
    def _free_boxes(self) -> int:
        return 2 if self.postprocess == "none" else 1  # `_WiderGrid` has one bit more

    @cached_property
    def _radius(self) -> int:
        """The radius of equation 25 in grid units, at most the domain's diameter."""
        return packing_radius(
            self.alpha, self.n_clusters, self.domain, self.fraction_bits
        )

    @cached_property
    def _first_radius(self) -> int:
        if self.radius == "constant":
            return self._radius
        half_diameter = math.floor(self.domain.l2_bound(self.fraction_bits))
        return (
            math.isqrt(half_diameter * self._radius)
            if self.relocation
            else half_diameter
        )


def _cells(query: Query) -> Cells:
    """Return the cells of a query, which all have the query's radius."""
    centroids = query.arrays["centroids"]
    return Cells(centroids, np.full(len(centroids), query.arrays["radius"][0]))


def packing_radius(
    alpha: float, n_clusters: int, domain: Domain, fraction_bits: int
) -> int:
    """Return ``alpha beta / (2 k^(1/d))`` in whole grid units, at most ``beta``.

    ``beta`` is the domain's diameter. The formula is FastLloyd's equation 25
    (docs/guarantees, Theorem 14).
    """
    half_diameter = domain.l2_bound(fraction_bits)
    with mpmath.workprec(160):  # all processors get the same digits, unlike with pow
        root = mpmath.root(n_clusters, domain.n_features)
        eta = mpmath.mpf(alpha) * mpmath.mpf(half_diameter) / root
        return int(mpmath.floor(min(eta, 2 * half_diameter) + mpmath.mpf(0.5)))


class _WiderGrid(GridRecords):
    """The same records on a grid with room for centroids up to twice as far out."""

    def __init__(self, records: GridRecords) -> None:
        self._inner = records
        self.fraction_bits = records.fraction_bits + 1
        self.weights = records.weights

    @property
    def shape(self) -> tuple[int, int]:
        return self._inner.shape

    def read(
        self, start: int, out: FloatArray, scratch: FloatArray | None = None
    ) -> None:
        self._inner.read(start, out, scratch)
