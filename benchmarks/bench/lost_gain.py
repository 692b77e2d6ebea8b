"""Lost gain and ratio to the floor, as columns beside ratios to k-means.

A column ``lost gain, NAME`` stands beside the column ``NAME`` of ratios. A cell has the
lost gain, and in brackets the ratio to the floor. Without brackets the floor is k-means
itself, so the ratio to it is the ratio of the other column, or there is no floor.
"""

from collections.abc import Sequence

import numpy as np

from bench import tables
from bench.harness import Row
from bench.yardsticks import fewest_records, floor
from flower_kmeans.arrays import FloatArray
from flower_kmeans.privacy.budget import PrivacyBudget
from flower_kmeans.privacy.calibration import mu_of_budget
from flower_kmeans.report.curves import points_of

MARK = "lost gain, "
# A floor that costs less times k-means is k-means: ratios have three decimals.
_NEAR = 1.0005


def head(name: str) -> str:
    """Return the heading of the column beside a column of ratios."""
    return MARK + name


def text(ratio: float, lost: float, floor: float | None = None) -> str:
    """Return the cell beside a ratio to k-means.

    ``floor`` is that of the cost without privacy over k-means, or ``None`` if there is
    none.
    """
    return gain(lost) + over_floor(ratio, floor)


def whole(ratio: float, lost: float, floor: float | None = None) -> str:
    """Return a cell with the ratio to k-means, that to the floor in brackets, and lost gain."""
    return f"{ratio:.3f}{over_floor(ratio, floor)}; {gain(lost)}"


def gain(lost: float) -> str:
    """Return a lost gain as text."""
    # Adding 0 makes a negative zero positive.
    return f"{round(lost, 3) + 0.0:.3f}"


def over_floor(ratio: float, floor: float | None) -> str:
    """Return the ratio to the floor in brackets, or nothing if the floor is k-means."""
    if floor is None or floor <= _NEAR:
        return ""
    return f" ({ratio / floor:.3f})"


def floor_over(
    kmeans: float,
    records: FloatArray,
    n_clusters: int,
    epsilon: float,
    delta: float | None = None,
) -> float:
    """Return the floor of runs that protect records, over the cost of k-means.

    ``delta`` is by default the library's. Records, (n, d), are all that take part.
    """
    n_records, n_features = records.shape
    budget = PrivacyBudget(epsilon, delta).resolved(n_records)
    assert budget.delta is not None
    fewest = fewest_records(n_features, mu_of_budget(epsilon, budget.delta))
    return floor(records, n_clusters, fewest) / kmeans


def over_grid(
    rows: Sequence[Row], grid: Sequence[float], by: Sequence[str] = ("data", "method")
) -> str:
    """Return a table of ratios over epsilons, and of lost gains beside them.

    Rows have the columns ``ratio``, ``lost`` and ``floor``.
    """
    ratios = tables.curves_of(rows, "ratio", by)
    lost = tables.curves_of(rows, "lost", by)
    floors = tables.curves_of(rows, "floor", by)
    lines = []
    for key, curve in ratios.items():
        beside = []
        for mine, gains, least in zip(
            points_of(curve, grid),
            points_of(lost[key], grid),
            points_of(floors[key], grid),
            strict=True,
        ):
            beside.append(_cell(mine, gains, least))
        cells = [tables.cell(values) for values in points_of(curve, grid)]
        lines.append([*map(str, key), *cells, *beside])
    names = [f"eps {epsilon:g}" for epsilon in grid]
    return tables.markdown([*by, *names, *map(head, names)], lines, len(by))


def _cell(
    ratios: Sequence[float], lost: Sequence[float], floors: Sequence[float | None]
) -> str:
    if not ratios:
        return ""
    return text(float(np.mean(ratios)), float(np.mean(lost)), floors[0])
