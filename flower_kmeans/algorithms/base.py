"""What every algorithm is: additive queries to clients, and updates from noisy sums.

An algorithm is a frozen set of public parameters. It holds no records, adds no noise and sends
nothing: a client computes ``answer``, somebody adds the answers of all clients and the noise that
``plan`` prescribes, and ``update`` turns the noisy sum into the next state. All answers are
integers, so sums are exact in any order (docs/guarantees.md, "Fixed point, rounding, sampling").
An answer is the ``statistic`` of the client's records, clipped where whole clients are protected.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.clipping import clip_factor, move_of_a_record, shortened
from flower_kmeans.domain import Domain, GridRecords
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import PrivacyPlan, Release
from flower_kmeans.privacy.report import CostEstimate

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


Range = tuple[tuple[int, ...], IntArray | int, IntArray | int]
"""Shape, least and largest value of an array of a query."""

UNUSABLE = "The query of a round is not one of its algorithm."

LIMIT = 2**63
"""Below which absolute values sums of 64-bit words are exact."""


@dataclass(frozen=True)
class Block:
    """A named array of a round's statistic.

    Attributes
    ----------
    name : str
    shape : tuple of int
    exponent : int
        An integer ``i`` of the block stands for the value ``i * 2**-exponent``.
    """

    name: str
    shape: tuple[int, ...]
    exponent: int

    @property
    def size(self) -> int:
        """Number of words."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Statistic:
    """What one client answers, or the noisy sum of all answers.

    Attributes
    ----------
    blocks : mapping of str to ndarray
        Integer arrays (int64), named as the blocks of the round's layout.
    answered : float
        Of a sum: the part of the run's places whose answers are in it, in (0, 1]. It is public.
    """

    blocks: Mapping[str, IntArray]
    answered: float = 1.0


@dataclass(frozen=True)
class State:
    """All that an algorithm knows after a number of rounds.

    Attributes
    ----------
    round : int
        Rounds that are done.
    arrays : mapping of str to ndarray
        Of dtype int64 if the algorithm is replayable: clients keep them between messages.
    """

    round: int
    arrays: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Query:
    """All that a client must know to answer a round.

    Attributes
    ----------
    round : int
        Counted from 1.
    arrays : mapping of str to ndarray
    """

    round: int
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Algorithm(ABC):
    """A clustering algorithm as a sequence of additive queries.

    Implementations are frozen, hashable dataclasses of public parameters, complete when
    constructed: every parameter is checked there, before anything is sent or spent. One that
    supports ``unit="client"`` has the parameters ``n_clients`` and ``clip`` (``client_clip`` checks
    them), and keeps the latter as ``clip``.
    """

    name: ClassVar[str]
    """The name in run documents."""

    replayable: ClassVar[bool]
    """Whether clients can compute the next query themselves, which a blind server needs.

    The only randomness of ``update`` and ``initial_state`` are then Philox words of the seed and
    the round (`initialization.round_words`), and their results are the same integers on every
    processor.
    """

    clips_together: ClassVar[bool] = False
    """Whether all releases of a round are shortened by one factor, the least that one of them
    needs, and not each by its own."""

    domain: Domain
    n_clusters: int
    n_rounds: int
    fraction_bits: int
    budget: PrivacyBudget
    clip: float | None
    """How many records' worth of one client count in each release; ``None`` without clipping."""

    @abstractmethod
    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return the blocks of a round's statistic (rounds count from 1), in their order."""

    @abstractmethod
    def plan(self) -> PrivacyPlan:
        """Return what each round releases, calibrated to the budget; needs no data."""

    @abstractmethod
    def require_capacity(self, noise_factor: float = 1.0, limit: int = LIMIT) -> None:
        """Require that no word of a noisy sum can overflow the ring (docs/guarantees.md, Ring).

        Parameters
        ----------
        noise_factor : float, default: 1
            By how much the noise may exceed the plan's, where more clients add shares than had to.
        limit : int, default: 2**63
            Below which absolute values the secure sum is exact.

        Raises
        ------
        ConfigurationError
            With the numbers, if sums and noise do not fit.
        """

    @abstractmethod
    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the state before round 1. It never travels."""

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the shape, the least and the largest value of every array of a round's query.

        All arrays are of dtype int64. Within these ranges the units hold and the work of
        ``statistic`` is bounded, whatever a server sent. By default there are no arrays.
        """
        return {}

    def query(self, state: State) -> Query:
        """Return the query of the round after ``state``: the state's arrays, within their ranges.

        A client's own query is so never refused.
        """
        number = state.round + 1
        return Query(
            number,
            {
                name: np.clip(state.arrays[name], low, high)
                for name, (_, low, high) in self.query_ranges(number).items()
            },
        )

    @abstractmethod
    def record_units(self, round_number: int) -> FloatArray:
        """Return the public scale of every word of a round's statistic, for one record.

        They are known before the run, so adding noise needs no query.

        Returns
        -------
        ndarray of shape (words,), float64
            In grid units, in layout order. For data sets that differ in one record, the difference
            of the statistics divided by these units has norm at most 1, jointly over the blocks of
            each release of the plan and in that release's norm.
        """

    def units(self, round_number: int) -> FloatArray:
        """Return the scale of every word of a round's noise: ``record_units`` times the clips.

        Returns
        -------
        ndarray of shape (words,), float64
            As ``record_units``, but for the answers, and for data sets that differ in whatever the
            budget protects: one record, or all records of one client.

        Raises
        ------
        ConfigurationError
            If the budget protects clients and the algorithm has no ``clip``.
        """
        units = self.record_units(round_number)
        if self._clip() is None:
            return units
        places = self.places(round_number)
        for release in self.releases(round_number):
            for name in release.blocks:
                units[places[name]] *= self.clip_of(release)
        return units

    def clip_of(self, release: Release) -> float:
        """Return how many records' worth of one client count in a release; 1 without clipping.

        ``clip`` for all of them, unless a subclass has others.
        """
        clip = self._clip()
        return 1.0 if clip is None else clip

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases, for their norms and blocks: their multipliers may be relative.

        Where a plan takes long to calibrate, a subclass says it without one: clients ask in every
        round.
        """
        return self.plan().rounds[round_number - 1]

    def moves_of_a_record(self, round_number: int) -> tuple[float, ...]:
        """Return by how much one record of a client moves its part of each of a round's releases.

        For a budget that protects clients, and a client that stays. In the units of the noise and
        in the norm of each release (docs/guarantees.md, "Client-level privacy"); at most 2, the way
        from one end of the clip to the other.
        """
        releases, units = self.releases(round_number), self.units(round_number)
        places = self.places(round_number)
        parts = [
            (units[np.concatenate([places[name] for name in release.blocks])], release.norm)
            for release in releases
        ]
        steps = [1.0 / self.clip_of(release) for release in releases]
        shared = max(steps) if self.clips_together and len(releases) > 1 else None
        return tuple(
            move_of_a_record(part, norm, step, shared)
            for (part, norm), step in zip(parts, steps, strict=True)
        )

    @abstractmethod
    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return one client's answer; zeros for no records."""

    def answer(self, query: Query, records: GridRecords) -> Statistic:
        """Return what a client adds to a round's sum: its statistic, clipped for ``unit="client"``.

        Then each release, in its norm and jointly over its blocks, is scaled to at most 1 in
        ``units`` and truncated toward zero (docs/guarantees.md, "Client-level privacy"); where the
        algorithm ``clips_together``, by the least factor of the round. A word that no release
        covers has no noise, so it is 0.

        Raises
        ------
        ConfigurationError
            If the budget protects clients and the algorithm has no ``clip``.
        """
        statistic = self.statistic(query, records)
        if self._clip() is None:
            return statistic
        units = self.units(query.round)
        vector = self.flatten(statistic, query.round)
        clipped, places = np.zeros_like(vector), self.places(query.round)
        parts = []
        for release in self.releases(query.round):
            words = np.concatenate([places[name] for name in release.blocks])
            parts.append((words, clip_factor(vector[words], units[words], release.norm)))
        least = min((factor for _, factor in parts), default=1.0)
        for words, factor in parts:
            kept = least if self.clips_together else factor
            clipped[words] = shortened(vector[words], units[words], kept)
        return self.unflatten(clipped, query.round)

    def _clip(self) -> float | None:
        """Return ``clip`` if clients are protected; an algorithm that has none must not go on."""
        if not self.budget.protects_clients:
            return None
        clip = getattr(self, "clip", None)
        if clip is None:
            raise ConfigurationError(
                f"Expected a budget with unit='record' for {type(self).__name__}, which does not "
                "clip what a client adds. Got unit='client' instead."
            )
        return float(clip)

    def check_query(self, query: Query) -> None:
        """Require the arrays of the round, with their shapes, as int64 and within their ranges.

        Raises
        ------
        MessageError
            If a query is no such one; without a word about its values.
        """
        number, arrays = query.round, query.arrays
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

    def notes(self, state: State) -> tuple[str, ...]:
        """Return what the run's reader should know about how it went, from released values only."""
        return ()

    def cost_estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return the cost at the centroids, if the last round released what tells it.

        Parameters
        ----------
        state : State
        noise_factor : float, default: 1
            By how much the noise's standard deviation exceeded the plan's (distributed noise).
        """
        return None

    @abstractmethod
    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after the noisy sum of all answers.

        Total: it accepts any integers. Noise makes every word possible, and an error here would
        tell others about words that nobody may see. ``rng`` is for algorithms that are not
        replayable.
        """

    def without_sum(self, state: State) -> State | None:
        """Return the state after a round whose sum was lost; ``None`` if it cannot be missed."""
        return None

    @abstractmethod
    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d), or ``None`` if there are none yet."""

    @abstractmethod
    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes of the last round, (k,), or ``None`` before it."""

    @abstractmethod
    def to_config(self) -> dict[str, Any]:
        """Return the parameters for a run document, without domain and budget."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> Self:
        """Return the algorithm that ``to_config`` described.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError, MessageError
            If a parameter is missing, unknown or not acceptable.
        """

    def words(self, round_number: int) -> int:
        """Return the number of words of a round's statistic."""
        return sum(block.size for block in self.layout(round_number))

    def places(self, round_number: int) -> dict[str, NDArray[np.intp]]:
        """Return where the words of each block are in a round's vector, in layout order."""
        places, start = {}, 0
        for block in self.layout(round_number):
            places[block.name] = np.arange(start, start + block.size)
            start += block.size
        return places

    def flatten(self, statistic: Statistic, round_number: int) -> IntArray:
        """Return a statistic as one vector, (words,) int64, in layout order."""
        parts = []
        for block in self.layout(round_number):
            array = statistic.blocks[block.name]
            if array.shape != block.shape or array.dtype != np.int64:
                raise ValueError(
                    f"Expected block {block.name!r} as int64 of shape {block.shape}. "
                    f"Got {array.dtype} of shape {array.shape} instead."
                )
            parts.append(array.reshape(-1))
        return np.concatenate(parts)

    def unflatten(self, vector: IntArray, round_number: int, answered: float = 1.0) -> Statistic:
        """Return the statistic that ``flatten`` wrote as a vector (words,) int64.

        ``answered`` is the part of the run's places whose answers are in it.
        """
        words = self.words(round_number)
        if vector.shape != (words,) or vector.dtype != np.int64:
            raise ValueError(
                f"Expected {words} words of int64. "
                f"Got {vector.dtype} of shape {vector.shape} instead."
            )
        blocks, start = {}, 0
        for block in self.layout(round_number):
            blocks[block.name] = vector[start : start + block.size].reshape(block.shape)
            start += block.size
        return Statistic(blocks, answered)


def require_capacity(bound: float, limit: int = LIMIT, explanation: str = "") -> None:
    """Require that sums up to a bound are exact.

    Parameters
    ----------
    bound : int or float
        Largest absolute value that a word of a sum can take, noise included.
    limit : int, default: 2**63
        Below which absolute values the secure sum is exact.
    explanation : str
        Where the bound comes from; it ends the error's message.

    Raises
    ------
    ConfigurationError
        If ``bound`` is not below ``limit``, or is NaN.
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
AlgorithmType = TypeVar("AlgorithmType", bound=type[Algorithm])


def register(algorithm: AlgorithmType) -> AlgorithmType:
    """Make an algorithm known to ``algorithm_from_config`` under its name (a class decorator)."""
    _REGISTRY[algorithm.name] = algorithm
    return algorithm


def algorithm_from_config(
    config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget
) -> Algorithm:
    """Return the algorithm that a run document describes.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError, MessageError
        If the name is unknown, or a parameter is missing, unknown or not acceptable.
    """
    name = config.get("name")
    if not isinstance(name, str) or name not in _REGISTRY:
        raise ConfigurationError(f"Expected the name of an algorithm in {sorted(_REGISTRY)}.")
    return _REGISTRY[name].from_config(config, domain, budget)
