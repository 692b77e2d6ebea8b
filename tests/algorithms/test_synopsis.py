"""SynopsisKMeans as pure mathematics: its units, its updates, and whole runs without messages."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flower_kmeans.algorithms import State, SynopsisAlgorithm
from flower_kmeans.algorithms.synopsis_absence import absent
from flower_kmeans.algorithms.synopsis_constants import REAL_BITS
from flower_kmeans.algorithms.synopsis_refinement import (
    continued,
    learned_scale,
    squares_beside,
    weighed,
)
from flower_kmeans.algorithms.synopsis_state import WARNINGS, Note
from flower_kmeans.data.domain import Ball, Box
from flower_kmeans.metrics import inertia, matched_centroid_error
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import Stream
from tests.algorithms.rows import run_of, sum_of
from tests.support.saying import assert_within

BUDGET = PrivacyBudget(1.0)
CLIENTS = PrivacyBudget(1.0, unit="client")
EXACT = PrivacyBudget(None)
RNG = np.random.default_rng
Q = 3  # a grid small enough to enumerate
DISC = Ball(1.0, [0.0] * 2)


def build(domain, k=2, budget=BUDGET, **options):
    """An algorithm; other fields of its schedule by their names."""
    names = {"moments", "n_directions", "cells"} & set(options)
    fields = {name: options.pop(name) for name in names}
    options = {"n_records": 1000, **options}
    algorithm = SynopsisAlgorithm.planned(k, domain, budget, **options)
    schedule = replace(algorithm.schedule, **fields)
    return replace(algorithm, schedule=schedule)


# ----------------------------------------------------------------- updates


def test_the_seed_decides_what_is_drawn():
    one, other = (build(DISC, seed=s) for s in (1, 2))
    diagonal = {"moments": [10.0, 5.0, 0.0]}
    cells = [after(a, 1, diagonal).arrays["cells"] for a in (one, one, other)]
    np.testing.assert_array_equal(cells[0], cells[1])
    assert (cells[0] != cells[2]).any()


def real(state, key):
    return state.arrays[key] * 2.0**-REAL_BITS


def after(algorithm, t, blocks, arrays=None, answered=1.0):
    """State after round t of given blocks, from given or no earlier arrays.

    Floats are stored as a state has them: records in grid steps, other reals in
    2^-REAL_BITS.
    """
    before = dict(algorithm.initial_state().arrays)
    for key, array in (arrays or {}).items():
        values = np.asarray(array)
        if values.dtype == np.float64:
            bits = (
                algorithm.fraction_bits if key in ("counts", "expected") else REAL_BITS
            )
            values = np.rint(values * 2.0**bits).astype(np.int64)
        before[key] = values
    exponents = {block.name: block.exponent for block in algorithm.layout(t).blocks}
    words = {
        name: np.rint(np.array(x) * 2.0 ** exponents[name])
        for name, x in blocks.items()
    }
    return algorithm.update(
        State(t - 1, before), sum_of(algorithm, t, answered, **words)
    )


def test_the_directions_are_those_of_the_leading_eigenvectors():
    options = {"n_records": 1000, "n_directions": 1}
    algorithm = build(Ball(1.0, [0.0] * 3), 1, EXACT, **options)
    direction = np.array([2.0, -1.0, 2.0]) / 3
    moments = 100 * np.outer(direction, direction) + 10 * np.eye(3)
    words = np.concatenate([np.diagonal(moments), moments[[0, 0, 1], [1, 2, 2]]])
    state = after(algorithm, 1, {"moments": words})
    found = state.arrays["projection"][:, 0] / 2**16
    np.testing.assert_allclose(found * np.sign(found[0]), direction, atol=1e-4)
    # The variance in the other directions, for 1000 records, and twice as much for half
    # of them.
    assert real(state, "rest")[0] == pytest.approx(0.02, rel=1e-3)
    assert algorithm.warnings(state) == ()
    half = after(algorithm, 1, {"moments": words}, answered=0.5)
    assert real(half, "prior")[0] == pytest.approx(2 * real(state, "prior")[0])


@pytest.mark.parametrize("moments", [True, False])
@pytest.mark.parametrize("n_records", [4000, None])
def test_variances_are_in_squares_of_the_longest_record(n_records, moments):
    """Without a public figure, the mean square is taken to be what is likely: a quarter."""
    # its longest record is no power of two
    wide = Box([0, 0, 0], [4, 3, 2], scale="common")
    longest2 = (4 + 9 / 4 + 1) / 4
    schedule = {"moments": moments, "n_directions": 2}
    algorithm = build(wide, 1, EXACT, n_records=n_records, **schedule)
    words = (
        {"moments": [700.0, 300.0, 200.0, 0, 0, 0]} if moments else {"norms": [1200.0]}
    )
    state = after(algorithm, 1, words)
    total = 1200 / longest2 / n_records if n_records else 0.25
    shares = np.array([7, 3, 2]) / 12 if moments else np.ones(3) / 3
    found = np.append(real(state, "prior"), real(state, "rest"))
    np.testing.assert_allclose(found[:3], total * shares, rtol=1e-3)
    assert algorithm.warnings(state) == (() if moments else note(Note.BLIND))


def note(*places):
    return tuple(WARNINGS[place] for place in sorted(places))


def test_the_notes_state_what_second_moments_lack():
    wide = Ball(1.0, [0.0] * 70)
    algorithm = build(wide, 2, n_records=10**5)
    assert algorithm.schedule.n_directions == 64
    edge = np.sqrt(2 * 70) * algorithm.noise_of(1)["moments"] / 4.0**10
    clear = np.zeros(algorithm.layout(1).n_words)
    clear[:70] = 100.0
    for value, expected in (
        (100.0, note(Note.NO_SIGNAL)),
        (1.09 * edge, note(Note.NO_SIGNAL)),
        (1.11 * edge, ()),
    ):
        clear[0] = value
        assert algorithm.warnings(after(algorithm, 1, {"moments": clear})) == expected
    few = build(wide, 2, n_records=100)
    assert few.schedule.n_directions == 16
    state = after(few, 1, {"norms": [30.0]})
    assert few.warnings(state) == note(Note.BLIND)
    matrix = state.arrays["projection"] / 2**16
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(16), atol=1e-3)
    # Where directions are all columns, there is nothing to choose, with second moments
    # or without.
    square, narrow = (build(DISC, moments=m, n_directions=2) for m in (True, False))
    assert square.warnings(after(square, 1, {"moments": [1.0, 1.0, 0.0]})) == ()
    state = after(narrow, 1, {"norms": [10.0]})
    assert narrow.warnings(state) == ()
    np.testing.assert_array_equal(state.arrays["projection"], 2**16 * np.eye(2))


def test_the_notes_state_cells_that_are_nothing_but_noise():
    algorithm = build(DISC, 5, n_records=60)
    assert len(algorithm.schedule.cells) == 1
    first = after(
        algorithm, 1, {"moments" if algorithm.schedule.moments else "norms": 9.0}
    )
    counts, noise = (
        np.zeros(algorithm.schedule.cells[0]),
        algorithm.noise_of(2)["counts"] / 2**16,
    )
    for three, others, expected in (
        (-1, -1, note(Note.NO_CELL, Note.FEW)),
        (1.01, 0.99, note(Note.FEW)),
        (1.01, 1.01, ()),
    ):
        counts[:3], counts[3:6] = three * noise, others * noise
        state = after(algorithm, 2, {"counts": counts}, first.arrays)
        assert algorithm.warnings(state) == expected
        assert state.arrays["centroids"].shape == (5, 2)


REFINED = {
    "centroids": np.array([[2**14, 0], [-(2**15), 2**14]]),
    "radius": np.array([2**13]),
    "first": np.array([0.02]),
    "mean_square": np.array([0.0162]),
    "moves": np.zeros((2, 2)),
    "counts": np.array([1000.0, 2000.0]),
    "projection": 2**16 * np.eye(2, dtype=np.int64),
    "prior": np.array([0.04, 0.01]),
    "rest": np.array([0.0]),
    "within": np.array([0.01, 0.01, 0.0]),
    # So large that noise explains nothing of a move.
    "doubts": np.array([[1e3, 1e3, 0.0]] * 2),
}


def refined(blocks, arrays=REFINED, answered=1.0, **options):
    """The algorithm, and its state after the last round."""
    algorithm = build(DISC, **{"n_records": 5000, **options})
    return algorithm, after(algorithm, algorithm.n_rounds, blocks, arrays, answered)


@pytest.mark.claim("guarantees", "22")
def test_refinement_moves_centroids_by_their_mean_residuals():
    sums = np.array([[400.0, -200.0], [0.0, 3000.0]])
    algorithm, state = refined({"sums": sums, "counts": [1000.0, 2000.0]})
    # Radii of 1/8: moves by (0.05, -0.025) and (0, 3/16), of which 1/8 is left.
    np.testing.assert_allclose(
        state.arrays["centroids"] / 2**16, [[0.3, -0.025], [-0.5, 0.375]], atol=2.0**-16
    )
    np.testing.assert_array_equal(algorithm.counts(state), [1000, 2000])
    assert algorithm.warnings(state) == ()
    # 1000 records came nearer by 0.003125 and 2000 by 1/64, of 5000 in all.
    left = 0.0162 - (1000 * 0.003125 + 2000 / 64) / 5000
    assert real(state, "mean_square")[0] == pytest.approx(left)
    assert state.arrays["radius"][0] == int(
        0.9 * algorithm._setting.refinement_factor * np.sqrt(left) * 2**16
    )
    # Few records cannot move a centroid as far as they would have it.
    algorithm, state = refined({"sums": [[1.0, 0], [0, 0]], "counts": [-5.0, 2000.0]})
    noise = algorithm.noise_of(algorithm.n_rounds)["counts"] / 2**16
    assert algorithm.warnings(state) == note(Note.LIGHT)
    moved = [0.25 + 1 / 8 / noise, 0.0]
    np.testing.assert_allclose(
        state.arrays["centroids"][0] / 2**16, moved, atol=2.0**-15
    )
    # The radius shrinks no further than to 0.15 of the first mean square.
    _, state = refined({"sums": 3000 * np.eye(2), "counts": [2500.0] * 2})
    assert real(state, "mean_square")[0] == pytest.approx(0.15 * 0.02)


@pytest.mark.claim("guarantees", "22")
def test_refinement_goes_on_in_the_direction_of_the_round_before():
    blocks = {"sums": [[400.0, 0.0], [800.0, 0.0]], "counts": [1000.0] * 2}
    _, alone = refined(blocks)
    np.testing.assert_allclose(
        real(alone, "moves"), [[0.05, 0.0], [0.1, 0.0]], atol=1e-6
    )
    # One went at an angle whose cosine is 0.6, the other came back.
    before = {**REFINED, "moves": np.array([[0.06, 0.08], [-0.01, 0.02]])}
    _, state = refined(blocks, before)
    np.testing.assert_allclose(
        real(state, "moves"), [[0.086, 0.048], [0.1, 0.0]], atol=1e-6
    )
    np.testing.assert_allclose(
        state.arrays["centroids"] / 2**16, [[0.336, 0.048], [-0.4, 0.25]], atol=2.0**-16
    )
    saved = 1000 * (0.086**2 + 0.048**2 + 0.01)
    assert real(state, "mean_square")[0] == pytest.approx(0.0162 - saved / 5000)


@pytest.mark.claim("guarantees", "22")
def test_clusters_of_many_records_are_expected_to_come_to_rest_sooner():
    counts = np.array([1000.0, 20.0])
    algorithm, state = refined({"sums": np.zeros((2, 2)), "counts": counts})
    noise = algorithm.noise_of(algorithm.n_rounds)
    sizes = np.maximum(counts, noise["counts"] / 2**16)
    # S n / (N sqrt 2) is far above 16 for one, and far below for the other.
    signals = algorithm.schedule.signal * sizes / (5000 * math.sqrt(2))
    assert signals[0] > 30
    assert signals[1] < 12
    place = algorithm.schedule.n_refinements
    drifts = 0.3 * np.array([0.5, 0.7]) ** place
    # Nothing but the noise of this round is left of the doubts before.
    errors = (1 / 8 * noise["sums"] / 2**16 / sizes) ** 2
    found = real(state, "doubts")[:, :2]
    expected = errors + drifts * 0.01
    np.testing.assert_allclose(found, expected[:, None] * [1, 1], rtol=1e-3)


@pytest.mark.parametrize(
    ("n_records", "records"), [(None, 3000), (5000, 5000), (2000, 3000)]
)
def test_a_mean_square_is_of_the_planned_records_or_of_more_that_were_counted(
    n_records, records
):
    blocks = {"sums": [[400.0, -200.0], [0, 0]], "counts": [1000.0, 2000.0]}
    _, state = refined(
        blocks, budget=BUDGET if n_records else EXACT, n_records=n_records
    )
    left = 0.0162 - 1000 * 0.003125 / records
    assert real(state, "mean_square")[0] == pytest.approx(left)


def cells_of(algorithm, expected, n=5):
    """Cells on a line, of which some are known to have records."""
    one = 2**algorithm.projection.exponent
    return {
        "projection": 2**16 * np.eye(2, dtype=np.int64),
        "prior": np.array([0.04, 0.01]),
        "rest": np.array([0.0]),
        "cells": np.array([[i % 5 * one // 8, 0] for i in range(n)]),
        "radii": np.full(n, one // 16),
        "variances": np.full((n, 2), 0.001),
        "spread": np.array([0.002]),
        "expected": np.resize(np.asarray(expected, dtype=float), n),
    }


def test_the_first_refinement_follows_the_mean_square_of_the_synopsis():
    """Records of two cells, at 0 and 1/2, and within radii of 1/16."""
    algorithm = build(DISC, 1, EXACT, cells=(5,))
    arrays = {**cells_of(algorithm, 0), "rest": np.array([0.01])}
    counts, slacks = [500.0, 0, 0, 0, 500.0], [372.0, 0, 0, 0, 372.0]
    state = after(algorithm, 2, {"counts": counts, "slacks": slacks}, arrays)
    np.testing.assert_allclose(
        state.arrays["centroids"] / 2**16, [[0.25, 0.0]], atol=1e-4
    )
    np.testing.assert_array_equal(algorithm.counts(state), [1000.0])
    # 1/4 from the cells, (1/16)^2 128 / 500 within them, 0.01 in other directions.
    first = 0.0625 + 128 / 500 / 256 + 0.01
    assert real(state, "first")[0] == pytest.approx(first)
    np.testing.assert_array_equal(state.arrays["moves"], [[0.0, 0.0]])
    assert real(state, "mean_square")[0] == pytest.approx(0.81 * first)
    # Without noise a radius of 0.9 * 20 roots of it would exceed the ball's.
    assert state.arrays["radius"][0] == 2**16


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(
    ("answered", "number", "held"), [(0.8, 3, True), (1.0, 3, False), (0.8, 2, False)]
)
def test_a_cell_whose_clients_did_not_answer_stays_as_it_was(answered, number, held):
    """Centroids of the last synopsis round: one of two full cells has lost its records."""
    algorithm = build(DISC, 2, EXACT, cells=(5,) * (number - 1))
    arrays = cells_of(algorithm, [500, 0, 0, 0, 500])
    counts = {"counts": [500.0, 0, 0, 0, 0], "slacks": [450.0, 0, 0, 0, 0]}
    state = after(algorithm, number, counts, arrays, answered)
    found = sorted(state.arrays["centroids"][:, 0] / 2**16)
    assert found[0] == pytest.approx(0.0, abs=0.2)
    assert (found[1] == pytest.approx(0.5, abs=1e-3)) == held
    assert (WARNINGS[Note.HELD] in algorithm.warnings(state)) == held
    if held:
        assert sorted(algorithm.counts(state)) == [500.0, 500.0]


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(
    ("answered", "number", "far"), [(1.0, 2, False), (0.5, 2, True), (0.5, 3, False)]
)
def test_cells_are_also_made_where_nobody_answered_in_the_first_synopsis_round(
    answered, number, far
):
    algorithm = build(DISC, 2, EXACT, cells=(5, 10, 10))
    n = algorithm.schedule.n_cells(number)
    counts = {"counts": [1000.0] + [0.0] * (n - 1), "slacks": [999.0] + [0.0] * (n - 1)}
    state = after(algorithm, number, counts, cells_of(algorithm, 0, n), answered)
    norms = (
        np.linalg.norm(state.arrays["cells"], axis=1) / 2**algorithm.projection.exponent
    )
    assert (norms.max() > 0.15) == far
    # No records are expected of the cells that are only a precaution.
    expected = state.arrays["expected"] / 2**16
    assert expected[norms > 0.15].sum() <= 10
    assert expected.sum() == pytest.approx(1000)


@pytest.mark.claim("guarantees", "22")
def test_a_cluster_whose_clients_did_not_answer_stays_where_it_is():
    before = {**REFINED, "moves": np.array([[0.01, 0.0], [0.0, 0.0]])}
    blocks = {"sums": np.full((2, 2), 100.0), "counts": [240.0, 2000.0]}
    algorithm, whole = refined(blocks, before)
    assert (whole.arrays["centroids"] != before["centroids"]).all()
    np.testing.assert_array_equal(algorithm.counts(whole), [240, 2000])
    assert algorithm.warnings(whole) == ()
    _, part = refined(blocks, before, 0.75)
    np.testing.assert_array_equal(part.arrays["centroids"][0], before["centroids"][0])
    np.testing.assert_array_equal(part.arrays["moves"][0], [0.0, 0.0])
    np.testing.assert_array_equal(
        part.arrays["centroids"][1], whole.arrays["centroids"][1]
    )
    np.testing.assert_array_equal(algorithm.counts(part), [1000, 2000])
    assert algorithm.warnings(part) == note(Note.HELD)
    # Its records saved nothing; those of the other came nearer by (1/8 100/2000)^2 in
    # both columns.
    saved = 2000 * 2 * (100 / 2000 / 8) ** 2
    assert real(part, "mean_square")[0] == pytest.approx(0.0162 - saved / 5000)
    # A quarter of the records is enough to go by.
    algorithm, part = refined({**blocks, "counts": [260.0, 2000.0]}, before, 0.75)
    assert algorithm.warnings(part) == ()


@pytest.mark.parametrize("clips", [None, {"refinement-sums": 2.0}])
def test_with_own_clips_nothing_is_held_in_the_first_refinement(clips):
    """Counts of another clip are of another size: all would look as if they had lost clients."""
    options = {"n_records": 5000, "n_clients": 500, "clips": clips}
    algorithm = build(DISC, 2, CLIENTS, **options)
    first = algorithm.schedule.last_synopsis + 1
    before = {**REFINED, "counts": np.full(2, 1e5)}
    blocks = {"sums": np.full((2, 2), 100.0), "counts": [9e3, 9e3]}
    for t, held in ((first, clips is None), (first + 1, True)):
        state = after(algorithm, t, blocks, before, 0.9)
        assert (WARNINGS[Note.HELD] in algorithm.warnings(state)) == held


def test_absent_are_cells_with_far_fewer_records_than_noise_explains():
    expected = np.array([100.0, 100.0, 100.0, 51.0, 49.0, 0.0])
    counts = np.array([24.0, 26.0, -80.0, 0.0, 0.0, -90.0])
    assert absent(expected, counts, 5.0).tolist() == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    # Without noise, from ten records on.
    assert absent(np.array([10.0, 11.0]), np.zeros(2), 0.0).tolist() == [False, True]


def test_moves_go_on_as_far_as_they_point_the_same_way():
    moves = np.array(
        [[1.0, 0.0], [3.0, 4.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1e-9, 0.0]]
    )
    before = np.array(
        [[2.0, 0.0], [0.0, 1.0], [0.0, 2.0], [-2.0, 1.0], [1.0, 1.0], [1e-9, 0.0]]
    )
    expected = [[3.0, 0.0], [3.0, 4.8], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2e-9, 0.0]]
    np.testing.assert_allclose(continued(moves, before), expected, rtol=1e-12)
    np.testing.assert_array_equal(continued(moves, np.zeros((6, 2))), moves)


def test_moves_are_weighed_by_direction():
    """As Kalman's filter has it: P / (P + R) of each coordinate, and P R / (P + R) left."""
    rng, orthonormal = RNG(2), np.linalg.qr(RNG(1).normal(size=(6, 2)))[0]
    directions = np.rint(orthonormal * 2**16).astype(np.int64)
    moves, doubts = rng.normal(size=(3, 6)) * 0.1, rng.uniform(0.001, 0.1, (3, 3))
    errors = rng.uniform(0.001, 0.1, 3)
    kept, left = weighed(moves, doubts, errors, directions, 16)
    exact = directions * 2.0**-16
    covariance = [
        exact @ np.diag(doubt[:2]) @ exact.T + doubt[2] * (np.eye(6) - exact @ exact.T)
        for doubt in doubts
    ]
    for j in range(3):
        gain = covariance[j] @ np.linalg.inv(covariance[j] + errors[j] * np.eye(6))
        np.testing.assert_allclose(kept[j], gain @ moves[j], atol=1e-5)
    np.testing.assert_allclose(left, 1 / (1 / doubts + 1 / errors[:, None]))


# ----------------------------------------------------------------- runs


def mixture(rng, k, d, n, std):
    means = rng.uniform(0, 1, (k, d))
    records = np.concatenate([rng.normal(mean, std, (n // k, d)) for mean in means])
    return means, records


@pytest.mark.parametrize("n_records", [None, 4000])
@pytest.mark.parametrize("domain", [Ball(2.0, [0.5] * 8), Box([-0.5] * 8, [1.5] * 8)])
def test_without_noise_it_finds_the_means_of_separate_gaussians(domain, n_records):
    means, records = mixture(RNG(1), 5, 8, 4000, 0.05)
    algorithm = build(domain, 5, EXACT, n_records=n_records)
    state = run_of(algorithm, [records])
    # The mean of 800 records deviates by 8 * 0.05^2 / 800, squared; the rest is
    # rounding.
    off = matched_centroid_error(algorithm.centroids(state), means)
    assert_within("centroids are off the means by", off, most=3e-4, strict=True)
    np.testing.assert_allclose(np.sort(algorithm.counts(state)), np.full(5, 800))
    assert algorithm.warnings(state) == ()


@pytest.mark.parametrize(
    ("k", "d", "n"), [(5, 30, 30_000), (1, 1, 2000), (3, 1, 5000), (4, 100, 50_000)]
)
def test_with_noise_it_comes_near_the_optimum(k, d, n):
    """With noise from a fixed key."""
    _, records = mixture(RNG(3), k, d, n, 0.1)
    algorithm = build(
        Ball(1.2 * np.sqrt(d), [0.5] * d), k, PrivacyBudget(2.0), n_records=n
    )
    state = run_of(algorithm, [records], Stream.from_key(bytes(range(32))))
    best = np.array([part.mean(axis=0) for part in np.split(records[: n // k * k], k)])
    found, least = inertia(records, algorithm.centroids(state)), inertia(records, best)
    what = "the inertia is"
    assert_within(what, found / least, most=1.05, unit="of the best one", strict=True)


def test_few_records_of_many_columns_make_a_run():
    algorithm = build(Ball(30.0, [0.0] * 784), 3, n_records=40)
    records = RNG(0).normal(size=(40, 784))
    state = run_of(algorithm, [records], Stream.from_key(bytes(32)))
    assert np.isfinite(algorithm.centroids(state)).all()
    assert WARNINGS[Note.BLIND] in algorithm.warnings(state)


# ----------------------------------------------------------------- live directions


def moments_of(values, d):
    """Words of second moments with given leading diagonal entries, and zeros elsewhere."""
    words = np.zeros(d * (d + 1) // 2)
    words[: len(values)] = values
    return {"moments": words}


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(("n_clear", "n_live"), [(3, 16), (20, 20), (130, 64)])
def test_directions_below_the_noise_are_left_out(n_clear, n_live):
    d = 140
    algorithm = build(Ball(1.0, [0.0] * d), 2, n_records=10**5)
    assert (algorithm.schedule.moments, algorithm.schedule.n_directions) == (True, 64)
    values = 300.0 + np.arange(n_clear)
    state = after(algorithm, 1, moments_of(values, d))
    projection = state.arrays["projection"] / 2**16
    np.testing.assert_allclose(
        projection.T @ projection, np.diag(np.arange(64) < n_live), atol=1e-3
    )
    variances = real(state, "prior")
    assert (variances[:n_live] > 1e-6).all()
    np.testing.assert_allclose(variances[n_live:], 1e-9, rtol=1e-6)
    total = variances[:n_live].sum() + real(state, "rest")[0]
    assert total == pytest.approx(values.sum() / 1e5, rel=0.05)
    # The leading eigenvectors are the first columns of the records.
    if n_clear <= 64:
        inside = np.square(projection[:n_clear, :n_clear]).sum()
        assert inside == pytest.approx(n_clear, abs=1e-2)
    assert algorithm.warnings(state) == ()


@pytest.mark.claim("guarantees", "22")
def test_a_released_mixture_has_only_the_live_directions():
    d = 140
    algorithm = build(Ball(1.0, [0.0] * d), 2, EXACT, n_records=2000)
    records = RNG(0).normal(size=(2000, d)) * 0.02
    records[:, 0] += np.where(np.arange(2000) % 2, 0.4, -0.4)
    state = run_of(algorithm, [records])
    whole = algorithm.mixture.learned(state)
    assert whole.directions.shape == (d, 64)
    state.arrays["projection"][:, 16:] = 0
    mixture = algorithm.mixture.learned(state)
    assert mixture.directions.shape == (d, 16)
    assert mixture.means.shape[1] == mixture.scales.shape[1] == 16
    np.testing.assert_allclose(
        mixture.directions.T @ mixture.directions, np.eye(16), atol=1e-9
    )
    assert mixture.rest == pytest.approx(whole.rest * (d - 64) / (d - 16))


# ----------------------------------------------------------------- doubts beside them


def test_the_scale_of_doubts_is_learned_from_many_moves():
    """Moves of k centroids in m columns have the variance s P + R in each of them."""
    rng, k, m = RNG(4), 20, 600
    doubts = rng.uniform(0.5, 2.0, k) * 1e-3
    errors = rng.uniform(0.5, 2.0, k) * 1e-4
    every = np.ones(k, dtype=bool)
    for scale in (0.02, 0.5, 1.0, 3.0):
        deviations = np.sqrt(scale * doubts + errors)
        moves = rng.normal(size=(k, m)) * deviations[:, None]
        squares = np.square(moves).sum(axis=1)
        found = learned_scale(squares, doubts, errors, m, every)
        assert found == pytest.approx(scale, abs=0.01 + 0.05 * scale)
        # Clusters that are held teach nothing.
        squares[3] = 1e9
        without = learned_scale(squares, doubts, errors, m, np.arange(k) != 3)
        assert without == pytest.approx(scale, abs=0.01 + 0.05 * scale)


def test_where_nothing_can_be_learned_the_scale_is_one():
    one = np.ones(2)
    nothing = np.zeros(2, dtype=bool)
    assert learned_scale(one, one, one, 9, nothing) == 1.0
    assert learned_scale(one, np.zeros(2), one, 9, ~nothing) == 1.0
    # Much noise: close to 1.
    assert learned_scale(9e6 * one, one, 1e6 * one, 9, ~nothing) == pytest.approx(1.0)
    # Never below a thousandth.
    assert learned_scale(0 * one, one, 1e-9 * one, 10**6, ~nothing) == 1e-3


@pytest.mark.parametrize("length", [0.0, 1e-3, 1.0, 1e6])
def test_squared_lengths_beside_directions_are_those_of_moves_of_any_length(length):
    columns = np.linalg.qr(RNG(1).normal(size=(30, 4)))[0]
    directions = np.rint(columns * 2**16).astype(np.int64)
    directions[:, 3] = 0
    moves = RNG(2).normal(size=(5, 30))
    moves *= length / np.linalg.norm(moves, axis=1, keepdims=True)
    along = moves @ columns[:, :3]
    expected = np.square(moves).sum(axis=1) - np.square(along).sum(axis=1)
    found = squares_beside(moves, directions, 16)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-12)


@pytest.mark.claim("guarantees", "22")
def test_doubts_beside_live_directions_follow_the_moves():
    """Centroids that are right beside the directions are moved less there."""
    d = 150
    algorithm = build(Ball(1.0, [0.0] * d), 2, n_records=10**5)
    noise = algorithm.noise_of(algorithm.n_rounds)["sums"] / 2**16
    live = np.zeros((d, 64), dtype=np.int64)
    live[:2, :2] = 2**16 * np.eye(2, dtype=np.int64)
    before = {
        "centroids": np.zeros((2, d), dtype=np.int64),
        "radius": np.array([2**15]),
        "first": np.array([0.5]),
        "mean_square": np.array([0.5]),
        "moves": np.zeros((2, d)),
        "counts": np.array([2e3, 2e3]),
        "projection": live,
        "prior": np.full(64, 1e-9),
        "rest": np.array([0.4]),
        "within": np.append(np.zeros(64), 0.003),
        "doubts": np.hstack([np.full((2, 64), 1e-3), np.full((2, 1), 1e-3)]),
    }
    rng = RNG(7)
    sums = rng.normal(size=(2, d)) * noise
    state = after(
        algorithm, algorithm.n_rounds, {"sums": sums, "counts": [2e3] * 2}, before
    )
    error = (0.5 * noise / 2e3) ** 2
    # Nothing but noise was seen there: the doubts are a hundredth of what they were.
    assert (real(state, "doubts")[:, -1] < 0.6 * error).all()
    assert real(state, "within")[-1] < 0.01 * 0.003
    moved = real(state, "moves")[:, 2:]
    raw = 0.5 * sums[:, 2:] / 2e3
    assert np.square(moved).sum() < 0.3 * np.square(raw).sum()
    # Without second moments, and so with random directions, nothing is learned.
    blind = replace(algorithm, schedule=replace(algorithm.schedule, moments=False))
    other = after(blind, blind.n_rounds, {"sums": sums, "counts": [2e3] * 2}, before)
    assert real(other, "within")[-1] == pytest.approx(0.003)
    kept = real(other, "moves")[:, 2:]
    assert np.square(kept).sum() > 0.8 * np.square(raw).sum()
