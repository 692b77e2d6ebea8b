"""What strategies, plans, reports and clusterings show in a notebook, and what they must not."""

import numpy as np
import pytest
from report_pages import MODES, PARTITIONS, WIDE, finished, strategy_of

from flower_kmeans import Box, Clustering, Fault, PrivacyBudget, simulate
from flower_kmeans.errors import TooFewClientsError
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.strategies import FastLloyd, Lloyd, VerticalKMeans

pytestmark = pytest.mark.claim("tutorial", "notebook-shows-table-strategy")

HOSTILE = '<script>alert("x")</script>'


def texts_of(numbers):
    """Return the ways in which a repr may write numbers."""
    values = [float(value) for value in np.ravel(numbers)]
    return {
        text
        for x in values
        for text in (repr(x), f"{x:.4g}", f"{x:.6g}")
        if len(text) > 4
    }


def shown_by(*objects):
    return "".join(repr(each) + each._repr_html_() for each in objects)


@pytest.mark.parametrize(("name", "trust"), MODES)
def test_the_guarantee_and_every_release_are_shown(name, trust):
    strategy, clustering = strategy_of(name, trust), finished(name, trust)
    plan = strategy.plan
    for page in (
        strategy._repr_html_(),
        plan._repr_html_(),
        clustering.report._repr_html_(),
    ):
        if not plan.is_private:
            assert "NOT PRIVATE" in page
            assert "Releases" not in page
            continue
        assert page.count("mu ") + page.count("epsilon ") >= min(len(plan.releases), 50)
        for release in plan.releases:
            assert f"<td>{release.name}</td>" in page
        assert f"{plan.budget.delta:.3g}" in page
    for each in (strategy, clustering.report, clustering):
        assert trust in repr(each)
        assert f"{type(each).__name__}(" in repr(each)
    assert "n_releases=" in repr(plan)


@pytest.mark.default_cases("values")
@pytest.mark.parametrize(("name", "trust"), MODES)
def test_a_strategy_shows_no_result_and_a_report_no_released_number(name, trust):
    """A server that is blind, or one that sees the sums: what it learned is not in their repr."""
    strategy = strategy_of(name, trust)
    found = simulate(strategy, WIDE if name == "HDPEMeans" else PARTITIONS)
    secret = texts_of(found.centroids) | texts_of(found.counts)
    page = shown_by(strategy, strategy.plan, found.report)
    assert not [text for text in secret if f">{text}<" in page or f" {text}," in page]
    # Who holds the result sees it in HTML. Its repr, which may go to a log, has none of
    # it.
    result = ClientResult(
        found.centroids, found.counts, found.domain, "00", found.weights
    )
    for holder in (found, result):
        assert not [text for text in secret if text in repr(holder)]
        assert f"<td>{found.counts[0]:.1f}</td>" in holder._repr_html_()
        assert f"<td>{found.centroids[0, 0]:.4g}</td>" in holder._repr_html_()


@pytest.mark.parametrize("trust", ["distributed-noise", "trusted-server"])
def test_the_servers_points_are_not_shown(trust):
    points = np.random.default_rng(8).uniform(0, 10, (20, 2))
    strategy = strategy_of("FedDPKMeans", trust, server_data=points)
    secret = texts_of(points) | texts_of(strategy.algorithm.server_points)
    assert not [text for text in secret if text in shown_by(strategy, strategy.plan)]


def test_names_of_columns_are_escaped():
    domain = Box([0, 0], [10, 10], columns=[HOSTILE, "size"])
    found = simulate(Lloyd(3, domain), PARTITIONS)
    result = ClientResult(found.centroids, found.counts, domain, "00")
    for holder in (found, result):
        assert "<script" not in holder._repr_html_()
        assert "&lt;script" in holder._repr_html_()


@pytest.mark.claim("threat-model", "no-name-no-category")
def test_no_name_of_a_column_is_a_formula():
    domain = Box([0, 0], [10, 10], columns=["\uff1dcmd|' /C calc'!A0", "=A1"])
    found = simulate(Lloyd(3, domain), PARTITIONS)
    for holder in (found, ClientResult(found.centroids, found.counts, domain, "00")):
        page = holder._repr_html_()
        for name in ("\uff1dcmd|&#39; /C calc&#39;!A0", "=A1"):
            assert f">&#39;{name}<" in page
            assert f">{name}<" not in page


def test_a_run_that_failed_has_a_report_to_look_at():
    strategy = FastLloyd(
        3, Box([0, 0], [10, 10]), PrivacyBudget(1.0), 300, n_clients=5, min_clients=5
    )
    with pytest.raises(TooFewClientsError):
        simulate(strategy, PARTITIONS, faults=[Fault(0, 2, "drop")])
    assert '<td style="text-align: left">1 of 8</td>' in strategy.report._repr_html_()


def test_parties_with_columns_are_shown_with_what_a_run_takes():
    strategy = VerticalKMeans(
        5, Box([0] * 3, [1] * 3), PrivacyBudget(1.0), 30_000, parties=[2, 1]
    )
    page = strategy._repr_html_()
    assert "Parties: 2" in page
    assert all(note in page for note in strategy.plan.notes)


def test_a_clustering_without_privacy_says_so_first():
    found = finished("Lloyd", "plain")
    assert isinstance(found, Clustering)
    page = found._repr_html_()
    assert page.index("NOT PRIVATE") < page.index("<table>")


def test_a_synopsis_and_its_clusters_are_tables_in_a_notebook_and_one_line_in_a_log():
    synopsis = finished("SynopsisKMeans", "trusted-server").synopsis
    found = synopsis.kmeans(2)
    assert repr(found) == "SynopsisClustering(n_clusters=2, n_features=2)"
    m = len(synopsis.weights)
    assert repr(synopsis) == f"Synopsis(n_parts={m}, n_features=2)"
    shown = (
        (synopsis, synopsis.means, synopsis.weights),
        (found, found.centroids, found.counts),
    )
    for holder, centers, sizes in shown:
        page = holder._repr_html_()
        assert page.count("<tr><td>") == min(len(centers), 50)
        assert f"<td>{sizes[0]:.1f}</td><td>{centers[0, 0]:.4g}</td>" in page
