"""The guarantee in plain words: sentences by trust and unit, and what may be found out."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import PARTITIONS, finished, read, strategy_of, tables
from scipy import stats

from flower_kmeans import Box, Clustering, PrivacyBudget, html_report, simulate
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release
from flower_kmeans.protocol.trust import TRUSTED_SERVER
from flower_kmeans.report.html import detection
from flower_kmeans.report.report import Dropped, Report


def report_of(*releases, epsilon, delta):
    plan = PrivacyPlan(PrivacyBudget(epsilon, delta), 1000, (releases,))
    return Report("GLloyd", plan, TRUSTED_SERVER, "none", min_clients=1)


def gaussian(mu):
    return Release("sums", "gaussian", "l2", 1 / mu, ("sums",))


def laplace(epsilon):
    return Release("counts", "laplace", "l1", 1 / epsilon, ("counts",))


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 4.0), st.floats(0.001, 0.5))
def test_detection_is_that_of_the_best_test_between_two_gaussians(mu, alarm):
    """The likelihood ratio of N(mu, 1) and N(0, 1) grows with x: say so where x > threshold."""
    threshold = stats.norm.isf(alarm)
    found = stats.norm(loc=mu).sf(threshold)
    assert detection(report_of(gaussian(mu), epsilon=1.0, delta=1e-6), alarm) == pytest.approx(
        found
    )


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
    expected = [[f"{a:.0%}", f"{100 * r:.3g}% at most"] for a, r in zip(alarms, rates, strict=True)]
    assert rows[1:] == expected


def plain_words(clustering):
    section = read(html_report(clustering)).the("section", id="guarantee")
    return [paragraph.text for paragraph in section.all("p")]


SHARED_WORDS = "the server, as long as it is passive, up to 1 client, and all of them together"


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        ("clients-only", SHARED_WORDS),
        ("oblivious-server", "The server sees masked words only, and adds the noise"),
        ("distributed-noise", SHARED_WORDS),
        ("trusted-server", "not against the server, which saw every client's exact sums"),
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
    ("trust", "fact", "cautions"),
    [
        (
            "oblivious-server",
            "The server sees masked words only, and clients must trust the server",
            ["Against a server that breaks", "Against the server together with clients"],
        ),
        (
            "distributed-noise",
            "The server and up to 1 client together see only the noisy sums",
            [
                "Against a server that breaks",
                "Against the server together with clients",
                "Against too many committee members",
            ],
        ),
        (
            "trusted-server",
            "The server adds the noise and sees every client's exact sums",
            [
                "Against a server that follows the protocol (passive)",
                "Against a server that breaks",
                "Against the server together with clients",
            ],
        ),
    ],
)
def test_what_others_see_comes_first_and_then_what_is_weakest(trust, fact, cautions):
    found = first_of(finished("FastLloyd", trust))
    assert found[0][:2] == ("fact", "Who sees what")
    assert found[0][2].startswith(fact)
    assert {kind for kind, _, _ in found[1:]} == {"caution"}
    for (_, about, words), expected in zip(found[1:], [*cautions, "Ledger"], strict=True):
        assert about.startswith(expected)
        assert words.startswith(("No:", "In part:", "No ledger"))


def test_warnings_of_faults_and_of_the_algorithm_are_listed():
    clustering = finished("FastLloyd", "clients-only")
    renewed = [Dropped(slot, slot, 1, "New.", "renewed") for slot in range(3)]
    warnings = ("Two candidates were left.", "The last round was empty.")
    report = replace(clustering.report, incidents=renewed, warnings=warnings)
    found = first_of(replace(clustering, report=report))
    assert found[0][:2] == ("caution", "Faults")
    assert found[0][2].startswith("WARNING: more than 1 in one round")
    assert tuple(words for _, about, words in found if about == "Algorithm") == warnings


def test_runs_without_privacy_say_so_and_nothing_else():
    clustering = finished("Lloyd", "plain")
    found = first_of(clustering)
    assert [kind for kind, _, _ in found] == ["bad"]
    assert found[0][2].startswith("NOT PRIVATE")
    assert plain_words(clustering)[0].startswith("There is no guarantee.")


def test_a_private_run_that_starts_from_an_exact_one_is_not_private():
    start = finished("FastLloyd", "plain")
    clustering = simulate(strategy_of("FastLloyd", "trusted-server", initial=start), PARTITIONS)
    found = first_of(clustering)
    assert found[0][0] == "bad"
    assert found[0][2].startswith("NOT PRIVATE together")
    assert "Privacy: none" in read(html_report(clustering)).the("header").text


def test_groups_have_the_plans_epsilons():
    clustering = finished("FastLloyd", "trusted-server")
    text = read(html_report(clustering)).the("section", id="guarantee").text
    for size in (2, 10):
        assert (
            f"epsilon for a group of {size} records{clustering.report.plan.group(size):.4g}" in text
        )
    assert np.isfinite(clustering.report.plan.group(10))
