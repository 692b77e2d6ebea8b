"""Initial centroids without private data: sphere packing, or a server's points.

Every client of a run packs the same from public numbers: raw Philox words and
comparisons of exact integers. Who sees the others learns about the server's points,
which no privacy plan covers.
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

# random points that are tried for one centroid before the radius is given up
ATTEMPTS = 100
STARTS = 10  # of k-means by k-means++, of which the best counts

_BLOCK_POINTS = 64
_BLOCK_WORDS = 2**16


def sphere_packing(n_clusters: int, grid_half_widths: IntArray, seed: int) -> IntArray:
    """Return centroids (k, d) far from each other and from the boundary, or raise.

    Random points of the box are taken in turn, each at least ``a`` from the boundary
    and ``2 a`` from all points taken before; a radius ``a`` fails when 100 attempts
    find no further point. The largest ``a`` that does not fail is found by bisection
    over the integers (FastLloyd, section 5.3.1, after Su et al. 2016). In a column
    narrower than ``2 a`` the points lie in the middle.
    """
    widths = np.array(grid_half_widths, dtype=np.int64)
    # Of a column at most k different values are needed.
    values = [min(2 * int(width) + 1, n_clusters) for width in widths]
    grid_points = math.prod(values)
    if grid_points < n_clusters:
        raise ConfigurationError(
            f"Expected n_clusters of at most the {grid_points} points of the grid. "
            f"Got {n_clusters} instead."
        )
    # A strategy is often made beside Ray, and a fork never returns while another thread
    # is inside a library of linear algebra that uses threads of its own.
    with single_threaded_blas():
        best = _pack(n_clusters, widths, 0, seed)
        # low works, high does not (or leaves a single point)
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
    """Return k points (k, d) at a radius, integers in float64, or None if one fails."""
    margins = np.maximum(widths - radius, 0)
    source = np.random.Philox(key=seed)  # the same words serve every radius
    size = max(1, min(_BLOCK_POINTS, _BLOCK_WORDS // len(widths)))
    chosen = np.empty((n_clusters, len(widths)))
    n_chosen = failures = 0
    while n_chosen < n_clusters:
        block = _random_points(source, size, margins)
        # distinct points even where the radius is 0
        separation = max(4 * radius * radius, 1)
        n_chosen, failures = take_apart(block, chosen, n_chosen, separation, failures)
        if failures == ATTEMPTS:
            return None
    return chosen


def take_apart(
    block: FloatArray, chosen: FloatArray, n_chosen: int, separation: int, failures: int
) -> tuple[int, int]:
    """Append points (m, d), in turn, to the ``n_chosen`` of ``chosen``, if far enough.

    ``chosen`` has the shape (k, d). Squared distances, of at least ``separation``, are
    exact. It ends with the block, with k points, or when ``ATTEMPTS`` points in turn
    were too near. Returned are ``n_chosen``, and the failures since the last point that
    was chosen.
    """
    # Integers below 2**53: exact in any order, so BLAS may do it (docs/guarantees, Theorem 8).
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
    """Return uniform grid points (size, d) of the box, as integers in float64."""
    words = source.random_raw(size * len(margins)).reshape(size, len(margins))
    values = (2 * margins + 1).astype(np.uint64)
    # The bias is below 2**-6 of a point's probability, and irrelevant to where a
    # centroid starts.
    upper_halves = words >> np.uint64(32)
    offsets = (upper_halves * values) >> np.uint64(32)
    return offsets.astype(np.float64) - margins


# ------------------------------------------------------------------ in the user's units


def server_kmeans_plus_plus(
    server_data: ArrayLike, n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Return k points of the server's, chosen by k-means++.

    Parameters
    ----------
    server_data : array-like of shape (m, d)
        Points that the server holds, in the user's units, at least k of them different.
    n_clusters : int
        k >= 1.
    rng : Generator
        Public randomness.

    Returns
    -------
    ndarray of shape (k, d), float64
        In the user's units.

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If the points are not finite numbers, or too few are different.
    """
    require("sklearn.cluster", "k-means++ on the server's points", "sklearn")
    from sklearn.cluster import kmeans_plusplus  # a second that clients need not pay

    points = check_server_data(server_data, n_clusters)
    centers, _ = kmeans_plusplus(points, n_clusters, random_state=_sklearn_seed(rng))
    return np.asarray(centers, dtype=np.float64)


def server_lloyd(
    server_data: ArrayLike, n_clusters: int, rng: np.random.Generator
) -> FloatArray:
    """Return centroids (k, d) of k-means on a server's points, the best of ten starts.

    Parameters and errors are those of `server_kmeans_plus_plus`.
    """
    require("sklearn.cluster", "k-means on the server's points", "sklearn")
    from sklearn.cluster import KMeans

    points = check_server_data(server_data, n_clusters)
    model = KMeans(n_clusters, n_init=STARTS, random_state=_sklearn_seed(rng))
    # One thread: a server's points are few, and the result is then the same in every
    # run.
    with threadpool_limits(limits=1):
        model.fit(points)
    return np.asarray(model.cluster_centers_, dtype=np.float64)


def check_server_data(
    server_data: ArrayLike, n_clusters: int, n_features: int | None = None
) -> FloatArray:
    """Return a server's points as a finite array (m, d), k of them different."""
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
    """Return a server's public randomness of a round, never of keys or noise."""
    sequence = np.random.SeedSequence((seed, round_number))
    return np.random.default_rng(sequence)


def public_words(key: int) -> np.random.Philox:
    """Return the public words of a 128-bit key.

    ``random_raw`` is the same with every NumPy.
    """
    halves = np.array([key % 2**64, key >> 64], dtype=np.uint64)
    return np.random.Philox(key=halves)


def round_words(seed: int, round_number: int) -> np.random.Philox:
    """Return the public words of one round, all that a client's `update` may draw."""
    # Other uses of the seed have numbers below 2^32 beside it, so their keys are
    # others.
    return public_words(seed + ((2**32 + round_number) << 64))


def random_words(source: np.random.Philox, size: int) -> NDArray[np.uint64]:
    """Return the next words of a source, (size,)."""
    return np.asarray(source.random_raw(size), dtype=np.uint64)


def _sklearn_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**32))
