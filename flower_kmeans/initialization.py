"""Initial centroids without private data: sphere packing, and those of a server's own points.

Sphere packing needs no data at all. Every client of a run computes the same points from public
numbers alone, so they must not depend on a processor, a NumPy version or a library of linear
algebra: coordinates come from raw Philox words, and all tests are comparisons of exact integers.

The others cluster points that the server holds, which its results then describe: whoever sees the
initial centroids learns about those points, and no privacy plan covers that.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from flower_kmeans.assignment import check_exactness
from flower_kmeans.domain import Ball, Domain
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError
from flower_kmeans.records import check_records
from flower_kmeans.threads import single_threaded_blas

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

ATTEMPTS = 100
"""Random points that are tried for one centroid before the radius is given up."""

STARTS = 10
"""Of k-means by k-means++, of which the best counts."""
_BLOCK_POINTS = 64
_BLOCK_WORDS = 2**16
_LARGEST_HALF_WIDTH = 2**25


def sphere_packing(n_clusters: int, grid_half_widths: IntArray, seed: int) -> IntArray:
    """Return centroids that keep away from each other and from the boundary.

    Random points of the box are taken in turn, each at least ``a`` from the boundary and ``2 a``
    from all points taken before; a radius ``a`` fails when 100 attempts find no further point. The
    largest ``a`` that does not fail is found by bisection over the integers (FastLloyd, section
    5.3.1, after Su et al. 2016). The same random numbers serve every radius. In a column narrower
    than ``2 a`` the points lie in the middle.

    Parameters
    ----------
    n_clusters : int
        k >= 1.
    grid_half_widths : ndarray of shape (d,), int64
        Points lie in ``[-grid_half_widths, grid_half_widths]``. Squared distances must be exact in
        float64 (``assignment.check_exactness``).
    seed : int
        Public, in [0, 2**64).

    Returns
    -------
    ndarray of shape (k, d), int64
        Distinct grid points.

    Raises
    ------
    ConfigurationError
        If that many distinct points cannot be placed, or an argument is out of range.

    Notes
    -----
    At most ``100 k`` points of d coordinates are drawn for each of about ``log2(2**q)`` radii, and
    compared with at most k others.
    """
    widths = np.array(grid_half_widths, dtype=np.int64)
    _check(n_clusters, widths, seed)
    # A strategy is often made beside Ray, and a fork never returns while another thread is inside
    # a library of linear algebra that uses threads of its own.
    with single_threaded_blas():
        best = _largest_packing(n_clusters, widths, seed)
    if best is None:
        raise ConfigurationError(
            f"n_clusters={n_clusters} distinct initial centroids could not be placed on this small "
            "grid: take fewer clusters, more fraction_bits, or give initial centroids."
        )
    return best.astype(np.int64)


def _largest_packing(n_clusters: int, widths: IntArray, seed: int) -> FloatArray | None:
    """Return the points of the largest radius that does not fail, or None if even 0 does."""
    best = _pack(n_clusters, widths, 0, seed)
    if best is None:
        return None
    low, high = 0, int(widths.max()) + 1  # low works, high does not (or leaves a single point)
    while high - low > 1:
        middle = (low + high) // 2
        points = _pack(n_clusters, widths, middle, seed)
        if points is None:
            high = middle
        else:
            low, best = middle, points
    return best


def _check(n_clusters: int, widths: IntArray, seed: int) -> None:
    if n_clusters < 1:
        raise ConfigurationError(f"Expected n_clusters >= 1. Got {n_clusters} instead.")
    if widths.ndim != 1 or not widths.size:
        raise ConfigurationError(
            f"Expected grid_half_widths of shape (d,). Got shape {widths.shape} instead."
        )
    if widths.min() < 0 or widths.max() > _LARGEST_HALF_WIDTH:
        raise ConfigurationError(f"Expected grid_half_widths in [0, {_LARGEST_HALF_WIDTH}].")
    if 4 * int((widths * widths).sum()) > 2**53:
        raise ConfigurationError(
            f"Expected grid_half_widths whose squared distances stay below 2^53, got "
            f"{len(widths)} columns of up to {widths.max()}: take fewer fraction_bits."
        )
    if not 0 <= seed < 2**64:
        raise ConfigurationError(f"Expected seed in [0, 2^64). Got {seed} instead.")
    grid_points = math.prod(min(2 * int(width) + 1, n_clusters) for width in widths)
    if grid_points < n_clusters:
        raise ConfigurationError(
            f"Expected n_clusters of at most the {grid_points} points of the grid. "
            f"Got {n_clusters} instead."
        )


def _pack(n_clusters: int, widths: IntArray, radius: int, seed: int) -> FloatArray | None:
    """Return k points (k, d) at that radius, integers in float64, or None if a point fails."""
    margins = np.maximum(widths - radius, 0)
    separation = max(4 * radius * radius, 1)
    source = np.random.Philox(key=seed)
    size = max(1, min(_BLOCK_POINTS, _BLOCK_WORDS // len(widths)))
    chosen = np.empty((n_clusters, len(widths)))
    n_chosen = failures = 0
    while n_chosen < n_clusters:
        block = _random_points(source, size, margins)
        distances = _nearest_distances(block, chosen[:n_chosen])
        for i, point in enumerate(block):
            if distances[i] < separation:
                failures += 1
                if failures == ATTEMPTS:
                    return None
                continue
            chosen[n_chosen] = point
            n_chosen, failures = n_chosen + 1, 0
            if n_chosen == n_clusters:
                break
            rest = block[i + 1 :] - point
            np.minimum(
                distances[i + 1 :],
                np.einsum("ij,ij->i", rest, rest),
                out=distances[i + 1 :],
            )
    return chosen


def _random_points(source: np.random.Philox, size: int, margins: IntArray) -> FloatArray:
    """Return uniform grid points (size, d) of the box, as integers in float64.

    A point takes d words whatever the size of a block, so the sequence of points is the same for
    every size. The upper half of a word, times the number of values, over 2**32: the bias is below
    2**-6 of a grid step's probability, and irrelevant to where a centroid starts.
    """
    words = source.random_raw(size * len(margins)).reshape(size, len(margins))
    values = (2 * margins + 1).astype(np.uint64)
    offsets = ((words >> np.uint64(32)) * values) >> np.uint64(32)
    return offsets.astype(np.float64) - margins


def _nearest_distances(points: FloatArray, chosen: FloatArray) -> FloatArray:
    """Return the exact squared distance of each point to the nearest chosen one."""
    if not len(chosen):
        return np.full(len(points), np.inf)
    # Integers below 2**53: exact in any order, so BLAS may do it (docs/guarantees.md).
    squares = np.einsum("ij,ij->i", chosen, chosen)
    nearest = (points @ (-2 * chosen.T) + squares).min(axis=1)
    return np.asarray(nearest + np.einsum("ij,ij->i", points, points))


# --------------------------------------------------------------------------- in the user's units


def packed_centroids(
    n_clusters: int, domain: Domain, seed: int = 0, fraction_bits: int = 16
) -> FloatArray:
    """Return the centroids of sphere packing in the user's units.

    Parameters
    ----------
    n_clusters : int
        k >= 1.
    domain : Box or Ball
        For a ball, its enclosing box is packed and what lies outside is moved onto the sphere.
    seed : int, default: 0
        Public, in [0, 2**64).
    fraction_bits : int, default: 16

    Returns
    -------
    ndarray of shape (k, d), float64
        Those from which a strategy with this seed starts by itself.

    Raises
    ------
    ConfigurationError
        If that many distinct points cannot be placed, or an argument is out of range.
    """
    check_exactness(domain.n_features, fraction_bits)
    grid = sphere_packing(n_clusters, domain.grid_half_widths(fraction_bits), seed)
    points = grid.astype(np.float64) * 2.0**-fraction_bits
    if isinstance(domain, Ball):
        points = domain.quantise(points, fraction_bits) * 2.0**-fraction_bits
    return domain.from_unit(points)


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
    from sklearn.cluster import kmeans_plusplus  # a second that clients need not pay

    points = check_server_data(server_data, n_clusters)
    centers, _ = kmeans_plusplus(points, n_clusters, random_state=_sklearn_seed(rng))
    return np.asarray(centers, dtype=np.float64)


def server_lloyd(server_data: ArrayLike, n_clusters: int, rng: np.random.Generator) -> FloatArray:
    """Return the centroids of k-means on the server's points, the best of ten starts.

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
    from sklearn.cluster import KMeans

    points = check_server_data(server_data, n_clusters)
    # One thread: a server's points are few, and the result is then the same in every run.
    with threadpool_limits(limits=1):
        model = KMeans(n_clusters, n_init=STARTS, random_state=_sklearn_seed(rng)).fit(points)
    return np.asarray(model.cluster_centers_, dtype=np.float64)


def check_server_data(
    server_data: ArrayLike, n_clusters: int, n_features: int | None = None
) -> FloatArray:
    """Return a server's points as a finite float64 array (m, d).

    Raises
    ------
    ConfigurationError, ConfigurationTypeError
        If the shape is wrong, a value is not a finite number, or fewer than ``n_clusters`` points
        are different.
    """
    try:
        points = check_records(server_data, n_features, name="server_data")
    except DataError as error:
        raise ConfigurationError(str(error)) from None
    _require_count(n_clusters)
    if len(points) < n_clusters or len(np.unique(points, axis=0)) < n_clusters:
        raise ConfigurationError(
            f"Expected server_data with at least n_clusters={n_clusters} different points. "
            f"Got {len(np.unique(points, axis=0)) if len(points) else 0} instead."
        )
    return points


def public_generator(seed: int, round_number: int) -> np.random.Generator:
    """Return the public randomness of a server's part of a round: never of keys or noise."""
    return np.random.default_rng(np.random.SeedSequence((seed, round_number)))


def public_words(key: int) -> np.random.Philox:
    """Return the source of public words of a 128-bit key: its ``random_raw`` is the same anywhere.

    What a generator's other methods make of the words may change with a NumPy version.
    """
    return np.random.Philox(key=np.array([key % 2**64, key >> 64], dtype=np.uint64))


def round_words(seed: int, round_number: int) -> np.random.Philox:
    """Return the public words of one round of a run: all that an `update` of clients may draw.

    Their key is that of no other use of the seed: those have numbers below 2^32 beside it.
    """
    return public_words(seed + ((2**32 + round_number) << 64))


def random_words(source: np.random.Philox, size: int) -> NDArray[np.uint64]:
    """Return the next words of a source, (size,)."""
    return np.asarray(source.random_raw(size), dtype=np.uint64)


def _sklearn_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**32))


def _require_count(n_clusters: int) -> None:
    if isinstance(n_clusters, bool) or not isinstance(n_clusters, int | np.integer):
        raise ConfigurationTypeError(
            f"n_clusters must be an integer, got {type(n_clusters).__name__}."
        )
    if n_clusters < 1:
        raise ConfigurationError(f"Expected n_clusters >= 1. Got {n_clusters} instead.")
