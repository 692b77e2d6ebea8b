"""Rows in the same order at every party."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.vertical.align import align_rows, ids_digest

pytestmark = pytest.mark.claim("threat-model", "V14")

KEY = bytes(range(16))


@given(st.lists(st.text(), unique=True), st.randoms(use_true_random=False))
def test_equal_sets_of_ids_give_equal_orders(ids, random):
    other = list(ids)
    random.shuffle(other)
    first = [ids[i] for i in align_rows(ids, KEY)]
    assert first == [other[i] for i in align_rows(other, KEY)]
    assert sorted(first) == sorted(ids)


def test_another_key_gives_another_order():
    orders = [align_rows(range(100), bytes([i]) * 16).tolist() for i in range(20)]
    assert len(set(map(tuple, orders))) == 20


def test_the_key_may_lie_in_a_file(tmp_path):
    path = tmp_path / "rows.key"
    path.write_bytes(KEY)
    for each in (path, str(path)):
        assert (align_rows([3, 1, 2], each) == align_rows(["3", "1", "2"], KEY)).all()


@pytest.mark.parametrize(
    ("error", "match", "ids", "key"),
    [
        (ConfigurationError, "key", [1, 2], b"short"),
        (ConfigurationError, "key", [1, 2], "/nowhere/at/all"),
        (DataError, "twice", ["secret-a", "b", "secret-a"], KEY),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_no_id(error, match, ids, key):
    with pytest.raises(error, match=match) as caught:
        align_rows(ids, key)
    assert "secret" not in str(caught.value)


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_digests_are_equal_for_equal_lists_only(first, second):
    assert (ids_digest(first) == ids_digest(second)) == (first == second)
