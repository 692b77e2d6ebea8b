import json
import math

import numpy as np
import pytest

from flower_kmeans.algorithms import (
    FastLloydAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    Query,
    State,
    SuLloydAlgorithm,
    algorithm_from_config,
)
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.errors import BudgetError, ConfigurationError, ConfigurationTypeError, DataError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.plan import plan_from_config

ALL = [LloydAlgorithm, SuLloydAlgorithm, GLloydAlgorithm, FastLloydAlgorithm]


def paper(cls):
    """Return what makes an algorithm the paper's; its default is in test_relocation.py."""
    return {"relocation": False} if cls is FastLloydAlgorithm else {}


PRIVATE = ALL[1:]
OPEN = PrivacyBudget(None)
RHO = 0.225


def box(d):
    return Box([-1.0] * d, [1.0] * d)


def run(algorithm, records):
    grid = GridRecords(records, algorithm.domain, algorithm.fraction_bits)
    state = algorithm.initial_state()
    for _ in range(algorithm.n_rounds):
        state = algorithm.update(state, algorithm.statistic(algorithm.query(state), grid))
    return state


# ----------------------------------------------------------------- the exact algorithm


@pytest.mark.parametrize("d", [1, 2, 5])
def test_lloyd_is_lloyd(d):
    rng = np.random.default_rng(d)
    records = np.clip(rng.normal(size=(300, d)) * 0.4, -1, 1)
    initial = rng.uniform(-1, 1, size=(4, d))
    algorithm = LloydAlgorithm(4, box(d), OPEN, n_rounds=5, initial=initial)
    expected = initial.copy()
    for _ in range(5):
        labels = ((records[:, None] - expected) ** 2).sum(axis=2).argmin(axis=1)
        for j in np.unique(labels):
            expected[j] = records[labels == j].mean(axis=0)
    state = run(algorithm, records)
    np.testing.assert_allclose(algorithm.centroids(state), expected, atol=1e-3)
    np.testing.assert_array_equal(algorithm.counts(state), np.bincount(labels, minlength=4))


def test_a_cluster_without_records_keeps_its_centroid():
    initial = [[-0.5, 0.0], [1.0, 1.0]]
    algorithm = LloydAlgorithm(2, box(2), OPEN, n_rounds=2, initial=initial)
    state = run(algorithm, np.array([[-0.5, 0.25], [-0.25, 0.0]]))
    np.testing.assert_allclose(algorithm.centroids(state), [[-0.375, 0.125], [1, 1]], atol=1e-4)
    np.testing.assert_array_equal(algorithm.counts(state), [2, 0])


@pytest.mark.parametrize("cls", PRIVATE)
@pytest.mark.parametrize("noisy", [0.99, 0.0, -3.0, -(2.0**40)])
def test_a_noisy_count_too_small_to_divide_by_leaves_the_centroid_alone(cls, noisy):
    algorithm = cls(2, box(2), PrivacyBudget(1.0), n_records=100, n_rounds=2, **paper(cls))
    state = algorithm.initial_state()
    words = np.array([5000, -70000, 20000, 3, noisy * 2**16, 2 * 2**16]).astype(np.int64)
    after = algorithm.update(state, algorithm.unflatten(words, 1))
    old, new = state.arrays["centroids"], after.arrays["centroids"]
    np.testing.assert_array_equal(new[0], old[0])
    offset = old[1] if cls is FastLloydAlgorithm else np.zeros(2)
    np.testing.assert_array_equal(new[1] - offset, [10000, 2])


def test_means_beyond_the_walls_are_folded():
    algorithm = GLloydAlgorithm(1, box(2), PrivacyBudget(1.0), n_records=100)
    words = np.array([1.2 * 2**17, -2.5 * 2**17, 2**17]).astype(np.int64)
    state = algorithm.update(algorithm.initial_state(), algorithm.unflatten(words, 1))
    np.testing.assert_allclose(algorithm.centroids(state), [[0.8, 0.5]], atol=2e-5)


def test_given_centroids_outside_the_domain_move_to_its_boundary():
    algorithm = LloydAlgorithm(2, Ball(1.0, [0, 0]), OPEN, initial=[[3.0, 4.0], [0.0, 0.5]])
    centroids = algorithm.centroids(algorithm.initial_state())
    np.testing.assert_allclose(centroids, [[0.6, 0.8], [0, 0.5]], atol=1e-4)


@pytest.mark.parametrize("cls", ALL)
def test_packed_centroids_lie_in_a_ball(cls):
    budget = OPEN if cls is LloydAlgorithm else PrivacyBudget(1.0)
    algorithm = cls(20, Ball(5.0, [1] * 4), budget, n_records=1000, seed=3)
    centroids = algorithm.centroids(algorithm.initial_state())
    assert (np.linalg.norm(centroids - 1, axis=1) <= 5).all()
    assert len(np.unique(centroids, axis=0)) == 20
    other = cls(20, Ball(5.0, [1] * 4), budget, n_records=1000, seed=4)
    assert (other.centroids(other.initial_state()) != centroids).any()


def test_the_integers_of_a_run_never_change():
    # Replayed by every client: another result here means that versions cannot work together.
    algorithm = GLloydAlgorithm(3, box(2), PrivacyBudget(1.0), n_records=100, seed=7, n_rounds=2)
    state = algorithm.initial_state()
    noise = np.array([100003, -70001, 3, 900, -41, 2**18 + 7, 9 * 2**16, 2**16 - 1, 5 * 2**15])
    for t in (1, 2):
        state = algorithm.update(state, algorithm.unflatten(t * noise, t))
    expected = [[11111, -7778], [3, 900], [-16, 26212]]
    np.testing.assert_array_equal(state.arrays["centroids"], expected)


# ----------------------------------------------------------------- plans


@pytest.mark.parametrize("d", [1, 2, 13, 784])
@pytest.mark.parametrize("n_rounds", [1, 4, 7])
def test_glloyd_noise_is_that_of_the_guarantees(d, n_rounds):
    budget = PrivacyBudget(0.5, 1e-6)
    algorithm = GLloydAlgorithm(2, box(d), budget, n_records=10**6, n_rounds=n_rounds)
    sigma, root = 1 / mu_of_budget(0.5, 1e-6), math.sqrt(d)
    s_sums = sigma * math.sqrt(d * n_rounds) * math.sqrt((2 * RHO + root) / root)
    s_counts = sigma * math.sqrt(n_rounds) * math.sqrt((2 * RHO + root) / (2 * RHO))
    plan = algorithm.plan()
    assert len(plan.rounds) == n_rounds
    for t, (sums, counts) in enumerate(plan.rounds, start=1):
        assert (sums.mechanism, counts.mechanism) == ("gaussian", "gaussian")
        units = algorithm.units(t) / 2**16
        np.testing.assert_allclose(sums.noise_multiplier * units[: 2 * d], s_sums, rtol=1e-9)
        np.testing.assert_allclose(counts.noise_multiplier * units[2 * d :], s_counts, rtol=1e-9)
    assert plan.mu == pytest.approx(1 / sigma, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 13])
def test_sulloyd_splits_epsilon_as_su_et_al(d):
    budget = PrivacyBudget(0.5, 0.0)
    algorithm = SuLloydAlgorithm(2, box(d), budget, n_records=10**5, n_rounds=3)
    count_share = (4 * d * RHO**2) ** (1 / 3)
    for t, (sums, counts) in enumerate(algorithm.plan().rounds, start=1):
        assert (sums.mechanism, counts.mechanism) == ("laplace", "laplace")
        units = algorithm.units(t) / 2**16
        epsilon_sums = d / (sums.noise_multiplier * units[0])
        epsilon_counts = 1 / (counts.noise_multiplier * units[-1])
        assert epsilon_sums / epsilon_counts == pytest.approx(d / count_share)
        assert 3 * (epsilon_sums + epsilon_counts) == pytest.approx(0.5)
    relaxed = SuLloydAlgorithm(2, box(d), PrivacyBudget(0.5), n_records=10**5, n_rounds=3)
    pairs = zip(relaxed.plan().releases, algorithm.plan().releases, strict=True)
    # Numerical composition ends on a grid of scales, so it may lose some 1e-5.
    assert all(some.cost >= pure.cost * (1 - 1e-4) for some, pure in pairs)


@pytest.mark.parametrize(
    ("d", "n_rounds", "less"), [(2, 7, 1.16), (16, 5, 2.2), (64, 5, 4.2), (784, 7, 16)]
)
def test_sulloyd_needs_less_noise_the_more_columns_there_are(d, n_rounds, less):
    """Against one Laplace release of all sums, whose composition over rounds gains little."""
    options = {"n_records": 10**4, "n_rounds": n_rounds}
    algorithm = SuLloydAlgorithm(4, box(d), PrivacyBudget(1.0, 1e-6), **options)
    plan, query = algorithm.plan(), Query(1)
    (sums, counts), words = plan.rounds[0], algorithm.words(1)
    units = algorithm.units(query.round)
    pure = sum(release.cost for release in plan.releases)  # epsilons add up without a delta
    assert pure > less
    joint = SuLloydAlgorithm(4, box(d), PrivacyBudget(1.0, 0.0), **options)
    of_pure = joint.plan().rounds[0]
    scale = of_pure[0].noise_multiplier * joint.units(query.round)[0]
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


@pytest.mark.parametrize(("d", "n_rounds"), [(2, 1), (16, 2)])
def test_the_noise_of_columns_keeps_delta_and_uses_it(d, n_rounds):
    """Against the privacy loss of a record in a corner, simulated."""
    budget = PrivacyBudget(1.0, 1e-2)
    algorithm = SuLloydAlgorithm(2, box(d), budget, n_records=10**4, n_rounds=n_rounds)
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


def paper_rounds(name, k, d, n, mu, epsilon):
    eta = 0.8 * math.sqrt(d) / k ** (1 / d)
    if name == "fastlloyd":
        return 4 * n**2 * 0.004 * mu**2 / (k**3 * eta**2 * (1 + math.sqrt(4 * d)) ** 2)
    if name == "glloyd":
        return 0.004 * n**2 * mu**2 / (k**3 * d * (2 * RHO + math.sqrt(d)) ** 2)
    share = (4 * d * RHO**2) ** (1 / 3)
    return epsilon / math.sqrt(500 * k**3 / n**2 * (d + share) ** 3)


@pytest.mark.parametrize("cls", PRIVATE)
@pytest.mark.parametrize("k", [2, 15, 100])
@pytest.mark.parametrize("d", [1, 2, 8])
def test_automatic_rounds_follow_the_papers(cls, k, d):
    seen = set()
    for n in np.geomspace(200, 10**7, 61).astype(int).tolist():
        budget = PrivacyBudget(0.7, 1e-6)
        algorithm = cls(k, box(d), budget, n_records=n, **paper(cls))
        rounds = paper_rounds(cls.name, k, d, n, mu_of_budget(0.7, 1e-6), 0.7)
        rounds = min(max(rounds, 2), 7)
        # The radius is rounded to the grid, so a whole number may fall on either side.
        assert algorithm.n_rounds in (int(rounds * (1 - 1e-3)), int(rounds * (1 + 1e-3)))
        seen.add(algorithm.n_rounds)
    assert {2, 7} <= seen
    assert len(seen) > 2


def test_one_record_more_can_change_the_number_of_rounds():
    # Hence n_records is a public figure, never a count (docs/guarantees.md, "Neighbours").
    def rounds(n):
        budget = PrivacyBudget(1.0, 1 / (n * math.log(n)))
        return FastLloydAlgorithm(15, box(2), budget, n_records=n, relocation=False).n_rounds

    assert (rounds(3026), rounds(3027)) == (2, 3)


def test_runs_without_privacy_take_seven_rounds_and_no_noise():
    for cls in ALL:
        algorithm = cls(3, box(2), OPEN, **paper(cls))
        assert algorithm.n_rounds == 7
        assert not algorithm.plan().is_private
        assert all(release.noise_multiplier == 0 for release in algorithm.plan().releases)


# ----------------------------------------------------------------- parameters


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_clusters": 0}, ConfigurationError, r"n_clusters in \[1, 10000\]. Got 0"),
        ({"n_clusters": 10_001}, ConfigurationError, "n_clusters in"),
        ({"n_clusters": 2.0}, ConfigurationTypeError, "n_clusters must be an integer, got float"),
        ({"n_clusters": True}, ConfigurationTypeError, "n_clusters must be an integer, got bool"),
        ({"n_clusters": 51}, ConfigurationError, "at most n_records=50. Got 51"),
        ({"n_records": 0}, ConfigurationError, "n_records in"),
        ({"n_records": 50.0}, ConfigurationTypeError, "n_records must be an integer"),
        ({"n_rounds": 0}, ConfigurationError, r"n_rounds in \[1, 1000\]. Got 0"),
        ({"n_rounds": "many"}, ConfigurationError, "'auto'. Got 'many'"),
        ({"n_rounds": 2.5}, ConfigurationTypeError, "n_rounds must be an integer"),
        ({"seed": -1}, ConfigurationError, "seed in"),
        ({"seed": None}, ConfigurationTypeError, "seed must be an integer"),
        ({"fraction_bits": 0}, ConfigurationError, "fraction_bits in"),
        ({"fraction_bits": 26}, ConfigurationError, "fraction_bits in"),
        ({"initial": [[0, 0]]}, ConfigurationError, r"of shape \(3, 2\). Got \(1, 2\)"),
        ({"initial": [[0], [0], [0]]}, DataError, "initial must have 2 columns"),
        ({"initial": [[0, 0], [0, math.nan], [0, 0]]}, DataError, "initial must be finite"),
        ({"n_records": 2**46}, ConfigurationError, "n_records=70368744177664"),
    ],
)
def test_bad_parameters_are_refused(cls, options, error, message):
    budget = OPEN if cls is LloydAlgorithm else PrivacyBudget(1.0)
    good = {"n_clusters": 3, "domain": box(2), "budget": budget, "n_records": 50}
    cls(**good)
    with pytest.raises(error, match=message):
        cls(**{**good, **options})


@pytest.mark.parametrize("cls", ALL)
def test_distances_must_be_exact(cls):
    budget = OPEN if cls is LloydAlgorithm else PrivacyBudget(1.0)
    cls(3, box(2), budget, n_records=50, fraction_bits=25)
    with pytest.raises(ConfigurationError, match="fraction_bits=25 is too fine for 3 columns"):
        cls(3, box(3), budget, n_records=50, fraction_bits=25)


@pytest.mark.parametrize("cls", PRIVATE)
def test_private_runs_need_a_public_number_of_records(cls):
    with pytest.raises(ConfigurationError, match="n_records is required with a private budget"):
        cls(3, box(2), PrivacyBudget(1.0))


# ----------------------------------------------------------------- whole clients


def for_clients(cls, epsilon=1.0, delta=None, **options):
    options = {"n_records": 5000, "n_clients": 200, **options}
    return cls(3, box(2), PrivacyBudget(epsilon, delta, "client"), **options)


@pytest.mark.parametrize("cls", PRIVATE)
def test_the_noise_for_clients_is_clip_times_that_for_records(cls):
    # With a positive delta, SuLloyd accounts for the columns of records one by one.
    delta = 0.0 if cls is SuLloydAlgorithm else 1e-6
    records = cls(3, box(2), PrivacyBudget(1.0, delta), n_records=5000, n_rounds=3)
    clients = for_clients(cls, delta=delta, n_rounds=3)
    assert clients.clip == 25.0
    assert for_clients(cls, clip=4).clip == 4.0
    for t in (1, 2, 3):
        query = Query(t)
        np.testing.assert_array_equal(clients.units(query.round), 25 * records.units(query.round))
        np.testing.assert_array_equal(clients.record_units(query.round), records.units(query.round))
    assert [r.noise_multiplier for r in clients.plan().releases] == [
        r.noise_multiplier for r in records.plan().releases
    ]


@pytest.mark.parametrize("cls", PRIVATE)
def test_delta_is_chosen_from_the_number_of_clients(cls):
    algorithm = for_clients(cls, n_clients=50_000, n_records=10**6)
    assert algorithm.budget.delta == 1 / 5_000_000
    plan = algorithm.plan()
    assert (plan.n_records, plan.n_clients) == (10**6, 50_000)
    assert plan.budget == algorithm.budget


@pytest.mark.parametrize("cls", PRIVATE)
def test_automatic_rounds_see_the_noise_that_there_is(cls):
    seen = set()
    for n_clients in np.geomspace(20, 10**6, 25).astype(int).tolist():
        alike = cls(3, box(2), PrivacyBudget(1.0, 1e-6), n_records=n_clients)
        options = {"delta": 1e-6, "n_clients": n_clients, "n_records": 8 * n_clients}
        algorithm = for_clients(cls, **options)
        assert algorithm.n_rounds == alike.n_rounds
        seen.add(algorithm.n_rounds)
        wider = for_clients(cls, **options, clip=64)
        assert wider.n_rounds <= algorithm.n_rounds <= for_clients(cls, **options, clip=1).n_rounds
    assert {2, 8 if cls is FastLloydAlgorithm else 7} <= seen


@pytest.mark.parametrize("cls", ALL)
def test_without_privacy_no_client_is_clipped(cls):
    algorithm = cls(3, box(2), PrivacyBudget(None, unit="client"), n_records=50)
    assert algorithm.clip is None
    assert "clip" not in algorithm.to_config()
    grid = GridRecords(np.full((40, 2), 0.9), algorithm.domain, algorithm.fraction_bits)
    query = algorithm.query(algorithm.initial_state())
    answer, statistic = algorithm.answer(query, grid), algorithm.statistic(query, grid)
    for name, block in statistic.blocks.items():
        np.testing.assert_array_equal(answer.blocks[name], block)


@pytest.mark.parametrize("cls", PRIVATE)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_clients": None}, ConfigurationError, "n_clients is required with unit='client'"),
        ({"n_clients": 0}, ConfigurationError, "n_clients in"),
        ({"n_clients": 2.0}, ConfigurationTypeError, "n_clients must be an integer"),
        ({"clip": -1.0}, ConfigurationError, "clip positive and finite"),
        ({"clip": "many"}, ConfigurationTypeError, "clip must be a number"),
        ({"clip": 1e-7}, ConfigurationError, r"clip of at least \S+, one grid step of 2\^-16"),
        ({"clip": 1e300}, ConfigurationError, r"2\^63"),
        ({"n_records": None}, ConfigurationError, "n_records is required"),
    ],
)
def test_bad_parameters_for_clients_are_refused(cls, options, error, message):
    with pytest.raises(error, match=message):
        for_clients(cls, **options)


@pytest.mark.parametrize("cls", PRIVATE)
@pytest.mark.parametrize("name", ["clip", "n_clients"])
def test_records_alone_take_no_bound_for_clients(cls, name):
    with pytest.raises(ConfigurationError, match=f"{name}=None unless"):
        cls(3, box(2), PrivacyBudget(1.0), n_records=50, **{name: 5})


@pytest.mark.parametrize("cls", PRIVATE)
def test_a_document_for_clients_names_their_number_and_their_bound(cls):
    algorithm = for_clients(cls, clip=1 / 3, n_rounds="auto")
    config = algorithm.to_config()
    again = algorithm_from_config(config, algorithm.domain, algorithm.budget)
    assert again == algorithm
    assert (again.clip, again.n_clients) == (1 / 3, 200)
    assert again.plan() == algorithm.plan()
    for name in ("clip", "n_clients"):
        less = {key: value for key, value in config.items() if key != name}
        with pytest.raises(ConfigurationError, match="fields of algorithm"):
            algorithm_from_config(less, algorithm.domain, algorithm.budget)
        for value in (None, 0, -5, "5", 2.5, True):
            with pytest.raises((ConfigurationError, ConfigurationTypeError, ValueError)):
                algorithm_from_config({**config, name: value}, algorithm.domain, algorithm.budget)
    # And one for records must not name them.
    records = PrivacyBudget(1.0, algorithm.budget.delta)
    with pytest.raises(ConfigurationError, match="fields of algorithm"):
        algorithm_from_config(config, algorithm.domain, records)


def test_lloyd_takes_no_budget():
    with pytest.raises(ConfigurationError, match=r"epsilon=None for Lloyd.*Got epsilon=1\.0"):
        LloydAlgorithm(3, box(2), PrivacyBudget(1.0), n_records=50)


def test_gaussian_noise_needs_a_delta():
    SuLloydAlgorithm(3, box(2), PrivacyBudget(1.0, 0.0), n_records=50)
    for cls in (GLloydAlgorithm, FastLloydAlgorithm):
        with pytest.raises(BudgetError, match="delta"):
            cls(3, box(2), PrivacyBudget(1.0, 0.0), n_records=50)


@pytest.mark.parametrize("cls", PRIVATE)
def test_noise_that_could_overflow_is_refused_with_the_numbers(cls):
    with pytest.raises(ConfigurationError, match=r"2\^63.*n_records=50 and noise of up to"):
        cls(3, box(2), PrivacyBudget(1e-14, 1e-30), n_records=50)
    algorithm = cls(3, box(2), PrivacyBudget(1e-6), n_records=50)
    algorithm.require_capacity(noise_factor=2.0)
    with pytest.raises(ConfigurationError, match="fraction_bits=16"):
        algorithm.require_capacity(noise_factor=2.0**40)


@pytest.mark.parametrize(
    ("k", "d", "options", "match"),
    [
        (10_000, 419, {}, "k \\(d \\+ 1\\)"),
        (3, 2**21, {"fraction_bits": 4}, "k \\(d \\+ 1\\)"),
        (10_000, 86, {}, "no initial"),
        (1000, 2**12 - 1, {"n_rounds": 33, "fraction_bits": 8}, "n_rounds=33"),
    ],
)
def test_sizes_of_hours_and_gigabytes_are_refused(k, d, options, match):
    with pytest.raises(ConfigurationError, match=match):
        LloydAlgorithm(k, box(d), OPEN, **options)


@pytest.mark.parametrize("cls", ALL)
def test_numpy_integers_are_integers(cls):
    budget = OPEN if cls is LloydAlgorithm else PrivacyBudget(1.0)
    plain = cls(3, box(2), budget, n_records=50, seed=4)
    same = cls(np.int64(3), box(2), budget, n_records=np.uint32(50), seed=np.int8(4))
    assert same == plain
    assert same.plan() == plain.plan()


@pytest.mark.parametrize(
    "change",
    [{"extra": 1}, {"n_rounds": "auto"}, {"n_clusters": "3"}, {"initial": "AAAA"}, {"seed": None}],
)
def test_documents_with_other_parameters_are_refused(change):
    algorithm = GLloydAlgorithm(3, box(2), PrivacyBudget(1.0), n_records=50)
    config = {**algorithm.to_config(), **change}
    with pytest.raises((ConfigurationError, ConfigurationTypeError, ValueError)):
        algorithm_from_config(config, algorithm.domain, algorithm.budget)
    for name in set(algorithm.to_config()) - {"n_records"}:
        config = {key: value for key, value in algorithm.to_config().items() if key != name}
        with pytest.raises(ConfigurationError):
            algorithm_from_config(config, algorithm.domain, algorithm.budget)


def test_states_count_rounds():
    algorithm = LloydAlgorithm(2, box(1), OPEN)
    state = State(4, algorithm.initial_state().arrays)
    assert algorithm.query(state).round == 5
