"""A life in a context's memory: nothing is lost, nothing meets, nothing secret stays."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st

from flower_kmeans.algorithms.base import State
from flower_kmeans.federation.life import Life, load_life, save_life
from flower_kmeans.federation.transcript import first_hash

DOC = b"d" * 32

_bytes = st.binary(max_size=40)
_answers = st.dictionaries(
    st.tuples(st.integers(1, 2**32 - 1), st.integers(1, 3)),
    st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32)),
    max_size=4,
)
_arrays = st.dictionaries(
    st.sampled_from(["centroids", "counts", "a.b"]),
    st.tuples(st.integers(0, 4), st.integers(1, 3)).flatmap(
        lambda shape: st.lists(
            st.integers(-(2**63), 2**63 - 1),
            min_size=shape[0] * shape[1],
            max_size=shape[0] * shape[1],
        ).map(lambda values: np.array(values, dtype=np.int64).reshape(shape))
    ),
    max_size=3,
)


def through_flower(state):
    """Return a memory as another process would read it."""
    return recorddict_from_proto(recorddict_to_proto(state))


@given(
    _bytes,
    _bytes,
    _bytes,
    st.integers(-1, 2**32 - 1),
    st.integers(0, 1000),
    _answers,
    st.none() | st.builds(State, st.integers(0, 1000), _arrays),
)
def test_what_is_saved_is_what_is_loaded(secret, key, document, index, head, answered, state):
    life = Life(
        secret=secret,
        chain=b"c" * 32,
        group_key=key,
        document=document,
        index=index,
        head=head,
        answered=answered,
        state=state,
    )
    memory = RecordDict()
    save_life(memory, DOC, life)
    loaded = load_life(through_flower(memory), DOC)
    for name in ("secret", "chain", "group_key", "document", "index", "head", "answered"):
        assert getattr(loaded, name) == getattr(life, name)
    assert (loaded.state is None) == (state is None)
    if state is not None:
        assert loaded.state.round == state.round
        assert set(loaded.state.arrays) == set(state.arrays)
        for name, array in state.arrays.items():
            np.testing.assert_array_equal(loaded.state.arrays[name], array)
            assert loaded.state.arrays[name].dtype == np.int64


def test_every_field_survives():
    values = {name: name.encode() for name in ("commitment", "exchange_secret", "lead_secret")}
    values |= {"last_context": b"x" * 32, "last_survivors": b"\x05", "last_m": 3, "finished": 1}
    memory = RecordDict()
    save_life(memory, DOC, Life(secret=b"s", chain=b"c", **values))
    loaded = load_life(through_flower(memory), DOC)
    assert {name: getattr(loaded, name) for name in values} == values


def test_no_life_is_none():
    assert load_life(RecordDict(), DOC) is None
    other = RecordDict()
    save_life(other, b"e" * 32, Life.begin(b"e" * 32))
    assert load_life(other, DOC) is None


def test_runs_and_other_records_of_a_context_do_not_meet():
    memory = RecordDict({"mine": ConfigRecord({"a": 1})})
    lives = {doc: Life.begin(doc) for doc in (b"a" * 32, b"b" * 32)}
    for doc, life in lives.items():
        save_life(memory, doc, life)
    assert dict(memory["mine"]) == {"a": 1}
    for doc, life in lives.items():
        assert load_life(memory, doc).secret == life.secret


def test_saving_replaces_all_of_the_former_life():
    memory = RecordDict()
    former = Life.begin(DOC)
    former.answered[1, 1] = (b"c" * 32, b"d" * 32)
    former.state = State(1, {"centroids": np.ones((2, 2), dtype=np.int64)})
    save_life(memory, DOC, former)
    save_life(memory, DOC, Life.begin(DOC))
    loaded = load_life(memory, DOC)
    assert not loaded.answered
    assert loaded.state is None


def test_every_life_has_its_own_secret_and_starts_at_the_first_hash():
    lives = [Life.begin(DOC) for _ in range(20)]
    assert len({life.secret for life in lives}) == 20
    assert {len(life.secret) for life in lives} == {32}
    assert {life.chain for life in lives} == {first_hash(DOC)}
    assert {(life.index, life.head, life.finished) for life in lives} == {(-1, 0, 0)}


@pytest.mark.parametrize(
    ("t", "context", "known"),
    [(2, b"b", True), (2, b"a", False), (1, b"a", True), (1, b"b", False), (3, b"b", False)],
)
def test_an_answered_context_is_known_by_its_round(t, context, known):
    life = Life.begin(DOC)
    life.answered = {(1, 1): (b"a", b""), (2, 1): (b"x", b""), (2, 2): (b"b", b"")}
    assert life.answered_context(t, context) is known


def test_forgetting_keeps_the_rounds_from_the_head_on():
    life = Life.begin(DOC)
    life.answered = {(t, a): (b"", b"") for t in (1, 2, 3) for a in (1, 2)}
    life.forget_before(2)
    assert sorted(life.answered) == [(2, 1), (2, 2), (3, 1), (3, 2)]


def test_a_finished_life_keeps_nothing_but_that():
    life = Life.begin(DOC)
    life.group_key = life.exchange_secret = life.lead_secret = b"k" * 32
    life.document, life.head, life.index = b"{}", 7, 3
    life.answered[7, 1] = (b"c" * 32, b"d" * 32)
    life.state = State(7, {"centroids": np.ones((2, 2), dtype=np.int64)})
    life.finish()
    memory = RecordDict()
    save_life(memory, DOC, life)
    (record,) = memory.config_records.values()
    left = {name: value for name, value in record.items() if value not in (b"", 0, [])}
    assert left == {"finished": 1, "head": 7, "index": -1}


def test_a_state_that_would_lose_something_is_not_saved():
    life = Life(secret=b"s", chain=b"c" * 32, state=State(1, {"counts": np.array([0.5])}))
    with pytest.raises(TypeError, match=r"'counts' of a state as int64\. Got float64"):
        save_life(RecordDict(), DOC, life)
