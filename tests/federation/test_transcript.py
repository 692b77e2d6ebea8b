"""Entries, contexts and their chain."""

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import MessageError
from flower_kmeans.federation.transcript import (
    EMPTY_QUESTION_HASH,
    Entry,
    next_hash,
    pack_survivors,
    pack_words,
    question_hash,
    round_context,
    unpack_survivors,
    unpack_words,
)

A, B, C = bytes(32), b"\1" * 32, b"\2" * 32


def an_entry(survivors=(1, 0, 1), words=(5, 2**64 - 1), **changes):
    values = {"t": 1, "attempt": 2, "m": len(survivors), "root": A, "question_hash": B} | changes
    return Entry(
        survivors=np.array(survivors, dtype=bool), words=np.array(words, dtype=np.uint64), **values
    )


entries = st.builds(
    an_entry,
    survivors=st.lists(st.booleans(), min_size=1, max_size=40),
    words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
    t=st.integers(1, 2**32 - 1),
    attempt=st.integers(1, 3),
)


def test_the_part_that_answered_is_of_all_places():
    assert an_entry(survivors=(1, 0, 1, 1)).answered == 0.75
    assert an_entry(survivors=(1, 1)).answered == 1.0


@given(entries)
@settings(deadline=None)
def test_entries_survive_the_wire(entry):
    data = entry.pack()
    assert len(data) == 76 + (entry.m + 7) // 8 + 8 * len(entry.words)
    back = Entry.unpack(data)
    assert (back.t, back.attempt, back.m) == (entry.t, entry.attempt, entry.m)
    assert (back.root, back.question_hash) == (entry.root, entry.question_hash)
    assert np.array_equal(back.survivors, entry.survivors)
    assert back.survivors.dtype == bool
    assert np.array_equal(back.words, entry.words)
    assert back.words.dtype == np.uint64
    assert back.n_survivors == sum(entry.survivors.tolist())
    assert back.pack() == data


@given(st.binary(max_size=120))
@settings(deadline=None)
@example(struct.pack("<III", 1, 1, 2**32 - 1) + bytes(100))
def test_arbitrary_bytes_are_an_entry_or_a_message_error(data):
    try:
        entry = Entry.unpack(data)
    except MessageError:
        return
    assert entry.pack() == data


@pytest.mark.parametrize("cut", [0, 10, 75, 76, 77, 84, -1, -7])
def test_short_entries_are_refused(cut):
    with pytest.raises(MessageError):
        Entry.unpack(an_entry().pack()[:cut])


@pytest.mark.parametrize("field", [0, 4, 8])
def test_numbers_start_at_one(field):
    data = an_entry().pack()
    with pytest.raises(MessageError):
        Entry.unpack(data[:field] + bytes(4) + data[field + 4 :])


def test_stray_bits_are_refused():
    data = bytearray(an_entry().pack())
    data[76] |= 0b1000  # a fourth member of three
    with pytest.raises(MessageError):
        Entry.unpack(bytes(data))


@given(st.lists(st.booleans(), min_size=1, max_size=70))
@settings(deadline=None)
def test_bitmaps(survivors):
    bitmap = pack_survivors(np.array(survivors))
    value = int.from_bytes(bitmap, "little")
    assert [bool(value >> i & 1) for i in range(len(survivors))] == survivors
    assert unpack_survivors(bitmap, len(survivors)).tolist() == survivors
    with pytest.raises(MessageError):
        unpack_survivors(bitmap + b"\0", len(survivors))


def test_words_have_the_required_length():
    data = pack_words(np.array([1, 2**63], dtype=np.uint64))
    assert data == struct.pack("<QQ", 1, 2**63)
    assert unpack_words(data, 2).tolist() == [1, 2**63]
    for wrong, length in ((data, 3), (data[:-1], None), (b"", 1)):
        with pytest.raises(MessageError):
            unpack_words(wrong, length)


def test_context_depends_on_every_part():
    base = (A, 1, 1, 3, A, A, EMPTY_QUESTION_HASH)
    other = (B, 2, 2, 4, B, B, B)
    contexts = {round_context(*base)}
    for i in range(len(base)):
        contexts.add(round_context(*base[:i], other[i], *base[i + 1 :]))
    assert len(contexts) == 1 + len(base)
    assert question_hash() == EMPTY_QUESTION_HASH != question_hash(b"?")


def test_chain_depends_on_every_part():
    base = an_entry()
    hashes = {
        next_hash(A, B, base),
        next_hash(C, B, base),
        next_hash(A, C, base),
        next_hash(A, B, an_entry(survivors=(1, 1, 1))),
        next_hash(A, B, an_entry(words=(5, 2**64 - 2))),
    }
    assert len(hashes) == 5
    # The rest of an entry enters through the context.
    contexts = {
        entry.context(A, A)
        for entry in (
            base,
            an_entry(t=2),
            an_entry(attempt=1),
            an_entry(survivors=(1, 0, 1, 0)),
            an_entry(root=B),
            an_entry(question_hash=A),
        )
    }
    assert len(contexts) == 6
