"""Masks: exact sums for whoever has the key, uniform words for whoever has not."""

import itertools
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.secagg import masks
from flower_kmeans.secagg.masks import correction, mask, mask_key, noise_key, words
from flower_kmeans.secagg.ring import from_ring, to_ring

KEY = bytes(range(32))
G_STREAM = 2**64 - 1

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


@given(cohorts, st.integers(1, 3), st.data())
@settings(max_examples=50, deadline=None)
def test_opened_sum_is_the_plain_integer_sum(survivors, attempt, data):
    m, length = len(survivors), 5
    bound = (2**63 - 1) // m  # so that the exact sum fits whoever survives
    coordinate = st.integers(-bound, bound)
    plain = [data.draw(st.lists(coordinate, min_size=length, max_size=length)) for _ in range(m)]
    key = mask_key(KEY, bytes([attempt]) * 32)
    announced = np.zeros(length, dtype=np.uint64)
    exact = [0] * length
    for i in np.flatnonzero(survivors):
        announced += to_ring(np.array(plain[i], dtype=np.int64)) + mask(key, int(i), m, length)
        exact = [total + value for total, value in zip(exact, plain[i], strict=True)]
    opened = from_ring(announced - correction(key, survivors, length))
    assert opened.tolist() == exact


@pytest.mark.parametrize("m", [1, 2, 9, 1000])
def test_all_masks_sum_to_g(m):
    everyone = np.ones(m, dtype=bool)
    assert np.array_equal(correction(KEY, everyone, 4), words(KEY, G_STREAM, 4))
    assert not correction(KEY, np.zeros(m, dtype=bool), 4).any()


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
            masks, "_drawer", lambda _, n, v=vectors: lambda s: np.full(n, v[s], dtype=np.uint64)
        )
        tuple_of_masks = tuple(int(mask(KEY, i, m, 1)[0]) for i in range(m))
        counts[tuple_of_masks] = counts.get(tuple_of_masks, 0) + 1
    assert len(counts) == 2 ** (bits * m)
    assert len(set(counts.values())) == 1


def test_work_does_not_grow_with_the_cohort(monkeypatch):
    calls = []

    def counted(key, length):
        draw = drawer(key, length)
        return lambda stream: calls.append(stream) or draw(stream)

    drawer = masks._drawer
    monkeypatch.setattr(masks, "_drawer", counted)
    for m in (3, 10_000):
        for index, cost in ((0, 3), (1, 2), (m - 1, 2)):
            calls.clear()
            mask(KEY, index, m, 2)
            assert len(calls) == cost
    survivors = np.ones(10_000, dtype=bool)
    survivors[[17, 18, 5000]] = False
    calls.clear()
    correction(KEY, survivors, 2)
    assert sorted(calls) == [17, 19, 5000, 5001, G_STREAM]  # two runs, cyclic: 2 * 2 + 1


@given(st.integers(0, 2**64 - 1), st.integers(0, 40), st.binary(min_size=32, max_size=32))
@settings(deadline=None)
def test_words_are_aes_of_the_counter_blocks(stream, length, key):
    blocks = b"".join(
        stream.to_bytes(8, "big") + block.to_bytes(8, "big") for block in range(length // 2 + 1)
    )
    ecb = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305 (a second way to the same bytes)
    expected = ecb.encryptor().update(blocks)[: 8 * length]
    assert words(key, stream, length).astype("<u8").tobytes() == expected


def test_keys_depend_on_everything():
    keys = {
        derive(secret, context)
        for derive in (mask_key, noise_key)
        for secret in (KEY, bytes(32))
        for context in (bytes(32), b"\1" * 32)
    }
    assert len(keys) == 8


def test_masked_words_of_extreme_vectors_look_uniform():
    """Chi-square over byte values; 255 degrees of freedom, so 450 is passed with p < 1e-12."""
    for plain in (0, 1, 2**64 - 1):
        vector = np.full(20_000, plain, dtype=np.uint64) + mask(os.urandom(32), 1, 4, 20_000)
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        expected = vector.nbytes / 256
        assert np.square(counts - expected).sum() / expected < 450
