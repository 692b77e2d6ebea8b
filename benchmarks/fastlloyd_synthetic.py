"""FastLloyd's figures 3 and 4: how losses grow with columns and clusters, on synthetic data.

    python benchmarks/fastlloyd_synthetic.py --output build/fastlloyd-synthetic

Three families, all generated: G2 with 2 to 1,024 columns (figure 3a), Synth-K with 2 to
128 clusters of 2 columns (3b), and Synth with 2 to 32 clusters of 2 to 512 columns (4).
The measure is the area under NICV over epsilon, divided by that of SuLloyd on the same
data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fastlloyd_metrics import COLORS, EPSILONS, LLOYD, METHODS, OURS, PAPERS, tasks_on
from protocols import as_fastlloyd, in_box

from bench import script, tables
from bench.data import family_of
from bench.harness import Options, Row, Suite, Task
from flower_kmeans.arrays import FloatArray
from flower_kmeans.metrics import nicv
from flower_kmeans.report.curves import Curve, draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "SuLloyd"
SPREAD = 30  # of the G2 sets: the paper does not name it
SEEDS = (0, 1, 2)
GRID_CLUSTERS = (2, 4, 8, 16, 32)
GRID_COLUMNS = tuple(2**i for i in range(1, 10))
GRID_METHODS = (BASE, PAPERS, OURS)
LINES = (
    *(f"g2_{2**i}_{SPREAD}" for i in range(1, 11)),
    *(f"synth_{2**i}_2_{seed}" for i in range(1, 8) for seed in SEEDS),
)
GRID = tuple(
    f"synth_{k}_{d}_{seed}"
    for d in GRID_COLUMNS[1:]
    for k in GRID_CLUSTERS
    for seed in SEEDS
)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run: on the grid, of the methods that are compared there."""
    lines = [name for name in options.data if name not in GRID]
    yield from tasks_on(lines, options.runs)
    grid = [name for name in options.data if name in GRID]
    yield from tasks_on(grid, options.runs, GRID_METHODS)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the NICV of one run."""
    data = in_box(task.data, options)
    found = as_fastlloyd(data, task.method, task.epsilon, task.run)
    return {
        "nicv": nicv(data.records, found.centroids),
        "rounds": found.report.n_rounds,
    }


# --------------------------------------------------------------------------- figures


def ratios_of(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return mean areas over that of `BASE` by data set and method, of sets that have both."""
    areas = {}
    for key, curve in tables.curves_of(rows, "nicv").items():
        found = tables.areas_of(curve, EPSILONS)
        if found:
            areas[key] = float(np.mean(found))
    ratios: dict[str, dict[str, float]] = {}
    for (name, method), area in areas.items():
        if (name, BASE) in areas:
            ratios.setdefault(name, {})[method] = area / areas[name, BASE]
    return ratios


def by_place(rows: Sequence[Row], family: str) -> dict[str, Curve]:
    """Return ratios by method, by columns of G2 or clusters of Synth-K, and by seed."""
    found: dict[str, Curve] = {}
    for name, ratios in ratios_of(rows).items():
        kind, numbers = family_of(name) or ("", ())
        if kind != family or name in GRID:
            continue
        for method, ratio in ratios.items():
            places = found.setdefault(method, {})
            places.setdefault(numbers[0], {})[numbers[-1]] = ratio
    return {method: found[method] for method in METHODS if method in found}


def places_of(curves: Mapping[str, Curve]) -> list[float]:
    """Return the places that any curve has, ascending."""
    return sorted({place for curve in curves.values() for place in curve if place})


def line_table(rows: Sequence[Row], family: str, name: str) -> str:
    """Return a row for each size, and a column for each method."""
    found = by_place(rows, family)
    lines = []
    for place in places_of(found):
        cells = [f"{place:g}"]
        for method in METHODS:
            values = list(found.get(method, {}).get(place, {}).values())
            cells.append(f"{np.mean(values):.3f}" if values else "")
        lines.append(cells)
    return tables.markdown([name, *METHODS], lines)


def grid_of(rows: Sequence[Row], method: str) -> FloatArray:
    """Return mean ratios over seeds, clusters by columns; nan where there are none."""
    grid = np.full((len(GRID_CLUSTERS), len(GRID_COLUMNS)), np.nan)
    ratios = ratios_of(rows)
    for i, j in np.ndindex(grid.shape):
        values = []
        for seed in SEEDS:
            name = f"synth_{GRID_CLUSTERS[i]}_{GRID_COLUMNS[j]}_{seed}"
            if method in ratios.get(name, {}):
                values.append(ratios[name][method])
        if values:
            grid[i, j] = np.mean(values)
    return grid


def grid_table(rows: Sequence[Row], method: str) -> str:
    """Return mean ratios, a row for each number of clusters."""
    lines = []
    for k, ratios in zip(GRID_CLUSTERS, grid_of(rows, method), strict=True):
        cells = ["" if np.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios]
        lines.append([str(k), *cells])
    return tables.markdown(["k \\ d", *map(str, GRID_COLUMNS)], lines)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the tables of both figures."""
    return "\n\n".join(
        [
            f"G2 (k = 2, standard deviation {SPREAD}), by columns:",
            line_table(rows, "g2", "d"),
            "Synth-K (d = 2), by clusters, means over three data sets:",
            line_table(rows, "synth", "k"),
            f"Synth, {PAPERS} over {BASE}, means over three data sets:",
            grid_table(rows, PAPERS),
            f"Synth, {OURS} over {BASE}:",
            grid_table(rows, OURS),
        ]
    )


def line_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw figure 3."""
    panels = {
        "G2 (k = 2)": by_place(rows, "g2"),
        "Synth-K (d = 2)": by_place(rows, "synth"),
    }
    places = sorted({place for panel in panels.values() for place in places_of(panel)})
    return draw_lines(
        panels,
        places,
        colors=COLORS,
        dashed=(LLOYD,),
        xlabel="columns, or clusters",
        ylabel=f"AUC / that of {BASE}",
    )


def grid_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw figure 4 as ratios."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for panel, method in zip(figure.subplots(1, 2), GRID_METHODS[1:], strict=True):
        grid = grid_of(rows, method)
        image = panel.imshow(grid, vmin=0, vmax=1.2, cmap="RdYlGn_r", aspect="auto")
        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                panel.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8)
        panel.set_xticks(range(len(GRID_COLUMNS)), list(map(str, GRID_COLUMNS)))
        panel.set_yticks(range(len(GRID_CLUSTERS)), list(map(str, GRID_CLUSTERS)))
        panel.set(xlabel="columns", ylabel="clusters")
        panel.set_title(f"{method}: AUC / that of {BASE}", fontsize=10)
    figure.colorbar(image, ax=figure.axes)
    return figure


SUITE = Suite(
    "fastlloyd-synthetic",
    "FastLloyd's figures 3 and 4. NICV in its protocol (columns scaled to [-1, 1], two clients, "
    "delta = 1/(N ln N)), as the area over epsilon from 0.1 to 1, divided by that of SuLloyd on "
    "the same data: less is better. Lloyd is not private. The data are drawn as the paper says, "
    "by this project's generators, and are not the paper's own.",
    Task,
    {"nicv": float, "rounds": int},
    tasks_of,
    measure,
    tables_of,
    {"fastlloyd-scaling": line_plot, "fastlloyd-grid": grid_plot},
    (*LINES, *GRID),
    runs=3,
)

if __name__ == "__main__":
    script.main(SUITE)
