"""Fallbacks, sizes of messages, and absent clients in runs of SynopsisKMeans."""

import numpy as np
import pytest
from harness import run_recorded
from rows import CENTERS

from flower_kmeans import Ball, Fault, PrivacyBudget
from flower_kmeans.algorithms.synopsis import BLIND, FEW, HELD, WARNINGS
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.strategies import SynopsisKMeans

RNG = np.random.default_rng
RECORDS = np.repeat(CENTERS, 400, axis=0) + RNG(1).normal(size=(1200, 3))
BALL = Ball(14.0, [0.0, 0.0, 0.0])


def make(trust="distributed-noise", *, epsilon=8.0, k=3, domain=BALL, n_records=1200, **options):
    options = {"n_clients": 6, "min_clients": 3, **options}
    budget = PrivacyBudget(None if trust == "plain" else epsilon)
    return SynopsisKMeans(k, domain, budget, n_records, trust=trust, **options)


def run(strategy, parts, **options):
    return run_recorded(strategy, parts, timeout=60, **options)


def test_the_plan_and_shares_of_noise_limit_rounds_and_bits():
    with pytest.raises(ConfigurationError, match="n_rounds='auto' for SynopsisKMeans"):
        make(n_rounds=5)
    with pytest.raises(ConfigurationError, match="noise share"):
        make(fraction_bits=1, epsilon=500.0)


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server", "plain"])
def test_clients_without_records_are_no_error(trust):
    strategy = make(trust, k=5)
    result = run(strategy, [np.empty((0, 3))] * 6).agreed()
    assert np.isfinite(result.centroids).all()
    if trust == "plain":
        assert WARNINGS[FEW] in strategy.report.warnings


def test_where_a_run_fell_back_is_reported():
    strategy = make("trusted-server", domain=Ball(20.0, [0.0] * 60), epsilon=0.1)
    run(strategy, [RNG(i).normal(size=(9, 60)) for i in range(6)])
    assert WARNINGS[BLIND] in strategy.report.warnings
    assert strategy.report.to_dict()["warnings"] == list(strategy.report.warnings)


@pytest.mark.parametrize("d", [100, 128])
def test_second_moments_travel_by_half_and_only_where_they_are_worth_it(d):
    strategy = make(
        "trusted-server", k=2, domain=Ball(4.0, np.zeros(d)), n_clients=3, n_records=10**6
    )
    outcome = run(strategy, np.split(RNG(4).normal(size=(9, d)) * 0.1, 3))
    outcome.agreed()
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
    found = outcome.agreed()
    means = RECORDS.reshape(3, 400, 3).mean(axis=1)
    assert matched_centroid_error(found.centroids, means) < 0.2
    np.testing.assert_allclose(sorted(found.counts), [400] * 3, atol=10)
    assert WARNINGS[HELD] in outcome.strategy.report.warnings


def test_one_client_that_holds_everything_may_be_away():
    """The round that it misses has nothing but empty cells: the model is what it was."""
    last = 1 + len(make("plain").algorithm.schedule.cells)  # round of the synopsis
    for away in (last, last + 2):
        parts = [RECORDS, *[RECORDS[:0]] * 5]
        outcome = run(make("plain"), parts, faults=[Fault(0, away, "drop")])
        means = RECORDS.reshape(3, 400, 3).mean(axis=1)
        assert matched_centroid_error(outcome.agreed().centroids, means) < 0.2
        assert outcome.strategy.report.warnings == (WARNINGS[HELD],)
