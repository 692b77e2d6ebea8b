"""Initial centroids without private data: sphere packing, or a server's points.

Sphere packing uses public numbers only: raw Philox words and comparisons of exact
integers. So every client of a run finds the same centroids. Centroids from a server's
points reveal something about these points, which no privacy plan covers.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import squared_norms
from flower_kmeans.data.records import check_records
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require
from flower_kmeans.parameters import LARGEST, integer
from flower_kmeans.threads import single_threaded_blas

# random points to try for one centroid before a smaller radius
ATTEMPTS = 100
STARTS = 10  # starts of k-means on a server's points, of which the best counts

_BLOCK_POINTS = 64
_BLOCK_WORDS = 2**16


def sphere_packing(n_clusters: int, grid_half_widths: IntArray, seed: int) -> IntArray:
    """Return centroids, (k, d), int64, far from each other and from the boundary.

    Random points of the box are tried in turn. A point is taken if it is at least ``a``
    from the boundary and ``2 a`` from all points before. A radius ``a`` fails if 100
    points in turn are not taken. Bisection over the integers finds the largest ``a``
    that does not fail (FastLloyd, section 5.3.1, after Su et al. 2016). In a column
    narrower than ``2 a`` all points lie in the middle.

    Raises
    ------
    ConfigurationError
        If the grid is too small for k different centroids.
    """
    widths = np.array(grid_half_widths, dtype=np.int64)
    # At most k different values of a column are needed.
    values = [min(2 * int(width) + 1, n_clusters) for width in widths]
    grid_points = math.prod(values)
    if grid_points < n_clusters:
        raise ConfigurationError(
            f"Expected n_clusters of at most the {grid_points} points of the grid. "
            f"Got {n_clusters} instead."
        )
    # A strategy is often made in a process with Ray. A fork would hang if another
    # thread is inside a linear algebra library that has its own threads.
    with single_threaded_blas():
        best = _pack(n_clusters, widths, 0, seed)
        # `low` does not fail. `high` fails, or leaves a single point.
        low = 0
        high = int(widths.max()) + 1
        while best is not None and high - low > 1:
            middle = (low + high) // 2
            points = _pack(n_clusters, widths, middle, seed)
            if points is None:
                high = middle
            else:
                low = middle
                best = points
    if best is None:
        raise ConfigurationError(
            f"n_clusters={n_clusters} distinct initial centroids could not be placed on this small "
            "grid: take fewer clusters, more fraction_bits, or give initial centroids."
        )
    return best.astype(np.int64)


def _pack(
    n_clusters: int, widths: IntArray, radius: int, seed: int
) -> FloatArray | None:
    """Return points, (k, d), for a radius, integers in float64, or None if it fails."""
    margins = np.maximum(widths - radius, 0)
    source = np.random.Philox(key=seed)  # every radius uses the same words
    size = max(1, min(_BLOCK_POINTS, _BLOCK_WORDS // len(widths)))
    chosen = np.empty((n_clusters, len(widths)))
    n_chosen = failures = 0
    while n_chosen < n_clusters:
        block = _random_points(source, size, margins)
        # Points must differ even if the radius is 0.
        separation = max(4 * radius * radius, 1)
        n_chosen, failures = take_apart(block, chosen, n_chosen, separation, failures)
        if failures == ATTEMPTS:
            return None
    return chosen


def take_apart(
    block: FloatArray, chosen: FloatArray, n_chosen: int, separation: int, failures: int
) -> tuple[int, int]:
    """Choose the points of a block, in turn, that are far from all points chosen before.

    It ends with the block, with k chosen points, or after ``ATTEMPTS`` points in turn
    were too near.

    Parameters
    ----------
    block : ndarray of shape (m, d)
        Integers in float64.
    chosen : ndarray of shape (k, d)
        The first ``n_chosen`` rows are the points chosen before. Further points are
        written behind them.
    n_chosen : int
    separation : int
        Least squared distance of two chosen points.
    failures : int
        Number of points in turn that were too near, before this block.

    Returns
    -------
    n_chosen, failures : int
        The two numbers after this block.
    """
    # All are integers below 2**53, so products by BLAS are exact (docs/guarantees,
    # Theorem 8).
    distances = np.full(len(block), np.inf)
    if n_chosen:
        others = chosen[:n_chosen]
        norms = squared_norms(others)
        scores = block @ (-2 * others.T) + norms
        distances = scores.min(axis=1)
        distances += squared_norms(block)
    for i, point in enumerate(block):
        if distances[i] < separation:
            failures += 1
            if failures == ATTEMPTS:
                break
            continue
        chosen[n_chosen] = point
        n_chosen += 1
        failures = 0
        if n_chosen == len(chosen):
            break
        rest = block[i + 1 :] - point
        near = squared_norms(rest)
        np.minimum(distances[i + 1 :], near, out=distances[i + 1 :])
    return n_chosen, failures


def _random_points(
    source: np.random.Philox, size: int, margins: IntArray
) -> FloatArray:
    """Return uniform grid points of the box, (size, d), integers in float64."""
    words = source.random_raw(size * len(margins)).reshape(size, len(margins))
    values = (2 * margins + 1).astype(np.uint64)
    # The bias is below 2**-6 of a point's probability, which does not matter for
    # initial centroids.
    upper_halves = words >> np.uint64(32)
    offsets = (upper_halves * values) >> np.uint64(32)
    return offsets.astype(np.float64) - margins


# ------------------------------------------------------------------ in the user's units


def server_kmeans_plus_plus(
    server_data: ArrayLike, n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Return k of the server's points, chosen by k-means++.

    Parameters
    ----------
    server_data : array-like of shape (m, d)
        The server's points in the user's units. At least k of them must differ.
    n_clusters : int
        Number of points to choose, k >= 1.
    rng : Generator
        Public randomness.

    Returns
    -------
    ndarray of shape (k, d), float64
        Points in the user's units.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If the points are not finite numbers, or too few are different.
    """
    require("sklearn.cluster", "k-means++ on the server's points", "sklearn")
    from sklearn.cluster import kmeans_plusplus  # takes a second, and clients need none

    points = check_server_data(server_data, n_clusters)
    centers, _ = kmeans_plusplus(points, n_clusters, random_state=_sklearn_seed(rng))
    return np.asarray(centers, dtype=np.float64)


def server_lloyd(
    server_data: ArrayLike, n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Return the centroids of k-means on a server's points, the best of ten starts.

    Parameters, result and errors are those of `server_kmeans_plus_plus`.
    """
    require("sklearn.cluster", "k-means on the server's points", "sklearn")
    from sklearn.cluster import KMeans

    points = check_server_data(server_data, n_clusters)
    model = KMeans(n_clusters, n_init=STARTS, random_state=_sklearn_seed(rng))
    # With one thread every run has the same result. A server's points are few.
    with threadpool_limits(limits=1):
        model.fit(points)
    return np.asarray(model.cluster_centers_, dtype=np.float64)


def check_server_data(
    server_data: ArrayLike, n_clusters: int, n_features: int | None = None
) -> FloatArray:
    """Return a server's points as a finite array, (m, d), or raise an error.

    At least k points must differ. Errors are those of `server_kmeans_plus_plus`.
    """
    try:
        points = check_records(server_data, n_features, name="server_data")
    except DataError as error:
        raise ConfigurationError(str(error)) from None
    integer("n_clusters", n_clusters, 1, LARGEST)
    n_different = len(np.unique(points, axis=0)) if len(points) else 0
    if n_different < n_clusters:
        raise ConfigurationError(
            f"Expected server_data with at least n_clusters={n_clusters} different points. "
            f"Got {n_different} instead."
        )
    return points


def public_generator(seed: int, round_number: int) -> np.random.Generator:
    """Return a server's public randomness for a round. Keys and noise never use it."""
    sequence = np.random.SeedSequence((seed, round_number))
    return np.random.default_rng(sequence)


def public_words(key: int) -> np.random.Philox:
    """Return the source of public words with a 128-bit key.

    Its ``random_raw`` gives the same words in every version of NumPy.
    """
    halves = np.array([key % 2**64, key >> 64], dtype=np.uint64)
    return np.random.Philox(key=halves)


def round_words(seed: int, round_number: int) -> np.random.Philox:
    """Return the public words of one round. A client's `update` draws no others."""
    # Other uses of the seed add smaller numbers, so their keys differ.
    return public_words(seed + ((2**32 + round_number) << 64))


def random_words(source: np.random.Philox, size: int) -> NDArray[np.uint64]:
    """Return the next words of a source, (size,), uint64."""
    return np.asarray(source.random_raw(size), dtype=np.uint64)


def _sklearn_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**32))
