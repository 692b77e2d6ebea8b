"""The cost as a release of the Lloyd family's last round: units, plans, and what is refused."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats

from flower_kmeans.algorithms import (
    FastLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    State,
)
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.data.domain import Box, GridRecords
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.budget import PrivacyBudget
from tests.support.saying import assert_within

pytestmark = pytest.mark.claim("guarantees", "16")

RNG = np.random.default_rng
Q = 3  # a grid small enough to enumerate
PAPER = partial(FastLloydAlgorithm.planned, relocation=False)
WITH_COST = [GLloydAlgorithm, FastLloydAlgorithm, PAPER]
SQUARE = Box([0, 0], [1, 1])


def planner(kind):
    return kind if kind is PAPER else kind.planned


def build(cls, domain, k=2, budget=None, **options):
    options = {
        "n_records": 1000,
        "fraction_bits": Q,
        "n_rounds": 2,
        "cost": True,
        **options,
    }
    return planner(cls)(
        k, domain, PrivacyBudget(1.0) if budget is None else budget, **options
    )


@pytest.mark.parametrize("cls", WITH_COST)
def test_the_cost_is_a_release_of_the_last_round_with_its_share(cls):
    algorithm, without = (
        build(cls, SQUARE, n_rounds=3, cost=cost) for cost in (True, False)
    )
    names = [[release.name for release in group] for group in algorithm.plan().rounds]
    assert names == [["sums", "counts"]] * 2 + [["sums", "counts", "cost"]]
    assert "cost" not in algorithm.layout(2).names
    last = algorithm.layout(3).blocks[-1]
    assert (last.name, last.shape) == (
        "cost",
        (1,),
    )
    assert algorithm.layout(3).n_words == algorithm.layout(2).n_words + 1
    plan = algorithm.plan()
    assert plan.mu == pytest.approx(without.plan().mu, rel=1e-12)
    (cost,) = (release for release in plan.releases if release.name == "cost")
    assert (cost.cost / plan.mu) ** 2 == pytest.approx(0.02 / 1.02, rel=1e-12)
    # All others have a little more noise, in the same ratios.
    for before, after in zip(without.plan().releases, plan.releases[:-1], strict=True):
        ratio = after.noise_multiplier / before.noise_multiplier
        assert ratio == pytest.approx(math.sqrt(1.02), rel=1e-12)


@pytest.mark.parametrize("cls", [GLloydAlgorithm, PAPER])
def test_the_error_of_the_cost_grows_with_the_clip(cls):
    """As all of the noise does; and the correction with its square."""
    budget, found = PrivacyBudget(1.0, unit="client"), []
    for clip in (2.0, 4.0):
        algorithm = build(cls, SQUARE, budget=budget, n_clients=50, clip=clip, seed=1)
        state, words = algorithm.initial_state(), RNG(0).integers(0, 2**14, size=7)
        for t in (1, 2):
            state = algorithm.update(
                state,
                algorithm.layout(t).unflatten(words[: algorithm.layout(t).n_words]),
            )
        found.append(algorithm.last_cost.estimate(state))
    assert found[1].standard_error == pytest.approx(2 * found[0].standard_error)
    assert found[1].standard_error > 0


def test_a_cost_needs_more_room_than_sums():
    options, domain = (
        {"n_records": 5 * 10**13, "fraction_bits": 16},
        Box([0] * 5, [1] * 5),
    )
    build(GLloydAlgorithm, domain, cost=False, **options)
    with pytest.raises(ConfigurationError, match="n_records=50000000000000"):
        build(GLloydAlgorithm, domain, **options)


# ----------------------------------------------------------------- the estimate


CUBE = Box([-1.0] * 3, [1.0] * 3)
CENTERS = np.array([[0.5, 0.5, 0.0], [-0.6, 0.1, 0.4], [0.1, -0.7, -0.4]])
POINTS = np.repeat(CENTERS, 1000, axis=0) + RNG(3).normal(0, 0.1, size=(3000, 3))
START = CENTERS + 0.03
NORMS = [*WITH_COST, "absolute", "relative", "narrowing"]


def last_of(kind):
    """An algorithm with cost=True, and the state before its last round: centroids at `START`."""
    options = {"n_records": 3000, "cost": True}
    if isinstance(kind, str):
        options |= {"server_data": CENTERS, "sums": kind, "n_lloyd_rounds": 2}
        algorithm = FedDPAlgorithm.planned(3, CUBE, PrivacyBudget(4.0), **options)
        state = algorithm.initial_state()
        if kind == "narrowing":
            state = State(4, {**state.arrays, "factor": np.array([9])})
    else:
        algorithm = planner(kind)(
            3, CUBE, PrivacyBudget(4.0), initial=START, n_rounds=2, **options
        )
        state = algorithm.initial_state()
        if "radius" in state.arrays:
            radius = np.array([algorithm.radius_of(2)])
            state = State(0, {**state.arrays, "radius": radius})
    grid = CUBE.quantise(CUBE.to_unit(START), algorithm.fraction_bits).astype(np.int64)
    return algorithm, State(algorithm.n_rounds - 1, {**state.arrays, "centroids": grid})


@pytest.mark.parametrize("kind", NORMS)
def test_estimates_are_right_on_average_and_as_wide_as_they_say(kind):
    """Over repeated noise of the planned scale: bias and standard error, and no other scale."""
    algorithm, state = last_of(kind)
    number, step = algorithm.n_rounds, 2.0**-algorithm.fraction_bits
    query, places = algorithm.query(state), algorithm.layout(number).places
    records = GridRecords(POINTS, CUBE, algorithm.fraction_bits)
    exact = algorithm.layout(number).flatten(answer_of(algorithm, query, records))
    scales = sensitivities(algorithm, query.round)
    for release in algorithm.plan().rounds[-1]:
        for block in release.blocks:
            scales[places[block]] *= release.noise_multiplier
    points = np.vstack(list(records.blocks(10**6))) * step
    start = state.arrays["centroids"] * step
    distances = ((points[:, None] - start) ** 2).sum(axis=2)
    reach = algorithm.radius_of(number) if kind in (FastLloydAlgorithm, PAPER) else None
    if kind in ("relative", "narrowing"):
        radius = algorithm.lloyd_sums.radius
        reach = radius if kind == "relative" else 4 * radius // 9
    kept = (
        slice(None) if reach is None else distances.min(axis=1) <= (reach * step) ** 2
    )
    points, labels = points[kept], distances.argmin(axis=1)[kept]
    rng, z = RNG(7), []
    for _ in range(400):
        words = exact + np.rint(scales * rng.normal(size=len(scales))).astype(np.int64)
        result = algorithm.update(
            state, algorithm.layout(number).unflatten(words), RNG(0)
        )
        estimate = algorithm.last_cost.estimate(result)
        truth = ((points - algorithm.centroids(result)[labels]) ** 2).sum()
        z.append((estimate.value - truth) / estimate.standard_error)
    z = np.array(z)
    # Both fail by chance once in 500 million runs: six standard errors of the mean, and
    # the law of the sum of squares. A little of each is left to what the correction
    # does not reach.
    what = "the mean error of an estimate, in the standard errors that it states, is"
    assert_within(what, abs(z.mean()), most=6 / 20 + 0.1, strict=True)
    spread = f"errors of estimates have {z.std():.3f} times the stated deviation"
    assert fits_scale(z), spread
    for wrong in (2 / 3, 3 / 2):
        assert not fits_scale(z * wrong), (
            f"{spread}, and {wrong:.3f} of it is accepted too"
        )


def fits_scale(z):
    tail = stats.chi2(len(z)).cdf(
        np.sum((z - z.mean()) ** 2) / np.array([1.1, 1 / 1.1])
    )
    return tail[0] < 1 - 1e-9 and tail[1] > 1e-9
