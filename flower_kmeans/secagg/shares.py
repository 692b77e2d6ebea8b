"""Packed secret sharing among a committee (docs/protocol.md, section 3).

A client deals its vector in shares, one for each position of a committee. Any tau
shares say nothing; tau + k sums of shares reconstruct the sum. Position j of m is the point j
+ 1, secret s the point m + 1 + s: each block of k words is the values, at the secret
points, of a polynomial of degree below R = tau + k.

The ring is that of residues modulo three primes below 2^21, whose product P is almost
2^63. A product of two residues is below 2^42, so a product of matrices is exact in
float64 and BLAS does it. Arrays of residues have shape (3, ...), a row for each prime,
and dtype float64 where matrices are multiplied.
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
_ELEMENT = np.uint64(2**63 - 1)  # the three fields of an element
_EXACT_TERMS = 2**11  # products of residues whose sum is exact in float64
_BATCH_ELEMENTS = 2**17  # elements that are added up at a time
_DECODINGS = 8  # a false share passes a random combination once in two million


@base.register_secure_sum
class SharedSum(base.SecureSum):
    """Shares for a committee, whose members add them and see neither vector nor sum."""

    name = "shares"
    by_committee = True
    limit = RING // 2

    def set_up(self, n_positions: int, n_corrupt: int, n_present: int) -> Sharing:
        """Return the threshold and the packing of a committee.

        Any two sets of positions that reconstruct a sum have more than a third of the honest
        positions in common, so one sum of a round can be reconstructed if each honest position adds
        once (docs/guarantees, Theorem 38). Absent positions
        count: no server gains by calling them so.
        """
        if not 1 <= n_corrupt < n_positions:
            raise ConfigurationError(
                f"Expected between 1 and {n_positions - 1} corrupt positions of a committee of "
                f"{n_positions}. Got {n_corrupt} instead."
            )
        # Not a majority: votes that are split among three sums would reveal
        # combinations of them.
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
        """Return one share for each position, absent ones included.

        Equal calls give equal shares. Another vector or another context has other
        polynomials.
        """
        sharing, n_blocks = _layout(context.n_words, context.sharing)
        privacy = sharing.privacy
        data = vector.astype("<i8", copy=False).tobytes()
        # Two vectors under the same random elements would show their difference.
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
            # Residues of 21 bits: 2^43 of them fit a word, so they are reduced once, at
            # the end.
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
        """Reconstruct the sum of sum-shares, and find the positions of false sum-shares.

        More than R sum-shares correct errors: with n' of them up to (n' - R) // 2 false
        ones are found and left out. Every other one lies on the reconstructed polynomials in
        every block, so all with the same sum-shares reconstruct the same sum. Malformed
        sum-shares are false ones.
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
        # Any R true shares give the same sum; the first most often have their matrices
        # in a cache.
        used = np.flatnonzero(true)[: sharing.threshold]
        nodes = tuple((positions[used] + 1).tolist())
        secrets = _evaluate(nodes, _secret_points(sharing), values[:, used])
        vector = from_residues(secrets.reshape(3, -1))[: context.n_words]
        return base.ReconstructedSum(vector, tuple(sorted(liars)))

    def part_bytes(self, n_words: int, sharing: Sharing | None) -> int:
        """Return eight bytes for each block of words."""
        _, n_blocks = _layout(n_words, sharing)
        return 8 * n_blocks


def blocks(vector: IntArray, packing: int) -> IntArray:
    """Return the blocks of a vector as columns, shape (k, n_blocks), filled up with zeros."""
    n_blocks = -(-len(vector) // packing)
    columns = np.zeros((packing, n_blocks), vector.dtype)
    # np.pad takes longer than a short vector's sum
    columns.reshape(-1)[: len(vector)] = vector
    return columns


def _layout(n_words: int, sharing: Sharing | None) -> tuple[Sharing, int]:
    """Return a vector's sharing, and B: its blocks, which are elements of a share."""
    if sharing is None:
        raise ConfigurationError(
            "Expected the sharing of a committee. Got None instead."
        )
    return sharing, math.ceil(n_words / sharing.packing)


def _secret_points(sharing: Sharing) -> tuple[int, ...]:
    """Return the points of a block's secrets, after those of the positions."""
    first = sharing.n_positions + 1
    return tuple(range(first, first + sharing.packing))


def to_residues(values: IntArray) -> IntArray:
    """Return the residues, shape (3, ...), of signed integers."""
    return np.stack([values % prime for prime in PRIMES])


def from_residues(residues: NDArray[Any]) -> IntArray:
    """Return the signed integers nearest to zero, shape (n,), of residues (3, n)."""
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
    """Return uniform residues (3, length) of a stream's words.

    Words that are no elements are left out.
    """
    elements = _uniform_words(key, length, stream)
    return _fields(elements).astype(np.int64)


def _uniform_words(key: bytes, length: int, stream: int = 0) -> WordArray:
    # one word of 43,000 is no element: skipped, so that the law is exact
    n_drawn = length
    while True:
        n_drawn += length // 1024 + 16
        drawn = words(key, stream, n_drawn) & _ELEMENT
        found = drawn[_are_elements(drawn)]
        if len(found) >= length:
            return found[:length]


def _fields(elements: WordArray) -> WordArray:
    """Return the three residues of each word, shape (3, ...)."""
    shifts = [np.uint64(_BITS * i) for i in range(3)]
    return np.stack([elements >> shift & _FIELD for shift in shifts])


def _joined(residues: NDArray[Any]) -> WordArray:
    """Return the word of each three residues: the inverse of `_fields`."""
    first, second, third = residues.astype(np.uint64)
    joined: WordArray = (
        first | second << np.uint64(_BITS) | third << np.uint64(2 * _BITS)
    )
    return joined


def _elements(
    parts: Sequence[bytes], length: int
) -> tuple[WordArray, NDArray[np.bool_]]:
    """Return the words of parts, (n_parts, length), and a mask of proper parts."""
    size = 8 * length
    fit = np.array([len(part) == size for part in parts], dtype=np.bool_)
    filled = [part if len(part) == size else bytes(size) for part in parts]
    data = np.frombuffer(b"".join(filled), dtype="<u8")
    elements = data.astype(np.uint64, copy=False).reshape(len(parts), length)
    return elements, fit & _are_elements(elements).all(axis=1)


def _are_elements(elements: WordArray) -> NDArray[np.bool_]:
    """Return a mask of the words whose three fields are residues."""
    proper = elements <= _ELEMENT
    for field, prime in zip(_fields(elements), PRIMES, strict=True):
        proper &= field < prime
    return proper


def _evaluate(
    nodes: tuple[int, ...], points: tuple[int, ...], values: FloatArray
) -> FloatArray:
    """Return the least polynomials' residues at points, from values at other nodes."""
    result = np.empty((3, len(points), values.shape[2]))
    for i, prime in enumerate(PRIMES):
        matrix = _lagrange(nodes, points, prime)
        np.matmul(matrix, values[i], out=result[i])
        _reduce(result[i], prime)
    return result


def _reduce(values: FloatArray, prime: int) -> None:
    """Reduce integers below 2^53 modulo a prime, in place: faster than ``np.mod``."""
    quotients = values * (1.0 / prime)
    np.floor(quotients, out=quotients)
    quotients *= prime
    values -= quotients
    # A rounded quotient can be one off.
    np.add(values, prime, out=values, where=values < 0)
    np.subtract(values, prime, out=values, where=values >= prime)


@lru_cache(maxsize=256)
def _lagrange(
    nodes: tuple[int, ...], points: tuple[int, ...], prime: int
) -> FloatArray:
    """Return the matrix (n_points, n_nodes) from values at nodes to points."""
    x = np.array(nodes)
    beyond = np.array(points)[:, None] - x
    numerators = _products(beyond, prime)[:, None]
    quotients = numerators * _inverses(beyond, prime) % prime
    matrix = quotients * _weights(x, prime) % prime
    result: FloatArray = matrix.astype(np.float64)
    result.setflags(write=False)
    return result


def _weights(points: IntArray, prime: int) -> IntArray:
    """Return the inverse of each point's product of differences from all others."""
    between = points[:, None] - points
    np.fill_diagonal(between, 1)
    return _inverses(_products(between, prime), prime)


def _products(factors: IntArray, prime: int) -> IntArray:
    """Return the product of each row."""
    return reduce(lambda product, column: product * column % prime, factors.T)


def _inverses(values: IntArray, prime: int) -> IntArray:
    """Return the inverse of each value modulo a prime."""
    invert = np.frompyfunc(lambda value: pow(value, -1, prime), 1, 1)
    inverses: IntArray = invert(values)
    return inverses.astype(np.int64)


def _true_shares(
    points: IntArray, values: FloatArray, degree: int
) -> NDArray[np.bool_]:
    """Return a mask of the shares (3, n, n_blocks) on polynomials below a degree.

    A true share lies on them in every block.
    """
    # no share is false: the usual case, and much faster
    if _fit(points, values, degree):
        return np.ones(len(points), dtype=np.bool_)
    for _ in range(_DECODINGS):
        # A random combination stands for all blocks: a share that is false in any of
        # them is false there, but for one chance in a prime.
        weights = uniform(token(32), 0, values.shape[2])
        true = np.ones(len(points), dtype=np.bool_)
        for i, prime in enumerate(PRIMES):
            floats = weights[i].astype(np.float64)
            combined = _combination(values[i], floats, prime)
            true &= _decode(points, combined, degree, prime)
        _require_few(~true, degree)  # of all primes together
        if _fit(points[true], values[:, true], degree):
            return true
    raise SumError("The sum-shares lie on no polynomials.")


def _require_few(false: NDArray[np.bool_], degree: int) -> None:
    """Require so few false shares that the others determine them."""
    if 2 * np.count_nonzero(false) > len(false) - degree:
        raise SumError("Too many sum-shares are false.")


def _fit(points: IntArray, values: FloatArray, degree: int) -> bool:
    """Return whether all shares lie on polynomials below a degree, in every block."""
    nodes = tuple(points[:degree].tolist())
    rest = tuple(points[degree:].tolist())
    if not rest:
        return True
    expected = _evaluate(nodes, rest, values[:, :degree])
    return np.array_equal(expected, values[:, degree:])


def _combination(values: FloatArray, weights: FloatArray, prime: int) -> IntArray:
    """Return a linear combination, shape (n,), of columns of residues (n, n_blocks)."""
    sums = []
    for start in range(0, len(weights), _EXACT_TERMS):
        part = slice(start, start + _EXACT_TERMS)
        sums.append(values[:, part] @ weights[part] % prime)
    total: FloatArray = np.sum(sums, axis=0)
    return total.astype(np.int64) % prime


def _decode(
    points: IntArray, values: IntArray, degree: int, prime: int
) -> NDArray[np.bool_]:
    """Return a mask of the values on the polynomial below a degree that most share.

    Peterson's decoding of Reed-Solomon codes. Let L be a polynomial that is zero at the
    points of all false values. L times the values lies on a polynomial too: some of its
    syndromes are zero. So the coefficients of L are in the kernel of a Hankel matrix of
    the values' syndromes, and any vector of that kernel is such an L. A `SumError` if
    more than ``(n - degree) // 2`` are false.
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
        # L has so few zeros that enough are left
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
    """Return a vector, not zero, that a matrix takes to zero modulo a prime.

    ``None`` if there is none.
    """
    rows = matrix % prime
    for column in range(rows.shape[1]):
        # The columns before are those of the unit matrix.
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
