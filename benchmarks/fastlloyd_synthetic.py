"""FastLloyd's figures 3 and 4: how losses grow with columns and clusters, on synthetic data.

    python benchmarks/fastlloyd_synthetic.py --runs 3 --output build/fastlloyd-synthetic

Three families, all generated: G2 with 2 to 1,024 columns (figure 3a), Synth-K with 2 to 128
clusters of 2 columns (3b), and Synth with 2 to 32 clusters of 2 to 512 columns (4). The figure is
the area under NICV over epsilon, divided by that of SuLloyd on the same data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fastlloyd_protocol import (
    COLORS,
    EPSILONS,
    LLOYD,
    METHODS,
    OURS,
    FloatArray,
    cluster,
    records_of,
    tasks_on,
)

from flower_kmeans.bench import plots, tables
from flower_kmeans.bench.data import family_of
from flower_kmeans.bench.harness import Options, Row, Suite, Task
from flower_kmeans.bench.script import main
from flower_kmeans.metrics import nicv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "SuLloyd"
SPREAD = 30  # of the G2 sets: the paper does not say which it took
SEEDS = (0, 1, 2)
COLUMNS = tuple(2**i for i in range(1, 11))
CLUSTERS = tuple(2**i for i in range(1, 8))
GRID_CLUSTERS = (2, 4, 8, 16, 32)
GRID_COLUMNS = tuple(2**i for i in range(1, 10))
GRID_METHODS = (BASE, "FastLloyd", OURS)
G2 = tuple(f"g2_{d}_{SPREAD}" for d in COLUMNS)
SYNTH_K = tuple(f"synth_{k}_2_{seed}" for k in CLUSTERS for seed in SEEDS)
GRID = tuple(
    f"synth_{k}_{d}_{seed}"
    for d in GRID_COLUMNS
    for k in GRID_CLUSTERS
    for seed in SEEDS
    if d > 2 or k > max(CLUSTERS)
)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            yield from tasks_on(name, run, GRID_METHODS if name in GRID else METHODS)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the NICV of one run."""
    records, n_clusters = records_of(task.data, options)
    found = cluster(records, n_clusters, task.method, task.epsilon, task.run)
    return {"nicv": nicv(records, found.centroids), "rounds": found.report.n_rounds}


# --------------------------------------------------------------------------- figures


def ratios_of(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return, for each data set, mean areas over that of `BASE`; of data sets that have both."""
    areas = {
        key: tables.areas_of(curve, EPSILONS)
        for key, curve in tables.curves_of(rows, "nicv").items()
    }
    means = {key: float(np.mean(values)) for key, values in areas.items() if values}
    found: dict[str, dict[str, float]] = {}
    for (name, method), mean in means.items():
        if (name, BASE) in means:
            found.setdefault(name, {})[method] = mean / means[name, BASE]
    return found


def by_place(rows: Sequence[Row], family: str, axis: int) -> dict[str, dict[int, dict[int, float]]]:
    """Return ratios by method, by a number in the data sets' names, and by seed."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for name, ratios in ratios_of(rows).items():
        kind, numbers = family_of(name) or ("", ())
        if kind != family or (family == "synth" and numbers[1] != 2):
            continue
        seed = numbers[2] if family == "synth" else 0
        for method, ratio in ratios.items():
            found.setdefault(method, {}).setdefault(numbers[axis], {})[seed] = ratio
    return found


def line_table(rows: Sequence[Row], family: str, axis: int, name: str) -> str:
    """Return a row for each size, and a column for each method."""
    found = by_place(rows, family, axis)
    places = sorted({place for places in found.values() for place in places})
    lines = [
        [str(place), *(_mean(found.get(m, {}).get(place, {}).values()) for m in METHODS)]
        for place in places
    ]
    return tables.markdown([name, *METHODS], lines)


def grid_of(rows: Sequence[Row], method: str) -> FloatArray:
    """Return mean ratios over seeds, clusters by columns; nan where there are none."""
    grid = np.full((len(GRID_CLUSTERS), len(GRID_COLUMNS)), np.nan)
    ratios = ratios_of(rows)
    for i, k in enumerate(GRID_CLUSTERS):
        for j, d in enumerate(GRID_COLUMNS):
            names = [f"synth_{k}_{d}_{seed}" for seed in SEEDS]
            values = [ratios[n][method] for n in names if method in ratios.get(n, {})]
            if values:
                grid[i, j] = np.mean(values)
    return grid


def grid_table(rows: Sequence[Row], method: str) -> str:
    """Return mean ratios, a row for each number of clusters."""
    lines = [
        [str(k), *("" if np.isnan(value) else f"{value:.2f}" for value in row)]
        for k, row in zip(GRID_CLUSTERS, grid_of(rows, method), strict=True)
    ]
    return tables.markdown(["k \\ d", *map(str, GRID_COLUMNS)], lines)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the tables of both figures."""
    return "\n\n".join(
        [
            f"G2 (k = 2, standard deviation {SPREAD}), by columns:",
            line_table(rows, "g2", 0, "d"),
            "Synth-K (d = 2), by clusters, means over three data sets:",
            line_table(rows, "synth", 0, "k"),
            "Synth, FastLloyd over SuLloyd, means over three data sets:",
            grid_table(rows, "FastLloyd"),
            f"Synth, {OURS} over SuLloyd:",
            grid_table(rows, OURS),
        ]
    )


def _mean(values: Any) -> str:
    return f"{np.mean(list(values)):.3f}" if values else ""


def line_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw figure 3."""
    panels = {
        "G2 (k = 2)": by_place(rows, "g2", 0),
        "Synth-K (d = 2)": by_place(rows, "synth", 0),
    }
    grid = sorted({p for panel in panels.values() for places in panel.values() for p in places})
    return plots.lines(
        {title: {m: panel[m] for m in METHODS if m in panel} for title, panel in panels.items()},
        grid,
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
        panel.set_xlabel("columns")
        panel.set_ylabel("clusters")
        panel.set_title(f"{method}: AUC / that of {BASE}", fontsize=10)
    figure.colorbar(image, ax=figure.axes)
    return figure


SUITE = Suite(
    "fastlloyd-synthetic",
    "FastLloyd's figures 3 and 4. NICV in its protocol (columns scaled to [-1, 1], two clients, "
    "delta = 1/(N ln N)), as the area over epsilon from 0.1 to 1, divided by that of SuLloyd on "
    "the same data: less is better. Lloyd is not private. The data are drawn as the paper says, by "
    "this project's generators, and are not the paper's own.",
    Task,
    {"nicv": float, "rounds": int},
    tasks_of,
    measure,
    tables_of,
    {"fastlloyd-scaling": line_plot, "fastlloyd-grid": grid_plot},
    (*G2, *SYNTH_K, *GRID),
    runs=3,
)

if __name__ == "__main__":
    main(SUITE, __doc__)
