"""The ring of 64-bit words."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.secagg.ring import from_ring, require_capacity, to_ring


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
@settings(deadline=None)
def test_views_are_inverse_and_modular(values):
    array = np.array(values, dtype=np.int64)
    ring = to_ring(array)
    assert [int(word) for word in ring] == [value % 2**64 for value in values]
    assert np.array_equal(from_ring(ring), array)
    assert not values or np.shares_memory(ring, array)


@pytest.mark.parametrize("bits", [32, 64])
def test_capacity_is_exact(bits):
    require_capacity(2 ** (bits - 1) - 1, bits)
    require_capacity(0, bits)
    with pytest.raises(ConfigurationError):
        require_capacity(2 ** (bits - 1), bits)


def test_refusal_shows_the_numbers():
    with pytest.raises(ConfigurationError, match=r"2\^31.*32 bits.*2\^40\.0.*n_records=7"):
        require_capacity(2.0**40, 32, "It follows from n_records=7.")


@pytest.mark.parametrize("bound", [math.nan, math.inf, -1.0])
def test_meaningless_bounds_are_refused(bound):
    with pytest.raises(ConfigurationError, match=str(bound)):
        require_capacity(bound)
