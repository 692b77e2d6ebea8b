"""Simulated runs whose last round measures the silhouette of the result."""

import numpy as np
import pytest
from harness import without_noise

from flower_kmeans import Box, PrivacyBudget, Sphere, html_report, simulate
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.strategies import FastLloyd, GLloyd, SuLloyd, SynopsisKMeans
from tests.support.saying import assert_within

RNG = np.random.default_rng
CENTERS = np.array([[0, 0], [8, 1], [1, 9], [9, 8], [4, 4]])
BOX = Box([-3, -3], [12, 12])
N = 4000


def records_of(spread=0.5):
    return CENTERS[np.arange(N) % 5] + RNG(0).normal(0, spread, (N, 2))


def parts_of(records, n=5):
    return np.array_split(RNG(1).permutation(records), n)


def silhouette_of(clustering, records):
    """Return the mean silhouette of records, from the result alone."""
    unit = clustering.domain.unit
    differences = (records[:, None] - clustering.centroids) / unit
    lengths = np.sort(np.sqrt((differences**2).sum(axis=2)), axis=1)
    return float(np.mean(1 - lengths[:, 0] / lengths[:, 1]))


@pytest.mark.claim("reading-a-report", "silhouette-of-records-in-interval")
@pytest.mark.parametrize(
    "trust", ["clients-only", "distributed-noise", "oblivious-server", "trusted-server"]
)
def test_a_federation_measures_its_silhouette(trust):
    strategy = SynopsisKMeans(
        5, BOX, PrivacyBudget(4.0), N, n_clients=5, trust=trust, quality=True, seed=1
    )
    clustering = simulate(strategy, parts_of(records_of()))
    found = clustering.report.silhouette
    true = silhouette_of(clustering, records_of())
    # The interval misses one time in 20. Four deviations are missed once in 16,000.
    what = "the released silhouette is off by"
    assert_within(what, abs(found.value - true), most=4 * found.deviation + 1e-3)
    assert found.low <= found.value <= found.high
    assert len(found.by_cluster) == 5
    report = clustering.report
    assert report.theorems[-1] == 48
    assert report.to_dict()["silhouette"]["value"] == found.value
    assert found.text in report.statements
    assert found.text in html_report(clustering)
    blind = trust in ("clients-only", "oblivious-server")
    assert (strategy.report.silhouette is None) == blind


def test_clusters_apart_have_a_larger_silhouette_than_one_cloud():
    values = []
    for spread in (0.5, 3.0):
        strategy = GLloyd(
            5, BOX, PrivacyBudget(4.0), N, n_clients=5, quality=True, seed=1
        )
        found = simulate(strategy, parts_of(records_of(spread))).report.silhouette
        values.append(found.value)
    assert_within(
        "clusters apart have a silhouette larger by", values[0] - values[1], least=0.2
    )


@pytest.mark.parametrize("domain", [Box([-99, -99], [99, 99], tighten=0.1), Sphere(2)])
def test_ranges_and_directions_have_the_silhouette_of_their_space(domain):
    strategy = FastLloyd(
        3, domain, PrivacyBudget(8.0), N, n_clients=5, quality=True, n_rounds=3
    )
    records = records_of() + 5
    with without_noise():
        clustering = simulate(strategy, parts_of(records))
    if isinstance(domain, Box):
        inside = np.clip(records, clustering.domain.lower, clustering.domain.upper)
    else:
        inside = records / np.linalg.norm(records, axis=1)[:, None]
    found = clustering.report.silhouette
    expected = silhouette_of(clustering, inside)
    assert_within("the silhouette is off by", abs(found.value - expected), most=0.01)


def test_persons_count_once_each_with_all_their_records():
    persons = np.repeat(np.arange(N // 4), 4)
    records = CENTERS[persons % 5] + RNG(0).normal(0, 0.5, (N, 2))
    strategy = GLloyd(
        5,
        BOX,
        PrivacyBudget(8.0, unit="person"),
        n_persons=N // 4,
        n_clients=5,
        quality=True,
    )
    with without_noise():
        clustering = simulate(
            strategy,
            np.array_split(records, 5),
            persons=np.array_split(persons, 5),
        )
    found = clustering.report.silhouette
    assert sum(found.released.counts) == pytest.approx(N // 4, abs=1)
    assert found.value == pytest.approx(silhouette_of(clustering, records), abs=0.01)


def test_clients_are_clipped_without_a_change_of_their_silhouette():
    strategy = GLloyd(
        5,
        BOX,
        PrivacyBudget(8.0, unit="client"),
        N,
        n_clients=40,
        quality=True,
        n_rounds=3,
    )
    with without_noise():
        clustering = simulate(strategy, parts_of(records_of(), 40))
    found = clustering.report.silhouette
    assert_within(
        "of the records, clipped clients count",
        sum(found.released.counts) / N,
        most=0.9,
    )
    expected = silhouette_of(clustering, records_of())
    assert found.value == pytest.approx(expected, abs=0.01)


def test_an_exact_run_has_an_interval_without_width():
    strategy = SuLloyd(
        5, BOX, PrivacyBudget(None), N, n_clients=5, trust="plain", quality=True
    )
    found = simulate(strategy, parts_of(records_of())).report.silhouette
    assert found.low == found.value == found.high
    assert "probability" not in found.text


def test_a_later_run_can_start_from_the_result_and_judge_it_again():
    options = {
        "n_clients": 5,
        "quality": True,
        "n_rounds": 2,
        "trust": "trusted-server",
    }
    parts = parts_of(records_of())
    first = simulate(GLloyd(5, BOX, PrivacyBudget(4.0), N, **options), parts)
    second = GLloyd(5, BOX, PrivacyBudget(4.0), N, initial=first, **options)
    assert second.n_rounds == 3
    report = simulate(second, parts).report
    assert report.silhouette is not None
    assert report.together.epsilon() > 4


def test_the_plan_has_the_release_and_says_what_the_interval_will_be():
    many = SynopsisKMeans(
        5, BOX, PrivacyBudget(1.0), 50_000, n_clients=5, quality=True
    ).plan
    assert "quality" in many.describe()
    assert "so it will be known to within about" in many.describe()
    few = SynopsisKMeans(5, BOX, PrivacyBudget(1.0), 500, n_clients=5, quality=True)
    assert "WARNING: quality=True promises nothing here" in few.plan.describe()
    assert any("quality=True" in caution for caution in few._cautions)
    without = SynopsisKMeans(5, BOX, PrivacyBudget(1.0), 500, n_clients=5)
    assert "quality" not in without.plan.describe()


def test_quality_is_a_bool():
    with pytest.raises(ConfigurationTypeError, match="Expected quality as a bool"):
        GLloyd(5, BOX, PrivacyBudget(1.0), N, quality=1)
    with pytest.raises(ConfigurationError, match="at least 2 with quality=True"):
        GLloyd(1, BOX, PrivacyBudget(1.0), N, quality=True)
