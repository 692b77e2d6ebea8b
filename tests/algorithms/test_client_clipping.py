"""Clipping of one client's answer: exact in real arithmetic, whatever floats do."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flower_kmeans.algorithms import HDPEMeansAlgorithm, Query
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.client_clipping import (
    clip_factor,
    move_of_a_record,
    shortened,
)
from flower_kmeans.data.domain import Ball, GridRecords
from flower_kmeans.privacy.budget import PrivacyBudget
from tests.support.saying import assert_within

pytestmark = pytest.mark.claim("guarantees", "34")

CLIENT = PrivacyBudget(1.0, unit="client")
NORMS = ("l1", "l2")
LEAST, LARGEST = -(2**63), 2**63 - 1


def exact_norm(values, units, norm):
    """The l1 norm, or the square of the l2 norm, as a fraction; values of unit 0 do not count."""
    power = 1 if norm == "l1" else 2
    pairs = zip(values.tolist(), units.tolist(), strict=True)
    return sum(
        ((Fraction(abs(v)) / Fraction(u)) ** power for v, u in pairs if u > 0),
        Fraction(0),
    )


def clip_to_units(values, units, norm):
    return shortened(values, units, clip_factor(values, units, norm))


def check(values, units, norm):
    clipped = clip_to_units(values, units, norm)
    assert clipped.dtype == np.int64
    assert clipped.shape == values.shape
    size = exact_norm(values, units, norm)
    assert_within(
        f"the clipped answer has the {norm} norm",
        exact_norm(clipped, units, norm),
        most=1,
    )
    slack = Fraction(1, 10**9)
    power = 1 if norm == "l1" else 2
    for v, w, u in zip(values.tolist(), clipped.tolist(), units.tolist(), strict=True):
        if u == 0:
            assert w == 0
            continue
        assert w == 0 or (w < 0) == (v < 0)
        assert_within("a word is clipped to", abs(w), most=abs(v))
        # Nothing is lost but a grid step, and what floats leave open.
        kept = Fraction(abs(v)) ** power * min(1, 1 / size if size else 1)
        next_step = Fraction(abs(w) + 1) ** power
        assert_within(
            "a word and one step more is", next_step, least=kept * (1 - slack)
        )
        if size <= 1 - slack:
            assert w == v


VALUES = st.integers(LEAST, LARGEST) | st.integers(-300, 300)
UNITS = (
    st.floats(1e-3, 1e12)
    | st.floats(1e-300, 1e300)
    | st.sampled_from([0.0, 1.0, 2.0**16])
)
VECTORS = st.lists(st.tuples(VALUES, UNITS), max_size=8)


@settings(max_examples=300, deadline=None)
@given(vector=VECTORS, norm=st.sampled_from(NORMS))
@example(vector=[(LEAST, 1.0), (LARGEST, 1.0)], norm="l2")
@example(vector=[(LEAST, 5e-324), (3, 1e300)], norm="l1")
@example(vector=[(LEAST, 2.0**63)], norm="l1")
@example(vector=[(3, 5.0), (4, 5.0)], norm="l2")
@example(vector=[(0, 1.0), (0, 0.0)], norm="l2")
@example(vector=[(7, 0.0), (1, 1e308)], norm="l1")
@example(vector=[], norm="l2")
def test_any_integers_are_clipped_to_norm_one_and_no_further(vector, norm):
    values = np.array([v for v, _ in vector], dtype=np.int64)
    units = np.array([u for _, u in vector], dtype=np.float64)
    check(values, units, norm)


@settings(max_examples=300, deadline=None)
@given(
    numbers=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6).filter(any),
    steps=st.integers(-3, 3),
    norm=st.sampled_from(NORMS),
)
def test_norms_within_a_few_roundings_of_one(numbers, steps, norm):
    values = np.array(numbers, dtype=np.int64)
    unit = float(np.linalg.norm(values.astype(np.float64), 1 if norm == "l1" else 2))
    for _ in range(abs(steps)):
        unit = np.nextafter(unit, np.inf if steps > 0 else 0)
    check(values, np.full(len(values), unit), norm)


def naive(values, units, norm):
    """The formula in floats, without a margin."""
    size = np.linalg.norm(values / units, 1 if norm == "l1" else 2)
    return np.trunc(values * min(1.0, 1.0 / size)).astype(np.int64)


@pytest.mark.parametrize("norm", NORMS)
def test_plain_floats_exceed_the_bound_where_this_does_not(norm):
    rng = np.random.default_rng(0)
    exceeded = 0
    for _ in range(200):
        values = rng.integers(-(2**62), 2**62, size=5)
        units = np.full(
            5, float(np.linalg.norm(values.astype(np.float64), norm == "l1" or 2))
        )
        exceeded += exact_norm(naive(values, units, norm), units, norm) > 1
        size = exact_norm(clip_to_units(values, units, norm), units, norm)
        assert_within(f"the clipped answer has the {norm} norm", size, most=1)
    assert_within("of 200 answers, naive floats exceed the norm in", exceeded, least=21)


# ---------------------------------------------------------------------- one record more


def length(values, norm):
    return (
        np.abs(values).sum(axis=-1)
        if norm == "l1"
        else np.sqrt((values**2).sum(axis=-1))
    )


def clipped_grid(parts, reach, together):
    """Return every vector of integers within reach, and what clipping makes of it.

    Parts are (units, norm) of the releases, whose words lie one after the other.
    """
    words = sum(len(units) for units, _ in parts)
    vectors = np.array(list(itertools.product(range(-reach, reach + 1), repeat=words)))
    after = np.zeros_like(vectors)
    for row, vector in enumerate(vectors):
        pieces = np.split(vector, np.cumsum([len(units) for units, _ in parts])[:-1])
        factors = [clip_factor(v, *part) for v, part in zip(pieces, parts, strict=True)]
        if together:
            factors = [min(factors)] * len(factors)
        after[row] = np.concatenate(
            [
                shortened(v, u, f)
                for v, (u, _), f in zip(pieces, parts, factors, strict=True)
            ]
        )
    return vectors, after


def worst_moves(parts, clips, reach, together=False):
    """Return by how much one record moves each release after clipping, over all integers."""
    vectors, after = clipped_grid(parts, reach, together)
    side, words = 2 * reach + 1, vectors.shape[1]
    cube = after.reshape(*(side,) * words, words)
    places = np.split(
        np.arange(words), np.cumsum([len(units) for units, _ in parts])[:-1]
    )
    rows = list(zip(places, parts, clips, strict=True))
    furthest = [int(u / clip) for _, (units, _), clip in rows for u in units]
    worst = [0.0] * len(parts)
    for move in itertools.product(*(range(-most, most + 1) for most in furthest)):
        change = np.array(move)
        if any(
            length(change[at] * clip / u, norm) > 1 + 1e-12
            for at, (u, norm), clip in rows
        ):
            continue
        here = tuple(slice(max(0, -c), side - max(0, c)) for c in move)
        there = tuple(slice(max(0, c), side - max(0, -c)) for c in move)
        moved = cube[there] - cube[here]
        for i, (at, (units, norm), _) in enumerate(rows):
            worst[i] = max(worst[i], length(moved[..., at] / units, norm).max())
    return worst


@pytest.mark.claim("guarantees", "35")
@pytest.mark.default_cases(
    "1.0-l1-0.5", "4.0-l2-1.0", "3.0-l2-2.0", "1.0-l1-3.5", "3.0-l1-10.0"
)
@pytest.mark.parametrize("clip", [0.5, 1.0, 2.0, 3.5, 10.0])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("unit", [1.0, 3.0, 4.0])
def test_one_record_moves_a_release_no_further_than_is_charged(norm, clip, unit):
    units = np.array([unit, unit]) * clip
    (worst,) = worst_moves([(units, norm)], [clip], reach=int(2.5 * unit * clip) + 3)
    bound = move_of_a_record(units, norm, 1 / clip)
    assert_within("what is charged for a record is", bound, most=2)
    # Attained, in all but the coarsest grids: one record beside none.
    least = 1 / clip if clip >= 1 and unit > 1 else 0
    assert_within(
        "one record moves the clipped answer by", worst, least=least, most=bound
    )


@pytest.mark.claim("guarantees", "35")
@pytest.mark.default_cases("values")
@pytest.mark.parametrize("norms", [("l2", "l2"), ("l2", "l1"), ("l1", "l1")])
@pytest.mark.parametrize("clips", [(2.0, 2.0), (1.0, 4.0)])
def test_one_factor_for_several_releases(norms, clips):
    units = [np.array([3.0, 3.0]) * clips[0], np.array([2.0]) * clips[1]]
    parts = list(zip(units, norms, strict=True))
    # One record is a step of either release: the first's in units of 3, the second's of
    # 2.
    scaled = worst_moves(parts, clips, 9, together=True)
    shared = max(1 / clip for clip in clips)
    for worst, (part, norm), clip in zip(scaled, parts, clips, strict=True):
        bound = move_of_a_record(part, norm, 1 / clip, shared)
        assert_within(
            "one record moves a release with a joint factor by", worst, most=bound
        )
    # More than the record itself: it changes the factor of the other release, too.
    furthest = max(worst * clip for worst, clip in zip(scaled, clips, strict=True))
    assert_within(
        "the most that one record moves a release is", furthest, least=1.2, strict=True
    )


def test_one_factor_shortens_all_releases_of_a_client_and_its_means_stay():
    algorithm = HDPEMeansAlgorithm.planned(
        2,
        Ball(1.0, [0.0] * 20),
        PrivacyBudget(1.0, 1e-6, unit="client"),
        n_records=1000,
        n_clients=50,
        n_vote_rounds=1,
    )
    record = np.arange(-10, 10) * 1000  # less than half as long as the radius
    records = GridRecords.from_grid(np.repeat(record[None], 500, axis=0), 16)
    centers = np.zeros((2, 16), dtype=np.int64)
    centers[1] = 1000
    found = answer_of(algorithm, Query(2, {"centers": centers}), records).blocks
    counts, sums = found["counts"] / 2**16, found["sums"]
    assert 19.9 < counts.max() < 20.0
    np.testing.assert_allclose(sums[counts.argmax()] / counts.max(), record, atol=1)
