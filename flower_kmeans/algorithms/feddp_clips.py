"""Clips of FedDP-KMeans from what clients would send if they held the server's points.

A clip far above what clients add buys noise and nothing else, and one below it shortens them. What
they add is private, but the server has points of its own: records drawn from these make up
pseudo-clients, the algorithm runs on them without noise, and the norms of their answers give the
clips. Nothing here is computed from a client's records (docs/guarantees.md, "FedDP-KMeans").
"""

import math
from collections.abc import Mapping

import numpy as np

from flower_kmeans.algorithms.base import FloatArray
from flower_kmeans.algorithms.feddp_plan import FedDPPlan
from flower_kmeans.domain import GridRecords
from flower_kmeans.privacy.release import Norm

N_PSEUDO_CLIENTS = 40
QUANTILE = 0.5
"""Of the norms. Measured: more buys noise, and less changes little."""
LEAST_CLIP = 0.01
"""With norms below it, the server's points are at the centre of the domain: they do not tell how
long records are."""
MOST_DRAWN = 1000
"""Records of a pseudo-client; what a larger one adds is taken to grow in proportion."""


def suggested_clips(
    twin: FedDPPlan, records_each: float, most: Mapping[str, float], rng: np.random.Generator
) -> dict[str, float]:
    """Return a clip for every release: the median norm of what pseudo-clients add, to two digits.

    Parameters
    ----------
    twin : FedDPPlan
        The algorithm without noise and clips: with server points, of one Lloyd round.
    records_each : float
        Positive: public, ``n_records / n_clients``.
    most : mapping of str to float
        By release, clips that are not exceeded: those without server points.
    rng : Generator
        Public randomness.

    Returns
    -------
    dict of str to float
        At least `LEAST_CLIP`, and so much that a client can change every word of the release by a
        step of the grid.
    """
    least = dict.fromkeys(most, LEAST_CLIP)
    for number in range(1, twin.n_rounds + 1):
        units, places = twin.record_units(number), twin.places(number)
        for release in twin.releases(number):
            words = units[np.concatenate([places[name] for name in release.blocks])]
            step = (1 + 1e-9) / float(words.min(where=words > 0, initial=math.inf))
            least[release.name] = max(LEAST_CLIP, step)
    clips = {}
    for name, norms in answer_norms(twin, records_each, rng).items():
        found = float(f"{np.quantile(norms, QUANTILE):.2g}")
        clips[name] = max(min(found, most[name]), least[name])
    return clips


def pseudo_clients(
    twin: FedDPPlan, records_each: float, rng: np.random.Generator
) -> list[GridRecords]:
    """Return clients whose records are drawn from the server's points, with replacement.

    Parameters
    ----------
    twin : FedDPPlan
        With server points.
    records_each : float
        Positive: public, ``n_records / n_clients``. Clients have at least one record and at most
        `MOST_DRAWN`.
    rng : Generator
        Public randomness.
    """
    points = twin.server_points
    if points is None:
        raise ValueError("Pseudo-clients are drawn from server points. Got None.")
    size = min(max(1, math.ceil(records_each)), MOST_DRAWN)
    places = rng.integers(len(points), size=(N_PSEUDO_CLIENTS, size))
    return [GridRecords.from_grid(points[place], twin.fraction_bits) for place in places]


def answer_norms(
    twin: FedDPPlan, records_each: float, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return the norms of what pseudo-clients add, by release, in records' worth.

    Parameters
    ----------
    twin : FedDPPlan
        The algorithm without noise and clips: with server points, of one Lloyd round.
    records_each : float
        As for `pseudo_clients`.
    rng : Generator
        Public randomness.

    Returns
    -------
    dict of str to ndarray of shape (N_PSEUDO_CLIENTS,), float64
        Of all releases of the twin; each in the norm of its mechanism.
    """
    clients = pseudo_clients(twin, records_each, rng)
    growth = max(1.0, records_each / clients[0].shape[0])
    norms: dict[str, FloatArray] = {}
    state = twin.initial_state()
    for number in range(1, twin.n_rounds + 1):
        query = twin.query(state)
        answers = [twin.flatten(twin.statistic(query, each), number) for each in clients]
        vectors = np.stack(answers).astype(np.float64)
        units, places = twin.record_units(number), twin.places(number)
        for release in twin.releases(number):
            words = np.concatenate([places[name] for name in release.blocks])
            norms[release.name] = _norms(vectors[:, words], units[words], release.norm)
            if not twin.adds_means(release.name):
                norms[release.name] *= growth
        total = np.stack(answers).sum(axis=0)
        state = twin.update(state, twin.unflatten(total, number))
    return norms


def _norms(vectors: FloatArray, units: FloatArray, norm: Norm) -> FloatArray:
    used = units > 0
    ratios = np.abs(vectors[:, used]) / units[used]
    total: FloatArray = np.sqrt((ratios**2).sum(axis=1)) if norm == "l2" else ratios.sum(axis=1)
    return total
