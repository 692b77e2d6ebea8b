"""What the server of SynopsisKMeans believes about the records: from noisy sums to a mixture.

Everything here is post-processing of released values, in units of the domain's largest norm, and
total: noise makes every number possible (docs/guarantees.md, "SynopsisKMeans").
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from flower_kmeans.algorithms.histogram import zero_small
from flower_kmeans.algorithms.lloyd import MIN_COUNT
from flower_kmeans.initialization import weighted_kmeans
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

_SAMPLE, _PER_CELL, _MOST_PER_CELL = 2_000, 10, 20
_PARTITION_STEPS = 6
_PSEUDO_POINTS = 5.0
_LEAST_SPREAD = 0.64  # of a cell's variance, in that of all cells, for its radius
_SELECT_STARTS, _SELECT_STEPS = 5, 50
_BLOCK_NUMBERS = 2**22


class Mixture(NamedTuple):
    """A mixture of Gaussians with independent coordinates.

    Attributes
    ----------
    weights : ndarray of shape (m,), float64
        Positive: how many records each part has, or before any are counted, which share.
    means, scales : ndarrays of shape (m, p), float64
    """

    weights: FloatArray
    means: FloatArray
    scales: FloatArray


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
    """Standard deviations of the noise: sums and squares in radii, counts in records."""

    sums: float
    counts: float
    squares: float


class Answers(NamedTuple):
    """Noisy sums (m, p) and squares (m,) in radii of their cells, and counts (m,) in records."""

    sums: FloatArray
    counts: FloatArray
    squares: FloatArray


# --------------------------------------------------------------------------- second moments


def mean_norm(found: float, error: float) -> float:
    """Return the mean squared norm of the records, from a noisy one and what is likely before.

    Parameters
    ----------
    found, error : float
        The noisy mean, and the standard deviation of its noise.
    """
    doubt = error**2 / (error**2 + PRIOR_SPREAD**2)
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
    roots = np.sqrt(np.maximum(values**2 - edge**2, 0.0))
    variances = np.where(clear, (values + roots) / 2, 0.0)
    if not clear.all():
        rest = max(norm - float(variances.sum()), 0.02 * norm)
        variances[~clear] = rest / np.count_nonzero(~clear)
    return np.maximum(variances, 1e-7), int(np.count_nonzero(clear))


def prior(variances: FloatArray) -> Mixture:
    """Return what is likely before any cell is known: Gaussian records, and some far out."""
    scales = np.sqrt(variances)
    return Mixture(
        np.array([1 - HEAVY_SHARE, HEAVY_SHARE]),
        np.zeros((2, len(variances))),
        np.stack([scales, HEAVY_SCALE * scales]),
    )


# --------------------------------------------------------------------------- cells


def joined(first: Mixture, second: Mixture) -> Mixture:
    """Return the mixture of all parts of two."""
    weights, means, scales = (np.concatenate(pair) for pair in zip(first, second, strict=True))
    return Mixture(weights, means, scales)


def sample(mixture: Mixture, size: int, rng: np.random.Generator) -> FloatArray:
    """Return points (size, p) of a mixture, moved into the unit ball."""
    chosen = rng.choice(len(mixture.weights), size, p=mixture.weights / mixture.weights.sum())
    noise = rng.standard_normal((size, mixture.means.shape[1]))
    return shortened(mixture.means[chosen] + mixture.scales[chosen] * noise, 1.0)


def partition(
    mixture: Mixture,
    n_cells: int,
    factor: float,
    step: float,
    rng: np.random.Generator,
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
        Of the grid, in units of the domain's largest norm.
    rng : Generator
    unseen : Mixture, optional
        Where records may be that nothing was counted of. Cells are made for these too, but no
        records are expected of them.
    """
    size = min(_MOST_PER_CELL * n_cells, max(_SAMPLE, _PER_CELL * n_cells))
    points = sample(mixture if unseen is None else joined(mixture, unseen), size, rng)
    found, _ = weighted_kmeans(
        points, np.ones(size), n_cells, rng, n_starts=1, max_iterations=_PARTITION_STEPS
    )
    most = math.floor(1 / step)
    centers = np.clip(np.rint(found / step), -most, most)
    labels, residuals = residuals_of(points, centers * step)
    residuals *= residuals
    pooled = np.maximum(residuals.mean(axis=0), SMALLEST)
    counts = np.bincount(labels, minlength=n_cells)
    # Cells have few points: some that are spread as all are keep the variances apart from 0.
    choice = csr_array((np.ones(size), labels, np.arange(size + 1)), shape=(size, n_cells))
    variances = (choice.T @ residuals + _PSEUDO_POINTS * pooled) / (counts + _PSEUDO_POINTS)[
        :, None
    ]
    spread = float(pooled.sum())
    lengths = np.sqrt(np.maximum(variances.sum(axis=1), _LEAST_SPREAD * spread))
    radii = np.clip(np.floor(np.minimum(1.0, factor * lengths) / step), 1, most)
    if unseen is not None:
        labels, _ = residuals_of(sample(mixture, size, rng), centers * step)
        counts = np.bincount(labels, minlength=n_cells)
    expected = counts.astype(np.float64) * (float(mixture.weights.sum()) / size)
    return Partition(centers.astype(np.int64), radii.astype(np.int64), variances, spread, expected)


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
    """Return the mixture that noisy sums of cells tell of, and whether any cell stood out.

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
    held = Mixture(
        cells.expected[stays],
        cells.centers[stays].astype(np.float64) * step,
        np.sqrt(cells.variances[stays]),
    )
    if not stood_out:
        kept[np.argmax(counts)] = True
    elif not kept.any():
        return held, True
    sizes = np.maximum(counts[kept], max(noise.counts, MIN_COUNT))
    radii = cells.radii[kept].astype(np.float64) * step
    shape = cells.variances[kept]
    means = radii[:, None] * answers.sums[kept] / sizes[:, None]
    errors = (radii * noise.sums / sizes)[:, None] ** 2
    means = shortened(means * shape / (shape + errors), radii)
    squares = radii**2 * answers.squares[kept]
    lengths = np.einsum("ij,ij->i", means, means)
    pooled = float((squares - sizes * lengths).sum() / sizes.sum())
    pooled = min(max(pooled, 0.02 * spread), 4 * spread)
    doubt = (radii**2 * noise.squares / sizes) ** 2
    own = squares / sizes - lengths
    variances = pooled + pooled**2 / (pooled**2 + doubt) * (own - pooled)
    total = shape.sum(axis=1)
    variances = np.clip(variances, 0.05 * pooled, 6 * total)
    scales = np.sqrt(shape * (variances / total)[:, None])
    found = Mixture(sizes, cells.centers[kept] * step + means, scales)
    return joined(found, held), stood_out


# --------------------------------------------------------------------------- centroids


class Selection(NamedTuple):
    """Centroids of a mixture.

    Attributes
    ----------
    centers : ndarray of shape (k, p), float64
    counts : ndarray of shape (k,), float64
        Of the records that are nearest to each.
    cost : float
        Mean squared distance of the mixture's records to them.
    few : bool
        Whether the mixture had fewer parts than there are centroids.
    """

    centers: FloatArray
    counts: FloatArray
    cost: float
    few: bool


def select(mixture: Mixture, n_clusters: int, rng: np.random.Generator) -> Selection:
    """Return the centres of weighted k-means on the means of a mixture.

    If there are too few of them, points of the mixture are drawn as well.
    """
    weights, means, scales = mixture
    missing = n_clusters - len(weights)
    if missing > 0:
        chosen = rng.choice(len(weights), missing, p=weights / weights.sum())
        noise = rng.standard_normal((missing, means.shape[1]))
        centers = np.vstack([means, means[chosen] + scales[chosen] * noise])
    else:
        centers, _ = weighted_kmeans(
            means, weights, n_clusters, rng, n_starts=_SELECT_STARTS, max_iterations=_SELECT_STEPS
        )
    labels, residuals = residuals_of(means, centers)
    squares = (residuals**2).sum(axis=1) + (scales**2).sum(axis=1)
    cost = float(weights @ squares / weights.sum())
    counts: FloatArray = np.zeros(n_clusters)
    np.add.at(counts, labels, weights)
    return Selection(centers, counts, cost, missing > 0)


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
    products = np.einsum("ij,ij->i", moves, before)
    lengths = np.linalg.norm(moves, axis=1) * np.linalg.norm(before, axis=1)
    alike = np.maximum(products, 0.0) / np.maximum(lengths, SMALLEST**2)
    return np.asarray(moves + alike[:, None] * before)


def residuals_of(points: FloatArray, centers: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Return the nearest centre of each point (n, p), and the points relative to it."""
    labels = np.empty(len(points), dtype=np.intp)
    norms = np.einsum("ij,ij->i", centers, centers)
    rows = max(1, _BLOCK_NUMBERS // len(centers))
    with single_threaded_blas():
        for start in range(0, len(points), rows):
            scores = points[start : start + rows] @ (-2 * centers.T)
            scores += norms
            labels[start : start + rows] = scores.argmin(axis=1)
    return labels, points - centers[labels]


def shortened(vectors: FloatArray, lengths: FloatArray | float) -> FloatArray:
    """Return vectors (n, p), those longer than their length (n,) cut to it."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    factors = np.minimum(1.0, lengths / np.maximum(norms, SMALLEST))
    return np.asarray(vectors * factors[:, None])
