"""Whole runs of FedDP-KMeans: the server's points, its options, and starts from its result."""

import json
import math
from functools import cache

import numpy as np
import pytest
from harness import run_recorded, without_noise
from rows import CENTERS, SERVER, SIGHTED

from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms import FedDPAlgorithm
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.errors import ConfigurationError, ObliviousServerError, RunError
from flower_kmeans.metrics import matched_centroid_error
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.report.clustering import Clustering
from flower_kmeans.strategies import FastLloyd, FedDPKMeans, GLloyd, SuLloyd
from tests.support.saying import assert_within

RNG = np.random.default_rng
RECORDS = np.repeat(CENTERS, 400, axis=0) + RNG(1).normal(size=(1200, 3))
PARTS = np.array_split(RNG(2).permutation(RECORDS), 6)
BALL = Ball(14.0, [0.0, 0.0, 0.0])


def make(
    trust="distributed-noise",
    *,
    epsilon=8.0,
    unit="record",
    k=3,
    domain=BALL,
    **options,
):
    budget = PrivacyBudget(None if trust == "plain" else epsilon, unit=unit)
    options = {
        "server_data": SERVER,
        "n_rounds": 2,
        "n_clients": 6,
        "min_clients": 3,
        **options,
    }
    return FedDPKMeans(k, domain, budget, 1200, trust=trust, **options)


def run(strategy, parts=PARTS, **options):
    return run_recorded(strategy, parts, **options)


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize(
    ("trust", "d"), [("trusted-server", 784), ("distributed-noise", 100)]
)
def test_second_moments_travel_by_half(trust, d):
    """With many columns the first message is d (d + 1) / 2 words, and one that is counted."""
    points, records = RNG(5).normal(size=(4, d)) * 0.1, RNG(4).normal(size=(9, d)) * 0.1
    options = {"server_data": points, "n_rounds": 1, "n_clients": 3}
    outcome = run(
        make(trust, k=2, domain=Ball(4.0, np.zeros(d)), **options), np.split(records, 3)
    )
    outcome.agreed()
    # No message is longer in either direction. One of d x d words would be twice as
    # long. shares for three; three opened a sum
    copies = 3 if trust == "distributed-noise" else 1
    answers = [item.message for item in outcome.grid.received if item.kind == "answer"]
    longest = max(len(each.words) + len(each.sealed) for each in answers)
    assert 4 * d * (d + 1) <= longest / copies <= 4 * d * (d + 1) + 200
    for way in (outcome.grid.sent, outcome.grid.received):
        assert max(len(item.data) for item in way) < copies * (0.51 * 8 * d**2 + 1000)


def test_sums_that_do_not_fit_the_words_of_the_secure_sum_are_refused():
    """A word of shares holds one bit less than a plain one."""
    budget, options = PrivacyBudget(1.0, 1e-16), {"server_data": SERVER, "n_clients": 6}
    FedDPKMeans(3, BALL, budget, 3 * 2**41, trust="trusted-server", **options)
    with pytest.raises(
        ConfigurationError, match=r"below 2\^62, so that they fit into the words"
    ):
        FedDPKMeans(3, BALL, budget, 3 * 2**41, **options)


@pytest.mark.claim("guarantees", "19")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(
    "mechanisms", ["laplace", {"weights": "laplace"}, {"cost": "laplace"}]
)
@pytest.mark.parametrize("unit", ["record", "client"])
def test_laplace_noise_needs_a_server_that_adds_it(mechanisms, unit):
    options = {"mechanisms": mechanisms, "unit": unit, "cost": True}
    with pytest.raises(ConfigurationError, match=r"[Ll]aplace"):
        make(**options)
    strategy = make("trusted-server", **options)
    run(strategy).agreed()
    report = strategy.report.to_dict()
    kinds = {release["name"]: release["mechanism"] for release in report["releases"]}
    everywhere = {"weights", "lift-counts", "lloyd-counts", "cost"}
    everywhere |= {"spread"} if unit == "record" else set()
    laplace = {name for name, kind in kinds.items() if kind == "laplace"}
    assert laplace == (everywhere if mechanisms == "laplace" else set(mechanisms))
    assert report["mu"] is None
    assert 7.9 < report["epsilon"] <= 8.0


@pytest.mark.parametrize("trust", SIGHTED)
def test_clients_may_add_means(trust):
    strategy = make(trust, unit="client", contribution="means")
    assert np.isfinite(run(strategy).agreed().centroids).all()
    assert strategy.report.answers == [6] * 5


@pytest.mark.claim("deploy", "nodes-see-projections-points")
@pytest.mark.claim("protocol", "m-min-clients-c")
@pytest.mark.parametrize("trust", [*SIGHTED, "plain"])
def test_the_servers_points_are_in_no_message(trust):
    """Neither their numbers, nor where they lie on the grid."""
    strategy = make(trust, k=2, cost=True)
    outcome, algorithm = run(strategy), strategy.algorithm
    messages = b"".join(
        item.data for item in (*outcome.grid.sent, *outcome.grid.received)
    )
    report = json.dumps(strategy.report.to_dict())
    texts = [text for x in SERVER.ravel().tolist() for text in (repr(x), x.hex())]
    needles = [text.encode() for text in texts] + [
        value.tobytes() for value in SERVER.ravel()
    ]
    needles += [
        part.tobytes() for row in algorithm.server_points for part in (row, row[:2])
    ]
    assert not [needle for needle in needles if needle in messages]
    assert not [text for text in texts if text in report]
    assert outcome.run.data in messages
    config = outcome.run.document.body.algorithm
    assert config["n_server_points"] == len(SERVER)
    assert [name for name in config if "server" in name] == ["n_server_points"]
    # They were used: their projections were what the second query was made of.
    second, points = outcome.queries[1].arrays, algorithm.server_points.astype(float)
    seen = algorithm.projection.project(points, second["projection"].astype(float))
    np.testing.assert_array_equal(second["points"], seen)
    assert seen.shape == (len(SERVER), 2)


@pytest.mark.claim("deploy", "nodes-see-projections-points")
@pytest.mark.parametrize("k", [2, 3, 5])
def test_projections_to_all_directions_are_the_servers_points(k):
    """With as many clusters as columns a client can turn the projections back."""
    outcome = run(make("trusted-server", k=k))
    arrays, algorithm = outcome.queries[1].arrays, outcome.strategy.algorithm
    lifted = algorithm.projection.lift(arrays["points"], arrays["projection"])
    back = BALL.from_unit(lifted * 2.0**-algorithm.fraction_bits)
    assert (np.abs(back - SERVER).max() < 0.01) == (k >= 3)


@pytest.mark.claim("guarantees", "34")
@pytest.mark.parametrize(
    "options", [{"clips": {"weights": 90.0}}, {"contribution": "means"}]
)
def test_the_report_states_how_much_of_a_client_counts_in_each_release(options):
    strategy = make("trusted-server", unit="client", clip=30.0, n_rounds=1, **options)
    run(strategy)
    report, clips = strategy.report, strategy.clips
    assert len(set(clips.values())) > 1
    stated = ", ".join(f"{name} {clip:.4g}" for name, clip in clips.items())
    assert report.clip_text == f"by release: {stated}"
    (statement,) = (
        text
        for text in report.statements
        if "One client with all its records is protected" in text
    )
    assert stated in statement
    assert "at most 30 records" not in statement


def test_the_elbow_bends_at_the_number_of_clusters():
    strategy = make(k=4, epsilon=50.0, seed=7)
    with pytest.raises(RunError, match="not started"):
        strategy.elbow(6)
    run(strategy)
    costs = strategy.elbow(6)
    assert costs.shape == (6,)
    gains = -np.diff(costs)
    # three clusters, of which the fourth splits one
    assert gains[1] > 5 * max(gains[2:])
    np.testing.assert_array_equal(costs, strategy.elbow(6, public_generator(7, 0)))
    given = RNG(1)
    strategy.elbow(3, given)
    assert given.random() != RNG(1).random()


def from_result(cls, initial, trust=None, *, epsilon=3.0, unit="record", **options):
    """Return a strategy that starts from the result of another run."""
    options = {
        "n_rounds": 2,
        "n_clients": 6,
        "min_clients": 3,
        "initial": initial,
        **options,
    }
    return cls(3, BALL, PrivacyBudget(epsilon, unit=unit), 1200, trust=trust, **options)


@cache
def initialisation(trust="trusted-server", unit="record"):
    """The initialisation alone, finished."""
    strategy = make(trust, n_rounds=0, unit=unit, epsilon=4.0)
    run(strategy).agreed()
    return strategy


def test_the_initialisation_stands_alone():
    """Without noise it is near the clusters, where a record has a nearest one."""
    with without_noise():
        outcome = run(make(n_rounds=0))
    means = RECORDS.reshape(3, 400, 3).mean(axis=1)
    assert matched_centroid_error(outcome.agreed().centroids, means) < 0.01
    assert outcome.strategy.report.answers == [6] * 3
    releases = [
        release["name"] for release in outcome.strategy.report.to_dict()["releases"]
    ]
    assert releases == ["projection", "weights", "lift-sums", "lift-counts"]


@pytest.mark.claim("reference/strategies", "initial-also-takes-finished")
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("cls", [FastLloyd, GLloyd, SuLloyd])
def test_any_strategy_starts_from_it_and_reports_both_costs(cls, unit):
    first = initialisation(unit=unit)
    for initial in (first, Clustering(first.centroids, np.ones(3), BALL, first.report)):
        strategy = from_result(cls, initial, unit=unit)
        state = strategy.algorithm.initial_state(None)
        np.testing.assert_allclose(
            strategy.algorithm.centroids(state), first.centroids, atol=1e-3
        )
        run(strategy)
        report, together = strategy.report, first.plan.then(strategy.plan)
        stated, epsilon = report.to_dict(), together.epsilon()
        assert report.together == together
        # Laplace noise counts as the Gaussian noise that covers it, for the run was
        # chosen later.
        assert 4.0 < epsilon < (11.0 if cls is SuLloyd else 7.0)
        earlier = {"strategy": "FedDPKMeans", "epsilon": first.report.epsilon}
        assert stated["together"]["epsilon"] == epsilon
        assert earlier.items() <= stated["earlier"].items()
        (statement,) = (text for text in report.statements if "earlier run" in text)
        assert "(FedDPKMeans, trust trusted-server)" in statement
        assert f"epsilon {epsilon:.4g} at delta" in statement


def test_costs_of_a_chain_of_runs_are_added():
    first = initialisation()
    second = from_result(GLloyd, first, "trusted-server", epsilon=2.0)
    run(second)
    third = from_result(FastLloyd, second, "trusted-server")
    run(third)
    mu = math.hypot(*(each.plan.mu for each in (first, second, third)))
    assert third.report.together.mu == pytest.approx(mu, rel=1e-12)
    assert first.report.together is first.report.to_dict()["together"] is None
    json.dumps(third.report.to_dict())


def test_a_start_from_a_run_without_privacy_is_stated():
    strategy = from_result(FastLloyd, initialisation("plain"))
    run(strategy)
    assert strategy.report.together is strategy.report.to_dict()["together"] is None
    assert any(
        text.startswith("NOT PRIVATE together") for text in strategy.report.statements
    )


@pytest.mark.claim("reference/strategies", "initial-also-takes-finished")
@pytest.mark.claim("guarantees", "36")
def test_results_that_a_server_must_not_see_are_no_start():
    """Initial centroids are public: with them, that server could solve for the noise it added."""
    first = from_result(FastLloyd, CENTERS)
    with pytest.raises(RunError, match="no report before the run"):
        from_result(FastLloyd, first)
    result = run(first).one
    for initial in (
        first,
        Clustering(result.centroids, result.counts, BALL, first.report),
    ):
        with pytest.raises(ObliviousServerError, match="must never see it"):
            from_result(FastLloyd, initial)
    with pytest.raises(
        ConfigurationError, match="with unit='client', so that the costs"
    ):
        from_result(FastLloyd, initialisation(), unit="client")


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("d", [2, 10])
@pytest.mark.parametrize("shape", ["ball", "box"])
def test_second_moments_cannot_show_that_records_fill_little(shape, d, epsilon):
    """The docstring's reason why there is no such warning."""
    wide = [1.0] * d
    domain = Box(np.negative(wide), wide) if shape == "box" else Ball(1.0, [0.0] * d)
    points = RNG(0).uniform(-0.4, 0.4, (30, d))
    n_records = 100_000
    algorithm = FedDPAlgorithm.planned(
        3, domain, PrivacyBudget(epsilon), n_records=n_records, server_data=points
    )
    (block,) = algorithm.layout(1).blocks
    noise = algorithm.noise_of(1)[block.name] * 2.0**-block.exponent / n_records
    mu = mu_of_budget(epsilon, algorithm.budget.delta)
    variance = (1 / 50) ** 2 / 3  # of numbers that fill 1/50 of [-1, 1] evenly
    least = 27_000 * (d if shape == "box" else 1)
    found = 2 * noise / variance * n_records * mu
    assert_within("mu n_records must be above", found, least=least, most=1.05 * least)
