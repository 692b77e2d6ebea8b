"""Lloyd's algorithm whose last round also releases the cost of the clustering, if it is asked for.

What is kept of that round are its integers alone, so that every client has the same state; the
estimate is made from them after the run (docs/guarantees.md, "Metrics that may leave").
"""

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np

from flower_kmeans.algorithms.base import (
    Algorithm,
    Block,
    IntArray,
    State,
    Statistic,
)
from flower_kmeans.algorithms.cost import (
    COST,
    COST_SHARE,
    LastRound,
    in_users_units,
    lost_by_rounding,
)
from flower_kmeans.algorithms.postprocess import quotients
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.plan import Release
from flower_kmeans.privacy.report import CostEstimate

SUMS = "sums"
COUNTS = "counts"

MIN_COUNT = 1.0
"""Fewest (noisy) records of a cluster whose sum is divided by them; public, the same for all."""


class CostOfLastRound(Algorithm):
    """What Lloyd algorithms with Gaussian noise share where ``cost=True``."""

    HAS_COST: ClassVar[bool] = False
    """Whether the algorithm can release it."""
    RELATIVE: ClassVar[bool] = False
    """Whether sums are of offsets from the centroids before, and the cost of squared distances to
    these; both are taken from the origin otherwise."""

    cost: bool

    @abstractmethod
    def _releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's other releases with multipliers relative to those of other rounds."""

    @abstractmethod
    def _sum_unit(self, round_number: int) -> float:
        """Return by how much one record can change the sums, in grid units."""

    @property
    @abstractmethod
    def largest_cost(self) -> int:
        """What one record can add to the cost, in squared grid units."""

    def releases(self, round_number: int) -> tuple[Release, ...]:
        """Return a round's releases with noise multipliers relative to those of other rounds.

        The cost has a share of 0.02 of mu^2 beside 1 for all others.
        """
        found = self._releases(round_number)
        if not self._has_cost(round_number):
            return found
        others = math.fsum(
            1 / release.noise_multiplier**2
            for t in range(1, self.n_rounds + 1)
            for release in self._releases(t)
        )
        multiplier = 1 / math.sqrt(COST_SHARE * others)
        return (*found, Release(COST, "gaussian", "l2", multiplier, (COST,)))

    def cost_estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return the cost at the centroids, from released values; ``None`` without ``cost=True``.

        Parameters
        ----------
        state : State
            After the last round.
        noise_factor : float, default: 1
            By how much the noise's standard deviation exceeded the plan's (distributed noise).
        """
        arrays, q, step = state.arrays, self.fraction_bits, 2.0**-self.fraction_bits
        if COST not in arrays:
            return None
        means, usable = quotients(arrays[SUMS], arrays[COUNTS], q, MIN_COUNT)
        counts = arrays[COUNTS] * step
        noise, unit = self._noise_of_last_round(), self._sum_scale(state)
        square, lost = unit * unit, lost_by_rounding(counts, step)
        last = LastRound(
            q=(float(arrays[COST][0]) * step + (-lost if self._rounds_cost_up else lost)) * square,
            sums=arrays[SUMS] * (step * unit),
            counts=counts,
            references=arrays["before"] * step if self.RELATIVE else np.zeros_like(means),
            after=arrays["centroids"] * step,
            quotients=means * (step * unit),
            usable=usable,
            noise=(noise[COST] * step * square, noise[SUMS] * step * unit, noise[COUNTS] * step),
            step=step,
        )
        return in_users_units(last.value, last.bias, last.error, self.domain, noise_factor)

    # ------------------------------------------------------------------ for subclasses

    def _check_cost(self) -> None:
        if not isinstance(self.cost, bool):
            raise ConfigurationTypeError(f"cost must be a bool, got {type(self.cost).__name__}.")
        if self.cost and not self.HAS_COST:
            raise ConfigurationError(
                f"Expected cost=False for {self.name!r}, which does not release the cost. "
                "Got cost=True instead."
            )

    def _has_cost(self, round_number: int) -> bool:
        return self.cost and round_number == self.n_rounds

    def _cost_blocks(self, round_number: int) -> tuple[Block, ...]:
        return (Block(COST, (1,), self.fraction_bits),) if self._has_cost(round_number) else ()

    def _block_units(self, round_number: int) -> dict[str, float]:
        """Return the unit of every block of a round, in grid units and for one record."""
        units = {SUMS: self._sum_unit(round_number), COUNTS: float(2**self.fraction_bits)}
        if self._has_cost(round_number):
            units[COST] = float(self.largest_cost >> self.fraction_bits)
        return units

    def _kept_for_cost(
        self, round_number: int, before: IntArray, answer: Statistic
    ) -> dict[str, IntArray]:
        """Return what `cost_estimate` needs of the last round beside its result."""
        if not self._has_cost(round_number):
            return {}
        kept = {name: answer.blocks[name].copy() for name in (SUMS, COST)}
        return {**kept, "before": before.copy()} if self.RELATIVE else kept

    @property
    def _rounds_cost_up(self) -> bool:
        """Whether what a record adds to the cost is rounded upward to the grid, not downward."""
        return False

    def _sum_scale(self, state: State) -> float:
        """Return the scaled units in one of the last round's sums; 1 unless they are shortened."""
        return 1.0

    def _noise_of_last_round(self) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units."""
        units = self._block_units(self.n_rounds)
        if not self.budget.is_private:
            return dict.fromkeys(units, 0.0)
        clip = self._clip() or 1.0
        return {
            name: release.noise_multiplier * units[name] * clip
            for release in self.plan().rounds[-1]
            for name in release.blocks
        }
