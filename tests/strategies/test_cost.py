"""The cost that a run releases and the report states."""

import math

import numpy as np
import pytest
from harness import run_recorded, stock_start, without_noise
from rows import CENTERS, SERVER

from flower_kmeans import Ball, Box, Fault, PrivacyBudget
from flower_kmeans.algorithms import FedDPAlgorithm
from flower_kmeans.algorithms.numerics.assignment import assign
from flower_kmeans.algorithms.numerics.cost import user_scale
from flower_kmeans.data.domain import GridRecords
from flower_kmeans.errors import ObliviousServerError
from flower_kmeans.strategies import FastLloyd, FedDPKMeans, GLloyd
from tests.support.saying import assert_within

RNG = np.random.default_rng
RECORDS = np.repeat(CENTERS, 400, axis=0) + RNG(1).normal(size=(1200, 3))
PARTS = np.array_split(RNG(2).permutation(RECORDS), 6)
DOMAINS = {
    "ball": Ball(14.0, [0.0, 0.0, 0.0]),
    "box": Box([-12.0] * 3, [12.0] * 3),
    "common": Box([-12.0, -12.0, -6.0], [12.0, 12.0, 6.0], scale="common"),
}
START = CENTERS + 1.5  # within a radius of most of the records
KINDS = {
    "FastLloyd": (FastLloyd, {"n_rounds": 2, "initial": START}),
    "GLloyd": (GLloyd, {"n_rounds": 2, "initial": START}),
    "absolute": (
        FedDPKMeans,
        {"n_rounds": 2, "server_data": SERVER, "sums": "absolute"},
    ),
    "relative": (
        FedDPKMeans,
        {"n_rounds": 2, "server_data": SERVER, "sums": "relative"},
    ),
}
KIND = pytest.mark.parametrize("kind", KINDS)


def make(kind, trust, domain="box", *, epsilon=100.0, unit="record", **options):
    cls, usual = KINDS[kind]
    budget = PrivacyBudget(None if trust == "plain" else epsilon, unit=unit)
    options = {"n_clients": 6, "min_clients": 3, "cost": True, **usual, **options}
    return cls(3, DOMAINS[domain], budget, 1200, trust=trust, **options)


def run(strategy, **options):
    return run_recorded(strategy, PARTS, **options)


def exact_cost(outcome):
    """Return what is estimated, from the records; squared distances lose half a step each."""
    algorithm, query = outcome.strategy.algorithm, outcome.queries[-1]
    before, q = query.arrays["centroids"], algorithm.fraction_bits
    records = GridRecords(np.vstack(PARTS), algorithm.domain, q)
    points = np.vstack(list(records.blocks(10**6)))
    labels, d2 = assign(points, before)
    if "radius" in query.arrays:  # far records count as if they lay at the last radius
        reach = int(query.arrays["radius"][0])
        factors = reach / np.maximum(np.sqrt(d2), reach)
        points = before[labels] + (points - before[labels]) * factors[:, None]
    elif isinstance(algorithm, FedDPAlgorithm) and algorithm.lloyd_sums.radius:
        near = d2 <= algorithm.lloyd_sums.radius**2  # others do not count
        labels, points = labels[near], points[near]
    near = algorithm.domain.from_unit(points * 2.0**-q)
    exact = float(((near - outcome.strategy.centroids[labels]) ** 2).sum())
    return exact, len(near) * 2.0 ** -(q + 1) * user_scale(algorithm.domain)[0] ** 2


@pytest.mark.claim("guarantees", "16")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server", "plain"])
@KIND
def test_without_noise_the_cost_is_exact(kind, trust, domain):
    with without_noise():
        outcome = run(make(kind, trust, domain))
    exact, rounding = exact_cost(outcome)
    cost = outcome.strategy.report.cost
    assert cost.users_units
    assert (cost.standard_error == 0) == (trust == "plain")
    # The correction for noise that was planned for, and is not there, is small.
    slack = 0.0 if trust == "plain" else 0.05 * exact
    most = rounding * 1.000001 + slack
    assert_within(f"the cost {exact} is missed by", abs(cost.value - exact), most=most)
    assert 1000 < exact < 4500  # about the 3 * 1200 of the records' variance


@pytest.mark.claim("guarantees", "16")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("start", [None, stock_start])
@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
@KIND
def test_the_cost_is_within_seven_standard_errors(kind, trust, start):
    outcome = run(make(kind, trust), start=start)
    exact, _ = exact_cost(outcome)
    report = outcome.strategy.report
    assert 0 < report.cost.standard_error < exact
    off = abs(report.cost.value - exact) / report.cost.standard_error
    what = f"the cost {report.cost.value} is off the exact one by"
    assert_within(what, off, most=7, unit="standard errors", strict=True)
    assert report.to_dict()["cost"] == {**vars(report.cost)}
    assert report.to_dict()["releases"][-1]["name"] == "cost"


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("least", "away"), [(3, 0), (6, 0), (3, 4)])
@KIND
def test_the_error_counts_the_noise_that_is_left(kind, least, away):
    """Six clients add a share; what five honest ones do not need is removed, or cannot be.

    The cost has the noise of the last round, and the report the most of all: where one
    of six is missing in the rounds before, the plan's share is one of 4, then of 5.
    """
    strategy = make(kind, "distributed-noise", min_clients=least)
    missing = range(1, min(away, strategy.n_rounds - 1) + 1)
    outcome = run(strategy, faults=[Fault(1, t, "drop") for t in missing])
    report = strategy.report
    planned = strategy.algorithm.last_cost.estimate(outcome.server.state, 1.0)
    assert (report.levels == ()) == (least == 6)
    assert report.answers == [5] * len(missing) + [6] * (
        strategy.n_rounds - len(missing)
    )
    assert report.noise_factor == pytest.approx(math.sqrt(5 / 4 if away else 6 / 5))
    assert report.cost.standard_error == pytest.approx(
        math.sqrt(6 / 5) * planned.standard_error
    )
    assert report.cost.value > planned.value


@pytest.mark.claim("guarantees", "34")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("cost", [False, True])
@pytest.mark.parametrize("unit", ["record", "client"])
@KIND
def test_a_cost_is_there_where_it_was_asked_for_and_says_that_clients_are_clipped(
    kind, unit, cost
):
    strategy = make(kind, "trusted-server", unit=unit, cost=cost)
    run(strategy)
    assert (strategy.report.cost is not None) == cost
    assert (strategy.report.to_dict()["cost"] is not None) == cost
    text = " ".join(strategy.report.statements)
    said = "The cost is a sum of clipped contributions" in text
    assert said == (cost and unit == "client")


@pytest.mark.claim("guarantees", "16")
@pytest.mark.parametrize("trust", ["oblivious-server", "clients-only"])
@pytest.mark.parametrize("kind", ["FastLloyd", "GLloyd"])
def test_a_server_that_sees_no_sums_is_given_no_cost(kind, trust):
    with pytest.raises(ObliviousServerError, match=f"cost=False under trust='{trust}'"):
        make(kind, trust)
    make(kind, trust, cost=False)
