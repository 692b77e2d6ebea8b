"""Compares the number of clusters that a synopsis suggests with that of generated sets.

    python benchmarks/choose_k.py --output build/choose-k

For each run that chooses between 2 and 20 clusters there is a run with the true number,
which spends a part of its budget on Lloyd rounds. If the choice is right, the ratio of
their losses is the cost of choosing. A last table compares the losses of both with
k-means with the true number of clusters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from direct import final_state
from protocols import ball_of, in_ball
from scipy.stats import gmean

from bench import lost_gain, script, tables
from bench.data import family_of
from bench.harness import Options, Row, Suite, Task, grid, seed_of
from bench.yardsticks import Yardsticks, yardsticks
from flower_kmeans import PrivacyBudget
from flower_kmeans.algorithms import SynopsisAlgorithm
from flower_kmeans.metrics import nicv
from flower_kmeans.report.synopsis import Synopsis

LEAST, MOST = 2, 20
CHOSEN, GIVEN = f"{LEAST} to {MOST}", "given"
EPSILONS = (0.5, 1.0, 4.0)
CLUSTERS = (3, 6, 10, 15)
DATASETS = tuple(
    name
    for k in CLUSTERS
    for name in (
        *(f"synth_{k}_{d}_1000" for d in (2, 4, 16)),
        *(f"separated_{k}_{d}_{percent}" for d in (2, 16) for percent in (10, 30)),
        *(f"uneven_{k}_{d}" for d in (4, 16)),
    )
)
"""The rule was tuned on other sets: 2, 3, 5, 8, 12 and 16 clusters in 2, 4, 8 and 16 columns, of
``synth`` with the seeds 0 and 1, and of ``separated`` with 5, 20 and 35 percent."""


@lru_cache
def known(name: str, options: Options) -> Yardsticks:
    """Return the losses of k-means with the true number of clusters, and of one cluster."""
    data = in_ball(name, options)
    return yardsticks(data.records, data.n_clusters)


@cache
def floor_over(name: str, epsilon: float, options: Options) -> float:
    """Return the floor of private runs over the loss of k-means."""
    data = in_ball(name, options)
    kmeans = known(name, options).kmeans
    return lost_gain.floor_over(kmeans, data.records, data.n_clusters, epsilon)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the number of clusters that a run found, its loss, and the elbow's cost.

    The elbow's cost, and half the width of its interval, are relative to the mean
    squared distance of the records to the same centroids.
    """
    data = in_ball(task.data, options)
    algorithm = SynopsisAlgorithm.planned(
        data.n_clusters if task.method == GIVEN else (LEAST, MOST),  # type: ignore[arg-type]
        ball_of(data),
        PrivacyBudget(task.epsilon),
        n_records=len(data.records),
        seed=seed_of(task),
    )
    state = final_state(algorithm, data.records)
    centroids, mixture = algorithm.centroids(state), algorithm.mixture.learned(state)
    assert centroids is not None
    assert mixture is not None
    synopsis = Synopsis(mixture, algorithm.domain)
    own = nicv(data.records, synopsis.kmeans(k := len(centroids)).centroids)
    elbow = synopsis.elbow([k])
    loss = nicv(data.records, centroids)
    losses = known(task.data, options)
    floor = 1.0
    if task.epsilon is not None:
        floor = floor_over(task.data, task.epsilon, options)
    return {
        "clusters": k,
        "loss": loss,
        "ratio": losses.ratio(loss),
        "lost": losses.lost_gain(loss),
        "floor": floor,
        "cost": elbow.costs[0] / own,
        "width": (elbow.interval[0, 1] - elbow.costs[0]) / own,
    }


def share(is_so: Callable[[Row], bool]) -> Callable[[list[Row]], str]:
    """Return a column of a table: the fraction of rows for which a condition holds."""
    return lambda rows: f"{100 * np.mean([is_so(row) for row in rows]):.0f}%"


def off(row: Row) -> int:
    """Return a run's number of clusters minus the true number."""
    _, (true, *_) = family_of(row["data"]) or ("", (0,))
    return int(row["clusters"] - true)


def loss_ratio(
    given: Mapping[tuple[Any, ...], list[float]],
) -> Callable[[list[Row]], str]:
    """Return a column: losses over those of runs with the true number, if it was found."""

    def show(rows: list[Row]) -> str:
        pairs = [
            (row["loss"], given.get((row["data"], row["epsilon"], row["run"])))
            for row in rows
            if off(row) == 0
        ]
        ratios = [loss / others[0] for loss, others in pairs if others]
        return f"{gmean(ratios):.3f}" if ratios else ""

    return show


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the fractions of right numbers, by epsilon, by family and by cluster."""
    given = [row for row in rows if row["method"] == GIVEN]
    losses = tables.grouped(given, ("data", "epsilon", "run"), "loss")
    shown = [
        {
            **row,
            "family": (family_of(row["data"]) or ("",))[0],
            "true": int(row["clusters"]) - off(row),
            "shown": "none" if row["epsilon"] is None else f"{row['epsilon']:g}",
        }
        for row in rows
        if row["method"] == CHOSEN
    ]
    cells = {
        "right": share(lambda row: off(row) == 0),
        "off by 1 at most": share(lambda row: abs(off(row)) <= 1),
        "too few": share(lambda row: off(row) < 0),
        "too many": share(lambda row: off(row) > 0),
        "loss over that of a given k": loss_ratio(losses),
        "cost of the elbow over the records'": lambda found: (
            f"{gmean([row['cost'] for row in found]):.3f}"
        ),
        "in its interval": lambda found: (
            share(lambda row: abs(row["cost"] - 1) <= row["width"])(found)
            if found[0]["epsilon"] is not None  # without noise an interval has no width
            else ""
        ),
        "runs": lambda found: str(len(found)),
    }
    by_epsilon = sorted(
        shown, key=lambda row: (row["epsilon"] is None, row["epsilon"] or 0.0)
    )
    by_family = sorted(by_epsilon, key=lambda row: row["family"])
    by_number = sorted(by_epsilon, key=lambda row: row["true"])
    found_tables = [
        tables.by_key(found, {**by, "epsilon": "shown"}, cells, words=2 if by else 1)
        for found, by in (
            (by_epsilon, {}),
            (by_family, {"family": "family"}),
            (by_number, {"true k": "true"}),
        )
    ]
    return "\n\n".join([*found_tables, compared(rows)])


def compared(rows: Sequence[Row]) -> str:
    """Return ratios to k-means and lost gains, by family and epsilon."""

    def column(method: str, *, right: bool) -> Callable[[list[Row]], str]:
        def show(of: list[Row]) -> str:
            chosen = [
                row
                for row in of
                if row["method"] == method and (off(row) == 0 or not right)
            ]
            if not chosen:
                return ""
            ratio, lost, floor = (
                float(np.mean([row[name] for row in chosen]))
                for name in ("ratio", "lost", "floor")
            )
            return lost_gain.whole(ratio, lost, floor)

        return show

    cells = {
        GIVEN: column(GIVEN, right=False),
        "right": column(CHOSEN, right=True),
        CHOSEN: column(CHOSEN, right=False),
    }
    shown = [
        {
            **row,
            "family": (family_of(row["data"]) or ("",))[0],
            "shown": "none" if row["epsilon"] is None else f"{row['epsilon']:g}",
        }
        for row in rows
    ]
    shown.sort(key=lambda row: (row["family"], row["epsilon"] or math.inf))
    return tables.by_key(shown, {"family": "family", "epsilon": "shown"}, cells, 2)


SUITE = Suite(
    "choose-k",
    f"How often SynopsisKMeans(n_clusters=({LEAST}, {MOST})) finds the number of clusters that a "
    "generated set has, and the loss of its centroids where it does, over that of a run with the "
    "number given. Records have a largest norm of 1 around their centre, which is read off them as "
    "an application must not do; delta is the library's default. The algorithm with its plan's "
    "noise, as under trusted-server; epsilon none is without noise. The elbow's cost of the number "
    "that a run found is compared with the mean squared distance of the records to its centroids.",
    Task,
    {
        "clusters": int,
        **dict.fromkeys(("loss", "ratio", "lost", "floor", "cost", "width"), float),
    },
    lambda options: grid(
        Task,
        options,
        data=options.data,
        method=(CHOSEN, GIVEN),
        epsilon=(*EPSILONS, None),
    ),
    measure,
    tables_of,
    datasets=DATASETS,
    runs=5,
)


if __name__ == "__main__":
    script.main(SUITE)
