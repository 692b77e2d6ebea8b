"""Synthetic families of the papers: sizes, outliers, degrees of separation, and seeds."""

import numpy as np
import pytest

from bench.families import g2, synth, time_synth
from flower_kmeans.data import generators
from flower_kmeans.data.generators import sizes_of
from flower_kmeans.errors import ConfigurationError


def test_a_set_of_the_synth_family():
    sizes = np.bincount(synth(4, 2, 5).labels + 1)
    assert (
        sizes[1:].tolist()
        == sizes_of(10_000, [1, 2, 3, 4]).tolist()
        == [1000, 2000, 3000, 4000]
    )
    assert 0 <= sizes[0] <= 100
    assert len({len(synth(2, 2, seed).records) for seed in range(5)}) > 1
    large = synth(128, 2, 0)
    assert large.centers.shape == (128, 2)
    assert np.bincount(large.labels[large.labels >= 0]).min() >= 1


def test_degrees_of_the_synth_family_are_in_their_range(monkeypatch):
    asked, real = [], generators.separated_centers
    monkeypatch.setattr(
        generators,
        "separated_centers",
        lambda *given: asked.append(given[1]) or real(*given),
    )
    for seed in range(20):
        synth(2, 2, seed)
        time_synth(100, 2, 2, seed)
    assert 0.16 <= min(asked) < max(asked) - 0.05
    assert max(asked) <= 0.26


def test_balanced_sets_have_no_outliers():
    made = time_synth(10_000, 3, 5, 0)
    assert made.records.shape == (10_000, 5)
    assert np.bincount(made.labels).tolist() == sizes_of(10_000, [1, 1, 1]).tolist()


@pytest.mark.parametrize("d", [1, 1024])
def test_g2_is_two_gaussians(d):
    made = g2(d, 30.0, 3)
    assert made.records.shape == (2048, d)
    assert np.bincount(made.labels).tolist() == [1024, 1024]
    np.testing.assert_array_equal(
        made.centers, np.repeat([[500.0], [600.0]], d, axis=1)
    )
    rest = (made.records - made.centers[made.labels]) / 30
    assert abs(rest.mean()) < 7 / np.sqrt(rest.size)
    assert rest.var() == pytest.approx(1, abs=7 * np.sqrt(2 / rest.size))


@pytest.mark.parametrize(
    ("make", "sizes"), [(synth, (3, 4)), (time_synth, (500, 2, 2)), (g2, (3, 10))]
)
def test_equal_seeds_give_equal_sets(make, sizes):
    first, again, other = (
        make(*sizes, rng) for rng in (11, np.random.default_rng(11), 12)
    )
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first.records[:50], other.records[:50])


@pytest.mark.parametrize("given", [(0, 1, 0), (2, 0.0, 0)])
def test_what_cannot_be_made_is_refused(given):
    with pytest.raises(ConfigurationError, match="Expected"):
        g2(*given)
