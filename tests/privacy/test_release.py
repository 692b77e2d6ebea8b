import math

import pytest

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.privacy.release import Release, release_from_config


def test_cost_and_config():
    release = Release("sums", "laplace", "l1", 4, ["sums", "more"])
    assert release.cost == 0.25
    assert release_from_config(release.to_config()) == release
    assert Release("sums", "gaussian", "l2", 0.0, ("sums",)).cost == math.inf


def test_a_release_of_parts_costs_what_all_of_them_cost():
    release = Release("sums", "laplace", "linf", 4, ["sums"], ((0.5, 2), (1.0, 3)))
    assert release.costs == (0.125,) * 2 + (0.25,) * 3
    assert release.cost == sum(release.costs)
    assert Release("sums", "laplace", "l1", 4, ["sums"]).costs == (0.25,)
    assert release_from_config(release.to_config()) == release
    config = release.to_config()
    for wrong in (None, "", [], [[]], [3], [["0x1p-1", 2, 2]], [["0x1p+1", 1]], [["0x1p-1", 0]]):
        with pytest.raises(MessageError):
            release_from_config({**config, "parts": wrong})
    with pytest.raises(MessageError, match="out of range"):
        release_from_config({**config, "norm": "l1"})


@pytest.mark.parametrize("multiplier", [-1.0, math.inf, math.nan, 1e-101])
def test_release_refuses_a_multiplier(multiplier):
    with pytest.raises(ConfigurationError, match="'noise_multiplier'"):
        Release("a", "gaussian", "l2", multiplier, ("a",))


def test_release_refuses_other_fields():
    with pytest.raises(ConfigurationError, match="'mechanism'"):
        Release("a", "cauchy", "l2", 1.0, ("a",))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'norm'"):
        Release("a", "gaussian", "l1", 1.0, ("a",))
    for mechanism, norm, parts in (
        ("laplace", "l1", ((1.0, 2),)),
        ("laplace", "linf", ()),
        ("laplace", "linf", ((0.0, 2),)),
        ("laplace", "linf", ((1.5, 2),)),
        ("laplace", "linf", ((math.nan, 2),)),
        ("laplace", "linf", ((1.0, 0),)),
        ("laplace", "linf", ((1.0, True),)),
        ("laplace", "linf", ((1.0, 2**17 + 1),)),
    ):
        with pytest.raises(ConfigurationError, match="'parts'"):
            Release("a", mechanism, norm, 1.0, ("a",), parts)
    with pytest.raises(ConfigurationError, match="'norm'"):
        Release("a", "gaussian", "linf", 1.0, ("a",), ((1.0, 2),))
    with pytest.raises(ConfigurationError, match="'blocks'"):
        Release("a", "gaussian", "l2", 1.0, ())
