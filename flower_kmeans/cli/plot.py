"""Pictures of a run from released values. Only a holder of records can add them.

If the run has a synopsis, it represents the records: an ellipse is one standard
deviation of one of its parts.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.released import CONFIDENCE
from flower_kmeans.arrays import FloatArray
from flower_kmeans.cli.assign import Found, read_centroids, synopsis_of
from flower_kmeans.data.reading import USUAL_READING, Reading
from flower_kmeans.data.table_domain import Date, Number, TableDomain
from flower_kmeans.data.tables import data_name, read_table
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private, printable
from flower_kmeans.report.clustering import assigned
from flower_kmeans.report.names import cluster_names, shorten
from flower_kmeans.report.picture import colours
from flower_kmeans.report.profiles import column_profiles, weights_of
from flower_kmeans.report.synopsis import Synopsis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PlotKind = StrEnum(
    "PlotKind",
    {"AXES": "axes", "PAIRS": "pairs", "SIZES": "sizes", "PROFILES": "profiles"},
)

SUFFIXES = (".svg", ".png", ".pdf")
NOT_PRIVATE = "NOT PRIVATE: of a run without noise, or with bounds from the records"

_MOST_PAIRS = 6  # most columns of "pairs"
_MOST_ROWS = 64  # most clusters of the other pictures
_MOST_LINES = 40  # most lines of "profiles"
_MOST_LEVELS = 6  # of them, of a category
_MOST_ACROSS = 8  # clusters beside each other in "profiles"
_HALF_CELL = 0.45  # longest bar in "profiles", where clusters are 1 apart
_PLACE_OF_ALL = -0.7  # of the mean of all clusters in "profiles"
_MOST_POINTS = 20_000  # most records that are drawn
_RECORDS = "own records, not released"


@dataclass(frozen=True)
class Picture:
    """Released values of a run, and records if their holder adds them."""

    found: Found
    synopsis: Synopsis | None
    records: FloatArray | None  # (n, d), in the user's units
    columns: Sequence[str] | None  # to pair

    @property
    def clusters(self) -> str:
        """The number of clusters, in words."""
        k = len(self.found.centroids)
        if k == 1:
            return "1 cluster"
        return f"{k} clusters"


def require_file(option: str, path: Path) -> None:
    """Require matplotlib, and a suffix that it can write."""
    require("matplotlib", option, "plots")
    if path.suffix.lower() not in SUFFIXES or not path.parent.is_dir():
        raise ConfigurationError(
            f"Expected {option} as a file that ends in {', '.join(SUFFIXES)}, in a directory that "
            f"exists. Got {path}."
        )


def draw(
    kind: PlotKind,
    centroids: Path,
    output: Path,
    records: str | None,
    columns: Sequence[str] | None,
    domain: Path | None = None,
    reading: Reading = USUAL_READING,
) -> bool:
    """Write a picture of a run to a file that only its owner may read.

    Parameters
    ----------
    kind : PlotKind
    centroids : Path
        The ``centroids.npz`` of the run. A ``synopsis.npz`` beside it is used, too.
    output : Path
        The new file, with a suffix in `SUFFIXES`.
    records : str or None
        A file with the run's columns, whose records the picture then shows.
    columns : sequence of str or None
        Columns of "pairs". By default these are the first six.
    domain : Path or None
        The domain file of the run, as for `read_centroids`.
    reading : Reading
        Options for reading the file with records.

    Returns
    -------
    bool
        Whether the run was private.

    Raises
    ------
    ConfigurationError, DataError
        If matplotlib is missing, an option does not fit, or a file cannot be used.
    """
    require_file("--output", output)
    from matplotlib.figure import Figure

    if records is not None and kind not in (PlotKind.AXES, PlotKind.PAIRS):
        raise ConfigurationError(
            f"Expected --records with axes or pairs only. Got it with {kind}."
        )
    if columns is not None and kind is not PlotKind.PAIRS:
        raise ConfigurationError(
            f"Expected --columns with pairs only. Got it with {kind}."
        )
    found = read_centroids(centroids, domain)
    held = None if records is None else _records_of(found, records, reading)
    picture = Picture(found, synopsis_of(found, centroids), held, columns)
    if len(found.columns) == 1 and kind is PlotKind.AXES:
        kind = PlotKind.PAIRS  # with one column this picture is a density
    draw_kind = {
        PlotKind.AXES: _draw_axes,
        PlotKind.PAIRS: _draw_pairs,
        PlotKind.SIZES: _draw_sizes,
        PlotKind.PROFILES: _draw_profiles,
    }[kind]

    figure = Figure(layout="constrained", dpi=120)
    draw_kind(figure, picture)
    _note(figure, found, records)
    with open_private(output) as file:
        figure.savefig(file, format=output.suffix[1:].lower())
    return found.is_private


def _note(figure: "Figure", found: Found, records: str | None) -> None:
    """Write below a picture whether it is private, and whether it shows records."""
    notes = []
    if not found.is_private:
        notes.append(NOT_PRIVATE)
    if records is not None:
        name = printable(data_name(records))
        notes.append(f"HOLDS RECORDS of {name}: as confidential as these")
    text = "; ".join(notes) or "from released values only"
    colour = "red" if notes else "gray"
    figure.supxlabel(text, fontsize=8, color=colour, parse_math=False)


def _records_of(found: Found, data: str, reading: Reading) -> FloatArray:
    """Return the records of a file with the run's columns, (n, d)."""
    if isinstance(found.domain, TableDomain):
        return read_table(data, reading, domain=found.domain).records
    return read_table(data, reading, features=found.columns).records


def _places(found: Found, columns: Sequence[str] | None) -> list[int]:
    """Return the indices of the columns to pair."""
    if columns is None:
        return list(range(min(len(found.columns), _MOST_PAIRS)))
    # A user may name a declared column, or one of its columns in the box.
    owners = [None if owner is None else owner.name for owner in _owners(found)]
    known = list(zip(found.columns, owners, strict=True))
    chosen = [[i for i, names in enumerate(known) if name in names] for name in columns]
    places = [place for each in chosen for place in each]

    are_known = all(chosen)
    are_few = 1 <= len(places) <= _MOST_PAIRS
    are_different = len(set(places)) == len(places)
    if not (are_known and are_few and are_different):
        raise ConfigurationError(
            f"Expected --columns as up to {_MOST_PAIRS} of {', '.join(found.inputs)}, each once. "
            f"Got {', '.join(columns)}."
        )
    return places


# --------------------------------------------------------------------- principal axes


class _View(NamedTuple):
    """Two directions of the scaled domain, along which clusters are drawn."""

    center: FloatArray  # (d,), the origin
    directions: FloatArray  # (d, 2), orthogonal unit vectors
    parts: FloatArray  # (2,), the fraction of the variance along each direction

    def places(self, scaled: FloatArray) -> FloatArray:
        """Return the places, (m, 2), of scaled points, (m, d), in the picture."""
        return (scaled - self.center) @ self.directions


def _draw_axes(figure: "Figure", picture: Picture) -> None:
    """Draw clusters on the two principal axes of the synopsis, or of the centroids."""
    found = picture.found
    synopsis = picture.synopsis
    figure.set_size_inches(8, 6)
    axes = figure.add_subplot()
    centroids = found.domain.scaled(found.centroids)
    if synopsis is None:
        view = _view_of_centroids(centroids, found.counts)
        source = "centroids"
    else:
        mean, view = _view_of_synopsis(synopsis)
        source = "synopsis"
        mixture = synopsis.mixture
        along = mixture.directions.T @ view.directions
        means = (mixture.means - mean) @ along
        _draw_parts(axes, found, synopsis, means, view.directions)

    if picture.records is not None:
        records = found.domain.compared(picture.records)
        _draw_records(axes, view.places(found.domain.scaled(records)))
    _draw_centroids(axes, found, view.places(centroids))
    first, second = (f"{100 * part:.0f}% of variance" for part in view.parts)
    axes.set_xlabel(f"principal axis 1 ({first})")
    axes.set_ylabel(f"principal axis 2 ({second})")
    axes.set_title(f"{picture.clusters} on the principal axes of the {source}")
    figure.legend(loc="outside right upper", fontsize=8)


def _view_of_centroids(centroids: FloatArray, counts: FloatArray) -> _View:
    """Return the principal axes of scaled centroids, (k, d), weighted by their sizes."""
    sizes = np.maximum(counts, 0.0)
    if not sizes.any():
        sizes = np.ones(len(sizes))
    shares = sizes / sizes.sum()
    center = shares @ centroids
    offsets = centroids - center
    covariance = (offsets * shares[:, None]).T @ offsets
    return _View(center, *_principal(covariance))


def _view_of_synopsis(synopsis: Synopsis) -> tuple[FloatArray, _View]:
    """Return the mean of a synopsis along its directions, and its principal axes."""
    mixture = synopsis.mixture
    shares = _shares(synopsis)
    along = mixture.directions
    mean = shares @ mixture.means
    offsets = mixture.means - mean

    between = (offsets * shares[:, None]).T @ offsets
    within = np.diag(shares @ mixture.scales**2)
    # All directions orthogonal to those of the synopsis have the same variance.
    beside = np.eye(len(along)) - along @ along.T
    covariance = along @ (between + within) @ along.T + mixture.rest * beside
    return mean, _View(along @ mean, *_principal(covariance))


def _principal(covariance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a covariance's two principal directions, (d, 2), and their fractions of it."""
    values, vectors = np.linalg.eigh(covariance)
    directions = vectors[:, :-3:-1].copy()
    # Signs are arbitrary. With this rule every picture of a run is the same.
    largest = np.abs(directions).argmax(axis=0)
    directions *= np.where(directions[largest, [0, 1]] < 0, -1.0, 1.0)
    total = max(float(values.sum()), np.finfo(float).tiny)
    return directions, values[:-3:-1] / total


# ------------------------------------------------------------------- pairs of columns


def _draw_pairs(figure: "Figure", picture: Picture) -> None:
    """Draw every pair of columns, with the density of each column on the diagonal."""
    found = picture.found
    places = _places(found, picture.columns)
    n = len(places)
    figure.set_size_inches(2 + 2.2 * n, 1.5 + 2.2 * n)
    panels = figure.subplots(n, n, squeeze=False, sharex="col")
    for row, i in enumerate(places):
        # The panels of a row have the same y axis, except the density.
        first = panels[row, 1 if row == 0 else 0] if n > 1 else None
        for column, j in enumerate(places):
            axes = panels[row, column]
            _name_axis(axes.xaxis, found, j, is_named=row == n - 1, rotation=30)
            _name_axis(axes.yaxis, found, i, is_named=column == 0)
            if i == j:
                _draw_density(axes, picture, i)
                continue
            if first is not axes:
                axes.sharey(first)
                axes.tick_params(labelleft=False)
            _draw_pair(axes, picture, [j, i])
    if n == 1:
        panels[0, 0].set_ylabel("density")
        figure.suptitle(f"{picture.clusters} by column")
    else:
        figure.suptitle(f"{picture.clusters} by columns")


def _draw_pair(axes: "Axes", picture: Picture, pair: list[int]) -> None:
    """Draw the clusters in two columns."""
    found = picture.found
    synopsis = picture.synopsis
    if synopsis is not None:
        directions = np.diag(found.domain.unit)[:, pair]
        _draw_parts(axes, found, synopsis, synopsis.means[:, pair], directions)
    if picture.records is not None:
        _draw_records(axes, picture.records[:, pair])
    _draw_centroids(axes, found, found.centroids[:, pair])


def _draw_density(axes: "Axes", picture: Picture, place: int) -> None:
    """Draw the centroids of a column, and the densities of its records and the synopsis."""
    axes.set_yticks([])
    if picture.records is not None:
        # Otherwise the centroids below the bars would be cut off.
        axes.use_sticky_edges = False
        values = picture.records[:, place]
        axes.hist(values, bins=50, density=True, color="gray", alpha=0.5)
    centroids = picture.found.centroids[:, place]
    on_axis = np.stack([centroids, np.zeros_like(centroids)], axis=1)
    _draw_centroids(axes, picture.found, on_axis)
    if picture.synopsis is not None:
        points, density = _density(picture.synopsis, place)
        axes.plot(points, density, color="black", linewidth=1)


def _density(synopsis: Synopsis, place: int) -> tuple[FloatArray, FloatArray]:
    """Return 200 points of a column, and the density of a synopsis there."""
    means = synopsis.means[:, place]
    column = np.diag(synopsis.domain.unit)[:, [place]]
    spreads = np.sqrt(synopsis.covariances_along(column)[:, 0, 0])
    low = (means - 3 * spreads).min()
    high = (means + 3 * spreads).max()

    points = np.linspace(low, high, 200)
    squares = np.square((points[:, None] - means) / spreads)
    normals = np.exp(-squares / 2) / spreads * _shares(synopsis)
    return points, normals.sum(axis=1) / np.sqrt(2 * np.pi)


# --------------------------------------------------------------------- sizes


class _Sizes(NamedTuple):
    """Noisy sizes of clusters, and their origin in words."""

    counts: FloatArray  # (k,)
    intervals: FloatArray | None = None  # (k, 2)
    origin: str = ""
    together: str = ""  # whether the intervals hold all at once, or each alone


def _draw_sizes(figure: "Figure", picture: Picture) -> None:
    """Draw noisy sizes, with intervals if these are known."""
    sizes = _sizes_of(picture)
    order = _largest(sizes.counts)
    shown = sizes.counts[order]
    figure.set_size_inches(max(5.0, 0.3 * len(order) + 2), 4.5)
    axes = figure.add_subplot()
    places = np.arange(len(order))
    axes.bar(places, shown, color=colours(order, len(sizes.counts)))

    title = "sizes, largest first"
    if picture.found.is_private:
        title = f"noisy {title}"
    if sizes.intervals is not None:
        margins = np.abs(sizes.intervals[order].T - shown)
        axes.errorbar(places, shown, yerr=margins, fmt="none", color="black", capsize=3)
        title += (
            f"{sizes.origin}\nintervals of {CONFIDENCE:.0%} over the noise, "
            f"{sizes.together}"
        )
    axes.set_xticks(places, [str(cluster) for cluster in order])
    axes.set_xlabel("cluster")
    axes.set_ylabel(picture.found.counted)
    axes.set_title(title, fontsize=10)


def _released_sizes(found: Found) -> FloatArray:
    """Return the sizes, (k,), that the result and its report have."""
    if found.sizes is not None:
        counts, _ = found.sizes
        return counts
    return found.counts


def _sizes_of(picture: Picture) -> _Sizes:
    """Return the sizes with the best known intervals."""
    found = picture.found
    synopsis = picture.synopsis
    if found.sizes is not None:
        counts, intervals = found.sizes
        return _Sizes(counts, intervals, " by the run's last sums", "at once")
    if synopsis is None or not found.is_private:
        return _Sizes(found.counts)

    # Each cluster's size is a sum of noisy counts of the synopsis, whose noise is
    # known.
    k = len(found.counts)
    labels = _labels(found, synopsis)
    counts = np.bincount(labels, synopsis.weights, minlength=k).astype(np.float64)
    n_parts = np.bincount(labels, minlength=k)
    noise, _, _ = synopsis.mixture.noise
    quantile = -NormalDist().inv_cdf((1 - CONFIDENCE) / 2)
    margins = np.outer(quantile * noise * np.sqrt(n_parts), [-1, 1])
    intervals = np.maximum(counts[:, None] + margins, 0.0)
    return _Sizes(counts, intervals, ", as the synopsis has them", "each")


# --------------------------------------------------------------------- profiles


class _Line(NamedTuple):
    """One line of a table of profiles: a column, or one level of a category."""

    label: str
    mean: str  # of all clusters, in the user's units
    texts: tuple[str, ...]  # (k,), values of the clusters in the user's units
    bars: FloatArray  # (k,), differences from the mean
    weight: float  # by which lines are ordered


def _draw_profiles(figure: "Figure", picture: Picture) -> None:
    """Draw tables: a line for each column, and in it a value and a bar for each cluster."""
    order = _largest(_released_sizes(picture.found))
    groups, unit = _profile_lines(picture)
    lines = [line for group in groups for line in group]
    foremost = [line for group in groups for line in group[:_MOST_LEVELS]]
    shown = foremost[:_MOST_LINES]
    across = min(len(order), _MOST_ACROSS)
    panels = [order[i : i + across] for i in range(0, len(order), across)]
    figure.set_size_inches(
        3.2 + 1.3 * across, 1 + (1.6 + 0.4 * len(shown)) * len(panels)
    )
    # With a smaller scale, noise alone would get the longest bars.
    most = max(max(float(np.abs(line.bars).max()) for line in lines), _least(picture))
    tables = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, clusters in zip(tables, panels, strict=True):
        _draw_table(axes, picture, clusters, shown, most)
        axes.set_xlim(-1.1, across - 0.5)
    note = f"bars: difference from the mean of all, {unit}; one scale for all columns"
    if len(shown) < len(lines):
        note += (
            f"\n{len(shown)} of {len(lines)} lines, in which the clusters differ most"
        )
    tables[-1].set_xlabel(note, fontsize=8)
    figure.suptitle(f"profiles of {picture.clusters}", fontsize=10)


def _draw_table(
    axes: "Axes",
    picture: Picture,
    clusters: NDArray[np.int64],
    lines: Sequence[_Line],
    most: float,
) -> None:
    """Draw the lines of some clusters. A difference of ``most`` has the longest bar."""
    found = picture.found
    shades = colours(clusters, len(found.counts))
    heights = np.arange(len(lines), dtype=np.float64)
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
    for height, line in zip(heights, lines, strict=True):
        axes.text(_PLACE_OF_ALL, height, line.mean, **style)
    for place, cluster in enumerate(clusters.tolist()):
        bars = [_HALF_CELL * line.bars[cluster] / most for line in lines]
        axes.barh(heights + 0.2, bars, 0.3, left=place, color=shades[place])
        axes.vlines([place] * len(lines), heights, heights + 0.4, "gray", lw=0.5)
        for height, line in zip(heights, lines, strict=True):
            axes.text(place, height - 0.17, line.texts[cluster], **style)
    for height in heights[1:]:
        axes.axhline(height - 0.5, color="lightgray", lw=0.5)

    names = cluster_names(found.centroids, found.counts, found.domain, found.columns)
    sizes = _released_sizes(found)
    heads = [_head(picture, j, names[j], sizes) for j in clusters.tolist()]
    places = [_PLACE_OF_ALL, *range(len(clusters))]
    axes.xaxis.tick_top()
    axes.set_xticks(places, ["all", *heads], fontsize=8, parse_math=False)
    labels = [shorten(line.label, 36) for line in lines]
    axes.set_yticks(heights, labels, fontsize=8, parse_math=False)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _head(picture: Picture, cluster: int, name: str, sizes: FloatArray) -> str:
    """Return the number, name and size of a cluster, in lines that fit a column."""
    about = "about " if picture.found.is_private else ""
    lines = [str(cluster), *textwrap.wrap(name, 19)]
    lines.append(f"{about}{max(0.0, sizes[cluster]):,.0f}")
    return "\n".join(lines)


def _profile_lines(picture: Picture) -> tuple[list[list[_Line]], str]:
    """Return the lines of each column, and the unit of their bars in words.

    Columns, and levels of a category, in which clusters differ most are first.
    """
    found = picture.found
    profiles = column_profiles(
        found.centroids, found.counts, found.domain, found.columns
    )
    synopsis = picture.synopsis
    shares = weights_of(found.counts)
    groups = []
    start = 0
    for profile in profiles:
        lines = []
        for place, row in enumerate(profile.rows, start):
            if row not in profile.shown_rows:
                continue
            mean = row.mean
            bars = row.deviations
            if synopsis is not None:
                # It knows the mean and the spread of the records.
                mean = float(_shares(synopsis) @ synopsis.means[:, place])
                bars = (row.values - mean) / synopsis.spreads[place]
            weight = float(np.sqrt(shares @ bars**2))
            lines.append(_Line(row.label, row.text(mean), row.texts, bars, weight))
        start += len(profile.rows)
        lines.sort(key=lambda line: -line.weight)
        groups.append(lines)
    groups.sort(key=lambda lines: -lines[0].weight)
    if synopsis is None:
        return groups, "in the space that was clustered"
    return groups, "in standard deviations of all records"


def _least(picture: Picture) -> float:
    """Return the least difference to which bars may be scaled."""
    if picture.synopsis is None:
        return float(np.finfo(np.float64).tiny)
    return 1.0


# --------------------------------------------------------------------- marks


def _draw_parts(
    axes: "Axes",
    found: Found,
    synopsis: Synopsis,
    means: FloatArray,
    directions: FloatArray,
) -> None:
    """Draw an ellipse for each part along two directions, (d, 2), darker for heavier parts."""
    from matplotlib.patches import Ellipse

    strengths = 0.1 + 0.5 * synopsis.weights / synopsis.weights.max()
    shades = colours(_labels(found, synopsis), len(found.centroids))
    covariances = synopsis.covariances_along(directions)
    parts = zip(means, covariances, strengths, shades, strict=True)
    for mean, covariance, strength, colour in parts:
        values, vectors = np.linalg.eigh(covariance)
        width, height = 2 * np.sqrt(np.maximum(values[::-1], 0.0))
        angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
        style = {"color": colour, "alpha": strength, "lw": 0}
        axes.add_patch(Ellipse(mean, width, height, angle=angle, **style))
    # The limits of the axes follow points, and ignore patches.
    axes.scatter(means[:, 0], means[:, 1], s=0)


def _draw_records(axes: "Axes", places: FloatArray) -> None:
    """Draw at most `_MOST_POINTS` records, (n, 2), as points."""
    # Every n-th record is drawn. A random choice would change with every picture.
    step = max(1, math.ceil(len(places) / _MOST_POINTS))
    x, y = places[::step].T
    axes.scatter(x, y, s=3, color="gray", alpha=0.5, label=_RECORDS, zorder=0.5)


def _draw_centroids(axes: "Axes", found: Found, places: FloatArray) -> None:
    """Draw centroids, (k, 2), with their numbers, larger for larger clusters."""
    sizes = np.maximum(found.counts, 0.0)
    area = 40 + 160 * sizes / (sizes.max() or 1.0)
    shades = colours(np.arange(len(places)), len(places))
    style: dict[str, Any] = {"edgecolors": "black", "label": "centroids", "zorder": 3}
    axes.scatter(places[:, 0], places[:, 1], s=area, c=shades, **style)
    style = {"fontsize": 7, "ha": "center", "va": "center", "zorder": 4}
    for cluster, place in enumerate(places):
        axes.annotate(str(cluster), tuple(place), **style)


def _name_axis(
    axis: "Axis", found: Found, place: int, *, is_named: bool, rotation: float = 0
) -> None:
    """Give an axis its name and ticks in the user's form of the column."""
    from matplotlib.ticker import MaxNLocator

    name = found.columns[place]
    owner = _owners(found)[place]
    read = _reader(owner)
    if read is not None:
        name = owner.name
        axis.set_major_locator(MaxNLocator(3))
        axis.set_tick_params(labelrotation=rotation)
        axis.set_major_formatter(lambda value, _: read(value))
    if is_named:
        axis.set_label_text(printable(name), parse_math=False)


def _reader(owner: Any) -> Callable[[float], str] | None:
    """Return a function from a declared column's number to text, or ``None`` for numbers."""
    if isinstance(owner, Date):
        return lambda day: str(owner.decode(np.array([[day]]))[owner.name][0])
    if isinstance(owner, Number) and owner.scale == "log":
        return lambda power: f"{10.0**power:.3g}"
    return None


# --------------------------------------------------------------------- of a run


def _shares(synopsis: Synopsis) -> FloatArray:
    """Return the fraction of the records in each part of a synopsis, (m,)."""
    shares: FloatArray = synopsis.weights / synopsis.weights.sum()
    return shares


def _labels(found: Found, synopsis: Synopsis) -> NDArray[np.int64]:
    """Return the cluster of each part of the synopsis, (m,)."""
    return assigned(synopsis.means, found.centroids, found.domain, found.weights)


def _largest(counts: FloatArray) -> NDArray[np.int64]:
    """Return the clusters to show, the largest first."""
    return np.argsort(-counts, kind="stable")[:_MOST_ROWS]


def _owners(found: Found) -> list[Any]:
    """Return the declared column of each of the d columns, or ``None`` without one."""
    if not isinstance(found.domain, TableDomain):
        return [None] * len(found.columns)
    return [column for column in found.domain.declared for _ in column.coordinates()]
