"""FastLloyd's figure 5: its radius and what happens to centroids outside of the bounds.

    python benchmarks/fastlloyd_ablation.py --runs 3 --output build/fastlloyd-ablation

Appendix B of the paper: 48 synthetic sets of (k, d) in {2, 4, 8, 16}^2 and degrees of separation
0.25, 0.5 and 0.75, at epsilon 0.1. The figure is NICV over that of the variant without a radius and
without postprocessing, as a mean over the data sets. Without a radius means one that no offset
exceeds: alpha is as large as the domain. A step that noise made longer than the radius is always
cut to it, so the paper's variants without that "radius clipping" are not here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from fastlloyd_protocol import cluster, records_of

from flower_kmeans.bench import plots, tables
from flower_kmeans.bench.data import family_of
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.bench.script import main
from flower_kmeans.metrics import nicv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 0.1
SIZES = (2, 4, 8, 16)
PERCENTS = (25, 50, 75)
ALPHAS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.6)
RADII = ("step", "constant")
POSTPROCESSES = ("fold", "truncate", "none")
NO_RADIUS = "no radius"
BASE = (NO_RADIUS, "none")
DATASETS = tuple(f"ablation_{k}_{d}_{p}" for k in SIZES for d in SIZES for p in PERCENTS)


@dataclass(frozen=True)
class Task:
    """One run of one variant; ``alpha`` is None without a radius."""

    data: str
    radius: str
    postprocess: str
    alpha: float | None
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            for postprocess in POSTPROCESSES:
                yield Task(name, NO_RADIUS, postprocess, None, run)
                for radius in RADII:
                    for alpha in options.chosen("alpha", ALPHAS, float):
                        yield Task(name, radius, postprocess, alpha, run)


def unbounded(name: str) -> float:
    """Return an alpha whose radius is the diameter of the domain."""
    _, (k, d, _) = family_of(name) or ("", (1, 1, 0))
    return 2.0 * float(k) ** (1 / d)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the NICV of one run."""
    records, n_clusters = records_of(task.data, options)
    free = task.alpha is None
    found = cluster(
        records,
        n_clusters,
        "FastLloyd",
        EPSILON,
        task.run,
        alpha=unbounded(task.data) if free else task.alpha,
        radius="constant" if free else task.radius,
        postprocess=task.postprocess,
    )
    return {"nicv": nicv(records, found.centroids), "rounds": found.report.n_rounds}


def ratios_of(rows: Sequence[Row]) -> dict[tuple[str, str], dict[float | None, dict[int, float]]]:
    """Return ratios by variant, alpha and data set: means over runs, over that of `BASE`."""
    values = tables.grouped(rows, ("radius", "postprocess", "alpha", "data"), "nicv")
    names = tables.unique(row["data"] for row in rows)
    found: dict[tuple[str, str], dict[float | None, dict[int, float]]] = {}
    for (radius, postprocess, alpha, name), nicvs in values.items():
        base = values.get((*BASE, None, name))
        if base is not None:
            curve = found.setdefault((radius, postprocess), {}).setdefault(alpha, {})
            curve[names.index(name)] = float(np.mean(nicvs) / np.mean(base))
    return found


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return mean ratios over the data sets with their intervals, a row for each variant."""
    ratios = ratios_of(rows)
    alphas = sorted({a for curve in ratios.values() for a in curve if a is not None})
    lines = []
    for (radius, postprocess), curve in sorted(ratios.items()):
        if None in curve:
            cells = [tables.cell(list(curve[None].values()), count=False)] + [""] * len(alphas)
        else:
            cells = [""] + [
                tables.cell(list(curve.get(alpha, {}).values()), count=False) for alpha in alphas
            ]
        lines.append([radius, postprocess, *cells])
    head = ["radius", "outside the bounds", "none", *(f"alpha {alpha:g}" for alpha in alphas)]
    return tables.markdown(head, lines, 2)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Return ratios over alpha, a panel for each rule of the radius."""
    ratios = ratios_of(rows)
    alphas = sorted({a for curve in ratios.values() for a in curve if a is not None})
    panels = {
        f"radius: {radius}": {
            label: ratios[found, postprocess]
            for postprocess in POSTPROCESSES
            for found, label in ((radius, postprocess), (NO_RADIUS, f"{postprocess}, no radius"))
            if (found, postprocess) in ratios
        }
        for radius in RADII
    }
    return plots.lines(
        panels,
        alphas,
        colors={
            label: f"C{i}"
            for i, postprocess in enumerate(POSTPROCESSES)
            for label in (postprocess, f"{postprocess}, no radius")
        },
        dashed=tuple(f"{postprocess}, no radius" for postprocess in POSTPROCESSES),
        xlabel="alpha",
        ylabel="NICV over no radius, no postprocessing",
        xlog=False,
        ylog=False,
    )


SUITE = Suite(
    "fastlloyd-ablation",
    "FastLloyd's figure 5: NICV at epsilon 0.1 over that without a radius and without "
    "postprocessing, as a mean over 48 synthetic data sets with its 95% interval; less is better. "
    "The data are drawn as appendix B says, by this project's generators.",
    Task,
    {"nicv": float, "rounds": int},
    tasks_of,
    measure,
    tables_of,
    {"fastlloyd-ablation": plot},
    DATASETS,
    runs=3,
)

if __name__ == "__main__":
    main(SUITE, __doc__)
