"""Releases, their fractions of the cost, and the curve: numbers are those of the plan."""

import math

import numpy as np
import pytest
from report_pages import MODES, PARTITIONS, finished, read, strategy_of, tables

from flower_kmeans import PrivacyBudget, html_report, simulate
from flower_kmeans.report.figures import Frame
from flower_kmeans.report.html import cost_shares, least_shown
from flower_kmeans.strategies import FedDPKMeans

PRIVATE = [mode for mode in MODES if mode[1] != "plain"]


@pytest.mark.parametrize(("name", "trust"), PRIVATE)
def test_every_release_of_the_plan_is_listed_with_its_noise_and_cost(name, trust):
    clustering = finished(name, trust)
    plan, report = clustering.report.plan, clustering.report
    rows = tables(read(html_report(clustering)))["Every release of the plan"]
    releases = [(t, each) for t, group in enumerate(plan.rounds, 1) for each in group]
    assert len(rows) == len(releases) + 2
    for row, (t, release) in zip(rows[1:-1], releases, strict=True):
        kind = "mu" if release.mechanism == "gaussian" else "epsilon"
        assert row[:-1] == [
            str(t),
            release.name,
            ", ".join(release.blocks),
            release.norm + (" of 2 words" if release.parts else ""),
            release.mechanism,
            f"{release.noise_multiplier:.4g}",
            f"{kind} {release.cost:.4g}",
        ]
    together = f"epsilon {report.epsilon:.4g} at delta {report.delta:.3g}"
    assert rows[-1][6] == (together if report.mu is None else f"mu {report.mu:.4g}: {together}")
    shares = cost_shares(plan)
    if plan.mu is None:
        assert shares == [None] * len(releases)
    else:
        assert shares == pytest.approx([each.cost**2 / plan.mu**2 for _, each in releases])
        assert math.fsum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
def test_the_noise_is_given_as_added_and_as_left(trust):
    """Of five shares that were made for three, four are left the planned noise if it is removed."""
    root = read(html_report(finished("SynopsisKMeans", trust)))
    text = root.the("section", id="run").text
    left, added = (f"{math.sqrt(5 / shares):.4g} times" for shares in (4, 3))
    removed = trust == "distributed-noise"
    assert added in text
    assert (left in text) == ("noise that clients added" in text) == removed
    rows = tables(root.the("section", id="rounds"))["Clients by round"]
    assert rows[0][4] == "noise"
    assert {row[4] for row in rows[1:]} == {f"{math.sqrt(5 / (4 if removed else 3)):.4g}"}


def test_epsilons_of_pure_laplace_noise_add_up():
    strategy = strategy_of("SuLloyd", "trusted-server", privacy=PrivacyBudget(2.0, 0.0))
    shares = cost_shares(strategy.plan)
    assert math.fsum(shares) == pytest.approx(1.0)
    assert shares[0] == pytest.approx(strategy.plan.releases[0].cost / 2.0)


def test_mixtures_have_no_shares():
    points = np.random.default_rng(0).uniform(0, 10, (20, 2))
    domain = strategy_of("GLloyd", "trusted-server").domain
    strategy = FedDPKMeans(
        3, domain, PrivacyBudget(4.0), 300, server_data=points, trust="trusted-server",
        mechanisms="laplace", n_rounds=1,
    )  # fmt: skip
    assert {release.mechanism for release in strategy.plan.releases} == {"gaussian", "laplace"}
    page = html_report(simulate(strategy, PARTITIONS))
    rows = tables(read(page))["Every release of the plan"]
    assert {row[-1] for row in rows[1:]} == {"-"}


def test_without_noise_nothing_has_a_price():
    text = read(html_report(finished("FastLloyd", "plain"))).the("section", id="releases").text
    assert "No answer had noise, so none has a price." in text
    assert "mu " not in text
    assert "no guarantee" in text


def drawn(root, style):
    """Return epsilons and deltas of a drawn line, read back from its drawing and its ticks."""
    chart = root.the("section", id="curve").all("svg")[0]
    (line,) = chart.all("polyline", style)
    points = [[float(v) for v in p.split(",")] for p in line.attributes["points"].split()]
    texts = [e for e in chart.all("text", "label") if e.attributes["text-anchor"] != "start"]
    return np.array(points), texts, chart


@pytest.mark.parametrize(
    ("name", "trust"), [("FastLloyd", "oblivious-server"), ("SuLloyd", "trusted-server")]
)
def test_the_curve_is_that_of_the_plan_and_the_claim_is_marked(name, trust):
    report = finished(name, trust).report
    points, texts, chart = drawn(read(html_report(finished(name, trust))), "curve")
    left, right, top, floor = Frame.left, Frame.right, Frame.top, Frame().floor
    reach, low = 2.5 * report.epsilon, least_shown(report.delta)
    epsilons = (points[:, 0] - left) / (right - left) * reach
    deltas = low ** ((points[:, 1] - top) / (floor - top))
    # Drawn to a hundredth of a unit.
    step = 0.011 / (right - left) * reach
    assert deltas[-1] == pytest.approx(low)
    assert report.plan.delta(float(epsilons[-1]) + step) <= low
    for epsilon, delta in list(zip(epsilons, deltas, strict=True))[:-1]:
        around = [report.plan.delta(float(max(0.0, e))) for e in (epsilon - step, epsilon + step)]
        assert around[1] * 0.998 <= delta <= around[0] * 1.002
    assert len(epsilons) > 50
    assert np.all(np.diff(points[:, 0]) > 0)
    assert np.all(np.diff(points[:, 1]) >= 0)
    (mark,) = chart.all("circle", "at")
    x, y = float(mark.attributes["cx"]), float(mark.attributes["cy"])
    assert (x - left) / (right - left) * reach == pytest.approx(report.epsilon, rel=1e-3)
    assert low ** ((y - top) / (floor - top)) == pytest.approx(report.delta, rel=5e-3)
    assert f"epsilon {report.epsilon:.4g}, delta {report.delta:.3g}" in mark.text
    assert np.abs(epsilons - report.epsilon).min() < step  # the line has a point at the claim
    assert {"epsilon", "delta"} <= {text.text for text in texts}
    numbers = tables(read(html_report(finished(name, trust))))["The same as numbers"]
    expected = report.to_dict()["delta_at_epsilon"]
    assert numbers[1:] == [[f"{e:.4g}", f"{d:.3g}"] for e, d in expected]


def test_a_run_that_starts_from_another_one_has_two_curves():
    domain = strategy_of("GLloyd", "trusted-server").domain
    points = np.random.default_rng(0).uniform(0, 10, (20, 2))
    start = FedDPKMeans(
        3, domain, PrivacyBudget(2.0), 300, server_data=points, n_clients=5, n_rounds=0
    )
    first = simulate(start, PARTITIONS)
    second = simulate(strategy_of("FastLloyd", "trusted-server", initial=first), PARTITIONS)
    root = read(html_report(second))
    own, _, _ = drawn(root, "line-1")
    both, _, _ = drawn(root, "line-2")
    assert both[-1, 0] > own[-1, 0]
    text = root.the("section", id="guarantee").text
    assert f"Both together cost epsilon {second.report.together.epsilon():.4g}" in text
    assert "with the run before" in root.the("section", id="curve").text


@pytest.mark.parametrize(
    ("delta", "low"), [(1e-6, 1e-9), (3e-8, 1e-11), (1e-14, 1e-15), (0, 1e-12)]
)
def test_the_axis_of_delta_ends_well_below_the_claim(delta, low):
    assert least_shown(delta) == pytest.approx(low)
