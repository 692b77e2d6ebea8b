"""The thesis's constrained clustering, with its own noise and with the noise that it needs.

    python benchmarks/thesis.py --data-dir DIR --output build/thesis

Lloyd's algorithm for several clients, each of which bounds the sizes of the clusters at it
(Ahmed, "Differentially-Private Multiparty Clustering", chapters 4 to 8;
`ConstrainedLloyd`). Columns are scaled to [-1, 1] by the records' own range, which an
application must not do. Two clients have random halves, and a cluster has from N / 1.5 k
to 3 N / k records, both rounded up; N is the number of records. Starts, rounds and the
fold of centroids are the thesis's. The measure is the sum of squared distances to the
nearest centroid (WCSS) and, in brackets, the number of centroids that are the nearest of
no record. The silhouette is that of the records in these clusters (of 2,000 random ones
where there are more). Noise is

none         no privacy
right        the plan's own
NOT PRIVATE  the thesis's, which covers one record of one cluster, where a record that comes or
             goes moves others. It is drawn here and nowhere in the library

Laplace rows have delta 0, Gaussian ones the library's default. "unconstrained" is
`SuLloyd` or `GLloyd`. `SynopsisKMeans` bounds the clusters of all clients together; its
clusters by weights have their own row. Five clients, without noise, have random parts
("5 even") or whole true clusters ("5 clusters").

Seeds are from 1000 on, and noise is the operating system's. Nothing was chosen on these
runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from fastlloyd_metrics import separation_of
from protocols import box_of, in_box
from sizes import cost_of, squared

from bench import script, tables
from bench.data import Data
from bench.harness import Options, Row, Suite
from flower_kmeans import PrivacyBudget
from flower_kmeans.algorithms import (
    Algorithm,
    ConstrainedLloydAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    State,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
)
from flower_kmeans.algorithms.answers import answer_of, reconstructed
from flower_kmeans.algorithms.constrained import MEANS
from flower_kmeans.algorithms.layout import COUNTS, Block, Statistic
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.tightened import records_of
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.noise import draw
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import releases_of

FIRST_SEED = 1000
EPSILONS = (0.25, 1.0, 4.0)
NONE = "none"
RIGHT = "right"
CLAIMED = "NOT PRIVATE"
TWO = "2 even"
FIVE = "5 even"
CLUSTERS = "5 clusters"
CONTRIBUTION = 2
"""E of "e-exclusive"."""
MOST = {"birch2": 2}
"""Data of which a run takes long, and the largest number of their runs."""
SYNOPSIS = "SynopsisKMeans"
BOUNDED = "SynopsisKMeans:bounds"
UNCONSTRAINED = "unconstrained"
WITHOUT_BOUNDS = {
    "": LloydAlgorithm,
    "laplace": SuLloydAlgorithm,
    "gaussian": GLloydAlgorithm,
}


class Case(NamedTuple):
    """A method, its mechanism ("" without noise), noise and clients."""

    method: str
    mechanism: str
    noise: str
    clients: str = TWO


def _cases() -> Iterator[Case]:
    others = ("non-exclusive MNA", "e-exclusive MNA")
    for method in (UNCONSTRAINED, "exclusive MNA", "exclusive AMN", *others):
        yield Case(method, "", NONE)
    for method in ("exclusive MNA", "exclusive AMN"):
        for clients in (FIVE, CLUSTERS):
            yield Case(method, "", NONE, clients)
    for mechanism in ("laplace", "gaussian"):
        yield Case(UNCONSTRAINED, mechanism, RIGHT)
    for way in ("MNA", "AMN"):
        yield Case(f"exclusive {way}", "laplace", CLAIMED)
    for way in ("MNA", "AMN"):
        for mechanism in ("laplace", "gaussian"):
            yield Case(f"exclusive {way}", mechanism, RIGHT)
    for method in (*others, SYNOPSIS, BOUNDED):
        yield Case(method, "gaussian", RIGHT)


CASES = tuple(_cases())
PRINTED = {
    ("s1", "exclusive MNA"): 82.8,
    ("iris", "exclusive MNA"): 33.7,
    ("birch2", "exclusive MNA"): 45.7,
    ("s1", "exclusive AMN"): 81.7,
    ("iris", "exclusive AMN"): 32.1,
    ("birch2", "exclusive AMN"): 42.0,
}
"""WCSS at epsilon 4 with folded centroids in tables 8.2 and 8.3, means of 10 runs."""


Update = Callable[[State, Statistic], State]
"""The state after a round, from that before it and the noisy sum."""


@dataclass(frozen=True)
class Task:
    """One run."""

    data: str
    method: str
    mechanism: str
    noise: str
    clients: str
    epsilon: float | None
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    private = options.chosen("epsilon", EPSILONS, float)
    for run in range(options.runs):
        for name in options.data:
            if run >= MOST.get(name, options.runs):
                continue
            has_labels = options.load(name).labels is not None
            for case in CASES:
                if case.clients == CLUSTERS and not has_labels:
                    continue
                epsilons: Sequence[float | None] = private
                if case.noise == NONE:
                    epsilons = (None,)
                for epsilon in epsilons:
                    yield Task(name, *case, epsilon, run)


# --------------------------------------------------------------------------- runs


def parts_of(data: Data, clients: str, rng: np.random.Generator) -> list[FloatArray]:
    """Return the clients' records."""
    n_clients = int(clients.split()[0])
    if clients == CLUSTERS:
        if data.labels is None:
            raise ConfigurationError(
                f"Expected {data.name} with labels, for clients of whole clusters."
            )
        return [data.records[data.labels % n_clients == i] for i in range(n_clients)]
    order = rng.permutation(len(data.records))
    return [data.records[part] for part in np.array_split(order, n_clients)]


def bounds_of(n_records: int, n_clusters: int) -> tuple[int, int]:
    """Return the thesis's bounds: N / 1.5 k and 3 N / k, both rounded up."""
    low = -(-2 * n_records // (3 * n_clusters))
    high = -(-3 * n_records // n_clusters)
    return low, high


def algorithm_of(data: Data, task: Task) -> Algorithm:
    """Return the library's algorithm of a task."""
    n = len(data.records)
    k = data.n_clusters
    low, high = bounds_of(n, k)
    domain = box_of(data)
    delta = None
    if task.mechanism == "laplace":
        delta = 0.0
    budget = PrivacyBudget(task.epsilon, delta)
    common = {"n_records": n, "seed": FIRST_SEED + task.run}
    if task.method == SYNOPSIS:
        return SynopsisAlgorithm.planned(k, domain, budget, **common)
    if task.method == BOUNDED:
        return SynopsisAlgorithm.planned(
            k, domain, budget, **common, min_size=low, max_size=high
        )
    if task.method == UNCONSTRAINED:
        kind = WITHOUT_BOUNDS[task.mechanism]
        return kind.planned(k, domain, budget, **common)
    assignment, aggregation = task.method.split()
    return ConstrainedLloydAlgorithm.planned(
        k,
        domain,
        budget,
        **common,
        n_clients=int(task.clients.split()[0]),
        assignment=assignment,  # type: ignore[arg-type]
        aggregation=aggregation.lower(),
        min_size=low,
        max_size=None if assignment == "non-exclusive" else high,
        max_contribution=CONTRIBUTION if assignment == "e-exclusive" else 1,
        mechanism=task.mechanism or "gaussian",
    )


def claimed_unit(algorithm: ConstrainedLloydAlgorithm, block: Block) -> float:
    """Return the thesis's sensitivity of a block: one record of one cluster.

    In l1, E times the box's for sums, E for counts, and E times the box's over
    ``min_size`` for the mean over the clients, of which the block is the sum.
    """
    most = algorithm.max_contribution
    if block.name == COUNTS:
        return float(most * 2**algorithm.fraction_bits)
    box = algorithm.domain.l1_bound(algorithm.fraction_bits)
    if block.name == MEANS:
        return most * box / algorithm.min_size * algorithm.n_clients
    return most * box


def noise_of(
    algorithm: Algorithm, plan: PrivacyPlan, number: int, noise: str, stream: Stream
) -> IntArray:
    """Return a round's noise, (words,): the plan's multipliers times sensitivities."""
    layout = algorithm.layout(number)
    drawn = np.zeros(layout.n_words, dtype=np.int64)
    claimed = None
    if noise == CLAIMED:
        assert isinstance(algorithm, ConstrainedLloydAlgorithm)
        units = [
            np.full(block.size, claimed_unit(algorithm, block))
            for block in layout.blocks
        ]
        claimed = np.concatenate(units)
    for release, words, scales in releases_of(algorithm, plan, number):
        if claimed is not None:
            scales = claimed[words]
        drawn[words] = draw(release, scales, stream)
    return drawn


def final_state(
    algorithm: Algorithm,
    parts: Sequence[FloatArray],
    noise: str,
    update: Update | None = None,
) -> State:
    """Return the state after all rounds over several clients.

    ``update`` is by default that of the algorithm.
    """
    plan = algorithm.plan()
    stream = Stream.fresh()
    state = algorithm.initial_state(public_generator(FIRST_SEED, 0))
    for number in range(1, algorithm.n_rounds + 1):
        query = algorithm.query(state)
        layout = algorithm.layout(number)
        total = noise_of(algorithm, plan, number, noise, stream)
        for part in parts:
            records = records_of(algorithm, query, algorithm.domain.counted(part))
            total += layout.flatten(answer_of(algorithm, query, records))
        answer = reconstructed(algorithm, number, total, 1.0, len(parts))
        if update is None:
            rng = public_generator(FIRST_SEED, number)
            state = algorithm.update(state, answer, rng)
        else:
            state = update(state, answer)
    return state


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the cost of the centroids of one run."""
    data = in_box(task.data, options)
    rng = np.random.default_rng(FIRST_SEED + task.run)
    algorithm = algorithm_of(data, task)
    state = final_state(algorithm, parts_of(data, task.clients, rng), task.noise)
    centroids = algorithm.centroids(state)
    assert centroids is not None
    distances = squared(data.records, centroids)
    nearest = distances.argmin(axis=1)
    by_weights = None
    if task.method == BOUNDED:
        sizes = algorithm.sizes
        assert sizes is not None
        weights = sizes.weights(state)
        by_weights = cost_of(distances, (distances - weights).argmin(axis=1))
    return {
        "wcss": cost_of(distances, nearest),
        "empty": data.n_clusters - len(np.unique(nearest)),
        "by_weights": by_weights,
        "silhouette": separation_of(data.records, nearest)["silhouette"],
        "rounds": algorithm.n_rounds,
    }


# --------------------------------------------------------------------------- figures


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return WCSS and empty clusters by data and epsilon, without noise and with it."""
    names = tables.unique(row["data"] for row in rows)
    without = [row for row in rows if row["noise"] == NONE]
    parts = []
    if without:
        cells = {name: _cells("data", name) for name in names}
        by = {"method": "method", "clients": "clients"}
        parts += ["Without noise:", tables.by_key(without, by, cells, 2)]
    for name in names:
        mine = [row for row in rows if row["noise"] != NONE and row["data"] == name]
        if mine:
            parts.append(_private(list(_shown(mine)), name))
            parts.append(_silhouettes(mine, name))
    return "\n\n".join(parts)


def _shown(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows, and for clusters by weights a row more."""
    for row in rows:
        law = row["mechanism"].capitalize()
        yield {**row, "shown": row["method"], "law": law}
        if row["by_weights"] is not None:
            more = {"wcss": row["by_weights"], "empty": 0, "law": law}
            yield {**row, **more, "shown": f"{row['method']}, by weights"}


def _cells(column: str, value: Any) -> Callable[[list[Row]], str]:
    """Return a column of a table: mean costs of the rows with a value."""

    def show(rows: list[Row]) -> str:
        runs = [row for row in rows if row[column] == value]
        if not runs:
            return ""
        costs = tables.cell([row["wcss"] for row in runs], ".4g", count=False)
        empty = float(np.mean([row["empty"] for row in runs]))
        return f"{costs} ({empty:.2g})" if empty else costs

    return show


def _printed(rows: list[Row]) -> str:
    first = rows[0]
    if first["noise"] != CLAIMED:
        return ""
    printed = PRINTED.get((first["data"], first["method"]))
    return "" if printed is None else f"{printed:g}"


def _private(rows: Sequence[Row], name: str) -> str:
    cells = {
        "rounds": lambda of: "/".join(map(str, sorted({row["rounds"] for row in of}))),
        **{f"eps {epsilon:g}": _cells("epsilon", epsilon) for epsilon in EPSILONS},
        "thesis, eps 4": _printed,
        "runs": lambda of: str(len({row["run"] for row in of})),
    }
    by = {name: "shown", "mechanism": "law", "noise": "noise"}
    return tables.by_key(rows, by, cells, 3)


def _silhouettes(rows: Sequence[Row], name: str) -> str:
    """Return silhouettes by method and epsilon; -1 with one cluster."""
    cells = {}
    for epsilon in EPSILONS:
        cells[f"silhouette, eps {epsilon:g}"] = _silhouette_at(epsilon)
    by = {name: "method", "mechanism": "mechanism", "noise": "noise"}
    return tables.by_key(rows, by, cells, 3)


def _silhouette_at(epsilon: float) -> Callable[[list[Row]], str]:
    def show(rows: list[Row]) -> str:
        found = [row["silhouette"] for row in rows if row["epsilon"] == epsilon]
        return tables.cell(found, ".3f", count=False)

    return show


SUITE = Suite(
    "thesis",
    "Constrained clustering of the thesis: the sum of squared distances to the nearest centroid in "
    "the box [-1, 1] and, in brackets, centroids that are the nearest of no record; means. Two "
    "clients with random halves, sizes from ceil(N/1.5k) to ceil(3N/k). Rows NOT PRIVATE have the "
    "thesis's own noise, which does not cover the records that one record moves. Seeds from "
    "1000 on. The scale is read off the records, which an application must not do.",
    Task,
    {
        "wcss": float,
        "empty": int,
        "by_weights": float | None,
        "silhouette": float,
        "rounds": int,
    },
    tasks_of,
    measure,
    tables_of,
    datasets=("s1", "iris", "birch2"),
    runs=20,
)


if __name__ == "__main__":
    script.main(SUITE)
