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
from flower_kmeans.data.domain import Domain


class LastSums(NamedTuple):
    """How to read the sums and the cost of the last round."""

    is_relative: bool
    """Whether sums are of offsets from the centroids before."""
    least_count: float = MIN_COUNT
    """Fewest noisy records of a cluster whose sum is divided by them."""
    unit: float = 1.0
    """A unit of the sums, in the scaled domain."""
    rounding: float = 1.0
    """Steps of the grid to which a record's cost is rounded downward; upward if negative."""


@dataclass(frozen=True)
class LastCost:
    """The cost that an algorithm's last round releases.

    ``noise`` are the planned standard deviations of that round, by block, and
    ``sums_of`` tells how to read a state after it.
    """

    domain: Domain
    fraction_bits: int
    noise: Mapping[str, float]
    sums_of: Callable[[State], LastSums]

    def estimate(self, state: State, noise_factor: float = 1.0) -> CostEstimate | None:
        """Return the estimate, from the integers of the last round; ``None`` before it."""
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
        # half a step a record on average
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
        )
        scale, users_units = costs.user_scale(self.domain)
        value = (value + bias * noise_factor**2) * scale**2
        return CostEstimate(value, error * noise_factor * scale**2, users_units)
