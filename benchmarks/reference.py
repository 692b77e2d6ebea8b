"""Strategies as the papers' reference code runs them, for explaining differences in utility.py.

Written from the behaviour of the published code; each difference can be measured on its own:

- start: a sphere-packing radius from {1, 1/2, 1/4, ...} instead of the largest that works.
- division: sums are divided by the noisy count whatever it is, so a centroid whose count is small
  or negative jumps, by up to a radius in FastLloyd, where the library's centroid stays.
- noise, NOT PRIVATE AS CLAIMED: every round has the same share of mu^2, where the library's shares
  follow the radii; and noise is truncated toward zero, that of counts to whole records; and sums
  and counts come from one stream seeded with ``seed * (round - 1)``, so they share their normals,
  any client can subtract them, and round 1 has the *same* noise in every run of an experiment.
- one radius, NOT PRIVATE AS CLAIMED: the noise of round 1 is made for the radius of later rounds,
  although round 1 keeps records within half of the domain's diagonal. So reads the paper's
  accounting of "Step"; the figures show that the reference code does not do it.

``at-least-one`` is no reference: sums are divided by the noisy count, or by 1 where that is larger.

The variants replace functions of the library in this process, for the time of one run.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import COUNTS, SUMS
from flower_kmeans.algorithms.fastlloyd import FastLloydAlgorithm
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.strategies import FastLloyd, GLloyd, KMeansStrategy, SuLloyd

_ATTEMPTS = 100


def _noise(
    algorithm: FastLloydAlgorithm,
    plan: PrivacyPlan,
    round_number: int,
    stream: Stream,
    *,
    seed: int,
    one_radius: bool,
) -> NDArray[np.int64]:
    """Return a round's noise as the reference code draws it; ``stream`` is not used.

    Every round has the same share of mu^2, and counts get (4 d)^(1/4) times the multiplier of sums.
    """
    if plan.mu is None:
        raise ValueError("The reference's noise is Gaussian.")
    t, one = round_number, 2**algorithm.fraction_bits
    root = math.sqrt(4 * algorithm.domain.n_features)
    base = math.sqrt(algorithm.n_rounds * (1 + root)) / plan.mu
    multiplier = {SUMS: base / math.sqrt(root), COUNTS: base}
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


def _divide_by_any(
    sums: NDArray[np.int64], counts: NDArray[np.int64], fraction_bits: int, min_count: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Divide by every count; the parameters of ``postprocess.quotients``."""
    records = counts * 2.0**-fraction_bits + 1e-9
    return sums / records[:, None], np.ones(len(counts), dtype=bool)


def _divide_by_one(
    sums: NDArray[np.int64], counts: NDArray[np.int64], fraction_bits: int, min_count: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Divide by every count that is at least 1, and by 1 otherwise."""
    records = np.maximum(counts * 2.0**-fraction_bits, 1.0)
    return sums / records[:, None], np.ones(len(counts), dtype=bool)


@contextmanager
def _varied(
    strategy: KMeansStrategy,
    seed: int,
    *,
    noise: bool = False,
    one_radius: bool = False,
    start: bool = False,
    division: Callable[..., Any] | None = None,
) -> Iterator[None]:
    if start:
        points = _start(strategy.n_clusters, strategy.domain.n_features, seed)
        make = strategy._make_algorithm
        strategy._make_algorithm = lambda initial=None: make(initial=points)
    with ExitStack() as patches:
        if noise:
            draw = partial(_noise, seed=seed, one_radius=one_radius)
            target = "flower_kmeans.protocol.server.server_noise"
            patches.enter_context(patch(target, draw))
        if division is not None:
            module = "fastlloyd" if isinstance(strategy, FastLloyd) else "lloyd"
            target = f"flower_kmeans.algorithms.{module}.quotients"
            patches.enter_context(patch(target, division))
        yield


class Variant(NamedTuple):
    """A strategy, and what is changed in it."""

    base: str
    make: Callable[..., KMeansStrategy]
    varied: Callable[[KMeansStrategy, int], AbstractContextManager[None]]


_STRATEGIES: dict[str, Callable[..., KMeansStrategy]] = {
    "FastLloyd": partial(FastLloyd, relocation=False),
    "GLloyd": GLloyd,
    "SuLloyd": SuLloyd,
}


def _variants() -> Iterator[tuple[str, Variant]]:
    changes: dict[str, dict[str, Any]] = {
        "start": {"start": True},
        "division": {"division": _divide_by_any},
        "at-least-one": {"division": _divide_by_one},
    }
    noisy: dict[str, dict[str, Any]] = {
        "noise": {"noise": True},
        "reference": {"start": True, "division": _divide_by_any, "noise": True},
        "one-radius": {
            "start": True,
            "division": _divide_by_any,
            "noise": True,
            "one_radius": True,
        },
    }
    for base, make in _STRATEGIES.items():
        for name, change in changes.items():
            yield f"{base}:{name}", Variant(base, make, partial(_varied, **change))
        for name, change in noisy.items() if base == "FastLloyd" else ():
            # The label must be seen wherever a figure of such a run is.
            label = f"{base}:{name}:NOT-PRIVATE-AS-CLAIMED"
            yield label, Variant(base, make, partial(_varied, **change))


VARIANTS: dict[str, Variant] = dict(_variants())
"""Variants by name, which says what is changed; "reference" changes all but the radius."""
