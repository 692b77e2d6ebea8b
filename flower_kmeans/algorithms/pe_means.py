"""PE-means and HDPE-means: clustering by private evolution.

Every record votes for the nearest candidate of a public population. Weighted k-means on
the noisy votes selects centroids, and variations of these are the next population
(PE-means, Algorithm 1). A round releases only a histogram of votes, so its noise does
not depend on a radius. With many columns HDPE-means votes on a projection, and a last
round of sums and counts lifts the centroids to all columns (Algorithm 3).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from flower_kmeans.algorithms import feasibility
from flower_kmeans.algorithms.base import (
    MAX_ROUNDS,
    Algorithm,
    noise_of_counts,
    resolved,
)
from flower_kmeans.algorithms.clips import Clipping, Clips, require_clips
from flower_kmeans.algorithms.feasibility import (
    MAX_RUN_WORDS,
    MAX_WORDS,
    with_capacity,
)
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Block, Layout, Statistic
from flower_kmeans.algorithms.lloyd import MAX_PACKING
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.assignment import Centers, vote_counts
from flower_kmeans.algorithms.numerics.grid_kmeans import grid_kmeans
from flower_kmeans.algorithms.numerics.initialization import (
    public_words,
    random_words,
    round_words,
)
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    expected_total,
    into_domain,
    quotients,
    scaled,
    to_grid,
    zero_small,
)
from flower_kmeans.algorithms.numerics.projection import (
    ProjectedRecords,
    Projection,
    lifted_sums,
)
from flower_kmeans.algorithms.pe_means_population import (
    Space,
    gather,
    packed,
    variations,
)
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.algorithms.tightened import innermost
from flower_kmeans.algorithms.weights import planned_total
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import (
    FLAG,
    LARGEST,
    drafted,
    integer,
    is_auto,
    reals,
    whole,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release

DIRECTIONS = 16
"""Number of columns after the projection of HDPE-means (PE-means, Section IV-D)."""

MAX_CANDIDATES = 2**13
"""Default cap on the population. More candidates rarely help, and take time."""

SPREAD = 1.5
"""Radius of projected candidates, in radii of the domain. A projection lengthens some records."""

LIFT_FRACTION = 0.6
"""Fraction of mu^2 for the lift (docs/guarantees, Theorem 28)."""

LARGEST_ERROR = 0.3
"""Error of a lifted mean, in radii of the domain, above which the plan has a warning."""

VOTES = "votes"
LIFT_SUMS = "lift-sums"
LIFT_COUNTS = "lift-counts"

WARNINGS = (
    "The population was capped by max_candidates.",
    "The noise of the votes exceeded their signal: the variations were halved at least once.",
    "No candidate kept any votes in a round: it changed no centroid.",
    "Fewer candidates than clusters kept votes in a round: some centroids are there without any.",
    "Some clusters had too small a noisy count in the last round: they are where the projection "
    "has them.",
)
CAPPED, HALVED, NO_VOTES, FEW, NOT_LIFTED = range(len(WARNINGS))

_STEPS = 12  # steps of k-means for each start
# Centres are selected from this over k candidates, or from this many times k if that is
# more.
_CHOSEN_WORK = 2**14
_CHOSEN_PER_CLUSTER = 6
_PROJECTION = 2 << 64  # added to the seed, for the key of the projection


@register
@dataclass(frozen=True, kw_only=True)
class PEMeansAlgorithm(Algorithm):
    """Private evolution of centroids by votes.

    Source: *PE-means: Improved Differentially Private k-means Clustering through
    Private Evolution*, Algorithms 1 and 2.

    Formal guarantee: a record has one vote, so one record changes the votes of a round
    by 1 in l1 and in l2, for any candidates. All rounds have the same noise, and the
    plan composes them (docs/guarantees, Theorem 28).

    ``clip`` is ``n_records / n_clients`` by default, and for votes the square root of
    that. ``clips`` replace it for single releases. The number L of variations of each
    centroid is halved whenever the noise of a round exceeds its signal. Every candidate
    is one word of a client's answer. For a box, candidates lie in its enclosing ball
    and in the box.

    `strategies.PEMeans` documents the parameters. ``n_vote_rounds`` is its number of
    rounds. ``clips`` has the clip of every release, and is ``None`` unless clients are
    protected.
    """

    name: ClassVar[str] = "pe-means"
    replayable: ClassVar[bool] = True
    weighs_in_one_pass: ClassVar[bool] = True
    possible_warnings: ClassVar[tuple[str, ...]] = WARNINGS
    # Whether records vote after a projection, and a last round lifts the centroids.
    projects: ClassVar[bool] = False
    RELEASES: ClassVar[tuple[str, ...]] = (VOTES,)

    clips: Annotated[Clips | None, reals(VOTES)] = None
    n_vote_rounds: Annotated[int, whole(1, MAX_ROUNDS, auto=True)]
    n_variations: Annotated[int, whole(1, LARGEST, auto=True)]
    max_candidates: Annotated[int, whole()] = MAX_CANDIDATES

    @classmethod
    def planned(
        cls,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        clips: Mapping[str, float] | None = None,
        n_vote_rounds: int | Literal["auto"] = "auto",
        n_variations: int | Literal["auto"] = "auto",
        **options: Any,
    ) -> Self:
        """Return the algorithm for a user's options.

        Clips, rounds and variations that are not given are chosen.
        """
        options["clips"] = clips
        options["n_vote_rounds"] = drafted(n_vote_rounds, 1)
        options["n_variations"] = drafted(n_variations, 1)
        fields = resolved(cls, n_clusters, domain, budget, options)
        given = dict(fields["clips"] or ())
        clip = fields.get("clip")
        if clip is not None:
            has_own = options.get("clip") is not None
            fields["clips"] = cls._all_clips(clip, given, is_default=not has_own)
        elif not given:
            fields["clips"] = None
        draft = cls(**fields)
        if is_auto(n_variations):
            draft = replace(draft, n_variations=draft.suitable_variations())
        if is_auto(n_vote_rounds):
            draft = replace(draft, n_vote_rounds=draft.suitable_rounds())
        draft = with_capacity(draft)
        draft.require_feasible()
        return draft

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        require_clips(self.clips, self.clip, self.budget)
        names = [name for name, _ in self.clips or ()]
        if self.clips is not None and names != sorted(self.RELEASES):
            raise ConfigurationError(
                f"Expected the clips of all releases, {sorted(self.RELEASES)}. Got those of "
                f"{names} instead."
            )
        if self.projects and self.domain.n_features <= DIRECTIONS:
            raise ConfigurationError(
                f"Expected more than {DIRECTIONS} columns, to which records are projected. Got "
                f"{self.domain.n_features}: take PE-means, which does not project."
            )
        integer("max_candidates", self.max_candidates, 2 * self.n_clusters, MAX_WORDS)

    def require_feasible(self) -> None:
        """Refuse too large sizes, clips without effect, and sums that overflow."""
        self._check_size()
        feasibility.require_visible_clips(self)
        feasibility.require_capacity(self)

    @property
    def n_rounds(self) -> int:
        """Number of rounds, with the last round of HDPE-means."""
        return self.n_vote_rounds + self.projects

    # ------------------------------------------------------------------ the plan

    def layout(self, round_number: int) -> Layout:
        """Return the blocks of a round.

        A round of votes has one count for each candidate. The number of counts is the
        largest possible one, so after a population was halved, some words are noise
        alone. The last round of HDPE-means has sums, (k, d), and counts, (k,).
        """
        k = self.n_clusters
        d = self.domain.n_features
        q = self.fraction_bits
        if round_number > self.n_vote_rounds:
            sums = Block(SUMS, (k, d), q)
            counts = Block(COUNTS, (k,), q)
            return Layout((sums, counts))
        most = self._population_size(round_number, self.most_variations)
        return Layout((Block(COUNTS, (most,), q),))

    def _population_size(self, round_number: int, n_variations: int) -> int:
        """Return the number of candidates of a round of votes."""
        if round_number == 1:
            return self.n_start
        return self.n_clusters * (n_variations + 1)

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases. All votes have the same noise multiplier."""
        multipliers = self._multipliers
        if round_number <= self.n_vote_rounds:
            return (Release(VOTES, "gaussian", "l2", multipliers[VOTES], (COUNTS,)),)
        return (
            Release(LIFT_SUMS, "gaussian", "l2", multipliers[LIFT_SUMS], (SUMS,)),
            Release(LIFT_COUNTS, "gaussian", "l2", multipliers[LIFT_COUNTS], (COUNTS,)),
        )

    @property
    def _multipliers(self) -> Mapping[str, float]:
        """The noise multiplier of each release, up to a common factor."""
        return dict.fromkeys(self.RELEASES, 1.0)

    @property
    def clipping(self) -> Clipping:
        """How the part of one client is limited: each release has its own clip."""
        return replace(super().clipping, own=self.clips or (), is_joint=True)

    # ------------------------------------------------------------------ queries

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the state before round 1. ``rng`` is not used."""
        flags = np.zeros(len(WARNINGS), dtype=np.int64)
        wanted = self.n_clusters * (self.n_variations + 1)
        flags[CAPPED] = wanted > self.max_candidates
        most = np.array([self.most_variations], dtype=np.int64)
        return State(0, {"variations": most, "flags": flags})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the ranges of the arrays of a round's query.

        The query of round 1 has no arrays, because its population follows from the
        run's seed. Later queries have the selected ``centers``, (k, p), within the
        space: there every distance is exact, every sensitivity holds, and no population
        exceeds the cap. For votes they also have the number of ``variations``, (1,),
        and their ``seed``, (2,), of 16 bytes. So the size of a query does not depend on
        L.
        """
        if round_number == 1:
            return {}
        limit = np.array(self.space.half_widths, dtype=np.int64)
        shape = self.n_clusters, len(limit)
        centers = Range(shape, -limit, limit, longest=self.space.radius)
        ranges = {"centers": centers}
        if round_number <= self.n_vote_rounds:
            ranges["variations"] = Range((1,), 1, self.most_variations)
            ranges["seed"] = Range((2,), -(2**63), 2**63 - 1)
        return ranges

    def _population(self, query: Query) -> Iterator[FloatArray]:
        """Yield the candidates of a round in blocks, (m, p), integers in float64."""
        if query.round == 1:
            first = packed(self.n_start, self.space, self.seed)
            return iter([first])
        low, high = (int(word) % 2**64 for word in query.arrays["seed"])
        key = low | high << 64
        n_variations = int(query.arrays["variations"][0])
        return variations(query.arrays["centers"], n_variations, key, self.space)

    # ------------------------------------------------------------------ answers

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the votes: the number of the client's records nearest to each candidate."""
        seen = self._seen(records)
        n_words = self.layout(query.round).n_words
        votes = vote_counts(seen, self._population(query), n_words)
        return Statistic({COUNTS: votes << self.fraction_bits})

    def _seen(self, records: GridRecords) -> GridRecords:
        """Return the records that vote: with HDPE-means, their projections."""
        return records

    # ------------------------------------------------------------------ updates

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum. ``rng`` is not used."""
        flags = state.arrays["flags"].copy()
        arrays = self._select(self.query(state), state, answer, flags)
        return State(state.round + 1, {**state.arrays, **arrays, "flags": flags})

    def _select(
        self, query: Query, state: State, answer: Statistic, flags: IntArray
    ) -> dict[str, IntArray]:
        """Return selected centres, and variations and seed of the next population."""
        source = round_words(self.seed, query.round)
        # The words are viewed as int64, the only type of a query's arrays.
        seed = random_words(source, 2).view(np.int64)
        n_variations = int(state.arrays["variations"][0])
        size = self._population_size(query.round, n_variations)
        noise = self.noise_of(query.round)[COUNTS] * 2.0**-self.fraction_bits
        votes = answer.blocks[COUNTS].copy()
        votes[size:] = 0  # these words have no candidates any more

        kept = self._kept_votes(votes, size, noise, answer.answered)
        votes = np.where(kept > 0, votes, 0)
        arrays = self._centers(self._as_if_whole(query), votes, flags, source)
        # This is the comparison of Algorithm 1, line 8, with the noise of all
        # candidates (docs/guarantees, Theorem 28).
        signal = math.fsum((kept * kept).tolist())
        weak = signal < size * noise * noise
        if weak and n_variations > 1:
            n_variations = n_variations // 2
            flags[HALVED] = True
        arrays["variations"] = np.array([n_variations], dtype=np.int64)
        arrays["seed"] = seed
        return arrays

    def _kept_votes(
        self, votes: IntArray, size: int, noise: float, answered: float
    ) -> FloatArray:
        """Return the votes in records, with 0 for the smallest (Algorithm 2).

        Only the first ``size`` words have candidates. Their noise has the standard
        deviation ``noise``, in records.
        """
        given = planned_total(self)
        planned = math.inf if given is None else float(given)
        counts = scaled(votes, self.fraction_bits)
        of_word = noise * math.sqrt(size / len(votes))
        total = expected_total(counts, of_word, planned, answered)
        return zero_small(counts, total)

    def _as_if_whole(self, query: Query) -> Query:
        """Return the query with the largest number of variations.

        Its population begins with the candidates of the query.
        """
        if query.round == 1:
            return query
        most = np.array([self.most_variations])
        return Query(query.round, {**query.arrays, "variations": most})

    def _centers(
        self, query: Query, votes: IntArray, flags: IntArray, source: np.random.Philox
    ) -> dict[str, IntArray]:
        """Return selected centres, (k, p), and the number of votes nearest to each, (k,).

        The selection always uses `most_chosen` candidates, so the time does not depend
        on the sum.
        """
        k = self.n_clusters
        order = np.argsort(-votes, kind="stable")
        chosen = np.sort(order[: self.most_chosen(query.round)])
        points = gather(self._population(query), chosen)
        weights = votes[chosen]
        found = grid_kmeans(points, weights, k, source, n_steps=_STEPS)
        selected = self.space.cut(found.points.astype(np.float64))

        # The first candidates are the centroids before, or in round 1 the first points
        # of the packing.
        places = np.searchsorted(chosen, np.sort(order[:k]))
        first = points[places]
        n_voted = int(np.count_nonzero(votes))
        if n_voted < k:
            flags[FEW if n_voted else NO_VOTES] = True
        centers = np.where(n_voted < k, first, selected).astype(np.int64)
        nearest = Centers(centers).nearest(points)
        counts = np.zeros(k, dtype=np.int64)
        np.add.at(counts, nearest, weights)
        return {"centers": centers, "counts": counts}

    def most_chosen(self, round_number: int) -> int:
        """Return the number of candidates for the selection. Without noise it is all."""
        k = self.n_clusters
        size = self.layout(round_number).n_words
        if not self.budget.is_private:
            return size
        most = max(_CHOSEN_WORK // k, _CHOSEN_PER_CLUSTER * k)
        return min(size, most)

    # ------------------------------------------------------------------ results

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d), or ``None`` without any yet."""
        name = "centroids" if self.projects else "centers"
        if name not in state.arrays:
            return None
        # A candidate may have a negative share of a category's level.
        inside = into_domain(state.arrays[name], self.domain, self.fraction_bits)
        return self.domain.as_centroids(scaled(inside, self.fraction_bits))

    # ------------------------------------------------------------------ derived sizes

    @property
    def most_variations(self) -> int:
        """Most variations of a centroid in a round, within the cap on candidates."""
        return min(self.n_variations, self.max_candidates // self.n_clusters - 1)

    @property
    def n_start(self) -> int:
        """Number of candidates of the first round.

        With many columns it is smaller, because packing compares all pairs.
        """
        k = self.n_clusters
        p = len(self.space.half_widths)
        packable = math.isqrt(MAX_PACKING // p)
        most = min(self.max_candidates, packable)
        wanted = min(k * self.n_variations, most)
        return max(wanted, k)

    @cached_property
    def projection(self) -> Projection:
        """The grids of the projection of HDPE-means."""
        # A projected record is rarely longer than twice the domain's radius, and few
        # bits leave room for the search of the nearest candidate.
        return Projection(
            self.domain, self.fraction_bits, DIRECTIONS, self.fraction_bits + 1
        )

    @cached_property
    def space(self) -> Space:
        """The space of candidates: the domain, or its projection."""
        q = self.fraction_bits
        bound = self.domain.l2_bound(q)
        if not self.projects:
            widths = self.domain.grid_half_widths(q).tolist()
            return Space(math.floor(bound), tuple(widths))
        limit = self.projection.limit
        shift = self.projection.exponent - q
        radius = math.floor(bound * SPREAD * 2.0**shift)
        return Space(min(limit, radius), (limit,) * DIRECTIONS)

    # ------------------------------------------------------------------ details

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units."""
        bound: float = self.domain.l2_bound(self.fraction_bits)
        return {SUMS: bound, COUNTS: float(2**self.fraction_bits)}

    @classmethod
    def _all_clips(
        cls, clip: float, given: Mapping[str, float], *, is_default: bool
    ) -> Clips:
        """Return the clip of every release: its own if given, or else the common one."""
        found = dict.fromkeys(cls.RELEASES, clip)
        if is_default:
            # A client's votes are spread over many candidates, so m votes have about
            # the norm sqrt m.
            found[VOTES] = max(1.0, math.sqrt(clip))
        return tuple(sorted({**found, **given}.items()))

    def suitable_variations(self) -> int:
        """Return the paper's L (Section IV-C), or without N as many as the cap allows."""
        total = planned_total(self)
        if total is None:
            return self.max_candidates // self.n_clusters - 1
        return max(total // 5, 4)

    def suitable_rounds(self) -> int:
        """Return T = 4 max(1, epsilon) sqrt d (PE-means, Section IV-C).

        With a projection it is two less.
        """
        epsilon = self.budget.epsilon
        columns = DIRECTIONS if self.projects else self.domain.n_features
        rounds = int(4 * max(1.0, epsilon or 1.0) * math.sqrt(columns))
        return min(MAX_ROUNDS, max(1, rounds - 2 * self.projects))

    def _check_size(self) -> None:
        """Refuse runs with too many words, because a run document sets a client's work."""
        k, d = self.n_clusters, self.domain.n_features
        if k * (d + 1) > MAX_WORDS:
            raise ConfigurationError(
                f"Expected n_clusters and columns with k (d + 1) <= {MAX_WORDS} words. "
                f"Got n_clusters={k} and {d} columns instead."
            )
        rounds = range(1, self.n_rounds + 1)
        words = sum(self.layout(number).n_words for number in rounds)
        if words > MAX_RUN_WORDS:
            raise ConfigurationError(
                f"Expected n_rounds and max_candidates so that each client sends at most "
                f"{MAX_RUN_WORDS} words. Got {words} words in {self.n_rounds} rounds."
            )


@register
@dataclass(frozen=True, kw_only=True)
class HDPEMeansAlgorithm(PEMeansAlgorithm):
    """PE-means on a random projection to 16 columns, and one round that lifts the centroids.

    Source: Algorithm 3 of the same paper, with a projection that keeps lengths on
    average (docs/guarantees, Theorem 28). Parameters are those of `PEMeansAlgorithm`.
    "auto" takes two rounds of votes less. Sums and counts of the last round together
    have `LIFT_FRACTION` of mu^2. With ``equal_noise`` all releases have the same noise
    multiplier, as in the paper.

    Formal guarantee: in the last round one record changes the sums by at most the
    domain's l2 bound, and the counts by 1, both in l2.
    """

    name: ClassVar[str] = "hdpe-means"
    projects: ClassVar[bool] = True

    RELEASES: ClassVar[tuple[str, ...]] = (VOTES, LIFT_SUMS, LIFT_COUNTS)

    clips: Annotated[Clips | None, reals(VOTES, LIFT_SUMS, LIFT_COUNTS)] = None
    equal_noise: Annotated[bool, FLAG] = False

    @property
    def _multipliers(self) -> Mapping[str, float]:
        if self.equal_noise:
            return super()._multipliers
        # mu^2 of a release is 1 / multiplier^2. That of sums over that of counts is
        # sqrt(4 d), as in GLloyd and FastLloyd (docs/guarantees, Theorem 15).
        counts_over_sums = 1 / math.sqrt(4 * self.domain.n_features)
        of_sums = LIFT_FRACTION / (1 + counts_over_sums)
        of_counts = LIFT_FRACTION - of_sums
        of_votes = (1 - LIFT_FRACTION) / self.n_vote_rounds
        fractions = {VOTES: of_votes, LIFT_SUMS: of_sums, LIFT_COUNTS: of_counts}
        return {name: 1 / math.sqrt(part) for name, part in fractions.items()}

    @cached_property
    def matrix(self) -> IntArray:
        """The projection on the grid, (d, 16): normal numbers of variance 1 / 16."""
        shape = self.domain.n_features, DIRECTIONS
        source = public_words(self.seed + _PROJECTION)
        words = random_words(source, math.prod(shape))
        directions = normals(words).reshape(shape) / math.sqrt(DIRECTIONS)
        return self.projection.matrix(directions)

    def _seen(self, records: GridRecords) -> GridRecords:
        return ProjectedRecords(records, self.projection, self.matrix)

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the votes of the client's records, or their sums and counts by centroid."""
        if query.round <= self.n_vote_rounds:
            return super().statistic(query, records)
        centers = query.arrays["centers"]
        sums, counts = lifted_sums(records, self.projection, self.matrix, centers)
        return Statistic({SUMS: sums, COUNTS: counts << self.fraction_bits})

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits on votes, and in the last round on sums and counts."""
        if state.round < self.n_vote_rounds:
            return super().meaning(state, answer)
        q = self.fraction_bits
        length = self.domain.l2_bound(q)
        widths = self.domain.grid_half_widths(q)
        return Meaning(sums=SUMS, length=length, widths=widths)

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum. ``rng`` is not used."""
        if state.round < self.n_vote_rounds:
            return super().update(state, answer)
        d = self.domain.n_features
        q = self.fraction_bits
        flags = state.arrays["flags"].copy()
        noise = self.noise_of(self.n_rounds)
        counts = answer.blocks[COUNTS]
        # With fewer records, the noise of a mean would exceed the domain's radius.
        longest = noise[SUMS] * math.sqrt(d) / self.domain.l2_bound(q)
        least = max(MIN_COUNT, longest, noise[COUNTS] * 2.0**-q)
        means, usable = quotients(answer.blocks[SUMS], counts, q, least)
        flags[NOT_LIFTED] = not usable.all()

        # A transposed projection lengthens by d / 16 on average.
        back = self.projection.lift(state.arrays["centers"], self.matrix)
        back *= DIRECTIONS / d
        lifted = np.where(usable[:, None], means, back)
        centroids = into_domain(to_grid(lifted), self.domain, q)
        changed = {"centroids": centroids, "counts": counts.copy(), "flags": flags}
        return State(self.n_rounds, {**state.arrays, **changed})

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes, (k,), or ``None`` before the last round."""
        return super().counts(state) if state.round == self.n_rounds else None

    def size_noise(self, all_answered: bool) -> float | None:
        """Return the planned noise of a size, in records; ``None`` with a clip."""
        return noise_of_counts(self)


def cautions(algorithm: Algorithm) -> tuple[str, ...]:
    """Return a warning of the plan if noise of a lifted mean exceeds what clusters differ by."""
    own = innermost(algorithm)
    total = planned_total(own)
    if not isinstance(own, HDPEMeansAlgorithm) or not own.budget.is_private:
        return ()
    if total is None:
        return ()
    root = math.sqrt(own.domain.n_features)
    # of a cluster's sum, as a length
    noise = own.noise_of(own.n_rounds)[SUMS] * root
    bound = own.domain.l2_bound(own.fraction_bits)
    error = noise * own.n_clusters / (total * bound)
    if error <= LARGEST_ERROR:
        return ()
    return (
        "WARNING: noise may hide how clusters differ: it makes the mean of an average cluster "
        f"wrong by {error:.2g} times the largest norm in the domain, more than "
        f"{LARGEST_ERROR:g}. Take fewer clusters or columns, a larger epsilon or more data.",
    )
