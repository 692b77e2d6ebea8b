"""Runs a suite's tasks: each once, in several processes, and on from wherever it was stopped."""

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from flower_kmeans.bench import rows
from flower_kmeans.bench.harness import Options, Plan, Row, Suite, parsed_only
from flower_kmeans.errors import ConfigurationError, RunError

Measured = Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """A task that ended in an error; it is tried again by the next command."""

    task: Any
    error: str


@dataclass(frozen=True)
class Outcome:
    """What a command did, and all rows that there are.

    Attributes
    ----------
    rows : list of dict
        Those that the options admit: in the order of the tasks, then what else the file holds.
    n_done : int
        How many of them are new.
    n_left : int
        How many tasks were not done, because time was up.
    failures : tuple of Failure
    """

    rows: list[Row]
    n_done: int = 0
    n_left: int = 0
    failures: tuple[Failure, ...] = ()


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(
    suite: Suite,
    plan: Plan,
    path: Path,
    *,
    jobs: int | None = None,
    minutes: float = math.inf,
    console: Console | None = None,
) -> Outcome:
    """Do what a file does not hold yet, and add each run to it as soon as it is done.

    Parameters
    ----------
    suite : Suite
    plan : Plan
        Of `plan_of`.
    path : Path
        The csv file, in an existing directory.
    jobs : int, optional
        Processes; by default one per core, or a single one if the suite measures time.
    minutes : float
        No task is begun after so many.
    console : rich.console.Console, optional
        For progress.

    Raises
    ------
    ConfigurationError
        If ``jobs`` is not positive.
    DataError
        If the file is none of the suite's.
    RunError
        If a process was killed; what was done is in the file.
    """
    if jobs is None:
        jobs = 1 if suite.alone else available_cores()
    if jobs < 1:
        raise ConfigurationError(f"Expected jobs >= 1. Got {jobs} instead.")
    known = rows.read(suite, path)
    left = [task for task in plan.tasks if task not in known]
    failures: list[Failure] = []
    n_tried = 0
    with _progress(suite, len(plan.tasks), len(left), console) as advance:
        for task, result in _results(suite, plan.options, left, jobs, minutes):
            n_tried += 1
            if isinstance(result, Exception):
                failures.append(Failure(task, f"{type(result).__name__}: {result}"))
            else:
                known[task] = rows.append(suite, path, task, result)
            advance()
    return Outcome(
        admitted(suite, plan, known),
        n_tried - len(failures),
        len(left) - n_tried,
        tuple(failures),
    )


def admitted(suite: Suite, plan: Plan, known: Mapping[Any, Row]) -> list[Row]:
    """Return the rows that the options admit, those of the plan's tasks first and in its order.

    Rows of more repetitions than asked for belong to them. So do those of data sets that are not
    there any more, unless others were asked for: a finished file can be shown without its data.
    """
    wanted = parsed_only(suite, plan.options)
    if plan.named:
        wanted["data"] = plan.named
    order = {task: number for number, task in enumerate(plan.tasks)}
    found = [
        (order.get(task, len(order)), row)
        for task, row in known.items()
        if all(row[column] in values for column, values in wanted.items())
    ]
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _results(
    suite: Suite, options: Options, tasks: Sequence[Any], jobs: int, minutes: float
) -> Iterator[tuple[Any, Measured | Exception]]:
    """Yield what tasks gave, or the error that ended them, as they come."""
    until = time.monotonic() + 60 * minutes
    threads = max(1, available_cores() // jobs)
    measure = partial(_in_fresh_process, suite.measure, threads) if suite.fresh else suite.measure
    if jobs == 1 or len(tasks) < 2:
        _quiet()
        for task in tasks:
            if time.monotonic() >= until:
                return
            try:
                yield task, measure(task, options)
            except Exception as error:
                yield task, error
        return
    context = get_context("spawn")  # Flower's threads survive no fork
    pool = ProcessPoolExecutor(jobs, context, _prepare, (threads,))
    try:
        queue, running = iter(tasks), dict[Future[Measured], Any]()
        while True:
            while len(running) < 2 * jobs and time.monotonic() < until:
                task = next(queue, None)
                if task is None:
                    break
                try:
                    running[pool.submit(measure, task, options)] = task
                except BrokenProcessPool:
                    raise _ended_by_itself(task) from None
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(future)
                try:
                    yield task, future.result()
                except BrokenProcessPool:
                    raise _ended_by_itself(task) from None
                except Exception as failure:
                    yield task, failure
    finally:
        pool.shutdown(cancel_futures=True)


def _in_fresh_process(
    measure: Callable[[Any, Options], Measured], threads: int, task: Any, options: Options
) -> Measured:
    """Measure a task in a process that is made for it."""
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (threads,)) as pool:
        try:
            return pool.submit(measure, task, options).result()
        except BrokenProcessPool:  # this one, not the pool that this may run in
            raise _ended_by_itself(task) from None


def _ended_by_itself(task: Any) -> RunError:
    return RunError(
        "A process that did a task ended by itself, maybe for want of memory: try fewer --jobs. "
        f"It had {task} or a task beside it."
    )


def _prepare(threads: int) -> None:
    """Make a new process ready: no more threads than its share of cores, and an end by Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _quiet()
    threadpool_limits(threads)


def _quiet() -> None:
    """Keep Flower's log of every round from the output; flwr sets its level whenever it loads."""
    logging.getLogger("flwr").addFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


class _progress:  # noqa: N801 - used as a function
    """Shows how many tasks are done, and when the rest will be.

    A bar on a terminal; elsewhere, as in a log, a line for each tenth.
    """

    def __init__(self, suite: Suite, n_tasks: int, n_left: int, console: Console | None) -> None:
        self.done, self.total, self.console = n_tasks - n_left, n_tasks, console
        self.bar: Progress | None = None
        if console is not None and console.is_terminal and n_left:
            self.bar = Progress(
                TextColumn(suite.name),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(elapsed_when_finished=False),
                console=console,
            )
            self.number = self.bar.add_task(suite.name, total=n_tasks, completed=self.done)

    def __enter__(self) -> Callable[[], None]:
        if self.bar is not None:
            self.bar.start()
        return self.advance

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self) -> None:
        """Count one more."""
        self.done += 1
        if self.bar is not None:
            self.bar.advance(self.number)
        elif self.console is not None:
            tenth = 10 * self.done // self.total
            if tenth != 10 * (self.done - 1) // self.total:
                self.console.print(f"{self.done} of {self.total} runs")
