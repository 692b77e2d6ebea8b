"""Weights of a power diagram that give the cells of weighted points their sizes.

They maximise a dual (docs/guarantees.md, "Bounds on cluster sizes"), by damped Newton
steps on a soft minimum whose temperature falls (Kitagawa, Merigot & Thibert,
Convergence of a Newton algorithm for semi-discrete optimal transport, 2019). Bounds are
shares of all masses, feasible whatever noisy masses add up to. All clients of an
oblivious server must agree bit for bit: integers, elementwise operations that IEEE 754
rounds correctly, exact sums, and a number of steps that sizes decide.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.numerics.grid_kmeans import grid_means
from flower_kmeans.algorithms.numerics.portable import exponential, logarithm
from flower_kmeans.data.domain import IntArray
from flower_kmeans.data.records import FloatArray
from flower_kmeans.threads import single_threaded_blas

# last temperature, over the square of the mean distance to the nearest centre
COLDEST = 2.0**-9
# first temperature, over the mean squared distance to the farthest centre
HOTTEST = 2.0**-3
AIM_STEPS = 6  # how often weights and centres are found in turn, at the start

_FALLS, _STEPS = 16, 3  # of the temperature, and Newton's steps at each
# the last ones, two at once, where there are weights to start from
_LATER_FALLS, _SKIPPED = 12, 2
_MASS_BITS = 26  # of all masses, in sums of parts
# of exponentials, parts, and products of parts
_EXP_BITS, _PART_BITS, _PAIR_BITS = 30, 22, 12
_LOWEST = -40.0  # an exponent below counts as it
_BLOCK = 2**15  # of costs, which a processor's cache holds
_DAMPING, _LESS, _MORE, _LEAST = 2.0**-6, 0.125, 8.0, 2.0**-20
_RIDGE = 2.0**-6  # of an equal size: what damping counts an empty cell as
_LONGEST = 20.0  # step of a weight, in temperatures
# points, of those on which centres move at first
_MOST_APART, _FEWEST_PER_CENTER = 4, 50
_MOST_MASS = 2**52  # of all points: sums of masses are exact in float64
_CHANGES = 0.1, 10.0  # of a point's mass, in a round
_LEAST_SIZE = 0.02  # of a cell's size before


class ConstrainedCenters(NamedTuple):
    """Centres of a k-means with bounds on the sizes of cells."""

    points: IntArray  # (k, p)
    weights: IntArray  # (k,), of the power diagram, in squared grid units
    cost: float  # sum of masses times squared distances to the centres of their cells


def aim(
    min_size: int, max_size: int, noise: float, n_records: int, n_clusters: int
) -> tuple[float, float]:
    """Return the bounds to aim at, as shares of all records.

    Inside the bounds (0 and ``n_records`` where there is none) by one standard
    deviation of a size's noise, in records, but no closer than that to equal sizes,
    which would chase noise.
    """
    equal = n_records / n_clusters
    low = min(min_size + noise, equal - noise) if min_size > 0 else 0.0
    high = (
        max(max_size - noise, equal + noise)
        if max_size < n_records
        else float(n_records)
    )
    return max(low, 0.0) / n_records, min(high, float(n_records)) / n_records


def constrained_centers(
    points: IntArray,
    masses: IntArray,
    starts: IntArray,
    low: float,
    high: float,
    n_steps: int = AIM_STEPS,
) -> ConstrainedCenters:
    """Return centres and weights after steps of k-means with bounds on the sizes of cells.

    A step finds weights, and moves each centre to the mean of its cell; one whose cell
    is empty stays. Of starts (m, k, p), the one with the least cost after these steps
    takes one more. Where there are many points (n, p) for each centre, the other steps
    are on every second to fourth.
    """
    apart = max(
        1, min(_MOST_APART, len(points) // (_FEWEST_PER_CENTER * starts.shape[1]))
    )
    some = points[::apart], masses[::apart]
    found = [_moved(*some, centers, None, low, high, n_steps) for centers in starts]
    best = min(found, key=lambda one: one.cost)  # of equal costs the first
    return _moved(points, masses, best.points, best.weights, low, high, 1)


def squared_distances(points: IntArray, centers: IntArray) -> FloatArray:
    """Return the squared distances (n, k) of points (n, p) to centres (k, p), exact integers.

    Coordinates are integers of at most B in absolute value, with ``4 p B**2 <= 2**53``.
    """
    first, second = points.astype(np.float64), centers.astype(np.float64)
    with single_threaded_blas():
        found: FloatArray = first @ (-2 * second.T)
    found += np.einsum("ij,ij->i", first, first)[:, None]
    found += np.einsum("ij,ij->i", second, second)
    return found


def power_cells(costs: FloatArray, weights: IntArray | FloatArray) -> IntArray:
    """Return each point's cell (n,): the least of cost minus weight, of several the first."""
    n, k = costs.shape
    labels = np.empty(n, dtype=np.int64)
    rows = max(1, _BLOCK // k)
    for i in range(0, n, rows):
        labels[i : i + rows] = (costs[i : i + rows] - weights).argmin(axis=1)
    return labels


def cell_sizes(masses: IntArray, labels: IntArray, n_clusters: int) -> FloatArray:
    """Return the sums of masses (k,) by cell: integers below 2^53."""
    return np.bincount(labels, masses, n_clusters).astype(np.float64)


def rake(
    masses: IntArray, labels: IntArray, counts: FloatArray, gain: float
) -> IntArray:
    """Return masses (n,), below 2^52 in all, whose cells come nearer to noisy sizes (k,).

    By ``gain`` of the way, in [0, 1]. A point without mass stays so.
    """
    have = cell_sizes(masses, labels, len(counts))
    wanted = np.maximum(have + gain * (counts - have), _LEAST_SIZE * have)
    factors = np.clip(wanted / np.maximum(have, 1.0), *_CHANGES)
    most = _MOST_MASS // len(masses)
    raked = np.floor(np.minimum(masses * factors[labels] + 0.5, most)).astype(np.int64)
    # Factors could never bring back a mass of 0.
    return np.maximum(raked, masses > 0)


def refinement_gain(counts: FloatArray, have: FloatArray, noise: float) -> float:
    """Return how far to go from sizes of the model to counts (k,) of a refinement round.

    ``noise`` is the standard deviation of a count, above 0.
    """
    # The part of the difference that noise does not explain, at least a fifth.
    square, seen = noise * noise, _mean_square(counts - have)
    return max(seen - square, square / 4) / max(seen, 1.25 * square)


def sizing_gain(
    counts: FloatArray, have: FloatArray, noise: float, variance: float
) -> tuple[float, float]:
    """Return how far to go towards the counts of a sizing round, and the variance that is left.

    ``variance`` is that of the model's sizes, as the sizing round before left it.
    """
    square = noise * noise
    prior = max(_mean_square(counts - have) - square, variance)
    # Kalman's filter for one number.
    gain = prior / (prior + square)
    return gain, gain * square


def power_weights(
    costs: FloatArray,
    masses: IntArray,
    low: float,
    high: float,
    start: IntArray | None = None,
) -> IntArray:
    """Return weights (k,) with which every cell's share of the masses lies between two bounds.

    Of the weights at all temperatures those are returned whose cells, without parts,
    miss least what they should have: ``low`` of all masses where the weight is
    positive, ``high`` where it is negative, and a share between both where it is 0.
    They are at most the largest cost in absolute value.

    Costs (n, k) are as `squared_distances` returns them, masses (n,) at least 0 and
    below 2^62 in all, where all are 0 alike; ``k low <= 1 <= k high``. With weights to
    ``start`` from, temperatures start lower.
    """
    k, shares = costs.shape[1], _shares(masses)
    total, largest = int(shares.sum()), float(costs.max())
    bounds = float(math.floor(low * total)), float(min(math.ceil(high * total), total))
    problem = _Problem(costs, shares.astype(np.float64), *bounds, largest)
    temperatures, weights, drift = _temperatures(problem), np.zeros(k), np.zeros(k)
    if start is not None:
        temperatures = temperatures[-_LATER_FALLS - 1 :: _SKIPPED]
        weights = np.clip(start.astype(np.float64), -largest, largest)
    fall = temperatures[1] / temperatures[0]
    best, missed = weights, _missed(problem, weights)
    with single_threaded_blas():
        for temperature in temperatures:
            before = weights
            weights = _newton(problem, weights, drift, temperature)
            # Weights change about as the temperature does.
            drift = fall * (weights - before)
            found = np.floor(weights + 0.5)
            misses = _missed(problem, found)
            if misses <= missed:
                best, missed = found, misses
    return best.astype(np.int64)


# --------------------------------------------------------------------------- details


class _Problem(NamedTuple):
    """Points with costs and shares of 2^26, and the bounds and the largest weight."""

    costs: FloatArray  # (n, k)
    shares: FloatArray  # (n,), integers
    low: float  # as high: integers, in shares
    high: float
    largest: float

    def wanted(self, sizes: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sizes that cells should have: at a bound where there is a weight."""
        within = np.clip(sizes, self.low, self.high)
        return np.where(weights > 0, self.low, np.where(weights < 0, self.high, within))


class _Place(NamedTuple):
    """The soft dual at some weights."""

    weights: FloatArray  # (k,)
    value: float  # over the temperature
    sizes: FloatArray  # (k,), of the cells, in shares
    # (k, k), shares times both parts of two cells: minus second derivatives beside the
    # diagonal
    pairs: FloatArray


def _moved(
    points: IntArray,
    masses: IntArray,
    centers: IntArray,
    start: IntArray | None,
    low: float,
    high: float,
    n_steps: int,
) -> ConstrainedCenters:
    """Return centres after steps, and the weights that are right for them."""
    for step in range(n_steps + 1):
        costs = squared_distances(points, centers)
        start = weights = power_weights(costs, masses, low, high, start)
        labels = power_cells(costs, weights)
        if step < n_steps:
            centers = grid_means(points, masses, labels, centers)
    own = costs[np.arange(len(points)), labels]
    return ConstrainedCenters(centers, weights, math.fsum(masses * own))


def _mean_square(values: FloatArray) -> float:
    return math.fsum(values * values) / len(values)


def _shares(masses: IntArray) -> IntArray:
    """Return masses without so many last bits that 26 are left of all of them."""
    ones = np.ones(len(masses), dtype=np.int64)
    masses = masses if masses.any() else ones
    shift = max(0, int(masses.sum()).bit_length() - _MASS_BITS)
    # Half of what is cut off is added, so masses are rounded to the nearest.
    found: IntArray = (masses + (1 << shift >> 1)) >> shift
    return found if found.any() else ones


def _temperatures(problem: _Problem) -> list[float]:
    """Return temperatures that fall by equal factors."""
    costs, shares = problem.costs, problem.shares
    total = math.fsum(shares)
    # The last one follows distances, not their squares: of these, few points far out
    # have most.
    near = math.fsum(shares * np.sqrt(costs.min(axis=1))) / total
    far = math.fsum(shares * costs.max(axis=1)) / total
    first = max(HOTTEST * far, 0.25)
    last = max(COLDEST * near * near, COLDEST * COLDEST * far, 0.25)
    fall = last / first
    # The sixteenth root, by square roots, which are rounded alike everywhere.
    for _ in range(_FALLS.bit_length() - 1):
        fall = math.sqrt(fall)
    return [first * math.prod([fall] * i) for i in range(_FALLS + 1)]


def _missed(problem: _Problem, weights: FloatArray) -> float:
    """Return the most by which a cell differs from the size that its weight asks for."""
    labels = power_cells(problem.costs, weights)
    sizes = np.bincount(labels, problem.shares, len(weights)).astype(np.float64)
    return float(np.abs(problem.wanted(sizes, weights) - sizes).max())


def _newton(
    problem: _Problem, weights: FloatArray, drift: FloatArray, temperature: float
) -> FloatArray:
    """Return weights after damped steps at one temperature; the first trial is ``drift`` away."""
    best = _place(problem, weights, temperature)
    trial = _admitted(problem, weights, drift, np.zeros_like(weights))
    there = _place(problem, trial, temperature)
    best = there if there.value > best.value else best
    damping = _DAMPING
    for _ in range(_STEPS):
        wanted = problem.wanted(best.sizes, best.weights)
        missing = wanted - best.sizes
        ridge = _RIDGE * math.fsum(problem.shares) / len(weights)
        scale = damping * np.maximum(np.maximum(best.sizes, wanted), ridge)
        fixed = (best.weights == 0) & (missing == 0)
        step = _solved(best.pairs, scale, missing, fixed)
        step *= temperature * min(
            1.0, _LONGEST / max(float(np.abs(step).max()), _LONGEST)
        )
        there = _place(
            problem, _admitted(problem, best.weights, step, missing), temperature
        )
        if there.value > best.value:
            best, damping = there, max(damping * _LESS, _LEAST)
        else:
            damping *= _MORE
    return best.weights


def _admitted(
    problem: _Problem, weights: FloatArray, step: FloatArray, missing: FloatArray
) -> FloatArray:
    """Return the weights after a step, in which none changes its sign."""
    moved = np.clip(weights + step, -problem.largest, problem.largest)
    # Equal bounds: a weight of either sign asks for the same size.
    if problem.high - problem.low <= 1:
        return np.asarray(moved)
    # At 0 the bound that a weight stands for changes.
    side = np.where(weights == 0, missing, weights)
    below = np.where(side < 0, np.minimum(moved, 0.0), 0.0)
    return np.where(side > 0, np.maximum(moved, 0.0), below)


def _place(problem: _Problem, weights: FloatArray, temperature: float) -> _Place:
    n, k = problem.costs.shape
    sizes, pairs, values = np.zeros(k), np.zeros((k, k)), np.empty(n)
    rows = max(1, _BLOCK // k)
    for i in range(0, n, rows):
        exponents = weights - problem.costs[i : i + rows]
        top = exponents.max(axis=1)
        # No exponential overflows, and no sum of them is 0.
        exponents -= top[:, None]
        exponents /= temperature
        np.maximum(exponents, _LOWEST, out=exponents)
        parts = np.floor(exponential(exponents) * 2.0**_EXP_BITS + 0.5)
        sums = parts.sum(axis=1)  # of integers
        parts /= sums[:, None]
        values[i : i + rows] = top / temperature + logarithm(sums * 2.0**-_EXP_BITS)
        # Integers, and of at most 2^50 in all: BLAS adds them in any order.
        own = problem.shares[i : i + rows]
        sizes += own @ np.floor(parts * 2.0**_PART_BITS + 0.5)
        rough = np.floor(parts * 2.0**_PAIR_BITS + 0.5)
        pairs += rough.T @ (own[:, None] * rough)
    at_bounds = problem.low * np.maximum(weights, 0.0) + problem.high * np.minimum(
        weights, 0.0
    )
    value = math.fsum(at_bounds) / temperature - math.fsum(problem.shares * values)
    return _Place(weights, value, sizes * 2.0**-_PART_BITS, pairs * 4.0**-_PAIR_BITS)


def _solved(
    pairs: FloatArray, scale: FloatArray, missing: FloatArray, fixed: NDArray[np.bool_]
) -> FloatArray:
    """Return a damped Newton step, in temperatures; 0 where a weight is fixed."""
    right = np.where(fixed, 0.0, missing)
    k = len(right)
    matrix = np.where(fixed[:, None] | fixed, 0.0, -pairs)
    # What a cell loses is what all others gain, so rows of second derivatives sum to 0.
    np.fill_diagonal(matrix, pairs.sum(axis=1) - np.diagonal(pairs) + scale)
    # Gauss's elimination: the matrix is positive definite, so no row is exchanged.
    for i in range(k - 1):
        factors = matrix[i + 1 :, i] / matrix[i, i]
        matrix[i + 1 :, i:] -= factors[:, None] * matrix[i, i:]
        right[i + 1 :] -= factors * right[i]
    for i in range(k - 1, -1, -1):
        right[i] /= matrix[i, i]
        right[:i] -= matrix[:i, i] * right[i]
    return right
