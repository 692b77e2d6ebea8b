"""Conversions between mu, epsilon and delta, also with Laplace releases.

mu-GDP is (epsilon, delta)-DP exactly when delta is at least

    delta(epsilon) = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)

(Balle & Wang 2018, Theorem 8; docs/guarantees, Theorem 1). It is computed with mpmath
in as many digits as the cancellation needs. This takes milliseconds once per plan, and
the result is bit for bit the same on all processors, so clients can recompute the plan.
Only the last step rounds to float64, to the safe side: delta and epsilon upward, mu
downward. Laplace releases are composed numerically with one Gaussian release, which
stands for all Gaussian releases. The composition uses pessimistic privacy loss
distributions, so every result is an upper bound (Doroshenko et al. 2022).
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
# A search towards zero would visit very many floats, so it stops here.
_SMALLEST_EPSILON = 2.0**-50
# Steps of the discretised privacy loss per unit of the largest epsilon involved.
_STEPS = 3_000
_MAX_STEP = 1e-2
_MIN_STEP = 1e-7
# Largest privacy loss that is composed numerically. A larger loss takes e^loss out of
# float64's range, and an epsilon of thousands would take gigabytes.
_MAX_LOSS = 500.0
# Standard deviations of a privacy loss. The tail beyond them does not matter.
_TAIL = 8.0
# Relative bits of the grid on which scales are found. The last bits of the numerical
# composition differ between processors. They must not reach the noise, because clients
# recompute the plan that they receive.
_SCALE_BITS = 16


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the least float64 delta for which mu-GDP is (epsilon, delta)-DP.

    It is rounded upward, even if it is tiny. A delta below 1e-349 is 0.
    """
    _check("mu", mu)
    _check("epsilon", epsilon)
    if mu == 0:
        return 0.0
    if epsilon / mu - mu / 2 > _UNDERFLOW:
        return 0.0
    if mu / 2 - epsilon / mu > _UNDERFLOW:
        return 1.0
    # The difference cancels to a fraction mu^2 / epsilon of its terms, or mu at
    # epsilon = 0. The arguments of Phi are squared, which costs digits for their size
    # twice. The other digits are a margin.
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


# A plan, its check and its ledger need the same numbers, which take tens of
# milliseconds each.
@lru_cache(maxsize=1024)
def mu_of_budget(epsilon: float, delta: float) -> float:
    """Return the largest float64 mu with ``delta_of_mu(mu, epsilon) <= delta``.

    The Gaussian mechanism with noise multiplier ``1 / mu`` then meets the budget
    (Balle & Wang 2018, Algorithm 1). The next larger float64 mu would exceed it.

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
    # Both loops end: delta_of_mu grows from 0 to 1 with mu, and delta lies strictly
    # between.
    while delta_of_mu(high, epsilon) <= delta:
        high *= 2
    low = high / 2
    while delta_of_mu(low, epsilon) > delta:
        high = low
        low = low / 2
    # The lower end is the safe one: a smaller mu means more noise.
    below, _ = _bisected(low, high, lambda mu: delta_of_mu(mu, epsilon) <= delta)
    return below


@lru_cache(maxsize=1024)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the least float64 epsilon with ``delta_of_mu(mu, epsilon) <= delta``.

    A positive epsilon below 2^-50 becomes 2^-50. Epsilon is infinite if delta is 0 and
    mu is not.
    """
    _check("mu", mu)
    _check("delta", delta, below=1.0)
    if delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    high = 1.0
    # The loop ends: delta is positive here, and delta_of_mu falls to 0.
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
    """Return the last float for which ``is_low`` holds, and the next float.

    It holds at ``low``, not at ``high``, and changes once between them.
    """
    while low < (middle := low + (high - low) / 2) < high:
        if is_low(middle):
            low = middle
        else:
            high = middle
    return low, high


def _upward(value: Any) -> float:
    """Return the least float64 that is not below an mpmath number."""
    nearest = float(value)
    # float() rounds to the nearest. Comparisons with an mpmath number are exact.
    if nearest < value:
        return math.nextafter(nearest, math.inf)
    return nearest


def _check(name: str, value: float, below: float = math.inf) -> None:
    if not 0 <= value < below:
        raise ConfigurationError(
            f"The '{name}' parameter must be at least 0 and below {below:g}. Got {value!r} instead."
        )


def laplace_delta(cost: float, epsilon: float) -> float:
    """Return the least delta at ``epsilon`` of one Laplace release.

    ``cost`` is the pure epsilon of the release.
    """
    # 1 - e^((epsilon - cost)/2), exactly (Balle, Barthe & Gaboardi 2018). The
    # subtraction from 0.0 avoids -0.0.
    return 0.0 - math.expm1(min(0.0, epsilon - cost) / 2)


def mixture_delta(mu: float, laplace: tuple[float, ...], epsilon: float) -> float:
    """Return a delta that all releases together meet at an epsilon.

    Parameters
    ----------
    mu : float
        The joint mu of all Gaussian releases, or 0 if there are none.
    laplace : tuple of float
        The pure epsilon of each Laplace release. If the cost is too large for the
        numerical composition, these are added up.
    epsilon : float
    """
    if not laplace:
        return delta_of_mu(mu, epsilon)
    # Basic composition: the Laplace releases spend their pure epsilons, and the
    # Gaussian releases spend the rest.
    rest = epsilon - math.fsum(laplace)
    if not mu and rest >= 0:
        return 0.0
    if not _is_composable(mu, laplace):
        if rest >= 0:
            return delta_of_mu(mu, rest)
        return 1.0
    return min(1.0, float(_composed(mu, laplace).get_delta_for_epsilon(epsilon)))


def mixture_epsilon(mu: float, laplace: tuple[float, ...], delta: float) -> float:
    """Return an epsilon that all releases together meet at a delta, or infinity.

    ``mu`` and ``laplace`` are those of `mixture_delta`.
    """
    if not laplace:
        return epsilon_of_mu(mu, delta)
    pure = math.fsum(laplace) if not mu else math.inf
    if delta == 0:
        return pure
    if not _is_composable(mu, laplace):
        return math.fsum(laplace) + epsilon_of_mu(mu, delta)
    return min(pure, float(_composed(mu, laplace).get_epsilon_for_delta(delta)))


def _is_composable(mu: float, laplace: tuple[float, ...]) -> bool:
    """Return whether the privacy losses are small enough for numerical composition."""
    gaussian = mu * (mu / 2 + _TAIL)
    squares = [mu * mu, *(cost * cost for cost in laplace)]
    size = math.sqrt(math.fsum(squares))
    # The loss is at most the sum of the epsilons. It hardly ever exceeds the loss of a
    # Gaussian release of the same size.
    at_most = math.fsum(laplace) + gaussian
    largest = min(at_most, size * (size / 2 + _TAIL))
    return max(largest, gaussian, *laplace) <= _MAX_LOSS


@lru_cache(maxsize=64)
def _composed(mu: float, laplace: tuple[float, ...]) -> Any:
    # The import takes a second. Clients start a process per message and do not need it
    # for plans of Gaussian releases.
    from dp_accounting.pld import privacy_loss_distribution as pld

    # The step is proportional to the typical loss, so small budgets stay exact and
    # large budgets stay cheap.
    squares = [mu * mu, *(cost * cost for cost in laplace)]
    size = math.sqrt(math.fsum(squares))
    step = min(_MAX_STEP, max(_MIN_STEP, size / _STEPS))
    total = None
    # The order is fixed, because the last bits of a composition depend on it.
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
    """Return the least scale that meets a budget, on a grid of relative step 2^-16.

    Parameters
    ----------
    excess : callable
        Returns the fraction by which a scale exceeds the budget. It falls with the
        scale, and is at most 0 if the scale meets the budget.
    low, high : float
        Positive. No scale below ``low`` meets the budget, and ``high`` meets it.
    """
    # The step is a power of two, so every scale of the grid is an exact float64.
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
        # Each evaluation is a numerical composition. Epsilon is nearly linear in the
        # inverse of the scale, so interpolation needs few of them. Every fourth step
        # bisects.
        if turn % 4 and above < math.inf:
            part = above / (above - below)
            place = 1 / ((1 - part) / first + part / last)
            # Rounding goes towards the farther end, so both ends close in.
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
