"""FastLloyd as the paper's reference code runs it, for explaining differences in utility.py.

NOT PRIVATE AS CLAIMED: these variants exist in the benchmark alone. What the published code does
otherwise than the library, each measurable on its own:

- noise: it is truncated toward zero, that of the counts to whole records; sums and counts are
  drawn from one stream, seeded with ``seed * (round - 1)``, so sums and counts share their normals
  and round 1 has the *same* noise in every run of an experiment. All of that is undone here by
  nobody, but by any client that knows the seed.
- one radius: noise of round 1 for the radius of the later rounds, although round 1 keeps records
  within half of the domain's diagonal (the accounting of the paper's text for "Step").
- division: sums are divided by the noisy count whatever it is, so a centroid whose count is small
  or negative jumps by a whole radius in a random direction, where the library's stays.
- start: a sphere-packing radius from {1, 1/2, 1/4, ...} instead of the largest that works, so
  initial centroids lie nearer to the boundary where there are few clusters in many columns.

The variants replace functions of the library in this process, for the time of one run.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms import Question
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.algorithms.lloyd import COUNTS, SUMS
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.strategies import FastLloyd

Variant = Callable[[FastLloyd, int], AbstractContextManager[None]]

_ATTEMPTS = 100


def _noise(
    algorithm: FastLloydAlgorithm,
    plan: PrivacyPlan,
    question: Question,
    stream: Stream,
    *,
    seed: int,
    one_radius: bool,
) -> NDArray[np.int64]:
    """Return a round's noise as the reference code draws it; ``stream`` is not used."""
    t, one = question.round, 2**algorithm.fraction_bits
    multiplier = {release.blocks[0]: release.noise_multiplier for release in plan.rounds[t - 1]}
    radius = algorithm.radius_of(2 if one_radius else t)
    size = {block.name: block.size for block in algorithm.layout(t)}
    sums = np.trunc(_normals(seed, t, size[SUMS]) * multiplier[SUMS] * radius)
    counts = one * np.trunc(_normals(seed, t, size[COUNTS]) * multiplier[COUNTS])
    return np.concatenate([sums, counts]).astype(np.int64)


def _normals(seed: int, t: int, size: int) -> NDArray[np.float64]:
    source = np.random.RandomState(seed * (t - 1))
    return source.standard_normal((size, 2)).sum(axis=1) / np.sqrt(2)


def _start(n_clusters: int, n_features: int, seed: int) -> NDArray[np.float64]:
    """Return initial centroids in [-1, 1]^d whose distance is a power of two."""
    source = np.random.RandomState(seed)
    margin = 1.0
    while True:
        points: list[NDArray[np.float64]] = []
        failures = 0
        while failures < _ATTEMPTS and len(points) < n_clusters:
            point = (1 - margin) * (2 * source.random(n_features) - 1)
            if all(np.linalg.norm(point - other) >= 2 * margin for other in points):
                points.append(point)
                failures = 0
            else:
                failures += 1
        if len(points) == n_clusters:
            return np.array(points)
        margin /= 2


def _quotients(
    sums: NDArray[np.int64], counts: NDArray[np.int64], fraction_bits: int, min_count: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Divide by every count; the parameters of ``postprocess.quotients``."""
    records = counts * 2.0**-fraction_bits + 1e-9
    return sums / records[:, None], np.ones(len(counts), dtype=bool)


@contextmanager
def _variant(
    strategy: FastLloyd,
    seed: int,
    *,
    noise: bool = False,
    one_radius: bool = False,
    start: bool = False,
    division: bool = False,
) -> Iterator[None]:
    if start:
        points = _start(strategy.n_clusters, strategy.domain.n_features, seed)
        make = strategy._make_algorithm
        strategy._make_algorithm = lambda initial=None: make(initial=points)
    with ExitStack() as patches:
        if noise:
            draw = partial(_noise, seed=seed, one_radius=one_radius)
            target = "flower_kmeans.federation.coordinator.server_noise"
            patches.enter_context(patch(target, draw))
        if division:
            target = "flower_kmeans.algorithms.fastlloyd.quotients"
            patches.enter_context(patch(target, _quotients))
        yield


VARIANTS: dict[str, Variant] = {
    "reference-start": partial(_variant, start=True),
    "reference-division": partial(_variant, division=True),
    "reference-noise": partial(_variant, noise=True),
    "reference-one-radius": partial(_variant, noise=True, one_radius=True),
    "reference": partial(_variant, start=True, division=True, noise=True),
    "reference-all": partial(_variant, start=True, division=True, noise=True, one_radius=True),
}
"""Variants of FastLloyd by name. Those with the reference's noise are NOT PRIVATE AS CLAIMED."""
