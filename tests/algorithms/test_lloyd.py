import json
import math

import numpy as np
import pytest

from flower_kmeans.algorithms import (
    FastLloydAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    Query,
    SuLloydAlgorithm,
)
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import Ball, Box
from flower_kmeans.errors import BudgetError, ConfigurationError, DataError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import plan_from_config
from tests.algorithms.rows import box, run_of

pytestmark = pytest.mark.claim("guarantees", "15")

ALL = [LloydAlgorithm, SuLloydAlgorithm, GLloydAlgorithm, FastLloydAlgorithm]


def paper(cls):
    """Return what makes an algorithm the paper's; its default is in test_relocation.py."""
    return {"relocation": False} if cls is FastLloydAlgorithm else {}


PRIVATE = ALL[1:]
OPEN = PrivacyBudget(None)
RHO = 0.225


# ----------------------------------------------------------------- the exact algorithm


@pytest.mark.parametrize("d", [1, 2, 5])
def test_lloyd_is_lloyd(d):
    rng = np.random.default_rng(d)
    records = np.clip(rng.normal(size=(300, d)) * 0.4, -1, 1)
    initial = rng.uniform(-1, 1, size=(4, d))
    algorithm = LloydAlgorithm.planned(4, box(d), OPEN, n_rounds=5, initial=initial)
    expected = initial.copy()
    for _ in range(5):
        labels = ((records[:, None] - expected) ** 2).sum(axis=2).argmin(axis=1)
        for j in np.unique(labels):
            expected[j] = records[labels == j].mean(axis=0)
    state = run_of(algorithm, [records])
    np.testing.assert_allclose(algorithm.centroids(state), expected, atol=1e-3)
    np.testing.assert_array_equal(
        algorithm.counts(state), np.bincount(labels, minlength=4)
    )


@pytest.mark.parametrize("cls", PRIVATE)
@pytest.mark.parametrize("noisy", [0.99, 0.0, -3.0, -(2.0**40)])
def test_a_noisy_count_too_small_to_divide_by_leaves_the_centroid_alone(cls, noisy):
    algorithm = cls.planned(
        2, box(2), PrivacyBudget(1.0), n_records=100, n_rounds=2, **paper(cls)
    )
    state = algorithm.initial_state()
    words = np.array([5000, -70000, 20000, 3, noisy * 2**16, 2 * 2**16]).astype(
        np.int64
    )
    after = algorithm.update(state, algorithm.layout(1).unflatten(words))
    old, new = state.arrays["centroids"], after.arrays["centroids"]
    np.testing.assert_array_equal(new[0], old[0])
    offset = old[1] if cls is FastLloydAlgorithm else np.zeros(2)
    np.testing.assert_array_equal(new[1] - offset, [10000, 2])


@pytest.mark.parametrize("cls", ALL)
def test_packed_centroids_lie_in_a_ball(cls):
    budget = OPEN if cls is LloydAlgorithm else PrivacyBudget(1.0)
    algorithm = cls.planned(20, Ball(5.0, [1] * 4), budget, n_records=1000, seed=3)
    centroids = algorithm.centroids(algorithm.initial_state())
    assert (np.linalg.norm(centroids - 1, axis=1) <= 5).all()
    assert len(np.unique(centroids, axis=0)) == 20
    other = cls.planned(20, Ball(5.0, [1] * 4), budget, n_records=1000, seed=4)
    assert (other.centroids(other.initial_state()) != centroids).any()


# ----------------------------------------------------------------- plans


@pytest.mark.parametrize("d", [1, 2, 13, 784])
@pytest.mark.parametrize("n_rounds", [1, 4, 7])
def test_glloyd_noise_is_that_of_the_guarantees(d, n_rounds):
    budget = PrivacyBudget(0.5, 1e-6)
    algorithm = GLloydAlgorithm.planned(
        2, box(d), budget, n_records=10**6, n_rounds=n_rounds
    )
    sigma, root = 1 / mu_of_budget(0.5, 1e-6), math.sqrt(d)
    s_sums = sigma * math.sqrt(d * n_rounds) * math.sqrt((2 * RHO + root) / root)
    s_counts = sigma * math.sqrt(n_rounds) * math.sqrt((2 * RHO + root) / (2 * RHO))
    plan = algorithm.plan()
    assert len(plan.rounds) == n_rounds
    for t, (sums, counts) in enumerate(plan.rounds, start=1):
        assert (sums.mechanism, counts.mechanism) == ("gaussian", "gaussian")
        units = sensitivities(algorithm, t) / 2**16
        np.testing.assert_allclose(
            sums.noise_multiplier * units[: 2 * d], s_sums, rtol=1e-9
        )
        np.testing.assert_allclose(
            counts.noise_multiplier * units[2 * d :], s_counts, rtol=1e-9
        )
    assert plan.mu == pytest.approx(1 / sigma, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 13])
def test_sulloyd_splits_epsilon_as_su_et_al(d):
    budget = PrivacyBudget(0.5, 0.0)
    algorithm = SuLloydAlgorithm.planned(2, box(d), budget, n_records=10**5, n_rounds=3)
    count_share = (4 * d * RHO**2) ** (1 / 3)
    for t, (sums, counts) in enumerate(algorithm.plan().rounds, start=1):
        assert (sums.mechanism, counts.mechanism) == ("laplace", "laplace")
        units = sensitivities(algorithm, t) / 2**16
        epsilon_sums = d / (sums.noise_multiplier * units[0])
        epsilon_counts = 1 / (counts.noise_multiplier * units[-1])
        assert epsilon_sums / epsilon_counts == pytest.approx(d / count_share)
        assert 3 * (epsilon_sums + epsilon_counts) == pytest.approx(0.5)
    relaxed = SuLloydAlgorithm.planned(
        2, box(d), PrivacyBudget(0.5), n_records=10**5, n_rounds=3
    )
    pairs = zip(relaxed.plan().releases, algorithm.plan().releases, strict=True)
    # Numerical composition ends on a grid of scales, so it may lose some 1e-5.
    assert all(some.cost >= pure.cost * (1 - 1e-4) for some, pure in pairs)


@pytest.mark.claim("guarantees", "15")
@pytest.mark.default_cases("2-7-1.16", "16-5-2.2")
@pytest.mark.parametrize(
    ("d", "n_rounds", "less"), [(2, 7, 1.16), (16, 5, 2.2), (64, 5, 4.2), (784, 7, 16)]
)
def test_sulloyd_needs_less_noise_the_more_columns_there_are(d, n_rounds, less):
    """Against one Laplace release of all sums, whose composition over rounds gains little."""
    options = {"n_records": 10**4, "n_rounds": n_rounds}
    algorithm = SuLloydAlgorithm.planned(4, box(d), PrivacyBudget(1.0, 1e-6), **options)
    plan, query = algorithm.plan(), Query(1)
    (sums, counts), words = plan.rounds[0], algorithm.layout(1).n_words
    units = sensitivities(algorithm, query.round)
    # epsilons add up without a delta
    pure = sum(release.cost for release in plan.releases)
    assert pure > less
    joint = SuLloydAlgorithm.planned(4, box(d), PrivacyBudget(1.0, 0.0), **options)
    of_pure = joint.plan().rounds[0]
    scale = of_pure[0].noise_multiplier * sensitivities(joint, query.round)[0]
    assert scale / (sums.noise_multiplier * units[0]) == pytest.approx(pure, rel=1e-9)
    # Sums and counts keep their ratio, and all words of the sums have the same noise.
    ratio = of_pure[1].noise_multiplier / counts.noise_multiplier
    assert ratio == pytest.approx(pure, rel=1e-9)
    assert len(set(units[: 4 * d])) == 1
    assert plan.epsilon() <= 1.0 < 1.001 * plan.epsilon()
    document = json.dumps(plan.to_config())
    assert len(document) < 400 * 2 * n_rounds
    assert plan_from_config(plan.to_config()) == plan
    assert len(plan.describe().splitlines()) == 2 * n_rounds + 5
    assert words == 4 * d + 4


@pytest.mark.claim("guarantees", "15")
@pytest.mark.default_cases("2-1")
@pytest.mark.parametrize(("d", "n_rounds"), [(2, 1), (16, 2)])
def test_the_noise_of_columns_keeps_delta_and_uses_it(d, n_rounds):
    """Against the privacy loss of a record in a corner, simulated."""
    budget = PrivacyBudget(1.0, 1e-2)
    algorithm = SuLloydAlgorithm.planned(
        2, box(d), budget, n_records=10**4, n_rounds=n_rounds
    )
    costs = [cost for release in algorithm.plan().releases for cost in release.costs]
    assert len(costs) == (d + 1) * n_rounds
    rng, deltas = np.random.default_rng(1), []
    for _ in range(20):
        x = rng.laplace(size=(50_000, len(costs)))  # in units of the noise's scale
        losses = (np.abs(x + costs) - np.abs(x)).sum(axis=1)
        deltas.extend(np.maximum(0.0, -np.expm1(1.0 - losses)))
    # The mean deviates by 6 standard errors with a probability of 2e-9.
    tolerance = 6 * np.std(deltas) / math.sqrt(len(deltas))
    assert np.mean(deltas) <= 1e-2 + tolerance
    assert np.mean(deltas) >= 0.98e-2 - tolerance
    assert tolerance < 0.05e-2


@pytest.mark.claim("guarantees", "15")
def test_sulloyd_accounts_for_the_columns_of_a_box_one_by_one():
    """By the half width of each, however many there are of it; balls and pure epsilons jointly."""
    deep, options = (
        Box([0, 0, 0], [8, 8, 2], scale="common"),
        {"n_records": 1000, "n_rounds": 3},
    )
    (sums, counts), *_ = (
        SuLloydAlgorithm.planned(2, deep, PrivacyBudget(1.0), **options).plan().rounds
    )
    assert sums.parts == ((0.25, 1), (1.0, 2))
    assert (sums.norm, counts.norm, counts.parts) == ("linf", "l1", ())
    many = Box([0] * 17, range(1, 18), scale="common")
    for domain, budget in (
        (Ball(2.0, [0, 0]), PrivacyBudget(1.0)),
        (deep, PrivacyBudget(1.0, 0.0)),
        (deep, PrivacyBudget(1.0, unit="client")),
        (many, PrivacyBudget(1.0)),
    ):
        clients = {"n_clients": 100} if budget.unit == "client" else {}
        plan = SuLloydAlgorithm.planned(2, domain, budget, **options, **clients).plan()
        assert {(r.norm, r.parts) for r in plan.releases} == {("l1", ())}


def paper_rounds(name, k, d, n, mu, epsilon):
    eta = 0.8 * math.sqrt(d) / k ** (1 / d)
    if name == "fastlloyd":
        return 4 * n**2 * 0.004 * mu**2 / (k**3 * eta**2 * (1 + math.sqrt(4 * d)) ** 2)
    if name == "glloyd":
        return 0.004 * n**2 * mu**2 / (k**3 * d * (2 * RHO + math.sqrt(d)) ** 2)
    share = (4 * d * RHO**2) ** (1 / 3)
    return epsilon / math.sqrt(500 * k**3 / n**2 * (d + share) ** 3)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("cls", PRIVATE)
@pytest.mark.parametrize("k", [2, 100])
@pytest.mark.parametrize("d", [1, 2, 8])
def test_automatic_rounds_follow_the_papers(cls, k, d):
    seen = set()
    for n in np.geomspace(200, 10**7, 31).astype(int).tolist():
        budget = PrivacyBudget(0.7, 1e-6)
        algorithm = cls.planned(k, box(d), budget, n_records=n, **paper(cls))
        rounds = paper_rounds(cls.name, k, d, n, mu_of_budget(0.7, 1e-6), 0.7)
        rounds = min(max(rounds, 2), 7)
        # The radius is rounded to the grid, so a whole number may fall on either side.
        assert algorithm.n_rounds in (
            int(rounds * (1 - 1e-3)),
            int(rounds * (1 + 1e-3)),
        )
        seen.add(algorithm.n_rounds)
    assert {2, 7} <= seen
    assert len(seen) > 2


# ----------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("k", "d", "options", "match"),
    [
        (10_000, 419, {}, "Got 4200000 in round 1,.*419 columns, n_clusters=10000"),
        (3, 2**21, {"fraction_bits": 4}, "Got 6291459 in round 1"),
        (10_000, 86, {}, "no initial"),
        (
            1000,
            2**12 - 1,
            {"n_rounds": 33, "fraction_bits": 8},
            "in round 33, .* n_rounds=33",
        ),
    ],
)
def test_sizes_of_hours_and_gigabytes_are_refused(k, d, options, match):
    with pytest.raises(ConfigurationError, match=match):
        LloydAlgorithm.planned(k, box(d), OPEN, **options)


@pytest.mark.parametrize(
    ("cls", "options", "error", "message"),
    [
        (
            LloydAlgorithm,
            {"initial": [[0, 0]]},
            ConfigurationError,
            r"of shape \(3, 2\). Got \(1",
        ),
        (
            LloydAlgorithm,
            {"initial": [[0]] * 3},
            DataError,
            "Expected initial with 2 columns",
        ),
        (
            LloydAlgorithm,
            {"initial": [[0, math.nan]] * 3},
            DataError,
            "Expected initial to be finite",
        ),
        (
            LloydAlgorithm,
            {"budget": PrivacyBudget(1.0)},
            ConfigurationError,
            "epsilon=None for",
        ),
        (LloydAlgorithm, {"cost": True}, ConfigurationError, "cost=False for 'lloyd'"),
        (
            SuLloydAlgorithm,
            {"cost": True},
            ConfigurationError,
            "cost=False for 'sulloyd'",
        ),
        (GLloydAlgorithm, {"budget": PrivacyBudget(1.0, 0.0)}, BudgetError, "delta"),
        (FastLloydAlgorithm, {"budget": PrivacyBudget(1.0, 0.0)}, BudgetError, "delta"),
    ],
)
def test_what_an_algorithm_cannot_do_is_refused(cls, options, error, message):
    with pytest.raises(error, match=message):
        cls.planned(3, box(2), **{"budget": OPEN, "n_records": 50, **options})


@pytest.mark.claim("guarantees", "34")
@pytest.mark.parametrize("cls", PRIVATE)
def test_automatic_rounds_see_the_noise_that_there_is(cls):
    """Clients are as records of which there are N over clip; without noise there are seven."""
    options = {
        "budget": PrivacyBudget(1.0, 1e-6, "client"),
        "domain": box(2),
        "n_clusters": 3,
    }
    for n in (20, 300, 2000, 10**6):
        alike = cls.planned(3, box(2), PrivacyBudget(1.0, 1e-6), n_records=n)
        found, wide, narrow = (
            cls.planned(**options, n_clients=n, n_records=8 * n, clip=clip).n_rounds
            for clip in (8, 64, 1)
        )
        assert wide <= found == alike.n_rounds <= narrow
    exact = cls.planned(3, box(2), OPEN, **paper(cls))
    assert (exact.n_rounds, LloydAlgorithm.planned(3, box(2), OPEN).n_rounds) == (7, 7)


def test_results_are_in_the_users_units():
    initial = np.array([[10.0, -3.0], [20.0, -1.0], [12.5, -2.0]])
    algorithm = LloydAlgorithm.planned(
        3, Box([10, -3], [20, -1]), OPEN, initial=initial
    )
    state = algorithm.initial_state()
    np.testing.assert_allclose(algorithm.centroids(state), initial, atol=1e-4)
    ball = LloydAlgorithm.planned(
        2, Ball(1.0, [0, 0]), OPEN, initial=[[3.0, 4.0], [0.0, 0.5]]
    )
    centroids = ball.centroids(ball.initial_state())
    np.testing.assert_allclose(centroids, [[0.6, 0.8], [0, 0.5]], atol=1e-4)
