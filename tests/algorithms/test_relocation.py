"""FastLloyd's default: clipped offsets, a radius from released numbers, and relocation."""

import hashlib
import math

import numpy as np
import pytest
from sklearn.datasets import make_blobs

from flower_kmeans.algorithms import FastLloydAlgorithm, Query
from flower_kmeans.algorithms.relocation import public_directions, relocated
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.privacy.budget import PrivacyBudget
from tests.algorithms.rows import box, run_of, sum_of

ONE = 2**16
BUDGET, OPEN = PrivacyBudget(1.0), PrivacyBudget(None)


def build(k=2, d=2, budget=BUDGET, **options):
    return FastLloydAlgorithm.planned(
        k, box(d), budget, **{"n_records": 1000, **options}
    )


def statistic(algorithm, centroids, points, radius):
    query = Query(2, {"centroids": np.array(centroids), "radius": np.array([radius])})
    records = GridRecords.from_grid(np.array(points), algorithm.fraction_bits)
    return algorithm.statistic(query, records).blocks


def loss(algorithm, state, records):
    d2 = ((records[:, None] - algorithm.centroids(state)) ** 2).sum(axis=2)
    return d2.min(axis=1).sum()


# ----------------------------------------------------------------- what a record adds


def test_near_records_weigh_more_where_noise_is_large():
    """Counts and nearness are as they were; the cost needs sums without weights."""
    points, reach = [[ONE // 2], [ONE // 4]], ONE // 2
    few, many = build(1, 1, n_records=40), build(1, 1, n_records=1000)
    found, plain = (statistic(each, [[0]], points, reach) for each in (few, many))
    assert found["counts"] == plain["counts"]
    assert found["nearness"] == plain["nearness"] == 3 * ONE // 4
    assert plain["sums"] == ONE + ONE // 2
    assert found["sums"] == ONE + int(ONE / 2 * math.sqrt(1.75))
    costed = build(1, 1, n_records=40, n_rounds=2, cost=True)
    np.testing.assert_array_equal(
        statistic(costed, [[0]], points, reach)["sums"], plain["sums"]
    )
    exact = build(1, 1, OPEN, n_records=40)
    np.testing.assert_array_equal(
        statistic(exact, [[0]], points, reach)["sums"], plain["sums"]
    )


@pytest.mark.claim("guarantees", "13")
@pytest.mark.parametrize("far", [0.0, 0.1, 0.5, 0.9, 1.0, 1.5])
def test_weights_do_not_change_how_far_a_centroid_moves(far):
    """Where records are equally near, a move is their mean offset, clipped to the radius."""
    algorithm = build(1, 2, n_records=40, n_rounds=3, alpha=0.2, initial=[[0.0, 0.0]])
    state = algorithm.initial_state()
    radius = int(state.arrays["radius"][0])
    points = np.array([[round(far * radius), 0]] * 40)
    assert points.max() <= ONE
    blocks = algorithm.statistic(
        algorithm.query(state), GridRecords.from_grid(points, 16)
    )
    after = algorithm.update(state, blocks)
    assert algorithm.counts(after) == 40
    expected = [min(far, 1.0) * radius, 0]
    np.testing.assert_allclose(after.arrays["centroids"][0], expected, atol=3)


# ----------------------------------------------------------------- rounds and radii


@pytest.mark.parametrize("d", [2, 16])
def test_the_radius_follows_the_records(d):
    """It comes down to about the root mean square of the offsets, and never exceeds alpha's."""
    rng = np.random.default_rng(0)
    records = np.clip(rng.normal(0, 0.02, (4000, d)), -1, 1)
    n_rounds = 14
    algorithm = FastLloydAlgorithm.planned(
        1, box(d), OPEN, n_rounds=n_rounds, initial=np.zeros((1, d))
    )
    states = [algorithm.initial_state()]
    states += [run_of(algorithm, [records], until=t) for t in range(1, n_rounds + 1)]
    radii = [int(state.arrays["radius"][0]) for state in states]
    assert radii[0] == algorithm.radius_of(1)
    assert max(radii[1:]) <= algorithm.radius_of(2)
    spread = math.sqrt((records**2).sum(axis=1).mean())
    # what is clipped is left out of it
    assert 0.8 * spread < radii[-1] / ONE < 1.26 * spread


def radius_after(algorithm, radius, sizes, nearness):
    """Return the radius of round 3, from sizes and mean nearness of clusters in round 2."""
    state = algorithm.initial_state()
    state = type(state)(1, {**state.arrays, "radius": np.array([radius])})
    counts = np.array(sizes) * ONE
    near = np.rint(counts * nearness).astype(np.int64)
    answer = sum_of(algorithm, 2, counts=counts, nearness=near)
    return int(algorithm.update(state, answer).arrays["radius"][0])


@pytest.mark.claim("guarantees", "13")
@pytest.mark.parametrize(
    ("far", "expected"),
    # 1.25 times the root mean square of the offsets in the cluster of 40, or in all
    [(0.04, 0.25), (0.16, 0.5), (0.36, 0.7), (1.0, 0.7)],
)
def test_distant_records_keep_the_radius_long(far, expected):
    """1.25 times the root mean square of all offsets is at most a quarter of the radius."""
    algorithm = build(3, 2, OPEN, n_rounds=3)
    radius = algorithm.radius_of(2)
    nearness = 1 - far * np.array([0, 0, 1])
    found = radius_after(algorithm, radius, [500, 460, 40], nearness)
    assert found == pytest.approx(expected * radius, abs=1)


def test_a_radius_follows_all_records_where_they_are_more_distant():
    algorithm = build(3, 2, OPEN, n_rounds=3)
    radius = algorithm.radius_of(2)
    found = radius_after(algorithm, radius, [500, 460, 40], 1 - 0.6**2)
    assert found == pytest.approx(0.75 * radius, abs=1)
    assert radius_after(algorithm, 1, [500, 460, 40], 1.0) == 1
    # 0.7 of the first radius may be longer than any later radius.
    wide = build(64, 2, OPEN, n_rounds=3)
    first = wide.radius_of(1)
    assert 0.7 * first > wide.radius_of(2)
    sizes = [1000 - 63] + [1] * 63
    nearness = np.array([1] + [0] * 63)
    assert radius_after(wide, first, sizes, nearness) == wide.radius_of(2)


@pytest.mark.parametrize(
    ("size", "far", "is_longer"),
    [(5.0, 2.1, True), (5.0, 1.9, False), (3.9, 2.1, False)],
    ids=["clear", "unclear", "small"],
)
def test_distant_records_must_be_clear_of_the_noise(size, far, is_longer):
    """Size in deviations of a size's noise, offsets in those of both noises."""
    algorithm = build(2, 2, n_rounds=3, n_records=10**5)
    noise = algorithm.noise_of(2)
    counts_noise = noise["counts"] / ONE
    offsets_noise = math.hypot(noise["nearness"] / ONE, counts_noise)
    small = round(size * counts_noise)
    nearness = 1 - np.array([0, far * offsets_noise / small])
    radius = algorithm.radius_of(2)
    found = radius_after(algorithm, radius, [10**5 - small, small], nearness)
    # else it follows all records, most of which lie on their centroids
    assert (found == math.floor(0.7 * radius)) == is_longer
    assert is_longer or found < 0.1 * radius


def test_a_radius_of_noise_alone_keeps_its_scale():
    """Noise may say that all records lie on their centroids."""
    algorithm = build(4, 2, n_rounds=3)
    radius = algorithm.radius_of(2)
    noise = 2 * algorithm.plan().rounds[0][0].noise_multiplier / 1000
    expected = 1.25 * radius * math.sqrt(noise)
    found = radius_after(algorithm, radius, [250] * 4, 4.0)
    assert found == pytest.approx(min(expected, radius), abs=1)


def test_rounds_see_clients_as_records():
    """N over clip takes the place of N, and the radius the released sizes in place of N."""
    clients = PrivacyBudget(1.0, 1e-6, "client")
    alike = build(3, budget=PrivacyBudget(1.0, 1e-6), n_records=100)
    algorithm = build(3, budget=clients, n_records=1000, n_clients=200, clip=10.0)
    assert algorithm.n_rounds == alike.n_rounds == 5
    counts, nearness = np.array([50, 60, 90]) * ONE, np.array([45, 40, 75]) * ONE
    answer = sum_of(algorithm, 1, counts=counts, nearness=nearness)
    after = algorithm.update(algorithm.initial_state(), answer)
    part = max(
        0.2, math.sqrt(3) * algorithm.plan().rounds[0][0].noise_multiplier * 10 / 200
    )
    expected = min(
        1.25 * algorithm.radius_of(1) * math.sqrt(part), algorithm.radius_of(2)
    )
    assert after.arrays["radius"][0] == pytest.approx(expected, abs=1)


# ----------------------------------------------------------------- who moves


def clusters(centroids, sizes, scatter, noise=(1.0, 1.0)):
    return np.array(centroids), np.array(sizes, float), np.array(scatter, float), noise


def moved(found):
    """Return the following centroids; directions are those of the first axis."""
    k, d = found[0].shape
    axes = np.tile(np.eye(d)[0], (2 * k, 1))
    return relocated(*found, axes, lambda points: np.clip(points, -ONE, ONE)).tolist()


def test_a_dead_centroid_goes_beside_the_fullest():
    """No scatter is clear of its noise."""
    found = clusters([[0, 0], [1000, 0], [0, 3000]], [400, 1, 100], [0, 0, 0])
    # a tenth of what lies between 0 and 2
    assert moved(found) == [[0, 0], [300, 0], [0, 3000]]
    alive = clusters([[0, 0], [1000, 0], [0, 3000]], [400, 30, 100], [0, 0, 0])
    assert moved(alive) == alive[0].tolist()
    # The fullest has less than four times the noise, so it may be no fuller than the
    # dead one.
    noisy = clusters(
        [[0, 0], [1000, 0], [0, 3000]], [39, 8, 38], [0, 0, 0], (10.0, 1.0)
    )
    assert moved(noisy) == noisy[0].tolist()


@pytest.mark.claim("guarantees", "13")
@pytest.mark.parametrize(
    ("scatter", "noise", "expected"),
    [
        ([2e6, 0, 9e6], (1.0, 1.4e6), [300, 3000]),
        # no scatter is clear of its noise
        ([2e6, 0, 9e6], (1.0, 1.6e6), [300, 0]),
        # The cluster with the most scatter has less than four times the noise.
        ([2e6, 0, 9e6], (26.0, 0.3e6), [300, 0]),
        # without noise, but nothing to gain
        ([0, 0, 0], (0.0, 0.0), [300, 0]),
    ],
    ids=["clear", "unclear", "small", "none"],
)
def test_a_dead_centroid_goes_beside_the_most_scattered(scatter, noise, expected):
    """Beside 2, which has fewer records than 0, or else beside 0."""
    found = clusters([[0, 0], [1000, 0], [0, 3000]], [400, 1, 100], scatter, noise)
    assert moved(found) == [[0, 0], expected, [0, 3000]]


def test_dead_centroids_share_the_scatter():
    found = clusters([[0], [400], [900], [5000]], [1000, 0, -3, 960], [5e6, 0, 0, 8e6])
    after = moved(found)
    assert after[2] == [5000 + 460]  # the smallest first, beside 3
    assert after[1] == [500]  # beside 0, because 3 has half of its scatter now


def test_dead_centroids_share_the_full_clusters():
    found = clusters([[0], [500], [900], [5000]], [1000, 0, -3, 960], [0] * 4)
    after = moved(found)
    assert after[2] == [50]  # the smallest first, beside 0, before 1 goes beside 3
    assert after[1] == [5000 + 495]  # the nearest other one is 2, at its new place


def test_two_centroids_of_one_cluster_give_one_away():
    """2 and 3 share a cluster; 0 holds two, so that it has most of the scatter."""
    centroids = [[0, 0], [9000, 0], [0, 9000], [100, 9000]]
    found = clusters(centroids, [800, 400, 190, 210], [9e9, 4e6, 1e6, 1e6])
    after = moved(found)
    assert after[1] == [9000, 0]
    assert after[0] == [0, 0]
    assert after[3] == [53, 9000]  # the mean of both, by records
    assert after[2] == [900, 0]
    scattered = clusters(centroids, [800, 400, 190, 210], [5.5e6, 4e6, 1.9e6, 1.9e6])
    assert moved(scattered) == centroids  # less than merging them would add, or usual
    noisy = clusters(centroids, [800, 400, 190, 210], [9e9, 4e6, 1e6, 1e6], (1.0, 9e9))
    assert moved(noisy) == centroids


@pytest.mark.parametrize(("deviation", "moves"), [(0.9e6, True), (1.1e6, False)])
def test_a_gain_that_noise_may_explain_moves_nothing(deviation, moves):
    """Dividing 0 gains 2e6, and merging 2 and 3 costs 1e6. All scatter is clear of the noise."""
    centroids = [[0, 0], [9000, 0], [0, 9000], [100, 9000]]
    scatter = [10e6, 4e6, 1.9e6, 1.9e6]
    found = clusters(centroids, [800, 400, 190, 210], scatter, (1.0, deviation))
    assert (moved(found) != centroids) == moves


@pytest.mark.parametrize("k", [1, 2, 3])
def test_few_centroids_and_no_records(k):
    nothing = clusters(np.arange(k)[:, None] * 10, [0] * k, [0] * k, (0.0, 0.0))
    assert np.abs(moved(nothing)).max() <= 10 * k


def test_directions_are_public_unit_vectors():
    for d in (1, 3, 300):
        vectors = public_directions(7, 2, (20, d))
        np.testing.assert_allclose([np.linalg.norm(v) for v in vectors], 1)
        np.testing.assert_array_equal(vectors, public_directions(7, 2, (20, d)))
        assert not (vectors[:, 0] == public_directions(7, 3, (20, d))[:, 0]).all()
        assert not (vectors[:, 0] == public_directions(8, 2, (20, d))[:, 0]).all()
        assert len({tuple(v) for v in vectors}) == (2 if d == 1 else 20)


@pytest.mark.parametrize("seed", range(8))
def test_a_bad_start_is_repaired(seed):
    """Six clusters. The paper's algorithm ends in a local optimum for most of these seeds."""
    records, labels = make_blobs(
        3000, n_features=3, centers=6, cluster_std=0.4, random_state=3
    )
    records = records / np.abs(records).max()
    means = np.array([records[labels == j].mean(axis=0) for j in range(6)])
    best = ((records - means[labels]) ** 2).sum()
    algorithm = FastLloydAlgorithm.planned(6, box(3), OPEN, seed=seed)
    assert algorithm.n_rounds == 8
    assert loss(algorithm, run_of(algorithm, [records]), records) < 1.05 * best


@pytest.mark.parametrize("seed", [0, 3])
def test_distant_small_clusters_are_found(seed):
    """Three clusters hold 12 times as many records as the five others."""
    rng = np.random.default_rng(0)
    large = [[-0.9, -0.9], [-0.9, -0.7], [-0.7, -0.9]]
    small = [[0.5, -0.6], [0.9, -0.2], [0.6, 0.5], [0.1, 0.9], [-0.5, 0.7]]
    parts = [rng.normal(mean, 0.03, (2000, 2)) for mean in large]
    parts += [rng.normal(mean, 0.03, (100, 2)) for mean in small]
    best = sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts)
    records = np.clip(np.concatenate(parts), -1, 1)
    algorithm = FastLloydAlgorithm.planned(8, box(2), OPEN, seed=seed)
    assert loss(algorithm, run_of(algorithm, [records]), records) < 1.5 * best


def test_nothing_moves_after_the_last_round():
    """Sizes and cost are those of the centroids that are released."""
    algorithm = build(3, 1, n_rounds=2)
    for t, dead_moves in ((1, True), (2, False)):
        state = algorithm.initial_state()
        state = type(state)(t - 1, state.arrays)
        answer = sum_of(algorithm, t, counts=np.array([1000, 0, 500]) * ONE)
        after = algorithm.update(state, answer)
        same = after.arrays["centroids"] == state.arrays["centroids"]
        assert bool(same[1, 0]) != dead_moves


# ----------------------------------------------------------------- the same everywhere


def digest():
    """Return the digest of all states of runs with many noisy words."""
    found = hashlib.sha256()
    for k, d, seed in ((3, 2, 7), (40, 7, 1), (17, 65, 2)):
        algorithm = build(k, d, seed=seed, n_rounds=4, n_records=20_000)
        state, source = algorithm.initial_state(), np.random.Philox(key=seed)
        for t in range(1, 5):
            words = (
                source.random_raw(algorithm.layout(t).n_words) >> np.uint64(40)
            ).astype(np.int64)
            words[algorithm.layout(t).places["counts"]] *= 40
            state = algorithm.update(state, algorithm.layout(t).unflatten(words))
            for name in sorted(state.arrays):
                found.update(state.arrays[name].astype("<i8").tobytes())
    return found.hexdigest()


@pytest.mark.claim("guarantees", "13")
def test_the_integers_of_a_relocated_run_never_change():
    assert (
        digest() == "f22c9890c3863f6ce337c5250b72e4bff978c1bb03eedad38994ba1b1ad5f55a"
    )
