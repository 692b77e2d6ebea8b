"""Means and intervals of repeated runs, and their tables in markdown."""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from scipy.integrate import trapezoid

from bench.harness import Row
from flower_kmeans.report.curves import Curve, interval, points_of

Curves = Mapping[tuple[Any, ...], Curve]
"""Curves of data sets and methods."""


def shown_half(half: float, mean: float) -> str:
    """Return half an interval as text. Differences by rounding are shown as 0."""
    # Written with "not", so that NaN is shown.
    return f"± {half:.2g}" if not half < 1e-6 * mean else "± 0"


def cell(values: Sequence[float], form: str = ".3f", *, count: bool = True) -> str:
    """Return mean, interval and optionally number of runs as text. It is empty without runs."""
    if not values:
        return ""
    mean, half = interval(values)
    spread = f" {shown_half(half, mean)}" if len(values) > 1 else ""
    return f"{mean:{form}}{spread}" + (f" ({len(values)})" if count else "")


def grouped(
    rows: Iterable[Row], by: Sequence[str], value: str
) -> dict[tuple[Any, ...], list[Any]]:
    """Return the values of a column by the values of other columns, in the rows' order."""
    groups: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row[value])
    return dict(groups)


def curves_of(
    rows: Iterable[Row], value: str, by: Sequence[str] = ("data", "method")
) -> dict[tuple[Any, ...], Curve]:
    """Return a column's values by epsilon and ``run``, for each value of other columns."""
    curves: dict[tuple[Any, ...], Curve] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        curves[tuple(row[name] for name in by)][row["epsilon"]][row["run"]] = row[value]
    return {key: dict(curve) for key, curve in curves.items()}


def areas_of(curve: Curve, grid: Sequence[float]) -> list[float]:
    """Return the area under each complete run, by the trapezoidal rule."""
    points = [curve.get(None if None in curve else place, {}) for place in grid]
    # A run that lacks a point would have the area of a shorter curve.
    whole = sorted(set.intersection(*map(set, points)))
    return [float(trapezoid([point[run] for point in points], grid)) for run in whole]


def panels(curves: Curves) -> dict[str, dict[str, Curve]]:
    """Return curves of data sets and methods by data set, as `draw_lines` takes them."""
    found: dict[str, dict[str, Curve]] = defaultdict(dict)
    for (name, method), curve in curves.items():
        found[name][method] = curve
    return dict(found)


def over_grid(
    rows: Iterable[Row],
    value: str,
    grid: Sequence[Any],
    by: Sequence[str] = ("data", "method"),
    form: str = ".3f",
    *,
    count: bool = True,
) -> str:
    """Return `cell` of a column over epsilons, a line for each of some others, as markdown."""
    lines = [
        [
            *map(str, key),
            *(cell(values, form, count=count) for values in points_of(curve, grid)),
        ]
        for key, curve in curves_of(rows, value, by).items()
    ]
    return markdown([*by, *map("eps {:g}".format, grid)], lines, len(by))


def by_key(
    rows: Iterable[Row],
    by: Mapping[str, str],
    cells: Mapping[str, Callable[[list[Row]], str]],
    words: int | Collection[int] = 1,
) -> str:
    """Return a markdown table with a line for each key, in the order of the rows.

    ``by`` has headings and their columns, which are the key; ``cells`` has headings,
    and functions of the rows of a key. Whole numbers of a key are shown in groups of
    three digits.
    """
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in by.values())].append(row)
    lines = [
        [f"{part:,}" if type(part) is int else str(part) for part in key]
        + [show(found) for show in cells.values()]
        for key, found in groups.items()
    ]
    return markdown([*by, *cells], lines, words)


def unique(values: Iterable[Hashable]) -> list[Any]:
    """Return values without repetitions, in their order."""
    return list(dict.fromkeys(values))


def markdown(
    head: Sequence[str],
    lines: Iterable[Sequence[str]],
    words: int | Collection[int] = 1,
) -> str:
    """Return a markdown table, with characters escaped that would end a cell or line.

    ``words`` are the columns with words instead of numbers: the number of first columns,
    or their indices.
    """
    places = range(words) if isinstance(words, int) else words
    marks = ["---" if place in places else "--:" for place in range(len(head))]
    return "\n".join([_line(head), "|" + "|".join(marks) + "|", *map(_line, lines)])


def _line(cells: Iterable[str]) -> str:
    shown = (" ".join(cell.replace("|", r"\|").splitlines()) for cell in cells)
    return "| " + " | ".join(shown) + " |"
