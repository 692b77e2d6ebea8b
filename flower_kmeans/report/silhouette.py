"""The silhouette of a result: how well its clusters are apart, from released values alone."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

from flower_kmeans.algorithms.judged import MOST_DEVIATION
from flower_kmeans.algorithms.released import CONFIDENCE, SilhouetteSums

_CLEAR = 10.0  # deviations of a cluster's count that is large enough to say anything


class Estimate(NamedTuple):
    """A silhouette with its interval, all in [0, 1]."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Silhouette:
    """The simplified silhouette of a result, with intervals for the noise.

    A record's silhouette is 1 - a/b, where a and b are its distances to the nearest and
    to the second nearest centroid, in the space that was clustered. It is 1 on a centroid,
    and 0 halfway between two. The silhouette of a result is the mean of all records that
    the clients counted. With protected clients large ones count as fewer records.

    The interval contains it with probability 0.95 over the noise (docs/guarantees,
    Theorem 48). Which records a run had is not part of its randomness.
    """

    released: SilhouetteSums
    """The noisy values, from which all others follow."""

    @property
    def value(self) -> float:
        """Silhouette of all records, in [0, 1]; 0.5 if noise hides all records."""
        return self._overall.value

    @property
    def low(self) -> float:
        """Lower end of its interval."""
        return self._overall.low

    @property
    def high(self) -> float:
        """Upper end of its interval."""
        return self._overall.high

    @property
    def deviation(self) -> float:
        """Standard deviation of the value by the noise, at most 1."""
        count = math.fsum(self.released.counts)
        if count <= 0:
            return 1.0
        return min(self._total_noise * math.hypot(1.0, self.value) / count, 1.0)

    @property
    def means_something(self) -> bool:
        """Whether the deviation is at most 0.05."""
        return self.deviation <= MOST_DEVIATION

    @property
    def by_cluster(self) -> tuple[Estimate | None, ...]:
        """Silhouette of each cluster, or ``None`` if its noisy count is below 10 deviations.

        All intervals contain the true silhouettes at once with probability 0.95.
        """
        released = self.released
        k = len(released.counts)
        reach = self._quantile((1 - CONFIDENCE) / k)
        found: list[Estimate | None] = []
        for count, total in zip(released.counts, released.sums, strict=True):
            if count <= 0 or count < _CLEAR * released.noise:
                found.append(None)
            else:
                found.append(ratio(total, count, reach * released.noise))
        return tuple(found)

    @property
    def text(self) -> str:
        """The silhouette in a few sentences."""
        value = f"{self.value:.3f}"
        scale = (
            "1 is a record on its centroid, and 0 one halfway between two centroids."
        )
        if not self.released.noise:
            return f"The silhouette is {value}. {scale}"
        interval = f"{self.low:.3f} to {self.high:.3f}"
        with_chance = f"with probability {CONFIDENCE:g} over the noise"
        if not self.means_something:
            return (
                f"Noise hides the silhouette: it lies in {interval} {with_chance}, which is too "
                "wide to mean anything."
            )
        return (
            f"The silhouette is {value}, and lies in {interval} {with_chance}. {scale}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the silhouette as plain values, ready for JSON."""
        clusters = [each and each._asdict() for each in self.by_cluster]
        return {
            **self._overall._asdict(),
            "deviation": self.deviation,
            "confidence": CONFIDENCE,
            "means_something": self.means_something,
            "by_cluster": clusters,
            "counts": list(self.released.counts),
            "sums": list(self.released.sums),
            "noise": self.released.noise,
        }

    @property
    def _total_noise(self) -> float:
        """Standard deviation of the noise in a sum over all clusters."""
        return self.released.noise * math.sqrt(len(self.released.counts))

    @property
    def _overall(self) -> Estimate:
        released = self.released
        reach = self._quantile(1 - CONFIDENCE) * self._total_noise
        return ratio(math.fsum(released.sums), math.fsum(released.counts), reach)

    def _quantile(self, chance: float) -> float:
        """Return the deviations that noise exceeds on either side with a probability.

        That of one Laplace variable is larger than that of a sum of some.
        """
        if self.released.is_gaussian:
            return -NormalDist().inv_cdf(chance / 2)
        return -math.log(chance) / math.sqrt(2.0)


def ratio(total: float, count: float, reach: float) -> Estimate:
    """Return the ratio of two noisy numbers in [0, 1], with Fieller's interval.

    The interval has all ratios t in [0, 1] for which ``total - t count`` is at most
    ``reach sqrt(1 + t^2)`` away from 0: the noise of this difference has the standard
    deviation ``sqrt(1 + t^2)`` times that of each number. So it contains the true ratio
    with the probability that the noise stays within its reach, whatever the numbers are.
    If no ratio is possible, the interval is the nearest one. If noise hides the count, it
    is [0, 1].
    """
    if count <= reach or count <= 0:
        value = 0.5 if count <= 0 else min(max(total / count, 0.0), 1.0)
        return Estimate(value, 0.0, 1.0)
    # relative to the count, so that no square overflows
    t = total / count
    r = reach / count
    value = min(max(t, 0.0), 1.0)
    # Possible ratios x keep (t - x)^2 <= r^2 (1 + x^2), between the roots of a quadratic.
    a = 1.0 - r * r
    half = r * math.sqrt(t * t + a)
    low = (t - half) / a
    high = (t + half) / a
    return Estimate(value, min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0))
