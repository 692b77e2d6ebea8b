"""Clips of FedDP-KMeans, from public numbers or from the server's points.

A clip far above the norms of answers only adds noise, and a clip below shortens answers.
The norms are private, but the server has points: pseudo-clients that are drawn from these
points take part in a run without noise (docs/guarantees, Theorem 21).
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
# in records; with smaller norms, the server's points do not show the lengths of records
LEAST_CLIP = 0.01
# most drawn records of a pseudo-client; the norms of larger clients are extrapolated
MOST_DRAWN = 1000


def plain_clips(algorithm: "FedDPAlgorithm") -> dict[str, float]:
    """Return every release's clip from public numbers, for releases without a given clip.

    For means the clip is in clusters' worth: sqrt(k) in l2, and k in l1, clip nobody.
    """
    k = float(algorithm.n_clusters)
    clips = dict.fromkeys(RELEASES, algorithm.clip or 1.0)
    if algorithm.adds_means:
        for name in RELEASES:
            if name.startswith(("lift", "lloyd")):
                clips[name] = k if name in algorithm.laplace else math.sqrt(k)
    return clips


def with_suggested_clips(algorithm: "FedDPAlgorithm") -> Clips:
    """Return every release's clip, sorted by name: the given one, or one from server points."""
    twin = replace(
        algorithm,
        budget=PrivacyBudget(None, unit="client"),
        n_records=None,
        weighted=False,
        full_weight=None,
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
            # A client must be able to change every word of the release by a grid step.
            least = (1 + 1e-9) / float(used.min(initial=math.inf))
            clips[release.name] = max(min(found, most[release.name]), LEAST_CLIP, least)
    return tuple(sorted((clips | dict(algorithm.clips)).items()))


def pseudo_clients(
    twin: "FedDPAlgorithm", records_each: float, rng: np.random.Generator
) -> list[GridRecords]:
    """Return `N_PSEUDO_CLIENTS` clients with records drawn from server points with replacement.

    Each has ``records_each`` records, at least 1 and at most `MOST_DRAWN`.
    """
    points = twin.initial_state().arrays["server"]
    size = min(max(1, math.ceil(records_each)), MOST_DRAWN)
    places = rng.integers(len(points), size=(N_PSEUDO_CLIENTS, size))
    return [
        GridRecords.from_grid(points[place], twin.fraction_bits) for place in places
    ]


def answer_norms(
    twin: "FedDPAlgorithm", records_each: float, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return the norms of pseudo-clients' answers by release, (N_PSEUDO_CLIENTS,), in records."""
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
