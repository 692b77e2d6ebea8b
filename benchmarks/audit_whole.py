"""A membership attack on whole runs of every algorithm and unit of privacy.

    python benchmarks/audit_whole.py --runs 200 --output build/audit-whole

Every counted guess is of a complete run through ``simulate``, with the target or
without. The score is the exact log-likelihood ratio of the adversary's whole view, with
the queries that this run asked. So rounds that follow from earlier noise are attacked,
and all code between a record and a message. ``audit.py`` counts repetitions of answers
and noise, of which it has far more.

``--runs`` are the whole runs of each side. The command ends with status 1 if a line is
not as it must be.
"""

import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, get_type_hints
from unittest import mock

import numpy as np
from audit import Task, caught, failures, label_of, task_of
from audit_bounds import mu_lower_bound
from audit_bugs import BUGS, Bug, Context
from audit_cells import DELTA, RECORDS_ALONE, Cell
from audit_measure import Line, attack_whole

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans.algorithms import answers
from flower_kmeans.algorithms.base import Algorithm
from flower_kmeans.algorithms.state import Query
from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.privacy.calibration import epsilon_of_mu
from flower_kmeans.protocol import records

TRUSTS = {
    "FastLloyd": "oblivious-server",
    "GLloyd": "clients-only",
    "SuLloyd": "oblivious-server",
    "ConstrainedLloyd": "trusted-server",
    "FedDPKMeans": "distributed-noise",
    "PEMeans": "trusted-server",
    "HDPEMeans": "trusted-server",
    "SynopsisKMeans": "distributed-noise",
}
"""The trust model of each strategy's whole runs."""
UNITS = ("record", "client", "person")
RUNS = 200


def _edge_twice() -> Context:
    """From round 2 on, the client's code counts a record at the edge of the box twice."""

    def counting(algorithm: Algorithm, query: Query, rows: FloatArray) -> IntArray:
        total = answers.words_of_rows(algorithm, query, rows)
        at_edge = rows[(np.abs(rows) == 1.0).any(axis=1)]
        if query.round == 1 or not len(at_edge):
            return total
        return total + answers.words_of_rows(algorithm, query, at_edge)

    return mock.patch.object(records, "words_of_rows", counting)


_EDGE = Bug(
    "edge counted twice",
    "from round 2 on, the client's code counts a record at the edge of the box twice",
    Cell("GLloyd", "trusted-server"),
    _edge_twice,
)
PLANTED = {bug.name: bug for bug in (BUGS["noise halved"], _EDGE)}
"""Bugs that whole runs must find. The repetitions of ``audit.py`` do not call the second."""


def cells(epsilons: Sequence[float] = (4.0,)) -> list[Cell]:
    """Return each strategy under one trust model, for every unit that it protects."""
    return [
        Cell(strategy, trust, unit, epsilon)
        for epsilon in epsilons
        for unit in UNITS
        for strategy, trust in TRUSTS.items()
        if unit == "record" or strategy not in RECORDS_ALONE
    ]


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield all lines: cells, and then each bug, planted and not."""
    for cell in cells(options.chosen("epsilon", (4.0,), float)):
        yield task_of(cell, options.runs)
    for bug in PLANTED.values():
        for planted in (True, False):
            yield task_of(bug.cell, options.runs, bug.name, planted)


def measure(task: Task, options: Options) -> Mapping[str, Any]:
    """Return the results of an attack on whole runs."""
    logging.disable(logging.WARNING)
    return asdict(line_of(task))


def line_of(task: Task) -> Line:
    """Return the line of a task, after its whole runs."""
    patch = PLANTED[task.bug].patch if task.planted else nullcontext
    return attack_whole(task.cell, task.repetitions, patch=patch)


def table(rows: Sequence[Row]) -> str:
    """Return the table in markdown, with a line for every attack."""
    head = ("strategy", "trust", "unit", "ε", "bug", "whole runs of each side")
    head = (*head, "TPR", "FPR", "claimed ε", "ε ≥", "cost attained", "s a run")
    lines = []
    for row in rows:
        bug = f"{row['bug']}, {'planted' if row['planted'] else 'not planted'}"
        verdict = row["verdict"]
        if row["planted"]:
            verdict = "caught" if caught(row) else "MISSED"
        lines.append(
            (
                *label_of(row),
                f"{row['epsilon']:g}",
                bug if row["bug"] else "",
                str(row["repetitions"]),
                f"{row['tpr']:.3f}",
                f"{row['fpr']:.3f}",
                f"{row['claimed_epsilon']:.2f}",
                f"{row['epsilon_bound']:.2f}",
                f"{row['attained']:.2f}",
                f"{row['seconds'] / row['recorded']:.2f}",
                verdict,
            )
        )
    return tables.markdown((*head, "verdict"), lines, (0, 1, 2, 4, 12))


def together(rows: Sequence[Row]) -> str:
    """Return the bound that all whole runs with Gaussian noise give together, by epsilon.

    Mean rates of mu-GDP runs are below the same curve, which is concave. Counts of runs
    with different rates spread less than those of equal rates (Hoeffding 1956).
    """
    found = []
    for epsilon in sorted({row["epsilon"] for row in rows}, reverse=True):
        here = [
            row
            for row in rows
            if row["epsilon"] == epsilon and not (row["bug"] or math.isnan(row["mu"]))
        ]
        if len({round(row["mu"], 9) for row in here}) != 1:
            continue
        n = sum(row["repetitions"] for row in here)
        true = round(sum(row["tpr"] * row["repetitions"] for row in here))
        false = round(sum(row["fpr"] * row["repetitions"] for row in here))
        bound = epsilon_of_mu(mu_lower_bound(true, n, false, n), DELTA)
        found.append(
            f"Epsilon {epsilon:g}: the {n} whole runs of each side with Gaussian noise, "
            f"in {len(here)} lines, give {bound:.2f} together."
        )
    return "\n".join(found)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the table, the bound of all lines, and the lines that are not as they must be."""
    wrong = failures(rows)
    shown = "\n\n".join(filter(None, (table(rows), together(rows))))
    if not wrong:
        return f"{shown}\n\nAll lines are as they must be."
    listed = "\n".join(f"- {each}." for each in wrong)
    return f"{shown}\n\nNot as they must be:\n\n{listed}"


SUITE = Suite(
    "audit-whole",
    "Membership attacks on whole runs of every private strategy, for records, clients and persons, "
    "and with planted bugs. Every guess is of a complete run, by the exact likelihood ratio of all "
    "that the adversary sees. TPR and FPR are those of whole runs, and the bound on epsilon holds "
    "with 95% confidence. It must stay below its claim, and with a bug exceed it.",
    Task,
    get_type_hints(Line),
    tasks_of,
    measure,
    tables_of,
    {},
    runs=RUNS,
)


def main() -> None:
    """Run everything that was asked for, and write it down."""
    outcome = script.run(SUITE, script.parser_of(SUITE).parse_args())
    wrong = failures(outcome.rows)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
