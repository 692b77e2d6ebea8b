"""The tree of random hyperplanes: its noise, its rules, and where it must fail."""

import math

import numpy as np
import pytest
from harness import assert_scale
from scipy import stats

from baselines import Problem, lsh
from baselines.lsh_reference import dominating_cost, reference_method
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.calibration import laplace_delta


def test_counts_have_the_planned_noise():
    rng = np.random.default_rng(0)
    points = np.zeros((10_000, 2))
    # One cluster: the root has too few records for children.
    found = []
    for _ in range(400):
        (root,) = lsh.leaves_of(points, 1, 50.0, 400.0, rng)
        found.append(root.size - 10_000)
    assert_scale("counts", np.array(found) / 50.0, stats.laplace, enough=400)


def test_sums_of_leaves_have_the_planned_noise():
    rng = np.random.default_rng(3)
    leaves = [lsh.Node(np.arange(5), 1_000), lsh.Node(np.arange(5, 9), 2_000)]
    means = lsh.means_of(np.zeros((9, 4_000)), leaves, 3.0, rng)
    sizes = np.array([[1_000], [2_000]])
    assert_scale("sums", (means * sizes / 3.0).ravel(), enough=8_000)


def test_the_noise_of_a_run_is_that_of_its_releases():
    class Recorded(np.random.Generator):
        counts = ()
        sums = ()

        def laplace(self, loc=0.0, scale=1.0, size=None):
            self.counts += (scale,)
            return super().laplace(loc, scale, size)

        def normal(self, loc=0.0, scale=1.0, size=None):
            # Hyperplanes have no scale.
            if scale != 1.0:
                self.sums += (scale,)
            return super().normal(loc, scale, size)

    problem = Problem(5_000, 3, 4, 4.0, 1e-5)
    records = np.random.default_rng(7).normal(0, 0.2, (5_000, 3))
    rng = Recorded(np.random.PCG64(0))
    lsh.fit(records, 4, problem.epsilon, problem.delta, rng)
    planned = lsh.releases(problem)
    assert len(rng.counts) > 3
    assert set(rng.counts) == {planned[0].noise_multiplier}
    assert rng.sums == (planned[-1].noise_multiplier,)


def test_releases_are_those_of_the_recipe():
    counts = lsh.releases(Problem(1_000, 5, 3, 1.0, 1e-4))
    assert [each.mechanism for each in counts] == ["laplace"] * 21 + ["gaussian"]
    ratio = counts[0].noise_multiplier / counts[-1].noise_multiplier
    assert ratio == pytest.approx(20)


def test_leaves_are_disjoint_and_large_enough():
    rng = np.random.default_rng(5)
    points = rng.normal(0, 0.1, (4_000, 3))
    leaves = lsh.leaves_of(points, 10, 1.0, 2.0, rng)
    rows = np.concatenate([leaf.rows for leaf in leaves])
    assert len(leaves) > 20
    assert len(rows) == len(set(rows)) > 3_000
    fewest = int(10 * math.sqrt(3) * 2.0)
    assert min(leaf.size for leaf in leaves) >= fewest


def test_records_on_one_ray_stay_together():
    """Hyperplanes through the origin see directions only."""
    rng = np.random.default_rng(6)
    lengths = np.array([0.1, 0.9]).repeat(1_000)
    points = lengths[:, None] * np.array([[0.6, 0.8]])
    leaves = lsh.leaves_of(points, 2, 1.0, 1.0, rng)
    assert max(len(leaf.rows) for leaf in leaves) == 2_000


@pytest.mark.parametrize("parameter", [0.01, 0.3, 2.0])
def test_the_cost_of_a_discrete_count_is_one_that_dominates(parameter):
    """Its delta at every epsilon is that of randomised response."""
    cost = dominating_cost(parameter)
    assert parameter <= cost <= 2 * parameter
    for epsilon in np.linspace(0, parameter, 20):
        against = math.exp(parameter) - math.exp(epsilon)
        discrete = against / (1 + math.exp(parameter))
        assert discrete <= laplace_delta(cost, epsilon) + 1e-12


def test_a_folder_without_the_code_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="checkout"):
        reference_method(tmp_path)
