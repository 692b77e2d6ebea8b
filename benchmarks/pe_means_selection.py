"""PE-means' figure 1: selection of centroids by weighted k-means, and by the most votes.

    python benchmarks/pe_means_selection.py --output build/pe-means-selection

Two-dimensional blobs in four clusters, and no noise (epsilon is infinite): only the
selection of the next centroids from the votes differs. "top-k" takes the four candidates
with the most votes, as private evolution did before. "weighted k-means" is the selection
of `PEMeans`. The measure is the loss after each round over that of scikit-learn's KMeans.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from bench import script, tables
from bench.data import to_unit_ball
from bench.harness import Options, Row, Suite
from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms import PEMeansAlgorithm
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.pe_means_population import gather
from flower_kmeans.algorithms.state import Query
from flower_kmeans.algorithms.tightened import records_of as grid_of
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.metrics import nicv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_RECORDS = 2_000
N_CLUSTERS = 4
N_VARIATIONS = 100
ROUNDS = (1, 2, 3, 4)
TOP = "top-k"
WEIGHTED = "weighted k-means"
SELECTIONS = (TOP, WEIGHTED)
BAD = 2.0  # times the least loss


@dataclass(frozen=True)
class Task:
    """One way of selecting, on one data set."""

    selection: str
    round: int
    run: int


class Step(NamedTuple):
    """The candidates of a round, and the centroids after it."""

    population: FloatArray
    selected: FloatArray


class TopKAlgorithm(PEMeansAlgorithm):
    """PE-means that selects the k candidates with the most votes."""

    def _centers(
        self, query: Query, votes: IntArray, flags: IntArray, source: np.random.Philox
    ) -> dict[str, IntArray]:
        order = np.argsort(-votes, kind="stable")
        chosen = np.sort(order[: self.n_clusters])
        points = gather(self._population(query), chosen)
        return {"centers": points.astype(np.int64), "counts": votes[chosen]}


@lru_cache(maxsize=4)
def records_of(run: int) -> FloatArray:
    """Return the records of one run, in the unit ball."""
    made, _ = make_blobs(N_RECORDS, centers=N_CLUSTERS, n_features=2, random_state=run)
    return to_unit_ball(made)


@lru_cache(maxsize=8)
def steps_of(selection: str, run: int) -> tuple[Step, ...]:
    """Return all rounds of one run. They follow from the seed, as there is no noise."""
    kind = PEMeansAlgorithm
    if selection == TOP:
        kind = TopKAlgorithm
    algorithm = kind.planned(
        N_CLUSTERS,
        Ball(1.0, np.zeros(2)),
        PrivacyBudget(None),
        n_records=N_RECORDS,
        n_vote_rounds=len(ROUNDS),
        n_variations=N_VARIATIONS,
        seed=run,
    )
    records = algorithm.domain.counted(records_of(run))
    step = 2.0**-algorithm.fraction_bits
    state = algorithm.initial_state()
    steps = []
    for _ in ROUNDS:
        query = algorithm.query(state)
        grid = grid_of(algorithm, query, records)
        state = algorithm.update(state, answer_of(algorithm, query, grid))
        population = np.concatenate(list(algorithm._population(query))) * step
        centroids = algorithm.centroids(state)
        assert centroids is not None
        steps.append(Step(population, centroids))
    return tuple(steps)


@lru_cache(maxsize=4)
def best_of(run: int) -> float:
    """Return the loss without privacy."""
    records = records_of(run)
    model = KMeans(N_CLUSTERS, n_init=10, random_state=0).fit(records)
    return nicv(records, model.cluster_centers_)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every round of every run."""
    for run in range(options.runs):
        for selection in SELECTIONS:
            for number in ROUNDS:
                yield Task(selection, number, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the loss after one round over the least one."""
    selected = steps_of(task.selection, task.run)[task.round - 1].selected
    return {"ratio": nicv(records_of(task.run), selected) / best_of(task.run)}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the median and the largest ratio after each round."""
    found = tables.grouped(rows, ("selection", "round"), "ratio")
    lines = []
    for selection in SELECTIONS:
        cells = [selection]
        for number in ROUNDS:
            ratios = found.get((selection, number))
            if ratios is None:
                cells.append("")
            else:
                cells.append(f"{np.median(ratios):.2f} ({max(ratios):.3g})")
        lines.append(cells)
    head = ["selection", *(f"round {number}" for number in ROUNDS)]
    table = tables.markdown(head, lines)
    return f"Median (and largest) loss over the least one:\n\n{table}"


def picture(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw records, population and selection of the first run whose top-k selection is bad."""
    from matplotlib.figure import Figure

    last = {
        row["run"]: row["ratio"]
        for row in rows
        if row["selection"] == TOP and row["round"] == ROUNDS[-1]
    }
    run = max(last, key=lambda each: (last[each] > BAD, -each))
    records = records_of(run)
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.subplots(len(SELECTIONS), len(ROUNDS), sharex=True, sharey=True)
    for row, selection in zip(axes, SELECTIONS, strict=True):
        steps = steps_of(selection, run)
        for panel, number, step in zip(row, ROUNDS, steps, strict=True):
            panel.scatter(*records.T, s=3, color="0.8", label="records")
            panel.scatter(
                *step.population.T, s=5, color="C0", alpha=0.5, label="population"
            )
            panel.scatter(
                *step.selected.T, s=40, color="C3", marker="x", label="selected"
            )
            panel.set_title(f"{selection}, round {number}", fontsize=9)
            panel.set_aspect("equal")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


SUITE = Suite(
    "pe-means-selection",
    "PE-means' figure 1: four clusters in two columns, 2,000 records, 100 variations, no noise. "
    "Every run has its own records.",
    Task,
    {"ratio": float},
    tasks_of,
    measure,
    tables_of,
    {"pe-means-selection": picture},
    runs=20,
)

if __name__ == "__main__":
    script.main(SUITE)
