"""Capabilities of an inner algorithm, for one that holds it and adds a round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.capabilities import (
    CostCapability,
    MixtureCapability,
    SizesCapability,
)
from flower_kmeans.algorithms.released import CostEstimate, ReleasedMixture, SizeReport
from flower_kmeans.algorithms.state import State
from flower_kmeans.arrays import FloatArray


class Inner(NamedTuple):
    """An inner algorithm with its own state, and the noise factor of its own last sum."""

    algorithm: Algorithm
    state: State
    noise_factor: float


View = Callable[[State, float], Inner]
"""Returns the inner algorithm for a state and the noise factor of the whole run's last sum."""


@dataclass(frozen=True)
class InnerCost:
    """The cost that an inner algorithm releases."""

    view: View

    def estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return the estimate; ``None`` before the inner algorithm's last round."""
        inner = self.view(state, noise_factor)
        cost = cast(CostCapability, inner.algorithm.last_cost)
        return cost.estimate(inner.state, inner.noise_factor)


@dataclass(frozen=True)
class InnerSizes:
    """The sizes of an inner algorithm. ``planned`` has the facts that no state changes."""

    planned: SizesCapability
    view: View

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Least and largest size."""
        return self.planned.bounds

    @property
    def noise(self) -> float:
        """Planned standard deviation of a released size's noise, in records."""
        return self.planned.noise

    def weights(self, state: State) -> FloatArray | None:
        """Return the weights of the power diagram, (k,)."""
        inner = self.view(state, 1.0)
        sizes = cast(SizesCapability, inner.algorithm.sizes)
        return sizes.weights(inner.state)

    def report(self, state: State, noise_factor: float = 1.0) -> SizeReport | None:
        """Return the sizes beside their bounds; ``None`` before the last round."""
        inner = self.view(state, noise_factor)
        sizes = cast(SizesCapability, inner.algorithm.sizes)
        return sizes.report(inner.state, inner.noise_factor)


@dataclass(frozen=True)
class InnerMixture:
    """The mixture of an inner algorithm. ``planned`` has the facts that no state changes."""

    planned: MixtureCapability
    view: View

    @property
    def most_parts(self) -> int:
        """Most parts of the mixture."""
        return self.planned.most_parts

    @property
    def n_directions(self) -> int:
        """Number of directions along which each part has its own width."""
        return self.planned.n_directions

    @property
    def noise(self) -> tuple[float, float, float]:
        """Planned `ReleasedMixture.noise`."""
        return self.planned.noise

    def learned(
        self, state: State, noise_factor: float = 1.0
    ) -> ReleasedMixture | None:
        """Return the mixture; ``None`` before the run has learned it."""
        inner = self.view(state, noise_factor)
        mixture = cast(MixtureCapability, inner.algorithm.mixture)
        return mixture.learned(inner.state, inner.noise_factor)


def cost_of(algorithm: Algorithm, view: View) -> InnerCost | None:
    """Return the cost of an inner algorithm; ``None`` if it releases none."""
    if algorithm.last_cost is None:
        return None
    return InnerCost(view)


def sizes_of(algorithm: Algorithm, view: View) -> InnerSizes | None:
    """Return the sizes of an inner algorithm; ``None`` if they have no bounds."""
    if algorithm.sizes is None:
        return None
    return InnerSizes(algorithm.sizes, view)


def mixture_of(algorithm: Algorithm, view: View) -> InnerMixture | None:
    """Return the mixture of an inner algorithm; ``None`` if it learns none."""
    if algorithm.mixture is None:
        return None
    return InnerMixture(algorithm.mixture, view)
