import math

import numpy as np
import pytest

from flower_kmeans.algorithms import FastLloydAlgorithm, LloydAlgorithm, Query, State
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from tests.algorithms.rows import box, run_of

pytestmark = pytest.mark.claim("guarantees", "14")

BUDGET = PrivacyBudget(1.0)
ONE = 2**16


def build(k=2, d=2, **options):
    """Return the paper's algorithm; tests/algorithms/test_relocation.py has the default."""
    options = {"n_records": 1000, "relocation": False, **options}
    return FastLloydAlgorithm.planned(k, box(d), BUDGET, **options)


def statistic(algorithm, centroids, points, round_number=2):
    query = Query(round_number, {"centroids": np.array(centroids, dtype=np.int64)})
    records = GridRecords.from_grid(np.array(points), algorithm.fraction_bits)
    return algorithm.statistic(query, records).blocks


# ----------------------------------------------------------------- radii


@pytest.mark.parametrize(
    ("k", "d"), [(1, 1), (15, 2), (100, 2), (3, 13), (2, 784), (1000, 3)]
)
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
    # never more than the diameter
    assert build(1, 1, alpha=50.0).radius_of(2) == 2 * ONE


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


def test_without_noise_and_with_a_wide_radius_it_is_lloyd():
    records = np.clip(np.random.default_rng(0).normal(size=(400, 3)) * 0.4, -1, 1)
    options = {"n_rounds": 5, "seed": 2}
    wide = {"alpha": 100.0, "radius": "constant", "relocation": False}
    fast = FastLloydAlgorithm.planned(4, box(3), PrivacyBudget(None), **wide, **options)
    lloyd = LloydAlgorithm.planned(4, box(3), PrivacyBudget(None), **options)
    results = [each.centroids(run_of(each, [records])) for each in (fast, lloyd)]
    np.testing.assert_allclose(*results, atol=1e-3)


# ----------------------------------------------------------------- updates


def update(algorithm, centroids, sums, counts, round_number=2):
    state = State(round_number - 1, {"centroids": np.array(centroids, dtype=np.int64)})
    words = np.concatenate([np.ravel(sums), counts]).astype(np.int64)
    after = algorithm.update(state, algorithm.layout(round_number).unflatten(words))
    return after.arrays["centroids"]


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


def test_distances_to_free_centroids_are_exact():
    # 64 centroids outside a grid that is as fine as it may be: only exact integers find
    # the nearest one of centroids whose distances differ by a few units of 2^52.
    q, d, k = 22, 8, 64
    algorithm = build(
        k, d, n_records=10**6, fraction_bits=q, postprocess="none", alpha=3.0
    )
    rng = np.random.default_rng(0)
    centroids = 2**q * 2 - rng.integers(0, 3, size=(k, d))
    points = -(2**q) + rng.integers(0, 3, size=(50, d))
    labels = [
        min(
            range(k),
            key=lambda j: sum(
                (int(a) - int(b)) ** 2 for a, b in zip(x, centroids[j], strict=True)
            ),
        )
        for x in points
    ]
    expected = np.zeros((k, d), dtype=np.int64)
    np.add.at(expected, labels, points - centroids[labels])
    state = State(1, {"centroids": centroids})
    query = algorithm.query(state)
    object.__setattr__(algorithm, "_radius", 2**q * 20)  # every record within reach
    blocks = algorithm.statistic(query, GridRecords.from_grid(points, q)).blocks
    np.testing.assert_array_equal(
        blocks["counts"] >> q, np.bincount(labels, minlength=k)
    )
    np.testing.assert_array_equal(blocks["sums"], expected)


@pytest.mark.claim("guarantees", "13")
def test_the_integers_of_a_run_never_change():
    algorithm = build(3, 2, seed=7, n_rounds=2)
    state = algorithm.initial_state()
    noise = np.array(
        [100003, -70001, 3, 900, -41, 2**18 + 7, 9 * ONE, ONE - 1, 5 * 2**15]
    )
    for t in (1, 2):
        state = algorithm.update(state, algorithm.layout(t).unflatten(t * noise))
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
        units = sensitivities(algorithm, t)
        expected = (
            sigma
            * spread
            / (4 * d) ** 0.25
            * math.sqrt(n_rounds)
            * algorithm.radius_of(t)
        )
        np.testing.assert_allclose(sums.noise_multiplier * units[: k * d], expected)
        expected = sigma * spread * math.sqrt(n_rounds) * ONE
        np.testing.assert_allclose(counts.noise_multiplier * units[k * d :], expected)


@pytest.mark.parametrize(("k", "d", "n_rounds"), [(15, 2, 7), (100, 2, 2), (3, 13, 4)])
def test_every_round_pays_for_its_own_radius(k, d, n_rounds):
    algorithm = build(k, d, n_rounds=n_rounds)
    total = 0.0
    for t, (sums, counts) in enumerate(algorithm.plan().rounds, start=1):
        units = sensitivities(algorithm, t)
        noise_sums = sums.noise_multiplier * units[0]
        noise_counts = counts.noise_multiplier * units[-1]
        assert units[0] == algorithm.radius_of(t)
        assert noise_counts / ONE / sums.noise_multiplier == pytest.approx(
            (4 * d) ** 0.25
        )
        total += (algorithm.radius_of(t) / noise_sums) ** 2 + (ONE / noise_counts) ** 2
    budget = algorithm.budget
    assert math.sqrt(total) == pytest.approx(
        mu_of_budget(budget.epsilon, budget.delta), rel=1e-9
    )
    first, later = (algorithm.plan().rounds[t][0].noise_multiplier for t in (0, 1))
    ratio = algorithm.radius_of(2) / algorithm.radius_of(1)
    assert (first / later) ** 2 == pytest.approx(2 * ratio)


# ----------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("postprocess", "expected"), [("fold", 0.9), ("truncate", 1.0), ("none", 1.1)]
)
def test_centroids_beyond_the_walls(postprocess, expected):
    algorithm = build(1, 1, postprocess=postprocess)
    moved = update(algorithm, [[0.9 * ONE]], [[0.2 * ONE]], [ONE])
    assert moved[0, 0] == pytest.approx(expected * ONE, abs=1)
    reach = (2 if postprocess == "none" else 1) * ONE
    np.testing.assert_array_equal(algorithm.query_ranges(2)["centroids"][2], [reach])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1e-9}, "alpha so large"),
        ({"d": 2, "postprocess": "none", "fraction_bits": 25}, "too fine"),
        ({"d": 8, "postprocess": "none", "fraction_bits": 24}, "too fine"),
        ({"postprocess": "none", "cost": True}, "'fold' or 'truncate' with cost=True"),
        (
            {"alpha": 0.2, "k": 1, "cost": True, "fraction_bits": 3},
            "radius whose square",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused(options, message):
    build(**{**options, "postprocess": "fold", "alpha": 0.8, "cost": False})
    with pytest.raises(ConfigurationError, match=message):
        build(**options)
