"""How many clusters a synopsis has: costs, gaps, the rule, and runs that choose by it."""

import itertools
import math

import numpy as np
import pytest

from flower_kmeans.algorithms import SynopsisAlgorithm, algorithm_from_config
from flower_kmeans.algorithms import synopsis_choice as choice
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.algorithms.synopsis import Schedule
from flower_kmeans.algorithms.synopsis_mixture import CellNoise, Mixture
from flower_kmeans.data.domain import Ball
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.report.synopsis import Synopsis
from tests.algorithms.rows import run_of

pytestmark = pytest.mark.claim("guarantees", "22")

RNG = np.random.default_rng
SILENT = CellNoise(0.0, 0.0, 0.0)
N = 6000
BALL = Ball(14.0, [0.0] * 3)
CENTERS = np.array([[-8.0, -6, 2], [-8, 6, -4], [0, 0, 6], [8, -6, -3], [8, 7, 3]])
RECORDS = CENTERS[np.arange(N) % 5] + RNG(0).normal(0, 0.6, (N, 3))
BUDGET = PrivacyBudget(1.0)


def mixture(means, scale=0.01, weights=None):
    means = np.array(means, float)
    weights = (
        np.full(len(means), 100.0) if weights is None else np.array(weights, float)
    )
    return Mixture(weights, means, np.full(means.shape, scale), np.zeros_like(means))


def groups(k, per_group=4, radius=0.02):
    """Parts in k groups, far from each other, on a circle."""
    angles = 2 * np.pi * np.arange(k) / k
    centers = 0.6 * np.column_stack([np.cos(angles), np.sin(angles)])
    return np.repeat(centers, per_group, axis=0) + RNG(1).normal(
        0, radius, (k * per_group, 2)
    )


def costs(found, numbers, *, radii=0.1, noise=SILENT, beside=0.0, n_beside=0):
    radii = np.full(len(found.weights), radii)
    selections = choice.selections(found, numbers, 0)
    return choice.costs_of(found, selections, radii, noise, beside, n_beside)


# ----------------------------------------------------------------------- costs and gaps


def test_a_cost_counts_parts_what_is_in_them_and_what_is_beside():
    weights = RNG(2).uniform(50, 500, 12)
    found = mixture(groups(3), weights=weights)
    centers = [np.average(g, axis=0, weights=w) for g, w in zip(
        np.split(found.means, 3), np.split(weights, 3), strict=True)]  # fmt: skip
    offsets = np.square(found.means - np.repeat(centers, 4, axis=0))
    along = np.average(offsets, axis=0, weights=weights) + 0.01**2
    result = costs(found, [3], beside=5e-4, n_beside=4)
    # Centres are polished on points that are drawn.
    assert result.costs[0] == pytest.approx(along.sum() + 4 * 5e-4, rel=0.02)
    assert result.errors[0] == 0.0
    largest = max(along.max(), 5e-4)
    assert result.dimensions[0] == pytest.approx(result.costs[0] / largest, rel=0.05)


def test_parts_that_were_left_out_count_nothing():
    points = np.vstack([groups(3), [[0.0, 0.0]]])
    with_one = mixture(points, weights=[100.0] * 12 + [0.0])
    noise = CellNoise(4.0, 3.0, 5.0)
    first, second = (
        costs(with_one, [3], noise=noise),
        costs(mixture(groups(3)), [3], noise=noise),
    )
    np.testing.assert_allclose(first.errors, second.errors, rtol=0.05)
    np.testing.assert_allclose(first.costs, second.costs, rtol=0.02)


@pytest.mark.parametrize("d", [1.0, 2.0, 7.5])
def test_records_without_clusters_have_no_gap(d):
    numbers = np.arange(3, 30)
    found = choice.ClusteringCosts(numbers ** (-2 / d), np.zeros(27), np.full(27, d))
    np.testing.assert_allclose(
        choice.gaps(numbers, found.costs, found.dimensions), 0, atol=1e-12
    )
    steep = choice.gaps(numbers, found.costs**2, found.dimensions)
    np.testing.assert_allclose(
        steep, 2 / d * np.log(numbers / 3), rtol=1e-9, atol=1e-12
    )


def test_the_smallest_number_within_half_a_standard_error_is_suggested():
    numbers, dimensions = [2, 3, 4, 6], np.full(4, 2.0)
    wanted = np.array([0.0, 0.30, 0.34, 0.2])  # gaps
    found = np.exp(-wanted) / np.array(numbers)
    for relative, k in ((0.0, 4), (0.07, 4), (0.09, 3), (0.6, 3), (0.7, 2)):
        errors = np.array([9.0, 9.0, relative, 9.0]) * found
        costs = choice.ClusteringCosts(found, errors, dimensions)
        assert choice.suggested(numbers, costs, 18) == k
    for most, k in ((5, 4), (4, 4), (3, 3), (2, 2), (0, 2)):
        assert (
            choice.suggested(
                numbers, choice.ClusteringCosts(found, 0 * found, dimensions), most
            )
            == k
        )


def test_clusters_have_three_parts_and_more_records_than_noise_has():
    weights = np.array([0.0, *[50.0] * 29])
    for noise, most in (
        (0.0, 9),
        (10.0, 9),
        (1450 / 16 / 9, 9),
        (10.1, 8),
        (45.0, 2),
        (1e3, 0),
    ):
        assert choice.most_suggested(weights, noise) == most


@pytest.mark.parametrize("seed", range(3))
def test_the_noise_of_few_records_in_one_column_is_not_cut_into_most_clusters(seed):
    """Costs of many clusters are those of cells that fit the noise: of two, 16 to 19 were found."""
    rng = np.random.default_rng(seed)
    records = np.repeat([-0.8, 0.8], 1_000)[:, None] + rng.normal(0, 0.05, (2_000, 1))
    algorithm = SynopsisAlgorithm.planned(
        (2, 20), Ball(1.0, [0.0]), PrivacyBudget(0.5), n_records=2_000, seed=seed
    )
    state = run_of(algorithm, [records], Stream.from_key(bytes([seed] * 32)))
    # noise of a cell's count
    assert len(algorithm.centroids(state)) <= 2_000 / 16 / 14.3


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_groups_that_are_clear_are_found(k):
    found = mixture(groups(k, 15, radius=0.06), scale=0.03)
    numbers = range(1, 13)
    assert choice.suggested(numbers, costs(found, numbers), 100) == k


def test_long_clusters_are_not_cut_in_pieces():
    """A tenth as wide as long: a reference for round clusters would suggest to cut them."""
    along = np.linspace(-0.3, 0.3, 12)
    parts = [np.column_stack([along, np.full(12, y)]) for y in (-0.7, 0.0, 0.7)]
    found, numbers = mixture(np.vstack(parts), scale=0.03), range(1, 16)
    result = costs(found, numbers)
    assert choice.suggested(numbers, result, 100) == 3
    round_ones = result._replace(dimensions=np.full(15, 2.0))
    assert choice.suggested(numbers, round_ones, 100) > 3


@pytest.mark.parametrize("k", [2, 3, 5])
def test_every_selection_is_padded_to_the_largest(k):
    found = choice.selections(mixture(groups(4)), [2, 3, 5], 0)
    one, chosen = choice.padded(found, [2, 3, 5].index(k)), found[[2, 3, 5].index(k)]
    for name in ("centers", "counts", "doubts"):
        rows = getattr(one, name)
        assert len(rows) == 5
        np.testing.assert_array_equal(rows[:k], getattr(chosen, name))
        assert not rows[k:].any()
    assert (one.within is chosen.within, one.few) == (True, chosen.few)


# --------------------------------------------------------------------------- the plan


def build(numbers=(2, 9), budget=BUDGET, **options):
    return SynopsisAlgorithm.planned(
        numbers, BALL, budget, **{"n_records": N, **options}
    )


@pytest.mark.parametrize("d", [1, 16, 100])
@pytest.mark.parametrize("signal", [1.0, 200.0, 1e5])
def test_all_of_the_budget_is_spent_on_the_synopsis(signal, d):
    schedule = Schedule.of(signal, 9, d, n_refinements=0)
    assert schedule.n_rounds == schedule.last_synopsis == 1 + len(schedule.cells)
    shares = [schedule.fraction(t, d) for t in range(1, schedule.n_rounds + 1)]
    assert shares[0] == pytest.approx(0.08)
    assert math.fsum(shares) == pytest.approx(1, rel=1e-12)
    for before, after in itertools.pairwise(shares[1:]):
        assert after == pytest.approx(1.5 * before)
    usual = Schedule.of(signal, 9, d)
    assert all(a >= b for a, b in zip(schedule.cells, usual.cells, strict=True))


def test_a_pair_is_the_fewest_and_the_most():
    for numbers, fewest, most in (
        ((2, 9), 2, 9),
        ([3, 3], 3, 3),
        (None, 1, 20),
        ((np.int64(1), 100), 1, 100),
    ):
        algorithm = build(numbers)
        assert (algorithm.fewest_clusters, algorithm.n_clusters) == (fewest, most)
        assert algorithm.schedule.n_refinements == 0
    assert (build(4).fewest_clusters, build(4).n_clusters) == (4, 4)
    few = build(None, PrivacyBudget(None), n_records=7)
    assert (few.fewest_clusters, few.n_clusters) == (1, 7)


def test_a_run_document_has_both_numbers():
    algorithm = build()
    config = algorithm_to_config(algorithm)
    assert (config["n_clusters"], config["min_clusters"]) == (9, 2)
    assert "min_clusters" not in algorithm_to_config(build(9))
    assert algorithm_from_config(config, BALL, algorithm.budget) == algorithm
    for change in (
        {"n_clusters": [2, 9]},
        {"n_clusters": None},
        {"n_clusters": 1},
        {"n_clusters": 101},
        {"min_clusters": 0},
        {"min_clusters": 10},
        {"min_clusters": None},
        {"schedule": algorithm_to_config(build(9))["schedule"]},
    ):
        with pytest.raises((ConfigurationError, ConfigurationTypeError)):
            algorithm_from_config({**config, **change}, BALL, algorithm.budget)
    usual = {**algorithm_to_config(build(9)), "schedule": config["schedule"]}
    with pytest.raises(ConfigurationError, match=r"if min_clusters is given\. Got 0"):
        algorithm_from_config(usual, BALL, algorithm.budget)


@pytest.mark.parametrize(
    ("numbers", "options", "message"),
    [
        ((2, 101), {}, r"n_clusters in \[1, 100\]. Got 101"),
        ((0, 5), {}, r"n_clusters in \[1, 100\]. Got 0"),
        ((6, 5), {}, r"n_clusters as .low, high.. Got \(6, 5\)"),
        ((2, 3, 4), {}, "a pair of them, or None. Got 3 values"),
        ((2, 9), {"min_size": 10}, r"with min_size or max_size.*Got \(2, 9\)"),
        ((2, 9), {"min_clusters": 2}, r"as an integer with min_clusters. Got \(2, 9\)"),
        ((2, 9), {"n_records": 8}, "at most n_records=8. Got 9"),
        ((2.0, 9), {}, "as an integer. Got float"),
        ("2-9", {}, "as an integer. Got str"),
    ],
)
def test_bad_numbers_are_refused(numbers, options, message):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=message):
        build(numbers, **options)


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize("budget", [BUDGET, PrivacyBudget(None)])
def test_a_run_finds_the_number_that_its_elbow_suggests(budget):
    algorithm = build((2, 9), budget)
    stream = Stream.from_key(bytes(32)) if budget.is_private else None
    state = run_of(algorithm, np.array_split(RECORDS, 3), stream)
    centroids, counts = algorithm.centroids(state), algorithm.counts(state)
    synopsis = Synopsis(algorithm.mixture.learned(state), BALL)
    assert synopsis.elbow(range(2, 10)).suggested == len(centroids) == len(counts) == 5
    nearest = np.argmin(((CENTERS[:, None] - centroids) ** 2).sum(axis=2), axis=1)
    np.testing.assert_allclose(centroids[nearest], CENTERS, atol=0.25)
    np.testing.assert_allclose(counts, N / 5, rtol=0.1)
    again = synopsis.kmeans(5)
    np.testing.assert_allclose(again.centroids, centroids, atol=0.01)


@pytest.mark.parametrize("numbers", [(6, 8), (2, 3), (1, 1)])
def test_a_run_keeps_to_its_pair(numbers):
    state = run_of(algorithm := build(numbers), [RECORDS], Stream.from_key(bytes(32)))
    assert numbers[0] <= len(algorithm.centroids(state)) <= numbers[1]


def test_a_run_has_a_third_as_many_clusters_as_parts_or_the_fewest():
    """Of few records: no cell stands out, and the largest alone is kept."""
    algorithm = SynopsisAlgorithm.planned(
        (1, 20), BALL, PrivacyBudget(0.01), n_records=20
    )
    state = run_of(algorithm, [RECORDS[:20]], Stream.from_key(bytes(32)))
    n_parts = len(algorithm.mixture.learned(state).weights)
    assert len(algorithm.centroids(state)) <= max(1, n_parts // 3)
    with_most = SynopsisAlgorithm.planned(
        (19, 20), BALL, PrivacyBudget(0.01), n_records=20
    )
    state = run_of(with_most, [RECORDS[:20]], Stream.from_key(bytes(32)))
    assert len(with_most.centroids(state)) == 19
