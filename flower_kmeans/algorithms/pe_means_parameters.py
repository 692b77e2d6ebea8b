"""The parameters of PE-means and HDPE-means: checks, defaults, the plan, and the run document."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from flower_kmeans.algorithms.base import Block
from flower_kmeans.algorithms.blocks import BlockAlgorithm
from flower_kmeans.algorithms.clipping import client_clip
from flower_kmeans.algorithms.feddp_releases import per_release
from flower_kmeans.algorithms.lloyd import (
    COUNTS,
    MAX_CLUSTERS,
    MAX_PACKING,
    MAX_ROUNDS,
    MAX_RUN_WORDS,
    MAX_WORDS,
    SUMS,
    Rounds,
    integer,
    planned_records,
)
from flower_kmeans.algorithms.pe_means_population import Space
from flower_kmeans.algorithms.projection import Projection
from flower_kmeans.assignment import check_exactness
from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.domain import Domain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import Release

DIRECTIONS = 16
"""Columns to which HDPE-means projects (PE-means, Section IV-D)."""
MAX_CANDIDATES = 2**13
"""Default cap of the population: where it binds, more candidates rarely help and cost time."""
SPREAD = 1.5
"""Radius of the projected candidates, in radii of the domain: a projection lengthens some."""

VOTES, LIFT_SUMS, LIFT_COUNTS = "votes", "lift-sums", "lift-counts"

_FIELDS = (
    "n_clusters",
    "n_vote_rounds",
    "n_variations",
    "max_candidates",
    "seed",
    "fraction_bits",
)


@dataclass(frozen=True, init=False)
class PEMeansParameters(BlockAlgorithm):
    """Parameters of PE-means, their checks and their document; see `PEMeansAlgorithm`."""

    projects: ClassVar[bool] = False
    """Whether votes are cast in a projection, and a last round lifts the centroids out of it."""

    n_clusters: int
    domain: Domain
    budget: PrivacyBudget
    n_records: int | None
    n_clients: int | None
    clip: float | None
    clips: tuple[tuple[str, float], ...]
    n_vote_rounds: int
    n_rounds: int
    n_variations: int
    max_candidates: int
    seed: int
    fraction_bits: int

    def __init__(
        self,
        n_clusters: int,
        domain: Domain,
        budget: PrivacyBudget,
        *,
        n_records: int | None = None,
        n_clients: int | None = None,
        clip: float | None = None,
        clips: Mapping[str, float] | None = None,
        n_vote_rounds: Rounds = "auto",
        n_variations: int | Literal["auto"] = "auto",
        max_candidates: int = MAX_CANDIDATES,
        seed: int = 0,
        fraction_bits: int = 16,
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
        put(self, "clips", self._all_clips(clip, clips))
        put(self, "seed", integer("seed", seed, 0, 2**53 - 1))
        put(self, "fraction_bits", integer("fraction_bits", fraction_bits, 1, 25))
        check_exactness(domain.n_features, self.fraction_bits)
        if self.projects and domain.n_features <= DIRECTIONS:
            raise ConfigurationError(
                f"Expected more than {DIRECTIONS} columns, to which records are projected. Got "
                f"{domain.n_features}: take PE-means, which does not project."
            )
        least = 2 * self.n_clusters
        put(self, "max_candidates", integer("max_candidates", max_candidates, least, MAX_WORDS))
        put(self, "n_variations", self._checked_variations(n_variations))
        rounds = _auto("n_vote_rounds", n_vote_rounds)
        put(self, "n_vote_rounds", self._auto_rounds() if rounds is None else rounds)
        integer("n_vote_rounds", self.n_vote_rounds, 1, MAX_ROUNDS)
        put(self, "n_rounds", self.n_vote_rounds + self.projects)
        self._check_size()
        self._require_visible_clips()
        self.require_capacity()

    # ------------------------------------------------------------------ the contract

    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return the blocks of a round.

        Rounds of votes: counts by candidate, as many in every round as there can be at most, so
        that a population that was halved leaves words of noise alone. The last round of HDPE-means:
        sums (k, d) and counts (k,).
        """
        k, d, q = self.n_clusters, self.domain.n_features, self.fraction_bits
        if round_number > self.n_vote_rounds:
            return (Block(SUMS, (k, d), q), Block(COUNTS, (k,), q))
        size = self.n_start if round_number == 1 else k * (self.most_variations + 1)
        return (Block(COUNTS, (size,), q),)

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases: all of the same noise, in units of what a record changes."""
        if round_number <= self.n_vote_rounds:
            return (Release(VOTES, "gaussian", "l2", 1.0, (COUNTS,)),)
        return (
            Release(LIFT_SUMS, "gaussian", "l2", 1.0, (SUMS,)),
            Release(LIFT_COUNTS, "gaussian", "l2", 1.0, (COUNTS,)),
        )

    def clip_of(self, release: Release) -> float:
        """Return how many records' worth of one client count in a release; 1 without clipping.

        Sums and counts of a client are shortened by one factor, which leaves its means as they are.
        """
        return dict(self.clips).get(release.name, 1.0)

    def to_config(self) -> dict[str, Any]:
        """Return the parameters for a run document."""
        config: dict[str, Any] = {"name": self.name}
        config |= {name: getattr(self, name) for name in _FIELDS}
        if self.n_records is not None:
            config["n_records"] = self.n_records
        if self.clip is not None:
            config |= {"n_clients": self.n_clients, "clip": real_to_text(self.clip)}
            config["clips"] = {name: real_to_text(clip) for name, clip in self.clips}
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> Self:
        """Return the algorithm that ``to_config`` described."""
        required = {"name", *_FIELDS}
        if budget.protects_clients:
            required |= {"n_clients", "clip", "clips"}
        if not required <= set(config) <= required | {"n_records"}:
            raise ConfigurationError(f"The fields of algorithm {cls.name!r} are not as expected.")
        values = {name: value for name, value in config.items() if name != "name"}
        for name in _FIELDS:
            if type(values[name]) is not int:
                raise ConfigurationTypeError(f"{name} has the wrong type in a run document.")
        if budget.protects_clients:
            values["clip"] = real_from_text(values["clip"])
            if not isinstance(values["clips"], dict):
                raise ConfigurationTypeError("clips has the wrong type in a run document.")
            values["clips"] = {name: real_from_text(text) for name, text in values["clips"].items()}
        return cls(domain=domain, budget=budget, **values)

    # ------------------------------------------------------------------ what follows from them

    @property
    def most_variations(self) -> int:
        """Variations of a centroid in a round, at most: as many as the cap leaves room for."""
        return min(self.n_variations, self.max_candidates // self.n_clusters - 1)

    @property
    def n_start(self) -> int:
        """Candidates of the first round, fewer in many columns: packing compares all pairs."""
        room = min(self.max_candidates, math.isqrt(MAX_PACKING // len(self.space.half_widths)))
        return max(min(self.n_clusters * self.n_variations, room), self.n_clusters)

    @cached_property
    def projection(self) -> Projection:
        """The grids of the projection, where there is one."""
        # A projected record is rarely longer than twice the domain's radius, and few bits leave
        # room for the search of the nearest candidate.
        return Projection(self.domain, self.fraction_bits, DIRECTIONS, self.fraction_bits + 1)

    @cached_property
    def space(self) -> Space:
        """Where candidates lie: the domain, a box as a part of its enclosing ball."""
        bound = self.domain.l2_bound(self.fraction_bits)
        if not self.projects:
            widths = self.domain.grid_half_widths(self.fraction_bits).tolist()
            return Space(math.floor(bound), tuple(widths))
        limit = self.projection.limit
        radius = bound * SPREAD * 2.0 ** (self.projection.exponent - self.fraction_bits)
        return Space(min(limit, math.floor(radius)), (limit,) * DIRECTIONS)

    # ------------------------------------------------------------------ details

    def _block_units(self, round_number: int) -> dict[str, float]:
        """Return by how much one record changes each block, in grid units."""
        bound: float = self.domain.l2_bound(self.fraction_bits)
        return {SUMS: bound, COUNTS: float(2**self.fraction_bits)}

    def _release_names(self) -> tuple[str, ...]:
        return (VOTES, LIFT_SUMS, LIFT_COUNTS) if self.projects else (VOTES,)

    def _all_clips(
        self, clip: float | None, clips: Mapping[str, float] | None
    ) -> tuple[tuple[str, float], ...]:
        """Return the clip of every release, none where clients are not protected."""
        given = dict(per_release("clips", clips, self._release_names()))
        if self.clip is None:
            if given:
                raise ConfigurationError(
                    "Expected clips=None unless the budget is private with unit='client'. "
                    f"Got clips for {sorted(given)}."
                )
            return ()
        found = dict.fromkeys(self._release_names(), self.clip)
        if clip is None:
            # A client's votes spread over many candidates: m votes have the norm sqrt m then.
            found[VOTES] = max(1.0, math.sqrt(self.clip))
        return tuple(sorted({**found, **given}.items()))

    def _checked_variations(self, n_variations: int | Literal["auto"]) -> int:
        found = _auto("n_variations", n_variations)
        if found is None:
            # PE-means, Section IV-C; without a figure for N, what the cap leaves room for.
            room = self.max_candidates // self.n_clusters - 1
            found = room if self.n_records is None else max(self.n_records // 5, 4)
        return integer("n_variations", found, 1, 2**53 - 1)

    def _auto_rounds(self) -> int:
        """Return T = 4 max(1, epsilon) sqrt d (PE-means, Section IV-C), two less if it projects."""
        epsilon = self.budget.epsilon
        columns = DIRECTIONS if self.projects else self.domain.n_features
        rounds = int(4 * max(1.0, epsilon or 1.0) * math.sqrt(columns))
        return min(MAX_ROUNDS, max(1, rounds - 2 * self.projects))

    def _check_size(self) -> None:
        """Refuse sizes of hours and gigabytes: a client makes what a run document describes."""
        k, d = self.n_clusters, self.domain.n_features
        if k * (d + 1) > MAX_WORDS:
            raise ConfigurationError(
                f"Expected n_clusters and columns with k (d + 1) <= {MAX_WORDS} words. "
                f"Got n_clusters={k} and {d} columns instead."
            )
        words = sum(map(self.words, range(1, self.n_rounds + 1)))
        if words > MAX_RUN_WORDS:
            raise ConfigurationError(
                f"Expected n_rounds and max_candidates so that each client sends at most "
                f"{MAX_RUN_WORDS} words. Got {words} words in {self.n_rounds} rounds."
            )


def _auto(name: str, value: Any) -> int | None:
    """Return an integer, or ``None`` for "auto"."""
    if isinstance(value, str):
        if value != "auto":
            raise ConfigurationError(f"Expected {name} as an integer or 'auto'. Got {value!r}.")
        return None
    return integer(name, value, 1, 2**53 - 1)
