"""Assertions with messages: they fail where they must, and say it in one sentence."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from harness import assert_scale
from saying import assert_within


@pytest.mark.parametrize(
    ("found", "bounds", "said"),
    [
        (2.0, {"most": 1, "unit": "units"}, "it has 2 units, at most 1 is allowed"),
        (0.5, {"least": 0.97}, "it has 0.5, at least 0.97 is allowed"),
        (1, {"most": 1, "strict": True}, "it has 1, less than 1 is allowed"),
        (1, {"least": 1, "strict": True}, "it has 1, more than 1 is allowed"),
        (1 + 1e-9, {"most": 1}, "it has 1.000000001, at most 1 is allowed"),
        ([1, 5, 3], {"most": 2}, "it has 5, at most 2 is allowed (number 1 of 3)"),
        (
            [[1, 2], [3, 9]],
            {"most": [[1, 2], [3, 8]]},
            "it has 9, at most 8 is allowed",
        ),
        (2**62 + 1, {"most": 2**62}, f"it has {2**62 + 1}, at most {2**62} is allowed"),
        (np.int64(2**62 + 1), {"most": np.int64(2**62)}, "at most"),
        (Fraction(10**20 + 1, 10**20), {"most": 1}, "at most 1 is allowed"),
        (math.nan, {"most": 1}, "it has nan, at most 1 is allowed"),
        (
            [0.5, math.nan],
            {"least": 0},
            "it has nan, at least 0 is allowed (number 1 of 2)",
        ),
    ],
)
def test_what_is_out_of_bounds_is_said_with_both_numbers(found, bounds, said):
    with pytest.raises(AssertionError, match=re.escape(said)):
        assert_within("it has", found, **bounds)


@pytest.mark.parametrize(
    ("found", "bounds"),
    [
        (1, {"least": 1, "most": 1}),
        (1 + 1e-13, {"most": 1, "slack": 1e-12}),
        ([1, 2], {"most": [1, 2]}),
        ([], {"most": 0}),
        (2**62, {"most": 2**62}),
        (math.inf, {"least": 0}),
    ],
)
def test_what_is_within_bounds_passes(found, bounds):
    assert_within("it has", found, **bounds)


def test_noise_of_another_scale_or_of_too_few_words_is_refused():
    noise = np.random.default_rng(0).normal(size=2000)
    size = math.sqrt(np.mean(noise**2))
    assert_scale("sums", noise)
    for wrong in (2 / 3, 3 / 2):
        said = f"sums: the noise of 2000 words is {size * wrong:.3f} times the planned"
        with pytest.raises(AssertionError, match=said):
            assert_scale("sums", noise * wrong)
    with pytest.raises(AssertionError, match="of it is accepted too"):
        assert_scale("sums", noise[:20])
    assert_scale("sums", noise[:20], enough=550)
