"""The cost as a release of the Lloyd family's last round: units, plans, and what is refused."""

import itertools
import math
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from flower_kmeans.algorithms import (
    FastLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    Query,
    State,
    SuLloydAlgorithm,
    algorithm_from_config,
)
from flower_kmeans.domain import Ball, Box, GridRecords
from flower_kmeans.errors import ConfigurationError, ConfigurationTypeError
from flower_kmeans.privacy.budget import PrivacyBudget

RNG = np.random.default_rng
Q = 3  # a grid small enough to enumerate
PAPER = partial(FastLloydAlgorithm, relocation=False)
WITH_COST = [GLloydAlgorithm, FastLloydAlgorithm, PAPER]
DOMAINS = {
    "line": Box([0], [1]),
    "square": Box([0, 0], [1, 1]),
    "rectangle": Box([0, 0], [4, 3], scale="common"),
    "disc": Ball(2.0, [0, 0]),
}


def build(cls, domain, k=2, budget=None, **options):
    options = {"n_records": 1000, "fraction_bits": Q, "n_rounds": 2, "cost": True, **options}
    return cls(k, domain, PrivacyBudget(1.0) if budget is None else budget, **options)


def grid_points(domain):
    axes = [range(-int(g), int(g) + 1) for g in domain.grid_half_widths(Q)]
    points = np.array(list(itertools.product(*axes)), dtype=np.int64)
    if isinstance(domain, Ball):
        points = points[(points**2).sum(axis=1) <= 4**Q]
    return points


def last_question(algorithm, centroids):
    radius = [] if isinstance(algorithm, GLloydAlgorithm) else [algorithm.radius_of(2)]
    return Query(2, {"centroids": centroids, "radius": np.array(radius)})


def answer(algorithm, query, points):
    records = GridRecords.from_grid(np.reshape(points, (-1, algorithm.domain.n_features)), Q)
    return algorithm.flatten(algorithm.answer(query, records), query.round)


@pytest.mark.parametrize("clip", [None, 2.5])
@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("cls", WITH_COST)
def test_one_record_changes_the_cost_by_its_unit_at_most(cls, name, clip):
    """Also with a clip, which a single record does not reach."""
    domain, budget = DOMAINS[name], PrivacyBudget(1.0, unit="record" if clip is None else "client")
    options = {} if clip is None else {"n_clients": 50, "clip": clip}
    algorithm = build(cls, domain, budget=budget, **options)
    points, rng, largest = grid_points(domain), np.random.default_rng(1), {}
    releases = algorithm.plan().rounds[1]
    corners = [points[[0, -1]], points[[0, 0]]]
    for centroids in (*corners, *(points[rng.integers(len(points), size=2)] for _ in range(3))):
        query = last_question(algorithm, centroids)
        units, places = algorithm.units(query.round), algorithm.places(2)
        changes = np.array([answer(algorithm, query, record) for record in points]) / units
        for release in releases:
            words = np.concatenate([places[name] for name in release.blocks])
            norm = np.linalg.norm(changes[:, words], axis=1).max()
            largest[release.name] = max(largest.get(release.name, 0.0), norm)
    assert set(largest) == {"sums", "counts", "cost"}
    for key, norm in largest.items():
        assert norm <= 1 / (clip or 1) + 1e-12
        rounded = cls is PAPER  # few grid points lie exactly at a radius
        assert norm >= (0.75 if rounded and key != "counts" else 1 - 1e-12) / (clip or 1), key


@pytest.mark.parametrize("cls", WITH_COST)
def test_a_whole_client_changes_the_cost_by_its_unit_at_most(cls):
    domain, budget = DOMAINS["square"], PrivacyBudget(1.0, unit="client")
    algorithm = build(cls, domain, budget=budget, n_clients=50, clip=2.5)
    points = grid_points(domain)
    query = last_question(algorithm, points[[0, 0]] // 2)
    units, places = algorithm.units(query.round), algorithm.places(2)
    for n in (1, 7, 400):
        change = answer(algorithm, query, np.repeat(points[[0, 3]], n, axis=0)) / units
        assert np.abs(change[places["cost"]]).max() <= 1
    assert change[places["cost"]][0] > 0.8  # it is reached, but for truncation


@pytest.mark.parametrize("cls", WITH_COST)
def test_the_cost_is_a_release_of_the_last_round_with_its_share(cls):
    domain = DOMAINS["square"]
    algorithm, without = build(cls, domain, n_rounds=3), build(cls, domain, n_rounds=3, cost=False)
    names = [[release.name for release in group] for group in algorithm.plan().rounds]
    assert names == [["sums", "counts"]] * 2 + [["sums", "counts", "cost"]]
    assert "cost" not in {block.name for block in algorithm.layout(2)}
    assert (algorithm.layout(3)[-1].name, algorithm.layout(3)[-1].shape) == ("cost", (1,))
    assert algorithm.words(3) == algorithm.words(2) + 1
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
    domain, budget = DOMAINS["square"], PrivacyBudget(1.0, unit="client")
    found = []
    for clip in (2.0, 4.0):
        algorithm = build(cls, domain, budget=budget, n_clients=50, clip=clip, seed=1)
        state, words = algorithm.initial_state(), RNG(0).integers(0, 2**14, size=7)
        for t in (1, 2):
            state = algorithm.update(state, algorithm.unflatten(words[: algorithm.words(t)], t))
        found.append(algorithm.cost_estimate(state))
    assert found[1].standard_error == pytest.approx(2 * found[0].standard_error)
    assert found[1].standard_error > 0


INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, 2**16, -1])


@pytest.mark.parametrize("name", ["rectangle", "disc"])
@pytest.mark.parametrize("cls", WITH_COST)
@settings(max_examples=30, deadline=None)
@given(words=arrays(np.int64, (9,), elements=INT64))
def test_any_integers_have_a_cost(cls, name, words):
    """States are integers, alike on every processor, and so are those that hold a cost."""
    algorithm = build(cls, DOMAINS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, last = words[: algorithm.words(1)], words[: algorithm.words(2)]
        state = algorithm.update(algorithm.initial_state(), algorithm.unflatten(first, 1))
        assert algorithm.cost_estimate(state) is None
        state = algorithm.update(state, algorithm.unflatten(last, 2))
        for array in state.arrays.values():
            assert array.dtype == np.int64
        cost = algorithm.cost_estimate(state)
    assert np.isfinite([cost.value, cost.standard_error]).all()


@pytest.mark.parametrize("cls", WITH_COST)
def test_a_document_says_that_there_is_a_cost(cls):
    algorithm, without = build(cls, DOMAINS["disc"]), build(cls, DOMAINS["disc"], cost=False)
    config = algorithm.to_config()
    again = algorithm_from_config(config, algorithm.domain, algorithm.budget)
    assert again == algorithm != without
    assert again.plan() == algorithm.plan()
    assert "cost" not in without.to_config()
    for wrong in (False, 1, "true"):
        with pytest.raises(ConfigurationTypeError, match="cost"):
            algorithm_from_config({**config, "cost": wrong}, algorithm.domain, algorithm.budget)


def test_what_cannot_release_a_cost_refuses_it():
    domain, plain = DOMAINS["square"], PrivacyBudget(None)
    with pytest.raises(ConfigurationError, match="cost=False for 'sulloyd'"):
        build(SuLloydAlgorithm, domain)
    with pytest.raises(ConfigurationError, match="cost=False for 'lloyd'"):
        build(LloydAlgorithm, domain, budget=plain)
    with pytest.raises(ConfigurationError, match="'fold' or 'truncate' with cost=True"):
        build(FastLloydAlgorithm, domain, postprocess="none")
    with pytest.raises(ConfigurationTypeError, match="cost must be a bool"):
        build(GLloydAlgorithm, domain, cost=1)
    with pytest.raises(ConfigurationError, match="radius whose square"):
        build(PAPER, domain, alpha=0.2, k=1)
    build(PAPER, domain, alpha=0.2, k=1, cost=False)
    build(FastLloydAlgorithm, domain, alpha=0.2, k=1)  # of squares over that of the radius


def test_a_cost_needs_more_room_than_sums():
    options, domain = {"n_records": 5 * 10**13, "fraction_bits": 16}, Box([0] * 5, [1] * 5)
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
        algorithm = FedDPAlgorithm(3, CUBE, PrivacyBudget(4.0), **options)
        state = algorithm.initial_state()
        if kind == "narrowing":
            state = State(4, {**state.arrays, "factor": np.array([9])})
    else:
        algorithm = kind(3, CUBE, PrivacyBudget(4.0), initial=START, n_rounds=2, **options)
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
    query, places = algorithm.query(state), algorithm.places(number)
    records = GridRecords(POINTS, CUBE, algorithm.fraction_bits)
    exact = algorithm.flatten(algorithm.answer(query, records), number)
    scales = algorithm.units(query.round)
    for release in algorithm.plan().rounds[-1]:
        for block in release.blocks:
            scales[places[block]] *= release.noise_multiplier
    points = np.vstack(list(records.blocks(10**6))) * step
    start = state.arrays["centroids"] * step
    distances = ((points[:, None] - start) ** 2).sum(axis=2)
    reach = algorithm.radius_of(number) if kind in (FastLloydAlgorithm, PAPER) else None
    if kind in ("relative", "narrowing"):
        reach = algorithm.radius if kind == "relative" else 4 * algorithm.radius // 9
    kept = slice(None) if reach is None else distances.min(axis=1) <= (reach * step) ** 2
    points, labels = points[kept], distances.argmin(axis=1)[kept]
    rng, z = RNG(7), []
    for _ in range(400):
        words = exact + np.rint(scales * rng.normal(size=len(scales))).astype(np.int64)
        result = algorithm.update(state, algorithm.unflatten(words, number), RNG(0))
        estimate = algorithm.cost_estimate(result)
        truth = ((points - algorithm.centroids(result)[labels]) ** 2).sum()
        z.append((estimate.value - truth) / estimate.standard_error)
    z = np.array(z)
    # Both fail by chance once in 500 million runs: six standard errors of the mean, and the law of
    # the sum of squares. A little of each is left to what the correction does not reach.
    assert abs(z.mean()) < 6 / 20 + 0.1
    assert fits_scale(z)
    for wrong in (2 / 3, 3 / 2):
        assert not fits_scale(z * wrong)


def fits_scale(z):
    tail = stats.chi2(len(z)).cdf(np.sum((z - z.mean()) ** 2) / np.array([1.1, 1 / 1.1]))
    return tail[0] < 1 - 1e-9 and tail[1] > 1e-9


@pytest.mark.parametrize("kind", NORMS)
def test_a_record_costs_its_squared_norm_or_what_the_radius_allows(kind):
    algorithm, _ = last_of(kind)
    unit = algorithm.units(algorithm.n_rounds)[-1]
    unit *= 2.0 ** -algorithm.layout(algorithm.n_rounds)[-1].exponent
    if kind in (GLloydAlgorithm, "absolute"):
        assert unit == 3.0  # the squared norm of a corner, and not four times that
    else:
        assert unit < 3.0


@pytest.mark.parametrize(("k", "d"), [(15, 2), (10, 8), (10, 64)])
def test_the_cost_of_absolute_sums_has_less_than_half_the_error_that_it_had_from_centroids(k, d):
    """Squared distances to centroids can be four times the squared norm of a record."""
    domain, n = Box([-1.0] * d, [1.0] * d), 50_000
    options = {"n_records": n, "cost": True, "n_rounds": 3}
    algorithm = GLloydAlgorithm(k, domain, PrivacyBudget(1.0), **options)
    # Centroids of the typical length, and moves that are small beside it.
    start = RNG(d).choice([-0.45, 0.45], size=(k, d))
    counts = np.full(k, n // k)
    one, q = 2.0**algorithm.fraction_bits, algorithm.fraction_bits
    sums = np.rint(counts[:, None] * start * one).astype(np.int64)
    total = int(n * (0.1 * d + 0.45**2 * d)) << q
    words = np.concatenate([sums.ravel(), counts << q, [total]])
    grid = (start * one).astype(np.int64)
    state = algorithm.update(State(2, {"centroids": grid}), algorithm.unflatten(words, 3))
    estimate = algorithm.cost_estimate(state)
    cost = algorithm.plan().rounds[-1][-1]
    assert estimate.standard_error < 0.5 * 4 * d * cost.noise_multiplier
    assert estimate.value == pytest.approx(0.1 * d * n, abs=estimate.standard_error)
