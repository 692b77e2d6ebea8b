"""The guarantee in words and numbers, the picture of the trust model, releases and the curve."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import MODES, PARTITIONS, finished, read, strategy_of, tables
from scipy import stats

from flower_kmeans import Box, Clustering, PrivacyBudget, html_report, simulate
from flower_kmeans.algorithms.released import SilhouetteSums
from flower_kmeans.algorithms.synopsis_state import WARNINGS
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release
from flower_kmeans.protocol.trust import TRUSTED_SERVER
from flower_kmeans.report.figures import PlotFrame
from flower_kmeans.report.html import detection, least_shown
from flower_kmeans.report.report import Dropped, Report
from flower_kmeans.report.shown_rounds import cost_shares
from flower_kmeans.report.silhouette import Silhouette

pytestmark = pytest.mark.claim(
    "reading-a-report",
    "warnings-follow-gravest-first",
    "what-guaranteed-plain-words",
    "releases-their-cost-has",
)


def report_of(*releases, epsilon, delta):
    plan = PrivacyPlan(PrivacyBudget(epsilon, delta), 1000, (releases,))
    return Report("GLloyd", plan, TRUSTED_SERVER, "none", min_clients=1)


def gaussian(mu):
    return Release("sums", "gaussian", "l2", 1 / mu, ("sums",))


def laplace(epsilon):
    return Release("counts", "laplace", "l1", 1 / epsilon, ("counts",))


@pytest.mark.claim("what-epsilon-means", "each-rate-false-positives")
@pytest.mark.claim("reading-a-report", "table-bounds-rate-true")
@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 4.0), st.floats(0.001, 0.5))
def test_detection_is_that_of_the_best_test_between_two_gaussians(mu, alarm):
    """The likelihood ratio of N(mu, 1) and N(0, 1) grows with x: say so where x > threshold."""
    threshold = stats.norm.isf(alarm)
    found = stats.norm(loc=mu).sf(threshold)
    assert detection(
        report_of(gaussian(mu), epsilon=1.0, delta=1e-6), alarm
    ) == pytest.approx(found)


@pytest.mark.claim("reading-a-report", "table-bounds-rate-true")
@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 5.0), st.floats(0.001, 0.5))
def test_no_test_of_a_laplace_release_finds_out_more(epsilon, alarm):
    """For one Laplace release the bound is attained where it is e^epsilon times the alarm."""
    report = report_of(laplace(epsilon), epsilon=epsilon, delta=0.0)
    threshold = stats.laplace(scale=1 / epsilon).isf(alarm)
    found = stats.laplace(loc=1.0, scale=1 / epsilon).sf(threshold)
    bound = detection(report, alarm)
    assert found <= bound * (1 + 1e-9)
    if threshold >= 1.0:
        assert found == pytest.approx(bound)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.1, 900.0), st.floats(0.0, 1e-3), st.floats(0.001, 0.5))
def test_detection_is_a_fraction_and_no_less_than_guessing(epsilon, delta, alarm):
    report = report_of(laplace(epsilon), epsilon=epsilon, delta=delta)
    found, factor = detection(report, alarm), math.exp(-report.epsilon)
    assert alarm <= found <= 1.0
    assert found == pytest.approx(
        min(1.0, alarm / max(factor, 1e-300) + delta, 1 - (1 - delta - alarm) * factor)
    )


def test_the_table_holds_these_rates():
    clustering = finished("FastLloyd", "oblivious-server")
    rows = tables(read(html_report(clustering)))[
        "How often an attacker detects that the record was there"
    ]
    alarms = (0.01, 0.05, 0.1)
    rates = stats.norm.cdf(stats.norm.ppf(alarms) + clustering.report.mu)
    expected = [
        [f"{a:.0%}", f"{100 * r:.3g}% at most"]
        for a, r in zip(alarms, rates, strict=True)
    ]
    assert rows[1:] == expected


def plain_words(clustering):
    section = read(html_report(clustering)).the("section", id="guarantee")
    return [paragraph.text for paragraph in section.all("p")]


SHARED_WORDS = (
    "the server, as long as it is passive, up to 1 client, and all of them together"
)


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        ("clients-only", SHARED_WORDS),
        ("oblivious-server", "The server sees masked words only, and adds the noise"),
        ("distributed-noise", SHARED_WORDS),
        (
            "trusted-server",
            "not against the server, which saw every client's exact sums",
        ),
    ],
)
def test_words_are_those_of_the_trust_model_and_the_numbers(trust, words):
    report = finished("FastLloyd", trust).report
    paragraphs = plain_words(finished("FastLloyd", trust))
    text = " ".join(paragraphs)
    assert words in text
    assert f"e^{report.epsilon:.4g} = {math.exp(report.epsilon):.3g} times" in text
    assert f"plus {report.delta:.3g}." in text
    assert report.protects_against["server and clients"] in text
    assert report.neighbours in text
    assert paragraphs[-2].startswith("Not protected: n_records")


def test_a_huge_epsilon_is_no_error():
    report = report_of(laplace(900.0), epsilon=900.0, delta=0.0)
    clustering = Clustering(np.zeros((1, 1)), np.ones(1), Box([0], [1]), report)
    assert "e^ε times" in " ".join(plain_words(clustering))


def first_of(clustering):
    """Return kind, subject and sentence of what has to be read first."""
    items = read(html_report(clustering)).the("section", id="first").all("li")
    parts = [(item.attributes["class"], *item.children) for item in items]
    return [(kind, about.text, words.strip()) for kind, about, words in parts]


@pytest.mark.parametrize(
    ("trust", "keys", "kind", "words"),
    [
        ("oblivious-server", "relayed", "caution", "it must add the noise and follow"),
        (
            "oblivious-server",
            "roster",
            "caution",
            "it must add the noise, and must not",
        ),
        ("distributed-noise", "relayed", "caution", "to follow the rules"),
        ("clients-only", "relayed", "caution", "to follow the rules"),
        ("clients-only", "roster", "fact", "Not the server: it cannot read"),
        ("trusted-server", "none", "caution", "The server, completely"),
    ],
)
def test_whom_to_trust_comes_first_in_plain_words(trust, keys, kind, words):
    clustering = finished("FastLloyd", trust)
    report = replace(clustering.report, keys=keys)
    found = first_of(replace(clustering, report=report))
    assert [notice[:2] for notice in found] == [
        (kind, "Whom you must trust"),
        ("fact", "Several runs"),
    ]
    assert words in found[0][2]


JARGON = re.compile(r"\bmu\b|sqrt|\btau\b|passive|noise share|M'|l2|sums\b.*counts")


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "trust"), MODES)
def test_what_has_to_be_read_first_is_short_and_has_no_jargon(name, trust):
    for keys in ("relayed", "roster", "none"):
        clustering = finished(name, trust)
        report = replace(clustering.report, keys=keys, warnings=())
        found = first_of(replace(clustering, report=report))
        assert 1 <= len(found) <= 5
        for _, _, words in found:
            assert not JARGON.search(words), words
            assert len(words.split()) <= 60


def test_warnings_of_faults_and_of_the_algorithm_are_listed():
    clustering = finished("FastLloyd", "clients-only")
    renewed = [Dropped(slot, slot, 1, "New.", "renewed") for slot in range(3)]
    warnings = ("Two candidates were left.", "The last round was empty.")
    report = replace(clustering.report, incidents=renewed, warnings=warnings)
    found = first_of(replace(clustering, report=report))
    assert found[0][:2] == ("caution", "Faults")
    assert found[0][2].startswith("WARNING: more than 1 in one round")
    assert tuple(words for _, about, words in found if about == "Result") == warnings


def test_remarks_of_algorithms_on_noise_are_one_sentence_in_plain_words():
    clustering = finished("SynopsisKMeans", "distributed-noise")
    remarks = WARNINGS[1:5]
    report = replace(clustering.report, warnings=(*remarks, "One cluster is small."))
    page = html_report(replace(clustering, report=report))
    found = first_of(replace(clustering, report=report))
    words = [words for _, about, words in found if about == "Result"]
    assert words[0] == "One cluster is small."
    assert words[1].startswith("In parts of the run noise was larger than the signal")
    assert len(words) == 2
    further = read(page).the("section", id="statements").all("ul", "warnings")[0]
    assert all(words in further.text for words in remarks)


def test_notes_on_a_silhouette_are_past_once_it_is_measured():
    clustering = finished("SynopsisKMeans", "distributed-noise")
    notes = ("Quality: noise will give it.", "WARNING: quality=True promises nothing.")
    plan = replace(clustering.report.plan, notes=notes)
    sums = SilhouetteSums((9.0, 9.0, 9.0), (9.0, 9.0, 9.0), 1.0, is_gaussian=True)
    before = replace(clustering.report, plan=plan)
    after = replace(before, silhouette=Silhouette(sums))
    shown = [
        {words for _, _, words in first_of(replace(clustering, report=report))}
        for report in (before, after)
    ]
    assert set(notes) <= shown[0]
    assert not set(notes) & shown[1]


def test_of_many_notices_all_that_are_bad_come_first_and_the_others_are_further_down():
    clustering = finished("FastLloyd", "clients-only")
    bad = tuple(f"WARNING: the total {i} is wrong." for i in range(7))
    others = ("One cluster is small.", "Another is, too.")
    report = replace(clustering.report, warnings=(*others, *bad))
    page = html_report(replace(clustering, report=report))
    found = first_of(replace(clustering, report=report))
    assert tuple(words for _, _, words in found) == bad
    assert {kind for kind, _, _ in found} == {"bad"}
    assert "And 4 more" in read(page).the("section", id="first").text
    further = read(page).the("section", id="statements").all("ul", "warnings")[0]
    assert all(words in further.text for words in others)


def test_runs_without_privacy_say_so_and_what_to_do():
    clustering = finished("Lloyd", "plain")
    found = first_of(clustering)
    assert [notice[:2] for notice in found] == [
        ("bad", "Privacy"),
        ("bad", "Do this next"),
    ]
    assert found[0][2].startswith("NOT PRIVATE")
    assert plain_words(clustering)[0].startswith("There is no guarantee.")


def test_a_private_run_that_starts_from_an_exact_one_is_not_private():
    start = finished("FastLloyd", "plain")
    clustering = simulate(
        strategy_of("FastLloyd", "trusted-server", initial=start), PARTITIONS
    )
    found = first_of(clustering)
    assert found[0][0] == "bad"
    assert found[0][2].startswith("NOT PRIVATE together")
    assert "Privacy: none" in read(html_report(clustering)).the("header").text


def test_groups_have_the_plans_epsilons():
    clustering = finished("FastLloyd", "trusted-server")
    text = read(html_report(clustering)).the("section", id="guarantee").text
    for size in (2, 10):
        assert (
            f"epsilon for a group of {size} records{clustering.report.plan.group(size):.4g}"
            in text
        )
    assert np.isfinite(clustering.report.plan.group(10))


# ------------------------------------------------------------------------ who sees what

FIRST_OF_TRUST = {trust: name for name, trust in reversed(MODES)}


def section_of(trust):
    clustering = finished(FIRST_OF_TRUST[trust], trust)
    return read(html_report(clustering)).the("section", id="trust")


# Drawn words, words that are not there, and what clients, server and readers have. The
# server's is as in the README's table: no sum; noisy sums; exact sums.
PICTURES = {
    "oblivious-server": (
        "masked words|adds noise|sees masked words, and its own noise|no centroid",
        "noise share|exact|sealed",
        ["noisy", "masked", "noisy"],
    ),
    "distributed-noise": (
        "noise share|secret shares|sealed shares, with noise|noisy sums",
        "adds noise|exact|mask",
        ["noisy", "noisy", "noisy"],
    ),
    "clients-only": (
        "noise share|sees sealed shares only|sealed sum-shares|no centroid",
        "adds noise|exact|mask",
        ["noisy", "masked", "noisy"],
    ),
    "trusted-server": (
        "exact sums of each client|adds noise|sees every client's exact sums",
        "mask|noise share",
        ["noisy", "exact", "noisy"],
    ),
    "plain": (
        "exact sums of each client|exact sums,|exact sizes, report",
        "noise|mask",
        ["exact", "exact", "exact"],
    ),
}


@pytest.mark.parametrize("trust", PICTURES)
def test_the_picture_is_that_of_the_trust_model(trust):
    drawn, missing, boxes = PICTURES[trust]
    (svg,) = section_of(trust).all("svg")
    texts = [text.text for text in svg.all("text")]
    assert {*drawn.split("|"), "5 clients hold the records"} <= set(texts)
    assert not [text for text in texts for words in missing.split("|") if words in text]
    arrows = [
        e.attributes["class"]
        for e in svg.all("path")
        if "flow" in e.attributes["class"]
    ]
    sent = "exact" if trust in ("trusted-server", "plain") else "masked"
    assert arrows[:3] == [f"flow {sent}"] * 3
    assert len(arrows) == 4
    assert [e.attributes["class"] for e in svg.all("rect", "box")] == [
        f"box {b}" for b in boxes
    ]


@pytest.mark.parametrize("trust", sorted(FIRST_OF_TRUST))
def test_the_table_says_what_the_report_says(trust):
    report = finished(FIRST_OF_TRUST[trust], trust).report
    rows = tables(section_of(trust))["What the run protects against"]
    expected = [words.replace(":", "", 1) for words in report.protects_against.values()]
    assert [row[1] for row in rows[1:]] == expected


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("relayed", "The server relayed the clients' public keys."),
        ("roster", "A roster pins the clients' public keys."),
    ],
)
def test_keys_are_named(keys, words):
    strategy = strategy_of("FastLloyd", "oblivious-server", keys=keys, n_rounds=2)
    section = read(html_report(simulate(strategy, PARTITIONS))).the(
        "section", id="trust"
    )
    assert words in section.text


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_clients_are_drawn_as_they_are(n):
    strategy = strategy_of("Lloyd", "plain", n_clients=n, n_rounds=1)
    clustering = simulate(strategy, PARTITIONS[:n])
    (svg,) = read(html_report(clustering)).the("section", id="trust").all("svg")
    texts = [text.text for text in svg.all("text")]
    assert [text for text in texts if text.startswith("client ")] == [
        f"client {i}" for i in range(n)
    ]
    assert "…" not in texts


# --------------------------------------------------------------------------- releases

PRIVATE = [mode for mode in MODES if mode[1] != "plain"]


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "trust"), PRIVATE)
def test_every_release_of_the_plan_is_listed_with_its_noise_and_cost(name, trust):
    clustering = finished(name, trust)
    plan, report = clustering.report.plan, clustering.report
    rows = tables(read(html_report(clustering)))["Every release of the plan"]
    releases = [(t, each) for t, group in enumerate(plan.rounds, 1) for each in group]
    listed = [(t, row) for row in rows[1:-1] for t in rounds_of(row[0])]
    listed.sort(key=lambda pair: pair[0])  # keeps the order within a round
    assert len(listed) == len(releases)
    for (at, row), (t, release) in zip(listed, releases, strict=True):
        assert at == t
        kind = "mu" if release.mechanism == "gaussian" else "epsilon"
        assert row[1:-1] == [
            release.name,
            ", ".join(release.blocks),
            release.norm + (" of 2 words" if release.parts else ""),
            release.mechanism,
            f"{release.noise_multiplier:.4g}",
            f"{kind} {release.cost:.4g}",
        ]
    together = f"epsilon {report.epsilon:.4g} at delta {report.delta:.3g}"
    assert rows[-1][6] == (
        together if report.mu is None else f"mu {report.mu:.4g}: {together}"
    )
    shares = cost_shares(plan)
    if plan.mu is None:
        assert shares == [None] * len(releases)
    else:
        assert shares == pytest.approx(
            [each.cost**2 / plan.mu**2 for _, each in releases]
        )
        assert math.fsum(shares) == pytest.approx(1.0)
        parts = [float(row[-1].removesuffix("%")) for row in rows[1:-1]]
        assert math.fsum(parts) == pytest.approx(100, abs=0.5)


def rounds_of(text):
    """Return the rounds of a line of a table: "3", or "3 to 7"."""
    first, _, last = text.partition(" to ")
    return range(int(first), int(last or first) + 1)


def test_equal_rounds_in_a_row_have_one_line():
    rows = tables(read(html_report(finished("FastLloyd", "trusted-server"))))
    lines = rows["Every release of the plan"][1:-1]
    assert {row[0] for row in lines} == {"1 to 8"}


@pytest.mark.claim("guarantees", "43")
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
    assert rows[1][0].startswith("1 to ")
    assert {row[4] for row in rows[1:]} == {
        f"{math.sqrt(5 / (4 if removed else 3)):.4g}"
    }


def test_epsilons_of_pure_laplace_noise_add_up_and_costs_of_mixtures_do_not():
    plan = strategy_of(
        "SuLloyd", "trusted-server", privacy=PrivacyBudget(2.0, 0.0)
    ).plan
    assert cost_shares(plan) == pytest.approx(
        [each.cost / 2.0 for each in plan.releases]
    )
    mixture = strategy_of(
        "FedDPKMeans", "trusted-server", mechanisms="laplace", n_rounds=1
    )
    assert {release.mechanism for release in mixture.plan.releases} == {
        "gaussian",
        "laplace",
    }
    rows = tables(read(html_report(simulate(mixture, PARTITIONS))))[
        "Every release of the plan"
    ]
    assert {row[-1] for row in rows[1:]} == {"-"}


def test_without_noise_nothing_has_a_price():
    text = (
        read(html_report(finished("FastLloyd", "plain")))
        .the("section", id="releases")
        .text
    )
    assert "No answer had noise, so there is no guarantee." in text
    assert "mu " not in text
    assert "no guarantee" in text


def drawn(root, style):
    """Return epsilons and deltas of a drawn line, read back from its drawing and its ticks."""
    chart = root.the("section", id="curve").all("svg")[0]
    (line,) = chart.all("polyline", style)
    points = [
        [float(v) for v in p.split(",")] for p in line.attributes["points"].split()
    ]
    texts = [
        e for e in chart.all("text", "label") if e.attributes["text-anchor"] != "start"
    ]
    return np.array(points), texts, chart


@pytest.mark.parametrize(
    ("name", "trust"),
    [("FastLloyd", "oblivious-server"), ("SuLloyd", "trusted-server")],
)
def test_the_curve_is_that_of_the_plan_and_the_claim_is_marked(name, trust):
    report = finished(name, trust).report
    points, texts, chart = drawn(read(html_report(finished(name, trust))), "curve")
    left, right, top, floor = (
        PlotFrame.left,
        PlotFrame.right,
        PlotFrame.top,
        PlotFrame().floor,
    )
    reach, low = 2.5 * report.epsilon, least_shown(report.delta)
    epsilons = (points[:, 0] - left) / (right - left) * reach
    deltas = low ** ((points[:, 1] - top) / (floor - top))
    # Drawn to a hundredth of a unit.
    step = 0.011 / (right - left) * reach
    assert deltas[-1] == pytest.approx(low)
    assert report.plan.delta(float(epsilons[-1]) + step) <= low
    for epsilon, delta in list(zip(epsilons, deltas, strict=True))[:-1]:
        around = [
            report.plan.delta(float(max(0.0, e)))
            for e in (epsilon - step, epsilon + step)
        ]
        assert around[1] * 0.998 <= delta <= around[0] * 1.002
    assert len(epsilons) > 50
    assert np.all(np.diff(points[:, 0]) > 0)
    assert np.all(np.diff(points[:, 1]) >= 0)
    (mark,) = chart.all("circle", "at")
    x, y = float(mark.attributes["cx"]), float(mark.attributes["cy"])
    assert (x - left) / (right - left) * reach == pytest.approx(
        report.epsilon, rel=1e-3
    )
    assert low ** ((y - top) / (floor - top)) == pytest.approx(report.delta, rel=5e-3)
    assert f"epsilon {report.epsilon:.4g}, delta {report.delta:.3g}" in mark.text
    # the line has a point at the claim
    assert np.abs(epsilons - report.epsilon).min() < step
    assert {"epsilon", "delta"} <= {text.text for text in texts}
    numbers = tables(read(html_report(finished(name, trust))))["The same as numbers"]
    expected = report.to_dict()["delta_at_epsilon"]
    assert numbers[1:] == [[f"{e:.4g}", f"{d:.3g}"] for e, d in expected]


def test_a_run_that_starts_from_another_one_has_two_curves():
    start = strategy_of("FedDPKMeans", "distributed-noise", cost=False, n_rounds=0)
    first = simulate(start, PARTITIONS)
    second = simulate(
        strategy_of("FastLloyd", "trusted-server", initial=first), PARTITIONS
    )
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
