"""Constrained assignment: what one record can change, the exact solver, and public bounds."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, linprog

from flower_kmeans.algorithms import ConstrainedLloydAlgorithm, Query
from flower_kmeans.algorithms.base import MAX_CLUSTERS
from flower_kmeans.algorithms.constrained import (
    _FAR,
    ASSIGNMENTS,
    MAX_ARCS,
    _prices,
    blended,
    bounded_assignment,
    nearest_slots,
)
from flower_kmeans.data.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from tests.algorithms.rows import box, run_of
from tests.support.saying import assert_within

BUDGET, PURE = PrivacyBudget(1.0, 1e-6), PrivacyBudget(1.0, 0.0)
OPEN = PrivacyBudget(None)
FREE = "non-exclusive"
Q = 5
ONE = 2**Q


def made(k=3, d=2, n=6, m=1, low=2, high=3, *, domain=None, budget=BUDGET, **options):
    """Return the algorithm of ``m`` clients with sizes from ``low`` to ``high`` for each client."""
    if options.get("assignment") == FREE:
        high = None
    return ConstrainedLloydAlgorithm.planned(
        k,
        domain or box(d),
        PURE if options.get("mechanism") == "laplace" else budget,
        n_records=n * m,
        n_clients=m,
        min_size=low * m,
        max_size=None if high is None else high * m,
        **{"fraction_bits": Q, "n_rounds": 2, **options},
    )


def answer(algorithm, centroids, points):
    d = algorithm.domain.n_features
    records = GridRecords.from_grid(
        np.reshape(points, (-1, d)), algorithm.fraction_bits
    )
    return algorithm.statistic(Query(1, {"centroids": centroids}), records).blocks


# ----------------------------------------------------------- what one record can change


def replaced_bounds(algorithm):
    """What one record in place of another can change at most, by block: the l1 and l2 norms.

    One unit of flow moves from the one to the other for every cluster that a record may
    be in; it visits every cluster once at most, which then gets a record and loses one.
    """
    k, d, most = (
        algorithm.n_clusters,
        algorithm.domain.n_features,
        algorithm.max_contribution,
    )
    l1, l2 = algorithm.domain.l1_bound(Q), algorithm.domain.l2_bound(Q)
    sums = np.array([2 * k * most * l1, 2 * math.sqrt(k) * most * l2])
    low = algorithm.client_bounds[0]
    return {
        "sums": sums,
        "means": sums / max(low, 1) + [k * d, math.sqrt(k * d)],
        "counts": np.array([2, math.sqrt(2)]) * most * ONE,
    }


def data_sets(rng, n, d):
    """Yield corners, few values, and any records: ties, extremes, and neither."""
    while True:
        yield rng.choice([-ONE, ONE], (n, d))
        yield rng.choice([-ONE, -ONE // 2, 0, ONE], (n, d))
        yield rng.integers(-ONE, ONE + 1, (n, d))


def largest_changes(algorithm, n, trials):
    """Return the largest change by block and norm, of records that come, go and are replaced."""
    rng, d, k = (
        np.random.default_rng(5),
        algorithm.domain.n_features,
        algorithm.n_clusters,
    )
    found = {}
    for records, _ in zip(data_sets(rng, n, d), range(trials), strict=False):
        kind, centroids = rng.integers(3), rng.integers(-ONE, ONE + 1, (k, d))
        if kind == 1:
            centroids = rng.choice([-ONE, 0, ONE], (k, d))
        if kind == 2:
            centroids //= 8
        near = rng.integers(-ONE, ONE + 1, (7, d))
        if isinstance(algorithm.domain, Ball):
            records, near = records * 7 // 10, near * 7 // 10
        alone = [np.vstack([records, record[None]]) for record in near]
        answers = [answer(algorithm, centroids, each) for each in [records, *alone]]
        # All of them differ in one slot.
        for one, other in itertools.combinations(answers, 2):
            for name in one:
                change = (one[name] - other[name]).astype(np.float64)
                norms = np.array(
                    [np.abs(change).sum(), math.sqrt((change * change).sum())]
                )
                found[name] = np.maximum(found.get(name, 0.0), norms)
    return found


CASES = [
    # k, d, slots, low, high, E, records beside the one that changes
    ("exclusive", 2, 1, 4, 1, 3, 1, 3),
    ("exclusive", 2, 1, 4, 2, 2, 1, 3),
    ("exclusive", 3, 1, 6, 2, 2, 1, 5),
    ("exclusive", 3, 2, 5, 1, 2, 1, 4),
    ("exclusive", 3, 2, 5, 1, 2, 1, 7),  # more records than slots
    ("exclusive", 3, 2, 6, 2, 3, 1, 2),  # empty slots
    ("non-exclusive", 2, 1, 4, 1, None, 1, 3),
    ("non-exclusive", 3, 2, 4, 2, None, 1, 3),
    ("non-exclusive", 3, 2, 4, 2, None, 1, 6),
    ("e-exclusive", 3, 1, 4, 1, 3, 2, 3),
    ("e-exclusive", 3, 2, 4, 2, 3, 2, 3),
    ("e-exclusive", 3, 2, 4, 2, 3, 2, 6),
    ("e-exclusive", 2, 1, 4, 4, 4, 2, 3),
    ("e-exclusive", 3, 1, 4, 3, 3, 3, 3),
]


@pytest.mark.claim("guarantees", "17")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("aggregation", ["mna", "amn", "in a ball"])
@pytest.mark.parametrize(
    ("assignment", "k", "d", "n", "low", "high", "most", "others"), CASES
)
def test_one_record_changes_each_release_by_its_unit_at_most(
    assignment, k, d, n, low, high, most, others, aggregation
):
    options = {
        "assignment": assignment,
        "max_contribution": most,
        "aggregation": aggregation,
    }
    if aggregation == "in a ball":
        options |= {"aggregation": "mna", "domain": Ball(1.0, [0.0] * d)}
    gaussian = made(k, d, n, 1, low, high, **options)
    laplace = made(k, d, n, 1, low, high, mechanism="laplace", **options)
    bounds = replaced_bounds(gaussian)
    for name, found in largest_changes(gaussian, others, 60).items():
        units = [
            laplace.block_sensitivities(1)[name],
            gaussian.block_sensitivities(1)[name],
        ]
        what = f"release {name!r}, in l1 and l2: a record that is replaced moves it by"
        assert_within(what, found, most=bounds[name], slack=1e-9)
        assert_within(what, found, most=units, slack=1e-9)
        if name != "counts" and others == n - 1 and isinstance(gaussian.domain, Box):
            assert_within(what, found, least=0.38 / most * bounds[name])


@pytest.mark.claim("guarantees", "17")
def test_the_bounds_are_nearly_attained():
    """What one record can change is no less than four fifths of what the proof allows."""
    swap = made(2, 1, 4, low=2, high=2, mechanism="laplace")
    found = largest_changes(swap, 3, 300)
    near = made(2, 1, 4, low=2, assignment=FREE)
    for algorithm, changes in ((swap, found), (near, largest_changes(near, 3, 60))):
        least = 0.8 * replaced_bounds(algorithm)["sums"]
        assert_within(
            "the most that a record moves the sums, in l1 and l2, is",
            changes["sums"],
            least=least,
        )
    counting = made(2, 1, 4, low=1, high=3, mechanism="laplace")
    centroids = np.array([[-ONE], [ONE]])
    one = answer(counting, centroids, [-ONE, -ONE, ONE, ONE])
    other = answer(counting, centroids, [-ONE, ONE, ONE, ONE])
    changed = np.abs(one["counts"] - other["counts"]).sum()
    assert changed == counting.block_sensitivities(1)["counts"]


@pytest.mark.claim("guarantees", "17")
def test_the_bound_that_the_thesis_claims_does_not_hold():
    """One record comes, in a place that was empty, and all sums change by three half widths."""
    algorithm = made(3, 1, 6, low=1, high=3)
    centroids, points = np.array([[-16], [12], [13]]), [-8, -8, 32, 32, 32]
    one = answer(algorithm, centroids, points)
    other = answer(algorithm, centroids, [*points, -32])
    # the thesis: ONE at most
    assert np.abs(one["sums"] - other["sums"]).sum() > 2 * ONE


@pytest.mark.claim("guarantees", "17")
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_units_are_those_of_a_replaced_slot(assignment, mechanism):
    """The table of docs/guarantees, Theorem 17, in a box of half width 1."""
    most = 3 if assignment == "e-exclusive" else 1
    options = {
        "assignment": assignment,
        "max_contribution": most,
        "mechanism": mechanism,
    }
    place = 0 if mechanism == "laplace" else 1
    for aggregation in ("mna", "amn"):
        algorithm = made(4, 3, n=12, low=2, high=12, aggregation=aggregation, **options)
        units, bounds = algorithm.block_sensitivities(1), replaced_bounds(algorithm)
        for name, unit in units.items():
            what = f"release {name!r}: a slot that is replaced moves it by"
            assert_within(what, bounds[name][place], most=unit * (1 + 1e-12))
            assert unit == pytest.approx(bounds[name][place])


# ------------------------------------------------------------------ slots


def slots_of(algorithm, points):
    """Return the points that fill a client's slots, and how many slots each of them has."""
    return algorithm._slots(GridRecords.from_grid(points, Q))


@pytest.mark.claim("guarantees", "17")
@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 9, 30])
def test_a_record_that_comes_or_goes_replaces_one_slot(n):
    rng, algorithm = np.random.default_rng(2), made(n=6)

    def slots(points):
        found, sizes = slots_of(algorithm, points.reshape(-1, 2))
        assert sizes.sum() == 6
        return Counter(
            dict(zip(map(tuple, found.tolist()), sizes.tolist(), strict=True))
        )

    for _ in range(20):
        records = rng.integers(-1, 2, (n + 1, 2)) * ONE
        one, other = slots(records), slots(records[:-1])
        differing = (one - other).total() + (other - one).total()
        assert_within(
            "a record that comes or goes changes", differing, most=2, unit="slots"
        )
        assert n >= 6 or other[0, 0] >= 6 - n


def test_which_records_stay_follows_from_seed_and_record_alone():
    rng = np.random.default_rng(4)
    records = rng.integers(-ONE, ONE + 1, (200, 2))
    kept = []
    for seed in (0, 1):
        algorithm = made(n=50, low=10, high=30, seed=seed)
        ways = [slots_of(algorithm, points) for points in (records, records[::-1])]
        np.testing.assert_array_equal(ways[0][0], ways[1][0])
        kept.append({tuple(point) for point in ways[0][0].tolist()})
    assert 0 < len(kept[0] & kept[1]) < min(map(len, kept))


@pytest.mark.claim("guarantees", "17")
@pytest.mark.parametrize("aggregation", ["mna", "amn"])
@pytest.mark.parametrize("assignment", ASSIGNMENTS)
@pytest.mark.parametrize("kind", ["any", "equal", "symmetric", "few"])
def test_the_order_of_records_changes_nothing(kind, assignment, aggregation):
    rng = np.random.default_rng(6)
    most = 2 if assignment == "e-exclusive" else 1
    options = {
        "assignment": assignment,
        "max_contribution": most,
        "aggregation": aggregation,
    }
    algorithm = made(4, 2, 24, low=4, high=8, **options)
    corners = np.array(list(itertools.product([-ONE, ONE], repeat=2)))
    records = {
        "any": rng.integers(-ONE, ONE + 1, (30, 2)),
        "equal": np.full((30, 2), 7),
        "symmetric": np.repeat(corners, 6, axis=0),
        "few": rng.integers(-1, 2, (22, 2)) * ONE,
    }[kind]
    for centroids in (
        corners // 2,
        np.zeros((4, 2), np.int64),
        rng.integers(-9, 9, (4, 2)),
    ):
        first = answer(algorithm, centroids, records)
        for _ in range(3):
            other = answer(algorithm, centroids, rng.permutation(records))
            for block in first:
                np.testing.assert_array_equal(first[block], other[block])


# ------------------------------------------------------------------ the exact solver


def enumerated(levels, n, low, high, most):
    """Yield the costs on all levels, and the matrix, of every assignment of ``n`` single slots."""
    k = levels[0].shape[1]
    rows = [row for row in itertools.product((0, 1), repeat=k) if 1 <= sum(row) <= most]
    for chosen in itertools.product(rows, repeat=n):
        held = np.array(chosen)
        sizes = held.sum(axis=0)
        if (sizes >= low).all() and (sizes <= high).all():
            yield tuple(int((costs * held).sum()) for costs in levels), held


@pytest.mark.claim("guarantees", "18")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("first", [1, 2, 4, 1000])
@pytest.mark.parametrize(
    ("n", "k", "low", "high", "most"),
    [
        (4, 2, 1, 3, 1),
        (5, 3, 1, 2, 1),
        (6, 3, 2, 2, 1),
        (4, 3, 2, 3, 2),
        (4, 3, 0, 4, 3),
        (5, 2, 4, 5, 2),
    ],
)
def test_the_assignment_is_the_best_on_all_levels(n, k, low, high, most, first):
    """With costs of few values, later levels decide."""
    rng = np.random.default_rng(n * first + most)
    for _ in range(8):
        levels = [rng.integers(0, top, (n, k)) for top in (first, 3, 2**48)]
        found = bounded_assignment(levels, np.ones(n, np.int64), low, high, most)
        best, held = min(
            enumerated(levels, n, low, high, most), key=lambda pair: pair[0]
        )
        assert tuple(int((costs * found).sum()) for costs in levels) == best
        np.testing.assert_array_equal(found, held)


@pytest.mark.claim("guarantees", "18")
@pytest.mark.default_cases("130")
@pytest.mark.parametrize("k", [130, 220])
def test_later_levels_decide_between_many_clusters(k):
    """All costs are equal, so prices of ties add up along paths through all clusters."""
    ties = np.random.default_rng(k).integers(0, 2**40, (k, k)) << 8
    found = bounded_assignment([np.zeros_like(ties), ties], np.ones(k, np.int64), 1, 1)
    places = linear_sum_assignment(ties)
    assert int((ties * found).sum()) == int(ties[places].sum())
    np.testing.assert_array_equal(found.argmax(axis=1), places[1])


@pytest.mark.claim("guarantees", "18")
@pytest.mark.parametrize(
    ("low", "high", "most"),
    [(40, 40, 1), (10, 60, 1), (38, 45, 1), (70, 90, 2), (100, 240, 3)],
)
def test_large_assignments_have_the_cost_that_scipy_finds(low, high, most):
    n, k = 240, 6
    costs = np.random.default_rng(9).integers(0, 2**30, (n, k))
    found = bounded_assignment([costs], np.ones(n, np.int64), low, high, most)
    sizes = found.sum(axis=0)
    assert_within("a cluster gets", sizes, least=low, most=high, unit="units")
    by_row, by_column = np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))
    matrix = np.vstack([by_row, -by_row, by_column, -by_column])
    limits = np.repeat([most, -1, high, -low], [n, n, k, k])
    best = linprog(costs.ravel(), matrix, limits, bounds=(0, 1), method="highs").fun
    assert (costs * found).sum() == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("most", [1, 2])
def test_equal_points_are_one_row_of_the_flow(most):
    rng = np.random.default_rng(8)
    for _ in range(20):
        sizes = rng.integers(1, 5, 7)
        levels = [rng.integers(0, top, (7, 3)) for top in (5, 2**48)]
        bounds = (sizes.sum() // 3, sizes.sum() // 3 + 2, most)
        one = bounded_assignment(levels, sizes, *bounds)
        rows = np.repeat(np.arange(7), sizes)
        alone = [costs[rows] for costs in levels]
        other = bounded_assignment(alone, np.ones(len(rows), np.int64), *bounds)
        together = np.zeros_like(one)
        np.add.at(together, rows, other)
        np.testing.assert_array_equal(one, together)
        given = one.sum(axis=1)
        assert_within(
            "all clusters get of a row", given, least=sizes, most=most * sizes
        )
        assert_within("a cluster gets of a row", one, most=sizes[:, None])


def test_the_nearest_slots_are_those_of_a_sort():
    rng = np.random.default_rng(11)
    for _ in range(20):
        sizes = rng.integers(1, 4, 9)
        costs, ties = rng.integers(0, 4, (9, 3)), rng.integers(0, 2**48, (9, 3))
        held = nearest_slots(costs, sizes, 6, ties)
        rows = np.repeat(np.arange(9), sizes)
        for j in range(3):
            first = sorted(rows, key=lambda i: (costs[i, j], ties[i, j]))[:6]
            np.testing.assert_array_equal(held[:, j], np.bincount(first, minlength=9))


@pytest.mark.claim("guarantees", "18")
def test_no_price_of_ties_can_overflow():
    """A path through as many clusters as there may be adds up costs of ties in int64."""
    points = np.arange(4000).reshape(-1, 2)
    ties = made()._hashes(b"tie", points, 9)
    assert 0 <= ties.min() < 2**35
    assert 2**47 < ties.max() < 2**48
    # Nodes are clusters, unused units and the end of paths; one arc more is tried than
    # paths have.
    assert (MAX_CLUSTERS + 3) * 2**48 < 2**62
    ring = np.full((400, 400), _FAR)
    ring[np.arange(400), np.arange(1, 401) % 400] = 1 - 2**48
    assert sorted(_prices(ring)[1]) == list(range(400))


@pytest.mark.claim("guarantees", "18")
def test_no_cost_can_overflow_the_solver():
    for n_nodes in (4, 100, 5000, 10**5, MAX_ARCS):
        for largest in (1, 2**20, 2**53):
            costs = np.array([[0, largest // 3, largest]])
            found = blended(costs, np.full((1, 3), 2**48 - 1), largest, n_nodes)
            assert found.min() >= 0
            assert 4 * (n_nodes + 2) ** 2 * int(found.max()) < 2**63
            assert (np.diff(found[0]) >= 0).all()


@pytest.mark.claim("guarantees", "18")
@pytest.mark.parametrize("most", [1, 2])
def test_the_largest_costs_are_solved(most):
    """Records and centroids in opposite corners of a fine grid, and sizes that must be equal."""
    rng, n = np.random.default_rng(12), 1500
    one, size = 2**24, n // 3 * most
    options = {
        "assignment": "e-exclusive",
        "max_contribution": most,
        "fraction_bits": 24,
    }
    algorithm = made(3, 8, n, low=size, high=size, budget=OPEN, **options)
    records = rng.choice([-one, one], (n, 8))
    records[: n // 2] = one
    centroids = np.full((3, 8), -one)
    centroids[1] += 1
    blocks = answer(algorithm, centroids, records)
    np.testing.assert_array_equal(blocks["counts"] >> 24, [size] * 3)
    if most == 1:
        np.testing.assert_array_equal(blocks["sums"].sum(axis=0), records.sum(axis=0))


# ------------------------------------------------------------------ rounds and updates


def test_without_noise_the_run_is_constrained_k_means():
    """Bennett, Bradley and Demiriz: assign within bounds at least cost, take means, repeat."""
    rng = np.random.default_rng(13)
    centers = np.array([[-0.6, -0.6], [0.6, 0.5], [-0.5, 0.6]])
    records = np.repeat(centers, [30, 60, 90], axis=0) + rng.normal(0, 0.08, (180, 2))
    initial = [[-0.1, 0.0], [0.1, 0.0], [0.0, 0.1]]
    options = {"fraction_bits": 16, "n_rounds": 4, "initial": initial}
    algorithm = made(3, 2, 180, low=60, high=60, budget=OPEN, **options)
    expected, state = np.array(initial), run_of(algorithm, [records])
    for _ in range(4):
        costs = ((records[:, None] - expected) ** 2).sum(axis=2)
        labels = linear_sum_assignment(np.repeat(costs, 60, axis=1))[1] // 60
        expected = np.array([records[labels == j].mean(axis=0) for j in range(3)])
    np.testing.assert_allclose(algorithm.centroids(state), expected, atol=1e-3)
    np.testing.assert_array_equal(algorithm.counts(state), [60] * 3)
    assert algorithm.warnings(state) == ()


@pytest.mark.parametrize(
    ("assignment", "aggregation"),
    [*((name, "amn") for name in ASSIGNMENTS), (FREE, "mna")],
)
def test_means_are_those_of_the_clients_that_answered(assignment, aggregation):
    """Of their means, or of sums whose numbers of records are public."""
    rng, options = (
        np.random.default_rng(14),
        {"assignment": assignment, "aggregation": aggregation},
    )
    algorithm = made(3, 2, 9, m=4, low=2, high=5, **options)
    parts = [rng.integers(-ONE, ONE + 1, (9, 2)) for _ in range(4)]
    state, (block,) = algorithm.initial_state(), algorithm.layout(1).blocks
    sums = [
        answer(algorithm, state.arrays["centroids"], part)[block.name] for part in parts
    ]
    for n in (1, 3, 4):
        words = sum(sums[:n]).ravel()
        by_part = algorithm.update(state, algorithm.layout(1).unflatten(words, n / 4))
        by_number = algorithm.update(
            state, algorithm.layout(1).unflatten(words, 0.9, n)
        )
        expected = np.floor(
            sum(sums[:n]) / (n if aggregation == "amn" else 2 * n) + 0.5
        )
        np.testing.assert_array_equal(by_part.arrays["centroids"], expected)
        np.testing.assert_array_equal(by_number.arrays["centroids"], expected)
        held = 2 * n if assignment == FREE else 3 * n
        np.testing.assert_array_equal(algorithm.counts(by_number), [held] * 3)
    (note,) = algorithm.warnings(by_part)
    assert "released no sizes" in note


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"budget": OPEN}, 7),
        ({}, 2),
        # 2 N / sqrt(500 k^3 (d + (4 d rho^2)^(1/3))^3) = 5.3
        ({"epsilon": 2.0, "n": 1400}, 5),
        ({"epsilon": 50.0}, 7),
        ({"epsilon": 0.5, "n": 20_000, "aggregation": "amn", "low": 6000}, 7),
        # 0.1 c / 109.5
        ({"epsilon": 0.1, "n": 20_000, "aggregation": "amn", "low": 6000}, 5),
    ],
)
def test_rounds_are_those_of_the_thesis(options, expected):
    options = dict(options)
    epsilon, n = options.pop("epsilon", 1.0), options.pop("n", 400)
    options = {"budget": PrivacyBudget(epsilon, 1e-6), "low": n // 6, **options}
    found = made(3, 2, n, high=n, n_rounds="auto", **options)
    assert found.n_rounds == expected


def test_counts_have_the_papers_share():
    """Of epsilon with Laplace noise, of mu^2 with Gaussian noise: (4 d rho^2)^(1/3) beside d."""
    ratio = 2 / (8 * 0.225**2) ** (1 / 3)
    sums, counts = made().plan().rounds[0]
    assert (counts.noise_multiplier / sums.noise_multiplier) ** 2 == pytest.approx(
        ratio
    )
    assert {release.norm for release in (sums, counts)} == {"l2"}
    sums, counts = made(mechanism="laplace").plan().rounds[0]
    assert counts.noise_multiplier / sums.noise_multiplier == pytest.approx(ratio)
    assert {release.mechanism for release in (sums, counts)} == {"laplace"}
    spent = made(mechanism="laplace").plan().releases
    assert sum(1 / release.noise_multiplier for release in spent) == pytest.approx(1.0)


# ------------------------------------------------------------------ parameters


REFUSED = [
    ({"n_clients": None}, "n_clients is required"),
    ({"n_records": None}, "n_records is required"),
    ({"budget": PrivacyBudget(1.0, unit="client")}, "unit='record'"),
    ({"n_clients": 61}, r"n_clients in \[1, 60\]"),
    ({"assignment": "unconstrained"}, "Expected assignment in"),
    ({"aggregation": "mean"}, "Expected aggregation in"),
    ({"mechanism": "uniform"}, "Expected mechanism in"),
    ({"max_contribution": 2}, "max_contribution=1 unless"),
    (
        {"max_contribution": 4, "assignment": "e-exclusive"},
        r"max_contribution in \[1, 3\]",
    ),
    ({"assignment": FREE, "max_size": 30}, "max_size=None with"),
    ({"assignment": FREE, "min_size": 0}, r"min_size in \[1, 60\]"),
    ({"aggregation": "amn", "min_size": 0}, r"min_size in \[1, 60\]"),
    ({"min_size": -1}, r"min_size in \[0, 60\]"),
    ({"min_size": 21}, "min_size=21.*n_clusters=3, n_records=60"),
    ({"max_size": 19}, "max_size=19.*n_clusters=3, n_records=60"),
    (
        {"min_size": 12, "max_size": 11},
        "min_size <= n_records.*min_size=12, max_size=11",
    ),
    # For all clients together there is room, but not for each.
    ({"n_clients": 8, "min_size": 20, "max_size": 60}, "n_clients=8: 3 to 7 records"),
    ({"n_clients": 7, "max_size": 20, "min_size": 0}, "n_clients=7: 0 to 2 records"),
    (
        {"n_clients": 7, "max_size": 33, "min_size": 29, "assignment": "e-exclusive"},
        "5 to 4",
    ),
    ({"mechanism": "gaussian", "budget": PURE}, "delta"),
    ({"n_records": 10**7}, f"at most {MAX_ARCS}"),
]


@pytest.mark.claim("guarantees", "17")
@pytest.mark.parametrize(("options", "match"), REFUSED)
def test_what_cannot_be_kept_is_refused_from_public_figures(options, match):
    options = {"budget": BUDGET, "n_records": 60, "n_clients": 3, **options}
    budget = options.pop("budget")
    with pytest.raises(ConfigurationError, match=match):
        ConstrainedLloydAlgorithm.planned(3, box(2), budget, **options)


def test_sizes_that_are_not_given_are_those_of_the_thesis():
    algorithm = ConstrainedLloydAlgorithm.planned(
        15, box(2), BUDGET, n_records=5000, n_clients=2
    )
    assert (algorithm.min_size, algorithm.max_size) == (223, 1000)
    assert (algorithm.client_bounds, algorithm.n_slots) == ((112, 500), 2500)
    # Every client has a slot for each of its records, also where they do not divide
    # evenly.
    uneven = ConstrainedLloydAlgorithm.planned(
        15, box(2), BUDGET, n_records=5001, n_clients=2
    )
    assert uneven.n_slots == 2501


@pytest.mark.claim("guarantees", "17")
def test_what_can_be_kept_is_solved_whatever_the_records_are():
    """All parameters of small runs, with clients of no, some and too many records."""
    rng, n_tried = np.random.default_rng(16), 0
    for _ in range(400):
        k, m, n = (int(x) for x in rng.integers([1, 1, 1], [5, 4, 30]))
        name = ASSIGNMENTS[rng.integers(3)]
        options = {
            "assignment": name,
            "aggregation": ("mna", "amn")[rng.integers(2)],
            "min_size": int(rng.integers(0, n + 1)),
            "max_size": None if name == FREE else int(rng.integers(0, 3 * n)),
            "max_contribution": int(rng.integers(1, k + 1))
            if name == "e-exclusive"
            else 1,
        }
        try:
            algorithm = ConstrainedLloydAlgorithm.planned(
                k,
                box(1),
                OPEN,
                n_records=n,
                n_clients=m,
                fraction_bits=Q,
                n_rounds=1,
                **options,
            )
        except ConfigurationError:
            continue
        n_tried += 1
        low, high = algorithm.client_bounds
        for size in (0, 1, algorithm.n_slots, 2 * n):
            records = rng.integers(-ONE, ONE + 1, (size, 1))
            blocks = answer(algorithm, rng.integers(-ONE, ONE + 1, (k, 1)), records)
            if "counts" in blocks:
                counts = blocks["counts"] >> Q
                assert_within(
                    "a cluster gets", counts, least=low, most=high, unit="slots"
                )
    assert n_tried > 60


def test_a_missing_solver_is_named_and_not_needed_for_nearest_records(monkeypatch):
    monkeypatch.setitem(
        __import__("sys").modules, "ortools.graph.python.min_cost_flow", None
    )
    with pytest.raises(
        ConfigurationError, match=r"package ortools.*flower-kmeans\[constrained\]"
    ):
        made().require_packages()
    algorithm = made(assignment=FREE)
    algorithm.require_packages()
    answer(algorithm, np.zeros((3, 2), np.int64), np.ones((6, 2)))
