"""SynopsisKMeans as pure mathematics: its units, its queries, and whole runs without messages."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flower_kmeans.algorithms import Query, State, SynopsisAlgorithm
from flower_kmeans.algorithms.cells import cell_sums
from flower_kmeans.algorithms.synopsis import (
    BLIND,
    FEW,
    HELD,
    LIGHT,
    NO_CELL,
    NO_SIGNAL,
    NOTES,
    REAL_BITS,
)
from flower_kmeans.algorithms.synopsis_model import (
    Answers,
    Noise,
    Partition,
    learned,
    mean_norm,
    partition,
    prior,
    select,
    spectrum,
)
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.errors import MessageError
from flower_kmeans.initialization import round_words
from flower_kmeans.metrics import inertia, matched_centroid_error
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise

BUDGET = PrivacyBudget(1.0)
CLIENTS = PrivacyBudget(1.0, unit="client")
RNG = np.random.default_rng
Q = 3  # a grid small enough to enumerate
FINE = 12  # truncation costs little here

DOMAINS = {
    "line": Box([0], [1]),
    "square": Box([0, 0], [1, 1]),
    "rectangle": Box([0, 0], [4, 3], scale="common"),
    "disc": Ball(2.0, [0, 0]),
    "cube": Box([0] * 3, [1] * 3),
}


def build(domain, k=2, budget=BUDGET, **options):
    return SynopsisAlgorithm(
        k, domain, budget, **{"n_records": 1000, "fraction_bits": Q, **options}
    )


def blind(domain, k=2, **options):
    """Without second moments, and in fewer directions than there are columns if possible."""
    algorithm = build(domain, k, **options)
    p = max(1, domain.n_features - 1)
    return build(
        domain, k, schedule=replace(algorithm.schedule, moments=False, n_directions=p), **options
    )


def grid_points(domain):
    axes = [range(-int(g), int(g) + 1) for g in domain.grid_half_widths(Q)]
    points = np.array(list(itertools.product(*axes)), dtype=np.int64)
    if isinstance(domain, Ball):
        points = points[(points**2).sum(axis=1) <= 4**Q]
    if domain is DOMAINS["cube"]:  # enough to reach corners
        points = points[np.isin(points, [-8, -7, -4, 0, 4, 8]).all(axis=1)]
    return points


def answer(algorithm, query, points):
    q = algorithm.fraction_bits
    records = GridRecords.from_grid(np.reshape(points, (-1, algorithm.domain.n_features)), q)
    return algorithm.flatten(algorithm.statistic(query, records), query.round)


def queries(algorithm, seed):
    """Whatever a server may ask, of extreme and of random arrays."""
    rng, one = RNG(seed), 2**algorithm.fraction_bits
    yield Query(1)
    for t, trial in itertools.product(range(2, algorithm.n_rounds + 1), range(3)):
        found = {}
        for key, (shape, low, high) in algorithm.query_ranges(t).items():
            low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
            if trial == 2:  # among the records, and small
                most = one // 2 if key.startswith("radi") else one
                low, high = np.maximum(low, -one), np.minimum(high, most)
            wild = rng.integers(low, high + 1)
            end = np.where(rng.random(shape) < 0.5, low, high)
            found[key] = np.where(rng.random(shape) < 0.5 * trial % 1, end, wild)
        if trial == 2 and "projection" in found:
            d, p = found["projection"].shape
            found["projection"] = algorithm.projection.matrix(np.eye(d, p))
        yield Query(t, found)


# ----------------------------------------------------------------- units


@pytest.mark.parametrize("make", [build, blind])
@pytest.mark.parametrize("name", DOMAINS)
def test_one_record_changes_each_release_by_its_unit_at_most(name, make):
    """Jointly over its blocks. And all releases of a round together by its part of mu^2 at most."""
    domain = DOMAINS[name]
    algorithm = make(domain)
    records = grid_points(domain)
    others, largest, joint, alone = records[::7], {}, {}, {}
    held = np.vstack([others, others[:1]])
    for query in queries(algorithm, 0):
        algorithm.check_query(query)
        t = query.round
        units, places = algorithm.units(query.round), algorithm.places(t)
        before, changes = answer(algorithm, query, others), []
        for record in records:
            held[-1] = record
            changes.append(answer(algorithm, query, held) - before)
        changes, releases = np.array(changes) / units, algorithm.releases(t)
        together = np.zeros(len(records))
        for release in releases:
            words = np.concatenate([places[block] for block in release.blocks])
            norms = np.linalg.norm(changes[:, words], axis=1)
            largest[release.name] = max(largest.get(release.name, 0.0), norms.max())
            together += (norms * release.cost) ** 2
            for block in release.blocks:
                norm = np.linalg.norm(changes[:, places[block]], axis=1).max()
                alone[release.name, block] = max(alone.get((release.name, block), 0.0), norm)
        share = sum(release.cost**2 for release in releases)
        joint[t] = max(joint.get(t, 0.0), together.max() / share)
    assert set(largest) == {r.name for r in algorithm.plan().releases}
    for release, norm in largest.items():
        assert norm <= 1 + 1e-12, release
        assert norm >= 1 - 1e-12, release
    for t, norm in joint.items():
        assert 1 - 1e-12 <= norm <= 1 + 1e-12, t
    # Each block has all of its part of the joint bound: sums and slacks the same part.
    for block, part in algorithm.schedule.parts(2, domain.n_features).items():
        assert alone["synopsis", block] == pytest.approx(math.sqrt(part), rel=1e-12)


def test_every_residual_and_its_slack_stay_within_one_unit_together():
    """All integers of a cell on a line: residual and slack over q bits, for every radius."""
    algorithm = build(DOMAINS["line"])
    reach, most = np.arange(-40, 41), 0.0
    for radius in range(1, 41):
        for offset in reach:
            found = cell_sums(
                GridRecords.from_grid([[offset]], 6),
                np.zeros((1, 1), np.int64),
                np.array([radius]),
                Q,
            )
            words = {"sums": found.sums, "counts": found.counts << Q, "slacks": found.slacks}
            units = algorithm._block_units(2)
            norm = sum(float((words[name] ** 2).sum()) / units[name] ** 2 for name in words)
            assert norm <= 1
            most = max(most, norm)
    assert most >= 1 - 1e-12


def test_every_word_has_a_unit():
    for algorithm in (build(DOMAINS["square"]), blind(DOMAINS["cube"])):
        for query in queries(algorithm, 0):
            units = algorithm.units(query.round)
            assert units.shape == (algorithm.words(query.round),)
            assert units.dtype == np.float64
            assert (units > 0).all()


def test_every_block_belongs_to_one_release():
    algorithm = build(DOMAINS["square"])
    for t, releases in enumerate(algorithm.plan().rounds, start=1):
        named = [name for release in releases for name in release.blocks]
        assert sorted(named) == sorted(block.name for block in algorithm.layout(t))


def test_no_records_add_zeros():
    for algorithm in (build(DOMAINS["square"]), blind(DOMAINS["square"])):
        for query in queries(algorithm, 2):
            found = answer(algorithm, query, [])
            assert found.dtype == np.int64
            assert not found.any()


def test_records_outside_the_bounds_count_as_records_on_them():
    for algorithm in (build(DOMAINS["square"]), blind(DOMAINS["square"])):
        far = GridRecords(np.array([[1e9, -1e300], [0.5, 7.0]]), algorithm.domain, Q)
        near = GridRecords(np.array([[1.0, 0.0], [0.5, 1.0]]), algorithm.domain, Q)
        for query in queries(algorithm, 3):
            found = [algorithm.statistic(query, records).blocks for records in (far, near)]
            for name in found[0]:
                np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("make", [build, blind])
def test_answers_add_up_to_that_of_the_pooled_records(make):
    q, d = 16, 9
    algorithm = make(Box([-1] * d, [1] * d), 3, fraction_bits=q)
    points = RNG(0).integers(-(2**q), 2**q + 1, size=(60, d))
    for query in queries(algorithm, 1):
        alone = [answer(algorithm, query, part) for part in np.split(points, 60)]
        np.testing.assert_array_equal(sum(alone), answer(algorithm, query, points))


# ----------------------------------------------------------------- whole clients


OF_CLIENTS = [{"clip": 2.0}, {"clip": 0.75}, {"clips": {"moments": 1.0, "synopsis": 0.6}}]


def fine(array):
    return np.asarray(array) << (FINE - Q)


@pytest.mark.parametrize("options", OF_CLIENTS)
@pytest.mark.parametrize("name", ["line", "square", "disc"])
def test_one_client_changes_each_release_by_its_unit_at_most(name, options):
    domain = DOMAINS[name]
    algorithm = build(domain, 2, CLIENTS, n_clients=20, fraction_bits=FINE, **options)
    signal = build(domain).schedule.signal
    schedule = replace(algorithm.schedule, signal=signal)
    record_level = build(domain, fraction_bits=FINE, schedule=schedule)
    largest, points = {}, grid_points(domain)
    some = fine(points[np.unique(np.linspace(0, len(points) - 1, 5).astype(int))])
    held = [some[:0], some[:1], some[[0, -1]], some, np.repeat(some, 200, axis=0)]
    for query in queries(algorithm, 5):
        algorithm.check_query(query)
        t = query.round
        units, places = algorithm.units(query.round), algorithm.places(t)
        expected = record_level.units(query.round)
        for release in algorithm.releases(t):
            for block in release.blocks:
                expected[places[block]] *= algorithm.clip_of(release)
        np.testing.assert_array_equal(units, expected)
        for records in held:
            # All records of the client at once: it holds them, or nothing, which adds zeros.
            grid = GridRecords.from_grid(np.reshape(records, (-1, domain.n_features)), FINE)
            words = algorithm.flatten(algorithm.answer(query, grid), t)
            assert len(records) or not words.any()
            for release in algorithm.releases(t):
                place = np.concatenate([places[block] for block in release.blocks])
                norm = np.linalg.norm(words[place] / units[place])
                assert norm <= 1 + 1e-12
                largest[t] = max(largest.get(t, 0.0), norm)
    assert set(largest) == set(range(1, algorithm.n_rounds + 1))
    # One factor shortens a round: the release that needs most has all of its unit.
    assert min(largest.values()) >= 0.97


def test_a_clip_of_its_own_for_each_release():
    algorithm = build(
        DOMAINS["square"], 2, CLIENTS, n_clients=20, clips={"moments": 1, "synopsis": 2.5}
    )
    clips = {r.name: algorithm.clip_of(r) for r in algorithm.plan().releases}
    assert clips == {**dict.fromkeys(clips, 50**0.5), "moments": 1.0, "synopsis": 2.5}
    record = build(DOMAINS["square"])
    assert {record.clip_of(r) for r in record.plan().releases} == {1.0}


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
            _, low, high = algorithm.query_ranges(query.round)[key]
            above, below = array.copy(), array.copy()
            above.flat[0] = np.broadcast_to(high, array.shape).flat[0] + 1
            below.flat[0] = np.broadcast_to(low, array.shape).flat[0] - 1
            lacking = {k: v for k, v in query.arrays.items() if k != key}
            wrong += [
                Query(query.round, lacking),
                changed(query, key, array.astype(np.int32)),
                changed(query, key, array.astype(np.float64)),
                changed(query, key, array[:-1]),
                changed(query, key, array[None]),
                changed(query, key, array.tolist()),
                changed(query, key, above),
                changed(query, key, below),
                changed(query, key, np.full_like(array, -(2**63))),
            ]
        for bad in wrong:
            with pytest.raises(MessageError, match=r"^The query of a round is not one of its"):
                algorithm.check_query(bad)


@pytest.mark.parametrize("name", ["rectangle", "disc"])
def test_the_ranges_of_questions_are_those_of_the_grids(name):
    """A projection up to 1, cells and radii up to its grid's end, centroids within the walls."""
    algorithm = build(DOMAINS[name])
    widths = [8, 6] if name == "rectangle" else [8, 8]
    limit = algorithm.projection.limit
    m, last = algorithm.schedule.cells[0], algorithm.n_rounds
    largest = {
        2: {
            "projection": np.full((2, 2), 8),
            "cells": np.full((m, 2), limit),
            "radii": np.full(m, limit),
        },
        last: {
            "centroids": np.array([widths] * 2),
            "radius": np.array([10 - 2 * (name == "disc")]),
        },
    }
    for t, asked in largest.items():
        algorithm.check_query(Query(t, asked))
        signs = {key: -array for key, array in asked.items() if not key.startswith("radi")}
        algorithm.check_query(Query(t, {**asked, **signs}))
        for key, array in asked.items():
            with pytest.raises(MessageError):
                algorithm.check_query(changed(Query(t, asked), key, array + 1))
            if key in signs:
                with pytest.raises(MessageError):
                    algorithm.check_query(changed(Query(t, asked), key, -array - 1))


def test_a_radius_of_nothing_is_refused():
    algorithm = build(DOMAINS["square"])
    for query in queries(algorithm, 6):
        for key in {"radii", "radius"} & set(query.arrays):
            with pytest.raises(MessageError):
                algorithm.check_query(changed(query, key, np.zeros_like(query.arrays[key])))


def test_a_client_with_the_document_alone_gives_the_same_answers():
    server = build(DOMAINS["cube"], 2, fraction_bits=16)
    client = SynopsisAlgorithm.from_config(server.to_config(), server.domain, server.budget)
    state, points = server.initial_state(), grid_points(server.domain) << 13
    for t in range(1, server.n_rounds + 1):
        query = server.query(state)
        client.check_query(query)
        assert {a.dtype for a in query.arrays.values()} <= {np.dtype(np.int64)}
        words = answer(server, query, points)
        np.testing.assert_array_equal(answer(client, query, points), words)
        state = server.update(state, server.unflatten(words, t), RNG(0))


# ----------------------------------------------------------------- updates


INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-(2**63), 2**63 - 1, 0, 2**16, -1, 40, 80]
)
PARTS = st.sampled_from([1.0, 0.9, 0.01])


@pytest.mark.parametrize("name", ["line", "rectangle", "disc"])
@pytest.mark.parametrize(
    ("make", "options"),
    [(build, {}), (blind, {}), (build, {"budget": PrivacyBudget(None), "n_records": None})],
)
@settings(max_examples=6, deadline=None)
@given(words=arrays(np.int64, (8, 50), elements=INT64), answered=PARTS)
def test_update_accepts_any_integers(name, make, options, words, answered):
    algorithm = make(DOMAINS[name], **options)
    state = algorithm.initial_state()
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for t in range(1, algorithm.n_rounds + 1):
            statistic = algorithm.unflatten(words[t - 1, : algorithm.words(t)], t, answered)
            following = algorithm.update(state, statistic)
            again = algorithm.update(state, statistic, RNG(t))
            assert following.round == t
            for key, array in following.arrays.items():
                np.testing.assert_array_equal(array, again.arrays[key])
                assert array.dtype == np.int64
            state = following
            assert set(algorithm.notes(state)) <= set(NOTES)
            if t < algorithm.n_rounds:
                query = algorithm.query(state)
                algorithm.check_query(query)
                answer(algorithm, query, grid_points(algorithm.domain))
            if t > len(algorithm.schedule.cells):
                centroids = state.arrays["centroids"]
                assert (np.abs(centroids) <= algorithm.domain.grid_half_widths(Q)).all()
                if name == "disc":
                    assert ((centroids**2).sum(axis=1) <= 4**Q).all()
                assert np.isfinite(algorithm.centroids(state)).all()
                assert np.isfinite(algorithm.counts(state)).all()
            else:
                assert algorithm.centroids(state) is None
                assert algorithm.counts(state) is None


def test_the_seed_decides_what_is_drawn():
    one, other = (build(DOMAINS["square"], seed=s, fraction_bits=16) for s in (1, 2))
    words = np.array([2**26, 2**25, 10], dtype=np.int64)
    cells = [
        a.update(a.initial_state(), a.unflatten(words, 1)).arrays["cells"]
        for a in (one, one, other)
    ]
    np.testing.assert_array_equal(cells[0], cells[1])
    assert (cells[0] != cells[2]).any()


def stored(algorithm, arrays):
    """Numbers as a state has them: records in steps of the grid, other reals in 2^-REAL_BITS."""
    found = {}
    for key, array in arrays.items():
        values = np.asarray(array)
        if values.dtype == np.float64:
            bits = algorithm.fraction_bits if key in ("counts", "expected") else REAL_BITS
            values = np.rint(values * 2.0**bits).astype(np.int64)
        found[key] = values
    return found


def real(state, key):
    return state.arrays[key] * 2.0**-REAL_BITS


def after(algorithm, t, blocks, arrays=None, answered=1.0):
    """State after round t of given blocks, from given or no earlier arrays."""
    earlier = stored(algorithm, arrays or {})
    before = State(t - 1, {**algorithm.initial_state().arrays, **earlier})
    layout = {block.name: block for block in algorithm.layout(t)}
    statistic = algorithm.unflatten(np.zeros(algorithm.words(t), np.int64), t, answered)
    for name, values in blocks.items():
        statistic.blocks[name][...] = np.rint(np.asarray(values) * 2.0 ** layout[name].exponent)
    return algorithm.update(before, statistic)


def source(algorithm, t):
    return round_words(algorithm.seed, t)


def test_the_directions_are_those_of_the_leading_eigenvectors():
    domain = Ball(1.0, [0.0] * 3)
    algorithm = build(domain, 1, PrivacyBudget(None), n_records=1000, fraction_bits=16)
    algorithm = build(
        domain,
        1,
        PrivacyBudget(None),
        n_records=1000,
        fraction_bits=16,
        schedule=replace(algorithm.schedule, n_directions=1),
    )
    direction = np.array([2.0, -1.0, 2.0]) / 3
    moments = 100 * np.outer(direction, direction) + 10 * np.eye(3)
    state = after(
        algorithm,
        1,
        {"moments": np.concatenate([np.diagonal(moments), moments[[0, 0, 1], [1, 2, 2]]])},
    )
    found = state.arrays["projection"][:, 0] / 2**16
    np.testing.assert_allclose(found * np.sign(found[0]), direction, atol=1e-4)
    # The variance in the other directions, for 1000 records.
    assert real(state, "rest")[0] == pytest.approx(0.02, rel=1e-3)
    assert algorithm.notes(state) == ()


def note(*places):
    return tuple(NOTES[place] for place in sorted(places))


def test_what_the_second_moments_lack_is_told():
    wide = Ball(1.0, [0.0] * 70)
    algorithm = build(wide, 2, PrivacyBudget(1.0), n_records=10**5, fraction_bits=16)
    assert algorithm.schedule.n_directions == 64
    clear = np.zeros(algorithm.words(1))
    clear[:70] = 100.0
    assert algorithm.notes(after(algorithm, 1, {"moments": clear})) == note(NO_SIGNAL)
    edge = np.sqrt(2 * 70) * algorithm.noise_of(1)["moments"] / 4.0**10
    assert edge > 100
    clear[0] = 1.09 * edge
    assert algorithm.notes(after(algorithm, 1, {"moments": clear})) == note(NO_SIGNAL)
    clear[0] = 1.11 * edge
    assert algorithm.notes(after(algorithm, 1, {"moments": clear})) == ()
    few = build(wide, 2, PrivacyBudget(1.0), n_records=100, fraction_bits=16)
    assert few.schedule.n_directions == 16
    state = after(few, 1, {"norms": [30.0]})
    assert few.notes(state) == note(BLIND)
    matrix = state.arrays["projection"] / 2**16
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(16), atol=1e-3)
    # With 16 columns or fewer there is nothing to choose, with second moments or without.
    square = build(Ball(1.0, [0.0] * 2), 2, fraction_bits=16)
    assert square.schedule.moments
    assert square.notes(after(square, 1, {"moments": [1.0, 1.0, 0.0]})) == ()
    narrow = blind(Ball(1.0, [0.0] * 2), 2, fraction_bits=16)
    narrow = build(
        Ball(1.0, [0.0] * 2),
        2,
        fraction_bits=16,
        schedule=replace(narrow.schedule, n_directions=2),
    )
    state = after(narrow, 1, {"norms": [10.0]})
    assert narrow.notes(state) == ()
    np.testing.assert_array_equal(state.arrays["projection"], 2**16 * np.eye(2))


def test_cells_that_are_nothing_but_noise_are_told():
    algorithm = build(Ball(1.0, [0.0] * 2), 5, n_records=60, fraction_bits=16)
    assert len(algorithm.schedule.cells) == 1
    first = after(algorithm, 1, {"moments" if algorithm.schedule.moments else "norms": 9.0})
    state = after(algorithm, 2, {"counts": -1.0}, first.arrays)
    assert algorithm.notes(state) == note(NO_CELL, FEW)
    counts = np.zeros(algorithm.schedule.cells[0])
    noise = algorithm.noise_of(2)["counts"] / 2**16
    counts[:3] = 1.01 * noise
    counts[3:6] = 0.99 * noise
    state = after(algorithm, 2, {"counts": counts}, first.arrays)
    assert algorithm.notes(state) == note(FEW)
    counts[3:6] *= 1.1
    state = after(algorithm, 2, {"counts": counts}, first.arrays)
    assert algorithm.notes(state) == ()
    assert state.arrays["centroids"].shape == (5, 2)


REFINED = {
    "centroids": np.array([[2**14, 0], [-(2**15), 2**14]]),
    "radius": np.array([2**13]),
    "first": np.array([0.02]),
    "mean_square": np.array([0.0162]),
    "moves": np.zeros((2, 2)),
    "counts": np.array([1000.0, 2000.0]),
    "projection": 2**16 * np.eye(2, dtype=np.int64),
    "within": np.array([0.01, 0.01, 0.0]),
    # So large that noise explains nothing of a move.
    "doubts": np.array([[1e3, 1e3, 0.0]] * 2),
}


def test_refinement_moves_centroids_by_their_mean_residuals():
    algorithm = build(Ball(1.0, [0.0] * 2), 2, n_records=5000, fraction_bits=16)
    t = algorithm.n_rounds
    sums = np.array([[400.0, -200.0], [0.0, 3000.0]])
    state = after(algorithm, t, {"sums": sums, "counts": [1000.0, 2000.0]}, REFINED)
    # Radii of 1/8: moves by (0.05, -0.025) and (0, 3/16), of which 1/8 is left.
    np.testing.assert_allclose(
        state.arrays["centroids"] / 2**16, [[0.3, -0.025], [-0.5, 0.375]], atol=2.0**-16
    )
    np.testing.assert_array_equal(algorithm.counts(state), [1000, 2000])
    assert algorithm.notes(state) == ()
    # 1000 records came nearer by 0.003125 and 2000 by 1/64, of 5000 in all.
    left = 0.0162 - (1000 * 0.003125 + 2000 / 64) / 5000
    assert real(state, "mean_square")[0] == pytest.approx(left)
    radius = 0.9 * algorithm._factor * np.sqrt(left)
    assert state.arrays["radius"][0] == int(radius * 2**16)
    # Few records cannot move a centroid as far as they would have it, and that is told.
    noise = algorithm.noise_of(t)["counts"] / 2**16
    state = after(algorithm, t, {"sums": [[1.0, 0], [0, 0]], "counts": [-5.0, 2000.0]}, REFINED)
    assert algorithm.notes(state) == note(LIGHT)
    np.testing.assert_allclose(
        state.arrays["centroids"][0] / 2**16, [0.25 + 1 / 8 / noise, 0.0], atol=2.0**-15
    )


def test_refinement_goes_on_in_the_direction_of_the_round_before():
    algorithm = build(Ball(1.0, [0.0] * 2), 2, n_records=5000, fraction_bits=16)
    t, told = algorithm.n_rounds, {"sums": [[400.0, 0.0], [800.0, 0.0]], "counts": [1000.0] * 2}
    alone = after(algorithm, t, told, REFINED)
    np.testing.assert_allclose(real(alone, "moves"), [[0.05, 0.0], [0.1, 0.0]], atol=1e-6)
    # One went at an angle whose cosine is 0.6, the other came back.
    before = {**REFINED, "moves": np.array([[0.06, 0.08], [-0.01, 0.02]])}
    state = after(algorithm, t, told, before)
    np.testing.assert_allclose(real(state, "moves"), [[0.086, 0.048], [0.1, 0.0]], atol=1e-6)
    np.testing.assert_allclose(
        state.arrays["centroids"] / 2**16, [[0.336, 0.048], [-0.4, 0.25]], atol=2.0**-16
    )
    saved = 1000 * (0.086**2 + 0.048**2 + 0.01)
    assert real(state, "mean_square")[0] == pytest.approx(0.0162 - saved / 5000)


def test_radii_are_wider_where_there_is_less_noise():
    for n_records in (20, 500, 5000, 10**7):
        algorithm = build(Ball(1.0, [0.0] * 2), 2, n_records=n_records, fraction_bits=16)
        ratio = algorithm.schedule.signal / (2 * np.sqrt(2))
        expected = np.clip(0.7 + 0.3 * np.log(ratio), 1.0, 2.6)
        assert algorithm._factor == pytest.approx(expected)
    assert build(DOMAINS["square"], budget=PrivacyBudget(None))._factor == 2.6


def test_the_first_refinement_follows_the_cost_of_the_synopsis():
    """Cells at two places, with as many records as noise lets be seen, and spread as told."""
    domain = Ball(1.0, [0.0] * 2)
    algorithm = build(domain, 1, PrivacyBudget(None), n_records=1000, fraction_bits=16)
    t = len(algorithm.schedule.cells) + 1
    cells = np.zeros((5, 2), np.int64)
    cells[1] = [2**15, 0]
    arrays = {
        "projection": 2**16 * np.eye(2, dtype=np.int64),
        "rest": np.array([0.01]),
        "cells": (cells << (algorithm.projection.exponent - 16)),
        "radii": np.full(5, 2 ** (algorithm.projection.exponent - 3)),
        "variances": np.full((5, 2), 0.002),
        "spread": np.array([0.004]),
        "expected": np.zeros(5),
    }
    counts, slacks = [500.0, 500.0, 0, 0, 0], [372.0, 372.0, 0, 0, 0]
    state = after(algorithm, t, {"counts": counts, "slacks": slacks}, arrays)
    np.testing.assert_allclose(state.arrays["centroids"] / 2**16, [[0.25, 0.0]], atol=1e-4)
    np.testing.assert_array_equal(algorithm.counts(state), [1000.0])
    # 1/4 from the cells, (1/8)^2 128 / 500 within them, 0.01 in other directions.
    first = 0.0625 + 128 / 500 / 64 + 0.01
    assert real(state, "first")[0] == pytest.approx(first)
    np.testing.assert_array_equal(state.arrays["moves"], [[0.0, 0.0]])
    assert real(state, "mean_square")[0] == pytest.approx(0.81 * first)
    assert state.arrays["radius"][0] == int(0.9 * 2.6 * np.sqrt(first) * 2**16)


def test_a_mean_norm_is_of_the_records_of_those_who_answered():
    algorithm = build(
        Ball(1.0, [0.0] * 3), 1, PrivacyBudget(None), n_records=1000, fraction_bits=16
    )
    assert algorithm.schedule.moments
    diagonal = {"moments": [100.0, 60.0, 40.0, 0, 0, 0]}
    whole, part = after(algorithm, 1, diagonal), after(algorithm, 1, diagonal, answered=0.5)
    np.testing.assert_allclose(real(whole, "prior"), [0.1, 0.06, 0.04], rtol=1e-6)
    np.testing.assert_allclose(real(part, "prior"), [0.2, 0.12, 0.08], rtol=1e-6)


def first_cells(algorithm, variances):
    """Cells of the second round, where records vary so much in each direction."""
    step = 2.0**-algorithm.projection.exponent * 2**16 / algorithm.domain.l2_bound(16)
    n_cells = algorithm.schedule.n_cells(2)
    return partition(prior(variances), n_cells, algorithm._factor, step, source(algorithm, 1))


def require_cells(state, cells):
    """Up to what a step of the model's grid makes of the last bits of its variances."""
    assert (
        np.abs(state.arrays["cells"] - cells.centers).max()
        <= 2 * np.abs(cells.centers).max() / 2**10
    )
    np.testing.assert_allclose(state.arrays["radii"], cells.radii, rtol=1e-3)
    np.testing.assert_allclose(real(state, "variances"), cells.variances, rtol=1e-2)
    np.testing.assert_allclose(state.arrays["expected"] / 2**16, cells.expected, rtol=1e-2)


WIDE = Box([0, 0, 0], [4, 3, 2], scale="common")  # its longest record is no power of two


@pytest.mark.parametrize("public", [True, False])
def test_the_first_cells_are_those_of_the_spectrum(public):
    """In units of the longest record's square, with noise and without."""
    budget, n = (BUDGET, 4000.0) if public else (PrivacyBudget(None), None)
    algorithm = build(WIDE, 1, budget, n_records=n and int(n), fraction_bits=16)
    schedule = replace(algorithm.schedule, n_directions=2)
    algorithm = build(WIDE, 1, budget, n_records=n and int(n), fraction_bits=16, schedule=schedule)
    longest2 = (algorithm.domain.l2_bound(16) / 2**16) ** 2
    diagonal = np.array([700.0, 300.0, 200.0])
    state = after(algorithm, 1, {"moments": [*diagonal, 0, 0, 0]})
    # Without a public figure, the mean square is taken to be what is likely: a quarter.
    n = n or diagonal.sum() / longest2 / 0.25
    std = algorithm.noise_of(1)["moments"] / 4.0**10 / longest2
    assert (std > 0) is public
    norm = mean_norm(diagonal.sum() / longest2 / n, std * math.sqrt(3) / n)
    variances, _ = spectrum(diagonal / longest2 / n, math.sqrt(6) * std / n, norm)
    np.testing.assert_allclose(real(state, "prior"), variances[:2], rtol=1e-12)
    np.testing.assert_allclose(real(state, "rest"), variances[2:], rtol=1e-12)
    require_cells(state, first_cells(algorithm, real(state, "prior")))


@pytest.mark.parametrize("public", [True, False])
def test_the_first_cells_of_blind_directions_are_alike_in_all(public):
    budget = BUDGET if public else PrivacyBudget(None)
    n_records = 4000 if public else None
    algorithm = blind(WIDE, 1, budget=budget, n_records=n_records, fraction_bits=16)
    longest2 = (algorithm.domain.l2_bound(16) / 2**16) ** 2
    state = after(algorithm, 1, {"norms": [1200.0]})
    n = n_records or 1200 / longest2 / 0.25
    std = algorithm.noise_of(1)["norms"] / 2**16 / longest2
    norm = mean_norm(1200 / longest2 / n, std / n)
    np.testing.assert_allclose(real(state, "prior"), [norm / 3] * 2, rtol=1e-4)
    np.testing.assert_allclose(real(state, "rest"), [norm / 3], rtol=1e-4)
    assert algorithm.notes(state) == note(BLIND)


def test_a_synopsis_round_learns_in_the_units_of_its_answer():
    """Sums and slacks in radii, counts in records, and each with its own noise."""
    algorithm = build(WIDE, 2, n_records=4000, fraction_bits=16)
    algorithm = with_cells(algorithm, 6, 6, 8)
    cells = first_cells(algorithm, np.array([0.05, 0.03, 0.01]))
    arrays = {
        "projection": 2**16 * np.eye(3, dtype=np.int64),
        "rest": np.array([0.02]),
        "cells": cells.centers,
        "radii": cells.radii,
        "variances": cells.variances,
        "spread": np.array([cells.spread]),
        "expected": cells.expected,
    }
    rng = RNG(5)
    counts = rng.uniform(300, 900, 6)
    given = Answers(rng.normal(size=(6, 3)) * 150, counts, counts * rng.uniform(0.4, 0.9, 6))
    step = 2.0**-algorithm.projection.exponent * 2**16 / algorithm.domain.l2_bound(16)
    for t in (2, 3, 4):
        if t == 4:  # the last round of the synopsis, of as many cells
            algorithm = with_cells(algorithm, 6, 6, 6)
        noise = algorithm.noise_of(t)
        assert noise["sums"] == noise["slacks"] != noise["counts"]
        noise = Noise(*(noise[name] / 2**16 for name in ("sums", "counts", "slacks")))
        state = after(algorithm, t, given._asdict(), arrays)
        rounded = Answers(*(np.rint(array * 2**16) / 2**16 for array in given))
        mixture, _ = learned(cells, rounded, noise, step, 4000.0, np.zeros(6, dtype=bool))
        if t < 4:
            drawn = partition(
                mixture, 4 + 2 * (t - 1), algorithm._factor, step, source(algorithm, t)
            )
            require_cells(state, drawn)
    found = select(mixture, 2, source(algorithm, 4))
    np.testing.assert_allclose(real(state, "first"), [found.within.sum() + 0.02])
    np.testing.assert_allclose(algorithm.counts(state), found.counts, rtol=1e-6)
    np.testing.assert_allclose(real(state, "within"), [*found.within, 0.02])
    doubts = np.hstack([found.doubts, np.full((2, 1), 0.02)]) + 0.3 * np.array(
        [*found.within, 0.02]
    )
    np.testing.assert_allclose(real(state, "doubts"), doubts, rtol=1e-6)
    # The projection is the identity: centres are where the domain has them.
    one = algorithm.domain.l2_bound(16)
    walls = algorithm.domain.grid_half_widths(16)
    inside = np.clip(found.centers * one, -walls, walls)
    np.testing.assert_allclose(state.arrays["centroids"], inside, atol=1.01)


@pytest.mark.parametrize(("n_records", "records"), [(None, 3000), (5000, 5000), (2000, 3000)])
def test_a_mean_square_is_of_the_planned_records_or_of_more_that_were_counted(n_records, records):
    budget = BUDGET if n_records else PrivacyBudget(None)
    algorithm = build(Ball(1.0, [0.0] * 2), 2, budget, n_records=n_records, fraction_bits=16)
    told = {"sums": [[400.0, -200.0], [0, 0]], "counts": [1000.0, 2000.0]}
    state = after(algorithm, algorithm.n_rounds, told, REFINED)
    left = 0.0162 - 1000 * 0.003125 / records
    assert real(state, "mean_square")[0] == pytest.approx(left)


def with_cells(algorithm, *cells):
    """The same, with synopsis rounds of so many cells."""
    schedule = replace(algorithm.schedule, cells=cells)
    options = {name: getattr(algorithm, name) for name in ("budget", "n_records", "fraction_bits")}
    return build(algorithm.domain, algorithm.n_clusters, schedule=schedule, **options)


def cells_of(algorithm, expected):
    """Five cells on a line, of which some are known to have records."""
    one = 2**algorithm.projection.exponent
    return {
        "projection": 2**16 * np.eye(2, dtype=np.int64),
        "prior": np.array([0.04, 0.01]),
        "rest": np.array([0.0]),
        "cells": np.array([[i * one // 8, 0] for i in range(5)]),
        "radii": np.full(5, one // 16),
        "variances": np.full((5, 2), 0.001),
        "spread": np.array([0.002]),
        "expected": np.asarray(expected, dtype=float),
    }


@pytest.mark.parametrize(
    ("answered", "number", "held"), [(0.8, 3, True), (1.0, 3, False), (0.8, 2, False)]
)
def test_a_cell_whose_clients_did_not_answer_stays_as_it_was(answered, number, held):
    """Centroids of the last synopsis round: one of two full cells has lost its records."""
    algorithm = build(
        Ball(1.0, [0.0] * 2), 2, PrivacyBudget(None), n_records=1000, fraction_bits=16
    )
    algorithm = with_cells(algorithm, *((5,) * (number - 1)))
    arrays = cells_of(algorithm, [500, 0, 0, 0, 500])
    counts = {"counts": [500.0, 0, 0, 0, 0], "slacks": [450.0, 0, 0, 0, 0]}
    state = after(algorithm, number, counts, arrays, answered)
    found = sorted(state.arrays["centroids"][:, 0] / 2**16)
    assert found[0] == pytest.approx(0.0, abs=0.2)
    assert (found[1] == pytest.approx(0.5, abs=1e-3)) == held
    assert (NOTES[HELD] in algorithm.notes(state)) == held
    if held:
        assert sorted(algorithm.counts(state)) == [500.0, 500.0]


def test_cells_are_also_made_where_nobody_answered_in_the_first_synopsis_round():
    algorithm = build(
        Ball(1.0, [0.0] * 2), 2, PrivacyBudget(None), n_records=1000, fraction_bits=16
    )
    algorithm = with_cells(algorithm, 5, 10, 10)
    arrays = cells_of(algorithm, np.zeros(5))
    counts = {"counts": [1000.0, 0, 0, 0, 0], "slacks": [999.0, 0, 0, 0, 0]}
    far = []
    for answered, number in ((1.0, 2), (0.5, 2), (0.5, 3)):
        if number == 3:
            arrays["cells"] = np.vstack([arrays["cells"]] * 2)
            for name in ("radii", "variances", "expected"):
                arrays[name] = np.concatenate([arrays[name]] * 2)
            counts = {name: [*values, *([0.0] * 5)] for name, values in counts.items()}
        state = after(algorithm, number, counts, arrays, answered)
        norms = np.linalg.norm(state.arrays["cells"], axis=1) / 2**algorithm.projection.exponent
        far.append(norms.max())
        # No records are expected of the cells that are only a precaution.
        expected = state.arrays["expected"] / 2**16
        assert expected[norms > 0.15].sum() <= 10
        assert expected.sum() == pytest.approx(1000)
    assert far[0] < 0.15 < far[1]
    assert far[2] < 0.15


def test_what_was_not_counted_weighs_as_much_as_the_share_that_did_not_answer():
    """A quarter of the cells' sample, where three of four clients answered."""
    algorithm = build(
        Ball(1.0, [0.0] * 2), 2, PrivacyBudget(None), n_records=1000, fraction_bits=16
    )
    algorithm = with_cells(algorithm, 5, 10)
    arrays = cells_of(algorithm, np.zeros(5))
    counts, slacks = np.array([750.0, 0, 0, 0, 0]), np.array([749.0, 0, 0, 0, 0])
    state = after(algorithm, 2, {"counts": counts, "slacks": slacks}, arrays, 0.75)
    step = 2.0**-algorithm.projection.exponent
    names = ("cells", "radii", "variances")
    cells = Partition(*(arrays[key] for key in names), 0.002, arrays["expected"])
    answers = Answers(np.zeros((5, 2)), counts, slacks)
    found, _ = learned(cells, answers, Noise(0.0, 0.0, 0.0), step, 1000.0)
    unseen = prior(arrays["prior"])
    unseen = unseen._replace(weights=0.25 * 750 * unseen.weights)
    require_cells(
        state, partition(found, 10, algorithm._factor, step, source(algorithm, 2), unseen)
    )


def test_a_cluster_whose_clients_did_not_answer_stays_where_it_is():
    algorithm = build(Ball(1.0, [0.0] * 2), 2, n_records=5000, fraction_bits=16)
    t, before = algorithm.n_rounds, {**REFINED, "counts": np.array([1000.0, 2000.0])}
    before["moves"] = np.array([[0.01, 0.0], [0.0, 0.0]])
    told = {"sums": np.full((2, 2), 100.0), "counts": [240.0, 2000.0]}
    whole = after(algorithm, t, told, before)
    assert (whole.arrays["centroids"] != before["centroids"]).all()
    np.testing.assert_array_equal(algorithm.counts(whole), [240, 2000])
    part = after(algorithm, t, told, before, 0.75)
    np.testing.assert_array_equal(part.arrays["centroids"][0], before["centroids"][0])
    np.testing.assert_array_equal(part.arrays["moves"][0], [0.0, 0.0])
    np.testing.assert_array_equal(part.arrays["centroids"][1], whole.arrays["centroids"][1])
    np.testing.assert_array_equal(algorithm.counts(part), [1000, 2000])
    assert algorithm.notes(part) == note(HELD)
    assert algorithm.notes(whole) == ()
    # Its records saved nothing; those of the other came nearer by (1/8 100/2000)^2 in both columns.
    saved = 2000 * 2 * (100 / 2000 / 8) ** 2
    assert real(part, "mean_square")[0] == pytest.approx(0.0162 - saved / 5000)
    # A quarter of the records is enough to go by.
    told["counts"] = [260.0, 2000.0]
    assert algorithm.notes(after(algorithm, t, told, before, 0.75)) == ()


def test_with_own_clips_nothing_is_held_in_the_first_refinement():
    """Counts of another clip are of another size: all would look as if they had lost clients."""
    options = {"n_records": 5000, "n_clients": 500, "fraction_bits": 16, "budget": CLIENTS}
    for clips, held in ((None, True), ({"refinement-sums": 2.0}, False)):
        algorithm = build(Ball(1.0, [0.0] * 2), 2, clips=clips, **options)
        first = len(algorithm.schedule.cells) + 2
        before = {**REFINED, "counts": np.full(2, 1e5)}
        told = {"sums": np.full((2, 2), 100.0), "counts": [9e3, 9e3]}
        state = after(algorithm, first, told, before, 0.9)
        assert (NOTES[HELD] in algorithm.notes(state)) == held
        if algorithm.n_rounds > first:
            later = after(algorithm, first + 1, told, before, 0.9)
            assert NOTES[HELD] in algorithm.notes(later)


def test_the_radius_shrinks_no_further_than_it_should():
    algorithm = build(Ball(1.0, [0.0] * 2), 2, n_records=5000, fraction_bits=16)
    far = np.array([[3000.0, 0.0], [0.0, 3000.0]])
    state = after(algorithm, algorithm.n_rounds, {"sums": far, "counts": [2500.0, 2500.0]}, REFINED)
    assert real(state, "mean_square")[0] == pytest.approx(0.15 * 0.02)


def test_centroids_stay_in_the_domain():
    for domain in (Ball(1.0, [0.0] * 2), DOMAINS["rectangle"]):
        algorithm = build(domain, 2, n_records=5000, fraction_bits=16)
        one = domain.l2_bound(16)
        arrays = {
            **REFINED,
            "centroids": np.array([[2**16, 0], [0, 40_000]]),
            "radius": np.array([int(one)]),
        }
        sums = np.array([[2500.0, 2500.0], [0.0, 2500.0]])
        state = after(
            algorithm, algorithm.n_rounds, {"sums": sums, "counts": [2500.0, 2500.0]}, arrays
        )
        centroids = state.arrays["centroids"]
        assert (np.abs(centroids) <= domain.grid_half_widths(16)).all()
        if isinstance(domain, Ball):
            assert ((centroids.astype(float) ** 2).sum(axis=1) <= 4.0**16).all()


# ----------------------------------------------------------------- runs


def mixture(rng, k, d, n, std):
    means = rng.uniform(0, 1, (k, d))
    records = np.concatenate([rng.normal(mean, std, (n // k, d)) for mean in means])
    return means, records


def run(algorithm, records, stream=None):
    state = algorithm.initial_state()
    grid = GridRecords(records, algorithm.domain, algorithm.fraction_bits)
    plan = algorithm.plan()
    for t in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        algorithm.check_query(query)
        words = algorithm.flatten(algorithm.statistic(query, grid), t)
        if stream is not None:
            words = words + server_noise(algorithm, plan, query.round, stream)
        state = algorithm.update(state, algorithm.unflatten(words, t))
    return state


@pytest.mark.parametrize("n_records", [None, 4000])
@pytest.mark.parametrize("domain", [Ball(2.0, [0.5] * 8), Box([-0.5] * 8, [1.5] * 8)])
def test_without_noise_it_finds_the_means_of_separate_gaussians(domain, n_records):
    means, records = mixture(RNG(1), 5, 8, 4000, 0.05)
    algorithm = build(domain, 5, PrivacyBudget(None), n_records=n_records, fraction_bits=16)
    state = run(algorithm, records)
    # The mean of 800 records deviates by 8 * 0.05^2 / 800, squared; the rest is rounding.
    assert matched_centroid_error(algorithm.centroids(state), means) < 3e-4
    np.testing.assert_allclose(np.sort(algorithm.counts(state)), np.full(5, 800))
    assert algorithm.notes(state) == ()


@pytest.mark.parametrize(
    ("k", "d", "n"), [(5, 30, 30_000), (1, 1, 2000), (3, 1, 5000), (4, 100, 50_000)]
)
def test_with_noise_it_comes_near_the_optimum(k, d, n):
    """With noise from a fixed key."""
    _, records = mixture(RNG(3), k, d, n, 0.1)
    algorithm = build(
        Ball(1.2 * np.sqrt(d), [0.5] * d), k, PrivacyBudget(2.0), n_records=n, fraction_bits=16
    )
    state = run(algorithm, records, Stream.from_key(bytes(range(32))))
    best = np.array([part.mean(axis=0) for part in np.split(records[: n // k * k], k)])
    assert inertia(records, algorithm.centroids(state)) < 1.05 * inertia(records, best)


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_records_that_are_all_equal_are_found(value):
    algorithm = build(Ball(2.0, [0.0] * 3), 2, PrivacyBudget(None), n_records=90, fraction_bits=16)
    state = run(algorithm, np.full((90, 3), value))
    nearest = np.linalg.norm(algorithm.centroids(state) - value, axis=1).min()
    assert nearest < 1e-3


def test_few_records_of_many_columns_make_a_run():
    algorithm = build(Ball(30.0, [0.0] * 784), 3, n_records=40, fraction_bits=16)
    records = RNG(0).normal(size=(40, 784))
    state = run(algorithm, records, Stream.from_key(bytes(32)))
    assert np.isfinite(algorithm.centroids(state)).all()
    assert NOTES[BLIND] in algorithm.notes(state)
