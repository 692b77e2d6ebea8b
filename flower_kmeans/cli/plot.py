"""Pictures of a run from what it released; with records only if their holder adds them.

A synopsis, where the run left one, stands for the records: an ellipse is one standard
deviation of one of its parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.algorithms.released import CONFIDENCE
from flower_kmeans.cli.assign import Found, read_centroids, synopsis_of
from flower_kmeans.data.reading import USUAL_READING, Reading
from flower_kmeans.data.table_domain import Date, Number, TableDomain
from flower_kmeans.data.tables import data_name, read_table
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private, printable
from flower_kmeans.report.clustering import Floats, assigned
from flower_kmeans.report.picture import colours
from flower_kmeans.report.synopsis import Synopsis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Kind = StrEnum(
    "Kind", {"AXES": "axes", "PAIRS": "pairs", "SIZES": "sizes", "PROFILES": "profiles"}
)

SUFFIXES = (".svg", ".png", ".pdf")
_MOST_PAIRS, _MOST_ROWS, _MOST_POINTS = 6, 64, 20_000
_RECORDS = "own records, not released"
NOT_PRIVATE = "NOT PRIVATE: of a run without noise, or with bounds from the records"


@dataclass(frozen=True)
class Picture:
    """What a run released, and records if their holder adds them."""

    found: Found
    synopsis: Synopsis | None
    records: Floats | None  # (n, d), in the user's units
    columns: Sequence[str] | None  # to pair


def require_file(option: str, path: Path) -> None:
    """Require matplotlib, and a file that it can draw to."""
    require("matplotlib", option, "plots")
    if path.suffix.lower() not in SUFFIXES or not path.parent.is_dir():
        raise ConfigurationError(
            f"Expected {option} as a file that ends in {', '.join(SUFFIXES)}, in a directory that "
            f"exists. Got {path}."
        )


def draw(
    kind: Kind,
    centroids: Path,
    output: Path,
    records: str | None,
    columns: Sequence[str] | None,
    domain: Path | None = None,
    reading: Reading = USUAL_READING,
) -> bool:
    """Write a picture of a run to a file that its owner alone may read.

    Return whether the run was private.

    Parameters
    ----------
    kind : Kind
    centroids : Path
        The ``centroids.npz`` of the run, with its ``synopsis.npz`` beside, if there is
        one.
    output : Path
        Its suffix is one of `SUFFIXES`.
    records : str or None
        Records to add, in a file with the run's columns: the picture then shows them.
    columns : sequence of str or None
        Of "pairs": by default the first six.
    domain : Path or None
        As `read_centroids` takes it.
    reading : Reading
        How the file with records is read.

    Raises
    ------
    ConfigurationError, DataError
        If matplotlib is missing, an option does not fit, or a file cannot be used.
    """
    require_file("--output", output)
    from matplotlib.figure import Figure

    if records is not None and kind not in (Kind.AXES, Kind.PAIRS):
        raise ConfigurationError(
            f"Expected --records with axes or pairs only. Got it with {kind}."
        )
    if columns is not None and kind is not Kind.PAIRS:
        raise ConfigurationError(
            f"Expected --columns with pairs only. Got it with {kind}."
        )
    found, figure = (
        read_centroids(centroids, domain),
        Figure(layout="constrained", dpi=120),
    )
    held = None if records is None else _records_of(found, records, reading)
    picture = Picture(found, synopsis_of(found, centroids), held, columns)
    if len(found.columns) == 1 and kind is Kind.AXES:
        kind = Kind.PAIRS  # along one column the picture is a density
    draw_one = {
        Kind.AXES: _draw_axes,
        Kind.PAIRS: _draw_pairs,
        Kind.SIZES: _draw_sizes,
        Kind.PROFILES: _draw_profiles,
    }
    draw_one[kind](figure, picture)
    notes = [] if found.is_private else [NOT_PRIVATE]
    if records is not None:
        notes.append(
            f"HOLDS RECORDS of {printable(data_name(records))}: as confidential as these"
        )
    note, colour = (
        "; ".join(notes) or "from released values only",
        "red" if notes else "gray",
    )
    figure.supxlabel(note, fontsize=8, color=colour, parse_math=False)
    with open_private(output) as file:
        figure.savefig(file, format=output.suffix[1:].lower())
    return found.is_private


def _records_of(found: Found, data: str, reading: Reading) -> Floats:
    domain = found.domain if isinstance(found.domain, TableDomain) else None
    features = None if domain is not None else found.columns
    return read_table(data, reading, features=features, domain=domain).records


def _places(found: Found, columns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the columns to pair."""
    if columns is None:
        return list(range(min(len(found.columns), _MOST_PAIRS)))
    # Both the declared column's name and those of its columns in the box.
    known = [
        (name, owner and owner.name)
        for name, owner in zip(found.columns, _owners(found), strict=True)
    ]
    chosen = [[i for i, names in enumerate(known) if name in names] for name in columns]
    places = [place for each in chosen for place in each]
    if (
        not all(chosen)
        or not 1 <= len(places) <= _MOST_PAIRS
        or len(set(places)) < len(places)
    ):
        raise ConfigurationError(
            f"Expected --columns as up to {_MOST_PAIRS} of {', '.join(found.inputs)}, each once. "
            f"Got {', '.join(columns)}."
        )
    return places


# --------------------------------------------------------------------------- pictures


def _draw_axes(figure: "Figure", picture: Picture) -> None:
    """Draw clusters on the two principal axes of the synopsis, or else of the centroids."""
    found, synopsis = picture.found, picture.synopsis
    figure.set_size_inches(8, 6)
    axes, unit = figure.add_subplot(), found.domain.scaled(found.centroids)
    if synopsis is None:
        shares = np.maximum(found.counts, 0.0)
        shares = (
            shares / shares.sum()
            if shares.any()
            else np.full(len(shares), 1 / len(shares))
        )
        center = shares @ unit
        directions, parts = _principal(
            ((unit - center) * shares[:, None]).T @ (unit - center)
        )
    else:
        mixture, shares = synopsis.mixture, synopsis.weights / synopsis.weights.sum()
        along = mixture.directions
        mean = shares @ mixture.means
        offsets, center = mixture.means - mean, along @ mean
        spread = (offsets * shares[:, None]).T @ offsets + np.diag(
            shares @ mixture.scales**2
        )
        beside = np.eye(len(along)) - along @ along.T
        directions, parts = _principal(along @ spread @ along.T + mixture.rest * beside)
        places = offsets @ (along.T @ directions)
        _draw_parts(axes, found, synopsis, places, directions)
    if picture.records is not None:
        own = (found.domain.scaled(picture.records) - center) @ directions
        _draw_records(axes, picture, own)
    _draw_centroids(axes, picture, (unit - center) @ directions)
    labels = [
        f"principal axis {i + 1} ({100 * parts[i]:.0f}% of variance)" for i in (0, 1)
    ]
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    of = "centroids" if synopsis is None else "synopsis"
    axes.set_title(f"{_clusters(found)} on the principal axes of the {of}")
    figure.legend(loc="outside right upper", fontsize=8)


def _draw_pairs(figure: "Figure", picture: Picture) -> None:
    """Draw every two of some columns, and the density of each on the diagonal."""
    found, synopsis = picture.found, picture.synopsis
    n = len(places := _places(found, picture.columns))
    figure.set_size_inches(2 + 2.2 * n, 1.5 + 2.2 * n)
    panels = figure.subplots(n, n, squeeze=False, sharex="col")
    unit = np.diag(found.domain.unit)
    for row, i in enumerate(places):
        for column, j in enumerate(places):
            axes, pair = panels[row, column], [j, i]
            _name_axis(axes.xaxis, found, j, row == n - 1, rotation=30)
            _name_axis(axes.yaxis, found, i, column == 0)
            if i == j:
                _draw_density(axes, picture, i)
                if n == 1:
                    axes.set_ylabel("density")
                continue
            if (first := panels[row, int(row == 0)]) is not axes:
                axes.sharey(first)
                axes.tick_params(labelleft=False)
            if synopsis is not None:
                _draw_parts(
                    axes, found, synopsis, synopsis.means[:, pair], unit[:, pair]
                )
            if picture.records is not None:
                _draw_records(axes, picture, picture.records[:, pair])
            _draw_centroids(axes, picture, found.centroids[:, pair])
    figure.suptitle(f"{_clusters(found)} by column{'' if n == 1 else 's'}")


def _draw_density(axes: "Axes", picture: Picture, place: int) -> None:
    axes.set_yticks([])
    synopsis, centroids = picture.synopsis, picture.found.centroids[:, place]
    if picture.records is not None:
        # so that the centroids are not cut off below the bars
        axes.use_sticky_edges = False
        axes.hist(
            picture.records[:, place], bins=50, density=True, color="gray", alpha=0.5
        )
    _draw_centroids(
        axes, picture, np.stack([centroids, np.zeros_like(centroids)], axis=1)
    )
    if synopsis is None:
        return
    means, shares = synopsis.means[:, place], synopsis.weights / synopsis.weights.sum()
    column = np.diag(synopsis.domain.unit)[:, [place]]
    spreads = np.sqrt(synopsis.covariances_along(column)[:, 0, 0])
    ends = (means - 3 * spreads).min(), (means + 3 * spreads).max()
    points = np.linspace(*ends, 200)
    curves = (
        np.exp(-np.square((points[:, None] - means) / spreads) / 2) / spreads * shares
    )
    axes.plot(
        points, curves.sum(axis=1) / np.sqrt(2 * np.pi), color="black", linewidth=1
    )


def _draw_sizes(figure: "Figure", picture: Picture) -> None:
    """Draw noisy sizes with intervals, where these are known."""
    counts, ends, about = picture.found.counts, None, "at once"
    if picture.found.sizes is not None:
        counts, ends = picture.found.sizes
    elif picture.synopsis is not None and picture.found.is_private:
        # Of the synopsis, whose noise is known: each cluster is a sum of noisy counts.
        weights, (noise, _, _) = (
            picture.synopsis.weights,
            picture.synopsis.mixture.noise,
        )
        k, labels = len(counts), _labels(picture.found, picture.synopsis)
        counts = np.bincount(labels, weights, minlength=k).astype(np.float64)
        n_parts = np.bincount(labels, minlength=k)
        margin = -NormalDist().inv_cdf((1 - CONFIDENCE) / 2) * noise * np.sqrt(n_parts)
        ends, about = (
            np.maximum(counts[:, None] + np.outer(margin, [-1, 1]), 0.0),
            "each",
        )
    order = _largest(counts)
    figure.set_size_inches(max(5.0, 0.3 * len(order) + 2), 4.5)
    axes, places = figure.add_subplot(), np.arange(len(order))
    axes.bar(places, counts[order], color=colours(order, len(counts)))
    title = f"{'noisy ' if picture.found.is_private else ''}sizes, largest first"
    if ends is not None:
        title += (
            " by the run's last sums"
            if about == "at once"
            else ", as the synopsis has them"
        )
        shown = counts[order]
        margins = np.abs(ends[order].T - shown)
        axes.errorbar(places, shown, yerr=margins, fmt="none", color="black", capsize=3)
        title += f"\nintervals of {CONFIDENCE:.0%} over the noise, {about}"
    axes.set_xticks(places, [str(cluster) for cluster in order])
    axes.set_xlabel("cluster")
    axes.set_ylabel("records")
    axes.set_title(title, fontsize=10)


def _draw_profiles(figure: "Figure", picture: Picture) -> None:
    """Draw where each centroid lies in each column."""
    found, synopsis, order = (
        picture.found,
        picture.synopsis,
        _largest(picture.found.counts),
    )
    names = [printable(name) for name in found.columns[:_MOST_ROWS]]
    if synopsis is None:
        values, label = (
            found.domain.scaled(found.centroids),
            "position between the bounds",
        )
    else:
        n, shares = len(names), synopsis.weights / synopsis.weights.sum()
        means, columns = synopsis.means[:, :n], np.diag(found.domain.unit)[:, :n]
        mean = shares @ means
        variances = np.diagonal(synopsis.covariances_along(columns), axis1=1, axis2=2)
        spread = np.sqrt(shares @ (variances + np.square(means - mean)))
        values = (found.centroids[:, :n] - mean) / spread
        label = "standard deviations\nfrom the mean of all records"
    shown = values[order, : len(names)]
    figure.set_size_inches(3 + 0.6 * len(names), max(4.0, 2 + 0.35 * len(order)))
    # Not less, or noise alone would have the strongest colours.
    axes, most = figure.add_subplot(), max(float(np.abs(shown).max()), 1.0)
    drawn = axes.imshow(shown, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    for (row, column), value in np.ndenumerate(shown):
        ink = "white" if abs(value) > 0.6 * most else "black"
        text = f"{round(float(value), 1) + 0.0:.1f}"  # no negative zero
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=7)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(order)), [str(cluster) for cluster in order])
    axes.set_ylabel("cluster, largest first")
    axes.set_title(f"{_clusters(found)} by column", fontsize=10)
    figure.colorbar(drawn, ax=axes, label=label)


# --------------------------------------------------------------------------- marks


def _draw_parts(
    axes: "Axes", found: Found, synopsis: Synopsis, means: Floats, directions: Floats
) -> None:
    """Draw an ellipse for each part along two directions (d, 2), the darker the heavier it is."""
    from matplotlib.patches import Ellipse

    shares = 0.1 + 0.5 * synopsis.weights / synopsis.weights.max()
    shades = colours(_labels(found, synopsis), len(found.centroids))
    covariances = synopsis.covariances_along(directions)
    for mean, covariance, share, colour in zip(
        means, covariances, shares, shades, strict=True
    ):
        values, vectors = np.linalg.eigh(covariance)
        width, height = 2 * np.sqrt(np.maximum(values[::-1], 0.0))
        angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
        axes.add_patch(
            Ellipse(mean, width, height, angle=angle, color=colour, alpha=share, lw=0)
        )
    # The limits of the axes follow points, and ignore patches.
    axes.scatter(means[:, 0], means[:, 1], s=0)


def _draw_records(axes: "Axes", picture: Picture, places: Floats) -> None:
    # Every n-th record: with a random choice, each picture would be another one.
    step = -(-len(places) // _MOST_POINTS) or 1
    x, y = places[::step].T
    axes.scatter(x, y, s=3, color="gray", alpha=0.5, label=_RECORDS, zorder=0.5)


def _draw_centroids(axes: "Axes", picture: Picture, places: Floats) -> None:
    sizes = np.maximum(picture.found.counts, 0.0)
    area = 40 + 160 * sizes / (sizes.max() or 1.0)
    shades = colours(np.arange(len(places)), len(places))
    style: dict[str, Any] = {"edgecolors": "black", "label": "centroids", "zorder": 3}
    axes.scatter(places[:, 0], places[:, 1], s=area, c=shades, **style)
    for cluster, (x, y) in enumerate(places):
        axes.annotate(
            str(cluster), (x, y), fontsize=7, ha="center", va="center", zorder=4
        )


def _principal(spread: Floats) -> tuple[Floats, Floats]:
    """Return two directions, (d, 2), and their shares of a covariance (d, d)."""
    values, vectors = np.linalg.eigh(spread)
    directions, parts = vectors[:, :-3:-1].copy(), values[:-3:-1]
    # The signs are arbitrary. With these, every picture of a run is the same.
    largest = np.abs(directions).argmax(axis=0)
    directions *= np.where(directions[largest, [0, 1]] < 0, -1.0, 1.0)
    return directions, parts / max(float(values.sum()), np.finfo(float).tiny)


def _labels(found: Found, synopsis: Synopsis) -> NDArray[np.int64]:
    """Return the cluster of each part of the synopsis, (m,)."""
    return assigned(synopsis.means, found.centroids, found.domain, found.weights)


def _largest(counts: Floats) -> NDArray[np.int64]:
    """Return the clusters to show, the largest first."""
    return np.argsort(-counts, kind="stable")[:_MOST_ROWS]


def _clusters(found: Found) -> str:
    return f"{len(found.centroids)} cluster{'' if len(found.centroids) == 1 else 's'}"


def _owners(found: Found) -> list[Any]:
    """Return the declared column of each column of the box, (d,); ``None`` without declarations."""
    if not isinstance(found.domain, TableDomain):
        return [None] * len(found.columns)
    return [column for column in found.domain.declared for _ in column.coordinates()]


def _name_axis(
    axis: "Axis", found: Found, place: int, is_named: bool, rotation: float = 0
) -> None:
    """Give an axis the ticks of a column as people read its numbers, and its name."""
    from matplotlib.ticker import MaxNLocator

    name, owner = found.columns[place], _owners(found)[place]
    read: Callable[[float], str] | None = None
    if isinstance(owner, Date):
        name, read = (
            owner.name,
            lambda day: str(owner.decode(np.array([[day]]))[owner.name][0]),
        )
    elif isinstance(owner, Number) and owner.scale == "log":
        name, read = owner.name, lambda power: f"{10.0**power:.3g}"
    if read is not None:
        axis.set_major_locator(MaxNLocator(3))
        axis.set_tick_params(labelrotation=rotation)
        axis.set_major_formatter(lambda value, _: read(value))
    if is_named:
        axis.set_label_text(printable(name), parse_math=False)
