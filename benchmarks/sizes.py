"""Clusters whose sizes lie within bounds: private ones beside exact ones.

    python benchmarks/sizes.py --data-dir DIR --output build/sizes

A clustering here is centroids and weights: a record belongs to the cluster with the
least ``|x - c|^2 - w``. ``SUITE`` names scale, delta and bounds (N is the number of
records). Methods are

SynopsisKMeans            with the bounds, and its released weights
SynopsisKMeans:oblivious  the same through ``simulate`` under ``oblivious-server``
SynopsisKMeans:nearest    without bounds, and every record at its nearest centroid
exact                     not private: constrained k-means by minimum-cost flow (Bennett, Bradley &
                          Demiriz), from starts by k-means++
k-means-constrained       not private: that package, one start by k-means++; left out where it is
                          not installed (``pip install k-means-constrained``)

All private runs except the second are the algorithm with its plan's noise, without
clients and messages. ``--quick`` has two runs at epsilon 1. The measures are: the cost
of the released clusters; the cost of the same centroids if a flow assigns the records
within the bounds; the violation, the largest number of records by which a cluster
misses its bounds; s, the standard deviation of a released size; the size report's
statements on the bounds; whether all true sizes lie in its intervals. A table has the
lost gain, (cost - exact) / (one cluster - exact), of the cost by flow, which keeps the
bounds. Centroids that are all at the mean keep any bounds and cost as much as one
cluster. Rows of `TUNED`
data are no evidence for other data, because the constants were chosen on them, with
seeds 0 to 9.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from direct import final_state
from protocols import ball_of, in_ball
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus

from bench import lost_gain, script, tables
from bench.data import Data
from bench.harness import Options, Row, Suite
from bench.yardsticks import Yardsticks
from flower_kmeans import PrivacyBudget, simulate
from flower_kmeans.algorithms import SynopsisAlgorithm
from flower_kmeans.algorithms.released import SizeReport
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.strategies import SynopsisKMeans

BOUNDED, OBLIVIOUS = "SynopsisKMeans", "SynopsisKMeans:oblivious"
NEAREST, EXACT, PEER = "SynopsisKMeans:nearest", "exact", "k-means-constrained"
NOT_PRIVATE, PRIVATE = (EXACT, PEER), (BOUNDED, OBLIVIOUS, NEAREST)
METHODS = (*NOT_PRIVATE, *PRIVATE)
BOUNDS = ("balanced", "min", "max")
EPSILONS = (0.25, 0.5, 1.0, 4.0)
FIRST_SEED = 1000
STARTS = {EXACT: 5, PEER: 2}
"""Runs of the methods that are not private. The least cost counts."""
MOST_STEPS = 50
WORDS = ("kept", "open", "missed")
TUNED = ("s1", "blobs_16_16", "uneven_16_16")
OTHERS = ("uneven_8_2", "uneven_32_8", "synth_10_4_1", "g2mg_16_30")
OTHERS += ("iris", "wine", "lsun", "birch2")
WITHOUT_MAX = ("s1", "uneven_32_8", "g2mg_16_30", "iris", "wine", "lsun", "birch2")
"""Data without runs with an upper bound alone, which has little effect or takes long."""
FEW = {"uneven_32_8": 3, "birch2": 1}
"""Data whose runs take long, and their largest number of private runs."""
REPLAYED = (("uneven_16_16", "balanced"),)
"""Runs under an oblivious server, too. The arithmetic is the same under all trust models."""


@dataclass(frozen=True)
class Task:
    """One clustering."""

    data: str
    bounds: str
    method: str
    epsilon: float | None
    run: int


class Clusters(NamedTuple):
    """A method's result: centroids, (k, d), and weights, (k,), and sizes if it has them."""

    centroids: FloatArray
    weights: FloatArray | None = None
    report: SizeReport | None = None


def sizes_within(bounds: str, n_records: int, n_clusters: int) -> tuple[int, int]:
    """Return least and largest size of a cluster."""
    if bounds == "balanced":
        return n_records // n_clusters, -(-n_records // n_clusters)
    if bounds == "min":
        return math.ceil(n_records / (1.5 * n_clusters)), n_records
    return 0, math.floor(1.25 * n_records / n_clusters)


def flow_labels(costs: FloatArray, low: int, high: int) -> IntArray:
    """Return the cluster (n,) of each record with the least cost in all, by minimum-cost flow.

    ``costs`` (n, k) are at least 0, and rounded to a millionth of the largest. ``low``
    and ``high`` bound the size of every cluster, ``k low <= n <= k high``.
    """
    flows = require(
        "ortools.graph.python.min_cost_flow", "Exact assignment", "constrained"
    )
    n, k = costs.shape
    flow, sink = flows.SimpleMinCostFlow(), n + k
    records, clusters = np.repeat(np.arange(n), k), np.tile(np.arange(k), n)
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        records.astype(np.int32),
        (n + clusters).astype(np.int32),
        np.ones(n * k, np.int64),
        np.rint(costs.ravel() * (1e6 / max(costs.max(), 1e-300))).astype(np.int64),
    )
    flow.add_arcs_with_capacity_and_unit_cost(
        np.arange(n, sink, dtype=np.int32),
        np.full(k, sink, np.int32),
        np.full(k, high - low, np.int64),
        np.zeros(k, np.int64),
    )
    supplies = np.concatenate([np.ones(n), np.full(k, -low), [k * low - n]]).astype(
        np.int64
    )
    flow.set_nodes_supplies(np.arange(sink + 1, dtype=np.int32), supplies)
    if flow.solve() != flow.OPTIMAL:
        raise ConfigurationError(
            f"Expected bounds with k min <= n <= k max. Got {low} and {high} for {n} records "
            f"in {k} clusters."
        )
    used = flow.flows(arcs) > 0
    labels = np.empty(n, np.int64)
    labels[records[used]] = clusters[used]
    return labels


def cost_of(distances: FloatArray, labels: IntArray) -> float:
    """Return the sum of the squared distances (n, k) of records to their clusters' centroids."""
    return float(distances[np.arange(len(labels)), labels].sum())


def exact(records: FloatArray, start: FloatArray, low: int, high: int) -> FloatArray:
    """Return centroids of constrained k-means: a flow assigns, means follow, until little changes.

    The cost never grows, as both steps are exact up to the rounding of a flow's costs.
    """
    centroids, last = start, math.inf
    for _ in range(MOST_STEPS):
        distances = squared(records, centroids)
        labels = flow_labels(distances, low, high)
        cost = cost_of(distances, labels)
        counts = np.bincount(labels, minlength=len(centroids))
        sums = np.zeros_like(centroids)
        np.add.at(sums, labels, records)
        means = sums / np.maximum(counts, 1)[:, None]
        centroids = np.where(counts[:, None] > 0, means, centroids)
        if cost > last * (1 - 1e-4):
            break
        last = cost
    return centroids


def squared(records: FloatArray, centroids: FloatArray) -> FloatArray:
    """Return squared distances, (n, k)."""
    return np.asarray(cdist(records, centroids, "sqeuclidean"))


def applies(data: str, bounds: str, method: str) -> bool:
    """Return whether a method is run on such data and bounds."""
    if bounds == "max" and data in WITHOUT_MAX:
        return False
    if method == OBLIVIOUS:
        return (data, bounds) in REPLAYED
    return method != PEER or (
        data not in FEW and find_spec("k_means_constrained") is not None
    )


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second: a table is whole as early as it can be."""
    epsilons = dict.fromkeys(NOT_PRIVATE, (None,)) | {OBLIVIOUS: (1.0,)}
    for run in range(max(options.runs, *STARTS.values())):
        for data, bounds, method in itertools.product(options.data, BOUNDS, METHODS):
            most = STARTS.get(method, min(options.runs, FEW.get(data, options.runs)))
            if run < most and applies(data, bounds, method):
                for epsilon in epsilons.get(method, EPSILONS):
                    yield Task(data, bounds, method, epsilon, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run one method, and return its measures against the bounds."""
    data = in_ball(task.data, options)
    low, high = sizes_within(task.bounds, len(data.records), data.n_clusters)
    started = time.perf_counter()
    found = cluster(data, task, low, high)
    seconds = round(time.perf_counter() - started, 2)
    return {
        **measures_of(data.records, found, low, high, task.method),
        "seconds": seconds,
    }


def cluster(data: Data, task: Task, low: int, high: int) -> Clusters:
    """Return the clusters of a method."""
    records, k, seed = data.records, data.n_clusters, FIRST_SEED + task.run
    if task.method == EXACT:
        start, _ = kmeans_plusplus(records, k, random_state=seed)
        return Clusters(exact(records, start, low, high))
    if task.method == PEER:
        return Clusters(_peer(data, low, high, seed))
    n, domain, budget = len(records), ball_of(data), PrivacyBudget(task.epsilon)
    bounds = {} if task.method == NEAREST else bounds_of(task.bounds, low, high)
    if task.method == OBLIVIOUS:
        strategy = SynopsisKMeans(
            k,
            domain,
            budget,
            n,
            n_clients=2,
            trust="oblivious-server",
            seed=seed,
            **bounds,
        )
        halves = np.array_split(np.random.default_rng(seed).permutation(records), 2)
        result = simulate(strategy, halves)
        return Clusters(result.centroids, result.weights, result.size_report)
    algorithm = SynopsisAlgorithm.planned(
        k, domain, budget, n_records=n, seed=seed, **bounds
    )
    state = final_state(algorithm, records, seed)
    centroids, sizes = algorithm.centroids(state), algorithm.sizes
    if sizes is None:
        return Clusters(centroids, None, None)
    return Clusters(centroids, sizes.weights(state), sizes.report(state))


def bounds_of(bounds: str, low: int, high: int) -> dict[str, int]:
    """Return the parameters of an algorithm; a bound that is none is left out."""
    return {
        **({} if bounds == "max" else {"min_size": low}),
        **({} if bounds == "min" else {"max_size": high}),
    }


def _peer(data: Data, low: int, high: int, seed: int) -> FloatArray:
    if find_spec("k_means_constrained") is None:
        raise ConfigurationError(
            "Expected the package k-means-constrained for the method of that name. Got none: "
            "install it with pip install k-means-constrained, or choose other --methods."
        )
    from k_means_constrained import KMeansConstrained

    model = KMeansConstrained(
        data.n_clusters, low, high, n_init=1, max_iter=MOST_STEPS, random_state=seed
    )
    return np.asarray(model.fit(np.array(data.records)).cluster_centers_)


def measures_of(
    records: FloatArray, found: Clusters, low: int, high: int, method: str
) -> dict[str, Any]:
    """Return costs, sizes against their bounds, and the size report's statements.

    For methods that are not private, a flow assigns the records to their centroids.
    """
    k = len(found.centroids)
    distances = squared(records, found.centroids)
    exactly = flow_labels(distances, low, high)
    if method in NOT_PRIVATE:
        labels = exactly
    else:
        weights = np.zeros(k) if found.weights is None else found.weights
        labels = (distances - weights).argmin(axis=1)
    sizes = np.bincount(labels, minlength=k)
    measures: dict[str, Any] = {
        "cost": cost_of(distances, labels),
        "flow": cost_of(distances, exactly),
        "violation": violation(sizes, low, high),
        "empty": int((sizes == 0).sum()),
        **dict.fromkeys(("noise", *WORDS, "covered")),
    }
    if found.report is not None:
        interval = found.report.interval
        inside = (sizes >= interval[:, 0]) & (sizes <= interval[:, 1])
        measures |= {word: found.report.bounds_kept.count(word) for word in WORDS}
        measures |= {"noise": found.report.noise, "covered": bool(inside.all())}
    return measures


def violation(sizes: IntArray, low: int, high: int) -> int:
    """Return the largest number of records by which a size misses the bounds."""
    return int(max((low - sizes).max(), (sizes - high).max(), 0))


def label_of(name: str) -> str:
    """Return a data set's name, with a mark where constants were chosen on it."""
    return f"{name} (tuned on)" if name in TUNED else name


def per_cluster(name: str, options: Options) -> float:
    """Return N / k."""
    data = in_ball(name, options)
    return len(data.records) / data.n_clusters


def order_of(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return data and bounds of rows, in the suite's order."""
    names = tables.unique(row["data"] for row in rows)
    known = (*TUNED, *OTHERS)
    names.sort(key=lambda name: known.index(name) if name in known else len(known))
    found = {(row["data"], row["bounds"]) for row in rows}
    return [
        (name, bounds) for name in names for bounds in BOUNDS if (name, bounds) in found
    ]


def percent(share: float) -> str:
    """Return a share of N / k in percent, with one digit behind the point below ten."""
    return (
        f"{100 * share:.0f}%"
        if share >= 0.0995 or share == 0
        else f"{100 * share:.1f}%"
    )


def cost_table(rows: Sequence[Row], options: Options) -> str:
    """Return costs over the least exact one, those by flow in brackets, violations and empties.

    The methods that are not private stand once for data and bounds, with their best and
    their mean.
    """
    lines = []
    for name, bounds in order_of(rows):
        found: dict[str, dict[float | None, list[Row]]] = {}
        for row in rows:
            if (row["data"], row["bounds"]) == (name, bounds):
                found.setdefault(row["method"], {}).setdefault(
                    row["epsilon"], []
                ).append(row)
        exact = [
            [row["cost"] for row in found.get(m, {}).get(None, [])] for m in NOT_PRIVATE
        ]
        least = min(itertools.chain(*exact), default=math.nan)
        others = [
            f"{min(c) / least:.3f}, {np.mean(c) / least:.3f}" if c else ""
            for c in exact
        ]
        per = per_cluster(name, options)
        for method in filter(found.get, PRIVATE):
            by_epsilon = [found[method].get(epsilon, []) for epsilon in EPSILONS]
            numbers = [len(runs) for runs in by_epsilon if runs]
            runs = " to ".join(map(str, sorted({min(numbers), max(numbers)})))
            cells = [_cell(of, least, per) for of in by_epsilon]
            lines.append([label_of(name), bounds, *others, method, *cells, runs])
            others = [""] * len(NOT_PRIVATE)
    head = [
        "data",
        "bounds",
        *NOT_PRIVATE,
        "method",
        *map("eps {:g}".format, EPSILONS),
        "runs",
    ]
    return tables.markdown(head, lines, (0, 1, 4))


def gain_table(rows: Sequence[Row], options: Options) -> str:
    """Return lost gains of the costs by flow, and the cost of one cluster over the exact one."""
    lines = []
    for name, bounds in order_of(rows):
        of_set = [r for r in rows if (r["data"], r["bounds"]) == (name, bounds)]
        exact = [row["cost"] for row in of_set if row["method"] in NOT_PRIVATE]
        records = in_ball(name, options).records
        one = float(squared(records, records.mean(axis=0, keepdims=True)).sum())
        costs = Yardsticks(min(exact, default=math.nan), one)
        shown = f"{costs.ratio(one):.4f}"
        methods = tables.unique(row["method"] for row in of_set)
        private = [method for method in methods if method in PRIVATE]
        for method in private or [""]:
            cells = [name, bounds, shown, method]
            for epsilon in EPSILONS:
                runs = [
                    row
                    for row in of_set
                    if (row["method"], row["epsilon"]) == (method, epsilon)
                ]
                flow = _mean(runs, "flow") if runs else math.nan
                lost = lost_gain.text(costs.ratio(flow), costs.lost_gain(flow))
                cells.append(lost if runs else "")
            lines.append(cells)
    names = [f"eps {epsilon:g}" for epsilon in EPSILONS]
    head = ["data", "bounds", "one cluster", "method", *map(lost_gain.head, names)]
    return tables.markdown(head, lines, (0, 1, 3))


def _mean(runs: Sequence[Row], column: str) -> float:
    return float(np.mean([row[column] for row in runs]))


def _cell(runs: Sequence[Row], least: float, per: float) -> str:
    if not runs:
        return ""
    costs = tables.cell([row["cost"] / least for row in runs], ".3f", count=False)
    flow, missed, empty = (
        _mean(runs, value) for value in ("flow", "violation", "empty")
    )
    shown = f"{costs} ({flow / least:.3f}) {percent(missed / per)}"
    return shown + (f", {empty:.2g} empty" if empty else "")


def size_table(rows: Sequence[Row], options: Options) -> str:
    """Return a table of s, of clusters by the place of their intervals, and of coverage."""

    def at(epsilon: float) -> Callable[[list[Row]], str]:
        def show(of: list[Row]) -> str:
            runs = [row for row in of if row["epsilon"] == epsilon]
            if not runs:
                return ""
            said = (f"{_mean(runs, word):.2g}" for word in WORDS)
            noise = percent(runs[0]["noise"] / per_cluster(runs[0]["data"], options))
            covered = f"{sum(row['covered'] for row in runs)} of {len(runs)}"
            return f"{noise}; {' / '.join(said)}; {covered}"

        return show

    order = order_of(rows)
    reported = [
        {**row, "label": label_of(row["data"])}
        for row in sorted(
            rows, key=lambda row: order.index((row["data"], row["bounds"]))
        )
        if row["noise"] is not None
    ]
    by = {"data": "label", "bounds": "bounds", "method": "method"}
    return tables.by_key(reported, by, {f"eps {e:g}": at(e) for e in EPSILONS}, 3)


def coverage(rows: Sequence[Row]) -> str:
    """Return the number of runs with all true sizes in their intervals."""
    covered = [row["covered"] for row in rows if row["covered"] is not None]
    if not covered:
        return ""
    n = f"{sum(covered)} of {len(covered)} runs ({100 * np.mean(covered):.1f}%)"
    return f"All true sizes were in their intervals in {n}."


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return all tables."""
    parts = [
        "Cost over the least that a method without privacy found, in brackets that of the same "
        "centroids when a flow assigns the records, and violation over N / k: means. For the "
        "methods without privacy, which keep all bounds: the best and the mean of some starts.",
        cost_table(rows, options),
        "Lost gain of the cost by flow, between the least exact cost and that of one cluster.",
        gain_table(rows, options),
        "s over N / k; clusters that kept their bounds / are open / missed them, means; runs whose "
        "true sizes were all in their intervals.",
        size_table(rows, options),
        coverage(rows),
    ]
    return "\n\n".join(part for part in parts if part)


SUITE = Suite(
    "sizes",
    "Clusters with sizes within bounds: SynopsisKMeans and its weights, beside exact methods that "
    "are not private and SynopsisKMeans without bounds. Records centred and scaled to a largest "
    "norm of 1, default delta, single records protected; balanced is N/k, min ceil(N/1.5k), max "
    "floor(1.25 N/k). Seeds from 1000 on. The algorithm's constants were chosen on "
    f"{', '.join(TUNED)} with other seeds. The scale is read off the records, which an application "
    "must not do.",
    Task,
    {
        **dict.fromkeys(("cost", "flow"), float),
        **dict.fromkeys(("violation", "empty"), int),
        "noise": float | None,
        **dict.fromkeys(WORDS, int | None),
        "covered": bool | None,
        "seconds": float,
    },
    tasks_of,
    measure,
    tables_of,
    datasets=(*TUNED, *OTHERS),
    choices={"method": METHODS, "bounds": BOUNDS},
    runs=20,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything that was asked for, and write it down."""
    parser = script.parser_of(SUITE)
    parser.add_argument("--quick", action="store_true", help="two runs at epsilon 1")
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.runs, parsed.only_epsilon = 2, ["", "1.0"]
    script.run(SUITE, parsed)


if __name__ == "__main__":
    main()
