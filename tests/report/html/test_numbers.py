"""What other numbers of clusters would cost, and the tree: on pages of runs with a synopsis."""

from dataclasses import replace

import numpy as np
import pytest
from report_pages import PARTITIONS, finished, read, strategy_of, tables

from flower_kmeans import Ball, Clustering, html_report, simulate
from flower_kmeans.algorithms.released import ReleasedMixture
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.report.figures import Axis, PlotFrame
from flower_kmeans.report.html import numbers_shown
from flower_kmeans.report.synopsis import Synopsis

pytestmark = pytest.mark.claim("reading-a-report", "other-numbers-clusters-runs")

CORNERS = np.array([[-0.6, -0.6], [-0.6, 0.6], [0.6, 0.6]])


def synopsis_of(m, noise=(3.0, 3.0, 3.0)):
    """Parts in three groups; from 61 on more than a tree shows."""
    means = CORNERS[np.arange(m) % 3] + np.random.default_rng(0).normal(0, 0.05, (m, 2))
    found = ReleasedMixture(
        np.full(m, 100.0),
        means,
        np.full((m, 2), 0.03),
        np.eye(2),
        1e-12,
        np.full(m, 0.1),
        noise,
    )
    return Synopsis(found, Ball(1.0, [0.0, 0.0]))


def section_of(synopsis, k=3):
    report = finished("SynopsisKMeans", "trusted-server").report
    clustering = Clustering(
        np.resize(CORNERS, (k, 2)),
        np.full(k, 9.0),
        synopsis.domain,
        report,
        synopsis=synopsis,
    )
    return read(html_report(clustering)).the("section", id="numbers")


def chart_of(section, name):
    (found,) = [
        svg
        for svg in section.all("svg")
        if svg.all("title")[0].attributes["id"] == name
    ]
    return found


def points_of(line):
    return np.array(
        [part.split(",") for part in line.attributes["points"].split()], float
    )


def test_a_tree_that_would_not_fit_into_memory_is_left_out():
    """Of 1,000 clusters: after the run nothing may stop the page."""
    synopsis = synopsis_of(2_001)
    with pytest.raises(ConfigurationError, match=r"2,000 parts for a tree\. Got 2,001"):
        synopsis.hierarchy()
    section = section_of(synopsis)
    assert "tree-chart" not in str(
        [svg.all("title")[0].attributes for svg in section.all("svg")]
    )
    assert "a mixture of 2001 parts" in section.text


@pytest.mark.default_cases("1e-200")
@pytest.mark.parametrize("radius", [1e-200, 1e200])
def test_costs_whose_squares_are_no_floats_are_those_of_the_scaled_domain(radius):
    synopsis = synopsis_of(30)
    other = Synopsis(synopsis.mixture, Ball(radius, [0.0, 0.0]))
    assert "squares of the scaled domain" in section_of(other).text
    np.testing.assert_allclose(other.elbow([1, 3]).costs, synopsis.elbow([1, 3]).costs)
    np.testing.assert_allclose(other.hierarchy(), synopsis.hierarchy())
    assert "squares of the records' scale" in section_of(synopsis).text


def test_the_table_and_the_drawing_have_every_cost():
    synopsis = synopsis_of(30)
    section = section_of(synopsis)
    elbow = synopsis.elbow(range(1, 21))
    head, *rows = tables(section)["Cost by number of clusters"]
    assert head == ["clusters", "cost", "interval", "gap"]
    assert [int(row[0]) for row in rows] == list(range(1, 21))
    np.testing.assert_allclose([float(row[1]) for row in rows], elbow.costs, rtol=1e-3)
    ends = [[float(end) for end in row[2].split(" to ")] for row in rows]
    np.testing.assert_allclose(ends, elbow.interval, rtol=5.1e-3)  # three digits
    np.testing.assert_allclose([float(row[3]) for row in rows], elbow.gaps, atol=0.006)
    chart = chart_of(section, "elbow-chart-title")
    (line,) = chart.all("polyline", "curve")
    drawn = points_of(line)
    assert (np.diff(drawn[:, 0]) > 0).all()
    slope, start = np.polyfit(elbow.costs, drawn[:, 1], 1)
    assert slope < 0  # less cost is further down
    np.testing.assert_allclose(start + slope * elbow.costs, drawn[:, 1], atol=0.02)
    assert len(chart.all("path", "reach")) == 20


@pytest.mark.parametrize(
    ("k", "marks"), [(3, ["this run, and suggested"]), (5, ["suggested", "this run"])]
)
def test_the_suggested_number_and_that_of_the_run_are_marked(k, marks):
    section = section_of(synopsis_of(30), k)
    chart = chart_of(section, "elbow-chart-title")
    assert [text.text for text in chart.all("text", "strong")] == marks
    assert f"Its costs suggest 3; this run has {k}." in section.text


@pytest.mark.default_cases("30-3", "3-3")
@pytest.mark.parametrize(("m", "k"), [(30, 3), (100, 3), (100, 1), (100, 70), (3, 3)])
def test_the_tree_is_cut_into_as_many_clusters_as_the_run_has(m, k):
    synopsis = synopsis_of(m)
    section = section_of(synopsis, k)
    chart = chart_of(section, "tree-chart-title")
    links = [points_of(link) for link in chart.all("polyline", "branch")]
    leaves = min(m, 60)
    assert len(links) == leaves - 1
    assert ("parts are in 60 groups" in section.text) == (m > 60)
    cut = [path.attributes["d"] for path in chart.all("path", "limit")]
    if k in (1, 70):  # one, or more than the leaves that are shown
        assert cut == []
        return
    height = float(cut[0].split(",")[1].split()[0])
    # Each upright of a link that crosses the line is a cluster.
    uprights = [(link[i], link[j]) for link in links for i, j in ((0, 1), (3, 2))]
    assert sum(low[1] > height > high[1] for low, high in uprights) == k


def test_numbers_at_an_axis_do_not_touch_its_label():
    for high, left in ((3.0, 58), (0.0012, 65), (0.00025, 72)):  # 3, 6 and 7 digits
        assert PlotFrame(y=Axis("height", 0.0, high)).left == left


def test_one_part_has_no_tree_and_its_one_cost():
    section = section_of(synopsis_of(1), 1)
    assert [svg.all("title")[0].text for svg in section.all("svg")] == [
        "Cost by number of clusters"
    ]
    assert "a mixture of 1 part." in section.text
    assert "Its costs suggest 1; this run has 1." in section.text


def test_without_noise_there_are_no_intervals():
    page = read(
        html_report(simulate(strategy_of("SynopsisKMeans", "plain"), PARTITIONS))
    )
    section = page.the("section", id="numbers")
    assert tables(section)["Cost by number of clusters"][0] == [
        "clusters",
        "cost",
        "gap",
    ]
    assert "over the noise" not in section.text


@pytest.mark.default_cases("distributed-noise")
@pytest.mark.parametrize("trust", ["distributed-noise", "clients-only"])
def test_the_page_of_a_server_has_it_where_it_saw_the_sums(trust):
    strategy = strategy_of("SynopsisKMeans", trust)
    clustering = simulate(strategy, PARTITIONS)
    for page, seen in (
        (html_report(clustering), True),
        (html_report(strategy), trust[0] == "d"),
    ):
        assert ('<section id="numbers"' in page) == ('href="#numbers"' in page) == seen
    assert 'id="numbers"' not in html_report(replace(clustering, synopsis=None))


def test_costs_are_shown_to_20_clusters_and_to_those_of_the_run():
    synopsis = synopsis_of(200)
    for k, most in ((3, 20), (30, 35), (150, 60)):
        assert numbers_shown(synopsis, k) == range(1, most + 1)
    assert numbers_shown(synopsis_of(7), 3) == range(1, 8)
