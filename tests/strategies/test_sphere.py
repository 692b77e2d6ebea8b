"""Runs on a sphere: every strategy, directions that lengths hide, null records, the cost."""

import logging
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from harness import SIMULATED, run_recorded, without_noise
from rows import CENTERS, ROWS, SIGHTED, listed, make, parts_of, run

from flower_kmeans import Ball, Box, PrivacyBudget, Sphere, html_report, simulate
from flower_kmeans.algorithms.numerics.postprocess import scaled
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
    TooFewClientsError,
)
from flower_kmeans.simulation.clients import Unusable
from flower_kmeans.strategies import (
    FastLloyd,
    FedDPKMeans,
    GLloyd,
    SuLloyd,
    SynopsisKMeans,
    VerticalKMeans,
)
from tests.support.saying import assert_within

RNG = np.random.default_rng
HORIZONTAL = [name for name in ROWS if name != "Split"]
D, N, CLIENTS = 6, 6_000, 5


def unit(points):
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def cosines(records, centroids):
    return (unit(records) @ unit(centroids).T).max(axis=1)


# ------------------------------------------------------------------- every strategy


@pytest.mark.claim("guarantees", "7")
@pytest.mark.parametrize(
    ("name", "trust"),
    [
        (name, next(t for n, t, _ in listed("record") if n == name))
        for name in HORIZONTAL
    ]
    + [(name, "trusted-server") for name in HORIZONTAL],
)
def test_every_strategy_runs_on_a_sphere_and_its_centroids_have_length_one(name, trust):
    d = ROWS[name][1]
    strategy = make(name, trust, domain=Sphere(d))
    outcome = run(name, strategy)
    result = outcome.one
    lengths = np.linalg.norm(result.centroids, axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-12)
    assert outcome.run.algorithm.domain == Sphere(d)
    report = strategy.report
    assert report.are_directions
    assert any("divided by their length" in words for words in report.statements)
    assert report.to_dict()["bounds"] == {"kind": "Sphere", "n_features": d}


@pytest.mark.default_cases("FastLloyd", "SynopsisKMeans", "HDPEMeans", "FedDPKMeans")
@pytest.mark.parametrize("name", HORIZONTAL)
def test_without_noise_the_directions_are_found(name):
    d = ROWS[name][1]
    means = np.zeros((3, d))
    means[:, :3] = CENTERS
    trust = next(t for n, t, _ in listed("record") if n == name)
    with without_noise():
        found = run(name, make(name, trust, domain=Sphere(d))).one
    best = (unit(means) @ found.centroids.T).max(axis=1)
    off = 0.9 if "constrained" in name else 0.99
    assert_within("a direction is found with a cosine of", best.min(), least=off)


@pytest.mark.parametrize("kind", [GLloyd, SuLloyd, FedDPKMeans])
def test_between_rounds_centroids_of_absolute_sums_are_directions(kind):
    """Then the nearest centroid is that with the largest inner product."""
    records = unit(RNG(1).normal(size=(500, D)))
    options = {"trust": "trusted-server", "n_clients": 2, "min_clients": 1}
    if kind is FedDPKMeans:
        options["server_data"] = records[:20]
    else:
        options["n_rounds"] = 3
    strategy = kind(4, Sphere(D), PrivacyBudget(8.0), 500, **options)
    outcome = run_recorded(strategy, np.array_split(records, 2))
    asked = [each for each in outcome.queries if "centroids" in each.arrays]
    assert len(asked) >= 2
    for query in asked:
        points = scaled(query.arrays["centroids"], strategy.algorithm.fraction_bits)
        off = 1 - np.linalg.norm(points, axis=1)
        assert off.min() >= 0
        assert off.max() <= np.sqrt(D) * 2.0**-strategy.algorithm.fraction_bits


# ---------------------------------------------------------- what lengths would hide


@cache
def directions():
    """Three directions; lengths between them differ more than directions do."""
    rng = RNG(5)
    centers = unit(np.eye(D)[:3] + 0.25)
    groups = rng.integers(0, 3, N)
    close = unit(centers[groups] + rng.normal(0, 0.08, (N, D)))
    lengths = np.exp(rng.normal(0.0, 1.2, (N, 1)))
    return close * lengths, centers, groups


SEEN_AND_BLIND = ("trusted-server", "clients-only")


@pytest.mark.claim("own-data", "only-direction-counts")
@pytest.mark.parametrize("trust", SEEN_AND_BLIND)
@pytest.mark.parametrize("kind", [SynopsisKMeans, FastLloyd])
def test_directions_are_found_that_lengths_hide_in_a_box_and_a_ball(kind, trust):
    records, centers, groups = directions()
    parts = np.array_split(records, CLIENTS)
    reach = float(np.abs(records).max())
    longest = float(np.linalg.norm(records, axis=1).max())
    domains = {
        "sphere": Sphere(D),
        "box": Box([-reach] * D, [reach] * D),
        "ball": Ball(longest, [0.0] * D),
    }
    right = {}
    for name, domain in domains.items():
        strategy = kind(
            3, domain, PrivacyBudget(2.0), N, n_clients=CLIENTS, trust=trust
        )
        clustering = simulate(strategy, parts)
        labels = clustering.predict(records)
        # The share of records whose cluster's commonest group is theirs.
        counts = np.zeros((3, 3))
        np.add.at(counts, (labels, groups), 1)
        right[name] = counts.max(axis=1).sum() / N
        if name == "sphere":
            best = (clustering.centroids @ centers.T).max(axis=0)
            assert_within("centroids have a cosine of", best.min(), least=0.98)
    assert_within("on the sphere the share of groups is", right["sphere"], least=0.98)
    assert_within("in the box it is", right["box"], most=0.9)
    assert_within("in the ball it is", right["ball"], most=0.9)


# -------------------------------------------------------------------- null records


@pytest.mark.claim("guarantees", "7")
@pytest.mark.parametrize("kind", [GLloyd, SynopsisKMeans])
def test_records_of_length_zero_add_nothing_and_their_holder_is_told(kind, caplog):
    records = unit(RNG(2).normal(size=(600, 3))) * 5
    with_zeros = np.vstack([np.zeros((7, 3)), records, np.zeros((4, 3))])
    found = []
    for each in (records, with_zeros):
        strategy = kind(
            3, Sphere(3), PrivacyBudget(1.0), 600, n_clients=1, min_clients=1,
            trust="trusted-server",
        )  # fmt: skip
        with caplog.at_level(logging.WARNING), without_noise():
            caplog.clear()
            outcome = run_recorded(strategy, [each])
        found.append(outcome.sums)
        said = [r.getMessage() for r in caplog.records if "length zero" in r.message]
    assert len(said) == 1
    assert "11 of 611 records have length zero; each counts as none." in said[0]
    assert found[0].keys() == found[1].keys()
    for number, words in found[0].items():
        np.testing.assert_array_equal(found[1][number], words)


# --------------------------------------------------------------------------- the cost


@pytest.mark.claim("guarantees", "16")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (GLloyd, {}),
        # a radius that no offset exceeds
        (FastLloyd, {"relocation": False, "alpha": 9.0, "radius": "constant"}),
    ],
)
def test_the_mean_cosine_follows_from_the_released_cost(kind, options):
    rng = RNG(7)
    centers = unit(rng.normal(size=(4, D)))
    records = unit(centers[rng.integers(0, 4, 2_000)] + rng.normal(0, 0.2, (2_000, D)))
    offs = []
    for _ in range(4):
        strategy = kind(
            4, Sphere(D), PrivacyBudget(1.5), 2_000, n_clients=2, min_clients=1,
            trust="trusted-server", n_rounds=2, initial=centers, cost=True, **options,
        )  # fmt: skip
        clustering = simulate(strategy, np.array_split(records, 2))
        estimate = clustering.report.mean_cosine
        n = len(records)
        exact = 1 - clustering.inertia(records) / (2 * n)
        np.testing.assert_allclose(
            exact, cosines(records, clustering.centroids).mean(), rtol=1e-9
        )
        cost = clustering.report.cost
        assert estimate.value == 1 - cost.value / (2 * n)
        offs.append((estimate.value - exact) / estimate.standard_error)
    # The exact one is of the nearest centroids; near them both assignments agree.
    mean = np.mean(offs)
    assert_within("the estimate is off by", mean, least=-3.0, most=3.0)
    text = " ".join(clustering.report.statements)
    assert (
        f"mean cosine similarity of a record to its centroid is {estimate.value:.4g}"
        in text
    )
    assert clustering.report.to_dict()["mean_cosine"]["value"] == estimate.value
    page = html_report(clustering)
    assert "The mean cosine similarity of a record to its centroid is" in page


def test_other_domains_state_no_cosine():
    strategy = GLloyd(
        2, Ball(1.0, [0.0, 0.0]), PrivacyBudget(1.0), 100, n_clients=1, min_clients=1,
        trust="trusted-server", n_rounds=2, cost=True,
    )  # fmt: skip
    report = simulate(strategy, [RNG(0).normal(size=(100, 2))]).report
    assert report.mean_cosine is None
    assert "mean_cosine" not in report.to_dict()
    assert "cosine" not in " ".join(report.statements)


# ---------------------------------------------------------------- what is not possible


def test_what_a_sphere_cannot_have_is_refused():
    budget = PrivacyBudget(1.0)
    sphere = Sphere(3)
    with pytest.raises(ConfigurationTypeError, match="domain as a Box"):
        VerticalKMeans(3, sphere, budget, 100, parties=[1, 2])
    with pytest.raises(ConfigurationError, match=r"postprocess.*on a Sphere.*'none'"):
        FastLloyd(3, sphere, budget, 100, postprocess="none", relocation=False)
    zero = [[1.0, 0, 0], [0, 0, 0]]
    with pytest.raises(ConfigurationError, match=r"initial centroids.*length zero"):
        GLloyd(2, sphere, budget, 100, initial=zero)
    with pytest.raises(ConfigurationError, match=r"server_data.*length zero"):
        FedDPKMeans(2, sphere, budget, 100, server_data=zero, n_clients=4)


@pytest.mark.parametrize("trust", SIGHTED)
def test_one_sphere_pinned_by_a_client_refuses_another_domain(trust):
    policy = replace(SIMULATED, domain=Sphere(3))
    same = make("GLloyd", trust, domain=Sphere(3))
    assert len(run("GLloyd", same, policy=policy).results) == 6
    other = make("GLloyd", trust, domain=Ball(1.0, [0.0] * 3))
    with pytest.raises(TooFewClientsError):
        run("GLloyd", other, policy=policy)


# ------------------------------------------------------------------------- its use


@pytest.fixture(scope="module")
def clustering():
    records = np.vstack(parts_of("GLloyd"))
    strategy = SynopsisKMeans(
        3, Sphere(3, ["a", "b", "c"]), PrivacyBudget(8.0), 1200, n_clients=1,
        min_clients=1, trust="trusted-server",
    )  # fmt: skip
    return simulate(strategy, [records])


def test_a_clustering_compares_directions(clustering):
    records = np.vstack(parts_of("GLloyd"))
    labels = clustering.predict(records)
    best = (unit(records) @ clustering.centroids.T).argmax(axis=1)
    np.testing.assert_array_equal(labels, best)
    np.testing.assert_array_equal(clustering.predict(records * 1e-200), labels)
    inertia = ((unit(records) - clustering.centroids[labels]) ** 2).sum()
    assert clustering.inertia(records) == pytest.approx(inertia)
    assert clustering.cost(records) == pytest.approx(inertia)
    assert clustering.inertia(records * 100) == pytest.approx(inertia)
    with pytest.raises(DataError, match="length zero in row 1"):
        clustering.predict([[1, 0, 0], [0, 0, 0]])
    with pytest.raises(ConfigurationError, match="all 3 columns on a Sphere"):
        clustering.predict([[1.0, 2.0]], columns=["a", "b"])


def test_a_synopsis_clusters_directions_again(clustering, tmp_path):
    found = clustering.synopsis.kmeans(2)
    np.testing.assert_allclose(np.linalg.norm(found.centroids, axis=1), 1, rtol=1e-12)
    path = tmp_path / "synopsis.npz"
    clustering.synopsis.save(path)
    again = type(clustering.synopsis).load(path)
    assert again.domain == Sphere(3, ["a", "b", "c"])
    np.testing.assert_array_equal(again.kmeans(2).centroids, found.centroids)
    with pytest.raises(ConfigurationError, match="of a Sphere, which has none"):
        clustering.synopsis.kmeans(2, weights={"a": 2.0})


def test_a_loaded_client_whose_records_all_have_length_zero_is_an_error():
    check = Unusable(Sphere(2))
    assert check(0, lambda: RNG(0).normal(size=(50, 2))) is None
    assert check(0, lambda: np.empty((0, 2))) is None
    error = check(1, lambda: np.zeros((50, 2)))
    assert isinstance(error, DataError)
    assert "partition 1. Got none: all of its records are malformed or null" in str(
        error
    )
