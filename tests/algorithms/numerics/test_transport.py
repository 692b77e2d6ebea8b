"""Weights of power diagrams: against linear programs, on hard cases, and the same everywhere."""

import hashlib

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

from flower_kmeans.algorithms.numerics import transport
from flower_kmeans.algorithms.numerics.grid_kmeans import grid_means
from flower_kmeans.algorithms.numerics.initialization import public_words, random_words
from flower_kmeans.algorithms.numerics.portable import normals
from flower_kmeans.algorithms.numerics.transport import (
    power_cells,
    power_weights,
    squared_distances,
)
from tests.support.processors import outputs
from tests.support.saying import assert_within

pytestmark = pytest.mark.claim("guarantees", "27")

GRID = 2.0**16
MISSED = "cells miss their bounds, over an equal share, by"


def cloud(n, p, seed=0, scale=0.1):
    return np.rint(np.random.default_rng(seed).normal(0, scale, (n, p)) * GRID).astype(
        np.int64
    )


def blobs(sizes, p=3, seed=0, spread=0.02):
    rng = np.random.default_rng(seed)
    centers = np.repeat(rng.uniform(-0.4, 0.4, (len(sizes), p)), sizes, axis=0)
    return np.rint((centers + rng.normal(0, spread, centers.shape)) * GRID).astype(
        np.int64
    )


def shares(costs, masses, weights):
    sizes = transport.cell_sizes(masses, power_cells(costs, weights), costs.shape[1])
    return sizes / masses.sum()


def missed(found, low, high):
    """Return by how much shares miss their bounds, over an equal share."""
    return max(0.0, (low - found).max(), (found - high).max()) * len(found)


def dual(costs, masses, weights, low, high):
    part = masses / masses.sum()
    at_bounds = low * np.maximum(weights, 0) + high * np.minimum(weights, 0)
    return part @ (costs - weights).min(axis=1) + at_bounds.sum()


def least_cost(costs, masses, low, high):
    """Return the cost of the best division of all masses, parts of points allowed, by HiGHS."""
    (n, k), part = costs.shape, masses / masses.sum()
    scale = max(costs.max(), 1.0)
    whole = kron(eye_array(n), np.ones((1, k)))
    sizes = hstack([eye_array(k)] * n)
    found = linprog(
        (costs / scale).ravel(),
        A_eq=csr_array(whole),
        b_eq=part,
        A_ub=csr_array(vstack([sizes, -sizes])),
        b_ub=np.append(np.full(k, high), np.full(k, -low)),
        method="highs",
    )
    assert found.success
    return found.fun * scale


def bounds_of(kind, k):
    return {
        "equal": (1 / k, 1 / k),
        "low": (1 / 1.5 / k, 1.0),
        "high": (0.0, 1.25 / k),
        "both": (0.9 / k, 1.1 / k),
        "none": (0.0, 1.0),
    }[kind]


KINDS = ("equal", "low", "high", "both", "none")


# --------------------------------------------------------------------- the best weights


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_dual_reaches_the_least_cost_of_a_linear_program(kind, seed):
    """Weak duality: no weights exceed it, and these come near."""
    rng = np.random.default_rng(seed)
    points, k = blobs((100, 60, 30, 10), seed=seed, spread=0.1), 5
    costs = squared_distances(points, points[rng.choice(len(points), k, replace=False)])
    masses = rng.integers(1, 2**20, len(points))
    low, high = bounds_of(kind, k)
    best = least_cost(costs, masses, low, high)
    value = dual(costs, masses, power_weights(costs, masses, low, high), low, high)
    least, most = best * (1 - 1e-3), best * (1 + 1e-9)
    assert_within(
        f"of the least cost {best} the dual reaches", value, least=least, most=most
    )


@pytest.mark.default_cases("equal", "both")
@pytest.mark.parametrize("kind", ["equal", "low", "high", "both"])
def test_sizes_and_cost_of_many_points_are_those_of_the_least_cost(kind):
    sizes = np.rint(2500 * 0.7 ** np.arange(10) * 0.3 / (1 - 0.7**10)).astype(int)
    points, k = blobs(sizes, p=4, spread=0.05), 10
    n = len(points)
    ones = np.ones(n, dtype=np.int64)
    centers = grid_means(points, ones, np.arange(n) * k // n, points[:k])
    costs, (low, high) = squared_distances(points, centers), bounds_of(kind, k)
    weights = power_weights(costs, ones, low, high)
    assert_within(MISSED, missed(shares(costs, ones, weights), low, high), most=0.03)
    found = costs[np.arange(n), power_cells(costs, weights)].mean()
    ratio = found / least_cost(costs, ones, low, high)
    assert_within("the cost is", ratio, least=0.99, most=1.01, unit="of the least one")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_sign_of_the_bound_that_binds(kind):
    points, k = blobs((3000, 600, 300, 80, 20), spread=0.08), 9
    costs, masses = (
        squared_distances(points, points[:: 4000 // k][:k]),
        np.full(4000, 7),
    )
    low, high = bounds_of(kind, k)
    weights = power_weights(costs, masses, low, high)
    found = shares(costs, masses, weights)
    if high > low:
        off = np.abs(found[weights > 0] - low).max(initial=0) * k
        assert_within(
            "a cell with a positive weight is off the lower bound by",
            off,
            most=0.03,
            strict=True,
        )
        off = np.abs(found[weights < 0] - high).max(initial=0) * k
        assert_within(
            "a cell with a negative weight is off the upper bound by",
            off,
            most=0.03,
            strict=True,
        )
    assert_within(MISSED, missed(found, low, high), most=0.03, strict=True)
    assert (kind == "none") <= (not weights.any())


def test_no_weights_where_nearest_centres_keep_the_bounds():
    points = blobs((500, 500, 500), spread=0.01)
    costs = squared_distances(points, points[[0, 500, 1000]])
    ones = np.ones(1500, dtype=np.int64)
    assert not power_weights(costs, ones, 0.3, 0.4).any()
    # Those to start from are given up.
    start = np.array([2**28, 0, -(2**28)])
    found = power_weights(costs, ones, 0.3, 0.4, start)
    assert missed(shares(costs, ones, found), 0.3, 0.4) == 0


def test_wide_gaps_between_clusters_are_crossed():
    """Between well separated clusters of 60 : 40 nothing changes for a long way."""
    points = blobs((600, 400), spread=0.001)
    costs = squared_distances(points, points[[0, 999]])
    ones = np.ones(1000, dtype=np.int64)
    found = shares(costs, ones, power_weights(costs, ones, 0.5, 0.5))
    assert_within("a cell has the share", found, least=0.495, most=0.505)


# ---------------------------------------------------------------------- units and scale


def test_masses_count_by_their_shares_and_in_any_order():
    """What they add up to does not matter, so no bounds are too narrow for them."""
    points, k, rng = cloud(2000, 3), 6, np.random.default_rng(1)
    costs = squared_distances(points, points[:k])
    masses = np.where(np.arange(2000) % 3, rng.integers(0, 2**8, 2000), 0)
    found = power_weights(costs, masses << 40, 1 / k, 1 / k)
    assert_within(
        MISSED,
        missed(shares(costs, masses, found), 1 / k, 1 / k),
        most=0.03,
        strict=True,
    )
    np.testing.assert_array_equal(
        found, power_weights(costs, masses << 20, 1 / k, 1 / k)
    )
    order = rng.permutation(2000)
    again = power_weights(costs[order], masses[order] << 40, 1 / k, 1 / k)
    np.testing.assert_array_equal(found, again)


# --------------------------------------------------------------------------- hard cases

HARD = {
    "one cluster": lambda: (cloud(100, 2), cloud(1, 2)),
    "all points equal": lambda: (np.full((500, 2), 99), cloud(4, 2)),
    "all points and centres equal": lambda: (np.full((500, 2), 99), np.full((4, 2), 5)),
    "heavy equal points": lambda: (
        np.repeat(cloud(10, 2), 100, axis=0),
        cloud(4, 2, 1),
    ),
    "equal centres": lambda: (cloud(1000, 2), np.repeat(cloud(2, 2, 1), 3, axis=0)),
    "fewer points than clusters": lambda: (cloud(3, 2), cloud(8, 2, 1)),
    "points on centres": lambda: (np.repeat(cloud(4, 2), 50, axis=0), cloud(4, 2)),
    "one point": lambda: (cloud(1, 2), cloud(3, 2, 1)),
    "small costs": lambda: (cloud(500, 2, 0, 2e-5), cloud(4, 2, 1, 2e-5)),
    "large costs": lambda: (cloud(500, 2, 0, 2.0**8), cloud(4, 2, 1, 2.0**8)),
    "far centres": lambda: (cloud(500, 2, 0, 0.01), cloud(4, 2, 1, 0.01) + 2**15),
}


@pytest.mark.default_cases("values")
@pytest.mark.parametrize("start", [None, "large"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HARD)
def test_hard_cases_have_weights_within_the_costs(name, kind, start):
    points, centers = HARD[name]()
    costs, k = squared_distances(points, centers), len(centers)
    before = None if start is None else np.where(np.arange(k) % 2, 2**53, -(2**53))
    for masses in (np.ones(len(points), np.int64), np.zeros(len(points), np.int64)):
        found = power_weights(costs, masses, *bounds_of(kind, k), before)
        assert found.dtype == np.int64
        assert np.abs(found).max() <= costs.max()


@pytest.mark.parametrize("name", ["heavy equal points", "fewer points than clusters"])
def test_equal_points_are_not_split_and_no_cell_takes_more_than_one_place_too_many(
    name,
):
    points, centers = HARD[name]()
    costs, k = squared_distances(points, centers), len(centers)
    ones = np.ones(len(points), dtype=np.int64)
    heaviest = np.unique(points, axis=0, return_counts=True)[1].max() / len(points)
    found = shares(costs, ones, power_weights(costs, ones, 0.0, 1.2 / k))
    assert_within(MISSED, missed(found, 0.0, 1.2 / k), most=heaviest * k + 1e-9)


# --------------------------------------------------------------------------- centres


def test_the_start_has_cells_within_the_bounds_around_their_means():
    points, k = blobs((2400, 900, 450, 250), spread=0.05), 4
    masses = np.full(4000, 2**30)
    low, high = 0.24, 0.26
    found = transport.constrained_centers(
        points, masses, points[[[0, 2400, 3300, 3750]]], low, high, 20
    )
    costs = squared_distances(points, found.points)
    labels = power_cells(costs, found.weights)
    assert_within(
        MISSED,
        missed(shares(costs, masses, found.weights), low, high),
        most=0.02,
        strict=True,
    )
    means = np.stack([points[labels == j].mean(axis=0) for j in range(k)])
    off = np.abs(means - found.points) / GRID
    assert_within(
        "a centre is off the mean of its cell by",
        off,
        most=0.01,
        unit="of the scale",
        strict=True,
    )
    assert found.cost == pytest.approx(2**30 * costs[np.arange(4000), labels].sum())
    assert found.points.dtype == found.weights.dtype == np.int64


def test_of_several_starts_the_least_costly_is_kept():
    points, ones = blobs((1000, 1000, 1000), spread=0.02), np.ones(3000, dtype=np.int64)
    good, bad = points[[0, 1000, 2000]], points[[0, 1, 2]] + 2**15
    for starts in ([good, bad], [bad, good]):
        found = transport.constrained_centers(
            points, ones, np.stack(starts), 0.3, 0.36, 1
        )
        alone = transport.constrained_centers(points, ones, good[None], 0.3, 0.36, 1)
        np.testing.assert_array_equal(found.points, alone.points)
        np.testing.assert_array_equal(found.weights, alone.weights)


# ------------------------------------------------------------------- aim, raking, gains


def test_bounds_are_aimed_at_from_inside_and_never_closer_to_equal_sizes_than_the_noise():
    assert transport.aim(600, 1500, 50.0, 10_000, 10) == (0.065, 0.145)
    assert transport.aim(1000, 1000, 50.0, 10_000, 10) == (0.095, 0.105)
    assert transport.aim(980, 10_000, 50.0, 10_000, 10) == (0.095, 1.0)
    assert transport.aim(0, 1020, 50.0, 10_000, 10) == (0.0, 0.105)
    assert transport.aim(0, 10_000, 50.0, 10_000, 10) == (0.0, 1.0)
    # noise above everything
    assert transport.aim(1000, 1000, 20_000.0, 10_000, 10) == (0.0, 1.0)
    assert transport.aim(1, 9, 0.0, 10, 2) == (0.1, 0.9)


def test_masses_follow_counts():
    masses, labels = np.full(100, 1000), np.arange(100) % 4
    counts = np.array([50_000.0, 20_000.0, 25_000.0, 25_000.0])
    for gain in (1.0, 0.5, 0.0):
        sizes = transport.cell_sizes(
            transport.rake(masses, labels, counts, gain), labels, 4
        )
        np.testing.assert_allclose(sizes, 25_000 + gain * (counts - 25_000), atol=25)


def test_masses_change_by_a_tenth_to_ten_times():
    masses, labels = np.array([1000, 1000, 1000, 0, 1]), np.array([0, 1, 2, 2, 1])
    found = transport.rake(masses, labels, np.array([1e12, -1e12, 1000.0, 5.0]), 1.0)
    # cells without points have no part in it
    assert found.tolist() == [10_000, 100, 1000, 0, 1]


@pytest.mark.parametrize("count", [2.0**63, -(2.0**63), 0.0])
def test_masses_stay_exact_whatever_is_counted(count):
    masses = np.full(1000, 2**41)
    for _ in range(40):
        masses = transport.rake(masses, np.arange(1000) % 3, np.full(3, count), 1.0)
    assert masses.min() > 0
    assert int(masses.sum()) <= 2**52


def test_gains_are_those_of_what_exceeds_the_noise():
    have = np.zeros(4)
    assert transport.refinement_gain(np.full(4, 10.0), have, 5.0) == pytest.approx(0.75)
    assert transport.refinement_gain(np.full(4, 1.0), have, 5.0) == pytest.approx(
        0.2
    )  # noise alone
    # The first round: nothing is known but the noise; later ones know more.
    gain, variance = transport.sizing_gain(np.full(4, 1.0), have, 5.0, 25.0)
    assert (gain, variance) == (0.5, 12.5)
    gain, variance = transport.sizing_gain(np.full(4, 1.0), have, 5.0, variance)
    assert gain == pytest.approx(1 / 3)
    assert variance == pytest.approx(25 / 3)
    assert transport.sizing_gain(np.full(4, 50.0), have, 5.0, variance)[
        0
    ] == pytest.approx(0.99)


# --------------------------------------------------------------------------- replay


def digest():
    """Return a digest of weights, centres and masses, over public points."""
    source, found = public_words(5), hashlib.sha256()
    # Of these the last has points of several blocks.
    for n, p, k, kind in (
        (600, 4, 7, "equal"),
        (300, 2, 12, "low"),
        (900, 3, 40, "both"),
    ):
        points = np.floor(normals(random_words(source, n * p)).reshape(n, p) * 2**14)
        points = points.astype(np.int64)
        masses = (random_words(source, n) >> np.uint64(30)).astype(np.int64)
        starts, bounds = points[: 2 * k].reshape(2, k, p), bounds_of(kind, k)
        made = transport.constrained_centers(points, masses, starts, *bounds, n_steps=1)
        labels = power_cells(squared_distances(points, made.points), made.weights)
        raked = transport.rake(
            masses, labels, normals(random_words(source, k)) * 2.0**40, 0.7
        )
        for array in (made.points, made.weights, raked):
            found.update(np.ascontiguousarray(array, "<i8").tobytes())
        found.update(made.cost.hex().encode())
    return found.hexdigest()[:32]


@pytest.mark.thorough
def test_weights_are_the_same_integers_on_every_processor():
    code = (
        "from tests.algorithms.numerics.test_transport import digest; print(digest())"
    )
    assert set(outputs(code)) == {digest()}
