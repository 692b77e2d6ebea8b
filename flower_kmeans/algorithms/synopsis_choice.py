"""The choice of the number of clusters from the costs of a synopsis' clusterings.

See docs/guarantees, Theorem 22, "Selection". The rule is a gap statistic (Tibshirani,
Walther & Hastie 2001) whose reference is a formula instead of a sample. Clients of an
oblivious server must agree on the number bit for bit (`synopsis_mixture`).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.base import MAX_ROUNDS
from flower_kmeans.algorithms.numerics.initialization import round_words
from flower_kmeans.algorithms.numerics.portable import logarithm
from flower_kmeans.algorithms.numerics.postprocess import to_grid
from flower_kmeans.algorithms.synopsis_constants import (
    CHOICE_STARTS,
    LEAST_COUNT,
    LEAST_PARTS,
    MODEL_BITS,
    SMALLEST,
    TOLERANCE,
)
from flower_kmeans.algorithms.synopsis_mixture import (
    CellNoise,
    Mixture,
    nearest,
    on_grid,
)
from flower_kmeans.algorithms.synopsis_selection import Selection, select
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import row_sums


class ClusteringCosts(NamedTuple):
    """The costs of clusterings with different numbers of clusters, (n,) each.

    Attributes
    ----------
    costs : array of float64
        Mean squared distance of records to their centroids, in D^2.
    errors : array of float64
        Standard error of each cost from the noise of the last synopsis round.
    dimensions : array of float64
        Each cost over the largest variance in one direction around centroids.
    """

    costs: FloatArray
    errors: FloatArray
    dimensions: FloatArray


def selection(
    mixture: Mixture, n_clusters: int, seed: int, n_starts: int | None = None
) -> Selection:
    """Return the centres of k-means on a mixture. No round of a run draws the same words."""
    source = round_words(seed, MAX_ROUNDS + n_clusters)
    return select(mixture, n_clusters, source, n_starts)


def selections(mixture: Mixture, numbers: Iterable[int], seed: int) -> list[Selection]:
    """Return the centres for each number of clusters, by a few starts each."""
    return [selection(mixture, k, seed, CHOICE_STARTS) for k in numbers]


def padded(found: Sequence[Selection], place: int) -> Selection:
    """Return the selection at ``place``, padded with rows of 0 to the largest selection.

    All selections are padded, so the time does not depend on the place.
    """
    most = max(len(each.counts) for each in found)
    every = [
        each._replace(
            centers=_with_rows(each.centers, most),
            counts=_with_rows(each.counts, most),
            doubts=_with_rows(each.doubts, most),
        )
        for each in found
    ]
    return every[place]


def _with_rows(values: FloatArray, n_rows: int) -> FloatArray:
    """Return values, padded with rows of 0 to ``n_rows``."""
    n_missing = n_rows - len(values)
    zeros = np.zeros((n_missing, *values.shape[1:]))
    return np.concatenate([values, zeros])


def costs_of(
    mixture: Mixture,
    found: Sequence[Selection],
    radii: FloatArray,
    noise: CellNoise,
    beside: float,
    n_beside: int,
) -> ClusteringCosts:
    """Return the costs of clusterings of a mixture.

    Parameters
    ----------
    mixture : Mixture
        The model, with m parts: one for each cell.
    found : sequence of Selection
        The clusterings.
    radii : array of float64, (m,)
        Radii of the cells, in D.
    noise : CellNoise
        Standard deviations of the noise in each cell.
    beside : float
        Variance of the records in each direction that the mixture leaves out, in D^2.
    n_beside : int
        Number of these directions.
    """
    n = len(found)
    costs = ClusteringCosts(np.zeros(n), errors=np.zeros(n), dimensions=np.zeros(n))
    for i, each in enumerate(found):
        along = math.fsum(each.within)
        cost = max(along + n_beside * beside, SMALLEST)
        largest = max(float(each.within.max()), SMALLEST)
        if n_beside:
            largest = max(largest, beside)
        costs.costs[i] = cost
        costs.errors[i] = _standard_error(mixture, each, along, radii, noise)
        costs.dimensions[i] = max(cost / largest, 1.0)
    return costs


def _standard_error(
    mixture: Mixture,
    found: Selection,
    along: float,
    radii: FloatArray,
    noise: CellNoise,
) -> float:
    """Return the standard error of a clustering's cost from the noise of cells.

    ``along`` is the cost in the directions of the mixture. The other parameters are
    those of `costs_of`.
    """
    centers = to_grid(found.centers * 2.0**MODEL_BITS)
    labels = nearest(on_grid(mixture.means), centers)
    residuals = mixture.means - found.centers[labels]
    offsets = row_sums(residuals * residuals)
    squares = radii * radii
    sums_variance = noise.sums * noise.sums
    # A cell with centre z and radius r adds r^2 (n - slack) + 2 r (z - c) sum
    # + n |z - c|^2 to the cost of centroid c, and n records to the divisor.
    by_counts = (squares + offsets - along) * noise.counts
    by_slacks = squares * noise.slacks
    variances = by_counts * by_counts + by_slacks * by_slacks
    variances += 4 * squares * offsets * sums_variance
    kept = np.where(mixture.weights > 0, variances, 0.0)
    return math.sqrt(math.fsum(kept)) / math.fsum(mixture.weights)


def gaps(numbers: IntArray, costs: FloatArray, dimensions: FloatArray) -> FloatArray:
    """Return the gap of each cost, (n,): how far it is below a reference, in logarithms.

    The reference is the cost D of records without clusters, relative to the first of
    the ascending ``numbers``, (n,), of clusters. k clusters divide the largest
    variances until all divided ones have the same size v (reverse water-filling: Cover
    & Thomas, section 10.3.3). So from k on, log D falls by ``2 v / D`` times the
    increase of log k.
    """
    logs_of_numbers = logarithm(numbers.astype(np.float64))
    steps = logs_of_numbers[1:] - logs_of_numbers[:-1]
    falls = 2 * steps / dimensions[:-1]
    reference = np.concatenate([[0.0], np.add.accumulate(falls)])
    logs = logarithm(costs)
    return np.asarray(logs[0] - logs - reference)


def most_suggested(weights: FloatArray, noise: float) -> int:
    """Return the largest number of clusters that costs may suggest.

    On average a cluster must have at least three of the parts with ``weights``, (m,),
    and at least 16 times the ``noise`` of a part's count in records.
    """
    n_parts = int(np.count_nonzero(weights))
    by_noise = math.inf
    if noise:
        by_noise = math.fsum(weights) / (LEAST_COUNT * noise)
    return int(min(n_parts // LEAST_PARTS, by_noise))


def suggested(
    numbers: Sequence[int] | IntArray, found: ClusteringCosts, most: int
) -> int:
    """Return the number of clusters that the costs suggest, for ascending ``numbers``.

    Only the first number, and numbers of at most ``most``, are compared. The result is
    the smallest whose gap is at most half a standard error below the largest gap.
    """
    counted = np.asarray(numbers, dtype=np.int64)
    allowed = counted <= max(counted[0], most)
    by_number = gaps(counted, found.costs, found.dimensions)
    by_number = np.where(allowed, by_number, -np.inf)
    best = int(np.argmax(by_number))
    least = by_number[best] - TOLERANCE * found.errors[best] / found.costs[best]
    first = np.argmax(by_number >= least)
    return int(counted[first])
