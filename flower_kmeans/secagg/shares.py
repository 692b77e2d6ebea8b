"""Packed secret sharing among a committee (docs/protocol.md, section 3).

A client splits its vector into shares, one for each position of a committee. Any tau
shares reveal nothing. Sums of shares at tau + k positions reconstruct the sum. Each
block of k words has a polynomial of degree below R = tau + k. The block's words are the
values at the points m + 1 + s, s = 0, ..., k - 1. The share of position j of m is the
value at the point j + 1.

Numbers are residues modulo three primes below 2^21, whose product P is almost 2^63. A
product of two residues is below 2^42, so BLAS multiplies matrices of residues exactly
in float64. Arrays of residues have shape (3, ...), a row for each prime, and dtype
float64 for multiplications.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray, WordArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.randomness import token
from flower_kmeans.secagg import base
from flower_kmeans.secagg.base import Sharing, SumContext, SumError
from flower_kmeans.secagg.primitives import kdf, words

PRIMES = (2097143, 2097133, 2097131)  # the largest three below 2^21
RING = math.prod(PRIMES)  # P: signed words of a sum are between -P/2 and P/2
_BITS = 21
_FIELD = np.uint64(2**_BITS - 1)
_ELEMENT = np.uint64(2**63 - 1)  # mask of the three fields of an element
_EXACT_TERMS = 2**11  # so many products of residues have an exact sum in float64
_BATCH_ELEMENTS = 2**17  # elements that are added at a time
_DECODINGS = 8  # a random combination misses a false share once in two million


@base.register_secure_sum
class SharedSum(base.SecureSum):
    """Shares for a committee. Its members add them and see neither vectors nor sum."""

    name = "shares"
    by_committee = True
    limit = RING // 2

    def set_up(self, n_positions: int, n_corrupt: int, n_present: int) -> Sharing:
        """Return the parameters of the sharing among a committee.

        Any two sets of positions that reconstruct a sum have more than a third of the
        honest positions in common. So only one sum of a round can be reconstructed if
        each honest position adds once (docs/guarantees, Theorem 38). Absent positions
        count as honest ones, so a server gains nothing by calling positions absent.

        Parameters
        ----------
        n_positions : int
            Number of positions, with absent ones.
        n_corrupt : int
            Number of positions that may be corrupt.
        n_present : int
            Number of positions with a member.

        Raises
        ------
        ConfigurationError
            If too few positions are present to reconstruct a sum.
        """
        if not 1 <= n_corrupt < n_positions:
            raise ConfigurationError(
                f"Expected between 1 and {n_positions - 1} corrupt positions of a committee of "
                f"{n_positions}. Got {n_corrupt} instead."
            )
        # A majority would not suffice: votes that are split among three sums would
        # reveal combinations of them.
        privacy = n_corrupt + 2 * (n_positions - n_corrupt) // 3
        if n_present <= privacy:
            raise ConfigurationError(
                f"Expected more than {privacy} of {n_positions} committee members. "
                f"Got {n_present} instead."
            )
        packing = max(1, (n_present - privacy) // 2)
        return Sharing(n_positions, n_corrupt, privacy, packing)

    def protect(
        self, vector: IntArray, context: SumContext, slot: int, secret: bytes
    ) -> tuple[bytes, ...]:
        """Return one share for each position, with absent ones.

        Equal arguments give equal shares. Another vector or context has other
        polynomials.
        """
        sharing, n_blocks = _layout(context.n_words, context.sharing)
        privacy = sharing.privacy
        data = vector.astype("<i8", copy=False).tobytes()
        # Two vectors with the same random elements would reveal their difference.
        salt = context.digest + hashlib.sha256(data).digest()
        key = kdf(secret, salt, b"polynomial")
        # The first shares are random. With the secrets they determine the polynomials.
        free = _uniform_words(key, privacy * n_blocks).reshape(privacy, n_blocks)
        nodes = (*range(1, privacy + 1), *_secret_points(sharing))
        known = np.empty((3, len(nodes), n_blocks))
        known[:, :privacy] = _fields(free)
        known[:, privacy:] = to_residues(blocks(vector, sharing.packing))
        others = tuple(range(privacy + 1, sharing.n_positions + 1))
        rest = _joined(_evaluate(nodes, others, known))
        shares = np.concatenate([free, rest]).astype("<u8").tobytes()
        size = 8 * n_blocks
        starts = range(0, len(shares), size)
        return tuple(shares[start : start + size] for start in starts)

    def combine(self, parts: Iterable[bytes], context: SumContext) -> bytes:
        """Return a position's sum-share: the sum of its survivors' shares."""
        _, n_blocks = _layout(context.n_words, context.sharing)
        batch = max(1, _BATCH_ELEMENTS // n_blocks)
        remaining = iter(parts)
        n_added = 0
        total = np.zeros((3, n_blocks), dtype=np.uint64)
        while chunk := list(islice(remaining, batch)):
            shares, proper = _elements(chunk, n_blocks)
            if not proper.all():
                raise base.PartError(n_added + int(np.argmin(proper)))
            # Residues have 21 bits, so 2^43 of them fit a word. They are reduced once,
            # at the end.
            total += _fields(shares).sum(axis=1)
            n_added += len(chunk)
        residues = total % np.array(PRIMES, "u8")[:, None]
        return _joined(residues).astype("<u8").tobytes()

    def reconstruct(
        self,
        combined: Mapping[int, bytes],
        survivors: NDArray[np.bool_],
        context: SumContext,
    ) -> base.ReconstructedSum:
        """Return the sum, and the positions of false sum-shares.

        n' > R sum-shares can correct errors: up to (n' - R) // 2 false sum-shares are
        found and left out. All other sum-shares lie on the reconstructed polynomials in
        every block, so everyone with the same sum-shares gets the same sum. Malformed
        sum-shares count as false.

        Raises
        ------
        SumError
            If too few sum-shares are left, or too many are false.
        """
        sharing, n_blocks = _layout(context.n_words, context.sharing)
        known = [j for j in sorted(combined) if 0 <= j < sharing.n_positions]
        positions = np.array(known, int)
        shares, proper = _elements([combined[j] for j in positions.tolist()], n_blocks)
        liars = set(positions[~proper].tolist())
        positions = positions[proper]
        if len(positions) < sharing.threshold:
            raise SumError(
                f"Expected at least {sharing.threshold} sum-shares. Got {len(positions)} instead."
            )
        values = _fields(shares[proper]).astype(np.float64)
        true = _true_shares(positions + 1, values, sharing.threshold)
        liars.update(positions[~true].tolist())
        # Any R true shares give the same sum. The matrices of the first R are most
        # likely in the cache.
        used = np.flatnonzero(true)[: sharing.threshold]
        nodes = tuple((positions[used] + 1).tolist())
        secrets = _evaluate(nodes, _secret_points(sharing), values[:, used])
        vector = from_residues(secrets.reshape(3, -1))[: context.n_words]
        return base.ReconstructedSum(vector, tuple(sorted(liars)))

    def part_bytes(self, n_words: int, sharing: Sharing | None) -> int:
        """Return the length of a share: eight bytes for each block of words."""
        _, n_blocks = _layout(n_words, sharing)
        return 8 * n_blocks


def blocks(vector: IntArray, packing: int) -> IntArray:
    """Return the blocks of a vector as columns, (k, n_blocks), padded with zeros."""
    n_blocks = -(-len(vector) // packing)
    columns = np.zeros((packing, n_blocks), vector.dtype)
    # For a short vector np.pad would take longer than all the rest.
    columns.reshape(-1)[: len(vector)] = vector
    return columns


def _layout(n_words: int, sharing: Sharing | None) -> tuple[Sharing, int]:
    """Return the sharing, and B, the number of a vector's blocks or a share's elements."""
    if sharing is None:
        raise ConfigurationError(
            "Expected the sharing of a committee. Got None instead."
        )
    return sharing, math.ceil(n_words / sharing.packing)


def _secret_points(sharing: Sharing) -> tuple[int, ...]:
    """Return the points of a block's words, which follow the points of the positions."""
    first = sharing.n_positions + 1
    return tuple(range(first, first + sharing.packing))


def to_residues(values: IntArray) -> IntArray:
    """Return the residues, (3, ...), of signed integers modulo the three primes."""
    return np.stack([values % prime for prime in PRIMES])


def from_residues(residues: NDArray[Any]) -> IntArray:
    """Return the signed integers nearest to zero, (n,), with given residues, (3, n)."""
    first, second, third = residues.astype(np.int64)
    p, q, r = PRIMES
    # Mixed radix: value = first + p (a + q b).
    a = (second - first) * pow(p, -1, q) % q
    without_a = ((third - first) * pow(p, -1, r) - a) % r
    b = without_a * pow(q, -1, r) % r
    value: IntArray = first + p * (a + q * b)
    value[value > RING // 2] -= RING
    return value


def uniform(key: bytes, stream: int, length: int) -> IntArray:
    """Return uniform residues, (3, length), int64, from a stream's words.

    Words that are not elements are skipped.
    """
    elements = _uniform_words(key, length, stream)
    return _fields(elements).astype(np.int64)


def _uniform_words(key: bytes, length: int, stream: int = 0) -> WordArray:
    # One word in 43,000 is not an element. It is skipped, which keeps the law exact.
    n_drawn = length
    while True:
        n_drawn += length // 1024 + 16
        drawn = words(key, stream, n_drawn) & _ELEMENT
        found = drawn[_are_elements(drawn)]
        if len(found) >= length:
            return found[:length]


def _fields(elements: WordArray) -> WordArray:
    """Return the three residues of each word, (3, ...), uint64."""
    shifts = [np.uint64(_BITS * i) for i in range(3)]
    return np.stack([elements >> shift & _FIELD for shift in shifts])


def _joined(residues: NDArray[Any]) -> WordArray:
    """Return the word of each triple of residues: the inverse of `_fields`."""
    first, second, third = residues.astype(np.uint64)
    joined: WordArray = (
        first | second << np.uint64(_BITS) | third << np.uint64(2 * _BITS)
    )
    return joined


def _elements(
    parts: Sequence[bytes], length: int
) -> tuple[WordArray, NDArray[np.bool_]]:
    """Return the words of parts, (n_parts, length), and whether each part is proper."""
    size = 8 * length
    fit = np.array([len(part) == size for part in parts], dtype=np.bool_)
    filled = [part if len(part) == size else bytes(size) for part in parts]
    data = np.frombuffer(b"".join(filled), dtype="<u8")
    elements = data.astype(np.uint64, copy=False).reshape(len(parts), length)
    return elements, fit & _are_elements(elements).all(axis=1)


def _are_elements(elements: WordArray) -> NDArray[np.bool_]:
    """Return whether the three fields of each word are residues."""
    proper = elements <= _ELEMENT
    for field, prime in zip(_fields(elements), PRIMES, strict=True):
        proper &= field < prime
    return proper


def _evaluate(
    nodes: tuple[int, ...], points: tuple[int, ...], values: FloatArray
) -> FloatArray:
    """Return polynomials' residues at points from their residues at nodes.

    ``values`` has the shape (3, n_nodes, n_blocks), the result (3, n_points, n_blocks).
    The polynomials have the least degree.
    """
    result = np.empty((3, len(points), values.shape[2]))
    for i, prime in enumerate(PRIMES):
        matrix = _lagrange(nodes, points, prime)
        np.matmul(matrix, values[i], out=result[i])
        _reduce(result[i], prime)
    return result


def _reduce(values: FloatArray, prime: int) -> None:
    """Reduce non-negative integers below 2^53 modulo a prime, in place.

    It is faster than ``np.mod``.
    """
    quotients = values * (1.0 / prime)
    np.floor(quotients, out=quotients)
    quotients *= prime
    values -= quotients
    # A rounded quotient can be off by one.
    np.add(values, prime, out=values, where=values < 0)
    np.subtract(values, prime, out=values, where=values >= prime)


@lru_cache(maxsize=256)
def _lagrange(
    nodes: tuple[int, ...], points: tuple[int, ...], prime: int
) -> FloatArray:
    """Return the matrix, (n_points, n_nodes), that maps values at nodes to points."""
    x = np.array(nodes)
    beyond = np.array(points)[:, None] - x
    numerators = _products(beyond, prime)[:, None]
    quotients = numerators * _inverses(beyond, prime) % prime
    matrix = quotients * _weights(x, prime) % prime
    result: FloatArray = matrix.astype(np.float64)
    result.setflags(write=False)
    return result


def _weights(points: IntArray, prime: int) -> IntArray:
    """Return the inverse of each point's product of differences from all other points."""
    between = points[:, None] - points
    np.fill_diagonal(between, 1)
    return _inverses(_products(between, prime), prime)


def _products(factors: IntArray, prime: int) -> IntArray:
    """Return the product of each row modulo a prime."""
    return reduce(lambda product, column: product * column % prime, factors.T)


def _inverses(values: IntArray, prime: int) -> IntArray:
    """Return the inverse of each value modulo a prime."""
    invert = np.frompyfunc(lambda value: pow(value, -1, prime), 1, 1)
    inverses: IntArray = invert(values)
    return inverses.astype(np.int64)


def _true_shares(
    points: IntArray, values: FloatArray, degree: int
) -> NDArray[np.bool_]:
    """Return whether each share lies on the polynomials in every block, (n,).

    ``values`` are the shares, (3, n, n_blocks). The polynomials have degrees below
    ``degree``.

    Raises
    ------
    SumError
        If more than ``(n - degree) // 2`` shares are false.
    """
    # Usually no share is false, and this test is much faster.
    if _fit(points, values, degree):
        return np.ones(len(points), dtype=np.bool_)
    for _ in range(_DECODINGS):
        # A random combination stands for all blocks: a share that is false in any block
        # is false in it, except with probability 1/prime.
        weights = uniform(token(32), 0, values.shape[2])
        true = np.ones(len(points), dtype=np.bool_)
        for i, prime in enumerate(PRIMES):
            floats = weights[i].astype(np.float64)
            combined = _combination(values[i], floats, prime)
            true &= _decode(points, combined, degree, prime)
        _require_few(~true, degree)
        if _fit(points[true], values[:, true], degree):
            return true
    raise SumError("The sum-shares lie on no polynomials.")


def _require_few(false: NDArray[np.bool_], degree: int) -> None:
    """Require so few false shares that the true shares are unique."""
    if 2 * np.count_nonzero(false) > len(false) - degree:
        raise SumError("Too many sum-shares are false.")


def _fit(points: IntArray, values: FloatArray, degree: int) -> bool:
    """Return whether all shares lie on polynomials below a degree in every block."""
    nodes = tuple(points[:degree].tolist())
    rest = tuple(points[degree:].tolist())
    if not rest:
        return True
    expected = _evaluate(nodes, rest, values[:, :degree])
    return np.array_equal(expected, values[:, degree:])


def _combination(values: FloatArray, weights: FloatArray, prime: int) -> IntArray:
    """Return a linear combination, (n,), of the columns of residues, (n, n_blocks)."""
    sums = []
    for start in range(0, len(weights), _EXACT_TERMS):
        part = slice(start, start + _EXACT_TERMS)
        sums.append(values[:, part] @ weights[part] % prime)
    total: FloatArray = np.sum(sums, axis=0)
    return total.astype(np.int64) % prime


def _decode(
    points: IntArray, values: IntArray, degree: int, prime: int
) -> NDArray[np.bool_]:
    """Return whether each value lies on the polynomial of most values, (n,).

    The polynomial has a degree below ``degree``. The method is Peterson's decoding of
    Reed-Solomon codes. Let L be a polynomial that is zero at the points of all false
    values. L times the values lies on a polynomial too, so some of its syndromes are
    zero. So the coefficients of L are in the kernel of a Hankel matrix of the values'
    syndromes, and any vector of that kernel is such an L.

    Raises
    ------
    SumError
        If more than ``(n - degree) // 2`` values are false.
    """
    most = (len(points) - degree) // 2
    terms = values * _weights(points, prime) % prime
    syndromes = []
    for _ in range(len(points) - degree):
        syndromes.append(int(terms.sum()) % prime)
        terms = terms * points % prime
    hankel = np.lib.stride_tricks.sliding_window_view(np.array(syndromes), most + 1)
    locator = _in_kernel(hankel, prime)
    if locator is not None:
        located = _polynomial(locator, points, prime)
        # L has few zeros, so enough other points are left.
        nodes = np.flatnonzero(located)[:degree]
        rest = np.setdiff1d(np.arange(len(points)), nodes)
        node_points = tuple(points[nodes].tolist())
        rest_points = tuple(points[rest].tolist())
        matrix = _lagrange(node_points, rest_points, prime)
        expected = (matrix @ values[nodes]).astype(np.int64) % prime
        true = np.ones(len(points), dtype=np.bool_)
        true[rest] = expected == values[rest]
        if np.count_nonzero(~true) <= most:
            return true
    raise SumError("Too many sum-shares are false.")


def _polynomial(coefficients: IntArray, points: IntArray, prime: int) -> IntArray:
    """Return a polynomial's values at points modulo a prime, by Horner's rule."""
    values = np.zeros_like(points)
    for coefficient in coefficients[::-1]:
        values = (values * points + coefficient) % prime
    return values


def _in_kernel(matrix: IntArray, prime: int) -> IntArray | None:
    """Return a nonzero vector in the kernel of a matrix modulo a prime, or ``None``."""
    rows = matrix % prime
    for column in range(rows.shape[1]):
        # The columns before this one are columns of the identity matrix.
        pivots = np.flatnonzero(rows[column:, column])
        if not pivots.size:
            vector = np.zeros(rows.shape[1], dtype=np.int64)
            vector[:column] = -rows[:column, column] % prime
            vector[column] = 1
            return vector
        pivot = column + pivots[0]
        rows[[column, pivot]] = rows[[pivot, column]]
        inverse = pow(int(rows[column, column]), -1, prime)
        rows[column] = rows[column] * inverse % prime
        factors = rows[:, column].copy()
        factors[column] = 0
        rows = (rows - factors[:, None] * rows[column]) % prime
    return None
