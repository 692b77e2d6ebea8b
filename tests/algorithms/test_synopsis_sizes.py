"""SynopsisKMeans with bounds on cluster sizes: distances, and whole runs without messages."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from flower_kmeans.algorithms import State, SynopsisAlgorithm
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.algorithms.numerics.projection import Projection
from flower_kmeans.algorithms.synopsis_sizes import distances
from flower_kmeans.algorithms.synopsis_state import WARNINGS, Note
from flower_kmeans.data.domain import Ball, Box, GridRecords
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise
from tests.algorithms.rows import run_of
from tests.support.saying import assert_within

RNG = np.random.default_rng
SIZES, MEANS = (900, 400, 200), np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
N = sum(SIZES)
DOMAIN = Ball(2.0, [0.3, 0.3])
EXACT = PrivacyBudget(None)


def records_of(sizes=SIZES, std=0.2, seed=0):
    rng = RNG(seed)
    return [rng.normal(mean, std, (n, 2)) for mean, n in zip(MEANS, sizes, strict=True)]


def build(budget=EXACT, **options):
    bounds = {"min_size": 400, "max_size": 600}
    return SynopsisAlgorithm.planned(
        3, DOMAIN, budget, **{"n_records": N, **bounds, **options}
    )


def sizes_of(algorithm, state, records):
    """The true sizes of the cells of a state, on the grid."""
    grid, points = GridRecords(records, algorithm.domain, 16), np.empty(records.shape)
    grid.read(0, points)
    labels, _ = assign(points, state.arrays["centroids"], state.arrays["weights"])
    return np.bincount(labels, minlength=algorithm.n_clusters)


@pytest.mark.parametrize(
    ("domain", "p"),
    [(Ball(1.0, [0] * 6), 6), (Ball(1.0, [0] * 9), 4), (Box([0] * 5, [1] * 5), 3)],
)
def test_distances_are_those_of_whole_points(domain, p):
    """Of a point within the directions to a centroid that may be outside of them."""
    d, q, one = domain.n_features, 16, 2**16
    projection = Projection(domain, q, p)
    directions = np.linalg.qr(RNG(0).normal(size=(d, d)))[0][:, :p]
    matrix = projection.matrix(directions)
    points = RNG(1).integers(-one // 4, one // 4, size=(50, p))
    centroids = RNG(2).integers(-one // d, one // d, size=(4, d))
    found = distances(points, centroids, projection, matrix)
    assert found.dtype == np.float64
    assert (found == np.floor(found)).all()
    whole = points * 2.0 ** (q - projection.exponent) @ directions.T
    expected = ((whole[:, None] - centroids) ** 2).sum(axis=2)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * one**2)
    far = distances(np.full((1, p), projection.limit), centroids, projection, matrix)
    assert far.max() <= 2**53


# ----------------------------------------------------------------- runs


def test_without_privacy_sizes_are_exact_and_near_the_bounds():
    algorithm, parts = build(), records_of()
    state, records = run_of(algorithm, parts), np.concatenate(parts)
    report = algorithm.sizes.report(state)
    np.testing.assert_array_equal(report.counts, sizes_of(algorithm, state, records))
    assert (report.noise, report.margin, report.min_size, report.max_size) == (
        0.0,
        0.0,
        400,
        600,
    )
    off = [max(400 - n, n - 600, 0) for n in report.counts]
    assert_within("a size misses its bounds by", off, most=0.04 * N / 3, unit="records")
    nearest = (
        ((records[:, None] - algorithm.centroids(state)) ** 2)
        .sum(axis=2)
        .argmin(axis=1)
    )
    assert np.abs(np.bincount(nearest) - N / 3).max() > 200  # what weights are for
    assert algorithm.warnings(state) == ()


def test_weights_are_zero_where_bounds_hold_anyway_and_missing_without_bounds():
    algorithm, parts = build(min_size=50, max_size=1400), records_of(std=0.05)
    state = run_of(algorithm, parts)
    np.testing.assert_array_equal(algorithm.sizes.weights(state), np.zeros(3))
    assert sorted(algorithm.sizes.report(state).counts) == sorted(SIZES)
    assert algorithm.sizes.report(state).bounds_kept == ("kept",) * 3
    algorithm = build(min_size=None, max_size=None)
    state = run_of(algorithm, parts)
    assert algorithm.sizes is None
    assert "masses" not in state.arrays


def test_weights_are_in_the_users_units_where_columns_have_one():
    integers = np.array([2**30, 0, -(2**31)])
    scales = {
        Ball(3.0, [0, 0]): 9.0,
        Box([0, 0], [4, 2], scale="common"): 4.0,
        Box([0, 0], [4, 4]): 4.0,
        Box([0, 0], [4, 2]): 1.0,
    }
    for domain, scale in scales.items():
        algorithm = SynopsisAlgorithm.planned(3, domain, EXACT, n_records=N, min_size=1)
        found = algorithm.sizes.weights(State(9, {"weights": integers}))
        np.testing.assert_allclose(found, integers / 2.0**32 * scale)
        assert algorithm.sizes.weights(algorithm.initial_state()) is None


def test_sizes_are_released_after_the_last_round_only():
    algorithm, parts = build(), records_of()
    before = run_of(algorithm, parts, until=algorithm.n_rounds - 1)
    assert algorithm.sizes.report(before) is None
    assert algorithm.counts(before) is not None
    after = run_of(algorithm, parts)
    for name in ("centroids", "weights", "masses"):  # it only measures what is released
        np.testing.assert_array_equal(after.arrays[name], before.arrays[name])
    assert sum(algorithm.sizes.report(after).counts) == N


@pytest.mark.claim("equal-groups", "equal-records-always-one")
@pytest.mark.claim("guarantees", "26")
@pytest.mark.default_cases("1.0")
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_records_that_are_all_equal_make_a_run(epsilon):
    """Equal records are never split: one cell has them all, and its interval shows it."""
    algorithm = build(PrivacyBudget(epsilon))
    stream = None if epsilon is None else Stream.from_key(bytes(32))
    state = run_of(algorithm, [np.full((N, 2), 0.5)], stream)
    report = algorithm.sizes.report(state)
    assert max(report.counts) == pytest.approx(N, abs=5 * report.noise)
    assert sorted(report.bounds_kept) == ["missed"] * 3
    assert sorted(sizes_of(algorithm, state, np.full((N, 2), 0.5))) == [0, 0, N]


@pytest.mark.claim("guarantees", "24")
@pytest.mark.default_cases("0.5")
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_bounds_are_shares_where_there_are_not_as_many_records(factor):
    parts = records_of([round(factor * n) for n in SIZES])
    algorithm = build()
    sizes = np.array(algorithm.sizes.report(run_of(algorithm, parts)).counts) / factor
    off = np.maximum(400 - sizes, sizes - 600)
    assert_within("a size misses its bounds by", off, most=0.06 * N / 3, unit="records")


@pytest.mark.thorough
@pytest.mark.parametrize("bounds", [{}, {"min_size": 425, "max_size": 575}])
def test_half_of_the_true_number_of_records_loses_no_cells(bounds):
    """Towns of several clusters each: cells beyond the planned number are no noise."""
    towns, rng = np.array([[30.0, 30], [75, 20], [60, 50], [90, 45]]), RNG(11)
    parts = towns[rng.choice(4, size=6000, p=[0.5, 0.25, 0.15, 0.1])]
    records = np.clip(parts + rng.normal(scale=7.0, size=(6000, 2)), 0, [100, 60])
    box = Box([0, 0], [100, 60], scale="common")
    loss = []
    for factor in (0.5, 1):
        given = {name: round(2 * factor * size) for name, size in bounds.items()}
        n_records = round(6000 * factor)
        algorithm = SynopsisAlgorithm.planned(
            6, box, EXACT, n_records=n_records, seed=1, **given
        )
        state = run_of(algorithm, [records])
        centroids = algorithm.centroids(state)
        distances = ((records[:, None] - centroids) ** 2).sum(axis=2)
        weights = algorithm.sizes.weights(state) if bounds else 0.0
        labels = np.argmin(distances - weights, axis=1)
        loss.append(distances[np.arange(6000), labels].mean())
    what = "with half of n_records the loss is"
    assert_within(what, loss[0] / loss[1], most=1.03, unit="of that with all")


@pytest.mark.claim("equal-groups", "sizes-those-clients-answered")
def test_counts_of_those_who_answered_are_scaled_for_weights_and_not_in_the_result():
    """Half of alike clients answer in a sizing round: the weights hardly change."""
    algorithm, whole = build(), np.concatenate(records_of())
    shuffled = np.array_split(RNG(1).permutation(whole), 10)
    last = algorithm.n_rounds
    state = run_of(
        algorithm, shuffled, answering={t: range(5) for t in range(last - 6, last + 1)}
    )
    counts = np.array(algorithm.sizes.report(state).counts)
    half = np.concatenate(shuffled[:5])
    np.testing.assert_array_equal(counts, sizes_of(algorithm, state, half))
    sizes = sizes_of(algorithm, state, whole)
    off = np.maximum(400 - sizes, sizes - 600)
    assert_within("a size misses its bounds by", off, most=0.08 * N / 3, unit="records")


def test_a_cluster_whose_clients_did_not_answer_keeps_its_masses():
    algorithm = build(min_size=100, max_size=1000)
    last, parts = algorithm.n_rounds, records_of(std=0.05)
    state = run_of(algorithm, parts, answering={last - 2: [1, 2], last - 1: [1, 2]})
    full = run_of(algorithm, parts)
    assert algorithm.warnings(full) == ()
    assert algorithm.warnings(state) == (WARNINGS[Note.HELD],)
    np.testing.assert_allclose(
        sizes_of(algorithm, state, np.concatenate(parts)), algorithm.counts(full)
    )
    state = run_of(algorithm, parts, answering={last: [1, 2]})
    assert sorted(algorithm.sizes.report(state).counts) == [0, 200, 400]  # as measured


# ----------------------------------------------------------------- what is promised


@cache
def measured():
    """True sizes, and noisy ones of 200 last rounds, for the cells of five private runs."""
    algorithm, parts = (
        build(PrivacyBudget(4.0), min_size=450, max_size=550),
        records_of(),
    )
    records, found = np.concatenate(parts), []
    stream, plan = Stream.from_key(bytes(range(32))), algorithm.plan()
    grid = GridRecords(records, DOMAIN, algorithm.fraction_bits)
    for _ in range(5):
        state = run_of(algorithm, parts, stream, until=algorithm.n_rounds - 1)
        query = algorithm.query(state)
        exact = algorithm.layout(algorithm.n_rounds).flatten(
            answer_of(algorithm, query, grid)
        )
        for _ in range(40):
            words = exact + server_noise(algorithm, plan, algorithm.n_rounds, stream)
            last = algorithm.update(
                state, algorithm.layout(algorithm.n_rounds).unflatten(words)
            )
            found.append((algorithm.sizes.report(last), exact * 2.0**-16))
        np.testing.assert_array_equal(
            exact * 2.0**-16, sizes_of(algorithm, last, records)
        )
    return found


def covered(reports):
    """How often all true sizes lie within the intervals, and whether 95 % explains it."""
    times = 0
    for report, truth in reports:
        low, high = report.interval.T
        times += bool(((low <= truth) & (truth <= high)).all())
    return times / len(reports) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / len(reports))


@pytest.mark.claim("equal-groups", "95-probability-over-noise")
@pytest.mark.claim("guarantees", "25")
@pytest.mark.thorough
def test_true_sizes_lie_in_all_intervals_at_once():
    found = measured()
    assert len(found) == 200
    assert covered(found)
    assert not covered(
        [(replace(report, noise=report.noise * 2 / 3), x) for report, x in found]
    )
