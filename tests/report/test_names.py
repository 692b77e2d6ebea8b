"""Names of clusters are words of released values: short, unique, and the same every time."""

from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import finished

from flower_kmeans import Ball, Box, Sphere, TableDomain
from flower_kmeans.data.table_domain import Category, Date, Number
from flower_kmeans.protocol.results import ClientResult
from flower_kmeans.report.names import cluster_names
from flower_kmeans.report.profiles import ProfileRow

pytestmark = pytest.mark.claim("own-data", "clusters-are-named-by")

HOSPITAL = TableDomain(
    [
        Number("age", 0, 120),
        Number("stay", 1, 1000, "log"),
        Category("ward", ("A", "B", "C")),
        Date("admitted", date(2020, 1, 1), date(2024, 1, 1)),
        Category("smoker", ("no", "yes")),
    ]
)
ALIKE = {
    "age": [50.0, 50, 50],
    "stay": [10.0, 10, 10],
    "ward": ["A", "A", "A"],
    "admitted": [date(2022, 1, 1)] * 3,
    "smoker": ["no"] * 3,
}


def named(counts=(100.0, 100, 100), **columns):
    points = HOSPITAL.encode(ALIKE | columns)
    return cluster_names(points, np.array(counts), HOSPITAL)


def test_a_hospital_has_words_for_its_groups():
    names = named(age=[90, 20, 20], stay=[300.0, 3, 3], ward=["B", "C", "A"])
    assert names == (
        "high stay, ward B, high age",
        "low stay, ward C, low age",
        "low stay, ward A, low age",
    )


def test_dates_are_early_and_late_and_answers_are_yes_or_no():
    days = [date(2020, 2, 2), date(2022, 1, 1), date(2023, 12, 31)]
    assert named(admitted=days) == (
        "early admitted",
        "middle admitted",
        "late admitted",
    )
    assert named(smoker=["yes", "no", "no"])[0] == "smoker"
    assert named(smoker=["yes", "yes", "no"])[2] == "not smoker"


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.95, "ward B"), (0.6, "mostly ward B"), (0.4, "more often ward B")],
)
def test_a_level_is_named_by_its_share(share, words):
    points = HOSPITAL.encode(ALIKE)
    points[0, 2:5] = [1 - share, share, 0.0]
    points[1:, 2:5] = [1.0, 0.0, 0.0]
    assert cluster_names(points, np.ones(3), HOSPITAL)[0] == words


def test_a_column_that_separates_little_gives_no_word():
    box = Box([0, 0], [10, 10], columns=["wide", "narrow"])
    points = np.array([[0.0, 5.0], [10.0, 5.4]])
    assert cluster_names(points, np.ones(2), box) == ("low wide", "high wide")


def test_weights_of_columns_decide_what_is_named():
    points = np.array([[0.0, 4.0], [10.0, 6.0]])
    for weights, word in ([1, 1], "first"), ([0.05, 1], "second"):
        box = Box([0, 0], [10, 10], columns=["first", "second"], weights=weights)
        names = cluster_names(points, np.ones(2) * 9, box)
        assert names == (f"low {word}", f"high {word}")


def test_high_and_low_are_relative_to_the_sizes():
    box = Box([0], [10], columns=["x"])
    points = np.array([[2.0], [3.0], [9.0]])
    assert cluster_names(points, np.array([1.0, 1, 1]), box)[1] == "low x (x 3)"
    # Many records at 9 move the mean there, and a negative size moves nothing.
    names = cluster_names(points, np.array([50.0, -9, 900]), box)
    assert names == ("low x", "cluster 1 (may be empty)", "middle x")


def test_a_small_released_size_is_stated():
    box = Box([0], [10], columns=["x"])
    points = np.array([[1.0], [5.0], [9.0]])
    names = cluster_names(points, np.array([1000.0, 1000, 20]), box)
    assert names[2] == "high x (small released size)"
    assert "small" not in names[0]


def test_equal_names_get_values_and_then_numbers():
    box = Box([0, 0], [10, 10], columns=["x", "y"])
    line = np.stack([np.linspace(0, 10, 5), np.full(5, 3.0)], axis=1)
    assert cluster_names(line, np.ones(5) * 9, box) == (
        "low x (x 0)",
        "low x (x 2.5)",
        "middle x",
        "high x (x 7.5)",
        "high x (x 10)",
    )
    same = np.full((3, 2), 3.3)
    assert cluster_names(same, np.ones(3), box) == tuple(
        f"average (cluster {j})" for j in range(3)
    )


def test_columns_without_meaning_are_not_named():
    """A word such as "high column 17" says nothing about an embedding."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3, 30))
    numbers = ("cluster 0", "cluster 1", "cluster 2")
    numbered = [f"x{i}" for i in range(30)]
    words = [f"word {chr(97 + i)}" for i in range(30)]
    for domain in (Sphere(30), Ball(9.0, [0.0] * 30), Box([-9] * 30, [9] * 30)):
        assert cluster_names(points, np.ones(3), domain) == numbers
        assert cluster_names(points, np.ones(3), domain, numbered) == numbers
        assert "word" in cluster_names(points, np.ones(3), domain, words)[0]


def test_domains_without_names_have_numbers_of_columns_or_the_given_names():
    points = np.array([[1.0, 5.0], [9.0, 5.0]])
    for domain in (Box([0, 0], [10, 10]), Ball(10.0, [5.0, 5.0])):
        low_and_high = cluster_names(points, np.ones(2), domain)
        assert low_and_high == ("low column 1", "high column 1")
        assert cluster_names(points, np.ones(2), domain, ["a", "b"])[0] == "low a"


def test_one_cluster_is_everything():
    assert cluster_names(np.array([[1.0]]), np.array([5.0]), Box([0], [2])) == (
        "all records",
    )


def test_names_of_columns_cannot_imitate_or_break_a_name():
    points = np.array([[0.0, 5], [5, 5], [10, 5], [4, 9]])
    hostile = ["x\n\x1b[31m\u202e" + "y" * 99, "x (cluster 2)"]
    names = cluster_names(points, np.ones(4) * 9, Box([0, 0], [10, 10]), hostile)
    assert len(set(names)) == 4
    for name in names:
        assert name.isprintable()
        assert "…" in name or "cluster 2" in name


def test_results_have_names():
    clustering = finished("FastLloyd", "trusted-server")
    expected = cluster_names(clustering.centroids, clustering.counts, clustering.domain)
    assert clustering.names == expected
    result = ClientResult(
        clustering.centroids, clustering.counts, clustering.domain, run="0" * 32
    )
    assert result.names == expected
    synopsis = finished("SynopsisKMeans", "trusted-server").synopsis
    four = synopsis.kmeans(4)
    assert len(four.names) == 4
    for holder in (clustering, result, four):
        page = holder._repr_html_()
        assert all(f">{name}</td>" in page for name in holder.names)


COORDINATES = st.sampled_from([0.0, 1.0, 2.5, 7.0, 10.0]) | st.floats(0, 10)
TEXTS = st.text(max_size=40)


@st.composite
def clusterings(draw):
    k = draw(st.integers(1, 7))
    n_numbers = draw(st.integers(0, 3))
    n_levels = draw(st.sampled_from([0, 2, 3]))
    names = draw(st.lists(TEXTS, min_size=n_numbers, max_size=n_numbers, unique=True))
    levels = draw(st.lists(TEXTS, min_size=n_levels, max_size=n_levels, unique=True))
    levels = [f"d={level}" for level in levels]
    names += levels
    if not names:
        names, n_numbers = ["x"], 1
    width = len(names)
    points = [[draw(COORDINATES) for _ in range(width)] for _ in range(k)]
    points = np.array(points) / np.array([1.0] * n_numbers + [10.0] * n_levels)
    counts = [draw(st.sampled_from([-3.0, 0.4, 2.0, 50.0, 800.0])) for _ in range(k)]
    box = Box(
        [0.0] * width,
        [10.0] * n_numbers + [1.0] * n_levels,
        categories=[(n_numbers, width)] if n_levels else [],
    )
    if all(name and name.isprintable() for name in names) and len(set(names)) == width:
        box = Box(box.lower, box.upper, columns=names, categories=box.categories)
    return points, np.array(counts), box, names


@given(clusterings(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_names_are_unique_short_lines_and_follow_their_clusters(clustering, random):
    points, counts, box, columns = clustering
    names = cluster_names(points, counts, box, columns)
    assert names == cluster_names(points.copy(), counts, box, columns)
    assert len(set(names)) == len(points)
    for name in names:
        assert name
        assert name == name.strip()
        assert name.isprintable()
        assert len(name) <= 160

    order = list(range(len(points)))
    random.shuffle(order)
    moved = cluster_names(points[order], counts[order], box, columns)
    for place, cluster in enumerate(order):
        # A number is the cluster's own.
        expected = names[cluster].replace(f"cluster {cluster}", f"cluster {place}")
        assert moved[place] == expected


@pytest.mark.parametrize("categories", [[], [(8, 10)]])
def test_each_value_is_written_once_however_many_clusters_there_are(
    monkeypatch, categories
):
    """A node names up to 10,000 clusters, of which many have the same words."""
    calls = []
    written = ProfileRow.text

    def counted(row, value):
        calls.append(value)
        return written(row, value)

    monkeypatch.setattr(ProfileRow, "text", counted)
    points = np.random.default_rng(0).random((400, 10))
    box = Box([0.0] * 10, [1.0] * 10, categories=categories)
    assert len(set(cluster_names(points, np.ones(400), box))) == 400
    assert 0 < len(calls) <= 10 * 400
