"""Compares rules for the least weight of a server point of FedDP-KMeans.

    python benchmarks/feddp_weights.py --data-dir DIR --output build/feddp-weights

A server point whose noisy weight is below ``min_weight`` is dropped. Rules that differ
from 5 follow the noise of a weight: one, two or three of its standard deviations, the
default, and the cut that PE-means makes for votes (the heaviest points until their
weights exceed the number of records, or the sum of all noisy weights).

The rules are compared on `TUNED` with seeds from 0 on. The default and 5 are then
compared on `OTHERS` with seeds from 1000 on. Runs of one data set, setting, epsilon and
seed differ in the rule alone: the noise of all rounds is the same. It follows from the
seed, which a real run must not do.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from quick import SERVER_EACH, SERVER_UNIFORM, Case, case_of

from bench import lost_gain, script, tables
from bench.harness import Options, Row, Suite, seed_of
from bench.yardsticks import Yardsticks
from flower_kmeans.algorithms.answers import answer_of
from flower_kmeans.algorithms.feddp import FedDPAlgorithm
from flower_kmeans.algorithms.feddp_stage import WEIGHTS
from flower_kmeans.algorithms.layout import COUNTS, Statistic
from flower_kmeans.algorithms.numerics import grid_kmeans
from flower_kmeans.algorithms.numerics.initialization import public_generator
from flower_kmeans.algorithms.numerics.postprocess import scaled, zero_small
from flower_kmeans.algorithms.state import Query, State
from flower_kmeans.arrays import IntArray
from flower_kmeans.data.domain import Box, GridRecords
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.randomness import Stream
from flower_kmeans.protocol.noise import server_noise

_all_steps = grid_kmeans._steps

PAPER, DEFAULT, VOTES, TOTAL = "5", "default", "votes", "votes, noisy total"
DEVIATIONS = {"1 deviation": 1.0, "2 deviations": 2.0, "3 deviations": 3.0}
TUNING_RULES = (PAPER, *DEVIATIONS, VOTES, TOTAL)
RULES = (*TUNING_RULES, DEFAULT)

TUNED = ("separated_5_2_21", "g2_32_50", "blobs_16_16", "uneven_8_8", "synth_8_4_1")
OTHERS = (
    "adult",
    "separated_8_8_34",
    "s1",
    "blobs_4_16",
    "uneven_16_4",
    "synth_16_8_2",
)
FIRST_SEED = 1000
"""First seed of the runs on `OTHERS`."""
SPECIAL = {"adult": (0.93,)}
"""Further budgets of single data sets, with the bounds of the records and with wide ones."""
SMALLEST = 1e-6
"""The least ``min_weight``."""
QUICK_RUNS = 2
N_CLIENTS = 200
"""Clients that are protected as a whole."""


class Setting(NamedTuple):
    """The protection of a run, and the points that the server owns.

    These are ``n_each`` records of each cluster, and uniform points of a domain that is
    ``width`` times as wide as the range of the records.
    """

    epsilons: tuple[float | None, ...]
    unit: str = "record"
    mechanisms: str = "gaussian"
    n_each: int = SERVER_EACH
    width: float = 1.0


RECORDS, WIDE = "records", "wide bounds"
SETTINGS = {
    RECORDS: Setting((0.25, 0.5, 1.0, 4.0)),
    "Laplace": Setting((0.5, 2.0), mechanisms="laplace"),
    "many points": Setting((0.5, 2.0), n_each=10 * SERVER_EACH),
    WIDE: Setting((0.5, 2.0), width=3.0),
    "clients": Setting((1.0, 4.0), unit="client"),
    "plain": Setting((None,)),
}
FEW_RUNS = 4
"""Most runs of settings other than the first."""


@dataclass(frozen=True)
class Task:
    """One run under one rule."""

    data: str
    setting: str
    epsilon: float | None
    run: int
    rule: str


class Voted(NamedTuple):
    """A run after the server's points were weighed, before any rule was applied."""

    algorithm: FedDPAlgorithm
    options: Mapping[str, Any]
    parts: tuple[GridRecords, ...]
    noise: Mapping[int, IntArray]
    state: State
    answer: Statistic


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield every run, all first runs before any second; rules of a run follow each other."""
    for number in range(options.runs):
        for name in options.data:
            is_tuned = name in TUNED
            run = number if is_tuned else FIRST_SEED + number
            rules = TUNING_RULES if is_tuned else (PAPER, DEFAULT)
            for setting, (epsilons, *_) in SETTINGS.items():
                if setting != RECORDS and number >= FEW_RUNS:
                    continue
                if setting in (RECORDS, WIDE):
                    epsilons = (*epsilons, *SPECIAL.get(name, ()))
                for epsilon in epsilons:
                    for rule in rules:
                        yield Task(name, setting, epsilon, run, rule)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the cost of one run beside k-means', and the number of kept server points."""
    setting = SETTINGS[task.setting]
    case = case_of(task.data, options, setting.n_each)
    voted = voted_of(task.data, task.setting, task.epsilon, task.run, options)
    given = {} if task.rule == DEFAULT else {"min_weight": least_of(task.rule, voted)}
    algorithm = FedDPAlgorithm.planned(**{**voted.options, **given})
    with mock.patch.object(grid_kmeans, "_steps", steps_until_still):
        state = algorithm.update(voted.state, voted.answer)
    for _ in range(WEIGHTS, algorithm.n_rounds):
        answer = noisy_sum(algorithm, algorithm.query(state), voted.parts, voted.noise)
        state = algorithm.update(state, answer)
    kept = np.count_nonzero(
        voted.answer.blocks[COUNTS] >= algorithm.seeding.least_weight
    )
    cost = nicv(case.records, algorithm.centroids(state))
    one = nicv(case.records, case.records.mean(axis=0, keepdims=True))
    costs = Yardsticks(case.best, one)
    return {
        "ratio": costs.ratio(cost),
        "lost": costs.lost_gain(cost),
        "floor": floor_over(task.data, task.setting, task.epsilon, options),
        "kept": int(kept),
        "least": algorithm.min_weight,
    }


@lru_cache(maxsize=16)
def floor_over(
    name: str, setting: str, epsilon: float | None, options: Options
) -> float | None:
    """Return the floor over k-means' cost, or ``None`` where records have no Gaussian noise."""
    _, unit, mechanisms, n_each, _ = SETTINGS[setting]
    if epsilon is None or (unit, mechanisms) != ("record", "gaussian"):
        return None
    case = case_of(name, options, n_each)
    return lost_gain.floor_over(case.best, case.records, case.n_clusters, epsilon)


@lru_cache(maxsize=1)
def voted_of(
    name: str, setting: str, epsilon: float | None, run: int, options: Options
) -> Voted:
    """Return the part of a run that is the same for all rules."""
    _, unit, mechanisms, n_each, width = SETTINGS[setting]
    case = widened(case_of(name, options, n_each), width)
    given = options_of(case, width, unit, mechanisms, epsilon, run)
    algorithm = FedDPAlgorithm.planned(**given)
    seed = seed_of(Task(name, setting, epsilon, run, ""))
    parts = parts_of(case, algorithm, N_CLIENTS if unit == "client" else 1, seed)
    stream = Stream.from_key(np.random.default_rng(seed).bytes(32))
    plan = algorithm.plan()
    noise = {
        number: server_noise(algorithm, plan, number, stream)
        for number in range(1, algorithm.n_rounds + 1)
    }
    state = algorithm.initial_state()
    for _ in range(1, WEIGHTS):
        state = algorithm.update(
            state, noisy_sum(algorithm, algorithm.query(state), parts, noise)
        )
    answer = noisy_sum(algorithm, algorithm.query(state), parts, noise)
    return Voted(algorithm, given, parts, noise, state, answer)


def widened(case: Case, width: float) -> Case:
    """Return a case whose uniform points lie in a domain ``width`` times as wide."""
    points = case.server_data.copy()
    points[-SERVER_UNIFORM:] *= width
    return case._replace(server_data=points)


def options_of(
    case: Case,
    width: float,
    unit: Any,
    mechanisms: str,
    epsilon: float | None,
    run: int,
) -> dict[str, Any]:
    """Return the options of a run's algorithm, with the library's rule."""
    n, d = case.records.shape
    return {
        "n_clusters": case.n_clusters,
        "domain": Box([-width] * d, [width] * d),
        "budget": PrivacyBudget(epsilon, unit=unit),
        "n_records": n,
        "n_clients": N_CLIENTS if unit == "client" else None,
        "mechanisms": mechanisms,
        "server_data": case.server_data,
        "seed": run,
    }


def steps_until_still(
    data: Any, centers: IntArray, n_steps: int
) -> tuple[int, IntArray]:
    """Return the result of Lloyd's steps, without steps that would change nothing.

    The library takes every step, so its time reveals nothing. Here such steps would
    take most of the time.
    """
    cost = 0
    for done in range(n_steps):
        cost, moved = _all_steps(data, centers, 1)
        if np.array_equal(moved, centers) or done == n_steps - 1:
            return cost, moved
        centers = moved
    return _all_steps(data, centers, n_steps)


def parts_of(
    case: Case, algorithm: FedDPAlgorithm, n_parts: int, seed: int
) -> tuple[GridRecords, ...]:
    """Return the records of clients, in random parts of equal size."""
    order = public_generator(seed, 0).permutation(len(case.records))
    parts = np.array_split(case.records[order], n_parts)
    return tuple(
        GridRecords(part, algorithm.domain, algorithm.fraction_bits) for part in parts
    )


def noisy_sum(
    algorithm: FedDPAlgorithm,
    query: Query,
    parts: Sequence[GridRecords],
    noise: Mapping[int, IntArray],
) -> Statistic:
    """Return the sum of all answers to a query, with the noise of its round."""
    number = query.round
    words = noise[number].copy()
    for part in parts:
        words += algorithm.layout(number).flatten(answer_of(algorithm, query, part))
    return algorithm.layout(number).unflatten(words)


def least_of(rule: str, voted: Voted) -> float:
    """Return the ``min_weight`` by which a run follows a rule."""
    q = voted.algorithm.fraction_bits
    if rule == PAPER:
        return 5.0
    if rule in DEVIATIONS:
        noise = voted.algorithm.noise_of(WEIGHTS)[COUNTS] * 2.0**-q
        return max(DEVIATIONS[rule] * noise, SMALLEST)
    weights = scaled(voted.answer.blocks[COUNTS], q)
    n_records = float(voted.options["n_records"])
    total = (
        n_records if rule == VOTES else min(max(float(weights.sum()), 0.0), n_records)
    )
    kept = zero_small(weights, total)
    return float(kept[kept > 0].min(initial=math.inf)) if kept.any() else float(2.0**53)


# --------------------------------------------------------------------------- tables


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the rules on the sets that they were chosen on, and the default on the others."""
    tuned = whole([row for row in rows if row["data"] in TUNED], TUNING_RULES)
    others = whole([row for row in rows if row["data"] not in TUNED], (PAPER, DEFAULT))
    parts = []
    if tuned:
        parts += [
            "Chosen on, as geometric means over data sets:",
            summary(tuned, TUNING_RULES),
        ]
        parts += ["By data set:", table(tuned, TUNING_RULES)]
    if others:
        parts += ["Others:", table(others, (PAPER, DEFAULT), paired=True)]
        parts += [
            "Others, as geometric means over data sets:",
            summary(others, (PAPER, DEFAULT)),
        ]
    return "\n\n".join(parts)


def whole(rows: Sequence[Row], rules: Sequence[str]) -> list[Row]:
    """Return the rows of runs that all rules have made: a mean is over the same runs for each."""
    by = ("data", "setting", "epsilon", "run")
    done = tables.grouped(rows, by, "rule")
    named = [row for row in rows if row["rule"] in rules]
    return [
        row for row in named if {*rules} <= {*done[tuple(row[name] for name in by)]}
    ]


def ratios_of(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return the ratios of each rule, in the order of the runs."""
    return values_of(rows, "ratio")


def values_of(rows: Sequence[Row], column: str) -> dict[str, list[float]]:
    """Return the values of a column of each rule, in the order of the runs."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["rule"], {})[row["run"]] = row[column]
    return {rule: [runs[run] for run in sorted(runs)] for rule, runs in found.items()}


def by_place(
    rows: Sequence[Row], by: Sequence[str]
) -> dict[tuple[Any, ...], list[Row]]:
    """Return rows by some of their columns, in the order of settings, data sets and epsilons."""
    names = tables.unique(row["data"] for row in rows)
    order = list(SETTINGS)
    ordered = sorted(
        rows,
        key=lambda row: (
            order.index(row["setting"]),
            names.index(row["data"]),
            math.inf if row["epsilon"] is None else row["epsilon"],
        ),
    )
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in ordered:
        found.setdefault(tuple(row[column] for column in by), []).append(row)
    return found


def shown_epsilon(epsilon: float | None) -> str:
    """Return a budget as text."""
    return "none" if epsilon is None else f"{epsilon:g}"


def table(rows: Sequence[Row], rules: Sequence[str], *, paired: bool = False) -> str:
    """Return mean ratios with their intervals, and lost gains.

    ``paired`` adds the default's ratios over those of 5.
    """
    head = ["setting", "data", "epsilon", *rules]
    head += ["default over 5"] * paired
    head += map(lost_gain.head, rules)
    lines = []
    for (setting, name, epsilon), found in by_place(
        rows, ("setting", "data", "epsilon")
    ).items():
        ratios = ratios_of(found)
        cells = [tables.cell(ratios[rule]) for rule in rules]
        if paired:
            pairs = zip(ratios[DEFAULT], ratios[PAPER], strict=True)
            cells.append(
                tables.cell([ours / paper for ours, paper in pairs], count=False)
            )
        lost = values_of(found, "lost")
        floor = found[0]["floor"]
        for rule in rules:
            ratio = float(np.mean(ratios[rule]))
            cells.append(lost_gain.text(ratio, float(np.mean(lost[rule])), floor))
        lines.append([setting, name, shown_epsilon(epsilon), *cells])
    return tables.markdown(head, lines, 2)


def summary(rows: Sequence[Row], rules: Sequence[str]) -> str:
    """Return the geometric mean over data sets of a rule's mean ratios, by setting and epsilon."""
    lines = []
    places = by_place(rows, ("setting", "epsilon"))
    for (setting, epsilon), found in sorted(
        places.items(), key=lambda each: list(SETTINGS).index(each[0][0])
    ):
        cells = []
        for rule in rules:
            means = [
                float(np.mean(ratios_of(of_set)[rule]))
                for of_set in by_place(found, ("data",)).values()
            ]
            cells.append(f"{math.exp(float(np.mean(np.log(means)))):.3f}")
        lines.append([setting, shown_epsilon(epsilon), *cells])
    return tables.markdown(["setting", "epsilon", *rules], lines, 1)


SUITE = Suite(
    "feddp-weights",
    "The cost of FedDP-KMeans over that of scikit-learn's KMeans (the best of ten starts) under "
    "rules for the smallest weight of a server point; 1 is as good as without privacy. Means, 95% "
    "intervals and, in brackets, numbers of runs. The server owns 20 records of each cluster, 200 "
    f"under 'many points', and {SERVER_UNIFORM} uniform points of the domain, which is the range "
    "of the records, or three times as wide under 'wide bounds'. Single records are protected, or "
    f"{N_CLIENTS} whole clients, at the default delta; 'plain' has no noise. The rules were "
    f"compared on {', '.join(TUNED)} with seeds from 0 on; the default and 5 are on other sets "
    f"with seeds from {FIRST_SEED} on. The range is read off the records, which a run must not do.",
    Task,
    {
        "ratio": float,
        "lost": float,
        "floor": float | None,
        "kept": int,
        "least": float,
    },
    tasks_of,
    measure,
    tables_of,
    datasets=(*TUNED, *OTHERS),
    choices={"rule": RULES, "setting": tuple(SETTINGS)},
    runs=10,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything that was asked for, and write it down."""
    parser = script.parser_of(SUITE)
    parser.add_argument(
        "--quick", action="store_true", help="two runs that protect records"
    )
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.runs = QUICK_RUNS
        parsed.only_setting = [RECORDS]
    script.run(SUITE, parsed)


if __name__ == "__main__":
    main()
