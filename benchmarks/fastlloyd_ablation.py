"""FastLloyd's figure 5: its radius, and the treatment of centroids outside of the bounds.

    python benchmarks/fastlloyd_ablation.py --output build/fastlloyd-ablation

Appendix B of the paper: 48 synthetic sets of (k, d) in {2, 4, 8, 16}^2 and degrees of
separation 0.25, 0.5 and 0.75, at epsilon 0.1. The measure is NICV over that of the
variant without a radius and without postprocessing, as a mean over the data sets. No
offset exceeds the radius of variants without one: alpha is as large as the domain. A
step that noise made longer than the radius is always cut to it, so the paper's variants
without that "radius clipping" are not here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from protocols import box_of, in_box, over_parts, strategy_of

from bench import script, tables
from bench.data import family_of
from bench.harness import Options, Row, Suite
from flower_kmeans import PrivacyBudget
from flower_kmeans.metrics import nicv
from flower_kmeans.report.curves import draw_lines

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
DATASETS = tuple(
    f"ablation_{k}_{d}_{percent}" for k in SIZES for d in SIZES for percent in PERCENTS
)


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
    alphas = options.chosen("alpha", ALPHAS, float)
    for run in range(options.runs):
        for name in options.data:
            for postprocess in POSTPROCESSES:
                yield Task(name, NO_RADIUS, postprocess, None, run)
                for radius in RADII:
                    for alpha in alphas:
                        yield Task(name, radius, postprocess, alpha, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the NICV of one run."""
    data = in_box(task.data, options)
    n = len(data.records)
    alpha = task.alpha
    radius = task.radius
    if alpha is None:
        _, (k, d, _) = family_of(task.data) or ("", (1, 1, 0))
        alpha = 2.0 * float(k) ** (1 / d)  # a radius as long as the domain's diameter
        radius = "constant"
    strategy = strategy_of(
        "FastLloyd:paper",
        data,
        box_of(data),
        PrivacyBudget(EPSILON, 1 / (n * np.log(n))),
        task.run,
        alpha=alpha,
        radius=radius,
        postprocess=task.postprocess,
    )
    found = over_parts(strategy, data, task.run)
    return {
        "nicv": nicv(data.records, found.centroids),
        "rounds": found.report.n_rounds,
    }


Ratios = dict[tuple[str, str], dict[float | None, dict[int, float]]]
"""Ratios by variant, alpha and the place of the data set."""


def ratios_of(rows: Sequence[Row]) -> Ratios:
    """Return means over runs, over that of `BASE`, by variant, alpha and data set."""
    values = tables.grouped(rows, ("radius", "postprocess", "alpha", "data"), "nicv")
    names = tables.unique(row["data"] for row in rows)
    found: Ratios = {}
    for (radius, postprocess, alpha, name), nicvs in values.items():
        base = values.get((*BASE, None, name))
        if base is not None:
            curve = found.setdefault((radius, postprocess), {}).setdefault(alpha, {})
            curve[names.index(name)] = float(np.mean(nicvs) / np.mean(base))
    return found


def alphas_of(ratios: Ratios) -> list[float]:
    """Return the factors of the radius in the rows."""
    found = {alpha for curve in ratios.values() for alpha in curve}
    return sorted(alpha for alpha in found if alpha is not None)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return mean ratios over the data sets with their intervals, a row for each variant."""
    ratios = ratios_of(rows)
    alphas = alphas_of(ratios)
    lines = []
    for (radius, postprocess), curve in sorted(ratios.items()):
        cells = []
        for alpha in (None, *alphas):
            values = list(curve.get(alpha, {}).values())
            cells.append(tables.cell(values, count=False))
        lines.append([radius, postprocess, *cells])
    head = ["radius", "outside the bounds", "none", *(f"alpha {a:g}" for a in alphas)]
    return tables.markdown(head, lines, 2)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Return ratios over alpha, a panel for each rule of the radius."""
    ratios = ratios_of(rows)
    panels = {}
    for radius in RADII:
        curves = {}
        for postprocess in POSTPROCESSES:
            curves[postprocess] = ratios.get((radius, postprocess), {})
            without = f"{postprocess}, no radius"
            curves[without] = ratios.get((NO_RADIUS, postprocess), {})
        panels[f"radius: {radius}"] = {
            label: curve for label, curve in curves.items() if curve
        }
    return draw_lines(
        panels,
        alphas_of(ratios),
        dashed=tuple(f"{postprocess}, no radius" for postprocess in POSTPROCESSES),
        xlabel="alpha",
        ylabel="NICV over no radius, no postprocessing",
        xlog=False,
    )


SUITE = Suite(
    "fastlloyd-ablation",
    "FastLloyd's figure 5: NICV at epsilon 0.1 over that without a radius and without "
    "postprocessing, as a mean over 48 synthetic data sets with its 95% interval; less is "
    "better. The data are drawn as appendix B says, by this project's generators.",
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
    script.main(SUITE)
