import itertools
import math

import numpy as np
import pytest

from flower_kmeans.algorithms import FastLloydAlgorithm, LloydAlgorithm, Query, State
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import epsilon_of_mu, mu_of_budget

BUDGET = PrivacyBudget(1.0)
ONE = 2**16


def box(d):
    return Box([-1.0] * d, [1.0] * d)


def build(k=2, d=2, **options):
    """Return the paper's algorithm; tests/algorithms/test_relocation.py has the default."""
    options = {"n_records": 1000, "relocation": False, **options}
    return FastLloydAlgorithm(k, box(d), BUDGET, **options)


def statistic(algorithm, centroids, points, round_number=2):
    query = Query(round_number, {"centroids": np.array(centroids, dtype=np.int64)})
    records = GridRecords.from_grid(np.array(points), algorithm.fraction_bits)
    return algorithm.statistic(query, records).blocks


# ----------------------------------------------------------------- radii


@pytest.mark.parametrize(("k", "d"), [(1, 1), (15, 2), (100, 2), (3, 13), (2, 784), (1000, 3)])
@pytest.mark.parametrize("alpha", [0.1, 0.8, 1.0])
def test_the_radius_is_that_of_the_paper(k, d, alpha):
    algorithm = build(k, d, alpha=alpha)
    beta = 2 * math.sqrt(d)
    assert algorithm.radius_of(1) == math.floor(beta / 2 * ONE)
    for t in range(2, algorithm.n_rounds + 1):
        expected = alpha * beta / (2 * k ** (1 / d)) * ONE
        assert abs(algorithm.radius_of(t) - expected) <= 0.5 + 1e-6
    constant = build(k, d, alpha=alpha, radius="constant")
    assert constant.radius_of(1) == constant.radius_of(2) == algorithm.radius_of(2)


def test_the_radius_is_never_larger_than_the_diameter():
    assert build(1, 1, alpha=50.0).radius_of(2) == 2 * ONE
    ball = FastLloydAlgorithm(
        1, Ball(7.0, [0] * 9), BUDGET, n_records=10, alpha=50.0, relocation=False
    )
    assert (ball.radius_of(1), ball.radius_of(2)) == (ONE, 2 * ONE)


@pytest.mark.parametrize("radius", ["step", "constant"])
def test_only_records_within_the_radius_count(radius):
    algorithm = build(2, 1, radius=radius, alpha=0.5)  # later radius: a quarter
    for t in (1, 2):
        reach = algorithm.radius_of(t)
        assert reach == (ONE if (t, radius) == (1, "step") else ONE // 4)
        blocks = statistic(algorithm, [[-ONE], [-ONE]], [[-ONE + reach]], t)
        np.testing.assert_array_equal(blocks["counts"], [ONE, 0])
        np.testing.assert_array_equal(blocks["sums"], [[reach], [0]])
        blocks = statistic(algorithm, [[-ONE], [-ONE]], [[-ONE + reach + 1]], t)
        assert not blocks["counts"].any()
        assert not blocks["sums"].any()


def test_sums_are_relative_to_the_centroids():
    algorithm = build(2, 2, alpha=1.0)
    points = [[100, 200], [110, 190], [-5000, 4]]
    blocks = statistic(algorithm, [[90, 180], [-5000, 0]], points)
    np.testing.assert_array_equal(blocks["sums"], [[30, 30], [0, 4]])
    np.testing.assert_array_equal(blocks["counts"], [2 * ONE, ONE])


def test_without_noise_and_with_a_wide_radius_it_is_lloyd():
    records = np.clip(np.random.default_rng(0).normal(size=(400, 3)) * 0.4, -1, 1)
    options = {"n_rounds": 5, "seed": 2}
    wide = {"alpha": 100.0, "radius": "constant", "relocation": False}
    fast = FastLloydAlgorithm(4, box(3), PrivacyBudget(None), **wide, **options)
    lloyd = LloydAlgorithm(4, box(3), PrivacyBudget(None), **options)
    results = []
    for algorithm in (fast, lloyd):
        grid = GridRecords(records, algorithm.domain, 16)
        state = algorithm.initial_state()
        for _ in range(5):
            state = algorithm.update(state, algorithm.statistic(algorithm.query(state), grid))
        results.append(algorithm.centroids(state))
    np.testing.assert_allclose(*results, atol=1e-3)


# ----------------------------------------------------------------- updates


def update(algorithm, centroids, sums, counts, round_number=2):
    state = State(round_number - 1, {"centroids": np.array(centroids, dtype=np.int64)})
    words = np.concatenate([np.ravel(sums), counts]).astype(np.int64)
    after = algorithm.update(state, algorithm.unflatten(words, round_number))
    return after.arrays["centroids"]


def test_centroids_move_by_the_mean_offset():
    algorithm = build(2, 2)
    moved = update(algorithm, [[5, 6], [7, 8]], [[300, -30], [5, 4]], [3 * ONE, ONE])
    np.testing.assert_array_equal(moved, [[105, -4], [12, 12]])


def test_moves_are_clipped_to_the_radius_of_the_round():
    algorithm = build(1, 2, alpha=0.5)
    for t in (1, 2):
        moved = update(algorithm, [[0, 0]], [[30 * ONE, -40 * ONE]], [ONE], t)
        direction = np.array([0.6, -0.8])
        reach = algorithm.radius_of(t)
        # In round 1 the move of 1.41 ends beyond the wall, and is folded.
        expected = reach * direction
        expected[1] = max(expected[1], -2 * ONE - expected[1])
        np.testing.assert_allclose(moved[0], expected, atol=1)


@pytest.mark.parametrize(
    ("postprocess", "expected"), [("fold", 0.9), ("truncate", 1.0), ("none", 1.1)]
)
def test_centroids_beyond_the_walls(postprocess, expected):
    algorithm = build(1, 1, postprocess=postprocess)
    moved = update(algorithm, [[0.9 * ONE]], [[0.2 * ONE]], [ONE])
    assert moved[0, 0] == pytest.approx(expected * ONE, abs=1)


def test_free_centroids_stay_within_twice_the_box():
    algorithm = build(1, 2, postprocess="none", alpha=1.0)
    moved = update(algorithm, [[2 * ONE, -1.9 * ONE]], [[0.5 * ONE, -0.5 * ONE]], [ONE])
    np.testing.assert_array_equal(moved, [[2 * ONE, -2 * ONE]])


def test_distances_to_free_centroids_are_exact():
    # 64 centroids outside a grid that is as fine as it may be: only exact integers find the
    # nearest one of centroids whose distances differ by a few units of 2^52.
    q, d, k = 22, 8, 64
    algorithm = build(k, d, n_records=10**6, fraction_bits=q, postprocess="none", alpha=3.0)
    rng = np.random.default_rng(0)
    centroids = 2**q * 2 - rng.integers(0, 3, size=(k, d))
    points = -(2**q) + rng.integers(0, 3, size=(50, d))
    labels = [
        min(
            range(k),
            key=lambda j: sum((int(a) - int(b)) ** 2 for a, b in zip(x, centroids[j], strict=True)),
        )
        for x in points
    ]
    expected = np.zeros((k, d), dtype=np.int64)
    np.add.at(expected, labels, points - centroids[labels])
    state = State(1, {"centroids": centroids})
    query = algorithm.query(state)
    object.__setattr__(algorithm, "_radius", 2**q * 20)  # every record within reach
    blocks = algorithm.statistic(query, GridRecords.from_grid(points, q)).blocks
    np.testing.assert_array_equal(blocks["counts"] >> q, np.bincount(labels, minlength=k))
    np.testing.assert_array_equal(blocks["sums"], expected)


def test_free_centroids_need_a_coarser_grid():
    with pytest.raises(ConfigurationError, match="too fine"):
        build(2, 2, postprocess="none", fraction_bits=25)
    build(2, 2, postprocess="none", fraction_bits=24)
    build(2, 8, fraction_bits=24)
    with pytest.raises(ConfigurationError, match="too fine"):
        build(2, 8, postprocess="none", fraction_bits=24)


def test_the_integers_of_a_run_never_change():
    algorithm = build(3, 2, seed=7, n_rounds=2)
    state = algorithm.initial_state()
    noise = np.array([100003, -70001, 3, 900, -41, 2**18 + 7, 9 * ONE, ONE - 1, 5 * 2**15])
    for t in (1, 2):
        state = algorithm.update(state, algorithm.unflatten(t * noise, t))
    expected = [[50984, -31375], [-32245, 16100], [36325, 43783]]
    np.testing.assert_array_equal(state.arrays["centroids"], expected)


# ----------------------------------------------------------------- plans


@pytest.mark.parametrize(("k", "d"), [(15, 2), (2, 13), (10, 784)])
@pytest.mark.parametrize("n_rounds", [1, 2, 7])
def test_a_constant_radius_has_the_papers_noise(k, d, n_rounds):
    algorithm = build(k, d, radius="constant", n_rounds=n_rounds)
    budget = algorithm.budget
    sigma = 1 / mu_of_budget(budget.epsilon, budget.delta)
    spread = math.sqrt(1 + math.sqrt(4 * d))
    for t, (sums, counts) in enumerate(algorithm.plan().rounds, start=1):
        units = algorithm.units(t)
        expected = sigma * spread / (4 * d) ** 0.25 * math.sqrt(n_rounds) * algorithm.radius_of(t)
        np.testing.assert_allclose(sums.noise_multiplier * units[: k * d], expected)
        expected = sigma * spread * math.sqrt(n_rounds) * ONE
        np.testing.assert_allclose(counts.noise_multiplier * units[k * d :], expected)


@pytest.mark.parametrize(("k", "d", "n_rounds"), [(15, 2, 7), (100, 2, 2), (3, 13, 4)])
def test_every_round_pays_for_its_own_radius(k, d, n_rounds):
    algorithm = build(k, d, n_rounds=n_rounds)
    total = 0.0
    for t, (sums, counts) in enumerate(algorithm.plan().rounds, start=1):
        units = algorithm.units(t)
        noise_sums = sums.noise_multiplier * units[0]
        noise_counts = counts.noise_multiplier * units[-1]
        assert units[0] == algorithm.radius_of(t)
        assert noise_counts / ONE / sums.noise_multiplier == pytest.approx((4 * d) ** 0.25)
        total += (algorithm.radius_of(t) / noise_sums) ** 2 + (ONE / noise_counts) ** 2
    budget = algorithm.budget
    assert math.sqrt(total) == pytest.approx(mu_of_budget(budget.epsilon, budget.delta), rel=1e-9)
    first, later = (algorithm.plan().rounds[t][0].noise_multiplier for t in (0, 1))
    ratio = algorithm.radius_of(2) / algorithm.radius_of(1)
    assert (first / later) ** 2 == pytest.approx(2 * ratio)


@pytest.mark.parametrize(("k", "epsilon"), [(15, 1.93), (100, 4.81)])
def test_noise_for_one_radius_would_cost_far_more(k, epsilon):
    # What the paper's accounting of "Step" misses: noise for eta, but round 1 keeps beta / 2.
    d, n_rounds, delta = 2, 7, 1e-6
    options = {"n_records": 10**6, "n_rounds": n_rounds, "relocation": False}
    budget = PrivacyBudget(1.0, delta)
    paper = FastLloydAlgorithm(k, box(d), budget, radius="constant", **options)
    step = FastLloydAlgorithm(k, box(d), budget, **options)
    total = 0.0
    for t, (sums, counts) in enumerate(paper.plan().rounds, start=1):
        noise = sums.noise_multiplier * paper.radius_of(t)
        total += (step.radius_of(t) / noise) ** 2 + counts.cost**2
    assert epsilon_of_mu(math.sqrt(total), delta) == pytest.approx(epsilon, rel=0.02)


# ----------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"alpha": 0}, ConfigurationError, "alpha positive and finite. Got 0"),
        ({"alpha": math.nan}, ConfigurationError, "alpha positive and finite. Got nan"),
        ({"alpha": math.inf}, ConfigurationError, "alpha positive and finite. Got inf"),
        ({"alpha": "wide"}, ConfigurationTypeError, "alpha must be a number, got str"),
        ({"alpha": True}, ConfigurationTypeError, "alpha must be a number, got bool"),
        ({"alpha": 1e-9}, ConfigurationError, "alpha so large"),
        ({"radius": "wide"}, ConfigurationError, r"radius in \['step', 'constant'\]. Got 'wide'"),
        ({"relocation": "yes"}, ConfigurationTypeError, "relocation must be a bool, got str"),
        ({"postprocess": None}, ConfigurationError, "postprocess in .* Got None"),
    ],
)
def test_bad_parameters_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        build(**options)


def test_parameters_make_algorithms_different():
    variants = [
        build(alpha=alpha, radius=radius, postprocess=postprocess, relocation=relocation)
        for alpha, radius, postprocess, relocation in itertools.product(
            (0.8, 0.9), ("step", "constant"), ("fold", "truncate", "none"), (False, True)
        )
    ]
    assert len(set(variants)) == 24


def test_free_centroids_leave_room_for_larger_offsets():
    """Without postprocessing a record may be three half widths from a centroid."""
    options = {"n_records": 3 * 2**39, "n_rounds": 2, "fraction_bits": 21}
    box = Box([-1.0], [1.0])
    FastLloydAlgorithm(2, box, PrivacyBudget(1.0), **options)
    with pytest.raises(ConfigurationError, match="n_records"):
        FastLloydAlgorithm(2, box, PrivacyBudget(1.0), postprocess="none", **options)
