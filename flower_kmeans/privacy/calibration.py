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
from functools import lru_cache

import mpmath

from flower_kmeans.errors import BudgetError, ConfigurationError

# Phi(-40) < 1e-349 is zero in float64.
_UNDERFLOW = 40.0
_SMALLEST_MU = 1e-150


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Return the least delta for which mu-GDP is (epsilon, delta)-DP.

    Parameters
    ----------
    mu : float
        At least 0.
    epsilon : float
        At least 0.

    Returns
    -------
    float
        In [0, 1], correct to float64's precision, also where it is tiny.

    Raises
    ------
    ConfigurationError
        If an argument is negative or not finite.
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
    """Return the largest mu that (epsilon, delta) allows.

    The Gaussian mechanism with noise multiplier ``1 / mu`` then meets the budget exactly
    (Balle & Wang 2018, Algorithm 1).

    Parameters
    ----------
    epsilon : float
        At least 0.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        The largest float64 with ``delta_of_mu(mu, epsilon) <= delta``.

    Raises
    ------
    BudgetError
        If delta is 0, which Gaussian noise cannot give.
    ConfigurationError
        If an argument is out of range.
    """
    _check("epsilon", epsilon)
    _check("delta", delta)
    if delta == 0:
        raise BudgetError(
            "The 'delta' parameter must be positive for Gaussian noise, which is never purely "
            "differentially private. Got 0 instead."
        )
    if delta >= 1:
        raise ConfigurationError(f"The 'delta' parameter must be below 1. Got {delta!r} instead.")
    high = 1.0
    while delta_of_mu(high, epsilon) <= delta:
        high *= 2
    low = high / 2
    while delta_of_mu(low, epsilon) > delta:
        low, high = low / 2, low
    while low < (middle := low + (high - low) / 2) < high:
        if delta_of_mu(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=1024)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the least epsilon for which mu-GDP is (epsilon, delta)-DP.

    Parameters
    ----------
    mu : float
        At least 0.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        The least float64 with ``delta_of_mu(mu, epsilon) <= delta``; infinity when delta is 0
        and mu is not.

    Raises
    ------
    ConfigurationError
        If an argument is out of range.
    """
    _check("mu", mu)
    _check("delta", delta)
    if delta >= 1:
        raise ConfigurationError(f"The 'delta' parameter must be below 1. Got {delta!r} instead.")
    if delta_of_mu(mu, 0.0) <= delta:
        return 0.0
    if delta == 0:
        return math.inf
    high = 1.0
    while delta_of_mu(mu, high) > delta:
        high *= 2
    low = 0.0
    # Near zero the floats are endless; epsilon is not needed to more than 1e-15.
    while high - low > 1e-15 and low < (middle := low + (high - low) / 2) < high:
        if delta_of_mu(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _check(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ConfigurationError(
            f"The '{name}' parameter must be at least 0 and finite. Got {value!r} instead."
        )
