"""k-means in integers: against Python's own integers, scikit-learn, and other processors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processors import outputs
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from flower_kmeans.algorithms.numerics.grid_kmeans import grid_kmeans, lloyd_steps
from flower_kmeans.algorithms.numerics.initialization import public_words, random_words


def as_arrays(*lists):
    return (np.array(values, dtype=np.int64) for values in lists)


def labels_of(points, centers):
    """The lowest index of the nearest centre, by Python integers."""
    found = []
    for x in points:
        distances = [
            sum((a - b) ** 2 for a, b in zip(x, c, strict=True)) for c in centers
        ]
        found.append((distances.index(min(distances)), min(distances)))
    return found


def one_step(points, weights, centers):
    """One step of Lloyd's, by Python integers."""
    labels = [label for label, _ in labels_of(points, centers)]
    moved = []
    for j, center in enumerate(centers):
        own = [
            (w, x)
            for w, x, i in zip(weights, points, labels, strict=True)
            if i == j and w
        ]
        m = sum(w for w, _ in own)
        sums = [sum(w * x[i] for w, x in own) for i in range(len(center))]
        moved.append([(2 * s + m) // (2 * m) for s in sums] if m else list(center))
    return moved


@st.composite
def problems(draw):
    """Small grids, so that distances tie, and the largest coordinates that are allowed."""
    p = draw(st.integers(1, 3))
    top = draw(st.sampled_from([2, 2**16, math.isqrt(2**51 // p)]))
    coordinate = st.sampled_from([-top, top]) | st.integers(-2, 2)
    point = st.lists(coordinate, min_size=p, max_size=p)
    points = draw(st.lists(point, min_size=1, max_size=12))
    weight = st.sampled_from([0, 1, 2, 1000, 2**29])
    weights = draw(st.lists(weight, min_size=len(points), max_size=len(points)))
    centers = draw(st.lists(point, min_size=1, max_size=5))
    return points, weights, centers


@given(problems())
def test_a_step_is_that_of_pythons_integers(problem):
    points, weights, centers = problem
    found = lloyd_steps(*as_arrays(points, weights, centers), 1)
    counted = weights if any(weights) else [1] * len(points)
    assert found.points.tolist() == one_step(points, counted, centers)
    distances = [d2 for _, d2 in labels_of(points, found.points.tolist())]
    exact = sum(w * d2 for w, d2 in zip(counted, distances, strict=True))
    # What is cut off, beside the roundings of single products.
    largest = max(abs(a) for x in points + centers for a in x)
    bound = sum(counted) * 4 * len(points[0]) * largest**2
    assert found.cost == pytest.approx(
        exact, rel=1e-12, abs=len(points) * bound * 2.0**-60
    )


@given(problems(), st.randoms(use_true_random=False))
def test_steps_depend_neither_on_the_order_nor_on_who_stands_for_equal_points(
    problem, random
):
    points, weights, centers = problem
    found = lloyd_steps(*as_arrays(points, weights, centers), 5)
    order = list(range(len(points)))
    random.shuffle(order)
    halves = [
        (points[i], w)
        for i in order
        for w in (weights[i] // 2, weights[i] - weights[i] // 2)
    ]
    again = lloyd_steps(*as_arrays(*zip(*halves, strict=True), centers), 5)
    if any(weights):
        np.testing.assert_array_equal(found.points, again.points)


any_weight = st.sampled_from([0, 1, 2**53, 2**62, 2**63 - 1]) | st.integers(
    0, 2**63 - 1
)


@settings(max_examples=60)
@given(problems(), st.lists(any_weight, min_size=12, max_size=12), st.integers(1, 6))
def test_it_is_total_and_stays_within_the_points(problem, weights, k):
    points, _, _ = problem
    grid = np.array(points, dtype=np.int64)
    found = grid_kmeans(
        grid, np.array(weights[: len(points)]), k, public_words(3), 2, 3
    )
    assert found.points.shape == (k, grid.shape[1])
    assert found.points.dtype == np.int64
    assert math.isfinite(found.cost)
    assert found.cost >= 0
    assert (found.points >= grid.min(axis=0)).all()
    assert (found.points <= grid.max(axis=0)).all()


def test_ties_go_to_the_lowest_index_and_empty_clusters_stay():
    found = lloyd_steps(*as_arrays([[0], [2]], [1, 1], [[1], [1], [9]]), 1)
    assert found.points.tolist() == [[1], [1], [9]]
    halves = lloyd_steps(*as_arrays([[-1], [0]], [1, 1], [[5]]), 1)
    assert halves.points.tolist() == [[0]]  # -1/2, rounded half up


def test_few_points_are_all_found_but_those_without_weight():
    points, weights = as_arrays([[0, 0], [7, 7], [-3, 5]], [1, 10**6, 1])
    for seed in range(20):
        found = grid_kmeans(points, weights, 3, public_words(seed), n_starts=1)
        assert sorted(found.points.tolist()) == sorted(points.tolist())
        assert found.cost == 0
    more = grid_kmeans(points, weights, 5, public_words(0))
    assert {tuple(c) for c in more.points.tolist()} == {
        tuple(x) for x in points.tolist()
    }
    points, weights = as_arrays([[0], [1], [100]], [5, 5, 0])
    found = grid_kmeans(points, weights, 2, public_words(0))
    assert sorted(found.points.ravel().tolist()) == [0, 1]
    assert 100 in grid_kmeans(points, weights * 0, 2, public_words(0)).points


def test_the_first_centre_is_drawn_by_weight():
    points, weights = as_arrays([[0], [1], [2]], [1, 2, 5])
    source = public_words(8)
    drawn = [
        grid_kmeans(points, weights, 1, source, 1, 0).points[0, 0] for _ in range(4000)
    ]
    shares = np.bincount(drawn, minlength=3) / 4000
    # six standard errors are 0.047
    np.testing.assert_allclose(shares, weights / 8, atol=0.05)


@pytest.mark.default_cases("1000-16-16")
@pytest.mark.parametrize(("n", "p", "k"), [(1500, 2, 15), (1000, 16, 16), (800, 2, 40)])
def test_it_is_as_good_as_scikit_learns(n, p, k):
    ratios = []
    for seed in range(6):
        points, _ = make_blobs(n, p, centers=k, random_state=seed)
        grid = np.rint(points / np.abs(points).max() * 2**16)
        weights = np.random.default_rng(seed).integers(0, 100, n)
        found = grid_kmeans(grid, weights, k, public_words(seed), n_starts=10)
        peer = KMeans(k, n_init=10, random_state=seed).fit(grid, sample_weight=weights)
        ratios.append(found.cost / peer.inertia_)
        assert lloyd_steps(grid, weights, found.points, 100).cost <= found.cost
    assert np.mean(ratios) <= 1.01


def test_how_many_words_are_taken_depends_on_sizes_alone():
    points, weights = as_arrays([[0], [5], [9]], [1, 0, 2])
    rest = []
    for some in (weights, weights * 0):
        source = public_words(1)
        grid_kmeans(points, some, 4, source, 3)
        rest.append(int(random_words(source, 1)[0]))
    assert rest[0] == rest[1]


@pytest.mark.parametrize(
    ("points", "weights"),
    [
        (np.zeros((2, 1)), np.array([1, -1])),
        (np.zeros((2, 1)), np.array([1.0, 1.0])),
        (np.zeros((2, 1)), np.array([1])),
        (np.zeros((0, 1)), np.zeros(0, dtype=np.int64)),
        (np.full((1, 2), 2.0**25 + 1), np.array([1])),
    ],
)
def test_other_input_is_refused(points, weights):
    with pytest.raises(ValueError, match=r"Expected (weights|coordinates)"):
        grid_kmeans(points, weights, 1, public_words(0))


def test_centres_beyond_the_exact_range_are_refused():
    with pytest.raises(ValueError, match="Got 67108864"):
        lloyd_steps(*as_arrays([[0]], [1], [[-(2**26)]]), 1)


DIGEST = """
import hashlib
import numpy as np
from flower_kmeans.algorithms.numerics.grid_kmeans import grid_kmeans
from flower_kmeans.algorithms.numerics.initialization import public_words, random_words
words = random_words(public_words(5), 3000 * 9)
points = (words >> np.uint64(50)).astype(np.int64).reshape(3000, 9)
weights = (random_words(public_words(6), 3000) >> np.uint64(20)).astype(np.int64)
found = grid_kmeans(points, weights, 20, public_words(7), 2)
print(hashlib.sha256(found.points.astype("<i8").tobytes()).hexdigest(), found.cost.hex())
"""


@pytest.mark.claim("protocol", "this-needs-replayable-algorithm")
@pytest.mark.thorough
def test_every_processor_finds_the_same_integers():
    digest = "d4e09767a60a68c13dde8c1daccae4b95f50fd374c3c4aa2a6f31b4d6d7b869c"
    assert set(outputs(DIGEST)) == {f"{digest} 0x1.404b7aa64e9f2p+81"}
