"""Choices of the library for FedDP-KMeans, each from a draft with the choices before.

The rules are in docs/guarantees, Theorem 19. The numbers are measured.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from numpy.typing import ArrayLike

from flower_kmeans.algorithms.feddp_seeding import ANY_WEIGHT, MOST_WEIGHT
from flower_kmeans.algorithms.feddp_stage import LIFT, WEIGHTS
from flower_kmeans.algorithms.layout import COUNTS, SUMS
from flower_kmeans.algorithms.numerics.initialization import check_server_data
from flower_kmeans.algorithms.weights import planned_total
from flower_kmeans.errors import ConfigurationError

if TYPE_CHECKING:
    from flower_kmeans.algorithms.feddp import FedDPAlgorithm

MOST_AUTO_LLOYD_ROUNDS = 2  # measured: one repairs too little, and three add noise
# noise of a mean over the domain's radius; beyond it a second Lloyd round does harm
AUTO_NOISE = 0.1
# the same with unit="client", measured with clips from the server's points
AUTO_NOISE_OF_CLIENTS = 0.05
# least weight in standard deviations of its noise; measured (docs/tables/feddp.md)
AUTO_WEIGHT = 2.0
# radius over the domain's; a wider one saves little noise, and misses records
AUTO_RADIUS = 0.6
DEFAULT_ALPHA = 0.8
WIDE_ALPHA = 2.7  # turns any radius above `AUTO_RADIUS` into the domain's diameter


Draft = TypeVar("Draft", bound="FedDPAlgorithm")


def with_points(
    draft: Draft, server_data: ArrayLike | None, given: int | None
) -> Draft:
    """Return the draft with the server's points, if they are given.

    ``given`` is the number of points that a user announced without points.

    Raises
    ------
    ConfigurationError
        If there are neither points nor their number, or the number is wrong.
    """
    d = draft.domain.n_features
    if server_data is None:
        if given is None:
            raise ConfigurationError(
                f"server_data is required: points that the server holds, (m, {d}), as many as "
                "there are clusters or more. Got None."
            )
        return draft
    # A copy: the caller may change the array later.
    points = check_server_data(server_data, draft.n_clusters, d).copy()
    if len(draft.domain.counted(points)) < len(points):
        raise ConfigurationError(
            "Expected server_data with a direction in each row on a Sphere. "
            "Got a row of length zero instead."
        )
    points.setflags(write=False)
    m = len(points)
    if given not in (None, m):
        raise ConfigurationError(
            f"Expected n_server_points={m}, as server_data has. Got {given} instead."
        )
    return replace(draft, server_data=points, n_server_points=m)


def with_sums(draft: Draft, clips_offsets: bool) -> Draft:
    """Return the draft with sums of offsets if these are short or clipped, else of records."""
    is_short = not draft.adds_means and _has_small_radius(draft)
    is_relative = is_short or clips_offsets
    return replace(draft, sums="relative" if is_relative else "absolute")


def with_alpha(draft: Draft, clips_offsets: bool) -> Draft:
    """Return the draft with the widest radius if a wide radius costs nothing."""
    # A clip from the server's points follows the lengths of offsets, not the radius.
    is_free = clips_offsets and draft.sums == "relative"
    if is_free and not _has_small_radius(draft):
        return replace(draft, alpha=WIDE_ALPHA)
    return draft


def with_narrowing(draft: Draft) -> Draft:
    """Return the draft with a radius that narrows after a Lloyd round, if that is possible."""
    is_relative = draft.sums == "relative"
    if is_relative and draft.can_narrow and draft.budget.is_private:
        return replace(draft, sums="narrowing")
    return draft


def suitable_rounds(draft: "FedDPAlgorithm") -> int:
    """Return two rounds, or one if the noise of two would be too large.

    The draft must have two rounds.
    """
    most = MOST_AUTO_LLOYD_ROUNDS
    total = planned_total(draft)
    if total is None:
        return most
    noise = draft.noise_of(LIFT + 1)[SUMS] * math.sqrt(draft.domain.n_features)
    size = total / draft.n_clusters
    if draft.adds_means:
        size = float(
            draft.n_clients or size
        )  # assuming that every client holds every cluster
    noise /= draft.domain.l2_bound(draft.fraction_bits) * size
    longest = AUTO_NOISE if draft.clip is None else AUTO_NOISE_OF_CLIENTS
    return most if noise <= longest else 1


def suitable_weight(draft: "FedDPAlgorithm") -> float:
    """Return the default ``min_weight``: two planned standard deviations, in records."""
    noise = draft.noise_of(WEIGHTS)[COUNTS] * 2.0**-draft.fraction_bits
    return min(max(ANY_WEIGHT, AUTO_WEIGHT * noise), MOST_WEIGHT)


def _has_small_radius(draft: "FedDPAlgorithm") -> bool:
    """Return whether the radius of relative sums is at most `AUTO_RADIUS` of the domain's."""
    longest = AUTO_RADIUS * draft.domain.l2_bound(draft.fraction_bits)
    return draft.lloyd_sums.packing_radius <= longest
