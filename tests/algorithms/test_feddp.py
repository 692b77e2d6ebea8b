"""FedDP-KMeans as pure mathematics: its units, its queries, and whole runs without messages."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sklearn.cluster import KMeans

from flower_kmeans.algorithms import FedDPAlgorithm, Query, State, algorithm_from_config
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.client_clipping import moves_of_a_record
from flower_kmeans.algorithms.feasibility import require_capacity
from flower_kmeans.algorithms.feddp_clips import (
    LEAST_CLIP,
    MOST_DRAWN,
    N_PSEUDO_CLIENTS,
    answer_norms,
    plain_clips,
    pseudo_clients,
)
from flower_kmeans.algorithms.feddp_releases import LAPLACE_RELEASES, RELEASES
from flower_kmeans.algorithms.feddp_stage import WARNINGS
from flower_kmeans.algorithms.queries import check_query
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.algorithms.sensitivity import record_sensitivities, sensitivities
from flower_kmeans.data.domain import Ball, Box, GridRecords
from flower_kmeans.errors import (
    BudgetError,
    ConfigurationError,
    ConfigurationTypeError,
    MessageError,
)
from flower_kmeans.metrics import inertia, matched_centroid_error
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import check_shares
from tests.algorithms.rows import run_of

RNG = np.random.default_rng
# a grid that is small enough to enumerate, and one where truncation costs little
Q, FINE = 3, 12
LINE, SQUARE, BOX = (Box([0] * d, [1] * d) for d in (1, 2, 4))
BUDGET, OPEN = PrivacyBudget(1.0), PrivacyBudget(None)
CLIENTS = PrivacyBudget(1.0, unit="client")
OF_CLIENTS = {"budget": CLIENTS, "n_clients": 100}
MEANS = {"contribution": "means"}


def make(k=3, domain=BOX, budget=BUDGET, **options):
    """An algorithm with points of the server's that lie in its domain."""
    options = {"n_records": 1000, **options}
    if "n_server_points" not in options:
        points = RNG(0).normal(size=(6, domain.n_features)) * 0.4
        options = {"server_data": domain.from_unit(domain.to_unit(points)), **options}
    return FedDPAlgorithm.planned(k, domain, budget, **options)


build = partial(make, k=2, domain=SQUARE, fraction_bits=Q, n_lloyd_rounds=2)
for_clients = partial(
    make, k=2, domain=SQUARE, **OF_CLIENTS, fraction_bits=FINE, n_lloyd_rounds=1
)
DATA = make().server_points * 2.0**-17 + 0.5  # of BOX, in the user's units


def after(algorithm, t, words, **arrays):
    """State after round t of noisy words, from given or no earlier arrays."""
    before = State(t - 1, {**algorithm.initial_state().arrays, **arrays})
    return algorithm.update(
        before, algorithm.layout(t).unflatten(np.asarray(words, np.int64)), RNG(0)
    )


def clips_of(algorithm):
    rounds = range(1, algorithm.n_rounds + 1)
    return {
        r.name: algorithm.clipping.of(r) for t in rounds for r in algorithm.releases(t)
    }


def shares_of(algorithm):
    """Share of mu^2 by release, all Lloyd rounds together."""
    budget, found = algorithm.plan().budget, Counter()
    for release in algorithm.plan().releases:
        found[release.name] += (
            release.cost**2 / mu_of_budget(budget.epsilon, budget.delta) ** 2
        )
    return found


# ----------------------------------------------------------------- what clients add


@pytest.mark.parametrize(("margin", "counted"), [(1.0, 9), (0.5, 6), (0.3, 4)])
def test_records_beyond_the_margin_are_not_lifted(margin, counted):
    """Of the numbers -4 to 4 on a line, those near one of two centres at -4 and 4 count."""
    algorithm = make(2, LINE, fraction_bits=Q, margin=margin)
    matrix = algorithm.projection.matrix(np.eye(1))
    centers = algorithm.projection.project(
        np.array([[-4.0], [4.0]]), matrix.astype(float)
    )
    query = Query(3, {"projection": matrix, "centers": centers.astype(np.int64)})
    records = GridRecords.from_grid(np.arange(-4, 5)[:, None], Q)
    blocks = algorithm.statistic(query, records).blocks
    assert blocks["counts"].sum() == counted << Q
    near = [x for x in range(-4, 5) if x <= 0 and abs(x + 4) <= margin * abs(x - 4)]
    assert blocks["sums"][0, 0] == sum(near)


def test_one_record_of_a_tightly_clipped_client_moves_two_units():
    """From one end of the clip to the other: what a ledger counts beside runs for records."""
    algorithm, one = for_clients(domain=LINE, clips={"lift-sums": 0.5}), 2**FINE
    # Every record is of the first cluster.
    query = Query(
        3, {"projection": np.array([[one]]), "centers": np.zeros((2, 1), np.int64)}
    )
    ends = [
        algorithm.layout(3).flatten(
            answer_of(algorithm, query, GridRecords.from_grid(records, FINE))
        )
        for records in ([[-one // 2]], [[-one // 2], [one]])
    ]
    moved = (ends[1] - ends[0]) / sensitivities(algorithm, 3)
    assert np.linalg.norm(moved[:2]) == pytest.approx(2, abs=4 / one)
    assert moves_of_a_record(algorithm, 3)[0] == 2
    means = for_clients(**MEANS, clip=5.0)  # count no records
    moves = [moves_of_a_record(means, t) for t in range(1, means.n_rounds + 1)]
    assert max(moves[0]) < 1
    assert moves[2:] == [(2.0, 2.0)] * 2


def test_clips_are_those_given_or_of_all_clusters():
    """Means are of clusters: sqrt(k) of them in l2 and k in l1 clip nobody."""
    given = {"projection": 1.0, "lift-counts": 3.0}
    clips = clips_of(for_clients(clip=10.0, clips=given))
    assert clips == dict.fromkeys(clips, 10.0) | given
    assert set(clips_of(build()).values()) == {1.0}
    for mechanisms, worth in (("gaussian", 2.0), ("laplace", 4.0)):
        clips = clips_of(for_clients(k=4, **MEANS, mechanisms=mechanisms, clip=5.0))
        means = {
            "lift-sums": 2.0,
            "lift-counts": worth,
            "lloyd-sums": 2.0,
            "lloyd-counts": worth,
        }
        assert clips == {"projection": 5.0, "weights": 5.0, **means}


ONE = 2**FINE
IDENTITY = np.eye(2, dtype=np.int64) * ONE


@pytest.mark.claim("guarantees", "21")
def test_means_are_those_of_the_clients_records_toward_zero():
    centers = np.array([[ONE, 0], [-ONE, 0], [0, ONE]])
    points = [[4000, 3], [4001, 2], [3999, 3], [-4000, -5], [-4001, -8]]
    lift, lloyd = {"projection": IDENTITY, "centers": centers}, {"centroids": centers}
    for t, arrays, options, means in (
        (3, lift, {"sums": "absolute"}, [[4000, 2], [-4000, -6], [0, 0]]),
        (4, lloyd, {"sums": "absolute"}, [[4000, 2], [-4000, -6], [0, 0]]),
        (
            4,
            lloyd,
            {"sums": "relative", "alpha": 9.0},
            [[4000 - ONE, 2], [95, -6], [0, 0]],
        ),
    ):
        algorithm = for_clients(k=3, **MEANS, **options)
        records = GridRecords.from_grid(points, FINE)
        blocks = answer_of(algorithm, Query(t, arrays), records).blocks
        np.testing.assert_array_equal(blocks["sums"], means)
        np.testing.assert_array_equal(blocks["counts"], [ONE, ONE, 0])


@pytest.mark.claim("guarantees", "21")
def test_a_round_is_shortened_by_one_factor():
    """So the means of what a client adds stay where they are, whatever its size."""
    clips = {"lift-sums": 0.5, "lift-counts": 9.0, "lloyd-sums": 0.5}
    algorithm, centers = for_clients(clips=clips), np.array([[ONE, 0], [-ONE, 0]])
    assert algorithm.sums == "relative"
    points = [[4000, 300], [4001, 200], [-2000, -500], [-4001, 8]] * 3
    lift = {"projection": IDENTITY, "centers": centers}
    for query in (Query(3, lift), Query(4, {"centroids": centers})):
        records = GridRecords.from_grid(points, FINE)
        whole = algorithm.statistic(query, records).blocks
        added = answer_of(algorithm, query, records).blocks
        units = sensitivities(algorithm, query.round)
        assert np.linalg.norm(added["sums"].ravel() / units[:4]) == pytest.approx(
            1, abs=0.01
        )
        factor = added["counts"] / whole["counts"]
        assert (factor < 0.5).all()
        np.testing.assert_allclose(added["sums"], whole["sums"] * factor[0], atol=2)
        np.testing.assert_allclose(factor, factor[0], atol=2 / ONE)


@pytest.mark.claim("guarantees", "20")
def test_a_radius_narrows_to_twice_the_root_mean_square_distance():
    """To the next wider one that a factor stands for; means and sizes stay those of records."""
    algorithm = build(budget=OPEN, sums="narrowing", fraction_bits=16)
    centroids = np.array([[-(2**15), 0], [2**15, 2**14]])
    rng = RNG(5)
    near = np.concatenate(
        [rng.normal(c, 2000, size=(500, 2)) for c in centroids]
    ).astype(int)
    before = State(3, {**algorithm.initial_state().arrays, "centroids": centroids})
    for points in (near, np.repeat(centroids, 50, axis=0), near[:0]):
        records = GridRecords.from_grid(points, 16)
        answer = algorithm.statistic(algorithm.query(before), records)
        state = algorithm.update(before, answer, RNG(0))
        query = algorithm.query(state)
        check_query(algorithm, query)
        (factor,) = query.arrays["factor"].tolist()
        if points is not near:
            assert factor == 64  # the narrowest
            continue
        offsets = points - np.repeat(centroids, 500, axis=0)
        wanted = 2 * math.sqrt((offsets**2).sum(axis=1).mean())
        assert 4 * algorithm.lloyd_sums.radius / (factor + 1) < wanted * 1.001
        assert wanted < 4 * algorithm.lloyd_sums.radius / factor * 1.001
        assert 4 < factor < 64
        means = points.reshape(2, 500, 2).mean(axis=1)
        np.testing.assert_allclose(state.arrays["centroids"], means, atol=1)
        # The next round takes records within the narrow radius only.
        answer = algorithm.statistic(query, records)
        last = algorithm.update(state, answer, RNG(0))
        offsets = points.reshape(2, 500, 2) - state.arrays["centroids"][:, None]
        kept = (offsets**2).sum(axis=2) <= (
            4 * algorithm.lloyd_sums.radius // factor
        ) ** 2
        assert 900 < kept.sum() < 1000
        means = [
            part[near].mean(axis=0) for part, near in zip(offsets, kept, strict=True)
        ]
        moved = last.arrays["centroids"] - state.arrays["centroids"]
        np.testing.assert_allclose(moved, means, atol=1)
        np.testing.assert_array_equal(algorithm.counts(last), kept.sum(axis=1))


@pytest.mark.claim("guarantees", "20")
def test_a_radius_is_the_wider_the_noisier_its_spread_is():
    """By one standard deviation of the planned noise, and never wider than in the first round."""
    algorithm = build(sums="narrowing", fraction_bits=16, n_records=10**5)
    noise, one = algorithm.noise_of(4)["spread"], 2**16

    def factor(count, spread):
        words = [0] * 4 + [count] * 2 + [int(spread)]
        (found,) = after(algorithm, 4, words, centroids=np.zeros((2, 2), int)).arrays[
            "factor"
        ]
        return found

    factors = [
        factor(5_000 * one, spread) for spread in (0.0, 2 * noise, 20 * noise, 2.0**50)
    ]
    wanted = 2 * math.sqrt(noise * one / 10_000)
    assert factors[0] == min(64, math.floor(4 * algorithm.lloyd_sums.radius / wanted))
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == 4
    assert factor(-(2**60), -(2**62)) == 64


# ----------------------------------------------------------------- updates


def test_server_points_lie_on_the_grid_within_the_domain():
    data = np.array([[0.5, 0.25], [3.0, 0.5], [0.1, -9.0]])
    points = build(server_data=data).initial_state().arrays["server"]
    np.testing.assert_array_equal(points, [[0, -4], [8, 0], [-6, -8]])


def test_a_projection_of_noise_is_reported():
    cube = Box([0] * 3, [1] * 3)
    private, plain = (make(2, cube, budget) for budget in (BUDGET, OPEN))
    edge = math.sqrt(6) * private.noise_of(1)["moments"]
    for algorithm, diagonal, is_noise in (
        (private, [1.1 * edge, 1.1 * edge, 0], False),
        (private, [1.1 * edge, 0.9 * edge, 0], True),
        # records of one direction are rank-deficient for two
        (plain, [10**6, 0, 0], True),
        (plain, [10**6, 10**3, 0], False),
        (plain, [0, 0, 0], True),
    ):
        state = after(algorithm, 1, [*diagonal, 0, 0, 0])
        assert algorithm.warnings(state) == WARNINGS[:1] * is_noise


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize("unit", ["record", "client"])
def test_the_edge_of_noise_is_that_of_the_sum(unit):
    """With a client's clip, and with the noise of the shares that were added."""
    d, clip = 150, 7.0
    options = {"n_records": 4000}
    if unit == "client":
        options |= {"n_clients": 90, "clip": clip}
    budget = PrivacyBudget(1.0, 1e-6, unit)
    algorithm = make(2, Ball(1.0, [0.0] * d), budget, **options)
    units = sensitivities(algorithm, 1)
    (release,) = algorithm.plan().rounds[0]
    edge = math.sqrt(2 * d) * release.noise_multiplier * units[0]
    assert units[0] == record_sensitivities(algorithm, 1)[0] * algorithm.clipping.of(
        release
    )
    for factor, height, is_noise in (
        (1.0, 1.05, False),
        (1.0, 0.95, True),
        (1.1, 1.05, True),
        (1.1, 1.15, False),
    ):
        words = np.zeros(len(units), dtype=np.int64)
        words[:2] = int(height * edge)
        answer = algorithm.layout(1).unflatten(words)
        answer = replace(answer, noise_factor=factor)
        state = algorithm.update(algorithm.initial_state(), answer)
        assert algorithm.warnings(state) == WARNINGS[:1] * is_noise


def test_records_of_many_clusters_have_at_most_128_directions():
    def made(d):
        return make(140, Ball(1.0, [0.0] * d), n_server_points=140, server_data=None)

    wide = made(200)
    narrow = made(20)
    assert wide.projection.n_directions == 128
    assert narrow.projection.n_directions == 20


PROJECTED = {
    "projection": np.array([[8, 0], [0, 8]]),
    "points": np.array([[-8, -8], [-8, -7], [8, 8], [8, 7], [0, 0], [1, 0]]),
}


CORNERS = [[-8, -8], [8, 8]]  # of means of -7.75 and 7.5, rounded


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize(
    ("weights", "centers", "warnings"),
    [
        ([90, 30, 50, 50, 4, -300], CORNERS, ()),
        ([90, 4, 5, 4, 4, -(2**59)], CORNERS, ()),
        ([3, -9, 0, 0, 4.9, 90], [[0, 0], [1, 0]], WARNINGS[2:3]),
        ([3, -9, 0, 0, 4.9, 0], None, WARNINGS[1:2]),
    ],
)
def test_weights_decide_where_the_projected_centres_are(weights, centers, warnings):
    algorithm = build(min_weight=5)
    state = after(algorithm, 2, np.array(weights) * 8, **PROJECTED)
    assert centers in (None, sorted(state.arrays["centers"].tolist()))
    assert algorithm.warnings(state) == warnings


def weight_noise(algorithm):
    """Standard deviation of the planned noise of a weight, in records, from the plan alone."""
    (release,) = algorithm.plan().rounds[1]
    scale = math.sqrt(2) if release.mechanism == "laplace" else 1.0
    return release.noise_multiplier * scale * algorithm.clipping.of(release)


OF_WEIGHTS = [
    {},
    {"budget": PrivacyBudget(0.25)},
    {"mechanisms": "laplace"},
    {"mechanisms": {"weights": "laplace"}, "n_lloyd_rounds": 0},
    {"shares": {"weights": 0.4}},
    {**OF_CLIENTS, "clips": {"weights": 3.0}},
    {**OF_CLIENTS, **MEANS, "clip": 7.0},
    {**OF_CLIENTS, "mechanisms": "laplace"},
]


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize("options", OF_WEIGHTS)
def test_the_least_weight_is_two_deviations_of_its_planned_noise(options):
    algorithm = make(2, SQUARE, **options)
    least = 2 * weight_noise(algorithm)
    assert algorithm.min_weight == pytest.approx(least, rel=1e-12)
    # Two points stand for the records. The others are within the noise, and count for
    # nothing.
    words = np.full(6, math.floor(0.99 * least * 2**16))
    words[[0, 2]] = math.ceil(1.01 * least * 2**16)
    points = PROJECTED["points"] * 1000
    state = after(
        algorithm, 2, words, projection=np.eye(2, dtype=np.int64), points=points
    )
    assert sorted(state.arrays["centers"].tolist()) == [[-8000, -8000], [8000, 8000]]
    assert algorithm.warnings(state) == ()


def test_twice_the_noise_makes_the_least_weight_twice_as_large():
    one, two = (make(**OF_CLIENTS, clips={"weights": clip}) for clip in (3.0, 6.0))
    assert weight_noise(two) == pytest.approx(2 * weight_noise(one))
    assert two.min_weight == pytest.approx(2 * one.min_weight)
    # Twice the deviation is a quarter of mu^2, here beside the same rest.
    one, two = (
        make(shares=dict.fromkeys(RELEASES, 1.0) | {"weights": w}) for w in (4e-6, 1e-6)
    )
    assert two.min_weight == pytest.approx(2 * one.min_weight, rel=1e-5)


@pytest.mark.parametrize("n_records", [None, 1000])
def test_without_noise_points_without_records_are_dropped_alone(n_records):
    algorithm = make(2, SQUARE, OPEN, n_records=n_records)
    words = np.array([1, 0, 1, 0, 0, 0]) << 16
    points = PROJECTED["points"] * 1000
    state = after(
        algorithm, 2, words, projection=np.eye(2, dtype=np.int64), points=points
    )
    assert sorted(state.arrays["centers"].tolist()) == [[-8000, -8000], [8000, 8000]]
    assert algorithm.warnings(state) == ()


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize("options", [*OF_WEIGHTS, {"budget": OPEN}])
def test_a_least_weight_that_is_given_stays(options):
    """Five records, as the default was, whatever the noise."""
    algorithm = make(2, SQUARE, **options, min_weight=5)
    assert (algorithm.min_weight, algorithm.seeding.least_weight) == (5.0, 5 << 16)
    assert algorithm.plan() == make(2, SQUARE, **options).plan()
    words = np.array([5 << 16, (5 << 16) - 1, 5 << 16, 0, -9, 7])
    points = PROJECTED["points"] * 1000
    state = after(
        algorithm, 2, words, projection=np.eye(2, dtype=np.int64), points=points
    )
    assert sorted(state.arrays["centers"].tolist()) == [[-8000, -8000], [8000, 8000]]


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize("options", [*OF_WEIGHTS, {"min_weight": 5}, {"budget": OPEN}])
def test_documents_have_the_least_weight_that_was_chosen(options):
    algorithm = make(2, SQUARE, **options)
    config = algorithm_to_config(algorithm)
    assert float.fromhex(config["min_weight"]) == algorithm.min_weight
    client = algorithm_from_config(config, SQUARE, algorithm.budget)
    assert client.min_weight == algorithm.min_weight
    for other in ("auto", 5.0, "5", None):
        with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
            algorithm_from_config(
                {**config, "min_weight": other}, SQUARE, algorithm.budget
            )


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            0,
            ConfigurationError,
            r"Expected min_weight in \[1e-06, 9.*\]. Got 0 instead",
        ),
        (-5.0, ConfigurationError, r"min_weight in .* Got -5.0 instead"),
        (math.nan, ConfigurationError, "min_weight in .* Got nan instead"),
        (math.inf, ConfigurationError, "min_weight in .* Got inf instead"),
        (
            "noise",
            ConfigurationError,
            r"min_weight in .*, or 'auto'. Got 'noise' instead",
        ),
        ("5", ConfigurationError, r"min_weight in .*, or 'auto'. Got '5' instead"),
        (None, ConfigurationTypeError, "Expected min_weight as a number. Got NoneType"),
        (True, ConfigurationTypeError, "Expected min_weight as a number. Got bool"),
    ],
)
def test_other_least_weights_are_refused(value, error, message):
    with pytest.raises(error, match=message):
        make(min_weight=value)


def test_projected_points_may_all_be_equal():
    alike = {**PROJECTED, "points": np.zeros((6, 2), np.int64)}
    algorithm = build(min_weight=5)
    assert (
        algorithm.warnings(after(algorithm, 2, np.full(6, 80), **alike))
        == WARNINGS[3:4]
    )


@pytest.mark.claim("guarantees", "19")
def test_clusters_without_enough_records_are_lifted_from_their_projection():
    algorithm = build(budget=OPEN)
    arrays = {
        "projection": np.array([[0, 8], [8, 0]]),
        "centers": np.array([[5, -2], [3, 1]]),
    }
    state = after(algorithm, 3, [30, -12, 9, 9, 3 * 8, 7], **arrays)
    np.testing.assert_array_equal(state.arrays["centroids"], [[8, -4], [1, 3]])
    assert algorithm.warnings(state) == (WARNINGS[4],)
    np.testing.assert_array_equal(algorithm.counts(state), [3, 7 / 8])


@pytest.mark.parametrize("sums", ["absolute", "relative"])
def test_lloyd_rounds_move_centroids_within_the_domain(sums):
    algorithm = build(budget=OPEN, sums=sums, alpha=1.0)
    words, centroids = [20, -100, 9, 9, 4 * 8, 7], np.array([[2, 3], [-1, 0]])
    state = after(algorithm, 4, words, centroids=centroids)
    # within a radius of 8 = round(11.3 / √2)
    moved = [5, -8] if sums == "absolute" else [4, -5]
    np.testing.assert_array_equal(state.arrays["centroids"], [moved, [-1, 0]])
    assert algorithm.warnings(state) == (WARNINGS[5],)


def test_the_elbow_is_that_of_the_noisy_weights_in_the_users_units():
    """More clusters than points cost nothing."""
    algorithm, weights = (
        make(2, Ball(3.0, [0, 0]), min_weight=3.5),
        [90, 30, 50, 20, 4, -300],
    )

    def elbow(weights, k_max):
        # finer than the centres, which lie on the grid
        grid = PROJECTED["points"] * 1000
        arrays = {
            "points": grid,
            "weights": np.array(weights) << algorithm.fraction_bits,
        }
        return algorithm.seeding.elbow(State(2, arrays), k_max, RNG(0))

    points = 3000.0 * PROJECTED["points"][:5] * 2.0**-algorithm.projection.exponent
    expected = [
        KMeans(k, n_init=10, random_state=0)
        .fit(points, sample_weight=weights[:5])
        .inertia_
        for k in (1, 2, 3, 4)
    ]
    np.testing.assert_allclose(elbow(weights, 7), [*expected, 0, 0, 0], rtol=1e-5)
    with pytest.raises(ConfigurationError, match="at least min_weight"):
        elbow([3, 0, -8, 0, 0, 0], 2)
    with pytest.raises(ConfigurationError, match="after round 2"):
        algorithm.seeding.elbow(algorithm.initial_state(), 8, RNG(0))


@pytest.mark.parametrize("larger", ["sums", "counts"])
def test_noise_decides_how_many_records_a_mean_needs(larger):
    """That of the count, or that of the sum, whichever is larger."""
    shares = {"lift-sums": 1.0, "lift-counts": 1.0, f"lift-{larger}": 0.01}
    algorithm = build(fraction_bits=16, shares=shares)
    noise, one = algorithm.noise_of(3), 2.0**16
    assert noise[larger] == max(noise["sums"], noise["counts"])
    least = max(noise["sums"] / one, noise["counts"] / one)
    assert least > 5
    arrays = {
        "projection": np.eye(2, dtype=np.int64),
        "centers": np.array([[5, -2], [3, 1]]),
    }
    counts = np.array([1.01, 0.99]) * least * one
    state = after(algorithm, 3, [*np.repeat(0.5 * counts, 2), *counts], **arrays)
    np.testing.assert_array_equal(state.arrays["centroids"][0], [2**15, 2**15])
    assert np.abs(state.arrays["centroids"][1]).max() < 10


# ----------------------------------------------------------------- runs


def mixture(rng, k, d, n, std, outside=60):
    """Records of k Gaussians, and a server's points: 20 of each and uniform ones."""
    means = rng.uniform(0, 1, (k, d))
    records = np.concatenate([rng.normal(mean, std, (n // k, d)) for mean in means])
    near = [rng.normal(mean, std, (20, d)) for mean in means]
    return means, records, np.concatenate([*near, rng.uniform(0, 1, (outside, d))])


@pytest.mark.parametrize("sums", ["absolute", "relative"])
@pytest.mark.parametrize("n_lloyd_rounds", [0, 2])
def test_without_noise_it_finds_the_means_of_separate_gaussians(sums, n_lloyd_rounds):
    means, records, server_data = mixture(RNG(1), 5, 8, 2000, 0.05)
    options = {
        "sums": sums,
        "n_lloyd_rounds": n_lloyd_rounds,
        "cost": n_lloyd_rounds > 0,
    }
    algorithm = make(5, Ball(2.0, [0.5] * 8), OPEN, server_data=server_data, **options)
    state = run_of(algorithm, [records])
    # The mean of 400 records deviates by 8 * 0.05^2 / 400, squared; the rest is
    # rounding.
    assert matched_centroid_error(algorithm.centroids(state), means) < 3e-4
    np.testing.assert_array_equal(np.sort(algorithm.counts(state)), np.full(5, 400))
    assert algorithm.warnings(state) == ()
    if n_lloyd_rounds:
        estimate = algorithm.last_cost.estimate(state)
        assert (estimate.users_units, estimate.standard_error) == (True, 0)
        exact = inertia(records, algorithm.centroids(state))
        assert estimate.value == pytest.approx(exact, rel=1e-3)


@pytest.mark.claim("guarantees", "19")
@pytest.mark.default_cases("gaussian")
@pytest.mark.parametrize("mechanisms", ["gaussian", "laplace"])
def test_with_noise_it_comes_near_the_optimum(mechanisms):
    """A smaller version of the paper's mixture, with noise from a fixed key."""
    k, d = 5, 30
    _, records, server_data = mixture(RNG(3), k, d, 30_000, 0.5)
    options = {
        "server_data": server_data,
        "n_records": 30_000,
        "n_lloyd_rounds": 2,
        "cost": True,
    }
    algorithm = make(k, Ball(5.0, [0.5] * d), mechanisms=mechanisms, **options)
    state = run_of(algorithm, [records], Stream.from_key(bytes(range(32))))
    best = np.array([part.mean(axis=0) for part in np.split(records, k)])
    found = inertia(records, algorithm.centroids(state))
    assert found < 1.03 * inertia(records, best)
    assert algorithm.warnings(state) == ()
    estimate = algorithm.last_cost.estimate(state)
    assert abs(estimate.value - found) < 6 * estimate.standard_error
    assert estimate.standard_error < 0.05 * found
    wider = algorithm.last_cost.estimate(state, 2.0)
    assert wider.standard_error == pytest.approx(2 * estimate.standard_error)
    assert wider.value > estimate.value
    assert np.abs(algorithm.counts(state) - 6000).max() < 2000


# ----------------------------------------------------------------- parameters and plans


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize("n_lloyd_rounds", [1, 2, 7])
@pytest.mark.parametrize("sums", ["absolute", "relative"])
@pytest.mark.parametrize("d", [2, 100])
def test_default_shares_are_those_of_the_guarantees(d, sums, n_lloyd_rounds):
    algorithm = make(
        domain=Box([0] * d, [1] * d), sums=sums, n_lloyd_rounds=n_lloyd_rounds
    )
    shares = shares_of(algorithm)
    assert sum(shares.values()) == pytest.approx(1)
    assert (shares["projection"], shares["weights"]) == pytest.approx((0.30, 0.10))
    for stage in ("lift", "lloyd"):
        assert shares[f"{stage}-sums"] + shares[f"{stage}-counts"] == pytest.approx(
            0.30
        )
    # sqrt(d) D : r, with r = 0.45 D, or half of the radius where sums are relative.
    norm = 0.5 if sums == "relative" else 0.45
    assert shares["lift-sums"] / shares["lift-counts"] == pytest.approx(
        math.sqrt(d) / 0.45
    )
    assert shares["lloyd-sums"] / shares["lloyd-counts"] == pytest.approx(
        math.sqrt(d) / norm
    )
    costs = [[r.cost for r in releases] for releases in algorithm.plan().rounds[3:]]
    assert len(costs) == n_lloyd_rounds
    assert all(cost == costs[0] for cost in costs)


@pytest.mark.claim("guarantees", "20")
def test_spread_and_cost_have_small_shares():
    """The spread of the first Lloyd round, the cost of the last one."""
    algorithm = make(sums="narrowing", n_lloyd_rounds=3, cost=True)
    rounds = algorithm.plan().rounds[3:]
    lloyd = ["lloyd-sums", "lloyd-counts"]
    names = [[release.name for release in releases] for releases in rounds]
    assert names == [[*lloyd, "spread"], lloyd, [*lloyd, "cost"]]
    shares = shares_of(algorithm)
    assert (shares["spread"], shares["cost"]) == pytest.approx(
        (0.02 / 1.04, 0.02 / 1.04)
    )
    # Noise is that of the radius, whatever it narrows to.
    places, units = algorithm.layout(4).places, sensitivities(algorithm, 4)
    assert (units[places["sums"]] == 4 * algorithm.lloyd_sums.radius).all()
    assert units[places["spread"]] == algorithm.lloyd_sums.radius**2 >> 16


@pytest.mark.claim("guarantees", "20")
def test_a_radius_narrows_unless_something_is_against_it():
    square = partial(make, domain=SQUARE, n_lloyd_rounds=2)
    one, small = {"n_lloyd_rounds": 1}, {"alpha": 1e-3}
    assert square().sums == "narrowing"
    for options in (one, {"alpha": 0.8}, {"budget": OPEN}, OF_CLIENTS):
        assert square(**options).sums == "relative"
    assert make(n_lloyd_rounds=2).sums == "absolute"
    for options in (one, OF_CLIENTS, small):
        with pytest.raises(ConfigurationError, match="sums='narrowing'"):
            square(**{"sums": "narrowing", **options})


def test_shares_can_be_given_by_release():
    equal = {"shares": dict.fromkeys(RELEASES, 5), "sums": "narrowing", "cost": True}
    shares = shares_of(make(**equal, n_lloyd_rounds=2))
    assert shares == pytest.approx(dict.fromkeys(RELEASES, 1 / 8))
    default, more = shares_of(make()), shares_of(make(shares={"projection": 0.60}))
    assert more["projection"] == pytest.approx(0.60 / 1.30)
    assert more["weights"] == pytest.approx(default["weights"] / 1.30)


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_laplace_noise_where_it_is_asked_for(delta):
    algorithm = make(mechanisms="laplace", cost=True, budget=PrivacyBudget(1.0, delta))
    for release in algorithm.plan().releases:
        expected = (
            ("laplace", "l1")
            if release.name in LAPLACE_RELEASES
            else ("gaussian", "l2")
        )
        assert (release.mechanism, release.norm) == expected
    assert algorithm.plan().epsilon() <= 1.0
    one = make(mechanisms={"weights": "laplace", "cost": "gaussian"}, cost=True)
    assert one.laplace == ("weights",)
    assert {r.name for r in one.plan().releases if r.mechanism == "laplace"} == {
        "weights"
    }
    with pytest.raises(ConfigurationError, match="must be Gaussian"):
        check_shares(one, one.plan(), 10)
    with pytest.raises(BudgetError, match="delta"):
        make(mechanisms="laplace", budget=PrivacyBudget(1.0, 0.0)).plan()


@pytest.mark.parametrize(
    ("d", "epsilon", "shares"), [(1, 0.1, 2), (784, 10.0, 4000), (2, 1.0, 80)]
)
def test_noise_can_be_shared_among_clients(d, epsilon, shares):
    options = {"n_server_points": 300, "n_records": 100_000, "cost": True}
    algorithm = make(10, Ball(3.0, [0] * d), PrivacyBudget(epsilon), **options)
    check_shares(algorithm, algorithm.plan(), shares)
    require_capacity(algorithm, math.sqrt(5))


def test_the_servers_points_do_not_travel():
    algorithm, other = make(server_data=DATA), make(server_data=DATA[::-1])
    assert algorithm == other
    assert algorithm_to_config(algorithm) == algorithm_to_config(other)
    assert "array" not in repr(algorithm)
    assert algorithm != make(server_data=DATA[:-1])
    numbers = str(algorithm.server_points[0, 0]), float(DATA[0, 0]).hex()
    assert not any(number in str(algorithm_to_config(algorithm)) for number in numbers)
    client = algorithm_from_config(
        algorithm_to_config(algorithm), BOX, algorithm.budget
    )
    assert client.server_points is None
    with pytest.raises(ConfigurationError, match="server_data is required"):
        client.initial_state()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n_server_points", number) for number in (2, 2**50)),
        *(("laplace", names) for names in (["projection"], [["weights"]], "weights")),
        # second forms of ["cost", "weights"]
        ("laplace", ["weights", "cost"]),
        ("laplace", ["cost", "weights", "weights"]),
        ("shares", []),
        ("sums", "auto"),
    ],
)
def test_other_configurations_are_refused(name, value):
    algorithm = make()
    config = algorithm_to_config(algorithm)
    assert algorithm_from_config(config, BOX, algorithm.budget) == algorithm
    with pytest.raises((ConfigurationError, ConfigurationTypeError)):
        algorithm_from_config({**config, name: value}, BOX, algorithm.budget)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server_data": None}, "server_data is required"),
        ({"server_data": DATA[:, :3]}, "Expected server_data with 4 columns"),
        ({"server_data": DATA[:2]}, "server_data with at least n_clusters=3"),
        ({"server_data": DATA[[0, 1] * 5]}, "different points. Got 2"),
        ({"server_data": DATA, "n_server_points": 13}, "n_server_points=6.*Got 13"),
        ({"server_data": None, "n_server_points": 2}, "n_server_points in"),
        ({"n_lloyd_rounds": 0, "cost": True}, "n_lloyd_rounds >= 1 with cost"),
        ({"sums": "relative", "alpha": 1e-9}, "alpha so large"),
        ({"shares": {"lift": 1}}, "shares for releases in.*Got 'lift'"),
        ({"mechanisms": "poisson"}, "Got 'poisson'"),
        ({"mechanisms": {"lift-sums": "laplace"}}, "Got 'lift-sums'"),
        ({"clips": {"cost": 1}}, "clips=None unless"),
        (MEANS, "contribution='sums' with unit='record'"),
        ({**OF_CLIENTS, **MEANS, "cost": True}, "'sums' with cost=True"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**options)


def test_the_largest_messages_and_runs():
    """2^22 words of a query or an answer, and 2^27 of all answers, but not one more."""

    def sized(k, d, m, **options):
        return make(
            k, Ball(1.0, [0] * d), OPEN, n_server_points=m, n_records=None, **options
        )

    assert sized(2, 2895, 5).layout(1).n_words == 2895 * 1448 < 2**22
    with pytest.raises(
        ConfigurationError, match=r"Got 4194856 in round 1,.* with 2896 columns"
    ):
        sized(2, 2896, 5)
    assert sized(4, 4, 2**20 - 4).n_server_points == 2**20 - 4
    with pytest.raises(
        ConfigurationError, match=r"in round 2,.* n_server_points=1048573"
    ):
        sized(4, 4, 2**20 - 3)
    assert sized(1000, 1000, 1000, n_lloyd_rounds=132).n_rounds == 135
    with pytest.raises(ConfigurationError, match=r"in round 136, .* n_rounds=136"):
        sized(1000, 1000, 1000, n_lloyd_rounds=133)


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize(
    ("k", "d", "alpha", "sums"),
    [
        (15, 2, 0.8, "relative"),
        (8, 5, 0.8, "relative"),
        (10, 20, 0.8, "absolute"),
        (10, 20, 0.5, "relative"),
        (1, 1, 0.8, "absolute"),
        (10, 100, 0.8, "absolute"),
    ],
)
def test_sums_are_relative_where_the_radius_is_small(k, d, alpha, sums):
    algorithm = make(k, Ball(1.0, [0] * d), n_server_points=k, alpha=alpha)
    assert algorithm.sums == sums
    radius = alpha / k ** (1 / d)
    assert (radius <= 0.6) is (sums == "relative")
    assert algorithm.lloyd_sums.radius == (
        pytest.approx(radius * 2**16, abs=1) if radius <= 0.6 else None
    )


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize("kind", ["records", "sums", "means"])
def test_a_second_lloyd_round_needs_little_noise(kind):
    """A tenth of D for a sum of N / k records; half that for clients, or for as many means."""
    budget = PrivacyBudget(1.0, 1e-6, unit="record" if kind == "records" else "client")
    one = partial(make, budget=budget, server_data=DATA, sums="absolute")
    if kind != "records":
        one = partial(one, n_clients=100, clip=5.0, contribution=kind, n_records=10**5)

    def rounds(n, **options):
        return one(**options, **{"n_clients" if kind == "means" else "n_records": n})

    # The length of a sum's noise, over D = 2.
    noise = (
        rounds(10**4, n_lloyd_rounds=2).noise_of(4)["sums"] / 2**16 / 2 * math.sqrt(4)
    )
    enough = math.ceil({"records": 30, "sums": 60, "means": 20}[kind] * noise)
    assert rounds(enough).n_lloyd_rounds == 2
    assert rounds(enough - 2).n_lloyd_rounds == 1
    for n_records in (None, 10**4):
        assert make(budget=OPEN, n_records=n_records).n_lloyd_rounds == 2


# ------------------------------------------------------- clips from the server's points


BALL = Ball(3.0, [0.5] * 20)


def blobs(n, seed=0, k=4, d=20):
    """Points of a mixture whose clusters are narrower than their distances."""
    means = RNG(99).random((k, d))
    return means[RNG(seed).integers(k, size=n)] + RNG(seed + 1).normal(0, 0.1, (n, d))


suggest = partial(
    make,
    k=4,
    domain=BALL,
    server_data=blobs(80),
    n_records=20_000,
    n_clients=400,
    budget=CLIENTS,
)
TWIN = {"n_clients": None, "n_lloyd_rounds": 1, "min_weight": 1e-6}
twin = partial(suggest, budget=PrivacyBudget(None, unit="client"), **TWIN)


@pytest.mark.claim("guarantees", "21")
def test_norms_are_those_of_records_drawn_from_the_servers_points():
    plain, means = twin(sums="absolute"), (RNG(99).random((4, 20)) - 0.5) / 3.0
    parts = pseudo_clients(plain, 50, RNG(3))
    norms = answer_norms(plain, 50, RNG(3))
    assert len(parts) == N_PSEUDO_CLIENTS
    for i, part in enumerate(parts):
        x = np.empty(part.shape)
        part.read(0, x)
        x /= 2.0**plain.fraction_bits
        assert len(x) == 50
        assert norms["projection"][i] == pytest.approx(
            np.linalg.norm(x.T @ x), rel=0.02
        )
        _, votes = np.unique(x, axis=0, return_counts=True)  # each votes for itself
        assert norms["weights"][i] == pytest.approx(np.linalg.norm(votes))
        # The clusters are far apart, so both assignments are those of the components.
        labels = np.argmin(((x[:, None] - means) ** 2).sum(axis=2), axis=1)
        sums = np.stack([x[labels == j].sum(axis=0) for j in range(4)])
        counts = np.bincount(labels, minlength=4)
        for stage in ("lift", "lloyd"):
            assert norms[f"{stage}-sums"][i] == pytest.approx(
                np.linalg.norm(sums), rel=1e-3
            )
            assert norms[f"{stage}-counts"][i] == pytest.approx(np.linalg.norm(counts))


@pytest.mark.claim("guarantees", "21")
@pytest.mark.default_cases("options0", "options5")
@pytest.mark.parametrize(
    "options",
    [{}, {"margin": 0.2}, {"seed": 3}, {"fraction_bits": 10}, {"cost": True}, MEANS],
)
def test_the_default_is_their_median_to_two_digits(options):
    algorithm = suggest(**options)
    assert algorithm.sums == "relative"
    plain = twin(sums="relative", alpha=algorithm.alpha, **options)
    norms = answer_norms(plain, 50, RNG(np.random.SeedSequence((algorithm.seed, 0))))
    expected = {name: float(f"{np.median(found):.2g}") for name, found in norms.items()}
    assert clips_of(algorithm) == expected
    assert dict(algorithm.clips) == expected


def test_without_server_points_they_are_the_public_figures():
    assert set(clips_of(suggest(server_data=None, n_server_points=80)).values()) == {
        50.0
    }
    # at the centre: of no length
    clips = clips_of(suggest(k=1, server_data=[[0.5] * 20]))
    assert clips["projection"] == clips["lift-sums"] == LEAST_CLIP
    assert clips["lift-counts"] == clips["weights"] == 50.0
    for budget in (
        PrivacyBudget(1.0),
        PrivacyBudget(None),
        PrivacyBudget(None, unit="client"),
    ):
        algorithm = suggest(budget=budget, n_clients=None)
        assert (algorithm.clips, algorithm.sums, algorithm.alpha) == (
            (),
            "absolute",
            0.8,
        )


@pytest.mark.claim("guarantees", "21")
def test_clips_that_are_given_stay():
    given = suggest(clips={"projection": 1.5, "lloyd-sums": 0.7})
    clips = clips_of(given)
    assert (clips["projection"], clips["lloyd-sums"]) == (1.5, 0.7)
    assert given.sums == "absolute"  # a number of records' worth, as before
    # Of other releases they are suggested, in the same way.
    rest = clips_of(suggest(sums="absolute"))
    for name in ("weights", "lift-sums", "lift-counts"):
        assert clips[name] == rest[name]
    assert set(clips_of(suggest(clip=7.0, clips={"weights": 2.0})).values()) == {
        7.0,
        2.0,
    }


@pytest.mark.claim("guarantees", "21")
def test_offsets_are_added_where_their_clip_is_suggested():
    wide = suggest()
    narrow = suggest(domain=Box([-1] * 2, [2] * 2), server_data=blobs(80, d=2))
    assert (wide.sums, narrow.sums) == ("relative", "relative")
    assert wide.lloyd_sums.radius == 2 * 2**wide.fraction_bits  # the ball's diameter
    assert (
        narrow.alpha,
        narrow.lloyd_sums.radius < 0.6 * narrow.domain.l2_bound(16),
    ) == (
        0.8,
        True,
    )
    assert suggest(alpha=0.8).alpha == 0.8
    assert suggest(sums="absolute").sums == "absolute"
    assert suggest(clip=50.0).sums == "absolute"
    # Offsets are shorter than records.
    assert dict(wide.clips)["lloyd-sums"] < 0.3 * dict(wide.clips)["lift-sums"]


def test_what_large_clients_add_grows_in_proportion():
    for options in ({}, MEANS):
        few, many = (
            answer_norms(twin(**options), size * MOST_DRAWN, RNG(0))
            for size in (1.0, 4.0)
        )
        for name, norms in few.items():  # a mean is no longer
            grows = not options or name in ("projection", "weights")
            np.testing.assert_allclose(many[name], (4 if grows else 1) * norms)


@pytest.mark.claim("guarantees", "21")
@pytest.mark.default_cases("values")
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
@pytest.mark.parametrize(
    ("n_records", "n_clients"), [(50, 5000), (5000, 100), (10**9, 3)]
)
def test_they_never_fail(
    k, points, n_records, n_clients, fraction_bits, mechanisms, contribution
):
    algorithm = suggest(
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
        most = plain_clips(algorithm)[name]
        assert clip <= max(
            most, LEAST_CLIP, 6 * one, 6 * 4.0 ** -min(fraction_bits, 10)
        ), name
