"""What a state of FedDP-KMeans tells: centroids, sizes, notes, an elbow and the cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import FloatArray, IntArray, State, Statistic
from flower_kmeans.algorithms.cost import (
    COST,
    LastRound,
    in_users_units,
    lost_by_rounding,
    user_scale,
)
from flower_kmeans.algorithms.feddp_parameters import FedDPParameters
from flower_kmeans.algorithms.feddp_releases import WEIGHTS
from flower_kmeans.algorithms.lloyd import COUNTS, MAX_CLUSTERS, SUMS, integer
from flower_kmeans.algorithms.postprocess import scaled
from flower_kmeans.algorithms.server_points import elbow
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.report import CostEstimate

NOTES = (
    "The noisy second moments do not exceed their noise in as many directions as they were "
    "projected to: the projection may be arbitrary.",
    "The noisy second moments could not be decomposed: the projection took the first columns.",
    "No server point had a noisy weight of at least min_weight: k-means took all server points, "
    "and all alike.",
    "Fewer server points than clusters had a noisy weight of at least min_weight: the points of "
    "the largest noisy weights became the projected centres.",
    "Fewer projected server points than clusters were different: some centres coincide.",
    "Some clusters had too small a noisy count in the lift: they start from their projected "
    "centre.",
    "Some clusters had too small a noisy count in a Lloyd round: they kept their centroid.",
)
NO_SIGNAL, NO_EIGEN, ALL_LIGHT, FEW, EQUAL, NOT_LIFTED, KEPT = range(len(NOTES))


@dataclass(frozen=True, init=False)
class FedDPResults(FedDPParameters):
    """The results of FedDP-KMeans, all from released values."""

    def centroids(self, state: State) -> FloatArray | None:
        """Return the centroids in the user's units, (k, d); ``None`` before the lift."""
        if "centroids" not in state.arrays:
            return None
        return self.domain.from_unit(scaled(state.arrays["centroids"], self.fraction_bits))

    def counts(self, state: State) -> FloatArray | None:
        """Return the noisy cluster sizes of the last round, (k,); ``None`` before the lift.

        In records, or in clients that hold the cluster where these add means.
        """
        if "counts" not in state.arrays:
            return None
        return scaled(state.arrays["counts"], self.fraction_bits)

    def elbow(self, state: State, k_max: int, rng: np.random.Generator) -> FloatArray:
        """Return the cost of k-means on the weighted projected server points, by k.

        For k beyond ``n_clusters`` the projection may lack directions: to choose k, run with the
        largest one that comes into query.

        Parameters
        ----------
        state : State
            After round 2 or later.
        k_max : int
            At least 1.
        rng : Generator

        Returns
        -------
        ndarray of shape (k_max,), float64
            In squared units as those of `cost_estimate`.

        Raises
        ------
        ConfigurationError, ConfigurationTypeError
            If there are no weights yet, none is heavy enough, or ``k_max`` is out of range.
        """
        k_max = integer("k_max", k_max, 1, MAX_CLUSTERS)
        if "weights" not in state.arrays:
            raise ConfigurationError(
                f"Expected a state after round {WEIGHTS} or later. Got round {state.round}."
            )
        points, weights = state.arrays["points"], state.arrays["weights"]
        step = 2.0**-self.projection.exponent * user_scale(self.domain)[0]
        costs = elbow(points, weights, k_max, self.least_weight, rng)
        return costs * (step * step * 2.0**-self.fraction_bits)

    def cost_estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return the cost at the centroids, from released values; ``None`` without ``cost=True``.

        Parameters
        ----------
        state : State
            After the last round.
        noise_factor : float, default: 1
            By how much the noise's standard deviation exceeded the plan's (distributed noise).
        """
        if "cost" not in state.arrays:
            return None
        value, bias, error = state.arrays["cost"].tolist()
        return in_users_units(value, bias, error, self.domain, noise_factor)

    def _cost(
        self,
        number: int,
        arrays: Mapping[str, NDArray[Any]],
        after: IntArray,
        means: FloatArray,
        usable: NDArray[np.bool_],
        answer: Statistic,
    ) -> FloatArray:
        """Return value, bias and error of the cost, in scaled units.

        ``arrays`` are those of the state before.
        """
        noise, q = self.noise_of(number), self.fraction_bits
        step, factor = 2.0**-q, self.factor_of(arrays)
        counts = scaled(answer.blocks[COUNTS], q)
        references = scaled(arrays["centroids"], q)
        if self.radius is None:
            references = np.zeros_like(references)
        last = LastRound(
            q=float(scaled(answer.blocks[COST], q)[0]) / factor**2 + lost_by_rounding(counts, step),
            sums=scaled(answer.blocks[SUMS], q) / factor,
            counts=counts,
            references=references,
            after=scaled(after, q),
            quotients=means * step,
            usable=usable,
            noise=(
                noise[COST] * step / factor**2,
                noise[SUMS] * step / factor,
                noise[COUNTS] * step,
            ),
            step=step,
        )
        return np.array([last.value, last.bias, last.error])
