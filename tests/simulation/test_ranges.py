"""Simulated runs within outer bounds, whose first round finds the ranges of columns."""

import numpy as np
import pytest
from harness import without_noise

from flower_kmeans import Box, PrivacyBudget, html_report, simulate
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.strategies import GLloyd, SuLloyd, SynopsisKMeans
from tests.support.saying import assert_within

RNG = np.random.default_rng
CENTERS = np.array([[0, 0], [8, 1], [1, 9], [9, 8], [4, 4]])


def records_of(n=5000):
    rng = RNG(0)
    return CENTERS[np.arange(n) % 5] + rng.normal(0, 0.5, (n, 2))


def parts_of(records, n=5):
    return np.array_split(RNG(1).permutation(records), n)


@pytest.mark.claim("own-data", "ranges-of-wide-columns")
def test_one_column_with_bounds_far_too_wide_costs_little():
    """The median of five runs: noise makes one range in a hundred far wider than needed."""
    records = records_of()
    best = ((records - CENTERS[np.arange(5000) % 5]) ** 2).sum()
    lower, upper = [-400.0, -2.0], [700.0, 12.0]
    costs = []
    for tighten in [None, *[0.1] * 5]:
        domain = Box(lower, upper, tighten=tighten)
        strategy = SynopsisKMeans(
            5, domain, PrivacyBudget(1.0), n_records=5000, n_clients=5, seed=2
        )
        found = simulate(strategy, parts_of(records))
        costs.append(found.inertia(records) / best)
    without, *tightened = costs
    assert_within("without ranges the cost is", without, least=3, unit="times the best")
    middle = np.median(tightened)
    assert_within("with ranges the cost is", middle, most=1.1, unit="times the best")


@pytest.mark.claim("own-data", "ranges-part-of-result")
@pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
@pytest.mark.parametrize("scale", ["column", "common"])
def test_a_result_has_the_ranges_in_the_users_units(trust, scale):
    domain = Box(
        [-300, -200], [300, 200], scale, columns=["east", "north"], tighten=0.2
    )
    strategy = GLloyd(
        5, domain, PrivacyBudget(8.0), 5000, n_clients=5, trust=trust, seed=1
    )
    records = records_of()
    with without_noise():
        clustering = simulate(strategy, parts_of(records))
    found = clustering.domain
    assert (found.scale, found.columns, found.tighten) == (scale, domain.columns, None)
    outside = found.outside(records) / len(records)
    assert_within("of a column, records lie outside its range:", outside, most=0.05)
    widths = np.subtract(found.upper, found.lower)
    assert (widths < 0.3 * np.subtract(domain.upper, domain.lower)).all()
    report = clustering.report
    assert [each.column for each in report.ranges] == ["east", "north"]
    assert [each.lower for each in report.ranges] == list(found.lower)
    assert report.theorems[-1] == 45
    assert report.to_dict()["bounds"]["tighten"] == 0.2
    text = next(words for words in report.statements if "ranges of columns" in words)
    assert "They cost 0.2 of mu^2." in text
    assert text in html_report(clustering).replace("&#39;", "'")
    labels = clustering.predict(records)
    assert clustering.inertia(records) > 0
    assert labels.shape == (5000,)


def test_a_later_run_within_the_ranges_needs_no_first_round():
    domain = Box([-300, -200], [300, 200], tighten=0.2)
    options = {"n_clients": 5, "n_rounds": 2, "trust": "trusted-server"}
    records = parts_of(records_of())
    first = simulate(GLloyd(5, domain, PrivacyBudget(8.0), 5000, **options), records)
    second = GLloyd(5, first.domain, PrivacyBudget(8.0), 5000, initial=first, **options)
    assert second.n_rounds == 2
    assert simulate(second, records).report.together.epsilon() > 8


def test_columns_that_stay_outer_are_a_warning():
    domain = Box([-300, 0.5], [300, 8.5], tighten=0.2)
    strategy = GLloyd(5, domain, PrivacyBudget(8.0), 5000, n_clients=5)
    with without_noise():
        report = simulate(strategy, parts_of(records_of())).report
    (text,) = [words for words in report.warnings if "outer bounds" in words]
    assert text.startswith("The outer bounds of 'column 2' stayed")
    assert [each.is_outer for each in report.ranges] == [False, True]
    assert "(outer bounds)" in report.ranges[1].text


def test_a_strategy_with_laplace_noise_refuses_outer_bounds():
    with pytest.raises(ConfigurationError, match="without tighten for SuLloyd"):
        SuLloyd(2, Box([0], [1], tighten=0.1), PrivacyBudget(1.0), 1000)


def test_the_plan_has_the_release_and_the_smallest_group():
    domain = Box([0, 0], [1, 1], tighten=0.1)
    text = GLloyd(3, domain, PrivacyBudget(1.0), 5000).plan.describe()
    assert "1      ranges" in text
    assert "groups of fewer than 164 records that lie apart may be cut off" in text
    assert "WARNING: 164 records are more than a fiftieth of n_records=5,000" in text
