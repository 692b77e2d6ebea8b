import math

import pytest

from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.release import Release, release_from_config


def test_cost_and_config():
    release = Release("sums", "laplace", "l1", 4, ["sums", "more"])
    assert release.cost == 0.25
    assert release_from_config(release.to_config()) == release
    assert Release("sums", "gaussian", "l2", 0.0, ("sums",)).cost == math.inf


@pytest.mark.parametrize("multiplier", [-1.0, math.inf, math.nan, 1e-101])
def test_release_refuses_a_multiplier(multiplier):
    with pytest.raises(ConfigurationError, match="'noise_multiplier'"):
        Release("a", "gaussian", "l2", multiplier, ("a",))


def test_release_refuses_other_fields():
    with pytest.raises(ConfigurationError, match="'mechanism'"):
        Release("a", "cauchy", "l2", 1.0, ("a",))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'norm'"):
        Release("a", "gaussian", "l1", 1.0, ("a",))
    with pytest.raises(ConfigurationError, match="'blocks'"):
        Release("a", "gaussian", "l2", 1.0, ())
