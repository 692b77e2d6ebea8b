"""PE-means' figure 2: which numbers of variations L and of rounds T do best at epsilon 1.

    python benchmarks/pe_means_heuristics.py --data-dir DIR --runs 3 --output build/heuristics

L goes from N/40 to N/2 and T from sqrt(d) to 8 sqrt(d), around the paper's rules N/5 and 4 sqrt(d).
The best three pairs of each data set are listed, and drawn over N and d as in the paper. No
population is capped. Records are in the unit ball and delta is ``N^-1.1`` (PE-means, section IV).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from direct import final_state
from numpy.typing import NDArray

from flower_kmeans.algorithms import PEMeansAlgorithm
from flower_kmeans.bench import tables
from flower_kmeans.bench.data import to_unit_ball
from flower_kmeans.bench.harness import Options, Row, Suite, seed_of
from flower_kmeans.bench.script import main
from flower_kmeans.data.domain import Ball
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

EPSILON = 1.0
VARIATIONS = (1 / 40, 1 / 20, 1 / 10, 1 / 5, 1 / 2)  # of N
ROUNDS = (1.0, 2.0, 4.0, 8.0)  # of sqrt d
RULE = (1 / 5, 4.0)
BEST = 3
DATASETS = (
    "iris",
    "separated_4_4_21",
    "g2_4_30",
    "g2_16_30",
    "s1",
    "blobs_4_4",
    "blobs_16_4",
    "blobs_4_16",
    "blobs_4_64",
)


@dataclass(frozen=True)
class Task:
    """One run with L as a share of N, and T in units of sqrt d."""

    data: str
    share: float
    factor: float
    run: int


@lru_cache(maxsize=2)
def records_of(name: str, options: Options) -> tuple[FloatArray, int]:
    """Return scaled records, and the number of clusters."""
    data = options.load(name)
    return to_unit_ball(data.records), data.n_clusters


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    for run in range(options.runs):
        for name in options.data:
            for share in VARIATIONS:
                yield from (Task(name, share, factor, run) for factor in ROUNDS)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the loss of one run."""
    records, n_clusters = records_of(task.data, options)
    n, d = records.shape
    n_variations = max(4, round(task.share * n))
    algorithm = PEMeansAlgorithm(
        n_clusters,
        Ball(1.0, np.zeros(d)),
        PrivacyBudget(EPSILON, n**-1.1),
        n_records=n,
        n_vote_rounds=max(1, round(task.factor * math.sqrt(d))),
        n_variations=n_variations,
        max_candidates=max(n_clusters * (n_variations + 1), 2 * n_clusters),
        seed=seed_of(task) % 2**31,
    )
    centroids = algorithm.centroids(final_state(algorithm, [records], seed=task.run))
    return {"loss": nicv(records, centroids), "records": n, "columns": d}


def means_of(rows: Sequence[Row]) -> dict[str, dict[tuple[float, float], float]]:
    """Return mean losses by data set and by share and factor."""
    found: dict[str, dict[tuple[float, float], float]] = {}
    for (name, share, factor), losses in tables.grouped(
        rows, ("data", "share", "factor"), "loss"
    ).items():
        found.setdefault(name, {})[share, factor] = float(np.mean(losses))
    return found


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best pairs of each data set, and what the paper's rule loses to the best."""
    sizes = {row["data"]: (row["records"], row["columns"]) for row in rows}
    lines = []
    for name, means in means_of(rows).items():
        ordered = sorted(means, key=lambda pair: means[pair])
        lines.append(
            [
                name,
                *map(str, sizes[name]),
                "; ".join(f"N/{1 / share:g}, {factor:g} √d" for share, factor in ordered[:BEST]),
                f"{means[RULE] / means[ordered[0]]:.3f}" if RULE in means else "",
                f"{means[ordered[-1]] / means[ordered[0]]:.2f}",
            ]
        )
    head = ["data", "N", "d", "best three of L and T", "N/5, 4 √d over the best"]
    return tables.markdown([*head, "worst over the best"], lines)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw the best pairs over N and d."""
    from matplotlib.figure import Figure

    sizes = {row["data"]: (row["records"], row["columns"]) for row in rows}
    points = []
    for name, means in means_of(rows).items():
        n, d = sizes[name]
        for share, factor in sorted(means, key=lambda pair: means[pair])[:BEST]:
            points.append((n, d, max(4, round(share * n)), max(1, round(factor * math.sqrt(d)))))
    table = np.array(points, dtype=float)
    figure = Figure(figsize=(7, 6), layout="constrained")
    names, rules = ("N", "d"), {("N", "L"): lambda n: n / 5, ("d", "T"): lambda d: 4 * np.sqrt(d)}
    for panel, (y, x) in zip(
        figure.subplots(2, 2).ravel(), ((2, 1), (2, 0), (3, 1), (3, 0)), strict=True
    ):
        label = "LT"[y - 2]
        panel.scatter(table[:, x], table[:, y], alpha=0.5)
        rule = rules.get((names[x], label))
        if rule is not None:
            grid = np.geomspace(table[:, x].min(), table[:, x].max(), 50)
            panel.plot(grid, rule(grid), "k:", label="the paper's rule")
            panel.legend(frameon=False)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel(names[x])
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
    return figure


SUITE = Suite(
    "pe-means-heuristics",
    "PE-means' figure 2 at epsilon 1: the three best pairs of L, the variations of a centroid, and "
    "T, the rounds of votes, by mean loss, and how far the paper's rules are from the best. Runs "
    "are of the algorithm with the noise of one party, without clients and messages.",
    Task,
    {"loss": float, "records": int, "columns": int},
    tasks_of,
    measure,
    tables_of,
    {"pe-means-heuristics": plot},
    DATASETS,
    runs=3,
)

if __name__ == "__main__":
    main(SUITE, __doc__)
