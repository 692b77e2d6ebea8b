"""Costs of runs beside those of their yardsticks, as tables.

A cell has the cost over that of k-means; in brackets, where the floor is higher than
k-means, the cost over the floor; and behind a semicolon the lost gain. Areas over
epsilon are shown as mean costs over their range.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scipy.integrate import trapezoid

from bench.tables import Curves, areas_of, markdown, panels, unique
from bench.yardsticks import Yardsticks, fewest_records, floors
from flower_kmeans.arrays import FloatArray
from flower_kmeans.metrics import nicv
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.report.curves import points_of

MEANING = (
    "Mean cost over that of k-means; in brackets over the floor, where the floor is higher; "
    "behind the semicolon the lost gain, (cost - k-means) / (one cluster - k-means)."
)
# Starts of k-means.
_STARTS = 30
# A floor that is higher by less is k-means.
_SAME = 5e-4


class Scale(NamedTuple):
    """The yardsticks of a data set, and its floors by epsilon."""

    yardsticks: Yardsticks
    floors: Mapping[float, float]

    def floor_over(self, epsilons: Sequence[float]) -> float:
        """Return the mean floor over a range of epsilon, or the floor at one."""
        return mean_over([self.floors[epsilon] for epsilon in epsilons], epsilons)


def scale_of(
    records: FloatArray, n_clusters: int, delta: float, epsilons: Sequence[float]
) -> Scale:
    """Return yardsticks and floors of records, (n, d), for budgets of one delta.

    k-means is the best of `_STARTS` starts, or what the search of a floor found, if
    this is less.
    """
    bounds = [
        fewest_records(records.shape[1], mu_of_budget(epsilon, delta))
        for epsilon in epsilons
    ]
    # Clusters of any size are those of k-means.
    kmeans, *found = floors(records, n_clusters, [0.0, *bounds], _STARTS)
    one_cluster = nicv(records, records.mean(axis=0, keepdims=True))
    return Scale(
        Yardsticks(kmeans, one_cluster),
        dict(zip(epsilons, found, strict=True)),
    )


def mean_over(values: Sequence[float], grid: Sequence[float]) -> float:
    """Return the mean of values over a grid, by the trapezoidal rule."""
    if len(grid) == 1:
        return float(values[0])
    return float(trapezoid(values, grid)) / (grid[-1] - grid[0])


def shown(cost: float, scale: Scale, floor: float, form: str = ".3f") -> str:
    """Return a cost beside its yardsticks, as a table's cell."""
    over_floor = ""
    if floor > scale.yardsticks.kmeans * (1 + _SAME):
        over_floor = f" ({_number(cost / floor, form)})"
    ratio = _number(scale.yardsticks.ratio(cost), form)
    return f"{ratio}{over_floor}; {_number(scale.yardsticks.lost_gain(cost), '.3f')}"


def _number(value: float, form: str) -> str:
    text = f"{value:{form}}" if value < 9.995 else f"{value:.1f}"
    # No "-0.000".
    return text if float(text) else text.removeprefix("-")


def yardstick_table(scales: Mapping[str, Scale], epsilons: Sequence[float]) -> str:
    """Return the costs of k-means and one cluster, and floors over k-means, as markdown."""
    head = ["data", "k-means", "one cluster"]
    head += [f"floor / k-means, eps {epsilon:g}" for epsilon in epsilons]
    lines = []
    for name, scale in scales.items():
        kmeans = scale.yardsticks.kmeans
        over = [f"{scale.floors[epsilon] / kmeans:.4f}" for epsilon in epsilons]
        one = scale.yardsticks.one_cluster
        lines.append([name, f"{kmeans:.6g}", f"{one:.6g}", *over])
    return markdown(head, lines)


def relative_tables(
    curves: Curves,
    scales: Mapping[str, Scale],
    epsilons: Sequence[float],
    at: Sequence[float],
) -> list[str]:
    """Return texts and tables of areas and costs beside their yardsticks.

    ``epsilons`` are those of areas, ``at`` those of single costs. Data sets without a
    scale have no rows.
    """
    if not scales:
        return []
    return [
        "Yardsticks, not private:",
        yardstick_table(scales, epsilons),
        f"By area. {MEANING}",
        relative_areas(curves, scales, epsilons),
        "The same by epsilon:",
        relative_costs(curves, scales, at),
    ]


def relative_areas(
    curves: Curves, scales: Mapping[str, Scale], epsilons: Sequence[float]
) -> str:
    """Return mean areas beside their yardsticks, a row for each data set, as markdown."""
    methods = unique(method for _, method in curves)
    width = epsilons[-1] - epsilons[0]
    lines = []
    for name, found in panels(curves).items():
        if name in scales:
            floor = scales[name].floor_over(epsilons)
            cells = []
            for method in methods:
                areas = areas_of(found.get(method, {}), epsilons)
                costs = [area / width for area in areas]
                cells.append(_of_costs(costs, scales[name], floor))
            lines.append([name, *cells])
    return markdown(["data", *methods], lines)


def relative_costs(
    curves: Curves, scales: Mapping[str, Scale], epsilons: Sequence[float]
) -> str:
    """Return mean costs beside their yardsticks, by data set, method and epsilon."""
    lines = []
    for (name, method), curve in curves.items():
        if name in scales:
            scale = scales[name]
            points = zip(points_of(curve, epsilons), epsilons, strict=True)
            cells = [
                _of_costs(costs, scale, scale.floors[epsilon])
                for costs, epsilon in points
            ]
            lines.append([name, method, *cells])
    return markdown(["data", "method", *map("eps {:g}".format, epsilons)], lines, 2)


def _of_costs(costs: Iterable[float], scale: Scale, floor: float) -> str:
    found = list(costs)
    if not found:
        return ""
    return shown(sum(found) / len(found), scale, floor)
