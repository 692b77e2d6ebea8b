"""Warnings of a plan about directions: random ones, groups of columns, and hidden clusters."""

import math
import re

import pytest

from flower_kmeans.algorithms import FastLloydAlgorithm, SynopsisAlgorithm, tightened
from flower_kmeans.algorithms.synopsis_cautions import cautions, most_clear
from flower_kmeans.data.domain import Ball, Box
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget


def plan(d, n_records, epsilon=1.0, k=20, **options):
    domain = Ball(1.0, [0.0] * d)
    budget = PrivacyBudget(epsilon, 1e-6)
    return SynopsisAlgorithm.planned(k, domain, budget, n_records=n_records, **options)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (plan(768, 10**5), []),
        (plan(20, 1000, k=3), []),
        # random directions that are all columns
        (plan(16, 50, k=3), []),
        (plan(768, 500), ["random directions, because noise.*768.*larger epsilon"]),
        (plan(17, 50, k=3), ["16 random directions, because noise.*about 94%"]),
        (plan(2049, 10**6), ["random directions, because there are more than 2048"]),
        (
            plan(768, 10**5, most_words=5000),
            ["random directions, because messages.*'oblivious-server'"],
        ),
        (
            plan(768, 10**5, most_words=50_000),
            ["295,296 words.*with 65 random groups.*'oblivious-server'"],
        ),
        (
            plan(384, 4000, 0.5),
            [r"noise may hide.*384 columns.*at most \d+ directions.*up to 19"],
        ),
        # The same noise, but as many directions as clusters differ along can be clear.
        (plan(384, 4000, 0.5, k=3), []),
        (
            plan(384, 4000, 0.5, most_words=10_000),
            ["with 26 random groups", "noise may hide"],
        ),
    ],
)
def test_a_plan_warns_of_directions_that_see_little(algorithm, expected):
    found = cautions(algorithm)
    assert len(found) == len(expected)
    for text, pattern in zip(found, expected, strict=True):
        assert text.startswith("WARNING: ")
        assert re.search(pattern, text)


def test_no_more_directions_can_be_clear_than_fit_into_the_norm():
    """Variances along clear directions exceed 1.1 edge, and sum to at most 1."""
    d, n = 384, 10_000
    algorithm = plan(d, n)
    mu = mu_of_budget(1.0, 1e-6)
    share = algorithm.schedule.fraction(1, d)
    edge = math.sqrt(2 * d) / (mu * math.sqrt(share) * n)
    assert most_clear(algorithm) == math.floor(1 / (1.1 * edge))
    without_noise = SynopsisAlgorithm.planned(
        3, Ball(1.0, [0.0] * d), PrivacyBudget(None), n_records=n
    )
    assert most_clear(without_noise) == math.inf
    assert cautions(without_noise) == ()


def test_rounds_around_the_algorithm_hide_no_warning():
    domain = Box([-1] * 768, [1] * 768, tighten=0.1)
    budget = PrivacyBudget(1.0, 1e-6)
    options = {"n_records": 300, "quality": True}
    algorithm = tightened.planned(SynopsisAlgorithm, 20, domain, budget, **options)
    assert "random directions" in cautions(algorithm)[0]
    other = FastLloydAlgorithm.planned(
        20, Ball(1.0, [0.0] * 768), budget, n_records=3000
    )
    assert cautions(other) == ()
