"""The moduli of every number of clusters: primes, scales, and the standard's bounds."""

import math

import numpy as np
import pytest

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.vertical.moduli import moduli
from flower_kmeans.vertical.ring import SLOTS, N

ALL = [(k, radius) for k in range(2, 17) for radius in (False, True)]


def bits(made):
    return sum(math.log2(p) for p in made.key)


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
    for scale, p, following in zip(made.scales[:-1], primes, made.scales[1:], strict=True):
        assert following == pytest.approx(scale**2 / p, rel=1e-15)
    assert max(abs(scale / made.scales[0] - 1) for scale in made.scales) < 1e-3
    assert made.unit == made.scales[-1] / SLOTS
    assert abs(math.log2(made.unit) - 26) < 0.01


@pytest.mark.parametrize(("k", "radius"), ALL)
def test_moduli_are_within_the_bounds_of_the_standard(k, radius):
    """881 bits for 128-bit security with N = 2^15; 827 against quantum computers."""
    assert bits(moduli(k, radius)) <= 827 < 881


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
