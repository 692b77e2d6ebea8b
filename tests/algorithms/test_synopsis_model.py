"""What the server of SynopsisKMeans makes of noisy sums, by the formulas of the guarantees."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms import synopsis_model
from flower_kmeans.algorithms.grid_kmeans import GridCenters
from flower_kmeans.algorithms.synopsis_model import (
    Answers,
    Mixture,
    Noise,
    Partition,
    absent,
    continued,
    learned,
    masses,
    mean_norm,
    nearest,
    on_grid,
    partition,
    prior,
    sample,
    select,
    shortened,
    spectrum,
    steps_of,
    weighed,
)
from flower_kmeans.initialization import public_words

RNG = np.random.default_rng
STEP = 2.0**-16
WORDS = public_words


# ----------------------------------------------------------------- second moments


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
def test_the_mean_norm_is_between_what_was_found_and_what_is_likely(found, error, expected):
    assert mean_norm(found, error) == pytest.approx(expected)


def test_directions_above_the_noise_keep_their_variance_and_the_others_share_the_rest():
    values = np.array([0.5, 0.1101, 0.1099, -0.3])
    found, n_clear = spectrum(values, 0.1, 0.8)
    first = (0.5 + math.sqrt(0.25 - 0.01)) / 2
    second = (0.1101 + math.sqrt(0.1101**2 - 0.01)) / 2
    rest = (0.8 - first - second) / 2
    np.testing.assert_allclose(found, [first, second, rest, rest])
    assert n_clear == 2
    exact, n_clear = spectrum(np.array([0.5, 0.2, 0.0]), 0.0, 0.7)
    np.testing.assert_allclose(exact, [0.5, 0.2, 0.014])  # 2 % are left for what has none
    assert n_clear == 2
    none, n_clear = spectrum(np.array([0.05, -0.05]), 0.1, 0.25)
    np.testing.assert_allclose(none, [0.125, 0.125])
    assert n_clear == 0


def test_no_direction_is_without_variance():
    np.testing.assert_array_equal(spectrum(np.zeros(2), 0.0, 1e-9)[0], [1e-7, 1e-7])


def test_before_any_cell_is_known_a_fifth_is_spread_three_times_as_wide():
    weights, means, scales, errors = prior(np.array([0.04, 0.01]))
    np.testing.assert_array_equal(errors, np.zeros((2, 2)))
    np.testing.assert_allclose(weights, [0.8, 0.2])
    np.testing.assert_array_equal(means, np.zeros((2, 2)))
    np.testing.assert_allclose(scales, [[0.2, 0.1], [0.6, 0.3]])


# ----------------------------------------------------------------- cells


def mixture_of(weights, means, scales):
    """Parts whose means are exact."""
    return Mixture(*(np.asarray(part, float) for part in (weights, means, scales)), 0.0 * means)


def test_samples_have_the_mixtures_moments_and_lie_in_the_ball():
    mixture = mixture_of([3, 1], np.array([[0.1, 0.0], [-0.3, 0.2]]), [[0.01, 0.02]] * 2)
    points = sample(mixture, 40_000, WORDS(0)) * STEP
    first = points[:, 0] > -0.1
    # Parts are not drawn: each has its share, to a point.
    assert abs(first.sum() - 30_000) <= 1
    error = 10 * np.array([0.01, 0.02]) / math.sqrt(9000)  # ten standard errors
    assert (np.abs(points[first].mean(axis=0) - [0.1, 0.0]) < error).all()
    assert (np.abs(points[~first].mean(axis=0) - [-0.3, 0.2]) < error).all()
    deviations = points[first].std(axis=0) / [0.01, 0.02]
    np.testing.assert_allclose(deviations, 1, atol=10 / math.sqrt(2 * 30_000))
    far = mixture_of([1], np.full((1, 2), 3.0), np.ones((1, 2)))
    assert np.linalg.norm(sample(far, 1000, WORDS(0)) * STEP, axis=1).max() <= 1 + 2 * STEP


def test_masses_are_positive_and_in_proportion():
    found = masses(np.array([1e-9, 1.0, 3.0, 2.0**46]))
    assert found.dtype == np.int64
    assert found.min() >= 1
    np.testing.assert_allclose(masses(np.array([1.0, 3.0])) / 2**26, [0.25, 0.75], atol=1e-7)


@pytest.mark.parametrize("p", [1, 5])
def test_cells_are_on_the_grid_and_their_radii_follow_the_model(p):
    mixture = prior(np.linspace(0.02, 0.01, p))
    step = 2.0**-20
    cells = partition(mixture, 12, 1.7, step, WORDS(1))
    points = sample(mixture, max(20 * 12, 240), WORDS(1))  # the same, from the same words
    assert not (cells.centers % 16).any()  # the model's grid is coarser
    labels = nearest(points, cells.centers >> 4)
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


@pytest.mark.parametrize(("n_cells", "size"), [(5, 100), (150, 2000), (300, 3000)])
def test_samples_have_twenty_points_for_a_cell_or_two_thousand_or_ten_for_a_cell(n_cells, size):
    """Records of the model are counted in points of a sample."""
    cells = partition(prior(np.array([0.05])), n_cells, 2.0, STEP, WORDS(0))
    points = cells.expected * size
    np.testing.assert_allclose(points, np.rint(points), atol=1e-6)


def told(cells, answers, noise, n_records):
    """The recipe, one cell at a time."""
    radii, spread = cells.radii * STEP, cells.spread
    order = sorted(range(len(radii)), key=lambda j: -answers.counts[j])
    kept, total = [], 0.0
    for j in order:
        if total <= n_records and answers.counts[j] > max(noise.counts, 0):
            kept.append(j)
        total += answers.counts[j]
    kept = sorted(kept)
    sizes = [answers.counts[j] for j in kept]
    means, shares = [], []
    for j, n in zip(kept, sizes, strict=True):
        gain = cells.variances[j] / (cells.variances[j] + (radii[j] * noise.sums / n) ** 2)
        mean = radii[j] * answers.sums[j] / n * gain
        length = np.linalg.norm(mean)
        means.append(mean * min(1.0, radii[j] / length))
        shares.append(cells.variances[j] / cells.variances[j].sum())
    squares = [radii[j] ** 2 * (answers.counts[j] - answers.slacks[j]) for j in kept]
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
    return np.array(sizes), cells.centers[kept] * STEP + np.array(means), scales, np.array(left)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_learned_of_cells_is_what_the_recipe_says(seed):
    rng = RNG(seed)
    cells = partition(prior(np.full(3, 0.05)), 20, 2.0, STEP, WORDS(seed))
    noise = Noise(*rng.uniform(1, 30, 3))
    counts = rng.normal(50, 60, 20)
    answers = Answers(
        rng.normal(size=(20, 3)) * counts[:, None] * 0.5,
        counts,
        rng.uniform(0, 1, 20) * counts + noise.slacks * rng.normal(size=20),
    )
    n_records = rng.uniform(100, 2000)
    mixture, stood_out = learned(cells, answers, noise, STEP, n_records)
    kept = mixture.weights > 0
    for found, expected in zip(mixture, told(cells, answers, noise, n_records), strict=True):
        np.testing.assert_allclose(found[kept], expected, rtol=1e-12)
    assert stood_out


@pytest.mark.parametrize(
    ("squares", "noise", "factor"),
    [
        (100.0, 0.0, 6.0),  # all at the radius, 1/4 from the centre: six times the model's at most
        (0.0, 0.0, 0.001),  # a twentieth of what all cells have at least
        (100.0, 1e12, 4.0),  # where nothing is known, that of all cells, four times at most
        (0.0, 1e12, 0.02),  # and a fiftieth at least
        (24.0, 0.0, 1.5),
    ],
)
def test_variances_stay_near_those_of_the_model(squares, noise, factor):
    """A radius of 1/2, a hundred records, and a variance of 0.04 before."""
    model = np.array([[0.01, 0.03]])
    cells = Partition(np.zeros((1, 2)), np.array([2**15]), model, 0.04, np.zeros(1))
    answers = Answers(np.zeros((1, 2)), np.array([100.0]), np.array([100.0 - squares]))
    found, _ = learned(cells, answers, Noise(0.0, 0.0, noise), STEP, math.inf)
    np.testing.assert_allclose(found.scales**2, factor * model, rtol=1e-6)


def test_of_cells_that_are_all_noise_the_largest_is_kept():
    cells = partition(prior(np.full(2, 0.05)), 4, 2.0, STEP, WORDS(0))
    noise = Noise(10.0, 10.0, 10.0)
    answers = Answers(np.zeros((4, 2)), np.array([-3.0, 9.0, 2.0, -40.0]), np.zeros(4))
    (weights, means, _, _), stood_out = learned(cells, answers, noise, STEP, 100.0)
    np.testing.assert_array_equal(weights, [0.0, 10.0, 0.0, 0.0])
    np.testing.assert_allclose(means[1], cells.centers[1] * STEP)
    assert not stood_out


def test_records_are_expected_where_the_model_has_them():
    mixture = mixture_of([30, 10], np.array([[0.5], [-0.5]]), np.full((2, 1), 1e-3))
    cells = partition(mixture, 2, 2.0, STEP, WORDS(0))
    order = np.argsort(cells.centers[:, 0])
    np.testing.assert_allclose(cells.expected[order], [10, 30])
    # Cells for what was not counted: nothing is expected there.
    unseen = mixture_of([40], np.array([[0.0]]), np.full((1, 1), 1e-3))
    more = partition(mixture, 3, 2.0, STEP, WORDS(0), unseen)
    order = np.argsort(more.centers[:, 0])
    np.testing.assert_allclose(more.centers[order, 0] * STEP, [-0.5, 0.0, 0.5], atol=0.01)
    np.testing.assert_allclose(more.expected[order], [10, 0, 30], atol=1)


def test_absent_are_cells_with_far_fewer_records_than_noise_explains():
    expected = np.array([100.0, 100.0, 100.0, 51.0, 49.0, 0.0])
    counts = np.array([24.0, 26.0, -80.0, 0.0, 0.0, -90.0])
    assert absent(expected, counts, 5.0).tolist() == [True, False, True, True, False, False]
    # Without noise, from ten records on.
    assert absent(np.array([10.0, 11.0]), np.zeros(2), 0.0).tolist() == [False, True]


def test_cells_that_are_absent_stay_in_the_model():
    cells = partition(prior(np.full(2, 0.05)), 4, 2.0, STEP, WORDS(0))
    cells = cells._replace(expected=np.array([7.0, 70.0, 9.0, 30.0]))
    answers = Answers(np.full((4, 2), 5.0), np.array([90.0, 60.0, 50.0, 80.0]), np.full(4, 9.0))
    noise, missing = Noise(2.0, 3.0, 4.0), np.array([False, True, False, True])
    found, stood_out = learned(cells, answers, noise, STEP, 1e9, missing)
    others = np.flatnonzero(~missing)
    rest = Partition(*(part if np.ndim(part) == 0 else part[others] for part in cells))
    alone, _ = learned(rest, Answers(*(part[others] for part in answers)), noise, STEP, 1e9)
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
    quiet = answers._replace(counts=np.array([1.0, 60.0, 2.0, 80.0]))
    found, stood_out = learned(cells, quiet, noise, STEP, 1e9, missing)
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
    found = select(mixture, 2, WORDS(0))
    order = np.argsort(found.centers[:, 0])
    np.testing.assert_allclose(found.centers[order], [[0.01, 0.0], [0.5, 0.5]], atol=2 * STEP)
    np.testing.assert_array_equal(found.counts[order], [4.0, 5.0])
    within = [3 * (0.0001 + 0.01) + 0.0009 + 5 * 0.01, 0.0004 + 5 * 0.01]
    np.testing.assert_allclose(found.within, np.array(within) / 9, rtol=1e-3)
    doubts = [[(9 * 0.01 + 0.03) / 16, 9 * 0.02 / 16], [0.04, 0.04]]
    np.testing.assert_allclose(found.doubts[order], doubts)
    assert not found.few


def test_centroids_go_on_from_the_means_to_points_of_the_mixture():
    """One of three parts is so wide that half of it belongs to the others' sides."""
    wide = mixture_of(
        [1.0, 1.0, 1.0], np.array([[-0.3], [0.0], [0.35]]), np.array([[0.01], [0.2], [0.01]])
    )
    found = np.sort(select(wide, 2, WORDS(0)).centers[:, 0])
    # By the means alone they would be -0.15 and 0.35.
    rng = RNG(0)
    parts = ((-0.3, 0.01), (0.0, 0.2), (0.35, 0.01))
    points = np.concatenate([rng.normal(mean, scale, 100_000) for mean, scale in parts])
    left = points < found.mean()
    # Forty points of the wide part, of which half count: 0.06 is three standard errors of these.
    np.testing.assert_allclose(found, [points[left].mean(), points[~left].mean()], atol=0.06)
    assert found[1] < 0.34


@pytest.mark.parametrize(("m", "k", "n_starts"), [(3, 2, 25), (700, 500, 11), (1500, 500, 5)])
def test_starts_are_fewer_where_each_takes_long(m, k, n_starts, monkeypatch):
    asked = []

    def first(points, weights, n_clusters, source, n_starts, n_steps):
        asked.append(n_starts)
        return GridCenters(points[:n_clusters], 0.0)

    monkeypatch.setattr(synopsis_model, "grid_kmeans", first)
    select(mixture_of(np.ones(m), RNG(0).normal(size=(m, 1)), np.full((m, 1), 0.1)), k, WORDS(0))
    assert asked == [n_starts]


def test_too_few_parts_are_filled_up_from_the_mixture():
    mixture = mixture_of([2.0], np.array([[0.3, -0.1]]), np.array([[0.01, 0.02]]))
    found = select(mixture, 5, WORDS(0))
    assert found.few
    np.testing.assert_allclose(found.centers[0], [0.3, -0.1], atol=STEP)
    others = (found.centers[1:] - [0.3, -0.1]) / [0.01, 0.02]
    assert len(np.unique(others)) == 8
    assert np.abs(others).max() < 10
    assert found.counts.sum() == 2.0


def test_steps_are_means_of_residuals_within_the_radius():
    sums = np.array([[30.0, 0.0], [0.0, 400.0], [3.0, 0.0], [0.1, 0.0]])
    counts = np.array([100.0, 200.0, -50.0, 0.5])
    moves, sizes = steps_of(sums, counts, 0.1, 6.0)
    np.testing.assert_array_equal(sizes, [100.0, 200.0, 6.0, 6.0])
    np.testing.assert_allclose(moves, [[0.03, 0], [0, 0.1], [0.05, 0], [0.1 / 60, 0]])
    # Where there is no noise, a cluster without records stays.
    moves, sizes = steps_of(np.zeros((1, 2)), np.zeros(1), 0.1, 0.0)
    np.testing.assert_array_equal(sizes, [1.0])
    np.testing.assert_array_equal(moves, [[0.0, 0.0]])


def test_moves_go_on_as_far_as_they_point_the_same_way():
    moves = np.array([[1.0, 0.0], [3.0, 4.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1e-9, 0.0]])
    before = np.array([[2.0, 0.0], [0.0, 1.0], [0.0, 2.0], [-2.0, 1.0], [1.0, 1.0], [1e-9, 0.0]])
    expected = [[3.0, 0.0], [3.0, 4.8], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2e-9, 0.0]]
    np.testing.assert_allclose(continued(moves, before), expected, rtol=1e-12)
    np.testing.assert_array_equal(continued(moves, np.zeros((6, 2))), moves)


def basis(d, p, bits=16):
    """Orthonormal columns, on the grid."""
    directions = np.linalg.qr(RNG(1).normal(size=(d, p)))[0]
    return np.rint(directions * 2**bits).astype(np.int64)


def test_moves_without_noise_stay_whole_and_noise_leaves_nothing():
    directions = basis(5, 3)
    moves = RNG(0).normal(size=(4, 5)) * 0.1
    doubts = np.full((4, 4), 0.01)
    kept, left = weighed(moves, doubts, np.zeros(4), directions, 16)
    np.testing.assert_allclose(kept, moves, atol=1e-5)
    np.testing.assert_allclose(left, 0.0, atol=1e-15)
    kept, left = weighed(moves, doubts, np.full(4, 1e9), directions, 16)
    np.testing.assert_allclose(kept, 0.0, atol=1e-6)
    np.testing.assert_allclose(left, doubts, rtol=1e-9)
    # Where nothing is in doubt nothing moves, even without noise.
    kept, _ = weighed(moves, np.zeros((4, 4)), np.zeros(4), directions, 16)
    np.testing.assert_array_equal(kept, 0.0)


def test_moves_are_weighed_by_direction():
    """As Kalman's filter has it: P / (P + R) of each coordinate, and P R / (P + R) left."""
    directions, rng = basis(6, 2), RNG(2)
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


def test_points_far_outside_stay_on_the_grid():
    found = on_grid(np.array([[1e300, -1e300], [0.5, 0.25]]))
    np.testing.assert_array_equal(found, [[2**17, -(2**17)], [2**15, 2**14]])


def test_shortened_vectors_keep_their_direction():
    found = shortened(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), np.array([1.0, 1.0, 0.5]))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
