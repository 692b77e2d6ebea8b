"""Whole runs of SynopsisKMeans: under both trust models, for records and for clients."""

from functools import cache

import numpy as np
import pytest
from flwr.app import ArrayRecord
from harness import (
    exact_statistic,
    run_recorded,
    stock_start,
    without_noise,
    write_roster,
)
from scipy import stats

from flower_kmeans import Ball, Box, Fault, PrivacyBudget, simulate
from flower_kmeans.algorithms.synopsis import BLIND, FEW, HELD, NOTES
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.strategies import KMeansStrategy, SynopsisKMeans

RNG = np.random.default_rng
CENTERS = np.array([[6.0, 6.0, 0.0], [-6.0, 6.0, 1.0], [0.0, -6.0, -1.0]])
RECORDS = np.repeat(CENTERS, 400, axis=0) + RNG(1).normal(size=(1200, 3))
PARTS = np.array_split(RNG(2).permutation(RECORDS), 6)
BALL = Ball(14.0, [0.0, 0.0, 0.0])
TRUSTS = ("distributed-noise", "trusted-server")
P_VALUE = 1e-9


def make(trust="distributed-noise", *, epsilon=8.0, unit="record", k=3, domain=BALL, **options):
    if trust == "plain":
        epsilon = None
    options = {"n_clients": 6, "min_clients": 3, **options}
    budget = PrivacyBudget(epsilon, unit=unit)
    return SynopsisKMeans(k, domain, budget, options.pop("n_records", 1200), trust=trust, **options)


def run(strategy, parts=PARTS, **options):
    return run_recorded(strategy, parts, timeout=60, **options)


@cache
def finished(trust, unit):
    """A run for several tests, which only look at it."""
    return run(make(trust, unit=unit))


def same(outcome):
    """Require that the server and all clients have one result; return it."""
    result = outcome.one
    np.testing.assert_array_equal(outcome.strategy.centroids, result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["centroids"].numpy(), result.centroids)
    np.testing.assert_array_equal(outcome.result.arrays["counts"].numpy(), result.counts)
    return result


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_runs_end_with_one_result(trust, unit, start):
    outcome = finished(trust, unit) if start is None else run(make(trust, unit=unit), start=start)
    result, report, n_rounds = same(outcome), outcome.strategy.report, outcome.strategy.n_rounds
    assert result.centroids.shape == (3, 3)
    assert np.isfinite(result.counts).all()
    assert np.linalg.norm(result.centroids, axis=1).max() <= 14.0
    assert len(outcome.results) == 6
    assert report.answers == [6] * n_rounds
    assert (report.trust, report.unit, report.n_rounds) == (trust, unit, n_rounds)
    assert 7.9 < report.epsilon <= 8.0
    assert not report.incidents


@pytest.mark.parametrize("keys", ["relayed", "roster"])
def test_runs_take_keys_of_any_kind(keys, tmp_path):
    roster, policies = write_roster(tmp_path, len(PARTS)) if keys == "roster" else (None, None)
    strategy = make(keys=keys, roster_file=roster)
    same(run(strategy, policy=policies))
    assert strategy.report.keys == keys
    assert strategy.report.answers == [6] * strategy.n_rounds


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
@pytest.mark.parametrize("domain", [BALL, Box([-12.0] * 3, [12.0] * 3)], ids=["ball", "box"])
def test_without_noise_it_finds_the_clusters(domain, trust):
    with without_noise():
        outcome = run(make(trust, domain=domain))
    found = same(outcome)
    means = RECORDS.reshape(3, 400, 3).mean(axis=1)
    assert matched_centroid_error(found.centroids, means) < 1e-2
    np.testing.assert_array_equal(np.sort(found.counts), [400] * 3)
    assert outcome.strategy.report.warnings == ()


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("unit", ["record", "client"])
def test_whoever_is_missing_in_a_round_is_missing_in_its_sum_alone(trust, unit):
    """Without noise, the sum of each round is exactly that of the clients who answered it."""
    strategy = make(trust, unit=unit)
    n_rounds = strategy.n_rounds
    faults = [Fault(t % 6, t + 1, "drop") for t in range(n_rounds)]
    with without_noise():
        outcome = run(strategy, faults=faults)
    same(outcome)
    report = outcome.strategy.report
    assert report.answers == [5] * n_rounds
    assert [(entry.client, entry.round) for entry in report.dropped] == [
        (t % 6, t + 1) for t in range(n_rounds)
    ]
    for query in outcome.queries:
        away = (query.round - 1) % 6
        present = [part for i, part in enumerate(PARTS) if i != away]
        expected = sum(exact_statistic(outcome.strategy.algorithm, query, part) for part in present)
        np.testing.assert_array_equal(outcome.sums[query.round], expected)


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("trust", TRUSTS)
def test_finished_runs_carry_the_planned_noise(trust, unit):
    """Of every release, with its own clip, whatever cells and radii were asked for."""
    ratios = {}
    clips = {"clips": {"synopsis": 7.0}} if unit == "client" else {}
    for seed in range(4):
        strategy = make(trust, unit=unit, epsilon=1.0, seed=seed, min_clients=6, **clips)
        outcome = run(strategy)
        factor = strategy.noise_factor**2
        for query in outcome.queries:
            t = query.round
            exact = sum(exact_statistic(outcome.strategy.algorithm, query, part) for part in PARTS)
            noise = outcome.sums[t] - exact
            for release in strategy.plan.rounds[t - 1]:
                parts = strategy.algorithm.schedule.parts(t, 3)
                for block in release.blocks:
                    one = 4.0**10 if release.name == "moments" else 2.0**16
                    if release.name == "synopsis":
                        one /= parts[block] ** 0.5
                    clip = 1.0
                    if unit == "client":
                        clip = 7.0 if release.name == "synopsis" else 200**0.5
                    std = release.noise_multiplier * one * clip * factor**0.5
                    found = noise[strategy.algorithm.places(t)[block]] / std
                    if release.name == "moments":
                        found[3:] *= 2**0.5  # above the diagonal
                    ratios.setdefault((release.name, block), []).append(found)
    assert len(ratios) == 6
    for name, found in ratios.items():
        squares = np.concatenate(found) ** 2
        sizes = squares.sum(), squares.size
        assert 2 * min(stats.chi2.cdf(*sizes), stats.chi2.sf(*sizes)) > P_VALUE, name


@pytest.mark.ray
def test_ray_gives_the_same_result():
    """Node ids differ, and with them the noise, so there is next to none."""
    options = {"epsilon": 1e6, "fraction_bits": 20}
    found = [
        simulate(make(**options), PARTS, engine=engine, timeout=120)
        for engine in ("in-process", "ray")
    ]
    # A server's k-means numbers its clusters by chance.
    first, second = (np.argsort(result.centroids[:, 0]) for result in found)
    np.testing.assert_allclose(
        found[0].centroids[first], found[1].centroids[second], rtol=0, atol=0.01
    )
    np.testing.assert_allclose(found[0].counts[first], found[1].counts[second], rtol=0, atol=1)
    assert found[1].report.answers == [6] * found[1].report.n_rounds


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_rounds_and_initial_centroids_are_refused(trust):
    with pytest.raises(ConfigurationError, match="n_rounds='auto' for SynopsisKMeans"):
        make(trust, n_rounds=5)
    with pytest.raises(ConfigurationError, match="no initial: SynopsisKMeans makes its own"):
        make(trust, initial=CENTERS)

    def begin(strategy, grid, **options):
        return KMeansStrategy.start(
            strategy, grid, initial_arrays=ArrayRecord([CENTERS]), **options
        )

    with pytest.raises(ConfigurationError, match="no initial_arrays: SynopsisKMeans"):
        run(make(trust), start=begin)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "n_clusters in"),
        ({"n_records": None}, "n_records is required"),
        ({"n_records": 2}, "n_clusters of at most n_records=2"),
        ({"fraction_bits": 1, "epsilon": 500.0}, "noise share"),
        ({"clips": {"moments": 1.0}}, "clips=None unless"),
        ({"unit": "client", "clips": {"moment": 1.0}}, "Got 'moment'"),
        ({"unit": "client", "clips": {"moments": -1.0}}, "clips between"),
    ],
)
def test_bad_parameters_are_refused_when_the_strategy_is_made(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**options)


# --------------------------------------------------------------------------- the report


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_report_lists_every_release(trust):
    strategy = finished(trust, "record").strategy
    report = strategy.report.to_dict()
    schedule = strategy.algorithm.schedule
    expected = [(1, "moments")]
    for t in range(2, 2 + len(schedule.cells)):
        expected += [(t, "synopsis")]
    for t in range(2 + len(schedule.cells), strategy.n_rounds + 1):
        expected += [(t, f"refinement-{name}") for name in ("sums", "counts")]
    assert [(release["round"], release["name"]) for release in report["releases"]] == expected
    assert sum(release["mu"] ** 2 for release in report["releases"]) == pytest.approx(
        report["mu"] ** 2
    )


@pytest.mark.parametrize("trust", [*TRUSTS, "plain"])
def test_clients_without_records_are_no_error(trust):
    strategy = make(trust, k=5)
    result = same(run(strategy, [np.empty((0, 3))] * 6))
    assert np.isfinite(result.centroids).all()
    if trust == "plain":
        assert NOTES[FEW] in strategy.report.warnings


def test_where_a_run_fell_back_is_reported():
    strategy = make("trusted-server", domain=Ball(20.0, [0.0] * 60), epsilon=0.1)
    run(strategy, [RNG(i).normal(size=(9, 60)) for i in range(6)])
    assert NOTES[BLIND] in strategy.report.warnings
    assert strategy.report.to_dict()["warnings"] == list(strategy.report.warnings)


@pytest.mark.parametrize("d", [100, 128])
def test_second_moments_travel_by_half_and_only_where_they_are_worth_it(d):
    strategy = make(
        "trusted-server", k=2, domain=Ball(4.0, np.zeros(d)), n_clients=3, n_records=10**6
    )
    outcome = run(strategy, np.split(RNG(4).normal(size=(9, d)) * 0.1, 3))
    same(outcome)
    words = max(len(i.message.words) for i in outcome.grid.received if i.kind == "answer")
    assert words == 8 * (d * (d + 1) // 2 + 1)
    few = make("trusted-server", k=2, domain=Ball(4.0, np.zeros(d)), n_clients=3, n_records=40)
    outcome = run(few, np.split(RNG(4).normal(size=(9, d)) * 0.1, 3))
    words = max(len(i.message.words) for i in outcome.grid.received if i.kind == "answer")
    assert words < 8 * 2000


def test_a_cluster_stays_where_it_was_while_all_of_its_clients_are_away():
    """Each cluster is that of two clients; no noise, so that only the drops can move a centroid."""
    parts = [half for rows in np.split(RECORDS, 3) for half in np.array_split(rows, 2)]
    strategy = make("plain")
    synopses = len(strategy.algorithm.schedule.cells)
    assert synopses == 3
    away = {3: (0, 1), 4: (2, 3), 5: (4, 5), 6: (0, 1), 7: (2, 3), strategy.n_rounds: (4, 5)}
    faults = [Fault(client, t, "drop") for t, clients in away.items() for client in clients]
    outcome = run(strategy, parts, faults=faults)
    found = same(outcome)
    means = RECORDS.reshape(3, 400, 3).mean(axis=1)
    assert matched_centroid_error(found.centroids, means) < 0.2
    np.testing.assert_allclose(sorted(found.counts), [400] * 3, atol=10)
    assert NOTES[HELD] in outcome.strategy.report.warnings


def test_one_client_that_holds_everything_may_be_away():
    """The round that it misses has nothing but empty cells: the model is what it was."""
    last = 1 + len(make("plain").algorithm.schedule.cells)  # round of the synopsis
    for away in (last, last + 2):
        parts = [RECORDS, *[RECORDS[:0]] * 5]
        outcome = run(make("plain"), parts, faults=[Fault(0, away, "drop")])
        means = RECORDS.reshape(3, 400, 3).mean(axis=1)
        assert matched_centroid_error(same(outcome).centroids, means) < 0.2
        assert outcome.strategy.report.warnings == (NOTES[HELD],)
