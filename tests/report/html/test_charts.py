"""Axes and charts: round ticks, and marks where their values are."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import read

from flower_kmeans.report.figures import Axis, Dot, Frame, around
from flower_kmeans.report.html import TEMPLATES

FIGURES = TEMPLATES.get_template("figures.svg.j2").module


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3))
def test_ticks_are_few_round_and_within_the_axis(low, wide):
    width = wide * max(1.0, abs(low))
    axis = Axis("x", low, low + width)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in ticks)
    if len(ticks) > 1 and wide > 1e-3:  # below, digits are lost to the size of the values
        step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
        digits = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(digits - d) for d in (1, 2, 5, 10)) < 1e-3


def test_ticks_of_a_logarithmic_axis_are_powers_of_ten_and_values_are_cut_to_an_axis():
    assert Axis("x", 1e-4, 1.0, log=True).ticks() == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1])
    many = Axis("x", 1e-15, 1.0, log=True).ticks()
    assert len(many) <= 7
    assert many == pytest.approx([10 ** round(math.log10(tick)) for tick in many])
    assert [Axis("x", 2.0, 4.0).share(v) for v in (1.0, 2.0, 3.0, 9.0)] == [0, 0, 0.5, 1]
    logarithmic = Axis("x", 0.01, 1.0, log=True)
    assert [logarithmic.share(v) for v in (0.0, 0.01, 0.1, 1.0)] == pytest.approx([0, 0, 0.5, 1])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
def test_an_axis_around_values_holds_them(values):
    axis = around(values, "x")
    assert axis.low < min(values) <= max(values) < axis.high


def test_bars_are_as_high_as_their_numbers():
    svg = read(FIGURES.round_chart("b", "Bars", "words", [4, 2, 4], [0, 2, 0], 3)).the("svg")
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
    assert Frame().floor - place == pytest.approx(0.75 * (Frame().floor - top), abs=0.02)
    assert read(FIGURES.round_chart("b", "Bars", "words", [1] * 100, [0] * 100, 1)).all("rect", "a")


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
    dots = [Dot("", 0.5, 0.0, 3.0, "first"), Dot("2", 1.0, 0.0, 3.0, "second", "#010203")]
    svg = read(FIGURES.scatter_chart("s", "S", "words", [Axis("x", 0, 1)], dots, True)).the("svg")
    assert [text.text for text in svg.all("text", "dot-name")] == ["2"]
    assert [group.the("title").text for group in svg.all("g")] == ["first", "second"]
    styles = [dot.attributes.get("style") for dot in svg.all("circle")]
    assert styles == [None, "fill:#010203"]
