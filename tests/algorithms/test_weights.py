"""Runs that weigh records: a person moves each release by its unit at most, however many records.

The grids are those of the contract. Weights and sums are made by the functions that
clients use, and the neighbour has null records in place of all records of the person.
"""

import math
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from flower_kmeans.algorithms import (
    ConstrainedLloydAlgorithm,
    FedDPAlgorithm,
    GLloydAlgorithm,
    SynopsisAlgorithm,
    answers,
    tightened,
)
from flower_kmeans.algorithms.answers import reconstructed, split, words_of_rows
from flower_kmeans.algorithms.feasibility import require_capacity
from flower_kmeans.algorithms.registry import algorithm_from_config, algorithm_to_config
from flower_kmeans.algorithms.sensitivity import record_sensitivities, sensitivities
from flower_kmeans.algorithms.weights import in_records, record_width, weighs_records
from flower_kmeans.data import persons as persons_module
from flower_kmeans.data import sources, weights
from flower_kmeans.data.domain import Ball, Box, GridRecords, Sphere
from flower_kmeans.data.sources import as_source, weighed
from flower_kmeans.data.weights import (
    LEAST_WEIGHT,
    MOST_WEIGHT,
    Weighing,
    checked_weights,
)
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.plan import plan_from_config
from flower_kmeans.protocol.records import weighing_of
from flower_kmeans.vertical.algorithm import VerticalAlgorithm
from tests.algorithms.rows import (
    BUDGET,
    CLIENTS,
    GRIDS,
    RNG,
    added,
    any_queries,
    grid_points,
)
from tests.support.saying import assert_within

SECRET = bytes(32)
W = LEAST_WEIGHT
PERSONS = PrivacyBudget(1.0, 1e-6, unit="person")
BY_PERSON = [name for name in GRIDS if name != "synopsis-sized"]


def of_persons(name, where, g=1, full_weight=W, **more):
    """Return an algorithm of the contract whose unit is the person."""
    grid = GRIDS[name]
    n = grid.options.get("n_records", 1000)
    options = {"n_records": None, "n_persons": n, "max_clients_per_person": g, **more}
    algorithm = grid.make(where, PERSONS, **options)
    return replace(algorithm, full_weight=full_weight)


def total(algorithm, query, points, ids, own=None):
    """Return a client's sum over grid points, (n, d), NaN for null records, by its own code."""
    source = as_source(np.array(points, float), algorithm.domain.n_features)
    found, _ = weighed(source, weighing_of(algorithm), ids, own, SECRET)

    def from_grid(rows, _, fraction_bits):
        return GridRecords.from_grid(rows, fraction_bits)

    words = np.zeros(algorithm.layout(query.round).n_words, dtype=np.int64)
    with mock.patch.object(tightened, "GridRecords", from_grid):
        for block in found.blocks():
            words += words_of_rows(algorithm, query, block)
    return words


def move(algorithm, query, held, others):
    """Return how a person with these points at each client moves the sum, in units of noise."""
    change = np.zeros(algorithm.layout(query.round).n_words)
    other_ids = [["a", "b", "a", None, "c", "b"][i % 6] for i in range(len(others))]
    for points in held:
        # The records of the person are among those of others, of which one is null.
        rows = np.vstack([others[:3], points, others[3:]]).astype(float)
        rows[1] = np.nan
        ids = [*other_ids[:3], *["x"] * len(points), *other_ids[3:]]
        without = rows.copy()
        without[3 : 3 + len(points)] = np.nan
        change += total(algorithm, query, rows, ids)
        change -= total(algorithm, query, without, ids)
    return change / sensitivities(algorithm, query.round)


def size(release, change, n_columns):
    """Return a change in the norm of the release; with parts, the largest share of a part."""
    if not release.parts:
        return np.linalg.norm(change, 1 if release.norm == "l1" else 2)
    by_column = np.sort(np.abs(change.reshape(-1, n_columns)).sum(axis=0))[::-1]
    bounds = sorted(
        (bound for bound, number in release.parts for _ in range(number)), reverse=True
    )
    return (by_column[: len(bounds)] / bounds).max()


def releases_of(algorithm, number):
    layout = algorithm.layout(number)
    return [(each, layout.words_of(each)) for each in algorithm.releases(number)]


def largest_moves(algorithm, c, g, trials=2):
    """Return the largest move of each release by a person with c records at g clients each.

    And the largest move by one record with the full weight.
    """
    points = grid_points(algorithm)
    others = points[:: len(points) // 5 + 1]
    d, rng, found, of_record = algorithm.domain.n_features, RNG(c), {}, {}
    for query in any_queries(algorithm, seed=1, trials=trials):
        single = np.array([added(algorithm, query, point) for point in points])
        for release, words in releases_of(algorithm, query.round):
            lengths = [size(release, each, d) for each in single[:, words]]
            far = int(np.argmax(lengths))
            most = of_record.get(release.name, 0.0)
            of_record[release.name] = max(most, algorithm.full_weight * lengths[far])
            persons = [
                [points[[far] * c]] * g,
                [points[rng.choice([far, 0, len(points) - 1], c)] for _ in range(g)],
                [points[rng.integers(len(points), size=c)] for _ in range(g)],
            ]
            for held in persons:
                change = move(algorithm, query, held, others)
                for each, own in releases_of(algorithm, query.round):
                    key = each.name
                    moved = size(each, change[own], d)
                    found[key] = max(found.get(key, 0.0), moved)
    return found, of_record


CASES = [
    (name, where, c, g)
    for name in BY_PERSON
    for where in ("line", "square", "disc", "slab", "sphere")
    for c in (1, 2, 3, W, W + 1)
    for g in (1, 3)
    if where in GRIDS[name].domains
]


@pytest.mark.claim("guarantees", "46")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "where", "c", "g"), CASES)
def test_one_person_changes_each_release_by_its_unit_at_most(name, where, c, g):
    """And attains it with equal records, as far as c divides W and one record attains its unit."""
    algorithm = of_persons(name, where, g)
    room = W // g
    together = min(c, room) * max(room // c, 1) * g / W
    largest, of_record = largest_moves(algorithm, c, g)
    for release, found in largest.items():
        what = (
            f"release {release!r}: a person of {c} records at {g} clients moves it by"
        )
        least = together * of_record[release]
        assert_within(what, found, least=least, most=1, unit="units", slack=1e-12)
    if where == "line":
        assert max(of_record.values()) == pytest.approx(1.0)


@pytest.mark.claim("guarantees", "46")
@pytest.mark.thorough
@pytest.mark.parametrize("c", [1, 7, 60, MOST_WEIGHT, MOST_WEIGHT + 1])
@pytest.mark.parametrize("name", ["synopsis", "fastlloyd", "sulloyd", "feddp"])
def test_the_largest_weight_keeps_the_unit_too(name, c):
    algorithm = of_persons(name, "square", full_weight=MOST_WEIGHT)
    largest, _ = largest_moves(algorithm, c, 1)
    for release, found in largest.items():
        what = f"release {release!r}: a person with {c} records moves it by"
        assert_within(what, found, most=1, unit="units", slack=1e-12)


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize("c", [1, 2, 3, 5, W - 1, W, W + 1, W + 2])
def test_one_record_of_a_person_that_stays_moves_no_more(c):
    algorithm = of_persons("glloyd", "line")
    points = grid_points(algorithm)
    ends = points[[0, -1]]
    for query in any_queries(algorithm, seed=1):
        for rest, gone in ((ends[0], ends[0]), (ends[0], ends[1])):
            rows = np.vstack([[gone], np.repeat([rest], c - 1, axis=0)]).astype(float)
            without = rows.copy()
            without[0] = np.nan
            change = total(algorithm, query, rows, ["x"] * c)
            change = change - total(algorithm, query, without, ["x"] * c)
            change = change / sensitivities(algorithm, query.round)
            for release, words in releases_of(algorithm, query.round):
                what = f"release {release.name!r}: a record of {c} moves it by"
                found = size(release, change[words], 1)
                assert_within(what, found, most=1, unit="units", slack=1e-12)


# -------------------------------------------------------------------------- planted bugs


def beyond_w(persons, usable, totals, before, room):
    """All records beyond W are kept."""
    counts = persons_module.count_at(totals, persons.keys)
    counts = np.where(persons.is_missing, 1, counts)
    return np.where(usable, np.maximum(room // np.maximum(counts, 1), 1), 0)


def by_global_counts(persons, usable, totals, before, room):
    """The heaviest person decides the weights of all."""
    most = int(totals.counts.max(initial=1))
    return np.where(usable, max(room // most, 1), 0)


def by_block(persons, usable, totals, before, room):
    """Each block counts only its own records."""
    first = np.arange(len(usable)) < len(usable) // 2
    parts = []
    for part in (first, ~first):
        own = persons_module.PersonKeys(persons.keys[part], persons.is_missing[part])
        counts = persons_module.counts_of(own, usable[part])
        parts.append(PERSON_WEIGHTS(own, usable[part], counts, before, room))
    return np.concatenate(parts)


def rounded_up(persons, usable, totals, before, room):
    """Weights are rounded upward."""
    counts = persons_module.count_at(totals, persons.keys)
    counts = np.where(persons.is_missing, 1, counts)
    return np.where(usable, -(-room // np.maximum(counts, 1)), 0)


def null_records_count(persons, usable, totals, before, room):
    """Null records of others take part in the order of a person's records."""
    found = PERSON_WEIGHTS(persons, usable, totals, before, room)
    rank = np.arange(len(usable))
    return np.where(found == 1, rank < room, found)


PERSON_WEIGHTS = persons_module.person_weights


@pytest.mark.parametrize(
    ("bug", "c"),
    [
        (beyond_w, W + 1),
        (by_global_counts, 3),
        (by_block, 4),
        (rounded_up, 3),
    ],
)
def test_planted_bugs_move_a_release_by_more(bug, c, monkeypatch):
    monkeypatch.setattr(weights, "person_weights", bug)
    algorithm = of_persons("glloyd", "line")
    largest, _ = largest_moves(algorithm, c, 1)
    assert max(largest.values()) > 1 + 0.5 / W


def test_a_person_at_two_clients_of_one_moves_a_release_by_two_units():
    """The bound g is an assumption, and nobody can check it."""
    algorithm = of_persons("glloyd", "line", g=1)
    largest, _ = largest_moves(algorithm, 1, 2)
    assert max(largest.values()) == pytest.approx(2.0)
    algorithm = of_persons("glloyd", "line", g=2)
    largest, _ = largest_moves(algorithm, 1, 2)
    assert max(largest.values()) == pytest.approx(1.0)


WEIGHED = weighed


def by_norm(source, weighing, ids, own, secret):
    """The longest records of a heavy person are kept, in place of the first."""
    found, counts = WEIGHED(source, weighing, ids, own, secret)
    rows = found.loaded()
    lengths = -np.linalg.norm(rows[:, :-1], axis=1)
    order = np.argsort(lengths, kind="stable")
    kept = np.zeros(len(rows))
    kept[order] = np.sort(rows[:, -1])[::-1]
    rows[:, -1] = kept
    return as_source(rows, rows.shape[1]), counts


def test_kept_records_do_not_depend_on_values():
    """Of W + 2 records one is replaced: only its own part of the sum may change."""

    def change(make):
        algorithm = of_persons("glloyd", "line")
        points = grid_points(algorithm)
        (query, *_) = any_queries(algorithm, seed=1)
        rows = np.repeat(points[[4]], W + 2, axis=0)
        rows[:: W // 2] = points[0]
        longer = rows.copy()
        longer[-1] = points[-1]
        with mock.patch.dict(total.__globals__, {"weighed": make}):
            ids = ["x"] * (W + 2)
            before = total(algorithm, query, rows, ids)
            return total(algorithm, query, longer, ids) - before

    # The last record is beyond W, so its value changes nothing.
    assert not change(weighed).any()
    assert change(by_norm).any()


# ------------------------------------------------------------------------------- blocks


def sums_in_blocks(algorithm, query, rows, ids, n_numbers):
    """Return the sum of a client whose blocks and pieces are of some numbers of cells."""
    with (
        mock.patch.object(sources, "_BLOCK_NUMBERS", n_numbers),
        mock.patch.object(sources, "_CHECKED_NUMBERS", max(1, n_numbers // 3)),
        mock.patch.object(sources, "_FEWEST_ROWS", 1),
    ):
        source = as_source(rows, algorithm.domain.n_features)
        found, _ = weighed(source, weighing_of(algorithm), ids, None, SECRET)
        return sum(words_of_rows(algorithm, query, block) for block in found.blocks())


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
def test_sums_are_equal_in_any_cut_into_blocks(dtype):
    """With null records of others in between, and a person above W."""
    algorithm = of_persons("synopsis", "square", fraction_bits=12)
    rng = RNG(3)
    ids = rng.choice(["x"] * 6 + ["a", "b", None], 400).tolist()
    rows = rng.integers(0, 2, (400, 2)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        rows = rng.random((400, 2)).astype(dtype)
        rows[rng.random(400) < 0.2] = np.nan
    for query in any_queries(algorithm, seed=2, trials=1):
        whole = sums_in_blocks(algorithm, query, rows, ids, 2**22)
        for n_numbers in (3, 7, 40, 333):
            found = sums_in_blocks(algorithm, query, rows, ids, n_numbers)
            np.testing.assert_array_equal(found, whole)
        order = np.argsort([str(one) for one in ids], kind="stable")
        # The order of different persons' records changes nothing.
        sorted_ids = [ids[i] for i in order]
        found = sums_in_blocks(algorithm, query, rows[order], sorted_ids, 50)
        np.testing.assert_array_equal(found, whole)


# ------------------------------------------------------------------- one record of each


@pytest.mark.claim("guarantees", "46")
@pytest.mark.default_cases("synopsis", "fastlloyd", "sulloyd", "pe-means", "feddp")
@pytest.mark.parametrize("name", BY_PERSON)
def test_with_one_record_each_and_no_noise_the_sums_are_those_of_records(name):
    where = "sphere" if name.startswith("hdpe-means") else "square"
    n = GRIDS[name].options.get("n_records", 1000)
    by_record = GRIDS[name].make(where, n_records=n)
    by_person = of_persons(name, where, full_weight=MOST_WEIGHT)
    points = grid_points(by_record)[:90]
    assert by_person.n_rounds == by_record.n_rounds
    for query in any_queries(by_record, seed=4, trials=2):
        grid = GridRecords.from_grid(points, by_record.fraction_bits)
        expected = by_record.layout(query.round).flatten(
            by_record.statistic(query, grid)
        )
        words = total(by_person, query, points, range(len(points)))
        np.testing.assert_array_equal(words, MOST_WEIGHT * expected)
        statistic = reconstructed(by_person, query.round, words, 1.0, 1)
        found = by_person.layout(query.round).flatten(statistic)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("full_weight", [64, 4096])
def test_words_become_the_nearest_integers(full_weight):
    edges = [0, 1, full_weight // 2 - 1, full_weight // 2, full_weight, 3 * full_weight]
    edges += [-each for each in edges] + [2**63 - 1, -(2**63)]
    found = in_records(np.array(edges), full_weight).tolist()
    assert found == [(each + full_weight // 2) // full_weight for each in edges]
    assert in_records(np.array(edges), None).tolist() == edges


# ---------------------------------------------------------------------------- the plan


def test_noise_is_w_times_that_of_a_record_and_the_plan_is_the_same():
    records = GLloydAlgorithm.planned(3, Ball(1, [0, 0]), BUDGET, n_records=900)
    persons = GLloydAlgorithm.planned(3, Ball(1, [0, 0]), PERSONS, n_persons=900)
    assert persons.full_weight == MOST_WEIGHT
    assert persons.n_rounds == records.n_rounds
    assert persons.plan().rounds == records.plan().rounds
    for t in range(1, records.n_rounds + 1):
        of_record = record_sensitivities(persons, t)
        np.testing.assert_array_equal(of_record, sensitivities(records, t))
        np.testing.assert_array_equal(
            sensitivities(persons, t), MOST_WEIGHT * of_record
        )
        assert persons.noise_of(t) == records.noise_of(t)


def test_the_default_delta_and_groups_are_those_of_persons():
    algorithm = GLloydAlgorithm.planned(
        3, Ball(1, [0, 0]), PrivacyBudget(1.0, unit="person"), n_persons=200_000
    )
    plan = algorithm.plan()
    assert plan.budget.delta == 1 / (100 * 200_000)
    assert (plan.n_persons, plan.n_records) == (200_000, None)
    assert "for one person" in plan.describe()
    assert "2 persons" in plan.describe()
    again = plan_from_config(plan.to_config())
    assert again == plan
    assert again.then(plan).n_persons == 200_000


def test_documents_hold_the_weight_and_no_defaults():
    config = algorithm_to_config(of_persons("glloyd", "square"))
    assert config["full_weight"] == W
    assert config["n_persons"] == 1000
    assert not {"n_records", "max_clients_per_person", "weighted"} & config.keys()
    budget = PERSONS
    for g in (1, 3):
        algorithm = of_persons("synopsis", "square", g)
        again = algorithm_from_config(
            algorithm_to_config(algorithm), algorithm.domain, budget
        )
        assert again == algorithm
    plain = algorithm_to_config(GRIDS["glloyd"].make("square"))
    names = {"n_persons", "max_clients_per_person", "weighted", "full_weight"}
    assert not names & plain.keys()


def capacity(epsilon, **options):
    budget = PrivacyBudget(epsilon, min(1e-6, epsilon), unit="person")
    options = {"n_persons": 1000, "n_rounds": 2, "fraction_bits": 24, **options}
    return GLloydAlgorithm.planned(2, Ball(1, [0, 0]), budget, **options)


def test_the_weight_shrinks_until_sums_have_room():
    assert capacity(1.0).full_weight == MOST_WEIGHT
    small = capacity(1e-8)
    assert LEAST_WEIGHT <= small.full_weight < MOST_WEIGHT
    require_capacity(small)
    with pytest.raises(ConfigurationError, match="Expected sums below"):
        require_capacity(replace(small, full_weight=2 * small.full_weight))
    with pytest.raises(ConfigurationError, match=r"n_persons=1000 and noise of"):
        capacity(1e-13)


# ------------------------------------------------------------------------------- errors

BALL = Ball(1, [0, 0])


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        (PERSONS, {}, "n_persons is required with a private budget"),
        (PERSONS, {"n_persons": 9, "n_records": 9}, "Expected n_records=None"),
        (PERSONS, {"n_records": 9}, "Expected n_records=None with unit='person'"),
        (BUDGET, {"n_records": 9, "n_persons": 9}, "Expected n_persons=None"),
        (PERSONS, {"n_persons": 0}, r"Expected n_persons in \[1, "),
        (PERSONS, {"n_persons": 2}, "Expected n_clusters of at most n_persons=2"),
        (PERSONS, {"n_persons": 9, "n_clients": 3}, "Expected n_clients=None"),
        (PERSONS, {"n_persons": 9, "clip": 3.0}, "Expected clip=None"),
        (
            PERSONS,
            {"n_persons": 9, "max_clients_per_person": 0},
            r"Expected max_clients_per_person in \[1, 64\]",
        ),
        (
            PERSONS,
            {"n_persons": 9, "max_clients_per_person": 65},
            r"Expected max_clients_per_person in \[1, 64\]",
        ),
        (
            BUDGET,
            {"n_records": 9, "max_clients_per_person": 2},
            "Expected max_clients_per_person only with unit='person'",
        ),
        (BUDGET, {"n_records": 9, "full_weight": 64}, "Expected full_weight exactly"),
        (PERSONS, {"n_persons": 9, "full_weight": 32}, r"full_weight in \[64, 4096\]"),
        (PERSONS, {"n_persons": 9, "full_weight": 96}, "full_weight as a power of two"),
        (BUDGET, {"n_records": 9, "weighted": 1}, "Expected weighted as a bool"),
    ],
)
def test_errors_name_the_parameter(budget, options, message):
    errors = ConfigurationError, ConfigurationTypeError
    with pytest.raises(errors, match=message):
        GLloydAlgorithm.planned(3, BALL, budget, **options)


def test_what_is_no_sum_over_records_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="unit='record' for ConstrainedLloyd"):
        ConstrainedLloydAlgorithm.planned(2, BALL, PERSONS, n_persons=9, n_clients=3)
    with pytest.raises(ConfigurationError, match=r"weighted=False for Constrained"):
        ConstrainedLloydAlgorithm.planned(
            2, BALL, BUDGET, n_records=9, n_clients=3, weighted=True
        )
    box = Box([0, 0], [1, 1])
    with pytest.raises(ConfigurationError, match="parties hold columns of the same"):
        VerticalAlgorithm.planned(2, box, PERSONS, n_persons=900)
    with pytest.raises(ConfigurationError, match="weighted=False for VerticalAlgo"):
        VerticalAlgorithm.planned(2, box, BUDGET, n_records=900, weighted=True)
    points = RNG(0).random((4, 2))
    common = {"contribution": "means", "server_data": points}
    for budget, options in (
        (PERSONS, {"n_persons": 900}),
        (CLIENTS, {"n_records": 900, "n_clients": 9, "weighted": True}),
    ):
        with pytest.raises(ConfigurationError, match="Got contribution='means'"):
            FedDPAlgorithm.planned(2, box, budget, **options, **common)
    with pytest.raises(ConfigurationError, match="sizes would be fractions of persons"):
        SynopsisAlgorithm.planned(2, box, PERSONS, n_persons=900, min_size=9)
    with pytest.raises(ConfigurationError, match="sizes would be fractions of persons"):
        SynopsisAlgorithm.planned(
            2, box, BUDGET, n_records=900, max_size=800, weighted=True
        )


# ------------------------------------------------------------------- weights of records


def weighted_algorithm(name, where="square", budget=BUDGET, **more):
    n = GRIDS[name].options.get("n_records", 1000)
    if budget.counts_persons:
        more = {"n_records": None, "n_persons": n, **more}
    algorithm = GRIDS[name].make(where, budget, weighted=True, **more)
    return replace(algorithm, full_weight=W)


@pytest.mark.claim("guarantees", "47")
@pytest.mark.default_cases("synopsis", "fastlloyd", "sulloyd", "pe-means", "feddp")
@pytest.mark.parametrize("name", BY_PERSON)
def test_a_weighted_record_changes_each_release_by_its_weight(name):
    where = "sphere" if name.startswith("hdpe-means") else "square"
    algorithm = weighted_algorithm(name, where)
    points = grid_points(algorithm)
    picked = points[:: len(points) // 9 + 1]
    d = algorithm.domain.n_features
    for query in any_queries(algorithm, seed=6, trials=1):
        for own in (0.0, 0.3, 1.0):
            for point in picked:
                rows = np.vstack([picked[:4], point]).astype(float)
                factors = [1.0, 0.5, 0.2, 0.7, own]
                without = rows.copy()
                without[-1] = np.nan
                change = total(algorithm, query, rows, None, factors)
                change = change - total(algorithm, query, without, None, factors)
                change = change / sensitivities(algorithm, query.round)
                for release, words in releases_of(algorithm, query.round):
                    what = f"release {release.name!r}: a record of weight {own} moves"
                    found = size(release, change[words], d)
                    most = math.floor(own * W) / W
                    assert_within(what, found, most=most, unit="units", slack=1e-12)


@pytest.mark.claim("guarantees", "47")
def test_weights_of_records_and_of_persons_multiply():
    algorithm = weighted_algorithm("glloyd", "line", PERSONS)
    points = grid_points(algorithm)
    (query, *_) = any_queries(algorithm, seed=6, trials=1)
    ids = ["x", "x", "x", "y", None]
    own = [1.0, 0.5, 0.01, 0.999, 0.25]
    expected = [21, 10, 0, 63, 16]
    found = weights_of_rows(weighing_of(algorithm), ids, own)
    assert [found[row] for row in range(5)] == expected
    words = total(algorithm, query, points[:5], ids, own)
    single = [total(algorithm, query, points[[i]], ["x"], [1.0]) for i in range(5)]
    by_hand = sum(w * each // W for w, each in zip(expected, single, strict=True))
    np.testing.assert_array_equal(words, by_hand)


def weights_of_rows(rule, ids, own, null=()):
    """Return the weight of each row by its number, without those of null rows."""
    rows = np.arange(len(ids), dtype=float)[:, None]
    rows[list(null)] = np.nan
    found, _ = weighed(as_source(rows, 1), rule, ids, own, SECRET)
    return {int(row): int(weight) for row, weight in found.loaded()}


@pytest.mark.claim("guarantees", "47")
@pytest.mark.parametrize("c", [2, 3, 7, W])
def test_a_weighted_record_of_a_person_that_stays_moves_no_more(c):
    """Also where a product is nearly an integer."""
    rule = Weighing(W, 1, has_weights=True)
    rng = RNG(c)
    for own in (rng.random(c), np.full(c, np.nextafter(1, 0)), np.full(c, 1 / 3)):
        ids = ["x"] * c
        before = weights_of_rows(rule, ids, own)
        after = weights_of_rows(rule, ids, own, null=[0])
        changes = [abs(after[row] - before[row]) for row in range(1, c)]
        assert before[0] + sum(changes) <= W


@pytest.mark.claim("guarantees", "47")
def test_products_of_weights_are_exact():
    """So that no sum of weights depends on a rounding."""
    own = [0.0, 1.0, 0.5, 1 / 3, 0.1, np.nextafter(1, 0), 2.0**-41, *RNG(0).random(50)]
    found = checked_weights(own)
    assert found[:3].tolist() == [0.0, 1.0, 0.5]
    assert 1 / 3 * 3 == 1.0  # although the float is less than a third
    for given, each in zip(own, found.tolist(), strict=True):
        assert 0 <= given - each < 2.0**-40
        for weight in (3, 7, 63, 4095, 4096):
            assert Fraction(each * weight) == Fraction(each) * weight


@pytest.mark.claim("guarantees", "47")
def test_clients_are_clipped_in_units_of_the_full_weight():
    algorithm = GRIDS["glloyd"].for_clients("line", weighted=True, clip=2.0)
    assert algorithm.full_weight == MOST_WEIGHT
    (query, *_) = any_queries(algorithm, seed=6, trials=1)
    points = grid_points(algorithm)
    rows = np.repeat(points[[-1]], 7, axis=0)
    words = total(algorithm, query, rows, None, np.full(7, 0.9))
    clipped = answers.contribution(algorithm, query.round, words)
    for release, own in releases_of(algorithm, query.round):
        units = sensitivities(algorithm, query.round)[own]
        found = size(release, clipped[own] / units, 1)
        assert_within("a weighted client moves it by", found, least=0.99, most=1)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([0.1, 1.5, 0.2], r"Expected weights in \[0, 1\]. Got 1 of 3 outside, or NaN"),
        ([-0.1, 1.5, 0.2], "Got 2 of 3 outside"),
        ([0.1, np.nan, 0.2], "Got 1 of 3 outside"),
        ([0.1, 0.2], "Expected a weight for each record, .* Got 2 for 3 records"),
        ([[0.1, 0.2, 0.3]], r"weights in one dimension.* Got shape \(1, 3\)"),
        (["a", "b", "c"], "Expected weights as an array of real numbers"),
    ],
)
def test_other_weights_are_refused_without_their_values(own, message):
    source = as_source(np.zeros((3, 1)), 1)
    rule = Weighing(W, has_weights=True)
    with pytest.raises((DataError, ConfigurationTypeError), match=message) as error:
        weighed(source, rule, None, own, SECRET)
    assert "1.5" not in str(error.value)


def test_the_number_of_ids_is_that_of_all_records():
    rows = np.array([[0.0], [np.nan], [1.0]])
    rule = Weighing(W, 1)
    for ids in (["a", "b"], ["a", "b", "c", "d"]):
        with pytest.raises(DataError, match=rf"an id for each .* Got {len(ids)} for 3"):
            weighed(as_source(rows, 1), rule, ids, None, SECRET)
    found, counts = weighed(as_source(rows, 1), rule, ["a", "a", None], None, SECRET)
    assert found.loaded().tolist() == [[0.0, W], [1.0, W]]
    assert counts.n_missing == 1


def test_null_records_weigh_nothing():
    """Also if a loader's memory makes a record of them between two passes."""
    usable = np.array([True, False, True])
    for rule, persons in (
        (Weighing(W), None),
        (Weighing(W, 1), persons_module.keys_of(["a", "b", None], SECRET)),
    ):
        totals = weights.NO_PERSONS
        if persons is not None:
            totals = persons_module.counts_of(persons, usable)
        found = rule.of_block(usable, persons, totals, weights.NO_PERSONS, None)
        assert found.tolist() == [W, 0, W]


def test_what_weights_change_is_counted():
    rows = np.zeros((2 * W + 9, 1))
    ids = ["x"] * (W + 3) + ["y"] * (W + 4) + [None, ""]
    _, counts = weighed(as_source(rows, 1), Weighing(W, 1), ids, None, SECRET)
    assert counts == weights.WeightCounts(2, 2, 7)
    _, counts = weighed(as_source(rows, 1), Weighing(W), None, None, SECRET)
    assert counts == weights.WeightCounts()


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [0, 1], [2, 1, 0], [0, 1, 9]])
def test_records_that_change_between_passes_are_refused(rows):
    """Ids belong to places: in another order a person would get the weights of others."""
    passes = []

    def chunks():
        passes.append(1)
        given = [0, 1, 2] if len(passes) < 3 else rows
        return iter([np.array(given, float)[:, None]])

    source = as_source(chunks, 1)
    found, _ = weighed(source, Weighing(W, 1), ["a", "a", "b"], None, SECRET)
    assert found.loaded()[:, -1].tolist() == [W // 2, W // 2, W]
    with pytest.raises(DataError, match="in all passes"):
        found.loaded()


def test_null_records_of_the_domain_count_for_no_person():
    rows = np.array([[3.0, 4.0], [0, 0], [0, 0], [np.nan, 1]])
    domain = Sphere(2)
    found, _ = weighed(
        as_source(rows, 2), Weighing(W, 1), ["a"] * 4, None, SECRET, domain.are_null
    )
    (own, *others) = found.loaded()[:, -1].tolist()
    assert (own, others) == (W, [0, 0])


def test_weights_that_are_too_small_to_count_are_counted():
    own = [1.0, 1e-6, 0.0, 1e-3]
    rows = np.zeros((4, 1))
    rows[3] = np.nan
    rule = Weighing(W, has_weights=True)
    _, counts = weighed(as_source(rows, 1), rule, None, own, SECRET)
    assert counts.n_vanished == 1


def test_rows_without_weights_are_the_records():
    algorithm = GRIDS["glloyd"].make("line")
    rows = np.zeros((2, 1))
    records, own = split(algorithm, rows)
    assert records is rows
    assert own is None
    assert (record_width(algorithm), weighs_records(algorithm)) == (
        1,
        False,
    )
    by_person = of_persons("glloyd", "line")
    assert (record_width(by_person), weighs_records(by_person)) == (
        2,
        True,
    )
