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

pytestmark = pytest.mark.claim("guarantees", "42")

STDS = [2.0, 2.1, 2.75, 4.0, 7.5]
# Standard deviation in grid units, shift of a coordinate, how many coordinates are
# shifted, delta.
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
            noise,
            "discrete_gaussian",
            lambda variance, _: seen.append(variance) or variance,
        )
        release = Release("sums", "gaussian", "l2", std, ("sums",))
        noise.draw_share(release, np.ones(1), shares, Stream.from_key(bytes(32)))
        return float(seen[0][0]) * shares

    return drawn


def steps(variance, n):
    """Return the `steps_of` a discrete Gaussian."""
    weights = [mpmath.exp(-mpmath.mpf(i * i) / (2 * variance)) for i in range(n + 60)]
    return steps_of(weights, variance, n)


def steps_of(weights, variance, n):
    """Return Phi^-1(P[X < i + 1]) - Phi^-1(P[X < i]) for i = 0, ..., n.

    X is symmetric, and the weights are those of 0, 1, 2, ...
    """
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


# How many noise shares are added up, and the standard deviation of one, of which 2 is
# the least.
SHARES = [(2, 2.0), (2, 2.5), (2, 4.0), (3, 2.0), (4, 2.0), (8, 2.0)]
DIGITS = 80


def convolved(variances):
    """Return the probabilities of a sum of discrete Gaussians, by their convolution.

    Terms and sums reach 20 of their deviations to either side; beyond is less than
    e^-190.
    """
    most = math.ceil(20 * math.sqrt(sum(variances)))
    masses = np.array([mpmath.mpf(1)], dtype=object)
    for variance in variances:
        reach = math.ceil(20 * math.sqrt(variance))
        one = [
            mpmath.exp(-mpmath.mpf(i * i) / (2 * variance))
            for i in range(-reach, reach + 1)
        ]
        whole = mpmath.fsum(one)
        masses = np.convolve(
            masses, np.array([weight / whole for weight in one], dtype=object)
        )
        beyond = max(0, len(masses) // 2 - most)
        masses = masses[beyond : len(masses) - beyond]
    return list(masses)


def largest_step(variances, planned):
    """Return the largest of the steps of a sum, up to 14 planned deviations."""
    masses = convolved(variances)
    middle = len(masses) // 2
    # Then the best tests of a shift accept below some integer, and the steps decide.
    for left, mass, right in zip(masses, masses[1:], masses[2:], strict=False):
        assert mass * mass >= left * right
    return max(steps_of(masses[middle:], sum(variances), int(14 * planned)))


def profile(masses, shift, epsilon):
    """Return the delta at an epsilon of a shift of a distribution on the integers."""
    factor = mpmath.exp(epsilon)
    padding = [mpmath.mpf(0)] * shift
    pairs = zip([*masses, *padding], [*padding, *masses], strict=True)
    return mpmath.fsum(max(mpmath.mpf(0), one - factor * other) for one, other in pairs)


def gaussian_profile(mu, epsilon):
    root = mpmath.sqrt(2)
    above = mpmath.erfc((epsilon / mu - mu / 2) / root)
    return (
        above - mpmath.exp(epsilon) * mpmath.erfc((epsilon / mu + mu / 2) / root)
    ) / 2


def shares_and_plan(shares, share_std):
    """Return the variance of one share as it is drawn, and the planned standard deviation."""
    planned = math.sqrt(shares * share_std**2 - 0.1)
    release = Release("sums", "gaussian", "l2", planned, ("sums",))
    variance = float(noise.share_variance(release, np.ones(1), shares)[0])
    # So narrow a share is still drawn, and no narrower one is tested.
    assert share_std**2 <= variance < share_std**2 + 0.01
    return variance, planned


@pytest.mark.claim("guarantees", "41")
@pytest.mark.default_cases("2-2.0", "3-2.0", "8-2.0")
@pytest.mark.parametrize(("shares", "share_std"), SHARES)
def test_a_sum_of_shares_is_as_private_as_planned(shares, share_std):
    """The convolution itself, not the discrete Gaussian that it nearly is."""
    variance, planned = shares_and_plan(shares, share_std)
    with mpmath.workdps(DIGITS):
        mu = 1 / mpmath.mpf(planned)
        assert largest_step([mpmath.mpf(variance)] * shares, planned) <= mu
        # It can fail: shares that are not widened, or a hundredth too narrow.
        assert largest_step([mpmath.mpf(planned) ** 2 / shares] * shares, planned) > mu
        assert largest_step([0.98 * mpmath.mpf(variance)] * shares, planned) > mu


@pytest.mark.claim("guarantees", "41")
@pytest.mark.default_cases("weights0")
@pytest.mark.parametrize("weights", [(4, 4, 9), (4, 30), (4, 6, 9, 25)])
def test_a_sum_of_unequal_parts_is_as_private_as_planned(weights, variance_of):
    """As the rest of noise shares, of which the server removed some parts."""
    planned = math.sqrt(sum(weights) + 0.1)
    drawn = mpmath.mpf(variance_of(planned))
    with mpmath.workdps(DIGITS):
        mu = 1 / mpmath.mpf(planned)
        parts = [drawn * weight / sum(weights) for weight in weights]
        assert largest_step(parts, planned) <= mu
        assert largest_step([0.98 * part for part in parts], planned) > mu


@pytest.mark.claim("guarantees", "41")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("shares", "share_std"), [(2, 2.0), (3, 2.0), (8, 2.0)])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_profile_of_a_sum_of_shares_stays_below_the_plans(shares, share_std, shift):
    """Down to deltas of 1e-35, far below what the sum differs from a discrete Gaussian."""
    variance, planned = shares_and_plan(shares, share_std)
    with mpmath.workdps(DIGITS):
        mu = shift / mpmath.mpf(planned)
        epsilons = [mu * mu / 2 + mu * mpmath.mpf(place) / 2 for place in range(26)]
        allowed = [gaussian_profile(mu, epsilon) for epsilon in epsilons]
        assert allowed[0] > 1e-2
        assert allowed[-1] < 1e-35

        def exceeds(of_variance):
            masses = convolved([mpmath.mpf(of_variance)] * shares)
            found = [profile(masses, shift, epsilon) for epsilon in epsilons]
            return sum(one > most for one, most in zip(found, allowed, strict=True))

        assert exceeds(variance) == 0
        # It can fail: shares that are not widened, or a hundredth too narrow.
        assert exceeds(planned**2 / shares) > 0
        assert exceeds(0.98 * variance) > 0


@pytest.mark.claim("guarantees", "41")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("share_std", [2.0, 2.5])
@pytest.mark.parametrize("shares", [2, 3, 4, 8])
def test_how_far_a_sum_of_shares_is_from_a_discrete_gaussian(shares, share_std):
    """Each probability differs by a factor, which has the period of as many integers."""
    variance, _ = shares_and_plan(shares, share_std)
    with mpmath.workdps(DIGITS):
        masses = convolved([mpmath.mpf(variance)] * shares)
        middle = len(masses) // 2
        total = shares * mpmath.mpf(variance)
        factors = [
            masses[middle + i] * mpmath.exp(i * i / (2 * total))
            for i in range(3 * shares)
        ]
        mean = mpmath.fsum(factors) / len(factors)
        apart = max(abs(factor / mean - 1) for factor in factors)
        exponent = 2 * mpmath.pi**2 * variance * (1 - mpmath.mpf(1) / shares)
        most = 2 * shares * mpmath.exp(-exponent)
        assert most / 3 < apart <= 1.01 * most
        assert abs(factors[1] / factors[1 + shares] - 1) < 1e-60


def discrete_epsilon(variance, shift, n, delta):
    """Return the least epsilon of n coordinates that are all shifted; its losses lie on a line."""
    reach = math.ceil(14 * math.sqrt(variance)) + shift
    x = np.arange(-reach, reach + 1)
    one = np.exp(-x * x / (2 * variance))
    one /= one.sum()
    mass = one
    for _ in range(n - 1):
        mass = np.convolve(mass, one)
    loss = (2 * (np.arange(len(mass)) - n * reach) * shift + n * shift * shift) / (
        2 * variance
    )

    def excess(epsilon):
        above = loss > epsilon
        return float(np.sum(mass[above] * -np.expm1(epsilon - loss[above]))) - delta

    return brentq(excess, 0.0, 60.0, xtol=1e-12)


@pytest.mark.default_cases("2-1-1-1e-06", "4-1-8-1e-06", "20-2-1-1e-11")
@pytest.mark.parametrize(("std", "shift", "n", "delta"), GRID)
def test_epsilon_is_not_exceeded(std, shift, n, delta, variance_of):
    wider = variance_of(std)
    for factor in np.geomspace(1.0, 10.0, 40):  # how the losses lie to epsilon differs
        planned = epsilon_of_mu(shift * math.sqrt(n) / std, delta * factor)
        assert discrete_epsilon(wider, shift, n, delta * factor) <= planned + 1e-9


@pytest.mark.default_cases("2-1-1-1e-06", "20-2-1-1e-11")
@pytest.mark.parametrize(
    ("std", "shift", "n", "delta"), [row for row in GRID if row[2] == 1]
)
def test_what_is_added_is_at_most_three_times_what_is_needed(
    std, shift, n, delta, variance_of
):
    """In epsilon, at the deltas where it is needed most."""
    paid = needed = 0.0
    for factor in np.geomspace(1.0, 10.0, 40):
        planned = epsilon_of_mu(shift / std, delta * factor)
        needed = max(
            needed, discrete_epsilon(std * std, shift, n, delta * factor) - planned
        )
        narrower = 2 * std * std - variance_of(std)
        paid = max(
            paid, epsilon_of_mu(shift / math.sqrt(narrower), delta * factor) - planned
        )
    assert 0 < needed <= paid <= 3 * needed


@pytest.mark.parametrize("std", [2.0, 3.0, 10.0, 1e3, 1e6, 1e9, 1e12])
def test_coarse_and_fine_grids_are_widened_by_a_part_of_a_step(variance_of, std):
    added = variance_of(std) - std * std
    # Beyond 1e8, what is added is less than a step of float64.
    assert added > 0 if std > 1e8 else 1 / math.pi**2 <= added <= 0.105
    assert variance_of(std) == pytest.approx(std * std, rel=0.03)
    assert variance_of(20 * std, shares=16) == pytest.approx(
        variance_of(20 * std), rel=1e-15
    )
