"""Pictures of a run from what it released; with records only if their holder adds them.

A synopsis, where the run left one, stands for the records: an ellipse is one standard deviation of
one of its parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from flower_kmeans.algorithms.released import CONFIDENCE
from flower_kmeans.cli.assign import Found, read_centroids
from flower_kmeans.cli.page import synopsis_beside
from flower_kmeans.data.table_domain import TableDomain
from flower_kmeans.data.tables import load_table
from flower_kmeans.errors import ConfigurationError, DataError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private, printable
from flower_kmeans.report.clustering import Floats, assigned
from flower_kmeans.report.html import scaled
from flower_kmeans.report.synopsis import Synopsis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = StrEnum("Kind", {"AXES": "axes", "PAIRS": "pairs", "SIZES": "sizes", "PROFILES": "profiles"})

SUFFIXES = (".svg", ".png", ".pdf")
_MOST_PAIRS, _MOST_ROWS, _MOST_POINTS = 6, 64, 20_000
_RECORDS = "own records, not released"


@dataclass(frozen=True)
class Picture:
    """What a run released, and maybe records of the one who draws it."""

    found: Found
    synopsis: Synopsis | None
    sizes: tuple[Floats, Floats] | None  # (k,) and their intervals (k, 2), of a run with bounds
    records: Floats | None  # (n, d), in the user's units

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The cluster of each part of the synopsis, (m,)."""
        means = np.zeros((0, 0)) if self.synopsis is None else self.synopsis.means
        return self.labels_of(means)

    def labels_of(self, points: Floats) -> NDArray[np.int64]:
        """Return the cluster of each point (n, d)."""
        found = self.found
        return assigned(points, found.centroids, found.domain, found.weights)

    @property
    def order(self) -> NDArray[np.int64]:
        """The clusters that rows show, the largest first."""
        return np.argsort(-self.found.counts, kind="stable")[:_MOST_ROWS]


def draw(
    kind: Kind, centroids: Path, output: Path, records: Path | None, columns: Sequence[str] | None
) -> None:
    """Write a picture of a run to a file, its owner's alone to read.

    Parameters
    ----------
    kind : Kind
    centroids : Path
        The ``centroids.npz`` of the run, with its ``synopsis.npz`` beside, if there is one.
    output : Path
        Its suffix is one of `SUFFIXES`.
    records : Path or None
        Records to add, in a file with the run's columns: the picture then shows them.
    columns : sequence of str or None
        Of "pairs": by default the first six.

    Raises
    ------
    ConfigurationError, DataError
        If matplotlib is missing, an option does not fit, or a file cannot be used.
    """
    require("matplotlib", "A picture", "plots")
    from matplotlib.figure import Figure

    if output.suffix.lower() not in SUFFIXES or not output.parent.is_dir():
        raise ConfigurationError(
            f"Expected --output as a file that ends in {', '.join(SUFFIXES)}, in a directory that "
            f"exists. Got {output}."
        )
    if records is not None and kind not in (Kind.AXES, Kind.PAIRS):
        raise ConfigurationError(f"Expected --records with axes or pairs only. Got it with {kind}.")
    if columns is not None and kind is not Kind.PAIRS:
        raise ConfigurationError(f"Expected --columns with pairs only. Got it with {kind}.")
    picture = _picture_of(centroids, records)
    figure = Figure(layout="constrained", dpi=120)
    if kind is Kind.PAIRS:
        _draw_pairs(figure, picture, _places(picture.found, columns))
    else:
        draw_one: dict[Kind, Callable[[Figure, Picture], None]] = {
            Kind.AXES: _draw_axes,
            Kind.SIZES: _draw_sizes,
            Kind.PROFILES: _draw_profiles,
        }
        draw_one[kind](figure, picture)
    note = "from released values only"
    if records is not None:
        note = f"HOLDS RECORDS of {printable(records.name)}: as confidential as these"
    colour = "gray" if records is None else "red"
    figure.supxlabel(note, fontsize=8, color=colour, parse_math=False)
    with open_private(output) as file:
        figure.savefig(file, format=output.suffix[1:].lower())


def _picture_of(path: Path, records: Path | None) -> Picture:
    found, sizes = read_centroids(path), None
    with np.load(path, allow_pickle=False) as file:
        if {"sizes", "size_interval"} <= set(file):
            sizes = file["sizes"], file["size_interval"]
    k = len(found.counts)
    if sizes is not None and [each.shape for each in sizes] != [(k,), (k, 2)]:
        raise DataError(f"Expected {k} sizes with an interval each. Got others in {path}.")
    held = None
    if records is not None:
        domain = found.domain if isinstance(found.domain, TableDomain) else None
        features = None if domain is not None else list(found.columns)
        loaded = load_table(records, features=features, domain=domain, malformed="nan", header=True)
        held = loaded.records[np.isfinite(loaded.records).all(axis=1)]
    return Picture(found, synopsis_beside(path, found.domain), sizes, held)


def _places(found: Found, columns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the columns to pair."""
    if columns is None:
        return list(range(min(len(found.columns), _MOST_PAIRS)))
    unknown = [name for name in columns if name not in found.columns]
    if unknown or not 1 <= len(columns) <= _MOST_PAIRS:
        raise ConfigurationError(
            f"Expected --columns as up to {_MOST_PAIRS} of {', '.join(found.columns)}. "
            f"Got {', '.join(columns)}."
        )
    return [found.columns.index(name) for name in columns]


# --------------------------------------------------------------------------- pictures


def _draw_axes(figure: "Figure", picture: Picture) -> None:
    """Draw clusters on the two principal axes of the synopsis, or else of the centroids."""
    found, synopsis = picture.found, picture.synopsis
    figure.set_size_inches(8, 6)
    axes, unit = figure.add_subplot(), scaled(found.centroids, found.domain)
    if synopsis is None:
        shares = np.maximum(found.counts, 0.0)
        shares = shares / shares.sum() if shares.any() else np.full(len(shares), 1 / len(shares))
        center = shares @ unit
        directions, parts = _principal(((unit - center) * shares[:, None]).T @ (unit - center))
    else:
        mixture, shares = synopsis.mixture, synopsis.weights / synopsis.weights.sum()
        along = mixture.directions
        mean = shares @ mixture.means
        offsets, center = mixture.means - mean, along @ mean
        spread = (offsets * shares[:, None]).T @ offsets + np.diag(shares @ mixture.scales**2)
        beside = np.eye(len(along)) - along @ along.T
        directions, parts = _principal(along @ spread @ along.T + mixture.rest * beside)
        places = offsets @ (along.T @ directions)
        _draw_parts(axes, picture, places, _covariances(synopsis, directions))
    if picture.records is not None:
        own = (scaled(picture.records, found.domain) - center) @ directions
        _draw_records(axes, picture, own)
    _draw_centroids(axes, picture, (unit - center) @ directions)
    labels = [f"principal axis {i + 1} ({100 * parts[i]:.0f}% of variance)" for i in (0, 1)]
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    of = "centroids" if synopsis is None else "synopsis"
    axes.set_title(f"{len(unit)} clusters on the principal axes of the {of}")
    axes.legend(loc="best", fontsize=8)


def _draw_pairs(figure: "Figure", picture: Picture, places: list[int]) -> None:
    """Draw every two of some columns, and each one's density on the diagonal."""
    found, synopsis, n = picture.found, picture.synopsis, len(places)
    figure.set_size_inches(2 + 2.2 * n, 1.5 + 2.2 * n)
    panels = figure.subplots(n, n, squeeze=False)
    unit = np.diag(_unit(found))
    for row, i in enumerate(places):
        for column, j in enumerate(places):
            axes, pair = panels[row, column], [j, i]
            if row == n - 1:
                axes.set_xlabel(printable(found.columns[j]), parse_math=False)
            if column == 0:
                axes.set_ylabel(printable(found.columns[i]), parse_math=False)
            if i == j:
                _draw_density(axes, picture, i)
                continue
            if synopsis is not None:
                covariances = _covariances(synopsis, unit[:, pair])
                _draw_parts(axes, picture, synopsis.means[:, pair], covariances)
            if picture.records is not None:
                _draw_records(axes, picture, picture.records[:, pair])
            _draw_centroids(axes, picture, found.centroids[:, pair])
    figure.suptitle(f"{len(found.centroids)} clusters by columns")


def _draw_density(axes: "Axes", picture: Picture, place: int) -> None:
    axes.set_yticks([])
    synopsis = picture.synopsis
    if synopsis is None:
        axes.plot(picture.found.centroids[:, place], np.zeros(len(picture.found.counts)), "kx")
        return
    means, shares = synopsis.means[:, place], synopsis.weights / synopsis.weights.sum()
    column = np.diag(_unit(picture.found))[:, [place]]
    spreads = np.sqrt(_covariances(synopsis, column)[:, 0, 0])
    ends = (means - 3 * spreads).min(), (means + 3 * spreads).max()
    points = np.linspace(*ends, 200)
    curves = np.exp(-np.square((points[:, None] - means) / spreads) / 2) / spreads * shares
    axes.plot(points, curves.sum(axis=1) / np.sqrt(2 * np.pi), color="black", linewidth=1)


def _draw_sizes(figure: "Figure", picture: Picture) -> None:
    """Draw noisy sizes with intervals, where these are known."""
    counts, ends, about = picture.found.counts, None, "at once"
    if picture.sizes is not None:
        counts, ends = picture.sizes
    elif picture.synopsis is not None:
        # Of the synopsis, whose noise is known: each cluster is a sum of noisy counts.
        weights, (noise, _, _) = picture.synopsis.weights, picture.synopsis.mixture.noise
        k = len(counts)
        counts = np.bincount(picture.labels, weights, minlength=k).astype(np.float64)
        n_parts = np.bincount(picture.labels, minlength=k)
        margin = -float(ndtri((1 - CONFIDENCE) / 2)) * noise * np.sqrt(n_parts)
        ends, about = np.maximum(counts[:, None] + np.outer(margin, [-1, 1]), 0.0), "each"
    order = np.argsort(-counts, kind="stable")[:_MOST_ROWS]
    figure.set_size_inches(max(5.0, 0.3 * len(order) + 2), 4.5)
    axes, places = figure.add_subplot(), np.arange(len(order))
    axes.bar(places, counts[order], color=_colours(order))
    title = "noisy sizes, largest first"
    if ends is not None:
        shown = counts[order]
        margins = np.abs(ends[order].T - shown)
        axes.errorbar(places, shown, yerr=margins, fmt="none", color="black", capsize=3)
        title += f"; intervals of {CONFIDENCE:.0%} over the noise, {about}"
    axes.set_xticks(places, [str(cluster) for cluster in order])
    axes.set_xlabel("cluster")
    axes.set_ylabel("records")
    axes.set_title(title, fontsize=10)


def _draw_profiles(figure: "Figure", picture: Picture) -> None:
    """Draw where each centroid lies in each column."""
    found, synopsis, order = picture.found, picture.synopsis, picture.order
    names = [printable(name) for name in found.columns[:_MOST_ROWS]]
    if synopsis is None:
        values, label = scaled(found.centroids, found.domain), "position between the bounds"
    else:
        shares = synopsis.weights / synopsis.weights.sum()
        mean = shares @ synopsis.means
        found_parts, squares = synopsis.mixture, np.square(synopsis.mixture.directions)
        within = squares @ (shares @ found_parts.scales**2)
        within += found_parts.rest * np.maximum(1 - squares.sum(axis=1), 0.0)
        between = shares @ np.square(synopsis.means - mean)
        spread = np.sqrt(within * np.square(_unit(found)) + between)
        values = (found.centroids - mean) / spread
        label = "deviations from the mean of all records"
    shown = values[order][:, : len(names)]
    figure.set_size_inches(3 + 0.6 * len(names), 2 + 0.35 * len(order))
    axes, most = figure.add_subplot(), max(float(np.abs(shown).max()), 1e-9)
    drawn = axes.imshow(shown, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    for (row, column), value in np.ndenumerate(shown):
        ink = "white" if abs(value) > 0.6 * most else "black"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=ink, fontsize=7)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(range(len(order)), [str(cluster) for cluster in order])
    axes.set_ylabel("cluster, largest first")
    figure.colorbar(drawn, ax=axes, label=label)


# --------------------------------------------------------------------------- marks


def _draw_parts(axes: "Axes", picture: Picture, means: Floats, covariances: Floats) -> None:
    """Draw an ellipse for each part of the synopsis, the darker the more records it has."""
    from matplotlib.patches import Ellipse

    if picture.synopsis is None:
        return
    weights = picture.synopsis.weights
    shares = 0.1 + 0.5 * weights / weights.max()
    colours = _colours(picture.labels)
    for mean, covariance, share, colour in zip(means, covariances, shares, colours, strict=True):
        values, vectors = np.linalg.eigh(covariance)
        width, height = 2 * np.sqrt(np.maximum(values[::-1], 0.0))
        angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
        axes.add_patch(
            Ellipse(mean, width, height, angle=angle, color=colour, alpha=share, linewidth=0)
        )
    axes.scatter(means[:, 0], means[:, 1], s=0)  # which the axes reach for, and not for patches


def _draw_records(axes: "Axes", picture: Picture, places: Floats) -> None:
    # Every n-th one: a random choice would make another picture each time.
    step = -(-len(places) // _MOST_POINTS) or 1
    x, y = places[::step].T
    axes.scatter(x, y, s=3, color="gray", alpha=0.5, label=_RECORDS, zorder=1.5)


def _draw_centroids(axes: "Axes", picture: Picture, places: Floats) -> None:
    sizes = np.maximum(picture.found.counts, 0.0)
    area = 40 + 160 * sizes / (sizes.max() or 1.0)
    colours = _colours(np.arange(len(places)))
    axes.scatter(
        places[:, 0],
        places[:, 1],
        s=area,
        c=colours,
        edgecolors="black",
        label="centroids",
        zorder=3,
    )
    for cluster, (x, y) in enumerate(places):
        axes.annotate(str(cluster), (x, y), fontsize=7, ha="center", va="center", zorder=4)


def _principal(spread: Floats) -> tuple[Floats, Floats]:
    """Return two directions, (d, 2), and their shares of a covariance (d, d); 0 beyond it."""
    values, vectors = np.linalg.eigh(spread)
    n = min(len(values), 2)
    directions, parts = np.zeros((len(values), 2)), np.zeros(2)
    directions[:, :n], parts[:n] = vectors[:, ::-1][:, :n], values[::-1][:n]
    # The decomposition leaves the signs open: a picture should be the same each time.
    largest = np.abs(directions).argmax(axis=0)
    directions *= np.where(directions[largest, [0, 1]] < 0, -1.0, 1.0)
    return directions, parts / max(float(values.sum()), np.finfo(float).tiny)


def _covariances(synopsis: Synopsis, directions: Floats) -> Floats:
    """Return covariances (m, n, n) of the parts along directions (d, n) of the scaled domain."""
    found = synopsis.mixture
    along = found.directions.T @ directions
    inside = np.einsum("pa,mp,pb->mab", along, found.scales**2, along, optimize=True)
    return np.asarray(inside + found.rest * (directions.T @ directions - along.T @ along))


def _colours(clusters: NDArray[np.int64]) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["tab20"](int(cluster) % 20) for cluster in clusters]


def _unit(found: Found) -> Floats:
    """Return the user's units in one unit of the scaled domain, (d,)."""
    ends = np.stack([np.zeros(len(found.columns)), np.ones(len(found.columns))])
    return np.asarray(np.diff(found.domain.from_unit(ends), axis=0)[0])
