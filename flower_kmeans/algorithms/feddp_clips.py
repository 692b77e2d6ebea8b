"""Clips of FedDP-KMeans, from public numbers or from the server's points.

A clip far above what clients add buys noise and nothing else, and one below it shortens
them. What they add is private, but the server has points: clients that are drawn from
these take part in a run without noise (docs/guarantees, Theorem 21).
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.clips import Clips
from flower_kmeans.algorithms.feddp_releases import RELEASES
from flower_kmeans.algorithms.feddp_seeding import ANY_WEIGHT
from flower_kmeans.algorithms.numerics import initialization
from flower_kmeans.algorithms.sensitivity import record_sensitivities
from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from flower_kmeans.algorithms.feddp import FedDPAlgorithm

N_PSEUDO_CLIENTS = 40
# with norms below it, the server's points say nothing about records' lengths
LEAST_CLIP = 0.01
# records of a pseudo-client; a larger one is taken to add in proportion
MOST_DRAWN = 1000


def plain_clips(algorithm: "FedDPAlgorithm") -> dict[str, float]:
    """Return every release's clip from the public numbers alone, where none is given for it.

    With means it is how many clusters' worth: sqrt(k) in l2 and k in l1 clip
    nobody.
    """
    k = float(algorithm.n_clusters)
    clips = dict.fromkeys(RELEASES, algorithm.clip or 1.0)
    if algorithm.adds_means:
        for name in RELEASES:
            if name.startswith(("lift", "lloyd")):
                clips[name] = k if name in algorithm.laplace else math.sqrt(k)
    return clips


def with_suggested_clips(algorithm: "FedDPAlgorithm") -> Clips:
    """Return every release's clip: given, or from server points."""
    twin = replace(
        algorithm,
        budget=PrivacyBudget(None, unit="client"),
        n_records=None,
        n_clients=None,
        clip=None,
        clips=(),
        n_lloyd_rounds=1,
        min_weight=ANY_WEIGHT,
        shares=(),
    )
    twin.require_feasible()
    records_each = (algorithm.n_records or 1) / (algorithm.n_clients or 1)
    rng = initialization.public_generator(algorithm.seed, 0)
    norms = answer_norms(twin, records_each, rng)
    most = plain_clips(algorithm)
    clips = {}
    for number in range(1, twin.n_rounds + 1):
        units = record_sensitivities(twin, number)
        layout = twin.layout(number)
        for release in twin.releases(number):
            words = layout.words_of(release)
            used = units[words][units[words] > 0]
            found = float(f"{np.median(norms[release.name]):.2g}")
            # So much that a client can change every word of the release by a step of
            # the grid.
            least = (1 + 1e-9) / float(used.min(initial=math.inf))
            clips[release.name] = max(min(found, most[release.name]), LEAST_CLIP, least)
    return tuple(sorted((clips | dict(algorithm.clips)).items()))


def pseudo_clients(
    twin: "FedDPAlgorithm", records_each: float, rng: np.random.Generator
) -> list[GridRecords]:
    """Return clients of 1 to `MOST_DRAWN` records, drawn from server points with replacement."""
    points = twin.initial_state().arrays["server"]
    size = min(max(1, math.ceil(records_each)), MOST_DRAWN)
    places = rng.integers(len(points), size=(N_PSEUDO_CLIENTS, size))
    return [
        GridRecords.from_grid(points[place], twin.fraction_bits) for place in places
    ]


def answer_norms(
    twin: "FedDPAlgorithm", records_each: float, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return the norms (N_PSEUDO_CLIENTS,) of pseudo-clients' answers, in records, by release."""
    clients = pseudo_clients(twin, records_each, rng)
    growth = max(1.0, records_each / clients[0].shape[0])
    norms = {}
    state = twin.initial_state()
    for number in range(1, twin.n_rounds + 1):
        query = twin.query(state)
        layout = twin.layout(number)
        answers = np.stack(
            [layout.flatten(answer_of(twin, query, each)) for each in clients]
        )
        units = record_sensitivities(twin, number)
        # Means do not grow with the number of records.
        times = 1.0 if twin.clipping.adds_means(number) else growth
        for release in twin.releases(number):
            words = layout.words_of(release)
            used = words[units[words] > 0]
            ratios = answers[:, used] / units[used]
            found = np.linalg.norm(ratios, 2 if release.norm == "l2" else 1, axis=1)
            norms[release.name] = found * times
        state = twin.update(state, layout.unflatten(answers.sum(axis=0)))
    return norms
