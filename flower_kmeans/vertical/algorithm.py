"""Lloyd's algorithm over records whose columns belong to different parties (docs/vertical.md).

Sums and counts of a round are one Gaussian release (docs/guarantees, Theorem 29),
calibrated to one record replaced by another. With a radius, the default, sums are sums of
offsets within it. This means less noise, and one more sign for each cluster.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from flower_kmeans.algorithms.fastlloyd import packing_radius
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Statistic
from flower_kmeans.algorithms.lloyd import FEWEST_AUTO_ROUNDS, LloydFamily
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.assignment import cluster_sums
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    clip_rows,
    into_domain,
    quotients,
    to_grid,
)
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.state import Query, State
from flower_kmeans.data.domain import Box, Domain, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import FLAG, integer, whole
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.release import Release
from flower_kmeans.vertical.moduli import MAX_CLUSTERS
from flower_kmeans.vertical.ring import SLOTS

MAX_RECORDS = 2**20
MAX_HOLDERS = 3
# largest norm of a record's soft memberships, up to 16 clusters
# (docs/guarantees, Theorem 30)
SOFT = 1.0016
# At least twelve standard deviations at the worst known records (docs/guarantees,
# Theorem 31).
_ERROR_ALONE = 0.005
_ERROR_PUBLIC = 0.039
_RANGE = 2.0**20.9  # below it an opened count or sum, noise included, does not wrap
_DEVIATIONS = 8.0
# standard deviation of a noise share, in records (docs/guarantees, Theorem 32)
_LEAST_SHARE = 0.1
_MOST_AUTO_ROUNDS = 5


def _require_parties(domain: Domain, budget: PrivacyBudget) -> None:
    """Require a domain and a budget of runs between parties."""
    if not isinstance(domain, Box):
        raise ConfigurationError(
            "Expected domain as a Box: each party clips its columns alone. "
            f"Got a {type(domain).__name__} instead."
        )
    if not budget.is_private:
        raise ConfigurationError(
            "Expected a private budget: encryption without noise protects nothing of the "
            "result. Got epsilon=None instead."
        )
    if isinstance(domain, Box) and domain.tighten is not None:
        raise ConfigurationError(
            "Expected a domain without tighten for VerticalKMeans: its parties scale and encrypt "
            f"their columns once, before any round. Got tighten={domain.tighten}."
        )
    if budget.unit != "record":
        raise ConfigurationError(
            "Expected a budget with unit='record': parties hold columns of the same records. "
            f"Got unit={budget.unit!r} instead."
        )


@register
@dataclass(frozen=True, kw_only=True)
class VerticalAlgorithm(LloydFamily):
    """Lloyd's algorithm with Gaussian noise on the sums and counts of joined columns.

    ``statistic`` needs all columns together. Parties compute it under encryption, with soft
    memberships.

    ``n_parties`` is N, at least 2, and ``key_holders`` H, 1 to ``min(N - 1, 3)``.
    `strategies.VerticalKMeans` documents the other parameters.
    """

    name: ClassVar[str] = "vertical"
    kind: ClassVar[str] = "vertical"
    takes_weights: ClassVar[bool] = False

    n_parties: Annotated[int, whole()] = 2
    key_holders: Annotated[int, whole()] = 1  # at most n_parties - 1
    # whether only records near a centroid count in its cluster
    radius: Annotated[bool, FLAG] = True

    @classmethod
    def planned(
        cls, n_clusters: int, domain: Domain, budget: PrivacyBudget, **options: Any
    ) -> Self:
        """Return the algorithm of a user's options. ``n_rounds="auto"`` is two to five rounds."""
        _require_parties(domain, budget)
        return super().planned(n_clusters, domain, budget, **options)

    def __post_init__(self) -> None:
        """Check every parameter: first domain and budget, then those of all Lloyd algorithms."""
        _require_parties(self.domain, self.budget)
        n_parties = integer("n_parties", self.n_parties, 2, self.domain.n_features)
        integer("key_holders", self.key_holders, 1, min(n_parties - 1, MAX_HOLDERS))
        n_clusters = integer("n_clusters", self.n_clusters, 2, MAX_CLUSTERS)
        integer("n_records", self.n_records, n_clusters, MAX_RECORDS)
        super().__post_init__()

    @cached_property
    def reach(self) -> int:
        """Largest norm that a counted record adds to the sums, in grid units.

        It is ``r``, the distance of the box's corners from its centre. With a radius it is
        ``r / k^(1/d)``.
        """
        if self.radius:
            return packing_radius(1.0, self.n_clusters, self.domain, self.fraction_bits)
        return math.ceil(self.domain.l2_bound(self.fraction_bits))

    @property
    def measured_error(self) -> float:
        """Part of `rho` for errors of CKKS, which is measured and not proved.

        It covers at least twelve standard deviations at the worst known records: six for
        each of two neighbouring data sets. It is larger for sums of offsets, which are
        released in smaller units.
        """
        error = (
            _ERROR_ALONE
            if self.n_parties == 2
            else _ERROR_PUBLIC * math.sqrt(self.key_holders)
        )
        chunks = -(-(self.n_records or MAX_RECORDS) // SLOTS)
        return (
            error
            * math.sqrt(chunks)
            * self.domain.l2_bound(self.fraction_bits)
            / self.reach
        )

    @property
    def rho(self) -> float:
        """Factor by which soft memberships and errors of CKKS increase a record's sensitivity."""
        return SOFT + self.measured_error

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return each cluster's sum and number of records, in exact arithmetic.

        With a radius only records within it count, and sums are sums of their offsets.
        """
        if not self.radius:
            return super().statistic(query, records)
        centroids = query.arrays["centroids"]
        sums, counts = cluster_sums(records, centroids, self.reach**2)
        offsets = sums - counts[:, None] * centroids
        return Statistic({SUMS: offsets, COUNTS: counts << self.fraction_bits})

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state with the means. A cluster with too small a count keeps its centroid."""
        if not self.radius:
            return super().update(state, answer, rng)
        counts = answer.blocks[COUNTS]
        old = state.arrays["centroids"]
        moves, _ = quotients(answer.blocks[SUMS], counts, self.fraction_bits, MIN_COUNT)
        moved = old + to_grid(clip_rows(moves, float(self.reach)))
        centroids = into_domain(moved, self.domain, self.fraction_bits)
        return State(state.round + 1, {"centroids": centroids, "counts": counts.copy()})

    def size_noise(self, all_answered: bool) -> float | None:
        """Return ``None``: soft memberships are not numbers of records."""
        return None

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits of soft sums and counts, with a tolerance for errors of CKKS."""
        found = super().meaning(state, answer)
        # A soft membership is at most `SOFT` and may be a little below 0.
        tolerance = 2 * (self.rho - 1) * (self.n_records or 0)
        found = replace(found, tolerance=tolerance)
        if not self.radius:
            return found
        length = float(self.reach)
        return replace(found, length=length, widths=None, offsets=True, all_count=False)

    def require_feasible(self) -> None:
        """Require a feasible run, also that no value wraps under encryption."""
        super().require_feasible()
        self.require_room()

    def require_room(self, noise_factor: float = 1.0) -> None:
        """Require that opened values do not wrap, except with probability 1e-14 each.

        Raises
        ------
        ConfigurationError
            If noise shares are too small, or values are too large.
        """
        multiplier = self.plan().rounds[0][0].noise_multiplier
        # This is the smallest noise share: with one colluder, H shares make the noise.
        share = 2 * self.rho * multiplier / math.sqrt(self.key_holders)
        if share < _LEAST_SHARE:
            raise ConfigurationError(
                f"Expected noise shares of at least {_LEAST_SHARE} records. Got {share:.2g}: "
                "take a smaller epsilon."
            )
        unit = max(self.block_sensitivities(1).values())
        step = 2.0**-self.fraction_bits
        noise = _DEVIATIONS * noise_factor * multiplier * unit * step
        largest = (self.n_records or 0) + noise
        if largest >= _RANGE:
            raise ConfigurationError(
                f"Expected n_records and noise below {_RANGE:.0f} together. Got {largest:.0f}: "
                "take a larger epsilon, or fewer rounds."
            )

    def suitable_rounds(self) -> int:
        """Return 2 to 5 rounds by signal over noise, because a round takes much work."""
        root = math.sqrt(self.domain.n_features)
        signal = self._mu * (self._planning_records or 0) / root
        rounds = max(signal / (4 * self.n_clusters), FEWEST_AUTO_ROUNDS)
        return int(min(rounds, _MOST_AUTO_ROUNDS))

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        return (Release(SUMS, "gaussian", "l2", 1.0, (SUMS, COUNTS)),)

    def _sum_sensitivity(self, round_number: int) -> float:
        return 2 * self.rho * self.reach

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units."""
        counts = 2 * self.rho * 2.0**self.fraction_bits
        return {SUMS: self._sum_sensitivity(round_number), COUNTS: counts}
