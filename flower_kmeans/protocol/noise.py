"""The noise of one round, as the server or the clients add it."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.noise import draw, draw_share, sampler_name
from flower_kmeans.privacy.plan import PrivacyPlan, Release
from flower_kmeans.privacy.randomness import Stream

# Widest share, in grid units. Beyond it a draw takes a thousand times as long (privacy/noise.py).
_MAX_SHARE_STD = 2.0**40

NONE = "none"
Sampler = Callable[[Release, NDArray[np.float64]], NDArray[np.int64]]


def server_noise(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int, stream: Stream
) -> NDArray[np.int64]:
    """Return the noise that a server adds to one round's sum.

    Returns
    -------
    ndarray of shape (words,), int64
        In grid units, in the order of the round's layout; zeros if the plan is not private.
    """
    return _round_noise(
        algorithm, plan, round_number, lambda release, units: draw(release, units, stream)
    )


def noise_share(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int, shares: int, stream: Stream
) -> NDArray[np.int64]:
    """Return one client's share of a round's noise, as `server_noise`: of the variance a share."""
    return _round_noise(
        algorithm,
        plan,
        round_number,
        lambda release, units: draw_share(release, units, shares, stream),
    )


def sampler_of(plan: PrivacyPlan, shared: bool) -> str:
    """Return what a run document calls the samplers of a plan's noise, which clients may share."""
    if not plan.is_private:
        return NONE
    return "+".join(sorted({sampler_name(release, shared) for release in plan.releases}))


def check_shares(algorithm: Algorithm, plan: PrivacyPlan, shares: int) -> None:
    """Require that every share of a run's noise can be drawn.

    Raises
    ------
    ConfigurationError
        If a release has no shares (Laplace), or a share's standard deviation is below two grid
        units, where the sum of shares would no longer be the planned noise, or above 2^40, where
        drawing takes too long (docs/guarantees.md, Distributed noise).
    """
    stream = Stream.from_key(bytes(32))  # so no secret is needed
    tried: set[tuple[Release, tuple[float, float]]] = set()
    for number, releases in enumerate(plan.rounds, start=1):
        units, place = algorithm.units(number), algorithm.places(number)
        for release in releases:
            # The least and the largest unit stand for all: a run has far too many words to try.
            here = np.concatenate([units[place[name]] for name in release.blocks])
            ends = (float(here[here > 0].min(initial=math.inf)), float(here.max()))
            if ends[1] == 0:
                ends = (0.0, 0.0)  # no word has noise; Laplace is refused all the same
            if (release, ends) in tried:
                continue
            tried.add((release, ends))
            widest = release.noise_multiplier * ends[1] / math.sqrt(shares)
            if widest > _MAX_SHARE_STD:
                raise ConfigurationError(
                    "Expected noise shares whose standard deviation is at most 2^40 grid units. "
                    f"Got 2^{math.log2(widest):.1f} for the release {release.name!r} in {shares} "
                    "shares: take fewer fraction_bits or a larger epsilon."
                )
            draw_share(release, np.array(ends), shares, stream)


def _round_noise(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int, sampler: Sampler
) -> NDArray[np.int64]:
    noise = np.zeros(algorithm.words(round_number), dtype=np.int64)
    releases: Sequence[Release] = plan.rounds[round_number - 1] if plan.is_private else ()
    if releases:
        units = algorithm.units(round_number)
        place = algorithm.places(round_number)
    for release in releases:
        coordinates = np.concatenate([place[name] for name in release.blocks])
        noise[coordinates] += sampler(release, units[coordinates])
    return noise
