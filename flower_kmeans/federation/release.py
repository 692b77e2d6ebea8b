"""The noise of one round, for whoever adds it."""

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import Algorithm, Query
from flower_kmeans.privacy.noise import draw as draw
from flower_kmeans.privacy.noise import draw_share as draw_share
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol import noise
from flower_kmeans.protocol.noise import check_shares as check_shares
from flower_kmeans.protocol.noise import sampler_of as sampler_of

Integers = NDArray[np.int64]


def server_noise(
    algorithm: Algorithm, plan: PrivacyPlan, question: Query, stream: Stream
) -> Integers:
    """Return the noise that a server adds to one round's sum."""
    return noise.server_noise(algorithm, plan, question.round, stream)


def noise_share(
    algorithm: Algorithm, plan: PrivacyPlan, question: Query, shares: int, stream: Stream
) -> Integers:
    """Return one client's share of a round's noise."""
    return noise.noise_share(algorithm, plan, question.round, shares, stream)


def noise_part(
    algorithm: Algorithm,
    plan: PrivacyPlan,
    question: Query,
    shares: int,
    more_shares: int,
    stream: Stream,
) -> Integers:
    """Return the part of a client's noise that is removed where ``more_shares`` are in a sum."""
    return noise.noise_part(algorithm, plan, question.round, shares, more_shares, stream)
