"""Centroids of a mixture: weighted k-means, with bounds on the sizes of clusters or without.

See docs/guarantees, Theorem 22, "Selection", and "Bounds on cluster sizes", "Starts".
This is post-processing in units of D, with the same result on every processor
(`synopsis_mixture`).
"""

import math
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.numerics.grid_kmeans import grid_kmeans, lloyd_steps
from flower_kmeans.algorithms.numerics.initialization import random_words
from flower_kmeans.algorithms.numerics.postprocess import scaled, to_grid
from flower_kmeans.algorithms.numerics.transport import (
    constrained_centers,
    power_cells,
    squared_distances,
)
from flower_kmeans.algorithms.synopsis_constants import (
    DIVIDED_BITS,
    DOUBT_BITS,
    FEWEST_STARTS,
    FREE_STARTS,
    JUDGED_POINTS,
    MODEL_BITS,
    MOST_PAIRS_PER_CELL,
    MOST_STARTS,
    POLISH_PAIRS,
    POLISH_STEPS,
    SELECT_STEPS,
    SELECTION_WIDTH,
    SELECTION_WORK,
    SELECTIONS,
    SMALLEST,
    START_STEPS,
    START_WORK,
    STARTS,
)
from flower_kmeans.algorithms.synopsis_mixture import (
    Mixture,
    drawn_normals,
    equal_masses,
    integer_weights,
    nearest,
    on_grid,
    sample,
)
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import row_sums


class Selection(NamedTuple):
    """Centroids of a mixture.

    Attributes
    ----------
    centers : array of float64, (k, p)
        The centroids, in D.
    counts : array of float64, (k,)
        Number of records nearest to each centroid.
    within : array of float64, (p,)
        Variance of the mixture's records around the centroids by direction, in D^2.
    doubts : array of float64, (k, p)
        Variances of the centroids from noise, in D^2.
    few : bool
        Whether the mixture had fewer parts than centroids.
    """

    centers: FloatArray
    counts: FloatArray
    within: FloatArray
    doubts: FloatArray
    few: bool


# ----------------------------------------------------------------- without bounds


def select(
    mixture: Mixture,
    n_clusters: int,
    source: np.random.Philox,
    n_starts: int | None = None,
) -> Selection:
    """Return the centres of weighted k-means on a mixture.

    The first step finds the best of ``n_starts``, or of many, on the means alone. The
    second is Lloyd's algorithm on points of the mixture. If there are too few means,
    points of the mixture are drawn as well.
    """
    few = _n_parts(mixture) < n_clusters
    if n_starts is None:
        n_starts = _affordable_starts(len(mixture.weights), n_clusters)
    means = on_grid(mixture.means)
    weights = integer_weights(mixture.weights)
    found = grid_kmeans(means, weights, n_clusters, source, n_starts, SELECT_STEPS)
    polished = _polished(mixture, found.points, source)
    # The points are drawn in any case, because the time must not depend on released
    # sums.
    filled = _filled_up(mixture, n_clusters, source)
    centers = np.where(few, filled, polished)
    return _selection(mixture, centers, few)


def select_best(
    mixture: Mixture, n_clusters: int, source: np.random.Philox
) -> Selection:
    """Return the best of several selections, by their costs on points of the mixture.

    Each selection draws other words. It costs no privacy.
    """
    p = mixture.means.shape[1]
    n_selections = _affordable_selections(n_clusters, p)
    found = [select(mixture, n_clusters, source) for _ in range(n_selections)]
    points = sample(mixture, JUDGED_POINTS, source)
    ones = np.ones(JUDGED_POINTS, dtype=np.int64)
    costs = [
        lloyd_steps(points, ones, on_grid(each.centers), n_steps=0).cost
        for each in found
    ]
    # Of equal costs the first.
    return found[costs.index(min(costs))]


def _affordable_selections(n_clusters: int, n_directions: int) -> int:
    """Return the number of selections, by public numbers alone."""
    work = n_clusters * (n_directions + SELECTION_WIDTH)
    return max(1, min(SELECTIONS, SELECTION_WORK // work))


def _affordable_starts(n_parts: int, n_clusters: int) -> int:
    """Return the number of starts. A step of each computes m k distances."""
    n_distances = n_parts * n_clusters
    affordable = START_WORK // n_distances
    return max(FEWEST_STARTS, min(MOST_STARTS, affordable))


def _polished(
    mixture: Mixture, centers: IntArray, source: np.random.Philox
) -> IntArray:
    """Return centres (k, p) after Lloyd steps on points of a mixture."""
    m, p = mixture.means.shape
    n_pairs = min(MOST_PAIRS_PER_CELL * m, POLISH_PAIRS)
    n_pairs = max(m, n_pairs)
    chosen = _in_turn(mixture, n_pairs)
    # Points come in pairs on opposite sides of a mean, so drawing changes no mean of a
    # whole part.
    noise = drawn_normals((n_pairs, p), source)
    means = mixture.means[chosen]
    offsets = mixture.scales[chosen] * noise
    points = np.vstack([means + offsets, means - offsets])

    n_of_part = np.bincount(chosen, minlength=m)
    shares = integer_weights(mixture.weights) << DIVIDED_BITS
    each = shares // np.maximum(n_of_part, 1)
    weights = np.tile(each[chosen], 2)
    return lloyd_steps(on_grid(points), weights, centers, POLISH_STEPS).points


def _filled_up(mixture: Mixture, n_clusters: int, source: np.random.Philox) -> IntArray:
    """Return the means of all parts, and drawn points up to k centres, (k, p)."""
    chosen = _in_turn(mixture, n_clusters)
    p = mixture.means.shape[1]
    noise = drawn_normals((n_clusters, p), source)
    is_beyond = np.arange(n_clusters) >= _n_parts(mixture)
    noise *= is_beyond[:, None]
    return on_grid(mixture.means[chosen] + mixture.scales[chosen] * noise)


def _n_parts(mixture: Mixture) -> int:
    """Return the number of parts that are not left out."""
    return int(np.count_nonzero(mixture.weights > 0))


def _in_turn(mixture: Mixture, size: int) -> IntArray:
    """Return the indices of parts that are not left out, (size,), repeated in turn.

    No array may have a size that depends on released sums.
    """
    parts = np.flatnonzero(mixture.weights > 0)
    turns = np.arange(size) % len(parts)
    return parts[turns]


def _selection(mixture: Mixture, centers: IntArray, few: bool) -> Selection:
    """Return the selection of centres, (k, p). A part belongs to its mean's nearest centre."""
    weights = mixture.weights
    points = on_grid(mixture.means)
    labels = nearest(points, centers)
    residuals = scaled(points - centers[labels], MODEL_BITS)
    squares = residuals * residuals + mixture.scales * mixture.scales
    totals = row_sums((weights[:, None] * squares).T.copy())

    n_parts = np.bincount(labels, minlength=len(centers))
    ends = np.cumsum(n_parts)[:-1]
    by_label = np.argsort(labels, kind="stable")
    groups = np.split(weights[by_label], ends)
    counts = np.array([math.fsum(group) for group in groups])
    return Selection(
        centers=scaled(centers, MODEL_BITS),
        counts=counts,
        within=totals / math.fsum(weights),
        doubts=_doubts(mixture, labels, counts),
        few=few,
    )


# -------------------------------------------------------------------- with bounds


def select_within(
    mixture: Mixture,
    points: IntArray,
    n_clusters: int,
    shares: tuple[float, float],
    source: np.random.Philox,
) -> tuple[Selection, IntArray]:
    """Return the centres of k-means with bounds on sizes, and weights of their power cells.

    The best of several starts is kept. The first is weighted k-means on the means,
    unless there are too few of them. It is near to the centres without bounds. The
    others are drawn points, which are nearer to equal sizes.

    Parameters
    ----------
    mixture : Mixture
        The model of the records.
    points : array of int64, (n, p)
        The points of `Parts.points`, part after part.
    n_clusters : int
        Number of centres, k.
    shares : (float, float)
        Bounds on sizes, as fractions of all masses.
    source : Philox
        Public words to draw from.

    Returns
    -------
    selection : Selection
        The centres.
    weights : array of int64, (k,)
        Weights of the power cells, in squared steps of the mixture's grid.
    """
    n_parts = np.count_nonzero(integer_weights(mixture.weights))
    few = bool(n_parts < n_clusters)
    starts = _starts_within(mixture, points, n_clusters, few, source)
    masses = equal_masses(n_clusters)
    best = constrained_centers(points, masses, starts, *shares)
    n = len(points)
    costs = squared_distances(points, best.points)
    labels = power_cells(costs, best.weights)
    records_of_point = math.fsum(mixture.weights) / n
    n_points = np.bincount(labels, minlength=n_clusters)
    counts = np.asarray(n_points * records_of_point, dtype=np.float64)
    residuals = points - best.points[labels]
    squares = residuals * residuals
    totals = squares.sum(axis=0)  # exact, because squares are integers

    costs = squared_distances(on_grid(mixture.means), best.points)
    labels_of_parts = power_cells(costs, best.weights)
    selection = Selection(
        centers=scaled(best.points, MODEL_BITS),
        counts=counts,
        within=scaled(totals, 2 * MODEL_BITS) / n,
        doubts=_doubts(mixture, labels_of_parts, counts),
        few=few,
    )
    return selection, best.weights


def _starts_within(
    mixture: Mixture,
    points: IntArray,
    n_clusters: int,
    few: bool,
    source: np.random.Philox,
) -> IntArray:
    """Return the starts of k-means with bounds, (m, k, p).

    The first is k-means without bounds, unless the mixture has too ``few`` parts.
    """
    k = n_clusters
    # Points are in the order of parts, so one point of each n/k spreads the centres by
    # mass.
    edges = np.arange(k + 1) * len(points) // k
    lengths = np.diff(edges).astype(np.uint64)
    words = random_words(source, STARTS * k).reshape(STARTS, k)
    offsets = (words % lengths).astype(np.int64)
    starts: IntArray = points[edges[:-1] + offsets]
    # It is computed even if it is dropped, because the time must not depend on released
    # sums.
    means = on_grid(mixture.means)
    weights = integer_weights(mixture.weights)
    free = grid_kmeans(means, weights, k, source, FREE_STARTS, START_STEPS)
    starts[0] = np.where(few, starts[0], free.points)
    return starts


def _doubts(mixture: Mixture, labels: IntArray, counts: FloatArray) -> FloatArray:
    """Return the variances of centroids from noise, (k, p), from the errors of their parts."""
    k = len(counts)
    p = mixture.means.shape[1]
    sizes = np.maximum(counts, SMALLEST)
    shares = mixture.weights / sizes[labels]
    errors = np.square(shares)[:, None] * mixture.errors
    on_grid = to_grid(errors * 2.0**DOUBT_BITS)
    doubts = np.zeros((k, p), dtype=np.int64)
    np.add.at(doubts, labels, on_grid)
    return scaled(doubts, DOUBT_BITS)
