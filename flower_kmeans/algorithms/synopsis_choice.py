"""How many clusters the mixture of a synopsis has: the costs of its clusterings, and a rule.

A gap statistic (Tibshirani, Walther & Hastie 2001) whose reference is a formula and not
a sample. Clients of an oblivious server must agree on it bit for bit
(`synopsis_mixture`).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from flower_kmeans.algorithms.base import MAX_ROUNDS, FloatArray, IntArray
from flower_kmeans.algorithms.numerics.initialization import round_words
from flower_kmeans.algorithms.numerics.portable import logarithm
from flower_kmeans.algorithms.numerics.postprocess import to_grid
from flower_kmeans.algorithms.synopsis_mixture import (
    MODEL_BITS,
    SMALLEST,
    Mixture,
    Noise,
    Selection,
    nearest,
    on_grid,
    select,
)
from flower_kmeans.data.domain import row_sums

# standard errors of a cost by which a gap may be smaller than the largest one
TOLERANCE = 0.5
LEAST_PARTS = 3  # of a cluster: with fewer on average, a cost is that of the cells
# records of a cluster, over the noise of a cell's count: fewer fit the noise
LEAST_COUNT = 16
_STARTS = 5  # of each of many clusterings


class Costs(NamedTuple):
    """What clusterings with different numbers of clusters cost, (n,) each."""

    costs: FloatArray  # mean squared distances of records to their centroids
    errors: FloatArray  # standard errors, by the noise of the last synopsis round
    # costs over the largest variance in one direction around centroids
    dimensions: FloatArray


def selection(
    mixture: Mixture, n_clusters: int, seed: int, n_starts: int | None = None
) -> Selection:
    """Return the centres of k-means on a mixture, by words that no round of a run draws."""
    return select(
        mixture, n_clusters, round_words(seed, MAX_ROUNDS + n_clusters), n_starts
    )


def selections(mixture: Mixture, numbers: Iterable[int], seed: int) -> list[Selection]:
    """Return the centres for some numbers of clusters, by a few starts each."""
    return [selection(mixture, k, seed, _STARTS) for k in numbers]


def padded(found: Sequence[Selection], place: int) -> Selection:
    """Return one of some selections, with as many rows as the largest has; those beyond are 0.

    All are padded, so that the steps do not depend on the place.
    """
    most = max(len(each.counts) for each in found)

    def rows(values: FloatArray) -> FloatArray:
        return np.concatenate(
            [values, np.zeros((most - len(values), *values.shape[1:]))]
        )

    every = [
        each._replace(
            centers=rows(each.centers),
            counts=rows(each.counts),
            doubts=rows(each.doubts),
        )
        for each in found
    ]
    return every[place]


def costs_of(
    mixture: Mixture,
    found: Sequence[Selection],
    radii: FloatArray,
    noise: Noise,
    beside: float,
    n_beside: int,
) -> Costs:
    """Return the costs of clusterings of a mixture.

    Cells have ``radii`` (m,) and released values with ``noise``. In each of
    ``n_beside`` directions that the mixture leaves out, records have the variance
    ``beside``.
    """
    rows, squares = [], radii * radii
    for each in found:
        along = math.fsum(each.within)
        labels = nearest(
            on_grid(mixture.means), to_grid(each.centers * 2.0**MODEL_BITS)
        )
        residuals = mixture.means - each.centers[labels]
        offsets = row_sums(residuals * residuals)
        # A cell's records add r^2 (n - slack) + 2 r (z - c) sum + n |z - c|^2, at the
        # cell's centre z with radius r, and n records to the number by which all is
        # divided.
        by_counts, by_slacks = (
            (squares + offsets - along) * noise.counts,
            squares * noise.slacks,
        )
        variances = by_counts * by_counts + by_slacks * by_slacks
        variances = variances + 4 * squares * offsets * (noise.sums * noise.sums)
        kept = np.where(mixture.weights > 0, variances, 0.0)
        error = math.sqrt(math.fsum(kept)) / math.fsum(mixture.weights)
        cost = max(along + n_beside * beside, SMALLEST)
        largest = max(float(each.within.max()), beside if n_beside else 0.0, SMALLEST)
        rows.append((cost, error, max(cost / largest, 1.0)))
    return Costs(*np.array(rows, dtype=np.float64).reshape(-1, 3).T)


def gaps(numbers: IntArray, costs: FloatArray, dimensions: FloatArray) -> FloatArray:
    """Return by how much the logarithm of each cost is below that of records without clusters.

    Relative to the first of the ascending ``numbers`` (n,) of clusters. A clustering of
    k divides the largest variances until all that are divided have one size v (reverse
    water-filling: Cover & Thomas, section 10.3.3). From k clusters on, the logarithm of
    the cost D of records without clusters then falls by ``2 v / D`` times that of k.
    """
    falls = logarithm(numbers.astype(np.float64))
    falls = 2 * (falls[1:] - falls[:-1]) / dimensions[:-1]
    reference = np.concatenate([[0.0], np.add.accumulate(falls)])
    logs = logarithm(costs)
    return np.asarray(logs[0] - logs - reference)


def most_suggested(weights: FloatArray, noise: float) -> int:
    """Return the largest number of clusters that costs may suggest, for parts with weights (m,).

    Clusters have on average at least three parts, and records of 16 times the ``noise``
    of a part's count.
    """
    n_parts = int(np.count_nonzero(weights))
    by_noise = math.fsum(weights) / (LEAST_COUNT * noise) if noise else math.inf
    return int(min(n_parts // LEAST_PARTS, by_noise))


def suggested(numbers: Sequence[int] | IntArray, found: Costs, most: int) -> int:
    """Return the number of clusters that the costs of some, in ascending order, suggest.

    The smallest whose gap is at most half a standard error of the cost below the
    largest gap, of the first number and those of at most ``most``.
    """
    chosen = np.asarray(numbers, dtype=np.int64)
    allowed = chosen <= max(chosen[0], most)
    by_number = np.where(allowed, gaps(chosen, found.costs, found.dimensions), -np.inf)
    best = int(np.argmax(by_number))
    least = by_number[best] - TOLERANCE * found.errors[best] / found.costs[best]
    return int(chosen[np.argmax(by_number >= least)])
