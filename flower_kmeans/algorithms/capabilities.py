"""Capabilities: the releases of some algorithms beside centroids and counts.

Each is a property of `Algorithm`, ``None`` if the algorithm lacks it. ``noise_factor`` is
the ratio of the noise's standard deviation to the planned one (distributed noise).
"""

from typing import Protocol

from flower_kmeans.algorithms.released import CostEstimate, ReleasedMixture, SizeReport
from flower_kmeans.algorithms.state import State
from flower_kmeans.arrays import FloatArray


class CostCapability(Protocol):
    """The inertia at the centroids after the last round, from released values."""

    def estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return the estimate; ``None`` before the last round."""


class SizesCapability(Protocol):
    """Clusters as cells of a power diagram, whose sizes have public bounds."""

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Least and largest size; 0 and ``None`` where one is missing."""

    @property
    def noise(self) -> float:
        """Planned standard deviation of a released size's noise, in records."""

    def weights(self, state: State) -> FloatArray | None:
        """Return the weights of the power diagram, (k,); ``None`` before there are any.

        A record x belongs to the cluster with the least ``|x - c_j|^2 - w_j``. Weights are
        in the squared units of `CostCapability.estimate`.
        """

    def report(self, state: State, noise_factor: float = 1.0) -> SizeReport | None:
        """Return the sizes beside their bounds; ``None`` before the last round."""


class MixtureCapability(Protocol):
    """A mixture of Gaussians that the run learns from the records."""

    @property
    def most_parts(self) -> int:
        """Most parts of the mixture."""

    @property
    def n_directions(self) -> int:
        """Number of directions along which each part has its own width."""

    @property
    def noise(self) -> tuple[float, float, float]:
        """Planned `ReleasedMixture.noise`: standard deviations of a cell's count, sum and slack."""

    def learned(
        self, state: State, noise_factor: float = 1.0
    ) -> ReleasedMixture | None:
        """Return the mixture; ``None`` before the run has learned it."""
