"""An algorithm before a round that measures the silhouette of its result."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import pairwise_distances

from flower_kmeans.algorithms import (
    ConstrainedLloydAlgorithm,
    FastLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    PEMeansAlgorithm,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
    judged,
    tightened,
)
from flower_kmeans.algorithms.answers import (
    answer_of,
    contribution,
    reconstructed,
    words_of_rows,
)
from flower_kmeans.algorithms.budget_parts import rest_of
from flower_kmeans.algorithms.judged import QUALITY, SILHOUETTES, Judged
from flower_kmeans.algorithms.layout import COUNTS
from flower_kmeans.algorithms.plausibility import FindingKind, findings_of
from flower_kmeans.algorithms.queries import check_query
from flower_kmeans.algorithms.registry import algorithm_from_config, algorithm_to_config
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.algorithms.state import Query, State
from flower_kmeans.data.domain import Ball, Box, GridRecords, Sphere
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise
from flower_kmeans.report.silhouette import Silhouette
from flower_kmeans.vertical.algorithm import VerticalAlgorithm

RNG = np.random.default_rng
BUDGET = PrivacyBudget(1.0, 1e-6)
CLIENTS = PrivacyBudget(2.0, 1e-6, unit="client")
OPEN = PrivacyBudget(None)
BOX = Box([0, 0], [1, 1])
WIDE = Box([-50, -50], [50, 50], tighten=0.1)
N = 6000
CENTERS = np.array([[0.2, 0.2], [0.8, 0.3], [0.4, 0.9]])


def make(kind=GLloydAlgorithm, domain=BOX, budget=BUDGET, k=3, **options):
    options = {"n_records": N, "quality": True, **options}
    if kind is FedDPAlgorithm:
        options["server_data"] = CENTERS.repeat(4, axis=0) + RNG(4).normal(
            0, 0.1, (12, 2)
        )
    return tightened.planned(kind, k, domain, budget, **options)


def records(n=N):
    return CENTERS[np.arange(n) % 3] + RNG(0).normal(0, 0.08, (n, 2))


def run(algorithm, rows, stream=None):
    """Return the state after all rounds; with a stream, with noise."""
    state = algorithm.initial_state(RNG(1))
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        check_query(algorithm, query)
        words = words_of_rows(algorithm, query, rows)
        if stream is not None:
            words = words + server_noise(algorithm, algorithm.plan(), number, stream)
        state = algorithm.update(
            state, reconstructed(algorithm, number, words), RNG(number)
        )
    return state


# --------------------------------------------------------------------------- the plan


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize("tighten", [None, 0.1, 0.5])
@pytest.mark.parametrize(
    "kind", [GLloydAlgorithm, FastLloydAlgorithm, SynopsisAlgorithm]
)
def test_the_last_round_costs_a_twentieth_of_mu_squared_and_the_rest_is_as_planned(
    kind, tighten
):
    domain = Box([0, 0], [1, 1], tighten=tighten)
    algorithm = make(kind, domain)
    plan = algorithm.plan()
    mu = mu_of_budget(1.0, 1e-6)
    assert plan.mu == pytest.approx(mu, rel=1e-12)
    *others, (last,) = plan.rounds
    assert last.cost**2 / mu**2 == pytest.approx(0.05, rel=1e-12)
    assert last.blocks == (COUNTS, SILHOUETTES)
    taken = 0.05
    if tighten is not None:
        ((first,), *others) = others
        assert first.cost**2 / mu**2 == pytest.approx(tighten, rel=1e-12)
        taken += tighten
    inner = kind.planned(
        3, domain.tightened(None), rest_of(BUDGET, taken), n_records=N
    ).plan()
    assert len(others) == len(inner.rounds)
    for own, expected in zip(others, inner.rounds, strict=True):
        for each, other in zip(own, expected, strict=True):
            assert each.noise_multiplier == pytest.approx(
                other.noise_multiplier, rel=1e-9
            )
            assert replace(each, noise_multiplier=1.0) == replace(
                other, noise_multiplier=1.0
            )


@pytest.mark.parametrize("domain", [BOX, WIDE])
@pytest.mark.parametrize("kind", [GLloydAlgorithm, SynopsisAlgorithm, PEMeansAlgorithm])
def test_rounds_before_the_last_one_expect_the_noise_that_they_get(kind, domain):
    algorithm = make(kind, domain)
    inner = tightened.innermost(algorithm)
    first = algorithm.n_rounds - 1 - inner.n_rounds
    for t in range(1, inner.n_rounds + 1):
        added = algorithm.noise_of(first + t)
        assert inner.noise_of(t) == pytest.approx(added, rel=1e-9)


@pytest.mark.claim("guarantees", "48")
def test_pure_privacy_has_laplace_noise_and_a_twentieth_of_epsilon():
    algorithm = make(SuLloydAlgorithm, budget=PrivacyBudget(1.0, 0.0))
    (release,) = algorithm.plan().rounds[-1]
    assert (release.mechanism, release.norm) == ("laplace", "l1")
    assert release.cost == pytest.approx(0.05, rel=1e-9)
    assert tightened.innermost(algorithm).budget.epsilon == 0.95
    assert set(algorithm.block_sensitivities(algorithm.n_rounds).values()) == {2.0**17}
    inner = SuLloydAlgorithm.planned(3, BOX, PrivacyBudget(0.95, 0.0), n_records=N)
    for own, expected in zip(
        algorithm.plan().rounds[:-1], inner.plan().rounds, strict=True
    ):
        multipliers = [each.noise_multiplier for each in expected]
        assert [each.noise_multiplier for each in own] == pytest.approx(multipliers)


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize("budget", [BUDGET, CLIENTS])
@pytest.mark.parametrize("size", [2 / 3, 1, 3 / 2])
def test_the_noise_of_the_last_round_is_that_of_the_plan(budget, size):
    n_clients = 50 if budget is CLIENTS else None
    algorithm = make(budget=budget, n_clients=n_clients, k=40, n_records=60_000)
    t = algorithm.n_rounds
    (release,) = algorithm.plan().rounds[-1]
    clip = 60_000 / (4 * 50) if budget is CLIENTS else 1.0
    planned = release.noise_multiplier * clip * math.sqrt(2)
    assert judged.noise_of(algorithm) == pytest.approx(planned, rel=1e-12)
    stream = Stream.fresh()
    noise = np.concatenate(
        [server_noise(algorithm, algorithm.plan(), t, stream) for _ in range(20)]
    )
    found = size * np.std(noise) * 2.0**-16 / planned
    assert (0.9 < found < 1.1) == (size == 1)


# --------------------------------------------------------------------------- the rounds


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize(
    ("kind", "domain"),
    [
        (LloydAlgorithm, BOX),
        (GLloydAlgorithm, Sphere(2)),
        (FastLloydAlgorithm, WIDE),
        (FedDPAlgorithm, BOX),
        (PEMeansAlgorithm, Ball(1.0, [0.5, 0.5])),
        (SynopsisAlgorithm, WIDE),
        (SynopsisAlgorithm, Sphere(2)),
    ],
)
def test_without_noise_it_is_the_silhouette_of_the_result(kind, domain):
    """Of the records in the space that was clustered, to the grid's rounding."""
    algorithm = make(kind, domain, OPEN)
    rows = records()
    state = run(algorithm, rows)
    sums = judged.sums_of(algorithm, state)
    scaling = tightened.released_domain(algorithm, state)
    points = algorithm.centroids(state)
    clipped = rows
    if isinstance(domain, Box):
        clipped = np.clip(rows, scaling.lower, scaling.upper)
    lengths = pairwise_distances(
        scaling.compared(clipped) / scaling.unit, points / scaling.unit
    )
    two = np.sort(lengths, axis=1)[:, :2]
    expected = 1 - two[:, 0] / two[:, 1]
    labels = lengths.argmin(axis=1)
    assert np.abs(np.bincount(labels, minlength=3) - sums.counts).max() <= 3
    totals = np.bincount(labels, expected, minlength=3)
    np.testing.assert_allclose(sums.sums, totals, atol=3)
    found = Silhouette(sums)
    assert found.value == pytest.approx(expected.mean(), abs=1e-3)
    assert found.low == found.value == found.high
    assert found.deviation == 0


@pytest.mark.parametrize("kind", [GLloydAlgorithm, SynopsisAlgorithm])
def test_earlier_rounds_are_those_of_a_run_without_it(kind):
    algorithm = make(kind, budget=OPEN)
    state = run(algorithm, records())
    alone = kind.planned(3, BOX, OPEN, n_records=N)
    before = run(alone, records())
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(state.arrays[name], array)
    np.testing.assert_array_equal(algorithm.centroids(state), alone.centroids(before))
    np.testing.assert_array_equal(algorithm.counts(state), alone.counts(before))
    assert algorithm.warnings(state) == alone.warnings(before)


def test_estimates_of_the_result_keep_the_noise_of_its_own_round():
    """Fewer clients may answer the last round, so its noise may be another."""
    algorithm = make(cost=True)
    state = run(algorithm, records())
    planned = algorithm.last_cost.estimate(state, 3.0).standard_error
    t = algorithm.n_rounds - 1
    before = State(t - 1, run(make(cost=True), records()).arrays)
    words = words_of_rows(algorithm, algorithm.query(before), records())
    louder = reconstructed(algorithm, t, words, noise_factor=2.0)
    after = algorithm.update(before, louder)
    found = algorithm.last_cost.estimate(after, 5.0)
    assert found.standard_error == pytest.approx(2 * planned, rel=0.05)


def test_a_lost_last_round_leaves_the_result_without_a_silhouette():
    algorithm = make()
    assert algorithm.can_miss_sums
    t = algorithm.n_rounds
    state = run(algorithm, records())
    own = {"quality_counts", SILHOUETTES}
    arrays = {name: each for name, each in state.arrays.items() if name not in own}
    lost = State(t - 1, arrays).without_sum()
    assert judged.sums_of(algorithm, lost) is None
    missed = "The sum of the last round was lost, so the result has no silhouette."
    assert algorithm.warnings(lost) == (*algorithm.warnings(state), missed)
    assert missed not in algorithm.warnings(State(t - 1, arrays))
    assert algorithm.counts(lost) is not None
    assert judged.result_round(algorithm) == t - 1


def test_a_run_that_chooses_asks_about_the_clusters_that_it_chose():
    algorithm = make(SynopsisAlgorithm, budget=OPEN, k=(2, 6))
    state = run(algorithm, records())
    assert algorithm.query(State(algorithm.n_rounds - 1, state.arrays)).arrays[
        "chosen"
    ].tolist() == [3]
    sums = judged.sums_of(algorithm, state)
    assert len(sums.counts) == 3
    assert sum(sums.counts) == N
    assert not state.arrays["quality_counts"][3:].any()


def test_one_chosen_cluster_has_no_silhouette_and_the_run_says_so():
    algorithm = make(SynopsisAlgorithm, budget=OPEN, k=(1, 6))
    state = run(algorithm, np.full((N, 2), 0.5))
    state = State(state.round, {**state.arrays, "chosen": np.array([1])})
    assert judged.sums_of(algorithm, state) is None
    assert algorithm.warnings(state)[-1].startswith("The run chose one cluster")


def test_hidden_sums_are_found_as_those_of_no_records():
    algorithm = make()
    state = run(algorithm, records())
    t = algorithm.n_rounds
    before = State(t - 1, state.arrays)
    blocks = {
        COUNTS: np.full(3, 2000 << 16),
        SILHOUETTES: np.full(3, 4000 << 16),
    }
    answer = replace(
        reconstructed(algorithm, t, np.zeros(6, dtype=np.int64)), blocks=blocks
    )
    (finding,) = findings_of(algorithm, before, answer)
    assert finding.kind == FindingKind.SQUARES
    # Small clusters of the result are found in the round of the result.
    result = reconstructed(
        algorithm, t - 1, np.zeros(algorithm.layout(t - 1).n_words, dtype=np.int64)
    )
    kinds = {
        each.kind for each in findings_of(algorithm, State(t - 2, state.arrays), result)
    }
    assert FindingKind.LIGHT in kinds


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (VerticalAlgorithm, {}, "quality=False for Vertical: no party"),
        (
            FastLloydAlgorithm,
            {"postprocess": "none"},
            "for FastLloyd: .*leave the domain",
        ),
        (
            FedDPAlgorithm,
            {"mechanisms": "laplace"},
            "for FedDP: .*Gaussian and Laplace",
        ),
        (GLloydAlgorithm, {"k": 1}, "n_clusters of at least 2 with quality=True"),
        (
            GLloydAlgorithm,
            {"domain": Box([0, 0], [1, 1], tighten=0.9)},
            r"tighten below 0\.9 with quality=True",
        ),
    ],
)
def test_runs_that_cannot_end_with_a_silhouette_are_refused_by_name(
    kind, options, message
):
    with pytest.raises(ConfigurationError, match=message):
        make(kind, **options)


def test_errors_say_which_epsilon_was_given_and_which_remains():
    remains = rest_of(BUDGET, 0.05).epsilon
    assert remains == pytest.approx(0.97, abs=0.005)
    message = (
        rf"quality=True, which has 0\.05 of mu\^2: epsilon={remains:.3g} remains of "
        r"epsilon=1\."
    )
    with pytest.raises(ConfigurationError, match=message):
        make(clip=3.0)


@pytest.mark.claim("guarantees", "48")
def test_clients_that_add_means_count_their_records_in_the_last_round():
    algorithm = make(
        FedDPAlgorithm,
        budget=CLIENTS,
        n_clients=50,
        contribution="means",
        clip=1.5,
    )
    t = algorithm.n_rounds
    assert algorithm.clipping.adds_means(t - 1)
    assert not algorithm.clipping.adds_means(t)
    centroids = np.array([[-(2**16), 0], [0, 0], [2**16, 0]])
    query = Query(t, {"centroids": centroids})
    grid = GridRecords.from_grid(np.repeat(centroids[:1], 20, axis=0), 16)
    found = answer_of(algorithm, query, grid)
    assert (found.blocks[COUNTS] >> 16).tolist() == [20, 0, 0]
    assert (found.blocks[SILHOUETTES] >> 16).tolist() == [20, 0, 0]
    many = GridRecords.from_grid(np.repeat(centroids[:1], 2000, axis=0), 16)
    clipped = answer_of(algorithm, query, many)
    # to 6000 / (4 * 50) records
    assert (clipped.blocks[COUNTS] >> 16).tolist() == [29, 0, 0]


def test_bounded_sizes_are_judged_by_nearest_centroid():
    algorithm = make(ConstrainedLloydAlgorithm, n_clients=3, assignment="non-exclusive")
    assert isinstance(algorithm, Judged)
    sized = make(SynopsisAlgorithm, budget=OPEN, min_size=N // 3)
    state = run(sized, records())
    assert sized.sizes.report(state).min_size == N // 3
    assert sum(judged.sums_of(sized, state).counts) == N


# --------------------------------------------------------------------------- documents


@pytest.mark.parametrize("domain", [BOX, WIDE])
def test_a_document_has_the_inner_algorithm_and_one_field_more(domain):
    algorithm = make(SynopsisAlgorithm, domain)
    config = algorithm_to_config(algorithm)
    assert config == {
        **algorithm_to_config(tightened.innermost(algorithm)),
        QUALITY: True,
    }
    assert algorithm_from_config(config, domain, BUDGET) == algorithm
    for wrong in (False, 1, "true", None):
        with pytest.raises(ConfigurationError, match="quality=True in a run document"):
            algorithm_from_config({**config, QUALITY: wrong}, domain, BUDGET)


# --------------------------------------------------------------------------- an attack


def units_of_one(unit):
    """Return an algorithm, a query, and the rows of one unit that moves the sum by most."""
    budget = PrivacyBudget(60.0, 1e-6, unit)
    row = np.array([[0.0, 1.0]])
    if unit == "person":
        algorithm = make(budget=budget, n_records=None, n_persons=N)
        # A person of three records, each of a third of the weight.
        weight = algorithm.full_weight // 3
        rows = np.column_stack([np.repeat(row, 3, axis=0), [weight] * 3])
    elif unit == "client":
        algorithm = make(budget=budget, n_clients=50)
        rows = np.repeat(row, 4_000, axis=0)
    else:
        algorithm = make(budget=budget)
        rows = row
    on_it = np.array([[-(2**16), 2**16], [0, 0], [2**16, 0]])
    return algorithm, Query(algorithm.n_rounds, {"centroids": on_it}), rows


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize("unit", ["record", "person", "client"])
@pytest.mark.parametrize("size", [1.0, 2 / 3])
def test_an_attack_finds_the_cost_of_one_unit_and_more_with_less_noise(unit, size):
    """The best attack: the part of the noise along the change of the unit.

    With 1,500 sums an estimate of mu is within 0.3 but for one in a million tests. With
    less noise it is half as large again.
    """
    algorithm, query, rows = units_of_one(unit)
    t = query.round
    (release,) = algorithm.plan().rounds[t - 1]
    change = contribution(algorithm, t, words_of_rows(algorithm, query, rows))
    scale = release.noise_multiplier * sensitivities(algorithm, t)
    direction = change / scale
    moved = float(np.linalg.norm(direction))
    assert 0.97 * release.cost < moved <= release.cost * (1 + 1e-9)
    stream = Stream.fresh()
    sums = []
    for _ in range(1_500):
        noise = size * server_noise(algorithm, algorithm.plan(), t, stream)
        sums.append(float(noise / scale @ direction) / moved)
    found = np.array(sums)
    present = np.mean(found + moved > moved / 2)
    absent = np.mean(found > moved / 2)
    attacked = norm.ppf(present) - norm.ppf(absent)
    assert (attacked > release.cost + 0.3) == (size < 1)
    if size == 1:
        assert attacked > release.cost - 0.3


# --------------------------------------------------------------------------- the notes


def test_the_plan_says_whether_the_interval_will_mean_anything():
    many = make(n_records=20_000)
    (note,) = judged.notes(many)
    deviation = judged.planned_deviation(many)
    assert note.startswith("Quality: noise will give the silhouette a standard")
    assert (
        f"{deviation:.2g}, so it will be known to within about {2 * deviation:.2g}"
        in note
    )
    assert judged.cautions(many) == ()
    few = make(n_records=1000)
    assert judged.notes(few) == ()
    (caution,) = judged.cautions(few)
    assert caution.startswith("WARNING: quality=True promises nothing here")
    assert "more than 0.05" in caution
    assert "Take more records, a larger epsilon or fewer clusters" in caution
    open_ = make(budget=OPEN)
    assert judged.notes(open_) == judged.cautions(open_) == ()
    alone = make(quality=False)
    assert judged.notes(alone) == judged.cautions(alone) == ()


def test_noise_beyond_the_plan_and_units_count_in_the_promise():
    algorithm = make(n_records=2500)
    assert judged.notes(algorithm)
    assert judged.cautions(algorithm, 2.0)
    persons = make(
        budget=PrivacyBudget(1.0, 1e-6, unit="person"), n_records=None, n_persons=1000
    )
    assert "Take more persons" in judged.cautions(persons)[0]
    half = replace(persons, max_clients_per_person=2)
    whole = judged.planned_deviation(persons)
    assert judged.planned_deviation(half) == pytest.approx(2 * whole)
    clients = make(budget=CLIENTS, n_clients=50)
    assert "Take more clients" in judged.cautions(clients)[0]
    crowd = make(budget=CLIENTS, n_clients=5000, n_records=10**6)
    assert judged.notes(crowd)


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize("kind", [GLloydAlgorithm, SuLloydAlgorithm])
def test_the_interval_holds_over_the_noise_that_a_run_adds(kind):
    """Of 600 runs of the last round over the same records, 95 % but for 4 deviations."""
    algorithm = make(kind, n_records=2000)
    rows = records(2000)
    state = run(algorithm, rows)
    t = algorithm.n_rounds
    before = State(t - 1, state.arrays)
    words = words_of_rows(algorithm, algorithm.query(before), rows)
    counts, sums = (words[:3].sum(), words[3:].sum())
    stream = Stream.fresh()
    covered = []
    for _ in range(600):
        noisy = words + server_noise(algorithm, algorithm.plan(), t, stream)
        after = algorithm.update(before, reconstructed(algorithm, t, noisy))
        found = Silhouette(judged.sums_of(algorithm, after))
        covered.append(found.low <= sums / counts <= found.high)
    assert np.mean(covered) >= 0.91


@pytest.mark.claim("guarantees", "48")
@pytest.mark.parametrize("unit", ["record", "client"])
def test_the_planned_deviation_is_at_least_that_of_a_run(unit):
    """Records on their centroids attain it, where each client has one cluster."""
    if unit == "client":
        algorithm = make(budget=CLIENTS, n_clients=2000, n_records=20_000)
        total = 20_000 / 4
    else:
        algorithm = make()
        total = N
    noise = judged.noise_of(algorithm)
    rng = RNG(7)
    counts = total / 3 + noise * rng.normal(size=(20_000, 3))
    sums = total / 3 + noise * rng.normal(size=(20_000, 3))
    ratios = sums.sum(axis=1) / counts.sum(axis=1)
    assert np.std(ratios) == pytest.approx(
        judged.planned_deviation(algorithm), rel=0.05
    )
