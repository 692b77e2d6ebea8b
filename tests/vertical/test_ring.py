"""Arithmetic, transform, samplers, bytes on the wire and moduli against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.vertical import ring
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import SLOTS, N, pack, packed_bytes, unpack

pytestmark = pytest.mark.claim("protocol", "label-ciphertext-also-contains")

KEY = bytes(range(32))
PRIMES = moduli(16).key
SOME = (PRIMES[0], PRIMES[1], PRIMES[-2], PRIMES[-1])  # 48, 40, 40 and 49 bits


def polynomial(p, label=0):
    return ring.uniform(Stream(bytes([label]) * 32), p)


def least_root(p):
    """The least primitive root of order 2 N, by definition."""
    root = next(
        x
        for h in range(2, 99)
        if pow(x := pow(h, (p - 1) // (2 * N), p), N, p) == p - 1
    )
    powers, square = [root], root * root % p
    while len(powers) < N:
        powers.append(powers[-1] * square % p)
    return min(powers)


@given(st.data(), st.sampled_from(SOME))
def test_words_are_added_negated_multiplied_and_lifted_as_integers(data, p):
    near = st.integers(0, 3)
    word = st.one_of(st.integers(0, p - 1), near, near.map(lambda x: p - 1 - x))
    pairs = data.draw(st.lists(st.tuples(word, word), min_size=1, max_size=50))
    a, b = (np.array(x, dtype=np.uint64) for x in zip(*pairs, strict=True))
    assert ring.mulmod(a, b, p).tolist() == [x * y % p for x, y in pairs]
    assert ring.addmod(a, b, p).tolist() == [(x + y) % p for x, y in pairs]
    assert ring.negmod(a, p).tolist() == [-x % p for x, _ in pairs]
    signed = data.draw(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20))
    assert ring.lift(np.array(signed), p).tolist() == [x % p for x in signed]


@pytest.mark.parametrize("p", PRIMES)
def test_products_of_random_words_are_exact(p):
    a, b = polynomial(p, 1), polynomial(p, 2)
    exact = [x * y % p for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert ring.mulmod(a, b, p).tolist() == exact


@pytest.mark.parametrize("p", SOME)
def test_a_transform_holds_the_values_at_odd_powers_of_the_least_root(p):
    coefficients = polynomial(p)
    words, root = ring.ntt(coefficients, p), least_root(p)
    for i in (0, 1, 255, 12345, N - 1):
        x, value = pow(root, 2 * int(f"{i:015b}"[::-1], 2) + 1, p), 0
        for c in coefficients[::-1].tolist():
            value = (value * x + c) % p
        assert int(words[i]) == value


@pytest.mark.parametrize("p", PRIMES)
def test_the_inverse_transform_is_exact_and_words_are_reduced(p):
    """Also where every factor pushes one way: the transform reduces late."""
    signs, place = np.arange(N) % 2 == 0, np.arange(N)
    cases = [
        polynomial(p),
        np.full(N, p - 1),
        np.where(signs, p // 2, p // 2 + 1),
        np.zeros(N),
    ]
    cases += [np.where(place // m % 2 == 0, p - 1, 1) for m in (1, 2, 128, 256, N // 2)]
    x = np.array(cases, dtype=np.uint64)
    words = ring.ntt(x, p)
    assert words.max() < p
    assert (ring.intt(words, p) == x).all()
    assert (ring.ntt(x[3], p) == words[3]).all()  # leading dimensions do not matter


@pytest.mark.parametrize("p", SOME)
def test_a_product_of_transforms_is_the_product_modulo_x_to_the_n_plus_1(p):
    a = polynomial(p)
    sparse = {0: 5, 1: p - 1, 777: 123456789, N - 1: p - 2}
    b = np.zeros(N, dtype=np.uint64)
    b[list(sparse)] = list(sparse.values())
    product = ring.intt(ring.mulmod(ring.ntt(a, p), ring.ntt(b, p), p), p)
    expected = [0] * N
    for shift, factor in sparse.items():
        for i, x in enumerate(a.tolist()):
            sign = 1 if i + shift < N else -1
            expected[(i + shift) % N] += sign * x * factor
    assert product.tolist() == [x % p for x in expected]


def test_small_polynomials_are_transformed_for_every_prime():
    small = ring.small_error(Stream(KEY))
    words = ring.rns(np.stack([small, -small]), SOME)
    assert words.shape == (2, len(SOME), N)
    assert (words[1, 2] == ring.ntt(ring.lift(-small, SOME[2]), SOME[2])).all()


# ----------------------------------------------------------------------------- samplers


def words_of_key(count):
    return [int(x) for x in Stream(KEY).words(count)]


@pytest.mark.parametrize("p", [*SOME, 2**40 + 15, 3])
def test_uniform_words_are_the_first_below_the_prime(p):
    """Also where every other word is left out, so that more than one block is drawn."""
    mask = 2 ** p.bit_length() - 1
    below = [x & mask for x in words_of_key(3 * N) if x & mask < p]
    assert ring.uniform(Stream(KEY), p).tolist() == below[:N]


def test_ternary_values_are_the_first_bytes_below_255():
    data = b"".join(x.to_bytes(8, "little") for x in words_of_key(N // 4))
    values = ring.ternary(Stream(KEY))
    assert values.tolist() == [x % 3 - 1 for x in data if x < 255][:N]
    # Each count is binomial: within five standard deviations of N / 3.
    assert all(
        abs((values == x).sum() - N / 3) < 5 * (N * 2 / 9) ** 0.5 for x in (-1, 0, 1)
    )


@pytest.mark.parametrize("has_bitwise_count", [True, False])
def test_errors_are_ones_minus_ones(has_bitwise_count, monkeypatch):
    """With and without NumPy 2."""
    if not has_bitwise_count:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    low = 2**21 - 1
    expected = [
        (x & low).bit_count() - (x >> 21 & low).bit_count() for x in words_of_key(N)
    ]
    values = ring.small_error(Stream(KEY))
    assert values.tolist() == expected
    # Variance 42 / 4, of kurtosis below 3: five standard errors of N squares.
    assert abs(values.var() - 10.5) < 5 * 10.5 * (2 / N) ** 0.5


# ------------------------------------------------------------------------------ slots


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 300, SLOTS]))
def test_slots_are_values_at_roots_of_unity(seed, m):
    values = np.random.default_rng(seed).uniform(-1, 1, m)
    scale = moduli(2).scales[0]
    encoded = ring.encode(values, scale)
    padded = np.concatenate([values, np.zeros(SLOTS - m)])
    for i in (0, 1, m - 1, SLOTS - 1):
        angle = np.pi * (pow(3, i, 2 * N) * np.arange(N) % (2 * N)) / N
        # Rounding adds sqrt(N / 12) = 52 at most a few times.
        assert np.cos(angle) @ encoded == pytest.approx(scale * padded[i], abs=600)
        assert np.sin(angle) @ encoded == pytest.approx(0, abs=600)
    # The constant coefficient is the mean of the slots, so sums need no rotations.
    assert encoded[0] / scale * SLOTS == pytest.approx(values.sum(), abs=1e-6)


# -------------------------------------------------------------------- bytes on the wire

SHORT = (PRIMES[0], PRIMES[1], PRIMES[-1])
WIDTHS = (6, 5, 7)

few = settings(max_examples=25)
shapes = st.sampled_from([(), (1,), (2, 1)])


def some(shape, seed=0):
    """Uniform words, and the smallest and largest ones among them."""
    words = np.empty((*shape, 3, N), dtype=np.uint64)
    for i in np.ndindex(*shape):
        for j, p in enumerate(SHORT):
            words[i][j] = ring.uniform(Stream(bytes([seed, *i, j]).ljust(32)), p)
            words[i][j, :2] = 0, p - 1
    return words


@few
@given(shapes, st.integers(0, 255))
def test_words_come_back_from_little_endian_bytes(shape, seed):
    words = some(shape, seed)
    data = pack(words, SHORT)
    pieces = [
        b"".join(word.to_bytes(width, "little") for word in row)
        for polynomial in words.reshape(-1, 3, N).tolist()
        for row, width in zip(polynomial, WIDTHS, strict=True)
    ]
    assert data == b"".join(pieces)
    assert len(data) == int(np.prod(shape)) * packed_bytes(SHORT)
    back = unpack(data, SHORT, shape)
    assert back.dtype == np.uint64
    np.testing.assert_array_equal(back, words)


@few
@given(st.integers(0, 2), st.integers(0, N - 1), st.data())
def test_a_word_that_is_not_below_its_prime_is_refused(row, position, data):
    p, width = SHORT[row], WIDTHS[row]
    word = data.draw(st.integers(p, 256**width - 1))
    packed = bytearray(pack(some(()), SHORT))
    start = N * sum(WIDTHS[:row]) + position * width
    packed[start : start + width] = word.to_bytes(width, "little")
    with pytest.raises(MessageError, match="not below its prime") as caught:
        unpack(bytes(packed), SHORT)
    assert str(word) not in str(caught.value)


@pytest.mark.parametrize("more", [-1, 1, 7 * N])
def test_another_length_is_refused(more):
    data = pack(some((2,)), SHORT)
    with pytest.raises(MessageError, match="must have"):
        unpack(data + bytes(more) if more > 0 else data[:more], SHORT, (2,))


@few
@given(st.binary(max_size=64), st.binary(min_size=1, max_size=8))
def test_whatever_comes_through_is_reduced(head, pattern):
    """Any bytes at all: either an error, or words below their primes."""
    size = packed_bytes((SHORT[1],))
    data = (head + pattern * size)[:size]
    try:
        words = unpack(data, (SHORT[1],))
    except MessageError:
        return
    assert words.shape == (1, N)
    assert words.max() < SHORT[1]


# ------------------------------------------------------------------------------ moduli

ALL = [(k, radius) for k in range(2, 17) for radius in (False, True)]


@pytest.mark.parametrize(("k", "radius"), ALL)
def test_moduli_and_scales_are_those_of_the_design(k, radius):
    made = moduli(k, radius)
    signs = k if radius else k - 1  # factors of one membership
    assert made.levels == 1 + 12 + math.ceil(math.log2(signs)) + 1
    assert made.key == (made.q0, *made.data[1:], made.special)
    assert len(set(made.key)) == made.levels + 2
    assert all(p % (2 * N) == 1 for p in made.key)
    # As many bytes on the wire as planned, and exact products in float64.
    assert made.q0 < 2**48 < made.special < 2**49
    assert all(2**39 < p < 2**40 for p in made.data[1:])
    assert made.scales[0] == 0.999 * 2.0**40
    primes = made.data[:0:-1]  # the first rescaling divides by the last one
    for scale, p, following in zip(
        made.scales[:-1], primes, made.scales[1:], strict=True
    ):
        assert following == pytest.approx(scale**2 / p, rel=1e-15)
    assert max(abs(scale / made.scales[0] - 1) for scale in made.scales) < 1e-3
    assert made.unit == made.scales[-1] / SLOTS
    assert abs(math.log2(made.unit) - 26) < 0.01


@pytest.mark.claim("guarantees", "33")
@pytest.mark.parametrize(("k", "radius"), ALL)
def test_moduli_are_within_the_bounds_of_the_standard(k, radius):
    """881 bits for 128-bit security with N = 2^15; 827 against quantum computers."""
    assert sum(map(math.log2, moduli(k, radius).key)) <= 827 < 881


def test_the_largest_moduli_are_primes():
    """All smaller sets of moduli are parts of these."""
    largest = moduli(16, True)
    assert all(set(moduli(k, radius).key) <= set(largest.key) for k, radius in ALL)
    for p in largest.key:
        assert (p % np.arange(3, math.isqrt(p) + 2, 2)).all()


@pytest.mark.parametrize("k", [1, 17, 2.5])
def test_other_numbers_of_clusters_are_refused(k):
    with pytest.raises(ConfigurationError, match=r"'n_clusters' .* \[2, 16\]"):
        moduli(k)
