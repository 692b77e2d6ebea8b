"""Simulations of runs that protect persons or weigh records."""

import re

import numpy as np
import pytest
from harness import assert_scale, run_recorded, without_noise
from scipy import stats

from flower_kmeans import Ball, Box, PrivacyBudget, simulate
from flower_kmeans.algorithms.answers import words_of_rows
from flower_kmeans.algorithms.sensitivity import record_sensitivities
from flower_kmeans.data.sources import as_source, weighed
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError, DataError
from flower_kmeans.protocol.records import weighing_of
from flower_kmeans.strategies import (
    ConstrainedLloyd,
    FastLloyd,
    FedDPKMeans,
    GLloyd,
    HDPEMeans,
    PEMeans,
    SuLloyd,
    SynopsisKMeans,
    VerticalKMeans,
)

pytestmark = pytest.mark.usefixtures("quiet")
RNG = np.random.default_rng
BALL = Ball(4.0, [0.0] * 3)
PERSONS = PrivacyBudget(4.0, unit="person")
CENTERS = np.array([[2.0, 0, 0], [-2.0, 1, 0], [0, -1, 2.5]])


def visits(n_persons, n_clients, seed=0, most=9):
    """Return the records and ids of each client: persons with one to some records each."""
    rng = RNG(seed)
    n = rng.integers(1, most + 1, n_persons)
    ids = np.repeat(np.arange(n_persons), n)
    home = rng.integers(0, 3, n_persons)[ids]
    X = CENTERS[home] + rng.normal(size=(len(ids), 3)) * 0.2
    client = rng.integers(0, n_clients, n_persons)[ids]
    parts = [X[client == i] for i in range(n_clients)]
    return parts, [ids[client == i] for i in range(n_clients)]


PARTS, IDS = visits(300, 5)
OPTIONS = {"n_persons": 300, "n_clients": 5}


@pytest.mark.parametrize(
    "make",
    [
        lambda: SynopsisKMeans(3, BALL, PERSONS, **OPTIONS),
        lambda: SynopsisKMeans((2, 4), BALL, PERSONS, **OPTIONS, trust="clients-only"),
        lambda: FastLloyd(
            3, BALL, PERSONS, **OPTIONS, cost=True, trust="trusted-server"
        ),
        lambda: GLloyd(3, BALL, PERSONS, **OPTIONS),
        lambda: SuLloyd(3, Box([-4] * 3, [4] * 3), PERSONS, **OPTIONS),
        lambda: PEMeans(3, BALL, PERSONS, **OPTIONS, n_rounds=4),
        lambda: FedDPKMeans(
            3, BALL, PERSONS, **OPTIONS, server_data=np.repeat(CENTERS, 3, axis=0)
        ),
    ],
)
def test_every_strategy_counts_persons(make):
    """Sizes add up to the number of persons, within the noise."""
    strategy = make()
    assert strategy.n_persons == 300
    assert strategy.algorithm.full_weight == 4096
    assert strategy.plan.budget.unit == "person"
    with without_noise():
        clustering = simulate(strategy, PARTS, persons=IDS)
    total = clustering.counts.sum()
    assert total <= 300
    if not isinstance(strategy, GLloyd | SuLloyd):  # without relocation
        assert total > 250
    assert clustering.report.unit == "person"


def test_hdpe_means_counts_persons():
    domain = Ball(4.0, [0.0] * 20)
    parts = [np.pad(part, ((0, 0), (0, 17))) for part in PARTS]
    strategy = HDPEMeans(3, domain, PERSONS, **OPTIONS, n_rounds=4)
    with without_noise():
        clustering = simulate(strategy, parts, persons=IDS)
    assert 250 < clustering.counts.sum() <= 300


def test_persons_with_many_records_count_as_one():
    """A cluster of one person with 500 records is as small as one of a single record."""
    heavy = [*PARTS[:4], np.vstack([PARTS[4], np.repeat(CENTERS[:1], 500, axis=0)])]
    ids = [*IDS[:4], np.concatenate([IDS[4], np.full(500, 777)])]
    budget = PrivacyBudget(None, unit="person")
    found = []
    for parts, persons in ((PARTS, IDS), (heavy, ids)):
        clustering = simulate(FastLloyd(3, BALL, budget), parts, persons=persons)
        found.append(sorted(clustering.counts))
    changes = np.array(found[1]) - np.array(found[0])
    assert np.abs(changes).sum() == pytest.approx(1.0, abs=0.2)


def test_a_client_per_person_and_three_are_shares_of_one():
    budget = PrivacyBudget(None, unit="person")
    totals = []
    for g in (1, 3):
        strategy = GLloyd(
            3,
            BALL,
            PrivacyBudget(4.0, unit="person"),
            **OPTIONS,
            max_clients_per_person=g,
        )
        with without_noise():
            totals.append(simulate(strategy, PARTS, persons=IDS).counts.sum())
    assert totals[0] == pytest.approx(300, rel=0.01)
    assert totals[1] == pytest.approx(100, rel=0.01)
    assert not budget.is_private


def test_text_with_blanks_and_missing_ids_are_read_as_the_guarantee_says():
    parts = [np.zeros((4, 3)), np.zeros((3, 3))]
    ids = [["a ", "a", None, ""], ["a", "b", float("nan")]]
    strategy = FastLloyd(1, BALL, PrivacyBudget(None, unit="person"))
    clustering = simulate(strategy, parts, persons=ids)
    # At each client: a, two without an id; a, b, one without.
    assert clustering.counts.sum() == 6


# ------------------------------------------------------------------- weights of records


def test_weights_of_zero_and_one_select_records():
    parts = [np.vstack([part, part + 0.5]) for part in PARTS]
    weights = [np.repeat([1.0, 0.0], len(part)) for part in PARTS]
    n = sum(map(len, PARTS))
    options = {"n_clients": 5, "n_records": n, "trust": "oblivious-server"}
    found = []
    for given, extra, own in ((PARTS, {}, None), (parts, {"weighted": True}, weights)):
        strategy = SynopsisKMeans(3, BALL, PrivacyBudget(4.0), **options, **extra)
        with without_noise():
            found.append(simulate(strategy, given, weights=own))
    np.testing.assert_array_equal(found[0].centroids, found[1].centroids)
    np.testing.assert_array_equal(found[0].counts, found[1].counts)


def test_counts_are_sums_of_weights():
    weights = [RNG(i).random(len(part)) for i, part in enumerate(PARTS)]
    total = sum(each.sum() for each in weights)
    strategy = FastLloyd(3, BALL, PrivacyBudget(None), weighted=True)
    found = simulate(strategy, PARTS, weights=weights)
    assert found.counts.sum() == pytest.approx(total, rel=0.001)


# -------------------------------------------------------------------------------- noise


def noise_of(strategy, parts, ids):
    """Yield the noise of each round in units of the planned scale for one person."""
    outcome = run_recorded(strategy, parts, persons=ids)
    algorithm = strategy.algorithm
    state = algorithm.initial_state(None)
    factors = strategy.report.factors
    for t in range(1, algorithm.n_rounds + 1):
        query, words = algorithm.query(state), 0
        for part, own in zip(parts, ids, strict=True):
            source = as_source(part, part.shape[1])
            found = weighed(source, weighing_of(algorithm), own, None, bytes(32)).source
            words = words + words_of_rows(algorithm, query, found.loaded())
        noise = outcome.sums[t] - words / algorithm.full_weight
        units = record_sensitivities(algorithm, t)
        layout = algorithm.layout(t)
        for release in strategy.plan.rounds[t - 1]:
            own = layout.words_of(release)
            scale = units[own] * release.noise_multiplier * factors[t - 1]
            yield noise[own] / scale
        answer = layout.unflatten(outcome.sums[t], 1.0, len(parts))
        state = algorithm.update(state, answer)


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize(
    ("kind", "trust"),
    [
        (GLloyd, "trusted-server"),
        (GLloyd, "oblivious-server"),
        (GLloyd, "clients-only"),
        (GLloyd, "distributed-noise"),
        (SuLloyd, "trusted-server"),
    ],
)
def test_sums_carry_w_times_the_noise_of_a_record(kind, trust):
    """Before the division by W: after it, the noise is that of one person who counts as 1."""
    law, enough = (stats.laplace, 900) if kind is SuLloyd else (stats.norm, 550)
    domain = Box([-4.0] * 3, [4.0] * 3)
    points = RNG(4).normal(size=(24, 3))
    found = []
    seed = 0
    while sum(map(len, found)) < enough:
        strategy = kind(
            24,
            domain,
            PERSONS,
            **OPTIONS,
            trust=trust,
            initial=points,
            n_rounds=4,
            seed=seed,
        )
        found += noise_of(strategy, PARTS, IDS)
        seed += 1
    assert_scale("a run of persons", np.concatenate(found), law, enough)


# ------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("budget", "options", "given", "message"),
    [
        (PERSONS, {"n_persons": 300}, {}, "Expected persons, .* with unit='person'"),
        (
            PrivacyBudget(4.0),
            {"n_records": 300},
            {"persons": IDS},
            "Expected persons, .* exactly with unit='person'. Got some",
        ),
        (
            PrivacyBudget(4.0),
            {"n_records": 300},
            {"weights": IDS},
            "Expected weights, .* exactly with weighted=True. Got some",
        ),
        (
            PrivacyBudget(4.0),
            {"n_records": 300, "weighted": True},
            {},
            "Expected weights, .* exactly with weighted=True. Got none",
        ),
        (
            PERSONS,
            {"n_persons": 300},
            {"persons": IDS[:4]},
            "persons of 5 clients. Got 4",
        ),
        (PERSONS, {"n_persons": 300}, {"persons": 7}, "Expected persons as a list"),
        (
            PERSONS,
            {"n_persons": 300},
            {"persons": [*IDS[:3], IDS[3][1:], IDS[4]]},
            r"Expected persons\[3\] with one entry for each of \d+ records",
        ),
    ],
)
def test_errors_name_the_argument(budget, options, given, message):
    strategy = FastLloyd(3, BALL, budget, n_clients=5, **options)
    errors = ConfigurationError, ConfigurationTypeError, DataError
    with pytest.raises(errors, match=message):
        simulate(strategy, PARTS, **given)


def test_strategies_that_take_no_persons_refuse_them_by_name():
    box = Box([-4.0] * 3, [4.0] * 3)
    with pytest.raises(ConfigurationError, match="unit='record' for ConstrainedLloyd"):
        ConstrainedLloyd(3, box, PERSONS, n_persons=300, n_clients=5)
    with pytest.raises(ConfigurationError, match="unit='record': parties hold columns"):
        VerticalKMeans(3, box, PERSONS, 300, parties=[2, 1])
    with pytest.raises(ConfigurationError, match="sizes would be fractions"):
        SynopsisKMeans(3, BALL, PERSONS, **OPTIONS, min_size=10)
    points = np.repeat(CENTERS, 3, axis=0)
    with pytest.raises(ConfigurationError, match="Got contribution='means'"):
        FedDPKMeans(
            3, BALL, PERSONS, **OPTIONS, server_data=points, contribution="means"
        )
    with pytest.raises(ConfigurationError, match="n_persons is required"):
        SynopsisKMeans(3, BALL, PERSONS, n_clients=5)
    with pytest.raises(ConfigurationError, match="Expected n_records=None"):
        SynopsisKMeans(3, BALL, PERSONS, 300, n_clients=5)


def test_the_weight_shrinks_until_noise_can_be_shared():
    """Second moments of many columns at a small epsilon have wide noise."""
    box = Box([-1.0] * 64, [1.0] * 64)
    strategy = SynopsisKMeans(
        3, box, PrivacyBudget(1.0, unit="person"), n_persons=100_000, n_clients=5
    )
    assert 64 <= strategy.algorithm.full_weight < 4096
    with pytest.raises(ConfigurationError, match=r"at most 2\^40 grid units"):
        SynopsisKMeans(
            3, box, PrivacyBudget(0.01, unit="person"), n_persons=100_000, n_clients=5
        )


def test_a_plan_of_too_few_persons_warns():
    budget = PrivacyBudget(1.0, unit="person")
    few = SynopsisKMeans(10, BALL, budget, n_persons=300, n_clients=5)
    (note,) = few.plan.notes
    assert re.search(
        r" few persons for them: \d+% of those that 10 clusters in \d+ ", note
    )
    assert "noise may hide many of the clusters" in few.plan.describe()
    many = SynopsisKMeans(3, BALL, budget, n_persons=3000, n_clients=5)
    assert many.plan.notes == ()
    records = SynopsisKMeans(10, BALL, PrivacyBudget(1.0), 300, n_clients=5)
    assert records.plan.notes == ()


def test_ids_may_be_iterators():
    strategy = FastLloyd(3, BALL, PrivacyBudget(None, unit="person"))
    again = FastLloyd(3, BALL, PrivacyBudget(None, unit="person"))
    found = simulate(strategy, PARTS, persons=[iter(ids) for ids in IDS])
    expected = simulate(again, PARTS, persons=IDS)
    np.testing.assert_array_equal(found.centroids, expected.centroids)


# ---------------------------------------------------------------------------------- Ray


@pytest.mark.ray
@pytest.mark.thorough
def test_ray_gives_the_result_of_one_process():
    pytest.importorskip("ray")
    parts, ids = visits(3000, 3, most=30)
    results = []
    for engine in ("in-process", "ray"):
        strategy = FastLloyd(
            3, BALL, PrivacyBudget(None, unit="person"), n_clients=3, n_rounds=3
        )
        results.append(simulate(strategy, parts, persons=ids, engine=engine))
    np.testing.assert_array_equal(results[0].centroids, results[1].centroids)
    np.testing.assert_array_equal(results[0].counts, results[1].counts)
