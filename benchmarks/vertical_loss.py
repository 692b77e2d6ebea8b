"""The loss of vertical k-means against that without privacy, as in its paper (Table 4).

    python benchmarks/vertical_loss.py --data-dir DIR --runs 20 --output
    build/vertical-loss
    python benchmarks/vertical_loss.py --data-dir DIR --data s1 --rounds 5
    --epsilons 0.5 1 2 3 4 5

Columns are scaled to [0, 1] by the records' own bounds, as in the paper: an application
takes public bounds and a smaller delta. Statistics are computed in the clear and carry
the noise that two parties add: ``tests/strategies/test_vertical.py`` shows what
encryption changes. ``radius`` is `VerticalKMeans` as it is by default, ``sums`` is
without the radius, ``plain`` is exact Lloyd from the same starts. ``described`` is
``sums`` with the noise that the paper's text gives: epsilon and delta are divided among
the rounds by simple or advanced composition, whichever leaves more, a count changes by
1, a column's sum by its width, and one party adds the noise. This does not cover a
record that changes two clusters and all columns at once. Accuracy is the part of
records whose cluster is theirs, under the best matching of clusters and true labels.
The second table has the loss over that of scikit-learn's k-means, the best of ten
starts, and the lost gain, (loss - k-means) / (one cluster - k-means).

``DIR`` holds ``s1.npz``, and the publishers' files of ``har``, ``taxi``, ``bank`` and
``loan`` (`bench.published`) where they are at hand. Of the paper's other data
``synth_N_K_D`` is in its style: scikit-learn's ``make_blobs(N, n_features=D, centers=K,
random_state=1)``. Runs take seeds from 1000 on: the radius was chosen with the seeds 0
to 59 of s1 and on other data.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from direct import final_state
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import make_blobs

from bench import lost_gain, script, tables
from bench.data import to_unit_box
from bench.harness import Options, Row, Suite, grid
from bench.yardsticks import Yardsticks, yardsticks
from flower_kmeans import Box, PrivacyBudget
from flower_kmeans.algorithms import LloydAlgorithm
from flower_kmeans.algorithms.layout import COUNTS, SUMS
from flower_kmeans.arrays import FloatArray
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import noise_share
from flower_kmeans.report.curves import interval
from flower_kmeans.vertical.algorithm import VerticalAlgorithm

MADE = ("synth_10000_8_2", "synth_100000_5_2")
METHODS = ("plain", "sums", "radius", "described")
EPSILON = 1.0
FIRST_SEED = 1000
PARTIES = 2
PRINTED = {
    "s1": "plain 0.00286 (93.22 %), theirs 0.00566 (90.75 %), Li et al. 0.0243 (62.25 %)",
    "synth_10000_8_2": "plain 0.0107, theirs 0.0112 (86.67 %), Li et al. 0.0343",
}
"""Losses and accuracies of the paper's Table 4, on its own copies of the data."""


@dataclass(frozen=True)
class Task:
    """One run of a method."""

    data: str
    method: str
    epsilon: float
    rounds: int
    run: int


@lru_cache(maxsize=4)
def load(
    name: str, options: Options
) -> tuple[FloatArray, NDArray[np.int64] | None, int]:
    """Return records in [0, 1], their labels if they have some, and k."""
    if name in MADE:
        n, k, d = map(int, name.split("_")[1:])
        records, labels = make_blobs(n, n_features=d, centers=k, random_state=1)
    else:
        data = options.load(name)
        records, labels, k = data.records, data.labels, data.n_clusters
    scaled = (to_unit_box(records) + 1) / 2
    return scaled, labels, k


class Reference(NamedTuple):
    """Losses without privacy, and the floor of private runs over that of k-means."""

    losses: Yardsticks
    floor: float


@lru_cache(maxsize=16)
def reference(name: str, epsilon: float, options: Options) -> Reference:
    """Return what the losses of a data set are compared with."""
    records, _, k = load(name, options)
    losses = yardsticks(records, k)
    floor = lost_gain.floor_over(losses.kmeans, records, k, epsilon, 1 / len(records))
    return Reference(losses, floor)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Run one method; return its loss and its accuracy."""
    records, labels, k = load(task.data, options)
    n, d = records.shape
    domain = Box(np.zeros(d), np.ones(d))
    common = {"n_records": n, "n_rounds": task.rounds, "seed": FIRST_SEED + task.run}
    if task.method == "plain":
        algorithm: Any = LloydAlgorithm.planned(
            k, domain, PrivacyBudget(epsilon=None), **common
        )
    else:
        budget = PrivacyBudget(task.epsilon, 1 / n)
        algorithm = VerticalAlgorithm.planned(
            k, domain, budget, radius=task.method == "radius", **common
        )
    plan, stream = algorithm.plan(), Stream.fresh()
    source = np.random.default_rng([FIRST_SEED + task.run, task.rounds])

    def noise(number: int) -> NDArray[np.int64]:
        if task.method == "described":
            return described_noise(algorithm, number, task.rounds, source, task.epsilon)
        parties = range(PARTIES if plan.is_private else 0)
        shares = (
            noise_share(algorithm, plan, number, PARTIES - 1, stream) for _ in parties
        )
        return sum(shares, np.zeros(algorithm.layout(number).n_words, np.int64))

    centroids = algorithm.centroids(final_state(algorithm, records, noise=noise))
    nearest = ((records[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    loss = nicv(records, centroids)
    losses, floor = reference(task.data, task.epsilon, options)
    right = None
    if labels is not None:
        right = accuracy(labels, nearest)
    return {
        "loss": loss,
        "accuracy": right,
        "ratio": losses.ratio(loss),
        "lost": losses.lost_gain(loss),
        "floor": floor,
        "one_cluster": losses.ratio(losses.one_cluster),
    }


def described_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """Return the paper's noise over a sensitivity, for one value of one round.

    The classical Gaussian mechanism, with the larger of two epsilons for a round: that
    of simple composition, and that of advanced composition, which keeps half of delta
    for itself.
    """
    simple = epsilon / rounds, delta / rounds
    advanced = (
        epsilon / (2 * math.sqrt(2 * rounds * math.log(2 / delta))),
        delta / (2 * rounds),
    )
    part, failure = max(simple, advanced)
    return math.sqrt(2 * math.log(1.25 / failure)) / part


def described_noise(
    algorithm: VerticalAlgorithm,
    number: int,
    rounds: int,
    source: np.random.Generator,
    epsilon: float,
) -> NDArray[np.int64]:
    """Return the noise (words,) of a round as the paper's text describes it."""
    n_records = algorithm.n_records or 0
    multiplier = described_multiplier(epsilon, 1 / n_records, rounds)
    one = 2**algorithm.fraction_bits
    # A column is 2 wide in the algorithm's units.
    changes = {SUMS: 2 * one, COUNTS: one}
    blocks = algorithm.layout(number).blocks
    units = np.concatenate([np.full(b.size, changes[b.name]) for b in blocks])
    return np.rint(source.normal(size=len(units)) * units * multiplier).astype(np.int64)


def accuracy(labels: NDArray[np.int64], clusters: NDArray[np.int64]) -> float:
    """Return the part of records in the cluster that their label is matched with."""
    names, found = np.unique(labels, return_inverse=True)
    table = np.zeros((len(names), int(clusters.max()) + 1))
    np.add.at(table, (found, clusters), 1)
    return float(table[linear_sum_assignment(-table)].sum() / len(labels))


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return means with their intervals, and the printed figures."""

    def shown(method: str) -> Callable[[list[Row]], str]:
        def show(of: list[Row]) -> str:
            losses = {
                m: [row["loss"] for row in of if row["method"] == m] for m in METHODS
            }
            if not losses[method]:
                return "-"
            mean, half = interval(losses[method])
            quotient = mean / np.mean(losses["plain"] or [np.nan])
            parts = [row["accuracy"] for row in of if row["method"] == method]
            compared = f"{quotient:.2f}x"
            if None not in parts:
                compared += f", {100 * np.mean(parts):.1f} %"
            return f"{mean:.4f} ± {half:.4f} ({compared})"

        return show

    cells = {method: shown(method) for method in METHODS}
    cells["printed by the paper"] = lambda of: PRINTED.get(of[0]["data"], "")
    by = {"data": "data", "eps": "epsilon", "rounds": "rounds"}
    return "\n\n".join(
        [tables.by_key(rows, by, cells), tables.by_key(rows, by, compared())]
    )


def compared() -> dict[str, Callable[[list[Row]], str]]:
    """Return the columns of ratios to k-means and of lost gains."""

    def mean(of: list[Row], method: str, value: str) -> float:
        return float(np.mean([row[value] for row in of if row["method"] == method]))

    def shown(method: str) -> Callable[[list[Row]], str]:
        def show(of: list[Row]) -> str:
            if method not in [row["method"] for row in of]:
                return "-"
            ratio = mean(of, method, "ratio")
            return lost_gain.whole(ratio, mean(of, method, "lost"), of[0]["floor"])

        return show

    cells = {f"{m}: over k-means; lost gain": shown(m) for m in METHODS}
    cells["one cluster"] = lambda of: f"{of[0]['one_cluster']:.3f}"
    return cells


SUITE = Suite(
    "vertical-loss",
    "Loss and accuracy of vertical k-means at delta 1/N, two parties, with the whole "
    "noise that both add (described: that of the paper's text); mean over runs with its 95 % "
    "interval, beside exact Lloyd from the same starts and the paper's printed figures.",
    Task,
    {
        "loss": float,
        "accuracy": float | None,
        **dict.fromkeys(("ratio", "lost", "floor", "one_cluster"), float),
    },
    lambda options: grid(
        Task,
        options,
        data=options.data,
        method=METHODS,
        epsilon=(EPSILON,),
        rounds=(3, 5, 7),
    ),
    measure,
    tables_of,
    datasets=("s1", *MADE, "har", "taxi", "bank", "loan"),
    sources={name: {} for name in MADE},
    runs=20,
)

if __name__ == "__main__":
    script.main(SUITE)
