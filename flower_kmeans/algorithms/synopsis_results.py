"""Capabilities of SynopsisKMeans: cluster sizes, and the mixture of its synopsis."""

import math
from dataclasses import dataclass

import numpy as np

from flower_kmeans.algorithms.layout import COUNTS
from flower_kmeans.algorithms.numerics.postprocess import scaled
from flower_kmeans.algorithms.released import ReleasedMixture, SizeReport
from flower_kmeans.algorithms.state import State
from flower_kmeans.algorithms.synopsis_constants import SMALLEST
from flower_kmeans.algorithms.synopsis_mixture import Parts
from flower_kmeans.algorithms.synopsis_state import Directions, Setting
from flower_kmeans.arrays import FloatArray


@dataclass(frozen=True)
class SynopsisSizes:
    """Cluster sizes between public bounds, as the last round releases them."""

    setting: Setting
    bounds: tuple[int, int | None]
    noise: float
    last_round: int

    def weights(self, state: State) -> FloatArray | None:
        """Return the weights of the power diagram, (k,) float64; ``None`` before there are any."""
        if "weights" not in state.arrays:
            return None
        unit = self.setting.domain.common_unit or 1.0
        weights = scaled(state.arrays["weights"], 2 * self.setting.fraction_bits)
        return weights * (unit * unit)

    def report(self, state: State, noise_factor: float = 1.0) -> SizeReport | None:
        """Return the last round's noisy sizes beside the bounds; ``None`` before it."""
        if state.round < self.last_round:
            return None
        counts = scaled(state.arrays[COUNTS], self.setting.fraction_bits)
        return SizeReport(
            tuple(counts.tolist()), self.noise * noise_factor, *self.bounds
        )


@dataclass(frozen=True)
class SynopsisMixture:
    """The mixture of the last synopsis round."""

    setting: Setting
    most_parts: int
    noise: tuple[float, float, float]

    @property
    def n_directions(self) -> int:
        """Largest number of directions along which each part has its own width."""
        return self.setting.n_directions

    def learned(
        self, state: State, noise_factor: float = 1.0
    ) -> ReleasedMixture | None:
        """Return the mixture of the last synopsis round; ``None`` before it."""
        if "parts" not in state.arrays:
            return None
        setting = self.setting
        found = Parts.read(state.arrays).mixture()
        directions = Directions.read(state.arrays)
        live = slice(directions.n_live)
        # The state's columns are rounded to a grid, so the nearest orthonormal ones are taken.
        columns = scaled(directions.projection[:, live], setting.fraction_bits)
        left, _, right = np.linalg.svd(columns, full_matrices=False)

        longest = setting.longest * setting.unit
        there = found.weights > 0
        scales = np.maximum(found.scales[there, live], math.sqrt(SMALLEST))
        rest = max(directions.beside, SMALLEST)
        radii = state.arrays["radii"][there]
        count, total, slack = self.noise
        return ReleasedMixture(
            weights=found.weights[there],
            means=found.means[there, live] * longest,
            scales=scales * longest,
            directions=left @ right,
            rest=rest * longest * longest,
            radii=radii * (setting.step * longest),
            noise=(count * noise_factor, total * noise_factor, slack * noise_factor),
        )
