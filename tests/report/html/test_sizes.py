"""Sizes against bounds: numbers of the run, marks of three shapes, and what is not promised."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from report_pages import PARTITIONS, finished, read, strategy_of, tables

from flower_kmeans import Box, Clustering, html_report, simulate
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.report.shown_clusters import MAX_ROWS

pytestmark = pytest.mark.claim("reading-a-report", "how-large-clusters-runs")

REPORT = finished("SynopsisKMeans", "trusted-server").report
MARGIN = 10 * 2.3939797998185104  # of three clusters, at 95% for all


def clustering_of(counts, noise, least, most):
    k = len(counts)
    sizes = SizeReport(tuple(counts), noise, least, most)
    return Clustering(
        np.zeros((k, 2)),
        np.array(counts),
        Box([0, 0], [10, 10]),
        replace(REPORT, sizes=sizes),
        weights=np.zeros(k),
        size_report=sizes,
    )


def section_of(*arguments):
    return read(html_report(clustering_of(*arguments))).the("div", id="sizes")


def rows_of(svg):
    """Return the drawn rows: their name, kind, and where the interval begins and ends."""
    rows = []
    for group in svg.all("g", "span"):
        reach = group.all("path", "reach")[0].attributes["d"]
        ends = [
            float(part.split(",")[0]) for part in reach.removeprefix("M").split("H")
        ]
        kind = group.attributes["class"].removeprefix("span ")
        (mark,) = group.all(class_="mark")
        rows.append((group.all("text")[0].text, kind, mark.name, *ends))
    return rows


@pytest.mark.default_cases("oblivious-server")
@pytest.mark.parametrize("trust", ["trusted-server", "oblivious-server"])
def test_a_servers_page_has_them_where_it_saw_the_sums(trust):
    strategy = strategy_of("SynopsisKMeans", trust, min_size=80, max_size=120)
    clustering = simulate(strategy, PARTITIONS)
    pages = [read(html_report(clustering)), read(html_report(strategy))]
    shown = [
        [div for div in page.all("div") if div.attributes.get("id") == "sizes"]
        for page in pages
    ]
    ((own,), _) = shown
    sizes = [row[1] for row in tables(own)["Sizes and intervals"][1:]]
    assert sizes == [f"{size:,.0f}" for size in sorted(clustering.sizes, reverse=True)]
    if trust == "trusted-server":
        assert tables(shown[1][0]) == tables(own)
    else:
        assert shown[1] == []


def test_every_cluster_has_its_size_its_interval_and_whether_its_bounds_were_kept():
    page = read(html_report(clustering_of([40.0, 160.4, 100.0], 10.0, 70, 130)))
    section = page.the("div", id="sizes")
    assert tables(section)["Sizes and intervals"] == [
        ["cluster", "noisy size", "interval", "fraction", "bounds"],
        ["1: average", "160", "136 to 185", "53.4%", "missed"],
        ["2: average", "100", "76 to 124", "33.3%", "kept"],
        ["0: average", "40", "16 to 64", "13.3%", "missed"],
    ]
    text = section.text
    assert "at least 70 and at most 130 records" in text
    assert "Of 3 clusters: 1 kept, 2 missed." in text
    assert "standard deviation of 10 records" in text
    assert "With probability 95% all true sizes lie in their intervals at once" in text
    assert f"An interval reaches {MARGIN:.0f} records to both sides" in text
    assert "Exact sizes cannot be promised" in text
    assert "not always the nearest centroid's" in text
    unbounded = read(html_report(finished("SynopsisKMeans", "trusted-server")))
    table = tables(unbounded.the("div", id="sizes"))["Sizes and intervals"]
    assert table[0] == ["cluster", "noisy size", "interval", "fraction"]


def test_bars_lie_where_their_intervals_are_and_marks_differ_in_shape():
    section = section_of([40.0, 126.0, 100.0], 10.0, 70, 130)
    (svg,) = section.all("svg")
    rows = rows_of(svg)
    assert [row[:3] for row in rows] == [
        ("1", "open", "rect"),
        ("2", "kept", "circle"),
        ("0", "missed", "path"),
    ]
    low, high = (
        float(line.attributes["d"][1:].split(",")[0])
        for line in svg.all("path", "limit")
    )
    scale = (high - low) / 60  # units of the drawing in one record
    for (_, _, _, left, right), size in zip(rows, (126.0, 100.0, 40.0), strict=True):
        assert left == pytest.approx(low + scale * (size - MARGIN - 70), abs=0.05)
        assert right == pytest.approx(low + scale * (size + MARGIN - 70), abs=0.05)
    assert [text.text for text in svg.all("text", "bound")] == [
        "at least 70",
        "at most 130",
    ]
    assert "cluster 2: 76 to 124 records, kept" in svg.text
    between = svg.all("rect", "between")[0].attributes
    assert float(between["x"]) == pytest.approx(low, abs=0.02)
    assert float(between["width"]) == pytest.approx(high - low, abs=0.02)
    marks = [mark.text for mark in section.the("figcaption").all("i", "span")]
    assert marks == ["●", "□", "×"]


@pytest.mark.parametrize(
    ("least", "most", "words", "drawn"),
    [
        (70, None, "at least 70 records", ["at least 70"]),
        (0, 130, "at most 130 records", ["at most 130"]),
        (0, None, "any number of records", []),
    ],
)
def test_a_bound_that_nobody_gave_is_not_drawn(least, most, words, drawn):
    section = section_of([100.0, 100.0, 100.0], 10.0, least, most)
    assert words in section.text
    (svg,) = section.all("svg")
    assert [text.text for text in svg.all("text", "bound")] == drawn
    assert len(svg.all("path", "limit")) == len(drawn)


@pytest.mark.parametrize(
    ("noise", "bounds", "is_too_close"),
    [(10.0, (100, 100), True), (10.0, (70, 130), False), (0.0, (100, 100), False)],
)
def test_bounds_that_no_interval_fits_between_are_named(noise, bounds, is_too_close):
    section = section_of([100.0, 100.0, 100.0], noise, *bounds)
    assert (
        "wider than the distance between the bounds" in section.text
    ) == is_too_close
    assert ("these are exact sizes" in section.text) == (not noise)
    assert ("Of 3 clusters: 3 kept." in section.text) == (not is_too_close)
    assert tables(section)["Sizes and intervals"][0][1] == (
        "noisy size" if noise else "size"
    )


@pytest.mark.parametrize("k", [1, 100])
def test_few_and_many_clusters_have_rows_that_do_not_touch(k):
    section = section_of(np.linspace(-20.0, 300.0, k).tolist(), 10.0, 50, 150)
    (svg,) = section.all("svg")
    *_, width, height = (float(value) for value in svg.attributes["viewbox"].split())
    tops = [
        float(group.all("text")[0].attributes["y"]) for group in svg.all("g", "span")
    ]
    assert len(tops) == k
    assert all(after - before >= 10 for before, after in itertools.pairwise(tops))
    assert max(tops) < height
    assert all(0 < left <= right < width for *_, left, right in rows_of(svg))
    assert "nan" not in section.text


def test_of_too_many_clusters_those_nearest_to_a_bound_are_shown():
    k = MAX_ROWS + 30
    counts = [1000.0] * 30 + [float(500 - i) for i in range(MAX_ROWS)]
    section = section_of(counts, 1.0, 400, 1600)
    shown = {
        int(row[0].split(":")[0]) for row in tables(section)["Sizes and intervals"][1:]
    }
    assert shown == set(range(30, k))
    assert f"the {MAX_ROWS} clusters nearest to a bound" in section.text
    assert f"Of {k} clusters" in section.text  # all are counted
    assert len(section.all("g", "span")) == MAX_ROWS
