"""Every algorithm's queries: what a server may ask, and what a client's own query is.

A client answers what a server sends only if every array has its name, its shape, its dtype and its
range: the units hold for these, and the work is bounded. Its own query is never refused.
"""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flower_kmeans.algorithms import FastLloydAlgorithm, FedDPAlgorithm, Query
from flower_kmeans.algorithms.base import _REGISTRY, UNUSABLE
from flower_kmeans.domain import Ball, GridRecords
from flower_kmeans.errors import ConfigurationError, MessageError
from tests.algorithms.test_fixed_steps import (
    BALL,
    BOX,
    BUDGET,
    CASES,
    SUMS,
    N,
    records_of,
    words_of,
)

POINTS = np.random.default_rng(0).uniform(0, 1, (40, 6))
ALGORITHMS = {
    **CASES,
    "fastlloyd-none": lambda: FastLloydAlgorithm(
        5, BOX, BUDGET, n_records=N, postprocess="none", relocation=False, n_rounds=3
    ),
    "feddp": lambda: FedDPAlgorithm(3, BOX, BUDGET, n_records=N, server_data=POINTS),
    "feddp-narrowing": lambda: FedDPAlgorithm(
        3,
        Ball(2.0, [0.0] * 6),
        BUDGET,
        n_records=N,
        server_data=POINTS,
        sums="narrowing",
        n_lloyd_rounds=2,
    ),
}


def test_every_algorithm_is_here():
    assert {make().name for make in ALGORITHMS.values()} == {
        name for name, kind in _REGISTRY.items() if kind.__module__.startswith("flower_kmeans.")
    }


def queries_of(algorithm, kind):
    """Yield the query of every round of a run whose sums are of a kind."""
    rng, records = np.random.default_rng(3), records_of(algorithm)
    state = algorithm.initial_state(np.random.default_rng(4))
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        yield query
        words = words_of(algorithm, kind, query, records, rng)
        answer = algorithm.unflatten(words, number)
        state = algorithm.update(state, answer, np.random.default_rng(number))


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_own_queries_are_within_their_ranges_after_any_sum(name, kind):
    algorithm = ALGORITHMS[name]()
    for query in queries_of(algorithm, kind):
        algorithm.check_query(query)
        for array in query.arrays.values():
            assert array.dtype == np.int64
        assert list(query.arrays) == list(algorithm.query_ranges(query.round))


def refused(algorithm, query):
    with pytest.raises(MessageError, match=re.escape(UNUSABLE)):
        algorithm.check_query(query)


def changed(query, name, array):
    return Query(query.round, {**query.arrays, name: array})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_single_violation_is_refused_without_a_value(name):
    algorithm = ALGORITHMS[name]()
    for query in queries_of(algorithm, "noisy data"):
        refused(algorithm, changed(query, "more", np.zeros(1, dtype=np.int64)))
        for number in (0, -1, algorithm.n_rounds + 1, float(query.round), True, None):
            refused(algorithm, Query(number, query.arrays))
        for key, (shape, low, high) in algorithm.query_ranges(query.round).items():
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


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_ends_of_every_range_are_accepted_and_answered(name):
    """But for centres beyond a ball, which are in the corners of its box."""
    algorithm = ALGORITHMS[name]()
    records = records_of(algorithm)
    for number in range(2, algorithm.n_rounds + 1):
        for which in (1, 2):
            found = {
                key: np.array(np.broadcast_to(limits[which], limits[0]))
                for key, limits in algorithm.query_ranges(number).items()
            }
            for key in {"centers", "centroids"} & set(found):
                if name.startswith(("pe-means", "hdpe", "feddp-narrowing")):
                    found[key] //= 8  # within the ball
            query = Query(number, found)
            algorithm.check_query(query)
            words = algorithm.flatten(algorithm.answer(query, records), number)
            assert words.shape == (algorithm.words(number),)


DTYPES = [np.int64, np.int32, np.uint64, np.float64, np.bool_, np.dtype(">i8"), np.dtype("<U3")]


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_arrays_are_refused_or_answered(name, data):
    """Nothing but a MessageError, whatever the arrays are, and none after it was accepted."""
    algorithm = ALGORITHMS[name]()
    number = data.draw(st.integers(1, algorithm.n_rounds))
    found = {}
    for key, (shape, low, high) in algorithm.query_ranges(number).items():
        least, most = int(np.min(low)), int(np.max(high))
        ends = st.sampled_from([least, most, 0 if least < 0 else least])
        right = arrays(np.int64, shape, elements=ends | st.integers(least, most))
        any_dtype = st.sampled_from(DTYPES).flatmap(lambda d: arrays(d, array_shapes(max_dims=3)))
        found[key] = data.draw(st.one_of(right, right, right, any_dtype))
    query = Query(number, found)
    try:
        algorithm.check_query(query)
    except MessageError:
        refused(algorithm, query)
        return
    records = GridRecords.from_grid(np.zeros((3, algorithm.domain.n_features), np.int64), 16)
    algorithm.flatten(algorithm.answer(query, records), number)


@pytest.mark.parametrize("name", CASES)
def test_an_own_state_that_is_out_of_range_is_moved_into_it(name):
    algorithm = CASES[name]()
    state = algorithm.initial_state()
    for query, following in pairwise(queries_of(algorithm, "data")):
        assert following.round == query.round + 1
    far = {
        key: np.full(shape, 2**62 if which else -(2**62))
        for which, (key, (shape, _, _)) in enumerate(
            algorithm.query_ranges(algorithm.n_rounds).items()
        )
    }
    query = algorithm.query(type(state)(algorithm.n_rounds - 1, {**state.arrays, **far}))
    for key, (_, low, high) in algorithm.query_ranges(algorithm.n_rounds).items():
        assert (query.arrays[key] >= low).all()
        assert (query.arrays[key] <= high).all()


def test_centroids_without_postprocessing_may_lie_in_twice_the_box():
    algorithm = ALGORITHMS["fastlloyd-none"]()
    widths = algorithm.domain.grid_half_widths(algorithm.fraction_bits)
    _, low, high = algorithm.query_ranges(2)["centroids"]
    np.testing.assert_array_equal(high, 2 * widths)
    np.testing.assert_array_equal(low, -2 * widths)
    _, _, high = CASES["fastlloyd"]().query_ranges(2)["centroids"]
    np.testing.assert_array_equal(high, widths)
    assert CASES["fastlloyd"]().query_ranges(1)["radius"][2] >= 1
    assert BALL.n_features == len(widths)


# ------------------------------------------------------------------ what a sum must hold


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sums_of_the_planned_records_must_fit_the_ring(name):
    """2,000 records of 2^16 grid units: 2^27 without noise."""
    algorithm = ALGORITHMS[name]()
    algorithm.require_capacity(limit=2**62)
    if algorithm.n_records is None:
        algorithm.require_capacity(limit=1)  # nothing is known of the sums
        return
    with pytest.raises(ConfigurationError, match=r"below 2\^26, .*n_records=\d+ and noise"):
        algorithm.require_capacity(limit=2**26)
    with pytest.raises(ConfigurationError, match=r"below 2\^62, "):
        algorithm.require_capacity(2.0**60, limit=2**62)
