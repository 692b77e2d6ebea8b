"""SynopsisKMeans beside k-means and the floor, with few records and small clusters.

    python benchmarks/few_records.py --data-dir DIR --seeds 10 --save rows.json

Records are centred and scaled to a largest norm of 1, delta = N^-1.1. Printed is, for
each data set, the area under the loss over epsilon (as in `loss.py`) over that of
k-means, the cost over that of k-means at each epsilon, and at epsilon 1 the lost gain
and the cost over the floor. ``--before`` compares with rows that another version of the
library has saved, at each epsilon, too: the noise comes from the seed, so that both
have the same numbers in the words of the same round. ``--constants NAME=VALUE``
replaces constants of the algorithm, so that one change is measured at a time.

Besides the names of `bench.data` there are ``digits`` and ``flower`` of scikit-learn,
``birch1``, a grid of 100 Gaussians, and families (`GENERATED`) whose last number is
their seed.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from direct import final_state
from loss import DATASETS, EPSILONS
from scipy.integrate import trapezoid
from scipy.stats import gmean

from bench.data import load, to_unit_ball
from bench.tables import markdown
from bench.yardsticks import Yardsticks, fewest_records, floor, yardsticks
from flower_kmeans import Ball, PrivacyBudget
from flower_kmeans.algorithms import (
    Algorithm,
    SynopsisAlgorithm,
    synopsis_constants,
)
from flower_kmeans.algorithms.sensitivity import sensitivities
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.calibration import mu_of_budget

AT_EPSILON = 1.0
PIXELS = 50_000  # of the photograph

Table = tuple[FloatArray, int]
Costs = dict[str, float]  # by `key_of`


class Case(NamedTuple):
    """Records in the unit ball, the number of clusters, and costs without privacy."""

    records: FloatArray
    n_clusters: int
    sticks: Yardsticks


# ------------------------------------------------------------------------- records


def few(n_records: int, n_clusters: int, n_features: int, seed: int) -> Table:
    """Return records of clusters of unequal sizes and widths."""
    rng = np.random.default_rng(seed)
    sizes = rng.dirichlet(np.full(n_clusters, 2.0))
    centres = rng.uniform(-5, 5, (n_clusters, n_features))
    widths = rng.uniform(0.5, 1.5, n_clusters)
    labels = rng.choice(n_clusters, n_records, p=sizes)
    noise = rng.standard_normal((n_records, n_features))
    return centres[labels] + widths[labels, None] * noise, n_clusters


def far(
    n_records: int,
    n_clusters: int,
    n_features: int,
    n_far: int,
    n_of_far: int,
    seed: int,
) -> Table:
    """Return records of overlapping clusters, and of small clusters far away."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-3, 3, (n_clusters, n_features))
    labels = rng.integers(0, n_clusters, n_records)
    near = centres[labels] + rng.standard_normal((n_records, n_features))
    directions = rng.standard_normal((n_far, n_features))
    directions *= 15 / np.linalg.norm(directions, axis=1, keepdims=True)
    noise = rng.standard_normal((n_far * n_of_far, n_features))
    distant = np.repeat(directions, n_of_far, axis=0) + noise
    return np.vstack([near, distant]), n_clusters + n_far


def heavy(n_records: int, n_clusters: int, n_features: int, seed: int) -> Table:
    """Return records whose first column is lognormal and has almost all variance."""
    rng = np.random.default_rng(seed)
    records = 0.1 * rng.standard_normal((n_records, n_features))
    records[:, 0] = np.exp(0.6 * rng.standard_normal(n_records))
    return records, n_clusters


def decay(n_records: int, n_clusters: int, n_features: int, seed: int) -> Table:
    """Return records of overlapping clusters with a decaying spectrum."""
    rng = np.random.default_rng(seed)
    scales = np.arange(1, n_features + 1) ** -0.7
    centres = scales * rng.standard_normal((n_clusters, n_features))
    labels = rng.integers(0, n_clusters, n_records)
    noise = rng.standard_normal((n_records, n_features))
    return centres[labels] + 0.6 * scales * noise, n_clusters


def grid(n_per_side: int, n_records: int, seed: int) -> Table:
    """Return records of a square grid of Gaussians, 4 sqrt(2) deviations apart (BIRCH)."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_per_side * n_per_side, n_records)
    places = np.stack([labels // n_per_side, labels % n_per_side], axis=1)
    centres = 4 * math.sqrt(2) * places
    return centres + rng.standard_normal((n_records, 2)), n_per_side * n_per_side


GENERATED: dict[str, Callable[..., Table]] = {
    "few": few,
    "far": far,
    "heavy": heavy,
    "decay": decay,
    "grid": grid,
}
TUNED = (
    *DATASETS,
    "few_300_4_6_1",
    "few_1000_8_10_2",
    "few_2500_12_8_3",
    "far_4000_3_5_2_40_1",
    "far_2000_4_8_3_30_2",
    "heavy_20000_3_6_1",
    "heavy_2000_4_3_2",
    "decay_1500_10_32_9",
    "decay_1800_10_48_1",
    "decay_6000_12_56_7",
    "few_800_10_64_8",
    "decay_1500_20_40_3",
    "few_2500_24_40_14",
    "decay_3000_32_48_13",
    "few_3000_40_64_12",
    "few_4000_40_72_15",
    "decay_2500_50_100_5",
)
CHECKED = ("birch1", "digits", "flower", "adult")


def table_of(name: str, directory: Path | None) -> Table:
    """Return the records of a data set in their own units, and its clusters."""
    if name == "birch1":
        return grid(10, 100_000, seed=1)
    if name == "digits":
        digits = require("sklearn.datasets", "A benchmark", "test").load_digits()
        return np.asarray(digits.data, dtype=np.float64), 10
    if name == "flower":
        return flower()
    family, *numbers = name.split("_")
    if family in GENERATED:
        return GENERATED[family](*map(int, numbers))
    data = load(name, directory)
    return data.records, data.n_clusters


def flower() -> Table:
    """Return a sample of the pixels of a photograph, and 16 clusters."""
    # The module asks for a decoder of images, which scikit-learn does not bring.
    datasets = require("sklearn.datasets", "A benchmark", "test")
    pixels = datasets.load_sample_image("flower.jpg").reshape(-1, 3)
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(pixels), PIXELS, replace=False)
    return pixels[chosen].astype(np.float64), 16


@lru_cache(maxsize=1)
def case_of(name: str, directory: Path | None) -> Case:
    """Return a data set in the unit ball."""
    records, n_clusters = table_of(name, directory)
    records = to_unit_ball(records)
    return Case(records, n_clusters, yardsticks(records, n_clusters))


# ----------------------------------------------------------------------- constants


def replace_constant(name: str, value: float) -> None:
    """Replace a constant of SynopsisKMeans in all modules that have it, in this process."""
    home = vars(synopsis_constants)
    if not isinstance(home.get(name), int | float):
        raise ConfigurationError(
            f"Expected the name of a number of synopsis_constants. Got {name!r} instead."
        )
    kind = type(home[name])
    for module in list(sys.modules.values()):
        is_own = module.__name__.startswith("flower_kmeans.algorithms.synopsis")
        if is_own and name in vars(module):
            setattr(module, name, kind(value))


def assignment(text: str) -> tuple[str, float]:
    """Return the name and the value of ``NAME=VALUE``."""
    name, _, value = text.partition("=")
    return name, float(value)


# ---------------------------------------------------------------------------- runs


def budget_of(case: Case, epsilon: float) -> PrivacyBudget:
    """Return the budget of a run."""
    return PrivacyBudget(epsilon, len(case.records) ** -1.1)


def cost_of(case: Case, epsilon: float, seed: int) -> float:
    """Return the cost of one run."""
    n_records, n_features = case.records.shape
    algorithm = SynopsisAlgorithm.planned(
        case.n_clusters,
        Ball(1.0, np.zeros(n_features)),
        budget_of(case, epsilon),
        n_records=n_records,
        seed=seed,
    )
    noise = seeded_noise(algorithm, seed)
    centroids = algorithm.centroids(final_state(algorithm, case.records, seed, noise))
    if centroids is None:
        raise RuntimeError("The run has no centroids.")
    return nicv(case.records, centroids)


def seeded_noise(algorithm: Algorithm, seed: int) -> Callable[[int], IntArray]:
    """Return the noise of a round, of the planned size, from a seed: NOT PRIVATE."""

    def noise(round_number: int) -> IntArray:
        deviations = algorithm.noise_of(round_number)
        units = sensitivities(algorithm, round_number)
        layout = algorithm.layout(round_number)
        parts = []
        for place, block in enumerate(layout.blocks):
            rng = np.random.default_rng((seed, round_number, place))
            normal = rng.standard_normal(math.prod(block.shape))
            # The planned deviation is that of the words with the largest unit: second
            # moments beside the diagonal have less noise.
            of_words = units[layout.places[block.name]]
            scales = deviations[block.name] * of_words / of_words.max()
            parts.append(np.rint(scales * normal).astype(np.int64))
        return np.concatenate(parts)

    return noise


def key_of(name: str, epsilon: float, seed: int) -> str:
    """Return the key of a run in a file of rows."""
    return f"{name} {epsilon:g} {seed}"


# -------------------------------------------------------------------------- figures


def costs_in(costs: Costs, name: str, seeds: Sequence[int]) -> FloatArray:
    """Return the costs of a data set, (seeds, epsilons)."""
    return np.array(
        [[costs[key_of(name, epsilon, seed)] for epsilon in EPSILONS] for seed in seeds]
    )


def area_ratios(costs: FloatArray, kmeans: float) -> FloatArray:
    """Return the area under each row of costs over that of k-means, (seeds,)."""
    width = EPSILONS[-1] - EPSILONS[0]
    return np.asarray(trapezoid(costs, EPSILONS, axis=1) / (kmeans * width))


def with_error(values: FloatArray, sign: str = "") -> str:
    """Return the mean of values, and its standard error if there are several."""
    shown = f"{values.mean():{sign}.4f}"
    if len(values) < 2:
        return shown
    return f"{shown} ± {values.std(ddof=1) / math.sqrt(len(values)):.4f}"


def row_of(
    name: str, case: Case, costs: Costs, before: Costs, seeds: Sequence[int]
) -> tuple[list[str], float]:
    """Return the cells of a data set, and its mean area over that of k-means."""
    found = costs_in(costs, name, seeds)
    areas = area_ratios(found, case.sticks.kmeans)
    cells = [name, str(len(seeds)), with_error(areas)]
    if before:
        earlier = area_ratios(costs_in(before, name, seeds), case.sticks.kmeans)
        cells += [with_error(earlier), with_error(areas - earlier, "+")]
    cells += [f"{mean:.3f}" for mean in found.mean(axis=0) / case.sticks.kmeans]
    at_epsilon = found[:, EPSILONS.index(AT_EPSILON)].mean()
    n_records, n_features = case.records.shape
    mu = mu_of_budget(AT_EPSILON, n_records**-1.1)
    fewest = fewest_records(n_features, mu)
    least = floor(case.records, case.n_clusters, fewest)
    cells += [f"{case.sticks.lost_gain(at_epsilon):.4f}", f"{at_epsilon / least:.3f}"]
    return cells, float(areas.mean())


def changes_of(
    name: str, case: Case, costs: Costs, before: Costs, seeds: Sequence[int]
) -> list[list[str]]:
    """Return a row for each epsilon: s, the cost before, and its change."""
    n_records, n_features = case.records.shape
    earlier = costs_in(before, name, seeds) / case.sticks.kmeans
    changes = costs_in(costs, name, seeds) / case.sticks.kmeans - earlier
    rows = []
    for place, epsilon in enumerate(EPSILONS):
        mu = mu_of_budget(epsilon, n_records**-1.1)
        signal = mu * n_records / (case.n_clusters * math.sqrt(n_features))
        mean = f"{earlier[:, place].mean():.3f}"
        change = with_error(changes[:, place], "+")
        rows.append([name, f"{epsilon:g}", f"{signal:.3g}", mean, change])
    return rows


def head_of(is_compared: bool) -> list[str]:
    """Return the head of the table."""
    head = ["data", "n", "area"]
    if is_compared:
        head += ["before", "difference"]
    head += [f"eps {epsilon:g}" for epsilon in EPSILONS]
    return [*head, "lost gain at 1", "over the floor at 1"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each data set, and the geometric mean of the areas."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--data", nargs="+", default=[*TUNED], help="see above")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each cell")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="a file for all costs")
    parser.add_argument("--before", type=Path, help="such a file of another version")
    parser.add_argument(
        "--constants", nargs="+", default=[], type=assignment, metavar="NAME=VALUE"
    )
    options = parser.parse_args(arguments)
    for name, value in options.constants:
        replace_constant(name, value)
    before: Costs = {}
    if options.before is not None:
        before = json.loads(options.before.read_text())
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    costs: Costs = {}
    if options.save is not None and options.save.exists():
        costs = json.loads(options.save.read_text())
    rows = []
    areas = []
    changes = []
    for name in options.data:
        case = case_of(name, options.data_dir)
        for epsilon in EPSILONS:
            for seed in seeds:
                key = key_of(name, epsilon, seed)
                if key not in costs:
                    costs[key] = cost_of(case, epsilon, seed)
        if options.save is not None:
            options.save.write_text(json.dumps(costs))
        cells, area = row_of(name, case, costs, before, seeds)
        rows.append(cells)
        areas.append(area)
        if before:
            changes += changes_of(name, case, costs, before, seeds)
    print(markdown(head_of(bool(before)), rows))
    if before:
        print("\n" + markdown(["data", "eps", "s", "before", "change"], changes))
    print(f"\nGeometric mean of the areas: {gmean(areas):.4f}")


if __name__ == "__main__":
    main()
