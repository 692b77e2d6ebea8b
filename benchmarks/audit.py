"""An empirical audit of privacy: attacks on every private strategy, and on planted bugs.

    python benchmarks/audit.py --runs 5000 --jobs 2 --output build/audit

Every line is a membership attack on a cell of ``audit_cells.py``. The adversary sees
the whole transcript of every run, and guesses whether the target was in the data.
Counted guesses give a lower bound on epsilon (``audit_bounds.py``), which must stay
below the claim. With a planted bug of ``audit_bugs.py`` the bound must exceed the
claim. Without the bug the same attack must not exceed it. docs/audit.md describes the
limits of this method.

``--runs`` are the repetitions of each attack, ``--epsilons 4 1`` attacks cells at both.
The command ends with status 1 if a line is not as it must be.
"""

import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from audit_bugs import BUGS
from audit_cells import SEES, Cell, cells
from audit_measure import BELOW, LEAST_ATTAINED, Effort, Line, attack

from bench import script, tables
from bench.harness import Options, Row, Suite
from flower_kmeans.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WANTED, WANTED_EPSILON = 0.85, 4.0
"""Least fraction of the claim that Gaussian cells must reach at this epsilon, with 5,000 runs."""
RUNS = Effort().repetitions
RECORDED, CONFIDENCE = Effort().recorded, Effort().confidence


@dataclass(frozen=True)
class Task:
    """A line to be measured: a cell, or the attack on a bug (``bug`` is not empty) at that cell."""

    strategy: str
    trust: str
    unit: str
    epsilon: float
    variant: str
    bug: str
    planted: bool
    repetitions: int

    @property
    def cell(self) -> Cell:
        """The attacked cell."""
        return Cell(self.strategy, self.trust, self.unit, self.epsilon, self.variant)


def task_of(cell: Cell, repetitions: int, bug: str = "", planted: bool = False) -> Task:
    """Return the attack on a cell, or on a bug there."""
    return Task(**asdict(cell), bug=bug, planted=planted, repetitions=repetitions)


def tasks_of(options: Options) -> Iterator[Task]:
    """Yield all lines: cells, and then each bug, planted and not."""
    for cell in cells(options.chosen("epsilon", (WANTED_EPSILON,), float)):
        yield task_of(cell, options.runs)
    for bug in BUGS.values():
        for planted in (True, False):
            yield task_of(bug.cell, options.runs, bug.name, planted)


def measure(
    task: Task,
    options: Options,
    recorded: int = RECORDED,
    confidence: float = CONFIDENCE,
) -> Mapping[str, Any]:
    """Return the results of an attack."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return asdict(line_of(task, Effort(task.repetitions, recorded, confidence)))


def line_of(task: Task, effort: Effort) -> Line:
    """Return the line of a task, after its attack."""
    if not task.bug:
        return attack(task.cell, effort)
    bug = BUGS[task.bug]
    return attack(
        task.cell,
        effort,
        score=bug.score,
        threshold=bug.threshold,
        patch=bug.patch if task.planted else nullcontext,
        at_once=bug.at_once,
    )


def caught(row: Row) -> bool:
    """Return whether a planted bug was found."""
    return bool(row["epsilon_bound"] > row["claimed_epsilon"])


def failures(rows: Sequence[Row]) -> list[str]:
    """Return the lines that are not as they must be."""
    wrong = []
    for row in rows:
        place = ", ".join(filter(None, (*label_of(row), f"epsilon {row['epsilon']:g}")))
        if row["bug"]:
            state = "planted" if row["planted"] else "not planted"
            place = f"{row['bug']}, {state}, {place}"
        if row["planted"]:
            if not caught(row):
                wrong.append(f"{place}: not caught")
        elif row["verdict"] != BELOW:
            wrong.append(f"{place}: {row['verdict']}")
        elif row["attained"] < LEAST_ATTAINED:
            wrong.append(
                f"{place}: the neighbours attain {row['attained']:.2f} of the cost"
            )
    return wrong


def label_of(row: Row) -> tuple[str, str, str]:
    """Return strategy with variant, trust and unit."""
    variant = f" ({row['variant']})" if row["variant"] else ""
    return row["strategy"] + variant, row["trust"], row["unit"]


def _rounded(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def cell_table(rows: Sequence[Row]) -> str:
    """Return the table of cells in markdown, with who attacks below it."""
    head = (
        "strategy",
        "trust",
        "unit",
        "ε",
        "claimed μ",
        "claimed ε",
        "whole runs",
        "repetitions",
    )
    head = (*head, "TPR", "FPR", "μ ≥", "ε ≥", "of the claim", "verdict")
    numbers = {
        "mu": 3,
        "claimed_epsilon": 2,
        "recorded": 0,
        "repetitions": 0,
        "tpr": 4,
        "fpr": 4,
    }
    numbers |= {"mu_bound": 3, "epsilon_bound": 2, "ratio": 2}
    lines = [
        (
            *label_of(row),
            f"{row['epsilon']:g}",
            *(_rounded(row[name], digits) for name, digits in numbers.items()),
            row["verdict"],
        )
        for row in rows
    ]
    who = "\n".join(f"- {name}: {adversary}." for name, adversary in SEES.items())
    words = (0, 1, 2, len(head) - 1)
    return tables.markdown(head, lines, words) + "\n\nAdversaries:\n\n" + who


def bug_table(rows: Sequence[Row]) -> str:
    """Return the table of planted bugs in markdown. Cells without an attack are empty."""
    head = ("bug", "what it does", "planted in", "guess", "claimed ε", "ε ≥, planted")
    head = (*head, "whole runs guessed", "verdict", "ε ≥, code as it is", "verdict")
    lines: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        bug, bound = BUGS[row["bug"]], _rounded(row["epsilon_bound"], 2)
        place = ", ".join((bug.cell.strategy, bug.cell.trust, bug.cell.unit))
        start = [
            bug.name,
            bug.what,
            place,
            bug.guess,
            _rounded(row["claimed_epsilon"], 2),
        ]
        cells = lines.setdefault((bug.name, row["repetitions"]), [*start, *[""] * 5])
        if row["planted"]:
            right = f"{row['recorded_right']} of {row['recorded']}"
            cells[5:8] = [bound, right, "caught" if caught(row) else "MISSED"]
        else:
            cells[8:] = [bound, row["verdict"]]
    return tables.markdown(head, lines.values(), (0, 1, 2, 3, 7, 9))


def summary(rows: Sequence[Row]) -> str:
    """Return the ranges of the cells' ratios, by epsilon and kind of noise."""
    lines = []
    for epsilon in sorted({row["epsilon"] for row in rows}, reverse=True):
        here = [
            row for row in rows if row["epsilon"] == epsilon and row["claimed_epsilon"]
        ]
        gaussian = [row["ratio"] for row in here if not math.isnan(row["mu"])]
        others = [row["ratio"] for row in here if math.isnan(row["mu"])]
        for kind, ratios in (("all Gaussian", gaussian), ("partly Laplace", others)):
            if ratios:
                lines.append(
                    f"Epsilon {epsilon:g}, noise {kind}: {len(ratios)} lines, of the claim "
                    f"{min(ratios):.3f} to {max(ratios):.3f}; below {WANTED:g}: "
                    f"{sum(ratio < WANTED for ratio in ratios)}."
                )
    least = min(row["attained"] for row in rows)
    lines.append(f"Neighbours attain {least:.3f} of the plan's cost, or more.")
    return "\n".join(lines)


def tables_of(rows: Sequence[Row], options: Options) -> str:
    """Return the tables of cells and of bugs, and the lines that are not as they must be."""
    of_cells = [row for row in rows if not row["bug"]]
    of_bugs = [row for row in rows if row["bug"]]
    parts = [cell_table(of_cells), summary(of_cells)] if of_cells else []
    parts += [bug_table(of_bugs)] if of_bugs else []
    wrong = "\n".join(f"- {each}." for each in failures(rows))
    end = (
        f"Not as they must be:\n\n{wrong}"
        if wrong
        else "All lines are as they must be."
    )
    return "\n\n".join([*parts, end])


def plot(rows: Sequence[Row], options: Options) -> "Figure":
    """Draw the part of the claim that every cell's bound reaches."""
    require("matplotlib", "A plot", "plots")
    from matplotlib.figure import Figure

    shown = [row for row in rows if not row["bug"]]
    names = tables.unique(map(label_of, shown))
    figure = Figure(figsize=(9.0, 0.24 * len(names) + 1.4), layout="constrained")
    axes = figure.subplots()
    for epsilon, marker in zip(
        sorted({row["epsilon"] for row in shown}), "so^v", strict=False
    ):
        here = [row for row in shown if row["epsilon"] == epsilon]
        places = [names.index(label_of(row)) for row in here]
        ratios = [row["ratio"] for row in here]
        axes.plot(ratios, places, marker, ms=4, label=f"epsilon {epsilon:g}")
    axes.axvline(1.0, color="black", lw=1)
    axes.axvline(WANTED, color="grey", lw=1, ls=":")
    axes.set_yticks(range(len(names)), [", ".join(name) for name in names], fontsize=8)
    axes.set_xlim(0, 1.05)
    axes.invert_yaxis()
    axes.set_xlabel("lower bound on epsilon over the claimed epsilon")
    if shown:
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


SUITE = Suite(
    "audit",
    "Membership attacks on every private strategy under every trust model, for records and for "
    "clients, and on each strategy for persons, by adversaries who see a whole transcript; and on "
    "planted bugs. TPR and FPR are those of the repetitions, and bounds on mu and epsilon hold "
    "with the confidence of the column of that name. A bound must stay below its claim, and with "
    "a bug exceed it.",
    Task,
    get_type_hints(Line),
    tasks_of,
    measure,
    tables_of,
    {"audit": plot},
    runs=RUNS,
    settings={"recorded": str(RECORDED), "confidence": str(CONFIDENCE)},
)


def suite_with(recorded: int, confidence: float) -> Suite:
    """Return the suite with other whole runs or confidence, whose rows are kept apart."""
    return replace(
        SUITE,
        measure=partial(measure, recorded=recorded, confidence=confidence),
        settings={"recorded": str(recorded), "confidence": str(confidence)},
    )


def main() -> None:
    """Run everything that was asked for, and write it down."""
    parser = script.parser_of(SUITE)
    parser.add_argument(
        "--recorded", type=int, default=RECORDED, help="whole runs of each side"
    )
    parser.add_argument(
        "--confidence", type=float, default=CONFIDENCE, help="of every bound"
    )
    parsed = parser.parse_args()
    outcome = script.run(suite_with(parsed.recorded, parsed.confidence), parsed)
    wrong = failures(outcome.rows)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
