"""Wide records of persons and clients, within ranges and on a sphere: runs of SynopsisKMeans.

Above 128 columns second moments show clear directions, and moves teach the doubts beside
them. Both must be active for every unit, domain and trust model, at the planned noise.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from harness import Outcome, assert_scale, exact_statistic, run_recorded
from rows import TRUSTS

from flower_kmeans import Ball, Box, PrivacyBudget, Sphere
from flower_kmeans.algorithms import SynopsisAlgorithm, tightened
from flower_kmeans.algorithms.answers import contribution, words_of_rows
from flower_kmeans.algorithms.numerics import projection
from flower_kmeans.algorithms.sensitivity import record_sensitivities, sensitivities
from flower_kmeans.algorithms.synopsis_state import WARNINGS, Note, Spread
from flower_kmeans.algorithms.tightened import innermost
from flower_kmeans.data.domain import Domain
from flower_kmeans.data.sources import as_source, weighed
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.protocol.records import weighing_of
from flower_kmeans.strategies import SynopsisKMeans
from tests.support.saying import assert_within

RNG = np.random.default_rng
D = 140
K = 5
N_CLIENTS = 4
HALF_WIDTH = 3.0
"""Of outer bounds: many times the largest coordinate of a record."""


class Way(NamedTuple):
    """The domain, the budget and the numbers of units of runs of wide records."""

    domain: Domain
    budget: PrivacyBudget
    options: dict[str, Any]
    n_records: int
    persons: bool = False


BALL = Ball(1 + 1e-9, [0.0] * D)
OUTER = Box([-HALF_WIDTH] * D, [HALF_WIDTH] * D, tighten=0.3)
OF_PERSONS = {"n_persons": 3000, "n_clients": N_CLIENTS}
OF_CLIENTS = {"n_records": 4000, "n_clients": 30, "clip": 30.0}
WAYS = {
    "record": Way(
        BALL, PrivacyBudget(4.0), {"n_records": 4000, "n_clients": N_CLIENTS}, 4000
    ),
    "person": Way(BALL, PrivacyBudget(4.0, unit="person"), OF_PERSONS, 7500, True),
    "client": Way(BALL, PrivacyBudget(100.0, unit="client"), OF_CLIENTS, 4000),
    "ranges": Way(
        OUTER, PrivacyBudget(20.0), {"n_records": 4000, "n_clients": N_CLIENTS}, 4000
    ),
    "sphere": Way(
        Sphere(D), PrivacyBudget(4.0), {"n_records": 4000, "n_clients": N_CLIENTS}, 4000
    ),
}


@cache
def directions():
    """Five orthogonal directions, (K, D)."""
    return np.linalg.qr(RNG(3).normal(size=(D, K)))[0].T


def records_of(way: Way, n_clients: int) -> tuple[list[Any], list[Any] | None]:
    """Return the records of each client, and the ids of their persons."""
    rng = RNG(0)
    n = way.n_records
    found = directions()[rng.integers(0, K, n)] + rng.normal(size=(n, D)) / D**0.5
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    if isinstance(way.domain, Sphere):
        found *= rng.uniform(0.1, 9.0, size=(n, 1))
    if not way.persons:
        return np.array_split(found, n_clients), None
    # Persons have different numbers of records, all at one client.
    ids = np.minimum(rng.integers(0, 3000, n), rng.integers(0, 3000, n))
    clients = [ids % n_clients == i for i in range(n_clients)]
    return [found[own] for own in clients], [ids[own] for own in clients]


def strategy_of(way: Way, trust: str, **options: Any) -> SynopsisKMeans:
    given = {**way.options, **options}
    return SynopsisKMeans(K, way.domain, way.budget, trust=trust, **given)


def outcome_of(way: Way, trust: str, **options: Any) -> Outcome:
    strategy = strategy_of(way, trust, **options)
    parts, persons = records_of(way, strategy.n_clients)
    return run_recorded(strategy, parts, persons=persons)


def states(outcome: Outcome) -> list[Any]:
    """Return all states of a run, from its sums."""
    algorithm = outcome.strategy.algorithm
    found = [algorithm.initial_state()]
    factors = outcome.strategy.report.factors
    for number in range(1, algorithm.n_rounds + 1):
        answer = algorithm.layout(number).unflatten(outcome.sums[number])
        answer = replace(answer, noise_factor=factors[number - 1])
        found.append(algorithm.update(found[-1], answer))
    return found


def cosine(centroids: Any) -> float:
    """Return the least cosine of a direction with its most similar centroid."""
    lengths = np.linalg.norm(centroids, axis=1)
    cosines = directions() @ (centroids / lengths[:, None]).T
    return float(cosines.max(axis=1).min())


def exact(outcome: Outcome, query: Any, parts: Any, persons: Any) -> Any:
    """Return the sum of all clients' answers without noise, over the full weight."""
    algorithm = outcome.strategy.algorithm
    if persons is None:
        return sum(exact_statistic(algorithm, query, part) for part in parts)
    words = 0
    for part, own in zip(parts, persons, strict=True):
        source = as_source(part, part.shape[1])
        found = weighed(source, weighing_of(algorithm), own, None, bytes(32)).source
        words = words + words_of_rows(algorithm, query, found.loaded())
    return words / algorithm.full_weight


# ----------------------------------------------------------------------------- runs

CASES = [(name, trust) for name in WAYS for trust in TRUSTS]


@pytest.mark.claim("guarantees", "22")
@pytest.mark.default_cases("person-oblivious-server", "client-trusted-server")
@pytest.mark.parametrize(("name", "trust"), CASES)
def test_clear_directions_are_live_and_moves_teach_the_doubts_beside(name, trust):
    """The whole run replays from its sums, under a blind server too."""
    way = WAYS[name]
    outcome = outcome_of(way, trust)
    algorithm = outcome.strategy.algorithm
    schedule = innermost(algorithm).schedule
    assert schedule.moments
    assert schedule.n_directions == 64
    found = states(outcome)
    last = found[-1]
    np.testing.assert_array_equal(algorithm.centroids(last), outcome.one.centroids)
    said = algorithm.warnings(last)
    assert WARNINGS[Note.BLIND] not in said
    assert WARNINGS[Note.NO_SIGNAL] not in said
    n_live = np.count_nonzero(last.arrays["projection"].any(axis=0))
    assert 16 <= n_live < 64
    assert_within("the least cosine is", cosine(outcome.one.centroids), least=0.8)
    # Records differ by far more beside the directions than centroids move there.
    first = algorithm.n_rounds - schedule.n_refinements
    before = Spread.read(found[first].arrays).within[-1]
    after = Spread.read(found[first + 1].arrays).within[-1]
    assert_within("the doubts beside are", after / before, most=0.3, unit="times these")


@pytest.mark.claim("guarantees", "48")
@pytest.mark.default_cases("client-trusted-server", "sphere-oblivious-server")
@pytest.mark.parametrize(("name", "trust"), CASES)
def test_a_silhouette_of_wide_records_is_measured(name, trust):
    outcome = outcome_of(WAYS[name], trust, quality=True)
    found = outcome.one.silhouette
    assert found.low <= found.value <= found.high


# ---------------------------------------------------------------------------- noise


@pytest.mark.claim("guarantees", "22")
@pytest.mark.claim("guarantees", "34")
@pytest.mark.claim("guarantees", "45")
@pytest.mark.claim("guarantees", "46")
@pytest.mark.default_cases("ranges-trusted-server")
@pytest.mark.parametrize(("name", "trust"), CASES)
def test_noise_has_the_planned_scale_and_its_edge(name, trust):
    """In all rounds. 2/3 and 3/2 of it are rejected, and so are other edges."""
    way = WAYS[name]
    outcome = outcome_of(way, trust)
    algorithm = outcome.strategy.algorithm
    parts, persons = records_of(way, outcome.strategy.n_clients)
    factors = outcome.strategy.report.factors
    found = states(outcome)
    scaled = []
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(found[number - 1])
        words = exact(outcome, query, parts, persons)
        noise = outcome.sums[number] - words
        units = record_sensitivities(algorithm, number)
        layout = algorithm.layout(number)
        for release in outcome.strategy.plan.rounds[number - 1]:
            own = layout.words_of(release)
            scale = release.noise_multiplier * algorithm.clipping.of(release)
            scaled.append(noise[own] / (scale * factors[number - 1] * units[own]))
        if layout.blocks[0].are_moments:
            matrix = projection.symmetric(noise, D)
            # It is what round 1 compares eigenvalues with.
            edge = math.sqrt(2 * D) * algorithm.noise_of(number)["moments"]
            largest = np.linalg.eigvalsh(matrix)[-1] / (edge * factors[number - 1])
            assert_within("noise reaches", largest, least=0.9, most=1.06, unit="edges")
    assert_scale(f"{name}, {trust}", np.concatenate(scaled), enough=550)


@pytest.mark.claim("guarantees", "22")
@pytest.mark.default_cases("person", "ranges")
@pytest.mark.parametrize("name", WAYS)
def test_a_unit_of_wide_records_moves_sums_by_the_planned_sensitivity(name):
    """The longest record is tight in second moments; none moves a later round by more."""
    way = WAYS[name]
    strategy = strategy_of(way, "trusted-server")
    algorithm = strategy.algorithm
    outcome = outcome_of(way, "trusted-server")
    record = np.eye(D)[:1] * 99.0
    if isinstance(way.domain, Box):
        record = np.full((1, D), 99.0)
    clip = int(way.options.get("clip", 1))
    if way.persons:
        rows = np.tile(record, (9, 1))
        weights = np.full(9, algorithm.full_weight // 9)
        weights[0] += algorithm.full_weight - weights.sum()
        rows = np.column_stack([rows, weights])
    moved = []
    for state in states(outcome)[:-1]:
        query = algorithm.query(state)
        if way.persons:
            words = words_of_rows(algorithm, query, rows)
        else:
            words = exact_statistic(algorithm, query, np.tile(record, (clip, 1)))
        units = sensitivities(algorithm, query.round)
        layout = algorithm.layout(query.round)
        for release in algorithm.releases(query.round):
            own = layout.words_of(release)
            used = own[units[own] > 0]
            moved.append(np.linalg.norm(words[used] / units[used]))
    assert max(moved) <= 1 + 1e-9
    number = 1 if name == "ranges" else 0
    assert moved[number] > 0.99


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("name", WAYS)
def test_a_unit_moves_products_with_groups_by_the_planned_sensitivity(name):
    """A record, all records of a person or of a client, and within ranges that were found."""
    way = WAYS[name]
    options = {**way.options, "most_words": 20 * D}
    if not way.budget.protects_clients:
        del options["n_clients"]
    algorithm = tightened.planned(
        SynopsisAlgorithm, K, way.domain, way.budget, **options
    )
    assert innermost(algorithm).schedule.n_groups == 20
    state = algorithm.initial_state()
    if algorithm.finds_ranges:
        ((records,), _) = records_of(way, 1)
        words = words_of_rows(algorithm, algorithm.query(state), records)
        state = algorithm.update(state, algorithm.layout(1).unflatten(words))
    query = algorithm.query(state)
    units = sensitivities(algorithm, query.round)
    moved = []
    for unit in units_of(way, algorithm):
        words = words_of_rows(algorithm, query, unit)
        words = contribution(algorithm, query.round, words)
        moved.append(np.linalg.norm(words / units))
    assert max(moved) <= 1 + 1e-9
    assert max(moved) > 0.5


def units_of(way, algorithm):
    """Yield the rows of a record, of a person or of a client, beyond all bounds."""
    rng = RNG(7)
    for _ in range(30):
        record = rng.choice([-99.0, 99.0], (1, D))
        if way.persons:
            rows = np.vstack([record, record, record, rng.normal(size=(3, D))])
            weights = rng.multinomial(algorithm.full_weight, np.full(6, 1 / 6))
            yield np.column_stack([rows, weights])
        elif algorithm.clip is not None:
            yield np.tile(record, (50, 1))
        else:
            yield record


# ------------------------------------------------------------------------- feasibility


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"domain": Ball(1.0, [0.0] * 3000), "k": 2000},
            "Expected at most 4194304 words",
        ),
        ({"unit": "person", "epsilon": 1e-5}, r"at most 2\^40 grid units"),
    ],
)
def test_sizes_that_are_not_feasible_are_refused(options, message):
    given = {"domain": BALL, "k": K, "unit": "record", "epsilon": 1.0, **options}
    numbers = {"n_records": 10_000}
    if given["unit"] == "person":
        numbers = {"n_persons": 10_000}
    with pytest.raises(ConfigurationError, match=message):
        SynopsisKMeans(
            given["k"],
            given["domain"],
            PrivacyBudget(given["epsilon"], unit=given["unit"]),
            n_clients=3,
            **numbers,
        )
