"""Bounds from counted guesses cover what they promise; likelihoods are those of the noise."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats
from scripts import load_script

from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget
from flower_kmeans.privacy.noise import SAMPLERS

pytestmark = pytest.mark.claim("tables/audit", "both-neighbours-have-one")


@pytest.fixture
def audit(monkeypatch):
    return load_script(monkeypatch, "audit_bounds")


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("confidence", [0.6, 0.95])
def test_limits_cover_every_probability(audit, trials, confidence):
    limits = [audit.clopper_pearson(k, trials, confidence) for k in range(trials + 1)]
    for p in np.linspace(0, 1, 101):
        mass = stats.binom(trials, p).pmf(np.arange(trials + 1))
        for wrong in ([low > p for low, _ in limits], [high < p for _, high in limits]):
            assert mass[wrong].sum() <= 1 - confidence + 1e-12


@pytest.mark.parametrize("mu", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.7])
def test_the_bound_on_mu_covers_a_known_gaussian(audit, mu, threshold):
    """Exactly, over all counts: N(0, 1) against N(mu, 1), for independent runs."""
    n, confidence = 30, 0.8
    counts = np.arange(n + 1)
    tp = stats.binom(n, stats.norm.sf(threshold - mu)).pmf(counts)
    fp = stats.binom(n, stats.norm.sf(threshold)).pmf(counts)
    bounds = np.array(
        [[audit.mu_lower_bound(i, n, j, n, confidence) for j in counts] for i in counts]
    )
    exceeds = bounds > mu + 1e-12
    assert (np.outer(tp, fp) * exceeds).sum() <= 1 - confidence
    assert _worst_coupling(tp, fp, exceeds) <= 1 - confidence


def _worst_coupling(tp, fp, exceeds):
    """Return the most that any joint law of both counts can give the set, by covers of it.

    Every pair of the set has a true count from some number on, or a false count up to
    another one.
    """
    widest = [np.flatnonzero(row).max(initial=-1) for row in exceeds]
    assert (np.diff(widest) >= 0).all()
    assert all(
        row[: width + 1].all() for row, width in zip(exceeds, widest, strict=True)
    )
    covers = [
        tp[i + 1 :].sum() + fp[: width + 1].sum() for i, width in enumerate(widest)
    ]
    return min(tp.sum(), *covers)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_on_epsilon_covers_randomised_response(audit, epsilon):
    """The guess repeats the true bit with odds e^epsilon."""
    n, confidence = 30, 0.8
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    counts = np.arange(n + 1)
    tp, fp = stats.binom(n, truth).pmf(counts), stats.binom(n, 1 - truth).pmf(counts)
    bounds = np.array(
        [
            [audit.epsilon_lower_bound(i, n, j, n, 0.0, confidence) for j in counts]
            for i in counts
        ]
    )
    assert (np.outer(tp, fp) * (bounds > epsilon + 1e-12)).sum() <= 1 - confidence
    assert audit.epsilon_lower_bound(9000, 10_000, 1000, 10_000, 0.0) > 2.0
    # by the other guess
    assert audit.epsilon_lower_bound(10_000, 10_000, 9000, 10_000, 0.0) > 4.0
    assert audit.epsilon_lower_bound(500, 10_000, 0, 10_000, 0.2) == 0.0


def test_many_runs_come_near_the_truth(audit):
    mu, n = 0.9, 10**6
    tp, fp = (round(n * stats.norm.cdf(sign * mu / 2)) for sign in (1, -1))
    bound = audit.mu_lower_bound(tp, n, fp, n)
    assert 0.99 * mu < bound < mu
    for counts in ((fp, n, tp, n), (0, 10, 0, 10), (10, 10, 10, 10)):
        assert audit.mu_lower_bound(*counts) == 0.0


@pytest.mark.claim("audit", "here-best-one-these")
@pytest.mark.parametrize("scale", [0.7, 3.0, 200.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_likelihoods_are_those_of_the_samplers_laws(audit, sampler, scale):
    residual = np.array([[0], [1], [-3], [int(6 * scale)], [-int(30 * scale)]])
    for change in (1, -2, int(scale) + 1):
        found = audit.log_likelihood_ratio(
            sampler, residual, np.array([change]), np.array([scale])
        )
        with mpmath.workdps(400):
            wanted = [
                float(
                    mpmath.log(
                        _mass(sampler, int(n) - change, scale)
                        / _mass(sampler, n, scale)
                    )
                )
                for n in residual[:, 0].tolist()
            ]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def _mass(sampler, n, scale):
    s = mpmath.mpf(scale)
    if sampler == "discrete-gaussian/2":
        return mpmath.exp(-(mpmath.mpf(n) ** 2) / (2 * s * s))
    size = abs(n)
    if sampler == "rounded-gaussian/1":
        ends = [
            mpmath.erfc((size + half) / s / mpmath.sqrt(2)) / 2 for half in (-0.5, 0.5)
        ]
        return ends[0] - ends[1]
    if size == 0:
        return 1 - mpmath.exp(-1 / (2 * s))
    return (mpmath.exp(-(size - 0.5) / s) - mpmath.exp(-(size + 0.5) / s)) / 2


def test_likelihoods_add_up_over_the_words_that_change(audit):
    residual, change = np.array([[5, 7, -2], [1, 1, 1]]), np.array([2, 0, -1])
    scale = np.array([3.0, 0.0, 4.0])  # a word that cannot change may lack noise
    total = audit.log_likelihood_ratio("discrete-gaussian/2", residual, change, scale)
    # (r c - c^2 / 2) / s^2
    np.testing.assert_allclose(
        total,
        [(10 - 2) / 9 + (2 - 0.5) / 16, (2 - 2) / 9 + (-1 - 0.5) / 16],
        atol=1e-12,
    )
    with pytest.raises(ValueError, match="scale"):
        audit.log_likelihood_ratio("discrete-gaussian/2", residual, change, 0 * scale)


def test_one_noise_for_both_neighbours_keeps_the_bound_and_narrows_it(audit):
    """5,000 repetitions of a mechanism that is exactly mu-GDP, guesses by the likelihood ratio."""
    mu, n = mu_of_budget(4.0, 1e-5), 5_000
    seldom = stats.norm.cdf(-mu / 2)
    least = [audit.clopper_pearson(k, n, 0.975)[0] for k in range(n + 1)]
    limits = stats.norm.ppf(np.array(least))
    rng = np.random.default_rng(0)
    both, one, _ = rng.multinomial(n, [seldom, 1 - 2 * seldom, seldom], 100_000).T
    bounds = limits[both + one] + limits[n - both]
    assert bounds[0] == pytest.approx(
        audit.mu_lower_bound(both[0] + one[0], n, both[0], n)
    )
    assert (bounds > mu).mean() < 1e-3
    ratios = [
        epsilon_of_mu(bound, 1e-5) / 4.0 for bound in np.quantile(bounds, [0.002, 0.5])
    ]
    assert 0.84 < ratios[0] < 0.87
    assert 0.9 < ratios[1] < 0.93
