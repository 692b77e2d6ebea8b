"""Mu, epsilon and delta from each other, also with Laplace releases.

mu-GDP is (epsilon, delta)-DP exactly when delta is at least

    delta(epsilon) = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)

(Balle & Wang 2018, Theorem 8; docs/guarantees, Theorem 1). It is
computed with mpmath in as many digits as the cancellation needs: milliseconds once per
plan, and bit for bit the same on all processors, so clients can recompute the plan.
Only the last step rounds to float64, and it errs to the safe side: delta and epsilon
upward, mu downward. Laplace releases are composed with one Gaussian release, which
stands for all of them, by privacy loss distributions: pessimistic ones, so every number
is an upper bound (Doroshenko et al. 2022).
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mpmath

from flower_kmeans.errors import BudgetError, ConfigurationError

# Phi(-40) < 1e-349 is zero in float64.
_UNDERFLOW = 40.0
# Near zero the floats are endless, and no smaller epsilon is told from this one.
_SMALLEST_EPSILON = 2.0**-50
# Steps of the discretised privacy loss per unit of the largest epsilon involved.
_STEPS = 3_000
_MAX_STEP = 1e-2
_MIN_STEP = 1e-7
# Largest privacy loss that is composed numerically. Beyond it e^loss leaves float64's
# range, and an epsilon of thousands would take gigabytes.
_MAX_LOSS = 500.0
# Standard deviations of a privacy loss whose tail beyond them does not matter.
_TAIL = 8.0
# Scales are found on a grid this fine, so that the last bits of the numerical
# composition, which differ between processors, do not reach the noise: clients
# recompute the plan they are sent.
_SCALE_BITS = 16


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the least float64 delta for which mu-GDP is (epsilon, delta)-DP.

    So it is rounded upward, also where it is tiny. One below 1e-349 is 0.
    """
    _check("mu", mu)
    _check("epsilon", epsilon)
    if mu == 0:
        return 0.0
    if epsilon / mu - mu / 2 > _UNDERFLOW:
        return 0.0
    if mu / 2 - epsilon / mu > _UNDERFLOW:
        return 1.0
    # The difference loses about mu^2 / epsilon of its size, or mu at epsilon = 0; the
    # arguments of Phi are squared, which costs their own size twice. The rest is
    # margin.
    digits = 40 + 2 * abs(math.log10(mu))
    digits += 2 * math.log10(1 + epsilon)
    digits += math.log10(2 + mu) * 2
    with mpmath.workdps(int(digits)):
        m = mpmath.mpf(mu)
        e = mpmath.mpf(epsilon)
        with_record = mpmath.ncdf(m / 2 - e / m)
        without = mpmath.ncdf(-m / 2 - e / m)
        value = with_record - mpmath.exp(e) * without
        return min(1.0, max(0.0, _upward(value)))


# A plan, its check and its ledger ask for the same numbers, at tens of milliseconds
# each.
@lru_cache(maxsize=1024)
def mu_of_budget(epsilon: float, delta: float) -> float:
    """Return the largest float64 mu with ``delta_of_mu(mu, epsilon) <= delta``.

    Delta is positive. The Gaussian mechanism with noise multiplier ``1 / mu`` then
    meets the budget (Balle & Wang 2018, Algorithm 1), and the next larger float64
    exceeds it.

    Raises
    ------
    BudgetError
        If delta is 0, which Gaussian noise cannot give.
    """
    _check("epsilon", epsilon)
    _check("delta", delta, below=1.0)
    if delta == 0:
        raise BudgetError(
            "The 'delta' parameter must be positive for Gaussian noise, which is never purely "
            "differentially private. Got 0 instead."
        )
    high = 1.0
    # Both loops end: delta_of_mu runs from 0 to 1 as mu grows, and delta lies strictly
    # between.
    while delta_of_mu(high, epsilon) <= delta:
        high *= 2
    low = high / 2
    while delta_of_mu(low, epsilon) > delta:
        high = low
        low = low / 2
    # The lower end: a mu that is rounded goes towards more noise, an epsilon upward.
    below, _ = _bisected(low, high, lambda mu: delta_of_mu(mu, epsilon) <= delta)
    return below


@lru_cache(maxsize=1024)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the least float64 epsilon with ``delta_of_mu(mu, epsilon) <= delta``.

    One that is positive and below 2^-50 becomes 2^-50. It is infinite when delta is 0
    and mu is not.
    """
    _check("mu", mu)
    _check("delta", delta, below=1.0)
    if delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    high = 1.0
    # It ends, since delta is positive here and delta_of_mu falls to 0.
    while delta_of_mu(mu, high) > delta:
        high *= 2
    low = _SMALLEST_EPSILON
    if delta_of_mu(mu, low) <= delta:
        return low
    _, above = _bisected(low, high, lambda epsilon: delta_of_mu(mu, epsilon) > delta)
    return above


def _bisected(
    low: float, high: float, is_low: Callable[[float], bool]
) -> tuple[float, float]:
    """Return the neighbouring floats around the end of a condition."""
    while low < (middle := low + (high - low) / 2) < high:
        if is_low(middle):
            low = middle
        else:
            high = middle
    return low, high


def _upward(value: Any) -> float:
    """Return the least float64 that is not below a number of mpmath."""
    nearest = float(value)
    # float() rounds to the nearest, and comparisons with a number of mpmath are exact.
    if nearest < value:
        return math.nextafter(nearest, math.inf)
    return nearest


def _check(name: str, value: float, below: float = math.inf) -> None:
    if not 0 <= value < below:
        raise ConfigurationError(
            f"The '{name}' parameter must be at least 0 and below {below:g}. Got {value!r} instead."
        )


def laplace_delta(cost: float, epsilon: float) -> float:
    """Return the least delta of one Laplace release at ``epsilon``.

    Its pure epsilon is ``cost``.
    """
    # 1 - e^((epsilon - cost)/2), exactly (Balle, Barthe & Gaboardi 2018); 0.0 - 0.0 is
    # not -0.0.
    return 0.0 - math.expm1(min(0.0, epsilon - cost) / 2)


def mixture_delta(mu: float, laplace: tuple[float, ...], epsilon: float) -> float:
    """Return a delta that all releases together meet at an epsilon.

    ``mu`` is that of all Gaussian releases, ``laplace`` has each Laplace release's pure
    epsilon. Where the cost is too large to be composed numerically, epsilons are added
    up instead.
    """
    if not laplace:
        return delta_of_mu(mu, epsilon)
    # Basic composition: the Laplace releases use up their epsilons, the Gaussian ones
    # the rest.
    rest = epsilon - math.fsum(laplace)
    if not mu and rest >= 0:
        return 0.0
    if not _is_composable(mu, laplace):
        if rest >= 0:
            return delta_of_mu(mu, rest)
        return 1.0
    return min(1.0, float(_composed(mu, laplace).get_delta_for_epsilon(epsilon)))


def mixture_epsilon(mu: float, laplace: tuple[float, ...], delta: float) -> float:
    """Return an epsilon of all releases together at a delta, or infinity."""
    if not laplace:
        return epsilon_of_mu(mu, delta)
    pure = math.fsum(laplace) if not mu else math.inf
    if delta == 0:
        return pure
    if not _is_composable(mu, laplace):
        return math.fsum(laplace) + epsilon_of_mu(mu, delta)
    return min(pure, float(_composed(mu, laplace).get_epsilon_for_delta(delta)))


def _is_composable(mu: float, laplace: tuple[float, ...]) -> bool:
    """Return whether the numerical composition is small enough to be carried out."""
    gaussian = mu * (mu / 2 + _TAIL)
    squares = [mu * mu, *(cost * cost for cost in laplace)]
    size = math.sqrt(math.fsum(squares))
    # The loss is at most the sum of the epsilons, and hardly ever beyond that of a
    # Gaussian.
    at_most = math.fsum(laplace) + gaussian
    largest = min(at_most, size * (size / 2 + _TAIL))
    return max(largest, gaussian, *laplace) <= _MAX_LOSS


@lru_cache(maxsize=64)
def _composed(mu: float, laplace: tuple[float, ...]) -> Any:
    # A second of import time, which clients (a new process per message) need not pay
    # for plans of Gaussian releases.
    from dp_accounting.pld import privacy_loss_distribution as pld

    # The step follows the size of the typical loss, so that small budgets stay exact
    # and large ones stay cheap.
    squares = [mu * mu, *(cost * cost for cost in laplace)]
    size = math.sqrt(math.fsum(squares))
    step = min(_MAX_STEP, max(_MIN_STEP, size / _STEPS))
    total = None
    # In a fixed order, since the last bits of a composition depend on it.
    for cost, count in sorted(Counter(laplace).items()):
        part = pld.from_laplace_mechanism(1 / cost, value_discretization_interval=step)
        if count > 1:
            part = part.self_compose(count)
        if total is None:
            total = part
        else:
            total = total.compose(part)
    if mu:
        part = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=step)
        if total is None:
            total = part
        else:
            total = total.compose(part)
    return total


def least_scale(excess: Callable[[float], float], low: float, high: float) -> float:
    """Return the least scale that meets a budget.

    Scales are on a grid of relative width 2^-16 or so. ``excess`` gives the part by
    which a scale exceeds the budget: falling, at most 0 where it is met. No scale below
    ``low``, which is positive, meets the budget, and ``high`` does.
    """
    # A power of two, so that every place of the grid is an exact float64.
    step = math.ldexp(1.0, math.frexp(high)[1] - _SCALE_BITS)
    first = max(1, math.floor(low / step))
    last = math.ceil(high / step)
    above = excess(first * step)
    if above <= 0:
        return first * step
    below = excess(last * step)
    turn = 0
    while last - first > 1:
        turn += 1
        middle = (first + last) // 2
        # Epsilon is nearly a line in the inverse of the scale, so interpolation finds
        # the place in a few evaluations, each of which is a numerical composition;
        # every fourth step bisects.
        if turn % 4 and above < math.inf:
            part = above / (above - below)
            place = 1 / ((1 - part) / first + part / last)
            # Towards the farther end, so that both ends close in.
            if 2 * place < first + last:
                middle = math.ceil(place)
            else:
                middle = math.floor(place)
            middle = min(max(middle, first + 1), last - 1)
        value = excess(middle * step)
        if value <= 0:
            last = middle
            below = value
        else:
            first = middle
            above = value
    return last * step
