"""The original codes of two papers beside ours: same data, same budget.

    python benchmarks/originals.py fastlloyd --reference DIR --python PYTHON \
        --data-dir DIR
    python benchmarks/originals.py feddp --reference DIR --python PYTHON

``--reference`` is a fetched checkout of D-Diaa/FastLloyd or jonnyascott/fed-dp-kmeans.
``--python`` is an interpreter with the packages that the code needs. A run of a code is
a process of it (`original_codes`). Its centroids come back, and one function computes
all costs. "mended" is the code with the faults mended that cost privacy
(``original_codes/run_fastlloyd.py`` and ``run_feddp.py``).

fastlloyd: FastLloyd's protocol (``protocols.as_fastlloyd``). The run is the seed of the
start and of the division among two clients, here and there.

feddp: the mixture that the code generates. The run is the seed of data and noise. The
code takes an epsilon for each step. They are chosen so that all steps together have the
wanted epsilon by the project's accountant; FedDP's own accountant states it, too.
"""

import argparse
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from original_codes.checkout import Checkout, checkout_of
from protocols import N_CLIENTS, as_fastlloyd, fastlloyd_delta, in_box
from scipy.optimize import brentq
from scipy.stats import gmean

from bench import script, tables
from bench.harness import Options, Row, Suite, Task
from bench.tables import markdown
from bench.yardsticks import Yardsticks, yardsticks
from flower_kmeans import Ball, PrivacyBudget, simulate, strategies
from flower_kmeans.arrays import FloatArray
from flower_kmeans.errors import RunError
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.calibration import mixture_epsilon, mu_of_budget

ORIGINAL, MENDED = "original", "mended"
CODES = (ORIGINAL, MENDED)
MEASURES: Mapping[str, type] = {
    "cost": float,
    "kmeans": float,
    "one_cluster": float,
    # Of all releases by our accountant: as the code states them, and by their noise.
    "stated": float,
    "real": float,
    # Pairs of noises, those of one seed, and those whose seed is 0 in every run.
    "pairs": int,
    "shared": int,
    "fixed": int,
}


class Noise(NamedTuple):
    """The releases of a run, and the seeds of their noise."""

    stated: float
    real: float
    pairs: int = 0
    shared: int = 0
    fixed: int = 0


def epsilon_of(releases: Iterable[Sequence[Any]], delta: float) -> float:
    """Return the joint epsilon of releases: kind, and noise over sensitivity, of each."""
    squares, costs = 0.0, []
    for kind, multiplier in releases:
        if kind == "gaussian":
            squares += 1 / multiplier**2
        else:
            costs.append(1 / multiplier)
    return mixture_epsilon(math.sqrt(squares), tuple(costs), delta)


def row_of(cost: float, scale: Yardsticks, noise: Noise) -> dict[str, Any]:
    """Return the measures of a run."""
    return {
        "cost": cost,
        "kmeans": scale.kmeans,
        "one_cluster": scale.one_cluster,
        **noise._asdict(),
    }


# --------------------------------------------------------------------------- FastLloyd

FASTLLOYD_FILES = ("utils/protocols.py", "configs/params.py", "parties/server.py")
FASTLLOYD_EPSILONS = (0.1, 0.25, 1.0)
FASTLLOYD_OURS = ("FastLloyd:paper", "FastLloyd", "SynopsisKMeans")
FASTLLOYD_SETS = ("s1", "lsun", "iris", "wine", "breast", "birch2")


def fastlloyd_tasks(options: Options) -> Iterator[Task]:
    """Yield every run."""
    for run in range(options.runs):
        for name in options.data:
            for epsilon in options.chosen("epsilon", FASTLLOYD_EPSILONS, float):
                for method in (*CODES, *FASTLLOYD_OURS):
                    yield Task(name, method, epsilon, run)


@lru_cache(maxsize=8)
def box_scale(name: str, options: Options) -> Yardsticks:
    """Return the yardsticks of a data set in FastLloyd's protocol. NOT PRIVATE."""
    data = in_box(name, options)
    return yardsticks(data.records, data.n_clusters)


def measure_fastlloyd(
    task: Task, options: Options, checkout: Checkout
) -> Mapping[str, Any]:
    """Return the cost of one run of the code or of ours."""
    data = in_box(task.data, options)
    scale = box_scale(task.data, options)
    epsilon = float(task.epsilon or math.nan)
    if task.method not in CODES:
        found = as_fastlloyd(data, task.method, epsilon, task.run)
        cost = nicv(data.records, found.centroids)
        return row_of(cost, scale, Noise(epsilon, float(found.report.epsilon or 0)))
    epsilons = options.chosen("epsilon", FASTLLOYD_EPSILONS, float)
    found_all = fastlloyd_runs(checkout, task.data, task.run, epsilons, options)
    centroids, seen = found_all[epsilon, task.method]
    real = epsilon_of(seen["releases"], fastlloyd_delta(len(data.records)))
    noise = Noise(epsilon, real, seen["rounds"], seen["shared"], seen["fixed"])
    return row_of(nicv(data.records, centroids), scale, noise)


@lru_cache(maxsize=2)
def fastlloyd_runs(
    checkout: Checkout,
    name: str,
    run: int,
    epsilons: tuple[float, ...],
    options: Options,
) -> dict[tuple[float, str], tuple[FloatArray, dict[str, Any]]]:
    """Return centroids and facts of the code's runs on a data set, from one process."""
    data = in_box(name, options)
    wanted = [(epsilon, method) for epsilon in epsilons for method in CODES]
    facts = {
        "n_clusters": data.n_clusters,
        "n_clients": N_CLIENTS,
        "seed": run,
        "runs": [
            {"epsilon": epsilon, "mended": method == MENDED}
            for epsilon, method in wanted
        ],
    }
    answer = checkout.run("run_fastlloyd.py", {"records": data.records}, facts)
    found = {}
    for place, key in enumerate(wanted):
        centroids = answer.arrays[f"centroids{place}"]
        found[key] = (centroids, answer.facts["runs"][place])
    return found


# --------------------------------------------------------------------------- FedDP

FEDDP_FILES = ("run.py", "privacy/mechanism.py", "algorithms/federated_cluster_init.py")
FEDDP_EPSILONS = (0.5, 1.0, 3.0)
FEDDP_OURS = ("FedDPKMeans", "SynopsisKMeans")
FEDDP_DELTA = 1e-6
FEDDP_BOUND = 11.0
"""The bound on a record's norm in the code's settings for single records."""
N_CLUSTERS = 10
RECORD, CLIENT = "record", "client"
CONFIGURATIONS = {
    RECORD: "configs/gaussians_data_privacy.yaml",
    CLIENT: "configs/gaussians_client_privacy.yaml",
}
"""The code's own settings, by the unit that is protected."""
# The least and the largest epsilon of a step that is tried.
_STEPS = (0.001, 20.0)


class Step(NamedTuple):
    """A release of the code: kind, and its part of the epsilon of a step."""

    kind: str
    part: float


_SUMS_AND_COUNTS = (Step("gaussian", 0.5), Step("laplace", 0.5))
RELEASES = {
    RECORD: (
        Step("gaussian", 1.0),
        Step("laplace", 1.0),
        *_SUMS_AND_COUNTS,
        *_SUMS_AND_COUNTS,
    ),
    CLIENT: (
        Step("gaussian", 1.0),
        Step("laplace", 1.0),
        Step("gaussian", 1.0),
        Step("laplace", 0.2),
    ),
}
"""Second moments, weights, sums and counts of the start, and for records of one round."""


@cache
def step_epsilon(unit: str, epsilon: float) -> float:
    """Return the epsilon of a step so that all steps together have the wanted one."""

    def excess(step: float) -> float:
        releases = []
        for kind, part in RELEASES[unit]:
            cost = step * part
            if kind == "gaussian":
                cost = mu_of_budget(step * part, FEDDP_DELTA)
            releases.append((kind, 1 / cost))
        return epsilon_of(releases, FEDDP_DELTA) - epsilon

    return float(brentq(excess, *_STEPS, rtol=1e-4))


def feddp_arguments(
    folder: Path, unit: str, epsilon: float | None, run: int
) -> list[str]:
    """Return the arguments of the code's ``run.py``."""
    arguments = ["--args_config", str((folder / CONFIGURATIONS[unit]).resolve())]
    arguments += ["--data_seed", str(run), "--seed", str(run)]
    if epsilon is None:
        return arguments
    step = step_epsilon(unit, epsilon)
    options = {
        "outer_product_epsilon": step,
        "weighting_epsilon": step,
        "center_init_gaussian_epsilon": step,
        "center_init_contributed_components_epsilon": 0.2 * step,
        "fedlloyds_epsilon": step,
    }
    for name, value in options.items():
        arguments += [f"--{name}", repr(value)]
    return arguments


class Generated(NamedTuple):
    """The data that the code generates, and their yardsticks."""

    records: FloatArray
    server: FloatArray
    n_clients: int
    digest: str
    scale: Yardsticks


@lru_cache(maxsize=1)
def generated(checkout: Checkout, unit: str, run: int) -> Generated:
    """Return the data of a run, which the code itself makes."""
    arguments = feddp_arguments(checkout.folder, unit, None, run)
    facts = {"arguments": arguments, "only_data": True, "mended": False}
    answer = checkout.run("run_feddp.py", {}, facts)
    raw = answer.arrays["records"]
    records = np.asarray(raw, dtype=float)
    return Generated(
        records,
        np.asarray(answer.arrays["server"], dtype=float),
        answer.facts["clients"],
        hashlib.sha256(np.ascontiguousarray(raw).tobytes()).hexdigest(),
        yardsticks(records, N_CLUSTERS),
    )


def feddp_tasks(options: Options) -> Iterator[Task]:
    """Yield every run, those on the same records one after another."""
    for run in range(options.runs):
        for unit in (RECORD, CLIENT):
            for epsilon in options.chosen("epsilon", FEDDP_EPSILONS, float):
                for method in (*CODES, *FEDDP_OURS):
                    yield Task(unit, method, epsilon, run)


def measure_feddp(
    task: Task, options: Options, checkout: Checkout
) -> Mapping[str, Any]:
    """Return the cost of one run of the code or of ours."""
    unit, epsilon = task.data, float(task.epsilon or math.nan)
    data = generated(checkout, unit, task.run)
    if task.method not in CODES:
        centroids, spent = our_feddp(task.method, data, unit, epsilon, task.run)
        return row_of(nicv(data.records, centroids), data.scale, Noise(epsilon, spent))
    arguments = feddp_arguments(checkout.folder, unit, epsilon, task.run)
    mended = task.method == MENDED
    facts = {"arguments": arguments, "only_data": False, "mended": mended}
    answer = checkout.run("run_feddp.py", {}, facts)
    if answer.facts["records"] != data.digest:
        raise RunError("The code made other records in this run than for ours.")
    stated, real = answer.facts["releases"], list(answer.facts["releases"])
    if unit == RECORD and not mended:
        # One record changes the second moments by the square of its norm.
        kind, multiplier = real[0]
        real[0] = (kind, multiplier / FEDDP_BOUND)
    noise = Noise(
        epsilon_of(stated, FEDDP_DELTA),
        epsilon_of(real, FEDDP_DELTA),
        sum(kind == "laplace" for kind, _ in stated[2:]),
        answer.facts["shared"],
    )
    cost = nicv(data.records, answer.arrays["centroids"])
    return row_of(cost, data.scale, noise)


def our_feddp(
    method: str, data: Generated, unit: str, epsilon: float, run: int
) -> tuple[FloatArray, float]:
    """Return centroids of one of our strategies, and the epsilon of its report."""
    parameters: dict[str, Any] = {
        "n_records": len(data.records),
        "n_clients": data.n_clients,
        "trust": "trusted-server",
        "seed": run,
    }
    if method == "FedDPKMeans":
        # The code's settings have this bound, too.
        parameters |= {"server_data": data.server, "min_weight": 5.0}
    strategy = getattr(strategies, method)(
        N_CLUSTERS,
        Ball(FEDDP_BOUND, np.zeros(data.records.shape[1])),
        PrivacyBudget(epsilon, FEDDP_DELTA, unit=unit),
        **parameters,
    )
    found = simulate(strategy, np.split(data.records, data.n_clients))
    return found.centroids, float(found.report.epsilon or 0)


# --------------------------------------------------------------------------- tables


def by_cell(rows: Sequence[Row]) -> dict[tuple[str, float, str], list[Row]]:
    """Return rows by data set, epsilon and method, in their order."""
    found: dict[tuple[str, float, str], list[Row]] = {}
    for row in rows:
        key = (row["data"], row["epsilon"], row["method"])
        found.setdefault(key, []).append(row)
    return found


def mean(rows: Sequence[Row], name: str) -> float:
    """Return the mean of a measure."""
    return float(np.mean([row[name] for row in rows]))


def lost(rows: Sequence[Row]) -> float:
    """Return the lost gain of the mean cost; yardsticks may differ by run."""
    one, kmeans = mean(rows, "one_cluster"), mean(rows, "kmeans")
    return (mean(rows, "cost") - kmeans) / (one - kmeans)


def cost_table(rows: Sequence[Row]) -> str:
    """Return costs of the code with lost gains, and those of all others over them.

    A row is a data set at an epsilon, with the mean of all runs.
    """
    found = by_cell(rows)
    methods = tables.unique(row["method"] for row in rows)
    others = [method for method in methods if method != ORIGINAL]
    head = ["data", "eps", "runs", "k-means", "original", *others]
    lines = []
    for data, epsilon in tables.unique((row["data"], row["epsilon"]) for row in rows):
        first = found.get((data, epsilon, ORIGINAL))
        if first is None:
            continue
        cost = mean(first, "cost")
        line = [data, f"{epsilon:g}", f"{len(first)}", f"{mean(first, 'kmeans'):.4g}"]
        line.append(f"{cost:.4g}; {lost(first):.3f}")
        for method in others:
            each = found.get((data, epsilon, method))
            cell = ""
            if each is not None:
                cell = f"{mean(each, 'cost') / cost:.3f}; {lost(each):.3f}"
            line.append(cell)
        lines.append(line)
    return markdown(head, lines, (0,))


def summary_table(rows: Sequence[Row]) -> str:
    """Return how each method's mean costs compare with those of both forms of the code."""
    found = by_cell(rows)
    cells = tables.unique((row["data"], row["epsilon"]) for row in rows)
    head = ["method", "over the original, geometric mean", "at or below it"]
    head += ["over the mended, geometric mean", "at or below it"]
    lines = []
    for method in tables.unique(row["method"] for row in rows):
        if method not in CODES:
            line = [method]
            for code in CODES:
                ratios = [
                    mean(found[(*cell, method)], "cost")
                    / mean(found[(*cell, code)], "cost")
                    for cell in cells
                    if (*cell, method) in found and (*cell, code) in found
                ]
                below = sum(ratio <= 1 for ratio in ratios)
                shown = f"{gmean(ratios):.3f}" if ratios else ""
                line += [shown, f"{below} of {len(ratios)}"]
            lines.append(line)
    return markdown(head, lines, (0,))


def noise_table(rows: Sequence[Row]) -> str:
    """Return the epsilon of the code's noise, and how its seeds are used.

    A row is a data set, with the run and the epsilon whose noise falls short most.
    """
    head = ["data", "code", "runs", "eps stated", "eps of the noise"]
    head += ["pairs of noises of one seed", "rounds with noise of seed 0"]
    lines = []
    for data, method in tables.unique((row["data"], row["method"]) for row in rows):
        if method in CODES:
            found = [
                row for row in rows if (row["data"], row["method"]) == (data, method)
            ]
            worst = max(found, key=lambda row: float(row["real"] / row["stated"]))
            pairs, shared, fixed = (
                sum(row[name] for row in found) for name in ("pairs", "shared", "fixed")
            )
            line = [data, method, f"{len(found)}", f"{worst['stated']:.3g}"]
            line += [f"{worst['real']:.3g}", f"{shared} of {pairs}", f"{fixed}"]
            lines.append(line)
    return markdown(head, lines, (0, 1))


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return all tables."""
    return "\n\n".join(
        [
            "Mean cost per record; behind the semicolon the lost gain, "
            "(cost - k-means) / (one cluster - k-means). Columns behind the original's "
            "have the cost over the original's.",
            cost_table(rows),
            summary_table(rows),
            noise_table(rows),
        ]
    )


# --------------------------------------------------------------------------- command


class Paper(NamedTuple):
    """How the code of a paper is compared."""

    repository: str
    files: tuple[str, ...]
    tasks: Callable[[Options], Iterable[Task]]
    measure: Callable[[Task, Options, Checkout], Mapping[str, Any]]
    datasets: tuple[str, ...]
    runs: int


PAPERS = {
    "fastlloyd": Paper(
        "D-Diaa/FastLloyd",
        FASTLLOYD_FILES,
        fastlloyd_tasks,
        measure_fastlloyd,
        FASTLLOYD_SETS,
        5,
    ),
    "feddp": Paper(
        "jonnyascott/fed-dp-kmeans",
        FEDDP_FILES,
        feddp_tasks,
        measure_feddp,
        (),
        3,
    ),
}


def suite_of(name: str, folder: Path, python: str) -> Suite:
    """Return the suite of a paper with the code of a checkout.

    Raises
    ------
    ConfigurationError
        If the folder is no checkout of the paper's repository.
    """
    paper = PAPERS[name]
    checkout = checkout_of(folder, python, paper.files, paper.repository)
    return Suite(
        f"originals-{name}",
        f"The code of {paper.repository} beside ours: same data, same budget.",
        Task,
        MEASURES,
        paper.tasks,
        partial(paper.measure, checkout=checkout),
        tables_of,
        datasets=paper.datasets,
        runs=paper.runs,
        settings={"code": checkout.digest()},
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison of a paper's code from the command line."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("paper", choices=sorted(PAPERS))
    first.add_argument(
        "--reference", type=Path, required=True, help="checkout of the paper's code"
    )
    first.add_argument(
        "--python", default="python", help="interpreter with the code's packages"
    )
    given, left = first.parse_known_args(arguments)
    script.main(suite_of(given.paper, given.reference, given.python), left)


if __name__ == "__main__":
    # Other processes find functions by a module's name.
    from originals import main as of_module

    of_module()
