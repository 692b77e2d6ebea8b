import math

import pytest

from flower_kmeans.errors import ConfigurationError, MessageError
from flower_kmeans.privacy.release import Release, release_from_config


@pytest.mark.parametrize(
    ("norm", "parts", "costs"),
    [("l1", (), (0.25,)), ("linf", ((0.5, 2), (1.0, 3)), (0.125,) * 2 + (0.25,) * 3)],
)
def test_a_release_costs_what_its_parts_cost(norm, parts, costs):
    release = Release("sums", "laplace", norm, 4, ["sums", "more"], parts)
    assert release.costs == costs
    assert release.cost == sum(costs)
    assert release_from_config(release.to_config()) == release
    assert Release("sums", "gaussian", "l2", 0.0, ("sums",)).cost == math.inf


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"parts": parts}
            for parts in (None, "", [], [[]], [3], [["0x1p-1", 2, 2]], [["0x1p+1", 1]])
        ),
        {"parts": [["0x1p-1", 0]]},
        {"norm": "l1"},
    ],
)
def test_malformed_parts_of_a_document_are_refused(change):
    config = Release("sums", "laplace", "linf", 4, ["sums"], ((0.5, 2),)).to_config()
    with pytest.raises(MessageError):
        release_from_config({**config, **change})


@pytest.mark.parametrize(
    ("mechanism", "norm", "multiplier", "blocks", "parts", "name"),
    [
        *(
            ("gaussian", "l2", multiplier, ("a",), (), "noise_multiplier")
            for multiplier in (-1.0, math.inf, math.nan, 1e-101)
        ),
        ("cauchy", "l2", 1.0, ("a",), (), "mechanism"),
        ("gaussian", "l1", 1.0, ("a",), (), "norm"),
        ("gaussian", "linf", 1.0, ("a",), ((1.0, 2),), "norm"),
        ("gaussian", "l2", 1.0, (), (), "blocks"),
        ("laplace", "l1", 1.0, ("a",), ((1.0, 2),), "parts"),
        ("laplace", "linf", 1.0, ("a",), (), "parts"),
        *(
            ("laplace", "linf", 1.0, ("a",), (part,), "parts")
            for part in (
                (0.0, 2),
                (1.5, 2),
                (math.nan, 2),
                (1.0, 0),
                (1.0, True),
                (1.0, 2**17 + 1),
            )
        ),
    ],
)
def test_what_is_no_release_is_refused(
    mechanism, norm, multiplier, blocks, parts, name
):
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        Release("a", mechanism, norm, multiplier, blocks, parts)
