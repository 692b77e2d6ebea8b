"""FedDP-KMeans: an initialisation from points of the server, then private Lloyd rounds.

Three rounds find centroids (Algorithm 1). Second moments give a projection. Records vote
for the nearest of the server's projected points, and weighted k-means turns these into
projected centres. Sums and counts by nearest centre lift the centres back. Lloyd rounds
follow (Algorithm 2). The server computes every query from the sum before. Each kind of
round is a stage in its own module.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans import parameters
from flower_kmeans.algorithms import base
from flower_kmeans.algorithms import feddp_planning as planning
from flower_kmeans.algorithms.clips import Clipping, Clips, require_no_clips
from flower_kmeans.algorithms.feasibility import MAX_WORDS, with_capacity
from flower_kmeans.algorithms.feddp_clips import plain_clips, with_suggested_clips
from flower_kmeans.algorithms.feddp_lift import LiftStage
from flower_kmeans.algorithms.feddp_lloyd import LloydStage, LloydSums, Sums
from flower_kmeans.algorithms.feddp_projection import ProjectionStage
from flower_kmeans.algorithms.feddp_releases import (
    LAPLACE,
    RELEASES,
    default_shares,
    laplace_releases,
)
from flower_kmeans.algorithms.feddp_seeding import ANY_WEIGHT, MOST_WEIGHT, SeedingStage
from flower_kmeans.algorithms.feddp_stage import (
    LIFT,
    N_INITIAL,
    PROJECTION,
    WARNINGS,
    WEIGHTS,
    FedDPSetting,
    FedDPStage,
)
from flower_kmeans.algorithms.last_cost import LastCost
from flower_kmeans.algorithms.layout import Layout, Statistic
from flower_kmeans.algorithms.meaning import Meaning
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.numerics.projection import Projection
from flower_kmeans.algorithms.registry import register
from flower_kmeans.algorithms.state import Query, Range, State
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.parameters import FLAG, choice, drafted, is_auto, real, reals, whole
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release
from flower_kmeans.privacy.release import Mechanism

Contribution = Literal["sums", "means"]


@register
@dataclass(frozen=True, kw_only=True)
class FedDPAlgorithm(base.Algorithm):
    """Private k-means that starts from a server's points.

    Source: *Differentially Private Federated k-Means Clustering with Server-Side Data*,
    ICML 2025. Formal guarantee and the rules of ``"auto"``: docs/guarantees,
    Theorem 19.

    `strategies.FedDPKMeans` documents the options. Only the server has ``server_data``,
    rows of numbers in the user's units; a client makes the algorithm with their number,
    ``n_server_points``. ``n_lloyd_rounds`` is the number of rounds after the
    initialisation, and ``laplace`` has the releases with Laplace noise, sorted.
    """

    name: ClassVar[str] = "feddp"
    replayable: ClassVar[bool] = False
    weighs_in_one_pass: ClassVar[bool] = True
    possible_warnings: ClassVar[tuple[str, ...]] = WARNINGS

    clips: Annotated[Clips, reals(*RELEASES)] = ()
    contribution: Annotated[Contribution, choice("sums", "means")] = "sums"
    n_server_points: Annotated[int, whole()]
    n_lloyd_rounds: Annotated[int, whole(0, base.MAX_ROUNDS, auto=True)]
    margin: Annotated[float, real(1e-6, 1.0)] = 1.0
    min_weight: Annotated[float, real(ANY_WEIGHT, MOST_WEIGHT, auto=True)]
    sums: Annotated[Sums, choice("absolute", "relative", "narrowing", auto=True)]
    alpha: Annotated[float, real(1e-9, 1e9)]
    cost: Annotated[bool, FLAG] = False
    shares: Annotated[Clips, reals(*RELEASES)] = ()
    laplace: Annotated[tuple[str, ...], LAPLACE] = ()
    server_data: FloatArray | None = field(default=None, compare=False, repr=False)

    @classmethod
    def planned(
        cls,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        clips: Mapping[str, float] | None = None,
        shares: Mapping[str, float] | None = None,
        n_lloyd_rounds: int | Literal["auto"] = "auto",
        min_weight: float | Literal["auto"] = "auto",
        sums: Sums | Literal["auto"] = "auto",
        alpha: float | Literal["auto"] = "auto",
        mechanisms: Mechanism | Mapping[str, Mechanism] = "gaussian",
        server_data: ArrayLike | None = None,
        n_server_points: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the algorithm of a user's options, with the library's choices.

        Each step makes a new draft from the choices before: clips depend on the kind of
        sums, the number of rounds on the noise, narrowing on the number of rounds, and the
        least weight on the whole plan.
        """
        options["clips"] = clips
        options["shares"] = shares
        options["sums"] = drafted(sums, "absolute")
        options["alpha"] = drafted(alpha, planning.DEFAULT_ALPHA)
        options["n_lloyd_rounds"] = drafted(
            n_lloyd_rounds, planning.MOST_AUTO_LLOYD_ROUNDS
        )
        options["min_weight"] = drafted(min_weight, ANY_WEIGHT)
        n_points = n_clusters if n_server_points is None else n_server_points
        options["n_server_points"] = n_points
        draft = cls(**base.resolved(cls, n_clusters, domain, budget, options))
        has_default_clip = options.get("clip") is None and draft.clip is not None
        suggests = has_default_clip and server_data is not None
        clips_offsets = suggests and "lloyd-sums" not in dict(draft.clips)

        draft = planning.with_points(draft, server_data, n_server_points)
        if is_auto(sums):
            draft = planning.with_sums(draft, clips_offsets)
        if is_auto(alpha):
            draft = planning.with_alpha(draft, clips_offsets)
        draft = replace(draft, laplace=laplace_releases(mechanisms))
        if suggests:
            draft = replace(draft, clips=with_suggested_clips(draft))
        if is_auto(n_lloyd_rounds):
            draft = replace(draft, n_lloyd_rounds=planning.suitable_rounds(draft))
        if is_auto(sums) and is_auto(alpha):
            draft = planning.with_narrowing(draft)
        if is_auto(min_weight):
            draft = replace(draft, min_weight=planning.suitable_weight(draft))
        draft = with_capacity(draft)
        draft.require_feasible()
        return draft

    def __post_init__(self) -> None:
        """Check every parameter."""
        super().__post_init__()
        if self.adds_means:
            self._require_means()
        require_no_clips(self.clips, self.clip)
        parameters.integer(
            "n_server_points", self.n_server_points, self.n_clusters, MAX_WORDS
        )
        if self.sums == "narrowing" and not self.can_narrow:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 2, unit='record' and a radius whose square is at least "
                f"one grid step of 2^-{self.fraction_bits} with sums='narrowing'. "
                f"Got n_lloyd_rounds={self.n_lloyd_rounds}, unit={self.budget.unit!r} and "
                f"alpha={self.alpha!r} instead."
            )
        if self.cost and not self.n_lloyd_rounds:
            raise ConfigurationError(
                "Expected n_lloyd_rounds >= 1 with cost=True, which belongs to the last of them. "
                "Got n_lloyd_rounds=0."
            )
        radius = self.lloyd_sums.radius
        if radius is not None and radius < 1:
            raise ConfigurationError(
                f"Expected alpha so large that the radius is at least one grid step of "
                f"2^-{self.fraction_bits}. Got {self.alpha!r} instead."
            )

    def _require_means(self) -> None:
        """Require options under which clients can add means."""
        if self.budget.unit != "client":
            why = (
                f"unit={self.budget.unit!r}: a single record can move a client's "
                "mean as far as the domain allows"
            )
        elif self.weighted:
            why = "weighted=True: a mean is not a sum over records"
        elif self.cost:
            why = "cost=True, which needs the records of a cluster"
        else:
            return
        raise ConfigurationError(
            f"Expected contribution='sums' with {why}. Got contribution='means'."
        )

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return N_INITIAL + self.n_lloyd_rounds

    # ------------------------------------------------------------------ the stages

    def _stage(self, round_number: int) -> FedDPStage:
        """Return the stage of a round, which counts from 1."""
        if round_number == PROJECTION:
            return ProjectionStage(self._setting)
        if round_number == WEIGHTS:
            return self.seeding
        if round_number == LIFT:
            return LiftStage(self._setting)
        narrows = self.sums == "narrowing"
        is_first = round_number == N_INITIAL + 1
        return LloydStage(
            self._setting,
            self.lloyd_sums,
            has_spread=narrows and is_first,
            has_cost=self.cost and round_number == self.n_rounds,
            is_narrowed=narrows and not is_first,
        )

    @cached_property
    def _setting(self) -> FedDPSetting:
        """The public parameters of all stages."""
        return FedDPSetting(
            domain=self.domain,
            fraction_bits=self.fraction_bits,
            n_clusters=self.n_clusters,
            n_server_points=self.n_server_points,
            margin=self.margin,
            adds_means=self.adds_means,
        )

    @property
    def seeding(self) -> SeedingStage:
        """The stage of the server's points and their weights."""
        return SeedingStage(self._setting, self.min_weight)

    @cached_property
    def server_points(self) -> IntArray | None:
        """The server's points on the grid, (m, d) int64; ``None`` without them."""
        if self.server_data is None:
            return None
        unit = self.domain.to_unit(self.server_data)
        points = self.domain.quantise(unit, self.fraction_bits).astype(np.int64)
        points.setflags(write=False)
        return points

    @property
    def projection(self) -> Projection:
        """The grids of the projection."""
        return self._setting.projection

    @cached_property
    def lloyd_sums(self) -> LloydSums:
        """The sums of the Lloyd rounds."""
        return LloydSums(self._setting, self.sums, self.alpha)

    @property
    def adds_means(self) -> bool:
        """Whether clients add means, and which clusters they hold, from the lift on."""
        return self.contribution == "means"

    @property
    def can_narrow(self) -> bool:
        """Whether the radius of relative sums can narrow after the first Lloyd round."""
        has_rounds = self.n_lloyd_rounds >= 2
        has_radius = self.lloyd_sums.packing_radius**2 >= 2**self.fraction_bits
        return has_rounds and has_radius and not self.budget.protects_clients

    # ------------------------------------------------------------------ the plan

    def layout(self, round_number: int) -> Layout:
        """Return the layout of a round's blocks, from its stage."""
        return Layout(tuple(self._stage(round_number).released().values()))

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases, with noise multipliers relative to those of other rounds."""
        shares = default_shares(self.domain.n_features, self.sums != "absolute")
        shares |= dict(self.shares)
        found = []
        for name, block in self._stage(round_number).released().items():
            rounds = self.n_lloyd_rounds if name.startswith("lloyd") else 1
            # A fraction is one of mu^2, which is the inverse square of a multiplier.
            multiplier = 1 / math.sqrt(shares[name] / rounds)
            if name in self.laplace:
                found.append(Release(name, "laplace", "l1", multiplier, (block.name,)))
            else:
                found.append(Release(name, "gaussian", "l2", multiplier, (block.name,)))
        return tuple(found)

    def block_sensitivities(self, round_number: int) -> dict[str, float]:
        """Return the sensitivity of each block for one record, in grid units.

        For second moments it is the sensitivity of the diagonal.
        """
        return self._stage(round_number).sensitivities()

    @property
    def clipping(self) -> Clipping:
        """The clips of each release: the given ones, or `plain_clips`."""
        own = plain_clips(self) | dict(self.clips)
        return replace(
            super().clipping,
            own=tuple(own.items()),
            is_joint=True,
            first_means=LIFT if self.adds_means else None,
        )

    # ------------------------------------------------------------------ the rounds

    def initial_state(self, rng: np.random.Generator | None = None) -> State:
        """Return the state with the server's points on the grid. ``rng`` is not used.

        Raises
        ------
        ConfigurationError
            If the algorithm has no ``server_points``.
        """
        if self.server_points is None:
            raise ConfigurationError(
                "server_data is required to compute the server's part. Got None."
            )
        flags = np.zeros(len(WARNINGS), dtype=bool)
        return State(0, {"server": self.server_points, "flags": flags})

    def query_ranges(self, round_number: int) -> Mapping[str, Range]:
        """Return the ranges of a round's query, from its stage."""
        return self._stage(round_number).ranges()

    def statistic(self, query: Query, records: GridRecords) -> Statistic:
        """Return the statistic of records in a round, before means are taken."""
        return self._stage(query.round).statistic(query.arrays, records)

    def meaning(self, state: State, answer: Statistic) -> Meaning:
        """Return the limits that exact sums of the round keep to."""
        return self._stage(state.round + 1).meaning(state.arrays)

    def update(
        self, state: State, answer: Statistic, rng: np.random.Generator | None = None
    ) -> State:
        """Return the state after a round's noisy sum. The default ``rng`` follows from the seed."""
        number = state.round + 1
        before = state.arrays
        flags = before["flags"].copy()
        if rng is None:
            rng = public_generator(self.seed, number)
        noise = self.noise_of(number)
        changed = self._stage(number).after(before, answer, noise, flags, rng)
        return State(number, {**before, **changed, "flags": flags})

    def size_noise(self, all_answered: bool) -> float | None:
        """Return the planned noise of a size, in records.

        ``None`` with a clip, or without a Lloyd round, which counts the clusters.
        """
        if not self.n_lloyd_rounds:
            return None
        return base.noise_of_counts(self)

    @property
    def last_cost(self) -> LastCost | None:
        """The cost at the result; ``None`` unless the last round releases it."""
        if not self.cost:
            return None
        noise = self.noise_of(self.n_rounds)
        read = partial(self.lloyd_sums.last_sums, noise=noise)
        return LastCost(self.domain, self.fraction_bits, noise, read)
