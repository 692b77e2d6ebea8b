"""The check of a method's guarantee, and methods of a user's file."""

from dataclasses import replace

import numpy as np
import pytest

import baselines
from baselines import METHODS, Method, Problem, checked_plan, loaded
from baselines.pure import DIFFPRIVLIB
from flower_kmeans.errors import BudgetError, ConfigurationError
from flower_kmeans.privacy import Release
from flower_kmeans.privacy.calibration import mu_of_budget

PROBLEM = Problem(2_000, 20, 4, 1.0, 1e-4)


def summed(noise_multiplier, number=1):
    release = Release("sums", "gaussian", "l2", noise_multiplier, ("sums",))
    return Method("own", None, lambda problem: (release,) * number, "nobody")


@pytest.mark.parametrize("epsilon", [0.25, 4.0])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_within_the_budget_and_nearly_spends_it(name, epsilon):
    method = METHODS[name]
    columns = min(PROBLEM.n_features, method.max_features)
    plan = checked_plan(method, PROBLEM._replace(n_features=columns, epsilon=epsilon))
    # Laplace noise alone, with pure guarantees, spends less than epsilon at a delta.
    assert 0.95 * epsilon < plan.epsilon() <= epsilon


def test_a_pure_guarantee_is_one_release():
    plan = checked_plan(DIFFPRIVLIB, PROBLEM)
    assert plan.delta(PROBLEM.epsilon) == 0


def test_releases_that_exceed_the_budget_are_refused():
    least = 1 / mu_of_budget(PROBLEM.epsilon, PROBLEM.delta)
    checked_plan(summed(least * 1.000001), PROBLEM)
    checked_plan(summed(2 * least * 1.000001, number=4), PROBLEM)
    for method in (summed(least * 0.999), summed(2 * least, number=5)):
        with pytest.raises(BudgetError, match="epsilon of at most 1 at"):
            checked_plan(method, PROBLEM)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_two_thirds_of_its_noise_is_refused(name):
    method = METHODS[name]
    columns = min(PROBLEM.n_features, method.max_features)

    def releases(problem):
        return [
            replace(each, noise_multiplier=each.noise_multiplier * 2 / 3)
            for each in method.releases(problem)
        ]

    with pytest.raises(BudgetError):
        checked_plan(
            replace(method, releases=releases), PROBLEM._replace(n_features=columns)
        )


@pytest.mark.parametrize("method", [summed(0.0), summed(1.0, number=0)])
def test_a_method_without_noise_or_without_releases_is_refused(method):
    with pytest.raises(ConfigurationError):
        checked_plan(method, PROBLEM)


def test_the_ten_lines_of_the_package_are_a_method(tmp_path):
    code = baselines.__doc__.partition("::\n")[2].partition("\n\nAll of them")[0]
    lines = [line[4:] for line in code.splitlines() if line.strip()]
    assert len(lines) <= 12
    file = tmp_path / "own.py"
    file.write_text("\n".join(lines))
    method = loaded(f"{file}:ONE_MEAN")
    checked_plan(method, PROBLEM)
    rng = np.random.default_rng(0)
    records = np.full((2_000, 3), 0.5)
    centroids = method.fit(records, 4, 1.0, 1e-4, rng)
    np.testing.assert_allclose(centroids, [[0.5] * 3], atol=0.02)


@pytest.mark.parametrize("given", ["none.py:METHOD", "METHOD", "{file}:other"])
def test_a_file_without_the_method_is_an_error(given, tmp_path):
    file = tmp_path / "own.py"
    file.write_text("other = 1\n")
    with pytest.raises(ConfigurationError, match="Expected"):
        loaded(given.format(file=file))


@pytest.mark.parametrize("name", ["FastLloyd", "DP-LSH", "PCA + DP-Lloyd"])
def test_centroids_are_near_those_of_clear_clusters(name):
    rng = np.random.default_rng(1)
    centres = 0.4 * np.eye(3, 17)
    records = centres.repeat(2_000, axis=0)
    records += rng.normal(0, 0.01, records.shape)
    centroids = METHODS[name].fit(records, 3, 8.0, 1e-5, rng)
    assert len(centroids) <= 3
    distances = np.linalg.norm(centres[:, None] - centroids, axis=2).min(axis=1)
    assert distances.mean() < 0.3
