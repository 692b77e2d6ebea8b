"""What all secure sums share, and the sum without protection."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.secagg.base import (
    SECURE_SUMS,
    PartError,
    SumContext,
    SumError,
    secure_sum,
)

PLAIN = secure_sum("plain")
EVERYONE = np.ones(3, dtype=bool)
vectors = st.lists(
    st.lists(st.integers(-(2**60), 2**60), min_size=4, max_size=4), max_size=5
)


def test_importing_the_package_registers_three_sums():
    assert set(SECURE_SUMS) == {"masks", "plain", "shares"}
    assert [
        SECURE_SUMS[name].is_protected for name in ("masks", "plain", "shares")
    ] == [1, 0, 1]
    assert [
        SECURE_SUMS[name].by_committee for name in ("masks", "plain", "shares")
    ] == [0, 0, 1]
    with pytest.raises(
        ConfigurationError, match=r"\['masks', 'plain', 'shares'\].*'sums'"
    ):
        secure_sum("sums")


@pytest.mark.parametrize("name", ["masks", "plain"])
def test_sums_without_a_committee_have_one_part_of_eight_bytes_a_word(name):
    total = secure_sum(name)
    assert total.set_up(10, 1, 1) is None
    assert total.part_bytes(7, None) == 56
    context = SumContext(bytes(32), 7, 3, group_key=bytes(32))
    parts = total.protect(np.arange(7), context, 0, bytes(32))
    assert [len(part) for part in parts] == [56]


@given(vectors)
@settings(deadline=None)
def test_plain_words_add_up(values):
    context = SumContext(bytes(32), 4, 3)
    parts = [
        PLAIN.protect(np.array(v, dtype=np.int64), context, 0, b"")[0] for v in values
    ]
    assert parts == [PLAIN.encode(np.array(v, dtype=np.int64)) for v in values]
    opened = PLAIN.reconstruct({0: PLAIN.combine(parts, context)}, EVERYONE, context)
    assert opened.vector.tolist() == [sum(v[i] for v in values) for i in range(4)]


@pytest.mark.parametrize("name", ["masks", "plain"])
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4))
@settings(deadline=None)
def test_malformed_parts_are_named(name, parts):
    total = secure_sum(name)
    context = SumContext(bytes(32), 2, 3, group_key=bytes(32))
    wrong = [i for i, part in enumerate(parts) if len(part) != 16]
    if wrong:
        with pytest.raises(PartError) as caught:
            total.combine(parts, context)
        assert caught.value.index == wrong[0]
    else:
        assert len(total.combine(parts, context)) == 16
    for combined in ({}, *({0: parts[i]} for i in wrong)):
        with pytest.raises(SumError):
            total.reconstruct(combined, EVERYONE, context)
