"""The typed state of SynopsisKMeans: views of named integers, in their units."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flower_kmeans.algorithms.synopsis_sizes import Sizes
from flower_kmeans.algorithms.synopsis_state import (
    WARNINGS,
    Clusters,
    CountedCells,
    Directions,
    Note,
    Setting,
    Spread,
)
from flower_kmeans.data.domain import Ball

Q = 16
RNG = np.random.default_rng


def reals(*shape):
    """Reals that a state holds exactly."""
    return RNG(sum(shape)).integers(0, 2**20, shape) * 2.0**-20


def integers(*shape):
    return RNG(sum(shape)).integers(-(2**15), 2**15, shape)


VIEWS = {
    "directions": (Directions(integers(4, 2), reals(2), 0.125), ()),
    "cells": (
        CountedCells(integers(5, 2), integers(5), reals(5, 2), 0.5, np.arange(5) / 4),
        (Q,),
    ),
    "spread": (Spread(reals(3), 0.25), ()),
    "clusters": (
        Clusters(integers(3, 4), np.arange(3) / 4, reals(3, 4), reals(3, 3), 0.75, 77),
        (Q,),
    ),
    "sizes": (Sizes(integers(9), integers(3), 0.5), ()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_state_is_integers_that_it_is_read_from(name):
    view, bits = VIEWS[name]
    arrays = view.to_arrays(*bits)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}
    found = type(view).read(arrays, *bits)
    for part, expected in zip(found, view, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_every_note_is_a_warning():
    assert list(Note) == list(range(len(WARNINGS)))


def setting(**options):
    figures = Setting(
        domain=Ball(1.0, [0.0] * 4),
        fraction_bits=Q,
        n_clusters=3,
        n_directions=2,
        strength=100.0,
        n_records=1000.0,
        seed=0,
    )
    return replace(figures, **options)


def test_a_radius_is_a_step_of_the_grid_at_least_and_cuts_no_record_at_most():
    assert setting().radius(0.0) == 1
    assert setting().radius(1e6) == 2**Q
    # 0.9 (0.7 + 0.3 ln s), s = S / (k sqrt d) = 100 / 6, times the root.
    factor = 0.9 * (0.7 + 0.3 * np.log(100 / 6))
    assert setting().radius(0.01) == pytest.approx(factor * 0.1 * 2**Q, abs=1)


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(
    ("d", "k", "strength", "live"),
    [
        (32, 1, 0.0, 32),
        # s = S / (k sqrt d) = S / 48 and S / 32
        (36, 8, 1535.0, 16),
        (36, 8, 1537.0, 36),
        (64, 4, 1023.0, 16),
        (64, 4, 1025.0, 64),
        (64, 31, 0.0, 16),
        (64, 32, 0.0, 64),
        (128, 63, np.inf, 16),
        (128, 64, 0.0, 64),
        (130, 70, np.inf, 16),
        (768, 20, np.inf, 16),
    ],
)
def test_all_directions_are_live_in_few_columns_or_if_they_are_all_columns_and_needed(
    d, k, strength, live
):
    figures = setting(
        domain=Ball(1.0, [0.0] * d),
        n_directions=min(d, 64),
        n_clusters=k,
        strength=strength,
    )
    assert figures.fewest_live == live
    assert replace(figures, n_directions=5).fewest_live == 5


def test_directions_that_are_not_live_are_zeros():
    columns = integers(4, 3)
    columns[:, 2] = 0
    found = Directions(columns, np.array([0.1, 0.1, 1e-9]), rest=0.5)
    assert (found.n_live, found.n_beside, found.beside) == (2, 2, 0.25)
    every = Directions(integers(3, 3), np.full(3, 0.1), rest=0.0)
    assert (every.n_live, every.n_beside, every.beside) == (3, 0, 0.0)


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(
    ("signal", "of_cells", "of_refinements"),
    [
        (0.0, 1.0, 1.0),
        (1.0, 1.0, 1.0),
        (100.0, 0.7 + 0.3 * np.log(100), 0.7 + 0.3 * np.log(100)),
        # From here on the formula with a logarithm gives less to refinements.
        (250.0, 0.7 + 0.3 * np.log(250), 2.5),
        (1000.0, 2.6, 10.0),
        (5000.0, 2.6, 20.0),
        (np.inf, 2.6, 20.0),
    ],
)
def test_radii_are_longer_with_less_noise_within_limits(
    signal, of_cells, of_refinements
):
    found = setting(strength=6 * signal)
    assert found.factor == pytest.approx(of_cells)
    assert found.refinement_factor == pytest.approx(of_refinements)


@pytest.mark.claim("guarantees", "22")
@pytest.mark.parametrize(("q", "factor"), [(4, 2.6), (8, 4.0), (10, 16.0), (11, 20.0)])
def test_a_coarse_grid_has_no_long_radii(q, factor):
    """A root mean square keeps 64 steps, or those of the radii of cells."""
    found = setting(strength=np.inf, fraction_bits=q)
    assert found.refinement_factor == factor


@pytest.mark.claim("guarantees", "22")
def test_a_cluster_is_clear_by_its_records():
    # S n / (N sqrt d) = 100 n / (1000 * 2) is 16.
    assert setting().clear_size == pytest.approx(320)
    assert setting(strength=math.inf).clear_size == 0
    assert setting(strength=math.inf, n_records=math.inf).clear_size == 0
