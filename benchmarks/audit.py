"""An empirical audit of privacy: attacks on every private strategy, and on planted bugs.

    python benchmarks/audit.py --runs 5000 --jobs 2 --output build/audit

Every line is a membership attack on a cell of ``audit_cells.py``: of every run its adversary sees
the whole transcript, and guesses whether the target was there. Counted guesses give a lower bound
on mu with a confidence (``flower_kmeans/privacy/audit.py``), and at the plan's delta on epsilon,
which must stay below the claim. The planted bugs of ``audit_bugs.py`` must exceed it; the code as
it is, attacked in the same way, must not. docs/audit.md says who attacks, and what this can show.

Written to ``--output``: a file in ``lines`` for each line, from which the same command goes on;
cells.csv, bugs.csv, tables.md (also printed), ratio.png and ratio.svg. Ends with status 1 if a line
is not as it must be: also one whose neighbours attain too little of the plan's cost.
"""

import argparse
import csv
import itertools
import json
import logging
import math
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audit_bugs import Bug, bugs
from audit_cells import SEES, Cell, cells
from audit_measure import BELOW, LEAST_ATTAINED, Effort, Line, measure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

WANTED, WANTED_EPSILON = 0.85, 4.0
"""What Gaussian cells must reach of their claim at this epsilon, with 5,000 runs."""


@dataclass(frozen=True)
class Task:
    """A line to be measured: a cell, or the attack on a bug where it is planted or where it is not.

    Attributes
    ----------
    cell : Cell
    bug : str
        Its name; empty for a cell.
    planted : bool
    """

    cell: Cell
    bug: str = ""
    planted: bool = False

    @property
    def name(self) -> str:
        """A name for files."""
        if not self.bug:
            return self.cell.name
        state = "planted" if self.planted else "absent"
        return "bug_" + "".join(c if c.isalnum() else "-" for c in self.bug) + f"_{state}"


def tasks_of(epsilons: Sequence[float]) -> list[Task]:
    """Return all lines."""
    found = [Task(cell) for cell in cells(tuple(epsilons))]
    states = (True, False)
    return found + [Task(bug.cell, bug.name, state) for bug in bugs() for state in states]


def measured(task: Task, effort: Effort) -> Line:
    """Return the line of a task."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if not task.bug:
        return measure(task.cell, effort)
    bug = _bug(task.bug)
    return measure(
        task.cell,
        effort,
        score=bug.score,
        threshold=bug.threshold,
        patch=bug.patch if task.planted else nullcontext,
        at_once=bug.at_once,
    )


def _bug(name: str) -> Bug:
    return next(bug for bug in bugs() if bug.name == name)


# --------------------------------------------------------------------------- going on


def read_line(path: Path, effort: Effort) -> Line | None:
    """Return a line that was measured before with the same effort."""
    if not path.exists():
        return None
    stored: dict[str, Any] = json.loads(path.read_text())
    if stored["effort"] != asdict(effort):
        return None
    return Line(**stored["line"])


def write_line(path: Path, effort: Effort, line: Line) -> None:
    """Write a line at once, so that a file is whole or not there."""
    partial_path = path.with_suffix(".part")
    partial_path.write_text(json.dumps({"effort": asdict(effort), "line": asdict(line)}, indent=1))
    partial_path.replace(path)


def complete(tasks: Sequence[Task], effort: Effort, folder: Path, jobs: int) -> dict[Task, Line]:
    """Measure what has not been measured, and show how far that is."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {task: folder / f"{task.name}.json" for task in tasks}
    stored = {task: read_line(path, effort) for task, path in paths.items()}
    found = {task: line for task, line in stored.items() if line is not None}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn()) as progress:
        bar = progress.add_task("lines", total=len(tasks), completed=len(found))
        for task, line in _measured_by(jobs, [task for task in tasks if task not in found], effort):
            found[task] = line
            write_line(paths[task], effort, line)
            progress.update(bar, advance=1, description=task.name)
    return {task: found[task] for task in tasks}


def _measured_by(jobs: int, tasks: Sequence[Task], effort: Effort) -> Iterable[tuple[Task, Line]]:
    if jobs == 1:
        for task in tasks:
            yield task, measured(task, effort)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawning) as pool:
        waiting = {pool.submit(measured, task, effort): task for task in tasks}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


# --------------------------------------------------------------------------- what is written


def caught(line: Line) -> bool:
    """Return whether a planted bug was found."""
    return line.epsilon_bound > line.claimed_epsilon


def failures(found: dict[Task, Line]) -> list[str]:
    """Return the lines that are not as they must be."""
    wrong = []
    for task, line in found.items():
        if task.planted:
            if not caught(line):
                wrong.append(f"{task.name}: not caught")
        elif line.verdict != BELOW:
            wrong.append(f"{task.name}: {line.verdict}")
        elif line.attained < LEAST_ATTAINED:
            wrong.append(f"{task.name}: the neighbours attain {line.attained:.2f} of the cost")
    return wrong


def _rounded(value: float, digits: int = 3) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], n_texts: int) -> str:
    align = "|" + "---|" * n_texts + "--:|" * (len(head) - n_texts)
    lines = ["| " + " | ".join(head) + " |", align]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def cell_table(found: dict[Task, Line]) -> str:
    """Return the table of cells in markdown, with who attacks below it."""
    head = ("strategy", "trust", "unit", "ε", "claimed μ", "claimed ε", "whole runs", "repetitions")
    head = (*head, "TPR", "FPR", "μ ≥", "ε ≥", "of the claim", "verdict")
    rows = [
        (
            line.strategy + (f" ({line.variant})" if line.variant else ""),
            line.trust,
            line.unit,
            f"{line.epsilon:g}",
            _rounded(line.mu),
            _rounded(line.claimed_epsilon, 2),
            f"{line.recorded}",
            f"{line.repetitions}",
            _rounded(line.tpr, 4),
            _rounded(line.fpr, 4),
            _rounded(line.mu_bound),
            _rounded(line.epsilon_bound, 2),
            _rounded(line.ratio, 2),
            line.verdict,
        )
        for task, line in found.items()
        if not task.bug
    ]
    who = "\n".join(f"- {name}: {adversary}." for name, adversary in SEES.items())
    return _table(head, rows, 3) + "\n\nAdversaries:\n\n" + who


def bug_table(found: dict[Task, Line]) -> str:
    """Return the table of planted bugs in markdown."""
    head = ("bug", "what it does", "planted in", "guess", "claimed ε", "ε ≥, planted")
    head = (*head, "whole runs guessed", "verdict", "ε ≥, code as it is", "verdict")
    rows = []
    for bug in bugs():
        planted, absent = (found[Task(bug.cell, bug.name, state)] for state in (True, False))
        cell = bug.cell
        place = f"{cell.strategy}, {cell.trust}, {cell.unit}"
        rows.append(
            (
                bug.name,
                bug.what,
                place,
                bug.guess,
                _rounded(planted.claimed_epsilon, 2),
                _rounded(planted.epsilon_bound, 2),
                f"{planted.recorded_right} of {planted.recorded}",
                "caught" if caught(planted) else "MISSED",
                _rounded(absent.epsilon_bound, 2),
                absent.verdict,
            )
        )
    return _table(head, rows, 4)


def summary(found: dict[Task, Line]) -> str:
    """Return the range of the Gaussian cells' ratios, by epsilon."""
    lines = []
    for epsilon in sorted({task.cell.epsilon for task in found if not task.bug}, reverse=True):
        ratios = [
            line.ratio
            for task, line in found.items()
            if not task.bug and task.cell.epsilon == epsilon and not math.isnan(line.mu)
        ]
        lines.append(
            f"Gaussian cells at epsilon {epsilon:g}: {len(ratios)}, of the claim "
            f"{min(ratios):.3f} to {max(ratios):.3f}; below {WANTED:g}: "
            f"{sum(ratio < WANTED for ratio in ratios)}."
        )
    return "\n".join(lines)


def write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows with the same fields."""
    listed = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)


def draw(found: dict[Task, Line], folder: Path) -> None:
    """Draw the part of the claim that every cell's bound reaches."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "audit"
    shown = [(task.cell, line) for task, line in found.items() if not task.bug]
    names = list(dict.fromkeys((c.strategy, c.trust, c.unit, c.variant) for c, _ in shown))
    figure, axes = plt.subplots(figsize=(7.5, 0.22 * len(names) + 1.2), layout="constrained")
    epsilons = sorted({cell.epsilon for cell, _ in shown})
    for epsilon, marker in zip(epsilons, itertools.cycle("so^v"), strict=False):
        here = [(cell, line) for cell, line in shown if cell.epsilon == epsilon]
        places = [names.index((c.strategy, c.trust, c.unit, c.variant)) for c, _ in here]
        axes.plot(
            [line.ratio for _, line in here], places, marker, ms=4, label=f"epsilon {epsilon:g}"
        )
    axes.axvline(1.0, color="black", lw=1)
    axes.axvline(WANTED, color="grey", lw=1, ls=":")
    axes.set_yticks(range(len(names)), [" ".join(filter(None, name)) for name in names], fontsize=7)
    axes.set_xlim(0, 1.05)
    axes.invert_yaxis()
    axes.set_xlabel("lower bound on epsilon over the claimed epsilon")
    axes.legend(fontsize=7, loc="lower left")
    for kind in ("png", "svg"):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(folder / f"ratio.{kind}", dpi=150, metadata=metadata)
    plt.close(figure)


def write(found: dict[Task, Line], folder: Path) -> str:
    """Write tables and pictures, and return what is to be printed."""
    write_csv(folder / "cells.csv", (asdict(line) for task, line in found.items() if not task.bug))
    text = cell_table(found) + "\n\n" + summary(found) + "\n"
    planted = {task: line for task, line in found.items() if task.bug}
    if planted:
        rows = (
            {"bug": task.bug, "planted": task.planted, "caught": caught(line), **asdict(line)}
            for task, line in planted.items()
        )
        write_csv(folder / "bugs.csv", rows)
        text += "\n" + bug_table(found) + "\n"
    (folder / "tables.md").write_text(text)
    draw(found, folder)
    return text


def main() -> int:
    """Run everything that was asked for, and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5_000, help="repetitions of a line")
    parser.add_argument("--recorded", type=int, default=5, help="whole runs of each neighbour")
    parser.add_argument("--confidence", type=float, default=0.95, help="of every bound")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[4.0])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, default=Path("build/audit"))
    options = parser.parse_args()

    effort = Effort(options.runs, options.recorded, options.confidence)
    tasks = tasks_of(options.epsilons)
    found = complete(tasks, effort, options.output / "lines", options.jobs)
    print("\n" + write(found, options.output))
    wrong = failures(found)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
