"""The sign polynomial, the comparisons that it decides, and soft memberships."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scripts import load_script
from soft import ETA, evaluate, soft_members

from flower_kmeans.vertical import signs

FOLDER = Path(__file__).parents[2] / "benchmarks"
WIDTHS = np.array([1.0, 0.5, 0.25])


def corners(half_widths):
    return np.array(list(itertools.product(*((-h, h) for h in half_widths))))


@pytest.mark.claim("vertical", "three-nested-polynomials-degree")
def test_remez_finds_the_constants_again(monkeypatch):
    found, error = load_script(monkeypatch, "vertical_sign", FOLDER).stages()
    assert error == pytest.approx(1.38e-4, rel=0.01)
    for ours, other in zip(signs.STAGES, found, strict=True):
        assert ours.coefficients == pytest.approx(other.coefficients, abs=1e-9)
        assert ours.bound == pytest.approx(other.bound, abs=1e-9)


@pytest.mark.claim("vertical", "three-nested-polynomials-degree")
@pytest.mark.claim("guarantees", "30")
@pytest.mark.claim("threat-model", "V9")
@pytest.mark.parametrize(
    "n_points", [50_000, pytest.param(400_000, marks=pytest.mark.thorough)]
)
def test_the_polynomial_is_the_sign_beyond_tau_and_stays_within_eta(n_points):
    n_last = n_points // 8 + 1  # near 1, where it leaves the range
    x = np.concatenate(
        [np.linspace(0, 1, n_points + 1), 1 - np.geomspace(1e-9, 0.05, n_last)]
    )
    values = evaluate(x)
    assert np.abs(values[x >= 0.0035] - 1).max() < 1.4e-4
    assert values.min() >= 0
    assert values.max() < 1 + 2 * ETA
    assert evaluate(-x) == pytest.approx(-values, abs=1e-12)
    # why the argument is divided by more than its maximum
    assert abs(evaluate(np.array(1.01))) > 1e3


@pytest.mark.claim("vertical", "three-nested-polynomials-degree")
def test_the_slope_is_largest_at_zero():
    """The noise of CKKS is amplified most where a record lies on a border."""
    x = np.linspace(0, 1, 1_000_001)
    slope = np.abs(np.gradient(evaluate(x), x))
    assert slope[0] == pytest.approx(640, rel=0.01)
    assert slope.argmax() == 0


def test_a_pair_compares_distances_and_stays_below_one():
    rng = np.random.default_rng(0)
    for cj, cl in rng.uniform(-1, 1, (200, 2, 3)) * WIDTHS:
        w, b = signs.pair(cj, cl, WIDTHS)
        X = rng.uniform(-1, 1, (20, 3)) * WIDTHS
        difference = ((X - cl) ** 2).sum(1) - ((X - cj) ** 2).sum(1)
        assert ((X @ w + b > 0) == (difference > 0)).all()
        largest = np.abs(corners(WIDTHS) @ w + b).max()
        assert 0.999 < largest < 1  # attained in a corner, a hair below 1
        other, c = signs.pair(cl, cj, WIDTHS)
        assert (other == -w).all()
        assert c == -b


def test_equal_centroids_share_every_record():
    w, b = signs.pair(np.array([0.2, -0.1]), np.array([0.2, -0.1]), np.ones(2))
    assert not w.any()
    assert b == 0


@pytest.mark.parametrize("radius", [0.05, 0.6, 1.4, 5.0])
def test_near_compares_with_the_radius_and_stays_below_one(radius):
    rng = np.random.default_rng(2)
    for c in rng.uniform(-1, 1, (100, 3)) * WIDTHS:
        w, u, b = signs.near(c, radius, WIDTHS)
        X = np.concatenate([rng.uniform(-1, 1, (50, 3)) * WIDTHS, corners(WIDTHS), [c]])
        z = X @ w + u * (X**2).sum(1) + b
        assert ((z > 0) == (((X - c) ** 2).sum(1) < radius**2)).all()
        assert 0.999 < np.abs(z).max() < 1  # at the centroid, or in the farthest corner


def test_scaled_columns_and_squares_are_in_range_and_can_be_undone():
    half_widths = np.array([0.5, 1.0])
    X = np.concatenate([corners(half_widths), [[0.0, 0.0], [0.25, -0.5]]])
    columns, squares = (
        signs.scaled_columns(X, half_widths),
        signs.scaled_squares(X, half_widths),
    )
    for scaled in (columns, squares):
        assert (scaled.min(), scaled.max()) == (-1, 1)
    assert columns * half_widths == pytest.approx(X)
    assert 1.25 * (1 + squares) / 2 == pytest.approx((X**2).sum(1))
    flat = np.zeros((2, 1))  # far narrower than another column
    assert (signs.scaled_columns(flat, np.zeros(1)) == 0).all()
    assert (signs.scaled_squares(flat, np.zeros(1)) == -1).all()


@pytest.mark.claim("vertical", "three-nested-polynomials-degree")
def test_a_record_between_two_centroids_is_shared():
    A = soft_members(np.zeros((1, 2)), np.array([[-0.5, 0.0], [0.5, 0.0]]), np.ones(2))
    assert pytest.approx(0.5) == A


@pytest.mark.claim("vertical", "sums-then-offsets-which")
@pytest.mark.parametrize("radius", [None, 0.6, 10.0])
def test_a_radius_leaves_out_the_records_beyond_it(radius):
    """Away from borders memberships are those of the nearest centroid within the radius."""
    rng = np.random.default_rng(4)
    X, C = rng.uniform(-1, 1, (4000, 3)), rng.uniform(-0.7, 0.7, (3, 3))
    A = soft_members(X, C, np.ones(3), radius)
    distance = ((X[:, None] - C) ** 2).sum(2)
    hard = np.eye(3)[distance.argmin(1)] * (distance < (radius or 10.0) ** 2)
    assert (np.abs(A - hard).max(1) < 1e-3).mean() > 0.97
    assert (hard.sum() < 0.6 * len(X)) == (radius == 0.6)  # this one matters
    assert (A**2).sum(1).max() < 1.0006
    assert A.min() > -0.001
