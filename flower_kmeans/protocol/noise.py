"""The noise of one round, as the server or the clients add it."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.noise import draw, draw_share, sampler_name
from flower_kmeans.privacy.plan import PrivacyPlan, Release
from flower_kmeans.privacy.randomness import Stream

# Widest share, in grid units. Beyond it a draw takes a thousand times as long
# (privacy/noise.py).
_MAX_SHARE_STD = 2.0**40

NONE = "none"
Sampler = Callable[[Release, NDArray[np.float64]], NDArray[np.int64]]


def server_noise(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int, stream: Stream
) -> NDArray[np.int64]:
    """Return a server's noise of one round's sum, (words,) int64, in grid units."""
    sampler: Sampler = lambda r, s: draw(r, s, stream)  # noqa: E731
    return _round_noise(algorithm, plan, round_number, sampler)


def noise_share(
    algorithm: Algorithm,
    plan: PrivacyPlan,
    round_number: int,
    shares: int,
    stream: Stream,
) -> NDArray[np.int64]:
    """Return one client's share of a round's noise, (words,) int64, in grid units.

    Its variance is that of `server_noise` over the number of shares.
    """
    sampler: Sampler = lambda r, s: draw_share(r, s, shares, stream)  # noqa: E731
    return _round_noise(algorithm, plan, round_number, sampler)


def releases_of(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int
) -> Iterator[tuple[Release, NDArray[np.intp], NDArray[np.float64]]]:
    """Yield each release of a round, its words in the layout, and their units."""
    if plan.is_private:
        sensitivities = algorithm.sensitivities(round_number)
        places = algorithm.places(round_number)
        for release in plan.rounds[round_number - 1]:
            words = np.concatenate([places[name] for name in release.blocks])
            yield release, words, sensitivities[words]


def sampler_of(plan: PrivacyPlan, shared: bool) -> str:
    """Return a run document's name of the samplers of a plan's noise.

    Clients may add the noise in shares.
    """
    if not plan.is_private:
        return NONE
    names = {sampler_name(release, shared) for release in plan.releases}
    return "+".join(sorted(names))


def check_shares(algorithm: Algorithm, plan: PrivacyPlan, shares: int) -> None:
    """Require that every share of a run's noise can be drawn.

    A `ConfigurationError` if a release has no shares (Laplace), or a share's standard
    deviation is below two grid units, where the sum of shares would no longer be the
    planned noise, or above 2^40, where drawing takes too long (docs/guarantees,
    Theorem 42).
    """
    stream = Stream.from_key(bytes(32))  # so no secret is needed
    # The least and the largest unit stand for all: a run has far too many words to try.
    cases = dict[tuple[Release, float, float], None]()
    for number in range(1, len(plan.rounds) + 1):
        for release, _, sensitivities in releases_of(algorithm, plan, number):
            positive = sensitivities[sensitivities > 0]
            least = float(positive.min(initial=math.inf))
            most = float(sensitivities.max())
            cases[release, least, most] = None
    for release, least, most in cases:
        widest = release.noise_multiplier * most / math.sqrt(shares)
        if widest > _MAX_SHARE_STD:
            raise ConfigurationError(
                "Expected noise shares whose standard deviation is at most 2^40 grid units. "
                f"Got 2^{math.log2(widest):.1f} for the release {release.name!r} in {shares} "
                "shares: take fewer fraction_bits or a larger epsilon."
            )
        # Laplace is refused even if no word has noise.
        units = [least, most] if most else [0.0]
        draw_share(release, np.array(units), shares, stream)


def _round_noise(
    algorithm: Algorithm, plan: PrivacyPlan, round_number: int, sampler: Sampler
) -> NDArray[np.int64]:
    noise = np.zeros(algorithm.words(round_number), dtype=np.int64)
    for release, words, sensitivities in releases_of(algorithm, plan, round_number):
        noise[words] += sampler(release, sensitivities)
    return noise
