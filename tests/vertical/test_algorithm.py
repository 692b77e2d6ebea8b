"""Vertical k-means: sensitivity, calibration, and what the algorithm computes."""

import math

import numpy as np
import pytest
from soft import ETA, evaluate, soft_members

from flower_kmeans.algorithms.layout import Statistic
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.filter import charge_of
from flower_kmeans.vertical.algorithm import (
    MAX_RECORDS,
    SLOTS,
    SOFT,
    VerticalAlgorithm,
)
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import N

BUDGET = PrivacyBudget(1.0, 1e-6)


def algorithm(k=4, d=3, budget=BUDGET, **options):
    options = {
        "domain": Box([-1.0] * d, [1.0] * d),
        "n_records": 5000,
        "n_rounds": 5,
        **options,
    }
    return VerticalAlgorithm.planned(k, budget=budget, **options)


def change(members, x, others, y, centroids, chosen):
    """Return by how much a replaced record moves the release, in the units of its noise."""
    near = centroids if chosen.radius else 0.0
    sums = members[:, None] * (x - near) - others[:, None] * (y - near)
    vector = np.append(sums.ravel(), members - others) * 2.0**chosen.fraction_bits
    return float(np.linalg.norm(vector / sensitivities(chosen, 1)))


# -------------------------------------------------------------------------- sensitivity


@pytest.mark.claim("guarantees", "29")
@pytest.mark.claim("threat-model", "V15")
@pytest.mark.parametrize(
    "n_drawn", [400, pytest.param(1500, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("radius", [False, True])
def test_units_bound_every_replacement_and_are_reached(radius, n_drawn):
    chosen, rng, worst = algorithm(radius=radius), np.random.default_rng(1), 0.0
    k, d, widths = chosen.n_clusters, 3, np.ones(3)
    reach = chosen.reach * 2.0**-chosen.fraction_bits
    for i in range(n_drawn):
        centroids = rng.uniform(-1, 1, (k, d))
        x, y = rng.choice([-1.0, 1.0], (2, d)) if i % 2 else rng.uniform(-1, 1, (2, d))
        if i % 4 == 1:  # opposite corners in one cluster: what sums may change by
            centroids[0], centroids[1:] = 0, rng.choice([-1.0, 1.0], (k - 1, d)) * 0.999
            y = -x * rng.uniform(0.9, 1)
            if radius:
                x, y = (v * reach * 0.98 / np.linalg.norm(v) for v in (x, y))
        both = soft_members(
            np.array([x, y]), centroids, widths, reach if radius else None
        )
        worst = max(worst, change(both[0], x, both[1], y, centroids, chosen))
        # Two clusters that are as far away as possible: what counts and sums change by
        # together.
        hard = np.eye(k)[rng.choice(k, 2, replace=False)]
        if not radius:
            worst = max(worst, change(hard[0], x, hard[1], y, centroids, chosen))
    found = f"The largest of {n_drawn} replacements moves the release by {worst} of its unit"
    assert 0.9 < worst * chosen.rho <= SOFT, (
        f"{found}, at rho = {chosen.rho}; {SOFT} is allowed."
    )
    most = 1 - chosen.measured_error / chosen.rho
    assert worst <= most + 1e-12, f"{found}; {most} is allowed."
    assert worst > 2 / 3, f"{found}: two thirds of the units would do."


@pytest.mark.claim("guarantees", "29")
def test_the_plan_is_one_release_that_meets_the_budget_exactly():
    chosen = algorithm(k=5, d=2, radius=False)
    plan = chosen.plan()
    assert [release.blocks for release in plan.releases] == [("sums", "counts")] * 5
    assert plan.delta(1.0) == pytest.approx(1e-6, rel=1e-6)
    multiplier = plan.releases[0].noise_multiplier
    counts, sums = (
        float(sensitivities(chosen, 1)[i]) * multiplier / 2**16 for i in (-1, 0)
    )
    assert counts == pytest.approx(19, abs=0.5)
    assert sums == pytest.approx(27, abs=0.7)

    less = [
        type(plan.releases[0])(
            **vars(r) | {"noise_multiplier": r.noise_multiplier * 2 / 3}
        )
        for r in plan.releases
    ]
    assert charge_of(plan.releases).fits(1.0, 1.000001e-6)
    assert not charge_of(less).fits(1.0, 1e-6)


@pytest.mark.claim("vertical", "sums-then-offsets-which")
def test_a_radius_needs_less_noise_for_sums_and_the_same_for_counts():
    near, far = (
        sensitivities(algorithm(k=16, d=2, radius=radius), 1)
        for radius in (True, False)
    )
    assert near[0] / far[0] == pytest.approx(1 / 4, rel=0.03)
    assert near[-1] / far[-1] == pytest.approx(1, rel=0.03)


def corner(rng, k, eta):
    wins = np.triu(np.where(rng.integers(0, 2, (k, k)), 1 + eta, -eta), 1)
    return (wins + np.tril(1 - wins.T, -1) + np.eye(k)).prod(1)


@pytest.mark.claim("guarantees", "30")
@pytest.mark.parametrize(
    "n_drawn", [5_000, pytest.param(20_000, marks=pytest.mark.thorough)]
)
def test_soft_memberships_lengthen_an_answer_by_what_the_corners_give(n_drawn):
    """A large eta shows the constants: the bound holds at every corner, and is nearly reached."""
    rng, eta, k, worst = np.random.default_rng(2), 0.05, 4, 0.0

    def bound(eta, k):
        return (1 + eta) ** (k - 1) + math.sqrt(2 * (k - 1)) * eta * (1 + eta) ** (
            k - 2
        )

    for _ in range(n_drawn):
        a, b, x = corner(rng, k, eta), corner(rng, k, eta), rng.choice([-1.0, 1.0], 2)
        y = x * rng.choice([-1.0, 1.0])
        sums = np.outer(a, x) - np.outer(b, y)
        worst = max(worst, math.sqrt(((a - b) ** 2).sum() / 4 + (sums**2).sum() / 8))
    most = bound(eta, k)
    found = f"The longest answer of {n_drawn} corners is {worst}; the bound is {most}."
    assert 0.93 * most < worst <= most, found
    assert bound(ETA, 16) * (1 + ETA) <= SOFT


@pytest.mark.claim("guarantees", "30")
@pytest.mark.parametrize(("k", "d"), [(16, 2), (2, 2), (16, 8), (5, 3)])
def test_a_record_outside_of_the_radius_adds_no_more_than_one_at_it(k, d):
    """Membership times offset, for every distance and every size of the comparison.

    At the radius a record belongs to its cluster by half. Were it more, a replacement
    by it could change the count and move the sum by twice the radius together.
    """
    chosen = algorithm(k=k, d=d)
    radius = chosen.reach * 2.0**-chosen.fraction_bits
    z = np.concatenate([np.linspace(-1, 0, 200_001), -np.geomspace(1e-7, 0.01, 50_001)])
    inside = 0.5 + 0.5 * evaluate(z)
    farthest = 4 * d - radius * radius
    for size in (max(d - radius * radius, radius * radius), farthest):
        offset = np.sqrt(radius * radius - z * size)
        assert (np.abs(inside) * offset).max() <= radius / 2 * (1 + 1e-9)


@pytest.mark.claim("guarantees", "31")
@pytest.mark.parametrize(
    ("n_parties", "holders", "n", "error"),
    [
        (2, 1, SLOTS, 0.005),
        (2, 1, 4 * SLOTS, 0.01),
        (3, 1, SLOTS, 0.039),
        (4, 3, 100_000, 0.1787),
    ],
)
def test_errors_of_the_encryption_are_paid_for(n_parties, holders, n, error):
    chosen = algorithm(
        d=4, n_parties=n_parties, key_holders=holders, n_records=n, radius=False
    )
    assert chosen.rho == pytest.approx(SOFT + error, rel=1e-3)


def test_twelve_deviations_of_a_fresh_error_at_the_worst_records_are_paid_for():
    """All on a border of slope 640 / 2, as far from the centre as a sum may be.

    Under a public key e u + e' s has 4 N / 3 terms of variance 10.5; the first
    rescaling adds (1 + 2 N / 3) / 12. A value is 16,384 times a polynomial's constant
    coefficient.
    """
    slope = evaluate(np.array([-1e-7, 1e-7])) @ [-1, 1] / 4e-7
    variance = 10.5 * (4 * N / 3 + 1) + (1 + 2 * N / 3) / 12
    deviation = slope * SLOTS / moduli(2).scales[0] * math.sqrt(variance)
    paid = algorithm(n_parties=3, n_records=SLOTS, radius=False).measured_error
    assert 12 * deviation <= paid < 12.5 * deviation, (
        f"{paid} is paid for: {paid / deviation} deviations of a fresh error."
    )


# --------------------------------------------------------------------- the paper's flow


@pytest.mark.claim("threat-model", "V1")
@pytest.mark.parametrize(("k", "d_a", "d_b"), [(2, 1, 1), (3, 2, 2), (5, 4, 4)])
@pytest.mark.parametrize("others", [0.0, 20.0])
def test_noise_of_the_computing_party_alone_is_solved_for(k, d_a, d_b, others):
    """One party adds all noise and receives centroids: a linear system gives exact counts.

    With noise of the other party it gives nothing.
    """
    rng, n, d = np.random.default_rng(5), 3000, d_a + d_b
    records = np.clip(rng.normal(0, 0.5, (n, d)), -1, 1)
    centroids = records[rng.choice(n, k, replace=False)]
    nearest = np.eye(k)[((records[:, None] - centroids) ** 2).sum(2).argmin(1)]
    counts, sums = nearest.sum(0), nearest.T @ records
    own_counts, own_sums = rng.normal(0, 50, k), rng.normal(0, 50, (k, d))
    opened = (sums + own_sums + rng.normal(0, 1, (k, d)) * others) / (
        counts + own_counts + rng.normal(0, 1, k) * others
    )[:, None]
    unknowns = (k - 1) * (1 + d_a) + k * d_b  # what n and the own totals leave open
    matrix, right = np.zeros((k * d, unknowns)), np.zeros(k * d)
    for j in range(k):
        for c in range(d):
            row = j * d + c
            right[row] = opened[j, c] * own_counts[j] - own_sums[j, c]
            if j < k - 1:
                matrix[row, j] = -opened[j, c]
            else:
                matrix[row, : k - 1] = opened[j, c]
                right[row] += opened[j, c] * n
            if c >= d_a:
                matrix[row, (k - 1) * (1 + d_a) + j * d_b + c - d_a] = 1
            elif j < k - 1:
                matrix[row, k - 1 + j * d_a + c] = 1
            else:
                matrix[row, k - 1 + c : (k - 1) * (1 + d_a) : d_a] = -1
                right[row] -= records[:, c].sum()
    found = np.linalg.lstsq(matrix, right, rcond=None)[0][: k - 1]
    error = np.abs(found - counts[:-1]).max()
    assert (error > 1) if others else (error < 1e-6), (
        f"Counts are solved for up to {error}, with noise of {others} records of the other party."
    )


# --------------------------------------------------------------------- what is computed


def grid_records(chosen, n=400, seed=3):
    rng = np.random.default_rng(seed)
    return GridRecords(
        rng.uniform(-1, 1, (n, chosen.domain.n_features)),
        chosen.domain,
        chosen.fraction_bits,
    )


@pytest.mark.parametrize("radius", [False, True])
def test_statistic_is_that_of_the_definition(radius):
    chosen = algorithm(radius=radius)
    records, state = grid_records(chosen), chosen.initial_state()
    out = np.empty((400, 3))
    records.read(0, out)
    grid, centroids = np.rint(out).astype(np.int64), state.arrays["centroids"]
    squares = ((grid[:, None] - centroids) ** 2).sum(2)
    found = chosen.statistic(chosen.query(state), records)
    for j in range(chosen.n_clusters):
        mine = squares.argmin(1) == j
        if radius:
            mine &= squares[:, j] <= chosen.reach**2
        expected = (grid[mine] - (centroids[j] if radius else 0)).sum(0)
        assert (found.blocks["sums"][j] == expected).all()
        assert found.blocks["counts"][j] == mine.sum() << chosen.fraction_bits


@pytest.mark.parametrize("radius", [False, True])
def test_update_takes_the_means_and_keeps_what_has_no_records(radius):
    chosen = algorithm(radius=radius)
    state = chosen.initial_state()
    answer = chosen.statistic(chosen.query(state), grid_records(chosen))
    blocks = {name: block.copy() for name, block in answer.blocks.items()}
    blocks["counts"][1] = -5
    after = chosen.update(state, Statistic(blocks))
    old, counts = state.arrays["centroids"], blocks["counts"] >> chosen.fraction_bits
    assert (after.arrays["centroids"][1] == old[1]).all()
    assert after.round == 1
    mean = blocks["sums"][0] / counts[0] + (old[0] if radius else 0)
    assert np.abs(after.arrays["centroids"][0] - mean).max() <= 1
    wild = Statistic(
        {name: np.full_like(block, -(2**62)) for name, block in blocks.items()}
    )
    inside = chosen.update(after, wild).arrays["centroids"]
    assert (np.abs(inside) <= 2**chosen.fraction_bits).all()


# --------------------------------------------------------------------------- parameters


@pytest.mark.claim("known-limitations", "vertical-runs-have-further")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"domain": Ball(1.0, [0.0, 0.0])}, "Box"),
        ({"budget": PrivacyBudget(epsilon=None)}, "private"),
        ({"budget": PrivacyBudget(1.0, unit="client")}, "unit='record'"),
        *(({"k": k}, "n_clusters") for k in (1, 17)),
        *(({"n_parties": number}, "n_parties") for number in (1, 4)),
        *(({"key_holders": number}, "key_holders") for number in (0, 2)),
        *(
            ({"n_records": number}, "n_records")
            for number in (None, 3, MAX_RECORDS + 1)
        ),
    ],
)
def test_domains_and_budgets_that_cannot_be_served_are_refused(options, names):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=names):
        algorithm(**options)


@pytest.mark.claim("known-limitations", "vertical-runs-have-further")
def test_values_that_could_wrap_and_noise_shares_that_hide_nothing_are_refused():
    algorithm(n_records=MAX_RECORDS).require_room(2.0)
    with pytest.raises(ConfigurationError, match="larger epsilon"):
        algorithm(budget=PrivacyBudget(1e-4, 1e-9), n_records=MAX_RECORDS)
    with pytest.raises(
        ConfigurationError, match=r"noise shares of at least 0.1 records"
    ):
        algorithm(budget=PrivacyBudget(1e6, 1e-6))


@pytest.mark.parametrize(("n", "rounds"), [(200, 2), (5000, 5), (MAX_RECORDS, 5)])
def test_the_number_of_rounds_follows_from_signal_over_noise(n, rounds):
    assert algorithm(k=8, n_records=n, n_rounds="auto").n_rounds == rounds
