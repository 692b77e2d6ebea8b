"""Relocation: useless centroids move to clusters that need a second centroid.

FastLloyd relocates between two rounds. A centroid is useless if it has no records, or
if it shares a cluster with another centroid.

All inputs are released numbers, so relocation is post-processing and costs no privacy.
It is replayable: clients that compute it get the same integers on every processor.

A server that sees no sum can still measure how long an update takes. Each pass
therefore makes `n_steps` steps, a number that follows from k alone, and every step does
the same work. A step that does not apply is computed like the others, and its result is
dropped: ``applies`` chooses a value, and no work is skipped.

The constants were chosen by experiment (docs/tables/losses.md, "FastLloyd's relocation").
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.numerics.initialization import random_words, round_words
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.numerics.postprocess import to_grid
from flower_kmeans.arrays import BoolArray, FloatArray, IntArray
from flower_kmeans.data.domain import row_sums, squared_norms
from flower_kmeans.threads import single_threaded_blas

DEAD_NOISE = 2.0
"""A centroid is dead up to this size, in standard deviations of a size's noise."""

DEAD_SHARE = 0.05
"""A centroid is also dead up to this fraction of the mean size N / k."""

FULL = 4.0
"""A cluster is divided if it has at least this times the dead one's size, and the noise's."""

CLEAR = 3.0
"""A scatter counts from this value on, in standard deviations of its noise."""

CLEAR_HOST = 6.0
"""The same for the host of a dead centroid: with large noise the largest cluster is better."""

STEP = 0.1
"""Distance of a moved centroid from its host, over the distance of the host's neighbour."""

MOST_STEPS = 256
"""Most steps of a pass."""

_TINY = 2.0**-100  # keeps quotients of empty clusters finite
_BLOCK_NUMBERS = 2**20  # most distances in memory at a time


class RelocationNoise(NamedTuple):
    """Standard deviations of the noise in a round's released numbers."""

    size: float
    """Of a cluster's number of records."""
    scatter: float
    """Of a cluster's sum of squared distances, in squared grid units."""


@dataclass(frozen=True)
class _Layout:
    """The centroids, which both passes move in place."""

    points: FloatArray  # (k, d), grid units
    used: BoolArray  # (k,): whether it took part in a move, and must not in another
    inside: Callable[[IntArray], IntArray]  # moves grid points (m, d) into the domain

    def move(self, j: int, target: FloatArray, *, applies: bool) -> None:
        """Move centroid j to the domain's grid point nearest to a target."""
        on_grid = self.inside(to_grid(target[None]))[0]
        self.points[j] = np.where(applies, on_grid, self.points[j])

    def move_beside(
        self, j: int, host: int, direction: FloatArray, *, applies: bool
    ) -> None:
        """Move centroid j close to a host, if the host has another neighbour."""
        offsets = self.points - self.points[host]
        squares = row_sums(offsets**2)
        squares[j] = np.inf
        squares[host] = np.inf
        nearest = float(squares.min())
        has_neighbour = nearest < math.inf

        distance = math.sqrt(nearest if has_neighbour else 0.0)
        length = STEP * distance
        target = self.points[host] + direction * length
        self.move(j, target, applies=applies and has_neighbour)

    def use(self, centroids: list[int], *, applies: bool) -> None:
        """Exclude centroids from all later moves."""
        self.used[centroids] |= applies


def relocated(
    centroids: IntArray,
    sizes: FloatArray,
    scatter: FloatArray,
    noise: tuple[float, float],
    directions: FloatArray,
    inside: Callable[[IntArray], IntArray],
) -> IntArray:
    """Return the centroids of the next round.

    First, each dead centroid goes beside the centroid whose full cluster has the most
    clear scatter, or without such a cluster beside the one with the most records. Then,
    of two centroids that share a cluster, one goes beside the centroid whose cluster
    has the most scatter. No centroid has a part in two moves.

    Parameters
    ----------
    centroids : array of shape (k, d)
        The centroids after the round's update, in grid units.
    sizes : array of shape (k,)
        Noisy numbers of records.
    scatter : array of shape (k,)
        Noisy sums of squared distances, in squared grid units.
    noise : (float, float)
        Standard deviations of the noise of a size and of a scatter.
    directions : array of shape (2 n, d), where n is `n_steps`
        Public unit vectors, one for each step of the two passes.
    inside : callable
        Moves grid points (m, d) into the domain.
    """
    deviations = RelocationNoise(*noise)
    n = n_steps(len(centroids))
    layout = _Layout(
        points=centroids.astype(np.float64),
        used=np.zeros(len(centroids), dtype=bool),
        inside=inside,
    )
    sizes = _replace_dead(layout, sizes, scatter, deviations, directions[:n])
    _merge_and_split(layout, sizes, scatter, deviations, directions[n:])
    return layout.points.astype(np.int64)


def n_steps(n_clusters: int) -> int:
    """Return the number of steps of a pass."""
    return min(n_clusters, MOST_STEPS)


def public_directions(
    seed: int, round_number: int, shape: tuple[int, int]
) -> FloatArray:
    """Return random public unit vectors of a seed and a round, as rows."""
    words = random_words(round_words(seed, round_number), math.prod(shape))
    vectors = normals(words).reshape(shape)
    lengths = np.sqrt(row_sums(vectors * vectors))
    return vectors / np.maximum(lengths, _TINY)[:, None]


# ------------------------------------------------------ first pass: dead centroids


def _replace_dead(
    layout: _Layout,
    sizes: FloatArray,
    scatter: FloatArray,
    noise: RelocationNoise,
    directions: FloatArray,
) -> FloatArray:
    """Move dead centroids, the smallest first, and return the expected sizes (k,)."""
    sizes = sizes.copy()
    scatter = scatter.copy()
    mean_size = max(math.fsum(sizes), 1.0) / len(sizes)
    dead_size = max(DEAD_NOISE * noise.size, DEAD_SHARE * mean_size)
    smallest_first = np.argsort(sizes, kind="stable")[: len(directions)]

    applies = True  # until a step does not: later steps would move larger centroids
    for j, direction in zip(smallest_first, directions, strict=True):
        full_size = FULL * max(sizes[j], noise.size)
        host = _host(sizes, scatter, full_size, noise)
        is_dead = sizes[j] <= dead_size
        is_full = sizes[host] >= full_size
        applies = bool(applies and is_dead and is_full and host != j)

        layout.move_beside(j, host, direction, applies=applies)
        layout.use([j, host], applies=applies)
        # The two centroids share the records and the scatter of one.
        for values in (sizes, scatter):
            half = values[host] / 2
            values[j] = np.where(applies, half, values[j])
            values[host] = np.where(applies, half, values[host])
    return np.maximum(sizes, 0.0)


def _host(
    sizes: FloatArray, scatter: FloatArray, full_size: float, noise: RelocationNoise
) -> int:
    """Return the cluster to divide: the most scatter, or if none is clear, the most records.

    Large clusters have the most records, but distant small clusters show in the scatter
    of the cluster that they are assigned to.
    """
    of_full = np.where(sizes >= full_size, scatter, 0.0)
    most_scattered = int(of_full.argmax())
    largest = int(sizes.argmax())
    # Without noise, a scatter of 0 is not clear: a division would gain nothing.
    is_clear = of_full[most_scattered] > CLEAR_HOST * noise.scatter
    return int(np.where(is_clear, most_scattered, largest))


# ----------------------------------------------------- second pass: shared clusters


def _merge_and_split(
    layout: _Layout,
    sizes: FloatArray,
    scatter: FloatArray,
    noise: RelocationNoise,
    directions: FloatArray,
) -> None:
    """Merge two centroids and divide another cluster, where the division gains more."""
    gains = _gains_of_division(sizes, scatter, noise, layout.used)
    costs, partners = _costs_of_merging(layout.points, sizes, layout.used)
    cheapest_first = np.argsort(costs, kind="stable")[: len(directions)]

    is_worth_it = True  # until a step is not: later steps cost more and gain less
    for i, direction in zip(cheapest_first, directions, strict=True):
        host = int(gains.argmax())
        is_worth_it = bool(is_worth_it and gains[host] > costs[i] + noise.scatter)

        partner = int(partners[i])
        # The smaller centroid of the pair goes.
        if sizes[i] <= sizes[partner]:
            goes = i
            stays = partner
        else:
            goes = partner
            stays = i
        is_used = layout.used[goes] or layout.used[stays]
        is_free = host not in (goes, stays) and not is_used
        applies = bool(is_worth_it and is_free)

        # The merged centroid lies at the mean of both, weighted by their sizes.
        both = max(sizes[goes] + sizes[stays], _TINY)
        share = float(sizes[goes] / both)
        way = layout.points[goes] - layout.points[stays]
        merged = layout.points[stays] + way * share
        layout.move(stays, merged, applies=applies)
        layout.move_beside(goes, host, direction, applies=applies)

        involved = [goes, stays, host]
        layout.use(involved, applies=applies)
        gains[involved] = np.where(applies, -np.inf, gains[involved])


def _gains_of_division(
    sizes: FloatArray, scatter: FloatArray, noise: RelocationNoise, used: BoolArray
) -> FloatArray:
    """Return the scatter beyond that of a usual cluster of the same size, (k,).

    A usual cluster has the median variance. The gain is -inf where a cluster is too
    small, its scatter is not clear of the noise, or its centroid was used before.
    """
    gains = np.full(len(sizes), -np.inf)
    is_known = ~used & (sizes > DEAD_NOISE * noise.size)
    if not is_known.any():
        return gains

    scatter = np.maximum(scatter, 0.0)
    variances = scatter[is_known] / sizes[is_known]
    usual_variance = float(np.median(variances))
    excess = scatter - sizes * usual_variance

    is_full = sizes >= FULL * noise.size
    is_clear = scatter >= CLEAR * noise.scatter
    chosen = is_known & is_full & is_clear
    gains[chosen] = excess[chosen]
    return gains


def _costs_of_merging(
    points: FloatArray, sizes: FloatArray, used: BoolArray
) -> tuple[FloatArray, IntArray]:
    """Return the cost, (k,), and the partner, (k,), of each cluster's cheapest merger.

    The cost is Ward's criterion: merging clusters of sizes a and b at a distance r adds
    ``r^2 a b / (a + b)`` to the scatter.
    """
    k = len(points)
    costs = np.full(k, np.inf)
    partners = np.zeros(k, dtype=np.int64)
    # Squared distances are exact integers in float64, whatever BLAS does.
    squares = squared_norms(points)
    n_rows = max(1, _BLOCK_NUMBERS // k)

    with single_threaded_blas():
        for start in range(0, k, n_rows):
            rows = np.arange(start, min(start + n_rows, k))
            products = points[rows] @ points.T
            distances = squares[rows, None] + squares - 2 * products

            both = sizes[rows, None] + sizes
            weights = sizes[rows, None] * sizes / np.maximum(both, _TINY)
            block = distances * weights
            block[:, used] = np.inf
            block[np.arange(len(rows)), rows] = np.inf  # no cluster is its own partner

            partners[rows] = block.argmin(axis=1)
            costs[rows] = block.min(axis=1)
    costs[used] = np.inf
    return costs, partners
