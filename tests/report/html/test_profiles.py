"""Profiles of clusters on the page: bars on one scale, values in the user's units, and names."""

from datetime import date

import numpy as np
import pytest
from report_pages import finished, read, tables

from flower_kmeans import Ball, Box, Clustering, TableDomain, html_report
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.report.names import cluster_names

pytestmark = pytest.mark.claim("reading-a-report", "profiles-in-users-units")

DOMAIN = TableDomain(
    [
        Number("age", 0, 100),
        Category("ward", ("surgery", "geriatrics", "heart")),
        Number("dose", 0.01, 100, scale="log"),
        Date("admitted", date(2020, 1, 1), date(2024, 12, 31)),
    ]
)
DAY = date(2022, 3, 4).toordinal()
CENTROIDS = np.array(
    [
        [30.0, 0.9, 0.05, 0.05, 0.0, DAY],
        [80.0, 0.2, 0.72, 0.18, 1.0, DAY + 300],
    ]
)
COUNTS = np.array([100.0, 300.0])


def clusters_of(centroids=CENTROIDS, counts=COUNTS, domain=DOMAIN, **options):
    report = finished("FastLloyd", "trusted-server").report
    clustering = Clustering(centroids, counts, domain, report)
    return read(html_report(clustering, **options)).the("section", id="clusters")


def cards_of(section):
    """Return by name: the bar's signed length, and the texts, of each line of a profile."""
    cards = {}
    for figure in section.all("figure", "profile"):
        lines = {}
        (svg,) = figure.all("svg")
        middle = float(svg.all("path", "axis")[0].attributes["d"][1:].split(",")[0])
        for group in svg.all("g"):
            (bar,) = group.all("rect")
            start = float(bar.attributes["x"])
            width = float(bar.attributes["width"])
            is_above = bar.attributes["class"] == "above"
            assert is_above == (start + width / 2 > middle) or width == 0
            end = start if is_above else start + width
            assert end == pytest.approx(middle, abs=0.02)
            name, value = (text.text for text in group.all("text"))
            lines[name] = (width if is_above else -width, value)
        cards[figure.all("strong")[0].text] = lines
    return cards


def test_a_table_has_values_in_the_users_units():
    section = clusters_of()
    names = cluster_names(CENTROIDS, COUNTS, DOMAIN)
    wards = "geriatrics 72%, surgery 20%, heart 18%"
    assert tables(section)["Centroids"] == [
        ["cluster", "age", "ward", "dose", "admitted"],
        [f"1: {names[1]}", "80.00", wards, "10", "2022-12-29"],
        [f"0: {names[0]}", "30.00", "surgery 90%", "1", "2022-03-04"],
        ["all clusters", "67.5", "geriatrics 55%, surgery 38%", "5.62", "2022-10-15"],
        ["bounds", "0 to 100", "", "0.01 to 100", "2020-01-01 to 2024-12-31"],
    ]
    assert "2 clusters in 4 columns" in section.text


def test_bars_have_one_scale_and_begin_at_the_mean_of_all():
    cards = cards_of(clusters_of())
    names = cluster_names(CENTROIDS, COUNTS, DOMAIN)
    assert list(cards) == [names[1], names[0]]
    older, younger = cards.values()
    assert {name: text for name, (_, text) in older.items()} == {
        "age": "80",
        "ward": "geriatrics 72%",
        "dose": "10",
        "admitted": "2022-12-29",
    }
    # The mean is that of the records: three times as near to the cluster of 300.
    for column in ("age", "dose", "admitted"):
        assert younger[column][0] == pytest.approx(-3 * older[column][0], abs=0.1)
    scaled = (CENTROIDS[0] - COUNTS @ CENTROIDS / 400) / DOMAIN.unit
    for column, place in (("age", 0), ("dose", 4), ("admitted", 5), ("ward", 1)):
        drawn = younger[column][0] / younger["age"][0]
        assert drawn == pytest.approx(scaled[place] / scaled[0], abs=0.01)


def test_numbers_in_brackets_of_equal_names_stand_once():
    section = clusters_of(np.zeros((3, 2)), np.ones(3), Box([-1, -1], [1, 1]))
    rows = [row[0] for row in tables(section)["Centroids"][1:-2]]
    assert rows == ["0: average", "1: average", "2: average"]
    assert subtitles_of(section)[0].startswith("averagecluster 0, ")


def subtitles_of(section):
    return [each.all("figcaption")[0].text for each in section.all("figure", "profile")]


def test_a_size_within_its_noise_is_an_interval_and_a_larger_one_is_a_number():
    report = finished("FastLloyd", "trusted-server").report
    margin = report.size_margin(2)
    section = clusters_of(counts=np.array([margin / 2, 10 * margin]))
    large, small = subtitles_of(section)
    assert large.endswith(f"cluster 1, about {10 * margin:,.0f} records")
    assert small.endswith(
        f"0 to {np.ceil(1.5 * margin):,.0f} records: noise hides the size"
    )
    empty = subtitles_of(clusters_of(counts=np.array([-5.0, 10 * margin])))[1]
    assert "cluster 0 (may be empty)" in empty
    assert "-5" not in empty


def test_long_levels_keep_their_fraction_and_differ():
    wards = ("the ward for hearts of adults", "the ward for hearts of children", "x")
    domain = TableDomain([Number("age", 0, 100), Category("ward", wards)])
    centroids = np.array([[30.0, 0.9, 0.05, 0.05], [80.0, 0.2, 0.72, 0.18]])
    cards = cards_of(clusters_of(centroids, COUNTS, domain))
    shown = [lines["ward"][1] for lines in cards.values()]
    assert [text.split()[-1] for text in shown] == ["72%", "90%"]
    assert len({text.rpartition(" ")[0] for text in shown}) == 2
    assert max(map(len, shown)) <= 17


def test_fractions_of_categories_are_said_to_be_noisy():
    words = "Fractions of categories are noisy, so they need not add up to 100%."
    assert words in clusters_of().text
    assert words not in clusters_of(CENTROIDS[:, :2], domain=Box([0, 0], [99, 1])).text


def test_dates_are_not_broken_at_their_hyphens():
    whole = [each.text for each in clusters_of().all("span", "whole")]
    assert whole[-2:] == ["2020-01-01", "2024-12-31"]


@pytest.mark.parametrize("d", [1, 12, 30])
def test_many_columns_are_cut_to_those_that_differ_most_and_it_is_said(d):
    rng = np.random.default_rng(0)
    centroids = rng.normal(size=(25, d)) * np.linspace(0.1, 1, d)
    section = clusters_of(centroids, np.arange(25.0), Ball(30.0, [0.0] * d))
    cards = section.all("figure", "profile")
    assert len(cards) == 20
    assert "the 20 largest of 25 clusters" in section.text
    assert len(cards[0].all("g")) == min(d, 12)
    assert ("the 12 of 30 columns in which clusters differ most" in section.text) == (
        d == 30
    )
    longest = max(
        float(bar.attributes["width"])
        for card in cards
        for group in card.all("g")
        for bar in group.all("rect")
    )
    assert 20 < longest <= 50.01


def test_columns_have_the_names_that_the_caller_gave():
    box = Box([0, 0], [1, 1], columns=["a", "b"])
    section = clusters_of(
        np.array([[0.1, 0.2], [0.9, 0.3]]), COUNTS, box, columns=["height", "weight"]
    )
    assert tables(section)["Centroids"][0] == ["cluster", "height", "weight"]
    for lines in cards_of(section).values():
        assert list(lines) == ["height", "weight"]
