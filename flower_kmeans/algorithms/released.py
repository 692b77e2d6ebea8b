"""Releases beside centroids: costs, sizes against public bounds, and a mixture.

Sources: docs/guarantees, Theorems 22, 25 and 26.
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
"""With which all intervals hold at once."""


@dataclass(frozen=True)
class CostEstimate:
    """The inertia of a clustering, estimated from released values.

    The sum of squared distances of the records that counted in the last round, to the
    new centroid of the cluster that they were nearest to before. Noise may make it
    negative.
    """

    value: float
    standard_error: float
    """From the noise alone."""
    users_units: bool
    """Whether in squared units of the user's, which needs columns of one scale, or in those of the
    scaled domain."""


@dataclass(frozen=True, eq=False)
class ReleasedMixture:
    """A mixture of m Gaussians that a run learned, in units of the scaled domain.

    Each has a covariance that is diagonal along p public orthonormal directions, and
    the same variance in all directions beside them.
    """

    weights: FloatArray
    """Noisy records of each, (m,), all positive."""
    means: FloatArray
    """Along the directions, (m, p)."""
    scales: FloatArray
    """Standard deviations along the directions, (m, p)."""
    directions: FloatArray
    """As columns, (d, p)."""
    rest: float
    """Variance in each direction beside these."""
    radii: FloatArray
    """Length to which the offsets of a cell's records were clipped, (m,)."""
    noise: tuple[float, float, float]
    """Standard deviations of the noise in a cell: count in records, then sum and slack in radii."""


@dataclass(frozen=True)
class SizeReport:
    """Noisy cluster sizes beside the bounds on them (docs/guarantees, Theorem 25)."""

    counts: tuple[float, ...]
    """Noisy records of each cluster, (k,), in the round that measured the released weights."""
    noise: float
    """Standard deviation of a count's noise, in records; 0 without privacy."""
    min_size: int
    max_size: int | None
    """Fewest and most records of a cluster; 0 and ``None`` without a bound."""

    @property
    def margin(self) -> float:
        """How far a noisy count may be from the true one, in records.

        For all k clusters at once, with probability `CONFIDENCE`:
        ``noise * Phi^-1(1 - (1 - CONFIDENCE) / (2 k))``.
        """
        # A union bound over k clusters: true sizes are in all intervals at once.
        k = len(self.counts)
        return -self.noise * NormalDist().inv_cdf((1 - CONFIDENCE) / (2 * k))

    @property
    def interval(self) -> FloatArray:
        """Least and largest size of each cluster, (k, 2), within 0 and infinity."""
        counts = np.array(self.counts)[:, None]
        signs = np.array([[-1.0, 1.0]])
        return np.maximum(counts + self.margin * signs, 0.0)

    @property
    def bounds_kept(self) -> tuple[SizeBound, ...]:
        """By cluster: its interval is inside the bounds, meets one, or is outside."""
        return tuple(self._is_kept(low, high) for low, high in self.interval.tolist())

    def _is_kept(self, low: float, high: float) -> SizeBound:
        """Return the place of an interval beside the bounds."""
        most = math.inf if self.max_size is None else self.max_size
        if low >= self.min_size and high <= most:
            return "kept"
        if high < self.min_size or low > most:
            return "missed"
        return "open"

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements of a report on the sizes, in plain sentences."""
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
    """Return the warning about noise of more than N / (4 k) records, or ``None``."""
    most = n_records / (4 * n_clusters)
    if noise <= most:
        return None
    return (
        f"WARNING: the noise of a cluster's size has the standard deviation {noise:.3g} records, "
        f"more than N/(4k) = {most:.3g}: bounds on sizes mean little. Take a larger epsilon, fewer "
        "clusters or more records."
    )
