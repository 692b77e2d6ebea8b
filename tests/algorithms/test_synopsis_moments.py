"""Second moments of SynopsisKMeans: mean norms and spectra, by the formulas of the guarantees."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms.synopsis_moments import (
    mean_norm,
    spectrum,
    spectrum_of_groups,
)

pytestmark = pytest.mark.claim("guarantees", "22")


@pytest.mark.parametrize(
    ("found", "error", "expected"),
    [
        (0.6, 0.0, 0.6),
        (0.6, 0.2, 0.425),  # halfway to what is likely
        (0.6, 0.1, (0.25 / 0.04 + 0.6 / 0.01) / (1 / 0.04 + 1 / 0.01)),
        (0.6, 1e9, 0.25),
        (7.0, 0.0, 1.0),
        (-7.0, 0.0, 0.0005),
        (-7.0, 0.01, 0.003),
        (-7.0, 0.1, 0.006),
    ],
)
def test_the_mean_norm_is_between_what_was_found_and_what_is_likely(
    found, error, expected
):
    assert mean_norm(found, error) == pytest.approx(expected)


def test_directions_above_the_noise_keep_their_variance_and_the_others_share_the_rest():
    values = np.array([0.5, 0.1101, 0.1099, -0.3])
    found, n_clear = spectrum(values, 0.1, 0.8)
    first = (0.5 + math.sqrt(0.25 - 0.01)) / 2
    second = (0.1101 + math.sqrt(0.1101**2 - 0.01)) / 2
    rest = (0.8 - first - second) / 2
    np.testing.assert_allclose(found, [first, second, rest, rest])
    assert n_clear == 2
    exact, n_clear = spectrum(np.array([0.5, 0.2, 0.0]), 0.0, 0.7)
    # 2 % are left for what has none
    np.testing.assert_allclose(exact, [0.5, 0.2, 0.014])
    assert n_clear == 2
    none, n_clear = spectrum(np.array([0.05, -0.05]), 0.1, 0.25)
    np.testing.assert_allclose(none, [0.125, 0.125])
    assert n_clear == 0
    # No direction is without variance.
    np.testing.assert_array_equal(spectrum(np.zeros(2), 0.0, 1e-9)[0], [1e-7, 1e-7])


def test_singular_values_above_the_noise_give_variances():
    """Against products of groups with a planted direction and simulated noise."""
    d, m, noise = 400, 100, 1e-3
    rng = np.random.default_rng(5)
    edge = noise * (math.sqrt(d) + math.sqrt(m))
    alone = np.linalg.svd(noise * rng.normal(size=(d, m)), compute_uv=False)
    assert alone.max() == pytest.approx(edge, rel=0.05)
    found, n_clear = spectrum_of_groups(alone[:64], noise, (d, m), 0.5)
    assert n_clear == 0
    np.testing.assert_allclose(found, 0.5 / d)
    variance = 0.15
    axis = rng.normal(size=d) / math.sqrt(d)
    kept = rng.normal(size=m) / math.sqrt(d)  # m / d of its squared length
    planted = variance * np.outer(axis, kept) + noise * rng.normal(size=(d, m))
    values = np.linalg.svd(planted, compute_uv=False)
    found, n_clear = spectrum_of_groups(values[:64], noise, (d, m), 0.5)
    assert n_clear == 1
    assert found[0] == pytest.approx(variance, rel=0.15)
    np.testing.assert_allclose(found[1:], (0.5 - found[0]) / (d - 1))


def test_without_noise_all_singular_values_are_variances():
    values = np.array([0.3, 0.1, 0.0])
    found, n_clear = spectrum_of_groups(values, 0.0, (12, 3), 1.0)
    assert n_clear == 2
    np.testing.assert_allclose(found[:2], [0.6, 0.2])
    np.testing.assert_allclose(found[2:], 0.02)
