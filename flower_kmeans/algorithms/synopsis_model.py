"""What SynopsisKMeans believes about the records: from noisy sums to a mixture, and to centroids.

Everything here is post-processing of released values, in units of the domain's largest norm, and
total: noise makes every number possible (docs/guarantees.md, "SynopsisKMeans"). All clients of an
oblivious server compute it, and must agree bit for bit. So numbers come from raw Philox words and
from operations that IEEE 754 rounds correctly, element by element. Sums are of integers, by
``math.fsum``, or by ``row_sums``, whose order NumPy does not choose. Points of the mixture lie on a
grid, where k-means is exact.

How many steps there are, and on how many points, follows from the schedule alone: a cell that is
left out of a mixture stays in it with a weight of 0.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from flower_kmeans.algorithms.grid_kmeans import grid_kmeans, lloyd_steps
from flower_kmeans.algorithms.histogram import zero_small
from flower_kmeans.algorithms.lloyd import MIN_COUNT
from flower_kmeans.algorithms.portable import normals
from flower_kmeans.algorithms.postprocess import scaled, to_grid
from flower_kmeans.assignment import assign
from flower_kmeans.domain import row_sums
from flower_kmeans.initialization import random_words
from flower_kmeans.threads import single_threaded_blas

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PRIOR_NORM, PRIOR_SPREAD = 0.25, 0.2
"""Mean squared norm of the records before any is seen, and its standard deviation."""
CLEAR = 1.1
"""Eigenvalue over the largest of noise alone from which on it counts."""
HEAVY_SHARE, HEAVY_SCALE = 0.2, 3.0
"""Part of the records before any is seen that is spread wider, and how much."""
ABSENT_NOISE, ABSENT_SHARE = 10.0, 0.25
"""A cell's records are missing if more were expected than so many standard deviations of a count's
noise, and less than this part of them is there."""
SMALLEST = 1e-12
"""Least variance, below the square of a grid step."""
DRIFT, DRIFT_DECAY = 0.3, 0.7
"""How far a centroid may be from its records' mean for other reasons than noise, squared and in the
variance of records around centroids; and what is left of it after each refinement round."""
MODEL_BITS = 16
"""Fractional bits of the mixture's points."""

_MASS_BITS = 26  # of all of a mixture's weights, where integers stand for them
_MOVE_BITS = 24  # of a move, where it is projected
_DOUBT_BITS = 50
_SAMPLE, _PER_CELL, _MOST_PER_CELL = 2_000, 10, 20
_PARTITION_STEPS = 6
_PSEUDO_POINTS = 5.0
_LEAST_SPREAD = 0.64  # of a cell's variance, in that of all cells, for its radius
_MOST_STARTS, _FEWEST_STARTS, _START_WORK, _SELECT_STEPS = 25, 5, 2**22, 8
_POLISH_PAIRS, _MOST_PAIRS_PER_CELL, _POLISH_STEPS = 5_000, 20, 12
_SHARE_BITS = 16  # that a share has more where it is divided among points


class Mixture(NamedTuple):
    """A mixture of Gaussians with independent coordinates.

    Attributes
    ----------
    weights : ndarray of shape (m,), float64
        How many records each part has, or before any are counted, which share. Positive, or 0 for
        parts that are left out; not all 0.
    means, scales : ndarrays of shape (m, p), float64
    errors : ndarray of shape (m, p), float64
        Variances of the means themselves, where noise made them.
    """

    weights: FloatArray
    means: FloatArray
    scales: FloatArray
    errors: FloatArray


class Partition(NamedTuple):
    """The cells of a round, on the grid, and how the model's records lie in them.

    Attributes
    ----------
    centers : ndarray of shape (m, p), int64
    radii : ndarray of shape (m,), int64
    variances : ndarray of shape (m, p), float64
        Of the model, by cell and coordinate.
    spread : float
        Mean squared distance of the model's records to their cells.
    expected : ndarray of shape (m,), float64
        Records of the model, by cell.
    """

    centers: IntArray
    radii: IntArray
    variances: FloatArray
    spread: float
    expected: FloatArray


class Noise(NamedTuple):
    """Standard deviations of the noise: sums and slacks in radii, counts in records."""

    sums: float
    counts: float
    slacks: float


class Answers(NamedTuple):
    """Noisy sums (m, p) and slacks (m,) in radii of their cells, and counts (m,) in records."""

    sums: FloatArray
    counts: FloatArray
    slacks: FloatArray


# --------------------------------------------------------------------------- second moments


def mean_norm(found: float, error: float) -> float:
    """Return the mean squared norm of the records, from a noisy one and what is likely before.

    Parameters
    ----------
    found, error : float
        The noisy mean, and the standard deviation of its noise.
    """
    doubt = error * error / (error * error + PRIOR_SPREAD * PRIOR_SPREAD)
    return min(1.0, max(doubt * PRIOR_NORM + (1 - doubt) * found, 0.0005, 0.3 * min(error, 0.02)))


def spectrum(values: FloatArray, edge: float, norm: float) -> tuple[FloatArray, int]:
    """Return the variances along all directions, and how many stand out of the noise.

    Of an eigenvalue above the noise's edge, what the noise added is taken away
    (``(v + sqrt(v^2 - edge^2)) / 2``); the other directions share what is left of the norm.

    Parameters
    ----------
    values : ndarray of shape (d,), float64
        Noisy eigenvalues of the mean second moments, in descending order.
    edge : float
        The largest eigenvalue of noise alone, about ``sqrt(2 d)`` standard deviations of its
        diagonal (Wigner's semicircle).
    norm : float
        Of `mean_norm`.
    """
    clear = values > CLEAR * edge
    roots = np.sqrt(np.maximum(values * values - edge * edge, 0.0))
    variances = np.where(clear, (values + roots) / 2, 0.0)
    if not clear.all():
        rest = max(norm - math.fsum(variances), 0.02 * norm)
        variances[~clear] = rest / np.count_nonzero(~clear)
    return np.maximum(variances, 1e-7), int(np.count_nonzero(clear))


def prior(variances: FloatArray) -> Mixture:
    """Return what is likely before any cell is known: Gaussian records, and some far out."""
    scales = np.sqrt(variances)
    return Mixture(
        np.array([1 - HEAVY_SHARE, HEAVY_SHARE]),
        np.zeros((2, len(variances))),
        np.stack([scales, HEAVY_SCALE * scales]),
        np.zeros((2, len(variances))),
    )


# --------------------------------------------------------------------------- cells


def joined(first: Mixture, second: Mixture) -> Mixture:
    """Return the mixture of all parts of two."""
    return Mixture(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def sample(mixture: Mixture, size: int, source: np.random.Philox) -> IntArray:
    """Return points (size, p) of a mixture, moved into the unit ball and put on the grid.

    Every part has as many as its weight says, rounded up or down.
    """
    reached = np.cumsum(masses(mixture.weights))
    places = (2 * np.arange(size, dtype=np.int64) + 1) * reached[-1] // (2 * size)
    chosen = np.searchsorted(reached, places, side="right")
    noise = _normals((size, mixture.means.shape[1]), source)
    return on_grid(shortened(mixture.means[chosen] + mixture.scales[chosen] * noise, 1.0))


def masses(weights: FloatArray) -> IntArray:
    """Return integers (m,) in proportion to weights, of about 2^26 in all.

    Positive where the weight is.
    """
    share = weights * (2.0**_MASS_BITS / math.fsum(weights))
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

    Parameters
    ----------
    mixture : Mixture
    n_cells : int
        m.
    factor : float
        A cell's radius in root mean squares of its model's residuals.
    step : float
        Of the cells' grid, in units of the domain's largest norm.
    source : Philox
        Public words.
    unseen : Mixture, optional
        Where records may be that nothing was counted of. Cells are made for these too, but no
        records are expected of them.
    """
    size = min(_MOST_PER_CELL * n_cells, max(_SAMPLE, _PER_CELL * n_cells))
    points = sample(mixture if unseen is None else joined(mixture, unseen), size, source)
    ones = np.ones(size, dtype=np.int64)
    found = grid_kmeans(points, ones, n_cells, source, n_starts=1, n_steps=_PARTITION_STEPS).points
    labels = nearest(points, found)
    counts = np.bincount(labels, minlength=n_cells)
    residuals = points - found[labels]
    choice = csc_array((ones, labels, np.arange(size + 1)), shape=(n_cells, size))
    sums = choice @ (residuals * residuals)  # of integers
    pooled = np.maximum(scaled(sums.sum(axis=0), 2 * MODEL_BITS) / size, SMALLEST)
    # Cells have few points: some that are spread as all are keep the variances apart from 0.
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


def absent(expected: FloatArray, counts: FloatArray, noise: float) -> NDArray[np.bool_]:
    """Return which cells (m,) must have lost their records to clients that did not answer.

    So many records were expected in them, and so few are there, that noise does not explain it.

    Parameters
    ----------
    expected, counts : ndarrays of shape (m,), float64
        Records that a cell had in the round before, and noisy numbers of those it has now.
    noise : float
        Standard deviation of a count's noise, in records.
    """
    clear = expected > ABSENT_NOISE * max(noise, MIN_COUNT)
    return np.asarray(clear & (counts < ABSENT_SHARE * expected))


def learned(
    cells: Partition,
    answers: Answers,
    noise: Noise,
    step: float,
    n_records: float,
    missing: NDArray[np.bool_] | None = None,
) -> tuple[Mixture, bool]:
    """Return the mixture that noisy sums of cells describe, and whether any cell stood out.

    Cells whose count is worth its noise stay (PE-means' zeroing rule, then a count above its noise;
    if there is none, and none is missing, the largest). A mean of residuals is drawn towards the
    cell's centre by as much as its noise has of the model's variance in that coordinate; a variance
    towards that of all cells.

    Parameters
    ----------
    cells : Partition
    answers : Answers
    noise : Noise
    step : float
        Of the grid, in units of the domain's largest norm.
    n_records : float
        That the answers hold, infinite if nothing is known of it.
    missing : ndarray of shape (m,), bool, optional
        Cells whose records are missing (`absent`): they stay as the model had them.
    """
    counts, spread = answers.counts, max(cells.spread, SMALLEST)
    kept = (zero_small(counts, n_records) > 0) & (counts > noise.counts)
    stays = np.zeros(len(counts), dtype=bool) if missing is None else missing
    kept &= ~stays
    stood_out = bool(kept.any() or stays.any())
    kept[np.argmax(counts)] |= not stood_out
    sizes = np.maximum(counts, max(noise.counts, MIN_COUNT))
    radii = cells.radii.astype(np.float64) * step
    shape, own_sizes = cells.variances, np.where(kept, sizes, 0.0)
    means = radii[:, None] * answers.sums / sizes[:, None]
    errors = _squared(radii * noise.sums / sizes)[:, None]
    means = shortened(means * shape / (shape + errors), radii)
    # What a record's slack lacks of 1 is its square: the noise of both is in it.
    squares = _squared(radii) * (sizes - answers.slacks)
    lengths = row_sums(means * means)
    total_size = max(math.fsum(own_sizes), MIN_COUNT)  # of none where all that is there stays
    pooled = math.fsum(np.where(kept, squares - sizes * lengths, 0.0)) / total_size
    pooled = min(max(pooled, 0.02 * spread), 4 * spread)
    both = noise.slacks * noise.slacks + noise.counts * noise.counts
    doubt = _squared(_squared(radii) / sizes) * both
    own = squares / sizes - lengths
    variances = pooled + pooled * pooled / (pooled * pooled + doubt) * (own - pooled)
    total = row_sums(shape.copy())
    variances = np.clip(variances, 0.05 * pooled, 6 * total)
    scales = np.sqrt(shape * (variances / total)[:, None])
    centers = cells.centers.astype(np.float64) * step
    aside = stays[:, None]
    found = Mixture(
        np.where(stays, cells.expected, own_sizes),
        np.where(aside, centers, centers + means),
        np.where(aside, np.sqrt(shape), scales),
        np.where(aside, shape, shape * errors / (shape + errors)),
    )
    return found, stood_out


# --------------------------------------------------------------------------- centroids


class Selection(NamedTuple):
    """Centroids of a mixture.

    Attributes
    ----------
    centers : ndarray of shape (k, p), float64
    counts : ndarray of shape (k,), float64
        Of the records that are nearest to each.
    within : ndarray of shape (p,), float64
        Variance of the mixture's records around them, by direction.
    doubts : ndarray of shape (k, p), float64
        Variances that noise has left in the centroids.
    few : bool
        Whether the mixture had fewer parts than there are centroids.
    """

    centers: FloatArray
    counts: FloatArray
    within: FloatArray
    doubts: FloatArray
    few: bool


def select(mixture: Mixture, n_clusters: int, source: np.random.Philox) -> Selection:
    """Return the centres of weighted k-means on a mixture.

    The best of many starts on the means alone; Lloyd's algorithm on points of the mixture goes on
    from there. If there are too few means, points of the mixture are drawn as well.
    """
    weights, means, scales, errors = mixture
    points, m, p = on_grid(means), len(weights), means.shape[1]
    shares, parts = masses(weights), np.flatnonzero(weights > 0)
    few = len(parts) < n_clusters
    # Distances of a step are m k: with hundreds of clusters a start takes seconds.
    n_starts = max(_FEWEST_STARTS, min(_MOST_STARTS, _START_WORK // (m * n_clusters)))
    found = grid_kmeans(points, shares, n_clusters, source, n_starts, _SELECT_STEPS).points
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
    found = np.where(few, on_grid(means[chosen] + scales[chosen] * noise), found)
    labels = nearest(points, found)
    residuals = scaled(points - found[labels], MODEL_BITS)
    squares = residuals * residuals + scales * scales
    within = row_sums((weights[:, None] * squares).T.copy()) / math.fsum(weights)
    ends = np.cumsum(np.bincount(labels, minlength=n_clusters))[:-1]
    groups = np.split(weights[np.argsort(labels, kind="stable")], ends)
    counts = np.array([math.fsum(group) for group in groups])
    shares2 = _squared(weights / np.maximum(counts, SMALLEST)[labels])
    doubts = np.zeros((n_clusters, means.shape[1]), dtype=np.int64)
    np.add.at(doubts, labels, to_grid(shares2[:, None] * errors * 2.0**_DOUBT_BITS))
    return Selection(scaled(found, MODEL_BITS), counts, within, scaled(doubts, _DOUBT_BITS), few)


def steps_of(
    sums: FloatArray, counts: FloatArray, radius: float, count_noise: float
) -> tuple[FloatArray, FloatArray]:
    """Return how far centroids move, (k, d), and their sizes, (k,), which are at least the noise.

    Parameters
    ----------
    sums : ndarray of shape (k, d), float64
        Noisy sums of clipped residuals, in radii.
    counts : ndarray of shape (k,), float64
        Noisy.
    radius : float
    count_noise : float
        Standard deviation of a count's noise, in records.
    """
    sizes = np.maximum(counts, max(count_noise, MIN_COUNT))
    return shortened(radius * sums / sizes[:, None], np.full(len(sizes), radius)), sizes


def continued(moves: FloatArray, before: FloatArray) -> FloatArray:
    """Return moves to which those before are added, as far as both point the same way.

    Residuals are clipped, and noise keeps small clusters from moving by their mean: a centroid that
    is far from its records needs many rounds, all in one direction. Noise has no direction.

    Parameters
    ----------
    moves, before : ndarrays of shape (k, d), float64
        Of this round, and what was made of those of the round before; zeros if there was none.

    Returns
    -------
    ndarray of shape (k, d), float64
        ``moves + max(0, cos) before``, cos of the angle between the two.
    """
    products = row_sums(moves * before)
    lengths = np.sqrt(row_sums(moves * moves)) * np.sqrt(row_sums(before * before))
    alike = np.maximum(products, 0.0) / np.maximum(lengths, SMALLEST * SMALLEST)
    return np.asarray(moves + alike[:, None] * before)


def weighed(
    moves: FloatArray, doubts: FloatArray, errors: FloatArray, directions: IntArray, bits: int
) -> tuple[FloatArray, FloatArray]:
    """Return noisy moves, less where noise explains them, and the doubt that is left.

    A step of Kalman's filter, by direction: a move of variance P with noise of variance R is
    multiplied by P / (P + R), and leaves P R / (P + R).

    Parameters
    ----------
    moves : ndarray of shape (k, d), float64
        Of length 1 at most.
    doubts : ndarray of shape (k, p + 1), float64
        Expected squares of the true moves, by direction; the last for every direction beside them.
    errors : ndarray of shape (k,), float64
        Variance of the moves' noise.
    directions : ndarray of shape (d, p), int64
        Orthonormal, of exponent ``bits``.
    bits : int
    """
    gains = doubts / (doubts + errors[:, None] + SMALLEST * SMALLEST)
    others = gains[:, -1:]
    along = _product(moves, directions, bits)
    kept = others * moves + _product((gains[:, :-1] - others) * along, directions.T, bits)
    return np.asarray(kept), np.asarray((1 - gains) * doubts)


def nearest(points: IntArray, centers: IntArray) -> IntArray:
    """Return the nearest centre of each point (n, p) of the grid; of several the first."""
    return assign(points.astype(np.float64), centers)[0].astype(np.int64)


def shortened(vectors: FloatArray, lengths: FloatArray | float) -> FloatArray:
    """Return vectors (n, p), those longer than their length (n,) cut to it."""
    norms = np.sqrt(row_sums(vectors * vectors))
    factors = np.minimum(1.0, lengths / np.maximum(norms, SMALLEST))
    return np.asarray(vectors * factors[:, None])


def _product(vectors: FloatArray, matrix: IntArray, bits: int) -> FloatArray:
    """Return vectors of length 1 at most, on a grid, times orthonormal columns or rows of integers.

    By Cauchy and Schwarz no partial sum exceeds 2**(_MOVE_BITS + bits) by more than a rounding of
    the columns, so the product of integers is exact in any order.
    """
    integers = to_grid(vectors * 2.0**_MOVE_BITS).astype(np.float64)
    with single_threaded_blas():
        found: FloatArray = integers @ matrix.astype(np.float64)
    return found * 2.0 ** -(_MOVE_BITS + bits)


def _normals(shape: tuple[int, int], source: np.random.Philox) -> FloatArray:
    return normals(random_words(source, shape[0] * shape[1])).reshape(shape)


def _squared(values: FloatArray) -> FloatArray:
    return values * values
