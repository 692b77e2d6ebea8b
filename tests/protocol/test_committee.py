"""Committees: who is in them, how many may be corrupt, and the list that travels."""

import math
from fractions import Fraction

import numpy as np
import pytest
from harness import memory_below
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.protocol import committee as committees
from flower_kmeans.protocol.committee import (
    MAX_POSITIONS,
    Committee,
    corrupt_positions,
    drawn,
)
from flower_kmeans.protocol.run import EPOCHS
from flower_kmeans.secagg.base import Sharing, secure_sum
from flower_kmeans.secagg.primitives import H, u32

SHARES, MASKS = secure_sum("shares"), secure_sum("masks")


def keys_of(n):
    return tuple(H(b"p", u32(i)) for i in range(n))


def committee_of(n_slots=7, absent=(), max_colluders=1):
    keys = tuple(b"" if i in absent else key for i, key in enumerate(keys_of(n_slots)))
    return Committee(tuple(range(n_slots)), keys, n_slots, max_colluders)


# -------------------------------------------------------------------- corrupt positions


def chance_of_more(n_slots, colluders, corrupt):
    """Return the probability that a random committee of 64 has more than ``corrupt`` colluders."""
    ways = sum(
        math.comb(colluders, x) * math.comb(n_slots - colluders, MAX_POSITIONS - x)
        for x in range(corrupt + 1, min(MAX_POSITIONS, colluders) + 1)
    )
    return Fraction(ways, math.comb(n_slots, MAX_POSITIONS))


@pytest.mark.claim("guarantees", "39")
@given(st.integers(65, 3000), st.floats(0, 0.6))
@settings(max_examples=40, deadline=None)
def test_corrupt_positions_are_the_least_with_an_exact_bound(n_slots, fraction):
    colluders = max(1, int(fraction * n_slots))
    found = corrupt_positions(n_slots, colluders)
    assert EPOCHS * chance_of_more(n_slots, colluders, found) <= Fraction(1, 2**40)
    if found > 1:
        assert EPOCHS * chance_of_more(n_slots, colluders, found - 1) > Fraction(
            1, 2**40
        )


def test_all_colluders_may_be_in_a_committee_of_all():
    found = [
        corrupt_positions(n, c)
        for n, c in ((8, 7), (20, 7), (64, 7), (65, 7), (10**5, 1))
    ]
    assert found == [7, 7, 7, 7, 1]


def test_a_committee_that_may_be_wholly_corrupt_is_refused():
    for colluders in (999, 1000, 5000):
        assert corrupt_positions(1000, colluders) == MAX_POSITIONS
        committee = Committee(tuple(range(64)), keys_of(64), 1000, colluders)
        with pytest.raises(ConfigurationError, match="corrupt"):
            committee.sharing(SHARES)


# ------------------------------------------------------------------------------ drawing


@pytest.mark.claim("threat-model", "9")
def test_a_drawn_committee_depends_on_keys_beacon_and_epoch():
    keys = keys_of(200)
    found = {
        drawn(keys, beacon, epoch) for beacon in (b"a", b"b") for epoch in range(4)
    }
    found.add(drawn((*keys[:-1], bytes(32)), b"a", 0))
    assert len(found) == 9
    for slots in found:
        assert len(slots) == len(set(slots)) == MAX_POSITIONS
        assert list(slots) == sorted(slots)
        assert 0 <= slots[0] <= slots[-1] < 200
    rosters = (keys, b"a"), (keys, b"b"), (keys[::-1], b"a")
    assert len({committees.roster_digest(*roster) for roster in rosters}) == 3


@pytest.mark.claim("guarantees", "39")
def test_every_slot_is_drawn_equally_often():
    """40 epochs of 80 slots: each is drawn 32 times on average, standard deviation 2.5."""
    counts = np.bincount(
        [slot for e in range(40) for slot in drawn(keys_of(80), b"beacon", e)]
    )
    assert sum(counts) == 40 * MAX_POSITIONS
    assert 32 - 6 * 2.6 < min(counts) <= max(counts) < 32 + 6 * 2.6


def test_the_order_of_slots_on_the_roster_does_not_choose_who_is_drawn():
    keys = keys_of(100)
    digest = committees.roster_digest(keys, b"")
    order = sorted(keys, key=lambda key: H(b"committee", digest, u32(3), key))
    assert {keys[slot] for slot in drawn(keys, b"", 3)} == set(order[:MAX_POSITIONS])


# ----------------------------------------------------------------------------- the list


@st.composite
def lists(draw):
    n_slots = draw(st.integers(1, 300))
    slots = draw(
        st.sets(st.integers(0, n_slots - 1), min_size=1, max_size=MAX_POSITIONS)
    )
    keys = draw(st.permutations(keys_of(len(slots))))
    present = draw(st.lists(st.booleans(), min_size=len(slots), max_size=len(slots)))
    public = tuple(
        key if there else b"" for key, there in zip(keys, present, strict=True)
    )
    return Committee(tuple(sorted(slots)), public, n_slots, 1)


@given(lists())
@settings(deadline=None)
def test_a_committee_travels_as_its_list(committee):
    data = committee.encode()
    assert len(data) == 36 * len(committee.slots)
    assert Committee.decode(data, committee.n_slots, 1) == committee
    positions = range(len(committee.slots))
    assert [committee.positions[slot] for slot in committee.slots] == list(positions)
    assert committee.n_slots not in committee.positions
    assert committee.present == tuple(j for j in positions if committee.public_keys[j])


@given(st.binary(max_size=36 * 4), st.integers(1, 2**33))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_list_in_its_one_encoding_or_malformed(data, n_slots):
    try:
        committee = Committee.decode(data, n_slots, 1)
    except MessageError:
        return
    assert committee.encode() == data


def rows(*pairs):
    return b"".join(u32(slot) + key for slot, key in pairs)


A, B = keys_of(2)
MALFORMED = {
    "empty": b"",
    "short": rows((0, A))[:-1],
    "long": rows((0, A)) + b"\0",
    "order": rows((1, A), (0, B)),
    "twice": rows((1, A), (1, B)),
    "one key": rows((0, A), (1, A)),
    "outside": rows((0, A), (99, B)),
    "65": rows(*((i, bytes(32)) for i in range(65))),
    "very long": bytes(36 * 2**16),
}


@pytest.mark.claim("threat-model", "8")
@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_lists_are_refused_before_they_are_read(data):
    with memory_below(2**16), pytest.raises(MessageError):
        Committee.decode(data, 99, 1)


# --------------------------------------------------------------------------- thresholds


def test_absent_members_cost_packing_and_never_privacy():
    assert committee_of(7).sharing(SHARES) == Sharing(7, 1, 5, 1)
    assert committee_of(12).sharing(SHARES) == Sharing(12, 1, 8, 2)
    for absent in ((3,), (3, 5, 6)):
        assert committee_of(12, absent).sharing(SHARES) == Sharing(12, 1, 8, 1)
    few = committee_of(12, (3, 5, 6, 7))
    with pytest.raises(ConfigurationError, match="committee members"):
        few.sharing(SHARES)
    assert few.sharing(MASKS) is None


def test_the_digest_names_list_and_thresholds():
    committee = committee_of(12)
    numbers = u32(1), u32(8), u32(2)
    assert committee.digest == H(b"committee keys", *numbers, committee.encode())
    few = committee_of(12, (3, 5, 6, 7))  # sums by masks go on
    assert few.digest == H(b"committee keys", u32(1), u32(0), u32(0), few.encode())
    others = [
        committee_of(12, (2,)),
        committee_of(11),
        committee_of(12, max_colluders=2),
    ]
    assert len({c.digest for c in (committee, few, *others)}) == 5


def test_an_entry_says_how_its_round_was_packed():
    announced = committees.announced_sharing
    assert announced(SHARES, 12, 1, 2) == committee_of(12).sharing(SHARES)
    assert announced(SHARES, 12, 1, 1) == committee_of(12, (0, 1)).sharing(SHARES)
    assert announced(SHARES, 1000, 20, 8) == Sharing(64, 14, 47, 8)
    assert announced(MASKS, 12, 1, 0) is None
    for numbers in ((12, 1, 0), (12, 1, 13), (1, 1, 1), (1000, 999, 1)):
        with pytest.raises(MessageError):
            announced(SHARES, *numbers)
