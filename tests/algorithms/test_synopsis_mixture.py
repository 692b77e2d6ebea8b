"""The mixture of SynopsisKMeans, by the formulas of the guarantees."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms import synopsis_mixture as model
from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.algorithms.numerics.grid_kmeans import GridCenters
from flower_kmeans.algorithms.numerics.initialization import public_words
from flower_kmeans.algorithms.synopsis_mixture import (
    MODEL_BITS,
    Mixture,
    Noise,
    Partition,
    Released,
)

RNG = np.random.default_rng
STEP = 2.0**-MODEL_BITS
WORDS = public_words


@pytest.mark.parametrize(
    ("found", "error", "expected"),
    [
        (0.6, 0.0, 0.6),
        (0.6, 0.2, 0.425),  # halfway to what is likely
        (0.6, 0.1, (0.25 / 0.04 + 0.6 / 0.01) / (1 / 0.04 + 1 / 0.01)),
        (0.6, 1e9, 0.25),
        (7.0, 0.0, 1.0),
        (-7.0, 0.0, 0.0005),
        (-7.0, 0.01, 0.003),
        (-7.0, 0.1, 0.006),
    ],
)
def test_the_mean_norm_is_between_what_was_found_and_what_is_likely(
    found, error, expected
):
    assert model.mean_norm(found, error) == pytest.approx(expected)


def test_directions_above_the_noise_keep_their_variance_and_the_others_share_the_rest():
    values = np.array([0.5, 0.1101, 0.1099, -0.3])
    found, n_clear = model.spectrum(values, 0.1, 0.8)
    first = (0.5 + math.sqrt(0.25 - 0.01)) / 2
    second = (0.1101 + math.sqrt(0.1101**2 - 0.01)) / 2
    rest = (0.8 - first - second) / 2
    np.testing.assert_allclose(found, [first, second, rest, rest])
    assert n_clear == 2
    exact, n_clear = model.spectrum(np.array([0.5, 0.2, 0.0]), 0.0, 0.7)
    # 2 % are left for what has none
    np.testing.assert_allclose(exact, [0.5, 0.2, 0.014])
    assert n_clear == 2
    none, n_clear = model.spectrum(np.array([0.05, -0.05]), 0.1, 0.25)
    np.testing.assert_allclose(none, [0.125, 0.125])
    assert n_clear == 0
    # No direction is without variance.
    np.testing.assert_array_equal(
        model.spectrum(np.zeros(2), 0.0, 1e-9)[0], [1e-7, 1e-7]
    )


def mixture_of(weights, means, scales):
    """Parts whose means are exact."""
    return Mixture(
        *(np.asarray(part, float) for part in (weights, means, scales)), 0.0 * means
    )


def test_samples_have_the_mixtures_moments_and_lie_in_the_ball():
    mixture = mixture_of(
        [3, 1], np.array([[0.1, 0.0], [-0.3, 0.2]]), [[0.01, 0.02]] * 2
    )
    points = model.sample(mixture, 40_000, WORDS(0)) * STEP
    first = points[:, 0] > -0.1
    # Parts are not drawn: each has its share, to a point.
    assert abs(first.sum() - 30_000) <= 1
    error = 10 * np.array([0.01, 0.02]) / math.sqrt(9000)  # ten standard errors
    assert (np.abs(points[first].mean(axis=0) - [0.1, 0.0]) < error).all()
    assert (np.abs(points[~first].mean(axis=0) - [-0.3, 0.2]) < error).all()
    deviations = points[first].std(axis=0) / [0.01, 0.02]
    np.testing.assert_allclose(deviations, 1, atol=10 / math.sqrt(2 * 30_000))
    far = mixture_of([1], np.full((1, 2), 3.0), np.ones((1, 2)))
    assert (
        np.linalg.norm(model.sample(far, 1000, WORDS(0)) * STEP, axis=1).max()
        <= 1 + 2 * STEP
    )


def test_integers_for_weights_and_points_are_of_the_right_size():
    found = model.masses(np.array([1e-9, 1.0, 3.0, 2.0**46]))
    assert found.dtype == np.int64
    assert found.min() >= 1
    np.testing.assert_allclose(
        model.masses(np.array([1.0, 3.0])) / 2**26, [0.25, 0.75], atol=1e-7
    )
    found = model.on_grid(np.array([[1e300, -1e300], [0.5, 0.25]]))
    np.testing.assert_array_equal(found, [[2**17, -(2**17)], [2**15, 2**14]])


@pytest.mark.parametrize("p", [1, 5])
def test_cells_are_on_the_grid_and_their_radii_follow_the_model(p):
    mixture = model.prior(np.linspace(0.02, 0.01, p))
    step = 2.0**-20
    cells = model.partition(mixture, 12, 1.7, step, WORDS(1))
    # the same, from the same words
    points = model.sample(mixture, max(20 * 12, 240), WORDS(1))
    assert not (cells.centers % 16).any()  # the model's grid is coarser
    labels = model.nearest(points, cells.centers >> 4)
    squares = ((points - (cells.centers >> 4)[labels]) * STEP) ** 2
    assert cells.spread == pytest.approx(squares.sum(axis=1).mean())
    assert set(labels) == set(range(12))
    for j in range(12):
        mine = squares[labels == j]
        variance = (mine.sum(axis=0) + 5 * squares.mean(axis=0)) / (len(mine) + 5)
        np.testing.assert_allclose(cells.variances[j], variance)
        length = 1.7 * math.sqrt(max(variance.sum(), 0.64 * cells.spread))
        assert cells.radii[j] == pytest.approx(min(1.0, length) / step, abs=1)
    assert cells.centers.dtype == cells.radii.dtype == np.int64


def recipe(cells, released, noise, n_records):
    """What is learned of cells, one at a time."""
    radii, spread = cells.radii * STEP, cells.spread
    order = sorted(range(len(radii)), key=lambda j: -released.counts[j])
    kept, total = [], 0.0
    for j in order:
        if total <= n_records and released.counts[j] > max(noise.counts, 0):
            kept.append(j)
        total += released.counts[j]
    kept = sorted(kept)
    sizes = [released.counts[j] for j in kept]
    means, shares = [], []
    for j, n in zip(kept, sizes, strict=True):
        gain = cells.variances[j] / (
            cells.variances[j] + (radii[j] * noise.sums / n) ** 2
        )
        mean = radii[j] * released.sums[j] / n * gain
        length = np.linalg.norm(mean)
        means.append(mean * min(1.0, radii[j] / length))
        shares.append(cells.variances[j] / cells.variances[j].sum())
    squares = [radii[j] ** 2 * (released.counts[j] - released.slacks[j]) for j in kept]
    lost = [n * (mean @ mean) for n, mean in zip(sizes, means, strict=True)]
    pooled = np.clip((sum(squares) - sum(lost)) / sum(sizes), 0.02 * spread, 4 * spread)
    variances = []
    for j, n, q, mean in zip(kept, sizes, squares, means, strict=True):
        error = radii[j] ** 2 * math.hypot(noise.slacks, noise.counts) / n
        weight = pooled**2 / (pooled**2 + error**2)
        own = pooled + weight * (q / n - mean @ mean - pooled)
        variances.append(np.clip(own, 0.05 * pooled, 6 * cells.variances[j].sum()))
    scales = np.sqrt(np.array(shares) * np.array(variances)[:, None])
    left = []
    for j, n in zip(kept, sizes, strict=True):
        error = (radii[j] * noise.sums / n) ** 2
        left.append(1 / (1 / cells.variances[j] + 1 / error))
    return (
        np.array(sizes),
        cells.centers[kept] * STEP + np.array(means),
        scales,
        np.array(left),
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_is_learned_of_cells_is_what_the_recipe_says(seed):
    rng = RNG(seed)
    cells = model.partition(model.prior(np.full(3, 0.05)), 20, 2.0, STEP, WORDS(seed))
    noise = Noise(*rng.uniform(1, 30, 3))
    counts = rng.normal(50, 60, 20)
    released = Released(
        rng.normal(size=(20, 3)) * counts[:, None] * 0.5,
        counts,
        rng.uniform(0, 1, 20) * counts + noise.slacks * rng.normal(size=20),
    )
    n_records = rng.uniform(100, 2000)
    mixture, stood_out = model.learned(cells, released, noise, STEP, n_records)
    kept = mixture.weights > 0
    for found, expected in zip(
        mixture, recipe(cells, released, noise, n_records), strict=True
    ):
        np.testing.assert_allclose(found[kept], expected, rtol=1e-12)
    assert stood_out


@pytest.mark.parametrize(
    ("squares", "noise", "factor"),
    [
        # all at the radius, 1/4 from the centre: six times the model's at most
        (100.0, 0.0, 6.0),
        (0.0, 0.0, 0.001),  # a twentieth of what all cells have at least
        # where nothing is known, that of all cells, four times at most
        (100.0, 1e12, 4.0),
        (0.0, 1e12, 0.02),  # and a fiftieth at least
        (24.0, 0.0, 1.5),
    ],
)
def test_variances_stay_near_those_of_the_model(squares, noise, factor):
    """A radius of 1/2, a hundred records, and a variance of 0.04 before."""
    before = np.array([[0.01, 0.03]])
    cells = Partition(np.zeros((1, 2)), np.array([2**15]), before, 0.04, np.zeros(1))
    released = Released(
        np.zeros((1, 2)), np.array([100.0]), np.array([100.0 - squares])
    )
    found, _ = model.learned(cells, released, Noise(0.0, 0.0, noise), STEP, math.inf)
    np.testing.assert_allclose(found.scales**2, factor * before, rtol=1e-6)


def test_of_cells_that_are_all_noise_the_largest_is_kept():
    cells = model.partition(model.prior(np.full(2, 0.05)), 4, 2.0, STEP, WORDS(0))
    noise = Noise(10.0, 10.0, 10.0)
    released = Released(
        np.zeros((4, 2)), np.array([-3.0, 9.0, 2.0, -40.0]), np.zeros(4)
    )
    (weights, means, _, _), stood_out = model.learned(
        cells, released, noise, STEP, 100.0
    )
    np.testing.assert_array_equal(weights, [0.0, 10.0, 0.0, 0.0])
    np.testing.assert_allclose(means[1], cells.centers[1] * STEP)
    assert not stood_out


def test_records_are_expected_where_the_model_has_them():
    mixture = mixture_of([30, 10], np.array([[0.5], [-0.5]]), np.full((2, 1), 1e-3))
    cells = model.partition(mixture, 2, 2.0, STEP, WORDS(0))
    order = np.argsort(cells.centers[:, 0])
    np.testing.assert_allclose(cells.expected[order], [10, 30])
    # Cells for what was not counted: nothing is expected there.
    unseen = mixture_of([40], np.array([[0.0]]), np.full((1, 1), 1e-3))
    more = model.partition(mixture, 3, 2.0, STEP, WORDS(0), unseen)
    order = np.argsort(more.centers[:, 0])
    np.testing.assert_allclose(
        more.centers[order, 0] * STEP, [-0.5, 0.0, 0.5], atol=0.01
    )
    np.testing.assert_allclose(more.expected[order], [10, 0, 30], atol=1)


def test_cells_that_are_absent_stay_in_the_model():
    cells = model.partition(model.prior(np.full(2, 0.05)), 4, 2.0, STEP, WORDS(0))
    cells = cells._replace(expected=np.array([7.0, 70.0, 9.0, 30.0]))
    released = Released(
        np.full((4, 2), 5.0), np.array([90.0, 60.0, 50.0, 80.0]), np.full(4, 9.0)
    )
    noise, missing = Noise(2.0, 3.0, 4.0), np.array([False, True, False, True])
    found, stood_out = model.learned(cells, released, noise, STEP, 1e9, missing)
    others = np.flatnonzero(~missing)
    rest = Partition(*(part if np.ndim(part) == 0 else part[others] for part in cells))
    alone, _ = model.learned(
        rest, Released(*(part[others] for part in released)), noise, STEP, 1e9
    )
    held = Mixture(
        np.array([70.0, 30.0]),
        cells.centers[missing] * STEP,
        np.sqrt(cells.variances[missing]),
        cells.variances[missing],
    )
    for part, counted, stayed in zip(found, alone, held, strict=True):
        np.testing.assert_allclose(part[others], counted)
        np.testing.assert_allclose(part[missing], stayed)
    assert stood_out
    # If nothing else stands out, they are all that is left.
    quiet = released._replace(counts=np.array([1.0, 60.0, 2.0, 80.0]))
    found, stood_out = model.learned(cells, quiet, noise, STEP, 1e9, missing)
    np.testing.assert_array_equal(found.weights, [0.0, 70.0, 0.0, 30.0])
    np.testing.assert_allclose(found.means[missing], cells.centers[missing] * STEP)
    np.testing.assert_allclose(found.scales[missing], np.sqrt(cells.variances[missing]))
    assert stood_out


# ----------------------------------------------------------------- centroids


def test_centroids_are_those_of_the_parts_by_their_weight():
    mixture = Mixture(
        np.array([3.0, 1.0, 5.0]),
        np.array([[0.0, 0.0], [0.04, 0.0], [0.5, 0.5]]),
        np.array([[0.1, 0.0], [0.0, 0.02], [0.1, 0.1]]),
        np.array([[0.01, 0.02], [0.03, 0.0], [0.04, 0.04]]),
    )
    found = model.select(mixture, 2, WORDS(0))
    order = np.argsort(found.centers[:, 0])
    np.testing.assert_allclose(
        found.centers[order], [[0.01, 0.0], [0.5, 0.5]], atol=2 * STEP
    )
    np.testing.assert_array_equal(found.counts[order], [4.0, 5.0])
    within = [3 * (0.0001 + 0.01) + 0.0009 + 5 * 0.01, 0.0004 + 5 * 0.01]
    np.testing.assert_allclose(found.within, np.array(within) / 9, rtol=1e-3)
    doubts = [[(9 * 0.01 + 0.03) / 16, 9 * 0.02 / 16], [0.04, 0.04]]
    np.testing.assert_allclose(found.doubts[order], doubts)
    assert not found.few


def test_centroids_go_on_from_the_means_to_points_of_the_mixture():
    """One of three parts is so wide that half of it belongs to the others' sides."""
    wide = mixture_of(
        [1.0, 1.0, 1.0],
        np.array([[-0.3], [0.0], [0.35]]),
        np.array([[0.01], [0.2], [0.01]]),
    )
    found = np.sort(model.select(wide, 2, WORDS(0)).centers[:, 0])
    # By the means alone they would be -0.15 and 0.35.
    rng = RNG(0)
    parts = ((-0.3, 0.01), (0.0, 0.2), (0.35, 0.01))
    points = np.concatenate([rng.normal(mean, scale, 100_000) for mean, scale in parts])
    left = points < found.mean()
    # Forty points of the wide part, of which half count: 0.06 is three standard errors
    # of these.
    np.testing.assert_allclose(
        found, [points[left].mean(), points[~left].mean()], atol=0.06
    )
    assert found[1] < 0.34


@pytest.mark.parametrize(
    ("m", "k", "n_starts"), [(3, 2, 25), (700, 500, 11), (1500, 500, 5)]
)
def test_starts_are_fewer_where_each_takes_long(m, k, n_starts, monkeypatch):
    starts = []

    def first(points, weights, n_clusters, source, n_starts, n_steps):
        starts.append(n_starts)
        return GridCenters(points[:n_clusters], 0.0)

    monkeypatch.setattr(model, "grid_kmeans", first)
    model.select(
        mixture_of(np.ones(m), RNG(0).normal(size=(m, 1)), np.full((m, 1), 0.1)),
        k,
        WORDS(0),
    )
    assert starts == [n_starts]


def test_too_few_parts_are_filled_up_from_the_mixture():
    mixture = mixture_of([2.0], np.array([[0.3, -0.1]]), np.array([[0.01, 0.02]]))
    found = model.select(mixture, 5, WORDS(0))
    assert found.few
    np.testing.assert_allclose(found.centers[0], [0.3, -0.1], atol=STEP)
    others = (found.centers[1:] - [0.3, -0.1]) / [0.01, 0.02]
    assert len(np.unique(others)) == 8
    assert np.abs(others).max() < 10
    assert found.counts.sum() == 2.0


# ----------------------------------------------------------------- points with masses


def random_mixture(m, p, seed=0):
    rng = RNG(seed)
    shape = (m, p)
    means, scales = rng.uniform(-0.4, 0.4, shape), rng.uniform(0.01, 0.05, shape)
    return Mixture(rng.uniform(1, 30, m), means, scales, np.full(shape, 1e-4))


def test_points_are_drawn_again_from_what_a_state_keeps():
    made = random_mixture(8, 3)
    arrays = model.in_state(made)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}
    points = model.drawn_points(arrays, 4, WORDS(9))
    np.testing.assert_array_equal(points, model.drawn_points(arrays, 4, WORDS(9)))
    assert (points != model.drawn_points(arrays, 4, WORDS(8))).any()
    assert points.shape == (4000, 3)
    center = (made.weights[:, None] * made.means).sum(axis=0) / made.weights.sum()
    np.testing.assert_allclose(
        points.mean(axis=0) * 2.0**-MODEL_BITS, center, atol=0.005
    )


def test_starts_with_bounds_have_cells_within_them():
    made = random_mixture(12, 2, seed=3)
    points = model.drawn_points(model.in_state(made), 4, WORDS(1))
    found, weights = model.select_within(made, points, 4, (0.22, 0.28), WORDS(2))
    centers = np.rint(found.centers * 2.0**MODEL_BITS).astype(np.int64)
    labels, d2 = assign(points.astype(np.float64), centers, weights)
    shares = np.bincount(labels, minlength=4) / len(points)
    assert (shares > 0.21).all()
    assert (shares < 0.29).all()
    np.testing.assert_allclose(found.counts, shares * math.fsum(made.weights))
    cost = d2.mean() * 4.0**-MODEL_BITS
    assert math.fsum(found.within) == pytest.approx(cost)
    assert not found.few
    free, none = model.select_within(made, points, 4, (0.0, 1.0), WORDS(2))
    assert not none.any()
    assert math.fsum(free.within) < math.fsum(found.within)
    # Equal parts lose doubt by their number: of three equal ones a third is left.
    assert (found.doubts > 1e-4 / 12).all()
    assert (found.doubts <= 1e-4).all()


def test_too_few_parts_are_filled_with_points():
    made = random_mixture(2, 2)
    points = model.drawn_points(model.in_state(made), 5, WORDS(1))
    found, _ = model.select_within(made, points, 5, (0.1, 0.3), WORDS(2))
    assert found.few
    assert len(np.unique(found.centers, axis=0)) == 5
    again, _ = model.select_within(made, points, 5, (0.1, 0.3), WORDS(2))
    np.testing.assert_array_equal(found.centers, again.centers)
