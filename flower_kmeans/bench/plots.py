"""Plots of repeated runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flower_kmeans.bench.tables import Curve, interval, points_of
from flower_kmeans.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")


def lines(
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
    """Return a figure of means over a grid, with bands of their 95% intervals.

    ``panels`` has titles, and for each the curves by their labels; a curve with values
    at ``None`` is level. Labels in ``dashed`` are drawn dotted. Without ``bands``
    intervals are left out, as for two or three runs, where they hide everything else.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed.
    """
    require("matplotlib", "A plot", "plots")
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, NullLocator

    columns = max(1, min(columns, len(panels)))
    n_rows = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(4.0 * columns, 3.0 * n_rows + 0.5), layout="constrained")
    axes = figure.subplots(n_rows, columns, squeeze=False).ravel()
    labels = list(
        dict.fromkeys(label for curves in panels.values() for label in curves)
    )
    drawn: dict[str, Any] = {}
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for (title, curves), panel in zip(panels.items(), axes, strict=False):
        for label, curve in curves.items():
            found = [
                (place, *interval(values))
                for place, values in zip(grid, points_of(curve, grid), strict=True)
                if values
            ]
            if not found:
                continue
            places, mean, half = map(np.array, zip(*found, strict=True))
            # One run has no interval, but its point is drawn.
            half = np.nan_to_num(half)
            color = (colors or {}).get(label, f"C{labels.index(label)}")
            mark = ":" if label in dashed else "-"
            (drawn[label],) = panel.plot(
                places, mean, mark, color=color, marker="o", markersize=3, label=label
            )
            if bands:
                # A logarithmic axis has no place for what is 0 or less.
                low = np.maximum(mean - half, mean / 10)
                panel.fill_between(
                    places, low, mean + half, color=color, alpha=0.2, lw=0
                )
        panel.set_title(title, fontsize=10)
        if xlog:
            panel.set_xscale("log")
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(LogFormatter())
        panel.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        panel.set_xticks(grid, [f"{place:g}" for place in grid])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(xlabel)
        panel.set_ylabel(ylabel)
        panel.grid(alpha=0.3)
    figure.legend(
        drawn.values(), drawn.keys(), loc="outside upper center", ncols=5, frameon=False
    )
    return figure


def save(figure: "Figure", directory: Path, name: str) -> list[str]:
    """Write a figure in all `FORMATS`, and return the files' names."""
    from matplotlib import rc_context

    written = [f"{name}.{form}" for form in FORMATS]
    for file in written:
        with rc_context({"svg.hashsalt": name}):  # the same figure is the same file
            metadata = {"Date": None} if file.endswith("svg") else {}
            figure.savefig(directory / file, dpi=90, metadata=metadata)
    return written
