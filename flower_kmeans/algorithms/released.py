"""Released values beside centroids: the cost, sizes and their bounds, and a mixture.

Their theorems are docs/guarantees, Theorems 16, 22, 25 and 26.
"""

import math
from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from flower_kmeans.arrays import FloatArray

SizeBound = Literal["kept", "open", "missed"]

CONFIDENCE = 0.95
"""Probability that all intervals of cluster sizes contain the true sizes at once."""


def size_margin(noise: float, n_clusters: int, is_laplace: bool = False) -> float:
    """Return the half width of intervals around noisy sizes, in records.

    With probability `CONFIDENCE` all intervals contain the true sizes at once, by a union
    bound over ``n_clusters``. ``noise`` is the standard deviation of a size's noise, which
    is Gaussian unless ``is_laplace``.
    """
    beyond = (1 - CONFIDENCE) / n_clusters
    if is_laplace:
        return -noise * math.log(beyond) / math.sqrt(2.0)
    return -noise * NormalDist().inv_cdf(beyond / 2)


def size_intervals(counts: FloatArray, margin: float) -> FloatArray:
    """Return the least and largest size of each cluster in records, (k, 2), at least 0."""
    signs = np.array([-1.0, 1.0])
    return np.maximum(counts[:, None] + margin * signs, 0.0)


@dataclass(frozen=True)
class CostEstimate:
    """The inertia of a clustering, estimated from released values.

    It is the sum of squared distances of the records that counted in the last round.
    Each distance is to the new centroid of the cluster that the record was nearest to
    before. Noise may make the estimate negative.
    """

    value: float
    """The estimate, in squared units."""
    standard_error: float
    """Standard error of the estimate, from the noise alone."""
    users_units: bool
    """Whether the units are the user's. Otherwise they are those of the scaled domain, because
    columns have different scales."""


@dataclass(frozen=True, eq=False)
class ReleasedMixture:
    """A mixture of m Gaussians that a run released, in units of the scaled domain.

    Each covariance is diagonal along p public orthonormal directions. It has the same
    variance in all directions orthogonal to them.
    """

    weights: FloatArray
    """Noisy number of records of each Gaussian, (m,), all positive."""
    means: FloatArray
    """Means along the directions, (m, p)."""
    scales: FloatArray
    """Standard deviations along the directions, (m, p)."""
    directions: FloatArray
    """The directions as orthonormal columns, (d, p)."""
    rest: float
    """Variance in each direction orthogonal to these."""
    radii: FloatArray
    """Length to which the offsets of each cell's records were clipped, (m,)."""
    noise: tuple[float, float, float]
    """Standard deviations of the noise in a cell: count in records, then sum and slack in radii."""


@dataclass(frozen=True)
class SilhouetteSums:
    """Noisy numbers of records and sums of their silhouettes by cluster, each of length k."""

    counts: tuple[float, ...]
    """Numbers of records by nearest centroid; of persons with ``unit="person"``."""
    sums: tuple[float, ...]
    """Sums of their silhouettes, each of which is in [0, 1]."""
    noise: float
    """Standard deviation of the noise in each number, in records. 0 without privacy."""
    is_gaussian: bool
    """Whether the noise is Gaussian. Otherwise it is Laplace noise."""


@dataclass(frozen=True)
class SizeReport:
    """Noisy cluster sizes beside the bounds on them (docs/guarantees, Theorem 25)."""

    counts: tuple[float, ...]
    """Noisy size of each cluster in records, (k,), in the round that measured the weights."""
    noise: float
    """Standard deviation of a count's noise, in records. 0 without privacy."""
    min_size: int
    """Fewest records of a cluster. 0 without a bound."""
    max_size: int | None
    """Most records of a cluster. ``None`` without a bound."""

    @property
    def margin(self) -> float:
        """Half width of the interval around a noisy count, in records.

        With probability `CONFIDENCE` all k intervals contain the true sizes at once. It
        is ``noise * Phi^-1(1 - (1 - CONFIDENCE) / (2 k))``.
        """
        return size_margin(self.noise, len(self.counts))

    @property
    def interval(self) -> FloatArray:
        """Least and largest size of each cluster in records, (k, 2), at least 0."""
        return size_intervals(np.array(self.counts), self.margin)

    @property
    def bounds_kept(self) -> tuple[SizeBound, ...]:
        """Place of each cluster's interval: inside ("kept"), across, or outside ("missed").

        An interval across a bound is "open".
        """
        return tuple(self._is_kept(low, high) for low, high in self.interval.tolist())

    def _is_kept(self, low: float, high: float) -> SizeBound:
        """Return the place of an interval relative to the bounds."""
        most = math.inf if self.max_size is None else self.max_size
        if low >= self.min_size and high <= most:
            return "kept"
        if high < self.min_size or low > most:
            return "missed"
        return "open"

    @property
    def statements(self) -> tuple[str, ...]:
        """Sentences of a report on the sizes."""
        numbers = Counter(self.bounds_kept)
        bounds = f"at least {self.min_size:,} records"
        if self.max_size is not None:
            bounds = f"{self.min_size:,} to {self.max_size:,} records"
        if not self.noise:
            measured = "The sizes that were measured have no noise."
        else:
            measured = (
                f"The noise of a size has the standard deviation {self.noise:.3g} records: with "
                f"probability {CONFIDENCE:g} every size lies within {self.margin:,.3g} records of "
                "the noisy one."
            )
        n_open = numbers["open"]
        are = "is" if n_open == 1 else "are"
        return (
            f"Bounds on cluster sizes: {bounds}. By their intervals {numbers['kept']} of "
            f"{len(self.counts)} clusters kept them, {numbers['missed']} missed them, and {n_open} "
            f"{are} open.",
            f"{measured} Exact sizes cannot be promised.",
            "Sizes and intervals, and so whether bounds were kept, are those of the clients that "
            "answered the last round.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as plain values, ready for JSON."""
        return {
            "counts": list(self.counts),
            "noise": self.noise,
            "min_size": self.min_size,
            "max_size": self.max_size,
            "confidence": CONFIDENCE,
            "margin": self.margin,
            "interval": self.interval.tolist(),
            "bounds_kept": list(self.bounds_kept),
        }


def note_on_noise(noise: float, n_records: int, n_clusters: int) -> str | None:
    """Return a warning if a size's noise exceeds N / (4 k) records, or ``None``."""
    most = n_records / (4 * n_clusters)
    if noise <= most:
        return None
    return (
        f"WARNING: the noise of a cluster's size has the standard deviation {noise:.3g} records, "
        f"more than N/(4k) = {most:.3g}: bounds on sizes mean little. Take a larger epsilon, fewer "
        "clusters or more records."
    )
