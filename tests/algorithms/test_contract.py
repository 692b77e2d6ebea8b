"""What every algorithm promises: sensitivities, queries, total updates, documents, plans, results.

A new algorithm is held to all of it by a row in `rows.py`.
"""

import itertools
import math
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flower_kmeans.algorithms import GLloydAlgorithm, Query, algorithm_from_config
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.client_clipping import moves_of_a_record
from flower_kmeans.algorithms.feasibility import require_capacity
from flower_kmeans.algorithms.queries import UNUSABLE, check_query
from flower_kmeans.algorithms.ranges import outer_box
from flower_kmeans.algorithms.registry import algorithm_to_config
from flower_kmeans.algorithms.sensitivity import record_sensitivities, sensitivities
from flower_kmeans.algorithms.tightened import BOX
from flower_kmeans.algorithms.weights import planned_total
from flower_kmeans.data.domain import Ball, Box, GridRecords
from flower_kmeans.data.table_domain import Category, Number, TableDomain
from flower_kmeans.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    MessageError,
)
from flower_kmeans.privacy.budget import PrivacyBudget
from tests.algorithms.rows import (
    BUDGET,
    CLIENTS,
    DOMAINS,
    GRIDS,
    OPEN,
    OPTIONS,
    RNG,
    RUNS,
    SUMS,
    added,
    any_queries,
    grid_points,
    optional,
    queries_of,
    records_of,
)
from tests.support.documents import assert_survives, library_algorithms
from tests.support.saying import assert_within

# One row of each algorithm: the others differ in options.
PLAIN = (
    "lloyd",
    "sulloyd",
    "glloyd",
    "constrained-lloyd",
    "fastlloyd",
    "feddp",
    "pe-means",
    "hdpe-means",
    "synopsis",
    "synopsis-sized",
    "vertical",
)


def test_every_algorithm_is_here():
    here = {make().name for make in RUNS.values()}
    library = set(library_algorithms())
    assert here == {kind.name for kind, _ in OPTIONS} == library
    # Elsewhere: Lloyd has no noise, and in the two others one record replaces another.
    enumerated = {grid.kind.name for grid in GRIDS.values()}
    assert library - enumerated == {"lloyd", "constrained-lloyd", "vertical"}


# --------------------------------------------------------------------------- one record

# Those whose noise is Gaussian can begin with the ranges of columns.
WITH_RANGES = [
    name
    for name in GRIDS
    if name != "synopsis-blind" and not name.startswith("sulloyd")
]
PROJECTING = [name for name in GRIDS if name.startswith("hdpe-means")]
ON_RANGES = [
    *((name, "corner ranges") for name in PROJECTING),
    *((name, "ranges") for name in WITH_RANGES if name not in PROJECTING),
    *((name, "cubic ranges") for name in WITH_RANGES if name not in PROJECTING),
]
ON_GRIDS = [
    *((name, where) for name, grid in GRIDS.items() for where in grid.domains),
    *ON_RANGES,
]


def release_words(algorithm, number):
    """Return each release of a round with where its words are."""
    layout = algorithm.layout(number)
    return [(each, layout.words_of(each)) for each in algorithm.releases(number)]


def sizes(release, changes):
    """Return each change in the norm of the release.

    With parts, the share of what all parts allow; infinite where more words change than
    there are parts, or by more than theirs.
    """
    if not release.parts:
        return np.linalg.norm(changes, 1 if release.norm == "l1" else 2, axis=1)
    bounds = np.zeros(changes.shape[1])
    given = [bound for bound, number in release.parts for _ in range(number)]
    bounds[: len(given)] = sorted(given, reverse=True)
    fits = (-np.sort(-np.abs(changes), axis=1) <= bounds + 1e-12).all(axis=1)
    return np.where(fits, np.abs(changes).sum(axis=1) / bounds.sum(), np.inf)


@pytest.mark.claim("guarantees", "12", "19", "20", "13", "22", "24", "28")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "where"), ON_GRIDS)
def test_one_record_changes_each_release_by_its_unit_at_most(name, where):
    """Whatever a server may ask; and it is attained by some record of the grid."""
    algorithm = GRIDS[name].make(where)
    records, largest = grid_points(algorithm), {}
    others = records[:: len(records) // 7 + 1]
    for query in any_queries(algorithm, seed=1):
        check_query(algorithm, query)
        before = added(algorithm, query, others)
        changes = np.array(
            [
                added(algorithm, query, np.vstack([others, record])) - before
                for record in records
            ]
        )
        for release, words in release_words(algorithm, query.round):
            largest.setdefault(release.name, []).append(
                sizes(release, changes[:, words]).max()
            )
    assert set(largest) == {release.name for release in algorithm.plan().releases}
    for release, found in largest.items():
        least = 1.0 if where == "line" else GRIDS[name].short.get(release, 1.0)
        what = f"release {release!r}: a record moves it by"
        assert_within(what, max(found), least=least, most=1, unit="units", slack=1e-12)


DECLARED = TableDomain(
    [Category("c", ("a", "b", "other"), "other"), Number("x", 1, 100, "log")]
)


# 17 columns
@pytest.mark.claim("guarantees", "7")
@pytest.mark.claim("guarantees", "44")
@pytest.mark.parametrize("weights", [{}, {"c": 2.0, "x": 0.3}, {"c": 0.1}])
@pytest.mark.parametrize("name", [name for name in GRIDS if name not in PROJECTING])
def test_records_of_declared_columns_keep_each_release(name, weights, monkeypatch):
    """All records that a table can hold: of a category, a number, and missing cells."""
    domain = DECLARED.weighted(weights)
    monkeypatch.setitem(DOMAINS, "declared", domain)
    algorithm = GRIDS[name].make("declared")
    cells = zip(*itertools.product("ab?", ["", 0, 1, 3, 10, 1e9]), strict=True)
    table = domain.encode(dict(zip("cx", map(list, cells), strict=True)), "nan")
    whole = table[np.isfinite(table).all(axis=1)]
    assert len(whole) == 3 * 5  # without a number there is no record
    grid = GridRecords(whole, domain, algorithm.fraction_bits)
    records = np.concatenate(list(grid.blocks(999))).astype(np.int64)
    largest = {}
    for query in any_queries(algorithm, seed=2, trials=2):
        before = added(algorithm, query, records[::4])
        changes = np.array(
            [
                added(algorithm, query, np.vstack([records[::4], row])) - before
                for row in records
            ]
        )
        for release, words in release_words(algorithm, query.round):
            largest.setdefault(release.name, []).append(
                sizes(release, changes[:, words]).max()
            )
    for release, found in largest.items():
        least = 1 if (name, release) == ("glloyd", "sums") else 0
        what = f"release {release!r}: a declared record moves it by"
        assert_within(what, max(found), least=least, most=1, unit="units", slack=1e-12)


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_with_one_point_is_refused(name, monkeypatch):
    """Columns of small weights need enough bits: all records would be alike."""
    lower, upper = np.zeros(17), np.ones(17)
    monkeypatch.setitem(DOMAINS, "tiny", Box(lower, upper, weights=[0.001] * 17))
    with pytest.raises(ConfigurationError, match="more than one point on the grid"):
        GRIDS[name].make("tiny", fraction_bits=8)
    monkeypatch.setitem(DOMAINS, "tiny", Box(lower, upper, weights=[0.5] * 17))
    GRIDS[name].make("tiny", fraction_bits=8)


@pytest.mark.parametrize("name", GRIDS)
def test_records_outside_the_bounds_count_as_records_on_them(name):
    where = "corner" if name in PROJECTING else "square"
    algorithm = GRIDS[name].make(where)
    far = np.full((2, algorithm.domain.n_features), 0.5)
    far[0, :2], far[1, 1] = (1e9, -1e300), 7.0
    near = np.clip(far, 0, 1)
    for query in any_queries(algorithm, 3, trials=2):
        found = [
            algorithm.statistic(
                query, GridRecords(data, algorithm.domain, algorithm.fraction_bits)
            )
            for data in (far, near)
        ]
        for block, array in found[0].blocks.items():
            np.testing.assert_array_equal(array, found[1].blocks[block])


@pytest.mark.claim("guarantees", "19", "22")
@pytest.mark.default_cases(*PLAIN)
@pytest.mark.parametrize("name", [name for name in RUNS if "constrained" not in name])
def test_statistics_add_up_and_no_records_add_zeros(name):
    """But where clients fill slots, which makes a client's statistic no sum over its records."""
    algorithm = RUNS[name]()
    points = np.concatenate(list(records_of(algorithm).blocks(2**16))).astype(np.int64)[
        :200
    ]

    def statistic(query, rows):
        found = algorithm.statistic(
            query, GridRecords.from_grid(rows, algorithm.fraction_bits)
        )
        assert list(found.blocks) == [
            block.name for block in algorithm.layout(query.round).blocks
        ]
        return algorithm.layout(query.round).flatten(found)

    for query in queries_of(algorithm, "noisy data"):
        parts = [statistic(query, part) for part in np.array_split(points, 7)]
        np.testing.assert_array_equal(sum(parts), statistic(query, points))
        nothing = statistic(query, points[:0])
        assert nothing.dtype == np.int64
        assert not nothing.any()


# ------------------------------------------------------------------------ whole clients


def some_of(algorithm, n):
    points = grid_points(algorithm)
    return points[np.unique(np.linspace(0, len(points) - 1, n).astype(int))]


def clients_of(algorithm):
    """Yield no records, some, many, and many that are alike, whose votes go to one place."""
    some = some_of(algorithm, 5)
    yield some[:0]
    yield some[:1]
    yield some[[0, -1]]
    yield some
    yield np.repeat(some, 200, axis=0)
    for record in some:
        yield np.repeat(record[None], 300, axis=0)


CLIPPED = [
    (name, where, number)
    for name, grid in GRIDS.items()
    for where in ("line", "square", "disc", "sphere")
    for number in range(len(grid.clients))
    if where in grid.domains
]


@pytest.mark.claim("guarantees", "34", "21", "22", "28")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "where", "number"), CLIPPED)
def test_one_client_changes_each_release_by_its_unit_at_most(name, where, number):
    """All of its records at once: it is there, or it is not, which adds zeros."""
    algorithm, largest = (
        GRIDS[name].for_clients(where, **GRIDS[name].clients[number]),
        {},
    )
    for query in any_queries(algorithm, 5):
        check_query(algorithm, query)
        expected = record_sensitivities(algorithm, query.round)
        for release, words in release_words(algorithm, query.round):
            expected[words] *= algorithm.clipping.of(release)
        np.testing.assert_array_equal(sensitivities(algorithm, query.round), expected)
        for records in clients_of(algorithm):
            change = added(algorithm, query, records)
            assert len(records) or not change.any()
            for release, words in release_words(algorithm, query.round):
                size = np.linalg.norm(change[words], 1 if release.norm == "l1" else 2)
                what = f"round {query.round}, release {release.name!r}: a client moves it by"
                assert_within(what, size, most=1, unit="units", slack=1e-12)
                key = query.round, release.name
                largest[key] = max(largest.get(key, 0.0), size)
    # It is attained but for truncation. Joint clipping takes one factor for a round: of
    # the release that needs it.
    for t in range(1, algorithm.n_rounds + 1):
        found = [size for (number, _), size in largest.items() if number == t]
        attained = max(found) if algorithm.clipping.is_joint else min(found)
        assert_within(
            f"round {t}: some client moves it by", attained, least=0.97, unit="units"
        )


@pytest.mark.claim("guarantees", "35")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("clip", [3.0, 20.0])
@pytest.mark.parametrize("name", [name for name, grid in GRIDS.items() if grid.clients])
def test_one_record_of_a_clipped_client_moves_no_more_than_is_charged(name, clip):
    """In l2 clipping is a projection. In l1, and with a joint factor, the factor moves too."""
    grid = GRIDS[name]
    algorithm = grid.for_clients(
        "sphere" if name in PROJECTING else "square", clip=clip
    )
    largest = 0.0
    for query in any_queries(algorithm, 3, trials=3):
        releases = release_words(algorithm, query.round)
        moves = moves_of_a_record(algorithm, query.round)
        for (release, _), move in zip(releases, moves, strict=True):
            joint = algorithm.clipping.is_joint and len(releases) > 1
            factor = 2 if joint or release.norm == "l1" else 1
            least = 1 / algorithm.clipping.of(release)
            most = factor * max(least, 1 / clip) * 1.1 + 0.02
            what = f"release {release.name!r}: what is charged for a record is"
            assert_within(what, move, most=most, unit="of a client")
            assert_within(what, move, least=least, unit="of a client", strict=True)
        for records in clients_of(algorithm):
            with_it, without = (
                added(algorithm, query, part) for part in (records, records[1:])
            )
            for (release, words), move in zip(releases, moves, strict=True):
                change = (with_it - without)[words]
                size = np.linalg.norm(change, 1 if release.norm == "l1" else 2)
                what = f"release {release.name!r}: a record of a clipped client moves it by"
                assert_within(what, size, most=move, unit="of a client")
                largest = max(largest, size * algorithm.clipping.of(release))
    assert_within(
        "the most that a record moves a release is", largest, least=0.9, strict=True
    )


def test_without_privacy_no_client_is_clipped():
    for name, grid in GRIDS.items():
        where = "sphere" if name in PROJECTING else "square"
        algorithm = grid.make(where, PrivacyBudget(None, unit="client"))
        assert algorithm.clip is None
        assert "clip" not in algorithm_to_config(algorithm)
        many = GridRecords.from_grid(np.repeat(some_of(algorithm, 5), 200, axis=0), 3)
        for query in any_queries(algorithm, 3, trials=1):
            answer = answer_of(algorithm, query, many)
            statistic = algorithm.statistic(query, many)
            for block, array in statistic.blocks.items():
                np.testing.assert_array_equal(answer.blocks[block], array)


def test_an_algorithm_without_a_clip_refuses_to_answer_for_clients():
    algorithm = GRIDS["glloyd"].for_clients("square")
    query = algorithm.query(algorithm.initial_state())
    object.__delattr__(algorithm, "clip")
    records = GridRecords.from_grid(grid_points(algorithm), 12)
    for call in (
        lambda: sensitivities(algorithm, 1),
        lambda: answer_of(algorithm, query, records),
    ):
        with pytest.raises(ConfigurationError, match="Expected a clip with unit='c"):
            call()


def test_words_that_no_release_covers_are_not_sent_for_clients():
    class Partial(GLloydAlgorithm):
        def releases(self, round_number):
            return tuple(
                r for r in super().releases(round_number) if r.name == "counts"
            )

    options = {"n_records": 1000, "n_clients": 100, "n_rounds": 3}
    algorithm = Partial.planned(2, DOMAINS["square"], CLIENTS, **options)
    query = algorithm.query(algorithm.initial_state())
    words = added(algorithm, query, [[1000, 2000]] * 3)
    assert not words[:4].any()
    assert words[4:].any()


# --------------------------------------------------------------------------- queries


@pytest.mark.claim("threat-model", "17")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("name", RUNS)
def test_own_queries_are_within_their_ranges_after_any_sum(name, kind):
    algorithm = RUNS[name]()
    for query in queries_of(algorithm, kind):
        check_query(algorithm, query)
        for array in query.arrays.values():
            assert array.dtype == np.int64
        assert list(query.arrays) == list(algorithm.query_ranges(query.round))


def refused(algorithm, query):
    with pytest.raises(MessageError, match=re.escape(UNUSABLE)):
        check_query(algorithm, query)


def changed(query, name, array):
    return Query(query.round, {**query.arrays, name: array})


@pytest.mark.claim("guarantees", "19", "22", "28")
@pytest.mark.claim("threat-model", "17")
@pytest.mark.default_cases(*PLAIN)
@pytest.mark.parametrize("name", RUNS)
def test_every_single_violation_is_refused_without_a_value(name):
    algorithm = RUNS[name]()
    for query in queries_of(algorithm, "noisy data"):
        refused(algorithm, changed(query, "more", np.zeros(1, dtype=np.int64)))
        for number in (0, -1, algorithm.n_rounds + 1, float(query.round), True, None):
            refused(algorithm, Query(number, query.arrays))
        for key, (shape, low, high, *_) in algorithm.query_ranges(query.round).items():
            array = query.arrays[key]
            others = {one: each for one, each in query.arrays.items() if one != key}
            refused(algorithm, Query(query.round, others))
            refused(algorithm, Query(query.round, {**others, key + "s": array}))
            for wrong in (
                array.astype(np.float64),
                array.astype(np.uint64),
                array.astype(">i8"),
                array.astype(object),
                array.tolist(),
                None,
                array[None],
                array[..., :-1],
                np.concatenate([array, array]),
                array.reshape(-1)[0],
            ):
                refused(algorithm, changed(query, key, wrong))
            for bound, step in ((low, -1), (high, 1)):
                limit = np.broadcast_to(bound, shape)
                place = tuple(size - 1 for size in shape)
                beyond = int(limit[place]) + step
                if not -(2**63) <= beyond < 2**63:
                    continue
                out = array.copy()
                out[place] = beyond
                refused(algorithm, changed(query, key, out))


@pytest.mark.parametrize("name", RUNS)
def test_the_ends_of_every_range_are_accepted_and_answered(name):
    """But for centres beyond a ball, which are in the corners of its box."""
    algorithm = RUNS[name]()
    records = records_of(algorithm)
    for number in range(2, algorithm.n_rounds + 1):
        for which in (1, 2):
            found = {
                key: np.array(np.broadcast_to(limits[which], limits[0]))
                for key, limits in algorithm.query_ranges(number).items()
            }
            if BOX in found:  # whose rows are no lengths of 0
                found[BOX] = outer_box(algorithm.domain.n_features)
            for key in {"centers", "centroids"} & set(found):
                if name.startswith(("pe-means", "hdpe", "feddp-narrowing")):
                    found[key] //= 8  # within the ball
            query = Query(number, found)
            check_query(algorithm, query)
            words = algorithm.layout(number).flatten(
                answer_of(algorithm, query, records)
            )
            assert words.shape == (algorithm.layout(number).n_words,)


@pytest.mark.claim("guarantees", "19")
@pytest.mark.parametrize(
    ("name", "t", "key"), [("feddp", 4, "centroids"), ("pe-means", 5, None)]
)
def test_centroids_in_the_corners_of_a_ball_are_refused(name, t, key):
    algorithm = GRIDS[name].make("disc")
    number = min(t, algorithm.n_rounds)
    ranges = algorithm.query_ranges(number)
    found = {
        k: np.broadcast_to(low, shape).copy() for k, (shape, low, *_) in ranges.items()
    }
    key = key or "centers"
    check_query(algorithm, Query(number, {**found, key: np.array([[8, 0], [0, -8]])}))
    refused(algorithm, Query(number, {**found, key: np.array([[8, 0], [1, -8]])}))


DTYPES = [
    np.int64,
    np.int32,
    np.uint64,
    np.float64,
    np.bool_,
    np.dtype(">i8"),
    np.dtype("<U3"),
]


@pytest.mark.claim("threat-model", "17")
@pytest.mark.default_cases(*PLAIN)
@pytest.mark.parametrize("name", RUNS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_arrays_are_refused_or_answered(name, data):
    """Nothing but a MessageError, whatever the arrays are, and none after it was accepted."""
    algorithm = RUNS[name]()
    number = data.draw(st.integers(1, algorithm.n_rounds))
    found = {}
    for key, (shape, low, high, *_) in algorithm.query_ranges(number).items():
        least, most = int(np.min(low)), int(np.max(high))
        ends = st.sampled_from([least, most, 0 if least < 0 else least])
        right = arrays(np.int64, shape, elements=ends | st.integers(least, most))
        any_dtype = st.sampled_from(DTYPES).flatmap(
            lambda d: arrays(d, array_shapes(max_dims=3))
        )
        found[key] = data.draw(st.one_of(right, right, right, any_dtype))
    query = Query(number, found)
    try:
        check_query(algorithm, query)
    except MessageError:
        refused(algorithm, query)
        return
    records = GridRecords.from_grid(
        np.zeros((3, algorithm.domain.n_features), np.int64), 16
    )
    algorithm.layout(number).flatten(answer_of(algorithm, query, records))


@pytest.mark.parametrize("name", [name for name in RUNS if "feddp" not in name])
def test_an_own_state_that_is_out_of_range_is_moved_into_it(name):
    algorithm = RUNS[name]()
    ranges, state = (
        algorithm.query_ranges(algorithm.n_rounds),
        algorithm.initial_state(),
    )
    far = {
        key: np.full(shape, 2**62 if which else -(2**62))
        for which, (key, (shape, *_)) in enumerate(ranges.items())
        if key != BOX  # the rule finds no range that is out of range
    }
    query = algorithm.query(
        type(state)(algorithm.n_rounds - 1, {**state.arrays, **far})
    )
    for key, (_, low, high, *_) in ranges.items():
        assert (query.arrays[key] >= low).all()
        assert (query.arrays[key] <= high).all()


# ------------------------------------------------------------------ updates and results

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-(2**63), 2**63 - 1, 0, 2**16, -1, 40, 80]
)
FIRST = "rectangle", 1.0
TOTAL = [
    # One with bounds on sizes takes as long as all others of an algorithm.
    pytest.param(
        *(name, where, epsilon),
        marks=(
            [pytest.mark.thorough if (where, epsilon) == FIRST else pytest.mark.slow]
            if name == "synopsis-sized"
            else [pytest.mark.thorough] * name.startswith("feddp-")
        ),
    )
    for name, grid in GRIDS.items()
    for where in ("rectangle", "disc", "sphere")
    for epsilon in (1.0, None)
    if where in grid.domains and not (where == "disc" and epsilon is None)
]


@pytest.mark.claim("guarantees", "19", "22", "24", "28")
@pytest.mark.claim("protocol", "update-accepts-all-integers")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "where", "epsilon"), TOTAL)
@settings(max_examples=8, deadline=None)
@given(data=st.data(), answered=st.sampled_from([1.0, 0.9, 0.01]))
def test_update_accepts_any_integers(name, where, epsilon, data, answered):
    """Twice alike, without a warning, and the next query can be asked whatever came back."""
    algorithm = GRIDS[name].make(where, PrivacyBudget(epsilon))
    state, points = algorithm.initial_state(), grid_points(algorithm)[::9]
    first = {key: array.copy() for key, array in state.arrays.items()}
    widths = algorithm.domain.grid_half_widths(3) * (
        2 if name == "fastlloyd-none" else 1
    )
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        for t in range(1, algorithm.n_rounds + 1):
            words = data.draw(
                arrays(
                    np.int64, algorithm.layout(t).n_words, elements=INT64, fill=INT64
                )
            )
            statistic = algorithm.layout(t).unflatten(words, answered)
            state, again = (
                algorithm.update(state, statistic, RNG(t)) for _ in range(2)
            )
            assert state.round == t
            for key, array in state.arrays.items():
                np.testing.assert_array_equal(array, again.arrays[key])
                assert np.isfinite(array).all()
                assert array.dtype == np.int64 or not algorithm.replayable
            assert set(algorithm.warnings(state)) <= set(algorithm.possible_warnings)
            centroids = state.arrays.get("centroids")
            if centroids is not None:
                assert (np.abs(centroids) <= widths).all()
                if where == "disc" and name != "fastlloyd-none":
                    assert ((centroids**2).sum(axis=1) <= 4**3).all()
                assert np.isfinite(algorithm.centroids(state)).all()
            if t < algorithm.n_rounds:
                assert cost_of(algorithm, state) is None
                query = algorithm.query(state)
                check_query(algorithm, query)
                assert np.isfinite(added(algorithm, query, points)).all()
    found = len(algorithm.centroids(state))  # fewer than 2 only where the run chooses
    assert algorithm.fewest_clusters <= found <= 2
    assert algorithm.centroids(state).shape == (found, algorithm.domain.n_features)
    assert algorithm.counts(state).shape == (found,)
    assert np.isfinite(algorithm.counts(state)).all()
    cost = cost_of(algorithm, state)
    assert (cost is not None) == getattr(algorithm, "cost", False)
    if cost is not None:
        assert math.isfinite(cost.value)
        assert cost.standard_error >= 0
    for key, array in algorithm.initial_state().arrays.items():
        np.testing.assert_array_equal(array, first[key])


def cost_of(algorithm, state):
    """Return the estimate of the cost, where the algorithm releases it; else ``None``."""
    capability = algorithm.last_cost
    return None if capability is None else capability.estimate(state)


@pytest.mark.parametrize("name", RUNS)
def test_before_the_first_round_nothing_is_known_of_the_records(name):
    algorithm = RUNS[name]()
    state = algorithm.initial_state(RNG(0))
    assert state.round == 0
    assert cost_of(algorithm, state) is None
    assert (algorithm.centroids(state) is None) == ("centroids" not in state.arrays)
    if "constrained" not in name:  # whose sizes can be public
        assert algorithm.counts(state) is None
        assert algorithm.warnings(state) == ()


# --------------------------------------------------------------------------- documents

LEFT_OUT = {"n_records", "initial", "min_size", "max_size", "cost", "quality"}
"""Fields that a document need not have."""
MISSING = "not as expected"
LACKS = {
    # Without the fewest clusters, a schedule of the synopsis alone contradicts the rest.
    "min_clusters": "if min_clusters is given",
    "n_clients": f"n_clients is required|{MISSING}",
    "n_persons": f"n_persons is required|{MISSING}",
    "full_weight": f"Expected full_weight exactly|{MISSING}",
    "clip": "Expected a clip with unit='client'",
    "clips": f"Expected clips.*unit='client'|{MISSING}",
}
"""What is said where a field is missing that only some documents have."""


@pytest.mark.parametrize("name", RUNS)
def test_documents_have_all_fields_and_no_others(name):
    algorithm = RUNS[name]()
    domain, budget, config = (
        algorithm.domain,
        algorithm.budget,
        algorithm_to_config(algorithm),
    )
    assert_survives(algorithm)
    for name_ in set(config) - LEFT_OUT - {"name"}:
        lacking = {key: value for key, value in config.items() if key != name_}
        with pytest.raises(ConfigurationError, match=LACKS.get(name_, MISSING)):
            algorithm_from_config(lacking, domain, budget)
    with pytest.raises(ConfigurationError, match="not as expected"):
        algorithm_from_config({**config, "more": 1}, domain, budget)
    # Nothing is left to the library there.
    for change in (
        *({name_: "auto"} for name_ in config),
        {"n_clusters": "3"},
        {"n_clusters": 0},
        {"seed": None},
    ):
        with pytest.raises((ConfigurationError, ConfigurationTypeError, MessageError)):
            algorithm_from_config({**config, **change}, domain, budget)


@pytest.mark.parametrize("name", RUNS)
def test_the_feasibility_of_a_run_is_checked_once(name, monkeypatch):
    """Calibration takes seconds for some, and drafts have other noise than the run."""
    made = []
    kind = type(RUNS[name]())
    original = kind.require_feasible

    def counted(algorithm):
        made.append(algorithm)
        original(algorithm)

    monkeypatch.setattr(kind, "require_feasible", counted)
    algorithm = RUNS[name]()
    algorithm_from_config(
        algorithm_to_config(algorithm), algorithm.domain, algorithm.budget
    )
    # One is planned and one is read; clips for FedDP-KMeans need a run without noise.
    checked = [
        each for each in made if each.budget.is_private == algorithm.budget.is_private
    ]
    assert len(checked) == 2


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_algorithms_survive_their_documents(kind, options):
    """And a client that has the document alone answers as the server would."""
    server = optional(kind, **options)
    assert_survives(server)
    client = algorithm_from_config(
        algorithm_to_config(server), server.domain, server.budget
    )
    for query in any_queries(server, 1, trials=1):
        check_query(client, query)
        rows = some_of(server, 8)
        np.testing.assert_array_equal(
            added(client, query, rows), added(server, query, rows)
        )


def test_options_make_algorithms_different():
    made = [optional(kind, **options) for kind, options in OPTIONS]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for kind, options in OPTIONS if options.get("budget") is CLIENTS],
)
def test_a_document_for_clients_names_their_number_and_their_bound(kind, options):
    algorithm = optional(kind, **options)
    config = algorithm_to_config(algorithm)
    for name in ("clip", "n_clients"):
        for value in (None, 0, -5, "5", 2.5, True):
            with pytest.raises(
                (ConfigurationError, ConfigurationTypeError, MessageError)
            ):
                algorithm_from_config(
                    {**config, name: value}, algorithm.domain, algorithm.budget
                )
    records = PrivacyBudget(1.0, algorithm.budget.delta)
    with pytest.raises(ConfigurationError, match="unless the budget is private with"):
        algorithm_from_config(config, algorithm.domain, records)


@pytest.mark.parametrize(
    "config", [{}, {"name": "k-means"}, {"name": 3}, {"name": ["lloyd"]}]
)
def test_unknown_algorithms_are_refused(config):
    with pytest.raises(ConfigurationError, match="name of an algorithm in"):
        algorithm_from_config(config, DOMAINS["square"], BUDGET)


# --------------------------------------------------------------------------- parameters

KINDS = (
    "lloyd",
    "sulloyd",
    "glloyd",
    "fastlloyd",
    "feddp",
    "pe-means",
    "hdpe-means",
    "synopsis",
)
PRIVATE = KINDS[1:]


def make(kind, **options):
    return optional(
        library_algorithms()[kind],
        **{"budget": OPEN if kind == "lloyd" else BUDGET, **options},
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 0}, ConfigurationError, r"n_clusters in \[1, 10000\]. Got 0"),
        (
            {"k": 2.0},
            ConfigurationTypeError,
            "Expected n_clusters as an integer. Got float",
        ),
        (
            {"k": 11, "n_records": 10},
            ConfigurationError,
            "at most n_records=10. Got 11",
        ),
        ({"n_records": 0}, ConfigurationError, "n_records in"),
        ({"seed": 2**53}, ConfigurationError, "seed in"),
        ({"fraction_bits": 26}, ConfigurationError, "fraction_bits in"),
        ({"n_clients": 5}, ConfigurationError, "n_clients=None unless"),
        ({"clip": 5.0}, ConfigurationError, "clip=None unless"),
        (
            {"n_records": 2**52},
            ConfigurationError,
            "n_records=4503599627370496 and noise of up",
        ),
    ],
)
def test_bad_parameters_are_refused(kind, options, error, message):
    with pytest.raises(error, match=message):
        make(kind, **options)


@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clients": None}, "n_clients is required with unit='client'"),
        ({"n_clients": 0}, "n_clients in"),
        ({"clip": 0.0}, "clip positive and finite"),
        ({"clip": 1e-9}, "one (grid )?step of"),
        ({"clip": 1e300}, r"below|clips for .* in \[1e-12, 1e\+12\]"),
        ({"n_records": None}, "n_records is required with a private budget"),
    ],
)
def test_bad_parameters_for_clients_are_refused(kind, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(kind, **{"budget": CLIENTS, "n_clients": 50, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_distances_must_be_exact(kind):
    d = 20 if kind == "hdpe-means" else 3
    options = {"n_server_points": 5} if kind == "feddp" else {}
    with pytest.raises(
        ConfigurationError, match=f"fraction_bits=25 is too fine for {d} columns"
    ):
        library_algorithms()[kind].planned(
            2, Ball(1.0, [0.0] * d), OPEN, fraction_bits=25, **options
        )


# --------------------------------------------------------------------------- plans


@pytest.mark.claim("guarantees", "34")
@pytest.mark.parametrize("kind", PRIVATE)
def test_delta_is_chosen_from_the_number_of_units(kind):
    assert make(kind, budget=PrivacyBudget(1.0)).budget.delta == 1e-6
    clients = PrivacyBudget(1.0, unit="client")
    algorithm = make(kind, budget=clients, n_clients=50_000, n_records=10**6)
    plan = algorithm.plan()
    assert plan.budget == algorithm.budget
    assert (algorithm.budget.delta, plan.n_records, plan.n_clients) == (
        2e-7,
        10**6,
        50_000,
    )
    assert algorithm.clip == (math.sqrt(20) if kind == "synopsis" else 20.0)


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize("name", RUNS)
def test_plans_meet_their_budget_and_blocks_have_their_planned_noise(name):
    algorithm = RUNS[name]()
    plan = algorithm.plan()
    assert len(plan.rounds) == algorithm.n_rounds
    for t in range(1, algorithm.n_rounds + 1):
        units = sensitivities(algorithm, t)
        assert (units.shape, units.dtype) == (
            (algorithm.layout(t).n_words,),
            np.float64,
        )
        assert (units > 0).all()
    if not algorithm.budget.is_private:
        assert all(release.noise_multiplier == 0 for release in plan.releases)
        assert set(algorithm.noise_of(1).values()) == {0.0}
        return
    assert 0.999 * algorithm.budget.epsilon < plan.epsilon() <= algorithm.budget.epsilon
    for t, releases in enumerate(plan.rounds, start=1):
        units, places = record_sensitivities(algorithm, t), algorithm.layout(t).places
        noise = algorithm.noise_of(t)
        named = [block for release in releases for block in release.blocks]
        assert sorted(noise) == sorted(named) == sorted(algorithm.layout(t).names)
        for release in releases:
            spread = math.sqrt(2) if release.mechanism == "laplace" else 1.0
            scale = release.noise_multiplier * spread * algorithm.clipping.of(release)
            for block in release.blocks:  # of second moments, the diagonal
                assert noise[block] == pytest.approx(scale * units[places[block]].max())


@pytest.mark.parametrize("name", RUNS)
def test_sums_of_the_planned_records_must_fit_the_ring(name):
    """Records are up to 2^16 grid units long, and so are means of clients."""
    algorithm = RUNS[name]()
    require_capacity(algorithm, limit=2**62)
    if planned_total(algorithm) is None:
        require_capacity(algorithm, limit=1)  # nothing is known of the sums
        return
    with pytest.raises(
        ConfigurationError, match=r"below 2\^18, .*n_(records|persons)=\d+ and noise"
    ):
        require_capacity(algorithm, limit=2**18)
    if algorithm.budget.is_private:
        with pytest.raises(ConfigurationError, match=r"below 2\^62, "):
            require_capacity(algorithm, 2.0**60, limit=2**62)
