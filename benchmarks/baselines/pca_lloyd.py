"""Private principal components, then Lloyd's iterations with noise in few directions.

1. Second moments of all pairs of columns, and the sum of all records, with Gaussian
   noise (Dwork, Talwar, Thakurta & Zhang 2014, "Analyze Gauss"). The directions are
   the first eigenvectors of the released covariance.
2. Starting centroids that k-means finds among points drawn from the normal distribution
   with the released mean and spectrum.
3. Rounds of Lloyd's iteration in these directions: sums and counts of each cluster with
   Gaussian noise (DP-Lloyd; Blum et al. 2005, Su et al. 2016), the same in all rounds.
   A cluster with a noisy count below 1 gets a new point of that distribution, and stays
   where it is in the last round.
4. Sums of the last clusters in all columns, with noise, unless the noise of their means
   would be too long. Then the centroids stay in the directions.

The constants were chosen on sets of `field.TUNING` alone (docs/tables/field.md).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sklearn.cluster import KMeans

from baselines.lsh import clipped
from baselines.method import Problem
from flower_kmeans.arrays import FloatArray, LabelArray
from flower_kmeans.privacy import Release, calibrate

MEAN = "sum of all records"
MOMENTS = "second moments"

_DRAWN_PER_CLUSTER = 50
_LEAST_DRAWN = 2_000


class Start(NamedTuple):
    """A normal distribution with released mean, (p,), and standard deviations, (p,)."""

    mean: FloatArray
    deviations: FloatArray

    def drawn(self, n_points: int, rng: np.random.Generator) -> FloatArray:
        """Return points of the distribution, (n_points, p), clipped to the ball."""
        points = rng.normal(size=(n_points, len(self.mean)))
        return clipped(self.mean + points * self.deviations)

    def spread_out(self, n_clusters: int, rng: np.random.Generator) -> FloatArray:
        """Return the centroids, (k, p), of points of the distribution."""
        n_points = max(_LEAST_DRAWN, _DRAWN_PER_CLUSTER * n_clusters)
        points = self.drawn(n_points, rng)
        seed = int(rng.integers(2**31))
        model = KMeans(n_clusters, n_init=1, random_state=seed).fit(points)
        return np.asarray(model.cluster_centers_)


@dataclass(frozen=True)
class PcaLloyd:
    """PCA and Lloyd's iterations with noise.

    Shares are of mu^2, where all releases together are mu-GDP. What the start and the
    lift leave is for the rounds.

    Attributes
    ----------
    n_rounds : int
    directions_per_cluster : float
        The number of directions over k.
    mean_share, moments_share, lift_share : float
    lift_limit : float
        The largest length of the noise in a lifted mean of N / k records, in radii. If
        it were longer there is no lift, and the rounds have its share.
    """

    n_rounds: int = 5
    directions_per_cluster: float = 1.0
    mean_share: float = 0.02
    moments_share: float = 0.2
    lift_share: float = 0.5
    lift_limit: float = 0.6

    def n_directions(self, problem: Problem) -> int:
        """Return the number of directions, p."""
        wanted = math.ceil(self.directions_per_cluster * problem.n_clusters)
        return min(problem.n_features, max(2, wanted))

    def releases(self, problem: Problem) -> tuple[Release, ...]:
        """Return the releases in the order of the run."""
        lifted = self._calibrated(problem, lift=True)
        if self.n_directions(problem) < problem.n_features:
            (sums,) = (each for each in lifted if each.name == "lift: sums")
            length = sums.noise_multiplier * math.sqrt(problem.n_features)
            if length * problem.n_clusters / problem.n_records <= self.lift_limit:
                return lifted
        return self._calibrated(problem, lift=False)

    def _calibrated(self, problem: Problem, lift: bool) -> tuple[Release, ...]:
        p = self.n_directions(problem)
        rest = 1 - self.mean_share - self.moments_share
        rounds = [
            [_gaussian(MEAN, self.mean_share)],
            [_gaussian(MOMENTS, self.moments_share)],
        ]
        if lift:
            rest -= self.lift_share
        for number in range(1, self.n_rounds + 1):
            share = rest / self.n_rounds
            rounds.append(list(_sums_and_counts(f"round {number}", share, p)))
        if lift:
            d = problem.n_features
            rounds.append(list(_sums_and_counts("lift", self.lift_share, d)))
        return calibrate(problem.budget, rounds, problem.n_records).releases

    def fit(
        self,
        records: FloatArray,
        n_clusters: int,
        epsilon: float,
        delta: float,
        rng: np.random.Generator,
    ) -> FloatArray:
        """Return centroids."""
        n, d = records.shape
        problem = Problem(n, d, n_clusters, epsilon, delta)
        scales = {each.name: each.noise_multiplier for each in self.releases(problem)}
        mean = records.sum(axis=0) + rng.normal(0, scales[MEAN], d)
        mean /= n
        covariance = noisy_moments(records, scales[MOMENTS], rng) / n
        covariance -= np.outer(mean, mean)
        values, vectors = np.linalg.eigh(covariance)
        p = self.n_directions(problem)
        axes = vectors[:, ::-1][:, :p]
        start = Start(mean @ axes, np.sqrt(np.maximum(values[::-1][:p], 0.0)))
        points = records @ axes
        centroids = start.spread_out(n_clusters, rng)
        for number in range(1, self.n_rounds + 1):
            labels = nearest(points, centroids)
            before = centroids
            if number < self.n_rounds:
                before = start.drawn(n_clusters, rng)
            name = f"round {number}"
            centroids = noisy_means(points, labels, before, name, scales, rng)
        offset = mean - axes @ (axes.T @ mean)
        full = clipped(centroids @ axes.T + offset)
        if "lift: sums" not in scales:
            return full
        labels = nearest(points, centroids)
        return noisy_means(records, labels, full, "lift", scales, rng)


def _gaussian(name: str, share: float) -> Release:
    return Release(name, "gaussian", "l2", 1 / math.sqrt(share), (name,))


def _sums_and_counts(name: str, share: float, n_features: int) -> Iterator[Release]:
    """Yield the releases of a round, with the ratio of FastLloyd's paper (section 5.4)."""
    ratio = (4 * n_features) ** 0.25
    scale = math.sqrt((1 + 1 / ratio**2) / share)
    yield Release(f"{name}: sums", "gaussian", "l2", scale, ("sums",))
    yield Release(f"{name}: counts", "gaussian", "l2", ratio * scale, ("counts",))


def noisy_moments(
    records: FloatArray, scale: float, rng: np.random.Generator
) -> FloatArray:
    """Return the sum of the records' outer products, (d, d), symmetric, with noise.

    A record of length 1 changes the diagonal and sqrt 2 times the upper triangle by a
    vector of length 1. The noise of these numbers has the standard deviation ``scale``.
    """
    d = records.shape[1]
    drawn = rng.normal(0, scale, (d, d))
    above = np.triu(drawn, 1) / math.sqrt(2)
    noise = above + above.T + np.diag(np.diag(drawn))
    return np.asarray(records.T @ records + noise)


def nearest(points: FloatArray, centroids: FloatArray) -> LabelArray:
    """Return the index of the nearest centroid of each point, (n,)."""
    scores = np.square(centroids).sum(axis=1) - 2 * points @ centroids.T
    return np.asarray(scores.argmin(axis=1))


def noisy_means(
    points: FloatArray,
    labels: LabelArray,
    before: FloatArray,
    name: str,
    scales: dict[str, float],
    rng: np.random.Generator,
) -> FloatArray:
    """Return the noisy mean of each cluster, (k, d), or the row ``before`` if it is empty."""
    k, d = before.shape
    members = np.zeros((len(points), k))
    members[np.arange(len(points)), labels] = 1.0
    sums = members.T @ points + rng.normal(0, scales[f"{name}: sums"], (k, d))
    counts = members.sum(axis=0) + rng.normal(0, scales[f"{name}: counts"], k)
    means = clipped(sums / np.maximum(counts, 1.0)[:, None])
    return np.where(counts[:, None] >= 1, means, before)
