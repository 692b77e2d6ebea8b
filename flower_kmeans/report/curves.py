"""Line charts of repeated runs: means over a grid, with their confidence intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from flower_kmeans.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONFIDENCE = 0.95
"""Confidence of the interval of a mean."""

Curve = dict[Any, dict[int, float]]
"""Values by place on the horizontal axis, and by run. A level line has the place ``None``."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95% confidence interval (Student's t).

    The half interval of a single value is nan.
    """
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan
    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return mean, quantile * spread


def points_of(curve: Curve, grid: Sequence[Any]) -> list[list[float]]:
    """Return the values at each place of a grid. A level line has the same values everywhere."""
    is_level = None in curve
    return [list(curve.get(None if is_level else at, {}).values()) for at in grid]


def draw_lines(
    panels: Mapping[str, Mapping[str, Curve]],
    grid: Sequence[float],
    *,
    colors: Mapping[str, str] | None = None,
    dashed: Sequence[str] = (),
    xlabel: str = "epsilon",
    ylabel: str = "",
    xlog: bool = True,
    bands: bool = True,
    columns: int = 3,
) -> "Figure":
    """Return a figure of means over a grid.

    Parameters
    ----------
    panels : mapping
        Curves by label, for each panel by title.
    grid : sequence of float
        Places on the horizontal axis.
    colors : mapping, optional
        Colours by label. Default: matplotlib's colours in turn.
    dashed : sequence of str
        Labels of dotted lines.
    xlabel, ylabel : str
        Labels of the axes.
    xlog : bool
        Whether the axis of x is logarithmic. The axis of y always is.
    bands : bool
        Whether to draw 95% intervals. Intervals of two or three runs hide the lines.
    columns : int
        Most panels in a row.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    require("matplotlib", "A plot", "plots")
    from matplotlib.figure import Figure

    columns = max(1, min(columns, len(panels)))
    n_rows = max(1, math.ceil(len(panels) / columns))
    figure = Figure(figsize=(4.0 * columns, 3.0 * n_rows + 0.5), layout="constrained")
    axes = figure.subplots(n_rows, columns, squeeze=False).ravel()
    for unused in axes[len(panels) :]:
        unused.set_visible(False)

    shades = dict(colors or {})
    for number, label in enumerate(_labels_of(panels.values())):
        shades.setdefault(label, f"C{number}")
    drawn: dict[str, Any] = {}
    for (title, curves), panel in zip(panels.items(), axes, strict=False):
        for label, curve in curves.items():
            mark = ":" if label in dashed else "-"
            line = _draw_curve(panel, curve, grid, mark, shades[label], bands=bands)
            if line is not None:
                line.set_label(label)
                drawn[label] = line
        panel.set_title(title, fontsize=10)
        panel.set_xlabel(xlabel)
        panel.set_ylabel(ylabel)
        _set_scales(panel, grid, xlog=xlog)
    figure.legend(
        drawn.values(), drawn.keys(), loc="outside upper center", ncols=5, frameon=False
    )
    return figure


def _labels_of(panels: Iterable[Mapping[str, Curve]]) -> list[str]:
    """Return the labels of all panels, each once, in their order."""
    return list(dict.fromkeys(label for curves in panels for label in curves))


def _draw_curve(
    panel: "Axes",
    curve: Curve,
    grid: Sequence[float],
    mark: str,
    color: str,
    *,
    bands: bool,
) -> Any:
    """Draw the means of a curve and return the line; ``None`` for a curve without values."""
    points = zip(grid, points_of(curve, grid), strict=True)
    found = [(place, *interval(values)) for place, values in points if values]
    if not found:
        return None
    places, means, halves = map(np.array, zip(*found, strict=True))
    (line,) = panel.plot(places, means, mark, color=color, marker="o", markersize=3)
    if bands:
        # One run has no interval, but its point is drawn.
        halves = np.nan_to_num(halves)
        # A logarithmic axis has no place for 0 or less.
        low = np.maximum(means - halves, means / 10)
        panel.fill_between(places, low, means + halves, color=color, alpha=0.2, lw=0)
    return line


def _set_scales(panel: "Axes", grid: Sequence[float], *, xlog: bool) -> None:
    """Make the axis of y logarithmic, and name the places of the grid."""
    from matplotlib.ticker import LogFormatter, NullLocator

    if xlog:
        panel.set_xscale("log")
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(LogFormatter())
    panel.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    panel.set_xticks(grid, [f"{place:g}" for place in grid])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.grid(alpha=0.3)
