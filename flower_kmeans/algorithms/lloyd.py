"""Lloyd's algorithm over absolute sums: exact, with Laplace noise, with Gaussian noise.

Every round a client sends, for each cluster, the sum and the number of the records that are nearest
to its centroid. A record adds to one cluster only, so all sums together change by its norm at most
and all counts by one (docs/guarantees.md, "Lloyd family, one round").
"""

import math
import operator
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self

import mpmath
import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans.algorithms.base import (
    LIMIT,
    Block,
    FloatArray,
    IntArray,
    Query,
    Range,
    State,
    Statistic,
    register,
    require_capacity,
)
from flower_kmeans.algorithms.clipping import client_clip
from flower_kmeans.algorithms.cost import COST, squared_distances
from flower_kmeans.algorithms.costed import COUNTS as COUNTS
from flower_kmeans.algorithms.costed import MIN_COUNT as MIN_COUNT
from flower_kmeans.algorithms.costed import SUMS as SUMS
from flower_kmeans.algorithms.costed import CostOfLastRound
from flower_kmeans.algorithms.postprocess import fold, quotients, to_grid
from flower_kmeans.algorithms.projection import squared_bound
from flower_kmeans.assignment import check_exactness, cluster_sums
from flower_kmeans.canonical import array_from_text, array_to_text, real_from_text, real_to_text
from flower_kmeans.domain import Ball, Domain, GridRecords
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.initialization import sphere_packing
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import PrivacyPlan, Release, calibrate
from flower_kmeans.privacy.release import MAX_PARTS
from flower_kmeans.records import check_records

Rounds = int | Literal["auto"]

MAX_CLUSTERS = 10_000
MAX_ROUNDS = 1_000
MAX_WORDS = 2**22
"""Words of a round: 32 MiB of a message, and a few times that of a client's memory."""
MAX_RUN_WORDS = 2**27
"""Words of all rounds: a gigabyte that each client sends."""
MAX_PACKING = 2**33
"""k^2 d of a sphere packing, which compares all pairs of points: up to a quarter of a minute."""
MOST_AUTO_ROUNDS = 7
FEWEST_AUTO_ROUNDS = 2
OVERFLOW_PROBABILITY = 1e-9
MAX_WIDTHS = 16
"""Different half widths of the columns that SuLloyd accounts for one by one."""

RHO = 0.225
"""Typical share of the half width by which a centroid's coordinate differs from 0 (Su et al.)."""

TARGET_ERROR = 0.004
"""Squared error per round that the automatic number of rounds accepts (Su et al.)."""


@dataclass(frozen=True, init=False)
class LloydFamily(CostOfLastRound):
    """What all Lloyd algorithms share: parameters, their checks, and sums and counts.

    Parameters
    ----------
    n_clusters : int
        k, at most 10,000.
    domain : Box or Ball
        Public bounds and scaling.
    budget : PrivacyBudget
        For the whole run.
    n_records : int, optional
        Public planning figure for the total number of records. Required with a private budget.
    n_clients : int, optional
        Public planning figure for the number of clients. Required with a private budget of
        ``unit="client"``, and refused otherwise.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each release.
        Default: ``n_records / n_clients``.
    n_rounds : int or "auto"
        T; ``"auto"`` is the papers' rule. N enters it only over the noise's standard deviation,
        which with ``unit="client"`` is ``clip`` times that of one record: ``n_records / clip``
        takes the place of N there.
    seed : int
        Public randomness of the initial centroids, in [0, 2**53).
    fraction_bits : int
        q; the grid's step is ``2**-q`` of the scaled domain.
    initial : array-like of shape (k, d), optional
        Public initial centroids in the user's units; sphere packing otherwise.
    cost : bool
        Whether the last round also releases what `cost_estimate` needs; Gaussian noise only.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, parameters contradict each other, or sums could overflow.
    """

    replayable: ClassVar[bool] = True

    n_clusters: int
    domain: Domain
    budget: PrivacyBudget
    n_records: int | None
    n_clients: int | None
    clip: float | None
    n_rounds: int
    seed: int
    fraction_bits: int
    initial: tuple[tuple[float, ...], ...] | None
    cost: bool

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        n_records: int | None = None,
        n_clients: int | None = None,
        clip: float | None = None,
        n_rounds: Rounds = "auto",
        seed: int = 0,
        fraction_bits: int = 16,
        initial: ArrayLike | None = None,
        cost: bool = False,
    ) -> None:
        put = object.__setattr__  # the dataclass is frozen from here on
        put(self, "n_clusters", integer("n_clusters", n_clusters, 1, MAX_CLUSTERS))
        put(self, "domain", domain)
        put(self, "n_records", planned_records(n_records, self.n_clusters, budget))
        if n_clients is not None:
            n_clients = integer("n_clients", n_clients, 1, 2**53 - 1)
        put(self, "clip", client_clip(budget, self.n_records, n_clients, clip))
        put(self, "n_clients", n_clients)
        n_units = n_clients if budget.protects_clients else self.n_records
        put(self, "budget", budget if n_units is None else budget.resolved(n_units))
        put(self, "seed", integer("seed", seed, 0, 2**53 - 1))
        put(self, "fraction_bits", integer("fraction_bits", fraction_bits, 1, 25))
        check_exactness(domain.n_features, self.fraction_bits)
        put(self, "initial", _initial(initial, self.n_clusters, domain.n_features))
        put(self, "cost", cost)
        self._check_cost()
        self._check_size()
        self._check_parameters()
        rounds = self._auto_rounds() if isinstance(n_rounds, str) else n_rounds
        if isinstance(n_rounds, str) and n_rounds != "auto":
            raise ConfigurationError(
                f"Expected n_rounds as an integer or 'auto'. Got {n_rounds!r}."
            )
        put(self, "n_rounds", integer("n_rounds", rounds, 1, MAX_ROUNDS))
        words = self.n_rounds * self.words(1)
        if words > MAX_RUN_WORDS:
            raise ConfigurationError(
                f"Expected n_rounds so that each client sends at most {MAX_RUN_WORDS} words. "
                f"Got n_rounds={self.n_rounds}, which are {words} words."
            )
        self._require_visible_clip()
        self.require_capacity()
        _ = self._initial_grid  # placing the centroids can fail too

    # ------------------------------------------------------------------ what subclasses say

    @abstractmethod
    def _auto_rounds(self) -> int:
        """Return the papers' number of rounds."""

    def _check_parameters(self) -> None:
        """Check what a subclass adds; called before the number of rounds is known."""

    def _check_size(self) -> None:
        """Refuse sizes of hours and gigabytes: a client makes what a run document describes."""
        k, d = self.n_clusters, self.domain.n_features
        if k * (d + 1) > MAX_WORDS:
            raise ConfigurationError(
                f"Expected n_clusters and columns with k (d + 1) <= {MAX_WORDS} words. "
                f"Got n_clusters={k} and {d} columns instead."
            )
        if self.initial is None and k * k * d > MAX_PACKING:
            raise ConfigurationError(
                f"Expected n_clusters and columns with k^2 d <= {MAX_PACKING} where no initial "
                f"centroids are given. Got n_clusters={k} and {d} columns instead."
            )

    def _into_domain(self, points: IntArray) -> IntArray:
        """Return the centroids (k, d) that the next round uses."""
        return self._into_ball(fold(points, self._half_widths))

    # ------------------------------------------------------------------ the contract

    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return sums (k, d) and counts (k,), both on the grid of ``2**-fraction_bits``.

        And the cost, (1,), in the last round if it was asked for.

        One grid for both is simpler than two, and shares of distributed noise need a standard
        deviation of some grid units also for counts.
        """
        k, d = self.n_clusters, self.domain.n_features
        sums, counts = (
            Block(SUMS, (k, d), self.fraction_bits),
            Block(COUNTS, (k,), self.fraction_bits),
        )
        return (sums, counts, *self._cost_blocks(round_number))

    def plan(self) -> PrivacyPlan:
        """Return what each round releases, calibrated to the budget."""
        rounds = tuple(self.releases(t) for t in range(1, self.n_rounds + 1))
        return calibrate(self.budget, rounds, self.n_records, self.n_clients)

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the given initial centroids, or those of sphere packing. ``rng`` is not used."""
        return State(0, {"centroids": self._initial_grid.copy()})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the array of a query: ``centroids``, (k, d), in grid units."""
        limit = self._free_boxes * self._half_widths
        return {"centroids": ((self.n_clusters, self.domain.n_features), -limit, limit)}

    def record_units(self, round_number: int) -> FloatArray:
        """Return the sensitivities to one record, for every word of a round."""
        units, layout = self._block_units(round_number), self.layout(round_number)
        return np.concatenate([np.full(block.size, units[block.name]) for block in layout])

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return each cluster's sum and number of records; zeros for clusters without records."""
        centroids = query.arrays["centroids"]
        sums, counts = cluster_sums(records, centroids)
        blocks = {SUMS: sums, COUNTS: counts << self.fraction_bits}
        if self._has_cost(query.round):
            total = squared_distances(records, np.zeros_like(centroids[:1]), self.largest_cost)
            blocks[COST] = np.array([total], dtype=np.int64)
        return Statistic(blocks)

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the means; a cluster whose count is too small keeps its centroid."""
        counts = answer.blocks[COUNTS]
        means, usable = quotients(answer.blocks[SUMS], counts, self.fraction_bits, MIN_COUNT)
        moved = self._into_domain(to_grid(means))
        old, number = state.arrays["centroids"], state.round + 1
        centroids = np.where(usable[:, None], moved, old)
        kept = self._kept_for_cost(number, old, answer)
        return State(number, {"centroids": centroids, "counts": counts.copy(), **kept})

    def without_sum(self, state: State) -> State:
        """Return the same centroids: a lost round is an iteration less."""
        return State(state.round + 1, state.arrays)

    def centroids(self, state: State) -> FloatArray:
        """Return the centroids in the user's units, (k, d)."""
        grid = state.arrays["centroids"].astype(np.float64)
        return self.domain.from_unit(grid * 2.0**-self.fraction_bits)

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes of the last round, (k,), or ``None`` before it."""
        if "counts" not in state.arrays:
            return None
        return np.asarray(state.arrays["counts"].astype(np.float64) * 2.0**-self.fraction_bits)

    def to_config(self) -> dict[str, Any]:
        """Return the parameters for a run document; the number of rounds is the resolved one."""
        config: dict[str, Any] = {
            "name": self.name,
            "n_clusters": self.n_clusters,
            "n_rounds": self.n_rounds,
            "seed": self.seed,
            "fraction_bits": self.fraction_bits,
        }
        if self.n_records is not None:
            config["n_records"] = self.n_records
        if self.clip is not None:
            config |= {"n_clients": self.n_clients, "clip": real_to_text(self.clip)}
        if self.initial is not None:
            config["initial"] = array_to_text(self.initial)
        if self.cost:
            config["cost"] = True
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> Self:
        """Return the algorithm that ``to_config`` described."""
        return cls(domain=domain, budget=budget, **cls._parameters(config, domain, budget))

    @classmethod
    def _parameters(
        cls,
        config: Mapping[str, Any],
        domain: Domain,
        budget: PrivacyBudget,
        extra: frozenset[str] = frozenset(),
    ) -> dict[str, Any]:
        """Return constructor arguments of a configuration with exactly the expected fields."""
        required = {"name", "n_clusters", "n_rounds", "seed", "fraction_bits"} | extra
        if budget.protects_clients:
            required |= {"n_clients", "clip"}
        if not required <= set(config) <= required | {"n_records", "initial", "cost"}:
            raise ConfigurationError(f"The fields of algorithm {cls.name!r} are not as expected.")
        values = {name: value for name, value in config.items() if name != "name"}
        if "cost" in values and values["cost"] is not True:
            raise ConfigurationTypeError("cost must be left out of a run document, or be true.")
        if isinstance(values["n_rounds"], str):
            raise ConfigurationTypeError("n_rounds must be an integer in a run document.")
        if "clip" in values:
            values["clip"] = real_from_text(values["clip"])
        if "initial" in values:
            k = integer("n_clusters", values["n_clusters"], 1, MAX_CLUSTERS)
            values["initial"] = array_from_text(values["initial"], (k, domain.n_features))
        return values

    # ------------------------------------------------------------------ details

    def require_capacity(self, noise_factor: float = 1.0, limit: int = LIMIT) -> None:
        """Require that no word of a sum can reach the limit, but with probability 1e-9.

        Parameters
        ----------
        noise_factor : float
            By how much more the noise may deviate than planned, as it does where every client adds
            a share (docs/guarantees.md, "Fixed point" and "Distributed noise").
        limit : int
            Below which absolute values the secure sum is exact.

        Raises
        ------
        ConfigurationError
            If ``n_records`` records and the noise do not fit.
        """
        if self.n_records is None:
            return
        one = 2**self.fraction_bits
        draws = (self.n_clusters * (self.domain.n_features + 1) + 1) * self.n_rounds
        noise = 0.0
        for number, releases in enumerate(self.plan().rounds, start=1):
            units = self._block_units(number)
            for release in releases if self.budget.is_private else ():
                unit = max(units[block] for block in release.blocks) * (self.clip or 1.0)
                noise = max(noise, release.noise_multiplier * unit * _tail(release, draws))
        # A record moves a coordinate by the largest offset at most, and a count by 1. Clipping only
        # takes away from that.
        most = (1 + self._free_boxes) * one + 0.5
        if self.cost:
            most = max(most, float(self.largest_cost >> self.fraction_bits))
        bound = self.n_records * most + noise * noise_factor
        require_capacity(
            bound,
            limit,
            f"They come from n_records={self.n_records} and noise of up to "
            f"{noise * noise_factor:.3g} units at fraction_bits={self.fraction_bits}: take fewer "
            "fraction_bits or a larger epsilon.",
        )

    def _require_visible_clip(self) -> None:
        """Require that a clipped client can still change every word by a step of the grid."""
        least = min(min(self._block_units(t).values()) for t in range(1, self.n_rounds + 1))
        if least < 1:
            raise ConfigurationError(
                f"Expected a radius whose square is at least one grid step of 2^-"
                f"{self.fraction_bits} with cost=True. Got a smaller one."
            )
        if self.clip is not None and self.clip * least < 1:
            raise ConfigurationError(
                f"Expected clip of at least {1 / least:.3g}, one grid step of 2^-"
                f"{self.fraction_bits}. Got {self.clip!r} instead."
            )

    @property
    def _planning_records(self) -> float | None:
        """N of the papers' rules for T, which depend on N over the noise's standard deviation."""
        if self.n_records is None or self.clip is None:
            return self.n_records
        return self.n_records / self.clip

    @property
    def largest_cost(self) -> int:
        """What one record can add to the cost, in squared grid units."""
        return squared_bound(self.domain, self.fraction_bits)

    @property
    def _free_boxes(self) -> int:
        """Largest |coordinate| of a centroid, in half widths."""
        return 1

    @cached_property
    def _half_widths(self) -> IntArray:
        return self.domain.grid_half_widths(self.fraction_bits)

    @cached_property
    def _initial_grid(self) -> IntArray:
        if self.initial is not None:
            unit = self.domain.to_unit(np.array(self.initial))
            return self.domain.quantise(unit, self.fraction_bits).astype(np.int64)
        packed = _packed(self.n_clusters, tuple(self._half_widths.tolist()), self.seed)
        return self._into_ball(packed)

    def _into_ball(self, points: IntArray) -> IntArray:
        """Move centroids that lie in a ball's enclosing box, but not in the ball, onto it."""
        if not isinstance(self.domain, Ball):
            return points
        unit = points.astype(np.float64) * 2.0**-self.fraction_bits
        return self.domain.quantise(unit, self.fraction_bits).astype(np.int64)

    @property
    def _mu(self) -> float:
        """The budget as a Gaussian mechanism's mu; infinite without privacy."""
        if self.budget.epsilon is None or self.budget.delta is None:
            return math.inf
        return mu_of_budget(self.budget.epsilon, self.budget.delta)


@register
@dataclass(frozen=True, init=False)
class LloydAlgorithm(LloydFamily):
    """Lloyd's algorithm, exact: the centroids are those of the pooled records. Not private."""

    name: ClassVar[str] = "lloyd"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.budget.is_private:
            raise ConfigurationError(
                "Expected a budget with epsilon=None for Lloyd, which adds no noise. "
                f"Got epsilon={self.budget.epsilon!r} instead."
            )

    def _auto_rounds(self) -> int:
        return MOST_AUTO_ROUNDS

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        return ()

    def _sum_unit(self, round_number: int) -> float:
        return self.domain.l2_bound(self.fraction_bits)


@register
@dataclass(frozen=True, init=False)
class GLloydAlgorithm(LloydFamily):
    """Lloyd's algorithm with Gaussian noise on absolute sums and counts.

    Formal guarantee: one record changes all sums by at most ``domain.l2_bound`` in l2 and all
    counts by one; the plan is exactly mu-GDP (docs/guarantees.md, "Lloyd family, one round").

    References
    ----------
    FastLloyd, section 6.1.2 and appendix B.1.
    """

    name: ClassVar[str] = "glloyd"
    HAS_COST: ClassVar[bool] = True

    def _auto_rounds(self) -> int:
        k, d = self.n_clusters, self.domain.n_features
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

    def _sum_unit(self, round_number: int) -> float:
        return self.domain.l2_bound(self.fraction_bits)


@register
@dataclass(frozen=True, init=False)
class SuLloydAlgorithm(LloydFamily):
    """Lloyd's algorithm with Laplace noise on absolute sums and counts (Su et al. 2016).

    Formal guarantee: one record changes all sums by at most ``domain.l1_bound`` in l1 and all
    counts by one; purely private with ``delta=0``. With a positive delta, a box and
    ``unit="record"``, each column of the sums is accounted for itself, since one record changes it
    by the column's half width at most: less noise, the more columns there are
    (docs/guarantees.md, "Lloyd family, one round").
    """

    name: ClassVar[str] = "sulloyd"

    def _auto_rounds(self) -> int:
        n_records = self._planning_records
        if self.budget.epsilon is None or n_records is None:
            return MOST_AUTO_ROUNDS
        k, d = self.n_clusters, self.domain.n_features
        spread = d + _count_share(d)
        error = math.sqrt(500 * k**3 * spread * spread * spread) / n_records
        return limited(self.budget.epsilon / error)

    def _releases(self, round_number: int) -> tuple[Release, ...]:
        d, parts = self.domain.n_features, self._columns
        # Su et al.'s ratio of the epsilons, whichever unit the sums have.
        sums = self.domain.l1_bound(self.fraction_bits) / (d * self._sum_unit(round_number))
        return (
            Release(SUMS, "laplace", "linf" if parts else "l1", sums, (SUMS,), parts),
            Release(COUNTS, "laplace", "l1", 1 / _count_share(d), (COUNTS,)),
        )

    def _sum_unit(self, round_number: int) -> float:
        if self._columns:
            return float(self._half_widths.max())
        return self.domain.l1_bound(self.fraction_bits)

    @cached_property
    def _columns(self) -> tuple[tuple[float, int], ...]:
        """Half widths of the columns over the largest, each with how many columns have it.

        Empty where the sums have one joint bound in l1: it is what pure epsilons, balls and clipped
        clients need. Where half widths differ in too many columns, the composition would take long.
        """
        pure = not self.budget.is_private or self.budget.delta == 0
        if pure or self.budget.protects_clients or isinstance(self.domain, Ball):
            return ()
        widths, numbers = np.unique(self._half_widths, return_counts=True)
        pairs = zip((widths / widths.max()).tolist(), numbers.tolist(), strict=True)
        columns = tuple((width, number) for width, number in pairs if width > 0)
        if len(columns) > MAX_WIDTHS or self.domain.n_features * self.n_rounds > MAX_PARTS:
            return ()
        return columns


def auto_rounds(mu: float, n_records: float | None, work: float, error: float) -> int:
    """Return ``error * N^2 mu^2 / work``, limited to the papers' range."""
    if mu == math.inf or n_records is None:
        return MOST_AUTO_ROUNDS
    return limited(error * n_records * n_records * (mu * mu) / work)


def limited(rounds: float) -> int:
    """Return a whole number of rounds within the papers' range."""
    return int(min(max(rounds, FEWEST_AUTO_ROUNDS), MOST_AUTO_ROUNDS))


def integer(name: str, value: Any, low: int, high: int) -> int:
    """Return a parameter as an int of the range.

    Raises
    ------
    ConfigurationTypeError, ConfigurationError
        If it is no integer, or out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_):
        raise ConfigurationTypeError(f"{name} must be an integer, got {type(value).__name__}.")
    if not low <= number <= high:
        raise ConfigurationError(f"Expected {name} in [{low}, {high}]. Got {number} instead.")
    return number


def planned_records(value: Any, n_clusters: int, budget: PrivacyBudget) -> int | None:
    """Return the public planning figure for the number of records, ``None`` if there is none.

    Raises
    ------
    ConfigurationTypeError, ConfigurationError
        If it is required and missing, no integer, out of range, or below the number of clusters.
    """
    if value is None:
        if budget.is_private:
            raise ConfigurationError(
                "n_records is required with a private budget: a public figure for the total number "
                "of records, from which noise and rounds are planned. Got None."
            )
        return None
    n_records = integer("n_records", value, 1, 2**53 - 1)
    if n_clusters > n_records:
        raise ConfigurationError(
            f"Expected n_clusters of at most n_records={n_records}. Got {n_clusters} instead."
        )
    return n_records


def _initial(value: Any, n_clusters: int, n_features: int) -> tuple[tuple[float, ...], ...] | None:
    if value is None:
        return None
    points = check_records(value, n_features, name="initial")
    if len(points) != n_clusters:
        raise ConfigurationError(
            f"Expected initial centroids of shape ({n_clusters}, {n_features}). "
            f"Got {points.shape} instead."
        )
    return tuple(tuple(row) for row in (points + 0.0).tolist())


def _count_share(d: int) -> float:
    """Return Su et al.'s share of epsilon for counts where sums get d: (4 d rho^2)^(1/3)."""
    with mpmath.workprec(120):  # the same digits on every processor, unlike libm's pow
        return float(mpmath.root(mpmath.mpf(4 * d) * mpmath.mpf(RHO) ** 2, 3))


def _tail(release: Release, draws: int) -> float:
    """Return how many standard deviations or scales no draw exceeds, but with probability 1e-9."""
    logarithm = math.log(2 * draws / OVERFLOW_PROBABILITY)
    return math.sqrt(2 * logarithm) if release.mechanism == "gaussian" else logarithm


@lru_cache(maxsize=4)
def _packed(n_clusters: int, half_widths: tuple[int, ...], seed: int) -> IntArray:
    packed = sphere_packing(n_clusters, np.array(half_widths, dtype=np.int64), seed)
    packed.setflags(write=False)  # shared by all clients of a process
    return packed
