"""The cost that a run of the Lloyd family releases and the report states."""

import math

import numpy as np
import pytest
from harness import run_recorded, stock_start, without_noise

from flower_kmeans import Ball, Box, PrivacyBudget, simulate
from flower_kmeans.assignment import assign
from flower_kmeans.domain import GridRecords
from flower_kmeans.errors import ObliviousServerError
from flower_kmeans.strategies import FastLloyd, GLloyd

RNG = np.random.default_rng
CENTERS = np.array([[6.0, 6.0, 0.0], [-6.0, 6.0, 1.0], [0.0, -6.0, -1.0]])
RECORDS = np.repeat(CENTERS, 400, axis=0) + RNG(1).normal(size=(1200, 3))
PARTS = np.array_split(RNG(2).permutation(RECORDS), 6)
DOMAINS = {
    "ball": Ball(14.0, [0.0, 0.0, 0.0]),
    "box": Box([-12.0] * 3, [12.0] * 3),
    "common": Box([-12.0, -12.0, -6.0], [12.0, 12.0, 6.0], scale="common"),
}
TRUSTS = ("distributed-noise", "trusted-server", "plain")


def make(cls, trust, domain="box", *, epsilon=100.0, **options):
    budget = PrivacyBudget(None if trust == "plain" else epsilon)
    # GLloyd's state does not keep the centroids before its last round: here they are the start.
    n_rounds = 1 if cls is GLloyd else 2
    options = {"n_rounds": n_rounds, "n_clients": 6, "min_clients": 3, "cost": True, **options}
    start = CENTERS + 1.5  # within a radius of most of the records
    return cls(3, DOMAINS[domain], budget, 1200, trust=trust, initial=start, **options)


def exact_cost(strategy):
    """Return what is estimated, from the records; squared distances lose half a step each."""
    algorithm, q = strategy.algorithm, strategy.algorithm.fraction_bits
    arrays = strategy._running.state.arrays
    before = arrays.get("before", algorithm.initial_state().arrays["centroids"])
    records = GridRecords(np.vstack(PARTS), algorithm.domain, q)
    points = np.vstack(list(records.blocks(10**6)))
    labels, d2 = assign(points, before)
    if isinstance(strategy, FastLloyd):  # far records count as if they lay at the last radius
        reach = int(strategy._running.state.arrays["radius"][0])
        factors = reach / np.maximum(np.sqrt(d2), reach)
        points = before[labels] + (points - before[labels]) * factors[:, None]
    near = algorithm.domain.from_unit(points * 2.0**-q)
    moved = strategy.centroids[labels]
    return float(((near - moved) ** 2).sum()), len(near) * 2.0 ** -(q + 1) * 14.0**2


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("cls", [FastLloyd, GLloyd])
def test_without_noise_the_cost_is_exact(cls, trust, domain):
    strategy = make(cls, trust, domain)
    with without_noise():
        run_recorded(strategy, PARTS, timeout=60)
    exact, rounding = exact_cost(strategy)
    cost = strategy.report.cost
    assert cost.users_units
    assert (cost.standard_error == 0) == (trust == "plain")
    # The correction for noise that was planned for, and is not there, is small.
    slack = 0.0 if trust == "plain" else 0.05 * exact
    assert abs(cost.value - exact) <= rounding * 1.000001 + slack
    assert 1000 < exact < 4500  # about the 3 * 1200 of the records' variance


@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("trust", TRUSTS[:2])
@pytest.mark.parametrize("cls", [FastLloyd, GLloyd])
def test_the_cost_is_within_seven_standard_errors(cls, trust, start):
    strategy = make(cls, trust)
    run_recorded(strategy, PARTS, timeout=60, start=start)
    exact, _ = exact_cost(strategy)
    cost = strategy.report.cost
    assert 0 < cost.standard_error < exact
    assert abs(cost.value - exact) < 7 * cost.standard_error
    assert strategy.report.to_dict()["cost"] == {**vars(cost)}
    releases = strategy.report.to_dict()["releases"]
    assert [release["name"] for release in releases[-3:]] == ["sums", "counts", "cost"]
    mus = [release["mu"] for release in releases]
    assert math.hypot(*mus) == pytest.approx(strategy.report.mu, rel=1e-9)


@pytest.mark.parametrize("cls", [FastLloyd, GLloyd])
def test_the_error_grows_with_the_noise_that_is_left(cls):
    """Six clients add a share; what five honest ones do not need is removed."""
    strategy = make(cls, "distributed-noise")
    assert strategy.noise_factor == math.sqrt(6 / 5)
    run_recorded(strategy, PARTS, timeout=60)
    state = strategy._running.state
    planned = strategy.algorithm.cost_estimate(state, 1.0)
    assert strategy.report.cost.standard_error == pytest.approx(
        strategy.noise_factor * planned.standard_error
    )
    assert strategy.report.cost.value > planned.value


@pytest.mark.parametrize("cls", [FastLloyd, GLloyd])
def test_no_cost_is_released_unless_it_was_asked_for(cls):
    strategy = make(cls, "trusted-server", cost=False)
    run_recorded(strategy, PARTS, timeout=60)
    assert strategy.report.cost is None


@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
@pytest.mark.parametrize("cls", [FastLloyd, GLloyd])
def test_a_server_that_sees_no_sums_is_given_no_cost(cls, trust):
    with pytest.raises(ObliviousServerError, match=f"cost=False under trust='{trust}'"):
        make(cls, trust)
    make(cls, trust, cost=False)


def test_whole_clients_can_have_a_cost_too():
    budget = PrivacyBudget(50.0, unit="client")
    strategy = GLloyd(
        3, DOMAINS["box"], budget, 1200, trust="trusted-server", n_clients=6, n_rounds=2, cost=True
    )
    report = simulate(strategy, PARTS).report
    assert report.cost.standard_error > 0
    assert report.clip == 200.0
