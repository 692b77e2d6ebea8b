"""Bytes on the wire: what is packed comes back, and nothing else comes through."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.vertical import ring
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.packing import pack, packed_bytes, unpack
from flower_kmeans.vertical.ring import N

MODULI = moduli(2)
PRIMES = (MODULI.q0, MODULI.data[1], MODULI.special)
WIDTHS = (6, 5, 7)
SMALL = PRIMES[1]

few = settings(max_examples=25)
shapes = st.sampled_from([(), (1,), (2, 1)])


def some(shape, seed=0):
    """Uniform words, and the smallest and largest ones among them."""
    words = np.empty((*shape, 3, N), dtype=np.uint64)
    for i in np.ndindex(*shape):
        for j, p in enumerate(PRIMES):
            words[i][j] = ring.uniform(Stream(bytes([seed, *i, j]).ljust(32)), p)
            words[i][j, :2] = 0, p - 1
    return words


@few
@given(shapes, st.integers(0, 255))
def test_words_come_back_from_little_endian_bytes(shape, seed):
    words = some(shape, seed)
    data = pack(words, PRIMES)
    pieces = [
        b"".join(word.to_bytes(width, "little") for word in row)
        for polynomial in words.reshape(-1, 3, N).tolist()
        for row, width in zip(polynomial, WIDTHS, strict=True)
    ]
    assert data == b"".join(pieces)
    assert len(data) == int(np.prod(shape)) * packed_bytes(PRIMES)
    back = unpack(data, PRIMES, shape)
    assert back.dtype == np.uint64
    np.testing.assert_array_equal(back, words)


@few
@given(st.integers(0, 2), st.integers(0, N - 1), st.data())
def test_a_word_that_is_not_below_its_prime_is_refused(row, position, data):
    p, width = PRIMES[row], WIDTHS[row]
    word = data.draw(st.integers(p, 256**width - 1))
    packed = bytearray(pack(some(()), PRIMES))
    start = N * sum(WIDTHS[:row]) + position * width
    packed[start : start + width] = word.to_bytes(width, "little")
    with pytest.raises(MessageError, match="not below its prime") as caught:
        unpack(bytes(packed), PRIMES)
    assert str(word) not in str(caught.value)


@pytest.mark.parametrize("more", [-1, 1, 7 * N])
def test_another_length_is_refused(more):
    data = pack(some((2,)), PRIMES)
    with pytest.raises(MessageError, match="must have"):
        unpack(data + bytes(more) if more > 0 else data[:more], PRIMES, (2,))


@few
@given(st.binary(max_size=64), st.binary(min_size=1, max_size=8))
def test_whatever_comes_through_is_reduced(head, pattern):
    """Any bytes at all: either an error, or words below their primes."""
    size = packed_bytes((SMALL,))
    data = (head + pattern * size)[:size]
    try:
        words = unpack(data, (SMALL,))
    except MessageError:
        return
    assert words.shape == (1, N)
    assert words.max() < SMALL
