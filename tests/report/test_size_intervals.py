"""Intervals of cluster sizes: they hold as often as they say, and are absent where nobody knows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from harness import assert_scale, exact_statistic, run_recorded
from scipy import stats

from flower_kmeans import Box, Clustering, Fault, PrivacyBudget, Sphere, simulate
from flower_kmeans.algorithms.released import CONFIDENCE, size_margin
from flower_kmeans.strategies import (
    ConstrainedLloyd,
    FastLloyd,
    FedDPKMeans,
    GLloyd,
    Lloyd,
    PEMeans,
    SuLloyd,
    SynopsisKMeans,
)

pytestmark = pytest.mark.claim("reading-a-report", "sizes-have-intervals")

BOX = Box([0, 0], [10, 10])
K = 12
N_CLIENTS = 5
RECORDS = np.random.default_rng(5).uniform(0, 10, (6_000, 2))
PARTS = np.array_split(RECORDS, N_CLIENTS)
OPTIONS = {"n_records": 6_000, "n_clients": N_CLIENTS}


def exact_sizes(strategy, outcome):
    """Return the exact sizes that the last round of a run counted, (k,)."""
    algorithm = strategy.algorithm
    state = algorithm.initial_state(None)
    for t in range(1, algorithm.n_rounds):
        blocks = algorithm.layout(t).unflatten(outcome.sums[t], 1.0)
        state = algorithm.update(state, blocks)
    query = algorithm.query(state)
    last = sum(exact_statistic(algorithm, query, part) for part in PARTS)
    counts = algorithm.layout(algorithm.n_rounds).unflatten(last, 1.0).blocks["counts"]
    return counts * 2.0**-algorithm.fraction_bits


def made(name, seed):
    budget = PrivacyBudget(2.0, 0.0) if name == "SuLloyd" else PrivacyBudget(2.0)
    options = {**OPTIONS, "seed": seed}
    if name == "SynopsisKMeans":
        return SynopsisKMeans(K, BOX, budget, trust="distributed-noise", **options)
    kind = {"GLloyd": GLloyd, "SuLloyd": SuLloyd}[name]
    return kind(K, BOX, budget, trust="trusted-server", n_rounds=1, **options)


@pytest.mark.default_cases("GLloyd")
@pytest.mark.parametrize("name", ["GLloyd", "SuLloyd", "SynopsisKMeans"])
def test_all_intervals_hold_at_once_as_often_as_they_say(name):
    n_runs = {"GLloyd": 60}.get(name, 80)
    misses = 0
    too_short = 0
    deviations = []
    for seed in range(n_runs):
        strategy = made(name, seed)
        outcome = run_recorded(strategy, PARTS)
        sizes = exact_sizes(strategy, outcome)
        counts = outcome.result.arrays["counts"].numpy()
        low, high = strategy.report.size_interval(counts).T
        misses += not ((low <= sizes) & (sizes <= high)).all()
        margin = strategy.report.size_margin(K)
        too_short += bool((np.abs(counts - sizes) > margin * 2 / 3).any())
        deviations.append((counts - sizes) / strategy.report.size_noise)
    # More misses have a probability of a millionth.
    most = stats.binom.isf(1e-6, n_runs, 1 - CONFIDENCE)
    assert misses <= most
    assert too_short > most  # intervals of 2/3 of the length would be noticed
    sample = np.concatenate(deviations)
    if name == "SuLloyd":
        assert_scale("sizes", sample * math.sqrt(2), stats.laplace, enough=900)
    else:
        assert_scale("sizes", sample, enough=550)


def test_intervals_of_laplace_noise_are_longer():
    gaussian = size_margin(10.0, 8)
    laplace = size_margin(10.0, 8, is_laplace=True)
    assert gaussian == pytest.approx(10 * stats.norm.isf(0.05 / 16))
    scale = 10 / math.sqrt(2)
    assert laplace == pytest.approx(stats.laplace(scale=scale).isf(0.05 / 16))
    assert laplace > gaussian


def test_without_noise_an_interval_is_the_size():
    result = simulate(Lloyd(3, BOX, n_clients=N_CLIENTS, n_rounds=2), PARTS)
    assert result.report.size_noise == 0
    np.testing.assert_array_equal(result.size_interval.T, [result.counts] * 2)


def test_an_interval_is_the_last_rounds_noise_factor_long():
    strategy = FastLloyd(3, BOX, PrivacyBudget(2.0), trust="clients-only", **OPTIONS)
    result = simulate(strategy, PARTS)
    planned = strategy.algorithm.size_noise(True)
    factor = result.report.factors[-1]
    assert factor > 1
    assert result.report.size_noise == pytest.approx(planned * factor)
    low, high = result.size_interval.T
    margin = result.report.size_margin(3)
    np.testing.assert_allclose(high, result.counts + margin)
    np.testing.assert_allclose(low, np.maximum(result.counts - margin, 0))


def test_with_a_sphere_and_with_persons_sizes_have_intervals():
    directions = np.random.default_rng(0).normal(size=(600, 4))
    parts = np.array_split(directions, N_CLIENTS)
    budget = PrivacyBudget(2.0, unit="person")
    strategy = SynopsisKMeans(3, Sphere(4), budget, n_persons=600, n_clients=N_CLIENTS)
    persons = [range(i * 120, i * 120 + len(part)) for i, part in enumerate(parts)]
    result = simulate(strategy, parts, persons=[list(each) for each in persons])
    assert result.report.size_noise > 0
    assert result.size_interval.shape == (3, 2)


def not_known():
    privacy = PrivacyBudget(2.0)
    client = PrivacyBudget(4.0, unit="client")
    points = np.random.default_rng(0).uniform(0, 10, (30, 2))
    start = {"n_rounds": 0, "server_data": points}
    return {
        "a clip": FastLloyd(3, BOX, client, clip=100.0, **OPTIONS),
        "votes": PEMeans(3, BOX, privacy, n_rounds=2, **OPTIONS),
        "no Lloyd round": FedDPKMeans(3, BOX, privacy, **start, **OPTIONS),
        "slots": ConstrainedLloyd(3, BOX, privacy, n_rounds=2, **OPTIONS),
    }


@pytest.mark.parametrize("why", list(not_known()))
def test_where_the_noise_is_not_known_there_is_no_interval(why):
    result = simulate(not_known()[why], PARTS)
    assert result.report.size_noise is None
    assert result.size_interval is None
    assert result.report.to_dict()["size_noise"] is None


def test_a_synopsis_whose_last_round_missed_a_client_has_no_interval():
    """It may keep the counts of the round before (docs/guarantees, Theorem 22)."""
    strategy = SynopsisKMeans(
        3, BOX, PrivacyBudget(2.0), trust="trusted-server", **OPTIONS
    )
    last = strategy.n_rounds
    for number, is_known in ((last, False), (last - 1, True)):
        fault = Fault(client=1, round=number, kind="drop")
        result = simulate(strategy, PARTS, faults=[fault])
        assert (result.size_interval is not None) == is_known
    other = GLloyd(
        3, BOX, PrivacyBudget(2.0), trust="trusted-server", n_rounds=2, **OPTIONS
    )
    result = simulate(other, PARTS, faults=[Fault(client=1, round=2, kind="drop")])
    assert result.size_interval is not None


def test_bounds_on_sizes_have_their_own_intervals():
    options = {"min_size": 1_000, "max_size": 3_000, **OPTIONS}
    strategy = SynopsisKMeans(
        3, BOX, PrivacyBudget(2.0), trust="trusted-server", **options
    )
    result = simulate(strategy, PARTS)
    np.testing.assert_array_equal(result.size_interval, result.size_report.interval)
    assert result.report.size_noise == pytest.approx(result.size_report.noise)
    bare = Clustering(result.centroids, result.counts, BOX, result.report)
    np.testing.assert_allclose(bare.size_interval, result.size_interval)
    unknown = replace(result.report, size_noise=None)
    assert replace(bare, report=unknown).size_interval is None


@pytest.mark.parametrize("trust", ["trusted-server", "clients-only"])
def test_with_quality_they_are_those_of_the_round_before_the_last(trust):
    options = {**OPTIONS, "trust": trust}
    strategy = FastLloyd(3, BOX, PrivacyBudget(2.0), quality=True, **options)
    result = simulate(strategy, PARTS)
    noise = strategy.algorithm.inner.size_noise(True)
    assert result.report.size_noise == pytest.approx(noise * result.report.factors[-2])
    laplace = SuLloyd(
        3,
        BOX,
        PrivacyBudget(2.0, 0.0),
        quality=True,
        n_rounds=2,
        n_records=6_000,
        n_clients=N_CLIENTS,
        trust="trusted-server",
    )
    report = simulate(laplace, PARTS).report
    expected = size_margin(report.size_noise, 3, is_laplace=True)
    assert report.size_margin(3) == pytest.approx(expected)


def test_ranges_have_the_sizes_of_the_algorithm_within_them():
    box = Box([0, 0], [100, 100], tighten=0.1)
    strategy = SynopsisKMeans(3, box, PrivacyBudget(2.0), **OPTIONS)
    result = simulate(strategy, PARTS)
    assert result.report.size_noise == pytest.approx(
        strategy.algorithm.inner.size_noise(True) * result.report.factors[-1]
    )
