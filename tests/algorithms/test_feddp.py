"""FedDP-KMeans as pure mathematics: its units, its queries, and whole runs without messages."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans

from flower_kmeans.algorithms import FedDPAlgorithm, Query, State
from flower_kmeans.algorithms.feddp_results import NOTES
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.metrics import inertia, matched_centroid_error
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise

BUDGET = PrivacyBudget(1.0)
RNG = np.random.default_rng
Q = 3  # a grid small enough to enumerate

DOMAINS = {
    "line": Box([0], [1]),
    "square": Box([0, 0], [1, 1]),
    "rectangle": Box([0, 0], [4, 3], scale="common"),
    "disc": Ball(2.0, [0, 0]),
    "cube": Box([0] * 3, [1] * 3),
}


def inside(domain, m, seed=0):
    """Points of the user's units that lie in a domain."""
    return domain.from_unit(domain.to_unit(RNG(seed).normal(size=(m, domain.n_features)) * 0.4))


def build(domain, k=2, budget=BUDGET, **options):
    options = {"n_records": 1000, "fraction_bits": Q, "n_lloyd_rounds": 2, **options}
    if "n_server_points" not in options:
        options.setdefault("server_data", inside(domain, 6))
    return FedDPAlgorithm(k, domain, budget, **options)


def grid_points(domain):
    axes = [range(-int(g), int(g) + 1) for g in domain.grid_half_widths(Q)]
    points = np.array(list(itertools.product(*axes)), dtype=np.int64)
    if isinstance(domain, Ball):
        points = points[(points**2).sum(axis=1) <= 4**Q]
    if domain is DOMAINS["cube"]:  # enough to reach corners and a whole radius: 9 = |(1, 4, 8)|
        points = points[np.isin(points, [-8, -7, -4, 0, 4, 8]).all(axis=1)]
    return points


def answer(algorithm, query, points):
    records = GridRecords.from_grid(np.reshape(points, (-1, algorithm.domain.n_features)), Q)
    return algorithm.flatten(algorithm.statistic(query, records), query.round)


def queries(algorithm, seed):
    """Queries of every round, of extreme and of random arrays."""
    rng, domain = RNG(seed), algorithm.domain
    points, projection = grid_points(domain), algorithm.projection
    k, d, m = algorithm.n_clusters, domain.n_features, algorithm.n_server_points
    r = projection.n_directions
    yield Query(1)
    for extreme in (True, False):
        directions = np.linalg.qr(rng.normal(size=(d, r)))[0]
        matrix = projection.matrix(np.eye(d, r) if extreme else directions)
        seen = projection.project(points.astype(float), matrix.astype(float)).astype(np.int64)
        yield Query(2, {"projection": matrix, "points": seen[rng.integers(len(seen), size=m)]})
        yield Query(3, {"projection": matrix, "centers": seen[rng.integers(len(seen), size=k)]})
        for t in range(4, algorithm.n_rounds + 1):
            chosen = np.zeros(k, int) if extreme else rng.integers(len(points), size=k)
            asked = {"centroids": points[chosen]}
            if "factor" in algorithm.query_ranges(t):
                asked["factor"] = np.array([4 if extreme else rng.integers(4, 65)])
            yield Query(t, asked)


# ----------------------------------------------------------------- units

SUMS = ["absolute", "relative", "narrowing"]


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("name", DOMAINS)
def test_one_record_changes_each_release_by_its_unit_at_most(name, sums):
    """With narrowing sums also where a factor stands for a narrow radius, whatever it is."""
    domain, n = DOMAINS[name], 2 if sums == "narrowing" else 1
    algorithm = build(domain, sums=sums, cost=True, alpha=1.0, margin=0.9, n_lloyd_rounds=n)
    records, rounds = grid_points(domain), algorithm.plan().rounds
    others, largest = records[::7], {}
    held = np.vstack([others, others[:1]])
    for query in (q for seed in range(2) for q in queries(algorithm, seed)):
        algorithm.check_query(query)
        units, places = algorithm.units(query.round), algorithm.places(query.round)
        before, changes = answer(algorithm, query, others), []
        for record in records:
            held[-1] = record
            changes.append(answer(algorithm, query, held) - before)
        changes = np.array(changes) / units
        for release in rounds[query.round - 1]:
            (place,) = (places[block] for block in release.blocks)
            norm = np.linalg.norm(changes[:, place], axis=1).max()
            largest[release.name] = max(largest.get(release.name, 0.0), norm)
    assert set(largest) == {r.name for r in algorithm.plan().releases}
    for release, norm in largest.items():
        # Few grid points lie exactly at a radius of each other.
        rounded = sums != "absolute" and release in ("lloyd-sums", "spread", "cost")
        assert norm <= 1 + 1e-12, release
        assert norm >= (0.8 if rounded else 1 - 1e-12), release


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("name", DOMAINS)
def test_whatever_a_server_may_ask_units_hold(name, sums):
    """Queries need not come from an algorithm: everything that passes the check must do."""
    domain, rng = DOMAINS[name], RNG(1)
    algorithm = build(domain, cost=True, sums=sums, n_lloyd_rounds=2)
    for t, trial in itertools.product(range(2, algorithm.n_rounds + 1), range(4)):
        arrays = {}
        for key, (shape, low, limit) in algorithm.query_ranges(t).items():
            low, limit = np.broadcast_to(low, shape), np.broadcast_to(limit, shape)
            wild = rng.integers(low, limit + 1)
            arrays[key] = np.where(rng.random(shape) < trial / 3, limit, wild).astype(np.int64)
        if t > 3:
            arrays["centroids"] = algorithm._into_domain(arrays["centroids"])
        query = Query(t, arrays)
        algorithm.check_query(query)
        units = algorithm.units(query.round)
        for record in grid_points(domain)[::3]:
            change = answer(algorithm, query, record) / units
            for block in np.split(change, np.cumsum([b.size for b in algorithm.layout(t)])[:-1]):
                assert np.linalg.norm(block) <= 1 + 1e-12


@pytest.mark.parametrize(("margin", "counted"), [(1.0, 9), (0.5, 6), (0.3, 4)])
def test_records_beyond_the_margin_are_not_lifted(margin, counted):
    """Of the numbers -4 to 4 on a line, those near one of two centres at -4 and 4 count."""
    algorithm = build(DOMAINS["line"], margin=margin)
    matrix = algorithm.projection.matrix(np.eye(1))
    centers = algorithm.projection.project(np.array([[-4.0], [4.0]]), matrix.astype(float))
    query = Query(3, {"projection": matrix, "centers": centers.astype(np.int64)})
    algorithm.check_query(query)
    words = answer(algorithm, query, np.arange(-4, 5)[:, None])
    blocks = algorithm.unflatten(words, 3).blocks
    assert blocks["counts"].sum() == counted << Q
    distances = [(abs(x + 4), abs(x - 4), x) for x in range(-4, 5)]
    kept = sum(x for near, far, x in distances if near <= far and near <= margin * far)
    assert blocks["sums"][0, 0] == kept


def test_every_word_has_a_unit():
    algorithm = build(DOMAINS["square"], cost=True)
    for query in queries(algorithm, 0):
        units = algorithm.units(query.round)
        assert units.shape == (algorithm.words(query.round),)
        assert units.dtype == np.float64
        assert (units > 0).all()


def test_every_block_belongs_to_one_release():
    algorithm = build(DOMAINS["square"], cost=True)
    for t, releases in enumerate(algorithm.plan().rounds, start=1):
        named = [name for release in releases for name in release.blocks]
        assert sorted(named) == sorted(block.name for block in algorithm.layout(t))


def test_no_records_add_zeros():
    algorithm = build(DOMAINS["square"], cost=True)
    for query in queries(algorithm, 2):
        found = answer(algorithm, query, [])
        assert found.dtype == np.int64
        assert not found.any()


def test_records_outside_the_bounds_count_as_records_on_them():
    algorithm = build(Box([0, 0], [1, 1]), cost=True)
    far = GridRecords(np.array([[1e9, -1e300], [0.5, 7.0]]), algorithm.domain, Q)
    near = GridRecords(np.array([[1.0, 0.0], [0.5, 1.0]]), algorithm.domain, Q)
    for query in queries(algorithm, 3):
        for name, block in algorithm.statistic(query, far).blocks.items():
            np.testing.assert_array_equal(block, algorithm.statistic(query, near).blocks[name])


@pytest.mark.parametrize("sums", SUMS)
def test_answers_add_up_to_that_of_the_pooled_records(sums):
    q, d = 16, 9
    domain = Box([-1] * d, [1] * d)
    algorithm = build(domain, 3, fraction_bits=q, sums=sums, cost=True, margin=0.8)
    points = RNG(0).integers(-(2**q), 2**q + 1, size=(60, d))
    state = algorithm.initial_state()
    for t in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        alone = [
            algorithm.flatten(algorithm.statistic(query, GridRecords.from_grid(part, q)), t)
            for part in np.split(points, 60)
        ]
        together = algorithm.statistic(query, GridRecords.from_grid(points, q))
        np.testing.assert_array_equal(sum(alone), algorithm.flatten(together, t))
        state = algorithm.update(state, together, RNG(0))


# ----------------------------------------------------------------- whole clients

FINE = 12  # truncation costs little here
CLIENTS = PrivacyBudget(1.0, unit="client")
OF_CLIENTS = [
    {"clip": 2.0, "cost": True},
    {"clip": 0.75, "sums": "relative", "alpha": 1.0},
    {"clips": {"projection": 1.0, "lift-sums": 0.6, "lloyd-counts": 3}},
    {"mechanisms": "laplace", "clip": 2.0, "cost": True},
    {"contribution": "means"},
    {"contribution": "means", "mechanisms": "laplace", "clips": {"weights": 2.5}},
    {"contribution": "means", "clips": {"lift-sums": 1.2, "lloyd-sums": 1.0}},
    {"contribution": "means", "clip": 1.0, "sums": "relative", "alpha": 1.0},
    {"cost": True, "mechanisms": "laplace"},
]


def for_clients(domain, k=2, **options):
    options = {"fraction_bits": FINE, "n_clients": 100, "n_lloyd_rounds": 1, **options}
    return build(domain, k, CLIENTS, **options)


def fine(array):
    return np.asarray(array) << (FINE - Q)


def clients(domain):
    """Every client with up to three of some records, and one with many."""
    points = grid_points(domain)
    some = fine(points[np.unique(np.linspace(0, len(points) - 1, 5).astype(int))])
    for n in range(4):
        for chosen in itertools.combinations_with_replacement(range(len(some)), n):
            yield some[list(chosen)]
    yield np.repeat(some, 200, axis=0)


def questions_for_clients(algorithm, seed):
    coarse = build(algorithm.domain, algorithm.n_clusters, n_lloyd_rounds=1)
    for query in queries(coarse, seed):
        yield Query(query.round, {name: fine(a) for name, a in query.arrays.items()})


@pytest.mark.parametrize("options", OF_CLIENTS)
@pytest.mark.parametrize("name", ["line", "square", "disc"])
def test_one_client_changes_each_release_by_its_unit_at_most(name, options):
    domain = DOMAINS[name]
    algorithm, largest = for_clients(domain, **options), {}
    for query in (q for seed in range(2) for q in questions_for_clients(algorithm, seed)):
        algorithm.check_query(query)
        units, places = algorithm.units(query.round), algorithm.places(query.round)
        for records in clients(domain):
            # All records of the client at once: it holds them, or nothing, which adds zeros.
            grid = GridRecords.from_grid(np.reshape(records, (-1, domain.n_features)), FINE)
            words = algorithm.flatten(algorithm.answer(query, grid), query.round)
            assert len(records) or not words.any()
            for release in algorithm.releases(query.round):
                (place,) = (places[block] for block in release.blocks)
                part = np.abs(words[place]) / units[place]
                norm = part.sum() if release.norm == "l1" else np.linalg.norm(part)
                assert norm <= 1 + 1e-12
                largest[release.name] = max(largest.get(release.name, 0.0), norm)
    assert set(largest) == {release.name for release in algorithm.plan().releases}
    for number in range(1, algorithm.n_rounds + 1):
        # A round is shortened by one factor: it is one of its releases that attains its bound.
        assert max(largest[release.name] for release in algorithm.releases(number)) >= 0.97


def test_one_record_of_a_tightly_clipped_client_moves_two_units():
    """From one end of the clip to the other: what a ledger counts beside runs for records."""
    algorithm = for_clients(DOMAINS["line"], clips={"lift-sums": 0.5})
    one = 2**FINE
    projection = np.array([[one]])
    centers = np.zeros((2, 1), dtype=np.int64)  # every record is of the first cluster
    query = Query(3, {"projection": projection, "centers": centers})
    algorithm.check_query(query)
    ends = [
        algorithm.flatten(algorithm.answer(query, GridRecords.from_grid(records, FINE)), 3)
        for records in ([[-one // 2]], [[-one // 2], [one]])
    ]
    moved = (ends[1] - ends[0]) / algorithm.units(query.round)
    assert np.linalg.norm(moved[:2]) == pytest.approx(2, abs=4 / one)
    assert algorithm.moves_of_a_record(3)[0] == 2


@pytest.mark.parametrize("clip", [3.0, 20.0])
def test_one_record_of_a_clipped_client_moves_no_more_than_is_charged(clip):
    """One factor shortens a round: beside the record's own step, it takes that of the factor."""
    algorithm = for_clients(DOMAINS["square"], clip=clip)
    largest = 0.0
    for query in questions_for_clients(algorithm, 3):
        number, moves = query.round, algorithm.moves_of_a_record(query.round)
        factor = 1 if len(moves) == 1 else 2
        assert all(factor / clip < move <= factor / clip + 0.01 for move in moves)
        units, places = algorithm.units(query.round), algorithm.places(number)
        for records in clients(DOMAINS["square"]):
            if not len(records):
                continue
            grids = [GridRecords.from_grid(part, FINE) for part in (records, records[1:])]
            with_it, without = (
                algorithm.flatten(algorithm.answer(query, grid), number) for grid in grids
            )
            change = (with_it - without) / units
            for release, move in zip(algorithm.releases(number), moves, strict=True):
                words = np.concatenate([places[name] for name in release.blocks])
                norm = np.linalg.norm(change[words], 1 if release.norm == "l1" else 2)
                assert norm <= move
                largest = max(largest, norm * clip)
    assert largest > 0.9


def test_a_record_of_a_client_that_adds_means_may_cross_the_clip():
    algorithm = for_clients(DOMAINS["square"], contribution="means", clip=5.0)
    moves = [algorithm.moves_of_a_record(t) for t in range(1, algorithm.n_rounds + 1)]
    assert max(moves[0]) < 1
    assert all(set(of_round) == {2.0} for of_round in moves[2:])


def test_a_clip_of_its_own_for_each_release():
    algorithm = for_clients(
        DOMAINS["square"], clip=10.0, clips={"projection": 1.0, "lift-counts": 3}
    )
    clips = {r.name: algorithm.clip_of(r) for r in algorithm.plan().releases}
    expected = dict.fromkeys(clips, 10.0) | {"projection": 1.0, "lift-counts": 3.0}
    assert clips == expected
    record = build(DOMAINS["square"], fraction_bits=FINE, n_lloyd_rounds=1)
    assert {record.clip_of(r) for r in record.plan().releases} == {1.0}
    np.testing.assert_array_equal(
        algorithm.units(3), record.units(3) * np.repeat([10.0, 3.0], [4, 2])
    )
    share = {a: a.plan().rounds[2][0].noise_multiplier for a in (algorithm, record)}
    ratio = algorithm.noise_of(3)["sums"] / record.noise_of(3)["sums"]
    assert ratio == pytest.approx(10 * share[algorithm] / share[record])


def test_means_are_clipped_to_all_clusters_by_default():
    for mechanisms, worth in (("gaussian", math.sqrt(4)), ("laplace", 4.0)):
        algorithm = for_clients(
            DOMAINS["square"], 4, contribution="means", mechanisms=mechanisms, clip=5.0
        )
        clips = {r.name: algorithm.clip_of(r) for r in algorithm.plan().releases}
        assert clips == {
            "projection": 5.0,
            "weights": 5.0,
            "lift-sums": 2.0,
            "lift-counts": worth,
            "lloyd-sums": 2.0,
            "lloyd-counts": worth,
        }


@pytest.mark.parametrize("t", [3, 4])
def test_means_are_those_of_the_clients_records_toward_zero(t):
    algorithm = for_clients(DOMAINS["square"], 3, contribution="means", sums="absolute")
    one = 2**FINE
    centers = np.array([[one, 0], [-one, 0], [0, one]])
    identity = np.eye(2, dtype=np.int64) * one
    query = Query(4, {"centroids": centers})
    if t == 3:
        query = Query(3, {"projection": identity, "centers": centers})
    points = [[4000, 3], [4001, 2], [3999, 3], [-4000, -5], [-4001, -8]]
    records = GridRecords.from_grid(points, FINE)
    blocks = algorithm.statistic(query, records).blocks
    np.testing.assert_array_equal(blocks["sums"], [[4000, 2], [-4000, -6], [0, 0]])
    np.testing.assert_array_equal(blocks["counts"], [one, one, 0])
    if t == 4:
        offsets = for_clients(
            DOMAINS["square"], 3, contribution="means", sums="relative", alpha=9.0
        )
        means = offsets.statistic(query, records).blocks["sums"]
        np.testing.assert_array_equal(means, [[4000 - one, 2], [95, -6], [0, 0]])


def test_a_round_is_shortened_by_one_factor():
    """So the means of what a client adds stay where they are, whatever its size."""
    algorithm = for_clients(
        DOMAINS["square"], clips={"lift-sums": 0.5, "lift-counts": 9.0, "lloyd-sums": 0.5}
    )
    assert algorithm.sums == "relative"
    one = 2**FINE
    centers = np.array([[one, 0], [-one, 0]])
    identity = np.eye(2, dtype=np.int64) * one
    points = [[4000, 300], [4001, 200], [-2000, -500], [-4001, 8]] * 3
    for query in (
        Query(3, {"projection": identity, "centers": centers}),
        Query(4, {"centroids": centers}),
    ):
        records = GridRecords.from_grid(points, FINE)
        whole = algorithm.statistic(query, records).blocks
        added = algorithm.answer(query, records).blocks
        units = algorithm.units(query.round)
        assert np.linalg.norm(added["sums"].ravel() / units[:4]) == pytest.approx(1, abs=0.01)
        factor = added["counts"] / whole["counts"]
        assert (factor < 0.5).all()
        np.testing.assert_allclose(added["sums"], whole["sums"] * factor[0], atol=2)
        np.testing.assert_allclose(factor, factor[0], atol=2 / one)


# ----------------------------------------------------------------- queries


def changed(query, key, array):
    return Query(query.round, {**query.arrays, key: array})


@pytest.mark.parametrize("name", ["rectangle", "disc"])
def test_only_questions_of_the_round_are_answered(name):
    algorithm = build(DOMAINS[name])
    for query in queries(algorithm, 4):
        algorithm.check_query(query)
        wrong = [
            Query(0, query.arrays),
            Query(algorithm.n_rounds + 1, query.arrays),
            Query(True, query.arrays),
            Query(query.round, {**query.arrays, "more": np.zeros(1, np.int64)}),
        ]
        for key, array in query.arrays.items():
            limit = algorithm.query_ranges(query.round)[key][2]
            beyond = array.copy()
            beyond.flat[0] = np.broadcast_to(limit, array.shape).flat[0] + 1
            lacking = {k: v for k, v in query.arrays.items() if k != key}
            wrong += [
                Query(query.round, lacking),
                changed(query, key, array.astype(np.int32)),
                changed(query, key, array.astype(np.float64)),
                changed(query, key, array[:-1]),
                changed(query, key, array[None]),
                changed(query, key, array.tolist()),
                changed(query, key, beyond),
                changed(query, key, -beyond),
                changed(query, key, np.full_like(array, -(2**63))),
            ]
        for bad in wrong:
            with pytest.raises(MessageError, match=r"^The query of a round is not one of its"):
                algorithm.check_query(bad)


def test_a_radius_narrows_to_twice_the_root_mean_square_distance():
    """To the next wider one that a factor stands for; means and sizes stay those of records."""
    q, domain = 16, DOMAINS["square"]
    algorithm = build(domain, 2, PrivacyBudget(None), sums="narrowing", fraction_bits=q)
    centroids = np.array([[-(2**15), 0], [2**15, 2**14]])
    rng = RNG(5)
    near = np.concatenate([rng.normal(c, 2000, size=(500, 2)) for c in centroids]).astype(int)
    before = State(3, {**algorithm.initial_state().arrays, "centroids": centroids})
    for points in (near, np.repeat(centroids, 50, axis=0), near[:0]):
        records = GridRecords.from_grid(points, q)
        answer = algorithm.statistic(algorithm.query(before), records)
        state = algorithm.update(before, answer, RNG(0))
        query = algorithm.query(state)
        algorithm.check_query(query)
        (factor,) = query.arrays["factor"].tolist()
        if points is not near:
            assert factor == 64  # the narrowest
            continue
        distances = np.linalg.norm(points - np.repeat(centroids, 500, axis=0), axis=1)
        wanted = 2 * math.sqrt(np.mean(distances**2))
        assert 4 * algorithm.radius / (factor + 1) < wanted * 1.001
        assert wanted < 4 * algorithm.radius / factor * 1.001
        assert 4 < factor < 64
        means = points.reshape(2, 500, 2).mean(axis=1)
        np.testing.assert_allclose(state.arrays["centroids"], means, atol=1)
        # The next round takes records within the narrow radius only.
        answer = algorithm.statistic(query, records)
        last = algorithm.update(state, answer, RNG(0))
        offsets = points.reshape(2, 500, 2) - state.arrays["centroids"][:, None]
        kept = (offsets**2).sum(axis=2) <= (4 * algorithm.radius // factor) ** 2
        assert 900 < kept.sum() < 1000
        means = [part[inside].mean(axis=0) for part, inside in zip(offsets, kept, strict=True)]
        np.testing.assert_allclose(
            last.arrays["centroids"] - state.arrays["centroids"], means, atol=1
        )
        np.testing.assert_array_equal(algorithm.counts(last), kept.sum(axis=1))


def test_a_radius_is_the_wider_the_noisier_its_spread_is():
    """By one standard deviation of the planned noise, and never wider than in the first round."""
    algorithm = build(DOMAINS["square"], sums="narrowing", fraction_bits=16, n_records=10**5)
    noise = algorithm.noise_of(4)["spread"]
    one, factors = 2**16, []
    for spread in (0.0, 2 * noise, 20 * noise, 2.0**50):
        words = [0] * 4 + [5_000 * one] * 2 + [int(spread)]
        state = after(algorithm, 4, words, {"centroids": np.zeros((2, 2), np.int64)})
        factors.append(int(state.arrays["factor"][0]))
    wanted = 2 * math.sqrt(noise * one / 10_000)
    assert factors[0] == min(64, math.floor(4 * algorithm.radius / wanted))
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == 4
    lowest = after(
        algorithm,
        4,
        [0] * 4 + [-(2**60)] * 2 + [-(2**62)],
        {"centroids": np.zeros((2, 2), np.int64)},
    )
    assert lowest.arrays["factor"].tolist() == [64]


def test_centroids_in_the_corners_of_a_ball_are_refused():
    algorithm = build(DOMAINS["disc"])
    algorithm.check_query(Query(4, {"centroids": np.array([[8, 0], [0, -8]])}))
    with pytest.raises(MessageError):
        algorithm.check_query(Query(4, {"centroids": np.array([[8, 0], [1, -8]])}))


def test_a_client_knows_the_questions_without_the_servers_points():
    server = build(DOMAINS["square"])
    client = build(DOMAINS["square"], n_server_points=6)
    state = server.initial_state()
    for t in range(1, server.n_rounds + 1):
        query = server.query(state)
        client.check_query(query)
        np.testing.assert_array_equal(
            answer(client, query, grid_points(client.domain)),
            answer(server, query, grid_points(client.domain)),
        )
        assert {a.dtype for a in query.arrays.values()} <= {np.dtype(np.int64)}
        words = answer(server, query, grid_points(server.domain))
        state = server.update(state, server.unflatten(words, t), RNG(0))
    with pytest.raises(ConfigurationError, match="server_data"):
        client.initial_state()


def test_no_dense_matrix_is_sent():
    for d in (100, 784):
        algorithm = build(Box([0] * d, [1] * d), 10, server_data=RNG(0).random((20, d)))
        assert algorithm.words(1) == d * (d + 1) // 2


# ----------------------------------------------------------------- updates


INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-(2**63), 2**63 - 1, 0, 2**16, -1, 40, 80]
)


@pytest.mark.parametrize("name", ["rectangle", "disc"])
@pytest.mark.parametrize("options", [{}, {"sums": "absolute"}, {"budget": PrivacyBudget(None)}])
@settings(max_examples=25, deadline=None)
@given(words=arrays(np.int64, (5, 7), elements=INT64))
def test_update_accepts_any_integers(name, options, words):
    algorithm = build(DOMAINS[name], cost=True, **options)
    state = algorithm.initial_state()
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for t, vector in enumerate(words, start=1):
            statistic = algorithm.unflatten(vector[: algorithm.words(t)], t)
            assert algorithm.words(t) <= 7
            following = algorithm.update(state, statistic, RNG(t))
            again = algorithm.update(state, statistic, RNG(t))
            assert following.round == t
            for key, array in following.arrays.items():
                np.testing.assert_array_equal(array, again.arrays[key])
                assert np.isfinite(array).all()
            state = following
            assert set(algorithm.notes(state)) <= set(NOTES)
            if t < algorithm.n_rounds:
                query = algorithm.query(state)
                algorithm.check_query(query)
                answer(algorithm, query, grid_points(algorithm.domain))
            if t >= 3:
                centroids = state.arrays["centroids"]
                assert (np.abs(centroids) <= algorithm.domain.grid_half_widths(Q)).all()
                if name == "disc":
                    assert ((centroids**2).sum(axis=1) <= 4**Q).all()
                assert np.isfinite(algorithm.centroids(state)).all()
                np.testing.assert_array_equal(
                    algorithm.counts(state), vector[4:6].astype(float) / 2**Q
                )
    estimate = algorithm.cost_estimate(state)
    assert math.isfinite(estimate.value)
    assert estimate.standard_error >= 0
    assert algorithm.initial_state().round == 0


def test_without_a_generator_the_seed_and_the_round_decide(monkeypatch):
    algorithm = build(DOMAINS["square"], seed=7, server_data=inside(DOMAINS["square"], 40))
    moments, weights = np.array([400, 300, 10]), np.full(40, 800)

    def centers():
        state = algorithm.update(algorithm.initial_state(), algorithm.unflatten(moments, 1))
        return algorithm.update(state, algorithm.unflatten(weights, 2)).arrays["centers"]

    np.testing.assert_array_equal(centers(), centers())
    made = []

    def generator(*of):
        made.append(of)
        return RNG(of)

    monkeypatch.setattr("flower_kmeans.algorithms.feddp.public_generator", generator)
    centers()
    assert made == [(7, 1), (7, 2)]


def test_before_the_lift_there_are_no_centroids():
    algorithm = build(DOMAINS["square"])
    state = algorithm.initial_state()
    assert algorithm.centroids(state) is None
    assert algorithm.counts(state) is None
    assert algorithm.cost_estimate(state) is None
    assert algorithm.notes(state) == ()


def after(algorithm, t, words, arrays=None):
    """State after round t of noisy words, from given or no earlier arrays."""
    before = State(t - 1, {**algorithm.initial_state().arrays, **(arrays or {})})
    return algorithm.update(before, algorithm.unflatten(np.asarray(words, np.int64), t), RNG(0))


def test_server_points_lie_on_the_grid_within_the_domain():
    data = np.array([[0.5, 0.25], [3.0, 0.5], [0.1, -9.0]])
    points = build(Box([0, 0], [1, 1]), server_data=data).initial_state().arrays["server"]
    np.testing.assert_array_equal(points, [[0, -4], [8, 0], [-6, -8]])


def test_the_projection_is_that_of_the_leading_eigenvector():
    algorithm = build(Box([0] * 3, [1] * 3), 1, PrivacyBudget(None), fraction_bits=16)
    direction = np.array([2.0, -1.0, 2.0]) / 3
    moments = 1e9 * np.outer(direction, direction) + 1e6 * np.eye(3)
    words = np.rint(np.concatenate([np.diagonal(moments), moments[np.triu_indices(3, 1)]]))
    state = after(algorithm, 1, words)
    found = state.arrays["projection"][:, 0] / 2**16
    np.testing.assert_allclose(found * np.sign(found[0]), direction, atol=1e-4)
    points = state.arrays["server"] @ state.arrays["projection"] / 2**16
    np.testing.assert_array_equal(state.arrays["points"], np.trunc(points))
    assert algorithm.notes(state) == ()


def test_a_projection_of_noise_is_told():
    private = build(Box([0] * 3, [1] * 3), 2, fraction_bits=16)
    edge = math.sqrt(6) * private.noise_of(1)["moments"]
    strong, weak = np.zeros((2, 6), np.int64)
    strong[:3] = [1.1 * edge, 1.1 * edge, 0]
    weak[:3] = [1.1 * edge, 0.9 * edge, 0]
    assert private.notes(after(private, 1, strong)) == ()
    assert private.notes(after(private, 1, weak)) == (NOTES[0],)
    # Without noise, records of one direction only are rank-deficient for two.
    plain = build(Box([0] * 3, [1] * 3), 2, PrivacyBudget(None), fraction_bits=16)
    assert plain.notes(after(plain, 1, [10**6, 0, 0, 0, 0, 0])) == (NOTES[0],)
    assert plain.notes(after(plain, 1, [10**6, 10**3, 0, 0, 0, 0])) == ()
    assert plain.notes(after(plain, 1, [0] * 6)) == (NOTES[0],)


PROJECTED = {
    "projection": np.array([[8, 0], [0, 8]]),
    "points": np.array([[-8, -8], [-8, -7], [8, 8], [8, 7], [0, 0], [1, 0]]),
}


def test_weights_decide_where_the_projected_centres_are():
    algorithm = build(DOMAINS["square"])
    heavy = after(algorithm, 2, np.array([90, 30, 50, 50, 4, -300]) * 8, PROJECTED)
    found = sorted(heavy.arrays["centers"].tolist())
    assert found == [[-8, -8], [8, 8]]  # -7.75 and 7.5, rounded
    assert algorithm.notes(heavy) == ()
    few = after(algorithm, 2, np.array([3, -9, 0, 0, 4.9, 90]) * 8, PROJECTED)
    np.testing.assert_array_equal(few.arrays["centers"], [[1, 0], [0, 0]])
    assert algorithm.notes(few) == (NOTES[3],)
    light = after(algorithm, 2, np.array([3, -9, 0, 0, 4.9, 0]) * 8, PROJECTED)
    assert algorithm.notes(light) == (NOTES[2],)
    alike = {**PROJECTED, "points": np.zeros((6, 2), np.int64)}
    assert algorithm.notes(after(algorithm, 2, np.full(6, 80), alike)) == (NOTES[4],)


def test_clusters_without_enough_records_are_lifted_from_their_projection():
    algorithm = build(DOMAINS["square"], budget=PrivacyBudget(None))
    arrays = {"projection": np.array([[0, 8], [8, 0]]), "centers": np.array([[5, -2], [3, 1]])}
    state = after(algorithm, 3, [30, -12, 9, 9, 3 * 8, 7], arrays)
    np.testing.assert_array_equal(state.arrays["centroids"], [[8, -4], [1, 3]])
    assert algorithm.notes(state) == (NOTES[5],)
    np.testing.assert_array_equal(algorithm.counts(state), [3, 7 / 8])


@pytest.mark.parametrize("sums", ["absolute", "relative"])
def test_lloyd_rounds_move_centroids_within_the_domain(sums):
    algorithm = build(DOMAINS["square"], budget=PrivacyBudget(None), sums=sums, alpha=1.0)
    arrays = {"centroids": np.array([[2, 3], [-1, 0]])}
    state = after(algorithm, 4, [20, -100, 9, 9, 4 * 8, 7], arrays)
    moved = [5, -8] if sums == "absolute" else [4, -5]  # within a radius of 8 = round(11.3 / √2)
    np.testing.assert_array_equal(state.arrays["centroids"], [moved, [-1, 0]])
    assert algorithm.notes(state) == (NOTES[6],)


def test_what_was_told_of_one_round_is_told_to_the_end():
    algorithm = build(DOMAINS["square"], budget=PrivacyBudget(None))
    first = after(algorithm, 4, [0] * 4 + [8, 0], {"centroids": np.array([[2, 3], [-1, 0]])})
    assert algorithm.notes(first) == (NOTES[6],)
    last = algorithm.update(first, algorithm.unflatten(np.array([0, 0, 0, 0, 80, 80]), 5), RNG(0))
    assert algorithm.notes(last) == (NOTES[6],)


def test_the_elbow_is_that_of_the_noisy_weights_in_the_users_units():
    algorithm = build(Ball(3.0, [0, 0]), min_weight=3.5)
    weights = np.array([90, 30, 50, 20, 4, -300])
    grid = PROJECTED["points"] * 1000  # finer than the centres, which lie on the grid
    state = after(algorithm, 2, weights * 8, {**PROJECTED, "points": grid})
    points = 3.0 * grid[:5] * 2.0**-algorithm.projection.exponent
    models = [KMeans(k, n_init=10, random_state=0) for k in (1, 2, 3, 4)]
    expected = [model.fit(points, sample_weight=weights[:5]).inertia_ for model in models]
    np.testing.assert_allclose(algorithm.elbow(state, 4, RNG(0)), expected, rtol=1e-5)
    assert expected[0] > 9 * 90  # which the weight of 4 and the scale make up


@pytest.mark.parametrize("clip", [None, 7.0])
def test_planned_noise_is_that_of_mechanism_and_clip(clip):
    unit, clients = ("record", {}) if clip is None else ("client", {"n_clients": 9, "clip": clip})
    mechanisms = {"lift-counts": "laplace"}
    budget = PrivacyBudget(1.0, unit=unit)
    algorithm = build(DOMAINS["square"], budget=budget, mechanisms=mechanisms, **clients)
    sums, counts = algorithm.plan().rounds[2]
    factor = 1.0 if clip is None else clip
    noise = algorithm.noise_of(3)
    assert noise["sums"] == pytest.approx(sums.noise_multiplier * factor * 8 * math.sqrt(2))
    # The variance of Laplace noise is twice the square of its scale.
    assert noise["counts"] == pytest.approx(counts.noise_multiplier * factor * 8 * math.sqrt(2))
    assert (sums.mechanism, counts.mechanism) == ("gaussian", "laplace")


@pytest.mark.parametrize("sums", ["absolute", "relative"])
def test_the_cost_is_corrected_for_the_noise_that_there_was(sums):
    """By the formulas of the guarantees, of which the correction grows with the variance."""
    algorithm = build(DOMAINS["square"], sums=sums, alpha=1.0, cost=True, n_lloyd_rounds=1)
    before, counts = np.array([[2, 3], [-1, 0]]), np.array([900, 700])
    means = np.array([[4, 1], [-3, 2]])
    moved = means if sums == "absolute" else before + means
    words = [*(counts[:, None] * means).ravel(), *(counts * 8), 2**14]
    state = after(algorithm, 4, words, {"centroids": before})
    np.testing.assert_array_equal(state.arrays["centroids"], moved)
    one, two = algorithm.cost_estimate(state), algorithm.cost_estimate(state, 2.0)
    noise = {name: std / 8 for name, std in algorithm.noise_of(4).items()}
    squares = (means**2).sum(axis=1) / 64
    bias = 2 * ((2 * noise["sums"] ** 2 + noise["counts"] ** 2 * squares) / counts).sum()
    # From the origin, or from the centroids before, a centroid lies where its mean says.
    value = 2**14 / 8 + counts.sum() / 16 - squares @ counts
    squared = noise["cost"] ** 2 + 4 * noise["sums"] ** 2 * squares.sum()
    error = math.sqrt(squared + noise["counts"] ** 2 * (squares**2).sum())
    scale = 0.5**2  # the box has a half width of 0.5
    assert one.value == pytest.approx(scale * (value + bias))
    assert two.value == pytest.approx(scale * (value + 4 * bias))
    assert one.standard_error == pytest.approx(scale * error)
    assert two.standard_error == pytest.approx(2 * scale * error)


@pytest.mark.parametrize("larger", ["sums", "counts"])
def test_noise_decides_how_many_records_a_mean_needs(larger):
    """That of the count, or that of the sum, whichever is larger."""
    shares = {"lift-sums": 1.0, "lift-counts": 1.0, f"lift-{larger}": 0.01}
    algorithm = build(DOMAINS["square"], fraction_bits=16, shares=shares)
    noise, one = algorithm.noise_of(3), 2.0**16
    assert noise[larger] == max(noise["sums"], noise["counts"])
    least = max(noise["sums"] / one, noise["counts"] / one)
    assert least > 5
    arrays = {"projection": np.eye(2, dtype=np.int64), "centers": np.array([[5, -2], [3, 1]])}
    counts = np.array([1.01, 0.99]) * least * one
    state = after(algorithm, 3, [*np.repeat(0.5 * counts, 2), *counts], arrays)
    np.testing.assert_array_equal(state.arrays["centroids"][0], [2**15, 2**15])
    assert np.abs(state.arrays["centroids"][1]).max() < 10


def test_a_decomposition_that_fails_is_told(monkeypatch):
    def fail(matrix):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(np.linalg, "eigh", fail)
    algorithm = build(DOMAINS["square"])
    state = after(algorithm, 1, [5, 6, 7])
    assert NOTES[1] in algorithm.notes(state)
    np.testing.assert_array_equal(state.arrays["projection"], [[8, 0], [0, 8]])


# ----------------------------------------------------------------- runs


def mixture(rng, k, d, n, std, outside=60):
    """Records of k Gaussians, and a server's points: 20 of each and uniform ones."""
    means = rng.uniform(0, 1, (k, d))
    records = np.concatenate([rng.normal(mean, std, (n // k, d)) for mean in means])
    near = [rng.normal(mean, std, (20, d)) for mean in means]
    return means, records, np.concatenate([*near, rng.uniform(0, 1, (outside, d))])


def run(algorithm, records, stream=None, rng=None):
    state = algorithm.initial_state()
    grid = GridRecords(records, algorithm.domain, algorithm.fraction_bits)
    plan, rng = algorithm.plan(), rng or RNG(0)
    for t in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        words = algorithm.flatten(algorithm.statistic(query, grid), t)
        if stream is not None:
            words = words + server_noise(algorithm, plan, query.round, stream)
        state = algorithm.update(state, algorithm.unflatten(words, t), rng)
    return state


@pytest.mark.parametrize("sums", ["absolute", "relative"])
@pytest.mark.parametrize("n_lloyd_rounds", [0, 2])
def test_without_noise_it_finds_the_means_of_separate_gaussians(sums, n_lloyd_rounds):
    means, records, server_data = mixture(RNG(1), 5, 8, 2000, 0.05)
    algorithm = build(
        Ball(2.0, [0.5] * 8),
        5,
        PrivacyBudget(None),
        server_data=server_data,
        fraction_bits=16,
        n_lloyd_rounds=n_lloyd_rounds,
        sums=sums,
        cost=n_lloyd_rounds > 0,
    )
    state = run(algorithm, records)
    # The mean of 400 records deviates by 8 * 0.05^2 / 400, squared; the rest is rounding.
    assert matched_centroid_error(algorithm.centroids(state), means) < 3e-4
    np.testing.assert_array_equal(np.sort(algorithm.counts(state)), np.full(5, 400))
    assert algorithm.notes(state) == ()
    if n_lloyd_rounds:
        estimate = algorithm.cost_estimate(state)
        assert estimate.users_units
        assert estimate.standard_error == 0
        exact = inertia(records, algorithm.centroids(state))
        assert estimate.value == pytest.approx(exact, rel=1e-3)


def test_server_points_need_not_be_near_every_cluster():
    means, records, server_data = mixture(RNG(2), 5, 8, 2000, 0.05)
    algorithm = build(
        Ball(2.0, [0.5] * 8), 5, PrivacyBudget(None), server_data=server_data[20:], fraction_bits=16
    )
    assert matched_centroid_error(algorithm.centroids(run(algorithm, records)), means) < 3e-4


@pytest.mark.parametrize("contribution", ["sums", "means"])
def test_clients_with_enough_records_find_the_means_too(contribution):
    means, records, server_data = mixture(RNG(6), 3, 6, 3000, 0.05)
    algorithm = build(
        Ball(2.0, [0.5] * 6),
        3,
        PrivacyBudget(8.0, unit="client"),
        server_data=server_data,
        n_records=3000,
        n_clients=600,
        fraction_bits=16,
        contribution=contribution,
        clips={"projection": 1.0},
    )
    shuffled = RNG(0).permutation(records)
    parts = [GridRecords(p, algorithm.domain, 16) for p in np.array_split(shuffled, 600)]
    state, plan = algorithm.initial_state(), algorithm.plan()
    stream = Stream.from_key(bytes(range(32)))
    for t in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        words = sum(algorithm.flatten(algorithm.answer(query, part), t) for part in parts)
        words = words + server_noise(algorithm, plan, query.round, stream)
        state = algorithm.update(state, algorithm.unflatten(words, t), RNG(0))
    assert matched_centroid_error(algorithm.centroids(state), means) < 0.1
    # Of 600 clients with five records each, most hold a given third of them.
    size = 1000 if contribution == "sums" else 600 * (1 - (2 / 3) ** 5)
    assert np.abs(algorithm.counts(state) - size).max() < 250


@pytest.mark.parametrize("mechanisms", ["gaussian", "laplace"])
def test_with_noise_it_comes_near_the_optimum(mechanisms):
    """A smaller version of the paper's mixture, with noise from a fixed key."""
    k, d = 5, 30
    _, records, server_data = mixture(RNG(3), k, d, 30_000, 0.5)
    algorithm = build(
        Ball(5.0, [0.5] * d),
        k,
        PrivacyBudget(1.0),
        server_data=server_data,
        n_records=30_000,
        fraction_bits=16,
        mechanisms=mechanisms,
        cost=True,
    )
    state = run(algorithm, records, Stream.from_key(bytes(range(32))))
    centroids = algorithm.centroids(state)
    best = np.array([part.mean(axis=0) for part in np.split(records, k)])
    found = inertia(records, centroids)
    assert found < 1.03 * inertia(records, best)
    assert algorithm.notes(state) == ()
    estimate = algorithm.cost_estimate(state)
    assert abs(estimate.value - found) < 6 * estimate.standard_error
    assert estimate.standard_error < 0.05 * found
    wider = algorithm.cost_estimate(state, 2.0)
    assert wider.standard_error == pytest.approx(2 * estimate.standard_error)
    assert wider.value > estimate.value
    sizes = algorithm.counts(state)
    assert np.abs(sizes - 6000).max() < 2000


def test_the_cost_is_in_the_users_units_where_there_are_some():
    records = RNG(0).uniform(0, 1, (200, 2)) * [10, 40]
    for domain, scale in (
        (Box([0, 0], [10, 40], scale="common"), 1.0),
        (Box([0, 0], [40, 40]), 1.0),
        (Ball(60.0, [5, 5]), 1.0),
        (Box([0, 0], [10, 40]), None),
    ):
        algorithm = build(
            domain,
            3,
            PrivacyBudget(None),
            server_data=records[:30],
            fraction_bits=16,
            cost=True,
            sums="absolute",
        )
        state = run(algorithm, records)
        estimate = algorithm.cost_estimate(state)
        assert estimate.users_units is (scale is not None)
        factor = np.ones(2) if scale else 1 / np.array([5.0, 20.0])
        exact = inertia(records * factor, algorithm.centroids(state) * factor)
        # The assignment is that of the round before, and so no better than the exact one.
        assert exact * (1 - 1e-3) <= estimate.value <= 1.2 * exact


def test_the_elbow_of_a_run_bends_at_the_number_of_clusters():
    _, records, server_data = mixture(RNG(4), 4, 8, 2000, 0.05, outside=0)
    algorithm = build(
        Ball(2.0, [0.5] * 8), 8, PrivacyBudget(None), server_data=server_data, fraction_bits=16
    )
    state = run(algorithm, records)
    costs = algorithm.elbow(state, 8, RNG(0))
    assert costs[3] < 0.2 * costs[2]
    assert costs[4] > 0.6 * costs[3]
    with pytest.raises(ConfigurationError, match="after round 2"):
        algorithm.elbow(algorithm.initial_state(), 8, RNG(0))
    for k_max, error in ((0, ConfigurationError), (-1, ConfigurationError), ("3", TypeError)):
        with pytest.raises(error, match="k_max"):
            algorithm.elbow(state, k_max, RNG(0))
