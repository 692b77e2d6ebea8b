"""Figures of repeated runs, markdown of them, and plots as files."""

from bench import plots, tables
from flower_kmeans.report.curves import draw_lines


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


CURVES = tables.curves_of(ROWS, "loss")


def test_curves_hold_runs_and_areas_are_of_whole_ones():
    curves = tables.curves_of(ROWS, "loss")
    assert list(curves) == [("a", "m"), ("a", "flat")]
    assert tables.areas_of(curves["a", "m"], (1.0, 2.0)) == [1.5, 2.5]
    assert tables.areas_of(curves["a", "m"], (1.0, 2.0, 4.0)) == []
    assert tables.areas_of(curves["a", "flat"], (1.0, 2.0, 4.0)) == [1.5]
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


def test_the_same_figure_is_the_same_file(tmp_path):
    figure = draw_lines({"one": tables.panels(CURVES)["a"]}, (1.0, 2.0))
    assert plots.save(figure, tmp_path, "picture") == ["picture.png", "picture.svg"]
    once = (tmp_path / "picture.svg").read_bytes()
    plots.save(figure, tmp_path, "picture")
    assert (tmp_path / "picture.svg").read_bytes() == once
