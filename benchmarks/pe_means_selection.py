"""PE-means' figure 1: why centroids are selected by weighted k-means and not by the most votes.

    python benchmarks/pe_means_selection.py --runs 20 --output build/pe-means-selection

Two-dimensional blobs in four clusters, and no noise (epsilon is infinite): what differs is how the
next centroids are selected from the votes. "top-k" takes the four candidates with the most votes,
as private evolution did before; "weighted k-means" is what `PEMeans` does. The figure is the loss
after each round over that of scikit-learn's KMeans.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from flower_kmeans.algorithms import PEMeansAlgorithm
from flower_kmeans.algorithms.base import IntArray, Query
from flower_kmeans.algorithms.pe_means_population import gather
from flower_kmeans.bench import plots, tables
from flower_kmeans.bench.data import to_unit_ball
from flower_kmeans.bench.harness import Options, Row, Suite
from flower_kmeans.bench.script import main
from flower_kmeans.data.domain import Ball, GridRecords
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

N_RECORDS, N_CLUSTERS = 2_000, 4
N_VARIATIONS = 100
ROUNDS = (1, 2, 3, 4)
TOP, WEIGHTED = "top-k", "weighted k-means"
SELECTIONS = (TOP, WEIGHTED)


@dataclass(frozen=True)
class Task:
    """One way of selecting, on one data set."""

    selection: str
    round: int
    run: int


class Step(NamedTuple):
    """One round: what was voted on, with how many votes, and what was selected."""

    population: FloatArray
    votes: FloatArray
    selected: FloatArray


class TopKAlgorithm(PEMeansAlgorithm):
    """PE-means with the selection of private evolution: the k candidates with the most votes."""

    def _centers(
        self, query: Query, votes: IntArray, flags: IntArray, source: np.random.Philox
    ) -> dict[str, IntArray]:
        chosen = np.sort(np.argsort(-votes, kind="stable")[: self.n_clusters])
        points = gather(self._population(query), chosen)
        return {"centers": points.astype(np.int64), "counts": votes[chosen]}


@lru_cache(maxsize=4)
def records_of(run: int) -> FloatArray:
    """Return the records of one run, in the unit ball."""
    made, _ = make_blobs(N_RECORDS, centers=N_CLUSTERS, n_features=2, random_state=run)
    return to_unit_ball(made)


@lru_cache(maxsize=8)
def steps_of(selection: str, run: int) -> tuple[Step, ...]:
    """Return all rounds of one run; they follow from the seed, as there is no noise."""
    kind = TopKAlgorithm if selection == TOP else PEMeansAlgorithm
    algorithm = kind(
        N_CLUSTERS,
        Ball(1.0, np.zeros(2)),
        PrivacyBudget(None),
        n_records=N_RECORDS,
        n_vote_rounds=len(ROUNDS),
        n_variations=N_VARIATIONS,
        seed=run,
    )
    records = GridRecords(records_of(run), algorithm.domain, algorithm.fraction_bits)
    state, steps = algorithm.initial_state(), []
    one = 2.0**-algorithm.fraction_bits
    for _ in ROUNDS:
        query = algorithm.query(state)
        answer = algorithm.answer(query, records)
        state = algorithm.update(state, answer)
        population = np.concatenate(list(algorithm._population(query))) * one
        votes = answer.blocks["counts"][: len(population)] * one
        centroids = algorithm.centroids(state)
        if centroids is not None:
            steps.append(Step(population, votes, centroids))
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
            yield from (Task(selection, number, run) for number in ROUNDS)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the loss after one round over the least one."""
    selected = steps_of(task.selection, task.run)[task.round - 1].selected
    return {"ratio": nicv(records_of(task.run), selected) / best_of(task.run)}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the median and the worst ratio after each round."""
    found = tables.grouped(rows, ("selection", "round"), "ratio")
    lines = [
        [
            selection,
            *(
                f"{np.median(found[selection, number]):.2f} ({max(found[selection, number]):.3g})"
                for number in ROUNDS
                if (selection, number) in found
            ),
        ]
        for selection in SELECTIONS
    ]
    head = ["selection", *(f"round {number}" for number in ROUNDS)]
    return "Median (and largest) loss over the least one:\n\n" + tables.markdown(head, lines)


def picture(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw records, population and selection of the first run whose top-k selection is bad."""
    from matplotlib.figure import Figure

    last = {
        row["run"]: row["ratio"]
        for row in rows
        if row["selection"] == TOP and row["round"] == ROUNDS[-1]
    }
    run = max(last, key=lambda each: (last[each] > 2, -each))
    records = records_of(run)
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.subplots(len(SELECTIONS), len(ROUNDS), sharex=True, sharey=True)
    for row, selection in zip(axes, SELECTIONS, strict=True):
        for panel, number, step in zip(row, ROUNDS, steps_of(selection, run), strict=True):
            panel.scatter(*records.T, s=3, color="0.8", label="records")
            panel.scatter(*step.population.T, s=5, color="C0", alpha=0.5, label="population")
            panel.scatter(*step.selected.T, s=40, color="C3", marker="x", label="selected")
            panel.set_title(f"{selection}, round {number}", fontsize=9)
            panel.set_aspect("equal")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def curve_plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw mean ratios over rounds."""
    curves = tables.curves_of(rows, "ratio", ("selection",), "round")
    return plots.lines(
        {"loss over the least one": {name[0]: curve for name, curve in curves.items()}},
        ROUNDS,
        xlabel="round",
        xlog=False,
    )


SUITE = Suite(
    "pe-means-selection",
    "PE-means' figure 1: four clusters in two columns, 2,000 records, 100 variations, no noise. "
    "Every run has records of its own.",
    Task,
    {"ratio": float},
    tasks_of,
    measure,
    tables_of,
    {"pe-means-selection": picture, "pe-means-selection-loss": curve_plot},
    runs=20,
)

if __name__ == "__main__":
    main(SUITE, __doc__)
