"""Polynomials modulo X^N + 1 and a prime, exact, with NumPy alone (docs/protocol.md, section 13).

Every prime is below 2^49, so the quotient of a product by it is known in float64 to
within one half, and the product modulo the prime is exact without integers of 128 bits,
on any processor. The transform has the order of Microsoft SEAL, so its words go into
SEAL as they are.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.errors import MessageError
from flower_kmeans.privacy.randomness import Stream

N = 1 << 15
"""Degree of the ring."""
SLOTS = N // 2
"""How many numbers one polynomial holds."""

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_ERROR_BITS = 21
_BLOCKS = 256
_LARGEST = 2.0**50  # a stage adds less than that, and `_nearest` is right below 2^51
_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = np.float64(_MAGIC).view(np.int64)


def column(primes: Sequence[int]) -> Words:
    """Return primes as (primes, 1), for arithmetic on words (..., primes, N)."""
    return np.array(primes, dtype=np.uint64)[:, None]


def mulmod(a: Words, b: Words, p: int | Words) -> Words:
    """Return ``a * b`` modulo a prime, or a `column` of them, for words below it."""
    q = np.asarray(p, dtype=np.uint64)
    quotient = (a.astype(np.float64) * b.astype(np.float64) * (1.0 / q)).astype(
        np.uint64
    )
    # In [-p, 2 p) modulo 2^64. What is negative is huge as a word, so the smaller one
    # is right.
    rest = a * b - quotient * q
    rest = np.minimum(rest, rest + q)
    reduced: Words = np.minimum(rest, rest - q)
    return reduced


def addmod(a: Words, b: Words, p: int | Words) -> Words:
    """Return ``a + b`` modulo a prime, or a `column` of them, for words below it."""
    total = a + b
    reduced: Words = np.minimum(total, total - np.asarray(p, dtype=np.uint64))
    return reduced


def negmod(a: Words, p: int | Words) -> Words:
    """Return ``-a`` modulo a prime, or a `column` of them, for words below it."""
    negative: Words = np.minimum(np.asarray(p, dtype=np.uint64) - a, np.uint64(0) - a)
    return negative


def lift(x: NDArray[Any], p: int) -> Words:
    """Return signed integers modulo a prime."""
    return np.mod(np.asarray(x, dtype=np.int64), p).astype(np.uint64)


# ----------------------------------------------------------------------------- samplers


def ternary(stream: Stream) -> Integers:
    """Return N uniform values of -1, 0 and 1: a stream's first bytes below 255, modulo 3."""
    kept = _first(lambda n: stream.words(n // 8).astype("<u8").view(np.uint8), 255)
    return (kept % np.uint8(3)).astype(np.int64) - 1


def small_error(stream: Stream) -> Integers:
    """Return N centred binomial values of standard deviation 3.24.

    Each is the ones among a word's lowest 21 bits, minus those among the next 21.
    """
    words, low = stream.words(N), np.uint64(2**_ERROR_BITS - 1)
    return _ones(words & low) - _ones(words >> np.uint64(_ERROR_BITS) & low)


def uniform(stream: Stream, p: int) -> Words:
    """Return uniform words below a prime: the first N of a stream, cut to its bits, below it."""
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


def _ones(words: Words) -> Integers:
    """Return how many bits of each word are set."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words).astype(np.int64)
    # before NumPy 2
    bits = np.unpackbits(words.astype("<u8").view(np.uint8)).reshape(-1, 64)
    counts: Integers = bits.sum(axis=1, dtype=np.int64)
    return counts


# ---------------------------------------------------------------------------- transform


def ntt(x: Words, p: int) -> Words:
    """Return the transforms of polynomials (..., N), words below a prime that is 1 modulo 2 N.

    They are the values at the odd powers of the least primitive root of order 2 N, in
    bit-reversed order: products of polynomials are products of values.
    """
    # Two matrices of long rows, one the other's transpose: NumPy's inner loops stay
    # long.
    out, table = np.empty_like(x), _factors(p)
    for i in np.ndindex(x.shape[:-1]):
        wide = x[i].astype(np.int64).reshape(_BLOCKS, -1)
        size = _butterflies(wide, table[: _BLOCKS.bit_length() - 1], p, float(p))
        tall = np.ascontiguousarray(wide.T)
        _butterflies(tall, table[_BLOCKS.bit_length() - 1 :], p, size)
        _centre(tall, p)
        words = np.ascontiguousarray(tall.T).reshape(N).view(np.uint64)
        np.minimum(words, words + np.uint64(p), out=out[i])
    return out


def _butterflies(
    x: Integers, table: Sequence[tuple[Integers, Floats]], p: int, size: float
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
        u, v = y[:, 0], y[:, 1]
        # The quotient is the nearest integer to v * factor / p, but for an error of
        # float64.
        quotient = _nearest(v, ratio, spare.reshape(v.shape))
        quotient *= p
        v *= factor
        v -= quotient
        np.subtract(u, v, out=quotient)
        u += v
        v[...] = quotient
        size += p * (0.5 + size * 2.0**-52)
    return size


def _centre(x: Integers, p: int) -> None:
    """Reduce integers to the nearest of their residues to 0, in place."""
    quotient = _nearest(x, 1.0 / p, np.empty_like(x))
    quotient *= p
    x -= quotient


def _nearest(x: Integers, ratio: Floats | float, out: Integers) -> Integers:
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


def intt(x: Words, p: int) -> Words:
    """Return the polynomials (..., N) of transforms: the inverse of `ntt`."""
    shape, m = x.shape, N // 2
    w = _roots(p)[1]
    while m:
        y = x.reshape(*shape[:-1], m, 2, N // (2 * m))
        u, v = y[..., 0, :], y[..., 1, :]
        d = mulmod(addmod(u, negmod(v, p), p), w[m : 2 * m, None], p)
        x = np.stack([addmod(u, v, p), d], -2)
        m //= 2
    return mulmod(x.reshape(shape), np.full(1, pow(N, -1, p), np.uint64), p)


def rns(x: Integers, primes: Iterable[int]) -> Words:
    """Return the transforms of small signed polynomials (..., N) as words (..., primes, N)."""
    return np.stack([ntt(lift(x, p), p) for p in primes], -2)


@functools.cache
def _roots(p: int) -> tuple[Words, Words]:
    """Return the powers of SEAL's root, the least primitive one of order 2 N, in its order."""
    candidates = (pow(h, (p - 1) // (2 * N), p) for h in range(2, p))
    root = next(c for c in candidates if pow(c, N, p) == p - 1)
    # its odd powers are all of that order
    least = min(_powers(root, root * root % p, N, p))
    forward = np.array(_powers(1, least, N, p), dtype=np.uint64)
    # The powers of 1 / least = -least^(N - 1): read backwards, and negated.
    backward = np.concatenate([forward[:1], negmod(forward[1:][::-1], p)])
    bits = N.bit_length() - 1
    order = np.array([int(f"{i:0{bits}b}"[::-1], 2) for i in range(N)], dtype=np.intp)
    return forward[order], backward[order]


def _powers(first: int, factor: int, count: int, p: int) -> list[int]:
    """Return a number times the powers of another, modulo p."""
    return list(
        accumulate(repeat(factor, count - 1), lambda x, y: x * y % p, initial=first)
    )


@functools.cache
def _factors(p: int) -> list[tuple[Integers, Floats]]:
    """Return the factors of each stage, in the shape that `_butterflies` needs, and over p."""
    roots, out = _roots(p)[0].astype(np.int64), []
    for m in (1 << i for i in range(N.bit_length() - 1)):
        factor = roots[m : 2 * m].reshape(min(m, _BLOCKS), -1).T
        factor = factor.T[..., None] if m < _BLOCKS else factor[:, None]
        factor = np.ascontiguousarray(factor)
        out.append((factor, factor / p))
    return out


# ------------------------------------------------------------------------------ slots


def encode(values: Floats, scale: float) -> Integers:
    """Return the polynomial (N,) whose slots are numbers (m,) times a scale, rounded.

    This is the encoding of CKKS, in SEAL's order; further slots are 0. The constant
    coefficient is the mean of all slots, so ciphertexts are summed without rotations.
    """
    first, second = _slot_positions()
    z = np.zeros(N, dtype=np.complex128)
    z[first[: len(values)]] = values
    z[second[: len(values)]] = values
    m = np.fft.fft(z) * np.exp(-1j * np.pi * np.arange(N) / N) / N
    rounded: Integers = np.rint(m.real * scale).astype(np.int64)
    return rounded


@functools.cache
def _slot_positions() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    index = np.array(_powers(1, 3, SLOTS, 2 * N), dtype=np.intp)
    return (index - 1) // 2, (2 * N - index - 1) // 2


# -------------------------------------------------------------------- bytes on the wire


def packed_bytes(primes: Sequence[int]) -> int:
    """Return the bytes of one packed polynomial over these primes."""
    return sum(N * _width(p) for p in primes)


def pack(words: Words, primes: Sequence[int]) -> bytes:
    """Return words (..., primes, N) as bytes, little-endian, each in the bytes of its prime."""
    rows = np.ascontiguousarray(words, dtype="<u8").reshape(-1, len(primes), N)
    out = np.empty((len(rows), packed_bytes(primes)), dtype=np.uint8)
    end = 0
    for i, p in enumerate(primes):
        start, end = end, end + N * _width(p)
        parts = rows[:, i].view(np.uint8).reshape(len(rows), N, 8)
        out[:, start:end] = parts[..., : _width(p)].reshape(len(rows), -1)
    return out.tobytes()


def unpack(data: bytes, primes: Sequence[int], shape: tuple[int, ...] = ()) -> Words:
    """Return the words (*shape, primes, N) of so many packed polynomials.

    Whatever a peer sends comes through here: a word that is not below its prime, or
    another number of bytes, is a `MessageError`, so nothing else goes any further, into
    SEAL in particular.
    """
    count = prod(shape)
    if len(data) != count * packed_bytes(primes):
        raise MessageError(
            f"Packed words must have {count * packed_bytes(primes)} bytes. Got {len(data)} instead."
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(count, -1)
    words = np.zeros((count, len(primes), N), dtype="<u8")
    end = 0
    for i, p in enumerate(primes):
        start, end = end, end + N * _width(p)
        parts = words[:, i].view(np.uint8).reshape(count, N, 8)
        parts[..., : _width(p)] = rows[:, start:end].reshape(count, N, -1)
        if (words[:, i] >= p).any():
            raise MessageError("A packed word is not below its prime.")
    return words.astype(np.uint64, copy=False).reshape(*shape, len(primes), N)


def _width(p: int) -> int:
    return (p.bit_length() + 7) // 8
