"""A bar with the time left of a run, in a terminal or in a notebook."""

import logging
import math
import sys
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from flower_kmeans.parameters import require_type
from flower_kmeans.strategies import RoundInfo


class ProgressBar:
    """A bar of a run's rounds with the time left, for ``on_round`` of `simulate` or a strategy.

    It is drawn in a terminal below Flower's log, and in a notebook with ipywidgets
    above the log. It disappears at the end of ``with``, even after an error, and may
    then be used again.

    Parameters
    ----------
    console : rich.console.Console, optional
        The console that shows the bar. Default: the standard output.
    clock : callable, optional
        Returns the time in seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from flower_kmeans import Box, PrivacyBudget, ProgressBar, simulate
    >>> from flower_kmeans.strategies import FastLloyd
    >>> records = np.random.default_rng(0).random((300, 2))
    >>> strategy = FastLloyd(2, Box([0, 0], [1, 1]), PrivacyBudget(1.0), n_records=300)
    >>> with ProgressBar() as bar:
    ...     clustering = simulate(strategy, np.array_split(records, 5), on_round=bar)
    """

    def __init__(
        self, console: Console | None = None, *, clock: Callable[[], float] = monotonic
    ) -> None:
        require_type("console", console, Console | None, "a rich.console.Console")
        columns = (TextColumn("{task.description}"), BarColumn(), _TimeLeft())
        # It is transient, because a full bar adds nothing to the result.
        self._progress = Progress(
            *columns, console=console, transient=True, get_time=clock
        )
        # Rounds outside ``with`` are counted here, and not drawn.
        self._task = self._progress.add_task("")
        self._handlers: list[logging.StreamHandler[Any]] = []

    def __enter__(self) -> Self:
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        # Without a total the bar pulses: the time until clients appear is unknown.
        self._task = self._progress.add_task("starting the clients", total=None)
        before = sys.stderr
        # Elsewhere rich would print an empty line at the end.
        shown = self._progress.console
        if shown.is_interactive or shown.is_jupyter:
            self._progress.start()
        # In a terminal rich prints the log above the bar, if the log's handlers use
        # rich's stream. A notebook needs no change.
        for handler in () if shown.is_jupyter else logging.getLogger("flwr").handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(sys.stderr)
                self._handlers.append(handler)
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()
        while self._handlers:
            self._handlers.pop().setStream(sys.stderr)

    def __call__(self, info: RoundInfo) -> None:
        """Show the end of a round."""
        is_last = info.round == info.n_rounds
        self._progress.update(
            self._task,
            description="delivering"
            if is_last
            else f"round {info.round + 1} of {info.n_rounds}",
            total=info.n_rounds,
            completed=info.round,
            ends=self._progress.get_time() + info.seconds_left,
        )
        self._progress.refresh()


class _TimeLeft(ProgressColumn):
    """The time until the estimated end. It also falls between rounds."""

    # rich's own column loses the speed if a round takes longer than half a minute.

    def render(self, task: Task) -> Text:
        """Return the time left, or a dash before the first round is over."""
        ends = task.fields.get("ends")
        if ends is None:
            return Text("time left: -")
        seconds = max(0, math.ceil(ends - task.get_time()))
        return Text(f"time left: about {timedelta(seconds=seconds)}")
