import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from flower_kmeans.algorithms.postprocess import clip_rows, fold, quotients, to_grid, truncate

EXTREMES = [-(2**63), -(2**63) + 1, -(2**62), -1, 0, 1, 2**62, 2**63 - 1]
ANY_INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EXTREMES)


def reflected(x, half_width):
    """Reflect at the walls one step at a time, in exact fractions."""
    while abs(x) > half_width:
        x = 2 * half_width - x if x > 0 else -2 * half_width - x
    return x


@given(st.integers(-2000, 2000), st.integers(1, 100))
def test_folding_reflects_at_the_walls(x, half_width):
    found = fold(np.array([[x]]), np.array([half_width]))
    assert found[0, 0] == reflected(x, half_width)


def test_folding_sends_one_point_two_to_nought_point_eight():
    # The formula printed in the papers sends it to -0.8.
    np.testing.assert_array_equal(
        fold(np.array([[12, -12, 30, 31]]), np.full(4, 10)), [[8, -8, -10, -9]]
    )


def test_folding_onto_a_column_without_width_gives_zero():
    np.testing.assert_array_equal(fold(np.array([[5, -7]]), np.array([0, 10])), [[0, -7]])


@given(arrays(np.int64, (2, 3), elements=st.integers(-(2**62), 2**62)))
def test_folding_and_truncating_end_in_the_box(points):
    half_widths = np.array([2**16, 2**25, 0])
    for inside in (fold(points, half_widths), truncate(points, half_widths)):
        assert (np.abs(inside) <= half_widths).all()


def test_truncating_moves_to_the_walls():
    np.testing.assert_array_equal(
        truncate(np.array([[12, -12, 3]]), np.full(3, 10)), [[10, -10, 3]]
    )


def test_quotients_divide_only_by_counts_of_some_size():
    one = 2**4
    sums = np.array([[30, -30], [7, 7], [7, 7], [7, 7], [9, 8]])
    counts = np.array([2 * one, one - 1, 0, -5 * one, one])
    means, usable = quotients(sums, counts, 4, 1.0)
    np.testing.assert_array_equal(usable, [True, False, False, False, True])
    np.testing.assert_array_equal(means, [[15, -15], [0, 0], [0, 0], [0, 0], [9, 8]])


@given(
    arrays(np.int64, (4, 3), elements=ANY_INT64),
    arrays(np.int64, (4,), elements=ANY_INT64),
    st.floats(1e-3, 1e6),
)
def test_nothing_overflows_or_warns(sums, counts, radius):
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        means, usable = quotients(sums, counts, 16, 1.0)
        clipped = clip_rows(means, radius)
        grid = to_grid(clipped)
        fold(to_grid(means) + 2**16, np.full(3, 2**16))
    assert np.isfinite(means).all()
    assert not means[~usable].any()
    assert (np.sqrt((clipped**2).sum(axis=1)) <= radius * (1 + 1e-12)).all()
    assert (np.abs(grid) <= radius + 1).all()


def test_short_vectors_are_not_touched_and_long_ones_keep_their_direction():
    vectors = np.array([[3.0, 4.0], [30.0, 40.0], [0.0, 0.0], [-5.0, 0.0]])
    np.testing.assert_allclose(
        clip_rows(vectors, 5.0), [[3, 4], [3, 4], [0, 0], [-5, 0]], rtol=1e-15
    )
    np.testing.assert_array_equal(clip_rows(vectors, 5.0)[[0, 2, 3]], vectors[[0, 2, 3]])


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 784])
def test_norms_hold_for_every_width(width):
    rng = np.random.default_rng(width)
    vectors = rng.normal(size=(4, width)) * 100
    norms = np.sqrt((clip_rows(vectors, 2.0) ** 2).sum(axis=1))
    np.testing.assert_allclose(
        norms, np.minimum(2.0, np.sqrt((vectors**2).sum(axis=1))), rtol=1e-12
    )


def test_rows_do_not_depend_on_their_neighbours():
    vectors = np.random.default_rng(0).normal(size=(50, 7)) * 100
    together = clip_rows(vectors, 3.0)
    for row, alone in zip(vectors, together, strict=True):
        np.testing.assert_array_equal(clip_rows(row[None], 3.0)[0], alone)


@given(st.integers(-(2**40), 2**40))
def test_rounding_is_half_up(numerator):
    found = to_grid(np.array([[numerator / 1024]]))
    assert found[0, 0] == (numerator + 512) // 1024


def test_rounding_saturates():
    np.testing.assert_array_equal(
        to_grid(np.array([[0.5, -0.5, 1.4, 1e30, -1e30]])), [[1, 0, 1, 2**62, -(2**62)]]
    )
