"""PE-means and HDPE-means: clustering by private evolution.

A population of public candidates is voted on: every record votes for the nearest one. Weighted
k-means on the noisy votes selects the centroids, and variations of these are the next population
(PE-means, Algorithm 1). Each round asks for a histogram of votes and for nothing else, so its noise
depends on no radius. In many columns HDPE-means votes on a projection, and a last round of sums and
counts lifts the centroids out of it (Algorithm 3).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import (
    UNUSABLE,
    IntArray,
    Query,
    Range,
    State,
    Statistic,
    register,
)
from flower_kmeans.algorithms.grid_kmeans import grid_kmeans
from flower_kmeans.algorithms.histogram import expected_total, zero_small
from flower_kmeans.algorithms.lloyd import COUNTS, MIN_COUNT, SUMS
from flower_kmeans.algorithms.pe_means_parameters import DIRECTIONS, PEMeansParameters
from flower_kmeans.algorithms.pe_means_population import gather, packed, variations
from flower_kmeans.algorithms.portable import normals
from flower_kmeans.algorithms.postprocess import into_domain, quotients, scaled, to_grid
from flower_kmeans.algorithms.projection import ProjectedRecords, lifted_sums
from flower_kmeans.assignment import assign, vote_counts
from flower_kmeans.domain import GridRecords
from flower_kmeans.errors import MessageError
from flower_kmeans.initialization import public_words, random_words, round_words

FloatArray = NDArray[np.float64]

NOTES = (
    "The population was capped by max_candidates.",
    "The noise of the votes exceeded their signal: the variations were halved at least once.",
    "No candidate kept any votes in a round: it changed no centroid.",
    "Fewer candidates than clusters kept votes in a round: some centroids are there without any.",
    "Some clusters had too small a noisy count in the last round: they are where the projection "
    "has them.",
)
CAPPED, HALVED, NO_VOTES, FEW, NOT_LIFTED = range(len(NOTES))

_STEPS = 12  # of k-means, for each start
_CHOSEN_WORK, _CHOSEN_PER_CLUSTER = 2**14, 6
_PROJECTION = 2 << 64  # keys of the projection: beside the seed, what it is for


@register
@dataclass(frozen=True, init=False)
class PEMeansAlgorithm(PEMeansParameters):
    """Private evolution of centroids by votes.

    Source: *PE-means: Improved Differentially Private k-means Clustering through Private
    Evolution*, Algorithms 1 and 2.

    Formal guarantee: a record has one vote, so one record changes the votes of a round by 1 in l1
    and in l2, whatever the candidates are; all rounds have the same noise, and the plan composes
    them (docs/guarantees.md, "PE-means").

    Parameters
    ----------
    n_clusters : int
        k, at most 10,000.
    domain : Ball or Box
        Public bounds; of a box the enclosing ball is meant, cut to the box.
    budget : PrivacyBudget
        For the whole run.
    n_records : int, optional
        Public planning figure for the total number of records. Required with a private budget.
    n_clients : int, optional
        Public planning figure for the number of clients. Required with a private budget of
        ``unit="client"``, and refused otherwise.
    clip : float, optional
        With ``unit="client"`` only: how many records' worth of one client count in each release.
        Default: ``n_records / n_clients``, and the square root of that for votes.
    clips : mapping of str to float, optional
        Clips of single releases ("votes"; HDPE-means also "lift-sums", "lift-counts").
    n_vote_rounds : int or "auto"
        Rounds of votes. "auto" follows the paper: ``4 max(1, epsilon) sqrt d`` of them.
    n_variations : int or "auto"
        L, variations of each centroid in the first rounds. "auto" follows the paper: a fifth of
        ``n_records``, at least 4. They are halved whenever the noise of a round exceeds its signal.
    max_candidates : int
        The largest population, from 2 k up to 2^22, the words of a message: every candidate is one
        word of a client's answer.
    seed : int
        Public randomness, in [0, 2**53): of the first population, of the projection, and of
        ``update``.
    fraction_bits : int
        q; the grid's step is ``2**-q`` of the scaled domain.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If a parameter is out of range, parameters contradict each other, or sums could overflow.
    """

    name: ClassVar[str] = "pe-means"
    replayable: ClassVar[bool] = True
    remarks: ClassVar[tuple[str, ...]] = NOTES

    # ------------------------------------------------------------------ queries

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the state before round 1, which needs nothing but the seed."""
        flags = np.zeros(len(NOTES), dtype=np.int64)
        wanted = self.n_clusters * (self.n_variations + 1)
        flags[CAPPED] = wanted > self.max_candidates
        most = np.array([self.most_variations], dtype=np.int64)
        return State(0, {"variations": most, "flags": flags})

    def check_query(self, query: Query) -> None:
        """Require the arrays of the round, with their shapes, as int64 and within their ranges.

        Within these ranges every distance is exact, every unit holds and no population is larger
        than the cap, whatever a server sent.
        """
        super().check_query(query)
        number, arrays = query.round, query.arrays
        if number > 1:
            centers = arrays["centers"].astype(np.float64)  # squares below 2**53: exact
            if (np.einsum("ij,ij->i", centers, centers) > float(self.space.radius**2)).any():
                raise MessageError(UNUSABLE)

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the arrays of a round's query; its size does not grow with L.

        Round 1 has none, its population follows from the run's seed. Later: ``centers`` (k, p) that
        were selected, and for votes ``variations`` (1,), of each of them, and ``seed`` (2,), 16
        bytes from which they are made.
        """
        if round_number == 1:
            return {}
        limit = np.array(self.space.half_widths, dtype=np.int64)
        centers = {"centers": ((self.n_clusters, len(limit)), -limit, limit)}
        if round_number > self.n_vote_rounds:
            return centers
        return {
            **centers,
            "variations": ((1,), 1, self.most_variations),
            "seed": ((2,), -(2**63), 2**63 - 1),
        }

    def _population(self, query: Query) -> Iterator[FloatArray]:
        """Yield the candidates of a round in blocks (m, p), integers in float64."""
        arrays = query.arrays
        if query.round == 1:
            return iter([packed(self.n_start, self.space, self.seed)])
        low, high = (int(word) % 2**64 for word in arrays["seed"])
        key = low | high << 64
        return variations(arrays["centers"], int(arrays["variations"][0]), key, self.space)

    def _n_candidates(self, query: Query) -> int:
        if query.round == 1:
            return self.n_start
        return self.n_clusters * (int(query.arrays["variations"][0]) + 1)

    # ------------------------------------------------------------------ answers

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return how many of the client's records are nearest to each candidate."""
        votes = vote_counts(self._seen(records), self._population(query), self.words(query.round))
        return Statistic({COUNTS: votes << self.fraction_bits})

    def _seen(self, records: GridRecords) -> GridRecords:
        """Return the records as they vote."""
        return records

    # ------------------------------------------------------------------ updates

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum. ``rng`` is not used."""
        number, flags = state.round + 1, state.arrays["flags"].copy()
        arrays = self._select(self.query(state), state, answer, flags)
        return State(number, {**state.arrays, **arrays, "flags": flags})

    def _select(
        self, query: Query, state: State, answer: Statistic, flags: IntArray
    ) -> dict[str, IntArray]:
        """Select centroids from the votes, and say what the next population is made of."""
        size, q = self._n_candidates(query), self.fraction_bits
        source = round_words(self.seed, query.round)
        seed = random_words(source, 2).view(np.int64)
        votes = answer.blocks[COUNTS].copy()
        votes[size:] = 0  # of candidates that were halved away
        noise = self.noise_of(query.round)[COUNTS] * 2.0**-q
        planned = math.inf if self.n_records is None else float(self.n_records)
        of_sum = noise * math.sqrt(size / len(votes))  # by bin, where only some have noise
        total = expected_total(scaled(votes, q), of_sum, planned, answer.answered)
        kept = zero_small(scaled(votes, q), total)
        whole = query.arrays
        if query.round > 1:  # as if nothing was ever halved: the same candidates, then others
            whole = {**whole, "variations": np.array([self.most_variations])}
        votes = np.where(kept > 0, votes, 0)
        arrays = self._centers(Query(query.round, whole), votes, flags, source)
        n_variations = int(state.arrays["variations"][0])
        # Signal to noise by Algorithm 1, line 8, where the noise is that of all candidates
        # (docs/guarantees.md, "PE-means").
        weak = math.fsum((kept * kept).tolist()) < size * noise * noise
        if weak and n_variations > 1:
            n_variations, flags[HALVED] = n_variations // 2, True
        return {**arrays, "variations": np.array([n_variations], dtype=np.int64), "seed": seed}

    def _centers(
        self, query: Query, votes: IntArray, flags: IntArray, source: np.random.Philox
    ) -> dict[str, IntArray]:
        """Return selected centres (k, p) and how many votes are nearest to each.

        Of as many candidates as `most_chosen` says, whatever their votes are: the steps are the
        same for all sums.
        """
        k = self.n_clusters
        order = np.argsort(-votes, kind="stable")
        chosen = np.sort(order[: self.most_chosen(query.round)])
        points = gather(self._population(query), chosen)
        weights, n_voted = votes[chosen], int(np.count_nonzero(votes))
        found = grid_kmeans(points, weights, k, source, n_steps=_STEPS).points.astype(np.float64)
        # The first candidates are the centroids before, or the most spread of all.
        first = points[np.searchsorted(chosen, np.sort(order[:k]))]
        if n_voted < k:
            flags[FEW if n_voted else NO_VOTES] = True
        centers = np.where(n_voted < k, first, self.space.cut(found)).astype(np.int64)
        labels, _ = assign(points, centers)
        counts = np.zeros(k, dtype=np.int64)
        np.add.at(counts, labels, weights)
        return {"centers": centers, "counts": counts}

    def most_chosen(self, round_number: int) -> int:
        """Return how many candidates a round's centres are selected from; all without noise."""
        size, k = self.words(round_number), self.n_clusters
        if not self.budget.is_private:
            return size
        return min(size, max(_CHOSEN_WORK // k, _CHOSEN_PER_CLUSTER * k))

    # ------------------------------------------------------------------ results

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d); ``None`` before there are any."""
        if "centers" not in state.arrays:
            return None
        return self.domain.from_unit(scaled(state.arrays["centers"], self.fraction_bits))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes of the last round, (k,); ``None`` before there are any."""
        if "counts" not in state.arrays:
            return None
        return scaled(state.arrays["counts"], self.fraction_bits)


@register
@dataclass(frozen=True, init=False)
class HDPEMeansAlgorithm(PEMeansAlgorithm):
    """PE-means on a random projection to 16 columns, and one round that lifts the centroids.

    Source: the same, Algorithm 3, with a projection that keeps lengths on average
    (docs/guarantees.md, "PE-means"). Parameters are those of `PEMeansAlgorithm`; "auto" takes two
    rounds of votes less, whose privacy pays for the sums and the counts of the last round.

    Formal guarantee: of the last round, one record changes the sums by the domain's l2 bound and
    the counts by 1, both in l2.
    """

    name: ClassVar[str] = "hdpe-means"
    projects: ClassVar[bool] = True

    @cached_property
    def matrix(self) -> IntArray:
        """The projection (d, 16) on the grid: normal numbers of variance 1 / 16."""
        shape = self.domain.n_features, DIRECTIONS
        words = random_words(public_words(self.seed + _PROJECTION), math.prod(shape))
        return self.projection.matrix(normals(words).reshape(shape) / math.sqrt(DIRECTIONS))

    def _seen(self, records: GridRecords) -> GridRecords:
        return ProjectedRecords(records, self.projection, self.matrix)

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the votes of the client's records, or their sums and counts by centroid."""
        if query.round <= self.n_vote_rounds:
            return super().statistic(query, records)
        centers = query.arrays["centers"]
        sums, counts = lifted_sums(records, self.projection, self.matrix, centers)
        return Statistic({SUMS: sums, COUNTS: counts << self.fraction_bits})

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum. ``rng`` is not used."""
        if state.round < self.n_vote_rounds:
            return super().update(state, answer)
        flags, noise = state.arrays["flags"].copy(), self.noise_of(self.n_rounds)
        counts, q = answer.blocks[COUNTS], self.fraction_bits
        # With fewer records, the noise of a mean would be longer than the domain's radius.
        longest = noise[SUMS] * math.sqrt(self.domain.n_features) / self.domain.l2_bound(q)
        least = max(MIN_COUNT, longest, noise[COUNTS] * 2.0**-q)
        means, usable = quotients(answer.blocks[SUMS], counts, q, least)
        flags[NOT_LIFTED] = not usable.all()
        # A transposed projection lengthens by d / 16 on average.
        back = self.projection.lift(state.arrays["centers"], self.matrix)
        back *= DIRECTIONS / self.domain.n_features
        centroids = to_grid(np.where(usable[:, None], means, back))
        inside = into_domain(centroids, self.domain, q)
        arrays = {"centroids": inside, "counts": counts.copy()}
        return State(self.n_rounds, {**state.arrays, **arrays, "flags": flags})

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d); ``None`` before the last round."""
        if "centroids" not in state.arrays:
            return None
        return self.domain.from_unit(scaled(state.arrays["centroids"], self.fraction_bits))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes, (k,); ``None`` before the last round."""
        return super().counts(state) if state.round == self.n_rounds else None
