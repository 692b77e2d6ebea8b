"""Weights of a power diagram whose cells of weighted points have wanted sizes.

The weights maximise a dual (docs/guarantees, Theorem 27). The method is damped Newton
steps on a soft minimum with falling temperature (Kitagawa, Merigot & Thibert,
Convergence of a Newton algorithm for semi-discrete optimal transport, 2019). Bounds are
fractions of the sum of all masses, so they can be kept for any noisy masses. All
clients of an oblivious server must agree bit for bit. So all numbers are integers or
results of elementwise operations that IEEE 754 rounds correctly, sums are exact, and
sizes alone decide the number of steps.
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
AIM_STEPS = 6  # steps at the start, each of which finds weights and moves centres

_FALLS = 16  # how often the temperature falls
_STEPS = 3  # Newton's steps at each temperature
# With weights to start from, only the last falls are made, every second of them.
_LATER_FALLS = 12
_SKIPPED = 2
_MASS_BITS = 26  # bits of the sum of all masses
# fractional bits of exponentials, of parts, and of parts for their products
_EXP_BITS = 30
_PART_BITS = 22
_PAIR_BITS = 12
_LOWEST = -40.0  # lower exponents are replaced by this
_BLOCK = 2**15  # costs in memory at a time, few enough for a cache
_DAMPING = 2.0**-6  # at the first step of a temperature
_LESS = 0.125  # factor of the damping after a step that gains
_MORE = 8.0  # factor of the damping after a step that does not
_LEAST = 2.0**-20  # least damping
_RIDGE = 2.0**-6  # size of an empty cell in the damping, over the mean size
_LONGEST = 20.0  # longest step of a weight, in temperatures
# The first steps use every second to fourth point, if enough are left for each centre.
_MOST_APART = 4
_FEWEST_PER_CENTER = 50
_MOST_MASS = 2**52  # largest sum of masses: sums are exact in float64
_CHANGES = 0.1, 10.0  # least and largest factor of a point's mass in a round
_LEAST_SIZE = 0.02  # least wanted size of a cell, over its size before


class ConstrainedCenters(NamedTuple):
    """Centres of a k-means with bounds on the sizes of cells.

    Attributes
    ----------
    points : ndarray of shape (k, p), int64
        The centres, in grid units.
    weights : ndarray of shape (k,), int64
        Weights of the power diagram, in squared grid units.
    cost : float
        Sum of masses times squared distances to the centres of their cells.
    """

    points: IntArray
    weights: IntArray
    cost: float


def aim(
    min_size: int, max_size: int, noise: float, n_records: int, n_clusters: int
) -> tuple[float, float]:
    """Return the lower and upper bound to aim at, as fractions of all records.

    They lie inside the given bounds by ``noise``, the standard deviation of a size's
    noise in records. They stay as far from equal sizes, which would fit noise. Without
    a bound, ``min_size`` is 0 and ``max_size`` is ``n_records``.
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

    A step finds weights, and moves each centre to the mean of its cell. A centre with
    an empty cell does not move. After ``n_steps`` the start with the least cost takes
    one more step. With many points for each centre, the first steps use every second to
    fourth point.

    Parameters
    ----------
    points : ndarray of shape (n, p), int64
    masses : ndarray of shape (n,), int64
    starts : ndarray of shape (m, k, p), int64
        The centres of each start.
    low, high : float
        Bounds on a cell's fraction of all masses.
    n_steps : int
        Number of steps of each start.
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
    """Return the exact squared distances, (n, k), of points, (n, p), to centres, (k, p).

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
    """Return each point's cell, (n,): the first with the least cost minus weight."""
    n, k = costs.shape
    labels = np.empty(n, dtype=np.int64)
    rows = max(1, _BLOCK // k)
    for i in range(0, n, rows):
        block = costs[i : i + rows]
        labels[i : i + rows] = (block - weights).argmin(axis=1)
    return labels


def cell_sizes(masses: IntArray, labels: IntArray, n_clusters: int) -> FloatArray:
    """Return the sums of masses by cell, (k,): integers below 2^53 in float64."""
    return np.bincount(labels, masses, n_clusters).astype(np.float64)


def rake(
    masses: IntArray, labels: IntArray, counts: FloatArray, gain: float
) -> IntArray:
    """Return masses, (n,), changed so that cells' sizes come nearer to noisy sizes.

    ``counts``, (k,), are the noisy sizes, and ``gain`` in [0, 1] is the fraction of the
    way. The sum of masses stays below 2^52. A mass of 0 stays 0.
    """
    have = cell_sizes(masses, labels, len(counts))
    aimed = have + gain * (counts - have)
    wanted = np.maximum(aimed, _LEAST_SIZE * have)
    factors = np.clip(wanted / np.maximum(have, 1.0), *_CHANGES)
    most = _MOST_MASS // len(masses)
    changed = masses * factors[labels] + 0.5
    raked = np.floor(np.minimum(changed, most)).astype(np.int64)
    # No factor could restore a mass of 0, so positive masses stay positive.
    return np.maximum(raked, masses > 0)


def refinement_gain(counts: FloatArray, have: FloatArray, noise: float) -> float:
    """Return the gain, for `rake`, from the model's sizes to a refinement's counts.

    ``counts`` and ``have``, (k,), are the noisy counts and the model's sizes. ``noise``
    is the standard deviation of a count, above 0.
    """
    # The gain is the fraction of the difference that noise does not explain, at least a
    # fifth.
    square = noise * noise
    seen = _mean_square(counts - have)
    real = max(seen - square, square / 4)
    return real / max(seen, 1.25 * square)


def sizing_gain(
    counts: FloatArray, have: FloatArray, noise: float, variance: float
) -> tuple[float, float]:
    """Return the gain, for `rake`, to a sizing round's counts, and the variance after it.

    ``variance`` is the variance of the model's sizes after the sizing round before.
    """
    square = noise * noise
    seen = _mean_square(counts - have)
    prior = max(seen - square, variance)
    # This is Kalman's filter for one number.
    gain = prior / (prior + square)
    return gain, gain * square


def power_weights(
    costs: FloatArray,
    masses: IntArray,
    low: float,
    high: float,
    start: IntArray | None = None,
) -> IntArray:
    """Return weights, (k,), that keep every cell's fraction of the masses within bounds.

    A cell with a positive weight should have the size ``low``, one with a negative
    weight ``high``, and one with weight 0 a size between both. The weights of all
    temperatures are compared, and those with the least difference from these sizes are
    returned. Weights are at most the largest cost in absolute value.

    Parameters
    ----------
    costs : ndarray of shape (n, k)
        Results of `squared_distances`.
    masses : ndarray of shape (n,), int64
        At least 0, with a sum below 2^62. If all are 0, all points count alike.
    low, high : float
        Bounds on a cell's fraction of all masses, with ``k low <= 1 <= k high``.
    start : ndarray of shape (k,), int64, optional
        Weights to start from. Temperatures then start lower.
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
            # Weights change about in proportion to the temperature.
            drift = fall * (weights - before)
            found = np.floor(weights + 0.5)
            misses = _missed(problem, found)
            if misses <= missed:
                best = found
                missed = misses
    return best.astype(np.int64)


# --------------------------------------------------------------------------- details


class _Problem(NamedTuple):
    """The inputs of a search for weights.

    Attributes
    ----------
    costs : ndarray of shape (n, k)
        Squared distances of points to centres.
    shares : ndarray of shape (n,)
        Masses as integers whose sum has about 26 bits.
    low, high : float
        Bounds on a cell's size, as integers of the same kind.
    largest : float
        Largest absolute value of a weight.
    """

    costs: FloatArray
    shares: FloatArray
    low: float
    high: float
    largest: float

    def wanted(self, sizes: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the wanted sizes of cells, (k,): a bound if the weight is not 0."""
        within = np.clip(sizes, self.low, self.high)
        from_above = np.where(weights < 0, self.high, within)
        return np.where(weights > 0, self.low, from_above)


class _Place(NamedTuple):
    """The soft dual at given weights and its derivatives.

    Attributes
    ----------
    weights : ndarray of shape (k,)
    value : float
        The dual divided by the temperature.
    sizes : ndarray of shape (k,)
        Soft sizes of the cells.
    pairs : ndarray of shape (k, k)
        Sums of masses times the parts of two cells. Beside the diagonal they are minus
        the second derivatives.
    """

    weights: FloatArray
    value: float
    sizes: FloatArray
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
    """Return the centres after ``n_steps``, with the weights and the cost for them."""
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
    """Return masses without last bits, so that their sum has about 26 bits."""
    ones = np.ones(len(masses), dtype=np.int64)
    masses = masses if masses.any() else ones
    shift = max(0, int(masses.sum()).bit_length() - _MASS_BITS)
    # Half of the last kept bit is added, so masses are rounded to nearest.
    found: IntArray = (masses + (1 << shift >> 1)) >> shift
    return found if found.any() else ones


def _temperatures(problem: _Problem) -> list[float]:
    """Return the temperatures, which fall by equal factors."""
    costs = problem.costs
    shares = problem.shares
    total = math.fsum(shares)
    # The last temperature uses distances and not their squares, because a few far
    # points have most of the sum of squares.
    nearest = np.sqrt(costs.min(axis=1))
    near = math.fsum(shares * nearest) / total
    far = math.fsum(shares * costs.max(axis=1)) / total
    first = max(HOTTEST * far, 0.25)
    last = max(COLDEST * near * near, COLDEST * COLDEST * far, 0.25)
    fall = last / first
    # This is the sixteenth root. All processors round square roots alike.
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
    """Return weights after damped Newton steps at one temperature.

    The first trial is ``drift`` away from ``weights``.
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
    """Return the weights after a step. A weight that would change its sign becomes 0."""
    moved = np.clip(weights + step, -problem.largest, problem.largest)
    # With equal bounds a weight of either sign wants the same size.
    if problem.high - problem.low <= 1:
        return np.asarray(moved)
    # The sign of a weight says which bound its cell has. At 0 the missing size decides.
    side = np.where(weights == 0, missing, weights)
    below = np.where(side < 0, np.minimum(moved, 0.0), 0.0)
    return np.where(side > 0, np.maximum(moved, 0.0), below)


def _place(problem: _Problem, weights: FloatArray, temperature: float) -> _Place:
    """Return the soft dual at given weights and a temperature."""
    n, k = problem.costs.shape
    sizes = np.zeros(k)
    pairs = np.zeros((k, k))
    values = np.empty(n)
    rows = max(1, _BLOCK // k)
    for i in range(0, n, rows):
        exponents = weights - problem.costs[i : i + rows]
        top = exponents.max(axis=1)
        # With the largest exponent at 0 no exponential overflows, and no sum is 0.
        exponents -= top[:, None]
        exponents /= temperature
        np.maximum(exponents, _LOWEST, out=exponents)
        parts = np.floor(exponential(exponents) * 2.0**_EXP_BITS + 0.5)
        sums = parts.sum(axis=1)  # exact, because parts are integers
        parts /= sums[:, None]
        logarithms = logarithm(sums * 2.0**-_EXP_BITS)
        values[i : i + rows] = top / temperature + logarithms
        # These are integers with sums of at most 2^50, so BLAS adds them exactly.
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
    """Return a damped Newton step, in temperatures. It is 0 for fixed weights."""
    right = np.where(fixed, 0.0, missing)
    k = len(right)
    matrix = np.where(fixed[:, None] | fixed, 0.0, -pairs)
    # The other cells gain all that a cell loses, so rows of second derivatives sum to
    # 0.
    diagonal = pairs.sum(axis=1) - np.diagonal(pairs) + scale
    np.fill_diagonal(matrix, diagonal)
    # Gauss's elimination needs no exchange of rows, because the matrix is positive
    # definite.
    for i in range(k - 1):
        factors = matrix[i + 1 :, i] / matrix[i, i]
        matrix[i + 1 :, i:] -= factors[:, None] * matrix[i, i:]
        right[i + 1 :] -= factors * right[i]
    for i in range(k - 1, -1, -1):
        right[i] /= matrix[i, i]
        right[:i] -= matrix[:i, i] * right[i]
    return right
