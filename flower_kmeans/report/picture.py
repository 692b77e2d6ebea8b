"""Pictures of a clustering: a photograph with its palette, or a scatter plot.

Pictures show the records themselves, so a private run must not publish them. They are for
holders of the data, such as a simulation. Only the owner of the files can read them.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flower_kmeans.arrays import FloatArray, IntArray
from flower_kmeans.data.domain import Domain, Sphere
from flower_kmeans.errors import ConfigurationError
from flower_kmeans.extras import require
from flower_kmeans.files import open_private
from flower_kmeans.report.names import cluster_names, shorten
from flower_kmeans.report.profiles import ColumnProfile
from flower_kmeans.report.separation import SeparatingView, separating_view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_MARGIN = 16
_CAPTION = 34
_SWATCHES = 120
_INK = (30, 30, 30)
_PAPER = (255, 255, 255)
_MOST_POINTS = 20_000
_STRIDE = 997  # between records that are drawn one after the other
_MOST_COLOURS = 20  # of clusters
_MOST_LISTED = 12  # clusters in a legend


def save_photo_picture(
    path: Path,
    image: NDArray[np.uint8],
    labels: NDArray[np.int64],
    centroids: NDArray[np.float64],
    counts: NDArray[np.float64],
    caption: str,
) -> None:
    """Write a png: the photograph before and after, and its palette, largest first.

    ``image`` is (height, width, 3). ``labels``, (height * width,) row by row, are the
    clusters of its pixels. ``centroids``, (k, 3), are the colours of the clusters, and
    ``counts``, (k,), determine the widths in the palette.
    """
    require("PIL", "The picture")
    from PIL import Image, ImageDraw, ImageFont

    height, width = image.shape[:2]
    if labels.shape != (height * width,) or centroids.shape != (len(counts), 3):
        raise ConfigurationError(
            f"Expected a label for each of {height * width} pixels, and 3 columns. "
            f"Got labels of shape {labels.shape} and centroids of shape {centroids.shape} instead."
        )
    nearest = np.clip(np.rint(centroids), 0, 255)
    colours = nearest.astype(np.uint8)
    after = colours[labels].reshape(height, width, 3)

    full_width = 2 * width + 3 * _MARGIN
    palette_top = 2 * _MARGIN + _CAPTION + height
    full_height = palette_top + _CAPTION + _SWATCHES + _MARGIN
    second_left = width + 2 * _MARGIN
    page = Image.new("RGB", (full_width, full_height), _PAPER)
    page.paste(Image.fromarray(image), (_MARGIN, _MARGIN + _CAPTION))
    page.paste(Image.fromarray(after), (second_left, _MARGIN + _CAPTION))

    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(size=20)
    small = ImageFont.load_default(size=13)
    draw.text((_MARGIN, _MARGIN), "before", fill=_INK, font=font)
    draw.text((second_left, _MARGIN), caption, fill=_INK, font=font)
    title = f"the palette of {len(colours)} colours, by noisy size"
    draw.text((_MARGIN, palette_top), title, fill=_INK, font=font)

    top = palette_top + _CAPTION
    edges = _MARGIN + _palette_edges(counts, full_width - 2 * _MARGIN)
    order = np.argsort(-counts, kind="stable")
    swatches = zip(edges, edges[1:], order, strict=False)
    for left, right, cluster in swatches:
        colour = tuple(int(each) for each in colours[cluster])
        rectangle = (left, top, right - 1, top + _SWATCHES)
        draw.rectangle(rectangle, fill=colour)
        text = "#{:02x}{:02x}{:02x}".format(*colour)
        if draw.textlength(text, font=small) + 8 <= right - left:
            # Luma by ITU-R BT.601: white letters on dark colours, dark ones on light.
            luma = np.dot(colour, (0.299, 0.587, 0.114))
            ink = _PAPER if luma < 128 else _INK
            place = (left + 4, top + _SWATCHES - 20)
            draw.text(place, text, fill=ink, font=small)
    with open_private(path) as file:
        page.save(file, format="PNG")


def save_scatter_picture(
    path: Path,
    records: FloatArray,
    labels: IntArray,
    centroids: FloatArray,
    counts: FloatArray,
    domain: Domain,
    columns: Sequence[str] | None = None,
) -> None:
    """Write a png: records by their cluster, where the clusters lie apart best.

    A domain with one column has a histogram. Otherwise the view is that of
    `separating_view`. If there are more than 20,000 records, evenly spaced ones are
    drawn.

    Parameters
    ----------
    path : Path
    records : array of shape (n, d), float64
        In the user's units, without null records.
    labels : array of shape (n,), int64
        Clusters of the records, which need not be those of the nearest centroids.
    centroids : array of shape (k, d), float64
    counts : array of shape (k,), float64
        Noisy sizes.
    domain : Box, Ball or Sphere
    columns : sequence of str, optional
        Names for a domain that has none.
    """
    require("matplotlib", "The picture", extra="plots")
    from matplotlib.figure import Figure

    # Every n-th record is drawn, because a random choice would change from run to run.
    step = -(-len(records) // _MOST_POINTS) or 1
    shown = records[::step]
    own = labels[::step]
    drawn = _within(centroids, shown, own, domain)
    view = separating_view(shown, own, drawn, domain, columns)
    figure = Figure(figsize=(10, 6), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    if len(view.columns) == 1:
        _draw_histogram(axes, shown, own, drawn, view)
    else:
        _draw_scatter(axes, shown, own, drawn, domain, view)
    title = _title(view, len(centroids))
    axes.set_title(title, loc="left", fontsize=9, parse_math=False)
    names = cluster_names(centroids, counts, domain, columns)
    _add_legend(figure, names, counts)
    with open_private(path) as file:
        figure.savefig(file, format="png")


def _within(
    centroids: FloatArray, records: FloatArray, labels: IntArray, domain: Domain
) -> FloatArray:
    """Return centroids (k, d) among their records: on a sphere at their mean length.

    The mean of directions is shorter than 1, the length of a centroid. So all centroids
    would lie outside of the flat picture of their records.
    """
    if not isinstance(domain, Sphere):
        return centroids
    along = np.einsum("ij,ij->i", domain.compared(records), centroids[labels])
    counts = np.bincount(labels, minlength=len(centroids))
    sums = np.bincount(labels, along, minlength=len(centroids))
    lengths = np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)
    return centroids * lengths[:, None]


def _draw_scatter(
    axes: "Axes",
    records: FloatArray,
    labels: IntArray,
    centroids: FloatArray,
    domain: Domain,
    view: SeparatingView,
) -> None:
    """Draw records and centroids in a view with two axes."""
    if view.columns:
        x, y = (_on_axis(records, view, i, spread=True) for i in (0, 1))
        across, up = (_on_axis(centroids, view, i, spread=False) for i in (0, 1))
        _set_ticks(axes.xaxis, view.columns[0])
        _set_ticks(axes.yaxis, view.columns[1])
    else:
        points = domain.scaled(domain.compared(records))
        x, y = (points @ view.directions).T
        across, up = (domain.scaled(centroids) @ view.directions).T
        # Distances in the picture are those between records, seen from one side.
        axes.set_aspect("equal", adjustable="datalim")
        axes.tick_params(labelbottom=False, labelleft=False, length=0)
    n_clusters = len(centroids)
    # Tables are often sorted: the last cluster would hide the others.
    order = np.argsort(np.arange(len(labels)) % _STRIDE, kind="stable")
    dots = np.array(colours(labels, n_clusters)).reshape(-1, 4)
    size = min(25.0, max(5.0, 10_000 / max(1, len(x))))
    axes.scatter(x[order], y[order], c=dots[order], s=size, alpha=0.6, linewidths=0)
    shades = colours(np.arange(n_clusters), n_clusters)
    axes.scatter(across, up, c=shades, s=190, edgecolors="black", zorder=3)
    style: dict[str, Any] = {"fontsize": 8, "ha": "center", "va": "center", "zorder": 4}
    for cluster, place in enumerate(zip(across, up, strict=True)):
        axes.annotate(str(cluster), place, **style)
    axes.set_xlabel(view.labels[0], parse_math=False)
    axes.set_ylabel(textwrap.fill(view.labels[1], 60), parse_math=False)


def _draw_histogram(
    axes: "Axes",
    records: FloatArray,
    labels: IntArray,
    centroids: FloatArray,
    view: SeparatingView,
) -> None:
    """Draw how many records of each cluster have each value of the only column."""
    (column,) = view.columns
    values = _on_axis(records, view, 0, spread=False)
    n_clusters = len(centroids)
    bins: Any = 60
    if column.is_category:
        bins = np.arange(len(column.levels) + 1) - 0.5
    groups = [values[labels == cluster] for cluster in range(n_clusters)]
    shades = colours(np.arange(n_clusters), n_clusters)
    axes.hist(groups, bins=bins, stacked=True, color=shades)
    if not column.is_category:
        marks = _on_axis(centroids, view, 0, spread=False)
        for cluster, place in enumerate(marks.tolist()):
            axes.axvline(place, color="black", lw=0.8)
            axes.annotate(
                str(cluster),
                (place, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, -9),
                textcoords="offset points",
                fontsize=8,
                ha="center",
                bbox={"boxstyle": "round", "fc": "white", "lw": 0.5},
            )
    _set_ticks(axes.xaxis, column)
    axes.set_xlabel(view.labels[0], parse_math=False)
    axes.set_ylabel("records")


def _on_axis(
    points: FloatArray, view: SeparatingView, axis: int, *, spread: bool
) -> FloatArray:
    """Return the places of points (n, d) along a column.

    Points of a category are at their most frequent level, and are spread around it if
    ``spread``: all would otherwise hide each other.
    """
    own: FloatArray = points[:, view.places[axis]]
    if not view.columns[axis].is_category:
        values: FloatArray = own[:, 0]
        return values
    levels: FloatArray = own.argmax(axis=1).astype(np.float64)
    if not spread:
        return levels
    # Multiples of an irrational number are even, and the same in every picture. The two
    # axes have different ones.
    factor = (math.sqrt(5) - 1) / 2 if axis == 0 else math.sqrt(2) - 1
    return levels + 0.6 * (np.arange(len(levels)) * factor % 1.0 - 0.5)


def _set_ticks(axis: "Axis", column: ColumnProfile) -> None:
    """Give an axis the ticks of a column, in the user's units."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    if column.is_category:
        names = [shorten(level, 18) for level in column.levels]
        rotation = 30 if len(names) > 8 else 0
        axis.set_ticks(range(len(names)), names, rotation=rotation, parse_math=False)
        return
    row = column.rows[0]
    if row.kind == "number":
        return
    axis.set_major_formatter(lambda value, _: row.text(value))
    if row.kind == "date":
        axis.set_major_locator(MaxNLocator(5))
        return
    decades = np.arange(math.floor(row.low), math.ceil(row.high) + 1)
    digits = np.log10([1.0, 2.0, 5.0])
    if len(decades) > 6:
        digits = digits[:1]
    axis.set_major_locator(FixedLocator((decades[:, None] + digits).ravel().tolist()))


def _title(view: SeparatingView, n_clusters: int) -> str:
    """Return what a picture shows, and how well the clusters can be told apart in it."""
    clusters = "1 cluster" if n_clusters == 1 else f"{n_clusters} clusters"
    names = " and ".join(view.labels)
    if view.agreement is None:
        return f"{clusters} by {names}"
    if n_clusters == 1:
        if view.columns:
            return f"{clusters} by {names}"
        return f"{clusters} along the two directions of the largest spread"
    seen = (
        f"{view.agreement:.0%} of the records are nearest to the centroid of their own "
        "cluster here"
    )
    others = f"{view.agreement_of_other:.0%}"
    if view.columns:
        return (
            f"{clusters} by the two columns that separate them best: {names}\n"
            f"{seen} ({others} along the two best directions)"
        )
    return (
        f"{clusters} along the two directions of all columns that separate them best\n"
        f"{seen}\n({others} by the two best columns, {view.other})"
    )


def _add_legend(figure: "Figure", names: Sequence[str], counts: FloatArray) -> None:
    """List the largest clusters with their colours and names beside the picture."""
    from matplotlib.lines import Line2D

    shades = colours(np.arange(len(names)), len(names))
    handles = []
    for cluster in np.argsort(-counts, kind="stable")[:_MOST_LISTED].tolist():
        text = textwrap.fill(f"{cluster}  {names[cluster]}", 34)
        handles.append(
            Line2D([], [], marker="o", ls="", color=shades[cluster], label=text)
        )
    n_others = len(names) - len(handles)
    if n_others:
        text = f"and {n_others} smaller clusters"
        if len(names) > _MOST_COLOURS:
            text += ";\ncolours repeat"
        handles.append(Line2D([], [], ls="", label=text))
    legend = figure.legend(handles=handles, loc="outside right upper", fontsize=8)
    for label in legend.get_texts():
        label.set_parse_math(False)


def colours(clusters: NDArray[np.int64], n_clusters: int) -> list[Any]:
    """Return the colours of clusters (n,) in pictures of ``n_clusters`` clusters."""
    from matplotlib import colormaps

    # Neighbours in the longer list are shades of one colour, like light and heavy parts.
    n_colours = 10 if n_clusters <= 10 else _MOST_COLOURS
    palette = colormaps[f"tab{n_colours}"](np.arange(n_colours))
    return list(palette[clusters % n_colours])


def _palette_edges(counts: NDArray[np.float64], width: int) -> NDArray[np.int64]:
    """Return the edges of the palette's colours, in pixels. Every colour is visible."""
    sizes = np.sort(np.maximum(counts, 0.0))[::-1]
    total = float(sizes.sum())
    if total > 0:
        shares = sizes / total
    else:
        shares = np.full(len(sizes), 1 / len(sizes))
    shares = 0.92 * shares + 0.08 / len(shares)  # noise may make a size zero or less
    ends = np.concatenate([[0.0], np.cumsum(shares)])
    edges: NDArray[np.float64] = np.rint(ends * width)
    return edges.astype(np.int64)
