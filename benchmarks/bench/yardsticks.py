"""What a cost is compared with: k-means, the floor, and one cluster. NOT PRIVATE.

The floor is the best k-means whose clusters all have at least so many records. A sum
over a cluster of m records has noise 1 / mu in each of d columns, in units of the
domain's radius. This makes the mean wrong by sqrt(d) / (mu m). In a cluster of fewer
than sqrt(d) / mu records the mean is wrong by more than the whole radius, so no method
with such sums can place it. The floor is no bound for other methods.

None of the searches need find the optimum: the true k-means and the true floor are at
most what is returned here.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.metrics import nicv

_SEED = 0
# The search of the floor: numbers of clusters that it tries, starts of each, and steps.
_MOST_NUMBERS = 4
_MOST_STARTS = 5
_MOST_STEPS = 50
# A step that saves a smaller part of the cost is the last one.
_LEAST_SAVING = 1e-6


class Yardsticks(NamedTuple):
    """Mean squared distances of all records without privacy.

    Attributes
    ----------
    kmeans : float
        To the nearest centroid of the best k-means found.
    one_cluster : float
        To the mean of all records.
    """

    kmeans: float
    one_cluster: float

    def ratio(self, cost: float) -> float:
        """Return a cost over that of k-means."""
        return cost / self.kmeans

    def lost_gain(self, cost: float) -> float:
        """Return the lost fraction of what k-means gains over one cluster.

        It is 0 for k-means, 1 for one cluster, and more for what is worse than one
        cluster.
        """
        return (cost - self.kmeans) / (self.one_cluster - self.kmeans)


def yardsticks(records: FloatArray, n_clusters: int, n_starts: int = 10) -> Yardsticks:
    """Return the costs of the best of ``n_starts`` k-means, and of one cluster.

    k-means is scikit-learn's with starts by k-means++, and need not be the optimum.
    """
    centroids = _kmeans(records, n_clusters, n_starts, _SEED)
    one = records.mean(axis=0, keepdims=True)
    return Yardsticks(nicv(records, centroids), nicv(records, one))


def fewest_records(n_features: int, mu: float) -> float:
    """Return the records below which noise moves a cluster's mean by a whole radius.

    ``mu`` is the parameter of Gaussian differential privacy of the whole run.
    """
    return math.sqrt(n_features) / mu


def floor(
    records: FloatArray, n_clusters: int, fewest: float, n_starts: int = 10
) -> float:
    """Return the cost of the best k-means found without a cluster of too few records.

    The records are divided into at most ``n_clusters`` clusters of at least ``fewest``
    records each, or into one if there are fewer in all. The cost is the mean squared
    distance to the mean of the own cluster, which need not be the nearest.

    Where the best of ``n_starts`` k-means has no smaller cluster, it is the floor.
    Otherwise constrained k-means (Bennett, Bradley & Demiriz, 2000) starts from it
    without its small clusters, and from k-means of several numbers of clusters. It
    assigns the records at the least cost within the bound, and moves the centroids, in
    turn. The best result counts. It is a heuristic search: the true floor may be lower,
    but is never higher.

    Parameters
    ----------
    records : ndarray of shape (n, d)
    n_clusters : int
    fewest : float
        Records of the smallest allowed cluster.
    n_starts : int
        Starts of k-means, as for `yardsticks`.
    """
    best = _kmeans(records, n_clusters, n_starts, _SEED)
    return _floor_from(records, best, fewest)


def floors(
    records: FloatArray, n_clusters: int, fewest: Sequence[float], n_starts: int = 10
) -> list[float]:
    """Return `floor` for each of several bounds. k-means is searched once."""
    best = _kmeans(records, n_clusters, n_starts, _SEED)
    return [_floor_from(records, best, bound) for bound in fewest]


def _floor_from(records: FloatArray, best: FloatArray, fewest: float) -> float:
    least = math.ceil(fewest)
    n_clusters = len(best)
    labels = _squared(records, best).argmin(axis=1)
    if np.bincount(labels, minlength=n_clusters).min() >= least:
        return nicv(records, best)
    most = max(1, min(n_clusters, len(records) // max(least, 1)))
    costs = [_constrained(records, start, least) for start in _starts(records, most)]
    costs.append(_constrained(records, _without_small(records, best, least), least))
    if most == n_clusters:
        costs.append(_constrained(records, best, least))
    return min(costs)


def _starts(records: FloatArray, most: int) -> list[FloatArray]:
    numbers = range(max(1, most - _MOST_NUMBERS + 1), most + 1)
    return [
        _kmeans(records, number, 1, seed)
        for number in numbers
        for seed in range(_MOST_STARTS)
    ]


def _without_small(
    records: FloatArray, centroids: FloatArray, least: int
) -> FloatArray:
    """Return centroids after the smallest cluster was dissolved until all are allowed."""
    while len(centroids) > 1:
        labels = _squared(records, centroids).argmin(axis=1)
        sizes = np.bincount(labels, minlength=len(centroids))
        if sizes.min() >= least:
            break
        left = np.delete(centroids, sizes.argmin(), axis=0)
        centroids = _kmeans(records, len(left), left, _SEED)
    return centroids


def _constrained(records: FloatArray, centroids: FloatArray, least: int) -> float:
    """Return the cost of constrained k-means from a start."""
    if len(centroids) == 1:
        return nicv(records, records.mean(axis=0, keepdims=True))
    last = math.inf
    for _ in range(_MOST_STEPS):
        labels = assigned(_squared(records, centroids), least)
        sizes = np.bincount(labels, minlength=len(centroids))
        sums = np.zeros_like(centroids)
        np.add.at(sums, labels, records)
        centroids = sums / np.maximum(sizes, 1)[:, None]
        cost = float(np.square(records - centroids[labels]).sum()) / len(records)
        if cost >= last * (1 - _LEAST_SAVING):
            break
        last = cost
    return min(cost, last)


def assigned(costs: FloatArray, least: int) -> IntArray:
    """Return the cluster, (n,), of each record with the least cost in all.

    ``costs``, (n, k), are those of a record in a cluster. Every cluster has at least
    ``least`` records. All records begin in their cheapest clusters. Then one record
    after the other is added to a cluster of too few, along the cheapest path of moves
    from a cluster of more than enough. Such paths leave the assignment optimal for the
    sizes reached so far.

    Raises
    ------
    ConfigurationError
        If there are fewer than k ``least`` records.
    """
    n, k = costs.shape
    if n < k * least:
        raise ConfigurationError(
            f"Expected at least {k * least} records for {k} clusters of {least}. "
            f"Got {n} instead."
        )
    labels: IntArray = costs.argmin(axis=1)
    sizes = np.bincount(labels, minlength=k)
    moves = np.full((k, k), math.inf)
    movers = np.zeros((k, k), dtype=np.int64)
    for source in range(k):
        _set_moves(costs, labels, source, moves, movers)
    while sizes.min() < least:
        path = _cheapest_path(moves, sizes, least)
        for source, target in path:
            labels[movers[source, target]] = target
        sizes[path[0][0]] -= 1
        sizes[path[-1][1]] += 1
        for cluster in {place for arc in path for place in arc}:
            _set_moves(costs, labels, cluster, moves, movers)
    return labels


def _set_moves(
    costs: FloatArray,
    labels: IntArray,
    source: int,
    moves: FloatArray,
    movers: IntArray,
) -> None:
    """Set the cheapest move from a cluster to each other one, and its record."""
    members = np.flatnonzero(labels == source)
    moves[source] = math.inf
    if len(members):
        extra = costs[members] - costs[members, source][:, None]
        cheapest = extra.argmin(axis=0)
        moves[source] = extra[cheapest, np.arange(len(moves))]
        movers[source] = members[cheapest]
    moves[source, source] = math.inf


def _cheapest_path(
    moves: FloatArray, sizes: IntArray, least: int
) -> list[tuple[int, int]]:
    """Return moves from a cluster that can lose a record to one that needs it."""
    k = len(sizes)
    lengths = np.where(sizes > least, 0.0, math.inf)
    before = np.full(k, -1)
    # Moves may be cheaper than nothing after others, but no circle of them is. The
    # tolerance keeps roundings from closing one.
    tolerance = 1e-12 * max(1.0, float(np.abs(moves[np.isfinite(moves)]).max()))
    for _ in range(k - 1):
        through = lengths[:, None] + moves
        source = through.argmin(axis=0)
        reached = through[source, np.arange(k)]
        shorter = reached < lengths - tolerance
        if not shorter.any():
            break
        lengths[shorter] = reached[shorter]
        before[shorter] = source[shorter]
    needy = np.flatnonzero(sizes < least)
    place = int(needy[lengths[needy].argmin()])
    path = []
    while before[place] >= 0:
        path.append((int(before[place]), place))
        place = int(before[place])
    return path[::-1]


def _squared(records: FloatArray, centroids: FloatArray) -> FloatArray:
    return np.asarray(cdist(records, centroids, "sqeuclidean"))


def _kmeans(
    records: FloatArray, n_clusters: int, starts: int | FloatArray, seed: int
) -> FloatArray:
    """Return centroids of scikit-learn's k-means, from a start or the best of several."""
    cluster = require("sklearn.cluster", "A benchmark", "test")
    given: dict[str, Any] = {"n_init": starts}
    if not isinstance(starts, int):
        given = {"init": starts, "n_init": 1}
    model = cluster.KMeans(n_clusters, random_state=seed, **given).fit(records)
    return np.asarray(model.cluster_centers_)
