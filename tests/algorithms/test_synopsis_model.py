"""What the server of SynopsisKMeans makes of noisy sums, by the formulas of the guarantees."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms.synopsis_model import (
    Answers,
    Mixture,
    Noise,
    Partition,
    absent,
    continued,
    learned,
    mean_norm,
    partition,
    prior,
    residuals_of,
    sample,
    select,
    shortened,
    spectrum,
    steps_of,
)

RNG = np.random.default_rng
STEP = 2.0**-16


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
    weights, means, scales = prior(np.array([0.04, 0.01]))
    np.testing.assert_allclose(weights, [0.8, 0.2])
    np.testing.assert_array_equal(means, np.zeros((2, 2)))
    np.testing.assert_allclose(scales, [[0.2, 0.1], [0.6, 0.3]])


# ----------------------------------------------------------------- cells


def test_samples_have_the_mixtures_moments_and_lie_in_the_ball():
    mixture = Mixture(
        np.array([3.0, 1.0]), np.array([[0.1, 0.0], [-0.3, 0.2]]), np.array([[0.01, 0.02]] * 2)
    )
    points = sample(mixture, 40_000, RNG(0))
    first = points[:, 0] > -0.1
    # Ten standard errors of 30,000 draws of 40,000, and of their means.
    assert abs(first.mean() - 0.75) < 10 * math.sqrt(0.75 * 0.25 / 40_000)
    error = 10 * np.array([0.01, 0.02]) / math.sqrt(9000)
    assert (np.abs(points[first].mean(axis=0) - [0.1, 0.0]) < error).all()
    assert (np.abs(points[~first].mean(axis=0) - [-0.3, 0.2]) < error).all()
    far = Mixture(np.ones(1), np.full((1, 2), 3.0), np.ones((1, 2)))
    assert np.linalg.norm(sample(far, 1000, RNG(0)), axis=1).max() <= 1 + 1e-12


@pytest.mark.parametrize("p", [1, 5])
def test_cells_are_on_the_grid_and_their_radii_follow_the_model(p):
    mixture = prior(np.linspace(0.02, 0.01, p))
    cells = partition(mixture, 12, 1.7, STEP, RNG(1))
    points = sample(mixture, 20 * 12, RNG(1))  # the same, from the same numbers
    labels, residuals = residuals_of(points, cells.centers * STEP)
    squares = residuals**2
    assert cells.spread == pytest.approx(squares.sum(axis=1).mean())
    assert set(labels) == set(range(12))
    for j in range(12):
        mine = squares[labels == j]
        variance = (mine.sum(axis=0) + 5 * squares.mean(axis=0)) / (len(mine) + 5)
        np.testing.assert_allclose(cells.variances[j], variance)
        length = 1.7 * math.sqrt(max(variance.sum(), 0.64 * cells.spread))
        assert cells.radii[j] == int(min(1.0, length) / STEP)
    assert cells.centers.dtype == cells.radii.dtype == np.int64


@pytest.mark.parametrize(("n_cells", "size"), [(5, 100), (150, 2000), (300, 3000)])
def test_samples_have_twenty_points_for_a_cell_or_two_thousand_or_ten_for_a_cell(n_cells, size):
    """Records of the model are counted in points of a sample."""
    cells = partition(prior(np.array([0.05])), n_cells, 2.0, STEP, RNG(0))
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
    squares = [radii[j] ** 2 * answers.squares[j] for j in kept]
    lost = [n * (mean @ mean) for n, mean in zip(sizes, means, strict=True)]
    pooled = np.clip((sum(squares) - sum(lost)) / sum(sizes), 0.02 * spread, 4 * spread)
    variances = []
    for j, n, q, mean in zip(kept, sizes, squares, means, strict=True):
        error = radii[j] ** 2 * noise.squares / n
        weight = pooled**2 / (pooled**2 + error**2)
        own = pooled + weight * (q / n - mean @ mean - pooled)
        variances.append(np.clip(own, 0.05 * pooled, 6 * cells.variances[j].sum()))
    scales = np.sqrt(np.array(shares) * np.array(variances)[:, None])
    return np.array(sizes), cells.centers[kept] * STEP + np.array(means), scales


@pytest.mark.parametrize("seed", range(20))
def test_what_is_learned_of_cells_is_what_the_recipe_says(seed):
    rng = RNG(seed)
    cells = partition(prior(np.full(3, 0.05)), 20, 2.0, STEP, rng)
    noise = Noise(*rng.uniform(1, 30, 3))
    counts = rng.normal(50, 60, 20)
    answers = Answers(
        rng.normal(size=(20, 3)) * counts[:, None] * 0.5,
        counts,
        rng.uniform(0, 1, 20) * counts + noise.squares * rng.normal(size=20),
    )
    n_records = rng.uniform(100, 2000)
    mixture, stood_out = learned(cells, answers, noise, STEP, n_records)
    for found, expected in zip(mixture, told(cells, answers, noise, n_records), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
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
    answers = Answers(np.zeros((1, 2)), np.array([100.0]), np.array([squares]))
    found, _ = learned(cells, answers, Noise(0.0, 1.0, noise), STEP, math.inf)
    np.testing.assert_allclose(found.scales**2, factor * model, rtol=1e-6)


def test_of_cells_that_are_all_noise_the_largest_is_kept():
    cells = partition(prior(np.full(2, 0.05)), 4, 2.0, STEP, RNG(0))
    noise = Noise(10.0, 10.0, 10.0)
    answers = Answers(np.zeros((4, 2)), np.array([-3.0, 9.0, 2.0, -40.0]), np.zeros(4))
    (weights, means, _), stood_out = learned(cells, answers, noise, STEP, 100.0)
    np.testing.assert_array_equal(weights, [10.0])
    np.testing.assert_allclose(means, cells.centers[[1]] * STEP)
    assert not stood_out


def test_records_are_expected_where_the_model_has_them():
    mixture = Mixture(np.array([30.0, 10.0]), np.array([[0.5], [-0.5]]), np.full((2, 1), 1e-3))
    cells = partition(mixture, 2, 2.0, STEP, RNG(0))
    points = sample(mixture, 40, RNG(0))  # the same, from the same numbers
    labels, _ = residuals_of(points, cells.centers * STEP)
    np.testing.assert_array_equal(cells.expected, np.bincount(labels))
    assert cells.expected.sum() == 40
    # Cells for what was not counted: nothing is expected there.
    unseen = Mixture(np.array([40.0]), np.array([[0.0]]), np.full((1, 1), 1e-3))
    more = partition(mixture, 3, 2.0, STEP, RNG(0), unseen)
    order = np.argsort(more.centers[:, 0])
    np.testing.assert_allclose(more.centers[order, 0] * STEP, [-0.5, 0.0, 0.5], atol=0.01)
    assert more.expected[order[1]] == 0
    assert more.expected.sum() == pytest.approx(40)
    # Ten standard errors of 2,000 draws of which a quarter is on the left.
    assert more.expected[order[0]] == pytest.approx(10, abs=10 * 40 * 0.433 / math.sqrt(60))


def test_absent_are_cells_with_far_fewer_records_than_noise_explains():
    expected = np.array([100.0, 100.0, 100.0, 51.0, 49.0, 0.0])
    counts = np.array([24.0, 26.0, -80.0, 0.0, 0.0, -90.0])
    assert absent(expected, counts, 5.0).tolist() == [True, False, True, True, False, False]
    # Without noise, from ten records on.
    assert absent(np.array([10.0, 11.0]), np.zeros(2), 0.0).tolist() == [False, True]


def test_cells_that_are_absent_stay_in_the_model():
    cells = partition(prior(np.full(2, 0.05)), 4, 2.0, STEP, RNG(0))
    cells = cells._replace(expected=np.array([7.0, 70.0, 9.0, 30.0]))
    answers = Answers(np.full((4, 2), 5.0), np.array([90.0, 60.0, 50.0, 80.0]), np.full(4, 9.0))
    noise, missing = Noise(2.0, 3.0, 4.0), np.array([False, True, False, True])
    found, stood_out = learned(cells, answers, noise, STEP, 1e9, missing)
    others = np.flatnonzero(~missing)
    rest = Partition(*(part if np.ndim(part) == 0 else part[others] for part in cells))
    alone, _ = learned(rest, Answers(*(part[others] for part in answers)), noise, STEP, 1e9)
    np.testing.assert_array_equal(found.weights, [*alone.weights, 70.0, 30.0])
    np.testing.assert_allclose(found.means, [*alone.means, *(cells.centers[[1, 3]] * STEP)])
    np.testing.assert_allclose(found.scales, [*alone.scales, *np.sqrt(cells.variances[[1, 3]])])
    assert stood_out
    # If nothing else stands out, they are all that is left.
    quiet = answers._replace(counts=np.array([1.0, 60.0, 2.0, 80.0]))
    found, stood_out = learned(cells, quiet, noise, STEP, 1e9, missing)
    np.testing.assert_array_equal(found.weights, [70.0, 30.0])
    np.testing.assert_allclose(found.means, cells.centers[[1, 3]] * STEP)
    np.testing.assert_allclose(found.scales, np.sqrt(cells.variances[[1, 3]]))
    assert stood_out


# ----------------------------------------------------------------- centroids


def test_centroids_are_those_of_the_means_by_their_weight():
    mixture = Mixture(
        np.array([3.0, 1.0, 5.0]),
        np.array([[0.0, 0.0], [0.04, 0.0], [0.5, 0.5]]),
        np.array([[0.1, 0.0], [0.0, 0.2], [0.1, 0.1]]),
    )
    found = select(mixture, 2, RNG(0))
    order = np.argsort(found.centers[:, 0])
    np.testing.assert_allclose(found.centers[order], [[0.01, 0.0], [0.5, 0.5]], atol=1e-12)
    np.testing.assert_array_equal(found.counts[order], [4.0, 5.0])
    cost = 3 * (0.0001 + 0.01) + (0.0009 + 0.04) + 5 * 0.02
    assert found.cost == pytest.approx(cost / 9)
    assert not found.few


def test_too_few_parts_are_filled_up_from_the_mixture():
    mixture = Mixture(np.array([2.0]), np.array([[0.3, -0.1]]), np.array([[0.01, 0.02]]))
    found = select(mixture, 5, RNG(0))
    assert found.few
    np.testing.assert_array_equal(found.centers[0], [0.3, -0.1])
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


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_residuals_are_those_of_the_nearest_centre(p, seed):
    rng = RNG(seed)
    points, centers = rng.normal(size=(40, p)), rng.normal(size=(7, p))
    labels, residuals = residuals_of(points, centers)
    distances = ((points[:, None] - centers) ** 2).sum(axis=2)
    np.testing.assert_allclose((residuals**2).sum(axis=1), distances.min(axis=1))
    np.testing.assert_allclose(points - residuals, centers[labels])


def test_shortened_vectors_keep_their_direction():
    found = shortened(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), np.array([1.0, 1.0, 0.5]))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
