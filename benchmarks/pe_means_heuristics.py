"""PE-means' figure 2: the numbers of variations L and of rounds T that do best at epsilon 1.

    python benchmarks/pe_means_heuristics.py --data-dir DIR --output build/heuristics

L goes from N/40 to N/2 and T from sqrt(d) to 8 sqrt(d), around the paper's rules N/5 and
4 sqrt(d). The best three pairs of each data set are listed, and drawn over N and d as in
the paper. No population is capped. Records are in the unit ball, and delta is
``N^-1.1`` (PE-means, section IV).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from direct import final_state
from protocols import ball_of, in_ball

from bench import script, tables
from bench.harness import Options, Row, Suite, seed_of
from flower_kmeans import PrivacyBudget
from flower_kmeans.algorithms import PEMeansAlgorithm
from flower_kmeans.metrics import nicv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 1.0
VARIATIONS = (1 / 40, 1 / 20, 1 / 10, 1 / 5, 1 / 2)  # of N
ROUNDS = (1.0, 2.0, 4.0, 8.0)  # of sqrt d
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


class Pair(NamedTuple):
    """L as a fraction of N, and T in units of sqrt d."""

    share: float
    factor: float

    def variations(self, n_records: int) -> int:
        """Return L."""
        return max(4, round(self.share * n_records))

    def rounds(self, n_columns: int) -> int:
        """Return T."""
        return max(1, round(self.factor * math.sqrt(n_columns)))

    def __str__(self) -> str:
        return f"N/{1 / self.share:g}, {self.factor:g} √d"


RULE = Pair(1 / 5, 4.0)


@dataclass(frozen=True)
class Task:
    """One run with a pair."""

    data: str
    share: float
    factor: float
    run: int


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second."""
    shares = options.chosen("share", VARIATIONS, float)
    factors = options.chosen("factor", ROUNDS, float)
    for run in range(options.runs):
        for name in options.data:
            for share in shares:
                for factor in factors:
                    yield Task(name, share, factor, run)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the loss of one run."""
    data = in_ball(task.data, options)
    n, d = data.records.shape
    k = data.n_clusters
    pair = Pair(task.share, task.factor)
    n_variations = pair.variations(n)
    algorithm = PEMeansAlgorithm.planned(
        k,
        ball_of(data),
        PrivacyBudget(EPSILON, n**-1.1),
        n_records=n,
        n_vote_rounds=pair.rounds(d),
        n_variations=n_variations,
        max_candidates=k * (n_variations + 1),
        seed=seed_of(task) % 2**31,
    )
    centroids = algorithm.centroids(final_state(algorithm, data.records, task.run))
    assert centroids is not None
    return {"loss": nicv(data.records, centroids), "records": n, "columns": d}


def means_of(rows: Sequence[Row]) -> dict[str, dict[Pair, float]]:
    """Return mean losses by data set and pair."""
    found: dict[str, dict[Pair, float]] = {}
    groups = tables.grouped(rows, ("data", "share", "factor"), "loss")
    for (name, share, factor), losses in groups.items():
        found.setdefault(name, {})[Pair(share, factor)] = float(np.mean(losses))
    return found


def best_of(means: Mapping[Pair, float]) -> list[Pair]:
    """Return all pairs, the best first."""
    return sorted(means, key=lambda pair: means[pair])


def sizes_of(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Return the numbers of records and columns by data set."""
    return {row["data"]: (row["records"], row["columns"]) for row in rows}


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the best pairs of each data set, and the paper's rule over the best."""
    sizes = sizes_of(rows)
    lines = []
    for name, means in means_of(rows).items():
        ordered = best_of(means)
        least = means[ordered[0]]
        rule = ""
        if RULE in means:
            rule = f"{means[RULE] / least:.3f}"
        best = "; ".join(map(str, ordered[:BEST]))
        worst = f"{means[ordered[-1]] / least:.2f}"
        lines.append([name, *map(str, sizes[name]), best, rule, worst])
    head = ["data", "N", "d", "best three of L and T", f"{RULE} over the best"]
    return tables.markdown([*head, "worst over the best"], lines)


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw the best pairs over N and d."""
    from matplotlib.figure import Figure

    sizes = sizes_of(rows)
    points = []
    for name, means in means_of(rows).items():
        n, d = sizes[name]
        for pair in best_of(means)[:BEST]:
            points.append((n, d, pair.variations(n), pair.rounds(d)))
    columns = dict(zip("NdLT", np.array(points, dtype=float).T, strict=True))
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    for panel, (y, x) in zip(axes, ("Ld", "LN", "Td", "TN"), strict=True):
        panel.scatter(columns[x], columns[y], alpha=0.5)
        places = np.geomspace(columns[x].min(), columns[x].max(), 50)
        rule = None
        if x + y == "NL":
            rule = places / 5
        elif x + y == "dT":
            rule = 4 * np.sqrt(places)
        if rule is not None:
            panel.plot(places, rule, "k:", label="the paper's rule")
            panel.legend(frameon=False)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel(x)
        panel.set_ylabel(y)
        panel.grid(alpha=0.3)
    return figure


SUITE = Suite(
    "pe-means-heuristics",
    "PE-means' figure 2 at epsilon 1: the three best pairs of L, the variations of a centroid, and "
    "T, the rounds of votes, by mean loss, and the paper's rules over the best. Runs are of the "
    "algorithm with the noise of one party, without clients and messages.",
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
    script.main(SUITE)
