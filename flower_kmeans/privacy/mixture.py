"""Composition of Gaussian with Laplace releases, by privacy loss distributions.

One Gaussian release stands for all of them (their composition is exact), the Laplace releases are
composed with it numerically: ``dp_accounting``'s connect-the-dots discretisation is pessimistic,
so every number here is an upper bound (Doroshenko et al. 2022; docs/guarantees: Neighbours,
budget, delta).
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from flower_kmeans.privacy.calibration import delta_of_mu, epsilon_of_mu

# Steps of the discretised privacy loss per unit of the largest epsilon involved.
_STEPS = 3_000
_MAX_STEP = 1e-2
_MIN_STEP = 1e-7
# Largest privacy loss that is composed numerically. Beyond it e^loss leaves float64's range, and an
# epsilon of thousands would take gigabytes.
_MAX_LOSS = 500.0
# Standard deviations of a privacy loss whose tail beyond them does not matter.
_TAIL = 8.0
# Scales are found on a grid this fine, so that the last bits of the numerical composition, which
# differ between processors, do not reach the noise: clients recompute the plan they are sent.
_SCALE_BITS = 16


def laplace_delta(cost: float, epsilon: float) -> float:
    """Return the least delta of one Laplace release of pure epsilon ``cost`` at ``epsilon``."""
    return 0.0 - math.expm1(min(0.0, epsilon - cost) / 2)


def mixture_delta(mu: float, laplace: tuple[float, ...], epsilon: float) -> float:
    """Return a delta that all releases together meet at an epsilon.

    ``mu`` is that of all Gaussian releases, 0 if there are none, and ``laplace`` has the pure
    epsilon of every Laplace release. Where releases cost so much together that they cannot be
    composed numerically, the sum of their epsilons is taken instead.
    """
    rest = epsilon - math.fsum(laplace)
    if not mu and rest >= 0:
        return 0.0
    if not _is_composable(mu, laplace):
        return delta_of_mu(mu, rest) if rest >= 0 else 1.0
    return min(1.0, float(_composed(mu, laplace).get_delta_for_epsilon(epsilon)))


def mixture_epsilon(mu: float, laplace: tuple[float, ...], delta: float) -> float:
    """Return an epsilon that all releases together meet at a delta; infinite if there is none."""
    pure = math.fsum(laplace) if not mu else math.inf
    if delta == 0:
        return pure
    if not _is_composable(mu, laplace):
        return math.fsum(laplace) + epsilon_of_mu(mu, delta)
    return min(pure, float(_composed(mu, laplace).get_epsilon_for_delta(delta)))


def _is_composable(mu: float, laplace: tuple[float, ...]) -> bool:
    """Return whether the numerical composition is small enough to be carried out."""
    gaussian = mu * (mu / 2 + _TAIL)
    size = math.sqrt(math.fsum([mu * mu, *(cost * cost for cost in laplace)]))
    # The loss is at most the sum of the epsilons, and hardly ever beyond that of a Gaussian.
    largest = min(math.fsum(laplace) + gaussian, size * (size / 2 + _TAIL))
    return max(largest, gaussian, *laplace) <= _MAX_LOSS


def _composed(mu: float, laplace: tuple[float, ...]) -> Any:
    return _composed_of(mu, tuple(sorted(Counter(laplace).items())))


@lru_cache(maxsize=64)
def _composed_of(mu: float, laplace: tuple[tuple[float, int], ...]) -> Any:
    # A second of import time, which clients (a new process per message) need not pay for plans
    # of Gaussian releases.
    from dp_accounting.pld import privacy_loss_distribution as pld

    # The step follows the size of the typical loss, so that small budgets stay exact and large
    # ones stay cheap.
    size = math.sqrt(math.fsum([mu * mu, *(count * cost * cost for cost, count in laplace)]))
    step = min(_MAX_STEP, max(_MIN_STEP, size / _STEPS))
    total = None
    for cost, count in laplace:
        part = pld.from_laplace_mechanism(1 / cost, value_discretization_interval=step)
        part = part.self_compose(count) if count > 1 else part
        total = part if total is None else total.compose(part)
    if mu:
        part = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=step)
        total = part if total is None else total.compose(part)
    return total


def least_scale(excess: Callable[[float], float], low: float, high: float) -> float:
    """Return the least scale on a grid of relative width 2^-16 or so that meets a budget.

    ``excess`` gives the part by which a scale exceeds the budget: falling, at most 0 where it is
    met. No scale below ``low``, which is positive, meets the budget, and ``high`` does.
    """
    step = math.ldexp(1.0, math.frexp(high)[1] - _SCALE_BITS)
    first, last = max(1, math.floor(low / step)), math.ceil(high / step)
    above = excess(first * step)
    if above <= 0:
        return first * step
    below = excess(last * step)
    turn = 0
    while last - first > 1:
        turn += 1
        middle = (first + last) // 2
        # Epsilon is nearly a line in the inverse of the scale, so interpolation finds the place in
        # a few evaluations, each of which is a numerical composition; every fourth step bisects.
        if turn % 4:
            part = above / (above - below)
            place = 1 / ((1 - part) / first + part / last)
            # Towards the farther end, so that both ends close in.
            middle = math.ceil(place) if 2 * place < first + last else math.floor(place)
            middle = min(max(middle, first + 1), last - 1)
        value = excess(middle * step)
        if value <= 0:
            last, below = middle, value
        else:
            first, above = middle, value
    return last * step
