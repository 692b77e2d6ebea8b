"""The expected result of a plan, and of changes to it: simulated runs before any run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from flower_kmeans.arrays import FloatArray
from flower_kmeans.cli.plot import require_file
from flower_kmeans.cli.preview_records import TIGHTEN, TIGHTENED, RecordSource
from flower_kmeans.data.domain import Domain, squared_norms
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.files import open_private
from flower_kmeans.report.comparison import GOOD, USABLE, Comparison, Verdict
from flower_kmeans.report.comparison import compared as compared_with_kmeans

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flower_kmeans.report.clustering import Clustering
    from flower_kmeans.strategies import KMeansStrategy

RUNS = 9
"""Runs of each change, with other records and other noise, if they are short."""
RUNS_IF_LONG = 5
_MOST_OF_SHORT = 200_000  # numbers in the records of a short run
FACTORS = (0.5, 2.0)
"""Of the planned epsilon, and of the planned number of records."""
LEAST_FALL = 0.02
"""Fall of the lost gain below which no change is advised."""
ENOUGH = 0.8
"""Fraction of the runs that are as good as without privacy, if nothing need change."""
SURE = 0.99
"""Confidence that an advised change helps, for each change alone."""
_MOST_NUMBERS = 5 * 10**7

Varied = Literal["plan", "bounds", "size", "epsilon"]


@dataclass(frozen=True)
class Change:
    """One change of a plan, or the plan itself."""

    axis: Varied
    label: str
    epsilon: float
    size: float  # factor of the planned number of records, persons or clients
    domain: Domain
    bounds: str = "planned"  # on the axis of bounds
    is_offer: bool = False  # whether it may make a run better

    @property
    def subject(self) -> str:
        """What is changed, in a word."""
        if self.axis == "bounds":
            return "the bounds"
        return self.label.split()[0]


Make = Callable[[Change, FloatArray | None], "KMeansStrategy"]
"""Takes a change and the server's points, and returns the strategy."""


class PreviewPlan(NamedTuple):
    """The numbers of a plan, and of its runs."""

    n_records: int
    n_clusters: int
    epsilon: float
    counted: str  # the name of the number of protected units: n_records, n_persons, ...
    planned: int  # this number
    n_runs: int
    n_points: int = 0  # number of the server's points


class Row(NamedTuple):
    """A change, and its comparisons with k-means without privacy, one for each run."""

    change: Change
    runs: tuple[Comparison, ...]

    @property
    def losses(self) -> list[float]:
        """Lost gains of the runs, in their order."""
        return [run.largest_lost_gain for run in self.runs]

    @property
    def middle(self) -> Comparison:
        """The run with the median lost gain, the larger of two."""
        ordered = sorted(self.runs, key=lambda run: run.largest_lost_gain)
        return ordered[len(ordered) // 2]

    @property
    def loss(self) -> str:
        """The median lost gain as text."""
        return _rounded(self.middle.largest_lost_gain)

    def is_better_than(self, other: "Row") -> bool:
        """Return whether it loses less, by `LEAST_FALL` and beyond the spread of the runs.

        The runs are compared by their ranks (Mann and Whitney, one-sided, at the level
        1 - `SURE`), because a single bad run may lose many times the others' loss.
        """
        from scipy.stats import mannwhitneyu

        fall = other.middle.largest_lost_gain - self.middle.largest_lost_gain
        if fall < LEAST_FALL:
            return False
        found = mannwhitneyu(self.losses, other.losses, alternative="less")
        return bool(found.pvalue < 1 - SURE)


def _rounded(loss: float) -> str:
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(loss, 2) + 0.0:.2f}"


def changes_of(plan: PreviewPlan, source: RecordSource) -> list[Change]:
    """Return the plan, and changes of its epsilon, its numbers and its bounds, in order."""
    planned = Change("plan", "as planned", plan.epsilon, 1.0, source.domain)
    found = [planned]
    for factor in FACTORS:
        epsilon = factor * plan.epsilon
        change = replace(
            planned,
            axis="epsilon",
            label=f"epsilon {epsilon:.4g}",
            epsilon=epsilon,
            is_offer=factor > 1,
        )
        found.append(change)
    for factor in FACTORS:
        change = replace(
            planned,
            axis="size",
            label=f"{plan.counted} {round(factor * plan.planned):,}",
            size=factor,
            is_offer=factor > 1,
        )
        found.append(change)
    for other in source.other_bounds():
        change = replace(
            planned,
            axis="bounds",
            label=other.label,
            domain=other.domain,
            bounds=other.tick,
            is_offer=other.is_offer,
        )
        found.append(change)
    return found


# ------------------------------------------------------------------------------ runs


class LeftOut(NamedTuple):
    """A change that the plan's other options do not allow, and why."""

    change: Change
    why: str


def possible(
    changes: Sequence[Change], make: Make, plan: PreviewPlan, n_features: int
) -> tuple[list[Change], list[LeftOut]]:
    """Return the changes that can be simulated, and those that cannot.

    Raises
    ------
    ConfigurationError
        If the plan itself cannot.
    """
    found = []
    left_out = []
    for change in changes:
        try:
            _require_size(_number_of(plan, change), plan, n_features)
            make(change, None)
        except ConfigurationError as error:
            if change.axis == "plan":
                raise
            left_out.append(LeftOut(change, str(error)))
        else:
            found.append(change)
    return found, left_out


def n_runs_of(n_records: int, n_features: int) -> int:
    """Return the number of runs of each change, which long runs have fewer of."""
    if n_records * n_features > _MOST_OF_SHORT:
        return RUNS_IF_LONG
    return RUNS


def _number_of(plan: PreviewPlan, change: Change) -> int:
    return round(plan.n_records * change.size)


def _require_size(n_records: int, plan: PreviewPlan, n_features: int) -> None:
    option = "--n-records"
    if plan.counted == "n_persons":
        option = "--n-persons"
    if n_records <= plan.n_clusters:
        raise ConfigurationError(
            f"Expected {option} above --clusters with --simulate, or k-means costs nothing. "
            f"Got {n_records} and {plan.n_clusters} instead."
        )
    if n_records * n_features > _MOST_NUMBERS:
        raise ConfigurationError(
            f"Expected {option} x columns of at most {_MOST_NUMBERS:,} with --simulate, which "
            f"makes the records. Got {n_records:,} x {n_features:,} instead: take fewer records, "
            "with which the loss is larger."
        )


def compared(
    changes: Sequence[Change],
    make: Make,
    source: RecordSource,
    plan: PreviewPlan,
    seed: int = 0,
) -> Iterator[tuple[Change, Comparison]]:
    """Yield the changes with a comparison, as many times as the plan has runs.

    Changes of one number of records have the same records, in each of the runs.

    Parameters
    ----------
    changes : sequence of Change
    make : callable
        ``make(change, points)`` returns the strategy.
    source : RecordSource
    plan : PreviewPlan
    seed : int
        Seed of the first records. The noise has no seed.
    """
    from flower_kmeans.simulation import simulate

    judged = source.judged
    by_size: dict[float, list[Change]] = {}
    for change in changes:
        by_size.setdefault(change.size, []).append(change)
    for each in range(seed, seed + plan.n_runs):
        for same in by_size.values():
            drawn = source.draw(_number_of(plan, same[0]), plan.n_points, each)
            without_privacy = None
            for change in same:
                strategy = make(change, drawn.points)
                # The records are in random order.
                parts = np.array_split(drawn.records, strategy.n_clients or 1)
                clustering = simulate(strategy, parts)
                squares = _squares(clustering, drawn.records, judged)
                if without_privacy is None:
                    without_privacy = compared_with_kmeans(
                        judged.compared(drawn.records),
                        squares,
                        judged,
                        plan.n_clusters,
                        np.ones(len(squares)),
                        each,
                    )
                yield change, replace(without_privacy, cost=float(squares.sum()))


def _squares(
    clustering: "Clustering", records: FloatArray, judged: Domain
) -> FloatArray:
    """Return squared distances to the clusters' centroids, (n,), in the judged units."""
    labels = clustering.predict(records)
    residuals = judged.compared(records) - clustering.centroids[labels]
    return squared_norms(residuals / judged.unit)


def rows_of(
    changes: Sequence[Change], runs: Iterable[tuple[Change, Comparison]]
) -> list[Row]:
    """Return the changes with all of their comparisons, in order."""
    found: dict[Change, list[Comparison]] = {change: [] for change in changes}
    for change, comparison in runs:
        found[change].append(comparison)
    return [Row(change, tuple(own)) for change, own in found.items()]


# ----------------------------------------------------------------------------- advice


_CHEAPEST_FIRST: tuple[Varied, ...] = ("bounds", "size", "epsilon")
"""Changes by what they cost: nothing, more records, or privacy."""


def advice(rows: Sequence[Row], source: RecordSource) -> str:
    """Return what to change first, from the measured rows, the planned one first."""
    planned = rows[0]
    if source.too_narrow:
        cut = "; ".join(source.too_narrow)
        return (
            f"What to change first: the bounds, which are too narrow. In the sample, {cut}. The "
            "values were moved to the bounds before all costs, so the table does not show what "
            "this loses."
        )
    sentences = [_first(planned, rows)]
    if source.fills:
        sentences += _if_wide(planned, rows)
    return " ".join(sentences)


def _first(planned: Row, rows: Sequence[Row]) -> str:
    begin = "What to change first:"
    n_good = sum(run.verdict == "as good as without privacy" for run in planned.runs)
    n_runs = len(planned.runs)
    if n_good >= ENOUGH * n_runs:
        good = f"as good as without privacy in {n_good} of {n_runs} runs"
        return f"{begin} nothing. The plan is {good}."
    better = [
        row for row in rows if row.change.is_offer and row.is_better_than(planned)
    ]
    if not better:
        return (
            f"{begin} no single one of these. None lowers the lost gain of {planned.loss} clearly "
            "beyond the spread of the runs. Change several, or take fewer clusters or columns."
        )
    best = min(better, key=lambda row: row.middle.largest_lost_gain)
    # Of changes that the runs cannot tell apart, the one that costs least.
    equal = [row for row in better if not best.is_better_than(row)]
    chosen = min(equal, key=lambda row: _CHEAPEST_FIRST.index(row.change.axis))
    text = (
        f"{begin} {chosen.change.subject}. With {chosen.change.label}, the lost gain falls "
        f"from {planned.loss} to {chosen.loss}: {chosen.middle.verdict}."
    )
    others = [f"{row.change.label} ({row.loss})" for row in better if row is not chosen]
    if others:
        text += f" Also better than planned: {', '.join(others)}."
    return text


def _if_wide(planned: Row, rows: Sequence[Row]) -> list[str]:
    """Return what bounds that are too wide would do, for records made up to fill them."""
    of_bounds = [row for row in rows if row.change.axis == "bounds"]
    wide = [row for row in of_bounds if row.change.bounds != TIGHTENED]
    if not wide:
        return []
    widest = wide[-1]
    if not planned.is_better_than(widest):
        return [f"With {widest.change.label} it is not clearly worse."]
    text = (
        f"All this is for records that fill the bounds. With {widest.change.label}, the lost gain "
        f"is {widest.loss}: {widest.middle.verdict}."
    )
    for row in of_bounds:
        if row.change.bounds == TIGHTENED and row.is_better_than(widest):
            text += f" Then --tighten {TIGHTEN} makes it {row.loss}."
    return [text]


# ----------------------------------------------------------------------------- output


def show_preview(
    console: Console,
    make: Make,
    source: RecordSource,
    plan: PreviewPlan,
    seed: int = 0,
    chart: Path | None = None,
) -> None:
    """Print a table of changes and what to change first, and draw it if a file is named.

    Parameters
    ----------
    console : Console
    make, source, plan, seed
        As for `compared`.
    chart : Path, optional
        A new file for a picture. It needs matplotlib.
    """
    if chart is not None:
        require_file("--chart", chart)  # before the runs, which may take long
    all_changes = changes_of(plan, source)
    changes, left_out = possible(all_changes, make, plan, source.domain.n_features)
    runs: Iterable[tuple[Change, Comparison]]
    runs = compared(changes, make, source, plan, seed)
    # A progress bar can only move in a terminal.
    if console.is_interactive:
        total = len(changes) * plan.n_runs
        runs = track(runs, "simulating", total, console=console, transient=True)
    rows = rows_of(changes, runs)

    head = (
        f"Expected result of the plan and of single changes: {plan.n_runs} simulated runs of each. "
        "Lost gain: 0 is as good as k-means without privacy, 1 is no better than one cluster (or "
        "than centroids that saw no record, if these are better). Medians, in brackets the least "
        "and the largest."
    )
    console.print(Text(head), soft_wrap=True)
    console.print(_table(rows))
    for each in left_out:
        text = f"Left out: {each.change.label}. {each.why}"
        console.print(Text(text), soft_wrap=True)
    console.print(Text(_assumptions(source, plan, seed)), soft_wrap=True)
    console.print(Text(advice(rows, source), style="bold"), soft_wrap=True)
    if chart is not None:
        _draw(chart, rows, plan)


def _table(rows: Sequence[Row]) -> Table:
    """Return a table with a row for each change."""
    table = Table("change", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cost / k-means", justify="right")
    table.add_column("lost gain", justify="right")
    table.add_column("verdict")
    for row in rows:
        spread = f"({_rounded(min(row.losses))} to {_rounded(max(row.losses))})"
        table.add_row(
            row.change.label,
            f"{row.middle.ratio:.2f}",
            f"{row.loss} {spread}",
            row.middle.verdict,
        )
    return table


def _assumptions(source: RecordSource, plan: PreviewPlan, seed: int) -> str:
    """Return how the runs were made, in sentences."""
    sentences = [source.text]
    if plan.counted == "n_persons":
        sentences.append("Each person has one record.")
    if plan.counted == "n_clients":
        sentences.append("With other n_clients, each client has as many records.")
    if plan.n_points:
        sentences.append(
            f"The server's {plan.n_points:,} points are made in the same way."
        )
    sentences.append(
        "Records are dealt to the clients at random. The costs of all rows are in the same scaled "
        "units, those of bounds as tight as the records. "
        f"Seeds of the records: {seed} to {seed + plan.n_runs - 1}. The noise has none."
    )
    return " ".join(sentences)


_PANELS: dict[Varied, str] = {
    "epsilon": "epsilon",
    "size": "",  # the name of the number
    "bounds": "bounds, times as wide",
}
_COLOURS: dict[Verdict, str] = {
    "as good as without privacy": "tab:green",
    "usable": "tab:blue",
    "mostly noise": "tab:orange",
    "worse than one cluster": "tab:red",
}
_LIMITS = (-0.05, GOOD, USABLE, 1.0, 1.3)
"""Limits of the lost gain between two verdicts, in the picture."""


def _draw(path: Path, rows: Sequence[Row], plan: PreviewPlan) -> None:
    """Write a picture of the table, a panel for epsilon, N and bounds each."""
    from matplotlib.figure import Figure

    panels = {
        axis: title or plan.counted
        for axis, title in _PANELS.items()
        if any(row.change.axis == axis for row in rows)
    }
    figure = Figure(figsize=(3.6 * len(panels), 3.8), layout="constrained", dpi=120)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for (axis, title), panel in zip(panels.items(), axes, strict=True):
        _draw_panel(panel, axis, rows, plan)
        panel.set_xlabel(title)
    axes[0].set_ylim(_LIMITS[0], _LIMITS[-1])
    axes[0].set_ylabel("lost gain: 0 as k-means,\n1 as one cluster")
    for verdict, color in _COLOURS.items():
        axes[0].plot([], [], "o", color=color, label=verdict)
    axes[0].plot([], [], "^", color="gray", label=f"above {_LIMITS[-1]}")
    figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    with open_private(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())


def _draw_panel(
    panel: "Axes", axis: Varied, rows: Sequence[Row], plan: PreviewPlan
) -> None:
    """Draw each run as a point in the colour of its verdict, and the medians."""
    shown = [row for row in rows if row.change.axis in ("plan", axis)]
    shown.sort(key=lambda row: (row.change.epsilon, row.change.size))
    bands = zip(pairwise(_LIMITS), _COLOURS.values(), strict=True)
    for (low, high), color in bands:
        panel.axhspan(low, high, color=color, alpha=0.1, lw=0)
    most = _LIMITS[-1]
    medians = [min(row.middle.largest_lost_gain, most) for row in shown]
    panel.plot(range(len(shown)), medians, "_", color="black", markersize=24)
    if axis != "bounds":  # which have no order
        panel.plot(range(len(shown)), medians, "-", color="gray", zorder=1)
    for place, row in enumerate(shown):
        for run in row.runs:
            loss = run.largest_lost_gain
            mark = "o" if loss < most else "^"
            color = _COLOURS[run.verdict]
            # A mark at the edge is drawn whole.
            panel.plot(
                [place], [min(loss, most)], mark, color=color, alpha=0.6, clip_on=False
            )
    ticks = [_tick(row.change, axis, plan) for row in shown]
    panel.set_xticks(range(len(shown)), ticks)
    panel.set_xlim(-0.5, len(shown) - 0.5)


def _tick(change: Change, axis: Varied, plan: PreviewPlan) -> str:
    """Return the name of a change on an axis of the picture."""
    if axis == "epsilon":
        return f"{change.epsilon:.4g}"
    if axis == "size":
        return f"{round(change.size * plan.planned):,}"
    return change.bounds
