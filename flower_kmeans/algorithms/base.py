"""Base of all algorithms: additive queries to clients, and updates from noisy sums.

A frozen set of public parameters: it holds no records, adds no noise and sends nothing.
A client computes ``answer``, in integers, whose sums are exact in any order, and
``update`` the next state from the noisy sum of all answers (docs/guarantees,
Theorem 8).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
)

import numpy as np
from numpy.typing import NDArray

from flower_kmeans import parameters
from flower_kmeans.algorithms import client_clipping
from flower_kmeans.algorithms.numerics.assignment import check_exactness
from flower_kmeans.algorithms.numerics.postprocess import scaled
from flower_kmeans.algorithms.plausibility import Meaning
from flower_kmeans.algorithms.released import CostEstimate, ReleasedMixture, SizeReport
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.imports import imported
from flower_kmeans.parameters import LARGEST, POSITIVE, whole
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan, Release, calibrate

Clips = tuple[tuple[str, float], ...]
"""Clips of single releases by name, sorted."""
Range = tuple[tuple[int, ...], IntArray | int, IntArray | int]
"""Shape, least and largest value of an array of a query."""

UNUSABLE = "The query of a round is not one of its algorithm."
_INT64 = np.dtype(np.int64)
LIMIT = 2**63  # below which absolute values sums of 64-bit words are exact
MAX_CLUSTERS = 10_000
MAX_ROUNDS = 1_000
# of a round: 32 MiB of a message, and a few times that of a client's memory
MAX_WORDS = 2**22
MAX_RUN_WORDS = 2**27  # of all rounds: a gigabyte that each client sends
OVERFLOW_PROBABILITY = 1e-9
# parameters on which numbers of words depend
_SIZES = "n_clusters", "n_server_points", "n_rounds"
SUMS = "sums"
COUNTS = "counts"
# fewest noisy records of a cluster whose sum is divided by them; public
MIN_COUNT = 1.0


class Block(NamedTuple):
    """A named array of a round's statistic; an integer ``i`` means ``i * 2**-exponent``."""

    name: str
    shape: tuple[int, ...]
    exponent: int

    @property
    def size(self) -> int:
        """Number of words."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Statistic:
    """An answer of one client, or the noisy sum of all answers: int64 arrays by block."""

    blocks: Mapping[str, IntArray]
    # Of a sum, both public: its participation, in (0, 1], and the number of answers, if
    # known.
    answered: float = 1.0
    n_answers: int | None = None


@dataclass(frozen=True)
class State:
    """All that an algorithm knows after ``round`` rounds.

    Arrays are of dtype int64 if the algorithm is replayable: clients keep them between
    messages.
    """

    round: int
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Query:
    """All that a client must know to answer a round; rounds count from 1.

    Clients of one process share it, and what is computed from it (`lru_cache` takes
    identities).
    """

    round: int
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Algorithm(ABC):
    """A clustering algorithm as a sequence of additive queries.

    Implementations are frozen, hashable dataclasses of public parameters, which a run
    document holds. A server makes one by ``planned`` from what a user gave: it chooses
    what is left to the library. A client makes one by ``from_config`` from a document.
    Both check every parameter, and that the run is feasible, before anything is sent or
    spent; the constructor checks the parameters alone.

    ``n_records`` and ``n_clients`` are public planning numbers. The former is required
    with a private budget; the latter with one of ``unit="client"``, and refused
    otherwise. There ``clip`` is how many records' worth of one client count in each
    release. The grid's step is ``2**-fraction_bits`` of the scaled domain.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, parameters contradict each other, or sums could
        overflow.
    """

    name: ClassVar[str]
    """The name in run documents."""
    replayable: ClassVar[bool]
    """Whether clients can compute the next query themselves, which a blind server needs.

    The only randomness of ``update`` and ``initial_state`` are then Philox words of the
    seed and the round (`initialization.round_words`), and their results are the same
    integers on every processor.
    """
    kind: ClassVar[str] = "horizontal"
    """The kind of its runs (`protocol.kinds`): by default clients hold different records."""
    needs_all_records: ClassVar[bool] = False
    """Whether a client must hold all of its records at once to answer."""
    has_joint_clipping: ClassVar[bool] = False
    """Whether one factor, the least that one of them needs, shortens all releases of a round."""
    bounds_clients: ClassVar[bool] = False
    """Whether ``n_clients`` bounds what a client adds, and is given with ``unit="record"`` too."""
    possible_warnings: ClassVar[tuple[str, ...]] = ()
    """Fixed sentences for the report. The state's ``flags`` are not 0 for those that hold."""

    n_clusters: Annotated[int, whole(1, MAX_CLUSTERS)]
    domain: Domain
    budget: PrivacyBudget
    _: KW_ONLY
    n_records: Annotated[int | None, whole(1, LARGEST)] = None
    n_clients: Annotated[int | None, whole(1, LARGEST)] = None
    clip: Annotated[float | None, POSITIVE] = None
    seed: Annotated[int, whole(0, LARGEST)] = 0
    fraction_bits: Annotated[int, whole(1, 25)] = 16

    if TYPE_CHECKING:
        # A field of algorithms that take it, and a property of those where it follows.
        @property
        def n_rounds(self) -> int:
            """Number of rounds."""

    def __post_init__(self) -> None:
        """Check every parameter, each alone and those of all algorithms together."""
        parameters.require_parameters(self)
        n_records = self.n_records
        budget = self.budget
        if n_records is None and budget.is_private:
            raise ConfigurationError(
                "n_records is required with a private budget: a public total number of records, "
                "from which noise and rounds are planned. Got None."
            )
        domain = self.domain
        if (
            isinstance(domain, TableDomain)
            and domain.from_records
            and budget.is_private
        ):
            raise ConfigurationError(
                "Expected a domain from public knowledge with a private budget. Got one that was "
                "read off records (from_records): no epsilon holds with it."
            )
        if n_records is not None and self.n_clusters > n_records:
            raise ConfigurationError(
                f"Expected n_clusters of at most n_records={n_records}. "
                f"Got {self.n_clusters} instead."
            )
        n_clients = None if self.bounds_clients else self.n_clients
        client_clipping.require_clip(budget, n_clients, self.clip)
        self._clip()  # there is one where clients are protected
        if budget.is_private and budget.delta is None:
            raise ConfigurationError(
                "Expected a private budget with its delta, as planned() chooses it. Got None."
            )
        check_exactness(self.domain.n_features, self.fraction_bits)

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

        A subclass with more to choose names these options, and starts from `resolved`.
        Here the number of rounds is no choice.
        """
        algorithm = cls(**resolved(cls, n_clusters, domain, budget, options))
        if n_rounds not in ("auto", algorithm.n_rounds):
            raise ConfigurationError(
                f"Expected n_rounds={algorithm.n_rounds}. Got {n_rounds!r} instead."
            )
        algorithm.require_feasible()
        return algorithm

    def _require_clips(self, clips: Clips | None) -> None:
        """Require clips of single releases exactly where clients are clipped."""
        if clips and self.clip is None:
            raise ConfigurationError(
                "Expected clips=None unless the budget is private with unit='client'. "
                f"Got clips for {[name for name, _ in clips]}."
            )
        # Otherwise a document would have two encodings.
        if (clips is None) != (self.clip is None):
            raise ConfigurationError(
                "Expected clips, which may be empty, exactly with unit='client'. "
                f"Got clips={clips!r} and unit={self.budget.unit!r} instead."
            )

    @abstractmethod
    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return the blocks of a round's statistic (rounds count from 1), in their order."""

    @abstractmethod
    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases, with noise multipliers relative to those of other rounds."""

    @abstractmethod
    def block_sensitivities(self, round_number: int) -> Mapping[str, float]:
        """Return by how much one record changes each of a round's blocks, in grid units.

        Of second moments, that of the diagonal. For data sets that differ in one
        record, the difference of the statistics divided by these has norm at most 1,
        jointly over the blocks of each release and in its norm. They are public before
        the run: adding noise needs no query.
        """

    def plan(self) -> PrivacyPlan:
        """Return the releases of each round, calibrated to the budget; needs no records."""
        rounds = tuple(self.releases(t) for t in range(1, self.n_rounds + 1))
        n_clients = None if self.clip is None else self.n_clients
        return calibrate(self.budget, rounds, self.n_records, n_clients)

    def require_capacity(self, noise_factor: float = 1.0, limit: int = LIMIT) -> None:
        """Require that no word of a sum can reach the limit, but with probability 1e-9.

        ``noise_factor`` is by how much the noise may exceed the plan's, where more
        clients add noise shares than had to (docs/guarantees, Theorems 10
        and 41). Below the limit the secure sum is exact.
        """
        if self.n_records is None:
            return
        # A union bound over both tails of all words of the run.
        n_words = sum(map(self.words, range(1, self.n_rounds + 1)))
        logarithm = math.log(2 * n_words / OVERFLOW_PROBABILITY)
        tails = {"gaussian": math.sqrt(2 * logarithm), "laplace": logarithm}
        # Where clients add means, each adds as much as a record, and there may be more
        # of them.
        most = max(self.n_records, self.n_clients or 0)
        for number, releases in enumerate(self.plan().rounds, start=1):
            sensitivities = self.block_sensitivities(number)
            # Without noise a word is a sum of records alone.
            found = [] if releases else [("sums", max(sensitivities.values()), 0.0)]
            for release in releases:
                # No word of a record exceeds its unit, which all words of a release
                # have together.
                unit = max(sensitivities[name] for name in release.blocks)
                noise = release.noise_multiplier * unit * tails[release.mechanism]
                found.append(
                    (release.name, unit, noise * noise_factor * self.clip_of(release))
                )
            for name, unit, noise in found:
                require_capacity(
                    most * unit + noise,
                    limit,
                    f"They come from n_records={self.n_records} and noise of up to {noise:.3g} "
                    f"units in the release {name!r} at fraction_bits={self.fraction_bits}: take "
                    "fewer fraction_bits or a larger epsilon.",
                )

    def noise_of(self, round_number: int) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units.

        That of second moments is of their diagonal.
        """
        if not self.budget.is_private:
            return dict.fromkeys(
                (block.name for block in self.layout(round_number)), 0.0
            )
        sensitivities = self.block_sensitivities(round_number)
        found = {}
        for release in self.plan().rounds[round_number - 1]:
            spread = math.sqrt(2.0) if release.mechanism == "laplace" else 1.0
            for name in release.blocks:
                scale = release.noise_multiplier * self.clip_of(release) * spread
                found[name] = scale * sensitivities[name]
        return found

    def require_feasible(self) -> None:
        """Refuse sizes of hours and gigabytes, clips without effect, and sums that overflow.

        A client makes what a run document describes. It takes seconds where the noise
        has to be calibrated, so `planned` and `from_config` call it once.
        """
        total = 0
        for number in range(1, self.n_rounds + 1):
            # A query may be longer than the answers to it.
            asked = sum(
                math.prod(shape) for shape, *_ in self.query_ranges(number).values()
            )
            words = max(self.words(number), asked)
            total = total + self.words(number)
            if words > MAX_WORDS or total > MAX_RUN_WORDS:
                sizes = [
                    f"{name}={getattr(self, name)}"
                    for name in _SIZES
                    if hasattr(self, name)
                ]
                raise ConfigurationError(
                    f"Expected at most {MAX_WORDS} words in a message, and {MAX_RUN_WORDS} in all "
                    f"answers of a client. Got {words} in round {number}, and {total} up to it, "
                    f"with {self.domain.n_features} columns, {', '.join(sizes)}."
                )
        self._require_visible_clips()
        self.require_capacity()

    def _require_visible_clips(self) -> None:
        """Require that a clipped client can still change every word by a step of the grid."""
        if self.clip is None:
            return
        for number in range(1, self.n_rounds + 1):
            sensitivities = self.block_sensitivities(number)
            for release in self.releases(number):
                least = min(sensitivities[name] for name in release.blocks)
                if least > 0 and self.clip_of(release) * least < 1:
                    raise ConfigurationError(
                        f"Expected a clip of the release {release.name!r} of at least "
                        f"{1 / least:.3g}, one step of the grid. "
                        f"Got {self.clip_of(release)!r} instead."
                    )

    @abstractmethod
    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the state before round 1. It never travels."""

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the shape, the least and the largest value of every array of a round's query.

        All arrays are of dtype int64. Within these ranges the units hold and the work
        of ``statistic`` is bounded, whatever a server sent. By default there are no
        arrays.
        """
        return {}

    def query(self, state: State) -> Query:
        """Return the query of the round after ``state``: the state's arrays, within their ranges.

        A client's own query is so never refused.
        """
        # Noise may lead anywhere, and a client must be able to answer what follows from
        # it.
        ranges = self.query_ranges(state.round + 1).items()
        arrays = {
            name: np.clip(state.arrays[name], low, high)
            for name, (_, low, high) in ranges
        }
        return Query(state.round + 1, arrays)

    def record_sensitivities(self, round_number: int) -> FloatArray:
        """Return the sensitivity of every word of a round, (words,) float64, for one record.

        In grid units, in layout order: `block_sensitivities`, unless words of a block
        differ.
        """
        sensitivities = self.block_sensitivities(round_number)
        blocks = self.layout(round_number)
        return np.repeat(
            [sensitivities[b.name] for b in blocks], [b.size for b in blocks]
        )

    def sensitivities(self, round_number: int) -> FloatArray:
        """Return the noise scale of every word of a round, (words,) float64.

        As `record_sensitivities`, times the clips: for answers, and for data sets that
        differ in what the budget protects, one record or all records of one client.
        """
        sensitivities = self.record_sensitivities(round_number)
        if self._clip() is not None:
            for release, words in self.release_words(round_number):
                sensitivities[words] *= self.clip_of(release)
        return sensitivities

    def clip_of(self, release: Release) -> float:
        """Return how many records' worth of one client count in a release; 1 without clipping."""
        clip = self._clip()
        return 1.0 if clip is None else clip

    def moves_of_a_record(self, round_number: int) -> tuple[float, ...]:
        """Return by how much one record of a protected client moves each of a round's releases.

        Over the noise scale and in the norm of each (docs/guarantees,
        Theorem 35).
        """
        sensitivities = self.sensitivities(round_number)
        parts = [
            (sensitivities[words], release.norm, 1.0 / self.clip_of(release))
            for release, words in self.release_words(round_number)
        ]
        joint = self.has_joint_clipping and len(parts) > 1
        shared = max(step for *_, step in parts) if joint else None
        return tuple(
            client_clipping.move_of_a_record(part, norm, step, shared)
            for part, norm, step in parts
        )

    @abstractmethod
    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the integers that records add to a round's sum; zeros for no records.

        Those of several parts of a client's records add up to those of all of them,
        unless the algorithm ``needs_all_records``.
        """

    def words_of(self, query: Query, records: NDArray[Any]) -> IntArray:
        """Return the statistic of finite records (m, d) in the user's units, as one vector."""
        grid = GridRecords(records, self.domain, self.fraction_bits)
        return self.flatten(self.statistic(query, grid), query.round)

    def answer(self, query: Query, records: GridRecords) -> Statistic:
        """Return a client's contribution to a round's sum, from all of its records."""
        return self.limited(self.statistic(query, records), query.round)

    def limited(self, statistic: Statistic, round_number: int) -> Statistic:
        """Return a client's contribution, from its statistic: clipped for ``unit="client"``.

        See docs/guarantees, Theorem 34. A word that no release covers is
        then 0.
        """
        if self._clip() is None:
            return statistic
        sensitivities = self.sensitivities(round_number)
        vector = self.flatten(statistic, round_number)
        clipped = np.zeros_like(vector)
        parts = [
            (
                words,
                client_clipping.clip_factor(
                    vector[words], sensitivities[words], release.norm
                ),
            )
            for release, words in self.release_words(round_number)
        ]
        # A joint factor keeps a client's means where they are: sums and counts shrink
        # alike.
        least = min((factor for _, factor in parts), default=1.0)
        for words, factor in parts:
            kept = least if self.has_joint_clipping else factor
            clipped[words] = client_clipping.shortened(
                vector[words], sensitivities[words], kept
            )
        return self.unflatten(clipped, round_number)

    def _clip(self) -> float | None:
        """Return ``clip`` if clients are protected; an algorithm that has none must not go on."""
        if not self.budget.protects_clients:
            return None
        if self.clip is None:
            raise ConfigurationError(
                f"Expected a budget with unit='record' for {type(self).__name__}, which does not "
                "clip what a client adds. Got unit='client' instead."
            )
        return self.clip

    def check_query(self, query: Query) -> None:
        """Require the round's arrays, with their shapes, as int64 and within their ranges.

        Raises
        ------
        MessageError
            Otherwise, without a word about values.
        """
        number = query.round
        arrays = query.arrays
        # Not isinstance: True is an int too, and would name a round that nobody
        # planned.
        if type(number) is not int or not 1 <= number <= self.n_rounds:
            raise MessageError(UNUSABLE)
        ranges = self.query_ranges(number)
        if set(arrays) != set(ranges):
            raise MessageError(UNUSABLE)
        for name, (shape, low, high) in ranges.items():
            array = arrays[name]
            if not isinstance(array, np.ndarray) or array.dtype != np.int64:
                raise MessageError(UNUSABLE)
            if array.shape != shape or (array < low).any() or (array > high).any():
                raise MessageError(UNUSABLE)

    def require_packages(self) -> None:  # noqa: B027 - most need none
        """Require the optional packages that a client's answer needs."""

    def warnings(self, state: State) -> tuple[str, ...]:
        """Return warnings about how the run went, from released values only."""
        flags = state.arrays["flags"] if self.possible_warnings else ()
        pairs = zip(self.possible_warnings, flags, strict=True)
        return tuple(text for text, holds in pairs if holds)

    def cost_estimate(
        self, state: State, noise_factor: float = 1.0
    ) -> CostEstimate | None:
        """Return the inertia at the centroids after the last round, from released values.

        ``None`` unless the algorithm has ``cost=True``. ``noise_factor`` is by how much
        the noise's standard deviation exceeded the plan's (distributed noise).
        """
        return None

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the bounds of the sums of the round after ``state``, without noise.

        ``answer`` is that round's noisy sum, of which only the number of answers
        counts. By default nothing but the signs and the total of counts is known, where
        there are some.
        """
        names = {block.name for block in self.layout(state.round + 1)}
        return Meaning(counts=COUNTS if COUNTS in names else None, are_clusters=False)

    @abstractmethod
    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after the noisy sum of all answers, which may be any integers.

        Noise makes every word possible, and an error would reveal something about words
        that nobody may see. ``rng`` is for algorithms that are not replayable.
        """

    def without_sum(self, state: State) -> State | None:
        """Return the state after a round whose sum was lost; ``None`` if it cannot be missed."""
        return None

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d), or ``None`` if there are none yet."""
        if "centroids" not in state.arrays:
            return None
        return self.domain.from_unit(
            scaled(state.arrays["centroids"], self.fraction_bits)
        )

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes of the last round, (k,), or ``None`` before any."""
        if "counts" not in state.arrays:
            return None
        return scaled(state.arrays["counts"], self.fraction_bits)

    @property
    def fewest_clusters(self) -> int:
        """The fewest clusters of a result; ``n_clusters`` is the most."""
        return self.n_clusters

    @property
    def size_bounds(self) -> tuple[int, int | None] | None:
        """Least (or 0) and largest (or ``None``) size; ``None`` unless results have sizes."""
        return None

    @property
    def size_noise(self) -> float | None:
        """Planned standard deviation of a released size's noise, in records; ``None`` likewise."""
        return None

    def weights(self, state: State) -> FloatArray | None:
        """Return the weights (k,) of the power diagram whose cells are the clusters.

        A record x belongs to the cluster with the least ``|x - c_j|^2 - w_j``; ``None``
        where that is the nearest centroid. In the squared units of `cost_estimate`.
        """
        return None

    def sizes(self, state: State, noise_factor: float = 1.0) -> SizeReport | None:
        """Return the clusters' sizes after the last round; ``None`` without bounds on them."""
        return None

    @property
    def mixture_shape(self) -> tuple[int, int, tuple[float, float, float]] | None:
        """Most parts, directions and planned noise of `mixture`; ``None`` if there is none."""
        return None

    def mixture(
        self, state: State, noise_factor: float = 1.0
    ) -> ReleasedMixture | None:
        """Return the mixture that the run learned of the records; ``None`` if it learns none."""
        return None

    def to_config(self) -> dict[str, Any]:
        """Return the parameters for a run document, without domain and budget."""
        return {"name": self.name, **parameters.write_parameters(self)}

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget
    ) -> Self:
        """Return the algorithm that ``to_config`` described, or raise if it cannot be one."""
        values = cls.read_config(config, domain)
        algorithm = cls(domain=domain, budget=budget, **values)
        algorithm.require_feasible()
        return algorithm

    @classmethod
    def read_config(cls, config: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
        """Return the parameters that ``to_config`` wrote, as the constructor takes them."""
        return parameters.read_parameters(cls, config)

    def words(self, round_number: int) -> int:
        """Return the number of words of a round's statistic."""
        return sum(block.size for block in self.layout(round_number))

    def places(self, round_number: int) -> dict[str, NDArray[np.intp]]:
        """Return where the words of each block are in a round's vector, in layout order."""
        places = {}
        start = 0
        for block in self.layout(round_number):
            places[block.name] = np.arange(start, start + block.size)
            start += block.size
        return places

    def release_words(
        self, round_number: int
    ) -> list[tuple[Release, NDArray[np.intp]]]:
        """Return a round's releases, each with where its words are in the round's vector."""
        places = self.places(round_number)
        return [
            (release, np.concatenate([places[name] for name in release.blocks]))
            for release in self.releases(round_number)
        ]

    def flatten(self, statistic: Statistic, round_number: int) -> IntArray:
        """Return a statistic as one vector, (words,) int64, in layout order."""
        parts = []
        for block in self.layout(round_number):
            array = statistic.blocks[block.name]
            if array.shape != block.shape or array.dtype != _INT64:
                raise ValueError(
                    f"Expected block {block.name!r} as int64 of shape {block.shape}. "
                    f"Got {array.dtype} of shape {array.shape} instead."
                )
            parts.append(array.reshape(-1))
        return np.concatenate(parts)

    def unflatten(
        self,
        vector: IntArray,
        round_number: int,
        answered: float = 1.0,
        n_answers: int | None = None,
    ) -> Statistic:
        """Return the statistic of a vector (words,) int64, with the `Statistic`'s other fields."""
        words = self.words(round_number)
        if vector.shape != (words,) or vector.dtype != np.int64:
            raise ValueError(
                f"Expected {words} words of int64. "
                f"Got {vector.dtype} of shape {vector.shape} instead."
            )
        layout = self.layout(round_number)
        parts = np.split(vector, np.cumsum([block.size for block in layout])[:-1])
        blocks = {
            b.name: part.reshape(b.shape) for b, part in zip(layout, parts, strict=True)
        }
        return Statistic(blocks, answered, n_answers)


def resolved(
    kind: type[Algorithm],
    n_clusters: int,
    domain: Domain,
    budget: PrivacyBudget,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a user's options as a constructor takes them: checked, with delta and clip.

    The constructor refuses what does not fit together, also where this leaves a choice
    out for that reason.
    """
    fields = parameters.checked(kind, {"n_clusters": n_clusters, **options})
    n_records = fields.get("n_records")
    n_clients = fields.get("n_clients")
    # A default delta depends on the number of units: of what the budget protects.
    n_units = n_clients if budget.protects_clients else n_records
    if n_units is not None:
        budget = budget.resolved(n_units)
    takes_clip = "clip" in parameters.declared(kind)
    if takes_clip and budget.protects_clients and fields.get("clip") is None:
        fields["clip"] = client_clipping.default_clip(n_records, n_clients)
    return {**fields, "domain": domain, "budget": budget}


def require_capacity(bound: float, limit: int = LIMIT, explanation: str = "") -> None:
    """Require that a sum with words up to ``bound``, noise included, stays below ``limit``.

    The explanation of the bound ends the error's message.
    """
    # NaN compares as False, so it is refused with the rest.
    if 0 <= bound < limit:
        return
    shown = f"2^{math.log2(bound):.1f}" if 0 < bound < math.inf else f"{bound}"
    message = (
        f"Expected sums below 2^{math.log2(limit):g}, so that they fit into the words of a sum. "
        f"Got sums up to {shown} instead."
    )
    raise ConfigurationError(f"{message} {explanation}".rstrip())


_REGISTRY: dict[str, type[Algorithm]] = {}
_LATER: dict[str, str] = {}  # ``module:class`` of algorithms by name
AlgorithmType = TypeVar("AlgorithmType", bound=type[Algorithm])


def register(algorithm: AlgorithmType) -> AlgorithmType:
    """Make an algorithm known to ``algorithm_from_config`` under its name (a class decorator)."""
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def register_later(name: str, path: str) -> None:
    """Make an algorithm known by its ``module:class``, which is imported when it is needed."""
    _LATER[name] = path


def algorithm_from_config(
    config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget
) -> Algorithm:
    """Return the algorithm that a run document describes, or raise if it is not acceptable."""
    name = config.get("name")
    if isinstance(name, str) and name in _LATER:
        imported(_LATER[name])  # registers it
    if not isinstance(name, str) or name not in _REGISTRY:
        known = sorted({*_REGISTRY, *_LATER})
        raise ConfigurationError(f"Expected the name of an algorithm in {known}.")
    return _REGISTRY[name].from_config(config, domain, budget)
