"""Cells of SynopsisKMeans, and the model learned of them, by the formulas of the guarantees."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms.numerics.initialization import public_words
from flower_kmeans.algorithms.synopsis_cells import Released, learned, partition
from flower_kmeans.algorithms.synopsis_mixture import (
    CellNoise,
    Mixture,
    nearest,
    prior,
    sample,
)
from flower_kmeans.algorithms.synopsis_state import CountedCells
from tests.algorithms.mixtures import STEP, mixture_of

pytestmark = pytest.mark.claim("guarantees", "22")

RNG = np.random.default_rng
WORDS = public_words


@pytest.mark.parametrize("p", [1, 5])
def test_cells_are_on_the_grid_and_their_radii_follow_the_model(p):
    mixture = prior(np.linspace(0.02, 0.01, p))
    step = 2.0**-20
    cells = partition(mixture, 12, 1.7, step, WORDS(1))
    # the same, from the same words
    points = sample(mixture, max(20 * 12, 240), WORDS(1))
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
    cells = partition(prior(np.full(3, 0.05)), 20, 2.0, STEP, WORDS(seed))
    noise = CellNoise(*rng.uniform(1, 30, 3))
    counts = rng.normal(50, 60, 20)
    released = Released(
        rng.normal(size=(20, 3)) * counts[:, None] * 0.5,
        counts,
        rng.uniform(0, 1, 20) * counts + noise.slacks * rng.normal(size=20),
    )
    n_records = rng.uniform(100, 2000)
    mixture, stood_out = learned(cells, released, noise, STEP, n_records)
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
    cells = CountedCells(np.zeros((1, 2)), np.array([2**15]), before, 0.04, np.zeros(1))
    released = Released(
        np.zeros((1, 2)), np.array([100.0]), np.array([100.0 - squares])
    )
    found, _ = learned(cells, released, CellNoise(0.0, 0.0, noise), STEP, math.inf)
    np.testing.assert_allclose(found.scales**2, factor * before, rtol=1e-6)


def test_of_cells_that_are_all_noise_the_largest_is_kept():
    cells = partition(prior(np.full(2, 0.05)), 4, 2.0, STEP, WORDS(0))
    noise = CellNoise(10.0, 10.0, 10.0)
    released = Released(
        np.zeros((4, 2)), np.array([-3.0, 9.0, 2.0, -40.0]), np.zeros(4)
    )
    (weights, means, _, _), stood_out = learned(cells, released, noise, STEP, 100.0)
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
    np.testing.assert_allclose(
        more.centers[order, 0] * STEP, [-0.5, 0.0, 0.5], atol=0.01
    )
    np.testing.assert_allclose(more.expected[order], [10, 0, 30], atol=1)


def test_cells_that_are_absent_stay_in_the_model():
    cells = partition(prior(np.full(2, 0.05)), 4, 2.0, STEP, WORDS(0))
    cells = cells._replace(expected=np.array([7.0, 70.0, 9.0, 30.0]))
    released = Released(
        np.full((4, 2), 5.0), np.array([90.0, 60.0, 50.0, 80.0]), np.full(4, 9.0)
    )
    noise, missing = CellNoise(2.0, 3.0, 4.0), np.array([False, True, False, True])
    found, stood_out = learned(cells, released, noise, STEP, 1e9, missing)
    others = np.flatnonzero(~missing)
    rest = CountedCells(
        *(part if np.ndim(part) == 0 else part[others] for part in cells)
    )
    alone, _ = learned(
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
    found, stood_out = learned(cells, quiet, noise, STEP, 1e9, missing)
    np.testing.assert_array_equal(found.weights, [0.0, 70.0, 0.0, 30.0])
    np.testing.assert_allclose(found.means[missing], cells.centers[missing] * STEP)
    np.testing.assert_allclose(found.scales[missing], np.sqrt(cells.variances[missing]))
    assert stood_out
