"""Clips of FedDP-KMeans from the server's points: what they are, and that they never fail."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms import FedDPAlgorithm
from flower_kmeans.algorithms.feddp_clips import (
    LEAST_CLIP,
    MOST_DRAWN,
    N_PSEUDO_CLIENTS,
    answer_norms,
    pseudo_clients,
)
from flower_kmeans.domain import Ball, Box
from flower_kmeans.privacy.budget import PrivacyBudget

CLIENTS = PrivacyBudget(1.0, unit="client")
RNG = np.random.default_rng
BALL = Ball(3.0, [0.5] * 20)


def mixture(n, seed=0, k=4, d=20):
    """Points of a mixture whose clusters are narrower than their distances."""
    means = RNG(99).random((k, d))
    return means[RNG(seed).integers(k, size=n)] + RNG(seed + 1).normal(0, 0.1, (n, d))


def build(**options):
    options = {
        "server_data": mixture(80),
        "n_records": 20_000,
        "n_clients": 400,
        "budget": CLIENTS,
        **options,
    }
    return FedDPAlgorithm(options.pop("k", 4), options.pop("domain", BALL), **options)


def twin(**options):
    return build(
        budget=PrivacyBudget(None, unit="client"),
        n_clients=None,
        n_lloyd_rounds=1,
        min_weight=1e-6,
        **options,
    )


def clips_of(algorithm):
    rounds = range(1, algorithm.n_rounds + 1)
    return {r.name: algorithm.clip_of(r) for t in rounds for r in algorithm.releases(t)}


# ----------------------------------------------------------------- what they are


def test_norms_are_those_of_records_drawn_from_the_servers_points():
    plain = twin(sums="absolute")
    parts = pseudo_clients(plain, 50, RNG(3))
    norms = answer_norms(plain, 50, RNG(3))
    assert len(parts) == N_PSEUDO_CLIENTS
    unit = 2.0**plain.fraction_bits
    for i, part in enumerate(parts):
        x = np.empty(part.shape)
        part.read(0, x)
        x /= unit
        assert len(x) == 50
        assert norms["projection"][i] == pytest.approx(np.linalg.norm(x.T @ x), rel=0.02)
        _, votes = np.unique(x, axis=0, return_counts=True)  # each votes for itself
        assert norms["weights"][i] == pytest.approx(np.linalg.norm(votes))
        # The clusters are far apart, so both assignments are those of the components.
        labels = np.argmin(((x[:, None] - unit_means()) ** 2).sum(axis=2), axis=1)
        sums = np.stack([x[labels == j].sum(axis=0) for j in range(4)])
        counts = np.bincount(labels, minlength=4)
        for stage in ("lift", "lloyd"):
            assert norms[f"{stage}-sums"][i] == pytest.approx(np.linalg.norm(sums), rel=1e-3)
            assert norms[f"{stage}-counts"][i] == pytest.approx(np.linalg.norm(counts))


def unit_means():
    return (RNG(99).random((4, 20)) - 0.5) / 3.0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"margin": 0.2},
        {"seed": 3},
        {"fraction_bits": 10},
        {"cost": True},
        {"contribution": "means"},
    ],
)
def test_the_default_is_their_median_to_two_digits(options):
    algorithm = build(**options)
    assert algorithm.sums == "relative"
    plain = twin(sums="relative", alpha=algorithm.alpha, **options)
    norms = answer_norms(plain, 50, RNG(np.random.SeedSequence((algorithm.seed, 0))))
    expected = {name: float(f"{np.median(found):.2g}") for name, found in norms.items()}
    assert clips_of(algorithm) == expected
    assert dict(algorithm.clips) == expected


def test_laplace_noise_is_clipped_in_its_norm():
    clips = clips_of(build(mechanisms="laplace"))
    assert clips["weights"] == clips["lift-counts"] == clips["lloyd-counts"] == 50


def test_with_means_too():
    clips = clips_of(build(contribution="means", sums="absolute"))
    assert clips["lift-counts"] == clips["lloyd-counts"] == 2.0  # sqrt(4): all clusters
    # The root of the summed squares of four means, but for the noise of 12 records' mean.
    assert clips["lift-sums"] == pytest.approx(np.linalg.norm(unit_means()), rel=0.05)


@pytest.mark.parametrize("contribution", ["sums", "means"])
def test_clients_alike_are_shortened_little(contribution):
    """Where clients hold what the server holds, most of what they add goes into the sum."""
    clips = clips_of(build(contribution=contribution))
    many = {"server_data": mixture(20_000, seed=5), "sums": "relative", "alpha": 2.7}
    others = answer_norms(twin(contribution=contribution, **many), 50, RNG(1))
    for name in ("projection", "lift-sums", "lift-counts", "lloyd-sums", "lloyd-counts"):
        assert 0.8 < clips[name] / np.median(others[name]) < 1.25, name


def test_noise_is_far_below_that_of_a_clip_that_no_client_exceeds():
    suggested, public = build(n_lloyd_rounds=1), build(n_lloyd_rounds=1, clip=50.0)
    assert set(clips_of(public).values()) == {50.0}
    for number in (1, 3, 4):
        name = "moments" if number == 1 else "sums"
        ratio = suggested.noise_of(number)[name] / public.noise_of(number)[name]
        assert ratio < 0.5


# ----------------------------------------------------------------- when, and from what


def test_clips_that_are_given_stay():
    given = build(clips={"projection": 1.5, "lloyd-sums": 0.7})
    clips = clips_of(given)
    assert (clips["projection"], clips["lloyd-sums"]) == (1.5, 0.7)
    assert given.sums == "absolute"  # a number of records' worth, as before
    # Of other releases they are suggested, in the same way.
    rest = clips_of(build(sums="absolute"))
    assert {name: clips[name] for name in ("weights", "lift-sums", "lift-counts")} == {
        name: rest[name] for name in ("weights", "lift-sums", "lift-counts")
    }
    assert set(clips_of(build(clip=7.0, clips={"weights": 2.0})).values()) == {7.0, 2.0}


def test_records_are_not_clipped():
    for budget in (PrivacyBudget(1.0), PrivacyBudget(None), PrivacyBudget(None, unit="client")):
        algorithm = build(budget=budget, n_clients=None)
        assert algorithm.clips == ()
        assert (algorithm.sums, algorithm.alpha) == ("absolute", 0.8)


def test_a_document_has_them_and_the_algorithm_made_of_it():
    algorithm = build()
    again = FedDPAlgorithm.from_config(algorithm.to_config(), BALL, algorithm.budget)
    assert again == algorithm
    assert hash(again) == hash(algorithm)
    assert again.clips == algorithm.clips
    assert again.server_points is None


def test_they_are_the_same_whenever_they_are_made():
    assert build() == build()
    assert build(seed=1).clips != build(server_data=mixture(80, seed=7), seed=1).clips


def test_without_server_points_they_are_the_public_figures():
    assert set(clips_of(build(server_data=None, n_server_points=80)).values()) == {50.0}


def test_offsets_are_added_where_their_clip_is_suggested():
    wide, narrow = build(), build(domain=Box([-1] * 2, [2] * 2), server_data=mixture(80, d=2))
    assert (wide.sums, narrow.sums) == ("relative", "relative")
    assert wide.radius == 2 * 2**wide.fraction_bits  # the ball's diameter
    assert (narrow.alpha, narrow.radius < 0.6 * narrow.domain.l2_bound(16)) == (0.8, True)
    assert build(alpha=0.8).alpha == 0.8
    assert build(sums="absolute").sums == "absolute"
    assert build(clip=50.0).sums == "absolute"
    # Offsets are shorter than records.
    assert dict(wide.clips)["lloyd-sums"] < 0.3 * dict(wide.clips)["lift-sums"]


def test_what_large_clients_add_grows_in_proportion():
    few = answer_norms(twin(), MOST_DRAWN, RNG(0))
    many = answer_norms(twin(), 4.0 * MOST_DRAWN, RNG(0))
    for name, norms in few.items():
        np.testing.assert_allclose(many[name], 4 * norms)
    few = answer_norms(twin(contribution="means"), MOST_DRAWN, RNG(0))
    many = answer_norms(twin(contribution="means"), 4.0 * MOST_DRAWN, RNG(0))
    np.testing.assert_allclose(many["projection"], 4 * few["projection"])
    np.testing.assert_array_equal(many["lift-sums"], few["lift-sums"])


# ----------------------------------------------------------------- server points of any kind


@pytest.mark.parametrize("contribution", ["sums", "means"])
@pytest.mark.parametrize("mechanisms", ["gaussian", "laplace"])
@pytest.mark.parametrize("fraction_bits", [2, 16])
@pytest.mark.parametrize(
    ("k", "points"),
    [
        (1, np.full((1, 3), 0.5)),  # at the centre: no norm at all
        (1, np.full((7, 3), 0.9)),  # all equal
        (2, np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5 + 1e-12]])),  # equal on the grid
        (2, np.array([[0.0] * 3, [1.0] * 3])),  # the corners
        (2, np.array([[-1e300] * 3, [1e300] * 3])),  # far outside
        (3, RNG(0).random((40, 3))),
    ],
)
@pytest.mark.parametrize(("n_records", "n_clients"), [(50, 5000), (5000, 100), (10**9, 3)])
def test_they_never_fail(k, points, n_records, n_clients, fraction_bits, mechanisms, contribution):
    algorithm = build(
        k=k,
        domain=Box([0] * 3, [1] * 3),
        server_data=points,
        n_records=n_records,
        n_clients=n_clients,
        fraction_bits=fraction_bits,
        mechanisms=mechanisms,
        contribution=contribution,
        cost=contribution == "sums",
    )
    assert algorithm.plan().epsilon() <= 1.0
    one = 2.0**-fraction_bits
    for name, clip in clips_of(algorithm).items():
        assert math.isfinite(clip)
        assert clip >= LEAST_CLIP
        most = algorithm.plain_clip(name, "l1")
        assert clip <= max(most, LEAST_CLIP, 6 * one, 6 * 4.0 ** -min(fraction_bits, 10)), name


def test_points_at_the_centre_do_not_silence_anyone():
    algorithm = build(k=1, server_data=[[0.5] * 20])
    clips = clips_of(algorithm)
    assert clips["projection"] == clips["lift-sums"] == LEAST_CLIP
    assert clips["lift-counts"] == clips["weights"] == 50.0
