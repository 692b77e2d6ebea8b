"""A sum of shares is as private as the continuous Gaussian that was planned, and hardly wider."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq

from flower_kmeans.privacy import noise
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.privacy.release import Release

STDS = [2.0, 2.1, 2.75, 4.0, 7.5]
# Standard deviation in grid units, shift of a coordinate, how many coordinates are shifted, delta.
GRID = [
    (2, 1, 1, 1e-6),
    (2, 2, 1, 1e-6),
    (4, 1, 1, 1e-6),
    (4, 4, 1, 1e-6),
    (8, 8, 1, 1e-6),
    (20, 2, 1, 1e-6),
    (4, 1, 8, 1e-6),
    (6, 1, 30, 1e-6),
    (20, 2, 1, 1e-11),
    (4, 1, 1, 1e-12),
]


@pytest.fixture
def variance_of(monkeypatch):
    """Return from a planned standard deviation the variance of what all shares add up to."""

    def drawn(std, shares=1):
        seen = []
        monkeypatch.setattr(
            noise, "discrete_gaussian", lambda variance, _: seen.append(variance) or variance
        )
        release = Release("sums", "gaussian", "l2", std, ("sums",))
        noise.draw_share(release, np.ones(1), shares, Stream.from_key(bytes(32)))
        return float(seen[0][0]) * shares

    return drawn


def steps(variance, n):
    """Return Phi^-1(P[X < i + 1]) - Phi^-1(P[X < i]) of a discrete Gaussian X for i = 0, ..., n."""
    weights = [mpmath.exp(-mpmath.mpf(i * i) / (2 * variance)) for i in range(n + 60)]
    whole, tail, levels = weights[0] + 2 * sum(weights[1:]), mpmath.mpf(0), []
    tails = []
    for weight in reversed(weights):
        tail += weight
        tails.append(tail / whole)
    level = mpmath.mpf(0)
    for tail in tails[::-1][1 : n + 2]:  # P[X >= 1], P[X >= 2], ...
        level = mpmath.findroot(
            lambda x, tail=tail: mpmath.log(mpmath.ncdf(-x)) - mpmath.log(tail),
            level + 1 / mpmath.sqrt(variance),
        )
        levels.append(level)
    return [2 * levels[0], *(b - a for a, b in itertools.pairwise(levels))]


@pytest.mark.parametrize("std", STDS)
def test_no_two_integers_are_further_apart_than_planned(std, variance_of):
    """Which says that integer shifts of any size are no easier to distinguish than under mu-GDP."""
    with mpmath.workdps(50):
        apart = steps(mpmath.mpf(variance_of(std)), int(14 * std))
        assert max(apart) <= 1 / mpmath.mpf(std)
        # The variance that is added is at most 1.4 times the least that will do.
        added = variance_of(std) - std * std
        assert max(steps(mpmath.mpf(std * std + added / 1.4), 3)) > 1 / mpmath.mpf(std)


def discrete_epsilon(variance, shift, n, delta):
    """Return the least epsilon of n coordinates that are all shifted; its losses lie on a line."""
    reach = math.ceil(14 * math.sqrt(variance)) + shift
    x = np.arange(-reach, reach + 1)
    one = np.exp(-x * x / (2 * variance))
    one /= one.sum()
    mass = one
    for _ in range(n - 1):
        mass = np.convolve(mass, one)
    loss = (2 * (np.arange(len(mass)) - n * reach) * shift + n * shift * shift) / (2 * variance)

    def excess(epsilon):
        above = loss > epsilon
        return float(np.sum(mass[above] * -np.expm1(epsilon - loss[above]))) - delta

    return brentq(excess, 0.0, 60.0, xtol=1e-12)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("std", "shift", "n", "delta"), GRID)
def test_epsilon_is_not_exceeded(std, shift, n, delta, variance_of):
    wider = variance_of(std)
    for factor in np.geomspace(1.0, 10.0, 40):  # how the losses lie to epsilon differs
        planned = epsilon_of_mu(shift * math.sqrt(n) / std, delta * factor)
        assert discrete_epsilon(wider, shift, n, delta * factor) <= planned + 1e-9


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("std", "shift", "n", "delta"), [row for row in GRID if row[2] == 1])
def test_what_is_added_is_at_most_three_times_what_is_needed(std, shift, n, delta, variance_of):
    """In epsilon, at the deltas where it is needed most."""
    paid = needed = 0.0
    for factor in np.geomspace(1.0, 10.0, 40):
        planned = epsilon_of_mu(shift / std, delta * factor)
        needed = max(needed, discrete_epsilon(std * std, shift, n, delta * factor) - planned)
        narrower = 2 * std * std - variance_of(std)
        paid = max(paid, epsilon_of_mu(shift / math.sqrt(narrower), delta * factor) - planned)
    assert 0 < needed <= paid <= 3 * needed


@pytest.mark.parametrize("std", [2.0, 3.0, 10.0, 1e3, 1e6, 1e9, 1e12])
def test_coarse_and_fine_grids_are_widened_by_a_part_of_a_step(variance_of, std):
    added = variance_of(std) - std * std
    # Beyond 1e8, what is added is less than a step of float64.
    assert added > 0 if std > 1e8 else 1 / math.pi**2 <= added <= 0.105
    assert variance_of(std) == pytest.approx(std * std, rel=0.03)
    assert variance_of(20 * std, shares=16) == pytest.approx(variance_of(20 * std), rel=1e-15)
