"""The guarantee in plain words: sentences by trust and unit, and what may be found out."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import PARTITIONS, finished, read, strategy_of, tables
from scipy import stats

from flower_kmeans import PrivacyBudget, html_report, simulate
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.release import Release
from flower_kmeans.privacy.report import Dropped, Report
from flower_kmeans.protocol.trust import TRUSTED_SERVER
from flower_kmeans.webreport.guarantee import detection, plain_words, warnings_of
from flower_kmeans.webreport.outcome import outcome_of


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
def test_detection_is_a_share_and_no_less_than_guessing(epsilon, delta, alarm):
    report = report_of(laplace(epsilon), epsilon=epsilon, delta=delta)
    assert alarm <= detection(report, alarm) <= 1.0


def test_delta_adds_to_what_may_be_found_out():
    report = report_of(laplace(1.0), epsilon=1.0, delta=0.1)
    factor = math.exp(report.epsilon)
    assert detection(report, 0.01) == pytest.approx(0.01 * factor + 0.1)
    assert detection(report, 0.45) == pytest.approx(1 - (1 - 0.1 - 0.45) / factor)


def test_the_table_holds_these_shares():
    report = finished("FastLloyd", "oblivious-server").report
    rows = tables(read(html_report(finished("FastLloyd", "oblivious-server"))))[
        "How often they can find out that the record was there"
    ]
    alarms = (0.01, 0.05, 0.1)
    expected = [
        [f"{a:.0%}", f"{100 * stats.norm.cdf(stats.norm.ppf(a) + report.mu):.3g}% at most"]
        for a in alarms
    ]
    assert rows[1:] == expected


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        ("clients-only", "the server, as long as it is passive, up to 1 client, and all of them"),
        ("oblivious-server", "Against the server masks protect: it sees masked words only"),
        (
            "distributed-noise",
            "the server, as long as it is passive, up to 1 client, and all of them",
        ),
        ("trusted-server", "not against the server, which saw every client's exact sums"),
    ],
)
def test_words_are_those_of_the_trust_model_and_the_figures(trust, words):
    report = finished("FastLloyd", trust).report
    told = plain_words(report)
    text = " ".join(told)
    assert words in text
    assert f"e^{report.epsilon:.4g} = {math.exp(report.epsilon):.3g} times" in text
    assert f"plus {report.delta:.3g};" in text
    assert report.protects_against["server and clients"] in text
    assert report.to_dict()["neighbours"] in text
    assert told[-1].startswith("Not protected: n_records")


def test_more_colluders_are_counted():
    strategy = strategy_of("FastLloyd", "distributed-noise", max_colluders=2)
    report = simulate(strategy, PARTITIONS).report
    assert "up to 2 clients, and all of them together" in " ".join(plain_words(report))


def test_a_huge_epsilon_is_no_error():
    report = report_of(laplace(900.0), epsilon=900.0, delta=0.0)
    assert "e^ε times" in " ".join(plain_words(report))


def told_first(clustering, **options):
    return [
        (each.kind, each.about, each.words)
        for each in warnings_of(outcome_of(clustering, **options))
    ]


def test_what_is_weakest_comes_first():
    relayed = told_first(finished("FastLloyd", "oblivious-server"))
    assert [about for _, about, _ in relayed] == [
        "Who sees what",
        "Against a server that breaks the protocol (active)",
        "Against the server together with clients",
        "Ledger",
    ]
    assert [kind for kind, _, _ in relayed] == ["fact", "caution", "caution", "caution"]
    assert "clients must trust the server to add the noise" in relayed[0][2]
    trusted = told_first(finished("FastLloyd", "trusted-server"))
    assert trusted[1][1] == "Against a server that follows the protocol (passive)"
    assert trusted[1][2].startswith("No: it sees every client's exact sums")


@pytest.mark.parametrize("trust", ["clients-only", "distributed-noise"])
def test_what_server_and_clients_see_together_comes_first(trust):
    told = told_first(finished("FastLloyd", trust))
    assert told[0][:2] == ("fact", "Who sees what")
    assert told[0][2].startswith("The server and up to 1 client together see only the noisy sums")
    assert [about for _, about, _ in told][-2] == "Against too many committee members"


def test_what_is_in_part_is_listed_too():
    strategy = strategy_of("FastLloyd", "distributed-noise", keys="roster")
    told = told_first(simulate(strategy, PARTITIONS))
    assert told[1][2].startswith("In part: it sees one noisy sum in each round.")


def test_too_many_forgotten_votes_come_before_everything_else():
    clustering = finished("FastLloyd", "clients-only")
    renewed = [Dropped(slot, slot, 1, "New.", "renewed") for slot in range(3)]
    report = replace(clustering.report, incidents=renewed)
    kind, about, words = told_first(replace(clustering, report=report))[0]
    assert (kind, about) == ("caution", "Faults")
    assert words.startswith("WARNING: more than 1 in one round")


def test_runs_without_privacy_say_so_and_nothing_else():
    for name in ("Lloyd", "FastLloyd"):
        told = told_first(finished(name, "plain"))
        assert [kind for kind, _, _ in told] == ["bad"]
        assert told[0][2].startswith("NOT PRIVATE")
        text = read(html_report(finished(name, "plain"))).the("section", id="guarantee").text
        assert "There is none." in text


def test_a_private_run_that_starts_from_an_exact_one_is_not_private():
    start = finished("FastLloyd", "plain")
    clustering = simulate(strategy_of("FastLloyd", "trusted-server", initial=start), PARTITIONS)
    told = told_first(clustering)
    assert told[0][0] == "bad"
    assert told[0][2].startswith("NOT PRIVATE together")
    assert "NOT PRIVATE" in read(html_report(clustering)).the("header").text


def test_warnings_of_the_algorithm_are_listed():
    clustering = finished("FastLloyd", "distributed-noise")
    warnings = ("Two candidates were left.", "The last round was empty.")
    clustering = replace(clustering, report=replace(clustering.report, warnings=warnings))
    assert [words for _, about, words in told_first(clustering) if about == "Algorithm"] == list(
        warnings
    )


def test_groups_have_the_plans_epsilons():
    clustering = finished("FastLloyd", "trusted-server")
    text = read(html_report(clustering)).the("section", id="guarantee").text
    for size in (2, 10):
        assert (
            f"epsilon for a group of {size} records{clustering.report.plan.group(size):.4g}" in text
        )
    assert np.isfinite(clustering.report.plan.group(10))
