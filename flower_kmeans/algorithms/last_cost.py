"""The inertia after the last round, from that round's noisy sums, counts and cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.layout import COUNTS, SUMS
from flower_kmeans.algorithms.numerics import cost as costs
from flower_kmeans.algorithms.numerics.cost import COST
from flower_kmeans.algorithms.numerics.postprocess import MIN_COUNT, quotients
from flower_kmeans.algorithms.released import CostEstimate
from flower_kmeans.algorithms.state import State
from flower_kmeans.data.domain import Domain, Sphere


class LastSums(NamedTuple):
    """Units of the sums and the cost of the last round."""

    is_relative: bool
    """Whether sums are sums of offsets from the centroids before the round."""
    least_count: float = MIN_COUNT
    """Least noisy count of a cluster whose mean is used, in records."""
    unit: float = 1.0
    """Factor from the grid of the sums to the grid of the records."""
    rounding: float = 1.0
    """Grid steps to which a record's cost was rounded downward; negative if rounded upward."""


@dataclass(frozen=True)
class LastCost:
    """The cost that an algorithm's last round releases.

    ``noise`` has the planned standard deviations of that round by block, in grid units.
    ``sums_of`` returns the units of a state after it.
    """

    domain: Domain
    fraction_bits: int
    noise: Mapping[str, float]
    sums_of: Callable[[State], LastSums]

    def estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return the estimate from the integers of the last round; ``None`` before it."""
        arrays = state.arrays
        if COST not in arrays:
            return None
        read = self.sums_of(state)
        step = 2.0**-self.fraction_bits
        means, usable = quotients(
            arrays[SUMS], arrays[COUNTS], self.fraction_bits, read.least_count
        )
        references = np.zeros_like(means)
        if read.is_relative:
            references = arrays["before"] * step
        counts = arrays[COUNTS] * step
        square = read.unit * read.unit
        # Rounding lost half a step for each record on average.
        lost = read.rounding * 0.5 * float(counts.sum()) * step
        value, bias, error = costs.last_cost(
            q=(float(arrays[COST][0]) * step + lost) * square,
            sums=arrays[SUMS] * (step * read.unit),
            counts=counts,
            references=references,
            after=arrays["centroids"] * step,
            quotients=means * (step * read.unit),
            usable=usable,
            noise=(
                self.noise[COST] * step * square,
                self.noise[SUMS] * step * read.unit,
                self.noise[COUNTS] * step,
            ),
            step=step,
            are_directions=isinstance(self.domain, Sphere),
        )
        scale, users_units = costs.user_scale(self.domain)
        value = (value + bias * noise_factor**2) * scale**2
        return CostEstimate(value, error * noise_factor * scale**2, users_units)
