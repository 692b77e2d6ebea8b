"""Warnings about the directions of a planned run of SynopsisKMeans, from public figures.

See docs/guarantees, Theorem 22, "Second moments" and "Groups of columns".
"""

import math

from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.numerics.projection import MOMENTS
from flower_kmeans.algorithms.synopsis import SynopsisAlgorithm
from flower_kmeans.algorithms.synopsis_constants import CLEAR, FIRST, MOST_COLUMNS
from flower_kmeans.algorithms.synopsis_moments import note_on_groups
from flower_kmeans.algorithms.tightened import innermost
from flower_kmeans.algorithms.weights import planned_total


def cautions(algorithm: Algorithm) -> tuple[str, ...]:
    """Return warnings of the plan about directions, which begin with WARNING."""
    own = innermost(algorithm)
    if not isinstance(own, SynopsisAlgorithm):
        return ()
    schedule = own.schedule
    d = own.domain.n_features
    if not schedule.moments:
        if schedule.n_directions == d:
            return ()
        return (f"WARNING: {_note_on_random_directions(own)}",)
    found = []
    if schedule.n_groups:
        found.append(f"WARNING: {note_on_groups(d, schedule.n_groups)}")
    most = most_clear(own)
    n_wanted = min(own.n_clusters - 1, schedule.n_directions)
    if own.learns_beside and most < n_wanted:
        found.append(
            "WARNING: noise may hide how clusters differ: second moments of "
            f"{d} columns can show at most {most} directions above their noise, and "
            f"{own.n_clusters} clusters differ along up to {n_wanted}. Take a larger epsilon, "
            "more data or fewer columns."
        )
    return tuple(found)


def most_clear(algorithm: SynopsisAlgorithm) -> float:
    """Return the most directions that can be clear of noise; infinity without noise.

    The variances along all directions sum to the mean squared norm, at most 1 in D^2.
    """
    total = planned_total(algorithm)
    noise = algorithm.noise_of(FIRST)[MOMENTS]
    if total is None or not noise:
        return math.inf
    edge = algorithm.moments_stage.edge_of(noise / total)
    return math.floor(1 / (CLEAR * edge))


def _note_on_random_directions(algorithm: SynopsisAlgorithm) -> str:
    """Return why directions are random, and how to avoid that."""
    schedule = algorithm.schedule
    d = algorithm.domain.n_features
    if d > MOST_COLUMNS:
        why = f"there are more than {MOST_COLUMNS} columns"
        ways = "Take fewer columns."
    elif schedule.has_clear_moments(d):
        why = "messages of so many clients cannot carry second moments of the columns"
        ways = "Take trust='oblivious-server', fewer clients or fewer columns."
    else:
        why = f"noise would hide second moments of {d} columns"
        ways = "Take a larger epsilon, more data or fewer columns."
    return (
        f"the synopsis takes {schedule.n_directions} random directions, because {why}. They see "
        f"about {schedule.n_directions / d:.0%} of how clusters differ. {ways}"
    )
