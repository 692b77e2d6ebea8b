"""Second moments of SynopsisKMeans: mean norms and spectra, by the formulas of the guarantees."""

import math

import numpy as np
import pytest

from flower_kmeans.algorithms.synopsis_moments import mean_norm, spectrum

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
