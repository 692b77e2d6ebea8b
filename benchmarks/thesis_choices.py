"""The thesis's starts and postprocessing, and the time of an iteration.

    python benchmarks/thesis_choices.py --data-dir DIR --runs 10

Tables 8.2 to 8.7 and figures A and B of Ahmed's thesis, in the protocol of
`benchmarks/thesis.py`: "Constrained Exclusive" with Laplace noise, with sums (MNA) or
means (AMN) of two clients with random halves.

start           sphere packing, or points that are uniform in the box
postprocessing  of noisy sums, noisy counts and centroids: each is left (none), reflected
                (fold) or cut (trunc) at its bounds. With means there are centroids alone

The thesis does not state the bounds of sums and counts. Here a count is from the least
size of a cluster to the largest one, and a sum's size at most the largest size times
half the column's width. The library has sphere packing and (none, none, fold) alone.

Noise is the thesis's own, which is NOT PRIVATE, and for starts also the right one. The
time of an iteration is that of both clients and the server in one process, one after
the other, and without a network. Seeds are from 1000 on. Nothing was chosen on these
runs.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import thesis
from protocols import in_box
from sizes import cost_of, squared
from thesis import CLAIMED, FIRST_SEED, RIGHT, TWO, final_state, parts_of

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans.algorithms import ConstrainedLloydAlgorithm, State
from flower_kmeans.algorithms.constrained import MEANS
from flower_kmeans.algorithms.layout import COUNTS, SUMS, Statistic
from flower_kmeans.algorithms.numerics.postprocess import (
    MIN_COUNT,
    fold,
    quotients,
    to_grid,
    truncate,
)
from flower_kmeans.arrays import IntArray
from flower_kmeans.extras import require

EPSILON = 4.0
PACKED = "sphere packing"
RANDOM = "random"
DEFAULT = "none, none, fold"
TOP = (
    *(DEFAULT, "fold, none, fold", "none, none, trunc", "trunc, fold, trunc"),
    *("fold, fold, trunc", "fold, none, none", "fold, none, trunc", "none, fold, fold"),
    *("none, fold, trunc", "none, none, none", "trunc, fold, none"),
    *("trunc, none, none", "trunc, none, trunc"),
)
"""Postprocessing of sums, counts and centroids: those of table 8.2."""
OF_MEANS = (DEFAULT, "none, none, trunc", "none, none, none")
"""Those of table 8.3."""
TREATMENTS = {
    "none": lambda values, half: values,
    "fold": fold,
    "trunc": truncate,
}


class Case(NamedTuple):
    """An aggregation, a start, a postprocessing and noise."""

    aggregation: str
    start: str
    postprocessing: str
    noise: str


def _cases() -> Iterator[Case]:
    for aggregation, choices in (("MNA", TOP), ("AMN", OF_MEANS)):
        for choice in choices:
            yield Case(aggregation, PACKED, choice, CLAIMED)
        yield Case(aggregation, RANDOM, DEFAULT, CLAIMED)
        for start in (PACKED, RANDOM):
            yield Case(aggregation, start, DEFAULT, RIGHT)


CASES = tuple(_cases())


@dataclass(frozen=True)
class Task:
    """One run."""

    data: str
    aggregation: str
    start: str
    postprocessing: str
    noise: str
    epsilon: float
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            for case in CASES:
                for epsilon in options.chosen("epsilon", (EPSILON,), float):
                    yield Task(name, *case, epsilon, run)


def algorithm_of(options: Options, task: Task) -> ConstrainedLloydAlgorithm:
    """Return the library's algorithm of a task, from the task's start."""
    data = in_box(task.data, options)
    method = f"exclusive {task.aggregation}"
    same = thesis.Task(
        task.data, method, "laplace", task.noise, TWO, task.epsilon, task.run
    )
    algorithm = thesis.algorithm_of(data, same)
    assert isinstance(algorithm, ConstrainedLloydAlgorithm)
    if task.start == PACKED:
        return algorithm
    rng = np.random.default_rng([FIRST_SEED + task.run, 1])
    points = rng.uniform(-1, 1, (data.n_clusters, data.records.shape[1]))
    rows = tuple(tuple(map(float, point)) for point in points)
    return replace(algorithm, initial=rows)


def treated(
    algorithm: ConstrainedLloydAlgorithm, answer: Statistic, postprocessing: str
) -> tuple[IntArray, IntArray]:
    """Return noisy sums (k, d) and counts (k,) after their postprocessing."""
    of_sums, of_counts, _ = postprocessing.split(", ")
    q = algorithm.fraction_bits
    low, high = algorithm.min_size, algorithm.max_size
    assert low is not None
    assert high is not None
    middle = (low + high) << (q - 1)
    half = np.array([(high - low) << (q - 1)], dtype=np.int64)
    counts = answer.blocks[COUNTS][:, None] - middle
    counts = TREATMENTS[of_counts](counts, half)[:, 0] + middle
    largest = high * algorithm.domain.grid_half_widths(q)
    sums = TREATMENTS[of_sums](answer.blocks[SUMS], largest)
    return sums, counts


def updated(
    algorithm: ConstrainedLloydAlgorithm,
    state: State,
    answer: Statistic,
    postprocessing: str,
    n_clients: int,
) -> State:
    """Return the state after a round, its postprocessing being the thesis's choice."""
    q = algorithm.fraction_bits
    if algorithm.aggregation == "amn":
        sums = answer.blocks[MEANS]
        counts = np.full(algorithm.n_clusters, n_clients << q, dtype=np.int64)
    else:
        sums, counts = treated(algorithm, answer, postprocessing)
    means, usable = quotients(sums, counts, q, MIN_COUNT)
    half = algorithm.domain.grid_half_widths(q)
    treatment = TREATMENTS[postprocessing.split(", ")[2]]
    centroids = treatment(to_grid(means), half)
    moved = np.where(usable[:, None], centroids, state.arrays["centroids"])
    return State(state.round + 1, {"centroids": moved, "counts": counts})


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the cost of the centroids of one run, and the time of an iteration."""
    data = in_box(task.data, options)
    rng = np.random.default_rng(FIRST_SEED + task.run)
    algorithm = algorithm_of(options, task)
    parts = parts_of(data, TWO, rng)
    # Its import takes longer than an iteration.
    require("ortools.graph.python.min_cost_flow", "ConstrainedLloyd", "constrained")

    def update(state: State, answer: Statistic) -> State:
        return updated(algorithm, state, answer, task.postprocessing, len(parts))

    started = time.perf_counter()
    state = final_state(algorithm, parts, task.noise, update)
    seconds = time.perf_counter() - started
    centroids = algorithm.centroids(state)
    assert centroids is not None
    distances = squared(data.records, centroids)
    return {
        "wcss": cost_of(distances, distances.argmin(axis=1)),
        "seconds": seconds / algorithm.n_rounds,
    }


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return costs by start and by postprocessing, and the time of an iteration."""
    starts = [row for row in rows if row["postprocessing"] == DEFAULT]
    by_choice = [
        row for row in rows if (row["start"], row["noise"]) == (PACKED, CLAIMED)
    ]
    timed = [row for row in starts if row["start"] == PACKED]
    keys = {"data": "data", "eps": "epsilon", "aggregation": "aggregation"}
    cost = {"WCSS": _mean("wcss", ".5g")}
    tables_ = [
        ("By start:", starts, {"start": "start", "noise": "noise"}, cost),
        ("By postprocessing:", by_choice, {"post": "postprocessing"}, cost),
        ("Time of an iteration:", timed, {}, {"ms": _mean("seconds", ".3g", 1e3)}),
    ]
    parts = []
    for title, found, more, cells in tables_:
        if found:
            by = {**keys, **more}
            parts += [title, tables.by_key(found, by, cells, len(by))]
    return "\n\n".join(parts)


def _mean(column: str, form: str, factor: float = 1) -> Callable[[list[Row]], str]:
    def show(of: list[Row]) -> str:
        return tables.cell([factor * row[column] for row in of], form)

    return show


SUITE = Suite(
    "thesis-choices",
    "Starts and postprocessing of the thesis: the sum of squared distances to the "
    "nearest centroid in the box [-1, 1], means. Two clients with random halves. NOT PRIVATE is "
    "the thesis's own noise. The time of an iteration is that of both clients and the server in "
    "one process. The scale is read off the records, which an application must not do.",
    Task,
    {"wcss": float, "seconds": float},
    tasks_of,
    measure,
    tables_of,
    datasets=("s1", "iris", "house", "image"),
    runs=10,
    alone=True,
)


if __name__ == "__main__":
    script.main(SUITE)
