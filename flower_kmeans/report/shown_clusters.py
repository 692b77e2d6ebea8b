"""What a page shows of clusters: profiles, sizes, and the table and plot of centroids."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flower_kmeans.arrays import FloatArray
from flower_kmeans.data.domain import Box, Sphere
from flower_kmeans.report.figures import Axis, Dot, around, principal_places
from flower_kmeans.report.outcome import Outcome
from flower_kmeans.report.profiles import (
    ColumnProfile,
    largest_deviation,
    most_separating,
    weights_of,
)

MAX_ROWS = 200
MAX_COLUMNS = 64
_NAMED_DOTS = 40
_LARGEST_DOT = 20.0
_SMALLEST_DOT = 4.0
_PROFILE_COLUMNS = 12
# most characters beside a profile: of a column's name, of a value, and of a level, which
# its share follows
_LABEL = 16
_VALUE = 16
_LEVEL = _VALUE - len(" 100%")
_PROFILE_CLUSTERS = 20
# of a category: levels in a cell of the table, and their least share but for the first
_MOST_LEVELS = 3
_LEAST_SHARE = 0.15


class ProfileLine(NamedTuple):
    """A column in the profile of a cluster."""

    column: str
    label: str  # the column's name, shortened
    value: str
    short_value: str
    mean: str
    deviation: float


class SizeRow(NamedTuple):
    """The size of a cluster, and its interval where it is known."""

    cluster: int
    size: float
    low: float
    high: float
    share: float
    kind: str  # of `SizeReport.bounds_kept`; empty without bounds


def learned_of(run: Outcome) -> dict[str, Any] | None:
    """Return profiles, rows of the table of centroids, and axes and dots of their plot.

    ``None`` without centroids.
    """
    centroids = run.centroids
    counts = run.counts
    bounds = run.bounds
    if centroids is None:
        return None
    k, d = centroids.shape
    if counts is None:
        sizes = np.ones(k)
    else:
        sizes = np.maximum(counts, 0.0)
    relative = sizes / (sizes.max() or 1.0)
    places = centroids
    labels = list(run.columns)
    if d > 2:
        places, parts = principal_places(run.domain.scaled(centroids), sizes)
        labels = []
        for i in (0, 1):
            labels.append(f"principal direction {i + 1} ({100 * parts[i]:.0f}%)")
    axes = []
    for i, label in enumerate(labels):
        if d > 2 or bounds is None:
            axis = around(places[:, i].tolist(), label)
        else:
            axis = Axis(label, float(bounds[0][i]), float(bounds[1][i]))
        axes.append(axis)
    # The area of a circle shows the size. Without positive sizes all circles are equal.
    if counts is None:
        drawn = 0.15 * relative
    elif sizes.any():
        drawn = relative
    else:
        drawn = np.full(k, 0.09)
    radii = np.maximum(_SMALLEST_DOT, _LARGEST_DOT * np.sqrt(drawn))
    dots = []
    # The largest is drawn first, so that small circles are above large ones.
    for cluster in run.order:
        title = f"cluster {cluster}"
        if counts is not None:
            title += f", size {counts[cluster]:,.0f}"
        dot = Dot(
            name=str(cluster) if k <= _NAMED_DOTS else "",
            x=float(places[cluster, 0]),
            y=float(places[cluster, 1]) if d > 1 else 0.0,
            radius=float(radii[cluster]),
            title=title,
            colour=colour_of(centroids[cluster]) if run.are_colours else None,
        )
        dots.append(dot)
    return {
        **_table(run),
        **_profiles(run),
        # Colours need no names in words.
        "names": () if run.are_colours else run.names,
        "are_named": any(not name.startswith("cluster ") for name in run.names),
        "outer": [each.column for each in run.report.ranges if each.is_outer],
        "weights": _weights(run),
        "shares": weights_of(sizes).tolist(),
        "axes": axes,
        "dots": dots,
    }


def _table(run: Outcome) -> dict[str, Any]:
    """Return the shown clusters, and their rows of the table of centroids."""
    columns = run.profiles[:MAX_COLUMNS]
    cells = [_cells(column) for column in columns]
    shown = run.order[:MAX_ROWS].tolist()
    return {
        "shown": shown,
        "columns": [column.name for column in columns],
        "numbers": [i for i, column in enumerate(columns) if not column.is_category],
        "n_columns": len(run.profiles),
        "rows": [[column[cluster] for column in cells] for cluster in shown],
        "mean": ["all clusters", *map(_mean, columns)],
        "bounds": _last_row(run)[: MAX_COLUMNS + 1],
    }


def _cells(column: ColumnProfile) -> list[str]:
    """Return the value of each cluster in a column, in the user's units.

    A category has its most frequent levels.
    """
    if not column.is_category:
        (row,) = column.rows
        if row.kind == "number":
            return texts(row.values.tolist())
        return list(row.texts)  # on a log scale a column has no common decimals
    shares = np.array([row.values for row in column.rows])
    cells = []
    for own in shares.T:
        cells.append(_levels(column, own))
    return cells


def _levels(column: ColumnProfile, shares: FloatArray) -> str:
    """Return the most frequent levels of a category in words, of their shares, (m,)."""
    order = np.argsort(-shares, kind="stable")[:_MOST_LEVELS].tolist()
    words: list[str] = []
    for level in order:
        if words and shares[level] < _LEAST_SHARE:
            break
        share = column.rows[level].text(float(shares[level]))
        words.append(f"{column.levels[level]} {share}")
    return ", ".join(words)


def _mean(column: ColumnProfile) -> str:
    """Return the mean of all clusters in a column, in the user's units."""
    if column.is_category:
        return _levels(column, np.array([row.mean for row in column.rows]))
    (row,) = column.rows
    return row.text(row.mean)


def _profiles(run: Outcome) -> dict[str, Any]:
    """Return the clusters and columns of the picture of profiles, and its scale."""
    columns = most_separating(run.profiles)[:_PROFILE_COLUMNS]
    labels = _labels([column.name for column in columns], _LABEL)
    cards = []
    for cluster in run.order[:_PROFILE_CLUSTERS].tolist():
        lines = [
            _profile_line(label, column, cluster)
            for label, column in zip(labels, columns, strict=True)
        ]
        cards.append((cluster, lines))
    return {
        "cards": cards,
        "n_profile_columns": len(columns),
        "most": largest_deviation(columns),
    }


def _labels(names: Sequence[str], most: int) -> list[str]:
    """Return names of at most ``most`` characters, with both ends where beginnings are alike."""
    starts = [_shortened(name, most) for name in names]
    labels = []
    for name, start in zip(names, starts, strict=True):
        label = start
        if starts.count(start) > 1 and start != name:
            half = (most - 1) // 2
            label = f"{name[:half]}…{name[-half:]}"
        labels.append(label)
    return labels


def _shortened(name: str, most: int) -> str:
    """Return the beginning of a name, of at most ``most`` characters."""
    if len(name) <= most:
        return name
    return f"{name[: most - 1]}…"


def _profile_line(label: str, column: ColumnProfile, cluster: int) -> ProfileLine:
    """Return the line of a column in the profile of a cluster."""
    level = 0
    text = column.texts[cluster]
    short = _shortened(text, _VALUE)
    if column.is_category:
        level = int(np.argmax([row.values[cluster] for row in column.rows]))
    row = column.rows[level]
    if column.is_category and len(text) > _VALUE:
        share = row.text(float(row.values[cluster]))
        short = f"{_labels(column.levels, _LEVEL)[level]} {share}"
    return ProfileLine(
        column.name,
        label,
        text,
        short,
        row.text(row.mean),
        float(row.deviations[cluster]),
    )


def _last_row(run: Outcome) -> list[str]:
    """Return the bounds below the table of centroids: a name, and a cell for each column.

    A sphere has none.
    """
    domain = run.domain
    if isinstance(domain, Sphere):
        return []
    if not isinstance(domain, Box):
        cells = [f"{coordinate:.4g}" for coordinate in domain.center]
        return [f"within {domain.radius:.4g} of", *cells]
    cells = []
    for column in run.profiles:
        row = column.rows[0]
        both = f"{row.text(row.low)} to {row.text(row.high)}"
        cells.append("" if column.is_category else both)
    return ["ranges" if run.report.ranges else "bounds", *cells]


def _weights(run: Outcome) -> str:
    """Return the weights of columns in words; empty where all are the usual ones."""
    if not isinstance(run.domain, Box) or not run.domain.is_weighted:
        return ""
    pairs = run.domain.weights_by_name().items()
    return ", ".join(f"{name} {weight:.4g}" for name, weight in pairs)


def sized_of(run: Outcome) -> dict[str, Any] | None:
    """Return the sizes of the shown clusters with the largest first, and their axis."""
    sizes = run.sizes
    counts = run.counts
    if sizes is not None:
        counts = np.array(sizes.counts)
    if counts is None:
        return None
    interval = run.size_interval
    low, high = (counts, counts) if interval is None else interval.T
    least = None
    most = None
    order = np.argsort(-counts, kind="stable")
    if sizes is not None:
        least = sizes.min_size or None
        most = sizes.max_size
    if sizes is not None and len(order) > MAX_ROWS:  # then those nearest to a bound
        room = low - sizes.min_size
        if most is not None:
            room = np.minimum(room, most - high)
        tightest = np.argsort(room, kind="stable")[:MAX_ROWS]
        order = order[np.isin(order, tightest)]
    order = order[:MAX_ROWS]
    shares = weights_of(counts)
    rows = []
    for cluster in order.tolist():
        row = SizeRow(
            cluster,
            float(counts[cluster]),
            float(low[cluster]),
            float(high[cluster]),
            float(shares[cluster]),
            "" if sizes is None else sizes.bounds_kept[cluster],
        )
        rows.append(row)
    bounds = [float(bound) for bound in (least, most) if bound is not None]
    longest = max(*(row.high for row in rows), *(row.size for row in rows), 1.0)
    # From 0, so that the lengths of bars compare as the sizes do.
    axis = Axis(run.report.counted, 0.0, 1.05 * max(longest, *bounds, 1.0))
    return {
        "least": least,
        "most": most,
        "rows": rows,
        "axis": axis,
        "is_known": interval is not None,
        "margin": None if interval is None else _margin(run, counts),
    }


def _margin(run: Outcome, counts: FloatArray) -> float:
    """Return the half width of the sizes' intervals, in records."""
    if run.sizes is not None:
        return run.sizes.margin
    return run.report.size_margin(len(counts)) or 0.0


def colour_of(centroid: FloatArray) -> str:
    """Return the hexadecimal name of the colour of red, green and blue, (3,), in 0 to 255."""
    rounded = np.clip(np.rint(centroid), 0, 255)
    red, green, blue = (int(each) for each in rounded)
    return f"#{red:02x}{green:02x}{blue:02x}"


def texts(values: Sequence[float | str]) -> list[str]:
    """Return the cells of a column, with the decimals that give its largest number four digits."""
    numbers = [value for value in values if isinstance(value, float)]
    largest = max(map(abs, numbers), default=0.0)
    digits = 0
    if largest > 0:
        before = math.floor(math.log10(largest))
        digits = int(np.clip(3 - before, 0, 9))
    cells = []
    for value in values:
        cells.append(f"{value:,.{digits}f}" if isinstance(value, float) else value)
    return cells
