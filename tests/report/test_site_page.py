"""The page of a holder's own sizes: it says that it must stay, and its bars are honest."""

import re

import numpy as np
import pytest
from report_pages import addresses, read, tables

from flower_kmeans import Box, TableDomain
from flower_kmeans.data.table_domain import Category, Number
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.site_page import site_page
from flower_kmeans.report.site_sizes import PRIVATE, SiteSizes

BOX = Box([0.0, 0.0], [100.0, 50.0], columns=["age", "visits"])
CENTROIDS = np.array([[20.0, 5.0], [50.0, 15.0], [75.0, 40.0]])
SIZES = SiteSizes(np.array([10.0, 0.0, 30.0]), np.array([500.0, -3.0, 300.0]))
PAGE = site_page(SIZES, CENTROIDS, BOX)


def shown(title, page=PAGE):
    """Return the rows of the table below a title."""
    (found,) = [rows for name, rows in tables(read(page)).items() if title in name]
    return found


@pytest.mark.claim("own-data", "page-own-sizes-says")
def test_it_says_first_and_last_that_it_must_stay():
    root = read(PAGE)
    assert "do not send or publish" in PRIVATE
    assert root.the("title").text.startswith("PRIVATE")
    assert PRIVATE in root.the("header").text
    assert PRIVATE in root.the("footer").text


def test_each_row_has_the_own_size_beside_that_of_all():
    names = cluster_names(CENTROIDS, SIZES.noisy, BOX)
    head, *rows = shown("Bars")
    assert head[1:4] == ["own records", "own share", "all, released"]
    # the largest own cluster first
    assert [row[0] for row in rows] == [names[2], names[0], names[1]]
    assert rows[0][1:] == ["30", "75.0%", "300.0", "37.5%", "+37.5 points"]
    centres = shown("Centroids of the run")
    assert centres[1] == [names[2], "75", "40"]


def test_all_bars_have_one_scale_that_begins_at_0():
    """The length of a bar over its share is the same for every bar."""
    widths = [float(width) for width in re.findall(r'style="width:([\d.]+)%', PAGE)]
    shares = []
    for row in shown("Bars")[1:]:
        shares += [float(row[i].rstrip("%")) for i in (2, 4)]
    assert max(widths) == 100
    np.testing.assert_allclose(widths, np.array(shares) / 75 * 100, atol=0.01)
    assert "the longest is 75.0%" in PAGE


def test_no_records_have_bars_of_length_0():
    page = site_page(SiteSizes(np.zeros(3), -np.ones(3)), CENTROIDS, BOX)
    assert set(re.findall(r'style="width:([\d.]+)%', page)) == {"0.00"}


def test_declared_columns_are_in_their_own_units():
    domain = TableDomain([Number("stay", 1, 100, "log"), Category("ward", ("A", "B"))])
    centroids = domain.encode({"stay": [10.0, 50.0], "ward": ["A", "B"]})
    page = site_page(SiteSizes(np.ones(2), np.ones(2), "persons"), centroids, domain)
    head, first, _ = shown("Centroids of the run", page)
    assert head[1:3] == ["stay", "ward=A"] or head[1:] == ["stay", "ward"]
    assert first[1] == "10"
    assert "own persons" in page
    assert "count as one together" in page


def test_nothing_may_be_fetched_or_run_and_names_come_out_as_text():
    hostile = ["<script>alert(1)</script>", "\"' onload=x><img src=//a.example/b>"]
    domain = Box([0.0, 0.0], [100.0, 50.0])
    page = site_page(SIZES, CENTROIDS, domain, hostile)
    root = read(page)
    policy = root.the("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy.attributes["content"].startswith("default-src 'none'")
    assert addresses(root) == []
    assert not {"script", "img"} & {each.name for each in root.all()}
    assert shown("Centroids of the run", page)[0][1] == hostile[0]
    formula = site_page(SIZES, CENTROIDS, domain, ["=HYPERLINK(1)", "b"])
    assert shown("Centroids of the run", formula)[0][1] == "'=HYPERLINK(1)"


def test_a_part_of_many_clusters_and_columns_is_shown_and_said():
    k, d = 201, 65
    centroids = np.random.default_rng(1).random((k, d))
    own = np.arange(k, dtype=float)
    page = site_page(SiteSizes(own, own), centroids, Box([0.0] * d, [1.0] * d))
    rows = shown("Bars", page)[1:]
    assert (len(rows), rows[-1][1]) == (200, "1")
    assert len(shown("Centroids of the run", page)[0]) == 65
    assert "Shown: the 200 clusters with the most own records, of 201." in page
    assert "Shown: the first 64 of 65 columns." in page
