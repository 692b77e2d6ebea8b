"""PE-means as pure mathematics: its units, its queries, and whole runs without messages."""

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from processors import outputs

from flower_kmeans.algorithms import (
    HDPEMeansAlgorithm,
    PEMeansAlgorithm,
    Query,
    State,
    algorithm_from_config,
)
from flower_kmeans.algorithms.pe_means import NOT_LIFTED, NOTES
from flower_kmeans.algorithms.pe_means_population import variations as candidates
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.metrics import inertia, matched_centroid_error
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise

BUDGET = PrivacyBudget(1.0)
RNG = np.random.default_rng
Q = 3  # a grid small enough to enumerate
WIDE = 17  # columns, one more than a projection has

DOMAINS = {
    "line": Box([0], [1]),
    "square": Box([0, 0], [1, 1]),
    "rectangle": Box([0, 0], [4, 3], scale="common"),
    "disc": Ball(2.0, [0, 0]),
    "sphere": Ball(1.0, [0] * WIDE),
    "corner": Box([0] * WIDE, [1] * WIDE),
}


def build(domain, k=2, budget=BUDGET, **options):
    projects = domain.n_features > 16
    options = {"n_records": 100, "fraction_bits": Q, "n_vote_rounds": 3, **options}
    options = {"n_variations": 3, **options}
    return (HDPEMeansAlgorithm if projects else PEMeansAlgorithm)(k, domain, budget, **options)


def grid_points(domain):
    if domain.n_features > 2:  # axes, corners, and something in between
        widths = domain.grid_half_widths(Q)
        points = [sign * np.eye(WIDE) * widths for sign in (1, -1)]
        points.append(RNG(0).choice([-1, 1], (40, WIDE)) * widths)
        points.append(RNG(1).integers(-widths, widths + 1, (40, WIDE)))
        points = np.concatenate(points).astype(np.int64)
    else:
        axes = [range(-int(g), int(g) + 1) for g in domain.grid_half_widths(Q)]
        points = np.array(list(itertools.product(*axes)), dtype=np.int64)
    if isinstance(domain, Ball):
        points = points[(points**2).sum(axis=1) <= 4**Q]
    return points


def answer(algorithm, query, points):
    rows = np.reshape(points, (-1, algorithm.domain.n_features))
    records = GridRecords.from_grid(rows, algorithm.fraction_bits)
    return algorithm.flatten(algorithm.answer(query, records), query.round)


def centers_in(algorithm, rng):
    """Random centres of a query, and extreme ones."""
    space, k = algorithm.space, algorithm.n_clusters
    limit = np.array(space.half_widths)
    wild = rng.integers(-limit, limit + 1, size=(k, len(limit)))
    return space.cut(wild.astype(float)).astype(np.int64)


def queries(algorithm, seed):
    """Queries of every round."""
    rng = RNG(seed)
    yield Query(1)
    for t in range(2, algorithm.n_rounds + 1):
        for variations in (1, algorithm.most_variations):
            arrays = {"centers": centers_in(algorithm, rng)}
            if t <= algorithm.n_vote_rounds:
                arrays["variations"] = np.array([variations])
                arrays["seed"] = rng.integers(-(2**63), 2**63 - 1, size=2)
            yield Query(t, arrays)


# ----------------------------------------------------------------- units


@pytest.mark.parametrize("name", DOMAINS)
def test_one_record_changes_each_release_by_its_unit_at_most(name):
    domain = DOMAINS[name]
    algorithm, records, largest = build(domain), grid_points(domain), {}
    others = records[::7]
    held = np.vstack([others, others[:1]])
    for query in (q for seed in range(2) for q in queries(algorithm, seed)):
        algorithm.check_query(query)
        units, places = algorithm.units(query.round), algorithm.places(query.round)
        before, changes = answer(algorithm, query, others), []
        for record in records:
            held[-1] = record
            changes.append(answer(algorithm, query, held) - before)
        changes = np.array(changes) / units
        for release in algorithm.releases(query.round):
            (place,) = (places[block] for block in release.blocks)
            sizes = np.abs(changes[:, place])
            if release.name != "lift-sums":
                assert (sizes.sum(axis=1) == 1).all()  # in l1 too, and no record abstains
            norm = np.linalg.norm(sizes, axis=1).max()
            largest[release.name] = max(largest.get(release.name, 0.0), norm)
    assert set(largest) == {r.name for r in algorithm.plan().releases}
    assert ("lift-sums" in largest) == (domain.n_features == WIDE)
    for release, norm in largest.items():
        assert 1 - 1e-12 <= norm <= 1 + 1e-12, release


def test_every_word_has_a_unit():
    algorithm = build(DOMAINS["corner"])
    for query in queries(algorithm, 0):
        units = algorithm.units(query.round)
        assert units.shape == (algorithm.words(query.round),)
        assert units.dtype == np.float64


def test_every_block_belongs_to_one_release_and_all_noise_is_alike():
    algorithm = build(DOMAINS["sphere"])
    for t, releases in enumerate(algorithm.plan().rounds, start=1):
        named = [name for release in releases for name in release.blocks]
        assert sorted(named) == sorted(block.name for block in algorithm.layout(t))
    multipliers = {release.noise_multiplier for release in algorithm.plan().releases}
    assert len(multipliers) == 1
    # T releases of 1 / sigma are sqrt T / sigma together; T is two more than rounds of votes.
    assert algorithm.plan().mu == pytest.approx(math.sqrt(5) / multipliers.pop())


@pytest.mark.parametrize("name", ["disc", "sphere"])
def test_no_records_add_zeros_and_answers_add_up(name):
    algorithm = build(DOMAINS[name])
    points = grid_points(DOMAINS[name])
    for query in queries(algorithm, 2):
        nothing = answer(algorithm, query, [])
        assert nothing.dtype == np.int64
        assert not nothing.any()
        parts = [answer(algorithm, query, part) for part in np.array_split(points, 7)]
        np.testing.assert_array_equal(sum(parts), answer(algorithm, query, points))


def test_records_outside_the_bounds_count_as_records_on_them():
    algorithm = build(Box([0, 0], [1, 1]))
    far = GridRecords(np.array([[1e9, -1e300], [0.5, 7.0]]), algorithm.domain, Q)
    near = GridRecords(np.array([[1.0, 0.0], [0.5, 1.0]]), algorithm.domain, Q)
    for query in queries(algorithm, 3):
        for name, block in algorithm.statistic(query, far).blocks.items():
            np.testing.assert_array_equal(block, algorithm.statistic(query, near).blocks[name])


def test_words_of_candidates_that_were_halved_away_get_no_votes():
    algorithm = build(DOMAINS["disc"])
    for query in queries(algorithm, 5):
        if query.round > 1 and query.arrays["variations"][0] == 1:
            words = answer(algorithm, query, grid_points(algorithm.domain))
            assert len(words) == 2 * (3 + 1)
            assert not words[4:].any()
            assert words[:4].any()


# ----------------------------------------------------------------- whole clients

FINE = 12  # truncation costs little here
CLIENTS = PrivacyBudget(1.0, unit="client")


def for_clients(domain, **options):
    return build(domain, budget=CLIENTS, **{"fraction_bits": FINE, "n_clients": 10, **options})


@pytest.mark.parametrize("options", [{}, {"clip": 2.0}, {"clips": {"votes": 0.75}}])
@pytest.mark.parametrize("name", ["line", "disc", "sphere"])
def test_one_client_changes_each_release_by_its_unit_at_most(name, options):
    domain = DOMAINS[name]
    algorithm, largest = for_clients(domain, **options), {}
    points = grid_points(domain) << (FINE - Q)
    some = points[np.unique(np.linspace(0, len(points) - 1, 5).astype(int))]
    clients = [points[:0], some, np.repeat(some, 200, axis=0)]
    clients += [np.repeat(record[None], 300, axis=0) for record in some]
    for query in (q for seed in range(2) for q in queries(algorithm, seed)):
        units, places = algorithm.units(query.round), algorithm.places(query.round)
        for records in clients:
            words = answer(algorithm, query, records)
            assert len(records) or not words.any()
            for release in algorithm.releases(query.round):
                (place,) = (places[block] for block in release.blocks)
                norm = np.linalg.norm(words[place] / units[place])
                assert norm <= 1 + 1e-12
                largest[release.name] = max(largest.get(release.name, 0.0), norm)
    for release, norm in largest.items():
        assert norm >= 0.97, release


def test_votes_have_a_clip_of_their_own():
    algorithm = for_clients(DOMAINS["sphere"])
    assert dict(algorithm.clips) == {
        "votes": math.sqrt(10),
        "lift-sums": 10.0,
        "lift-counts": 10.0,
    }
    assert dict(for_clients(DOMAINS["disc"], clip=7.0).clips) == {"votes": 7.0}
    assert dict(for_clients(DOMAINS["disc"], clips={"votes": 3.0}).clips) == {"votes": 3.0}
    assert build(DOMAINS["disc"]).clips == ()
    record, clients = build(DOMAINS["disc"], fraction_bits=FINE), algorithm
    multipliers = [a.plan().rounds[0][0].noise_multiplier for a in (record, clients)]
    ratio = clients.noise_of(1)["counts"] / record.noise_of(1)["counts"]
    assert ratio == pytest.approx(math.sqrt(10) * multipliers[1] / multipliers[0])


# ----------------------------------------------------------------- queries


def changed(query, key, array):
    return Query(query.round, {**query.arrays, key: array})


@pytest.mark.parametrize("name", ["rectangle", "disc", "sphere"])
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
            lacking = {k: v for k, v in query.arrays.items() if k != key}
            wrong += [
                Query(query.round, lacking),
                changed(query, key, array.astype(np.int32)),
                changed(query, key, array.astype(np.float64)),
                changed(query, key, array[:-1]),
                changed(query, key, array[None]),
                changed(query, key, array.tolist()),
            ]
            if key != "seed":
                _, low, high = algorithm.query_ranges(query.round)[key]
                for limit in (np.asarray(low) - 1, np.asarray(high) + 1, -(2**63), 2**63 - 1):
                    beyond = array.copy()
                    beyond[0] = limit
                    wrong.append(changed(query, key, beyond))
        for bad in wrong:
            with pytest.raises(MessageError, match=r"^The query of a round is not one of its"):
                algorithm.check_query(bad)


def test_the_seed_of_a_question_is_the_key_of_its_variations():
    """Both words of it, as 128 bits without a sign."""
    algorithm = build(DOMAINS["disc"], fraction_bits=16)
    centers = np.array([[0, 0], [5, 9]])
    for low, high in ((3, 0), (0, 3), (-1, -(2**63)), (2**63 - 1, 7)):
        arrays = {"centers": centers, "variations": np.array([2])}
        query = Query(2, {**arrays, "seed": np.array([low, high])})
        algorithm.check_query(query)
        key = low % 2**64 + 2**64 * (high % 2**64)
        expected = list(candidates(centers, 2, key, algorithm.space))
        for found, block in zip(algorithm._population(query), expected, strict=True):
            np.testing.assert_array_equal(found, block)


def test_centres_in_the_corners_of_a_ball_are_refused():
    algorithm = build(DOMAINS["disc"])
    arrays = {"variations": np.array([1]), "seed": np.zeros(2, np.int64)}
    algorithm.check_query(Query(2, {"centers": np.array([[8, 0], [0, -8]]), **arrays}))
    with pytest.raises(MessageError):
        algorithm.check_query(Query(2, {"centers": np.array([[8, 0], [1, -8]]), **arrays}))


@pytest.mark.parametrize("n_variations", [1, 50, 2000])
def test_a_question_does_not_grow_with_the_population(n_variations):
    algorithm = build(DOMAINS["disc"], n_variations=n_variations, fraction_bits=16)
    state = algorithm.initial_state()
    assert not algorithm.query(state).arrays
    zeros = algorithm.unflatten(np.zeros(algorithm.words(1), np.int64), 1)
    query = algorithm.query(algorithm.update(state, zeros, RNG(0)))
    algorithm.check_query(query)
    assert {key: a.size for key, a in query.arrays.items()} == {
        "centers": 4,
        "variations": 1,
        "seed": 2,
    }
    assert algorithm.words(2) == 2 * (n_variations + 1)


@pytest.mark.parametrize("name", ["disc", "sphere"])
def test_a_client_answers_with_the_algorithm_of_the_document(name):
    server = build(DOMAINS[name], seed=5)
    client = algorithm_from_config(server.to_config(), server.domain, server.budget)
    assert (type(client), client, hash(client)) == (type(server), server, hash(server))
    assert client.plan() == server.plan()
    state, points = server.initial_state(), grid_points(server.domain)
    for t in range(1, server.n_rounds + 1):
        query = server.query(state)
        client.check_query(query)
        words = answer(server, query, points)
        np.testing.assert_array_equal(answer(client, query, points), words)
        state = server.update(state, server.unflatten(words, t), RNG(0))


# ----------------------------------------------------------------- updates


INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-(2**63), 2**63 - 1, 0, 2**16, -1, 40, 80]
)


@pytest.mark.parametrize("name", ["rectangle", "disc", "sphere"])
@pytest.mark.parametrize("budget", [BUDGET, PrivacyBudget(None)])
@settings(max_examples=15, deadline=None)
@given(words=arrays(np.int64, (4, 36), elements=INT64), answered=st.sampled_from([1.0, 0.9, 0.01]))
def test_update_accepts_any_integers(name, budget, words, answered):
    algorithm = build(DOMAINS[name], budget=budget)
    d = algorithm.domain.n_features
    state = algorithm.initial_state()
    assert algorithm.centroids(state) is algorithm.counts(state) is None
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for t, vector in enumerate(words[: algorithm.n_rounds], start=1):
            statistic = algorithm.unflatten(vector[: algorithm.words(t)], t, answered)
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
                answer(algorithm, query, grid_points(algorithm.domain)[:5])
    centroids, counts = algorithm.centroids(state), algorithm.counts(state)
    assert centroids.shape == (2, d)
    assert counts.shape == (2,)
    scaled = algorithm.domain.to_unit(centroids.copy())
    np.testing.assert_allclose(algorithm.domain.from_unit(scaled), centroids, atol=1e-9)


def test_updates_draw_from_seed_and_round_alone():
    results = []
    for seed, rng in ((1, None), (1, RNG(5)), (2, None)):
        algorithm = build(DOMAINS["disc"], seed=seed, n_variations=40, fraction_bits=16)
        ones = algorithm.unflatten(np.full(algorithm.words(1), 2**17), 1)
        state = algorithm.update(algorithm.initial_state(), ones, rng)
        results.append((state.arrays["centers"].tolist(), state.arrays["seed"].tolist()))
    assert results[0] == results[1]
    assert results[0][0] != results[2][0]
    assert results[0][1] != results[2][1]
    later = algorithm.unflatten(np.full(algorithm.words(2), 2**17), 2)
    assert algorithm.update(state, later).arrays["seed"].tolist() != results[2][1]


REPLAY = """
import hashlib
import numpy as np
from flower_kmeans import Ball, Box, PrivacyBudget
from flower_kmeans.algorithms import HDPEMeansAlgorithm, PEMeansAlgorithm
from flower_kmeans.initialization import public_words, random_words
digest, source = hashlib.sha256(), public_words(9)
for cls, domain in (
    (PEMeansAlgorithm, Ball(3.0, [0.5] * 5)),
    (PEMeansAlgorithm, Box([-1, 0, 2], [1, 8, 3])),
    (HDPEMeansAlgorithm, Ball(1.0, [0.0] * 40)),
):
    algorithm = cls(
        6, domain, PrivacyBudget(1.0), n_records=5000, n_vote_rounds=4, n_variations=150
    )
    state = algorithm.initial_state()
    for t in range(1, algorithm.n_rounds + 1):
        words = random_words(source, algorithm.words(t)).view(np.int64) >> 39
        for answered in (0.75, 1.0):
            following = algorithm.update(state, algorithm.unflatten(words, t, answered))
            for name, array in sorted(following.arrays.items()):
                assert array.dtype == np.int64, name
                digest.update(array.astype("<i8").tobytes())
        state = following
print(digest.hexdigest())
"""


def test_every_processor_computes_the_same_states():
    digest = "c257cb7ff79b16a89b85a01d7f7e70dc3e067176404d7882e67c4767f8c32084"
    assert set(outputs(REPLAY)) == {digest}


def round_of(algorithm, votes, state=None, seed=0, answered=1.0):
    """The state after a round in which candidates got so many votes."""
    state = algorithm.initial_state() if state is None else state
    words = np.zeros(algorithm.words(state.round + 1), dtype=np.int64)
    words[: len(votes)] = np.rint(np.asarray(votes) * 2.0**algorithm.fraction_bits)
    statistic = algorithm.unflatten(words, state.round + 1, answered)
    return algorithm.update(state, statistic, RNG(seed))


def population(algorithm, state):
    return np.concatenate(list(algorithm._population(algorithm.query(state))))


def test_selection_is_weighted_k_means_of_what_the_zeroing_rule_keeps():
    algorithm = build(DOMAINS["disc"], n_variations=4, fraction_bits=16, n_records=100)
    state = algorithm.initial_state()
    points = population(algorithm, state)
    far = np.argsort(points[:, 0])
    votes = np.full(8, 5.0)
    # The two at either end get 101 votes together; the zeroing rule keeps nothing else.
    votes[far[[0, 1, -1]]] = [30, 20, 51]
    state = round_of(algorithm, votes)
    left = (30 * points[far[0]] + 20 * points[far[1]]) / 50
    found = state.arrays["centers"][np.argsort(state.arrays["centers"][:, 0])]
    np.testing.assert_allclose(found, [left, points[far[-1]]], atol=2)
    assert sorted(algorithm.counts(state)) == [50, 51]


def test_the_zeroing_rule_wants_no_votes_of_clients_that_did_not_answer():
    """Noise that fills up what is missing is kept where N votes are waited for, and no longer."""
    algorithm = build(DOMAINS["disc"], n_variations=4, fraction_bits=16, n_records=100)
    votes = [40.0, 5.0, -5.0, 0, 15.0, 0, 0, 0]
    assert sum(algorithm.counts(round_of(algorithm, votes))) == 60
    assert sum(algorithm.counts(round_of(algorithm, votes, answered=0.5))) == 55


def test_variations_are_halved_exactly_when_noise_exceeds_the_signal():
    """Line 8, with the noise of all candidates: sum of kept squares against |S| sigma^2."""
    algorithm = build(DOMAINS["disc"], n_variations=6, fraction_bits=16, n_records=10**6)
    noise = algorithm.noise_of(1)["counts"] / 2**16
    assert algorithm.n_start == 12
    for factor, expected in ((1.01, 6), (0.99, 3)):
        size = math.sqrt(factor * 12) * noise
        state = round_of(algorithm, [0, size / math.sqrt(2), 0, size / math.sqrt(2)])
        assert state.arrays["variations"].tolist() == [expected]
        assert (NOTES[1] in algorithm.notes(state)) == (expected == 3)
        assert len(population(algorithm, state)) == 2 * (expected + 1)
    # Of the smaller population, words beyond it are nothing but noise and do not count.
    votes = np.full(algorithm.words(2), 1e6)
    votes[:8] = 0
    again = round_of(algorithm, votes, state)
    np.testing.assert_array_equal(again.arrays["centers"], state.arrays["centers"])
    assert again.arrays["variations"].tolist() == [1]
    assert NOTES[2] in algorithm.notes(again)
    assert round_of(algorithm, votes, again).arrays["variations"].tolist() == [1]


def test_without_noise_nothing_is_halved():
    algorithm = build(DOMAINS["disc"], budget=PrivacyBudget(None), n_variations=6)
    state = round_of(algorithm, [0, 1, 0, 1])
    assert state.arrays["variations"].tolist() == [6]
    assert algorithm.notes(state) == ()


def test_fewer_candidates_than_clusters_with_votes_are_told():
    algorithm = build(DOMAINS["disc"], k=3, n_variations=4, fraction_bits=16)
    state = round_of(algorithm, [0, 0, 0, 90, 0, 0])
    points = population(algorithm, algorithm.initial_state())
    rows = {tuple(row) for row in state.arrays["centers"].tolist()}
    assert rows == {tuple(row) for row in points[[0, 1, 3]].astype(int).tolist()}
    assert NOTES[3] in algorithm.notes(state)
    assert sorted(algorithm.counts(state)) == [0, 0, 90]
    # Later the first candidates are the centroids themselves.
    nothing = round_of(algorithm, [], state)
    np.testing.assert_array_equal(nothing.arrays["centers"], state.arrays["centers"])


def test_without_any_votes_the_first_candidates_are_the_centroids():
    """Also of more candidates than a sort moves by insertion."""
    algorithm = build(DOMAINS["disc"], k=4, n_variations=25, fraction_bits=16)
    state = round_of(algorithm, [])
    points = population(algorithm, algorithm.initial_state())
    np.testing.assert_array_equal(state.arrays["centers"], points[:4])
    assert NOTES[2] in algorithm.notes(state)


@pytest.mark.parametrize(
    ("binds", "budget", "options"),
    [
        ("one record", PrivacyBudget(None), {}),
        ("length", BUDGET, {}),
        ("count", PrivacyBudget(1.0, unit="client"), {"n_clients": 50, "clip": 2.0}),
    ],
)
def test_the_last_round_divides_by_counts_that_are_worth_their_noise(binds, budget, options):
    """Noise of a mean no longer than the radius, and a count above its noise, and a record."""
    if "clip" in options:
        options = {**options, "clips": {"lift-counts": 40.0}}
    domain = Box([-1] * 40, [1] * 40)
    options = {"n_records": 10**4, "fraction_bits": 16, "n_vote_rounds": 1, **options}
    algorithm = build(domain, budget=budget, **options)
    noise = algorithm.noise_of(2)
    bounds = {
        "one record": 1.0,
        "length": noise["sums"] * math.sqrt(40) / (math.sqrt(40) * 2**16),
        "count": noise["counts"] / 2**16,
    }
    least = bounds.pop(binds)
    assert least > 1.001 * max(bounds.values())
    centers = np.array([[2**14] * 16, [-(2**13)] * 16])
    arrays = {"centers": centers, "flags": np.zeros(len(NOTES), dtype=bool)}
    for factor, usable in ((1.0005, True), (0.9995, False)):
        counts = np.array([factor * least, 1e6])
        words = np.concatenate([np.zeros(80), np.rint(counts * 2**16)]).astype(np.int64)
        state = algorithm.update(State(1, arrays), algorithm.unflatten(words, 2))
        assert (NOTES[NOT_LIFTED] in algorithm.notes(state)) is not usable
        assert (not state.arrays["centroids"][0].any()) is usable


def test_the_last_round_lifts_centroids_or_leaves_them_where_the_projection_has_them():
    domain = Ball(1.0, [0.0] * 40)
    algorithm = build(domain, fraction_bits=16, n_vote_rounds=1, budget=PrivacyBudget(None))
    centers = np.array([[2**14] * 16, [-(2**13)] * 16])
    flags = np.zeros(len(NOTES), dtype=bool)
    before = State(1, {"centers": centers, "counts": np.zeros(2), "flags": flags})
    sums = np.zeros((2, 40), np.int64)
    sums[0, 0] = 10 * 2**15
    words = np.concatenate([sums.ravel(), [10 * 2**16, 0]])
    state = algorithm.update(before, algorithm.unflatten(words, 2), RNG(0))
    centroids = algorithm.centroids(state)
    np.testing.assert_allclose(centroids[0], np.eye(40)[0] / 2, atol=1e-4)
    assert algorithm.notes(state) == (NOTES[4],)
    np.testing.assert_array_equal(algorithm.counts(state), [10, 0])
    # A transposed projection lengthens by 40 / 16 on average.
    exponent = algorithm.projection.exponent
    back = centers[1] @ algorithm.matrix.T / 2**exponent * 16 / 40
    np.testing.assert_allclose(state.arrays["centroids"][1], back, atol=0.5 + 1e-9)


def test_projections_keep_lengths_on_average():
    """The scale is 1 / sqrt p of the projection's columns, not 1 / sqrt d."""
    ratios = []
    for seed in range(20):
        algorithm = build(Ball(1.0, [0.0] * 100), fraction_bits=16, seed=seed)
        x = RNG(seed).normal(size=(50, 100))
        seen = x @ (algorithm.matrix / 2**16)
        ratios.extend((seen**2).sum(axis=1) / (x**2).sum(axis=1))
        assert algorithm.matrix.shape == (100, 16)
    # Each ratio has the variance 2 / 16, and those of a seed are nearly independent.
    assert abs(np.mean(ratios) - 1) < 7 * math.sqrt(2 / 16 / len(ratios)) * 3


# ----------------------------------------------------------------- runs


def run(algorithm, records, stream=None, clients=1):
    state, plan = algorithm.initial_state(), algorithm.plan()
    parts = np.array_split(RNG(0).permutation(records), clients)
    grids = [GridRecords(part, algorithm.domain, algorithm.fraction_bits) for part in parts]
    for t in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        words = sum(algorithm.flatten(algorithm.answer(query, grid), t) for grid in grids)
        if stream is not None:
            words = words + server_noise(algorithm, plan, query.round, stream)
        state = algorithm.update(state, algorithm.unflatten(words, t), RNG(t))
    return state


def gaussians(k, d, n, std, seed):
    angles = 2 * np.pi * np.arange(k) / k
    means = np.zeros((k, d))
    means[:, :2] = 0.7 * np.column_stack([np.cos(angles), np.sin(angles)])
    rng = RNG(seed)
    return means, np.concatenate([rng.normal(mean, std, (n // k, d)) for mean in means])


@pytest.mark.parametrize("d", [2, 40])
def test_without_noise_it_finds_the_means_of_separate_gaussians(d):
    means, records = gaussians(4, d, 2000, 0.02, 7)
    algorithm = build(
        Ball(1.0, [0.0] * d),
        4,
        PrivacyBudget(None),
        n_records=2000,
        fraction_bits=16,
        n_vote_rounds=5,
        n_variations=200,
    )
    state = run(algorithm, records)
    assert matched_centroid_error(algorithm.centroids(state), means) < 2e-3
    np.testing.assert_array_equal(np.sort(algorithm.counts(state)), [500] * 4)
    assert algorithm.notes(state) == ()


@pytest.mark.parametrize("clients", [None, 300])
@pytest.mark.parametrize("d", [3, 40])
def test_with_noise_it_comes_near_the_optimum(d, clients):
    _, records = gaussians(3, d, 6000, 0.05, 9)
    unit = {} if clients is None else {"unit": "client"}
    options = {} if clients is None else {"n_clients": clients}
    algorithm = build(
        Ball(1.0, [0.0] * d),
        3,
        PrivacyBudget(8.0 if clients else 1.0, **unit),
        n_records=6000,
        fraction_bits=16,
        n_vote_rounds=6,
        n_variations=200,
        **options,
    )
    state = run(algorithm, records, Stream.from_key(bytes(range(32))), clients or 1)
    best = inertia(records, np.array([part.mean(axis=0) for part in np.split(records, 3)]))
    assert inertia(records, algorithm.centroids(state)) < 1.25 * best
    assert NOTES[2] not in algorithm.notes(state)


@pytest.mark.parametrize("box", [Box([-1, 0], [1, 8]), Box([-1, 0], [1, 8], scale="common")])
def test_a_box_is_taken_as_a_part_of_its_enclosing_ball(box):
    algorithm = build(box, fraction_bits=16)
    widths = box.grid_half_widths(16)
    assert algorithm.space.half_widths == tuple(widths)
    assert algorithm.space.radius == math.isqrt(int((widths**2).sum()))
    records = np.repeat([[-0.5, 2.0], [0.5, 6.0]], 100, axis=0)
    plain = build(box, budget=PrivacyBudget(None), n_variations=200, fraction_bits=16)
    state = run(plain, records)
    np.testing.assert_allclose(
        np.sort(plain.centroids(state), axis=0), [[-0.5, 2], [0.5, 6]], atol=0.2
    )


def test_columns_to_project_are_more_than_those_of_a_projection():
    with pytest.raises(ConfigurationError, match=r"more than 16 columns.*take PE-means"):
        HDPEMeansAlgorithm(2, Ball(1.0, [0] * 16), BUDGET, n_records=100)
