"""The computing party's work on encrypted columns (docs/vertical.md, "How it works").

Only this module imports TenSEAL, for its binding of Microsoft SEAL. It holds ciphertexts
and a relinearisation key, never a secret. SEAL reads its objects from files of one fixed
form. This module writes the files from checked residues, so no byte of another party
reaches SEAL.
"""

import math
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from flower_kmeans.arrays import FloatArray, WordArray
from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.extras import broken, is_missing
from flower_kmeans.privacy.randomness import token
from flower_kmeans.vertical.keys import KeyHolder, expand, relin_common
from flower_kmeans.vertical.moduli import Moduli, moduli
from flower_kmeans.vertical.ring import SLOTS, N, intt
from flower_kmeans.vertical.signs import STAGES, near, pair

Ciphertext = Any  # TenSEAL has no type hints
Buffer = bytes | memoryview

# of SEAL's files: version 4.3, not compressed
_MAGIC = bytes.fromhex("5ea1100403000000")
_HEADER = struct.Struct("<8sQ")
# SEAL's Ciphertext: level (256-bit name), NTT form, size, N, primes, scale, and a
# correction factor that only BGV uses.
_METADATA = struct.Struct("<4Q?QQQdQ")
_ALMOST_ZERO = 1e-12


# ---------------------------------------------------------------------- TenSEAL


def _seal() -> ModuleType:
    try:
        import tenseal.sealapi as seal
    except Exception as error:
        # one that is broken, or built for another system, raises anything
        if not is_missing(error, "tenseal.sealapi"):
            raise ConfigurationError(
                f"Party 0 of a vertical run needs the package tenseal. {broken('tenseal', error)}. "
                "Where its version 0.3.18 has no wheel, let another party be party 0."
            ) from None
        raise ConfigurationError(
            "Party 0 of a vertical run needs the package tenseal: install it with "
            "pip install 'flower-kmeans[vertical]'. Its version 0.3.18 has wheels for CPython 3.11 "
            "to 3.14 on Linux (x86-64 with glibc 2.27 or musl 1.2, aarch64 with glibc 2.26), macOS "
            "14 (arm64) and Windows (x86-64). Elsewhere, let another party be party 0."
        ) from None
    return seal  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def require_tenseal() -> None:
    """Require that TenSEAL is installed and computes as expected.

    The first call encrypts, multiplies and opens two columns, in about half a second.

    Raises
    ------
    ConfigurationError
        If TenSEAL is missing or computes wrongly.
    """
    _seal()
    try:
        error = _self_check()
    except Exception:
        # Another layout of SEAL can lead to any error. No records are involved here.
        error = math.inf
    if not error < 1e-3:
        raise ConfigurationError(
            f"tenseal {version('tenseal')} does not multiply encrypted columns as expected. "
            "Install tenseal 0.3.18."
        )


def _self_check() -> float:
    """Return the error of the sum of products of two encrypted columns."""
    full = moduli(2)
    doc_hash = bytes(32)
    data = (full.q0, *full.data[-2:])
    key = (*data, full.special)
    small = replace(full, levels=2, scales=full.scales[:3], data=data, key=key)
    holder = KeyHolder(small, token(32), doc_hash)
    relin = np.stack([holder.relin_alone(), relin_common(small, doc_hash)], 1)
    engine = SealEngine(small, relin)
    x = np.linspace(-1, 1, SLOTS)
    columns = []
    for i, values in enumerate((x, x**3)):
        nonce, half = holder.encrypt_alone(values, i)
        columns.append(engine.column(expand(small, nonce, half)))
    product = engine.rescale(engine.multiply(*columns))
    last = engine.rescale(engine.times(product, 1.0, 2))
    c0, c1 = (intt(c, small.q0) for c in engine.words(last))
    share = holder.decryption_share(1, c1[None], lambda _: np.zeros(1, np.int64))
    half_q0 = small.q0 // 2
    opened = (int(c0[0]) + int(share[0]) + half_q0) % small.q0 - half_q0
    expected = float((x**4).sum())
    return abs(opened / small.unit - expected)


class _Context(NamedTuple):
    """SEAL's context of a run's moduli, and its 256-bit names of them."""

    seal: Any
    levels: tuple[tuple[int, ...], ...]  # names of the levels' moduli
    keys: tuple[int, ...]  # name of the keys' moduli


@lru_cache(maxsize=2)
def _context(parameters: Moduli) -> _Context:
    """Return SEAL's context of a run's moduli."""
    seal = _seal()
    options = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    options.set_poly_modulus_degree(N)
    options.set_coeff_modulus([seal.Modulus(q) for q in parameters.key])
    # SEAL checks the sum of the primes' bits against the Homomorphic Encryption Standard.
    context = seal.SEALContext(options, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise ConfigurationError(
            f"SEAL refuses the moduli: {context.parameters_error_name()}."
        )
    data = context.first_context_data()
    names = []
    for _ in parameters.data:
        names.append(tuple(data.parms_id()))
        data = data.next_context_data()
    return _Context(context, tuple(names), tuple(context.key_parms_id()))


# ---------------------------------------------------------------------- SEAL's files


def column_file(parameters: Moduli, words: WordArray) -> Iterator[Buffer]:
    """Return the pieces of the file from which SEAL reads an encrypted column.

    ``words`` (2, primes, N) are transforms modulo ``parameters.data``.

    Raises
    ------
    MessageError
        If they are not such words.
    """
    _check_words(words, (2,), parameters.data)
    first_level = _context(parameters).levels[0]
    return iter(_ciphertext(words, first_level, parameters.scales[0]))


def relin_file(parameters: Moduli, words: WordArray) -> Iterator[Buffer]:
    """Return the pieces of the file from which SEAL reads a relinearisation key.

    ``words`` (digits, 2, primes, N), a digit for each of ``parameters.data``, are
    transforms modulo ``parameters.key``.

    Raises
    ------
    MessageError
        If they are not such words.
    """
    _check_words(words, (len(parameters.data), 2), parameters.key)
    name = _context(parameters).keys

    def pieces() -> Iterator[Buffer]:
        list_of_digits = struct.pack("<4QQQ", *name, 1, len(words))
        digit_bytes = sum(map(len, _ciphertext(words[0], name, 1.0)))
        n_bytes = len(list_of_digits) + len(words) * digit_bytes
        yield _header(n_bytes) + list_of_digits
        for digit in words:
            yield from _ciphertext(digit, name, 1.0)

    return pieces()


def _check_words(
    words: WordArray, shape: tuple[int, ...], primes: Sequence[int]
) -> None:
    # The loader of SEAL is native code that trusts its file.
    expected = (*shape, len(primes), N)
    if words.shape != expected or words.dtype != np.uint64:
        raise MessageError(f"Expected words of shape {expected}, uint64.")
    largest = words.max(axis=-1)
    if (largest >= np.array(primes, np.uint64)).any():
        raise MessageError("Expected words below their primes.")


def _header(n_bytes: int) -> bytes:
    return _HEADER.pack(_MAGIC, _HEADER.size + n_bytes)


def _ciphertext(
    words: WordArray, name: tuple[int, ...], scale: float
) -> tuple[Buffer, ...]:
    size, primes, n = words.shape
    data = np.ascontiguousarray(words, "<u8").data.cast("B")
    length = struct.pack("<Q", words.size)
    array = _header(len(length) + len(data)) + length
    metadata = _METADATA.pack(*name, True, size, n, primes, scale, 1)
    n_bytes = len(metadata) + len(array) + len(data)
    return _header(n_bytes) + metadata + array, data


# ---------------------------------------------------------------------- the evaluation


@dataclass(frozen=True)
class Chunk:
    """Up to 16,384 records of one step."""

    own: FloatArray  # (m, a): party 0's columns in clear, within their half widths
    columns: Sequence[Ciphertext]  # d - a: the other parties' `signs.scaled_columns`
    centroids: FloatArray  # (k, d), party 0's coordinates first
    half_widths: FloatArray  # (d,)
    # records farther than this from a centroid do not count
    radius: float | None = None
    # With a radius, for each other party: its `signs.scaled_squares`. `norms` has the sum
    # of its squared half widths.
    squares: Sequence[Ciphertext] = ()
    norms: Sequence[float] = ()

    def comparison(self, j: int, other: int) -> tuple[list[float], FloatArray]:
        """Return weights of columns and squares, and the own columns' part, (m,)."""
        a = self.own.shape[1]
        c = self.centroids
        widths = self.half_widths
        if other != j or self.radius is None:
            w, b = pair(c[j], c[other], widths)
            weights: list[float] = (w * widths)[a:].tolist()
            return weights, self.own @ w[:a] + b
        w, u, b = near(c[j], self.radius, widths)
        weights = (w * widths)[a:].tolist()
        # A party's part of |x|^2 is norm (1 + square) / 2.
        halves = [u * norm / 2 for norm in self.norms]
        own_squares = (self.own**2).sum(1)
        clear = self.own @ w[:a] + u * own_squares + (b + sum(halves))
        return [*weights, *halves], clear


def comparisons(n_clusters: int, radius: float | None) -> list[tuple[int, int]]:
    """Return a step's decisions: pairs (j, l), j < l, and (j, j) for a radius."""
    has_radius = radius is not None
    every = product(range(n_clusters), repeat=2)
    return [(j, m) for j, m in every if j < m or (j == m and has_radius)]


class SealEngine:
    """Evaluator of one step of k-means on encrypted columns.

    ``relin`` is the relinearisation key (digits, 2, primes, N), or a file with the pieces
    of `relin_file`. Scales are exact: all ciphertexts of a level have one scale.
    """

    def __init__(self, parameters: Moduli, relin: WordArray | Path) -> None:
        self._seal = _seal()
        self.moduli = parameters
        context = _context(parameters)
        self._context = context.seal
        self._names = context.levels
        self._level_of = {name: level for level, name in enumerate(self._names)}
        self._evaluator = self._seal.Evaluator(self._context)
        self._encoder = self._seal.CKKSEncoder(self._context)
        source: Iterator[Buffer] | Path
        if isinstance(relin, np.ndarray):
            source = relin_file(parameters, relin)
        else:
            source = relin
        self._relin_key = self._read(self._seal.RelinKeys(), source)

    def column(self, words: WordArray | Path) -> Ciphertext:
        """Return the ciphertext of words (2, primes, N), or of a file for SEAL."""
        source: Iterator[Buffer] | Path
        if isinstance(words, np.ndarray):
            source = column_file(self.moduli, words)
        else:
            source = words
        return self._read(self._seal.Ciphertext(self._context), source)

    def _read(self, target: Any, source: Iterator[Buffer] | Path) -> Any:
        if isinstance(source, Path):
            target.load(self._context, str(source))
            return target
        with tempfile.NamedTemporaryFile() as file:  # SEAL reads files only
            file.writelines(source)
            file.flush()
            target.load(self._context, file.name)
        return target

    def words(self, c: Ciphertext) -> WordArray:
        """Return the words (2, N) of a last-level ciphertext: transforms modulo q0."""
        # TenSEAL gives no buffer of a ciphertext, only one word at a time.
        each = map(c.dyn_array().at, range(2 * N))
        return np.fromiter(each, np.uint64, 2 * N).reshape(2, N)

    # ------------------------------------------------------------------ arithmetic

    def level(self, c: Ciphertext) -> int:
        """Return the number of primes that a ciphertext has dropped."""
        return self._level_of[tuple(c.parms_id())]

    def _do(self, name: str, *operands: Any) -> Ciphertext:
        out = self._seal.Ciphertext(self._context)
        getattr(self._evaluator, name)(*operands, out)
        return out

    def _plain(self, value: float | FloatArray, level: int, scale: float) -> Any:
        out = self._seal.Plaintext()
        number = value.tolist() if isinstance(value, np.ndarray) else value
        self._encoder.encode(number, self._names[level], scale, out)
        return out

    def times(
        self,
        c: Ciphertext,
        value: float | FloatArray,
        level: int,
        square: float | None = None,
    ) -> Ciphertext:
        """Return c times public numbers, not rescaled; rescaling gives ``level``.

        Its scale is ``square``, by default the square of the scale one level above.
        """
        above = level - 1
        # Dropping moduli changes no scale, so the scale of the factor makes up for it.
        if self.level(c) < above:
            c = self._do("mod_switch_to", c, self._names[above])
        square = square or self.moduli.scales[above] ** 2
        scale = square / c.scale
        plain = self._plain(value, above, scale)
        # SEAL refuses a product with zeros only. Party 0's own columns can give zeros, and
        # a failure must not depend on records.
        if plain.is_zero():
            plain = self._plain(_ALMOST_ZERO, above, scale)
        product = self._do("multiply_plain", c, plain)
        product.scale = square
        return product

    def plus(self, c: Ciphertext, value: float | FloatArray) -> Ciphertext:
        """Return c plus public numbers."""
        plain = self._plain(value, self.level(c), c.scale)
        return self._do("add_plain", c, plain)

    def _add(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        b.scale = a.scale  # they differ by rounding only
        return self._do("add", a, b)

    def rescale(self, c: Ciphertext, scale: float | None = None) -> Ciphertext:
        """Return c one level below, by default with that level's scale."""
        level = self.level(c)
        low = self._do("rescale_to_next", c)
        low.scale = scale or self.moduli.scales[level + 1]
        return low

    def _at(self, c: Ciphertext, level: int) -> Ciphertext:
        if self.level(c) == level:
            return c
        return self.rescale(self.times(c, 1.0, level))

    def multiply(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        """Return a product, not rescaled, at the lower of two levels."""
        level = max(self.level(a), self.level(b))
        product = self._do("multiply", self._at(a, level), self._at(b, level))
        product.scale = self.moduli.scales[level] ** 2
        return self._relinearise(product)

    def _relinearise(self, c: Ciphertext) -> Ciphertext:
        if c.size() > 2:
            return self._do("relinearize", c, self._relin_key)
        return c

    # ------------------------------------------------------------------ the sign

    def _odd(self, x: Ciphertext, c: FloatArray) -> Ciphertext:
        """Return a series of odd Chebyshev polynomials, c (2^m,), m levels below."""
        # Paterson-Stockmeyer
        m = len(c).bit_length() - 1
        powers = [x]
        for _ in range(1, m):  # T_2i = 2 T_i^2 - 1
            square = self.rescale(self.multiply(powers[-1], powers[-1]))
            twice = self._do("add", square, square)
            powers.append(self.plus(twice, -1.0))
        scale = self.moduli.scales[self.level(x) + m - 1] ** 2
        series = self._node(powers, c, m, scale)
        return self.rescale(self._relinearise(series))

    # A node returns three polynomials, neither relinearised nor rescaled. Rescaling
    # three would add the third's rounding times the square of the secret: a hundred
    # times the error of rescaling two. Its scale makes it fit its parent's product
    # after moduli are dropped. It is a method, not a closure that calls itself: such a
    # cycle would keep 100 MB until the garbage collector runs, which counts objects and
    # not their bytes.
    def _node(
        self, powers: list[Ciphertext], c: FloatArray, m: int, square: float
    ) -> Ciphertext:
        top = powers[m - 1]
        scales = self.moduli.scales
        level = self.level(powers[0]) + m - 1
        if m == 1:
            return self.times(top, float(c[1]), level + 1, square)
        h = 2 ** (m - 1)
        low = c[:h].copy()
        high = np.zeros(h)
        odd = np.arange(1, h, 2)
        high[odd] = 2 * c[h + odd]  # 2 T_h T_j = T_(h + j) + T_(h - j)
        low[h - odd] -= c[h + odd]
        scale = square / top.scale
        # which rescaling turns into scale
        before = scale * scales[level - 1] ** 2 / scales[level]
        factor = self._relinearise(self._node(powers, high, m - 1, before))
        both = self._do("multiply", top, self.rescale(factor, scale))
        both.scale = square
        rest = self._node(powers, low, m - 1, square)
        rest = self._do("mod_switch_to", rest, self._names[level])
        return self._add(both, rest)

    # ------------------------------------------------------------------ one step

    def win(self, chunk: Chunk, j: int, other: int) -> Ciphertext:
        """Return an encrypted comparison: 1 if centroid j is nearer than the other, else 0.

        With ``other == j``: 1 if the record is within the radius of centroid j.
        """
        weights, clear = chunk.comparison(j, other)
        z = None
        # The lengths can differ: a pair of centroids has no weights for squares, which cancel.
        for column, w in zip((*chunk.columns, *chunk.squares), weights, strict=False):
            y = self.times(column, w, 1)
            z = y if z is None else self._add(z, y)
        z = self.plus(self.rescale(z), _slots(clear))
        # A stage takes its argument over its bound; the last one gives sign / 2.
        next_bounds = [*(stage.bound for stage in STAGES[1:]), 2.0]
        for stage, bound in zip(STAGES, next_bounds, strict=True):
            full = np.zeros(2 * len(stage.coefficients))
            full[1::2] = stage.coefficients
            z = self._odd(z, full / bound)
        return self.plus(z, 0.5)

    def _membership(
        self, j: int, wins: dict[tuple[int, int], Ciphertext]
    ) -> Ciphertext:
        """Return the product of a cluster's wins: 1 for its records, 0 for others."""
        factors = []
        for (a, b), win in wins.items():
            if a == j:
                factors.append(win)
            elif b == j:  # in a pair (j, l) with j < l, l wins where j does not
                factors.append(self.plus(self._do("negate", win), 1.0))
        # The product is a tree of pairs, because each level costs one prime (`moduli`).
        while len(factors) > 1:
            pairs = zip(factors[::2], factors[1::2], strict=False)
            products = [self.rescale(self.multiply(a, b)) for a, b in pairs]
            if len(factors) % 2:
                products.append(factors[-1])
            factors = products
        return factors[0]

    def cluster(
        self, chunk: Chunk, j: int, wins: dict[tuple[int, int], Ciphertext]
    ) -> WordArray:
        """Return one cluster's encrypted count and sums of a chunk, (1 + d, 2, N).

        A record's membership A is the product of the cluster's k - 1 wins and, with a
        radius, the test of the radius. The count is the sum of A. A column's sum is the
        sum of A x or, with a radius, of A (x - c). A value is the sum of a ciphertext's
        slots.
        """
        m, a = chunk.own.shape
        last = self.moduli.levels
        centre = chunk.centroids[j] * (chunk.radius is not None)
        member = self._at(self._membership(j, wins), last - 1)
        offsets = chunk.own - centre[:a]
        rows = np.concatenate([np.ones((1, m)), offsets.T])
        values = [self.times(member, _slots(row), last) for row in rows]
        foreign = zip(chunk.columns, centre[a:], chunk.half_widths[a:], strict=True)
        for column, c, half_width in foreign:
            x = self.rescale(self.times(column, float(half_width), last - 1))
            if chunk.radius is not None:  # where there is no record, both are 0
                x = self.plus(x, _slots(np.full(m, -c)))
            values.append(self.multiply(member, x))
        rescaled = [self.rescale(v) for v in values]
        return np.stack([self.words(v) for v in rescaled])

    def chunk(self, chunk: Chunk) -> WordArray:
        """Return a chunk's encrypted counts and sums, (k, 1 + d, 2, N).

        They are transforms modulo q0.
        """
        k = len(chunk.centroids)
        tasks = comparisons(k, chunk.radius)
        wins = {(j, other): self.win(chunk, j, other) for j, other in tasks}
        clusters = [self.cluster(chunk, j, wins) for j in range(k)]
        return np.stack(clusters)


def _slots(values: FloatArray) -> FloatArray:
    return np.pad(values, (0, SLOTS - len(values)))
