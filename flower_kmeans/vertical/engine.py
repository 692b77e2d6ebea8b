"""What the computing party does with encrypted columns (docs/vertical.md, "How it works").

This is the one module that imports TenSEAL, for its binding of Microsoft SEAL. It holds
ciphertexts and a relinearisation key, never a secret. SEAL's objects are read from
files of one fixed form, which are written here from residues that were checked: no byte
of another party reaches SEAL.
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
from typing import Any

import numpy as np

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.extras import broken, is_missing
from flower_kmeans.privacy.randomness import token
from flower_kmeans.vertical.keys import KeyHolder, expand, relin_common
from flower_kmeans.vertical.moduli import Moduli, moduli
from flower_kmeans.vertical.ring import SLOTS, Floats, N, Words, intt
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
    """Raise a `ConfigurationError` unless TenSEAL is installed and computes as expected here.

    Two columns are encrypted, multiplied and opened, about half a second at the first
    call.
    """
    _seal()
    try:
        error = _self_check()
    except Exception:
        # whatever another layout of SEAL leads to; there are no records here
        error = math.inf
    if not error < 1e-3:
        raise ConfigurationError(
            f"tenseal {version('tenseal')} does not multiply encrypted columns as expected. "
            "Install tenseal 0.3.18."
        )


def _self_check() -> float:
    """Return how far the sum of products of two encrypted columns is off."""
    full, doc_hash = moduli(2), bytes(32)
    data = (full.q0, *full.data[-2:])
    small = replace(
        full, levels=2, scales=full.scales[:3], data=data, key=(*data, full.special)
    )
    holder = KeyHolder(small, token(32), doc_hash)
    relin = np.stack([holder.relin_alone(), relin_common(small, doc_hash)], 1)
    engine = Engine(small, relin)
    x = np.linspace(-1, 1, SLOTS)
    columns = [
        engine.column(expand(small, *holder.encrypt_alone(v, i)))
        for i, v in enumerate((x, x**3))
    ]
    product = engine.rescale(engine.multiply(*columns))
    words = engine.words(engine.rescale(engine.times(product, 1.0, 2)))
    c0, c1 = (intt(c, small.q0) for c in words)
    share = holder.decryption_share(1, c1[None], lambda _: np.zeros(1, np.int64))
    opened = (int(c0[0]) + int(share[0]) + small.q0 // 2) % small.q0 - small.q0 // 2
    return abs(opened / small.unit - float((x**4).sum()))


@lru_cache(maxsize=2)
def _context(
    parameters: Moduli,
) -> tuple[Any, tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return SEAL's context, its names of the levels' moduli, and of the keys' moduli."""
    seal = _seal()
    p = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    p.set_poly_modulus_degree(N)
    p.set_coeff_modulus([seal.Modulus(q) for q in parameters.key])
    # SEAL checks the sum of the primes' bits against the Homomorphic Encryption
    # Standard here.
    context = seal.SEALContext(p, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise ConfigurationError(
            f"SEAL refuses the moduli: {context.parameters_error_name()}."
        )
    data, names = context.first_context_data(), []
    for _ in parameters.data:
        names.append(tuple(data.parms_id()))
        data = data.next_context_data()
    return context, tuple(names), tuple(context.key_parms_id())


# ---------------------------------------------------------------------- SEAL's files


def column_file(parameters: Moduli, words: Words) -> Iterator[Buffer]:
    """Return the pieces of the file from which SEAL reads an encrypted column.

    ``words`` (2, primes, N) are transforms modulo ``parameters.data``; others are a
    `MessageError`.
    """
    _check_words(words, (2,), parameters.data)
    return iter(_ciphertext(words, _context(parameters)[1][0], parameters.scales[0]))


def relin_file(parameters: Moduli, words: Words) -> Iterator[Buffer]:
    """Return the pieces of the file from which SEAL reads a relinearisation key.

    ``words`` (digits, 2, primes, N), a digit for each of ``parameters.data``, are
    transforms modulo ``parameters.key``; others are a `MessageError`.
    """
    _check_words(words, (len(parameters.data), 2), parameters.key)
    name = _context(parameters)[2]

    def pieces() -> Iterator[Buffer]:
        one = sum(map(len, _ciphertext(words[0], name, 1.0)))
        yield _header(48 + len(words) * one) + struct.pack(
            "<4QQQ", *name, 1, len(words)
        )
        for digit in words:
            yield from _ciphertext(digit, name, 1.0)

    return pieces()


def _check_words(words: Words, shape: tuple[int, ...], primes: Sequence[int]) -> None:
    # The loader of SEAL is native code that trusts its file.
    expected = (*shape, len(primes), N)
    if words.shape != expected or words.dtype != np.uint64:
        raise MessageError(f"Expected words of shape {expected}, uint64.")
    if (words.max(axis=-1) >= np.array(primes, np.uint64)).any():
        raise MessageError("Expected words below their primes.")


def _header(n_bytes: int) -> bytes:
    return _HEADER.pack(_MAGIC, _HEADER.size + n_bytes)


def _ciphertext(
    words: Words, name: tuple[int, ...], scale: float
) -> tuple[Buffer, ...]:
    size, primes, n = words.shape
    data = np.ascontiguousarray(words, "<u8").data.cast("B")
    array = _header(8 + len(data)) + struct.pack("<Q", words.size)
    metadata = _METADATA.pack(*name, True, size, n, primes, scale, 1)
    return _header(len(metadata) + len(array) + len(data)) + metadata + array, data


# ---------------------------------------------------------------------- the evaluation


@dataclass(frozen=True)
class Chunk:
    """Up to 16,384 records of one step."""

    own: Floats  # (m, a): party 0's columns in clear, within their half widths
    columns: Sequence[Ciphertext]  # d - a: the other parties' `signs.scaled_columns`
    centroids: Floats  # (k, d), party 0's coordinates first
    half_widths: Floats  # (d,)
    # records farther than this from a centroid do not count
    radius: float | None = None
    # With a radius, for each other party: its `signs.scaled_squares`, and the sum of
    # its squared half widths.
    squares: Sequence[Ciphertext] = ()
    norms: Sequence[float] = ()

    def comparison(self, j: int, other: int) -> tuple[list[float], Floats]:
        """Return the weights of columns and squares, and what the own columns add, (m,)."""
        a, c, widths = self.own.shape[1], self.centroids, self.half_widths
        if other != j or self.radius is None:
            w, b = pair(c[j], c[other], widths)
            return (w * widths)[a:].tolist(), self.own @ w[:a] + b
        w, u, b = near(c[j], self.radius, widths)
        # a party's part of |x|^2 is norm (1 + square) / 2
        halves = [u * norm / 2 for norm in self.norms]
        clear = self.own @ w[:a] + u * (self.own**2).sum(1) + (b + sum(halves))
        return [*(w * widths)[a:].tolist(), *halves], clear


def comparisons(n_clusters: int, radius: float | None) -> list[tuple[int, int]]:
    """Return what a step decides: every pair (j, l) with j < l, and (j, j) for a radius."""
    every = product(range(n_clusters), repeat=2)
    return [(j, m) for j, m in every if j < m or (j == m and radius is not None)]


class Engine:
    """Evaluate one step of k-means on encrypted columns.

    ``relin`` is the relinearisation key (digits, 2, primes, N), or a file with what
    `relin_file` gives. Scales are exact: a level has one scale, whatever way a
    ciphertext took there.
    """

    def __init__(self, parameters: Moduli, relin: Words | Path) -> None:
        self._seal = _seal()
        self.moduli = parameters
        self._context, self._names, _ = _context(parameters)
        self._level_of = {name: level for level, name in enumerate(self._names)}
        self._evaluator = self._seal.Evaluator(self._context)
        self._encoder = self._seal.CKKSEncoder(self._context)
        pieces = (
            relin_file(parameters, relin) if isinstance(relin, np.ndarray) else relin
        )
        self._relin_key = self._read(self._seal.RelinKeys(), pieces)

    def column(self, words: Words | Path) -> Ciphertext:
        """Return a ciphertext: a column's words (2, primes, N), or a file that SEAL can read."""
        pieces = (
            column_file(self.moduli, words) if isinstance(words, np.ndarray) else words
        )
        return self._read(self._seal.Ciphertext(self._context), pieces)

    def _read(self, target: Any, source: Iterator[Buffer] | Path) -> Any:
        if isinstance(source, Path):
            target.load(self._context, str(source))
            return target
        with tempfile.NamedTemporaryFile() as file:  # SEAL reads files only
            file.writelines(source)
            file.flush()
            target.load(self._context, file.name)
        return target

    def words(self, c: Ciphertext) -> Words:
        """Return a ciphertext of the last level: (2, N) words modulo q0, transformed."""
        # TenSEAL gives no buffer of a ciphertext, only one word at a time.
        return np.fromiter(
            map(c.dyn_array().at, range(2 * N)), np.uint64, 2 * N
        ).reshape(2, N)

    # ------------------------------------------------------------------ arithmetic

    def level(self, c: Ciphertext) -> int:
        """Return how many primes were dropped."""
        return self._level_of[tuple(c.parms_id())]

    def _do(self, name: str, *operands: Any) -> Ciphertext:
        out = self._seal.Ciphertext(self._context)
        getattr(self._evaluator, name)(*operands, out)
        return out

    def _plain(self, value: float | Floats, level: int, scale: float) -> Any:
        out = self._seal.Plaintext()
        number = value.tolist() if isinstance(value, np.ndarray) else value
        self._encoder.encode(number, self._names[level], scale, out)
        return out

    def times(
        self,
        c: Ciphertext,
        value: float | Floats,
        level: int,
        square: float | None = None,
    ) -> Ciphertext:
        """Return c times public numbers, not rescaled; rescaling gives ``level``.

        Its scale is ``square``, by default the square of the scale one level above.
        """
        above = level - 1
        # Dropping moduli changes no scale, so the factor below makes up for what c has.
        if self.level(c) < above:
            c = self._do("mod_switch_to", c, self._names[above])
        square = square or self.moduli.scales[above] ** 2
        plain = self._plain(value, above, square / c.scale)
        # SEAL refuses a product with nothing but zeros. Own columns decide whether
        # there is one, and whether a step fails must not depend on records.
        if plain.is_zero():
            plain = self._plain(_ALMOST_ZERO, above, square / c.scale)
        product = self._do("multiply_plain", c, plain)
        product.scale = square
        return product

    def plus(self, c: Ciphertext, value: float | Floats) -> Ciphertext:
        """Return c plus public numbers."""
        return self._do("add_plain", c, self._plain(value, self.level(c), c.scale))

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
        return c if self.level(c) == level else self.rescale(self.times(c, 1.0, level))

    def multiply(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        """Return a product at the lower of two levels (SEAL's and ours), not rescaled."""
        level = max(self.level(a), self.level(b))
        product = self._do("multiply", self._at(a, level), self._at(b, level))
        product.scale = self.moduli.scales[level] ** 2
        return self._relinearise(product)

    def _relinearise(self, c: Ciphertext) -> Ciphertext:
        return self._do("relinearize", c, self._relin_key) if c.size() > 2 else c

    # ------------------------------------------------------------------ the sign

    def _odd(self, x: Ciphertext, c: Floats) -> Ciphertext:
        """Return a series of odd Chebyshev polynomials, c (2^m,), m levels below."""
        m, powers = len(c).bit_length() - 1, [x]  # Paterson-Stockmeyer
        for _ in range(1, m):  # T_2i = 2 T_i^2 - 1
            square = self.rescale(self.multiply(powers[-1], powers[-1]))
            powers.append(self.plus(self._do("add", square, square), -1.0))
        scale = self.moduli.scales[self.level(x) + m - 1] ** 2
        return self.rescale(self._relinearise(self._node(powers, c, m, scale)))

    # A node returns three polynomials, neither relinearised nor rescaled. Rescaling
    # three would add the third's rounding times the square of the secret: a hundred
    # times the error of rescaling two. Its scale makes it fit its parent's product
    # after moduli are dropped. It is a method, not a closure that calls itself: such a
    # cycle would keep 100 MB until the garbage collector runs, which counts objects and
    # not their bytes.
    def _node(
        self, powers: list[Ciphertext], c: Floats, m: int, square: float
    ) -> Ciphertext:
        top, scales = powers[m - 1], self.moduli.scales
        level = self.level(powers[0]) + m - 1
        if m == 1:
            return self.times(top, float(c[1]), level + 1, square)
        h = 2 ** (m - 1)
        low, high, odd = c[:h].copy(), np.zeros(h), np.arange(1, h, 2)
        high[odd] = 2 * c[h + odd]  # 2 T_h T_j = T_(h + j) + T_(h - j)
        low[h - odd] -= c[h + odd]
        scale = square / top.scale
        # which rescaling turns into scale
        before = scale * scales[level - 1] ** 2 / scales[level]
        y = self._node(powers, high, m - 1, before)
        both = self._do("multiply", top, self.rescale(self._relinearise(y), scale))
        both.scale = square
        rest = self._node(powers, low, m - 1, square)
        return self._add(both, self._do("mod_switch_to", rest, self._names[level]))

    # ------------------------------------------------------------------ one step

    def win(self, chunk: Chunk, j: int, other: int) -> Ciphertext:
        """Encrypt, per record: 1 where centroid j is nearer than the other one, 0 where not.

        With ``other == j``: 1 where the record lies within the radius of centroid j.
        """
        weights, clear = chunk.comparison(j, other)
        z = None
        # Not strict: a pair of centroids has no weights for the squares, which cancel.
        for column, w in zip((*chunk.columns, *chunk.squares), weights, strict=False):
            y = self.times(column, w, 1)
            z = y if z is None else self._add(z, y)
        z = self.plus(self.rescale(z), _slots(clear))
        for i, (coefficients, _) in enumerate(STAGES):
            # the next stage takes its argument over its bound; the last one gives sign
            # / 2
            bound = STAGES[i + 1].bound if i + 1 < len(STAGES) else 2.0
            full = np.zeros(2 * len(coefficients))
            full[1::2] = coefficients
            z = self._odd(z, full / bound)
        return self.plus(z, 0.5)

    def cluster(
        self, chunk: Chunk, j: int, wins: dict[tuple[int, int], Ciphertext]
    ) -> Words:
        """Return one cluster's encrypted count and sums of a chunk, (1 + d, 2, N).

        A record's membership A is the product of the cluster's k - 1 wins and, with a
        radius, the test of it. The count is the sum of A. Without a radius a column's
        sum is that of A x, with one it is the sum of offsets, A (x - c). A value is the
        sum of a ciphertext's slots.
        """
        # in a pair (j, l) with j < l, l wins where j does not
        factors = [
            win if a == j else self.plus(self._do("negate", win), 1.0)
            for (a, b), win in wins.items()
            if j in (a, b)
        ]
        # In pairs, since each level of the tree costs one prime (`moduli`).
        while len(factors) > 1:
            pairs = zip(factors[::2], factors[1::2], strict=False)
            rest = factors[len(factors) - len(factors) % 2 :]
            factors = [self.rescale(self.multiply(a, b)) for a, b in pairs] + rest
        (m, a), last = chunk.own.shape, self.moduli.levels
        centre = chunk.centroids[j] * (chunk.radius is not None)
        member = self._at(factors[0], last - 1)
        rows = np.concatenate([np.ones((1, m)), (chunk.own - centre[:a]).T])
        values = [self.times(member, _slots(row), last) for row in rows]
        foreign = zip(chunk.columns, centre[a:], chunk.half_widths[a:], strict=True)
        for column, c, half_width in foreign:
            x = self.rescale(self.times(column, float(half_width), last - 1))
            if chunk.radius is not None:  # where there is no record, both are 0
                x = self.plus(x, _slots(np.full(m, -c)))
            values.append(self.multiply(member, x))
        return np.stack([self.words(self.rescale(v)) for v in values])

    def chunk(self, chunk: Chunk) -> Words:
        """Return a chunk's encrypted counts and sums, (k, 1 + d, 2, N), modulo q0, transformed."""
        k = len(chunk.centroids)
        wins = {task: self.win(chunk, *task) for task in comparisons(k, chunk.radius)}
        return np.stack([self.cluster(chunk, j, wins) for j in range(k)])


def _slots(values: Floats) -> Floats:
    return np.pad(values, (0, SLOTS - len(values)))
