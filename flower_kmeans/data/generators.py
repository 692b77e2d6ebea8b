"""Seeded Gaussian clusters with a degree of separation: records, labels and centres.

The degree of separation is the index of Qiu and Joe ("Generation of Random Clusters
with Specified Degree of Separation", 2006). Two clusters are projected to a line. ``L``
and ``U`` are the lower and upper ``ALPHA / 2`` quantiles of each. The index is
``J = (L_2 - U_1) / (U_2 - L_1)`` in the direction in which it is largest. It lies in
(-1, 1): it is negative if clusters overlap, and 0 if they touch. Index and covariances
follow the paper. Centres are placed by a rule of this module (`separated_centers`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtri

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.errors import ConfigurationError

ALPHA = 0.05  # fraction of a cluster outside its two quantiles
VARIANCES = (1.0, 10.0)  # range of the eigenvalues of a cluster's covariance
OUTLIER = -1  # label of records that belong to no cluster

_QUANTILE = -float(ndtri(ALPHA / 2))
_STEPS = 200
_TOLERANCE = 1e-12


class Generated(NamedTuple):
    """A synthetic data set of n records, d columns and k clusters."""

    records: FloatArray  # (n, d), in random order
    labels: IntArray  # (n,), the cluster of each record, or `OUTLIER`
    centers: FloatArray  # (k, d), means of the distributions, not of the records


def sizes_of(n_records: int, weights: ArrayLike) -> IntArray:
    """Return sizes in the ratio of weights, (k,), rounded, with the sum ``n_records``.

    Raises
    ------
    ConfigurationError
        If a size would be 0.
    """
    # The ends are rounded, not the sizes, so that the sizes add up.
    ends = np.rint(np.cumsum(weights) / np.sum(weights) * n_records).astype(np.int64)
    sizes: IntArray = np.diff(ends, prepend=0)
    if len(sizes) == 0 or sizes.min() < 1:
        raise ConfigurationError(
            f"Expected enough records for {len(sizes)} clusters. Got {n_records} instead."
        )
    return sizes


def separation(delta: FloatArray, first: FloatArray, second: FloatArray) -> float:
    """Return the index, in (-1, 1), of two Gaussian clusters in the best direction.

    ``delta``, (d,), is the difference of their means. ``first`` and ``second``, (d, d),
    are their positive definite covariances.
    """
    distance = spread_distance(delta, first, second)
    return (distance - _QUANTILE) / (distance + _QUANTILE)


def distance_for(degree: float) -> float:
    """Return the `spread_distance` of Gaussian clusters with the given index."""
    return _QUANTILE * (1 + degree) / (1 - degree)


def spread_distance(delta: FloatArray, first: FloatArray, second: FloatArray) -> float:
    """Return the distance of means in standard deviations, in the best direction.

    In a direction ``a`` the distance is ``a'delta / (s_1 + s_2)`` with
    ``s_i^2 = a' S_i a``. Its maximum over ``a`` is a norm of ``delta``, and the index
    grows with it. The maximum is found as the minimum of ``s_1 + s_2`` over all ``a``
    with ``a'delta = 1``, which is a convex function. Each step replaces ``s_i`` by the
    quadratic function that touches it from above, so the sum never grows.
    """
    spreads, best = np.ones(2), 0.0
    for _ in range(_STEPS):
        found = np.linalg.solve(first / spreads[0] + second / spreads[1], delta)
        spreads = np.sqrt([found @ first @ found, found @ second @ found])
        before, best = best, float(found @ delta / spreads.sum())
        if best - before <= _TOLERANCE * best:
            break
    return best


def separated_centers(
    covariances: Sequence[FloatArray], degree: float, rng: np.random.Generator
) -> FloatArray:
    """Return centres, (k, d), of Gaussian clusters whose nearest neighbour has one index.

    The clusters are placed one after the other. Each moves from a random earlier
    cluster in a random direction until they have the index ``degree``, and further
    while any other cluster is nearer. So no two clusters have a smaller index, and each
    cluster has exactly this index with another one.
    """
    d, wanted = len(covariances[0]), distance_for(degree)
    largest = [float(np.sqrt(np.linalg.eigvalsh(each)[-1])) for each in covariances]
    centers = np.zeros((len(covariances), d))

    def excess(
        far: float, other: int, new: int, start: FloatArray, heading: FloatArray
    ) -> float:
        delta = start + far * heading - centers[other]
        return spread_distance(delta, covariances[other], covariances[new]) - wanted

    for new in range(1, len(covariances)):
        parent = int(rng.integers(new))
        start, heading = centers[parent], rng.normal(size=d)
        heading /= np.linalg.norm(heading)
        # The distance from the parent is a norm, so it grows in proportion.
        far = wanted / spread_distance(heading, covariances[parent], covariances[new])
        centers[new] = start + far * heading
        while (near := _nearer(centers, covariances, new, wanted)) is not None:
            # This is far enough in any direction. A norm is convex, so the wanted
            # distance is crossed once beyond ``far``.
            enough = float(np.linalg.norm(start - centers[near]))
            enough += 2 * wanted * (largest[new] + largest[near])
            given = (near, new, start, heading)
            far = brentq(excess, far, enough, given, xtol=_TOLERANCE * enough)
            centers[new] = start + far * heading
    return centers


def _nearer(
    centers: FloatArray, covariances: Sequence[FloatArray], new: int, wanted: float
) -> int | None:
    """Return an earlier cluster that is too near to the new one, or ``None``."""
    # Without a margin the root just found could count as too near again, for ever.
    limit = wanted * (1 - 1e-9)
    for other in range(new):
        delta = centers[new] - centers[other]
        first, second = covariances[other], covariances[new]
        # Any direction bounds the distance from below. For most clusters this bound
        # suffices.
        spreads = np.sqrt(delta @ first @ delta) + np.sqrt(delta @ second @ delta)
        if (
            delta @ delta < limit * spreads
            and spread_distance(delta, first, second) < limit
        ):
            return other
    return None


def separated_clusters(
    sizes: Sequence[int] | IntArray,
    n_features: int,
    degree: float,
    rng: np.random.Generator | int,
    n_outliers: int = 0,
) -> Generated:
    """Return Gaussian clusters of given sizes and degree of separation, with outliers.

    Covariances have random axes, and eigenvalues uniform in `VARIANCES`. Outliers are
    uniform in each column, within four standard deviations of the clustered records
    around their mean.

    Raises
    ------
    ConfigurationError
        If a size is below 1, ``degree`` is not in (-1, 1), or a number is too small.
    """
    rng = np.random.default_rng(rng)
    counts = np.asarray(sizes, dtype=np.int64)
    if not len(counts) or counts.min() < 1:
        raise ConfigurationError(
            f"Expected sizes of at least 1. Got {sizes!r} instead."
        )
    if not -1 < degree < 1:
        raise ConfigurationError(f"Expected degree in (-1, 1). Got {degree} instead.")
    if n_features < 1 or n_outliers < 0:
        raise ConfigurationError(
            "Expected at least one column and no negative number of outliers. "
            f"Got {n_features} and {n_outliers} instead."
        )
    axes = [np.linalg.qr(rng.normal(size=(n_features, n_features)))[0] for _ in counts]
    scales = [np.sqrt(rng.uniform(*VARIANCES, n_features)) for _ in counts]
    roots = [axis * scale for axis, scale in zip(axes, scales, strict=True)]
    centers = separated_centers([root @ root.T for root in roots], degree, rng)
    parts = [
        center + rng.normal(size=(count, n_features)) @ root.T
        for center, root, count in zip(centers, roots, counts, strict=True)
    ]
    records = np.concatenate(parts)
    mean, spread = records.mean(axis=0), records.std(axis=0)
    outliers = rng.uniform(
        mean - 4 * spread, mean + 4 * spread, (n_outliers, n_features)
    )
    labels = np.repeat([*range(len(counts)), OUTLIER], [*counts, n_outliers])
    return shuffled(np.concatenate([records, outliers]), labels, centers, rng)


def shuffled(
    records: FloatArray,
    labels: IntArray,
    centers: FloatArray,
    rng: np.random.Generator,
) -> Generated:
    """Return a data set with its records in random order."""
    order = rng.permutation(len(records))
    return Generated(records[order], labels[order].astype(np.int64), centers)
