"""How good private clusterings are: NICV against epsilon, as in FastLloyd's paper (section 6).

    python benchmarks/utility.py --data-dir DIR --runs 20 --output build/utility

NICV is the k-means cost of the final centroids over all records, divided by their number. Columns
are scaled to [-1, 1] by their smallest and largest value, delta is 1 / (N ln N), two clients hold
random halves, and each run has its own initial centroids. The area under the curve (AUC) is taken
by the trapezoidal rule over epsilon = 0.1, 0.25, 0.5, 0.75, 1. Every clustering is a whole run of
a strategy through ``simulate`` in this process, masks and noise included; without ``--trust``
under ``oblivious-server``, or ``trusted-server`` where the server computes the queries, so that
the noise is that of one party. Beside the strategies stands scikit-learn's KMeans on the pooled
records (the best of ten starts by k-means++, run to convergence): what neither privacy, nor a
start without data, nor seven rounds have cost.

``DIR`` holds ``NAME.npz`` files with an array ``X`` of shape (N, d); missing ones are skipped, and
scikit-learn's own sets need no file. ``--variants`` also runs strategies with parts of the papers'
reference code, to explain differences: see ``reference.py``.

``flower-kmeans bench --suite benchmarks/utility.py`` does the same. Written to ``--output``:
runs.csv (one row per run, as soon as it is done: the same command goes on where it was stopped),
tables.md (also printed) and utility.png. ``FastLloyd:paper`` is FastLloyd without relocation.

Scaling by the smallest and largest value, and N itself, read the private records, and such a delta
lets one record leak outright with a probability near 1 / ln N. The papers do so; an application
must not: take public bounds, a public ``n_records`` and the default delta.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from reference import VARIANTS
from sklearn.cluster import KMeans

from flower_kmeans import Box, PrivacyBudget, simulate
from flower_kmeans.bench import plots, script, tables
from flower_kmeans.bench.data import BUNDLED, Data, to_unit_box
from flower_kmeans.bench.harness import Options, Row, Suite, Task
from flower_kmeans.bench.tables import Curve, areas_of, interval, markdown, points_of, shown_half
from flower_kmeans.metrics import nicv
from flower_kmeans.strategies import (
    FastLloyd,
    GLloyd,
    HDPEMeans,
    Lloyd,
    PEMeans,
    SuLloyd,
    SynopsisKMeans,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KMEANS = "KMeans"
NOT_PRIVATE = (KMEANS, "Lloyd")
EPSILONS = (0.1, 0.25, 0.5, 0.75, 1.0)
N_CLIENTS = 2
STRATEGIES: dict[str, Callable[..., Any]] = {
    "Lloyd": Lloyd,
    "SuLloyd": SuLloyd,
    "GLloyd": GLloyd,
    "FastLloyd": FastLloyd,
    "FastLloyd:paper": partial(FastLloyd, relocation=False),
    "SynopsisKMeans": SynopsisKMeans,
    "PEMeans": PEMeans,
    "HDPEMeans": HDPEMeans,
}
METHODS = (KMEANS, *STRATEGIES)
OF_THE_SERVER = ("SynopsisKMeans", "PEMeans", "HDPEMeans")
"""Strategies whose server computes the queries: without ``--trust`` it adds all of the noise."""
PROJECTED = 16
"""Columns beyond which HDPEMeans projects."""

DATASETS = (
    *("s1", "lsun", "iris", "wine", "breast", "birch2"),
    *(f"g2mg_{d}_30" for d in (4, 16, 128)),
    *BUNDLED,
)

REFERENCE = {
    "FastLloyd:paper": {
        "s1": "0.0220",
        "lsun": "0.205",
        "iris": "0.419",
        "wine": "2.31",
        "breast": "1.45",
        "birch2": "0.00358",
        "g2mg_4_30": "0.194",
        "g2mg_16_30": "1.02",
        "g2mg_128_30": "10.5",
    },
    "GLloyd": {"s1": "0.0271", "birch2": "0.0059"},
    "SuLloyd": {"s1": "0.0288", "birch2": "0.0064"},
    "Lloyd": {"s1": "0.0074", "lsun": "0.137", "iris": "0.168"},
    "KMeans": {"s1": "0.0074", "lsun": "0.137", "iris": "0.168"},
}
"""AUC of the papers' reference code, measured once under this protocol; not part of these runs."""


@lru_cache(maxsize=4)
def load(name: str, options: Options) -> Data:
    """Return a data set whose columns are scaled to [-1, 1]."""
    data = options.load(name)
    return replace(data, records=to_unit_box(data.records))


# --------------------------------------------------------------------------- runs


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second: of what has no epsilon, one for five."""
    wide = {name: options.load(name).records.shape[1] > PROJECTED for name in options.data}
    for run in range(options.runs):
        for name in options.data:
            for method in options.chosen("method", METHODS, str):
                if method not in (*METHODS, *VARIANTS) or (
                    method == "HDPEMeans" and not wide[name]
                ):
                    continue
                for epsilon in (None,) if method in NOT_PRIVATE else EPSILONS:
                    yield Task(name, method, epsilon, run)


def measure(task: Task, options: Options, trust: str | None = None) -> Mapping[str, Any]:
    """Run one strategy over two clients and return the cost of what it found."""
    data = load(task.data, options)
    n, d = data.records.shape
    if task.method == KMEANS:
        fitted = KMeans(data.n_clusters, n_init=10, random_state=task.run).fit(data.records)
        return _figures(float(fitted.inertia_) / n, int(fitted.n_iter_), 1.0)
    private = task.epsilon is not None
    budget = PrivacyBudget(task.epsilon, 1 / (n * math.log(n)) if private else None)
    box = Box(np.full(d, -1.0), np.full(d, 1.0))
    parameters = {"n_records": n, "n_clients": N_CLIENTS, "seed": task.run}
    if private and (trust is not None or task.method in OF_THE_SERVER):
        parameters["trust"] = "trusted-server" if trust is None else trust
    halves = np.array_split(data.records[np.random.default_rng(task.run).permutation(n)], N_CLIENTS)
    if task.method in VARIANTS:
        variant = VARIANTS[task.method]
        strategy = variant.make(data.n_clusters, box, budget, **parameters)
        with variant.varied(strategy, task.run):
            clustering = simulate(strategy, halves)
    else:
        strategy = STRATEGIES[task.method](data.n_clusters, box, budget, **parameters)
        clustering = simulate(strategy, halves)
    report = clustering.report
    cost = nicv(data.records, clustering.centroids)
    return _figures(cost, report.n_rounds, report.noise_factor)


def _figures(cost: float, n_rounds: int, noise_factor: float) -> dict[str, Any]:
    return {"nicv": cost, "n_rounds": n_rounds, "noise_factor": noise_factor}


# --------------------------------------------------------------------------- figures


Curves = Mapping[tuple[Any, ...], Curve]


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
    head = ["data", "method", "AUC", "95% interval", "reference", "ratio", "against the reference"]
    lines = []
    for (data, method), curve in curves.items():
        areas = areas_of(curve, EPSILONS)
        if not areas:
            continue
        mean, half = interval(areas)
        base = VARIANTS[method].base if method in VARIANTS else method
        base = "FastLloyd:paper" if method in VARIANTS and base == "FastLloyd" else base
        reference = REFERENCE.get(base, {}).get(data)
        spread = "" if math.isnan(half) else shown_half(half, mean)
        cells = [data, method, f"{mean:.3g}", spread]
        if reference is None:
            cells += ["", "", ""]
        else:
            ratio = mean / float(reference)
            cells += [reference, f"{ratio:.2f}", verdict(mean, half, reference)]
        lines.append(cells)
    return markdown(head, lines, (0, 1, 6))


def wide_table(curves: Curves) -> str:
    """Return areas with intervals and numbers of runs, a row for each data set, as markdown."""
    methods = tables.unique(method for _, method in curves)
    lines = []
    for data in tables.unique(data for data, _ in curves):
        cells = [data]
        for method in methods:
            areas = areas_of(curves.get((data, method), {}), EPSILONS)
            cells.append(tables.cell(areas, ".3g"))
        lines.append(cells)
    return markdown(["data", *methods], lines)


def nicv_table(curves: Curves) -> str:
    """Return NICV by epsilon, as a markdown table."""
    lines = [
        [*key, *(tables.cell(values, ".3g", count=False) for values in points_of(curve, EPSILONS))]
        for key, curve in curves.items()
    ]
    return markdown(["data", "method", *(f"eps {epsilon:g}" for epsilon in EPSILONS)], lines, 2)


def data_table(names: Sequence[str], options: Options) -> str:
    """Return what the data sets are, as far as they are there, as a markdown table."""
    lines = []
    for name in names:
        if name in options.data:
            each = options.load(name)
            n, d = each.records.shape
            lines.append([name, str(n), str(d), str(each.n_clusters), each.note])
    head = ["data", "records", "columns", "clusters", "note"]
    return markdown(head, lines, (0, 4))


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
    parts = [
        data_table(tables.unique(row["data"] for row in rows), options),
        f"{runs} runs per point; noise over the planned noise: "
        + ", ".join(f"{factor:g}" for factor in factors),
        auc_table(curves),
        wide_table(curves),
        nicv_table(curves),
    ]
    return "\n\n".join(parts)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Return NICV over epsilon with its confidence band, one panel per data set."""
    curves = tables.curves_of(ordered(rows), "nicv")
    panels: dict[str, dict[str, Curve]] = {}
    for (data, method), curve in curves.items():
        if method not in VARIANTS:
            label = f"{method} (not private)" if method in NOT_PRIVATE else method
            panels.setdefault(data, {})[label] = curve
    colors = {f"{KMEANS} (not private)": "0.6", "Lloyd (not private)": "0.4"}
    colors |= {"FastLloyd": "C0", "FastLloyd:paper": "C6", "SuLloyd": "C1", "GLloyd": "C2"}
    colors |= {"SynopsisKMeans": "C3", "PEMeans": "C4", "HDPEMeans": "C5"}
    return plots.lines(
        panels, EPSILONS, colors=colors, dashed=tuple(colors)[:2], ylabel="NICV", xlog=False
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


def suite_under(trust: str | None) -> Suite:
    """Return the suite under another trust model, whose rows are kept apart."""
    if trust is None:
        return SUITE
    return replace(SUITE, measure=partial(measure, trust=trust), settings={"trust": trust})


def main() -> None:
    """Run everything that was asked for, and write it down."""
    parser = script.parser_of(SUITE, __doc__)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=[])
    parser.add_argument("--trust", choices=("oblivious-server", "distributed-noise"))
    parsed = parser.parse_args()
    methods = METHODS if parsed.only_method is None else parsed.only_method
    if parsed.trust == "distributed-noise" and (parsed.variants or "SuLloyd" in methods):
        parser.error("distributed-noise has neither Laplace noise nor the variants.")
    parsed.only_method = [*methods, *parsed.variants]
    script.run(suite_under(parsed.trust), parsed)


if __name__ == "__main__":
    main()
