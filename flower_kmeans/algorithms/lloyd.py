"""Lloyd's algorithm over absolute sums: exact, with Laplace noise, or with Gaussian noise.

A record adds to the sum and the count of one cluster only. So all sums together change
by at most its norm, and all counts by one (docs/guarantees, Theorem 12).
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

import mpmath
import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans.algorithms import base
from flower_kmeans.algorithms.feasibility import with_capacity
from flower_kmeans.algorithms.last_cost import LastCost, LastSums
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics import cost as costs
from flower_kmeans.algorithms.numerics.assignment import cluster_sums
from flower_kmeans.algorithms.numerics.cost import COST
from flower_kmeans.algorithms.numerics.initialization import sphere_packing
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    centroids_in,
    fold,
    into_domain,
    quotients,
    to_grid,
)
from flower_kmeans.algorithms.numerics.projection import squared_bound
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.algorithms.weights import planned_total
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.canonical import array_from_text, array_to_text
from flower_kmeans.data.domain import Box, Domain, GridRecords, Sphere
from flower_kmeans.data.records import check_records
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.parameters import (
    FLAG,
    ParameterKind,
    drafted,
    integer,
    is_auto,
    left_out,
    whole,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.privacy.release import MAX_PARTS

# largest k^2 d of a sphere packing, which compares all pairs in a quarter of a minute
MAX_PACKING = 2**33
FEWEST_AUTO_ROUNDS = 2
MOST_AUTO_ROUNDS = 7
# most different half widths of columns for which SuLloyd accounts for each column
MAX_WIDTHS = 16
# typical coordinate of a centroid, as a fraction of the half width (Su et al.)
RHO = 0.225
TARGET_ERROR = 0.004  # squared error per round that automatic rounds accept (Su et al.)

Points = tuple[tuple[float, ...], ...]


def _check_points(name: str, value: Any) -> Any:
    """Require rows of numbers. Their number depends on other parameters."""
    if not isinstance(value, tuple) or not all(isinstance(row, tuple) for row in value):
        raise ConfigurationTypeError(
            f"Expected {name} as rows of numbers. Got {type(value).__name__} instead."
        )
    return value


_POINTS = ParameterKind(_check_points, array_to_text)


@dataclass(frozen=True, kw_only=True)
class LloydFamily(base.Algorithm):
    """Base of all Lloyd algorithms: parameters, their checks, sums and counts, and the cost.

    The strategies document the parameters. ``initial`` are public centroids in the
    user's units, (k, d). By default they come from a sphere packing.
    """

    replayable: ClassVar[bool] = True
    can_miss_sums: ClassVar[bool] = True  # a lost round is an iteration less
    weighs_in_one_pass: ClassVar[bool] = True
    HAS_COST: ClassVar[bool] = False
    """Whether the algorithm can release the cost."""

    n_rounds: Annotated[int, whole(1, base.MAX_ROUNDS, auto=True)]
    initial: Annotated[Points | None, _POINTS] = None
    cost: Annotated[bool, left_out(FLAG)] = False

    @classmethod
    def planned(
        cls,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        n_rounds: int | Literal["auto"] = "auto",
        initial: ArrayLike | None = None,
        **options: Any,
    ) -> Self:
        """Return the algorithm for a user's options.

        ``n_rounds="auto"`` is the paper's number of rounds.
        """
        options["n_rounds"] = drafted(n_rounds, 1)
        draft = cls(**base.resolved(cls, n_clusters, domain, budget, options))
        if initial is not None:
            points = check_records(initial, domain.n_features, name="initial")
            draft = replace(draft, initial=_rows(points))
        if is_auto(n_rounds):
            draft = replace(draft, n_rounds=draft.suitable_rounds())
        draft = with_capacity(draft)
        draft.require_feasible()
        return draft

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        self._check_initial()
        if self.cost and not self.HAS_COST:
            raise ConfigurationError(
                f"Expected cost=False for {self.name!r}, which does not release the cost. "
                "Got cost=True instead."
            )

    def _check_initial(self) -> None:
        """Require initial centroids of shape (k, d), if there are any."""
        if self.initial is None:
            return
        d = self.domain.n_features
        points = check_records(self.initial, d, name="initial")
        if len(points) != self.n_clusters:
            raise ConfigurationError(
                f"Expected initial centroids of shape ({self.n_clusters}, {d}). "
                f"Got {points.shape} instead."
            )
        if len(self.domain.counted(points)) < len(points):
            raise ConfigurationError(
                "Expected initial centroids with a direction on a Sphere. "
                "Got one of length zero instead."
            )

    def require_feasible(self) -> None:
        """Refuse runs as `Algorithm` does, too large packings, and a cost below one step."""
        if self.cost and self.block_sensitivities(self.n_rounds)[COST] < 1:
            raise ConfigurationError(
                f"Expected a radius whose square is at least one grid step of 2^-"
                f"{self.fraction_bits} with cost=True. Got a smaller one."
            )
        super().require_feasible()
        k = self.n_clusters
        d = self.domain.n_features
        if self.initial is None and k * k * d > MAX_PACKING:
            raise ConfigurationError(
                f"Expected n_clusters and columns with k^2 d <= {MAX_PACKING} where no initial "
                f"centroids are given. Got n_clusters={k} and {d} columns instead."
            )
        _ = self._initial_grid  # raises if the centroids cannot be placed

    @abstractmethod
    def suitable_rounds(self) -> int:
        """Return the paper's number of rounds. It does not depend on ``n_rounds``.

        The formula uses N only relative to the noise's standard deviation. With
        ``unit="client"`` this is ``clip`` times as large, so ``n_records / clip``
        replaces N.
        """

    @abstractmethod
    def _releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases without the cost.

        Noise multipliers are relative to those of other rounds.
        """

    def _sum_sensitivity(self, round_number: int) -> float:
        """Return the sensitivity of the sums for one record, in grid units."""
        return self.domain.l2_bound(self.fraction_bits)

    def _reach(self, round_number: int) -> int | None:
        """Return the radius of a round's offsets, or ``None`` if sums are of records."""
        return None

    def _into_domain(self, points: IntArray) -> IntArray:
        """Return the centroids of the next round, (k, d): reflected at the walls.

        On a sphere they keep their directions, which a reflection would change.
        """
        if isinstance(self.domain, Sphere):
            return centroids_in(points, self.domain, self.fraction_bits)
        return self._reflected(points)

    def _reflected(self, points: IntArray) -> IntArray:
        """Return points, (k, d), reflected at the walls of the domain's box."""
        inside = fold(points, self._half_widths)
        return into_domain(inside, self.domain, self.fraction_bits)

    def layout(self, round_number: int) -> Layout:
        """Return the layout: sums (k, d), counts (k,), and in the last round a cost (1,).

        The cost needs the option ``cost``.
        """
        # All blocks have one grid: noise shares of counts need a standard deviation of
        # several grid units, too.
        k = self.n_clusters
        d = self.domain.n_features
        q = self.fraction_bits
        blocks = Block(SUMS, (k, d), q), Block(COUNTS, (k,), q)
        if not self._has_cost(round_number):
            return Layout(blocks)
        return Layout((*blocks, Block(COST, (1,), q)))

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases. The mu^2 of the cost is 0.02 of all others together."""
        found = self._releases(round_number)
        if not self._has_cost(round_number):
            return found
        # fsum is exact: clients compare the plan that they compute with the server's
        # plan bit by bit.
        others = math.fsum(
            1 / release.noise_multiplier**2
            for t in range(1, self.n_rounds + 1)
            for release in self._releases(t)
        )
        multiplier = 1 / math.sqrt(costs.COST_SHARE * others)
        return (*found, Release(COST, "gaussian", "l2", multiplier, (COST,)))

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the initial centroids: given ones, or a sphere packing. ``rng`` is not used."""
        return State(0, {"centroids": self._initial_grid.copy()})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the array of a query: ``centroids``, (k, d), in grid units."""
        limit = self._free_boxes * self._half_widths
        shape = self.n_clusters, self.domain.n_features
        return {"centroids": Range(shape, -limit, limit)}

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the sensitivity of every block of a round for one record, in grid units."""
        sensitivities = {
            SUMS: self._sum_sensitivity(round_number),
            COUNTS: float(2**self.fraction_bits),
        }
        if self._has_cost(round_number):
            sensitivities[COST] = float(self.largest_cost >> self.fraction_bits)
        return sensitivities

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return each cluster's sum and number of records, and the cost if it is released."""
        radius = self._reach(query.round)
        largest = self.largest_cost if self._has_cost(query.round) else None
        sums, counts, squares = summed(
            records, query.arrays["centroids"], radius, largest
        )
        blocks = {SUMS: sums, COUNTS: counts << self.fraction_bits}
        return Statistic(blocks if largest is None else {**blocks, COST: squares})

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits on sums and counts of records, or of their offsets."""
        number = state.round + 1
        most = float(self.largest_cost >> self.fraction_bits)
        totals = {COST: most} if self._has_cost(number) else None
        radius = self._reach(number)
        if radius is None:
            return Meaning(
                sums=SUMS,
                length=self.domain.l2_bound(self.fraction_bits),
                widths=self._half_widths,
                offsets=False,
                all_count=True,
                totals=totals,
            )
        return Meaning(
            sums=SUMS,
            length=float(radius),
            widths=None,
            offsets=True,
            all_count=False,
            totals=totals,
        )

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state with the noisy means. A too small cluster keeps its centroid."""
        counts = answer.blocks[COUNTS]
        means, usable = quotients(
            answer.blocks[SUMS], counts, self.fraction_bits, MIN_COUNT
        )
        moved = self._into_domain(to_grid(means))
        old = state.arrays["centroids"]
        number = state.round + 1
        centroids = np.where(usable[:, None], moved, old)
        kept = self._kept_for_cost(number, old, answer)
        return State(number, {"centroids": centroids, "counts": counts.copy(), **kept})

    def size_noise(self, all_answered: bool) -> float | None:
        """Return the planned noise of a size, in records; ``None`` with a clip."""
        return base.noise_of_counts(self)

    @property
    def last_cost(self) -> LastCost | None:
        """The cost at the result; ``None`` unless the last round releases it."""
        if not self.cost:
            return None
        noise = self.noise_of(self.n_rounds)
        return LastCost(self.domain, self.fraction_bits, noise, self._last_sums)

    def _last_sums(self, state: State) -> LastSums:
        """Return how to read the sums of the last round."""
        return LastSums(is_relative=self._reach(self.n_rounds) is not None)

    @classmethod
    def read_config(cls, config: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
        """Return the parameters of a run document."""
        values = super().read_config(config, domain)
        if "initial" in values:
            k = integer("n_clusters", values["n_clusters"], 1, base.MAX_CLUSTERS)
            shape = (k, domain.n_features)
            values["initial"] = _rows(array_from_text(values["initial"], shape))
        return values

    def _has_cost(self, round_number: int) -> bool:
        return self.cost and round_number == self.n_rounds

    def _kept_for_cost(
        self, round_number: int, before: IntArray, answer: Statistic
    ) -> dict[str, IntArray]:
        """Return further arrays of the last round, which `LastCost` needs."""
        if not self._has_cost(round_number):
            return {}
        # These are copies: the answer's blocks are parts of a vector that its owner may
        # reuse.
        kept = {name: answer.blocks[name].copy() for name in (SUMS, COST)}
        if self._reach(round_number) is not None:
            kept["before"] = before.copy()
        return kept

    @property
    def _planning_records(self) -> float | None:
        """N in the papers' formulas for the number of rounds."""
        total = planned_total(self)
        if total is None:
            return None
        # The formulas use N only relative to the noise's standard deviation, which has
        # the clip as a factor.
        return total / (self.clip or 1)

    @property
    def largest_cost(self) -> int:
        """Largest contribution of one record to the cost, in squared grid units."""
        return squared_bound(self.domain, self.fraction_bits)

    @property
    def _free_boxes(self) -> int:
        """Largest absolute coordinate of a centroid, in half widths of the box."""
        return 1

    @cached_property
    def _half_widths(self) -> IntArray:
        return self.domain.grid_half_widths(self.fraction_bits)

    @cached_property
    def _initial_grid(self) -> IntArray:
        if self.initial is not None:
            unit = self.domain.place(np.array(self.initial))
            return self.domain.quantise(unit, self.fraction_bits).astype(np.int64)
        # A packing takes seconds, and all simulated clients of a process need the same.
        packed = _packed(self.n_clusters, tuple(self._half_widths.tolist()), self.seed)
        return centroids_in(packed, self.domain, self.fraction_bits)

    @property
    def _mu(self) -> float:
        """Mu of a Gaussian mechanism with the budget. It is infinite without privacy."""
        if self.budget.epsilon is None or self.budget.delta is None:
            return math.inf
        return mu_of_budget(self.budget.epsilon, self.budget.delta)


@register
@dataclass(frozen=True, kw_only=True)
class LloydAlgorithm(LloydFamily):
    """Lloyd's algorithm without noise. NOT PRIVATE.

    The centroids equal those of Lloyd's algorithm on the pooled records.
    """

    name: ClassVar[str] = "lloyd"

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.budget.is_private:
            raise ConfigurationError(
                "Expected a budget with epsilon=None for Lloyd, which adds no noise. "
                f"Got epsilon={self.budget.epsilon!r} instead."
            )

    def suitable_rounds(self) -> int:
        """Return the largest number of rounds of the papers, because there is no noise."""
        return MOST_AUTO_ROUNDS

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        return ()


@register
@dataclass(frozen=True, kw_only=True)
class GLloydAlgorithm(LloydFamily):
    """Lloyd's algorithm with Gaussian noise on absolute sums and counts.

    Formal guarantee: one record changes all sums together by at most
    ``domain.l2_bound`` in l2, and all counts together by one. The plan is exactly
    mu-GDP (docs/guarantees, Theorem 15).

    References
    ----------
    FastLloyd, section 6.1.2 and appendix B.1.
    """

    name: ClassVar[str] = "glloyd"
    HAS_COST: ClassVar[bool] = True

    def suitable_rounds(self) -> int:
        """Return the number of rounds by FastLloyd's appendix B.1."""
        k = self.n_clusters
        d = self.domain.n_features
        spread = 2 * RHO + math.sqrt(d)
        work = k**3 * d * spread * spread
        return auto_rounds(self._mu, self._planning_records, work, TARGET_ERROR)

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        root = math.sqrt(self.domain.n_features)
        spread = 2 * RHO + root
        return (
            Release(SUMS, "gaussian", "l2", math.sqrt(spread / root), (SUMS,)),
            Release(COUNTS, "gaussian", "l2", math.sqrt(spread / (2 * RHO)), (COUNTS,)),
        )


@register
@dataclass(frozen=True, kw_only=True)
class SuLloydAlgorithm(LloydFamily):
    """Lloyd's algorithm with Laplace noise on absolute sums and counts (Su et al. 2016).

    Formal guarantee: one record changes all sums together by at most
    ``domain.l1_bound`` in l1, and all counts together by one. With ``delta=0`` the run
    is purely differentially private. With a positive delta and a
    box, each column of the sums is accounted for separately, which needs less noise if
    there are many columns (docs/guarantees, Theorems 15 and 46). ``unit="client"`` has
    the joint bound.
    """

    name: ClassVar[str] = "sulloyd"

    def suitable_rounds(self) -> int:
        """Return the number of rounds by Su et al."""
        n_records = self._planning_records
        if self.budget.epsilon is None or n_records is None:
            return MOST_AUTO_ROUNDS
        k = self.n_clusters
        d = self.domain.n_features
        spread = d + count_share(d)
        error = math.sqrt(500 * k**3 * spread * spread * spread) / n_records
        return in_papers_range(self.budget.epsilon / error)

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        d = self.domain.n_features
        parts = self._columns
        # Su et al.'s ratio of the epsilons, for either sensitivity of the sums.
        sums = self.domain.l1_bound(self.fraction_bits) / (
            d * self._sum_sensitivity(round_number)
        )
        return (
            Release(SUMS, "laplace", "linf" if parts else "l1", sums, (SUMS,), parts),
            Release(COUNTS, "laplace", "l1", 1 / count_share(d), (COUNTS,)),
        )

    def _sum_sensitivity(self, round_number: int) -> float:
        if self._columns:
            return float(self._half_widths.max())
        return self.domain.l1_bound(self.fraction_bits)

    @cached_property
    def _columns(self) -> tuple[tuple[float, int], ...]:
        """Pairs of a half width, over the largest, and the number of columns that have it.

        It is empty if the sums have one joint bound in l1.
        """
        # With delta 0, accounting by column saves nothing. A ball, a sphere or a clip
        # bounds all columns together, and not each. A person can change several words of
        # a column, which is no worse than one word by as much (docs/guarantees, Theorem
        # 46).
        pure = not self.budget.is_private or self.budget.delta == 0
        if pure or self.budget.protects_clients or not isinstance(self.domain, Box):
            return ()
        widths, numbers = np.unique(self._half_widths, return_counts=True)
        pairs = zip((widths / widths.max()).tolist(), numbers.tolist(), strict=True)
        columns = tuple((width, number) for width, number in pairs if width > 0)
        # With too many different half widths the composition would take long.
        if (
            len(columns) > MAX_WIDTHS
            or self.domain.n_features * self.n_rounds > MAX_PARTS
        ):
            return ()
        return columns


def summed(
    records: GridRecords, centroids: IntArray, radius: int | None, largest: int | None
) -> tuple[IntArray, IntArray, IntArray]:
    """Return sums (k, d), counts (k,) and squares (1,) of the records by nearest centroid.

    Parameters
    ----------
    records : GridRecords
    centroids : ndarray of shape (k, d), int64
    radius : int or None
        In grid units. With it, sums are of offsets from the centroids, and only records
        within the radius count. The test is exact, so no offset is longer.
    largest : int or None
        Most squared grid units that one record adds to the squares. Without it, squares
        are 0.
    """
    radius2 = None if radius is None else radius * radius
    sums, counts = cluster_sums(records, centroids, radius2)
    references = np.zeros_like(centroids[:1])  # the origin
    if radius is not None:
        references = centroids
        sums = sums - counts[:, None] * centroids
    total = 0
    if largest is not None:
        total = costs.squared_distances(records, references, largest, radius2)
    return sums, counts, np.array([total], dtype=np.int64)


def auto_rounds(mu: float, n_records: float | None, work: float, error: float) -> int:
    """Return ``error * N^2 mu^2 / work`` as a number of rounds in the papers' range."""
    if mu == math.inf or n_records is None:
        return MOST_AUTO_ROUNDS
    return in_papers_range(error * n_records * n_records * (mu * mu) / work)


def in_papers_range(rounds: float) -> int:
    """Return a whole number of rounds within the papers' range."""
    return int(min(max(rounds, FEWEST_AUTO_ROUNDS), MOST_AUTO_ROUNDS))


def _rows(points: FloatArray) -> Points:
    """Return points (k, d) as rows of numbers."""
    # Adding 0 removes negative zeros, so equal algorithms have equal documents.
    return tuple(tuple(row) for row in (points + 0.0).tolist())


def count_share(d: int) -> float:
    """Return (4 d rho^2)^(1/3), the epsilon of counts where sums have d (Su et al.)."""
    with mpmath.workprec(120):  # all processors get the same digits, unlike with pow
        return float(mpmath.root(mpmath.mpf(4 * d) * mpmath.mpf(RHO) ** 2, 3))


@lru_cache(maxsize=4)
def _packed(n_clusters: int, half_widths: tuple[int, ...], seed: int) -> IntArray:
    packed = sphere_packing(n_clusters, np.array(half_widths, dtype=np.int64), seed)
    packed.setflags(write=False)
    return packed
