"""The moduli of a vertical run, by its number of clusters (docs/protocol.md, 13)."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.vertical.ring import SLOTS, N

# Up to 16 clusters, all primes together have 817 bits. The bounds of the Homomorphic
# Encryption Standard for N = 2^15, a ternary secret and 128-bit security are 881 bits, and
# 827 bits against quantum computers. The number of pairs grows with the square of the
# clusters.
MAX_CLUSTERS = 16
# Three polynomials of degree 15 (`signs.STAGES`), of log2(16) levels each.
_SIGN_LEVELS = 12
_SCALE = 0.999 * 2.0**40  # a prime near it lies below 2^40: five bytes
_BASES = 2, 3, 5, 7
# Below 2^49, as `ring` needs. q0 limits what a word can hold: 2^47 over 2^26 for a
# record, so sums stay below 2^20.9 records (docs/guarantees, Theorem 32).
_Q0 = 0.99 * 2.0**48
_SPECIAL = 0.99 * 2.0**49


@dataclass(frozen=True)
class Moduli:
    """Primes and scales of a run."""

    n_clusters: int
    radius: bool  # whether each cluster has one more sign, for records within a radius
    levels: int  # number of rescalings of a fresh ciphertext
    q0: int  # the prime below 2^48 that is left at the last level
    special: int  # the prime below 2^49 of evaluation keys
    scales: tuple[float, ...]  # at every level, the fresh one first
    # q0, then one prime below 2^40 for each level, the last level's first
    data: tuple[int, ...]
    key: tuple[int, ...]  # the primes of keys: ``data`` and the special prime

    @property
    def unit(self) -> float:
        """Opened integers per record, about 2^26: an integer counts multiples of 1 / unit."""
        return self.scales[-1] / SLOTS


@functools.lru_cache
def moduli(n_clusters: int, radius: bool = False) -> Moduli:
    """Return the moduli for a number of clusters.

    Each prime is the one nearest to the value that keeps the scales of all levels
    equal, so scales are exact for each level and stay within 0.001 of the first one.

    Raises
    ------
    ConfigurationError
        If ``n_clusters`` is outside 2 to 16.
    """
    if not isinstance(n_clusters, int) or not 2 <= n_clusters <= MAX_CLUSTERS:
        raise ConfigurationError(
            "The 'n_clusters' parameter of a vertical run must be in [2, "
            f"{MAX_CLUSTERS}]. Got {n_clusters!r} instead."
        )
    # number of signs whose product is a membership
    factors = n_clusters if radius else n_clusters - 1
    # The first level compares two distances, and the last one multiplies by a column.
    levels = 1 + _SIGN_LEVELS + math.ceil(math.log2(factors)) + 1
    used: set[int] = set()
    q0 = _prime_near(_Q0, used)
    special = _prime_near(_SPECIAL, used)
    scales = [_SCALE]
    primes = []
    for _ in range(levels):
        square = scales[-1] ** 2
        prime = _prime_near(square / _SCALE, used)
        primes.append(prime)
        scales.append(square / prime)
    data = (q0, *reversed(primes))
    return Moduli(
        n_clusters=n_clusters,
        radius=radius,
        levels=levels,
        q0=q0,
        special=special,
        scales=tuple(scales),
        data=data,
        key=(*data, special),
    )


def _prime_near(target: float, used: set[int]) -> int:
    """Return the prime nearest to a target that is 1 modulo 2 N and not used yet."""
    candidates = (n for n in _numbers_near(target) if n not in used)
    prime = next(n for n in candidates if _passes_fermat(n))
    used.add(prime)
    return prime


def _numbers_near(target: float) -> Iterator[int]:
    """Yield the numbers that are 1 modulo 2 N, the nearest to a target first."""
    step = 2 * N
    below = int(target) // step * step + 1
    for away in itertools.count(0, step):
        yield below + away
        yield below - away


def _passes_fermat(n: int) -> bool:
    """Return whether Fermat's test accepts n. Unit tests prove the moduli by division."""
    return all(pow(base, n - 1, n) == 1 for base in _BASES)
