"""Exact polynomials modulo X^N + 1 and a prime (docs/protocol.md, section 13).

Every prime is below 2^49, so the quotient of a product by it is known in float64 to
within one half, and the product modulo the prime is exact without integers of 128 bits,
on any processor, with NumPy alone. The transform has the order of Microsoft SEAL, so
its words go into SEAL as they are.

This is one of the files whose formulas stay dense: a line of arithmetic here is a line
of a formula, and names for its parts would hide it.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray, WordArray
from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.randomness import Stream

N = 1 << 15
"""Degree of the ring."""
SLOTS = N // 2
"""How many numbers one polynomial holds."""


_ERROR_BITS = 21
_BLOCKS = 256
_LARGEST = 2.0**50  # a stage adds less than that, and `_nearest` is right below 2^51
_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = np.float64(_MAGIC).view(np.int64)


def column(primes: Sequence[int]) -> WordArray:
    """Return primes as (primes, 1), for arithmetic on words (..., primes, N)."""
    return np.array(primes, dtype=np.uint64)[:, None]


def mulmod(a: WordArray, b: WordArray, p: int | WordArray) -> WordArray:
    """Return ``a * b`` modulo a prime, or a `column` of them, for words below it."""
    q = np.asarray(p, dtype=np.uint64)
    ratio = a.astype(np.float64) * b.astype(np.float64) * (1.0 / q)
    quotient = ratio.astype(np.uint64)
    # The rest is in [-p, 2 p) modulo 2^64. A negative value is huge as a word, so the
    # smaller one is right.
    rest = a * b - quotient * q
    rest = np.minimum(rest, rest + q)
    reduced: WordArray = np.minimum(rest, rest - q)
    return reduced


def addmod(a: WordArray, b: WordArray, p: int | WordArray) -> WordArray:
    """Return ``a + b`` modulo a prime, or a `column` of them, for words below it."""
    q = np.asarray(p, dtype=np.uint64)
    total = a + b
    reduced: WordArray = np.minimum(total, total - q)
    return reduced


def negmod(a: WordArray, p: int | WordArray) -> WordArray:
    """Return ``-a`` modulo a prime, or a `column` of them, for words below it."""
    q = np.asarray(p, dtype=np.uint64)
    negative: WordArray = np.minimum(q - a, np.uint64(0) - a)
    return negative


def lift(x: NDArray[Any], p: int) -> WordArray:
    """Return signed integers modulo a prime."""
    integers = np.asarray(x, dtype=np.int64)
    return np.mod(integers, p).astype(np.uint64)


# ----------------------------------------------------------------------------- samplers


def ternary(stream: Stream) -> IntArray:
    """Return N uniform values of -1, 0 and 1.

    They are a stream's first bytes below 255, modulo 3.
    """

    def draw(n: int) -> NDArray[Any]:
        return stream.words(n // 8).astype("<u8").view(np.uint8)

    kept = _first(draw, 255)
    residues = kept % np.uint8(3)
    return residues.astype(np.int64) - 1


def small_error(stream: Stream) -> IntArray:
    """Return N centred binomial values of standard deviation 3.24.

    Each is the ones among a word's lowest 21 bits, minus those among the next 21.
    """
    words = stream.words(N)
    low = np.uint64(2**_ERROR_BITS - 1)
    first = _ones(words & low)
    second = _ones(words >> np.uint64(_ERROR_BITS) & low)
    return first - second


def uniform(stream: Stream, p: int) -> WordArray:
    """Return N uniform words below a prime.

    They are a stream's words, cut to the bits of the prime: the first N below it.
    """
    mask = np.uint64((1 << p.bit_length()) - 1)
    return _first(lambda n: stream.words(n) & mask, p)


def _first(draw: Callable[[int], NDArray[Any]], bound: int) -> NDArray[Any]:
    """Return the first N values below a bound; ``draw`` continues a sequence."""
    kept = draw(N + N // 16)
    kept = kept[kept < bound]
    while len(kept) < N:
        more = draw(N)
        kept = np.concatenate([kept, more[more < bound]])
    return kept[:N]


def _ones(words: WordArray) -> IntArray:
    """Return the number of set bits of each word."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words).astype(np.int64)
    # before NumPy 2
    octets = words.astype("<u8").view(np.uint8)
    bits = np.unpackbits(octets).reshape(-1, 64)
    counts: IntArray = bits.sum(axis=1, dtype=np.int64)
    return counts


# ---------------------------------------------------------------------------- transform


def ntt(x: WordArray, p: int) -> WordArray:
    """Return the transforms of polynomials (..., N), in words below a prime.

    The prime is 1 modulo 2 N. Transforms are the values at the odd powers of the least
    primitive root of order 2 N, in bit-reversed order: products of polynomials are
    products of values.
    """
    # Two matrices, one the other's transpose, have long rows: NumPy's inner loops stay
    # long.
    out = np.empty_like(x)
    table = _factors(p)
    n_wide = _BLOCKS.bit_length() - 1  # stages of the first matrix
    for i in np.ndindex(x.shape[:-1]):
        wide = x[i].astype(np.int64).reshape(_BLOCKS, -1)
        size = _butterflies(wide, table[:n_wide], p, float(p))
        tall = np.ascontiguousarray(wide.T)
        _butterflies(tall, table[n_wide:], p, size)
        _centre(tall, p)
        residues = np.ascontiguousarray(tall.T).reshape(N)
        words = residues.view(np.uint64)
        np.minimum(words, words + np.uint64(p), out=out[i])
    return out


def _butterflies(
    x: IntArray, table: Sequence[tuple[IntArray, FloatArray]], p: int, size: float
) -> float:
    """Go through some stages of a transform, in place.

    ``size`` bounds the absolute values of ``x``, which are reduced only where the next
    stage would exceed `_LARGEST`. Returned is the bound for the next stage.
    """
    spare = np.empty(N // 2, dtype=np.int64)
    for factor, ratio in table:
        if size > _LARGEST:
            _centre(x, p)
            size = p / 2 + 1
        y = x.reshape(len(factor), 2, -1, x.shape[1])
        u = y[:, 0]
        v = y[:, 1]
        # The quotient is the integer nearest to v * factor / p, up to an error of
        # float64.
        quotient = _nearest(v, ratio, out=spare.reshape(v.shape))
        quotient *= p
        v *= factor
        v -= quotient
        np.subtract(u, v, out=quotient)
        u += v
        v[...] = quotient
        size += p * (0.5 + size * 2.0**-52)
    return size


def _centre(x: IntArray, p: int) -> None:
    """Reduce integers to the nearest of their residues to 0, in place."""
    quotient = _nearest(x, 1.0 / p, np.empty_like(x))
    quotient *= p
    x -= quotient


def _nearest(x: IntArray, ratio: FloatArray | float, out: IntArray) -> IntArray:
    """Return the integers nearest to ``x * ratio``, for absolute values below 2^51.

    Between 2^52 and 2^53 the last bits of a float64 are those of an integer. So
    conversions are additions, of which a processor does several at once.
    """
    np.add(x, _MAGIC_BITS, out=out)
    values = out.view(np.float64)
    values -= _MAGIC
    values *= ratio
    values += _MAGIC
    out -= _MAGIC_BITS
    return out


def intt(x: WordArray, p: int) -> WordArray:
    """Return the polynomials (..., N) of transforms, by the inverse of `ntt`."""
    shape = x.shape
    m = N // 2
    w = _roots(p)[1]
    while m:
        y = x.reshape(*shape[:-1], m, 2, N // (2 * m))
        u = y[..., 0, :]
        v = y[..., 1, :]
        difference = addmod(u, negmod(v, p), p)
        second = mulmod(difference, w[m : 2 * m, None], p)
        x = np.stack([addmod(u, v, p), second], -2)
        m //= 2
    inverse = np.full(1, pow(N, -1, p), np.uint64)
    return mulmod(x.reshape(shape), inverse, p)


def rns(x: IntArray, primes: Iterable[int]) -> WordArray:
    """Return the transforms of small polynomials (..., N) as words (..., primes, N)."""
    residues = [ntt(lift(x, p), p) for p in primes]
    return np.stack(residues, -2)


@functools.cache
def _roots(p: int) -> tuple[WordArray, WordArray]:
    """Return the powers of SEAL's root and of its inverse, (N,) each, in SEAL's order.

    The root is the least primitive one of order 2 N.
    """
    exponent = (p - 1) // (2 * N)
    candidates = (pow(h, exponent, p) for h in range(2, p))
    root = next(c for c in candidates if pow(c, N, p) == p - 1)
    # its odd powers are all of that order
    least = min(_powers(root, root * root % p, N, p))
    forward = np.array(_powers(1, least, N, p), dtype=np.uint64)
    # The powers of 1 / least = -least^(N - 1): read backwards, and negated.
    read_backwards = forward[1:][::-1]
    backward = np.concatenate([forward[:1], negmod(read_backwards, p)])
    bits = N.bit_length() - 1
    reversed_bits = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(N)]
    order = np.array(reversed_bits, dtype=np.intp)
    return forward[order], backward[order]


def _powers(first: int, factor: int, count: int, p: int) -> list[int]:
    """Return a number times the powers of another, modulo p."""
    factors = repeat(factor, count - 1)
    return list(accumulate(factors, lambda x, y: x * y % p, initial=first))


@functools.cache
def _factors(p: int) -> list[tuple[IntArray, FloatArray]]:
    """Return the factors of each stage, and these over p, in `_butterflies`' shape."""
    roots = _roots(p)[0].astype(np.int64)
    out = []
    for i in range(N.bit_length() - 1):
        m = 1 << i
        factor = roots[m : 2 * m].reshape(min(m, _BLOCKS), -1).T
        if m < _BLOCKS:
            factor = factor.T[..., None]
        else:
            factor = factor[:, None]
        factor = np.ascontiguousarray(factor)
        out.append((factor, factor / p))
    return out


# ------------------------------------------------------------------------------ slots


def encode(values: FloatArray, scale: float) -> IntArray:
    """Return the polynomial (N,) whose slots are numbers (m,) times a scale, rounded.

    This is the encoding of CKKS, in SEAL's order; further slots are 0. The constant
    coefficient is the mean of all slots, so ciphertexts are summed without rotations.
    """
    first, second = _slot_positions()
    z = np.zeros(N, dtype=np.complex128)
    z[first[: len(values)]] = values
    z[second[: len(values)]] = values
    twist = np.exp(-1j * np.pi * np.arange(N) / N)
    m = np.fft.fft(z) * twist / N
    rounded: IntArray = np.rint(m.real * scale).astype(np.int64)
    return rounded


@functools.cache
def _slot_positions() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the two positions of each slot in a transform, (`SLOTS`,) each."""
    index = np.array(_powers(1, 3, SLOTS, 2 * N), dtype=np.intp)
    first = (index - 1) // 2
    second = (2 * N - index - 1) // 2
    return first, second


# -------------------------------------------------------------------- bytes on the wire


def packed_bytes(primes: Sequence[int]) -> int:
    """Return the bytes of one packed polynomial over these primes."""
    return sum(N * _width(p) for p in primes)


def pack(words: WordArray, primes: Sequence[int]) -> bytes:
    """Return words (..., primes, N) as little-endian bytes of their primes' widths."""
    little_endian = np.ascontiguousarray(words, dtype="<u8")
    rows = little_endian.reshape(-1, len(primes), N)
    out = np.empty((len(rows), packed_bytes(primes)), dtype=np.uint8)
    end = 0
    for i, p in enumerate(primes):
        start = end
        end = end + N * _width(p)
        octets = rows[:, i].view(np.uint8).reshape(len(rows), N, 8)
        used = octets[..., : _width(p)]
        out[:, start:end] = used.reshape(len(rows), -1)
    return out.tobytes()


def unpack(
    data: bytes, primes: Sequence[int], shape: tuple[int, ...] = ()
) -> WordArray:
    """Return the words (*shape, primes, N) of packed polynomials.

    All words of a peer come through here, so that nothing else reaches SEAL.

    Raises
    ------
    MessageError
        If a word is not below its prime, or the number of bytes is another.
    """
    count = prod(shape)
    n_bytes = count * packed_bytes(primes)
    if len(data) != n_bytes:
        raise MessageError(
            f"Packed words must have {n_bytes} bytes. Got {len(data)} instead."
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(count, -1)
    words = np.zeros((count, len(primes), N), dtype="<u8")
    end = 0
    for i, p in enumerate(primes):
        start = end
        end = end + N * _width(p)
        octets = words[:, i].view(np.uint8).reshape(count, N, 8)
        octets[..., : _width(p)] = rows[:, start:end].reshape(count, N, -1)
        if (words[:, i] >= p).any():
            raise MessageError("A packed word is not below its prime.")
    native = words.astype(np.uint64, copy=False)
    return native.reshape(*shape, len(primes), N)


def _width(p: int) -> int:
    """Return the bytes of a word below a prime."""
    return (p.bit_length() + 7) // 8
