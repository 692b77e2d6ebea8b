"""The number of clusters of a synopsis: the costs of its clusterings, and a rule.

See docs/guarantees, Theorem 22, "Selection". A gap statistic (Tibshirani,
Walther & Hastie 2001) whose reference is a formula and not a sample. Clients of an
oblivious server must agree on it bit for bit (`synopsis_mixture`).
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
        Mean squared distances of records to their centroids.
    errors : array of float64
        Standard errors, by the noise of the last synopsis round.
    dimensions : array of float64
        Costs over the largest variance in one direction around centroids.
    """

    costs: FloatArray
    errors: FloatArray
    dimensions: FloatArray


def selection(
    mixture: Mixture, n_clusters: int, seed: int, n_starts: int | None = None
) -> Selection:
    """Return the centres of k-means on a mixture, by words that no round of a run draws."""
    source = round_words(seed, MAX_ROUNDS + n_clusters)
    return select(mixture, n_clusters, source, n_starts)


def selections(mixture: Mixture, numbers: Iterable[int], seed: int) -> list[Selection]:
    """Return the centres for some numbers of clusters, by a few starts each."""
    return [selection(mixture, k, seed, CHOICE_STARTS) for k in numbers]


def padded(found: Sequence[Selection], place: int) -> Selection:
    """Return one of some selections, with as many rows as the largest has; those beyond are 0.

    All are padded, so that the steps do not depend on the place.
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
    """Return values with rows of 0 behind them, up to a number of rows."""
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
        With m parts, one for each cell.
    found : sequence of Selection
        The clusterings.
    radii : array of float64, (m,)
        Of the cells, in D.
    noise : Noise
        Of the values that were released for each cell.
    beside : float
        Variance of the records in each direction that the mixture leaves out.
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
    """Return the standard error of a clustering's cost, by the noise of cells.

    ``along`` is its cost in the directions of the mixture. Parameters are otherwise
    those of `costs_of`.
    """
    centers = to_grid(found.centers * 2.0**MODEL_BITS)
    labels = nearest(on_grid(mixture.means), centers)
    residuals = mixture.means - found.centers[labels]
    offsets = row_sums(residuals * residuals)
    squares = radii * radii
    sums_variance = noise.sums * noise.sums
    # A cell's records add r^2 (n - slack) + 2 r (z - c) sum + n |z - c|^2, at the
    # cell's centre z with radius r, and n records to the number by which all is
    # divided.
    by_counts = (squares + offsets - along) * noise.counts
    by_slacks = squares * noise.slacks
    variances = by_counts * by_counts + by_slacks * by_slacks
    variances += 4 * squares * offsets * sums_variance
    kept = np.where(mixture.weights > 0, variances, 0.0)
    return math.sqrt(math.fsum(kept)) / math.fsum(mixture.weights)


def gaps(numbers: IntArray, costs: FloatArray, dimensions: FloatArray) -> FloatArray:
    """Return the gap of each cost: its logarithm below that of records without clusters.

    Relative to the first of the ascending ``numbers`` (n,) of clusters. A clustering of
    k divides the largest variances until all that are divided have one size v (reverse
    water-filling: Cover & Thomas, section 10.3.3). From k clusters on, the logarithm of
    the cost D of records without clusters then falls by ``2 v / D`` times that of k.
    """
    logs_of_numbers = logarithm(numbers.astype(np.float64))
    steps = logs_of_numbers[1:] - logs_of_numbers[:-1]
    falls = 2 * steps / dimensions[:-1]
    reference = np.concatenate([[0.0], np.add.accumulate(falls)])
    logs = logarithm(costs)
    return np.asarray(logs[0] - logs - reference)


def most_suggested(weights: FloatArray, noise: float) -> int:
    """Return the largest number of clusters that costs may suggest, for parts with weights (m,).

    Clusters have on average at least three parts, and records of 16 times the ``noise``
    of a part's count.
    """
    n_parts = int(np.count_nonzero(weights))
    by_noise = math.inf
    if noise:
        by_noise = math.fsum(weights) / (LEAST_COUNT * noise)
    return int(min(n_parts // LEAST_PARTS, by_noise))


def suggested(
    numbers: Sequence[int] | IntArray, found: ClusteringCosts, most: int
) -> int:
    """Return the number of clusters that the costs of some, in ascending order, suggest.

    The smallest whose gap is at most half a standard error of the cost below the
    largest gap, of the first number and those of at most ``most``.
    """
    counted = np.asarray(numbers, dtype=np.int64)
    allowed = counted <= max(counted[0], most)
    by_number = gaps(counted, found.costs, found.dimensions)
    by_number = np.where(allowed, by_number, -np.inf)
    best = int(np.argmax(by_number))
    least = by_number[best] - TOLERANCE * found.errors[best] / found.costs[best]
    first = np.argmax(by_number >= least)
    return int(counted[first])
