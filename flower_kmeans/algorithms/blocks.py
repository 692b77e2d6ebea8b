"""What follows from the units of a round's blocks, where each release covers one of them."""

import math
from collections.abc import Callable, Mapping

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.lloyd import OVERFLOW_PROBABILITY
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.secagg.ring import require_capacity

BlockUnits = Callable[[int], Mapping[str, float]]
"""From a round to what one record changes each of its blocks by at most, in grid units."""


def planned_noise(
    algorithm: Algorithm, round_number: int, block_units: BlockUnits
) -> dict[str, float]:
    """Return the planned standard deviation of the noise in each block, in grid units."""
    if not algorithm.budget.is_private:
        return dict.fromkeys((block.name for block in algorithm.layout(round_number)), 0.0)
    units, found = block_units(round_number), {}
    for release in algorithm.plan().rounds[round_number - 1]:
        spread = math.sqrt(2.0) if release.mechanism == "laplace" else 1.0
        for name in release.blocks:
            scale = release.noise_multiplier * algorithm.clip_of(release) * spread
            found[name] = scale * units[name]
    return found


def require_block_capacity(
    algorithm: Algorithm,
    n_records: int,
    n_clients: int | None,
    block_units: BlockUnits,
    noise_factor: float = 1.0,
) -> None:
    """Require that no word of a sum can overflow its 64 bits, but with probability 1e-9.

    Raises
    ------
    ConfigurationError
        If ``n_records`` records and the noise do not fit.
    """
    rounds = range(1, algorithm.n_rounds + 1)
    logarithm = math.log(2 * sum(map(algorithm.words, rounds)) / OVERFLOW_PROBABILITY)
    tails = {"gaussian": math.sqrt(2 * logarithm), "laplace": logarithm}
    most = max(n_records, n_clients or 0)
    for number, releases in enumerate(algorithm.plan().rounds, start=1):
        units = block_units(number)
        for release in releases:
            (name,) = release.blocks
            noise = release.noise_multiplier * units[name] * tails[release.mechanism]
            noise *= noise_factor * algorithm.clip_of(release)
            # No word of a record exceeds what all words of its block have together.
            require_capacity(
                most * units[name] + noise,
                explanation=f"They come from n_records={n_records} and noise of up to "
                f"{noise:.3g} units in the release {release.name!r} at "
                f"fraction_bits={algorithm.fraction_bits}: take fewer fraction_bits or a larger "
                "epsilon.",
            )


def require_visible_clips(algorithm: Algorithm, block_units: BlockUnits) -> None:
    """Require that a clipped client can still change every word by a step of the grid.

    Raises
    ------
    ConfigurationError
        If a release's clip is smaller than that.
    """
    for number in range(1, algorithm.n_rounds + 1):
        units = block_units(number)
        for release in algorithm.releases(number):
            least = min(units[name] for name in release.blocks)
            if least > 0 and algorithm.clip_of(release) * least < 1:
                raise ConfigurationError(
                    f"Expected a clip of the release {release.name!r} of at least "
                    f"{1 / least:.3g}, one step of the grid. "
                    f"Got {algorithm.clip_of(release)!r} instead."
                )
