"""The mixture of Gaussians by which SynopsisKMeans models the records.

Post-processing of released values, in units of the domain's largest norm, and total
(docs/guarantees.md, "SynopsisKMeans"). All clients of an oblivious server must agree on
it bit for bit: raw Philox words, operations that IEEE 754 rounds correctly, and sums of
integers, by ``math.fsum`` or by ``row_sums``. Steps follow from the schedule alone: a
cell that is left out of a mixture stays in it with a weight of 0.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.base import MIN_COUNT, FloatArray, IntArray
from flower_kmeans.algorithms.numerics.assignment import Centers
from flower_kmeans.algorithms.numerics.grid_kmeans import grid_kmeans, lloyd_steps
from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.algorithms.numerics.initialization import random_words
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.numerics.postprocess import (
    clip_rows,
    scaled,
    to_grid,
    zero_small,
)
from flower_kmeans.algorithms.numerics.transport import (
    constrained_centers,
    power_cells,
    squared_distances,
)
from flower_kmeans.data.domain import row_sums

# of the records' mean squared norm before any is seen
PRIOR_NORM, PRIOR_SPREAD = 0.25, 0.2
CLEAR = 1.1  # eigenvalue over the largest of noise alone from which on it counts
# part of unseen records that is spread wider, and how much
HEAVY_SHARE, HEAVY_SCALE = 0.2, 3.0
SMALLEST = 1e-12  # least variance, below the square of a grid step
MODEL_BITS = 16  # fractional bits of the mixture's points
MASS_BITS = 40  # of the masses that n_records records have together, at first
STARTS = 3  # of k-means with bounds on sizes, of which the best is kept

_WEIGHT_BITS = 26  # of all of a mixture's weights, where integers stand for them
_STATE_BITS = 52  # fractional bits of means and scales in a state
_TOTAL_BITS = 16  # of all records of a mixture in a state
_DOUBT_BITS = 50
_SHARE_BITS = 16  # that a weight has more where it is divided among points
_SAMPLE, _PER_CELL, _MOST_PER_CELL = 2_000, 10, 20
_PARTITION_STEPS = 6
_PSEUDO_POINTS = 5.0
_LEAST_SPREAD = 0.64  # of a cell's variance, in that of all cells, for its radius
_MOST_STARTS, _FEWEST_STARTS, _START_WORK, _SELECT_STEPS = 25, 5, 2**22, 8
_POLISH_PAIRS, _MOST_PAIRS_PER_CELL, _POLISH_STEPS = 5_000, 20, 12
_PER_CLUSTER, _FEWEST_POINTS, _MOST_POINTS = 200, 4_000, 20_000
_FREE_STARTS, _START_STEPS = 5, 20  # of k-means without bounds, before that with bounds


class Mixture(NamedTuple):
    """A mixture of m Gaussians with independent coordinates, p of them.

    ``weights`` (m,) are numbers of records, or shares before any are counted: 0 for
    parts that are left out, but not for all. ``errors`` are variances of the means,
    where noise made them.
    """

    weights: FloatArray
    means: FloatArray  # (m, p), as scales and errors
    scales: FloatArray
    errors: FloatArray


class Partition(NamedTuple):
    """The m cells of a round, on the grid, and how the model's records lie in them."""

    centers: IntArray  # (m, p)
    radii: IntArray  # (m,)
    variances: FloatArray  # (m, p), of the model
    spread: float  # mean squared distance of the model's records to their cells
    expected: FloatArray  # (m,), the model's records


class Released(NamedTuple):
    """Noisy sums (m, p) and slacks (m,) in radii of their cells, and counts (m,) in records."""

    sums: FloatArray
    counts: FloatArray
    slacks: FloatArray


class Noise(NamedTuple):
    """Standard deviations of the noise: sums and slacks in radii, counts in records."""

    sums: float
    counts: float
    slacks: float


class Selection(NamedTuple):
    """Centroids of a mixture."""

    centers: FloatArray  # (k, p)
    counts: FloatArray  # (k,), of the records that are nearest to each
    # (p,), variance of the mixture's records around them, by direction
    within: FloatArray
    doubts: FloatArray  # (k, p), variances that noise has left in the centroids
    few: bool  # whether the mixture had fewer parts than there are centroids


# ----------------------------------------------------------------------- second moments


def mean_norm(found: float, error: float) -> float:
    """Return the mean squared norm of the records, from a noisy one and what is likely before.

    ``error`` is the standard deviation of the noise of ``found``.
    """
    doubt = error * error / (error * error + PRIOR_SPREAD * PRIOR_SPREAD)
    return min(
        1.0,
        max(doubt * PRIOR_NORM + (1 - doubt) * found, 0.0005, 0.3 * min(error, 0.02)),
    )


def spectrum(values: FloatArray, edge: float, norm: float) -> tuple[FloatArray, int]:
    """Return the variances (d,) along all directions, and how many stand out of the noise.

    From an eigenvalue above the noise's edge, what the noise added is subtracted
    (``(v + sqrt(v^2 - edge^2)) / 2``); the other directions share what is left of the
    norm. ``edge`` is the largest eigenvalue of noise alone, about ``sqrt(2 d)``
    standard deviations of its diagonal (Wigner's semicircle).
    """
    clear = values > CLEAR * edge
    # Noise moves an eigenvalue t to v = t + edge^2 / (4 t); this is the inverse.
    roots = np.sqrt(np.maximum(values * values - edge * edge, 0.0))
    variances = np.where(clear, (values + roots) / 2, 0.0)
    if not clear.all():
        rest = max(norm - math.fsum(variances), 0.02 * norm)
        variances[~clear] = rest / np.count_nonzero(~clear)
    return np.maximum(variances, 1e-7), int(np.count_nonzero(clear))


def prior(variances: FloatArray) -> Mixture:
    """Return what is likely before any cell is known: Gaussian records, and some far out."""
    scales, zeros = np.sqrt(variances), np.zeros((2, len(variances)))
    shares = np.array([1 - HEAVY_SHARE, HEAVY_SHARE])
    return Mixture(shares, zeros, np.stack([scales, HEAVY_SCALE * scales]), zeros)


# --------------------------------------------------------------------------- cells


def sample(mixture: Mixture, size: int, source: np.random.Philox) -> IntArray:
    """Return points (size, p) of a mixture, moved into the unit ball and put on the grid.

    Every part has as many as its weight says, rounded up or down.
    """
    reached = np.cumsum(masses(mixture.weights))
    places = (2 * np.arange(size, dtype=np.int64) + 1) * reached[-1] // (2 * size)
    chosen = np.searchsorted(reached, places, side="right")
    noise = _normals((size, mixture.means.shape[1]), source)
    return on_grid(
        clip_rows(mixture.means[chosen] + mixture.scales[chosen] * noise, 1.0)
    )


def masses(weights: FloatArray) -> IntArray:
    """Return integers (m,) in proportion to weights, about 2^26 in all; positive as these are."""
    share = weights * (2.0**_WEIGHT_BITS / math.fsum(weights))
    return np.floor(share).astype(np.int64) + (weights > 0)


def on_grid(points: FloatArray) -> IntArray:
    """Return points of length 2 at most, and others moved near there, on the grid of the model."""
    return to_grid(np.clip(points, -2.0, 2.0) * 2.0**MODEL_BITS)


def partition(
    mixture: Mixture,
    n_cells: int,
    factor: float,
    step: float,
    source: np.random.Philox,
    unseen: Mixture | None = None,
) -> Partition:
    """Return cells for the records that a mixture stands for: k-means of a sample of it.

    Radii are ``factor`` root mean squares of the model's residuals, on a grid of a step
    in units of the domain's largest norm. Cells are also made for ``unseen`` records,
    which were not counted, but none are expected there.
    """
    size = min(_MOST_PER_CELL * n_cells, max(_SAMPLE, _PER_CELL * n_cells))
    everything = mixture
    if unseen is not None:
        everything = Mixture(*map(np.concatenate, zip(mixture, unseen, strict=True)))
    points = sample(everything, size, source)
    ones = np.ones(size, dtype=np.int64)
    found = grid_kmeans(
        points, ones, n_cells, source, n_starts=1, n_steps=_PARTITION_STEPS
    ).points
    labels = nearest(points, found)
    counts = np.bincount(labels, minlength=n_cells)
    residuals = points - found[labels]
    sums = Groups(labels, n_cells).sums(residuals * residuals)  # of integers
    pooled = np.maximum(scaled(sums.sum(axis=0), 2 * MODEL_BITS) / size, SMALLEST)
    # Cells have few points: some that are spread as all are keep the variances apart
    # from 0.
    variances = scaled(sums, 2 * MODEL_BITS) + _PSEUDO_POINTS * pooled
    variances /= (counts + _PSEUDO_POINTS)[:, None]
    spread = math.fsum(pooled)
    lengths = np.sqrt(np.maximum(row_sums(variances.copy()), _LEAST_SPREAD * spread))
    most = math.floor(1 / step)
    centers = np.clip(to_grid(scaled(found, MODEL_BITS) / step), -most, most)
    radii = np.clip(np.floor(np.minimum(1.0, factor * lengths) / step), 1, most)
    if unseen is not None:
        labels = nearest(sample(mixture, size, source), found)
        counts = np.bincount(labels, minlength=n_cells)
    expected = counts.astype(np.float64) * (math.fsum(mixture.weights) / size)
    return Partition(centers, radii.astype(np.int64), variances, spread, expected)


def learned(
    cells: Partition,
    released: Released,
    noise: Noise,
    step: float,
    n_records: float,
    missing: NDArray[np.bool_] | None = None,
) -> tuple[Mixture, bool]:
    """Return the mixture that noisy sums of cells describe, and whether any cell stood out.

    Cells whose count is worth its noise stay (PE-means' zeroing rule, then a count
    above its noise; if there is none, and none is missing, the largest). A mean of
    residuals is drawn towards the cell's centre by as much as its noise has of the
    model's variance in that coordinate; a variance towards that of all cells. Cells
    whose records are missing (m,) stay as the model had them. ``step`` is that of the
    grid, in units of the domain's largest norm, and ``n_records`` infinite if nothing
    is known of it.
    """
    counts, spread = released.counts, max(cells.spread, SMALLEST)
    kept = (zero_small(counts, n_records) > 0) & (counts > noise.counts)
    stays = np.zeros(len(counts), dtype=bool) if missing is None else missing
    kept &= ~stays
    stood_out = bool(kept.any() or stays.any())
    kept[np.argmax(counts)] |= not stood_out
    sizes = np.maximum(counts, max(noise.counts, MIN_COUNT))
    radii = cells.radii.astype(np.float64) * step
    shape, own_sizes = cells.variances, np.where(kept, sizes, 0.0)
    means = radii[:, None] * released.sums / sizes[:, None]
    errors = np.square(radii * noise.sums / sizes)[:, None]
    means = clip_rows(means * shape / (shape + errors), radii)
    # What a record's slack lacks of 1 is its square: the noise of both is in it.
    squares = np.square(radii) * (sizes - released.slacks)
    lengths = row_sums(means * means)
    # of none where all that is there stays
    total_size = max(math.fsum(own_sizes), MIN_COUNT)
    pooled = math.fsum(np.where(kept, squares - sizes * lengths, 0.0)) / total_size
    pooled = min(max(pooled, 0.02 * spread), 4 * spread)
    both = noise.slacks * noise.slacks + noise.counts * noise.counts
    doubt = np.square(np.square(radii) / sizes) * both
    own = squares / sizes - lengths
    # As if the variances of cells differed among themselves by as much as they are
    # large.
    variances = pooled + pooled * pooled / (pooled * pooled + doubt) * (own - pooled)
    total = row_sums(shape.copy())
    variances = np.clip(variances, 0.05 * pooled, 6 * total)
    scales = np.sqrt(shape * (variances / total)[:, None])
    centers = cells.centers.astype(np.float64) * step
    aside = stays[:, None]
    # An error that is left is the posterior variance, of the model's and the noise's
    # together.
    found = Mixture(
        np.where(stays, cells.expected, own_sizes),
        np.where(aside, centers, centers + means),
        np.where(aside, np.sqrt(shape), scales),
        np.where(aside, shape, shape * errors / (shape + errors)),
    )
    return found, stood_out


# --------------------------------------------------------------------------- centroids


def select(
    mixture: Mixture,
    n_clusters: int,
    source: np.random.Philox,
    n_starts: int | None = None,
) -> Selection:
    """Return the centres of weighted k-means on a mixture.

    The best of many starts, or of ``n_starts``, on the means alone; Lloyd's algorithm
    on points of the mixture goes on from there. If there are too few means, points of
    the mixture are drawn as well.
    """
    weights, means, scales, _ = mixture
    points, m, p = on_grid(means), len(weights), means.shape[1]
    shares, parts = masses(weights), np.flatnonzero(weights > 0)
    few = len(parts) < n_clusters
    # Distances of a step are m k: with hundreds of clusters a start takes seconds.
    if n_starts is None:
        n_starts = max(
            _FEWEST_STARTS, min(_MOST_STARTS, _START_WORK // (m * n_clusters))
        )
    found = grid_kmeans(
        points, shares, n_clusters, source, n_starts, _SELECT_STEPS
    ).points
    pairs = max(m, min(_MOST_PAIRS_PER_CELL * m, _POLISH_PAIRS))
    chosen = parts[np.arange(pairs) % len(parts)]
    # Two points on either side of the mean: drawing moves no mean of whole parts.
    around, offsets = means[chosen], scales[chosen] * _normals((pairs, p), source)
    drawn = on_grid(np.vstack([around + offsets, around - offsets]))
    each = (shares << _SHARE_BITS) // np.maximum(np.bincount(chosen, minlength=m), 1)
    found = lloyd_steps(drawn, np.tile(each[chosen], 2), found, _POLISH_STEPS).points
    chosen = parts[np.arange(n_clusters) % len(parts)]
    beside = np.arange(n_clusters) >= len(parts)
    noise = _normals((n_clusters, p), source) * beside[:, None]
    # Drawn in any case: steps must not depend on released sums.
    found = np.where(few, on_grid(means[chosen] + scales[chosen] * noise), found)
    labels = nearest(points, found)
    residuals = scaled(points - found[labels], MODEL_BITS)
    squares = residuals * residuals + scales * scales
    within = row_sums((weights[:, None] * squares).T.copy()) / math.fsum(weights)
    ends = np.cumsum(np.bincount(labels, minlength=n_clusters))[:-1]
    groups = np.split(weights[np.argsort(labels, kind="stable")], ends)
    counts = np.array([math.fsum(group) for group in groups])
    doubts = _doubts(mixture, labels, counts)
    return Selection(scaled(found, MODEL_BITS), counts, within, doubts, few)


def select_within(
    mixture: Mixture,
    points: IntArray,
    n_clusters: int,
    shares: tuple[float, float],
    source: np.random.Philox,
) -> tuple[Selection, IntArray]:
    """Return the centres of k-means with bounds on sizes, and weights (k,) of their power cells.

    Of some starts the best is kept: weighted k-means on the means, unless there are too
    few of them, and points that are drawn. The latter are nearer to equal sizes, the
    former to the centres without bounds. Points (n, p) are `drawn_points`, and bounds
    shares of all masses. Weights are in squares of the mixture's grid.
    """
    k, n = n_clusters, len(points)
    parts, means = masses(mixture.weights), on_grid(mixture.means)
    few = np.count_nonzero(parts) < k
    # Points follow each other as parts do: one of each n/k spreads the centres by mass.
    edges = np.arange(k + 1) * n // k
    words = random_words(source, STARTS * k).reshape(STARTS, k)
    places = edges[:-1] + (words % np.diff(edges).astype(np.uint64)).astype(np.int64)
    starts = points[places]
    # Also where it is not wanted: steps must not depend on released sums.
    free = grid_kmeans(means, parts, k, source, _FREE_STARTS, _START_STEPS).points
    starts[0] = np.where(few, starts[0], free)
    best = constrained_centers(points, equal_masses(k), starts, *shares)
    labels = power_cells(squared_distances(points, best.points), best.weights)
    total = math.fsum(mixture.weights)
    counts = np.asarray(
        np.bincount(labels, minlength=k) * (total / n), dtype=np.float64
    )
    residuals = points - best.points[labels]
    # of integers
    within = scaled((residuals * residuals).sum(axis=0), 2 * MODEL_BITS) / n
    labels = power_cells(squared_distances(means, best.points), best.weights)
    doubts = _doubts(mixture, labels, counts)
    centers = scaled(best.points, MODEL_BITS)
    return Selection(centers, counts, within, doubts, bool(few)), best.weights


def _doubts(mixture: Mixture, labels: IntArray, counts: FloatArray) -> FloatArray:
    """Return the variances (k, p) that noise has left in centroids, from those of their parts."""
    shares = mixture.weights / np.maximum(counts, SMALLEST)[labels]
    doubts = np.zeros((len(counts), mixture.means.shape[1]), dtype=np.int64)
    errors = np.square(shares)[:, None] * mixture.errors
    np.add.at(doubts, labels, to_grid(errors * 2.0**_DOUBT_BITS))
    return scaled(doubts, _DOUBT_BITS)


# ------------------------------------------------------------------- points with masses


def in_state(mixture: Mixture) -> dict[str, IntArray]:
    """Return what a state keeps of a mixture: its points are drawn from it, and users have it."""
    return {
        "parts": masses(mixture.weights),
        "part_total": to_grid(
            np.array([math.fsum(mixture.weights)]) * 2.0**_TOTAL_BITS
        ),
        "part_means": to_grid(mixture.means * 2.0**_STATE_BITS),
        "part_scales": to_grid(mixture.scales * 2.0**_STATE_BITS),
    }


def from_state(arrays: Mapping[str, IntArray]) -> Mixture:
    """Return the mixture that a state keeps (`in_state`), without the errors of its means."""
    parts = arrays["parts"].astype(np.float64)
    weights = parts / math.fsum(parts) * scaled(arrays["part_total"], _TOTAL_BITS)
    means, scales = (
        scaled(arrays[name], _STATE_BITS) for name in ("part_means", "part_scales")
    )
    return Mixture(weights, means, scales, np.zeros_like(means))


def drawn_points(
    arrays: Mapping[str, IntArray], n_clusters: int, source: np.random.Philox
) -> IntArray:
    """Return points (n, p), on the grid of the model, that stand for the records of a mixture.

    They are drawn from what a state keeps of it (`in_state`), always the same from the
    same words.
    """
    mixture = from_state(arrays)._replace(weights=arrays["parts"].astype(np.float64))
    return sample(mixture, len(equal_masses(n_clusters)), source)


def equal_masses(n_clusters: int) -> IntArray:
    """Return the masses (n,) of points that all stand for as many records."""
    n = min(max(_PER_CLUSTER * n_clusters, _FEWEST_POINTS), _MOST_POINTS)
    return np.full(n, 2**MASS_BITS // n, dtype=np.int64)


def nearest(points: IntArray, centers: IntArray) -> IntArray:
    """Return the nearest centre of each point (n, p) of the grid; of several the first."""
    return Centers(centers).nearest(points.astype(np.float64)).astype(np.int64)


def _normals(shape: tuple[int, int], source: np.random.Philox) -> FloatArray:
    return normals(random_words(source, shape[0] * shape[1])).reshape(shape)
