"""A clustering beside k-means without privacy and beside one cluster.

All costs are sums of squared distances of the same records in the space that was
clustered, without clipping. They are exact, and so not private: only who holds all records
can compute them, as in a simulation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from flower_kmeans.algorithms.numerics.grid_kmeans import grid_kmeans
from flower_kmeans.algorithms.numerics.groups import Groups
from flower_kmeans.algorithms.numerics.initialization import (
    public_generator,
    public_words,
    sphere_packing,
)
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, squared_norms
from flower_kmeans.data.persons import count_at, counts_of, keys_of
from flower_kmeans.data.weights import checked_weights, require_one_each
from flower_kmeans.errors import DataError
from flower_kmeans.threads import single_threaded_blas

Verdict = Literal[
    "as good as without privacy", "usable", "mostly noise", "worse than one cluster"
]

BEST: Verdict = "as good as without privacy"
"""The best verdict."""
GOOD = 0.05
"""Largest lost gain of clusters that are as good as without privacy (docs/tables/verdicts.md)."""
GOOD_RATIO = 1.25
"""Largest cost of such clusters, in costs of k-means.

More may be two groups in one cluster, however small the lost gain."""
USABLE = 0.25
"""Largest lost gain of usable clusters."""

# k-means draws its starts from a sample of records, and improves the best of them on a
# larger sample. Both have at least so many records for each cluster.
_START_RECORDS = 10_000
_STEP_RECORDS = 100_000
_PER_CLUSTER = 20
_STARTS = 10
_START_STEPS = 20
_STEPS = 50
_FEWEST_STEPS = 5
_UNSEEN = 5  # placements of centroids that see no record, of which the best counts
_UNSEEN_BITS = 16
_FEW_CHANGES = 1e-3  # of the records: more steps would change the cost very little
_WORK = 2**32  # products of coordinates, which take seconds
_BLOCK_NUMBERS = 2**18
_MASS_STEPS = 2**20  # an integer weight for the weight 1
# A smaller mean squared distance, for each column, is the rounding of a run's grid.
_GRID_ROUNDING = 2.0**-33
_OUTSIDE = 1e-6  # half widths: less is rounding, and changes no cost that counts
_FARTHEST = 1e100  # half widths: the squares of larger numbers may overflow in a sum
_NO_GAIN = 1e-6  # of the cost of one cluster

_SENTENCES: dict[Verdict, str] = {
    "as good as without privacy": "The clusters are as good as without privacy",
    "usable": "The clusters are usable",
    "mostly noise": "The clusters are mostly noise",
    "worse than one cluster": "The clusters are worse than one cluster of all records",
}


@dataclass(frozen=True)
class Comparison:
    """The cost of a clustering beside k-means without privacy and beside one cluster.

    Costs are sums of squared distances in squared units of the scaled domain, as
    `Clustering.cost` has them. They are exact, and not private.

    Attributes
    ----------
    cost : float
        Of the clustering.
    kmeans_cost : float
        Of k-means without privacy, with as many clusters.
    one_cluster_cost : float
        Of one cluster around the mean of all records.
    n_records : int
        Number of records.
    unseen_cost : float or None
        Of as many centroids, far from each other in the domain, that no record moved.
    has_bounds : bool
        Whether the clustering has bounds on its sizes, which k-means does not keep.
    n_outside : int
        Number of records outside the domain, which the run moved to its bounds. All costs
        above are of the records where they are.
    within : Comparison or None
        The comparison for the moved records, which the run saw. It is there if records are
        outside, and the clusters are not as good as without privacy.
    notes : tuple of str
        Further sentences for a reader of the costs.
    """

    cost: float
    kmeans_cost: float
    one_cluster_cost: float
    n_records: int
    unseen_cost: float | None = None
    has_bounds: bool = False
    n_outside: int = 0
    within: "Comparison | None" = None
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The cost in costs of k-means; 1 if both are 0."""
        return _quotient(self.cost, self.kmeans_cost)

    @property
    def one_cluster_ratio(self) -> float:
        """The cost of one cluster in costs of k-means; 1 if both are 0."""
        return _quotient(self.one_cluster_cost, self.kmeans_cost)

    @property
    def has_gain(self) -> bool:
        """Whether k-means costs less than one cluster: not for k = 1 or equal records."""
        gain = self.one_cluster_cost - self.kmeans_cost
        return gain > _NO_GAIN * self.one_cluster_cost

    @property
    def lost_gain(self) -> float:
        """The part of k-means' gain over one cluster that the clustering lost.

        0 is as good as k-means, and 1 is as bad as one cluster. If k-means has no gain,
        it is the cost above that of k-means, in costs of k-means.
        """
        return self._lost_against(self.one_cluster_cost)

    @property
    def largest_lost_gain(self) -> float:
        """The lost gain over one cluster, or over centroids that saw no record.

        The larger one: with many clusters, any centroids gain much over one cluster.
        """
        if not self._has_better_unseen or self.unseen_cost is None:
            return self.lost_gain
        return self._lost_against(self.unseen_cost)

    @property
    def verdict(self) -> Verdict:
        """The comparison in words.

        It is `largest_lost_gain` against `GOOD` and `USABLE`. Clusters that cost more than
        `GOOD_RATIO` times k-means are usable at best: where one cluster costs far more,
        two groups in one cluster lose little gain.
        """
        lost = self.largest_lost_gain
        if self.lost_gain >= 1:
            return "worse than one cluster"
        if lost <= GOOD and not self._costs_much_more:
            return BEST
        if lost <= USABLE:
            return "usable"
        return "mostly noise"

    @property
    def text(self) -> str:
        """The verdict and its numbers, for a user.

        If the moved records have another verdict, a second sentence has that one: a single
        record far outside can decide all costs.
        """
        sentences = [f"{_SENTENCES[self.verdict]}: {self._numbers}."]
        within = self.within
        if within is not None and within.verdict != self.verdict:
            begin = within.text[0].lower()
            sentences.append(
                f"{self.n_outside:,} of {self.n_records:,} records lie outside the bounds, and the "
                f"run moved them there. With the moved records, {begin}{within.text[1:]}"
            )
        return " ".join([*sentences, *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers and words as plain values."""
        return {
            "cost": self.cost,
            "kmeans_cost": self.kmeans_cost,
            "one_cluster_cost": self.one_cluster_cost,
            "n_records": self.n_records,
            "unseen_cost": self.unseen_cost,
            "has_bounds": self.has_bounds,
            "n_outside": self.n_outside,
            "within": self.within and self.within.to_dict(),
            "ratio": self.ratio,
            "one_cluster_ratio": self.one_cluster_ratio,
            "lost_gain": self.lost_gain,
            "largest_lost_gain": self.largest_lost_gain,
            "verdict": self.verdict,
            "text": self.text,
        }

    def _lost_against(self, other: float) -> float:
        if not self.has_gain or other <= self.kmeans_cost:
            return self.ratio - 1
        return (self.cost - self.kmeans_cost) / (other - self.kmeans_cost)

    @property
    def _costs_much_more(self) -> bool:
        # Of groups of equal records k-means has no cost to compare with.
        return self.kmeans_cost > 0 and self.ratio > GOOD_RATIO

    @property
    def _has_better_unseen(self) -> bool:
        if self.unseen_cost is None or not self.has_gain:
            return False
        return self.kmeans_cost < self.unseen_cost < self.one_cluster_cost

    @property
    def _numbers(self) -> str:
        kmeans = "k-means without privacy"
        if self.has_bounds:
            kmeans += " and without bounds on sizes"
        if self.one_cluster_cost == 0:
            return "all records are equal, up to the rounding of a run"
        if not self.has_gain:
            gained = "which gains nothing over one cluster"
            return f"cost {_times(self.ratio)} {kmeans}, {gained}"
        if self.kmeans_cost == 0:
            part = 100 * self.cost / self.one_cluster_cost
            return (
                f"{kmeans} has no cost, because its clusters are groups of equal records; "
                f"the result has {part:.2g}% of the cost of one cluster"
            )
        parts = [
            f"cost {_times(self.ratio)} {kmeans}",
            f"one cluster is {_times(self.one_cluster_ratio)} "
            f"(lost gain {_rounded(self.lost_gain)}: 0 is as k-means, 1 as one cluster)",
        ]
        if self._has_better_unseen and self.largest_lost_gain > GOOD:
            unseen = _quotient(self.unseen_cost or 0.0, self.kmeans_cost)
            parts.append(
                f"centroids that saw no record are {_times(unseen)} "
                f"(lost gain {_rounded(self.largest_lost_gain)})"
            )
        return "; ".join(parts)


def _quotient(cost: float, other: float) -> float:
    if other > 0:
        return cost / other
    if cost > 0:
        return inf
    return 1.0


def _times(ratio: float) -> str:
    if ratio < 100:
        return f"{ratio:.2f} times"
    return f"{ratio:,.0f} times"


def _rounded(lost: float) -> str:
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(lost, 2) + 0.0:.2f}"


# ---------------------------------------------------------------------------- the costs


def masses_of(
    n_records: int, persons: Iterable[object] | None, weights: ArrayLike | None
) -> FloatArray:
    """Return the weight of each record in costs, (n,), in [0, 1].

    Parameters
    ----------
    n_records : int
    persons : iterable of hashable, optional
        One id for each record. The records of a person then weigh 1 together.
    weights : array-like of shape (n,), optional
        Weights of the records, in [0, 1].

    Raises
    ------
    ConfigurationTypeError, DataError
        If these are not one id, or one weight, for each record.
    """
    masses = np.ones(n_records)
    if persons is not None:
        # The hashes of ids stay here, so their key need not be secret.
        found = keys_of(persons, b"")
        require_one_each("persons", len(found.keys), n_records)
        known = ~found.is_missing
        counts = counts_of(found, np.ones(n_records, dtype=bool))
        masses[known] /= count_at(counts, found.keys[known])
    if weights is not None:
        own = checked_weights(weights)
        require_one_each("weights", len(own), n_records)
        masses *= own
    return masses


def require_near(records: FloatArray, domain: Domain) -> None:
    """Require records, (n, d), so near to the domain that no cost overflows.

    Raises
    ------
    DataError
        If one is too far away.
    """
    with np.errstate(over="ignore"):
        far = np.abs(domain.scaled(records)) > _FARTHEST
    if far.any():
        row = int(far.any(axis=1).argmax())
        raise DataError(
            f"Expected X within {_FARTHEST:g} half widths of the bounds, to compare. "
            f"Got a value beyond in row {row}."
        )


def moved(records: FloatArray, domain: Domain) -> tuple[FloatArray, int]:
    """Return records as a run moves them into its domain, (n, d), and how many it moved."""
    places = domain.to_unit(records)
    is_outside = np.abs(places - domain.scaled(records)) > _OUTSIDE
    found = domain.from_unit(places)
    return found, int(is_outside.any(axis=1).sum())


def compared(
    records: FloatArray,
    squares: FloatArray,
    domain: Domain,
    n_clusters: int,
    masses: FloatArray,
    seed: int,
    has_bounds: bool = False,
) -> Comparison:
    """Return the comparison of a clustering with k-means and with one cluster.

    Parameters
    ----------
    records : ndarray of shape (n, d)
        In the user's units, as distances compare them (`Domain.compared`).
    squares : ndarray of shape (n,)
        Squared distances of records to the clustering's centroids, in scaled units.
    domain : Box, Ball or Sphere
    n_clusters : int
        Number of clusters of the clustering, and of k-means.
    masses : ndarray of shape (n,)
        Weights of the records, in [0, 1].
    seed : int
        Seed of the samples and starts of k-means, and of the unseen centroids.
    has_bounds : bool
        Whether the clustering has bounds on its sizes.

    Raises
    ------
    DataError
        If no record has a weight above 0.
    """
    counts = masses > 0
    if not counts.any():
        raise DataError(
            "Expected X with at least one record of a weight above 0, to compare. Got none."
        )
    points = domain.scaled(records[counts])
    masses = masses[counts]
    space = _Space(points, masses, domain)
    together = np.zeros(len(points), dtype=np.int64)
    mean = space.means(together, points[:1])
    one_cluster = space.cost(mean)
    kmeans = space.cost(_kmeans(space, n_clusters, seed))
    unseen = space.cost(_unseen(space, n_clusters, seed))
    own = float(masses @ squares[counts])
    return Comparison(
        cost=space.without_rounding(own),
        # One cluster is a clustering with k centroids that are equal.
        kmeans_cost=min(kmeans, one_cluster),
        one_cluster_cost=one_cluster,
        n_records=len(records),
        unseen_cost=unseen,
        has_bounds=has_bounds,
    )


class _Space:
    """Scaled records, (n, d), with their masses, (n,), and the rules of their domain."""

    def __init__(self, points: FloatArray, masses: FloatArray, domain: Domain) -> None:
        self.points = points
        self.masses = masses
        self.domain = domain

    def __len__(self) -> int:
        return len(self.points)

    def sample(self, n_records: int, rng: np.random.Generator) -> "_Space":
        """Return random records without repetition, or all if there are not so many."""
        if n_records >= len(self):
            return self
        rows = np.sort(rng.choice(len(self), n_records, replace=False))
        return _Space(self.points[rows], self.masses[rows], self.domain)

    def labels(self, centers: FloatArray) -> IntArray:
        """Return the nearest centre of each record, (n,)."""
        norms = squared_norms(centers)
        doubled = -2 * centers.T
        found = np.empty(len(self), dtype=np.int64)
        step = max(1, _BLOCK_NUMBERS // len(centers))
        # Other processes share the processors. BLAS would wait for its own threads.
        with single_threaded_blas():
            for start in range(0, len(self), step):
                scores = self.points[start : start + step] @ doubled
                scores += norms
                found[start : start + step] = scores.argmin(axis=1)
        return found

    def cost(self, centers: FloatArray) -> float:
        """Return the sum of masses times squared distances to the nearest centres."""
        labels = self.labels(centers)
        total = 0.0
        step = max(1, _BLOCK_NUMBERS // centers.shape[1])
        for start in range(0, len(self), step):
            rows = slice(start, start + step)
            residuals = self.points[rows] - centers[labels[rows]]
            total += float(self.masses[rows] @ squared_norms(residuals))
        return self.without_rounding(total)

    def without_rounding(self, cost: float) -> float:
        """Return a cost, or 0 if it is not larger than the rounding of a run's grid."""
        rounding = self.masses.sum() * self.points.shape[1] * _GRID_ROUNDING
        return cost if cost > rounding else 0.0

    def means(self, labels: IntArray, centers: FloatArray) -> FloatArray:
        """Return the centre of each group, (k, d). An empty group keeps its centre."""
        groups = Groups(labels, len(centers))
        sizes = groups.sums(self.masses)[:, None]
        sums = groups.sums(self.points * self.masses[:, None])
        found = np.where(sizes > 0, sums / np.maximum(sizes, 1e-300), centers)
        return self.domain.scaled(self.domain.as_centroids(found))


def _kmeans(space: _Space, n_clusters: int, seed: int) -> FloatArray:
    """Return scaled centroids, (k, d), of k-means without privacy.

    The best of ten starts by greedy k-means++ on a sample, then Lloyd's steps on a larger
    sample until at most one record in a thousand changes its cluster, at most 50. A small
    data set is its own sample. Data of many columns and clusters have fewer starts and
    steps.
    """
    rng = public_generator(seed, 0)
    least = _PER_CLUSTER * n_clusters
    large = space.sample(max(_STEP_RECORDS, least), rng)
    small = large.sample(max(_START_RECORDS, least), rng)
    centers = _best_start(small, n_clusters, seed)
    n_steps = _WORK // (large.points.size * n_clusters)
    labels = large.labels(centers)
    for _ in range(int(np.clip(n_steps, _FEWEST_STEPS, _STEPS))):
        centers = large.means(labels, centers)
        before = labels
        labels = large.labels(centers)
        if (labels != before).mean() <= _FEW_CHANGES:
            break
    return centers


def _best_start(space: _Space, n_clusters: int, seed: int) -> FloatArray:
    """Return scaled centroids, (k, d), of the best start of weighted k-means on integers."""
    points = space.points
    n_columns = points.shape[1]
    low = points.min(axis=0)
    high = points.max(axis=0)
    middle = low / 2 + high / 2
    reach = float((high - middle).max())
    if reach == 0:  # all records are equal
        return np.repeat(middle[None], n_clusters, axis=0)
    # The largest B with 4 d B^2 <= 2^53.
    largest = np.floor(np.sqrt(2.0**51 / n_columns))
    grid = np.clip(np.rint((points - middle) / reach * largest), -largest, largest)
    heaviest = space.masses.max()
    masses = np.rint(space.masses / heaviest * _MASS_STEPS).astype(np.int64)
    n_starts = _WORK // (points.size * n_clusters * _START_STEPS)
    found = grid_kmeans(
        grid,
        masses,
        n_clusters,
        public_words(seed),
        n_starts=int(np.clip(n_starts, 1, _STARTS)),
        n_steps=_START_STEPS,
    )
    centers = found.points / largest * reach + middle
    return space.domain.scaled(space.domain.as_centroids(centers))


def _unseen(space: _Space, n_clusters: int, seed: int) -> FloatArray:
    """Return scaled centroids, (k, d), far from each other, at places that no record moved.

    Of a few placements it is the one with the least cost, so records choose among these.
    """
    domain = space.domain
    widths = domain.grid_half_widths(_UNSEEN_BITS)
    sample = space.sample(_STEP_RECORDS, public_generator(seed, 0))
    found = []
    for i in range(_UNSEEN):
        packed = sphere_packing(n_clusters, widths, seed + i) / 2.0**_UNSEEN_BITS
        found.append(domain.place(domain.from_unit(packed)))
    return min(found, key=sample.cost)
