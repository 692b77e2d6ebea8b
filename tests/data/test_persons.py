"""Ids of persons, and the weights that follow from how many records each has."""

import itertools
import uuid
from collections import Counter
from datetime import date
from decimal import Decimal
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.data import persons
from flower_kmeans.data.persons import (
    Tally,
    above,
    count_at,
    counts_of,
    keys_of,
    known,
    merged,
    person_weights,
    room_of,
)
from flower_kmeans.errors import ConfigurationTypeError, DataError

SECRET = bytes(range(32))
NOBODY = merged([])


def weights_of(ids, usable=None, full_weight=64, n_clients=1):
    """Return the weights of the records of a client, in one block."""
    found = keys_of(ids, SECRET)
    usable = np.ones(len(found.keys), bool) if usable is None else np.array(usable)
    totals = counts_of(found, usable)
    room = room_of(full_weight, n_clients)
    return person_weights(found, usable, totals, NOBODY, room)


def groups_of(ids):
    """Return which records have one person, as numbers in order of appearance."""
    found = keys_of(ids, SECRET)
    numbers, fresh = {}, itertools.count()
    groups = []
    for key, is_missing in zip(found.keys.tolist(), found.is_missing, strict=True):
        groups.append(next(fresh) if is_missing else numbers.setdefault(key, None))
        if groups[-1] is None:
            groups[-1] = numbers[key] = next(fresh)
    return groups


# ------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    ("ids", "groups"),
    [
        (["a", "b", "a"], [0, 1, 0]),
        ([" a", "a\t", "A"], [0, 0, 1]),
        (["7", "007", 7, 7.0, "7.0"], [0, 1, 0, 0, 2]),
        # Python's own hash does not tell these apart.
        ([-1, -2], [0, 1]),
        ([1, True, 1.0, np.int8(1), np.True_], [0, 1, 0, 0, 1]),
        ([b"a", "a", np.bytes_(b"a"), np.str_("a ")], [0, 0, 0, 0]),
        ([1.5, "1.5", np.float32(1.5), Decimal("1.5")], [0, 0, 0, 0]),
        ([0.0, -0.0, "0"], [0, 0, 0]),
        ([float("inf"), -float("inf"), "inf"], [0, 1, 0]),
        ([2**70, str(2**70)], [0, 0]),
        ([2.0**53 - 1, 2**53 - 1, -(2.0**53 - 1)], [0, 0, 1]),
        ([(1, "a"), (1, "b"), (1, "a")], [0, 1, 0]),
        ([uuid.UUID(int=1), uuid.UUID(int=2), str(uuid.UUID(int=1))], [0, 1, 0]),
        ([date(2024, 1, 2), "2024-01-02"], [0, 0]),
        (["\udc80", b"\x80", "\udc81"], [0, 0, 1]),
        # Texts that only say that there is no value are one person.
        (["unknown", "unknown", "NULL", "NULL"], [0, 0, 1, 1]),
    ],
)
def test_an_id_is_its_text(ids, groups):
    assert groups_of(ids) == groups


def missing_values():
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    return [
        *(None, float("nan"), np.nan, np.float32("nan"), "", "  ", b" ", np.ma.masked),
        *(np.datetime64("NaT"), Decimal("NaN"), pandas.NA, pandas.NaT),
        *pyarrow.array([None, 1]).to_pylist()[:1],
    ]


def test_each_record_with_a_missing_id_is_a_person_of_its_own():
    ids = [*missing_values(), "a", "a"]
    found = keys_of(ids, SECRET)
    assert found.is_missing.tolist() == [True] * (len(ids) - 2) + [False] * 2
    assert weights_of(ids).tolist() == [64] * (len(ids) - 2) + [32] * 2


def columns_of(ids):
    """Yield a column of text in the types that tables have."""
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    yield tuple(ids)
    yield (one for one in ids)
    yield np.array(ids)
    yield np.array(ids, dtype=object)
    yield pandas.Series(ids)
    yield pandas.Series(ids, dtype="string")
    yield pandas.Series(ids, dtype="category")
    yield polars.Series(ids)
    yield pyarrow.array(ids)
    yield pyarrow.chunked_array([ids[:1], ids[1:]])
    yield pyarrow.array(ids).dictionary_encode()


def test_columns_of_all_libraries_are_the_same_ids():
    ids = ["b", "a", "b", "c", "b"]
    expected = keys_of(ids, SECRET)
    for column in columns_of(ids):
        found = keys_of(column, SECRET)
        np.testing.assert_array_equal(found.keys, expected.keys)
        assert not found.is_missing.any()


def test_a_column_of_numbers_with_gaps_is_read_as_integers():
    pandas = pytest.importorskip("pandas")
    gaps = pandas.Series([3, None, 12, 3])
    assert gaps.dtype == np.float64
    assert groups_of(gaps) == groups_of(["3", None, "12", "3"]) == [0, 1, 2, 0]
    assert groups_of(gaps.astype("Int64")) == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("one", "digits"),
    [
        (2.0**53, 53),
        (-(2.0**53), 53),
        (1e300, 53),
        (np.float32(2**24), 24),
        (np.float16(2**11), 11),
    ],
)
def test_a_float_that_has_lost_digits_is_refused(one, digits):
    with pytest.raises(DataError, match=rf"a float of at least 2\^{digits}") as error:
        keys_of(["a", one], SECRET)
    assert str(int(one)) not in str(error.value)


def not_ids():
    pandas = pytest.importorskip("pandas")
    return [
        ("patient", "str"),
        (b"patient", "bytes"),
        ({"a": 1}, "dict"),
        ({"a", "b"}, "set"),
        (np.zeros((2, 1)), "ndarray"),
        (pandas.DataFrame({"id": [1, 2]}), "DataFrame"),
        (7, "int"),
        (None, "NoneType"),
        ([["a"], ["b"]], "list"),
        ([np.zeros(2)], "ndarray"),
        ([object(), object()], "object"),
        # Their text is an address, which differs for equal values.
        ([lambda: 0], "function"),
    ]


def test_other_objects_are_refused_by_type():
    for ids, kind in not_ids():
        with pytest.raises(ConfigurationTypeError, match=rf"Got {kind}\."):
            keys_of(ids, SECRET)


def test_equal_values_are_one_person():
    decimals = [Decimal("1"), Decimal("1.0"), Decimal("1E0"), 1, "1"]
    assert groups_of(decimals) == [0] * 5
    assert groups_of([Decimal("1.50"), Decimal("1.5"), "1.5"]) == [0] * 3
    assert groups_of([memoryview(b"one"), b"one", bytearray(b"one"), "one"]) == [0] * 4
    assert groups_of([("a", 1), ("a", 1.0), ("a", "1")]) == [0] * 3
    assert groups_of([("a", "b,c"), ("a,b", "c"), ("a", "b", "c")]) == [0, 1, 2]


def test_missing_values_of_more_types_are_missing():
    pyarrow = pytest.importorskip("pyarrow")
    ids = [np.timedelta64("NaT"), pyarrow.scalar(None), Decimal("NaN"), "a"]
    assert keys_of(ids, SECRET).is_missing.tolist() == [True, True, True, False]
    masked = np.ma.masked_array([1, 2, 1], [False, True, False])
    expected = [False, True, False]
    assert keys_of(masked, SECRET).is_missing.tolist() == expected
    assert known(masked, SECRET).persons.is_missing.tolist() == expected


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, "U3", object])
def test_persons_of_a_simulation_are_the_same_persons(dtype):
    ids = np.array([7, 3, 7, 200, 3], dtype=np.int64).astype(dtype)
    hashed = keys_of(ids, SECRET)
    numbered = known(ids, SECRET).persons
    usable = np.array([True, True, True, True, False])
    found = []
    for each in (hashed, numbered):
        totals = counts_of(each, usable)
        found.append(person_weights(each, usable, totals, NOBODY, 64).tolist())
    assert found[0] == found[1] == [32, 64, 32, 64, 0]


def test_keys_depend_on_the_secret_and_are_16_bytes():
    found = keys_of(["a", "b"], SECRET)
    other = keys_of(["a", "b"], bytes(32))
    assert found.keys.dtype == np.dtype("S16")
    assert not np.isin(found.keys, other.keys).any()
    counts = counts_of(found, np.ones(2, bool))
    assert counts.keys.nbytes + counts.counts.nbytes == 2 * 24


def test_ids_in_portions_have_the_same_keys():
    ids = [str(i % 7) for i in range(25)]
    whole = keys_of(ids, SECRET)
    with mock.patch.object(persons, "_AT_ONCE", 4):
        parts = keys_of(iter(ids), SECRET)
    np.testing.assert_array_equal(whole.keys, parts.keys)
    assert len(keys_of([], SECRET).keys) == len(keys_of([], SECRET).is_missing) == 0


# ---------------------------------------------------------------------------- weights


@pytest.mark.claim("guarantees", "46")
@pytest.mark.parametrize("n_clients", [1, 3, 64])
@pytest.mark.parametrize("c", [1, 2, 3, 5, 63, 64, 65, 200])
def test_the_records_of_a_person_weigh_at_most_w_together(c, n_clients):
    """Records of others in between, and null records of all, change nothing."""
    room = 64 // n_clients
    rng = np.random.default_rng(c)
    ids = rng.permutation(["x"] * (c + 4) + ["y"] * 9 + ["z"])
    usable = np.ones(len(ids), bool)
    usable[rng.choice(np.flatnonzero(ids == "x"), 4, replace=False)] = False
    found = weights_of(ids, usable, n_clients=n_clients)
    own = found[(ids == "x") & usable]
    assert own.sum() <= room
    assert not found[~usable].any()
    if c <= room:
        assert set(own) == {room // c}
    else:
        assert own.tolist() == [1] * room + [0] * (c - room)
    alone = weights_of(["x"] * c, n_clients=n_clients)
    np.testing.assert_array_equal(own, alone)


IDS = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40)


@settings(deadline=None, max_examples=60)
@given(IDS, st.data())
def test_weights_are_those_of_any_division_into_blocks(ids, data):
    """As Ray has them: counts of all blocks are added, and earlier blocks go first."""
    room = data.draw(st.integers(1, 8))
    usable = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))), bool
    )
    ends = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    blocks = np.split(np.arange(len(ids)), ends)
    keys = [keys_of([ids[i] for i in block], SECRET) for block in blocks]
    counts = [
        counts_of(each, usable[block]) for each, block in zip(keys, blocks, strict=True)
    ]
    tally = Tally()
    for each in counts:
        tally.add(each)
    totals = tally.total()
    found, before = [], NOBODY
    for each, own, block in zip(keys, counts, blocks, strict=True):
        found.append(person_weights(each, usable[block], totals, before, room))
        before = merged([before, own])
    whole = keys_of(ids, SECRET)
    expected = person_weights(whole, usable, counts_of(whole, usable), NOBODY, room)
    np.testing.assert_array_equal(np.concatenate(found), expected)
    per_person = Counter(
        dict(zip(totals.keys.tolist(), totals.counts.tolist(), strict=True))
    )
    expected_counts = Counter(
        key
        for key, is_missing, counted in zip(
            whole.keys.tolist(), whole.is_missing, usable, strict=True
        )
        if counted and not is_missing
    )
    assert per_person == expected_counts


def test_counts_can_be_looked_up_and_selected():
    found = keys_of(["a", "b", "a", "c", "a"], SECRET)
    counts = counts_of(found, np.ones(5, bool))
    assert count_at(counts, found.keys).tolist() == [3, 1, 3, 1, 3]
    other = keys_of(["d"], SECRET).keys
    assert count_at(counts, other).tolist() == [0]
    assert count_at(NOBODY, other).tolist() == [0]
    assert above(counts, 1).counts.tolist() == [3]
    assert above(counts, 3).counts.tolist() == []
