"""Gaussian differential privacy in closed form: mu, epsilon and delta from each other.

The Gaussian mechanism with l2 sensitivity D and standard deviation s is exactly mu-GDP with
mu = D / s, Gaussian releases compose to the root of the sum of their squares, and mu-GDP is
(epsilon, delta)-DP exactly when delta >= delta(epsilon),

    delta(epsilon) = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2)

(Balle & Wang 2018, Theorem 8 and Algorithm 1; Dong, Roth & Su 2022, Corollary 2.13;
docs/guarantees: Neighbours, budget, delta).

Everything is computed with mpmath in as many digits as the cancellation needs. It costs
milliseconds once per plan, and makes the noise scales bit for bit equal on all processors, so that
a client can recompute the plan that a server states.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import mpmath

from flower_kmeans.errors import BudgetError, ConfigurationError

# Phi(-40) < 1e-349 is zero in float64.
_UNDERFLOW = 40.0
_SMALLEST_MU = 1e-150


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the least delta for which mu-GDP is (epsilon, delta)-DP.

    It is correct to float64's precision, also where it is tiny.
    """
    _check("mu", mu)
    _check("epsilon", epsilon)
    if mu < _SMALLEST_MU:
        # delta <= mu / sqrt(2 pi), below anything a budget can name.
        return 0.0
    if epsilon / mu - mu / 2 > _UNDERFLOW:
        return 0.0
    if mu / 2 - epsilon / mu > _UNDERFLOW:
        return 1.0
    # The difference loses about mu^2 / epsilon of its size, or mu at epsilon = 0; the arguments
    # of Phi are squared, which costs their own size twice. The rest is margin.
    digits = 40 + 2 * abs(math.log10(mu)) + 2 * math.log10(1 + epsilon) + math.log10(2 + mu) * 2
    with mpmath.workdps(int(digits)):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        value = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        return min(1.0, max(0.0, float(value)))


@lru_cache(maxsize=1024)
def mu_of_budget(epsilon: float, delta: float) -> float:
    """Return the largest float64 mu with ``delta_of_mu(mu, epsilon) <= delta``, for positive delta.

    The Gaussian mechanism with noise multiplier ``1 / mu`` then meets the budget exactly
    (Balle & Wang 2018, Algorithm 1).

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
    while delta_of_mu(high, epsilon) <= delta:
        high *= 2
    low = high / 2
    while delta_of_mu(low, epsilon) > delta:
        low, high = low / 2, low
    return _bisected(low, high, lambda mu: delta_of_mu(mu, epsilon) <= delta)[0]


@lru_cache(maxsize=1024)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the least float64 epsilon with ``delta_of_mu(mu, epsilon) <= delta``.

    It is infinite when delta is 0 and mu is not.
    """
    _check("mu", mu)
    _check("delta", delta, below=1.0)
    if delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    high = 1.0
    while delta_of_mu(mu, high) > delta:
        high *= 2
    # Near zero the floats are endless; epsilon is not needed to more than 1e-15.
    return _bisected(0.0, high, lambda epsilon: delta_of_mu(mu, epsilon) > delta, 1e-15)[1]


def _bisected(
    low: float, high: float, is_low: Callable[[float], bool], width: float = 0.0
) -> tuple[float, float]:
    """Return neighbouring floats, or two that are so near, around the end of a condition."""
    while high - low > width and low < (middle := low + (high - low) / 2) < high:
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low, high


def _check(name: str, value: float, below: float = math.inf) -> None:
    if not 0 <= value < below:
        raise ConfigurationError(
            f"The '{name}' parameter must be at least 0 and below {below:g}. Got {value!r} instead."
        )
