"""The public side of SynopsisKMeans: parameters, blocks, units, the plan, and the run document."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, cast

from flower_kmeans.algorithms.base import Block, FloatArray
from flower_kmeans.algorithms.blocks import BlockAlgorithm
from flower_kmeans.algorithms.clipping import client_clip
from flower_kmeans.algorithms.feddp_releases import MOMENTS, per_release
from flower_kmeans.algorithms.lloyd import (
    COUNTS,
    MAX_CLUSTERS,
    MAX_RUN_WORDS,
    MAX_WORDS,
    SUMS,
    integer,
    planned_records,
)
from flower_kmeans.algorithms.projection import (
    Projection,
    moment_bits,
    moment_units,
    squared_bound,
)
from flower_kmeans.algorithms.synopsis_schedule import (
    FIRST,
    NORMS,
    RELEASES,
    SLACKS,
    Schedule,
)
from flower_kmeans.assignment import check_exactness
from flower_kmeans.canonical import real_from_text, real_to_text
from flower_kmeans.domain import Domain
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import Release

_SIGNAL_TOLERANCE = 1e-6
"""Calibration differs between processors by far less."""


@dataclass(frozen=True, init=False)
class SynopsisParameters(BlockAlgorithm):
    """Parameters of SynopsisKMeans and what follows from them; see `SynopsisAlgorithm`."""

    n_clusters: int
    domain: Domain
    budget: PrivacyBudget
    n_records: int | None
    n_clients: int | None
    clip: float | None
    clips: tuple[tuple[str, float], ...]
    n_rounds: int
    seed: int
    fraction_bits: int
    schedule: Schedule

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
        n_rounds: int | Literal["auto"] = "auto",
        seed: int = 0,
        fraction_bits: int = 16,
        schedule: Schedule | None = None,
    ) -> None:
        put = object.__setattr__  # the dataclass is frozen from here on
        put(self, "n_clusters", integer("n_clusters", n_clusters, 1, MAX_CLUSTERS))
        put(self, "domain", domain)
        put(self, "n_records", planned_records(n_records, self.n_clusters, budget))
        if n_clients is not None:
            n_clients = integer("n_clients", n_clients, 1, 2**53 - 1)
        found = client_clip(budget, self.n_records, n_clients, clip)
        if clip is None and found is not None:
            found = max(1.0, math.sqrt(found))  # m records in m cells have the norm sqrt(m)
        put(self, "clip", found)
        put(self, "n_clients", n_clients)
        n_units = n_clients if budget.protects_clients else self.n_records
        put(self, "budget", budget if n_units is None else budget.resolved(n_units))
        put(self, "clips", per_release("clips", clips, RELEASES))
        if self.clips and self.clip is None:
            raise ConfigurationError(
                "Expected clips=None unless the budget is private with unit='client'. "
                f"Got clips for {[name for name, _ in self.clips]}."
            )
        if not isinstance(n_rounds, str) or n_rounds != "auto":
            raise ConfigurationError(
                "Expected n_rounds='auto' for SynopsisKMeans, whose rounds have different tasks "
                f"and follow from the privacy plan. Got {n_rounds!r} instead."
            )
        put(self, "seed", integer("seed", seed, 0, 2**53 - 1))
        put(self, "fraction_bits", integer("fraction_bits", fraction_bits, 1, 25))
        check_exactness(domain.n_features, self.fraction_bits)
        signal = self._planned_signal()
        if schedule is None:
            schedule = Schedule.of(signal, self.n_clusters, domain.n_features)
        elif not math.isclose(schedule.signal, signal, rel_tol=_SIGNAL_TOLERANCE):
            raise ConfigurationError(
                f"Expected a schedule for a signal of {signal:.6g}, that of the plan. "
                f"Got one for {schedule.signal:.6g}."
            )
        put(self, "schedule", schedule)
        put(self, "n_rounds", self.schedule.n_rounds)
        self._check_size()
        self._require_visible_clips()
        self.require_capacity()

    # ------------------------------------------------------------------ the contract

    def layout(self, round_number: int) -> tuple[Block, ...]:
        """Return the blocks of a round.

        Round 1: second moments, (d (d + 1) / 2,), or the sum of squared norms, (1,). Rounds of the
        synopsis, M cells in p directions: sums (M, p), counts (M,) and slacks (M,). Refinement:
        sums (k, d) and counts (k,). Sums and slacks are in radii of the cell.
        """
        d, q = self.domain.n_features, self.fraction_bits
        if round_number == FIRST:
            if self.schedule.moments:
                return (Block(MOMENTS, (d * (d + 1) // 2,), 2 * moment_bits(q)),)
            return (Block(NORMS, (1,), q),)
        if self.schedule.is_synopsis(round_number):
            m, p = self.schedule.n_cells(round_number), self.schedule.n_directions
            return (Block(SUMS, (m, p), q), Block(COUNTS, (m,), q), Block(SLACKS, (m,), q))
        k = self.n_clusters
        return (Block(SUMS, (k, d), q), Block(COUNTS, (k,), q))

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases with noise multipliers relative to those of other rounds."""
        return self.schedule.releases(round_number, self.domain.n_features)

    def record_units(self, round_number: int) -> FloatArray:
        """Return the sensitivities to one record, for every word of a round."""
        if round_number == FIRST and self.schedule.moments:
            return moment_units(self.domain, self.fraction_bits)
        return super().record_units(round_number)

    def clip_of(self, release: Release) -> float:
        """Return how many records' worth of one client count in a release; 1 without clipping."""
        if self.clip is None:
            return 1.0
        return dict(self.clips).get(release.name, self.clip)

    # ------------------------------------------------------------------ the document

    def to_config(self) -> dict[str, Any]:
        """Return the parameters for a run document."""
        config: dict[str, Any] = {
            "name": self.name,
            "n_clusters": self.n_clusters,
            "seed": self.seed,
            "fraction_bits": self.fraction_bits,
            "schedule": self.schedule.to_config(),
        }
        if self.n_records is not None:
            config["n_records"] = self.n_records
        if self.clip is not None:
            config |= {"n_clients": self.n_clients, "clip": real_to_text(self.clip)}
            config["clips"] = {name: real_to_text(clip) for name, clip in self.clips}
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any], domain: Domain, budget: PrivacyBudget) -> Self:
        """Return the algorithm that ``to_config`` described."""
        required = {"name", "n_clusters", "seed", "fraction_bits", "schedule"}
        if budget.protects_clients:
            required |= {"n_clients", "clip", "clips"}
        if not required <= set(config) <= required | {"n_records"}:
            raise ConfigurationError(f"The fields of algorithm {cls.name!r} are not as expected.")
        values = {name: value for name, value in config.items() if name != "name"}
        values["schedule"] = Schedule.from_config(values["schedule"], domain.n_features)
        if budget.protects_clients:
            values["clip"] = real_from_text(values["clip"])
            if not isinstance(values["clips"], Mapping):
                raise ConfigurationError("The clips of a run document must be a mapping.")
            values["clips"] = {key: real_from_text(text) for key, text in values["clips"].items()}
        return cls(domain=domain, budget=budget, **values)

    # ------------------------------------------------------------------ details

    @cached_property
    def projection(self) -> Projection:
        """The grids of the synopsis."""
        return Projection(self.domain, self.fraction_bits, self.schedule.n_directions)

    def noise_of(self, round_number: int) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units.

        That of second moments is of their diagonal. It follows from the schedule by operations
        that every processor does alike.
        """
        units = self._block_units(round_number)
        if not self.budget.is_private:
            return dict.fromkeys(units, 0.0)
        mu = self.schedule.signal * (self.clip or 1.0) / cast(int, self.n_records)
        return {
            name: release.noise_multiplier / mu * self.clip_of(release) * units[name]
            for release in self.releases(round_number)
            for name in release.blocks
        }

    def _planned_signal(self) -> float:
        """Return the plan's ``mu N / C``; infinite without noise, or without a figure for N."""
        budget = self.budget
        if budget.epsilon is None or budget.delta is None or self.n_records is None:
            return math.inf
        return mu_of_budget(budget.epsilon, budget.delta) * self.n_records / (self.clip or 1.0)

    def _block_units(self, round_number: int) -> dict[str, float]:
        """Return the unit of every block; of second moments, that of the diagonal.

        In a synopsis round a block's unit is 1 over the root of its part of the round's mu^2, so
        that a record changes all blocks together by 1 at most. The root and the quotient are
        rounded, and the unit is made larger by more than they can lack.
        """
        q, one = self.fraction_bits, float(2**self.fraction_bits)
        if round_number == FIRST:
            if self.schedule.moments:
                return {MOMENTS: float(squared_bound(self.domain, q, q - moment_bits(q)))}
            return {NORMS: float(squared_bound(self.domain, q) >> q)}
        parts = self.schedule.parts(round_number, self.domain.n_features)
        if not self.schedule.is_synopsis(round_number):
            return dict.fromkeys(parts, one)
        return {name: one / math.sqrt(part) * (1 + 2.0**-50) for name, part in parts.items()}

    def _check_size(self) -> None:
        """Refuse sizes of hours and gigabytes: a client makes what a run document describes."""
        k, d = self.n_clusters, self.domain.n_features
        p, words = self.schedule.n_directions, 0
        for number in range(1, self.n_rounds + 1):
            answered = self.words(number)
            asked = p * (d + self.schedule.n_cells(number)) if self._is_synopsis(number) else 0
            if max(answered, asked) > MAX_WORDS:
                raise ConfigurationError(
                    f"Expected n_clusters and columns so that a message has at most {MAX_WORDS} "
                    f"words. Got {max(answered, asked)} in round {number} with n_clusters={k} and "
                    f"{d} columns."
                )
            words += answered
        if words > MAX_RUN_WORDS:
            raise ConfigurationError(
                f"Expected n_clusters and columns so that each client sends at most "
                f"{MAX_RUN_WORDS} words. Got {words} with n_clusters={k} and {d} columns."
            )

    def _is_synopsis(self, round_number: int) -> bool:
        return self.schedule.is_synopsis(round_number)
