"""Line charts of repeated runs, and the intervals of their means."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy import stats

from flower_kmeans.report.curves import draw_lines, interval, points_of

CURVES = {
    "m": {1.0: {0: 1.0, 1: 2.0, 2: 3.0}, 2.0: {0: 2.0, 1: 3.0}},
    "flat": {None: {0: 0.5}},
}


def test_intervals_are_students():
    values = [1.0, 2.0, 4.0, 4.5]
    mean, half = interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert interval([3.0])[0] == 3.0
    assert math.isnan(interval([3.0])[1])


def test_points_of_a_level_line_are_the_same_everywhere():
    assert points_of(CURVES["m"], (2.0, 3.0)) == [[2.0, 3.0], []]
    assert points_of(CURVES["flat"], (2.0, 3.0)) == [[0.5], [0.5]]


def test_a_plot_has_a_panel_and_a_line_for_each_curve():
    panels = {"one": CURVES, "two": {"m": CURVES["m"]}}
    figure = draw_lines(panels, (1.0, 2.0), dashed=("flat",))
    first, second, *hidden = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["one", "two"]
    assert not any(axes.get_visible() for axes in hidden)
    lines = first.get_lines()
    assert [line.get_label() for line in lines] == ["m", "flat"]
    assert [line.get_linestyle() for line in lines] == ["-", ":"]
    np.testing.assert_allclose(lines[0].get_ydata(), [2.0, 2.5])
    np.testing.assert_allclose(lines[1].get_ydata(), [0.5, 0.5])
    assert first.get_xscale() == first.get_yscale() == "log"


def test_a_label_has_one_colour_in_all_panels_and_bands_may_be_left_out():
    panels = {"one": {"none": {}, **CURVES}, "two": {"flat": CURVES["flat"]}}
    figure = draw_lines(panels, (1.0, 2.0), colors={"m": "red"}, bands=False)
    first, second = (axes.get_lines() for axes in figure.axes[:2])
    assert [to_hex(line.get_color()) for line in first] == ["#ff0000", "#2ca02c"]
    assert second[0].get_color() == first[1].get_color()
    assert not figure.axes[0].collections
    with_bands = draw_lines(panels, (1.0, 2.0))
    assert len(with_bands.axes[0].collections) == 2
