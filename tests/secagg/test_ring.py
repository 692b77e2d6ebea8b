"""The ring of 64-bit words."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_kmeans.secagg.ring import from_ring, to_ring


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
@settings(deadline=None)
def test_views_are_inverse_and_modular(values):
    array = np.array(values, dtype=np.int64)
    ring = to_ring(array)
    assert [int(word) for word in ring] == [value % 2**64 for value in values]
    assert np.array_equal(from_ring(ring), array)
    assert not values or np.shares_memory(ring, array)
