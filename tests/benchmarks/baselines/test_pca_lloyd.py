"""Principal components and Lloyd's iterations: their noise, their sensitivity, their shares."""

import math

import numpy as np
import pytest
from harness import assert_scale

from baselines import Problem
from baselines.pca_lloyd import PcaLloyd, Start, nearest, noisy_means, noisy_moments

NARROW = Problem(2_000, 5, 8, 1.0, 1e-4)
WIDE = Problem(20_000, 60, 8, 4.0, 1e-5)


def test_second_moments_have_the_planned_noise():
    rng = np.random.default_rng(0)
    records = rng.normal(0, 0.1, (50, 200))
    noise = noisy_moments(records, 7.0, rng) - records.T @ records
    np.testing.assert_allclose(noise, noise.T)
    assert_scale("diagonal", np.diag(noise) / 7.0, enough=200)
    above = noise[np.triu_indices(200, 1)] * math.sqrt(2)
    assert_scale("pairs", above / 7.0, enough=1_000)


def test_a_record_changes_second_moments_by_at_most_one():
    rng = np.random.default_rng(1)
    for _ in range(50):
        record = rng.normal(size=7)
        record /= np.linalg.norm(record)
        moments = np.outer(record, record)
        pairs = math.sqrt(2) * moments[np.triu_indices(7, 1)]
        assert np.linalg.norm([*np.diag(moments), *pairs]) == pytest.approx(1)


def test_sums_and_counts_have_the_planned_noise():
    rng = np.random.default_rng(2)
    labels = np.arange(300).repeat(40)
    before = np.zeros((300, 20))
    scales = {"now: sums": 0.5, "now: counts": 1e-9}
    points = np.zeros((12_000, 20))
    means = noisy_means(points, labels, before, "now", scales, rng)
    assert_scale("sums", means.ravel() * 40 / 0.5, enough=6_000)
    scales = {"now: sums": 1e-9, "now: counts": 4.0}
    points = np.full((12_000, 20), 0.1)
    means = noisy_means(points, labels, before, "now", scales, rng)
    counts = 4.0 / means[:, 0]
    assert_scale("counts", (counts - 40) / 4.0, enough=300)


def test_the_noise_of_a_run_is_that_of_its_releases():
    class Recorded(np.random.Generator):
        scales = ()

        def normal(self, loc=0.0, scale=1.0, size=None):
            if scale != 1.0:
                self.scales += (scale,)
            return super().normal(loc, scale, size)

    method = PcaLloyd()
    for problem in (NARROW, WIDE):
        rng = Recorded(np.random.PCG64(0))
        records = np.random.default_rng(3).normal(
            0, 0.05, (problem.n_records, problem.n_features)
        )
        method.fit(records, problem.n_clusters, problem.epsilon, problem.delta, rng)
        planned = [each.noise_multiplier for each in method.releases(problem)]
        assert list(rng.scales) == planned


def test_it_lifts_where_the_noise_of_a_mean_is_short():
    def is_lifted(problem):
        return any("lift" in each.name for each in PcaLloyd().releases(problem))

    assert is_lifted(WIDE)
    assert not is_lifted(NARROW)
    assert not is_lifted(WIDE._replace(n_records=500, epsilon=0.5))
    assert not is_lifted(WIDE._replace(n_features=8))


def test_shares_add_up():
    """All releases together have the budget's mu."""
    for problem in (NARROW, WIDE):
        costs = [each.cost**2 for each in PcaLloyd().releases(problem)]
        total = sum(costs)
        assert costs[0] / total == pytest.approx(0.02)
        assert costs[1] / total == pytest.approx(0.2)


def test_an_empty_cluster_gets_the_given_place():
    rng = np.random.default_rng(4)
    points = np.full((100, 2), 0.5)
    scales = {"now: sums": 1e-9, "now: counts": 1e-9}
    before = np.array([[0.1, 0.2], [0.3, 0.3]])
    means = noisy_means(points, np.zeros(100, int), before, "now", scales, rng)
    np.testing.assert_allclose(means, [[0.5, 0.5], [0.3, 0.3]])


def test_starts_are_spread_over_the_released_distribution():
    rng = np.random.default_rng(5)
    start = Start(np.array([0.2, 0.0, 0.0]), np.array([0.2, 0.1, 0.0]))
    centroids = start.spread_out(6, rng)
    assert np.abs(centroids[:, 2]).max() == 0
    assert centroids[:, 0].std() > centroids[:, 1].std() > 0
    assert len(set(nearest(centroids, centroids))) == 6
