"""What algorithms share whose releases are blocks of one unit each."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from flower_kmeans.algorithms.base import (
    LIMIT,
    Algorithm,
    FloatArray,
    State,
    require_capacity,
)
from flower_kmeans.algorithms.lloyd import OVERFLOW_PROBABILITY
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.plan import PrivacyPlan, calibrate


class BlockAlgorithm(Algorithm):
    """An algorithm with one unit for every block and every query of a round.

    Its state has ``flags``, one for each of its ``remarks``: not 0 if the remark holds.
    """

    replayable: ClassVar[bool] = False
    clips_together: ClassVar[bool] = True
    remarks: ClassVar[tuple[str, ...]]
    """What the report can say of a run, in fixed sentences."""

    n_records: int | None
    n_clients: int | None
    clips: tuple[tuple[str, float], ...]

    @abstractmethod
    def _block_units(self, round_number: int) -> Mapping[str, float]:
        """Return by how much one record changes each of a round's blocks, in grid units.

        Of second moments, that of the diagonal.
        """

    # ------------------------------------------------------------------ the contract

    def plan(self) -> PrivacyPlan:
        """Return what each round releases, calibrated to the budget."""
        rounds = tuple(self.releases(t) for t in range(1, self.n_rounds + 1))
        return calibrate(self.budget, rounds, self.n_records, self.n_clients)

    def record_units(self, round_number: int) -> FloatArray:
        """Return the sensitivities to one record, for every word of a round."""
        units, layout = self._block_units(round_number), self.layout(round_number)
        return np.concatenate([np.full(block.size, units[block.name]) for block in layout])

    def notes(self, state: State) -> tuple[str, ...]:
        """Return how the run had to depart from the algorithm's usual way, in fixed sentences."""
        said = zip(self.remarks, state.arrays["flags"], strict=True)
        return tuple(remark for remark, holds in said if holds)

    def require_capacity(self, noise_factor: float = 1.0, limit: int = LIMIT) -> None:
        """Require that no word of a sum can reach the limit, but with probability 1e-9.

        Raises
        ------
        ConfigurationError
            If ``n_records`` records and the noise do not fit.
        """
        if self.n_records is None:
            return
        rounds = range(1, self.n_rounds + 1)
        logarithm = math.log(2 * sum(map(self.words, rounds)) / OVERFLOW_PROBABILITY)
        tails = {"gaussian": math.sqrt(2 * logarithm), "laplace": logarithm}
        most = max(self.n_records, self.n_clients or 0)
        for number, releases in enumerate(self.plan().rounds, start=1):
            units = self._block_units(number)
            for release in releases:
                # No word of a record exceeds its unit, which all words of a release have together.
                unit = max(units[name] for name in release.blocks)
                noise = release.noise_multiplier * unit * tails[release.mechanism]
                noise *= noise_factor * self.clip_of(release)
                require_capacity(
                    most * unit + noise,
                    limit,
                    f"They come from n_records={self.n_records} and noise of up to "
                    f"{noise:.3g} units in the release {release.name!r} at "
                    f"fraction_bits={self.fraction_bits}: take fewer fraction_bits or a larger "
                    "epsilon.",
                )

    # ------------------------------------------------------------------ for subclasses

    def noise_of(self, round_number: int) -> dict[str, float]:
        """Return the planned standard deviation of the noise in each block, in grid units.

        That of second moments is of their diagonal.
        """
        if not self.budget.is_private:
            return dict.fromkeys((block.name for block in self.layout(round_number)), 0.0)
        units, found = self._block_units(round_number), {}
        for release in self.plan().rounds[round_number - 1]:
            spread = math.sqrt(2.0) if release.mechanism == "laplace" else 1.0
            for name in release.blocks:
                scale = release.noise_multiplier * self.clip_of(release) * spread
                found[name] = scale * units[name]
        return found

    def _require_visible_clips(self) -> None:
        """Require that a clipped client can still change every word by a step of the grid.

        Raises
        ------
        ConfigurationError
            If a release's clip is smaller than that.
        """
        if self.clip is None:
            return
        for number in range(1, self.n_rounds + 1):
            units = self._block_units(number)
            for release in self.releases(number):
                least = min(units[name] for name in release.blocks)
                if least > 0 and self.clip_of(release) * least < 1:
                    raise ConfigurationError(
                        f"Expected a clip of the release {release.name!r} of at least "
                        f"{1 / least:.3g}, one step of the grid. "
                        f"Got {self.clip_of(release)!r} instead."
                    )
