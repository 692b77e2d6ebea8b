"""Centroids as a table and a plot: in the user's units, cut where they are many; and all charts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import finished, read, tables

from flower_kmeans import Ball, Box, Clustering, html_report
from flower_kmeans.algorithms.released import CostEstimate, SilhouetteSums
from flower_kmeans.errors import ConfigurationTypeError
from flower_kmeans.report.comparison import Comparison
from flower_kmeans.report.figures import Axis, Dot, PlotFrame, around, principal_places
from flower_kmeans.report.html import TEMPLATES
from flower_kmeans.report.ranges import ColumnRange
from flower_kmeans.report.shown_clusters import MAX_COLUMNS, MAX_ROWS, colour_of
from flower_kmeans.report.shown_rounds import RoundLine
from flower_kmeans.report.silhouette import Silhouette

pytestmark = pytest.mark.claim("reading-a-report", "everything-page-public-was")


def report_of_a_run():
    return finished("FastLloyd", "trusted-server").report


def section_of(clustering, **options):
    return read(html_report(clustering, **options)).the("section", id="clusters")


def clustering_of(centroids, counts=None, domain=None, report=None):
    centroids = np.asarray(centroids, dtype=float)
    counts = (
        np.ones(len(centroids)) if counts is None else np.asarray(counts, dtype=float)
    )
    d = centroids.shape[1]
    domain = domain or Box([-50.0] * d, [50.0] * d)
    return Clustering(centroids, counts, domain, report or report_of_a_run())


def test_the_table_is_the_result_largest_cluster_first():
    result = clustering_of([[1.0, -20.5], [2.25, 30.0], [0.125, 0.0]], [10, -3.4, 29.6])
    rows = tables(section_of(result, columns=["age", "income"]))["Centroids"]
    assert rows == [
        ["cluster", "age", "income"],
        ["2: high income", "0.125", "0.00"],
        ["0: low income", "1.000", "-20.50"],
        ["1", "2.250", "30.00"],
        ["all clusters", "0.346", "-5.18"],
        ["bounds", "-50 to 50", "-50 to 50"],
    ]


def test_sizes_without_noise_are_not_called_noisy():
    section = section_of(finished("Lloyd", "plain"))
    rows = tables(section)["Sizes and intervals"]
    assert rows[0] == ["cluster", "size", "fraction"]
    assert "noisy" not in section.text
    assert "these are exact sizes" in section.text
    assert section.all("path", "reach") == []


@pytest.mark.parametrize(
    ("domain", "names", "bounds"),
    [
        (
            Box([0, 0], [1, 2], columns=["height", "weight"]),
            ["height", "weight"],
            ["bounds", "0 to 1", "0 to 2"],
        ),
        (
            Ball(2.5, [1, -1]),
            ["column 1", "column 2"],
            ["within 2.5 of", "1", "-1"],
        ),
    ],
)
def test_columns_and_bounds_are_those_of_the_domain(domain, names, bounds):
    rows = tables(section_of(clustering_of([[0.5, 0.5]], domain=domain)))["Centroids"]
    assert (rows[0][-2:], rows[-1]) == (names, bounds)


@pytest.mark.claim("reading-a-report", "on-paper-no-table")
def test_large_results_are_cut_and_it_is_said():
    centroids = np.random.default_rng(0).normal(size=(MAX_ROWS + 5, MAX_COLUMNS + 7))
    section = section_of(clustering_of(centroids, np.arange(MAX_ROWS + 5)))
    parts = tables(section)
    sizes = parts.pop("Sizes and intervals")
    assert len(sizes) == MAX_ROWS + 1
    assert f"the {MAX_ROWS} largest clusters" in section.text
    assert list(parts) == [
        f"Centroids, part {i + 1} of {len(parts)}" for i in range(len(parts))
    ]
    assert {len(rows) for rows in parts.values()} == {MAX_ROWS + 3}
    for clusters in zip(
        *([row[0] for row in rows] for rows in parts.values()), strict=True
    ):
        assert len(set(clusters)) == 1
    joined = [
        [cell for row in rows for cell in row[1:]]
        for rows in zip(*parts.values(), strict=True)
    ]
    assert {len(row) for row in joined} == {MAX_COLUMNS}
    assert joined[0] == [f"column {i + 1}" for i in range(MAX_COLUMNS)]
    values = [[float(cell) for cell in row] for row in joined[1:-2]]
    np.testing.assert_allclose(
        values, centroids[:4:-1, :MAX_COLUMNS], rtol=1e-3, atol=5e-3
    )
    assert parts["Centroids, part 1 of 10"][1][0] == str(MAX_ROWS + 4)
    assert f"the {MAX_ROWS} largest of {MAX_ROWS + 5} clusters" in section.text
    assert f"the first {MAX_COLUMNS} of {MAX_COLUMNS + 7} columns" in section.text
    assert len(section.all("circle")) == MAX_ROWS + 5


def places_of(section):
    chart = section.all("svg")[-1]
    places = {}
    for group in chart.all("g"):
        (dot,) = group.all("circle")
        name = group.the("title").text.split(",")[0]
        places[name] = [float(dot.attributes[key]) for key in ("cx", "cy", "r")]
    return places


def test_one_column_is_a_strip_between_its_bounds_and_two_are_where_their_values_are():
    places = places_of(section_of(clustering_of([[-50.0], [0.0], [50.0]], [1, 4, 4])))
    (x0, y0, r0), (x1, y1, r1), (x2, y2, r2) = (
        places[f"cluster {i}"] for i in range(3)
    )
    assert y0 == y1 == y2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert r1 == r2 == pytest.approx(2 * r0, abs=0.02)
    places = places_of(
        section_of(clustering_of([[-50.0, -50.0], [50.0, 50.0], [25.0, -25.0]]))
    )
    low, high, third = (places[f"cluster {i}"] for i in range(3))
    assert third[0] == pytest.approx(low[0] + 0.75 * (high[0] - low[0]), abs=0.02)
    assert third[1] == pytest.approx(low[1] + 0.25 * (high[1] - low[1]), abs=0.02)
    assert low[1] > high[1]  # downwards on a screen


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(2, 7))
def test_principal_places_keep_what_a_plane_holds(seed, k, d):
    """Points in a plane keep their distances; the first direction has the larger variance."""
    rng = np.random.default_rng(seed)
    plane, _ = np.linalg.qr(rng.normal(size=(d, 2)))
    flat = rng.normal(size=(k, 2)) * [3.0, 1.0]
    weights = rng.uniform(0, 5, k)
    places, shares = principal_places(flat @ plane.T + rng.normal(size=d), weights)
    distances = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    np.testing.assert_allclose(
        np.linalg.norm(places[:, None] - places[None], axis=2), distances, atol=1e-6
    )
    used = weights / weights.sum()
    np.testing.assert_allclose(used @ places, 0, atol=1e-6)
    variances = used @ places**2
    assert variances[0] >= variances[1] - 1e-9
    if k > 1:
        np.testing.assert_allclose(shares, variances / variances.sum(), atol=1e-6)
        np.testing.assert_allclose(
            (used[:, None] * places).T @ places, np.diag(variances), atol=1e-6
        )


def test_principal_places_follow_the_weights():
    points = np.array([[0.0, 0, 0], [1, 0, 0], [0, 5, 0], [0, 0, 9]])
    places, shares = principal_places(points, np.array([1.0, 1.0, 0.0, 0.0]))
    assert shares == pytest.approx([1.0, 0.0])
    assert places[1, 0] - places[0, 0] == pytest.approx(1.0)
    alike, _ = principal_places(points, np.zeros(4))
    np.testing.assert_allclose(alike, principal_places(points, np.ones(4))[0])


def test_many_columns_are_drawn_in_the_scale_of_the_run():
    domain = Box([0, 0, 0], [1, 1000, 10])
    centroids = np.array([[0.0, 500, 5], [1.0, 500, 5], [0.5, 500, 6]])
    section = section_of(clustering_of(centroids, domain=domain))
    assert "principal direction 1 (99%)" in section.text
    np.testing.assert_allclose(domain.scaled(centroids)[:2, 0], [-1, 1])


def test_records_that_are_colours_are_shown_as_colours():
    domain = Box([0] * 3, [255] * 3)
    result = clustering_of([[255.2, 0, 16], [-3, 127.6, 300]], [3, 1], domain)
    section = section_of(result, columns=["red", "green", "blue"])
    rows = tables(section)["Centroids"]
    assert [row[1].strip() for row in rows[1:-2]] == ["#ff0010", "#0080ff"]
    assert not section.all("figure", "profile")
    palette = section.all("div", "palette")[0].children
    assert [each.attributes["title"] for each in palette] == ["#ff0010", "#0080ff"]
    for other in ({"columns": ["r", "g", "b"]}, {}):
        assert not section_of(result, **other).all("div", "palette")
    wide = clustering_of([[1, 2, 3]], [1], Box([0] * 3, [256] * 3))
    assert not section_of(wide, columns=["red", "green", "blue"]).all("div", "palette")
    assert colour_of(np.array([0.5, 1.5, 254.5])) == "#0002fe"


@pytest.mark.parametrize("d", [1, 2, 3])
def test_equal_centroids_and_sizes_below_zero_are_no_error(d):
    section = section_of(clustering_of(np.full((3, d), 7.0), [-2.0, 0.0, -1.0]))
    assert len(section.all("circle")) == 3
    assert "nan" not in html_report(clustering_of(np.full((1, d), 7.0), [0.0])).lower()


def quality_of(clustering, **options):
    return read(html_report(clustering, **options)).the("section", id="quality").text


def test_the_released_cost_has_its_error():
    cost = CostEstimate(1234.5, 67.8, users_units=True)
    report = replace(report_of_a_run(), cost=cost)
    text = quality_of(clustering_of([[0.0, 0.0]], report=report))
    assert (
        "1234.5 with a standard error of 67.8, in squares of the records' scale" in text
    )
    without = quality_of(clustering_of([[0.0, 0.0]]))
    assert "standard error" not in without
    assert "Not measured" in without


def test_the_silhouette_is_shown_by_cluster():
    sums = SilhouetteSums((500.0, 20.0), (300.0, 10.0), 5.0, is_gaussian=True)
    silhouette = Silhouette(sums)
    report = replace(report_of_a_run(), silhouette=silhouette)
    result = clustering_of([[0.0, 0.0], [5.0, 0.0]], [500, 20], report=report)
    section = read(html_report(result)).the("section", id="quality")
    assert silhouette.text in section.text
    rows = tables(section)["Silhouette"]
    own = silhouette.by_cluster[0]
    assert rows[1][1:] == [
        f"{silhouette.value:.2f}",
        f"{silhouette.low:.2f} to {silhouette.high:.2f}",
    ]
    assert rows[2][1:] == [f"{own.value:.2f}", f"{own.low:.2f} to {own.high:.2f}"]
    assert rows[3][1:] == ["-", "too few records"]
    assert "Not measured" not in section.text
    turned = clustering_of([[0.0, 0.0], [5.0, 0.0]], [20, 500], report=report)
    section = read(html_report(turned)).the("section", id="quality")
    # As in the other tables, the largest cluster is first.
    assert [row[0][:1] for row in tables(section)["Silhouette"][2:]] == ["1", "0"]


def test_a_silhouette_that_noise_hides_has_no_table():
    sums = SilhouetteSums((50.0, 20.0), (30.0, 10.0), 50.0, is_gaussian=True)
    report = replace(report_of_a_run(), silhouette=Silhouette(sums))
    root = read(html_report(clustering_of([[0.0, 0.0], [5.0, 0.0]], report=report)))
    assert "Noise hides the silhouette" in root.the("section", id="quality").text
    assert "Silhouette" not in tables(root)
    assert "Quality: silhouette hidden by noise." in root.the("header").text


def test_the_head_says_how_good_the_clusters_are():
    found = Comparison(120.0, 100.0, 500.0, 1234)
    sums = SilhouetteSums((500.0, 20.0), (300.0, 10.0), 5.0, is_gaussian=True)
    report = replace(report_of_a_run(), silhouette=Silhouette(sums))
    clustering = clustering_of([[0.0, 0.0], [5.0, 0.0]], report=report)
    head = read(html_report(clustering, comparison=found)).the("header").text
    value = report.silhouette.value
    assert f"Quality: {found.verdict}; silhouette {value:.2f} of at most 1." in head


def test_ranges_that_the_run_found_are_named_so():
    ranges = (ColumnRange("x", 0.0, 1.0, False), ColumnRange("y", 0.0, 9.0, True))
    report = report_of_a_run()
    report = replace(report, ranges=ranges, bounds={**report.bounds, "tighten": 0.1})
    section = section_of(clustering_of([[0.0, 0.0]], report=report))
    assert tables(section)["Centroids"][-1][0] == "ranges"
    assert "Outer bounds stayed for y." in section.text


def test_a_comparison_is_shown_as_exact():
    found = Comparison(120.0, 100.0, 500.0, 1234)
    text = quality_of(clustering_of([[0.0, 0.0]]), comparison=found)
    assert found.text in text
    assert "exact, and the guarantee does not cover them" in text
    assert "Not measured" not in text
    with pytest.raises(ConfigurationTypeError, match="a Comparison"):
        html_report(clustering_of([[0.0, 0.0]]), comparison=1.2)


# --------------------------------------------------------------------------- charts

FIGURES = TEMPLATES.get_template("report/figures.svg.j2").module


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3))
def test_ticks_are_few_round_and_within_the_axis(low, wide):
    width = wide * max(1.0, abs(low))
    axis = Axis("x", low, low + width)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in ticks)
    # below, digits are lost to the size of the values
    if len(ticks) > 1 and wide > 1e-3:
        step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
        digits = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(digits - d) for d in (1, 2, 5, 10)) < 1e-3


def test_ticks_of_a_logarithmic_axis_are_powers_of_ten_and_values_are_cut_to_an_axis():
    assert Axis("x", 1e-4, 1.0, log=True).ticks() == pytest.approx(
        [1e-4, 1e-3, 1e-2, 0.1, 1]
    )
    many = Axis("x", 1e-15, 1.0, log=True).ticks()
    assert len(many) <= 7
    assert many == pytest.approx([10 ** round(math.log10(tick)) for tick in many])
    assert [Axis("x", 2.0, 4.0).share(v) for v in (1.0, 2.0, 3.0, 9.0)] == [
        0,
        0,
        0.5,
        1,
    ]
    logarithmic = Axis("x", 0.01, 1.0, log=True)
    assert [logarithmic.share(v) for v in (0.0, 0.01, 0.1, 1.0)] == pytest.approx(
        [0, 0, 0.5, 1]
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
def test_an_axis_around_values_holds_them(values):
    axis = around(values, "x")
    assert axis.low < min(values) <= max(values) < axis.high


def round_chart(answered, missing, least):
    lines = []
    for number, (came, away) in enumerate(zip(answered, missing, strict=True), 1):
        lines.append(RoundLine(number, number, came, away, 1.0, is_lost=False))
    return read(FIGURES.round_chart("b", "Bars", "words", lines, least)).the("svg")


def test_bars_are_as_high_as_their_numbers():
    svg = round_chart([4, 2, 4], [0, 2, 0], 3)
    bars = [float(bar.attributes["height"]) for bar in svg.all("rect", "a")]
    away = [float(bar.attributes["height"]) for bar in svg.all("rect", "m")]
    assert bars[0] == bars[2] == pytest.approx(2 * bars[1], abs=0.02)
    assert away == pytest.approx([0, bars[1], 0], abs=0.02)
    assert [group.the("title").text for group in svg.all("g")][1] == (
        "round 2: 2 answered, 2 missing"
    )
    (limit,) = svg.all("path", "limit")
    place = float(limit.attributes["d"].split(",")[1].split()[0])
    top = float(svg.all("rect", "a")[0].attributes["y"])
    assert PlotFrame().floor - place == pytest.approx(
        0.75 * (PlotFrame().floor - top), abs=0.02
    )
    assert len(round_chart([1] * 100, [0] * 100, 1).all("rect", "a")) == 100
    several = [RoundLine(1, 3, 4, 0, 1.0, is_lost=False)]
    svg = read(FIGURES.round_chart("b", "Bars", "words", several, 3)).the("svg")
    assert len(svg.all("rect", "a")) == 3


def test_lines_and_their_mark_are_within_the_drawing():
    x, y = Axis("x", 0.0, 2.0), Axis("y", 1e-6, 1.0, log=True)
    curve = ([0.0, 1.0, 5.0], [1.0, 1e-3, 1e-9])
    for at in ((0.0, 1.0), (2.0, 1e-6), (1.0, 1e-3)):
        svg = read(FIGURES.line_chart("l", "Line", "words", x, y, [curve], ("m", *at)))
        (line,) = svg.all("polyline")
        for point in line.attributes["points"].split():
            a, b = (float(v) for v in point.split(","))
            assert 0 <= a <= 440
            assert 0 <= b <= 280
        (mark,) = svg.all("circle")
        (label,) = [t for t in svg.all("text") if t.text == "m"]
        assert 0 < float(label.attributes["y"]) < 280
        end = label.attributes["text-anchor"] == "end"
        assert end == (float(mark.attributes["cx"]) > 0.6 * 440)


def test_dots_without_names_have_no_text():
    dots = [
        Dot("", 0.5, 0.0, 3.0, "first"),
        Dot("2", 1.0, 0.0, 3.0, "second", "#010203"),
    ]
    svg = read(
        FIGURES.scatter_chart("s", "S", "words", [Axis("x", 0, 1)], dots, True)
    ).the("svg")
    assert [text.text for text in svg.all("text", "dot-name")] == ["2"]
    assert [group.the("title").text for group in svg.all("g")] == ["first", "second"]
    styles = [dot.attributes.get("style") for dot in svg.all("circle")]
    assert styles == [None, "fill:#010203"]
