"""The thesis's constrained clustering, with its own noise and with the noise that it needs.

    python benchmarks/thesis.py --data-dir DIR --output build/thesis

Lloyd's algorithm for several clients, each of which bounds the sizes of its own clusters (Ahmed,
"Differentially-Private Multiparty Clustering", chapters 4 to 8; `ConstrainedLloyd`). Columns are
scaled to [-1, 1] by the records' own range, which an application must not do. Two clients have
random halves, and a cluster has from N / 1.5 k to 3 N / k records, both rounded up; N is the number
of records. Starts, rounds and the fold of centroids are the thesis's. The figure is the sum of
squared distances to the nearest centroid (WCSS) and, in brackets, how many centroids are the
nearest of no record. Noise is

none         no privacy
right        the plan's own
NOT PRIVATE  the thesis's, which covers one record of one cluster, where a record that comes or goes
             moves others. It is drawn here and nowhere in the library

Laplace rows have delta 0, Gaussian ones the library's default. "unconstrained" is `SuLloyd` or
`GLloyd`. `SynopsisKMeans` bounds the clusters of all clients together; its clusters by weights
stand apart. Five clients, without noise, have random parts ("5 even") or whole true clusters ("5
clusters").

Seeds are from 1000 on, and noise is the operating system's. Nothing was chosen on these runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from direct import final_state
from numpy.typing import NDArray
from protocols import FloatArray, box_of, in_box
from sizes import cost_of, squared

from flower_kmeans import PrivacyBudget
from flower_kmeans.algorithms import (
    Algorithm,
    ConstrainedLloydAlgorithm,
    GLloydAlgorithm,
    LloydAlgorithm,
    SuLloydAlgorithm,
    SynopsisAlgorithm,
)
from flower_kmeans.algorithms.base import Block
from flower_kmeans.algorithms.constrained import MEANS
from flower_kmeans.algorithms.lloyd import COUNTS
from flower_kmeans.bench import script, tables
from flower_kmeans.bench.data import Data
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.privacy.noise import draw
from flower_kmeans.privacy.plan import PrivacyPlan
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import releases_of

IntArray = NDArray[np.int64]

FIRST_SEED = 1000
EPSILONS = (0.25, 1.0, 4.0)
NONE, RIGHT, CLAIMED = "none", "right", "NOT PRIVATE"
TWO, FIVE, CLUSTERS = "2 even", "5 even", "5 clusters"
CONTRIBUTION = 2
"""E of "e-exclusive"."""
MOST = {"birch2": 2}
"""Data of which a run takes long, and how many runs they have at most."""
SYNOPSIS, BOUNDED = "SynopsisKMeans", "SynopsisKMeans:bounds"
UNCONSTRAINED = "unconstrained"


class Case(NamedTuple):
    """What is run: a method, its mechanism ("" without noise), noise and clients."""

    method: str
    mechanism: str
    noise: str
    clients: str = TWO


CASES = (
    *(
        Case(method, "", NONE)
        for method in (
            UNCONSTRAINED,
            "exclusive MNA",
            "exclusive AMN",
            "non-exclusive MNA",
            "e-exclusive MNA",
        )
    ),
    *(
        Case(method, "", NONE, clients)
        for method in ("exclusive MNA", "exclusive AMN")
        for clients in (FIVE, CLUSTERS)
    ),
    Case(UNCONSTRAINED, "laplace", RIGHT),
    Case(UNCONSTRAINED, "gaussian", RIGHT),
    *(Case(f"exclusive {way}", "laplace", CLAIMED) for way in ("MNA", "AMN")),
    *(
        Case(f"exclusive {way}", mechanism, RIGHT)
        for way in ("MNA", "AMN")
        for mechanism in ("laplace", "gaussian")
    ),
    *(
        Case(f"{assignment} MNA", "gaussian", RIGHT)
        for assignment in ("non-exclusive", "e-exclusive")
    ),
    Case(SYNOPSIS, "gaussian", RIGHT),
    Case(BOUNDED, "gaussian", RIGHT),
)
PRINTED = {
    ("s1", "exclusive MNA"): 82.8,
    ("iris", "exclusive MNA"): 33.7,
    ("birch2", "exclusive MNA"): 45.7,
    ("s1", "exclusive AMN"): 81.7,
    ("iris", "exclusive AMN"): 32.1,
    ("birch2", "exclusive AMN"): 42.0,
}
"""WCSS at epsilon 4 with folded centroids in the thesis's tables 8.2 and 8.3, means of 10 runs."""


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
    epsilons = options.chosen("epsilon", EPSILONS, float)
    for run in range(options.runs):
        for name in options.data:
            if run >= MOST.get(name, options.runs):
                continue
            for case in CASES:
                if case.clients == CLUSTERS and options.load(name).labels is None:
                    continue
                for epsilon in (None,) if case.noise == NONE else epsilons:
                    yield Task(name, *case, epsilon, run)


# --------------------------------------------------------------------------- runs


def parts_of(data: Data, clients: str, rng: np.random.Generator) -> list[FloatArray]:
    """Return the clients' records."""
    n_clients = int(clients.split()[0])
    if clients != CLUSTERS:
        return [
            data.records[some]
            for some in np.array_split(rng.permutation(len(data.records)), n_clients)
        ]
    if data.labels is None:
        raise ConfigurationError(f"Expected {data.name} with labels, for clients of clusters.")
    return [data.records[data.labels % n_clients == i] for i in range(n_clients)]


def algorithm_of(data: Data, task: Task) -> Algorithm:
    """Return the library's algorithm of a task."""
    n = len(data.records)
    k, low, high = data.n_clusters, *bounds_of(n, data.n_clusters)
    seed = FIRST_SEED + task.run
    domain = box_of(data)
    delta = 0.0 if task.mechanism == "laplace" else None
    budget = PrivacyBudget(task.epsilon, delta)
    if task.method in (SYNOPSIS, BOUNDED):
        bounds = {"min_size": low, "max_size": high} if task.method == BOUNDED else {}
        return SynopsisAlgorithm(k, domain, budget, n_records=n, seed=seed, **bounds)
    if task.method == UNCONSTRAINED:
        made = {"": LloydAlgorithm, "laplace": SuLloydAlgorithm, "gaussian": GLloydAlgorithm}
        return made[task.mechanism](k, domain, budget, n_records=n, seed=seed)
    assignment, aggregation = task.method.split()
    free = assignment == "non-exclusive"
    return ConstrainedLloydAlgorithm(
        k,
        domain,
        budget,
        n_records=n,
        n_clients=int(task.clients.split()[0]),
        seed=seed,
        assignment=assignment,
        aggregation=aggregation.lower(),
        min_size=low,
        max_size=None if free else high,
        max_contribution=CONTRIBUTION if assignment == "e-exclusive" else 1,
        mechanism=task.mechanism or "gaussian",
    )


def bounds_of(n_records: int, n_clusters: int) -> tuple[int, int]:
    """Return the thesis's bounds: N / 1.5 k and 3 N / k, both rounded up."""
    return -(-2 * n_records // (3 * n_clusters)), -(-3 * n_records // n_clusters)


def claimed_unit(algorithm: ConstrainedLloydAlgorithm, block: Block) -> float:
    """Return what the thesis takes for the sensitivity of a block: one record of one cluster.

    In l1, E times the box's for sums, E for counts, and E times the box's over ``min_size`` for the
    mean over the clients, of which the block is the sum.
    """
    most, box = algorithm.max_contribution, algorithm.domain.l1_bound(algorithm.fraction_bits)
    if block.name == COUNTS:
        return float(most * 2**algorithm.fraction_bits)
    if block.name == MEANS:
        return most * box / algorithm.min_size * (algorithm.n_clients or 1)
    return most * box


def units_of(algorithm: Algorithm, noise: str, round_number: int) -> FloatArray:
    """Return what stands for the sensitivity of a round's words under a kind of noise."""
    if noise == CLAIMED:
        assert isinstance(algorithm, ConstrainedLloydAlgorithm)
        blocks = algorithm.layout(round_number)
        return np.concatenate([np.full(b.size, claimed_unit(algorithm, b)) for b in blocks])
    return algorithm.sensitivities(round_number)


def noise_of(
    algorithm: Algorithm, plan: PrivacyPlan, number: int, units: FloatArray, stream: Stream
) -> IntArray:
    """Return a round's noise, (words,), of the plan's multipliers times units."""
    noise = np.zeros(algorithm.words(number), dtype=np.int64)
    for release, words, _ in releases_of(algorithm, plan, number):
        noise[words] = draw(release, units[words], stream)
    return noise


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run one method; return the cost of its centroids."""
    data = in_box(task.data, options)
    rng = np.random.default_rng(FIRST_SEED + task.run)
    algorithm, parts = algorithm_of(data, task), parts_of(data, task.clients, rng)
    plan, stream = algorithm.plan(), Stream.fresh()

    def noise(number: int) -> IntArray:
        return noise_of(algorithm, plan, number, units_of(algorithm, task.noise, number), stream)

    state = final_state(algorithm, parts, FIRST_SEED + task.run, noise)
    distances = squared(data.records, algorithm.centroids(state))
    nearest, weights = distances.argmin(axis=1), algorithm.weights(state)
    by_weights = None if weights is None else (distances - weights).argmin(axis=1)
    return {
        "wcss": cost_of(distances, nearest),
        "empty": data.n_clusters - len(np.unique(nearest)),
        "by_weights": None if by_weights is None else cost_of(distances, by_weights),
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
        parts += ["Without noise:"]
        parts += [tables.by_key(without, {"method": "method", "clients": "clients"}, cells, 2)]
    for name in names:
        mine = [row for row in rows if row["noise"] != NONE and row["data"] == name]
        # Clusters by weights, which SynopsisKMeans with bounds also has, stand in a line below.
        shown = [
            {
                **row,
                "wcss": row[value],
                "shown": row["method"] + more,
                "empty": row["empty"] * counts,
            }
            for row in mine
            for value, more, counts in (("wcss", "", 1), ("by_weights", ", by weights", 0))
            if row[value] is not None
        ]
        if mine:
            parts.append(_private(shown, name))
    return "\n\n".join(parts)


def _cells(column: str, value: Any) -> Callable[[list[Row]], str]:
    def show(of: list[Row]) -> str:
        runs = [row for row in of if row[column] == value]
        empty = float(np.mean([row["empty"] for row in runs])) if runs else 0.0
        wcss = tables.cell([row["wcss"] for row in runs], ".4g", count=False)
        return wcss + (f" ({empty:.2g})" if empty else "")

    return show


def _printed(of: list[Row]) -> str:
    printed = PRINTED.get((of[0]["data"], of[0]["method"])) if of[0]["noise"] == CLAIMED else None
    return "" if printed is None else f"{printed:g}"


def _private(rows: Sequence[Row], name: str) -> str:
    shown = [{**row, "law": row["mechanism"].capitalize()} for row in rows]
    cells = {
        "rounds": lambda of: "/".join(map(str, sorted({row["rounds"] for row in of}))),
        **{f"eps {epsilon:g}": _cells("epsilon", epsilon) for epsilon in EPSILONS},
        "thesis, eps 4": _printed,
        "runs": lambda of: str(len({row["run"] for row in of})),
    }
    return tables.by_key(shown, {name: "shown", "mechanism": "law", "noise": "noise"}, cells, 3)


SUITE = Suite(
    "thesis",
    "Constrained clustering of the thesis: the sum of squared distances to the nearest centroid in "
    "the box [-1, 1] and, in brackets, centroids that are the nearest of no record; means. Two "
    "clients with random halves, sizes from ceil(N/1.5k) to ceil(3N/k). Rows NOT PRIVATE have the "
    "thesis's own noise, which does not cover the records that one record moves. Seeds from "
    "1000 on. The scale is read off the records, which an application must not do.",
    Task,
    {"wcss": float, "empty": int, "by_weights": float | None, "rounds": int},
    tasks_of,
    measure,
    tables_of,
    datasets=("s1", "iris", "birch2"),
    runs=20,
)


if __name__ == "__main__":
    script.main(SUITE)
