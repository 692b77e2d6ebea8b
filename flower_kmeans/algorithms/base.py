"""Base of all algorithms: additive queries to clients, and updates from noisy sums.

An algorithm is a frozen set of public parameters. It holds no records, adds no noise and
sends nothing. A client answers with its ``statistic``: integers, whose sums are exact in
any order. ``update`` computes the next state from the noisy sum of all answers
(docs/guarantees, Theorem 8). `sensitivity`, `client_clipping`, `queries` and `registry`
have functions of an algorithm.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
)

import numpy as np

from flower_kmeans import parameters
from flower_kmeans.algorithms import feasibility, weights
from flower_kmeans.algorithms.capabilities import (
    CostCapability,
    MixtureCapability,
    SizesCapability,
)
from flower_kmeans.algorithms.clips import Clipping, default_clip, require_clip
from flower_kmeans.algorithms.layout import COUNTS, Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.assignment import check_exactness
from flower_kmeans.algorithms.numerics.postprocess import scaled
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box, Domain, GridRecords
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.data.weights import MOST_WEIGHT
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import (
    FLAG,
    LARGEST,
    POSITIVE,
    left_out,
    whole,
    without_option,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan, Release, calibrate

MAX_CLUSTERS = 10_000
MAX_ROUNDS = 1_000


@dataclass(frozen=True)
class Algorithm(ABC):
    """A clustering algorithm as a sequence of additive queries.

    Implementations are frozen, hashable dataclasses of public parameters, which a run
    document holds. A server makes one by ``planned`` from a user's options, and ``planned``
    chooses the others. A client makes one by `algorithm_from_config` from a document. Both
    check every parameter, and that the run is feasible, before anything is sent or spent.
    The constructor only checks the parameters.

    ``n_records``, ``n_persons`` and ``n_clients`` are public planning numbers. A private
    budget requires ``n_records``, or ``n_persons`` in its place with ``unit="person"``.
    With ``weighted`` each record has a weight in [0, 1], and ``n_records`` is the planned
    total of the weights. ``full_weight`` is W (docs/guarantees, Theorem 46). A budget
    with ``unit="client"`` requires ``n_clients``; other budgets refuse it, unless the
    algorithm ``bounds_clients``. With ``unit="client"``, ``clip`` is how many records'
    worth of one client count in each release. The grid's step is ``2**-fraction_bits`` of
    the scaled domain.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, or parameters contradict each other.
    """

    name: ClassVar[str]
    """Name of the algorithm in run documents."""
    replayable: ClassVar[bool]
    """Whether clients can compute the next query themselves, which a blind server needs.

    If they can, ``update`` and ``initial_state`` use no randomness but Philox words of the
    seed and the round (`initialization.round_words`), and their results are the same
    integers on every processor.
    """
    kind: ClassVar[str] = "horizontal"
    """Kind of the algorithm's runs (`protocol.kinds`). Default: clients hold different records."""
    needs_all_records: ClassVar[bool] = False
    """Whether a client must hold all of its records at once to answer."""
    bounds_clients: ClassVar[bool] = False
    """Whether ``n_clients`` bounds a client's answer, and is also given with ``unit="record"``."""
    takes_weights: ClassVar[bool] = True
    """Whether the answer is a sum over records, so that each record can have a weight."""
    weighs_in_one_pass: ClassVar[bool] = False
    """Whether `statistic` counts each record as often as its weight says."""
    can_miss_sums: ClassVar[bool] = False
    """Whether a run can go on after a round whose sum was lost."""
    finds_ranges: ClassVar[bool] = False
    """Whether the first round finds ranges of columns, for a domain with ``tighten``."""
    possible_warnings: ClassVar[tuple[str, ...]] = ()
    """Fixed sentences for the report. The state's ``flags`` select the sentences that hold."""

    n_clusters: Annotated[int, whole(1, MAX_CLUSTERS)]
    domain: Domain
    budget: PrivacyBudget
    _: KW_ONLY
    n_records: Annotated[int | None, whole(1, LARGEST)] = None
    n_clients: Annotated[int | None, whole(1, LARGEST)] = None
    clip: Annotated[float | None, POSITIVE] = None
    n_persons: Annotated[int | None, whole(1, LARGEST)] = None
    max_clients_per_person: Annotated[int, weights.MOST_CLIENTS] = 1
    weighted: Annotated[bool, left_out(without_option(FLAG))] = False
    full_weight: Annotated[int | None, weights.FULL_WEIGHT] = None
    seed: Annotated[int, whole(0, LARGEST)] = 0
    fraction_bits: Annotated[int, whole(1, 25)] = 16

    if TYPE_CHECKING:
        # Some algorithms have it as a field, and others as a property.
        @property
        def n_rounds(self) -> int:
            """Number of rounds."""

    def __post_init__(self) -> None:
        """Check every parameter, and the common parameters against each other."""
        parameters.require_parameters(self)
        weights.require_weights(self)
        budget = self.budget
        domain = self.domain
        if (
            isinstance(domain, Box)
            and domain.tighten is not None
            and not self.finds_ranges
        ):
            raise ConfigurationError(
                f"Expected a domain without tighten for {type(self).__name__}, which has no round "
                f"that finds ranges of columns. Got tighten={domain.tighten}."
            )
        if (
            isinstance(domain, TableDomain)
            and domain.from_records
            and budget.is_private
        ):
            raise ConfigurationError(
                "Expected a domain from public knowledge with a private budget. Got one that was "
                "read off records (from_records): no epsilon holds with it."
            )
        if (
            isinstance(domain, TableDomain)
            and domain.persons
            and budget.is_private
            and not budget.protects_persons
        ):
            raise ConfigurationError(
                "Expected a budget with unit='person', because the domain says that persons are "
                f"protected. Got unit={budget.unit!r}."
            )
        total = weights.planned_total(self)
        if total is not None and self.n_clusters > total:
            raise ConfigurationError(
                f"Expected n_clusters of at most {weights.total_name(budget)}={total}. "
                f"Got {self.n_clusters} instead."
            )
        n_clients = None if self.bounds_clients else self.n_clients
        require_clip(budget, n_clients, self.clip)
        _require_clip_of_clients(self)
        if budget.is_private and budget.delta is None:
            raise ConfigurationError(
                "Expected a private budget with its delta, as planned() chooses it. Got None."
            )
        check_exactness(self.domain.n_features, self.fraction_bits)
        if not self.domain.grid_half_widths(self.fraction_bits).any():
            raise ConfigurationError(
                "Expected fraction_bits, or weights of columns, so large that records have more "
                f"than one point on the grid. Got fraction_bits={self.fraction_bits}."
            )

    @classmethod
    def planned(
        cls,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        n_rounds: int | Literal["auto"] = "auto",
        **options: Any,
    ) -> Self:
        """Return the algorithm of a user's options, with the library's choices.

        A subclass with further choices names these options, and starts from `resolved`. By
        default the number of rounds is fixed.
        """
        algorithm = cls(**resolved(cls, n_clusters, domain, budget, options))
        algorithm = feasibility.with_capacity(algorithm)
        if n_rounds not in ("auto", algorithm.n_rounds):
            raise ConfigurationError(
                f"Expected n_rounds={algorithm.n_rounds}. Got {n_rounds!r} instead."
            )
        algorithm.require_feasible()
        return algorithm

    @abstractmethod
    def layout(self, round_number: int) -> Layout:
        """Return the layout of a round's statistic. Rounds count from 1."""

    @abstractmethod
    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases, with noise multipliers relative to those of other rounds."""

    @abstractmethod
    def block_sensitivities(self, round_number: int) -> Mapping[str, float]:
        """Return the sensitivity of each block of a round for one record, in grid units.

        For second moments it is the sensitivity of the diagonal. For data sets that differ
        in one record, the difference of the statistics, divided by the sensitivities, has
        norm at most 1: jointly over the blocks of each release, and in the release's norm.
        Sensitivities are public before the run, so noise does not depend on queries.
        """

    @property
    def clipping(self) -> Clipping:
        """The clips that limit the part of one client in each release."""
        _require_clip_of_clients(self)  # nothing may go on without it
        return Clipping(self.clip)

    def plan(self) -> PrivacyPlan:
        """Return the releases of each round, calibrated to the budget."""
        rounds = tuple(self.releases(t) for t in range(1, self.n_rounds + 1))
        n_clients = None if self.clip is None else self.n_clients
        return calibrate(self.budget, rounds, self.n_records, n_clients, self.n_persons)

    def noise_of(self, round_number: int) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units.

        For second moments it is the noise of the diagonal.
        """
        if not self.budget.is_private:
            return dict.fromkeys(self.layout(round_number).names, 0.0)
        sensitivities = self.block_sensitivities(round_number)
        found = {}
        for release in self.plan().rounds[round_number - 1]:
            spread = math.sqrt(2.0) if release.mechanism == "laplace" else 1.0
            for name in release.blocks:
                scale = release.noise_multiplier * self.clipping.of(release) * spread
                found[name] = scale * sensitivities[name]
        return found

    def require_feasible(self) -> None:
        """Require feasible sizes, clips of at least a grid step, and sums that cannot overflow.

        A client must not compute for hours because of a run document. The check takes
        seconds if noise must be calibrated, so `planned` and `algorithm_from_config` call
        it once.

        Raises
        ------
        ConfigurationError
            If the run is not feasible.
        """
        feasibility.require_sizes(self)
        feasibility.require_visible_clips(self)
        feasibility.require_capacity(self)

    @abstractmethod
    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the state before round 1. It is never sent."""

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the range of every array of a round's query.

        Arrays are of dtype int64 if the algorithm is replayable. Within the ranges the
        sensitivities hold and the work of ``statistic`` is bounded, for any query of a
        server. By default there are no arrays.
        """
        return {}

    def query(self, state: State) -> Query:
        """Return the query of the round after ``state``: its arrays, clipped to their ranges.

        So a query that a client computes is never refused. ``update`` keeps rows no
        longer than a range's ``longest``.
        """
        # Noise can lead to any state, and a client must be able to answer the next query.
        ranges = self.query_ranges(state.round + 1).items()
        arrays = {
            name: np.asarray(np.clip(state.arrays[name], limits.low, limits.high))
            for name, limits in ranges
        }
        return Query(state.round + 1, arrays)

    @abstractmethod
    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the integers that records add to a round's sum; zeros for no records.

        The statistics of parts of a client's records add up to the statistic of all of
        them, unless the algorithm ``needs_all_records``.
        """

    def require_packages(self) -> None:  # noqa: B027 - most need none
        """Require the optional packages that a client's answer needs."""

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings of the plan, which begin with WARNING, from public parameters only."""
        return ()

    def warnings(self, state: State) -> tuple[str, ...]:
        """Return warnings about how the run went, from released values only."""
        flags = state.arrays["flags"] if self.possible_warnings else ()
        pairs = zip(self.possible_warnings, flags, strict=True)
        return tuple(text for text, holds in pairs if holds)

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits that exact sums of the round after ``state`` keep.

        ``answer`` is the noisy sum of that round. Only its number of answers counts. By
        default there are limits of counts only.
        """
        names = self.layout(state.round + 1).names
        return Meaning(counts=COUNTS if COUNTS in names else None, are_clusters=False)

    @abstractmethod
    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after the noisy sum of all answers.

        The sum can hold any integers, because noise makes every word possible. No error
        may depend on them, because it would reveal words that nobody may see. ``rng`` is
        for algorithms that are not replayable.
        """

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d); ``None`` before there are any."""
        if "centroids" not in state.arrays:
            return None
        return self.domain.as_centroids(
            scaled(state.arrays["centroids"], self.fraction_bits)
        )

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes of the last round, (k,) float64; ``None`` before any."""
        if "counts" not in state.arrays:
            return None
        return scaled(state.arrays["counts"], self.fraction_bits)

    @property
    def fewest_clusters(self) -> int:
        """Fewest clusters of a result; ``n_clusters`` is the most."""
        return self.n_clusters

    @property
    def last_cost(self) -> CostCapability | None:
        """The cost at the result; ``None`` unless the last round releases it."""
        return None

    @property
    def sizes(self) -> SizesCapability | None:
        """Cluster sizes with public bounds; ``None`` without bounds."""
        return None

    @property
    def mixture(self) -> MixtureCapability | None:
        """The mixture that the run learns from the records; ``None`` if it learns none."""
        return None

    @classmethod
    def read_config(cls, config: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
        """Return the parameters of a run document, as the constructor takes them."""
        return parameters.read_parameters(cls, config)


def _require_clip_of_clients(algorithm: Algorithm) -> None:
    """Require a clip where clients are protected, of an algorithm that clips them."""
    if not algorithm.budget.protects_clients or algorithm.clip is not None:
        return
    if "clip" in parameters.declared(type(algorithm)):
        raise ConfigurationError("Expected a clip with unit='client'. Got None.")
    raise ConfigurationError(
        f"Expected a budget with unit='record' for {type(algorithm).__name__}, which does not "
        "clip what a client adds. Got unit='client' instead."
    )


def with_delta(budget: PrivacyBudget, options: Mapping[str, Any]) -> PrivacyBudget:
    """Return a budget with its default delta, unless the number of units is missing."""
    # A default delta depends on the number of units that the budget protects.
    n_clients = options.get("n_clients")
    n_units = (
        n_clients if budget.protects_clients else weights.given_total(budget, options)
    )
    if n_units is None:
        return budget
    return budget.resolved(n_units)


def resolved(
    kind: type[Algorithm],
    n_clusters: int,
    domain: Domain,
    budget: PrivacyBudget,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a user's options for a constructor: checked, with default delta and clip.

    If options do not fit together, a default may be missing, and the constructor raises.
    """
    fields = parameters.checked(kind, {"n_clusters": n_clusters, **options})
    n_records = fields.get("n_records")
    n_clients = fields.get("n_clients")
    budget = with_delta(budget, fields)
    takes_clip = "clip" in parameters.declared(kind)
    if takes_clip and budget.protects_clients and fields.get("clip") is None:
        fields["clip"] = default_clip(n_records, n_clients)
    if budget.counts_persons or fields.get("weighted"):
        # The largest, which `feasibility.with_capacity` halves where sums need room.
        fields.setdefault("full_weight", MOST_WEIGHT)
    return {**fields, "domain": domain, "budget": budget}
