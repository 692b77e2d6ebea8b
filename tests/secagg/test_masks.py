"""Masks: exact sums for whoever has the key, uniform words for whoever has not."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saying import assert_within

from flower_kmeans.secagg import masks
from flower_kmeans.secagg.base import SumContext, secure_sum
from flower_kmeans.secagg.masks import correction, mask

pytestmark = [
    pytest.mark.claim("how-sums-work", "masks-shares-do-not"),
    pytest.mark.claim("guarantees", "37"),
]

KEY = bytes(range(32))
G_STREAM = 2**64 - 1
SUM = secure_sum("masks")

cohorts = st.integers(1, 40).flatmap(
    lambda m: st.lists(st.booleans(), min_size=m, max_size=m).map(np.array)
)


@given(cohorts, st.integers(1, 9), st.binary(min_size=32, max_size=32))
@settings(deadline=None)
def test_correction_is_the_sum_of_the_survivors_masks(survivors, length, key):
    m = len(survivors)
    expected = np.zeros(length, dtype=np.uint64)
    for i in np.flatnonzero(survivors):
        expected += mask(key, int(i), m, length)
    assert np.array_equal(correction(key, survivors, length), expected)


@given(cohorts, st.binary(min_size=32, max_size=32), st.data())
@settings(max_examples=50, deadline=None)
def test_opened_sum_is_the_plain_integer_sum(survivors, digest, data):
    m, length = len(survivors), 5
    # so that the exact sum fits, whichever clients survive
    bound = (SUM.limit - 1) // m
    word = st.integers(-bound, bound)
    plain = [
        data.draw(st.lists(word, min_size=length, max_size=length)) for _ in range(m)
    ]
    context = SumContext(digest, length, m, group_key=KEY)
    chosen = np.flatnonzero(survivors).tolist()
    parts = [SUM.protect(np.array(plain[i], np.int64), context, i, b"") for i in chosen]
    assert all(len(part) == 1 for part in parts)
    combined = SUM.combine([part for (part,) in parts], context)
    opened = SUM.reconstruct({0: combined}, survivors, context)
    assert opened.vector.tolist() == [
        sum(plain[i][w] for i in chosen) for w in range(length)
    ]
    assert opened.liars == ()


@pytest.mark.claim("threat-model", "1")
@pytest.mark.parametrize(
    ("m", "bits"), [(1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (5, 1)]
)
def test_masks_are_uniform_over_a_small_ring(m, bits, monkeypatch):
    """Over all F and G of a ring of 2^bits, every tuple of masks comes equally often.

    Multiples of 2^(64 - bits) are that ring, so the code itself is what is counted.
    """
    ring = [value << (64 - bits) for value in range(2**bits)]
    counts = {}
    for *f, g in itertools.product(ring, repeat=m + 1):
        vectors = {**dict(enumerate(f)), G_STREAM: g}
        monkeypatch.setattr(
            masks,
            "word_drawer",
            lambda _, n, v=vectors: lambda s: np.full(n, v[s], dtype=np.uint64),
        )
        tuple_of_masks = tuple(int(mask(KEY, i, m, 1)[0]) for i in range(m))
        counts[tuple_of_masks] = counts.get(tuple_of_masks, 0) + 1
    assert len(counts) == 2 ** (bits * m)
    assert len(set(counts.values())) == 1


def test_work_does_not_grow_with_the_cohort(monkeypatch):
    calls = []

    def counted(key, length):
        return lambda stream: calls.append(stream) or np.zeros(length, dtype=np.uint64)

    monkeypatch.setattr(masks, "word_drawer", counted)
    for m in (3, 10_000):
        for index, cost in ((0, 3), (1, 2), (m - 1, 2)):
            calls.clear()
            mask(KEY, index, m, 2)
            assert len(calls) == cost
    survivors = np.ones(10_000, dtype=bool)
    survivors[[17, 18, 5000]] = False
    calls.clear()
    correction(KEY, survivors, 2)
    # two runs, cyclic: 2 * 2 + 1
    assert sorted(calls) == [17, 19, 5000, 5001, G_STREAM]


def test_masked_words_of_extreme_vectors_look_uniform():
    """Chi-square over byte values; 255 degrees of freedom, so 450 is passed with p < 1e-12."""
    for plain in (0, 1, 2**64 - 1):
        vector = np.full(20_000, plain, dtype=np.uint64) + mask(
            os.urandom(32), 1, 4, 20_000
        )
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        expected = vector.nbytes / 256
        statistic = np.square(counts - expected).sum() / expected
        assert_within(
            f"chi-square of the masked bytes of {plain} is",
            statistic,
            most=450,
            strict=True,
        )
