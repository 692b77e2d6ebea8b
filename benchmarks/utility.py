"""How good private clusterings are: NICV against epsilon, as in FastLloyd's paper (section 6).

    python benchmarks/utility.py --data-dir DIR --runs 20 --output build/utility

The protocol stands in ``SUITE``. Every clustering is a whole run of a strategy through
``simulate`` in this process, masks and noise included (``protocols.py``). Beside the
strategies stands scikit-learn's KMeans on the pooled records (the best of ten starts by
k-means++, run to convergence). ``FastLloyd:paper`` is FastLloyd without relocation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from protocols import (
    KMEANS,
    OF_THE_SERVER,
    PROJECTED,
    as_fastlloyd,
    best_of_ten,
    fastlloyd_delta,
    in_box,
)

from bench import scales, script, tables
from bench.data import BUNDLED
from bench.harness import Options, Row, Suite, Task
from bench.tables import Curves, areas_of, markdown, shown_half
from flower_kmeans.metrics import nicv
from flower_kmeans.report.curves import draw_lines, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_PRIVATE = (KMEANS, "Lloyd")
EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)
RELATIVE_AT = (0.1, 0.25, 1.0)
"""Epsilons at which NICV stands beside its yardsticks."""
METHODS = (
    *NOT_PRIVATE,
    "SuLloyd",
    "GLloyd",
    "FastLloyd",
    "FastLloyd:paper",
    *OF_THE_SERVER,
)
DATASETS = (
    *("s1", "lsun", "iris", "wine", "breast", "birch2"),
    *(f"g2mg_{d}_30" for d in (4, 16, 128)),
    *BUNDLED,
)
REFERENCE = {
    "FastLloyd:paper": {
        **{
            "s1": "0.0220",
            "lsun": "0.205",
            "iris": "0.419",
            "wine": "2.31",
            "breast": "1.45",
        },
        **{
            "birch2": "0.00358",
            "g2mg_4_30": "0.194",
            "g2mg_16_30": "1.02",
            "g2mg_128_30": "10.5",
        },
    },
    "GLloyd": {"s1": "0.0271", "birch2": "0.0059"},
    "SuLloyd": {"s1": "0.0288", "birch2": "0.0064"},
    "Lloyd": {"s1": "0.0074", "lsun": "0.137", "iris": "0.168"},
    "KMeans": {"s1": "0.0074", "lsun": "0.137", "iris": "0.168"},
}
"""AUC of the papers' reference code, measured once under this protocol; not part of these runs."""


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second.

    Methods without epsilon have one run for five of the others.
    """
    wide = {
        name for name in options.data if options.load(name).records.shape[1] > PROJECTED
    }
    for run, name, method in product(range(options.runs), options.data, METHODS):
        if method != "HDPEMeans" or name in wide:
            for epsilon in (None,) if method in NOT_PRIVATE else EPSILONS:
                yield Task(name, method, epsilon, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run one strategy over two clients, and return the cost of its result."""
    data = in_box(task.data, options)
    if task.method == KMEANS:
        fitted = best_of_ten(data, task.run)
        cost = float(fitted.inertia_) / len(data.records)
        return {"nicv": cost, "n_rounds": int(fitted.n_iter_), "noise_factor": 1.0}
    found = as_fastlloyd(data, task.method, task.epsilon, task.run)
    return {
        "nicv": nicv(data.records, found.centroids),
        "n_rounds": found.report.n_rounds,
        "noise_factor": found.report.noise_factor,
    }


# --------------------------------------------------------------------------- figures


def verdict(mean: float, half: float, reference: str) -> str:
    """Say how a mean compares with a reference figure, which is as good as its last digit.

    The reference's own interval is not known, so "WORSE" can be chance; "better" too.
    """
    rounding = 0.5 * 10.0 ** -len(reference.partition(".")[2])
    if abs(mean - float(reference)) <= half + rounding:
        return "equal within the interval"
    return "better" if mean < float(reference) else "WORSE"


def auc_table(curves: Curves) -> str:
    """Return areas beside the reference figures, as a markdown table."""
    head = [
        "data",
        "method",
        "AUC",
        "95% interval",
        "reference",
        "ratio",
        "against the reference",
    ]
    lines = []
    for (data, method), curve in curves.items():
        areas = areas_of(curve, EPSILONS)
        if areas:
            mean, half = interval(areas)
            spread = "" if math.isnan(half) else shown_half(half, mean)
            cells = [data, method, f"{mean:.3g}", spread, "", "", ""]
            reference = REFERENCE.get(method, {}).get(data)
            if reference is not None:
                ratio = f"{mean / float(reference):.2f}"
                cells[4:] = [reference, ratio, verdict(mean, half, reference)]
            lines.append(cells)
    return markdown(head, lines, (0, 1, 6))


def wide_table(curves: Curves) -> str:
    """Return areas with intervals and numbers of runs, a row for each data set, as markdown."""
    methods = tables.unique(method for _, method in curves)
    lines = [
        [
            name,
            *(
                tables.cell(areas_of(found.get(m, {}), EPSILONS), ".3g")
                for m in methods
            ),
        ]
        for name, found in tables.panels(curves).items()
    ]
    return markdown(["data", *methods], lines)


def data_table(names: Sequence[str], options: Options) -> str:
    """Return a markdown table of the data sets that exist."""
    found = [(name, options.load(name)) for name in names if name in options.data]
    lines = [
        [name, *map(str, (*each.records.shape, each.n_clusters)), each.note]
        for name, each in found
    ]
    return markdown(["data", "records", "columns", "clusters", "note"], lines, (0, 4))


def scale_of(name: str, options: Options) -> scales.Scale:
    """Return the yardsticks of a data set in this protocol. NOT PRIVATE."""
    data = in_box(name, options)
    delta = fastlloyd_delta(len(data.records))
    return scales.scale_of(data.records, data.n_clusters, delta, EPSILONS)


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows by their data sets, in the order of `DATASETS` and then of the rows."""
    names = tables.unique([*DATASETS, *(row["data"] for row in rows)])
    return sorted(rows, key=lambda row: names.index(row["data"]))


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return all tables."""
    rows = ordered(rows)
    curves = tables.curves_of(rows, "nicv")
    points = tables.grouped(rows, ("data", "method", "epsilon"), "run").values()
    fewest, most = min(map(len, points)), max(map(len, points))
    runs = f"{most}" if fewest == most else f"{fewest} to {most}"
    factors = sorted({round(row["noise_factor"], 4) for row in rows})
    names = tables.unique(row["data"] for row in rows)
    measured = {name: scale_of(name, options) for name in names if name in options.data}
    parts = [
        data_table(names, options),
        f"{runs} runs per point; noise over the planned noise: "
        + ", ".join(f"{factor:g}" for factor in factors),
        auc_table(curves),
        wide_table(curves),
        tables.over_grid(rows, "nicv", EPSILONS, form=".3g", count=False),
        *scales.relative_tables(curves, measured, EPSILONS, RELATIVE_AT),
    ]
    return "\n\n".join(parts)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Return NICV over epsilon with its confidence band, one panel per data set."""
    shown = {m: f"{m} (not private)" if m in NOT_PRIVATE else m for m in METHODS}
    curves = tables.curves_of(ordered(rows), "nicv")
    colors = ("0.6", "0.4", "C1", "C2", "C0", "C6", "C3", "C4", "C5")
    return draw_lines(
        tables.panels(
            {(data, shown[method]): curve for (data, method), curve in curves.items()}
        ),
        EPSILONS,
        colors=dict(zip(shown.values(), colors, strict=True)),
        dashed=[shown[method] for method in NOT_PRIVATE],
        ylabel="NICV",
        xlog=False,
    )


SUITE = Suite(
    "utility",
    "The protocol of FastLloyd's paper (section 6): NICV, the cost of k-means over the number "
    "of records, on columns scaled to [-1, 1]; delta = 1/(N ln N), two clients with random "
    "halves, each run with its own initial centroids; AUC is the area under NICV over epsilon "
    "= 0.1, 0.25, 0.5, 0.75, 1; less is better. Whole runs under oblivious-server, or "
    "trusted-server where the server computes the queries. Bounds and N are read off the "
    "records, which an application must not do. Reference: what the papers' published code "
    "gave under this protocol.",
    Task,
    {"nicv": float, "n_rounds": int, "noise_factor": float},
    tasks_of,
    measure,
    tables_of,
    {"utility": plot},
    DATASETS,
    choices={"method": METHODS},
    runs=20,
)


if __name__ == "__main__":
    script.main(SUITE)
