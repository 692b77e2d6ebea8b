"""Figures of repeated runs, and markdown and plots of them."""

import math

import numpy as np
import pytest
from scipy import stats

from flower_kmeans.bench import plots, tables


def test_intervals_are_students():
    values = [1.0, 2.0, 4.0, 4.5]
    mean, half = tables.interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert tables.interval([3.0])[0] == 3.0
    assert math.isnan(tables.interval([3.0])[1])


def test_cells_show_mean_interval_and_runs():
    assert tables.cell([]) == ""
    assert tables.cell([1.0]) == "1.000 (1)"
    assert tables.cell([1.0, 3.0]) == "2.000 ± 13 (2)"
    assert tables.cell([1.0, 1.0], ".2g", count=False) == "1 ± 0"


ROWS = [
    {"data": "a", "method": "m", "epsilon": epsilon, "run": run, "loss": run + epsilon}
    for run in range(3)
    for epsilon in (1.0, 2.0)
    if (run, epsilon) != (2, 2.0)
] + [{"data": "a", "method": "flat", "epsilon": None, "run": 0, "loss": 0.5}]


def test_curves_hold_runs_and_areas_are_of_whole_ones():
    curves = tables.curves_of(ROWS, "loss")
    assert list(curves) == [("a", "m"), ("a", "flat")]
    assert tables.areas_of(curves["a", "m"], (1.0, 2.0)) == [1.5, 2.5]
    assert tables.areas_of(curves["a", "m"], (1.0, 2.0, 4.0)) == []
    assert tables.areas_of(curves["a", "flat"], (1.0, 2.0, 4.0)) == [1.5]
    assert tables.points_of(curves["a", "m"], (2.0, 3.0)) == [[2.0, 3.0], []]
    assert tables.points_of(curves["a", "flat"], (2.0, 3.0)) == [[0.5], [0.5]]
    assert tables.grouped(ROWS, ["method"], "loss")["m",] == [1.0, 2.0, 2.0, 3.0, 3.0]
    assert tables.unique(row["method"] for row in ROWS) == ["m", "flat"]


def test_lines_are_those_of_keys_in_the_order_of_rows():
    assert tables.over_grid(
        ROWS, "loss", (1.0, 2.0), form=".2g", count=False
    ).splitlines() == [
        "| data | method | eps 1 | eps 2 |",
        "|---|---|--:|--:|",
        "| a | m | 2 ± 2.5 | 2.5 ± 6.4 |",
        "| a | flat | 0.5 | 0.5 |",
    ]
    rows = [{"n": n, "kind": "x", "t": n / 2} for n in (5000, 3, 5000)]
    found = tables.by_key(
        rows, {"N": "n", "of": "kind"}, {"runs": lambda of: str(len(of))}, (1,)
    )
    assert found.splitlines()[1:] == [
        "|--:|---|--:|",
        "| 5,000 | x | 2 |",
        "| 3 | x | 1 |",
    ]
    panels = tables.panels(tables.curves_of(ROWS, "loss"))
    assert {name: list(curves) for name, curves in panels.items()} == {
        "a": ["m", "flat"]
    }


def test_tables_are_markdown():
    assert tables.markdown(["data", "x"], [["a", "1"], ["b", ""]]).splitlines() == [
        "| data | x |",
        "|---|--:|",
        "| a | 1 |",
        "| b |  |",
    ]
    assert tables.markdown(["a|b"], [["c|d\ne"]]).splitlines() == [
        r"| a\|b |",
        "|---|",
        r"| c\|d e |",
    ]
    assert (
        tables.markdown(["a", "b", "c"], [], (0, 2)).splitlines()[1] == "|---|--:|---|"
    )
    assert tables.markdown(["a", "b", "c"], [], 2).splitlines()[1] == "|---|---|--:|"


def test_a_plot_has_a_panel_and_a_line_for_each_curve(tmp_path):
    curves = {key[1]: curve for key, curve in tables.curves_of(ROWS, "loss").items()}
    figure = plots.lines(
        {"one": curves, "two": {"m": curves["m"]}}, (1.0, 2.0), dashed=("flat",)
    )
    first, second, *hidden = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["one", "two"]
    assert not any(axes.get_visible() for axes in hidden)
    lines = first.get_lines()
    assert [line.get_label() for line in lines] == ["m", "flat"]
    assert [line.get_linestyle() for line in lines] == ["-", ":"]
    np.testing.assert_allclose(lines[0].get_ydata(), [2.0, 2.5])
    np.testing.assert_allclose(lines[1].get_ydata(), [0.5, 0.5])
    assert first.get_xscale() == first.get_yscale() == "log"
    assert plots.save(figure, tmp_path, "picture") == ["picture.png", "picture.svg"]
    once = (tmp_path / "picture.svg").read_bytes()
    plots.save(figure, tmp_path, "picture")
    assert (tmp_path / "picture.svg").read_bytes() == once
