"""Weights of a power diagram that give the cells of weighted points their sizes.

They maximise a dual (docs/guarantees, Theorem 27), by damped Newton
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
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import squared_norms
from flower_kmeans.threads import single_threaded_blas

# last temperature, over the square of the mean distance to the nearest centre
COLDEST = 2.0**-9
# first temperature, over the mean squared distance to the farthest centre
HOTTEST = 2.0**-3
AIM_STEPS = 6  # how often weights and centres are found in turn, at the start

# of the temperature, and Newton's steps at each
_FALLS = 16
_STEPS = 3
# the last ones, two at once, where there are weights to start from
_LATER_FALLS = 12
_SKIPPED = 2
_MASS_BITS = 26  # of all masses, in sums of parts
# of exponentials, parts, and products of parts
_EXP_BITS = 30
_PART_BITS = 22
_PAIR_BITS = 12
_LOWEST = -40.0  # an exponent below counts as it
_BLOCK = 2**15  # of costs, which a processor's cache holds
_DAMPING = 2.0**-6
_LESS = 0.125
_MORE = 8.0
_LEAST = 2.0**-20
_RIDGE = 2.0**-6  # of an equal size: an empty cell's size in the damping
_LONGEST = 20.0  # step of a weight, in temperatures
# points, of those on which centres move at first
_MOST_APART = 4
_FEWEST_PER_CENTER = 50
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
    if min_size > 0:
        low = min(min_size + noise, equal - noise)
    else:
        low = 0.0
    if max_size < n_records:
        high = max(max_size - noise, equal + noise)
    else:
        high = float(n_records)
    low_share = max(low, 0.0) / n_records
    high_share = min(high, float(n_records)) / n_records
    return low_share, high_share


def constrained_centers(
    points: IntArray,
    masses: IntArray,
    starts: IntArray,
    low: float,
    high: float,
    n_steps: int = AIM_STEPS,
) -> ConstrainedCenters:
    """Return centres and weights after steps of k-means with bounds on cells' sizes.

    A step finds weights, and moves each centre to the mean of its cell; one whose cell
    is empty stays. Of starts (m, k, p), the one with the least cost after these steps
    takes one more. Where there are many points (n, p) for each centre, the other steps
    are on every second to fourth.
    """
    n_clusters = starts.shape[1]
    most_apart = len(points) // (_FEWEST_PER_CENTER * n_clusters)
    apart = max(1, min(_MOST_APART, most_apart))
    some_points = points[::apart]
    some_masses = masses[::apart]
    found = []
    for centers in starts:
        moved = _moved(some_points, some_masses, centers, None, low, high, n_steps)
        found.append(moved)
    best = min(found, key=lambda one: one.cost)  # of equal costs the first
    return _moved(points, masses, best.points, best.weights, low, high, 1)


def squared_distances(points: IntArray, centers: IntArray) -> FloatArray:
    """Return the exact squared distances (n, k) of points (n, p) to centres (k, p).

    Coordinates are integers of at most B in absolute value, with ``4 p B**2 <= 2**53``.
    """
    first = points.astype(np.float64)
    second = centers.astype(np.float64)
    with single_threaded_blas():
        found: FloatArray = first @ (-2 * second.T)
    found += squared_norms(first)[:, None]
    found += squared_norms(second)
    return found


def power_cells(costs: FloatArray, weights: IntArray | FloatArray) -> IntArray:
    """Return each point's cell (n,): the first with the least cost minus weight."""
    n, k = costs.shape
    labels = np.empty(n, dtype=np.int64)
    rows = max(1, _BLOCK // k)
    for i in range(0, n, rows):
        block = costs[i : i + rows]
        labels[i : i + rows] = (block - weights).argmin(axis=1)
    return labels


def cell_sizes(masses: IntArray, labels: IntArray, n_clusters: int) -> FloatArray:
    """Return the sums of masses (k,) by cell: integers below 2^53."""
    return np.bincount(labels, masses, n_clusters).astype(np.float64)


def rake(
    masses: IntArray, labels: IntArray, counts: FloatArray, gain: float
) -> IntArray:
    """Return masses (n,), below 2^52 in all, with cells nearer to noisy sizes (k,).

    They come nearer by ``gain`` of the way, in [0, 1]. A point without mass stays so.
    """
    have = cell_sizes(masses, labels, len(counts))
    aimed = have + gain * (counts - have)
    wanted = np.maximum(aimed, _LEAST_SIZE * have)
    factors = np.clip(wanted / np.maximum(have, 1.0), *_CHANGES)
    most = _MOST_MASS // len(masses)
    changed = masses * factors[labels] + 0.5
    raked = np.floor(np.minimum(changed, most)).astype(np.int64)
    # Factors could never bring back a mass of 0.
    return np.maximum(raked, masses > 0)


def refinement_gain(counts: FloatArray, have: FloatArray, noise: float) -> float:
    """Return the part of the way from the model's sizes to a refinement's counts (k,).

    ``noise`` is the standard deviation of a count, above 0.
    """
    # The part of the difference that noise does not explain, at least a fifth.
    square = noise * noise
    seen = _mean_square(counts - have)
    real = max(seen - square, square / 4)
    return real / max(seen, 1.25 * square)


def sizing_gain(
    counts: FloatArray, have: FloatArray, noise: float, variance: float
) -> tuple[float, float]:
    """Return the part of the way to a sizing round's counts, and the variance after it.

    ``variance`` is that of the model's sizes after the sizing round before.
    """
    square = noise * noise
    seen = _mean_square(counts - have)
    prior = max(seen - square, variance)
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
    """Return weights (k,) that keep every cell's share of the masses within bounds.

    Of the weights at all temperatures those are returned whose cells, without parts,
    miss least of their wanted sizes: ``low`` of all masses where the weight is
    positive, ``high`` where it is negative, and a share between both where it is 0.
    They are at most the largest cost in absolute value.

    Costs (n, k) are as `squared_distances` returns them, masses (n,) at least 0 and
    below 2^62 in all, where all are 0 alike; ``k low <= 1 <= k high``. With weights to
    ``start`` from, temperatures start lower.
    """
    k = costs.shape[1]
    shares = _shares(masses)
    total = int(shares.sum())
    largest = float(costs.max())
    problem = _Problem(
        costs=costs,
        shares=shares.astype(np.float64),
        low=float(math.floor(low * total)),
        high=float(min(math.ceil(high * total), total)),
        largest=largest,
    )
    temperatures = _temperatures(problem)
    weights = np.zeros(k)
    drift = np.zeros(k)
    if start is not None:
        temperatures = temperatures[-_LATER_FALLS - 1 :: _SKIPPED]
        weights = np.clip(start.astype(np.float64), -largest, largest)
    fall = temperatures[1] / temperatures[0]
    best = weights
    missed = _missed(problem, weights)
    with single_threaded_blas():
        for temperature in temperatures:
            before = weights
            weights = _newton(problem, weights, drift, temperature)
            # Weights change about as the temperature does.
            drift = fall * (weights - before)
            found = np.floor(weights + 0.5)
            misses = _missed(problem, found)
            if misses <= missed:
                best = found
                missed = misses
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
        """Return the wanted sizes of cells: at a bound where there is a weight."""
        within = np.clip(sizes, self.low, self.high)
        from_above = np.where(weights < 0, self.high, within)
        return np.where(weights > 0, self.low, from_above)


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
    """Return centres after steps, and their weights."""
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
    """Return masses without their last bits: 26 are left of all of them together."""
    ones = np.ones(len(masses), dtype=np.int64)
    masses = masses if masses.any() else ones
    shift = max(0, int(masses.sum()).bit_length() - _MASS_BITS)
    # Half of the last kept bit is added, so masses are rounded to the nearest.
    found: IntArray = (masses + (1 << shift >> 1)) >> shift
    return found if found.any() else ones


def _temperatures(problem: _Problem) -> list[float]:
    """Return temperatures that fall by equal factors."""
    costs = problem.costs
    shares = problem.shares
    total = math.fsum(shares)
    # The last one follows distances, not their squares: of these, few points far out
    # have most.
    nearest = np.sqrt(costs.min(axis=1))
    near = math.fsum(shares * nearest) / total
    far = math.fsum(shares * costs.max(axis=1)) / total
    first = max(HOTTEST * far, 0.25)
    last = max(COLDEST * near * near, COLDEST * COLDEST * far, 0.25)
    fall = last / first
    # The sixteenth root, by square roots, which are rounded alike everywhere.
    for _ in range(_FALLS.bit_length() - 1):
        fall = math.sqrt(fall)
    return [first * math.prod([fall] * i) for i in range(_FALLS + 1)]


def _missed(problem: _Problem, weights: FloatArray) -> float:
    """Return the largest difference of a cell's size from its wanted size."""
    labels = power_cells(problem.costs, weights)
    sizes = np.bincount(labels, problem.shares, len(weights)).astype(np.float64)
    differences = problem.wanted(sizes, weights) - sizes
    return float(np.abs(differences).max())


def _newton(
    problem: _Problem, weights: FloatArray, drift: FloatArray, temperature: float
) -> FloatArray:
    """Return weights after damped steps at one temperature.

    The first trial is ``drift`` away.
    """
    best = _place(problem, weights, temperature)
    trial = _admitted(problem, weights, drift, np.zeros_like(weights))
    there = _place(problem, trial, temperature)
    if there.value > best.value:
        best = there
    damping = _DAMPING
    for _ in range(_STEPS):
        wanted = problem.wanted(best.sizes, best.weights)
        missing = wanted - best.sizes
        ridge = _RIDGE * math.fsum(problem.shares) / len(weights)
        scale = damping * np.maximum(np.maximum(best.sizes, wanted), ridge)
        fixed = (best.weights == 0) & (missing == 0)
        step = _solved(best.pairs, scale, missing, fixed)
        longest = max(float(np.abs(step).max()), _LONGEST)
        step *= temperature * min(1.0, _LONGEST / longest)
        trial = _admitted(problem, best.weights, step, missing)
        there = _place(problem, trial, temperature)
        if there.value > best.value:
            best = there
            damping = max(damping * _LESS, _LEAST)
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
    """Return the soft dual at some weights and a temperature."""
    n, k = problem.costs.shape
    sizes = np.zeros(k)
    pairs = np.zeros((k, k))
    values = np.empty(n)
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
        logarithms = logarithm(sums * 2.0**-_EXP_BITS)
        values[i : i + rows] = top / temperature + logarithms
        # Integers, and of at most 2^50 in all: BLAS adds them in any order.
        own = problem.shares[i : i + rows]
        sizes += own @ np.floor(parts * 2.0**_PART_BITS + 0.5)
        rough = np.floor(parts * 2.0**_PAIR_BITS + 0.5)
        pairs += rough.T @ (own[:, None] * rough)
    at_low = problem.low * np.maximum(weights, 0.0)
    at_high = problem.high * np.minimum(weights, 0.0)
    at_bounds = math.fsum(at_low + at_high) / temperature
    value = at_bounds - math.fsum(problem.shares * values)
    return _Place(weights, value, sizes * 2.0**-_PART_BITS, pairs * 4.0**-_PAIR_BITS)


def _solved(
    pairs: FloatArray, scale: FloatArray, missing: FloatArray, fixed: NDArray[np.bool_]
) -> FloatArray:
    """Return a damped Newton step, in temperatures; 0 where a weight is fixed."""
    right = np.where(fixed, 0.0, missing)
    k = len(right)
    matrix = np.where(fixed[:, None] | fixed, 0.0, -pairs)
    # All others gain what a cell loses, so rows of second derivatives sum to 0.
    diagonal = pairs.sum(axis=1) - np.diagonal(pairs) + scale
    np.fill_diagonal(matrix, diagonal)
    # Gauss's elimination: the matrix is positive definite, so no row is exchanged.
    for i in range(k - 1):
        factors = matrix[i + 1 :, i] / matrix[i, i]
        matrix[i + 1 :, i:] -= factors[:, None] * matrix[i, i:]
        right[i + 1 :] -= factors * right[i]
    for i in range(k - 1, -1, -1):
        right[i] /= matrix[i, i]
        right[:i] -= matrix[:i, i] * right[i]
    return right
